"""Texts that are longer than the model: one answer through each door, the gradient of the whole text, continuations."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from export_cases import CLOSE, CONFIG
from refused import message_of, refuses
from small_models import randomize
from small_trainings import saved

import bert_tf2
from bert_tf2 import commands, exporting, heads
from bert_tf2.long_texts import Windows

WORDS = "the film was good and bad or lovely in paris"
PAIRS = [("film", WORDS), (WORDS, "bad " * 9), ("good", "a film"), ("film " * 40, "playing")]
KINDS = [("classifier", "max"), ("multi_label", "mean"), ("regression", "mean")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "pooling"), KINDS)
def test_one_answer(exported, tmp_path, kind, pooling, log_lines):
    """Of the script, Keras' models, `load` and the export, which take the windows from task.json."""
    text_operations.need()
    folder, kept, kinds = (
        exported(kind).weights.parent,
        str(tmp_path / "kept"),
        {} if kind == "classifier" else {kind: True},
    )
    model, cut = bert_tf2.classifier(folder, window=8, stride=3, pooling=pooling), bert_tf2.load(folder)
    wanted, words = model.predict(PAIRS, batch_size=3, verbose=0), WORDS.split()
    rows = cut.classify([("film", " ".join(words[start : start + 4])) for start in (0, 3, 6)])
    np.testing.assert_allclose(wanted[0], getattr(np.array([[*row.values()] for row in rows]), pooling)(0), **CLOSE)
    model.save_folder(kept)
    bert = bert_tf2.load(kept)
    np.testing.assert_allclose([[*row.values()] for row in bert.classify(PAIRS, batch_size=2)], wanted, **CLOSE)
    assert bert.classify(PAIRS, stride=0) == cut.classify(PAIRS, max_seq_length=8)
    toy_data.write_table(tmp_path / "test.tsv", "text\tother", PAIRS)
    columns = {"task_name": "tsv", "text_a_column": "text", "text_b_column": "other", "data_dir": str(tmp_path)}
    commands.call("run_classifier", do_predict=True, output_dir=kept, **columns, **kinds)
    np.testing.assert_allclose(np.loadtxt(f"{kept}/test_results.tsv", ndmin=2), wanted, **CLOSE)
    lines = commands.call("inspect_records", input_file=f"{kept}/predict.tf_record", show=1)
    assert "4 " in lines[0] and "of whole texts" in lines[0] and "(the longest)" in lines[1]
    model.export(tmp_path / "served")
    served, key = exporting.load(tmp_path / "served")(PAIRS), "value" if kind == "regression" else "probabilities"
    np.testing.assert_allclose([np.reshape(answer[key], [-1]) for answer in served], wanted, **CLOSE)
    if importlib.util.find_spec("onnx"):
        model.export(tmp_path / "onnx", format="onnx")
        assert any("divide texts of more than 8 tokens" in line for line in log_lines)
    model.save(tmp_path / "films.keras")
    for again in (keras.models.load_model(tmp_path / "films.keras"), bert_tf2.classifier(kept)):
        np.testing.assert_allclose(again(PAIRS), wanted, **CLOSE)


def test_equal_windows_have_one_graph(exported, monkeypatch):
    """Each call has its own object for the windows; a graph for each would take seconds, and fail in threads."""
    bert, made, divide = bert_tf2.load(exported("classifier").weights.parent), [], Windows.divide
    monkeypatch.setattr(
        Windows, "divide", lambda self, batch: made.append(dataclasses.astuple(self)) or divide(self, batch)
    )
    for words in (WORDS, WORDS, f"{WORDS} {WORDS}"):
        bert.classify(words, window=8, stride=3)
    assert made == [(8, 3, "mean")]


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_the_loss_of_a_text(pooling):
    """Its gradient at a text of one window is the ordinary one; at several windows that of the pooled probability."""
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ordinary, windowed = (heads.ClassifierModel(config, 3, windows=how) for how in (None, Windows(12, 4, pooling)))
    ids = np.random.default_rng(0).integers(5, 30, [2, 12])
    ids[:, 0], ids[:, -1] = 2, 3
    batch = {"input_ids": tf.constant(ids), "label_ids": tf.constant([2, 0])}
    for model in (ordinary, windowed):
        randomize(model, seed=1)
        model.head_dropout = 0.0

    def gradients(model, compute):
        with tf.GradientTape() as tape:
            loss = compute()
        return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, model.trainable_variables))]

    def by_hand() -> tf.Tensor:
        probabilities = tf.reshape(tf.nn.softmax(ordinary(parts)), [2, -1, 3])
        pooled = getattr(tf, f"reduce_{pooling}")(probabilities, 1)
        return -tf.reduce_mean(
            tf.math.log(tf.gather(pooled, batch["label_ids"], batch_dims=1) / tf.reduce_sum(pooled, 1))
        )

    seed = tf.constant([1, 2])
    long = {**batch, "input_ids": tf.concat([batch["input_ids"]] * 2, 1)}
    parts, counts = windowed.windows.divide(long)
    assert counts.numpy().tolist() == [4, 4]
    for given, wanted in ((batch, lambda: ordinary.loss_terms(batch, seed)[0].mean()), (long, by_hand)):
        found = gradients(windowed, lambda: windowed.loss_terms(given, seed)[0].mean())  # noqa: B023
        for one, other in zip(found, gradients(ordinary, wanted), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_script_learns_and_continues(tmp_path, log_lines):
    """Exactly, where it stopped; a finished training keeps its settings; Keras' `fit` learns from the same windows."""
    toy_data.write_tsv_task(tmp_path, examples=32)
    files = {**toy_data.write_model(tmp_path, num_hidden_layers=1), **toy_data.TSV_COLUMNS, "data_dir": str(tmp_path)}
    how = {
        "max_seq_length": 8,
        "doc_stride": 4,
        "train_batch_size": 8,
        "learning_rate": 5e-3,
        "save_checkpoints_steps": 2,
        "task_name": "tsv",
    }
    how |= {"do_train": True, "num_train_epochs": 1.0, **files}
    for name in ("whole", "parts"):
        commands.call("run_classifier", **how, output_dir=str(tmp_path / name))
        if name == "whole":  # as if the second half were lost
            lost = shutil.ignore_patterns("checkpoint", "model.ckpt-4*", "*.tf_record")
            shutil.copytree(tmp_path / "whole", tmp_path / "parts", ignore=lost)
            (tmp_path / "parts" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-2"')
    for name, values in (once := saved(tmp_path / "whole")).items():
        np.testing.assert_array_equal(values, saved(tmp_path / "parts")[name])
    assert len(once) > 20
    task = (tmp_path / "whole" / "task.json").read_bytes()
    commands.call("run_classifier", **{**how, "doc_stride": 2}, output_dir=str(tmp_path / "whole"))
    assert (tmp_path / "whole" / "task.json").read_bytes() == task
    assert any("whole/task.json: keeps doc_stride 4" in line for line in log_lines)
    model = bert_tf2.classifier(tmp_path / "whole")
    assert model.model.windows == Windows(8, 4, "mean")
    texts, labels = zip(*toy_data.sentences(24, 3), strict=True)
    model.compile(5e-3)
    keras.utils.set_random_seed(7)
    history = model.fit([*texts], [*labels], batch_size=8, epochs=10, verbose=0).history
    assert history["cut_texts"] == [0] * 10 and history["loss"][-1] < history["loss"][0] / 2
    refuses("jit_compile", model.compile, jit_compile=True)
    assert model.jit_compile is False
    refuses("temperature, alpha teacher", model.fit, [*texts], [*labels], alpha=0.1)
    teacher = bert_tf2.load(tmp_path / "whole")
    for name, value in (("alpha", 2), ("temperature", 1e30), ("temperature", float("nan"))):
        message = message_of(model.fit, [*texts], [*labels], teacher=teacher, **{name: value})
        assert message.startswith(f"{name}={value}: ")
    for message, given in (
        ("window=5000", {"window": 5000}),
        ("max_seq_length=3", {"max_seq_length": 3}),
        ("window=8 and max_seq_length=16", {"window": 8, "max_seq_length": 16}),
        ("pooling='max'", {"pooling": "max", "stride": 0}),
    ):
        refuses(message, bert_tf2.classifier, tmp_path / "whole", **given)
        refuses(message, bert_tf2.load(tmp_path / "whole").classify, "a film", **given)
    refuses("--pack_rows", commands.call, "run_classifier", output_dir="x", pack_rows=True, **how)
