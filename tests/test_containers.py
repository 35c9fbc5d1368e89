"""Every call that takes texts or labels, with every container: one answer."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from refused import message_of

import bert_tf2

pandas, polars, pyarrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
pytest.importorskip("tensorflow_text")

QUIET = {"verbose": 0}
TEXTS = ["a lovely film", "the book was sad .", "good"]
SENTENCES = ["ann lives in rome", "the film was good .", "bob was here"]
LABELS, TAGS = ["good", "bad", "good"], ["NAME O O O", "O O O O O", "NAME O O"]
PAIRS = [("where ?", text) for text in SENTENCES]


class Batches(keras.utils.PyDataset):
    """Batches of two rows of each column; of a single column as x alone."""

    def __init__(self, *columns):
        super().__init__()
        self.columns = columns

    def __len__(self):
        return -(-len(self.columns[0]) // 2)

    def __getitem__(self, number):
        found = tuple(column[number * 2 : number * 2 + 2] for column in self.columns)
        return found if len(found) > 1 else found[0]


def endless(*columns):
    """The same batch without an end; a single column as x alone."""
    while True:
        yield columns if len(columns) > 1 else columns[0]


COLUMNS = {
    "tuple": tuple,
    "array": np.array,
    "objects": lambda rows: np.array(rows, object),
    "masked": lambda rows: np.ma.array(rows, mask=[False] * len(rows)),
    "tensor": tf.constant,
    "dict": lambda rows: {"text": rows},
    "Series": lambda rows: pandas.Series(rows, index=[7, 8, 9]),
    "categories": lambda rows: pandas.Series(rows, dtype="category"),
    "Index": pandas.Index,
    "table": lambda rows: pandas.DataFrame({"text": rows}, index=[7, 8, 9]),
    "polars": polars.Series,
    "polars table": lambda rows: polars.DataFrame({"text": rows}),
    "arrow": pyarrow.array,
    "arrow chunks": lambda rows: pyarrow.chunked_array([rows[:1], rows[1:]]),
    "arrow table": lambda rows: pyarrow.table({"text": rows}),
    "array [N, 1]": lambda rows: np.array(rows)[:, None],
}
TEXT_COLUMNS = {**COLUMNS, "polars categories": lambda rows: polars.Series(rows, dtype=polars.Categorical)}
BATCHES = {
    "dataset": lambda rows: tf.data.Dataset.from_tensor_slices(rows).batch(2),
    "dataset of dicts": lambda rows: tf.data.Dataset.from_tensor_slices({"text": rows}).batch(2),
    "PyDataset": Batches,
    "PyDataset of arrays": lambda rows: Batches(np.array(rows)),
    "generator": lambda rows: (row for row in rows),
}
TABLES = {
    "pandas": pandas.DataFrame,
    "pandas booleans": lambda columns: pandas.DataFrame(columns).astype(bool),
    "polars": polars.DataFrame,
    "arrow": pyarrow.table,
    "dict": dict,
}


@pytest.fixture(scope="module")
def ids(opened):
    """TEXTS as arrays, which every model of texts takes in the place of texts: nothing is tokenized in a graph then."""
    return opened["films"].tokenize(TEXTS)


def measures(model) -> list[float]:
    """The cross-entropy and the accuracy of LABELS."""
    found, right = model(TEXTS).numpy(), [model.labels.index(label) for label in LABELS]
    return [-np.log(found[range(3), right]).mean(), (found.argmax(1) == right).mean()]


def parts_of(data) -> list:
    """What stands behind x in a dataset, as arrays."""
    return [np.concatenate(parts) for parts in zip(*(others for _, *others in data), strict=True)]


@pytest.mark.parametrize("kind", [*TEXT_COLUMNS, *BATCHES])
def test_texts_in_every_container(kind, films, names, opened, ids):
    make, near = {**TEXT_COLUMNS, **BATCHES}[kind], {"atol": 1e-5}
    bert, wanted = opened["films"], films(ids)
    np.testing.assert_array_equal(bert.tokenize(make(TEXTS))["input_ids"], ids["input_ids"])
    np.testing.assert_allclose([[*row.values()] for row in bert.classify(make(TEXTS))], wanted, **near)
    assert names.predict(make(SENTENCES)) == opened["names"].tag([text.split() for text in SENTENCES])
    assert opened["names"].tag(make(SENTENCES)) == opened["names"].tag(SENTENCES)
    if kind in TEXT_COLUMNS:
        np.testing.assert_allclose(films(make(TEXTS)), wanted, **near)
        found = bert_tf2.Tokenize(bert.tokenizer, 16)(make(TEXTS))
        np.testing.assert_array_equal(found["input_ids"], ids["input_ids"])
    if kind in ("Series", "table", *BATCHES):
        np.testing.assert_allclose(films.predict(make(TEXTS), **QUIET), wanted, **near)
        np.testing.assert_allclose(bert.embed(make(TEXTS)), bert.embed(TEXTS), **near)
        blanks = [f"{text} [MASK]" for text in TEXTS]
        assert opened["words"].fill_mask(make(blanks)) == opened["words"].fill_mask(blanks)


@pytest.mark.parametrize("name", ["films", "scores", "names", "reader"])
def test_labels_in_every_container(name, request, ids):
    """With weights of rows."""
    model, weights = request.getfixturevalue(name), [1.0, 2.0, 0.5]
    x, y = {
        "films": (ids, LABELS),
        "scores": (ids, [1.5, 2.0, -3.25]),
        "names": (SENTENCES, TAGS),
        "reader": (PAIRS, ["rome", "film", "here"]),
    }[name]
    wanted = parts_of(model.dataset(x, y, weights))
    for kind, make in COLUMNS.items():
        for one, other in zip(parts_of(model.dataset(x, make(y), make(weights))), wanted, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=kind)


def test_labels_as_vectors(films, names, scores, ids):
    one_hot = np.eye(2)[[1, 0, 1]]
    table = pandas.DataFrame(one_hot[:, ::-1], columns=["good", "bad"])
    for y in (one_hot, one_hot.astype(int), table, [1, 0, 1], np.array([True, False, True]), polars.Series(LABELS)):
        assert parts_of(films.dataset(ids, y))[0].tolist() == [1, 0, 1]
    data = tf.data.Dataset.from_tensor_slices((ids, one_hot)).batch(2)
    assert parts_of(films.dataset(data))[0].tolist() == [1, 0, 1]
    tags = [text.split() for text in TAGS]
    vectors = [np.eye(2)[[names.labels.index(tag) for tag in row]] for row in tags]
    found, wanted = (parts_of(names.dataset(SENTENCES, y)) for y in (vectors, tags))
    np.testing.assert_array_equal(found[0], wanted[0])
    for y in ([1.0, 2.0, 3.0], [[1.0], [2.0], [3.0]]):
        data = tf.data.Dataset.from_tensor_slices((ids, y)).batch(3)
        for given in ((ids, y), (data,)):
            assert parts_of(scores.dataset(*given))[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_with_a_column_for_each_label(kind, topics, ids):
    """Also with as many rows as columns, and with the columns in another order than the labels; or lists of labels."""
    rows = [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    columns = {label: [row[number] for row in rows] for number, label in enumerate("abc")}
    for chosen in ("abc", "cab"):
        table = TABLES[kind]({name: columns[name] for name in chosen})
        np.testing.assert_array_equal(parts_of(topics.dataset(ids, table))[0], rows)
    for y in (TABLES[kind]({f"is_{name}": columns[name] for name in "abc"}), [["a"], ["b", "c"], []], np.array(rows)):
        np.testing.assert_array_equal(parts_of(topics.dataset(ids, y))[0], rows)


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "dict", "Series", "lists", "tensors", "array"])
def test_pairs(kind, films, reader, opened):
    columns = {"question": ["where ?"] * 3, "paragraph": SENTENCES}
    of_columns = {"Series": pandas.Series, "lists": list, "tensors": tf.constant}
    if kind == "array":
        table = np.array(PAIRS)
    else:
        table = TABLES[kind](columns) if kind in TABLES else tuple(map(of_columns[kind], columns.values()))
    wanted = films(PAIRS)
    np.testing.assert_array_equal(films(table), wanted)
    assert np.abs(films(SENTENCES) - wanted).max() > 1e-3
    np.testing.assert_allclose(opened["films"].embed(table), opened["films"].embed(PAIRS), atol=1e-5)
    assert reader.predict(table) == reader.predict(PAIRS)
    answer, series = opened["reader"].answer, polars.Series if kind == "polars" else pandas.Series
    assert answer(*map(series, columns.values())) == answer(*columns.values())


def test_batches_of_a_generator(films, names, reader):
    """As in Keras: `steps` batches are read, no more, and none is left out between two calls."""
    read = []

    def counted():
        for batch in endless(TEXTS, LABELS):
            read.append(1)
            yield batch

    given = counted()
    films.compile(1e-9, run_eagerly=True)
    held_out = {"validation_data": endless(TEXTS, LABELS), "validation_steps": 1}
    history = films.fit(given, steps_per_epoch=2, epochs=2, **held_out, **QUIET).history
    assert len(history["val_loss"]) == 2 and len(read) == 4
    np.testing.assert_allclose(films.evaluate(given, steps=2, **QUIET), measures(films), atol=1e-4)
    assert len(read) == 6
    found = films.predict(endless(np.array(TEXTS)), steps=2, **QUIET)
    np.testing.assert_allclose(found, np.concatenate([films(TEXTS)] * 2), atol=1e-5)
    assert names.predict(endless(SENTENCES), steps=2) == names.predict(SENTENCES * 2)
    found, wanted = reader.predict(endless(PAIRS), steps=2), reader.predict(PAIRS * 2)
    assert [each.text for each in found] == [each.text for each in wanted]
    wrong = iter([(TEXTS, LABELS), (TEXTS, ["maybe"] * 3)])
    assert "maybe" in message_of(films.evaluate, wrong, steps=2, **QUIET)


@pytest.mark.slow
def test_batches_of_a_pydataset(films, names):
    films.compile(1e-9, run_eagerly=True)
    data = Batches(TEXTS, LABELS)
    history = films.fit(data, epochs=2, validation_data=data, class_weight={"good": 1.0}, **QUIET).history
    found = [history["val_loss"][1], history["val_accuracy"][1]]
    np.testing.assert_allclose(found, measures(films), atol=1e-4)
    assert films.predict(Batches(np.array(TEXTS * 2)), **QUIET).shape == (6, 2)  # no pairs of two texts each
    names.compile(1e-9, run_eagerly=True)
    data = Batches(SENTENCES, TAGS)
    assert len(names.fit(data, validation_data=data, **QUIET).history["val_loss"]) == 1


def test_a_table_of_tensorflow(films, tmp_path):
    """make_csv_dataset has dicts of columns."""
    path = tmp_path / "films.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(TEXTS, LABELS, strict=True)))

    def read(epochs):
        how = {"label_name": "label", "num_epochs": epochs, "shuffle": False}
        return tf.data.experimental.make_csv_dataset(str(path), 2, **how)

    films.compile(1e-9, run_eagerly=True)
    np.testing.assert_allclose(films.evaluate(read(1), **QUIET), measures(films), atol=1e-4)
    for call in (films.evaluate, films.predict, films.fit):
        assert "steps" in message_of(call, read(None), **QUIET)
    path.write_text("id,text,label\n1,good film,good\n")
    assert "x['text']" in message_of(films.evaluate, read(1), **QUIET)


@pytest.mark.slow
def test_single_batches_train(encoder, names, ids):
    """The recipe's rate falls to 0 at the end of `fit`; here it is constant."""
    model = bert_tf2.classifier(encoder, labels=["bad", "good"], max_seq_length=16)
    model.compile(1e-2, run_eagerly=True)
    losses = [float(model.train_on_batch(ids, LABELS, class_weight={"good": 1.0})[0]) for _ in range(12)]
    assert losses[-1] < losses[0] / 2
    found = model.test_on_batch(np.array(TEXTS), LABELS, return_dict=True)
    np.testing.assert_allclose([found["loss"], found["accuracy"]], measures(model), rtol=1e-4)
    found, wanted = names.test_on_batch(SENTENCES, TAGS), names.evaluate(SENTENCES, TAGS, **QUIET)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert names.predict_on_batch(SENTENCES) == names.predict(SENTENCES)
    np.testing.assert_allclose(model.predict_on_batch(TEXTS), model(ids), atol=1e-6)


def test_shares_of_labels(encoder, ids):
    """[N, L] for a loss that compares vectors, of which names of labels are vectors too."""
    model = bert_tf2.classifier(encoder, labels=["bad", "good"], max_seq_length=16)
    model.compile(1e-9, loss="kl_divergence", run_eagerly=True)
    shares = np.array([[0.45, 0.55], [0.9, 0.1], [0.0, 1.0]])
    model.fit(ids, shares, **QUIET)
    found = model.predict(ids, **QUIET)
    wanted = [np.mean(np.sum(y * np.log(np.clip(y, 1e-7, 1) / found), 1)) for y in (shares, np.eye(2)[[1, 0, 1]])]
    data = tf.data.Dataset.from_tensor_slices((ids, shares)).batch(2)
    losses = [model.evaluate(*given, **QUIET)[0] for given in ((ids, shares), (data,), (ids, LABELS))]
    np.testing.assert_allclose(losses, [wanted[0], wanted[0], wanted[1]], rtol=1e-3)


@pytest.mark.slow
def test_half_a_character(films, names, reader, opened):
    text = "good \ud83d film"
    found = opened["films"].tokenize(text)["input_ids"]
    np.testing.assert_array_equal(bert_tf2.Tokenize(opened["films"].tokenizer, 16)([text])["input_ids"], found)
    np.testing.assert_allclose(films([text])[0, 1], opened["films"].classify(text)["good"], atol=1e-5)
    films.dataset([text], ["good"])
    assert names.predict([text])[0] == opened["names"].tag(text)
    assert reader.predict([("where ?", text)])[0] == opened["reader"].answer("where ?", text)
