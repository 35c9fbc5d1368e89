"""Whole tasks whose flags contradict what files beside the weights state, or whose weights nobody trained."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re

import numpy as np
import pytest
import toy_data
from google_folders import CASED, google_folder, save, write_vocab
from refused import message_of
from small_models import randomize, small_config

import bert_tf2
from bert_tf2 import heads
from bert_tf2.data import records
from bert_tf2.exporting.run import export_model
from bert_tf2.finetuning import extract_features
from bert_tf2.finetuning.classification import run as finetune_classifier
from bert_tf2.finetuning.options import ClassifierOptions, FeatureOptions
from bert_tf2.pretraining import example_files, predict_masked
from bert_tf2.pretraining import run as pretraining
from bert_tf2.pretraining.options import CreatePretrainingDataOptions, MaskedLMOptions, PretrainingOptions
from bert_tf2.training.loop import start_from
from bert_tf2.weights import checkpoint, convert, text_rules
from bert_tf2.weights.options import ConversionOptions

# The case of the text

CASED_FOLDER_CALLS = {
    "extract_features": lambda flags: extract_features.run(
        FeatureOptions(input_file="text.txt", output_file="out.json", layers="-1", max_seq_length=32, **flags)
    ),
    "predict_masked": lambda flags: predict_masked.run(MaskedLMOptions(sentence=["The [MASK] ."], **flags)),
    "create_pretraining_data": lambda flags: example_files.run(
        CreatePretrainingDataOptions(
            input_file="text.txt", output_file="out.tfrecord", vocab_file=flags["vocab_file"], do_lower_case=None
        )
    ),
}


@pytest.fixture(scope="module")
def cased_folder(tmp_path_factory) -> pathlib.Path:
    """A cased model in Hugging Face's layout."""
    folder = tmp_path_factory.mktemp("cased")
    google_folder(folder / "google", vocabulary=CASED)
    convert.run(ConversionOptions(input=str(folder / "google"), output=str(folder / "hf"), to="hf"))
    assert text_rules.in_huggingface(str(folder / "hf")).do_lower_case is False
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


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (MaskedLMOptions, {"sentence": ["The [MASK] ."]}),
        (FeatureOptions, {"input_file": "text.txt", "output_file": "out.json"}),
        (PretrainingOptions, {"input_file": "records", "output_dir": "out", "do_train": True}),
    ],
)
def test_the_files_of_a_model_are_found(make, settings, cased_folder, tmp_path, capsys):
    found = make(init_checkpoint=str(cased_folder / "model.safetensors"), **settings)
    assert (found.bert_config_file, found.vocab_file) == tuple(
        str(cased_folder / name) for name in ("config.json", "vocab.txt")
    )
    assert found.do_lower_case is False  # as tokenizer_config.json says
    if make is MaskedLMOptions:
        predict_masked.run(found)
        assert capsys.readouterr().out.startswith("The [MASK] .\n")
    message = message_of(make, init_checkpoint=str(tmp_path), **settings)
    missing = "bert_config.json" if make is PretrainingOptions else "vocab.txt and no bert_config.json"
    assert message.endswith(f"--bert_config_file must be given: there is no {missing} beside the weights")


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
    finetune_classifier.run(ClassifierOptions(**options, do_train=True, eval_steps=1, do_lower_case=False))
    return options


def run_again(trained: dict, **changes) -> None:
    finetune_classifier.run(ClassifierOptions(**{**trained, "do_lower_case": False, **changes}), export_model)


@pytest.mark.parametrize("folder", ["out", "out/best"])
def test_a_training_says_beside_its_weights_what_they_are(trained, folder):
    folder = pathlib.Path(trained["output_dir"]).parent / folder
    assert (folder / "bert_config.json").read_text() == toy_data.config(num_hidden_layers=1).to_json_string()
    assert (folder / "tokenization.json").read_text() == text_rules.record_of(False, {})
    assert (folder / "vocab.txt").read_bytes() == pathlib.Path(trained["vocab_file"]).read_bytes()
    bert = bert_tf2.load(folder)  # so the folder is a model
    assert bert.tokenizer.tokenize("good Film") == ["good", "[UNK]"] and bert.labels.labels == ("no", "yes")


def test_going_on_without_files_of_the_model(trained):
    found = ClassifierOptions(**{**trained, "bert_config_file": None, "vocab_file": None}, do_predict=True)
    assert found.vocab_file == f"{trained['output_dir']}/vocab.txt" and found.do_lower_case is False
    run_again(trained, bert_config_file=None, vocab_file=None, do_lower_case=None, do_predict=True)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("vocab.txt", "\n".join(toy_data.VOCAB[::-1]), "is another vocabulary than --vocab_file="),
        (
            "bert_config.json",
            toy_data.config(num_attention_heads=4).to_json_string(),
            "states num_hidden_layers 2, and",
        ),
    ],
)
def test_files_of_another_model_in_output_dir_are_not_replaced(trained, tmp_path, name, content, part):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / name).write_text(content)
    message = message_of(run_again, trained, output_dir=str(tmp_path / "new"), do_train=True)
    assert message.startswith(f"{tmp_path / 'new' / name}: {part}")
    assert (tmp_path / "new" / name).read_text() == content and not (tmp_path / "new" / "checkpoint").exists()


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
        assert message.startswith(f"{other}: is not the vocabulary that lies with the weights")
    unused = write_vocab(tmp_path / "unused.txt", [*toy_data.VOCAB[:-1], "[unused1]"])
    message = message_of(run_again, trained, vocab_file=unused, do_train=True)
    assert "out/vocab.txt: is another vocabulary than --vocab_file" in message


def test_going_on_without_the_flag_that_it_was_trained_with(trained):
    message = message_of(run_again, trained, do_lower_case=None, do_predict=True)
    assert "out/tokenization.json: says do_lower_case false" in message and "give --do_lower_case=False" in message


def test_a_classifier_from_hugging_face_predicts(trained, tmp_path):
    """There its task has no name; the labels decide."""
    convert.run(ConversionOptions(input=f"{trained['output_dir']}/best", output=str(tmp_path / "hf"), to="hf"))
    convert.run(ConversionOptions(input=str(tmp_path / "hf"), output=str(tmp_path / "tf1"), to="tf1"))
    start = {"init_checkpoint": str(tmp_path / "tf1"), "output_dir": str(tmp_path / "out"), "do_predict": True}
    run_again(trained, **start)
    results = (tmp_path / "out" / "test_results.tsv").read_text()
    run_again(trained, do_predict=True)
    assert results == (pathlib.Path(trained["output_dir"]) / "test_results.tsv").read_text()


def test_fewer_layers_are_no_way_to_go_on(tmp_path):
    """The next checkpoint would lack the others."""
    folder = checkpoint.CheckpointFolder(str(tmp_path / "out"))
    folder.save(checkpoint.tf1_variables(heads.SpanModel(small_config())), 3)
    model = heads.SpanModel(small_config(num_hidden_layers=1))
    message = message_of(start_from, model, str(tmp_path / "out"), None)
    assert re.search("bert/encoder/layer_1/[a-z/]+ is not in the model", message, re.IGNORECASE)


# Weights that nobody trained


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    return google_folder(tmp_path_factory.mktemp("pretrained") / "google")


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
    def make(**changes) -> PretrainingOptions:
        settings = {
            "bert_config_file": f"{pretrained}/bert_config.json",
            "input_file": write_pretraining_records(tmp_path / "records"),
            "output_dir": str(tmp_path / "out"),
            "max_seq_length": 32,
            "max_predictions_per_seq": 2,
            "eval_batch_size": 2,
            "max_eval_steps": 2,
        }
        return PretrainingOptions(**{**settings, **changes})

    return make


@pytest.mark.slow
def test_pretraining_writes_what_it_knows(pretraining_options, pretrained, tmp_path):
    options = pretraining_options(do_train=True, num_train_steps=1, num_warmup_steps=1, train_batch_size=2)
    pretraining.run(options)
    assert (tmp_path / "out" / "bert_config.json").is_file()
    assert not {"tokenization.json", "vocab.txt"} & {*os.listdir(tmp_path / "out")}  # nobody said which vocabulary
    pretraining.run(dataclasses.replace(options, vocab_file=f"{pretrained}/vocab.txt"))
    assert (tmp_path / "out" / "tokenization.json").read_text() == text_rules.record_of(True, {})
    assert (tmp_path / "out" / "vocab.txt").read_bytes() == pathlib.Path(pretrained, "vocab.txt").read_bytes()
    predict_masked.run(MaskedLMOptions(init_checkpoint=str(tmp_path / "out"), sentence=["the [MASK]"]))


@pytest.mark.slow
def test_evaluating_a_model_of_masked_words_only(pretraining_options, tmp_path):
    """As BertForMaskedLM of transformers is: no numbers of a random head among the results."""
    model = heads.PretrainingModel(toy_data.config(num_hidden_layers=1))
    randomize(model)
    whole = pretraining.run(pretraining_options(do_eval=True, init_checkpoint=save(model, tmp_path / "whole")))
    variables = checkpoint.tf1_variables(model)
    kept = {name: v for name, v in variables.items() if not name.startswith(("bert/pooler/", "cls/seq_relationship/"))}
    (tmp_path / "words").mkdir()
    checkpoint.save(str(tmp_path / "words" / "bert_model.ckpt"), kept)
    words = str(tmp_path / "words")
    message = message_of(pretraining.run, pretraining_options(do_eval=True, init_checkpoint=words))
    assert message.endswith("bert_model.ckpt: was trained with masked words only; give --objective=mlm")
    found = pretraining.run(pretraining_options(do_eval=True, objective="mlm", init_checkpoint=words))
    np.testing.assert_allclose(found["masked_lm_loss"], whole["masked_lm_loss"], rtol=1e-6)
    assert "next_sentence" not in (tmp_path / "out" / "eval_results.txt").read_text()
