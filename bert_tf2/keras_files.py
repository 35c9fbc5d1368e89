"""Keras' own files of this project's models: NAME.keras (the model) and NAME.weights.h5 (its weights only).

A .keras file is a zip of config.json, metadata.json and model.weights.h5. The weights are an HDF5 file whose groups
follow the attributes of the model, down to `vars/0`, `vars/1`, ... in the order in which a layer made its variables:

    bert/embeddings/vars/0                                       bert.embeddings.word_embeddings
    bert/blocks/transformer_block_3/attention/query/vars/1       bert.blocks.3.attention.query.bias
    bert/layers/dense/vars/0                                     bert.pooler.kernel
    layers/output_layer/vars/0                                   output_layer.output_weights

Reading needs neither Keras nor TensorFlow, and nothing that a file says is executed: a class is only compared with the
names of the five that there are. `keras.models.load_model` reads the same files once `bert_tf2.heads` is imported.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import math
import os
import re
import shutil
import tempfile
import types
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import h5py
import ml_dtypes
import numpy as np

from bert_tf2 import classification, environment, files, names, outputs
from bert_tf2.config import BertConfig
from bert_tf2.errors import UserError
from bert_tf2.weights import Weights, as_float32

_MODEL, _WEIGHTS = ".keras", ".weights.h5"
_CONFIG, _METADATA, _STORE = "config.json", "metadata.json", "model.weights.h5"
_MOST_CONFIG_BYTES = 2**20
# Weights hardly shrink; what grows more than this when it is unpacked is there to fill a disk.
_MOST_UNPACKED = 100

_DTYPES = [np.dtype(dtype) for dtype in (np.float32, ml_dtypes.bfloat16, np.float16, np.float64)]
_DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error)

# What each class has on top of the encoder.
_HEADS = {
    "BertModel": (),
    "PretrainingModel": (*names.MASKED_LM, *names.NEXT_SENTENCE),
    "ClassifierModel": names.LABELS,
    "SpanModel": names.SPAN,
    "TaggingModel": names.LABELS,
}

# How an attribute is called in the file where it is called otherwise.
_GROUPS = (
    (r"^(bert/)?blocks/0/", r"\1blocks/transformer_block/"),
    (r"^(bert/)?blocks/(\d+)/", r"\1blocks/transformer_block_\2/"),
    (r"^(bert/)?pooler/", r"\1layers/dense/"),
    (r"^masked_lm/", "layers/masked_lm_head/"),
    (r"^(next_sentence|output_layer)/", "layers/output_layer/"),
)
# The variables of a layer in the order in which it makes them.
_ORDERS = (
    ("word_embeddings", "token_type_embeddings", "position_embeddings"),
    ("kernel", "bias"),
    ("gamma", "beta"),
    ("output_weights", "output_bias"),
)


def recognises_name(path: str) -> bool:
    """Whether a file of this name is, or would be, one of Keras' files."""
    return path.endswith((_MODEL, _WEIGHTS))


def recognises(path: str) -> bool:
    """Whether this is a file, and one of Keras' by its name."""
    return recognises_name(path) and not files.is_directory(path)


class KerasFile(Weights):
    """A .keras or .weights.h5 file of one of this project's models that is open for reading.

    Optimizer state is not in `shapes`. A .weights.h5 has no configuration, so `config` is None.

    Attributes:
      class_name: the model's class, one of modeling's or heads'; None where a .weights.h5 does not tell.
      class_config: the arguments of its head (num_labels, regression) as far as the file holds them.
    """

    def __init__(self, path: str):
        """Raises UserError if there is no such file, it cannot be read, is damaged, or is of another model."""
        super().__init__(path)
        self.class_name: str | None = None
        self.class_config: dict[str, Any] = {}
        files.expect_kind(path, "one of Keras' files", "zip" if path.endswith(_MODEL) else "HDF5")
        with self._explained():
            if path.endswith(_MODEL):
                self.kind = "Keras model file"
                self._store = h5py.File(self._unpack(), "r")
            else:
                self.kind = "Keras weights file"
                self._store = h5py.File(_copy(files.open_binary(path)) if files.is_remote(path) else path, "r")
                self.class_name = self._guess_class()
            self._datasets = self._find()
            self.shapes = {name: [*dataset.shape] for name, dataset in self._datasets.items()}
            self.dtypes = {name: str(_dtype(dataset)) for name, dataset in self._datasets.items()}
        if others := sorted({*self.dtypes.values()} - {"float32"}):
            self.remarks.append(f"Its weights are {', '.join(others)}; they are read as float32.")

    @contextlib.contextmanager
    def _explained(self, name: str | None = None) -> Iterator[None]:
        try:
            yield
        # h5py has no exception of its own; it raises whatever is nearest to what the HDF5 library said.
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, *_DAMAGED_ZIP) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
                raise  # it is not the file's fault, but the temporary folder's
            what = f"the tensor {name} cannot be read" if name else "cannot be read"
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(
                f"{self.path}: {what}, the file is damaged or incomplete ({reason}); copy it again"
            ) from error

    def _unpack(self) -> IO[bytes]:
        """Reads the configuration, and gives the weights as a nameless file, whose checksum has been compared."""
        with files.open_binary(self.path) as stream, zipfile.ZipFile(stream) as archive:
            members = {member.filename: member for member in archive.infolist()}
            missing = [name for name in (_CONFIG, _STORE) if name not in members]
            if missing:
                raise UserError(f"{self.path}: lacks {' and '.join(missing)}, so Keras did not write it")
            if not self._is_safe(members[_CONFIG], members[_STORE]):
                raise UserError(f"{self.path}: its parts are not such as Keras writes; it is not safe to unpack")
            with archive.open(_CONFIG) as part:
                self._read_config(part.read())
            return _copy(archive.open(_STORE))

    def _is_safe(self, config: zipfile.ZipInfo, store: zipfile.ZipInfo) -> bool:
        """Whether they are as large as they may be, and packed in one of the usual ways."""
        return (
            config.file_size <= _MOST_CONFIG_BYTES
            and store.file_size <= _MOST_UNPACKED * files.size(self.path)
            and {config.compress_type, store.compress_type} <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
        )

    def _read_config(self, text: bytes) -> None:
        try:
            said = files.parse_json(text.decode("utf-8"), _CONFIG)
        except UserError as error:
            raise ValueError(str(error)) from error
        name, arguments = said.get("class_name"), said.get("config")
        ours = str(said.get("module", "")).startswith("bert_tf2.") and name in _HEADS
        if not ours or not isinstance(arguments, dict) or not isinstance(arguments.get("config"), dict):
            raise UserError(f"{self.path}: holds a {said.get('module')}.{name}, which is not a model of this project")
        self.class_name = name
        self.class_config = {key: arguments[key] for key in ("num_labels", "regression") if key in arguments}
        try:
            self.config = BertConfig.from_dict(arguments["config"])
        except UserError as error:
            raise UserError(f"{self.path}: {error}") from error

    def _guess_class(self) -> str | None:
        """The class whose weights these are: by its layers, and by the name that Keras gave the model."""
        if "bert" not in self._store:
            return "BertModel"
        if self._dataset(_place(names.MASKED_LM[0].attribute)):
            return "PretrainingModel"
        variables = self._at("vars")
        said = variables.attrs.get("name") if variables else None
        named = re.match(r"(classifier|span|tagging)_model(_\d+)?$", str(said))
        if named:
            return f"{named[1].capitalize()}Model"
        self.remarks.append("Nothing says which task its output layer is for; taken for one of labels.")
        return None

    def _find(self) -> dict[str, h5py.Dataset]:
        """Reference name -> where it lies, of all weights."""
        alone = self.class_name == "BertModel"
        num_layers = len(self._at("blocks" if alone else "bert/blocks") or [])
        if self.config and self.config.num_hidden_layers != num_layers:
            raise ValueError(f"it says {self.config.num_hidden_layers} layers and holds {num_layers}")
        rows = [*names.encoder(num_layers), *_HEADS[self.class_name or "ClassifierModel"]]
        found = {row.reference: self._dataset(_place(row.attribute, alone)) for row in rows}
        missing = [name for name, dataset in found.items() if dataset is None]
        if len(missing) == len(found) or names.EMBEDDINGS[0].reference in missing:
            raise UserError(
                f"{self.path}: holds no model of this project (in it are {', '.join(self._store) or 'none'})"
            )
        if missing:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise UserError(f"{self.path}: lacks {', '.join(missing[:5])}{more}; copy it again")
        return found

    def _at(self, place: str) -> h5py.Group | h5py.Dataset | None:
        """What lies at a place in this very file, None if nothing does."""
        here = self._store
        for part in place.split("/"):
            link = here.get(part, getlink=True) if isinstance(here, h5py.Group) else None
            if link is None:
                return None
            if not isinstance(link, h5py.HardLink):
                raise ValueError(f"{place} refers to another place")
            here = here[part]
        return here

    def _dataset(self, place: str) -> h5py.Dataset | None:
        """The array at a place, None if there is none. One that is larger than what there is of it is not taken."""
        dataset = self._at(place)
        if dataset is None:
            return None
        if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
            raise ValueError(f"{place} is not an array in this file")
        if _dtype(dataset) not in _DTYPES:
            raise ValueError(f"{place} is of the type {_dtype(dataset)}")
        stored = dataset.id.get_storage_size()
        if dataset.nbytes > stored * (_MOST_UNPACKED if dataset.chunks else 1):
            raise ValueError(f"{place} should have {dataset.nbytes} bytes and has {stored}")
        return dataset

    def labels(self) -> Mapping[str, Any] | None:
        """That the model is a tagger, or a regression, which no shape shows; nobody kept the names of its tags."""
        if self.class_name == "TaggingModel":
            count = self.shapes[names.LABELS[1].reference][0]  # a .weights.h5 has no class_config
            names_of_tags = [f"LABEL_{index}" for index in range(count)]
            return {"task": classification.TAGGING_TASK, "labels": names_of_tags, "regression": False}
        if self.class_config.get("regression"):
            return {"task": "regression", "labels": [], "regression": True}
        return None

    def get(self, name: str) -> np.ndarray:
        """One variable. Raises UserError where it cannot be read.

        A .keras file has a checksum, which was compared when it was opened; a .weights.h5 has none.
        """
        dataset = self._datasets[name]
        with self._explained(name):
            return as_float32(np.array(dataset, dtype=_dtype(dataset)))


def _place(attribute: str, alone: bool = False) -> str:
    """Where an attribute of a model lies in a file; `alone`, if the model is the encoder itself."""
    layer, variable = attribute.removeprefix("bert." if alone else "").replace(".", "/").rsplit("/", 1)
    number = next(order.index(variable) for order in _ORDERS if variable in order)
    if layer == "masked_lm":
        number = 0  # the bias is the only variable of its own
    group = layer + "/"
    for pattern, replacement in _GROUPS:
        group = re.sub(pattern, replacement, group)
    return f"{group}vars/{number}"


def _dtype(dataset: h5py.Dataset) -> np.dtype:
    """bfloat16, which HDF5 does not know, goes by an attribute that Keras writes."""
    return np.dtype(ml_dtypes.bfloat16) if dataset.attrs.get("dtype") == "bfloat16" else dataset.dtype


def _copy(stream: IO[bytes]) -> IO[bytes]:
    """What is left of a stream, as a nameless file of this machine."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115, for the reader closes it
    with stream:
        shutil.copyfileobj(stream, copy, 2**20)
    return copy


def write(path: str, model) -> None:
    """Writes a model, or its weights if the path says .weights.h5, as Keras does; complete or not at all.

    Keras' own `save` would have all weights in memory twice more; here they pass through a folder beside `path`.

    Args:
      path: ends in .keras or .weights.h5.
      model: a BertModel or one of heads'.

    Raises:
      UserError: the name has another ending, or the place cannot be written.
    """
    if not recognises_name(path):
        raise UserError(f"{path}: the name of one of Keras' files ends in {_MODEL} or {_WEIGHTS}")
    with files.complete_or_absent(path) as (beside,), _scratch_beside(path) as scratch:
        size = sum(4 * math.prod(weight.shape) for weight in model.weights)
        environment.check_space(path, 2 * size, "the weights, which are written twice,")
        if path.endswith(_MODEL):
            _save(functools.partial(model.save, zipped=False), os.path.join(scratch, "model"))
            with files.open_binary(beside, "wb") as stream, zipfile.ZipFile(stream, "w") as archive:
                for name in (_METADATA, _CONFIG, _STORE):
                    archive.write(os.path.join(scratch, "model", name), name)
        else:
            weights = os.path.join(scratch, f"model{_WEIGHTS}")
            _save(model.save_weights, weights)
            with files.open_binary(beside, "wb") as stream, open(weights, "rb") as source:
                shutil.copyfileobj(source, stream, 2**20)


@contextlib.contextmanager
def _scratch_beside(path: str) -> Iterator[str]:
    """A folder for the time being, on the disk that `path` is on where that is a disk of this machine."""
    if files.is_remote(path):
        with tempfile.TemporaryDirectory() as scratch:
            yield scratch
        return
    scratch = outputs.name_beside(f"{path}.scratch")  # should this process be killed, the next one removes it
    try:
        os.makedirs(scratch, exist_ok=True)
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class _Store(io.FileIO):
    """A file that HDF5 writes to and that never fails it: HDF5 crashes the process where it cannot end what it began.

    Attributes:
      error: the first failure; from then on nothing is written.
    """

    def __init__(self, path: str):
        super().__init__(path, "w+b")
        self.error: OSError | None = None

    def write(self, data) -> int:
        rest = memoryview(data)
        while rest and self.error is None:
            try:
                rest = rest[super().write(rest) :]
            except OSError as error:
                self.error = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0


def _save(save: Callable[[str], None], path: str) -> None:
    """Calls one of Keras' functions that save. Raises OSError where the disk is full."""
    from keras.src.saving import saving_lib  # nothing public lets one choose the file that HDF5 writes to

    stores = []

    def open_store(name, mode):
        stores.append(_Store(os.fspath(name)))
        return h5py.File(stores[-1], mode)

    saving_lib.h5py = types.SimpleNamespace(**{**vars(h5py), "File": open_store})
    try:
        save(path)
    finally:
        saving_lib.h5py = h5py
        for store in stores:
            store.close()
    for store in stores:
        if store.error is not None:
            raise store.error
