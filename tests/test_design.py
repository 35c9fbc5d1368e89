"""The layering of the package, read from its imports."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bert_tf2"
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")
SCRIPTS = sorted(path for path in ROOT.glob("*.py") if path.name != "setup.py")

# A module may import only from lines above its own.
LEVELS = [
    ["errors", "quiet", "process", "help_screen", "progress", "file_kinds"],
    ["environment", "console"],
    ["outputs", "ending"],
    ["files", "huggingface_config", "shapes"],
    ["config", "tokenization", "sstable", "torch_files", "output_lock"],
    ["names", "records", "modeling", "vocabulary", "classification_tasks"],
    ["weights", "heads", "classification", "metrics", "squad", "ner"],
    ["squad_scores", "ner_scores", "bundle", "tensor_files", "vocabulary_surgery"],
    ["huggingface", "model_garden", "keras_files"],
    ["sources", "provenance"],
    ["checkpoint", "pretraining_data"],
    ["optimization", "inference", "graph_tokenization", "request_checks", "saved_model_files", "exported_model", "tpu"],
    ["training", "graph_answers"],
    ["signatures"],
    ["export"],
    ["pretraining", "masked_lm", "conversion"],  # from here on, whole tasks
    ["finetuning"],
    ["features", "finetune_classifier", "finetune_squad", "finetune_ner"],
    ["loading"],
    ["flags"],
]
LEVEL = {name: number for number, names in enumerate(LEVELS) for name in names}

WITHOUT_TENSORFLOW = [
    *("process", "environment", "outputs", "ending", "help_screen", "console", "progress", "file_kinds"),
    *("errors", "quiet", "files", "config", "tokenization", "records", "vocabulary", "classification_tasks"),
    *("pretraining_data", "classification", "metrics", "squad", "squad_scores", "ner", "ner_scores", "flags"),
    *(
        "names",
        "output_lock",
        "weights",
        "sstable",
        "bundle",
        "tensor_files",
        "torch_files",
        "huggingface_config",
        "huggingface",
        "model_garden",
    ),
    *("keras_files", "sources", "provenance", "vocabulary_surgery", "conversion"),
]


def tree(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(nodes) -> set[str]:
    """Full names of what is imported: `from a import b` gives a and a.b."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def project_imports(module: str) -> set[str]:
    """The modules of the package that a module imports, wherever in it."""
    found = imports(ast.walk(tree(PACKAGE / f"{module}.py")))
    return {name.split(".")[1] for name in found if name.startswith("bert_tf2.")} & {*MODULES}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_above(module):
    assert module in LEVEL, f"bert_tf2/{module}.py is new: give it its line in LEVELS, and in docs/design.md"
    wrong = [name for name in project_imports(module) if LEVEL[name] >= LEVEL[module]]
    assert not wrong, f"{module} (line {LEVEL[module]}) imports {wrong}, which are on its line or below"


def test_the_document_has_the_same_lines():
    told = {}
    for line in (ROOT / "docs" / "design.md").read_text(encoding="utf-8").splitlines():
        if row := re.match(r"\| (\d+) \| (.*?) \|", line):
            told |= dict.fromkeys(re.findall(r"`(\w+)`", row[2]), int(row[1]) - 1)
    assert told == LEVEL


def test_the_reader_of_imports_sees_them():
    """The test above would pass on empty sets."""
    assert project_imports("checkpoint") == {
        *("bundle", "classification", "config", "errors", "files", "heads", "modeling", "names", "provenance"),
        *("sources", "weights"),
    }
    assert "training" in project_imports("flags")  # inside of a function


@pytest.mark.parametrize("module", [name for name in MODULES if name != "flags"])
def test_only_flags_and_the_scripts_know_flags(module):
    found = imports(ast.walk(tree(PACKAGE / f"{module}.py")))
    assert not found & {"absl.flags", "absl.app", "argparse", "bert_tf2.flags"}


def test_what_reads_text_loads_no_tensorflow():
    """In one process: what none of them loads, no single one does."""
    names = ", ".join(f"bert_tf2.{name}" for name in WITHOUT_TENSORFLOW)
    code = f"import sys, {names}; print(*sorted({{'tensorflow', 'keras'}} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def functions() -> list[tuple[str, int]]:
    """Name and number of lines of every function of the package and its scripts."""
    found = []
    for path in [*PACKAGE.glob("*.py"), *SCRIPTS]:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((f"{path.name}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1))
    return found


def test_functions_are_short():
    lengths = functions()
    assert [name for name, length in lengths if length > 60] == []
    assert sorted(length for _, length in lengths)[len(lengths) // 2] < 15


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_flags_and_one_call(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 80
    assert not [node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]
