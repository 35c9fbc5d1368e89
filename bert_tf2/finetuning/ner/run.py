"""Token classification as a whole: what run_ner.py does once its flags are read.

The reference has no such script; the set-up is the paper's (section 5.3): a label for the first piece of each word, and
if wanted as much of the document around a sentence as fits.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from bert_tf2 import heads, records
from bert_tf2.finetuning import ner
from bert_tf2.finetuning.driver import FineTuneOptions, FineTuner, known_labels, tell_summary, write_json
from bert_tf2.finetuning.ner import scores as ner_scores
from bert_tf2.support import console, progress
from bert_tf2.support.errors import UserError
from bert_tf2.training import loop as training
from bert_tf2.weights.labels import LABEL_MAP_FILE, TAGGING_TASK, LabelMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class NerOptions(FineTuneOptions):
    """The settings of one call; each is the flag of the same name of run_ner.py."""

    train_file: str | None = None
    eval_file: str | None = None
    predict_file: str | None = None
    do_eval: bool = False
    do_predict: bool = False
    eval_batch_size: int = 8
    predict_batch_size: int = 8
    word_column: int = 1
    tag_column: int = -1
    doc_stride: int = 0
    document_context: bool = False


def run(options: NerOptions) -> dict[str, float] | None:
    """Trains, evaluates, predicts, exports; returns the evaluation's scores if there is one.

    Writes into output_dir: checkpoints, `label_map.json`, `eval_results.txt` and `eval_metrics.json`, and
    `predictions.txt` with the columns of predict_file and the predicted tag behind them.

    Raises:
      UserError: nothing to do, or files that are missing, malformed or do not fit together.
    """
    if not (options.do_train or options.do_eval or options.do_predict or options.do_export):
        raise UserError("nothing to do: give at least one of --do_train, --do_eval, --do_predict and --do_export")
    for part in ("train", "eval", "predict"):
        if getattr(options, f"do_{part}") and not getattr(options, f"{part}_file"):
            raise UserError(f"--do_{part} needs --{part}_file")
    if options.eval_steps and not options.eval_file:
        raise UserError("--eval_steps needs --eval_file, to evaluate on")
    with FineTuner(options) as tuner:
        call = _Call(tuner, _read_all(options), options)
        if options.do_train:
            call.train()
        scores = call.evaluate() if options.do_eval else None
        if options.do_predict:
            call.predict()
        if options.do_export:
            exported = call.export()
        call.tell_summary(scores, exported if options.do_export else None)
    return scores


def _read(options: NerOptions, path: str, has_labels: bool | None = True) -> list[ner.NerSentence]:
    columns = {name: getattr(options, name) for name in ("word_column", "tag_column")}
    for name, column in columns.items():
        if column == 0:
            raise UserError(f"--{name}=0: columns are counted from 1, or from -1, the last one, backwards")
        columns[name] = column - 1 if column > 0 else column
    return ner.read_conll(path, **columns, has_labels=has_labels)


def _read_all(options: NerOptions) -> dict[str, list[ner.NerSentence]]:
    """Every file that will be needed, for a fault in the last one should not show after hours of training."""
    sentences = {}
    if options.do_train:
        sentences["train"] = _read(options, options.train_file)
    if options.do_eval or (options.do_train and options.eval_steps):
        sentences["eval"] = _read(options, options.eval_file)
    if options.do_predict:
        sentences["predict"] = _read(options, options.predict_file, has_labels=False)
    return sentences


def _labels(options: NerOptions, train: Sequence[ner.NerSentence]) -> list[str]:
    """The tags that the weights in use were trained for, else those of the training file."""
    known = known_labels(options, tagging=True)
    if known:
        return list(known.labels)
    if not options.do_train:
        raise UserError(
            f"{options.output_dir}: no {LABEL_MAP_FILE} beside a checkpoint, so the tags are not known;"
            " train first, or give the --output_dir of the training"
        )
    labels = ner.labels_of(train)
    if len(labels) < 2:
        raise UserError(f"{options.train_file}: every word has the tag {ner.OUTSIDE}, so there is nothing to learn")
    return labels


_LOGGED_EXAMPLES = 5


class _Windows(NamedTuple):
    """Sentences, their windows, and the record file of these."""

    sentences: Sequence[ner.NerSentence]
    features: Sequence[ner.InputFeatures]
    path: str


class _Call:
    """One call of run_ner.py."""

    def __init__(self, tuner: FineTuner, sentences: Mapping[str, Sequence[ner.NerSentence]], options: NerOptions):
        """`sentences`: those of the parts "train", "eval" and "predict" that the call is about."""
        self._tuner = tuner
        self._sentences = sentences
        self._labels = _labels(options, sentences.get("train", ()))
        self._options = options
        tuner.make_model(lambda config, dtype: heads.TaggingModel(config, num_labels=len(self._labels), dtype=dtype))
        self._windows = {part: self._write(part) for part in sentences}

    def _write(self, part: str) -> _Windows:
        features = ner.convert_sentences_to_features(
            self._sentences[part],
            self._labels,
            self._options.max_seq_length,
            self._tuner.tokenizer,
            self._options.doc_stride or None,
            self._options.document_context,
        )
        if part == "train":
            self._tuner.num_train_steps(len(features))  # too few are told before anything is written
        if part == next(iter(self._sentences)):  # one example is enough
            self._log_examples(part, features)
        path = self._tuner.record_file(f"{part}.tf_record")
        rows = progress.track(map(ner.as_record, features), "Writing features", len(features), "windows")
        records.write_records(path, records.TOKEN_TAGGING, rows)
        return _Windows(self._sentences[part], features, path)

    def _log_examples(self, part: str, features: Sequence[ner.InputFeatures]) -> None:
        """The first window in words; with --verbose_logging several as the model gets them."""
        for number, feature in enumerate(features[:_LOGGED_EXAMPLES]):
            tokens = self._tuner.tokenizer.convert_ids_to_tokens(feature.input_ids)
            if number == 0:
                sentence = self._sentences[part][feature.sentence]
                tags = sentence.tags if part != "predict" else ["?"] * len(sentence.words)
                words = " ".join(f"{word}/{tag}" for word, tag in zip(sentence.words, tags, strict=True))
                rows = {"words": words, "tokens": " ".join(tokens)}
                logging.info("%s", console.table(f"The first of {len(features):,} windows to {part}:", rows))
            logging.debug("*** Example ***")
            logging.debug("tokens: %s", " ".join(tokens))
            for name, values in ner.as_record(feature).items():
                logging.debug("%s: %s", name, " ".join(map(str, values)))

    def train(self) -> None:
        windows = self._windows["train"]
        self._tuner.save_labels(self._label_map())
        measure = self._measure if self._options.eval_steps else None
        count = len(windows.features)
        self._tuner.train(windows.path, records.TOKEN_TAGGING, count, len(self._labels), measure)

    def _label_map(self) -> LabelMap:
        return LabelMap(TAGGING_TASK, tuple(self._labels), regression=False)

    def _tags(self, part: str, batch_size: int) -> list[list[str]]:
        """The predicted tags of every sentence."""
        sentences, features, path = self._windows[part]
        what = "Evaluating" if part == "eval" else "Predicting"
        batches = self._tuner.run(
            path, records.TOKEN_TAGGING, batch_size, len(self._labels),
            what=what, total=len(features), unit="windows",
        )  # fmt: skip
        predictions = [np.asarray(row) for batch in batches for row in batch["predictions"]]
        return ner.assemble_tags(sentences, features, predictions, self._labels)

    def _scores(self) -> dict:
        tags = self._tags("eval", self._options.eval_batch_size)
        return ner_scores.score([sentence.tags for sentence in self._sentences["eval"]], tags)

    def _measure(self) -> tuple[str, float]:
        return "f1", self._scores()["f1"]

    def evaluate(self) -> dict[str, float]:
        scores = self._scores()
        results = {name: scores[name] for name in ("precision", "recall", "f1", "accuracy")}
        training.write_eval_results(self._options.output_dir, {**results, "global_step": self._tuner.global_step})
        write_json(self._tuner.output_file("eval_metrics.json"), scores)
        logging.info("Scores by entity:\n%s", textwrap.indent(ner_scores.score_table(scores), "  "))
        return scores

    def predict(self) -> None:
        sentences = self._sentences["predict"]
        tags = self._tags("predict", self._options.predict_batch_size)
        path = self._tuner.output_file("predictions.txt")
        ner.write_predictions(self._options.predict_file, path, sentences, tags)

    def export(self) -> str:
        return self._tuner.export("ner", labels=self._label_map())

    def tell_summary(self, scores: Mapping[str, float] | None, exported: str | None) -> None:
        options = self._options
        written = ["eval_results.txt", "eval_metrics.json"] if options.do_eval else []
        written += ["predictions.txt"] if options.do_predict else []
        figures = {name: scores[name] for name in ("precision", "recall", "f1")} if scores else None
        possible = [f"do_{part}" for part in ("eval", "predict") if getattr(options, f"{part}_file")]
        tell_summary(options, "run_ner.py", written, figures, [*possible, "do_export"], exported)
