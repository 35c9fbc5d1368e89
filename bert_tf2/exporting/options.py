"""The settings of export_saved_model.py."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from bert_tf2.config import BertConfig
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import (
    ANSWERS,
    WrongSetting,
    kept_setting,
    of_answers,
    of_export,
    of_model,
    of_to_do,
    options,
)
from bert_tf2.training.options import ModelOptions, PrecisionOptions, VocabularyOptions, sequence_length
from bert_tf2.weights import task_file
from bert_tf2.weights.task_file import LabelMap

if TYPE_CHECKING:
    from bert_tf2.exporting.inputs import ExportFiles

TASKS = ("features", "classifier", "squad", "ner", "masked_lm")


def _of_squad(help: str, usual: int) -> Any:
    return kept_setting(f"squad: {help}", usual, group=ANSWERS, low=1)


@options
class ExportOptions(PrecisionOptions, VocabularyOptions, ModelOptions):
    """Exports a model for servers: a SavedModel that takes token ids and raw text, or an ONNX file.

    Example:
      python export_saved_model.py --task=classifier --init_checkpoint=/tmp/mrpc_output --export_dir=/tmp/mrpc_export \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt
    """

    only_with = (
        *((name, "format=onnx") for name in ("quantize", "onnx_names")),
        ("pooling", "stride"),
        ("top_k", "task=masked_lm"),
        ("doc_stride", "task=squad,ner"),
        *((name, "task=squad") for name in ("max_query_length", "max_answer_length", "n_best_size")),
        ("null_score_diff_threshold", "task=squad"),
    )

    task: str = of_to_do("Task of the exported model.", choices=TASKS)
    init_checkpoint: str = of_model("Trained weights: a checkpoint or its folder.", reads="weights")
    export_dir: str = of_export("Folder for the versions 1, 2, ...; the export becomes the next version.", writes=())
    format: str = of_export(
        "saved_model for TensorFlow Serving, or onnx for ONNX Runtime and others, without text signatures.",
        "saved_model",
        choices=("saved_model", "onnx"),
    )
    quantize: str = of_export(
        "onnx: int8 multiplies 8-bit integers (faster, less exact).", "none", choices=("none", "int8")
    )
    onnx_names: str = of_export(
        "onnx: the inputs are int32 input_ids, input_mask and segment_ids (reference), or int64 input_ids,"
        " attention_mask and token_type_ids (transformers).", "reference", choices=("reference", "transformers"),
    )  # fmt: skip
    max_seq_length: int | None = sequence_length(
        "Maximum number of tokens per text; defaults to 128, for squad to 384.", default=None, kept=True
    )
    label_map: str | None = of_model(
        "File with the labels, if there is no label_map.json beside the checkpoint.", None, reads=True
    )
    precision: str = of_export(
        "Type of the stored weights and the computations.", "float32", choices=("float32", "bfloat16")
    )
    text_signatures: bool = of_export("Also accept raw text, which requires tensorflow-text in the server.", True)
    stride: int | None = of_answers(
        "classifier: read long texts in windows, with this many tokens between the starts; 0: cut them. Defaults to"
        " the training's doc_stride.", None, low=0,
    )  # fmt: skip
    pooling: str | None = kept_setting(
        "classifier, with stride: pools the windows' probabilities.", "mean", group=ANSWERS, choices=("mean", "max")
    )
    top_k: int = of_answers("masked_lm: number of words for each [MASK].", 5, low=1)
    doc_stride: int | None = kept_setting(
        "squad, ner: tokens between the starts of two windows; ner 0: half a window.", 128, group=ANSWERS, low=0
    )
    max_query_length: int | None = _of_squad("tokens of a question; longer questions are cut.", 64)
    max_answer_length: int | None = _of_squad("maximum number of tokens of an answer.", 30)
    n_best_size: int | None = _of_squad("number of best end positions to consider.", 20)
    null_score_diff_threshold: float | None = kept_setting(
        "SQuAD 2.0: answer nothing if its score exceeds the best answer's by more than this.", None, group=ANSWERS
    )
    # Not a flag: callers in Python give the labels instead of label_map.
    labels: LabelMap | None = None

    def from_files(self) -> dict[str, Any]:
        how = {"of_task": "squad"} if self.task == "squad" else {"only": ["max_seq_length", "pooling"]}
        found = super().from_files() | task_file.taken(self, self.init_checkpoint, **how)
        kept = task_file.settings(files.folder_of(self.init_checkpoint), {"doc_stride": int, "pooling": str})
        if (self.task, self.format, self.stride) == ("classifier", "saved_model", None):  # ONNX reads no texts
            found["stride"] = kept.get("doc_stride") or None if "pooling" in kept else None
        if self.task == "ner" and self.doc_stride is None:
            found["doc_stride"] = kept.get("doc_stride", 0)
        return found

    @functools.cached_property
    def inputs(self) -> ExportFiles:
        """The files that these settings name; raises UserError if they do not fit."""
        from bert_tf2.exporting import inputs  # late: it needs numpy

        return inputs.read(self)

    def check_inputs(self) -> None:
        super().check_inputs()
        _ = self.inputs

    @property
    def takes_texts(self) -> bool:
        """Whether the exported model tokenizes texts and divides long texts."""
        return self.text_signatures and self.format != "onnx"

    def length_for(self, config: BertConfig) -> int:
        """Returns max_seq_length, or its default, for a model with this configuration."""
        if self.max_seq_length is not None:
            config.check_sequence_length(self.max_seq_length)
        length = self.max_seq_length or min(384 if self.task == "squad" else 128, config.max_position_embeddings)
        if length < 3 + bool(self.stride):
            least = "4 with --stride" if self.stride else "3 ([CLS], a piece, [SEP])"
            raise UserError(f"--max_seq_length={length}: must be at least {least}")
        if self.task == "ner" and self.takes_texts and (self.doc_stride or 0) > length - 2:
            raise UserError(
                f"--doc_stride={self.doc_stride}: at most {length - 2} is possible, or words would be left out"
            )
        if self.task == "squad":
            from bert_tf2.finetuning.squad.features import check_lengths  # late: it needs numpy

            config.check_pairs("--task=squad")
            if self.takes_texts:
                check_lengths(length, self.max_query_length, self.doc_stride)
        return length

    def check(self) -> None:
        super().check()
        if self.stride and (self.task, self.format) != ("classifier", "saved_model"):
            raise WrongSetting(f"--stride={self.stride}: needs --task=classifier, without --format=onnx")
        if self.precision != "float32" and self.format == "onnx":
            raise WrongSetting(f"--precision={self.precision}: --format=onnx has only float32 and --quantize=int8")
