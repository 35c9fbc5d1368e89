"""What a training keeps: checkpoints that a thread writes, what is beside them, the best weights."""

import copy
import dataclasses
import json
import shutil
import threading

import pytest
import tensorflow as tf
from small_models import MAKERS, tiny_config

from bert_tf2.finetuning.options import ClassifierOptions, NerOptions, SquadOptions
from bert_tf2.pretraining.options import PretrainingOptions
from bert_tf2.support import output_lock, process, settings
from bert_tf2.support.errors import UserError
from bert_tf2.training.options import TrainOptions
from bert_tf2.training.saver import Best, Saver, TrainingState, deciding, with_checksum
from bert_tf2.weights import checkpoint

STATE = TrainingState(8, {"random_seed": 1})


@pytest.fixture
def held(monkeypatch) -> threading.Event:
    """Writing does not go on until this is set."""
    event = threading.Event()
    save = checkpoint.CheckpointFolder.save

    def wait(*arguments):
        assert event.wait(10)
        return save(*arguments)

    monkeypatch.setattr(checkpoint.CheckpointFolder, "save", wait)
    return event


def value(folder) -> float:
    return float(checkpoint.Checkpoint(checkpoint.latest_checkpoint(str(folder))).get("v")[0])


def test_what_changes_after_the_call_is_not_written(tmp_path, held):
    variable = tf.Variable([1.0])
    with Saver(str(tmp_path), 5) as saver:
        saver.save({"v": variable}, 3, STATE)
        variable.assign([2.0])
        assert checkpoint.latest_checkpoint(str(tmp_path)) is None
        held.set()
        saver.wait()
        assert value(tmp_path) == 1.0
        saver.save({"v": variable}, 4, STATE)
    assert value(tmp_path) == 2.0
    assert {path.name for path in tmp_path.glob("*.json")} == {f"model.ckpt-{step}.training.json" for step in (3, 4)}


@pytest.mark.parametrize("another", [False, True])
def test_a_folder_that_is_moved_ends_the_training(tmp_path, another):
    """Another one in its place would get checkpoints without vocabulary and configuration."""
    folder, moved = tmp_path / "run", tmp_path / "moved"
    folder.mkdir()
    with (
        pytest.raises(UserError, match=rf"{folder}: was moved or removed .* put the folder back"),
        output_lock.locked(str(folder)),
        Saver(str(folder), 5) as saver,
    ):
        folder.rename(moved)
        if another:
            folder.mkdir()
        saver.save({"v": tf.Variable([1.0])}, 3, STATE)
    assert not [*moved.glob("[!.]*")] and not [*folder.glob("*")]


def test_a_failure_is_raised_once_with_the_way_back(tmp_path, monkeypatch):
    saver = Saver(str(tmp_path), 5)
    saver.save({"v": tf.Variable([1.0])}, 3, STATE)
    saver.wait()

    def full(*arguments):
        raise UserError("No space left on device")

    monkeypatch.setattr(checkpoint.CheckpointFolder, "save", full)
    saver.save({"v": tf.Variable([1.0])}, 4, STATE)
    with pytest.raises(
        UserError, match=r"No space left on device; .*model\.ckpt-3 is there, the same command continues"
    ):
        saver.wait()
    saver.wait()
    with pytest.raises(UserError, match="No space left"), saver:
        saver.save({"v": tf.Variable([1.0])}, 5, STATE)


def test_an_error_of_the_training_waits_for_the_checkpoint_but_a_second_signal_does_not(tmp_path, held):
    threading.Timer(0.2, held.set).start()
    with pytest.raises(UserError, match="not finite"), Saver(str(tmp_path), 5) as saver:
        saver.save({"v": tf.Variable([1.0])}, 3, STATE)
        raise UserError("not finite")
    assert value(tmp_path) == 1.0
    held.clear()
    with pytest.raises(process.Stopped), Saver(str(tmp_path), 5) as saver:
        saver.save({"v": tf.Variable([2.0])}, 4, STATE)
        raise process.Stopped(15, "stopped at once")
    assert value(tmp_path) == 1.0
    held.set()
    saver.wait()


# What is kept beside a checkpoint for its continuation.

CONFIG = tiny_config()
OPTIONS = TrainOptions(output_dir="out", num_train_steps=10, num_warmup_steps=1, train_batch_size=4)


def test_what_is_written_is_read(tmp_path):
    prefix = str(tmp_path / "model.ckpt-3")
    assert TrainingState.read(prefix) is None
    written = TrainingState(12, settings_now())
    written.write(prefix)
    assert TrainingState.read(prefix) == written
    assert [path.name for path in tmp_path.iterdir()] == ["model.ckpt-3.training.json"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        *((lambda text, wrong=wrong: wrong, "") for wrong in ("", "[]", "{}", "null", '{"examples": 1', "\x00")),
        (lambda text: text.replace('"examples": 12', '"examples": 13'), "does not match its checksum"),
        (None, "is that of step 3, not of this checkpoint"),
    ],
)
def test_a_damaged_file_and_that_of_another_step_are_named(tmp_path, change, problem):
    prefix = str(tmp_path / "model.ckpt-5")
    TrainingState(12, settings_now()).write(prefix if change else str(tmp_path / "model.ckpt-3"))
    path = tmp_path / "model.ckpt-5.training.json"
    if change:
        path.write_text(change(path.read_text()))
    else:
        (tmp_path / "model.ckpt-3.training.json").rename(path)
    with pytest.raises(UserError, match=rf"training\.json.*{problem}.*or remove it: the training"):
        TrainingState.read(prefix)


def settings_now() -> dict:
    return {name: value for name, (value, _) in deciding(OPTIONS, CONFIG, "6 records", 1, True).items()}


CHANGES = [
    ("train_batch_size", 8, "4 before, 8 now: other batches begin behind"),
    ("num_train_steps", 20, "10 before, 20 now: the learning rate of the steps to come is"),
    ("learning_rate", 1e-3, "5e-05 before, 0.001 now: the learning rate of the steps to come is"),
    ("gradient_accumulation_steps", 2, "1 before, 2 now: the dropout changes"),
    ("random_seed", 7, "12345 before, 7 now: the order of the examples and the dropout change"),
    ("records", "9 records", "6 records before, 9 records now: the order is that of the new ones"),
    ("hidden_dropout_prob", 0.3, "0.1 before, 0.3 now: the dropout changes from here on"),
    ("computes_padding", False, "True before, False now: the dropout changes"),
    ("replicas", 2, "1 before, 2 now: the dropout changes"),
    ("attention_probs_dropout_prob", None, "0.1 before, 0.0 now: the dropout changes"),
]


@pytest.mark.parametrize(("name", "value", "wanted"), CHANGES)
def test_a_change_is_told_with_its_consequence(name, value, wanted):
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)

    def now(**changes):
        records, replicas = changes.pop("records", "6 records"), changes.pop("replicas", 1)
        padding = changes.pop("computes_padding", True)
        of_options = {key: changed for key, changed in changes.items() if hasattr(OPTIONS, key)}
        of_config = {key: changed for key, changed in changes.items() if key not in of_options}
        options, model = dataclasses.replace(OPTIONS, **of_options), dataclasses.replace(config, **of_config)
        return deciding(options, model, records, replicas, padding)

    before = TrainingState(12, {key: found for key, (found, _) in now().items()})
    (sentence,) = before.changes(now(**{name: value}))
    assert sentence.startswith(f"{name}: {wanted}")


_OF_ALL = {"train_batch_size", "gradient_accumulation_steps", "learning_rate", "all_reduce_dtype", "random_seed",
           "adam_bias_correction", "precision", "max_seq_length"}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (PretrainingOptions, {"max_predictions_per_seq", "masked_lm_prob"}),
        (ClassifierOptions, {"class_weights"}),
        (SquadOptions, set()),
        (NerOptions, set()),
    ],
)
def test_the_settings_of_a_script_that_decide_its_steps(options, more):
    """Each setting is changed alone."""
    given, told = object.__new__(options), set()
    for name in settings.settings_of(options):
        object.__setattr__(given, name, 0)
    before = TrainingState(0, {name: value for name, (value, _) in settings.deciding(given).items()})
    for name in settings.settings_of(options):
        changed = copy.copy(given)
        object.__setattr__(changed, name, 1)
        told |= {sentence.partition(":")[0] for sentence in before.changes(settings.deciding(changed))}
    assert told == _OF_ALL | more


# The best weights.


SEEN = {"measure": "f1", "value": 0.5, "step": 4, "last_step": 4, "evaluations_since": 0}


def best(out, text: str) -> Best:
    (out / "best").mkdir(parents=True, exist_ok=True)
    (out / "best" / "measure.json").write_text(text)
    return Best(str(out), begun=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("{", "not valid JSON"),
        ("[]", "an object"),
        ("[" * 10000, "nested too deep"),
        ("{}", "does not match its checksum"),
        (json.dumps(SEEN), "does not match its checksum"),
        (json.dumps({**with_checksum(SEEN), "value": 0.9}), "does not match its checksum"),
        (json.dumps(with_checksum(SEEN)), "its weights, of step 4, are not in"),
    ],
)
def test_a_broken_measure_says_how_to_go_on_without_loss(text, reason, tmp_path):
    with pytest.raises(UserError) as caught:
        best(tmp_path, text)
    assert reason in str(caught.value) and str(caught.value).startswith(f"{tmp_path}/best/measure.json")
    assert f"mv {tmp_path}/best {tmp_path}/best.old" in str(caught.value)
    shutil.move(tmp_path / "best", tmp_path / "best.old")
    assert not Best(str(tmp_path), begun=True).found


def test_no_evaluation_gave_a_number(tmp_path):
    assert not best(tmp_path, json.dumps(with_checksum({**SEEN, "measure": None, "value": None}))).found
    seen = Best(str(tmp_path), begun=True)
    seen.update(None, 6, "f1", float("nan"))
    assert json.loads((tmp_path / "best" / "measure.json").read_text(), parse_constant=pytest.fail)["value"] is None


def test_an_evaluation_that_is_repeated_after_a_damaged_checkpoint_counts_once(tmp_path):
    model = MAKERS["classifier"](tiny_config())
    best = Best(str(tmp_path), begun=False, patience=2)
    assert [best.update(model, step, "accuracy", value) for step, value in ((1, 0.5), (2, 0.4))] == [False, False]
    again = Best(str(tmp_path), begun=True, patience=2)
    assert not again.update(model, 1, "accuracy", 0.5) and not again.update(model, 2, "accuracy", 0.4)
    assert again.last_step == 2
    assert again.update(model, 3, "accuracy", 0.3)  # the second one without improvement
