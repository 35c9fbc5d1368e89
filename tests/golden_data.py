"""The data that google-research/bert wrote: all of it, or the part in `golden`."""

import functools
import hashlib
import json
import re
import struct

import pytest
import tensorflow as tf
from small_models import ANSWERS

from bert_tf2.data import tfrecords

GOLDEN = ANSWERS / "data"


@functools.cache
def cases(kind, quick=".*"):
    """The cases of a kind, as test parameters; those whose name has no match of `quick` are slow."""
    found = json.loads((GOLDEN / "cases.json").read_text(encoding="utf-8"))["cases"]
    found = [case for case in found if case["kind"] == kind]
    marks = {case["name"]: () if re.search(quick, case["name"]) else pytest.mark.slow for case in found}
    return [pytest.param(case, id=case["name"], marks=marks[case["name"]]) for case in found]


def digest(path):
    """The number and hash of the records of a file, as under `outputs` in a case; the order of features is free."""
    found, count = hashlib.sha256(), 0
    for block in tfrecords.read_blocks(str(path)):
        for row in range(len(block)):
            record = tf.train.Example.FromString(block.record(row)).SerializeToString(deterministic=True)
            found.update(struct.pack("<Q", len(record)) + record)
            count += 1
    return {"digest": found.hexdigest(), "count": count}
