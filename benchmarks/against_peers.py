"""Times the pretraining step in turn with the steps of Model Garden, keras-hub and transformers on torch.

    python benchmarks/against_peers.py
    python benchmarks/against_peers.py --cases 8x128 --precisions bfloat16 --rounds 5 --peers model_garden
    python benchmarks/against_peers.py --write FOLDER         their steps as HLO, for accelerators.py; nothing is timed

Every peer is installed once, from its package into a separate environment. A peer that cannot be installed, or whose
program fails, is reported in one line, and the other peers are compared. In each round each side runs one process:
pretraining on the same random words, with dropout 0.1, Adam with weight decay and clipping by the global norm 1.0. If a
peer has several variants (with XLA or without, with torch.compile or without), the first round runs all variants, and
later rounds run the fastest. keras-hub has no loss of next sentences, so it computes masked words only.

In the case "wiki" the rows of 512 have 256 tokens on average (see pretraining_step.py); the peers compute the padding,
and ours runs with padding and without. On a GPU, ours is compiled by XLA (which needs the padding), and GB are the peak
of the GPU's memory.

Numbers are examples/s. The table shows each round, the median, the ratio of our median to the peer's median, and the
peak memory of the process. Results are kept in WORK_DIR/peers.jsonl and are not measured again with the same revision
of this checkout.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import machine
import processes

from bert_tf2.support import flags, xla_flags
from bert_tf2.support.settings import DATA, MODEL, TO_DO, TRAINING, Options, options, setting


class Peer(NamedTuple):
    """A project to compare with.

    Attributes:
      packages: the packages for pip, with versions.
      variants: the values of --variant of its program, peers/NAME_step.py.
    """

    packages: Sequence[str]
    variants: Sequence[str]


# The only place that states the peers' versions. torch==2.13.0 is also 2.13.0+cpu, where the index of pip has it.
PEERS = {
    "model_garden": Peer(("tf-models-official==2.20.0", "tf-keras==2.20.1"), ("plain", "xla")),
    "keras_hub": Peer(("keras-hub==0.32.0", "keras==3.15.1", "tensorflow==2.21.0"), ("plain", "xla")),
    "torch_transformers": Peer(("transformers==5.23.0", "torch==2.13.0"), ("plain", "compile")),
}
# Batch, length, predictions, mean length.
CASES = {
    "8x128": (8, 128, 20, 0), "32x128": (32, 128, 20, 0), "128x128": (128, 128, 20, 0), "2x512": (2, 512, 76, 0),
    "32x512": (32, 512, 76, 0), "wiki": (8, 512, 76, 256),
}  # fmt: skip
PRECISIONS = ("float32", "bfloat16")


@options
class BenchmarkOptions(Options):
    """Times the pretraining step in turn with the steps of Model Garden, keras-hub and transformers on torch."""

    environments: str = setting("Folder for the peers' environments, some 5 GB.", ".venv-peers", group=DATA)
    work_dir: str = setting("Folder for peers.jsonl, the results.", "bench_output", group=DATA)
    peers: str = setting("Which peers, separated by commas.", ",".join(PEERS), group=TO_DO)
    cases: str = setting("Which cases, separated by commas; also wiki.", "8x128,2x512", group=TO_DO)
    precisions: str = setting("Which precisions, separated by commas.", ",".join(PRECISIONS), group=TO_DO)
    rounds: int = setting("How often the sides take turns.", 2, group=TO_DO, low=1)
    write: str | None = setting("Write the peers' steps as HLO under this folder, and end.", None, group=TO_DO)
    batch_size: int | None = setting("With --write: replaces the batch size of the case.", None, group=TO_DO, low=1)
    steps: int = setting("Steps to time in each process.", 4, group=TRAINING, low=1)
    bert_config_file: str | None = setting("Configuration of the model; BERT-Base without it.", None, group=MODEL)

    def check(self) -> None:
        for name, known in (("peers", PEERS), ("cases", CASES), ("precisions", PRECISIONS)):
            processes.check_words(name, getattr(self, name), known)


class Side(NamedTuple):
    """One row of a table.

    Attributes:
      name: the name in the table.
      peer: the name of the peer, or "" for this project.
      python: the interpreter.
      variant: a variant of the peer's program, flags of our program with blanks between them, or "".
    """

    name: str
    peer: str
    python: str
    variant: str


def install(name: str, folder: Path) -> str:
    """Makes the environment of a peer unless it exists, and returns its interpreter.

    Raises:
      processes.Failed: the environment cannot be made.
    """
    python, done = folder / name / "bin" / "python", folder / name / "installed"
    packages = " ".join(PEERS[name].packages)
    if done.exists() and done.read_text() == packages:
        return str(python)
    print(f"Installing {packages} into {folder / name}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    try:
        processes.run([sys.executable, "-m", "venv", "--clear", str(folder / name)], log)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile"]
        processes.run([*pip, *PEERS[name].packages], log)
    except OSError as error:
        raise processes.Failed(str(error)) from error
    done.write_text(packages)
    return str(python)


def sides(options: BenchmarkOptions) -> list[Side]:
    """Our side, and all variants of the peers that can be installed; prints the peers that cannot be installed."""
    found = [Side("ours", "", sys.executable, "--unpad=none --xla" if xla_flags.has_gpu() else "")]
    for name in options.peers.split(","):
        try:
            python = install(name, Path(options.environments).resolve())
        except processes.Failed as failure:
            print(f"{name} is skipped: it cannot be installed: {failure}", flush=True)
            continue
        found += [Side(f"{name} {variant}", name, python, variant) for variant in PEERS[name].variants]
    return found


def command(side: Side, options: BenchmarkOptions, case: str, precision: str, **other: object) -> list[str]:
    program = f"peers/{side.peer}_step.py" if side.peer else "pretraining_step.py"
    own = [f"--variant={side.variant}"] if side.peer else ["--json", *side.variant.split()]
    sizes = ("batch_size", "max_seq_length", "max_predictions_per_seq", "mean_length")
    given = {**dict(zip(sizes, CASES[case], strict=True)), "precision": precision, "steps": options.steps, **other}
    config = options.bert_config_file and Path(options.bert_config_file).resolve()
    return [
        *(side.python, str(processes.BENCHMARKS / program), *own),
        *processes.flags_of(**given, bert_config_file=config),
    ]


def write(options: BenchmarkOptions, folder: Path) -> None:
    """Writes FOLDER/PEER-PRECISION-CASE for each peer whose step XLA compiles."""
    everything = itertools.product(sides(options), options.precisions.split(","), options.cases.split(","))
    for side, precision, case in everything:
        if side.variant == "xla":
            batch = options.batch_size or CASES[case][0]
            to = (folder / f"{side.peer}-{precision}-{batch}x{CASES[case][1]}").resolve()
            processes.run(command(side, options, case, precision, batch_size=batch, write=to), folder / "log")
            print(f"Wrote {to}", flush=True)


Measured = dict[Side, list[Mapping]]


def compare(options: BenchmarkOptions, results, case: str, precision: str, all_sides: Sequence[Side]) -> Measured:
    """Runs all rounds of one case; prints and leaves out a side whose program fails."""
    measured: Measured = {}

    def measure(side: Side, number: int) -> bool:
        name = f"{case} {precision} {options.bert_config_file or 'base'} {options.steps} {side.name} {number}"
        try:
            found = results.get(name, lambda: processes.measure(command(side, options, case, precision)))
        except processes.Failed as failure:
            print(f"{side.name} is left out of {case} {precision}: {failure}", flush=True)
            measured.pop(side, None)
            return False
        measured.setdefault(side, []).append(found)
        return True

    taking_part = list(all_sides)
    if CASES[case][3] and "--xla" not in taking_part[0].variant:
        taking_part.insert(1, taking_part[0]._replace(name="ours, padded", variant="--unpad=none"))
    for number in range(1, options.rounds + 1):
        by_peer: dict[str, list[Side]] = {}
        for side in taking_part:
            if measure(side, number):
                by_peer.setdefault(side.peer or side.name, []).append(side)
        taking_part = [max(variants, key=lambda side: median(measured[side])) for variants in by_peer.values()]
    return measured


def median(results: Sequence[Mapping]) -> float:
    return statistics.median(result["examples_per_second"] for result in results)


def rows(measured: Measured, rounds: int) -> Iterator[list[str]]:
    """A row for each side that ran."""
    ours = next((median(results) for side, results in measured.items() if side.name == "ours"), None)
    for side, results in measured.items():
        shown = [f"{result['examples_per_second']:.2f}" for result in results]
        ratio = f"{ours / median(results):.2f}" if ours and side.name != "ours" else ""
        memory = max(result["memory_gb"] for result in results)
        yield [side.name, *shown, *[""] * (rounds - len(shown)), f"{median(results):.2f}", ratio, f"{memory:.2f}"]


def main(options: BenchmarkOptions) -> None:
    if options.write:
        Path(options.write).mkdir(parents=True, exist_ok=True)
        write(options, Path(options.write))
        return
    print(f"{machine.describe()}, revision {processes.revision()}", flush=True)
    results = processes.Results(Path(options.work_dir) / "peers.jsonl", processes.revision())
    taking_part, versions = sides(options), set()
    for case, precision in itertools.product(options.cases.split(","), options.precisions.split(",")):
        measured = compare(options, results, case, precision, taking_part)
        batch, length, predictions, mean_length = CASES[case]
        lengths = f", {mean_length} tokens on average" if mean_length else ""
        print(f"\nBatch {batch} x {length}{lengths}, {predictions} predictions, {precision}, examples/s:\n")
        header = ["", *(f"round {number}" for number in range(1, options.rounds + 1)), "median", "ours/it", "GB"]
        print(processes.render(header, list(rows(measured, options.rounds))), flush=True)
        versions |= {result["versions"] for found in measured.values() for result in found if "versions" in result}
    print(f"\n{'; '.join(sorted(versions))}. keras-hub: masked words only.")


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)
