"""What a training leaves in its folder, for comparisons."""

from __future__ import annotations

import hashlib
import pathlib


def content(out: pathlib.Path) -> dict[str, str]:
    """A hash of each file that a training leaves, but for its log for TensorBoard."""
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in out.rglob("*")
        if path.is_file() and "tfevents" not in path.name
    }
