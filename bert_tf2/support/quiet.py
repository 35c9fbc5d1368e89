"""Imports TensorFlow without its messages about devices."""

from __future__ import annotations

import os
import sys
import tempfile


def load_tensorflow():
    """Imports TensorFlow and returns it, without its messages on standard error about missing devices.

    Set TF_CPP_MIN_LOG_LEVEL=0 to see them; if the import fails, they are always shown.

    Raises:
      UserError: see free_memory.check_tensorflow_starts.
    """
    if "tensorflow" not in sys.modules:
        from bert_tf2.support import free_memory  # not earlier: a script handles signals before it imports more

        free_memory.check_tensorflow_starts()
    # When a worker ends, TensorFlow's code tells it in several errors on each of the others, besides the exception.
    level = "3" if os.environ.get("TF_CONFIG") else "2"
    if "tensorflow" in sys.modules or os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", level) == "0":
        import tensorflow as tf

        return tf
    sys.stderr.flush()
    with tempfile.TemporaryFile() as chatter:
        terminal = os.dup(2)
        os.dup2(chatter.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()
            return tf
        except BaseException:
            chatter.seek(0)
            os.write(terminal, chatter.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
