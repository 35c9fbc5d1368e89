"""Tokens that are never split, in records: from the tokenization.json beside the vocabulary, however they are made."""

from __future__ import annotations

import json

import pytest
from pretraining_text import CORPUS, VOCABULARY, data_options
from refused import message_of

from bert_tf2.data.records import read_all
from bert_tf2.pretraining import example_files, sharded

E1 = len(VOCABULARY)
"""The id of [E1]."""


@pytest.fixture
def data(tmp_path):
    (tmp_path / "corpus.txt").write_text(CORPUS.replace(" .", "[E1]."))
    (tmp_path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in [*VOCABULARY, "[E1]"]))
    (tmp_path / "tokenization.json").write_text(json.dumps({"never_split": ["[E1]"]}))
    return tmp_path


def tokens_in(*paths) -> int:
    """How often [E1] is in records; a few of them are random words."""
    return sum(int((record.values["input_ids"] == E1).sum()) for record in read_all([*map(str, paths)]))


def test_records_have_the_token(data):
    example_files.run(data_options(data, "one"))
    sharded.run(data_options(data, "shards/x", num_shards=2, num_workers=1))
    assert tokens_in(data / "one") > 20 and tokens_in(*(data / "shards").glob("x-*")) > 20
    (data / "tokenization.json").unlink()
    assert "made with another vocabulary, or other rules for its words" in message_of(
        sharded.run, data_options(data, "shards/x", num_shards=2, num_workers=1)
    )
    example_files.run(data_options(data, "two"))
    assert tokens_in(data / "two") < 5
