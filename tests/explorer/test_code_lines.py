"""The links from the page to the code lead to the line that computes it."""

from __future__ import annotations

import re

import pytest
from command_lines import ROOT

from bert_tf2.explorer import code_lines
from bert_tf2.explorer.server import PAGE
from bert_tf2.support.errors import UserError


@pytest.mark.parametrize("key", code_lines.PLACES)
def test_every_key_leads_to_its_line(key):
    found = code_lines.source(key)
    text = (ROOT / found["file"]).read_text().splitlines()
    assert code_lines.PLACES[key].expression in text[found["line"] - 1]
    shown = found["lines"][found["line"] - found["first"]]
    assert shown.strip() == text[found["line"] - 1].strip() and not shown.strip().startswith("#")


def test_the_pages_ask_only_for_keys_that_exist():
    calls = re.compile(r'(?:codeLink\(|vector\(\s*"\w+",)\s*"([\w.]+)"')
    asked = {key for page in PAGE.glob("*.js") for key in calls.findall(page.read_text())}
    assert len(asked) > 15
    assert asked <= {*code_lines.PLACES}


def test_the_files_of_the_page_can_be_read():
    """Their style is that of `npx prettier --print-width 120 --object-wrap=collapse`."""
    for path in (path for path in PAGE.iterdir() if path.suffix != ".svg"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 400 and max(map(len, lines)) <= 120, path.name


def test_an_unknown_key_and_code_that_has_gone(monkeypatch):
    with pytest.raises(UserError, match="there is no code for 'nothing'"):
        code_lines.source("nothing")
    monkeypatch.setitem(code_lines.PLACES, "gone", code_lines.Place("modeling:Embeddings.call", "no such line"))
    with pytest.raises(LookupError, match="gone"):
        code_lines.source("gone")
