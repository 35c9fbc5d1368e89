"""The settings of the scripts that answer with a trained model: extract_features.py and predict_masked.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import WrongSetting, of_answers, of_data, of_devices, of_features, of_model, options
from bert_tf2.training.options import (
    DeviceOptions,
    ModelOptions,
    ProgramOptions,
    VocabularyOptions,
    sequence_length,
    usual_length,
)


def check_layers(layers: Sequence[int], num_hidden_layers: int, setting: str) -> None:
    """Raises UserError if the model lacks one of `layers`, or `layers` is empty; `setting` begins the message."""
    if not layers:
        raise UserError(f"{setting}: at least one layer is needed")
    for number in layers:
        if not -num_hidden_layers <= number < num_hidden_layers:
            raise UserError(
                f"{setting}: the model has {num_hidden_layers} layers, 0 to {num_hidden_layers - 1} or"
                f" -{num_hidden_layers} to -1; there is no layer {number}"
            )


@options
class FeatureOptions(VocabularyOptions, ProgramOptions, DeviceOptions, ModelOptions):
    """Writes BERT's hidden states for the lines of a text: for every token, or pooled into one vector a line.

    Example:
      python extract_features.py --input_file=/tmp/input.txt --output_file=/tmp/output.jsonl --layers=-1,-2,-3,-4 \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
          --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --max_seq_length=128 --batch_size=8
    """

    input_file: str = of_data("Text, one example per line; ` ||| ` separates the two texts of a pair.", reads=True)
    output_file: str = of_data("JSON lines to write; with pooling, NAME.npy is an array.", writes_file=True)
    init_checkpoint: str = of_model("The weights of a BERT, of any kind.", reads="weights")
    max_seq_length: int | None = sequence_length(
        "Tokens per line, including special tokens; longer lines are cut.", None, flag_default=128
    )
    layers: str = of_features("Layers, separated by commas; -1 is the last.", "-1,-2,-3,-4")
    pooling: str = of_features(
        "One vector per line: of the first token (cls), or over all tokens.", "none",
        choices=("none", "cls", "mean", "max"),
    )  # fmt: skip
    batch_size: int = of_devices("Lines per batch.", 32, low=1)
    use_one_hot_embeddings: bool = of_devices("Accepted and ignored.", False)

    @property
    def numbers_of_layers(self) -> list[int]:
        """The numbers in --layers: [-1, -2] for "-1,-2" (negative numbers are kept). Raises UserError."""
        try:
            numbers = [int(number) for number in self.layers.split(",")]
        except ValueError as error:
            what = f"--layers={self.layers}: numbers with commas are needed, such as -1,-2 for the last two layers"
            raise WrongSetting(what) from error
        check_layers(numbers, self.config.num_hidden_layers, f"--layers={self.layers}")
        return numbers

    def from_files(self) -> dict[str, Any]:
        found = super().from_files()
        return found | usual_length(self, found)

    def check_inputs(self) -> None:
        super().check_inputs()
        self.config.check_sequence_length(self.max_seq_length)
        _ = self.numbers_of_layers

    def check(self) -> None:
        super().check()
        if self.output_file.endswith(".npy") and self.pooling == "none":
            raise WrongSetting(f"--output_file={self.output_file}: .npy holds a vector a line, which needs --pooling")


@options
class MaskedLMOptions(VocabularyOptions, ProgramOptions, ModelOptions):
    """Fills in blanks: the most probable words for every [MASK] in sentences, by a pretrained BERT.

    Example:
      python predict_masked.py --sentence='The capital of France is [MASK].' \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
          --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt

    Without --sentence and --input_file the sentences are read from standard input, one a line.
    """

    not_both = (("input_file", "sentence"),)
    only_with = (("top_k", "score=false"),)

    init_checkpoint: str = of_model("The weights of a pretrained BERT, of any kind.", reads="weights")
    input_file: str | None = of_data("File with one sentence per line; - is standard input.", None, reads=True)
    sentence: Sequence[str] | None = of_data(
        "A sentence with [MASK] for each blank, or two with ' ||| ' between them; may be repeated.", None
    )
    max_seq_length: int = sequence_length("Maximum number of tokens of a sentence, including [CLS] and [SEP].")
    batch_size: int = of_model("Sentences per batch; 1 answers each line as soon as it is read.", 8, low=1)
    top_k: int = of_answers("Number of words to show for each blank.", 5, low=1)
    score: bool = of_answers(
        "Instead of filling in blanks, show how probable whole sentences are: the sum of the log-probabilities of their"
        " tokens, each given all others.", False,
    )  # fmt: skip
    output_format: str = of_answers(
        "text for people, or json for one JSON object per line.", "text", choices=("text", "json")
    )

    def check_inputs(self) -> None:
        from bert_tf2.inference.blanks import check_blanks  # late: --help needs no tokenizer

        super().check_inputs()
        for number, text in enumerate(self.sentence or (), 1):
            if text.strip() and not self.score:
                check_blanks(text, f"--sentence, line {number}")
