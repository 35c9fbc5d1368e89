"""The settings that all fine-tuning tasks share, and those of extract_features.py."""

from __future__ import annotations

from bert_tf2.support import plots
from bert_tf2.support.settings import (
    DATA,
    DEVICES,
    EVALUATION,
    FEATURES,
    FIGURE,
    MODEL,
    TRAINING,
    WrongSetting,
    options,
    setting,
)
from bert_tf2.training.options import (
    DeviceOptions,
    LogOptions,
    ModelOptions,
    TrainingOptions,
    VocabularyOptions,
    sequence_length,
)

LEAST_LENGTH = 3
"""The tokens of the shortest example that the model may read: [CLS], a piece of a word and [SEP]."""


def check_least_length(max_seq_length: int) -> None:
    """Raises UserError if not even the shortest example has that many tokens."""
    if max_seq_length < LEAST_LENGTH:
        raise WrongSetting(f"--max_seq_length={max_seq_length}: [CLS], a piece and [SEP] need {LEAST_LENGTH} at least")


@options
class FineTuneOptions(LogOptions, VocabularyOptions, TrainingOptions):
    """The settings that all tasks share.

    pad_to_max_length: if off, a batch is as wide as its longest row, which does not change the results and, on MRPC,
    halves the computation. A TPU compiles for each width, so every batch is padded there.

    eval_steps: the best weights are saved in output_dir/best. Evaluation and prediction use them, in this call and in
    later ones.
    """

    needs = (("patience", "eval_steps"),)

    max_seq_length: int = sequence_length("Tokens per example, including special tokens; longer texts are cut.")
    other_task: bool = setting(
        "Use, or train on, weights that were fine-tuned for another task, which is an error without this flag.",
        False,
        group=MODEL,
    )
    num_train_epochs: float = setting("Number of passes over the training data.", 3.0, group=TRAINING, low=0.0)
    warmup_proportion: float = setting(
        "Fraction of the training in which the learning rate rises.", 0.1, group=TRAINING, low=0.0, high=1.0
    )
    pad_to_max_length: bool = setting(
        "Pad every batch to max_seq_length instead of to its longest row.", False, group=TRAINING
    )
    eval_steps: int = setting(
        "Evaluate every N steps and keep the best weights; 0 disables this.", 0, group=EVALUATION, low=0
    )
    patience: int = setting(
        "Stop after N evaluations without improvement; 0 disables this.", 0, group=EVALUATION, low=0
    )

    @property
    def pads_batches(self) -> bool:
        """Whether all batches have max_seq_length columns."""
        return self.pad_to_max_length or self.on_tpu

    @property
    def evaluates_during_training(self) -> bool:
        return self.do_train and self.eval_steps > 0


@options
class FeatureOptions(LogOptions, VocabularyOptions, DeviceOptions, ModelOptions):
    """Writes BERT's hidden states for the lines of a text: for every token, or pooled into one vector a line.

    Example:
      python extract_features.py --input_file=/tmp/input.txt --output_file=/tmp/output.jsonl --layers=-1,-2,-3,-4 \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
          --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --max_seq_length=128 --batch_size=8
    """

    needs = (("text_b_column", "text_a_column"), ("label_column", "text_a_column"), ("label_column", "plot"))

    input_file: str = setting(
        "Text, one example per line; ` ||| ` separates the two texts of a pair. With text_a_column, a table of columns"
        " separated by tabs.",
        group=DATA,
        reads=True,
        rereads=None,
    )
    text_a_column: str | None = setting(
        "Table: column of the text, by its name or its number from 1.", None, group=DATA
    )
    text_b_column: str | None = setting("Table: column of the second text, if there is one.", None, group=DATA)
    label_column: str | None = setting(
        "Table: column of the label, by which --plot colors the points.", None, group=DATA
    )
    header: bool = setting("Table: whether the first line is a header.", True, group=DATA)
    output_file: str = setting(
        "JSON lines; with pooling, a name that ends in .npy writes an array.", group=DATA, writes_file=True
    )
    init_checkpoint: str = setting("The weights of a BERT, of any kind.", group=MODEL, reads="weights")
    max_seq_length: int = sequence_length("Tokens per line, including special tokens; longer lines are cut.")
    layers: str = setting("Layers, separated by commas; -1 is the last.", "-1,-2,-3,-4", group=FEATURES)
    pooling: str = setting(
        "Write one vector per line: the first token (cls), or the mean or maximum over all tokens.",
        "none",
        group=FEATURES,
        choices=("none", "cls", "mean", "max"),
    )
    plot: str | None = setting(
        "A file to draw the vectors into, .png, .svg or .pdf, along their two principal components; needs --pooling and"
        " matplotlib (the extra `plot`).",
        None,
        group=FIGURE,
        writes_file=True,
    )
    batch_size: int = setting("Lines per batch.", 32, group=DEVICES, low=1, memory=())
    use_one_hot_embeddings: bool = setting("Accepted and ignored.", False, group=DEVICES)

    def check(self) -> None:
        if self.plot:
            plots.check_name("--plot", self.plot)
            if self.pooling == "none":
                raise WrongSetting(f"--plot={self.plot}: a point is a vector of a line, which needs --pooling")
        if self.output_file.endswith(".npy") and self.pooling == "none":
            raise WrongSetting(f"--output_file={self.output_file}: .npy holds a vector a line, which needs --pooling")
