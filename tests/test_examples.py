"""The scripts and notebooks in examples/: each prints what it promises, on a random model and after a few steps.

The cells of a notebook are executed as plain Python, in one namespace and in the folder of the notebook: they have no
commands of IPython, and a kernel would be another large dependency. What a cell asserts is tested.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
import re
import runpy
import shutil
import sys
import tempfile

import numpy as np
import pytest
from command_lines import ROOT
from small_models import randomize

import bert_tf2
from bert_tf2 import commands, heads
from bert_tf2.config import BertConfig
from bert_tf2.weights import checkpoint

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A folder as `make demo` leaves it, but with one block and without the training."""
    folder, demo = tmp_path_factory.mktemp("model"), ROOT / "bert_tf2" / "demo"
    shutil.copy(demo / "vocab.txt", folder)
    config = BertConfig.from_json_file(str(demo / "bert_config.json"))
    config = dataclasses.replace(config, num_hidden_layers=1, hidden_size=32, intermediate_size=64)
    (folder / "bert_config.json").write_text(config.to_json_string())
    language_model = heads.PretrainingModel(config)
    randomize(language_model, seed=1, scale=0.1)
    checkpoint.save(str(folder / "model.ckpt-0"), checkpoint.tf1_variables(language_model))
    return str(folder)


@pytest.fixture
def short_trainings(monkeypatch, tmp_path):
    """Makes the trainings that `commands.call` runs end after a few steps; those of the examples take some seconds."""
    call = commands.call
    limits = {"num_train_epochs": 1.0, "num_train_steps": 8, "num_warmup_steps": 2, "dupe_factor": 1}

    def shorter(name: str, **settings):
        return call(name, **{**settings, **{key: least for key, least in limits.items() if key in settings}})

    monkeypatch.setattr(commands, "call", shorter)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def run(model, monkeypatch, capsys, short_trainings):
    """Runs an example in this process: run(name, *further arguments) -> the lines that it printed."""

    def run(name: str, *arguments: str) -> list[str]:
        path = ROOT / "examples" / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), model, *arguments])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def test_every_example_says_how_to_call_it(monkeypatch):
    overview = (ROOT / "examples" / "README.md").read_text()
    for path in EXAMPLES:
        assert f": python examples/{path.name} MODEL_FOLDER" in path.read_text().partition("\n")[0]
        assert f"| [{path.name}]({path.name}) |" in overview
        if path.stem != "compare_with_transformers":  # imports torch and transformers first
            monkeypatch.setattr(sys, "argv", [str(path)])
            with pytest.raises(SystemExit, match=f"python examples/{path.name} MODEL_FOLDER"):
                runpy.run_path(str(path), run_name="__main__")


SLOW, NUMBER = pytest.mark.slow, r"-?\d\.\d+"
# The example, its further arguments, and all that it prints.
PRINTED = [
    ("embed_and_search", ["Where is Tokyo?"], rf"Where is Tokyo\?\n(  {NUMBER}  .+\n){{3}}"),
    ("probe_layers", [], r" +guess embeddings layer 0\n((word|next|length) .+?(\d+\.\d *){3}\n){3}"),
    ("fill_mask", ["It is [MASK]."], rf"It is \S+\.\n +\S+ {NUMBER}, .*\n"),
    ("look_at_attention", ["It is [MASK] now."], rf"(layer 0, head \d:(.* {NUMBER}){{4}}.*\n){{4}}"),
    ("classify_tsv", [], rf"accuracy on dev.tsv: {NUMBER}; everything is in .*\nid\tlabel\tprobability\ttext\n"
     rf"(test-\d+\t(animals|body|countries|sky)\t{NUMBER}\t.+\n)+"),
    ("several_labels", [], rf"micro F1 on dev.tsv: {NUMBER}; .*\nid\tlabels\ttext\n"
     r"(.+\t((animal|color|place|water),?)*\t.+\n){4}"),
    ("tag_words", [], rf"F1 on dev.txt: {NUMBER}; .*\nPenguins\S* live\S* in\S* Antarctica\S* \.\S*\n(.+\n){{2}}"),
    ("answer_questions", [], r"(.+\n.+\? +\S.*\n){4}"),
    ("continue_pretraining", [], r"before: The capital of .*\nafter:  The capital of .*\(.+\)\n"),
    ("serve_and_ask", [], r".*\[MASK\].*\n *\S+ \S+ \S+\n(.*\n)*"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "printed"),
    [row if row[1] else pytest.param(*row, marks=SLOW) for row in PRINTED],
    ids=[name for name, *_ in PRINTED],
)
def test_what_an_example_prints(run, model, name, arguments, printed):
    lines = run(name, *arguments)
    assert re.fullmatch(printed, "".join(f"{line}\n" for line in lines)), lines
    if name == "embed_and_search":
        shown = [float(line.split()[0]) for line in lines[1:]]
        assert shown == sorted(shown, reverse=True)
    if name == "continue_pretraining":
        folder = pathlib.Path(lines[1].partition("(")[2].rstrip(")"))
        assert (folder.parent / "extended" / "vocab.txt").read_text().split()[1:4] == ["norway", "oslo", "norwegian"]
        assert checkpoint.open_weights(str(folder)).path.endswith("model.ckpt-8")
    if name in ("fill_mask", "serve_and_ask"):
        (mask,) = bert_tf2.load(model).fill_mask(arguments[0] if arguments else lines[0], top_k=3).masks
        assert lines[1].split()[0] == mask.predictions[0].token


@pytest.mark.extra
def test_compare_with_transformers(run):
    pytest.importorskip("torch", reason="make interop")
    pytest.importorskip("transformers", reason="make interop")
    lines = run("compare_with_transformers")
    pairs = [re.search(r"here (\d\.\d+)  there (\d\.\d+)$", line).groups() for line in lines]
    assert len(pairs) == 5 and all(abs(float(here) - float(there)) < 2e-5 for here, there in pairs)


@pytest.mark.slow
@pytest.mark.extra
def test_sentence_vectors(run):
    """sentence-transformers loads what the example writes, and makes the same vectors."""
    library = pytest.importorskip("sentence_transformers", reason="make interop")
    folder = run("sentence_vectors")[-1].rpartition(" ")[2]
    texts = ["The capital of Japan is Tokyo.", "Bees make honey. " * 30]
    theirs = library.SentenceTransformer(folder, device="cpu").encode(texts)
    np.testing.assert_allclose(bert_tf2.load(folder).embed(texts), theirs, atol=1e-5)


# Notebooks


def cells_of(path: pathlib.Path, kind: str) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def test_notebooks_are_stored_without_outputs():
    made = runpy.run_path(str(ROOT / "docs" / "notebook.py"))
    for path in NOTEBOOKS:
        text = path.read_text(encoding="utf-8")
        assert not any(cell.get("outputs") for cell in json.loads(text)["cells"])
        if path.stem in made["NOTEBOOKS"]:  # made of a page, whose code test_docs runs
            assert text == made["made"](path.stem), "python docs/notebook.py writes it anew"
        for target in re.findall(r"\]\(([^)#\s]+)", "\n".join(cells_of(path, "markdown"))):
            assert target.startswith("http") or (path.parent / target).exists(), target


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "figures"),
    [("masked_word", 2), ("keras_fit", 1), ("fine_tune", 3), pytest.param("antibodies", 2, marks=pytest.mark.extra)],
)
def test_a_notebook(model, tmp_path, monkeypatch, capsys, short_trainings, name, figures):
    """It runs beside the folder of a model, as after `make demo`, and draws."""
    plt = pytest.importorskip("matplotlib.pyplot")
    if name == "antibodies" and not (importlib.util.find_spec("antiberty") and importlib.util.find_spec("torch")):
        pytest.skip("antiberty or torch is not installed; make test-extras EXTRA=extra")
    shutil.copytree(model, tmp_path / "demo_output")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path / "examples")
    plt.switch_backend("agg")
    plt.close("all")  # those of other tests
    done = {"__name__": "notebook"}
    for number, code in enumerate(cells_of(ROOT / "examples" / f"{name}.ipynb", "code"), 1):
        code = code.replace("SEVERAL = 8", "SEVERAL = 2")
        exec(compile(code, f"{name}, code cell {number}", "exec"), done)
    assert len(plt.get_fignums()) == figures
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()
    plt.close("all")
    if name == "fine_tune":
        assert f"accuracy on dev.tsv: {done['scores']['accuracy']:.3f}" in capsys.readouterr().out
    if name == "antibodies":
        assert done["right"].mean() > 0.8 and done["after"]["masked_lm_loss"] < done["before"]["masked_lm_loss"] < 0.5
        assert done["same"] and done["totals"][0] == max(done["totals"])
    if name == "masked_word":
        np.testing.assert_allclose(done["attention_of"](0, done["mask"]).sum(axis=1), [1] * 4, rtol=1e-5)
    if name == "keras_fit":
        assert done["difference"] == 0.0 and done["history"]["loss"][-1] < done["history"]["loss"][0]
