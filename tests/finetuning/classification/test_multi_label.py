"""Texts with several labels, class weights, further tables: the rules by hand, and whole calls."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import toy_data
from refused import message_of
from small_models import LABELS, randomize, small_batch, small_config

from bert_tf2 import exporting as exports
from bert_tf2 import heads
from bert_tf2.data import records
from bert_tf2.exporting.run import export_model
from bert_tf2.finetuning import classification
from bert_tf2.finetuning.classification.examples import InputExample, balanced_weights
from bert_tf2.finetuning.classification.results import compute_metrics
from bert_tf2.finetuning.classification.run import run
from bert_tf2.finetuning.options import ClassifierOptions
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.weights import convert, sources
from bert_tf2.weights.options import ConversionOptions
from bert_tf2.weights.task_file import LabelMap

MAP = LabelMap("tsv", ("fun", "long", "sad"), regression=False, multi_label=True)
LAYOUT = classification.TsvLayout("text", label="tags", id="name", separator=",")


def write_tables(folder: pathlib.Path, train: list[str], test: int = 3) -> str:
    folder.mkdir(exist_ok=True)
    for part in ("train", "dev"):
        rows = [(f"{part}{number}", "a film", labels) for number, labels in enumerate(train)]
        toy_data.write_table(folder / f"{part}.tsv", "name\ttext\ttags", rows)
    toy_data.write_table(folder / "test.tsv", "name\ttext", [(f"t{number}", "a book") for number in range(test)])
    return str(folder)


# Tables


def test_labels_are_separated_and_collected(tmp_path):
    folder = write_tables(tmp_path / "d", ["sad,fun", "", " long , fun", "fun,"])
    processor = classification.get_processor("tsv", tsv=LAYOUT)
    examples = processor.get_train_examples(folder)
    assert [example.label for example in examples] == [("sad", "fun"), (), ("long", "fun"), ("fun",)]
    assert processor.get_labels() == ["fun", "long", "sad"]
    assert processor.label_map() == MAP


def test_an_unknown_label_among_several_is_named(tmp_path):
    folder = write_tables(tmp_path / "d", ["sad", "sad,funny"])
    processor = classification.get_processor("tsv", tsv=LAYOUT, label_map=MAP)
    assert "dev.tsv, row 3: unknown label 'funny'" in message_of(processor.get_dev_examples, folder)


def test_a_model_of_one_label_is_not_one_of_several():
    one = LabelMap("tsv", MAP.labels, regression=False)
    message = message_of(classification.get_processor, "tsv", tsv=LAYOUT, label_map=one)
    assert "(labels fun, long, sad)" in message and "leave out --multi_label" in message


def test_features_hold_a_number_for_each_label(tmp_path):
    tokenizer = FullTokenizer(toy_data.write_model(tmp_path)["vocab_file"])
    features = classification.convert_single_example(
        0, InputExample("a", "a film", None, ("sad", "fun")), ["fun", "long", "sad"], 8, tokenizer
    )
    assert classification.as_record(features)["label_ids"] == [1, 0, 1]
    assert classification.record_kind(MAP.labels, multi_label=True) is records.MULTI_LABEL


# The loss


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("multi_label", [False, True])
def test_losses_by_hand(multi_label, weighted):
    model = heads.ClassifierModel(small_config(), LABELS, multi_label=multi_label)
    randomize(model)
    model.call = lambda batch, training=False, dropout_seed=None, call=model.call: call(batch)  # without dropout
    batch, weights = small_batch(), np.arange(1.0, LABELS + 1)
    if multi_label:
        batch["label_ids"] = (np.arange(4 * LABELS).reshape(4, LABELS) % 3 == 0).astype(np.int32)
    logits, y = np.asarray(model.call(batch), np.float64), batch["label_ids"]
    if multi_label:
        each = np.log1p(np.exp(-np.where(y == 1, logits, -logits)))
        losses, mean = each.mean(axis=1), (each * np.where((y == 1) & weighted, weights, 1.0)).mean()
        probabilities = 1 / (1 + np.exp(-logits))
    else:
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        losses = -np.log(probabilities[np.arange(len(y)), y])
        mean = np.average(losses, weights=weights[y] if weighted else None)
    model.class_weights = tuple(weights) if weighted else None
    (term,) = model.loss_terms(batch, dropout_seed=None)
    np.testing.assert_allclose(term.mean(), mean, rtol=1e-5)
    outputs = model.outputs(batch)
    np.testing.assert_allclose(outputs["example_loss"], losses, rtol=1e-5)  # without weights, as the reference's
    np.testing.assert_allclose(outputs["probabilities"], probabilities, rtol=1e-5)


EXAMPLES = [InputExample("", "", None, label) for label in ("a", "a", "a", "b")]
PAIR = LabelMap("tsv", ("a", "b"), regression=False)


def test_balanced_weights():
    assert balanced_weights(EXAMPLES, PAIR) == pytest.approx((4 / 6, 4 / 2))
    several = [InputExample("", "", None, labels) for labels in (("fun",), ("fun", "sad"), (), ("fun",))]
    assert balanced_weights(several, MAP) == pytest.approx((1 / 3, 4.0, 3.0))


# Scores


def test_scores_of_several_labels_by_hand():
    right = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]])
    outputs = np.array([[0.9, 0.1, 0.2], [0.5, 0.4, 0.1], [0.1, 0.1, 0.1], [0.7, 0.8, 0.49]])
    scores = compute_metrics(classification.find_task("tsv", tsv=LAYOUT), right, outputs, MAP.labels)
    # fun: 2 of 3 given ones are right, none is missed; long: 1 of 2 found; sad: never there and never given.
    assert scores["per_class"]["fun"] == {"precision": 2 / 3, "recall": 1.0, "f1": 0.8, "support": 2}
    assert scores["per_class"]["long"] == {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "support": 2}
    assert scores["micro_f1"] == pytest.approx(2 * 3 / (4 + 4))  # 3 right ones of 4 given ones and of 4 that there are
    assert scores["macro_f1"] == pytest.approx((0.8 + 2 / 3 + 0.0) / 3)
    assert scores["exact_match"] == 0.5
    assert "confusion_matrix" not in scores


# Whole calls


def options(folder: pathlib.Path, **changes) -> ClassifierOptions:
    settings = {
        **toy_data.write_model(folder, num_hidden_layers=1, hidden_size=32, num_attention_heads=4),
        **{"text_a_column": "text", "label_column": "tags", "id_column": "name", "task_name": "tsv"},
        **{"data_dir": str(folder / "d"), "output_dir": str(folder / "out"), "max_seq_length": 12},
        **{"train_batch_size": 8, "multi_label": True},
    }
    return ClassifierOptions(**{**settings, **changes})


@pytest.mark.slow
def test_training_prediction_conversion_and_export(tmp_path, log_lines):
    """Two words are labels of their own; a tiny model learns them."""
    rows = [" ".join(words) for words in (("film", "a"), ("good", "a"), ("in", "a"), ("good", "in"))] * 16
    named = {"good": "fun", "in": "sad"}
    cells = [",".join(named[word] for word in row.split() if word in named) for row in rows]
    (tmp_path / "d").mkdir()
    for part in ("train", "dev"):
        table = [(f"{part}{number}", *row) for number, row in enumerate(zip(rows, cells, strict=True))]
        toy_data.write_table(tmp_path / "d" / f"{part}.tsv", "name\ttext\ttags", table)
    toy_data.write_table(tmp_path / "d" / "test.tsv", "name\ttext", [(f"t{n}", row) for n, row in enumerate(rows[:4])])
    switches = dict.fromkeys(("do_train", "do_eval", "do_predict", "do_export"), True)
    results = run(
        options(tmp_path, **switches, learning_rate=5e-3, num_train_epochs=30, class_weights="balanced"), export_model
    )
    assert results["micro_f1"] == results["macro_f1"] == results["exact_match"] == 1.0
    text = (tmp_path / "out" / "eval_results.txt").read_text()
    assert "micro_f1 = 1.0" in text and "eval_accuracy" not in text
    assert (tmp_path / "out" / "predictions.tsv").read_text() == "id\tlabels\nt0\t\nt1\tfun\nt2\tsad\nt3\tfun,sad\n"
    answer = exports.load(str(tmp_path / "out" / "export"))
    assert [found["labels"] for found in answer(rows[:4])] == [[], ["fun"], ["sad"], ["fun", "sad"]]
    convert.run(ConversionOptions(input=str(tmp_path / "out"), output=str(tmp_path / "hf"), to="hf"))
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["problem_type"] == "multi_label_classification"
    assert sources.open_weights(str(tmp_path / "hf")).labels().multi_label
    again = run(options(tmp_path, do_eval=True, init_checkpoint=str(tmp_path / "hf"), output_dir=str(tmp_path / "new")))
    assert again["micro_f1"] == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_name": "cola"}, "--multi_label needs --task_name=tsv"),
        ({"label_separator": ""}, "and a --label_separator"),
        ({"class_weights": "balanced"}, "--class_weights needs --do_train"),
        (
            {"task_name": "sts-b", "multi_label": False, "do_train": True, "class_weights": "balanced"},
            "--class_weights: sts-b has no classes",
        ),
    ],
)
def test_settings_that_do_not_fit(tmp_path, changes, message):
    assert message in message_of(options, tmp_path, **{"do_eval": True, **changes})
