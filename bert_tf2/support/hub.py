"""Weights by their name at Hugging Face's hub, ORGANIZATION/NAME or ORGANIZATION/NAME@REVISION, and Google's archives.

The package huggingface_hub fetches them into its cache, with its own settings in the environment: HF_TOKEN, HF_HOME,
HF_HUB_OFFLINE, HF_ENDPOINT.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import pathlib
import re

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
        from huggingface_hub import errors
    except ImportError as error:
        raise UserError(f"{where}; to fetch it by its name, `pip install huggingface_hub`") from error
    try:
        for pattern in _WEIGHTS:
            folder = huggingface_hub.snapshot_download(
                found["repo"], revision=found["revision"], allow_patterns=[*_BESIDE, pattern]
            )
            if any(fnmatch.fnmatch(name, kind) for name in os.listdir(folder) for kind in _WEIGHTS):
                return folder
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise UserError(
            f"{where}, and Hugging Face's hub shows no model of that name; check it, or log in (`hf auth login`)"
        ) from error
    except Exception as error:  # of the network, by whatever library
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:150]
        raise UserError(f"{where}, and it cannot be fetched from Hugging Face's hub ({reason}); try again") from error
    raise UserError(f"{path}: has no weights at Hugging Face's hub that can be read: none of {_WEIGHTS}")


def _unpacked(path: str) -> str:
    """The folder with the weights of a .zip file, or of one at an address, unpacked in the cache of Keras."""
    from bert_tf2.support.quiet import load_tensorflow

    load_tensorflow()
    import keras

    address = path if re.match(r"https?://", path) else pathlib.Path(path).absolute().as_uri()
    state = os.stat(path)[6:9] if os.path.exists(path) else ()  # the size and times: another file is another archive
    own = hashlib.sha256(f"{address} {state}".encode()).hexdigest()[:16]
    try:
        folder = keras.utils.get_file(origin=address, extract=True, cache_subdir=f"bert_tf2/{own}")
    except Exception as error:  # of the network, or a damaged archive
        raise UserError(f"{path}: cannot be fetched and unpacked ({error})".replace("\n", " ")) from error
    for place, _, names in os.walk(folder):
        if any(name.endswith(".index") for name in names):
            return place
    raise UserError(f"{path}: no checkpoint is in this archive")
