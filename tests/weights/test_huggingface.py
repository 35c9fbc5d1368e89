"""Hugging Face folders are read: names, shapes, configuration, labels; damaged, foreign or dangerous ones are refused.

PyTorch is not needed. `tests/test_interop.py` compares the same code with `transformers` itself.
"""

import os
import sys
import zipfile

import numpy as np
import pytest
from huggingface_folders import CLASSES, CONFIG, DECODER, ENCODER, WORDS, make_folder, tensors_of, write_json
from refused import message_of

from bert_tf2.config import BertConfig
from bert_tf2.weights import huggingface
from bert_tf2.weights.task_file import LabelMap

# Names and shapes.


@pytest.mark.parametrize("architecture", CLASSES)
def test_each_class_under_the_reference_s_names(tmp_path, architecture):
    tensors = tensors_of(architecture)
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path, architecture=architecture))
    rows = [*ENCODER, *CLASSES[architecture]]
    assert set(source.shapes) == {reference for _, _, reference in rows} == set(source.dtypes)
    assert source.remarks == []
    for name, shape, reference in rows:
        wanted = tensors.get(name, tensors.get(f"bert.{name}"))
        wanted = wanted.T if reference.endswith("kernel") else wanted
        assert source.shapes[reference] == [*wanted.shape] and wanted.size == np.prod(shape)
        np.testing.assert_array_equal(source.get(reference), wanted)
        assert source.dtypes[reference] == "float32"
    assert source.global_step == 0 and source.architecture == architecture


def test_what_variants_the_names_have(tmp_path):
    """Of the first years, of training on several GPUs, and with what is no weight."""
    tensors = tensors_of("BertForPreTraining")
    old = {
        "module."
        + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
    }
    old["module.bert.embeddings.position_ids"] = np.arange(5)[None]
    old["temperature"] = np.float32([3.0])
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path / "old", old))
    today = huggingface.HuggingFaceFolder(make_folder(tmp_path / "today", tensors))
    assert set(source.shapes) == {*today.shapes, "temperature"}
    for name in today.shapes:
        np.testing.assert_array_equal(source.get(name), today.get(name))
    assert source.get("temperature") == 3.0


def test_the_decoder_is_the_table_of_embeddings(tmp_path):
    tensors = tensors_of("BertForPreTraining")
    bias = tensors["cls.predictions.bias"]
    copies = {DECODER: tensors[WORDS].copy(), "cls.predictions.decoder.bias": bias.copy()}
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path / "equal", {**tensors, **copies}))
    assert len(source.shapes) == len(tensors)
    for name, value in copies.items():
        value.flat[3] += 0.5
        message = message_of(huggingface.HuggingFaceFolder, make_folder(tmp_path / "other", {**tensors, name: value}))
        assert name in message and "encoder alone" in message
    value = np.float32(np.ones([8, 4]))
    assert DECODER in message_of(
        huggingface.HuggingFaceFolder, make_folder(tmp_path / "long", {**tensors, DECODER: value})
    )
    # Where tensors that share their memory were saved once, any of the names may be the one that is left.
    words = tensors.pop(WORDS)
    only = huggingface.HuggingFaceFolder(make_folder(tmp_path / "only", {**tensors, DECODER: words}))
    np.testing.assert_array_equal(only.get("bert/embeddings/word_embeddings"), words)


def test_other_floats_are_widened(tmp_path):
    tensors = tensors_of("BertModel")
    tensors["embeddings.LayerNorm.bias"] = tensors["embeddings.LayerNorm.bias"].astype(np.float16)
    tensors["counts"] = np.arange(3)
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path, tensors, "BertModel"))
    name = "bert/embeddings/LayerNorm/beta"
    assert "Numbers that are float16 in the file are read as float32." in source.remarks
    assert (source.dtypes[name], source.get(name).dtype, source.get("counts").dtype) == ("float16", "float32", "int64")
    np.testing.assert_array_equal(source.get(name), tensors["embeddings.LayerNorm.bias"])


def test_where_the_weights_are(tmp_path):
    folder = make_folder(tmp_path / "model")
    file = os.path.join(folder, "model.safetensors")
    assert huggingface.recognizes(folder) == huggingface.recognizes(file) == file
    assert huggingface.HuggingFaceFolder(file).folder == folder
    assert not huggingface.recognizes(str(tmp_path)) and not huggingface.recognizes(os.path.join(folder, "config.json"))
    assert not huggingface.recognizes(os.path.join(folder, "pytorch_model.bin"))
    os.rename(os.path.join(folder, "config.json"), os.path.join(folder, "bert_config.json"))
    assert huggingface.HuggingFaceFolder(folder).config.hidden_act == "gelu_erf"
    os.remove(os.path.join(folder, "bert_config.json"))
    assert "config.json: no such file" in message_of(huggingface.HuggingFaceFolder, folder)


# Configuration.


@pytest.mark.parametrize(
    "theirs, ours",
    [
        ("gelu", "gelu_erf"),
        ("gelu_python", "gelu_erf"),
        ("gelu_new", "gelu"),
        ("gelu_fast", "gelu"),
        ("gelu_pytorch_tanh", "gelu"),
        ("relu", "relu"),
        ("tanh", "tanh"),
    ],
)
def test_the_activation_keeps_its_meaning(tmp_path, theirs, ours):
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path, hidden_act=theirs))
    assert source.config.hidden_act == ours


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"model_type": "roberta"}, "'roberta'"),
        ({"is_decoder": True}, "decoder"),
        ({"add_cross_attention": True}, "decoder"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'"),
        ({"hidden_act": "quick_gelu"}, "'quick_gelu'"),
        ({"hidden_act": ["gelu"]}, "hidden_act"),
        ({"quantization_config": {"bits": 8}}, "quantized"),
        ({"hidden_size": 5}, "hidden_size 5"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_what_is_no_bert_is_refused(tmp_path, changes, part):
    message = message_of(huggingface.HuggingFaceFolder, make_folder(tmp_path, **changes))
    assert part in message and message.startswith(str(tmp_path / "config.json"))
    assert message_of(BertConfig.from_json_file, str(tmp_path / "config.json")) == message


# Labels.

ANSWERS = ("no", "yes", "who knows")
NAMED = {"id2label": dict(enumerate(ANSWERS))}


@pytest.mark.parametrize(
    "architecture, changes, wanted",
    [
        ("BertForSequenceClassification", NAMED, ("classification", ANSWERS, False)),
        ("BertForSequenceClassification", {"finetuning_task": "mnli", **NAMED}, ("mnli", ANSWERS, False)),
        ("BertForSequenceClassification", {}, ("classification", ("LABEL_0", "LABEL_1", "LABEL_2"), False)),
        ("BertForTokenClassification", NAMED, ("ner", ANSWERS, False)),
    ],
)
def test_labels(tmp_path, architecture, changes, wanted):
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path, architecture=architecture, **changes))
    assert source.labels() == LabelMap(*wanted)


def test_labels_of_a_regression_and_of_no_head(tmp_path):
    tensors = tensors_of("BertForSequenceClassification")
    tensors.update({"classifier.weight": tensors["classifier.weight"][:1], "classifier.bias": np.zeros(1, np.float32)})
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path, tensors, "BertForSequenceClassification"))
    assert source.labels() == LabelMap("classification", (), regression=True)
    assert huggingface.HuggingFaceFolder(make_folder(tmp_path)).labels() is None


@pytest.mark.parametrize("named", [{"0": "a", "1": "b"}, {"0": "a", "1": "b", "3": "c"}])
def test_labels_that_are_not_those_of_the_outputs(tmp_path, named):
    folder = make_folder(tmp_path, architecture="BertForTokenClassification", id2label=named)
    assert "3 outputs" in message_of(huggingface.HuggingFaceFolder(folder).labels)


def test_pytorch_model_bin_without_pytorch(tmp_path, monkeypatch):
    """tests/test_interop.py reads such files."""
    write_json(tmp_path / "config.json", CONFIG)
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    message = message_of(huggingface.HuggingFaceFolder, str(tmp_path))
    assert message.endswith("is not installed: pip install torch, or save the model as model.safetensors")
