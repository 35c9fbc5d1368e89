"""The signatures of an export: the model's outputs for ids, also padded by servers; what is refused, and how.

test_one_answer.py has their answers to texts.
"""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from export_cases import (
    CONFIG,
    KINDS,
    POSITIONS,
    Exported,
    assert_outputs,
    expected_outputs,
    export,
    make_options,
    rows,
)
from refused import message_of

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.exporting import load
from bert_tf2.exporting.options import TASKS
from bert_tf2.exporting.run import run

text_operations.need()
SLOW = pytest.mark.slow


@pytest.mark.parametrize("task", [pytest.param(it, marks=[SLOW] * (it not in TASKS)) for it in KINDS])
def test_ids_are_answered_as_by_the_model(exported, task):
    made, inputs = exported(task), rows((POSITIONS, 17, 5))  # max_seq_length is for texts only
    without_segments = {**inputs, "segment_ids": np.zeros_like(inputs["segment_ids"])}
    assert_outputs(made.ask("serving_ids", input_ids=inputs["input_ids"]), expected_outputs(made, without_segments))
    holes = {**inputs, "input_mask": inputs["input_mask"] * ((np.arange(POSITIONS) < 3) | (np.arange(POSITIONS) > 5))}
    assert_outputs(made.ask("serving_default", **holes), expected_outputs(made, holes))
    alone = {name: value[1:2, :17] for name, value in inputs.items()}
    assert_outputs(made.ask("serving_default", **alone), expected_outputs(made, alone))
    # TensorFlow Serving's `pad_variable_length_inputs` fills with the first value of each tensor: [CLS], 1 and 0.
    inputs, longer = rows((9, 9, 6)), rows((20,), seed=4)
    filled = {name: np.pad(value, [(0, 0), (0, 11)], constant_values=value[0, 0]) for name, value in inputs.items()}
    batch = {name: np.concatenate([filled[name], longer[name]]) for name in inputs}
    properly = {name: np.pad(value, [(0, 0), (0, 11)]) for name, value in inputs.items()}
    wanted = {name: np.concatenate([properly[name], longer[name]]) for name in inputs}
    assert_outputs(made.ask("serving_default", **batch), expected_outputs(made, wanted))
    found = made.ask("serving_ids", input_ids=batch["input_ids"])
    assert_outputs(found, made.ask("serving_ids", input_ids=wanted["input_ids"]))
    if task == "features":  # other rows that end in [CLS] are left alone
        ids = np.array([[5, 7, 3, 2, 2], [2, 2, 2, 2, 2]], np.int32)
        inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
        assert_outputs(made.ask("serving_default", **inputs), expected_outputs(made, inputs))


@pytest.mark.parametrize("task", [pytest.param(it, marks=[SLOW] * (it != "ner")) for it in KINDS])
def test_it_runs_in_a_session(exported, task):
    """As in TensorFlow Serving and programs in C, which feed tensors of the graph by their names."""
    assert b"PyFunc" not in pathlib.Path(exported(task).folder, "saved_model.pb").read_bytes()
    made, inputs = exported(task), rows()
    texts = ["a lovely [MASK] in Paris , with Ann", "[MASK] " + "Bob lives in Oslo now . " * 4, "caf\u0301e [MASK]?"]
    text = [*made.info["signatures"]["serving_text"]["inputs"]]
    requests = [("serving_default", inputs), ("serving_ids", {"input_ids": inputs["input_ids"]})]
    requests += [("serving_text", dict.fromkeys(text, part)) for part in (texts, texts[:1])]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], made.folder)

        def ask(name: str, given) -> dict[str, np.ndarray]:
            signature = loaded.signature_def[name]
            feeds = {signature.inputs[key].name: value for key, value in given.items()}
            return session.run({key: tensor.name for key, tensor in signature.outputs.items()}, feeds)

        with pytest.raises(tf.errors.InvalidArgumentError, match=r"row 1 of .* is not valid UTF-8"):
            ask("serving_text", {key: ["good [MASK]", b"\xff"] for key in text})
        answers = [ask(*request) for request in requests]
    for (name, given), answer in zip(requests, answers, strict=True):
        assert_outputs(answer, made.ask(name, **given))


@SLOW
def test_models_of_other_kinds(tmp_path):
    """Rows of the table without a word, which are never predicted, are there too; the table is stored once."""
    changes = {"position_embedding_type": "learned_from_sinusoidal", "hidden_act": "relu", "layer_norm_eps": 0.5}
    model = heads.PretrainingModel(BertConfig.from_dict({**CONFIG.to_dict(), **changes, "vocab_size": 64}))
    made = export(tmp_path, "masked_lm", model, text_signatures=False)
    inputs, bias = rows(), model.masked_lm.output_bias
    bias.assign(tf.where(tf.range(64) < len(toy_data.VOCAB), bias, -1e9))
    assert_outputs(made.ask("serving_default", **inputs), expected_outputs(made, inputs))
    assert BertConfig.from_dict(made.info["config"]) == model.config
    assert "--text_signatures=false" in message_of(load, made.folder)
    size = pathlib.Path(made.folder, "variables", "variables.data-00000-of-00001").stat().st_size
    assert size < 4 * sum(int(np.prod(variable.shape)) for variable in model.variables) + 20_000


@pytest.mark.parametrize("task", ["features", pytest.param("squad", marks=SLOW)])
def test_it_is_called_by_keras_and_as_it_is(exported, task):
    """hub.KerasLayer calls what tf.saved_model.load returns."""
    made, texts = exported(task), {"text_a": ["a film [MASK]", "Bob [MASK] Ann"]}
    texts = {"question": ["where ?"], "context": ["Bob is in Oslo"]} if task == "squad" else texts
    wanted, given = made.ask("serving_text", **texts), {name: tf.constant(value) for name, value in texts.items()}
    given = given if len(given) > 1 else given["text_a"]
    for function in (tf.keras.layers.TFSMLayer(made.folder, "serve"), made.saved):
        assert_outputs({name: value.numpy() for name, value in function(given).items()}, wanted)


@SLOW
def test_bfloat16(exported, tmp_path):
    made, inputs = exported("masked_lm"), rows()
    folder = run(make_options(tmp_path, "masked_lm", made.weights, precision="bfloat16", text_signatures=False))
    signature = tf.saved_model.load(folder).signatures["serving_default"]
    found = signature(**{name: tf.constant(value) for name, value in inputs.items()})["scores"]
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, expected_outputs(made, inputs)["scores"], atol=0.05)
    sizes = [pathlib.Path(it, "variables/variables.data-00000-of-00001").stat().st_size for it in (folder, made.folder)]
    assert sizes[0] < 0.75 * sizes[1]


def test_long_texts_are_cut(exported):
    made, text = exported("classifier"), "good film " * 100_000
    assert_outputs(made.ask("serving_text", text_a=[text]), made.ask("serving_text", text_a=[text[:300]]))
    kept = exported("masked_lm").ask("serving_text", text_a=["a [MASK] " + "film " * 30])  # others than the blank
    assert kept["positions"].tolist() == [[2]]


# Requests that are not well-formed: the error names the input, the row and the remedy.

GOOD = {"input_ids": [[2, 5, 3]], "input_mask": [[1, 1, 1]], "segment_ids": [[0, 0, 0]]}
# task -> (signature, inputs, parts of the sentence)
REFUSED = {
    "classifier": [
        *(
            ("serving_default", {**GOOD, **change}, message)
            for change, message in (
                ({"input_ids": [2, 5, 3]}, "input_ids has 1 dimensions"),
                ({"segment_ids": [[0] * 3] * 2}, r"segment_ids .*\[2 3\].* input_ids .*\[1 3\]"),
                (dict.fromkeys(GOOD, np.zeros([0, 3], np.int32)), "input_ids has no row"),
                (dict.fromkeys(GOOD, np.zeros([2, 0], np.int32)), "rows of input_ids are empty"),
                ({name: [[1] * (POSITIONS + 1)] for name in GOOD}, f"{POSITIONS + 1} tokens.* {POSITIONS} at most"),
                ({"input_ids": [[2, CONFIG.vocab_size, 3]]}, f"row 0 of input_ids holds {CONFIG.vocab_size}.* 0 to 36"),
                ({"input_ids": [[2, -(2**31), 3]]}, "row 0 of input_ids holds -2147483648"),
                ({"input_mask": [[1, 2, 0]]}, "row 0 of input_mask holds 2"),
                ({"input_mask": [[0, 0, 0]]}, "row 0 has no token .*input_mask"),
                ({"segment_ids": [[0, 2, 0]]}, "row 0 of segment_ids holds 2.* 0 to 1"),
            )
        ),
        ("serving_text", {"text_a": ["good", b"b\xffd"]}, "row 1 of text_a is not valid UTF-8"),
        ("serving_text", {"text_a": np.zeros([0], object)}, "text_a has no row"),
        ("serving_text", {"text_a": [["good"]]}, "text_a has 2 dimensions"),
        ("serving_text_pair", {"text_a": ["a", "b"], "text_b": ["c"]}, r"text_b .*\[1\].* text_a .*\[2\]"),
        ("serving_text_pair", {"text_a": ["a"], "text_b": [b"\xff"]}, "row 0 of text_b is not valid UTF-8"),
    ],
    "squad": [
        ("serving_text", {"question": ["?"], "context": [" \t\n\u200b"]}, "row 0 of context is empty"),
        ("serving_text", {"question": ["?", ""], "context": ["a", "b"]}, "row 1 of question is empty"),
        ("serving_text", {"question": ["?"] * 2, "context": ["a", "film " * 2000]}, "row 1 takes .* 64 are allowed"),
    ],
    "ner": [("serving_text", {"text_a": ["a", "film " * 2000]}, "row 1 takes .* 64 are allowed")],
    # No answer passes for one to a blank that was misspelled or cut off.
    "masked_lm": [
        ("serving_text", {"text_a": ["a [MASK]", "the [mask]"]}, r"row 1 of text_a holds no \[MASK\].* capitals"),
        ("serving_text", {"text_a": ["a [MASK] " * 23]}, "row 0 of text_a .* beyond the 24 tokens"),
        ("serving_text_pair", {"text_a": ["a", "b"], "text_b": ["[MASK]", ""]}, "row 1 of text_a and text_b holds no"),
        ("serving_text_pair", {"text_a": ["a " * 30], "text_b": ["b " * 30 + "[MASK]"]}, "row 0 of .*text_b .* beyond"),
        ("serving_ids", {"input_ids": [[2, 4, 3], [2, 5, 3]]}, "row 1 of input_ids holds no .* 4"),
    ],
}


def error_of(made: Exported, signature: str, **inputs) -> str:
    """Runs a signature's function on tensors of any shape, as a client in C can; returns the error message."""
    function = made.saved.signatures[signature]
    names = [argument.name.partition(":")[0] for argument in function.inputs[: len(inputs)]]
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        tf.raw_ops.StatefulPartitionedCall(
            args=[*(tf.constant(inputs[name]) for name in names), *function.captured_inputs],
            Tout=[tensor.dtype for tensor in function.outputs],
            f=function.function_def.signature.name,
        )
    return raised.value.message


@pytest.mark.parametrize("task", REFUSED)
def test_bad_requests(exported, task):
    for signature, inputs, message in REFUSED[task]:
        assert re.search(message, error_of(exported(task), signature, **inputs)), message
