"""Texts that are probably not meant as they are read: the records stay, and a warning names the text and the cure."""

from __future__ import annotations

import re

import pytest
from pretraining_text import CORPUS, SETTINGS, VOCABULARY

from bert_tf2 import commands

DOCUMENT = "a b c .\nd e f .\n"
DOCUMENTS = f"{DOCUMENT}\n" * 20
ONE = DOCUMENT * 99


@pytest.fixture
def warnings(tmp_path, log_lines):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")

    def found(text: str, **changes) -> list[str]:
        (tmp_path / "corpus.txt").write_text(text)
        del log_lines[:]
        commands.call(
            "create_pretraining_data", input_file=f"{tmp_path}/corpus.txt", vocab_file=f"{tmp_path}/vocab.txt",
            output_file=f"{tmp_path}/out/x", dupe_factor=1, **{**SETTINGS, **changes},
        )  # fmt: skip
        return [line for line in log_lines if ("corpus.txt" in line and "; " in line) or " shards have " in line]

    return found


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        (CORPUS, {}, None),
        (CORPUS.replace("\n", "\n\n"), {}, "12 of 12 documents.*single sentence.*empty"),
        (CORPUS.replace("\n", "\n\n"), {"objective": "mlm"}, None),
        (DOCUMENT * 9, {}, "one document.*empty lines"),
        (DOCUMENT * 9, {"objective": "mlm"}, None),
        (DOCUMENTS, {"num_shards": 8}, None),
        (DOCUMENTS, {"num_shards": 40}, "20 of 40 shards have no text and 20 are one document.*--num_shards=10"),
        (DOCUMENTS, {"num_shards": 40, "objective": "mlm"}, "20 of 40 shards have no text; .*--num_shards"),
        (ONE, {"num_shards": 2}, "1 of 2 shards have no text and 1 are one document.*empty lines.*--objective"),
    ],
)
def test_documents_without_next_sentences(warnings, text, changes, words):
    found = warnings(text, **changes, **({"num_workers": 1} if "num_shards" in changes else {}))
    assert len(found) == bool(words) and (not words or re.search(words, found[0])), found


def test_a_long_line_is_named_in_its_file(warnings):
    """Also where another process reads the part of the file: once, with its number in the whole file."""
    text = DOCUMENTS + "a b c" + " " * 10_000_000 + f"\n{DOCUMENT}\n" + DOCUMENTS
    for changes in ({}, {"num_shards": 3, "num_workers": 1}):
        found = [line for line in warnings(text, **changes) if "line 61" in line]
        assert len(found) == 1 and "10,000,005 characters" in found[0] and "corpus.txt, line 61" in found[0]
