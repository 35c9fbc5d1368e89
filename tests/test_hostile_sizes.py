"""Records that state huge sizes: refused in seconds, and in little memory."""

from __future__ import annotations

import contextlib
import gzip
import pathlib
import resource
import time

import pytest
from mutations import framed, record_of
from refused import message_of

from bert_tf2.data import record_index, record_order, records

MEGABYTE = 1 << 20


@contextlib.contextmanager
def bounded(megabytes: int, seconds: float = 5.0):
    """Allows so much more memory than there is now: beyond it, whatever asks for memory fails with MemoryError."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    begun = time.process_time()
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + megabytes * MEGABYTE, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.process_time() - begun < seconds


def refusal(call, *arguments, megabytes: int = 300) -> str:
    with bounded(megabytes):
        return message_of(call, *arguments)


def test_the_bound_is_one():
    with pytest.raises(MemoryError), bounded(100):
        bytearray(300 * MEGABYTE)


@pytest.mark.parametrize("length", [2**60, 2**64 - 1, 2**63, 2**31 - 1, 2**27])
@pytest.mark.parametrize("packed", [False, True])
def test_a_record_that_claims_to_be_huge(length, packed, tmp_path):
    path = tmp_path / ("records.gz" if packed else "records")
    content = framed(b"good") + record_of(length)
    path.write_bytes(gzip.compress(content) if packed else content)
    message = refusal(record_index.read_index, [str(path)])
    problem = "the file is truncated" if length == 2**27 else "claims to have"
    assert f"record 2: {problem}" in message
    path.write_bytes(gzip.compress(record_of(length)) if packed else record_of(length))
    # TensorFlow's reader would end the process.
    assert f"record 1: {problem}" in refusal(record_order.read_records, [str(path)], records.PRETRAINING, {}, 2)
    assert f"record 1: {problem}" in str(records.find_fault([str(path)], records.PRETRAINING, {}))
