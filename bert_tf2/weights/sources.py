"""Opens weights of any kind. `model_folder` reads and compares the files beside them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence

from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights import bundle, huggingface, keras_files, model_garden, names
from bert_tf2.weights.base import Weights

WEIGHTS = re.compile(r".*\.(index|keras|h5|safetensors|bin)|saved_model\.pb|model\.onnx")
"""The names of files that hold weights, or lead to them."""
EXPORT_INFO_FILE = "model_info.json"
"""The description of an exported model, in the folder of its version."""

_KINDS = (
    "a TensorFlow checkpoint (its prefix, its folder or one of its files), a Hugging Face folder (config.json with"
    " model.safetensors or pytorch_model.bin), a SavedModel of a BERT encoder, a .keras file"
)


# Files of other kinds of weights: patterns of their names -> description, with the remedy.
_OTHERS = {
    r"adapter_(config\.json|model\.\w+)": "an adapter (LoRA), which changes other weights; merge them with peft"
    " (merge_and_unload) and save the result (save_pretrained)",
    r"(pytorch_model\.bin|model\.safetensors)\.index\.json": "the index of weights in several files; let transformers"
    " save them in one: BertModel.from_pretrained(FOLDER).save_pretrained(OTHER)",
    r"(pytorch_)?model\.\w+\.(safetensors|bin)": "a variant of the weights; give the name of that file",
    r"\d_(BERT|Transformer)": "the parts of a sentence-transformers model; give the name of that folder",
    r"tf_model\.h5": "weights of transformers for Keras 2; let transformers 4 save them again (from_tf=True)",
    r".*\.h5": "variables that Keras saved without their model; read them with the model's load_weights, and write the"
    " model with model.save(NAME.keras)",
    r"flax_model\.msgpack": "weights of transformers for Flax; let transformers 4 save them again (from_flax=True)",
    r"\d+": "an exported model; give the checkpoint from which it was made, or use it with bert_tf2.exporting.load",
    r"snapshots|models--.+": "the cache of Hugging Face's hub; give the name of a folder in its snapshots",
}


def open_weights(path: str) -> Weights:
    """Opens weights of any kind for reading.

    `path`: the prefix, folder or a file of a TensorFlow 1 checkpoint; a folder in Hugging Face's layout, or its weights
    file; a TensorFlow 2 checkpoint or SavedModel of Model Garden's encoder; a Keras file of this project's models, or a
    folder with one such file. Raises UserError for anything else, and for damaged files.

    If a training saves into the folder and removes its checkpoint meanwhile, the next checkpoint is opened.
    """
    while True:
        before = _newest(path)
        try:
            return _open(path)
        except UserError:
            if _newest(path) in ("", before):
                raise


def _newest(folder: str) -> str:
    """The text that names the newest checkpoint of a training in a folder; "" without a training."""
    with contextlib.suppress(UserError):
        return bundle.read_state(folder)
    return ""


def _open(path: str) -> Weights:
    _check_links(path)
    if path.endswith(keras_files.ENDING) and not files.is_directory(path):
        return keras_files.KerasFile(path)
    if from_huggingface := huggingface.recognizes(path):
        if files.is_directory(path) and (prefixes := bundle.prefixes_in(path)):
            raise UserError(
                f"{path}: holds both a TensorFlow checkpoint and a Hugging Face model; name one file, {prefixes[0]}"
                f" say, or {from_huggingface}"
            )
        return huggingface.HuggingFaceFolder(path)
    if any(files.exists(os.path.join(folder, EXPORT_INFO_FILE)) for folder in (path, os.path.dirname(path))):
        raise UserError(
            f"{path}: is an exported model, which is not read as weights; give the checkpoint from which it was made,"
            " or use it with bert_tf2.exporting.load or a server"
        )
    if folder := model_garden.saved_model_folder(path):
        return model_garden.ObjectCheckpoint(bundle.Checkpoint(os.path.join(folder, "variables", "variables")), folder)
    in_keras = [os.path.join(path, name) for name in files.list_directory(path) if name.endswith(keras_files.ENDING)]
    if len(in_keras) == 1 and not bundle.prefixes_in(path):
        return keras_files.KerasFile(in_keras[0])
    try:
        prefix = bundle.find_prefix(path)
    except UserError as error:
        if in_keras:
            raise UserError(f"{path}: holds several files of Keras, name one of them: {', '.join(in_keras)}") from error
        if other := _of_another_kind(path):
            raise UserError(f"{path}: {other}") from error
        if not files.exists(path):
            raise UserError(
                f"{error}; a model at Hugging Face's hub has a name like google-bert/bert-base-uncased"
            ) from error
        if not files.is_directory(path):
            files.expect_kind(path, f"weights; these can be read: {_KINDS}")
        raise UserError(f"{error}; these can be read: {_KINDS}") from error
    opened = bundle.Checkpoint(prefix)
    return model_garden.ObjectCheckpoint(opened) if opened.is_object_based else opened


def _of_another_kind(path: str) -> str:
    """Returns a phrase about a folder or file of weights that cannot be read, with the remedy; "" for other paths."""
    if not files.is_directory(path):
        name = os.path.basename(path) if files.exists(path) else ""
        others = {**_OTHERS, "checkpoint": "the name of a training's newest checkpoint; give the name of its folder"}
        return next((f"holds {what}" for kind, what in others.items() if re.fullmatch(kind, name)), "")
    present = [name.strip("/") for name in files.list_directory(path)]
    found = (f"holds {name}, {what}" for kind, what in _OTHERS.items() for name in present if re.fullmatch(kind, name))
    return next(found, "")


def _check_links(path: str) -> None:
    """Raises UserError if a file of local weights is a pipe, or a link to a missing file."""
    if not files.is_remote(path):
        inside = [name for name in files.list_directory(path) if WEIGHTS.fullmatch(name) or name == "checkpoint"]
        for name in inside or [""]:
            files.companion(*(os.path.split(path) if not name else (path, name)))


def check_fit(source: Weights, wanted: Mapping[str, Sequence[int]]) -> None:
    """Raises UserError if weights lack a wanted variable of the encoder, or have a wanted variable in another shape."""
    names.check_encoder(source.path, source.shapes)
    problems = [*names.misfits(wanted, source.shapes, names.is_encoder)]
    refuse(source, problems, "Is it a BERT of this configuration, and of this task?")


def refuse(source: Weights, problems: Sequence[str], advice: str) -> None:
    if problems:
        raise UserError(f"{source.path}: does not fit the model: {and_more(problems, 3, '; ')}. {advice}")
