"""A lock that allows one training at a time in an output folder."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
from collections.abc import Iterator

import filelock
from absl import logging

from bert_tf2.support import files
from bert_tf2.support.errors import UserError

_FILE = ".training.lock"


@contextlib.contextmanager
def training_in(output_dir: str) -> Iterator[None]:
    """Locks an existing folder for one training; a second one would overwrite and delete its checkpoints.

    The operating system releases the lock when the process ends for any reason, so a killed training leaves nothing to
    clean up. Evaluation and prediction need no lock and may run at the same time. Remote file systems (`gs://`) have no
    locks and are not checked.

    Raises:
      UserError: another training is running in the folder; the message names it.
    """
    if files.is_remote(output_dir):
        yield
        return
    lock = filelock.FileLock(os.path.join(output_dir, _FILE))
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout as error:
        raise UserError(
            f"{output_dir}: another training is running in this folder{_holder(output_dir)}; wait for it, stop it, or"
            " give another --output_dir"
        ) from error
    except (OSError, NotImplementedError) as error:
        logging.warning("%s: cannot be locked (%s); start no second training in it", output_dir, error)
        yield
        return
    try:
        _write_holder(output_dir)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.remove(lock.lock_file)  # while the lock is held, so that no other process's file is removed
        lock.release()


def is_training_elsewhere(output_dir: str) -> bool:
    """Whether another process is training in a folder."""
    if not files.exists(os.path.join(output_dir, _FILE)) or files.is_remote(output_dir):
        return False
    try:
        with filelock.FileLock(os.path.join(output_dir, _FILE), blocking=False):
            return False
    except filelock.Timeout:
        return True
    except (OSError, NotImplementedError):
        return False


def _write_holder(output_dir: str) -> None:
    now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
    with contextlib.suppress(OSError), open(os.path.join(output_dir, _FILE), "w", encoding="utf-8") as stream:
        stream.write(f"process {os.getpid()} on {socket.gethostname()}, since {now}")


def _holder(output_dir: str) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError), open(os.path.join(output_dir, _FILE), encoding="utf-8") as f:
        if text := f.read().strip():
            return f" ({text})"
    return ""
