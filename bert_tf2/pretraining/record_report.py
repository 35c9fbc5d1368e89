"""Statistics of records and single records, as lines of text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_tf2.data import records
from bert_tf2.pretraining import unmasked
from bert_tf2.pretraining.record_checks import Batch
from bert_tf2.pretraining.record_statistics import Statistics
from bert_tf2.support import environment

_MOST_BARS = 16
_BAR = 40  # characters of the longest bar
_MOST_LABELS = 30
_MASK = "[MASK]"


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts with names.

    Attributes:
      title: what is counted.
      names: the values, or ranges of them: "1-8".
      counts: the number of each.
      of_records: whether records are counted; otherwise tokens.
    """

    title: str
    names: Sequence[str]
    counts: Sequence[int]
    of_records: bool = True

    def lines(self) -> list[str]:
        """A bar of text for each count."""
        most, width = max(self.counts, default=0), max(map(len, self.names), default=0)
        digits = len(f"{most:,}")
        bars = [
            f"  {name:>{width}}  {count:>{digits},}  {'#' * _bar(count, most)}".rstrip()
            for name, count in zip(self.names, self.counts, strict=True)
        ]
        return ["", f"{self.title}:", *bars]


def _bar(count: int, most: int) -> int:
    """The length of a bar; a count that is not 0 has at least one character."""
    return max(round(_BAR * count / most), 1) if count else 0


def summary(
    statistics: Statistics, num_files: int, size: int, words: Sequence[str] | None = None, top_k: int = 10
) -> list[str]:
    """The lines of a report.

    Args:
      statistics: what was counted.
      num_files: the number of files.
      size: their bytes.
      words: the entries of the vocabulary.
      top_k: the number of most frequent masked words to list.
    """
    rows = {
        "records": f"{_number(statistics.records, f'{statistics.kind.name} record')} in {_number(num_files, 'file')}"
        f" ({environment.human(size)}), all valid",
        **_padding(statistics),
        **(_masks(statistics, words) if _has_masks(statistics.kind) else {}),
        **(_no_masks(statistics) if unmasked.are_of(statistics.kind) else {}),
    }
    if statistics.kind is records.REGRESSION and statistics.real:
        rows["labels"] = f"{statistics.label_sum / statistics.real:.4f} on average"
    column = max(map(len, rows)) + 2
    lines = [f"{name:<{column}}{text}" for name, text in rows.items()]
    for histogram in histograms(statistics):
        lines += histogram.lines()
    return lines + _most_frequent(statistics, words, top_k)


def _has_masks(kind: records.RecordKind) -> bool:
    return "masked_lm_positions" in kind.features


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _padding(statistics: Statistics) -> dict[str, str]:
    rows = {}
    if statistics.fillers:
        rows["fillers"] = f"{statistics.fillers:,} of them only fill up a batch, and are not counted below"
    if not statistics.tokens:
        return rows
    length, positions = statistics.max_seq_length, statistics.real * statistics.max_seq_length
    packed = statistics.rows_when_packed()
    what = "the longest" if unmasked.are_of(statistics.kind) else "max_seq_length"
    return {
        **rows,
        "length": f"{statistics.tokens / statistics.real:.1f} tokens on average, of {length} ({what})",
        "padding": f"{statistics.padding():.1%} of {positions:,} positions; without padding"
        f" {positions / statistics.tokens:.2f} times fewer",
        "packing": f"{_number(packed, 'row')} of {length} would hold all of them,"
        f" {statistics.real / packed:.2f} times fewer",
    }


def _masks(statistics: Statistics, words: Sequence[str] | None) -> dict[str, str]:
    predictions, real = statistics.predictions, statistics.real
    rows = {
        "masked": f"{predictions / real:.2f} tokens per record, {predictions / max(statistics.tokens, 1):.1%} of all,"
        f" at most {len(statistics.masked) - 1} in a record"
    }
    if predictions and words is not None and _MASK in words:
        mask = words.index(_MASK)
        masks = int(statistics.in_place[mask]) if mask < len(statistics.in_place) else 0
        others = predictions - statistics.kept - masks
        rows["replaced"] = (
            f"{masks / predictions:.1%} by {_MASK}, {others / predictions:.1%} by another word,"
            f" {statistics.kept / predictions:.1%} kept"
        )
    return rows | _next(statistics)


def _next(statistics: Statistics) -> dict[str, str]:
    if "next_sentence_labels" not in statistics.kind.features:
        return {}
    return {"next": f"{statistics.random_next / statistics.real:.1%} of the second texts are random"}


def _no_masks(statistics: Statistics) -> dict[str, str]:
    rows = {"masked": "no masks: drawn in training"}
    if "word_lengths" in statistics.kind.features:
        rows["masked"] += f", whole words ({statistics.words / statistics.real:.1f} per record)"
    return rows | _next(statistics)


def histograms(statistics: Statistics) -> list[Histogram]:
    """The histograms of lengths, and of masks or labels."""
    found = [_in_ranges("tokens per record", statistics.lengths, first=1)]
    if _has_masks(statistics.kind):
        found.append(_in_ranges("masked tokens per record", statistics.masked, first=0))
    if statistics.labels:
        of_records = statistics.kind is not records.TOKEN_TAGGING
        common = statistics.labels.most_common(_MOST_LABELS)
        title = "records per label" if of_records else "tokens per label"
        if len(common) < len(statistics.labels):
            title += f" (the {_MOST_LABELS} most frequent of {len(statistics.labels):,})"
        common.sort(key=lambda item: (isinstance(item[0], str), item[0]))
        names, counts = zip(*common, strict=True)
        found.append(Histogram(title, [str(name) for name in names], counts, of_records))
    return found


def _in_ranges(title: str, counts: np.ndarray, first: int) -> Histogram:
    """A histogram of counts by value, in ranges of equal width from `first` on."""
    values = counts[first:]
    width = max(-(-len(values) // _MOST_BARS), 1)
    starts = range(0, len(values), width)
    names = []
    for start in starts:
        low, high = start + first, min(start + width, len(values)) + first - 1
        names.append(str(low) if low == high else f"{low}-{high}")
    return Histogram(title, names, [int(values[start : start + width].sum()) for start in starts])


def _most_frequent(statistics: Statistics, words: Sequence[str] | None, top_k: int) -> list[str]:
    if not _has_masks(statistics.kind) or not top_k:
        return []
    counts = statistics.masked_ids
    order = [place for place in np.argsort(-counts, kind="stable")[:top_k].tolist() if counts[place]]
    if not order:
        return []
    names = [_word(place, words) for place in order]
    column, digits = max(map(len, names)), len(f"{counts[order[0]]:,}")
    lines = [
        f"  {name:<{column}}  {counts[place]:>{digits},}  {counts[place] / statistics.predictions:.1%}"
        for name, place in zip(names, order, strict=True)
    ]
    return ["", "most frequent masked words:", *lines]


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
    features = batch.features
    if _has_masks(batch.kind) or unmasked.are_of(batch.kind):
        masks = "no masks"
        if _has_masks(batch.kind):
            masks = f"{int((features['masked_lm_weights'][row] > 0).sum())} masked"
        if "next_sentence_labels" not in features:
            return [masks]
        how = "is a random one" if features["next_sentence_labels"][row, 0] else "follows the first"
        return [masks, f"the second text {how}"]
    if batch.kind is records.SQUAD_TRAIN:
        if features["is_impossible"][row, 0]:
            return ["no answer"]
        return [f"answer at {features['start_positions'][row, 0]}-{features['end_positions'][row, 0]}"]
    if "label_ids" in features:
        used = features["label_ids"][row]
        if batch.kind is records.TOKEN_TAGGING:
            used = used[features["input_mask"][row] != 0]
        return [f"label{'' if len(used) == 1 else 's'} {' '.join(f'{label:g}' for label in used.tolist())}"]
    return []
