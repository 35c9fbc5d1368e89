"""Makes one shard: what every worker runs, in a process of this machine, or on Dask.

A process of this machine answers through its pipe (`attempt`). Workers on other machines leave their answer also beside
the shard (`make`), as `.NAME-00000-of-01000.result.json`: the shard's counts, or why it was not made. A launcher that
was killed gets no other answer. It is written after the shard, so a shard with a result of
the same job is finished, also for a later run.

Dask may repeat the work on a shard, also while another worker still does it, and another container on a
machine has the same host name and other process numbers. So a worker writes to names that nobody else has, and renames
what is complete; whoever comes last replaces a file by an equal one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging as python_logging
import os
import pickle
import re
import shutil
import socket
import threading
import traceback
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from absl import logging

import bert_tf2
from bert_tf2.data import record_index
from bert_tf2.pretraining import manifest, shards
from bert_tf2.pretraining.example_files import make_files
from bert_tf2.pretraining.options import CreatePretrainingDataOptions
from bert_tf2.pretraining.shards import Job, Shard
from bert_tf2.support import environment, files, outputs
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer

_READERS = 16  # files that are read at the same time: remote ones answer slowly
_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Result:
    """What a worker answers."""

    counts: dict[str, Any] | None = None  # of the shard, for the manifest; None if it was not made
    error: str = ""  # a line for the user, "" if there is none
    bug: str = ""  # a traceback, "" if there is none
    warnings: tuple[str, ...] = ()  # what was logged


def attempt(shard: Shard, tokenizer: FullTokenizer, options: CreatePretrainingDataOptions) -> Result:
    """Writes a shard, or says why it cannot be written."""
    with _collected_log() as messages:
        try:
            result = Result(counts=make_shard(shard, tokenizer, options))
        except Exception as error:
            result = explain(error)
    text = shards.scratch_beside(_text_of(shard))  # messages name the input instead
    name = shard.pieces[0].source.name if shard.pieces else shard.output

    def placed(message: str) -> str:
        line = rf"{re.escape(text)}, line (\d+)"
        return re.sub(line, lambda found: shards.where(shard.pieces, int(found[1])), message).replace(text, name)

    return dataclasses.replace(result, warnings=tuple(map(placed, messages)))


@contextlib.contextmanager
def _collected_log() -> Iterator[list[str]]:
    """Collects the warnings of this thread in a list; nothing else of it is logged.

    Workers may be threads of the launcher, whose log is the user's.
    """
    collected: list[str] = []
    this = threading.get_ident()

    def keep(record: python_logging.LogRecord) -> bool:
        if record.thread != this:
            return True
        if record.levelno >= python_logging.WARNING:
            collected.append(record.getMessage())
        return False

    logger = logging.get_absl_logger()
    logger.addFilter(keep)
    try:
        yield collected
    finally:
        logger.removeFilter(keep)


def explain(error: Exception) -> Result:
    """The answer of a worker that could not make a shard."""
    if isinstance(error, UserError):
        return Result(error=str(error))
    if environment.is_out_of_memory(error):
        return Result(error="out of memory; give fewer --num_workers or smaller shards")
    if line := environment.explain(error):
        return Result(error=line)
    return Result(bug="".join(traceback.format_exception(error)))


def _text_of(shard: Shard) -> str:
    return f"{shard.output}.text"


def make_shard(shard: Shard, tokenizer: FullTokenizer, options: CreatePretrainingDataOptions) -> dict[str, Any]:
    """Writes a shard, as an unsharded run does for its text with its seed; returns its counts for the manifest."""
    text = shards.scratch_beside(_text_of(shard))
    try:
        files.make_directory(os.path.dirname(shard.output))
        shards.write_text(shard.pieces, text)
        text_sha256 = manifest.sha256(text)
        try:
            corpus, examples = make_files([text], [shard.output], tokenizer, options, shard.seed)
        except UserError as error:
            if text not in str(error):
                raise
            shards.find_fault(shard.pieces, options)
            raise UserError(str(error).replace(text, f"the text of {shard.output}")) from error
    finally:
        with contextlib.suppress(OSError):
            os.remove(text)
    places = options.max_seq_length * len(examples)
    tokens = examples.num_tokens + options.num_delimiters * len(examples)
    return {
        "documents": len(corpus.documents),
        "sentences": len(corpus.bounds) - 1,
        "examples": len(examples),
        "masked_tokens": examples.num_masked,
        "truncated_tokens": examples.truncated,
        "padding": round(1 - tokens / places, 6) if places else 0.0,
        "bytes": files.size(shard.output),
        "sha256": manifest.sha256(shard.output, durable=True),
        "text_sha256": text_sha256,
        "index": record_index.written(shard.output),
    }


# In a worker that the launcher did not start


def load_tokenizer(job: Job) -> FullTokenizer | UserError:
    """The tokenizer of a worker; or why there is none, for the result of a shard."""
    vocab_file = job.options.vocab_file
    try:
        if manifest.sha256(vocab_file) == job.vocabulary:
            return FullTokenizer(vocab_file, job.options.do_lower_case, **job.rules)
    except UserError as error:
        return error
    return UserError(
        f"{vocab_file}: is another file on {socket.gethostname()} than where the job was started;"
        " name a file that all machines see"
    )


def make_sent(number: int, version: str, sent: bytes) -> Result:
    """Makes a shard of a pickled job, if this worker has the launcher's version of the package."""
    if version != bert_tf2.__version__:
        return Result(error=f"has bert_tf2 {bert_tf2.__version__}, and the launcher {version}: install the same")
    job, tokenizer = _receive(sent)
    return make(job.shard(number), tokenizer, job)


@functools.lru_cache(maxsize=1)
def _receive(sent: bytes) -> tuple[Job, FullTokenizer | UserError]:
    job = pickle.loads(sent)
    return job, load_tokenizer(job)


def make(shard: Shard, tokenizer: FullTokenizer | UserError, job: Job) -> Result:
    """Makes a shard and its result beside it, unless an earlier attempt of this job has finished it.

    `tokenizer`: see load_tokenizer; or why there is none.
    """
    place = result_of(shard)
    if (found := _read(shard, job)) and found.counts:
        return found
    result = None
    try:
        with _workshop(shard) as folder:
            result = _attempt(shard, folder, tokenizer, job)
            row = {"run": job.run, "shard": shard.number, "seed": shard.seed, **dataclasses.asdict(result)}
            beside = os.path.join(folder, "result.json")
            with open(beside, "w", encoding="utf-8") as stream:
                json.dump(row, stream)
            if result.counts or not files.exists(place):
                _publish(beside, place)
    except Exception as error:  # the reason why there is no shard is worth more than why that cannot be written
        result = result if result and not result.counts else explain(error)
    return result


def _attempt(shard: Shard, folder: str, tokenizer: FullTokenizer | UserError, job: Job) -> Result:
    """Makes a shard under a private name, then gives it its own."""
    private = dataclasses.replace(shard, output=os.path.join(folder, os.path.basename(shard.output)))
    try:
        if isinstance(tokenizer, UserError):
            raise tokenizer
        for source in {piece.source for piece in shard.pieces}:
            if files.size(source.place) != source.size:
                raise UserError(
                    f"{source.place}: has another size on {socket.gethostname()} than where the job was started; name"
                    " files that all machines see, and leave them as they are until the job has ended"
                )
        result = attempt(private, tokenizer, job.options)
        if result.counts:
            _publish(private.output, shard.output)
    except Exception as error:
        result = explain(error)
    place = os.path.dirname(folder)  # where the user knows files: beside the shard, or the temporary disk
    line = result.error.replace(os.path.join(folder, ""), os.path.join(place, "")).replace(folder, place or ".")
    return dataclasses.replace(result, error=line)


@contextlib.contextmanager
def _workshop(shard: Shard) -> Iterator[str]:
    """A folder for the files of one attempt: beside the shard, or on a disk of this machine if that is remote."""
    if files.is_remote(shard.output):
        folder = outputs.temporary_folder("bert_tf2_shard_")
    else:
        files.make_directory(os.path.dirname(shard.output))
        folder = outputs.unique_beside(shard.output)
        os.mkdir(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(source: str, target: str) -> None:
    """Gives a complete local file its final name, in one step if `target` is local; `source` is on the same disk then.

    A remote file gets another name until it is complete.
    """
    if not files.is_remote(target):
        return files.rename(source, target)
    beside = outputs.unique_beside(target)
    files.make_directory(os.path.dirname(target))
    with open(source, "rb") as found, files.open_binary(beside, "wb") as stream:
        shutil.copyfileobj(found, stream, _BLOCK)
    files.rename(beside, target)


# In the launcher


def result_of(shard: Shard) -> str:
    """The name of a shard's result."""
    folder, name = os.path.split(shard.output)
    return os.path.join(folder, f".{name}.result.json")


def found(wanted: Sequence[Shard], job: Job, known: Collection[int] = ()) -> list[tuple[Shard, Result]]:
    """The results of shards that are there now, failures too, except those of the shards with the `known` numbers.

    A result counts if it belongs to this job and the shard's file is as large as it says.
    """
    if not wanted:
        return []
    there = {*files.list_directory(os.path.dirname(wanted[0].output) or ".")}
    new = [s for s in wanted if s.number not in known and os.path.basename(result_of(s)) in there]
    with ThreadPoolExecutor(_READERS) as readers:
        results = [*readers.map(lambda shard: _read(shard, job), new)]
    return [(shard, result) for shard, result in zip(new, results, strict=True) if result]


def _read(shard: Shard, job: Job) -> Result | None:
    place = result_of(shard)
    try:
        if not files.exists(place):
            return None
        row = json.loads(files.read_text(place))
        if (row["run"], row["shard"], row["seed"]) != (job.run, shard.number, shard.seed):
            return None
        result = Result(row["counts"], row["error"], row["bug"], tuple(row["warnings"]))
        if result.counts and (not files.exists(shard.output) or files.size(shard.output) != result.counts["bytes"]):
            return None
        return result
    except (UserError, OSError, ValueError, KeyError, TypeError):  # of another version, or replaced at this moment
        return None


def remove(wanted: Sequence[Shard]) -> None:
    """Removes the results of shards, and what attempts that were killed left of them."""
    if not wanted:
        return
    folder = os.path.dirname(wanted[0].output)
    starts = tuple(f".{os.path.basename(shard.output)}." for shard in wanted)
    for name in files.list_directory(folder or "."):
        if name.endswith((".result.json", outputs.UNIQUE_END)) and name.startswith(starts):
            _remove(os.path.join(folder, name))


def _remove(path: str) -> None:
    with contextlib.suppress(Exception):  # another attempt has just renamed it
        if files.is_remote(path) or not os.path.isdir(path):
            files.remove(path)
        else:
            shutil.rmtree(path)
