"""A small model with what the explorer shows of it, the server, and Chromium.

The words are the demo's vocabulary; every variable is random. The browser tests need Chromium and Playwright, and are
skipped where they are not installed, except where BERT_TF2_TEST_BROWSER=1 asks for them, as `make test-all` does.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import threading

import pytest
from browser_pages import Browser
from command_lines import ROOT
from small_models import randomize, small_config

from bert_tf2 import heads
from bert_tf2.explorer import server
from bert_tf2.explorer.model import Explorer
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.weights import checkpoint

# Of the model. It has 2 blocks with 2 heads each.
SIZES = {"vocab_size": 888, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 48}


@pytest.fixture(scope="session")
def saved():
    """saved(folder, make, seed) -> the folder of a model that `make` makes of a configuration."""

    def save(folder: pathlib.Path, make, seed: int) -> str:
        folder.mkdir()
        model = make(small_config(**SIZES))
        randomize(model, seed=seed)
        checkpoint.save(str(folder / "model.ckpt-7"), checkpoint.tf1_variables(model), 7)
        (folder / "bert_config.json").write_text(model.config.to_json_string())
        shutil.copy(ROOT / "bert_tf2" / "demo" / "vocab.txt", folder)
        return str(folder)

    return save


@pytest.fixture(scope="session")
def weights(saved, tmp_path_factory) -> str:
    """The folder of a PretrainingModel with bert_config.json and vocab.txt."""
    return saved(tmp_path_factory.mktemp("explorer") / "pretrained", heads.PretrainingModel, 3)


@pytest.fixture(scope="session")
def explorer(weights) -> Explorer:
    return Explorer(ExplorerOptions(model=weights))


@pytest.fixture(scope="session")
def browser():
    """Chromium, started once."""
    if missing := Browser.missing():
        asked = os.environ.get("BERT_TF2_TEST_BROWSER") == "1"
        (pytest.fail if asked else pytest.skip)(missing)
    with Browser() as started:
        yield started


@pytest.fixture
def visit(browser):
    """visit(an Explorer or an address) -> the pages of a test.

    The test fails if a page logs an error, or asks anything but the server for anything.
    """
    visited, servers = [], []

    def pages(shown: Explorer | str):
        if not isinstance(shown, str):
            listening = server.listen(0)
            servers.append(server.serve(shown, listening))
            threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
            shown = f"http://{server.HOST}:{listening.getsockname()[1]}"
        visited.append(browser.pages(shown))
        return visited[-1]

    yield pages
    for each in visited:
        each.close()
    for each in servers:
        each.shutdown()
    assert [problem for each in visited for problem in each.problems] == []
