"""create_pretraining_data.py: as one output, or with --num_shards as shards.

A shard is byte for byte what an unsharded run writes for the shard's text with the shard's seed; docs/scaling.md says
how to make one alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from types import ModuleType

from absl import logging

from bert_tf2.pretraining import example_files, shard_making, shards
from bert_tf2.pretraining.manifest import NAME, Manifest
from bert_tf2.pretraining.options import CreatePretrainingDataOptions
from bert_tf2.pretraining.shard_making import Result
from bert_tf2.pretraining.shards import Job, Shard
from bert_tf2.support import environment, files, gzip_files, output_lock, outputs, progress
from bert_tf2.support.errors import UserError


def run(options: CreatePretrainingDataOptions) -> None:
    """Creates TFRecord files from text files: everything that create_pretraining_data.py does.

    Beside shards stands `manifest.json`. A run that was stopped continues: finished shards are kept.
    """
    if options.num_shards is None:
        return example_files.run(options)
    engine = _engine(options)
    inputs, tokenizer = example_files.prepare(options, [options.output_file])
    folder = os.path.dirname(options.output_file)
    files.make_directory(folder)
    with output_lock.locked(folder or ".", "making of shards"):
        outputs.remove_leftovers(folder)
        with shards.opened(inputs, options.output_file) as sources:
            cuts = shards.cut(sources, options.num_shards, options.input_format)
            job = Job(options, tokenizer, sources, cuts)
            manifest = Manifest(job)
            try:
                _make(manifest, job, engine)
            except BaseException:
                manifest.end_early()
                raise
        manifest.save(complete=True)
        manifest.keep_index()
        _remove_partial(options.output_file)
    examples = manifest.total("examples")
    logging.info("Wrote %d examples", examples)
    written = shards.name_of(options.output_file, None, options.num_shards)
    example_files.tell_summary([written, manifest.path], options, examples)


def _remove_partial(output_file: str) -> None:
    """Removes what workers that were killed, on whatever machine, left of the files of a run that is complete."""
    folder, name = os.path.split(output_file.removesuffix(gzip_files.ENDING))
    for partial in files.list_directory(folder or "."):
        if partial.startswith((f".{name}-", f".{NAME}.")) and environment.final_name(partial) != partial:
            files.remove(os.path.join(folder, partial))


def _engine(options: CreatePretrainingDataOptions) -> ModuleType:
    """The module whose `make(wanted, job)` yields shards with their results, in any order."""
    if not options.dask_scheduler:
        return shard_making
    try:
        from bert_tf2.pretraining import dask_run
    except ImportError as error:
        raise UserError(f"--dask_scheduler needs the extra `dask` ({error}): pip install '.[dask]'") from error
    return dask_run


def _make(manifest: Manifest, job: Job, engine: ModuleType) -> None:
    """Makes the shards that are missing; a RuntimeError has the traceback of a worker."""
    missing = manifest.missing()
    if kept := len(job) - len(missing):
        logging.info("%d of %d shards are finished and kept", kept, len(job))
    if not missing:
        return
    if job.cuts[-1]:
        _warn_of_few_documents(job)
    warned: set[str] = set()
    made: Iterator[tuple[Shard, Result]] = engine.make(missing, job)
    with contextlib.closing(made), progress.Progress("Making shards", len(job), "shards", done=kept) as shown:
        for shard, result in made:
            _warn(result.warnings, shard, warned)
            if result.error:
                raise UserError(result.error)
            if result.counts is None:
                raise RuntimeError(f"shard {shard.number}:\n{result.bug}")
            manifest.add(shard, result.counts)
            shown.advance(1, note=f"{manifest.total('examples'):,} examples")


def _warn(lines: Sequence[str], shard: Shard, warned: set[str]) -> None:
    """Logs warnings, except those of other shards that differ only in numbers and in the input's name."""
    for line in lines:
        kind = line.replace(shard.pieces[0].source.name, "") if shard.pieces else line
        kind = re.sub(r"\d+", "", kind)
        if kind not in warned:
            logging.warning("%s (similar warnings about other shards are not shown)", line)
        warned.add(kind)


def _warn_of_few_documents(job: Job) -> None:
    """Warns if a tenth of the shards has too few documents, with a number of shards that have enough."""
    given, pairs, few = job.options.input_format, job.options.objective == "mlm_nsp", ""
    while len(job):
        found = [shards.count_documents(job.shard(number).pieces, given) for number in range(len(job))]
        empty, single = found.count(0), found.count(1) * pairs
        if 10 * (empty + single) <= len(job):
            break
        one = f' and {single:,} are one document, from which their "random" next sentences are taken too'
        few = few or f"{empty:,} of {len(job):,} shards have no text{one * pairs}"
        half = len(job) // 2
        job = dataclasses.replace(job, cuts=shards.cut(job.sources, half, given) if half else (0,))
    if few:
        advice = f"give --num_shards={len(job)} or fewer" if len(job) else example_files.FEW_DOCUMENTS
        logging.warning("%s; %s", few, advice)
