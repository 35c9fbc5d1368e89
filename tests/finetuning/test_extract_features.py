"""Hidden states as features: the model's own, whatever the batch; the reference's lines; vectors by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf
import toy_data

import bert_tf2
from bert_tf2 import modeling
from bert_tf2.commands import call
from bert_tf2.finetuning import extract_features
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.weights import checkpoint

TEXTS = [
    "the film was good .",
    "ann lives in Paris ||| is the book awful ?",
    "",
    "playing " * 30,
    "a ||| b ||| rome",
    "good",
]
TOKENS = [
    "[CLS] the film was good . [SEP]",
    "[CLS] ann lives in paris [SEP] is the book awful ? [SEP]",
    "[CLS] [SEP]",
    "[CLS] " + "play ##ing " * 11 + "[SEP]",
    "[CLS] a [UNK] [UNK] [UNK] [UNK] [SEP] rome [SEP]",
    "[CLS] good [SEP]",
]
LENGTH = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("features")
    toy_data.write_model(path)
    checkpoint.save(str(path / "model.ckpt"), checkpoint.tf1_variables(modeling.BertModel(toy_data.config())))
    (path / "text.txt").write_text("\n".join(TEXTS) + "\n")
    return path


def run(folder, output_file, **changes) -> int:
    settings = {
        "input_file": str(folder / "text.txt"),
        "bert_config_file": str(folder / "bert_config.json"),
        "init_checkpoint": str(folder / "model.ckpt"),
        "vocab_file": str(folder / "vocab.txt"),
        "layers": "-1,0",
        "max_seq_length": LENGTH,
        "batch_size": 4,
    }
    return call("extract_features", output_file=str(output_file), **{**settings, **changes})


@pytest.fixture(scope="module")
def states(folder) -> list[np.ndarray]:
    """[2, tokens, D] of each text: both layers that are asked for, by the model itself, padded to LENGTH."""
    model, found = bert_tf2.load(folder / "model.ckpt").encoder, []
    for line in TOKENS:
        tokens = line.split()
        padding = [0] * (LENGTH - len(tokens))
        ids = [toy_data.VOCAB.index(token) for token in tokens] + padding
        second = tokens.index("[SEP]") + 1
        segments = [0] * second + [1] * (len(tokens) - second) + padding
        mask = [1] * len(tokens) + padding
        output = model(*(tf.constant([row]) for row in (ids, mask, segments)))
        layers = output.get_all_encoder_layers()
        found.append(np.stack([layers[-1][0], layers[0][0]])[:, : len(tokens)])
    return found


def lines_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_every_token_has_the_models_states_whatever_the_batch(folder, tmp_path, states, batch_size):
    """Batches are cut to their longest line here; `states` are padded."""
    assert run(folder, tmp_path / "out.json", batch_size=batch_size) == len(TEXTS)
    found = lines_of(tmp_path / "out.json")
    assert [line["linex_index"] for line in found] == list(range(len(TEXTS)))
    for line, tokens, wanted in zip(found, TOKENS, states, strict=True):
        assert [feature["token"] for feature in line["features"]] == tokens.split()
        for position, feature in enumerate(line["features"]):
            assert [layer["index"] for layer in feature["layers"]] == [-1, 0]
            values = [layer["values"] for layer in feature["layers"]]
            np.testing.assert_allclose(values, wanted[:, position], atol=2e-5)


def test_pooled_vectors(folder, tmp_path, states):
    values = np.array([[[1.0, 5.0], [3.0, 1.0]], [[0.0, 0.0], [2.0, -2.0]]])  # 2 layers, 2 tokens
    by_hand = {"cls": [1, 5, 0, 0], "mean": [2, 3, 1, -1], "max": [3, 5, 2, 0]}
    assert {how: extract_features.pool(values, how).tolist() for how in by_hand} == by_hand
    wanted = [extract_features.pool(layers, "max") for layers in states]
    for name in ("out.npy", "out.json"):
        assert run(folder, tmp_path / name, pooling="max") == len(TEXTS)
    vectors, lines = np.load(tmp_path / "out.npy"), lines_of(tmp_path / "out.json")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, wanted, atol=2e-5)
    assert [line["linex_index"] for line in lines] == list(range(len(TEXTS)))
    np.testing.assert_allclose([line["values"] for line in lines], vectors, atol=1e-6)


def test_features_are_padded_as_the_reference_s_and_pairs_share_the_length(folder):
    tokenizer = FullTokenizer(str(folder / "vocab.txt"))
    pair, short = (
        extract_features.InputExample(3, "the film was good", "a book"),
        extract_features.InputExample(4, "good", None),
    )
    found = extract_features.convert_examples_to_features([pair, short], 8, tokenizer)
    assert [(feature.unique_id, " ".join(feature.tokens)) for feature in found] == [
        (3, "[CLS] the film was [SEP] a book [SEP]"),
        (4, "[CLS] good [SEP]"),
    ]
    assert found[0].input_type_ids == [0, 0, 0, 0, 0, 1, 1, 1]
    assert found[1].input_ids == [*tokenizer.convert_tokens_to_ids(found[1].tokens), 0, 0, 0, 0, 0]
    assert (found[1].input_mask, found[1].input_type_ids) == ([1, 1, 1, 0, 0, 0, 0, 0], [0] * 8)
    (cut,) = extract_features.convert_examples_to_features([pair], 4, tokenizer)
    assert cut.tokens == ["[CLS]", "the", "[SEP]"]  # no room for both


@pytest.mark.parametrize(
    ("text", "warns"), [("\u0434\u043e\u043c good\n", True), ("good the film was \u0434\n", False)]
)
def test_a_text_in_another_script_is_warned_of(folder, tmp_path, log_lines, text, warns):
    (tmp_path / "text").write_text(text * 3)
    run(folder, tmp_path / "out", input_file=f"{tmp_path}/text")
    assert any("/text: 50% of its 6 tokens are [UNK]" in line for line in log_lines) == warns
