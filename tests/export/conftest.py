"""Exports that all files of this folder share."""

import functools

import pytest
from export_cases import MAKERS, Exported, make_options, save_weights

from bert_tf2 import tokenization
from bert_tf2.export.run import run


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """task -> Exported, each made once."""

    @functools.cache
    def make(task: str) -> Exported:
        folder = tmp_path_factory.mktemp(task)
        model = MAKERS[task]()
        weights = save_weights(folder, task, model)
        options = make_options(folder, task, weights)
        tokenizer = tokenization.FullTokenizer(options.vocab_file)
        return Exported(run(options), weights, model, tokenizer, options)

    return make
