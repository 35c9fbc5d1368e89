"""Learns a WordPiece vocabulary from plain text, for pretraining on a language or a subject of one's own.

Example:
  python build_vocab.py --input_file='corpus/*.txt' --vocab_file=vocab.txt --vocab_size=8000

The same --do_lower_case belongs in every later command that uses the vocabulary, and the number of entries in the
"vocab_size" of bert_config.json.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports, so that from here on Ctrl-C gets one line
    from bert_tf2.support import process

    process.begin()

from collections.abc import Sequence

from absl import flags as absl_flags

from bert_tf2 import vocabulary
from bert_tf2.support import console, files, flags, progress

FLAGS = absl_flags.FLAGS

with flags.group("Data"):
    absl_flags.DEFINE_string(
        "input_file", None, "Text files in UTF-8, any lines; names and globs, separated by commas."
    )
    absl_flags.DEFINE_string("vocab_file", None, "The vocabulary to write, one entry a line.")
with flags.group("Vocabulary"):
    absl_flags.DEFINE_integer("vocab_size", 30522, "How many entries there may be at most.", lower_bound=1)
    absl_flags.DEFINE_bool(
        "do_lower_case", True, "Whether to lower the case and drop accents; as the model will be used."
    )
    absl_flags.DEFINE_integer("num_unused", 99, "How many [unusedN] entries to keep free for later.", lower_bound=0)
    absl_flags.DEFINE_integer("min_count", 2, "How often a piece must occur to become an entry.", lower_bound=1)
flags.mark_required("input_file", "vocab_file")
flags.mark_written("vocab_file")


def main(argv: Sequence[str]) -> None:
    del argv  # only flags
    names = files.match_files(FLAGS.input_file)
    counts = [files.count_lines(name) for name in names]
    total = None if None in counts else sum(counts)
    lines = progress.track((line for name in names for line in files.read_lines(name)), "Reading", total, "lines")
    entries = vocabulary.build_vocab(
        lines, FLAGS.vocab_size, FLAGS.do_lower_case, num_unused=FLAGS.num_unused, min_count=FLAGS.min_count
    )
    files.write_text(FLAGS.vocab_file, "".join(f"{entry}\n" for entry in entries))
    console.summary(
        [f"{FLAGS.vocab_file} ({len(entries):,} entries)"],
        next_command=console.command(
            "create_pretraining_data.py",
            input_file=FLAGS.input_file,
            output_file="tf_examples.tfrecord",
            vocab_file=FLAGS.vocab_file,
            do_lower_case=None if FLAGS.do_lower_case else False,
        ),
    )


if __name__ == "__main__":
    flags.run(main)
