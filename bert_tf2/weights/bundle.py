"""TensorFlow checkpoint files, `PREFIX.index` and `PREFIX.data-0000N-of-0000M`, and checkpoint folders.

A data file contains the bytes of the tensors, one after the other; the index is a table of their offsets, shapes and
checksums (`bundle_index`). Both are read and written without TensorFlow, because its import alone takes longer than the
conversion of BERT-Large. The keys of the reference's checkpoints are variable names; the keys of TensorFlow 2's
checkpoints are paths through Python objects (`model_garden`).
"""

from __future__ import annotations

import collections
import contextlib
import math
import os
import re
import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, BinaryIO

import google_crc32c
import numpy as np
from absl import logging

from bert_tf2.support import files, output_lock
from bert_tf2.support.errors import UserError
from bert_tf2.support.file_kinds import HEAD_BYTES, mismatch
from bert_tf2.weights import bundle_index, names
from bert_tf2.weights.base import Place, Weights, bytes_of
from bert_tf2.weights.bundle_index import DamagedTable, Entry

if TYPE_CHECKING:
    import tensorflow as tf

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The key that identifies a checkpoint of TensorFlow 2 objects."""

_FILE = r"\.(index|meta|training\.json|data-\d{5}-of-\d{5})$"  # training.json: see training.saver
_OF_TRAINING = re.compile(r"model\.ckpt-(\d+)\.index")  # the names that CheckpointFolder and the reference write
_STATE_FILE = "checkpoint"
_NEWEST = re.compile(r'^model_checkpoint_path: "(.*)"$', re.MULTILINE)  # a line of this file


def find_prefix(path: str) -> str:
    """Returns the prefix of a checkpoint, given the prefix, one of its files, or its folder."""
    prefix = re.sub(_FILE, "", path)
    if files.exists(prefix + ".index"):
        return prefix
    if files.is_directory(path):
        has_state = files.exists(os.path.join(path, _STATE_FILE))
        candidates = [latest_checkpoint(path)] if has_state else prefixes_in(path)
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise UserError(f"{path}: holds several checkpoints, name one of them: {', '.join(candidates)}")
        raise UserError(f"{path}: holds no checkpoint (no file whose name ends in .index)")
    if prefix == path and files.exists(path):
        raise UserError(f"{path}: is a file of another kind than weights")
    nearby = prefixes_in(os.path.dirname(path) or ".")
    hint = f"; there is {', '.join(nearby[:5])}" if nearby else ""
    raise UserError(f"{path}: no such folder or checkpoint ({os.path.basename(prefix)}.index does not exist{hint})")


def prefixes_in(folder: str) -> list[str]:
    found = files.list_directory(folder)
    return [os.path.join(folder, name.removesuffix(".index")) for name in found if name.endswith(".index")]


class _OpenFiles(dict[str, BinaryIO]):
    """Files by their paths. An open local file can be read to its end, even if a training removes it meanwhile."""

    def __del__(self):
        for stream in self.values():
            stream.close()


class Checkpoint(Weights):
    """A checkpoint, with the variable names in the file; `path` is its prefix, one of its files, or its folder."""

    kind = "TensorFlow 1 checkpoint"

    def __init__(self, path: str):
        super().__init__(find_prefix(path))
        self._data = _OpenFiles()
        path = self.path + ".index"
        with self._explained(), files.open_binary(path) as stream:  # only once, because reading may be a round trip
            index = stream.read()
        if problem := mismatch(index[:HEAD_BYTES], path, "the index of a checkpoint"):
            raise UserError(f"{path}: {problem}")
        with self._explained():
            table = bundle_index.read_table(index)
            self._num_shards = bundle_index.parse("Header", table.pop(b"", b"")).num_shards or 1
            parts = collections.defaultdict(list)  # of TensorFlow 1's partitioned variables
            for key in [key for key in table if key.startswith(b"\0")]:  # "\0NAME\0", then the place, in order
                parts[key[1:].partition(b"\0")[0].decode()].append(Entry.parse(table.pop(key)))
            entries = {key.decode(): Entry.parse(value) for key, value in table.items()}
            places = {
                name: Place(entry.shape, entry.dtype, entry.with_places(parts[name])) for name, entry in entries.items()
            }
        prefix = names.common_prefix(places, names.WORDS.reference)
        if prefix:
            self.remarks.append(f"Names are read without {prefix}, with which they begin.")
        prefix = prefix or "module/"  # the prefix in TF-Hub's first format
        self._hold({name.removeprefix(prefix): place for name, place in places.items()})
        self._check_sizes()

    def _data_file(self, entry: Entry) -> str:
        return f"{self.path}.data-{entry.shard:05}-of-{self._num_shards:05}"

    def _check_sizes(self) -> None:
        """Raises UserError if a damaged index requests too much memory, or a data file is missing or too short."""
        sizes: dict[str, int] = {}
        for name, entry in ((name, entry) for name, place in self._places.items() for _, entry in place.where):
            file = self._data_file(entry)
            if file not in sizes:
                link = files.dangling(file)
                if link or not files.companion(*os.path.split(file)):
                    problem = link or "no such file"
                    raise self._damaged(f"{file}: {problem}, so the checkpoint is damaged or incomplete")
                self._data[file] = stream = files.open_binary(file)
                stream.seek(0, os.SEEK_END)
                sizes[file] = stream.tell()
            size = sizes[file]
            is_text = entry.dtype == "string"
            asked = entry.size if is_text else math.prod(entry.shape) * np.dtype(entry.dtype).itemsize
            if asked != entry.size or entry.offset + entry.size > size:
                raise self._damaged(
                    f"{file}: the tensor {name} cannot be read: it should be {asked} bytes at {entry.offset}, and the"
                    f" file has {size}; the checkpoint is damaged or incomplete"
                )

    @contextlib.contextmanager
    def _explained(self, name: str | None = None):
        try:
            yield
        except (DamagedTable, OSError, ValueError, struct.error) as error:
            what = f"the tensor {name} cannot be read" if name else "cannot be read"
            raise self._damaged(f"{self.path}: {what}, the checkpoint is damaged or incomplete ({error})") from error

    def _damaged(self, problem: str) -> UserError:
        return UserError(f"{problem}; {_way_back(self.folder, os.path.basename(self.path)) or 'copy it again'}")

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)

    @property
    def is_object_based(self) -> bool:
        """Whether the keys are paths through objects and not names of variables."""
        return OBJECT_GRAPH in self.shapes

    def _read(self, name: str) -> np.ndarray:
        """Returns a tensor in its stored dtype, strings as an array of bytes objects."""
        shape, dtype, parts = self._places[name]
        with self._explained(name):
            if len(parts) == 1:
                return self._read_part(parts[0][1])
            found = np.empty(shape, dtype)
            for place, entry in parts:
                found[place] = self._read_part(entry)
            return found

    def _read_part(self, entry: Entry) -> np.ndarray:
        stream = self._data[self._data_file(entry)]
        stream.seek(entry.offset)
        data = stream.read(entry.size)
        if entry.dtype == "string":
            return bundle_index.decode_strings(data, entry.shape, entry.checksum)
        if bundle_index.mask(google_crc32c.value(data)) != entry.checksum:
            raise DamagedTable("its bytes do not match their checksum")
        return np.frombuffer(data, np.dtype(entry.dtype)).reshape(entry.shape)


def save(prefix: str, variables: Mapping[str, tf.Variable | np.ndarray], global_step: int | None = None) -> None:
    """Writes values as a checkpoint for TensorFlow 1 and 2; see `write`."""
    step = {} if global_step is None else {names.GLOBAL_STEP: np.array(global_step, np.int64)}
    values = {**variables, **step}.items()
    write(prefix, ((name, v if isinstance(v, np.ndarray) else v.numpy()) for name, v in values))


def write(prefix: str, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes `prefix.data-00000-of-00001` and `prefix.index`, with one array in memory at a time.

    Writes temporary files and renames them, the index last: a checkpoint that has an index is complete.
    """
    header = bundle_index.new("Header", num_shards=1, version=bundle_index.new("Version", producer=1))
    entries = {b"": header.SerializeToString()}
    with files.complete_or_absent(f"{prefix}.data-00000-of-00001", f"{prefix}.index", durable=True) as beside:
        with files.open_binary(beside[0], "wb") as stream:
            offset = 0
            for name, value in arrays:
                data = bytes_of(value)
                checksum = bundle_index.mask(google_crc32c.value(data))
                entry = Entry(value.dtype.name, [*value.shape], 0, offset, len(data), checksum)
                entries[name.encode()] = entry.encode()
                stream.write(data.data)
                offset += len(data)
        with files.open_binary(beside[1], "wb") as stream:
            stream.write(bundle_index.write_table(entries))


def read_state(folder: str) -> str:
    """Returns the text of the file `checkpoint` in a folder, or "" if there is no such file."""
    path = files.companion(folder, _STATE_FILE)
    return files.read_text(path, drop_bom=True).replace("\r", "") if path else ""


def latest_checkpoint(output_dir: str) -> str | None:
    """Returns the prefix of the newest checkpoint, which the folder's file `checkpoint` names.

    None if the folder has no checkpoint. Raises UserError if `checkpoint` is missing beside checkpoints, or names none
    that exists.
    """
    path = os.path.join(output_dir, _STATE_FILE)
    if not files.exists(path):
        if advice := _way_back(output_dir):
            raise UserError(f"{path}: no such file, although the folder holds the checkpoints of a training; {advice}")
        return None
    problem = "names no model_checkpoint_path"
    if named := _NEWEST.search(read_state(output_dir)):
        # The folder may have been moved since an absolute path was written.
        for name in (named[1], os.path.basename(named[1])):
            prefix = os.path.join(output_dir, name)
            if files.exists(prefix + ".index"):
                return prefix
        problem = f"names the checkpoint {named[1]}, but {prefix}.index is missing"
    # The message must not suggest deleting files from which something can be recovered.
    start_afresh = f"no checkpoint is left in {output_dir}: restore one, or give another folder to start afresh"
    raise UserError(f"{path}: {problem}; {_way_back(output_dir) or start_afresh}")


def is_of_training(name: str) -> bool:
    """Whether a file has the name of the index of a checkpoint `model.ckpt-STEP`."""
    return _OF_TRAINING.fullmatch(name) is not None


def has_checkpoints(folder: str) -> bool:
    """Whether training has left checkpoints in a folder, even if `recover` or the user must repair the folder first.

    A run calls `latest_checkpoint` only after `recover`.
    """
    return files.exists(os.path.join(folder, _STATE_FILE)) or bool(_newest_first(folder))


def _newest_first(folder: str) -> list[str]:
    """Returns the names of the checkpoints `model.ckpt-STEP` in a folder, the newest first."""
    steps = {int(found[1]) for name in files.list_directory(folder) if (found := _OF_TRAINING.fullmatch(name))}
    return [f"model.ckpt-{step}" for step in sorted(steps, reverse=True)]


def _way_back(folder: str, damaged: str = "") -> str:
    """Returns advice on continuing from the newest checkpoint, or from the newest before `damaged`; "" without any.

    The checkpoints are not read.
    """
    found = _newest_first(folder)
    if damaged in found:
        found = found[found.index(damaged) + 1 :]
    if not found:
        return ""
    return (
        f"the newest {'checkpoint before it' if damaged else 'one there'} is {os.path.join(folder, found[0])}. To"
        f' continue from it, put the line model_checkpoint_path: "{found[0]}" into {os.path.join(folder, _STATE_FILE)}'
    )


def _problem(prefix: str) -> str | None:
    """Returns the problem of a checkpoint, None if every tensor is readable and matches its checksum."""
    try:
        source = Checkpoint(prefix)
        for name in source.shapes:
            source.get(name)
    except UserError as error:
        return str(error)
    return None


def recover(output_dir: str) -> None:
    """Makes training continue from the newest intact checkpoint if the newest checkpoint is damaged or not recorded.

    A run can be killed after it writes its first checkpoint and before it writes the file `checkpoint`. If this file is
    missing, a single checkpoint therefore counts as the newest; with several, someone must have removed the file, and
    nothing is changed. Damaged files stay until the training run comes to their step again. If no checkpoint is intact,
    nothing is changed. The folder is locked for the change; raises UserError if another training run has locked it.
    """
    if _to_continue_from(output_dir):
        with output_lock.locked(output_dir):
            if found := _to_continue_from(output_dir):  # the training that held the lock may have written the file
                name, damaged, problem = found
                logging.warning("%s", problem)
                CheckpointFolder(output_dir).set_newest(name, without=damaged)


def _to_continue_from(output_dir: str) -> tuple[str, str, str] | None:
    """Returns the checkpoint that `checkpoint` must name, the checkpoint that it must not name, and the reason.

    None if nothing is wrong or can be repaired.
    """
    state = os.path.join(output_dir, _STATE_FILE)
    if not files.exists(state):
        found = _newest_first(output_dir)
        if len(found) == 1 and _problem(os.path.join(output_dir, found[0])) is None:
            return found[0], "", f"{state}: no such file; continuing from the only checkpoint there, {found[0]}"
        return None
    named = _NEWEST.search(read_state(output_dir))
    damaged = os.path.basename(named[1]) if named else ""
    problem = _problem(os.path.join(output_dir, damaged)) if named else f"{state}: names no model_checkpoint_path"
    for name in _newest_first(output_dir) if problem else ():
        if name != damaged and _problem(os.path.join(output_dir, name)) is None:
            return name, damaged, f"{problem}. Continuing from the checkpoint before, {os.path.join(output_dir, name)}"
    return None


class CheckpointFolder:
    """The checkpoints `model.ckpt-STEP` of one training run. Saving a new one deletes the oldest."""

    def __init__(self, output_dir: str, keep_checkpoint_max: int = 5):
        self._output_dir = output_dir
        self._keep = keep_checkpoint_max

    def prefix(self, global_step: int) -> str:
        return os.path.join(self._output_dir, f"model.ckpt-{global_step}")

    def save(self, variables: Mapping[str, tf.Variable | np.ndarray], global_step: int) -> str:
        """Writes a checkpoint, lists it in the file `checkpoint` as the newest, and deletes the oldest checkpoints."""
        prefix = self.prefix(global_step)
        name = os.path.basename(prefix)
        save(prefix, variables, global_step)
        listed = self.set_newest(name)
        if len(listed) > self._keep:
            for old in listed[: -self._keep]:
                self._remove(os.path.basename(old))
            self._list(name, listed[-self._keep :])  # last, so that a kill leaves no checkpoint unlisted
        logging.info("Saved %s", prefix)
        return prefix

    def _remove(self, name: str) -> None:
        """Removes the files of a checkpoint, the index first, because a checkpoint that has an index is complete."""
        found = [f for f in files.list_directory(self._output_dir) if re.fullmatch(re.escape(name) + _FILE, f)]
        for file in sorted(found, key=lambda file: not file.endswith(".index")):
            files.remove(os.path.join(self._output_dir, file))

    def set_newest(self, name: str, without: str = "") -> list[str]:
        """Lists a checkpoint as the newest in the file `checkpoint`; returns all listed names."""
        listed = [old for old in self._listed() if os.path.basename(old) not in (name, without)] + [name]
        self._list(name, listed)
        return listed

    def _list(self, newest: str, names: Iterable[str]) -> None:
        lines = [f'model_checkpoint_path: "{newest}"', *(f'all_model_checkpoint_paths: "{each}"' for each in names)]
        files.write_text(os.path.join(self._output_dir, _STATE_FILE), "\n".join(lines) + "\n", durable=True)

    @property
    def count(self) -> int:
        """The number of checkpoints that the file `checkpoint` lists."""
        return len(self._listed())

    def _listed(self) -> list[str]:
        text = read_state(self._output_dir)
        return re.findall(r'^all_model_checkpoint_paths: "(.*)"$', text, re.MULTILINE)
