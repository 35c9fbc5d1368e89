"""The settings of run_ner.py."""

from __future__ import annotations

from bert_tf2.finetuning.options import FineTuneOptions
from bert_tf2.support.settings import DATA, TO_DO, WrongSetting, options, setting
from bert_tf2.training.options import EvaluationOptions, PredictionOptions, output_folder, sequence_length


@options
class NerOptions(PredictionOptions, EvaluationOptions, FineTuneOptions):
    """Fine-tunes BERT to tag words (named entities and the like) in CoNLL columns, evaluates it and predicts.

    Example:
      python run_ner.py --train_file=train.txt --eval_file=dev.txt --do_train --do_eval --do_lower_case=False \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
          --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --output_dir=/tmp/ner_output
    """

    any_of = ("do_train", "do_eval", "do_predict", "do_export")
    needs = (
        ("do_train", "train_file"),
        ("do_eval", "eval_file"),
        ("do_predict", "predict_file"),
        ("eval_steps", "eval_file"),
    )

    train_file: str | None = setting(
        "Training data in CoNLL columns: one word per line, a blank line after each sentence.",
        None,
        group=DATA,
        reads=True,
        rereads=None,
    )
    eval_file: str | None = setting("Evaluation data in the same format.", None, group=DATA, reads=True, rereads=None)
    predict_file: str | None = setting(
        "Words to tag; a tag column is optional and ignored.", None, group=DATA, reads=True
    )
    word_column: int = setting(
        "Column of the word, starting from 1; negative numbers count from the end.", 1, group=DATA
    )
    tag_column: int = setting(
        "Column of the tag, starting from 1; negative numbers count from the end.", -1, group=DATA
    )
    doc_stride: int = setting(
        "Tokens from the start of a window to the start of the next; 0: half a window.", 0, group=DATA, low=0
    )
    document_context: bool = setting(
        "Fill each window with the surrounding sentences, as in the paper.", False, group=DATA
    )
    output_dir: str = output_folder("*.tf_record", "eval_metrics.json", "label_map.json", "predictions.txt")
    max_seq_length: int = sequence_length("Tokens per window; longer sentences are split.", low=5)
    do_eval: bool = setting("Evaluate on eval_file.", False, group=TO_DO)
    do_predict: bool = setting("Tag the words of predict_file.", False, group=TO_DO)

    def check(self) -> None:
        for name in ("word_column", "tag_column"):
            if getattr(self, name) == 0:
                raise WrongSetting(f"--{name}=0: columns are counted from 1, or from -1, the last one, backwards")
