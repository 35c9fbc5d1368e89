"""Fine-tunes BERT on a classification task (GLUE, XNLI or one's own table), evaluates it and predicts.

Example:
  python run_classifier.py --task_name=MRPC --data_dir=$GLUE_DIR/MRPC --do_train --do_eval \\
      --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
      --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --learning_rate=2e-5 --output_dir=/tmp/mrpc_output
"""

if __name__ == "__main__":  # before the imports, so that from here on Ctrl-C gets one line
    from bert_tf2.support import process

    process.begin()

from absl import flags as absl_flags

from bert_tf2.finetuning.classification import tasks as classification_tasks
from bert_tf2.support import flags

FLAGS = absl_flags.FLAGS

with flags.group("Data"):
    absl_flags.DEFINE_string(
        "data_dir", None, "Folder with the task's tables (train.tsv, dev.tsv, test.tsv or their like)."
    )
    absl_flags.DEFINE_string(
        "task_name", None, "cola, mnli, mrpc, xnli, sst-2, qqp, qnli, rte, wnli, sts-b, or tsv for tables of your own."
    )
flags.define_model()
flags.define_vocabulary()
flags.define_output_dir("*.tf_record", "eval_metrics.json", "label_map.json", "test_results.tsv", "predictions.tsv")
with flags.group("Model"):
    absl_flags.DEFINE_integer(
        "max_seq_length", 128, "Tokens per example, special ones included; longer texts are cut.", lower_bound=3
    )
flags.define_fine_tuning()
flags.define_training()
with flags.group("What to do"):
    absl_flags.DEFINE_bool("do_train", False, "Train on the training table.")
    absl_flags.DEFINE_bool("do_eval", False, "Evaluate on the development table.")
    absl_flags.DEFINE_bool("do_predict", False, "Predict the rows of the test table.")
with flags.group("Evaluation and prediction"):
    absl_flags.DEFINE_integer("eval_batch_size", 8, "Examples per evaluation batch.", lower_bound=1)
    absl_flags.DEFINE_integer("predict_batch_size", 8, "Examples per prediction batch.", lower_bound=1)
with flags.group("Data"):
    absl_flags.DEFINE_string("text_a_column", None, "Task tsv: the text's column, by its name or its number from 1.")
    absl_flags.DEFINE_string("text_b_column", None, "Task tsv: the second text's column, if there is one.")
    absl_flags.DEFINE_string(
        "label_column", None, "Task tsv: the label's column; the labels come from the training table."
    )
    absl_flags.DEFINE_string("id_column", None, "Task tsv: the column to name the rows by in predictions.tsv.")
    absl_flags.DEFINE_bool("header", True, "Task tsv: whether the tables' first line is a header.")
flags.define_devices()
flags.define_log()
flags.mark_required("data_dir", "bert_config_file", "task_name", "vocab_file", "output_dir")
flags.define_export()
flags.mark_any_of("do_train", "do_eval", "do_predict", "do_export")


def main(argv) -> None:
    del argv
    if FLAGS.task_name.lower() != "tsv":
        classification_tasks.find_task(FLAGS.task_name)  # so that a wrong name is answered before TensorFlow starts
    flags.load_tensorflow()
    from bert_tf2.finetuning.classification import run as finetune_classifier

    finetune_classifier.run(flags.fill(finetune_classifier.ClassifierOptions))


if __name__ == "__main__":
    flags.run(main)
