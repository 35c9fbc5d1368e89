"""Shows what TFRecord files hold, and checks every record: the implementation of inspect_records.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.data import schemas, unmasked
from bert_tf2.data.record_checks import Batch, read_all
from bert_tf2.pretraining import record_files
from bert_tf2.pretraining.options import InspectRecordsOptions
from bert_tf2.pretraining.record_statistics import Statistics
from bert_tf2.support import environment, files, progress
from bert_tf2.support.errors import UserError
from bert_tf2.weights.vocabulary import check_special_tokens

_MOST_BARS = 16
_BAR = 40  # characters of the longest bar
_MOST_LABELS = 30
_MASK = "[MASK]"


def run(options: InspectRecordsOptions) -> list[str]:
    """Checks every record of the files, and returns a report."""
    found = record_files.find(options.input_file)
    words = None
    if options.vocab_file:
        words = [entry.strip() for entry in tokenization.read_entries(options.vocab_file)]
        check_special_tokens({word: index for index, word in enumerate(words)}, options.vocab_file, ("[CLS]", "[SEP]"))
    statistics, examples = inspect(found.paths, words, options.show)
    found.check({path: statistics.of_files[path] for path in found.paths})
    size = sum(map(files.size, found.paths))
    return [*summary(statistics, len(found.paths), size, words, options.top_k), *examples]


def inspect(paths: Sequence[str], words: Sequence[str] | None = None, show: int = 0) -> tuple[Statistics, list[str]]:
    """Reads and checks all records of some files; returns the counts, and the lines of the first `show` examples."""
    statistics: Statistics | None = None
    lines: list[str] = []
    left = show
    with progress.Progress("Reading", unit="records") as shown:
        for batch in read_all(paths, len(words) if words is not None else None):
            if statistics is None:
                first = int(batch.features["input_ids"][0, 0])
                if words and "[CLS]" in words and words[first] != "[CLS]":  # all words would be wrong
                    raise UserError(
                        f"{batch.path}, record {batch.first}: begins with {first}, which is {words[first]!r} in"
                        f" --vocab_file, and [CLS] is {words.index('[CLS]')} there; give the vocabulary that the"
                        " records were made with"
                    )
                statistics = Statistics(batch.kind, batch.features["input_ids"].shape[1])
            statistics.add(batch)
            for row in range(min(left, len(batch))):
                lines += ["", *example(batch, row, words)]
            left -= min(left, len(batch))
            shown.advance(len(batch))
    return statistics, lines


def summary(
    statistics: Statistics, num_files: int, size: int, words: Sequence[str] | None = None, top_k: int = 10
) -> list[str]:
    """The lines of a report on files of `size` bytes; `top_k` of the masked words are listed."""
    rows = {
        "records": f"{_number(statistics.records, f'{statistics.kind.name} record')} in {_number(num_files, 'file')}"
        f" ({environment.human(size)}), all valid",
        **_padding(statistics),
        **(_masks(statistics, words) if _has_masks(statistics.kind) else {}),
    }
    if unmasked.are_of(statistics.kind):
        rows["masked"] = "no masks: drawn in training"
        if "word_lengths" in statistics.kind.features:
            rows["masked"] += f", whole words ({statistics.words / statistics.real:.1f} per record)"
    if "next_sentence_labels" in statistics.kind.features:
        rows["next"] = f"{statistics.random_next / statistics.real:.1%} of the second texts are random"
    if statistics.kind is schemas.REGRESSION and statistics.real:
        rows["labels"] = f"{statistics.label_sum / statistics.real:.4f} on average"
    column = max(map(len, rows)) + 2
    lines = [f"{name:<{column}}{text}" for name, text in rows.items()]
    return [*lines, *_histograms(statistics, words, top_k)]


def _has_masks(kind: schemas.RecordKind) -> bool:
    return "masked_lm_positions" in kind.features


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _padding(statistics: Statistics) -> dict[str, str]:
    rows = {}
    if statistics.fillers:
        rows["fillers"] = f"{statistics.fillers:,} of them only fill up a batch, and are not counted below"
    if tokens := statistics.tokens:
        length = len(statistics.lengths) - 1
        positions = statistics.real * length
        what = "the longest" if unmasked.are_of(statistics.kind) else "max_seq_length"
        rows["length"] = f"{tokens / statistics.real:.1f} tokens on average, of {length} ({what})"
        rows["padding"] = (
            f"{1 - tokens / positions:.1%} of {positions:,} positions; without padding"
            f" {positions / tokens:.2f} times fewer"
        )
    return rows


def _masks(statistics: Statistics, words: Sequence[str] | None) -> dict[str, str]:
    predictions, real = statistics.predictions, statistics.real
    rows = {
        "masked": f"{predictions / real:.2f} tokens per record, {predictions / max(statistics.tokens, 1):.1%} of all,"
        f" at most {len(statistics.masked) - 1} in a record"
    }
    if predictions and words is not None and _MASK in words:
        mask = words.index(_MASK)
        masks = int(statistics.replacements[mask]) if mask < len(statistics.replacements) else 0
        others = predictions - statistics.unchanged - masks
        rows["replaced"] = (
            f"{masks / predictions:.1%} by {_MASK}, {others / predictions:.1%} by another word,"
            f" {statistics.unchanged / predictions:.1%} kept"
        )
    return rows


def _histograms(statistics: Statistics, words: Sequence[str] | None, top_k: int) -> list[str]:
    """Of lengths, and of masks or labels."""
    lines = bars("tokens per record", *in_ranges(statistics.lengths, first=1))
    if _has_masks(statistics.kind):
        lines += bars("masked tokens per record", *in_ranges(statistics.masked, first=0))
        counts = statistics.masked_ids
        if order := [place for place in np.argsort(-counts, kind="stable")[:top_k].tolist() if counts[place]]:
            names = [_word(place, words) for place in order]
            lines += bars("most frequent masked words", names, counts[order].tolist())
    if statistics.labels:
        common = statistics.labels.most_common(_MOST_LABELS)
        title = "tokens per label" if statistics.kind is schemas.TOKEN_TAGGING else "records per label"
        if len(common) < len(statistics.labels):
            title += f" (the {_MOST_LABELS} most frequent of {len(statistics.labels):,})"
        lines += bars(title, *zip(*sorted(common), strict=True))
    return lines


def in_ranges(counts: np.ndarray, first: int) -> tuple[list[str], list[int]]:
    """Counts by value, from `first` on, as those of ranges of equal width: ("1-8", ...) and their counts."""
    width = max(-(-(len(counts) - first) // _MOST_BARS), 1)
    ranges = [(low, min(low + width, len(counts)) - 1) for low in range(first, len(counts), width)]
    names = [str(low) if low == high else f"{low}-{high}" for low, high in ranges]
    return names, [int(counts[low : high + 1].sum()) for low, high in ranges]


def bars(title: str, names: Sequence[object], counts: Sequence[int]) -> list[str]:
    """A title, and a bar of text for each count; what is not 0 has a character."""
    most, width = max(counts, default=0), max((len(str(name)) for name in names), default=0)
    digits = len(f"{most:,}")
    lines = ["", f"{title}:"]
    for name, count in zip(names, counts, strict=True):
        bar = "#" * max(round(_BAR * count / most), 1) if count else ""
        lines.append(f"  {name!s:>{width}}  {count:>{digits},}  {bar}".rstrip())
    return lines


def _word(token_id: int, words: Sequence[str] | None) -> str:
    return words[token_id] if words is not None else str(token_id)


def example(batch: Batch, row: int, words: Sequence[str] | None = None) -> list[str]:
    """A record as text, in two lines: what is known of it, and its tokens without padding.

    The pieces of a word are joined. A masked token is shown as [original>replacement].
    """
    features = batch.features
    length = int((features["input_mask"][row] != 0).sum())
    facts = [f"{length} token{'' if length == 1 else 's'}", *_facts(batch, row)]
    originals = {}
    if _has_masks(batch.kind):
        used = features["masked_lm_weights"][row] > 0
        ids, positions = features["masked_lm_ids"][row][used], features["masked_lm_positions"][row][used]
        originals = dict(zip(positions.tolist(), ids.tolist(), strict=True))
    text, after_special = "", True
    for place, token_id in enumerate(features["input_ids"][row][:length].tolist()):
        shown = first = _word(token_id, words)
        if place in originals:
            first = _word(originals[place], words)
            shown = f"[{first}>{shown}]"
        # The front of a text may have been cut off within a word; its first piece then keeps its ##.
        goes_on = words is not None and first.startswith("##") and len(first) > 2 and not after_special
        text += shown.removeprefix("##") if goes_on else f" {shown}"
        after_special = first in ("[CLS]", "[SEP]")
    return [f"{batch.path}, record {batch.first + row}: {', '.join(facts)}", f"  {text.strip()}"]


def _facts(batch: Batch, row: int) -> list[str]:
    features, facts = batch.features, []
    if _has_masks(batch.kind):
        facts = [f"{int((features['masked_lm_weights'][row] > 0).sum())} masked"]
    elif unmasked.are_of(batch.kind):
        facts = ["no masks"]
    elif batch.kind is schemas.SQUAD_TRAIN:
        place = f"answer at {features['start_positions'][row, 0]}-{features['end_positions'][row, 0]}"
        facts = ["no answer" if features["is_impossible"][row, 0] else place]
    elif "label_ids" in features:
        used = features["label_ids"][row]
        if batch.kind is schemas.TOKEN_TAGGING:
            used = used[features["input_mask"][row] != 0]
        facts = [f"label{'' if len(used) == 1 else 's'} {' '.join(f'{label:g}' for label in used.tolist())}"]
    if "next_sentence_labels" in features:
        how = "is a random one" if features["next_sentence_labels"][row, 0] else "follows the first"
        facts.append(f"the second text {how}")
    return facts
