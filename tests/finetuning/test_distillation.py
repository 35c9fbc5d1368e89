"""A student learns from a teacher, by the script and by `fit`, and may begin with some of the teacher's blocks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from refused import refuses
from small_models import LABELS, MAKERS, batch_for, randomize, tiny_config

import bert_tf2
from bert_tf2 import exporting, heads
from bert_tf2.commands import call
from bert_tf2.fast.encoder import Plan
from bert_tf2.finetuning.distillation import Teacher
from bert_tf2.weights import checkpoint
from bert_tf2.weights.task_file import LabelMap

NO_YES = LabelMap("tsv", ("no", "yes"), regression=False)
TEXTS, ANSWERS = map(list, zip(*toy_data.sentences(32, 1), strict=True))
HOW = {"max_seq_length": 16, "alpha": 0.7, "temperature": 3.0}


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def soft_losses(kind: str, student: np.ndarray, teacher: np.ndarray, temperature: float) -> np.ndarray:
    """Computed with numpy."""
    if kind == "regression":
        return (student - teacher)[..., 0] ** 2
    student, teacher = student / temperature, teacher / temperature
    if kind == "multi_label":
        wanted, found = (1 / (1 + np.exp(-x)) for x in (teacher, student))
        return temperature**2 * -(wanted * np.log(found) + (1 - wanted) * np.log(1 - found)).mean(-1)
    return temperature**2 * -(softmax(teacher) * np.log(softmax(student))).sum(-1)


@pytest.mark.parametrize("kind", ["classifier", "multi_label", "regression", "tagging"])
def test_the_loss_of_labels_and_teacher(kind):
    def make(seed):
        more = {kind: True} if kind in ("multi_label", "regression") else {}
        model = MAKERS.get(kind, MAKERS["classifier"])(tiny_config(), **more)
        randomize(model, seed)
        model.head_dropout = 0.0
        return model

    student, teacher = make(1), make(2)
    batch = batch_for("tagging" if kind == "tagging" else "classifier")
    if kind == "multi_label":
        batch["label_ids"] = np.eye(LABELS, dtype=np.int32)[batch["label_ids"]]
    batch = {name: tf.constant(values) for name, values in batch.items()}
    answers = [model(batch).numpy() for model in (student, teacher)]
    (hard,) = student.loss_terms(batch, tf.constant([1, 2]))
    student.teacher = Teacher(teacher, 3.0, 0.7, Plan())
    (mixed,) = student.loss_terms(batch, tf.constant([1, 2]))
    counts = batch["label_ids"].numpy() >= 0 if kind == "tagging" else np.ones(4)
    wanted = 0.7 * np.sum(counts * soft_losses(kind, *answers, 3.0)) + 0.3 * float(hard.total)
    assert float(mixed.total) == pytest.approx(wanted, rel=1e-4) and float(mixed.weight) == float(hard.weight)


@pytest.fixture
def folder(tmp_path):
    """The folder of a trained teacher with two blocks, beside which is a table to learn."""
    model = heads.ClassifierModel(toy_data.config(num_hidden_layers=3), num_labels=2)
    toy_data.write_trained(tmp_path / "teacher", model, NO_YES)
    rows = [(f"r{number}", *row) for number, row in enumerate(zip(TEXTS, ANSWERS, strict=True))]
    toy_data.write_table(tmp_path / "train.tsv", "name\ttext\tanswer", rows)
    return tmp_path


def classify(folder, output, **flags):
    files = {"data_dir": str(folder), "output_dir": str(folder / output), "init_checkpoint": str(folder / "teacher")}
    how = {"task_name": "tsv", **toy_data.TSV_COLUMNS, "learning_rate": 1e-2, "train_batch_size": 32, **HOW}
    how |= {"num_train_epochs": 6.0, "warmup_proportion": 0.0, "do_train": True, "init_from_layers": "2,0"}
    return call("run_classifier", **{**how, **files, "teacher": str(folder / "teacher"), **flags})


@pytest.mark.slow
def test_script_and_fit_train_the_same_student_which_continues_exactly(folder, monkeypatch):
    monkeypatch.setattr(heads.ClassifierModel, "head_dropout", 0.0)
    classify(folder, "whole", save_checkpoints_steps=3)
    student = bert_tf2.load(folder / "whole")
    teacher = bert_tf2.load(folder / "teacher")
    assert student.config.num_hidden_layers == 2
    start = bert_tf2.classifier(folder / "teacher", init_from_layers=[2, 0], max_seq_length=16)
    for new, old in ((0, 2), (1, 0)):
        ours, theirs = (model.blocks[n].get_weights() for model, n in ((start.model.bert, new), (teacher.encoder, old)))
        assert all((one == other).all() for one, other in zip(ours, theirs, strict=True))
    start.compile(bert_tf2.AdamWeightDecay(bert_tf2.WarmupAndDecay(1e-2, 6, 0)))
    given = {"teacher": teacher, "alpha": 0.7, "temperature": 3.0}
    history = start.fit(TEXTS, ANSWERS, batch_size=32, epochs=6, verbose=0, **given).history
    wanted = np.array([[*row.values()] for row in student.classify(TEXTS)])
    np.testing.assert_allclose(start.predict(TEXTS, verbose=0), wanted, atol=2e-3)
    assert history["loss"][-1] < history["loss"][0] and start.model.teacher is None

    for path in (folder / "whole").glob("model.ckpt-6*"):
        path.rename(folder / path.name)
    (folder / "whole" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"\n')
    classify(folder, "whole", save_checkpoints_steps=3, do_export=True)
    exported = exporting.load(folder / "whole" / "export" / "1")
    found = [answer["probabilities"] for answer in exported(TEXTS)]
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    again, before = checkpoint.Checkpoint(str(folder / "whole")), checkpoint.Checkpoint(str(folder / "model.ckpt-6"))
    assert again.path.endswith("-6") and again.shapes == before.shapes
    assert all((again.get(name) == before.get(name)).all() for name in again.shapes)


def test_a_tagger_of_fit_has_the_loss_of_the_script(tmp_path):
    labels = LabelMap("ner", ("O", "B-LOC", "B-PER"), regression=False)
    model = heads.TaggingModel(toy_data.config(), num_labels=3)
    toy_data.write_trained(tmp_path, model, labels)
    sentences = [["ann", "lives", "in", "paris"], ["a", "film"]]
    given = {"x": sentences, "y": [["B-PER", "O", "O", "B-LOC"], ["O", "O"]], "batch_size": 2}
    student, teacher = (
        bert_tf2.tagger(tmp_path, init_from_layers=iter([np.int64(1)]), max_seq_length=8),
        bert_tf2.load(tmp_path),
    )
    student.model.head_dropout = 0.0
    student.compile(1e-9, run_eagerly=True)
    found = student.fit(**given, teacher=teacher, alpha=0.7, temperature=3.0, verbose=0).history["loss"]
    x, y, weights = student.dataset(**given).get_single_element()
    student.model.teacher = Teacher(teacher.model, 3.0, 0.7, Plan())
    (term,) = student.model.loss_terms({**x, "label_ids": tf.where(weights > 0, y, -1)}, tf.constant([1, 2]))
    np.testing.assert_allclose(found, [float(term.mean())], rtol=1e-4)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"init_from_layers": "0,3"}, "--init_from_layers block 3 0-2"),
        ({"init_from_layers": "0-2"}, "--init_from_layers=0-2 0,2,4"),
        ({"alpha": 1.5}, "--alpha=1.5 <= 1"),
        ({"temperature": 0.0}, "--temperature=0.0"),
        ({"temperature": 1e30}, "--temperature=1e+30 <= 1000"),
        ({"pooling": "max"}, "--pooling=max needs --doc_stride"),
        ({"teacher": None}, "--temperature needs --teacher"),
        ({"teacher": "other"}, "other teacher labels good no"),
        ({"teacher": "cased"}, "cased vocabulary"),
        ({"teacher": "encoder"}, "encoder labels teacher"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(folder, flags, words):
    if name := flags.get("teacher"):
        labels = LabelMap("tsv", ("bad", "good"), False) if name == "other" else NO_YES
        model, encoder = heads.ClassifierModel(toy_data.config(), 2), bert_tf2.BertModel(toy_data.config())
        model, labels = (encoder, None) if name == "encoder" else (model, labels)
        toy_data.write_trained(folder / name, model, labels)
        if name == "cased":
            entries = "".join(f"{word}\n" for word in [*toy_data.VOCAB[:-1], "Ann"])
            (folder / name / "vocab.txt").write_text(entries)
        flags = {"teacher": str(folder / name)}
    refuses(words, classify, folder, "new/out", **flags)
    assert not (folder / "new").exists()
