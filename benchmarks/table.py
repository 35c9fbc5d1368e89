"""A table of models: examples/s of the pretraining step, share of the machine's matrix-product rate, peak memory.

    python benchmarks/table.py
    python benchmarks/table.py --models tiny,base --steps 3
    python benchmarks/table.py --plot docs/pretraining_table.svg

The sizes are those of Google's releases; each row is a process of its own. Results are kept in WORK_DIR/table.jsonl
and are not measured again with the same revision of this checkout, so an interrupted call can be resumed. --plot draws
them (it needs matplotlib, the extra `bench`). A model that does not fit into memory is a row without numbers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import machine
import processes
import workload

from bert_tf2.support import flags, plots
from bert_tf2.support.settings import DATA, TO_DO, TRAINING, Options, options, setting

# Layers, hidden size.
MODELS = {
    **{"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512)},
    **{"base": (12, 768), "large": (24, 1024)},
}
PRECISIONS = ("float32", "bfloat16")
# Masked words per example.
PREDICTIONS = {128: 20, 512: 76}
# Tokens in a batch: small models need more of them for products of the same size.
TOKENS = {"tiny": 4096, "mini": 4096, "small": 4096, "medium": 4096, "base": 1024, "large": 1024}


@options
class BenchmarkOptions(Options):
    """A table of models: examples/s of the pretraining step, share of the matrix-product rate, peak memory."""

    models: str = setting("Which models, separated by commas.", ",".join(MODELS), group=TO_DO)
    lengths: str = setting("Which lengths, separated by commas.", ",".join(map(str, PREDICTIONS)), group=TO_DO)
    precisions: str = setting("Which precisions, separated by commas.", ",".join(PRECISIONS), group=TO_DO)
    plot: str | None = setting("An SVG or PNG file to write with the results.", None, group=TO_DO, writes_file=True)
    steps: int = setting("Steps to time in each process.", 3, group=TRAINING, low=1)
    work_dir: str = setting("Folder for table.jsonl, the results.", "bench_output", group=DATA)

    def check(self) -> None:
        for name, known in (("models", MODELS), ("lengths", PREDICTIONS), ("precisions", PRECISIONS)):
            processes.check_words(name, getattr(self, name), known)
        if self.plot:
            plots.check_name("--plot", self.plot)


def measure(options: BenchmarkOptions, results, model: str, length: int, precision: str) -> Mapping:
    """The result of one row, stored or new; with `failed` instead of numbers if the program fails."""
    layers, hidden = MODELS[model]
    batch = TOKENS[model] // length
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 4 * hidden}
    path = Path(options.work_dir) / f"{model}.json"
    path.write_text(json.dumps(workload.BASE | sizes | {"num_attention_heads": hidden // 64}))
    row = {"model": model, "layers": layers, "hidden": hidden, "length": length, "batch": batch, "precision": precision}
    given = {"bert_config_file": path, "batch_size": batch, "max_seq_length": length, "precision": precision}
    given |= {"max_predictions_per_seq": PREDICTIONS[length], "steps": options.steps}
    command = processes.ours("pretraining_step.py", "--json", *processes.flags_of(**given))

    def run() -> Mapping:
        try:
            return row | processes.measure(command)
        except processes.Failed as failure:
            print(f"{model}, {length}, {precision} failed: {failure}", flush=True)
            return row | {"failed": str(failure)}

    return results.get(f"{model} {length} {batch} {precision} {options.steps}", run)


def cells(row: Mapping) -> list[str]:
    """A row of the table."""
    numbers = ["failed", "", ""]
    if "failed" not in row:
        numbers = [f"{row['examples_per_second']:.3g}", f"{100 * row['share']:.0f} %", f"{row['memory_gb']:.2f}"]
    shown = [f"{row['layers']} x {row['hidden']} ({row['model']})", str(row["length"]), str(row["batch"])]
    return [*shown, row["precision"], *numbers]


HEADER = ("layers x hidden", "length", "batch", "precision", "examples/s", "share", "GB")


def draw(rows: Sequence[Mapping], path: str, title: str) -> None:
    """Draws examples/s and share over the models, a line for each length and precision."""
    measured = [row for row in rows if "failed" not in row]
    models = [model for model in MODELS if any(row["model"] == model for row in measured)]
    with plots.drawing(path, 10, 4) as figure:
        speed, share = figure.subplots(1, 2)
        for length, precision in sorted({(row["length"], row["precision"]) for row in measured}):
            line = {row["model"]: row for row in measured if (row["length"], row["precision"]) == (length, precision)}
            places = [n for n, model in enumerate(models) if model in line]
            style = {"linestyle": "-" if precision == "float32" else "--", "label": f"{length}, {precision}"}
            speed.plot(places, [line[models[n]]["examples_per_second"] for n in places], marker="o", **style)
            share.plot(places, [100 * line[models[n]]["share"] for n in places], marker="o", **style)
        speed.set(yscale="log", ylabel="examples/s")
        share.set(ylim=(0, None), ylabel="% of the matrix-product rate")
        for axes in (speed, share):
            axes.set_xticks(range(len(models)), ["{}\n{} x {}".format(model, *MODELS[model]) for model in models])
            axes.grid(alpha=0.3)
        speed.legend(title="length, precision")
        figure.suptitle(title, fontsize=9)


def main(options: BenchmarkOptions) -> None:
    if options.plot:
        plots.require("--plot")
    print(machine.describe(), flush=True)
    results = processes.Results(Path(options.work_dir) / "table.jsonl", processes.revision())
    lists = (options.models.split(","), map(int, options.lengths.split(",")), options.precisions.split(","))
    rows = [measure(options, results, *row) for row in itertools.product(*lists)]
    print(processes.render(HEADER, [cells(row) for row in rows]))
    if options.plot:
        draw(rows, options.plot, f"Pretraining step; {machine.describe()}")


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)
