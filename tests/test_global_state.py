"""A library call leaves the process as it was: only scripts change what belongs to all of it."""

import logging
import os
import random
import signal
import threading
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_data
from small_models import randomize

import bert_tf2
from bert_tf2 import commands, exporting, heads
from bert_tf2.weights import checkpoint
from bert_tf2.weights.task_file import LabelMap, save_label_map

KINDS = {
    "words": (heads.PretrainingModel, {}, None),
    "texts": (heads.ClassifierModel, {"num_labels": 2}, LabelMap("cola", ("0", "1"), False)),
    "tags": (heads.TaggingModel, {"num_labels": 3}, LabelMap("ner", ("O", "B-LOC", "B-PER"), False)),
    "spans": (heads.SpanModel, {}, None),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    for kind, (make, settings, labels) in KINDS.items():
        (path / kind).mkdir()
        toy_data.write_model(path / kind)
        model = make(toy_data.config(), **settings)
        randomize(model)
        checkpoint.CheckpointFolder(str(path / kind)).save(checkpoint.tf1_variables(model), 7)
        if labels:
            save_label_map(str(path / kind), labels)
    (path / "tables").mkdir()
    toy_data.write_tsv_task(path / "tables", 8)
    (path / "text.txt").write_text("the film was good .\nann lives in paris\n\nthe film was bad .\nann was here\n")
    files = {"input_file": str(path / "text.txt"), "vocab_file": str(path / "words/vocab.txt")}
    commands.call("create_pretraining_data", output_file=str(path / "records"), max_seq_length=64, **files)
    return path


def state() -> dict:
    loggers = [logging.root, *(found for found in logging.root.manager.loggerDict.values() if hasattr(found, "level"))]
    return {
        "Python's random numbers": random.getstate(),
        "numpy's": np.random.get_state()[1].tobytes(),
        "Keras' policy": keras.config.dtype_policy().name,
        "TF32": tf.config.experimental.tensor_float_32_execution_enabled(),
        "environment": dict(os.environ),
        "descriptors": sorted(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else [],
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "loggers": {found.name: (found.level, found.disabled, [*found.handlers]) for found in loggers},
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "warnings": [*warnings.filters],
        "folder": os.getcwd(),
    }


def call(script, **settings):
    return lambda path: commands.call(script, **{name: eval_path(path, value) for name, value in settings.items()})


def eval_path(path, value):
    return str(path / value[1:]) if isinstance(value, str) and value.startswith("@") else value


def exported(path):
    bert = bert_tf2.load(path / "texts")
    return bert_tf2.export(bert.model, bert.tokenizer, path / "of_keras", 16)


TRAIN = {"data_dir": "@tables", "task_name": "tsv", **toy_data.TSV_COLUMNS}
TRAIN |= {"max_seq_length": 16, "train_batch_size": 4, "num_train_epochs": 1.0}
CALLS = {
    "load": lambda path: bert_tf2.load(path / "words"),
    "fill_mask": lambda path: bert_tf2.load(path / "words").fill_mask("the [MASK] was good ."),
    "embed": lambda path: bert_tf2.load(path / "words").embed(["the film"]),
    "classify": lambda path: bert_tf2.load(path / "texts").classify(["the film"]),
    "tag": lambda path: bert_tf2.load(path / "tags").tag([["ann", "lives"]]),
    "answer": lambda path: bert_tf2.load(path / "spans").answer("who lives ?", "ann lives in paris"),
    "tokenize": lambda path: bert_tf2.load(path / "words").tokenize("the film"),
    "classifier": lambda path: bert_tf2.classifier(path / "words", ["no", "yes"]).predict(["a film"], verbose=0),
    "export": lambda path: exporting.load(exported(path))("the film"),
    "AdamWeightDecay": lambda path: bert_tf2.AdamWeightDecay(bert_tf2.WarmupAndDecay(1e-3, 10, 2)),
    "run_classifier": call("run_classifier", do_train=True, do_eval=True, output_dir="@trained",
                           vocab_file="@words/vocab.txt", bert_config_file="@words/bert_config.json", **TRAIN),
    "run_pretraining": call("run_pretraining", do_train=True, do_eval=True, output_dir="@pretrained",
                            bert_config_file="@words/bert_config.json", input_file="@records", max_seq_length=64,
                            train_batch_size=2, num_train_steps=2, num_warmup_steps=1, max_eval_steps=1),
    "predict_masked": call("predict_masked", sentence=["the [MASK] was good ."], init_checkpoint="@words"),
    "build_vocab": call("build_vocab", input_file="@text.txt", vocab_file="@new.txt", vocab_size=40, num_unused=0),
    "convert_checkpoint": call("convert_checkpoint", input="@words", output="@hf", to="hf"),
    "create_pretraining_data": call("create_pretraining_data", input_file="@text.txt", output_file="@x.tfrecord",
                                    vocab_file="@words/vocab.txt"),
    "export_saved_model": call("export_saved_model", init_checkpoint="@texts", export_dir="@served", task="classifier",
                               max_seq_length=16),
    "extract_features": call("extract_features", input_file="@text.txt", output_file="@x.json",
                             init_checkpoint="@words", max_seq_length=16, layers="-1"),
}  # fmt: skip


SLOW = ("run_classifier", "export_saved_model")


@pytest.mark.parametrize("name", [pytest.param(it, marks=pytest.mark.slow) if it in SLOW else it for it in CALLS])
def test_nothing_is_left_behind(name, folder, tmp_path):
    for source in folder.iterdir():
        (tmp_path / source.name).symlink_to(source)
    CALLS[name](folder)  # TensorFlow starts threads and opens files once
    keras.utils.set_random_seed(7)
    numbers = tf.random.uniform([2]).numpy().tolist()
    keras.utils.set_random_seed(7)
    before = state()
    CALLS[name](tmp_path)
    after = state()
    assert not {what: (before[what], after[what]) for what in before if before[what] != after[what]}
    assert tf.random.uniform([2]).numpy().tolist() == numbers
