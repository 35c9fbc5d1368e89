"""Figures: their kinds, complete or absent, texts as they are."""

import os
import pathlib
import subprocess
import sys
import types

import pytest
import tensorflow as tf
from command_lines import ROOT

from bert_tf2.finetuning.classification import run
from bert_tf2.support import plots
from bert_tf2.support.errors import UserError


def write(path, text="text"):
    with plots.drawing(str(path), 2, 1) as figure:
        figure.subplots().set_title(text)
    return path.read_bytes()


def test_a_missing_matplotlib_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"^x\.png needs matplotlib, which is not installed: pip install matplotlib$"):
        write(pathlib.Path("x.png"))


def test_the_three_kinds_of_files(tmp_path):
    pytest.importorskip("matplotlib")
    assert write(tmp_path / "a.png").startswith(b"\x89PNG\r\n\x1a\n")
    assert write(tmp_path / "a.pdf").startswith(b"%PDF-")
    assert write(tmp_path / "new" / "a.SVG").startswith(b"<?xml")
    with pytest.raises(UserError, match=r"a\.doc: give a name that ends in \.png, \.svg or \.pdf"):
        write(tmp_path / "a.doc")


def test_dollars_are_no_formulas(tmp_path):
    pytest.importorskip("matplotlib")
    assert write(tmp_path / "a.svg", r"$\frac$") != write(tmp_path / "b.svg", r"$frac$")  # an error, as a formula


def test_the_user_s_settings_do_not_count(tmp_path):
    """LaTeX, for example, is not installed."""
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "red"}):
        changed = write(tmp_path / "a.png")
        assert matplotlib.rcParams["text.usetex"]
    assert write(tmp_path / "b.png") == changed


def test_scripts_need_no_backend_of_matplotlib(tmp_path):
    pytest.importorskip("matplotlib")
    with tf.summary.create_file_writer(f"{tmp_path}/run").as_default(step=1):
        tf.summary.scalar("loss", 2.0)
    script = [f"{ROOT}/plot_training.py", f"{tmp_path}/run", f"--output_file={tmp_path}/a.png"]
    environment = {**os.environ, "MPLBACKEND": "gone"}
    done = subprocess.run([sys.executable, *script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "a.png").exists(), done.stderr


def test_a_picture_is_an_extra(tmp_path, monkeypatch, log_lines):
    """The confusion matrix, after which the predictions are written."""

    def draw(path, **matrix):
        raise RuntimeError("matplotlib cannot draw")

    monkeypatch.setattr(run.outcome, "draw_confusion_matrix", draw)
    task = types.SimpleNamespace(options=types.SimpleNamespace(output_dir=str(tmp_path)))
    assert run.ClassifierTask.draw(task, {"confusion_matrix": {}}) == ()
    assert log_lines == ["confusion_matrix.png is not drawn: matplotlib cannot draw"]
