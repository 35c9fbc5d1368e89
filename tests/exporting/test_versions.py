"""The numbered folders of an export: complete or absent, and never the same number twice."""

from __future__ import annotations

import errno
import os
import pathlib
import subprocess
import sys

import pytest
import text_operations
from export_cases import make_options

from bert_tf2.exporting import saved_model_files
from bert_tf2.exporting.run import run
from bert_tf2.support import outputs
from bert_tf2.support.errors import UserError

text_operations.need()


def test_numbers_beyond_those_of_servers_do_not_count(tmp_path):
    """They count with 64 bits."""
    for name in ("99999999999999999999", "\u0663", "3"):
        (tmp_path / name).mkdir()
    assert saved_model_files.write_version(str(tmp_path), lambda folder: None) == str(tmp_path / "4")


def test_a_version_appears_when_it_is_complete(tmp_path):
    def write(folder: str) -> None:
        assert [name.isdecimal() for name in os.listdir(tmp_path)] == [False]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        saved_model_files.write_version(str(tmp_path), write)
    assert os.listdir(tmp_path) == []


def test_a_number_that_is_taken_meanwhile_is_passed_over(tmp_path):
    def write(folder: str) -> None:
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "saved_model.pb").touch()
        pathlib.Path(folder, "mine").touch()

    assert saved_model_files.write_version(str(tmp_path), write) == str(tmp_path / "2")
    assert (tmp_path / "2" / "mine").exists() and sorted(os.listdir(tmp_path)) == ["1", "2"]


def test_what_a_killed_export_of_this_machine_left_is_removed(tmp_path, log_lines):
    killed = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    alive = outputs.name_beside(str(tmp_path / "version-12"))
    left = pathlib.Path(alive.replace(str(os.getpid()), killed.stdout.strip()))
    left.mkdir()
    (left / "saved_model.pb").write_bytes(bytes(5000))
    path = saved_model_files.write_version(str(tmp_path), lambda folder: None)
    assert os.listdir(tmp_path) == [os.path.basename(path)]
    assert any(f"Removed {left}, a partial" in line for line in log_lines)


def test_a_full_disk(exported, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    options = make_options(tmp_path, "classifier", exported("classifier").weights, text_signatures=False)
    monkeypatch.setattr(saved_model_files, "save", fail)
    with pytest.raises(UserError, match=r"export: cannot be written: No space left on device"):
        run(options)
    assert os.listdir(tmp_path / "export") == []
