"""`bert_tf2.embedder`: its losses and measures, what `fit` takes, and one vector through every door."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from refused import refuses

import bert_tf2
from bert_tf2 import commands, exporting
from bert_tf2.api import vectors as vectors_module

WORDS = [*toy_data.GOOD, *toy_data.BAD, *toy_data.PLACES, *toy_data.NAMES]
PAIRS = [(f"the {word} film", f"the {word} book") for word in WORDS]
TRIPLES = [(*pair, f"the {word} was") for pair, word in zip(PAIRS, reversed(WORDS), strict=True)]
SCORES = [number / 16 for number in range(16)]
TEXTS = ["the film was good .", "playing " * 30, "Zoë lives in Paris", ("a film", "playing")]
QUIET, SLOW = {"verbose": 0}, pytest.mark.slow


@pytest.fixture(scope="module")
def words(encoder):
    """A model that no test trains."""
    model = bert_tf2.embedder(encoder, max_seq_length=12)
    model.compile(run_eagerly=True)
    return model


def parts(rows) -> list[list[str]]:
    return [[*column] for column in zip(*rows, strict=True)]


def softmax_loss(anchors, candidates) -> np.ndarray:
    logits = anchors @ candidates.T / 0.05
    return np.log(np.exp(logits).sum(1)) - np.diag(logits)


def test_losses_and_measures(words):
    """In batches of 8 and all together, by their formulas; also with weights of rows."""
    anchors, positives, negatives = map(words.embed, parts(TRIPLES))
    cosines = np.sum(anchors * positives, 1)
    halves = [slice(8), slice(8, None)]
    losses = np.concatenate([softmax_loss(anchors[half], positives[half]) for half in halves])
    others = [np.concatenate([positives[half], negatives[half]]) for half in halves]
    hard = np.concatenate([softmax_loss(anchors[half], every) for half, every in zip(halves, others, strict=True)])
    order = (anchors @ np.concatenate([positives, negatives]).T).argsort(1)[:, ::-1]
    recalls = {f"recall@{k}": np.mean((order[:, :k] == np.arange(16)[:, None]).any(1)) for k in (1, 10)}
    assert 0 < recalls["recall@1"] < recalls["recall@10"]
    ranks = np.corrcoef(cosines.argsort().argsort(), np.arange(16))[0, 1]
    squares, weights = (cosines - SCORES) ** 2, np.linspace(0, 2, 16)
    for x, y, sample_weight, wanted in (
        (PAIRS, None, None, {"loss": losses.mean()}),
        (TRIPLES, None, None, {"loss": hard.mean(), **recalls}),
        (PAIRS, None, weights, {"loss": np.mean(losses * weights)}),
        (PAIRS, SCORES, None, {"loss": squares.mean(), "spearman": ranks}),
        (PAIRS, SCORES, weights, {"loss": np.mean(squares * weights)}),
    ):
        found = words.evaluate(x, y, 8, sample_weight=sample_weight, return_dict=True, **QUIET)
        assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-4)


def test_a_text_is_no_wrong_match_of_its_own_anchor(words):
    """Rows with the same positive, with the same anchor, and with both texts exchanged."""
    (a, b, c), (d, e, f), *others = TRIPLES[:5]
    rows = [(a, b, c), (d, b, f), (a, e, f), (b, a, c), *others]
    texts = [text for column in parts(rows)[1:] for text in column]
    cosines = words.embed(parts(rows)[0]) @ words.embed(texts).T
    losses = []
    for number, (anchor, positive, _) in enumerate(rows):
        right = {anchor, positive, *(row[1] for row in rows if row[0] == anchor)}
        wrong = [place for place, text in enumerate(texts) if text not in right]
        logits = cosines[number, [number, *wrong]] / 0.05
        losses.append(np.log(np.exp(logits).sum()) - logits[0])
    found = words.evaluate(rows, None, len(rows), return_dict=True, **QUIET)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-4)


@SLOW
def test_the_same_rows_in_any_container(words):
    pd, (first, second) = pytest.importorskip("pandas"), parts(PAIRS)
    table = pd.DataFrame({"question": first, "answer": second, "score": SCORES})
    data = tf.data.Dataset.from_tensor_slices
    pairs, scored = (words.evaluate(PAIRS, y, 16, **QUIET) for y in (None, SCORES))
    for x, y in (
        ((first, second), None),
        (np.array(PAIRS), None),
        (table[["question", "answer"]], table["score"]),
        ({"b": first, "a": second}, SCORES),
        (data((first, second)).batch(16), None),
        (data(PAIRS).batch(16), None),
        (data(({"b": first, "a": second}, SCORES)).batch(16), None),
        (iter([((first, second), SCORES)]), None),
        (iter([PAIRS]), None),
    ):
        found = words.evaluate(x, y, 16, steps=1 if hasattr(x, "__next__") else None, **QUIET)
        assert found == pytest.approx(scored if len(found) == 2 else pairs, rel=1e-5)
    assert words.train_on_batch(PAIRS) > 0 and words.test_on_batch(PAIRS, SCORES) > 0


@pytest.mark.parametrize(
    ("message", "call", "given"),
    [
        ("x row 1 1 text an anchor and its positive", "fit", (["a b", "a"],)),
        ("x row 2 3 texts 2", "fit", ([("a", "b"), ("a", "b", "c")],)),
        ("x rows empty text 2", "fit", ([("a", "b"), ("a", " ")],)),
        ("y row 2 4.2 divide", "fit", (PAIRS[:2], [0.1, 4.2])),
        ("y rows 3 texts", "fit", (TRIPLES[:1], [0.1])),
        ("y 1 rows 2", "fit", (PAIRS[:2], [0.1])),
        ("y: row 2 nan", "fit", (PAIRS[:2], [0.1, None])),
        ("y: numbers 'high'", "fit", (PAIRS[:2], ["high", "low"])),
        ("validation_data no texts", "fit", (PAIRS, None, 8, 1, 0, None, 0.0, [])),
        ("vectors nan", "search", ("a", np.full([2, 16], np.nan))),
        ("temperature 0", "compile", (1e-3, None, None, 0.0)),
        ("top_k", "search", ("a", ["b"], 0)),
        ("16 3", "similarity", ("a", np.zeros([2, 3]))),
        ("shape [2, 2, 16] [N, D]", "search", (np.zeros([2, 2, 16]), ["a"])),
        ("shape []", "similarity", ("a", np.float32(3))),
        ("text", "fit", (tf.data.Dataset.from_tensor_slices(["a"]).batch(1),)),
    ],
)
def test_refused(words, message, call, given):
    refuses(message, getattr(words, call), *given)


def test_one_pair_alone_learns_nothing(words, log_lines, monkeypatch):
    monkeypatch.setattr(keras.Model, "fit", lambda self, data, **_: keras.callbacks.History())
    words.fit(PAIRS[:2])
    assert not log_lines
    for given, batch_size in ((PAIRS[:1], 32), (PAIRS, 1)):
        words.fit(given, batch_size=batch_size)
        assert "one pair" in log_lines.pop()


def test_similarity_and_search(words):
    first, second = parts(PAIRS)
    wanted = words.embed(first) @ words.embed(second).T
    np.testing.assert_allclose(words.similarity(first, second), wanted, atol=1e-6)
    assert words.similarity(first[0], second).shape == (16,) and words.similarity(first[0], second[0]).shape == ()
    for corpus in (second, words.embed(second).astype(np.float16)):
        indexes, scores = words.search(first, corpus, top_k=3)
        order = np.argsort(-wanted, axis=1, kind="stable")[:, :3]
        np.testing.assert_allclose(scores, np.take_along_axis(wanted, order, 1), atol=1e-3)
        assert isinstance(corpus, np.ndarray) or (indexes == order).all()
    tensors = [*tf.data.Dataset.from_tensor_slices(second)][:2]  # two texts, and no pair
    np.testing.assert_allclose(words.embed(tensors), words.embed(second[:2]), atol=1e-6)
    alone = words.search(first[0], ["book", *second, "book"], top_k=40)
    assert alone.indexes.shape == (18,) and sorted(alone.indexes) == [*range(18)]
    assert words.search([], second).indexes.shape == (0, 10) and words.search(first, []).scores.shape == (16, 0)


def test_search_among_more_vectors_than_are_compared_at_once(words):
    queries, corpus = (np.random.default_rng(count).normal(size=[count, 4]) for count in (4100, 4200))
    indexes, scores = words.search(queries, corpus, top_k=3)
    wanted = words.similarity(queries, corpus)
    np.testing.assert_allclose(scores, np.sort(wanted, axis=1)[:, :-4:-1], atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(wanted, indexes, 1), scores, atol=1e-6)


@pytest.mark.parametrize(
    ("pooling", "normalize"),
    [("cls", False), pytest.param("mean", True, marks=SLOW), pytest.param("max", True, marks=SLOW)],
)
def test_one_vector(encoder, tmp_path, pooling, normalize):
    """Trained, saved and exported: the vectors are those of `embed`; an earlier copy may be replaced."""
    text_operations.need()
    keras.utils.set_random_seed(1)
    model = bert_tf2.embedder(encoder, pooling, normalize, max_seq_length=12)
    untrained = model.embed(TEXTS)
    model.compile(5e-3, temperature=0.1)
    held_out = {"validation_data": PAIRS[8:], "callbacks": [keras.callbacks.EarlyStopping("val_recall@1", mode="max")]}
    assert "val_recall@10" in model.fit(TRIPLES, batch_size=8, epochs=2, **held_out, **QUIET).history
    history = model.fit(PAIRS, SCORES, batch_size=8, epochs=3, validation_split=0.25, **QUIET).history
    assert history["loss"][-1] < history["loss"][0] and len(history["val_spearman"]) == 3
    wanted, folder, file = model.embed(TEXTS), tmp_path / "vectors", tmp_path / "vectors.keras"
    assert np.abs(wanted - untrained).max() > 1e-3
    np.testing.assert_allclose(model(TEXTS), wanted, atol=1e-6)
    model.save(file)
    again = keras.models.load_model(file)
    assert again.temperature == 0.1 and again.get_compile_config()["optimizer"] == 5e-3
    for _ in range(2):
        model.save_folder(folder)
    bert_tf2.load(folder).save_folder(tmp_path / "copy")
    for each in (bert_tf2.load(folder), bert_tf2.load(tmp_path / "copy"), bert_tf2.embedder(folder), again):
        np.testing.assert_allclose(each.embed(TEXTS), wanted, atol=1e-6)
    model.export(tmp_path / "served")
    asked = [*TEXTS, "a \ud83d film"]  # half of a character
    served = exporting.load(str(tmp_path / "served"))(asked)
    np.testing.assert_allclose([row["vector"] for row in served], model.embed(asked), atol=1e-5)
    (tmp_path / "texts.txt").write_text("\n".join(" ||| ".join(t) if isinstance(t, tuple) else t for t in TEXTS))
    files = {"bert_config_file": folder / "config.json", "vocab_file": folder / "vocab.txt", "init_checkpoint": folder}
    files |= {"input_file": tmp_path / "texts.txt", "output_file": tmp_path / "vectors.npy"}
    how = {"layers": "-1", "pooling": pooling, "max_seq_length": 12}
    commands.call("extract_features", **{name: str(path) for name, path in files.items()}, **how)
    found = np.load(tmp_path / "vectors.npy")
    np.testing.assert_allclose(vectors_module.unit(found) if normalize else found, wanted, atol=1e-5)
    refuses("another model", bert_tf2.embedder(encoder, "max", False).save_folder, folder)
    refuses("another model", model.save_folder, encoder)


@SLOW
def test_several_devices(encoder, two):
    """The texts of all replicas are negatives of each row, also in a last batch of one row."""
    with two.scope():
        shared = bert_tf2.embedder(encoder, max_seq_length=12)
    models, histories = (bert_tf2.embedder(encoder, max_seq_length=12), shared), []
    for model in models:
        model.compile(1e-2)
        histories.append(
            model.fit(
                [*TRIPLES[:2], *TRIPLES[:11]], batch_size=4, epochs=2, shuffle=False, validation_data=PAIRS, **QUIET
            )
        )
    np.testing.assert_allclose(*(history.history["val_loss"] for history in histories), rtol=1e-3)
    np.testing.assert_allclose(*(model.embed(WORDS) for model in models), atol=1e-4)


OTHERS = pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("cls", False), ("max", True)])


@pytest.mark.extra
@OTHERS
def test_sentence_transformers_answers_equally(encoder, tmp_path, pooling, normalize):
    """With the cut of long texts, and the case, of the folder that `save_folder` writes."""
    library = pytest.importorskip("sentence_transformers", reason="make interop")
    texts = [text for text in TEXTS if isinstance(text, str)]
    model = bert_tf2.embedder(encoder, pooling, normalize, max_seq_length=12)
    model.save_folder(tmp_path)
    there = library.SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_allclose(there.encode(texts), model.embed(texts), atol=1e-5)
    np.testing.assert_allclose(there.similarity(*[there.encode(texts)] * 2), model.similarity(texts, texts), atol=1e-5)


@pytest.mark.extra
@OTHERS
def test_onnx_runtime_answers_equally(encoder, tmp_path, pooling, normalize):
    runtime = pytest.importorskip("onnxruntime", reason="make runtimes")
    model = bert_tf2.embedder(encoder, pooling, normalize, max_seq_length=12)
    model.export(tmp_path / "export", format="onnx")
    session = runtime.InferenceSession(tmp_path / "export" / "model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["vector"], {name: np.array(part) for name, part in model.tokenize(WORDS).items()})
    np.testing.assert_allclose(found, model.embed(WORDS), atol=1e-5)
