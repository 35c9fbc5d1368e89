"""Texts as they are published: formats, compressed files, and those that are probably not meant as they are read."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import json
import lzma
import random
import sys
import unicodedata

import pytest
from pretraining_text import CORPUS, VOCABULARY, Here, data_options
from refused import message_of

from bert_tf2.data.records import read_all
from bert_tf2.pretraining import corpus as corpora
from bert_tf2.pretraining import example_files, sentences, sharded
from bert_tf2.pretraining.options import PretrainingDataOptions
from bert_tf2.tokenization import FullTokenizer

needs_sentencex = pytest.mark.skipif(importlib.util.find_spec("sentencex") is None, reason="needs the extra sentences")

ENGLISH = 'Dr. Smith came at 5 p.m. on Jan. 5. He said: "It is late. Go home!" The U.S. economy grew 3.5 % in 2010.'
GERMAN = "Er kam am 3. Oktober nach Bonn, z. B. mit Dr. Ott. „Was ist das?“, fragte er. Ludwig XIV. regierte lange."
CHINESE = "他说:“你好吗?我很好。”然后他走了。今天天气很好!"
TEXT = CORPUS.encode()
PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
BOTH = pytest.mark.parametrize("changes", [{}, {"num_shards": 2}], ids=str)


def read(folder, content, **settings):
    (folder / "text").write_bytes(content if isinstance(content, bytes) else content.encode())
    return [*sentences.read([f"{folder}/text"], PretrainingDataOptions(**settings))]


def as_json(*texts, field="text"):
    return "".join(json.dumps({"id": 1, field: text}) + "\n" for text in texts)


def make(folder, content, **changes) -> bytes:
    """The records of a text, in one file or in shards."""
    (folder / "corpus.txt").write_bytes(content)
    output = folder / f"out-{len([*folder.iterdir()])}"
    given = {"input_file": f"{folder}/corpus.txt", "vocab_file": f"{folder}/vocab.txt", **changes}
    sharded.run(data_options(output, "x", **given), Here())
    return b"".join(path.read_bytes() for path in sorted(output.iterdir()) if path.suffix != ".json")


# Formats


def test_a_line_is_a_sentence(tmp_path):
    assert read(tmp_path, " a b. C d. \r\n\n\u3000\n\x00\nc") == ["a b. C d.", "", "", "\x00", "c"]


@needs_sentencex
@pytest.mark.parametrize(
    ("language", "paragraph", "expected"),
    [
        ("en", ENGLISH, ["Dr. Smith came at 5 p.m. on Jan. 5.", 'He said: "It is late. Go home!"', ENGLISH[68:]]),
        ("de", GERMAN, [GERMAN[:50], "„Was ist das?“, fragte er.", "Ludwig XIV. regierte lange."]),
        ("zh", CHINESE, ["他说:“你好吗?我很好。”", "然后他走了。", "今天天气很好!"]),
    ],
)
def test_paragraphs_are_split(tmp_path, language, paragraph, expected):
    text = f"{paragraph}\r\n  {paragraph}  \n\n \n{paragraph}"
    assert read(tmp_path, text, input_format="text", language=language) == [*expected * 2, "", "", *expected]
    text = as_json(f"{paragraph}\r\n\n{paragraph}\n", "", paragraph) + "\n\ufeff" + as_json(paragraph)
    found = read(tmp_path, text, input_format="jsonl", language=language)
    assert found == [*expected * 2, "", "", *expected, "", *expected, ""]


@needs_sentencex
def test_nothing_is_lost_or_changed_by_splitting(tmp_path):
    """sentencex 1.0.32 fails at white space that takes several bytes, for example in `J.\\u2028K. `."""
    rng = random.Random(5)
    parts = [
        *"ab AB. . !?\"'“”«»()。…\u200b\u0301\u2028\x85\x0bé文\U0001f600\u00a0\u3000\ufeff1",
        "Dr.",
        "z. B.",
        "J. ",
    ]
    text = "\n".join(["".join(rng.choices(parts, k=rng.randint(1, 60))) for _ in range(3000)] + ["A. B \u2028.C"])
    for language in ("en", "de", "ja"):
        found = read(tmp_path, text, input_format="text", language=language)
        assert "".join("".join(found).split()) == "".join(text.split())


@needs_sentencex
@pytest.mark.parametrize("input_format", ["text", "jsonl"])
def test_examples_are_those_of_the_sentences(tmp_path, vocab_file, input_format):
    lines = [line.capitalize().replace(" .", "zz.") for line in CORPUS.splitlines()]
    text = "\n".join(f"{line} {line}" if line else "" for line in lines) + "\n"  # paragraphs of two sentences
    text = as_json(*text.split("\n\n")) if input_format == "jsonl" else text
    found = read(tmp_path, text, input_format=input_format)
    assert len([*filter(None, found)]) == 2 * len([*filter(None, lines)]) and found.count("") >= 3
    lines = "\n".join(found) + "\n"
    assert make(tmp_path, text.encode(), input_format=input_format) == make(tmp_path, lines.encode()) != b""


@needs_sentencex
def test_half_a_character_is_replaced(tmp_path):
    halves = '{"text": "a \\ud83d b \\ud83d\\ude00."}'
    assert read(tmp_path, halves, input_format="jsonl") == ["a \ufffd b \U0001f600.", ""]


@needs_sentencex
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "a"', ["column 13"]),
        ("[" * 100_000, []),
        ('["a"]', ["object"]),
        ('{"id": 1, "body": "a"}', ["'text'", "body, id", "--text_field"]),
        ('{"text": null}', ["'text'"]),
    ],
)
@BOTH
def test_wrong_json_is_named_with_its_line(tmp_path, vocab_file, line, words, changes):
    """Also in a shard, which begins in the middle of the file."""
    content = as_json(*"abcdefgh") + line + "\n" + as_json("i")
    found = message_of(make, tmp_path, content.encode(), input_format="jsonl", **changes)
    assert all(word in found for word in ["corpus.txt, line 9: ", *words]) and len(found) < 400


@BOTH
def test_without_the_library(tmp_path, monkeypatch, vocab_file, changes):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    assert "pip install sentencex" in message_of(make, tmp_path, TEXT, input_format="text", **changes)
    assert not [*tmp_path.glob("out*")] and read(tmp_path, "a") == ["a"]


def test_blank_lines_end_documents_but_files_do_not(tmp_path, tokenizer):
    (tmp_path / "one").write_text("\n\na b\r\n\u3000 \nc\n\n \nd\n")
    (tmp_path / "two").write_text("e\u2028f\n\x00\ng\n\nh")
    text = corpora.read_strings([f"{tmp_path}/one", f"{tmp_path}/two"], tokenizer, PretrainingDataOptions())
    found = [" ".join(text.tokens[start:end]) for start, end in zip(text.bounds, text.bounds[1:], strict=False)]
    # U+3000 alone is a blank line; NUL is a line without tokens, which ends nothing; U+2028 ends no line.
    assert [found[first:last] for first, last in text.documents] == [["a b"], ["c"], ["d", "e f", "g"], ["h"]]


# Words


def test_spaces_are_white_space_of_unicode():
    """Which the tokenizer takes for spaces, and with --word_boundaries=spaces ends a word."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert {*"".join(corpora.SPACES.findall(every))} == {
        character for character in every if character in "\t\n\r" or unicodedata.category(character) == "Zs"
    }


def test_what_lies_between_two_spaces_is_a_word(tmp_path):
    """For whole-word masking with --word_boundaries=spaces, as text and as ids."""
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, *"我們喜歡讀書"]), encoding="utf-8")
    tokenizer = FullTokenizer(f"{tmp_path}/vocab.txt")
    (tmp_path / "text").write_text("我們 喜歡\u3000讀\t書abc.  a \x00 c", encoding="utf-8")
    options = PretrainingDataOptions(do_whole_word_mask=True, word_boundaries="spaces")
    strings, ids = (how([f"{tmp_path}/text"], tokenizer, options) for how in (corpora.read_strings, corpora.read))
    words = "".join(
        f" {token}" if begins else token for token, begins in zip(strings.tokens, strings.kinds, strict=True)
    )
    assert words.split() == ["我們", "喜歡", "讀", "書a##b##c.", "a", "c"]
    assert [*ids.tokens] == tokenizer.convert_tokens_to_ids(strings.tokens)
    assert (strings.documents, strings.bounds, strings.kinds) == (ids.documents, ids.bounds, ids.kinds)


def test_tokens_that_are_never_split(tmp_path):
    """By the tokenization.json beside the vocabulary, in one file and in shards."""
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, "[E1]"]))
    (tmp_path / "corpus.txt").write_text(CORPUS.replace(" .", "[E1]."))
    rules = tmp_path / "tokenization.json"
    rules.write_text(json.dumps({"never_split": ["[E1]"]}))

    def count(*paths) -> int:
        """How often [E1] is in records; a few of them are random words."""
        return sum(int((each.values["input_ids"] == len(VOCABULARY)).sum()) for each in read_all([*map(str, paths)]))

    example_files.run(data_options(tmp_path, "one"))
    shards = data_options(tmp_path, "shards/x", num_shards=2)
    sharded.run(shards, Here())
    assert count(tmp_path / "one") > 20 and count(*(tmp_path / "shards").glob("x-*")) > 20
    rules.unlink()
    assert "manifest.json" in message_of(sharded.run, shards, Here())
    example_files.run(data_options(tmp_path, "two"))
    assert count(tmp_path / "two") < 5


# Compressed files


@pytest.mark.parametrize("ending", PACK)
@BOTH
def test_a_corpus_is_unpacked_as_it_is_read(tmp_path, vocab_file, ending, changes):
    pack, half = PACK[ending], len(TEXT) // 2
    several = pack(TEXT[:half]) + pack(TEXT[half:])  # as parallel programs write it
    assert (
        make(tmp_path, TEXT, **changes) == make(tmp_path, pack(TEXT), **changes) == make(tmp_path, several, **changes)
    )
    long = "a\n\nb\r\n" * 5000
    assert read(tmp_path, pack(long.encode())) == read(tmp_path, long)


TAR = b"corpus.txt".ljust(257, b"\0") + b"ustar\0" + b"00".ljust(249, b"\0")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x28\xb5\x2f\xfd\x24\x05\x29\x00\x00hello\x0a\xab\xcd", ["zstd", "unzstd -c < "]),
        (b"PK\3\4\x14\0\0\0", ["zip", "unzip "]),
        (TAR, ["tar", "tar -xf "]),
        (gzip.compress(TAR), ["tar", "tar -xf "]),
        (bz2.compress(TAR), ["tar", "tar -xf "]),
        (b"7z\xbc\xaf\x27\x1c\x00\x04", ["7-Zip", "7z x "]),
        (b"PAR1\x15\x04\x15\xf2\x9c", ["Parquet"]),
        (b"\x93NUMPY\x01\x00v\x00{'descr': ", ["binary"]),
        ("words".encode("utf-16"), ["UTF-16"]),
        *((data[: len(data) // 2], ["damaged"]) for data in (pack(TEXT * 500) for pack in PACK.values())),
    ],
)
@BOTH
def test_other_files_are_called_by_their_name(tmp_path, vocab_file, content, words, changes):
    found = message_of(make, tmp_path, content, **changes)
    assert all(word in found for word in ["corpus.txt", *words])


# Warnings

DOCUMENT = "a b c .\nd e f .\n"
SPACED = CORPUS.replace("\n", "\n\n")
MLM = {"objective": "mlm"}
SINGLE = ["corpus.txt", "12 of 12 documents", "single sentence"]
MANY = f"{DOCUMENT}\n" * 20


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        (CORPUS, {}, []),
        (SPACED, {}, SINGLE),
        (SPACED, MLM, []),
        ("a b .\n\n" * 19 + DOCUMENT, {}, ["19 of 20 documents"]),
        ("a b .\n\n" * 8 + DOCUMENT, {}, []),
        (DOCUMENT * 9, {}, ["corpus.txt", "one document", "empty lines"]),
        (DOCUMENT * 9, MLM, []),
        (MANY, {"num_shards": 8}, []),
        (MANY, {"num_shards": 40}, ["20 of 40 shards", "20 are one document", "--num_shards=10 "]),
        (MANY, {"num_shards": 40, **MLM}, ["20 of 40 shards", "--num_shards=20 "]),
        (f"\n\n{DOCUMENT}\n\n" * 20, {"num_shards": 20, **MLM}, []),
        (DOCUMENT * 99, {"num_shards": 2}, ["1 of 2 shards", "1 are one document", "empty lines", "--objective=mlm"]),
        ("\u0434\u043e\u043c a .\n" * 9, MLM, ["corpus.txt", "33%", "[UNK]"]),
        ("\u4e2d\u6587\n\n" * 9, MLM, ["100%", "[UNK]"]),
        ("\u4e2d\u6587\n\n" * 9, {"num_shards": 2, **MLM}, ["100%", "[UNK]"]),
        ("a \u0434 b .\n\nd e .\n" * 9, MLM, []),
        (CORPUS, {"max_predictions_per_seq": 3}, ["--max_predictions_per_seq=3", "4 at --masked_lm_prob=0.15"]),
        (CORPUS, {"dynamic_masking": True, "dupe_factor": 5}, ["--dupe_factor=5", "--dynamic_masking"]),
        (CORPUS, {"dynamic_masking": True, "dupe_factor": 4}, []),
        ("\n \n\x00\n", {}, ["corpus.txt", "no records"]),
    ],
)  # fmt: skip
def test_warnings(tmp_path, vocab_file, caplog, text, changes, expected):
    make(tmp_path, text.encode(), **{"dupe_factor": 1, **changes})
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(found) == bool(expected) and all(word in line for line in found for word in expected), found


def test_a_line_that_takes_much_memory_is_named(tmp_path, vocab_file, log_lines):
    """Once, with its number in the whole file, also by who makes a shard."""
    text = f"{MANY}a b c{' ' * 10_000_000}\n{DOCUMENT}\n{MANY}".encode()
    for changes in ({}, {"num_shards": 3}):
        del log_lines[:]
        make(tmp_path, text, dupe_factor=1, **changes)
        (line,) = [line for line in log_lines if "10,000,005" in line]
        assert "corpus.txt, line 61: " in line
