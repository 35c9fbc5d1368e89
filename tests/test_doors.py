"""Every call that takes texts or labels, with every container: one answer, or one sentence."""

from __future__ import annotations

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

QUIET = {"verbose": 0}
TEXTS = ["a lovely film", "the book was sad .", "good"]
SENTENCES = ["ann lives in rome", "the film was good .", "bob was here"]
LABELS = ["good", "bad", "good"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A folder with the weights of a language model of one layer."""
    folder = tmp_path_factory.mktemp("encoder")
    toy_data.write_model(folder, num_hidden_layers=1)
    with layers.initial_weights_from(3):
        model = heads.PretrainingModel(toy_data.config(num_hidden_layers=1))
    checkpoint.save(str(folder / "bert_model.ckpt"), checkpoint.tf1_variables(model))
    return folder


@pytest.fixture(scope="module")
def films(encoder):
    return bert_tf2.classifier(encoder, labels=["bad", "good"], max_seq_length=16)


@pytest.fixture(scope="module")
def topics(encoder):
    return bert_tf2.classifier(encoder, labels=["a", "b", "c"], multi_label=True, max_seq_length=16)


@pytest.fixture(scope="module")
def scores(encoder):
    return bert_tf2.classifier(encoder, regression=True, max_seq_length=16)


@pytest.fixture(scope="module")
def names(encoder):
    return bert_tf2.tagger(encoder, labels=["O", "NAME"], max_seq_length=16)


@pytest.fixture(scope="module")
def reader(encoder):
    return bert_tf2.answerer(encoder, max_seq_length=32)


@pytest.fixture(scope="module")
def opened(encoder, films, names, reader, tmp_path_factory):
    """What `load` makes of the folders."""
    folder = tmp_path_factory.mktemp("folders")
    films.save_folder(folder / "films")
    names.save_folder(folder / "names")
    reader.save_folder(folder / "reader")
    found = {name: bert_tf2.load(folder / name) for name in ("films", "names", "reader")}
    return {**found, "words": bert_tf2.load(encoder)}


class Batches(keras.utils.PyDataset):
    """Batches of two rows of each column; of a single column as x alone."""

    def __init__(self, *columns, size=2):
        super().__init__()
        self.columns, self.size = columns, size

    def __len__(self):
        return -(-len(self.columns[0]) // self.size)

    def __getitem__(self, number):
        found = tuple(column[number * self.size : (number + 1) * self.size] for column in self.columns)
        return found if len(found) > 1 else found[0]


def pandas():
    return pytest.importorskip("pandas")


def polars():
    return pytest.importorskip("polars")


def pyarrow():
    return pytest.importorskip("pyarrow")


COLUMNS = {
    "tuple": tuple,
    "array": np.array,
    "objects": lambda rows: np.array(rows, object),
    "masked": lambda rows: np.ma.array(rows, mask=[False] * len(rows)),
    "tensor": tf.constant,
    "dict": lambda rows: {"text": rows},
    "Series": lambda rows: pandas().Series(rows, index=[7, 8, 9]),
    "categories": lambda rows: pandas().Series(rows, dtype="category"),
    "Index": lambda rows: pandas().Index(rows),
    "table": lambda rows: pandas().DataFrame({"text": rows}, index=[7, 8, 9]),
    "polars": lambda rows: polars().Series(rows),
    "polars table": lambda rows: polars().DataFrame({"text": rows}),
    "polars categories": lambda rows: polars().Series(rows, dtype=polars().Categorical),
    "arrow": lambda rows: pyarrow().array(rows),
    "arrow chunks": lambda rows: pyarrow().chunked_array([rows[:1], rows[1:]]),
    "arrow table": lambda rows: pyarrow().table({"text": rows}),
}
X = {
    **COLUMNS,
    "array [N, 1]": lambda rows: np.array(rows)[:, None],
    "dataset": lambda rows: tf.data.Dataset.from_tensor_slices(rows).batch(2),
    "dataset of dicts": lambda rows: tf.data.Dataset.from_tensor_slices({"text": rows}).batch(2),
    "PyDataset": Batches,
    "PyDataset of arrays": lambda rows: Batches(np.array(rows)),
    "generator": lambda rows: (row for row in rows),
}


def ids_of(data) -> np.ndarray:
    """input_ids of all rows of a dataset without padding, one after the other."""
    return np.concatenate([tf.boolean_mask(x["input_ids"], x["input_mask"] > 0) for x, *_ in data])


def parts_of(data) -> list:
    """What stands behind x in a dataset, as arrays."""
    return [np.concatenate(parts) for parts in zip(*(others for _, *others in data), strict=True)]


@pytest.mark.parametrize("kind", X)
def test_texts_in_every_container(kind, films, names, opened):
    make, near = X[kind], {"atol": 1e-5}
    wanted = opened["films"].classify(TEXTS)
    good = [[each["good"]] for each in wanted]
    np.testing.assert_allclose([[each["good"]] for each in opened["films"].classify(make(TEXTS))], good, **near)
    np.testing.assert_array_equal(ids_of(films.dataset(make(TEXTS))), ids_of(films.dataset(TEXTS)))
    np.testing.assert_allclose(films.predict(make(TEXTS), **QUIET)[:, 1:], good, **near)
    if kind in COLUMNS:
        np.testing.assert_allclose(films(make(TEXTS))[:, 1:], good, **near)
        np.testing.assert_allclose(films.predict_on_batch(make(TEXTS))[:, 1:], good, **near)
        layer = bert_tf2.Tokenize(opened["films"].tokenizer, 16)
        np.testing.assert_array_equal(layer(make(TEXTS))["input_ids"], layer(TEXTS)["input_ids"])
    np.testing.assert_allclose(opened["films"].embed(make(TEXTS)), opened["films"].embed(TEXTS), **near)
    found, wanted = (opened["films"].tokenize(x)["input_ids"] for x in (make(TEXTS), TEXTS))
    np.testing.assert_array_equal(found, wanted)
    assert names.predict(make(SENTENCES)) == names.predict(SENTENCES)
    assert opened["names"].tag(make(SENTENCES)) == opened["names"].tag([text.split() for text in SENTENCES])
    blanks = [f"{text} [MASK]" for text in TEXTS]
    filled = opened["words"].fill_mask(make(blanks))
    assert [each.filled for each in filled] == [each.filled for each in opened["words"].fill_mask(blanks)]


@pytest.mark.parametrize("kind", [*COLUMNS, "array [N, 1]"])
def test_labels_in_every_container(kind, films, names, reader, scores):
    make = X[kind]
    weights = [1.0, 2.0, 0.5]
    for model, x, y in (
        (films, TEXTS, LABELS),
        (scores, TEXTS, [1.5, 2.0, -3.25]),
        (names, SENTENCES, ["NAME O O O", "O O O O O", "NAME O O"]),
        (reader, [("where ?", text) for text in SENTENCES], ["rome", "film", "here"]),
    ):
        if kind == "polars categories" and model is scores:
            continue
        given = (make(y), weights if kind == "polars categories" else make(weights))
        for one, other in zip(parts_of(model.dataset(x, *given)), parts_of(model.dataset(x, y, weights)), strict=True):
            np.testing.assert_array_equal(one, other)


def test_labels_as_vectors(films, names):
    one_hot = np.eye(2)[[1, 0, 1]]
    for y in (one_hot, one_hot.astype(int), pandas().DataFrame(one_hot[:, ::-1], columns=["good", "bad"])):
        assert parts_of(films.dataset(TEXTS, y))[0].tolist() == [1, 0, 1]
    data = tf.data.Dataset.from_tensor_slices((TEXTS, one_hot)).batch(2)
    assert parts_of(films.dataset(data))[0].tolist() == [1, 0, 1]
    tags = [["NAME", "O", "O", "O"], ["O"] * 5, ["NAME", "O", "O"]]
    vectors = [np.eye(2)[[names.labels.index(tag) for tag in row]] for row in tags]
    found, wanted = (parts_of(names.dataset(SENTENCES, y)) for y in (vectors, tags))
    np.testing.assert_array_equal(found[0], wanted[0])


TABLES = {
    "pandas": lambda columns: pandas().DataFrame(columns),
    "pandas booleans": lambda columns: pandas().DataFrame(columns).astype(bool),
    "polars": lambda columns: polars().DataFrame(columns),
    "arrow": lambda columns: pyarrow().table(columns),
    "dict": dict,
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_with_a_column_for_each_label(kind, topics):
    """Also with as many rows as columns, and with the columns in another order than the labels."""
    rows = [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    columns = {label: [row[number] for row in rows] for number, label in enumerate("abc")}
    for chosen in ("abc", "cab"):
        table = TABLES[kind]({name: columns[name] for name in chosen})
        np.testing.assert_array_equal(parts_of(topics.dataset(TEXTS, table))[0], rows)
    other = TABLES[kind]({f"is_{name}": columns[name] for name in "abc"})
    np.testing.assert_array_equal(parts_of(topics.dataset(TEXTS, other))[0], rows)


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "dict", "tuple of Series"])
def test_pairs_in_two_columns(kind, films, reader, opened):
    questions, paragraphs = ["where ?"] * 3, SENTENCES
    make = {**TABLES, "tuple of Series": lambda columns: tuple(map(pandas().Series, columns.values()))}[kind]
    pairs = [*zip(questions, paragraphs, strict=True)]
    table = make({"question": questions, "paragraph": paragraphs})
    np.testing.assert_array_equal(ids_of(films.dataset(table)), ids_of(films.dataset(pairs)))
    np.testing.assert_allclose(opened["films"].embed(table), opened["films"].embed(pairs), atol=1e-5)
    assert reader.predict(table) == reader.predict(pairs)
    answer = opened["reader"].answer
    columns = [COLUMNS["polars" if kind == "polars" else "Series"](column) for column in (questions, paragraphs)]
    assert answer(*columns) == answer(questions, paragraphs)


def endless(*columns):
    """The same batch without an end; a single column as x alone."""
    while True:
        yield columns if len(columns) > 1 else columns[0]


def test_batches_of_a_generator(films, names, reader):
    """As in Keras: `steps` batches are read, no more, and none is left out between two calls."""
    read = []

    def counted():
        for batch in endless(TEXTS, LABELS):
            read.append(1)
            yield batch

    given = counted()
    films.compile(1e-9)
    history = films.fit(
        given, steps_per_epoch=2, epochs=2, validation_data=endless(TEXTS, LABELS), validation_steps=1, **QUIET
    ).history
    assert len(history["val_loss"]) == 2 and len(read) == 4
    wanted = films.evaluate(TEXTS, LABELS, **QUIET)
    np.testing.assert_allclose(films.evaluate(given, steps=2, **QUIET), wanted, atol=1e-4)
    assert len(read) == 6
    np.testing.assert_allclose(
        films.predict(endless(np.array(TEXTS)), steps=2, **QUIET), films.predict(TEXTS * 2, **QUIET), atol=1e-5
    )
    tags = ["NAME O O O", "O O O O O", "NAME O O"]
    np.testing.assert_allclose(
        names.evaluate(endless(SENTENCES, tags), steps=2, **QUIET),
        names.evaluate(SENTENCES, tags, **QUIET),
        rtol=1e-4,
    )
    assert names.predict(endless(SENTENCES), steps=2) == names.predict(SENTENCES * 2)
    found, wanted = reader.predict(endless(PAIRS), steps=2), reader.predict(PAIRS * 2)
    assert [each.text for each in found] == [each.text for each in wanted]
    wrong = iter([(TEXTS, LABELS), (TEXTS, ["maybe"] * 3)])
    assert "y: 'maybe' is none of the labels" in message_of(films.evaluate, wrong, steps=2, **QUIET)


def test_batches_of_a_pydataset(films, names):
    films.compile(1e-9)
    data = Batches(TEXTS, LABELS)
    history = films.fit(data, epochs=2, validation_data=data, class_weight={"good": 1.0}, **QUIET).history
    wanted = films.evaluate(TEXTS, LABELS, **QUIET)
    np.testing.assert_allclose([history["val_loss"][1], history["val_accuracy"][1]], wanted, atol=1e-4)
    np.testing.assert_allclose(films.evaluate(data, **QUIET), wanted, atol=1e-4)
    assert films.predict(Batches(np.array(TEXTS * 2)), **QUIET).shape == (6, 2)  # no pairs of two texts each
    tags = ["NAME O O O", "O O O O O", "NAME O O"]
    data = Batches(SENTENCES, tags)
    assert len(names.fit(data, validation_data=data, epochs=2, **QUIET).history["val_loss"]) == 2


def test_a_table_of_tensorflow(films, tmp_path):
    """make_csv_dataset has dicts of columns."""
    path = tmp_path / "films.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(TEXTS, LABELS, strict=True)))

    def read(epochs, **more):
        return tf.data.experimental.make_csv_dataset(
            str(path), 2, label_name="label", num_epochs=epochs, shuffle=False, **more
        )

    np.testing.assert_allclose(
        films.evaluate(read(1), **QUIET), films.evaluate(TEXTS, LABELS, batch_size=2, **QUIET), rtol=1e-5
    )
    for call in (films.evaluate, films.predict):
        assert "steps=" in message_of(call, read(None), **QUIET)
    assert "steps_per_epoch=" in message_of(films.fit, read(None), **QUIET)
    path.write_text("id,text,label\n1,good film,good\n")
    assert "data.map(lambda x, y: (x['text'], y))" in message_of(films.evaluate, read(1), **QUIET)


def test_single_batches_train(encoder, films, names, reader):
    """The recipe's rate falls to 0 at the end of `fit`; here it is constant."""
    model = bert_tf2.classifier(encoder, labels=["bad", "good"], max_seq_length=16)
    model.compile(1e-2)
    losses = [float(model.train_on_batch(TEXTS, LABELS, class_weight={"good": 1.0})[0]) for _ in range(20)]
    assert losses[-1] < losses[0] / 2
    found = model.test_on_batch(np.array(TEXTS), LABELS, return_dict=True)
    wanted = model.evaluate(TEXTS, LABELS, return_dict=True, **QUIET)
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-4)
    tags = ["NAME O O O", "O O O O O", "NAME O O"]
    np.testing.assert_allclose(
        names.test_on_batch(SENTENCES, tags), names.evaluate(SENTENCES, tags, **QUIET), rtol=1e-4
    )
    assert names.predict_on_batch(SENTENCES) == names.predict(SENTENCES)
    assert "y: is missing" in message_of(films.train_on_batch, TEXTS)
    assert "predict" in message_of(names, SENTENCES)


def test_shares_of_labels(encoder):
    """[N, L] for a loss that compares vectors, of which names of labels are vectors too."""
    model = bert_tf2.classifier(encoder, labels=["bad", "good"], max_seq_length=16)
    model.compile(1e-9, loss="kl_divergence")
    shares = np.array([[0.45, 0.55], [0.9, 0.1], [0.0, 1.0]])
    model.fit(TEXTS, shares, **QUIET)
    found = model.predict(TEXTS, **QUIET)
    wanted = [np.mean(np.sum(y * np.log(np.clip(y, 1e-7, 1) / found), 1)) for y in (shares, np.eye(2)[[1, 0, 1]])]
    data = tf.data.Dataset.from_tensor_slices((TEXTS, shares)).batch(2)
    losses = [model.evaluate(*given, **QUIET)[0] for given in ((TEXTS, shares), (data,), (TEXTS, LABELS))]
    np.testing.assert_allclose(losses, [wanted[0], wanted[0], wanted[1]], rtol=1e-3)


def test_half_a_character(films, names, reader, opened):
    text = "good \ud83d film"
    found = opened["films"].tokenize(text)["input_ids"]
    np.testing.assert_array_equal(bert_tf2.Tokenize(opened["films"].tokenizer, 16)([text])["input_ids"], found)
    np.testing.assert_allclose(films.predict([text], **QUIET)[0, 1], opened["films"].classify(text)["good"], atol=1e-5)
    films.dataset([text], ["good"])
    assert names.predict([text])[0] == opened["names"].tag(text)
    assert reader.predict([("where ?", text)])[0] == opened["reader"].answer("where ?", text)


def test_numbers_for_texts(scores):
    wanted = scores.evaluate(TEXTS, [1.0, 2.0, 3.0], **QUIET)
    np.testing.assert_allclose(scores.evaluate(TEXTS, [[1.0], [2.0], [3.0]], **QUIET), wanted, rtol=1e-5)
    data = tf.data.Dataset.from_tensor_slices((TEXTS, [[1.0], [2.0], [3.0]])).batch(3)
    np.testing.assert_allclose(scores.evaluate(data, **QUIET), wanted, rtol=1e-5)


NAN, INF = float("nan"), float("inf")
PAIRS = [("where ?", text) for text in SENTENCES]
REFUSED = {
    "films": [
        ("fit", (TEXTS, LABELS), {"class_weight": {"good": NAN}}, "class_weight"),
        ("fit", (TEXTS, LABELS), {"class_weight": {"good": INF}}, "class_weight"),
        ("fit", (TEXTS, LABELS), {"batch_size": 0}, "batch_size=0"),
        ("evaluate", (TEXTS, LABELS), {"batch_size": 0}, "batch_size=0"),
        ("predict", (TEXTS,), {"batch_size": 0}, "batch_size=0"),
        ("fit", (TEXTS, LABELS), {"validation_split": NAN}, "validation_split=nan"),
        ("fit", (TEXTS, LABELS), {"sample_weight": [1, -1, 1]}, "sample_weight: row 2"),
        ("compile", (True,), {}, "optimizer=True"),
        ("compile", (NAN,), {}, "optimizer=nan"),
        ("compile", (-1.0,), {}, "optimizer=-1.0"),
        *(("compile", (wrong,), {}, "optimizer=") for wrong in ("2e-5", keras.optimizers.Adam)),
        ("compile", (keras.optimizers.schedules.CosineDecay(1e-3, 10),), {}, "AdamWeightDecay(schedule)"),
        *(
            ("fit", (TEXTS, LABELS), {"callbacks": wrong}, "callbacks")
            for wrong in (keras.callbacks.CSVLogger, [None], "a")
        ),
        ("fit", (TEXTS, LABELS), {"validation_data": (TEXTS, LABELS), "validation_freq": 0}, "validation_freq=0"),
        ("evaluate", (TEXTS, LABELS), {"steps": 0}, "steps=0"),
        ("predict", (TEXTS,), {"steps": 1.5}, "steps=1.5"),
        ("predict", (tf.constant("good"),), {}, "give a list"),
        ("save_folder", ("",), {}, "output_dir=''"),
        ("save_folder", (None,), {}, "output_dir=None"),
        ("export", (None,), {}, "filepath=None"),
        ("fit", (TEXTS, ["good", "", None]), {}, "2 of 3 labels are empty (rows 2, 3)"),
        ("fit", (TEXTS, ["good", NAN, "bad"]), {}, "1 of 3 labels are empty (row 2)"),
        ("fit", (["good", "", " "], LABELS), {}, "2 of 3 texts are empty (rows 2, 3)"),
        ("fit", (["good", None, NAN], LABELS), {}, "2 of 3 texts are missing (rows 2, 3)"),
        ("predict", (["good", None],), {}, "1 of 2 texts are missing (row 2)"),
        ("fit", (TEXTS, np.array("good")), {}, "give a list"),
        ("predict", (np.array("good"),), {}, "give a list"),
        ("fit", (TEXTS, tf.ragged.constant([["bad"], ["bad", "good"], ["good"]])), {}, "multi_label=True"),
        ("fit", (TEXTS, [[0.45, 0.55]] * 3), {}, "kl_divergence"),
        ("fit", ({*TEXTS}, LABELS), {}, "give a list"),
        ("fit", ((TEXTS, TEXTS[:2]), LABELS), {}, "3 first texts of pairs, but 2"),
        ("predict", ({"a": TEXTS, "b": TEXTS, "c": TEXTS},), {}, "give its column"),
        ("predict", ((("a", "b"), ("c", "d")),), {}, "two tuples"),
        ("fit", (endless(TEXTS, LABELS), LABELS), {}, "y: x has batches"),
        ("fit", (TEXTS, LABELS), {"validation_data": endless(TEXTS, LABELS)}, "validation_steps"),
        ("fit", (endless(TEXTS, LABELS),), {}, "steps_per_epoch"),
        ("fit", (iter([("a", "good")]),), {"steps_per_epoch": 1}, "each element is a batch"),
        ("fit", (iter([]),), {"steps_per_epoch": 1}, "without batches"),
        ("evaluate", (tf.data.Dataset.from_tensor_slices((["good", ""], ["good", "bad"])).batch(2),), QUIET, "text 2"),
        (
            "evaluate",
            (tf.data.Dataset.from_tensor_slices((TEXTS, LABELS, [1.0, -1.0, 1.0])).batch(3),),
            QUIET,
            "sample_weight: -1",
        ),
        (
            "evaluate",
            (tf.data.Dataset.from_tensor_slices((TEXTS, LABELS, [1, 2, -1])).batch(3),),
            QUIET,
            "sample_weight",
        ),
    ],
    "topics": [
        *(("fit", (TEXTS, [[0, 1, 0], [value, 0, 0], [0, 0, 0]]), {}, "y: row 2") for value in (2, -1, 0.5, NAN)),
        ("evaluate", (tf.data.Dataset.from_tensor_slices((TEXTS, [[2, 0, 0]] * 3)).batch(3),), QUIET, "1 or 0"),
        ("fit", (TEXTS, {"a": [1, 0, 1], "b": [0, 0, 0]}), {}, "y: a table with the columns"),
        ("fit", (TEXTS, {"a": [1, 0, 1], "b": [0, 0, 0], "d": [0, 0, 0]}), {}, "'d' is none of the labels"),
    ],
    "scores": [
        ("fit", (TEXTS, [1, 2, 10**400]), {}, "y: has something else"),
        ("fit", (TEXTS, np.ones([3, 2])), {}, "one number for each text"),
        ("evaluate", (tf.data.Dataset.from_tensor_slices((TEXTS, np.ones([3, 2]))).batch(3),), QUIET, "one number"),
        ("evaluate", (tf.data.Dataset.from_tensor_slices((TEXTS, [1.0, NAN, 2.0])).batch(3),), QUIET, "nan"),
    ],
    "names": [
        ("predict", (SENTENCES,), {"batch_size": 0}, "batch_size=0"),
        ("fit", (["ann", "", None], ["O"] * 3), {}, "missing (row 3)"),
        ("fit", (["ann", "", " "], ["O"] * 3), {}, "empty (rows 2, 3)"),
        ("fit", (["ann"], [[[0.5, 0.5]]]), {}, "one-hot"),
        ("fit", (["ann"], [[{"O"}]]), {}, "y: sentence 1"),
    ],
    "reader": [
        ("predict", (PAIRS,), {"batch_size": 0}, "batch_size=0"),
        ("fit", (PAIRS, "rome"), {}, "y: 1 rows for 3 texts"),
        ("fit", (PAIRS[:1], [("rome", NAN)]), {}, "y: question 1"),
        ("fit", ([("where ?", "")], ["rome"]), {}, "empty (row 1)"),
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_sentence(name, request):
    model = request.getfixturevalue(name)
    for method, given, how, words in REFUSED[name]:
        assert words in message_of(getattr(model, method), *given, **how)


def test_one_sentence_of_load(opened, encoder):
    films, reader = opened["films"], opened["reader"]
    texts = {"a": TEXTS, "b": TEXTS, "c": TEXTS}
    ids = films.tokenize(TEXTS)
    model = bert_tf2.classifier(encoder, labels=["bad", "good"], max_seq_length=16)
    for call, words in (
        (lambda: films.classify({*TEXTS}), "give a list"),
        (lambda: films.embed(pandas().DataFrame(texts)), "give its column"),
        (lambda: films.embed(pandas().Series(["good", None])), "1 of 2 texts are missing (row 2)"),
        (lambda: films.tokenize(endless_dataset()), "endless"),
        (lambda: reader.answer("where ?", "in rome", null_score_diff_threshold=NAN), "null_score_diff_threshold=nan"),
        (lambda: bert_tf2.answerer(encoder, null_score_diff_threshold=INF), "null_score_diff_threshold=inf"),
        (lambda: bert_tf2.classifier(encoder, labels=["", "good"]), "empty"),
        (lambda: model.fit({**ids, "input_ids": ids["input_ids"] + 1000}, LABELS, **QUIET), "input_ids has 10"),
        (lambda: model.fit({**ids, "input_mask": ids["input_mask"][:2]}, LABELS, **QUIET), "'input_mask'"),
        (lambda: films.encoder({"input_ids": ids["input_ids"], "attention_mask": ids["input_mask"]}), "attention_mask"),
        (lambda: films.model({"input_ids": ids["input_ids"], "attention_mask": ids["input_mask"]}), "attention_mask"),
        (lambda: films.encoder([[5, 6], [7]]), "Bert.tokenize"),
        (lambda: films.encoder(TEXTS), "Bert.tokenize"),
        (lambda: films.embed(tf.constant("good")), "give a list"),
        (lambda: films.classify("good", window="8"), "window='8'"),
        (lambda: films.save_folder(""), "output_dir=''"),
        (lambda: bert_tf2.load(" "), "path=' '"),
        (lambda: bert_tf2.Tokenize(films, 16), "tokenizer"),
        (lambda: bert_tf2.Tokenize(films.tokenizer, 16, pad_to_max_length="no"), "pad_to_max_length='no'"),
        (lambda: bert_tf2.FullTokenizer(encoder), "directory"),
        (lambda: bert_tf2.FullTokenizer(["good"]), "vocab_file=['good']"),
    ):
        assert words in message_of(call)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"weights": None}, "weights=None"),
        ({"weights": ""}, "weights=''"),
        ({"labels": {0: "bad", 1: "good"}}, "must be a list of names"),
        ({"regression": True}, "regression=True, labels="),
        ({"labels": None, "regression": True, "multi_label": True}, "regression=True, multi_label=True"),
        ({"multi_label": "no"}, "multi_label='no'"),
        ({"max_seq_length": 0}, "max_seq_length=0"),
        ({"do_lower_case": "false"}, "do_lower_case='false'"),
        ({"random_seed": "x"}, "random_seed='x'"),
        ({"vocab_file": ["good"]}, "vocab_file=['good']"),
    ],
)
def test_one_sentence_of_classifier(encoder, given, words):
    assert words in message_of(bert_tf2.classifier, **{"weights": encoder, "labels": ["bad", "good"], **given})


def test_numbers_and_paths_of_other_types(encoder, films, names):
    for rate in (np.array(1e-9), np.float32(1e-9), tf.constant(1e-9)):
        films.compile(rate)
        assert films.get_compile_config()["optimizer"] == pytest.approx(1e-9)
    assert bert_tf2.FullTokenizer(encoder / "vocab.txt").entries == toy_data.VOCAB
    assert bert_tf2.BertConfig.from_json_file(encoder / "bert_config.json").hidden_size == 16
    with pytest.raises(TypeError, match="batchsize"):
        names.predict(SENTENCES, batchsize=2)


def endless_dataset():
    return tf.data.Dataset.from_tensor_slices(TEXTS).batch(2).repeat()
