"""The curves for the page: which folders, not finite values, settings that differ."""

from __future__ import annotations

import json

import pytest

from bert_tf2.explorer import curves
from bert_tf2.explorer.opened import Explorer
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.support.errors import UserError
from bert_tf2.training import monitor
from bert_tf2.training.curves import Run


def test_the_runs_are_those_of_the_folders(explorer, trainings):
    facts = curves.routes(explorer)["/api/training"]({})
    assert [run["name"] for run in facts["runs"]] == ["first_run", "second_run"]
    assert [run["folder"] for run in facts["runs"]] == trainings and facts["problems"] == []
    steps, losses = facts["runs"][1]["scalars"]["loss"]
    assert steps == [*range(0, 200, 20)] and losses[5] is None and losses[0] == 8.0
    assert facts["runs"][0]["scalars"]["eval/masked_lm_accuracy"] == [[180], [0.25]]
    json.dumps(facts, allow_nan=False)


def test_a_model_in_the_folder_of_its_training_needs_no_flag(weights, tmp_path):
    options = ExplorerOptions(model=weights)

    class Opened:
        pass

    Opened.options = options
    assert curves.folders(Opened) == []
    monitor.write_scalars(str(tmp_path), 3, {"loss": 1.0})
    for model in (tmp_path, tmp_path / "model.ckpt-7", tmp_path / "best"):
        (tmp_path / "best").mkdir(exist_ok=True)
        Opened.options = ExplorerOptions(model=str(model))
        (found,) = curves.folders(Opened)
        assert found == str(tmp_path)


def test_a_folder_that_was_removed_is_a_sentence(trainings, tmp_path):
    facts = curves.describe([trainings[0], str(tmp_path / "gone")])
    assert len(facts["runs"]) == 1 and facts["problems"] == [f"{tmp_path / 'gone'}: no such folder"]


def test_settings_that_differ():
    table = "| setting | value |\n|-|-|\n| learning_rate | {} |\n| seed | 1 |\n| output_dir | {} |"
    runs = [Run("a", f, {}, {"hyperparameters": table.format(f, f)}, 0.0) for f in ("0.1", "0.2")]
    assert curves.different_settings(runs) == {"learning_rate": ["0.1", "0.2"]}
    assert curves.unique_names(runs) == ["0.1", "0.2"]  # both are called "a"
    assert curves.different_settings([]) == {}


def test_a_wrong_folder_is_told_before_the_page_opens(weights, tmp_path):
    with pytest.raises(UserError, match="nowhere: no such folder"):
        Explorer(ExplorerOptions(model=weights, training_dir=[str(tmp_path / "nowhere")]))
    with pytest.raises(UserError, match="nowhere"):
        Explorer(ExplorerOptions(model=weights, compare_with=str(tmp_path / "nowhere")))
