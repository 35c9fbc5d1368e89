"""Command lines of the fine-tuning benchmarks: the weights, the runs, and their results, which are kept."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import processes

from bert_tf2 import commands
from bert_tf2.support.settings import settings_of


class Runs:
    """Runs of the scripts that fine-tune, in the work folder of finetuning.py's options."""

    def __init__(self, options):
        self.options, self.work = options, Path(options.work_dir)
        self._results = processes.Results(self.work / "results.jsonl")

    def weights_folder(self) -> Path:
        """The folder of --weights as a TensorFlow 1 checkpoint, which is made once."""
        folder = self.work / "weights"
        if not (folder / "vocab.txt").exists():
            from bert_tf2.weights import convert
            from bert_tf2.weights.options import ConversionOptions

            # The tanh approximation, as in the released models; these weights were trained with the exact function, and
            # fine-tuning compensates for the difference.
            weights = self.options.weights
            convert.run(ConversionOptions(input=weights, output=str(folder), to="tf1", hidden_act="gelu"))
        return folder

    def timed(self, name: str, script: str, **flags: Any) -> dict:
        """Runs a script; returns the seconds that it and its training took. A stored result is returned again.

        Its output folder is work_dir/NAME; with the flag `output_dir` another one, in which it works on.

        Raises:
          processes.Failed: the script failed.
        """
        return self._results.get(name, lambda: self._run(name, script, flags))

    def classify(self, name: str, task: str, folder: str, **flags: Any) -> dict:
        data_dir = os.path.join(self.options.data_dir, folder)
        given = {"task_name": task, "data_dir": data_dir, "do_train": True, "do_eval": True}
        return self.timed(name, "run_classifier.py", **{**given, **flags})

    def _run(self, name: str, script: str, flags: dict[str, Any]) -> dict:
        output_dir, weights = self.work / name, self.weights_folder()
        if "output_dir" not in flags:  # an incomplete run would be resumed, and its time would be wrong
            shutil.rmtree(output_dir, ignore_errors=True)
        model = {
            "bert_config_file": weights / "bert_config.json",
            "init_checkpoint": weights / "bert_model.ckpt",
            "vocab_file": weights / "vocab.txt",
            "output_dir": output_dir,
        }
        model = {flag: path for flag, path in model.items() if has_flag(script, flag)}
        log, began = Path(f"{output_dir}.log"), time.time()
        seconds = processes.run(processes.script(script, **{**model, **flags}), log)
        result = {"seconds": round(seconds, 1), "began": began, "training_seconds": training_seconds(log.read_text())}
        if (measures := output_dir / "eval_metrics.json").exists():
            result["measures"] = json.loads(measures.read_text())
        if (results := output_dir / "eval_results.txt").exists():
            result["results"] = dict(row.split(" = ") for row in results.read_text().splitlines())
        return result


def has_flag(script: str, flag: str) -> bool:
    """Whether a script of this version has a flag."""
    return flag in settings_of(commands.find(commands.COMMANDS[script.removesuffix(".py")].options))


def training_seconds(log: str) -> float | None:
    """The time from the first to the last checkpoint in the log, for the steps and tracing their graph."""
    times = re.findall(r"^I\d{4} (\d\d):(\d\d):([\d.]+) .*Saved .*model\.ckpt-\d+$", log, re.MULTILINE)
    if len(times) < 2:
        return None
    first, *_, last = [int(hours) * 3600 + int(minutes) * 60 + float(seconds) for hours, minutes, seconds in times]
    return round((last - first) % 86400, 1)
