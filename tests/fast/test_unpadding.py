"""Leaving out padding changes no output, no loss and no gradient."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import randomize, small_config
from training_steps import batch_of, check, step_of

from bert_tf2 import heads, modeling
from bert_tf2.fast import compiled
from bert_tf2.fast.encoder import FastEncoder, Plan, accelerate

SEED = tf.constant([3, 4])
MASKS = {
    "mixed": [[1, 1, 1, 0, 0, 0], [1] * 6, [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]],
    "full": [[1] * 6] * 5,
    "one row": [[1, 1, 0, 0, 0, 0]],
    "holes and a row of padding": [[1, 0, 1, 0, 0, 0], [0] * 6, [0, 1, 1, 1, 0, 0]],
    "many": [[1] * (1 + number % 6) + [0] * (5 - number % 6) for number in range(40)],  # more than 64 tokens
}


@pytest.mark.parametrize("name", MASKS)
def test_the_encoder_computes_the_same(name):
    mask = np.array(MASKS[name], np.int32)
    model = modeling.BertModel(small_config())
    randomize(model)
    random = np.random.default_rng(5)
    ids, types = random.integers(0, 23, mask.shape), random.integers(0, 2, mask.shape)
    padded = model(ids, mask, types)
    fast = FastEncoder(model, Plan("groups"))
    # As a graph without gradients: there TensorFlow fuses products with what surrounds them.
    sizes = [tf.TensorSpec([None, None], tf.int32)] * 3
    graph = tf.function(lambda *inputs: fast(*inputs), input_signature=sizes, autograph=False)
    unpadded = graph(*(tf.constant(values, tf.int32) for values in (ids, mask, types)))
    last = np.where(mask.any(1), 6 - mask[:, ::-1].argmax(1), 6)
    computed = np.arange(6) < last[:, None]
    tolerance = 2e-5 if mask.any(1).all() else 5e-3  # near -10000, float32 numbers are 1e-3 apart
    np.testing.assert_allclose(unpadded.pooled_output, padded.pooled_output, atol=tolerance)
    pairs = zip(
        [unpadded.embedding_output, *unpadded.all_encoder_layers],
        [padded.embedding_output, *padded.all_encoder_layers],
        strict=True,
    )
    for ours, wanted in pairs:
        np.testing.assert_allclose(ours.numpy()[computed], wanted.numpy()[computed], atol=tolerance)
        assert not ours.numpy()[~computed].any()


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("plan", [Plan(), Plan("groups"), Plan("groups", True, True)], ids=str)
def test_the_last_block_where_it_is_read(name, plan):
    mask = np.array(MASKS[name], np.int32)
    model = modeling.BertModel(small_config(num_hidden_layers=2))
    randomize(model)
    random = np.random.default_rng(5)
    inputs = [tf.constant(values) for values in (random.integers(0, 23, mask.shape), mask, 0 * mask)]
    reads = random.integers(0, np.where(mask.any(1), 6 - mask[:, ::-1].argmax(1), 6)[:, None], [len(mask), 4])
    fast, tapes = FastEncoder(model, plan), []
    for way in ({}, {"reads": tf.constant(reads)}, {"reads": tf.zeros([len(mask), 0], tf.int32)}):
        with tf.GradientTape() as tape:
            output = fast(*inputs, **way)
            states = output.sequence_output if way else tf.gather(output.sequence_output, reads, batch_dims=1)
            total = tf.reduce_sum(tf.sin(output.pooled_output)) + tf.reduce_sum(tf.sin(states))
        tapes.append((states, output.pooled_output, tape.gradient(total, model.trainable_variables)))
    wanted, found, first = tapes
    tolerance = 2e-5 if mask.any(1).all() else 5e-3  # near -10000, float32 numbers are 1e-3 apart
    assert first[0].shape == (len(mask), 0, 8)
    for ours, theirs in zip([*found[:2], first[1], *found[2]], [*wanted[:2], wanted[1], *wanted[2]], strict=True):
        ours, theirs = (tf.convert_to_tensor(values) for values in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=1e-4)


@pytest.mark.compiled
def test_loops_that_xla_compiles_for_each_number_of_tokens():
    """As in a long training; test_accelerate compares the others."""
    model, batch = heads.PretrainingModel(small_config()), batch_of("pretraining")
    randomize(model)
    wanted = step_of(model, batch)
    with compiled.few_sizes(True):
        check(step_of(accelerate(model, Plan("groups")), batch), wanted, rtol=1e-4, atol=2e-6)


def test_an_answer_is_not_at_padding():
    model, batch = heads.SpanModel(small_config()), batch_of("span")
    randomize(model)
    accelerate(model, Plan("groups"))
    start_logits, _ = model(batch)
    probabilities = tf.nn.softmax(start_logits).numpy()
    assert not probabilities[batch["input_mask"].numpy() == 0].any()


def test_no_predictions_at_all():
    model, batch = heads.PretrainingModel(small_config()), batch_of("pretraining")
    batch["masked_lm_weights"] = tf.zeros_like(batch["masked_lm_weights"])
    losses, gradients, norm = step_of(accelerate(model, Plan("groups")), batch)
    assert float(losses["masked_lm_loss"]) == 0.0
    assert np.isfinite(float(norm)) and all(np.isfinite(gradient).all() for gradient in gradients.values())
