"""Times convert_checkpoint.py on a checkpoint of BERT-Base with random weights, and prints the memory that it needs.

    python benchmarks/conversion.py --work_dir WORK_FOLDER

Every conversion runs in a separate process. The time is that of the whole command, including the start of TensorFlow
(which has a separate row). The memory is the peak of the process' private memory (anonymous pages), and in brackets the
peak of its resident memory, which includes the code of TensorFlow's libraries that processes share.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import machine
import processes
import workload

from bert_tf2.support import flags
from bert_tf2.support.settings import DATA, MODEL, Options, options, setting


@options
class BenchmarkOptions(Options):
    """Times convert_checkpoint.py on a checkpoint of BERT-Base with random weights; prints the memory it needs."""

    work_dir: str = setting("Folder for the checkpoints, some 3 GB; what is in it may be replaced.", group=DATA)
    bert_config_file: str | None = setting("Configuration of the model; BERT-Base without it.", None, group=MODEL)


def make_checkpoint(folder: Path, bert_config_file: str | None) -> int:
    """Writes a folder like Google's releases, with random weights and optimizer slots; returns the parameter count."""
    import numpy as np

    from bert_tf2.config import BertConfig
    from bert_tf2.tokenization import SPECIAL_TOKENS
    from bert_tf2.weights import bundle, names

    config = BertConfig.from_dict(workload.load_config(bert_config_file))
    rows = [*names.encoder(config.num_hidden_layers), *names.MASKED_LM, *names.NEXT_SENTENCE]
    shapes = {row.reference: names.shape(row, config) for row in rows}
    words = [*SPECIAL_TOKENS, *(f"word{n}" for n in range(config.vocab_size - len(SPECIAL_TOKENS)))]
    random = np.random.default_rng(0)
    for name, endings in (("weights", [""]), ("training", ["", "/adam_m", "/adam_v"])):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "bert_config.json").write_text(config.to_json_string())
        (folder / name / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
        named = ((of + ending, shape) for of, shape in shapes.items() for ending in endings)
        arrays = ((of, random.normal(0.0, 0.02, shape).astype(np.float32)) for of, shape in named)
        bundle.write(str(folder / name / "bert_model.ckpt"), arrays)
    return sum(int(np.prod(shape)) for shape in shapes.values())


def folder_size(path: Path) -> float:
    """The size in MB of the weights in a folder, or of a file."""
    found = [path] if path.is_file() else [p for p in path.iterdir() if p.suffix not in (".txt", ".json")]
    return sum(p.stat().st_size for p in found) / 1e6


def timed(title: str, command: list[str], work: Path) -> tuple[str, float, float]:
    """The row of a command without its end, and its private and whole memory in MB."""
    found = processes.watch(command, work / "log")
    own, whole = found.private / 1e6, found.resident / 1e6
    return f"{title:<38} {found.seconds:5.1f} s   {own:6.0f} MB ({whole:.0f})", own, whole


def main(options: BenchmarkOptions) -> None:
    flags.load_tensorflow()
    import tensorflow as tf

    work = Path(options.work_dir)
    parameters = make_checkpoint(work, options.bert_config_file)
    print(machine.describe() + f", TensorFlow {tf.__version__}")
    print(f"{parameters / 1e6:.1f} million parameters")
    start = "import os; os.environ['TF_CPP_MIN_LOG_LEVEL'] = '2'; import tensorflow as tf; tf.constant(1.0)"
    print(timed("TensorFlow alone", [sys.executable, "-c", start], work)[0])
    for title, source, target, to in (
        ("TensorFlow 1 to Hugging Face", "weights", "hf", "hf"),
        ("Hugging Face to TensorFlow 1", "hf", "back", "tf1"),
        ("TensorFlow 1 to Keras", "weights", "keras", "keras"),
        ("Keras to TensorFlow 1", "keras/bert_model.keras", "back", "tf1"),
        ("TensorFlow 1 with slots to itself", "training", "back", "tf1"),
    ):
        shutil.rmtree(work / target, ignore_errors=True)
        given = {"to": to, "input": work / source, "output": work / target, "vocab_file": work / "weights/vocab.txt"}
        row, own, whole = timed(title, processes.script("convert_checkpoint.py", **given), work)
        size = folder_size(work / source)
        print(f"{row} for {size:.0f} MB of weights: {own / size:.2f} times ({whole / size:.2f})")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    flags.run(BenchmarkOptions, main)
