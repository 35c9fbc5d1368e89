"""Fixtures that several tests of pretraining share."""

import pytest
from pretraining_text import CORPUS, VOCABULARY

from bert_tf2.tokenization import FullTokenizer


@pytest.fixture
def vocab_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n")
    return str(path)


@pytest.fixture
def tokenizer(vocab_file):
    return FullTokenizer(vocab_file=vocab_file)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(CORPUS)
    return str(path)
