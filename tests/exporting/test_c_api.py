"""Exported models in a program without Python: tests/c/saved_model_client.c, which loads them as TF Serving does.

What the signatures compute is the content of test_signatures.py; here it is the same in C, and so is what they refuse.
"""

from __future__ import annotations

import re

import c_client
import pytest
import tensorflow as tf
from c_client import Request
from export_cases import MAKERS, assert_outputs, expected_outputs, make_options, rows

from bert_tf2.exporting.options import TASKS
from bert_tf2.exporting.run import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not c_client.text_libraries(), reason="tensorflow-text is not installed"),
]

INVALID_ARGUMENT = tf.errors.INVALID_ARGUMENT
IDS = rows()
TEXTS = [
    "a lovely [MASK] in Paris , with Ann",
    "BAD [MASK]",
    "[MASK] " + "Bob lives in Oslo now . " * 9,
    "the caf\N{COMBINING ACUTE ACCENT}e [MASK]?",
]


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> c_client.CClient:
    return c_client.CClient(tmp_path_factory.mktemp("program"))


def good_requests(model: str) -> list[Request]:
    """Every signature, with mixed lengths in a batch and with a single row."""
    requests = [Request("serving_default", IDS), Request("serving_ids", {"input_ids": IDS["input_ids"]})]
    requests.append(Request("serving_default", {name: value[1:2, :4] for name, value in IDS.items()}))
    found = c_client.signatures(model)
    for texts in (TEXTS, TEXTS[:1], [text.encode() for text in TEXTS[2:]]):
        requests.append(Request("serving_text", dict.fromkeys(found["serving_text"].inputs, texts)))
        if "serving_text_pair" in found:
            requests.append(Request("serving_text_pair", {"text_a": texts, "text_b": ["", *TEXTS[1 : len(texts)]]}))
    return requests


# Answers.


@pytest.mark.parametrize("task", MAKERS)
def test_answers_are_those_of_python(client, exported, task):
    made = exported(task)
    path = made.folder
    requests = good_requests(path)
    assert {request.signature for request in requests} == {*c_client.signatures(path)} - {"__saved_model_init_op"}
    for request, answer in zip(requests, client.answer(path, requests), strict=True):
        assert (answer.code, answer.message) == (0, "")
        assert_outputs(answer.outputs, made.ask(request.signature, **request.inputs))


def test_ids_need_no_operations_of_tensorflow_text(client, exported, tmp_path):
    """An export without text signatures, in a process that has none of these operations."""
    made = exported("classifier")
    path = run(make_options(tmp_path, "classifier", made.weights, text_signatures=False))
    assert {*c_client.signatures(path)} - {"__saved_model_init_op"} == {"serving_default", "serving_ids"}
    (answer,) = client.answer(path, [Request("serving_default", IDS)], text=False)
    assert_outputs(answer.outputs, expected_outputs(made, IDS))


@pytest.mark.parametrize("task", TASKS)
def test_bad_requests_get_a_sentence(client, exported, task):
    """And the next good request gets its answer; test_request_checks has what is bad."""
    path = exported(task).folder
    good = good_requests(path)[-1]
    names = list(c_client.signatures(path)["serving_text"].inputs)
    bad = [
        Request("serving_ids", {"input_ids": [[2, 2**31 - 1, 3]]}),
        Request("serving_default", {**IDS, "segment_ids": IDS["segment_ids"] + 1}),
        Request("serving_text", {name: [["good"]] for name in names}),
        Request("serving_text", {name: ["good", ""] for name in names}),
    ]
    told = ["row 0 .*vocabulary", "segment", "has 2 dimensions", "row 1 of .* is empty"]
    answers = client.answer(path, [good, *(request for each in bad for request in (each, good))])
    for what, answer in zip(told, answers[1::2], strict=True):
        assert answer.code == INVALID_ARGUMENT and re.search(what, answer.message) and not answer.outputs
        assert f": code {INVALID_ARGUMENT}: {answer.message}\n" in client.printed
    for answer in answers[::2]:
        assert answer.code == 0
        assert_outputs(answer.outputs, answers[0].outputs)
