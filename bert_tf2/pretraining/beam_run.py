"""Makes shards on a cluster: an Apache Beam pipeline with an element per shard.

    Create(shards) -> Reshuffle -> ParDo(MakeShards)

An element is a few numbers. No text and no record passes through Beam: the workers read the corpus and write the shards
on storage that all machines see, so no runner has to hold, group or move the corpus. Without Reshuffle, a runner may
make all shards where it created the list. The results come back as files (`shard_results`).
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import io
import logging as python_logging
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, TextIO

import apache_beam as beam
from absl import logging
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
from apache_beam.portability import python_urns
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState

from bert_tf2.pretraining import shard_results, shard_workers
from bert_tf2.pretraining.beam_files import BeamFiles
from bert_tf2.pretraining.shard_results import Job, Packed
from bert_tf2.pretraining.shards import Shard
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import WrongSetting

_COUNTED = ("documents", "sentences", "examples", "masked_tokens", "bytes")
_SECONDS_BETWEEN_LOOKS = 2.0
_LOG_OF_WORKERS = "apache_beam.runners.portability.local_job_service"
_SHARE_FOR_LOOKS = 0.05  # of the time, at most: a folder with many files takes long to list


class MakeShards(beam.DoFn):
    """Makes the shards that it gets, and counts what the manifest counts."""

    def __init__(self, job: Job):
        self._job = job
        self._tokenizer: Any = None
        self._counters = {name: Metrics.counter("bert_tf2", name) for name in ("shards", *_COUNTED)}

    def setup(self) -> None:
        """Loads the vocabulary, once per worker. An error waits for a shard, whose result can tell it."""
        files.use_remote(BeamFiles())
        try:
            self._tokenizer = shard_results.load_tokenizer(self._job)
        except UserError as error:
            self._tokenizer = error

    def process(self, element: Packed) -> None:
        counts = shard_results.make(self._job.unpack(element), self._tokenizer, self._job)
        for name, counter in self._counters.items():
            counter.inc(counts.get(name, 1))


class DirectRunner(FnApiRunner):
    """Beam's runner for one machine, with the worker processes of this package if it uses any.

    The class behind the name "DirectRunner" downloads and starts another program first, if it can.
    """

    def run_via_runner_api(self, pipeline_proto: Any, options: PipelineOptions) -> Any:
        for environment in pipeline_proto.components.environments.values():
            if environment.urn == python_urns.SUBPROCESS_SDK:
                command = [sys.executable, "-m", "bert_tf2.pretraining.beam_worker", str(os.getpid())]
                command += [] if logging.level_debug() else ["--quiet"]
                environment.payload = f"exec {shlex.join(command)}".encode()
        return super().run_via_runner_api(pipeline_proto, options)


def make(wanted: Sequence[Shard], job: Job) -> Iterator[tuple[Shard, dict[str, Any]]]:
    """Makes shards on the runner of the options; yields each with its counts when its result is seen.

    Args:
      wanted: the shards.
      job: the job.

    Raises:
      UserError: Beam's options are wrong, the job failed, or a worker could not make a shard.
      RuntimeError: a worker has a bug; the message has its traceback.
    """
    shard_results.remove(wanted)  # failures of an earlier job
    options = job.setup.options
    pipeline = build(wanted, job, read_options(options.runner, options.beam_options))
    warned: set[str] = set()
    known: set[int] = set()
    with _quiet_beam():
        running = _start(pipeline, options.runner)
        threading.excepthook = functools.partial(_notice_dead_worker, running)
        pause = _SECONDS_BETWEEN_LOOKS
        while not running.done():
            _wait(running, pause)
            before = time.monotonic()
            yield from _new(wanted, job, known, warned)
            pause = max(_SECONDS_BETWEEN_LOOKS, (time.monotonic() - before) / _SHARE_FOR_LOOKS)
        failure = running.exception()
    yield from _new(wanted, job, known, warned)
    missing = [shard for shard in wanted if shard.number not in known]
    if failure is not None or missing:
        try:
            _explain_failure(missing, job, failure)
        finally:
            if options.runner == "DirectRunner":  # its workers have ended
                # A local manifest has what the results tell; a remote one is some seconds behind.
                shard_results.remove(wanted, results=not files.is_remote(options.output_file))


def build(wanted: Sequence[Shard], job: Job, options: PipelineOptions) -> beam.Pipeline:
    """The pipeline that makes shards."""
    runner = DirectRunner() if job.setup.options.runner == "DirectRunner" else job.setup.options.runner
    pipeline = beam.Pipeline(runner, options)
    (
        pipeline
        | "Shards" >> beam.Create([job.pack(shard) for shard in wanted], reshuffle=False)
        | "Spread" >> beam.Reshuffle()
        | "Make" >> beam.ParDo(MakeShards(job))
    )
    return pipeline


def read_options(runner: str, words: Sequence[str]) -> PipelineOptions:
    """Beam's options from the words after `--`.

    The job servers of Flink and Spark, and what stands behind PortableRunner, have options of their own, which Beam
    asks them for; only DirectRunner's and DataflowRunner's are all known here.

    Raises:
      WrongSetting: a word is no option, its value is wrong, or the runner is named again.
    """
    for before, word in zip(("", *words), words, strict=False):
        if not word.startswith("-") and (not before.startswith("-") or "=" in before):
            raise WrongSetting(f"unexpected argument {word!r} after --: Beam's options are --name=value")
        if word.split("=")[0] == "--runner":
            raise WrongSetting(f"{word}: the runner stands before --, as --runner={runner}")
    given = PipelineOptions([*words], **({} if runner == "DirectRunner" else {"runner": runner}))
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
    if unknown and runner in ("DirectRunner", "DataflowRunner"):
        name = min(unknown)
        near = " or ".join(f"--{n}" for n in difflib.get_close_matches(name, known, n=2, cutoff=0.75))
        raise WrongSetting(f"Beam has no option --{name} for {runner}" + (f"; did you mean {near}?" if near else ""))
    if unknown:
        logging.info("Left to the job server of %s: %s", runner, ", ".join(f"--{name}" for name in sorted(unknown)))
    given.view_as(SetupOptions).save_main_session = False  # all that workers run is in the package
    return given


def _start(pipeline: beam.Pipeline, runner: str) -> Future:
    """Runs a pipeline in a thread, while the main thread looks at the results and gets the signals.

    Runners for clusters start in the main thread, because some set signal handlers. DirectRunner's `run` returns at the
    end; its processes are started with signals blocked, so that Ctrl-C in a terminal, which reaches them too, makes
    them print nothing. They end when the connection to this process does.
    """
    running: Future = Future()
    try:
        result = None if runner == "DirectRunner" else pipeline.run()
    except Exception as error:
        running.set_exception(error)
        return running

    def work() -> None:
        try:
            _finish(result or pipeline.run())
            _end(running)
        except BaseException as error:
            _end(running, error)

    with shard_workers.blocking_interrupts():
        threading.Thread(target=work, daemon=True).start()
    return running


def _end(running: Future, error: BaseException | None = None) -> None:
    with contextlib.suppress(InvalidStateError):  # it has ended otherwise
        running.set_exception(error) if error else running.set_result(None)


def _notice_dead_worker(running: Future, failed: Any) -> None:
    """Ends the job for which DirectRunner would wait forever, when the thread that looks after a worker fails."""
    if failed.thread is not None and failed.thread.name == "run_worker":
        _end(running, failed.exc_value)


def _finish(result: Any) -> None:
    state = result.wait_until_finish() or result.state
    if state != PipelineState.DONE:
        raise RuntimeError(f"it ended in the state {state}")


def _wait(running: Future, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        running.exception(seconds)


def _new(
    wanted: Sequence[Shard], job: Job, known: set[int], warned: set[str]
) -> Iterator[tuple[Shard, dict[str, Any]]]:
    """The shards that were finished since the last call."""
    for shard, result in shard_results.found(wanted, job, known):
        if result.counts:
            known.add(shard.number)
            shard_workers.warn(result.warnings, shard, warned)
            yield shard, result.counts


def _explain_failure(missing: Sequence[Shard], job: Job, failure: BaseException | None) -> None:
    for shard, result in shard_results.found(missing, job):
        if result.error:
            raise UserError(result.error) from failure
        raise RuntimeError(f"shard {shard.number}:\n{result.bug}") from failure
    runner = job.setup.options.runner
    lines = [line.strip() for line in str(failure or "").splitlines() if line.strip()]
    kind = type(failure).__name__
    if lines and lines[0].startswith("Traceback"):  # a worker's, whose last line is the exception
        lines, kind = lines[-1:], "in a worker"
    reason = f"{kind}: {lines[0]}" if lines else f"{kind}" if failure else f"{len(missing)} shards have no result"
    raise UserError(
        f"--runner={runner}: the job failed ({reason}); finished shards are kept, so run the same command again"
        " (--verbosity=1 shows Beam's log and traceback)"
    ) from failure


@contextlib.contextmanager
def _quiet_beam() -> Iterator[None]:
    """Shows only Beam's warnings, without tracebacks of workers, whose results tell the same in a line.

    With --verbosity=1 it shows everything.
    """
    if logging.level_debug():
        yield
        return

    def keep(record: python_logging.LogRecord) -> bool:
        if record.name == "absl":
            return True
        return record.levelno < python_logging.ERROR and not record.exc_info and record.name != _LOG_OF_WORKERS

    handlers, hook, others = [*python_logging.getLogger().handlers], threading.excepthook, {*threading.enumerate()}
    for handler in handlers:
        handler.addFilter(keep)
    try:
        with contextlib.redirect_stderr(_OfMainThread(sys.stderr)):
            yield
    finally:
        late = {*threading.enumerate()} - others  # when a worker was killed, these fail after the job
        threading.excepthook = lambda failed: None if failed.thread in late else hook(failed)
        silent = {thread.ident for thread in late}
        for handler in handlers:
            handler.removeFilter(keep)
            if silent:
                handler.addFilter(lambda record: record.thread not in silent)


class _OfMainThread:
    """A stream that drops what other threads write: Beam's workers print tracebacks."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text) if threading.current_thread() is threading.main_thread() else len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
