"""The settings of an export, and the checks of them that need no weights."""

from __future__ import annotations

import dataclasses

from bert_tf2.config import BertConfig
from bert_tf2.finetuning.squad import data as squad
from bert_tf2.support.errors import UserError
from bert_tf2.weights.labels import LabelMap

TASKS = ("features", "classifier", "squad", "ner", "masked_lm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The settings of one call; each is the flag of the same name of export_saved_model.py.

    Attributes:
      max_seq_length: length to which texts are truncated; ids may have any length that the model supports. Defaults to
        384 for squad and to 128 otherwise, or to the model's maximum if that is smaller.
      label_map: a file like label_map.json. Defaults to the one beside the checkpoint.
      null_score_diff_threshold: for models of SQuAD 2.0; None if every question has an answer.
      text_signatures: if False, the graph contains no operation of tensorflow-text, and a server without these
        operations can load it.
      labels: used in place of label_map by callers that know the labels; no flag.
    """

    task: str
    bert_config_file: str
    vocab_file: str
    init_checkpoint: str
    export_dir: str
    do_lower_case: bool | None = None
    max_seq_length: int | None = None
    label_map: str | None = None
    precision: str = "float32"
    text_signatures: bool = True
    top_k: int = 5
    doc_stride: int = 128
    max_query_length: int = 64
    max_answer_length: int = 30
    n_best_size: int = 20
    null_score_diff_threshold: float | None = None
    labels: LabelMap | None = None

    def length_for(self, config: BertConfig) -> int:
        """Returns max_seq_length, or its default, for a model with this configuration.

        Raises:
          UserError: the task is unknown, or the model cannot be exported with these lengths or top_k.
        """
        if self.task not in TASKS:
            raise UserError(f"--task={self.task}: there is no such task; the tasks are {', '.join(TASKS)}")
        positions = config.max_position_embeddings
        if self.max_seq_length is not None and self.max_seq_length > positions:
            raise UserError(
                f"--max_seq_length={self.max_seq_length} is more than the model can read: its configuration says"
                f" max_position_embeddings {positions}"
            )
        length = self.max_seq_length or min(384 if self.task == "squad" else 128, positions)
        if length < 3:
            raise UserError(f"--max_seq_length={length}: [CLS], a piece and [SEP] need 3 at least")
        if self.task == "squad":
            config.check_pairs("--task=squad")
            if self.text_signatures:
                squad.check_lengths(length, self.max_query_length, self.doc_stride)
        if self.task == "masked_lm" and not 1 <= self.top_k <= config.vocab_size:
            raise UserError(f"--top_k={self.top_k}: must be from 1 to {config.vocab_size}, the size of the vocabulary")
        return length
