"""The files that an export reads, checked without TensorFlow, so that mistakes are reported at once."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, NamedTuple

from absl import logging

from bert_tf2.config import BertConfig
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.weights import model_folder, names, sentence_vectors, sources, task_file, text_rules
from bert_tf2.weights.base import Weights
from bert_tf2.weights.sentence_vectors import SentenceVectors
from bert_tf2.weights.task_file import LABEL_MAP_FILE, TAGGING_TASK, LabelMap, read_label_map

if TYPE_CHECKING:
    from bert_tf2.exporting.options import ExportOptions

# The variables that a task needs in addition to the encoder's: without them, its outputs would depend on chance.
_NEEDED = {
    "features": (),
    "classifier": (*names.POOLER, *names.LABELS),
    "squad": names.SPAN,
    "ner": names.LABELS,
    "masked_lm": names.MASKED_LM,
}


class ExportFiles(NamedTuple):
    """The files of an export; the values of the weights are not read yet."""

    config: BertConfig
    max_seq_length: int
    source: Weights
    tokenizer: FullTokenizer
    labels: LabelMap | None  # None if the model is neither a classifier nor a tagger
    vectors: SentenceVectors | None = None  # None if the weights are no folder of sentence-transformers


def read(options: ExportOptions) -> ExportFiles:
    """Opens the files that the options name. Raises UserError if they do not fit each other or the task."""
    if options.format == "onnx":
        needed = ["onnx", "tokenizers", *(["onnxruntime"] if options.quantize == "int8" else [])]
        if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
            raise UserError(f"--format=onnx: not installed: {' and '.join(missing)}; pip install {' '.join(missing)}")
    config = options.config
    source, needed = sources.open_weights(options.init_checkpoint), _NEEDED[options.task]
    if missing := names.missing(needed, source.shapes):
        raise UserError(
            f"{source.path}: cannot be exported for the task {options.task}, it has no {and_more(missing, 3)}; give the"
            " checkpoint of a model that was trained for it"
        )
    length = options.length_for(config)
    tokenizer = text_rules.load_tokenizer(
        options.vocab_file, options.do_lower_case, config.vocab_size, source, options.init_checkpoint
    )
    if options.task == "masked_lm" and options.top_k > (size := len(tokenizer.entries)):
        raise UserError(f"--top_k={options.top_k}: must be from 1 to {size}, the size of the vocabulary")
    labels = _find_labels(options, source) if options.task in ("classifier", "ner") else None
    model_folder.check_config(source, config)
    rows = [*names.encoder(config.num_hidden_layers, pooler=False), *needed]
    sources.check_fit(source, names.shapes_of(rows, config, labels.num_labels if labels else None))
    vectors = _find_vectors(source) if options.task == "features" else None
    if vectors and vectors.max_seq_length and options.max_seq_length is None:
        length = min(vectors.max_seq_length, config.max_position_embeddings)
    return ExportFiles(config, length, source, tokenizer, labels, vectors)


def _find_vectors(source: Weights) -> SentenceVectors | None:
    try:
        vectors = sentence_vectors.read(source.folder)
    except UserError as error:
        logging.warning("%s; so there will be no output vector", error)
        return None
    if vectors and sentence_vectors.read_prompts(source.folder).default is not None:
        logging.warning("%s: has a default prompt, which the export does not put before texts", source.path)
    return vectors


def _find_labels(options: ExportOptions, source: Weights) -> LabelMap:
    """Returns the meaning of the outputs. Raises UserError if it is unknown, or the number of outputs differs."""
    beside = os.path.join(source.folder, LABEL_MAP_FILE)
    if options.labels:
        path, found = "the task", options.labels
    elif options.label_map:
        path, found = options.label_map, read_label_map(options.label_map)
    else:
        path, found = beside if files.exists(beside) else source.path, task_file.label_map_of(source)
    if found is None:
        raise UserError(
            f"{source.path}: no {LABEL_MAP_FILE} is beside it, so the meaning of its outputs is not"
            " known; give --label_map, a file like"
            ' {"task": "mrpc", "labels": ["0", "1"], "regression": false}, the labels in the order of the outputs'
        )
    found.check_unique(path)
    if (found.task == TAGGING_TASK) != (options.task == "ner"):
        raise UserError(f"{path}: is for the task {found.task}, which --task={options.task} does not fit")
    outputs = source.shapes.get("output_weights", [found.num_labels])[0]
    if outputs != found.num_labels:
        raise UserError(
            f"{path}: names {found.describe()}, but the checkpoint {source.path} has {outputs} outputs; give the"
            " --label_map of this model"
        )
    return found
