"""classify, tag and answer of bert_tf2.load: what the scripts write for the same texts."""

from __future__ import annotations

import itertools
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from refused import message_of as refusal
from small_models import randomize

import bert_tf2
from bert_tf2 import commands, heads, modeling
from bert_tf2.weights import checkpoint
from bert_tf2.weights.task_file import LabelMap, save_label_map

TEXTS = ["the film was good .", "playing " * 12, "ann lives in paris"]
TAGS = ("O", "B-LOC", "B-PER")


def save(folder: pathlib.Path, model, labels: LabelMap | None = None) -> dict[str, str]:
    """Writes a folder as a training does; returns the flags of its files."""
    files = toy_data.write_model(folder)
    randomize(model)
    checkpoint.CheckpointFolder(str(folder)).save(checkpoint.tf1_variables(model), 7)
    if labels:
        save_label_map(str(folder), labels)
    return {**files, "init_checkpoint": str(folder), "output_dir": str(folder / "out")}


def test_classify(tmp_path):
    files = save(tmp_path, heads.ClassifierModel(toy_data.config(), 2), LabelMap("cola", ("0", "1"), False))
    toy_data.write_table(tmp_path / "test.tsv", "index\tsentence", [*enumerate(TEXTS)])
    commands.call(
        "run_classifier", task_name="cola", do_predict=True, data_dir=str(tmp_path), max_seq_length=24, **files
    )
    expected = np.loadtxt(tmp_path / "out" / "test_results.tsv")
    bert = bert_tf2.load(tmp_path)
    found = bert.classify(TEXTS, max_seq_length=24, batch_size=2)
    assert [*found[0]] == ["0", "1"]
    np.testing.assert_allclose([[*row.values()] for row in found], expected, atol=1e-6)
    assert bert.classify(TEXTS[0]) == pytest.approx(found[0], abs=1e-6)
    assert bert.classify([]) == []
    assert bert.classify((TEXTS[0], TEXTS[2])) != pytest.approx(found[0], abs=1e-3)
    assert bert.classify((TEXTS[:2], TEXTS[1:])) == bert.classify([*itertools.pairwise(TEXTS)])
    assert "text 2: 5 is neither a text nor a pair of texts" in refusal(bert.classify, ["good", 5])
    assert "has no weights for tag(), only for ClassifierModel; load the output_dir of run_ner.py" in refusal(
        bert.tag, ["a"]
    )


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_windows_of_long_texts(tmp_path, pooling, log_lines):
    """A long text has the mean or the maximum over its parts; a pair keeps its first text in each of them."""
    flags = save(tmp_path, heads.ClassifierModel(toy_data.config(), 2), LabelMap("cola", ("0", "1"), False))
    del flags["output_dir"]
    flags |= {"task": "classifier", "stride": 3, "max_seq_length": 6, "export_dir": tmp_path / "served"}
    text_operations.need()  # an export with texts
    served = tf.saved_model.load(commands.call("export_saved_model", pooling=pooling, **flags)).signatures
    bert = bert_tf2.load(tmp_path)
    words = "the film was good and bad or lovely in paris".split()
    parts = [" ".join(words[start : start + 4]) for start in (0, 3, 6)]  # windows of 6 tokens, 4 of them words
    pairs = [("film", " ".join(words[start : start + 2])) for start in (0, 2, 4, 6, 8)]
    for text, divided, stride in ((" ".join(words), parts, 3), (("film", " ".join(words)), pairs, 9)):
        rows = np.array([[*row.values()] for row in bert.classify(divided)])
        found = bert.classify([text, "good"], window=6, stride=stride, pooling=pooling, batch_size=2)
        np.testing.assert_allclose([*found[0].values()], getattr(rows, pooling)(0), atol=1e-6)
        assert found[1] == pytest.approx(bert.classify("good"))
    texts = [" ".join(words), "good", words[1]]
    wanted = [[*row.values()] for row in bert.classify(texts, window=6, stride=3, pooling=pooling)]
    found = served["serving_text"](text_a=tf.constant(texts))["probabilities"]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    pairs = [*zip(texts, [texts[0], "", "bad " * 9], strict=True)]
    wanted = [[*row.values()] for row in bert.classify(pairs, window=6, stride=3, pooling=pooling)]
    firsts, seconds = map(tf.constant, zip(*pairs, strict=True))
    found = served["serving_text_pair"](text_a=firsts, text_b=seconds)
    np.testing.assert_allclose(found["probabilities"], wanted, atol=1e-6)
    assert not any("were cut" in line for line in log_lines)
    bert.classify(TEXTS, max_seq_length=6)
    assert log_lines[-1].endswith("2 of 3 texts are longer than 6 tokens, and were cut")
    assert 'pooling=\'sum\': must be "mean" or "max"' in refusal(lambda: bert.classify("a", pooling="sum"))


@pytest.mark.parametrize(
    ("labels", "kind", "names"),
    [
        (LabelMap("tsv", (), True), {"num_labels": 1, "regression": True}, ["score"]),
        (LabelMap("tsv", ("x", "y"), False, True), {"num_labels": 2, "multi_label": True}, ["x", "y"]),
        (None, {"num_labels": 2}, ["LABEL_0", "LABEL_1"]),
    ],
)
def test_kinds_of_classifiers(tmp_path, labels, kind, names):
    save(tmp_path, heads.ClassifierModel(toy_data.config(), **kind), labels)
    bert = bert_tf2.load(tmp_path)
    found = bert.classify(TEXTS)
    inputs = bert.tokenize(TEXTS)
    expected = bert.model.outputs({**inputs, "label_ids": np.zeros([3, 2 if bert.model.multi_label else 1], "int32")})
    assert [*found[0]] == names
    np.testing.assert_allclose([[*row.values()] for row in found], expected["probabilities"], atol=1e-6)


def test_tokenize(tmp_path):
    save(tmp_path, heads.SpanModel(toy_data.config()))
    bert = bert_tf2.load(tmp_path)
    found = bert.tokenize(["good", ("good film", "bad")])
    assert {name: values.dtype for name, values in found.items()} == dict.fromkeys(found, np.int32)
    ids = bert.tokenizer.convert_tokens_to_ids
    assert found["input_ids"].tolist() == [
        [*ids(["[CLS]", "good", "[SEP]"]), 0, 0, 0],
        ids(["[CLS]", "good", "film", "[SEP]", "bad", "[SEP]"]),
    ]
    assert found["input_mask"].tolist() == [[1, 1, 1, 0, 0, 0], [1] * 6]
    assert found["segment_ids"].tolist() == [[0] * 6, [0, 0, 0, 0, 1, 1]]
    assert bert.tokenize("good film", max_seq_length=3)["input_ids"].shape == (1, 3)
    for length in (2, 65):
        assert refusal(bert.tokenize, "good", length).startswith(f"max_seq_length={length}: must be from 3")


def test_tag(tmp_path):
    files = save(tmp_path, heads.TaggingModel(toy_data.config(), len(TAGS)), LabelMap("ner", TAGS, False))
    sentences = [["ann", "lives", "in", "paris"], ["where", "?"] * 40, ["playing"]]
    (tmp_path / "words.txt").write_text("\n\n".join("\n".join(words) for words in sentences) + "\n")
    commands.call("run_ner", do_predict=True, predict_file=str(tmp_path / "words.txt"), max_seq_length=32, **files)
    written = (tmp_path / "out" / "predictions.txt").read_text().strip().split("\n\n")
    expected = [[line.split()[1] for line in sentence.splitlines()] for sentence in written]
    bert = bert_tf2.load(tmp_path)
    assert bert.tag(sentences, max_seq_length=32, batch_size=2) == expected
    assert bert.tag(sentences[0], max_seq_length=32) == expected[0]
    assert "sentence 1: 5 is no list of words" in refusal(bert.tag, [5])


@pytest.mark.parametrize("may_be_missing", [False, True])
def test_answer(tmp_path, may_be_missing):
    files = save(tmp_path, heads.SpanModel(toy_data.config()))
    paragraph = "ann lives in paris and bob is in  oslo now . " * 9
    question = "where is Bob ?"
    content = {"context": paragraph, "qas": [{"id": "q", "question": question, "answers": []}]}
    (tmp_path / "dev.json").write_text(json.dumps({"data": [{"paragraphs": [content]}]}))
    commands.call(
        "run_squad", do_predict=True, predict_file=str(tmp_path / "dev.json"), max_seq_length=64, max_query_length=32,
        doc_stride=16, pad_to_max_length=False, predict_batch_size=1, version_2_with_negative=may_be_missing, **files,
    )  # fmt: skip
    expected = json.loads((tmp_path / "out" / "predictions.json").read_text())["q"]
    best = json.loads((tmp_path / "out" / "nbest_predictions.json").read_text())["q"]
    bert = bert_tf2.load(tmp_path)
    found = bert.answer(question, paragraph, may_be_missing=may_be_missing)
    assert found.text == expected
    assert found.probability == pytest.approx(
        next(one["probability"] for one in best if one["text"] == expected), abs=1e-5
    )
    assert "paragraph=' ': must be a text" in refusal(bert.answer, question, " ")


@pytest.fixture
def computed(monkeypatch) -> list[int]:
    """For each block that runs, at how many positions of the batch."""
    found, original = [], modeling.after_attention

    def after_attention(block, states, context):
        tf.py_function(lambda size: found.append(int(size) // states.shape[-1]), [tf.size(states)], [])
        return original(block, states, context)

    monkeypatch.setattr(modeling, "after_attention", after_attention)
    return found


@pytest.mark.parametrize(
    ("make", "ask", "read"),
    [
        (lambda config: heads.ClassifierModel(config, 2), lambda bert: bert.classify(["the film was good"]), 1),
        (heads.PretrainingModel, lambda bert: bert.fill_mask("the film was [MASK]"), 2),  # and [CLS]
        (heads.PretrainingModel, lambda bert: bert.embed("the film was good", pooling="cls"), 2),
    ],
    ids=["classify", "fill_mask", "embed"],
)
def test_the_last_block_computes_what_is_read(make, ask, read, tmp_path, computed):
    save(tmp_path, make(toy_data.config()))
    bert = bert_tf2.load(tmp_path)
    ask(bert)
    assert computed == [6] * (toy_data.config().num_hidden_layers - 1) + [read]
    computed.clear()
    bert.encoder(tf.ones([1, 6], tf.int32))
    assert set(computed) == {6}  # the model itself is as it was
