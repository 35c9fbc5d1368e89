"""explore.py --write: one file with a sentence worked through, opened without a server and without a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from browser_pages import axe_violations, expect, too_wide

from bert_tf2.explorer import server
from bert_tf2.explorer.model import Explorer
from bert_tf2.explorer.options import ExplorerOptions

TEXTS = {"text": "Paris is in </script> [MASK].", "other_text": "Rome is in </script> [MASK]."}


@pytest.fixture(scope="module")
def path(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "page.html"
    server.write_page(str(path), Explorer(ExplorerOptions(model=weights, **TEXTS)))
    return path


@pytest.fixture
def open_file(browser, path):
    """open_file(width, color_scheme) -> the page without a network; the test fails if it logs or asks for anything."""
    pages = browser.pages(path.parent.as_uri())
    yield lambda width, color_scheme: pages.open(path.name, width, color_scheme, offline=True)
    pages.close()
    assert pages.problems == []


@pytest.mark.parametrize(("width", "color_scheme"), [(1600, "light"), (390, "dark")])
def test_everything_is_within_the_file(open_file, width, color_scheme, explorer):
    page = open_file(width, color_scheme)
    assert axe_violations(page) == [] and too_wide(page) == 0
    layers, heads = explorer.bert.config.num_hidden_layers, explorer.bert.config.num_attention_heads
    tokens = page.get_by_role("region", name="Tokens").get_by_role("button")
    for layer in range(layers):
        for head in range(heads):
            page.locator(".map").nth(layer * heads + head).click()
            expect(page.locator("#attention")).to_contain_text(f"Layer {layer}, head {head} of {heads}")
            expect(page.locator("#pair h3").last).to_have_text(f"Layer {layer}, head {head} in both")
        for token in range(tokens.count()):
            tokens.nth(token).click()
            expect(page.locator("#block h3").first).to_contain_text(f"({token}) in layer {layer}")
            expect(page.locator("#words h3").first).to_be_visible()
    assert page.locator(".notice").count() == 0
    page.get_by_role("button", name="Code: softmax", exact=True).first.click()
    expect(page.locator("#code-panel .here")).to_contain_text("tf.nn.softmax(")


def test_the_file_says_where_nothing_lies(path, weights):
    text = path.read_text()
    assert weights not in text and text.count("</script>") == 3
    answers = json.loads(re.search(r'id="answers">(.*?)</script>', text)[1])
    assert answers["/api/model {}"]["path"] == "model.ckpt-7"


def test_a_pipe_is_written_to_and_not_read(weights, tmp_path):
    os.mkfifo(tmp_path / "page.html")
    with open(tmp_path / "copy.html", "wb") as copy, subprocess.Popen(["cat", tmp_path / "page.html"], stdout=copy):
        server.write_page(str(tmp_path / "page.html"), Explorer(ExplorerOptions(model=weights, **TEXTS)))
    assert (tmp_path / "copy.html").read_bytes().lower().startswith(b"<!doctype html>")


def test_a_model_without_the_head_gets_a_sentence_without_a_blank(classifier, tmp_path):
    server.write_page(str(tmp_path / "page.html"), Explorer(ExplorerOptions(model=classifier)))
    assert "The capital of France is Paris." in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("name", ["Attention, after the softmax", "Embeddings of"])
def test_pictures_as_svg(page, name, tmp_path):
    with page.expect_download() as saved:
        page.get_by_role("button", name=f"Save as SVG: {name}").click()
    assert re.fullmatch(r"[a-z0-9-]+\.svg", saved.value.suggested_filename)
    saved.value.save_as(tmp_path / "picture.svg")
    root = ElementTree.parse(tmp_path / "picture.svg").getroot()
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len([*root.iter()]) > 20
    assert {"Embeddings of": "= sum"}.get(name, "[MASK]") in texts
