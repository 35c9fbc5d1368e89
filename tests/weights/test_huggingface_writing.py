"""Folders in Hugging Face's layout are written; `tests/test_interop.py` loads some with `transformers` itself."""

import json
import os

import numpy as np
import pytest
import safetensors
from huggingface_folders import CLASSES, ENCODER
from refused import message_of
from small_models import MAKERS, randomize, small_config

from bert_tf2 import modeling
from bert_tf2.support.errors import UserError
from bert_tf2.weights import huggingface
from bert_tf2.weights.huggingface import write_folder
from bert_tf2.weights.task_file import LabelMap

WEIGHTS = ("model.safetensors",)


def reference_weights(kind: str) -> dict[str, np.ndarray]:
    """Random variables of a model of this project, by the reference's names."""
    model = modeling.BertModel(small_config()) if kind == "encoder" else MAKERS[kind](small_config())
    return randomize(model)


def write(folder, values, config=None, **settings) -> list[str]:
    shapes = {name: [*value.shape] for name, value in values.items()}
    return write_folder(str(folder), shapes, iter(values.items()), config or small_config(), **settings)


TAGS = LabelMap("ner", ("O", "B-PER", "I-PER"), regression=False)
WRITTEN = {  # what there is, and what it becomes
    ("encoder", None): "BertModel",
    ("pretraining", None): "BertForPreTraining",
    ("masked_words", None): "BertForMaskedLM",
    ("classifier", None): "BertForSequenceClassification",
    ("tagging", "ner"): "BertForTokenClassification",
    ("span", None): "BertForQuestionAnswering",
}


@pytest.mark.parametrize("kind, task", WRITTEN)
def test_write_and_read(tmp_path, kind, task):
    architecture = WRITTEN[kind, task]
    values = reference_weights(kind)
    report = write(tmp_path / "new", values, labels=TAGS if task else None)
    with safetensors.safe_open(tmp_path / "new" / "model.safetensors", "np") as file:
        found = {name.removeprefix("bert."): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert file.metadata()["format"] == "pt"
        assert all(name.startswith("bert.") for name in file.keys() if "." in name and "encoder" in name) == (  # noqa: SIM118
            kind != "encoder"
        )
    wanted = {**dict((theirs, reference) for theirs, _, reference in [*ENCODER, *CLASSES[architecture]])}
    wanted |= {a.replace("layer.0", "layer.1"): b.replace("layer_0", "layer_1") for a, b in wanted.items()}
    assert set(found) == set(wanted)
    for theirs, reference in wanted.items():
        value = values[reference].T if reference.endswith("/kernel") else values[reference]
        np.testing.assert_array_equal(found[theirs], value)
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == ([architecture], "bert")
    again = huggingface.HuggingFaceFolder(str(tmp_path / "new"))
    assert again.config == small_config()
    assert again.labels() == (TAGS if task else again.labels())
    assert architecture in report[0]
    left_out = [name for name in values if name not in wanted.values()]
    assert any("bert/pooler/dense/kernel, bert/pooler/dense/bias" in line for line in report) == bool(left_out)


def test_what_a_written_folder_says(tmp_path):
    vocabulary = ["[UNK]", "[PAD]", "a", "##\u00e9"]
    config = small_config(hidden_act="gelu", layer_norm_eps=1e-6)
    write(tmp_path, reference_weights("tagging"), config, vocabulary=vocabulary, do_lower_case=False, labels=TAGS)
    assert sorted(os.listdir(tmp_path)) == ["config.json", *WEIGHTS, "tokenizer_config.json", "vocab.txt"]
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["hidden_act"] == "gelu_pytorch_tanh" and content["layer_norm_eps"] == 1e-6
    assert content["id2label"] == {"0": "O", "1": "B-PER", "2": "I-PER"} and content["label2id"]["I-PER"] == 2
    assert content["pad_token_id"] == 1
    source = huggingface.HuggingFaceFolder(str(tmp_path))
    assert source.vocabulary() == vocabulary
    assert source.config == config and source.labels() == TAGS


def test_a_regression_is_written(tmp_path):
    values = reference_weights("classifier")
    values.update(output_weights=values["output_weights"][:1], output_bias=values["output_bias"][:1])
    labels = LabelMap("sts-b", (), regression=True)
    write(tmp_path, values, labels=labels)
    content = json.loads((tmp_path / "config.json").read_text())
    assert (content["problem_type"], content["id2label"]) == ("regression", {"0": "LABEL_0"})
    assert huggingface.HuggingFaceFolder(str(tmp_path)).labels().regression


def test_the_class_is_that_of_the_heads_that_are_there(tmp_path):
    values = reference_weights("pretraining")
    some = {name: value for name, value in values.items() if "seq_relationship" not in name}
    assert "a BertForMaskedLM" in write(tmp_path / "mlm2", some)[0]
    some = {name: value for name, value in values.items() if "cls/predictions" not in name}
    assert "a BertForNextSentencePrediction" in write(tmp_path / "nsp", some)[0]
    some = {name: value for name, value in reference_weights("encoder").items() if "pooler" not in name}
    assert any("add_pooling_layer=False" in line for line in write(tmp_path / "bare", some))
    both = {
        **values,
        **reference_weights("span"),
        "global_step": np.int64(3),
        "x/adam_m": np.zeros(2),
        "other": np.zeros(2),
    }
    report = write(tmp_path / "squad", both)
    assert "a BertForQuestionAnswering" in report[0] and not any("adam" in line or "global" in line for line in report)


def refused_writings():
    values = reference_weights("classifier")
    without = {name: value for name, value in values.items() if name != "bert/encoder/layer_1/output/dense/kernel"}
    misshapen = {**values, "bert/pooler/dense/bias": np.zeros(3, np.float32)}
    no_pooler = {name: value for name, value in values.items() if "pooler" not in name}
    return [
        (without, {}, "bert/encoder/layer_1/output/dense/kernel is missing"),
        (misshapen, {}, "bert/pooler/dense/bias is [3] in the checkpoint and [8] in the model"),
        (no_pooler, {}, "bert/pooler/dense/kernel is missing"),
        (values, {"labels": LabelMap("tsv", ("a", "b"), regression=False)}, "3 outputs"),
    ]


@pytest.mark.parametrize("number", range(4))
def test_what_cannot_be_written_leaves_nothing(tmp_path, number):
    values, settings, part = refused_writings()[number]
    assert part in message_of(write, tmp_path, values, **settings)
    assert os.listdir(tmp_path) == []


def test_a_source_that_fails_leaves_what_was_there(tmp_path):
    values = reference_weights("encoder")
    write(tmp_path, values)
    before = (tmp_path / "model.safetensors").read_bytes()

    def failing():
        yield from list(values.items())[:5]
        raise UserError("no more")

    shapes = {name: value.shape for name, value in values.items()}
    message = message_of(write_folder, str(tmp_path), shapes, failing(), small_config(), vocabulary=["a"])
    assert message == "no more" and sorted(os.listdir(tmp_path)) == ["config.json", *WEIGHTS]
    assert (tmp_path / "model.safetensors").read_bytes() == before
