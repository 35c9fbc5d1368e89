"""What the documents show as printed is what is printed."""

import doctest
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["how_bert_works.md", "migrating.md"])
def test_snippets_print_what_the_document_says(name, monkeypatch):
    monkeypatch.chdir(ROOT)  # they name files of the checkout
    result = doctest.testfile(str(ROOT / "docs" / name), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("document", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(document):
    path = ROOT / document
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
        assert target.startswith("http") or (path.parent / target).exists(), target
