"""Question answering, as a task of the driver: implements run_squad.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf2 import heads
from bert_tf2.data import records
from bert_tf2.finetuning import squad
from bert_tf2.finetuning.options import SquadOptions
from bert_tf2.finetuning.task import Batches, FineTuningTask, Scores
from bert_tf2.support import console, progress
from bert_tf2.training import driver
from bert_tf2.training.driver import Export

_EAST_ASIAN = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def run(options: SquadOptions, export: Export | None = None) -> dict[str, Any] | None:
    """Trains, predicts, scores the predictions, exports; see driver.run.

    Writes the files of the reference and `eval_metrics.json` into output_dir.
    """
    return driver.run(SquadTask(options), export)


class SquadTask(FineTuningTask):
    """Finds the best span in windows of paragraphs. An evaluation scores the answers that it writes."""

    export_as = "squad"
    predicted_part = "eval"
    options: SquadOptions

    def __init__(self, options: SquadOptions):
        super().__init__(options)
        self._windows: list[squad.InputFeatures] = []  # the windows of the questions to answer
        if options.doc_stride > options.max_seq_length - 4:  # [CLS], the shortest question, and two [SEP]
            logging.warning(
                "--doc_stride=%d: windows of --max_seq_length=%d do not overlap, and an answer that crosses a border is"
                " in no window; half of a window is usual", options.doc_stride, options.max_seq_length,
            )  # fmt: skip

    @property
    def predicts(self) -> bool:
        return self.options.do_predict or self.options.do_eval

    @property
    def purpose(self) -> dict[str, str | bool]:
        return {"task": "squad", "version_2_with_negative": self.options.version_2_with_negative}

    def read(self, part: str) -> Sequence[squad.SquadExample]:
        self.config.check_pairs("a question and its paragraph")
        options = self.options
        if part == "train":
            examples = squad.read_squad_examples(options.train_file, True, options.version_2_with_negative)
            return squad.shuffled_for_training(examples)
        return squad.read_squad_examples(options.predict_file, False, options.version_2_with_negative)

    def make_model(self, dtype: str) -> heads.SpanModel:
        return heads.SpanModel(self.config, dtype=dtype)

    def kind(self, part: str) -> records.RecordKind:
        return self.model.record_kind if part == "train" else records.SQUAD_PREDICT

    def features(self, part: str) -> Iterable[Mapping[str, Sequence]]:
        """Yields the windows; windows for prediction are kept, because `answers` needs them."""
        options, training = self.options, part == "train"
        count = 0
        examples = progress.track(self.examples[part], "Writing features", unit="questions")
        lengths = (options.max_seq_length, options.doc_stride, options.max_query_length)
        for window in squad.convert_examples_to_features(examples, self.tokenizer, *lengths, training):
            count += 1
            if not training:
                self._windows.append(window)
            yield squad.as_record(window, training)
        logging.info("%d questions in %d windows", len(self.examples[part]), count)

    def answers(self, part: str, batches: Batches) -> squad.Answers:
        options, lower = self.options, self.tokenizer.basic_tokenizer.do_lower_case
        names = ("unique_ids", "start_logits", "end_logits")
        rows = (row for batch in batches for row in zip(*map(batch.get, names), strict=True))
        results = (squad.RawResult(int(unique_id), *logits) for unique_id, *logits in rows)
        return squad.compute_predictions(
            self.examples[part], self._windows, results, options.n_best_size, options.max_answer_length, lower,
            options.version_2_with_negative, options.null_score_diff_threshold, options.verbose_logging,
            options.answer_offsets,
        )  # fmt: skip

    def score(self, answers: squad.Answers) -> Scores:
        # The predictions already use the threshold; the search for a better one uses the odds.
        how = {"threshold": float("inf"), "version_2_with_negative": self.options.version_2_with_negative}
        given = (self.options.predict_file, answers.predictions, answers.null_odds)
        scores = squad.evaluate_predictions(*given, **how)
        if 2 * sum(bool(_EAST_ASIAN.search(text)) for text in answers.predictions.values()) > len(answers.predictions):
            logging.warning("f1 counts words between blanks, as for SQuAD; CMRC, DRCD and KorQuAD count characters")
        return Scores(scores, "f1", ("exact", "exact_match", "f1"), screen=console.table("Scores:", scores))

    def write(self, answers: squad.Answers) -> Sequence[str]:
        squad.write_answers(self.options.output_dir, answers)
        for found, what in (
            (answers.longer, "are longer than the model's span, as in the reference; --answer_offsets cuts them"),
            (answers.empty, 'are "empty" because no span is possible, as in the reference; "" with --answer_offsets'),
        ):
            if found:
                counts = (len(found), len(answers.predictions))
                logging.warning("%d of %d answers %s. The first is the answer to question %s", *counts, what, found[0])
        odds = ["null_odds.json"] if self.options.version_2_with_negative else []
        return ["predictions.json", "nbest_predictions.json", *odds]

    def export_settings(self) -> dict[str, Any]:
        names = ("doc_stride", "max_query_length", "max_answer_length", "n_best_size")
        threshold = self.options.null_score_diff_threshold if self.options.version_2_with_negative else None
        return {**{name: getattr(self.options, name) for name in names}, "null_score_diff_threshold": threshold}
