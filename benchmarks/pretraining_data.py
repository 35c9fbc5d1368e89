"""Measures the speed and the memory of create_pretraining_data.py.

    python benchmarks/pretraining_data.py --input_file=corpus.txt --vocab_file=vocab.txt

It runs the script in a separate process, once on the corpus and once on a text of one word to measure the start of
Python; the difference is the work. Then it does the same work here, stage by stage. The ratios show
the share of each stage, and the speed of our shuffling relative to Python's `random.shuffle`. Last, it measures how
fast inspect_records.py reads what was written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import machine
from absl import flags as absl_flags
from absl import logging

from bert_tf2 import tokenization
from bert_tf2.pretraining import compact_examples, corpus, inspect_records
from bert_tf2.pretraining.draws import Draws
from bert_tf2.pretraining.options import PretrainingDataOptions
from bert_tf2.support import example_bytes, files, flags
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import DATA, options, setting

FLAGS = absl_flags.FLAGS


@options
class BenchmarkOptions(PretrainingDataOptions):
    """Measures the speed and the memory of create_pretraining_data.py."""

    input_file: str = setting("Text, one sentence a line; commas and patterns.", machine.CORPUS, group=DATA)
    vocab_file: str = setting("The vocabulary.", machine.VOCAB, group=DATA)
    do_lower_case: bool = setting("Whether the vocabulary is of lower-cased text.", True, group=DATA)


_SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "create_pretraining_data.py"


@dataclasses.dataclass
class Run:
    """The seconds and the peak memory in bytes of a run of the script."""

    seconds: float
    peak: float


def run_script(input_file: str, options: PretrainingDataOptions, folder: str) -> Run:
    """Runs the script in a separate process, whose peak memory the operating system reports."""
    settings = {
        **dataclasses.asdict(options),
        "input_file": input_file,
        "output_file": os.path.join(folder, "examples.tfrecord"),
    }
    command = [sys.executable, str(_SCRIPT), *(f"--{name}={value}" for name, value in settings.items())]
    with open(os.path.join(folder, "log"), "wb") as log:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise UserError(files.read_text(log.name).strip().splitlines()[-1])
    return Run(seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


@contextlib.contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start


def time_stages(input_files: list[str], options: PretrainingDataOptions, folder: str) -> dict:
    """Seconds of each stage of the work, done in this process."""
    seconds: dict[str, float] = {}
    draws = Draws(random.Random(options.random_seed))
    tokenizer = tokenization.FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case)
    with timed(seconds, "reading and tokenizing"):
        text = corpus.read(input_files, tokenizer)
    with timed(seconds, "pairing and masking"):
        examples = compact_examples.make(text, tokenizer, options, draws)
    with timed(seconds, "writing"), open(os.path.join(folder, "stages.tfrecord"), "wb") as output:
        for batch in compact_examples.batches(examples, text, tokenizer, options, rows_per_batch=1000):
            output.write(example_bytes.frames(example_bytes.encode(batch)))
    return seconds


def best(function: Callable[[], None], rounds: int = 5) -> float:
    """The seconds of the fastest round."""
    seconds: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def shuffle_speedup(num_items: int) -> float:
    """The speedup of our shuffle over `random.shuffle`, for the positions of an example."""
    rng, items = random.Random(0), list(range(num_items))
    draws, wanted = Draws(rng), round(num_items * 0.15)

    def ours() -> None:
        for _ in range(1000):
            draws.shuffled(num_items, wanted)

    def pythons() -> None:
        for _ in range(1000):
            rng.shuffle(items)

    return best(pythons) / best(ours)


def report(input_files: list[str], options: PretrainingDataOptions, folder: str) -> None:
    one_word = os.path.join(folder, "one_word.txt")
    files.write_text(one_word, "a\n")
    idle, whole = (run_script(name, options, folder) for name in (one_word, ",".join(input_files)))
    examples = count_records(os.path.join(folder, "examples.tfrecord"))
    megabytes = sum(os.path.getsize(name) for name in input_files) / 1e6
    work = max(whole.seconds - idle.seconds, 1e-9)
    print(f"machine            {machine.describe()}")
    print(f"work               {megabytes:.2f} MB of text, {examples} examples of {options.max_seq_length} tokens")
    print(f"whole command      {whole.seconds:.1f} s, of which {idle.seconds:.1f} s to start")
    print(
        f"speed              {examples / work:.0f} examples/s, {megabytes / work:.2f} MB of text/s (without the start)"
    )
    per_example = (whole.peak - idle.peak) / max(examples, 1)
    print(f"peak memory        {whole.peak / 1e6:.0f} MB, {whole.peak / idle.peak:.2f} times that of the start;")
    print(f"                   {per_example:.0f} bytes an example above it, corpus included")
    stages = time_stages(input_files, options, folder)
    for stage, seconds in stages.items():
        print(f"{stage:<23}{seconds / sum(stages.values()):6.1%} of the work, {seconds:.2f} s")
    print(f"work / tokenizing alone{sum(stages.values()) / stages['reading and tokenizing']:6.2f}")
    print(f"shuffle / Python's own {shuffle_speedup(options.max_seq_length):6.2f} times as fast")
    print(f"inspect_records.py     {inspection_rate(os.path.join(folder, 'examples.tfrecord')):6.0f} MB of records/s")


def inspection_rate(path: str) -> float:
    """The megabytes of records that inspect_records.py reads in a second, without its start."""
    return os.path.getsize(path) / 1e6 / best(lambda: inspect_records.inspect([path]), rounds=3)


def count_records(path: str) -> int:
    import tensorflow as tf

    return sum(1 for _ in tf.data.TFRecordDataset(path))


def main(options: BenchmarkOptions) -> None:
    logging.set_verbosity(logging.WARNING)
    input_files = files.match_files(FLAGS.input_file)
    with tempfile.TemporaryDirectory() as folder:
        report(input_files, options, folder)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)
