"""Exported models in a program without Python: tests/c/saved_model_client.c, which loads them as TF Serving does."""

from __future__ import annotations

import re
from typing import Any

import c_client
import model_server
import numpy as np
import pytest
import small_exports
import tensorflow as tf
import toy_data
from c_client import Answer, Request

from bert_tf2 import tokenization

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not c_client.text_libraries(), reason="tensorflow-text is not installed"),
]

TASKS = ["features", "classifier", "squad", "ner", "masked_lm"]
INVALID_ARGUMENT = tf.errors.INVALID_ARGUMENT
TEXTS = [
    "a lovely [MASK] in Paris , with Ann",
    "BAD [MASK]",
    "[MASK] " + "Bob lives in Oslo now . " * 9,
    "the caf\N{COMBINING ACUTE ACCENT}e [MASK]?",
]


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> c_client.CClient:
    return c_client.CClient(tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Makes the export of a task when it is asked for first."""
    made: dict[str, small_exports.Export] = {}

    def get(task: str) -> small_exports.Export:
        if task not in made:
            made[task] = small_exports.export_small(task, tmp_path_factory.mktemp(task))
        return made[task]

    return get


def ids_of(*texts: str) -> dict[str, np.ndarray]:
    """[CLS] text [SEP] for each, in rows of one length."""
    vocab = {entry: number for number, entry in enumerate(toy_data.VOCAB)}
    rows = [["[CLS]", *text.split(), "[SEP]"] for text in texts]
    length = max(map(len, rows))
    ids = np.array([[vocab[word] for word in row + ["[PAD]"] * (length - len(row))] for row in rows], np.int32)
    segments = np.array([[int(1 < place < len(row)) for place in range(length)] for row in rows], np.int32)
    return {"input_ids": ids, "input_mask": (ids > 0).astype(np.int32), "segment_ids": segments}


IDS = ids_of(
    "a lovely [MASK] film", "bad [MASK]", "ann was in [MASK] with [MASK] and bob now where is [SEP] the book ?"
)


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


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, Any]) -> None:
    assert {*found} >= {*wanted}
    for name, values in wanted.items():
        values = np.asarray(values)
        assert found[name].shape == values.shape, name
        if values.dtype.kind == "f":
            np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], values, err_msg=name)


# Answers.


@pytest.mark.parametrize("task", [*TASKS, "regression"])
def test_answers_are_those_of_python(client, exports, task):
    path = exports(task).path
    requests = good_requests(path)
    assert {request.signature for request in requests} == {*c_client.signatures(path)} - {"__saved_model_init_op"}
    server = model_server.Model(path)
    for request, answer in zip(requests, client.answer(path, requests), strict=True):
        assert (answer.code, answer.message) == (0, "")
        wanted = {name: value.numpy() for name, value in server.predict(request.signature, request.inputs).items()}
        assert_same(answer.outputs, wanted)


def outputs_of_the_checkpoint(task: str, model) -> dict[str, np.ndarray]:
    """What the model of the scripts says to IDS, for the outputs that are there at every token or once a row."""
    mask = IDS["input_mask"]
    if task == "features":
        output = model.bert(*IDS.values())
        sequence = output.sequence_output.numpy() * mask[..., np.newaxis]
        mean = sequence.sum(1) / mask.sum(1, keepdims=True)
        return {"sequence_output": sequence, "pooled_output": output.pooled_output.numpy(), "mean_pooled": mean}
    if task == "masked_lm":
        positions = np.array([[3, 0, 0], [2, 0, 0], [4, 6, 0]], np.int32)
        scores = tf.nn.softmax(model({**IDS, "masked_lm_positions": positions}))
        best, ids = (part.numpy()[[0, 1, 2, 2], [0, 0, 0, 1]] for part in tf.math.top_k(scores, 3))
        return {"best": best, "words": np.array([word.encode() for word in toy_data.VOCAB], object)[ids]}
    if task == "squad":
        start, end = (np.where(mask, logits.numpy(), np.float32(-10000)) for logits in model(IDS))
        return {"start_logits": start, "end_logits": end}
    if task == "regression":
        return {"value": model(IDS).numpy()[:, 0]}
    probabilities = tf.nn.softmax(model(IDS)).numpy()
    labels = np.array([label.encode() for label in small_exports.LABELS[task]], object)[probabilities.argmax(-1)]
    if task == "classifier":
        return {"probabilities": probabilities, "label": labels}
    return {"probability": probabilities.max(-1) * mask, "label": np.where(mask, labels, b"")}


@pytest.mark.parametrize("task", [*TASKS, "regression"])
def test_answers_are_those_of_the_checkpoint(client, exports, task):
    path, model = exports(task)
    (answer,) = client.answer(path, [Request("serving_default", IDS)])
    found, wanted = answer.outputs, outputs_of_the_checkpoint(task, model)
    if task == "masked_lm":
        assert found["positions"].tolist() == [[3, -1], [2, -1], [4, 6]]
        rows = [0, 1, 2, 2], [0, 0, 0, 1]
        found = {"best": found["scores"][rows], "words": found["tokens"][rows]}
    assert_same(found, wanted)


@pytest.mark.parametrize("task", ["features", "classifier"])
def test_texts_are_split_as_by_the_scripts(client, exports, task):
    """A text gives the answer of the ids that the scripts make of it."""
    path = exports(task).path
    tokenizer = tokenization.FullTokenizer(str(small_exports.pathlib.Path(path) / "assets" / "vocab.txt"))
    texts = ["Lovely film, PLAYING now.", "unknown words?"]
    rows = [["[CLS]", *tokenizer.tokenize(text), "[SEP]"] for text in texts]
    assert rows[0][1:6] == ["lovely", "film", "[UNK]", "play", "##ing"]
    requests = [Request("serving_text", {"text_a": [text]}) for text in texts]
    requests += [Request("serving_ids", {"input_ids": [tokenizer.convert_tokens_to_ids(row)]}) for row in rows]
    answers = client.answer(path, requests)
    for row, of_text, of_ids in zip(rows, answers[:2], answers[2:], strict=True):
        assert_same(of_text.outputs, of_ids.outputs)
        if task == "features":
            assert [token.decode() for token in of_text.outputs["tokens"][0]] == row


def test_a_megabyte_of_text_is_cut_like_any_other(client, exports):
    path = exports("classifier").path
    short, long = "Bob lives in Oslo now . " * 9, "Bob lives in Oslo now . " * 45_000
    assert len(long) > 2**20
    answers = client.answer(path, [Request("serving_text", {"text_a": [text]}) for text in (short, long)])
    assert answers[1].code == 0
    assert_same(answers[1].outputs, answers[0].outputs)


def test_ids_need_no_operations_of_tensorflow_text(client, tmp_path):
    """An export without text signatures, in a process that has none of these operations."""
    path, model = small_exports.export_small("classifier", tmp_path, text_signatures=False)
    assert {*c_client.signatures(path)} - {"__saved_model_init_op"} == {"serving_default", "serving_ids"}
    (answer,) = client.answer(path, [Request("serving_default", IDS)], text=False)
    assert_same(answer.outputs, outputs_of_the_checkpoint("classifier", model))


def merged(arrays: list[np.ndarray]) -> np.ndarray:
    """One batch of the tensors of several requests, as TensorFlow Serving makes it with pad_variable_length_inputs:
    what is shorter is filled with its own first value (tensorflow_serving/batching/batching_util.cc)."""
    length = max(array.shape[1] for array in arrays)
    filled = [np.full([len(array), length], array.flat[0]) for array in arrays]
    for array, target in zip(arrays, filled, strict=True):
        target[:, : array.shape[1]] = array
    return np.concatenate(filled)


@pytest.mark.parametrize("task", TASKS)
def test_requests_that_the_server_puts_together_keep_their_answers(client, exports, task):
    path = exports(task).path
    parts = [
        ids_of("a [MASK] film"),
        ids_of("bad [MASK]", "ann was in [MASK] with [MASK] and bob [SEP] the book ?"),
        ids_of("good [MASK] ."),
    ]
    for names, signature in ((("input_ids",), "serving_ids"), (tuple(IDS), "serving_default")):
        requests = [Request(signature, {name: part[name] for name in names}) for part in parts]
        batch = Request(signature, {name: merged([part[name] for part in parts]) for name in names})
        together, *alone = client.answer(path, [batch, *requests])
        begin = 0
        for answer in alone:
            for name, values in answer.outputs.items():
                rows = together.outputs[name][begin : begin + len(values)]
                own = rows[tuple(slice(size) for size in values.shape)]
                assert_same({name: own}, {name: values})
                rest = rows[:, values.shape[1] :] if values.ndim > 1 else rows[:0]
                assert {*rest.ravel().tolist()} <= {b"", -1, 0, -10000}, name
            begin += len(values)
        assert begin == len(together.outputs[name])


# Bad requests.

BAD_IDS = {
    "one dimension": ({"input_ids": [2, 5, 3]}, "dimensions"),
    "three dimensions": ({"input_ids": [[[2, 5, 3]]]}, "dimensions"),
    "no dimension": ({"input_ids": 2}, "dimensions"),
    "no row": ({"input_ids": np.zeros([0, 4], np.int32)}, "empty"),
    "rows of nothing": ({"input_ids": np.zeros([2, 0], np.int32)}, "empty"),
    "an id behind the vocabulary": ({"input_ids": [[2, 5, 3], [2, len(toy_data.VOCAB), 3]]}, "row 1 .*vocabulary"),
    "a huge id": ({"input_ids": [[2, 2**31 - 1, 3]]}, "row 0 .*vocabulary"),
    "a negative id": ({"input_ids": [[2, -(2**31), 3]]}, "row 0 .*vocabulary"),
    "too long": ({"input_ids": [[5] * (small_exports.POSITIONS + 1)]}, f"{small_exports.POSITIONS} at most"),
    "a row without a token": ({"input_ids": [[2, 5, 3], [0, 0, 0]]}, "row 1 .*no token"),
    "another type": ({"input_ids": [[2.0, 5.0]]}, "int32"),
}
BAD_ROWS = {
    "a mask of another shape": ({"input_mask": IDS["input_mask"][:, :-1]}, "input_mask has the shape"),
    "segments of another batch": ({"segment_ids": IDS["segment_ids"][:-1]}, "segment_ids has the shape"),
    "a mask of 2": ({"input_mask": IDS["input_mask"] * 2}, "row 0 of input_mask"),
    "a mask of nothing": ({"input_mask": IDS["input_mask"] * 0}, "row 0 .*no token"),
    "a third segment": ({"segment_ids": IDS["segment_ids"] + 1}, "segment"),
}
BAD_TEXTS = {
    "an empty text": (["good", ""], "row 1 .*empty"),
    "blanks": (["  \t\n"], "row 0 .*empty"),
    "not UTF-8": (["good", b"b\xffd"], "row 1 .*UTF-8"),
    "half a character": ([b"caf\xc3"], "row 0 .*UTF-8"),
    "5 MB": (["good", "bad " * 1_250_000], "row 1 .*bytes"),
    "no text": (np.zeros([0], object), "empty"),
    "two dimensions": ([["good"]], "dimensions"),
    "no dimension": ("good", "dimensions"),
    "another type": ([1, 2], "string"),
}


def bad_requests(model: str) -> list[tuple[Request, str]]:
    found = c_client.signatures(model)
    names = list(found["serving_text"].inputs)
    cases = [(Request("serving_ids", inputs), what) for inputs, what in BAD_IDS.values()]
    cases += [(Request("serving_default", {**IDS, **inputs}), what) for inputs, what in BAD_ROWS.values()]
    for texts, what in BAD_TEXTS.values():
        texts = np.array(texts, object)
        good = np.full(texts.shape, "good", object)
        cases += [(Request("serving_text", {**dict.fromkeys(names, good), name: texts}), what) for name in names]
    if "serving_text_pair" in found:
        cases.append((Request("serving_text_pair", {"text_a": ["a", "b"], "text_b": ["c"]}), "shape"))
        cases.append((Request("serving_text_pair", {"text_a": ["a"], "text_b": [b"\xff"]}), "row 0 of text_b .*UTF-8"))
        cases.append((Request("serving_text_pair", {"text_a": [""], "text_b": ["b"]}), "row 0 of text_a is empty"))
    if len(names) > 1:
        cases.append((Request("serving_text", {names[0]: ["a", "b"], names[1]: ["c"]}), "shape"))
    return cases


@pytest.mark.parametrize("task", TASKS)
def test_bad_requests_get_a_sentence(client, exports, task):
    """And the next good request gets its answer."""
    path = exports(task).path
    cases = bad_requests(path)
    good = good_requests(path)[-1]
    answers = client.answer(path, [good, *(request for case, _ in cases for request in (case, good))])
    for (request, what), answer in zip(cases, answers[1::2], strict=True):
        assert answer.code == INVALID_ARGUMENT, (request, answer)
        assert re.search(what, answer.message), (request.signature, what, answer.message)
        assert not answer.outputs
    for answer in answers[::2]:
        assert answer.code == 0
        assert_same(answer.outputs, answers[0].outputs)
    for number, answer in enumerate(answers):
        told = f"request {number}: code {INVALID_ARGUMENT}: {answer.message}\n"
        assert (told in client.printed) == (number % 2 == 1)


# Many requests.


@pytest.mark.soak
def test_ten_thousand_requests_from_four_threads(client, exports):
    """Good and bad ones in turn. Memory is looked at after the first thousand and at the end; the program's source says
    how. What is allocated grows by 0.05 to 0.1 %; a leak of 50 bytes a request would make it 0.6 %."""
    path = exports("classifier").path
    requests = good_requests(path) + [request for request, _ in bad_requests(path)[3:8]]
    expected = client.answer(path, requests)
    status, printed = client.soak(path, requests, expected, 4, 1_000, 10_000)
    assert status == 0, printed
    assert printed.endswith("10000 requests from 4 threads, 0 wrong answers\n")
    pattern = r"after (\d+) requests: resident \d+ KiB, trimmed (\d+) KiB, allocated (\d+) bytes"
    before, after = (tuple(map(int, found)) for found in re.findall(pattern, printed))
    assert (before[0], after[0]) == (1_000, 10_000)
    assert after[1] <= 1.02 * before[1], printed
    assert after[2] <= 1.005 * before[2], printed


def test_the_soak_sees_a_wrong_answer(client, exports):
    path = exports("classifier").path
    requests = good_requests(path)[:1] * 4
    right = client.answer(path, requests[:1])[0]
    label = {**right.outputs, "label": right.outputs["label"] + b"!"}
    number = {**right.outputs, "probabilities": right.outputs["probabilities"] + np.float32(2e-5)}
    wrong = [Answer(INVALID_ARGUMENT, "", {}), Answer(0, "", label), Answer(0, "", number)]
    status, printed = client.soak(path, requests, [right, *wrong], 4, 10, 20)
    assert status == 1
    assert printed.endswith("20 requests from 4 threads, 15 wrong answers\n")
