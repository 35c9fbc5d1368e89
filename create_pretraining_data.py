"""Makes masked-LM and next-sentence examples for pretraining BERT out of plain text.

The text has one sentence a line and a blank line between documents.

  python create_pretraining_data.py --input_file=text.txt --output_file=examples.tfrecord --vocab_file=vocab.txt
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from absl import flags as absl_flags

from bert_tf2 import flags, pretraining_data

FLAGS = absl_flags.FLAGS

_DEFAULT = pretraining_data.PretrainingDataOptions()


def _bounds(name: str) -> dict:
    low, high = pretraining_data.LIMITS[name]
    return {"lower_bound": low, "upper_bound": high}


absl_flags.DEFINE_string("input_file", None, "Text files to read: names and patterns (*, ?), separated by commas.")
absl_flags.DEFINE_string("output_file", None, "TFRecord files to write in turn: names, separated by commas.")
absl_flags.DEFINE_string("vocab_file", None, "The vocabulary of the model that is to be trained, one entry a line.")
absl_flags.DEFINE_bool("do_lower_case", True, "Lower the case of the text and drop accents: true for uncased models.")
absl_flags.DEFINE_bool(
    "do_whole_word_mask", _DEFAULT.do_whole_word_mask, "Mask all the pieces of a word or none, not each by itself."
)
absl_flags.DEFINE_integer(
    "max_seq_length", _DEFAULT.max_seq_length, "Tokens in an example, padding included.", **_bounds("max_seq_length")
)
absl_flags.DEFINE_integer(
    "max_predictions_per_seq",
    _DEFAULT.max_predictions_per_seq,
    "Masked tokens in an example at most; give run_pretraining.py the same number.",
    **_bounds("max_predictions_per_seq"),
)
absl_flags.DEFINE_integer("random_seed", _DEFAULT.random_seed, "The same seed gives the same examples.")
absl_flags.DEFINE_integer(
    "dupe_factor",
    _DEFAULT.dupe_factor,
    "How many times to go through the text, with other pairs and masks each time.",
    **_bounds("dupe_factor"),
)
absl_flags.DEFINE_float(
    "masked_lm_prob", _DEFAULT.masked_lm_prob, "Share of the tokens to be predicted.", **_bounds("masked_lm_prob")
)
absl_flags.DEFINE_float(
    "short_seq_prob",
    _DEFAULT.short_seq_prob,
    "Share of the documents to be cut into examples shorter than max_seq_length.",
    **_bounds("short_seq_prob"),
)


def main(_: Sequence[str]) -> None:
    names = [field.name for field in dataclasses.fields(pretraining_data.PretrainingDataOptions)]
    options = pretraining_data.PretrainingDataOptions(**{name: FLAGS[name].value for name in names})
    pretraining_data.create_pretraining_data(
        FLAGS.input_file, FLAGS.output_file, FLAGS.vocab_file, FLAGS.do_lower_case, options
    )


if __name__ == "__main__":
    flags.mark_required("input_file", "output_file", "vocab_file")
    flags.run(main)
