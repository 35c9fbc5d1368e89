"""Windows of sentences, by hand and of random sentences; the tags that their predictions give, and their scores."""

from __future__ import annotations

import itertools
import json
import pathlib
import random

import pytest
from ner_data import make_tokenizer, random_sentences, sentence
from refused import refuses

from bert_tf2.finetuning import ner
from bert_tf2.finetuning.ner import examples as scores


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("vocab"))


def pieces_of(tokenizer, features):
    return tokenizer.convert_ids_to_tokens(features.input_ids)


def shown(tokenizer, windows) -> list[str]:
    return ["".join(pieces_of(tokenizer, window)[1:-1]).replace("##", "") for window in windows]


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
    windows = ner.convert_sentences_to_features(given, ["O", "B-X", "I-X"], 8, tokenizer, document_context=True)
    # the middle sentence: two pieces on each side, and "bc" is never cut
    assert shown(tokenizer, windows) == ["f", "abcdef", "bcdefa", "defab", "c"]
    assert [window.sentence for window in windows] == [0, 1, 2, 3, 4]
    assert windows[2].answers == [(0, 3), (1, 4)]
    assert windows[2].label_ids == [-1, -1, -1, 1, 2, -1, -1, -1]


def test_a_sentence_has_no_more_windows_than_it_needs(tokenizer):
    """One if it fits. The words around a longer one are at most those that a window has beside its stride.

    With six pieces in a window and the stride 2, the windows of 8 words and of 4 on each side of them begin every two.
    """
    short = [sentence("a", document=1), sentence(*"bcdefa", document=1), sentence(*"bcd", document=1)]
    for context in (False, True):
        windows = ner.convert_sentences_to_features(short, [], 8, tokenizer, 2, context)
        assert [window.sentence for window in windows] == [0, 1, 2]
    around = [sentence(*"abcdef", document=1), sentence(*"aabbccdd", document=1), sentence(*"fedcba", document=1)]
    for context, wanted in ((False, ["aabbcc", "bbccdd"]), (True, ["efaabb", "aabbcc", "bbccdd", "ccddfe"])):
        windows = ner.convert_sentences_to_features(around, [], 8, tokenizer, 2, context)
        assert shown(tokenizer, [window for window in windows if window.sentence == 1]) == wanted
    middle = [sentence(*"aaaaaa", document=1), sentence(*"bcde", document=1), sentence(*"ffffff", document=1)]
    windows = ner.convert_sentences_to_features(middle, [], 8, tokenizer, 2, document_context=True)
    assert shown(tokenizer, [window for window in windows if window.sentence == 1]) == ["abcdef"]
    # Of windows with equal context, the first has the word.
    windows = ner.convert_sentences_to_features(around[1:2], [], 8, tokenizer, 1)
    assert [[word for word, _ in window.answers] for window in windows] == [[0, 1, 2, 3], [4], [5, 6, 7]]
    for stride in (0, 7):
        refuses(f"doc_stride {stride} 6", ner.convert_sentences_to_features, short, [], 8, tokenizer, stride)


@pytest.mark.parametrize("document_context", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_windows_of_random_sentences(tokenizer, seed, document_context):
    """Each word is labeled once, and the labels come back as the tags, whatever is at the other positions."""
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
    predictions = [
        [rng.randrange(len(labels)) if label == -1 else label for label in ner.as_record(window)["label_ids"]]
        for window in windows
    ]
    assert ner.assemble_tags(given, windows, predictions, labels) == [s.tags for s in given]


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


# Scores

SEQEVAL = json.loads((pathlib.Path(__file__).with_name("seqeval.json")).read_text())


@pytest.mark.parametrize("report", SEQEVAL["reports"], ids=["IOB1", "IOB2", "IOBES", "types"])
def test_scores_are_those_of_seqeval(report):
    true, predicted = ([tags.split() for tags in report[name]] for name in ("true", "predicted"))
    found = ner.score(true, predicted)
    assert json.loads(json.dumps(found)) == found
    assert found["accuracy"] == pytest.approx(report["accuracy"], abs=1e-12)
    assert found["types"].keys() == report["types"].keys() and [*found["types"]] == sorted(found["types"])
    for row, wanted in [(found, report["all"]), *((found["types"][k], v) for k, v in report["types"].items())]:
        assert [row[name] for name in ("precision", "recall", "f1")] == pytest.approx(wanted[:3], abs=1e-12)
        assert row["true_entities"] == wanted[3]


def test_entities_are_those_of_seqeval():
    """Every tag of IOBES alone and behind every other, and longer sequences, few of which are well-formed."""
    for tags, wanted in SEQEVAL["entities"].items():
        assert [f"{kind} {first} {last}" for kind, first, last in scores.entities(tags.split())] == wanted, tags
    assert scores.entities(["PER", "PER", "O", "LOC", "PER"]) == [("PER", 0, 1), ("LOC", 3, 3), ("PER", 4, 4)]


@pytest.mark.parametrize(
    "tags",
    [
        "B-PER I-PER L-PER O U-LOC O B-LOC L-LOC",
        "B-PER M-PER E-PER O S-LOC O B-LOC E-LOC",
        "B-PER M-PER E-PER O W-LOC O B-LOC E-LOC",
    ],
)
def test_letters_of_other_schemes_mean_the_same(tags):
    """As those of BIOES: two entities of a type in a row are two."""
    tags, wanted = tags.split(), "B-PER I-PER E-PER O S-LOC O B-LOC E-LOC".split()
    assert not ner.is_plain(tags) and scores.entities(tags) == scores.entities(wanted)
    assert len(scores.entities([*tags[4:5] * 2, *tags[6:], tags[6]])) == 4


def test_scores_of_plain_tags_leave_out_o():
    found = ner.score_plain([["PER", "O", "O", "LOC"]], [["PER", "O", "LOC", "O"]])
    assert json.loads(json.dumps(found)) == found
    assert (found["precision"], found["recall"], found["f1"], found["accuracy"]) == (0.5, 0.5, 0.5, 0.5)
    assert found["tags"]["PER"]["f1"] == 1 and found["tags"]["O"]["f1"] == 0.5 and found["tags"]["LOC"]["f1"] == 0
