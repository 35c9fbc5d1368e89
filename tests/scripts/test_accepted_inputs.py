"""What the reference accepts although it looks like a mistake is accepted here, and what is odd about it is said."""

from __future__ import annotations

import json

import pytest
import toy_data


@pytest.mark.slow
def test_odd_files_and_flags_train_evaluate_and_export(command_lines, tmp_path):
    """run_classifier.py on CoLA: no dropout, weights of zero, no checkpoint but the last, a cell too many in a row."""
    toy_data.write_model(tmp_path, hidden_dropout_prob=None, attention_probs_dropout_prob=None, initializer_range=0)
    rows = [("s", label, "", text) for text, label in (("good film", 1), ("bad film", 0)) * 8]
    toy_data.write_table(tmp_path / "train.tsv", "", rows)
    toy_data.write_table(tmp_path / "dev.tsv", "", [*rows[:3], (*rows[3], "")])
    done = command_lines.run(
        "run_classifier.py",
        *("--task_name=CoLA", "--do_train", "--do_eval", "--do_export", f"--data_dir={tmp_path}"),
        *("--bert_config_file=bert_config.json", "--vocab_file=vocab.txt", "--output_dir=out"),
        *("--max_seq_length=8", "--train_batch_size=8", "--save_checkpoints_steps=0"),
        cwd=tmp_path,
    )
    assert done.status == 0, done.stderr
    assert json.loads((tmp_path / "bert_config.json").read_text())["hidden_dropout_prob"] is None
    assert "eval_accuracy = 0.5" in (tmp_path / "out" / "eval_results.txt").read_text()
    assert (tmp_path / "out" / "export" / "1" / "saved_model.pb").exists()
    assert [path.name for path in (tmp_path / "out").glob("*.index")] == ["model.ckpt-6.index"]
    assert done.stderr.count("dev.tsv: 1 of 4 rows do not have 4 columns, the first is row 4 with 5") == 1
