"""An unlucky machine: inputs that would be overwritten, full and read-only disks, two runs in one folder, killed runs.

Each ends in one line, with nothing half-written, and what a user gave stays as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import subprocess
import sys
import types
from concurrent import futures

import command_lines as lines
import pytest
import tensorflow as tf
from bad_calls import flags
from folder_content import content
from refused import message_of

from bert_tf2.data import records
from bert_tf2.support import errors, files, output_lock, outputs
from bert_tf2.support.errors import UserError
from bert_tf2.training.saver import Saver, TrainingState


@pytest.mark.parametrize(
    ("script", "change", "named"),
    [
        ("build_vocab.py", "--vocab_file=text.txt", "--vocab_file=text.txt: .*--input_file="),
        ("build_vocab.py", "--vocab_file=OUT/link --input_file=t*.txt", "--input_file=t"),
        ("build_vocab.py", "--vocab_file=OUT/hard", "--input_file=text.txt"),
        ("create_pretraining_data.py", "--output_file=OUT/x,vocab.txt", "--vocab_file=vocab.txt"),
        ("extract_features.py", "--output_file=bert_config.json", "--bert_config_file=bert_config.json"),
        ("convert_checkpoint.py", "--output=google --input=google", "google: holds bert_model.ckpt"),
        ("run_ner.py", "--output_dir=OUT --predict_file=OUT/predictions.txt", "--predict_file=.*/predictions.txt"),
    ],
)
def test_an_output_is_never_an_input(script, change, named, bad_files, tmp_path, monkeypatch, log_lines):
    (tmp_path / "link").symlink_to(bad_files / "text.txt")
    (tmp_path / "hard").hardlink_to(bad_files / "text.txt")
    (tmp_path / "predictions.txt").write_text("mine")
    monkeypatch.chdir(bad_files)
    before, mine = content(bad_files), content(tmp_path)
    with pytest.raises(UserError, match=named):
        lines.call(script, *flags(script, change, tmp_path))
    assert content(bad_files) == before and content(tmp_path) == mine
    assert not [line for line in log_lines if "Initialized" in line]  # before the work


def test_remote_files_are_known_by_their_names():
    for inputs, named in (({"input_file": "gs://a/x,gs://a/y"}, "gs://a/y"), ({}, "gs://a/z")):
        given = [outputs.Output("output_file", name) for name in ("gs://a/z", named)]
        assert named in message_of(outputs.check, inputs, given)


def test_devices_are_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        outputs.check({}, [outputs.Output("output_file", str(pipe))])
        files.write_text(str(pipe), "text")
        assert reader.stdout.read() == b"text"
    assert pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]
    outputs.check({}, [outputs.Output("output_file", "/dev/stdout")])
    link, program = (
        tmp_path / "stdout",
        "import sys; from bert_tf2.support import files; files.write_text(sys.argv[1], 'a')",
    )
    link.symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    with open(tmp_path / "out", "w") as out:
        subprocess.run([sys.executable, "-c", program, link], cwd=lines.ROOT, stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "a" and link.is_symlink()


# Disks


@contextlib.contextmanager
def disk(path: pathlib.Path, size: str, then: str = ""):
    """A small disk, mounted for the test; skips the test where that is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("no disk can be mounted here")
    try:
        if then:
            subprocess.run(["mount", "-o", f"remount,{then}", str(path)], check=True)
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


WRITES = [
    ("build_vocab.py", "--vocab_file=OUT/disk/v.txt"),
    ("create_pretraining_data.py", "--output_file=OUT/disk/x"),
    ("extract_features.py", "--output_file=OUT/disk/x.json"),
    ("extract_features.py", "--pooling=mean --output_file=OUT/disk/x.npy"),
    ("convert_checkpoint.py", "--to=tf1 --output=OUT/disk/x"),
    pytest.param("convert_checkpoint.py", "--to=hf --output=OUT/disk/x", marks=pytest.mark.slow),
    pytest.param("export_saved_model.py", "--export_dir=OUT/disk/x", marks=pytest.mark.slow),
    pytest.param("run_ner.py", "--output_dir=OUT/disk/x", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("script", "change"), WRITES)
def test_a_full_or_read_only_disk(script, change, bad_files, tmp_path, monkeypatch, log_lines):
    """Large enough to begin, not large enough to end; for the vocabulary, not to begin."""
    monkeypatch.chdir(bad_files)
    given = flags(script, change, tmp_path)
    is_small = script == "build_vocab.py" or change.endswith("npy")
    with disk(tmp_path / "disk", "4k" if is_small else "24k") as where:
        if script == "build_vocab.py":
            (where / "full").write_bytes(bytes(4096))
        found = message_of(lines.call, script, *given)
        assert "No space left on device" in found or " are free" in found
        assert ".partial" not in found and given[-1].partition("=")[2] in found, found
        assert not [path for path in where.rglob("*") if "partial" in path.name]
    log_lines.clear()
    where.rmdir()
    with disk(where, "1m", "ro"):
        found = message_of(lines.call, script, *given)
    assert found.startswith("--") and "Read-only file system" in found
    assert not [line for line in log_lines if "Initialized" in line]  # before the work


@pytest.mark.parametrize(("size", "named", "left"), [("12k", "checkpoint", 3), ("8k", "model.ckpt-0.index", 0)])
def test_a_checkpoint_that_cannot_be_written_or_named(tmp_path, size, named, left):
    """The disk has room for the checkpoint and its settings, not for the file that names the newest; or for neither."""
    with disk(tmp_path / "disk", size) as where:
        saver = Saver(str(where), 1)
        saver.save({"a": tf.Variable(1.0)}, 0, TrainingState())
        assert f"/{named}: cannot be written: No space left" in message_of(saver.wait)
        assert len(os.listdir(where)) == left  # the settings are not there alone


def test_other_exceptions_of_the_same(tmp_path, monkeypatch):
    """What TensorFlow, HDF5 and numpy make of a full disk, and what is not blamed on the output."""
    path, full = str(tmp_path / "x"), "No space left on device"
    exhausted = tf.errors.ResourceExhaustedError
    for error in (
        exhausted(None, None, f"{path}; {full}"),
        exhausted(None, None, f"{{{{function_node f}}}} {path}; {full} [Op:Save]"),
        RuntimeError(f"Can't write (file descriptor = 3, errno = 28, error message = '{full}')"),
        OSError(errno.ENOSPC, full),
    ):
        with pytest.raises(UserError, match=f"x: .*{full}"), files.complete_or_absent(path) as (beside,):
            pathlib.Path(beside).touch()
            raise error
    memory = exhausted(None, None, "OOM when allocating tensor")
    for error in (memory, FileNotFoundError(errno.ENOENT, "No such file", str(tmp_path / "gone"))):
        with pytest.raises(type(error)), files.complete_or_absent(path):
            raise error
    (tmp_path / "folder").touch()
    assert "folder" in message_of(records.write_records, str(tmp_path / "folder" / "x"), records.PRETRAINING, [])
    assert os.listdir(tmp_path) == ["folder"]
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError) as gone:
        os.getcwd()
    assert "change to another folder" in errors.explain(gone.value)
    assert "out of memory" in errors.explain(memory) and errors.explain(ValueError("?")) is None


def test_room_is_looked_for_before_the_work(tmp_path, log_lines, monkeypatch):
    outputs.check_space(str(tmp_path / "new" / "x"), 10, "the checkpoints", 20)
    assert not log_lines
    outputs.check_space(str(tmp_path), 10, "the checkpoints", 10**17)
    assert len(log_lines) == 1 and "the checkpoints" in log_lines[0] and "100000.0 TB" in log_lines[0]
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=10))
    outputs.check_space(str(tmp_path), 10, "the checkpoints", 10)
    found = message_of(outputs.check_space, str(tmp_path), 11, "the checkpoints")
    assert str(tmp_path) in found and "11 B" in found and len(log_lines) == 1
    assert [outputs.human(size) for size in (999, 1300, 12_345_678)] == ["999 B", "1.3 kB", "12 MB"]


# Two runs in one folder

_HOLD = """
import os, sys
from bert_tf2.support import output_lock, outputs
open(outputs.name_beside(sys.argv[1] + "/x.json"), "w").close()
with output_lock.locked(sys.argv[1]), output_lock.first(sys.argv[1], "evaluation"):
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def training(folder: pathlib.Path):
    """Another process that trains in a folder, as far as files show; yields the process's number, then kills it."""
    command = [sys.executable, "-c", _HOLD, str(folder)]
    with subprocess.Popen(command, cwd=lines.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_a_second_training_is_refused_and_a_killed_one_keeps_no_lock(bad_files, tmp_path, monkeypatch, log_lines):
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(bad_files)
    with training(out):
        for script in ("run_pretraining.py", "run_classifier.py"):
            assert message_of(lines.call, script, *flags(script, "", tmp_path)).startswith(f"{out}: another training ")
    with output_lock.locked(str(out)), output_lock.first(str(out), "training") as is_first:
        assert not is_first
    assert not (out / ".training.lock").exists()

    def fail(*arguments, **settings):
        raise OSError("no locks available")

    monkeypatch.setattr("filelock.FileLock.acquire", fail)
    with output_lock.locked(str(tmp_path)):  # with a warning
        assert [line for line in log_lines if line.startswith(f"{tmp_path}: ") and "no locks available" in line]


@pytest.mark.slow
def test_an_evaluation_leaves_the_records_of_another_run_alone(bad_files, tmp_path, monkeypatch):
    monkeypatch.chdir(bad_files)
    given, record = flags("run_classifier.py", "--num_train_epochs=0.5", tmp_path), tmp_path / "out" / "eval.tf_record"
    lines.call("run_classifier.py", *given)
    record.write_text("of the other")
    with training(tmp_path / "out"):
        step = lines.call("run_classifier.py", *given, "--do_train=false", "--do_eval")["global_step"]
    assert record.read_text() == "of the other"
    assert lines.call("run_classifier.py", *given, "--do_train=false", "--do_eval")["global_step"] == step
    assert record.read_bytes() != b"of the other"


def test_partial_files_of_dead_processes_are_removed_and_others_are_not(tmp_path, log_lines):
    """A file of this process's number is one of a process before, in a container in which numbers begin anew."""
    with training(tmp_path) as number:
        (left,) = tmp_path.glob(".x.json.*.partial")
        host = left.name.split(".")[3]
        files.write_text(str(tmp_path / "a" / ".." / "y"), "")
        assert left.exists()  # its process may still write it
    (tmp_path / f".m.keras.scratch.{host}.{number}.partial").mkdir()
    (tmp_path / f".z.{host}.{os.getpid()}.partial").touch()
    (tmp_path / f".w.{host}.{number}-7.partial").touch()  # of a thread
    begun = outputs.name_beside(str(tmp_path / "begun"))
    with futures.ThreadPoolExecutor() as threads:
        assert threads.submit(outputs.name_beside, str(tmp_path / "begun")).result() != begun
    kept = {f".x.json.{host}.{os.getppid()}.partial", f".x.json.another-host.{number}.partial"}
    kept |= {".x.partial", "x.partial", os.path.basename(begun)}
    for name in kept:
        (tmp_path / name).touch()
    files.write_text(str(tmp_path / "y"), "")
    assert {*os.listdir(tmp_path)} - {".training.lock", ".evaluation.lock", "a"} == {*kept, "y"}
    removed = [line for line in log_lines if line.startswith("Removed ")]
    assert len(removed) == 4 and "x.json" in "".join(removed)
