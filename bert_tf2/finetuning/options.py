"""The settings of the scripts that fine-tune a model."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from bert_tf2 import tokenization
from bert_tf2.config import check_vocab_size
from bert_tf2.finetuning.classification.tasks import TsvLayout, find_task
from bert_tf2.finetuning.tables import check_columns
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import (
    DATA,
    EVALUATION,
    MODEL,
    Options,
    WrongSetting,
    check_type,
    kept_setting,
    needed,
    of_data,
    of_evaluation,
    of_log,
    of_model,
    of_to_do,
    of_training,
    options,
)
from bert_tf2.training.options import (
    EvaluationOptions,
    TrainingOptions,
    VocabularyOptions,
    output_folder,
    sequence_length,
    usual_length,
)
from bert_tf2.weights import task_file, text_rules

LEAST_LENGTH = 3  # of an example: [CLS], a piece of a word and [SEP]


def checked_length(length: int | None, longest: int, name: str = "max_seq_length") -> int:
    """Returns the checked length, the argument `name` of a call from Python; None becomes `longest`, the limit."""
    if length is None:
        return longest
    length = check_type(name, length, int)
    if not LEAST_LENGTH <= length <= longest:
        raise UserError(f"{name}={length}: must be from {LEAST_LENGTH} to {longest}, the most that the model can read")
    return length


def _length(help: str, usual: int = 128, low: int = LEAST_LENGTH) -> Any:
    stated = {"flag_default": usual, "kept": True, "decides": "texts are cut elsewhere from here on"}
    return sequence_length(help, None, low, **stated)


@options
class FineTuneOptions(VocabularyOptions, TrainingOptions):
    """The settings that all tasks share.

    With eval_steps, the best weights are in output_dir/best; evaluation and prediction use them, also in later calls.
    """

    of_task: ClassVar[str | None] = None  # see task_file.taken

    max_seq_length: int | None = _length("Tokens per example, including special tokens; longer texts are cut.")
    other_task: bool = of_model(
        "Accept weights of another task; if they have another number of labels, a training begins with a new head.",
        False,
    )
    num_train_epochs: float = of_training("Number of passes over the training data.", 3.0, low=0.0)
    warmup_proportion: float = of_training("Share of the steps in which the rate rises.", 0.1, low=0.0, high=1.0)
    pad_to_max_length: bool = of_training("Pad batches to max_seq_length, not to their longest row.", False)
    predict_batch_size: int = of_evaluation("Examples per batch, over all devices.", 8, low=1)
    eval_steps: int = of_evaluation("Evaluate every N steps and keep the best weights; 0: never.", 0, low=0)

    def check(self) -> None:
        super().check()
        if self.attention == "fused" and not (self.pads_batches or self.pack_rows):
            raise WrongSetting("--attention=fused needs rows of one length: add --pad_to_max_length or --pack_rows")
        if self.pack_rows and self.pad_to_max_length:
            raise WrongSetting("--pack_rows computes no padding, so it needs --pad_to_max_length=false")

    def check_inputs(self) -> None:
        super().check_inputs()
        self.config.check_sequence_length(self.max_seq_length)
        if os.path.isfile(self.vocab_file):  # see ClassifierOptions.check_inputs
            entries = tokenization.read_entries(self.vocab_file)
            text_rules.check_special_tokens({entry.strip(): id for id, entry in enumerate(entries)}, self.vocab_file)
            check_vocab_size(self.vocab_file, len(entries), self.config.vocab_size)
        for switch, name in needed(type(self)):
            if getattr(self, switch) and name.endswith("_file"):
                files.check_there(getattr(self, name))

    @property
    def pads_batches(self) -> bool:
        return self.pad_to_max_length or self.use_tpu

    def from_files(self) -> dict[str, Any]:
        trained = {"output_dir": self.output_dir, "is_trained": not self.do_train, "of_task": self.of_task}
        found = super().from_files() | task_file.taken(self, self.init_checkpoint, **trained)
        return found | usual_length(self, found)

    @property
    def evaluates_during_training(self) -> bool:
        return self.do_train and self.eval_steps > 0


_OTHER_TEACHER = "the loss changes from here on"


@options
class TeacherOptions(Options):
    """A trained model from whose answers the model learns."""

    needs = (("teacher", "do_train"),)
    only_with = (("temperature", "teacher"), ("alpha", "teacher"))

    teacher: str | None = of_training(
        "Folder of a model with the same labels, fine-tuned; training also learns its answers.", None,
        reads="weights", decides=_OTHER_TEACHER,
    )  # fmt: skip
    temperature: float = of_training(
        "With teacher: divides both models' logits; the higher, the more the unlikely labels count.", 2.0,
        low=0.1, high=1000.0, decides=_OTHER_TEACHER,
    )  # fmt: skip
    alpha: float = of_training(
        "With teacher: the teacher's share of the loss; the labels have the rest.",
        0.5,
        low=0.0,
        high=1.0,
        decides=_OTHER_TEACHER,
    )


@options
class ClassifierOptions(TeacherOptions, EvaluationOptions, FineTuneOptions):
    """Fine-tunes BERT on a classification task (GLUE, XNLI or one's own table), evaluates it and predicts.

    Example:
      python run_classifier.py --task_name=MRPC --data_dir=$GLUE_DIR/MRPC --do_train --do_eval \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
          --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --learning_rate=2e-5 --output_dir=/tmp/mrpc_output
    """

    any_of = ("do_train", "do_eval", "do_predict", "do_export")
    needs = (("class_weights", "do_train"),)
    not_both = (("multi_label", "regression"),)
    only_with = (
        ("pooling", "doc_stride"),
        *((name, "task_name=tsv") for name in ("multi_label", "regression", "header")),
        *((f"{name}_column", "task_name=tsv") for name in ("text_a", "text_b", "label", "id")),
        ("label_separator", "multi_label"),
    )

    data_dir: str = of_data("Folder of train.tsv, dev.tsv and test.tsv, or of the task's own files.")
    task_name: str = of_data("cola, mnli, mrpc, xnli, sst-2, qqp, qnli, rte, wnli, sts-b, or tsv for your own tables.")
    output_dir: str = output_folder(
        *("*.tf_record", "eval_metrics.json", "label_map.json", "confusion_matrix.png"),
        *("test_results.tsv", "predictions.tsv"),
    )
    doc_stride: int | None = kept_setting(
        "Read long texts in windows, with this many tokens between two windows' starts; 0: cut them.", 0, group=MODEL,
        low=0, decides="long texts are divided elsewhere from here on",
    )  # fmt: skip
    pooling: str | None = kept_setting(
        "With doc_stride: the answer is the mean or the maximum of the windows' probabilities.", "mean", group=MODEL,
        choices=("mean", "max"), decides="windows are pooled otherwise from here on",
    )  # fmt: skip
    do_eval: bool = of_to_do("Evaluate on the development table.", False)
    do_predict: bool = of_to_do("Predict the rows of the test table.", False)
    text_a_column: str | None = of_data("Task tsv: column of the text, by name or number.", None)
    text_b_column: str | None = of_data("Task tsv: column of the second text, if there is one.", None)
    label_column: str | None = of_data("Task tsv: column of the label.", None)
    id_column: str | None = of_data("Task tsv: column that identifies rows in predictions.tsv.", None)
    header: bool = of_data("Task tsv: whether the first line of a table is a header.", True)
    multi_label: bool = of_data("Task tsv: a text may have several labels, or none.", False)
    label_separator: str = of_data("With multi_label: the separator between the labels in a cell.", ",")
    regression: bool = of_data("Task tsv: the label is a number, which the model predicts.", False)
    class_weights: str | None = of_training(
        "balanced: every class counts equally in the training loss.", None, choices=("balanced",),
        decides="classes count otherwise from here on",
    )  # fmt: skip

    def check(self) -> None:
        super().check()
        own_tables = self.task_name.lower() == "tsv"
        task = find_task(self.task_name, tsv=self.columns if own_tables else None)
        if own_tables and (self.do_train or self.do_eval) and not self.label_column:
            raise WrongSetting("--task_name=tsv needs --label_column to train and evaluate")
        if own_tables and self.label_column and self.label_column in (self.text_a_column, self.text_b_column):
            flag = "text_a_column" if self.label_column == self.text_a_column else "text_b_column"
            raise WrongSetting(f"--label_column={self.label_column}: is --{flag} as well")
        if self.class_weights and task.regression:
            raise WrongSetting(f"--class_weights: {self.task_name} has no classes")
        if self.multi_label and not self.label_separator:
            raise WrongSetting("--multi_label needs a --label_separator")
        fixed = {"pack_rows": True, "pad_to_max_length": True, "use_tpu": True, "xla": "true"}
        if self.doc_stride and (wrong := [name for name, value in fixed.items() if getattr(self, name) == value]):
            raise WrongSetting(f"--doc_stride: texts have different numbers of windows, so leave out --{wrong[0]}")

    def check_inputs(self) -> None:
        super().check_inputs()
        if self.doc_stride and self.max_seq_length <= LEAST_LENGTH:
            raise WrongSetting(f"--max_seq_length={self.max_seq_length}: must be 4 or more with --doc_stride")
        task = find_task(self.task_name, tsv=self.columns)
        evaluates = self.do_eval or self.evaluates_during_training
        parts = {"train": self.do_train, "eval": evaluates, "predict": self.do_predict}
        for part in (part for part, is_on in parts.items() if is_on and part in task.tables):
            path = os.path.join(self.data_dir, task.tables[part].file)
            files.check_there(path)
            if os.path.isfile(path):  # a pipe can be read only once, and a remote file needs TensorFlow
                check_columns(path, task.tables[part], task.remedy(part))

    @property
    def columns(self) -> TsvLayout:
        separator = self.label_separator if self.multi_label else None
        texts = (self.text_a_column or "", self.text_b_column)
        return TsvLayout(*texts, self.label_column, self.id_column, self.header, separator, self.regression)


@options
class SquadOptions(FineTuneOptions):
    """Fine-tunes BERT on SQuAD 1.1 or 2.0, answers questions and scores the answers.

    Example:
      python run_squad.py --do_train --train_file=$SQUAD_DIR/train-v1.1.json \\
          --do_predict --do_eval --predict_file=$SQUAD_DIR/dev-v1.1.json --output_dir=/tmp/squad_base \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
          --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --learning_rate=3e-5 --num_train_epochs=2
    """

    of_task = "squad"
    any_of = ("do_train", "do_predict", "do_eval", "do_export")
    needs = (("do_train", "train_file"), *((name, "predict_file") for name in ("do_predict", "do_eval", "eval_steps")))

    train_file: str | None = of_data("SQuAD JSON to train on, train-v1.1.json.", None, reads=True)
    predict_file: str | None = of_data("SQuAD JSON with the questions, dev-v1.1.json.", None, reads=True)
    version_2_with_negative: bool = of_data("SQuAD 2.0: some questions have no answer.", False)
    output_dir: str = output_folder("*.tf_record", "eval_metrics.json", "*predictions.json", "null_odds.json")
    max_seq_length: int | None = _length("Tokens per window: question, paragraph and 3 special tokens.", 384, 5)
    doc_stride: int | None = kept_setting("Tokens between the starts of two windows.", 128, group=MODEL, low=1)
    max_query_length: int | None = kept_setting("Tokens of a question; long questions are cut.", 64, group=MODEL, low=1)
    # Start and end are chosen among all positions, so the loss is the reference's only with pad_to_max_length.
    pad_to_max_length: bool = of_training("Pad batches to max_seq_length, not to their longest row.", True)
    do_predict: bool = of_to_do("Answer the questions of predict_file.", False)
    do_eval: bool = of_to_do("Answer the questions and compute exact match and F1.", False)
    n_best_size: int | None = kept_setting("Answers in nbest_predictions.json.", 20, group=EVALUATION, low=1)
    max_answer_length: int | None = kept_setting("Maximum number of tokens of an answer.", 30, group=EVALUATION, low=1)
    verbose_logging: bool = of_log("Log why the words of an answer stay whole.", False)
    answer_offsets: bool = of_evaluation("Cut answers at the ends of their tokens, not at whole words.", False)
    null_score_diff_threshold: float | None = kept_setting(
        "SQuAD 2.0: answer nothing if its score exceeds the best answer's by more than this.", 0.0, group=EVALUATION
    )

    def check_inputs(self) -> None:
        from bert_tf2.finetuning.squad.features import check_lengths  # late: it needs numpy

        check_lengths(self.max_seq_length, self.max_query_length, self.doc_stride)
        super().check_inputs()
        if self.do_eval or self.evaluates_during_training:
            from bert_tf2.finetuning.squad.examples import check_answers  # late: as above

            check_answers(self.predict_file, self.version_2_with_negative)


@options
class NerOptions(TeacherOptions, EvaluationOptions, FineTuneOptions):
    """Fine-tunes BERT to tag words (named entities and the like) in CoNLL columns, evaluates it and predicts.

    Example:
      python run_ner.py --train_file=train.txt --eval_file=dev.txt --do_train --do_eval --do_lower_case=False \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
          --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --output_dir=/tmp/ner_output
    """

    any_of = ("do_train", "do_eval", "do_predict", "do_export")
    needs = (*((f"do_{part}", f"{part}_file") for part in ("train", "eval", "predict")), ("eval_steps", "eval_file"))

    train_file: str | None = of_data("Words in CoNLL columns, a blank line after each sentence.", None, reads=True)
    eval_file: str | None = of_data("Evaluation data in the same format.", None, reads=True)
    predict_file: str | None = of_data("Words to tag; a tag column is ignored.", None, reads=True)
    word_column: int = of_data("Column of the word, from 1; -1 is the last.", 1)
    tag_column: int = of_data("Column of the tag, from 1; -1 is the last.", -1)
    doc_stride: int | None = kept_setting("Tokens between two windows' starts; 0: half a window.", 0, group=DATA, low=0)
    document_context: bool | None = kept_setting("Fill windows with neighboring sentences.", False, group=DATA)
    output_dir: str = output_folder("*.tf_record", "eval_metrics.json", "label_map.json", "predictions.txt")
    max_seq_length: int | None = _length("Tokens per window; longer sentences are split.", low=5)
    do_eval: bool = of_to_do("Evaluate on eval_file.", False)
    do_predict: bool = of_to_do("Tag the words of predict_file.", False)

    def check(self) -> None:
        super().check()
        if 0 in (self.word_column, self.tag_column):
            raise WrongSetting("--word_column and --tag_column: columns are counted from 1, or from -1 backwards")
