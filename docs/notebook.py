"""Writes pages of this folder as notebooks, examples/how_bert_works.ipynb for example: `python docs/notebook.py`."""

from __future__ import annotations

import doctest
import json
import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parent
NOTEBOOKS = {name: DOCS.parent / "examples" / f"{name}.ipynb" for name in ("how_bert_works", "own_data")}
START = """\
import os, pathlib
import bert_tf2
os.chdir(pathlib.Path(bert_tf2.__file__).parents[1])  # the checkout, whose files are read below
"""


def made(name: str) -> str:
    """The notebook of a page: a cell of code for each block of snippets, without its output, and the text between."""
    cells: list[tuple[str, str]] = []
    for piece in doctest.DocTestParser().parse((DOCS / f"{name}.md").read_text(encoding="utf-8")):
        if isinstance(piece, doctest.Example):
            before = cells.pop()[1] if cells[-1][0] == "code" else START if len(cells) == 1 else ""
            cells.append(("code", before + re.sub(r" *# doctest: .*", "", piece.source)))
        elif piece.strip():
            text = re.sub(r"<!-- *|-->\s*", "", piece.strip())  # comments hold snippets that the site leaves out
            text = re.sub(r"\]\((?=[\w.])(?!https?:)", "](../docs/", text)
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
    for name, path in NOTEBOOKS.items():
        path.write_text(made(name), encoding="utf-8")
