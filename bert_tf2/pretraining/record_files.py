"""The files of records that a flag names, compared with what their names and a manifest beside them say of them.

Records that are missing, made twice, or of another run train a model without an error, so whoever reads records that
the user names gets their files from `find`.

A pattern stands for everything that there should be: what is missing of that, or too much, is an error. Whoever names
files one by one means these, so only what is wrong with the files themselves is one.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf2.pretraining import manifest
from bert_tf2.support import files, gzip_files, progress
from bert_tf2.support.errors import UserError, and_more

_NUMBERED = re.compile(r"(?P<begin>.*-)(?P<number>\d{1,6})-of-(?P<count>\d{1,6})(?P<end>(\..*)?)")
_ONE_BY_ONE = "or name the files that are meant one by one, with commas"


@dataclasses.dataclass(frozen=True)
class RecordFiles:
    """Files of records."""

    paths: list[str]  # the files; patterns are replaced by what they match, sorted
    rows: Mapping[str, dict[str, Any]]  # what a manifest says of some of them, by path

    def check(self, counts: Mapping[str, int | None]) -> None:
        """Compares files that were read with the manifest; remote ones only by what does not read them once more.

        `counts`: the records of each file by its path; None if it was not read to its end.
        """
        listed = [path for path in counts if path in self.rows]
        with progress.Progress("Comparing with the manifest", len(listed), "files") as shown:
            for path in listed:
                count, row = counts[path], self.rows[path]
                _check_size(path, row)
                if count is not None and count != row["examples"]:
                    raise _other(path, f"has {count:,} records", f"{row['examples']:,}")
                if not files.is_remote(path) and manifest.sha256(path) != row.get("sha256"):
                    raise _other(path, "has another SHA-256", "the one it was made with")
                shown.advance()


def _check_size(path: str, row: Mapping[str, Any]) -> None:
    if (size := files.size(path)) != row["bytes"]:
        raise _other(path, f"has {size:,} bytes", f"{row['bytes']:,}")


def _other(path: str, found: str, stated: str) -> UserError:
    return UserError(
        f"{path}: {found}, and the {manifest.NAME} beside it states {stated}, so one of the two was changed or is of"
        " another run; copy both again, or remove the file and repeat the command that made it"
    )


def find(input_file: str) -> RecordFiles:
    """Finds the files that a comma-separated list of names and patterns stands for; see files.match_files."""
    paths: list[str] = []
    rows: dict[str, dict[str, Any]] = {}
    for part in filter(None, (part.strip() for part in input_file.split(","))):
        found = files.match_files(part)
        pattern = part if found != [part] else None
        folders: dict[str, list[str]] = {}
        for path in found:
            folders.setdefault(os.path.dirname(path), []).append(os.path.basename(path))
        for folder, names in folders.items():
            listed = _read_manifest(folder, names, pattern)
            if pattern:
                _compare(folder, names, listed or _as_numbered(names, pattern), pattern, is_listed=bool(listed))
            rows |= {os.path.join(folder, name): listed[name] for name in names if name in listed}
        paths += found
    for path, row in rows.items():
        if not files.is_remote(path):  # asking for the sizes of thousands takes minutes there
            _check_size(path, row)
    return RecordFiles(paths or files.match_files(input_file), rows)


def _compare(folder: str, names: Sequence[str], expected: Collection[str], pattern: str, *, is_listed: bool) -> None:
    """Raises UserError if a pattern does not find all `expected` files that it matches, or finds others."""
    wanted = {name for name in expected if fnmatch.fnmatchcase(os.path.join(folder, name), pattern)}
    where = os.path.join(folder, manifest.NAME) if is_listed else "their names"
    if missing := sorted(wanted.difference(names)):
        raise UserError(
            f"{pattern}: {len(missing)} of {len(wanted)} files are missing by {where} ({and_more(missing, 3)}); make or"
            f" copy them, {_ONE_BY_ONE}"
        )
    others = [name for name in names if name not in expected]
    if (is_listed and others) or any(map(_NUMBERED.fullmatch, others)):
        raise UserError(
            f"{pattern}: matches {and_more(others, 3)}, which by {where} is none of the {len(expected)} files; give a"
            f" pattern that leaves out what does not belong to them, {_ONE_BY_ONE}"
        )
    if expected and others:
        logging.warning("%s: matches %s beside numbered files, and reads all of them", pattern, and_more(others, 3))


def _as_numbered(names: Iterable[str], pattern: str) -> set[str]:
    """The names that should be there by the numbers of some of them; none for other names."""
    runs: dict[str, dict[str, set[int]]] = {}
    for found in filter(None, map(_NUMBERED.fullmatch, names)):
        runs.setdefault(found["begin"], {}).setdefault(found["count"] + found["end"], set()).add(int(found["number"]))
    expected: set[str] = set()
    for begin, run in runs.items():
        if len(run) > 1:
            found = " and ".join(f"{begin}*-of-{end}" for end in run)
            raise UserError(f"{pattern}: matches the files of several runs, {found}; give a pattern for one of them")
        for end, numbers in run.items():
            count = end.partition(".")[0]
            first = int(0 not in numbers and int(count) in numbers)  # other programs may count from 1
            expected |= {f"{begin}{first + place:0{len(count)}d}-of-{end}" for place in range(int(count))}
    return expected


def _read_manifest(folder: str, names: Sequence[str], pattern: str | None) -> dict[str, dict[str, Any]]:
    """The rows of the manifest in a folder by the name of the file; none if it is not about any of these files."""
    path = os.path.join(folder, manifest.NAME)
    if not (pattern or any(map(_NUMBERED.fullmatch, names))) or not files.exists(path):
        return {}
    made = files.read_json(path, kind=None)
    try:
        listed = {row["file"]: row for row in filter(manifest.is_row, made["shards"])}
        complete, count, begin = made["complete"], made["flags"]["num_shards"], made["output"]
        begin = f"{begin.removesuffix(gzip_files.ENDING)}-"
    except (AttributeError, KeyError, TypeError):
        return {}  # of another program
    if not any(name in listed or (name.startswith(begin) and _NUMBERED.fullmatch(name)) for name in names):
        return {}
    if pattern and not (complete and len(listed) == count):
        raise UserError(
            f"{path}: lists {len(listed)} of {count} files{'' if complete else ' of a run that goes on'}, so these are"
            f" not all; repeat the command that makes them, {_ONE_BY_ONE}"
        )
    return listed
