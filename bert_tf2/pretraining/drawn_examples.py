"""The examples of a corpus of ids for the script: drawn as rows of numbers, and written as features.

A pass over the lengths of the sentences draws everything (`make`); the tokens are put in place afterwards, for many
examples at a time (`batches`). All examples are drawn before the first example is written, because they are shuffled. A
large corpus, or many passes over it, has more examples than fit into memory, so most are in a temporary file.
"""

from __future__ import annotations

import os
import struct
import tempfile
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.data.example import Ragged
from bert_tf2.pretraining import masking
from bert_tf2.pretraining.corpus import Corpus
from bert_tf2.pretraining.draws import Draws
from bert_tf2.pretraining.examples import Example, ExampleMaker
from bert_tf2.pretraining.options import PretrainingDataOptions
from bert_tf2.support import errors, files

_FIELDS = np.dtype(
    [
        *((name, np.int64) for name in ("start_a", "start_b")),
        *((name, np.int32) for name in ("length_a", "length_b", "num_masked")),
        ("random_next", np.uint8),
    ]
)
_PACK = struct.Struct("=qqiiiB").pack


class DrawnExamples:
    """Examples, in the order in which they were drawn.

    Attributes:
      order: the order in which the examples are written.
      num_tokens: the number of tokens of all examples, without [CLS] and [SEP].
      num_masked: the number of masked tokens.
    """

    def __init__(self, most_masked: int, folder: str | None = None, most: int = 150_000, at_once: int = 10_000):
        """Begins without examples.

        Args:
          most_masked: the maximum number of masked tokens of an example.
          folder: the folder of the temporary file, unless it is remote.
          most: the number of examples in memory (some 30 MB) before they are moved to the file.
          at_once: the number of examples that are written to the file at a time.
        """
        self.order: Sequence[int] = ()
        self.num_tokens = self.num_masked = 0
        self._most, self._at_once = most, at_once
        self._folder = None if folder is not None and files.is_remote(folder) else folder
        self._file = None
        self._row = np.dtype(
            [*_FIELDS.descr, *((name, np.int32, (most_masked,)) for name in ("masked", "replacements"))]
        )
        self._stored = 0
        self._begin()

    def _begin(self) -> None:
        self._fields = bytearray()
        self._masked, self._replacements, self._ends = array("i"), array("i"), array("q")

    def __len__(self) -> int:
        return self._stored + len(self._ends)

    def add(self, example: Example) -> None:
        """Adds an example of ids."""
        start_a, length_a, start_b, length_b, is_random_next, masked, replacements = example
        self._fields += _PACK(start_a, start_b, length_a, length_b, len(masked), is_random_next)
        self._masked.extend(masked)
        self._replacements.extend(replacements)
        self._ends.append(len(self._masked))
        self.num_tokens += length_a + length_b
        self.num_masked += len(masked)
        if len(self._ends) >= self._most:
            self._store()

    def _store(self) -> None:
        """Moves the examples in memory to the file."""
        with errors.writing(self._folder or tempfile.gettempdir()):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder or None)  # noqa: SIM115
            for first in range(0, len(self._ends), self._at_once):
                numbers = np.arange(first, min(first + self._at_once, len(self._ends)))
                self._file.write(self._in_memory(numbers).tobytes())
            self._file.flush()
        self._stored += len(self._ends)
        self._begin()

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """The examples with these numbers, which count from 0 in the order of drawing: fields of Example.

        The additional field `num_masked` is the number of valid values in `masked` and `replacements`.
        """
        if self._file is None:
            return self._in_memory(numbers)
        if len(self._ends):
            self._store()
        file, size = self._file.fileno(), self._row.itemsize
        return np.frombuffer(b"".join([os.pread(file, size, size * n) for n in numbers.tolist()]), self._row)

    def _in_memory(self, numbers: np.ndarray) -> np.ndarray:
        rows, fields = np.empty(len(numbers), self._row), np.frombuffer(self._fields, _FIELDS)
        for name in fields.dtype.names:
            rows[name] = fields[name][numbers]
        if self._masked:  # empty if no example has a word that is short enough
            begins = np.frombuffer(self._ends, np.int64)[numbers] - rows["num_masked"]
            places = begins[:, None] + np.arange(self._row["masked"].shape[0])
            rows["masked"] = np.frombuffer(self._masked, np.int32).take(places, mode="clip")
            rows["replacements"] = np.frombuffer(self._replacements, np.int32).take(places, mode="clip")
        return rows


def make(
    corpus: Corpus,
    tokenizer: tokenization.FullTokenizer,
    options: PretrainingDataOptions,
    draws: Draws,
    folder: str | None = None,
) -> DrawnExamples:
    """Draws all examples of a corpus. `folder`: see DrawnExamples."""
    examples = DrawnExamples(0 if options.dynamic_masking else options.max_predictions_per_seq, folder)
    words = list(tokenizer.vocab.values())
    for example in ExampleMaker(corpus, array("i", [tokenizer.vocab["[MASK]"]]), words, options, draws).make_all():
        examples.add(example)
    examples.order = array("i", draws.shuffled(len(examples)))
    return examples


def batches(
    examples: DrawnExamples,
    corpus: Corpus,
    tokenizer: tokenization.FullTokenizer,
    options: PretrainingDataOptions,
    rows_per_batch: int,
) -> Iterator[dict[str, np.ndarray | Ragged]]:
    """Yields the features of the records of all examples, in the order in which they are written; see `make`.

    Each feature is an array of integers or float32, [B, max_seq_length], [B, max_predictions_per_seq] or [B, 1], with B
    up to `rows_per_batch`. Examples without masks have the features of `records.UNMASKED`.
    """
    for first in range(0, len(examples), rows_per_batch):
        rows = examples.rows(np.asarray(examples.order[first : first + rows_per_batch]))
        yield _features(rows, corpus, tokenizer, options)


def _features(
    rows: np.ndarray, corpus: Corpus, tokenizer: tokenization.FullTokenizer, options: PretrainingDataOptions
) -> dict[str, np.ndarray | Ragged]:
    """The features of `DrawnExamples.rows`, padded with zeros."""
    length_a, length_b = (rows[name][:, None].astype(np.int64) for name in ("length_a", "length_b"))
    last_a, last = length_a + 1, length_a + length_b + options.num_delimiters - 1  # the places of the [SEP]
    place = np.arange(options.max_seq_length)
    in_b, used = place > last_a, place <= last
    source = np.where(in_b, rows["start_b"][:, None] - last_a - 1, rows["start_a"][:, None] - 1) + place
    input_ids = corpus.tokens.take(source, mode="clip")
    input_ids[:, 0] = tokenizer.vocab["[CLS]"]
    for end in (last_a, last):
        np.put_along_axis(input_ids, end, tokenizer.vocab["[SEP]"], axis=1)
    input_ids *= used
    if options.dynamic_masking:
        lengths = np.hstack([last_a + 1, last - last_a])
        features = {
            "input_ids": Ragged(input_ids, last[:, 0] + 1),
            "segment_lengths": Ragged(lengths, 1 + (lengths[:, 1] > 0)),
        }
    else:
        features = {
            "input_ids": input_ids,
            "input_mask": used.view(np.uint8),
            "segment_ids": (in_b & used).view(np.uint8),
            **_masks(rows, input_ids, length_a),
        }
    if options.objective == "mlm_nsp":
        features["next_sentence_labels"] = rows["random_next"][:, None]
    return features


def _masks(rows: np.ndarray, input_ids: np.ndarray, length_a: np.ndarray) -> dict[str, np.ndarray]:
    """The features of the masks, in the order of their positions; replaces tokens of `input_ids`."""
    used = np.arange(rows["masked"].shape[1]) < rows["num_masked"][:, None]
    positions = rows["masked"].astype(np.int64)
    positions += np.where(positions < length_a, 1, 2)  # [CLS] before A, and [SEP] before B
    # Sorts pairs (position, replacement) as one number each; unused places come last.
    pairs = np.where(used, positions << 32 | (rows["replacements"].astype(np.int64) + 1), np.iinfo(np.int64).max)
    pairs.sort(axis=1)
    positions, replacements = (pairs >> 32) * used, (pairs & 0xFFFFFFFF) - 1
    labels = np.take_along_axis(input_ids, positions, axis=1) * used
    row, column = np.nonzero(used & (replacements != masking.SAME))
    input_ids[row, positions[row, column]] = replacements[row, column]
    return {"masked_lm_positions": positions, "masked_lm_ids": labels, "masked_lm_weights": used.astype(np.float32)}
