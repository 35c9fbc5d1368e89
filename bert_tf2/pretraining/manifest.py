"""The manifest of a sharded run: what the shards were made from, and which of them are finished.

`manifest.json` stands beside the shards. It is written before the first shard with the flags, the vocabulary and the
inputs, and again after the last one with a row per shard. In between, every finished shard is a line of
`.manifest.jsonl`: rewriting a manifest of thousands of rows for each of them would take longer than the shards. Where
the output is remote, the manifest is rewritten every few seconds instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf2.data import record_index
from bert_tf2.pretraining import sentences
from bert_tf2.pretraining.options import CreatePretrainingDataOptions, PretrainingDataOptions
from bert_tf2.pretraining.shards import Shard, text_sha256
from bert_tf2.support import files
from bert_tf2.support.errors import UserError

NAME = "manifest.json"
_JOURNAL = ".manifest.jsonl"
_BLOCK = 1 << 20
_SECONDS_BETWEEN_REMOTE = 10.0  # object stores limit how often an object may change; after a kill, this much is redone
_FLAGS = (*(field.name for field in dataclasses.fields(PretrainingDataOptions)), "do_lower_case")


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
    """Everything that decides what `count` shards hold: the first part of the manifest.

    `rules`: how the tokenizer differs from the reference's, see FullTokenizer.rules.
    """
    flags = {name: getattr(options, name) for name in _FLAGS}
    return {
        "output": os.path.basename(options.output_file),
        "flags": {**flags, "num_shards": count},
        "splitter": sentences.splitter_version(options),
        "vocabulary": {"name": options.vocab_file, "sha256": sha256(options.vocab_file), **(rules or {})},
        "inputs": [
            {"name": name, "size": files.size(name), "modified": _modified(name), "changed": _changed(name)}
            for name in inputs
        ],
    }


def _modified(name: str) -> str | None:
    seconds = files.modified(name)
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="microseconds")


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
                    return (
                        f"from {shard.pieces[0].source.name} as it was before its text changed, in size and time alike"
                    )
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
    if len(found["inputs"]) != len(described["inputs"]):
        return f"from {len(found['inputs'])} input files, not {len(described['inputs'])}"
    for old, new in zip(found["inputs"], described["inputs"], strict=True):
        if os.path.basename(old["name"]) != os.path.basename(new["name"]):
            return f"from other input files than {new['name']}"
        if (old["size"], old["modified"]) != (new["size"], new["modified"]):
            return f"from {new['name']} as it was before it changed (size or time)"
    return None
