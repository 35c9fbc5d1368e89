"""Folders of sentence-transformers: how they make a vector, or a score, is the default of `embed` and `classify`."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from google_folders import write_vocab
from huggingface_folders import make_folder, tensors_of, write_json
from refused import refuses

import bert_tf2
from bert_tf2 import commands
from bert_tf2.tokenization import SPECIAL_TOKENS

LONG = "the film the film"
MEAN = {"word_embedding_dimension": 4, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
PROMPTS, VOCAB = "config_sentence_transformers.json", [*SPECIAL_TOKENS, "the", "film"]


def written(root: pathlib.Path, pooling: dict, *more: str, inner: str = "", **settings) -> pathlib.Path:
    """Writes the folder; `more` are steps behind the pooling. Returns the folder of the weights."""
    root.mkdir(exist_ok=True)
    folder = root / inner
    make_folder(folder, architecture="BertModel")
    write_vocab(folder / "vocab.txt", VOCAB)
    steps = [(inner, "Transformer"), ("1_Pooling", "Pooling"), *((f"2_{kind}", kind) for kind in more)]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in steps]
    write_json(root / "modules.json", modules)
    (root / "1_Pooling").mkdir()
    write_json(root / "1_Pooling" / "config.json", pooling)
    write_json(folder / "sentence_bert_config.json", settings)
    return folder


@pytest.mark.parametrize(
    ("pooling", "more", "inner", "how"),
    [
        (MEAN, ["Normalize"], "0_BERT", lambda tokens: tokens.mean(axis=0) / np.linalg.norm(tokens.mean(axis=0))),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, [], "", lambda tokens: tokens[0]),
        ({"pooling_mode": "max", "include_prompt": True}, [], "0_BERT", lambda tokens: tokens.max(axis=0)),
    ],
)
def test_embed_makes_the_vectors_of_the_folder(tmp_path, log_lines, pooling, more, inner, how):
    """Old and new names of the settings. Arguments count before the files."""
    bert = bert_tf2.load(written(tmp_path / "st", pooling, *more, inner=inner, max_seq_length=4))
    tokens = bert.embed(LONG, "none", max_seq_length=4)  # [CLS] the film [SEP]
    np.testing.assert_allclose(bert.embed(LONG), how(tokens), rtol=1e-5)
    assert len(tokens) == 4 and any("vectors as sentence-transformers makes them" in line for line in log_lines)
    found = bert.embed([LONG], "cls", normalize=False, max_seq_length=5)
    np.testing.assert_allclose(found, bert.embed(LONG, "none", max_seq_length=5)[:1], rtol=1e-5)


def test_unknown_steps_are_refused_unless_the_arguments_say_all(tmp_path):
    for pooling, more, settings, words in (
        (MEAN, ["Dense"], {}, "Dense"),
        ({**MEAN, "pooling_mode_cls_token": True}, [], {}, "mean_tokens cls_token"),
        ({"pooling_mode_weightedmean_tokens": True}, [], {}, "weightedmean_tokens"),
        (MEAN, [], {"do_lower_case": True}, "lower-cases"),
    ):
        bert = bert_tf2.load(written(tmp_path / words, pooling, *more, **settings))
        refuses(f"modules.json {words} pooling, normalize max_seq_length", bert.embed, LONG)
    assert bert.embed(LONG, "mean", normalize=False, max_seq_length=5).shape == (4,)


@pytest.mark.parametrize(("included", "inner"), [(True, "0_BERT"), (False, "")])
def test_prompts_precede_the_texts(tmp_path, included, inner):
    """By default that of the folder; without `include_prompt`, its tokens and [CLS] are not in the mean."""
    folder = written(tmp_path / "st", {**MEAN, "include_prompt": included}, inner=inner)
    content = {"prompts": {"query": "the ", "film": "film film ", "none": None}, "default_prompt_name": "query"}
    write_json(tmp_path / "st" / PROMPTS, content)
    bert = bert_tf2.load(folder)
    for given, prompt in (
        ({}, "the "),
        ({"prompt_name": "film"}, "film film "),
        ({"prompt_name": "none"}, ""),
        ({"prompt": "film "}, "film "),
        ({"pooling": "mean", "normalize": False, "max_seq_length": 5}, "the "),
    ):
        tokens = bert.embed(f"{prompt}film", "none", prompt="")
        wanted = tokens[0 if included or not prompt else 1 + len(prompt.split()) :].mean(axis=0)
        np.testing.assert_allclose(bert.embed(["film"], **given)[0], wanted, rtol=1e-5)
    assert len(bert.embed(("film", "the"), "none")) == 5  # [CLS] the film [SEP] the, cut
    refuses("query, film, none", bert.embed, LONG, prompt_name="passage")
    refuses("one of the two", bert.embed, LONG, prompt_name="film", prompt="film ")
    if not included:
        refuses("prompt none of the text", bert.embed, "film", prompt="the film the film ")
    for wrong in ({"prompts": ["query"]}, {"prompts": {"query": "the "}, "default_prompt_name": "passage"}):
        write_json(tmp_path / "st" / PROMPTS, wrong)
        refuses(f"{PROMPTS} prompt", bert_tf2.load(folder).embed, LONG)


# Scores of cross-encoders

SIGMOID, IDENTITY, RELU = (
    {"activation_fn": f"torch.nn.modules.{name}"}
    for name in ("activation.Sigmoid", "linear.Identity", "activation.ReLU")
)
TANH = {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh"}
CROSS = {"model_type": "CrossEncoder"}


def cross_encoder(folder: pathlib.Path, outputs: int, stated: dict, beside: dict | None = None) -> str:
    """A folder of CrossEncoder; `stated` is in config.json, `beside` in the file of newer versions."""
    tensors = tensors_of("BertForSequenceClassification")
    tensors["classifier.weight"], tensors["classifier.bias"] = np.ones([outputs, 4], "f4"), np.zeros(outputs, "f4")
    names = {str(index): f"LABEL_{index}" for index in range(outputs)}
    made = make_folder(folder, tensors, "BertForSequenceClassification", id2label=names, **stated)
    write_vocab(folder / "vocab.txt", VOCAB)
    if beside:
        write_json(folder / PROMPTS, beside)
    return made


@pytest.mark.parametrize(
    ("stated", "beside", "function"),
    [
        ({}, None, ""),  # of transformers
        ({}, {"prompts": {}}, ""),
        ({"sentence_transformers": IDENTITY}, None, ""),
        ({"sentence_transformers": {"version": "4.1.0"}}, None, "sigmoid"),  # the default there
        ({"sentence_transformers": {"activation_fn": "mine.Scale"}}, None, "sigmoid"),  # not trusted there
        (TANH, None, "tanh"),
        ({"sbert_ce_default_activation_function": None}, None, "sigmoid"),
        ({}, {**CROSS, **SIGMOID}, "sigmoid"),
        ({}, CROSS, "sigmoid"),
        (TANH, {**CROSS, **IDENTITY}, ""),
    ],
)
def test_the_function_of_a_cross_encoders_scores(tmp_path, log_lines, stated, beside, function):
    """It is announced: run_classifier.py and Keras' models have the number itself."""
    bert = bert_tf2.load(cross_encoder(tmp_path / "cross", 1, stated, beside))
    assert bert.labels.activation == function
    assert any("sentence-transformers' predict()" in line for line in log_lines) == bool(function)


def test_scores_of_a_cross_encoder_are_those_of_its_predict(tmp_path, log_lines):
    """Also those of a model that is saved or converted."""
    text = ("film", "the")
    plain = bert_tf2.load(cross_encoder(tmp_path / "plain", 1, {})).classify(text)["score"]
    bert = bert_tf2.load(cross_encoder(tmp_path / "cross", 1, {"sentence_transformers": SIGMOID}))
    bert.save_folder(tmp_path / "saved")
    commands.call("convert_checkpoint", input=bert.path, output=str(tmp_path / "tf1"), to="tf1")
    cross_encoder(tmp_path / "tanh", 1, TANH)
    for folder in ("cross", "saved", "tf1", "tanh"):
        wanted = np.tanh(plain) if folder == "tanh" else 1 / (1 + np.exp(-plain))
        assert bert_tf2.load(tmp_path / folder).classify(text)["score"] == pytest.approx(wanted, abs=1e-5), folder
    # Each of several outputs by itself, as predict() has them; and a function that is not here is named.
    found = bert_tf2.load(cross_encoder(tmp_path / "several", 3, {"sentence_transformers": SIGMOID})).classify("film")
    assert sum(found.values()) != pytest.approx(1.0, abs=1e-3)
    bert_tf2.load(cross_encoder(tmp_path / "relu", 1, {"sentence_transformers": RELU}))
    assert any("ReLU" in line for line in log_lines)


@pytest.mark.parametrize("form", ["saved_model", pytest.param("onnx", marks=pytest.mark.extra)])
def test_an_export_has_the_scores_of_a_cross_encoder(tmp_path, form):
    bert, text = bert_tf2.load(cross_encoder(tmp_path / "cross", 1, TANH)), ("film", "the")
    how = {"init_checkpoint": bert.path, "export_dir": str(tmp_path / "served"), "text_signatures": False}
    commands.call("export_saved_model", task="classifier", format=form, **how)
    folder, ids = tmp_path / "served" / "1", bert.tokenize(text)
    if form == "onnx":
        found = pytest.importorskip("onnxruntime").InferenceSession(folder / "model.onnx").run(["value"], ids)[0]
    else:
        ids = {name: tf.constant(values) for name, values in ids.items()}
        found = tf.saved_model.load(str(folder)).signatures["serving_default"](**ids)["value"]
    assert float(found[0]) == pytest.approx(bert.classify(text)["score"], abs=1e-5)
