"""Windows of sentences, by hand and of random sentences, and the tags that their predictions give."""

from __future__ import annotations

import itertools
import random

import pytest
from refused import refuses

from bert_tf2.finetuning import ner
from bert_tf2.tokenization import FullTokenizer

LABELS = ["O", "B-X", "I-X"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Splits words of the letters a to f into letters, so that pieces are easy to count."""
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef", *(f"##{letter}" for letter in "abcdef")]
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(vocab) + "\n")
    return FullTokenizer(vocab_file=str(path), do_lower_case=True)


def sentence(*words, tags=None, document=0):
    return ner.NerSentence(words=list(words), tags=tags, document=document)


def test_first_pieces_carry_the_labels(tokenizer):
    given = [sentence("abc", "\u0007", "d", "zz", tags=["B-X", "O", "I-X", "O"])]
    (features,) = ner.convert_sentences_to_features(given, LABELS, 10, tokenizer)
    assert features.answers == [(0, 1), (1, 4), (2, 5), (3, 6)]
    assert ner.as_record(features) == {
        "input_ids": [2, 5, 12, 13, 1, 8, 1, 3, 0, 0],  # [CLS] a ##b ##c [UNK] d [UNK] [SEP]
        "input_mask": [1] * 8 + [0] * 2,
        "segment_ids": [0] * 10,
        "label_ids": [-1, 1, -1, -1, 0, 2, 0, -1, -1, -1],
    }


@pytest.mark.parametrize(
    ("words", "length", "stride", "context", "wanted"),
    [
        # The middle sentence of three in a document has two pieces on each side, and "bc" is never cut.
        (["a bc", "d e", "f a b"], 8, None, True, ["abcdef", "bcdefa", "defab"]),
        (["a", "b c d e f a", "b c d"], 8, 2, False, ["a", "bcdefa", "bcd"]),
        # One window is enough where the sentence fits. The words around a longer one are at most those that a window
        # has beside its stride: 4 of 6.
        (["a", "b c d e f a", "b c d"], 8, 2, True, ["abcdef", "bcdefa", "efabcd"]),
        (["a a b b c c d d"], 8, 2, False, ["aabbcc", "bbccdd"]),
        (["a a b b c c d d"], 8, 1, False, ["aabbcc", "abbccd", "bbccdd"]),
        (["a b c d e f", "a a b b c c d d", "f e d c b a"], 8, 2, True,
         ["abcdef", "efaabb", "aabbcc", "bbccdd", "ccddfe", "fedcba"]),
        (["a a a a a a", "b c d e", "f f f f f f"], 8, 2, True, ["aaaaaa", "abcdef", "ffffff"]),
    ],
)  # fmt: skip
def test_windows_by_hand(tokenizer, words, length, stride, context, wanted):
    """Sentences of other documents, before and behind these, are in no window of theirs."""
    given = [sentence("f"), *(sentence(*text.split(), document=1) for text in words), sentence("c", document=2)]
    found = ner.convert_sentences_to_features(given, [], length, tokenizer, stride, context)
    shown = ["".join(tokenizer.convert_ids_to_tokens(each.input_ids)[1:-1]).replace("##", "") for each in found]
    assert shown == ["f", *wanted, "c"]


def test_the_stride_is_checked(tokenizer):
    for stride in (0, 7):
        refuses(f"doc_stride stride {stride} 6", ner.convert_sentences_to_features, [], [], 8, tokenizer, stride)


def random_sentences(rng):
    for number in range(rng.randint(1, 12)):
        words = ["".join(rng.choices("abcdef", k=rng.choice([1, 1, 2, 3, 7, 12]))) for _ in range(rng.randint(1, 25))]
        yield sentence(*words, tags=rng.choices(LABELS, k=len(words)), document=number // 4)


@pytest.mark.parametrize("document_context", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_windows_of_random_sentences(tokenizer, seed, document_context):
    """Each word is labeled once, and the labels come back as the tags, whatever is at the other positions."""
    rng = random.Random(seed)
    given = [*random_sentences(rng)]
    capacity = rng.randint(1, 28)
    stride = rng.choice([None, rng.randint(1, capacity)])
    windows = ner.convert_sentences_to_features(given, LABELS, capacity + 2, tokenizer, stride, document_context)

    assert [window.sentence for window in windows] == sorted(window.sentence for window in windows)
    answered = [(window.sentence, word) for window in windows for word, _ in window.answers]
    assert sorted(answered) == [(i, j) for i, s in enumerate(given) for j in range(len(s.words))]
    predictions = []
    for window in windows:
        record = ner.as_record(window)
        assert {len(values) for values in record.values()} == {capacity + 2}
        answers = {position: LABELS.index(given[window.sentence].tags[word]) for word, position in window.answers}
        assert {p: label for p, label in enumerate(record["label_ids"]) if label != -1} == answers
        predictions.append([answers.get(position, rng.randrange(3)) for position in range(capacity + 2)])
    assert ner.assemble_tags(given, windows, predictions, LABELS) == [s.tags for s in given]
    for document, indexes in itertools.groupby(range(len(given)), key=lambda index: given[index].document):
        of_document = [window for window in windows if given[window.sentence].document == document]
        check_contents(tokenizer, given, [*indexes], of_document, capacity, document_context)


def check_contents(tokenizer, given, indexes, windows, capacity, document_context):
    """Every window shows whole words in a row, and no other window of its sentence shows more around its answers."""
    pieces = {(i, j): tokenizer.tokenize(word)[:capacity] for i in indexes for j, word in enumerate(given[i].words)}
    starts = dict(zip(pieces, itertools.accumulate(map(len, pieces.values()), initial=0), strict=False))
    stops = {key: start + len(pieces[key]) for key, start in starts.items()}
    flat = [*itertools.chain(*pieces.values())]
    spans = []
    for window in windows:
        (begin,) = {starts[window.sentence, word] - position + 1 for word, position in window.answers}
        end = begin + len(window.input_ids) - 2
        found = tokenizer.convert_ids_to_tokens(window.input_ids)
        assert found == ["[CLS]", *flat[begin:end], "[SEP]"] and {begin, end} <= {*starts.values(), len(flat)}
        own = [key for key in pieces if key[0] == window.sentence]
        assert document_context or (begin >= starts[own[0]] and end <= stops[own[-1]])
        spans.append((window, begin, end))
    for window, begin, end in spans:
        rivals = [(b, e) for other, b, e in spans if other.sentence == window.sentence]
        for word, _ in window.answers:
            first, last = starts[window.sentence, word], stops[window.sentence, word]
            best = max(min(first - b, e - last) for b, e in rivals if b <= first and last <= e)
            assert min(first - begin, end - last) == best
