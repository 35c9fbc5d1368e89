"""Question answering as a whole: what run_squad.py does once its flags are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from absl import logging

from bert_tf2 import heads, records
from bert_tf2.finetuning import squad
from bert_tf2.finetuning.driver import FineTuneOptions, FineTuner, tell_summary, write_json
from bert_tf2.finetuning.squad import scores as squad_scores
from bert_tf2.support import console, progress
from bert_tf2.support.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadOptions(FineTuneOptions):
    """The settings of one call; each is the flag of the same name of run_squad.py.

    Unlike in the other tasks, padding takes part in the answer here: start and end are chosen among all max_seq_length
    positions, so the loss and the n-best lists are the reference's only with pad_to_max_length, the default.
    """

    train_file: str | None = None
    predict_file: str | None = None
    max_seq_length: int = 384
    pad_to_max_length: bool = True
    doc_stride: int = 128
    max_query_length: int = 64
    do_predict: bool = False
    do_eval: bool = False
    predict_batch_size: int = 8
    n_best_size: int = 20
    max_answer_length: int = 30
    verbose_logging: bool = False
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0


def run(options: SquadOptions) -> dict[str, float] | None:
    """Trains, predicts, scores the predictions, exports; returns the scores if there are any.

    Writes into output_dir what the reference writes (`train.tf_record`, `eval.tf_record`, checkpoints,
    `predictions.json`, `nbest_predictions.json`, for version 2 `null_odds.json`), and `eval_metrics.json`.

    Raises:
      UserError: nothing to do, or files and lengths that are missing, malformed or do not fit together.
    """
    _check(options)
    with FineTuner(options) as tuner:
        return _run(tuner, options)


def _run(tuner: FineTuner, options: SquadOptions) -> dict[str, float] | None:
    tuner.config.check_pairs("a question and its paragraph")
    answering = options.do_predict or options.do_eval
    watching = options.do_train and options.eval_steps > 0
    train = _read_training_set(options) if options.do_train else []
    if options.do_train:
        tuner.num_train_steps(len(train))  # too few questions are told before anything is computed or written
    questions = _read_questions(options) if answering or watching else []
    if options.do_eval or watching:
        squad_scores.check_answers(options.predict_file, options.version_2_with_negative)
    tuner.make_model(lambda config, dtype: heads.SpanModel(config, dtype=dtype))
    predictor = _Predictor(tuner, questions, options)
    if options.do_train:
        path = tuner.record_file("train.tf_record")
        count, _ = _write_features(tuner, train, path, is_training=True)
        logging.info("%d questions in %d windows", len(train), count)
        tuner.train(path, records.SQUAD_TRAIN, len(train), measure=predictor.measure if watching else None)
    scores = _answer(tuner, predictor, options) if answering else None
    exported = _export(tuner, options) if options.do_export else None
    _tell_summary(options, scores, exported)
    return scores


def _tell_summary(options: SquadOptions, scores: Mapping[str, float] | None, exported: str | None) -> None:
    written = ["predictions.json", "nbest_predictions.json"] if options.do_predict or options.do_eval else []
    written += ["null_odds.json"] if written and options.version_2_with_negative else []
    written += ["eval_metrics.json"] if scores else []
    figures = {name: scores[name] for name in ("exact", "exact_match", "f1") if name in scores} if scores else None
    possible = ["do_eval", "do_predict"] if options.predict_file and not written else []
    tell_summary(options, "run_squad.py", written, figures, [*possible, "do_export"], exported)


def _answer(tuner: FineTuner, predictor: _Predictor, options: SquadOptions) -> dict[str, float] | None:
    answers = predictor.answers()
    squad.write_answers(options.output_dir, answers)
    if not options.do_eval:
        return None
    scores = predictor.scores(answers)
    write_json(tuner.output_file("eval_metrics.json"), scores)
    logging.info("%s", console.table("Scores:", scores))
    return scores


def _export(tuner: FineTuner, options: SquadOptions) -> str:
    names = ("doc_stride", "max_query_length", "max_answer_length", "n_best_size")
    threshold = options.null_score_diff_threshold if options.version_2_with_negative else None
    settings = {name: getattr(options, name) for name in names}
    return tuner.export("squad", **settings, null_score_diff_threshold=threshold)


def _check(options: SquadOptions) -> None:
    if not (options.do_train or options.do_predict or options.do_eval or options.do_export):
        raise UserError("nothing to do: give at least one of --do_train, --do_predict, --do_eval and --do_export")
    if options.do_train and not options.train_file:
        raise UserError("--do_train needs --train_file")
    if (options.do_predict or options.do_eval) and not options.predict_file:
        raise UserError("--do_predict and --do_eval need --predict_file")
    if options.eval_steps and not options.predict_file:
        raise UserError("--eval_steps needs --predict_file, to evaluate on")
    squad.check_lengths(options.max_seq_length, options.max_query_length, options.doc_stride)


def _read_training_set(options: SquadOptions) -> list[squad.SquadExample]:
    examples = squad.read_squad_examples(options.train_file, True, options.version_2_with_negative)
    return squad.shuffled_for_training(examples)


def _read_questions(options: SquadOptions) -> list[squad.SquadExample]:
    return squad.read_squad_examples(options.predict_file, False, options.version_2_with_negative)


def _write_features(
    tuner: FineTuner, examples: Sequence[squad.SquadExample], path: str, is_training: bool
) -> tuple[int, list[squad.InputFeatures]]:
    """Writes a record file; returns how many windows there are and, for prediction, the windows themselves."""
    options = tuner.options
    features = squad.convert_examples_to_features(
        progress.track(examples, "Writing features", unit="questions"),
        tuner.tokenizer,
        options.max_seq_length,
        options.doc_stride,
        options.max_query_length,
        is_training,
        log_level=logging.DEBUG if options.do_train and not is_training else logging.INFO,  # one example is enough
    )
    kept: list[squad.InputFeatures] = []

    def rows():
        for feature in features:
            if not is_training:
                kept.append(feature)
            yield squad.as_record(feature, is_training)

    kind = records.SQUAD_TRAIN if is_training else records.SQUAD_PREDICT
    return records.write_records(path, kind, rows()), kept


class _Predictor:
    """Answers and scores one set of questions, with the model as it stands."""

    def __init__(self, tuner: FineTuner, examples: Sequence[squad.SquadExample], options: SquadOptions):
        self._tuner = tuner
        self._examples = examples
        self._options = options
        self._path = tuner.record_file("eval.tf_record")
        self._features: list[squad.InputFeatures] | None = None

    def answers(self) -> squad.Answers:
        options = self._options
        if self._features is None:
            _, self._features = _write_features(self._tuner, self._examples, self._path, is_training=False)
        logging.info("%d questions in %d windows", len(self._examples), len(self._features))
        return squad.compute_predictions(
            self._examples,
            self._features,
            self._results(),
            options.n_best_size,
            options.max_answer_length,
            self._tuner.do_lower_case,
            options.version_2_with_negative,
            options.null_score_diff_threshold,
            options.verbose_logging,
        )

    def _results(self):
        batches = self._tuner.run(
            self._path, records.SQUAD_PREDICT, self._options.predict_batch_size,
            what="Predicting", total=len(self._features), unit="windows",
        )  # fmt: skip
        for batch in batches:
            rows = zip(batch["unique_ids"], batch["start_logits"], batch["end_logits"], strict=True)
            yield from (squad.RawResult(int(unique_id), start, end) for unique_id, start, end in rows)

    def scores(self, answers: squad.Answers) -> dict[str, float]:
        options = self._options
        return squad_scores.evaluate_predictions(
            options.predict_file,
            answers.predictions,
            answers.null_odds,
            # The predictions have the threshold in them; the search for a better one is over the odds.
            threshold=float("inf"),
            version_2_with_negative=options.version_2_with_negative,
        )

    def measure(self) -> tuple[str, float]:
        return "f1", self.scores(self.answers())["f1"]
