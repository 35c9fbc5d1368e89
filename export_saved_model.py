"""Exports a model for TensorFlow Serving: a SavedModel that takes token ids and raw text.

Example:
  python export_saved_model.py --task=classifier --init_checkpoint=/tmp/mrpc_output --export_dir=/tmp/mrpc_export \\
      --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt
"""

if __name__ == "__main__":  # before the imports, so that from here on Ctrl-C gets one line
    from bert_tf2.support import process

    process.begin()

from absl import flags as absl_flags

from bert_tf2.support import flags

FLAGS = absl_flags.FLAGS

with flags.group("What to do"):
    absl_flags.DEFINE_enum(
        "task", None, ["features", "classifier", "squad", "ner", "masked_lm"], "What the model is to answer."
    )
with flags.group("Model"):
    absl_flags.DEFINE_string("bert_config_file", None, "The JSON file that states the model's sizes.")
    absl_flags.DEFINE_string("init_checkpoint", None, "The trained weights: a checkpoint, or the folder that holds it.")
flags.define_vocabulary()
with flags.group("Model"):
    absl_flags.DEFINE_integer(
        "max_seq_length", None, "To how many tokens texts are cut; by default 128, for squad 384.", lower_bound=3
    )
    absl_flags.DEFINE_string(
        "label_map", None, "What the outputs mean, if no label_map.json lies beside the checkpoint: a file like that."
    )
with flags.group("Export"):
    absl_flags.DEFINE_string("export_dir", None, "Folder for the versions 1, 2, ...; the next one is written.")
    absl_flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "What to store the weights and compute in.")
    absl_flags.DEFINE_bool("text_signatures", True, "Take raw text too, for which the server needs tensorflow-text.")
with flags.group("Answers"):
    absl_flags.DEFINE_integer("top_k", 5, "masked_lm: how many words to find for each [MASK].", lower_bound=1)
    absl_flags.DEFINE_integer(
        "doc_stride", 128, "squad: tokens from the start of a window to the start of the next.", lower_bound=1
    )
    absl_flags.DEFINE_integer(
        "max_query_length", 64, "squad: tokens of a question; longer ones are cut.", lower_bound=1
    )
    absl_flags.DEFINE_integer("max_answer_length", 30, "squad: tokens of the longest answer.", lower_bound=1)
    absl_flags.DEFINE_integer(
        "n_best_size", 20, "squad: among how many best ends to look for an answer.", lower_bound=1
    )
    absl_flags.DEFINE_float(
        "null_score_diff_threshold",
        None,
        "squad 2.0: no answer if that scores higher than the best one by more than this.",
    )
flags.mark_written("export_dir", ())
flags.mark_required("task", "bert_config_file", "vocab_file", "init_checkpoint", "export_dir")


def main(argv) -> None:
    del argv
    flags.load_tensorflow()
    from bert_tf2.export import run as export

    print(export.run(flags.fill(export.ExportOptions)))


if __name__ == "__main__":
    flags.run(main)
