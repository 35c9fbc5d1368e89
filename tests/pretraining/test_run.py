"""The run of run_pretraining.py: results, records that do not fit, signals."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from small_models import LENGTH, PREDICTIONS, small_batch, tiny_config

from bert_tf2.data import record_index, records
from bert_tf2.pretraining import run as pretraining
from bert_tf2.pretraining.options import PretrainingOptions
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]


def final_step(folder) -> int:
    return int(checkpoint.Checkpoint(str(folder)).get("global_step"))


def record_rows(count):
    batch = small_batch(count)
    names = records.PRETRAINING.features
    return [{name: np.ravel(batch[name][i]).tolist() for name in names} for i in range(count)]


@pytest.fixture
def files(tmp_path) -> PretrainingOptions:
    """A configuration and records on disk, and the options to pretrain with them."""
    (tmp_path / "config.json").write_text(tiny_config(hidden_dropout_prob=0.1).to_json_string())
    records.write_records(str(tmp_path / "train.tfrecord"), records.PRETRAINING, record_rows(6))
    return PretrainingOptions(
        bert_config_file=str(tmp_path / "config.json"),
        input_file=str(tmp_path / "train.tfrecord"),
        output_dir=str(tmp_path / "run"),
        max_seq_length=LENGTH,
        max_predictions_per_seq=PREDICTIONS,
        do_train=True,
        do_eval=True,
        train_batch_size=4,
        eval_batch_size=4,
        num_train_steps=3,
        num_warmup_steps=1,
        max_eval_steps=3,
        save_checkpoints_steps=10,
    )


def changed(options, **changes) -> PretrainingOptions:
    return dataclasses.replace(options, **changes)


def test_pretraining_trains_evaluates_and_says_what_the_reference_says(files, tmp_path):
    results = pretraining.run(files)
    lines = (tmp_path / "run" / "eval_results.txt").read_text().splitlines()
    assert [line.split(" = ")[0] for line in lines] == [
        *("global_step", "loss", "masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy"),
        "next_sentence_loss",
    ]
    assert lines[0] == "global_step = 3"
    assert float(lines[1].split(" = ")[1]) == pytest.approx(results["loss"])
    again = pretraining.run(changed(files, do_train=False))
    assert again == pytest.approx(results, rel=1e-6)


@pytest.mark.slow
def test_a_kept_index_spares_the_reading_but_not_the_checksums(files, monkeypatch):
    monkeypatch.setattr(record_index, "SMALLEST", 1)
    pretraining.run(changed(files, do_eval=False))
    path = pathlib.Path(files.input_file)
    assert (path.parent / record_index.NAME).exists()
    more = changed(files, do_eval=False, num_train_steps=6)
    with monkeypatch.context() as unread:
        unread.setattr(record_index, "runs_of", None)
        pretraining.run(more)
    assert final_step(files.output_dir) == 6

    before, content = path.stat(), bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a disk that fails
    with pytest.raises(UserError, match=r"train\.tfrecord, record 6: .*checksum"):
        pretraining.run(changed(more, num_train_steps=9))


def test_a_warm_up_that_does_not_end_is_told(files, log_lines):
    pretraining.run(dataclasses.replace(files, do_eval=False, num_train_steps=1, num_warmup_steps=100))
    (line,) = [line for line in log_lines if line.startswith("--num_warmup_steps=100 is not below")]
    assert f"only to {files.learning_rate / 100:.2g};" in line


# Signals.


def script(options) -> list[str]:
    names = ("bert_config_file", "input_file", "output_dir", "max_seq_length", "max_predictions_per_seq")
    flags = [f"--{name}={getattr(options, name)}" for name in (*names, "train_batch_size", "num_warmup_steps")]
    return [sys.executable, str(ROOT / "run_pretraining.py"), "--do_train", "--num_train_steps=1000000", *flags]


def start_and_stop(options, number) -> tuple[int, str]:
    """Starts a run without end, waits for its first step, sends the signal; returns exit status and standard error."""
    with subprocess.Popen(script(options), stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            text = ""
            for line in process.stderr:
                text += line
                if "Training: 1 of 1,000,000 steps" in line:
                    time.sleep(0.2)
                    process.send_signal(number)
                    break
            rest = process.communicate(timeout=60)[1]
            return process.returncode, text + rest
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_signal_saves_and_the_same_command_goes_on(files, tmp_path, number, log_lines):
    status, text = start_and_stop(files, number)
    assert status == 128 + number, text
    assert "Traceback" not in text
    step = final_step(tmp_path / "run")
    assert step > 1
    assert text.splitlines()[-1] == (
        f"run_pretraining.py: error: stopped after step {step}, which is saved; the same command continues there"
    )
    pretraining.run(changed(files, num_train_steps=step + 2, do_eval=False))
    assert f"Continuing from {tmp_path}/run/model.ckpt-{step} at step {step}" in log_lines
    assert final_step(tmp_path / "run") == step + 2
