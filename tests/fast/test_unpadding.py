"""Leaving out padding changes no output, no loss and no gradient."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from small_models import LABELS, randomize, small_config
from training_steps import batch_of, check, step_of

from bert_tf2 import heads, modeling
from bert_tf2.fast import compiled, unpadding
from bert_tf2.fast.encoder import FastEncoder, Plan, accelerate

WAYS = ["groups", "packed"]
SEED = tf.constant([3, 4])
MASKS = {
    "mixed": [[1, 1, 1, 0, 0, 0], [1] * 6, [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]],
    "full": [[1] * 6] * 5,
    "one row": [[1, 1, 0, 0, 0, 0]],
    "holes and a row of padding": [[1, 0, 1, 0, 0, 0], [0] * 6, [0, 1, 1, 1, 0, 0]],
    "many": [[1] * (1 + number % 6) + [0] * (5 - number % 6) for number in range(40)],  # more than 64 tokens
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MASKS)
def test_the_encoder_computes_the_same(name, way):
    mask = np.array(MASKS[name], np.int32)
    model = modeling.BertModel(small_config())
    randomize(model)
    random = np.random.default_rng(5)
    ids, types = random.integers(0, 23, mask.shape), random.integers(0, 2, mask.shape)
    padded = model(ids, mask, types)
    fast = FastEncoder(model, Plan(way))
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


@pytest.mark.compiled
@pytest.mark.parametrize("way", WAYS)
def test_loops_that_xla_compiles_for_each_number_of_tokens(way):
    """As in a long training; test_accelerate compares the others."""
    model, batch = heads.PretrainingModel(small_config()), batch_of("pretraining")
    randomize(model)
    wanted = step_of(model, batch)
    with compiled.few_sizes(True):
        check(step_of(accelerate(model, Plan(way)), batch), wanted, rtol=1e-4, atol=2e-6)


def test_an_answer_is_not_at_padding():
    model, batch = heads.SpanModel(small_config()), batch_of("span")
    randomize(model)
    accelerate(model, Plan("groups"))
    start_logits, _ = model(batch)
    probabilities = tf.nn.softmax(start_logits).numpy()
    assert not probabilities[batch["input_mask"].numpy() == 0].any()
    alone = {name: values[3:4, :4] if values.shape.rank == 2 else values[3:4] for name, values in batch.items()}
    assert batch["input_mask"].numpy()[3].sum() >= 4
    accelerate(model, Plan("none"))
    shorter = {**batch, **alone, "input_mask": tf.ones([1, 4], tf.int32)}
    whole = {name: values[3:4] for name, values in batch.items()} | {
        "input_mask": tf.constant([[1, 1, 1, 1, 0, 0, 0, 0, 0, 0]])
    }
    wanted = tf.nn.softmax(model({name: shorter[name] for name in ("input_ids", "input_mask", "segment_ids")})[0])
    accelerate(model, Plan("packed"))
    np.testing.assert_allclose(tf.nn.softmax(model(whole)[0])[:, :4], wanted, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_no_predictions_at_all(way):
    model, batch = heads.PretrainingModel(small_config()), batch_of("pretraining")
    batch["masked_lm_weights"] = tf.zeros_like(batch["masked_lm_weights"])
    losses, gradients, norm = step_of(accelerate(model, Plan(way)), batch)
    assert float(losses["masked_lm_loss"]) == 0.0
    assert np.isfinite(float(norm)) and all(np.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize("way", WAYS)
def test_dropout_depends_on_the_seed_alone(way):
    config = small_config(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    model, batch = heads.ClassifierModel(config, LABELS), batch_of("classifier")
    randomize(model)
    accelerate(model, Plan(way))
    seeds = [SEED, SEED, SEED + 1]
    one, again, other = (float(model.loss_terms(batch, dropout_seed=seed)[0].total) for seed in seeds)
    assert one == again != other


@pytest.mark.parametrize("way", WAYS)
def test_bfloat16(way):
    model = modeling.BertModel(small_config(), dtype="mixed_bfloat16")
    randomize(model, scale=0.1)
    batch = batch_of("classifier")
    features = (batch["input_ids"], batch["input_mask"], batch["segment_ids"])
    wanted = model(*features).pooled_output
    np.testing.assert_allclose(FastEncoder(model, Plan(way))(*features).pooled_output, wanted, atol=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_first_fit_puts_each_text_in_its_own_place(seed):
    random = np.random.default_rng(seed)
    lengths, width = random.integers(1, 17, random.integers(1, 40)).astype(np.int32), 16
    rows, offsets = (found.numpy() for found in unpadding.first_fit(tf.constant(lengths), width))
    assert (offsets + lengths <= width).all()
    taken = {
        (row, column)
        for row, offset, length in zip(rows, offsets, lengths, strict=True)
        for column in range(offset, offset + length)
    }
    assert len(taken) == lengths.sum()
    used = np.bincount(rows, lengths)
    assert used.min() > 0  # no empty row between others
    assert all(one + other > width for one, other in itertools.combinations(used, 2))  # none could be left out


def test_first_fit_takes_the_longest_first():
    rows, offsets = unpadding.first_fit(tf.constant([3, 8, 5, 4, 2]), 10)
    assert rows.numpy().tolist() == [2, 0, 1, 1, 0]
    assert offsets.numpy().tolist() == [0, 0, 0, 5, 8]
