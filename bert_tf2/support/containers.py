"""The rows of a user's data in Python: lists, arrays, columns and tables of any library, and data sets.

All code that takes texts or labels reads them here, so that an input has the same answer everywhere. Libraries are
recognized by their methods, and no library is imported: `to_pylist` of pyarrow, `to_list` of pandas, polars and
RaggedTensor, `tolist` of numpy, `numpy` of TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_tf2.support.errors import UserError, and_more

Text = str | tuple[str, ...]  # more than two texts only where a caller allows them

TWO_COLUMNS = "two columns of texts, where single texts are read; give one column, or the texts of both in one"
_SURROGATES = re.compile("[\ud800-\udfff]")
_READERS = ("to_pylist", "to_list", "tolist")


def texts(given: Any, name: str = "texts", pairs: bool = True, most: int = 2) -> tuple[list[Text], bool]:
    """Returns the texts, or pairs of texts, of any container, and whether `given` was a single text or pair.

    Args:
      given: a single text or pair; or a list, tuple, array, column or table of texts or pairs, or a tuple or dict of
        two columns; or a tf.data.Dataset or PyDataset, whose batches are read to the end; or an iterator of texts.
      name: the name of the argument, for messages.
      pairs: whether there may be pairs; if not, `given` may be a tuple of texts, like a list.
      most: the maximum number of texts in a row, if there may be pairs.

    Raises:
      UserError: a row is missing, or neither a text nor a pair.
    """
    most = most if pairs else 1
    if isinstance(given, str):
        return [given], True
    if is_dataset(given):
        return [row for batch in batches(given, name) for row in texts(batch, name, pairs, most)[0]], False
    if isinstance(given, tuple) and not pairs and len(given) == 2 and all(map(_is_column, given)):
        raise UserError(f"{name}: {TWO_COLUMNS}")
    if isinstance(given, tuple) and pairs:
        kind = _kind_of_tuple(given, name, most)
        if kind == "columns":
            return _texts([*zip(*_columns([*enumerate(given)], name), strict=True)], name, most), False
        if kind == "alone":
            return _texts([given], name, most), True
    if (found := table(given)) is not None:
        columns = _columns(found, name) if len(found) <= most else []
        if not columns:
            names = and_more([repr(column) for column, _ in found], 6) or "no columns"
            pair = f", or two columns for pairs: {name}[[..., ...]]" if pairs else ""
            raise UserError(f"{name}: a table with {names}; give its column of texts: {name}[...]{pair}")
        return _texts(columns[0] if len(columns) == 1 else [*zip(*columns, strict=True)], name, most), False
    rows = values(given, name)
    if not isinstance(given, list | tuple):  # the rows of an array [N, 2] are lists
        rows = [tuple(row) if isinstance(row, list) else row for row in rows]
    elif 1 <= len(rows) <= most and all(getattr(row, "dtype", None) == "string" and len(row.shape) for row in rows):
        return texts(tuple(rows) if pairs else rows[0], name, pairs, most)  # columns of TensorFlow
    return _texts(rows, name, most), False


def _is_column(part: Any) -> bool:
    return not isinstance(part, str | bytes | tuple) and _has_rows(part)


def _kind_of_tuple(given: tuple, name: str, most: int) -> str:
    """Whether a tuple is a single text or pair, "alone", has up to `most` "columns", or is like a list of "rows"."""
    if not 1 <= len(given) <= most:
        return "rows"
    if all(isinstance(part, str | bytes) or getattr(part, "shape", None) == () for part in given):
        return "alone"
    sizes = [len(part) if isinstance(part, tuple) else None for part in given]
    if None in sizes:
        return "rows" if any(isinstance(part, str | bytes | tuple) or is_missing(part) for part in given) else "columns"
    are_alike = len(given) > 1 and len({*sizes}) == 1
    if are_alike and 1 <= sizes[0] <= most:
        raise UserError(f"{name}: two tuples or more may be rows, or columns; give [(a, b), ...] or ([...], [...])")
    return "columns" if are_alike else "rows"


def _columns(named: Sequence[tuple[Any, Any]], name: str) -> list[list]:
    columns = [values(column, name) for _, column in named]
    sizes = [*map(len, columns)]
    if wrong := [size for size in sizes if size != sizes[0]]:
        raise UserError(f"{name}: {sizes[0]} first texts of pairs, but {wrong[0]} second texts")
    # A column of TensorFlow or numpy may be [N, 1].
    return [[row[0] if isinstance(row, list) and len(row) == 1 else row for row in column] for column in columns]


def _texts(rows: list, name: str, most: int) -> list[Text]:
    """Returns rows as Python's texts and pairs. Raises UserError for a row that is missing or wrong."""
    rows = [tuple(row.tolist()) if hasattr(row, "tolist") and getattr(row, "ndim", 0) == 1 else row for row in rows]
    parts = [row if isinstance(row, tuple) else (row,) for row in rows]
    missing = [number for number, row in enumerate(parts) if any(map(is_missing, row))]
    refuse(missing, name, f"of {len(rows)} texts are missing", "leave these rows out")
    return [_text(number, row, part, most) for number, (row, part) in enumerate(zip(rows, parts, strict=True), 1)]


def _text(number: int, row: Any, parts: tuple, most: int) -> Text:
    parts = tuple(part.numpy() if hasattr(part, "numpy") else part for part in parts)
    try:
        parts = tuple(part.decode() if isinstance(part, bytes) else part for part in parts)
    except UnicodeDecodeError as error:
        raise UserError(f"text {number}: {row!r:.60} is not UTF-8; read the file in its own encoding") from error
    if not 1 <= len(parts) <= most or not all(isinstance(part, str) for part in parts):
        wanted = "neither a text nor a pair of texts, which is a tuple" if most > 1 else "not a text"
        raise UserError(f"text {number}: {row!r:.60} is {wanted}")
    return parts[0] if len(parts) == 1 else parts


def values(column: Any, name: str) -> list:
    """The Python values of the rows of a column of any library. Raises UserError if `column` is not a column."""
    if isinstance(column, set | frozenset):
        raise UserError(f"{name}: a set has no order, so its rows have no places; give a list")
    found = column = column.toarray() if hasattr(column, "toarray") else column  # a sparse matrix of scipy
    if not isinstance(column, list | tuple | str | bytes | Mapping):
        reader = next((getattr(column, each) for each in _READERS if callable(getattr(column, each, None))), None)
        if reader is None and hasattr(column, "numpy"):
            array = column.numpy()  # bytes, if the tensor is a single string
            reader = getattr(array, "tolist", lambda: array)
        found = reader() if reader else column
        if reader and not isinstance(found, list):
            raise UserError(f"{name}: a single value, {found!r:.60}, of no dimension; give a list of values")
    try:
        if isinstance(found, str | bytes | Mapping):
            raise TypeError
        return [*found]
    except TypeError as error:
        shown = " ".join(repr(column).split())
        raise UserError(f"{name}={shown:.60}: must be a text, or several") from error


def table(given: Any) -> list[tuple[str, Any]] | None:
    """The names and columns of a table of pandas, polars, pyarrow or `datasets`, or of a dict; None for anything else.

    A loop over a table of pandas gives the names of its columns, which are never rows.
    """
    if isinstance(given, Mapping):
        are_columns = given and not any(isinstance(one, str | bytes) or not _has_rows(one) for one in given.values())
        return [(str(name), column) for name, column in given.items()] if are_columns else None
    if hasattr(given, "collect_schema") and hasattr(given, "collect") and not hasattr(given, "get_columns"):
        raise UserError("a LazyFrame of polars has no rows yet; give table.collect()")
    if hasattr(given, "column_names"):  # pyarrow, datasets
        columns = given.columns if hasattr(given, "columns") else [given[name] for name in given.column_names]
        return [*zip(given.column_names, columns, strict=True)]
    if hasattr(given, "get_columns"):  # polars
        return [(column.name, column) for column in given.get_columns()]
    if not (hasattr(given, "columns") and hasattr(given, "to_numpy")):
        return None
    if hasattr(given, "iloc"):  # pandas, where two columns may have one name
        return [(str(name), given.iloc[:, place]) for place, name in enumerate(given.columns)]
    return [*zip(map(str, given.columns), given.to_numpy().T, strict=True)]


def _has_rows(column: Any) -> bool:
    return hasattr(column, "__len__") or bool(getattr(column, "shape", None))


def is_missing(value: Any) -> bool:
    """Whether a cell of a table is empty: None, nan, or NA and NaT of pandas."""
    is_nan = isinstance(value, float) and value != value
    return is_nan or value is None or type(value).__name__ in ("NAType", "NaTType")


def refuse(wrong: Sequence[int], name: str, problem: str, cure: str) -> None:
    """Raises UserError with the number of `wrong` rows, which count from 0, and the first of them, if there are any."""
    if wrong:
        rows = and_more([number + 1 for number in wrong], 5)
        raise UserError(f"{name}: {len(wrong)} {problem} (row{'s' * (len(wrong) > 1)} {rows}); {cure}")


def encodable(text: str) -> str:
    """The text with U+10FFFF in place of half characters, which UTF-8 cannot encode; no vocabulary has U+10FFFF."""
    return text if text.isascii() else _SURROGATES.sub("\U0010ffff", text)


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded in UTF-8: a text from JSON may contain a lone surrogate."""
    return not _SURROGATES.search(text)


def is_dataset(given: Any) -> bool:
    """Whether `given` is a tf.data.Dataset or a keras.utils.PyDataset."""
    return hasattr(given, "element_spec") or hasattr(given, "num_batches")


def batches(data: Any, name: str) -> Iterator[Any]:
    """Yields x of each batch of a tf.data.Dataset or a keras.utils.PyDataset. Raises UserError if it has no end."""
    if hasattr(data, "element_spec"):
        if int(data.cardinality()) == -1:
            raise UserError(f"{name}: an endless dataset; give data.take(N)")
        elements = iter(data)
    else:
        if data.num_batches is None:
            raise UserError(f"{name}: a PyDataset without an end; give the texts of some batches as a list")
        elements = (data[number] for number in range(data.num_batches))
    for batch in elements:
        x = parts_of(batch)[0]
        yield [x] if getattr(x, "shape", None) == () else x


def parts_of(batch: Any) -> tuple:
    """Returns x, y and sample_weight of a batch, as far as it has them; a list of texts or pairs is x."""
    if isinstance(batch, tuple):
        return batch
    is_x = not isinstance(batch, list) or not batch or isinstance(batch[0], str | bytes | tuple)
    return (batch,) if is_x else tuple(batch)
