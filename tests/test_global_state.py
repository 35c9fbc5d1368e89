"""A library call leaves the process as it was: only scripts change what belongs to all of it."""

import contextlib
import copy
import logging
import os
import random
import signal
import sys
import threading
import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from small_models import randomize
from tensorflow.python.framework import config

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
    toy_data.write_squad(path / "squad.json", 4, 1)
    toy_data.write_conll(path / "words.txt", 8, 1)
    monitor = tf.summary.create_file_writer(str(path / "curves"))
    with monitor.as_default():
        for step in range(3):
            tf.summary.scalar("loss", 1.0, step)
    monitor.close()
    return path


def of_all_threads() -> dict:
    """What a call may not change even while it runs, because other threads and their children see it too."""
    loggers = [it for it in [logging.root, *logging.root.manager.loggerDict.copy().values()] if hasattr(it, "level")]
    return {
        "Python's random numbers": random.getstate(),
        "numpy's": np.random.get_state()[1].tobytes(),
        "environment": dict(os.environ),
        "standard streams": [sys.stdin, sys.stdout, sys.stderr, *map(where_to, range(3))],
        "loggers": {found.name: (found.level, found.disabled, [*found.handlers]) for found in loggers},
        "logging is disabled": logging.root.manager.disable,
        "program": [sys.modules["__main__"], *sys.argv, *sys.path],
        "folder": os.getcwd(),
    }


def where_to(descriptor: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return ""


def state() -> dict:
    return {
        **of_all_threads(),
        "Keras' policy": keras.config.dtype_policy().name,
        "TF32": tf.config.experimental.tensor_float_32_execution_enabled(),
        "determinism": config.is_op_determinism_enabled(),
        "descriptors": sorted(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else [],
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "filters": [[*logging.getLogger(name).filters] for name in ("root", "absl", "tensorflow")],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "warnings": [*warnings.filters],
        "imports": [*sys.meta_path],
        "figures": dict(sys.modules["matplotlib"].rcParams) if "matplotlib" in sys.modules else {},
    }


@contextlib.contextmanager
def watched():
    """Yields what another thread sees to be changed, for a while too: name -> before, and changed."""
    before, seen, ended = of_all_threads(), {}, threading.Event()

    def watch():
        while not ended.wait(0.002):
            now = of_all_threads()
            if now["loggers"]["absl"][0] == logging.FATAL:  # by tf.saved_model.save itself
                now["loggers"]["absl"] = before["loggers"]["absl"]
            seen.update((name, (before[name], now[name])) for name in before if before[name] != now[name])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def call(script, **settings):
    return lambda path: commands.call(script, **{name: eval_path(path, value) for name, value in settings.items()})


def eval_path(path, value):
    return str(path / value[1:]) if isinstance(value, str) and value.startswith("@") else value


def exported(path):
    text_operations.need()  # an export with texts
    bert = bert_tf2.load(path / "texts")
    return bert_tf2.export(bert.model, bert.tokenizer, path / "of_keras", 16)


def trained(path):
    films = bert_tf2.classifier(path / "words", ["no", "yes"], max_seq_length=16)
    films.compile(1e-3)
    x, y = ["a good film", "a bad film"] * 4, ["yes", "no"] * 4
    films.fit(x, y, batch_size=4, validation_data=(x, y), class_weight={"no": 2.0, "yes": 1.0}, verbose=0)
    films.evaluate(x, y, verbose=0)
    films.save_folder(str(path / "films"))
    films.save(path / "films.keras")
    keras.models.load_model(path / "films.keras")


def trained_tagger(path):
    tagger = bert_tf2.tagger(path / "words", ["O", "NAME"], max_seq_length=16)
    tagger.compile(1e-3)
    tagger.fit([["ann", "lives"]] * 4, [["NAME", "O"]] * 4, verbose=0)
    tagger.predict([["ann", "lives"]], verbose=0)


def trained_answerer(path):
    reader = bert_tf2.answerer(path / "words", max_seq_length=24)
    reader.compile(1e-3)
    reader.fit([("who lives ?", "ann lives in paris")] * 4, ["ann"] * 4, verbose=0)
    reader.predict([("who lives ?", "ann lives in paris")], verbose=0)


def explored(path):
    """Until a signal ends it."""
    before = signal.getsignal(signal.SIGINT)

    def interrupt():
        while signal.getsignal(signal.SIGINT) is before:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    commands.call("explore", model=str(path / "words"), port=0)
    thread.join()


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
    "Tokenize": lambda path: bert_tf2.Tokenize(bert_tf2.load(path / "words").tokenizer)(["the film"]),
    "fit": trained,
    "fit of tags": trained_tagger,
    "fit of answers": trained_answerer,
    "AdamWeightDecay": lambda path: bert_tf2.AdamWeightDecay(bert_tf2.WarmupAndDecay(1e-3, 10, 2)),
    "run_classifier": call("run_classifier", do_train=True, do_eval=True, output_dir="@trained",
                           vocab_file="@words/vocab.txt", bert_config_file="@words/bert_config.json", **TRAIN),
    "run_squad": call("run_squad", do_train=True, train_file="@squad.json", output_dir="@answering",
                      vocab_file="@words/vocab.txt", bert_config_file="@words/bert_config.json", max_seq_length=32,
                      max_query_length=12, doc_stride=8, train_batch_size=4, num_train_epochs=1.0),
    "run_ner": call("run_ner", do_train=True, train_file="@words.txt", output_dir="@tagging",
                    vocab_file="@words/vocab.txt", bert_config_file="@words/bert_config.json", max_seq_length=24,
                    train_batch_size=4, num_train_epochs=1.0, word_column=2),
    "run_pretraining": call("run_pretraining", do_train=True, do_eval=True, output_dir="@pretrained",
                            bert_config_file="@words/bert_config.json", input_file="@records", max_seq_length=64,
                            train_batch_size=2, num_train_steps=2, num_warmup_steps=1, max_eval_steps=1),
    "predict_masked": call("predict_masked", sentence=["the [MASK] was good ."], init_checkpoint="@words"),
    "build_vocab": call("build_vocab", input_file="@text.txt", vocab_file="@new.txt", vocab_size=40, num_unused=0),
    "convert_checkpoint": call("convert_checkpoint", input="@words", output="@hf", to="hf"),
    "create_pretraining_data": call("create_pretraining_data", input_file="@text.txt", output_file="@x.tfrecord",
                                    vocab_file="@words/vocab.txt"),
    "shards": call("create_pretraining_data", input_file="@text.txt", output_file="@shards/x.tfrecord",
                   vocab_file="@words/vocab.txt", num_shards=2, num_workers=2),
    "inspect_records": call("inspect_records", input_file="@records", vocab_file="@words/vocab.txt"),
    "plot_training": lambda path: commands.call("plot_training", output_dir=[str(path / "curves")],
                                                output_file=str(path / "curves.png")),
    "explore": explored,
    "page": call("explore", model="@words", text="the [MASK]", write="@page.html"),
    "onnx": call("export_saved_model", init_checkpoint="@texts", export_dir="@onnx", task="classifier", format="onnx",
                 quantize="int8", max_seq_length=16),
    "export_saved_model": call("export_saved_model", init_checkpoint="@texts", export_dir="@served", task="classifier",
                               max_seq_length=16),
    "extract_features": call("extract_features", input_file="@text.txt", output_file="@x.json",
                             init_checkpoint="@words", max_seq_length=16, layers="-1"),
}  # fmt: skip


SLOW = ("run_classifier", "run_squad", "run_ner", "run_pretraining", "export", "export_saved_model")
SLOW += ("fit", "fit of tags", "fit of answers")
DRAWING = ("fit", "fit of tags", "fit of answers")  # from the seeds of Keras, as any model of Keras does
EXTRA = ("onnx",)  # need an extra of setup.py
MARKS = {**dict.fromkeys(SLOW, pytest.mark.slow), **dict.fromkeys(EXTRA, pytest.mark.extra)}


@pytest.fixture
def copies(folder, tmp_path):
    """Two folders with links to the files of `folder`, where calls can write."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for source in folder.iterdir():
            (tmp_path / name / source.name).symlink_to(source)
    return [tmp_path / "one", tmp_path / "two"]


def differences(before: dict, after: dict) -> dict:
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in CALLS])
def test_nothing_is_left_behind(name, folder, copies):
    CALLS[name](folder)  # TensorFlow starts threads and opens files once
    keras.utils.set_random_seed(7)
    numbers = tf.random.uniform([2]).numpy().tolist()
    keras.utils.set_random_seed(7)
    before = state()
    with watched() as seen:
        CALLS[name](copies[0])
    if name in DRAWING:
        keras.utils.set_random_seed(7)
        seen.pop("Python's random numbers", None)
    assert not differences(before, state())
    assert not seen
    assert tf.random.uniform([2]).numpy().tolist() == numbers


def test_calls_in_threads_leave_nothing_whatever_ends_first(folder, tmp_path):
    """Each waits for its input, while the other begins; the first that begins ends first."""
    before = state()
    threads = []
    for name in ("one", "two"):
        os.mkfifo(tmp_path / name)
        threads.append(threading.Thread(target=extract, args=(folder, tmp_path, name)))
    writers = []
    for name, thread in zip(("one", "two"), threads, strict=True):
        thread.start()
        writers.append((tmp_path / name).open("w"))  # returns when the call reads
    for thread, writer in zip(threads, writers, strict=True):
        writer.write("the film\n")
        writer.close()
        thread.join()
    assert [len((tmp_path / f"{name}.json").read_text().splitlines()) for name in ("one", "two")] == [1, 1]
    assert not differences(before, state())


def extract(folder, output, name):
    files = {"input_file": str(output / name), "output_file": str(output / f"{name}.json")}
    commands.call("extract_features", init_checkpoint=str(folder / "words"), layers="-1", max_seq_length=16, **files)


@pytest.mark.slow
def test_what_the_caller_gives_stays(folder):
    """Lists, dicts and the list of callbacks; the callbacks are called."""
    films = bert_tf2.classifier(folder / "words", ["no", "yes"], max_seq_length=16)
    films.compile(1e-3)
    epochs = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    x, y, seen = ["a good film", "a bad film"] * 2, ["yes", "no"] * 2, []
    given = {
        "x": x, "y": y, "validation_data": [x, y], "class_weight": {"no": 2.0}, "sample_weight": [1.0, 2.0, 1.0, 2.0]
    }  # fmt: skip
    before = copy.deepcopy(given)
    for callbacks in ([epochs], keras.callbacks.CallbackList([epochs], add_history=True, model=films)):
        held = [*getattr(callbacks, "callbacks", callbacks)]
        films.fit(**given, callbacks=callbacks, verbose=0)
        assert [*getattr(callbacks, "callbacks", callbacks)] == held
    assert given == before and seen == [0, 0]
    texts, labels = [["ann", "lives"]], [["NAME", "O"]]
    tagger = bert_tf2.tagger(folder / "words", tags := ["O", "NAME"], max_seq_length=16)
    tagger.compile(1e-3)
    tagger.fit(texts, labels, verbose=0)
    sentences = ["the [MASK]"]
    commands.call("predict_masked", sentence=sentences, init_checkpoint=str(folder / "words"))
    assert (texts, labels, tags, sentences) == ([["ann", "lives"]], [["NAME", "O"]], ["O", "NAME"], ["the [MASK]"])
