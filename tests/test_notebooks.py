"""The notebooks in examples/ run from their first cell to the last; they are stored without outputs, in one form.

The cells are executed as plain Python, in one namespace and in the folder of the notebook: they have no commands of
IPython, and a kernel would be another large dependency. What a cell asserts is tested.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import runpy
import shutil
import tempfile
import types

import numpy as np
import pytest
from command_lines import ROOT
from demo_like import demo_like_model, shorten

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
MADE = runpy.run_path(str(ROOT / "docs" / "notebook.py"))


def cells_of(path: pathlib.Path, kind: str) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_in_one_form(path):
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert text == json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    for number, cell in enumerate(notebook["cells"], 1):
        assert cell["id"] == f"cell-{number:02}" and cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert max(map(len, text.splitlines())) <= 140 or path.stem in MADE["NOTEBOOKS"]  # the pages have tables
    code = "\n".join(cells_of(path, "code"))
    assert not [line for line in code.splitlines() if line.startswith(("%", "!"))]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_links_of_a_notebook_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+)", "\n".join(cells_of(path, "markdown"))):
        assert target.startswith("http") or (path.parent / target).exists(), target


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> pathlib.Path:
    """The folder of the examples beside that of a model, as after `make demo`."""
    for name in ("matplotlib", "matplotlib.pyplot"):
        pytest.importorskip(name)
    (tmp_path / "demo_output").mkdir()
    demo_like_model(tmp_path / "demo_output")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path / "examples")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def run(path: pathlib.Path) -> types.ModuleType:
    """Executes the cells of a notebook; returns what they defined. Figures are drawn without a screen."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    plt.close("all")  # those of other tests
    module = types.ModuleType("notebook")
    for number, code in enumerate(cells_of(path, "code"), 1):
        exec(compile(code, f"{path.name}, code cell {number}", "exec"), module.__dict__)
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()
    module.figures = len(plt.get_fignums())
    plt.close("all")
    return module


@pytest.mark.parametrize("name", MADE["NOTEBOOKS"])
def test_what_is_made_from_a_page(name):
    """test_docs runs the code of the page, all of it."""
    path = MADE["NOTEBOOKS"][name]
    assert path.read_text(encoding="utf-8") == MADE["made"](name), "python docs/notebook.py writes it anew"
    for number, code in enumerate(cells_of(path, "code"), 1):
        compile(code, f"code cell {number}", "exec")


@pytest.mark.slow
def test_from_text_to_the_masked_word(checkout, capsys):
    done = run(ROOT / "examples" / "masked_word.ipynb")
    assert done.figures == 2
    np.testing.assert_allclose(done.attention_of(0, done.mask).sum(axis=1), [1] * 4, rtol=1e-5)
    printed = capsys.readouterr().out
    assert "\n 6    103  [MASK]   <- here\n" in printed
    assert f"best word with the bias:    {done.answer[0].token}\n" in printed


@pytest.mark.slow
def test_bert_in_keras(checkout, capsys):
    done = run(ROOT / "examples" / "keras_fit.ipynb")
    assert done.figures == 1 and done.difference == 0.0
    assert 0 <= done.accuracy <= 1 and f"accuracy on dev.tsv: {done.accuracy:.3f}" in capsys.readouterr().out
    assert done.history["loss"][-1] < done.history["loss"][0]
    assert 0 < done.trained() < done.before
    assert done.probabilities.shape == (3, 4)


@pytest.mark.slow
def test_fine_tune(checkout, capsys, monkeypatch):
    shorten(monkeypatch)
    done = run(ROOT / "examples" / "fine_tune.ipynb")
    assert done.figures == 3
    assert done.tuned.labels.labels == ("animals", "body", "countries", "sky")
    assert (
        0 <= done.scores["accuracy"] <= 1
        and f"accuracy on dev.tsv: {done.scores['accuracy']:.3f}" in capsys.readouterr().out
    )
    assert os.path.exists(os.path.join(done.OUTPUT, "confusion_matrix.png"))
