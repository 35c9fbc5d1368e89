"""Layers that are not trained, or learn more slowly than the layers above."""

import dataclasses

import pytest
import tensorflow as tf
from executed_graphs import executed
from refused import refuses
from small_models import MAKERS, small_batch, tiny_config, values_of
from small_trainings import ONE, endless, make_trainer, saved

from bert_tf2.support.errors import UserError
from bert_tf2.training import layerwise
from bert_tf2.training.loop import Trainer
from bert_tf2.training.options import LoopOptions
from bert_tf2.training.saver import TrainingState
from bert_tf2.weights import checkpoint

BIAS, POSITIONS = "cls/predictions/output_bias", "bert/embeddings/position_embeddings"


def test_a_frozen_variable_stays_and_has_no_slots(tmp_path):
    """Thawed, it cannot go on."""
    model = MAKERS["pretraining"](tiny_config())
    before = values_of(model)
    model.masked_lm.output_bias.trainable = model.bert.embeddings.trainable = False
    assert not {BIAS, POSITIONS} & checkpoint.trained_variables(model).keys()
    assert {BIAS, POSITIONS} <= checkpoint.used_variables(model).keys()
    schedule = {"learning_rate": 1e-3, "num_train_steps": 2, "num_warmup_steps": 0, "train_batch_size": 4}
    trainer = Trainer(model, ONE, LoopOptions(output_dir=str(tmp_path), **schedule))
    trainer.start()
    trainer.train(endless(small_batch()))
    after = values_of(model)
    assert [(after[name] == before[name]).all() for name in (BIAS, POSITIONS)] == [True, True]
    assert (after["cls/seq_relationship/output_bias"] != 0).any()
    shapes = checkpoint.Checkpoint(str(tmp_path)).shapes
    assert BIAS in shapes and f"{BIAS}/adam_m" not in shapes
    with pytest.raises(UserError, match="/adam_m"):
        make_trainer(tmp_path, num_train_steps=4).start()


def test_layers_have_shares_of_the_rate_and_flags_name_layers():
    """By reference names and by paths in Keras; the highest trained block is the first below pooler and head."""
    model = MAKERS["classifier"](tiny_config(num_hidden_layers=3))
    names = [*checkpoint.used_variables(model)]
    wanted = [1.0, 0.5, 0.25, 0.125, 0.0625]  # pooler and head, blocks 2, 1 and 0, embeddings
    counts = [4, 16, 16, 16, 5]
    for given in (names, [variable.path for variable in model.trainable_variables]):
        found = layerwise.shares_of(given, 0.5)
        assert [found.count(share) for share in wanted] == counts
    assert layerwise.shares_of(["bert/encoder/layer_1/output/dense/bias", "other/kernel"], 0.5) == [0.5, 1.0]
    assert layerwise.layers_in("embeddings, 0-2,5") == {layerwise.EMBEDDINGS, 0, 1, 2, 5}
    for wrong in ("3-1", "head", "0,", "-1"):
        refuses("--freeze embeddings", layerwise.layers_in, wrong)
    refuses("--freeze=0-3 0-2", layerwise.layers_in, "0-3", 3)


def test_below_the_lowest_trained_layer_no_gradient_is_computed():
    """The forward pass of the model has four blocks; only the fourth has a backward pass."""

    def products(freeze: str | None) -> int:
        trainer = make_trainer(kind="classifier", config={"num_hidden_layers": 4}, freeze=freeze)
        batch = {name: tf.constant(values) for name, values in small_batch().items()}
        nodes = executed(lambda: trainer.step.compiled()(batch, tf.constant(0, tf.int64)))
        return sum("MatMul" in node.op for node in nodes)

    whole, half, last = map(products, (None, "embeddings,0-1", "embeddings,0-2"))
    assert (whole - last) > 2.5 * (half - last) > 0, (whole, half, last)


def test_frozen_layers_and_shares_continue_exactly_and_a_thawed_layer_begins(tmp_path, log_lines):
    how = {"config": {"num_hidden_layers": 2}, "layer_decay": 0.5, "num_train_steps": 4}
    for folder, steps in (("whole", [4]), ("parts", [2, 4])):
        for step in steps:
            trainer = make_trainer(tmp_path / folder, **how, freeze="embeddings,0", stop_at_step=step)
            trainer.start()
            trainer.train(endless(small_batch()))
    whole, parts = saved(tmp_path / "whole"), saved(tmp_path / "parts")
    assert whole.keys() == parts.keys() and all((parts[name] == value).all() for name, value in whole.items())
    assert not [name for name in whole if name.endswith("adam_m") and layerwise.layer_of(name) in (-1, 0)]
    tables = [line.split("\n") for line in log_lines if line.startswith("Each layer's share of the learning rate")]
    assert [[row.split()[-1] for row in rows] for _, *rows in tables] == [["1", "0.5", "frozen", "frozen"]] * 3
    trainer = make_trainer(tmp_path / "parts", **{**how, "num_train_steps": 5}, freeze="embeddings")
    trainer.start()
    trainer.train(endless(small_batch()))
    assert any("freeze: embeddings,0 before, embeddings now" in line for line in log_lines)
    thawed = [name for name, value in saved(tmp_path / "parts").items() if (value != whole.get(name, 0)).any()]
    assert {layerwise.layer_of(name) for name in thawed} == {0, 1, None}
    latest = str(tmp_path / "whole" / "model.ckpt-4")  # whose block 0 has no moving averages
    state = TrainingState.read(latest)
    dataclasses.replace(state, settings={**state.settings, "freeze": "embeddings"}).write(latest)
    refuses("layer_0 adam_m", make_trainer(tmp_path / "whole", **how).start)
