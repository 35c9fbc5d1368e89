"""The links from the page to the code lead to the line that computes it."""

from __future__ import annotations

import re

import pytest
from command_lines import ROOT

from bert_tf2.explorer import code_lines
from bert_tf2.support.errors import UserError


@pytest.mark.parametrize("key", code_lines.PLACES)
def test_every_key_leads_to_its_line(key):
    found = code_lines.source(key)
    text = (ROOT / found["file"]).read_text().splitlines()
    assert code_lines.PLACES[key].expression in text[found["line"] - 1]
    shown = found["lines"][found["line"] - found["first"]]
    assert shown.strip() == text[found["line"] - 1].strip() and not shown.strip().startswith("#")


def test_the_pages_ask_only_for_keys_that_exist():
    pages = (ROOT / "bert_tf2" / "explorer" / "page").glob("*.js")
    asked = {key for page in pages for key in re.findall(r'(?:codeLink\(|vector\("\w+", )"([\w.]+)"', page.read_text())}
    assert len(asked) > 15
    assert asked <= {*code_lines.PLACES}


def test_an_unknown_key_and_code_that_has_gone(monkeypatch):
    with pytest.raises(UserError, match="there is no code for 'nothing'"):
        code_lines.source("nothing")
    monkeypatch.setitem(code_lines.PLACES, "gone", code_lines.Place("modeling:Embeddings.call", "no such line"))
    with pytest.raises(LookupError, match="gone"):
        code_lines.source("gone")
