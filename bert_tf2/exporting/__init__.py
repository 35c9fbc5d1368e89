"""Models for TensorFlow Serving. `bert_tf2.exporting.load` opens an exported folder in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_tf2.exporting.exported_model import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """Imports lazily, since the code that writes an export imports this package, and TensorFlow with it."""
    if name == "load":
        from bert_tf2.exporting.exported_model import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
