"""The standard streams of a script in any locale, signals while libraries load, and Keras on another backend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types

import pytest
from command_lines import ROOT, environment

import bert_tf2
from bert_tf2.support import process
from bert_tf2.support.errors import UserError

_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def python(program: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program], env=environment(**variables), capture_output=True, timeout=60
    )


@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "ascii"}, _ASCII, {"PYTHONIOENCODING": "latin-1"}])
def test_what_is_printed_is_utf_8_in_any_locale_and_cannot_fail(variables):
    done = python(
        "from bert_tf2.support import process; process.begin(); print('\\xe9\\u5317 \\udcff \\ud83d')", **variables
    )
    assert (done.stdout, done.stderr) == ("\xe9\u5317 \\udcff \\ud83d\n".encode(), b"")


WHILE_TENSORFLOW_LOADS = """
import subprocess, sys, threading
import bert_tf2
ended, started = threading.Event(), []
def start_children():
    while not ended.wait(0.02):
        started.append(subprocess.run(["sh", "-c", "echo written by a child >&2; ls -l /proc/self/fd/2"],
                                      stdout=subprocess.PIPE, text=True).stdout.split()[-1])
{how}
terminal = sys.stderr
other = threading.Thread(target=start_children)
other.start()
bert_tf2.BertModel
ended.set()
other.join()
import tensorflow as tf
tf.get_logger().warning("of TensorFlow's logger")
print(len(started), len({{*started}}), sys.stderr is terminal)
"""


@pytest.mark.parametrize("how", ["", "from bert_tf2.support import process; process.begin()"])
def test_standard_error_stays_while_tensorflow_loads(how):
    """For Python, for TensorFlow's logger, and for the children that another thread starts."""
    done = python(WHILE_TENSORFLOW_LOADS.format(how=how))
    count, destinations, same = done.stdout.split()
    assert int(count) > 5 and (destinations, same) == (b"1", b"True")
    errors = done.stderr.decode()
    assert errors.count("written by a child") == int(count)
    assert "of TensorFlow's logger" in errors and "Logging error" not in errors and "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_tensorflow_loads_gets_its_line(number, tmp_path):
    loads = f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(20)"
    (tmp_path / "tensorflow.py").write_text(loads)
    program = "from bert_tf2.support import process; process.begin(); process.load_tensorflow()"
    done = python(program, **environment(tmp_path, ROOT, TF_CPP_MIN_LOG_LEVEL="2"))
    words = {signal.SIGINT: "interrupted", signal.SIGTERM: "stopped by SIGTERM"}[number]
    assert (done.returncode, done.stderr.decode()) == (128 + number, f"-c: error: {words}\n")


def test_child_processes_end_before_a_script_that_is_stopped(tmp_path):
    """One that needs some time to remove its partial file, and one that would never end."""
    (tmp_path / "children.py").write_text(
        "import os, pathlib, signal, subprocess, sys, time\n"
        "from bert_tf2.support import process\n"
        "def tidily(*_): time.sleep(0.5); pathlib.Path('partial').unlink(); os._exit(0)\n"
        "def work(handler, name):\n"
        "    signal.signal(signal.SIGTERM, handler); pathlib.Path(name).touch(); time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    process.SECONDS_TO_END = 1.0\n"
        "    process.tidying.append(lambda: print('tidied', flush=True))\n"
        "    process.begin()\n"
        "    for call in ('work(tidily, \"partial\")', 'work(signal.SIG_IGN, \"deaf\")'):\n"
        "        process.children.append(subprocess.Popen([sys.executable, '-c', f'from children import *; {call}']))\n"
        "    while not (os.path.exists('partial') and os.path.exists('deaf')): time.sleep(0.01)\n"
        "    print(process.children[1].pid, flush=True); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "children.py"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    deaf, tidied = done.stdout.split()
    assert done.returncode == 143 and tidied == "tidied" and not (tmp_path / "partial").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(deaf), 0)


def test_keras_on_another_backend_is_refused_in_a_line(monkeypatch):
    other = types.SimpleNamespace(config=types.SimpleNamespace(backend=lambda: "jax"))
    monkeypatch.setitem(sys.modules, "keras", other)
    with pytest.raises(UserError, match=r"^Keras runs on jax, .*: set KERAS_BACKEND=tensorflow before Keras"):
        bert_tf2.load("folder")
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(UserError, match=r"^Keras runs on torch"):
        process.check_backend()
    monkeypatch.setenv("KERAS_BACKEND", "")  # as if it were not set
    process.check_backend()
