"""Makes shards on a cluster that Apache Beam has a runner for: a pipeline with an element per shard.

    Create(shards) -> Reshuffle -> ParDo(MakeShards)

An element is the number of a shard. No text and no record passes through Beam: the workers read the corpus and write
the shards on storage that all machines see, so no runner has to hold, group or move the corpus. Without Reshuffle, a
runner may make all shards where it created the list. The results come back as files (`shard_making`).
"""

from __future__ import annotations

import contextlib
import io
import logging as python_logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from absl import logging
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
from apache_beam.runners.runner import PipelineState

from bert_tf2.pretraining import shard_making
from bert_tf2.pretraining.shard_making import Result
from bert_tf2.pretraining.shards import Job, Shard
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.support.remote_files import FsspecFiles
from bert_tf2.support.settings import WrongSetting

_COUNTED = ("documents", "sentences", "examples", "masked_tokens", "bytes")
_SECONDS_BETWEEN_LOOKS = 2.0
_SHARE_FOR_LOOKS = 0.05  # of the time, at most: a folder with many files takes long to list


class ShardFailed(Exception):
    """A shard was not made; its result says why. Beam sees this exception and decides whether to try again."""


class MakeShards(beam.DoFn):
    """Makes the shards that it gets, and counts what the manifest counts."""

    def __init__(self, job: Job):
        self._job = job
        self._tokenizer: Any = None
        self._counters = {name: Metrics.counter("bert_tf2", name) for name in ("shards", *_COUNTED)}

    def setup(self) -> None:
        """Loads the vocabulary, once per worker."""
        files.use_remote(FsspecFiles())
        self._tokenizer = shard_making.load_tokenizer(self._job)

    def process(self, element: int) -> None:
        shard = self._job.shard(element)
        result = shard_making.make(shard, self._tokenizer, self._job)
        if not result.counts:
            raise ShardFailed(f"{shard.output}: {result.error or result.bug.strip().splitlines()[-1]}")
        for name, counter in self._counters.items():
            counter.inc(result.counts.get(name, 1))


def make(wanted: Sequence[Shard], job: Job) -> Iterator[tuple[Shard, Result]]:
    """Makes shards on the runner of the options; yields each with its result when that is seen.

    The launcher looks for results itself. A job that it started goes on after its end.

    Raises:
      UserError: the job failed, and no shard says why.
    """
    shard_making.remove(wanted)  # failures of an earlier job
    pipeline = build(wanted, job, read_options(job.options.runner, job.options.runner_options))
    known: set[int] = set()
    failure: Exception | None = None
    with _quiet_beam():
        try:
            running = pipeline.run()
            pause = _SECONDS_BETWEEN_LOOKS
            while not PipelineState.is_terminal(running.state):
                time.sleep(pause)
                before = time.monotonic()
                yield from _made(wanted, job, known)
                pause = max(_SECONDS_BETWEEN_LOOKS, (time.monotonic() - before) / _SHARE_FOR_LOOKS)
            running.wait_until_finish()  # raises what went wrong
        except UserError:
            raise
        except Exception as error:
            failure = error
    yield from _made(wanted, job, known)
    if failure is not None or len(known) < len(wanted):
        missing = [shard for shard in wanted if shard.number not in known]
        yield from shard_making.found(missing, job)  # with the reasons of their failures
        raise _unexplained(len(missing), job.options.runner, failure) from failure


def build(wanted: Sequence[Shard], job: Job, options: PipelineOptions) -> beam.Pipeline:
    """The pipeline that makes shards."""
    pipeline = beam.Pipeline(job.options.runner, options)
    (
        pipeline
        | "Shards" >> beam.Create([shard.number for shard in wanted], reshuffle=False)
        | "Spread" >> beam.Reshuffle()
        | "Make" >> beam.ParDo(MakeShards(job))
    )
    return pipeline


def read_options(runner: str, words: Sequence[str]) -> PipelineOptions:
    """Beam's options from the words after `--`.

    The job servers of Flink and Spark, and what stands behind PortableRunner, have options of their own, which Beam
    asks them for; only DataflowRunner's are all known here.

    Raises:
      WrongSetting: a word is no option, its value is wrong, or the runner is named again.
    """
    for before, word in zip(("", *words), words, strict=False):
        if not word.startswith("-") and (not before.startswith("-") or "=" in before):
            raise WrongSetting(f"unexpected argument {word!r} after --: Beam's options are --name=value")
        if word.split("=")[0] == "--runner":
            raise WrongSetting(f"{word}: the runner stands before --, as --runner={runner}")
    given = PipelineOptions([*words], runner=runner)
    screen = io.StringIO()
    python_logging.disable(python_logging.WARNING)  # Beam logs what it does not know
    try:
        with contextlib.redirect_stderr(screen), contextlib.redirect_stdout(screen):
            known = given.get_all_options()
            unknown = given.get_all_options(retain_unknown_options=True).keys() - known.keys()
    except SystemExit as error:  # argparse has printed its usage and, in the last line, the problem; or its help
        lines = screen.getvalue().strip().splitlines()
        problem = lines[-1].partition("error: ")[2] if lines else ""
        raise WrongSetting(f"Beam's options: {problem or 'see https://beam.apache.org/documentation/'}") from error
    finally:
        python_logging.disable(python_logging.NOTSET)
    if unknown and runner == "DataflowRunner":
        raise WrongSetting(f"Beam has no option --{min(unknown)} for {runner}; its options are in Beam's documentation")
    if unknown:
        logging.info("Left to the job server of %s: %s", runner, ", ".join(f"--{name}" for name in sorted(unknown)))
    given.view_as(SetupOptions).save_main_session = False  # all that workers run is in the package
    return given


def _made(wanted: Sequence[Shard], job: Job, known: set[int]) -> Iterator[tuple[Shard, Result]]:
    """The shards that were finished since the last call."""
    for shard, result in shard_making.found(wanted, job, known):
        if result.counts:
            known.add(shard.number)
            yield shard, result


def _unexplained(missing: int, runner: str, failure: Exception | None) -> UserError:
    reason = f"{missing} shards have no result"
    if failure is not None:
        lines = [line.strip() for line in str(failure).splitlines() if line.strip()] or [""]
        in_worker = "Traceback" in lines[0]  # its last line is the exception
        reason = f"in a worker: {lines[-1]}" if in_worker else f"{type(failure).__name__}: {lines[0]}"
    return UserError(
        f"--runner={runner}: the job failed ({reason}); finished shards are kept, so run the same command again"
        " (--verbosity=1 shows Beam's log and traceback)"
    )


@contextlib.contextmanager
def _quiet_beam() -> Iterator[None]:
    """Shows only Beam's warnings; with --verbosity=1 everything. The results tell of errors in a line."""
    if logging.level_debug():
        yield
        return

    def keep(record: python_logging.LogRecord) -> bool:
        return record.name == "absl" or (record.levelno < python_logging.ERROR and not record.exc_info)

    handlers = [*python_logging.getLogger().handlers]
    for handler in handlers:
        handler.addFilter(keep)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(keep)
