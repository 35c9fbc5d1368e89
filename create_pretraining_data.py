"""Makes masked-LM and next-sentence examples for pretraining BERT out of plain text.

The text has one sentence a line and a blank line between documents.

Example:
  python create_pretraining_data.py --input_file=sample_text.txt --output_file=/tmp/tf_examples.tfrecord \\
      --vocab_file=$BERT_BASE_DIR/vocab.txt --max_seq_length=128 --max_predictions_per_seq=20
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports, so that from here on Ctrl-C gets one line
    from bert_tf2.support import process

    process.begin()

import dataclasses
from collections.abc import Sequence

from absl import flags as absl_flags

from bert_tf2.pretraining import data_options, example_files
from bert_tf2.support import flags

FLAGS = absl_flags.FLAGS

_DEFAULT = data_options.PretrainingDataOptions()


def _define(name: str, explanation: str) -> None:
    """A flag with the default and the limits that the options have."""
    default = getattr(_DEFAULT, name)
    define = absl_flags.DEFINE_float if isinstance(default, float) else absl_flags.DEFINE_integer
    low, high = data_options.LIMITS[name]
    define(name, default, explanation, lower_bound=low, upper_bound=high)


with flags.group("Data"):
    absl_flags.DEFINE_string("input_file", None, "Text files to read: names and patterns (*, ?), separated by commas.")
    absl_flags.DEFINE_string("output_file", None, "TFRecord files to write in turn: names, separated by commas.")
with flags.group("Model"):
    absl_flags.DEFINE_string("vocab_file", None, "The vocabulary of the model that is to be trained, one entry a line.")
    absl_flags.DEFINE_bool(
        "do_lower_case", True, "Lower the case of the text and drop accents: true for uncased models."
    )
with flags.group("Training examples"):
    _define("max_seq_length", "Tokens in an example, padding included.")
    _define("max_predictions_per_seq", "Masked tokens in an example at most; give run_pretraining.py the same number.")
    absl_flags.DEFINE_bool(
        "do_whole_word_mask", _DEFAULT.do_whole_word_mask, "Mask all the pieces of a word or none, not each by itself."
    )
    _define("dupe_factor", "How many times to go through the text, with other pairs and masks each time.")
    _define("masked_lm_prob", "Share of the tokens to be predicted.")
    _define("short_seq_prob", "Share of the documents to be cut into examples shorter than max_seq_length.")
    absl_flags.DEFINE_integer("random_seed", _DEFAULT.random_seed, "The same seed gives the same examples.")
flags.define_log()
flags.mark_required("input_file", "output_file", "vocab_file")


def main(_: Sequence[str]) -> None:
    names = [field.name for field in dataclasses.fields(data_options.PretrainingDataOptions)]
    options = data_options.PretrainingDataOptions(**{name: FLAGS[name].value for name in names})
    example_files.create_pretraining_data(
        FLAGS.input_file, FLAGS.output_file, FLAGS.vocab_file, flags.given("do_lower_case"), options
    )


if __name__ == "__main__":
    flags.run(main)
