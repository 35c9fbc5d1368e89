"""The encoder as a server runs it: the mathematics of `modeling.BertModel`, arranged for speed and without training.

What differs from the model, none of which changes an answer by more than rounding:

    padding            is not computed: the real tokens of a batch are rows of one matrix [T, D], and only attention,
                       which must know what belongs together, sees them as rows of text
    attention          takes the rows of a batch in a few groups of like length, each cut to its longest row
    query, key, value  are one product with a kernel [D, 3 D]
    1 / sqrt(H)        is in the query's kernel already
    layouts            change by looking up pieces of H numbers, which sorts, pads and splits the heads in one pass

T is the number of tokens in the batch that are computed; the other letters are those of modeling.py. Leaving the
padding out of the matrix products is the idea of "Effective Transformer" (ByteDance, 2019).

The formulas are written so that TensorFlow's graph optimiser joins a product with its bias, its activation and the
addition that follows into one oneDNN operation on CPUs. Where it does not, they are what they say.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf2 import modeling

# More groups leave out more padding, but are more operations. On 32 rows of 16 to 128 tokens four take a tenth less
# time than one, and on a single row some hundredths more.
_GROUPS = 4


def _activation(hidden_act: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """modeling.get_activation, with the one form of gelu's approximation that the graph optimiser recognises."""
    if hidden_act.lower() == "gelu":
        return functools.partial(tf.nn.gelu, approximate=True)
    return modeling.get_activation(hidden_act)


def _constant(value: np.ndarray | tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Variable:
    # A variable after all: a constant would be in the file once more for every signature, and in memory too.
    return tf.Variable(tf.cast(value, dtype), trainable=False)


class _Affine(tf.Module):
    """y = x @ kernel + bias, from layers whose outputs are to stand side by side."""

    def __init__(self, layers: Sequence[modeling.Dense], dtype: tf.DType, scales: Sequence[float] = (1.0,)):
        super().__init__()
        pairs = list(zip(layers, scales, strict=True))
        self.kernel = _constant(np.concatenate([layer.kernel.numpy() * by for layer, by in pairs], axis=1), dtype)
        self.bias = _constant(np.concatenate([layer.bias.numpy() * by for layer, by in pairs]), dtype)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(tf.matmul(x, self.kernel), self.bias)


class _Norm(tf.Module):
    """LayerNorm; statistics in float32."""

    def __init__(self, layer: modeling.LayerNorm):
        super().__init__()
        self.gamma, self.beta = _constant(layer.gamma.value), _constant(layer.beta.value)
        self._epsilon = layer.epsilon

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        # Not tf.nn.batch_normalization, and no other order of the factors: TensorFlow 2.21 would put its own fused
        # operation in place of some of them, slower on few rows, and with an epsilon of 0.001 whatever is asked for.
        wide = tf.cast(x, tf.float32)
        centred = wide - tf.reduce_mean(wide, axis=-1, keepdims=True)
        scale = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True) + self._epsilon)
        return tf.cast(centred * scale * self.gamma + self.beta, x.dtype)


class _Group(NamedTuple):
    """Some rows of the batch, as attention sees them: [B', F'], real tokens first.

    Attributes:
      pieces: int32 [3, B', N, F'], where queries, keys and values are among the pieces of H numbers of [T, 3 D].
      mask_scores: float32 [B', 1, 1, F'], added to the scores of each place.
    """

    pieces: tf.Tensor
    mask_scores: tf.Tensor


class _Packing:
    """Where the tokens of a batch are.

    The first place of a row is computed even when it is masked, because `pooled_output` asks for it.
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
        self.firsts = tf.cumsum(self._lengths, exclusive=True)  # [B], each row's first token among the T
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
        # The groups' contexts, one after another, are pieces [B', N, F'] of H numbers each; where to look for them:
        places = tf.argsort(order)  # [B], each row's among the sorted
        begin, width = tf.gather(tf.concat(begins, 0), places), tf.gather(tf.concat(widths, 0), places)
        row, slot = self.places[:, 0], tf.range(tf.size(self.heard)) - tf.gather(self.firsts, self.places[:, 0])
        self.contexts = (tf.gather(begin, row) + slot)[:, tf.newaxis] + tf.gather(width, row)[:, tf.newaxis] * heads
        self.first_contexts = places[:, tf.newaxis] * self._heads + heads  # [B, N], where F' is 1

    def _make_group(self, rows: tf.Tensor, width: tf.Tensor) -> _Group:
        """int32 [B'] and the number of places F'."""
        slots = tf.range(width)
        # Places behind a row's last token read some token, which nothing listens to.
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
        """float32 [T, D] -> [B, F, D], zeros at the places of padding."""
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
    """The encoder of a model, with weights of its own in the precision that it computes in.

    Attributes:
      word_embeddings: the table [V, D] in that precision, a variable.
    """

    def __init__(self, model: modeling.BertModel, precision: str = "float32"):
        """`precision`: "float32" or "bfloat16"; LayerNorm and softmax are float32 in any case."""
        super().__init__(name="encoder")
        dtype = tf.as_dtype(precision)
        embeddings = model.embeddings
        self.word_embeddings = _constant(embeddings.word_embeddings.value, dtype)
        self.token_type_embeddings = _constant(embeddings.token_type_embeddings.value)
        self.position_embeddings = _constant(embeddings.position_embeddings.value)
        self.norm = _Norm(embeddings.layer_norm)
        self.blocks = [_Block(block, dtype) for block in model.blocks]
        self.pooler = _Affine([model.pooler], dtype)
        self._dtype, self._heads = dtype, model.config.num_attention_heads

    def __call__(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs the encoder on int32 [B, F] each; every id within its table, every row with a token.

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
        """The second of what a call returns, for less: the last block computes the first tokens only."""
        packing = _Packing(input_mask, self._heads)
        states = self._embed(input_ids, segment_ids, packing)
        for block in self.blocks[:-1]:
            states = block(states, packing)
        return self._pool(self.blocks[-1](states, packing, first_only=True))

    def _embed(self, input_ids: tf.Tensor, segment_ids: tf.Tensor, packing: _Packing) -> tf.Tensor:
        """-> [T, D]."""
        words = tf.cast(tf.gather(self.word_embeddings, packing.pack(input_ids)), tf.float32)
        segments = tf.gather(self.token_type_embeddings, packing.pack(segment_ids))
        positions = tf.gather(self.position_embeddings, packing.positions)
        return tf.cast(self.norm(words + segments + positions), self._dtype)

    def _pool(self, states: tf.Tensor) -> tf.Tensor:
        """[B, D] -> float32 [B, D]."""
        return tf.tanh(tf.cast(self.pooler(states), tf.float32))
