"""Weights in a .zip file, local or at an address, such as Google's archives: unpacked once, into a cache.

The cache is KERAS_HOME/bert_tf2, by default ~/.keras/bert_tf2. A copy appears there when it is complete, and is
replaced when a local archive has changed. A downloaded archive is removed after it is unpacked.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib

from absl import logging

from bert_tf2.support import errors, files, outputs
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.progress import Progress

_WEIGHTS = re.compile(r"[^.].*\.(index|safetensors|bin|h5|keras)|saved_model\.pb")
_CHUNK = 1 << 20
_STATE = "archive.txt"  # the file in a copy that identifies the archive
_SECONDS = 60  # the time to wait for a server


def unpacked(path: str) -> str:
    """Returns the folder with the weights of a .zip file, local or at an address (http, https); logs a copy's place.

    Raises UserError if the file does not exist, is damaged or cannot be fetched, or does not hold one model.
    """
    is_local = not re.match(r"https?://", path)
    name = os.path.abspath(path) if is_local else path
    state = key = name.encode(errors="backslashreplace").decode()  # a name on Linux need not be valid UTF-8
    if is_local:
        files.check_there(path)
        found = os.stat(path)
        state = f"{key} {found.st_size} {found.st_mtime_ns}"
    home = os.path.expanduser("~")
    home = os.path.join(home if os.access(home, os.W_OK) else tempfile.gettempdir(), ".keras")  # Keras' own rule
    home = os.environ.get("KERAS_HOME") or home
    place = os.path.join(home, "bert_tf2", hashlib.sha256(key.encode()).hexdigest()[:16])
    content = os.path.join(place, "content")
    if not _is_copy(place, state):
        _make_copy(path, place, state, is_local)
        logging.warning("%s: unpacked into %s, where it stays; to remove it: rm -r %s", path, content, place)
    folders = [*_folders_of_weights(content)]
    if not folders:
        raise UserError(f"{path}: no checkpoint is in this archive")
    if len(folders) > 1:
        raise UserError(f"{path}: holds several models; give the folder of one of them: {and_more(folders)}")
    return folders[0]


def _is_copy(place: str, state: str) -> bool:
    path = os.path.join(place, _STATE)
    return os.path.exists(path) and files.read_text(path) == state


def _make_copy(path: str, place: str, state: str, is_local: bool) -> None:
    with files.folder_beside(place) as beside, errors.writing(beside):
        archive = path if is_local else os.path.join(beside, "archive.zip")
        if not is_local:
            _download(path, archive)
        _unpack(path, archive, os.path.join(beside, "content"))
        if not is_local:
            os.remove(archive)
        files.write_text(os.path.join(beside, _STATE), state)
        shutil.rmtree(place, ignore_errors=True)  # a copy of another state, or by an older version of this package
        with contextlib.suppress(OSError):  # another process was faster
            os.rename(beside, place)
    if not _is_copy(place, state):
        raise UserError(f"{place}: cannot be written, where {path} would be unpacked; remove it, and try again")


def _download(address: str, target: str) -> None:
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer, open(target, "wb") as stream:
            total, done = int(answer.headers.get("Content-Length") or 0), 0
            with Progress("Downloading", total / 1e6 or None, "MB") as progress:
                while chunk := answer.read(_CHUNK):
                    stream.write(chunk)
                    done += len(chunk)
                    progress.advance(len(chunk) / 1e6)
            if done < total:
                raise ConnectionError(f"the transfer ended after {done} of {total} bytes")
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ValueError) as error:
        raise UserError(f"{address}: cannot be fetched ({' '.join(str(error).split())}); check the address") from error


def _unpack(path: str, archive: str, folder: str) -> None:
    """Unpacks a whole archive and compares its checksums; `path` is its name for messages."""
    try:
        with zipfile.ZipFile(archive) as opened:
            sizes = [entry.file_size for entry in opened.infolist()]
            outputs.check_space(folder, sum(sizes), f"the files of {path}")
            opened.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: is damaged, or not a .zip that can be unpacked ({reason}); copy it again") from error


def _folders_of_weights(folder: str) -> list[str]:
    """The folders with weights, without the parts of a model in a folder above."""
    found = []
    for place, inner, names in os.walk(folder):
        inner[:] = sorted(name for name in inner if name != "__MACOSX")
        if any(map(_WEIGHTS.fullmatch, names)):
            found.append(place)
            inner.clear()
    return found
