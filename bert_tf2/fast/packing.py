"""Avoids work on padding in tensors of fixed shapes: several examples share a row.

    input_mask   1 1 1 0 0        rows   b b b b b        [R, F]
                 1 1 1 1 1   ->          a a a c c
                 1 1 0 0 0

XLA compiles for fixed shapes, and in `unpadding` the number of tokens differs from batch to batch. Here, rows always
have F positions, and R takes few values (`data.batching.packed`, which also chooses the places). A token attends
only to tokens of its own example, so each example has the same states as in a row of its own, and heads read them at
the places of the example. A batch still has B examples: its losses and gradients are the same within rounding.

After Krell et al., "Efficient Sequence Packing without Cross-contamination" (2021), https://arxiv.org/abs/2107.02027.
T is R * F, the number of places; modeling.py explains the other letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf2 import modeling
from bert_tf2.data.batching import lengths_of
from bert_tf2.fast.unpadding import PaddedLayout, Queries
from bert_tf2.layers import MASKED_SCORE
from bert_tf2.shapes import get_shape_list


class PackedLayout(NamedTuple):
    """The layout for attention from all places; it consists of tensors."""

    scores: tf.Tensor  # float32 [R, 1, F, F], MASKED_SCORE between different examples and at masked tokens

    @property
    def mask_scores(self) -> list[tf.Tensor]:
        return [self.scores]

    def split_heads(self, parts: Sequence[tf.Tensor], heads: int) -> list[list[tf.Tensor]]:
        """Queries, keys and values of kernels.query_key_value, [T, D] or [T, 3 D] -> three of [R, N, F, H]."""
        rows, _, width, _ = get_shape_list(self.scores)
        parts = [tf.reshape(part, [rows, width, part.shape[-1]]) for part in parts]
        return PaddedLayout(self.scores).split_heads(parts, heads)

    def merge_heads(self, contexts: Sequence[tf.Tensor]) -> tf.Tensor:
        """[R, N, F, H], one group -> [T, D]."""
        merged = modeling.merge_heads(*contexts)
        return tf.reshape(merged, [-1, merged.shape[-1]])


class Packed:
    """The places of the tokens of a batch in rows that several examples share.

    Attributes:
      positions: int32 [T], the position of each token in its example; 0 at places without a token.
      layout, layout_of_queries: for attention without and with queries.
    """

    def __init__(self, input_mask: tf.Tensor, tokens: tf.Tensor, firsts: tf.Tensor):
        """Lays out a batch with an input_mask, int [B, F]; the others are the features of batching.packed."""
        self._shape = get_shape_list(input_mask)
        width = self._shape[1]
        self._is_taken = tf.reshape(tokens, [-1]) >= 0  # [T]
        self._tokens = tf.reshape(tf.maximum(tokens, 0), [-1])  # [T], numbers of tokens of the batch, [B * F]
        columns = tf.range(width)
        self._firsts = firsts[:, tf.newaxis]
        self._has_place = columns < lengths_of(input_mask)[:, tf.newaxis]  # [B, F]
        self._places = tf.where(self._has_place, self._firsts + columns, 0)  # [B, F], places in all rows, [T]
        self.positions = self._tokens % width
        example = tf.where(tokens >= 0, tokens // width, -1)  # [R, F]
        is_read = tf.reshape(self.pack(tf.cast(input_mask, tf.int32)), tf.shape(tokens)) > 0
        reads = (tf.expand_dims(example, 2) == tf.expand_dims(example, 1)) & tf.expand_dims(is_read, 1)  # [R, F, F]
        self.layout = PackedLayout(tf.expand_dims(tf.where(reads, 0.0, MASKED_SCORE), 1))
        self.layout_of_queries = _ExamplesLayout(self, modeling.mask_scores(input_mask))

    def pack(self, values: tf.Tensor) -> tf.Tensor:
        """Whole numbers of the positions, [B, F] -> [T]; 0 at places without a token."""
        return tf.where(self._is_taken, tf.gather(tf.reshape(values, [-1]), self._tokens), 0)

    def queries(self, positions: tf.Tensor) -> Queries:
        """Returns queries at positions in the examples, int32 [B, Q]. The state of a place without token is useless."""
        return Queries(tf.minimum(self._firsts + positions, tf.size(self._tokens) - 1))

    def spread(self, states: tf.Tensor) -> tf.Tensor:
        """[T, D] -> [B, F, D], zeros at padding."""

        # Each token has one place, so the gradient is a gather, too; TensorFlow would add up rows of equal indexes.
        @tf.custom_gradient
        def compute(states):
            width = states.shape[-1]

            def gradient(upstream):
                found = tf.gather(tf.reshape(upstream, [-1, width]), self._tokens)
                return tf.where(self._is_taken[:, tf.newaxis], found, tf.zeros([], found.dtype))

            found = tf.gather(states, self._places)
            return tf.where(self._has_place[..., tf.newaxis], found, tf.zeros([], found.dtype)), gradient

        return compute(states)


class _ExamplesLayout:
    """The layout for attention from some positions of each example to the whole example, in a batch with padding.

    The examples of a row have different numbers of tokens, but each example has Q positions that a head reads.
    """

    def __init__(self, batch: Packed, scores: tf.Tensor):
        self._batch = batch
        self.mask_scores = [scores]  # [B, 1, 1, F]

    def split_heads(self, parts: Sequence[tf.Tensor], heads: int) -> list[list[tf.Tensor]]:
        """Keys and values, [T, D] each -> [B, N, F, H] each, one group."""
        return PaddedLayout(*self.mask_scores).split_heads([*map(self._batch.spread, parts)], heads)
