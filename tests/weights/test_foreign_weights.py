"""Weights that are almost those of a BERT here: one verdict in load and conversion, and the remedy."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import toy_data
from huggingface_folders import CONFIG, make_folder, tensors_of, write_json
from refused import message_of

import bert_tf2
from bert_tf2 import heads, modeling
from bert_tf2.tokenization import SPECIAL_TOKENS, load_vocab
from bert_tf2.weights import bundle, checkpoint, convert, names, sources
from bert_tf2.weights.options import ConversionOptions
from bert_tf2.weights.text_rules import check_special_tokens

TEXTS, TAGS = (tensors_of(f"BertFor{kind}Classification") for kind in ("Sequence", "Token"))
ONE = {name: value[:1] if name.startswith("classifier") else value for name, value in TEXTS.items()}


def folder_of(
    path: pathlib.Path, tensors, architecture: str | None = "BertForSequenceClassification", **changes
) -> str:
    folder = make_folder(path, tensors, architecture, **changes)
    if architecture is None:
        write_json(path / "config.json", {**CONFIG, "architectures": None, **changes})
    (path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in [*SPECIAL_TOKENS, "the", "film"]))
    return folder


def converted(source: str, output: pathlib.Path, to: str = "hf") -> list[str]:
    return convert.run(ConversionOptions(input=source, output=str(output), to=to))


EXTRA = np.zeros([3, 3], np.float32)
ENCODERS_ONLY = {
    "several regressions": (TEXTS, {"problem_type": "regression"}, "no regression with several outputs"),
    "multiple choice": (ONE, {"architecture": "BertForMultipleChoice"}, "no BertForMultipleChoice here"),
    "crf": (
        TAGS | {"crf.transitions": EXTRA},
        {"architecture": "BertForTokenClassification"},
        "on crf.transitions too",
    ),
    "another head": (TEXTS | {"classifier.out.weight": EXTRA}, {}, "on classifier.out.weight too"),
}


@pytest.mark.parametrize("kind", ENCODERS_ONLY)
def test_outputs_that_mean_something_else_leave_an_encoder(tmp_path, kind):
    tensors, changes, remark = ENCODERS_ONLY[kind]
    folder = folder_of(tmp_path / "in", tensors, **changes)
    bert = bert_tf2.load(folder)
    assert type(bert.model) is modeling.BertModel and bert.labels is None
    assert "has no weights for classify()" in message_of(bert.classify, "the film")
    report = converted(folder, tmp_path / "out")
    assert any(remark in line for line in report) and any(" a BertModel with " in line for line in report)
    assert any(line.startswith("Left out: classifier.bias, classifier") for line in report)


DISTANCES = {"bert.encoder.layer.0.attention.self.distance_embedding.weight": EXTRA}
INTEGERS = {"bert.pooler.dense.weight": TEXTS["bert.pooler.dense.weight"].astype(np.int8)}
REFUSED = {
    "relative positions": (TEXTS | DISTANCES, {}, "there is no place for bert.encoder.layer.0.attention.self.distance"),
    "a block too many": (TEXTS | {"bert.encoder.layer.1.output.dense.bias": EXTRA}, {}, "which has 1 layers"),
    "int8": (TEXTS | INTEGERS, {}, "bert.pooler.dense.weight is int8, so the weights are quantized"),
    "texts or tokens": (TEXTS, {"architecture": None}, 'add "architectures": ["BertForSequenceClassification"], or'),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_by_both(tmp_path, kind):
    tensors, changes, part = REFUSED[kind]
    folder = folder_of(tmp_path / "in", tensors, **changes)
    message = message_of(bert_tf2.load, folder)
    assert part in message and message.startswith(folder) and message == message_of(converted, folder, tmp_path / "out")


@pytest.mark.parametrize("named", [{}, {"id2label": {"0": "O", "1": "B-X", "2": "I-X"}}])
def test_a_tagger_without_architectures(tmp_path, named):
    """It has no pooler, or names of tags."""
    tensors = TAGS | ({name: value for name, value in TEXTS.items() if "pooler" in name} if named else {})
    bert = bert_tf2.load(folder_of(tmp_path, tensors, None, **named))
    assert type(bert.model) is heads.TaggingModel and len(bert.tag(["the", "film"])) == 2


def test_equal_names_of_labels_are_refused_where_they_are_used(tmp_path):
    folder = folder_of(tmp_path / "in", TEXTS, id2label={"0": "a", "1": "b", "2": "a"})
    converted(folder, tmp_path / "tf1", "tf1")
    for path in (folder, tmp_path / "tf1"):
        bert = bert_tf2.load(path)
        assert bert.embed("the film").shape == (4,)
        assert "'a' is the name of two outputs; give each" in message_of(bert.classify, "the film")


# What names begin with


@pytest.mark.parametrize("prefix", ["model/", "module/"])
def test_a_common_prefix_of_a_checkpoint(tmp_path, prefix):
    model = heads.SpanModel(toy_data.config(num_hidden_layers=1))
    values = {name: variable.numpy() for name, variable in names.tf1_variables(model).items()}
    bundle.save(str(tmp_path / "x.ckpt"), {f"{prefix}{name}": value for name, value in values.items()}, 7)
    source = sources.open_weights(str(tmp_path))
    assert {*source.shapes} == {*values, "global_step"}
    assert source.remarks == [f"Names are read without {prefix}, with which they begin."]
    checkpoint.initialize(model, str(tmp_path))


@pytest.mark.parametrize("prefix", ["model.", "0.auto_model."])
def test_a_common_prefix_in_a_folder_of_hugging_face(tmp_path, prefix):
    one = sources.open_weights(folder_of(tmp_path / "one", TEXTS))
    other = sources.open_weights(folder_of(tmp_path / "other", {prefix + name: value for name, value in TEXTS.items()}))
    assert one.shapes == other.shapes


@pytest.mark.parametrize(
    "held",
    [
        [
            "electra/embeddings/word_embeddings",
            "electra/encoder/layer_0/output/dense/bias",
            "generator_predictions/bias",
        ],
        ["bert/encoder/transformer/group_0/inner_group_0/ffn_1/bias", "bert/embeddings/word_embeddings"],
        ["bert/embeddings/word_embeddings/ExponentialMovingAverage"],
    ],
)
def test_other_models_are_told_by_what_they_hold(tmp_path, held):
    bundle.save(str(tmp_path / "x.ckpt"), dict.fromkeys(held, EXTRA))
    (tmp_path / "bert_config.json").write_text(toy_data.config().to_json_string())
    message = message_of(converted, str(tmp_path), tmp_path / "out")
    assert message == f"{tmp_path}/x.ckpt: is not a BERT; it holds {', '.join(sorted(held))}"
    assert message_of(checkpoint.initialize, modeling.BertModel(toy_data.config()), str(tmp_path)) == message


# Folders and files of another kind


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("tf_model.h5", "weights of transformers for Keras 2; let transformers 4 save them again"),
        ("flax_model.msgpack", "from_flax=True"),
        ("model.safetensors.index.json", "the index of weights in several files; let transformers save them in one"),
        ("model.fp16.safetensors", "a variant of the weights; give the name of that file"),
        ("adapter_model.safetensors", "an adapter (LoRA), which changes other weights; merge them with peft"),
        ("0_BERT/config.json", "the parts of a sentence-transformers model; give the name of that folder"),
        ("snapshots/8a6/config.json", "the cache of Hugging Face's hub; give the name of a folder in its snapshots"),
        ("models--bert-base-cased/refs/main", "the cache of Hugging Face's hub"),
    ],
)
def test_what_a_folder_holds_instead(tmp_path, name, part):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    message = message_of(sources.open_weights, str(tmp_path))
    assert message.startswith(f"{tmp_path}: holds {name.split('/')[0]}, ") and part in message


def test_released_weights_in_the_output_folder(tmp_path):
    bundle.save(str(tmp_path / "bert_model.ckpt"), {"bert/pooler/dense/bias": EXTRA})
    message = message_of(checkpoint.weights_in_use, str(tmp_path), None)
    assert f"; give --init_checkpoint={tmp_path}/bert_model.ckpt, and another --output_dir" in message


def test_a_vocabulary_of_sentencepiece(tmp_path):
    (tmp_path / "spm.vocab").write_text("[PAD]\t0\n<unk>\t0\n\u2581the\t-3.2\n")
    message = message_of(check_special_tokens, load_vocab(str(tmp_path / "spm.vocab")), "spm.vocab")
    assert (
        "not the vocabulary of a BERT model but SentencePiece's, whose lines have scores; give the vocab.txt" in message
    )
