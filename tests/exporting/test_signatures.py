"""The signatures of an export give the same outputs as the model and the scripts in Python."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from export_cases import (
    CLOSE,
    CONFIG,
    POSITIONS,
    SECONDS,
    TEXTS,
    Exported,
    assert_outputs,
    expected_outputs,
    export,
    make_options,
    rows,
)

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.exporting import load, signatures
from bert_tf2.exporting.options import TASKS
from bert_tf2.exporting.run import run
from bert_tf2.finetuning import classification

pytest.importorskip("tensorflow_text")


@pytest.mark.parametrize("task", TASKS)
def test_ids_are_answered_as_by_the_model(exported, task):
    made, inputs = exported(task), rows((POSITIONS, 17, 5))  # max_seq_length is for texts only
    assert made.options.max_seq_length < POSITIONS
    assert_outputs(made.ask("serving_default", **inputs), expected_outputs(made, inputs))
    alone = {name: value[1:2, :17] for name, value in inputs.items()}
    assert_outputs(made.ask("serving_default", **alone), expected_outputs(made, alone))
    without_segments = {**inputs, "segment_ids": np.zeros_like(inputs["segment_ids"])}
    found = made.ask("serving_ids", input_ids=inputs["input_ids"])
    assert_outputs(found, expected_outputs(made, without_segments))


def model_inputs(made: Exported, pairs) -> dict[str, np.ndarray]:
    """By the reference's way from texts to ids; [MASK] stays whole."""
    length = made.options.max_seq_length

    def tokenize(text: str) -> list[str]:
        if made.options.task != "masked_lm":
            return made.tokenizer.tokenize(text)
        parts = [made.tokenizer.tokenize(part) for part in text.split("[MASK]")]
        return [token for part in parts for token in ["[MASK]", *part]][1:]

    inputs = {name: np.zeros([len(pairs), length], np.int32) for name in signatures.IDS}
    for row, (first, second) in enumerate(pairs):
        first, second = tokenize(first), tokenize(second)
        if second:
            classification.truncate_seq_pair(first, second, length - 3)
        first = ["[CLS]", *first[: length - 2], "[SEP]"]
        tokens = [*first, *second, "[SEP]"] if second else first
        inputs["input_ids"][row, : len(tokens)] = made.tokenizer.convert_tokens_to_ids(tokens)
        inputs["input_mask"][row, : len(tokens)] = 1
        inputs["segment_ids"][row, len(first) : len(tokens)] = 1
    longest = inputs["input_mask"].sum(1).max()
    return {name: value[:, :longest] for name, value in inputs.items()}


@pytest.mark.parametrize("task", ["features", "classifier", "masked_lm"])
def test_texts_are_answered_as_by_the_scripts(exported, task):
    made = exported(task)
    blank = " [MASK] " if task == "masked_lm" else ""
    firsts = [text[:5] + blank + text[5:] for text in TEXTS]
    assert_outputs(
        made.ask("serving_text", text_a=firsts),
        expected_outputs(made, model_inputs(made, [(text, "") for text in firsts])),
    )
    pairs = list(zip(firsts, SECONDS, strict=True))
    inputs = model_inputs(made, pairs)
    found = made.ask("serving_text_pair", text_a=firsts, text_b=SECONDS)
    assert_outputs(found, expected_outputs(made, inputs))
    if task == "features":
        padding = inputs["input_mask"] == 0
        tokens = np.where(padding, b"", np.array(toy_data.VOCAB)[inputs["input_ids"]].astype("S"))
        np.testing.assert_array_equal(found["tokens"], tokens)


@pytest.mark.slow
def test_a_regression_gives_numbers(exported):
    made, inputs = exported("regression"), rows()
    found = made.ask("serving_default", **inputs)
    assert list(found) == ["value"]
    assert_outputs(found, expected_outputs(made, inputs))
    assert load(made.folder)("a film") == {
        "value": pytest.approx(made.ask("serving_text", text_a=["a film"])["value"][0])
    }


def test_the_exported_words_are_those_of_the_model(tmp_path):
    config = BertConfig.from_dict({**CONFIG.to_dict(), "position_embedding_type": "learned_from_sinusoidal"})
    model = heads.PretrainingModel(config)
    made = export(tmp_path, "masked_lm", model, text_signatures=False)
    inputs = rows()
    assert_outputs(made.ask("serving_default", **inputs), expected_outputs(made, inputs))
    assert BertConfig.from_dict(made.info["config"]) == config
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


@pytest.mark.parametrize("ids", [[5, 7, 3, 2, 2], [2, 2, 2, 2, 2]])
def test_other_rows_that_end_in_cls_are_left_alone(exported, ids):
    made = exported("features")
    inputs = {"input_ids": np.array([ids], np.int32)}
    inputs |= {"input_mask": np.ones_like(inputs["input_ids"]), "segment_ids": np.zeros_like(inputs["input_ids"])}
    assert_outputs(made.ask("serving_default", **inputs), expected_outputs(made, inputs))


@pytest.mark.slow
@pytest.mark.parametrize(("task", "output"), [("classifier", "probabilities"), ("masked_lm", "scores")])
def test_bfloat16(exported, tmp_path, task, output):
    made, inputs = exported(task), rows()
    folder = run(make_options(tmp_path, task, made.weights, precision="bfloat16", text_signatures=False))
    assert json.loads(pathlib.Path(folder, "model_info.json").read_text())["precision"] == "bfloat16"
    saved = tf.saved_model.load(folder)
    found = saved.signatures["serving_default"](**{name: tf.constant(value) for name, value in inputs.items()})
    assert found[output].dtype == tf.float32
    np.testing.assert_allclose(found[output], expected_outputs(made, inputs)[output], atol=0.05)

    def size(folder: str) -> int:
        return sum(path.stat().st_size for path in pathlib.Path(folder, "variables").glob("*.data*"))

    assert size(folder) < 0.75 * size(made.folder)
