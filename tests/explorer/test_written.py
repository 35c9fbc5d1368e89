"""explore.py --write: one file with a sentence worked through, opened without a server and without a network.

And explore.py --write_projector: files that TensorBoard's own plugin reads.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from browser_pages import axe_violations, expect, too_wide
from explorer_model import VOCAB_FILE
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.plugins import base_plugin
from tensorboard.plugins.projector import projector_plugin
from werkzeug.test import Client

from bert_tf2.explorer import server, written
from bert_tf2.explorer.opened import Explorer
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint

TEXTS = {"text": "Paris is in </script> [MASK].", "other_text": "Rome is in </script> [MASK]."}


@pytest.fixture(scope="module")
def path(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "page.html"
    written.write_page(str(path), Explorer(ExplorerOptions(model=weights, **TEXTS)), server.PAGE)
    return path


@pytest.fixture
def open_file(browser, path):
    """open_file(width, color_scheme) -> the page without a network; the test fails if it logs or asks for anything."""
    pages = browser.pages(path.parent.as_uri())
    yield lambda width, color_scheme: pages.open(path.name, width, color_scheme, offline=True)
    pages.close()
    assert pages.problems == []


@pytest.mark.parametrize(("width", "color_scheme"), [(1600, "light"), (1024, "dark"), (390, "light")])
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


def test_a_sentence_that_cannot_be_read(weights, tmp_path):
    explorer = Explorer(ExplorerOptions(model=weights, text="a [mask]"))
    with pytest.raises(UserError, match=r"--text.*\[MASK\], in capitals"):
        written.write_page(str(tmp_path / "page.html"), explorer, server.PAGE)
    assert not [*tmp_path.iterdir()]


def test_a_file_of_another_kind_is_not_replaced(weights, tmp_path):
    there = tmp_path / "vocab.txt"
    there.write_text("[PAD]\n")
    with pytest.raises(UserError, match=r"vocab.txt: exists and is not an HTML page"):
        written.write_page(str(there), Explorer(ExplorerOptions(model=weights)), server.PAGE)
    assert there.read_text() == "[PAD]\n"


def test_a_pipe_is_written_to_and_not_read(weights, tmp_path):
    os.mkfifo(tmp_path / "page.html")
    with open(tmp_path / "copy.html", "wb") as copy, subprocess.Popen(["cat", tmp_path / "page.html"], stdout=copy):
        written.write_page(str(tmp_path / "page.html"), Explorer(ExplorerOptions(model=weights, **TEXTS)), server.PAGE)
    assert (tmp_path / "copy.html").read_bytes().lower().startswith(b"<!doctype html>")


def test_a_model_without_the_head_gets_a_sentence_without_a_blank(tuned, tmp_path):
    explorer = Explorer(dataclasses.replace(ExplorerOptions(model=tuned)))
    written.write_page(str(tmp_path / "page.html"), explorer, server.PAGE)
    assert written.EXAMPLE_WITHOUT_BLANK in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "name", ["Attention, after the softmax", "Lines of layer", "Attention of all heads", "Embeddings of"]
)
def test_pictures_as_svg(page, name, tmp_path):
    with page.expect_download() as saved:
        page.get_by_role("button", name=f"Save as SVG: {name}").click()
    assert re.fullmatch(r"[a-z0-9-]+\.svg", saved.value.suggested_filename)
    saved.value.save_as(tmp_path / "picture.svg")
    root = ElementTree.parse(tmp_path / "picture.svg").getroot()
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len([*root.iter()]) > 20
    expected = {"Attention of all heads": "layer 1", "Embeddings of": "= sum"}.get(name, "[MASK]")
    assert expected in texts


FILES = {
    "projector_config.pbtxt",
    *(f"{name}_embeddings.bytes" for name in ("word", "position", "token_type")),
    *(f"{name}_embeddings_metadata.tsv" for name in ("word", "position", "token_type")),
}


@pytest.fixture
def folder(explorer, tmp_path):
    written.write_projector(str(tmp_path), explorer.bert)
    return tmp_path


def plugin(folder) -> dict[str, Client]:
    """The addresses of TensorBoard's plugin for a folder."""
    multiplexer = plugin_event_multiplexer.EventMultiplexer({".": str(folder)})
    context = base_plugin.TBContext(
        logdir=str(folder),
        multiplexer=multiplexer,
        data_provider=data_provider.MultiplexerDataProvider(multiplexer, str(folder)),
    )
    made = projector_plugin.ProjectorPlugin(context)
    return {path: Client(handler) for path, handler in made.get_plugin_apps().items()}


def test_tensorboard_reads_the_tables_and_the_words(folder, weights):
    addresses = plugin(folder)
    run = json.loads(addresses["/runs"].get("/runs").data)[0]
    config = json.loads(addresses["/info"].get(f"/info?run={run}").data)
    source = checkpoint.open_weights(weights)
    for embedding in config["embeddings"]:
        table = source.get(f"bert/embeddings/{embedding['tensorName']}")
        assert embedding["tensorShape"] == [*table.shape]
        asked = f"?run={run}&name={embedding['tensorName']}"
        numbers = np.frombuffer(addresses["/tensor"].get(f"/tensor{asked}").data, np.float32)
        assert np.array_equal(numbers.reshape(table.shape), table)
    lines = addresses["/metadata"].get(f"/metadata?run={run}&name=word_embeddings").data.decode().splitlines()
    assert lines[0] == "word\tid\tpart"
    assert [line.split("\t")[0] for line in lines[1:]] == VOCAB_FILE.read_text().splitlines()
    assert {line.split("\t")[2] for line in lines[1:]} == {"special", "begins a word", "continues a word"}
    segments = addresses["/metadata"].get(f"/metadata?run={run}&name=token_type_embeddings").data.decode()
    assert segments == "0\n1\n"


def test_tables_that_could_be_taken_for_text_are_written_as_text(tmp_path):
    tables = {"word_embeddings": np.zeros((2, 3), np.float32), "position_embeddings": np.full((2, 2), 0.1, np.float32)}
    content, config = written.projector_files(tables, {0: "[PAD]"})
    assert content["word_embeddings.tsv"] == b"0.0\t0.0\t0.0\n" * 2
    assert config.embeddings[0].tensor_path == "word_embeddings.tsv"
    assert content["word_embeddings_metadata.tsv"].decode().splitlines()[2] == "(no entry)\t1\tspecial"
    assert "position_embeddings.bytes" in content


@pytest.mark.parametrize(
    ("word", "shown"),
    [("a\tb", "a\\tb"), ("\n", "\\n"), ("\u2028", "\\u2028"), (" ", "' '"), ("caf\u00e9", "caf\u00e9"), ("", "''")],
)
def test_words_cannot_break_the_lines(word, shown):
    assert written.visible(word) == shown


def test_its_own_files_are_replaced_and_those_of_others_are_not(folder, explorer):
    assert {path.name for path in folder.iterdir()} == FILES
    written.write_projector(str(folder), explorer.bert)
    (folder / "projector_config.pbtxt").write_text("embeddings { tensor_path: 'mine.tsv' }")
    with pytest.raises(UserError, match="this program did not write it"):
        written.write_projector(str(folder), explorer.bert)
    (folder / "projector_config.pbtxt").unlink()
    with pytest.raises(UserError, match=r"embeddings\S*: exists, and this program did not write it"):
        written.write_projector(str(folder), explorer.bert)


def test_the_script_writes_and_opens_no_page(weights, tmp_path, monkeypatch, log_lines):
    monkeypatch.setattr(server, "listen", lambda port: pytest.fail("opened a page"))
    server.run(ExplorerOptions(model=weights, write_projector=str(tmp_path / "new folder")))
    assert {path.name for path in (tmp_path / "new folder").iterdir()} == FILES
    assert any(" -m tensorboard.main " in line and "--logdir='" in line for line in log_lines)
