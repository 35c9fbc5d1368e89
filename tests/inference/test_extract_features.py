"""Hidden states as features: the model's own, whatever the batch; the reference's lines; vectors by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from refused import refuses

import bert_tf2
from bert_tf2 import modeling
from bert_tf2.commands import call
from bert_tf2.inference import extract_features
from bert_tf2.tokenization import FullTokenizer

# text -> its tokens, at most LENGTH
TEXTS = {
    "the film was good .": "[CLS] the film was good . [SEP]",
    "ann lives in Paris ||| is the book awful ?": "[CLS] ann lives in paris [SEP] is the book awful ? [SEP]",
    "": "[CLS] [SEP]",
    "playing " * 30: "[CLS] " + "play ##ing " * 11 + "[SEP]",
    "a ||| b ||| rome": "[CLS] a [UNK] [UNK] [UNK] [UNK] [SEP] rome [SEP]",
}
LENGTH = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("features")
    toy_data.write_trained(path, modeling.BertModel(toy_data.config()))
    (path / "text.txt").write_text("\n".join(TEXTS) + "\n")
    return path


def run(folder, output_file, **changes) -> int:
    settings = {"input_file": str(folder / "text.txt"), "init_checkpoint": str(folder), "layers": "-1,0"}
    settings |= {"max_seq_length": LENGTH, "batch_size": 3, "output_file": str(output_file)}
    return call("extract_features", **{**settings, **changes})


@pytest.fixture(scope="module")
def states(folder) -> list[np.ndarray]:
    """[2, tokens, D] of each text: both layers that are asked for, by the model itself, padded to LENGTH."""
    model, found = bert_tf2.load(folder).encoder, []
    for line in TEXTS.values():
        tokens = line.split()
        padding, second = [0] * (LENGTH - len(tokens)), tokens.index("[SEP]") + 1
        ids = [toy_data.VOCAB.index(token) for token in tokens] + padding
        segments = [0] * second + [1] * (len(tokens) - second) + padding
        output = model(*(tf.constant([row]) for row in (ids, [1] * len(tokens) + padding, segments)))
        layers = output.get_all_encoder_layers()
        found.append(np.stack([layers[-1][0], layers[0][0]])[:, : len(tokens)])
    return found


@pytest.mark.compiled
@pytest.mark.parametrize("xla", ["auto", True])
def test_every_token_has_the_models_states_whatever_the_batch(folder, tmp_path, states, log_lines, xla):
    """Batches are cut to their longest line, or with XLA have a few sizes; `states` are padded."""
    assert run(folder, tmp_path / "out.json", xla=xla) == len(TEXTS)
    found = [json.loads(line) for line in (tmp_path / "out.json").read_text().splitlines()]
    assert [line["linex_index"] for line in found] == list(range(len(TEXTS)))
    for line, tokens, wanted in zip(found, TEXTS.values(), states, strict=True):
        assert [feature["token"] for feature in line["features"]] == tokens.split()
        for position, feature in enumerate(line["features"]):
            assert [layer["index"] for layer in feature["layers"]] == [-1, 0]
            values = [layer["values"] for layer in feature["layers"]]
            np.testing.assert_allclose(values, wanted[:, position], atol=2e-5)
    assert not any("[UNK]" in line for line in log_lines)


def test_pooled_vectors(folder, tmp_path, states, log_lines):
    """In an array, and in lines: of a text in another script, which is warned of."""
    values = np.array([[[1.0, 5.0], [3.0, 1.0]], [[0.0, 0.0], [2.0, -2.0]]])  # 2 layers, 2 tokens
    by_hand = {"cls": [1, 5, 0, 0], "mean": [2, 3, 1, -1], "max": [3, 5, 2, 0]}
    assert {how: extract_features.pool(values, how).tolist() for how in by_hand} == by_hand
    assert run(folder, tmp_path / "out.npy", pooling="max") == len(TEXTS)
    vectors = np.load(tmp_path / "out.npy")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, [extract_features.pool(layers, "max") for layers in states], atol=2e-5)
    (tmp_path / "text").write_text("the film was good .\n" + "\u0434\u043e\u043c\n" * 5)
    run(folder, tmp_path / "out.json", pooling="max", input_file=f"{tmp_path}/text")
    first, *others = [json.loads(line) for line in (tmp_path / "out.json").read_text().splitlines()]
    np.testing.assert_allclose(first["values"], vectors[0], atol=1e-6)
    assert (first["linex_index"], len(others)) == (0, 5)
    assert any("/text: 50% of its 10 tokens are [UNK]" in line for line in log_lines)


def test_features_are_padded_as_the_reference_s_and_pairs_share_the_length(folder):
    tokenizer = FullTokenizer(str(folder / "vocab.txt"))
    pair = extract_features.InputExample(3, "the film was good", "a book")
    short = extract_features.InputExample(4, "good", None)
    found = extract_features.convert_examples_to_features([pair, short], 8, tokenizer)
    assert [(feature.unique_id, " ".join(feature.tokens)) for feature in found] == [
        (3, "[CLS] the film was [SEP] a book [SEP]"),
        (4, "[CLS] good [SEP]"),
    ]
    assert found[0].input_type_ids == [0, 0, 0, 0, 0, 1, 1, 1]
    assert found[1].input_ids == [*tokenizer.convert_tokens_to_ids(found[1].tokens), 0, 0, 0, 0, 0]
    assert (found[1].input_mask, found[1].input_type_ids) == ([1, 1, 1, 0, 0, 0, 0, 0], [0] * 8)
    bad = extract_features.InputExample(5, "good", float("nan"))  # of a table of pandas
    refuses("example 5: nan text", extract_features.convert_examples_to_features, [short, bad], 8, tokenizer)
