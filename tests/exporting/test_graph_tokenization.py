"""The tokenizer in the graph against the one in Python, which has tests of its own, and places against the text."""

from __future__ import annotations

import copy
import itertools
import json
import pathlib
import random
import re
import sys
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
import text_operations
from golden_data import GOLDEN

from bert_tf2 import tokenization
from bert_tf2.exporting import graph_tokenization
from bert_tf2.finetuning import classification
from bert_tf2.finetuning.squad.examples import split_words
from bert_tf2.finetuning.squad.features import piece_spans
from bert_tf2.support.errors import UserError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = tf.TensorSpec([None], tf.string)

# Marks that decomposing may move and lower-casing does not drop, and characters that become such marks.
MOVABLE = [chr(code) for code in range(0x110000) if unicodedata.combining(chr(code))]
MOVABLE = [char for char in MOVABLE if unicodedata.category(char) != "Mn"] + ["\U0001d15e", "\U0001d161", "\U0001d1c0"]
# Characters that one of the steps treats in a way of its own.
ODD = [
    *"aZé\u00c5\u1e9b\u0301\u0327\u0345\u034f\ufe0f\u0e31ΣςΌİßﬀǅ\u03c3\u0391\u0131'\u2019.:\u00ad!$+^`~|-_\u3002\u1fef\u037e\u2260",
    *" \t\n\r\x0b\x0c\x1c\x85\xa0\u1680\u2003\u2028\u2029\u202f\u3000\x00\x07\u200b\u200d\ufeff\ufffd\U000e0001",
    *"北\u3400\u4dbf\u4dc0\u9fff\ua000\uf900\U00020000\U0002f81dかガｶ\u3099한국각\u1112\u1161🙂٣आिกำ\ue000\U0010ffff",
]
ANYWHERE = [*range(0xD800), *range(0xE000, 0x30000)]


class Pair:
    """A tokenizer and its graph."""

    def __init__(self, path: pathlib.Path, do_lower_case: bool, entries=None, keep_masks=False, **rules):
        if entries is not None:
            path.write_text("".join(entry + "\n" for entry in entries), encoding="utf-8", newline="")
        self.python = tokenization.FullTokenizer(str(path), do_lower_case, **rules)
        self.graph = graph_tokenization.GraphTokenizer(self.python, keep_masks, for_servers=False)
        self._graphs = [tf.function(self.graph.tokenize, input_signature=[TEXTS])]
        if text_operations.are_there():
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(sys.modules, "tensorflow_text", None)
                self.own = graph_tokenization.GraphTokenizer(self.python, keep_masks, for_servers=False)
            self._graphs.append(tf.function(self.own.tokenize, input_signature=[TEXTS]))

    def tokenize(self, texts: tf.Tensor) -> graph_tokenization.Pieces:
        """The same pieces and places with the operations of tensorflow-text, and without."""
        found, *others = (graph(texts) for graph in self._graphs)
        for other in others:
            for one, same in zip(found, other, strict=True):
                assert one.dtype == same.dtype
                np.testing.assert_array_equal(one.flat_values, same.flat_values)
                np.testing.assert_array_equal(one.row_splits, same.row_splits)
        return found

    def ids(self, texts: list[str]) -> list[list[int]]:
        return self.tokenize(encoded(texts)).ids.to_list()

    def tokens(self, text: str) -> list[str]:
        return self.python.convert_ids_to_tokens(self.ids([text])[0])

    def assert_equal(self, texts: list[str]) -> None:
        """The ids of all texts are those of the Python tokenizer; names the first text with others."""
        for text, ids in zip(texts, self.ids(texts), strict=True):
            expected = self.python.tokenize(text)
            assert ids == self.python.convert_tokens_to_ids(expected), (ascii(text), list(map(ascii, expected)))


def encoded(texts: list[str]) -> tf.Tensor:
    return tf.constant([text.encode() for text in texts], tf.string)


def is_assigned(code: int) -> bool:
    return unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")


def unicode_entries() -> list[str]:
    """Most characters there are, as pieces that begin and that continue a word."""
    codes = itertools.chain(range(0x21, 0x3400), range(0x3400, 0xF900, 8), range(0xF900, 0x20000))
    characters = [chr(code) for code in codes if is_assigned(code) and not chr(code).isspace()]
    return SPECIAL + characters + ["##" + char for char in characters]


@pytest.fixture(scope="module")
def lower_pair(tmp_path_factory) -> Pair:
    return Pair(tmp_path_factory.mktemp("vocabulary") / "vocab.txt", True, unicode_entries())


@pytest.fixture(scope="module")
def cased_pair(tmp_path_factory) -> Pair:
    return Pair(tmp_path_factory.mktemp("vocabulary") / "vocab.txt", False, unicode_entries())


@pytest.fixture(params=["lower", "cased"])
def unicode_pair(request) -> Pair:
    return request.getfixturevalue(request.param + "_pair")


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Pair:
    words = "the cafe ' s em ##bed ##ding ##s , 北 京 ! x ##x mask [ ]".split()
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    return Pair(path, True, SPECIAL + words, keep_masks=True)


# The same tokens


def pages(codes: list[int], context: str) -> list[str]:
    """Texts with a word, made by `context`, of each code point."""
    words = [context.format(chr(code)) for code in codes if not 0xD800 <= code < 0xE000]
    return [" ".join(words[first : first + 256]) for first in range(0, len(words), 256)]


# Every code point but for the large blocks of like characters, of which there are some.
VARIED = [*range(0x3400), *range(0x3400, 0xF900, 16), *range(0xF900, 0x17000), *range(0x17000, 0x1B000, 16)]
VARIED += [*range(0x1B000, 0x20000), *range(0x20000, 0x110000, 97), *range(0xE0000, 0xE0200)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "context"),
    [("lower", "a{0}b"), ("cased", "a{0}B"), ("lower", "ΔΣ{0}Σ{0}"), ("lower", "{0}\u302e{0}\u1b44")],
)
def test_every_code_point(request, pair, context):
    """In a word of its own, and beside what looks at its neighbors: capital sigmas, marks in another order."""
    request.getfixturevalue(f"{pair}_pair").assert_equal(pages(VARIED, context))


def random_text(source: random.Random) -> str:
    anywhere = [chr(source.choice(ANYWHERE)) for _ in range(2)]
    near = [chr(source.randrange(0x3100)) for _ in range(8)]
    return "".join(source.choices([*ODD, *"abAB .ΣΣ", *anywhere, *near, *source.choices(MOVABLE, k=6)], k=25))


@pytest.fixture(scope="module")
def random_texts() -> list[str]:
    source = random.Random(5)
    return [random_text(source)[: source.randrange(26)] for _ in range(1500)]


@pytest.mark.slow
@pytest.mark.soak
def test_many_random_texts(unicode_pair):
    source = random.Random(6)
    for _ in range(100):
        unicode_pair.assert_equal([random_text(source) for _ in range(1000)])


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((GOLDEN / "A_tokenization").glob("rows_*.jsonl")), ids=lambda path: path.stem)
def test_rows_of_the_reference(path):
    rows = [json.loads(line) for line in path.read_text("ascii").split("\n") if line]
    rows = [row for row in rows if not re.search("[\ud800-\udfff]", row["text"])]  # which UTF-8 cannot hold
    pair = Pair(GOLDEN / "vocab" / (rows[0]["vocab"] + ".txt"), rows[0]["do_lower_case"])
    assert len(rows) > 10
    assert pair.ids([row["text"] for row in rows]) == [row["ids"] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("letters", ["ab", "".join(map(chr, range(0x1000, 0x2000))) + "ab"], ids=["narrow", "wide"])
def test_long_words(tmp_path, letters):
    pair = Pair(tmp_path / "vocab.txt", True, [*SPECIAL, *letters, "##a", "##ab", "##b"])
    pair.assert_equal(
        ["a" * 200, "a" * 201, "ab" * 100, "ab" * 100 + "é", "a " + "b" * 5000 + "\u0301 a", "a" * 199 + "?"]
    )
    assert pair.tokens("a" * 201) == ["[UNK]"] != pair.tokens("a" * 200)


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_vocabularies_with_oddities(tmp_path, do_lower_case):
    entries = [
        *SPECIAL, "", "##", "###", "#", "##,", "a", "ab", "a", "##b", "a b", "##b", "A", "é", "##É", "b,", "##[UNK]",
    ]  # fmt: skip
    pair = Pair(tmp_path / "vocab.txt", do_lower_case, [*entries, "", "ab\t"])
    texts = ["ab abb b # ## ##b #b a,b a##b A AB É aÉ é aé [UNK] [PAD] b,", "", " ", "##", "a b"]
    pair.assert_equal(texts)
    assert pair.ids(["a"]) == [[entries.index("a") + 2]]  # the later of two


def test_longest_entry(tmp_path):
    pair = Pair(tmp_path / "vocab.txt", True, [*SPECIAL, "x" * 128, "##" + "y" * 128, "z" * 201, "=" * 150])
    pair.assert_equal(["x" * 128 + " " + "y" * 128, "x" * 127, "x" * 129, "z" * 201, "=" * 150])
    with pytest.raises(UserError, match=r"entry xxxxxxxxxxxxxxxxxxxx\.\.\. has 129 characters, .* 128 at most"):
        Pair(tmp_path / "vocab.txt", True, [*SPECIAL, "x" * 129])


@pytest.mark.slow
def test_a_mask_is_whole_and_splits_the_text(tmp_path):
    letters = [*"aδςxmk[]s#,", "\u03c3"]
    pair = Pair(tmp_path / "vocab.txt", True, SPECIAL + letters + ["##" + letter for letter in letters], True)
    source = random.Random(3)
    parts = ["[MASK]", "[mask]", "[MA", "SK]", "[", "a", "ΔΣ", "Σ", " ", "\u0301", "\u200b", "\n", ","]
    texts = ["[MASK]", "[MASK][MASK]", "ΔΣ[MASK]Σ", "[MA\u200bSK]"]
    for text in [*texts, *("".join(source.choices(parts, k=8)) for _ in range(300))]:
        pieces = pair.tokenize(encoded([text]))
        around = re.split(r"(\[MASK\])", text)
        expected = [t for part in around for t in ([part] if part == "[MASK]" else pair.python.tokenize(part))]
        assert pieces.ids.to_list() == [pair.python.convert_tokens_to_ids(expected)], ascii(text)
        for token, start, end in zip(expected, pieces.starts.to_list()[0], pieces.ends.to_list()[0], strict=True):
            if token == "[MASK]":
                assert text.encode()[start:end].decode().rstrip("\u0301") == token


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_never_split_accents_and_chinese_characters(tmp_path, random_texts, do_lower_case):
    kept = ["[E1]", "ab", "bcd", "abc", "bb", "Σé"]
    rules = {"never_split": kept, "strip_accents": not do_lower_case, "tokenize_chinese_chars": False}
    pair = Pair(tmp_path / "vocab.txt", do_lower_case, [*unicode_entries(), *kept], **rules)
    source = random.Random(7)
    parts = [*"abcdA[]E1 Σ,北京é", *kept, "\u0301", "\n"]
    made = ["".join(source.choices(parts, k=10)) for _ in range(300)]
    pair.assert_equal(["[E1] x[E1]y [e1] abcd xabcde bbb", "北京é", "", "[E", "1]", *made, *random_texts])


def test_a_tokenizer_with_rules_of_its_own_is_refused(small):
    class Own(tokenization.BasicTokenizer):
        def _run_split_on_punc(self, text):
            return [text]

    tokenizer = copy.copy(small.python)
    tokenizer.basic_tokenizer = Own()
    with pytest.raises(ValueError, match="rules of its own"):
        graph_tokenization.GraphTokenizer(tokenizer)


def test_special_tokens_are_needed(tmp_path):
    for missing in ("[UNK]", "[CLS]", "[SEP]", "[MASK]"):
        with pytest.raises(tokenization.NotInVocabularyError, match=re.escape(missing)):
            Pair(tmp_path / "vocab.txt", True, ["a", *(token for token in SPECIAL if token != missing)], True)


@pytest.mark.parametrize(
    ("module", "cure"),
    [
        ("import gone", "pip install tensorflow-text"),
        ("None % {}", "unset PYTHONOPTIMIZE"),
        (
            "import tensorflow as tf\nraise tf.errors.NotFoundError(None, None, 'x.so: undefined symbol: y')",
            "not made for TensorFlow .* of one version",
        ),
    ],
)
def test_tensorflow_text_is_needed(small, monkeypatch, tmp_path, module, cure):
    (tmp_path / "tensorflow_text.py").write_text(module)
    monkeypatch.delitem(sys.modules, "tensorflow_text", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=rf"needs tensorflow-text, .*{cure}") as caught:
        graph_tokenization.GraphTokenizer(small.python)
    assert "\n" not in str(caught.value)


# Places


def test_places_are_those_of_answers_by_offsets(unicode_pair, random_texts):
    """squad.features finds them from the letters of single characters, in Python."""
    words = list(dict.fromkeys(itertools.chain(*map(split_words, random_texts))))
    found = unicode_pair.tokenize(encoded(words))
    for word, starts, ends in zip(words, found.starts.to_list(), found.ends.to_list(), strict=True):
        spans = [
            (len(word[:start].encode()), len(word[:end].encode()))
            for start, end in piece_spans(word, unicode_pair.python)
        ]
        assert spans == [*zip(starts, ends, strict=True)], ascii(word)


def test_rows_are_apart(small):
    """Texts that end and begin in the middle of something, empty ones, and no text at all."""
    texts = ["", "em", "bed", "\u0301", "the [MA", "SK]", "", "x\u1b44", "\u302ex", "[MASK]", ""]
    pieces = small.tokenize(encoded(texts))
    for text, ids, starts, words in zip(
        texts, pieces.ids.to_list(), pieces.starts.to_list(), pieces.words.to_list(), strict=True
    ):
        assert ids == small.ids([text])[0]
        assert (starts[:1], words[:1]) in (([0], [0]), ([], []))
    assert [len(ids) for ids in small.ids([])] == []
    assert all(ragged.shape.as_list() == [0, None] or ragged.nrows() == 0 for ragged in small.tokenize(encoded([])))


def test_character_offsets(random_texts):
    texts = [*random_texts[:200], ""]
    offsets = [[len(text[:end].encode()) for end in range(len(text) + 1)] for text in texts]
    expected = [list(range(len(text) + 1)) for text in texts]
    padded = tf.ragged.constant(offsets, tf.int32).to_tensor(-1)
    counted = tf.function(graph_tokenization.character_offsets)(encoded(texts), padded)
    assert counted.dtype == tf.int32
    np.testing.assert_array_equal(counted, tf.ragged.constant(expected).to_tensor(-1))
    assert graph_tokenization.character_offsets(encoded([]), tf.zeros([0, 3], tf.int32)).shape == (0, 3)


# Model inputs


def test_kept_lengths_equal_the_truncation_of_pairs():
    for first, second, longest in itertools.product(range(13), range(13), range(3, 16)):
        tokens_a, tokens_b = [*range(first)], [*range(second)]
        if second:
            classification.truncate_seq_pair(tokens_a, tokens_b, longest - 3)
        else:
            del tokens_a[longest - 2 :]
        kept = graph_tokenization.kept_lengths(tf.constant(first), tf.constant(second), longest)
        assert tuple(map(int, kept)) == (len(tokens_a), len(tokens_b)), (first, second, longest)


def test_combine_keeps_places(small):
    pieces = small.tokenize(encoded(["x embeds", "the"])), small.tokenize(encoded(["", "é, x"]))
    inputs = small.graph.combine(*pieces, 16)
    tokens = [small.python.convert_ids_to_tokens(ids) for ids in inputs.input_ids.numpy().tolist()]
    assert tokens[0] == ["[CLS]", "x", "em", "##bed", "##s", "[SEP]", "[PAD]"]
    assert tokens[1] == ["[CLS]", "the", "[SEP]", "[UNK]", ",", "x", "[SEP]"]
    assert inputs.starts.numpy().tolist() == [[-1, 0, 2, 4, 7, -1, -1], [-1, 0, -1, 0, 2, 4, -1]]
    assert inputs.ends.numpy().tolist() == [[-1, 1, 4, 7, 8, -1, -1], [-1, 3, -1, 2, 3, 5, -1]]
    assert inputs.words.numpy().tolist() == [[-1, 0, 1, 1, 1, -1, -1], [-1, 0, -1, 0, 1, 2, -1]]
    assert inputs.segment_ids.numpy().tolist() == [[0] * 7, [0, 0, 0, 1, 1, 1, 1]]
    single = small.graph.combine(pieces[0], None, 4)
    assert single.input_mask.numpy().tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert all(values.dtype == tf.int32 for values in inputs)


# In a graph


def test_wrong_utf8_is_refused_with_the_row(small):
    named = tf.function(lambda texts: small.graph.tokenize(texts, "text_a").ids, input_signature=[TEXTS])
    with pytest.raises(tf.errors.InvalidArgumentError, match="row 2 of text_a is not valid UTF-8"):
        named(tf.constant(["", "\U0010ffff", b"x\xff", b"\xff"]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="row 0 of texts is not valid UTF-8"):
        small.graph.tokenize(tf.constant([b"\xed\xa0\x80"]))  # half of a surrogate pair; not in a tf.function


def test_valid_utf8_is_what_python_takes_for_it(small):
    source = random.Random(1)
    edges = [0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF]
    valid = 0
    for _ in range(400):
        data = "\U0010ffff".encode() * source.randrange(2) + bytes(source.choices(edges, k=source.randrange(1, 6)))
        try:
            data.decode()
        except UnicodeDecodeError:
            with pytest.raises(tf.errors.InvalidArgumentError, match="row 1 of texts"):
                small.tokenize(tf.constant([b"", data]))
        else:
            small.tokenize(tf.constant([b"", data]))
            valid += 1
    assert valid > 10
