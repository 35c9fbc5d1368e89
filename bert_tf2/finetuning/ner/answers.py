"""Answers of a tagger: the predictions of all windows as one tag per word, and as one more column of the input."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from bert_tf2.finetuning.ner.examples import BLANKS, OUTSIDE, NerSentence, parse_row, starts_document
from bert_tf2.finetuning.ner.features import InputFeatures
from bert_tf2.support import files
from bert_tf2.support.errors import UserError


def assemble_tags(
    sentences: Sequence[NerSentence],
    features: Sequence[InputFeatures],
    predicted_label_ids: Iterable[Sequence[int]],
    label_list: Sequence[str],
) -> list[list[str]]:
    """Merges the predictions of all windows: one tag for each word, in the order of the file.

    Args:
      sentences: the sentences.
      features: all of their windows.
      predicted_label_ids: for each window, in the same order, the label id of each position ([max_seq_length], or as
        long as `input_ids`).
      label_list: the labels, by id.

    Raises:
      ValueError: the number of predictions is not that of the windows, or the windows are of other sentences.
    """
    tags: list[dict[int, str]] = [{} for _ in sentences]
    for window, label_ids in zip(features, predicted_label_ids, strict=True):
        for word, position in window.answers:
            tags[window.sentence][word] = label_list[int(label_ids[position])]
    for index, (sentence, found) in enumerate(zip(sentences, tags, strict=True)):
        if len(found) != len(sentence.words):
            raise ValueError(f"sentence {index}: {len(sentence.words)} words, but the windows answer for {len(found)}")
    return [[found[word] for word in range(len(found))] for found in tags]


def write_predictions(
    input_file: str, output_file: str, sentences: Sequence[NerSentence], tags: Sequence[Sequence[str]]
) -> None:
    """Writes a copy of the input with the predicted tag as an additional last column; complete or not at all.

    Comments, blank lines, line ends and the separators of the columns are kept. A `-DOCSTART-` line with as many
    columns as the words gets an O, because `conlleval` needs the same number of columns in all lines.

    Args:
      input_file: the file from which `sentences` were read.
      output_file: may be the same file.
      sentences: the result of `read_conll`.
      tags: one list for each sentence, with one tag for each word.

    Raises:
      UserError: `input_file` is missing or has other words now, or the output cannot be written.
      ValueError: the shape of `tags` is not that of `sentences`.
    """
    text = files.read_text(input_file)
    lines = text.split("\n")
    read = text.removeprefix("\ufeff").replace("\r", "").split("\n")  # as read_conll reads them
    rows = list(itertools.starmap(parse_row, enumerate(read, 1)))
    added: dict[int, str] = {}
    for sentence, predicted in zip(sentences, tags, strict=True):
        for word, number, tag in zip(sentence.words, sentence.rows, predicted, strict=True):
            if number > len(rows) or word not in rows[number - 1].columns:
                raise UserError(f"{input_file}, line {number}: the word {word!r} is gone; read the file again")
            added[number] = tag
    widths = {len(rows[number - 1].columns) for number in added}
    added.update({row.number: OUTSIDE for row in rows if starts_document(row) and len(row.columns) in widths})
    written = (_with_column(line, added[n]) if n in added else line for n, line in enumerate(lines, 1))
    files.write_text(output_file, "\n".join(written))


def _with_column(line: str, tag: str) -> str:
    content = line.rstrip(BLANKS + "\r")
    separator = "\t" if "\t" in content else " "
    return f"{content}{separator}{tag}" + ("\r" if line.endswith("\r") else "")
