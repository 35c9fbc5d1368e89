"""Converts BERT's weights between TensorFlow 1, Hugging Face and Keras, or lists them.

Examples:
  python convert_checkpoint.py --input=uncased_L-12_H-768_A-12 --output=for_pytorch --to=hf
  python convert_checkpoint.py --list=uncased_L-12_H-768_A-12

The kind of input is found out from what is there.
"""

if __name__ == "__main__":  # before the imports, so that from here on Ctrl-C gets one line
    from bert_tf2.support import process

    process.begin()

from absl import flags as absl_flags

from bert_tf2.support import flags
from bert_tf2.weights import convert

FLAGS = absl_flags.FLAGS

with flags.group("What to do"):
    absl_flags.DEFINE_string(
        "input",
        None,
        "Weights: a TensorFlow 1 checkpoint, a Hugging Face folder, a checkpoint or SavedModel of Model Garden, or a"
        " Keras file.",
    )
    absl_flags.DEFINE_string("list", None, "Weights to list instead, variable by variable.")
with flags.group("Model"):
    absl_flags.DEFINE_string("bert_config_file", None, "The model's configuration, where the input does not hold it.")
    absl_flags.DEFINE_string("vocab_file", None, "The vocabulary, where it does not lie with the input.")
    absl_flags.DEFINE_bool(
        "do_lower_case", None, "Whether the model is uncased; found out from the input if not given."
    )
    absl_flags.DEFINE_enum(
        "hidden_act",
        None,
        ["gelu", "gelu_erf", "relu", "tanh", "linear"],
        "State another activation than the one that the weights were trained with.",
    )
    absl_flags.DEFINE_string("extend_vocab", None, "A file with new entries for the vocabulary, one a line.")
with flags.group("Conversion"):
    absl_flags.DEFINE_string("output", None, "The folder to write; with --to=keras also a file.")
    absl_flags.DEFINE_enum("to", None, ["tf1", "hf", "keras"], "The format to write.")
    absl_flags.DEFINE_bool("weights_only", False, "Leave out the optimizer's slots and the step: a third of the size.")
    absl_flags.DEFINE_bool("allow_nonfinite", False, "Convert weights with NaN or infinity in them too.")
flags.mark_any_of("input", "list")
flags.mark_needed("input", "output", "to")
absl_flags.mark_flags_as_mutual_exclusive(["input", "list"])


def main(argv) -> None:
    del argv  # only flags
    lines = convert.listing(FLAGS.list) if FLAGS.list else convert.run(flags.fill(convert.ConversionOptions))
    for line in lines:
        print(line)


if __name__ == "__main__":
    flags.run(main)
