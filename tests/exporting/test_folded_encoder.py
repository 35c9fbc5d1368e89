"""The inference graph against the model that it is made of."""

import numpy as np
import pytest
import small_models
import tensorflow as tf

from bert_tf2 import modeling
from bert_tf2.exporting import folded_encoder

SPECS = [tf.TensorSpec([None, None], tf.int32, name=name) for name in ("input_ids", "input_mask", "segment_ids")]
ONES = [1] * small_models.LENGTH

MASKS = {
    "one full row": [ONES],
    "one short row": [[1, 1, 1] + [0] * 7],
    "no padding": [ONES] * 3,
    "all lengths": [[1] * length + [0] * (10 - length) for length in (7, 1, 10, 3, 9, 2, 5, 8, 4, 6, 10)],
    "holes": [[1, 0, 1, 0, 0, 1, 1, 0, 0, 1], [1, 1, 0, 1] + [0] * 6, ONES],
    "padding in front": [[0, 0, 1, 1, 1, 1, 1, 0, 0, 0], [0] * 9 + [1]],
}


def make_model(seed: int = 0, scale: float = 0.3, dtype: str = "float32", **changes) -> modeling.BertModel:
    model = modeling.BertModel(small_models.small_config(**changes), dtype=dtype)
    random = np.random.default_rng(seed)
    for variable in model.variables:
        center = 1.0 if variable.name == "gamma" else 0.0
        variable.assign(random.normal(center, scale, variable.shape))
    return model


def make_inputs(mask, seed: int = 1) -> list[np.ndarray]:
    mask = np.array(mask, np.int32)
    random = np.random.default_rng(seed)
    ids = random.integers(0, small_models.VOCAB, mask.shape).astype(np.int32)
    return [ids, mask, random.integers(0, 2, mask.shape).astype(np.int32)]


def check(outputs, model, inputs, tolerance: float = 1e-5) -> None:
    sequence_output, pooled_output = (np.asarray(output) for output in outputs)
    expected = model(*inputs)
    real = inputs[1] > 0
    np.testing.assert_allclose(sequence_output[real], expected.sequence_output.numpy()[real], atol=tolerance, rtol=0)
    np.testing.assert_array_equal(sequence_output[~real], 0.0)
    np.testing.assert_allclose(pooled_output, expected.pooled_output.numpy(), atol=tolerance, rtol=0)


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def graph(model):
    return tf.function(folded_encoder.Encoder(model), input_signature=SPECS)


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_any_mask_gives_the_models_numbers(model, graph, mask):
    inputs = make_inputs(mask)
    check(graph(*inputs), model, inputs)
    reads = [np.flatnonzero(row)[[0, -1, 0]] for row in inputs[1]]  # one of them twice
    read = tf.function(folded_encoder.Encoder(model), input_signature=[*SPECS, SPECS[0]])(*inputs, np.int32(reads))
    wanted = model(*inputs)
    states = np.take_along_axis(wanted.sequence_output.numpy(), np.array(reads)[..., None], 1)
    for found, right in zip(read, (states, wanted.pooled_output), strict=True):
        np.testing.assert_allclose(found, right, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        *({"hidden_act": name} for name in ("gelu", "gelu_erf", "GELU", "relu", "tanh", "linear")),
        *({"scale": 0.01, "layer_norm_eps": epsilon} for epsilon in (1e-12, 0.5)),  # the epsilon is what decides
    ],
    ids=str,
)
def test_kinds_of_models(changes):
    model, inputs = make_model(**changes), make_inputs(MASKS["all lengths"])
    check(tf.function(folded_encoder.Encoder(model))(*inputs), model, inputs)


def test_the_weights_are_its_own(model):
    inputs = make_inputs(MASKS["holes"])
    other = make_model(seed=3)
    encoder = folded_encoder.Encoder(other)
    before = [output.numpy() for output in encoder(*inputs)]
    for variable in other.variables:
        variable.assign(tf.zeros(variable.shape))
    for output, same in zip(encoder(*inputs), before, strict=True):
        np.testing.assert_array_equal(output, same)
    assert sum(int(tf.size(variable)) for variable in encoder.variables) == model.count_params()
