"""predict_masked.py: the answers of the model itself, however sentences are given, and the errors."""

from __future__ import annotations

import json
import shutil
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from refused import message_of, refuses

import bert_tf2
from bert_tf2 import commands, heads
from bert_tf2.config import BertConfig
from bert_tf2.inference import predict_masked
from bert_tf2.training.devices import build_model, create_strategy
from bert_tf2.weights import bundle, checkpoint

WORDS = ["paris", "berlin", "is", "the", "capital", "of", "play", "##ing", "she", "piano", ".", "[", "]", "sep", "北"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CONFIG = BertConfig(
    vocab_size=len(VOCAB), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
    max_position_embeddings=32, type_vocab_size=2, initializer_range=0.9,  # every sentence gets answers of its own
)  # fmt: skip
# Texts with their tokens; those of the second segment behind |.
TEXTS = {
    "Paris is [MASK].": "[CLS] paris is [MASK] . [SEP]",
    "[MASK][MASK]playing": "[CLS] [MASK] [MASK] play ##ing [SEP]",
    "play[MASK]ing": "[CLS] play [MASK] [UNK] [SEP]",
    "[SEP] [MASK]": "[CLS] [ sep ] [MASK] [SEP]",  # nothing else is special
    "she 北[MASK]北": "[CLS] she 北 [MASK] 北 [SEP]",
    # The last separator between blanks makes two segments, unless the second one has no tokens.
    "she ||| of ||| [MASK] is": "[CLS] she [UNK] [UNK] [UNK] of [SEP] | [MASK] is [SEP]",
    "she|||[MASK]": "[CLS] she [UNK] [UNK] [UNK] [MASK] [SEP]",
    "[MASK] ||| \u200b": "[CLS] [MASK] [SEP]",
}


@pytest.fixture(scope="module")
def model():
    return build_model(create_strategy(), lambda: heads.PretrainingModel(CONFIG), 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model):
    """Vocabulary, configuration and checkpoint, as a pretraining run leaves them."""
    path = tmp_path_factory.mktemp("model")
    (path / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCAB), encoding="utf-8")
    (path / "bert_config.json").write_text(CONFIG.to_json_string())
    bundle.CheckpointFolder(str(path)).save(checkpoint.tf1_variables(model), 7)
    return path


@pytest.fixture(scope="module")
def bert(folder):
    return bert_tf2.load(folder)


@pytest.fixture
def call(folder):
    """Runs the script with the model of the folder."""
    paths = {"bert_config_file": "bert_config.json", "init_checkpoint": "", "vocab_file": "vocab.txt"}
    paths = {name: str(folder / path) for name, path in paths.items()}
    return lambda **settings: commands.call("predict_masked", **{**paths, **settings})


def type_in(monkeypatch, lines, at_terminal: bool = False) -> None:
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=iter(lines), isatty=lambda: at_terminal))


def direct(model, tokens: str) -> np.ndarray:
    """The probabilities [P, V] of a sentence by the pretraining head itself: no padding, no graph."""
    first, _, second = (part.split() for part in tokens.partition("|"))
    ids = [VOCAB.index(token) for token in first + second]
    types = tf.constant([[0] * len(first) + [1] * len(second)])
    output = model.bert(tf.constant([ids]), token_type_ids=types)
    positions = tf.constant([[place for place, index in enumerate(ids) if VOCAB[index] == "[MASK]"]])
    _, _, log_probs = heads.get_masked_lm_output(
        model.masked_lm, output.get_sequence_output(), model.bert.get_embedding_table(), positions,
        tf.zeros_like(positions), tf.ones_like(positions),
    )  # fmt: skip
    return np.exp(log_probs.numpy())


def test_standard_input_may_be_closed(call, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    refuses("standard input --input_file --sentence", call)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_answers_are_those_of_the_model_whatever_the_batch(model, bert, batch_size):
    answers, winners = bert.fill_mask([*TEXTS], top_k=len(VOCAB), batch_size=batch_size), set()
    for (text, tokens), answer in zip(TEXTS.items(), answers, strict=True):
        places = [place for place, token in enumerate(tokens.replace("| ", "").split()) if token == "[MASK]"]
        assert answer.text == text and [mask.position for mask in answer.masks] == places
        for mask, probabilities in zip(answer.masks, direct(model, tokens), strict=True):
            found = [prediction.probability for prediction in mask.predictions]
            ids = [prediction.token_id for prediction in mask.predictions]
            assert found == sorted(found, reverse=True) and sorted(ids) == [*range(len(VOCAB))]
            np.testing.assert_allclose(found, probabilities[ids], atol=1e-5)
            assert [prediction.token for prediction in mask.predictions] == [VOCAB[index] for index in ids]
        best = [mask.predictions[0].token for mask in answer.masks]
        assert answer.filled == predict_masked.fill(text, best)
        winners.update(best)
    assert len(winners) > 2  # else the comparison would show little


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.parametrize("score", [False, True])
def test_a_program_of_xla_has_the_same_answers(call, capsys, score):
    texts, found = [text.replace("[MASK]", "she") if score else text for text in TEXTS], []
    for xla in (False, True):
        call(sentence=texts, output_format="json", batch_size=3, xla=xla, score=score)
        found.append(tf.nest.flatten([json.loads(line) for line in capsys.readouterr().out.splitlines()]))
    assert {text in found[0] for text in texts} == {True}
    for plain, compiled in zip(*found, strict=True):
        assert compiled == (pytest.approx(plain, rel=1e-4) if isinstance(plain, float) else plain)


def test_blanks_are_filled():
    for text, words, filled in (
        ("The [MASK] of France is [MASK].", ["capital", "paris"], "The capital of France is paris."),
        ("She is play [MASK] it", ["##ing"], "She is playing it"),
        ("北[MASK]是", ["京"], "北京是"),
        ("One. ||| [MASK] two", ["##s"], "One. ||| s two"),
        ("a ||| [MASK] ||| [MASK]", ["b", "c"], "a ||| b ||| c"),
    ):
        assert predict_masked.fill(text, words) == filled


def test_a_text_that_cannot_be_encoded(bert):
    for text, longest, words in (
        ("paris is [mask]", 32, "[mask] capitals"),
        ("[MASK] is [Mask]", 32, "[Mask] capitals"),
        ("the paris [MASK] of " * 4, 16, "18 max_seq_length 32"),
        ("paris " * 30 + "[MASK]", 32, "33 32"),
    ):
        refuses(f"text 2 {words}", bert.fill_mask, ["[MASK]", text], max_seq_length=longest)
    assert len(bert.fill_mask("the paris [MASK] of " * 4, max_seq_length=18).masks) == 4  # with [CLS] and [SEP]
    refuses("batch_size", bert.fill_mask, "[MASK]", batch_size=0)


def test_scores_are_the_probabilities_of_each_token_given_the_others(model, bert, call, capsys, tmp_path):
    def wanted(tokens: list[str]) -> list[float]:
        places = [place for place, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]", "|")]
        masked = (" ".join([*tokens[:place], "[MASK]", *tokens[place + 1 :]]) for place in places)
        return [np.log(direct(model, text)[0][VOCAB.index(tokens[p])]) for p, text in zip(places, masked, strict=True)]

    texts = {"She playing piano.": "[CLS] she play ##ing piano . [SEP]", "": "[CLS] [SEP]", "she": "[CLS] she [SEP]"}
    texts[("is", "the capital")] = "[CLS] is [SEP] | the capital [SEP]"
    for text, found in zip(texts, bert.score([*texts], batch_size=3), strict=True):
        np.testing.assert_allclose(found.log_probabilities, wanted(texts[text].split()), rtol=1e-4)
        assert len(found.tokens) == len(found.log_probabilities) and found.total == sum(found.log_probabilities)
    (tmp_path / "texts").write_text("She playing piano.\nis ||| the capital\n")
    call(input_file=f"{tmp_path}/texts", score=True, output_format="json")
    totals = [json.loads(line)["total"] for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose(
        totals, [sum(wanted(texts[t].split())) for t in (*[*texts][:1], [*texts][-1])], rtol=1e-4
    )
    refuses(f"{tmp_path}/texts, line 1 7 --max_seq_length", call, input_file=f"{tmp_path}/texts", score=True,
            max_seq_length=6)  # fmt: skip


def test_next_sentences(model, bert):
    pairs = [("is", "the capital"), ("she", "playing"), ("paris", "berlin")]
    rows = bert.tokenize(pairs)
    pooled = model.bert(rows["input_ids"], rows["input_mask"], rows["segment_ids"]).pooled_output.numpy()
    head = model.next_sentence
    logits = pooled @ head.output_weights.numpy().T + head.output_bias.numpy()
    wanted = 1 / (1 + np.exp(logits[:, 1] - logits[:, 0]))
    np.testing.assert_allclose(bert.next_sentence(pairs, batch_size=2), wanted, rtol=1e-4)
    assert bert.next_sentence(pairs[0]) == pytest.approx(wanted[0], rel=1e-4)
    refuses("row 1 single second", bert.next_sentence, ["paris"])


def test_answers_as_text():
    def answer_with(*masks: list[tuple[str, float]]) -> str:
        masks = [[predict_masked.Prediction(word, 5, share) for word, share in mask] for mask in masks]
        text = "Is " + " ".join(["[MASK]"] * len(masks))
        masks = [predict_masked.Mask(2, mask) for mask in masks]
        return predict_masked.as_text(predict_masked.Answer(text, masks, "Is it"))

    ten = answer_with([("a", 0.97306)] * 10).splitlines()
    assert ten[0] == "Is [MASK]" and (ten[1], ten[10]) == ("   1. a  0.9731", "  10. a  0.9731")
    assert answer_with([("paris", 0.97306), ("北", 0.00004)], [("##ing", 0.01)]) == (
        "Is [MASK] [MASK]\n  [MASK] 1 of 2:\n  1. paris  0.9731\n  2. 北      0.0000\n"
        "  [MASK] 2 of 2:\n  1. ##ing  0.0100\n  = Is it\n"
    )


# The script


def test_every_way_to_give_sentences(bert, call, capsys, monkeypatch, tmp_path):
    """The answers before a faulty line are printed, and at a terminal each one before the next line is read."""
    expected = bert.fill_mask([*TEXTS], top_k=2)
    (tmp_path / "texts").write_text("\ufeff" + "\n \n".join([*TEXTS, "she"]))
    found = message_of(call, input_file=f"{tmp_path}/texts", top_k=2, output_format="json", batch_size=2)
    assert found.startswith(f"{tmp_path}/texts, line {2 * len(TEXTS) + 1}: ")
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(answer["text"], answer["filled"]) for answer in found] == [(each.text, each.filled) for each in expected]

    def typed():
        for number, text in enumerate(TEXTS):
            yield f"{text}\n".encode()
            shown = capsys.readouterr()
            assert shown.out == predict_masked.as_text(expected[number]) + "\n" and ("Ctrl-D" in shown.err) == (
                not number
            )
        yield from (b"\n", b"\xe9 [MASK]\n")

    type_in(monkeypatch, typed(), at_terminal=True)
    refuses(f"standard input, line {len(TEXTS) + 2} UTF-8 0xe9", call, top_k=2)


def test_rows_without_an_entry_are_never_predicted(model, folder, call, capsys, tmp_path):
    """The table is rounded up, and an entry is there again later. `--top_k` may be that of the vocabulary."""
    weights = shutil.copytree(folder, tmp_path / "weights")
    vocabulary = weights / "vocab.txt"
    vocabulary.write_text("\n".join([*VOCAB[:15], "paris", VOCAB[16]]))
    how = {"sentence": ["", "[MASK]"], "vocab_file": str(vocabulary), "output_format": "json"}
    how |= {"init_checkpoint": str(weights)}
    call(**how, top_k=16)
    (mask,) = json.loads(capsys.readouterr().out)["masks"]
    ids = [prediction["token_id"] for prediction in mask["predictions"]]
    assert sorted(ids) == [*range(5), *range(6, 17)]
    probabilities = direct(model, "[CLS] [MASK] [SEP]")[0][ids]
    found = [prediction["probability"] for prediction in mask["predictions"]]
    np.testing.assert_allclose(found, probabilities / probabilities.sum(), rtol=1e-4)
    refuses("top_k=17 16", call, **how, top_k=17)
    vocabulary.write_text("\n".join([*VOCAB, "x"]))
    refuses("vocab.txt 21 20", call, **how)
    (tmp_path / "empty.txt").write_text("\n \n")
    refuses("empty.txt [MASK]", call, input_file=f"{tmp_path}/empty.txt")
    refuses("--sentence, line 2 UTF-8 0xff", call, sentence=["", "\udcff [MASK]"])
