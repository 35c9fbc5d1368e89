"""A small model with what the explorer shows of it, the server, and Chromium.

The words are the demo's vocabulary; every variable is random. The browser tests need Chromium and Playwright, and are
skipped where they are not installed, except where BERT_TF2_TEST_BROWSER=1 asks for them, as `.ci/run` does.
"""

from __future__ import annotations

import os

import pytest
from browser_pages import Browser
from explorer_model import SIZES, save, serving
from small_models import randomize, small_config

from bert_tf2 import heads
from bert_tf2.explorer.model import Explorer
from bert_tf2.explorer.options import ExplorerOptions


@pytest.fixture(scope="session")
def weights(tmp_path_factory) -> str:
    """The folder of a PretrainingModel with bert_config.json and vocab.txt."""
    folder = tmp_path_factory.mktemp("explorer") / "pretrained"
    model = heads.PretrainingModel(small_config(**SIZES))
    randomize(model, seed=3)
    return save(folder, model)


@pytest.fixture(scope="session")
def classifier(tmp_path_factory) -> str:
    """The folder of a classifier, which has no masked-LM head."""
    model = heads.ClassifierModel(small_config(**SIZES), 2)
    randomize(model, seed=4)
    return save(tmp_path_factory.mktemp("explorer") / "classifier", model)


@pytest.fixture(scope="session")
def explorer(weights) -> Explorer:
    return Explorer(ExplorerOptions(model=weights))


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
