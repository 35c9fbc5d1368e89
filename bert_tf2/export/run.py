"""Exports a model for TensorFlow Serving: the work of export_saved_model.py after its flags are parsed.

    EXPORT_DIR/VERSION/saved_model.pb       the graph; see `signatures`, `entities`, `answers`
                       variables/
                       model.onnx           instead of both, with assets/tokenizer.json; see `onnx_model`
                       assets/              vocab.txt, and label_map.json if the task has labels
                       assets.extra/        tf_serving_warmup_requests
                       model_info.json      description and origin of the model, for users and for `load`

`versions` numbers the folders, `exported_model.load` loads one of them in Python.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.core.protobuf import meta_graph_pb2

from bert_tf2 import __version__, heads, modeling, tokenization
from bert_tf2.config import BertConfig
from bert_tf2.export import answers, entities, folded_encoder, onnx_model, saved_model_files, signatures, versions
from bert_tf2.export.exported_model import log_level
from bert_tf2.export.graph_tokenization import GraphTokenizer
from bert_tf2.export.options import ExportOptions
from bert_tf2.export.request_checks import Limits, SpecialIds
from bert_tf2.finetuning.classification.features import truncate_seq_pair
from bert_tf2.support import environment, files, progress
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.training.precision import PRECISIONS
from bert_tf2.weights import checkpoint, metadata, names, sources
from bert_tf2.weights.base import Weights
from bert_tf2.weights.labels import LABEL_MAP_FILE, TAGGING_TASK, LabelMap, read_label_map, save_label_map

# Prefixes of the variables that a task needs in addition to the encoder's.
_NEEDED_VARIABLES = {
    "features": (),
    "classifier": ("bert/pooler/", "output_"),
    "squad": ("cls/squad/",),
    "ner": ("output_",),
    "masked_lm": ("cls/predictions/",),
}


def run(options: ExportOptions) -> str:
    """Writes the next version of an export; returns its folder.

    Version numbers start at 1. The folder appears completely or not at all. An object store (`gs://...`) cannot rename
    a folder in one step, so a server may find it incomplete for a moment and try again.

    Raises:
      UserError: files are missing or do not match, the checkpoint lacks weights that the task needs, the labels are
        unknown, or export_dir is not writable.
    """
    if options.format == "onnx":
        onnx_model.require_packages(*(["onnx"] if options.quantize == "none" else ["onnx", "onnxruntime"]))
    with progress.Progress("Exporting", 4, "stages") as stages:
        call = _Call(options)
        environment.check_space(options.export_dir, call.num_bytes, "the exported weights")
        stages.advance()
        with versions.next_version(options.export_dir) as folder:
            call.write(folder.beside, stages)
        stages.advance()
    logging.info("Exported to %s", folder.path)
    return folder.path


def export_model(**settings: Any) -> str:
    """Calls `run` with the fields of ExportOptions as arguments; the tasks call this after training."""
    return run(ExportOptions(**settings))


class _Call:
    """One export. The constructor checks the options, reads the weights and creates the task's module."""

    def __init__(self, options: ExportOptions):
        self._options = options
        self._config = BertConfig.from_json_file(options.bert_config_file)
        self._max_seq_length = options.length_for(self._config)
        self._source = checkpoint.open_weights(options.init_checkpoint)
        self._tokenizer = _load_tokenizer(options, self._config, self._source)
        self._labels = _find_labels(options, self._source) if options.task in ("classifier", "ner") else None
        model = self._make_model()
        self._check_weights(model)
        logging.info(checkpoint.initialize(model, options.init_checkpoint))
        self._weights_hash = _hash_of(model)
        per_number = {"float32": 4, "bfloat16": 2}[options.precision]
        self.num_bytes = sum(per_number * math.prod(weight.shape) for weight in model.weights)
        self._model = model

    def _make_model(self):
        config, labels = self._config, self._labels
        # The masked-LM head multiplies with the encoder's embedding table, and so in its precision; the other heads
        # cost almost nothing in float32.
        table_dtype = PRECISIONS[self._options.precision].policy
        makers = {
            "features": lambda: modeling.BertModel(config),
            "classifier": lambda: heads.ClassifierModel(
                config, len(labels.labels), labels.regression, labels.multi_label
            ),
            "squad": lambda: heads.SpanModel(config),
            "ner": lambda: heads.TaggingModel(config, len(labels.labels)),
            "masked_lm": lambda: heads.PretrainingModel(config, dtype=table_dtype),
        }
        return makers[self._options.task]()

    def _check_weights(self, model) -> None:
        """Raises UserError if outputs would depend on untrained weights."""
        needs = _NEEDED_VARIABLES[self._options.task]
        missing = [n for n in checkpoint.tf1_variables(model) if n.startswith(needs) and n not in self._source.shapes]
        if needs and missing:
            raise UserError(
                f"{self._source.path}: cannot be exported for the task {self._options.task}, it has no"
                f" {and_more(missing, 3)}; give the checkpoint of a model that was trained for it"
            )

    def _make_task(self) -> signatures.Task:
        options, config, model = self._options, self._config, self._model
        bert = model if options.task == "features" else model.bert
        special = SpecialIds(*self._tokenizer.convert_tokens_to_ids(["[PAD]", "[CLS]", "[SEP]", "[MASK]"]))
        keep = ["[MASK]"] if options.task == "masked_lm" else []
        encoder = folded_encoder.Encoder(bert, options.precision)
        setting = signatures.Setting(
            encoder,
            Limits(config.vocab_size, config.type_vocab_size, config.max_position_embeddings),
            special,
            GraphTokenizer(self._tokenizer, keep) if options.text_signatures else None,
            self._max_seq_length,
        )
        if options.task == "features":
            return signatures.Features(setting, self._entries(), self._has_pooler)
        if options.task == "classifier":
            return signatures.Classifier(setting, model.output_layer, self._labels)
        if options.task == "ner":
            return entities.Tagger(setting, model.output_layer, self._labels.labels)
        if options.task == "masked_lm":
            own = model.masked_lm.output_weights
            words = encoder.word_embeddings if own is None else folded_encoder.constant(own.value, options.precision)
            return signatures.MaskedLM(setting, model.masked_lm, words, self._entries(), options.top_k)
        return answers.Answerer(setting, model.output_layer, self._span_settings())

    @property
    def _has_pooler(self) -> bool:
        found = all(row.reference in self._source.shapes for row in names.POOLER)
        if not found:
            logging.info("%s: has no pooler, so there will be no output pooled_output", self._source.path)
        return found

    def _entries(self) -> list[str]:
        """Returns the vocabulary by id, with "" for the model's ids beyond it."""
        entries = [line.strip() for line in tokenization.read_entries(self._options.vocab_file)]
        return entries + [""] * (self._config.vocab_size - len(entries))

    def _span_settings(self) -> answers.SpanSettings:
        values = {name: getattr(self._options, name) for name in answers.SpanSettings._fields}
        return answers.SpanSettings(**{**values, "max_seq_length": self._max_seq_length})

    def write(self, folder: str, stages: progress.Progress) -> None:
        """Writes all files into a folder. Raises UserError if it is not writable or the disk is full."""
        try:
            info = self._write_onnx(folder) if self._options.format == "onnx" else self._write_saved_model(folder)
            stages.advance()
            self._write_assets(folder)
            files.write_json(os.path.join(folder, sources.EXPORT_INFO_FILE), {**self._info(), **info})
            stages.advance()
        except (tf.errors.OpError, OSError) as error:
            line = environment.explain_writing(error, [self._options.export_dir], [folder])
            if line is None:
                raise
            raise UserError(line) from error

    def _write_saved_model(self, folder: str) -> dict[str, Any]:
        """Returns what model_info.json has to say of it."""
        task = self._make_task()
        # A server does not need the gradients of an exported model.
        save_options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        with log_level(logging.WARNING):  # it logs the name of each input of each function
            tf.saved_model.save(task, folder, task.signatures(), save_options)
        graph = saved_model_files.read_graph(folder)
        saved_model_files.write_warmup(folder, self._warmup_requests(graph))
        custom_ops = saved_model_files.custom_ops(graph)
        refuses = "a row without [MASK], and a text with a [MASK] beyond max_seq_length tokens"
        return {
            **({"refuses": refuses} if self._options.task == "masked_lm" else {}),
            "text_signatures": self._options.text_signatures,
            "signatures": saved_model_files.describe_signatures(graph),
            "custom_ops": custom_ops,
            "needs": _NEEDS_TEXT if custom_ops else _NEEDS_IDS,
            "versions": _versions("tensorflow", "keras", *(["tensorflow-text"] if custom_ops else [])),
        }

    def _write_onnx(self, folder: str) -> dict[str, Any]:
        """Returns what model_info.json has to say of it."""
        options = self._options
        (mask_id,) = self._tokenizer.convert_tokens_to_ids(["[MASK]"])
        has_pooler = options.task == "features" and self._has_pooler
        of_task = {"has_pooler": has_pooler, "mask_id": mask_id, "top_k": options.top_k}
        exact = onnx_model.build(options.task, self._model, self._config, self._labels, **of_task).SerializeToString()
        written = onnx_model.quantize(exact) if options.quantize == "int8" else exact
        if options.quantization_texts:
            logging.info(onnx_model.compare(exact, written, self._rows_of_file(options.quantization_texts)))
        if options.quantization_records:
            records = options.quantization_records
            logging.info(onnx_model.compare_scores(exact, written, records, self._config.vocab_size))
        with files.open_binary(os.path.join(folder, onnx_model.FILE), "wb") as stream:
            stream.write(written)
        tokenizer = onnx_model.tokenizer_file(self._tokenizer, self._max_seq_length)
        files.write_json(os.path.join(folder, "assets", "tokenizer.json"), tokenizer)
        versions = _versions("onnx", *(["onnxruntime"] if options.quantize == "int8" else []))
        quantized = {"quantize": options.quantize} if options.quantize != "none" else {}
        return {"format": "onnx", **quantized, "needs": onnx_model.NEEDS, "versions": versions}

    def _rows_of_file(self, path: str) -> Iterator[dict[str, np.ndarray]]:
        """The inputs for each line of --quantization_texts; for masked_lm with a [MASK] in the middle."""
        tokenize = self._tokenizer.tokenize
        for line in filter(str.strip, files.read_text(path, drop_bom=True).splitlines()):
            first, second = ([*map(tokenize, line.split("\t")), []])[:2]
            truncate_seq_pair(first, second, self._max_seq_length - (3 if second else 2))
            if self._options.task == "masked_lm" and first:
                first[len(first) // 2] = "[MASK]"
            row = ["[CLS]", *first, "[SEP]", *([*second, "[SEP]"] if second else [])]
            ids = np.array([self._tokenizer.convert_tokens_to_ids(row)], np.int32)
            segments = (np.arange(len(row)) >= len(first) + 2).astype(np.int32)[np.newaxis]
            yield {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}

    def _write_assets(self, folder: str) -> None:
        assets = os.path.join(folder, "assets")
        files.write_text(os.path.join(assets, "vocab.txt"), files.read_text(self._options.vocab_file, drop_bom=True))
        if self._labels:
            save_label_map(assets, self._labels)

    def _info(self) -> dict[str, Any]:
        options = self._options
        info = {
            "task": options.task,
            "checkpoint": {
                "name": os.path.basename(self._source.path.rstrip("/")),
                "kind": self._source.kind,
                "global_step": self._source.global_step,
                "sha256": self._weights_hash,
            },
            "config": self._config.to_dict(),
            "precision": options.precision,
            "do_lower_case": self._tokenizer.basic_tokenizer.do_lower_case,
            "max_seq_length": self._max_seq_length,
        }
        if self._labels:
            info["labels"] = list(self._labels.labels)
            info |= {"multi_label": True} if self._labels.multi_label else {}
        if options.task == "masked_lm":
            info["top_k"] = options.top_k
        if options.task == "squad":
            info |= self._span_settings()._asdict()
        return info

    def _warmup_requests(self, graph: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, dict[str, tf.Tensor]]]:
        """Yields a short request for every signature, and a batch with a row of maximum length."""
        repeats = 1 + self._max_seq_length // len(self._tokenizer.tokenize(_SENTENCE))
        batches = ([_SENTENCE], [_SENTENCE, " ".join([_SENTENCE] * repeats)])
        for name, texts in itertools.product(saved_model_files.signature_names(graph), batches):
            inputs = graph.signature_def[name].inputs
            if tf.as_dtype(next(iter(inputs.values())).dtype) == tf.string:
                first = {"text_a": [f"[MASK] {text}" for text in texts], "context": texts}
                second = texts[::-1] if self._max_seq_length > 3 else [""] * len(texts)  # room for [MASK]
                found = {"text_b": second, "question": texts[:1] * len(texts), **first}
            else:
                found = self._rows([self._tokenizer.tokenize(text) for text in texts])
            yield name, {key: tf.constant(found[key]) for key in sorted(inputs)}

    def _rows(self, texts: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Makes [CLS] [MASK] [SEP] text [SEP], which is valid for every task."""
        room = self._max_seq_length - 4
        rows = [["[CLS]", "[MASK]", "[SEP]", *text[: max(room, 0)], "[SEP]"] for text in texts]
        rows = [row[: self._max_seq_length] for row in rows]
        length = max(map(len, rows))
        ids = [self._tokenizer.convert_tokens_to_ids([*row, *["[PAD]"] * (length - len(row))]) for row in rows]
        return {
            "input_ids": np.array(ids, np.int32),
            "input_mask": np.array([[int(place < len(row)) for place in range(length)] for row in rows], np.int32),
            "segment_ids": np.zeros([len(rows), length], np.int32),
        }


def _load_tokenizer(options: ExportOptions, config: BertConfig, source: Weights) -> tokenization.FullTokenizer:
    """Raises UserError if the vocabulary is missing, or is detectably not that of this model."""
    tokenizer = metadata.load_tokenizer(
        options.vocab_file, options.do_lower_case, config.vocab_size, source, options.init_checkpoint
    )
    entries = max(tokenizer.vocab.values()) + 1
    if options.task == "masked_lm" and entries != config.vocab_size:
        raise UserError(
            f"{options.vocab_file}: has {entries} entries, but the model's configuration says vocab_size"
            f" {config.vocab_size}; use the vocabulary that the model was trained with"
        )
    return tokenizer


def _find_labels(options: ExportOptions, source: Weights) -> LabelMap:
    """Returns the meaning of the outputs. Raises UserError if it is unknown, or the number of outputs differs."""
    beside = os.path.join(source.folder, LABEL_MAP_FILE)
    if options.labels:
        path, found = "the task", options.labels
    elif options.label_map:
        path, found = options.label_map, read_label_map(options.label_map)
    else:
        path, found = beside if files.exists(beside) else source.path, sources.labels_of(source)
    if found is None:
        raise UserError(
            f"{source.path}: no {LABEL_MAP_FILE} lies beside it, so the meaning of its outputs is not"
            " known; give --label_map, a file like"
            ' {"task": "mrpc", "labels": ["0", "1"], "regression": false}, the labels in the order of the outputs'
        )
    if (found.task == TAGGING_TASK) != (options.task == "ner"):
        raise UserError(f"{path}: is for the task {found.task}, which --task={options.task} does not fit")
    outputs = source.shapes.get("output_weights", [found.num_labels])[0]
    if outputs != found.num_labels:
        raise UserError(
            f"{path}: names {found.describe()}, but the checkpoint {source.path} has {outputs} outputs; give the"
            " --label_map of this model"
        )
    return found


def _hash_of(model) -> str:
    """Returns a checksum of the weights, which does not depend on their file format."""
    found = hashlib.sha256()
    for name, variable in sorted(checkpoint.tf1_variables(model).items()):
        found.update(name.encode())
        found.update(np.ascontiguousarray(variable.numpy(), "<f4"))
    return found.hexdigest()


_SENTENCE = "The quick brown fox jumps over the lazy dog, and nobody in Berlin knows why."
# Tested with the libraries that TensorFlow Serving contains since this release.
_NEEDS_IDS = "TensorFlow Serving 2.12 or later"
_NEEDS_TEXT = f"{_NEEDS_IDS}, which has the operations of tensorflow-text 2.12.1"


def _versions(*packages: str) -> dict[str, str]:
    return {"bert_tf2": __version__, **{name: importlib.metadata.version(name) for name in packages}}
