"""Runs command lines of the scripts in forks of one process that has loaded TensorFlow, which saves the start time.

    def test_x(command_lines, tmp_path):  # the fixture of conftest.py
        done = command_lines.run("run_squad.py", "--do_train", cwd=tmp_path)

The parent process has parsed no flags and used no device, so the forks behave almost like new processes. Only
TensorFlow's own messages about devices appear at another time; they are removed from the standard error.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys
import tempfile
import traceback
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCRIPTS = sorted(path.name for path in ROOT.glob("*.py") if path.name != "setup.py")

# Forks, because flags are defined for a whole process.
_DESCRIBE = """
import json, os, sys
from absl import flags as absl_flags
from bert_tf2 import commands
from bert_tf2.support import flags
for name, command in commands.COMMANDS.items():
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        continue
    flags.define(commands.find(command.options))
    described = {
        flag.name: {"type": flag.parser.flag_type(), "default": flag.default, "help": flag.help}
        for flag in absl_flags.FLAGS.flags_by_module_dict()[flags.__name__]
    }
    print(json.dumps([f"{name}.py", {"flags": described, "tensorflow": "tensorflow" in sys.modules}]), flush=True)
    os._exit(0)
"""


def environment(*folders: pathlib.Path, **variables: str) -> dict[str, str]:
    """The environment of a process that imports from `folders`, by default the checkout, first.

    What PYTHONPATH already holds stays: some machines find TensorFlow through it.
    """
    paths = [*map(str, folders or [ROOT]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}


# TensorFlow writes them before it reads TF_CPP_MIN_LOG_LEVEL; the last two kinds follow an error in version 2.22.
_OF_TENSORFLOW = re.compile(
    r"(?m)^([IWE]0000 |WARNING: All log messages before|To enable the following|=== Source Location|external/xla).*\n+"
)


def without_tensorflow(stderr: str) -> str:
    """What else is written to standard error than TensorFlow's own messages about devices."""
    return _OF_TENSORFLOW.sub("", stderr)


@functools.cache
def _all_described() -> dict[str, dict]:
    command = [sys.executable, "-c", _DESCRIBE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return dict(map(json.loads, done.stdout.splitlines()))


def described(script: str) -> dict:
    """The flags of a script, and whether to define them loads TensorFlow."""
    return _all_described()[script]


class Done(NamedTuple):
    status: int
    stdout: str
    stderr: str


class CommandLines:
    def __enter__(self) -> CommandLines:
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=environment(TF_CPP_MIN_LOG_LEVEL="2"),
        )  # fmt: skip
        return self

    def __exit__(self, *exception) -> None:
        self._server.stdin.close()
        self._server.wait(timeout=60)
        self._server.stdout.close()

    def run(self, script: str, *arguments: str, cwd: pathlib.Path) -> Done:
        print(json.dumps([script, list(arguments), str(cwd)]), file=self._server.stdin, flush=True)
        status, stdout, stderr = json.loads(self._server.stdout.readline())
        return Done(status, stdout, without_tensorflow(stderr))


def _serve() -> None:
    # What the scripts import late and what takes long, so that the forks need not.
    import keras, scipy.stats, sklearn.metrics, tensorflow  # noqa: E401, F401, I001

    from bert_tf2 import commands

    for command in commands.COMMANDS.values():
        commands.find(command.module)
    for line in sys.stdin:
        script, arguments, cwd = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if not child:
                _become(script, arguments, cwd, out, err)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            texts = [stream.seek(0) or stream.read().decode() for stream in (out, err)]
        print(json.dumps([status, *texts]), flush=True)


def _become(script: str, arguments: list[str], cwd: str, out, err) -> None:
    """Runs the script in a fork."""
    status = 0
    try:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.chdir(cwd)
        sys.argv = [str(ROOT / script), *arguments]
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve()
