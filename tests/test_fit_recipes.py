"""`fit` of the models of texts with what Keras' users bring: epochs, weights, metrics, callbacks, folds."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_data
from refused import message_of

import bert_tf2
from bert_tf2 import heads, layers
from bert_tf2.weights import checkpoint

pytest.importorskip("tensorflow_text")

TEXTS = ["good " * 9, "a film", "bad " * 9, "the film"] * 3
LABELS = ["yes", "no", "no", "no"] * 3
QUIET = {"verbose": 0}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    toy_data.write_model(folder, num_hidden_layers=1)
    with layers.initial_weights_from(3):
        model = heads.PretrainingModel(toy_data.config(num_hidden_layers=1))
    checkpoint.save(str(folder / "bert_model.ckpt"), checkpoint.tf1_variables(model))
    return folder


@pytest.fixture(scope="module")
def films(encoder):
    return bert_tf2.classifier(encoder, labels=["no", "yes"], max_seq_length=8)


def batches(texts: list[str], labels: list[str]) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((texts, labels)).batch(3)


def test_history_has_a_value_for_each_epoch(films):
    """In passes over lists, and in steps over a dataset that goes on where the last epoch stopped."""
    history = films.fit(TEXTS, LABELS, 4, 2, validation_data=(TEXTS[:3], LABELS[:3]), **QUIET).history
    assert {name: len(values) for name, values in history.items()} == dict.fromkeys(history, 2)
    assert (history["cut_texts"], history["val_cut_texts"]) == ([6, 6], [2, 2])
    data = batches(["good " * 9] * 3 + ["a"] * 6, ["yes"] * 9)
    for endless, wanted in ((data.repeat(), [3, 3, 0]), (data.repeat(2), [3, 3, 0])):
        history = films.fit(endless, epochs=3, steps_per_epoch=2, **QUIET).history  # batches 1 2, 3 1, 2 3
        assert history["cut_texts"] == wanted
    unknown = batches(TEXTS, LABELS).filter(lambda texts, labels: True)
    films.compile(keras.optimizers.SGD(1e-9))
    history = films.fit(unknown, epochs=2, validation_data=unknown, validation_steps=1, **QUIET).history
    assert (history["cut_texts"], history["val_cut_texts"]) == ([6, 6], [2, 2])
    held_out = {"validation_data": (TEXTS, LABELS), "validation_freq": 2}
    history = films.fit(TEXTS, LABELS, epochs=2, **held_out, **QUIET).history
    assert (history["cut_texts"], history["val_cut_texts"]) == ([6, 6], [6])
    films.compile(1e-9)


def test_the_callers_list_of_callbacks_stays(films):
    given = keras.callbacks.CallbackList([], add_history=True, model=films, epochs=1)
    before = [*given.callbacks]
    history = films.fit(TEXTS, LABELS, callbacks=given, **QUIET).history
    assert given.callbacks == before and history["cut_texts"] == [6]


@pytest.mark.parametrize(("first", "epochs"), [(0, 1), (2, 3), (1, 3)])
def test_the_recipe_is_planned_for_the_epochs_that_run(films, first, epochs):
    """The rate rises over a tenth of the steps, and is 0 after the last one."""
    films.compile(1e-3)
    rates = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: rates.append(float(films.optimizer.learning_rate))
    )
    films.fit(TEXTS, LABELS, 1, epochs, initial_epoch=first, callbacks=[note], **QUIET)
    steps = 12 * (epochs - first)
    assert len(rates) == steps and np.argmax(rates) < steps / 4
    np.testing.assert_allclose(rates[-1], 0.0, atol=1e-9)
    assert films.fit(TEXTS, LABELS, epochs=2, initial_epoch=2, **QUIET).history.get("loss", []) == []
    assert "initial_epoch=-1" in message_of(films.fit, TEXTS, LABELS, initial_epoch=-1)


def test_balanced_weights_of_labels(films, encoder, monkeypatch):
    """Those of scikit-learn: rows / (labels * rows of the label); of lists, datasets, vectors and tags."""
    given = []
    monkeypatch.setattr(
        keras.Model, "fit", lambda self, data, *_, **__: given.extend(data) or keras.callbacks.History()
    )
    balanced = {"class_weight": "balanced", "shuffle": False, **QUIET}
    films.compile(1e-9)
    for x, y in ((TEXTS, LABELS), (batches(TEXTS, LABELS), None), (TEXTS, [int(label == "yes") for label in LABELS])):
        films.fit(x, y, **balanced)
    again = keras.models.clone_model(films)
    again.compile(1e-9, "categorical_crossentropy")
    again.fit(TEXTS, np.eye(2)[[int(label == "yes") for label in LABELS]], **balanced)
    found = np.concatenate([weights for _, _, weights in given])
    np.testing.assert_allclose(found, np.tile([2.0, 2 / 3, 2 / 3, 2 / 3], 12), rtol=1e-6)
    names = bert_tf2.tagger(encoder, labels=["O", "NAME"], max_seq_length=8)
    names.fit(["ann here and here"], ["NAME O O O"], **balanced)
    np.testing.assert_allclose(given[-1][2], [[0, 2, 2 / 3, 2 / 3, 2 / 3, 0]], rtol=1e-6)
    for model, x, y, part in (
        (films, batches(TEXTS, LABELS).repeat(), None, "give class_weight={'no': 1.0"),
        (bert_tf2.classifier(encoder, regression=True), ["a"], [1.0], "give sample_weight"),
    ):
        assert part in message_of(model.fit, x, y, steps_per_epoch=1, **balanced)
    assert "must be a dict" in message_of(films.fit, TEXTS, LABELS, class_weight="auto")


@pytest.mark.parametrize(
    "metrics", [[keras.metrics.F1Score(average="macro"), "accuracy"], ["f1_score"], [keras.metrics.AUC()], ["Recall"]]
)
def test_metrics_of_vectors(films, metrics):
    """With names or indexes of labels, lists or a dataset; the loss is the number that it is without them."""
    films.compile(1e-9)
    wanted = films.evaluate(TEXTS, LABELS, **QUIET)
    again = keras.models.clone_model(films)
    again.set_weights(films.get_weights())
    again.compile(1e-9, metrics=metrics)
    for x, y in ((TEXTS, LABELS), (TEXTS, [int(label == "yes") for label in LABELS]), (batches(TEXTS, LABELS), None)):
        found = again.evaluate(x, y, return_dict=True, **QUIET)
        assert found["loss"] == pytest.approx(wanted[0], rel=1e-5)
        assert "accuracy" not in found or found["accuracy"] == pytest.approx(wanted[1], rel=1e-5)
        assert len(found) == 1 + len(metrics)
    assert len(again.fit(TEXTS, LABELS, class_weight={"yes": 2.0}, **QUIET).history) == 2 + len(metrics)


def test_metrics_that_cannot_be(films, encoder):
    loss = "sparse_categorical_crossentropy"
    again = keras.models.clone_model(films)
    assert 'give loss="categorical_crossentropy"' in message_of(again.compile, 1e-9, loss, [keras.metrics.F1Score()])
    names = bert_tf2.tagger(encoder, labels=["O", "NAME"], max_seq_length=8)
    assert "F1Score compares vectors" in message_of(names.compile, metrics=[keras.metrics.F1Score()])


@pytest.mark.parametrize("labels", [[0, 1], range(2), np.arange(2)])
def test_numbers_as_labels(encoder, labels):
    films = bert_tf2.classifier(encoder, labels=labels, max_seq_length=8)
    assert films.labels == ["0", "1"]
    wanted = bert_tf2.classifier(encoder, labels=["no", "yes"], max_seq_length=8)
    indexes = [int(label == "yes") for label in LABELS]
    np.testing.assert_allclose(films.evaluate(TEXTS, indexes, **QUIET), wanted.evaluate(TEXTS, LABELS, **QUIET))
    assert "as texts (or 0, 1, 2, ...)" in message_of(bert_tf2.classifier, encoder, labels=[1, 2])


def test_folds_warn_of_nothing(encoder):
    """A model for each fold has functions of its own, of which TensorFlow would say that they are traced too often."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("tensorflow")
    filters = [*logger.filters]
    logger.addHandler(handler)
    try:
        for _ in range(6):
            films = bert_tf2.classifier(encoder, labels=["no", "yes"], max_seq_length=8)
            films.fit(TEXTS[:2], LABELS[:2], **QUIET)
            films.evaluate(TEXTS[:2], LABELS[:2], **QUIET)
            films.predict(TEXTS[:2], **QUIET)
    finally:
        logger.removeHandler(handler)
    assert not [line for line in lines if "retracing" in line]
    assert logger.filters == filters
