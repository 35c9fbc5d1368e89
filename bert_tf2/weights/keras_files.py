"""Keras files of this project's models: NAME.keras (the model) and NAME.weights.h5 (its weights only).

A .keras file is a zip archive of config.json, metadata.json and model.weights.h5; the weights are an HDF5 file. Keras
loads them into a model that is built with the sizes of the arrays in the file, and `names.tf1_variables` maps its
variables to names. Nothing in a file is executed: a class name is only compared with those of this project's models.

This module first compares the sizes that a file states with what it holds: damaged ones would exhaust the memory. Keras
refuses what lies in other files.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import lzma
import math
import os
import re
import shutil
import tempfile
import warnings
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple

import h5py
import numpy as np

from bert_tf2.config import BertConfig
from bert_tf2.support import environment, files, json_text, outputs
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.quiet import load_tensorflow
from bert_tf2.weights import checksums, names
from bert_tf2.weights.base import Weights, as_float32
from bert_tf2.weights.labels import TAGGING_TASK, LabelMap

_MODEL, _WEIGHTS = ".keras", ".weights.h5"
_CONFIG, _METADATA, _STORE = "config.json", "metadata.json", "model.weights.h5"
_MOST_CONFIG_BYTES = 2**20
# Of compressed arrays; weights are barely compressible.
_MOST_UNPACKED = 100
# What HDF5 writes about an array and its groups.
_MOST_HEADER_BYTES = 4096

_DTYPES = ("float32", "bfloat16", "float16", "float64")
_DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error, lzma.LZMAError)

# Checked before Keras loads a file: the groups with a model's weights, and the arrays that determine its sizes.
_GROUPS = ("bert", "embeddings", "blocks", "layers", "vars")
_OUTPUT_BIAS = "layers/output_layer/vars/1"
_MASKED_LM_BIAS, _MASKED_LM_TABLE = "layers/masked_lm_head/vars/0", "layers/masked_lm_head/vars/1"
# Not the value of any weight: variables that still have it were not in the file.
_NOT_LOADED = float(np.finfo(np.float32).min)


def recognizes_name(path: str) -> bool:
    """Returns whether the name is that of a Keras file."""
    return path.endswith((_MODEL, _WEIGHTS))


def recognizes(path: str) -> bool:
    """Returns whether the path is a file with the name of a Keras file."""
    return recognizes_name(path) and not files.is_directory(path)


class _Array(NamedTuple):
    shape: tuple[int, ...]
    dtype: str


class KerasFile(Weights):
    """A .keras or .weights.h5 file of one of this project's models that is open for reading.

    Opening it determines the sizes; the first `get` loads all weights into memory. Optimizer state is not in `shapes`.
    A .weights.h5 file has no configuration, so `config` is None.

    Attributes:
      class_name: the model's class, one of modeling's or heads'; None if a .weights.h5 file does not identify it.
      class_config: what its get_config returned, except for `config`; empty for a .weights.h5 file.
    """

    def __init__(self, path: str):
        """Raises UserError if the file does not exist, is unreadable, damaged, or contains another model."""
        super().__init__(path)
        self.kind = "Keras model file" if path.endswith(_MODEL) else "Keras weights file"
        self.class_name: str | None = None
        self.class_config: dict[str, Any] = {}
        files.expect_kind(path, "one of Keras' files", "zip" if path.endswith(_MODEL) else "HDF5")
        with self._explained():
            self._store = self._local_store()
            with h5py.File(self._store, "r") as store:
                arrays = _arrays_in(store)
                if not path.endswith(_MODEL):
                    self.class_name = self._guess_class(store, arrays)
            self._sizes, num_labels = self._measure(arrays)
            unused = names.POOLER if self.class_config.get("has_pooler") is False else ()
            rows = [r for r in names.of_model(self._model_class, self._sizes) if r not in unused]
            self.shapes = {row.reference: names.shape(row, self._sizes, num_labels) for row in rows}
            dtypes = sorted({array.dtype for array in arrays.values()})
            self.dtypes = dict.fromkeys(self.shapes, "/".join(dtypes))  # Keras has one dtype per model
            if len(arrays) < len(rows):
                self._variables  # noqa: B018, raises with the missing names
        self.remarks += self.remarks_on_dtypes()

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
        """Returns the path of the weights as a local file, with a name that Keras accepts."""
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
            members = {member.filename: member for member in archive.infolist()}
            missing = [name for name in (_CONFIG, _STORE) if name not in members]
            if missing:
                raise UserError(f"{self.path}: lacks {' and '.join(missing)}, so Keras did not write it")
            with archive.open(_CONFIG) as part:
                self._read_config(part.read(_MOST_CONFIG_BYTES))
            _copy(archive.open(_STORE), copy)

    def _read_config(self, text: bytes) -> None:
        try:
            said = json_text.parse(text.decode("utf-8"), _CONFIG)
        except UserError as error:
            raise ValueError(str(error)) from error
        name, arguments = said.get("class_name"), said.get("config")
        ours = str(said.get("module", "")).startswith("bert_tf2.") and name in _model_classes()
        if not ours or not isinstance(arguments, dict) or not isinstance(arguments.get("config"), dict):
            raise UserError(f"{self.path}: holds a {said.get('module')}.{name}, which is not a model of this project")
        self.class_name = name
        self.class_config = {key: value for key, value in arguments.items() if key != "config"}
        try:
            self.config = BertConfig.from_dict(arguments["config"])
        except UserError as error:
            raise UserError(f"{self.path}: {error}") from error

    def _guess_class(self, store: h5py.File, arrays: Mapping[str, _Array]) -> str | None:
        """Returns the class that the layers, and the name that Keras gave the model, indicate."""
        if not any(place.startswith("bert/") for place in arrays):
            return "BertModel"
        if _MASKED_LM_BIAS in arrays:
            return "PretrainingModel" if _OUTPUT_BIAS in arrays else "MaskedLMModel"
        said = store["vars"].attrs.get("name") if "vars" in store else None
        name = re.sub(r"_\d+$", "", str(said)).title().replace("_", "")  # "span_model_1" of a SpanModel
        if name in _model_classes():
            return name
        self.remarks.append("Nothing says which task its output layer is for; taken for one of labels.")
        return None

    def _measure(self, arrays: Mapping[str, _Array]) -> tuple[BertConfig, int | None]:
        """Infers the sizes of the model, and the number of its labels, from the shapes of its arrays."""
        root = "" if self.class_name == "BertModel" else "bert/"
        blocks = {place.removeprefix(root).split("/")[1] for place in arrays if place.startswith(f"{root}blocks/")}
        try:
            words, types = (arrays[f"{root}embeddings/vars/{number}"].shape for number in range(2))
            positions = arrays.get(f"{root}embeddings/vars/2")
            inner = next(array.shape for place, array in arrays.items() if place.endswith("/intermediate/vars/1"))
            sizes = BertConfig(
                vocab_size=words[0],
                hidden_size=words[1],
                num_hidden_layers=len(blocks),
                num_attention_heads=1,  # no size depends on it
                intermediate_size=inner[0],
                max_position_embeddings=positions.shape[0] if positions else 1,
                type_vocab_size=types[0],
                # Not what it says, but which variables there are.
                position_embedding_type="learned" if positions else "none",
                tie_word_embeddings=_MASKED_LM_TABLE not in arrays,
            )
        except (LookupError, StopIteration, UserError) as error:
            held = ", ".join(sorted({place.split("/")[0] for place in arrays})) or "none"
            raise UserError(f"{self.path}: holds no model of this project (in it are {held})") from error
        if self.config and self.config.num_hidden_layers != len(blocks):
            raise ValueError(f"it says {self.config.num_hidden_layers} layers and holds {len(blocks)}")
        if root and _OUTPUT_BIAS not in arrays and self.class_name != "MaskedLMModel":
            raise UserError(f"{self.path}: lacks the output layer; copy it again")
        return sizes, arrays[_OUTPUT_BIAS].shape[0] if root and _OUTPUT_BIAS in arrays else None

    @functools.cached_property
    def _variables(self) -> dict[str, Any]:
        """Reference name -> variable of a model into which Keras has loaded the weights."""
        checksums.check(self.path)
        with load_tensorflow().device("CPU"):
            labels = [self.num_labels] if self._model_class.labels_of else []
            model = self._model_class(self._sizes, *labels, dtype="float32")
            variables = names.tf1_variables(model)
            for variable in variables.values():
                variable.assign(np.broadcast_to(np.float32(_NOT_LOADED), variable.shape))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Keras warns about missing weights
                model.load_weights(self._store, skip_mismatch=True)
        missing = [name for name, variable in variables.items() if (variable.numpy() == _NOT_LOADED).all()]
        if missing:
            raise UserError(f"{self.path}: lacks {and_more(missing, 3)}, or has them in another shape; copy it again")
        return variables

    @property
    def _model_class(self):
        return _model_classes()[self.class_name or "ClassifierModel"]

    def labels(self) -> LabelMap | None:
        """Returns the labels of a tagger, regression or multi-label model, which no shape shows; names are numbered."""
        numbered = tuple(f"LABEL_{index}" for index in range(self.num_labels or 0))
        if self._model_class.labels_of == "tokens":
            return LabelMap(TAGGING_TASK, numbered, regression=False)
        if self.class_config.get("multi_label"):
            return LabelMap("multi_label", numbered, regression=False, multi_label=True)
        return LabelMap("regression", (), regression=True) if len(numbered) == 1 else None

    def get(self, name: str) -> np.ndarray:
        """Returns one variable. Raises UserError if it cannot be read.

        A .keras file has a checksum, which is verified on opening; the one beside a .weights.h5 file, if there is one,
        when the first variable is read.
        """
        with self._explained(name):
            return as_float32(self._variables[name].numpy())


@functools.cache
def _model_classes() -> dict[str, type]:
    """Returns name -> class of all of this project's models."""
    load_tensorflow()
    from bert_tf2 import heads, modeling

    return {made.__name__: made for made in (modeling.BertModel, *heads.MODELS)}


def _arrays_in(store: h5py.File) -> dict[str, _Array]:
    """Returns path -> array of all weights of a model, without those that are only linked to.

    Raises ValueError if one is not an array of numbers, or the file contains less data than it states.
    """
    found: dict[str, _Array] = {}

    def visit(place: str, item: h5py.Group | h5py.Dataset) -> None:
        if not isinstance(item, h5py.Dataset) or place.split("/")[0] not in _GROUPS:
            return
        # HDF5 does not support bfloat16, so Keras writes this attribute.
        dtype = "bfloat16" if item.attrs.get("dtype") == "bfloat16" else str(item.dtype)
        if dtype not in _DTYPES:
            raise ValueError(f"{place} is of the type {dtype}")
        stored = item.id.get_storage_size()
        if item.nbytes > stored * (_MOST_UNPACKED if item.chunks else 1):
            raise ValueError(f"{place} should have {item.nbytes} bytes and has {stored}")
        found[place] = _Array(item.shape, dtype)

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
    if files.is_remote(path):
        with tempfile.TemporaryDirectory() as scratch:
            yield scratch
        return
    scratch = outputs.name_beside(f"{path}.scratch")  # if this process is killed, the next one removes it
    try:
        os.makedirs(scratch, exist_ok=True)
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
