"""The calls that take texts and labels: every container gives one answer, every mistake a UserError of one line."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from refused import message_of, refuses

import bert_tf2
from bert_tf2.data.rows import INPUTS

pandas, polars, pyarrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
pytest.importorskip("tensorflow_text")

QUIET = {"verbose": 0}
NAN = float("nan")
TEXTS = ["a lovely film", "the book was sad .", "good"]
SENTENCES = ["ann lives in rome", "the film was good .", "bob was here"]
LABELS, TAGS = ["good", "bad", "good"], ["NAME O O O", "O O O O O", "NAME O O"]
PAIRS = [("where ?", text) for text in SENTENCES]
THREE = {"a": TEXTS, "b": TEXTS, "c": TEXTS}


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


def data(*columns):
    return tf.data.Dataset.from_tensor_slices(columns if len(columns) > 1 else columns[0]).batch(3)


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
BATCHES = {
    "dataset": data,
    "dataset of dicts": lambda rows: data({"text": rows}),
    "PyDataset of arrays": lambda rows: Batches(np.array(rows)),
}
TABLES = {
    "pandas": pandas.DataFrame,
    "polars": polars.DataFrame,
    "arrow": pyarrow.table,
    "dict": dict,
    "booleans": lambda columns: pandas.DataFrame(columns).astype(bool),
}


@pytest.fixture(scope="module")
def ids(opened):
    """TEXTS as arrays, which every model of texts takes in the place of texts: nothing is tokenized in a graph then."""
    return opened["films"].tokenize(TEXTS)


def measures(model) -> list[float]:
    """The cross-entropy and the accuracy of LABELS."""
    found, right = model(TEXTS).numpy(), [model.labels.index(label) for label in LABELS]
    return [-np.log(found[range(3), right]).mean(), (found.argmax(1) == right).mean()]


def parts_of(batches) -> list:
    """The values behind x in a dataset, as arrays."""
    return [np.concatenate(parts) for parts in zip(*(others for _, *others in batches), strict=True)]


# Right ones


def test_texts_in_every_container(films, names, words, opened, ids):
    bert, tagger, wanted = opened["films"], opened["names"], films(ids)
    blanks = [f"{text} [MASK]" for text in TEXTS]
    filled = opened["words"].fill_mask(blanks)
    tags = tagger.tag([text.split() for text in SENTENCES])
    for kind, make in {**COLUMNS, **BATCHES, "generator": iter}.items():
        np.testing.assert_array_equal(bert.tokenize(make(TEXTS))["input_ids"], ids["input_ids"], err_msg=kind)
        assert words.predict(make(blanks)) == filled, kind
        if kind in COLUMNS:
            found = films.tokenize(make(TEXTS))["input_ids"]
            np.testing.assert_array_equal(found, ids["input_ids"], err_msg=kind)
        else:
            assert tagger.tag(make(SENTENCES)) == tags, kind
        if kind != "generator":  # of texts, and not of batches
            assert names.predict(make(SENTENCES)) == tags, kind
        if kind in ("dataset of dicts", "PyDataset of arrays"):
            np.testing.assert_allclose(films.predict(make(TEXTS), **QUIET), wanted, atol=1e-5, err_msg=kind)
    half = ["good \ud83d film"]  # of a character
    np.testing.assert_array_equal(films.tokenize(half)["input_ids"], bert.tokenize(half)["input_ids"])
    assert names.predict(half) == tagger.tag(half)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("films", [[1, 0, 1], [1, 2, 0.5]]),
        ("names", [[[0, 1, 0, 0, 0, 0], [0] * 7, [0, 1, 0, 0, 0]], [[0, 1, 1, 1, 1, 0]]]),
        ("reader", [[[7, 7], [5, 5], [6, 6]], [[1], [2], [0.5]]]),
    ],
)
def test_labels_in_every_container(name, first, given, request):
    """With weights of rows; `first` has the first numbers of each row."""
    model, weights = request.getfixturevalue(name), [1.0, 2.0, 0.5]
    x, y = given[name].values()
    wanted = parts_of(model.dataset(x, y, weights))
    for part, rows in zip(wanted, first, strict=True):
        for row, start in zip(part, rows, strict=False):
            np.testing.assert_array_equal(row[: len(start)] if np.ndim(row) else row, start)
    for kind, make in COLUMNS.items():
        for one, other in zip(parts_of(model.dataset(x, make(y), make(weights))), wanted, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=kind)


def test_a_table_with_its_labels_is_no_table_of_pairs(films, log_lines):
    for second, warns in ((["good", "bad"], True), (["good", "a book"], False)):
        parts_of(films.dataset(pandas.DataFrame({"text": ["a film", "a book"], "label": second})))
        assert [line for line in log_lines if "is a label (bad, good)" in line] == log_lines[: int(warns)]
        log_lines.clear()


def test_labels_as_vectors(films, names, scores, topics, ids):
    one_hot, is_good = np.eye(2)[[1, 0, 1]], np.array([True, False, True])
    table = pandas.DataFrame(one_hot[:, ::-1], columns=["good", "bad"])
    few = pytest.importorskip("scipy.sparse").csr_matrix(one_hot)
    for y in (one_hot, table, few, [1, 0, 1], is_good, data(ids, one_hot), data(ids, is_good)):
        found = films.dataset(y) if isinstance(y, tf.data.Dataset) else films.dataset(ids, y)
        assert parts_of(found)[0].tolist() == [1, 0, 1]
    tags = [text.split() for text in TAGS]
    vectors = [np.eye(2)[[names.labels.index(tag) for tag in row]] for row in tags]
    found, wanted = (parts_of(names.dataset(SENTENCES, y)) for y in (vectors, tags))
    np.testing.assert_array_equal(found[0], wanted[0])
    for given in ((ids, [[1.0], [2.0], [3.0]]), (data(ids, [[1.0], [2.0], [3.0]]),)):
        assert parts_of(scores.dataset(*given))[0].tolist() == [1, 2, 3]
    rows = [[1, 0, 0], [0, 1, 1], [0, 0, 0]]  # as many as columns, which stand in another order than the labels
    columns = {label: [row["abc".index(label)] for row in rows] for label in "cab"}
    for y in (*(make(columns) for make in TABLES.values()), [["a"], ["b", "c"], []], np.array(rows)):
        np.testing.assert_array_equal(parts_of(topics.dataset(ids, y))[0], rows)


def test_pairs_in_every_container(films, reader, opened):
    columns, bert, wanted = {"question": ["where ?"] * 3, "paragraph": SENTENCES}, opened["films"], films(PAIRS)
    pairs, answers = bert.tokenize(PAIRS), reader.predict(PAIRS)
    kinds = {kind: make(columns) for kind, make in TABLES.items() if kind != "booleans"}
    kinds |= {kind: tuple(map(COLUMNS[kind], columns.values())) for kind in ("tuple", "tensor", "Series")}
    for kind, table in {**kinds, "array": np.array(PAIRS)}.items():
        for found in (bert.tokenize(table), films.tokenize(table)):
            assert all(np.array_equal(found[name], values) for name, values in pairs.items()), kind
        assert reader.predict(table) == answers, kind
    np.testing.assert_allclose(films(kinds["pandas"]), wanted)
    assert np.abs(films(SENTENCES) - wanted).max() > 1e-3
    answer = opened["reader"].answer
    assert answer(*map(pandas.Series, columns.values())) == answer(*columns.values())


def test_batches_of_generators_and_pydatasets(films, names, reader, ids):
    """As in Keras: `steps` batches are read, no more, and none is left out between two calls."""
    read = []

    def counted():
        for batch in endless(ids, LABELS):
            read.append(1)
            yield batch

    given = counted()
    films.compile(1e-9, run_eagerly=True)
    how = {"steps_per_epoch": 2, "validation_data": Batches(np.array(TEXTS), LABELS), **QUIET}
    history = films.fit(given, epochs=2, class_weight={"good": 1.0}, **how).history
    found = [history["val_loss"][1], history["val_accuracy"][1]]
    np.testing.assert_allclose(found, measures(films), atol=1e-4)
    assert len(read) == 4
    np.testing.assert_allclose(films.evaluate(given, steps=2, **QUIET), measures(films), atol=1e-4)
    assert len(read) == 6
    assert names.predict(endless(SENTENCES), steps=2) == names.predict(SENTENCES * 2)
    found, wanted = reader.predict(endless(PAIRS), steps=2), reader.predict(PAIRS * 2)
    assert [each.text for each in found] == [each.text for each in wanted]
    names.compile(1e-9, run_eagerly=True)
    batches = Batches(SENTENCES, TAGS)
    assert len(names.fit(batches, validation_data=batches, **QUIET).history["val_loss"]) == 1
    wrong = iter([(ids, LABELS), (ids, ["maybe"] * 3)])
    assert "maybe" in message_of(films.evaluate, wrong, steps=2, **QUIET)
    films.compile("sgd", run_eagerly=True)
    assert "has ended" in message_of(films.fit, iter([(ids, LABELS)]), epochs=2, **QUIET)


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_order_of_a_pydataset(films, shuffle):
    class Noted(Batches):
        def __getitem__(self, number):
            read.append(number)
            return super().__getitem__(number)

    read, batches = [], Noted([*TEXTS] * 8, [*LABELS] * 8)
    films.compile(1e-9, run_eagerly=True)
    films.fit(batches, epochs=2, shuffle=shuffle, **QUIET)
    for epoch in (read[-24:-12], read[-12:]):
        assert sorted(epoch) == [*range(12)] and (epoch != sorted(epoch)) == shuffle


def test_labels_may_be_their_indexes(encoder):
    assert bert_tf2.classifier(encoder, labels=[0, 1], max_seq_length=16).labels == ["0", "1"]
    stars = bert_tf2.classifier(encoder, labels=["1", "2", "3"], max_seq_length=16)
    assert next(iter(stars.dataset(TEXTS, ["1", "2", "3"])))[1][1] == 1
    data = tf.data.Dataset.from_tensors((TEXTS, [1, 2, 1]))
    for x, *y in ((TEXTS, [1, 2, 1]), (data,)):  # stars, which would be taken as indexes of other stars
        refuses("y: 1 index texts", stars.evaluate, x, *y, **QUIET)
    refuses("class_weight: 2 index texts", stars.fit, TEXTS, ["1", "2", "1"], class_weight={2: 1.0}, **QUIET)


def test_numbers_of_numpy_are_those_of_python(encoder, tmp_path):
    """Also in the files of a model."""
    eight, three, yes = np.int64(8), np.int64(3), np.bool_(True)
    how = {"window": eight, "stride": three, "random_seed": three, "multi_label": yes}
    bert_tf2.classifier(encoder, np.array(["a", "b"]), **how).save_folder(tmp_path / "windows")
    bert_tf2.tagger(encoder, ["O", "X"], max_seq_length=eight, stride=three).save_folder(tmp_path / "tags")
    reader = bert_tf2.answerer(encoder, max_seq_length=eight * 4, doc_stride=eight, may_be_missing=yes)
    reader.save_folder(tmp_path / "reader")
    bert_tf2.embedder(encoder, normalize=yes, max_seq_length=eight).save_folder(tmp_path / "vectors")
    bert, text = bert_tf2.load(tmp_path / "windows"), "good film " * 9
    assert bert.classify(text) == bert.classify(text, window=eight, stride=three)
    assert bert.embed(text, layers=[three - 3], max_seq_length=eight).shape == (16,)
    assert bert_tf2.Tokenize(bert.tokenizer, eight)(text)["input_ids"].shape == (1, 8)


def test_single_batches_and_shares_of_labels(encoder, ids):
    """`train_on_batch` has a constant rate. Shares [N, L] are for a loss that compares vectors."""
    keras.utils.set_random_seed(1)  # of the dropout
    model = bert_tf2.classifier(encoder, labels=["bad", "good"], max_seq_length=16)
    model.compile(1e-2, run_eagerly=True)
    losses = []
    for _ in range(8):
        model.reset_metrics()  # in Keras 3.12, the answer is the mean of all calls
        losses.append(float(model.train_on_batch(ids, LABELS, class_weight={"good": 1.0})[0]))
    assert losses[-1] < losses[0] / 2
    model.reset_metrics()
    found = model.test_on_batch(ids, LABELS, return_dict=True)
    np.testing.assert_allclose([found["loss"], found["accuracy"]], measures(model), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.predict_on_batch(ids), model(ids), atol=1e-6)
    model.compile(1e-9, loss="kl_divergence", run_eagerly=True)
    shares, found = np.array([[0.45, 0.55], [0.9, 0.1], [0.0, 1.0]]), model(ids).numpy()
    wanted = [np.mean(np.sum(y * np.log(np.clip(y, 1e-7, 1) / found), 1)) for y in (shares, np.eye(2)[[1, 0, 1]])]
    losses = [model.evaluate(*given, **QUIET)[0] for given in ((ids, shares), (data(ids, shares),), (ids, LABELS))]
    np.testing.assert_allclose(losses, [wanted[0], wanted[0], wanted[1]], rtol=1e-3, atol=1e-5)


# Wrong ones


@pytest.fixture(scope="module")
def given(ids):
    """model -> right arguments, which WRONG changes."""
    return {
        "films": {"x": ids, "y": LABELS},
        "topics": {"x": ids, "y": [["a"], [], ["b"]]},
        "scores": {"x": ids, "y": [1.5, 2.0, -3.25]},
        "names": {"x": SENTENCES, "y": TAGS},
        "reader": {"x": PAIRS, "y": ["rome", "film", "here"]},
    }


def alone(x):
    """Batches, which have their labels already."""
    return {"x": x, "y": None}


# model -> (method, what it changes in the right arguments, a word of the message)
WRONG = {
    "films": [
        ("fit", {"class_weight": {"good": NAN}}, "class_weight"),
        ("fit", {"class_weight": {"maybe": 1.0}}, "'maybe'"),
        ("fit", {"class_weight": [1.0, 2.0]}, "dict"),
        ("fit", {"epochs": 0}, "epochs=0"),
        ("fit", {"validation_freq": 0}, "validation_freq=0"),
        ("fit", {"validation_split": 0.999}, "validation_split=0.999"),
        ("fit", {"validation_data": endless(TEXTS, LABELS)}, "validation_steps"),
        *(
            ("fit", {"validation_batch_size": 0, **rows}, "validation_batch_size=0: ")
            for rows in ({"validation_data": (TEXTS, LABELS)}, {"validation_split": 0.5})
        ),
        *((f"{name}_on_batch", alone(data(TEXTS, LABELS)), "y: is missing") for name in ("train", "test")),
        ("fit", {"callbacks": keras.callbacks.ReduceLROnPlateau("loss")}, "AdamWeightDecay"),
        ("fit", {"sample_weight": [1, -1, 1]}, "sample_weight: row 2"),
        *((name, {"sample_weight": [0, 0, 0]}, "sample_weight: is 0 for all rows") for name in ("fit", "evaluate")),
        ("fit", {"class_weight": {"bad": 0.0, 1: 0}}, "class_weight: is 0 for all labels"),
        ("fit", {"validation_data": (TEXTS, LABELS, [0, 0, 0])}, "validation_data: sample_weight: is 0"),
        ("fit", {"x": endless(TEXTS, LABELS)}, "y: x has batches"),
        ("fit", alone(endless(TEXTS, LABELS)), "steps_per_epoch"),
        ("fit", {**alone(iter([])), "steps_per_epoch": 1}, "generator"),
        ("fit", {**alone(iter([("a", "good")])), "steps_per_epoch": 1}, "give batches"),
        ("fit", {**alone(iter([(TEXTS, LABELS, None, 0)])), "steps_per_epoch": 1}, "4 parts"),
        ("fit", alone(data(tf.ragged.constant([["a"], ["b", "c"], ["d"]]), LABELS)), "ragged"),
        ("fit", {"y": pandas.DataFrame({"bad": [1, 0, 1], "fine": [0, 1, 0]})}, "column: 'fine'"),
        ("fit", {"y": pandas.DataFrame({"c": [1, 0, 1], "d": [0, 1, 0]})}, "column: 'c'"),
        *(("fit", {"y": None, "sample_weight": weights}, "y: is missing") for weights in (None, [1, 0, 1])),
        ("fit", {"x": [], "y": []}, "x: has no texts"),
        *(
            (name, alone(data(TEXTS, LABELS).filter(lambda *_: False)), "x: has no texts")
            for name in ("fit", "evaluate")
        ),
        ("evaluate", alone(data({"id": [1, 2, 3], "text": TEXTS}, LABELS)), "text 1: (1, "),
        *(
            (
                "evaluate",
                {"x": {each: np.array([[wrong if each == name else 0]] * 3) for each in INPUTS}},
                f"x: {name} has",
            )
            for name, wrong in (("input_ids", 99), ("input_mask", 2), ("segment_ids", 2), ("segment_ids", -1))
        ),
        ("predict", {"x": tf.constant("good")}, "give a list"),
        ("dataset", {"x": {*TEXTS}}, "give a list"),
        ("dataset", {"x": [1.5, "a", "a"]}, "text 1: 1.5"),
        ("dataset", {"x": THREE}, "give its column"),
        ("dataset", {"x": (("a", "b"), ("c", "d"))}, "two tuples"),
        ("dataset", {"x": ["good", None, NAN]}, "missing (rows 2, 3)"),
        ("dataset", {"x": (TEXTS, TEXTS[:2])}, "3 first texts of pairs, but 2"),
        ("dataset", {"y": LABELS[:2]}, "y: 2 rows for 3 texts"),
        ("dataset", {"y": ["good", "", None]}, "labels are empty (rows 2, 3)"),
        *(("dataset", {"y": [wrong] * 3}, f"'{wrong}' is not one of the labels bad, good") for wrong in ("maybe", 2)),
        ("dataset", {"y": [["bad", "good"]] * 3}, "multi_label=True"),
        ("dataset", {"y": [[0.45, 0.55]] * 3}, "kl_divergence"),
        ("dataset", alone(data(TEXTS, LABELS).unbatch()), "dataset.batch(32)"),
        ("compile", {"optimizer": -1.0}, "optimizer="),
        ("compile", {"loss": "sparse_categorical_crossentropy", "metrics": [keras.metrics.F1Score()]}, "categorical"),
        *(("save", {"filepath": wrong}, f"{wrong}: its name must end in .keras") for wrong in ("films.h5", "films")),
    ],
    "topics": [
        *(("dataset", {"y": [[0, 1, 0], [wrong, 0, 0], [0, 0, 0]]}, "y: row 2") for wrong in (2, 0.5, NAN)),
        ("dataset", {"y": {"a": [1, 0, 1], "b": [0, 0, 0], "d": [0, 0, 0]}}, "'d'"),
    ],
    "scores": [
        *(("dataset", {"y": [1, 2, wrong]}, "numbers") for wrong in (10**400, "much")),
        ("dataset", {"y": np.ones([3, 2])}, "one number"),
        ("fit", {"class_weight": "balanced"}, "sample_weight"),
    ],
    "names": [
        ("compile", {"metrics": [keras.metrics.F1Score()]}, "F1Score"),
        ("dataset", {"x": ["ann", "", " "]}, "empty (rows 2, 3)"),
        ("evaluate", {"sample_weight": [0, 0, 0]}, "sample_weight: is 0 for all rows"),
        ("dataset", {"x": [["a", 1]] * 3}, "sentence 1"),
        ("dataset", {"y": [["X"]] * 3}, "'X' is not one of the labels O, NAME"),
        ("dataset", {"y": ["O"] * 3}, "4 words, but 1 tags"),
        ("dataset", {"y": [[[0.5, 0.5]]] * 3}, "one-hot"),
        ("dataset", {"y": [NAN] * 3}, "sentence 1"),
        ("dataset", alone(data(SENTENCES, TAGS).repeat()), "endless"),
        ("dataset", alone(data(["ann", "lives"], ["O", "O"])), "ragged_batch(32)"),
        ("__call__", {"inputs": SENTENCES}, "predict"),
    ],
    "reader": [
        ("predict", {"x": ["where"]}, "(question, paragraph)"),
        ("dataset", {"y": ["Paris"] * 3}, "question 1"),
        ("dataset", {"y": [None] * 3}, "y: question 1"),
        ("dataset", {"y": [("rome", 99)] * 3}, "question 1 has 'rome' at 99, after the end"),
        ("dataset", {"y": [""] * 3}, "may_be_missing"),
        ("dataset", {"x": [("where ?", "")] * 3}, "empty text (rows 1"),
        ("fit", {"class_weight": {0: 1}}, "sample_weight"),
    ],
}
# model -> labels, and weights, that the graph finds to be wrong, and a word of the message
WRONG_BATCHES = {
    "films": [(["schön"] * 3, "'schön' is not one of the labels"), (LABELS, [1.0, NAN, 1.0], "sample_weight")],
    "topics": [([[2, 0, 0]] * 3, "1 or 0")],
    "scores": [(np.ones([3, 2]), "one number"), ([1.0, NAN, 2.0], "nan")],
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_of_calls_of_a_model(name, request, given):
    model = request.getfixturevalue(name)
    model.compile(1e-9)
    takes = {"fit": ("x", "y"), "evaluate": ("x", "y"), "dataset": ("x", "y"), "predict": ("x",)}
    for method, changes, words in WRONG[name]:
        right = {part: given[name][part] for part in takes.get(method, ())}
        assert words in message_of(getattr(model, method), **{**right, **changes}), (method, changes)
    for *columns, words in WRONG_BATCHES.get(name, ()):
        model.compile(1e-9, run_eagerly=True)
        assert words in message_of(model.evaluate, data(given[name]["x"], *columns), **QUIET), columns


def test_mistakes_of_calls_of_a_folder(opened, encoder):
    """Of the methods of `load`'s result, and of the functions and classes themselves."""
    bert, words, reader = opened["films"], opened["words"], opened["reader"]
    classifier = functools.partial(bert_tf2.classifier, encoder)
    for part, call, *given in (
        ("max_seq_length", lambda: words.embed("a", max_seq_length=65)),
        ("pooling='sum'", words.embed, "a", "sum"),
        *(("layers", lambda wrong=wrong: words.embed("a", layers=wrong)) for wrong in (2, [])),
        ("text 1", words.embed, [("a", "b", "c")]),
        ("text 2: 5", bert.classify, ["good", 5]),
        ("give its column", bert.embed, pandas.DataFrame(THREE)),
        ("endless", bert.tokenize, data(TEXTS).repeat()),
        ("[MASK]", words.fill_mask, "no blank"),
        ("top_k=0", words.fill_mask, "[MASK]", 0),
        ("texts", words.fill_mask, b"hello"),
        ("window='8'", lambda: bert.classify("good", window="8")),
        ("pooling='sum'", lambda: bert.classify("good", pooling="sum")),
        ("run_ner.py", bert.tag, ["a"]),
        ("masked-LM head", bert.fill_mask, "[MASK]"),
        ("masked-LM head", bert.score, "a text"),
        ("text 2: holds [MASK]", words.score, ["a text", "a [MASK]"]),
        ("next-sentence head", bert.next_sentence, ("a", "b")),
        ("sentence 1: 5", opened["names"].tag, [5]),
        ("paragraph=' '", reader.answer, "where ?", " "),
        ("threshold=nan", lambda: reader.answer("where ?", "in rome", null_score_diff_threshold=NAN)),
        ("attention_mask", bert.encoder, {"input_ids": [[5]], "attention_mask": [[1]]}),
        ("Bert.tokenize", bert.encoder, TEXTS),
        ("tokenizer", bert_tf2.Tokenize, bert, 16),
        ("directory", bert_tf2.FullTokenizer, encoder),
        ("labels=", bert_tf2.tagger, encoder),
        ("stride", lambda: bert_tf2.answerer(encoder, stride=3)),
        ("weights=''", bert_tf2.classifier, "", ["a", "b"]),
        ("labels=", classifier),
        ("list of names", classifier, {"a", "b"}),
        ("empty", classifier, ["", "good"]),
        ("labels=", lambda: classifier(["a", "b"], regression=True)),
        ("multi_label=True", lambda: classifier(regression=True, multi_label=True)),
        ("bad, good; leave multi_label", lambda: bert_tf2.classifier(bert.path, multi_label=True)),
        ("not for a score; leave regression", lambda: bert_tf2.classifier(bert.path, regression=True)),
        ("max_seq_length=0", lambda: classifier(["a", "b"], max_seq_length=0)),
        ("vocab_file=['good']", lambda: classifier(["a", "b"], vocab_file=["good"])),
        ("within", tf.function(lambda: words.embed(["good"]))),
        ("within", tf.function(lambda: words.fill_mask(["[MASK]"]))),
    ):
        assert part in message_of(call, *given), part
    assert classifier(np.arange(2)).labels == ["0", "1"]
