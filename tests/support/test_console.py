"""The log's looks and the summary at the end."""

import subprocess
import sys

from command_lines import ROOT

from bert_tf2.support import console

_LOGS = """
import logging as python_logging
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
flags.run(Options, main)
"""


def test_what_log_lines_look_like():
    done = subprocess.run([sys.executable, "-c", _LOGS], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line.partition(" ")[2] for line in done.stderr.splitlines()]
    assert lines == [*("some words", "ERROR: bad", "WARNING: worry")]


def test_tables_are_aligned_and_cut():
    text = console.table("Title:", {"a": "word " * 1000, "name": 3})
    title, first, last = text.splitlines()
    assert (title, last) == ("Title:", "  name  3")
    assert first.startswith("  a     word word") and first.endswith("word ...") and len(first) < 620


def test_the_summary(log_lines):
    console.summary(["out/a", "out/b"], {"f1": 0.5})
    assert log_lines[-1].splitlines()[1:] == ["  wrote    out/a, out/b", "  results  f1 0.5000"]
