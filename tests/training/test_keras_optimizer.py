"""The optimizer for Keras' fit makes the updates of the scripts."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import MAKERS, batch_for, tiny_config

from bert_tf2 import heads
from bert_tf2.training.keras_optimizer import AdamWeightDecay, WarmupAndDecay
from bert_tf2.training.options import TrainOptions
from bert_tf2.training.step import TrainingStep

STEPS = 50


@pytest.mark.parametrize("bias_correction", [False, True])
def test_fit_trains_as_the_scripts_do(monkeypatch, tmp_path, bias_correction):
    monkeypatch.setattr(heads, "_CLASSIFIER_DROPOUT", 0.0)
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


def test_it_is_saved_with_its_settings(tmp_path):
    optimizer = AdamWeightDecay(WarmupAndDecay(1e-3, 10, 2), weight_decay_rate=0.1, bias_correction=True)
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
