"""The BERT encoder: from token ids to one hidden state per token.

    input_ids, token_type_ids          [B, F]
      -> Embeddings                    [B, F, D]   word + segment + position, normalized
      -> num_hidden_layers blocks      [B, F, D]   attention mixes positions, the feed-forward half mixes features
      -> pooler                        [B, D]      from the state of [CLS], for tasks about the whole input

Letters, the same in every comment below:
    B  examples in the batch            D  hidden_size
    F  positions that attend            N  num_attention_heads
       (from; the sequence length)      H  width of one head, D / N
    T  positions that are attended to   I  intermediate_size
       (to; the same sequence)          V  vocab_size

After Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding" (2018),
section 3, and Vaswani et al., "Attention Is All You Need" (2017); the results equal google-research/bert's modeling.py.
Every variable has the reference's shape: kernels are 2-D, [inputs, outputs]. `layers` has the parts that are not
specific to BERT: Dense, LayerNorm, dropout and the activation functions.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_tf2 import shapes
from bert_tf2.config import BertConfig
from bert_tf2.dropout import dropout, dropout_from, streams_if

# Names that are not used below are imported because the reference's modeling.py has these names.
from bert_tf2.layers import (
    MASKED_SCORE,
    AddAndNorm,
    Dense,
    LayerNorm,
    create_initializer,
    sinusoidal_positions,
)
from bert_tf2.layers import gelu as gelu
from bert_tf2.layers import get_activation as get_activation
from bert_tf2.shapes import assert_rank as assert_rank
from bert_tf2.shapes import get_shape_list
from bert_tf2.shapes import reshape_from_matrix as reshape_from_matrix
from bert_tf2.shapes import reshape_to_matrix as reshape_to_matrix
from bert_tf2.support import lazy
from bert_tf2.support.errors import UserError
from bert_tf2.support.process import check_process

__getattr__ = lazy.unknown(__name__)


class Embeddings(keras.layers.Layer):
    """Token ids to vectors: word + segment + position, each a row of a learned table (paper, figure 2).

    The sum keeps the width D. The matrices of the blocks learn to read its three parts apart.
    The word table is also the output layer of the masked language model: see heads.get_masked_lm_output.
    """

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        # The tables have autocast=False, because a gather from the variable itself has a sparse gradient, and casting
        # the whole table would cost more than casting the gathered rows.
        self.word_embeddings = self._table("word_embeddings", config.vocab_size)
        self.token_type_embeddings = self._table("token_type_embeddings", config.type_vocab_size)
        from_sinusoid = config.position_embedding_type == "learned_from_sinusoidal"
        initializer = (lambda shape, dtype: scaled_sinusoid(config)) if from_sinusoid else None
        self.position_embeddings = self._table("position_embeddings", config.max_position_embeddings, initializer)
        with keras.name_scope(self.name):  # for the paths of the variables
            self.layer_norm = LayerNorm(
                config.hidden_size, config.layer_norm_eps, name="LayerNorm", dtype=self.dtype_policy
            )
        self.built = True

    def _table(self, name: str, rows: int, initializer: Callable | None = None):
        initializer = initializer or create_initializer(self.config.initializer_range)
        return self.add_weight(
            shape=[rows, self.config.hidden_size], initializer=initializer, autocast=False, name=name
        )

    def call(self, input_ids: tf.Tensor, token_type_ids: tf.Tensor) -> tf.Tensor:
        """int32 [B, F], int32 [B, F] -> [B, F, D]."""
        summed = self.add_up(input_ids, token_type_ids)
        return dropout(self.layer_norm(summed), self.config.hidden_dropout_prob)

    def add_up(self, input_ids: tf.Tensor, token_type_ids: tf.Tensor, positions: tf.Tensor | None = None) -> tf.Tensor:
        """The sum of a word's, a segment's and a position's row: int32 [B, F], int32 [B, F] -> [B, F, D].

        Every token at position p gets row p of a table, because attention has no other information about order. The
        rows are learned, so a sequence cannot be longer than the table. `positions`: other rows, float32 [..., D].
        """
        words = tf.gather(self.word_embeddings.value, input_ids)  # [B, F, D]
        # The table has about two rows, so a one-hot product is faster than a gather; its gradient is dense.
        one_hot = tf.one_hot(token_type_ids, self.config.type_vocab_size, dtype=words.dtype)  # [B, F, types]
        segments = tf.matmul(one_hot, self.token_type_embeddings.value)  # [B, F, D]
        if positions is None:
            positions = self.position_embeddings.value[: get_shape_list(input_ids)[1]]  # [F, D], for each example
        return tf.cast(words + segments + positions, self.compute_dtype)


def scaled_sinusoid(config: BertConfig) -> np.ndarray:
    """The initial table of positions, float32 [max_position_embeddings, D].

    Unscaled, its numbers up to 1 would hide the words, whose numbers are about 0.02.
    """
    rows = sinusoidal_positions(config.max_position_embeddings, config.hidden_size)
    return np.float32(math.sqrt(2.0) * config.initializer_range) * rows  # their mean square is 1 / 2


class SelfAttention(keras.layers.Layer):
    """Multi-head self-attention: each position averages the values of all positions, weighted by query-key products.

    Three products with matrices [D, D] give each position a query (the position looks for like keys), a key (by which
    other positions find this position) and a value (which they get if they find it). Each of N heads has H of the D
    numbers of each, so that a position can look for several things at once. Reference: attention_layer.
    """

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True  # positions of padding are the same in inputs and outputs
        config.check_heads()
        self.config = config
        width, common = config.hidden_size, {"dtype": self.dtype_policy, "initializer_range": config.initializer_range}
        self.query, self.key, self.value = (Dense(width, width, name=x, **common) for x in ("query", "key", "value"))
        self.built = True

    def call(self, states: tf.Tensor, mask_scores: tf.Tensor) -> tf.Tensor:
        """[B, F, D], [B, 1, 1, T] -> [B, F, D]."""
        query, key, value = self.query_key_value(states)
        query, key, value = (split_heads(x, self.config.num_attention_heads) for x in (query, key, value))
        scores = attention_scores(query, key, mask_scores)  # [B, N, F, T]
        return merge_heads(average_values(scores, value, self.config.attention_probs_dropout_prob))

    def query_key_value(self, states: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """[..., D] -> [..., D] each; the queries are scaled."""
        # The scale keeps the deviation of a sum of H products near 1; otherwise, softmax would saturate and its
        # gradient would vanish. The scale is applied before the heads are split, because next to the product of query
        # and key, TensorFlow 2.21 fuses both with the addition of the mask and confuses the shapes of several groups of
        # rows.
        query = self.query(states) * self.query_scale
        return query, self.key(states), self.value(states)

    @property
    def query_scale(self) -> float:
        return 1.0 / math.sqrt(self.config.attention_head_size)


def split_heads(x: tf.Tensor, heads: int) -> tf.Tensor:
    """[B, F, D] -> [B, N, F, H]: the D features are N groups of H, one group per head."""
    batch, length, width = get_shape_list(x)
    return tf.transpose(tf.reshape(x, [batch, length, heads, width // heads]), [0, 2, 1, 3])


def merge_heads(contexts: tf.Tensor) -> tf.Tensor:
    """[B, N, F, H] -> [B, F, D]."""
    batch, heads, length, size = get_shape_list(contexts)
    return tf.reshape(tf.transpose(contexts, [0, 2, 1, 3]), [batch, length, heads * size])


def attention_scores(query: tf.Tensor, key: tf.Tensor, mask_scores: tf.Tensor) -> tf.Tensor:
    """The score of each position for each: [B, N, F, H], [B, N, T, H], [B, 1, 1, T] -> float32 [B, N, F, T].

    `mask_scores` may have a row for each of the F positions.
    """
    products = tf.matmul(query, key, transpose_b=True)
    # Both are cast to float32, because Keras casts mask_scores, like every input of a layer, to the compute dtype.
    return tf.cast(products, tf.float32) + tf.cast(mask_scores, tf.float32)


def average_values(scores: tf.Tensor, value: tf.Tensor, rate: float) -> tf.Tensor:
    """Means of the values, weighted by the softmax of the scores: [B, N, F, T], [B, N, T, H] -> [B, N, F, H].

    `rate`: of a dropout of whole (from, to) pairs, as in the Transformer paper.
    """
    probabilities = tf.nn.softmax(scores)
    return tf.matmul(tf.cast(dropout(probabilities, rate), value.dtype), value)


class TransformerBlock(keras.layers.Layer):
    """A block: self-attention, then a feed-forward network at each position, each added to its input and normalized.

    Because of the addition, a half learns only a change of its input, and the gradient has a way around its products.
    The normalization follows the addition ("post-LayerNorm"), as in the paper of 2017. Reference: one iteration of the
    loop in transformer_model.
    """

    def __init__(self, config: BertConfig, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True  # positions of padding are the same in inputs and outputs
        self.config = config
        common = {"initializer_range": config.initializer_range, "dtype": self.dtype_policy}
        norm = {"epsilon": config.layer_norm_eps, "rate": config.hidden_dropout_prob, "dtype": self.dtype_policy}
        width, inner = config.hidden_size, config.intermediate_size
        self.attention = SelfAttention(config, name="attention", dtype=self.dtype_policy)
        self.attention_output = Dense(width, width, name="attention_output", **common)  # mixes the heads
        self.attention_norm = AddAndNorm(width, name="attention_norm", **norm)
        self.intermediate = Dense(width, inner, activation=config.hidden_act, name="intermediate", **common)
        self.output_dense = Dense(inner, width, name="output", **common)
        self.output_norm = AddAndNorm(width, name="output_norm", **norm)
        self.built = True

    def call(self, states: tf.Tensor, mask_scores: tf.Tensor) -> tf.Tensor:
        """[B, F, D], [B, 1, 1, T] -> [B, F, D]."""
        return after_attention(self, states, self.attention(states, mask_scores))


def after_attention(block: TransformerBlock, states: tf.Tensor, context: tf.Tensor) -> tf.Tensor:
    """The part of a block that computes each position by itself, from the block's input and self-attention's output.

    [..., D], [..., D] -> [..., D]. Only the five layers of `block` that are called here are used; the blocks of `fast`
    and `exporting` have other layers with the same weights.
    """
    states = block.attention_norm(states, block.attention_output(context))
    expanded = block.intermediate(states)  # [..., I]
    return block.output_norm(states, block.output_dense(expanded))


class BertOutput(NamedTuple):
    """The output of BertModel."""

    embedding_output: tf.Tensor  # [B, F, D], the input of the first block
    all_encoder_layers: tuple[tf.Tensor, ...]  # [B, F, D] after each block; the last is sequence_output
    sequence_output: tf.Tensor  # [B, F, D]
    pooled_output: tf.Tensor  # [B, D]

    def get_embedding_output(self) -> tf.Tensor:
        return self.embedding_output

    def get_all_encoder_layers(self) -> list[tf.Tensor]:
        return list(self.all_encoder_layers)

    def get_sequence_output(self) -> tf.Tensor:
        return self.sequence_output

    def get_pooled_output(self) -> tf.Tensor:
        return self.pooled_output


@keras.saving.register_keras_serializable(package="bert_tf2")
class BertModel(keras.Model):
    """The encoder.

    Example:
      model = BertModel(BertConfig.from_json_file("bert_config.json"))
      output = model(input_ids, input_mask, token_type_ids)
      output.get_sequence_output()      # [B, F, D]
      model.get_embedding_table()       # the variable [V, D]

    `dtype="mixed_bfloat16"` computes in bfloat16; variables, LayerNorm and softmax stay float32.

    Attributes:
      heads, labeled, uses_pooler, has_pooler: the same class attributes as in the models of `heads`.
    """

    heads: tuple[str, ...] = ()
    labeled: str | None = None
    uses_pooler = True
    has_pooler = True

    def __init__(
        self, config: BertConfig | Mapping[str, Any] | str | os.PathLike[str], *, name: str | None = None, **kwargs
    ):
        """Makes an encoder with new weights; `config` may be a configuration's dictionary, or the path of its file.

        `name` is by default bert, bert_2, bert_3, ..., because a functional model accepts each name only once.
        """
        if {"input_ids", "is_training"} & kwargs.keys():  # the reference's constructor takes a batch, too
            raise UserError("BertModel takes a config alone: model = BertModel(config), then model(input_ids, mask)")
        check_process()
        number = keras.backend.get_uid("bert") if name is None else 0
        super().__init__(name=name or ("bert" if number == 1 else f"bert_{number}"), **kwargs)
        self.config = config = BertConfig.of(config)
        policy = self.dtype_policy
        self.embeddings = Embeddings(config, name="embeddings", dtype=policy)
        self.blocks = []
        for name in (f"layer_{i}" for i in range(config.num_hidden_layers)):
            with keras.name_scope(name):  # for the paths of the variables
                self.blocks.append(TransformerBlock(config, name=name, dtype=policy))
            setattr(self, name, self.blocks[-1])  # tf.train.Checkpoint finds attributes, not the members of lists
        self.pooler = Dense(
            config.hidden_size, config.hidden_size, config.initializer_range, "tanh", name="pooler", dtype=policy
        )
        self.built = True

    def get_config(self) -> dict:
        return {**super().get_config(), "config": self.config.to_dict(), "name": self.name}

    def get_embedding_table(self) -> tf.Variable:
        """The word embeddings, float32 [V, D]: the variable itself, not a copy."""
        return self.embeddings.word_embeddings.value

    def __call__(self, input_ids: Any, input_mask: Any = None, token_type_ids: Any = None, **kwargs) -> BertOutput:
        """See `call`. The states of tokens, [B, F, D], have `input_mask` as mask for Keras layers that read masks."""
        if not any(hasattr(part, "shape") for part in keras.tree.flatten(input_ids)):
            made = "arrays [B, F] are needed, which Bert.tokenize makes of texts"
            raise shapes.ShapeError(f"input_ids={input_ids!r:.60}: {made}")
        output = super().__call__(input_ids, input_mask, token_type_ids, **kwargs)
        return with_mask(output, input_ids.get("input_mask") if isinstance(input_ids, Mapping) else input_mask)

    def call(
        self,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor | None = None,
        token_type_ids: tf.Tensor | None = None,
        training: bool = False,
        dropout_seed: tf.Tensor | None = None,
        segment_ids: tf.Tensor | None = None,
    ) -> BertOutput:
        """Runs the encoder.

        Args:
          input_ids: int [B, F]; or a dictionary with the names of the first three arguments, as `tokenize` returns it.
          input_mask: [B, F], 0 for padding and anything else for tokens; defaults to all 1.
          token_type_ids: int [B, F], 0 for the first segment and 1 for the second; defaults to all 0.
          training: whether to apply dropout.
          dropout_seed: int32 [2]; the same seed drops the same values. Defaults to a random seed.
          segment_ids: another name of token_type_ids, as in records.

        Raises:
          shapes.ShapeError: an argument has another shape or type; outside of graphs also, an id is not in its table.
            In a graph, the lookup of such an id fails on a CPU; a GPU, a TPU and XLA silently use some row. A graph
            silently adds nothing for a segment that is not in its table.
          UserError: the sequence is longer than the position table, or this process is a fork of one that has used
            TensorFlow.
        """
        shapes.Contract().check("2", dropout_seed=dropout_seed)
        token_type_ids = segment_ids if token_type_ids is None else token_type_ids
        input_ids, mask, types = self.check_inputs(input_ids, input_mask, token_type_ids)
        with dropout_from(streams_if(training, dropout_seed)):
            scores = mask_scores(mask)  # [B, 1, 1, T]
            layers = [self.embeddings(input_ids, types)]  # the states before the first block, then after each block
            for block in self.blocks:
                layers.append(block(layers[-1], scores))  # [B, F, D]
        embedding_output, *all_encoder_layers = layers
        # A dense layer with tanh after the state of [CLS]. This token is no word, so attention may fill its state with
        # the whole input. Tasks about single tokens do not use the pooler, which then gets no gradient.
        pooled_output = self.pooler(layers[-1][:, 0])  # [B, D]
        return BertOutput(embedding_output, tuple(all_encoder_layers), layers[-1], pooled_output)

    def check_inputs(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor | None, token_type_ids: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Checks the first arguments of `call`, and returns input_ids, mask and types with defaults, int32 [B, F]."""
        check_process()
        config = self.config
        if isinstance(input_ids, Mapping):
            wanted = {"input_ids": ("BF",), "input_mask": ("BF",)}
            shapes.Contract().check_batch(input_ids, wanted, optional=["input_mask"])
            features, input_ids = input_ids, input_ids["input_ids"]
            input_mask, token_type_ids = features.get("input_mask"), features.get("token_type_ids")
            token_type_ids = features.get("segment_ids") if token_type_ids is None else token_type_ids
        shapes.Contract().check("BF", input_ids=input_ids, input_mask=input_mask, token_type_ids=token_type_ids)
        input_ids = shapes.whole_numbers("input_ids", input_ids, config.vocab_size)
        length, most = input_ids.shape[1], config.max_position_embeddings
        too_long = "is longer than the model's max_position_embeddings"
        if length == 0:
            raise shapes.ShapeError("input_ids: rows of no tokens; [CLS] at least is needed")
        if length is None:
            length = tf.shape(input_ids)[1]
            check = tf.debugging.assert_less_equal(length, most, f"a sequence {too_long} {most}")
            with tf.control_dependencies([check]):
                input_ids = tf.identity(input_ids)
        elif length > most:
            raise UserError(f"a sequence of {length} tokens {too_long} {most}")
        mask = tf.ones_like(input_ids) if input_mask is None else tf.cast(tf.cast(input_mask, tf.bool), tf.int32)
        if token_type_ids is None:
            return input_ids, mask, tf.zeros_like(input_ids)
        return input_ids, mask, shapes.whole_numbers("token_type_ids", token_type_ids, config.type_vocab_size)


def with_mask(output: BertOutput, input_mask: Any) -> BertOutput:
    """Gives the states of tokens the mask, bool [B, F], by which layers such as GlobalAveragePooling1D skip padding.

    `input_mask`: None if there is no padding. Keras' `compute_mask` is not used, because it would get only the first
    argument of a call.
    """
    if input_mask is not None:
        mask = keras.ops.cast(input_mask, "bool")
        for states in (output.embedding_output, *output.all_encoder_layers, output.sequence_output):
            states._keras_mask = mask
    return output


def mask_scores(mask: tf.Tensor) -> tf.Tensor:
    """[B, T] -> float32 [B, 1, 1, T], added to the attention scores, so that no position attends to padding.

    The scores are the same for every head and every query. Padding itself attends, but its states are not used.
    """
    # Not [:, tf.newaxis, tf.newaxis, :], because LiteRT has no slices with new axes.
    return tf.expand_dims(tf.expand_dims(1.0 - tf.cast(mask, tf.float32), 1), 1) * MASKED_SCORE
