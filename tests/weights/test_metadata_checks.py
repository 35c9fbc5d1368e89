"""What files beside weights state about configuration, vocabulary and case, compared with what a call was given."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
import toy_data
from google_folders import CASED, save, write_json, write_vocab
from refused import message_of
from small_models import small_config

from bert_tf2 import modeling
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint, convert, text_rules
from bert_tf2.weights.base import Weights
from bert_tf2.weights.options import ConversionOptions
from bert_tf2.weights.text_rules import is_cased

# The configuration


@pytest.fixture
def encoder(tmp_path) -> pathlib.Path:
    """The folder of an encoder of small_config, with its bert_config.json."""
    save(modeling.BertModel(small_config()), tmp_path / "in")
    (tmp_path / "in" / "bert_config.json").write_text(small_config().to_json_string())
    return tmp_path / "in"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 4}, "num_attention_heads 2 .* says 4"),
        ({"hidden_act": "relu"}, "hidden_act gelu .* says relu"),
        ({"hidden_act": "gelu_erf"}, "hidden_act gelu .* says gelu_erf"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps 1e-12 .* says 1e-05"),
    ],
)
def test_what_changes_the_function_is_refused(encoder, changes, words):
    """All kinds of weights go through this; TensorFlow 1's have the configuration beside them only."""
    with pytest.raises(UserError, match=rf"in/bert_config\.json: states {words}.*--bert_config_file=.*in/bert_config"):
        checkpoint.initialize(modeling.BertModel(small_config(**changes)), str(encoder))


def test_what_does_not_change_the_function_may_differ(encoder, log_lines):
    changes = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.4, "initializer_range": 0.7}
    config = small_config(**changes, hidden_act="GELU", extra={"pooler_type": "first_token_transform"})
    checkpoint.initialize(modeling.BertModel(config), str(encoder))
    assert not [line for line in log_lines if "bert_config.json" in line]


def test_the_first_layers_of_a_model_may_be_used_and_it_is_said(encoder, log_lines):
    checkpoint.initialize(modeling.BertModel(small_config(num_hidden_layers=1)), str(encoder))
    assert [line for line in log_lines if "says 1: only the first layers are used" in line]


@pytest.fixture
def from_transformers(encoder, tmp_path) -> str:
    """The same in Hugging Face's layout, of which "gelu" says nothing certain."""
    convert.run(ConversionOptions(input=str(encoder), output=str(tmp_path / "hf"), to="hf"))
    content = json.loads((tmp_path / "hf" / "config.json").read_text())
    write_json(tmp_path / "hf" / "config.json", {**content, "hidden_act": "gelu"})
    return str(tmp_path / "hf")


def test_gelu_of_transformers_may_be_either_with_a_warning(from_transformers, log_lines):
    checkpoint.initialize(modeling.BertModel(small_config()), from_transformers)
    assert any("config.json: states hidden_act gelu_erf" in line and "not certain" in line for line in log_lines)


def test_a_keras_model_knows_its_own_configuration(encoder, tmp_path):
    convert.run(ConversionOptions(input=str(encoder), output=str(tmp_path / "m"), to="keras"))
    message = message_of(
        checkpoint.initialize, modeling.BertModel(small_config(hidden_act="relu")), str(tmp_path / "m")
    )
    assert "m/bert_model.keras: states hidden_act gelu" in message and message.endswith("correct --bert_config_file")


# The vocabulary


def source_with(folder: pathlib.Path, vocabulary: list[str] | None = None, **record) -> Weights:
    folder.mkdir()
    if vocabulary:
        write_vocab(folder / "vocab.txt", vocabulary)
    if record:
        write_json(folder / "tokenization.json", record)
    return Weights(str(folder))


THEIRS = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "film", "book"]


@pytest.mark.parametrize(
    "ours",
    [
        THEIRS,
        [entry + " " for entry in THEIRS],
        [*THEIRS, "more", "words"],
        THEIRS[:-1],
        ["[PAD]", "corona", *THEIRS[2:]],
        [*THEIRS[:-1], "[unused2]"],
    ],
)
def test_vocabularies_that_agree_on_every_word(tmp_path, ours):
    text_rules.check_vocabulary(source_with(tmp_path / "in", THEIRS), write_vocab(tmp_path / "vocab.txt", ours))


def test_a_vocabulary_of_equal_length_and_other_content(tmp_path):
    source = source_with(tmp_path / "in", THEIRS)
    ours = write_vocab(tmp_path / "vocab.txt", [*THEIRS[:6], "book", "film"])
    message = message_of(text_rules.check_vocabulary, source, ours)
    assert "2 entries differ, the first on line 7, 'book' here and 'film' there; give that vocabulary" in message


@pytest.mark.parametrize("content", ["", "[]", '{"do_lower_case": "no"}', '{"never_split": [7]}'])
def test_a_broken_record_is_named(tmp_path, content):
    source = source_with(tmp_path / "in", THEIRS)
    (tmp_path / "in" / "tokenization.json").write_text(content)
    vocab = write_vocab(tmp_path / "vocab.txt", THEIRS)
    assert "in/tokenization.json" in message_of(case, None, vocab, source)


# The case of the text


def case(given, vocab_file, source=None):
    return text_rules.load_tokenizer(vocab_file, given, source=source).basic_tokenizer.do_lower_case


@pytest.mark.parametrize(
    "statement",
    [
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("tokenizer.json", {"normalizer": {"lowercase": False}}),
        ("tokenization.json", {"do_lower_case": False}),
    ],
    ids=lambda statement: statement[0],
)
@pytest.mark.parametrize("place", ["weights", "vocabulary"])
def test_a_folder_that_states_the_case_and_the_default_flag(tmp_path, statement, place, log_lines):
    name, content = statement
    (tmp_path / "vocab").mkdir()
    source = source_with(tmp_path / "in")
    vocab_file = write_vocab(tmp_path / "vocab" / "vocab.txt", toy_data.VOCAB)
    write_json(tmp_path / {"weights": "in", "vocabulary": "vocab"}[place] / name, content)
    message = message_of(case, None, vocab_file, source)
    assert f"{name}: says do_lower_case false" in message and "; give --do_lower_case=False" in message
    assert case(False, vocab_file, source) is False
    assert not log_lines
    assert case(True, vocab_file, source) is True
    assert [line for line in log_lines if f"{name}: says do_lower_case false; --do_lower_case=True counts" in line]


def test_the_weights_word_comes_before_that_of_the_vocabulary_s_folder(tmp_path):
    source = source_with(tmp_path / "in", do_lower_case=True)
    vocab_file = write_vocab(tmp_path / "vocab.txt", toy_data.VOCAB)
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": False})
    assert case(None, vocab_file, source) is True
    with pytest.raises(UserError, match="give --do_lower_case=False"):
        case(None, vocab_file)


@pytest.mark.parametrize(
    ("entries", "given", "warning"),
    [
        (toy_data.VOCAB, None, None),
        (toy_data.VOCAB, True, None),
        (toy_data.VOCAB, False, "no entry has a capital letter"),
        (CASED, None, "29 of 37 entries have capitals or accents .*'Good', line 6.* --do_lower_case=False"),
        (CASED, True, None),
        (CASED, False, None),
        ([*toy_data.VOCAB[:-1], "café"], None, "1 of 37 entries .*'café', line 37"),
        ([*toy_data.VOCAB[:-2], "[XYZ]", "<S>"], None, None),
    ],
)
def test_the_vocabulary_warns_where_nobody_states_the_case(tmp_path, entries, given, warning, log_lines):
    vocab_file = write_vocab(tmp_path / "vocab.txt", entries)
    tokenizer = text_rules.load_tokenizer(vocab_file, given)
    assert tokenizer.basic_tokenizer.do_lower_case is (given is not False)
    assert bool(log_lines) == bool(warning)
    if warning:
        assert re.search(warning, log_lines[0]), log_lines
    log_lines.clear()
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": given is not False})
    text_rules.load_tokenizer(vocab_file, given)
    assert not log_lines  # now it is stated


def test_a_few_added_words_do_not_make_a_vocabulary_cased():
    entries = [f"word{number}" for number in range(2000)]
    assert not is_cased([*entries, "COVID", "naïve"])
    assert is_cased([*entries, "A", "B", "C"])
