"""The activations of blocks computed again in the backward pass: the same gradients, and computed again indeed."""

import numpy as np
import pytest
from executed_graphs import executed
from gradient_steps import batch_of, make, on_second_replica, step_of

from bert_tf2 import recompute

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize(
    ("kind", "precision", "parts", "jit_compile"),
    [
        ("pretraining", "float32", 1, False),
        pytest.param("tagging", "bfloat16", 2, False, marks=[pytest.mark.slow, pytest.mark.soak]),
        pytest.param("span", "float32", 1, True, marks=pytest.mark.slow),
    ],
)
def test_the_gradients_are_the_same(kind, precision, parts, jit_compile):
    model, found = make(kind, precision), []
    for model.bert.recompute in (False, True):
        found.append({name: g.numpy() for name, g in step_of(model, parts, jit_compile)(batch_of(kind)).items()})
    kept, again = found
    assert kept.keys() == again.keys()
    for name, gradient in kept.items():
        np.testing.assert_allclose(again[name], gradient, rtol=1e-6, atol=1e-6, err_msg=name)
    assert any("layer_0" in name and np.abs(gradient).max() > 1e-3 for name, gradient in again.items())


@pytest.mark.slow
def test_the_gradients_are_the_same_on_two_replicas(two):
    model, found = make("classifier", strategy=two), []
    for model.bert.recompute in (False, True):
        found.append(on_second_replica(model, two, "classifier"))
    for name, gradient in found[0].items():
        np.testing.assert_allclose(found[1][name], gradient, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("blocks", "kept"), [(1, [0]), (2, [1]), (4, [0, 3]), (12, [2, 5, 8, 11])])
def test_one_block_in_three_keeps_its_activations(blocks, kept):
    assert [number for number, is_kept in enumerate(recompute.kept(blocks)) if is_kept] == kept


def test_tensorflow_does_not_merge_the_second_computation_with_the_first():
    """Counts what is executed, after the optimizations of the graph. The last block is not computed again."""
    model, counts = make("classifier"), []
    for model.bert.recompute in (False, True):
        nodes = executed(lambda: step_of(model)(batch_of("classifier")))
        counts.append([node.op for node in nodes].count("Softmax"))
    assert counts == [2, 3]
