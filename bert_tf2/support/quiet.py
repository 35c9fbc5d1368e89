"""Imports TensorFlow without its messages about devices, and refuses Keras on another backend."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

from bert_tf2.support import process
from bert_tf2.support.errors import UserError


def load_tensorflow():
    """Imports TensorFlow and returns it, without its messages on standard error about missing devices.

    TF_CPP_MIN_LOG_LEVEL=0 shows them. The variable stays set in scripts, for their processes.
    """
    check_backend()
    is_new = "TF_CPP_MIN_LOG_LEVEL" not in os.environ
    # Of a TPU that is none and of a worker that ends, TensorFlow logs errors besides the exception, which says it too.
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with contextlib.nullcontext() if "tensorflow" in sys.modules or level == "0" else _chatter_hidden():
        import tensorflow as tf
    if is_new and not process.is_script:
        del os.environ["TF_CPP_MIN_LOG_LEVEL"]
    return tf


@contextlib.contextmanager
def _chatter_hidden() -> Iterator[None]:
    """Hides the six lines that TensorFlow logs before it reads the variable, unless its import fails."""
    with tempfile.TemporaryFile() as chatter, open(os.dup(2), "w") as terminal, contextlib.redirect_stderr(terminal):
        os.dup2(chatter.fileno(), 2)
        try:
            yield
        except Exception:
            chatter.seek(0)
            os.write(terminal.fileno(), chatter.read())
            raise
        finally:
            os.dup2(terminal.fileno(), 2)


def load_tensorflow_text(purpose: str):
    """Imports tensorflow-text for its operations, and returns it; `purpose` begins the message."""
    try:
        import tensorflow_text  # not available for Windows
    except (ImportError, TypeError) as error:
        is_missing = isinstance(error, ImportError)
        cure = "install it with `pip install tensorflow-text`" if is_missing else "unset PYTHONOPTIMIZE"
        raise UserError(f"{purpose} needs tensorflow-text, which cannot be loaded ({error}); {cure}") from error
    return tensorflow_text


def check_backend() -> None:
    """Raises UserError if Keras runs on another backend than TensorFlow, or would."""
    keras = sys.modules.get("keras")
    other = keras.config.backend() if keras else os.environ.get("KERAS_BACKEND") or "tensorflow"
    if other != "tensorflow":
        raise UserError(
            f"Keras runs on {other}, and bert_tf2 needs it on TensorFlow: set KERAS_BACKEND=tensorflow before Keras is"
            " imported, in the shell or in os.environ"
        )
