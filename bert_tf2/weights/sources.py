"""Opens weights of any kind: detects the kind of a path and chooses its reader."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from typing import TypeVar

from bert_tf2.config import BertConfig
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.weights import bundle, huggingface, keras_files, metadata, model_garden
from bert_tf2.weights.base import Weights
from bert_tf2.weights.labels import LabelMap
from bert_tf2.weights.metadata import load_label_map

Model = TypeVar("Model")

EXPORT_INFO_FILE = "model_info.json"
"""The description of an exported model, in the folder of its version."""

_KINDS = (
    "a TensorFlow checkpoint (its prefix, its folder or one of its files), a Hugging Face folder (config.json with"
    " model.safetensors or pytorch_model.bin), a SavedModel of a BERT encoder, a .keras file"
)


# Files of other kinds of weights, by patterns of names in a folder: what they are, and the remedy.
_OTHERS = (
    (r"adapter_(config\.json|model\.\w+)", "an adapter (LoRA), which changes other weights", "merge them with peft"
     " (merge_and_unload) and save the result (save_pretrained)"),
    (r"(pytorch_model\.bin|model\.safetensors)\.index\.json", "the index of weights in several files",
     "let transformers save them in one: BertModel.from_pretrained(FOLDER).save_pretrained(OTHER)"),
    (r"(pytorch_)?model\.\w+\.(safetensors|bin)", "a variant of the weights", "give the name of that file"),
    (r"\d_(BERT|Transformer)", "the parts of a sentence-transformers model", "give the name of that folder"),
    (r"tf_model\.h5", "weights of transformers for Keras 2", "let transformers 4 save them again:"
     " BertModel.from_pretrained(FOLDER, from_tf=True).save_pretrained(OTHER)"),
    (r"flax_model\.msgpack", "weights of transformers for Flax", "let transformers 4 save them again:"
     " BertModel.from_pretrained(FOLDER, from_flax=True).save_pretrained(OTHER)"),
    (r"\d+", "a version of an exported model", "give the checkpoint that it was made from, or use it with"
     " bert_tf2.exporting.load"),
    (r"snapshots|models--.+", "the cache of Hugging Face's hub", "give the name of a folder in its snapshots"),
)  # fmt: skip


def _of_another_kind(folder: str) -> str:
    """Returns what a folder holds in place of weights that can be read, with the remedy; "" if that is not known."""
    present = [name.strip("/") for name in files.list_directory(folder)]
    for pattern, what, remedy in _OTHERS:
        if found := [name for name in present if re.fullmatch(pattern, name)]:
            return f"holds {found[0]}, {what}; {remedy}"
    return ""


def open_weights(path: str) -> Weights:
    """Opens weights of any kind for reading.

    `path`: the prefix, folder or a file of a TensorFlow 1 checkpoint; a folder in Hugging Face's layout, or its weights
    file; a TensorFlow 2 checkpoint or SavedModel of Model Garden's encoder; a Keras file of this project's models, or a
    folder with one of them.
    """
    if keras_files.recognizes(path):
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
            f"{path}: is an exported model, which is not read as weights; give the checkpoint that it was made from, or"
            " use it with bert_tf2.exporting.load or a server"
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
            files.expect_kind(path, f"weights; what can be read is {_KINDS}")
        raise UserError(f"{error}; what can be read is {_KINDS}") from error
    opened = bundle.Checkpoint(prefix)
    return model_garden.ObjectCheckpoint(opened) if opened.is_object_based else opened


def label_map_of(source: Weights) -> LabelMap | None:
    """The meaning of a classifier's or tagger's outputs, from label_map.json or else the weights; None if not known."""
    return load_label_map(source.folder) or source.labels()


def despite_saving(path: str, read: Callable[[], Model]) -> Model:
    """`read` of weights in a folder, again if a training saves there meanwhile and deletes the checkpoint it reads."""
    state = os.path.join(path, "checkpoint")

    def newest() -> str | None:
        return files.read_text(state) if files.is_directory(path) and files.exists(state) else None

    while True:
        before = newest()
        try:
            return read()
        except UserError:
            if newest() == before:
                raise


def find_config(source: Weights, bert_config_file: str | os.PathLike[str] | None) -> BertConfig:
    """The configuration of weights; raises UserError as `load`."""
    if bert_config_file is not None:
        return BertConfig.from_json_file(os.fspath(bert_config_file))
    if source.config is not None:
        return source.config
    if found := metadata.model_files(source.path).get("bert_config_file"):
        return BertConfig.from_json_file(found)
    raise UserError(
        f"{source.path}: no configuration is found beside the weights ({metadata.CONFIG_FILE} or config.json); give"
        " its path as bert_config_file"
    )


def find_tokenizer(
    source: Weights, config: BertConfig, vocab_file: str | os.PathLike[str] | None, do_lower_case: bool | None
) -> FullTokenizer:
    """The tokenizer of weights; raises UserError as `load`."""
    path = source.vocabulary_file() if vocab_file is None else os.fspath(vocab_file)
    with tempfile.TemporaryDirectory() as folder:
        if path is None:  # it is in another file, for example Hugging Face's tokenizer.json
            entries = source.vocabulary()
            if entries is None:
                raise UserError(
                    f"{source.path}: no vocabulary is found beside the weights (vocab.txt); give its path as vocab_file"
                )
            path = os.path.join(folder, "vocab.txt")
            files.write_text(path, "".join(f"{entry}\n" for entry in entries))
        if do_lower_case is None:
            do_lower_case, _ = metadata.find_case(path, source)
        return metadata.load_tokenizer(path, do_lower_case, config.vocab_size, source)
