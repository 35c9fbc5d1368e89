"""The encoder for serving: computes the same as `modeling` and `fast`, without training, with folded weights.

    query, key, value  are one product with a kernel [D, 3 D]
    1 / sqrt(H)        is part of the query's kernel
    weights            are copies in the precision of the computation

Padding is left out as in `fast.unpadding`. T is the number of computed tokens in the batch; see modeling.py for the
other letters. The formulas allow TensorFlow to fuse a product with its bias, its activation and the next addition.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_tf2 import layers, modeling
from bert_tf2.fast.encoder import Block
from bert_tf2.fast.unpadding import Queries, Unpadded, UnpaddedLayout


class Encoder(tf.Module):
    """The encoder of a model, with its own copy of the weights in the precision of the computation."""

    def __init__(self, model: modeling.BertModel, precision: str = "float32"):
        """`precision`: "float32" or "bfloat16"; LayerNorm and softmax are always float32."""
        super().__init__(name="encoder")
        dtype = tf.as_dtype(precision)
        embeddings = model.embeddings
        self.word_embeddings = constant(embeddings.word_embeddings.value, dtype)  # [V, D]
        self.token_type_embeddings = constant(embeddings.token_type_embeddings.value)
        self.position_embeddings = constant(embeddings.position_embeddings.value)
        self.norm = _Norm(embeddings.layer_norm)
        self.blocks = [_Block(block, dtype) for block in model.blocks]
        self.pooler = _Dense([model.pooler], dtype)
        self._dtype, self._heads = dtype, model.config.num_attention_heads

    def __call__(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor, reads: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs the encoder on int32 [B, F] each; every id must be within its table, and every row must have a token.

        `reads`: int32 [B, P], the positions whose states are needed, see `heads._Model.encode`; None for all.

        Returns:
          sequence_output: float32 [B, F, D], zeros where input_mask is 0; with `reads` [B, P, D].
          pooled_output: float32 [B, D].
        """
        states, batch = self._embed(input_ids, input_mask, segment_ids)
        *blocks, last = self.blocks
        for block in blocks:
            states = block(states, batch.layout)
        if reads is not None:
            states = last(states, batch.layout, batch.queries(tf.pad(reads, [[0, 0], [1, 0]])))  # [CLS], then `reads`
            return tf.cast(states[:, 1:], tf.float32), self._pool(states[:, 0])
        states = last(states, batch.layout)
        sequence_output = batch.spread(tf.cast(states, tf.float32))
        real = tf.expand_dims(tf.cast(input_mask > 0, tf.float32), -1)  # a mask may have holes
        return sequence_output * real, self._pool(tf.gather(states, batch.firsts))

    def _embed(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> tuple[tf.Tensor, Unpadded]:
        """Returns the embeddings [T, D], and the places of these tokens in the batch."""
        batch = Unpadded(input_mask, self._heads, rounds=False)
        words = tf.cast(tf.gather(self.word_embeddings, batch.pack(input_ids)), tf.float32)
        summed = words + tf.gather(self.token_type_embeddings, batch.pack(segment_ids))
        summed += tf.gather(self.position_embeddings, batch.positions)
        return tf.cast(self.norm(summed), self._dtype), batch

    def _pool(self, states: tf.Tensor) -> tf.Tensor:
        """[B, D] -> float32 [B, D]."""
        return tf.tanh(tf.cast(self.pooler.linear(states), tf.float32))


class _Block(Block, tf.Module):
    """A block of `fast`, made of the parts of this module."""

    def __init__(self, block: modeling.TransformerBlock, dtype: tf.DType):
        tf.Module.__init__(self)  # not Block's constructor, which would keep the layer
        attention, config = block.attention, block.config
        scales = (1.0 / math.sqrt(config.attention_head_size), 1.0, 1.0)
        self.query_key_value = _Dense([attention.query, attention.key, attention.value], dtype, scales)
        self.attention_output = _Dense([block.attention_output], dtype)
        self.attention_norm = _Norm(block.attention_norm)
        self.intermediate = _Dense([block.intermediate], dtype)
        self.output_dense = _Dense([block.output_dense], dtype)
        self.output_norm = _Norm(block.output_norm)
        self.heads, self.rate = config.num_attention_heads, 0.0

    def split_heads(
        self, states: tf.Tensor, layout: UnpaddedLayout, read: tf.Tensor, queries: Queries | None
    ) -> list[Sequence[tf.Tensor]]:
        folded = self.query_key_value(states)  # [T, 3 D]; a slice of the kernel would be copied in each call
        split = layout.split_heads([folded], self.heads)
        if queries is None:
            return split
        query = queries.split_heads(queries.pick(folded)[..., : states.shape[-1]], self.heads)
        return [(one, *others[1:]) for one, others in zip(query, split, strict=True)]


class _Norm(tf.Module):
    """LayerNorm of `states`, or of `branch + states` if there is a branch."""

    def __init__(self, layer: layers.LayerNorm):
        super().__init__()
        self.gamma, self.beta = constant(layer.gamma.value), constant(layer.beta.value)
        self.epsilon = layer.epsilon

    def __call__(self, states: tf.Tensor, branch: tf.Tensor | None = None) -> tf.Tensor:
        # Not tf.nn.batch_normalization, and the factors in this order, because TensorFlow 2.21 would replace other
        # forms with its fused operation, which is slower on few rows and always uses an epsilon of 0.001.
        added = states if branch is None else branch + states
        normal = layers.normalize(tf.cast(added, tf.float32), self.gamma, self.beta, self.epsilon)
        return tf.cast(normal, states.dtype)


class _Dense(tf.Module):
    """activation(x @ kernel + bias): several layers as one, whose outputs are concatenated."""

    def __init__(self, dense: Sequence[layers.Dense], dtype: tf.DType, scales: Sequence[float] = (1.0,)):
        super().__init__()
        pairs = list(zip(dense, scales, strict=True))
        self.kernel = constant(np.concatenate([layer.kernel.numpy() * by for layer, by in pairs], axis=1), dtype)
        self.bias = constant(np.concatenate([layer.bias.numpy() * by for layer, by in pairs]), dtype)
        self._activation = dense[0].activation
        if self._activation is layers.gelu:  # the graph optimizer recognizes only tf.nn.gelu
            self._activation = functools.partial(tf.nn.gelu, approximate=True)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self._activation(self.linear(x))

    def linear(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(tf.matmul(x, self.kernel), self.bias)


def constant(value: np.ndarray | tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Variable:
    """A variable that is not trained."""
    # Not a constant, because every signature would have its own copy of a constant, in the file and in memory.
    return tf.Variable(tf.cast(value, dtype), trainable=False)
