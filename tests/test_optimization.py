"""The schedule, clipping and Adam against the reference's trajectories, hand calculations and a textbook."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from small_models import GOLDEN

from bert_tf2 import optimization, placement
from bert_tf2.optimization import AdamWeightDecayOptimizer, learning_rate_at
from bert_tf2.training.gradients import dense_gradients, global_norm, reduce_gradients


def test_the_schedule_equals_the_reference():
    golden = np.load(GOLDEN / "unit" / "schedule.npz")
    cases = sorted({name.split("_")[0] for name in golden.files})
    assert len(cases) >= 3
    for case in cases:
        step, *schedule = (
            golden[f"{case}_{name}"] for name in ("step", "init_lr", "num_train_steps", "num_warmup_steps")
        )
        found = learning_rate_at(tf.constant(step), float(schedule[0]), *map(int, schedule[1:]))
        np.testing.assert_array_equal(found, golden[f"{case}_learning_rate"], err_msg=case)


def test_the_optimizer_equals_the_reference():
    golden = np.load(GOLDEN / "unit" / "optimizer.npz")
    names = [str(name) for name in golden["names"]]
    assert set(golden["exclude_from_weight_decay"]) == set(optimization.EXCLUDE_FROM_WEIGHT_DECAY)
    variables = {name: tf.Variable(golden[f"{name}|initial"]) for name in names}
    settings = {name: float(golden[name]) for name in ("weight_decay_rate", "beta_1", "beta_2", "epsilon")}
    optimizer = AdamWeightDecayOptimizer(variables, **settings)
    for step in range(10):
        gradients = {}
        for name in names:
            if f"{name}|gradient" in golden:
                gradients[name] = tf.constant(golden[f"{name}|gradient"][step])
            else:  # a lookup with repeated rows, as dense gradient
                gradients[name] = np.zeros(variables[name].shape, np.float32)
                rows, values = golden[f"{name}|gradient_indices"][step], golden[f"{name}|gradient_values"][step]
                np.add.at(gradients[name], rows, values)
        optimizer.apply_gradients(gradients, float(golden["learning_rate"]), tf.constant(step, tf.int64))
        for name in names:
            slots = {slot: optimizer.slots[f"{name}/{slot}"] for slot in ("adam_m", "adam_v")}
            for what, value in {"values": variables[name], **slots}.items():
                wanted = golden[f"{name}|{what}"][step]
                allowed = 1e-7 * np.abs(wanted).max()  # where large gradients cancel each other
                np.testing.assert_allclose(value, wanted, rtol=1e-6, atol=allowed, err_msg=f"{name} {what} {step}")


def adamw(w, gradients, rate, decay, corrected):
    """Loshchilov & Hutter (2019), algorithm 2, in float64; `corrected` applies lines 9 and 10."""
    m = v = np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        m_hat, v_hat = (m / (1 - 0.9**t), v / (1 - 0.999**t)) if corrected else (m, v)
        w = w - rate * (m_hat / (np.sqrt(v_hat) + 1e-6) + decay * w)
    return w


@pytest.mark.parametrize(
    ("name", "corrected", "decay"),
    [
        ("dense/kernel", True, 0.01),
        ("bert/encoder/layer_0/attention/self/query/bias", True, 0.0),
        ("bert/encoder/layer_0/output/LayerNorm/gamma", False, 0.0),
        ("x/layer_norm/scale", False, 0.0),
        ("unbiased/kernel", False, 0.0),  # "bias" is found anywhere in the name, as in the reference
        ("layernorm/gamma", False, 0.01),  # the case matters
    ],
)
def test_adam_equals_a_textbook_and_the_full_name_decides_on_weight_decay(name, corrected, decay):
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=[5, 3]), random.normal(size=[12, 5, 3])
    variable = tf.Variable(start, dtype=tf.float32)
    optimizer = AdamWeightDecayOptimizer({name: variable}, bias_correction=corrected)
    assert optimizer.uses_weight_decay(name) == bool(decay)
    for step, gradient in enumerate(gradients):
        scaled = tf.constant(2 * gradient, tf.float32)
        optimizer.apply_gradients({name: scaled}, 0.02, tf.constant(step, tf.int64), gradient_scale=0.5)
    np.testing.assert_allclose(variable, adamw(start, gradients, 0.02, decay, corrected), atol=2e-6)


def test_an_update_takes_no_new_memory_and_writes_into_no_one_else_s():
    """New memory at each step would leave holes among the activations; shared memory must keep its numbers."""

    def value_of(variable):
        return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)

    def address(variable):
        return np.asarray(memoryview(value_of(variable))).ctypes.data

    variable, other = tf.Variable(tf.zeros([8, 1024])), tf.Variable(tf.zeros([8, 1024]))
    variable.assign(array := np.ones([8, 1024], np.float32))
    other.assign(variable)  # which shares its memory
    assert address(variable) == address(other)
    held = value_of(variable)
    optimizer, rate, at_0 = AdamWeightDecayOptimizer({"v": variable}), tf.constant(0.1), tf.constant(0, tf.int64)
    update = tf.function(lambda: optimizer.apply_gradients({"v": tf.ones_like(variable)}, rate, at_0))
    update()
    assert (variable.numpy() < 0.9).all()
    for kept in (array, held.numpy(), other.numpy()):
        np.testing.assert_array_equal(kept, 1.0)
    variables = (variable, *optimizer.slots.values())
    before = [address(each) for each in variables]
    update()
    assert [address(each) for each in variables] == before


def test_clipping_by_hand(monkeypatch):
    for norm, most, scale in ((4.0, 1.0, 0.25), (0.5, 1.0, 1.0), (0.0, 1.0, 1.0), (4.0, 2.0, 0.5), (0.5, 2.0, 1.0)):
        assert float(optimization.clip_scale(tf.constant(norm), most)) == scale
    assert float(optimization.clip_scale(tf.constant(4.0))) == 0.25
    lookup = tf.IndexedSlices(tf.constant([[3.0, 0.0], [4.0, 0.0]]), tf.constant([1, 1]), tf.constant([3, 2]))
    gradients = {"table": lookup, "kernel": tf.constant([[8.0], [8.0]]), "bias": tf.constant([4.0])}
    summed = reduce_gradients(dense_gradients(gradients))
    np.testing.assert_array_equal(summed.dense["table"], [[0, 0], [7, 0], [0, 0]])  # summed, but not in the norm
    np.testing.assert_array_equal(summed.dense["kernel"], [[8.0], [8.0]])
    for in_program_for_gpu in (False, True):
        monkeypatch.setattr(placement, "in_program_for_gpu", lambda is_true=in_program_for_gpu: is_true)
        assert float(global_norm(summed)) == pytest.approx(math.sqrt(9 + 16 + 144))
