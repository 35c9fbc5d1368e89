"""Measures the speed and the memory of create_pretraining_data.py.

    python benchmarks/pretraining_data.py --input_file=corpus.txt --vocab_file=vocab.txt

It runs the script in a separate process: on the corpus, in shards, and on a text of one word to measure the start of
Python. Then it does the same work in this process, stage by stage. Last, it measures how fast inspect_records.py reads
the written records.

`--megabytes=1000` repeats the documents in random order until the text has this size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import shutil
import tempfile
import time
import timeit
from collections.abc import Iterator

import machine
import processes
from absl import logging
from processes import Watched

from bert_tf2 import tokenization
from bert_tf2.data import example, tfrecords
from bert_tf2.pretraining import corpus, features, inspect_records
from bert_tf2.pretraining.examples import ExampleMaker, shuffle
from bert_tf2.pretraining.options import PretrainingDataOptions
from bert_tf2.support import files, flags
from bert_tf2.support.settings import DATA, options, setting


@options
class BenchmarkOptions(PretrainingDataOptions):
    """Measures the speed and the memory of create_pretraining_data.py."""

    input_file: str = setting("Text, one sentence a line; commas and patterns.", machine.CORPUS, group=DATA)
    vocab_file: str = setting("The vocabulary.", machine.VOCAB, group=DATA)
    do_lower_case: bool = setting("Whether the vocabulary is of lower-cased text.", True, group=DATA)
    megabytes: float = setting("The size of a text made of the documents; 0 for the text itself.", 0.0, group=DATA)
    num_shards: int = setting("The number of shards.", 20, group=DATA)
    rounds: int = setting("How often each command runs; the median counts.", 3, group=DATA, low=1)


_OWN = {field.name for field in dataclasses.fields(BenchmarkOptions)} - {"input_file", "vocab_file", "do_lower_case"}
_OWN -= {field.name for field in dataclasses.fields(PretrainingDataOptions)}


def run_script(input_file: str, options: BenchmarkOptions, folder: str, **more: object) -> Watched:
    """Runs the script in a separate process."""
    settings = {name: value for name, value in dataclasses.asdict(options).items() if name not in _OWN}
    os.makedirs(folder, exist_ok=True)
    output = os.path.join(folder, "examples.tfrecord")
    settings = {**settings, "input_file": input_file, "vocab_file": options.vocab_file, "output_file": output, **more}
    return processes.watch(processes.script("create_pretraining_data.py", **settings), os.path.join(folder, "log"))


def median(runs: list[Watched]) -> Watched:
    """The median of the seconds, and the largest memory."""
    seconds, *memory = zip(*runs, strict=True)
    return Watched(sorted(seconds)[len(runs) // 2], *map(max, memory))


@contextlib.contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start


def time_stages(input_files: list[str], options: BenchmarkOptions, folder: str) -> dict:
    """Seconds of each stage of the work, done in this process."""
    seconds: dict[str, float] = {}
    rng = random.Random(options.random_seed)
    tokenizer = tokenization.FullTokenizer(options.vocab_file, options.do_lower_case)
    vocab = tokenizer.vocab
    with timed(seconds, "reading and tokenizing"):
        text = corpus.read(input_files, tokenizer, options)
    with timed(seconds, "pairing and masking"):
        maker = ExampleMaker(text, vocab["[MASK]"], [*vocab.values()], options, rng)
        drawn = features.DrawnExamples(maker.make_all(), options)
        shuffle(rng, order := [*range(len(drawn))])
    with timed(seconds, "writing"), open(os.path.join(folder, "stages.tfrecord"), "wb") as output:
        for batch in features.batches(drawn, order, text, vocab, options):
            output.write(tfrecords.frames(example.encode(batch)))
    return seconds


def measure(inputs: str, options: BenchmarkOptions, folder: str) -> dict[str, Watched]:
    """Runs all commands in turn, `rounds` times."""
    files.write_text(one_word := os.path.join(folder, "one_word.txt"), "a\n")
    commands = {
        "start": {"input_file": one_word, "folder": folder},
        "whole": {"input_file": inputs, "folder": folder},
        "sharded": {"input_file": inputs, "folder": f"{folder}/shards", "num_shards": options.num_shards},
    }
    runs: dict[str, list[Watched]] = {name: [] for name in commands}
    for _, (name, given) in itertools.product(range(options.rounds), commands.items()):
        runs[name].append(run_script(options=options, **given))
        shutil.rmtree(f"{folder}/shards", ignore_errors=True)  # finished shards would not be made again
    return {name: median(found) for name, found in runs.items()}


def report(input_files: list[str], options: BenchmarkOptions, folder: str) -> None:
    runs = measure(",".join(input_files), options, folder)
    idle, whole, shards = (runs[name] for name in ("start", "whole", "sharded"))
    examples = count_records(os.path.join(folder, "examples.tfrecord"))
    megabytes = sum(os.path.getsize(name) for name in input_files) / 1e6
    work = max(whole.seconds - idle.seconds, 1e-9)
    print(f"machine            {machine.describe()}")
    print(f"work               {megabytes:.2f} MB of text, {examples} examples of {options.max_seq_length} tokens")
    print(f"whole command      {whole.seconds:.1f} s, of which {idle.seconds:.1f} s to start")
    rates = f"{examples / work:.0f} examples/s, {megabytes / work:.2f} MB of text/s"
    print(f"speed              {rates} (without the start)")
    per_example = (whole.resident - idle.resident) / max(examples, 1)
    growth = whole.resident / idle.resident
    print(f"peak memory        {whole.resident / 1e6:.0f} MB, {growth:.2f} times the peak of the start;")
    print(f"                   {per_example:.0f} bytes an example above it, corpus included")
    print(
        f"in shards          {shards.seconds:.1f} s, {whole.seconds / shards.seconds:.2f} times as fast; peak memory"
        f" {shards.resident / 1e6:.0f} MB, of a worker {shards.of_children / 1e6:.0f} MB"
    )
    stages = time_stages(input_files, options, folder)
    for stage, seconds in stages.items():
        print(f"{stage:<23}{seconds / sum(stages.values()):6.1%} of the work, {seconds:.2f} s")
    print(f"inspect_records.py     {inspection_rate(os.path.join(folder, 'examples.tfrecord')):6.0f} MB of records/s")


def enlarge(input_files: list[str], megabytes: float, folder: str) -> list[str]:
    """Writes a file of about this size: all documents in random order, repeatedly, each time in another order."""
    documents = "\n".join(files.read_text(name) for name in input_files).split("\n\n")
    rng, path, left = random.Random(1), os.path.join(folder, "corpus.txt"), megabytes * 1e6
    with open(path, "w", encoding="utf-8") as output:
        while left > 0:
            rng.shuffle(documents)
            for document in documents:
                left -= output.write(document + "\n\n")
                if left <= 0:
                    break
    return [path]


def inspection_rate(path: str) -> float:
    """The megabytes of records that inspect_records.py reads in a second, without its start."""
    seconds = min(timeit.repeat(lambda: inspect_records.inspect([path]), number=1, repeat=3))
    return os.path.getsize(path) / 1e6 / seconds


def count_records(path: str) -> int:
    return sum(len(block) for block in tfrecords.read_blocks(path))


def main(options: BenchmarkOptions) -> None:
    logging.set_verbosity(logging.WARNING)
    input_files = [os.path.abspath(name) for name in files.match_files(options.input_file)]
    options = dataclasses.replace(options, vocab_file=os.path.abspath(options.vocab_file))
    with tempfile.TemporaryDirectory() as folder:
        input_files = enlarge(input_files, options.megabytes, folder) if options.megabytes else input_files
        report(input_files, options, folder)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)
