"""Finds phrases that cost a reader a second pass, and names a plainer form: python docs/prose.py.

python docs/prose.py                # the documents: counts, places; exit status 1 if there are any
python docs/prose.py --package      # the same for comments, docstrings and messages of bert_tf2; always status 0
python docs/prose.py --package benchmarks examples serving *.py    # the same for these modules and folders
python docs/prose.py FOLDER --counts    # counts alone, of another checkout; its package with --package as the last word
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import pathlib
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]

_NO_QUESTION = r"what\b(?![^.?!|\n]*(?:\n(?!\n)[^.?!|\n]*)*\?)"  # to the end of the sentence, cell or paragraph
_BEFORE = "and or of to with by from than for but in on as is are all beside before after behind at like "
_BEFORE += "reads takes needs writes returns makes does"

# Name -> (expression, plainer form). A space matches any white space, since phrases run over the end of a line.
PATTERNS = {
    "that of": (r"\b[Tt]hat of\b", "name the thing again"),
    "those of": (r"\b[Tt]hose of\b", "name the things again"),
    "Of ... first": (r"\bOf\b", "subject first"),
    "For ... first": (r"\bFor\b", "subject first, or To with a verb"),
    "Within ... first": (r"\bWithin\b", "subject first"),
    "is none": (r"\b(?:is|are|was|were|be) none\b", "there is no ..., or is missing"),
    "tells, told": (r"\b(?:tell|tells|telling|told)\b", "reports, warns, shows"),
    "said": (r"\bsaid\b", "reported, written"),
    "stands": (r"\b(?:stand|stands|standing|stood)\b", "is, represents"),
    "lies": (r"\b(?:lie|lies|lying|lain)\b", "is, are"),
    "goes, went": (r"\b(?:go|goes|going|went|gone)\b", "continues, is removed, belongs"),
    "what as a noun": (
        rf"\bW{_NO_QUESTION[1:]}|(?:[,;:(|]|\b(?:{_BEFORE.replace(' ', '|')})) {_NO_QUESTION}",
        "the thing that ..., or the name of the thing",
    ),
    "one for a noun": (
        r"\b(?:[Tt]he|[Tt]his|[Aa]nother|[Ee]ach|[Ee]very) one\b|\bthat one\b(?=[.,;:)])|\bones\b",
        "name the thing again",
    ),
}
EXPRESSIONS = {name: re.compile(each.replace(" ", r"\s+")) for name, (each, _) in PATTERNS.items()}

# Phrases that are right where they occur: titles and names of others.
ALLOWED = ("What works",)

_BLANK = re.compile(r"[^\n]")
# Parts of a document that are no prose: blocks of code, snippets and their output, addresses, code, quotations.
_NO_PROSE = re.compile(
    r"(?ms)<!--.*?-->|^ *```.*?^ *```$|^    [^\n]*|\]\([^)]*\)|`[^`]*`|<[^>]*>|\"[^\"\n]{,80}(?:\n[^\"\n]{,80})?\"|"
    + "|".join(map(re.escape, ALLOWED))
)


class Place(NamedTuple):
    path: str
    line: int
    pattern: str
    text: str


def documents(root: pathlib.Path) -> Iterator[tuple[str, str]]:
    """The (name, text) of each document, and of each cell of text in a notebook."""
    named = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")]
    for path in (*named, *sorted((root / "docs").glob("*.md"))):
        yield str(path.relative_to(root)), path.read_text(encoding="utf-8")
    for path in sorted((root / "examples").glob("*.ipynb")):
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"], 1):
            if cell["cell_type"] == "markdown":
                yield f"{path.relative_to(root)}, cell {number}", "".join(cell["source"])


def found(text: str, path: str = "", first_line: int = 1) -> list[Place]:
    """The places of a text, which begins in a line of a file, that have one of the patterns."""
    prose = _NO_PROSE.sub(lambda match: _BLANK.sub("~", match[0]), text)
    places = []
    for name, expression in EXPRESSIONS.items():
        for match in expression.finditer(prose):
            line = first_line + prose.count("\n", 0, match.start())
            around = text[max(match.start() - 30, 0) : match.end() + 40]
            places.append(Place(path, line, name, " ".join(around.split())))
    return places


def parts_of(source: str) -> Iterator[tuple[str, int, str]]:
    """The (kind, line, text) of comments, docstrings, and other strings of three words and more of a module."""
    block, last = [], 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield "comments", last - len(block) + 1, "\n".join(block)
                block = []
            block.append(token.string.lstrip("# "))
            last = token.start[0]
    if block:
        yield "comments", last - len(block) + 1, "\n".join(block)
    tree = ast.parse(source)
    statements = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    docstrings = {id(value) for value in statements if isinstance(value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings:
                yield "docstrings", node.lineno, re.sub(r"(?m)^ +", "", node.value)
            elif len(node.value.split()) > 2:
                yield "messages", node.lineno, node.value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT, help="a checkout; by default this one")
    help_text = "comments, docstrings and messages of these modules and folders (by default bert_tf2), not documents"
    parser.add_argument("--package", nargs="*", metavar="PATH", help=help_text)
    parser.add_argument("--counts", action="store_true", help="no places")
    arguments = parser.parse_args()
    root, places = arguments.folder, {}
    package = arguments.package is not None
    if package:
        places = {"comments": [], "docstrings": [], "messages": []}
        named = [root / name for name in arguments.package or ["bert_tf2"]]
        for path in sorted(path for each in named for path in ([each] if each.is_file() else each.rglob("*.py"))):
            name = str(path.relative_to(root))
            for kind, line, text in parts_of(path.read_text(encoding="utf-8")):
                places[kind] += found(text, name, line)
    else:
        places = {"documents": [place for name, text in documents(root) for place in found(text, name)]}
    every = [place for listed in places.values() for place in listed]
    if not arguments.counts:
        for place in sorted(every):
            print(f"{place.path}:{place.line}: {place.pattern} ({PATTERNS[place.pattern][1]}): {place.text}")
    if every or arguments.counts:
        counts = {kind: Counter(place.pattern for place in listed) for kind, listed in places.items()}
        print(f"{'':18}", *(f"{kind:>11}" for kind in counts))
        for pattern in PATTERNS:
            print(f"{pattern:18}", *(f"{counted[pattern]:11}" for counted in counts.values()))
        print(f"{'all':18}", *(f"{counted.total():11}" for counted in counts.values()))
    return 1 if every and not package else 0


if __name__ == "__main__":
    sys.exit(main())
