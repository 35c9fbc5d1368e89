"""predict_masked.py: the answers of the model itself, however they are asked for, and the errors."""

from __future__ import annotations

import io
import json
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from refused import message_of

from bert_tf2 import commands, heads
from bert_tf2.config import BertConfig
from bert_tf2.pretraining import predict_masked
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.training.devices import build_model, create_strategy
from bert_tf2.weights import checkpoint

WORDS = ["paris", "berlin", "is", "the", "capital", "of", "play", "##ing", "she", "piano", ".", "[", "]", "sep", "北"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CONFIG = BertConfig(
    vocab_size=len(VOCAB), hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=32, type_vocab_size=2, initializer_range=0.7,  # every sentence gets answers of its own
)  # fmt: skip
TEXTS = [
    "Paris is the [MASK] of berlin.",
    "[MASK]",
    "she [MASK] play[MASK] the piano . [MASK]",
    "the capital ||| is [MASK] paris",
    "[MASK] [MASK] berlin paris capital of the piano [MASK] .",
]


@pytest.fixture(scope="module")
def model():
    return build_model(create_strategy(), lambda: heads.PretrainingModel(CONFIG), 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model):
    """Vocabulary, configuration and checkpoint, as a pretraining run leaves them."""
    path = tmp_path_factory.mktemp("model")
    (path / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCAB), encoding="utf-8")
    (path / "bert_config.json").write_text(CONFIG.to_json_string())
    checkpoint.CheckpointFolder(str(path)).save(checkpoint.tf1_variables(model), 7)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder):
    return FullTokenizer(str(folder / "vocab.txt"))


@pytest.fixture
def call(folder):
    """Runs the script with the model of the folder."""
    paths = {"bert_config_file": "bert_config.json", "init_checkpoint": "", "vocab_file": "vocab.txt"}
    paths = {name: str(folder / path) for name, path in paths.items()}
    return lambda **settings: commands.call("predict_masked", **{**paths, **settings})


def type_in(monkeypatch, raw: bytes, at_terminal: bool = False) -> None:
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(raw), isatty=lambda: at_terminal))


def encode(text, tokenizer, max_seq_length=128) -> predict_masked.Encoded:
    return predict_masked.encode(text, tokenizer, CONFIG, max_seq_length, "here")


@pytest.mark.parametrize(
    ("text", "tokens", "positions", "in_b"),
    [
        ("Paris is [MASK].", "[CLS] paris is [MASK] . [SEP]", [3], 0),
        ("[MASK][MASK]playing", "[CLS] [MASK] [MASK] play ##ing [SEP]", [1, 2], 0),
        ("play[MASK]ing", "[CLS] play [MASK] [UNK] [SEP]", [2], 0),
        ("[SEP] [MASK]", "[CLS] [ sep ] [MASK] [SEP]", [4], 0),  # nothing else is special
        ("she 北[MASK]北", "[CLS] she 北 [MASK] 北 [SEP]", [3], 0),
        # The last separator between blanks makes two segments, unless the second one has no tokens.
        ("she ||| of ||| [MASK] is", "[CLS] she [UNK] [UNK] [UNK] of [SEP] [MASK] is [SEP]", [7], 3),
        ("she|||[MASK]", "[CLS] she [UNK] [UNK] [UNK] [MASK] [SEP]", [5], 0),
        ("[MASK] ||| \u200b", "[CLS] [MASK] [SEP]", [1], 0),
    ],
)
def test_encoding(tokenizer, text, tokens, positions, in_b):
    encoded = encode(text, tokenizer)
    assert " ".join(VOCAB[index] for index in encoded.input_ids) == tokens
    assert encoded.positions == positions
    assert encoded.segment_ids == [0] * (len(encoded.input_ids) - in_b) + [1] * in_b


@pytest.mark.parametrize(
    ("text", "max_seq_length", "words"),
    [
        ("paris is", 128, ["[MASK]"]),
        ("paris is [mask]", 128, ["[mask]", "capitals"]),
        ("[MASK] is [Mask]", 128, ["[Mask]", "capitals"]),
        ("paris [MASK] of", 4, ["5 tokens", "--max_seq_length", "32"]),
        ("paris " * 30 + "[MASK]", 128, ["33 tokens", "32", "max_position_embeddings"]),
    ],
)
def test_a_text_that_cannot_be_encoded(tokenizer, text, max_seq_length, words):
    found = message_of(encode, text, tokenizer, max_seq_length)
    assert found.startswith("here") and all(word in found for word in words)


def direct(model, encoded: predict_masked.Encoded) -> np.ndarray:
    """The probabilities [P, V] of one sentence by the pretraining head itself: no padding, no graph."""
    output = model.bert(tf.constant([encoded.input_ids]), token_type_ids=tf.constant([encoded.segment_ids]))
    positions = tf.constant([encoded.positions])
    _, _, log_probs = heads.get_masked_lm_output(
        model.masked_lm, output.get_sequence_output(), model.bert.get_embedding_table(), positions,
        tf.zeros_like(positions), tf.ones_like(positions),
    )  # fmt: skip
    return np.exp(log_probs.numpy())


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_answers_are_those_of_the_model_whatever_the_batch(model, tokenizer, batch_size):
    taken = []
    given = (taken.append(text) or text for text in TEXTS)
    answers = predict_masked.predict(model, tokenizer, given, top_k=len(VOCAB), batch_size=batch_size)
    answers = [next(answers), *(len(taken) <= batch_size and answers)]  # no more than a batch is read ahead
    assert [answer.text for answer in answers] == TEXTS
    winners = set()
    for answer in answers:
        encoded = encode(answer.text, tokenizer)
        assert [mask.position for mask in answer.masks] == encoded.positions
        for mask, probabilities in zip(answer.masks, direct(model, encoded), strict=True):
            found = [prediction.probability for prediction in mask.predictions]
            ids = [prediction.token_id for prediction in mask.predictions]
            assert found == sorted(found, reverse=True) and sorted(ids) == [*range(len(VOCAB))]
            np.testing.assert_allclose(found, probabilities[ids], atol=1e-5)
            assert [prediction.token for prediction in mask.predictions] == [VOCAB[index] for index in ids]
            winners.add(mask.predictions[0].token)
        best = [mask.predictions[0].token for mask in answer.masks]
        assert answer.filled == predict_masked.fill(answer.text, best)
    assert len(winners) > 2  # else the comparison would show little


def test_answers_before_a_faulty_text_are_given(model, tokenizer):
    answers = predict_masked.predict(model, tokenizer, [*TEXTS[:3], "is", TEXTS[4]], batch_size=2)
    assert [next(answers).text for _ in range(3)] == TEXTS[:3]
    assert message_of(next, answers).startswith("text 4: ")


def test_top_k_and_vocabulary_must_fit_the_model(model, tokenizer, tmp_path):
    for entries, top_k, words in (
        (VOCAB, 21, ["top_k=21", "20"]),
        (VOCAB[:10], 11, ["10"]),
        ([*VOCAB, "x"], 5, ["21", "20"]),
    ):
        (tmp_path / "vocab.txt").write_text("\n".join(entries))
        own = FullTokenizer(f"{tmp_path}/vocab.txt")
        found = message_of(next, predict_masked.predict(model, own, TEXTS, top_k=top_k))
        assert all(word in found for word in words)


def test_rows_without_an_entry_are_never_predicted(model, tokenizer, tmp_path):
    """Of a table that is rounded up, and of an entry that is there again later."""
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCAB[:15], "paris", VOCAB[16]]))
    own = FullTokenizer(f"{tmp_path}/vocab.txt")
    found = next(predict_masked.predict(model, own, ["[MASK]"], top_k=16)).masks[0].predictions
    probabilities = direct(model, encode("[MASK]", tokenizer))[0]
    ids = [prediction.token_id for prediction in found]
    assert sorted(ids) == [*range(5), *range(6, 17)]
    wanted = probabilities[ids] / probabilities[ids].sum()
    np.testing.assert_allclose([prediction.probability for prediction in found], wanted, rtol=1e-4)
    assert [*wanted] == sorted(wanted, reverse=True)


@pytest.mark.parametrize(
    ("text", "words", "filled"),
    [
        ("The [MASK] of France is [MASK].", ["capital", "paris"], "The capital of France is paris."),
        ("She is play [MASK] it", ["##ing"], "She is playing it"),
        ("[MASK] [MASK] [MASK]", ["un", "##believ", "##able"], "unbelievable"),
        ("北[MASK]是", ["京"], "北京是"),
        ("One. ||| [MASK] two", ["##s"], "One. ||| s two"),
        ("a ||| [MASK] ||| [MASK]", ["b", "c"], "a ||| b ||| c"),
    ],
)
def test_blanks_are_filled(text, words, filled):
    assert predict_masked.fill(text, words) == filled


def answer_with(*masks: list[tuple[str, float]]) -> predict_masked.Answer:
    described = [predict_masked.Mask(2, [predict_masked.Prediction(word, 5, p) for word, p in mask]) for mask in masks]
    return predict_masked.Answer("Is " + " ".join(["[MASK]"] * len(masks)), described, "Is it")


def test_answers_as_text():
    words = [("paris", 0.97306), ("北", 0.01), ("##ing", 0.00004)]
    assert predict_masked.as_text(answer_with(words)) == (
        "Is [MASK]\n  1. paris  0.9731\n  2. 北      0.0100\n  3. ##ing  0.0000\n  = Is it\n"
    )
    assert predict_masked.as_text(answer_with(words[:1], words[1:2])) == (
        "Is [MASK] [MASK]\n  [MASK] 1 of 2:\n  1. paris  0.9731\n  [MASK] 2 of 2:\n  1. 北  0.0100\n  = Is it\n"
    )
    ten = predict_masked.as_text(answer_with([("a", 0.1)] * 10)).splitlines()
    assert (ten[1], ten[10]) == ("   1. a  0.1000", "  10. a  0.1000")


# The script


def test_every_way_to_give_sentences(model, tokenizer, call, capsys, monkeypatch, tmp_path):
    expected = [*predict_masked.predict(model, tokenizer, TEXTS, top_k=2)]
    (tmp_path / "texts").write_text("\ufeff" + "\n \n".join(TEXTS))
    for given in ({"input_file": f"{tmp_path}/texts"}, {"sentence": ["", *TEXTS]}, {}, {"input_file": "-"}):
        type_in(monkeypatch, "\n".join(TEXTS).encode())
        call(top_k=2, output_format="json", **given)
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [answer["filled"] for answer in found] == [answer.filled for answer in expected]
    type_in(monkeypatch, TEXTS[0].encode(), at_terminal=True)
    call(top_k=2)
    shown = capsys.readouterr()
    assert shown.out == predict_masked.as_text(expected[0]) + "\n" and "Ctrl-D" in shown.err
    call(sentence=TEXTS[:1], top_k=len(VOCAB), output_format="json", precision="bfloat16")
    (mask,) = json.loads(capsys.readouterr().out)["masks"]
    found = {prediction["token"]: prediction["probability"] for prediction in mask["predictions"]}
    wanted = direct(model, encode(TEXTS[0], tokenizer))[0]
    found = np.array([found[word] for word in VOCAB])
    assert 1e-4 < np.abs(found - wanted).max() < 0.05  # as precise as was asked for, and no more


def test_faults_are_named(call, tmp_path, monkeypatch):
    (tmp_path / "empty.txt").write_text("\n \n")
    type_in(monkeypatch, b"[MASK]\n\xe9 [MASK]\n")
    for given, words in (
        ({"input_file": f"{tmp_path}/empty.txt"}, ["empty.txt", "[MASK]"]),
        ({"sentence": []}, ["--sentence"]),
        ({"sentence": ["", "\udcff [MASK]"]}, ["--sentence, line 2", "UTF-8", "0xff"]),
        ({}, ["standard input, line 2", "UTF-8", "0xe9"]),
    ):
        found = message_of(call, **given)
        assert all(word in found for word in words), found


def test_weights_of_other_models_are_refused(tmp_path, model, call):
    variables = checkpoint.tf1_variables(model)
    cased = f"{tmp_path}/cased_L-12_H-768_A-12/bert_model.ckpt"
    checkpoint.save(cased, variables)
    assert "do_lower_case" in message_of(call, sentence=["[MASK]"], init_checkpoint=cased, do_lower_case=True)
    encoder = {name: value for name, value in variables.items() if not name.startswith("cls/")}
    checkpoint.save(f"{tmp_path}/encoder.ckpt", encoder)
    assert "encoder.ckpt: " in message_of(call, sentence=["[MASK]"], init_checkpoint=f"{tmp_path}/encoder.ckpt")
    head = {name: value for name, value in variables.items() if name.startswith("cls/predictions/")}
    checkpoint.save(f"{tmp_path}/enough.ckpt", {**encoder, **head})  # the next-sentence head is not needed
    loaded = predict_masked.load_model(CONFIG, f"{tmp_path}/enough.ckpt")
    np.testing.assert_array_equal(loaded.masked_lm.transform.kernel, model.masked_lm.transform.kernel)
