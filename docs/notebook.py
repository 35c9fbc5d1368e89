"""Writes examples/how_bert_works.ipynb, docs/how_bert_works.md as a notebook: `python docs/notebook.py`."""

from __future__ import annotations

import doctest
import json
import pathlib
import re

PAGE = pathlib.Path(__file__).with_name("how_bert_works.md")
NOTEBOOK = PAGE.parents[1] / "examples" / "how_bert_works.ipynb"
START = """\
import os, pathlib
import bert_tf2
os.chdir(pathlib.Path(bert_tf2.__file__).parents[1])  # the checkout, whose files are read below
"""


def made() -> str:
    """The notebook: a cell of code for each block of snippets, without what they print, and the text between them."""
    cells: list[tuple[str, str]] = []
    for piece in doctest.DocTestParser().parse(PAGE.read_text(encoding="utf-8")):
        if isinstance(piece, doctest.Example):
            before = cells.pop()[1] if cells[-1][0] == "code" else START if len(cells) == 1 else ""
            cells.append(("code", before + piece.source))
        elif piece.strip():
            text = re.sub(r"\]\((?=[\w.])(?!https?:)", "](../docs/", piece.strip())
            cells.append(("markdown", text.replace("../docs/../", "../")))
    nothing = {"markdown": {}, "code": {"outputs": [], "execution_count": None}}
    content = {
        "cells": [
            {"cell_type": kind, "id": f"cell-{number:02}", "metadata": {}, **nothing[kind]}
            | {"source": text.strip().splitlines(keepends=True)}
            for number, (kind, text) in enumerate(cells, 1)
        ],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(made(), encoding="utf-8")
