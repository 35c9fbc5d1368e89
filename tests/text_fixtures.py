"""Exports and models of texts with random weights, each made once in a session: a plugin of conftest.py.

A test that compiles one of the models, or that asks for its loss, compiles it first; no test changes the weights.
"""

from __future__ import annotations

import functools
import os

import pytest


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """task -> export_cases.Exported, which is made once for all workers of pytest-xdist."""
    import filelock
    from export_cases import export  # late: a process that only distributes tests does without TensorFlow

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exported"
    folder.mkdir(exist_ok=True)

    @functools.cache
    def make(task: str):
        with filelock.FileLock(folder / f"{task}.lock"):
            return export(folder / task, task)

    return make


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """A folder with the weights of a language model of one layer."""
    import toy_data

    from bert_tf2 import heads, layers
    from bert_tf2.weights import checkpoint

    folder = tmp_path_factory.mktemp("encoder")
    toy_data.write_model(folder, num_hidden_layers=1)
    with layers.initial_weights_from(3):
        model = heads.PretrainingModel(toy_data.config(num_hidden_layers=1))
    checkpoint.save(str(folder / "bert_model.ckpt"), checkpoint.tf1_variables(model))
    return folder


def _model(maker: str, **settings):
    @pytest.fixture(scope="session")
    def make(encoder):
        import bert_tf2

        return getattr(bert_tf2, maker)(encoder, **settings)

    return make


films = _model("classifier", labels=["bad", "good"], max_seq_length=16)
topics = _model("classifier", labels=["a", "b", "c"], multi_label=True, max_seq_length=16)
scores = _model("classifier", regression=True, max_seq_length=16)
names = _model("tagger", labels=["O", "NAME"], max_seq_length=16)
reader = _model("answerer", max_seq_length=32)
words = _model("masked_lm", max_seq_length=16)


@pytest.fixture(scope="session")
def opened(encoder, films, names, reader, tmp_path_factory):
    """name -> what `load` makes of the model's folder; "words" is the language model."""
    import bert_tf2

    folder = tmp_path_factory.mktemp("folders")
    for name, model in (("films", films), ("names", names), ("reader", reader)):
        model.save_folder(folder / name)
    return {
        **{name: bert_tf2.load(folder / name) for name in ("films", "names", "reader")},
        "words": bert_tf2.load(encoder),
    }
