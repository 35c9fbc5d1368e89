"""The settings of convert_checkpoint.py."""

from __future__ import annotations

from bert_tf2.config import ACTIVATIONS
from bert_tf2.support.settings import CONVERSION, MODEL, TO_DO, Options, options, setting


@options
class ConversionOptions(Options):
    """Converts BERT's weights between TensorFlow 1, Hugging Face and Keras, or lists them.

    Examples:
      python convert_checkpoint.py --input=uncased_L-12_H-768_A-12 --output=for_pytorch --to=hf
      python convert_checkpoint.py --list=uncased_L-12_H-768_A-12

    The kind of the input is detected.
    """

    any_of = ("input", "list")
    needs = (("input", "output"), ("input", "to"))
    not_both = (("input", "list"),)

    input: str | None = setting(
        "Weights: a TensorFlow 1 checkpoint, a Hugging Face folder, a checkpoint or SavedModel of Model Garden, or a"
        " Keras file.",
        None,
        group=TO_DO,
    )
    list: str | None = setting("Weights to list instead, variable by variable.", None, group=TO_DO)
    bert_config_file: str | None = setting(
        "The model's configuration, if the input does not hold it.", None, group=MODEL, reads=True
    )
    vocab_file: str | None = setting(
        "The vocabulary, if it does not lie with the input.", None, group=MODEL, reads=True
    )
    do_lower_case: bool | None = setting(
        "Whether the model is uncased; detected from the input if not given.", None, group=MODEL
    )
    hidden_act: str | None = setting(
        "State another activation than the one that the weights were trained with.",
        None,
        group=MODEL,
        choices=ACTIVATIONS,
    )
    extend_vocab: str | None = setting("A file with new entries for the vocabulary, one a line.", None, group=MODEL)
    output: str | None = setting("The folder to write; with --to=keras also a file.", None, group=CONVERSION)
    to: str | None = setting("The format to write.", None, group=CONVERSION, choices=("tf1", "hf", "keras"))
    weights_only: bool = setting(
        "Leave out the optimizer's slots and the step: a third of the size.", False, group=CONVERSION
    )
    allow_nonfinite: bool = setting("Convert weights with NaN or infinity in them too.", False, group=CONVERSION)
