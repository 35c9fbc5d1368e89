"""Answers of an exported model of questions, against run_squad.py; and a tagger's words, against run_ner.py."""

from __future__ import annotations

import dataclasses
import random
import re

import numpy as np
import pytest
import text_operations
import toy_data
from export_cases import TAGS, Exported, make_options, raw

from bert_tf2.exporting import load, signatures
from bert_tf2.exporting.run import run
from bert_tf2.finetuning import ner, squad

text_operations.need()


def questions(count: int, seed: int = 11, others: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Of one window and of many; with capitals, punctuation, pieces of words, accents and several blanks."""
    draw = random.Random(seed)
    known = [*toy_data.PLACES, *toy_data.NAMES, *toy_data.GOOD, *toy_data.OTHERS[:14]]
    words = [*known, "playing", "Lima?", "Ève", *others]
    found = []
    for _ in range(count):
        context = draw.choice([" ", "  ", "\t"]).join(draw.choices(words, k=draw.randrange(1, 60)))
        found.append((" ".join(draw.choices(words, k=draw.randrange(1, 12))), context.title()))
    return found


def expected_answers(
    made: Exported, asked: list[tuple[str, str]], version_2: bool = False, answer_offsets: bool = False, **changes
) -> squad.Answers:
    """By squad.compute_predictions, from logits that the model gave for each window by itself."""
    options = dataclasses.replace(made.options, **changes)
    examples = [
        squad.SquadExample(str(number), question, re.findall("[^ \t\r\n]+", context), context=context)
        for number, (question, context) in enumerate(asked)
    ]
    features = list(
        squad.convert_examples_to_features(
            examples, made.tokenizer, options.max_seq_length, options.doc_stride, options.max_query_length, False
        )
    )
    names = ("input_ids", "input_mask", "segment_ids")
    inputs = {name: np.array([getattr(feature, name) for feature in features], np.int32) for name in names}
    logits = np.stack([part.numpy() for part in made.model(inputs)], 1)
    results = [
        squad.RawResult(feature.unique_id, *row[:, : len(feature.tokens)])
        for feature, row in zip(features, logits, strict=True)
    ]
    threshold = options.null_score_diff_threshold or 0.0
    size, length = options.n_best_size, options.max_answer_length
    settings = (size, length, True, version_2, threshold, False, answer_offsets)
    return squad.compute_predictions(examples, features, results, *settings)


@pytest.mark.slow
def test_answers_are_those_of_run_squad(exported):
    made, asked = exported("squad"), questions(200)
    wanted = expected_answers(made, asked, version_2=True, null_score_diff_threshold=1e9)
    found = made.ask("serving_text", question=[q for q, _ in asked], context=[c for _, c in asked])
    answers = [answer.decode() for answer in found["answer"]]
    assert sum("\t" in answer or "  " in answer for answer in answers) > 5  # where answers are of several words
    squeezed = [" ".join(answer.split()) for answer in answers]
    assert squeezed == list(wanted.predictions.values())
    np.testing.assert_allclose(found["null_odds"], list(wanted.null_odds.values()), atol=2e-5)
    best = [
        next(entry for entry in entries if entry["text"]) for entries in wanted.nbest.values() if entries[0]["text"]
    ]
    scores = [score for score, entries in zip(found["score"], wanted.nbest.values(), strict=True) if entries[0]["text"]]
    np.testing.assert_allclose(scores, [entry["start_logit"] + entry["end_logit"] for entry in best], atol=2e-5)
    for (_, context), answer, start, end in zip(asked, answers, found["start"], found["end"], strict=True):
        assert context[start:end] == answer


@pytest.mark.slow
def test_no_answer_may_be_the_answer(exported, tmp_path):
    made, asked = exported("squad"), questions(60, seed=12)
    threshold = float(np.median(list(expected_answers(made, asked, version_2=True).null_odds.values())))
    folder = run(make_options(tmp_path, "squad", made.weights, null_score_diff_threshold=threshold))
    wanted = expected_answers(made, asked, version_2=True, null_score_diff_threshold=threshold).predictions
    found = load(folder)(asked)
    assert [" ".join(row["answer"].split()) for row in found] == [*wanted.values()]
    none = [(row["start"], row["end"]) for row in found if not row["answer"]]
    assert 20 < len(none) < 40 and {*none} == {(-1, -1)}


@pytest.mark.slow
def test_words_that_run_squad_cannot_find_again(exported):
    """Where an answer holds [UNK], run_squad.py gives the whole words it touches, without --answer_offsets."""
    made, asked = exported("squad"), questions(100, seed=13, others=("(Oslo)", "x.y", "Rome,"))
    found = made.ask("serving_text", question=[q for q, _ in asked], context=[c for _, c in asked])
    answers = [answer.decode() for answer in found["answer"]]
    assert answers == [*expected_answers(made, asked, answer_offsets=True).predictions.values()]
    whole = expected_answers(made, asked)
    assert 1 < len(whole.longer) < 40
    for answer, (number, text) in zip(answers, whole.predictions.items(), strict=True):
        grown = " ".join(answer.split()) != text and text != "empty"  # "" where no span can be an answer
        assert grown == (number in whole.longer) and (not grown or "[UNK]" in made.tokenizer.tokenize(answer))


def test_a_context_can_be_too_long(exported):
    message = raw(exported("squad"), "serving_text", question=["where ?"] * 2, context=["film", "film " * 2000])
    assert re.search(r"row 1 takes \d+ windows of the model; 64 are allowed", message)


def expected_tags(made: Exported, words: list[list[str]]) -> list[list[str]]:
    sentences = [ner.NerSentence(sentence) for sentence in words]
    features = ner.convert_sentences_to_features(sentences, TAGS, made.options.max_seq_length, made.tokenizer)
    assert len(features) == len(sentences)  # windows are run_ner.py's only
    records = [ner.as_record(feature) for feature in features]
    inputs = {name: np.array([record[name] for record in records], np.int32) for name in signatures.IDS}
    return ner.assemble_tags(sentences, features, made.model.outputs(inputs)["predictions"].numpy(), TAGS)


@pytest.mark.slow
def test_words_are_those_of_run_ner(exported):
    made = exported("ner")
    draw = random.Random(4)
    letters = [*toy_data.PLACES, *toy_data.NAMES, *toy_data.OTHERS[:12], "Playing", "Zoë", "北", "."]
    words = [[word.title() for word in draw.choices(letters, k=draw.randrange(1, 15))] for _ in range(80)]
    texts = [" ".join(sentence) for sentence in words]
    tags = expected_tags(made, words)
    answers = load(made.folder)(texts)
    assert [answer["words"] for answer in answers] == words
    assert [answer["labels"] for answer in answers] == tags
    assert any(tag == "O" for sentence in tags for tag in sentence)
    for text, answer in zip(texts, answers, strict=True):
        assert [text[a:b] for a, b in zip(answer["starts"], answer["ends"], strict=True)] == answer["words"]
        assert ((answer["probabilities"] > 1 / len(TAGS)) & (answer["probabilities"] < 1)).all()


def test_a_word_that_is_cut_keeps_its_end(exported):
    """22 pieces fit; the word of which only the first one does is there as a whole, and the next one is not."""
    answer = load(exported("ner").folder)("a " * 20 + "film playing now")
    assert answer["words"][-2:] == ["film", "playing"]
    assert len(answer["words"]) == 22
