"""Makes one shard: what every worker runs, in a process of this machine (`attempt`), or on Dask (`make_sent`).

Dask may repeat the work on a shard, also while another worker still does it: whoever comes last replaces a file by an
equal one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging as python_logging
import os
import pickle
import socket
import threading
import traceback
from collections.abc import Iterator
from typing import Any

from absl import logging

import bert_tf2
from bert_tf2.data import record_index
from bert_tf2.pretraining import manifest, shards
from bert_tf2.pretraining.example_files import make_files
from bert_tf2.pretraining.options import CreatePretrainingDataOptions
from bert_tf2.pretraining.shards import Job, Shard
from bert_tf2.support import environment, files
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer


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
    return dataclasses.replace(result, warnings=tuple(shards.placed(line, shard.pieces) for line in messages))


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


def make_shard(shard: Shard, tokenizer: FullTokenizer, options: CreatePretrainingDataOptions) -> dict[str, Any]:
    """Writes a shard, as an unsharded run does for its text with its seed; returns its counts for the manifest."""
    files.make_directory(os.path.dirname(shard.output))
    try:
        corpus, examples = make_files(shard.pieces, [shard.output], tokenizer, options, shard.seed)
    except UserError as error:
        raise UserError(shards.placed(str(error), shard.pieces)) from error
    places = options.max_seq_length * len(examples)
    tokens = examples.num_tokens + options.num_delimiters * len(examples)
    return {
        "documents": len(corpus.documents),
        "sentences": len(corpus.bounds) - 1,
        "examples": len(examples),
        "masked_tokens": examples.num_masked,
        "padding": round(1 - tokens / places, 6) if places else 0.0,
        "bytes": files.size(shard.output),
        "sha256": manifest.sha256(shard.output, durable=True),
        "text_sha256": shards.text_sha256(shard.pieces),
        "index": record_index.written(shard.output),
    }


# In a worker that the launcher did not start


def load_tokenizer(job: Job) -> FullTokenizer:
    """The tokenizer of a worker."""
    vocab_file = job.options.vocab_file
    if manifest.sha256(vocab_file) != job.vocabulary:
        raise UserError(
            f"{vocab_file}: is another file on {socket.gethostname()} than where the job was started;"
            " name a file that all machines see"
        )
    return FullTokenizer(vocab_file, job.options.do_lower_case, **job.rules)


def make_sent(number: int, version: str, sent: bytes) -> Result:
    """Makes a shard of a pickled job, if this worker has the launcher's version of the package."""
    if version != bert_tf2.__version__:
        return Result(error=f"has bert_tf2 {bert_tf2.__version__}, and the launcher {version}: install the same")
    try:
        job, tokenizer = _receive(sent)
        shard = job.shard(number)
        for source in {piece.source for piece in shard.pieces}:
            if files.size(source.place) != source.size:
                raise UserError(
                    f"{source.place}: has another size on {socket.gethostname()} than where the job was started; name"
                    " files that all machines see, and leave them as they are until the job has ended"
                )
        return attempt(shard, tokenizer, job.options)
    except Exception as error:
        return explain(error)


@functools.lru_cache(maxsize=1)
def _receive(sent: bytes) -> tuple[Job, FullTokenizer]:
    job = pickle.loads(sent)
    return job, load_tokenizer(job)
