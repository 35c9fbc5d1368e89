"""Shows what TFRecord files hold, and checks every record: the implementation of inspect_records.py."""

from __future__ import annotations

from collections.abc import Sequence

from bert_tf2 import tokenization
from bert_tf2.pretraining import record_files, record_report
from bert_tf2.pretraining.options import InspectRecordsOptions
from bert_tf2.pretraining.record_checks import Batch, read_all
from bert_tf2.pretraining.record_statistics import Statistics
from bert_tf2.support import files, plots, progress
from bert_tf2.support.errors import UserError
from bert_tf2.vocabulary_checks import check_special_tokens


def run(options: InspectRecordsOptions) -> list[str]:
    """Checks every record of the files, and returns a report; draws the histograms, if --plot is given.

    Raises:
      UserError: see record_files.find and RecordFiles.check; a file is of another kind, a record is damaged or invalid
        (the first one is named), there are no records, the vocabulary cannot be read or is none, or matplotlib is
        missing.
    """
    if options.plot:
        plots.require("--plot")
    found = record_files.find(options.input_file)
    words = None
    if options.vocab_file:
        words = [entry.strip() for entry in tokenization.read_entries(options.vocab_file)]
        check_special_tokens({word: index for index, word in enumerate(words)}, options.vocab_file, ("[CLS]", "[SEP]"))
    statistics, examples = inspect(found.paths, words, options.show)
    found.check({path: statistics.of_files[path] for path in found.paths})
    size = sum(map(files.size, found.paths))
    report = record_report.summary(statistics, len(found.paths), size, words, options.top_k)
    if options.plot:
        _plot(statistics, options.plot)
    return [*report, *examples]


def inspect(paths: Sequence[str], words: Sequence[str] | None = None, show: int = 0) -> tuple[Statistics, list[str]]:
    """Reads and checks all records of some files.

    Args:
      paths: the files.
      words: the entries of the vocabulary.
      show: the number of examples to return.

    Returns:
      What was counted, and the lines that show the first examples.

    Raises:
      UserError: see record_checks.read_all; or the records were made with another vocabulary.
    """
    statistics: Statistics | None = None
    lines: list[str] = []
    left = show
    with progress.Progress("Reading", unit="records") as shown:
        for batch in read_all(paths, len(words) if words is not None else None):
            if statistics is None:
                _check_first_token(batch, words)
                statistics = Statistics(batch.kind, batch.features["input_ids"].shape[1])
            statistics.add(batch)
            lines += _examples(batch, min(left, len(batch)), words)
            left -= min(left, len(batch))
            shown.advance(len(batch))
    return statistics, lines


def _check_first_token(batch: Batch, words: Sequence[str] | None) -> None:
    """Raises UserError if a record of this project begins with another entry than [CLS]: all words would be wrong."""
    first = int(batch.features["input_ids"][0, 0])
    if words is not None and "[CLS]" in words and words[first] != "[CLS]":
        raise UserError(
            f"{batch.path}, record {batch.first}: begins with {first}, which is {words[first]!r} in --vocab_file, and"
            f" [CLS] is {words.index('[CLS]')} there; give the vocabulary that the records were made with"
        )


def _examples(batch: Batch, count: int, words: Sequence[str] | None) -> list[str]:
    return [line for row in range(count) for line in ("", *record_report.example(batch, row, words))]


def _plot(statistics: Statistics, path: str) -> None:
    """Draws the histograms."""
    histograms = record_report.histograms(statistics)
    with plots.drawing(path, 8, 3 * len(histograms)) as figure:
        axes = figure.subplots(len(histograms), squeeze=False)[:, 0]
        for axis, histogram in zip(axes, histograms, strict=True):
            places = range(len(histogram.counts))
            axis.bar(places, histogram.counts)
            axis.set_xticks(places, histogram.names, rotation=45 if len(histogram.names) > 12 else 0)
            axis.set_xlabel(histogram.title)
            axis.set_ylabel("records" if histogram.of_records else "tokens")
