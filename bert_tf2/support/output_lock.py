"""Locks that allow one training, or one run that makes shards, at a time in an output folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import filelock
from absl import logging

from bert_tf2.support import files
from bert_tf2.support.errors import UserError

_FILE = ".training.lock"
_SHARDS_FILE = ".shards.lock"
_SECONDS = 0.5  # is_training_elsewhere holds the lock for an instant, which must not refuse a training


def training_in(output_dir: str) -> contextlib.AbstractContextManager[None]:
    """Locks an existing folder for one training; a second one would overwrite and delete its checkpoints.

    The operating system releases the lock when the process ends for any reason. Evaluation and prediction need no lock.
    Remote file systems (`gs://`) have no locks and are not checked.
    """
    return _locked(output_dir, _FILE, "another training is running in this folder", "--output_dir")


def making_shards_in(folder: str) -> contextlib.AbstractContextManager[None]:
    """The same for a run that makes the shards of a corpus: a second one would remove its partial files."""
    return _locked(folder or ".", _SHARDS_FILE, "another run makes shards in this folder", "--output_file")


@contextlib.contextmanager
def _locked(folder: str, name: str, problem: str, flag: str) -> Iterator[None]:
    if files.is_remote(folder):
        yield
        return
    lock = filelock.FileLock(os.path.join(folder, name))
    try:
        lock.acquire(timeout=_SECONDS, poll_interval=0.05)
    except filelock.Timeout as error:
        raise UserError(f"{folder}: {problem}; wait for it, stop it, or give another {flag}") from error
    except (OSError, NotImplementedError) as error:
        logging.warning("%s: cannot be locked (%s); start no second run in it", folder, error)
    place = place_of(folder)
    try:
        yield
    finally:
        if lock.is_locked and place_of(folder) == place:  # else it was moved, and the file is that of another run
            with contextlib.suppress(OSError):
                os.unlink(lock.lock_file)
        lock.release()


def place_of(folder: str) -> tuple[int, int] | None:
    """What tells a folder from another one of the same name; None if there is none, or it is remote."""
    with contextlib.suppress(OSError):
        found = os.stat(folder)
        return found.st_dev, found.st_ino
    return None


def is_training_elsewhere(output_dir: str) -> bool:
    """Whether another process is training in a folder."""
    path = os.path.join(output_dir, _FILE)
    if not os.path.exists(path):  # a remote folder has none
        return False
    try:
        with filelock.FileLock(path, blocking=False):
            return False
    except (OSError, NotImplementedError) as error:
        return isinstance(error, filelock.Timeout)
