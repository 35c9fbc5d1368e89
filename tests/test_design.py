"""The structure of the package: which folder may import which, and what must not load TensorFlow."""

import ast
import re
import subprocess
import sys

import pytest
from command_lines import ROOT, SCRIPTS, environment

sys.path.insert(0, str(ROOT / "docs"))

import house

PACKAGE = ROOT / "bert_tf2"
MODULES = house.modules()

# The rule of each folder, as docs/design.md states it: what its modules may import besides those of the folder itself.
RULES = {
    "support": set(),
    "data": {"support"},
    "bert": {"support", "data"},
    "fast": {"support", "data", "bert"},
    "weights": {"support", "data", "bert"},
    "training": {"support", "data", "bert", "fast", "weights"},
    "pretraining": {"support", "data", "bert", "weights", "training", "fast"},
    "finetuning": {"support", "data", "bert", "weights", "training", "fast"},
    "inference": {"support", "data", "bert", "weights", "training", "fast", "finetuning"},
    "exporting": {"support", "data", "bert", "weights", "training", "pretraining", "finetuning", "fast"},
    # The explorer shows models that bert_tf2.load returns.
    "explorer": {"support", "data", "bert", "weights", "training", "inference", "front door"},
}


def test_a_folder_imports_only_folders_that_its_rule_allows():
    assert {*RULES, "front door"} == {*map(house.folder, MODULES)}, "a folder is new or gone; so is its rule"
    wrong = []
    for module, path in MODULES.items():
        if (own := house.folder(module)) != "front door":
            imported = house.project_imports(path, MODULES)
            wrong += [f"{module}: {name}" for name in imported if house.folder(name) not in RULES[own] | {own}]
    assert wrong == []
    # The reader of imports sees those of a module and those inside of a function; else all of this would pass.
    imported = house.project_imports(PACKAGE / "__main__.py", MODULES) | house.all_imports(PACKAGE / "__init__.py")
    assert imported


def test_no_modules_import_each_other():
    done: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"a circle of imports: {' -> '.join([*path[path.index(module) :], module])}"
        if module not in done:
            for name in house.project_imports(MODULES[module], MODULES):
                walk(name, (*path, module))
            done.add(module)

    for module in MODULES:
        walk(module, ())
    assert len(done) == len(MODULES) > 60


def test_the_picture_is_drawn_from_the_imports():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert house.draw() in text, "run python docs/house.py --write"


def test_flags_and_scripts_are_known_at_the_front_door_only():
    forbidden = {"absl.flags", "absl.app", "argparse", *(script.removesuffix(".py") for script in SCRIPTS)}
    allowed = {"support.flags", "commands"}
    assert [name for name, path in MODULES.items() if house.all_imports(path) & forbidden and name not in allowed] == []


def test_the_table_of_private_interfaces_names_their_modules():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = text[text.index("## Private interfaces") : text.index("## Measured facts")]
    private = re.compile(r"\b(from|import) tensorflow\.(python|core|compiler)\b|\btf\.raw_ops\b")
    found = [name for name, path in MODULES.items() if private.search(path.read_text(encoding="utf-8"))]
    assert len(found) > 5 and [name for name in found if f"`{name}`" not in table] == []


def test_modules_functions_and_scripts_have_a_readable_size():
    lengths, functions = {}, {}
    for path in [*MODULES.values(), *(ROOT / "tests").rglob("*.py"), *(ROOT / script for script in SCRIPTS)]:
        text = path.read_text(encoding="utf-8")
        lengths[str(path)] = len(text.splitlines())
        for node in ast.walk(ast.parse(text)) if ROOT / "tests" not in path.parents else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions[f"{path.name}:{node.lineno} {node.name}"] = node.end_lineno - node.lineno + 1
    assert {path: length for path, length in lengths.items() if length > 500} == {}
    assert {name: length for name, length in functions.items() if length > 60} == {}
    assert max(lengths[str(ROOT / script)] for script in SCRIPTS) <= 80


def test_tests_mirror_the_folders():
    folders = {path.parent.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders <= {path.parent.relative_to(PACKAGE).as_posix() for path in MODULES.values()} | {"scripts"}


# Code -> libraries that it must not load, because scripts would start seconds later.
LOADS = {
    # The options of all scripts, from which --help and a wrong flag's message come.
    """
    from bert_tf2 import commands
    from bert_tf2.support import flags
    for command in commands.COMMANDS.values():
        commands.find(command.options)
    """: {"numpy", "wrapt", "asyncio", "tensorflow", "keras"},
    # From texts to records.
    """
    import pathlib, runpy, sys
    pathlib.Path("text").write_text("a b c d.\\ne f g.\\n\\nh i j.\\nk l.\\n" * 9)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijkl."]
    pathlib.Path("vocab.txt").write_text("\\n".join(words))
    sys.argv[1:] = ["--input_file=text", "--vocab_file=vocab.txt", "--output_file=records"]
    try:
        runpy.run_path("{ROOT}/create_pretraining_data.py", run_name="__main__")
    except SystemExit as end:
        assert not end.code and pathlib.Path("records").stat().st_size > 1000
    """.replace("{ROOT}", str(ROOT)): {"tensorflow", "keras", "sklearn", "scipy"},
    "from bert_tf2.finetuning.classification import tasks": {"numpy", "tensorflow"},
}


@pytest.mark.parametrize("code", LOADS, ids=["help", "pretraining data", "tasks"])
def test_libraries_are_loaded_where_they_are_needed(code, tmp_path):
    lines = "\n".join(line.removeprefix("    ") for line in code.splitlines())
    lines += f"\nimport sys\nprint('loaded:', *sorted({LOADS[code]} & {{*sys.modules}}))"
    command = [sys.executable, "-c", lines]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "loaded:"
