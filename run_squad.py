"""Fine-tunes BERT on SQuAD 1.1 or 2.0, answers questions and scores the answers.

Example:
  python run_squad.py --do_train --train_file=$SQUAD_DIR/train-v1.1.json \\
      --do_predict --do_eval --predict_file=$SQUAD_DIR/dev-v1.1.json --output_dir=/tmp/squad_base \\
      --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
      --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --learning_rate=3e-5 --num_train_epochs=2
"""

if __name__ == "__main__":  # before the imports, so that from here on Ctrl-C gets one line
    from bert_tf2.support import process

    process.begin()

from absl import flags as absl_flags

from bert_tf2.finetuning import squad
from bert_tf2.support import flags

FLAGS = absl_flags.FLAGS

flags.define_model()
flags.define_vocabulary()
flags.define_output_dir("*.tf_record", "eval_metrics.json", "*predictions.json", "null_odds.json")
with flags.group("Data"):
    absl_flags.DEFINE_string("train_file", None, "SQuAD JSON to train on, e.g. train-v1.1.json.")
    absl_flags.DEFINE_string("predict_file", None, "SQuAD JSON whose questions to answer, e.g. dev-v1.1.json.")
    absl_flags.DEFINE_bool("version_2_with_negative", False, "SQuAD 2.0: some questions have no answer.")
with flags.group("Model"):
    absl_flags.DEFINE_integer(
        "max_seq_length", 384, "Tokens per window: question, paragraph and 3 special ones.", lower_bound=5
    )
    absl_flags.DEFINE_integer(
        "doc_stride", 128, "Tokens from the start of a window to the start of the next.", lower_bound=1
    )
    absl_flags.DEFINE_integer("max_query_length", 64, "Tokens of a question; longer ones are cut.", lower_bound=1)
flags.define_fine_tuning(pad_to_max_length=True)
flags.define_training()
with flags.group("What to do"):
    absl_flags.DEFINE_bool("do_train", False, "Train on train_file.")
    absl_flags.DEFINE_bool("do_predict", False, "Answer the questions of predict_file.")
    absl_flags.DEFINE_bool("do_eval", False, "Answer them and score the answers: exact match and F1.")
with flags.group("Evaluation and prediction"):
    absl_flags.DEFINE_integer("predict_batch_size", 8, "Windows per prediction batch.", lower_bound=1)
    absl_flags.DEFINE_integer("n_best_size", 20, "Answers per question in nbest_predictions.json.", lower_bound=1)
    absl_flags.DEFINE_integer("max_answer_length", 30, "Tokens of the longest answer.", lower_bound=1)
    absl_flags.DEFINE_float(
        "null_score_diff_threshold",
        0.0,
        "SQuAD 2.0: answer nothing if that scores higher than the best answer by more.",
    )
flags.define_devices()
flags.define_log(", and each answer that cannot be found again in the paragraph")
flags.mark_required("bert_config_file", "vocab_file", "output_dir")
flags.mark_needed("do_train", "train_file")
for switch in ("do_predict", "do_eval", "eval_steps"):
    flags.mark_needed(switch, "predict_file")
flags.define_export()
flags.mark_any_of("do_train", "do_predict", "do_eval", "do_export")


def main(argv) -> None:
    del argv
    squad.check_lengths(FLAGS.max_seq_length, FLAGS.max_query_length, FLAGS.doc_stride)
    flags.load_tensorflow()
    from bert_tf2.finetuning.squad import run as finetune_squad

    finetune_squad.run(flags.fill(finetune_squad.SquadOptions))


if __name__ == "__main__":
    flags.run(main)
