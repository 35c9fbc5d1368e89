"""Masks for examples without masks, drawn while they are read: new masks each time an example is read again.

The masked tokens and their replacements follow the rule of `examples`. Every random number is a function of

    seed, epoch, file, record, purpose, place

and not of a state, so the masks of an example depend neither on the size of a batch, nor on the order of the records,
nor on the number of threads or replicas. The function is splitmix64: a counter, multiplied and mixed. All numbers of a
batch are computed at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_tf2.data import records
from bert_tf2.pretraining.corpus import CONTINUES, kind_of
from bert_tf2.pretraining.examples import KEPT, MASKED, num_to_predict
from bert_tf2.pretraining.options import PretrainingDataOptions, PretrainingOptions

EVALUATION, TRAINING = 0, 1
"""The second seed of a Masker: the masks of an evaluation differ from the masks of a training."""

_ORDER, _HOW, _WORD = range(3)  # the purposes
_STEP = 0x9E3779B97F4A7C15
_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_BITS = 53
_MASKED, _MASKED_OR_KEPT = (int(share * 2**_BITS) for share in (MASKED, MASKED + KEPT))


class Masker:
    """Converts batches of `records.UNMASKED` to `PRETRAINING`, as `transform` of record_order.read_records."""

    def __init__(
        self, vocabulary: Mapping[str, int], options: PretrainingDataOptions | PretrainingOptions, seeds: Sequence[int]
    ):
        """`options`: the share of masked tokens, and the padded lengths; `seeds`: numbers >= 0 that vary the masks."""
        self._mask_id = vocabulary["[MASK]"]
        self._words = np.array([*vocabulary.values()], np.int32)
        self._length, self._most = options.max_seq_length, options.max_predictions_per_seq
        wanted = [num_to_predict(count, options) for count in range(self._length + 1)]
        self._wanted = np.array(wanted, np.int32)
        self._seeds = tuple(seeds)
        self._continues = None  # whether an id continues a word, bool [V]; None if each token is a word
        if getattr(options, "do_whole_word_mask", False):
            self._continues = np.zeros(max(vocabulary.values()) + 1, bool)
            self._continues[[number for token, number in vocabulary.items() if kind_of(token) == CONTINUES]] = True

    def __call__(self, batch: Mapping, origin: Mapping) -> dict:
        """Draws the masks of a batch. Lengths that do not match stop the iteration with a TensorFlow error.

        Args:
          batch: the features of `records.UNMASKED`; RaggedTensors int32 [B, None], and labels int32 [B], if any.
          origin: "epoch", "file", "record"; int64 [B].

        Returns the features of `records.PRETRAINING`: [B, max_seq_length], [B, max_predictions_per_seq], labels [B].
        """
        tokens = tf.cast(batch["input_ids"].row_lengths(), tf.int32)
        segments = tf.cast(batch["segment_lengths"].row_lengths(), tf.int32)
        checks = [  # as in `records`, which names the record
            tf.debugging.assert_equal(tf.reduce_sum(batch["segment_lengths"], axis=1), tokens, "lengths do not match"),
            tf.debugging.assert_less_equal(segments, records.MOST_SEGMENTS, "too many segments"),
        ]
        with tf.control_dependencies(checks):
            first = tf.identity(batch["segment_lengths"].to_tensor()[:, 0])
        keys = self._keys(origin)
        maskable = tokens - 1 - segments  # without [CLS] and the [SEP] of each segment
        whole = batch["input_ids"].to_tensor(shape=[None, self._length])

        def position(number: tf.Tensor) -> tf.Tensor:
            # [CLS] is before the maskable tokens; the first [SEP] is before the maskable tokens of the second segment.
            return number + 1 + tf.cast(number + 2 >= first[:, None], tf.int32)

        wanted = tf.gather(self._wanted, tokens)
        if self._continues is None:
            places, used = self._choose(keys, maskable, wanted)
        else:
            ids = tf.gather(whole, tf.minimum(position(tf.range(self._length)), self._length - 1), batch_dims=1)
            places, used = self._choose_words(keys, ~tf.gather(self._continues, ids), maskable, wanted)
        positions = tf.where(used, position(places), 0)
        labels = tf.where(used, tf.gather(whole, positions, batch_dims=1), 0)
        column = tf.range(self._length)
        is_token = column < tokens[:, None]
        made = {
            "input_ids": self._replace(whole, positions, labels, used, keys),
            "input_mask": tf.cast(is_token, tf.int32),
            "segment_ids": tf.cast(is_token & (column >= first[:, None]), tf.int32),
            "masked_lm_positions": positions,
            "masked_lm_ids": labels,
            "masked_lm_weights": tf.cast(used, tf.float32),
        }
        return made | {name: batch[name] for name in ("next_sentence_labels",) if name in batch}

    def _choose(self, keys, maskable, wanted) -> tuple:
        """Draws `wanted` of the `maskable` tokens of each row; keys uint64 [B], the others int32 [B].

        Returns:
          The numbers of the chosen tokens in ascending order, counted without [CLS] and [SEP], int32
          [B, max_predictions_per_seq], and which of these places are used, bool.
        """
        most, column = min(self._most, self._length), tf.range(self._length)
        drawn = tf.cast(_shift(_draw(keys, _ORDER, column[None]), 1), tf.int64)
        order = tf.math.top_k(tf.where(column < maskable[:, None], drawn, -1), most).indices
        used = tf.range(most) < tf.minimum(wanted, maskable)[:, None]
        return self._sorted(tf.where(used, order, self._length))

    def _choose_words(self, keys, begins, maskable, wanted) -> tuple:
        """Draws whole words, see `_choose`; `begins`: whether a token begins a word, bool [B, max_seq_length]."""
        column = tf.range(self._length)
        word = tf.cumsum(tf.cast(begins | (column == 0), tf.int32), axis=1) - 1  # of each token
        is_there = column < maskable[:, None]
        sizes = {"minlength": self._length, "maxlength": self._length}
        sizes = tf.math.bincount(tf.where(is_there, word, self._length), axis=-1, **sizes)  # of each word
        drawn = tf.cast(_shift(_draw(keys, _ORDER, column[None]), 1), tf.int64)
        order = tf.argsort(drawn, axis=1, direction="DESCENDING")

        def take(before: tuple, size: tf.Tensor) -> tuple:
            fits = size <= before[0]
            return before[0] - tf.where(fits, size, 0), fits

        in_order = tf.transpose(tf.gather(sizes, order, batch_dims=1))
        _, fits = tf.scan(take, in_order, (wanted, wanted < 0))
        taken = tf.gather(tf.transpose(fits), tf.argsort(order, axis=1), batch_dims=1)  # of each word
        chosen = is_there & tf.gather(taken, word, batch_dims=1)
        return self._sorted(tf.where(chosen, column, self._length))

    def _sorted(self, places) -> tuple:
        """The result of `_choose`, of places in any order, of which those that are not used are max_seq_length."""
        places = tf.pad(tf.sort(places, axis=1), [[0, 0], [0, self._most]], constant_values=self._length)
        places = places[:, : self._most]
        return places, places < self._length

    def _replace(self, ids, positions, labels, used, keys):
        """Replaces the chosen tokens: 80 % by [MASK], 10 % by any entry of the vocabulary; 10 % stay."""
        how = tf.cast(_shift(_draw(keys, _HOW, positions), 64 - _BITS), tf.int64)
        word = tf.math.floormod(_draw(keys, _WORD, positions), tf.constant(len(self._words), tf.uint64))
        word = tf.gather(self._words, tf.cast(word, tf.int64))
        new = tf.where(how < _MASKED, self._mask_id, tf.where(how < _MASKED_OR_KEPT, labels, word))
        where = tf.where(used)
        target = tf.stack([where[:, 0], tf.cast(tf.gather_nd(positions, where), tf.int64)], axis=1)
        return tf.tensor_scatter_nd_update(ids, target, tf.gather_nd(new, where))

    def _keys(self, origin: Mapping):
        """A number for each example, uint64 [B]."""
        key = tf.zeros_like(origin["epoch"], tf.uint64)
        seeds = [tf.cast(seed, tf.int64) for seed in self._seeds]
        for number in (*seeds, origin["epoch"], origin["file"], origin["record"]):
            key = _mix((key ^ tf.cast(number, tf.uint64)) + tf.constant(_STEP, tf.uint64))
        return key


def _draw(keys, purpose: int, places):
    """A random number of 64 bits, uint64 [B, N], for each place (int32 [B, N] or [1, N]) of each row."""
    counter = tf.cast(places, tf.uint64) + tf.constant((purpose << 32) + 1, tf.uint64)
    return _mix(keys[:, None] + counter * tf.constant(_STEP, tf.uint64))


def _mix(number):
    for shift, factor in _FACTORS:
        number = (number ^ _shift(number, shift)) * tf.constant(factor, tf.uint64)
    return number ^ _shift(number, _LAST_SHIFT)


def _shift(number, count: int):
    return tf.bitwise.right_shift(number, tf.constant(count, tf.uint64))
