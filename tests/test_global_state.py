"""A library call leaves the process as it was: only scripts change what belongs to all of it."""

import contextlib
import logging
import os
import random
import signal
import sys
import threading
import time
import warnings

import command_lines as lines
import keras
import numpy as np
import pytest
import tensorflow as tf
import text_operations
from bad_calls import flags
from tensorflow.python.framework import config

import bert_tf2
from bert_tf2 import commands


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
        # "Dummy" threads are TensorFlow's, which begin and end as TensorFlow needs them.
        "threads": sorted(one.name for one in threading.enumerate() if not one.name.startswith("Dummy-")),
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
            seen.update(differences(before, now))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def differences(before: dict, after: dict) -> dict:
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def scripts(*names: str, change: str = ""):
    """Calls scripts that write into a folder."""

    def call(out, opened):
        for name in names:
            lines.call(f"{name}.py", *flags(f"{name}.py", change, out))

    return call


def methods(out, opened):
    words, films, names, reader = (bert_tf2.load(opened[name].path) for name in ("words", "films", "names", "reader"))
    words.fill_mask("the [MASK] was good .")
    words.embed(["the film"])
    films.classify(["the film"])
    names.tag([["ann", "lives"]])
    reader.answer("who lives ?", "ann lives in paris")
    bert_tf2.classifier(films.path)(["a film"])
    words.save_folder(out / "words")


def fitted(out, opened):
    films = bert_tf2.classifier(opened["films"].path)
    x, y = ["a good film", "a bad film"] * 4, ["good", "bad"] * 4
    films.fit(x, y, 4, validation_data=(x, y), class_weight={"good": 2.0}, verbose=0)
    films.predict(x, verbose=0)
    films.save(out / "films.keras")
    keras.models.load_model(out / "films.keras")
    text_operations.need()
    films.export(out / "films")
    bert_tf2.tagger(opened["names"].path).fit([["ann", "lives"]] * 4, [["NAME", "O"]] * 4, verbose=0)
    bert_tf2.answerer(opened["reader"].path).fit([("who ?", "ann lives")] * 4, ["ann"] * 4, verbose=0)
    bert_tf2.masked_lm(opened["words"].path).fit(x, validation_data=x, verbose=0)


def explored(out, opened):
    """Until a signal ends it."""
    before = signal.getsignal(signal.SIGINT)

    def interrupt():
        while signal.getsignal(signal.SIGINT) is before:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    scripts("explore")(out, opened)
    thread.join()


def plotted(out, opened):
    monitor = tf.summary.create_file_writer(str(out / "curves"))
    with monitor.as_default():
        for step in range(3):
            tf.summary.scalar("loss", 1.0, step)
    monitor.close()
    commands.call("plot_training", output_dir=[str(out / "curves")], output_file=str(out / "curves.png"))


TRAININGS = ("run_classifier", "run_squad", "run_ner", "run_pretraining")
CALLS = {
    "methods": methods,
    "records": scripts("build_vocab", "create_pretraining_data", "inspect_records", "convert_checkpoint"),
    "shards": scripts("create_pretraining_data", change="--num_shards=2 --num_workers=2"),
    "answers": scripts("predict_masked", "extract_features"),
    "plot_training": plotted,
    "explore": explored,
    "page": scripts("explore", change="--text=the --write=OUT/page.html"),
}
SLOW = {"fit": fitted, "export": scripts("export_saved_model"), **{name: scripts(name) for name in TRAININGS}}
EXTRA = {"onnx": scripts("export_saved_model", change="--format=onnx --quantize=int8")}
DRAWING = ("fit",)  # from the seeds of Keras, as any model of Keras does


@pytest.mark.parametrize(
    "name",
    [
        *CALLS,
        *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
        *(pytest.param(name, marks=pytest.mark.extra) for name in EXTRA),
    ],
)
def test_nothing_is_left_behind(name, bad_files, opened, tmp_path, monkeypatch):
    monkeypatch.chdir(bad_files)
    for folder in ("1", "2"):
        (tmp_path / folder).mkdir()
    call = {**CALLS, **SLOW, **EXTRA}[name]
    call(tmp_path / "1", opened)  # TensorFlow starts threads and opens files once
    keras.utils.set_random_seed(7)
    numbers = tf.random.uniform([2]).numpy().tolist()
    keras.utils.set_random_seed(7)
    before = state()
    with watched() as seen:
        call(tmp_path / "2", opened)
    if name in DRAWING:
        keras.utils.set_random_seed(7)
        seen.pop("Python's random numbers", None)
    assert not differences(before, state())
    assert not seen
    assert tf.random.uniform([2]).numpy().tolist() == numbers


def test_calls_in_threads_leave_nothing_whichever_ends_first(opened, tmp_path):
    """Each waits for its input, while the other begins; the first that begins ends first."""

    def extract(name):
        files = {"input_file": str(tmp_path / name), "output_file": str(tmp_path / f"{name}.json")}
        commands.call("extract_features", init_checkpoint=opened["words"].path, layers="-1", max_seq_length=16, **files)

    before, threads, writers = state(), [], []
    for name in ("one", "two"):
        os.mkfifo(tmp_path / name)
        threads.append(threading.Thread(target=extract, args=[name]))
        threads[-1].start()
        writers.append((tmp_path / name).open("w"))  # returns when the call reads
    for thread, writer in zip(threads, writers, strict=True):
        writer.write("the film\n")
        writer.close()
        thread.join()
    assert [len((tmp_path / f"{name}.json").read_text().splitlines()) for name in ("one", "two")] == [1, 1]
    assert not differences(before, state())
