"""Words and entities of an exported tagger, against run_ner.py."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from export_cases import TAGS, Exported

from bert_tf2.export import entities, load, signatures
from bert_tf2.finetuning import ner
from bert_tf2.finetuning.ner import scores as ner_scores

pytest.importorskip("tensorflow_text")


def expected_tags(made: Exported, words: list[list[str]]) -> list[list[str]]:
    sentences = [ner.NerSentence(sentence) for sentence in words]
    features = ner.convert_sentences_to_features(sentences, TAGS, made.options.max_seq_length, made.tokenizer)
    assert len(features) == len(sentences)  # windows are run_ner.py's only
    records = [ner.as_record(feature) for feature in features]
    inputs = {name: np.array([record[name] for record in records], np.int32) for name in signatures.IDS}
    return ner.assemble_tags(sentences, features, made.model.outputs(inputs)["predictions"].numpy(), TAGS)


@pytest.mark.slow
def test_words_and_entities_are_those_of_run_ner(exported):
    made = exported("ner")
    draw = random.Random(4)
    letters = [*toy_data.PLACES, *toy_data.NAMES, *toy_data.OTHERS[:12], "Playing", "Zoë", "北", "."]
    words = [[word.title() for word in draw.choices(letters, k=draw.randrange(1, 15))] for _ in range(80)]
    texts = [" ".join(sentence) for sentence in words]
    tags = expected_tags(made, words)
    answers = load(made.folder)(texts)
    assert [answer["words"] for answer in answers] == words
    assert [answer["labels"] for answer in answers] == tags
    entities = [ner_scores.entities(sentence) for sentence in tags]
    assert sum(first < last for sentence in entities for _, first, last in sentence) > 5
    assert any(tag == "O" for sentence in tags for tag in sentence)
    for text, answer, found in zip(texts, answers, entities, strict=True):
        assert [text[a:b] for a, b in zip(answer["starts"], answer["ends"], strict=True)] == answer["words"]
        spans = [(answer["starts"][first], answer["ends"][last]) for _, first, last in found]
        assert list(zip(answer["entity_starts"], answer["entity_ends"], strict=True)) == spans
        assert answer["entities"] == [text[a:b] for a, b in spans]
        assert answer["entity_labels"] == [kind for kind, _, _ in found]
        assert ((answer["probabilities"] > 1 / len(TAGS)) & (answer["probabilities"] < 1)).all()


def test_a_word_that_is_cut_keeps_its_end(exported):
    """22 pieces fit; the word of which only the first one does is there as a whole, and the next one is not."""
    answer = load(exported("ner").folder)("a " * 20 + "film playing now")
    assert answer["words"][-2:] == ["film", "playing"]
    assert len(answer["words"]) == 22


@pytest.mark.parametrize(
    ("labels", "tags"),
    [
        (("O", "B-X", "I-X", "E-X", "S-X", "I-Y", "S-Y"), ("O", "B-X", "I-X", "E-X", "S-X", "I-Y", "S-Y")),
        (("O", "X", "Y-Z"), ("O", "I-X", "I-Y-Z")),
    ],
)
def test_entities_are_grouped_as_for_the_scores(labels, tags):
    grouping = entities._Grouping.of(labels)
    draw = random.Random(1)
    sentences = [draw.choices(range(len(tags)), k=draw.randrange(1, 9)) for _ in range(300)]
    labels = tf.constant([label for sentence in sentences for label in sentence])
    rows = tf.repeat(tf.range(300), [len(sentence) for sentence in sentences])
    first, last = (part.numpy().tolist() for part in grouping.entities(labels, rows))
    wanted, begin = [], 0
    for sentence in sentences:
        found = ner_scores.entities([tags[label] for label in sentence])
        wanted += [(begin + start, begin + end, kind) for kind, start, end in found]
        begin += len(sentence)
    kinds = [kind.decode() for kind in grouping.types.numpy()]
    assert [(a, b, kinds[labels[a]]) for a, b in zip(first, last, strict=True)] == wanted
