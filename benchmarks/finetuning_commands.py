"""Command lines of the fine-tuning benchmarks: the weights, the runs, and their results, which are kept."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import processes
from absl import flags as absl_flags

from bert_tf2 import commands
from bert_tf2.support.settings import settings_of

FLAGS = absl_flags.FLAGS


def weights_folder() -> Path:
    """The folder of --weights as a TensorFlow 1 checkpoint, which is made once."""
    folder = Path(FLAGS.work_dir) / "weights"
    if not (folder / "vocab.txt").exists():
        from bert_tf2.weights import convert
        from bert_tf2.weights.options import ConversionOptions

        # The tanh approximation, as in the released models; these weights were trained with the exact function, and
        # fine-tuning compensates for the difference.
        options = {"input": FLAGS.weights, "output": str(folder), "to": "tf1", "hidden_act": "gelu"}
        convert.run(ConversionOptions(**options))
    return folder


def model_flags(script: str) -> list[str]:
    folder = weights_folder()
    flags = {
        "bert_config_file": folder / "bert_config.json",
        "init_checkpoint": folder / "bert_model.ckpt",
        "vocab_file": folder / "vocab.txt",
    }
    return [f"--{name}={path}" for name, path in flags.items() if has_flag(script, name)]


def has_flag(script: str, flag: str) -> bool:
    """Whether a script of this version has a flag."""
    return flag in settings_of(commands.find(commands.COMMANDS[script.removesuffix(".py")].options))


def timed(name: str, script: str, *arguments: str, keep: bool = False) -> dict:
    """Runs a script once and returns the seconds it took, and those of the training; a stored result is returned again.

    Its output folder is work_dir/NAME. A script without --output_dir gets its outputs by `arguments`.

    Args:
      keep: whether what is in the output folder stays, instead of a new training.

    Raises:
      processes.Failed: the script failed.
    """
    results = processes.Results(Path(FLAGS.work_dir) / "results.jsonl")
    if known := results.known().get(name):
        return known
    output_dir = Path(FLAGS.work_dir) / name
    if not keep:
        shutil.rmtree(output_dir, ignore_errors=True)  # an incomplete run would be resumed, and its time would be wrong
    output = [f"--output_dir={output_dir}"] if has_flag(script, "output_dir") else []
    command = [sys.executable, str(processes.ROOT / script), *model_flags(script), *output, *arguments]
    log, began = Path(f"{output_dir}.log"), time.time()
    seconds = processes.run(command, log)
    result = {"seconds": round(seconds, 1), "began": began, "training_seconds": training_seconds(log.read_text())}
    for key, file in (("measures", "eval_metrics.json"), ("results", "eval_results.txt")):
        if (output_dir / file).exists():
            text = (output_dir / file).read_text()
            is_json = file.endswith(".json")
            result[key] = json.loads(text) if is_json else dict(row.split(" = ") for row in text.splitlines())
    return results.add(name, result)


def training_seconds(log: str) -> float | None:
    """The time from the first to the last checkpoint in the log, for the steps and tracing their graph."""
    times = re.findall(r"^I\d{4} (\d\d):(\d\d):([\d.]+) .*Saved .*model\.ckpt-\d+$", log, re.MULTILINE)
    if len(times) < 2:
        return None
    first, *_, last = [int(hours) * 3600 + int(minutes) * 60 + float(seconds) for hours, minutes, seconds in times]
    return round((last - first) % 86400, 1)


def classify(name: str, task: str, folder: str, *arguments: str) -> dict:
    data = f"--data_dir={os.path.join(FLAGS.data_dir, folder)}"
    return timed(name, "run_classifier.py", f"--task_name={task}", data, "--do_train", "--do_eval", *arguments)
