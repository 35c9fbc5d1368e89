"""The scripts in examples/: short, and each prints what it promises, on a random model with the demo's vocabulary."""

from __future__ import annotations

import pathlib
import re
import runpy
import shutil
import sys
import tempfile

import numpy as np
import pytest
from command_lines import ROOT
from demo_like import demo_like_model, shorten

import bert_tf2
from bert_tf2 import commands
from bert_tf2.weights import checkpoint

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


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
def test_an_example_is_short_and_says_how_to_call_it(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= (76 if path.stem == "sentence_vectors" else 24)
    assert re.match(rf'"""[A-Z].*: python examples/{path.name} MODEL_FOLDER', lines[0])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_without_a_model_an_example_says_how_to_call_it(path, monkeypatch):
    if path.stem == "compare_with_transformers":
        pytest.skip("imports torch and transformers first")
    monkeypatch.setattr(sys, "argv", [str(path)])
    with pytest.raises(SystemExit, match=f"python examples/{path.name} MODEL_FOLDER"):
        runpy.run_path(str(path), run_name="__main__")


def test_the_table_lists_all_examples():
    table = re.findall(r"(?m)^\| \[(\w+\.py)\]\(\1\) \|", (ROOT / "examples" / "README.md").read_text())
    assert sorted(table) == [path.name for path in EXAMPLES] and len(table) == 12


def test_embed_and_search(run, model):
    lines = run("embed_and_search", "Where is Tokyo?")
    found = [re.fullmatch(r"  (-?\d\.\d{3})  (.*)", line).groups() for line in lines[1:]]
    bert = bert_tf2.load(model)
    question, *others = bert.embed(["Where is Tokyo?", *(text for _, text in found)])
    for (shown, _), other in zip(found, others, strict=True):
        cosine = question @ other / np.linalg.norm(question) / np.linalg.norm(other)
        assert abs(float(shown) - cosine) < 1e-3
    assert lines[0] == "Where is Tokyo?" and len(found) == 3
    assert [shown for shown, _ in found] == sorted((shown for shown, _ in found), reverse=True)


def test_fill_mask(run, model):
    best = bert_tf2.load(model).fill_mask("It is [MASK].").masks[0].predictions[0]
    filled, words = run("fill_mask", "It is [MASK].")
    assert words.strip().startswith(f"{best.token} {best.probability:.3f}, ") and "[MASK]" not in filled
    assert len(run("fill_mask")) == 7  # three sentences, one of them with two blanks


def test_look_at_attention(run):
    lines = run("look_at_attention", "It is [MASK] now.")
    assert [line.partition(":")[0] for line in lines] == [f"layer 0, head {head}" for head in range(4)]
    for line in lines:
        weights = [float(weight) for weight in re.findall(r" (\d\.\d\d)", line)]
        assert len(weights) == 4 and weights == sorted(weights, reverse=True) and sum(weights) <= 1.02


@pytest.mark.slow
def test_classify_tsv(run, tmp_path):
    data = tmp_path / "own"
    shutil.copytree(ROOT / "examples" / "data" / "topics", data)
    (data / "test.tsv").write_text("text\nA text of my own.\n")
    accuracy, header, row = run("classify_tsv", str(data))
    assert re.match(r"accuracy on dev.tsv: \d\.\d\d; everything is in ", accuracy)
    assert header == "id\tlabel\tprobability\ttext"
    assert re.fullmatch(r"test-1\t(animals|body|countries|sky)\t0\.\d+\tA text of my own\.", row)


@pytest.mark.slow
def test_several_labels(run):
    score, header, *rows = run("several_labels")
    assert re.match(r"micro F1 on dev.tsv: \d\.\d\d; ", score) and header == "id\tlabels\ttext" and len(rows) == 4
    labels = {label for row in rows for label in row.split("\t")[1].split(",")}
    assert labels <= {"", "animal", "color", "place", "water"}


@pytest.mark.slow
def test_tag_words(run):
    score, *sentences = run("tag_words")
    assert re.match(r"F1 on dev.txt: \d\.\d\d; ", score)
    plain = [re.sub(r"/(PLACE|ANIMAL|TIME)\b", "", sentence) for sentence in sentences]
    assert plain[0] == "Penguins live in Antarctica ." and len(plain) == 3


@pytest.mark.slow
def test_answer_questions(run):
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
    """The flags of its trainings and what it makes of their scores; test_classify_tsv runs a training of this kind."""
    told = {"0.0005": "accuracy 0.250, deviation 0.100", "0.001": "accuracy 0.300, deviation 0.100"}
    monkeypatch.setattr(commands, "_run", lambda _, o: {"accuracy": o.random_seed / 10 + 100 * o.learning_rate})
    *rates, best = run("several_seeds")
    assert dict(line.split(": ") for line in rates) == told
    assert best == "best on dev.tsv: learning_rate=0.001 random_seed=3"


@pytest.mark.extra
def test_sentence_vectors(run, tmp_path):
    """sentence-transformers loads what the example writes, and makes the same vectors."""
    library = pytest.importorskip(
        "sentence_transformers", reason="sentence-transformers is not installed: make interop"
    )
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
    assert len(pairs) == 5
    assert all(abs(float(here) - float(there)) < 2e-5 for here, there in pairs)
