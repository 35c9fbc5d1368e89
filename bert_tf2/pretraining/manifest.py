"""The manifest of a sharded run, and what it and the names of files of records say of these files.

`manifest.json` stands beside the shards. It is written before the first shard with the flags, the vocabulary and the
inputs, and again after the last one with a row per shard. In between, every finished shard is a line of
`.manifest.jsonl`: rewriting a manifest of thousands of rows for each of them would take longer than the shards. Where
the output is remote, the manifest is rewritten every few seconds instead.

Records that are missing, made twice, or of another run train a model without an error, so readers get their files from
`find`. A pattern stands for everything that there should be: what is missing of that, or too much, is an error. Whoever
names files one by one means these, so only what is wrong with the files themselves is one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf2.data import record_index
from bert_tf2.pretraining import sentences
from bert_tf2.pretraining.options import CreatePretrainingDataOptions, PretrainingDataOptions
from bert_tf2.pretraining.shards import Shard, text_sha256
from bert_tf2.support import files, gzip_files, progress
from bert_tf2.support.errors import UserError, and_more

NAME = "manifest.json"
_JOURNAL = ".manifest.jsonl"
_BLOCK = 1 << 20
_SECONDS_BETWEEN_REMOTE = 10.0  # object stores limit how often an object may change; after a kill, this much is redone
_FLAGS = (*(field.name for field in dataclasses.fields(PretrainingDataOptions)), "do_lower_case")
_NUMBERED = re.compile(r"(?P<begin>.*-)(?P<number>\d{1,6})-of-(?P<count>\d{1,6})(?P<end>(\..*)?)")
_ONE_BY_ONE = "or name the files that are meant one by one, with commas"


def sha256(path: str, *, durable: bool = False) -> str:
    """The SHA-256 of a file, in hexadecimal; with `durable`, a local file is on its disk afterwards."""
    found = hashlib.sha256()
    with files.open_binary(path) as stream:
        while block := stream.read(_BLOCK):
            found.update(block)
        if durable and not files.is_remote(path):
            with contextlib.suppress(OSError):  # some file systems do not offer it
                os.fsync(stream.fileno())
    return found.hexdigest()


def describe(
    options: CreatePretrainingDataOptions, inputs: Sequence[str], count: int, rules: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Everything that decides what `count` shards hold; `rules`: see FullTokenizer.rules."""
    flags = {name: getattr(options, name) for name in _FLAGS}
    return {
        "output": os.path.basename(options.output_file),
        "flags": {**flags, "num_shards": count},
        "splitter": sentences.splitter_version(options),
        "vocabulary": {"name": options.vocab_file, "sha256": sha256(options.vocab_file), **(rules or {})},
        "inputs": [
            {"name": name, "size": files.size(name), "modified": files.modified(name), "changed": _changed(name)}
            for name in inputs
        ],
    }


def _changed(name: str) -> int | None:
    """When anything of a local file changed, its name or rights too, which no program can set back."""
    return None if files.is_remote(name) else os.stat(name).st_ctime_ns


class Manifest:
    """The manifest of one run. A finished shard is kept by later runs with the same description."""

    def __init__(self, output_file: str, described: dict[str, Any], shards: Sequence[Shard]):
        """Reads the manifest of an earlier run, if there is one, or begins a new one; `described`: see `describe`."""
        folder = os.path.dirname(output_file)
        self.path = os.path.join(folder, NAME)
        self._journal = os.path.join(folder, _JOURNAL)
        self._described = described
        self.shards = shards
        self._rows: dict[int, dict[str, Any]] = {}
        if files.exists(self.path):
            found = files.read_json(self.path)
            try:
                self._rows = self._finished(found)
                problem = _difference(found, described) or self._changed_text(found)
            except (AttributeError, KeyError, TypeError, ValueError):
                problem = "by another program, or the file is damaged"
            if problem:
                raise UserError(
                    f"{self.path}: the shards beside it were made {problem}; repeat that command, or write to another"
                    " folder, or remove the file to begin anew"
                )
        else:
            files.make_directory(folder)
        self.save()

    def _finished(self, found: dict[str, Any]) -> dict[int, dict[str, Any]]:
        rows = [*found["shards"]]
        if files.exists(self._journal):
            with files.open_binary(self._journal) as stream:
                for line in stream:
                    # The last line of a run that was killed may be incomplete, within a character too.
                    with contextlib.suppress(ValueError, RecursionError):
                        rows.append(json.loads(line))
        expected = {shard.number: shard for shard in self.shards}
        return {
            row["shard"]: row
            for row in rows
            if is_row(row)
            and (shard := expected.get(row["shard"])) is not None
            and row.get("seed") == shard.seed
            and files.exists(shard.output)
            and files.size(shard.output) == row["bytes"]
        }

    def _changed_text(self, found: dict[str, Any]) -> str | None:
        """What `_difference` would say of finished shards, whose text is read where something of its files changed."""
        if [row["changed"] for row in found["inputs"]] != [row["changed"] for row in self._described["inputs"]]:
            for shard in self.shards:
                before = self._rows.get(shard.number, {}).get("text_sha256")
                if before and before != text_sha256(shard.pieces):
                    return f"from {shard.pieces[0].source.name} as it was before its text changed"
        return None

    def missing(self) -> list[Shard]:
        """The shards that are not finished."""
        return [shard for shard in self.shards if shard.number not in self._rows]

    def add(self, shard: Shard, counts: dict[str, Any]) -> None:
        """Records a finished shard; beside remote shards at most some seconds later, with others."""
        row = {
            "shard": shard.number,
            "file": os.path.basename(shard.output),
            "seed": shard.seed,
            "text": [{"input": p.source.name, "start": p.start, "stop": p.stop} for p in shard.pieces],
            **counts,
        }
        self._rows[shard.number] = row
        if files.is_remote(self._journal):  # a remote file cannot be extended, and written only so often
            if time.monotonic() - self._saved >= _SECONDS_BETWEEN_REMOTE:
                self.save()
            return
        with files.open_binary(self._journal, "ab") as stream:
            stream.write((json.dumps(row, ensure_ascii=False) + "\n").encode())

    def save(self, *, complete: bool = False) -> None:
        """Writes the manifest of the shards that are finished so far, or `complete`, of all."""
        files.write_json(self.path, {**self._described, "complete": complete, "shards": self._listed()})
        self._saved = time.monotonic()
        _remove(self._journal)  # last: without it, the next run has the rows of the manifest

    def remove_if_empty(self) -> None:
        """Removes the files of a run that finished no shard: they would forbid another one in the folder."""
        if not self._rows:
            _remove(self.path)
            _remove(self._journal)

    def total(self, name: str) -> int:
        """The sum of a count over the finished shards."""
        return sum(row[name] for row in self._rows.values())

    def keep_index(self) -> None:
        """Keeps the index of the records beside them."""
        folder = os.path.dirname(self.path)
        record_index.keep({os.path.join(folder, row["file"]): row["index"] for row in self._listed()})

    def _listed(self) -> list[dict[str, Any]]:
        return [self._rows[number] for number in sorted(self._rows)]


def _remove(path: str) -> None:
    if files.exists(path):
        files.remove(path)


def is_row(row: object) -> bool:
    """Whether a value is the row of a finished shard. One that is damaged is none: its shard is made again."""
    if not isinstance(row, dict) or not isinstance(row.get("file"), str) or not isinstance(row.get("index"), list):
        return False
    return all(type(row.get(name)) is int and row[name] >= 0 for name in ("shard", "bytes", "examples"))


def _difference(found: dict[str, Any], described: dict[str, Any]) -> str | None:
    """What distinguishes an earlier run, as the end of a sentence."""
    if found["output"] != described["output"]:
        return f"for --output_file={found['output']}, not {described['output']}"
    for name, value in described["flags"].items():
        if (before := found["flags"].get(name)) != value:
            return f"with --{name}={before}, not {value}"
    if found["splitter"] != described["splitter"]:
        return f"with sentences of {found['splitter']}, not {described['splitter']}"
    if {**found["vocabulary"], "name": None} != {**described["vocabulary"], "name": None}:
        return f"with another vocabulary, or other rules for its words, than {described['vocabulary']['name']} has now"
    names = [[os.path.basename(row["name"]) for row in each["inputs"]] for each in (found, described)]
    if names[0] != names[1]:
        return "from other input files"
    for old, new in zip(found["inputs"], described["inputs"], strict=True):
        if (old["size"], old["modified"]) != (new["size"], new["modified"]):
            return f"from {new['name']} as it was before it changed (size or time)"
    return None


# Reading


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
                if not files.is_remote(path) and sha256(path) != row.get("sha256"):
                    raise _other(path, "has another SHA-256", "the one it was made with")
                shown.advance()


def _check_size(path: str, row: Mapping[str, Any]) -> None:
    if (size := files.size(path)) != row["bytes"]:
        raise _other(path, f"has {size:,} bytes", f"{row['bytes']:,}")


def _other(path: str, found: str, stated: str) -> UserError:
    return UserError(
        f"{path}: {found}, and the {NAME} beside it states {stated}, so one of the two was changed or is of"
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
    where = os.path.join(folder, NAME) if is_listed else "their names"
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
    """The rows of the manifest in a folder by the name of the file; none if it is about none of these."""
    path = os.path.join(folder, NAME)
    if not (pattern or any(map(_NUMBERED.fullmatch, names))) or not files.exists(path):
        return {}
    made = files.read_json(path, kind=None)
    try:
        listed = {row["file"]: row for row in filter(is_row, made["shards"])}
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
