"""Damaged weights of every format: read as a whole, or refused by an error of this project."""

from __future__ import annotations

import pathlib
import shutil

import garden_models
import pytest
from huggingface_folders import CONFIG, make_folder
from mutations import damaged, damaged_json, lengths, refuses_or_reads
from small_models import MAKERS, randomize, tiny_config

from bert_tf2.weights import checkpoint, convert, keras_files, sources, task_file

INDEX, DATA = "model.ckpt.index", "model.ckpt.data-00000-of-00001"
# Folder, file that is damaged, path to open within the folder, and the content to damage if it is not the file's.
FORMATS = [
    ("tf1", INDEX, "", None),
    ("tf1", DATA, "", None),
    ("garden", INDEX, "", None),
    ("garden", DATA, "", None),
    ("safetensors", "model.safetensors", "", None),
    ("safetensors", "config.json", "", CONFIG),
    ("keras", "model.keras", "model.keras", None),
]


def read_all(path: str) -> None:
    source = sources.open_weights(path)
    for name, shape in source.shapes.items():
        assert list(source.get(name).shape) == shape
    assert source.global_step >= 0
    task_file.label_map_of(source)
    source.vocabulary()
    sources.stated_config(source)
    "\n".join(convert.listing(path)).encode()


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> pathlib.Path:
    """A folder for each kind of weights."""
    path = tmp_path_factory.mktemp("valid")
    model = MAKERS["classifier"](tiny_config())
    randomize(model)
    checkpoint.save(str(path / "tf1" / "model.ckpt"), checkpoint.tf1_variables(model), 7)
    (path / "keras").mkdir()
    keras_files.write(str(path / "keras" / "model.keras"), model)
    (path / "garden").mkdir()
    prefix = garden_models.save(path / "garden", garden_models.random_arrays(garden_models.ENCODER))
    for old in (path / "garden").glob("ckpt*"):
        old.rename(path / "garden" / f"model.ckpt{old.name.removeprefix(pathlib.Path(prefix).name)}")
    (path / "garden" / "checkpoint").unlink()
    make_folder(path / "safetensors")
    return path


@lengths(30, 1000)
@pytest.mark.parametrize(("folder", "file", "path", "content"), FORMATS)
def test_weights_are_read_or_refused(folder, file, path, content, examples, valid, tmp_path):
    copy = shutil.copytree(valid / folder, tmp_path / "it")
    read_all(str(copy / path))  # otherwise the rest would show little

    def read(data: bytes) -> None:
        (copy / file).write_bytes(data)
        read_all(str(copy / path))

    refuses_or_reads(damaged_json(content) if content else damaged((copy / file).read_bytes()), read, examples)
