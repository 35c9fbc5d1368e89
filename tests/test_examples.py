"""The scripts and notebooks in examples/: short, in one form, and each prints what it promises, on a random model.

The cells of a notebook are executed as plain Python, in one namespace and in the folder of the notebook: they have no
commands of IPython, and a kernel would be another large dependency. What a cell asserts is tested.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import runpy
import shutil
import sys
import tempfile
import types

import numpy as np
import pytest
from command_lines import ROOT
from demo_like import demo_like_model, shorten

import bert_tf2
from bert_tf2 import commands
from bert_tf2.weights import checkpoint

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return demo_like_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(model, monkeypatch, capsys, tmp_path):
    """Runs an example in this process: run(name, *further arguments) -> the lines that it printed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shorten(monkeypatch)

    def run(name: str, *arguments: str) -> list[str]:
        path = ROOT / "examples" / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), model, *arguments])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_call_it(path, monkeypatch):
    lines = path.read_text().splitlines()
    assert len(lines) <= (76 if path.stem == "sentence_vectors" else 24)
    assert re.match(rf'"""[A-Z].*: python examples/{path.name} MODEL_FOLDER', lines[0])
    assert f"| [{path.name}]({path.name}) |" in (ROOT / "examples" / "README.md").read_text()
    if path.stem != "compare_with_transformers":  # imports torch and transformers first
        monkeypatch.setattr(sys, "argv", [str(path)])
        with pytest.raises(SystemExit, match=f"python examples/{path.name} MODEL_FOLDER"):
            runpy.run_path(str(path), run_name="__main__")


def test_what_a_model_says_of_texts(run, model):
    bert = bert_tf2.load(model)
    first, *lines = run("embed_and_search", "Where is Tokyo?")
    found = [re.fullmatch(r"  (-?\d\.\d{3})  (.*)", line).groups() for line in lines]
    question, *others = bert.embed(["Where is Tokyo?", *(text for _, text in found)])
    cosines = [question @ other / np.linalg.norm(question) / np.linalg.norm(other) for other in others]
    assert [float(shown) for shown, _ in found] == pytest.approx(cosines, abs=1e-3)
    assert first == "Where is Tokyo?" and len(found) == 3 and cosines == sorted(cosines, reverse=True)

    best = bert.fill_mask("It is [MASK].").masks[0].predictions[0]
    filled, words = run("fill_mask", "It is [MASK].")
    assert words.strip().startswith(f"{best.token} {best.probability:.3f}, ") and "[MASK]" not in filled
    assert len(run("fill_mask")) == 7  # three sentences, one of them with two blanks

    lines = run("look_at_attention", "It is [MASK] now.")
    assert [line.partition(":")[0] for line in lines] == [f"layer 0, head {head}" for head in range(4)]
    for line in lines:
        weights = [float(weight) for weight in re.findall(r" (\d\.\d\d)", line)]
        assert len(weights) == 4 and weights == sorted(weights, reverse=True) and sum(weights) <= 1.02


@pytest.mark.slow
def test_trainings_on_own_data(run, tmp_path):
    data = tmp_path / "own"
    shutil.copytree(ROOT / "examples" / "data" / "topics", data)
    (data / "test.tsv").write_text("text\nA text of my own.\n")
    accuracy, header, row = run("classify_tsv", str(data))
    assert re.match(r"accuracy on dev.tsv: \d\.\d\d; everything is in ", accuracy)
    assert header == "id\tlabel\tprobability\ttext"
    assert re.fullmatch(r"test-1\t(animals|body|countries|sky)\t0\.\d+\tA text of my own\.", row)

    score, header, *rows = run("several_labels")
    assert re.match(r"micro F1 on dev.tsv: \d\.\d\d; ", score) and header == "id\tlabels\ttext" and len(rows) == 4
    labels = {label for row in rows for label in row.split("\t")[1].split(",")}
    assert labels <= {"", "animal", "color", "place", "water"}

    score, *sentences = run("tag_words")
    assert re.match(r"F1 on dev.txt: \d\.\d\d; ", score)
    plain = [re.sub(r"/(PLACE|ANIMAL|TIME)\b", "", sentence) for sentence in sentences]
    assert plain[0] == "Penguins live in Antarctica ." and len(plain) == 3

    lines = run("answer_questions")
    assert len(lines) == 8
    for context, answered in zip(lines[::2], lines[1::2], strict=True):
        answer = answered.partition("?")[2].strip()
        assert answer and answer in context


@pytest.mark.slow
def test_continue_pretraining(run):
    before, after = run("continue_pretraining")
    assert before.startswith("before: The capital of ") and after.startswith("after:  The capital of ")
    folder = pathlib.Path(after.partition("(")[2].rstrip(")"))
    assert (folder.parent / "extended" / "vocab.txt").read_text().split()[1:4] == ["norway", "oslo", "norwegian"]
    assert checkpoint.open_weights(str(folder)).path.endswith("model.ckpt-8")


@pytest.mark.slow
def test_serve_and_ask(run, model):
    text, words, *_ = run("serve_and_ask")
    best = bert_tf2.load(model).fill_mask(text, top_k=3).masks[0].predictions
    assert words.split() == [word.token for word in best]


def test_several_seeds(run, monkeypatch):
    """What it makes of the scores of its trainings; test_trainings_on_own_data runs a training of this kind."""

    def scored(script: str, learning_rate: float, random_seed: int, **settings) -> dict[str, float]:
        assert script == "run_classifier"
        return {"accuracy": random_seed / 10 + 100 * learning_rate}

    monkeypatch.setattr(commands, "call", scored)
    *rates, best = run("several_seeds")
    assert rates == ["0.0005: accuracy 0.250, deviation 0.100", "0.001: accuracy 0.300, deviation 0.100"]
    assert best == "best on dev.tsv: learning_rate=0.001 random_seed=3"


@pytest.mark.extra
def test_sentence_vectors(run, tmp_path):
    """sentence-transformers loads what the example writes, and makes the same vectors."""
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers: make interop")
    before, *losses, after, where = run("sentence_vectors")
    assert re.fullmatch(r"Spearman before: 0\.\d{3}", before) and re.fullmatch(r"Spearman after: 0\.\d{3}", after)
    assert len(losses) == 10 and float(losses[-1].split()[-1]) < float(losses[0].split()[-1])
    folder = where.rpartition(" ")[2]
    texts = ["The capital of Japan is Tokyo.", "Bees make honey. " * 30]
    theirs = library.SentenceTransformer(folder, device="cpu").encode(texts)
    np.testing.assert_allclose(bert_tf2.load(folder).embed(texts), theirs, atol=1e-5)


@pytest.mark.extra
def test_compare_with_transformers(run):
    for name in ("torch", "transformers"):
        pytest.importorskip(name, reason=f"{name} is not installed: make interop")
    lines = run("compare_with_transformers")
    pairs = [re.search(r"here (\d\.\d+)  there (\d\.\d+)$", line).groups() for line in lines]
    assert len(pairs) == 5 and all(abs(float(here) - float(there)) < 2e-5 for here, there in pairs)


# Notebooks


def cells_of(path: pathlib.Path, kind: str) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_in_one_form(path):
    made, text = runpy.run_path(str(ROOT / "docs" / "notebook.py")), path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert text == json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    for number, cell in enumerate(notebook["cells"], 1):
        assert cell["id"] == f"cell-{number:02}" and cell["metadata"] == {}
        assert cell["cell_type"] != "code" or (cell["outputs"], cell["execution_count"]) == ([], None)
    if path.stem in made["NOTEBOOKS"]:  # made of a page, whose code test_docs runs
        assert text == made["made"](path.stem), "python docs/notebook.py writes it anew"
    else:
        assert max(map(len, text.splitlines())) <= 140
    for number, code in enumerate(cells_of(path, "code"), 1):
        compile(code, f"code cell {number}", "exec")
    for target in re.findall(r"\]\(([^)#\s]+)", "\n".join(cells_of(path, "markdown"))):
        assert target.startswith("http") or (path.parent / target).exists(), target


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """notebook(name) -> what its cells defined, run beside the folder of a model as after `make demo`."""
    plt = pytest.importorskip("matplotlib.pyplot")
    (tmp_path / "demo_output").mkdir()
    demo_like_model(tmp_path / "demo_output")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path / "examples")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shorten(monkeypatch)

    def run(name: str) -> types.ModuleType:
        plt.switch_backend("agg")
        plt.close("all")  # those of other tests
        module = types.ModuleType("notebook")
        for number, code in enumerate(cells_of(ROOT / "examples" / f"{name}.ipynb", "code"), 1):
            exec(compile(code, f"{name}, code cell {number}", "exec"), module.__dict__)
        module.figures = len(plt.get_fignums())
        for number in plt.get_fignums():
            plt.figure(number).canvas.draw()
        plt.close("all")
        return module

    return run


@pytest.mark.slow
def test_the_notebooks(notebook, capsys):
    done = notebook("masked_word")
    assert done.figures == 2
    np.testing.assert_allclose(done.attention_of(0, done.mask).sum(axis=1), [1] * 4, rtol=1e-5)
    printed = capsys.readouterr().out
    assert "\n 6    103  [MASK]   <- here\n" in printed
    assert f"best word with the bias:    {done.answer[0].token}\n" in printed

    done = notebook("keras_fit")
    assert done.figures == 1 and done.difference == 0.0
    assert 0 <= done.accuracy <= 1 and f"accuracy on dev.tsv: {done.accuracy:.3f}" in capsys.readouterr().out
    assert done.history["loss"][-1] < done.history["loss"][0]
    assert 0 < done.trained() < done.before and done.probabilities.shape == (3, 4)

    done = notebook("fine_tune")
    assert done.figures == 3 and done.tuned.labels.labels == ("animals", "body", "countries", "sky")
    accuracy = done.scores["accuracy"]
    assert 0 <= accuracy <= 1 and f"accuracy on dev.tsv: {accuracy:.3f}" in capsys.readouterr().out
    assert os.path.exists(os.path.join(done.OUTPUT, "confusion_matrix.png"))
