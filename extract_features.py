"""Writes BERT's hidden states for the lines of a text: for every token, or pooled into one vector a line.

Example:
  python extract_features.py --input_file=/tmp/input.txt --output_file=/tmp/output.jsonl --layers=-1,-2,-3,-4 \\
      --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
      --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --max_seq_length=128 --batch_size=8
"""

if __name__ == "__main__":  # before the imports, so that from here on Ctrl-C gets one line
    from bert_tf2.support import process

    process.begin()

from absl import flags as absl_flags

from bert_tf2.support import flags

with flags.group("Data"):
    absl_flags.DEFINE_string("input_file", None, "Text, one example a line; ` ||| ` separates the two texts of a pair.")
    absl_flags.DEFINE_string("output_file", None, "JSON lines; with pooling also .npy.")
with flags.group("Features"):
    absl_flags.DEFINE_string("layers", "-1,-2,-3,-4", "Which layers, with commas; -1 is the last.")
    absl_flags.DEFINE_enum(
        "pooling", "none", ["none", "cls", "mean", "max"], "One vector a line instead: the first token, or all of them."
    )
flags.define_model()
flags.define_vocabulary()
with flags.group("Model"):
    absl_flags.DEFINE_integer(
        "max_seq_length", 128, "Tokens per line, special ones included; longer lines are cut.", lower_bound=3
    )
with flags.group("Devices"):
    absl_flags.DEFINE_integer("batch_size", 32, "Lines per batch.", lower_bound=1)
    absl_flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "What to compute in.")
    absl_flags.DEFINE_bool(
        "use_one_hot_embeddings", False, "Accepted and ignored: how embeddings are looked up is chosen for the device."
    )
flags.define_devices(with_names=False)
flags.define_log()
flags.mark_written("output_file")
flags.mark_required("input_file", "output_file", "bert_config_file", "init_checkpoint", "vocab_file")


def main(argv) -> None:
    del argv
    flags.load_tensorflow()
    from bert_tf2.finetuning import extract_features

    extract_features.run(flags.fill(extract_features.FeatureOptions))


if __name__ == "__main__":
    flags.run(main)
