"""The figures of docs/how_bert_works.md are those that docs/figures.py draws from the code's own shapes."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree

import pytest
from command_lines import ROOT

sys.path.insert(0, str(ROOT / "docs"))

import figures


@pytest.fixture(scope="module")
def shapes() -> dict:
    return figures.trace()


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_is_drawn_from_the_code(name, shapes):
    drawn = figures.FIGURES[name](shapes)
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == drawn, "run python docs/figures.py --write"
    root = ElementTree.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    assert root.find(f"{space}title").text and root.find(f"{space}desc").text
    assert "prefers-color-scheme: dark" in drawn and "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
    width, height = (float(root.get(side)) for side in ("width", "height"))
    for text in root.iter(f"{space}text"):
        assert 0 < float(text.get("x")) < width and 0 < float(text.get("y")) < height


def test_the_shapes_are_those_of_the_model(shapes):
    """By hand, for BERT-Base: 4 examples of 128 tokens with 20 predictions each."""
    assert shapes["scores"] == shapes["probabilities"] == (4, 12, 128, 128)
    assert shapes["split"] == shapes["contexts"] == (4, 12, 128, 64)
    assert shapes["merged"] == shapes["output_norm"] == (4, 128, 768) and shapes["intermediate"] == (4, 128, 3072)
    assert shapes["gathered"] == (80, 768) and shapes["logits"] == (80, 30522)
    assert figures.in_letters(shapes["scores"]) == "[B, N, F, T]"
    assert figures.in_letters(shapes["logits"]) == "[B·P, V]"
    with pytest.raises(KeyError):  # a size that no letter stands for
        figures.in_letters((4, 129))
