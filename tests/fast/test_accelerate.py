"""Each acceleration alone, and all together: the outputs, the gradients and the dropout of the plain model."""

import numpy as np
import pytest
from gradient_steps import make, on_second_replica
from small_models import MAKERS, randomize, small_config, without_head_dropout
from training_steps import batch_of, check, step_of

from bert_tf2.fast.encoder import Plan, accelerate

PLANS = {
    "gradients": Plan(),
    "groups": Plan("groups"),
    "recompute": Plan(recompute=True),
    "shared": Plan(share_graph=True),
    "all": Plan("groups", recompute=True, share_graph=True),
}
LAYERS = 2  # of which the last keeps its activations with recompute


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("masked_words", "classifier")]


@pytest.mark.parametrize("kind", ["pretraining", "tagging", *SLOW])
def test_outputs_and_gradients_without_dropout(kind, monkeypatch):
    without_head_dropout(monkeypatch)
    model, batch = MAKERS[kind](small_config(num_hidden_layers=LAYERS)), batch_of(kind)
    randomize(model)
    wanted, plain = step_of(model, batch), model.outputs(batch)
    for plan in PLANS.values() if kind == "pretraining" else [PLANS["all"]]:
        accelerate(model, plan)
        check(step_of(model, batch), wanted, rtol=1e-4, atol=3e-6)
        for name, values in model.outputs(batch).items():
            if kind != "tagging" or plan.unpad == "none":  # what is not computed is no answer
                np.testing.assert_allclose(values, plain[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_the_dropout_is_that_of_the_plain_model():
    """Where a head reads all positions; in other models the last block draws for fewer."""
    model, batch = make("span", num_hidden_layers=LAYERS), batch_of("span")
    wanted = step_of(model, batch)
    for name in ("gradients", "recompute", "shared"):
        check(step_of(accelerate(model, PLANS[name]), batch), wanted, rtol=1e-4, atol=3e-6)


@pytest.mark.parametrize(
    ("kind", "precision", "unpad", "parts"),
    [
        ("span", "float32", "groups", 1),
        pytest.param("pretraining", "float32", "groups", 1, marks=pytest.mark.slow),
        pytest.param("classifier", "bfloat16", "groups", 1, marks=pytest.mark.slow),
        pytest.param("tagging", "float32", "groups", 3, marks=pytest.mark.slow),
    ],
)
def test_without_padding_the_dropout_is_the_same_however_a_block_is_computed(kind, precision, unpad, parts):
    """The numbers are others than with padding, because other values are drawn for."""
    model, batch = make(kind, precision, num_hidden_layers=LAYERS), batch_of(kind)
    wanted = step_of(accelerate(model, Plan(unpad)), batch, parts)
    tolerance = 1e-5 if precision == "float32" else 0.02
    alone = [Plan(unpad, recompute=True), Plan(unpad, share_graph=True)] if kind == "span" else []
    for plan in (*alone, Plan(unpad, recompute=True, share_graph=True)):
        check(step_of(accelerate(model, plan), batch, parts), wanted, tolerance, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.compiled
def test_the_gradients_are_the_same_on_two_replicas(two):
    model = make("classifier", strategy=two)
    wanted = on_second_replica(accelerate(model, Plan()), two, "classifier")
    found = on_second_replica(accelerate(model, Plan(recompute=True, share_graph=True)), two, "classifier")
    for name, gradient in wanted.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-6, atol=1e-6, err_msg=name)


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
