"""An unlucky machine: full disks, read-only folders, memory that is used up, signals, processes that were killed.

Each ends in one line, with nothing half-written. And what a user gave is never overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf
import toy_data
from command_lines import ROOT, Done, without_tensorflow

from bert_tf2 import heads
from bert_tf2.data import records
from bert_tf2.support import environment, files, outputs
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint

MODEL = ["--bert_config_file=bert_config.json", "--vocab_file=vocab.txt"]
SHORT = "--max_seq_length=32"
BASE = {
    "build_vocab.py": ["--input_file=text.txt"],
    "create_pretraining_data.py": ["--input_file=text.txt", "--vocab_file=vocab.txt", "--max_seq_length=32"],
    "extract_features.py": [*MODEL, "--input_file=text.txt", "--init_checkpoint=pretrained", "--layers=-1", SHORT],
    "convert_checkpoint.py": ["--input=pretrained", *MODEL],
    "export_saved_model.py": ["--task=features", *MODEL, "--init_checkpoint=pretrained", "--text_signatures=false"],
    "run_ner.py": [
        *(*MODEL, "--do_train", "--do_predict", "--train_file=words.txt", "--predict_file=words.txt"),
        *("--word_column=2", "--max_seq_length=32", "--train_batch_size=8", "--num_train_epochs=1"),
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("files")
    toy_data.write_model(path, num_hidden_layers=1)
    model = heads.PretrainingModel(toy_data.config(num_hidden_layers=1))
    checkpoint.CheckpointFolder(str(path / "pretrained")).save(checkpoint.tf1_variables(model), 7)
    checkpoint.save(str(path / "google" / "bert_model.ckpt"), checkpoint.tf1_variables(model))
    (path / "text.txt").write_text("".join(f"{text} [MASK]\n" for text, _ in toy_data.sentences(200, 1)))
    toy_data.write_conll(path / "words.txt", 200, 1)
    (path / "new.txt").write_text("new\n")
    return path


def one_line(done: Done, script: str) -> str:
    """The error of a script that failed as it should."""
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr, done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith(f"{script}: error: ") and done.stderr.count("error: ") == 1, done.stderr
    assert done.status == 1, done
    return last


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Outputs are no inputs


@pytest.mark.parametrize(
    ("script", "change", "message"),
    [
        ("build_vocab.py", "--vocab_file=text.txt", "--vocab_file=text.txt: is also read from (--input_file="),
        ("build_vocab.py", "--vocab_file=LINK --input_file=*.txt", "(--input_file=*.txt)"),
        ("build_vocab.py", "--vocab_file=HARD", "(--input_file=text.txt)"),
        ("create_pretraining_data.py", "--output_file=x,vocab.txt", "(--vocab_file=vocab.txt)"),
        ("extract_features.py", "--output_file=bert_config.json", "(--bert_config_file=bert_config.json)"),
        ("convert_checkpoint.py", "--to=tf1 --output=. --extend_vocab=new.txt", "--output=.: holds bert_config.json, "),
        ("convert_checkpoint.py", "--to=tf1 --output=TF1 --input=TF1", "holds bert_model.ckpt."),
        ("run_ner.py", "--output_dir=IN --predict_file=IN/predictions.txt", "(--predict_file=IN/predictions.txt)"),
    ],
)
def test_an_output_is_never_an_input(script, change, message, folder, command_lines, tmp_path):
    link, hard, inside = tmp_path / "link", tmp_path / "hard", tmp_path / "in"
    link.symlink_to(folder / "text.txt")
    hard.hardlink_to(folder / "text.txt")
    inside.mkdir()
    for name in ("predictions.txt", "predictions.json", "vocab.txt"):
        (inside / name).write_text("mine")
    names = {"LINK": link, "HARD": hard, "IN": inside, "TF1": folder / "google"}
    for name, path in names.items():
        change, message = (text.replace(name, str(path)) for text in (change, message))
    before = contents(folder)
    done = command_lines.run(script, *BASE[script], *change.split(), cwd=folder)
    assert message in one_line(done, script), done.stderr
    assert contents(folder) == before and (inside / "vocab.txt").read_text() == "mine"
    assert not [line for line in done.stderr.splitlines()[:-1] if "Initialized" in line]  # before the work


def test_devices_are_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        outputs.check({}, [outputs.Output("output_file", str(pipe))])
        files.write_text(str(pipe), "text")
        assert reader.stdout.read() == b"text"
    assert pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]
    outputs.check({}, [outputs.Output("output_file", "/dev/stdout")])


# Full disks


@contextlib.contextmanager
def disk(path: pathlib.Path, size: str, then: str = ""):
    """A disk of its own, of that size, where this machine allows it."""
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
    ("build_vocab.py", "--vocab_file=DISK/v.txt"),
    ("create_pretraining_data.py", "--output_file=DISK/x"),
    ("extract_features.py", "--output_file=DISK/x.json"),
    ("convert_checkpoint.py", "--to=tf1 --output=DISK/x"),
    ("convert_checkpoint.py", "--to=hf --output=DISK/x"),
    ("export_saved_model.py", "--export_dir=DISK/x"),
    ("run_ner.py", "--output_dir=DISK/x"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "change"), WRITES)
def test_a_full_disk(script, change, folder, command_lines, tmp_path):
    """Large enough to begin, not large enough to end; for the vocabulary, not to begin."""
    with disk(tmp_path / "disk", "4k" if script == "build_vocab.py" else "24k") as where:
        if script == "build_vocab.py":
            (where / "full").write_bytes(bytes(4096))
        done = command_lines.run(script, *BASE[script], *change.replace("DISK", str(where)).split(), cwd=folder)
        message = one_line(done, script)
        assert "No space left on device" in message or " are free on this disk" in message
        assert ".partial" not in message and str(where) in message
        assert not [path for path in where.rglob("*") if "partial" in path.name or path.name.endswith(".tf_record")]


@pytest.mark.parametrize(("script", "change"), [WRITES[0], WRITES[3], WRITES[-1]])
def test_a_read_only_disk_is_told_at_once(script, change, folder, command_lines, tmp_path):
    with disk(tmp_path / "disk", "1m", "ro") as where:
        done = command_lines.run(script, *BASE[script], *change.replace("DISK", str(where)).split(), cwd=folder)
        message = one_line(done, script)
        assert "cannot be written: Read-only file system" in message and message.split("error: ")[1].startswith("--")
        assert "Initialized" not in done.stderr


def test_other_exceptions_of_the_same(tmp_path):
    """What TensorFlow, HDF5 and numpy make of it."""
    path = str(tmp_path / "x")
    (tmp_path / "folder").write_text("")
    for error in (
        tf.errors.ResourceExhaustedError(None, None, f"{path}; No space left on device"),
        tf.errors.ResourceExhaustedError(
            None, None, f"{{{{function_node f}}}} {path}; No space left on device [Op:Save]"
        ),
        RuntimeError("Can't write (file descriptor = 3, errno = 28, error message = 'No space left on device')"),
        OSError(errno.ENOSPC, "No space left on device"),
    ):
        full = pytest.raises(UserError, match=r"x: cannot be written: No space left on device")
        with full, files.complete_or_absent(path) as (beside,):
            pathlib.Path(beside).touch()
            raise error
    with pytest.raises(UserError, match="cannot make the folder"):
        records.write_records(str(tmp_path / "folder" / "x"), records.PRETRAINING, [])
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.slow
def test_an_error_in_an_input_is_not_blamed_on_the_output(tmp_path):
    with pytest.raises(FileNotFoundError), files.complete_or_absent(str(tmp_path / "x")):
        (tmp_path / "gone").read_text()
    with pytest.raises(tf.errors.ResourceExhaustedError), files.complete_or_absent(str(tmp_path / "x")):
        tf.zeros([2**22, 2**22])


def test_names_of_files_that_are_being_written_are_not_told(tmp_path):
    with files.complete_or_absent(str(tmp_path / "a" / "b.c")) as (beside,):
        assert os.path.basename(beside).endswith(f".{os.getpid()}.partial")
        assert environment.final_name(beside) == str(tmp_path / "a" / "b.c")
        pathlib.Path(beside).touch()
    with pytest.raises(UserError) as caught, files.complete_or_absent(str(tmp_path / "a" / "x")) as (beside,):
        files.open_binary(f"{beside}/y", "wb")
    assert "partial" not in str(caught.value)


# How a script ends


RAISES = """
import sys, os, signal, time
import numpy as np
from bert_tf2.support import flags, environment
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import Options
sys.argv = ["script.py"]
def main(given):
    {}
flags.run(Options, main)
"""


@pytest.mark.parametrize(
    ("does", "status", "message"),
    [
        ("raise UserError('text.txt, line 3: wrong')", 1, "text.txt, line 3: wrong"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
        ("raise KeyboardInterrupt('stopped, and saved')", 130, "stopped, and saved"),
        ("np.zeros([2**22, 2**22])", 1, "out of memory; lower the batch size or --max_seq_length, or use a machine"),
        pytest.param("import tensorflow as tf; tf.zeros([2**22, 2**22])", 1, "out of memory", marks=pytest.mark.slow),
        ("open('/gone/gone', 'w')", 1, "/gone/gone: No such file or directory"),
        ("raise OSError(5, 'x', 'd/.f.json.host.12.partial')", 1, "d/f.json: Input/output error"),
        (r"'n\udce9'.encode()", 1, r"'n\udce9': is not UTF-8, and TensorFlow opens no other names; rename it"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", 143, "stopped by SIGTERM"),
        ("os.kill(os.getpid(), signal.SIGHUP); time.sleep(9)", 129, "stopped, the terminal was closed"),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", 130, "interrupted"),
    ],
)  # fmt: skip
def test_how_a_script_ends(does, status, message):
    done = subprocess.run([sys.executable, "-c", RAISES.format(does)], cwd=ROOT, capture_output=True, text=True)
    lines = without_tensorflow(done.stderr).splitlines()
    assert (done.returncode, len(lines)) == (status, 1), done
    assert lines[0].startswith(f"script.py: error: {message}"), lines


def test_our_own_bugs_keep_their_traceback():
    done = subprocess.run([sys.executable, "-c", RAISES.format("1 / 0")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" in done.stderr


def test_signals_that_are_ignored_stay_ignored():
    """`nohup` and `command &` count on it."""
    program = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    program += RAISES.format("os.kill(os.getpid(), signal.SIGHUP); print('goes on')")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "goes on\n", "")


@pytest.mark.parametrize("script", ["run_squad.py", "build_vocab.py"])
def test_a_signal_while_a_script_starts_gets_one_line(script):
    """The first lines of a script, before absl and the rest are there: that import sends the signal here."""
    program = (
        "import builtins, os, runpy, signal, sys\n"
        "real = builtins.__import__\n"
        "def load(name, *rest):\n"
        "    if name.startswith('absl'): os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = load; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program, script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, f"{script}: error: interrupted\n")


def extraction(tmp_path: pathlib.Path) -> list[str]:
    command = [sys.executable, str(ROOT / "extract_features.py"), *BASE["extract_features.py"]]
    return [*command, f"--output_file={tmp_path}/out/x.json"]


@contextlib.contextmanager
def amid_writing(folder: pathlib.Path, tmp_path: pathlib.Path):
    """A script that has begun to write a file, and would go on for long."""
    (tmp_path / "text.txt").write_text((folder / "text.txt").read_text() * 5000)
    command = [*extraction(tmp_path), f"--input_file={tmp_path}/text.txt"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as running:
        try:
            while not list(tmp_path.glob("out/.x.json.*.partial")):
                assert running.poll() is None
                time.sleep(0.05)
            yield running
        finally:
            running.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
@pytest.mark.slow
def test_a_signal_while_a_file_is_written_leaves_nothing(number, folder, tmp_path):
    with amid_writing(folder, tmp_path) as running:
        running.send_signal(number)
        running.send_signal(number)  # as `timeout` does
        stderr = running.communicate(timeout=60)[1]
    assert running.returncode == 128 + number and "Traceback" not in stderr
    assert stderr.splitlines()[-1].startswith("extract_features.py: error: ")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_signal_in_a_destructor_is_not_lost():
    """Python drops what is raised there, and the script would go on to its end."""
    late = "type('Late', (), {'__del__': lambda self: os.kill(os.getpid(), signal.SIGTERM) or time.sleep(0.01)})"
    code = RAISES.format(f"{late}(); time.sleep(20)")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (143, "script.py: error: stopped by SIGTERM\n")


# What killed processes leave


def ended_process() -> int:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    return int(done.stdout)


def test_partial_files_of_dead_processes_are_removed_and_others_are_not(tmp_path, log_lines):
    host = outputs.name_beside("x").split(".")[2]
    dead = ended_process()
    (tmp_path / f".x.json.{host}.{dead}.partial").write_bytes(bytes(2000))
    (tmp_path / f".m.keras.scratch.{host}.{dead}.partial").mkdir()
    kept = {f".x.json.{host}.{os.getppid()}.partial", f".x.json.another-host.{dead}.partial", ".x.partial", "x.partial"}
    for name in kept:
        (tmp_path / name).touch()
    files.write_text(str(tmp_path / "y"), "")
    assert {*os.listdir(tmp_path)} == {*kept, "y"}
    removed = [line for line in log_lines if line.startswith("Removed ")]
    assert len(removed) == 2 and "x.json" in removed[1]


def test_a_container_in_which_the_next_process_has_the_same_number(tmp_path, monkeypatch):
    left = pathlib.Path(outputs.name_beside(str(tmp_path / "x")))
    left.touch()
    files.write_text(str(tmp_path / "y"), "")
    assert sorted(os.listdir(tmp_path)) == [left.name, "y"]  # this process may still write it
    monkeypatch.setattr(outputs, "_begun", set())  # as in a process that has just begun
    outputs._remove_leftovers.cache_clear()
    files.write_text(str(tmp_path / "z"), "")
    assert sorted(os.listdir(tmp_path)) == ["y", "z"]


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no /proc here")
@pytest.mark.parametrize("read", [files.read_text, lambda path: [*files.read_lines(path)], files.count_lines])
def test_an_error_of_reading_names_the_file(read):
    with pytest.raises(OSError) as caught:
        read("/proc/self/mem")
    assert environment.explain(caught.value).startswith("/proc/self/mem: Input/output error")
