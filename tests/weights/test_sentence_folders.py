"""Folders of sentence-transformers: how they make vectors is what `embed` does by default."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from huggingface_folders import make_folder, tensors_of, write_json
from refused import message_of

import bert_tf2
from bert_tf2 import commands
from bert_tf2.weights.task_file import SentenceVectors, read_sentence_vectors

LONG = "the film the film"
MEAN = {"word_embedding_dimension": 4, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


def written(root: pathlib.Path, pooling: dict, *more: str, inner: str = "", **settings) -> pathlib.Path:
    """Writes the folder; `more` are steps behind the pooling."""
    root.mkdir(exist_ok=True)
    folder = root / inner
    make_folder(folder, architecture="BertModel")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nfilm\n")
    steps = [(inner, "Transformer"), ("1_Pooling", "Pooling"), *((f"2_{kind}", kind) for kind in more)]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in steps]
    write_json(root / "modules.json", modules)
    (root / "1_Pooling").mkdir()
    write_json(root / "1_Pooling" / "config.json", pooling)
    if settings:
        write_json(folder / "sentence_bert_config.json", settings)
    return folder


@pytest.mark.parametrize("inner", ["", "0_BERT"])
def test_embed_does_what_the_folder_says(tmp_path, log_lines, inner):
    bert = bert_tf2.load(written(tmp_path / "st", MEAN, "Normalize", inner=inner, max_seq_length=4))
    mean = bert.embed(LONG, "none", max_seq_length=4).mean(axis=0)  # [CLS] the film [SEP]
    found = bert.embed(LONG)
    np.testing.assert_allclose(found, mean / np.linalg.norm(mean), rtol=1e-5)
    assert any(
        "vectors as sentence-transformers makes them, SentenceVectors(pooling='mean'," in row for row in log_lines
    )
    np.testing.assert_allclose(bert.embed([LONG], normalize=False)[0], mean, rtol=1e-5)
    assert [len(bert.embed(LONG, "none", max_seq_length=length)) for length in (4, 5)] == [4, 5]
    longer = bert.embed(LONG, "cls", normalize=False, max_seq_length=5)
    np.testing.assert_allclose(longer, bert.embed(LONG, "none", max_seq_length=5)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "more", "wanted"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, [], SentenceVectors("cls")),
        ({"pooling_mode": "max", "include_prompt": True}, ["Normalize"], SentenceVectors("max", True)),
    ],
)
def test_old_and_new_names(tmp_path, pooling, more, wanted):
    assert read_sentence_vectors(str(written(tmp_path / "st", pooling, *more))) == wanted
    assert read_sentence_vectors(make_folder(tmp_path / "plain")) is None


@pytest.mark.parametrize(
    ("pooling", "more", "settings", "part"),
    [
        (MEAN, ["Dense"], {}, "has the steps Pooling, Dense behind the encoder"),
        ({**MEAN, "pooling_mode_cls_token": True}, [], {}, "has the pooling mean_tokens and cls_token"),
        ({"pooling_mode_weightedmean_tokens": True}, [], {}, "has the pooling weightedmean_tokens"),
        (MEAN, [], {"do_lower_case": True}, "lower-cases text before the tokenizer does"),
    ],
)
def test_what_is_not_here_is_refused_unless_the_arguments_say_all(tmp_path, pooling, more, settings, part):
    bert = bert_tf2.load(written(tmp_path / "st", pooling, *more, **settings))
    message = message_of(bert.embed, LONG)
    assert message.startswith(f"{tmp_path}/st/modules.json: {part}") and "give pooling, normalize" in message
    assert bert.embed(LONG, "mean", normalize=False, max_seq_length=5).shape == (4,)


@pytest.mark.parametrize("inner", ["", "0_BERT"])
@pytest.mark.parametrize("included", [True, False])
def test_prompts_stand_before_the_texts(tmp_path, inner, included):
    """By default that of the folder; without `include_prompt`, its tokens and [CLS] are not in the mean."""
    folder = written(tmp_path / "st", {**MEAN, "include_prompt": included}, inner=inner)
    prompts = {"query": "the ", "film": "film film ", "none": None}
    write_json(
        tmp_path / "st" / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"}
    )
    bert = bert_tf2.load(folder)

    def wanted(text: str, prompt: str) -> np.ndarray:
        tokens = bert.embed(prompt + text, "none", prompt="")
        return tokens[0 if included or not prompt else 1 + len(prompt.split()) :].mean(axis=0)

    for given, prompt in (
        ({}, "the "),
        ({"prompt_name": "film"}, "film film "),
        ({"prompt_name": "none"}, ""),
        ({"prompt": "film "}, "film "),
        ({"prompt": ""}, ""),
        ({"pooling": "mean", "normalize": False, "max_seq_length": 5}, "the "),
    ):
        np.testing.assert_allclose(bert.embed(["film"], **given)[0], wanted("film", prompt), rtol=1e-5)
    assert len(bert.embed(("film", "the"), "none")) == 5  # [CLS] the film [SEP] the, cut
    np.testing.assert_allclose(bert.embed("film", "cls"), bert.embed("the film", "none", prompt="")[0], rtol=1e-5)
    assert "are query, film, none" in message_of(bert.embed, LONG, prompt_name="passage")
    assert "give one of the two" in message_of(bert.embed, LONG, prompt_name="film", prompt="film ")
    assert "prompt=5" in message_of(bert.embed, LONG, prompt=5)
    assert included or "leaves none of the text" in message_of(bert.embed, "film", prompt="the film the film ")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"prompts": ["query"]}, "prompts must be names with texts"),
        ({"prompts": {"query": "the "}, "default_prompt_name": "passage"}, "prompt_name='passage': the prompts of"),
    ],
)
def test_wrong_prompts(tmp_path, content, part):
    folder = written(tmp_path / "st", MEAN)
    assert "the folder has none" in message_of(bert_tf2.load(folder).embed, LONG, prompt_name="query")
    write_json(folder / "config_sentence_transformers.json", content)
    assert part in message_of(bert_tf2.load(folder).embed, LONG)


SIGMOID, IDENTITY, TANH, RELU = (
    f"torch.nn.modules.{name}"
    for name in ("activation.Sigmoid", "linear.Identity", "activation.Tanh", "activation.ReLU")
)


def cross_encoder(folder: pathlib.Path, outputs: int, stated: dict, beside: dict | None = None) -> str:
    """A folder of CrossEncoder; `stated` is in config.json, `beside` in the file of newer versions."""
    tensors = tensors_of("BertForSequenceClassification")
    tensors["classifier.weight"], tensors["classifier.bias"] = (
        np.float32(np.ones([outputs, 4])),
        tensors["classifier.bias"][:outputs],
    )
    names = {str(index): f"LABEL_{index}" for index in range(outputs)}
    made = make_folder(folder, tensors, "BertForSequenceClassification", id2label=names, **stated)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nfilm\n")
    if beside:
        write_json(folder / "config_sentence_transformers.json", beside)
    return made


@pytest.mark.parametrize(
    ("stated", "beside", "function"),
    [
        ({}, None, None),  # of transformers
        ({}, {"prompts": {}}, None),
        ({"sentence_transformers": {"activation_fn": SIGMOID}}, None, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, None, None),
        ({"sentence_transformers": {"version": "4.1.0"}}, None, "sigmoid"),  # the default there
        ({"sentence_transformers": {"activation_fn": "mine.Scale"}}, None, "sigmoid"),  # not trusted there
        ({"sbert_ce_default_activation_function": TANH}, None, "tanh"),
        ({"sbert_ce_default_activation_function": IDENTITY}, None, None),
        ({"sbert_ce_default_activation_function": None}, None, "sigmoid"),
        ({}, {"model_type": "CrossEncoder", "activation_fn": SIGMOID}, "sigmoid"),
        ({}, {"model_type": "CrossEncoder"}, "sigmoid"),
        (
            {"sbert_ce_default_activation_function": SIGMOID},
            {"model_type": "CrossEncoder", "activation_fn": IDENTITY},
            None,
        ),
    ],
)
def test_what_a_cross_encoder_does_with_scores(tmp_path, log_lines, stated, beside, function):
    """It is announced: scripts, exports and `fit` have the number itself."""
    bert = bert_tf2.load(cross_encoder(tmp_path / "cross", 1, stated, beside))
    assert bert.labels.activation == (function or "")
    assert any("sentence-transformers' predict()" in line for line in log_lines) == bool(function)


def test_scores_of_a_cross_encoder_are_those_of_its_predict(tmp_path):
    """Also of what is saved or converted."""
    plain = bert_tf2.load(cross_encoder(tmp_path / "plain", 1, {})).classify([("film", "the"), "film"])
    bert = bert_tf2.load(cross_encoder(tmp_path / "cross", 1, {"sentence_transformers": {"activation_fn": SIGMOID}}))
    bert.save_folder(tmp_path / "saved")
    for kind, folder in (("tf1", bert.path), ("hf", str(tmp_path / "tf1"))):
        commands.call("convert_checkpoint", input=folder, output=str(tmp_path / kind), to=kind)
    cross_encoder(tmp_path / "tanh", 1, {"sbert_ce_default_activation_function": TANH})
    for folder in ("cross", "saved", "tf1", "hf", "tanh"):
        compute = np.tanh if folder == "tanh" else lambda score: 1 / (1 + np.exp(-score))
        for found, wanted in zip(
            bert_tf2.load(tmp_path / folder).classify([("film", "the"), "film"]), plain, strict=True
        ):
            assert found["score"] == pytest.approx(compute(wanted["score"]), abs=1e-5), folder


def test_other_functions_of_a_cross_encoder(tmp_path, log_lines):
    folder = cross_encoder(tmp_path / "relu", 1, {"sentence_transformers": {"activation_fn": RELU}})
    bert_tf2.load(folder)
    assert any("A score goes through ReLU in sentence-transformers" in line for line in log_lines)
    stated = {"sentence_transformers": {"activation_fn": SIGMOID}}
    found = bert_tf2.load(cross_encoder(tmp_path / "several", 3, stated)).classify("film")
    assert sum(found.values()) != pytest.approx(1.0, abs=1e-3)  # each by itself, as predict() there
