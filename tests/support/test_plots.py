"""Figures: their kinds, complete or absent, texts as they are; without matplotlib, one line."""

import sys

import pytest
from refused import refuses

from bert_tf2.support import plots


def write(path, text="text"):
    with plots.drawing(str(path), 2, 1) as figure:
        figure.subplots().set_title(text)
    return path.read_bytes()


def test_files_of_figures(tmp_path, monkeypatch):
    """The user's settings, such as LaTeX, do not count; $ is no formula, which would be an error here."""
    matplotlib = pytest.importorskip("matplotlib")
    plain = write(tmp_path / "a.png")
    assert plain.startswith(b"\x89PNG\r\n\x1a\n") and write(tmp_path / "new" / "a.SVG").startswith(b"<?xml")
    assert write(tmp_path / "a.svg", r"$\frac$") != write(tmp_path / "b.svg", r"$frac$")
    refuses("a.doc .png, .svg or .pdf", write, tmp_path / "a.doc")
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "red"}):
        assert write(tmp_path / "b.png") == plain and matplotlib.rcParams["text.usetex"]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refuses(f"{tmp_path}/x.png pip install matplotlib", write, tmp_path / "x.png")
    assert not (tmp_path / "a.doc").exists() and not (tmp_path / "x.png").exists()
