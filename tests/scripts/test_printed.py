"""What scripts print, in any locale, of files whose names have to be quoted."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
import toy_data
from command_lines import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Its name and those of the files in it have to be quoted, and are not ASCII."""
    path = tmp_path_factory.mktemp("files") / "my d\xe9mo"
    path.mkdir()
    (path / "my text.txt").write_text("".join(f"{text} caf\xe9 \u5317\n" for text, _ in toy_data.sentences(60, 1)))
    return path


@pytest.fixture(scope="module")
def pretrained(folder, command_lines) -> pathlib.Path:
    """From a text to a filled blank; no log has a command that would have to be right."""

    def run(script: str, *flags: str) -> str:
        done = command_lines.run(script, *flags, cwd=folder)
        assert done.status == 0 and "  next\n" not in done.stderr, done.stderr
        return done.stdout

    run("build_vocab.py", "--input_file=my text.txt", "--vocab_file=vocab.txt", "--min_count=1")
    size = len((folder / "vocab.txt").read_text().splitlines())
    (folder / "bert_config.json").write_text(toy_data.config(vocab_size=size, num_hidden_layers=1).to_json_string())
    model = ["--bert_config_file=bert_config.json", "--vocab_file=vocab.txt"]
    sizes = ["--max_seq_length=32", "--max_predictions_per_seq=4"]
    records = "tf_examples.tfrecord"
    run("create_pretraining_data.py", "--input_file=my text.txt", f"--output_file={records}", model[1], *sizes)
    steps = ["--num_train_steps=2", "--num_warmup_steps=1", "--train_batch_size=8", "--max_eval_steps=1"]
    work = ["--do_train", "--do_eval", f"--input_file={records}", "--output_dir=pretraining_output"]
    run("run_pretraining.py", *work, *model, *sizes, *steps)
    blank = "The capital of France is [MASK]."
    assert blank in run("predict_masked.py", f"--sentence={blank}", "--init_checkpoint=pretraining_output")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C"}],
)
@pytest.mark.parametrize(
    "line",
    [
        "inspect_records.py --input_file={}/tf_examples.tfrecord --vocab_file={}/vocab.txt --show=40",
        "convert_checkpoint.py --list={}/pretraining_output",
    ],
)
def test_no_locale_stops_a_script_that_prints(line, environment, pretrained):
    script, *flags = line.split()
    command = [sys.executable, str(ROOT / script), *(flag.replace("{}", str(pretrained)) for flag in flags)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True)
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    assert "--show=40" not in line or "\u5317".encode() in done.stdout
