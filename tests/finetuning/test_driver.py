"""The way that all fine-tuning tasks share: batches, the best weights, patience, continued trainings, kept labels."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
import re
import runpy
import sys

import numpy as np
import pytest
import toy_data
from command_lines import ROOT
from refused import refuses

import bert_tf2
from bert_tf2 import heads
from bert_tf2.commands import call
from bert_tf2.exporting.options import ExportOptions
from bert_tf2.finetuning.options import ClassifierOptions, SquadOptions
from bert_tf2.inference.options import FeatureOptions
from bert_tf2.support.resolution import resolve
from bert_tf2.training import forward, plots
from bert_tf2.weights import checkpoint, model_folder, sources
from bert_tf2.weights.task_file import LabelMap

TAGS = LabelMap("ner", ("O", "B-LOC", "B-PER"), regression=False)
NO_COLUMNS = dict.fromkeys(toy_data.TSV_COLUMNS)  # of own tables
ANSWERS = LabelMap("tsv", ("no", "yes"), regression=False)


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("tables")
    toy_data.write_tsv_task(folder)
    return folder


@pytest.fixture
def settings(tmp_path, tables) -> dict:
    files = {**toy_data.write_model(tmp_path, num_hidden_layers=1), **toy_data.TSV_COLUMNS, "data_dir": str(tables)}
    training = {"max_seq_length": 32, "train_batch_size": 16, "learning_rate": 5e-3}
    return {**files, **training, "task_name": "tsv", "output_dir": str(tmp_path / "out")}


def classify(settings, **changes):
    return call("run_classifier", **{**settings, **changes})


def save_random(folder: pathlib.Path, label_map: LabelMap) -> str:
    """A model whose answers differ widely."""
    kind = heads.TaggingModel if label_map is TAGS else heads.ClassifierModel
    model = kind(toy_data.config(num_hidden_layers=1), num_labels=len(label_map.labels))
    return str(toy_data.write_trained(folder, model, label_map).parent)


def steps_in(folder: pathlib.Path) -> set[int]:
    return {int(path.stem.removeprefix("model.ckpt-")) for path in folder.glob("*.index")}


def measure_in(folder: pathlib.Path) -> dict:
    return json.loads((folder / "best" / "measure.json").read_text())


def test_a_fork_of_the_guide_evaluates_and_predicts(settings, tmp_path, monkeypatch):
    """The reference's `loss` is the mean of the batches' means: a smaller last batch counts in full.

    dev.tsv and test.tsv have the same texts. Files beside the weights are read once: each reading is a round trip where
    the storage is remote.
    """
    diff = re.search(r"```diff\n(.*?)```", (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    script = tmp_path / "run_reviews.py"
    script.write_text("".join(f"{line[1:]}\n" for line in diff.splitlines() if not line.startswith("-")))
    start = save_random(tmp_path / "start", LabelMap("reviews", ANSWERS.labels, regression=False))
    (tmp_path / "start" / "tokenization.json").write_text('{"do_lower_case": true}')
    opened, watched, results = collections.Counter(), [True], []

    def count(event, arguments):
        if event == "open" and watched and isinstance(arguments[0], str) and arguments[0].startswith(start):
            opened[os.path.basename(arguments[0])] += 1

    sys.addaudithook(count)  # for good
    settings |= {
        **NO_COLUMNS,
        "task_name": "Reviews",
        "init_checkpoint": start,
        "eval_batch_size": 20,
        "predict_batch_size": 3,
    }
    to_do = {"do_eval": True, "do_predict": True}
    monkeypatch.setattr(bert_tf2.commands, "run", lambda name: results.append(call(name, **settings, **to_do)))
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script), run_name="__main__")
    watched.clear()
    assert {opened["model.ckpt-7.index"], opened["tokenization.json"], opened["label_map.json"]} == {1}, opened
    probabilities = np.loadtxt(tmp_path / "out" / "test_results.tsv")
    right = [ANSWERS.labels.index(label) for _, label in toy_data.sentences(21, 2)]
    losses = -np.log(probabilities[np.arange(21), right])
    assert probabilities.shape == (21, 2) and np.ptp(probabilities[:, 0]) > 0.1  # there is something to compare
    (found,) = results
    assert found["eval_loss"] == pytest.approx(losses.mean(), rel=1e-4)
    assert found["loss"] == pytest.approx(np.mean([losses[:20].mean(), losses[20]]), rel=1e-4)
    assert found["eval_accuracy"] == pytest.approx(np.mean(probabilities.argmax(axis=1) == right))
    assert "eval_accuracy = " in (tmp_path / "out" / "eval_results.txt").read_text()
    assert (tmp_path / "out" / "predictions.tsv").read_text().splitlines()[1].startswith("test-t0\t")


@pytest.mark.compiled
@pytest.mark.slow
def test_a_program_for_few_widths_has_the_same_predictions(settings, tmp_path, monkeypatch):
    def seen(self, data, batch_size, program, run=forward.Runner.run, **how):
        sizes.append((program.is_compiled, {batch["input_ids"].shape[1] for batch in data}))
        return run(self, data, batch_size, program, **how)

    monkeypatch.setattr(forward.Runner, "run", seen)
    settings |= {"init_checkpoint": save_random(tmp_path / "start", ANSWERS), "predict_batch_size": 4}
    found, sizes = [], []
    for xla in (False, True):
        classify(settings, do_predict=True, output_dir=str(tmp_path / f"xla_{xla}"), xla=xla)
        found.append(np.loadtxt(tmp_path / f"xla_{xla}" / "test_results.tsv"))
    (plain, widths), (compiled, few) = sizes
    assert (plain, compiled) == (False, True) and few <= {8, 16, 24, 32} and not widths <= few
    assert np.ptp(found[0][:, 0]) > 0.1
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


# The best weights


def test_the_best_weights_are_kept_and_used_and_patience_ends_the_training(settings, tmp_path, log_lines):
    how = {"eval_steps": 4, "patience": 2, "num_train_epochs": 25.0, "save_checkpoints_steps": 4}
    how |= {"learning_rate": 1e-2, "warmup_proportion": 0.0, "keep_checkpoint_max": 50}
    results = classify(settings, do_train=True, do_eval=True, **how)
    out = tmp_path / "out"
    shown = plots.read_scalars(str(out / "eval"))["accuracy"]
    best = max(shown, key=shown.get)  # the first of equal ones
    content = measure_in(out)
    del content["crc32c"]
    stated = {"measure": "accuracy", "step": best, "last_step": best + 8, "evaluations_since": 2}
    assert content == {**stated, "value": pytest.approx(max(shown.values()))}
    assert [*shown] == [*range(4, best + 9, 4)] and len({*shown.values()}) > 1 and best > 4
    assert max(steps_in(out)) == best + 8 and steps_in(out / "best") == {best}
    assert results["global_step"] == best and results["accuracy"] == pytest.approx(shown[best])
    assert any("No better accuracy in 2 evaluations" in line for line in log_lines)
    kept, then = (checkpoint.Checkpoint(f"{folder}/model.ckpt-{best}") for folder in (out / "best", out))
    for name in kept.shapes:
        np.testing.assert_array_equal(kept.get(name), then.get(name))
    # Later calls use them, and the same command does not continue the training.
    before = steps_in(out)
    again = classify(settings, do_train=True, do_eval=True, **how)
    assert again["accuracy"] == results["accuracy"] and steps_in(out) == before
    assert f"Using {out}/best/model.ckpt-{best}" in log_lines
    # Other settings would train nothing, which the log mentions.
    unused = "No step is trained with these settings; give another output_dir for a new training. learning_rate: 0.01 "
    assert not [line for line in log_lines if line.startswith(unused)]
    classify(settings, do_train=True, **{**how, "learning_rate": 1e-3})
    assert [line for line in log_lines if line.startswith(unused)] and steps_in(out) == before


@pytest.mark.slow
def test_the_best_counts_while_its_training_is_there_and_evaluated(settings, tmp_path):
    still = {**settings, "learning_rate": 1e-12, "eval_steps": 2, "do_train": True}  # so the first is the best
    classify(still, num_train_epochs=1.0)
    assert classify(settings, do_eval=True)["global_step"] == 2
    classify(settings, do_train=True, num_train_epochs=2.0)  # without evaluations
    assert classify(settings, do_eval=True)["global_step"] == 8
    for path in (tmp_path / "out").glob("*"):
        if path.is_file():
            path.unlink()
    assert classify({**still, "eval_steps": 4}, do_eval=True, num_train_epochs=1.0)["global_step"] == 4


@pytest.mark.slow
def test_questions_are_evaluated_on_the_way_without_being_asked_to_predict(tmp_path):
    files = {"train_file": toy_data.write_squad(tmp_path / "train.json", 16, 1)}
    files |= {"predict_file": toy_data.write_squad(tmp_path / "dev.json", 6, 2), "output_dir": str(tmp_path / "out")}
    training = {"do_train": True, "eval_steps": 2, "train_batch_size": 8, "num_train_epochs": 2.0}
    lengths = {"max_seq_length": 32, "max_query_length": 8, "doc_stride": 8}
    call("run_squad", **toy_data.write_model(tmp_path, num_hidden_layers=1), **files, **lengths, **training)
    assert measure_in(tmp_path / "out")["measure"] == "f1" and measure_in(tmp_path / "out")["last_step"] == 4
    assert not (tmp_path / "out" / "predictions.json").exists()


# What the weights are for


def test_labels_of_words_and_of_texts_are_not_confused(settings, tmp_path):
    tagger, classifier = save_random(tmp_path / "tagger", TAGS), save_random(tmp_path / "classifier", ANSWERS)
    words = toy_data.write_conll(tmp_path / "words.txt", 8, 1)
    tagging = {**toy_data.write_model(tmp_path, num_hidden_layers=1), "word_column": 2, "max_seq_length": 32}
    tagging |= {f"{part}_file": words for part in ("train", "eval", "predict")}
    for flag in ("init_checkpoint", "output_dir"):
        refuses("tagger/label_map.json ner", classify, settings, do_predict=True, **{flag: tagger})
        given = {**tagging, "output_dir": str(tmp_path / "new"), flag: classifier}
        refuses("classifier/label_map.json tsv", call, "run_ner", do_eval=True, **given)
    # Nor are other tags learned by weights that would fit, because there are as many as before.
    pathlib.Path(words).write_text(pathlib.Path(words).read_text().replace("B-LOC", "B-CITY"))
    refuses("words.txt, line 'B-CITY'", call, "run_ner", do_train=True, **tagging, output_dir=tagger)


@pytest.mark.slow
def test_a_training_keeps_the_labels_of_its_initial_weights(settings, tmp_path, log_lines):
    """In their order, if the training file has the same. Earlier versions made no O for letters."""
    model = heads.TaggingModel(toy_data.config(num_hidden_layers=1), num_labels=4)
    toy_data.write_trained(tmp_path / "ner", model, LabelMap("ner", tuple("BEMS"), regression=False))
    save_random(tmp_path / "tsv", LabelMap("tsv", ("yes", "no"), regression=False))
    (tmp_path / "train.txt").write_text("\n\n".join(["the B\nfilm M\nwas E\ngood S"] * 16))
    of_words = {name: settings[name] for name in settings.keys() - {*toy_data.TSV_COLUMNS, "task_name", "data_dir"}}
    for script, task, given, labels in (
        ("run_classifier", "tsv", {**settings, "num_train_epochs": 0.3}, ["yes", "no"]),
        ("run_ner", "ner", {**of_words, "train_file": str(tmp_path / "train.txt"), "num_train_epochs": 1}, [*"BEMS"]),
    ):
        out = tmp_path / task / "out"
        call(script, **{**given, "init_checkpoint": str(out.parent), "output_dir": str(out), "do_train": True})
        assert json.loads((out / "label_map.json").read_text())["labels"] == labels
    assert not any("its head" in line for line in log_lines)
    save_random(tmp_path / "cola", LabelMap("cola", ("1", "0"), regression=False))
    (tmp_path / "train.tsv").write_text("x\t1\t\tthe film was good\n" * 16)
    given = {**of_words, "task_name": "cola", "data_dir": str(tmp_path), "init_checkpoint": str(tmp_path / "cola")}
    given["output_dir"] = str(tmp_path / "cola" / "out")
    call("run_classifier", **given, do_train=True, num_train_epochs=1)
    assert any("its head has the labels in the order 1, 0; the task has the order 0, 1" in line for line in log_lines)


def test_data_without_words_or_with_words_of_another_language_are_named(settings, tmp_path, log_lines):
    texts = {"train": ["\u4f60\u597d", "\u4e16\u754c a", "\u4e16", "\u754c"], "dev": [" ", "a film", "\u200b"]}
    for part, found in texts.items():
        rows = [(number, text, ("yes", "no")[number % 2]) for number, text in enumerate(found)]
        toy_data.write_table(tmp_path / f"{part}.tsv", "name\ttext\tanswer", rows)
    folders = {"data_dir": str(tmp_path), "init_checkpoint": save_random(tmp_path / "start", ANSWERS)}
    classify(settings, do_train=True, do_eval=True, train_batch_size=4, num_train_epochs=1, **folders)
    unknown, empty = [line for line in log_lines if " data: " in line]
    assert "train data: 86% of its 7 tokens are [UNK]" in unknown
    assert "eval data: 2 of 3 rows have no word" in empty


def test_the_name_of_a_folder_need_not_be_utf_8(settings, tmp_path):
    folder = os.fsdecode(bytes(tmp_path) + b"/\xffr")
    classify(settings, output_dir=folder, do_train=True, do_eval=True, num_train_epochs=0.5)
    assert steps_in(pathlib.Path(folder)) == {0, 2} and os.listdir(f"{folder}/eval")


def test_questions_take_no_windows_of_a_classifier(tmp_path):
    """A stride of 0, for texts that are cut, is none for a paragraph; the error is the other task."""
    (tmp_path / "model.ckpt-7.index").touch()
    files = {**toy_data.write_model(tmp_path), "init_checkpoint": str(tmp_path)}
    for task, stride, wanted in (("tsv", 0, 128), ("squad", 64, 64)):
        (tmp_path / "task.json").write_text(json.dumps({"task": task, "settings": {"doc_stride": stride}}))
        for given in (
            SquadOptions(**files, output_dir="new", do_predict=True, predict_file="dev.json"),
            ExportOptions(**files, task="squad", export_dir="export"),
        ):
            assert given.from_files()["doc_stride"] == wanted


def test_a_default_length_is_no_longer_than_the_model_reads(tmp_path, log_lines):
    """The model has 64 positions; a length that is given, or was in the training, is not changed."""
    files, tasks = toy_data.write_model(tmp_path), {"data_dir": ".", "task_name": "cola", "do_eval": True}
    (tmp_path / "model.ckpt-7.index").touch()
    given = {**files, "init_checkpoint": str(tmp_path)}
    options = ClassifierOptions(**given, **tasks, output_dir="new")
    features = FeatureOptions(**given, input_file="in", output_file="out")
    assert [resolve(each).max_seq_length for each in (options, features)] == [64, 64]
    assert any("max_seq_length=64" in line for line in log_lines)
    refuses("max_seq_length=128 64", resolve(dataclasses.replace(options, max_seq_length=128)).check_inputs)
    (tmp_path / "task.json").write_text(json.dumps({"task": "cola", "settings": {"max_seq_length": 32}}))
    assert resolve(options).max_seq_length == 32


def test_the_weights_of_another_task_are_refused(settings, tmp_path):
    folder = save_random(tmp_path / "mrpc", LabelMap("mrpc", ("0", "1"), regression=False))
    (tmp_path / "mrpc" / "task.json").write_text('{"task": "mrpc"}')
    before = {path.name for path in (tmp_path / "mrpc").iterdir()}
    (tmp_path / "glue").mkdir()
    for part in ("train", "dev", "test"):
        text = "index\tlabel\tsentence\tsentence1\tsentence2\tscore\n0\t0\ta film\ta film\ta book\t1\n"
        (tmp_path / "glue" / f"{part}.tsv").write_text(text)
    settings |= {"data_dir": f"{tmp_path}/glue"}
    for flag, task, words in (
        ("output_dir", "cola", '"mrpc" "cola" --output_dir --other_task'),
        ("init_checkpoint", "SST2", '"mrpc" "sst-2" --init_checkpoint --other_task'),
        ("init_checkpoint", "sts-b", "--init_checkpoint mrpc 0, 1"),
    ):
        for switch in ["do_eval", "do_predict", *["do_train"] * (flag == "output_dir")]:
            refuses(words, classify, settings, **NO_COLUMNS, **{flag: folder, "task_name": task, switch: True})
    assert {path.name for path in (tmp_path / "mrpc").iterdir()} == before
    (tmp_path / "mrpc" / "task.json").write_text('{"task": "squad", "version_2_with_negative": true}')
    given = sources.open_weights(folder), {"task": "squad", "version_2_with_negative": False}, "--output_dir"
    refuses("give --version_2_with_negative=true --output_dir", model_folder.check_task, *given)


def test_the_configuration_of_another_model_is_refused_before_the_data_are_read(settings, tables, tmp_path):
    model = heads.ClassifierModel(toy_data.config(num_hidden_layers=2), num_labels=2)
    folder = str(toy_data.write_trained(tmp_path / "out", model, ANSWERS).parent)
    for name, size in (("other", 3), ("fewer", 1)):
        config = toy_data.config(num_hidden_layers=size)
        (tmp_path / f"{name}.json").write_text(config.to_json_string())
    (tmp_path / "data").mkdir()
    for part in ("train", "dev"):
        (tmp_path / "data" / f"{part}.tsv").write_text((tables / f"{part}.tsv").read_text() + "a torn row\n")
    settings |= {"data_dir": f"{tmp_path}/data", "do_train": True, "do_eval": True}
    cure = f"out/bert_config.json num_hidden_layers 2 bert_config_file={folder}/bert_config.json"
    for config, out, words in (
        ("other", folder, f"3 {cure} another --output_dir"),
        ("fewer", folder, f"1 {cure} another --output_dir"),
        ("other", f"{tmp_path}/new", f"3 {cure}"),
    ):
        given = {"bert_config_file": f"{tmp_path}/{config}.json", "output_dir": out, "init_checkpoint": folder}
        refuses(words, classify, settings, **given)


def test_another_use_of_the_weights_must_be_meant(settings, tmp_path, log_lines):
    """To begin a new training with them is no use of the task. Its steps are counted as in the reference.

    int(64 / 24 * 1.6) is 4; whole batches per epoch would make 3.
    """
    out = save_random(tmp_path / "out", ANSWERS)
    (tmp_path / "out" / "task.json").write_text('{"task": "tsv", "pairs": false}')
    settings |= {"text_b_column": "name", "do_train": True, "train_batch_size": 24}
    refuses(f"{out}/task.json pairs false true --other_task", classify, settings)
    refuses("--num_train_epochs", classify, settings, other_task=True, num_train_epochs=0.1)  # the next mistake
    assert any("pairs true" in line for line in log_lines)
    classify(settings, init_checkpoint=out, output_dir=f"{tmp_path}/new", num_train_epochs=1.6)
    assert any(re.fullmatch(r"The labels\b.*: \w+ \(\d+\), \w+ \(\d+\)", line) for line in log_lines)
    assert steps_in(tmp_path / "new") == {0, 4}
    content = json.loads((tmp_path / "new" / "task.json").read_text())
    assert (content["task"], content["pairs"], content["made_with"]["labels"]) == ("tsv", True, ["no", "yes"])
    settings |= {"init_checkpoint": save_random(tmp_path / "three", LabelMap("mnli", tuple("abc"), regression=False))}
    settings |= {"output_dir": f"{tmp_path}/head", "num_train_epochs": 0.5}
    refuses("three output_weights 3 2 --other_task", classify, settings)
    classify(settings, other_task=True)
    assert "starting fresh: output_bias, output_weights" in " ".join(log_lines)
    assert steps_in(tmp_path / "head") == {0, 1}
