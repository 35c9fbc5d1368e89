"""Converts weights between formats: the work of convert_checkpoint.py after its flags are parsed.

The arrays are read and written one at a time, under the reference's names and shapes. Nothing is omitted silently: the
messages that `run` returns name the variables that were not converted.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.config import LAYER_NORM_EPSILON
from bert_tf2.support import files, output_lock, outputs
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.process import load_tensorflow
from bert_tf2.weights import bundle, huggingface, keras_files, names, sources, task_file, text_rules
from bert_tf2.weights.base import CONFIG_FILE, VOCABULARY_FILE, check_finite
from bert_tf2.weights.new_words import extend, with_more_positions, with_new_words
from bert_tf2.weights.options import ConversionOptions
from bert_tf2.weights.sources import find_config, open_weights
from bert_tf2.weights.text_rules import TOKENIZATION_FILE, Stated, record_of


def run(options: ConversionOptions) -> list[str]:
    """Converts weights; returns messages about the files and variables that were read, written, changed and omitted."""
    if options.list:
        return listing(options.list)
    _check_files(options)
    conversion = _Conversion(options)
    files.make_directory(options.output)
    with output_lock.locked(options.output):
        _check_files(options)  # again: training or another conversion may have begun there before the lock
        conversion.write()
    return conversion.report


# The files that each value of --to writes into a folder, besides the companions.
_WRITTEN = {"tf1": ["bert_model.ckpt.*"], "hf": ["config.json", "model.safetensors"], "keras": ["bert_model.keras"]}
_COMPANIONS = (
    *(VOCABULARY_FILE, CONFIG_FILE, task_file.LABEL_MAP_FILE, task_file.NAME, TOKENIZATION_FILE),
    *("config.json", "tokenizer_config.json", "tokenizer.json", "added_tokens.json"),
)


def _check_files(options: ConversionOptions) -> None:
    """Raises UserError if the output would overwrite an input or another model, or cannot be written."""
    output, to = options.output, options.to
    if output.endswith((".keras", ".h5", ".index", ".safetensors", ".bin")) and not files.is_directory(output):
        raise UserError(f"--output={output}: --to={to} writes a folder; give the name of one")
    if to != "tf1" and files.is_remote(output):
        raise UserError(f"--output={output}: --to={to} writes to local folders only; write it there and copy it")
    flags = ("bert_config_file", "vocab_file", "extend_vocab", "never_split")
    inputs = {flag: path for flag in flags if (path := getattr(options, flag))}
    outputs.check(inputs, [outputs.Output("output", output, _WRITTEN[to])])
    # The new files would be mixed with the files of a model, or of a part of a model, that is there already.
    there = [name for name in files.list_directory(output) if name in _COMPANIONS or sources.WEIGHTS.fullmatch(name)]
    if there or (files.exists(output) and not files.is_directory(output)):
        what = f"holds {and_more(there, 3)}" if there else "exists"
        raise UserError(f"--output={output}: {what} already; give another name, or remove the old model first")


class _Conversion:
    """A conversion that is checked and ready to be written."""

    def __init__(self, options: ConversionOptions):
        self.options = options
        self.source = source = open_weights(options.input)
        self.folder = source.folder
        # messages about the files and variables that were read, written, changed and omitted so far
        self.report = [f"Read {source.path} ({source.kind}, {len(source.shapes)} variables).", *source.remarks]
        self.config = find_config(source, options.bert_config_file)
        self.report += sources.check_config(source, self.config)
        if options.hidden_act:
            self.config = dataclasses.replace(self.config, hidden_act=options.hidden_act)
        path = options.vocab_file
        self.vocabulary = tokenization.read_entries(path) if path else source.vocabulary()
        if self.vocabulary is not None:  # `find_tokenizer` refuses and warns of the same vocabularies as in `load`
            text_rules.find_tokenizer(source, self.config, path, options.do_lower_case)
        stated = text_rules.stated_text(source, options.vocab_file)
        self.do_lower_case, self.case_is_stated = self._find_case(stated)
        self.rules = stated.rules
        self.report += [stated.remark] if stated.remark else []
        names.check_encoder(source.path, source.shapes)
        wanted = names.shapes_of(names.known(self.config.num_hidden_layers), self.config, source.num_labels)
        if problems := [*names.misfits(wanted, source.shapes, names.is_encoder)]:
            raise UserError(
                f"{source.path}: does not fit the configuration: {and_more(problems, 3, '; ')}. Is it a BERT, and the"
                " configuration its own?"
            )
        self.labels = task_file.label_map_of(source)
        for flag in ("extend_vocab", "never_split"):
            if getattr(options, flag):
                self._extend(flag)
        if options.extend_positions:
            self._extend_positions(options.extend_positions)

    def _find_case(self, stated: Stated) -> tuple[bool, bool]:
        """Returns whether the model is uncased, and whether a flag or a file states this."""
        lower = self.options.do_lower_case
        if lower is not None and stated.do_lower_case not in (None, lower):
            self.report.append(f"{stated.path}: says do_lower_case {stated.do_lower_case}; the flag counts.")
        lower = stated.do_lower_case if lower is None else lower
        if lower is not None or self.vocabulary is None:
            return lower is not False, lower is not None
        cased = text_rules.is_cased([entry.strip() for entry in self.vocabulary])
        what = "a cased model: the vocabulary has" if cased else "an uncased model: almost no entry has"
        self.report.append(f"Taken for {what} capitals or accents (--do_lower_case).")
        return not cased, False

    def _extend(self, flag: str) -> None:
        if self.vocabulary is None:
            raise UserError(f"--{flag} needs the vocabulary of the model: give --vocab_file")
        basic = tokenization.BasicTokenizer(self.do_lower_case, **self.rules)
        extension = extend(self.vocabulary, getattr(self.options, flag), basic, kept=flag == "never_split")
        self.report.append(extension.describe(len(self.vocabulary)) + ".")
        if flag == "never_split":
            self.rules["never_split"] = sorted({*basic.never_split, *extension.words})
        self.source = with_new_words(self.source, self.config, extension)
        self.config, self.vocabulary = self.source.config, extension.vocabulary

    def _extend_positions(self, count: int) -> None:
        before = self.config.max_position_embeddings
        if count <= before:
            raise UserError(f"--extend_positions={count}: the model has {before} positions; give a larger number")
        self.source = with_more_positions(self.source, self.config, count)
        self.config = self.source.config
        self.report.append(f"Positions: {count} in place of {before}.")
        self.report.append(f"Those from {before} on are copies, which nobody has trained: train on longer texts.")

    @property
    def task(self) -> dict[str, Any]:
        """The task.json of the input, adapted to the written configuration; empty if the input has none."""
        found, made_with = task_file.read(self.folder), task_file.MADE_WITH
        return found and {**found, made_with: {**found.get(made_with, {}), **sources.decisive(self.config)}}

    @property
    def _weights(self) -> list[str]:
        rows = names.known(self.config.num_hidden_layers)
        return [row.reference for row in rows if row.reference in self.source.shapes]

    def write(self) -> None:
        """Writes the files; adds messages about written and omitted variables to the report."""
        {"tf1": self._write_tf1, "hf": self._write_huggingface, "keras": self._write_keras}[self.options.to]()
        if self.vocabulary is None:
            self.report.append("No vocabulary was found, and none written (--vocab_file).")

    def _arrays(self, chosen: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Yields these variables. Reads all others, too, because damage in one place suggests damage elsewhere."""
        chosen = dict.fromkeys(chosen)
        for name in [*chosen, *(name for name in self.source.shapes if name not in chosen)]:
            value = self.source.get(name)
            if name in chosen:
                check_finite(self.source.path, name, value)
                yield name, value

    def _leave_out(self, written: Iterable[str]) -> None:
        """Reports the variables that are not written: the number of the optimizer's, and the names of all others."""
        left_out = [name for name in self.source.shapes if name not in {*written}]
        others = [name for name in left_out if not names.is_optimizer_state(name)]
        if state := len(left_out) - len(others):
            self.report.append(f"Left out: {state} variables of the optimizer.")
        if others:
            self.report.append(f"Left out: {', '.join(others)}.")

    def _write_companions(self) -> None:
        texts = {CONFIG_FILE: self.config.to_json_string()}
        if self.vocabulary is not None:
            texts[VOCABULARY_FILE] = "".join(f"{entry}\n" for entry in self.vocabulary)
        if self.case_is_stated or self.rules:  # a recorded guess would later look like a fact
            lower = self.do_lower_case if self.case_is_stated else None
            texts[TOKENIZATION_FILE] = record_of(lower, self.rules)
        if self.task:
            texts[task_file.NAME] = json.dumps(self.task, indent=2) + "\n"
        for name, text in texts.items():
            files.write_text(os.path.join(self.options.output, name), text)
        if self.labels:
            task_file.save_label_map(self.options.output, self.labels)

    def _write_tf1(self) -> None:
        prefix = os.path.join(self.options.output, "bert_model.ckpt")
        others = [] if self.options.weights_only else self.source.dtypes.items()
        chosen = dict.fromkeys([*self._weights, *(name for name, dtype in others if dtype != "string")])
        bundle.write(prefix, self._arrays(chosen))
        self._write_companions()
        self.report.append(f"Wrote {prefix}: {len(chosen)} variables.")
        self._leave_out(chosen)
        config = self.config
        if config.hidden_act == "gelu_erf" or config.layer_norm_eps != LAYER_NORM_EPSILON:
            self.report.append(
                f'Its bert_config.json says hidden_act "{config.hidden_act}" and layer_norm_eps'
                f" {config.layer_norm_eps}; google-research/bert knows no gelu_erf, the exact function"
                " (--hidden_act=gelu writes its approximation; the two differ by less than 5e-4), and no other"
                " layer_norm_eps than 1e-12."
            )

    def _write_huggingface(self) -> None:
        self.report += huggingface.write_folder(
            self.options.output,
            self.source.shapes,
            self._arrays(self._weights),
            self.config,
            vocabulary=self.vocabulary,
            do_lower_case=self.do_lower_case,
            rules=self.rules,
            labels=self.labels,
        )
        if self.task:
            files.write_json(os.path.join(self.options.output, task_file.NAME), self.task)
        self._leave_out(self._weights)

    def _write_keras(self) -> None:
        load_tensorflow()  # only this target needs it
        from bert_tf2 import layers
        from bert_tf2.weights import checkpoint

        with layers.initial_weights_from(0):
            model = checkpoint.make_model(self.source, self.config, self.labels)
        path = os.path.join(self.options.output, "bert_model.keras")
        variables = names.tf1_variables(model)
        for name, value in self._arrays(self._weights):
            if name in variables:
                variables[name].assign(value)
        keras_files.write(path, model)
        self._write_companions()
        self.report.append(f"Wrote {path}: a {type(model).__name__}.")
        if fresh := [name for name in variables if name not in self.source.shapes]:
            self.report.append(f"Not in the input, and random now: {', '.join(fresh)}.")
        self._leave_out(variables)


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
