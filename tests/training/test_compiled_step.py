"""The whole step, compiled by XLA as on a TPU, makes the update of the step that is not: dropout and all."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import batch_for
from small_trainings import ONE, make_trainer

from bert_tf2.training.devices import compiles_whole_step

pytestmark = pytest.mark.compiled


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "precision"), [("pretraining", "bfloat16"), ("span", "float32")])
def test_the_whole_step_compiles_to_the_same_update(kind, precision):
    config = {"num_hidden_layers": 2, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    trainer = make_trainer("", kind, config=config, precision=precision)
    batch = {name: tf.constant(value) for name, value in batch_for(kind).items()}
    before = {name: variable.numpy() for name, variable in trainer._state.items()}
    found = []
    for compiled in (False, True):
        for name, variable in trainer._state.items():
            variable.assign(before[name])
        measures = trainer.step.compiled(jit_compile=compiled)(batch, tf.constant(3, tf.int64))
        state = {name: variable.numpy() for name, variable in trainer._state.items()}
        found.append(({name: float(value) for name, value in measures.items()}, state))
    (plain, state), (compiled, compiled_state) = found
    tolerance = 1e-4 if precision == "float32" else 0.05
    assert plain == pytest.approx(compiled, rel=tolerance)
    gradients = [name for name in state if name.endswith("/adam_m")]
    of_plain, of_compiled = (np.concatenate([s[name].ravel() for name in gradients]) for s in (state, compiled_state))
    assert np.linalg.norm(of_plain - of_compiled) < tolerance * np.linalg.norm(of_plain)


def test_where_xla_cannot_compile_the_step_it_says_so(two, log_lines):
    assert compiles_whole_step(ONE) and not log_lines
    assert not compiles_whole_step(two)
    (line,) = log_lines
    assert line.startswith("--xla has no effect on a TPU, which always compiles, with several devices")
