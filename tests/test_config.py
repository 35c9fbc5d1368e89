"""BertConfig with the published files and with invalid values."""

import dataclasses
import json

import pytest
from refused import message_of
from small_models import small_config

from bert_tf2.config import BertConfig, decisive_differences
from bert_tf2.data.huggingface_config import from_huggingface, is_huggingface_config, to_huggingface
from bert_tf2.support.errors import UserError

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
# The additional keys of the multilingual and Chinese releases.
EXTRA = {
    "directionality": "bidi",
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
}


def write(tmp_path, text) -> str:
    path = tmp_path / "bert_config.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("values", [BASE, {**BASE, **EXTRA}], ids=["english", "multilingual"])
def test_a_published_file_survives_a_round_trip(tmp_path, values):
    config = BertConfig.from_json_file(write(tmp_path, values))
    assert (config.vocab_size, config.num_hidden_layers, config.attention_head_size) == (30522, 12, 64)
    assert config.to_dict() == values
    again = BertConfig.from_json_file(write(tmp_path, config.to_json_string()))
    assert again == config
    assert config.to_json_string() == json.dumps(values, indent=2, sort_keys=True) + "\n"


def test_constructor_defaults_are_the_reference_s():
    config = BertConfig(100)
    assert config.to_dict() == {**BASE, "vocab_size": 100, "type_vocab_size": 16}


NO_DROPOUT = {**BASE, "hidden_dropout_prob": None, "attention_probs_dropout_prob": None, "initializer_range": 0}


def test_no_dropout_and_weights_of_zero_as_the_reference_takes_them(tmp_path):
    """`null` is written as `null` again; transformers does not support it and gets 0.0."""
    config = BertConfig.from_json_file(write(tmp_path, NO_DROPOUT))
    assert config.to_dict() == NO_DROPOUT
    assert BertConfig.from_json_file(write(tmp_path, config.to_json_string())) == config
    there = to_huggingface(dataclasses.asdict(config), "BertModel", (), None, 0)
    assert there["hidden_dropout_prob"] == there["attention_probs_dropout_prob"] == 0.0
    assert BertConfig.from_dict(from_huggingface(there)).hidden_dropout_prob == 0.0


def test_keys_that_are_left_out_are_named(log_lines):
    values = {name: value for name, value in BASE.items() if name not in ("type_vocab_size", "hidden_act")}
    config = BertConfig.from_dict(values)
    assert (config.type_vocab_size, config.hidden_act) == (16, "gelu")
    assert any("hidden_act = 'gelu'" in line and "type_vocab_size = 16" in line for line in log_lines)


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_erf", "relu", "tanh", "linear", "GELU"])
def test_every_activation_is_accepted(hidden_act):
    assert small_config(hidden_act=hidden_act).hidden_act == hidden_act


POSITIONS = "is not one of learned, learned_from_sinusoidal"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 770}, "hidden_size 770 is not divisible by num_attention_heads 12"),
        ({"vocab_size": 0}, "vocab_size must be a whole number above 0, not 0"),
        ({"num_hidden_layers": "12"}, "num_hidden_layers must be a whole number above 0, not '12'"),
        ({"intermediate_size": 3072.0}, "intermediate_size must be a whole number"),
        ({"num_attention_heads": True}, "num_attention_heads must be a whole number above 0, not True"),
        ({"max_position_embeddings": -1}, "max_position_embeddings must be a whole number above 0, not -1"),
        ({"type_vocab_size": None}, "type_vocab_size must be a whole number above 0, not None"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob must be a number from 0"),
        ({"initializer_range": -1}, "initializer_range must be a number from 0 to 1, not -1"),
        ({"initializer_range": float("nan")}, "initializer_range must be a number from 0 to 1, not nan"),
        ({"layer_norm_eps": -1}, "layer_norm_eps must be a number from 0 to 1, not -1"),
        ({"hidden_act": "swish"}, "hidden_act 'swish' is not one of gelu, gelu_erf, relu, tanh, linear"),
        *(({"position_embedding_type": it}, POSITIONS) for it in ("relative_key", "sinusoidal", "none", None, 1, [1])),
        *(({"tie_word_embeddings": it}, "tie_word_embeddings must be true, not ") for it in (False, "true", None)),
    ],
)
def test_nonsense_is_refused_with_the_file_and_a_reason(tmp_path, change, message):
    path = write(tmp_path, {**BASE, **change})
    text = message_of(BertConfig.from_json_file, path)
    assert message in text and text.startswith(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n "vocab_size" 3\n}', "line 2, column 15: not valid JSON"),
        ("", "the file is empty; a JSON file is needed"),
        ("[1, 2]", "an object {...} is needed in this JSON file, not a list"),
        ('{"vocab_size": 3, "num_hidden_layers": 1}', "missing hidden_size, num_attention_heads, intermediate_size"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path, text, message):
    path = write(tmp_path, text)
    text = message_of(BertConfig.from_json_file, path)
    assert message in text and path in text


def test_a_file_that_is_not_there(tmp_path):
    (tmp_path / "bert_config.jsn").write_text("{}")
    with pytest.raises(UserError, match=r"bert_config\.json: no such file .* holds: bert_config\.jsn"):
        BertConfig.from_json_file(str(tmp_path / "bert_config.json"))


def test_the_epsilon_of_layer_norm_is_written_only_where_it_is_another():
    """The reference has no key for it."""
    assert "layer_norm_eps" not in BertConfig.from_dict(BASE).to_dict()
    other = BertConfig.from_dict({**BASE, "layer_norm_eps": 1e-5})
    assert other.to_dict()["layer_norm_eps"] == 1e-5
    assert BertConfig.from_dict(other.to_dict()) == other


def test_a_config_of_transformers(tmp_path, log_lines):
    """Its gelu is another function, and missing keys have other defaults."""
    path = write(tmp_path, json.dumps({**BASE, "model_type": "bert", "type_vocab_size": 2, "pad_token_id": 0}))
    config = BertConfig.from_json_file(path)
    assert config == BertConfig.from_dict({**BASE, "hidden_act": "gelu_erf"})
    assert any("is the exact function" in line for line in log_lines)
    path = write(tmp_path, json.dumps({"model_type": "roberta", **BASE}))
    with pytest.raises(UserError, match="model_type 'roberta'"):
        BertConfig.from_json_file(path)


def test_whose_file_it_is():
    assert is_huggingface_config({**BASE, "model_type": "bert"}) and is_huggingface_config({"architectures": []})
    assert not is_huggingface_config(small_config(layer_norm_eps=1e-5).to_dict())


def test_the_start_of_the_positions_is_written_only_where_it_is_another():
    for values in (BASE, {**BASE, "position_embedding_type": "learned_from_sinusoidal", "tie_word_embeddings": True}):
        assert BertConfig.from_dict(values).to_dict() == values
    assert BertConfig.from_dict({**BASE, "position_embedding_type": "learned"}).to_dict() == BASE
    assert not decisive_differences(BertConfig.from_dict(BASE), BertConfig.from_dict(values))


def test_absolute_positions_of_transformers_are_learned_and_stay_in_the_file():
    values = {**BASE, "position_embedding_type": "absolute"}
    config = BertConfig.from_dict(values)
    assert config.position_embedding_type == "learned" and config.to_dict() == values
