"""The files of a training: checkpoints that a thread writes, the files beside them, the best weights."""

import dataclasses
import json
import os
import shutil
import threading
import types

import pytest
import tensorflow as tf
from refused import refuses
from small_models import MAKERS, tiny_config

from bert_tf2.fast.encoder import Plan
from bert_tf2.finetuning.options import ClassifierOptions
from bert_tf2.pretraining.options import PretrainingOptions
from bert_tf2.support import process, settings
from bert_tf2.support.errors import UserError
from bert_tf2.training.options import LoopOptions
from bert_tf2.training.saver import Best, Saver, TrainingState, deciding
from bert_tf2.weights import checkpoint

STATE = TrainingState(8, {"random_seed": 1})


def hold(folder, step: int):
    """The writing of a step waits until the returned pipe, in the place of a file, is read."""
    pipe = folder / f"model.ckpt-{step}.training.json"
    os.mkfifo(pipe)
    return pipe


def value(folder) -> float:
    return float(checkpoint.Checkpoint(checkpoint.latest_checkpoint(str(folder))).get("v")[0])


def test_a_checkpoint_has_the_values_of_the_call(tmp_path):
    variable, pipe = tf.Variable([1.0]), hold(tmp_path, 3)
    with Saver(str(tmp_path), 5) as saver:
        saver.save({"v": variable}, 3, STATE)
        variable.assign([2.0])
        assert checkpoint.latest_checkpoint(str(tmp_path)) is None
        assert json.loads(pipe.read_text())["examples"] == 8
        saver.wait()
        assert value(tmp_path) == 1.0
        saver.save({"v": variable}, 4, STATE)
    assert value(tmp_path) == 2.0 and saver.count == 2
    assert TrainingState.read(str(tmp_path / "model.ckpt-4")) == STATE


def test_a_failure_is_raised_once_with_the_way_back(tmp_path):
    saver = Saver(str(tmp_path), 5)
    saver.save({"v": tf.Variable([1.0])}, 3, STATE)
    saver.wait()
    for step in (4, 5):
        (tmp_path / f"model.ckpt-{step}.training.json").mkdir()
    saver.save({"v": tf.Variable([1.0])}, 4, STATE)
    refuses(f"model.ckpt-4.training.json {tmp_path}/model.ckpt-3 same command", saver.wait)
    saver.wait()
    with pytest.raises(UserError, match=r"model\.ckpt-5"), saver:
        saver.save({"v": tf.Variable([1.0])}, 5, STATE)


def test_an_error_of_the_training_waits_for_the_checkpoint_but_a_second_signal_does_not(tmp_path):
    reading = threading.Timer(0.2, hold(tmp_path, 3).read_text)
    with pytest.raises(UserError, match="not finite"), Saver(str(tmp_path), 5) as saver:
        saver.save({"v": tf.Variable([1.0])}, 3, STATE)
        reading.start()
        raise UserError("not finite")
    assert value(tmp_path) == 1.0
    pipe = hold(tmp_path, 4)
    with pytest.raises(process.Stopped), Saver(str(tmp_path), 5) as saver:
        saver.save({"v": tf.Variable([2.0])}, 4, STATE)
        raise process.Stopped(15, "stopped at once")
    assert value(tmp_path) == 1.0
    pipe.read_text()
    saver.wait()


# The settings beside a checkpoint, for its continuation

CONFIG = tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
OPTIONS = LoopOptions(output_dir="out", num_train_steps=10, num_warmup_steps=1, train_batch_size=4)


def now(records="6 records", replicas=1, padding=True, config=CONFIG, head=0.0, **changes) -> dict:
    """The settings that decide the steps to come, with other values of some of them; `head`: its dropout."""
    fast = types.SimpleNamespace(plan=Plan("none" if padding else "groups"))
    model = types.SimpleNamespace(config=config, faster=fast, head_dropout=head)
    return deciding(dataclasses.replace(OPTIONS, **changes), model, records, replicas)


BEFORE = TrainingState(12, {name: value for name, (value, _) in now().items()})


def test_a_state_is_read_as_it_was_written_and_damage_is_named(tmp_path):
    prefix, path = str(tmp_path / "model.ckpt-5"), tmp_path / "model.ckpt-5.training.json"
    assert TrainingState.read(prefix) is None
    BEFORE.write(prefix)
    assert TrainingState.read(prefix) == BEFORE and [*tmp_path.iterdir()] == [path]
    whole = path.read_text()
    for text in ("", "null", '{"examples": 1', whole.replace('"examples": 12', '"examples": 13')):
        path.write_text(text)
        refuses(f"{path} remove it", TrainingState.read, prefix)
    BEFORE.write(str(tmp_path / "model.ckpt-3"))
    (tmp_path / "model.ckpt-3.training.json").rename(path)
    refuses("step 3", TrainingState.read, prefix)


WITHOUT_DROPOUT = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train_batch_size": 8}, ["train_batch_size: 4 before, 8 now: other batches"]),
        ({"num_train_steps": 20}, ["num_train_steps: 10 before, 20 now: the learning rate"]),
        ({"random_seed": 7}, ["random_seed: 12345 before, 7 now: the order of the examples and the dropout"]),
        ({"records": "9 records"}, ["records: 6 records before, 9 records now: the order"]),
        ({"padding": False}, ["computes_padding: True before, False now: the dropout"]),
        ({"replicas": 2}, ["replicas: 1 before, 2 now: the dropout"]),
        ({"all_reduce_dtype": "bfloat16"}, []),  # of one replica
        (
            {"all_reduce_dtype": "bfloat16", "replicas": 2},
            ["all_reduce_dtype: float32 before, bfloat16 now: numbers are rounded", "replicas: 1 before, 2 now"],
        ),
        ({"config": WITHOUT_DROPOUT, "replicas": 2}, ["hidden_dropout_prob: 0.1 before", "attention_probs_dropout"]),
        ({"records": None, "save_checkpoints_steps": 7}, []),
    ],
)
def test_a_change_is_reported_with_its_consequence(change, words):
    for sentence, word in zip(BEFORE.changes(now(**change)), words, strict=True):
        assert ": ".join(sentence).startswith(word)
    assert not [*TrainingState(12).changes(now(**change))]  # a version that knew fewer settings wrote no others


@pytest.mark.parametrize(("head", "words"), [(0.0, []), (0.1, ["replicas: 1 before, 2 now: the dropout"])])
def test_another_number_of_replicas_changes_the_dropout_of_a_head_alone(head, words):
    of_head = {"config": WITHOUT_DROPOUT, "head": head}
    before = TrainingState(12, {name: value for name, (value, _) in now(**of_head).items()})
    for sentence, word in zip(before.changes(now(**of_head, replicas=2, padding=False)), words, strict=True):
        assert ": ".join(sentence).startswith(word)


@pytest.mark.parametrize(
    ("options", "own"),
    [
        (PretrainingOptions, {"max_predictions_per_seq", "masked_lm_prob"}),
        (ClassifierOptions, {"class_weights", "teacher", "temperature", "alpha", "doc_stride", "pooling"}),
    ],
)
def test_the_settings_of_a_script_that_decide_its_steps(options, own):
    stated = settings.settings_of(options).items()
    assert {name for name, (setting, *_) in stated if setting.decides} == own | {
        *("train_batch_size", "gradient_accumulation_steps", "learning_rate", "all_reduce_dtype", "random_seed"),
        *("adam_bias_correction", "precision", "max_seq_length", "pack_rows", "layer_decay", "freeze"),
    }


# The best weights


def test_the_best_are_kept_and_a_repeated_evaluation_counts_once(tmp_path):
    """An evaluation is repeated after a damaged checkpoint was given up."""
    model = MAKERS["classifier"](tiny_config())
    best = Best(str(tmp_path), begun=False, patience=2)
    assert [best.update(model, step, "accuracy", value) for step, value in ((1, 0.5), (2, 0.4))] == [False, False]
    again = Best(str(tmp_path), begun=True, patience=2)
    assert not again.update(model, 1, "accuracy", 0.5) and not again.update(model, 2, "accuracy", 0.4)
    assert again.found and again.last_step == 2
    assert again.update(model, 3, "accuracy", 0.3)  # the second one without improvement
    assert checkpoint.latest_checkpoint(again.folder) == f"{tmp_path}/best/model.ckpt-1"
    assert not again.update(model, 4, "accuracy", 0.6)
    assert checkpoint.latest_checkpoint(again.folder) == f"{tmp_path}/best/model.ckpt-4"
    assert not Best(str(tmp_path), begun=False).found  # the best weights of a training that was deleted
    path = tmp_path / "best" / "measure.json"
    whole = path.read_text()
    for text in ("", "[]", "[" * 10000, whole.replace("0.6", "0.9"), whole.replace("crc32c", "crc"), whole):
        path.write_text(text)
        if text == whole:  # without its weights
            for part in [*path.parent.glob("model.ckpt*"), path.parent / "checkpoint"]:
                part.unlink()
        refuses(f"{path} mv {tmp_path}/best {tmp_path}/best.old", Best, str(tmp_path), begun=True)
    shutil.move(tmp_path / "best", tmp_path / "best.old")
    assert not Best(str(tmp_path), begun=True).found


def test_no_evaluation_gave_a_number(tmp_path):
    Best(str(tmp_path), begun=False).update(None, 6, "f1", float("nan"))
    path = tmp_path / "best" / "measure.json"
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["value"] is None
    assert not Best(str(tmp_path), begun=True).found
