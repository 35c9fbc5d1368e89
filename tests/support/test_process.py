"""How a script starts, what it logs, and how it ends: streams in any locale, signals, children, one line for errors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import types

import pytest
from bad_calls import flags
from command_lines import ROOT, environment, without_tensorflow
from refused import message_of

import bert_tf2
from bert_tf2.support import console, process


def python(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """The end of a program in a process of its own."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment(**variables), capture_output=True, text=True, timeout=180)


def test_printed_text_is_utf_8_in_any_locale_and_printing_cannot_fail():
    program = "from bert_tf2.support import process; process.begin(); print('\\xe9\\u5317 \\udcff \\ud83d')"
    done = python(program, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (done.stdout, done.stderr) == ("\xe9\u5317 \\udcff \\ud83d\n", "")


def test_keras_on_another_backend_is_refused_in_a_line(monkeypatch):
    other = types.SimpleNamespace(config=types.SimpleNamespace(backend=lambda: "jax"))
    monkeypatch.setitem(sys.modules, "keras", other)
    found = message_of(lambda: bert_tf2.load("folder"))
    assert "jax" in found and "KERAS_BACKEND=tensorflow" in found
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert "torch" in message_of(process.check_backend)
    monkeypatch.setenv("KERAS_BACKEND", "")  # as if it were not set
    process.check_backend()


# How a script ends

SCRIPT = """
import logging as python_logging, os, signal, sys, time
from absl import logging
from bert_tf2.support import flags
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import Options
scripts, sys.argv = sys.argv[1:], ["script.py"]
for does in scripts:
    child = os.fork()
    if not child:
        flags.run(Options, lambda given: exec(does))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
# Python drops what is raised in a destructor, and the script would go on to its end.
LATE = "type('Late', (), {'__del__': lambda self: os.kill(os.getpid(), signal.SIGTERM)})(); time.sleep(20)"
KILL = "os.kill(os.getpid(), signal.{}); time.sleep(20)"
ENDS = [
    ("raise UserError('text.txt, line 3: wrong')", 1, "text.txt, line 3: wrong"),
    ("raise KeyboardInterrupt('stopped, and saved')", 130, "stopped, and saved"),
    ("import numpy; numpy.zeros([2**22, 2**22])", 1, "out of memory"),
    ("open('/gone/gone', 'w')", 1, "/gone/gone: No such file"),
    ("raise OSError(5, 'x', 'd/.f.json.host.12.partial')", 1, "d/f.json: Input/output error"),
    (r"'n\udce9'.encode()", 1, r"'n\udce9': is not UTF-8"),
    (KILL.format("SIGTERM"), 143, "stopped by SIGTERM"),
    (KILL.format("SIGHUP"), 129, "stopped"),
    (KILL.format("SIGINT"), 130, "interrupted"),
    (LATE, 143, "stopped by SIGTERM"),
    ("sys.path.insert(0, os.environ['LOADS']); import tensorflow", 143, "stopped by SIGTERM"),
]


def test_how_a_script_ends(tmp_path):
    (tmp_path / "tensorflow.py").write_text(f"import os, signal, time\n{KILL.format('SIGTERM')}\n")
    done = python(SCRIPT, *(does for does, _, _ in ENDS), LOADS=str(tmp_path))
    found = without_tensorflow(done.stderr).splitlines()
    for (does, status, line), ended, written in zip(ENDS, done.stdout.split(), found, strict=True):
        assert int(ended) == status and written.startswith(f"script.py: error: {line}"), does


def test_a_bug_keeps_its_traceback_and_the_log_has_times_and_levels():
    does = (
        "logging.info('some %s', 'words'); logging.error('bad');"
        "python_logging.getLogger('other').info('chatter'); python_logging.getLogger('other').warning('worry'); 1 / 0"
    )
    done = python(SCRIPT, does)
    times, lines = zip(*(line.split(" ", 1) for line in done.stderr.splitlines()[:3]), strict=True)
    assert lines == ("some words", "ERROR: bad", "WARNING: worry")
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", time) for time in times)
    assert done.stdout == "1\n" and "Traceback" in done.stderr and "chatter" not in done.stderr


def test_signals_that_are_ignored_stay_ignored():
    """`nohup` and `command &` count on it."""
    program = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    done = python(program + SCRIPT, "os.kill(os.getpid(), signal.SIGHUP)")
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_signal_while_a_script_starts_gets_one_line():
    """The first lines of a script, before absl and the rest are there: that import sends the signal here."""
    program = (
        "import builtins, os, runpy, signal, sys\n"
        "real = builtins.__import__\n"
        "def load(name, *rest):\n"
        "    if name.startswith('absl'): os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *rest)\n"
        f"builtins.__import__ = load; sys.argv = [{str(ROOT / 'run_squad.py')!r}]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = python(program)
    assert (done.returncode, done.stderr) == (130, "run_squad.py: error: interrupted\n")


def test_child_processes_end_before_a_script_that_is_stopped(tmp_path):
    """A child that needs some time to remove its partial file, and a child that would never end."""
    (tmp_path / "children.py").write_text(
        "import os, pathlib, signal, subprocess, sys, time\n"
        "from bert_tf2.support import process\n"
        "process.SECONDS_TO_END = 1.0\n"
        "def tidily(*_): time.sleep(0.3); pathlib.Path('partial').unlink(); os._exit(0)\n"
        "def work(handler, name):\n"
        "    signal.signal(signal.SIGTERM, handler); pathlib.Path(name).touch(); time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    process.tidying.append(lambda: print('tidied', flush=True))\n"
        "    process.begin()\n"
        "    for call in ('work(tidily, \"partial\")', 'work(signal.SIG_IGN, \"deaf\")'):\n"
        "        process.children.append(subprocess.Popen([sys.executable, '-c', f'from children import *; {call}']))\n"
        "    while not (os.path.exists('partial') and os.path.exists('deaf')): time.sleep(0.01)\n"
        "    print(process.children[1].pid, flush=True); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
    )
    command, how = [sys.executable, "children.py"], {"cwd": tmp_path, "env": environment(), "timeout": 60}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, **how)
    deaf, tidied = done.stdout.split()
    assert done.returncode == 143 and tidied == "tidied" and not (tmp_path / "partial").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(deaf), 0)


def test_a_signal_leaves_no_new_folder_that_is_empty(tmp_path):
    (tmp_path / "old").mkdir()
    lock = "from bert_tf2.support import output_lock; opened = output_lock.locked({!r}); opened.__enter__(); "
    programs = [lock.format(f"{tmp_path}/{name}") for name in ("new/inner", "old", "full")]
    programs[2] += f"open('{tmp_path}/full/file', 'w').close(); "
    done = python(SCRIPT, *(program + KILL.format("SIGTERM") for program in programs))
    assert done.stdout == "143\n" * 3, done.stderr
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == ["full", "full/file", "old"]


@pytest.mark.slow
def test_signals_while_a_file_is_written_leave_nothing(bad_files, tmp_path):
    (tmp_path / "text.txt").write_text((bad_files / "text.txt").read_text() * 5000)
    given = flags("extract_features.py", f"--input_file={tmp_path}/text.txt", tmp_path / "out")
    command = [sys.executable, str(ROOT / "extract_features.py"), *given]
    with subprocess.Popen(command, cwd=bad_files, stderr=subprocess.PIPE, text=True) as running:
        try:
            while not list(tmp_path.glob("out/.features.json.*.partial")):
                assert running.poll() is None
                time.sleep(0.05)
            running.send_signal(signal.SIGINT)
            running.send_signal(signal.SIGINT)  # as `timeout` does
            stderr = running.communicate(timeout=60)[1]
        finally:
            running.kill()
    assert running.returncode == 130 and "Traceback" not in stderr
    assert stderr.splitlines()[-1].startswith("extract_features.py: error: ")
    assert not (tmp_path / "out").exists()


def test_tables_are_aligned_and_cut(log_lines):
    title, first, last = console.table("Title:", {"a": "word " * 1000, "name": 3}).splitlines()
    assert (title, last) == ("Title:", "  name  3")
    assert first.startswith("  a     word word") and first.endswith("word ...") and len(first) < 620
    console.summary(["out/a", "out/b", "out/export/1"], {"f1": 0.5})
    assert log_lines[-1].splitlines()[1:] == ["  wrote    a, b in out; out/export/1", "  results  f1 0.5000"]
    console.summary(["a", "b"])
    assert log_lines[-1].splitlines()[1:] == ["  wrote  a, b"]
