"""Avoids work on padding: the tokens of a batch are put end to end.

    input_mask   1 1 1 0 0        tokens   a a a b b b b b c c .        [T, D]
                 1 1 1 1 1   ->
                 1 1 0 0 0        attention sees the rows of text again:
                                                c c   a a a   b b b b b

Everything in BERT except attention works on single tokens, so the padding of short rows can be left out there without
changing the result. Attention depends on the rows of text. It is computed in a few groups of rows of similar length;
each group is as wide as its longest row.

T is the number of computed tokens of a batch, which differs from batch to batch; modeling.py explains the other
letters. Leaving padding out of the products is the idea of "Effective Transformer" (ByteDance, 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf2 import modeling
from bert_tf2.data.batching import lengths_of
from bert_tf2.layers import MASKED_SCORE
from bert_tf2.shapes import get_shape_list

# More groups omit more padding, but need more and smaller operations.
_GROUPS = 4

# In training, T, the widths of the groups and the number of predictions are multiples of these steps, so that XLA
# compiles its loops for few different sizes (see `compiled`). Filler tokens behind the real tokens make up the number;
# no output depends on them.
TOKENS_STEP = 64
WIDTH_STEP = 32
PREDICTIONS_STEP = 32


class _Group(NamedTuple):
    """Some rows for attention, [R, W] positions each."""

    # int32 [R, N, W], for each position and head the index of the token's piece of H numbers in [T * N, H]
    pieces: tf.Tensor
    folded: tf.Tensor  # int32 [3, R, N, W], the indexes of its query, key and value in [T * 3 N, H]
    mask_scores: tf.Tensor  # float32 [R, 1, 1, W], added to the attention scores


class PaddedLayout(NamedTuple):
    """The layout of a batch with its padding."""

    scores: tf.Tensor  # [B, 1, 1, T]

    @property
    def mask_scores(self) -> list[tf.Tensor]:
        return [self.scores]

    def split_heads(self, parts: Sequence[tf.Tensor], heads: int) -> list[list[tf.Tensor]]:
        """Queries, keys and values of kernels.query_key_value -> three of [B, N, F, H], one group."""
        if len(parts) > 1:
            return [[modeling.split_heads(part, heads) for part in parts]]
        (folded,) = parts
        batch, length, width = get_shape_list(folded)
        parts = tf.reshape(folded, [batch, length, 3, heads, width // (3 * heads)])
        return [tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))]

    def merge_heads(self, contexts: Sequence[tf.Tensor]) -> tf.Tensor:
        """[B, N, F, H], one group -> [B, F, D]."""
        return modeling.merge_heads(*contexts)


class Padded:
    """A batch with its padding, with the interface of `Unpadded`."""

    positions = None

    def __init__(self, input_mask: tf.Tensor):
        """`input_mask`: int32 [B, F]."""
        self.layout = self.layout_of_queries = PaddedLayout(modeling.mask_scores(input_mask))

    def pack(self, values: tf.Tensor) -> tf.Tensor:
        return values

    def queries(self, positions: tf.Tensor) -> Queries:
        """Returns queries at positions in the rows, int32 [B, Q]."""
        return Queries(positions)

    def spread(self, states: tf.Tensor) -> tf.Tensor:
        return states


class Queries(NamedTuple):
    """The tokens a head reads. The last block computes only keys and values for all other tokens."""

    # int32 [B, Q]: their positions in each row [F], or, without padding, their places among all tokens [T]
    tokens: tf.Tensor
    # for each group of an UnpaddedLayout, the numbers of its rows in the batch, int32 [R]; empty for a PaddedLayout
    rows: Sequence[tf.Tensor] = ()
    # int32 [B], the place of each row among the rows of all groups; None for a PaddedLayout
    ranks: tf.Tensor | None = None

    def pick(self, states: tf.Tensor) -> tf.Tensor:
        """[B, F, D] or [T, D] -> [B, Q, D]."""
        return tf.gather(states, self.tokens, batch_dims=states.shape.rank - 2)

    def split_heads(self, query: tf.Tensor, heads: int) -> list[tf.Tensor]:
        """[B, Q, D] -> [R, N, Q, H] for each group."""
        return [modeling.split_heads(part, heads) for part in [tf.gather(query, rows) for rows in self.rows] or [query]]

    def merge_heads(self, contexts: Sequence[tf.Tensor]) -> tf.Tensor:
        """[R, N, Q, H] for each group -> [B, Q, D]."""
        joined = tf.concat([modeling.merge_heads(context) for context in contexts], 0)
        return joined if self.ranks is None else tf.gather(joined, self.ranks)


class UnpaddedLayout(NamedTuple):
    """The places of a batch's tokens in the groups for attention; it consists of tensors."""

    groups: Sequence[_Group]  # the rows of a group are computed together
    # int32 [T, N], for each token and head the index of its piece in the contexts of all groups, which are one after
    # the other, with a piece of zeros behind them
    contexts: tf.Tensor

    @property
    def mask_scores(self) -> list[tf.Tensor]:
        """The mask scores of each group; see SelfAttention."""
        return [group.mask_scores for group in self.groups]

    def split_heads(self, parts: Sequence[tf.Tensor], heads: int) -> list[list[tf.Tensor]]:
        """Queries, keys and values of kernels.query_key_value -> three of [R, N, W, H] for each group."""
        if len(parts) > 1:
            places = [group.pieces[tf.newaxis] for group in self.groups]
            return [*map(list, zip(*(_split(part, 1, heads, places, self.contexts) for part in parts), strict=True))]
        found = _split(*parts, 3, heads, [group.folded for group in self.groups], self.contexts)
        return [found[first : first + 3] for first in range(0, len(found), 3)]

    def merge_heads(self, contexts: Sequence[tf.Tensor]) -> tf.Tensor:
        """[R, N, W, H] for each group -> [T, D], zeros for filler tokens."""
        return _merge(contexts, [group.pieces for group in self.groups], self.contexts)


class Unpadded:
    """The places of a batch's tokens: end to end for most of the model, in groups of rows for attention.

    A row is computed as far as `batching.lengths_of` states, or up to a position in `reads` behind. If there is any
    padding, token T - 1 is a filler.

    Attributes:
      positions: int32 [T], the position of each token in its row.
      firsts: int32 [B], the index of the first token of each row.
      layout, layout_of_queries: for attention without and with queries.
    """

    def __init__(self, input_mask: tf.Tensor, heads: int, rounds: bool = True, reads: tf.Tensor | None = None):
        """Lays out a batch; input_mask: int [B, F], reads: int [B, P], `rounds`: whether sizes are rounded up."""
        mask = tf.cast(input_mask, tf.int32) > 0
        self._shape = tf.shape(mask)
        self._width = self._shape[1]
        self._heads = heads
        columns = tf.range(self._width)
        self._lengths = lengths_of(input_mask)  # [B]
        if reads is not None:
            self._lengths = tf.maximum(self._lengths, tf.reduce_max(tf.cast(reads, tf.int32), axis=1) + 1)
        self._places = tf.cast(tf.where(columns < self._lengths[:, tf.newaxis]), tf.int32)  # [tokens, 2]: row, position
        self._count = tf.shape(self._places)[0]
        # If there is padding, one more token takes the places of padding in the groups.
        needed = self._count + tf.cast(tf.reduce_any(self._lengths < self._width), tf.int32)
        tokens_step, self._width_step = (TOKENS_STEP, WIDTH_STEP) if rounds else (1, 1)
        self._filled = _round_up(needed, tokens_step)  # T
        self.firsts = tf.cumsum(self._lengths, exclusive=True)
        self.positions = self.pack(tf.broadcast_to(columns, self._shape))
        self._mask = self.pack(tf.cast(mask, tf.int32)) > 0  # TensorFlow's gather_nd takes no bool on a GPU
        groups, begins, strides = self._by_length()
        end = tf.add_n([tf.size(group.pieces) for group in groups])
        row, position = self._places[:, 0], self._places[:, 1]
        first = (tf.gather(begins, row) + position)[:, tf.newaxis]
        pieces = first + tf.gather(strides, row)[:, tf.newaxis] * tf.range(heads)  # [tokens, N]
        contexts = tf.concat([pieces, tf.fill([self._filled - self._count, heads], end)], 0)
        self.layout = self.layout_of_queries = UnpaddedLayout(groups, contexts)

    def _by_length(self) -> tuple[list[_Group], tf.Tensor, tf.Tensor]:
        """Divides the rows into groups of similar length.

        Returns the groups; for each row its first place in the contexts; for each row the step from a head to the next.
        """
        order = tf.argsort(self._lengths, stable=True)
        rows = self._shape[0]
        groups, begins, strides, end = [], [], [], tf.constant(0)
        head = tf.range(self._heads)[:, tf.newaxis]
        part = tf.reshape(tf.range(3) * self._heads, [3, 1, 1, 1])
        self._rows = []
        for number in range(_GROUPS):
            chosen = order[rows * number // _GROUPS : rows * (number + 1) // _GROUPS]
            lengths = tf.gather(self._lengths, chosen)
            longest = tf.maximum(tf.reduce_max(lengths), 1)  # the maximum of no rows is negative
            width = tf.minimum(_round_up(longest, self._width_step), self._width)
            slots = tf.range(width)
            tokens = tf.gather(self.firsts, chosen)[:, tf.newaxis] + slots  # [R, W]
            tokens = tf.where(slots < lengths[:, tf.newaxis], tokens, self._filled - 1)
            # No [:, tf.newaxis] below: LiteRT has no slices with new axes behind the first.
            scores = tf.where(tf.gather(self._mask, tokens), 0.0, MASKED_SCORE)
            token = tf.expand_dims(tokens, 1)
            folded = token * (3 * self._heads) + head + part
            groups.append(_Group(token * self._heads + head, folded, tf.expand_dims(tf.expand_dims(scores, 1), 1)))
            self._rows.append(chosen)
            begins.append(end + tf.range(tf.size(chosen)) * self._heads * width)
            strides.append(tf.fill([tf.size(chosen)], width))
            end += tf.size(chosen) * self._heads * width
        self._ranks = tf.argsort(order)
        return groups, tf.gather(tf.concat(begins, 0), self._ranks), tf.gather(tf.concat(strides, 0), self._ranks)

    def pack(self, values: tf.Tensor) -> tf.Tensor:
        """Numbers of the positions, [B, F] -> [T]; 0 for filler tokens."""
        found = tf.gather_nd(values, self._places)
        return tf.concat([found, tf.zeros([self._filled - self._count], values.dtype)], 0)

    def queries(self, positions: tf.Tensor) -> Queries:
        """Returns queries at positions in the rows, int32 [B, Q]. A position of padding becomes the filler."""
        tokens = self.firsts[:, tf.newaxis] + positions
        tokens = tf.where(positions < self._lengths[:, tf.newaxis], tokens, self._filled - 1)
        return Queries(tokens, self._rows, self._ranks)

    def spread(self, states: tf.Tensor) -> tf.Tensor:
        """[T, D] -> [B, F, D], zeros at padding."""
        shape = tf.concat([self._shape, [states.shape[1]]], 0)
        return tf.scatter_nd(self._places, states[: self._count], shape)


def _round_up(number: tf.Tensor, step: int) -> tf.Tensor:
    return -(-number // step) * step


# Each token has one place in the groups, so splitting and merging are each other's gradients, and both are gathers;
# TensorFlow would differentiate a gather by a slow sum over equal indexes. The free places of a group hold the pieces
# of the filler T - 1. No output depends on the filler, so all its gradients are 0 and add nothing.


def _gather_heads(contexts: Sequence[tf.Tensor], places: tf.Tensor) -> tf.Tensor:
    """UnpaddedLayout.merge_heads without a gradient; `places` are UnpaddedLayout.contexts."""
    size = contexts[0].shape[-1]
    pieces = [tf.reshape(context, [-1, size]) for context in contexts]
    joined = tf.concat([*pieces, tf.zeros([1, size], pieces[0].dtype)], 0)
    return tf.reshape(tf.gather(joined, places), [-1, places.shape[1] * size])


def _split(
    states: tf.Tensor, count: int, heads: int, groups: Sequence[tf.Tensor], places: tf.Tensor
) -> list[tf.Tensor]:
    """[T, count D] -> `count` parts [R, N, W, H] of the first group, then of the next; `groups`: [count, R, N, W]."""

    @tf.custom_gradient
    def compute(states):
        pieces = tf.reshape(states, [-1, states.shape[1] // (count * heads)])
        gathered = [tf.gather(pieces, group) for group in groups]
        found = [parts[i] for parts in gathered for i in range(count)]  # LiteRT unstacks no empty groups

        def gradient(*upstream):
            parts = [_gather_heads(upstream[part::count], places) for part in range(count)]
            return tf.concat(parts, 1) if count > 1 else parts[0]

        return found, gradient

    return compute(states)


def _merge(contexts: Sequence[tf.Tensor], groups: Sequence[tf.Tensor], places: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def compute(*contexts):
        def gradient(upstream):
            pieces = tf.reshape(upstream, [-1, contexts[0].shape[-1]])
            return [tf.gather(pieces, group) for group in groups]

        return _gather_heads(contexts, places), gradient

    return compute(*contexts)
