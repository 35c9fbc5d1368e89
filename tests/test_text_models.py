"""bert_tf2.classifier: texts into fit, evaluate and predict, and what is made of the model elsewhere."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from command_lines import ROOT
from refused import message_of
from small_models import without_head_dropout

import bert_tf2
from bert_tf2 import heads, layers
from bert_tf2.finetuning.answering import pack, padded
from bert_tf2.weights import checkpoint

TEXTS, LABELS = map(list, zip(*toy_data.sentences(64, 1), strict=True))
QUIET = {"verbose": 0}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A folder with the weights of an encoder of one layer."""
    folder = tmp_path_factory.mktemp("encoder")
    toy_data.write_model(folder, num_hidden_layers=1)
    with layers.initial_weights_from(3):
        model = heads.PretrainingModel(toy_data.config(num_hidden_layers=1))
    checkpoint.save(str(folder / "bert_model.ckpt"), checkpoint.tf1_variables(model))
    return folder


@pytest.fixture(scope="module")
def trained(encoder):
    """A classifier after `fit`, and its history."""
    keras.utils.set_random_seed(1)
    films = bert_tf2.classifier(encoder, labels=["no", "yes"], max_seq_length=24)
    films.compile(3e-3)
    weights = {"no": 1.0, 1: 1.1}
    return films, films.fit(
        np.array(TEXTS), LABELS, 8, 12, validation_split=0.25, class_weight=weights, **QUIET
    ).history


@pytest.fixture(scope="module")
def films(trained):
    return trained[0]


@pytest.mark.parametrize("task", ["classifier", "tagger", "answerer"])
def test_without_tensorflow_text(encoder, monkeypatch, task):
    """It is absent; also for a TensorFlow that has none yet."""
    labels = {"classifier": {"labels": ["no", "yes"]}, "tagger": {"labels": ["O", "NAME"]}, "answerer": {}}[task]
    given = {"classifier": TEXTS[:3], "tagger": [["ann", "lives"]], "answerer": [("who ?", "ann lives in paris")]}[task]

    def answers():
        keras.utils.set_random_seed(1)
        model = getattr(bert_tf2, task)(encoder, max_seq_length=24, **labels)
        return model.predict(given, **QUIET)

    wanted = answers()
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    found = answers()
    assert str(found) == str(wanted)
    served = {"init_checkpoint": str(encoder), "export_dir": str(encoder / "export"), "task": "features"}
    assert "tensorflow-text" in message_of(bert_tf2.commands.call, "export_saved_model", **served)


def test_it_learns_from_texts(trained):
    films, history = trained
    assert history["loss"][-1] < history["loss"][0] / 2 and len(history["val_accuracy"]) == 12
    assert history["cut_texts"] == history["val_cut_texts"] == [0] * 12
    assert int(films.optimizer.iterations) == 72  # of 48 texts, without the last quarter
    np.testing.assert_allclose(films.optimizer.learning_rate, 0.0, atol=1e-9)


def test_the_training_step_is_traced_once(encoder):
    films = bert_tf2.classifier(encoder, labels=["no", "yes"], max_seq_length=24)
    loss, traced = films.compute_loss, []
    films.compute_loss = lambda *given, **more: traced.append(given) or loss(*given, **more)
    films.fit(TEXTS, LABELS, 7, **QUIET)  # batches of several lengths, and a last one of one text
    assert len(traced) == 1


WAYS = {
    "array": (np.array(TEXTS), LABELS),
    "numbers": (TEXTS, np.array([label == "yes" for label in LABELS], np.int64)),
    "tensor": (tf.constant(TEXTS), np.array(LABELS)),
    "dataset": (tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).batch(16), None),
    "single texts": (tuple(([*TEXTS], [""] * 64)), LABELS),
}


@pytest.mark.parametrize("way", WAYS)
def test_texts_of_every_kind(films, way):
    x, y = WAYS[way]
    wanted = films.evaluate(TEXTS, LABELS, **QUIET)
    np.testing.assert_allclose(films.evaluate(x, y, **QUIET), wanted, rtol=1e-5)
    np.testing.assert_allclose(films.predict(x, **QUIET), films.predict(TEXTS, **QUIET), atol=1e-6)


@pytest.mark.parametrize("how", ["one pass", "steps", "two devices"])
def test_texts_of_a_dataset_that_are_cut_are_counted(encoder, two, caplog, how):
    """Once, however often a dataset is read, and not those of the validation or of padding."""
    with two.scope() if how == "two devices" else contextlib.nullcontext():
        films = bert_tf2.classifier(encoder, labels=["no", "yes"], max_seq_length=8)
    texts = ["good " * 7] * 3 + ["good"] * 7
    reads = []

    def rows():
        reads.append(1)
        yield from zip(texts, LABELS, strict=False)

    strings = tf.TensorSpec([], tf.string)
    data = tf.data.Dataset.from_generator(rows, output_signature=(strings, strings)).batch(4)
    data = data.apply(tf.data.experimental.assert_cardinality(3))
    more = {"steps_per_epoch": 3} if how == "steps" else {}
    data = data.repeat() if how == "steps" else data
    held_out = (texts[2:], LABELS[2:10])
    history = films.fit(data, epochs=2, validation_data=held_out, **more, **QUIET).history
    assert history["cut_texts"] == [3, 3] and history["val_cut_texts"] == [1, 1]
    assert [record.getMessage() for record in caplog.records if "were cut" in record.getMessage()] == [
        "3 of 10 texts are longer than 8 tokens, and were cut"
    ]
    assert how != "one pass" or len(reads) == 3  # two epochs, and one look for the variables


def test_weights_of_labels(encoder, monkeypatch):
    """They are those of rows, by the names of labels too, beside weights of rows and for the tags of words."""
    films = bert_tf2.classifier(encoder, labels=["no", "yes"])
    names = bert_tf2.tagger(encoder, labels=["O", "NAME"], max_seq_length=8)
    data = tf.data.Dataset.from_tensor_slices((TEXTS[:2], LABELS[:2], [3.0, 3.0])).batch(2)
    given = []
    monkeypatch.setattr(
        keras.Model, "fit", lambda self, data, *_, **__: given.extend(data) or keras.callbacks.History()
    )
    for x, y, rows in ((TEXTS[:2], LABELS[:2], [3.0, 3.0]), (data, None, None)):
        for weights in ({"yes": 2.0}, {0: 1, 1: 2}):
            films.fit(x, y, shuffle=False, class_weight=weights, sample_weight=rows, **QUIET)
    one_hot = data.map(lambda x, y, w: (x, [[1.0, 0.0], [0.0, 1.0]]))
    films.fit(one_hot, class_weight={"no": 6.0, "yes": 3.0}, **QUIET)
    assert LABELS[:2] == ["yes", "no"]
    for _, _, found in given:
        np.testing.assert_array_equal(found, [6.0, 3.0])
    names.fit(["ann here"], ["NAME O"], class_weight={"O": 0.5}, **QUIET)
    np.testing.assert_array_equal(given[-1][2], [[0, 1, 0.5, 0]])
    for wrong, message in (
        ({"maybe": 1.0}, "class_weight: 'maybe' is none of the labels no, yes"),
        ({"yes": "much"}, "class_weight: yes='much': must be a number"),
        ([1.0, 2.0], "must be a dict like {'no': 2.0}"),
    ):
        assert message in message_of(films.fit, TEXTS, LABELS, class_weight=wrong)
    reader = bert_tf2.answerer(encoder)
    assert "give sample_weight" in message_of(reader.fit, [("a", "b")], ["b"], class_weight={0: 1})


class Table:
    """What a table of pandas does: to go through it gives the names of its columns."""

    def __init__(self, **columns):
        self.columns, self._values = [*columns], np.array([*columns.values()], object).T

    def __iter__(self):
        return iter(self.columns)

    def to_numpy(self):
        return self._values


def test_what_keras_users_give(films):
    """No rows, a table of pandas, one-hot vectors for the usual loss and for Keras' own; metrics go with their loss."""
    assert films.predict([]).shape == (0, 2)
    wanted = films.predict(TEXTS, **QUIET)
    np.testing.assert_allclose(films.predict(Table(text=TEXTS), **QUIET), wanted, rtol=1e-5)
    np.testing.assert_allclose(films.predict(Table(a=TEXTS, b=[""] * 64), **QUIET), wanted, rtol=1e-5)
    one_hot = np.eye(2)[[int(label == "yes") for label in LABELS]]
    wanted = films.evaluate(TEXTS, LABELS, **QUIET)
    np.testing.assert_allclose(films.evaluate(TEXTS, one_hot, **QUIET), wanted, rtol=1e-5)
    again = keras.models.clone_model(films)
    again.compile(1e-9, "categorical_crossentropy", [keras.metrics.F1Score()])
    assert "f1_score" in again.fit(TEXTS, one_hot, **QUIET).history
    again.compile(np.float32(1e-9))
    several = keras.callbacks.CallbackList([], add_history=True, model=again, epochs=1)
    assert sorted(again.fit(TEXTS, one_hot, callbacks=several, **QUIET).history) == ["accuracy", "cut_texts", "loss"]


def test_pairs_of_every_kind(films):
    pairs = [("a film", "good book"), ("bad", "the lovely film was good")]
    wanted = films.predict(pairs, **QUIET)
    firsts, seconds = zip(*pairs, strict=True)
    data = tf.data.Dataset.from_tensor_slices((([*firsts], [*seconds]),)).batch(2)
    for x in (np.array(pairs), ([*firsts], [*seconds]), (tf.constant(firsts), tf.constant(seconds)), data):
        np.testing.assert_array_equal(films.predict(x, **QUIET), wanted)
    np.testing.assert_allclose(films.predict(pairs[0], **QUIET), wanted[:1], atol=1e-6)
    assert np.abs(films.predict([*firsts], **QUIET) - wanted).max() > 1e-3


def test_a_keras_file_goes_on(films, tmp_path):
    films.save(tmp_path / "films.keras")
    again = keras.models.load_model(tmp_path / "films.keras")
    np.testing.assert_allclose(again.predict(TEXTS, **QUIET), films.predict(TEXTS, **QUIET), rtol=1e-5)
    assert again.labels == ["no", "yes"] and again.tokenize.max_seq_length == 24
    assert again.optimizer.iterations == films.optimizer.iterations
    assert again.get_compile_config()["optimizer"] == 3e-3  # the next `fit` warms up again
    code = (
        "import keras, bert_tf2, sys; print(keras.models.load_model(sys.argv[1]).predict(['a film'], verbose=0)[0, 0])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "films.keras")], cwd=ROOT, capture_output=True,
                          text=True, check=False)  # fmt: skip
    np.testing.assert_allclose(float(done.stdout or "nan"), films.predict(["a film"], **QUIET)[0, 0], atol=1e-6)


@pytest.mark.compiled
def test_keras_around_it(films, tmp_path):
    """Of the folder that was written: callbacks, other optimizers, weights of rows, several steps at once, XLA."""
    films.save_folder(tmp_path / "out")
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="val_loss", save_best_only=True)
    films = bert_tf2.classifier(tmp_path / "out")
    films.compile(keras.optimizers.Adam(1e-3), steps_per_execution=2, jit_compile=True)
    films.fit(
        TEXTS, LABELS, 16, 2, validation_data=(TEXTS, LABELS), callbacks=[best], sample_weight=[1.0] * 64, **QUIET
    )
    assert isinstance(keras.models.load_model(tmp_path / "best.keras").optimizer, keras.optimizers.Adam)


def test_a_head_of_another_kind(encoder):
    scores = bert_tf2.classifier(encoder, regression=True)
    scores.fit(TEXTS[:8], np.arange(8.0), **QUIET)
    assert scores.predict(TEXTS[:3], **QUIET).shape == (3, 1)
    topics = bert_tf2.classifier(encoder, labels=["a", "b", "c"], multi_label=True)
    topics.fit(TEXTS[:3], [["a"], [], ["b", "c"]], **QUIET)
    losses = [
        topics.evaluate(TEXTS[:2], y, **QUIET)[0] for y in ([["a"], ["b", "c"]], np.array([[1, 0, 0], [0, 1, 1]]))
    ]
    assert losses[0] == losses[1]
    assert ((topics.predict(TEXTS[:3], **QUIET) > 0) & (topics.predict(TEXTS[:3], **QUIET) < 1)).all()


def test_several_devices(encoder, two, monkeypatch):
    """The losses of two replicas are those of one."""
    without_head_dropout(monkeypatch)
    how = {"labels": ["no", "yes"], "max_seq_length": 24}  # the new weights are those of the script's random_seed
    alone = bert_tf2.classifier(encoder, **how)
    with two.scope():
        shared = bert_tf2.classifier(encoder, **how)
    for films in (alone, shared):
        films.compile(3e-3)
    losses = [films.fit(TEXTS, LABELS, 16, 3, shuffle=False, **QUIET).history["loss"] for films in (alone, shared)]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_what_is_wrong_is_told(encoder, films):
    data = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).batch(64)
    scores = bert_tf2.classifier(encoder, regression=True)
    topics = bert_tf2.classifier(encoder, labels=["a", "b"], multi_label=True)
    for call, message in (
        (lambda: bert_tf2.classifier(encoder), "has no labels of texts; give labels="),
        (lambda: bert_tf2.classifier(encoder, labels=[1, 2]), "must be two names or more"),
        (lambda: films.fit(TEXTS, ["maybe"] * 64), "y: 'maybe' is none of the labels no, yes"),
        (lambda: films.fit(TEXTS, [2] * 64), "y: '2' is none of the labels"),
        (lambda: films.fit(TEXTS, LABELS[:3]), "y: 3 rows for 64 texts"),
        (lambda: films.predict([1.5]), "text 1: 1.5 is neither a text nor a pair"),
        (lambda: films.fit(tf.data.Dataset.from_tensor_slices((TEXTS, LABELS))), "strings [B]; single texts need"),
        (lambda: films.fit(TEXTS, LABELS, validation_split=0.999), "none remain"),
        (lambda: films.fit([], []), "x: has no texts"),
        (lambda: films.fit(TEXTS), "y: is missing"),
        (lambda: films.evaluate(data.map(lambda x, _: x)), "y: is missing"),
        (
            lambda: films.fit(data.map(lambda x, _: (x, tf.fill([64], "schön")))),
            "y: 'schön' is none of the labels no, yes",
        ),
        (lambda: films.evaluate(data.map(lambda x, _: (x, tf.fill([64], 2)))), "y: '2' is none of the labels no, yes"),
        (lambda: films.fit(TEXTS[:1], [["no", "yes"]]), "several labels of a text need multi_label=True"),
        (lambda: films.fit(TEXTS, LABELS, validation_data=TEXTS), "validation_data: must be (x, y)"),
        (lambda: films.fit(TEXTS, LABELS, epochs=0), "epochs=0: must be 1 or more"),
        (lambda: films.fit(TEXTS[:2], LABELS[:2], sample_weight=[1, float("nan")]), "sample_weight: row 2 is nan"),
        (
            lambda: films.fit(TEXTS, LABELS, callbacks=keras.callbacks.ReduceLROnPlateau("loss")),
            "its own schedule of the rate",
        ),
        (lambda: films.save("films.h5"), "films.h5: Keras' older format"),
        (lambda: scores.fit(TEXTS[:1], ["much"]), "y: has something else than numbers"),
        (lambda: topics.fit(TEXTS[:2], [["a"], None]), "y: row 2 is None, and not a list of labels"),
        (
            lambda: bert_tf2.classifier(encoder, labels={"a", "b"}),
            "must be a list of names, in the order of the outputs",
        ),
    ):
        assert message in message_of(call)


def test_tokenize(tmp_path):
    """The layer gives the rows of `classify`, in tf.data, alone, saved and loaded."""
    tokenizer = bert_tf2.FullTokenizer(toy_data.write_model(tmp_path)["vocab_file"], never_split=["film"])
    layer = bert_tf2.Tokenize(tokenizer, 12)
    texts = ["A film, now", "playing " * 30, ("the book", "was GOOD " * 9), "", "中文 good"]
    wanted = padded(pack(tokenizer, texts, 12))
    again = bert_tf2.Tokenize.from_config(json.loads(json.dumps(layer.get_config())))
    firsts, seconds = zip(*((text, "") if isinstance(text, str) else text for text in texts), strict=True)
    data = tf.data.Dataset.from_tensor_slices(([*firsts], [*seconds])).batch(8).map(lambda *pair: layer(pair))
    for found in (layer(texts), again(texts), next(iter(data))):
        for name, values in wanted.items():
            np.testing.assert_array_equal(found[name], values)
    assert layer.with_cut((tf.constant(firsts), tf.constant(seconds)))[1].numpy().tolist() == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert layer.with_cut(tf.constant(["good " * 10, "bad " * 11]))[1].numpy().tolist() == [False, True]
    assert bert_tf2.Tokenize(tokenizer, 12, pad_to_max_length=True)(["a"])["input_ids"].shape == (1, 12)


def test_a_model_with_inputs_of_its_own(tmp_path):
    """Text and numbers in a functional model: it trains, is saved, loaded and exported."""
    tokenizer = bert_tf2.FullTokenizer(toy_data.write_model(tmp_path)["vocab_file"])
    text, price = keras.Input([], dtype="string", name="text"), keras.Input([2], name="price")
    vector = bert_tf2.BertModel(toy_data.config(num_hidden_layers=1))(
        bert_tf2.Tokenize(tokenizer, 16)(text)
    ).pooled_output
    model = keras.Model(
        {"text": text, "price": price}, keras.layers.Dense(1)(keras.layers.Concatenate()([vector, price]))
    )
    model.compile(bert_tf2.AdamWeightDecay(1e-3), "mean_squared_error")
    given = {"text": tf.constant(TEXTS[:8]), "price": np.ones([8, 2], np.float32)}
    model.fit(given, np.ones(8), **QUIET)
    wanted = model.predict(given, **QUIET)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras").predict(given, **QUIET), wanted)
    model.export(tmp_path / "served", **QUIET)
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(served.serve({**given, "price": tf.ones([8, 2])}), wanted, atol=1e-5)


def test_words_with_tags(encoder, tmp_path):
    """A tagger trains on lists of words, and answers as `load` does with its folder."""
    known = {**dict.fromkeys(toy_data.PLACES, "B-LOC"), **dict.fromkeys(toy_data.NAMES, "B-PER")}
    sentences = [block.split("\n") for block in toy_data.conll(48, 1, tags=False).strip().split("\n\n")[1:]]
    sentences = [[row.split()[1].lower() for row in rows] for rows in sentences]
    tags = [[known.get(word, "O") for word in words] for words in sentences]
    names = bert_tf2.tagger(encoder, labels=["O", "B-LOC", "B-PER"])
    keras.utils.set_random_seed(1)
    names.compile(5e-3)
    history = names.fit(sentences, tags, 8, 10, validation_split=0.25, **QUIET).history
    assert history["loss"][-1] < history["loss"][0] / 2 and len(history["val_accuracy"]) == 10
    texts = [" ".join(words) for words in sentences], [" ".join(each) for each in tags]
    np.testing.assert_allclose(
        names.evaluate(*texts, 8, **QUIET), names.evaluate(sentences, tags, 8, **QUIET), rtol=1e-5
    )
    ragged = tf.ragged.constant(sentences)
    numbers = tf.ragged.constant([[names.labels.index(tag) for tag in each] for each in tags])
    doubled = names.evaluate(sentences[:24] * 2 + sentences[24:], tags[:24] * 2 + tags[24:], 72, **QUIET)
    for x, y in (texts, (ragged, tf.ragged.constant(tags)), (ragged.to_tensor(), numbers.to_tensor(-1))):
        data = tf.data.Dataset.from_tensor_slices((x, y, [2.0] * 24 + [1.0] * 24)).batch(16)
        np.testing.assert_allclose(names.evaluate(data, None, 64, **QUIET), doubled, rtol=1e-5)
    assert len(names.fit(data, validation_data=data, epochs=2, **QUIET).history["val_loss"]) == 2
    assert names.predict(data) == names.predict(sentences)
    assert names.predict("ann lives") == names.predict([["ann", "lives"]])
    asked = [*sentences[:3], "ann lives in rome".split() * 30, ["\u200b", "Playing"]]
    found = names.predict(asked)
    assert [*map(len, found)] == [*map(len, asked)]
    names.save_folder(tmp_path / "out")
    assert bert_tf2.load(tmp_path / "out").tag(asked) == found
    assert bert_tf2.tagger(tmp_path / "out").predict(asked[:3]) == found[:3]
    text_operations.need()  # an export with texts
    names.export(tmp_path / "served")
    assert "serving_text" in tf.saved_model.load(str(tmp_path / "served")).signatures
    names.save(tmp_path / "names.keras")
    assert keras.models.load_model(tmp_path / "names.keras").predict(asked) == found
    for call, message in (
        (lambda: bert_tf2.tagger(encoder), "has no labels of words; give labels="),
        (lambda: names.fit([["a", 1]], [["O", "O"]]), "sentence 1: ['a', 1] is no list of words"),
        (lambda: names.fit([["a"]], [["X"]]), "y: 'X' is none of the labels O, B-LOC, B-PER"),
        (lambda: names.fit([["a", "b"]], ["O"]), "sentence 1: 2 words, but 1 tags"),
        (lambda: names.fit(data.repeat()), "an endless dataset"),
        (lambda: names.fit(tf.data.Dataset.from_tensor_slices(texts)), "it needs `dataset.batch(32)`"),
        (
            lambda: names.fit(data.map(lambda x, y, _: (x, y)).unbatch()),
            "single sentences need `dataset.ragged_batch(32)`",
        ),
        (lambda: names.fit([["a"]]), "y: is missing"),
        (lambda: names.fit([], []), "x: has no texts"),
        (lambda: names.fit(["a"], [float("nan")]), "sentence 1: nan is no list of words or tags"),
    ):
        assert message in message_of(call)


def test_questions_with_answers(encoder, tmp_path):
    """It trains on lists, and answers as `load` does with its folder."""
    found = toy_data.squad(48, 1, impossible=True)["data"][0]["paragraphs"]
    rows = [(q["question"], p["context"], *[(a["text"], a["answer_start"]) for a in q["answers"]]) for p in found
            for q in p["qas"]]  # fmt: skip
    pairs, answers = [row[:2] for row in rows], [row[2] if len(row) > 2 else "" for row in rows]
    reader = bert_tf2.answerer(encoder, may_be_missing=True, max_seq_length=32)
    keras.utils.set_random_seed(1)
    reader.compile(5e-3)
    history = reader.fit(pairs, answers, 8, 10, validation_split=0.25, **QUIET).history
    assert history["loss"][-1] < history["loss"][0] / 2 and len(history["val_accuracy"]) == 10
    columns = tuple(map(list, zip(*pairs, strict=True)))
    whole = [(row, -1) if isinstance(row, str) else row for row in answers]
    data = tf.data.Dataset.from_tensor_slices((columns, tuple(map(list, zip(*whole, strict=True))))).batch(16)
    np.testing.assert_allclose(reader.evaluate(data, **QUIET), reader.evaluate(pairs, answers, **QUIET), rtol=1e-5)
    assert reader.fit(data, validation_data=data, **QUIET).history["val_loss"]
    assert reader.predict(data) == reader.predict(data.map(lambda x, y: x)) == reader.predict(pairs)
    weighted = [reader.evaluate(pairs, answers, sample_weight=[w] * 24 + [0] * 24, **QUIET)[0] for w in (1, 2)]
    np.testing.assert_allclose(2 * weighted[0], weighted[1], rtol=1e-5)
    asked = [*pairs[:6], (pairs[0][0], pairs[0][1] + " ann playing in the film" * 20)]
    found = reader.predict(tuple(map(list, zip(*asked, strict=True))))
    reader.save_folder(tmp_path / "out")
    assert bert_tf2.load(tmp_path / "out").answer(*map(list, zip(*asked, strict=True))) == found
    assert bert_tf2.answerer(tmp_path / "out").predict(asked) == found
    text_operations.need()  # an export with texts
    reader.export(tmp_path / "served")
    assert "serving_text" in tf.saved_model.load(str(tmp_path / "served")).signatures
    reader.save(tmp_path / "reader.keras")
    again = keras.models.load_model(tmp_path / "reader.keras")
    assert again.predict(asked) == found and again.evaluate(pairs, answers, **QUIET)[0] < history["loss"][0]
    for call, message in (
        (lambda: reader.fit([("where", "in Rome")], ["Paris"]), "question 1 does not have the words 'Paris'"),
        (lambda: reader.fit([("where", "in Rome")], []), "y: 0 rows for 1 texts"),
        (lambda: reader.fit([("where", "in Rome")], [None]), "y: question 1 has None; an answer is a text"),
        (lambda: reader.predict(["where"]), "each row is a tuple, (question, paragraph)"),
        (lambda: bert_tf2.answerer(encoder, max_seq_length=32).fit([("where", "in Rome")], [""]), 'has the answer ""'),
        (lambda: bert_tf2.answerer(encoder, stride=3), "has no setting stride"),
        (lambda: reader.fit([("where", "in Rome")], [("Rome", np.int64(9))]), "lies outside of its context"),
    ):
        assert message in message_of(call)
