"""Weights by their name at Hugging Face's hub, ORGANIZATION/NAME or ORGANIZATION/NAME@REVISION, and Google's archives.

The package huggingface_hub fetches them into its cache, with its own settings in the environment: HF_TOKEN, HF_HOME,
HF_HUB_OFFLINE, HF_ENDPOINT.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import pathlib
import re
import sys

from bert_tf2.support.errors import UserError

_NAME = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_BESIDE = ["*.json", "vocab.txt"]
# The first of these that a model has.
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "*.ckpt*")


def fetched(path: str) -> str:
    """The folder of weights that are given by their name, fetched unless the cache has them; other paths as they are.

    A name is a path that is not there, and neither is the folder that it would be in.
    """
    if path.endswith(".zip"):
        return _unpacked(path)
    found = _NAME.fullmatch(path)
    if found is None or os.path.exists(path) or os.path.exists(os.path.dirname(path)):
        return path
    where = f"{path}: there is no such file or folder"
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError(f"{where}; to fetch it by its name, `pip install huggingface_hub`") from error
    try:
        for pattern in _WEIGHTS:
            folder = huggingface_hub.snapshot_download(
                found["repo"], revision=found["revision"], allow_patterns=[*_BESIDE, pattern]
            )
            if any(fnmatch.fnmatch(name, kind) for name in os.listdir(folder) for kind in _WEIGHTS):
                return folder
    except Exception as error:  # of the network, by whatever library, or there is no such model or revision
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:150]
        advice = f"({reason}); check the name, or log in (`hf auth login`)"
        raise UserError(f"{where}, and it cannot be fetched from Hugging Face's hub {advice}") from error
    raise UserError(f"{path}: has no weights at Hugging Face's hub that can be read: none of {_WEIGHTS}")


def _unpacked(path: str) -> str:
    """The folder with the weights of a .zip file, or of one at an address, unpacked in the cache of Keras."""
    address = state = path
    if not re.match(r"https?://", path):
        if not os.path.isfile(path):
            raise UserError(f"{path}: no such file")
        address, found = pathlib.Path(path).absolute().as_uri(), os.stat(path)
        state = f"{address} {found.st_size} {found.st_mtime_ns}"  # of another file of this name, another copy
    import hashlib

    from bert_tf2.support.process import load_tensorflow

    load_tensorflow()
    import keras

    place = f"bert_tf2/{hashlib.sha256(state.encode()).hexdigest()[:16]}"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # where Keras shows the progress
            folder = keras.utils.get_file(origin=address, extract=True, cache_subdir=place)
    except Exception as error:  # of the network, or a damaged archive
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path}: cannot be fetched and unpacked ({reason}); if a part of it is in ~/.keras/{place}, remove that"
        ) from error
    for place, _, names in os.walk(folder):
        if any(name.endswith(".index") for name in names):
            return place
    raise UserError(f"{path}: no checkpoint is in this archive")
