"""What files beside weights state, against what a call was given: configuration, vocabulary, case, trained or not."""

from __future__ import annotations

import json
import pathlib
import re

import numpy as np
import pytest
import toy_data
from small_models import randomize, small_config

from bert_tf2 import checkpoint, heads, modeling, records, vocabulary_checks
from bert_tf2.finetuning import extract_features
from bert_tf2.finetuning.classification import run as finetune_classifier
from bert_tf2.finetuning.squad import run as finetune_squad
from bert_tf2.pretraining import examples as pretraining_data
from bert_tf2.pretraining import predict_masked
from bert_tf2.pretraining import run as pretraining
from bert_tf2.support.errors import UserError
from bert_tf2.training import loop as training
from bert_tf2.weights import convert, huggingface, provenance
from bert_tf2.weights.base import Weights

CASED = [word.title() if word.isalpha() else word for word in toy_data.VOCAB]


def write_vocab(path: pathlib.Path, entries: list[str]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
    return str(path)


def write_json(path: pathlib.Path, content: dict) -> None:
    path.write_text(json.dumps(content))


def save(model, folder: pathlib.Path) -> str:
    """A checkpoint as Google releases them, without anything beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.save(str(folder / "bert_model.ckpt"), checkpoint.tf1_variables(model))
    return str(folder)


def google_folder(folder: pathlib.Path, model=None, vocabulary=None, **changes) -> str:
    """The same with bert_config.json and vocab.txt."""
    config = toy_data.config(num_hidden_layers=1, **changes)
    save(model or heads.PretrainingModel(config), folder)
    (folder / "bert_config.json").write_text(config.to_json_string())
    write_vocab(folder / "vocab.txt", vocabulary or toy_data.VOCAB)
    return str(folder)


def message_of(function, *arguments, **named) -> str:
    with pytest.raises(UserError) as caught:
        function(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
        ({"num_attention_heads": 4}, "num_attention_heads 2 .* says num_attention_heads 4"),
        ({"hidden_act": "relu"}, "hidden_act gelu .* says hidden_act relu"),
        ({"hidden_act": "gelu_erf"}, "hidden_act gelu .* says hidden_act gelu_erf"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps 1e-12 .* says layer_norm_eps 1e-05"),
        (
            {"num_attention_heads": 1, "layer_norm_eps": 1e-6},
            "num_attention_heads 2 and layer_norm_eps 1e-12 .* num_attention_heads 1 and layer_norm_eps 1e-06",
        ),
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
    assert [line for line in log_lines if "says num_hidden_layers 1: only the first layers are used" in line]


def test_more_layers_than_there_are(encoder):
    message = message_of(checkpoint.initialize, modeling.BertModel(small_config(num_hidden_layers=3)), str(encoder))
    assert "bert/encoder/layer_2" in message and "is missing" in message


def test_weights_without_a_configuration_are_taken_as_before(encoder):
    (encoder / "bert_config.json").unlink()
    checkpoint.initialize(modeling.BertModel(small_config(num_attention_heads=4)), str(encoder))


def test_a_broken_configuration_beside_weights_is_named(encoder):
    (encoder / "bert_config.json").write_text("{")
    assert "bert_config.json, line 1, column 2: not valid JSON" in message_of(
        checkpoint.initialize, modeling.BertModel(small_config()), str(encoder)
    )


@pytest.fixture
def from_transformers(encoder, tmp_path) -> str:
    """The same in Hugging Face's layout, of which "gelu" says nothing certain."""
    convert.run(convert.ConversionOptions(input=str(encoder), output=str(tmp_path / "hf"), to="hf"))
    content = json.loads((tmp_path / "hf" / "config.json").read_text())
    write_json(tmp_path / "hf" / "config.json", {**content, "hidden_act": "gelu"})
    return str(tmp_path / "hf")


def test_gelu_of_transformers_may_be_either_with_a_warning(from_transformers, log_lines):
    checkpoint.initialize(modeling.BertModel(small_config()), from_transformers)
    assert any("config.json: states hidden_act gelu_erf" in line and "not certain" in line for line in log_lines)


@pytest.mark.parametrize("changes", [{"hidden_act": "relu"}, {"num_attention_heads": 1}, {"layer_norm_eps": 1e-5}])
def test_anything_else_of_transformers_is_refused(from_transformers, changes):
    with pytest.raises(UserError, match=r"hf/config\.json: states .*give --bert_config_file=.*hf/config\.json"):
        checkpoint.initialize(modeling.BertModel(small_config(**changes)), from_transformers)


def test_a_conversion_asks_for_the_same(encoder, tmp_path):
    """TensorFlow 1's weights with the --bert_config_file of another number of heads."""
    (tmp_path / "other.json").write_text(small_config(num_attention_heads=4).to_json_string())
    options = {"input": str(encoder), "output": str(tmp_path / "out"), "to": "hf"}
    message = message_of(
        convert.run, convert.ConversionOptions(**options, bert_config_file=str(tmp_path / "other.json"))
    )
    assert "states num_attention_heads 2" in message and not (tmp_path / "out").exists()


def test_a_keras_model_knows_its_own_configuration(encoder, tmp_path):
    convert.run(convert.ConversionOptions(input=str(encoder), output=str(tmp_path / "m.keras"), to="keras"))
    message = message_of(
        checkpoint.initialize, modeling.BertModel(small_config(hidden_act="relu")), str(tmp_path / "m.keras")
    )
    assert "m.keras: states hidden_act gelu" in message and message.endswith("correct --bert_config_file")


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
    provenance.check_vocabulary(source_with(tmp_path / "in", THEIRS), write_vocab(tmp_path / "vocab.txt", ours))


def test_a_vocabulary_of_equal_length_and_other_content(tmp_path):
    source = source_with(tmp_path / "in", THEIRS)
    ours = write_vocab(tmp_path / "vocab.txt", [*THEIRS[:6], "book", "film"])
    message = message_of(provenance.check_vocabulary, source, ours)
    assert "2 entries differ, the first on line 7, 'book' here and 'film' there; give that vocabulary" in message


def test_only_the_hash_is_known(tmp_path):
    record = json.loads(provenance.record_of(True, THEIRS))
    assert record["vocab_entries"] == 8
    source = source_with(tmp_path / "in", **record)
    same = write_vocab(tmp_path / "same.txt", THEIRS)
    provenance.check_vocabulary(source, same)
    pathlib.Path(same).write_bytes(pathlib.Path(same).read_bytes().replace(b"\n", b"\r\n"))
    provenance.check_vocabulary(source, same)
    other = write_vocab(tmp_path / "other.txt", [*THEIRS, "more"])
    assert "tokenization.json: ids would stand for other words" in message_of(
        provenance.check_vocabulary, source, other
    )
    write_vocab(tmp_path / "in" / "vocab.txt", THEIRS)  # now it can be seen that no id has changed
    provenance.check_vocabulary(source, other)
    write_vocab(tmp_path / "in" / "vocab.txt", [*THEIRS, "new"])  # which is another one than the hash's
    message_of(provenance.check_vocabulary, source, other)


@pytest.mark.parametrize("content", ["", "[]", '{"do_lower_case": "no"}', '{"vocab_sha256": 7}'])
def test_a_broken_record_is_named(tmp_path, content):
    source = source_with(tmp_path / "in", THEIRS)
    (tmp_path / "in" / "tokenization.json").write_text(content)
    vocab = write_vocab(tmp_path / "vocab.txt", THEIRS)
    for function in (provenance.check_vocabulary, lambda s, v: provenance.choose_case(None, v, s)):
        assert "in/tokenization.json" in message_of(function, source, vocab)


# The case of the text


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
    message = message_of(provenance.choose_case, None, vocab_file, source)
    assert f"{name}: says do_lower_case false" in message and "; give --do_lower_case=False" in message
    assert provenance.choose_case(False, vocab_file, source) is False
    assert not log_lines
    assert provenance.choose_case(True, vocab_file, source) is True
    assert [line for line in log_lines if f"{name}: says do_lower_case false; --do_lower_case=True counts" in line]


def test_the_weights_word_comes_before_that_of_the_vocabulary_s_folder(tmp_path):
    source = source_with(tmp_path / "in", do_lower_case=True)
    vocab_file = write_vocab(tmp_path / "vocab.txt", toy_data.VOCAB)
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": False})
    assert provenance.choose_case(None, vocab_file, source) is True
    with pytest.raises(UserError, match="give --do_lower_case=False"):
        provenance.choose_case(None, vocab_file)


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
    tokenizer = provenance.load_tokenizer(vocab_file, given)
    assert tokenizer.basic_tokenizer.do_lower_case is (given is not False)
    assert bool(log_lines) == bool(warning)
    if warning:
        assert re.search(warning, log_lines[0]), log_lines
    log_lines.clear()
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": given is not False})
    provenance.load_tokenizer(vocab_file, given)
    assert not log_lines  # now it is stated


def test_a_few_added_words_do_not_make_a_vocabulary_cased():
    entries = [f"word{number}" for number in range(2000)]
    assert not vocabulary_checks.is_cased([*entries, "COVID", "naïve"])
    assert vocabulary_checks.is_cased([*entries, "A", "B", "C"])


CASED_FOLDER_CALLS = {
    "extract_features": lambda flags: extract_features.run(
        extract_features.FeatureOptions(
            input_file="text.txt", output_file="out.json", layers="-1", max_seq_length=32, **flags
        )
    ),
    "predict_masked": lambda flags: predict_masked.run(
        predict_masked.MaskedLMOptions(sentence=["The [MASK] ."], **flags)
    ),
    "run_squad": lambda flags: finetune_squad.run(
        finetune_squad.SquadOptions(
            output_dir="out",
            do_train=True,
            train_file="gone.json",
            max_seq_length=32,
            doc_stride=8,
            max_query_length=8,
            **flags,
        )
    ),
    "run_pretraining": lambda flags: pretraining.run(
        pretraining.PretrainingOptions(input_file="gone", output_dir="out", do_train=True, max_seq_length=32, **flags)
    ),
    "create_pretraining_data": lambda flags: pretraining_data.create_pretraining_data(
        "text.txt", "out.tfrecord", flags["vocab_file"], None, pretraining_data.PretrainingDataOptions()
    ),
}


@pytest.fixture(scope="module")
def cased_folder(tmp_path_factory) -> pathlib.Path:
    """A cased model in Hugging Face's layout."""
    folder = tmp_path_factory.mktemp("cased")
    google_folder(folder / "google", vocabulary=CASED)
    convert.run(convert.ConversionOptions(input=str(folder / "google"), output=str(folder / "hf"), to="hf"))
    assert huggingface.stated_case(str(folder / "hf"))[0] is False
    return folder / "hf"


@pytest.mark.parametrize("call", CASED_FOLDER_CALLS)
def test_a_cased_model_with_the_default_flag_is_refused_everywhere(call, cased_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("The film .\n")
    flags = {
        "bert_config_file": str(cased_folder / "config.json"),
        "vocab_file": str(cased_folder / "vocab.txt"),
        "init_checkpoint": str(cased_folder),
    }
    message = message_of(CASED_FOLDER_CALLS[call], flags)
    assert "hf/tokenizer_config.json: says do_lower_case false" in message
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_conversion_takes_the_stated_case_along(cased_folder, tmp_path):
    options = {"output": str(tmp_path / "tf1"), "to": "tf1"}
    convert.run(convert.ConversionOptions(input=str(cased_folder), **options))
    record = json.loads((tmp_path / "tf1" / "tokenization.json").read_text())
    assert record == json.loads(provenance.record_of(False, CASED))
    report = convert.run(convert.ConversionOptions(input=str(tmp_path / "tf1"), output=str(tmp_path / "hf"), to="hf"))
    assert not any("Taken for" in line for line in report)
    assert huggingface.stated_case(str(tmp_path / "hf"))[0] is False


# What a training leaves, and what is compared when it goes on


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("tables")
    toy_data.write_tsv_task(folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tables) -> dict:
    """The options of a training that has been done, with the best weights kept."""
    folder = tmp_path_factory.mktemp("trained")
    options = {
        **toy_data.write_model(folder, num_hidden_layers=1),
        **toy_data.TSV_COLUMNS,
        "data_dir": str(tables),
        "task_name": "tsv",
        "output_dir": str(folder / "out"),
        "max_seq_length": 32,
        "train_batch_size": 32,
        "num_train_epochs": 1.0,
    }
    finetune_classifier.run(
        finetune_classifier.ClassifierOptions(**options, do_train=True, eval_steps=1, do_lower_case=False)
    )
    return options


def run_again(trained: dict, **changes) -> None:
    finetune_classifier.run(finetune_classifier.ClassifierOptions(**{**trained, "do_lower_case": False, **changes}))


@pytest.mark.parametrize("folder", ["out", "out/best"])
def test_a_training_says_beside_its_weights_what_they_are(trained, folder):
    folder = pathlib.Path(trained["output_dir"]).parent / folder
    assert (folder / "bert_config.json").read_text() == toy_data.config(num_hidden_layers=1).to_json_string()
    assert (folder / "tokenization.json").read_text() == provenance.record_of(False, toy_data.VOCAB)


@pytest.mark.parametrize(
    ("how", "name", "value"),
    [
        ("do_train", "num_attention_heads", 4),
        ("do_predict", "hidden_act", "gelu_erf"),
        ("do_eval", "layer_norm_eps", 1e-5),
        ("do_export", "num_attention_heads", 4),
    ],
)
def test_going_on_with_another_configuration(trained, tmp_path, how, name, value):
    other = tmp_path / "other.json"
    other.write_text(toy_data.config(num_hidden_layers=1, **{name: value}).to_json_string())
    before = {path.name for path in pathlib.Path(trained["output_dir"]).iterdir()}
    message = message_of(run_again, trained, bert_config_file=str(other), num_train_epochs=2.0, **{how: True})
    assert f"out/bert_config.json: states {name} " in message.replace("best/", "")
    assert {path.name for path in pathlib.Path(trained["output_dir"]).iterdir()} == before


def test_going_on_with_another_vocabulary(trained, tmp_path):
    other = write_vocab(tmp_path / "other.txt", [*toy_data.VOCAB[:5], *reversed(toy_data.VOCAB[5:])])
    for how in ("do_train", "do_predict"):
        message = message_of(run_again, trained, vocab_file=other, **{how: True})
        assert message.startswith(f"{other}: is not the vocabulary that the weights") and "tokenization.json" in message


def test_going_on_without_the_flag_that_it_was_trained_with(trained):
    message = message_of(run_again, trained, do_lower_case=None, do_predict=True)
    assert "out/tokenization.json: says do_lower_case false" in message and "give --do_lower_case=False" in message


def test_going_on_with_other_dropout(trained, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(toy_data.config(num_hidden_layers=1, hidden_dropout_prob=0.3).to_json_string())
    run_again(trained, bert_config_file=str(other), do_train=True)


def test_fewer_layers_are_no_way_to_go_on(tmp_path):
    """The next checkpoint would lack the others."""
    folder = checkpoint.CheckpointFolder(str(tmp_path / "out"))
    folder.save(checkpoint.tf1_variables(heads.SpanModel(small_config())), 3)
    model = heads.SpanModel(small_config(num_hidden_layers=1))
    message = message_of(training.start_from, model, str(tmp_path / "out"), None)
    assert "bert/encoder/layer_1/attention/self/query/kernel is not in the model" in message


def test_another_configuration_in_output_dir_is_not_replaced(trained, tmp_path):
    (tmp_path / "new").mkdir()
    path = tmp_path / "new" / "bert_config.json"
    path.write_text(toy_data.config(num_attention_heads=4).to_json_string())
    text = path.read_text()
    message = message_of(run_again, trained, output_dir=str(tmp_path / "new"), do_train=True)
    assert "new/bert_config.json: states num_hidden_layers 2 and num_attention_heads 4" in message
    assert path.read_text() == text and not (tmp_path / "new" / "checkpoint").exists()


# Weights that nobody trained


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    return google_folder(tmp_path_factory.mktemp("pretrained") / "google")


@pytest.mark.parametrize("how", ["do_predict", "do_eval", "do_export"])
def test_no_weights_at_all(trained, tmp_path, how):
    message = message_of(run_again, trained, output_dir=str(tmp_path / "typo"), **{how: True})
    assert "typo: there is no such folder, and no --init_checkpoint is given" in message
    assert not (tmp_path / "typo").exists()
    (tmp_path / "typo").mkdir()
    message = message_of(run_again, trained, output_dir=str(tmp_path / "typo"), **{how: True})
    assert "typo: holds no checkpoint, and no --init_checkpoint is given" in message


@pytest.mark.parametrize("how", ["do_predict", "do_eval"])
def test_a_head_that_nobody_trained(trained, pretrained, tmp_path, how):
    """Of a task whose labels are known, so that nothing else is missing."""
    header = "index\tid1\tid2\ttext_a\ttext_b"
    rows = [(1, 2, 3, "a film", "a book"), (0, 4, 5, "a film", "the book")]
    for name in ("dev", "test"):
        toy_data.write_table(tmp_path / f"{name}.tsv", header, rows)
    changes = {name: None for name in toy_data.TSV_COLUMNS}
    changes |= {"task_name": "mrpc", "data_dir": str(tmp_path), "output_dir": str(tmp_path / "out")}
    message = message_of(run_again, trained, **changes, init_checkpoint=pretrained, **{how: True})
    assert "has no output_weights, output_bias, so the answers would come from random weights" in message
    assert not [path for path in (tmp_path / "out").iterdir() if path.suffix in (".txt", ".json")]


def test_spans_that_nobody_trained(pretrained, tmp_path):
    options = finetune_squad.SquadOptions(
        bert_config_file=f"{pretrained}/bert_config.json",
        vocab_file=f"{pretrained}/vocab.txt",
        init_checkpoint=pretrained,
        output_dir=str(tmp_path / "out"),
        predict_file=toy_data.write_squad(tmp_path / "squad.json", 2, 1),
        max_seq_length=32,
        doc_stride=8,
        max_query_length=8,
        do_predict=True,
    )
    assert "has no cls/squad/output_weights, cls/squad/output_bias" in message_of(finetune_squad.run, options)
    assert not (tmp_path / "out" / "predictions.json").exists()


def write_pretraining_records(path: pathlib.Path) -> str:
    row = {
        "input_ids": [2, 5, 3] + [0] * 29,
        "input_mask": [1] * 3 + [0] * 29,
        "segment_ids": [0] * 32,
        "masked_lm_positions": [1, 0],
        "masked_lm_ids": [7, 0],
        "masked_lm_weights": [1.0, 0.0],
        "next_sentence_labels": [0],
    }
    records.write_records(str(path), records.PRETRAINING, [row] * 4)
    return str(path)


@pytest.fixture
def pretraining_options(pretrained, tmp_path):
    def make(**changes) -> pretraining.PretrainingOptions:
        settings = {
            "bert_config_file": f"{pretrained}/bert_config.json",
            "input_file": write_pretraining_records(tmp_path / "records"),
            "output_dir": str(tmp_path / "out"),
            "max_seq_length": 32,
            "max_predictions_per_seq": 2,
            "eval_batch_size": 2,
            "max_eval_steps": 2,
        }
        return pretraining.PretrainingOptions(**{**settings, **changes})

    return make


def test_pretraining_writes_what_it_knows(pretraining_options, pretrained, tmp_path):
    options = pretraining_options(do_train=True, num_train_steps=1, num_warmup_steps=1, train_batch_size=2)
    pretraining.run(options)
    assert (tmp_path / "out" / "bert_config.json").is_file()
    assert not (tmp_path / "out" / "tokenization.json").exists()  # nobody said which vocabulary
    pretraining.run(pretraining_options(**{**vars(options), "vocab_file": f"{pretrained}/vocab.txt"}))
    assert (tmp_path / "out" / "tokenization.json").read_text() == provenance.record_of(True, toy_data.VOCAB)


def test_evaluating_an_encoder_that_cannot_fill_in_words(pretraining_options, tmp_path):
    assert "no --init_checkpoint is given" in message_of(pretraining.run, pretraining_options(do_eval=True))
    model = heads.PretrainingModel(toy_data.config(num_hidden_layers=1)).bert
    start = save(model, tmp_path / "encoder")
    message = message_of(pretraining.run, pretraining_options(do_eval=True, init_checkpoint=start))
    assert "has no cls/predictions/transform/dense/kernel" in message and "random weights" in message
    assert not (tmp_path / "out" / "eval_results.txt").exists()


def test_evaluating_a_model_of_masked_words_only(pretraining_options, tmp_path, log_lines):
    """As BertForMaskedLM of transformers is: no numbers of a random head among the results."""
    model = heads.PretrainingModel(toy_data.config(num_hidden_layers=1))
    randomize(model)
    whole = pretraining.run(pretraining_options(do_eval=True, init_checkpoint=save(model, tmp_path / "whole")))
    variables = checkpoint.tf1_variables(model)
    kept = {name: v for name, v in variables.items() if not name.startswith(("bert/pooler/", "cls/seq_relationship/"))}
    (tmp_path / "words").mkdir()
    checkpoint.save(str(tmp_path / "words" / "bert_model.ckpt"), kept)
    found = pretraining.run(pretraining_options(do_eval=True, init_checkpoint=str(tmp_path / "words")))
    assert [*found] == ["masked_lm_accuracy", "masked_lm_loss", "global_step"]
    np.testing.assert_allclose(found["masked_lm_loss"], whole["masked_lm_loss"], rtol=1e-6)
    assert "next_sentence" not in (tmp_path / "out" / "eval_results.txt").read_text()
    assert any("no head for next sentences" in line for line in log_lines)


def test_a_model_to_be_trained_may_begin_at_random(tmp_path):
    model = heads.SpanModel(small_config())
    assert training.start_from(model, str(tmp_path), None, will_train=True) == 0
    with pytest.raises(UserError, match="holds no checkpoint"):
        training.start_from(model, str(tmp_path), None)
