"""Weights by their name at Hugging Face's hub, ORGANIZATION/NAME or ORGANIZATION/NAME@REVISION.

The package huggingface_hub fetches the weights into its cache, with its own settings in the environment: HF_TOKEN,
HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT. `resolution.resolve` fetches the weights that settings name.
"""

from __future__ import annotations

import difflib
import fnmatch
import glob
import os
import re

from bert_tf2.support.errors import UserError

_NAME = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_BESIDE = ["*.json", "vocab.txt"]
# The patterns of files of weights; the first that a model has is fetched.
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "*.ckpt*")
# ORGANIZATION/NAME looks like a path if a folder here, or a folder with one of these names, differs by a typing error.
_USUAL_FOLDERS = (
    *("checkpoint", "checkpoints", "ckpt", "data", "experiments", "export", "model", "models", "out", "output"),
    *("outputs", "pretraining_output", "result", "results", "runs", "saved_models", "tmp", "trained", "weights"),
)
_LIKE_A_FILE = re.compile(r"(bert_)?model\.ckpt.*|.*\.(ckpt|index|keras|h5|bin|safetensors|pb|json|txt|pt|tar|gz)")
_LIKE = 0.8  # of difflib: one letter in five may differ


def fetched(path: str) -> str:
    """Returns the folder of weights, given their name, after fetching weights that the cache lacks.

    Other paths are returned unchanged, except that archives are unpacked.

    A path is a name if neither the path nor its folder exists, and if the folder does not look like a local folder with
    a typing error. A path with a revision is a name even if it looks so.
    """
    if path.endswith(".zip") and not os.path.isdir(path):
        from bert_tf2.support import archives  # late: --help needs no network

        return archives.unpacked(path)
    found = _NAME.fullmatch(path)
    if found is None or os.path.exists(path) or os.path.exists(os.path.dirname(path)):
        return path
    where = f"{path}: there is no such file or folder"
    if not found["revision"] and (like := _local_folder(path)):
        raise UserError(f"{where} ({like}); for a model of this name at Hugging Face's hub, give {path}@main")
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError(f"{where}; to fetch it by its name, `pip install huggingface_hub`") from error
    for pattern in _WEIGHTS:
        try:
            folder = huggingface_hub.snapshot_download(
                found["repo"], revision=found["revision"], allow_patterns=[*_BESIDE, pattern]
            )
        except Exception as error:  # an error of the network, from any library, or an unknown model or revision
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:150]
            advice = f"({reason}); check the name, or log in (`hf auth login`)"
            raise UserError(f"{where}, and it cannot be fetched from Hugging Face's hub {advice}") from error
        if any(fnmatch.fnmatch(name, kind) for name in os.listdir(folder) for kind in _WEIGHTS):
            return folder
    raise UserError(f"{path}: has no weights that can be read ({', '.join(_WEIGHTS)}) at Hugging Face's hub")


def _local_folder(path: str) -> str:
    """The reason why a path looks like a local path with a typing error; "" if it does not."""
    folder, name = path.split("/")
    if near := difflib.get_close_matches(folder, [there.rstrip("/") for there in glob.glob("*/")], 1, _LIKE):
        return f"there is the folder {near[0]}"
    if difflib.get_close_matches(folder.lower(), _USUAL_FOLDERS, 1, _LIKE) or _LIKE_A_FILE.fullmatch(name):
        return f"there is no folder {folder} either"
    return ""
