"""A small model with what the explorer shows of it, the server, and Chromium.

The words are the demo's vocabulary; every variable is random. The browser tests need Chromium and Playwright, and are
skipped where they are not installed, except where BERT_TF2_TEST_BROWSER=1 asks for them, as `.ci/run` does.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from browser_pages import Browser
from explorer_model import MOVED, MOVED_WORD, SIZES, VOCAB_FILE, save, serving
from small_models import randomize, small_config

from bert_tf2 import heads
from bert_tf2.explorer.opened import Explorer
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.weights import checkpoint


@pytest.fixture(scope="session")
def weights(tmp_path_factory) -> str:
    """The folder of a PretrainingModel with bert_config.json and vocab.txt."""
    folder = tmp_path_factory.mktemp("explorer") / "pretrained"
    model = heads.PretrainingModel(small_config(**SIZES))
    randomize(model, seed=3)
    return save(folder, model)


@pytest.fixture(scope="session")
def tuned(tmp_path_factory, weights) -> str:
    """The folder of a classifier that began as `weights`: every variable moved a little, MOVED and MOVED_WORD more."""
    model = heads.ClassifierModel(small_config(**SIZES), 2)
    randomize(model, seed=4)
    checkpoint.initialize(model, weights)
    random = np.random.default_rng(5)
    for name, variable in checkpoint.tf1_variables(model).items():
        change = random.normal(0.0, 0.1 if name == MOVED else 0.002, variable.shape)
        if name == "bert/embeddings/word_embeddings":
            change[VOCAB_FILE.read_text().splitlines().index(MOVED_WORD)] += 0.5
        variable.assign_add(change.astype(np.float32))
    return save(tmp_path_factory.mktemp("explorer") / "tuned", model)


@pytest.fixture(scope="session")
def explorer(weights, tuned) -> Explorer:
    return Explorer(ExplorerOptions(model=weights, compare_with=tuned))


@pytest.fixture(scope="session")
def address(explorer):
    with serving(explorer) as started:
        yield started


@pytest.hookimpl(tryfirst=True)  # before the choice by -m
def pytest_collection_modifyitems(items):
    """Tests in Chromium take seconds each: they are among the slow ones."""
    for item in items:
        if "browser" in item.fixturenames:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def browser():
    """Chromium, started once."""
    missing = Browser.missing()
    if missing and os.environ.get("BERT_TF2_TEST_BROWSER") == "1":
        pytest.fail(f"BERT_TF2_TEST_BROWSER=1 asks for the browser tests, but {missing}")
    if missing:
        pytest.skip(missing)
    with Browser() as started:
        yield started


@pytest.fixture
def open_page(browser, address):
    """open_page("#/model", width=390, color_scheme="dark") -> a Playwright page, once its view is drawn.

    The test fails if a page logs an error, or asks anything but the server for anything.
    """
    pages = browser.pages(address)
    yield pages.open
    pages.close()
    assert not pages.problems


@pytest.fixture
def page(open_page):
    """The first view, on a desktop."""
    return open_page()
