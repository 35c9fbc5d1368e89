"""`bert_tf2.masked_lm`: its rows and masks, its loss, and the doors through which its model leaves."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from refused import refuses

import bert_tf2
from bert_tf2 import commands, exporting
from bert_tf2.data import records

TEXTS = [text for text, _ in toy_data.sentences(40, 1)]
LONG = " ".join(TEXTS[:8])
QUIET = {"verbose": 0}


def read(data: tf.data.Dataset) -> list[tuple]:
    """The batches (x, y, weights), and the ids before they were masked in place of x's ids."""
    found = []
    for x, y, weights in data.as_numpy_iterator():
        whole, (row, place) = x["input_ids"].copy(), np.nonzero(weights)
        whole[row, x["masked_lm_positions"][row, place]] = y[row, place]
        found.append((x, y, weights, whole))
    return found


def test_rows_and_masks(words):
    """Rows have all tokens in order; 15 % are masked, in each epoch of a training other tokens."""
    given, tokenizer = [LONG, " ", TEXTS[0]], words.tokenize.tokenizer
    wanted = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in given]
    rows = [[2, *ids[start : start + 14], 3] for ids in wanted for start in range(0, len(ids), 14)]
    ((x, _, weights, whole),) = read(words.dataset(given, batch_size=len(rows)))
    lengths = x["input_mask"].sum(1)
    assert [ids[:length].tolist() for ids, length in zip(whole, lengths, strict=True)] == rows
    assert weights.sum(1).tolist() == [max(1, round(0.15 * length)) for length in lengths]
    assert x["segment_ids"].max() == 0 and x["masked_lm_positions"].shape[1] == weights.sum(1).max()
    for data in (tf.data.Dataset.from_tensor_slices((given, [1, 2, 3])).batch(2), iter([given[:2], given[2]])):
        np.testing.assert_array_equal(read(words.dataset(data))[0][3], whole)
    endless = words.dataset(itertools.cycle([given[:2], given[2:]]), batch_size=len(rows)).take(2)
    for _, _, _, part in read(endless):
        np.testing.assert_array_equal(part, whole)

    passes, fit = [], keras.Model.fit

    def seen(self, data, *given, **more):
        for step in range(2):
            self.optimizer.iterations.assign(step)
            passes.append(read(data))
        passes.append(read(more["validation_data"]))
        return fit(self, data, *given, **more)

    words.compile(1e-9, run_eagerly=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.Model, "fit", seen)
        words.fit(TEXTS, validation_data=TEXTS[:9], shuffle=False, batch_size=60, **QUIET)
    (first,), (second,), (held_out,) = passes
    np.testing.assert_array_equal(first[3], second[3])
    assert (first[0]["masked_lm_positions"] != second[0]["masked_lm_positions"]).mean() > 0.3
    np.testing.assert_array_equal(held_out[0]["input_ids"], read(words.dataset(TEXTS[:9]))[0][0]["input_ids"])


def test_the_loss_and_the_accuracy_are_those_of_the_script(encoder, words, tmp_path):
    words.compile(1e-9, run_eagerly=True)
    ((x, y, weights, _),) = read(words.dataset(TEXTS, batch_size=100))
    batch = {**x, "masked_lm_ids": y, "masked_lm_weights": weights}
    (term,) = words.model.loss_terms(batch, tf.constant([0, 0]))
    sizes = {"max_seq_length": 16, "max_predictions_per_seq": 3}
    missing = {name: sizes["max_predictions_per_seq" if "masked" in name else "max_seq_length"] for name in batch}
    full = {name: np.pad(part, [[0, 0], [0, missing[name] - part.shape[1]]]) for name, part in batch.items()}
    path = str(tmp_path / "rows.tfrecord")
    rows = ({name: part[number] for name, part in full.items()} for number in range(len(y)))
    records.write_records(path, records.MASKED_WORDS, rows)
    files = {"input_file": path, "output_dir": str(tmp_path / "out"), "objective": "mlm", "do_eval": True, **sizes}
    files |= {
        "init_checkpoint": str(encoder / "bert_model.ckpt"),
        "bert_config_file": str(encoder / "bert_config.json"),
    }
    script = commands.call("run_pretraining", max_eval_steps=1, eval_batch_size=len(y), **files)
    found = words.evaluate(TEXTS, batch_size=7, return_dict=True, **QUIET)
    for name in ("masked_lm_loss", "masked_lm_accuracy"):
        assert found[name] == pytest.approx(script[name], rel=1e-5)
    loss = words.evaluate(TEXTS, batch_size=100, return_dict=True, **QUIET)["loss"]
    assert loss == pytest.approx(float(term.mean()), rel=1e-5) == pytest.approx(script["loss"], rel=1e-5)


@pytest.mark.slow
def test_it_learns_and_leaves_through_every_door(encoder, tmp_path):
    text_operations.need()
    model = bert_tf2.masked_lm(encoder, max_seq_length=16)
    model.compile(3e-3)
    model.train_on_batch(TEXTS[:3])
    history = model.fit(TEXTS, validation_split=0.25, batch_size=8, epochs=12, **QUIET).history["val_masked_lm_loss"]
    assert history[-1] < history[0] - 0.3 and int(model.optimizer.iterations) == 12 * 4
    asked = ["the film was [MASK] .", "[MASK] lives in [MASK]"]
    wanted = numbers_of(model.predict(asked))
    model.save(tmp_path / "words.keras")
    model.save_folder(tmp_path / "out")
    model.export(tmp_path / "served")
    again = keras.models.load_model(tmp_path / "words.keras")
    assert again.settings == model.settings
    for each in (again, bert_tf2.load(tmp_path / "out"), bert_tf2.masked_lm(tmp_path / "out")):
        np.testing.assert_allclose(numbers_of(each.fill_mask(asked)), wanted, rtol=1e-4)
    served = np.concatenate([answer["scores"] for answer in exporting.load(tmp_path / "served")(asked)])
    np.testing.assert_allclose(served, wanted, rtol=1e-4)
    films = bert_tf2.classifier(tmp_path / "out", labels=["bad", "good"])
    np.testing.assert_array_equal(films.model.bert.get_embedding_table(), model.model.get_output_table())


def numbers_of(answers) -> np.ndarray:
    """The probabilities of the five best words for each blank, [blanks, 5]."""
    return np.array([[one.probability for one in mask.predictions] for answer in answers for mask in answer.masks])


@pytest.mark.slow
def test_several_devices(encoder, two, tmp_path):
    """Two replicas have the masks and the losses of one, also where their parts of a batch are not equal."""
    with two.scope():
        shared = bert_tf2.masked_lm(encoder, max_seq_length=16)
    losses = []
    for model in (bert_tf2.masked_lm(encoder, max_seq_length=16), shared):
        model.compile(3e-3)
        history = model.fit(TEXTS[:37], batch_size=8, epochs=2, shuffle=False, **QUIET).history
        losses.append([history["loss"], history["masked_lm_loss"]])
    np.testing.assert_allclose(*losses, rtol=1e-4)
    shared.fit(itertools.cycle([[text] for text in TEXTS[:3]]), batch_size=2, steps_per_epoch=2, **QUIET)
    shared.save_folder(tmp_path)
    assert bert_tf2.load(tmp_path).fill_mask("the [MASK]").masks


@pytest.mark.filterwarnings("error:.*ran out of data")
def test_a_step_reads_a_batch_of_rows(encoder):
    """Also from texts without an end, whose batches have other sizes."""
    model = bert_tf2.masked_lm(encoder, max_seq_length=16)
    endless = tf.data.Dataset.from_tensor_slices(TEXTS[:3]).batch(1).repeat()
    for given in endless, itertools.cycle([[text] for text in TEXTS[:3]]):
        model.fit(given, batch_size=2, steps_per_epoch=2, epochs=2, **QUIET)
        assert int(model.optimizer.iterations.numpy()) == 4  # each `fit` begins a schedule


def test_wrong_calls(words, encoder):
    refuses("y: is not read here", words.fit, TEXTS, TEXTS)
    refuses("sample_weight: is not read", words.evaluate, TEXTS, sample_weight=[1])
    refuses("use `fill_mask` for texts", words, TEXTS)
    refuses("x: has no texts", words.fit, [" "])
    refuses("steps_per_epoch", words.fit, itertools.cycle([TEXTS]))
    refuses("validation_split: cannot divide", words.fit, iter([TEXTS]), validation_split=0.5)
    refuses("text 2: not a text", words.fit, ["a film", ("a film", "a book")])
    pairs = tf.data.Dataset.from_tensor_slices(((TEXTS, TEXTS), [1] * len(TEXTS))).batch(2)
    named = pairs.map(lambda x, y: {"one": x[0], "other": x[1]})
    for data in ((TEXTS, TEXTS), pairs, iter([((TEXTS, TEXTS), [1])]), pairs.repeat()):
        refuses("x: two columns of texts", words.dataset, data)
    refuses("x: 'one' 'other' column", words.dataset, named.repeat())
    refuses("text 1: no [MASK]", words.fill_mask, tf.data.Dataset.from_tensor_slices(["a film"]))
    refuses("max_predictions_per_seq=0: 1", bert_tf2.masked_lm, encoder, max_predictions_per_seq=0)
    refuses("max_seq_length=3: >= 5", bert_tf2.masked_lm, encoder, max_seq_length=3)
    refuses("random_seed= or less", bert_tf2.masked_lm, encoder, random_seed=2**31)
    refuses("masked_lm_prob=2.0: <= 1", bert_tf2.masked_lm, encoder, masked_lm_prob=2.0)
