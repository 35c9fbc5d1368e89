"""Runs command lines of the scripts: in this process, or in forks of one process that has loaded what they import.

    command_lines.call("run_squad.py", "--do_train", ...)           # raises what the script would report
    def test_x(command_lines, tmp_path):                            # a fixture of conftest.py; so is quick_lines
        done = command_lines.run("run_squad.py", "--do_train", cwd=tmp_path)

The parent of the forks has parsed no flags and used no device, so the forks behave almost like new processes. Only
TensorFlow's own messages about devices appear at another time; they are removed from the standard error.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Iterator
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Not scripts: the reference's modules beside its scripts.
REFERENCE_MODULES = ("modeling", "optimization", "tokenization")
SCRIPTS = sorted(path.name for path in ROOT.glob("*.py") if path.stem not in ("setup", *REFERENCE_MODULES))


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
def described(script: str) -> dict[str, dict]:
    """The "flags" of a script by name: type, default, help."""
    from absl import flags as absl_flags

    from bert_tf2 import commands
    from bert_tf2.support import flags

    flags.define(commands.find(commands.COMMANDS[script.removesuffix(".py")].options))
    found = absl_flags.FLAGS.get_flags_for_module(flags.__name__)
    return {"flags": {f.name: {"type": f.parser.flag_type(), "default": f.default, "help": f.help} for f in found}}


def call(script: str, *flags: str) -> Any:
    """Runs a command line in this process; returns the result of the script. The last flag of a name counts."""
    from bert_tf2 import commands
    from bert_tf2.support import settings

    name, given = script.removesuffix(".py"), {}
    stated = settings.settings_of(commands.find(commands.COMMANDS[name].options))
    for flag in flags:
        setting, _, text = flag.removeprefix("--").partition("=")
        kind = stated[setting][1]
        given[setting] = text != "false" if kind is bool else kind(text) if kind in (int, float) else text
    result = commands.call.__wrapped__(name, **given)  # whose errors name flags
    return "\n".join(result) if isinstance(result, Iterator) else result


class Done(NamedTuple):
    status: int
    stdout: str
    stderr: str


class CommandLines:
    """A context with the parent of the forks. If `quick`, TensorFlow cannot be imported there."""

    def __init__(self, quick: bool = False):
        self._command = [sys.executable, __file__, "quick" if quick else ""]

    def __enter__(self) -> CommandLines:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._server = subprocess.Popen(self._command, env=environment(TF_CPP_MIN_LOG_LEVEL="2"), text=True, **pipes)
        return self

    def __exit__(self, *exception) -> None:
        self._server.communicate(timeout=60)

    def run(self, script: str, *arguments: str, cwd: pathlib.Path = ROOT, columns: int = 80) -> Done:
        """The end of a script in a fork, on a terminal with so many `columns`."""
        print(json.dumps([script, list(arguments), str(cwd), columns]), file=self._server.stdin, flush=True)
        status, stdout, stderr = json.loads(self._server.stdout.readline())
        return Done(status, stdout, without_tensorflow(stderr))


def _serve(quick: bool) -> None:
    from bert_tf2 import commands

    # Modules that the scripts import late and that take long, so that the forks need not import them.
    if quick:
        sys.modules["tensorflow"] = sys.modules["keras"] = None
        late = ["support.console", "data.records", "weights.model_folder", "weights.text_rules", "finetuning.tables"]
        for name in [command.options for command in commands.COMMANDS.values()] + late:
            with contextlib.suppress(ImportError):
                commands.find(name)
        del sys.modules["keras"]  # it may be there, but cannot be imported
    else:
        import keras, scipy.stats, sklearn.metrics, tensorflow  # noqa: E401, F401, I001

        for command in commands.COMMANDS.values():
            commands.find(command.module)
    for line in sys.stdin:
        script, arguments, cwd, columns = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if not child:
                for stream, number in ((out, 1), (err, 2)):
                    os.dup2(stream.fileno(), number)
                os.environ["COLUMNS"] = str(columns)
                os.chdir(cwd)
                sys.argv = [str(ROOT / script), *arguments]
                _run(sys.argv[0])
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            texts = [stream.seek(0) or stream.read().decode() for stream in (out, err)]
        print(json.dumps([status, *texts]), flush=True)


def _run(script: str) -> None:
    """Runs a script, and ends the fork as a process of the script would end."""
    status = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve(quick=sys.argv[1] == "quick")
