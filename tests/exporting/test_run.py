"""What an export writes, what it refuses, and the scripts that start it.

The C program of test_c_api.py asks the same folders without Python.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import text_operations
import toy_data
from export_cases import CLOSE, CONFIG, POSITIONS, SETTINGS, TAGS, make_options

from bert_tf2.exporting import load
from bert_tf2.exporting.options import TASKS
from bert_tf2.exporting.run import export_model, run
from bert_tf2.finetuning.ner import run as finetune_ner
from bert_tf2.finetuning.options import NerOptions, SquadOptions
from bert_tf2.finetuning.squad import run as finetune_squad
from bert_tf2.pretraining import run as pretraining
from bert_tf2.pretraining.options import PretrainingOptions
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint
from bert_tf2.weights.task_file import load_label_map

text_operations.need()


# The folder


def test_what_lies_in_the_folder(exported):
    made = exported("ner")
    found = {str(path.relative_to(made.folder)) for path in pathlib.Path(made.folder).rglob("*") if path.is_file()}
    assert found - {"fingerprint.pb"} == {
        "saved_model.pb",
        "model_info.json",
        "assets/vocab.txt",
        "assets/label_map.json",
        "variables/variables.index",
        "variables/variables.data-00000-of-00001",
    }
    assert pathlib.Path(made.folder).name == "1"
    assert load_label_map(f"{made.folder}/assets").labels == TAGS
    assert pathlib.Path(made.folder, "assets/vocab.txt").read_text().split() == toy_data.VOCAB


@pytest.mark.parametrize("task", TASKS)
def test_model_info_says_what_it_is(exported, task):
    made = exported(task)
    info = made.info
    assert info["task"] == task
    assert info["checkpoint"]["name"] == "model.ckpt-7" and info["checkpoint"]["global_step"] == 7
    assert info["config"] == CONFIG.to_dict()
    assert (info["max_seq_length"], info["do_lower_case"], info["precision"]) == (24, True, "float32")
    assert info["versions"].keys() == {"bert_tf2", "tensorflow", "keras", "tensorflow-text"}
    assert str(made.weights.parent) not in json.dumps(info)
    assert info["signatures"].keys() == made.saved.signatures.keys()
    for name, described in info["signatures"].items():
        outputs = made.saved.signatures[name].structured_outputs
        assert described["outputs"].keys() == outputs.keys()
        for output, tensor in outputs.items():
            assert described["outputs"][output] == {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()}
            assert tensor.shape[0] is None  # the batch, for the server's batcher


# What cannot be exported


@pytest.mark.parametrize(
    ("task", "missing"),
    [("classifier", "output_weights, output_bias"), ("squad", "cls/squad/output_weights"), ("ner", "output_weights"),
     ("masked_lm", "cls/predictions/")],
)  # fmt: skip
def test_no_head_is_exported_that_nobody_trained(exported, tmp_path, task, missing):
    labels = exported("ner" if task == "ner" else "classifier").weights.parent / "label_map.json"
    options = make_options(tmp_path, task, exported("features").weights, label_map=str(labels))
    with pytest.raises(UserError, match=f"model.ckpt-7: cannot be exported for the task {task}, it has no .*{missing}"):
        run(options)
    assert not (tmp_path / "export").exists()


@pytest.mark.slow
def test_features_without_a_pooler(exported, tmp_path, log_lines):
    made = exported("features")
    variables = {name: v for name, v in checkpoint.tf1_variables(made.model).items() if "pooler" not in name}
    checkpoint.save(str(tmp_path / "encoder.ckpt"), variables)
    folder = run(make_options(tmp_path, "features", tmp_path / "encoder.ckpt", text_signatures=False))
    (outputs,) = {
        tuple(s["outputs"])
        for s in json.loads(pathlib.Path(folder, "model_info.json").read_text())["signatures"].values()
    }
    assert outputs == ("mean_pooled", "sequence_output")
    assert any("has no pooler, so there will be no output pooled_output" in line for line in log_lines)


@pytest.mark.slow
def test_labels_must_be_known_and_as_many_as_outputs(exported, tmp_path):
    made = exported("classifier")
    checkpoint.save(str(tmp_path / "model.ckpt"), checkpoint.tf1_variables(made.model))
    two, other = tmp_path / "two.json", tmp_path / "other.json"
    two.write_text('{"task": "mrpc", "labels": ["0", "1"], "regression": false}')
    for label_map, message in (
        (None, r'model.ckpt: no label_map.json lies beside it.* give --label_map.*"labels": \["0", "1"\]'),
        (str(two), r"two.json: names labels 0, 1, but the checkpoint .*model.ckpt has 3 outputs"),
        (str(exported("ner").weights.parent / "label_map.json"), "is for the task ner, which --task=classifier does"),
    ):
        with pytest.raises(UserError, match=message):
            run(make_options(tmp_path, "classifier", tmp_path / "model.ckpt", label_map=label_map))
    other.write_text('{"task": "mine", "labels": ["x", "y", "z"], "regression": false}')
    folder = run(make_options(tmp_path, "classifier", tmp_path / "model.ckpt", label_map=str(other)))
    assert load(folder)("a film")["label"] in "xyz"


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("classifier", {"max_seq_length": POSITIONS + 1}, f"--max_seq_length={POSITIONS + 1} is more than the model"),
        ("classifier", {"max_seq_length": 2}, "--max_seq_length=2: "),
        ("squad", {"max_query_length": 22}, "--max_seq_length=24 must be greater than --max_query_length=22"),
        ("masked_lm", {"top_k": CONFIG.vocab_size + 1}, "--top_k=38: must be from 1 to 37"),
        ("sentiment", {}, "--task=sentiment: must be one of features, classifier, squad"),
        ("features", {"init_checkpoint": "gone"}, "gone: no such checkpoint"),
    ],
)
def test_settings_that_do_not_fit(exported, tmp_path, task, change, message):
    known = task if task in TASKS else "features"
    with pytest.raises(UserError, match=message):
        run(dataclasses.replace(make_options(tmp_path, known, exported(known).weights, **change), task=task))
    assert not (tmp_path / "export").exists()


# From the command line


@pytest.mark.slow
@pytest.mark.parametrize("task", ["squad", "ner", "masked_lm"])
def test_do_export_alone(exported, tmp_path, task):
    """The other scripts, with nothing to train: the weights are those of --init_checkpoint."""
    made = exported(task)
    files = toy_data.write_model(tmp_path, num_hidden_layers=1)
    shared = {**files, "output_dir": str(tmp_path / "out"), "init_checkpoint": str(made.weights), "do_export": True}
    if task == "squad":
        options = SquadOptions(**shared, **SETTINGS[task], version_2_with_negative=True)
        finetune_squad.run(options, export_model)
    elif task == "ner":
        finetune_ner.run(NerOptions(**shared, **SETTINGS[task], export_dir=str(tmp_path / "out/export")), export_model)
    else:
        pretraining.run(PretrainingOptions(**shared, input_file="not read", max_seq_length=24), export_model)
    info = json.loads((tmp_path / "out/export/1/model_info.json").read_text())
    expected = {"squad": {"null_score_diff_threshold": 0.0}, "ner": {}, "masked_lm": {"top_k": 5}}[task]
    wanted = {**made.info, **expected}
    assert info.pop("signatures").keys() == wanted.pop("signatures").keys()
    assert info == wanted


@pytest.mark.slow
def test_do_export_and_export_saved_model(command_lines, tmp_path):
    """A classifier is trained, evaluated and exported in one call; the export predicts what the script predicted."""
    toy_data.write_tsv_task(tmp_path / "tables")
    files = toy_data.write_model(tmp_path, num_hidden_layers=1)
    shared = [f"--{name}={value}" for name, value in files.items()]
    flags = {
        "data_dir": "tables",
        "task_name": "tsv",
        "output_dir": "out",
        "max_seq_length": 32,
        **toy_data.TSV_COLUMNS,
    }
    flags |= {"train_batch_size": 16, "learning_rate": 5e-3, "num_train_epochs": 5.0}
    arguments = [*shared, *(f"--{name}={value}" for name, value in flags.items())]
    done = command_lines.run("run_classifier.py", *arguments, "--do_train", "--do_predict", "--do_export", cwd=tmp_path)
    assert done.status == 0, done.stderr
    arguments = ["--task=classifier", "--init_checkpoint=out", "--export_dir=out/export", "--max_seq_length=32"]
    again = command_lines.run("export_saved_model.py", *shared, *arguments, cwd=tmp_path)
    assert (again.status, again.stdout) == (0, "out/export/2\n"), again.stderr
    predictions = [line.split("\t") for line in (tmp_path / "out/predictions.tsv").read_text().splitlines()[1:]]
    texts = [line.split("\t")[1] for line in (tmp_path / "tables/test.tsv").read_text().splitlines()[1:]]
    for version in ("1", "2"):
        answers = load(str(tmp_path / "out/export" / version))(texts)
        assert [answer["label"] for answer in answers] == [row[1] for row in predictions]
        np.testing.assert_allclose(
            [answer["probabilities"].max() for answer in answers], [float(row[2]) for row in predictions], **CLOSE
        )
    info = [json.loads((tmp_path / "out/export" / v / "model_info.json").read_text()) for v in ("1", "2")]
    assert info[0] == info[1]
