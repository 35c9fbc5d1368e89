"""`bert_tf2.answerer`: a Keras model whose `fit`, `evaluate` and `predict` take questions with paragraphs.

reader = bert_tf2.answerer("uncased_L-12_H-768_A-12")
reader.fit((questions, paragraphs), answers, epochs=2)
reader.predict([("Where does Ann live?", "Ann lives in Rome.")])       # [SpanAnswer("Rome", 0.98)]
"""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf2 import heads
from bert_tf2.commands.text_models import TextModel
from bert_tf2.commands.text_parts import RANDOM_SEED, Parts, span_settings
from bert_tf2.exporting.tokenize_layer import Tokenize, columns
from bert_tf2.finetuning import squad
from bert_tf2.finetuning.answering import SQUAD, Answerer, SpanAnswer
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import check_type
from bert_tf2.weights import task_file


@keras.saving.register_keras_serializable(package="bert_tf2")
class SpanTextModel(TextModel):
    """A model that finds answers in paragraphs, made by `bert_tf2.answerer`.

    `x` has pairs (question, paragraph), or is a tuple of both columns. `y` has for each question its answer, which is
    where the paragraph has these words first; or (answer, start) as in SQuAD; "" if the paragraph does not say it.
    `fit` has a row for each window of a paragraph.
    """

    def __init__(self, model: heads.SpanModel, tokenize: Tokenize, settings: dict[str, Any], **kwargs):
        super().__init__(model, tokenize, None, **kwargs)
        self.settings = settings

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "settings": dict(self.settings)}

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """The rows of `dataset` -> logits of the first and the last token of the answer, float32 [B, 2, F]."""
        return tf.stack(self.model(inputs, training=training), axis=1)

    def compile(self, optimizer: Any = None, loss: Any = None, metrics: Any = None, **kwargs) -> None:
        """See TextModel.compile; the loss is the mean of the two cross-entropies."""
        loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = ["accuracy"] if metrics is None else metrics
        super().compile(*([] if optimizer is None else [optimizer]), loss=loss, metrics=metrics, **kwargs)

    def dataset(
        self, x: Any, y: Any = None, sample_weight: Any = None, batch_size: int = 32, shuffle: bool = False
    ) -> tf.data.Dataset:
        """The batches that `fit` and `evaluate` make; raises UserError as they do."""
        check_type("batch_size", batch_size, int, low=1)
        if isinstance(x, tf.data.Dataset) or y is None or sample_weight is not None:
            raise UserError("x and y: lists of pairs and of answers are needed, and weights of rows are not possible")
        rows = self._windows(x, y)
        ids = tf.RaggedTensor.from_row_lengths(
            np.concatenate([row.input_ids[: len(row.tokens)] for row in rows]), [len(row.tokens) for row in rows]
        )
        places = np.array([(row.start_position, row.end_position) for row in rows], np.int32)
        data = tf.data.Dataset.from_tensor_slices((ids, [row.doc_start for row in rows], places))
        data = (data.shuffle(len(rows)) if shuffle else data).batch(batch_size)
        width = self.tokenize.max_seq_length if self.tokenize.pad_to_max_length else None

        def padded(ids: tf.RaggedTensor, doc_start: tf.Tensor, places: tf.Tensor) -> tuple:
            mask = tf.ones_like(ids).to_tensor(shape=[None, width])  # [B, F]
            segments = mask * tf.cast(tf.range(tf.shape(mask)[1]) >= doc_start[:, None], mask.dtype)
            features = {"input_ids": ids.to_tensor(shape=[None, width]), "input_mask": mask, "segment_ids": segments}
            return {name: tf.cast(values, tf.int32) for name, values in features.items()}, places

        return data.map(padded, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def _windows(self, x: Any, y: Any) -> list[squad.InputFeatures]:
        questions, paragraphs = ([text.decode() for text in column.numpy()] for column in columns(x))
        answers = self._targets(y)
        if len(answers) != len(questions):
            raise UserError(f"y: {len(answers)} rows for {len(questions)} questions; each needs one")
        found = []
        for number, (question, context, (text, start)) in enumerate(zip(questions, paragraphs, answers, strict=True)):
            start = context.find(text) if start is None else start
            if text and start < 0:
                raise UserError(f"y: the paragraph of question {number + 1} does not have the words {text!r:.60}")
            if not text and not self.settings["version_2_with_negative"]:
                raise UserError(f'y: question {number + 1} has the answer ""; answerer(..., may_be_missing=True) may')
            answer = {"is_impossible": not text, "answers": [{"text": text, "answer_start": start}]}
            found.append({"context": context, "qas": [{"id": number, "question": question, **answer}]})
        version_2 = self.settings["version_2_with_negative"]
        examples = squad.examples_of({"data": [{"paragraphs": found}]}, "the questions", True, version_2)
        sizes = (self.settings[name] for name in ("max_seq_length", "doc_stride", "max_query_length"))
        return list(squad.convert_examples_to_features(examples, self.tokenize.tokenizer, *sizes, True))

    def _targets(self, y: Any) -> list[tuple[str, int | None]]:
        """(answer, its first character) for each question."""
        rows = [(row, None) if isinstance(row, str) else row for row in y]
        return [(str(text), None if start is None else int(start)) for text, start in rows]

    def _count_cut(self, x: Any) -> int:
        return 0

    def predict(self, x: Any, batch_size: int | None = None, *_, **__) -> list[SpanAnswer]:
        """The answer to each question, with its probability; "" if there is none."""
        answerer = Answerer(self.model, self.tokenize.tokenizer, None, self.name)
        how = (self.settings, self.settings["version_2_with_negative"], self.model.config.max_position_embeddings)
        pairs = zip(*([text.decode() for text in column.numpy()] for column in columns(x)), strict=True)
        return [answerer.answer(*pair, *how, batch_size or 8) for pair in pairs]

    def _kept(self) -> tuple[dict[str, Any], dict[str, Any]]:
        kept = dict(self.settings)
        return {"task": "squad", "version_2_with_negative": kept.pop("version_2_with_negative")}, kept


def answerer(
    weights: str | os.PathLike[str],
    *,
    may_be_missing: bool | None = None,
    max_seq_length: int | None = None,
    bert_config_file: str | os.PathLike[str] | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    do_lower_case: bool | None = None,
    random_seed: int = RANDOM_SEED,
    **settings: Any,
) -> SpanTextModel:
    """Finds the answers to questions in paragraphs: a Keras model, compiled with the reference's recipe.

    Args:
      weights, max_seq_length, bert_config_file, vocab_file, do_lower_case, random_seed: see `classifier`.
      may_be_missing: whether a paragraph may not have the answer, as in SQuAD 2.0; by default as in the training of the
        weights, else False.
      **settings: run_squad.py's `doc_stride`, `max_query_length`, `n_best_size`, `max_answer_length`,
        `null_score_diff_threshold`; by default those of the training of the weights, else those of the script.

    Raises:
      UserError: as `classifier`, or a setting is unknown or wrong.
    """
    found = Parts(weights, bert_config_file, vocab_file, do_lower_case, max_seq_length, SQUAD["max_seq_length"])
    found.config.check_pairs("a question and its paragraph")
    folder, length = found.source.folder, found.tokenize.max_seq_length
    check_type("may_be_missing", may_be_missing, bool, optional=True)
    kept = task_file.settings(folder, {name: type(usual) for name, usual in SQUAD.items()})
    usual = {"max_query_length": length // 2, "doc_stride": length // 4} if length < SQUAD["max_seq_length"] else {}
    usual = {name: min(SQUAD[name], most) for name, most in usual.items()}
    stated = span_settings("answerer", kept, settings, **usual) | {"max_seq_length": length}
    squad.check_lengths(length, stated["max_query_length"], stated["doc_stride"])
    if may_be_missing is None:
        may_be_missing = bool(task_file.read(folder).get("version_2_with_negative"))
    model = found.model(heads.SpanModel, seed=random_seed)
    return SpanTextModel(model, found.tokenize, {**stated, "version_2_with_negative": may_be_missing})
