"""Evaluations and predictions that XLA compiles have the answers of the model, also for a last, smaller batch."""

import numpy as np
import pytest
import tensorflow as tf
from executed_graphs import executed
from small_models import MAKERS, batch_for, randomize, tiny_config
from small_trainings import ONE

from bert_tf2.training.devices import build_model
from bert_tf2.training.forward import Runner

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize(("kind", "replicas"), [pytest.param("pretraining", 2, marks=pytest.mark.slow), ("span", 1)])
def test_the_answers_of_compiled_batches(kind, replicas, two):
    strategy = ONE if replicas == 1 else two
    model = build_model(strategy, lambda: MAKERS[kind](tiny_config()), 1)
    randomize(model)
    rows = {name: np.concatenate([values, values[:1]]) for name, values in batch_for(kind).items()}
    count = len(rows["input_ids"])
    size = 2 * (count // 3)
    assert count % size  # the last batch has fewer rows
    found = []
    for compiled_size in (None, size):
        data = tf.data.Dataset.from_tensor_slices(rows).batch(size)
        runner = Runner(model, strategy)
        answers = []
        nodes = executed(lambda: answers.extend(runner.run(data, compiled_size=compiled_size)))  # noqa: B023
        programs = {node.name for node in nodes if node.attr["_XlaMustCompile"].b}
        assert bool(programs) == bool(compiled_size)
        found.append({name: np.concatenate([batch[name] for batch in answers]) for name in answers[0]})
    plain, compiled = found
    assert plain.keys() == compiled.keys() and {len(values) for values in compiled.values()} == {count}
    for name, values in plain.items():
        np.testing.assert_allclose(values, compiled[name], rtol=1e-4, atol=1e-5, err_msg=name)
