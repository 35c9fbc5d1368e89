"""Folders in Hugging Face's layout are read and written: names, shapes, configuration, labels, and what is refused.

PyTorch is not needed. `tests/test_interop.py` compares the same code with `transformers` itself.
"""

import json
import os
import pathlib
import sys
import zipfile

import numpy as np
import pytest
import safetensors
from google_folders import assert_holds
from huggingface_folders import (
    CONFIG,
    DECODER,
    WORDS,
    make_folder,
    reference_name,
    tensors_of,
    write_json,
)
from refused import refuses
from small_models import MAKERS, randomize, small_config

from bert_tf2 import modeling
from bert_tf2.config import BertConfig
from bert_tf2.support.errors import UserError
from bert_tf2.weights.huggingface import HuggingFaceFolder, write_folder
from bert_tf2.weights.model_folder import ModelFiles
from bert_tf2.weights.task_file import LabelMap


def in_reference(tensors: dict) -> dict[str, np.ndarray]:
    """The same arrays with the reference's names; its kernels are [inputs, outputs]."""
    named = ((reference_name(name), value) for name, value in tensors.items())
    return {name: value.T if name.endswith("/kernel") else value for name, value in named}


@pytest.mark.parametrize("prefix", ["module.", "model.", "0.auto_model."])
def test_variants_of_names_and_numbers(tmp_path, prefix):
    """Names of the first years, of wrappers of the model, and of tensors that are no weights of BERT; half floats."""
    tensors = tensors_of("BertForPreTraining")
    norm = "bert.embeddings.LayerNorm.bias"
    tensors[norm] = tensors[norm].astype(np.float16)
    old = {
        prefix + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
    }
    others = {f"{prefix}bert.embeddings.position_ids": np.arange(5)[None], "counts": np.arange(3)}
    source = HuggingFaceFolder(make_folder(tmp_path, old | others))
    assert_holds(source, {**in_reference(tensors), "counts": np.arange(3)})
    assert source.dtypes[reference_name(norm)] == "float16" and any("float16" in remark for remark in source.remarks)
    assert (source.get(reference_name(norm)).dtype, source.get("counts").dtype) == ("float32", "int64")


def test_the_decoder_is_the_table_of_embeddings(tmp_path):
    tensors = tensors_of("BertForPreTraining")
    copies = {DECODER: tensors[WORDS].copy(), "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].copy()}
    assert_holds(HuggingFaceFolder(make_folder(tmp_path / "equal", {**tensors, **copies})), in_reference(tensors))
    for name, value in copies.items():
        value.flat[3] += 0.5
        refuses(f"{name} encoder", HuggingFaceFolder, make_folder(tmp_path / "other", {**tensors, name: value}))
    # Where tensors that share their memory were saved once, any of the names may be left.
    only = {(DECODER if name == WORDS else name): value for name, value in tensors.items()}
    assert_holds(HuggingFaceFolder(make_folder(tmp_path / "only", only)), in_reference(tensors))


def test_the_files_beside_the_weights(tmp_path, monkeypatch):
    folder = pathlib.Path(make_folder(tmp_path / "model"))
    (folder / "config.json").rename(folder / "bert_config.json")  # as in early releases
    source = HuggingFaceFolder(str(folder / "model.safetensors"))
    assert source.folder == str(folder) and source.config.hidden_act == "gelu_erf"
    (folder / "bert_config.json").unlink()
    refuses("config.json no such file", HuggingFaceFolder, str(folder))
    # Without PyTorch, the older file cannot be read.
    write_json(tmp_path / "config.json", CONFIG)
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    refuses("pytorch_model.bin pip install torch model.safetensors", HuggingFaceFolder, str(tmp_path))


def test_the_activation_keeps_its_meaning():
    exact = dict.fromkeys(("gelu", "gelu_python"), "gelu_erf")
    approximate = dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu")
    for theirs, ours in {**exact, **approximate, "relu": "relu"}.items():
        assert BertConfig.from_huggingface({**CONFIG, "hidden_act": theirs}).hidden_act == ours


# Writing


def write(folder, values, config=None, **settings) -> list[str]:
    shapes = {name: [*value.shape] for name, value in values.items()}
    return write_folder(str(folder), shapes, iter(values.items()), ModelFiles(config or small_config(), **settings))


TEXTS = LabelMap("classification", ("no", "yes", "who knows"), regression=False)
TAGS = LabelMap("ner", ("O", "B-PER", "I-PER"), regression=False)
SCORE = LabelMap("classification", (), regression=True)


@pytest.mark.parametrize(
    ("kind", "without", "architecture", "labels"),
    [
        ("encoder", "-", "BertModel", None),
        ("encoder", "pooler", "BertModel", None),
        ("pretraining", "-", "BertForPreTraining", None),
        ("pretraining", "seq_relationship", "BertForMaskedLM", None),
        ("pretraining", "cls/predictions", "BertForNextSentencePrediction", None),
        ("masked_words", "-", "BertForMaskedLM", None),
        ("classifier", "-", "BertForSequenceClassification", TEXTS),
        ("classifier", "-", "BertForSequenceClassification", SCORE),
        ("tagging", "-", "BertForTokenClassification", TAGS),
        ("span", "-", "BertForQuestionAnswering", None),
    ],
)
def test_write_and_read(tmp_path, kind, without, architecture, labels):
    """The class is that of the heads that are there, without the variables of the optimizer."""
    model = modeling.BertModel(small_config()) if kind == "encoder" else MAKERS[kind](small_config())
    values = {name: value for name, value in randomize(model).items() if without not in name}
    if labels is SCORE:
        values |= {name: values[name][:1] for name in ("output_weights", "output_bias")}
    config, vocabulary = small_config(layer_norm_eps=1e-6), ["[UNK]", "[PAD]", "##\u00e9"]
    more = {"global_step": np.int64(3), "x/adam_m": np.zeros(2)}
    report = write(tmp_path, {**more, **values}, config, labels=labels, vocabulary=vocabulary)
    assert {*os.listdir(tmp_path)} == {"config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"}
    assert f"a {architecture}" in report[0] and not any("adam" in line or "global" in line for line in report)
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert file.metadata()["format"] == "pt"
    wanted = {name for name in tensors_of(architecture) if without not in name}
    assert {*found} == wanted | {name.replace("layer.0", "layer.1") for name in wanted}
    kept = {name: values[name] for name in in_reference(found)}
    for name, value in in_reference(found).items():
        np.testing.assert_array_equal(value, values[name])
    assert any("add_pooling_layer=False" in line for line in report) == (architecture == "BertModel" and len(kept) < 39)
    assert any("bert/pooler/dense" in line for line in report) == ("bert/pooler/dense/bias" in values.keys() - kept)
    content = json.loads((tmp_path / "config.json").read_text())
    stated = {"architectures": [architecture], "model_type": "bert", "hidden_act": "gelu_pytorch_tanh"}
    assert {**stated, "layer_norm_eps": 1e-6, "pad_token_id": 1}.items() <= content.items()
    again = HuggingFaceFolder(str(tmp_path))
    assert_holds(again, kept)
    assert (again.config, again.vocabulary(), again.labels()) == (config, vocabulary, labels)
    if labels:
        names = labels.labels or ("LABEL_0",)
        assert content["id2label"] == {str(index): label for index, label in enumerate(names)}
        assert ("problem_type" in content) == labels.regression and content["label2id"][names[-1]] == len(names) - 1
        write_json(tmp_path / "config.json", {**content, "id2label": None, "finetuning_task": "mnli"})
        unnamed = HuggingFaceFolder(str(tmp_path)).labels()
        assert unnamed.labels == (labels.labels and ("LABEL_0", "LABEL_1", "LABEL_2")) and unnamed.task in (
            "ner",
            "mnli",
        )


def test_a_failed_writing_leaves_the_folder_as_it_was(tmp_path):
    values, kernel = randomize(MAKERS["classifier"](small_config())), "bert/encoder/layer_1/output/dense/kernel"
    for held, labels, words in (
        ({name: value for name, value in values.items() if name != kernel}, None, f"{kernel} missing"),
        ({**values, "bert/pooler/dense/bias": np.zeros(3, "f4")}, None, "bert/pooler/dense/bias [3] [8]"),
        (values, LabelMap("tsv", ("a", "b"), regression=False), "3 outputs"),
    ):
        refuses(words, write, tmp_path, held, labels=labels)
    assert os.listdir(tmp_path) == []

    def failing():
        yield from list(values.items())[:5]
        raise UserError("no more")

    write(tmp_path, values)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    shapes = {name: value.shape for name, value in values.items()}
    refuses("no more", write_folder, str(tmp_path), shapes, failing(), ModelFiles(small_config(), ["a"]))
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
