"""What scripts print: every command to continue with runs as printed, and no locale stops a script that prints."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import toy_data
from command_lines import ROOT, Done

import bert_tf2

SIZES = ["--max_seq_length=32", "--train_batch_size=8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Its name and those of the files in it have to be quoted, and are not ASCII."""
    path = tmp_path_factory.mktemp("files") / "my d\xe9mo"
    path.mkdir()
    (path / "my text.txt").write_text("".join(f"{text} caf\xe9 \u5317\n" for text, _ in toy_data.sentences(60, 1)))
    return path


class Follow:
    """Runs scripts in a folder, and what they print as next commands."""

    def __init__(self, command_lines, folder: pathlib.Path):
        self._command_lines, self._folder = command_lines, folder
        self.done: Done | None = None

    def run(self, script: str, *flags: str) -> str:
        self.done = self._command_lines.run(script, *flags, cwd=self._folder)
        assert self.done.status == 0, self.done.stderr
        return self.done.stdout

    def next(self, *more: str) -> str:
        """Runs the printed command, with `more` flags for the sake of time; returns the name of its script."""
        (block,) = re.findall(r"(?m)^  next\n((?:    .*\n)+)", self.done.stderr)
        python, script, *flags = shlex.split(block.replace("\\\n", ""))
        asked = [python, script, "--version"]
        done = subprocess.run(asked, cwd=self._folder, capture_output=True, text=True, check=True)
        assert done.stdout == f"bert_tf2 {bert_tf2.__version__}\n" and "--version" not in flags
        self.run(os.path.basename(script), *flags, *more)
        return os.path.basename(script)


@pytest.fixture(scope="module")
def pretrained(folder, command_lines) -> pathlib.Path:
    """From a text to a filled blank by the printed commands."""
    scripts = Follow(command_lines, folder)
    scripts.run("build_vocab.py", "--input_file=my text.txt", "--vocab_file=vocab.txt", "--min_count=1")
    size = len((folder / "vocab.txt").read_text().splitlines())
    (folder / "bert_config.json").write_text(toy_data.config(vocab_size=size, num_hidden_layers=1).to_json_string())
    found = [scripts.next(*SIZES[:1], "--max_predictions_per_seq=4")]
    found += [scripts.next("--num_train_steps=2", "--num_warmup_steps=1", *SIZES[1:], "--max_eval_steps=1")]
    found += [scripts.next()]
    assert found == ["create_pretraining_data.py", "run_pretraining.py", "predict_masked.py"]
    assert "The capital of France is [MASK]." in scripts.done.stdout
    return folder


@pytest.mark.slow
def test_a_fine_tuning_goes_on_as_it_prints(pretrained, command_lines):
    toy_data.write_tsv_task(pretrained / "my tables", 16)
    scripts = Follow(command_lines, pretrained)
    columns = [f"--{name}={value}" for name, value in toy_data.TSV_COLUMNS.items()]
    model = ["--bert_config_file=bert_config.json", "--vocab_file=vocab.txt"]
    data = ["--task_name=tsv", "--data_dir=my tables", *columns, *model, *SIZES]
    scripts.run("run_classifier.py", *data, "--output_dir=my out", "--do_train", "--num_train_epochs=1")
    scripts.next()
    assert "--do_predict" in scripts.done.stderr and (pretrained / "my out" / "eval_results.txt").exists()
    (pretrained / "my tables" / "test.tsv").rename(pretrained / "test.tsv")
    scripts.run("run_classifier.py", *data, "--output_dir=other", "--do_eval", "--init_checkpoint=my out")
    assert "--do_predict" not in scripts.done.stderr and "--init_checkpoint='my out'" in scripts.done.stderr


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
