"""NAME.sha256 beside weights in formats without checksums: who writes it, who compares it, and what a mismatch says."""

import shutil
import subprocess
import zipfile

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from huggingface_folders import make_folder
from refused import message_of
from small_models import MAKERS, randomize, small_config, values_of

from bert_tf2.support.errors import UserError
from bert_tf2.weights import checksums, huggingface_writing, keras_files, tensor_files
from bert_tf2.weights.sources import open_weights


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the weights of one model in each of these formats, and the model."""
    folder, model = tmp_path_factory.mktemp("made"), MAKERS["classifier"](small_config())
    values = randomize(model)
    shapes = {name: value.shape for name, value in values.items()}
    huggingface_writing.write_folder(str(folder), shapes, values.items(), small_config())
    keras_files.write(str(folder / "model.keras"), model)
    return folder, model


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "copy")


def read(path) -> dict[str, np.ndarray]:
    source = open_weights(str(path))
    return {name: source.get(name) for name in source.shapes}


def test_the_standard_tool_verifies_them(folder):
    command = ["sha256sum", "-c", "model.safetensors.sha256"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "model.safetensors: OK\n"


@pytest.mark.parametrize("name", ["model.safetensors", "model.keras"])
def test_no_changed_byte_goes_unseen(folder, made, name):
    """Anywhere in what says where the arrays are, and in the arrays."""
    for name_, value in read(folder / name).items():
        np.testing.assert_array_equal(value, values_of(made[1])[name_])
    path = folder / name
    whole = path.read_bytes()
    begin, end = 0, len(whole)
    if name == "model.keras":  # nobody reads all of what describes the archive
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo("model.weights.h5")
        begin = member.header_offset + 30 + len(member.filename)
        end = begin + member.file_size
    for place in np.random.default_rng(0).integers(begin, end, 40):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        assert name in message_of(read, path)
    if name == "model.keras":
        return
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert f"does not match its checksum in {path}.sha256" in message_of(read, path)
    (folder / f"{name}.sha256").unlink()  # as the message says, for weights that another program changed
    assert read(path)


@pytest.mark.parametrize("text", [b"", b"0" * 64 + b"  model.safetensors\n", b"\xff", "as published: {sum}\n"])
def test_a_checksum_from_elsewhere(text, folder):
    """In whatever words a source publishes it."""
    path, beside = folder / "model.safetensors", folder / "model.safetensors.sha256"
    fits = isinstance(text, str)
    beside.write_bytes(text.format(sum=beside.read_text().split()[0].upper()).encode() if fits else text)
    assert read(path) if fits else str(beside) in message_of(read, path)


def test_weights_of_other_programs_are_compared_too(tmp_path):
    path = tmp_path / "model.safetensors"
    make_folder(tmp_path)
    assert read(tmp_path)
    (tmp_path / "model.safetensors.sha256").write_text("0" * 64)
    assert f"{path}: does not match" in message_of(read, tmp_path)


def test_what_is_killed_between_two_files_leaves_no_checksum_of_another_file(folder, monkeypatch):
    path = str(folder / "model.safetensors")
    renamed = []

    def rename(source, target):
        renamed.append(target)
        assert not (folder / "model.safetensors.sha256").exists()
        shutil.move(source, target)

    monkeypatch.setattr("bert_tf2.support.files.rename", rename)
    with checksums.complete_or_absent(path) as (beside,):
        shutil.copy(path, beside)
    assert renamed == [path, path + ".sha256"] and read(folder)


def test_an_error_leaves_both_files_as_they_were(folder):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match="no more"), checksums.complete_or_absent(str(folder / "model.safetensors")):
        raise UserError("no more")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_what_is_said_with_weights_counts_as_long_as_nobody_else_writes_them(folder):
    """Another program may change the weights and keep the metadata, whose config.json may not fit them any more."""
    path = str(folder / "model.safetensors")
    assert "num_attention_heads" in tensor_files.TensorFile(path).metadata["config"]
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata()["format"] == "pt"
        values = {name: file.get_tensor(name) + 1 for name in file.keys()}  # noqa: SIM118
        safetensors.numpy.save_file(values, path, file.metadata())
    (folder / "model.safetensors.sha256").unlink()
    assert tensor_files.TensorFile(path).metadata == {}
    assert read(folder).keys() == values_of(MAKERS["classifier"](small_config())).keys()
