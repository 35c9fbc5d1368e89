"""The log's looks and the summary at the end."""

import dataclasses
import os
import shlex
import subprocess
import sys

import pytest
from command_lines import ROOT

import bert_tf2
from bert_tf2.support import console

_LOGS = """
import logging as python_logging, warnings
from absl import logging
from bert_tf2.support import flags
from bert_tf2.support.settings import Options
import sys
sys.argv = ["script.py"]
def main(argv):
    logging.info("some %s", "words")
    logging.error("bad")
    python_logging.getLogger("other").info("chatter")
    python_logging.getLogger("other").warning("worry")
    warnings.warn("two\\nlines")
flags.run(Options, main)
"""


def test_what_log_lines_look_like():
    done = subprocess.run([sys.executable, "-c", _LOGS], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line.partition(" ")[2] for line in done.stderr.splitlines()]
    assert lines == [
        *("some words", "ERROR: bad", "WARNING: worry", "WARNING: two lines (UserWarning, <string> line 13)")
    ]


def test_tables_are_wrapped_and_cut():
    text = console.table("Title:", {"a": "word " * 100, "name": 3}, most_lines=2)
    title, first, second, last = text.splitlines()
    assert (title, last) == ("Title:", "  name  3")
    assert first.startswith("  a     word word")
    assert second.startswith("        word")
    assert second.endswith(" ...")
    assert max(map(len, text.splitlines())) <= 120


@dataclasses.dataclass
class _Options:
    output_dir: str
    do_lower_case: bool = True
    max_seq_length: int = 128
    learning_rate: float = 0.1
    use_tpu: bool = False


def test_commands_have_what_differs_from_the_defaults():
    options = _Options("my folder", do_lower_case=False, learning_rate=0.2, use_tpu=True)
    flags = console.changed(options, without=["learning_rate"])
    line = console.command("run_x.py", do_eval=True, init_checkpoint=None, **flags)
    assert shlex.split(line)[-5:] == [
        *("run_x", "--do_eval", "--output_dir=my folder", "--do_lower_case=False", "--use_tpu")
    ]


@pytest.mark.parametrize("script", [f"{ROOT}/run_ner.py", "run_ner.py", "elsewhere/run_ner.py"])
@pytest.mark.parametrize("on_path", [True, False])
def test_a_command_runs_as_printed_from_where_it_is_printed(script, on_path, tmp_path, monkeypatch):
    """In the folder of the checkout, beside it, and where the package is installed; within the environment, and not."""
    monkeypatch.chdir(ROOT if script == "run_ner.py" else tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = os.path.dirname(sys.executable) if on_path else "/nowhere"
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "argv", [script])
    line = console.command("explore.py", version=True)
    assert line.startswith("python ") == on_path or "bert_tf2 explore" in line
    shown = subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout
    assert shown == f"bert_tf2 {bert_tf2.__version__}\n"


def test_a_value_with_dashes_is_not_broken():
    line = console.command("run_x.py", first="a" * 40, folder_of=f"my --{'c' * 40}", last="b" * 40)
    assert shlex.split(console.break_command(line, 50).replace("\\\n", "")) == shlex.split(line)


def test_the_summary(log_lines):
    console.summary(["out/a", "out/b"], {"f1": 0.5}, "python x.py --a=1")
    assert log_lines[-1].splitlines()[1:] == [
        *("  wrote    out/a, out/b", "  results  f1 0.5000", "  next", "    python x.py --a=1")
    ]
