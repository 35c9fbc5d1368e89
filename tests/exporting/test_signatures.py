"""The signatures of an export give the same outputs as the model and the scripts in Python."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from export_cases import (
    CLOSE,
    CONFIG,
    MAKERS,
    POSITIONS,
    SECONDS,
    TEXTS,
    assert_outputs,
    expected_outputs,
    export,
    make_options,
    model_inputs,
    rows,
)
from refused import message_of

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.exporting import load
from bert_tf2.exporting.options import TASKS
from bert_tf2.exporting.run import run

text_operations.need()


@pytest.mark.parametrize("task", MAKERS)
def test_ids_are_answered_as_by_the_model(exported, task):
    made, inputs = exported(task), rows((POSITIONS, 17, 5))  # max_seq_length is for texts only
    assert_outputs(made.ask("serving_default", **inputs), expected_outputs(made, inputs))
    alone = {name: value[1:2, :17] for name, value in inputs.items()}
    assert_outputs(made.ask("serving_default", **alone), expected_outputs(made, alone))
    without_segments = {**inputs, "segment_ids": np.zeros_like(inputs["segment_ids"])}
    found = made.ask("serving_ids", input_ids=inputs["input_ids"])
    assert_outputs(found, expected_outputs(made, without_segments))


@pytest.mark.parametrize("task", ["features", "classifier", "masked_lm"])
def test_texts_are_answered_as_by_the_scripts(exported, task):
    made = exported(task)
    blank = " [MASK] " if task == "masked_lm" else ""
    firsts = [text[:5] + blank + text[5:] for text in TEXTS]
    assert_outputs(
        made.ask("serving_text", text_a=firsts),
        expected_outputs(made, model_inputs(made.tokenizer, [(text, "") for text in firsts], 24)),
    )
    pairs = list(zip(firsts, SECONDS, strict=True))
    inputs = model_inputs(made.tokenizer, pairs, 24)
    found = made.ask("serving_text_pair", text_a=firsts, text_b=SECONDS)
    assert_outputs(found, expected_outputs(made, inputs))
    if task == "features":
        padding = inputs["input_mask"] == 0
        tokens = np.where(padding, b"", np.array(toy_data.VOCAB)[inputs["input_ids"]].astype("S"))
        np.testing.assert_array_equal(found["tokens"], tokens)


def test_the_exported_words_are_those_of_the_model(tmp_path):
    config = BertConfig.from_dict({**CONFIG.to_dict(), "position_embedding_type": "learned_from_sinusoidal"})
    model = heads.PretrainingModel(config)
    made = export(tmp_path, "masked_lm", model, text_signatures=False)
    inputs = rows()
    assert_outputs(made.ask("serving_default", **inputs), expected_outputs(made, inputs))
    assert BertConfig.from_dict(made.info["config"]) == config
    assert "exported with --text_signatures=false" in message_of(load, made.folder)
    # Every table is in the file once.
    size = pathlib.Path(made.folder, "variables", "variables.data-00000-of-00001").stat().st_size
    numbers = sum(int(np.prod(variable.shape)) for variable in model.variables)
    assert size < 4 * numbers + 20_000


@pytest.mark.parametrize("format", ["saved_model", pytest.param("onnx", marks=pytest.mark.extra)])
def test_rows_of_the_table_without_a_word_are_never_predicted(tmp_path, format):
    model = heads.PretrainingModel(BertConfig.from_dict({**CONFIG.to_dict(), "vocab_size": 64}))
    made = export(tmp_path, "masked_lm", model, format=format)
    inputs, bias = rows(), model.masked_lm.output_bias
    bias.assign(tf.where(tf.range(64) < len(toy_data.VOCAB), bias, -1e9))
    wanted = expected_outputs(made, inputs)
    if format == "saved_model":
        assert_outputs(made.ask("serving_default", **inputs), wanted)
    else:
        session = pytest.importorskip("onnxruntime").InferenceSession(f"{made.folder}/model.onnx")
        np.testing.assert_allclose(session.run(["scores"], inputs)[0], wanted["scores"], **CLOSE)


@pytest.mark.parametrize("task", ["features", *(pytest.param(it, marks=pytest.mark.slow) for it in TASKS[1:])])
def test_it_is_called_by_keras_and_as_it_is(exported, task):
    """hub.KerasLayer calls what tf.saved_model.load returns."""
    made, inputs = exported(task), rows()
    layers = {name: tf.keras.layers.TFSMLayer(made.folder, name) for name in ("serving_default", "serve")}
    assert_outputs(layers["serving_default"](inputs), made.ask("serving_default", **inputs))
    texts = {"text_a": ["a film [MASK]", "Bob [MASK] Ann"]}
    texts = {"question": ["where ?"], "context": ["Bob is in Oslo"]} if task == "squad" else texts
    wanted, given = made.ask("serving_text", **texts), {name: tf.constant(value) for name, value in texts.items()}
    given = given if len(given) > 1 else given["text_a"]
    for function in (layers["serve"], made.saved):
        assert_outputs({name: value.numpy() for name, value in function(given).items()}, wanted)


@pytest.mark.parametrize("task", TASKS)
def test_padding_of_tensorflow_serving_is_padding(exported, task):
    """`pad_variable_length_inputs` fills with the first value of each tensor: [CLS], 1 and 0."""
    made, inputs = exported(task), rows((9, 9, 6))
    longer = rows((20,), seed=4)
    filled = {name: np.pad(value, [(0, 0), (0, 11)], constant_values=value[0, 0]) for name, value in inputs.items()}
    batch = {name: np.concatenate([filled[name], longer[name]]) for name in inputs}
    properly = {name: np.pad(value, [(0, 0), (0, 11)]) for name, value in inputs.items()}
    wanted = {name: np.concatenate([properly[name], longer[name]]) for name in inputs}
    assert_outputs(made.ask("serving_default", **batch), expected_outputs(made, wanted))
    assert_outputs(
        made.ask("serving_ids", input_ids=batch["input_ids"]), made.ask("serving_ids", input_ids=wanted["input_ids"])
    )


def test_other_rows_that_end_in_cls_are_left_alone(exported):
    made = exported("features")
    inputs = {"input_ids": np.array([[5, 7, 3, 2, 2], [2, 2, 2, 2, 2]], np.int32)}
    inputs |= {"input_mask": np.ones_like(inputs["input_ids"]), "segment_ids": np.zeros_like(inputs["input_ids"])}
    assert_outputs(made.ask("serving_default", **inputs), expected_outputs(made, inputs))


@pytest.mark.slow
@pytest.mark.parametrize(("task", "output"), [("classifier", "probabilities"), ("masked_lm", "scores")])
def test_bfloat16(exported, tmp_path, task, output):
    made, inputs = exported(task), rows()
    folder = run(make_options(tmp_path, task, made.weights, precision="bfloat16", text_signatures=False))
    saved = tf.saved_model.load(folder)
    found = saved.signatures["serving_default"](**{name: tf.constant(value) for name, value in inputs.items()})
    assert found[output].dtype == tf.float32
    np.testing.assert_allclose(found[output], expected_outputs(made, inputs)[output], atol=0.05)

    def size(folder: str) -> int:
        return sum(path.stat().st_size for path in pathlib.Path(folder, "variables").glob("*.data*"))

    assert size(folder) < 0.75 * size(made.folder)
