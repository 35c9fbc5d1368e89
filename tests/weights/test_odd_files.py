"""Files of weights that are damaged, of another kind, or links to nothing: one sentence, and the remedy.

And errors of the package itself, which are no fault of a file, so that their traceback stays.
"""

import json
import os
import pathlib
import shutil
import struct
import tracemalloc

import garden_models
import numpy as np
import pytest
import toy_data
from google_folders import google_folder
from huggingface_folders import write_json
from mutations import damaged, damaged_json, lengths, refuses_or_reads
from refused import refuses
from small_models import randomize, tiny_config

import bert_tf2
from bert_tf2 import heads, modeling
from bert_tf2.commands import call
from bert_tf2.weights import bundle, checkpoint, convert, model_folder, names, sources, task_file
from bert_tf2.weights.task_file import LabelMap
from bert_tf2.weights.tensor_files import TensorFile, write_safetensors

OF_TF1 = (
    *("bert_config.json", "vocab.txt", "tokenization.json", "task.json", "label_map.json", "checkpoint"),
    *("model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001"),
)
OF_HUGGINGFACE = ("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json", "added_tokens.json")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> pathlib.Path:
    """A classifier in a folder of each format, and an encoder of Model Garden."""
    path, labels = tmp_path_factory.mktemp("models"), LabelMap("tsv", ("no", "yes"), regression=False)
    toy_data.write_trained(path / "tf1", heads.ClassifierModel(toy_data.config(num_hidden_layers=1), 2), labels)
    write_json(path / "tf1" / "tokenization.json", {"do_lower_case": True})
    write_json(path / "tf1" / "task.json", {})
    for kind in ("hf", "keras"):
        call("convert_checkpoint", input=str(path / "tf1"), output=str(path / kind), to=kind)
    write_json(path / "hf" / "added_tokens.json", {})
    garden_models.save(path / "garden", garden_models.random_arrays(garden_models.ENCODER))
    return path


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("kind", "name"), [*(("tf1", name) for name in OF_TF1), *(("hf", name) for name in OF_HUGGINGFACE)]
)
def test_links_to_nothing_and_pipes_are_named(folders, tmp_path, kind, name):
    """As in a copy of Hugging Face's cache without its folder of blobs. Nobody waits for a pipe."""
    path = shutil.copytree(folders / kind, tmp_path / "copy") / name
    bert_tf2.load(path.parent)
    for link in ("../../blobs/1234", ""):
        path.unlink()
        path.symlink_to(link) if link else os.mkfifo(path)
        is_weights = name.startswith("model.")
        for given in [path.parent, path] if is_weights else [path.parent]:
            refuses(f"{name} {link}", bert_tf2.load, given)
        if name == "vocab.txt" and link:  # also where an argument names it
            refuses(f"{name} {link}", bert_tf2.load, folders / kind, vocab_file=path)


def test_the_file_of_a_model_of_texts(films, tmp_path):
    """Keras opens it; `load` and the conversion do not."""
    films.save(path := str(tmp_path / "films.keras"))
    for door in (
        bert_tf2.load,
        bert_tf2.classifier,
        lambda path: call("convert_checkpoint", input=path, output=str(tmp_path / "out"), to="hf"),
        lambda path: [*call("convert_checkpoint", list=path)],
    ):
        for given in (path, str(tmp_path)):
            assert "damaged" not in refuses(".keras keras.models.load_model save_folder", door, given)
    assert not (tmp_path / "out").exists()


# Weights of other models


@pytest.mark.parametrize(
    "held",
    [
        ["electra/embeddings/word_embeddings", "electra/encoder/layer_0/output/dense/bias", "generator/bias"],
        ["bert/encoder/transformer/group_0/inner_group_0/ffn_1/bias", "bert/embeddings/word_embeddings"],
        ["bert/embeddings/word_embeddings/ExponentialMovingAverage"],
    ],
)
def test_other_models_are_told_by_their_variables(tmp_path, held):
    bundle.save(str(tmp_path / "x.ckpt"), dict.fromkeys(held, np.zeros([3, 3], np.float32)))
    (tmp_path / "bert_config.json").write_text(toy_data.config().to_json_string())
    words = f"{tmp_path}/x.ckpt: {'ALBERT' if 'group_0' in held[0] else ''} not a BERT {held[0]}"
    refuses(words, call, "convert_checkpoint", input=str(tmp_path), output=str(tmp_path / "out"), to="hf")
    refuses(words, checkpoint.initialize, modeling.BertModel(toy_data.config()), str(tmp_path))


def test_a_common_prefix_of_the_names(tmp_path):
    prefix, values = "module/", randomize(heads.SpanModel(tiny_config()))
    bundle.save(str(tmp_path / "x.ckpt"), {f"{prefix}{name}": value for name, value in values.items()}, 7)
    source = sources.open_weights(str(tmp_path))
    assert {*source.shapes} == {*values, "global_step"} and prefix in source.remarks[0]
    assert all((source.get(name) == value).all() for name, value in values.items())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tf_model.h5", "Keras 2 transformers 4"),
        ("model.weights.h5", "load_weights model.save"),
        ("flax_model.msgpack", "from_flax=True"),
        ("model.safetensors.index.json", "several files"),
        ("model.fp16.safetensors", "variant name of that file"),
        ("adapter_model.safetensors", "adapter merge"),
        ("0_BERT/config.json", "sentence-transformers"),
        ("models--bert-base-cased/refs/main", "cache"),
    ],
)
def test_a_folder_of_other_weights(tmp_path, name, words):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    refuses(f"{tmp_path}: {name.split('/')[0]} {words}", sources.open_weights, str(tmp_path))
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "checkpoint").touch()
    refuses("checkpoint folder", sources.open_weights, f"{tmp_path}/beside/checkpoint")
    if "h5" in name:  # the file itself
        refuses(f"{tmp_path}/{name}: {words}", sources.open_weights, f"{tmp_path}/{name}")


def test_a_file_of_another_kind_is_not_missing(tmp_path):
    (tmp_path / "records").write_bytes(bytes(20))
    refuses(f"{tmp_path}/records: kind", sources.open_weights, f"{tmp_path}/records")
    (tmp_path / "x.ckpt.data-00000-of-00001").touch()
    refuses("x.ckpt.index not exist", sources.open_weights, f"{tmp_path}/x.ckpt.data-00000-of-00001")


def test_released_weights_in_the_output_folder(tmp_path):
    google_folder(tmp_path)
    words = f"--init_checkpoint={tmp_path}/bert_model.ckpt --output_dir"
    refuses(words, checkpoint.weights_in_use, str(tmp_path), None)


# Damage

# Folder, and the file that is damaged.
FORMATS = [("tf1", name) for name in OF_TF1[-2:]] + [("hf", "model.safetensors"), ("hf", "config.json")]
FORMATS += [("garden", "ckpt-1.index"), ("garden", "ckpt-1.data-00000-of-00001"), ("keras", "bert_model.keras")]


def read_all(path: str) -> None:
    source = sources.open_weights(path)
    for name, shape in source.shapes.items():
        assert list(source.get(name).shape) == shape
    assert source.global_step >= 0
    task_file.label_map_of(source)
    source.vocabulary()
    model_folder.stated_config(source)
    "\n".join(convert.listing(path)).encode()


@lengths(30, 1000)
@pytest.mark.parametrize(("folder", "name"), FORMATS)
def test_damaged_weights_are_read_or_refused(folder, name, examples, folders, tmp_path):
    path = shutil.copytree(folders / folder, tmp_path / "it") / name
    read_all(str(path.parent))  # otherwise the rest would show little

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_all(str(path.parent))

    is_json = name == "config.json"
    content = damaged_json(json.loads(path.read_text())) if is_json else damaged(path.read_bytes())
    refuses_or_reads(content, read, examples)


def test_safetensors_files(tmp_path):
    """Half precision is the first half of a float32: sign, exponent and 7 bits. Absurd sizes are refused."""
    path, numbers = tmp_path / "model.safetensors", np.float32([1.0, -2.5, 3.140625, 1e-30, np.inf])
    halves = (numbers.view(np.uint32) >> 16).astype("<u2").tobytes()

    def write(dtype: str, shape: list[int], data: bytes, end: int) -> str:
        header = json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + data)
        return str(path)

    file = TensorFile(write("BF16", [5], halves, 10))
    assert file.tensors["a"].dtype == "bfloat16"
    np.testing.assert_allclose(file.read("a"), numbers, rtol=2**-7)
    refuses(str(path), TensorFile(write("F8_E4M3", [8], bytes(8), 8)).read, "a")
    for shape, data in (([2], bytes(4)), ([1 << 40, 1 << 40], bytes(8))):
        refuses(str(path), TensorFile, write("F32", shape, data, 8))


def test_writing_and_reading_hold_one_tensor_in_memory(tmp_path):
    shapes, path = dict.fromkeys(map(str, range(12)), (500, 1000)), str(tmp_path / "model.safetensors")
    tracemalloc.start()
    try:
        write_safetensors(path, shapes, ((name, np.full(shape, 7, np.float32)) for name, shape in shapes.items()))
        file = TensorFile(path)
        assert all(file.read(name)[3, 3] == 7 for name in shapes)
        assert tracemalloc.get_traced_memory()[1] < 3.5 * 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("error", [KeyError, ValueError])
def test_a_bug_keeps_its_traceback(folders, monkeypatch, error):
    """A function of the package that has a bug, while a file of a library is read."""

    def fail(*_, **__):
        raise error("a bug")

    for name in ("tf1_variables", "common_prefix"):
        monkeypatch.setattr(names, name, fail)
    for path in (folders / "keras", folders / "hf"):
        with pytest.raises(error, match="a bug"):
            bert_tf2.load(path)
