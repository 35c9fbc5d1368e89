"""The whole step, compiled by XLA as on a TPU, makes the update of the step that is not: dropout and all."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import MAKERS, batch_for
from small_trainings import ONE, make_trainer

from bert_tf2.training.devices import compiles_whole_step

pytestmark = pytest.mark.compiled
CASES = [("pretraining", precision) for precision in ("float32", "bfloat16", "float16")]
CASES += [(kind, "float32") for kind in MAKERS if kind != "pretraining"]


SHORT = {("pretraining", "float32"), ("pretraining", "bfloat16"), ("span", "float32")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "precision"), [pytest.param(*case, marks=() if case in SHORT else pytest.mark.soak) for case in CASES]
)
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


@pytest.mark.slow
def test_a_training_with_xla_makes_the_same_updates_for_batches_of_several_widths(tmp_path):
    """With what runs around the losses: the loop over the parts of a batch, the optimizer."""
    batch, found = batch_for("classifier"), []
    per_token = ("input_ids", "input_mask", "segment_ids")
    wide = {name: np.pad(v, [(0, 0), (0, 3)]) if name in per_token else v for name, v in batch.items()}
    specs = {name: tf.TensorSpec([4, None] if v.ndim == 2 else [4], v.dtype) for name, v in batch.items()}
    for xla in (False, True):
        data = tf.data.Dataset.from_generator(lambda: iter([batch, wide]), output_signature=specs)
        how = {"num_train_steps": 2, "gradient_accumulation_steps": 2, "xla": xla}
        trainer = make_trainer(tmp_path / str(xla), "classifier", **how)
        trainer.train(data)
        found.append({name: variable.numpy() for name, variable in trainer._state.items()})
    plain, compiled = found
    for name in plain:
        if name.endswith("/adam_m"):
            np.testing.assert_allclose(compiled[name], plain[name], rtol=1e-3, atol=1e-6, err_msg=name)


def test_where_xla_cannot_compile_the_step_it_says_so(two, log_lines):
    assert compiles_whole_step(ONE) and not log_lines
    assert not compiles_whole_step(two)
    (line,) = log_lines
    assert line.startswith("--xla has no effect: with several devices")
