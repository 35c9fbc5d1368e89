"""Requests that are not well-formed: the error names the input, the row and the remedy."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from export_cases import CONFIG, POSITIONS, assert_outputs, raw

from bert_tf2.export.options import TASKS

pytest.importorskip("tensorflow_text")


GOOD = {"input_ids": [[2, 5, 3]], "input_mask": [[1, 1, 1]], "segment_ids": [[0, 0, 0]]}
BAD_IDS = [
    ({"input_ids": [2, 5, 3]}, "input_ids has 1 dimensions; a matrix is needed"),
    ({"input_ids": 2}, "input_ids has 0 dimensions"),
    ({"input_ids": [[[2, 5, 3]]]}, "input_ids has 3 dimensions"),
    ({"input_mask": [1, 1, 1]}, "input_mask has 1 dimensions"),
    ({"segment_ids": [[[0, 0, 0]]]}, "segment_ids has 3 dimensions"),
    ({"input_mask": [[1, 1]]}, r"input_mask has the shape \[1 2\], but input_ids the shape \[1 3\]"),
    ({"segment_ids": [[0] * 3] * 2}, r"segment_ids has the shape \[2 3\], but input_ids the shape \[1 3\]"),
    (dict.fromkeys(GOOD, np.zeros([0, 3], np.int32)), "the batch is empty: input_ids has no row"),
    (dict.fromkeys(GOOD, np.zeros([2, 0], np.int32)), "the rows of input_ids are empty; each needs a token"),
    (
        {name: [[1] * (POSITIONS + 1)] for name in GOOD},
        rf"input_ids hold {POSITIONS + 1} tokens; the model reads {POSITIONS} at most",
    ),
    ({"input_ids": [[2, CONFIG.vocab_size, 3]]}, rf"row 0 of input_ids holds {CONFIG.vocab_size}; the ids .* 0 to 36"),
    ({"input_ids": [[2, -1, 3]]}, "row 0 of input_ids holds -1"),
    ({"input_ids": [[2, -(2**31), 3]]}, "row 0 of input_ids holds -2147483648"),
    ({"input_mask": [[1, 2, 0]]}, "row 0 of input_mask holds 2; it is 1 for tokens and 0 for padding"),
    ({"input_mask": [[1, -1, 0]]}, "row 0 of input_mask holds -1"),
    ({"input_mask": [[0, 0, 0]]}, "row 0 has no token at its beginning: input_mask is 0 there"),
    ({"segment_ids": [[0, 2, 0]]}, "row 0 of segment_ids holds 2; the model knows segments 0 to 1"),
]


@pytest.mark.parametrize(("change", "message"), BAD_IDS)
def test_bad_ids(exported, change, message):
    made = exported("classifier")
    assert re.search(message, raw(made, "serving_default", **{**GOOD, **change}))


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_every_task_turns_bad_ids_away(exported, task):
    made = exported(task)
    assert "input_ids has 1 dimensions" in raw(made, "serving_ids", input_ids=[2, 3])
    assert "row 1 of input_ids holds 99" in raw(made, "serving_ids", input_ids=[[2, 3], [2, 99]])
    assert "row 1 has no token at its beginning: it begins with [PAD]" in raw(
        made, "serving_ids", input_ids=[[2, 3], [0, 0]]
    )
    assert "row 0 of input_ids holds 37" in raw(made, "serving_default", **{**GOOD, "input_ids": [[2, 37, 3]]})


BAD_TEXTS = [
    (["a", ""], "row 1 of {} is empty"),
    (["a", " \t\u200b"], "row 1 of {} is empty: it holds nothing but blanks"),
    (["a", b"caf\xe9"], "row 1 of {} is not valid UTF-8"),
    (["a", "x" * (4 * 2**20 + 1)], "row 1 of {} has 4194305 bytes; 4194304 are allowed"),
    (tf.constant([], tf.string), "the batch is empty: {} has no row"),
    ([["a"]], "{} has 2 dimensions; a vector is needed"),
    ("a", "{} has 0 dimensions"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("texts", "message"), BAD_TEXTS)
@pytest.mark.parametrize("task", TASKS)
def test_bad_texts(exported, task, texts, message):
    made, texts = exported(task), tf.constant(texts)
    if task != "squad":
        assert message.format("text_a") in raw(made, "serving_text", text_a=texts)
        return
    as_good = tf.fill(tf.shape(texts), "film")
    assert message.format("question") in raw(made, "serving_text", question=texts, context=as_good)
    if texts.shape == [2]:  # otherwise it is the question again that is named
        assert message.format("context") in raw(made, "serving_text", question=as_good, context=texts)


def test_pairs_must_be_pairs(exported):
    message = raw(exported("classifier"), "serving_text_pair", text_a=["a", "b"], text_b=["c"])
    assert "text_b has the shape [1], but text_a the shape [2]" in message
    message = raw(exported("classifier"), "serving_text_pair", text_a=["", "b"], text_b=["c", ""])
    assert "row 0 of text_a is empty" in message


def test_a_text_of_a_megabyte_is_cut(exported):
    made = exported("classifier")
    text = "good film " * 100_000
    assert_outputs(made.ask("serving_text", text_a=[text]), made.ask("serving_text", text_a=[text[:300]]))
