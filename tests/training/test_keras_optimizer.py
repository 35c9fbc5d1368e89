"""The optimizer for Keras' fit makes the updates of the scripts."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import MAKERS, batch_for, tiny_config, without_head_dropout

from bert_tf2.modeling import BertModel
from bert_tf2.support.errors import UserError
from bert_tf2.training.keras_optimizer import AdamWeightDecay, WarmupAndDecay
from bert_tf2.training.options import TrainOptions
from bert_tf2.training.step import TrainingStep

STEPS = 50


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.compiled
def test_fit_trains_as_the_scripts_do(monkeypatch, tmp_path, bias_correction):
    without_head_dropout(monkeypatch)
    config = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ours, theirs = MAKERS["classifier"](config), MAKERS["classifier"](config)
    theirs.set_weights(ours.get_weights())
    before = [values.copy() for values in ours.get_weights()]
    batch = batch_for("classifier")

    options = TrainOptions(
        output_dir=str(tmp_path), train_batch_size=len(batch["input_ids"]), learning_rate=1e-3, num_train_steps=STEPS,
        num_warmup_steps=5, adam_bias_correction=bias_correction,
    )  # fmt: skip
    step = TrainingStep(ours, tf.distribute.get_strategy(), options).compiled()
    tensors = {name: tf.constant(values) for name, values in batch.items()}
    losses = [float(step(tensors, tf.constant(number, tf.int64))["loss"]) for number in range(STEPS)]

    rate = WarmupAndDecay(1e-3, num_train_steps=STEPS, num_warmup_steps=5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    theirs.compile(AdamWeightDecay(rate, bias_correction=bias_correction), loss)
    inputs = {name: values for name, values in batch.items() if name in ("input_ids", "input_mask", "segment_ids")}
    labels = np.ravel(batch["label_ids"])
    data = tf.data.Dataset.from_tensors((inputs, labels)).repeat()
    found = theirs.fit(data, steps_per_epoch=1, epochs=STEPS, verbose=0).history["loss"]

    np.testing.assert_allclose(found, losses, rtol=1e-4, atol=1e-6)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, atol=2e-6)
    assert max(np.abs(start - one).max() for start, one in zip(before, ours.get_weights(), strict=True)) > 1e-3


@pytest.mark.compiled
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("parts", [None, 2])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_devices_and_parts_of_an_update_make_the_same_step(two, policy, parts, jit_compile):
    """Against the formulas in numpy: the sum of all parts and replicas is clipped once."""
    x = np.random.default_rng(0).normal(size=[8, 3]).astype("float32") * 100.0  # far above the norm of 1
    y = np.ones([8, 2], "float32")

    def trained(strategy):
        with strategy.scope():
            inputs = keras.Input([3])
            layer = keras.layers.Dense(2, kernel_initializer="ones", dtype=keras.DTypePolicy(policy))
            model = keras.Model(inputs, layer(inputs))
            optimizer = AdamWeightDecay(0.1, gradient_accumulation_steps=parts)
            if policy == "mixed_float16":
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0)
            model.compile(optimizer, "mse", jit_compile=jit_compile)
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8 // (parts or 1)).repeat(2)
        model.fit(data, epochs=1, verbose=0)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        return [np.array(value) for value in [*model.trainable_variables, inner._m[0], inner._v[0]]]

    one = trained(tf.distribute.get_strategy())
    if parts and not jit_compile:
        with pytest.raises(UserError, match="gradient_accumulation_steps: Keras cannot"):
            trained(two)
    # Keras itself cannot compile for two CPUs.
    for ours, others in zip(one, one if parts or jit_compile else trained(two), strict=True):
        np.testing.assert_allclose(others, ours, rtol=1e-6 if policy == "float32" else 2e-2, atol=1e-6)
    w, b, m, v = np.ones([3, 2]), np.zeros(2), 0.0, 0.0
    m_b = v_b = 0.0
    for _ in range(2):
        error = (x @ w + b - y) * 2.0 / y.size
        g, g_b = x.T @ error, error.sum(0)
        norm = max(1.0, np.sqrt((g**2).sum() + (g_b**2).sum()))
        g, g_b = g / norm, g_b / norm
        m, v, m_b, v_b = (
            0.9 * m + 0.1 * g,
            0.999 * v + 0.001 * g**2,
            0.9 * m_b + 0.1 * g_b,
            0.999 * v_b + 0.001 * g_b**2,
        )
        w, b = w - 0.1 * (m / (np.sqrt(v) + 1e-6) + 0.01 * w), b - 0.1 * m_b / (np.sqrt(v_b) + 1e-6)
    rtol = 1e-4 if policy == "float32" else 3e-2
    for ours, wanted in zip(one, (w, b, m, v), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WarmupAndDecay(1.0, 0, 0), "num_train_steps=0: must be 1 or more"),
        (lambda: WarmupAndDecay(1.0, 10, 0.1), "num_warmup_steps=0.1: must be a whole number"),
        (lambda: WarmupAndDecay(1.0, 10, -1), "num_warmup_steps=-1: must be 0 or more"),
        (lambda: WarmupAndDecay(1.0, 10, 11), "num_warmup_steps=11: is more than num_train_steps=10"),
        (lambda: WarmupAndDecay(float("nan"), 10, 1), "init_lr=nan: must be a number from 0 on"),
        (lambda: AdamWeightDecay(-1.0), "learning_rate=-1.0: must be a number from 0 on"),
        (lambda: AdamWeightDecay(1.0, weight_decay=float("nan")), "weight_decay=nan: must be"),
        (lambda: AdamWeightDecay(1.0, exclude_from_weight_decay="["), "must be regular expressions"),
        (lambda: AdamWeightDecay(1.0, loss_scale_factor=1024.0), "loss_scale_factor: not here"),
        (lambda: AdamWeightDecay(1.0).build([keras.Variable([1.0], dtype="bfloat16")]), "is bfloat16: small updates"),
    ],
)
def test_settings_that_make_no_sense(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_what_is_not_decayed_and_a_second_model():
    variables = [keras.Variable([1.0], name=name) for name in ("kernel", "bias", "basis")]
    optimizer = AdamWeightDecay(1.0, exclude_from_weight_decay="bias")
    optimizer.build(variables)
    assert optimizer._decays == [0.01, 0.0, 0.01]
    with pytest.raises(UserError, match="a new one for each model"):
        optimizer.apply([tf.ones([1])], [keras.Variable([1.0])])


def test_it_is_saved_with_its_settings(tmp_path):
    optimizer = AdamWeightDecay(WarmupAndDecay(1e-3, 10, 2), weight_decay=0.1, bias_correction=True)
    copy = AdamWeightDecay.from_config(optimizer.get_config())
    assert copy.get_config() == optimizer.get_config()
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


def functional(config, **how):
    inputs = {name: keras.Input([None], dtype="int32", name=name) for name in ("input_ids", "input_mask")}
    return keras.Model(inputs, keras.layers.Dense(2, "tanh", **how)(BertModel(config, **how)(inputs).pooled_output))


def fitted(kind, begun, batch, targets, strategy, parts=None, dtype="float32", jit_compile=False):
    """The weights of a model after two updates, all in one array."""
    with strategy.scope():
        model = MAKERS.get(kind, functional)(tiny_config(), dtype=keras.DTypePolicy(dtype))
        model.set_weights(begun)
        optimizer = AdamWeightDecay(1e-3, gradient_accumulation_steps=parts)
        scaled = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0)
        model.compile(scaled if dtype == "mixed_float16" else optimizer, "mse", jit_compile=jit_compile)
    data = tf.data.Dataset.from_tensor_slices((batch, targets)).batch(8 // (parts or 1)).repeat(2)
    model.fit(data, verbose=0)
    return np.concatenate([*map(np.ravel, model.get_weights())])


@functools.cache
def plainly(kind):
    """Initial weights, a batch and targets; and what one device in float32 makes of them, the batch whole."""
    start, batch = MAKERS.get(kind, functional)(tiny_config()), batch_for(kind, 8)
    if kind == "functional":
        batch = {name: batch[name] for name in start.input}
    draw = np.random.default_rng(0)
    targets = tf.nest.map_structure(lambda y: draw.normal(size=y.shape).astype("float32"), start(batch))
    given = (start.get_weights(), batch, targets)
    return *given, fitted(kind, *given, tf.distribute.get_strategy())


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *((kind, "devices") for kind in ("functional", *MAKERS)),
        *(("masked_words", "parts"), ("functional", "compiled"), ("tagging", "mixed_bfloat16")),
        ("classifier", "mixed_float16"),
    ],
)
def test_every_model_trains_alike_in_every_way(two, monkeypatch, kind, way):
    """Against one device in float32, of which each step takes the batch whole."""
    without_head_dropout(monkeypatch)
    *given, wanted = plainly(kind)
    how = {"devices": {}, "parts": {"parts": 2}, "compiled": {"jit_compile": True}}.get(way, {"dtype": way})
    found = fitted(kind, *given, two if way == "devices" else tf.distribute.get_strategy(), **how)
    if "mixed" in way:  # rounding turns the sign of small gradients, and so of Adam's first steps
        begun = np.concatenate([*map(np.ravel, given[0])])
        assert 0 < np.linalg.norm(found - wanted) < 0.3 * np.linalg.norm(wanted - begun)
    else:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
