"""Exports a model for TensorFlow Serving: the work of export_saved_model.py after its flags are parsed.

EXPORT_DIR/VERSION/saved_model.pb       the graph; see `signatures`, `answers`
                   variables/
                   model.onnx           instead of both, with assets/tokenizer.json; see `onnx_model`
                   assets/              vocab.txt, and label_map.json if the task has labels
                   model_info.json      description and origin of the model, for users and for `load`
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from typing import Any

from absl import logging

from bert_tf2 import __version__, heads, modeling
from bert_tf2.config import BertConfig
from bert_tf2.exporting import answers, saved_model_files, signatures
from bert_tf2.exporting.graph_tokenization import GraphTokenizer
from bert_tf2.exporting.options import ExportOptions
from bert_tf2.exporting.signatures import Setting
from bert_tf2.layers import initial_weights_from
from bert_tf2.long_texts import Windows
from bert_tf2.support import errors, files
from bert_tf2.support.process import check_process
from bert_tf2.support.resolution import resolve
from bert_tf2.support.settings import made
from bert_tf2.training.options import PRECISIONS
from bert_tf2.weights import checkpoint, names, sources, task_file
from bert_tf2.weights.base import Weights
from bert_tf2.weights.task_file import LabelMap, save_label_map

_TASKS: dict[str, type[signatures.ExportedTask]] = {
    "features": signatures.Features,
    "classifier": signatures.Classifier,
    "squad": answers.SpanFinder,
    "ner": answers.Tagger,
    "masked_lm": signatures.MaskedLM,
}


def run(options: ExportOptions) -> str:
    """Writes the next version of an export, completely or not at all; returns its folder."""
    check_process()
    is_onnx = options.format == "onnx"
    setting, source = _read(options)

    def write(folder: str) -> None:
        with errors.writing(options.export_dir):
            info = _write_onnx(setting, folder) if is_onnx else _write_saved_model(setting, folder)
            assets = os.path.join(folder, "assets")
            files.write_text(os.path.join(assets, "vocab.txt"), files.read_text(options.vocab_file, drop_bom=True))
            if setting.labels:
                save_label_map(assets, setting.labels)
            files.write_json(os.path.join(folder, sources.EXPORT_INFO_FILE), {**_info(setting, source), **info})

    path = saved_model_files.write_version(options.export_dir, write)
    logging.info("Exported to %s", path)
    return path


def export_model(**settings: Any) -> str:
    """Calls `run` with the fields of ExportOptions as arguments; the tasks call this after training."""
    return run(resolve(made(ExportOptions, settings)))


def _read(options: ExportOptions) -> tuple[Setting, Weights]:
    """Creates the task's model, with its weights."""
    config, length, source, tokenizer, labels, vectors = options.inputs
    options = dataclasses.replace(options, max_seq_length=length)
    with initial_weights_from(0):
        model = _make_model(options, config, labels)
    kept = task_file.settings(source.folder, {"document_context": bool, "doc_stride": int})
    if kept.get("document_context"):
        logging.warning("%s: was trained with --document_context, and an export reads each text alone", source.path)
    if (options.task, options.format) == ("classifier", "onnx") and kept.get("doc_stride"):
        logging.warning(
            "%s: was trained with windows, and an ONNX file reads rows: divide texts of more than %d tokens",
            source.path, length,
        )  # fmt: skip
    logging.info(checkpoint.initialize(model, source))
    has_pooler = not names.missing(names.POOLER, source.shapes)
    if options.task == "features" and not has_pooler:
        logging.info("%s: has no pooler, so there will be no output pooled_output", source.path)
    graph = GraphTokenizer(tokenizer, keep_masks=options.task == "masked_lm") if options.takes_texts else None
    return Setting(options, config, tokenizer, graph, model, labels, has_pooler, vectors), source


def _make_model(options: ExportOptions, config: BertConfig, labels: LabelMap | None) -> Any:
    if options.task == "features":
        return modeling.BertModel(config)
    if options.task == "classifier":
        windows = Windows(options.max_seq_length, options.stride, options.pooling) if options.stride else None
        return heads.ClassifierModel(config, len(labels.labels), labels.regression, labels.multi_label, windows)
    if options.task == "squad":
        return heads.SpanModel(config)
    if options.task == "ner":
        return heads.TaggingModel(config, len(labels.labels))
    # The masked-LM head multiplies by the encoder's embedding table, so it has the precision of the encoder. The other
    # heads cost almost nothing in float32.
    return heads.PretrainingModel(config, dtype=PRECISIONS[options.precision].policy)


def _write_saved_model(setting: Setting, folder: str) -> dict[str, Any]:
    """Writes the SavedModel; returns its entries in model_info.json."""
    task = _TASKS[setting.options.task](setting)
    return {
        "text_signatures": setting.options.text_signatures,
        "signatures": saved_model_files.save(task, task.signatures(), folder),
        "versions": _versions("tensorflow", "keras", *(["tensorflow-text"] if setting.graph else [])),
    }


def _write_onnx(setting: Setting, folder: str) -> dict[str, Any]:
    """Writes the ONNX file; returns its entries in model_info.json."""
    from bert_tf2.exporting import onnx_model

    options, model = setting.options, onnx_model.build(setting)
    is_rounded = options.quantize == "int8"
    with files.open_binary(os.path.join(folder, onnx_model.FILE), "wb") as stream:
        stream.write(onnx_model.quantize(model) if is_rounded else model.SerializeToString())
    content = onnx_model.tokenizer_file(setting.tokenizer, options.max_seq_length, options.task == "masked_lm")
    files.write_text(os.path.join(folder, "assets", "tokenizer.json"), content)
    versions = _versions("onnx", *(["onnxruntime"] if is_rounded else []))
    return {"format": "onnx", "onnx_names": options.onnx_names, "quantize": options.quantize, "versions": versions}


def _info(setting: Setting, source: Weights) -> dict[str, Any]:
    options = setting.options
    info = {
        "task": options.task,
        "checkpoint": {
            "name": os.path.basename(source.path.rstrip("/")),
            "kind": source.kind,
            "global_step": source.global_step,
        },
        "config": setting.config.to_dict(),
        "precision": options.precision,
        "do_lower_case": setting.tokenizer.basic_tokenizer.do_lower_case,
        "max_seq_length": options.max_seq_length,
    }
    if setting.labels:
        info |= {"labels": list(setting.labels.labels), "multi_label": setting.labels.multi_label}
    return info | {name: getattr(options, name) for name in _TASKS[options.task].stated}


def _versions(*packages: str) -> dict[str, str]:
    return {"bert_tf2": __version__, **{name: importlib.metadata.version(name) for name in packages}}
