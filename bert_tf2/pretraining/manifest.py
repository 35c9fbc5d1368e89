"""The manifest of a sharded run, and the files of records that it lists.

`manifest.json` is beside the shards. It has the flags, the vocabulary and the inputs, and a row per finished shard. The
manifest is written again after a shard, but not after every shard if it is large, because shards would wait for it.

Training on records that are missing, made twice, or from another run gives no error, so readers get their files from
`find`. A pattern that matches a file of a manifest must match all files that the manifest lists, and no other files. A
name without a pattern is taken as it is, and only the named file is compared with the manifest.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf2.data import record_index
from bert_tf2.pretraining import corpus
from bert_tf2.pretraining.options import PretrainingDataOptions, without_held_out
from bert_tf2.pretraining.shards import Job, Shard, sha256, text_sha256
from bert_tf2.support import files, progress
from bert_tf2.support.errors import UserError, and_more

NAME = "manifest.json"
_SHARE = 0.05  # the share of the time for writing; after a kill, shards since the last write are made again
_SECONDS_BETWEEN_REMOTE = 10.0  # object stores limit how often an object may change
_NUMBERED = re.compile(r".*-\d{1,6}-of-\d{1,6}(\..*)?")
_ONE_BY_ONE = "or name the wanted files one by one, with commas"


def _describe(job: Job) -> dict[str, Any]:
    """Everything that decides the contents of the shards."""
    options, tokenizer = job.options, job.tokenizer
    flags = {field.name: getattr(options, field.name) for field in dataclasses.fields(PretrainingDataOptions)}
    return {
        "output": os.path.basename(options.output_file),
        "flags": {**flags, "do_lower_case": tokenizer.basic_tokenizer.do_lower_case, "num_shards": len(job)},
        "splitter": corpus.splitter_version(options),
        "vocabulary": {"name": options.vocab_file, "sha256": sha256(options.vocab_file), **tokenizer.rules},
        "inputs": [{"name": it.name, "size": it.size, "changed": _changed(it.name)} for it in job.sources],
    }


def _changed(name: str) -> float | None:
    """The time of the last change of a file; for a local file, the change time, which no program can set back."""
    return files.modified(name) if files.is_remote(name) else os.stat(name).st_ctime_ns


class Manifest:
    """The manifest of one run. A finished shard is kept by later runs with the same description."""

    def __init__(self, job: Job):
        """Reads the manifest of an earlier run, if there is one, or begins a new one."""
        self.path = os.path.join(os.path.dirname(job.options.output_file), NAME)
        self._described = _describe(job)
        self.shards = [*map(job.shard, range(len(job)))]
        self._rows: dict[int, dict[str, Any]] = {}
        if files.exists(self.path):
            found = files.read_json(self.path)
            try:
                self._rows = self._finished(found)
                problem = _difference(found, self._described) or self._other_text(found)
            except (AttributeError, KeyError, TypeError, ValueError):
                problem = "by another program, or the file is damaged"
            if problem:
                raise UserError(
                    f"{self.path}: the shards beside it were made {problem}; repeat that command, or write to another"
                    " folder, or remove the file to start over"
                )
        self.save()

    def _finished(self, found: dict[str, Any]) -> dict[int, dict[str, Any]]:
        rows = {row["shard"]: row for row in filter(is_row, found["shards"])}
        return {
            shard.number: {**row, "text": _text_of(shard)}
            for shard in self.shards
            if (row := rows.get(shard.number))
            and row.get("seed") == shard.seed
            and files.exists(shard.output)
            and files.size(shard.output) == row["bytes"]
        }

    def _other_text(self, found: dict[str, Any]) -> str | None:
        """Like `_difference`, for the text of finished shards, which is read only if an input file has changed."""
        if found["inputs"] != self._described["inputs"]:
            for shard in self.shards:
                if shard.number in self._rows and self._rows[shard.number]["text_sha256"] != text_sha256(shard.pieces):
                    return f"from other text than --input_file has now, {os.path.basename(shard.output)} for example"
        return None

    def missing(self) -> list[Shard]:
        """The shards that are not finished."""
        return [shard for shard in self.shards if shard.number not in self._rows]

    def add(self, shard: Shard, counts: dict[str, Any]) -> None:
        """Adds a finished shard; writes the file at once, or later with further shards if writing takes long."""
        self._rows[shard.number] = {
            "shard": shard.number,
            "file": os.path.basename(shard.output),
            "seed": shard.seed,
            "text": _text_of(shard),
            **counts,
        }
        if time.monotonic() >= self._next_time:
            self.save()

    def save(self, *, complete: bool = False) -> None:
        """Writes the manifest with the finished shards; `complete`: whether these are all shards."""
        begin = time.monotonic()
        files.write_json(self.path, {**self._described, "complete": complete, "shards": self._listed()})
        end = time.monotonic()
        self._next_time = end + max((end - begin) / _SHARE, _SECONDS_BETWEEN_REMOTE * files.is_remote(self.path))

    def end_early(self) -> None:
        """Saves the finished shards of a failed run, or removes a manifest without shards, which would block a run."""
        if self._rows:
            self.save()
        elif files.exists(self.path):
            files.remove(self.path)

    def total(self, name: str) -> int:
        """The sum of a count over the finished shards."""
        return sum(row[name] for row in self._rows.values())

    def keep_index(self) -> None:
        """Writes the index of the records beside the records."""
        folder = os.path.dirname(self.path)
        record_index.keep({os.path.join(folder, row["file"]): row["index"] for row in self._listed()})

    def _listed(self) -> list[dict[str, Any]]:
        return [self._rows[number] for number in sorted(self._rows)]


def _text_of(shard: Shard) -> list[dict[str, Any]]:
    return [{"input": piece.source.name, "start": piece.start, "stop": piece.stop} for piece in shard.pieces]


def is_row(row: object) -> bool:
    """Whether a value is the row of a finished shard. The shard of a damaged row is made again."""
    if not isinstance(row, dict) or not isinstance(row.get("file"), str) or not isinstance(row.get("index"), list):
        return False
    return all(type(row.get(name)) is int and row[name] >= 0 for name in ("shard", "bytes", "examples"))


def _difference(found: dict[str, Any], described: dict[str, Any]) -> str | None:
    """The difference between an earlier run and this run, as the end of a sentence; None if they are equal."""
    if found["output"] != described["output"]:
        return f"for --output_file={found['output']}, not {described['output']}"
    for name, value in described["flags"].items():
        # A manifest of an earlier version lacks newer flags; it was made with their defaults.
        if (before := found["flags"].get(name, getattr(PretrainingDataOptions, name, None))) != value:
            return f"with --{name}={before}, not {value}"
    if found["splitter"] != described["splitter"]:
        return f"with sentences of {found['splitter']}, not {described['splitter']}"
    if {**found["vocabulary"], "name": None} != {**described["vocabulary"], "name": None}:
        return f"with another vocabulary, or other rules for its words, than {described['vocabulary']['name']} has now"
    return None


# Reading


@dataclasses.dataclass(frozen=True)
class RecordFiles:
    """Files of records."""

    paths: list[str]  # the files; patterns are replaced by the matching files, sorted
    rows: Mapping[str, dict[str, Any]]  # path -> the row in a manifest, for files that a manifest lists

    def check(self, counts: Mapping[str, int | None]) -> None:
        """Compares files that were read with the manifest; remote files only by size and count, without reading again.

        `counts`: path -> the number of records; None if the file was not read to its end.
        """
        listed = [path for path in counts if path in self.rows]
        with progress.Progress("Comparing with the manifest", len(listed), "files") as shown:
            for path in listed:
                count, row = counts[path], self.rows[path]
                _check_size(path, row)
                if count is not None and count != row["examples"]:
                    raise _other(path, f"has {count:,} records", f"{row['examples']:,}")
                if not files.is_remote(path) and sha256(path) != row.get("sha256"):
                    raise _other(path, "has another SHA-256", "the SHA-256 it was made with")
                shown.advance()


def _check_size(path: str, row: Mapping[str, Any]) -> None:
    if (size := files.size(path)) != row["bytes"]:
        raise _other(path, f"has {size:,} bytes", f"{row['bytes']:,}")


def _other(path: str, found: str, stated: str) -> UserError:
    return UserError(
        f"{path}: {found}, and the {NAME} beside it states {stated}, so one of both was changed or is from"
        " another run; copy both again, or remove the file and repeat the command that made it"
    )


def find(input_file: str, held_out: Sequence[str] = ()) -> RecordFiles:
    """Finds the files of a comma-separated list of names and patterns; see files.match_files.

    Args:
      input_file: the names and patterns.
      held_out: files to leave out of the patterns' matches; see without_held_out. Manifests are compared before that.
    """
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
            if pattern and listed:
                _compare(folder, names, listed, pattern)
            rows |= {os.path.join(folder, name): listed[name] for name in names if name in listed}
        paths += found
    for path, row in rows.items():
        if not files.is_remote(path):  # the sizes of thousands of remote files take minutes
            _check_size(path, row)
    kept = without_held_out(paths or files.match_files(input_file), input_file, held_out)
    if left_out := sorted({*paths}.difference(kept)):
        logging.info("Left out of --input_file, to be evaluated on: %s", and_more(left_out, 8))
    return RecordFiles(kept, rows)


def _compare(folder: str, names: Sequence[str], listed: Collection[str], pattern: str) -> None:
    """Raises UserError if a pattern finds not all files of the manifest that it matches, or finds other files."""
    wanted = {name for name in listed if fnmatch.fnmatchcase(os.path.join(folder, name), pattern)}
    where = os.path.join(folder, NAME)
    if missing := sorted(wanted.difference(names)):
        raise UserError(
            f"{pattern}: {len(missing)} of {len(wanted)} files are missing by {where} ({and_more(missing, 3)}); make or"
            f" copy them, {_ONE_BY_ONE}"
        )
    if others := [name for name in names if name not in listed]:
        raise UserError(
            f"{pattern}: matches {and_more(others, 3)}, which is not one of the {len(listed)} files in {where}; give a"
            f" pattern that matches only these files, {_ONE_BY_ONE}"
        )


def _read_manifest(folder: str, names: Sequence[str], pattern: str | None) -> dict[str, dict[str, Any]]:
    """Name of a file -> its row in the manifest of a folder; {} if the manifest does not concern these names."""
    path = os.path.join(folder, NAME)
    if not (pattern or any(map(_NUMBERED.fullmatch, names))) or not files.exists(path):
        return {}
    made = files.read_json(path, kind=None)
    try:
        listed = {row["file"]: row for row in filter(is_row, made["shards"])}
        complete, count, begin = made["complete"], made["flags"]["num_shards"], made["output"]
        begin = f"{begin.removesuffix(files.GZIP_ENDING)}-"
    except (AttributeError, KeyError, TypeError):
        return {}  # the manifest of another program
    if not any(name in listed or (name.startswith(begin) and _NUMBERED.fullmatch(name)) for name in names):
        return {}
    if pattern and not (complete and len(listed) == count):
        raise UserError(
            f"{path}: lists {len(listed)} of {count} files{'' if complete else ' of an unfinished run'}, so files are"
            f" missing; repeat the command that makes them, {_ONE_BY_ONE}"
        )
    return listed
