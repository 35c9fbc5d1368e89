"""Hugging Face folders: names, shapes, configuration, what is damaged, foreign or dangerous. PyTorch is not needed.

`tests/test_interop.py` holds the same code against `transformers` itself.
"""

import json
import os
import struct
import tracemalloc

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from small_models import MAKERS, randomize, small_config
from torch_pickles import FORMATS, ORDERED, Call, State, both_formats, open_bytes, pickled, program, tensor

from bert_tf2 import modeling
from bert_tf2.config import BertConfig
from bert_tf2.support.errors import UserError
from bert_tf2.weights import huggingface, tensor_files
from bert_tf2.weights.labels import LabelMap

CONFIG = {
    "architectures": ["BertForPreTraining"],
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 4,
    "initializer_range": 0.02,
    "intermediate_size": 6,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 5,
    "model_type": "bert",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "transformers_version": "5.0.0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 7,
}

# Name and shape in a file of transformers, name here.
ENCODER = [
    ("embeddings.word_embeddings.weight", (7, 4), "bert/embeddings/word_embeddings"),
    ("embeddings.position_embeddings.weight", (5, 4), "bert/embeddings/position_embeddings"),
    ("embeddings.token_type_embeddings.weight", (2, 4), "bert/embeddings/token_type_embeddings"),
    ("embeddings.LayerNorm.weight", (4,), "bert/embeddings/LayerNorm/gamma"),
    ("embeddings.LayerNorm.bias", (4,), "bert/embeddings/LayerNorm/beta"),
    ("encoder.layer.0.attention.self.query.weight", (4, 4), "bert/encoder/layer_0/attention/self/query/kernel"),
    ("encoder.layer.0.attention.self.query.bias", (4,), "bert/encoder/layer_0/attention/self/query/bias"),
    ("encoder.layer.0.attention.self.key.weight", (4, 4), "bert/encoder/layer_0/attention/self/key/kernel"),
    ("encoder.layer.0.attention.self.key.bias", (4,), "bert/encoder/layer_0/attention/self/key/bias"),
    ("encoder.layer.0.attention.self.value.weight", (4, 4), "bert/encoder/layer_0/attention/self/value/kernel"),
    ("encoder.layer.0.attention.self.value.bias", (4,), "bert/encoder/layer_0/attention/self/value/bias"),
    ("encoder.layer.0.attention.output.dense.weight", (4, 4), "bert/encoder/layer_0/attention/output/dense/kernel"),
    ("encoder.layer.0.attention.output.dense.bias", (4,), "bert/encoder/layer_0/attention/output/dense/bias"),
    (
        "encoder.layer.0.attention.output.LayerNorm.weight",
        (4,),
        "bert/encoder/layer_0/attention/output/LayerNorm/gamma",
    ),
    ("encoder.layer.0.attention.output.LayerNorm.bias", (4,), "bert/encoder/layer_0/attention/output/LayerNorm/beta"),
    ("encoder.layer.0.intermediate.dense.weight", (6, 4), "bert/encoder/layer_0/intermediate/dense/kernel"),
    ("encoder.layer.0.intermediate.dense.bias", (6,), "bert/encoder/layer_0/intermediate/dense/bias"),
    ("encoder.layer.0.output.dense.weight", (4, 6), "bert/encoder/layer_0/output/dense/kernel"),
    ("encoder.layer.0.output.dense.bias", (4,), "bert/encoder/layer_0/output/dense/bias"),
    ("encoder.layer.0.output.LayerNorm.weight", (4,), "bert/encoder/layer_0/output/LayerNorm/gamma"),
    ("encoder.layer.0.output.LayerNorm.bias", (4,), "bert/encoder/layer_0/output/LayerNorm/beta"),
]
POOLER = [
    ("pooler.dense.weight", (4, 4), "bert/pooler/dense/kernel"),
    ("pooler.dense.bias", (4,), "bert/pooler/dense/bias"),
]
MASKED_LM = [
    ("cls.predictions.transform.dense.weight", (4, 4), "cls/predictions/transform/dense/kernel"),
    ("cls.predictions.transform.dense.bias", (4,), "cls/predictions/transform/dense/bias"),
    ("cls.predictions.transform.LayerNorm.weight", (4,), "cls/predictions/transform/LayerNorm/gamma"),
    ("cls.predictions.transform.LayerNorm.bias", (4,), "cls/predictions/transform/LayerNorm/beta"),
    ("cls.predictions.bias", (7,), "cls/predictions/output_bias"),
]
NEXT_SENTENCE = [
    ("cls.seq_relationship.weight", (2, 4), "cls/seq_relationship/output_weights"),
    ("cls.seq_relationship.bias", (2,), "cls/seq_relationship/output_bias"),
]
SPAN = [("qa_outputs.weight", (2, 4), "cls/squad/output_weights"), ("qa_outputs.bias", (2,), "cls/squad/output_bias")]
LABELS = [("classifier.weight", (3, 4), "output_weights"), ("classifier.bias", (3,), "output_bias")]

CLASSES = {
    "BertModel": POOLER,
    "BertForPreTraining": [*POOLER, *MASKED_LM, *NEXT_SENTENCE],
    "BertForMaskedLM": MASKED_LM,
    "BertForNextSentencePrediction": [*POOLER, *NEXT_SENTENCE],
    "BertForSequenceClassification": [*POOLER, *LABELS],
    "BertForQuestionAnswering": SPAN,
    "BertForTokenClassification": LABELS,
}
WORDS = "bert.embeddings.word_embeddings.weight"
DECODER = "cls.predictions.decoder.weight"


def message_of(call, *arguments, **named) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def tensors_of(architecture: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights under the names that transformers saves that class with."""
    random = np.random.default_rng(seed)
    rows = [*ENCODER, *CLASSES[architecture]]
    bare = architecture == "BertModel"
    named = {
        name if bare or (name, shape, _) not in [*ENCODER, *POOLER] else f"bert.{name}": shape
        for name, shape, _ in rows
    }
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in named.items()}


def write_json(path, content) -> None:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def make_folder(folder, tensors=None, architecture="BertForPreTraining", **changes) -> str:
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", {**CONFIG, "architectures": [architecture], **changes})
    tensors = tensors_of(architecture) if tensors is None else tensors
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


# Names and shapes.


@pytest.mark.parametrize("architecture", CLASSES)
def test_each_class_under_the_reference_s_names(tmp_path, architecture):
    tensors = tensors_of(architecture)
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path, architecture=architecture))
    rows = [*ENCODER, *CLASSES[architecture]]
    assert set(source.shapes) == {reference for _, _, reference in rows} == set(source.dtypes)
    assert source.remarks == [
        '"hidden_act": "gelu" of transformers is the exact function, with erf; it is called "gelu_erf" here.'
    ]
    for name, shape, reference in rows:
        wanted = tensors.get(name, tensors.get(f"bert.{name}"))
        wanted = wanted.T if reference.endswith("kernel") else wanted
        assert source.shapes[reference] == [*wanted.shape] and wanted.size == np.prod(shape)
        np.testing.assert_array_equal(source.get(reference), wanted)
        assert source.dtypes[reference] == "float32"
    assert source.global_step == 0 and source.architecture == architecture
    source.verify()


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


def test_one_variable_under_two_names(tmp_path):
    tensors = tensors_of("BertForPreTraining")
    tensors["bert.embeddings.LayerNorm.gamma"] = tensors["bert.embeddings.LayerNorm.weight"]
    message = message_of(huggingface.HuggingFaceFolder, make_folder(tmp_path, tensors))
    assert "bert.embeddings.LayerNorm.gamma" in message and "bert.embeddings.LayerNorm.weight" in message


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


def test_weights_of_another_configuration(tmp_path):
    message = message_of(huggingface.HuggingFaceFolder, make_folder(tmp_path, hidden_size=6, intermediate_size=7))
    assert "bert.embeddings.word_embeddings.weight is [7, 4], not [7, 6]" in message and "config.json" in message
    message = message_of(huggingface.HuggingFaceFolder, make_folder(tmp_path, intermediate_size=7))
    assert "bert.encoder.layer.0.intermediate.dense.weight is [6, 4], not [7, 4]" in message


def test_a_block_too_many_keeps_its_name(tmp_path):
    """So that whoever loads the weights can say that it is not used."""
    tensors = {**tensors_of("BertModel"), "encoder.layer.1.output.dense.bias": np.zeros(4, np.float32)}
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path, tensors, "BertModel"))
    assert source.shapes["encoder.layer.1.output.dense.bias"] == [4]


def test_other_floats_are_widened(tmp_path):
    tensors = tensors_of("BertModel")
    tensors["embeddings.LayerNorm.bias"] = tensors["embeddings.LayerNorm.bias"].astype(np.float16)
    tensors["pooler.dense.weight"] = tensors["pooler.dense.weight"].astype(np.float64)
    tensors["embeddings.position_ids"] = np.arange(5)[None]
    tensors["counts"] = np.arange(3)
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path, tensors, "BertModel"))
    assert source.dtypes["bert/embeddings/LayerNorm/beta"] == "float16"
    assert [remark for remark in source.remarks if "float32" in remark] == [
        "Numbers that are float16 in the file are read as float32.",
        "Numbers that are float64 in the file are read as float32.",
    ]
    for name, theirs in (("bert/embeddings/LayerNorm/beta", "embeddings.LayerNorm.bias"), ("counts", "counts")):
        np.testing.assert_array_equal(source.get(name), tensors[theirs])
    assert source.get("bert/embeddings/LayerNorm/beta").dtype == np.float32
    assert source.get("bert/pooler/dense/kernel").dtype == np.float32
    assert source.get("counts").dtype == np.int64


def test_where_the_weights_are(tmp_path):
    folder = make_folder(tmp_path / "model")
    file = os.path.join(folder, "model.safetensors")
    assert huggingface.recognises(folder) == huggingface.recognises(file) == file
    assert huggingface.HuggingFaceFolder(file).folder == folder
    assert not huggingface.recognises(str(tmp_path)) and not huggingface.recognises(os.path.join(folder, "config.json"))
    assert not huggingface.recognises(os.path.join(folder, "pytorch_model.bin"))
    assert "holds none of model.safetensors" in message_of(huggingface.HuggingFaceFolder, str(tmp_path))
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
    assert len(source.remarks) == (theirs != ours)


def test_configuration(tmp_path):
    config = huggingface.read_config({**CONFIG, "layer_norm_eps": 1e-5, "id2label": {"0": "a"}})
    assert (config.layer_norm_eps, config.extra, config.type_vocab_size) == (1e-5, {}, 2)
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (4, 6, 7)
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    bare = huggingface.read_config(str(tmp_path))
    assert (bare.vocab_size, bare.type_vocab_size, bare.hidden_act) == (30522, 2, "gelu_erf")
    assert huggingface.is_huggingface_config(CONFIG) and huggingface.is_huggingface_config({"architectures": []})
    assert not huggingface.is_huggingface_config(small_config(layer_norm_eps=1e-5).to_dict())


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


def test_a_configuration_by_itself(tmp_path):
    make_folder(tmp_path)
    assert BertConfig.from_json_file(str(tmp_path / "config.json")) == huggingface.read_config(str(tmp_path))


def test_architectures_without_model_type():
    values = {name: value for name, value in CONFIG.items() if name != "model_type"}
    assert huggingface.read_config(values).hidden_size == 4
    assert "XLNetModel" in message_of(huggingface.read_config, {**values, "architectures": ["XLNetModel"]})


@pytest.mark.parametrize("text, part", [("[1]", "object"), ('{"a":\n', "line 2"), ("[" * 100_000, "config.json")])
def test_a_damaged_configuration(tmp_path, text, part):
    folder = make_folder(tmp_path)
    write_json(tmp_path / "config.json", text)
    assert part in message_of(huggingface.HuggingFaceFolder, folder)


# Labels and tokenizer.

ANSWERS = ("no", "yes", "who knows")
NAMED = {"id2label": dict(enumerate(ANSWERS))}


@pytest.mark.parametrize(
    "architecture, changes, wanted",
    [
        ("BertForSequenceClassification", NAMED, ("BertForSequenceClassification", ANSWERS, False)),
        ("BertForSequenceClassification", {"finetuning_task": "mnli", **NAMED}, ("mnli", ANSWERS, False)),
        (
            "BertForSequenceClassification",
            {},
            ("BertForSequenceClassification", ("LABEL_0", "LABEL_1", "LABEL_2"), False),
        ),
        ("BertForTokenClassification", NAMED, ("ner", ANSWERS, False)),
        ("BertForSequenceClassification", {"problem_type": "regression"}, None),
        ("BertForMultipleChoice", {}, None),
    ],
)
def test_labels(tmp_path, architecture, changes, wanted):
    tensors = tensors_of(architecture if architecture in CLASSES else "BertForSequenceClassification")
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path, tensors, architecture, **changes))
    assert source.labels() == (wanted and LabelMap(*wanted))
    assert any("BertForMultipleChoice" in remark for remark in source.remarks) == (architecture not in CLASSES)


def test_labels_of_a_regression_and_of_no_head(tmp_path):
    tensors = tensors_of("BertForSequenceClassification")
    tensors.update({"classifier.weight": tensors["classifier.weight"][:1], "classifier.bias": np.zeros(1, np.float32)})
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path, tensors, "BertForSequenceClassification"))
    assert source.labels() == LabelMap("BertForSequenceClassification", (), regression=True)
    assert huggingface.HuggingFaceFolder(make_folder(tmp_path)).labels() is None


@pytest.mark.parametrize(
    "named", [{"0": "a", "1": "b"}, {"0": "a", "1": "b", "2": "a"}, {"0": "a", "1": "b", "3": "c"}]
)
def test_labels_that_are_not_those_of_the_outputs(tmp_path, named):
    folder = make_folder(tmp_path, architecture="BertForTokenClassification", id2label=named)
    assert "3 outputs" in message_of(huggingface.HuggingFaceFolder(folder).labels)


def test_without_architectures_the_pooler_tells_taggers_from_classifiers(tmp_path):
    for architecture, task in (("BertForTokenClassification", "ner"), ("BertForSequenceClassification", "BertForSeq")):
        folder = make_folder(tmp_path / task, architecture=architecture, **NAMED)
        write_json(tmp_path / task / "config.json", {**CONFIG, "architectures": None, **NAMED})
        assert huggingface.HuggingFaceFolder(folder).labels().task.startswith(task)


def test_vocabulary(tmp_path):
    source = huggingface.HuggingFaceFolder(make_folder(tmp_path))
    assert source.vocabulary() is None and source.tokenizer_settings() == {}
    model = {"type": "WordPiece", "vocab": {"[PAD]": 0, "b": 2, "a": 1}}
    added = [{"id": 0, "content": "[PAD]"}, {"id": 3, "content": "new"}]
    normalizer = {"type": "BertNormalizer", "lowercase": False, "strip_accents": True}
    write_json(tmp_path / "tokenizer.json", {"model": model, "added_tokens": added, "normalizer": normalizer})
    source = huggingface.HuggingFaceFolder(str(tmp_path))
    assert source.vocabulary() == ["[PAD]", "a", "b", "new"]
    assert source.tokenizer_settings() == {"do_lower_case": False}
    assert any("accents" in remark for remark in source.remarks)
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": True, "strip_accents": None})
    assert source.tokenizer_settings() == {"do_lower_case": True}
    (tmp_path / "vocab.txt").write_text("[PAD]\nc\n")
    assert source.vocabulary() == ["[PAD]", "c"]


@pytest.mark.parametrize(
    "content, part",
    [
        ({"model": {"type": "BPE", "vocab": {"a": 0}}}, "WordPiece"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 2}}}, "0, 1, 2"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 0}}}, "0, 1, 2"),
        ({"model": []}, "WordPiece"),
    ],
)
def test_a_tokenizer_that_is_not_wordpiece(tmp_path, content, part):
    folder = make_folder(tmp_path)
    write_json(tmp_path / "tokenizer.json", content)
    assert part in message_of(huggingface.HuggingFaceFolder(folder).vocabulary)


# Several files.


def make_shards(folder, **changes) -> dict[str, np.ndarray]:
    """A model in two files; `changes` go into the index."""
    folder.mkdir(exist_ok=True)
    tensors = tensors_of("BertForPreTraining")
    write_json(folder / "config.json", CONFIG)
    weight_map = {}
    for part in range(2):
        file = f"model-0000{part + 1}-of-00002.safetensors"
        chosen = {name: value for index, (name, value) in enumerate(tensors.items()) if index % 2 == part}
        safetensors.numpy.save_file(chosen, folder / file)
        weight_map |= dict.fromkeys(chosen, file)
    write_json(folder / "model.safetensors.index.json", {"weight_map": {**weight_map, **changes}})
    return tensors


def test_weights_in_several_files(tmp_path):
    tensors = make_shards(tmp_path / "shards")
    source = huggingface.HuggingFaceFolder(str(tmp_path / "shards"))
    whole = huggingface.HuggingFaceFolder(make_folder(tmp_path / "whole", tensors))
    assert source.shapes == whole.shapes
    for name in whole.shapes:
        np.testing.assert_array_equal(source.get(name), whole.get(name))
    part = str(tmp_path / "shards" / "model-00002-of-00002.safetensors")
    assert "a part of the weights only" in message_of(huggingface.HuggingFaceFolder, part)
    os.remove(part)
    assert f"{part}: is missing" in message_of(huggingface.HuggingFaceFolder, str(tmp_path / "shards"))


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "C:\\m.bin", "x\0y"]
)
def test_an_index_that_leads_out_of_the_folder(tmp_path, name):
    make_shards(tmp_path, **{WORDS: name})
    message = message_of(huggingface.HuggingFaceFolder, str(tmp_path))
    assert "not in the same folder" in message and "index.json" in message


def test_an_index_that_is_wrong(tmp_path):
    make_shards(tmp_path, something="model-00001-of-00002.safetensors")
    message = message_of(huggingface.HuggingFaceFolder, str(tmp_path))
    assert "model-00001-of-00002.safetensors: lacks 'something'" in message
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {}})
    assert "weight_map" in message_of(huggingface.HuggingFaceFolder, str(tmp_path))


# Safetensors files that are damaged. The format's own library must refuse them too.


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_bytes(header, size=8, length=None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(size)


BROKEN = {
    "empty": b"",
    "a header of an exabyte": safetensors_bytes({}, length=1 << 60),
    "no JSON": safetensors_bytes(b'{"a":'),
    "no object": safetensors_bytes(b"[1]"),
    "no text": safetensors_bytes(b"\xff\xfe{}"),
    "deep": safetensors_bytes(b"[" * 100_000),
    "cut off": safetensors_bytes({"a": entry([2], 0, 8)}, 4),
    "too long": safetensors_bytes({"a": entry([2], 0, 8)}, 12),
    "two in one place": safetensors_bytes({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, 12),
    "a gap": safetensors_bytes({"a": entry([2], 4, 12)}, 12),
    "not its size": safetensors_bytes({"a": entry([3], 0, 8)}),
    "of absurd size": safetensors_bytes({"a": entry([1 << 40, 1 << 40], 0, 8)}),
    "of negative size": safetensors_bytes({"a": entry([-2, -1], 0, 8)}),
    "of no dtype": safetensors_bytes({"a": entry([2], 0, 8, "X32")}),
    "no place": safetensors_bytes({"a": {"dtype": "F32", "shape": [2]}}),
    "no shape": safetensors_bytes({"a": entry(3, 0, 8)}),
}


@pytest.mark.parametrize("what", BROKEN)
def test_damaged_safetensors(tmp_path, what):
    path = tmp_path / "model.safetensors"
    path.write_bytes(BROKEN[what])
    with pytest.raises(safetensors.SafetensorError), safetensors.safe_open(path, "np"):
        pass
    assert message_of(tensor_files.SafetensorsFile, str(path)).startswith(str(path))


def test_a_tensor_of_very_many_axes(tmp_path):
    """The library takes it; numpy could not."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"a": entry([1] * 1_000_000, 0, 4)}, 4))
    assert "makes no sense" in message_of(tensor_files.SafetensorsFile, str(path))


def test_bfloat16(tmp_path):
    """The first half of a float32: sign, exponent and 7 bits."""
    path = tmp_path / "model.safetensors"
    numbers = np.float32([1.0, -2.5, 3.140625, 1e-30, np.inf]).view(np.uint32) >> 16
    data = numbers.astype("<u2").tobytes()
    path.write_bytes(safetensors_bytes({"a": entry([5], 0, 10, "BF16")}, 0) + data)
    file = tensor_files.SafetensorsFile(str(path))
    assert file.tensors["a"].dtype == "bfloat16"
    np.testing.assert_array_equal(file.read("a")[[0, 1, 2, 4]], np.float32([1.0, -2.5, 3.140625, np.inf]))
    np.testing.assert_allclose(file.read("a")[3], 1e-30, rtol=2**-7)


def test_a_dtype_that_is_not_read(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"a": entry([8], 0, 8, "F8_E4M3")}))
    assert "F8_E4M3" in message_of(tensor_files.SafetensorsFile, str(tmp_path / "model.safetensors"))


def test_what_is_written_is_the_format_and_nothing_private(tmp_path):
    """Another program that changes a number and keeps the metadata writes a good file."""
    path = str(tmp_path / "model.safetensors")
    values = {"a": np.arange(64, dtype=np.float32), "b": np.ones([3, 5], np.float32)}
    tensor_files.write_safetensors(path, {name: value.shape for name, value in values.items()}, values.items())
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
    assert metadata == {"format": "pt"}
    values["a"][3] = 7
    for kept in (metadata, {**metadata, "sha256": "0" * 64, "written_by": "bert_tf2"}):  # as this project once wrote
        safetensors.numpy.save_file(values, path, kept)
        np.testing.assert_array_equal(tensor_files.SafetensorsFile(path).read("a"), values["a"])


# Weights that torch.save wrote; tests/test_torch_files.py has its format.


@pytest.mark.parametrize("kind", FORMATS)
def test_a_folder_with_pytorch_model_bin(tmp_path, kind):
    tensors = tensors_of("BertForPreTraining")
    arrays = {str(index): value for index, value in enumerate(tensors.values())}
    content = {name: tensor(str(index), value) for index, (name, value) in enumerate(tensors.items())}
    content[DECODER] = content[WORDS]
    whole = State(Call(ORDERED, ()), {"_metadata": Call(ORDERED, ())})
    data = (
        program(whole)[:-1] + b"(" + b"".join(pickled(name) + pickled(value) for name, value in content.items()) + b"u."
    )
    make_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    open_bytes(tmp_path, both_formats(data, arrays)[kind])
    source = huggingface.HuggingFaceFolder(str(tmp_path))
    reference = huggingface.HuggingFaceFolder(make_folder(tmp_path / "other", tensors))
    assert source.shapes == reference.shapes
    for name in source.shapes:
        np.testing.assert_array_equal(source.get(name), reference.get(name))


# Writing.


def reference_weights(kind: str) -> dict[str, np.ndarray]:
    """Random variables of a model of this project, by the reference's names."""
    model = modeling.BertModel(small_config()) if kind == "encoder" else MAKERS[kind](small_config())
    return randomize(model)


def write(folder, values, config=None, **settings) -> list[str]:
    shapes = {name: [*value.shape] for name, value in values.items()}
    return huggingface.write_folder(str(folder), shapes, iter(values.items()), config or small_config(), **settings)


TAGS = LabelMap("ner", ("O", "B-PER", "I-PER"), regression=False)
WRITTEN = {  # what there is, and what it becomes
    ("encoder", None): "BertModel",
    ("pretraining", None): "BertForPreTraining",
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
    report = write(
        tmp_path, reference_weights("tagging"), config, vocabulary=vocabulary, do_lower_case=False, labels=TAGS
    )
    assert (
        '"hidden_act": "gelu_pytorch_tanh" of transformers is the approximation with tanh; it is called "gelu" here.'
        in report
    )
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"]
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["hidden_act"] == "gelu_pytorch_tanh" and content["layer_norm_eps"] == 1e-6
    assert content["id2label"] == {"0": "O", "1": "B-PER", "2": "I-PER"} and content["label2id"]["I-PER"] == 2
    assert content["pad_token_id"] == 1
    source = huggingface.HuggingFaceFolder(str(tmp_path))
    assert source.vocabulary() == vocabulary and source.tokenizer_settings() == {"do_lower_case": False}
    assert source.config == config and source.labels() == TAGS


def test_the_exact_function_keeps_its_meaning_too(tmp_path):
    write(tmp_path, reference_weights("encoder"), small_config(hidden_act="gelu_erf"))
    assert json.loads((tmp_path / "config.json").read_text())["hidden_act"] == "gelu"
    assert huggingface.HuggingFaceFolder(str(tmp_path)).config.hidden_act == "gelu_erf"


def test_a_regression_is_written(tmp_path):
    values = reference_weights("classifier")
    values.update(output_weights=values["output_weights"][:1], output_bias=values["output_bias"][:1])
    labels = LabelMap("sts-b", (), regression=True)
    write(tmp_path, values, labels=labels)
    content = json.loads((tmp_path / "config.json").read_text())
    assert (content["problem_type"], content["id2label"]) == ("regression", {"0": "LABEL_0"})
    assert huggingface.HuggingFaceFolder(str(tmp_path)).labels().regression


def test_architectures_that_are_asked_for(tmp_path):
    values = reference_weights("pretraining")
    report = write(tmp_path / "mlm", values, architecture="BertForMaskedLM")
    assert any("cls/seq_relationship/output_weights" in line and "bert/pooler" in line for line in report)
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
        (misshapen, {}, "bert/pooler/dense/bias is [3], not [8]"),
        (no_pooler, {}, "bert/pooler/dense/kernel is missing"),
        (values, {"architecture": "BertForPreTraining"}, "cls/predictions/output_bias is missing"),
        (values, {"architecture": "BertForSummaries"}, "BertForSummaries is none of"),
        (values, {"labels": {**TAGS, "labels": ("a", "b")}}, "3 outputs"),
    ]


@pytest.mark.parametrize("number", range(6))
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
    message = message_of(huggingface.write_folder, str(tmp_path), shapes, failing(), small_config(), vocabulary=["a"])
    assert message == "no more" and sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_another_tokenizer_in_the_way(tmp_path):
    write_json(tmp_path / "tokenizer.json", {})
    assert "tokenizer.json" in message_of(write, tmp_path, reference_weights("encoder"), vocabulary=["a"])
    write(tmp_path, reference_weights("encoder"))


def test_writing_and_reading_hold_one_tensor_in_memory(tmp_path):
    count, shape = 12, (500, 1000)
    shapes = {str(index): shape for index in range(count)}
    arrays = ((name, np.full(shape, 7, np.float32)) for name in shapes)
    path = str(tmp_path / "model.safetensors")
    tracemalloc.start()
    try:
        tensor_files.write_safetensors(path, shapes, arrays)
        file = tensor_files.SafetensorsFile(path)
        assert all(file.read(name)[3, 3] == 7 for name in shapes)
        assert tracemalloc.get_traced_memory()[1] < 3.5 * 2_000_000
    finally:
        tracemalloc.stop()
