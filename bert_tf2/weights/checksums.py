"""Checksums for weights in formats that have none: the SHA-256 of NAME is in NAME.sha256, beside it.

This project writes one with each such file, and compares whatever it reads with the one beside it, if there is one.
`sha256sum -c NAME.sha256` compares them too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator

from bert_tf2.support import files, outputs
from bert_tf2.support.errors import UserError

ENDING = ".sha256"


@contextlib.contextmanager
def complete_or_absent(*paths: str) -> Iterator[list[str]]:
    """Like files.complete_or_absent, and writes the checksum of the last of `paths`, which are the weights."""
    weights = paths[-1]
    written = [*paths, weights + ENDING]
    with files.complete_or_absent(*written) as beside:
        yield beside[:-1]
        with files.open_binary(beside[-1], "wb") as stream:
            stream.write(f"{_sha256(beside[-2])}  {os.path.basename(weights)}\n".encode())
        outputs.refuse_inputs(beside, written)
        if files.exists(weights + ENDING):
            files.remove(weights + ENDING)  # a kill from here on leaves weights without one, not with another's


def check(path: str) -> None:
    """Compares a file with the checksum beside it, if there is one.

    Raises:
      UserError: they do not match.
    """
    if not files.exists(path + ENDING):
        return
    if _sha256(path) not in files.read_text(path + ENDING).lower().split():
        raise UserError(
            f"{path}: does not match its checksum in {path + ENDING}, so one of them is damaged; copy both again (or"
            " remove the checksum, if another program has changed the weights since)"
        )


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with files.open_binary(path) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
