"""What the reference accepts although it looks like a mistake is accepted here, and what is odd about it is said."""

from __future__ import annotations

import json

import pytest
import toy_data

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def done(command_lines, tmp_path_factory):
    """run_classifier.py on CoLA: no dropout, weights of zero, no checkpoint but the last, a cell too many in a row."""
    folder = tmp_path_factory.mktemp("accepted")
    toy_data.write_model(folder, hidden_dropout_prob=None, attention_probs_dropout_prob=None, initializer_range=0)
    rows = [("s", label, "", text) for text, label in (("good film", 1), ("bad film", 0)) * 8]
    toy_data.write_table(folder / "train.tsv", "", rows)
    toy_data.write_table(folder / "dev.tsv", "", [*rows[:3], (*rows[3], "")])
    result = command_lines.run(
        "run_classifier.py",
        *("--task_name=CoLA", "--do_train", "--do_eval", "--do_export", f"--data_dir={folder}"),
        *("--bert_config_file=bert_config.json", "--vocab_file=vocab.txt", "--output_dir=out"),
        *("--max_seq_length=8", "--train_batch_size=8", "--save_checkpoints_steps=0"),
        cwd=folder,
    )
    assert result.status == 0, result.stderr
    return folder, result.stderr


def test_a_configuration_with_null_trains_evaluates_and_is_exported(done):
    folder, _ = done
    assert json.loads((folder / "bert_config.json").read_text())["hidden_dropout_prob"] is None
    assert "eval_accuracy = 0.5" in (folder / "out" / "eval_results.txt").read_text()
    assert (folder / "out" / "export" / "1" / "saved_model.pb").exists()


def test_only_the_last_checkpoint_is_written(done):
    folder, _ = done
    assert [path.name for path in (folder / "out").glob("*.index")] == ["model.ckpt-6.index"]


def test_a_cell_too_many_is_one_warning(done):
    _, text = done
    assert text.count("dev.tsv: 1 of 4 rows do not have 4 columns, the first is row 4 with 5") == 1
