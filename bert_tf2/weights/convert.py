"""Weights from one format to another: what convert_checkpoint.py does once its flags are read.

    sources.open_weights        any format -> names and shapes of the reference, one array at a time
    ExtendedWeights             new entries of the vocabulary, if there are any
    _check                      is it all of a BERT?
    _Target.write               the arrays, one at a time, to a format

Nothing is left out silently: what was not taken along is in the sentences that `run` returns.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Iterable, Iterator

import numpy as np

from bert_tf2 import tokenization, vocabulary_checks
from bert_tf2.config import BertConfig
from bert_tf2.support import environment, files, outputs, progress
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.quiet import load_tensorflow
from bert_tf2.weights import bundle, huggingface, keras_files, names, provenance
from bert_tf2.weights.base import Weights, check_finite
from bert_tf2.weights.labels import LABEL_MAP_FILE, LabelMap, save_label_map
from bert_tf2.weights.new_words import ExtendedWeights, extend
from bert_tf2.weights.sources import labels_of, open_weights

# What no row of `names` is for keeps the name that it has in its file, and in Hugging Face's there are dots.
_OF_ENCODER = re.compile(r"bert/(embeddings|encoder)/|(module\.)?(bert\.)?(embeddings|encoder)\.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionOptions:
    """The settings of one call; each is the flag of the same name of convert_checkpoint.py."""

    input: str
    output: str
    to: str
    bert_config_file: str | None = None
    vocab_file: str | None = None
    weights_only: bool = False
    do_lower_case: bool | None = None
    hidden_act: str | None = None
    extend_vocab: str | None = None
    allow_nonfinite: bool = False


def run(options: ConversionOptions) -> list[str]:
    """Converts weights; returns sentences on what was read, written, changed and left out.

    `to` is "tf1" (writes `output/bert_model.ckpt.*`, `bert_config.json`, `vocab.txt`), "hf" (`config.json`,
    `model.safetensors`, `vocab.txt` and the tokenizer's settings) or "keras" (`output` itself, if it ends in `.keras`
    or `.weights.h5`, else `output/bert_model.keras` with `bert_config.json` and `vocab.txt`). Labels go along:
    `label_map.json` here, `id2label` there. Each file is complete or not there.

    Raises:
      UserError: the input is no BERT, lacks a part, does not fit the configuration, is damaged, or holds NaN or
        infinity and `allow_nonfinite` is off; or a file that is needed is missing.
    """
    _check_output(options)
    _check_files(options)
    source = open_weights(options.input)
    config, sentences = _config(source, options)
    report = [f"Read {source.path} ({source.kind}, {len(source.shapes)} variables).", *source.remarks, *sentences]
    vocabulary, sentences = _vocabulary(source, options)
    report += sentences
    lower, is_stated, sentences = _do_lower_case(source, options, vocabulary)
    report += sentences
    _check(source, config, vocabulary)
    if options.extend_vocab:
        if vocabulary is None:
            raise UserError("--extend_vocab needs the vocabulary of the model: give --vocab_file")
        extension = extend(vocabulary, options.extend_vocab, lower)
        report.append(extension.describe(len(vocabulary)) + ".")
        source = ExtendedWeights(source, config, extension)
        config, vocabulary = source.config, extension.vocabulary
    target = _Target(source, config, vocabulary, lower, is_stated, labels_of(source), options)
    with outputs.protecting([*_inputs(options), *_companions_of_input(options)]):
        return report + target.write()


def _config(source: Weights, options: ConversionOptions) -> tuple[BertConfig, list[str]]:
    """The flag's file, else what is stated for the source; and sentences on how these differ."""
    sentences = []
    if options.bert_config_file:
        config = BertConfig.from_json_file(options.bert_config_file)
        sentences = provenance.check_config(source, config)
    elif stated := provenance.stated_config(source):
        config = stated[0]
    else:
        raise UserError(
            f"{source.path}: nothing here says which model this is (no {provenance.CONFIG_FILE} beside it): give"
            " --bert_config_file"
        )
    return dataclasses.replace(config, hidden_act=options.hidden_act) if options.hidden_act else config, sentences


def _vocabulary(source: Weights, options: ConversionOptions) -> tuple[list[str] | None, list[str]]:
    """The entries, and sentences on what is odd about them.

    Raises:
      UserError: there are none in the file; or it is the flag's, and not the vocabulary of a BERT, or not this one's.
    """
    if options.vocab_file:
        provenance.check_vocabulary(source, options.vocab_file)
    entries = tokenization.read_entries(options.vocab_file) if options.vocab_file else source.vocabulary()
    if entries is None:
        return None, []
    name = options.vocab_file or f"the vocabulary of {source.path}"
    counts = collections.Counter(entry.strip() for entry in entries)
    doubled = [entry for entry, count in counts.items() if count > 1]
    try:
        vocabulary_checks.check_special_tokens({entry: index for index, entry in enumerate(counts)}, name)
        if special := [entry for entry in doubled if entry in tokenization.SPECIAL_TOKENS]:
            raise UserError(f"{name}: has {', '.join(special)} more than once, so it is not the vocabulary of a BERT")
    except UserError as error:
        if options.vocab_file or not any(counts):
            raise
        return entries, [f"Beware: {error}."]
    return entries, [
        f"{name}: {len(doubled)} entries are there more than once, {doubled[0]!r} for one."
    ] if doubled else []


def _do_lower_case(
    source: Weights, options: ConversionOptions, vocabulary: list[str] | None
) -> tuple[bool, bool, list[str]]:
    """Whether the model is uncased, whether somebody said so, and a sentence where that is a guess or contradicted."""
    stated = provenance.stated_case(source, options.vocab_file)
    lower = options.do_lower_case
    if lower is not None:
        contradicted = stated is not None and stated[0] != lower
        return lower, True, [f"{stated[1]}: says do_lower_case {stated[0]}; the flag counts."] if contradicted else []
    if stated is not None:
        return stated[0], True, []
    if vocabulary is None:
        return True, False, []
    lower = not vocabulary_checks.is_cased([entry.strip() for entry in vocabulary])
    what = "almost no entry of the vocabulary has" if lower else "the vocabulary has entries with"
    return (
        lower,
        False,
        [f"Taken for {'an uncased' if lower else 'a cased'} model: {what} capitals or accents (--do_lower_case)."],
    )


def _check_output(options: ConversionOptions) -> None:
    """Raises UserError where a folder would get the name of a file."""
    name = os.path.basename(options.output)
    if name.endswith((".keras", ".h5", ".index", ".safetensors", ".bin")) and not files.is_directory(options.output):
        if options.to != "keras":
            raise UserError(f"--output={options.output}: --to={options.to} writes a folder; give the name of one")
        if not keras_files.recognises_name(name):
            raise UserError(f"--output={options.output}: the name of one of Keras' files ends in .keras or .weights.h5")


# What is written into a folder, by --to, beside the companions.
_WRITTEN = {"tf1": ("bert_model.ckpt.*",), "hf": ("config.json", "model.safetensors"), "keras": ("bert_model.keras",)}
_COMPANIONS = ("vocab.txt", "bert_config.json", "tokenizer_config.json", LABEL_MAP_FILE)


def _inputs(options: ConversionOptions) -> list[outputs.Input]:
    names = ("bert_config_file", "vocab_file", "extend_vocab")
    given = [outputs.Input(f"--{name}", getattr(options, name)) for name in names if getattr(options, name)]
    return [outputs.Input("--input", options.input, weights=True), *given]


def _companions_of_input(options: ConversionOptions) -> list[outputs.Input]:
    """What lies with the weights and is read too. It may be written again as it is, but not be changed."""
    folder = options.input if files.is_directory(options.input) else os.path.dirname(options.input)
    return [outputs.Input("--input", os.path.join(folder, name)) for name in _COMPANIONS]


def _check_files(options: ConversionOptions) -> None:
    """Raises UserError where the output would overwrite an input, or cannot be written."""
    one_file = options.to == "keras" and keras_files.recognises_name(options.output)
    outputs.check(
        _inputs(options), [outputs.Output("--output", options.output, None if one_file else _WRITTEN[options.to])]
    )


def _check(source: Weights, config: BertConfig, vocabulary: list[str] | None) -> None:
    """Raises UserError if the weights are not those of the configuration, or the vocabulary is not."""
    problems = [*_problems(source, config)]
    if problems:
        raise UserError(
            f"{source.path}: does not fit the configuration: {and_more(problems, 8, '; ')}. Is it a BERT, and the"
            " configuration its own?"
        )
    if vocabulary is not None and len(vocabulary) > config.vocab_size:
        raise UserError(
            f"the vocabulary has {len(vocabulary)} entries and the word embeddings {config.vocab_size} rows; give the"
            " vocabulary that the model was trained with (--vocab_file)"
        )


def _problems(source: Weights, config: BertConfig) -> Iterator[str]:
    rows = [*names.encoder(config.num_hidden_layers), *names.HEADS]
    num_labels = next(iter(source.shapes.get("output_bias", [])), None)
    for row in rows:
        shape = source.shapes.get(row.reference)
        wanted = names.shape(row, config, num_labels)
        if shape is None and names.is_encoder(row.reference):
            yield f"{row.reference} is missing"
        elif shape is not None and shape != wanted:
            yield f"{row.reference} is {shape}, not {wanted}"
    known = {row.reference for row in rows}
    for name in source.shapes:
        slot = names.is_optimizer_state(name) or name.rpartition("/")[0] in known
        if _OF_ENCODER.match(name) and name not in known and not slot:
            yield f"{name} has no place in {config.num_hidden_layers} layers"
    for head in (names.POOLER, names.MASKED_LM, names.NEXT_SENTENCE, names.SPAN, names.LABELS):
        found = [row.reference for row in head if row.reference in source.shapes]
        if 0 < len(found) < len(head):
            absent = [row.reference for row in head if row.reference not in found]
            yield f"{', '.join(found)} without {', '.join(absent)}"


class _Target:
    """One conversion, ready to be written."""

    def __init__(
        self,
        source: Weights,
        config: BertConfig,
        vocabulary: list[str] | None,
        do_lower_case: bool,
        case_is_stated: bool,
        labels: LabelMap | None,
        options: ConversionOptions,
    ):
        self._source = source
        self._config = config
        self._vocabulary = vocabulary
        self._do_lower_case = do_lower_case
        self._case_is_stated = case_is_stated
        self._labels = labels
        self._options = options
        rows = [*names.encoder(config.num_hidden_layers), *names.HEADS]
        self._weights = [row.reference for row in rows if row.reference in source.shapes]

    def write(self) -> list[str]:
        """Writes the files; returns sentences on what was written and what was left out."""
        files.make_directory(os.path.dirname(self._options.output) or ".")
        environment.check_space(self._options.output, self._num_bytes(), "the converted weights")
        report = {"tf1": self._write_tf1, "hf": self._write_huggingface, "keras": self._write_keras}[self._options.to]()
        if self._vocabulary is None:
            report.append("No vocabulary was found, and none written (--vocab_file).")
        return report + self._left_from_before()

    def _num_bytes(self) -> int:
        """How much will be written, at least. Keras writes the weights twice before it removes one of them."""
        shapes = self._source.shapes
        chosen = shapes if self._options.to == "tf1" and not self._options.weights_only else self._weights
        return sum(4 * math.prod(shapes[name]) for name in chosen) * (2 if self._options.to == "keras" else 1)

    def _left_from_before(self) -> list[str]:
        """A sentence where the folder holds what this conversion would have replaced if it had one."""
        unwritten = {
            "vocab.txt": self._vocabulary is None,
            LABEL_MAP_FILE: not self._labels,
            provenance.TOKENIZATION_FILE: not self._case_is_stated or self._options.to == "hf",
        }
        there = files.list_directory(self._options.output)
        old = [name for name, absent in unwritten.items() if absent and name in there]
        return [f"{', '.join(old)} in {self._options.output} is from before and may not belong to it."] if old else []

    def _arrays(self, chosen: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Names and arrays of these variables. All others are read too, for damage there tells of damage elsewhere."""
        chosen = dict.fromkeys(chosen)
        every = [*chosen, *(name for name in self._source.shapes if name not in chosen)]
        sizes = {name: math.prod(self._source.shapes[name]) / 1e6 for name in every}
        for name in progress.track(every, "Converting", sum(sizes.values()), "million numbers", size=sizes.get):
            value = self._source.get(name)
            if name in chosen:
                if not self._options.allow_nonfinite:
                    check_finite(self._source.path, name, value)
                yield name, value

    def _write_tf1(self) -> list[str]:
        folder = self._options.output
        prefix = os.path.join(folder, "bert_model.ckpt")
        chosen = self._weights if self._options.weights_only else [*self._weights, *self._others()]
        with self._companions(folder):
            bundle.write(prefix, self._arrays(chosen))
        report = [f"Wrote {prefix}: {len(chosen)} variables."]
        if self._options.weights_only:
            report += self._left_out(self._others())
        if self._config.hidden_act == "gelu_erf":
            report.append(
                'Its bert_config.json says "gelu_erf", the exact function, which google-research/bert does not'
                " know; --hidden_act=gelu writes the approximation it has (the two"
                " differ by less than 5e-4)."
            )
        if "layer_norm_eps" in self._config.to_dict():
            report.append(
                f"Its bert_config.json says layer_norm_eps {self._config.layer_norm_eps}; google-research/bert always"
                " takes 1e-12."
            )
        return report

    def _others(self) -> list[str]:
        """What is in the source beside the weights of a BERT: slots, the step, what nobody knows."""
        return [name for name in self._source.shapes if name not in self._weights]

    def _left_out(self, left_out: list[str]) -> list[str]:
        """Sentences; the many slots of an optimizer are counted, everything else is named."""
        state = [name for name in left_out if names.is_optimizer_state(name)]
        others = [name for name in left_out if name not in state]
        report = [f"Left out: {len(state)} variables of the optimizer."] if state else []
        return report + ([f"Left out: {', '.join(others)}."] if others else [])

    @contextlib.contextmanager
    def _companions(self, folder: str) -> Iterator[None]:
        """Writes what lies beside weights, which the caller writes meanwhile; nothing of it if these cannot be."""
        texts = {provenance.CONFIG_FILE: self._config.to_json_string()}
        if self._vocabulary is not None:
            texts["vocab.txt"] = "".join(f"{entry}\n" for entry in self._vocabulary)
        if self._case_is_stated:  # a guess would be taken for a fact later
            texts[provenance.TOKENIZATION_FILE] = provenance.record_of(self._do_lower_case, self._vocabulary)
        paths = [os.path.join(folder, name) for name in texts]
        with files.complete_or_absent(*paths) as beside:
            for path, text in zip(beside, texts.values(), strict=True):
                with files.open_binary(path, "wb") as stream:
                    stream.write(text.encode("utf-8"))
            outputs.refuse_inputs(beside, paths)  # before the weights are written
            yield
        if self._labels:
            save_label_map(folder, self._labels)

    def _write_huggingface(self) -> list[str]:
        report = huggingface.write_folder(
            self._options.output,
            self._source.shapes,
            self._arrays(self._weights),
            self._config,
            vocabulary=self._vocabulary,
            do_lower_case=self._do_lower_case,
            labels=self._labels,
        )
        return report + self._left_out(self._others())

    def _write_keras(self) -> list[str]:
        load_tensorflow()  # this is the only target that needs it
        from bert_tf2 import checkpoint

        model = checkpoint.make_model(self._source, self._config, self._labels)
        output = self._options.output
        path = output if keras_files.recognises_name(output) else os.path.join(output, "bert_model.keras")
        variables = checkpoint.tf1_variables(model)
        for name, value in self._arrays(self._weights):
            if name in variables:
                variables[name].assign(value)
        with self._companions(output) if path != output else contextlib.nullcontext():
            keras_files.write(path, model)
        fresh = [name for name in variables if name not in self._source.shapes]
        report = [f"Wrote {path}: a {type(model).__name__}."]
        if path == output and (self._vocabulary is not None or self._labels):
            report.append(
                "Such a file holds no vocabulary and no names of labels; give a folder as --output to have them beside"
                " it."
            )
        report += [f"Not in the input, and random now: {', '.join(fresh)}."] if fresh else []
        return report + self._left_out([name for name in self._source.shapes if name not in variables])


def listing(path: str) -> Iterator[str]:
    """Yields a line for every variable of any kind of weights: name, Hugging Face name, shape, dtype, norm.

    Raises:
      UserError: it cannot be read.
    """
    source = open_weights(path)
    step = f", step {source.global_step}" if source.global_step else ""
    yield f"{source.path}: {source.kind}, {len(source.shapes)} variables{step}"
    there = {row.reference: row.huggingface for row in (*names.encoder(_num_layers(source)), *names.HEADS)}
    columns = [max(map(len, column), default=0) for column in (source.shapes, there.values())]
    total = 0
    for name in sorted(source.shapes):
        value = source.get(name)
        if value.dtype.kind in "fiub":
            total += value.size
            norm = f"{np.linalg.norm(value.astype(np.float64)):.6g}"
        else:
            norm = "-"
        shape = str(source.shapes[name])
        yield (
            f"{name:<{columns[0]}}  {there.get(name, '-'):<{columns[1]}}  {shape:<14} {source.dtypes[name]:<9} {norm}"
        )
    yield f"{total} numbers"


def _num_layers(source: Weights) -> int:
    found = (re.match(r"bert/encoder/layer_(\d+)/", name) for name in source.shapes)
    return max((int(match[1]) + 1 for match in found if match), default=0)
