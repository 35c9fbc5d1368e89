"""Each acceleration alone, and all together: the outputs, the gradients and the dropout of the plain model."""

import numpy as np
import pytest
import tensorflow as tf
from gradient_steps import batch_of, check, make, step_of
from small_models import randomize, small_config

from bert_tf2 import modeling
from bert_tf2.fast import compiled
from bert_tf2.fast.encoder import FastEncoder, Plan, accelerate

PLANS = {
    "gradients": Plan(),
    "groups": Plan("groups"),
    "recompute": Plan(recompute=True),
    "shared": Plan(share_graph=True),
    "all": Plan("groups", recompute=True, share_graph=True),
}
NONE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SLOW = [("pretraining", [*PLANS]), ("masked_words", ["all"]), ("classifier", ["all"])]


@pytest.mark.parametrize(
    ("kind", "plans"),
    [
        *(("pretraining", ["all"]), ("tagging", ["all"])),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
    ],
)
def test_outputs_and_gradients_without_dropout(kind, plans):
    model, batch = make(kind, **NONE), batch_of(kind)
    wanted, plain = step_of(model)(batch), model.outputs(batch)
    for plan in map(PLANS.get, plans):
        accelerate(model, plan)
        check(step_of(model)(batch), wanted)
        for name, values in model.outputs(batch).items():
            if kind != "tagging" or plan.unpad == "none":  # what is not computed is no answer
                np.testing.assert_allclose(values, plain[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_the_dropout_is_that_of_the_plain_model():
    """Where a head reads all positions; in other models the last block draws for fewer."""
    model, batch = make("span"), batch_of("span")
    wanted = step_of(model)(batch)
    for name in ("gradients", "recompute", "shared"):
        check(step_of(accelerate(model, PLANS[name]))(batch), wanted)


@pytest.mark.parametrize(
    ("kind", "precision", "parts"),
    [
        pytest.param("span", "float32", 1, marks=pytest.mark.slow),
        pytest.param("pretraining", "float32", 1, marks=pytest.mark.slow),
        pytest.param("classifier", "bfloat16", 1, marks=pytest.mark.slow),
        pytest.param("tagging", "float32", 3, marks=pytest.mark.slow),
    ],
)
def test_without_padding_the_dropout_is_the_same_however_a_block_is_computed(kind, precision, parts):
    """The numbers are others than with padding, because other values are drawn for."""
    model, batch = make(kind, precision), batch_of(kind)
    wanted = step_of(accelerate(model, PLANS["groups"]), parts)(batch)
    tolerance = 1e-5 if precision == "float32" else 0.02
    check(step_of(accelerate(model, PLANS["all"]), parts)(batch), wanted, tolerance, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.compiled
def test_the_gradients_are_the_same_on_two_replicas(two):
    def second(model):
        gradients = two.run(step_of(model), args=(batch_of("classifier"),))[1]
        return {name: two.experimental_local_results(g)[1].numpy() for name, g in gradients.items()}

    model = make("classifier", strategy=two)
    wanted = second(accelerate(model, Plan()))
    for name, gradient in second(accelerate(model, Plan(recompute=True, share_graph=True))).items():
        np.testing.assert_allclose(gradient, wanted[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_a_block_of_another_kind_is_computed_as_it_is():
    class Doubled(type(make("classifier").bert.blocks[0])):
        def call(self, states, mask_scores):
            return 2.0 * super().call(states, mask_scores)

    model, batch = make("classifier"), batch_of("classifier")
    block = Doubled(model.config, name="layer_1")
    block.set_weights(model.bert.blocks[1].get_weights())
    model.bert.blocks[1] = block
    wanted = model(batch)
    np.testing.assert_array_equal(accelerate(model, PLANS["all"])(batch), wanted)
    assert model.encoder is model.bert


# Without padding

MASKS = {
    "mixed": [[1, 1, 1, 0, 0, 0], [1] * 6, [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]],
    "one row": [[1, 1, 0, 0, 0, 0]],
    "holes and a row of padding": [[1, 0, 1, 0, 0, 0], [0] * 6, [0, 1, 1, 1, 0, 0]],
    "many": [[1] * (1 + number % 6) + [0] * (5 - number % 6) for number in range(40)],  # more than 64 tokens
}


@pytest.fixture(params=MASKS)
def inputs(request):
    """Ids, mask and types, int32 [B, 6]; the length of each row; how close float32 comes, near -10000 1e-3."""
    mask, random = np.array(MASKS[request.param], np.int32), np.random.default_rng(5)
    lengths = np.where(mask.any(1), 6 - mask[:, ::-1].argmax(1), 6)
    given = (random.integers(0, 23, mask.shape), mask, random.integers(0, 2, mask.shape))
    return [tf.constant(values, tf.int32) for values in given], lengths, 2e-5 if mask.any(1).all() else 5e-3


def model_of(**changes):
    model = modeling.BertModel(small_config(**changes))
    randomize(model)
    return model


def test_the_encoder_computes_the_same(inputs):
    """As a graph without gradients: there TensorFlow fuses products with what surrounds them."""
    given, lengths, tolerance = inputs
    model = model_of()
    padded, fast = model(*given), FastEncoder(model, PLANS["groups"])
    sizes = [tf.TensorSpec([None, None], tf.int32)] * 3
    unpadded = tf.function(lambda *inputs: fast(*inputs), input_signature=sizes, autograph=False)(*given)
    computed = np.arange(6) < lengths[:, None]
    np.testing.assert_allclose(unpadded.pooled_output, padded.pooled_output, atol=tolerance)
    found = [unpadded.embedding_output, *unpadded.all_encoder_layers]
    for ours, wanted in zip(found, [padded.embedding_output, *padded.all_encoder_layers], strict=True):
        np.testing.assert_allclose(ours.numpy()[computed], wanted.numpy()[computed], atol=tolerance)
        assert not ours.numpy()[~computed].any()


@pytest.mark.parametrize("plan", ["gradients", "all"])
def test_the_last_block_where_it_is_read(inputs, plan):
    given, lengths, tolerance = inputs
    model = model_of()
    reads = np.random.default_rng(5).integers(0, lengths[:, None], [len(lengths), 4])
    fast, tapes = FastEncoder(model, PLANS[plan]), []
    for way in ({}, {"reads": tf.constant(reads)}, {"reads": tf.zeros([len(lengths), 0], tf.int32)}):
        with tf.GradientTape() as tape:
            output = fast(*given, **way)
            states = output.sequence_output if way else tf.gather(output.sequence_output, reads, batch_dims=1)
            total = tf.reduce_sum(tf.sin(output.pooled_output)) + tf.reduce_sum(tf.sin(states))
        tapes.append((states, output.pooled_output, tape.gradient(total, model.trainable_variables)))
    wanted, found, first = tapes
    assert first[0].shape == (len(lengths), 0, 8)
    for ours, theirs in zip([*found[:2], first[1], *found[2]], [*wanted[:2], wanted[1], *wanted[2]], strict=True):
        ours, theirs = (tf.convert_to_tensor(values) for values in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=1e-4)


@pytest.mark.compiled
def test_loops_that_xla_compiles_for_each_number_of_tokens():
    """As in a long training."""
    model, batch = make("pretraining", **NONE), batch_of("pretraining")
    wanted = step_of(model)(batch)
    with compiled.few_sizes(True):
        check(step_of(accelerate(model, PLANS["groups"]))(batch), wanted)


def test_no_answer_is_at_padding_and_no_loss_is_of_no_predictions():
    model, batch = accelerate(make("span"), PLANS["groups"]), batch_of("span")
    probabilities = tf.nn.softmax(model(batch)[0]).numpy()
    assert not probabilities[batch["input_mask"].numpy() == 0].any()
    model, batch = accelerate(make("pretraining"), PLANS["groups"]), batch_of("pretraining")
    batch["masked_lm_weights"] = tf.zeros_like(batch["masked_lm_weights"])
    losses, gradients, norm = step_of(model)(batch)
    assert float(losses["masked_lm_loss"]) == 0.0
    assert np.isfinite(float(norm)) and all(np.isfinite(gradient).all() for gradient in gradients.values())
