"""Implements create_pretraining_data.py: text files in, TFRecord files of examples out.

    corpus     text files -> sentences -> ids
    examples   sentences -> pairs with masks, as numbers
    features   these numbers -> features -> records in files
    shards     a part of the text -> a file, in worker processes; with `dask_run` on a cluster
    manifest   the finished shards

A shard has the same bytes as the output of an unsharded run for the shard's text with the shard's seed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence

from absl import logging

from bert_tf2 import tokenization
from bert_tf2.pretraining import corpus, features, shards
from bert_tf2.pretraining.manifest import NAME, Manifest
from bert_tf2.pretraining.options import CreatePretrainingDataOptions
from bert_tf2.pretraining.shards import Job, Result, Shard
from bert_tf2.support import console, errors, files, output_lock, outputs, progress
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights import text_rules

Maker = Callable[[Sequence[Shard], Job], Iterator[tuple[Shard, Result]]]
"""Makes shards, and yields them in any order; see `shards.make`."""

_MANY_PASSES = 5


def run(options: CreatePretrainingDataOptions, maker: Maker | None = None) -> None:
    """Creates TFRecord files from text files: everything that create_pretraining_data.py does.

    A sharded run writes `manifest.json` beside the shards. A run that was stopped continues: finished shards are kept.

    Args:
      options: the settings.
      maker: makes the shards; defaults to worker processes, or the cluster that the options name.
    """
    output_files = [options.output_file]
    if options.num_shards is None:
        output_files = [name.strip() for name in options.output_file.split(",")]
    else:
        maker = maker or _maker(options)
    input_files, tokenizer = _prepare(options, output_files)
    if options.num_shards is None:
        logging.info("Reading %s", and_more(input_files, 8))
        with files.made_directory(os.path.dirname(output_files[0])):
            _, drawn = features.make_files(input_files, output_files, tokenizer, options, options.random_seed)
        written, count = output_files, len(drawn)
    else:
        manifest = _run_shards(options, input_files, tokenizer, maker)
        written = [shards.name_of(options.output_file, None, options.num_shards), manifest.path]
        count = manifest.total("examples")
        logging.info("Wrote %d examples", count)
    if not count:
        logging.warning("%s: not a single token; the output has no records", options.input_file)
    console.summary(written)


def _prepare(
    options: CreatePretrainingDataOptions, output_files: Sequence[str]
) -> tuple[list[str], tokenization.FullTokenizer]:
    """Checks what can be checked before the work; returns the input files and the tokenizer.

    A pattern that matches nothing is ignored, as in the reference, but with a warning.
    """
    corpus.splitter_version(options)  # raises an error if the library is missing
    input_files = files.match_files(options.input_file, skip_unmatched=True)
    outputs.check(
        {name: getattr(options, name) for name in ("input_file", "vocab_file")},
        [outputs.Output("output_file", name) for name in output_files],
    )
    tokenizer = text_rules.load_tokenizer(options.vocab_file, options.do_lower_case)
    if options.dynamic_masking and options.dupe_factor >= _MANY_PASSES:
        logging.warning(
            "--dupe_factor=%d: with --dynamic_masking, the passes differ only in their pairs; 1 needs less disk",
            options.dupe_factor,
        )
    wanted = round(options.max_seq_length * options.masked_lm_prob)
    if options.max_predictions_per_seq < wanted:
        logging.warning(
            "--max_predictions_per_seq=%d: a full sequence of %d tokens would have %d at --masked_lm_prob=%g",
            options.max_predictions_per_seq, options.max_seq_length, wanted, options.masked_lm_prob,
        )  # fmt: skip
    return input_files, tokenizer


# Shards


def _maker(options: CreatePretrainingDataOptions) -> Maker:
    if not options.dask_scheduler:
        return shards.make
    try:
        from bert_tf2.pretraining import dask_run
    except ImportError as error:
        raise UserError(f"--dask_scheduler needs the extra `dask` ({error}): pip install '.[dask]'") from error
    return dask_run.make


def _run_shards(
    options: CreatePretrainingDataOptions, inputs: Sequence[str], tokenizer: tokenization.FullTokenizer, maker: Maker
) -> Manifest:
    """Makes the shards that are not finished; returns the manifest of all."""
    folder, name = os.path.split(options.output_file.removesuffix(files.GZIP_ENDING))
    with output_lock.locked(folder or ".", "making of shards"):
        outputs.remove_leftovers(folder)
        with shards.opened(inputs, options.output_file) as sources:
            cuts = shards.cut(sources, options.num_shards, options.input_format)
            job = Job(options, tokenizer, sources, cuts)
            manifest = Manifest(job)
            try:
                _make(manifest, job, maker)
            except BaseException:
                manifest.end_early()
                raise
        manifest.save(complete=True)
        manifest.keep_index()
        # The partial files of workers that were killed, on any machine
        for partial in files.list_directory(folder or "."):
            if partial.startswith((f".{name}-", f".{NAME}.")) and errors.final_name(partial) != partial:
                files.remove(os.path.join(folder, partial))
    return manifest


def _make(manifest: Manifest, job: Job, maker: Maker) -> None:
    """Makes the missing shards. Raises RuntimeError with the traceback of a worker that failed."""
    missing = manifest.missing()
    if kept := len(job) - len(missing):
        logging.info("%d of %d shards are finished and kept", kept, len(job))
    if not missing:
        return
    if job.cuts[-1]:
        _warn_of_few_documents(job)
    warned: set[str] = set()
    made = maker(missing, job)
    with contextlib.closing(made), progress.Progress("Making shards", len(job), "shards", done=kept) as shown:
        for shard, result in made:
            for line in result.warnings:
                # Warnings of shards differ in numbers and in the input's name.
                kind = re.sub(r"\d+", "", line.replace(shard.pieces[0].source.name, "") if shard.pieces else line)
                if kind not in warned:
                    logging.warning("%s (similar warnings about other shards are not shown)", line)
                warned.add(kind)
            if result.error:
                raise UserError(result.error)
            if result.counts is None:
                raise RuntimeError(f"shard {shard.number}:\n{result.bug}")
            manifest.add(shard, result.counts)
            shown.advance(1, note=f"{manifest.total('examples'):,} examples")


def _warn_of_few_documents(job: Job) -> None:
    """Warns if a tenth of the shards has too few documents; names a number of shards that is low enough."""
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
        advice = f"give --num_shards={len(job)} or fewer" if len(job) else features.FEW_DOCUMENTS
        logging.warning("%s; %s", few, advice)
