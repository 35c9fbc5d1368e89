"""Keras files of this project's models: NAME.keras (the model) and NAME.weights.h5 (its weights only).

A .keras file is a zip archive of config.json, metadata.json and model.weights.h5; the weights are an HDF5 file. The
array of a variable lies under the attributes that lead to it, bert/blocks/transformer_block_3/attention/query/vars/0,
where 0 is its number among the variables of that layer (`_place`). Arrays are read without Keras, one at a time, and
nothing in a file is executed: a class name is only compared with those of the models here. Keras writes the files.
"""

from __future__ import annotations

import contextlib
import errno
import lzma
import math
import os
import re
import shutil
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

import h5py
import numpy as np

from bert_tf2.config import BertConfig
from bert_tf2.support import environment, files, json_text, outputs
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights import checksums, names
from bert_tf2.weights.base import Place, Weights, numpy_dtype
from bert_tf2.weights.labels import TAGGING_TASK, UNKNOWN_TASK, LabelMap, numbered

_MODEL, _WEIGHTS = ".keras", ".weights.h5"
_CONFIG, _METADATA, _STORE = "config.json", "metadata.json", "model.weights.h5"
# What HDF5 writes about an array and its groups.
_MOST_HEADER_BYTES = 4096

_DTYPES = ("float32", "bfloat16", "float16", "float64")
_DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error, lzma.LZMAError)

# The heads of each model, as in `heads`, which is not imported for them: that needs TensorFlow.
_HEADS = {
    "BertModel": (),
    "PretrainingModel": ("masked_lm", "next_sentence"),
    "MaskedLMModel": ("masked_lm",),
    "ClassifierModel": ("labels",),
    "SpanModel": ("span",),
    "TaggingModel": ("labels",),
}
# Keras has no names for variables: they are numbered in the order in which a layer creates them.
_NUMBERS = {
    "word_embeddings": 0,
    "token_type_embeddings": 1,
    "position_embeddings": 2,
    "masked_lm.output_bias": 0,
    "masked_lm.output_weights": 1,
    **dict.fromkeys(("kernel", "gamma", "output_weights"), 0),
    **dict.fromkeys(("bias", "beta", "output_bias"), 1),
}
# Attributes that Keras has under another name.
_LAYERS = (
    (r"\bblocks\.(\d+)", r"blocks.transformer_block_\1"),
    (r"\btransformer_block_0\b", "transformer_block"),
    (r"\bbert\.pooler\b", "bert.layers.dense"),
    (r"^masked_lm\b", "layers.masked_lm_head"),
    (r"^(next_sentence|output_layer)\b", "layers.output_layer"),
)
_GROUPS = ("bert", "embeddings", "blocks", "layers", "vars")
"""The groups with a model's weights; the others have an optimizer's state."""
_OUTPUT_BIAS, _MASKED_LM_BIAS = "layers/output_layer/vars/1", "layers/masked_lm_head/vars/0"


def _place(row: names.Variable) -> str:
    """Returns the path of a variable in an HDF5 file of a model with a head."""
    owner, _, name = row.attribute.rpartition(".")
    number = _NUMBERS.get(row.attribute, _NUMBERS[name])
    for pattern, replacement in _LAYERS:
        owner = re.sub(pattern, replacement, owner)
    return f"{owner.replace('.', '/')}/vars/{number}"


def recognizes_name(path: str) -> bool:
    """Returns whether the name is that of a Keras file."""
    return path.endswith((_MODEL, _WEIGHTS))


def recognizes(path: str) -> bool:
    """Returns whether the path is a file with the name of a Keras file."""
    return recognizes_name(path) and not files.is_directory(path)


class KerasFile(Weights):
    """A .keras or .weights.h5 file of one of this project's models that is open for reading.

    Optimizer state is not in `shapes`. A .weights.h5 file has no configuration, so `config` is None.

    Attributes:
      class_name: the model's class, one of modeling's or heads'; None if a .weights.h5 file does not identify it.
      class_config: what its get_config returned, except for `config`; empty for a .weights.h5 file.
    """

    def __init__(self, path: str):
        """Raises UserError if the file does not exist, is unreadable, damaged, or contains another model."""
        super().__init__(path)
        is_model = path.endswith(_MODEL)
        self.kind = "Keras model file" if is_model else "Keras weights file"
        self.class_name: str | None = None
        self.class_config: dict[str, Any] = {}
        self._verified = is_model  # an archive has a checksum, which unpacking compares
        files.expect_kind(path, "one of Keras' files", "zip" if is_model else "HDF5")
        with self._explained():
            self._store = self._local_store()
            with h5py.File(self._store, "r") as store:
                arrays = _arrays_in(store)
                if not is_model:
                    self.class_name = self._guess_class(store, arrays)
        self._hold(self._named(arrays))

    @contextlib.contextmanager
    def _explained(self, name: str | None = None) -> Iterator[None]:
        try:
            yield
        # h5py has no exception class of its own; it raises the one closest to the HDF5 library's error.
        except (OSError, RuntimeError, ValueError, LookupError, TypeError, EOFError, *_DAMAGED_ZIP) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
                raise  # the temporary folder is at fault, not the file
            what = f"the tensor {name} cannot be read" if name else "cannot be read"
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(
                f"{self.path}: {what}, the file is damaged or incomplete ({reason}); copy it again"
            ) from error

    def _local_store(self) -> str:
        """Returns the path of the weights as a local file."""
        if not self.path.endswith(_MODEL) and not files.is_remote(self.path):
            return self.path
        scratch = tempfile.mkdtemp(prefix="keras-")
        weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        path = os.path.join(scratch, _STORE)
        with open(path, "wb") as copy:
            self._unpack(copy) if self.path.endswith(_MODEL) else _copy(files.open_binary(self.path), copy)
        return path

    def _unpack(self, copy: IO[bytes]) -> None:
        """Reads the configuration, and copies the weights, which verifies their checksum."""
        with files.open_binary(self.path) as stream, zipfile.ZipFile(stream) as archive:
            missing = [name for name in (_CONFIG, _STORE) if name not in archive.namelist()]
            if missing:
                raise UserError(f"{self.path}: lacks {' and '.join(missing)}, so Keras did not write it")
            self._read_config(archive.read(_CONFIG))
            _copy(archive.open(_STORE), copy)

    def _read_config(self, text: bytes) -> None:
        try:
            said = json_text.parse(text.decode("utf-8"), _CONFIG)
        except UserError as error:
            raise ValueError(str(error)) from error
        name, arguments = said.get("class_name"), said.get("config")
        ours = str(said.get("module", "")).startswith("bert_tf2.") and name in _HEADS
        if not ours or not isinstance(arguments, dict) or not isinstance(arguments.get("config"), dict):
            raise UserError(f"{self.path}: holds a {said.get('module')}.{name}, which is not a model of this project")
        self.class_name = name
        self.class_config = {key: value for key, value in arguments.items() if key != "config"}
        try:
            self.config = BertConfig.from_dict(arguments["config"])
        except UserError as error:
            raise UserError(f"{self.path}: {error}") from error

    def _guess_class(self, store: h5py.File, arrays: Mapping[str, Place]) -> str | None:
        """Returns the class that the layers, and the name that Keras gave the model, indicate."""
        if not any(place.startswith("bert/") for place in arrays):
            return "BertModel"
        if _MASKED_LM_BIAS in arrays:
            return "PretrainingModel" if _OUTPUT_BIAS in arrays else "MaskedLMModel"
        said = store["vars"].attrs.get("name") if "vars" in store else None
        name = re.sub(r"_\d+$", "", str(said)).title().replace("_", "")  # "span_model_1" of a SpanModel
        if name in _HEADS:
            return name
        self.remarks.append("Nothing says which task its output layer is for; taken for one of labels.")
        return None

    def _named(self, arrays: Mapping[str, Place]) -> dict[str, Place]:
        """Returns the arrays by the reference's names, and others by their places in the file.

        Raises:
          UserError: they are no model of this project, or not all of the arrays of one.
        """
        heads = _HEADS[self.class_name or "ClassifierModel"]
        root = "bert/" if heads else ""
        blocks = {place.removeprefix(root).split("/")[1] for place in arrays if place.startswith(f"{root}blocks/")}
        rows = [*names.encoder(len(blocks)), *names.of_heads(heads, tied=False)]
        places = {row: _place(row).removeprefix("" if heads else "bert/") for row in rows}
        if not blocks or places[rows[0]] not in arrays:
            held = ", ".join(sorted({place.split("/")[0] for place in arrays})) or "none"
            raise UserError(f"{self.path}: holds no model of this project (in it are {held})")
        optional = [names.POSITIONS, names.OUTPUT_TABLE]  # the configuration says whether there is one
        if self.class_config.get("has_pooler") is False:  # a random one, then
            arrays = {place: array for place, array in arrays.items() if place not in map(_place, names.POOLER)}
            optional += names.POOLER
        missing = [row.reference for row in rows if places[row] not in arrays and row not in optional]
        if missing:
            raise UserError(f"{self.path}: lacks {and_more(missing, 3)}; copy it again")
        named = {row.reference: arrays[places[row]] for row in rows if places[row] in arrays}
        return named | {place: array for place, array in arrays.items() if place not in {*places.values()}}

    def labels(self) -> LabelMap | None:
        """Returns the labels of a tagger, regression or multi-label model, which no shape shows; names are numbered."""
        labels = numbered(self.num_labels or 0)
        if self.class_name == "TaggingModel":
            return LabelMap(TAGGING_TASK, labels, regression=False)
        if self.class_config.get("multi_label"):
            return LabelMap(UNKNOWN_TASK, labels, regression=False, multi_label=True)
        return LabelMap(UNKNOWN_TASK, (), regression=True) if len(labels) == 1 else None

    def _read(self, name: str) -> np.ndarray:
        place = self._places[name]
        if not self._verified:
            checksums.check(self.path)
            self._verified = True
        with self._explained(name), h5py.File(self._store, "r") as store:
            value = store[place.where][()]
            return value.view(numpy_dtype("bfloat16")) if place.dtype == "bfloat16" else value


def _arrays_in(store: h5py.File) -> dict[str, Place]:
    """Returns path -> array of all weights of a model, without those that are only linked to.

    Raises ValueError if one is not an array of numbers, or not all of it is in the file.
    """
    found: dict[str, Place] = {}

    def visit(place: str, item: h5py.Group | h5py.Dataset) -> None:
        if not isinstance(item, h5py.Dataset) or place.split("/")[0] not in _GROUPS:
            return
        # HDF5 does not support bfloat16, so Keras writes this attribute.
        dtype = "bfloat16" if item.attrs.get("dtype") == "bfloat16" else str(item.dtype)
        if dtype not in _DTYPES:
            raise ValueError(f"{place} is of the type {dtype}")
        # For what was never written, HDF5 answers with zeros: silent ones, in a file that a kill left.
        stored = 0 if item.external else item.id.get_storage_size()
        if item.chunks:  # they may be compressed
            parts = math.prod(-(-size // part) for size, part in zip(item.shape, item.chunks, strict=True))
            complete = item.id.get_num_chunks() == parts
        else:
            complete = stored >= item.nbytes
        if not complete:
            raise ValueError(f"{place} should have {item.nbytes} bytes and has {stored}")
        found[place] = Place([*item.shape], dtype, place)

    store.visititems(visit)
    return found


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    with source:
        shutil.copyfileobj(source, target, 2**20)


def write(path: str, model) -> None:
    """Writes a model, or its weights if the path ends in .weights.h5, completely or not at all.

    Keras' `save` would need two more copies of the weights in memory; this uses a folder beside `path` instead.

    Args:
      path: ends in .keras or .weights.h5.
      model: a BertModel or one of heads'.

    Raises:
      UserError: the name has another ending, or the path cannot be written.
    """
    if not recognizes_name(path):
        raise UserError(f"{path}: the name of one of Keras' files ends in {_MODEL} or {_WEIGHTS}")
    # An archive has checksums of its own.
    target = files.complete_or_absent(path) if path.endswith(_MODEL) else checksums.complete_or_absent(path)
    with target as (beside,), _scratch_beside(path) as scratch:
        _check_room(path, scratch, model)
        if path.endswith(_MODEL):
            model.save(os.path.join(scratch, "model"), zipped=False)
            with files.open_binary(beside, "wb") as stream, zipfile.ZipFile(stream, "w") as archive:
                for name in (_METADATA, _CONFIG, _STORE):
                    archive.write(os.path.join(scratch, "model", name), name)
        else:
            model.save_weights(os.path.join(scratch, f"model{_WEIGHTS}"))
            with files.open_binary(beside, "wb") as stream:
                _copy(files.open_binary(os.path.join(scratch, f"model{_WEIGHTS}")), stream)


def _check_room(path: str, scratch: str, model) -> None:
    """Raises UserError or OSError if the disk has no room for the weights twice: HDF5 would crash the process."""
    size = 2 * sum(4 * math.prod(weight.shape) + _MOST_HEADER_BYTES for weight in model.weights)
    environment.check_space(path, size, "the weights, which are written twice,")
    if hasattr(os, "posix_fallocate"):  # it also finds what no free space shows: quotas, the shell's limit
        with tempfile.TemporaryFile(dir=scratch) as room:
            try:
                os.posix_fallocate(room.fileno(), 0, size)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that cannot reserve any
                    raise


@contextlib.contextmanager
def _scratch_beside(path: str) -> Iterator[str]:
    """Yields a temporary folder, on the same disk as `path` if that is local."""
    remote = files.is_remote(path)
    scratch = outputs.temporary_folder("keras-") if remote else outputs.name_beside(f"{path}.scratch")
    try:
        os.makedirs(scratch, exist_ok=True)  # if this process is killed, the next one removes it
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
