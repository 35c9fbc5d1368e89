"""Token classification as a whole: what run_ner.py does once its flags are read.

The reference has no such script; the set-up is the paper's (section 5.3): a label for the first piece of each word, and
if wanted as much of the document around a sentence as fits.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf2 import checkpoint, classification, heads, ner, records, training
from bert_tf2.errors import UserError
from bert_tf2.finetuning import FineTuneOptions, FineTuner, write_json

_TASK = "ner"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NerOptions(FineTuneOptions):
    """The settings of one call; each is the flag of the same name of run_ner.py."""

    train_file: str | None = None
    eval_file: str | None = None
    predict_file: str | None = None
    do_train: bool = False
    do_eval: bool = False
    do_predict: bool = False
    eval_batch_size: int = 8
    predict_batch_size: int = 8
    word_column: int = 1
    tag_column: int = -1
    doc_stride: int = 0
    document_context: bool = False


def run(options: NerOptions) -> dict[str, float] | None:
    """Trains, evaluates, predicts; returns the evaluation's scores if there is one.

    Writes into output_dir: checkpoints, `label_map.json`, `eval_results.txt` and `eval_metrics.json`, and
    `predictions.txt` with the columns of predict_file and the predicted tag behind them.

    Raises:
      UserError: nothing to do, or files that are missing, malformed or do not fit together.
    """
    if not (options.do_train or options.do_eval or options.do_predict):
        raise UserError("nothing to do: give at least one of --do_train, --do_eval and --do_predict")
    for part in ("train", "eval", "predict"):
        if getattr(options, f"do_{part}") and not getattr(options, f"{part}_file"):
            raise UserError(f"--do_{part} needs --{part}_file")
    if options.eval_steps and not options.eval_file:
        raise UserError("--eval_steps needs --eval_file, to evaluate on")
    train = _read(options, options.train_file) if options.do_train else []
    labels = ner.labels_of(train) if train else _known_labels(options)
    call = _Call(FineTuner(options), labels, options)
    if options.do_train:
        call.train(train)
    call.tuner.load_weights()
    scores = call.evaluate() if options.do_eval else None
    if options.do_predict:
        call.predict()
    return scores


def _read(options: NerOptions, path: str, has_labels: bool | None = True) -> list[ner.NerSentence]:
    def counted_from_0(column: int) -> int:
        return column - 1 if column > 0 else column

    return ner.read_conll(path, counted_from_0(options.word_column), counted_from_0(options.tag_column), has_labels)


def _known_labels(options: NerOptions) -> list[str]:
    """The labels that the weights in use were trained for."""
    trained_here = checkpoint.latest_checkpoint(options.output_dir)
    folder = options.output_dir if trained_here else os.path.dirname(options.init_checkpoint or "")
    label_map = classification.load_label_map(folder)
    if label_map is None:
        raise UserError(
            f"{folder or options.output_dir}: no {classification.LABEL_MAP_FILE}, so the tags are not known; train first,"
            " or give the --output_dir of the training"
        )
    return list(label_map.labels)


class _Call:
    """One call of run_ner.py."""

    def __init__(self, tuner: FineTuner, labels: Sequence[str], options: NerOptions):
        self.tuner = tuner
        self._labels = labels
        self._options = options
        tuner.make_model(lambda config, dtype: heads.TaggingModel(config, num_labels=len(labels), dtype=dtype))

    def _write(self, sentences: Sequence[ner.NerSentence], name: str) -> tuple[str, list[ner.InputFeatures]]:
        features = ner.convert_sentences_to_features(
            sentences,
            self._labels,
            self._options.max_seq_length,
            self.tuner.tokenizer,
            self._options.doc_stride or None,
            self._options.document_context,
        )
        path = self.tuner.output_file(name)
        records.write_records(path, records.TOKEN_TAGGING, map(ner.as_record, features))
        return path, features

    def train(self, sentences: Sequence[ner.NerSentence]) -> None:
        path, features = self._write(sentences, "train.tf_record")
        label_map = classification.LabelMap(_TASK, tuple(self._labels), regression=False)
        classification.save_label_map(self._options.output_dir, label_map)
        measure = self._measure if self._options.eval_steps else None
        self.tuner.train(path, records.TOKEN_TAGGING, len(features), len(self._labels), measure)

    def _tags(self, sentences: Sequence[ner.NerSentence], name: str, batch_size: int) -> list[list[str]]:
        """The predicted tags of every sentence."""
        path, features = self._write(sentences, name)
        batches = self.tuner.run(path, records.TOKEN_TAGGING, batch_size, len(self._labels))
        predictions = [np.asarray(row) for batch in batches for row in batch["predictions"]]
        return ner.assemble_tags(sentences, features, predictions, self._labels)

    def _scores(self) -> dict:
        sentences = _read(self._options, self._options.eval_file)
        tags = self._tags(sentences, "eval.tf_record", self._options.eval_batch_size)
        return ner.score([sentence.tags for sentence in sentences], tags)

    def _measure(self) -> tuple[str, float]:
        return "f1", self._scores()["f1"]

    def evaluate(self) -> dict[str, float]:
        logging.info("***** Running evaluation *****")
        scores = self._scores()
        results = {name: scores[name] for name in ("precision", "recall", "f1", "accuracy")}
        training.write_eval_results(self._options.output_dir, {**results, "global_step": self.tuner.global_step})
        write_json(self.tuner.output_file("eval_metrics.json"), scores)
        for line in ner.score_table(scores).splitlines():
            logging.info("  %s", line)
        return scores

    def predict(self) -> None:
        path = self._options.predict_file
        sentences = _read(self._options, path, has_labels=False)
        logging.info("***** Running prediction *****")
        logging.info("  Num sentences = %d", len(sentences))
        tags = self._tags(sentences, "predict.tf_record", self._options.predict_batch_size)
        ner.write_predictions(path, self.tuner.output_file("predictions.txt"), sentences, tags)
