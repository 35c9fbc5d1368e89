"""BertConfig with the published files and with invalid values."""

import json

import pytest
from refused import message_of

from bert_tf2.config import BertConfig, decisive_differences
from bert_tf2.support.errors import UserError
from bert_tf2.weights.huggingface import config_content

BASE = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}


def write(tmp_path, text) -> str:
    path = tmp_path / "bert_config.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return str(path)


def test_a_published_file_survives_a_round_trip(tmp_path):
    values = {**BASE, "directionality": "bidi", "pooler_num_attention_heads": 12}  # as in the multilingual releases
    config = BertConfig.from_json_file(write(tmp_path, values))
    assert (config.vocab_size, config.num_hidden_layers, config.attention_head_size) == (30522, 12, 64)
    assert config.to_dict() == values
    again = BertConfig.from_json_file(write(tmp_path, config.to_json_string()))
    assert again == config
    assert config.to_json_string() == json.dumps(values, indent=2, sort_keys=True) + "\n"
    assert BertConfig(100).to_dict() == {**BASE, "vocab_size": 100, "type_vocab_size": 16}


NO_DROPOUT = {**BASE, "hidden_dropout_prob": None, "attention_probs_dropout_prob": None, "initializer_range": 0}


def test_no_dropout_and_weights_of_zero_as_the_reference_takes_them(tmp_path):
    """`null` is written as `null` again; transformers does not support it and gets 0.0."""
    config = BertConfig.from_json_file(write(tmp_path, NO_DROPOUT))
    assert config.to_dict() == NO_DROPOUT
    assert BertConfig.from_json_file(write(tmp_path, config.to_json_string())) == config
    there = config_content("BertModel", config)
    assert there["hidden_dropout_prob"] == there["attention_probs_dropout_prob"] == 0.0
    assert BertConfig.from_huggingface(there).hidden_dropout_prob == 0.0


def test_keys_that_are_left_out_are_named(log_lines):
    values = {name: value for name, value in BASE.items() if name not in ("type_vocab_size", "hidden_act")}
    config = BertConfig.from_dict(values)
    assert (config.type_vocab_size, config.hidden_act) == (16, "gelu")
    assert any("hidden_act = 'gelu'" in line and "type_vocab_size = 16" in line for line in log_lines)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 770}, "hidden_size 770 is not divisible by num_attention_heads 12"),
        ({"vocab_size": 0}, "vocab_size must be a whole number above 0, not 0"),
        ({"num_hidden_layers": "12"}, "num_hidden_layers must be a whole number above 0, not '12'"),
        ({"intermediate_size": 3072.0}, "intermediate_size must be a whole number"),
        ({"type_vocab_size": None}, "type_vocab_size must be a whole number above 0, not None"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob must be a number from 0"),
        ({"initializer_range": float("nan")}, "initializer_range must be a number from 0 to 1, not nan"),
        ({"layer_norm_eps": -1}, "layer_norm_eps must be a number from 0 to 1, not -1"),
        ({"hidden_act": "swish"}, "hidden_act 'swish' is not one of gelu, gelu_erf, relu, tanh, linear"),
        ("", "the file is empty; a JSON file is needed"),
        ('{"vocab_size": 3, "num_hidden_layers": 1}', "missing hidden_size, num_attention_heads, intermediate_size"),
        ({"position_embedding_type": "relative_key"}, "is not one of learned, learned_from_sinusoidal"),
        ({"position_embedding_type": None}, "is not one of learned, learned_from_sinusoidal"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings must be true, not "),
    ],
)
def test_nonsense_is_refused_with_the_file_and_a_reason(tmp_path, change, message):
    path = write(tmp_path, change if isinstance(change, str) else {**BASE, **change})
    text = message_of(BertConfig.from_json_file, path)
    assert message in text and text.startswith(path)


def test_a_config_of_transformers(tmp_path):
    """Its gelu is another function, and missing keys have other defaults."""
    path = write(tmp_path, json.dumps({**BASE, "model_type": "bert", "type_vocab_size": 2, "pad_token_id": 0}))
    config = BertConfig.from_json_file(path)
    assert config == BertConfig.from_dict({**BASE, "hidden_act": "gelu_erf"})
    path = write(tmp_path, json.dumps({"model_type": "roberta", **BASE}))
    with pytest.raises(UserError, match="model_type 'roberta'"):
        BertConfig.from_json_file(path)


def test_what_the_reference_has_no_key_for_is_written_only_where_it_is_another():
    for values in (
        BASE,
        {**BASE, "layer_norm_eps": 1e-5},
        {**BASE, "position_embedding_type": "learned_from_sinusoidal", "tie_word_embeddings": True},
    ):
        assert BertConfig.from_dict(values).to_dict() == values
    assert BertConfig.from_dict({**BASE, "position_embedding_type": "learned"}).to_dict() == BASE
    assert not decisive_differences(BertConfig.from_dict(BASE), BertConfig.from_dict(values))


def test_absolute_positions_of_transformers_are_learned_and_stay_in_the_file():
    values = {**BASE, "position_embedding_type": "absolute"}
    config = BertConfig.from_dict(values)
    assert config.position_embedding_type == "learned" and config.to_dict() == values
