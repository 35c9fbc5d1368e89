"""Folders in Hugging Face's layout are read and written: names, shapes, configuration, labels, and what is refused.

PyTorch is not needed. `tests/test_interop.py` compares the same code with `transformers` itself.
"""

import json
import os
import sys
import zipfile

import numpy as np
import pytest
import safetensors
from huggingface_folders import CLASSES, CONFIG, DECODER, ENCODER, WORDS, make_folder, tensors_of, write_json
from refused import message_of, refuses
from small_models import MAKERS, randomize, small_config

from bert_tf2 import modeling
from bert_tf2.config import BertConfig
from bert_tf2.support.errors import UserError
from bert_tf2.weights import huggingface
from bert_tf2.weights.huggingface import HuggingFaceFolder, write_folder
from bert_tf2.weights.task_file import LabelMap


@pytest.mark.parametrize("architecture", CLASSES)
def test_each_class_under_the_reference_s_names(tmp_path, architecture):
    tensors = tensors_of(architecture)
    source = HuggingFaceFolder(make_folder(tmp_path, architecture=architecture))
    rows = [*ENCODER, *CLASSES[architecture]]
    assert set(source.shapes) == {reference for _, _, reference in rows} == set(source.dtypes)
    assert source.remarks == [] and source.global_step == 0 and source.architecture == architecture
    for name, shape, reference in rows:
        wanted = tensors.get(name, tensors.get(f"bert.{name}"))
        wanted = wanted.T if reference.endswith("kernel") else wanted
        assert source.shapes[reference] == [*wanted.shape] and wanted.size == np.prod(shape)
        np.testing.assert_array_equal(source.get(reference), wanted)
        assert source.dtypes[reference] == "float32"


@pytest.mark.parametrize("prefix", ["module.", "model.", "0.auto_model."])
def test_variants_of_the_names(tmp_path, prefix):
    """Of the first years, of wrappers of the model, and of tensors that are no weights of BERT."""
    tensors = tensors_of("BertForPreTraining")
    old = {
        prefix + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
    }
    others = {f"{prefix}bert.embeddings.position_ids": np.arange(5)[None], "temperature": np.float32([3.0])}
    source = HuggingFaceFolder(make_folder(tmp_path / "old", old | others))
    today = HuggingFaceFolder(make_folder(tmp_path / "today", tensors))
    assert set(source.shapes) == {*today.shapes, "temperature"}
    assert all((source.get(name) == today.get(name)).all() for name in today.shapes)


def test_the_decoder_is_the_table_of_embeddings(tmp_path):
    tensors = tensors_of("BertForPreTraining")
    copies = {DECODER: tensors[WORDS].copy(), "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].copy()}
    source = HuggingFaceFolder(make_folder(tmp_path / "equal", {**tensors, **copies}))
    assert len(source.shapes) == len(tensors)
    for name, value in copies.items():
        value.flat[3] += 0.5
        folder = make_folder(tmp_path / "other", {**tensors, name: value})
        refuses(f"{name} encoder", HuggingFaceFolder, folder)
    folder = make_folder(tmp_path / "long", {**tensors, DECODER: np.ones([8, 4], np.float32)})
    refuses(DECODER, HuggingFaceFolder, folder)
    # Where tensors that share their memory were saved once, any of the names may be the one that is left.
    words = tensors.pop(WORDS)
    only = HuggingFaceFolder(make_folder(tmp_path / "only", {**tensors, DECODER: words}))
    np.testing.assert_array_equal(only.get("bert/embeddings/word_embeddings"), words)


def test_other_floats_are_widened(tmp_path):
    tensors = tensors_of("BertModel") | {"counts": np.arange(3)}
    tensors["embeddings.LayerNorm.bias"] = tensors["embeddings.LayerNorm.bias"].astype(np.float16)
    source = HuggingFaceFolder(make_folder(tmp_path, tensors, "BertModel"))
    name = "bert/embeddings/LayerNorm/beta"
    assert any("float16" in remark for remark in source.remarks)
    assert (source.dtypes[name], source.get(name).dtype, source.get("counts").dtype) == ("float16", "float32", "int64")
    np.testing.assert_array_equal(source.get(name), tensors["embeddings.LayerNorm.bias"])


def test_where_the_weights_are(tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "model")
    file = os.path.join(folder, "model.safetensors")
    assert huggingface.recognizes(folder) == huggingface.recognizes(file) == file
    assert HuggingFaceFolder(file).folder == folder
    assert not huggingface.recognizes(str(tmp_path)) and not huggingface.recognizes(os.path.join(folder, "config.json"))
    os.rename(os.path.join(folder, "config.json"), os.path.join(folder, "bert_config.json"))
    assert HuggingFaceFolder(folder).config.hidden_act == "gelu_erf"
    os.remove(os.path.join(folder, "bert_config.json"))
    refuses("config.json no such file", HuggingFaceFolder, folder)
    # Without PyTorch, the older file cannot be read.
    write_json(tmp_path / "config.json", CONFIG)
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    refuses("pytorch_model.bin pip install torch model.safetensors", HuggingFaceFolder, str(tmp_path))


ACTIVATIONS = {"gelu": "gelu_erf", "gelu_python": "gelu_erf", "relu": "relu", "tanh": "tanh"}


@pytest.mark.parametrize("theirs", [*ACTIVATIONS, "gelu_new", "gelu_fast", "gelu_pytorch_tanh"])
def test_the_activation_keeps_its_meaning(tmp_path, theirs):
    found = HuggingFaceFolder(make_folder(tmp_path, hidden_act=theirs)).config.hidden_act
    assert found == ACTIVATIONS.get(theirs, "gelu")


@pytest.mark.parametrize(
    ("changes", "words"),
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
def test_a_configuration_of_another_model_is_refused(tmp_path, changes, words):
    message = refuses(f"{tmp_path}/config.json {words}", HuggingFaceFolder, make_folder(tmp_path, **changes))
    assert message_of(BertConfig.from_json_file, str(tmp_path / "config.json")) == message


ANSWERS = ("no", "yes", "who knows")
NAMED = {"id2label": dict(enumerate(ANSWERS))}
NUMBERED = ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize(
    ("architecture", "changes", "wanted"),
    [
        ("BertForSequenceClassification", NAMED, LabelMap("classification", ANSWERS, False)),
        ("BertForSequenceClassification", {"finetuning_task": "mnli", **NAMED}, LabelMap("mnli", ANSWERS, False)),
        ("BertForSequenceClassification", {}, LabelMap("classification", NUMBERED, False)),
        ("BertForTokenClassification", NAMED, LabelMap("ner", ANSWERS, False)),
        ("BertForPreTraining", {}, None),
    ],
)
def test_labels(tmp_path, architecture, changes, wanted):
    assert HuggingFaceFolder(make_folder(tmp_path, architecture=architecture, **changes)).labels() == wanted


# Writing


def write(folder, values, config=None, **settings) -> list[str]:
    shapes = {name: [*value.shape] for name, value in values.items()}
    return write_folder(str(folder), shapes, iter(values.items()), config or small_config(), **settings)


def variables_of(kind: str) -> dict[str, np.ndarray]:
    return randomize(modeling.BertModel(small_config()) if kind == "encoder" else MAKERS[kind](small_config()))


TAGS = LabelMap("ner", ("O", "B-PER", "I-PER"), regression=False)
WRITTEN = {
    "encoder": "BertModel",
    "pretraining": "BertForPreTraining",
    "masked_words": "BertForMaskedLM",
    "classifier": "BertForSequenceClassification",
    "tagging": "BertForTokenClassification",
    "span": "BertForQuestionAnswering",
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_write_and_read(tmp_path, kind):
    architecture, values, labels = WRITTEN[kind], variables_of(kind), TAGS if kind == "tagging" else None
    config = small_config(layer_norm_eps=1e-6)
    report = write(tmp_path, values, config, labels=labels, vocabulary=["[UNK]", "[PAD]", "##\u00e9"])
    names = {"config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"}
    assert {*os.listdir(tmp_path)} == names
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        found = {name.removeprefix("bert."): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert file.metadata()["format"] == "pt"
        assert any(name.startswith("bert.") for name in file.keys()) == (kind != "encoder")  # noqa: SIM118
    wanted = {theirs: reference for theirs, _, reference in [*ENCODER, *CLASSES[architecture]]}
    wanted |= {a.replace("layer.0", "layer.1"): b.replace("layer_0", "layer_1") for a, b in wanted.items()}
    assert set(found) == set(wanted)
    for theirs, reference in wanted.items():
        value = values[reference].T if reference.endswith("/kernel") else values[reference]
        np.testing.assert_array_equal(found[theirs], value)
    content = json.loads((tmp_path / "config.json").read_text())
    stated = {"architectures": [architecture], "model_type": "bert", "hidden_act": "gelu_pytorch_tanh"}
    assert {**stated, "layer_norm_eps": 1e-6, "pad_token_id": 1}.items() <= content.items()
    again = HuggingFaceFolder(str(tmp_path))
    assert again.config == config and again.vocabulary() == ["[UNK]", "[PAD]", "##\u00e9"]
    if labels:
        assert content["id2label"] == {"0": "O", "1": "B-PER", "2": "I-PER"} and content["label2id"]["I-PER"] == 2
        assert again.labels() == TAGS
    left_out = [name for name in values if name not in wanted.values()]
    assert architecture in report[0] and any("bert/pooler/dense" in line for line in report) == bool(left_out)


def test_a_regression_is_written_and_read(tmp_path):
    values = variables_of("classifier")
    values |= {name: values[name][:1] for name in ("output_weights", "output_bias")}
    write(tmp_path, values, labels=LabelMap("sts-b", (), regression=True))
    content = json.loads((tmp_path / "config.json").read_text())
    assert (content["problem_type"], content["id2label"]) == ("regression", {"0": "LABEL_0"})
    assert HuggingFaceFolder(str(tmp_path)).labels().regression


def test_the_class_is_that_of_the_heads_that_are_there(tmp_path):
    values = variables_of("pretraining")
    without = [
        ("seq_relationship", values, "a BertForMaskedLM"),
        ("cls/predictions", values, "a BertForNextSentencePrediction"),
        ("pooler", variables_of("encoder"), "a BertModel"),
    ]
    for number, (part, held, kind) in enumerate(without):
        report = write(tmp_path / str(number), {name: value for name, value in held.items() if part not in name})
        assert kind in report[0] and any("add_pooling_layer=False" in line for line in report) == (part == "pooler")
    both = {**values, **variables_of("span"), "global_step": np.int64(3), "x/adam_m": np.zeros(2)}
    report = write(tmp_path / "squad", both)
    assert "a BertForQuestionAnswering" in report[0] and not any("adam" in line or "global" in line for line in report)


def test_a_failed_writing_leaves_the_folder_as_it_was(tmp_path):
    values, kernel = variables_of("classifier"), "bert/encoder/layer_1/output/dense/kernel"
    for held, labels, words in (
        ({name: value for name, value in values.items() if name != kernel}, None, f"{kernel} missing"),
        ({**values, "bert/pooler/dense/bias": np.zeros(3, "f4")}, None, "bert/pooler/dense/bias [3] [8]"),
        ({name: value for name, value in values.items() if "pooler" not in name}, None, "bert/pooler/dense/kernel"),
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
    refuses("no more", write_folder, str(tmp_path), shapes, failing(), small_config(), vocabulary=["a"])
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
