"""Wrong arguments of the calls that take texts: each is a UserError of one line that names the argument or row."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from refused import message_of
from test_containers import LABELS, PAIRS, SENTENCES, TEXTS, endless

import bert_tf2

pytest.importorskip("tensorflow_text")

NAN, INF = float("nan"), float("inf")
QUIET = {"verbose": 0}
THREE = {"a": TEXTS, "b": TEXTS, "c": TEXTS}
GOOD = (TEXTS, LABELS)


def data(*columns, size=3):
    return tf.data.Dataset.from_tensor_slices(columns).batch(size)


def labeled(y):
    """Batches whose labels are made in the graph."""
    return data(*GOOD).map(lambda x, _: (x, y))


# model -> (method, arguments, keywords, a word of the message)
WRONG = {
    "films": [
        *(("fit", GOOD, {"class_weight": {"good": wrong}}, "class_weight") for wrong in (NAN, INF, "much")),
        ("fit", GOOD, {"class_weight": {"maybe": 1.0}}, "'maybe'"),
        *(("fit", GOOD, {"class_weight": wrong}, "dict") for wrong in ([1.0, 2.0], "auto")),
        *((method, GOOD, {"batch_size": 0}, "batch_size=0") for method in ("fit", "evaluate")),
        ("predict", (TEXTS,), {"batch_size": 0}, "batch_size=0"),
        ("fit", GOOD, {"validation_split": 0.999}, "none remain"),
        ("fit", GOOD, {"epochs": 0}, "epochs=0"),
        ("fit", GOOD, {"sample_weight": [1, -1, 1]}, "sample_weight: row 2"),
        ("fit", GOOD, {"validation_data": "texts"}, "validation_data"),
        ("fit", GOOD, {"validation_data": endless(*GOOD)}, "validation_steps"),
        ("fit", GOOD, {"validation_data": GOOD, "validation_freq": 0}, "validation_freq=0"),
        *(("fit", GOOD, {"callbacks": wrong}, "callbacks") for wrong in (keras.callbacks.CSVLogger, [None], "a")),
        ("fit", GOOD, {"callbacks": keras.callbacks.ReduceLROnPlateau("loss")}, "AdamWeightDecay"),
        *(("compile", (wrong,), {}, f"optimizer={wrong}") for wrong in (True, NAN, -1.0)),
        *(("compile", (wrong,), {}, "optimizer=") for wrong in ("2e-5", keras.optimizers.Adam)),
        ("compile", (keras.optimizers.schedules.CosineDecay(1e-3, 10),), {}, "AdamWeightDecay(schedule)"),
        (
            "compile",
            (1e-3, "sparse_categorical_crossentropy", [keras.metrics.F1Score()]),
            {},
            "categorical_crossentropy",
        ),
        ("evaluate", GOOD, {"steps": 0}, "steps=0"),
        *(("predict", (wrong,), {}, "give a list") for wrong in (tf.constant("good"), np.array("good"))),
        ("fit", ({*TEXTS}, LABELS), {}, "give a list"),
        ("predict", ([1.5],), {}, "text 1: 1.5"),
        ("predict", (THREE,), {}, "give its column"),
        ("predict", ((("a", "b"), ("c", "d")),), {}, "two tuples"),
        ("fit", (["good", None, NAN], LABELS), {}, "missing (rows 2, 3)"),
        ("fit", (["good", "", " "], LABELS), {}, "empty (rows 2, 3)"),
        ("fit", ((TEXTS, TEXTS[:2]), LABELS), {}, "3 first texts of pairs, but 2"),
        ("fit", ([], []), {}, "x: has no texts"),
        ("fit", (TEXTS,), {}, "y: is missing"),
        ("fit", (TEXTS, LABELS[:2]), {}, "y: 2 rows for 3 texts"),
        ("fit", (TEXTS, ["good", "", None]), {}, "labels are empty (rows 2, 3)"),
        *(("fit", (TEXTS, [wrong] * 3), {}, f"'{wrong}' is none of the labels bad, good") for wrong in ("maybe", 2)),
        ("fit", (TEXTS[:1], [["bad", "good"]]), {}, "multi_label=True"),
        ("fit", (TEXTS, [[0.45, 0.55]] * 3), {}, "kl_divergence"),
        ("fit", (endless(*GOOD), LABELS), {}, "y: x has batches"),
        ("fit", (endless(*GOOD),), {}, "steps_per_epoch"),
        (
            "fit",
            (data(*GOOD).repeat(),),
            {"class_weight": "balanced", "steps_per_epoch": 1},
            "class_weight={'bad': 1.0",
        ),
        ("fit", (iter([("a", "good")]),), {"steps_per_epoch": 1}, "each element is a batch"),
        ("fit", (iter([]),), {"steps_per_epoch": 1}, "without batches"),
        ("fit", (data(*GOOD).unbatch(),), {}, "dataset.batch(32)"),
        ("evaluate", (labeled(["schön"] * 3),), QUIET, "'schön' is none of the labels"),
        ("evaluate", (data(["good", ""], ["good", "bad"]),), QUIET, "text 2"),
        *(("evaluate", (data(*GOOD, [1.0, wrong, 1.0]),), QUIET, "sample_weight") for wrong in (-1.0, NAN)),
        *(("save_folder", (wrong,), {}, f"output_dir={wrong!r}") for wrong in ("", None)),
        ("export", (None,), {}, "filepath=None"),
        ("save", ("films.h5",), {}, "films.h5"),
    ],
    "topics": [
        *(("fit", (TEXTS, [[0, 1, 0], [value, 0, 0], [0, 0, 0]]), {}, "y: row 2") for value in (2, -1, 0.5, NAN)),
        ("evaluate", (data(TEXTS, [[2, 0, 0]] * 3),), QUIET, "1 or 0"),
        ("fit", (TEXTS, {"a": [1, 0, 1], "b": [0, 0, 0], "d": [0, 0, 0]}), {}, "'d'"),
    ],
    "scores": [
        *(("fit", (TEXTS, [1, 2, wrong]), {}, "numbers") for wrong in (10**400, "much")),
        ("fit", (TEXTS, np.ones([3, 2])), {}, "one number"),
        ("fit", (TEXTS, [1.0, 2.0, 3.0]), {"class_weight": "balanced"}, "sample_weight"),
        ("evaluate", (data(TEXTS, np.ones([3, 2])),), QUIET, "one number"),
        ("evaluate", (data(TEXTS, [1.0, NAN, 2.0]),), QUIET, "nan"),
    ],
    "names": [
        ("predict", (SENTENCES,), {"batch_size": 0}, "batch_size=0"),
        ("compile", (), {"metrics": [keras.metrics.F1Score()]}, "F1Score"),
        ("fit", (["ann", "", " "], ["O"] * 3), {}, "empty (rows 2, 3)"),
        ("fit", ([["a", 1]], [["O", "O"]]), {}, "sentence 1"),
        ("fit", ([["a"]], [["X"]]), {}, "'X' is none of the labels O, NAME"),
        ("fit", ([["a", "b"]], ["O"]), {}, "2 words, but 1 tags"),
        ("fit", (["ann"], [[[0.5, 0.5]]]), {}, "one-hot"),
        *(("fit", (["ann"], [wrong]), {}, "sentence 1") for wrong in ([{"O"}], NAN)),
        ("fit", (data(SENTENCES, ["O"] * 3).repeat(),), {}, "endless"),
        ("fit", (data(SENTENCES, ["O"] * 3).unbatch(),), {}, "dataset.batch(32)"),
        ("fit", (data(["ann", "lives"], ["O", "O"]),), {}, "ragged_batch(32)"),
        ("__call__", (SENTENCES,), {}, "predict"),
    ],
    "reader": [
        ("predict", (PAIRS,), {"batch_size": 0}, "batch_size=0"),
        ("predict", (["where"],), {}, "(question, paragraph)"),
        ("fit", (PAIRS, "rome"), {}, "y: 1 rows for 3 texts"),
        ("fit", (PAIRS[:1], ["Paris"]), {}, "question 1"),
        *(("fit", (PAIRS[:1], [wrong]), {}, "y: question 1") for wrong in (("rome", NAN), None)),
        ("fit", (PAIRS[:1], [("rome", np.int64(9))]), {}, "question 0"),
        ("fit", (PAIRS[:1], [""]), {}, "may_be_missing"),
        ("fit", (PAIRS[:1], ["rome"]), {"class_weight": {0: 1}}, "sample_weight"),
        ("fit", ([("where ?", "")], ["rome"]), {}, "empty (row 1)"),
    ],
}


@pytest.mark.parametrize("name", WRONG)
def test_calls_of_a_model(name, request):
    model = request.getfixturevalue(name)
    for method, given, how, words in WRONG[name]:
        assert words in message_of(getattr(model, method), *given, **how), (method, given, how)


def test_calls_of_a_folder(opened, encoder, films, names):
    """Of what `load` returns, with ids in place of texts, and of the classes themselves."""
    bert, words, reader = opened["films"], opened["words"], opened["reader"]
    ids = bert.tokenize(TEXTS)
    named = {"input_ids": ids["input_ids"], "attention_mask": ids["input_mask"]}
    blank = {"texts": ["[MASK]"]}
    for call, part in (
        *((lambda w=w: words.embed(**blank | w), next(iter(w))) for w in (
            {"batch_size": "8"}, {"batch_size": 0}, {"max_seq_length": 2}, {"max_seq_length": 65}, {"pooling": "sum"},
            {"layers": 2}, {"layers": []}, {"layers": None}, {"texts": None}, {"texts": {"a": "hello"}},
        )),
        *((lambda w=w: words.fill_mask(**blank | w), next(iter(w))) for w in (
            {"texts": b"hello"}, {"top_k": "5"}, {"top_k": 0}, {"batch_size": 0},
        )),
        (lambda: words.fill_mask("no blank"), "[MASK]"),
        (lambda: words.embed([("a", "b", "c")]), "text 1"),
        (lambda: bert.classify(["good", 5]), "text 2: 5"),
        (lambda: bert.embed(pandas.DataFrame(THREE)), "give its column"),
        (lambda: bert.tokenize(data(TEXTS).repeat()), "endless"),
        (lambda: bert.classify("good", window="8"), "window='8'"),
        (lambda: bert.classify("good", pooling="sum"), "pooling='sum'"),
        (lambda: bert.tag(["a"]), "run_ner.py"),
        (lambda: bert.fill_mask("[MASK]"), "masked-LM head"),
        (lambda: opened["names"].tag([5]), "sentence 1: 5"),
        (lambda: reader.answer("where ?", " "), "paragraph=' '"),
        (lambda: reader.answer("where ?", "in rome", null_score_diff_threshold=NAN), "null_score_diff_threshold=nan"),
        (lambda: films.fit({**ids, "input_ids": ids["input_ids"] + 1000}, LABELS, **QUIET), "input_ids"),
        (lambda: films.fit({**ids, "input_mask": ids["input_mask"][:2]}, LABELS, **QUIET), "'input_mask'"),
        (lambda: bert.encoder(named), "attention_mask"),
        (lambda: bert.encoder([[5, 6], [7]]), "Bert.tokenize"),
        (lambda: bert.encoder(TEXTS), "Bert.tokenize"),
        (lambda: bert.save_folder(""), "output_dir=''"),
        (lambda: bert_tf2.Tokenize(bert, 16), "tokenizer"),
        (lambda: bert_tf2.Tokenize(bert.tokenizer, 16, pad_to_max_length="no"), "pad_to_max_length='no'"),
        (lambda: bert_tf2.FullTokenizer(encoder), "directory"),
        (lambda: bert_tf2.tagger(encoder), "labels="),
        (lambda: bert_tf2.answerer(encoder, null_score_diff_threshold=INF), "null_score_diff_threshold=inf"),
        (lambda: bert_tf2.answerer(encoder, stride=3), "stride"),
    ):  # fmt: skip
        assert part in message_of(call), part
    for call in (words.embed, words.fill_mask):
        assert "within" in message_of(tf.function(functools.partial(call, ["good [MASK]"])))
    with pytest.raises(TypeError, match="batchsize"):
        names.predict(SENTENCES, batchsize=2)


def test_arguments_of_a_classifier(encoder):
    for given, words in (
        *(({"weights": wrong}, f"weights={wrong!r}") for wrong in (None, "")),
        ({"labels": None}, "labels="),
        *(({"labels": wrong}, "list of names") for wrong in ({0: "bad", 1: "good"}, {"a", "b"})),
        ({"labels": [1, 2]}, "two names"),
        ({"labels": ["", "good"]}, "empty"),
        ({"regression": True}, "labels="),
        ({"labels": None, "regression": True, "multi_label": True}, "multi_label=True"),
        *(({name: "no"}, f"{name}='no'") for name in ("multi_label", "do_lower_case", "random_seed")),
        ({"max_seq_length": 0}, "max_seq_length=0"),
        ({"vocab_file": ["good"]}, "vocab_file=['good']"),
    ):
        message = message_of(bert_tf2.classifier, **{"weights": encoder, "labels": ["bad", "good"], **given})
        assert words in message, given


def test_numbers_and_paths_of_other_types(encoder, films):
    for rate in (np.array(1e-9), np.float32(1e-9), tf.constant(1e-9)):
        films.compile(rate)
        assert films.get_compile_config()["optimizer"] == pytest.approx(1e-9)
    assert bert_tf2.FullTokenizer(encoder / "vocab.txt").entries[2] == "[CLS]"
    assert bert_tf2.BertConfig.from_json_file(encoder / "bert_config.json").hidden_size == 16
