"""Imports TensorFlow without its messages about devices, and refuses Keras on another backend."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile

from bert_tf2.support import process
from bert_tf2.support.errors import UserError


def load_tensorflow(on_tpu: bool = False):
    """Imports TensorFlow and returns it, without its messages on standard error about missing devices.

    Set TF_CPP_MIN_LOG_LEVEL=0 to see them; if the import fails, they are always shown. With `on_tpu`, what the
    exceptions of a TPU say is not logged besides. The variable stays set in scripts, for their processes.
    """
    check_backend()
    # When a worker ends, TensorFlow's code tells it in several errors on each of the others, besides the exception.
    level = "3" if on_tpu or os.environ.get("TF_CONFIG") else "2"
    is_new = "TF_CPP_MIN_LOG_LEVEL" not in os.environ
    if "tensorflow" in sys.modules or os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", level) == "0":
        import tensorflow as tf

        return tf
    # TensorFlow logs a part of them at any level, before it reads the variable. What others write meanwhile is kept.
    failed = True
    with tempfile.TemporaryFile() as chatter, open(os.dup(2), "w") as terminal, contextlib.redirect_stderr(terminal):
        os.dup2(chatter.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()
            failed = False
            return tf
        finally:
            os.dup2(terminal.fileno(), 2)
            if is_new and not process.is_script:
                del os.environ["TF_CPP_MIN_LOG_LEVEL"]
            chatter.seek(0)
            os.write(2, b"".join(line for line in chatter if failed or not _OF_TENSORFLOW.match(line)))


def load_tensorflow_text(purpose: str):
    """Imports tensorflow-text for its operations, and returns it; `purpose` begins the message."""
    try:
        import tensorflow_text  # not available for Windows
    except (ImportError, TypeError) as error:
        is_missing = isinstance(error, ImportError)
        cure = "install it with `pip install tensorflow-text`" if is_missing else "unset PYTHONOPTIMIZE"
        raise UserError(f"{purpose} needs tensorflow-text, which cannot be loaded ({error}); {cure}") from error
    return tensorflow_text


_OF_TENSORFLOW = re.compile(rb"[IWE][0-9.: ]+ \S+\.cc:\d+\] |WARNING: All log messages before absl::InitializeLog")


def backend() -> str:
    """The backend on which Keras runs, or would run as the environment has it."""
    keras = sys.modules.get("keras")
    return keras.config.backend() if keras else os.environ.get("KERAS_BACKEND") or "tensorflow"


def check_backend() -> None:
    """Raises UserError if Keras runs on another backend than TensorFlow, or would."""
    if (other := backend()) != "tensorflow":
        raise UserError(
            f"Keras runs on {other}, and bert_tf2 needs it on TensorFlow: set KERAS_BACKEND=tensorflow before Keras is"
            " imported, in the shell or in os.environ"
        )
