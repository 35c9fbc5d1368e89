"""The settings of run_squad.py."""

from __future__ import annotations

from bert_tf2.finetuning.options import FineTuneOptions
from bert_tf2.support.settings import DATA, EVALUATION, MODEL, TO_DO, TRAINING, options, setting
from bert_tf2.training.options import PredictionOptions, output_folder, sequence_length


@options
class SquadOptions(PredictionOptions, FineTuneOptions):
    """Fine-tunes BERT on SQuAD 1.1 or 2.0, answers questions and scores the answers.

    Example:
      python run_squad.py --do_train --train_file=$SQUAD_DIR/train-v1.1.json \\
          --do_predict --do_eval --predict_file=$SQUAD_DIR/dev-v1.1.json --output_dir=/tmp/squad_base \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
          --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --learning_rate=3e-5 --num_train_epochs=2
    """

    # Unlike in the other tasks, padding takes part in the answer: start and end are chosen among all max_seq_length
    # positions, so the loss and the n-best lists are the reference's only with pad_to_max_length, the default here.

    any_of = ("do_train", "do_predict", "do_eval", "do_export")
    needs = (
        ("do_train", "train_file"),
        ("do_predict", "predict_file"),
        ("do_eval", "predict_file"),
        ("eval_steps", "predict_file"),
    )

    train_file: str | None = setting(
        "SQuAD JSON to train on, e.g. train-v1.1.json.", None, group=DATA, reads=True, rereads=None
    )
    predict_file: str | None = setting(
        "SQuAD JSON with the questions to answer, e.g. dev-v1.1.json.",
        None,
        group=DATA,
        reads=True,
        rereads=("do_eval", "eval_steps"),
    )
    version_2_with_negative: bool = setting("SQuAD 2.0: some questions have no answer.", False, group=DATA)
    output_dir: str = output_folder("*.tf_record", "eval_metrics.json", "*predictions.json", "null_odds.json")
    max_seq_length: int = sequence_length(
        "Tokens per window: question, paragraph and 3 special tokens.", default=384, low=5
    )
    doc_stride: int = setting("Tokens from the start of a window to the start of the next.", 128, group=MODEL, low=1)
    max_query_length: int = setting("Tokens of a question; longer ones are cut.", 64, group=MODEL, low=1)
    pad_to_max_length: bool = setting(
        "Pad every batch to max_seq_length instead of to its longest row.", True, group=TRAINING
    )
    do_predict: bool = setting("Answer the questions of predict_file.", False, group=TO_DO)
    do_eval: bool = setting("Answer the questions and compute exact match and F1.", False, group=TO_DO)
    n_best_size: int = setting("Answers per question in nbest_predictions.json.", 20, group=EVALUATION, low=1)
    max_answer_length: int = setting("Maximum number of tokens of an answer.", 30, group=EVALUATION, low=1)
    null_score_diff_threshold: float = setting(
        "SQuAD 2.0: predict no answer if its score exceeds the best answer's by more than this.", 0.0, group=EVALUATION
    )

    def check(self) -> None:
        from bert_tf2.finetuning.squad.features import check_lengths  # late: it needs numpy

        check_lengths(self.max_seq_length, self.max_query_length, self.doc_stride)
