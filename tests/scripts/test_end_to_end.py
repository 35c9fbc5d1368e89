"""Whole ways through the project on data made here: text to filled blanks, tables and questions to answers."""

from __future__ import annotations

import json

import command_lines as lines
import pytest
import toy_data
from bad_calls import flags

from bert_tf2 import commands

LIVES_IN = dict(zip(toy_data.NAMES, toy_data.PLACES, strict=True))
LEARNING = {"max_seq_length": 32, "train_batch_size": 16}
LENGTHS = {"max_seq_length": 32, "max_predictions_per_seq": 5}


def lives(name: str) -> str:
    return f"{name} lives in {LIVES_IN[name]} now ."


@pytest.mark.slow
@pytest.mark.compiled
def test_from_text_to_filled_blanks(tmp_path, log_lines, capsys):
    """The place follows from the name, as every sentence of the text shows. Each sentence is a document."""
    (tmp_path / "text.txt").write_text("\n\n".join([*map(lives, toy_data.NAMES)] * 8) + "\n")
    text, vocab_file = {"input_file": f"{tmp_path}/text.txt"}, f"{tmp_path}/vocab.txt"
    commands.call("build_vocab", **text, vocab_file=vocab_file)
    vocab = (tmp_path / "vocab.txt").read_text().split()
    assert {*toy_data.NAMES, *toy_data.PLACES, "lives"} <= {*vocab}
    config = toy_data.config(vocab_size=len(vocab), hidden_size=32, intermediate_size=64, initializer_range=0.1)
    (tmp_path / "bert_config.json").write_text(config.to_json_string())
    records = f"{tmp_path}/a.tfrecord,{tmp_path}/b.tfrecord"
    made = {"vocab_file": vocab_file, "output_file": records, "dupe_factor": 10, "do_lower_case": True}
    commands.call("create_pretraining_data", **text, **made, **LENGTHS)
    model = {"bert_config_file": f"{tmp_path}/bert_config.json"}
    given = {**model, **LENGTHS, "input_file": f"{tmp_path}/*.tfrecord", "output_dir": f"{tmp_path}/model"}
    given |= {"do_train": True, "do_eval": True, "learning_rate": 2e-3, "unpad": "groups", "max_eval_steps": 10}
    first, last = (
        commands.call("run_pretraining", **given, num_warmup_steps=10, num_train_steps=steps) for steps in (20, 400)
    )
    assert first["global_step"] == 20 and last["masked_lm_loss"] < first["masked_lm_loss"] / 2
    assert f"Continuing from {tmp_path}/model/model.ckpt-20 at step 20" in log_lines
    sentences = [f"{lives(name).replace(place, '[MASK]')} ||| {lives('eve')}" for name, place in LIVES_IN.items()]
    where = {"init_checkpoint": f"{tmp_path}/model", "vocab_file": vocab_file}
    commands.call("predict_masked", **model, **where, sentence=sentences, output_format="json")
    filled = [json.loads(line)["filled"] for line in capsys.readouterr().out.splitlines()]
    assert filled == [f"{lives(name)} ||| {lives('eve')}" for name in LIVES_IN]


def test_a_classifier_learns_and_predicts_in_the_order_of_the_file(tmp_path, log_lines):
    # With every seed that was tried, this width is enough, and half of this width is not.
    width = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    settings = {**toy_data.write_model(tmp_path, **width), **toy_data.TSV_COLUMNS, **LEARNING, "task_name": "tsv"}
    settings |= {"data_dir": f"{tmp_path}/tables", "output_dir": f"{tmp_path}/out", "learning_rate": 2e-3}
    toy_data.write_tsv_task(tmp_path / "tables", 400)
    given = {**settings, "num_train_epochs": 4.0, "do_train": True, "do_eval": True, "do_predict": True}
    results = commands.call("run_classifier", **given)
    assert results["eval_accuracy"] == 1.0
    measured = (tmp_path / "out" / "eval_results.txt").read_text().splitlines()
    assert [line.split(" = ")[0] for line in measured] == ["eval_accuracy", "eval_loss", "global_step", "loss"]
    assert measured[0] == "eval_accuracy = 1.0" and measured[2] == "global_step = 100"
    assert "\n  ".join(["***** Eval results *****", *measured]) in log_lines  # the reference's lines
    measures = json.loads((tmp_path / "out" / "eval_metrics.json").read_text())
    assert measures["accuracy"] == 1.0 and measures["per_class"]["no"]["support"] == 10
    found, both = (
        [line.split("\t") for line in (tmp_path / "out" / name).read_text().splitlines()]
        for name in ("predictions.tsv", "test_results.tsv")
    )
    assert found.pop(0) == ["id", "label", "probability"]
    wanted = toy_data.sentences(21, 2)
    assert [(name, label) for name, label, _ in found] == [(f"t{n}", label) for n, (_, label) in enumerate(wanted)]
    for (_, label, probability), row in zip(found, both, strict=True):
        assert probability == row[["no", "yes"].index(label)] == max(row, key=float)


@pytest.mark.slow
def test_questions_with_an_answer_in_every_paragraph(tmp_path):
    settings = {**toy_data.write_model(tmp_path, num_hidden_layers=1), **LEARNING, "output_dir": f"{tmp_path}/out"}
    settings |= {"max_query_length": 8, "doc_stride": 8, "learning_rate": 5e-3, "num_train_epochs": 25.0}
    settings["train_file"] = toy_data.write_squad(tmp_path / "train.json", 64, 1)
    settings["predict_file"] = toy_data.write_squad(tmp_path / "dev.json", 21, 2)
    scores = commands.call("run_squad", **settings, do_train=True, do_predict=True, do_eval=True)
    names = "eval_metrics.json", "predictions.json", "nbest_predictions.json"
    measured, predictions, nbest = (json.loads((tmp_path / "out" / name).read_text()) for name in names)
    assert scores == measured == {"exact_match": 100.0, "f1": 100.0}
    assert list(predictions) == [f"q{number}" for number in range(21)]
    assert all(nbest[name][0]["text"] == text for name, text in predictions.items())
    assert not (tmp_path / "out" / "null_odds.json").exists()


@pytest.mark.slow
def test_words_are_tagged(tmp_path):
    """Also beyond the window of 16 pieces."""
    settings = {**toy_data.write_model(tmp_path, num_hidden_layers=1), **LEARNING, "output_dir": f"{tmp_path}/out"}
    settings |= {"word_column": 2, "max_seq_length": 16, "learning_rate": 5e-3, "num_train_epochs": 12.0}
    settings["train_file"] = toy_data.write_conll(tmp_path / "train.txt", 48, 1)
    settings["eval_file"] = toy_data.write_conll(tmp_path / "dev.txt", 12, 2)
    settings["predict_file"] = toy_data.write_conll(tmp_path / "test.txt", 12, 2, tags=False)
    scores = commands.call("run_ner", **settings, do_train=True, do_eval=True, do_predict=True)
    assert scores["f1"] == 1.0 and scores["types"]["LOC"]["true_entities"] == 12
    measured = (tmp_path / "out" / "eval_results.txt").read_text().splitlines()
    assert [line.split(" = ")[0] for line in measured] == ["accuracy", "f1", "global_step", "precision", "recall"]
    metrics = json.loads((tmp_path / "out" / "eval_metrics.json").read_text())
    assert {**metrics, "global_step": scores["global_step"]} == scores
    assert (tmp_path / "out" / "predictions.txt").read_text() == (tmp_path / "dev.txt").read_text()


@pytest.mark.slow
def test_odd_files_and_flags_that_the_reference_accepts(tmp_path, log_lines):
    """CoLA: no dropout, weights of zero, no checkpoint but the last, a cell too many in a row, which the log names."""
    odd = {"hidden_dropout_prob": None, "attention_probs_dropout_prob": None, "initializer_range": 0}
    table = [("s", label, "", text) for text, label in (("good film", 1), ("bad film", 0)) * 8]
    toy_data.write_table(tmp_path / "train.tsv", "", table)
    toy_data.write_table(tmp_path / "dev.tsv", "", [*table[:3], (*table[3], "")])
    given = {**toy_data.write_model(tmp_path, **odd), "task_name": "CoLA", "data_dir": str(tmp_path)}
    given |= {"output_dir": f"{tmp_path}/out", "max_seq_length": 8, "train_batch_size": 8, "save_checkpoints_steps": 0}
    assert commands.call("run_classifier", **given, do_train=True, do_eval=True, do_export=True)["eval_accuracy"] == 0.5
    assert (tmp_path / "out" / "export" / "1" / "saved_model.pb").exists()
    assert [path.name for path in (tmp_path / "out").glob("*.index")] == ["model.ckpt-6.index"]
    assert len([line for line in log_lines if "dev.tsv: 1 of 4 rows" in line and "row 4" in line]) == 1


def test_the_precision_reaches_the_model(bad_files, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(bad_files)
    lines.call("extract_features.py", *flags("extract_features.py", "--input_file=blanks.txt", tmp_path))
    exact = (tmp_path / "features.json").read_text()
    more = "--input_file=blanks.txt --precision=bfloat16 --output_file=/dev/stdout"
    lines.call("extract_features.py", *flags("extract_features.py", more, tmp_path))
    assert capfd.readouterr().out != exact and len(exact) > 20
