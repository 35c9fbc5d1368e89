"""Converts weights between formats: the work of convert_checkpoint.py after its flags are parsed.

The arrays are read and written one at a time, under the reference's names and shapes. Nothing is omitted silently: the
messages that `run` returns name the variables that were not converted.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.config import LAYER_NORM_EPSILON, not_in_shapes
from bert_tf2.support import files, output_lock
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.process import load_tensorflow
from bert_tf2.weights import bundle, huggingface, keras_files, model_folder, names, sources, task_file, text_rules
from bert_tf2.weights.base import CONFIG_FILE, VOCABULARY_FILE, Weights
from bert_tf2.weights.model_folder import ModelFiles
from bert_tf2.weights.new_words import extend, with_more_positions, with_new_words
from bert_tf2.weights.options import ConversionOptions
from bert_tf2.weights.sources import open_weights
from bert_tf2.weights.text_rules import TOKENIZATION_FILE


def run(options: ConversionOptions) -> Iterable[str]:
    """Converts weights; returns messages about the files and variables that were read, written, changed and omitted.

    With `list`, yields the lines of `listing` instead, while the variables are read.
    """
    if options.list:
        return listing(options.list)
    _check_files(options)
    report: list[str] = []
    source, beside = _read(options, report)
    source, beside = _extend(options, source, beside, report)
    write = {"tf1": _write_tf1, "hf": _write_huggingface, "keras": _write_keras}[options.to]
    with output_lock.locked(options.output):
        _check_files(options)  # again: training or another conversion may have begun there before the lock
        written = write(options, source, beside, report)
    left_out = [name for name in source.shapes if name not in {*written}]
    others = [name for name in left_out if not names.is_optimizer_state(name)]
    if state := len(left_out) - len(others):
        report.append(f"Left out: {state} variables of the optimizer.")
    if others:
        report.append(f"Left out: {', '.join(others)}.")
    if beside.vocabulary is None:
        report.append("No vocabulary was found, and none written (--vocab_file).")
    return report


_COMPANIONS = (
    *(VOCABULARY_FILE, CONFIG_FILE, task_file.LABEL_MAP_FILE, task_file.NAME, TOKENIZATION_FILE),
    *("config.json", "tokenizer_config.json", "tokenizer.json", "added_tokens.json"),
)


def _check_files(options: ConversionOptions) -> None:
    """Raises UserError if the output is no local folder where one is needed, or holds a model."""
    output, to = options.output, options.to
    if output.endswith((".keras", ".h5", ".index", ".safetensors", ".bin")) and not files.is_directory(output):
        raise UserError(f"--output={output}: --to={to} writes a folder; give the name of one")
    if to != "tf1" and files.is_remote(output):
        raise UserError(f"--output={output}: --to={to} writes to local folders only; write it there and copy it")
    # The new files would be mixed with the files of a model, or of a part of a model, that is there already.
    there = [name for name in files.list_directory(output) if name in _COMPANIONS or sources.WEIGHTS.fullmatch(name)]
    if there or (files.exists(output) and not files.is_directory(output)):
        what = f"holds {and_more(there, 3)}" if there else "exists"
        raise UserError(f"--output={output}: {what} already; give another name, or remove the old model first")


def _read(options: ConversionOptions, report: list[str]) -> tuple[Weights, ModelFiles]:
    """Opens the input and the files beside it. Raises UserError if they do not fit each other."""
    source, path = open_weights(options.input), options.vocab_file
    report += [f"Read {source.path} ({source.kind}, {len(source.shapes)} variables).", *source.remarks]
    config = model_folder.find_config(source, options.bert_config_file)
    report += model_folder.check_config(source, config)
    if options.hidden_act:
        config = dataclasses.replace(config, hidden_act=options.hidden_act)
    vocabulary = tokenization.read_entries(path) if path else source.vocabulary()
    if vocabulary is not None:  # `find_tokenizer` refuses and warns of the same vocabularies as in `load`
        text_rules.find_tokenizer(source, config, path, options.do_lower_case)
    rows = names.known(config.num_hidden_layers)
    sources.check_fit(source, names.shapes_of(rows, config, source.num_labels))
    stated, lower = text_rules.stated_text(source, path), options.do_lower_case
    lower = stated.do_lower_case if lower is None else lower
    if task := task_file.read(source.folder):
        made_with = {**task.get(task_file.MADE_WITH, {}), **not_in_shapes(config)}
        task = {**task, task_file.MADE_WITH: made_with}
    beside = ModelFiles(config, vocabulary, lower, stated.rules, task_file.label_map_of(source), task)
    if lower is None and vocabulary is not None:
        what = "an uncased model: almost no entry has" if beside.lowers_case else "a cased model: the vocabulary has"
        report.append(f"Taken for {what} capitals or accents (--do_lower_case).")
    return source, beside


def _extend(
    options: ConversionOptions, source: Weights, beside: ModelFiles, report: list[str]
) -> tuple[Weights, ModelFiles]:
    """Adds the words and positions that the options name."""
    for flag in ("extend_vocab", "never_split"):
        if not (path := getattr(options, flag)):
            continue
        if beside.vocabulary is None:
            raise UserError(f"--{flag} needs the vocabulary of the model: give --vocab_file")
        basic, rules = tokenization.BasicTokenizer(beside.lowers_case, **beside.rules), beside.rules
        extension = extend(beside.vocabulary, path, basic, kept=flag == "never_split")
        report.append(extension.describe(len(beside.vocabulary)) + ".")
        if flag == "never_split":
            rules = {**rules, "never_split": sorted({*basic.never_split, *extension.words})}
        source = with_new_words(source, beside.config, extension)
        beside = dataclasses.replace(beside, config=source.config, vocabulary=extension.vocabulary, rules=rules)
    if count := options.extend_positions:
        before = beside.config.max_position_embeddings
        if count <= before:
            raise UserError(f"--extend_positions={count}: the model has {before} positions; give a larger number")
        source = with_more_positions(source, beside.config, count)
        beside = dataclasses.replace(beside, config=source.config)
        report.append(f"Positions: {count} in place of {before}.")
        report.append(f"Those from {before} on are copies, which nobody has trained: train on longer texts.")
    return source, beside


def _weights(source: Weights, beside: ModelFiles) -> list[str]:
    """The variables of the input that belong to a model, in the order of `names`."""
    rows = names.known(beside.config.num_hidden_layers)
    return [row.reference for row in rows if row.reference in source.shapes]


# Each writes the files, reports the files, and returns the names of the written variables.


def _write_tf1(options: ConversionOptions, source: Weights, beside: ModelFiles, report: list[str]) -> Iterable[str]:
    prefix, config = os.path.join(options.output, "bert_model.ckpt"), beside.config
    others = [] if options.weights_only else source.dtypes.items()
    chosen = dict.fromkeys([*_weights(source, beside), *(name for name, dtype in others if dtype != "string")])
    bundle.write(prefix, source.arrays(chosen))
    beside.write(options.output)
    report.append(f"Wrote {prefix}: {len(chosen)} variables.")
    if config.hidden_act == "gelu_erf" or config.layer_norm_eps != LAYER_NORM_EPSILON:
        report.append(
            f'Its bert_config.json says hidden_act "{config.hidden_act}" and layer_norm_eps {config.layer_norm_eps};'
            " google-research/bert knows no gelu_erf, the exact function (--hidden_act=gelu writes its approximation;"
            " the two differ by less than 5e-4), and no other layer_norm_eps than 1e-12."
        )
    return chosen


def _write_huggingface(
    options: ConversionOptions, source: Weights, beside: ModelFiles, report: list[str]
) -> Iterable[str]:
    chosen = _weights(source, beside)
    report += huggingface.write_folder(options.output, source.shapes, source.arrays(chosen), beside)
    return chosen


def _write_keras(options: ConversionOptions, source: Weights, beside: ModelFiles, report: list[str]) -> Iterable[str]:
    load_tensorflow()  # only this target needs it
    from bert_tf2 import layers
    from bert_tf2.weights import checkpoint

    with layers.initial_weights_from(0):
        model = checkpoint.make_model(source, beside.config, beside.labels)
    variables, path = names.tf1_variables(model), os.path.join(options.output, "bert_model.keras")
    for name, value in source.arrays(_weights(source, beside)):
        if name in variables:
            variables[name].assign(value)
    keras_files.write(path, model)
    beside.write(options.output)
    report.append(f"Wrote {path}: a {type(model).__name__}.")
    if fresh := [name for name in variables if name not in source.shapes]:
        report.append(f"Not in the input, and random now: {', '.join(fresh)}.")
    return variables


def listing(path: str) -> Iterator[str]:
    """Yields a line for every variable of weights of any kind: name, Hugging Face name, shape, size, dtype, norm.

    The last line counts the parameters of the model, and separately the numbers of the optimizer.
    """
    source = open_weights(path)
    step = f", step {source.global_step}" if source.global_step else ""
    yield f"{source.path}: {source.kind}, {len(source.shapes)} variables{step}"
    there = {row.reference: row.huggingface for row in names.known(names.num_layers(source.shapes))}
    columns = [max(map(len, column), default=0) for column in (source.shapes, there.values())]
    weights = {*names.without_optimizer(source.shapes)}
    counts = {True: 0, False: 0}  # parameters, others
    for name in sorted(source.shapes):
        value, norm = source.get(name), "-"
        if value.dtype.kind in "fiub":
            counts[name in weights] += value.size
            norm = f"{np.linalg.norm(value.astype(np.float64)):.6g}"
        yield (
            f"{name:<{columns[0]}}  {there.get(name, '-'):<{columns[1]}}  {source.shapes[name]!s:<14} {value.size:>11,}"
            f"  {source.dtypes[name]:<9} {norm}"
        )
    others = f", and {counts[False]:,} numbers of the optimizer and the step" if counts[False] else ""
    yield f"{counts[True]:,} parameters{others}"
