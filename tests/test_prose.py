"""docs/prose.py finds the phrases that it is for, and nothing in code, quotations and questions."""

import runpy

import pytest
from command_lines import ROOT

prose = runpy.run_path(str(ROOT / "docs" / "prose.py"))


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("The speed is that\nof a CPU.", ["that of"]),
        ("Sizes are those of BERT-Base, or there is none.", ["is none", "those of"]),
        ("Of the rows, two. For one, no. Within it, all.", ["For ... first", "Of ... first", "Within ... first"]),
        ("It tells what it said.", ["said", "tells, told"]),
        ("A name stands here, lies there, and goes.", ["goes, went", "lies", "stands"]),
        ("- What a script prints.\n\nIt belongs to what you do.", ["what as a noun"] * 2),
        ("Files and new ones, or the one before.", ["one for a noun"] * 2),
        ("What is it? And what does it do in\na second line?", []),
        ('`what lies` and "it went" and [a](goes.md)\n\n    >>> went\n\n```\nOf code.\n```\n', []),
    ],
)
def test_phrases(text, patterns):
    assert sorted(place.pattern for place in prose["found"](text)) == patterns


def test_the_parts_of_a_module():
    lines = [
        '"""Says what."""',
        "# A comment,",
        "# in two lines.",
        "def f():",
        '    """Of."""',
        '    return "a b", "of three words"',
    ]
    assert sorted(prose["parts_of"]("\n".join(lines))) == [
        ("comments", 2, "A comment,\nin two lines."),
        ("docstrings", 1, "Says what."),
        ("docstrings", 5, "Of."),
        ("messages", 6, "of three words"),
    ]
    (place,) = prose["found"]("a\nb\nthose of c", "name.md", 7)
    assert (place.path, place.line, place.pattern) == ("name.md", 9, "those of")
