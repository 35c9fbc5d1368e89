"""Damaged and invented contents of files, for property tests: their readers may refuse them, and must not crash."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import operator
import struct
from collections.abc import Callable
from typing import Any

import google_crc32c
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert_tf2.data.tfrecords import mask
from bert_tf2.support.errors import UserError

SOAK = [pytest.mark.slow, pytest.mark.soak]


def lengths(short: int, long: int) -> pytest.MarkDecorator:
    """Runs a test with few examples in `make test`, and with many in `make soak`."""
    long_one = pytest.param(long, id="long", marks=SOAK)
    return pytest.mark.parametrize("examples", [pytest.param(short, id="short"), long_one])


def refuses_or_reads(content: st.SearchStrategy, read: Callable[[Any], object], examples: int) -> None:
    """Checks that `read` returns, or raises the error of this project, for so many contents."""
    how = {"derandomize": True, "database": None, "deadline": None, "suppress_health_check": [*HealthCheck]}

    @settings(max_examples=examples, **how)
    @given(content)
    def holds(drawn):
        with contextlib.suppress(UserError):
            read(drawn)

    holds()


# Bytes

# Numbers at the edges of what lengths and offsets are stored in.
_EDGES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**60, 2**63 - 1, 2**64 - 1]


# Each changes up to `n` bytes at a place; what else is chosen depends on `k`. The first flips bits.
_CHANGES = (
    lambda data, at, n, k: data[:at] + bytes(byte ^ (1 << k % 8) for byte in data[at : at + n]) + data[at + n :],
    lambda data, at, n, k: data[:at] + data[at + n :],  # cuts out
    lambda data, at, n, k: data[:at],
    lambda data, at, n, k: data[:at] + bytes((k * place + n) % 256 for place in range(n)) + data[at:],
    lambda data, at, n, k: data[: at + n] + data[at : at + n] * (k % 3 + 1) + data[at + n :],  # doubles
    lambda data, at, n, k: data[:at] + _EDGES[k % len(_EDGES)].to_bytes(8, "little")[: 1 << n % 4] + data[at + n :],
)


@st.composite
def damaged(draw, valid: bytes) -> bytes:
    """Valid bytes with a few places flipped, cut out, inserted, doubled, exchanged or set; sometimes random bytes."""
    if draw(st.integers(0, 9)) == 9:
        return draw(st.binary(max_size=200))
    data = valid
    for _ in range(draw(st.integers(1, 3))):
        change = draw(st.sampled_from(_CHANGES))
        at, n, k = draw(st.integers(0, max(len(data) - 1, 0))), draw(st.integers(1, 24)), draw(st.integers(0, 255))
        data = change(data, at, n, k)
    return data


# JSON

_VALUES = st.sampled_from(
    [
        *(None, True, False, 0, -1, 1, 7, 0.5, -0.0, 2**31, 2**63, 2**64, 10**400, 1e308, float("nan"), float("inf")),
        *("", "0", "text", "two\nlines", "\0", "\ud800", "\U0001f600", "../x", "ß" * 300),
        *([], {}, [[]], ["a"], [1, 2], [None], {"a": 1}, {"": {}}, [{"id": []}], ["\ud800"] * 3, [[], {"a": [0.5]}]),
    ]
)


def _places(node: Any, path: tuple = ()) -> list[tuple]:
    keys = node.keys() if isinstance(node, dict) else range(min(len(node), 4)) if isinstance(node, list) else ()
    return [path, *(place for key in keys for place in _places(node[key], (*path, key)))]


@st.composite
def altered(draw, valid: Any) -> Any:
    """A valid JSON content in which a few values are others, of any type, or missing."""
    whole = [copy.deepcopy(valid)]
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(_places(whole)[1:]))
        node = functools.reduce(operator.getitem, path, whole)
        if path and draw(st.integers(0, 3)) == 0:
            del node[last]
        else:
            node[last] = copy.deepcopy(draw(_VALUES))
    return whole[0]


def damaged_json(valid: Any) -> st.SearchStrategy[bytes]:
    """The bytes of a JSON file: other content, or a damaged text."""
    return altered(valid).map(lambda content: json.dumps(content).encode()) | damaged(json.dumps(valid).encode())


# Records


def framed(*contents: bytes) -> bytes:
    """A TFRecord file whose checksums are right."""
    whole = b""
    for content in contents:
        length = struct.pack("<Q", len(content))
        sums = [struct.pack("<I", mask(google_crc32c.value(part))) for part in (length, content)]
        whole += length + sums[0] + content + sums[1]
    return whole


def damaged_records(valid: bytes) -> st.SearchStrategy[bytes]:
    """A file of records: damaged, or with right checksums around damaged content."""
    return damaged(framed(valid, valid, valid)) | damaged(valid).map(lambda content: framed(valid, content, valid))


def record_of(length: int) -> bytes:
    """The beginning of a record that claims so many bytes; the checksum of the length is right."""
    header = struct.pack("<Q", length)
    return header + struct.pack("<I", mask(google_crc32c.value(header))) + bytes(50)
