"""Flips bytes of files, at random places and at those that matter most, and checks that no reader is deceived.

    PYTHONPATH=tests python tests/soak/flip_bytes.py --flips=300

For every kind of file that holds examples or weights, as this project writes it. A flip of one bit, or of a whole byte,
must be found (an error in one line that names the file), or told (a warning that names it, for values that no weight,
example or output depends on), or harmless, which is proven: everything that is read equals the original. Prints a line
for each kind, and exits with 1 if anything else happened.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import pathlib
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import unmasked_data
from small_models import MAKERS, randomize, small_config

from bert_tf2.config import BertConfig, decisive_differences
from bert_tf2.data import tfrecords
from bert_tf2.support.errors import UserError
from bert_tf2.training.options import TrainOptions
from bert_tf2.training.saver import TrainingState, deciding
from bert_tf2.weights import bundle, keras_files
from bert_tf2.weights.base import Weights
from bert_tf2.weights.sources import open_weights


@dataclasses.dataclass
class Reading:
    """What was read of a file.

    Attributes:
      values: whatever decides results; arrays as bytes.
      others: what decides none of them.
      told: the warnings.
    """

    values: list[Any]
    others: Any = None
    told: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Kind:
    """A kind of file.

    Attributes:
      name: for the table.
      file: the name of the file whose bytes are flipped.
      make: writes a folder with it.
      read: reads everything in such a folder.
      marks: returns the places of headers, lengths, checksums and the like among the bytes of the file.
    """

    name: str
    file: str
    make: Callable[[pathlib.Path], Any]
    read: Callable[[pathlib.Path], Reading]
    marks: Callable[[bytes], Iterator[int]]


# Records.


def make_records(folder: pathlib.Path, name: str) -> None:
    unmasked_data.make(folder, name, num_documents=10, dynamic_masking=False)


def read_records(path: pathlib.Path) -> Reading:
    return Reading([b.record(row) for b in tfrecords.read_blocks(str(path), 1 << 14) for row in range(len(b))])


def marks_of_records(data: bytes) -> Iterator[int]:
    """Lengths, checksums, and the first and last byte of each record."""
    place = 0
    while place < len(data):
        end = place + 12 + int.from_bytes(data[place : place + 8], "little")
        yield from (*range(place, place + 13), *range(end - 1, end + 4))
        place = end + 4


def marks_of_gzip(data: bytes) -> Iterator[int]:
    """The header, the beginning of the first block, and checksum and size at the end."""
    yield from (*range(16), *range(len(data) - 10, len(data)))


# Checkpoints.


def make_checkpoint(folder: pathlib.Path) -> None:
    model = MAKERS["pretraining"](small_config())
    values = randomize(model)
    slots = {f"{name}/adam_{slot}": value * 0.5 for name, value in values.items() for slot in "mv"}
    prefix = str(folder / "model.ckpt-7")
    options = TrainOptions(output_dir=str(folder), num_train_steps=10, num_warmup_steps=1, train_batch_size=4)
    now = deciding(options, model.config, "6 records", 1, True)
    TrainingState(28, {name: value for name, (value, _) in now.items()}).write(prefix)
    bundle.save(prefix, {**values, **slots, "words": np.array([b"one", b"two"], object)}, 7)


def read_checkpoint(folder: pathlib.Path) -> Reading:
    prefix = str(folder / "model.ckpt-7")
    return Reading([*arrays(bundle.Checkpoint(prefix)), TrainingState.read(prefix)])


def arrays(source: Weights) -> Iterator[tuple]:
    for name in sorted(source.shapes):
        value = source.get(name)
        yield name, value.shape, value.dtype.str, value.tolist() if value.dtype == object else value.tobytes()


def marks_of_index(data: bytes) -> Iterator[int]:
    """The footer, the index of the blocks before it, and the beginning of the first entries."""
    yield from (*range(40), *range(len(data) - 100, len(data)))


def marks_of_data(data: bytes) -> Iterator[int]:
    """The first and last bytes: those in the middle all have the same meaning."""
    yield from (*range(8), *range(len(data) - 24, len(data)))


def marks_of_json(data: bytes) -> Iterator[int]:
    """Digits, and the first character of each key and word."""
    yield from (found.start() for found in re.finditer(rb'\d|(?<=")\w|[{}:,"]', data))


# Weights of other layouts.


def read_weights(path: pathlib.Path) -> Reading:
    source = open_weights(str(path))
    config = source.config
    decisive = None
    if config is not None:  # the fields that decide nothing are compared apart
        decisive = decisive_differences(BertConfig(1, 1, 1, 1, 1, max_position_embeddings=1), config), config.hidden_act
        decisive = *decisive, config.num_attention_heads, config.layer_norm_eps, config.num_hidden_layers
    values = [*arrays(source), decisive, source.kind, getattr(source, "class_name", None)]
    return Reading(values, (config, source.labels()), source.remarks)


def marks_of_zip(data: bytes) -> Iterator[int]:
    """Every header of a part, every entry of the directory, and the end of the directory."""
    for signature, length in ((b"PK\x03\x04", 46), (b"PK\x01\x02", 66), (b"PK\x05\x06", 22)):
        for found in re.finditer(re.escape(signature), data):
            yield from range(found.start(), min(found.start() + length, len(data)))


def make_keras(folder: pathlib.Path, name: str) -> None:
    model = MAKERS["span"](small_config())
    randomize(model)
    keras_files.write(str(folder / name), model)


KINDS = (
    Kind(
        "TFRecord", "r.tfrecord", lambda f: make_records(f, "r.tfrecord"),
        lambda f: read_records(f / "r.tfrecord"), marks_of_records,
    ),
    Kind(
        "TFRecord, gzip", "r.tfrecord.gz", lambda f: make_records(f, "r.tfrecord.gz"),
        lambda f: read_records(f / "r.tfrecord.gz"), marks_of_gzip,
    ),
    Kind("checkpoint, index", "model.ckpt-7.index", make_checkpoint, read_checkpoint, marks_of_index),
    Kind("checkpoint, data", "model.ckpt-7.data-00000-of-00001", make_checkpoint, read_checkpoint, marks_of_data),
    Kind(
        "checkpoint, training.json", "model.ckpt-7.training.json", make_checkpoint, read_checkpoint, marks_of_json,
    ),
    Kind(
        ".keras", "m.keras", lambda f: make_keras(f, "m.keras"), lambda f: read_weights(f / "m.keras"), marks_of_zip,
    ),
)  # fmt: skip


# Flips.


def flips(data: bytes, marks: list[int], count: int, draw: random.Random) -> Iterator[tuple[int, int]]:
    """Yields places and new bytes: by turns anywhere and at a mark; each by turns of one bit and of a whole byte."""
    ways = itertools.cycle(itertools.product((range(len(data)), marks), (False, True)))
    for places, is_whole in itertools.islice(ways, count):
        place = draw.choice(places)
        yield place, data[place] ^ (draw.randrange(1, 256) if is_whole else 1 << draw.randrange(8))


def outcome(kind: Kind, folder: pathlib.Path, original: Reading) -> str:
    """Reads a folder with a flip in it: "found", "told" or "harmless"; anything else is a fault, in words."""
    try:
        reading = kind.read(folder)
    except UserError as error:
        line, named = str(error), re.sub(r"\.(index|data-.*)$", "", kind.file)  # a checkpoint is named by its prefix
        return "found" if named in line and "\n" not in line else f"the file is not named: {line}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if reading.values != original.values:
        return "READ WITH ANOTHER VALUE"
    if reading.others == original.others:
        return "harmless"
    named = [line for line in reading.told if kind.file in line and line not in original.told]
    return "told" if named else f"another value, of which nothing depends: {reading.others}"


def try_kind(kind: Kind, count: int, draw: random.Random, folder: pathlib.Path) -> tuple[collections.Counter, list]:
    """Returns the number of flips by outcome, and a line for each fault."""
    whole = folder / "whole"
    whole.mkdir(parents=True)
    kind.make(whole)
    original, data = kind.read(whole), (whole / kind.file).read_bytes()
    counts, faults = collections.Counter(), []
    for number, (place, byte) in enumerate(flips(data, [*kind.marks(data)], count, draw)):
        damaged = folder / str(number)
        shutil.copytree(whole, damaged)
        (damaged / kind.file).write_bytes(data[:place] + bytes([byte]) + data[place + 1 :])
        found = outcome(kind, damaged, original)
        shutil.rmtree(damaged)
        if found not in ("found", "told", "harmless"):
            faults.append(f"{kind.name}, byte {place} of {len(data)}, {data[place]:#04x} -> {byte:#04x}: {found}")
            found = "FAULT"
        counts[found] += 1
    return counts, faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=300, help="of all kinds of files together")
    parser.add_argument("--kinds", default="", help="names that contain this")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw, total, all_faults = random.Random(options.seed), collections.Counter(), []
    kinds = [kind for kind in KINDS if options.kinds in kind.name]
    outcomes = ("found", "told", "harmless", "FAULT")
    print(f"{'kind of file':<26}{'flips':>6}" + "".join(f"{name:>10}" for name in outcomes))
    with tempfile.TemporaryDirectory() as made:
        for number, kind in enumerate(kinds):
            count = options.flips // len(kinds) + (number < options.flips % len(kinds))
            counts, faults = try_kind(kind, count, draw, pathlib.Path(made) / str(number))
            print(f"{kind.name:<26}{count:>6}" + "".join(f"{counts[name]:>10}" for name in outcomes), flush=True)
            total, all_faults = total + counts, all_faults + faults
    print(f"{'all':<26}{options.flips:>6}" + "".join(f"{total[name]:>10}" for name in outcomes))
    print(*all_faults, sep="\n", end="\n" if all_faults else "")
    sys.exit(1 if all_faults else 0)


if __name__ == "__main__":
    main()
