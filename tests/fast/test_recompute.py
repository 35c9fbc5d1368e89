"""The activations of blocks computed again in the backward pass: the same gradients, and computed again indeed."""

import numpy as np
import pytest
from executed_graphs import executed
from gradient_steps import batch_of, make, step_of

from bert_tf2.fast.encoder import Plan, accelerate
from bert_tf2.fast.recompute import keeps_activations

pytestmark = pytest.mark.compiled


@pytest.mark.slow
def test_the_gradients_are_the_same_where_xla_compiles_the_step():
    model, found = make("span"), []
    for again in (False, True):
        step = step_of(accelerate(model, Plan(recompute=again)), jit_compile=True)
        found.append({name: g.numpy() for name, g in step(batch_of("span")).items()})
    for name, gradient in found[0].items():
        np.testing.assert_allclose(found[1][name], gradient, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("blocks", "kept"), [(1, [0]), (2, [1]), (4, [0, 3]), (12, [2, 5, 8, 11])])
def test_one_block_in_three_keeps_its_activations(blocks, kept):
    assert [number for number, is_kept in enumerate(keeps_activations(blocks)) if is_kept] == kept


def test_tensorflow_does_not_merge_the_second_computation_with_the_first():
    """Counts what is executed, after the optimizations of the graph. The last block is not computed again."""
    model, counts = make("classifier"), []
    for again in (False, True):
        accelerate(model, Plan(recompute=again))
        nodes = executed(lambda: step_of(model)(batch_of("classifier")))
        counts.append([node.op for node in nodes].count("Softmax"))
    assert counts == [2, 3]
