"""Fills in blanks: the most probable words for every [MASK] in sentences, by a pretrained BERT.

Example:
  python predict_masked.py --sentence='The capital of France is [MASK].' \\
      --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
      --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt

Without --sentence and --input_file the sentences are read from standard input, one a line.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports, so that from here on Ctrl-C gets one line
    from bert_tf2.support import process

    process.begin()

import sys
from collections.abc import Sequence

from absl import flags as absl_flags

from bert_tf2.support import flags

FLAGS = absl_flags.FLAGS

flags.define_model()
flags.define_vocabulary()
with flags.group("Data"):
    absl_flags.DEFINE_string("input_file", None, "A file with one sentence a line; - is standard input.")
    absl_flags.DEFINE_multi_string(
        "sentence", None, "A sentence with [MASK] for each blank, or two with ' ||| ' between them; may be repeated."
    )
with flags.group("Model"):
    absl_flags.DEFINE_integer(
        "max_seq_length", 128, "Tokens that a sentence may have, [CLS] and [SEP] included.", lower_bound=3
    )
    absl_flags.DEFINE_integer(
        "batch_size", 8, "Sentences to answer together; 1 answers a line as soon as it is read.", lower_bound=1
    )
with flags.group("Answers"):
    absl_flags.DEFINE_integer("top_k", 5, "How many words to show for each blank.", lower_bound=1)
    absl_flags.DEFINE_enum("output_format", "text", ["text", "json"], "To be read by people, or a JSON object a line.")
flags.mark_required("bert_config_file", "init_checkpoint", "vocab_file")
absl_flags.mark_flags_as_mutual_exclusive(["input_file", "sentence"])


def main(argv: Sequence[str]) -> None:
    del argv  # only flags
    sys.stdout.reconfigure(encoding="utf-8")  # like every file here, whatever the terminal's language
    flags.load_tensorflow()
    from bert_tf2.pretraining import predict_masked

    predict_masked.run(flags.fill(predict_masked.MaskedLMOptions))


if __name__ == "__main__":
    flags.run(main)
