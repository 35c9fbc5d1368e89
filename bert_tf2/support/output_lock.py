"""A lock that allows one run of a kind at a time in an output folder: one training, or one run that makes shards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import filelock
from absl import logging

from bert_tf2.support import files, outputs
from bert_tf2.support.errors import UserError

_SECONDS = 0.5  # is_training_elsewhere holds the lock for an instant, which must not refuse a training


@contextlib.contextmanager
def locked(folder: str, run: str = "training") -> Iterator[None]:
    """Makes a folder and locks it for one `run`; a second run would overwrite and delete the files of the first.

    The operating system releases the lock when the process ends for any reason. Evaluation and prediction need no lock.
    Remote file systems (`gs://`) have no locks and are not checked. Raises UserError if another run has the lock.
    """
    with files.made_directory(folder), contextlib.nullcontext() if files.is_remote(folder) else _lock(folder, run):
        yield


@contextlib.contextmanager
def _lock(folder: str, run: str) -> Iterator[None]:
    lock = filelock.FileLock(os.path.join(folder, f".{run.replace(' ', '_')}.lock"))
    try:
        lock.acquire(timeout=_SECONDS, poll_interval=0.05)
    except filelock.Timeout as error:
        problem = f"another {run} is running in this folder; wait for it, stop it, or write to another folder"
        raise UserError(f"{folder}: {problem}") from error
    except (OSError, NotImplementedError) as error:
        logging.warning("%s: cannot be locked (%s); start no second run in it", folder, error)
    if lock.is_locked:
        outputs.begun.add(lock.lock_file)
    try:
        yield
    finally:
        outputs.begun.discard(lock.lock_file)
        if lock.is_locked:
            with contextlib.suppress(OSError):
                os.unlink(lock.lock_file)
        lock.release()


def is_training_elsewhere(output_dir: str) -> bool:
    """Whether another process is training in a folder."""
    path = os.path.join(output_dir, ".training.lock")
    if not os.path.exists(path):  # a remote folder has no lock
        return False
    try:
        with filelock.FileLock(path, blocking=False):
            return False
    except (OSError, NotImplementedError) as error:
        return isinstance(error, filelock.Timeout)
