"""The settings of export_saved_model.py."""

from __future__ import annotations

from bert_tf2.support.settings import ANSWERS, EXPORT, MODEL, TO_DO, options, setting
from bert_tf2.training.options import ModelOptions, PrecisionOptions, VocabularyOptions, sequence_length
from bert_tf2.weights.labels import LabelMap

TASKS = ("features", "classifier", "squad", "ner", "masked_lm")


@options
class ExportOptions(PrecisionOptions, VocabularyOptions, ModelOptions):
    """Exports a model for TensorFlow Serving: a SavedModel that takes token ids and raw text.

    Example:
      python export_saved_model.py --task=classifier --init_checkpoint=/tmp/mrpc_output --export_dir=/tmp/mrpc_export \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt
    """

    task: str = setting("What the model is to answer.", group=TO_DO, choices=TASKS)
    init_checkpoint: str = setting(
        "The trained weights: a checkpoint, or the folder that holds it.", group=MODEL, reads="weights"
    )
    export_dir: str = setting("Folder for the versions 1, 2, ...; the next one is written.", group=EXPORT, writes=())
    max_seq_length: int | None = sequence_length(
        "To how many tokens texts are cut; defaults to 128, for squad to 384.", default=None
    )
    label_map: str | None = setting(
        "The meaning of the outputs, if no label_map.json lies beside the checkpoint: a file of that format.",
        None,
        group=MODEL,
        reads=True,
    )
    precision: str = setting(
        "What to store the weights and compute in.", "float32", group=EXPORT, choices=("float32", "bfloat16")
    )
    text_signatures: bool = setting(
        "Take raw text too, for which the server needs tensorflow-text.", True, group=EXPORT
    )
    top_k: int = setting("masked_lm: how many words to find for each [MASK].", 5, group=ANSWERS, low=1)
    doc_stride: int = setting(
        "squad: tokens from the start of a window to the start of the next.", 128, group=ANSWERS, low=1
    )
    max_query_length: int = setting("squad: tokens of a question; longer ones are cut.", 64, group=ANSWERS, low=1)
    max_answer_length: int = setting("squad: tokens of the longest answer.", 30, group=ANSWERS, low=1)
    n_best_size: int = setting("squad: among how many best ends to look for an answer.", 20, group=ANSWERS, low=1)
    null_score_diff_threshold: float | None = setting(
        "squad 2.0: no answer if its score exceeds that of the best answer by more than this.", None, group=ANSWERS
    )
    # For callers that know the labels, in place of label_map; no flag.
    labels: LabelMap | None = None
