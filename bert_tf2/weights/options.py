"""The settings of convert_checkpoint.py. `convert` is a separate module, because its imports would delay the help."""

from __future__ import annotations

from bert_tf2.config import ACTIVATIONS
from bert_tf2.support.settings import Options, of_conversion, of_model, of_to_do, options

# The files of weights that a conversion writes, and the configuration of transformers.
_WRITTEN = ("bert_model.ckpt.*", "config.json", "model.safetensors", "bert_model.keras")


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
    only_with = tuple(
        (name, "input") for name in ("hidden_act", "extend_vocab", "never_split", "extend_positions", "weights_only")
    )

    input: str | None = of_to_do(
        "Weights: a TensorFlow 1 checkpoint, a Hugging Face folder, its name at the hub, a checkpoint or SavedModel of"
        " Model Garden, or a Keras file.",
        None,
        reads="weights",
    )
    list: str | None = of_to_do("Weights whose variables to list, in place of a conversion.", None, reads="weights")
    bert_config_file: str | None = of_model(
        "The model's configuration, if the input does not contain it.", None, reads=True
    )
    vocab_file: str | None = of_model("The vocabulary, if it is not with the input.", None, reads=True)
    do_lower_case: bool | None = of_model("Whether the model is uncased; by default as the input states.", None)
    hidden_act: str | None = of_model(
        "Write this activation in place of the input's activation.", None, choices=ACTIVATIONS
    )
    extend_vocab: str | None = of_model("File with new vocabulary entries, one per line.", None, reads=True)
    never_split: str | None = of_model(
        "File with tokens that stay whole wherever a text has them, such as [E1], one per line.", None, reads=True
    )
    extend_positions: int | None = of_model(
        "Make the table of positions this long, with copies of its rows, which need training.",
        None,
        low=1,
    )
    output: str | None = of_conversion("Folder to write.", None, writes=_WRITTEN)
    to: str | None = of_conversion("The format to write.", None, choices=("tf1", "hf", "keras"))
    weights_only: bool = of_conversion("Omit the optimizer's slots and the step.", False)
