"""Requests that are not well-formed: the error names the input, the row and the remedy."""

from __future__ import annotations

import re

import numpy as np
import pytest
import text_operations
from export_cases import CONFIG, POSITIONS, assert_outputs, raw

from bert_tf2 import heads
from bert_tf2.pretraining import predict_masked
from bert_tf2.support.errors import UserError

text_operations.need()


GOOD = {"input_ids": [[2, 5, 3]], "input_mask": [[1, 1, 1]], "segment_ids": [[0, 0, 0]]}
BAD_IDS = [
    ({"input_ids": [2, 5, 3]}, "input_ids has 1 dimensions; a matrix is needed"),
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
    ({"input_ids": [[2, -(2**31), 3]]}, "row 0 of input_ids holds -2147483648"),
    ({"input_mask": [[1, 2, 0]]}, "row 0 of input_mask holds 2; it is 1 for tokens and 0 for padding"),
    ({"input_mask": [[0, 0, 0]]}, "row 0 has no token at its beginning: input_mask is 0 there"),
    ({"segment_ids": [[0, 2, 0]]}, "row 0 of segment_ids holds 2; the model knows segments 0 to 1"),
]


@pytest.mark.parametrize(("change", "message"), BAD_IDS)
def test_bad_ids(exported, change, message):
    made = exported("classifier")
    assert re.search(message, raw(made, "serving_default", **{**GOOD, **change}))


REFUSED_BLANKS = [
    ({"text_a": ["a [MASK]", "a film"]}, "row 1 of text_a holds no [MASK]; write [MASK], in capitals"),
    ({"text_a": ["the [mask]"]}, "row 0 of text_a holds no [MASK]"),
    (
        {"text_a": ["a [MASK] " * 23]},
        "row 0 of text_a has a [MASK] beyond the 24 tokens that are read; shorten the text",
    ),
    ({"text_a": ["a", "b"], "text_b": ["[MASK]", ""]}, "row 1 of text_a and text_b holds no [MASK]"),
    (
        {"text_a": ["a " * 30], "text_b": ["b " * 30 + "[MASK]"]},
        "row 0 of text_a and text_b has a [MASK] beyond the 24",
    ),
    ({"input_ids": [[2, 4, 3], [2, 5, 3]]}, "row 1 of input_ids holds no [MASK], whose id is 4"),
]


def test_nothing_without_a_mask_is_answered(exported):
    """By the server as by fill_mask: no answer passes for one to a blank that was misspelled or cut off."""
    made = exported("masked_lm")
    for inputs, message in REFUSED_BLANKS:
        signature = "serving_ids" if "input_ids" in inputs else "serving_text" + "_pair" * (len(inputs) - 1)
        assert message in raw(made, signature, **inputs)
    model, tokenizer = heads.PretrainingModel(CONFIG), made.tokenizer
    for text in ("a film", "the [mask]", "a [MASK] " * 23):
        with pytest.raises(UserError):
            next(predict_masked.predict(model, tokenizer, [text], max_seq_length=24))
    kept = made.ask("serving_text", text_a=["a [MASK] " + "film " * 30])  # other words may be cut off
    assert kept["positions"].tolist() == [[2]]


BAD_TEXTS = [
    (["good", " \t\n\u200b"], "row 1 of {} is empty: it holds nothing but blanks"),
    (["good", b"b\xffd"], "row 1 of {} is not valid UTF-8"),
    (np.zeros([0], object), "the batch is empty: {} has no row"),
    ([["good"]], "{} has 2 dimensions; a vector is needed"),
    ("good", "{} has 0 dimensions"),
]


@pytest.mark.parametrize(("texts", "message"), BAD_TEXTS)
def test_bad_texts(exported, texts, message):
    assert message.format("text_a") in raw(exported("classifier"), "serving_text", text_a=texts)
    found = raw(
        exported("squad"), "serving_text", context=texts, question=np.full(np.array(texts, object).shape, b"good")
    )
    assert message.format("context") in found or message.format("question") in found


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (["a", "b"], ["c"], "text_b has the shape [1], but text_a the shape [2]"),
        (["", "b"], ["c", ""], "row 0 of text_a is empty"),
        (["a"], [b"\xff"], "row 0 of text_b is not valid UTF-8"),
    ],
)
def test_bad_pairs(exported, first, second, message):
    assert message in raw(exported("classifier"), "serving_text_pair", text_a=first, text_b=second)


def test_a_text_of_a_megabyte_is_cut(exported):
    made = exported("classifier")
    text = "good film " * 100_000
    assert_outputs(made.ask("serving_text", text_a=[text]), made.ask("serving_text", text_a=[text[:300]]))
