"""The tokenizer against recorded results of the reference, its rules stated once more, and manual cases.

The rules of google-research/bert are in benchmarks/tokenizer.py, one after the other and without a cache;
exporting/test_graph_tokenization.py compares the tokenizer of a graph with the one in Python.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import pickle
import string
import types
import unicodedata

import pytest
from golden_data import GOLDEN
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mutations import SOAK, lengths
from refused import refuses
from tokenizer import pieces_by_the_rules, words_by_the_rules  # in benchmarks

from bert_tf2 import tokenization
from bert_tf2.support.errors import UserError
from bert_tf2.weights.text_rules import check_special_tokens, load_tokenizer

SPECIAL = [*tokenization.SPECIAL_TOKENS]


def write_vocab(folder: pathlib.Path, entries: list[str]) -> str:
    path = folder / "vocab.txt"
    path.write_bytes("".join(f"{entry}\n" for entry in entries).encode())
    return str(path)


# The reference's results


@pytest.mark.parametrize("name", ["odd_lower", "odd_nolower", "uncased_lower"])  # `.ci/run` compares the others, too
def test_rows_of_the_reference(name):
    text = (GOLDEN / "A_tokenization" / f"rows_{name}.jsonl").read_text("ascii")
    rows = [json.loads(line) for line in text.split("\n") if line]
    vocab_file = GOLDEN / "vocab" / (rows[0]["vocab"] + ".txt")
    tokenizer = tokenization.FullTokenizer(str(vocab_file), rows[0]["do_lower_case"])
    assert len(rows) > 10
    for row in rows:
        tokens = tokenizer.tokenize(row["text"])
        assert (tokens, tokenizer.convert_tokens_to_ids(tokens)) == (row["tokens"], row["ids"]), row["text"]


@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="recorded with the Unicode tables of Python 3.11")
@pytest.mark.parametrize("plane", [0, *(pytest.param(plane, marks=SOAK) for plane in range(1, 17))])
@pytest.mark.parametrize("name", ["lower", pytest.param("nolower", marks=pytest.mark.slow)])
def test_every_code_point(name, plane):
    tokenizer = tokenization.BasicTokenizer(name == "lower")
    digest = hashlib.sha256()
    for code in range(plane << 16, (plane + 1) << 16):
        if not 0xD800 <= code <= 0xDFFF:
            words = tokenizer.tokenize(f"a{chr(code)}b")
            digest.update((json.dumps(words, separators=(",", ":")) + "\n").encode())
    recorded = json.loads((GOLDEN / "A_tokenization" / "codepoints.json").read_text())["results"]
    assert digest.hexdigest() == recorded[name]["planes"][plane]


# Random texts

# What changes with case or in normal forms, emoji, and the edges of the blocks of Chinese characters.
CHANGING = (
    "Σ\u03c3ς\u0391ΌİI\u0131ßﬀǅÅé\u1e9b\u0345\u03d2\u212b\u2126\u1fef\u037e\u2260한각\u1112\u1161\u11a8กำ"
    "\u0e4d\u3099かガｶ"
)
EMOJI = "👩👨👧🏽🏿🙂❤🏳🇩🇪1#*\u200d\ufe0f\ufe0e\u20e3\U000e0067\U000e007f"
EDGES = (0x3400, 0x4DC0, 0x4E00, 0xA000, 0xF900, 0xFB00, 0x20000, 0x2A6E0, 0x2A700, 0x2CEB0, 0x2F800, 0x2FA20)
CHINESE = "".join(chr(edge + place) for edge in EDGES for place in range(-2, 3))
ALPHABETS = ["abcxyzABC", string.ascii_letters, " \t\n\r\x0b\xa0", CHANGING, EMOJI, CHINESE, st.characters()]
ALPHABETS += [st.characters(categories=kinds) for kinds in (["M"], ["Cc", "Cf", "Z"], ["P", "S"], ["Cs", "L"])]
# Words around the lengths at which something may change, too.
LONG = st.tuples(st.sampled_from(["ab", "aé", "a\u0301", "aΣ"]), st.sampled_from([33, 100, 101, 199, 200, 201, 600]))
PARTS = st.one_of(
    *(st.text(alphabet, min_size=1, max_size=6) for alphabet in ALPHABETS),
    LONG.map(lambda drawn: (drawn[0] * 600)[: drawn[1]]),
)


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory) -> str:
    """Letters, and parts of words as they are after the first steps, cased and uncased."""
    words = {*string.ascii_letters, "ab", "abc", "bca", "xy", "yz", "\u03c3\u03c3", "éa", "Aé", "aé"}
    for lower in (True, False):
        words |= {*words_by_the_rules(" ".join(CHANGING + EMOJI + CHINESE), lower)}
    entries = sorted(words | {f"##{word}" for word in words})
    return write_vocab(tmp_path_factory.mktemp("vocabulary"), [*SPECIAL, *entries])


@pytest.mark.parametrize("lower", [True, False], ids=["uncased", "cased"])
@lengths(120, 50_000)
def test_random_texts(vocab_file, lower, examples):
    tokenizer = tokenization.FullTokenizer(vocab_file, lower)

    @settings(max_examples=examples, derandomize=True, database=None, deadline=None)
    @given(st.lists(PARTS, max_size=9).map("".join))
    @example("Ax Σxx\u0130 " + "a" * 200)
    def check(text):
        words = words_by_the_rules(text, lower)
        pieces = [*pieces_by_the_rules(words, tokenizer.vocab)]
        assert tokenizer.basic_tokenizer.tokenize(text) == words, ascii(text)
        assert tokenizer.wordpiece_tokenizer.tokenize(" ".join(words)) == pieces, ascii(text)
        assert tokenizer.tokenize(text) == pieces, ascii(text)

    check()


# Settings


def test_tokens_that_are_never_split(tmp_path):
    path = write_vocab(tmp_path, [*SPECIAL, "[E1]", "[E1]x", "a", "b", "##b", "[", "]", "e1"])
    tokenizer = tokenization.FullTokenizer(path.encode(), never_split=["[E1]", "[E1]x"])  # of `asset_path.numpy()`
    assert tokenizer.never_split == ("[E1]", "[E1]x") and tokenizer.rules == {"never_split": ["[E1]", "[E1]x"]}
    for text in ("AB[E1]b [E1]x[e1]", b"AB[E1]b\t[E1]x[e1]"):  # the longest, exactly as written, before anything else
        assert tokenizer.tokenize(text) == ["a", "##b", "[E1]", "b", "[E1]x", "[", "e1", "]"]
    assert pickle.loads(pickle.dumps(tokenizer)).tokenize("[E1]") == ["[E1]"]
    for token, part in (("[E2]", "'[E2]'"), ("a b", "blanks"), ("", "blanks"), ("[MASK]", "BERT's")):
        (tmp_path / "tokenization.json").write_text(json.dumps({"never_split": [token]}))
        refuses(f"{path} {part}", load_tokenizer, path, True)


def test_accents_and_chinese_characters_by_settings(tmp_path):
    rules = {"strip_accents": False, "tokenize_chinese_chars": False}
    kept = tokenization.FullTokenizer(write_vocab(tmp_path, [*SPECIAL, "über", "北京"]), True, **rules)
    assert kept.tokenize("Über 北京") == ["über", "北京"] and kept.rules == rules
    assert tokenization.BasicTokenizer(False, strip_accents=True).tokenize("Über 北京") == ["Uber", "北", "京"]


@pytest.mark.parametrize(
    ("name", "step", "words"),
    [
        ("_clean_text", lambda self, text: text.replace("_", " "), ["a", "be", "-", "c", "北"]),
        ("_is_chinese_char", lambda self, cp: cp == ord("c"), ["a", "_", "be", "-", "c", "北"]),
        ("_run_strip_accents", lambda self, text: text, ["a", "_", "bé", "-", "c", "北"]),
        ("_run_split_on_punc", lambda self, text: [text], ["a_be-c", "北"]),
    ],
)
def test_a_step_of_the_reference_that_a_subclass_overrides_counts(tmp_path, name, step, words):
    own = type("OwnAgain", (type("Own", (tokenization.BasicTokenizer,), {name: step}),), {})
    full = tokenization.FullTokenizer(write_vocab(tmp_path, SPECIAL + words))
    assert not full.has_own_rules
    full.basic_tokenizer = own()
    assert full.tokenize("A_Bé-c北") == words and full.has_own_rules
    full.wordpiece_tokenizer = types.SimpleNamespace(tokenize=lambda word: [f"<{word}>"])  # gets one word at a time
    assert full.tokenize("A_Bé-c北") == [f"<{word}>" for word in words]


def test_limits_of_a_word_and_pickling(tmp_path):
    vocab = dict.fromkeys(["a", "##a"], 0)
    default = tokenization.WordpieceTokenizer(vocab)
    assert default.tokenize("a" * 200) == ["a"] + ["##a"] * 199 and default.tokenize("a" * 201) == ["[UNK]"]
    other = tokenization.WordpieceTokenizer(vocab, unk_token="<?>", max_input_chars_per_word=3)
    assert other.tokenize("aaa aaaa") == ["a", "##a", "##a", "<?>"]
    tokenizer = tokenization.FullTokenizer(write_vocab(tmp_path, [*SPECIAL, "a", "##b"]))
    tokenizer.tokenize("ab")
    fresh = len(pickle.dumps(tokenizer))
    tokenizer.tokenize("ab " + " ".join(map(str, range(1000))))
    data = pickle.dumps(tokenizer)  # without the words that the tokenizer remembers
    assert len(data) == fresh and pickle.loads(data).tokenize("AB") == ["a", "##b"]


# Vocabularies


def test_load_vocab_reads_as_the_reference(tmp_path, log_lines):
    path = tmp_path / "vocab.txt"
    for content, entries in (
        ("a\r\n  b \n\n\u2028\nc\u2028d\nb\re", {"a": 0, "b": 1, "": 3, "c\u2028d": 4, "be": 5}),
        ("a\nb\n\r", {"a": 0, "b": 1}),
        ("", {}),
        ("x\ntwice\ny\ntwice \nx\nz\n", {"x": 4, "twice": 3, "y": 2, "z": 5}),
    ):
        path.write_bytes(content.encode())
        log_lines.clear()
        assert tokenization.load_vocab(str(path)) == entries
    (message,) = log_lines  # of entries that are there twice
    assert str(path) in message and "earlier one" in message and ": 2; the first is 'twice' on lines 2 and 4" in message


def test_unknown_tokens_and_ids():
    assert tokenization.convert_tokens_to_ids({"a": 0, "b": 1}, iter("bab")) == [1, 0, 1]
    with pytest.raises(KeyError) as caught:
        tokenization.convert_tokens_to_ids({"a": 0}, ["a", "c"])
    assert isinstance(caught.value, UserError) and str(caught.value).startswith("'c' is not in")
    refuses("7", tokenization.convert_ids_to_tokens, {0: "a"}, [0, 7])
    check_special_tokens({"[UNK]": 0}, "v.txt", tokens=["[UNK]"])
    refuses("v.txt: [UNK], [MASK]", check_special_tokens, {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2}, "v.txt")


def test_text_conversions():
    for convert in (tokenization.convert_to_unicode, tokenization.printable_text):
        assert convert("é") == convert("é".encode()) == convert(b"\xff\xc3\xa9\xc3") == "é"
        with pytest.raises(ValueError, match="5"):  # as in the reference
            convert(5)
        refuses("5 text", convert, 5)
    assert tokenization.whitespace_tokenize(" a\u2028b \x1cc\n") == ["a", "b", "c"]
    assert tokenization.whitespace_tokenize(" \n") == []


def test_the_case_of_the_released_models_and_no_other():
    check, small, large = tokenization.validate_case_matches_checkpoint, "L-12_H-768_A-12", "L-24_H-1024_A-16"
    lower = [f"uncased_{large}", *(f"{kind}_{small}" for kind in ("uncased", "multilingual", "chinese"))]
    cased = [f"cased_{large}", *(f"{kind}_{small}" for kind in ("cased", "multi_cased"))]
    for name in (*lower, *cased):
        right = name in lower
        for path in (f"/models/{name}/bert_model.ckpt", f"gs://bucket/{name}/bert_model.ckpt"):
            check(right, path)
            refuses(f"--do_lower_case={not right} --do_lower_case={right},", check, not right, path)
        check(not right, f"/{name}/model.ckpt-5")
    for path in (None, "", "bert_model.ckpt", "/x/my_uncased/bert_model.ckpt"):
        check(False, path)


def test_a_vocabulary_that_seems_wrong_gets_a_warning(tmp_path, log_lines):
    path = write_vocab(tmp_path, [*SPECIAL, *map(str, range(1000))])
    for vocab_size in (1005, 1105):  # some round up
        load_tokenizer(path, True, vocab_size)
    assert log_lines == []
    load_tokenizer(path, True, 2010)
    assert "1005 entries" in log_lines.pop() and not log_lines
    write_vocab(tmp_path, ["[UNK]", "[PAD]", *SPECIAL[2:]])
    load_tokenizer(path, True)
    assert "[PAD] is on line 2" in log_lines.pop() and not log_lines
