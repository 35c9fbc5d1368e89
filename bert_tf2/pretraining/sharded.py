"""create_pretraining_data.py: as one output, or with --num_shards or --shard_megabytes as shards.

A shard is byte for byte what an unsharded run writes for the shard's text with the shard's seed; docs/scaling.md says
how to make one alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging as python_logging
import os
import re
from collections.abc import Iterator, Sequence
from types import ModuleType

from absl import logging

from bert_tf2.pretraining import example_files, sentences, shard_results, shard_workers, shards
from bert_tf2.pretraining.manifest import Manifest, describe, sha256
from bert_tf2.pretraining.options import CreatePretrainingDataOptions
from bert_tf2.pretraining.shard_making import Job, Result
from bert_tf2.pretraining.shards import Shard
from bert_tf2.support import console, environment, files, output_lock, outputs, progress
from bert_tf2.support.errors import UserError
from bert_tf2.support.remote_files import FsspecFiles
from bert_tf2.tokenization import FullTokenizer

_SAMPLES = 12
_BYTES_OF_SAMPLE = 32_000


def run(options: CreatePretrainingDataOptions) -> None:
    """Creates TFRecord files from text files: everything that create_pretraining_data.py does.

    Without `num_shards` and `shard_megabytes`, this is example_files.run. With one of them, it writes the shards
    OUTPUT-00000-of-00010 and so on and `manifest.json` beside them. A run that was stopped continues: finished shards
    are kept. A Python program that calls this function needs `if __name__ == "__main__":` around its work, because the
    worker processes import its main module.

    Raises:
      UserError: see example_files.run; the manifest is of a run with other flags, vocabulary or inputs; the disk is too
        small; a worker process was killed; or another run makes shards in the folder.
    """
    if not options.is_sharded:
        return example_files.run(options)
    from bert_tf2.weights import metadata  # late: it imports the readers of many formats

    sentences.splitter_version(options)  # raises an error if the library is missing
    engine = _engine(options)
    inputs = example_files.find_inputs(options.input_file)
    outputs.check(
        [outputs.Input(f"--{name}", getattr(options, name)) for name in ("input_file", "vocab_file")],
        [outputs.Output("--output_file", options.output_file)],
    )
    tokenizer = metadata.load_tokenizer(options.vocab_file, options.do_lower_case)
    do_lower_case = options.do_lower_case is not False
    example_files.warn_of_settings(options)
    folder = os.path.dirname(options.output_file)
    files.make_directory(folder)
    with output_lock.making_shards_in(folder):
        outputs.remove_leftovers(folder)
        _run(options, inputs, tokenizer, do_lower_case, engine)


def _run(
    options: CreatePretrainingDataOptions,
    inputs: Sequence[str],
    tokenizer: FullTokenizer,
    do_lower_case: bool,
    engine: ModuleType,
) -> None:
    sources = shards.open_sources(inputs, options.output_file, shared=bool(options.runner))
    try:
        total = sum(source.size for source in sources)
        count = shards.count_of(total, options.num_shards, options.shard_megabytes)
        planned = shards.cut(sources, count, options.output_file, options.random_seed, options.input_format)
        _refuse_to_overwrite_inputs(planned, inputs)
        manifest = Manifest(options.output_file, describe(options, do_lower_case, inputs, count), planned)
        job = Job(options, do_lower_case, tuple(sources), count, manifest.run, sha256(options.vocab_file))
        if options.runner:
            job = job.for_other_folders()
        for shard, result in shard_results.found(manifest.missing(), job):  # of a launcher that did not wait for them
            if result.counts:
                manifest.add(shard, result.counts)
        missing = manifest.missing()
        parts = shards.cut(sources, _SAMPLES, "", 0, options.input_format)
        try:
            _estimate(missing, parts, tokenizer, options)
            _make(missing, manifest, job, engine)
        except BaseException:
            if not options.runner:  # a job on a cluster may go on
                manifest.remove_if_empty()
            raise
    finally:
        shards.close_sources(sources)
    manifest.close()
    manifest.keep_index()
    shard_results.remove(planned)
    unpacked = [shards.unpacked_name(options.output_file, number) for number in range(len(sources))]
    _remove_remote_leftovers([*(shard.output for shard in planned), *unpacked, manifest.path])
    examples = manifest.total("examples")
    logging.info("Wrote %d examples", examples)
    if not examples:
        logging.warning("%s: not a single token; the output has no records", options.input_file)
    written = shards.pattern_of(options.output_file, count)
    following = example_files.next_command([written], options) if examples else None
    console.summary([written, manifest.path], next_command=following)


def _remove_remote_leftovers(written: Sequence[str]) -> None:
    """Removes partial files that killed processes of earlier runs left. Locally, outputs.remove_leftovers does."""
    folder = os.path.dirname(written[0])
    if not environment.is_remote(folder):
        return
    finals = {os.path.basename(path) for path in written}
    for name in files.list_directory(folder):
        if os.path.basename(environment.final_name(name)) in finals - {name}:
            files.remove(os.path.join(folder, name))


def _engine(options: CreatePretrainingDataOptions) -> ModuleType:
    """The module whose `make(wanted, job)` yields shards with their results, in any order.

    For --runner, remote files are accessed without TensorFlow from here on, as the workers do.

    Raises:
      UserError: its library is missing.
      WrongSetting: its options after -- are wrong.
    """
    if not options.runner:
        return shard_workers
    library, extra = ("distributed", "dask") if options.runner == "DaskRunner" else ("apache_beam", "beam")
    if not importlib.util.find_spec(library):
        raise UserError(
            f"--runner={options.runner} needs a package that is not installed, {library}: pip install '.[{extra}]' in"
            " the checkout"
        )
    python_logging.disable(python_logging.WARNING)  # Beam lists which of its extras are missing
    try:
        engine = importlib.import_module(f"bert_tf2.pretraining.{extra}_run")
    finally:
        python_logging.disable(python_logging.NOTSET)
    engine.read_options(options.runner, options.runner_options)
    files.use_remote(FsspecFiles())
    return engine


def _make(missing: Sequence[Shard], manifest: Manifest, job: Job, engine: ModuleType) -> None:
    """Makes shards and lists them in the manifest.

    Raises:
      UserError: a shard cannot be made, or a worker was killed.
      RuntimeError: a worker has a bug; the message has its traceback.
    """
    kept = job.count - len(missing)
    if kept:
        logging.info("%d of %d shards are finished and kept", kept, job.count)
    if not missing:
        return
    warned: set[str] = set()
    made: Iterator[tuple[Shard, Result]] = engine.make(missing, job)
    with contextlib.closing(made), progress.Progress("Making shards", job.count, "shards", done=kept) as shown:
        for shard, result in made:
            _warn(result.warnings, shard, warned)
            if result.error:
                raise UserError(result.error)
            if result.counts is None:
                raise RuntimeError(f"shard {shard.number}:\n{result.bug}")
            manifest.add(shard, result.counts)
            shown.advance(1, note=f"{manifest.total('examples'):,} examples")


def _warn(lines: Sequence[str], shard: Shard, warned: set[str]) -> None:
    """Logs warnings of a shard, except those of other shards that differ only in numbers and in the input's name."""
    for line in lines:
        kind = line.replace(shard.pieces[0].source.name, "") if shard.pieces else line
        kind = re.sub(r"\d+", "", kind)
        if kind not in warned:
            logging.warning("%s (similar warnings about other shards are not shown)", line)
        warned.add(kind)


def _refuse_to_overwrite_inputs(planned: Sequence[Shard], inputs: Sequence[str]) -> None:
    """Raises UserError if a shard has the name of an input."""
    read = {outputs.identity(name): name for name in inputs}
    for shard in planned:
        if name := read.get(outputs.identity(shard.output)):
            raise UserError(f"{shard.output}: is also read from (--input_file, {name}); give another --output_file")


def _estimate(
    missing: Sequence[Shard], parts: Sequence[Shard], tokenizer: FullTokenizer, options: CreatePretrainingDataOptions
) -> None:
    """Logs how much will be written, from the examples of a little text.

    Args:
      missing: what will be made.
      parts: the corpus in a few parts; the beginning of each is looked at.
      tokenizer: of the run.
      options: of the run.

    Raises:
      UserError: the disk is too small.
    """
    text_size = sum(shard.size for shard in missing)
    if not text_size:
        return
    text_bytes = num_examples = record_bytes = 0
    with _quiet():
        for size, examples, written in _samples(parts, tokenizer, options):
            text_bytes += size
            num_examples += examples
            record_bytes += written
    if not text_bytes:
        return
    factor = text_size / text_bytes * options.dupe_factor
    expected = round(record_bytes * factor)
    logging.info(
        "To make: %d shards from %s of text, about %s examples, %s",
        len(missing), environment.human(text_size), f"{num_examples * factor:,.0f}", environment.human(expected),
    )  # fmt: skip
    folder = os.path.dirname(options.output_file) or "."
    environment.check_space(folder, expected * 9 // 10, "the shards", expected)


def _samples(
    parts: Sequence[Shard], tokenizer: FullTokenizer, options: CreatePretrainingDataOptions
) -> Iterator[tuple[int, int, float]]:
    """The bytes of the beginning of each part; the examples of one pass over it, and the bytes of their records."""
    once = dataclasses.replace(options, dupe_factor=1)
    text = shards.scratch_beside(f"{options.output_file}.sample")
    for part in parts:
        try:
            shards.write_text(part.pieces, text, _BYTES_OF_SAMPLE)
            with contextlib.suppress(UserError):  # the worker reports text that is not UTF-8, with its line
                yield os.path.getsize(text), *example_files.measure([text], tokenizer, once)
        finally:
            with contextlib.suppress(OSError):
                os.remove(text)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides the log while samples are read; the workers report what is wrong with the text."""
    logger = logging.get_absl_logger()
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
