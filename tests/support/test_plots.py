"""Figures: their kinds, complete or absent, texts as they are; without matplotlib, one line."""

import sys

import pytest
from refused import message_of

from bert_tf2.support import plots


def write(path, text="text"):
    with plots.drawing(str(path), 2, 1) as figure:
        figure.subplots().set_title(text)
    return path.read_bytes()


def test_a_missing_matplotlib_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = message_of(write, tmp_path / "x.png")
    assert found.startswith(f"{tmp_path}/x.png ") and "pip install matplotlib" in found


def test_files_of_figures(tmp_path):
    """The user's settings, such as LaTeX, do not count; $ is no formula, which would be an error here."""
    matplotlib = pytest.importorskip("matplotlib")
    plain = write(tmp_path / "a.png")
    assert plain.startswith(b"\x89PNG\r\n\x1a\n")
    assert write(tmp_path / "a.pdf").startswith(b"%PDF-")
    assert write(tmp_path / "new" / "a.SVG").startswith(b"<?xml")
    assert write(tmp_path / "a.svg", r"$\frac$") != write(tmp_path / "b.svg", r"$frac$")
    found = message_of(write, tmp_path / "a.doc")
    assert "a.doc" in found and ".png, .svg or .pdf" in found and not (tmp_path / "a.doc").exists()
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "red"}):
        assert write(tmp_path / "b.png") == plain and matplotlib.rcParams["text.usetex"]
