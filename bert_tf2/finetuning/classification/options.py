"""The settings of run_classifier.py."""

from __future__ import annotations

from bert_tf2.finetuning.classification.tasks import TsvLayout, find_task
from bert_tf2.finetuning.options import FineTuneOptions
from bert_tf2.support.settings import DATA, EVALUATION, TO_DO, TRAINING, WrongSetting, options, setting
from bert_tf2.training.options import EvaluationOptions, PredictionOptions, output_folder


@options
class ClassifierOptions(PredictionOptions, EvaluationOptions, FineTuneOptions):
    """Fine-tunes BERT on a classification task (GLUE, XNLI or one's own table), evaluates it and predicts.

    Example:
      python run_classifier.py --task_name=MRPC --data_dir=$GLUE_DIR/MRPC --do_train --do_eval \\
          --bert_config_file=$BERT_BASE_DIR/bert_config.json --vocab_file=$BERT_BASE_DIR/vocab.txt \\
          --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --learning_rate=2e-5 --output_dir=/tmp/mrpc_output
    """

    any_of = ("do_train", "do_eval", "do_predict", "do_export")
    needs = (("glue_submission", "do_predict"), ("class_weights", "do_train"))

    data_dir: str = setting(
        "Folder with the task's tables (train.tsv, dev.tsv, test.tsv, or the task's own names).", group=DATA
    )
    task_name: str = setting(
        "cola, mnli, mrpc, xnli, sst-2, qqp, qnli, rte, wnli, sts-b, or tsv for tables of your own.", group=DATA
    )
    output_dir: str = output_folder(
        *(
            "*.tf_record",
            "eval_metrics.json",
            "label_map.json",
            "confusion_matrix*.png",
            "test_results*.tsv",
            "predictions*.tsv",
        )
    )
    do_eval: bool = setting("Evaluate on the development table.", False, group=TO_DO)
    do_predict: bool = setting("Predict the rows of the test table.", False, group=TO_DO)
    glue_submission: bool = setting(
        "With do_predict: also write the files that gluebenchmark.com accepts, into output_dir/glue.",
        False,
        group=EVALUATION,
    )
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
        "How much each class counts in the training loss: balanced, or a JSON file with a number for each label.",
        None,
        group=TRAINING,
    )

    def check(self) -> None:
        own_tables = self.task_name.lower() == "tsv"
        task = None if own_tables else find_task(self.task_name)
        if self.glue_submission and not (task and task.tables["predict"].submission):
            raise WrongSetting(f"--glue_submission: {self.task_name} is not a task of gluebenchmark.com")
        if self.class_weights and task and task.regression:
            raise WrongSetting(f"--class_weights: {self.task_name} has no classes")
        if self.multi_label and not own_tables:
            raise WrongSetting("--multi_label is for tables of your own: it needs --task_name=tsv")
        if self.multi_label and not self.label_separator:
            raise WrongSetting("--multi_label needs --label_separator, one character or more")

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
