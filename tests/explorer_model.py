"""The small model that the tests of the explorer show, and a server with it."""

from __future__ import annotations

import base64
import contextlib
import pathlib
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from command_lines import ROOT

VOCAB_FILE = ROOT / "bert_tf2" / "demo" / "vocab.txt"
SIZES = {"vocab_size": 888, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 48}
"""Of the model. It has 2 blocks with 2 heads each."""


def save(folder: pathlib.Path, model) -> str:
    """Writes a checkpoint of a model with its configuration and the vocabulary; returns the folder."""
    from bert_tf2.weights import checkpoint

    folder.mkdir(exist_ok=True)
    checkpoint.save(str(folder / "model.ckpt-7"), checkpoint.tf1_variables(model), 7)
    (folder / "bert_config.json").write_text(model.config.to_json_string())
    shutil.copy(VOCAB_FILE, folder / "vocab.txt")
    return str(folder)


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """The array that `model.pack` packed, float32."""
    return np.frombuffer(base64.b64decode(packed["float32"]), "<f4").reshape(packed["shape"])


@contextlib.contextmanager
def serving(explorer) -> Iterator[str]:
    """The address of a server with an Explorer, http://127.0.0.1:PORT."""
    from bert_tf2.explorer import server

    with server.listen(0) as listening:
        served = server.serve(explorer, listening)
        thread = threading.Thread(target=served.serve_forever, daemon=True)
        thread.start()
        yield f"http://{server.HOST}:{listening.getsockname()[1]}"
        served.shutdown()
        thread.join()
