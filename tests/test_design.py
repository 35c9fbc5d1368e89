"""The structure of the package: which folder may import which, and the sizes of modules and functions."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest
from command_lines import ROOT, SCRIPTS

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
    "exporting": {"support", "data", "bert", "weights", "training", "pretraining", "finetuning", "fast"},
    # It shows what bert_tf2.load returns.
    "explorer": {"support", "data", "bert", "weights", "training", "pretraining", "front door"},
}
WITHOUT_TENSORFLOW = [
    *(name for name in MODULES if name.startswith("support.")),
    *("config", "tokenization", "pretraining.build_vocab"),
    *(name for name in MODULES if name.startswith("data.") and name != "data.record_order"),
    *(name for name in MODULES if name.startswith("weights.") and name != "weights.checkpoint"),
    *(f"pretraining.{name}" for name in ("examples", "instances", "masking", "example_files")),
    *(f"pretraining.{name}" for name in ("corpus", "draws", "drawn_examples", "sentences")),
    "pretraining.inspect_records",
    *(f"pretraining.{name}" for name in ("shards", "sharded", "manifest")),
    *(name for name in MODULES if name.endswith("options")),
    *("commands", "finetuning.tables", "finetuning.classification.tasks"),
    "training.plots",
    *(f"finetuning.{task}.{name}" for task in ("squad", "ner") for name in ("examples", "features")),
    *(f"finetuning.{name}" for name in ("classification.examples", "classification.results", "squad.answers")),
]


def project_imports(module: str) -> set[str]:
    return house.project_imports(MODULES[module], MODULES)


@pytest.mark.parametrize("module", [name for name in MODULES if house.folder(name) != "front door"])
def test_a_folder_knows_only_what_its_rule_allows(module):
    own = house.folder(module)
    assert own in RULES, f"bert_tf2/{module} is new: give it a folder, or its folder a rule here and in docs/design.md"
    allowed = RULES[own] | {own}
    wrong = sorted(name for name in project_imports(module) if house.folder(name) not in allowed)
    assert not wrong, f"{module} imports {wrong}; the rule of {own} is {sorted(RULES[own]) or 'nobody'}"


def test_no_modules_import_each_other():
    seen: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"a circle of imports: {' -> '.join([*path[path.index(module) :], module])}"
        if module not in seen:
            for name in project_imports(module):
                walk(name, (*path, module))
            seen.add(module)

    for module in MODULES:
        walk(module, ())


def test_the_reader_of_imports_sees_them():
    """The tests above would also pass with empty sets."""
    assert {"weights.sources", "weights.names", "support.errors"} <= project_imports("weights.checkpoint")
    assert "weights.checkpoint" in project_imports("weights.convert")  # inside of a function
    assert len(MODULES) > 60 and {*RULES, "front door"} == {*map(house.folder, MODULES)}


def test_the_picture_is_drawn_from_the_imports():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert house.draw() in text, "run python docs/house.py --write"


@pytest.mark.parametrize("module", [name for name in MODULES if name not in ("support.flags", "commands")])
def test_only_flags_and_the_scripts_know_flags(module):
    found = house.all_imports(MODULES[module])
    assert not found & {"absl.flags", "absl.app", "argparse", "bert_tf2.support.flags"}


def test_nothing_imports_the_scripts():
    names = {pathlib.Path(script).stem for script in SCRIPTS}
    assert not [module for module, path in MODULES.items() if house.all_imports(path) & names]


def test_what_reads_text_loads_no_tensorflow():
    """Tests all of them in one process: if it does not load TensorFlow, no module does."""
    names = ", ".join(f"bert_tf2.{name}" for name in WITHOUT_TENSORFLOW)
    code = f"import sys, {names}; print(*sorted({{'tensorflow', 'keras', 'sklearn', 'scipy'}} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_help_of_a_script_waits_for_no_library():
    code = (
        "import sys; from bert_tf2 import commands; from bert_tf2.support import flags;"
        " [commands.find(command.options) for command in commands.COMMANDS.values()];"
        " print(*sorted({'numpy', 'wrapt', 'asyncio', 'tensorflow'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def lines(path: pathlib.Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def functions() -> list[tuple[str, int]]:
    """The name and number of lines, with the docstring, of every function of the package and its scripts."""
    found = []
    for path in [*MODULES.values(), *(ROOT / script for script in SCRIPTS)]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((f"{path.name}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1))
    return found


def test_functions_are_short():
    assert [name for name, length in functions() if length > 60] == []


def test_modules_and_test_files_fit_into_a_head():
    assert {name: lines(path) for name, path in MODULES.items() if lines(path) > 500} == {}
    assert {path.name: lines(path) for path in (ROOT / "tests").rglob("*.py") if lines(path) > 500} == {}


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_thin(script):
    assert lines(ROOT / script) <= 80
    assert not re.search(r"^class ", (ROOT / script).read_text(encoding="utf-8"), re.MULTILINE)


def test_tests_mirror_the_folders():
    folders = {path.parent.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    known = {path.parent.relative_to(PACKAGE).as_posix() for path in MODULES.values()}
    assert folders <= known | {"scripts"}
