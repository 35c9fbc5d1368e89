"""Damaged and invented weights of every format: read as a whole, or refused by an error of this project.

Checksums would refuse nearly all of it, so most damage is done before they are computed: that is what an enemy does.
"""

from __future__ import annotations

import io
import json
import pathlib
import shutil
import struct
import zipfile
from collections.abc import Callable
from typing import NamedTuple

import garden_models
import google_crc32c
import numpy as np
import pytest
from huggingface_folders import CONFIG, make_folder, tensors_of, write_json
from hypothesis import strategies as st
from mutations import altered, damaged, damaged_json, json_bytes, lengths, refuses_or_reads
from small_models import MAKERS, randomize, tiny_config
from torch_pickles import both_formats, program, tensor, zip_bytes

from bert_tf2.weights import bundle, bundle_index, checkpoint, convert, keras_files, metadata, sources

INDEX, DATA = "model.ckpt.index", "model.ckpt.data-00000-of-00001"


def read_all(path: str) -> None:
    source = sources.open_weights(path)
    for name, shape in source.shapes.items():
        assert list(source.get(name).shape) == shape
    assert source.global_step >= 0
    sources.labels_of(source)
    source.vocabulary()
    source.tokenizer_settings()
    metadata.stated_config(source)
    "\n".join(convert.listing(path)).encode()


class Format(NamedTuple):
    """A file of the weights in a folder, what it may hold, and the path to open, relative to the folder."""

    name: str
    content: Callable[[pathlib.Path], st.SearchStrategy[bytes]]
    path: str = ""


def small(folder: pathlib.Path) -> bytes:
    return (folder / INDEX).read_bytes()


# TensorFlow


def table(block: bytes) -> bytes:
    """A table of a single block, whatever is in it, with right checksums."""
    whole = bytearray(block + b"\0")
    whole += struct.pack("<I", bundle_index.mask(google_crc32c.value(bytes(whole))))
    handle = bundle_index.varint(0) + bundle_index.varint(len(block))
    footer = bundle_index._append_block(whole, []) + bundle_index._append_block(whole, [(b"\xff", handle)])
    return bytes(whole) + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


@st.composite
def other_entries(draw, entries: dict[bytes, bytes]) -> bytes:
    """An index with right checksums in which an entry, or the name of one, is damaged."""
    key = draw(st.sampled_from(sorted(entries)))
    changed = {**entries, key: draw(damaged(entries[key]))}
    if draw(st.integers(0, 3)) == 0:
        changed[draw(damaged(key))] = changed.pop(key)
    return bundle_index.write_table(changed)


def indexes(folder: pathlib.Path) -> st.SearchStrategy[bytes]:
    whole = (folder / INDEX).read_bytes()
    entries = bundle_index.read_table(whole)
    block = bytearray()
    bundle_index._append_block(block, sorted(entries.items()))
    return damaged(whole) | other_entries(entries) | damaged(bytes(block[:-5])).map(table)


def object_graphs(folder: pathlib.Path) -> st.SearchStrategy[bytes]:
    """The index and the data of a checkpoint in one; the data are written as a side effect of reading it."""
    source = bundle.Checkpoint(str(folder / "model.ckpt"))
    arrays = {name: source.get(name) for name in source.shapes}
    graph = arrays.pop(bundle.OBJECT_GRAPH).item()

    def write(content: bytes) -> bytes:
        bundle.save(str(folder / "model.ckpt"), {**arrays, bundle.OBJECT_GRAPH: np.array(content, object)})
        return (folder / INDEX).read_bytes()

    return damaged(graph).map(write)


# Hugging Face


def safetensors_files(folder: pathlib.Path) -> st.SearchStrategy[bytes]:
    whole = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header, data = whole[8 : 8 + length], whole[8 + length :]

    def framed(text: bytes) -> bytes:
        return len(text).to_bytes(8, "little") + text + data

    return damaged(whole) | damaged(header).map(framed) | altered(json.loads(header)).map(json_bytes).map(framed)


def torch_zips(folder: pathlib.Path) -> st.SearchStrategy[bytes]:
    value, arrays = torch_content()
    plain = {key: array.tobytes() for key, array in arrays.items()}
    return damaged(both_formats(value, arrays)["zip"]) | damaged(program(value)).map(
        lambda made: zip_bytes(made, plain)
    )


def torch_content():
    arrays = {str(number): array for number, array in enumerate(tensors_of("BertModel").values())}
    return {name: tensor(key, arrays[key]) for name, key in zip(tensors_of("BertModel"), arrays, strict=True)}, arrays


# Keras


def keras_archives(folder: pathlib.Path) -> st.SearchStrategy[bytes]:
    whole = (folder / "model.keras").read_bytes()
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}

    def packed(**changed: bytes) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, content in {**parts, **{f"{key}.json": value for key, value in changed.items()}}.items():
                archive.writestr(name, content)
        return stream.getvalue()

    return damaged(whole) | damaged_json(json.loads(parts["config.json"])).map(lambda config: packed(config=config))


def of_file(name: str) -> Callable[[pathlib.Path], st.SearchStrategy[bytes]]:
    return lambda folder: damaged((folder / name).read_bytes())


FORMATS = {
    "tf1_index": Format(INDEX, indexes),
    "tf1_data": Format(DATA, of_file(DATA)),
    "garden_graph": Format(INDEX, object_graphs),
    "garden_index": Format(INDEX, indexes),
    "safetensors": Format("model.safetensors", safetensors_files),
    "safetensors_config": Format("config.json", lambda folder: damaged_json(CONFIG)),
    "safetensors_parts": Format(
        "model.safetensors.index.json",
        lambda folder: damaged_json(
            {"weight_map": dict.fromkeys(tensors_of("BertForPreTraining"), "part.safetensors")}
        ),
    ),
    "torch_zip": Format("pytorch_model.bin", torch_zips),
    "torch_legacy": Format("pytorch_model.bin", lambda folder: damaged(both_formats(*torch_content())["legacy"])),
    "keras": Format("model.keras", keras_archives),
    "keras_weights": Format("model.weights.h5", of_file("model.weights.h5")),
    "h5": Format("model.h5", of_file("model.weights.h5"), "model.h5"),
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> pathlib.Path:
    """A folder for each kind of weights."""
    path = tmp_path_factory.mktemp("valid")
    model = MAKERS["classifier"](tiny_config())
    randomize(model)
    checkpoint.save(str(path / "tf1" / "model.ckpt"), checkpoint.tf1_variables(model), 7)
    (path / "keras").mkdir()
    for name in ("model.keras", "model.weights.h5"):
        keras_files.write(str(path / "keras" / name), model)
    (path / "keras" / "model.weights.h5.sha256").unlink()
    (path / "garden").mkdir()
    prefix = garden_models.save(path / "garden", garden_models.random_arrays(garden_models.ENCODER))
    for old in (path / "garden").glob("ckpt*"):
        old.rename(path / "garden" / f"model.ckpt{old.name.removeprefix(pathlib.Path(prefix).name)}")
    (path / "garden" / "checkpoint").unlink()
    make_folder(path / "safetensors")
    (path / "torch").mkdir()
    write_json(path / "torch" / "config.json", {**CONFIG, "architectures": ["BertModel"]})
    return path


@lengths(30, 1000)
@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_read_or_refused(name, examples, valid, tmp_path):
    kind, folder = FORMATS[name], tmp_path / "it"
    shutil.copytree(valid / ("keras" if name == "h5" else name.split("_")[0]), folder)
    content = kind.content(folder)
    if name == "safetensors_parts":
        (folder / "model.safetensors").rename(folder / "part.safetensors")
    if name == "keras":
        (folder / "model.weights.h5").unlink()
    if name == "keras_weights":
        (folder / "model.keras").unlink()

    def read(data: bytes) -> None:
        (folder / kind.name).write_bytes(data)
        read_all(str(folder / kind.path))

    refuses_or_reads(content, read, examples)


def test_the_weights_are_good_without_the_damage(valid):
    """Otherwise the test above would show little."""
    for folder in ("tf1", "garden", "safetensors", "keras/model.keras", "keras/model.weights.h5"):
        read_all(str(valid / folder))
    (valid / "torch" / "pytorch_model.bin").write_bytes(both_formats(*torch_content())["zip"])
    read_all(str(valid / "torch"))
