"""Makes one shard: what every worker runs, in a process of this machine or on another one."""

from __future__ import annotations

import contextlib
import dataclasses
import logging as python_logging
import os
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from bert_tf2.data import record_order
from bert_tf2.pretraining import manifest, shards
from bert_tf2.pretraining.example_files import make_files
from bert_tf2.pretraining.options import CreatePretrainingDataOptions
from bert_tf2.pretraining.shards import Piece, Shard, Source
from bert_tf2.support import environment, files
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer

Packed = tuple[int, tuple[tuple[int, int, int], ...]]
"""A shard as few bytes: its number, and for each piece the number of its source, start and stop."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What all workers of a run need; it is sent to each of them once.

    Attributes:
      options: the options of the run.
      do_lower_case: whether the text is lower-cased.
      sources: the files of the corpus.
      count: the number of shards.
      run: identifies the flags, the vocabulary and the inputs: a hash of the manifest's description.
      vocabulary: the SHA-256 of the vocabulary.
    """

    options: CreatePretrainingDataOptions
    do_lower_case: bool
    sources: tuple[Source, ...]
    count: int
    run: str
    vocabulary: str

    def pack(self, wanted: Sequence[Shard]) -> list[Packed]:
        number_of = {source.name: number for number, source in enumerate(self.sources)}
        return [(s.number, tuple((number_of[p.source.name], p.start, p.stop) for p in s.pieces)) for s in wanted]

    def for_other_folders(self) -> Job:
        """The job for workers whose working directory is another one."""

        def absolute(path: str) -> str:
            return path if files.is_remote(path) else os.path.abspath(path)

        names = {name: absolute(getattr(self.options, name)) for name in ("vocab_file", "output_file")}
        sources = tuple(dataclasses.replace(source, place=absolute(source.place)) for source in self.sources)
        return dataclasses.replace(self, options=dataclasses.replace(self.options, **names), sources=sources)

    def unpack(self, packed: Packed) -> Shard:
        number, pieces = packed
        return Shard(
            number,
            shards.name_of(self.options.output_file, number, self.count),
            shards.seed_of(self.options.random_seed, number),
            tuple(Piece(self.sources[source], start, stop) for source, start, stop in pieces),
        )


@dataclasses.dataclass(frozen=True)
class Result:
    """What a worker answers.

    Attributes:
      counts: of the shard, for the manifest; None if it was not made.
      error: a line for the user, "" if there is none.
      bug: a traceback, "" if there is none.
      warnings: what was logged.
    """

    counts: dict[str, Any] | None = None
    error: str = ""
    bug: str = ""
    warnings: tuple[str, ...] = ()


def attempt(shard: Shard, tokenizer: FullTokenizer, options: CreatePretrainingDataOptions) -> Result:
    """Writes a shard, or says why it cannot be written."""
    with _collected_log() as messages:
        try:
            result = Result(counts=make_shard(shard, tokenizer, options))
        except Exception as error:
            result = explain(error)
    # Messages name the input instead of the shard's temporary text.
    text = shards.scratch_beside(_text_of(shard))
    name = shard.pieces[0].source.name if shard.pieces else shard.output
    return dataclasses.replace(result, warnings=tuple(message.replace(text, name) for message in messages))


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
    """Writes a shard; returns its counts."""
    text = shards.scratch_beside(_text_of(shard))
    try:
        files.make_directory(os.path.dirname(shard.output))
        shards.write_text(shard.pieces, text)
        try:
            counts = _write_shard(text, shard, tokenizer, options)
        except UserError as error:
            if text not in str(error):
                raise
            shards.find_fault(shard.pieces, options)
            raise UserError(str(error).replace(text, f"the text of {shard.output}")) from error
    finally:
        with contextlib.suppress(OSError):
            os.remove(text)
    runs = " ".join(str(size) for *_, size in record_order.runs_of(shard.output))
    checksum = manifest.sha256(shard.output, durable=True)
    return {**counts, "bytes": files.size(shard.output), "sha256": checksum, "runs": runs}


def _write_shard(
    text: str, shard: Shard, tokenizer: FullTokenizer, options: CreatePretrainingDataOptions
) -> dict[str, Any]:
    """Does what an unsharded run does for a file and a seed; returns the counts of what it wrote."""
    corpus, examples = make_files([text], [shard.output], tokenizer, options, shard.seed)
    places = options.max_seq_length * len(examples)
    tokens = examples.num_tokens + options.num_delimiters * len(examples)
    return {
        "documents": len(corpus.documents),
        "sentences": len(corpus.bounds) - 1,
        "examples": len(examples),
        "masked_tokens": examples.num_masked,
        "truncated_tokens": examples.truncated,
        "padding": round(1 - tokens / places, 6) if places else 0.0,
    }
