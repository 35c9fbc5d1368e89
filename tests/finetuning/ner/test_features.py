"""Windows of sentences, by hand and of random sentences, and the tags that their predictions give."""

from __future__ import annotations

import itertools
import random

import pytest
from ner_data import make_tokenizer, random_sentences, sentence

from bert_tf2.finetuning import ner


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("vocab"))


def pieces_of(tokenizer, features):
    return tokenizer.convert_ids_to_tokens(features.input_ids)


def test_first_pieces_carry_the_labels(tokenizer):
    given = [sentence("abc", "\u0007", "d", "zz", tags=["B-X", "O", "I-X", "O"])]
    (features,) = ner.convert_sentences_to_features(given, ["O", "B-X", "I-X"], 10, tokenizer)
    assert pieces_of(tokenizer, features) == ["[CLS]", "a", "##b", "##c", "[UNK]", "d", "[UNK]", "[SEP]"]
    assert features.answers == [(0, 1), (1, 4), (2, 5), (3, 6)]
    assert ner.as_record(features) == {
        "input_ids": [2, 5, 12, 13, 1, 8, 1, 3, 0, 0],
        "input_mask": [1] * 8 + [0] * 2,
        "segment_ids": [0] * 10,
        "label_ids": [-1, 1, -1, -1, 0, 2, 0, -1, -1, -1],
    }


def test_document_context_by_hand(tokenizer):
    given = [
        sentence("f", document=1),
        sentence("a", "bc", document=2, tags=["O", "O"]),
        sentence("d", "e", document=2, tags=["B-X", "I-X"]),
        sentence("f", "a", "b", document=2, tags=["O"] * 3),
        sentence("c", document=3),
    ]
    labels = ["O", "B-X", "I-X"]
    windows = ner.convert_sentences_to_features(given, labels, 8, tokenizer, document_context=True)
    shown = ["".join(pieces_of(tokenizer, window)[1:-1]).replace("##", "") for window in windows]
    # the middle sentence: two pieces on each side, and "bc" is never cut
    assert shown == ["f", "abcdef", "bcdefa", "defab", "c"]
    assert [window.sentence for window in windows] == [0, 1, 2, 3, 4]
    assert windows[2].answers == [(0, 3), (1, 4)]
    assert windows[2].label_ids == [-1, -1, -1, 1, 2, -1, -1, -1]


@pytest.mark.parametrize("document_context", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_windows_of_random_sentences(tokenizer, seed, document_context):
    rng = random.Random(seed)
    given, labels = random_sentences(rng)
    max_seq_length = rng.randint(3, 30)
    capacity = max_seq_length - 2
    stride = rng.choice([None, rng.randint(1, capacity)])
    windows = ner.convert_sentences_to_features(given, labels, max_seq_length, tokenizer, stride, document_context)

    assert [window.sentence for window in windows] == sorted(window.sentence for window in windows)
    answered = [(window.sentence, word) for window in windows for word, _ in window.answers]
    assert sorted(answered) == [(i, j) for i, s in enumerate(given) for j in range(len(s.words))]
    for window in windows:
        record = ner.as_record(window)
        assert {len(values) for values in record.values()} == {max_seq_length}
        tags = given[window.sentence].tags
        assert {p: i for p, i in enumerate(record["label_ids"]) if i != -1} == {
            position: labels.index(tags[word]) for word, position in window.answers
        }
    check_contents(tokenizer, given, windows, capacity, document_context)


def check_contents(tokenizer, given, windows, capacity, document_context):
    """Every window shows whole words in a row, and no other window of its sentence shows more around its answers."""
    for document, group in itertools.groupby(range(len(given)), key=lambda index: given[index].document):
        indexes = list(group)
        pieces = {(i, j): tokenizer.tokenize(word)[:capacity] for i in indexes for j, word in enumerate(given[i].words)}
        keys = list(pieces)
        starts = dict(zip(keys, itertools.accumulate((len(p) for p in pieces.values()), initial=0), strict=False))
        flat = [piece for key in keys for piece in pieces[key]]
        spans = []
        for window in (window for window in windows if given[window.sentence].document == document):
            (begin,) = {starts[window.sentence, word] - position + 1 for word, position in window.answers}
            end = begin + len(window.input_ids) - 2
            assert pieces_of(tokenizer, window) == ["[CLS]", *flat[begin:end], "[SEP]"]
            assert {begin, end} <= {*starts.values(), len(flat)}
            own = [starts[key] for key in keys if key[0] == window.sentence]
            if not document_context:
                assert begin >= own[0] and end <= own[-1] + len(pieces[window.sentence, len(own) - 1])
            spans.append((window, begin, end))
        for window, begin, end in spans:
            rivals = [(b, e) for other, b, e in spans if other.sentence == window.sentence]
            for word, _ in window.answers:
                first = starts[window.sentence, word]
                last = first + len(pieces[window.sentence, word])
                best = max(min(first - b, e - last) for b, e in rivals if b <= first and last <= e)
                assert min(first - begin, end - last) == best


@pytest.mark.parametrize("document_context", [False, True])
def test_right_labels_come_back_as_the_tags(tokenizer, document_context):
    """Labels as predictions give the tags, whatever stands at the other positions."""
    for seed in range(20):
        rng = random.Random(seed)
        given, labels = random_sentences(rng)
        windows = ner.convert_sentences_to_features(
            given, labels, 12, tokenizer, document_context=document_context, doc_stride=rng.randint(1, 10)
        )
        predictions = [
            [rng.randrange(len(labels)) if label == -1 else label for label in ner.as_record(window)["label_ids"]]
            for window in windows
        ]
        assert ner.assemble_tags(given, windows, predictions, labels) == [s.tags for s in given]
