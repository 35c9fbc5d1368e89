"""BertConfig with the published files and with invalid values."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest
from refused import message_of, refuses

from bert_tf2 import modeling
from bert_tf2.config import BertConfig, decisive_differences
from bert_tf2.weights.huggingface import config_content

BASE = {
    **{"attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768},
    **{"initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 512},
    **{"num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 2, "vocab_size": 30522},
}


def read(tmp_path, content) -> BertConfig:
    path = tmp_path / "bert_config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return BertConfig.from_json_file(str(path))


@pytest.mark.parametrize(
    "changes",
    [
        {"directionality": "bidi", "pooler_num_attention_heads": 12},  # as in the multilingual releases
        {"hidden_dropout_prob": None, "attention_probs_dropout_prob": None, "initializer_range": 0},
        # Keys that the reference does not have are written only for other values.
        {"layer_norm_eps": 1e-5},
        {"position_embedding_type": "learned_from_sinusoidal", "tie_word_embeddings": True},
    ],
)
def test_a_file_survives_a_round_trip(tmp_path, changes):
    values = {**BASE, **changes}
    config = read(tmp_path, values)
    assert (config.vocab_size, config.num_hidden_layers, config.attention_head_size) == (30522, 12, 64)
    assert config.to_dict() == values and read(tmp_path, config.to_json_string()) == config == BertConfig.of(values)
    assert config.to_json_string() == json.dumps(values, indent=2, sort_keys=True) + "\n"
    there = config_content("BertModel", config)  # transformers does not know null
    assert there["hidden_dropout_prob"] == there["attention_probs_dropout_prob"] == (config.hidden_dropout_prob or 0.0)
    assert config.position_embedding_type == values.get("position_embedding_type", "learned")
    changed = {"layer_norm_eps"} & {*values}  # the others change no answer of the same weights
    assert {*decisive_differences(BertConfig.of(BASE), config)} == changed


def test_defaults_and_keys_that_are_left_out(tmp_path, log_lines):
    assert BertConfig(100).to_dict() == {**BASE, "vocab_size": 100, "type_vocab_size": 16}
    odd = BertConfig(vocab_size=99, hidden_size=37)  # 12 heads: the reference's own test makes this configuration
    assert json.loads(odd.to_json_string())["hidden_size"] == 37
    refuses("hidden_size 37 num_attention_heads 12", modeling.BertModel, odd)
    assert BertConfig.from_dict({**BASE, "position_embedding_type": "learned"}).to_dict() == BASE and not log_lines
    lacking = {name: BASE[name] for name in BASE if name not in ("type_vocab_size", "hidden_act")}
    for config in (read(tmp_path, lacking), read(tmp_path, lacking), BertConfig.from_dict(lacking)):
        assert (config.type_vocab_size, config.hidden_act) == (16, "gelu")
    of_file, of_dict = [line for line in log_lines if "hidden_act = 'gelu'" in line and "type_vocab_size = 16" in line]
    assert of_file.startswith(f"{tmp_path}/bert_config.json ") and not of_dict.startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 770}, "hidden_size 770 num_attention_heads 12"),
        ({"vocab_size": 0}, "vocab_size 0"),
        ({"vocab_size": 10**7 + 1}, "vocab_size 10000001"),
        ({"hidden_size": 600_000}, "too large"),
        ({"num_hidden_layers": "12"}, "num_hidden_layers '12'"),
        ({"intermediate_size": 3072.0}, "intermediate_size whole"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob"),
        ({"hidden_dropout_prob": True}, "hidden_dropout_prob"),
        ({"initializer_range": float("nan")}, "initializer_range nan"),
        ({"layer_norm_eps": -1}, "layer_norm_eps -1"),
        ({"hidden_act": "swish"}, "hidden_act 'swish' gelu_erf"),
        ("", "empty"),
        ('{"vocab_size": 3, "num_hidden_layers": 1}', "missing hidden_size, num_attention_heads, intermediate_size"),
        ({"position_embedding_type": "relative_key"}, "learned_from_sinusoidal"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"model_type": "roberta"}, "'roberta'"),
        ({"architectures": ["RobertaModel"]}, "RobertaModel"),
        *(({"model_type": "bert", name: True}, "decoder") for name in ("is_decoder", "add_cross_attention")),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "'relative_key'"),
        ({"model_type": "bert", "quantization_config": {"bits": 8}}, "quantiz"),
    ],
)
def test_nonsense_is_refused_with_the_file_and_a_reason(tmp_path, change, words):
    content = change if isinstance(change, str) else {**BASE, **change}
    refuses(f"{tmp_path}/bert_config.json {words}", read, tmp_path, content)


def test_a_config_of_transformers_and_lengths_that_a_model_can_read(tmp_path):
    """The gelu of transformers is another function."""
    config = read(tmp_path, {**BASE, "model_type": "bert", "pad_token_id": 0})
    assert config == BertConfig.from_dict({**BASE, "hidden_act": "gelu_erf"})
    assert read(tmp_path, {**BASE, "architectures": ["BertModel"]}) == config
    assert read(tmp_path, {"model_type": "bert"}) == config  # the same defaults there
    config.check_sequence_length(512)
    config.check_pairs("data.txt")
    refuses("--max_seq_length=513", config.check_sequence_length, 513)
    single = BertConfig(**{**BASE, "type_vocab_size": 1})
    assert message_of(single.check_pairs, "data.txt, line 3").startswith("data.txt, line 3: ")


def test_a_change_names_the_way_to_a_changed_one(tmp_path):
    """Forks set dropout to 0 where they do not train."""
    config = read(tmp_path, BASE)
    with pytest.raises(AttributeError, match=r"dataclasses\.replace\(config, hidden_dropout_prob=0\.0\)"):
        config.hidden_dropout_prob = 0.0
    changed = dataclasses.replace(config, hidden_dropout_prob=0.0)
    assert (config.hidden_dropout_prob, changed.hidden_dropout_prob) == (0.1, 0.0)
    assert copy.deepcopy(changed) == changed and hash(changed) != hash(config)
