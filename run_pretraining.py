"""Pretrains BERT on the records that create_pretraining_data.py wrote, evaluates it, or both.

Example:
  python run_pretraining.py --input_file=/tmp/tf_examples.tfrecord --output_dir=/tmp/pretraining_output \\
      --do_train --do_eval --bert_config_file=$BERT_BASE_DIR/bert_config.json --train_batch_size=32 \\
      --max_seq_length=128 --max_predictions_per_seq=20 --num_train_steps=20 --num_warmup_steps=10
"""

if __name__ == "__main__":  # before the imports, so that from here on Ctrl-C gets one line
    from bert_tf2.support import process

    process.begin()

from absl import flags as absl_flags

from bert_tf2.support import flags

with flags.group("Data"):
    absl_flags.DEFINE_string(
        "input_file", None, "TFRecord files of pretraining examples: names and globs, with commas."
    )
flags.define_model()
flags.define_output_dir()
with flags.group("Model"):
    absl_flags.DEFINE_integer(
        "max_seq_length", 128, "Tokens per example; the number that the records were made with.", lower_bound=5
    )
    absl_flags.DEFINE_integer(
        "max_predictions_per_seq",
        20,
        "Masked words per example; the number that the records were made with.",
        lower_bound=1,
    )
flags.define_training()
with flags.group("What to do"):
    absl_flags.DEFINE_bool("do_train", False, "Train up to num_train_steps.")
    absl_flags.DEFINE_bool("do_eval", False, "Evaluate on the same records, after training if there is any.")
with flags.group("Training"):
    absl_flags.DEFINE_integer("num_train_steps", 100000, "The step at which training ends.", lower_bound=1)
    absl_flags.DEFINE_integer(
        "num_warmup_steps", 10000, "Steps in which the learning rate rises from 0.", lower_bound=0
    )
with flags.group("Evaluation and prediction"):
    absl_flags.DEFINE_integer("eval_batch_size", 8, "Examples per evaluation batch, over all devices.", lower_bound=1)
    absl_flags.DEFINE_integer(
        "max_eval_steps", 100, "Batches to evaluate; the records start again at their end.", lower_bound=1
    )
flags.define_devices()
flags.mark_required("input_file", "bert_config_file", "output_dir")
flags.define_export()
flags.define_vocabulary()
flags.mark_needed("do_export", "vocab_file")
flags.mark_any_of("do_train", "do_eval", "do_export")


def main(argv) -> None:
    del argv
    flags.load_tensorflow()
    from bert_tf2.pretraining import run as pretraining

    pretraining.run(flags.fill(pretraining.PretrainingOptions))


if __name__ == "__main__":
    flags.run(main)
