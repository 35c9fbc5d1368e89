"""The progress of long work: what is logged of time, and what a terminal shows."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
import tqdm.std
from command_lines import environment

from bert_tf2.support import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets: a list with the seconds."""
    now = [100.0]
    monkeypatch.setattr(tqdm.std, "time", lambda: now[0])
    return now


def test_the_first_step_shows_nothing_of_the_time_left(clock, log_lines):
    with progress.Progress("Training", 100, "steps", contents=(32, "examples"), logs_ends=True) as training:
        clock[0] += 60  # the graph is made
        training.advance(1, "loss 2.0")
        for _ in range(39):
            clock[0] += 10
            training.advance(1, "loss 1.0")
            clock[0] += 1000  # on a checkpoint
            training.leave_out(1000)
    assert log_lines[:2] == [
        "Training: 1 of 100 steps, loss 2.0",
        "Training: 2 of 100 steps, loss 1.0, 3.20 examples/s, 16:20 left",
    ]
    assert log_lines[39] == "Training: 40 of 100 steps, loss 1.0, 3.20 examples/s, 10:00 left"
    assert log_lines[40:] == ["Training: 40 steps, loss 1.0, took 10:57:30"]


def test_a_line_every_ten_seconds_and_no_line_of_short_or_failing_work(clock, log_lines):
    assert list(progress.track("abc", "Reading")) == ["a", "b", "c"]
    with pytest.raises(ValueError), progress.Progress("Reading", 3) as work:
        work.advance()
        clock[0] += 100
        raise ValueError
    assert not log_lines
    for _ in progress.track(iter(range(100)), "Reading", unit="lines", total=100):
        clock[0] += 1
    assert log_lines[0] == "Reading: 11 of 100 lines, 1.00 lines/s, 01:29 left"
    assert log_lines[-1] == "Reading: 100 lines, took 01:40" and len(log_lines) == 10
    for _ in progress.track(iter(range(30)), "Reading", unit="lines"):
        clock[0] += 1
    assert log_lines[11] == "Reading: 21 lines, 1.00 lines/s"


_WORK = """
import sys, time
from absl import logging
from bert_tf2.support import flags, progress
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import Options
sys.argv = ["script.py"]
def main(argv):
    for number in progress.track(range(5), "Reading", unit="lines"):
        time.sleep(0.11)
        if number == 2:
            logging.warning("a warning")
    raise UserError("text.txt, line 3: wrong")
flags.run(Options, main)
"""


def test_without_standard_error(monkeypatch):
    """None in programs without a console, and if a shell closes it."""
    monkeypatch.setattr(sys, "stderr", None)
    assert [*progress.track([1, 2], "Reading")] == [1, 2]


def test_a_terminal_keeps_the_log_and_not_the_line_and_a_file_gets_no_line():
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command, written = [sys.executable, "-c", _WORK], b""
    with subprocess.Popen(command, env=environment(TERM="xterm"), stdout=its, stderr=its):
        os.close(its)
        try:
            while part := os.read(ours, 10000):
                written += part
        except OSError:  # the other end is closed
            os.close(ours)
    assert b"Reading: 3 of 5 lines" in written
    screen = []
    for line in written.decode().replace("\r\n", "\n").split("\n"):
        cells: list[str] = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        screen.append("".join(cells).rstrip())
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    for warning, error in ([line for line in screen if line], done.stderr.splitlines()):
        assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING: a warning", warning)
        assert error == "script.py: error: text.txt, line 3: wrong"
