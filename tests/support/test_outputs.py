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

import command_lines as lines
import pytest
import tensorflow as tf
import toy_data
from bad_calls import flags
from command_lines import ROOT
from folder_content import content
from refused import message_of

from bert_tf2.data import records
from bert_tf2.support import environment, files, output_lock, outputs
from bert_tf2.support.errors import UserError

# Outputs are no inputs


@pytest.mark.parametrize(
    ("script", "change", "named"),
    [
        ("build_vocab.py", "--vocab_file=text.txt", "--vocab_file=text.txt: .*--input_file="),
        ("build_vocab.py", "--vocab_file=OUT/link --input_file=t*.txt", "--input_file=t"),
        ("build_vocab.py", "--vocab_file=OUT/hard", "--input_file=text.txt"),
        ("create_pretraining_data.py", "--output_file=OUT/x,vocab.txt", "--vocab_file=vocab.txt"),
        ("extract_features.py", "--output_file=bert_config.json", "--bert_config_file=bert_config.json"),
        ("convert_checkpoint.py", "--output=. --extend_vocab=new.txt", "--output=.: holds bert_config.json"),
        ("convert_checkpoint.py", "--output=google --input=google", "google: holds bert_model.ckpt"),
        (
            "run_ner.py",
            "--do_predict --output_dir=OUT/in --predict_file=OUT/in/predictions.txt",
            "--predict_file=.*/in/predictions.txt",
        ),
    ],
)
def test_an_output_is_never_an_input(script, change, named, bad_files, tmp_path, monkeypatch, log_lines):
    (tmp_path / "link").symlink_to(bad_files / "text.txt")
    (tmp_path / "hard").hardlink_to(bad_files / "text.txt")
    (tmp_path / "in").mkdir()
    for name in ("predictions.txt", "predictions.json", "vocab.txt"):
        (tmp_path / "in" / name).write_text("mine")
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


# Disks


@contextlib.contextmanager
def disk(path: pathlib.Path, size: str, then: str = ""):
    """A small disk, mounted for the test; skips it where that is not allowed."""
    path.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
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
    ("convert_checkpoint.py", "--to=tf1 --output=OUT/disk/x"),
    ("convert_checkpoint.py", "--to=hf --output=OUT/disk/x"),
    ("export_saved_model.py", "--export_dir=OUT/disk/x"),
    ("run_ner.py", "--output_dir=OUT/disk/x"),
]


@pytest.mark.parametrize(
    ("script", "change"), [*WRITES[:4], *(pytest.param(*case, marks=pytest.mark.slow) for case in WRITES[4:])]
)
def test_a_full_disk(script, change, bad_files, tmp_path, monkeypatch):
    """Large enough to begin, not large enough to end; for the vocabulary, not to begin."""
    monkeypatch.chdir(bad_files)
    with disk(tmp_path / "disk", "4k" if script == "build_vocab.py" else "24k") as where:
        if script == "build_vocab.py":
            (where / "full").write_bytes(bytes(4096))
        found = message_of(lines.call, script, *flags(script, change, tmp_path))
        assert "No space left on device" in found or " are free" in found
        assert ".partial" not in found and str(where) in found
        assert not [path for path in where.rglob("*") if "partial" in path.name]


@pytest.mark.parametrize(("script", "change"), [WRITES[0], WRITES[3], WRITES[-1]])
def test_a_read_only_disk_is_told_at_once(script, change, bad_files, tmp_path, monkeypatch, log_lines):
    monkeypatch.chdir(bad_files)
    with disk(tmp_path / "disk", "1m", "ro"):
        found = message_of(lines.call, script, *flags(script, change, tmp_path))
    assert found.startswith("--") and "Read-only file system" in found
    assert not [line for line in log_lines if "Initialized" in line]


def test_other_exceptions_of_the_same(tmp_path):
    """What TensorFlow, HDF5 and numpy make of a full disk, and what is not blamed on the output."""
    path, full = str(tmp_path / "x"), "No space left on device"
    for error in (
        tf.errors.ResourceExhaustedError(None, None, f"{path}; {full}"),
        tf.errors.ResourceExhaustedError(None, None, f"{{{{function_node f}}}} {path}; {full} [Op:Save]"),
        RuntimeError(f"Can't write (file descriptor = 3, errno = 28, error message = '{full}')"),
        OSError(errno.ENOSPC, full),
    ):
        with pytest.raises(UserError, match=f"x: .*{full}"), files.complete_or_absent(path) as (beside,):
            pathlib.Path(beside).touch()
            raise error
    for error in (
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
        FileNotFoundError(errno.ENOENT, "No such file", str(tmp_path / "gone")),
    ):
        with pytest.raises(type(error)), files.complete_or_absent(path):
            raise error
    assert "out of memory" in environment.explain(MemoryError()) and environment.explain(ValueError("?")) is None
    (tmp_path / "folder").touch()
    assert "folder" in message_of(records.write_records, str(tmp_path / "folder" / "x"), records.PRETRAINING, [])
    assert os.listdir(tmp_path) == ["folder"]


def test_room_is_looked_for_before_the_work(tmp_path, log_lines, monkeypatch):
    environment.check_space(str(tmp_path / "new" / "x"), 10, "the checkpoints", 20)
    assert not log_lines
    environment.check_space(str(tmp_path), 10, "the checkpoints", 10**17)
    assert len(log_lines) == 1 and "the checkpoints" in log_lines[0] and "100000.0 TB" in log_lines[0]
    assert str(tmp_path) in message_of(environment.check_space, str(tmp_path), 10**17, "the checkpoints")
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=10))
    environment.check_space(str(tmp_path), 10, "the checkpoints", 10)
    assert "11 B" in message_of(environment.check_space, str(tmp_path), 11, "the checkpoints")
    assert len(log_lines) == 1
    assert [environment.human(size) for size in (999, 1300, 12_345_678)] == ["999 B", "1.3 kB", "12 MB"]


# Two runs in one folder

_HOLD = """
import os, sys
from bert_tf2.support import output_lock, outputs
if sys.argv[2:]:
    open(outputs.name_beside(sys.argv[2]), "w").close()
with output_lock.locked(sys.argv[1]):
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


class Holder:
    """Another process that trains in a folder, as far as the lock can tell; `end` kills it."""

    def __init__(self, *arguments: str):
        command = [sys.executable, "-c", _HOLD, *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.number = int(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=30)


def test_a_second_training_is_refused_and_a_killed_one_keeps_no_lock(bad_files, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(bad_files)
    holder = Holder(str(out))
    try:
        assert output_lock.is_training_elsewhere(str(out))
        for script in ("run_pretraining.py", "run_classifier.py"):
            assert message_of(lines.call, script, *flags(script, "", tmp_path)).startswith(f"{out}: another training ")
    finally:
        holder.end()
    assert not output_lock.is_training_elsewhere(str(out))
    with output_lock.locked(str(out)):
        assert output_lock.is_training_elsewhere(str(out))
    assert list(out.iterdir()) == []


@pytest.mark.slow
def test_evaluation_beside_a_training_leaves_its_records_alone(tmp_path):
    toy_data.write_tsv_task(tmp_path / "tables")
    toy_data.write_model(tmp_path, num_hidden_layers=1)
    given = ["--task_name=tsv", *(f"--{name}={value}" for name, value in toy_data.TSV_COLUMNS.items())]
    given += [f"--bert_config_file={tmp_path}/bert_config.json", f"--vocab_file={tmp_path}/vocab.txt"]
    given += [f"--data_dir={tmp_path}/tables", f"--output_dir={tmp_path}/out", "--max_seq_length=16"]
    lines.call("run_classifier.py", *given, "--do_train", "--num_train_epochs=0.5")
    record = tmp_path / "out" / "eval.tf_record"
    record.write_text("of the training")
    holder = Holder(str(tmp_path / "out"))
    try:
        assert lines.call("run_classifier.py", *given, "--do_eval")["global_step"] == 1
    finally:
        holder.end()
    assert record.read_text() == "of the training"
    assert lines.call("run_classifier.py", *given, "--do_eval")["global_step"] == 1
    assert record.read_bytes() != b"of the training"


def test_a_folder_that_cannot_be_locked_is_used_with_a_warning(tmp_path, monkeypatch, log_lines):
    def fail(*arguments, **settings):
        raise OSError("no locks available")

    monkeypatch.setattr("filelock.FileLock.acquire", fail)
    with output_lock.locked(str(tmp_path)):
        pass
    assert [line for line in log_lines if str(tmp_path) in line and "no locks available" in line]


# What killed processes leave


def test_partial_files_of_dead_processes_are_removed_and_others_are_not(tmp_path, log_lines):
    """A file of this process's number is one of a process before, in a container in which numbers begin anew."""
    holder = Holder(str(tmp_path), str(tmp_path / "x.json"))
    (left,) = tmp_path.glob(".x.json.*.partial")
    host = left.name.split(".")[3]
    files.write_text(str(tmp_path / "a" / ".." / "y"), "")
    assert left.exists()  # its process may still write it
    holder.end()
    (tmp_path / f".m.keras.scratch.{host}.{holder.number}.partial").mkdir()
    (tmp_path / f".z.{host}.{os.getpid()}.partial").touch()
    begun = outputs.name_beside(str(tmp_path / "begun"))
    pathlib.Path(begun).touch()
    kept = {f".x.json.{host}.{os.getppid()}.partial", f".x.json.another-host.{holder.number}.partial"}
    kept |= {".x.partial", "x.partial", os.path.basename(begun)}
    for name in kept:
        (tmp_path / name).touch()
    files.write_text(str(tmp_path / "y"), "")
    assert {*os.listdir(tmp_path)} - {".training.lock", "a"} == {*kept, "y"}
    removed = [line for line in log_lines if line.startswith("Removed ")]
    assert len(removed) == 3 and "x.json" in "".join(removed)
