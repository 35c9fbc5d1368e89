"""Shows the contents of TFRecord files, and checks every record: the implementation of inspect_records.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bert_tf2.data import records
from bert_tf2.data.records import Record, read_all
from bert_tf2.pretraining import manifest
from bert_tf2.pretraining.options import InspectRecordsOptions
from bert_tf2.support import files, outputs, progress
from bert_tf2.support.errors import UserError
from bert_tf2.weights.text_rules import check_special_tokens, entries_of

_MASK = "[MASK]"
# The kinds with these labels, for texts that are cut and for texts that are read in windows.
_REGRESSION = (records.REGRESSION, records.WHOLE_TEXTS[records.REGRESSION.name])
_MULTI_LABEL = (records.MULTI_LABEL, records.WHOLE_TEXTS[records.MULTI_LABEL.name])


def run(options: InspectRecordsOptions) -> list[str]:
    """Checks every record of the files, and returns a report."""
    found = manifest.find(options.input_file)
    words = None
    if options.vocab_file:
        words = entries_of(options.vocab_file)
        check_special_tokens({word: index for index, word in enumerate(words)}, options.vocab_file, ("[CLS]", "[SEP]"))
    statistics, examples = inspect(found.paths, words, options.show)
    found.check({path: statistics.of_files[path] for path in found.paths})
    size = sum(map(files.size, found.paths))
    return [*summary(statistics, len(found.paths), size, words), *examples]


def inspect(paths: Sequence[str], words: Sequence[str] | None = None, show: int = 0) -> tuple[Statistics, list[str]]:
    """Reads and checks all records of some files; returns the counts, and the lines of the first `show` examples."""
    statistics: Statistics | None = None
    lines: list[str] = []
    with progress.Progress("Reading", unit="records") as shown:
        for number, record in enumerate(read_all(paths, len(words) if words is not None else None)):
            if statistics is None:
                first = int(record.values["input_ids"][0])
                if words and words[first] != "[CLS]":  # with a wrong vocabulary, all words would be wrong
                    raise UserError(
                        f"{record.path}, record {record.number}: begins with {first}, which is {words[first]!r} and not"
                        " [CLS] in --vocab_file; give the vocabulary that the records were made with"
                    )
                statistics = Statistics(record.kind)
            statistics.add(record)
            if number < show:
                lines += ["", *example(record, words)]
            shown.advance()
    return statistics, lines


class Statistics:
    """Counts over records of one kind. Records that only fill a batch (is_real_example 0) count in `of_files` only."""

    def __init__(self, kind: records.RecordKind):
        self.kind = kind
        self.of_files: Counter[str] = Counter()  # records by file
        self.records = self.random_next = 0  # the records, and the records whose second text is random
        self.max_seq_length = self.tokens = 0  # the most values of input_ids, and all values without padding
        self.masked = self.most_masked = 0  # the masked tokens, and the most masked tokens in a record
        self.replacements = Counter()  # the ids at masked places; None for tokens that are unchanged
        self.labels = Counter()  # the records by label; the tokens by label for token tagging
        self.label_sum = 0.0  # the sum of the labels of a regression

    def add(self, record: Record) -> None:
        values = record.values
        self.of_files[record.path] += 1
        if not values.get("is_real_example", [1])[0]:
            return
        self.records += 1
        self.max_seq_length = max(self.max_seq_length, len(values["input_ids"]))
        self.tokens += len(_tokens(record))
        self.random_next += int(values.get("next_sentence_labels", [0])[0])
        if "masked_lm_positions" in values:
            places, labels = _masks(record)
            inputs = values["input_ids"][places]
            self.masked += len(labels)
            self.most_masked = max(self.most_masked, len(labels))
            self.replacements[None] += int((inputs == labels).sum())
            self.replacements.update(inputs[inputs != labels].tolist())
        elif self.kind in _REGRESSION:
            self.label_sum += float(values["label_ids"][0])
        elif self.kind is records.SQUAD_TRAIN:
            self.labels["no answer" if values["is_impossible"][0] else "answer"] += 1
        elif self.kind in _MULTI_LABEL:
            self.labels.update(np.flatnonzero(values["label_ids"]).tolist())
        elif "label_ids" in values:  # -1 and padding are no labels
            labels = _labels(record)
            self.labels.update(labels[labels >= 0].tolist())


def _tokens(record: Record) -> np.ndarray:
    """The ids of a record without padding."""
    ids = record.values["input_ids"]
    return ids[: np.count_nonzero(record.values.get("input_mask", ids + 1))]


def _masks(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """The masked positions, and the ids to predict at these positions."""
    used = record.values["masked_lm_weights"] > 0
    return record.values["masked_lm_positions"][used], record.values["masked_lm_ids"][used]


def _labels(record: Record) -> np.ndarray:
    labels = record.values["label_ids"]
    return labels[: len(_tokens(record))] if record.kind is records.TOKEN_TAGGING else labels


def summary(found: Statistics, num_files: int, size: int, words: Sequence[str] | None = None) -> list[str]:
    """The lines of a report on files of `size` bytes."""
    rows = {
        "records": f"{_number(found.records, f'{found.kind.name} record')} in {_number(num_files, 'file')}"
        f" ({outputs.human(size)}), all valid"
    }
    unmasked = found.kind in (records.UNMASKED, records.UNMASKED_WORDS)
    if found.tokens:
        length, positions = found.max_seq_length, found.records * found.max_seq_length
        what = "the longest" if "segment_lengths" in found.kind.features else "max_seq_length"
        rows["length"] = f"{found.tokens / found.records:.1f} tokens on average, of {length} ({what})"
        rows["padding"] = (
            f"{1 - found.tokens / positions:.1%} of {positions:,} positions; without padding"
            f" {positions / found.tokens:.2f} times fewer"
        )
    if found.masked:
        rows["masked"] = (
            f"{found.masked / found.records:.2f} tokens per record, {found.masked / max(found.tokens, 1):.1%} of all,"
            f" at most {found.most_masked} in a record"
        )
        if words and _MASK in words:
            masks, kept = found.replacements[words.index(_MASK)], found.replacements[None]
            rows["replaced"] = (
                f"{masks / found.masked:.1%} by {_MASK}, {(found.masked - masks - kept) / found.masked:.1%} by another"
                f" word, {kept / found.masked:.1%} kept"
            )
    if unmasked:
        rows["masked"] = "no masks: drawn in training"
    if "next_sentence_labels" in found.kind.features:
        rows["next"] = f"{found.random_next / found.records:.1%} of the second texts are random"
    if found.kind in _REGRESSION and found.records:
        rows["labels"] = f"{found.label_sum / found.records:.4f} on average"
    elif found.labels:
        rows["labels"] = ", ".join(f"{label}: {count:,}" for label, count in sorted(found.labels.items()))
    column = max(map(len, rows)) + 2
    return [f"{name:<{column}}{text}" for name, text in rows.items()]


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def example(record: Record, words: Sequence[str] | None = None) -> list[str]:
    """A record as text, in two lines: facts about the record, and its tokens without padding.

    The pieces of a word are joined. A masked token is shown as [original>replacement].
    """

    def word(token_id: int) -> str:
        return words[token_id] if words else str(token_id)

    tokens = _tokens(record).tolist()
    originals = {}
    if "masked_lm_positions" in record.values:
        originals = dict(zip(*(values.tolist() for values in _masks(record)), strict=True))
    text, after_special = "", True
    for place, token_id in enumerate(tokens):
        shown = first = word(token_id)
        if place in originals:
            first = word(originals[place])
            shown = f"[{first}>{shown}]"
        # The front of a text may have been cut off within a word; the first piece then keeps its ##.
        goes_on = words and first.startswith("##") and len(first) > 2 and not after_special
        text += shown.removeprefix("##") if goes_on else f" {shown}"
        after_special = first in ("[CLS]", "[SEP]")
    facts = [_number(len(tokens), "token"), *_facts(record)]
    return [f"{record.path}, record {record.number}: {', '.join(facts)}", f"  {text.strip()}"]


def _facts(record: Record) -> list[str]:
    values, facts = record.values, []
    if "masked_lm_positions" in values:
        facts = [f"{len(_masks(record)[0])} masked"]
    elif record.kind in (records.UNMASKED, records.UNMASKED_WORDS):
        facts = ["no masks"]
    elif record.kind is records.SQUAD_TRAIN:
        place = f"answer at {values['start_positions'][0]}-{values['end_positions'][0]}"
        facts = ["no answer" if values["is_impossible"][0] else place]
    elif "label_ids" in values:
        used = _labels(record).tolist()
        facts = [f"label{'' if len(used) == 1 else 's'} {' '.join(f'{label:g}' for label in used)}"]
    if "next_sentence_labels" in values:
        how = "is a random one" if values["next_sentence_labels"][0] else "follows the first"
        facts.append(f"the second text {how}")
    return facts
