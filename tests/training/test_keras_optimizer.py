"""The optimizer for Keras' fit makes the updates of the scripts."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from executed_graphs import executed
from refused import refuses
from small_models import MAKERS, batch_for, tiny_config

from bert_tf2.modeling import BertModel
from bert_tf2.training.keras_optimizer import AdamWeightDecay, WarmupAndDecay
from bert_tf2.training.options import LoopOptions
from bert_tf2.training.step import TrainingStep

STEPS = 20


@pytest.mark.compiled
def test_fit_trains_as_the_scripts_do(tmp_path):
    ours, theirs = MAKERS["classifier"](tiny_config()), MAKERS["classifier"](tiny_config())
    ours.head_dropout = theirs.head_dropout = 0.0
    theirs.set_weights(ours.get_weights())
    before = [values.copy() for values in ours.get_weights()]
    batch = batch_for("classifier")
    options = LoopOptions(
        output_dir=str(tmp_path), train_batch_size=len(batch["input_ids"]), learning_rate=1e-3, num_train_steps=STEPS,
        num_warmup_steps=5, adam_bias_correction=True, layer_decay=0.5,
    )  # fmt: skip
    step = TrainingStep(ours, tf.distribute.get_strategy(), options).compiled()
    tensors = {name: tf.constant(values) for name, values in batch.items()}
    losses = [float(step(tensors, tf.constant(number, tf.int64))["loss"]) for number in range(STEPS)]

    rate = WarmupAndDecay(1e-3, num_train_steps=STEPS, num_warmup_steps=5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    theirs.compile(AdamWeightDecay(rate, bias_correction=True, layer_decay=0.5), loss)
    inputs = {name: values for name, values in batch.items() if name in ("input_ids", "input_mask", "segment_ids")}
    data = tf.data.Dataset.from_tensors((inputs, np.ravel(batch["label_ids"]))).repeat()
    found = theirs.fit(data, steps_per_epoch=1, epochs=STEPS, verbose=0).history["loss"]

    np.testing.assert_allclose(found, losses, rtol=1e-4, atol=1e-6)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, atol=2e-6)
    assert max(np.abs(start - one).max() for start, one in zip(before, ours.get_weights(), strict=True)) > 1e-3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WarmupAndDecay(1.0, 0, 0), "num_train_steps=0"),
        (lambda: WarmupAndDecay(1.0, 10, 0.1), "num_warmup_steps=0.1 whole"),
        (lambda: WarmupAndDecay(1.0, 10, 11), "num_warmup_steps=11 num_train_steps=10"),
        (lambda: AdamWeightDecay(-1.0), "learning_rate=-1.0"),
        (lambda: AdamWeightDecay(1.0, weight_decay=float("nan")), "weight_decay=nan"),
        (lambda: AdamWeightDecay(1.0, layer_decay=-0.5), "layer_decay=-0.5"),
        (lambda: AdamWeightDecay(1.0, layer_decay=1.5), "layer_decay=1.5"),
        (lambda: AdamWeightDecay(1.0, exclude_from_weight_decay="["), "exclude_from_weight_decay regular"),
        (lambda: AdamWeightDecay(1.0, loss_scale_factor=1024.0), "loss_scale_factor mixed_float16"),
        (lambda: AdamWeightDecay(1.0).build([keras.Variable([1.0], dtype="bfloat16")]), "bfloat16 float32"),
    ],
)
def test_settings_that_make_no_sense(make, words):
    refuses(words, make)


def test_keras_cannot_divide_a_batch_on_several_devices(two):
    with two.scope():
        optimizer = AdamWeightDecay(1.0, gradient_accumulation_steps=2)
        refuses("gradient_accumulation_steps", optimizer.build, [keras.Variable([1.0])])


def test_weight_decay_leaves_out_the_excluded_and_a_second_model_needs_its_own():
    """With a gradient of 0, a step only decays; the learning rate 1 makes it 1 %."""
    variables = [keras.Variable([1.0], name=name) for name in ("kernel", "bias", "basis")]
    optimizer = AdamWeightDecay(1.0, exclude_from_weight_decay="bias")
    optimizer.build(variables)
    optimizer.apply([tf.zeros([1])] * 3)
    assert [float(variable.numpy()[0]) for variable in variables] == [np.float32(0.99), 1.0, np.float32(0.99)]
    assert WarmupAndDecay(1.0, 10, 10)(5) == 0.5
    refuses("new one for each model", optimizer.apply, [tf.ones([1])], [keras.Variable([1.0])])


def test_it_is_saved_with_its_settings(tmp_path):
    optimizer = AdamWeightDecay(WarmupAndDecay(1e-3, 10, 2), weight_decay=0.1, bias_correction=True)
    assert AdamWeightDecay.from_config(optimizer.get_config()).get_config() == optimizer.get_config()
    inputs = keras.Input([3])
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    model.compile(optimizer, "mse")
    x, y = np.ones([4, 3], "float32"), np.ones([4, 2], "float32")
    model.fit(x, y, epochs=3, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int(loaded.optimizer.iterations) == 3
    for one in (model, loaded):
        one.fit(x, y, epochs=2, verbose=0)
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


def made(kind, **how):
    if kind == "dense":  # without lookups, whose rows count for the norm by themselves, but not in parts
        inputs = {"x": keras.Input([3], name="x")}
        return keras.Model(inputs, keras.layers.Dense(2, **how)(inputs["x"]))
    if kind == "functional":
        inputs = {name: keras.Input([None], dtype="int32", name=name) for name in ("input_ids", "input_mask")}
        pooled = BertModel(tiny_config(), **how)(inputs).pooled_output
        return keras.Model(inputs, keras.layers.Dense(2, "tanh", **how)(pooled))
    model = MAKERS[kind](tiny_config(), **how)
    model.head_dropout = 0.0
    return model


WAYS = {"devices": {}, "parts": {"parts": 2}, "compiled": {"jit_compile": True}, "on a GPU": {}}


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *(("functional", "devices"), ("dense", "parts")),
        pytest.param("dense", "on a GPU", marks=pytest.mark.compiled),
        *(pytest.param(kind, "devices", marks=pytest.mark.slow) for kind in ("pretraining", "classifier", "tagging")),
        *(pytest.param("functional", way, marks=pytest.mark.slow) for way in ("compiled", "mixed_float16")),
        pytest.param("functional", "on a GPU", marks=[pytest.mark.slow, pytest.mark.compiled]),
        pytest.param("tagging", "mixed_bfloat16", marks=pytest.mark.slow),
    ],
)
def test_every_model_trains_alike_in_every_way(two, monkeypatch, kind, way):
    """Against one device in float32, of which each step takes the batch whole."""
    start, batch, draw = made(kind), batch_for(kind, 8), np.random.default_rng(0)
    if kind in ("functional", "dense"):
        batch["x"] = draw.normal(size=[8, 3]).astype("float32")
        batch = {name: batch[name] for name in start.input}
    # So far away that the norm of each part of the gradient is above 1: the sum is clipped, and clipped once.
    targets = tf.nest.map_structure(lambda y: 100.0 * draw.normal(size=y.shape).astype("float32"), start(batch))

    def fitted(strategy, parts=None, dtype="float32", jit_compile=False) -> np.ndarray:
        """The weights after two updates, all in one array."""
        with strategy.scope():
            model = made(kind, dtype=keras.DTypePolicy(dtype))
            model.set_weights(start.get_weights())
            optimizer = AdamWeightDecay(1e-3, gradient_accumulation_steps=parts)
            scaled = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0)
            model.compile(scaled if dtype == "mixed_float16" else optimizer, "mse", jit_compile=jit_compile)
        data = tf.data.Dataset.from_tensor_slices((batch, targets)).batch(8 // (parts or 1)).repeat(2)
        model.fit(data, verbose=0)
        return np.concatenate([*map(np.ravel, model.get_weights())])

    one = tf.distribute.get_strategy()
    wanted, found = fitted(one), []
    if way == "on a GPU":
        monkeypatch.setattr("bert_tf2.placement.built_for", lambda: "GPU")
    how = WAYS.get(way, {"dtype": way})
    nodes = executed(lambda: found.append(fitted(two if way == "devices" else one, **how)))
    if way == "on a GPU":
        assert sum(node.attr["_XlaMustCompile"].b for node in nodes) == 1  # the update of all variables
    (found,) = found
    if "mixed" in way:  # rounding turns the sign of small gradients, and so of Adam's first steps
        begun = np.concatenate([*map(np.ravel, start.get_weights())])
        assert 0 < np.linalg.norm(found - wanted) < 0.3 * np.linalg.norm(wanted - begun)
    else:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
