"""A collection of examples as rows of numbers, in memory and in a temporary file.

All examples are drawn before the first one is written, because they are shuffled. A large corpus, or many passes over
it, has more of them than should be in memory.
"""

from __future__ import annotations

import os
import struct
import tempfile
from array import array
from collections.abc import Sequence

import numpy as np

from bert_tf2.support import environment, files
from bert_tf2.support.errors import UserError

_MOST = 150_000  # examples in memory, some 30 MB
_ROWS = 10_000  # written to the file at a time
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
      truncated: the number of tokens that were removed from pairs that were too long.
      num_tokens: the number of tokens of all examples, without [CLS] and [SEP].
      num_masked: the number of masked tokens.
    """

    def __init__(self, most_masked: int, folder: str | None = None):
        """Creates an empty collection.

        Args:
          most_masked: an example has at most this many masked tokens.
          folder: where the temporary file is; the system's folder for such files by default, or if it is remote.
        """
        self.order: Sequence[int] = ()
        self.truncated = self.num_tokens = self.num_masked = 0
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

    def add(
        self,
        start_a: int,
        length_a: int,
        start_b: int,
        length_b: int,
        is_random_next: bool,
        num_truncated: int,
        masked: Sequence[int] = (),
        replacements: Sequence[int] = (),
    ) -> None:
        """Adds an example of ids; see `examples.AddExample`.

        Raises:
          UserError: the temporary file cannot be written.
        """
        self._fields += _PACK(start_a, start_b, length_a, length_b, len(masked), is_random_next)
        self._masked.extend(masked)
        self._replacements.extend(replacements)
        self._ends.append(len(self._masked))
        self.truncated += num_truncated
        self.num_tokens += length_a + length_b
        self.num_masked += len(masked)
        if len(self._ends) >= _MOST:
            self._store()

    def _store(self) -> None:
        """Moves the examples in memory to the file."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0, dir=self._folder or None)  # noqa: SIM115
            for first in range(0, len(self._ends), _ROWS):
                numbers = np.arange(first, min(first + _ROWS, len(self._ends)))
                left = memoryview(self._in_memory(numbers)).cast("B")
                while left:
                    left = left[self._file.write(left) :]
        except OSError as error:
            place = self._folder or tempfile.gettempdir()
            line = environment.explain_writing(error, [place], [place])
            if line is None:
                raise
            raise UserError(line) from error
        self._stored += len(self._ends)
        self._begin()

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """The examples with these numbers, which count from 0 in the order of drawing.

        Returns:
          Rows with the arguments of `add` but for `num_truncated`, and `num_masked`; behind the masked tokens, `masked`
          and `replacements` have any numbers.
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
        if self._masked:  # otherwise no example has a word short enough
            begins = np.frombuffer(self._ends, np.int64)[numbers] - rows["num_masked"]
            places = begins[:, None] + np.arange(self._row["masked"].shape[0])
            rows["masked"] = np.frombuffer(self._masked, np.int32).take(places, mode="clip")
            rows["replacements"] = np.frombuffer(self._replacements, np.int32).take(places, mode="clip")
        return rows
