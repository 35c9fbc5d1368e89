"""Models that have answered are copied, pickled and dumped like new ones; several questions are answered in batches."""

from __future__ import annotations

import copy
import io
import pickle

import joblib
import numpy as np
import pytest
import tensorflow as tf
import toy_data
from test_answering import save

import bert_tf2
from bert_tf2 import heads
from bert_tf2.weights.task_file import LabelMap

SIZES = {"max_seq_length": 24, "max_query_length": 8, "doc_stride": 6}


def dumped(model):
    stream = io.BytesIO()
    joblib.dump(model, stream)
    stream.seek(0)
    return joblib.load(stream)


WAYS = {"pickle": lambda model: pickle.loads(pickle.dumps(model)), "deepcopy": copy.deepcopy, "joblib": dumped}
PARIS = ("who lives ?", "ann lives in paris")
LOADED = {
    "classify": (
        lambda: heads.ClassifierModel(toy_data.config(), 2),
        LabelMap("cola", ("0", "1"), False),
        lambda bert: [*bert.classify("the film").values()],
    ),
    "tag": (
        lambda: heads.TaggingModel(toy_data.config(), 2),
        LabelMap("ner", ("O", "B-A"), False),
        lambda bert: bert.tag(["the film"]),
    ),
    "answer": (
        lambda: heads.SpanModel(toy_data.config()),
        None,
        lambda bert: bert.answer(*PARIS, **SIZES).probability,
    ),
    "fill_mask": (
        lambda: heads.PretrainingModel(toy_data.config()),
        None,
        lambda bert: bert.fill_mask("the [MASK]").filled,
    ),
    "embed": (lambda: heads.PretrainingModel(toy_data.config()), None, lambda bert: bert.embed("the film")),
}


@pytest.mark.parametrize("method", LOADED)
def test_a_loaded_model_that_has_answered(tmp_path, method):
    make, labels, ask = LOADED[method]
    save(tmp_path, make(), labels)
    bert = bert_tf2.load(tmp_path)
    wanted = ask(bert)
    for way in WAYS.values():
        np.testing.assert_array_equal(ask(way(bert)), wanted)


def test_questions_are_answered_in_batches(tmp_path):
    """The forward passes have batch_size rows; the answers are those of each question by itself."""
    save(tmp_path, heads.SpanModel(toy_data.config()))
    bert, rows = bert_tf2.load(tmp_path), []
    call = bert.model.call

    def counted(batch, **kwargs):
        tf.numpy_function(lambda ids: rows.append(len(ids)), [batch["input_ids"]], [])
        return call(batch, **kwargs)

    bert.model.call = counted
    asked = [("who lives ?", "ann lives in paris . " * (number % 4 + 1)) for number in range(30)]
    found = bert.answer(*map(list, zip(*asked, strict=True)), batch_size=16, **SIZES)
    assert len(rows) < 10 and max(rows) == 16
    for number in range(8):
        alone = bert.answer(*asked[number], **SIZES)
        assert found[number].text == alone.text
        assert found[number].probability == pytest.approx(alone.probability, abs=1e-5)
    assert bert.answer([], []) == []


def test_an_answerer_predicts_in_batches(tmp_path):
    pytest.importorskip("tensorflow_text")
    save(tmp_path, heads.SpanModel(toy_data.config()))
    reader = bert_tf2.answerer(tmp_path, max_seq_length=24)
    found = reader.predict([PARIS, ("where ?", "in paris")] * 3, batch_size=4)
    assert [answer.text for answer in found] == [
        reader.predict([pair])[0].text for pair in (PARIS, ("where ?", "in paris"))
    ] * 3
    assert reader.predict([]) == []
