"""The data that google-research/bert wrote, if they are next to this checkout."""

import functools
import importlib.util
import json

import pytest
from small_models import SHARED

GOLDEN = SHARED / "golden" / "data"
needs_golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"no golden data in {GOLDEN}")


@functools.cache
def cases(kind):
    """The cases of a kind, as test parameters; a single skipped case if there are no data."""
    path = GOLDEN / "cases.json"
    if not path.exists():
        return [pytest.param(None, marks=needs_golden)]
    found = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["name"]) for case in found if case["kind"] == kind]


@functools.cache
def _digests():
    spec = importlib.util.spec_from_file_location("tfrecord_digest", GOLDEN / "tfrecord_digest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digest(path):
    """The number and hash of the records of a file, as under `outputs` in a case."""
    found = _digests().digest(str(path))
    return {"digest": found["digest"], "count": found["count"]}
