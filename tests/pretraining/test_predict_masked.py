"""Filling in blanks: known answers by hand, the same answers as the model itself, the script and its errors."""

from __future__ import annotations

import io
import pathlib
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.pretraining import predict_masked
from bert_tf2.pretraining.options import MaskedLMOptions
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.training.devices import build_model, create_strategy
from bert_tf2.weights import checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]
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


def new_model(config: BertConfig = CONFIG, seed: int = 3) -> heads.PretrainingModel:
    return build_model(create_strategy(), lambda: heads.PretrainingModel(config), seed)


@pytest.fixture(scope="module")
def model():
    return new_model()


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
def options(folder):
    def make(**values) -> MaskedLMOptions:
        paths = {
            "bert_config_file": str(folder / "bert_config.json"),
            "init_checkpoint": str(folder),
            "vocab_file": str(folder / "vocab.txt"),
        }
        return MaskedLMOptions(**{**paths, **values})

    return make


def type_in(monkeypatch, text: str | bytes, at_terminal: bool = False) -> None:
    raw = text.encode() if isinstance(text, str) else text
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(raw), isatty=lambda: at_terminal))


def tokens_of(encoded: predict_masked.Encoded) -> str:
    return " ".join(VOCAB[index] for index in encoded.input_ids)


# Encoding


@pytest.mark.parametrize(
    ("text", "tokens", "positions"),
    [
        ("Paris is [MASK].", "[CLS] paris is [MASK] . [SEP]", [3]),
        ("[MASK][MASK]playing", "[CLS] [MASK] [MASK] play ##ing [SEP]", [1, 2]),
        ("play[MASK]ing", "[CLS] play [MASK] [UNK] [SEP]", [2]),
        ("[SEP] [MASK]", "[CLS] [ sep ] [MASK] [SEP]", [4]),
        ("she 北[MASK]北", "[CLS] she 北 [MASK] 北 [SEP]", [3]),
    ],
)
def test_masks_survive_and_nothing_else_is_special(tokenizer, text, tokens, positions):
    encoded = predict_masked.encode(text, tokenizer, CONFIG, 128, "here")
    assert tokens_of(encoded) == tokens
    assert encoded.positions == positions
    assert set(encoded.segment_ids) == {0}


def test_the_last_separator_between_blanks_makes_two_segments(tokenizer):
    encoded = predict_masked.encode("she ||| of ||| [MASK] is", tokenizer, CONFIG, 128, "here")
    assert tokens_of(encoded) == "[CLS] she [UNK] [UNK] [UNK] of [SEP] [MASK] is [SEP]"
    assert encoded.segment_ids == [0] * 7 + [1] * 3
    glued = predict_masked.encode("she|||[MASK]", tokenizer, CONFIG, 128, "here")
    assert set(glued.segment_ids) == {0}
    without_tokens = predict_masked.encode("[MASK] ||| \u200b", tokenizer, CONFIG, 128, "here")
    assert (tokens_of(without_tokens), without_tokens.segment_ids) == ("[CLS] [MASK] [SEP]", [0, 0, 0])


@pytest.mark.parametrize(
    ("text", "max_seq_length", "message"),
    [
        ("paris is", 128, r"^here: holds no \[MASK\]; write \[MASK\]"),
        ("paris is [mask]", 128, r"^here holds \[mask\]; a blank is written \[MASK\], in capitals$"),
        ("[MASK] is [Mask]", 128, r"^here holds \[Mask\]"),
        (
            "paris [MASK] of",
            4,
            r"^here has 5 tokens .* --max_seq_length is 4; raise it \(this model reads at most 32\)",
        ),
        ("paris " * 30 + "[MASK]", 128, r"^here has 33 tokens .* this model reads at most 32 \(max_position_embe"),
    ],
)
def test_what_cannot_be_encoded(tokenizer, text, max_seq_length, message):
    with pytest.raises(UserError, match=message):
        predict_masked.encode(text, tokenizer, CONFIG, max_seq_length, "here")


# Predicting


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
    answers = list(predict_masked.predict(model, tokenizer, TEXTS, top_k=len(VOCAB), batch_size=batch_size))
    assert [answer.text for answer in answers] == TEXTS
    winners = set()
    for answer in answers:
        encoded = predict_masked.encode(answer.text, tokenizer, CONFIG, 128, "here")
        wanted = direct(model, encoded)
        assert [mask.position for mask in answer.masks] == encoded.positions
        for mask, probabilities in zip(answer.masks, wanted, strict=True):
            found = [prediction.probability for prediction in mask.predictions]
            assert found == sorted(found, reverse=True)
            assert sum(found) == pytest.approx(1.0, abs=1e-5)
            assert sorted(prediction.token_id for prediction in mask.predictions) == list(range(len(VOCAB)))
            for prediction in mask.predictions:
                assert prediction.token == VOCAB[prediction.token_id]
                assert prediction.probability == pytest.approx(probabilities[prediction.token_id], abs=1e-5)
            winners.add(mask.predictions[0].token)
    assert len(winners) > 2  # else the comparison would say little


def test_only_a_batch_is_read_ahead_and_padded_to_its_own_longest(model, tokenizer):
    taken = []
    answers = predict_masked.predict(model, tokenizer, (taken.append(text) or text for text in TEXTS), batch_size=2)
    assert next(answers).text == TEXTS[0]
    assert len(taken) == 2
    encoded = [predict_masked.encode(text, tokenizer, CONFIG, 128, "here") for text in TEXTS[1:3]]
    features = predict_masked._features(encoded)
    assert features["input_mask"].tolist() == [[1] * 3 + [0] * 7, [1] * 10]
    assert features["masked_lm_positions"].tolist() == [[1, 0, 0], encoded[1].positions]


def test_what_comes_before_a_faulty_text_is_answered(model, tokenizer):
    answered = []
    with pytest.raises(UserError, match=r"^text 4: holds no \[MASK\]"):
        answered += (answer.text for answer in predict_masked.predict(model, tokenizer, [*TEXTS[:3], "is", TEXTS[4]]))
    answers = predict_masked.predict(model, tokenizer, [*TEXTS[:3], "is"], batch_size=2)
    assert [next(answers).text for _ in range(3)] == TEXTS[:3]
    with pytest.raises(UserError):
        next(answers)


def test_top_k_and_vocabulary_must_fit_the_model(model, tokenizer, tmp_path):
    with pytest.raises(UserError, match=r"^--top_k=21: must be from 1 to 20"):
        next(predict_masked.predict(model, tokenizer, TEXTS, top_k=21))
    (tmp_path / "short.txt").write_text("\n".join(VOCAB[:10]))
    short = FullTokenizer(str(tmp_path / "short.txt"))
    with pytest.raises(UserError, match=r"^--top_k=11: must be from 1 to 10"):
        next(predict_masked.predict(model, short, TEXTS, top_k=11))
    (tmp_path / "long.txt").write_text("\n".join([*VOCAB, "more"]))
    with pytest.raises(UserError, match=r"21 entries, but .* vocab_size 20"):
        next(predict_masked.predict(model, FullTokenizer(str(tmp_path / "long.txt")), TEXTS))


def test_rows_without_an_entry_are_never_predicted(model, tokenizer, tmp_path):
    """Of a table that is rounded up, and of an entry that is there again later."""
    entries = [*VOCAB[:15], "paris", VOCAB[16]]
    (tmp_path / "vocab.txt").write_text("\n".join(entries))
    found = next(predict_masked.predict(model, FullTokenizer(str(tmp_path / "vocab.txt")), ["[MASK]"], top_k=16))
    every = next(predict_masked.predict(model, tokenizer, ["[MASK]"], top_k=20)).masks[0].predictions
    ids = [prediction.token_id for prediction in found.masks[0].predictions]
    assert sorted(ids) == [*range(5), *range(6, 17)]
    assert ids == [prediction.token_id for prediction in every if prediction.token_id in ids]
    share = sum(prediction.probability for prediction in every if prediction.token_id in ids)
    wanted = {prediction.token_id: prediction.probability / share for prediction in every}
    for prediction in found.masks[0].predictions:
        assert prediction.probability == pytest.approx(wanted[prediction.token_id], rel=1e-5)


# Showing


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
def test_fill(text, words, filled):
    assert predict_masked.fill(text, words) == filled


def answer_with(*masks: list[tuple[str, float]]) -> predict_masked.Answer:
    text = "Is " + " ".join(["[MASK]"] * len(masks))
    described = [
        predict_masked.Mask(2 + index, [predict_masked.Prediction(word, 5, probability) for word, probability in mask])
        for index, mask in enumerate(masks)
    ]
    return predict_masked.Answer(text, described, "Is it")


def test_as_text_with_one_blank_and_with_two():
    words = [("paris", 0.97306), ("北", 0.01), ("##ing", 0.00004)]
    assert predict_masked.as_text(answer_with(words)) == (
        "Is [MASK]\n  1. paris  0.9731\n  2. 北      0.0100\n  3. ##ing  0.0000\n  = Is it\n"
    )
    assert predict_masked.as_text(answer_with(words[:1], words[1:2])) == (
        "Is [MASK] [MASK]\n  [MASK] 1 of 2:\n  1. paris  0.9731\n  [MASK] 2 of 2:\n  1. 北  0.0100\n  = Is it\n"
    )
    ten = predict_masked.as_text(answer_with([("a", 0.1)] * 10)).splitlines()
    assert (ten[1], ten[10]) == ("   1. a  0.1000", "  10. a  0.1000")


# A whole call


def test_faults_are_named(options, tmp_path, monkeypatch, folder):
    def fault(**values) -> str:
        with pytest.raises(UserError) as caught:
            predict_masked.run(options(**{"sentence": ["[MASK]"], **values}))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (tmp_path / "empty.txt").write_text("\n \n")
    assert fault(sentence=None, input_file=str(tmp_path / "empty.txt")).startswith(f"{tmp_path}/empty.txt: holds no")
    assert fault(sentence=None, input_file=str(tmp_path / "gone.txt")).startswith(f"{tmp_path}/gone.txt: no such file")
    assert fault(sentence=[]).startswith("--sentence: holds no sentence")
    assert fault(sentence=["", "\udcff [MASK]"]).startswith("--sentence, line 2: not UTF-8 text (byte 0xff)")
    type_in(monkeypatch, b"[MASK]\n\xe9 [MASK]\n")
    assert fault(sentence=None).startswith("standard input, line 2: not UTF-8 text (byte 0xe9)")
    (tmp_path / "bare.txt").write_text("\n".join(word for word in VOCAB if word != "[MASK]"))
    assert fault(vocab_file=str(tmp_path / "bare.txt")).startswith(f"{tmp_path}/bare.txt: has no [MASK]")


def test_a_checkpoint_without_the_masked_lm_head_is_refused(tmp_path, model):
    variables = checkpoint.tf1_variables(model)
    encoder = {name: value for name, value in variables.items() if not name.startswith("cls/")}
    checkpoint.save(str(tmp_path / "encoder.ckpt"), encoder)
    with pytest.raises(UserError, match=r"encoder\.ckpt: has no masked-LM head \(cls/predictions/"):
        predict_masked.load_model(CONFIG, str(tmp_path / "encoder.ckpt"))
    head = {name: value for name, value in variables.items() if name.startswith("cls/predictions/")}
    checkpoint.save(str(tmp_path / "enough.ckpt"), {**encoder, **head})  # the next-sentence head is not needed
    loaded = predict_masked.load_model(CONFIG, str(tmp_path / "enough.ckpt"))
    np.testing.assert_array_equal(loaded.masked_lm.transform.kernel, model.masked_lm.transform.kernel)
