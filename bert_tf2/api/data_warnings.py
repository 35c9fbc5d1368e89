"""The warnings of a user's data: of rows that are right, but from which a model learns nothing, or something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2.support.containers import Text
from bert_tf2.support.errors import and_more
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.weights import text_rules


def of_pairs(texts: Sequence[Text], labels: Sequence[str]) -> None:
    """Warns if the second texts of pairs are labels, for example of a table that was given whole."""
    seconds = sorted({text[1] for text in texts if isinstance(text, tuple)})
    if seconds and {*seconds} <= {*labels}:
        logging.warning("x: every second text of a pair is a label (%s); give the texts alone", and_more(seconds, 6))


def of_empty(texts: Sequence[Text]) -> None:
    """Warns of texts, and of pairs, without a word."""
    if empty := sum(not "".join(text).strip() for text in texts):
        logging.warning("x: %d of %d texts are empty; leave these rows out", empty, len(texts))


def of_answers(y: Any) -> None:
    """Warns if all rows, or all words of sentences, have the same answer."""
    answers = [tag for tags in y for tag in tags] if len(y) and isinstance(y[0], list) else y
    if len(answers) > 1 and np.all(np.asarray(answers) == answers[0]):
        logging.warning("y: all %d answers are equal, so the model learns only to give this answer", len(answers))


def of_unread(element: Any) -> None:
    """Warns of strings after the texts in the batches of a dataset, for a model that reads no labels."""
    if isinstance(element, tuple) and len(element) > 1 and getattr(element[1], "dtype", None) == tf.string:
        logging.warning("x: the strings after the texts of a batch are taken for labels, which are not read here")


def of_single_pair(y: tf.Tensor) -> None:
    """Warns of a batch of one pair; `y`: the numbers of its texts, int [B, C], or scores."""
    if y.shape == (1, 2) and not y.dtype.is_floating:
        logging.warning("x: a batch of one pair has no wrong match, so its loss is 0; give 2 pairs or more")


def of_words(features: Mapping[str, tf.Tensor], tokenizer: FullTokenizer) -> None:
    """Warns if the vocabulary lacks many words of a batch of the model's input."""
    ids = features["input_ids"]
    there = tf.cast(features.get("input_mask", tf.ones_like(ids)), tf.bool)
    text_rules.check_unknown_ids("x, the first batch", tf.boolean_mask(ids, there).numpy(), tokenizer)


def of_division(learned: np.ndarray | None, held_out: np.ndarray | None, labels: Sequence[str]) -> None:
    """Warns if the rows that are held out have labels that no other row has; compares only indexes of labels, [N]."""
    unseen = np.setdiff1d(held_out, learned) if learned is not None and learned.dtype.kind == "i" else ()
    if len(unseen):
        what = (
            "validation_split: holds out the last rows, and all rows of the labels %s are among them; shuffle the rows"
        )
        logging.warning(what, and_more([labels[index] for index in unseen], 6))


def of_losses(history: keras.callbacks.History) -> None:
    """Warns if a loss of a training is not finite, because the weights are not, either."""
    losses = history.history.get("loss", ())
    if wrong := [epoch for epoch, loss in enumerate(losses, 1) if not np.isfinite(loss)]:
        what = "loss: is %s in epoch %d, so the weights are useless; make the model anew, with a lower learning rate"
        logging.warning(what, losses[wrong[0] - 1], wrong[0])
