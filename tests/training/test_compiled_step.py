"""The whole step, compiled by XLA as on a TPU, makes the update of the step that is not: dropout and all."""

import numpy as np
import pytest
import tensorflow as tf
from executed_graphs import executed
from small_models import batch_for, randomize
from small_trainings import ONE, endless, make_trainer, saved

from bert_tf2.training.devices import compiles_step

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


def test_the_choice_of_auto():
    """It compiles for GPUs only, and only trainings long enough to win back the time of the compiler."""
    assert not compiles_step(ONE, "auto", 1_000_000)  # a CPU
    assert compiles_step(ONE, "true", 1)
    assert not compiles_step(ONE, "false", 1_000_000)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "precision"), [("pretraining", "float16"), ("span", "float32")])
def test_two_replicas_run_two_programs_and_make_the_update_of_one(kind, precision, two, tmp_path):
    config = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    found, programs = [], []
    for name, strategy, xla in (("one", ONE, "false"), ("two", two, "true")):
        trainer = make_trainer(
            tmp_path / name, kind, config=config, strategy=strategy, xla=xla, precision=precision, num_train_steps=2
        )
        randomize(trainer._model)
        nodes = executed(lambda trainer=trainer: trainer.train(endless(batch_for(kind))))
        programs.append(sum(node.attr["_XlaMustCompile"].b for node in nodes))
        found.append(saved(tmp_path / name))
    assert programs[1] == 4  # for each replica, the gradients and the update
    tolerance = 1e-4 if precision == "float32" else 0.02
    names = [name for name in found[0] if name.endswith("/adam_m")]
    one, both = (np.concatenate([state[name].ravel() for name in names]) for state in found)
    assert np.linalg.norm(one - both) < tolerance * np.linalg.norm(one)
