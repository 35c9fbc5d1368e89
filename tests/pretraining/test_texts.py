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
from refused import refuses

from bert_tf2.data.records import read_all
from bert_tf2.pretraining import corpus, create_pretraining_data
from bert_tf2.pretraining.options import PretrainingDataOptions

needs_sentencex = pytest.mark.skipif(importlib.util.find_spec("sentencex") is None, reason="needs the extra sentences")

TEXT = CORPUS.encode()
PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def read(folder, content, **settings):
    (folder / "text").write_bytes(content if isinstance(content, bytes) else content.encode())
    return [*corpus.sentences([f"{folder}/text"], PretrainingDataOptions(**settings))]


def as_json(*texts, field="text"):
    return "".join(json.dumps({"id": 1, field: text}) + "\n" for text in texts)


def make(folder, content, **changes) -> bytes:
    """The records of a text, in one file or in shards."""
    (folder / "corpus.txt").write_bytes(content)
    output = folder / f"out-{len([*folder.iterdir()])}"
    files = {"input_file": f"{folder}/corpus.txt", "vocab_file": f"{folder}/vocab.txt"}
    create_pretraining_data.run(data_options(output, "x", **files, **changes), Here())
    return b"".join(path.read_bytes() for path in sorted(output.iterdir()) if path.suffix != ".json")


# Formats


def test_a_line_is_a_sentence(tmp_path):
    assert read(tmp_path, " a b. C d. \r\n\n\u3000\n\x00\nc") == ["a b. C d.", "", "", "\x00", "c"]


@needs_sentencex
def test_paragraphs_are_split(tmp_path):
    english = ["Dr. Smith came at 5 p.m. on Jan. 5.", 'He said: "It is late. Go home!"', "The U.S. economy grew 3.5 %."]
    german = [
        "Er kam am 3. Oktober nach Bonn, z. B. mit Dr. Ott.",
        "„Was ist das?“, fragte er.",
        "Ludwig XIV. regierte.",
    ]
    for language, expected in (("en", english), ("de", german)):
        paragraph = " ".join(expected)
        text = f"{paragraph}\r\n  {paragraph}  \n\n \n{paragraph}"
        assert read(tmp_path, text, input_format="text", language=language) == [*expected * 2, "", "", *expected]
        text = as_json(f"{paragraph}\r\n\n{paragraph}\n", "", paragraph) + "\n\ufeff" + as_json(paragraph)
        found = read(tmp_path, text, input_format="jsonl", language=language)
        assert found == [*expected * 2, "", "", *expected, "", *expected, ""]


@needs_sentencex
def test_nothing_is_lost_or_changed_by_splitting(tmp_path):
    """sentencex 1.0.32 fails at white space that takes several bytes, for example in `J.\\u2028K. `."""
    rng, strange = random.Random(5), "“”«»()。…\u200b\u0301\u2028\x85\x0bé文\U0001f600\u00a0\u3000\ufeff1"
    parts = [*"ab AB. . !?\"'", *strange, "Dr.", "z. B.", "J. "]
    text = "\n".join(["".join(rng.choices(parts, k=rng.randint(1, 60))) for _ in range(1500)] + ["A. B \u2028.C"])
    for language in ("en", "de", "ja"):
        found = read(tmp_path, text, input_format="text", language=language)
        assert "".join("".join(found).split()) == "".join(text.split())
    halves = '{"text": "a \\ud83d b \\ud83d\\ude00."}'  # half of a character is replaced
    assert read(tmp_path, halves, input_format="jsonl") == ["a \ufffd b \U0001f600.", ""]


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


# Words


def maskable(folder, text, most, **changes) -> list[int]:
    """The ids that --word_boundaries=spaces masks if at most so many tokens are masked together."""
    how = {"do_whole_word_mask": True, "word_boundaries": "spaces", "objective": "mlm", "short_seq_prob": 0.0}
    how |= {"masked_lm_prob": 1.0, "max_predictions_per_seq": most, **changes}
    (folder / "records").write_bytes(make(folder, text.encode(), **how))
    values = [record.values for record in read_all([f"{folder}/records"])]
    return [word for row in values for word in row["masked_lm_ids"][row["masked_lm_weights"] > 0].tolist()]


def test_what_lies_between_two_spaces_is_a_word(tmp_path):
    words = [*VOCABULARY, *"我們喜歡讀書"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    text = "我們 喜歡\u3000讀\t書abc.  a \x00 c\n"
    found = [{words[index] for index in maskable(tmp_path, text * 9, most)} for most in (1, 2, 20)]
    assert found == [{*"讀ac"}, {*"讀ac我們喜歡"}, {*"讀ac我們喜歡書.", "##b", "##c"}]
    # What Unicode calls a space ends a word, and nothing else does.
    strange = [*map(chr, [*range(32), *range(127, 256), 0x1680, 0x180E, *range(0x2000, 0x2070), 0x3000, 0xFEFF])]
    spaces = [character for character in strange if character == "\t" or unicodedata.category(character) == "Zs"]
    text = "\n\n".join(f"我{character}們" for character in strange if character not in "\r\n")
    assert len(maskable(tmp_path, text, 1, dupe_factor=1)) == len(spaces) > 15


@pytest.mark.parametrize("changes", [{}, {"num_shards": 1}], ids=str)
def test_tokens_that_are_never_split(tmp_path, vocab_file, changes):
    """Those of the tokenization.json beside the vocabulary decide on the records."""
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, "[E1]"]))
    text = CORPUS.replace(" .", "[E1].").encode()
    plain, length = make(tmp_path, text, **changes), len(VOCABULARY)
    (tmp_path / "tokenization.json").write_text(json.dumps({"never_split": ["[E1]"]}))
    kept = make(tmp_path, text, **changes)
    counts = []
    for records in (plain, kept):  # [E1] is a random word at a few places
        (tmp_path / "records").write_bytes(records)
        rows = read_all([f"{tmp_path}/records"])
        counts.append(sum(int((each.values["input_ids"] == length).sum()) for each in rows))
    assert counts[0] < 5 and counts[1] > 20


# Files that cannot be read

DOCUMENT = "a b c .\nd e f .\n"
SHARDS = {"num_shards": 2}
JSON = {"input_format": "jsonl"}
BEFORE, AFTER = as_json(*"abcdefgh").encode(), as_json("i").encode()
TAR = b"corpus.txt".ljust(257, b"\0") + b"ustar\0" + b"00".ljust(249, b"\0")
REFUSED = [
    *((BEFORE + b'{"text": "a"\n' + AFTER, JSON | how, "line 9: column 13") for how in ({}, SHARDS)),
    (BEFORE + b"[" * 100_000 + b"\n" + AFTER, JSON, "line 9: JSON"),
    (BEFORE + b'{"id": 1, "body": "a"}\n' + AFTER, JSON | SHARDS, "line 9: 'text' body, id --text_field"),
    (BEFORE + b'{"text": null}\n' + AFTER, JSON, "line 9: 'text'"),
    (b"\x28\xb5\x2f\xfd\x24\x05\x29\x00\x00hello\x0a\xab\xcd", {}, "zstd unpack"),
    (b"PK\3\4\x14\0\0\0", {}, "zip unzip"),
    *((content, how, "tar tar -xf") for content, how in ((TAR, {}), (gzip.compress(TAR), {}), (TAR, SHARDS))),
    (b"7z\xbc\xaf\x27\x1c\x00\x04", {}, "7-Zip 7z"),
    (b"PAR1\x15\x04\x15\xf2\x9c", {}, "Parquet"),
    ("words".encode("utf-16"), {}, "UTF-16"),
    *((pack(TEXT * 500)[:-99], how, "damaged") for pack, how in zip(PACK.values(), ({}, {}, SHARDS), strict=True)),
]


@needs_sentencex
@pytest.mark.parametrize(("content", "changes", "words"), REFUSED)
def test_what_cannot_be_read_is_named(tmp_path, vocab_file, content, changes, words):
    """Also in a shard, which begins in the middle of the file."""
    assert len(refuses(f"corpus.txt {words}", make, tmp_path, content, **changes)) < 400


@pytest.mark.parametrize("changes", [{}, SHARDS], ids=str)
def test_without_the_library(tmp_path, monkeypatch, vocab_file, changes):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    refuses("pip install sentencex", make, tmp_path, TEXT, input_format="text", **changes)
    assert not [*tmp_path.glob("out*")] and read(tmp_path, "a") == ["a"]


@pytest.mark.parametrize("ending", PACK)
def test_a_corpus_is_unpacked_as_it_is_read(tmp_path, vocab_file, ending):
    pack, half = PACK[ending], len(TEXT) // 2
    several = pack(TEXT[:half]) + pack(TEXT[half:])  # as parallel programs write it
    assert make(tmp_path, TEXT) == make(tmp_path, several)
    assert make(tmp_path, TEXT, **SHARDS) == make(tmp_path, pack(TEXT), **SHARDS)
    word = "x " * 128 + "mustard"  # where a tar archive has "ustar" and a NUL
    assert read(tmp_path, word) == [word]
    long = "a\n\nb\r\n" * 5000
    assert read(tmp_path, pack(long.encode())) == read(tmp_path, long)


# Warnings

SPACED = CORPUS.replace("\n", "\n\n")
MLM = {"objective": "mlm"}
MANY = f"{DOCUMENT}\n" * 20


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        (CORPUS, {}, ""),
        (SPACED, {}, "corpus.txt 12 of 12 documents"),
        (SPACED, MLM, ""),
        ("a b .\n\n" * 19 + DOCUMENT, {}, "19 of 20 documents"),
        ("a b .\n\n" * 8 + DOCUMENT, {}, ""),
        (DOCUMENT * 9, {}, "corpus.txt one document"),
        (MANY, {"num_shards": 8}, ""),
        (MANY, {"num_shards": 40}, "20 of 40 shards --num_shards=10"),
        (MANY, {"num_shards": 40, **MLM}, "20 of 40 shards --num_shards=20"),
        (DOCUMENT * 99, SHARDS, "1 of 2 shards --objective=mlm"),
        ("\u0434\u043e\u043c a .\n" * 9, MLM, "corpus.txt 33% [UNK]"),
        ("\u4e2d\u6587\n\n" * 9, {**SHARDS, **MLM}, "100% [UNK]"),
        ("a \u0434 b .\n\nd e .\n" * 9, MLM, ""),
        (CORPUS, {"max_predictions_per_seq": 3}, "--max_predictions_per_seq=3 4 --masked_lm_prob=0.15"),
        (CORPUS, {"dynamic_masking": True, "dupe_factor": 5}, "--dupe_factor=5 --dynamic_masking"),
        (CORPUS, {"dynamic_masking": True, "dupe_factor": 4}, ""),
        ("\n \n\x00\n", {}, "corpus.txt no records"),
        # Once, with its number in the whole file, also by the process that makes a shard.
        *((f"{MANY}a{' ' * 10_000_000}\n{MANY}", how, "corpus.txt, line 61: 10,000,001") for how in ({}, SHARDS)),
    ],
)
def test_warnings(tmp_path, vocab_file, caplog, text, changes, expected):
    make(tmp_path, text.encode(), **{"dupe_factor": 1, **changes})
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(found) == bool(expected) and all(word in line for line in found for word in expected.split()), found
