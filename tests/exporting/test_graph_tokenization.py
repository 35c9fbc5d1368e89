"""The tokenizer in the graph against the one in Python, which has tests of its own, and places against the text."""

from __future__ import annotations

import copy
import functools
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
from golden_data import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import lengths
from refused import refuses
from test_tokenization import PARTS

from bert_tf2 import tokenization
from bert_tf2.exporting import graph_tokenization
from bert_tf2.finetuning import classification
from bert_tf2.finetuning.squad.examples import split_words
from bert_tf2.finetuning.squad.features import piece_spans

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "aδς\u03c3xmk[]s#,"
SMALL = [*"the cafe ' em ##bed ##ding 北 京 ! mask".split(), *LETTERS, *("##" + letter for letter in LETTERS)]
KEPT = ["[E1]", "ab", "bcd", "abc", "bb", "Σé"]
ODDITIES = [
    *SPECIAL, "", "##", "###", "#", "##,", "a", "ab", "a", "##b", "a b", "##b", "A", "é", "##É", "b,", "##[UNK]",
    "", "ab\t",
]  # fmt: skip


def unicode_entries() -> list[str]:
    """Many of the characters there are, as pieces that begin and that continue a word."""
    codes = itertools.chain(range(0x21, 0x3400), range(0x3400, 0x20000, 8))
    characters = [char for char in map(chr, codes) if unicodedata.category(char) not in ("Cn", "Co", "Cs", "Zs")]
    return [*SPECIAL, *characters, *("##" + char for char in characters if not char.isspace())]


class Pair:
    """A tokenizer and its graphs in one function: with the operations of tensorflow-text, and without."""

    def __init__(self, path: pathlib.Path, do_lower_case: bool = True, entries=(), keep_masks=False, **rules):
        if entries:
            path.write_text("".join(entry + "\n" for entry in entries), encoding="utf-8", newline="")
        self.python, self.masks = tokenization.FullTokenizer(str(path), do_lower_case, **rules), keep_masks
        make = functools.partial(graph_tokenization.GraphTokenizer, self.python, keep_masks, for_servers=False)
        self.graph = make()
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "tensorflow_text", None)
            graphs = self.graph, make()
        spec = [tf.TensorSpec([None], tf.string)]
        self._both = tf.function(lambda texts: [graph.tokenize(texts) for graph in graphs], input_signature=spec)

    def tokenize(self, texts: list[str | bytes]) -> graph_tokenization.Pieces:
        """The pieces and places, which are the same by both."""
        found, other = self._both(tf.constant(texts, tf.string))
        for one, same in zip(found, other, strict=True):
            np.testing.assert_array_equal(one.flat_values, same.flat_values)
            np.testing.assert_array_equal(one.row_splits, same.row_splits)
        return found

    def check(self, texts: list[str]) -> None:
        """The ids of all texts are those of the Python tokenizer; a [MASK] that is kept whole has its place."""
        pieces = self.tokenize(texts)
        for text, *row in zip(texts, *(part.to_list() for part in pieces[:3]), strict=True):
            parts = re.split(r"(\[MASK\])", text) if self.masks else [text]
            known = {"[MASK]"} if self.masks else ()
            tokens = [token for part in parts for token in ([part] if part in known else self.python.tokenize(part))]
            assert row[0] == self.python.convert_tokens_to_ids(tokens), (ascii(text), [*map(ascii, tokens)])
            for token, start, end in zip(tokens, *row[1:], strict=True):
                place = text.encode()[start:end].decode()  # with the accents that stand behind it, and are removed
                assert token not in known or (place[:6] == token and not self.python.tokenize(place[6:]))


# kind -> whether texts are lower-cased, the vocabulary, further arguments of Pair, parts of texts
KINDS = {
    "lower": (True, unicode_entries, {}, ["ab"]),
    "masks": (
        True, lambda: [*SPECIAL, *SMALL], {"keep_masks": True},
        ["[MASK]", "[mask]", "[MA", "SK]", "[", "ΔΣ", "Σ", " ", "\u0301", "\u200b", "\n", ",", "[MA\u200bSK]"],
    ),
    "odd": (
        False, lambda: ODDITIES, {},
        ["ab abb b # ## ##b #b a,b a##b A AB É aÉ é aé [UNK] [PAD] b,", "##", "a b", *"ab#,AÉé "],
    ),
    "accents": (
        True, lambda: [*SPECIAL, *SMALL, *KEPT, "é", "##é"],
        {"never_split": KEPT, "strip_accents": False},
        ["[E1] x[E1]y [e1] abcd xabcde bbb", "北京é", *"abcdA[]E1 Σ,", *KEPT, "\u0301", "\n"],
    ),
    "Chinese words": (True, lambda: [*SPECIAL, *SMALL, "北京"], {"tokenize_chinese_chars": False}, [*"北京a"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A function: kind -> Pair."""
    folder = tmp_path_factory.mktemp("vocabularies")

    @functools.cache
    def make(kind: str) -> Pair:
        lower, entries, more, _ = KINDS[kind]
        return Pair(folder / f"{kind}.txt", lower, entries(), **more)

    return make


@pytest.fixture
def small(pairs) -> Pair:
    return pairs("masks")


# The tables without the rule for Chinese characters take seconds.
@pytest.mark.parametrize("kind", [pytest.param(it, marks=[pytest.mark.slow] * ("Chinese" in it)) for it in KINDS])
@lengths(8, 5000)
def test_the_same_pieces_at_their_places(pairs, kind, examples):
    """squad.features finds the places from the letters of single characters, in Python."""
    pair = pairs(kind)
    texts = st.lists(
        st.lists(PARTS | st.sampled_from(KINDS[kind][3]), max_size=9).map("".join), min_size=20, max_size=40
    )

    @settings(max_examples=examples, derandomize=True, database=None, deadline=None)
    @given(texts)
    def check(texts):
        texts = [text.encode("utf-8", "replace").decode() for text in texts]  # UTF-8 has no half characters
        pair.check(texts)
        if pair.masks:
            return
        words = [*dict.fromkeys(itertools.chain(*map(split_words, texts)))] or [""]
        found = pair.tokenize(words)
        for word, starts, ends in zip(words, found.starts.to_list(), found.ends.to_list(), strict=True):
            spans = [[len(word[:place].encode()) for place in span] for span in piece_spans(word, pair.python)]
            assert spans == [[*span] for span in zip(starts, ends, strict=True)], ascii(word)

    check()
    if kind == "odd":
        assert pair.tokenize(["a"]).ids.to_list() == [[ODDITIES.index("a") + 2]]  # the later of two


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((GOLDEN / "A_tokenization").glob("rows_*.jsonl")), ids=lambda path: path.stem)
def test_rows_of_the_reference(path):
    rows = [json.loads(line) for line in path.read_text("ascii").split("\n") if line]
    rows = [row for row in rows if not re.search("[\ud800-\udfff]", row["text"])]  # which UTF-8 cannot hold
    pair = Pair(GOLDEN / "vocab" / (rows[0]["vocab"] + ".txt"), rows[0]["do_lower_case"])
    assert len(rows) > 10
    assert pair.tokenize([row["text"] for row in rows]).ids.to_list() == [row["ids"] for row in rows]


# tensorflow-text counts bytes, more of them for each letter of a large alphabet.
@pytest.mark.parametrize(
    ("letters", "most"), [("ab", 128), ("".join(map(chr, range(0x1000, 0x2000))) + "ab", 85)], ids=["narrow", "wide"]
)
def test_long_words(tmp_path, letters, most):
    long = ["x" * most, "##" + "y" * most, "z" * 201, "=" * 150]
    pair = Pair(tmp_path / "vocab.txt", True, [*SPECIAL, *letters, "##a", "##ab", "##b", *long])
    pair.check(["a" * 200, "a" * 201, "ab" * 100, "ab" * 100 + "é", "a " + "b" * 5000 + "\u0301 a", "a" * 199 + "?"])
    pair.check(["x" * most + " " + "y" * most, "x" * (most - 1), "x" * (most + 1), "z" * 201, "=" * 150])
    assert [len(ids) for ids in pair.tokenize(["a" * 201, "a" * 200]).ids.to_list()] == [1, 200]


def test_tokenizers_that_have_no_graph(small, tmp_path, monkeypatch):
    class Own(tokenization.BasicTokenizer):
        def _run_split_on_punc(self, text):
            return [text]

    tokenizer = copy.copy(small.python)
    tokenizer.basic_tokenizer = Own()
    with pytest.raises(ValueError, match="rules of its own"):
        graph_tokenization.GraphTokenizer(tokenizer)
    for missing in ("[UNK]", "[CLS]", "[SEP]", "[MASK]"):
        with pytest.raises(tokenization.NotInVocabularyError, match=re.escape(missing)):
            Pair(tmp_path / "vocab.txt", True, ["a", *(token for token in SPECIAL if token != missing)], True)
    refuses("xxxx 129 128", Pair, tmp_path / "vocab.txt", True, [*SPECIAL, "x" * 129])
    wrong = "import tensorflow as tf\nraise tf.errors.NotFoundError(None, None, 'undefined symbol: y')"
    monkeypatch.syspath_prepend(tmp_path)
    for module, cure in (("import gone", "pip install"), (wrong, "one version")):
        (tmp_path / "tensorflow_text.py").write_text(module)
        monkeypatch.delitem(sys.modules, "tensorflow_text", raising=False)
        refuses(f"tensorflow-text {cure}", graph_tokenization.GraphTokenizer, small.python)


def test_valid_utf8_is_what_python_takes_for_it(small):
    edges = [0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF]
    source, valid = random.Random(1), 0
    for _ in range(300):
        data = "\U0010ffff".encode() * source.randrange(2) + bytes(source.choices(edges, k=source.randrange(1, 6)))
        try:
            data.decode()
        except UnicodeDecodeError:
            with pytest.raises(tf.errors.InvalidArgumentError, match="row 1 of texts is not valid UTF-8"):
                small.tokenize([b"", data, data])
        else:
            small.tokenize([b"", data])
            valid += 1
    assert valid > 10


def test_kept_lengths_equal_the_truncation_of_pairs():
    counts = np.array([*itertools.product(range(13), range(13))])
    for longest in range(3, 16):
        kept = np.transpose(graph_tokenization.kept_lengths(*map(tf.constant, counts.T), longest))
        for (first, second), found in zip(counts, kept.tolist(), strict=True):
            tokens_a, tokens_b = [*range(first)], [*range(second)]
            if second:
                classification.truncate_seq_pair(tokens_a, tokens_b, longest - 3)
            else:
                del tokens_a[longest - 2 :]
            assert found == [len(tokens_a), len(tokens_b)], (first, second, longest)
