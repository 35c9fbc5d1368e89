"""`fit` of the models of texts: they learn, are saved in three ways, and take what Keras' users bring."""

from __future__ import annotations

import contextlib
import json
import logging
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from refused import message_of

import bert_tf2
from bert_tf2.data.rows import padded
from bert_tf2.finetuning.answering import pack

TEXTS, LABELS = map(list, zip(*toy_data.sentences(64, 1), strict=True))
LONG = ["good " * 9, "a film", "bad " * 9, "the film"] * 3  # two of four have more than 8 tokens
FEW = ["yes", "no", "no", "no"] * 3
NAMED = {"labels": ["no", "yes"]}
QUIET = {"verbose": 0}


@pytest.fixture(scope="module")
def trained(encoder):
    """A classifier after `fit`, and its history."""
    keras.utils.set_random_seed(1)
    model = bert_tf2.classifier(encoder, **NAMED, max_seq_length=24)
    model.compile(3e-3)
    how = {"validation_split": 0.25, "class_weight": {"no": 1.0, 1: 1.1}}
    return model, model.fit(np.array(TEXTS), LABELS, 8, 14, **how, **QUIET).history


@pytest.fixture(scope="module")
def short(encoder):
    """A classifier that reads 8 tokens; tests compile it as they need, most without a graph, which takes seconds."""
    return bert_tf2.classifier(encoder, **NAMED, max_seq_length=8)


def batches(texts: list[str], labels: list) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((texts, labels)).batch(3)


def test_a_classifier_learns(trained):
    model, history = trained
    assert history["loss"][-1] < history["loss"][0] / 2 and len(history["val_accuracy"]) == 14
    assert history["cut_texts"] == history["val_cut_texts"] == [0] * 14
    assert int(model.optimizer.iterations) == 84  # of 48 texts, without the last quarter
    np.testing.assert_allclose(model.optimizer.learning_rate, 0.0, atol=1e-9)


def test_the_training_step_is_traced_once(encoder):
    model = bert_tf2.classifier(encoder, **NAMED, max_seq_length=24)
    loss, traced = model.compute_loss, []
    model.compute_loss = lambda *given, **more: traced.append(given) or loss(*given, **more)
    model.fit(TEXTS[:17], LABELS[:17], 4, **QUIET)  # batches of several lengths, and a last one of one text
    assert len(traced) == 1


@pytest.mark.slow
def test_saved_it_goes_on(trained, tmp_path):
    """As a file of Keras, and as a folder of the scripts."""
    model, _ = trained
    wanted = model.predict(TEXTS, **QUIET)
    model.save(tmp_path / "films.keras")
    again = keras.models.load_model(tmp_path / "films.keras")
    np.testing.assert_allclose(again.predict(TEXTS, **QUIET), wanted, rtol=1e-5)
    assert again.labels == ["no", "yes"] and again.tokenize.max_seq_length == 24
    assert again.optimizer.iterations == model.optimizer.iterations
    assert again.get_compile_config()["optimizer"] == 3e-3  # the next `fit` warms up again
    model.save_folder(tmp_path / "out")
    again = bert_tf2.classifier(tmp_path / "out")
    assert again.labels == ["no", "yes"] and again.tokenize.max_seq_length == 24
    np.testing.assert_allclose(again.predict(TEXTS, **QUIET), wanted, rtol=1e-5)


@pytest.mark.compiled
@pytest.mark.slow
def test_keras_around_it(encoder, tmp_path):
    """Callbacks, other optimizers, weights of rows, several steps at once, XLA."""
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="val_loss", save_best_only=True)
    model = bert_tf2.classifier(encoder, **NAMED)
    model.compile(keras.optimizers.Adam(1e-3), steps_per_execution=2, jit_compile=True)
    how = {"validation_data": (TEXTS, LABELS), "callbacks": [best], "sample_weight": [1.0] * 64}
    model.fit(TEXTS, LABELS, 16, 2, **how, **QUIET)
    assert isinstance(keras.models.load_model(tmp_path / "best.keras").optimizer, keras.optimizers.Adam)


@pytest.mark.slow
def test_heads_of_other_kinds(encoder):
    scores = bert_tf2.classifier(encoder, regression=True)
    scores.compile(1e-3, run_eagerly=True)
    assert [*scores.fit(TEXTS[:8], np.arange(8.0), **QUIET).history] == ["loss", "cut_texts"]
    found = scores.predict(TEXTS[:3], **QUIET)
    assert found.shape == (3, 1)
    loss = scores.evaluate(TEXTS[:3], [1, 2, 3], **QUIET)
    np.testing.assert_allclose(loss, np.mean((found[:, 0] - [1, 2, 3]) ** 2), rtol=1e-4)
    topics = bert_tf2.classifier(encoder, labels=["a", "b", "c"], multi_label=True)
    topics.compile(1e-3, run_eagerly=True)
    topics.fit(TEXTS[:3], y := [["a"], [], ["b", "c"]], **QUIET)
    found = topics.predict(TEXTS[:3], **QUIET)
    rows = np.array([[label in row for label in "abc"] for row in y])
    loss, accuracy = topics.evaluate(TEXTS[:3], y, **QUIET)
    np.testing.assert_allclose(loss, -np.log(np.where(rows, found, 1 - found)).mean(), rtol=1e-4)
    np.testing.assert_allclose(accuracy, ((found > 0.5) == rows).mean())


@pytest.mark.slow
def test_texts_that_are_cut_are_counted(short, caplog):
    """In each epoch, of lists and of a dataset that goes on where the last epoch stopped; not those of padding."""
    short.compile(1e-9, run_eagerly=True)
    held_out = {"validation_data": (LONG[:3], FEW[:3]), "validation_freq": 2}
    history = short.fit(LONG, FEW, 4, 2, **held_out, **QUIET).history
    assert (history["cut_texts"], history["val_cut_texts"]) == ([6, 6], [2])
    assert {name: len(values) for name, values in history.items() if "val" not in name} == dict.fromkeys(
        ("accuracy", "loss", "cut_texts"), 2
    )
    data = batches(["good " * 9] * 3 + ["a"] * 6, ["yes"] * 9)
    history = short.fit(data.repeat(), epochs=3, steps_per_epoch=2, **QUIET).history  # batches 1 2, 3 1, 2 3
    assert history["cut_texts"] == [3, 3, 0]
    reads = []

    def rows():
        reads.append(1)
        yield from zip(LONG, FEW, strict=True)

    strings = tf.TensorSpec([], tf.string)
    data = tf.data.Dataset.from_generator(rows, output_signature=(strings, strings)).batch(4)
    caplog.clear()
    short.compile(keras.optimizers.SGD(1e-9), run_eagerly=True)  # the recipe must know how many batches there are
    assert short.fit(data, epochs=2, **QUIET).history["cut_texts"] == [6, 6]
    assert len(reads) == 2  # as many as epochs; in a graph, one more for the variables
    assert "6 of 12 texts are longer than 8 tokens" in caplog.text


@pytest.mark.slow
def test_several_devices(encoder, two):
    """The losses of two replicas are those of one, and texts that are cut are counted once."""
    how = {**NAMED, "max_seq_length": 8}  # the new weights are those of the script's random_seed
    with two.scope():
        shared = bert_tf2.classifier(encoder, **how)
    alone, losses = bert_tf2.classifier(encoder, **how), []
    for model in (alone, shared):
        model.model.head_dropout = 0.0
        model.compile(3e-3)
        history = model.fit(LONG, FEW, 8, 3, shuffle=False, **QUIET).history
        losses.append(history["loss"])
        assert history["cut_texts"] == [6, 6, 6]
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.parametrize(("first", "epochs"), [pytest.param(0, 1, marks=pytest.mark.slow), (1, 3)])
def test_the_recipe_is_planned_for_the_epochs_that_run(short, first, epochs):
    """The rate rises over a tenth of the steps, and is 0 after the last one. Callbacks stay those of the caller."""
    short.compile(1e-6, run_eagerly=True)
    rates = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: rates.append(float(short.optimizer.learning_rate))
    )
    given = keras.callbacks.CallbackList([note], add_history=True, model=short, epochs=epochs) if first else [note]
    before = [*getattr(given, "callbacks", given)]
    history = short.fit(LONG, FEW, 1, epochs, initial_epoch=first, callbacks=given, **QUIET).history
    assert [*getattr(given, "callbacks", given)] == before and len(history["cut_texts"]) == epochs - first
    steps = 12 * (epochs - first)
    assert len(rates) == steps and np.argmax(rates) < steps / 4
    np.testing.assert_allclose([max(rates), rates[-1]], [1e-6, 0.0], rtol=0.1, atol=1e-12)


@pytest.mark.slow
def test_weights_of_labels(short, encoder, monkeypatch):
    """Those of rows times those of labels, by name or index, or scikit-learn's "balanced"; also of tags."""
    given = []

    def fit(self, data, *_, **__):
        given.append([part.numpy() for _, _, part in data])
        return keras.callbacks.History()

    monkeypatch.setattr(keras.Model, "fit", fit)
    short.compile(1e-9)
    ids = short.tokenize(LONG)
    how = {"shuffle": False, **QUIET}
    data = tf.data.Dataset.from_tensor_slices((ids, FEW, [3.0] * 12)).batch(12)
    wanted = [6.0, 3.0, 3.0, 3.0] * 3
    for x, y, rows in ((ids, FEW, [3.0] * 12), (data, None, None)):
        for weights in ({"yes": 2.0}, {0: 1, 1: 2}):
            short.fit(x, y, class_weight=weights, sample_weight=rows, **how)
            np.testing.assert_array_equal(given.pop(), [wanted])
    balanced = np.tile([2.0, 2 / 3, 2 / 3, 2 / 3], 3)
    indexes = np.array([label == "yes" for label in FEW], int)
    again = keras.models.clone_model(short)
    again.compile(1e-9, "categorical_crossentropy")
    for model, y in ((short, FEW), (short, indexes), (again, np.eye(2)[indexes])):
        model.fit(ids, y, class_weight="balanced", **how)
        np.testing.assert_allclose(given.pop(), [balanced], rtol=1e-6)
    short.fit(data.map(lambda x, y, _: (x, y)), class_weight="balanced", **how)
    np.testing.assert_allclose(given.pop(), [balanced], rtol=1e-6)
    names = bert_tf2.tagger(encoder, labels=["O", "NAME"], max_seq_length=8)
    names.fit(["ann here and here"], ["NAME O O O"], class_weight="balanced", **how)
    np.testing.assert_allclose(given.pop(), [[[0, 2, 2 / 3, 2 / 3, 2 / 3, 0]]], rtol=1e-6)
    names.fit(["ann here"], ["NAME O"], class_weight={"O": 0.5}, **how)
    np.testing.assert_array_equal(given.pop(), [[[0, 1, 0.5, 0]]])


@pytest.mark.parametrize(
    "metrics",
    [
        [keras.metrics.F1Score(average="macro"), "accuracy"],
        *(pytest.param([metric], marks=pytest.mark.slow) for metric in (keras.metrics.AUC(), "Recall")),
    ],
)
def test_metrics_of_vectors(short, metrics):
    """With names or indexes of labels, lists or a dataset; the loss is the number that it is without them."""
    short.compile(1e-9, run_eagerly=True)
    ids, indexes = short.tokenize(LONG), [int(label == "yes") for label in FEW]
    wanted = short.evaluate(ids, FEW, **QUIET)
    again = keras.models.clone_model(short)
    again.set_weights(short.get_weights())
    again.compile(1e-9, metrics=metrics, run_eagerly=True)
    data = tf.data.Dataset.from_tensor_slices((ids, FEW)).batch(5)
    for x, y in ((ids, FEW), (ids, indexes), (ids, np.eye(2)[indexes]), (data, None)):
        found = again.evaluate(x, y, return_dict=True, **QUIET)
        assert found["loss"] == pytest.approx(wanted[0], rel=1e-5)
        assert "accuracy" not in found or found["accuracy"] == pytest.approx(wanted[1], rel=1e-5)
        assert len(found) == 1 + len(metrics)
    assert len(again.fit(ids, FEW, class_weight={"yes": 2.0}, **QUIET).history) == 1 + len(metrics)
    again.compile(np.float32(1e-9), run_eagerly=True)  # without the metrics of before
    assert sorted(again.fit(ids, indexes, **QUIET).history) == ["accuracy", "loss"]


def test_numbers_as_labels(encoder):
    model, indexes = bert_tf2.classifier(encoder, labels=np.arange(2), max_seq_length=8), [0, 1, 1]
    named = bert_tf2.classifier(encoder, labels=["no", "yes"], max_seq_length=8)
    assert model.labels == ["0", "1"]
    ids = model.tokenize(LONG[:3])
    for each in (model, named):
        each.compile(1e-9, run_eagerly=True)
    found, wanted = model.evaluate(ids, indexes, **QUIET), named.evaluate(ids, ["no", "yes", "yes"], **QUIET)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.slow
def test_folds_warn_of_nothing(encoder):
    """A model for each fold has functions of its own, of which TensorFlow would say that they are traced too often."""
    lines, handler, logger = [], logging.Handler(), logging.getLogger("tensorflow")
    handler.emit = lambda record: lines.append(record.getMessage())
    filters = [*logger.filters]
    logger.addHandler(handler)
    with contextlib.ExitStack() as at_end:
        at_end.callback(logger.removeHandler, handler)
        for _ in range(6):
            model = bert_tf2.classifier(encoder, **NAMED, max_seq_length=8)
            model.fit(TEXTS[:2], LABELS[:2], **QUIET)
            model.evaluate(TEXTS[:2], LABELS[:2], **QUIET)
            model.predict(TEXTS[:2], **QUIET)
    assert not [line for line in lines if "retracing" in line] and logger.filters == filters


@pytest.mark.parametrize(
    "task", ["classifier", *(pytest.param(it, marks=pytest.mark.slow) for it in ("tagger", "answerer"))]
)
def test_without_tensorflow_text(encoder, monkeypatch, task):
    """It is absent; also for a TensorFlow that has none yet."""
    labels = {"classifier": NAMED, "tagger": {"labels": ["O", "NAME"]}, "answerer": {}}[task]
    given = {"classifier": TEXTS[:3], "tagger": [["ann", "lives"]], "answerer": [("who ?", "ann lives in paris")]}[task]

    def answers():
        return getattr(bert_tf2, task)(encoder, max_seq_length=24, **labels).predict(given, **QUIET)

    wanted = answers()
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    assert str(answers()) == str(wanted)
    served = {"init_checkpoint": str(encoder), "export_dir": str(encoder / "export"), "task": "features"}
    assert "tensorflow-text" in message_of(bert_tf2.commands.call, "export_saved_model", **served)


@pytest.mark.slow
def test_the_layer_tokenize(tmp_path):
    """The rows of `classify`, in tf.data, alone, and made again of its configuration."""
    tokenizer = bert_tf2.FullTokenizer(toy_data.write_model(tmp_path)["vocab_file"], never_split=["film"])
    layer = bert_tf2.Tokenize(tokenizer, 12)
    texts = ["A film, now", "playing " * 30, ("the book", "was GOOD " * 9), "", "中文 good"]
    wanted = padded(pack(tokenizer, texts, 12))
    again = bert_tf2.Tokenize.from_config(json.loads(json.dumps(layer.get_config())))
    columns = [[*column] for column in zip(*((t, "") if isinstance(t, str) else t for t in texts), strict=True)]
    data = tf.data.Dataset.from_tensor_slices(tuple(columns)).batch(8).map(lambda *pair: layer(pair))
    for found in (layer(texts), again(texts), next(iter(data))):
        for name, values in wanted.items():
            np.testing.assert_array_equal(found[name], values)
    are_cut = layer.with_cut(tuple(map(tf.constant, columns)))[1]
    assert are_cut.numpy().tolist() == [False, True, True, False, False]
    assert layer.with_cut(tf.constant(["good " * 10, "bad " * 11]))[1].numpy().tolist() == [False, True]
    assert bert_tf2.Tokenize(tokenizer, 12, pad_to_max_length=True)(["a"])["input_ids"].shape == (1, 12)


@pytest.mark.slow
def test_a_tagger_learns(encoder, tmp_path):
    """It trains on lists of words, on texts and on datasets, and answers as `load` does with its folder."""
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
    ragged = tf.ragged.constant(sentences)
    numbers = tf.ragged.constant([[names.labels.index(tag) for tag in each] for each in tags])
    doubled = names.evaluate(sentences[:24] * 2 + sentences[24:], tags[:24] * 2 + tags[24:], 72, **QUIET)
    for x, y in (texts, (ragged, tf.ragged.constant(tags)), (ragged.to_tensor(), numbers.to_tensor(-1))):
        data = tf.data.Dataset.from_tensor_slices((x, y, [2.0] * 24 + [1.0] * 24)).batch(16)
        np.testing.assert_allclose(names.evaluate(data, None, 64, **QUIET), doubled, rtol=1e-5)
    assert names.predict(data) == names.predict(sentences)
    assert names.predict("ann lives") == names.predict([["ann", "lives"]])
    asked = [*sentences[:3], "ann lives in rome".split() * 30, ["\u200b", "Playing"]]
    found = names.predict(asked)
    assert [*map(len, found)] == [*map(len, asked)]
    names.save_folder(tmp_path / "out")
    assert bert_tf2.load(tmp_path / "out").tag(asked) == found
    names.save(tmp_path / "names.keras")
    assert keras.models.load_model(tmp_path / "names.keras").predict(asked) == found


@pytest.mark.slow
def test_an_answerer_learns(encoder, tmp_path):
    """It trains on lists, and answers as `load` does with its folder."""
    paragraphs = toy_data.squad(48, 1, impossible=True)["data"][0]["paragraphs"]
    pairs = [(p["qas"][0]["question"], p["context"]) for p in paragraphs]
    answers = [next(((a["text"], a["answer_start"]) for a in p["qas"][0]["answers"]), "") for p in paragraphs]
    reader = bert_tf2.answerer(encoder, may_be_missing=True, max_seq_length=32)
    keras.utils.set_random_seed(1)
    reader.compile(5e-3)
    history = reader.fit(pairs, answers, 8, 10, validation_split=0.25, **QUIET).history
    assert history["loss"][-1] < history["loss"][0] / 2 and len(history["val_accuracy"]) == 10
    columns = tuple(map(list, zip(*pairs, strict=True)))
    whole = [(row, -1) if isinstance(row, str) else row for row in answers]
    data = tf.data.Dataset.from_tensor_slices((columns, tuple(map(list, zip(*whole, strict=True))))).batch(16)
    np.testing.assert_allclose(reader.evaluate(data, **QUIET), reader.evaluate(pairs, answers, **QUIET), rtol=1e-5)
    assert reader.predict(data) == reader.predict(data.map(lambda x, y: x)) == reader.predict(pairs)
    weighted = [reader.evaluate(pairs, answers, sample_weight=[w] * 24 + [0] * 24, **QUIET)[0] for w in (1, 2)]
    np.testing.assert_allclose(2 * weighted[0], weighted[1], rtol=1e-5)
    asked = [*pairs[:6], (pairs[0][0], pairs[0][1] + " ann playing in the film" * 20)]
    found = reader.predict(tuple(map(list, zip(*asked, strict=True))))
    reader.save_folder(tmp_path / "out")
    assert bert_tf2.load(tmp_path / "out").answer(*map(list, zip(*asked, strict=True))) == found
    assert bert_tf2.answerer(tmp_path / "out").predict(asked) == found
    reader.save(tmp_path / "reader.keras")
    again = keras.models.load_model(tmp_path / "reader.keras")
    assert again.predict(asked) == found and again.evaluate(pairs, answers, **QUIET)[0] < history["loss"][0]


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("films", "classifier"),
        pytest.param("names", "ner", marks=pytest.mark.slow),
        pytest.param("reader", "squad", marks=pytest.mark.slow),
    ],
)
def test_exports_of_the_models(request, tmp_path, name, task):
    """For servers; a folder that is there already is refused."""
    text_operations.need()
    model = request.getfixturevalue(name)
    model.export(tmp_path / name, text_signatures=False)
    info = json.loads((tmp_path / name / "model_info.json").read_text())
    assert info["task"] == task and info["max_seq_length"] == model.tokenize.max_seq_length
    if name == "films":
        serve = tf.saved_model.load(str(tmp_path / name)).signatures["serving_default"]
        ids = {name: tf.constant(values) for name, values in model.tokenize(["a film"]).items()}
        np.testing.assert_allclose(serve(**ids)["probabilities"], model(["a film"]), atol=1e-5)
    assert name in message_of(model.export, tmp_path / name)


@pytest.mark.slow
def test_a_model_with_inputs_of_its_own(tmp_path):
    """Text and numbers in a functional model: it trains, is saved, loaded and exported."""
    tokenizer = bert_tf2.FullTokenizer(toy_data.write_model(tmp_path)["vocab_file"])
    text, price = keras.Input([], dtype="string", name="text"), keras.Input([2], name="price")
    encoder = bert_tf2.BertModel(toy_data.config(num_hidden_layers=1))
    vector = encoder(bert_tf2.Tokenize(tokenizer, 16)(text)).pooled_output
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()([vector, price]))
    model = keras.Model({"text": text, "price": price}, outputs)
    model.compile(bert_tf2.AdamWeightDecay(1e-3), "mean_squared_error")
    given = {"text": tf.constant(TEXTS[:8]), "price": tf.ones([8, 2])}
    model.fit(given, np.ones(8), **QUIET)
    wanted = model(given)
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(keras.models.load_model(tmp_path / "model.keras")(given), wanted, atol=1e-6)
    model.export(tmp_path / "served", **QUIET)
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(served.serve(given), wanted, atol=1e-5)
