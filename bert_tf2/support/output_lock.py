"""A lock that one run of a kind has in an output folder: a training, an evaluation, or a run that makes shards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import filelock
from absl import logging

from bert_tf2.support import files, outputs
from bert_tf2.support.errors import UserError


@contextlib.contextmanager
def locked(folder: str, run: str = "training") -> Iterator[None]:
    """Makes a folder and locks it for one `run`; a second run would overwrite and delete the files of the first.

    The operating system releases the lock when the process ends for any reason. Raises UserError if another run has the
    lock.
    """
    with files.made_directory(folder), first(folder, run) as is_first:
        if not is_first:
            problem = f"another {run} is running in this folder; wait for it, stop it, or write to another folder"
            raise UserError(f"{folder}: {problem}")
        yield


@contextlib.contextmanager
def first(folder: str, run: str) -> Iterator[bool]:
    """A context with whether no other `run` uses an existing folder; if so, the folder is locked until the end.

    Remote file systems (`gs://`) have no locks and are not checked.
    """
    if files.is_remote(folder):
        yield True
        return
    lock = filelock.FileLock(os.path.join(folder, f".{run.replace(' ', '_')}.lock"), blocking=False)
    is_first = True
    try:
        lock.acquire()
    except filelock.Timeout:
        is_first = False
    except (OSError, NotImplementedError) as error:
        logging.warning("%s: cannot be locked (%s); start no second run in it", folder, error)
    if lock.is_locked:
        outputs.begun.add(lock.lock_file)
    try:
        yield is_first
    finally:
        outputs.begun.discard(lock.lock_file)
        if lock.is_locked:
            with contextlib.suppress(OSError):
                os.unlink(lock.lock_file)
        lock.release()
