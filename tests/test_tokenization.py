"""The tokenizer against recorded results of the reference, and manual cases; test_random_texts.py has random ones."""

from __future__ import annotations

import hashlib
import json
import pathlib
import pickle
import re
import unicodedata

import pytest
from golden_data import GOLDEN

from bert_tf2 import tokenization
from bert_tf2.support.errors import UserError
from bert_tf2.weights.text_rules import check_special_tokens, load_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_vocab(folder: pathlib.Path, entries: list[str]) -> str:
    path = folder / "vocab.txt"
    path.write_text("".join(entry + "\n" for entry in entries), encoding="utf-8", newline="")
    return str(path)


@pytest.mark.parametrize("path", sorted((GOLDEN / "A_tokenization").glob("rows_*.jsonl")), ids=lambda path: path.stem)
def test_rows_of_the_reference(path):
    rows = [json.loads(line) for line in path.read_text("ascii").split("\n") if line]
    vocab_file = GOLDEN / "vocab" / (rows[0]["vocab"] + ".txt")
    tokenizer = tokenization.FullTokenizer(str(vocab_file), rows[0]["do_lower_case"])
    assert len(rows) > 10
    for row in rows:
        tokens = tokenizer.tokenize(row["text"])
        assert (tokens, tokenizer.convert_tokens_to_ids(tokens)) == (row["tokens"], row["ids"]), row["text"]


@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="recorded with the Unicode tables of Python 3.11")
@pytest.mark.parametrize(("do_lower_case", "name"), [(True, "lower"), (False, "nolower")])
def test_every_code_point_of_the_first_plane(do_lower_case, name):
    tokenizer = tokenization.BasicTokenizer(do_lower_case)
    digest = hashlib.sha256()
    for code in range(0x10000):
        if not 0xD800 <= code <= 0xDFFF:
            words = tokenizer.tokenize(f"a{chr(code)}b")
            digest.update((json.dumps(words, separators=(",", ":")) + "\n").encode())
    recorded = json.loads((GOLDEN / "A_tokenization" / "codepoints.json").read_text())["results"]
    assert digest.hexdigest() == recorded[name]["planes"][0]


def test_tokens_that_are_never_split(tmp_path):
    path = write_vocab(tmp_path, [*SPECIAL, "[E1]", "[E1]x", "a", "b", "##b", "[", "]", "e1"])
    tokenizer = tokenization.FullTokenizer(path, never_split=["[E1]", "[E1]x"])
    assert tokenizer.never_split == ("[E1]", "[E1]x") and tokenizer.rules == {"never_split": ["[E1]", "[E1]x"]}
    for text in ("AB[E1]b [E1]x[e1]", b"AB[E1]b\t[E1]x[e1]"):  # the longest, exactly as written, before anything else
        assert tokenizer.tokenize(text) == ["a", "##b", "[E1]", "b", "[E1]x", "[", "e1", "]"]
    assert pickle.loads(pickle.dumps(tokenizer)).tokenize("[E1]") == ["[E1]"]
    for token, part in (("[E2]", "lacks '[E2]'"), ("a b", "blanks"), ("", "blanks"), ("[MASK]", "none of BERT's own")):
        (tmp_path / "tokenization.json").write_text(json.dumps({"never_split": [token]}))
        with pytest.raises(UserError, match=f"^{path}: .*{re.escape(part)}"):
            load_tokenizer(path, True)


def test_accents_and_chinese_characters_by_settings():
    accents = tokenization.BasicTokenizer(True, strip_accents=False, tokenize_chinese_chars=False)
    assert accents.tokenize("Über 北京!") == ["über", "北京", "!"]
    assert tokenization.BasicTokenizer(False, strip_accents=True).tokenize("Über 北京") == ["Uber", "北", "京"]


@pytest.mark.parametrize(
    ("name", "step", "words"),
    [
        ("_clean_text", lambda self, text: text.replace("_", " "), ["a", "be", "-", "c", "北"]),
        ("_tokenize_chinese_chars", lambda self, text: text, ["a", "_", "be", "-", "c北"]),
        ("_is_chinese_char", lambda self, cp: cp == ord("c"), ["a", "_", "be", "-", "c", "北"]),
        ("_run_strip_accents", lambda self, text: text, ["a", "_", "bé", "-", "c", "北"]),
        ("_run_split_on_punc", lambda self, text: [text], ["a_be-c", "北"]),
    ],
)
def test_a_step_that_a_subclass_overrides_counts(tmp_path, name, step, words):
    tokenizer = type("Own", (tokenization.BasicTokenizer,), {name: step})()
    assert tokenizer.tokenize("A_Bé-c北") == words
    assert type("OwnAgain", (type(tokenizer),), {})().tokenize("A_Bé-c北") == words  # inherited from a subclass
    full = tokenization.FullTokenizer(write_vocab(tmp_path, SPECIAL + words))
    assert not full.has_own_rules
    full.basic_tokenizer = tokenizer
    assert full.tokenize("A_Bé-c北") == words
    assert full.has_own_rules


def test_wordpiece_limits_and_names_are_settings():
    vocab = dict.fromkeys(["a", "##a"], 0)
    default = tokenization.WordpieceTokenizer(vocab)
    assert default.tokenize("a" * 200) == ["a"] + ["##a"] * 199
    assert default.tokenize("a" * 201) == ["[UNK]"]
    other = tokenization.WordpieceTokenizer(vocab, unk_token="<?>", max_input_chars_per_word=3)
    assert other.tokenize("aaa aaaa") == ["a", "##a", "##a", "<?>"]


def test_memory_is_bounded_and_answers_stay_the_same():
    tokenizer = tokenization.WordpieceTokenizer(dict.fromkeys(["x", *(f"##{digit}" for digit in range(10))], 0))
    remembered = tokenizer._pieces
    for number in range(40000):
        assert tokenizer.tokenize(f"x{number}") == ["x", *("##" + digit for digit in str(number))]
        assert len(remembered) <= 1 << 15


def test_a_tokenizer_can_be_sent_to_another_process(tmp_path):
    tokenizer = tokenization.FullTokenizer(write_vocab(tmp_path, [*SPECIAL, "a", "##b"]))
    tokenizer.tokenize("ab")
    fresh = len(pickle.dumps(tokenizer))
    tokenizer.tokenize("ab " + " ".join(map(str, range(1000))))
    data = pickle.dumps(tokenizer)
    assert len(data) == fresh  # the cache is not pickled
    assert pickle.loads(data).tokenize("AB") == ["a", "##b"]


def test_load_vocab_reads_as_the_reference(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("a\r\n  b \n\n\u2028\nc\u2028d\nb\re".encode())
    assert tokenization.load_vocab(str(path)) == {"a": 0, "b": 1, "": 3, "c\u2028d": 4, "be": 5}
    path.write_bytes(b"a\nb\n\r")
    assert tokenization.load_vocab(str(path)) == {"a": 0, "b": 1}
    path.write_bytes(b"")
    assert tokenization.load_vocab(str(path)) == {}


def test_the_later_of_two_equal_entries_wins_with_one_warning(tmp_path, caplog):
    path = write_vocab(tmp_path, ["x", "twice", "y", "twice ", "x", "z"])
    with caplog.at_level("WARNING", logger="absl"):
        assert tokenization.load_vocab(path) == {"x": 4, "twice": 3, "y": 2, "z": 5}
    (record,) = caplog.records
    message = record.getMessage()
    assert path in message and "2 entries" in message and "'twice' on lines 2 and 4" in message


def test_check_special_tokens_names_all_that_are_missing():
    check_special_tokens(dict.fromkeys(SPECIAL, 0), "v.txt")
    check_special_tokens({"[UNK]": 0}, "v.txt", tokens=["[UNK]"])
    with pytest.raises(UserError, match=r"^v\.txt: .*\[UNK\], \[MASK\],") as caught:
        check_special_tokens({"[PAD]": 0, "[CLS]": 1, "[SEP]": 2}, "v.txt")
    assert "\n" not in str(caught.value)


def test_unknown_tokens_and_ids():
    vocab = {"a": 0, "b": 1}
    assert tokenization.convert_tokens_to_ids(vocab, iter("bab")) == [1, 0, 1]
    assert tokenization.convert_by_vocab(vocab, []) == []
    with pytest.raises(KeyError) as caught:
        tokenization.convert_tokens_to_ids(vocab, ["a", "c"])
    assert isinstance(caught.value, UserError)
    assert str(caught.value).startswith("'c' is not in the vocabulary of 2 entries")
    with pytest.raises(UserError, match=r"^7 is not in"):
        tokenization.convert_ids_to_tokens({0: "a"}, [0, 7])


def test_text_conversions():
    for convert in (tokenization.convert_to_unicode, tokenization.printable_text):
        assert convert("é") == convert("é".encode()) == convert(b"\xff\xc3\xa9\xc3") == "é"
        with pytest.raises(ValueError, match="not int"):
            convert(5)
    assert tokenization.whitespace_tokenize(" a\u2028b \x1cc\n") == ["a", "b", "c"]
    assert tokenization.whitespace_tokenize(" \n") == []


def test_case_of_other_checkpoints_is_not_judged():
    for path in (None, "", "bert_model.ckpt", "/x/my_uncased/bert_model.ckpt", "/uncased_L-12_H-768_A-12/model.ckpt-5"):
        for do_lower_case in (True, False):
            tokenization.validate_case_matches_checkpoint(do_lower_case, path)


@pytest.mark.parametrize(
    ("model", "fits"),
    [
        ("uncased_L-12_H-768_A-12", True),
        ("chinese_L-12_H-768_A-12", True),
        ("cased_L-24_H-1024_A-16", False),
        ("multi_cased_L-12_H-768_A-12", False),
    ],
)
def test_case_of_the_released_models(model, fits):
    for path in (f"/models/{model}/bert_model.ckpt", f"gs://bucket/{model}/bert_model.ckpt"):
        tokenization.validate_case_matches_checkpoint(fits, path)
        with pytest.raises(UserError, match=f"--do_lower_case={not fits} .*{model}.*--do_lower_case={fits}") as caught:
            tokenization.validate_case_matches_checkpoint(not fits, path)
        assert "\n" not in str(caught.value)


def test_a_vocabulary_that_seems_wrong_is_told(tmp_path, log_lines):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in [*tokenization.SPECIAL_TOKENS, *map(str, range(1000))]))
    entries = 1000 + len(tokenization.SPECIAL_TOKENS)
    for vocab_size in (entries, entries + 100):  # some round up
        load_tokenizer(str(path), True, vocab_size)
    assert log_lines == []
    load_tokenizer(str(path), True, 2 * entries)
    path.write_text(path.read_text().replace("[PAD]\n[UNK]", "[UNK]\n[PAD]"))
    load_tokenizer(str(path), True)
    assert "[PAD] is on line 2, but padding has the id 0, as in the reference: that of '[UNK]' here" in log_lines.pop()
    assert len(log_lines) == 1 and f"only {entries} entries, but the model has vocab_size {2 * entries}" in log_lines[0]
