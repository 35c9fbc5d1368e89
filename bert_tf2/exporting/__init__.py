"""Models for TensorFlow Serving. `bert_tf2.exporting.load` opens an exported folder in Python."""

from typing import Any

from bert_tf2.support import lazy

_get, __dir__ = lazy.names(__name__, {"saved_model_files": "load"})


def __getattr__(name: str) -> Any:
    if name == "load":
        from bert_tf2.support.process import load_tensorflow

        load_tensorflow()  # with few of its messages about devices
    return _get(name)
