"""Numbers as JSON text with six decimals, many at a time: the text of Python's json module in half the time or less."""

from __future__ import annotations

import json

import numpy as np

_SCALE = 10**6
_NONE = b"\0"  # represents a character that is left out


def _words(texts: list[str]) -> np.ndarray:
    """Four characters of each text as one number."""
    return np.frombuffer("".join(texts).encode("ascii"), np.uint32)


def _trimmed(digits: str) -> str:
    return digits.rstrip("0").ljust(len(digits), "\0")


# A number is four words: the sign and the digits before the point; the point and three decimals; three decimals and a
# comma; a blank. The tables have a second half, of 1000 entries: negative numbers; decimals that no others follow.
_WHOLE = _words([sign + str(number).rjust(3, "\0") for sign in "\0-" for number in range(1000)])
_MIDDLE = _words(
    [f".{number:03}" for number in range(1000)]
    + [f".{number // 100}" + _trimmed(f"{number % 100:02}") for number in range(1000)]
)
_LAST = _words([_trimmed(f"{number:03}") + "," for number in range(1000)])
_BLANK = _words([" \0\0\0"])[0]


def json_lists(values: np.ndarray) -> list[str]:
    """Returns the JSON text of each row, rounded to six decimals: json.dumps([round(value, 6) for value in row]).

    Args:
      values: float32 [rows, columns], one column or more.
    """
    # Exact: a float32 has 24 bits and the odd part of 10^6 has 14, which together fit into a double.
    scaled = np.rint(values.astype(np.float64) * _SCALE)
    size = np.abs(scaled)
    # Python writes smaller numbers with an exponent. Such numbers and larger numbers are rare.
    simple = ((size >= 100) & (size < 1000 * _SCALE)).all(axis=1)
    texts = iter(_plain(scaled[simple], size[simple]))
    return [
        next(texts) if plain else json.dumps((row / _SCALE).tolist())
        for row, plain in zip(scaled, simple, strict=True)
    ]  # fmt: skip


def _plain(scaled: np.ndarray, size: np.ndarray) -> list[str]:
    """The text of rows of whole numbers, in millionths; their size, without sign, is from 100 to 10^9."""
    thousands, low = np.divmod(size.astype(np.uint32), 1000)
    units, middle = np.divmod(thousands, 1000)
    words = np.full((*size.shape, 4), _BLANK)
    words[..., 0] = _WHOLE[units + 1000 * (scaled < 0)]
    words[..., 1] = _MIDDLE[middle + 1000 * (low == 0)]
    words[..., 2] = _LAST[low]
    return [f"[{row.tobytes().translate(None, _NONE)[:-2].decode('ascii')}]" for row in words]
