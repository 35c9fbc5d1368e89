"""Token classification: columns, windows, documents, putting back together, scores, predictions."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys

import pytest

from bert_tf2 import records
from bert_tf2.finetuning import ner
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer

CONLL_2003 = """\
-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- -X- O

London NNP B-NP B-LOC
"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Every word of the letters a to f becomes one piece a letter, so that a test can count pieces by eye."""
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef", *(f"##{letter}" for letter in "abcdef")]
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(vocab) + "\n")
    return FullTokenizer(vocab_file=str(path), do_lower_case=True)


@pytest.fixture
def write(tmp_path):
    def write_file(text: str | bytes) -> str:
        path = tmp_path / "data.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write_file


def sentence(*words, tags=None, document=0):
    return ner.NerSentence(words=list(words), tags=tags, document=document)


def pieces_of(tokenizer, features):
    return tokenizer.convert_ids_to_tokens(features.input_ids)


# Reading


def test_reads_conll_2003(write):
    path = write(CONLL_2003)
    assert ner.read_conll(path) == [
        ner.NerSentence(["EU", "rejects", "German"], ["B-ORG", "O", "B-MISC"], [3, 4, 5], 1, path),
        ner.NerSentence(["Peter", "Blackburn"], ["B-PER", "I-PER"], [7, 8], 1, path),
        ner.NerSentence(["London"], ["B-LOC"], [12], 2, path),
    ]


def test_other_columns(write):
    path = write("1\tNew York\tx\tS-LOC\t_\n2\tis\tx\tO\t_\n")
    (found,) = ner.read_conll(path, word_column=1, tag_column=-2)
    assert (found.words, found.tags) == (["New York", "is"], ["S-LOC", "O"])
    assert ner.read_conll(path, word_column=1, tag_column=3) == [found]


def test_spaces_line_ends_and_byte_order_mark(write):
    (found,) = ner.read_conll(write("\ufeffEU   B-ORG \r\nsays\tO\t\r\n"))
    assert (found.words, found.tags) == (["EU", "says"], ["B-ORG", "O"])


def test_unicode_blanks_belong_to_words(write):
    (found,) = ner.read_conll(write("10\u00a0000 O\n\u00a0 O\na\u2028b O\n"))
    assert found.words == ["10\u00a0000", "\u00a0", "a\u2028b"]
    (found,) = ner.read_conll(write("a\n\u00a0\nb\n"))
    assert found.words == ["a", "\u00a0", "b"]


def test_document_mark_needs_no_blank_line(write):
    sentences = ner.read_conll(write("-DOCSTART-\na O\n-DOCSTART-\nb O\n"))
    assert [(s.words, s.document) for s in sentences] == [(["a"], 1), (["b"], 2)]


def test_comments_are_told_from_words(write):
    sentences = ner.read_conll(write("# id 7 x\n#nlp O\n# B-X\nrocks O\n\n# id 8 y\n# text\nyes O\n"))
    assert [s.words for s in sentences] == [["#nlp", "#", "rocks"], ["yes"]]
    assert sentences[0].rows == [2, 3, 4]


def test_tags_may_be_missing(write):
    assert [s.tags for s in ner.read_conll(write("EU\nsays\n\nLondon\n"))] == [None, None]
    (found,) = ner.read_conll(write("EU NNP\nsays VBZ\n"), has_labels=False)
    assert (found.words, found.tags) == (["EU", "says"], None)


def test_labels_of(write):
    assert ner.labels_of(ner.read_conll(write(CONLL_2003))) == ["O", "B-LOC", "B-MISC", "B-ORG", "B-PER", "I-PER"]
    assert ner.labels_of([sentence("x", tags=["S-A"]), sentence("y")]) == ["O", "S-A"]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("", {}, "there is no word"),
        ("\n-DOCSTART- O\n \t\n", {}, "there is no word"),
        ("# only comments\n", {}, "there is no word"),
        ("a O\nb x O\n", {}, "line 2: 3 columns, but line 1 has 2"),
        ("a x O\n\nb\n", {}, "line 3: 1 column, but line 1 has 3"),
        ("a O\n# c d\n", {}, "line 2: 3 columns"),
        ("#text PER\na O\n", {}, "line 1: 'PER' in column 2 is not a tag"),
        ("a O\n# text\n", {}, "line 2: 'text' in column 2 is not a tag"),
        ("a\tO\n\tO\n", {}, "line 2: no word in column 1"),
        ("a O\nb PER\n", {}, "line 2: 'PER' in column 2 is not a tag"),
        ("a B-\n", {}, "line 1: 'B-' in"),
        ("a L-PER\n", {}, "line 1: 'L-PER' in"),
        (
            "a O\n",
            {"tag_column": 2},
            "line 1: there is no column 3 among 2 columns (the first is 1, the last is 2 or -1)",
        ),
        ("a O\n", {"word_column": -3}, "line 1: there is no column -3 among 2 columns"),
        ("a\n", {"has_labels": True}, "line 1: column 1 would be word and tag at once"),
        (b"a O\n\xe4 O\n", {}, "line 2: not UTF-8"),
    ],
)
def test_bad_files(write, text, options, expected):
    path = write(text)
    with pytest.raises(UserError) as error:
        ner.read_conll(path, **options)
    assert expected in str(error.value)
    assert str(error.value).startswith(path)
    assert "\n" not in str(error.value)


def test_missing_file_lists_what_is_there(write, tmp_path):
    write("a O\n")
    with pytest.raises(UserError, match=r"train\.txt: no such file .*data\.txt"):
        ner.read_conll(str(tmp_path / "train.txt"))


# Features


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


def test_without_tags_nothing_is_labelled(tokenizer):
    (features,) = ner.convert_sentences_to_features([sentence("ab", "c")], ["O"], 8, tokenizer)
    assert set(features.label_ids) == {-1}
    assert features.answers == [(0, 1), (1, 3)]


def test_record_holds_what_the_table_says(tokenizer, tmp_path):
    import tensorflow as tf

    features = ner.convert_sentences_to_features([sentence("ab", "c", tags=["O", "O"])], ["O"], 8, tokenizer)
    path = str(tmp_path / "train.tf_record")
    assert records.write_records(path, records.TOKEN_TAGGING, map(ner.as_record, features)) == 1
    (raw,) = tf.data.TFRecordDataset(path).as_numpy_iterator()
    parsed = tf.io.parse_single_example(
        raw, {name: tf.io.FixedLenFeature([8], tf.int64) for name in records.TOKEN_TAGGING.features}
    )
    assert {name: value.numpy().tolist() for name, value in parsed.items()} == ner.as_record(features[0])


def test_long_sentence_by_hand(tokenizer):
    """Six pieces a window, three from window to window, nine words."""
    given = [sentence("a", "b", "c", "d", "e", "f", "a", "b", "c", tags=["O"] * 9)]
    first, second = ner.convert_sentences_to_features(given, ["O"], 8, tokenizer)
    assert pieces_of(tokenizer, first) == ["[CLS]", *"abcdef", "[SEP]"]
    assert pieces_of(tokenizer, second) == ["[CLS]", *"defabc", "[SEP]"]
    # word 3: 2 pieces behind it in the first window, none before it in the second; word 4: 1 and 1, a tie; word 5: 0, 2
    assert [word for word, _ in first.answers] == [0, 1, 2, 3, 4]
    assert second.answers == [(5, 3), (6, 4), (7, 5), (8, 6)]


def test_last_window_reaches_back(tokenizer):
    given = [sentence(*"abcdefa")]
    windows = ner.convert_sentences_to_features(given, ["O"], 8, tokenizer, doc_stride=6)
    assert [pieces_of(tokenizer, window)[1:-1] for window in windows] == [list("abcdef"), list("bcdefa")]


def test_words_stay_whole_beside_long_ones(tokenizer):
    given = [sentence("ab", "cd", "abcdef", "ef", "abcdefabcdef")]
    windows = ner.convert_sentences_to_features(given, ["O"], 8, tokenizer)
    assert ["".join(pieces_of(tokenizer, window)[1:-1]).replace("##", "") for window in windows] == [
        "abcd",
        "abcdef",
        "ef",
        "abcdef",
    ]
    assert [window.answers for window in windows] == [[(0, 1), (1, 3)], [(2, 1)], [(3, 1)], [(4, 1)]]


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


def test_no_document_context_unless_asked(tokenizer):
    given = [sentence("a"), sentence("b")]
    windows = ner.convert_sentences_to_features(given, ["O"], 8, tokenizer)
    assert [pieces_of(tokenizer, window)[1:-1] for window in windows] == [["a"], ["b"]]


def random_sentences(rng):
    labels = ["O", "B-X", "I-X"]
    given = []
    for number in range(rng.randint(1, 12)):
        words = ["".join(rng.choices("abcdef", k=rng.choice([1, 1, 2, 3, 7, 12]))) for _ in range(rng.randint(1, 25))]
        given.append(sentence(*words, tags=rng.choices(labels, k=len(words)), document=number // 4))
    return given, labels


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


@pytest.mark.parametrize("length", [1, 10, 126, 127, 500])
def test_default_stride_leaves_a_quarter_on_both_sides(tokenizer, length):
    (given,) = [sentence(*random.Random(length).choices("abcdef", k=length))]
    for window in ner.convert_sentences_to_features([given], ["O"], 128, tokenizer):
        for word, position in window.answers:
            assert min(position - 1, word) >= min(word, 31)
            behind = len(window.input_ids) - 2 - position
            assert behind >= min(length - 1 - word, 31)


def test_document_context_fills_the_window(tokenizer):
    rng = random.Random(5)
    given = [sentence(*rng.choices("abcdef", k=rng.randint(1, 20))) for _ in range(50)]
    windows = ner.convert_sentences_to_features(given, ["O"], 32, tokenizer, document_context=True)
    assert len(windows) == 50
    assert {len(window.input_ids) for window in windows} == {32}


def test_long_sentence_in_a_document_sees_its_neighbours(tokenizer):
    given = [sentence("f", "f"), sentence(*"abcdeabcde"), sentence("f", "f")]
    windows = ner.convert_sentences_to_features(given, ["O"], 10, tokenizer, doc_stride=4, document_context=True)
    shown = ["".join(pieces_of(tokenizer, window)[1:-1]) for window in windows if window.sentence == 1]
    assert shown == ["ffabcdea", "cdeabcde", "eabcdeff"]


@pytest.mark.parametrize(
    ("max_seq_length", "doc_stride", "expected"),
    [(2, None, "max_seq_length is 2"), (8, 7, "between 1 and 6"), (8, 0, "doc_stride is 0")],
)
def test_bad_sizes(tokenizer, max_seq_length, doc_stride, expected):
    with pytest.raises(UserError, match=expected):
        ner.convert_sentences_to_features([sentence("a")], ["O"], max_seq_length, tokenizer, doc_stride)


def test_unseen_tag_names_the_line_and_the_known(tokenizer, write):
    path = write("a O\n\nb B-Y\n")
    with pytest.raises(UserError) as error:
        ner.convert_sentences_to_features(ner.read_conll(path), ["O", "B-X"], 8, tokenizer)
    assert str(error.value).startswith(f"{path}, line 3: tag 'B-Y' was not seen in training (known: O, B-X)")


# Putting back together


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


def test_predictions_must_fit_the_windows(tokenizer):
    given = [sentence("a"), sentence("b")]
    windows = ner.convert_sentences_to_features(given, ["O"], 8, tokenizer)
    with pytest.raises(ValueError):
        ner.assemble_tags(given, windows, [[0] * 8], ["O"])
    with pytest.raises(ValueError, match="sentence 1: 1 words, but the windows answer for 0"):
        ner.assemble_tags(given, windows[:1], [[0] * 8], ["O"])


# Writing


def test_predictions_stand_in_the_inputs_own_columns(write, tmp_path):
    text = "\ufeff-DOCSTART- -X- O\r\n\r\n# id 7\r\nEU  NNP B-ORG \r\nsays VBZ O\r\n\r\n\r\nLondon NNP B-LOC"
    path, output = write(text), tmp_path / "new" / "predictions.txt"
    ner.write_predictions(path, str(output), ner.read_conll(path), [["B-X", "O"], ["O"]])
    assert output.read_bytes().decode() == (
        "\ufeff-DOCSTART- -X- O O\r\n\r\n# id 7\r\nEU  NNP B-ORG B-X\r\nsays VBZ O O\r\n\r\n\r\nLondon NNP B-LOC O"
    )


@pytest.mark.parametrize("text", [CONLL_2003, CONLL_2003.replace(" ", "\t"), "a\nb\n\nc\n", "\n\n#a\n\nb"])
def test_written_file_reads_back(write, tmp_path, text):
    path, output = write(text), str(tmp_path / "predictions.txt")
    given = ner.read_conll(path)
    tags = [["B-X"] * len(s.words) for s in given]
    ner.write_predictions(path, output, given, tags)
    again = ner.read_conll(output)
    assert [(s.words, s.rows, s.document, s.tags) for s in again] == [
        (s.words, s.rows, s.document, tag) for s, tag in zip(given, tags, strict=True)
    ]
    if given[0].tags is not None:
        assert [s.tags for s in ner.read_conll(output, tag_column=-2)] == [s.tags for s in given]


def test_predictions_complete_or_absent(write, tmp_path):
    path = write(CONLL_2003)
    given = ner.read_conll(path)
    output = tmp_path / "predictions.txt"
    with pytest.raises(ValueError):
        ner.write_predictions(path, str(output), given, [["O"] * 3, ["O"], ["O"]])
    write(CONLL_2003.replace("London", "Paris"))
    with pytest.raises(UserError, match="line 12: the word 'London' is gone"):
        ner.write_predictions(path, str(output), given, [["O"] * 3, ["O"] * 2, ["O"]])
    assert [name.name for name in tmp_path.iterdir()] == ["data.txt"]


def test_no_tensorflow_needed():
    code = "import sys, bert_tf2.ner; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
