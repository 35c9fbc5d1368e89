"""What the fine-tuning tasks share: widths of batches, the best weights, patience, going on, labels that are kept."""

from __future__ import annotations

import collections
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from refused import message_of
from small_models import randomize
from tensorboard.backend.event_processing import event_accumulator

from bert_tf2 import heads
from bert_tf2.finetuning import driver
from bert_tf2.finetuning.classification import run as finetune_classifier
from bert_tf2.finetuning.ner import run as finetune_ner
from bert_tf2.finetuning.options import ClassifierOptions, NerOptions, SquadOptions
from bert_tf2.finetuning.squad import run as finetune_squad
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint
from bert_tf2.weights.task_file import LabelMap, save_label_map

LENGTHS = {"max_seq_length": 32, "max_query_length": 8, "doc_stride": 8}


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("tables")
    toy_data.write_tsv_task(folder)
    return folder


@pytest.fixture
def options(tmp_path, tables):
    def make(**changes) -> ClassifierOptions:
        settings = {
            **toy_data.write_model(tmp_path, num_hidden_layers=1),
            **toy_data.TSV_COLUMNS,
            "data_dir": str(tables),
            "task_name": "tsv",
            "output_dir": str(tmp_path / "out"),
            "max_seq_length": 32,
            "train_batch_size": 16,
            "learning_rate": 5e-3,
        }
        return ClassifierOptions(**{**settings, **changes})

    return make


def save(model, folder: pathlib.Path, label_map: LabelMap | None = None) -> str:
    checkpoint.CheckpointFolder(str(folder)).save(checkpoint.tf1_variables(model), 7)
    if label_map:
        save_label_map(str(folder), label_map)
    return str(folder)


def save_random(kind, folder: pathlib.Path, label_map: LabelMap) -> str:
    """A model whose answers differ widely."""
    model = kind(toy_data.config(num_hidden_layers=1), num_labels=len(label_map.labels))
    randomize(model)
    return save(model, folder, label_map)


def steps_in(folder: pathlib.Path) -> set[int]:
    return {int(path.stem.removeprefix("model.ckpt-")) for path in folder.glob("*.index")}


# Answers do not depend on how the examples come


TAGS = LabelMap("ner", ("O", "B-LOC", "B-PER"), regression=False)
ANSWERS = LabelMap("tsv", ("no", "yes"), regression=False)
WAYS = [
    {"predict_batch_size": 1, "eval_batch_size": 1},
    {"predict_batch_size": 4, "eval_batch_size": 4},
    {"predict_batch_size": 50, "unpad": "groups"},
    {"predict_batch_size": 8, "eval_batch_size": 50, "unpad": "groups"},
    {"pad_to_max_length": True},
]


@pytest.mark.slow
def test_a_classifiers_answers_and_scores_do_not_depend_on_the_batches(options, tmp_path):
    start = save_random(heads.ClassifierModel, tmp_path / "start", ANSWERS)
    found = []
    for how in WAYS:
        results = finetune_classifier.run(options(do_predict=True, do_eval=True, init_checkpoint=start, **how))
        found.append((np.loadtxt(tmp_path / "out" / "test_results.tsv"), results))
    (first, scores), *others = found
    assert first.shape == (21, 2) and np.ptp(first[:, 0]) > 0.1  # there is something to compare
    for probabilities, results in others:
        np.testing.assert_allclose(probabilities, first, atol=2e-5)
        assert results["eval_loss"] == pytest.approx(scores["eval_loss"], rel=2e-5)
        assert results["eval_accuracy"] == scores["eval_accuracy"]


# The best weights


def measure(monkeypatch, *values):
    """Makes the task's measure these values, one at each evaluation; returns an iterator over those that are left."""
    left = iter(values)
    monkeypatch.setattr(driver, "_main_measure", lambda task, parts: ("accuracy", next(left)))
    return left


def seen(folder: pathlib.Path) -> dict:
    found = json.loads((folder / "best" / "measure.json").read_text())
    del found["crc32c"]
    return found


def test_the_best_weights_are_kept_and_used(options, tmp_path, monkeypatch, log_lines):
    left = measure(monkeypatch, 0.5, 0.7, 0.6, 0.7, 0.2)
    how = {"eval_steps": 2, "num_train_epochs": 2.5, "save_checkpoints_steps": 2}
    results = finetune_classifier.run(options(do_train=True, do_eval=True, do_predict=True, **how))
    assert "Training on 64 examples in batches of 16: 10 steps" in log_lines
    assert [*left] == []  # at steps 2, 4, 6, 8 and at the end, 10
    assert results["global_step"] == 4
    assert seen(tmp_path / "out") == {
        "measure": "accuracy", "value": 0.7, "step": 4, "last_step": 10, "evaluations_since": 3,
    }  # fmt: skip
    assert steps_in(tmp_path / "out" / "best") == {4}
    events = event_accumulator.EventAccumulator(str(tmp_path / "out" / "eval")).Reload()
    shown = {point.step: float(tf.make_ndarray(point.tensor_proto)) for point in events.Tensors("accuracy")}
    assert shown == pytest.approx({2: 0.5, 4: 0.7, 6: 0.6, 8: 0.7, 10: 0.2})
    best, then = (
        checkpoint.Checkpoint(str(folder / "model.ckpt-4")) for folder in (tmp_path / "out" / "best", tmp_path / "out")
    )
    for name in best.shapes:
        np.testing.assert_array_equal(best.get(name), then.get(name))
    predictions = (tmp_path / "out" / "test_results.tsv").read_text()
    for later in ({}, {"init_checkpoint": str(tmp_path / "out" / "best"), "output_dir": str(tmp_path / "other")}):
        wanted = options(do_predict=True, do_eval=True, **later)
        finetune_classifier.run(wanted)
        assert (pathlib.Path(wanted.output_dir) / "test_results.tsv").read_text() == predictions
    assert f"Using {tmp_path}/out/best/model.ckpt-4" in log_lines


@pytest.mark.slow
def test_patience_ends_the_training_and_the_same_command_does_not_go_on(options, tmp_path, monkeypatch, log_lines):
    left = measure(monkeypatch, 0.5, 0.4, 0.4, 0.9)
    how = options(do_train=True, eval_steps=2, patience=2, num_train_epochs=25.0)
    finetune_classifier.run(how)
    assert [*left] == [0.9]
    assert max(steps_in(tmp_path / "out")) == 6 and seen(tmp_path / "out")["step"] == 2
    assert "No better accuracy in 2 evaluations: the training ends here" in log_lines
    before = sorted(path.name for path in (tmp_path / "out").iterdir() if "tfevents" not in path.name)
    finetune_classifier.run(how)
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if "tfevents" not in path.name) == before


@pytest.mark.slow
def test_the_best_counts_while_its_training_is_there_and_evaluated(options, tmp_path, monkeypatch):
    measure(monkeypatch, 0.9, 0.1, 0.1, 0.2)
    finetune_classifier.run(options(do_train=True, eval_steps=2, num_train_epochs=1.0))
    assert finetune_classifier.run(options(do_eval=True))["global_step"] == 2
    finetune_classifier.run(options(do_train=True, num_train_epochs=2.0))  # without evaluations
    assert finetune_classifier.run(options(do_eval=True))["global_step"] == 8
    for path in (tmp_path / "out").glob("*"):
        if path.is_file():
            path.unlink()
    results = finetune_classifier.run(options(do_train=True, do_eval=True, eval_steps=2, num_train_epochs=1.0))
    assert results["global_step"] == 4 and seen(tmp_path / "out")["value"] == 0.2


@pytest.mark.slow
def test_questions_are_evaluated_on_the_way_without_being_asked_to_predict(tmp_path):
    files = {"train_file": toy_data.write_squad(tmp_path / "train.json", 16, 1)}
    files |= {"predict_file": toy_data.write_squad(tmp_path / "dev.json", 6, 2), "output_dir": str(tmp_path / "out")}
    training = {"do_train": True, "eval_steps": 2, "train_batch_size": 8, "num_train_epochs": 2.0}
    finetune_squad.run(
        SquadOptions(**toy_data.write_model(tmp_path, num_hidden_layers=1), **files, **LENGTHS, **training)
    )
    assert seen(tmp_path / "out")["measure"] == "f1" and seen(tmp_path / "out")["last_step"] == 4
    assert not (tmp_path / "out" / "predictions.json").exists()


# The rest


def test_steps_are_counted_as_in_the_reference(options):
    """int(64 / 24 * 1.6) is 4; whole batches per epoch would make 3."""
    assert driver._num_train_steps(options(do_train=True, train_batch_size=24, num_train_epochs=1.6), 64) == 4
    assert "make not a single training step; change" in message_of(driver._num_train_steps, options(do_train=True), 5)


def test_what_lies_beside_the_weights_is_read_once(options, tmp_path, monkeypatch):
    """Each reading is a round trip where the storage is remote; a training opened the index twelve times."""
    made = options(do_predict=True, init_checkpoint=save_random(heads.ClassifierModel, tmp_path, ANSWERS))
    (tmp_path / "tokenization.json").write_text('{"do_lower_case": true}')
    read, open_binary = collections.Counter(), files.open_binary

    def counted(path, mode="rb"):
        read[pathlib.Path(path).name] += mode == "rb"
        return open_binary(path, mode)

    monkeypatch.setattr(files, "open_binary", counted)
    finetune_classifier.run(made)
    once = {name: read[name] for name in ("model.ckpt-7.index", "tokenization.json", "vocab.txt")}
    assert set(once.values()) == {1}, once
    assert read["bert_config.json"] <= 2  # the flag's file, and that beside the weights


def test_labels_of_words_and_of_sentences_are_told_apart(options, tmp_path):
    config = toy_data.config(num_hidden_layers=1)
    tagger = save(heads.TaggingModel(config, num_labels=3), tmp_path / "tagger", TAGS)
    classifier = save(heads.ClassifierModel(config, num_labels=2), tmp_path / "classifier", ANSWERS)
    with pytest.raises(UserError, match=r"tagger/label_map\.json: .* task ner"):
        finetune_classifier.run(options(do_predict=True, init_checkpoint=tagger))
    task = finetune_classifier.ClassifierTask
    with pytest.raises(UserError, match=r"classifier/label_map\.json: .* task tsv"):
        task(options(init_checkpoint=classifier, do_eval=True)).known_labels(tagging=True)
    assert task(options(init_checkpoint=classifier, do_eval=True)).known_labels() == ANSWERS
    assert task(options(init_checkpoint=classifier, do_train=True)).known_labels() is None
    assert task(options(output_dir=classifier, do_train=True)).known_labels() == ANSWERS
    assert task(options(do_eval=True)).known_labels() is None


@pytest.mark.parametrize(
    ("flag", "task", "message"),
    [
        ("output_dir", "cola", '"mrpc", and this call is for task "cola"; give another --output_dir, or'),
        ("init_checkpoint", "SST2", 'this call is for task "sst-2"; give another --init_checkpoint, or --other_task'),
        ("init_checkpoint", "mnli", "--init_checkpoint holds a model of the task mrpc (labels 0, 1); it does not fit"),
    ],
)
def test_the_weights_of_another_task_are_refused(options, tmp_path, flag, task, message):
    model = heads.ClassifierModel(toy_data.config(num_hidden_layers=1), num_labels=2)
    folder = save(model, tmp_path / "mrpc", LabelMap("mrpc", ("0", "1"), regression=False))
    (tmp_path / "mrpc" / "task.json").write_text('{"task": "mrpc"}')
    switches = ["do_eval", "do_predict", *(["do_train"] if flag == "output_dir" else [])]
    for switch in switches:
        wanted = options(**{flag: folder, "task_name": task, switch: True})
        assert message in message_of(finetune_classifier.run, wanted)
    before = {path.name for path in (tmp_path / "mrpc").iterdir()}
    assert "label_map.json" in before and "train.tf_record" not in before


def test_what_a_training_was_for_is_recorded_and_another_use_must_be_meant(options, tmp_path, log_lines):
    out = save(heads.ClassifierModel(toy_data.config(num_hidden_layers=1), num_labels=2), tmp_path / "out", ANSWERS)
    (tmp_path / "out" / "task.json").write_text('{"task": "tsv", "pairs": false}')
    pairs = {"text_b_column": "name"}
    message = message_of(finetune_classifier.run, options(do_eval=True, **pairs))
    assert message.startswith(f"{out}/task.json: the weights ")
    assert "for pairs false, and this call is for pairs true" in message
    assert "eval_accuracy" in finetune_classifier.run(options(do_eval=True, **pairs, other_task=True))
    assert any("this call is for pairs true" in line for line in log_lines)
    # To begin a new training with these weights is no use of the task.
    new = options(do_train=True, init_checkpoint=out, output_dir=f"{tmp_path}/new", num_train_epochs=0.25, **pairs)
    finetune_classifier.run(new)
    content = json.loads((tmp_path / "new" / "task.json").read_text())
    assert content.pop("made_with")["labels"] == ["no", "yes"]
    assert content == {"task": "tsv", "pairs": True, "settings": {"max_seq_length": 32}}


def test_going_on_with_other_tags_is_refused(tmp_path):
    """The weights would fit: there are as many tags as before."""
    out = save(heads.TaggingModel(toy_data.config(num_hidden_layers=1), num_labels=3), tmp_path / "out", TAGS)
    words = toy_data.write_conll(tmp_path / "words.txt", 8, 1)
    text = pathlib.Path(words).read_text().replace("B-LOC", "B-CITY")
    pathlib.Path(words).write_text(text)
    model = toy_data.write_model(tmp_path, num_hidden_layers=1)
    with pytest.raises(UserError, match="tag 'B-CITY' was not seen in training"):
        finetune_ner.run(
            NerOptions(**model, output_dir=out, do_train=True, train_file=words, word_column=2, max_seq_length=32)
        )
