"""The files of --write_projector, read by TensorBoard's own plugin."""

from __future__ import annotations

import json

import numpy as np
import pytest
from explorer_model import VOCAB_FILE
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.plugins import base_plugin
from tensorboard.plugins.projector import projector_plugin
from werkzeug.test import Client

from bert_tf2.explorer import projector, server
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint

FILES = {
    "projector_config.pbtxt",
    *(f"{name}_embeddings.bytes" for name in ("word", "position", "token_type")),
    *(f"{name}_embeddings_metadata.tsv" for name in ("word", "position", "token_type")),
}


@pytest.fixture
def written(explorer, tmp_path):
    projector.write(str(tmp_path), explorer.bert)
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


def test_tensorboard_reads_the_tables_and_the_words(written, weights):
    addresses = plugin(written)
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
    content, config = projector.contents(tables, {0: "[PAD]"})
    assert content["word_embeddings.tsv"] == b"0.0\t0.0\t0.0\n" * 2
    assert config.embeddings[0].tensor_path == "word_embeddings.tsv"
    assert content["word_embeddings_metadata.tsv"].decode().splitlines()[2] == "(no entry)\t1\tspecial"
    assert "position_embeddings.bytes" in content


@pytest.mark.parametrize(
    ("word", "shown"),
    [("a\tb", "a\\tb"), ("\n", "\\n"), ("\u2028", "\\u2028"), (" ", "' '"), ("caf\u00e9", "caf\u00e9"), ("", "''")],
)
def test_words_cannot_break_the_lines(word, shown):
    assert projector.visible(word) == shown


def test_its_own_files_are_replaced_and_those_of_others_are_not(written, explorer):
    assert {path.name for path in written.iterdir()} == FILES
    projector.write(str(written), explorer.bert)
    (written / "projector_config.pbtxt").write_text("embeddings { tensor_path: 'mine.tsv' }")
    with pytest.raises(UserError, match="this program did not write it"):
        projector.write(str(written), explorer.bert)
    (written / "projector_config.pbtxt").unlink()
    with pytest.raises(UserError, match=r"embeddings\S*: exists, and this program did not write it"):
        projector.write(str(written), explorer.bert)


def test_the_script_writes_and_opens_no_page(weights, tmp_path, monkeypatch, log_lines):
    monkeypatch.setattr(server, "listen", lambda port: pytest.fail("opened a page"))
    server.run(ExplorerOptions(model=weights, write_projector=str(tmp_path / "new folder")))
    assert {path.name for path in (tmp_path / "new folder").iterdir()} == FILES
    assert any(" -m tensorboard.main " in line and "--logdir='" in line for line in log_lines)
