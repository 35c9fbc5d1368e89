"""The tables and plots of the study, from the results of its trainings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import scipy.stats
from study_probes import similarity_by_distance

from bert_tf2.support import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = Mapping[str, Any]
_OF_GUESSES = (("loss", 1, 3), ("accuracy", 100, 1))
_PROBES = ("order", "swapped", "position")
_DISTANCES = (1, 2, 3, 4, 6, 8, 12, 16)
# What is compared, and what else than the loss shows it.
_GROUPS = {
    "output weights": ("base", "untied", "cloned_frozen"),
    "positions": ("base", "from_sinusoid", "sinusoidal", "no_positions"),
    "masking and pairs": ("base", "all_masked", "no_pairs"),
}


def half_width(values: Sequence[float]) -> float:
    """Half the 95 % interval of the mean of two or more values (Student's t)."""
    return float(scipy.stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def interval(values: Sequence[float], digits: int = 3) -> str:
    """The mean of paired differences, its 95 % interval (Student's t), and whether the interval has 0."""
    if len(values) < 2:
        return f"{values[0]:+.{digits}f}" if values else ""
    mean, half = statistics.fmean(values), half_width(values)
    none = ", no difference seen" if abs(mean) <= half else ""
    return f"{mean:+.{digits}f} ({mean - half:+.{digits}f} to {mean + half:+.{digits}f}){none}"


def spread(values: Iterable[float], digits: int = 3) -> str:
    """The mean, and the least and the largest value if there are several."""
    values = [*values]
    if not values:
        return ""
    shown = [f"{value:.{digits}f}" for value in (statistics.fmean(values), min(values), max(values))]
    return shown[0] if len(values) == 1 else f"{shown[0]} ({shown[1]} to {shown[2]})"


def held_out_loss(result: Result) -> float:
    """Of masked words, in the form of text that the variant was trained for."""
    return result["heldout"][_form(result["variant"])]["mask"]["loss"]


def of(results: Sequence[Result], variant: str, *path: str) -> dict[int, Any]:
    """The value at a path in the results of a variant, by seed."""
    found = {}
    for result in results:
        value: Any = result if result["variant"] == variant else None
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[result["seed"]] = value
    return found


def _form(variant: str) -> str:
    """The form of the held-out texts that a variant was trained for."""
    return "single" if variant == "no_pairs" else "pairs"


def _percent(values: Mapping[int, float]) -> str:
    return spread((100 * value for value in values.values()), 1)


def _variants(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result["variant"] for result in results))


def _beside_base(results: Sequence[Result], variant: str, path: Sequence[str], by: float = 1, digits: int = 3) -> str:
    """The differences from base with the same seed, which has the same held-out documents."""
    base, own = of(results, "base", *path), of(results, variant, *path)
    return interval([by * own[seed] - by * base[seed] for seed in own if seed in base], digits)


def _main_table(results: Sequence[Result], guesses: Sequence[Mapping[str, float]], chance: float) -> str:
    rows = []
    for variant in _variants(results):
        # On the same texts: those of the form that this variant was trained for.
        loss, right = (("heldout", _form(variant), "mask", name) for name in ("loss", "accuracy"))
        rows.append([
            variant,
            f"{next(iter(of(results, variant, 'parameters').values())):,}",
            spread(of(results, variant, *loss).values()),
            _beside_base(results, variant, loss) if variant != "base" else "",
            _percent(of(results, variant, *right)),
            _beside_base(results, variant, right, 100, 1) if variant != "base" else "",
            *(_percent(of(results, variant, "probes", probe)) for probe in _PROBES),
        ])  # fmt: skip
    loss, right = (spread((guess[name] * by for guess in guesses), d) for name, by, d in _OF_GUESSES)
    rows.append(["a guess by frequency", "", loss, "", right, "", "", "", ""])
    rows.append(["chance", "", "", "", "", "", "50.0", "50.0", f"{100 * chance:.1f}"])
    header = ("loss", "loss - base's (95 %)", "accuracy %", "accuracy - base's (95 %)")
    return processes.render(("variant", "parameters", *header, *(f"{probe} %" for probe in _PROBES)), rows)


def _words_table(results: Sequence[Result]) -> str:
    """What is predicted where the model reads [MASK], the right word, or a random one."""
    rows = []
    for variant in ("base", "all_masked"):
        for read, name in (("mask", "[MASK]"), ("kept", "the right word"), ("random", "a random word")):
            loss, right = (of(results, variant, "heldout", "pairs", read, each) for each in ("loss", "accuracy"))
            rows.append([variant, name, spread(loss.values(), 2), _percent(right)])
    return processes.render(("variant", "it reads", "loss", "accuracy %"), rows)


def _pairs_table(results: Sequence[Result]) -> str:
    rows = []
    for variant in ("base", "no_pairs"):
        rows.append([variant])
        for form in ("pairs", "single"):
            loss, right = (of(results, variant, "heldout", form, "mask", each) for each in ("loss", "accuracy"))
            rows[-1] += [spread(loss.values()), _percent(right)]
        rows[-1].append(_percent(of(results, variant, "next_sentence_accuracy")))
    header = ("variant", "loss, pairs", "accuracy %", "loss, one text", "accuracy %", "next sentence %")
    return processes.render(header, rows)


def _ends_table(results: Sequence[Result]) -> str:
    columns = {
        **{f"{end} moved": ("moved", end) for end in ("input", "output")},
        **{f"gradient, {end}": ("gradients", end) for end in ("input", "output")},
        "cosine": ("ends", "cosine"),
        "of other words": ("ends", "cosine_of_others"),
        "same neighbors": ("ends", "same_neighbors"),
    }
    rows = [
        [variant, *(spread(of(results, variant, "tables", *path).values(), 2) for path in columns.values())]
        for variant in _GROUPS["output weights"]
    ]
    return processes.render(("variant", *columns), rows)


def _similarities(results: Sequence[Result], width: int, length: int) -> dict[str, list[list[float]]]:
    """Similarities by distance, of each seed: learned positions, and the sinusoid."""
    from bert_tf2.layers import sinusoidal_positions  # loads TensorFlow

    path = ("tables", "similarity_by_distance")
    found = {variant: [*of(results, variant, *path).values()] for variant in ("base", "from_sinusoid")}
    return {**found, "the sinusoid": [similarity_by_distance(sinusoidal_positions(length, width))]}


def _positions_table(similarities: Mapping[str, list[list[float]]]) -> str:
    count = min(len(values) for of_seeds in similarities.values() for values in of_seeds)
    distances = [distance for distance in _DISTANCES if distance < count]
    rows = [
        [name, *(spread((values[distance] for values in of_seeds), 2) for distance in distances)]
        for name, of_seeds in similarities.items()
    ]
    return processes.render(("positions", *map(str, distances)), rows)


def _rates_table(tried: Mapping[str, Mapping[str, float]]) -> str:
    """The held-out loss with each learning rate that was tried."""
    rates = sorted({rate for of_rates in tried.values() for rate in of_rates}, key=float)
    rows = []
    for variant, of_rates in tried.items():
        losses = [f"{of_rates[rate]:.3f}" if rate in of_rates else "" for rate in rates]
        rows.append([variant, *losses, min(of_rates, key=of_rates.get)])
    return processes.render(("variant", *rates, "the best"), rows)


def _differences_table(results: Sequence[Result]) -> str:
    """Of two variants on the same texts: what is told beside base in the text of the study."""
    rows = []
    for name, variant, path, by, digits in (
        ("right where the right word stands, %", "all_masked", ("heldout", "pairs", "kept", "accuracy"), 100, 1),
        ("right where a random word stands, %", "all_masked", ("heldout", "pairs", "random", "accuracy"), 100, 1),
        ("loss, pairs", "no_pairs", ("heldout", "pairs", "mask", "loss"), 1, 3),
        ("loss, one text", "no_pairs", ("heldout", "single", "mask", "loss"), 1, 3),
        ("accuracy, one text, %", "no_pairs", ("heldout", "single", "mask", "accuracy"), 100, 1),
        ("order known, %", "sinusoidal", ("probes", "order"), 100, 1),
        ("order known, %", "from_sinusoid", ("probes", "order"), 100, 1),
        ("order known, %", "no_positions", ("probes", "order"), 100, 1),
        ("position found, %", "sinusoidal", ("probes", "position"), 100, 1),
    ):
        if difference := _beside_base(results, variant, path, by, digits):
            rows.append([name, variant, difference])
    return processes.render(("measure", "variant", "less base's (95 %)"), rows)


def write(
    results: Sequence[Result],
    guesses: Sequence[Mapping[str, float]],
    tried: Mapping[str, Mapping[str, float]],
    options,
    machine: str,
) -> str:
    """The tables of the study, as Markdown; `guesses` and `tried`: see study.train_all."""
    first, probes, there = results[0]["heldout"]["pairs"]["mask"], results[0]["probes"], {*_variants(results)}
    minutes = sum(result["processor_seconds"] for result in results) / 60
    parts = [
        f"{machine}. {len(results)} trainings of {options.steps} steps with {options.batch_size} examples of"
        f" {options.max_seq_length} tokens; {options.num_hidden_layers} layers, hidden {options.hidden_size}; text"
        f" {Path(options.input_file).name}, seeds {options.seeds}.\nThe trainings took {minutes:.0f} minutes of"
        f" processor time.\nHeld out with the first seed: {first['count']:.0f} masked words; the probes are asked"
        f" {probes['order_count']}, {probes['swapped_count']} and {probes['position_count']} times.\nHeld-out tokens"
        f" that do not occur in the training: {spread((100 * guess['unseen'] for guess in guesses), 0)} %."
    ]

    def add(title: str, table: Callable[[], str], *needed: str) -> None:
        if there >= {*needed}:
            parts.extend([f"### {title}", table()])

    if tried:
        add(f"Learning rates, with the tuning seeds {options.tuning_seeds}", lambda: _rates_table(tried))
    add("All variants", lambda: _main_table(results, guesses, 1 / (options.max_seq_length - 2)))
    if len(there) > 1:
        add("Other differences from base", lambda: _differences_table(results), "base")
    add("What is predicted where no [MASK] stands", lambda: _words_table(results), "base", "all_masked")
    add("With pairs and without", lambda: _pairs_table(results), "base", "no_pairs")
    add("The two ends of the word table", lambda: _ends_table(results), *_GROUPS["output weights"])
    sizes = options.hidden_size, options.max_seq_length
    similarity = "Similarity of positions by distance"
    add(similarity, lambda: _positions_table(_similarities(results, *sizes)), "base", "from_sinusoid")
    return "\n\n".join(parts)


def draw(results: Sequence[Result], folder: Path) -> list[str]:
    """Writes the plots, each group of variants with curves and probes, and the positions; returns the files."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    figures = {"variants": (_draw_variants, 9), "curves": (_draw_curves, 9), "positions": (_draw_positions, 4.5)}
    if not {"base", "from_sinusoid"} <= {*_variants(results)}:
        del figures["positions"]
    paths = [str(folder / f"study_{name}.svg") for name in figures]
    with matplotlib.rc_context({"font.size": 8, "svg.fonttype": "none"}):
        for path, (draw_into, width) in zip(paths, figures.values(), strict=True):
            with plots.drawing(path, width, 2.8) as figure:
                draw_into(figure, results)
    return paths


def _draw_variants(figure: Figure, results: Sequence[Result]) -> None:
    """A dot for each seed: loss beside base's, with the 95 % interval of the mean as a line, and the probes."""
    variants = _variants(results)[::-1]
    axes = figure.subplots(1, 3, sharey=True)
    for row, variant in enumerate(variants):
        path = ("heldout", _form(variant), "mask", "loss")
        base, losses = of(results, "base", *path), of(results, variant, *path)
        order, position = (of(results, variant, "probes", probe).values() for probe in ("order", "position"))
        beside = [value - base.get(seed, value) for seed, value in losses.items()]
        panels = (beside, [100 * value for value in order], [100 * value for value in position])
        for panel, values in zip(axes, panels, strict=True):
            panel.plot(values, [row] * len(values), "o", color="C0", alpha=0.6, markersize=4)
            panel.plot([statistics.fmean(values)], [row], "|", color="black", markersize=12)
        if variant != "base" and len(beside) > 1:
            mean, half = statistics.fmean(beside), half_width(beside)
            axes[0].plot([mean - half, mean + half], [row, row], color="black", linewidth=1.2)
    titles = ("loss of held-out masked words, less base's", "order of neighbors known, %", "position found, %")
    for panel, title, chance in zip(axes, titles, (0, 50, None), strict=True):
        panel.set_title(title)
        panel.grid(alpha=0.3)
        if chance is not None:
            panel.axvline(chance, color="gray", linewidth=0.8)
    axes[0].set_yticks(range(len(variants)), variants)


def _draw_curves(figure: Figure, results: Sequence[Result]) -> None:
    """The held-out loss during the training, a panel for each group: means over the seeds.

    Around a variant's line is the 95 % interval of its difference from base: where base's line is outside, they differ.
    """
    axes = figure.subplots(1, len(_GROUPS), sharey=True)
    base = of(results, "base", "curve")
    for panel, (title, group) in zip(axes, _GROUPS.items(), strict=True):
        for number, variant in enumerate(group):
            curves = of(results, variant, "curve")
            if not curves:
                continue
            steps = [step for step, _ in next(iter(curves.values()))]
            losses = [statistics.fmean(loss for _, loss in points) for points in zip(*curves.values(), strict=True)]
            panel.plot(steps, losses, marker=".", label=variant, color=f"C{number}")
            both = [(curves[seed], base[seed]) for seed in curves if seed in base and _form(variant) == _form("base")]
            if variant != "base" and len(both) > 1:
                paired = [[own[1] - other[1] for own, other in zip(*pair, strict=True)] for pair in both]
                halves = [half_width(values) for values in zip(*paired, strict=True)]
                low, high = ([at + sign * half for at, half in zip(losses, halves, strict=True)] for sign in (-1, 1))
                panel.fill_between(steps, low, high, color=f"C{number}", alpha=0.2, linewidth=0)
        panel.set(title=title, xlabel="step")
        panel.grid(alpha=0.3)
        panel.legend()
    axes[0].set_ylabel("loss of held-out masked words")


def _draw_positions(figure: Figure, results: Sequence[Result]) -> None:
    """How similar two positions are, by their distance."""
    panel = figure.subplots()
    width, length = (max(result[name] for result in results) for name in ("hidden_size", "max_seq_length"))
    for name, of_seeds in _similarities(results, width, length).items():
        for number, values in enumerate(of_seeds):
            color, label = {"base": "C0", "from_sinusoid": "C1"}.get(name, "black"), name if number == 0 else None
            panel.plot(range(len(values)), values, color=color, label=label, alpha=0.7)
    panel.set(xlabel="distance of two positions", ylabel="mean cosine")
    panel.grid(alpha=0.3)
    panel.legend()
