"""The encoder for serving: the computation of `modeling.BertModel`, optimized for speed and without training.

The differences from the model, none of which changes an output by more than rounding:

    padding            is not computed: the real tokens of a batch are rows of one matrix [T, D], and only attention,
                       which depends on the rows of text, sees them as such
    attention          processes the rows of a batch in a few groups of similar length, each cut to its longest row
    query, key, value  are one product with a kernel [D, 3 D]
    1 / sqrt(H)        is part of the query's kernel
    layouts            change by gathering pieces of H numbers, which sorts, pads and splits the heads in one pass

T is the number of computed tokens in the batch; the other letters are those of modeling.py. Omitting padding from the
matrix products is the idea of "Effective Transformer" (ByteDance, 2019).

The formulas allow TensorFlow's graph optimizer to fuse a product with its bias, its activation and the following
addition into one oneDNN operation on CPUs. Otherwise they are computed as written.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf2 import modeling

# More groups omit more padding, but are more operations. On 32 rows of 16 to 128 tokens four groups take a tenth less
# time than one, and on a single row a few percent more.
_GROUPS = 4


def _activation(hidden_act: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns modeling.get_activation, with the only form of approximate gelu that the graph optimizer recognizes."""
    if hidden_act.lower() == "gelu":
        return functools.partial(tf.nn.gelu, approximate=True)
    return modeling.get_activation(hidden_act)


def constant(value: np.ndarray | tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Variable:
    """A variable that is not trained."""
    # A variable, since every signature in the file, and in memory, would have its own copy of a constant.
    return tf.Variable(tf.cast(value, dtype), trainable=False)


class _Affine(tf.Module):
    """y = x @ kernel + bias, from layers whose outputs are concatenated."""

    def __init__(self, layers: Sequence[modeling.Dense], dtype: tf.DType, scales: Sequence[float] = (1.0,)):
        super().__init__()
        pairs = list(zip(layers, scales, strict=True))
        self.kernel = constant(np.concatenate([layer.kernel.numpy() * by for layer, by in pairs], axis=1), dtype)
        self.bias = constant(np.concatenate([layer.bias.numpy() * by for layer, by in pairs]), dtype)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(tf.matmul(x, self.kernel), self.bias)


class _Norm(tf.Module):
    """LayerNorm with statistics in float32."""

    def __init__(self, layer: modeling.LayerNorm):
        super().__init__()
        self.gamma, self.beta = constant(layer.gamma.value), constant(layer.beta.value)
        self._epsilon = layer.epsilon

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        # Not tf.nn.batch_normalization or another order of the factors: TensorFlow 2.21 would replace some of them with
        # its own fused operation, which is slower on few rows and always uses an epsilon of 0.001.
        wide = tf.cast(x, tf.float32)
        centred = wide - tf.reduce_mean(wide, axis=-1, keepdims=True)
        scale = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True) + self._epsilon)
        return tf.cast(centred * scale * self.gamma + self.beta, x.dtype)


class _Group(NamedTuple):
    """Some rows of the batch for attention: [B', F'], real tokens first.

    Attributes:
      pieces: int32 [3, B', N, F'], the indexes of queries, keys and values among the pieces of H numbers of [T, 3 D].
      mask_scores: float32 [B', 1, 1, F'], added to the attention scores of each position.
    """

    pieces: tf.Tensor
    mask_scores: tf.Tensor


class _Packing:
    """The positions of the tokens of a batch.

    The first position of a row is computed even if it is masked, because `pooled_output` requires it.
    """

    def __init__(self, input_mask: tf.Tensor, heads: int):
        """int32 [B, F]."""
        mask = input_mask > 0
        self.shape = tf.shape(mask)
        computed = mask | (tf.range(self.shape[1]) == 0)
        self.places = tf.cast(tf.where(computed), tf.int32)  # [T, 2]: row, position
        self.positions = self.places[:, 1]
        self.heard = tf.gather_nd(mask, self.places)  # [T]
        self._lengths = tf.reduce_sum(tf.cast(computed, tf.int32), axis=1)  # [B]
        self.firsts = tf.cumsum(self._lengths, exclusive=True)  # [B], index of each row's first token in T
        self._heads = heads
        self._group()

    def _group(self) -> None:
        heads = tf.range(self._heads)
        batch = self.shape[0]
        order = tf.argsort(self._lengths)
        size = (batch + _GROUPS - 1) // _GROUPS
        self.groups, begins, widths, end = [], [], [], 0
        for number in range(_GROUPS):
            rows = order[number * size : (number + 1) * size]
            width = tf.maximum(tf.reduce_max(tf.gather(self._lengths, rows)), 1)
            self.groups.append(self._make_group(rows, width))
            count = tf.size(rows)
            begins.append(end + tf.range(count) * self._heads * width)
            widths.append(tf.fill([count], width))
            end += count * self._heads * width
        # The groups' contexts, concatenated, are pieces [B', N, F'] of H numbers each. Their indexes:
        places = tf.argsort(order)  # [B], index of each row in sorted order
        begin, width = tf.gather(tf.concat(begins, 0), places), tf.gather(tf.concat(widths, 0), places)
        row, slot = self.places[:, 0], tf.range(tf.size(self.heard)) - tf.gather(self.firsts, self.places[:, 0])
        self.contexts = (tf.gather(begin, row) + slot)[:, tf.newaxis] + tf.gather(width, row)[:, tf.newaxis] * heads
        self.first_contexts = places[:, tf.newaxis] * self._heads + heads  # [B, N], for F' = 1

    def _make_group(self, rows: tf.Tensor, width: tf.Tensor) -> _Group:
        """Takes int32 [B'] and the number of positions F'."""
        slots = tf.range(width)
        # Positions after a row's last token read an arbitrary token, which is masked.
        tokens = tf.minimum(tf.gather(self.firsts, rows)[:, tf.newaxis] + slots, tf.size(self.heard) - 1)  # [B', F']
        heard = (slots < tf.gather(self._lengths, rows)[:, tf.newaxis]) & tf.gather(self.heard, tokens)
        parts = tf.reshape(tf.range(3 * self._heads), [3, 1, self._heads, 1])
        pieces = tokens[tf.newaxis, :, tf.newaxis, :] * (3 * self._heads) + parts
        scores = tf.where(heard, 0.0, modeling.MASKED_SCORE)
        return _Group(pieces, scores[:, tf.newaxis, tf.newaxis, :])

    def pack(self, values: tf.Tensor) -> tf.Tensor:
        """[B, F] -> [T]."""
        return tf.gather_nd(values, self.places)

    def spread(self, rows: tf.Tensor) -> tf.Tensor:
        """float32 [T, D] -> [B, F, D], zeros at padding."""
        real = rows * tf.cast(self.heard, tf.float32)[:, tf.newaxis]
        return tf.scatter_nd(self.places, real, [self.shape[0], self.shape[1], rows.shape[1]])


class _Block(tf.Module):
    """One Transformer block."""

    def __init__(self, block: modeling.TransformerBlock, dtype: tf.DType):
        super().__init__()
        attention, config = block.attention, block.config
        scale = 1.0 / math.sqrt(config.attention_head_size)
        layers = (attention.query, attention.key, attention.value)
        self.query_key_value = _Affine(layers, dtype, (scale, 1.0, 1.0))
        self.attention_output = _Affine([block.attention_output], dtype)
        self.attention_norm = _Norm(block.attention_norm)
        self.intermediate = _Affine([block.intermediate], dtype)
        self.output_dense = _Affine([block.output_dense], dtype)
        self.output_norm = _Norm(block.output_norm)
        self._activation = _activation(config.hidden_act)
        self._width, self._head_size = config.hidden_size, config.attention_head_size

    def __call__(self, states: tf.Tensor, packing: _Packing, first_only: bool = False) -> tf.Tensor:
        """[T, D] -> [T, D]; or, with first_only, only the first token of each row: [B, D]."""
        context = self._attend(self.query_key_value(states), packing, first_only)
        if first_only:
            states = tf.gather(states, packing.firsts)
        states = self.attention_norm(self.attention_output(context) + states)
        expanded = self._activation(self.intermediate(states))  # [T, I]
        return self.output_norm(self.output_dense(expanded) + states)

    def _attend(self, rows: tf.Tensor, packing: _Packing, first_only: bool) -> tf.Tensor:
        """[T, 3 D] -> [T, D] or [B, D]."""
        pieces = tf.reshape(rows, [-1, self._head_size])
        contexts = []
        for group in packing.groups:
            query, key, value = tf.unstack(tf.gather(pieces, group.pieces))  # each [B', N, F', H]
            if first_only:
                query = query[:, :, :1]
            scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32) + group.mask_scores
            context = tf.matmul(tf.cast(tf.nn.softmax(scores), value.dtype), value)  # [B', N, F', H]
            contexts.append(tf.reshape(context, [-1, self._head_size]))
        places = packing.first_contexts if first_only else packing.contexts  # [T, N]
        return tf.reshape(tf.gather(tf.concat(contexts, 0), places), [-1, self._width])


class Encoder(tf.Module):
    """The encoder of a model, with its own copy of the weights in the precision of the computation.

    Attributes:
      word_embeddings: the table [V, D] in that precision, a variable.
    """

    def __init__(self, model: modeling.BertModel, precision: str = "float32"):
        """`precision`: "float32" or "bfloat16"; LayerNorm and softmax are always float32."""
        super().__init__(name="encoder")
        dtype = tf.as_dtype(precision)
        embeddings = model.embeddings
        self.word_embeddings = constant(embeddings.word_embeddings.value, dtype)
        self.token_type_embeddings = constant(embeddings.token_type_embeddings.value)
        positions = embeddings.position_table()
        self.position_embeddings = None if positions is None else constant(positions)
        self.norm = _Norm(embeddings.layer_norm)
        self.blocks = [_Block(block, dtype) for block in model.blocks]
        self.pooler = _Affine([model.pooler], dtype)
        self._dtype, self._heads = dtype, model.config.num_attention_heads

    def __call__(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs the encoder on int32 [B, F] each; every id must be within its table, and every row must have a token.

        Returns:
          sequence_output: float32 [B, F, D], zeros where input_mask is 0.
          pooled_output: float32 [B, D].
        """
        packing = _Packing(input_mask, self._heads)
        states = self._embed(input_ids, segment_ids, packing)
        for block in self.blocks:
            states = block(states, packing)
        return packing.spread(tf.cast(states, tf.float32)), self._pool(tf.gather(states, packing.firsts))

    def pooled_output(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> tf.Tensor:
        """Returns only the second output of a call, at lower cost: the last block computes the first tokens only."""
        packing = _Packing(input_mask, self._heads)
        states = self._embed(input_ids, segment_ids, packing)
        for block in self.blocks[:-1]:
            states = block(states, packing)
        return self._pool(self.blocks[-1](states, packing, first_only=True))

    def _embed(self, input_ids: tf.Tensor, segment_ids: tf.Tensor, packing: _Packing) -> tf.Tensor:
        """-> [T, D]."""
        words = tf.cast(tf.gather(self.word_embeddings, packing.pack(input_ids)), tf.float32)
        summed = words + tf.gather(self.token_type_embeddings, packing.pack(segment_ids))
        if self.position_embeddings is not None:
            summed += tf.gather(self.position_embeddings, packing.positions)
        return tf.cast(self.norm(summed), self._dtype)

    def _pool(self, states: tf.Tensor) -> tf.Tensor:
        """[B, D] -> float32 [B, D]."""
        return tf.tanh(tf.cast(self.pooler(states), tf.float32))
