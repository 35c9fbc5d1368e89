"""Exports a model for TensorFlow Serving: the work of export_saved_model.py after its flags are parsed.

    EXPORT_DIR/VERSION/saved_model.pb       the graph; see `signatures`, `answers`
                       variables/
                       model.onnx           instead of both, with assets/tokenizer.json; see `onnx_model`
                       assets/              vocab.txt, and label_map.json if the task has labels
                       model_info.json      description and origin of the model, for users and for `load`

`saved_model_files` numbers the folders, `exported_model.load` loads one of them in Python.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from absl import logging

from bert_tf2 import __version__, heads, modeling, tokenization
from bert_tf2.config import BertConfig
from bert_tf2.exporting import answers, saved_model_files, signatures
from bert_tf2.exporting.folded_encoder import Encoder
from bert_tf2.exporting.graph_tokenization import GraphTokenizer
from bert_tf2.exporting.options import ExportOptions
from bert_tf2.exporting.request_checks import SpecialIds
from bert_tf2.layers import initial_weights_from
from bert_tf2.support import environment, files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.training.options import PRECISIONS
from bert_tf2.weights import checkpoint, names, sources, task_file, text_rules
from bert_tf2.weights.base import Weights
from bert_tf2.weights.task_file import LABEL_MAP_FILE, TAGGING_TASK, LabelMap, read_label_map, save_label_map


class _Task(NamedTuple):
    """How the tasks differ."""

    needs: tuple[str, ...]  # prefixes of the variables that it needs in addition to the encoder's
    make_model: Callable[[_Call], Any]  # of `heads`; for "features" a BertModel
    make_signatures: Callable[[signatures.Setting, _Call], signatures.Task]
    stated: tuple[str, ...] = ()  # options that model_info.json states


_SPAN_OPTIONS = ("doc_stride", "max_query_length", "n_best_size", "max_answer_length", "null_score_diff_threshold")
_TASKS = {
    "features": _Task(
        needs=(),
        make_model=lambda call: modeling.BertModel(call.config),
        make_signatures=lambda setting, call: signatures.Features(setting, call.entries, call.has_pooler),
    ),
    "classifier": _Task(
        needs=("bert/pooler/", "output_"),
        make_model=lambda call: heads.ClassifierModel(
            call.config, len(call.labels.labels), call.labels.regression, call.labels.multi_label
        ),
        make_signatures=lambda setting, call: signatures.Classifier(setting, call.model.output_layer, call.labels),
        stated=("stride", "pooling"),
    ),
    "squad": _Task(
        needs=("cls/squad/",),
        make_model=lambda call: heads.SpanModel(call.config),
        make_signatures=lambda setting, call: answers.SpanFinder(setting, call.model.output_layer),
        stated=_SPAN_OPTIONS,
    ),
    "ner": _Task(
        needs=("output_",),
        make_model=lambda call: heads.TaggingModel(call.config, len(call.labels.labels)),
        make_signatures=lambda setting, call: answers.Tagger(setting, call.model.output_layer, call.labels.labels),
    ),
    "masked_lm": _Task(
        needs=("cls/predictions/",),
        # The masked-LM head multiplies with the encoder's embedding table, and so in its precision; the other heads
        # cost almost nothing in float32.
        make_model=lambda call: heads.PretrainingModel(call.config, dtype=PRECISIONS[call.options.precision].policy),
        make_signatures=lambda setting, call: signatures.MaskedLM(setting, call.model.masked_lm, call.entries),
        stated=("top_k",),
    ),
}


def run(options: ExportOptions) -> str:
    """Writes the next version of an export, which appears completely or not at all; returns its folder."""
    if options.format == "onnx":
        needed = ["onnx", "tokenizers", *(["onnxruntime"] if options.quantize == "int8" else [])]
        if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
            raise UserError(f"--format=onnx: not installed: {' and '.join(missing)}; pip install {' '.join(missing)}")
    path = saved_model_files.write_version(options.export_dir, _Call(options).write)
    logging.info("Exported to %s", path)
    return path


def export_model(**settings: Any) -> str:
    """Calls `run` with the fields of ExportOptions as arguments; the tasks call this after training."""
    return run(ExportOptions(**settings))


class _Call:
    """One export. The constructor checks the options, reads the weights and creates the task's model."""

    def __init__(self, options: ExportOptions):
        self.config = BertConfig.from_json_file(options.bert_config_file)
        self.options = dataclasses.replace(options, max_seq_length=options.length_for(self.config))
        self._task = _TASKS[options.task]
        self._source = checkpoint.open_weights(options.init_checkpoint)
        self._tokenizer = _load_tokenizer(options, self.config, self._source)
        self.entries = [line.strip() for line in tokenization.read_entries(options.vocab_file)]
        self.labels = _find_labels(options, self._source) if options.task in ("classifier", "ner") else None
        with initial_weights_from(0):
            self.model = self._task.make_model(self)
        self._check_weights()
        if task_file.settings(self._source.folder, {"document_context": bool}).get("document_context"):
            logging.warning("%s: was trained with --document_context, and an export reads each text alone",
                            self._source.path)  # fmt: skip
        logging.info(checkpoint.initialize(self.model, self._source))
        self.has_pooler = all(row.reference in self._source.shapes for row in names.POOLER)
        if options.task == "features" and not self.has_pooler:
            logging.info("%s: has no pooler, so there will be no output pooled_output", self._source.path)

    def _check_weights(self) -> None:
        """Raises UserError if outputs would depend on untrained weights."""
        needs, shapes = self._task.needs, self._source.shapes
        missing = [n for n in checkpoint.tf1_variables(self.model) if n.startswith(needs) and n not in shapes]
        if needs and missing:
            raise UserError(
                f"{self._source.path}: cannot be exported for the task {self.options.task}, it has no"
                f" {and_more(missing, 3)}; give the checkpoint of a model that was trained for it"
            )

    def write(self, folder: str) -> None:
        with environment.writing(self.options.export_dir):
            info = self._write_onnx(folder) if self.options.format == "onnx" else self._write_saved_model(folder)
            assets = os.path.join(folder, "assets")
            files.write_text(os.path.join(assets, "vocab.txt"), files.read_text(self.options.vocab_file, drop_bom=True))
            if self.labels:
                save_label_map(assets, self.labels)
            files.write_json(os.path.join(folder, sources.EXPORT_INFO_FILE), {**self._info(), **info})

    def _write_saved_model(self, folder: str) -> dict[str, Any]:
        """Returns what model_info.json says of it."""
        options = self.options
        special = SpecialIds(*self._tokenizer.convert_tokens_to_ids(["[PAD]", "[CLS]", "[SEP]", "[MASK]"]))
        encoder = Encoder(self.model if options.task == "features" else self.model.bert, options.precision)
        masks = options.task == "masked_lm"
        tokenizer = GraphTokenizer(self._tokenizer, keep_masks=masks) if options.text_signatures else None
        task = self._task.make_signatures(signatures.Setting(options, encoder, self.config, special, tokenizer), self)
        return {
            "text_signatures": options.text_signatures,
            "signatures": saved_model_files.save(task, task.signatures(), folder),
            "versions": _versions("tensorflow", "keras", *(["tensorflow-text"] if options.text_signatures else [])),
        }

    def _write_onnx(self, folder: str) -> dict[str, Any]:
        """Returns what model_info.json says of it."""
        from bert_tf2.exporting import onnx_model

        options = self.options
        (mask_id,) = self._tokenizer.convert_tokens_to_ids(["[MASK]"])
        model = onnx_model.build(
            options.task,
            self.model,
            self.config,
            self.labels,
            has_pooler=self.has_pooler,
            mask_id=mask_id,
            top_k=options.top_k,
            num_words=len(self.entries),
        )
        is_rounded = options.quantize == "int8"
        with files.open_binary(os.path.join(folder, onnx_model.FILE), "wb") as stream:
            stream.write(onnx_model.quantize(model) if is_rounded else model.SerializeToString())
        content = onnx_model.tokenizer_file(self._tokenizer, options.max_seq_length, options.task == "masked_lm")
        files.write_text(os.path.join(folder, "assets", "tokenizer.json"), content)
        versions = _versions("onnx", *(["onnxruntime"] if is_rounded else []))
        return {"format": "onnx", "quantize": options.quantize, "versions": versions}

    def _info(self) -> dict[str, Any]:
        options = self.options
        info = {
            "task": options.task,
            "checkpoint": {
                "name": os.path.basename(self._source.path.rstrip("/")),
                "kind": self._source.kind,
                "global_step": self._source.global_step,
            },
            "config": self.config.to_dict(),
            "precision": options.precision,
            "do_lower_case": self._tokenizer.basic_tokenizer.do_lower_case,
            "max_seq_length": options.max_seq_length,
        }
        if self.labels:
            info |= {"labels": list(self.labels.labels), "multi_label": self.labels.multi_label}
        return info | {name: getattr(options, name) for name in self._task.stated}


def _load_tokenizer(options: ExportOptions, config: BertConfig, source: Weights) -> tokenization.FullTokenizer:
    stated = text_rules.stated_text(source)
    if stated.do_lower_case is not None and options.do_lower_case not in (None, stated.do_lower_case):
        raise UserError(
            f"{stated.path}: says do_lower_case {str(stated.do_lower_case).lower()}, so the exported model would read"
            f" other tokens than the weights know; give --do_lower_case={stated.do_lower_case}, or correct the file"
        )
    tokenizer = text_rules.load_tokenizer(
        options.vocab_file, options.do_lower_case, config.vocab_size, source, options.init_checkpoint
    )
    entries = max(tokenizer.vocab.values()) + 1
    if options.task == "masked_lm" and options.top_k > entries:
        raise UserError(f"--top_k={options.top_k}: must be from 1 to {entries}, the size of the vocabulary")
    return tokenizer


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
            f"{source.path}: no {LABEL_MAP_FILE} lies beside it, so the meaning of its outputs is not"
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


def _versions(*packages: str) -> dict[str, str]:
    return {"bert_tf2": __version__, **{name: importlib.metadata.version(name) for name in packages}}
