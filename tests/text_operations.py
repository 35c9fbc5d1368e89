"""tensorflow-text, which tests of exports with texts need."""

from __future__ import annotations

import pytest

from bert_tf2.support.errors import UserError
from bert_tf2.support.process import load_tensorflow_text


def need() -> None:
    """Skips a test, or the rest of a module, where it cannot be loaded."""
    try:
        load_tensorflow_text("a test")
    except UserError:
        pytest.skip("tensorflow-text cannot be loaded", allow_module_level=True)
