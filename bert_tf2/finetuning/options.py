"""The settings of the scripts that fine-tune a model or use its features."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bert_tf2.finetuning.classification.tasks import TsvLayout, find_task
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import (
    DATA,
    DEVICES,
    EVALUATION,
    FEATURES,
    LOG,
    MODEL,
    TO_DO,
    TRAINING,
    WrongSetting,
    check_type,
    kept_setting,
    needed,
    options,
    setting,
)
from bert_tf2.training.options import (
    DeviceOptions,
    EvaluationOptions,
    ModelOptions,
    PredictionOptions,
    TrainingOptions,
    VocabularyOptions,
    output_folder,
    sequence_length,
)
from bert_tf2.weights import task_file

LEAST_LENGTH = 3
"""The tokens of the shortest example that the model may read: [CLS], a piece of a word and [SEP]."""


def check_least_length(max_seq_length: int) -> None:
    """Raises UserError if not even the shortest example has that many tokens."""
    if max_seq_length < LEAST_LENGTH:
        raise WrongSetting(f"--max_seq_length={max_seq_length}: [CLS], a piece and [SEP] need {LEAST_LENGTH} at least")


def checked_length(max_seq_length: int | None, longest: int) -> int:
    """The `max_seq_length` of a call from Python; None means `longest`, the most that the model can read."""
    if max_seq_length is None:
        return longest
    check_type("max_seq_length", max_seq_length, int)
    if not LEAST_LENGTH <= max_seq_length <= longest:
        what = f"must be from {LEAST_LENGTH} to {longest}, the most that the model can read"
        raise UserError(f"max_seq_length={max_seq_length}: {what}")
    return max_seq_length


def check_layers(layers: Sequence[int], num_hidden_layers: int, setting: str) -> None:
    """Raises UserError if the model does not have a layer, or `layers` is empty; `setting` begins the message."""
    if not layers:
        raise UserError(f"{setting}: at least one layer is needed")
    for number in layers:
        check_type("layers", number, int)
        if not -num_hidden_layers <= number < num_hidden_layers:
            raise UserError(
                f"{setting}: the model has {num_hidden_layers} layers, 0 to {num_hidden_layers - 1} or"
                f" -{num_hidden_layers} to -1; there is no layer {number}"
            )


def _length(help: str, usual: int = 128, low: int = LEAST_LENGTH) -> Any:
    stated = {"flag_default": usual, "kept": True, "decides": "texts are cut elsewhere from here on"}
    return sequence_length(help, None, low, **stated)


@options
class FineTuneOptions(VocabularyOptions, TrainingOptions):
    """The settings that all tasks share.

    pad_to_max_length: if off, a batch is as wide as its longest row, which does not change the results and, on MRPC,
    halves the computation. A TPU compiles for each width, so every batch is padded there.

    eval_steps: the best weights are saved in output_dir/best. Evaluation and prediction use them, in this call and in
    later ones.
    """

    needs = (("patience", "eval_steps"),)

    max_seq_length: int | None = _length("Tokens per example, including special tokens; longer texts are cut.")
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

    def check_inputs(self) -> None:
        self.config.check_sequence_length(self.max_seq_length)
        for switch, name in needed(type(self)):
            if getattr(self, switch) and name.endswith("_file"):
                files.check_there(getattr(self, name))

    @property
    def pads_batches(self) -> bool:
        """Whether all batches have max_seq_length columns."""
        return self.pad_to_max_length or self.on_tpu

    def complete(self) -> None:
        super().complete()
        task_file.take(self, self.init_checkpoint, self.output_dir, is_trained=not self.do_train)

    @property
    def evaluates_during_training(self) -> bool:
        return self.do_train and self.eval_steps > 0


@options
class ClassifierOptions(PredictionOptions, EvaluationOptions, FineTuneOptions):
    """Fine-tunes BERT on a classification task (GLUE, XNLI or one's own table), evaluates it and predicts.

    Example:
      python run_classifier.py --task_name=MRPC --data_dir=$GLUE_DIR/MRPC --do_train --do_eval \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
          --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --learning_rate=2e-5 --output_dir=/tmp/mrpc_output
    """

    any_of = ("do_train", "do_eval", "do_predict", "do_export")
    needs = (("class_weights", "do_train"),)

    data_dir: str = setting(
        "Folder with the task's tables (train.tsv, dev.tsv, test.tsv, or the task's own names).", group=DATA
    )
    task_name: str = setting(
        "cola, mnli, mrpc, xnli, sst-2, qqp, qnli, rte, wnli, sts-b, or tsv for tables of your own.", group=DATA
    )
    output_dir: str = output_folder(
        *("*.tf_record", "eval_metrics.json", "label_map.json", "confusion_matrix*.png"),
        *("test_results*.tsv", "predictions*.tsv"),
    )
    do_eval: bool = setting("Evaluate on the development table.", False, group=TO_DO)
    do_predict: bool = setting("Predict the rows of the test table.", False, group=TO_DO)
    text_a_column: str | None = setting(
        "Task tsv: column of the text, by its name or its number from 1.", None, group=DATA
    )
    text_b_column: str | None = setting("Task tsv: column of the second text, if there is one.", None, group=DATA)
    label_column: str | None = setting(
        "Task tsv: column of the label; the set of labels is that of the training table.", None, group=DATA
    )
    id_column: str | None = setting("Task tsv: column that identifies rows in predictions.tsv.", None, group=DATA)
    header: bool = setting("Task tsv: whether the first line of a table is a header.", True, group=DATA)
    multi_label: bool = setting("Task tsv: a text may have several labels, or none.", False, group=DATA)
    label_separator: str = setting("With multi_label: what separates the labels in a cell.", ",", group=DATA)
    class_weights: str | None = setting(
        "balanced: every class counts equally in the training loss.",
        None,
        group=TRAINING,
        decides="classes count otherwise from here on",
        choices=("balanced",),
    )

    def check(self) -> None:
        own_tables = self.task_name.lower() == "tsv"
        task = find_task(self.task_name, tsv=self.columns if own_tables else None)
        if self.class_weights and task.regression:
            raise WrongSetting(f"--class_weights: {self.task_name} has no classes")
        if self.multi_label and not own_tables:
            raise WrongSetting("--multi_label is for tables of your own: it needs --task_name=tsv")
        if self.multi_label and not self.label_separator:
            raise WrongSetting("--multi_label needs --label_separator, one character or more")

    def check_inputs(self) -> None:
        task = find_task(self.task_name, tsv=self.columns)
        evaluates = self.do_eval or self.evaluates_during_training
        parts = {"train": self.do_train, "eval": evaluates, "predict": self.do_predict}
        for part in (part for part, is_on in parts.items() if is_on and part in task.tables):
            files.check_there(os.path.join(self.data_dir, task.tables[part].file))

    @property
    def columns(self) -> TsvLayout:
        """The columns of the user's own tables."""
        return TsvLayout(
            text_a=self.text_a_column or "",
            text_b=self.text_b_column,
            label=self.label_column,
            id=self.id_column,
            header=self.header,
            separator=self.label_separator if self.multi_label else None,
        )


@options
class SquadOptions(PredictionOptions, FineTuneOptions):
    """Fine-tunes BERT on SQuAD 1.1 or 2.0, answers questions and scores the answers.

    Example:
      python run_squad.py --do_train --train_file=$SQUAD_DIR/train-v1.1.json \\
          --do_predict --do_eval --predict_file=$SQUAD_DIR/dev-v1.1.json --output_dir=/tmp/squad_base \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
          --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --learning_rate=3e-5 --num_train_epochs=2
    """

    # Unlike in the other tasks, padding takes part in the answer: start and end are chosen among all max_seq_length
    # positions, so the loss and the n-best lists are the reference's only with pad_to_max_length, the default here.

    any_of = ("do_train", "do_predict", "do_eval", "do_export")
    needs = (
        ("do_train", "train_file"),
        ("do_predict", "predict_file"),
        ("do_eval", "predict_file"),
        ("eval_steps", "predict_file"),
    )

    train_file: str | None = setting("SQuAD JSON to train on, e.g. train-v1.1.json.", None, group=DATA, reads=True)
    predict_file: str | None = setting(
        "SQuAD JSON with the questions to answer, e.g. dev-v1.1.json.",
        None,
        group=DATA,
        reads=True,
    )
    version_2_with_negative: bool = setting("SQuAD 2.0: some questions have no answer.", False, group=DATA)
    output_dir: str = output_folder("*.tf_record", "eval_metrics.json", "*predictions.json", "null_odds.json")
    max_seq_length: int | None = _length("Tokens per window: question, paragraph and 3 special tokens.", 384, 5)
    doc_stride: int | None = kept_setting(
        "Tokens from the start of a window to the start of the next.", 128, group=MODEL, low=1
    )
    max_query_length: int | None = kept_setting("Tokens of a question; longer ones are cut.", 64, group=MODEL, low=1)
    pad_to_max_length: bool = setting(
        "Pad every batch to max_seq_length instead of to its longest row.", True, group=TRAINING
    )
    do_predict: bool = setting("Answer the questions of predict_file.", False, group=TO_DO)
    do_eval: bool = setting("Answer the questions and compute exact match and F1.", False, group=TO_DO)
    n_best_size: int | None = kept_setting(
        "Answers per question in nbest_predictions.json.", 20, group=EVALUATION, low=1
    )
    max_answer_length: int | None = kept_setting("Maximum number of tokens of an answer.", 30, group=EVALUATION, low=1)
    verbose_logging: bool = setting("Log why the words of an answer stay whole.", False, group=LOG)
    answer_offsets: bool = setting(
        "Cut answers out of the paragraph where their tokens stand. The reference compares words with tokens, and keeps"
        " all words of a stretch where they differ, for example in a character that the vocabulary lacks.",
        False,
        group=EVALUATION,
    )
    null_score_diff_threshold: float | None = kept_setting(
        "SQuAD 2.0: predict no answer if its score exceeds the best answer's by more than this.", 0.0, group=EVALUATION
    )

    def check(self) -> None:
        from bert_tf2.finetuning.squad.features import check_lengths  # late: it needs numpy

        check_lengths(self.max_seq_length, self.max_query_length, self.doc_stride)


@options
class NerOptions(PredictionOptions, EvaluationOptions, FineTuneOptions):
    """Fine-tunes BERT to tag words (named entities and the like) in CoNLL columns, evaluates it and predicts.

    Example:
      python run_ner.py --train_file=train.txt --eval_file=dev.txt --do_train --do_eval --do_lower_case=False \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
          --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --output_dir=/tmp/ner_output
    """

    any_of = ("do_train", "do_eval", "do_predict", "do_export")
    needs = (
        ("do_train", "train_file"),
        ("do_eval", "eval_file"),
        ("do_predict", "predict_file"),
        ("eval_steps", "eval_file"),
    )

    train_file: str | None = setting(
        "Training data in CoNLL columns: one word per line, a blank line after each sentence.",
        None,
        group=DATA,
        reads=True,
    )
    eval_file: str | None = setting("Evaluation data in the same format.", None, group=DATA, reads=True)
    predict_file: str | None = setting(
        "Words to tag; a tag column is optional and ignored.", None, group=DATA, reads=True
    )
    word_column: int = setting(
        "Column of the word, starting from 1; negative numbers count from the end.", 1, group=DATA
    )
    tag_column: int = setting(
        "Column of the tag, starting from 1; negative numbers count from the end.", -1, group=DATA
    )
    doc_stride: int | None = kept_setting(
        "Tokens from the start of a window to the start of the next; 0: half a window.", 0, group=DATA, low=0
    )
    document_context: bool | None = kept_setting(
        "Fill each window with the surrounding sentences, as in the paper.", False, group=DATA
    )
    output_dir: str = output_folder("*.tf_record", "eval_metrics.json", "label_map.json", "predictions.txt")
    max_seq_length: int | None = _length("Tokens per window; longer sentences are split.", low=5)
    do_eval: bool = setting("Evaluate on eval_file.", False, group=TO_DO)
    do_predict: bool = setting("Tag the words of predict_file.", False, group=TO_DO)

    def check(self) -> None:
        for name in ("word_column", "tag_column"):
            if getattr(self, name) == 0:
                raise WrongSetting(f"--{name}=0: columns are counted from 1, or from -1, the last one, backwards")


@options
class FeatureOptions(VocabularyOptions, DeviceOptions, ModelOptions):
    """Writes BERT's hidden states for the lines of a text: for every token, or pooled into one vector a line.

    Example:
      python extract_features.py --input_file=/tmp/input.txt --output_file=/tmp/output.jsonl --layers=-1,-2,-3,-4 \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
          --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --max_seq_length=128 --batch_size=8
    """

    input_file: str = setting(
        "Text, one example per line; ` ||| ` separates the two texts of a pair.",
        group=DATA,
        reads=True,
    )
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
    batch_size: int = setting("Lines per batch.", 32, group=DEVICES, low=1)
    use_one_hot_embeddings: bool = setting("Accepted and ignored.", False, group=DEVICES)

    @property
    def numbers_of_layers(self) -> list[int]:
        """Of "-1,-2", [-1, -2]; negative numbers are kept. Raises UserError as `check_layers` does."""
        try:
            numbers = [int(number) for number in self.layers.split(",")]
        except ValueError as error:
            what = f"--layers={self.layers}: numbers with commas are needed, e.g. -1,-2 for the last two"
            raise WrongSetting(what) from error
        check_layers(numbers, self.config.num_hidden_layers, f"--layers={self.layers}")
        return numbers

    def check_inputs(self) -> None:
        self.config.check_sequence_length(self.max_seq_length)
        _ = self.numbers_of_layers

    def check(self) -> None:
        if self.output_file.endswith(".npy") and self.pooling == "none":
            raise WrongSetting(f"--output_file={self.output_file}: .npy holds a vector a line, which needs --pooling")
