"""`FastEncoder` computes a model's encoder with all accelerations of this folder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import tensorflow as tf

from bert_tf2 import modeling
from bert_tf2.data.records import PACKED
from bert_tf2.dropout import current_streams, dropout, dropout_from, streams_if
from bert_tf2.fast import kernels
from bert_tf2.fast.blocks import SharedGraph, keeps_activations, recomputed, values_of, with_values
from bert_tf2.fast.packing import Packed, PackedLayout
from bert_tf2.fast.unpadding import PREDICTIONS_STEP, Padded, PaddedLayout, Queries, Unpadded, UnpaddedLayout
from bert_tf2.layers import MASKED_SCORE
from bert_tf2.long_texts import Batch
from bert_tf2.shapes import Contract

Model = TypeVar("Model")
Layout = PaddedLayout | UnpaddedLayout | PackedLayout


@dataclasses.dataclass(frozen=True)
class Plan:
    """The accelerations to use besides the explicit gradients of `kernels`."""

    # how padding is left out of the computation: "none" (it is computed), or in "groups", see `unpadding`. The outputs
    # are the same within rounding, except for the states of padding, which are then zeros
    unpad: str = "none"
    recompute: bool = False  # whether training keeps only the inputs of two blocks in three; see `blocks`
    share_graph: bool = False  # whether the graph of training has the operations of a block once, for all blocks
    # fused_attention.attend or a function like it, to be used where it is possible; None for plain attention
    attention: Callable[..., tf.Tensor] | None = None

    @property
    def computes_padding(self) -> bool:
        """Whether the states of padding are computed, so that all sizes are fixed."""
        return self.unpad == "none"


def plan_of(model) -> Plan:
    """The plan by which a model of `heads` computes; the default plan for a model that is not accelerated."""
    return model.faster.plan if model.faster else Plan()


def accelerate(model: Model, plan: Plan) -> Model:
    """Makes a model of `heads` compute its encoder as planned, with the same variables; returns the model."""
    model.faster = faster(model.bert, plan)
    return model


def faster(bert: modeling.BertModel, plan: Plan) -> FastEncoder | None:
    """The encoder as planned, with the same variables; None if `bert` is float64 or has other blocks."""
    is_plain = all(type(block) is modeling.TransformerBlock for block in bert.blocks)
    return FastEncoder(bert, plan) if is_plain and bert.variable_dtype == "float32" else None


_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def accelerated(model: Model) -> Iterator[Model]:
    """Accelerates a model, unless it is already, while a graph is traced; afterwards restores its encoder.

    Other threads that trace a graph wait, because they would take the accelerated encoder for the model's own encoder.
    """
    with _ONE_AT_A_TIME:
        before = model.faster
        try:
            yield model if before else accelerate(model, Plan())
        finally:
            model.faster = before


class FastEncoder:
    """Computes the same as a BertModel and is called like it. Its other methods leave out padding for `heads`."""

    def __init__(self, bert: modeling.BertModel, plan: Plan):
        self.plan = plan
        self._bert = bert
        self._blocks = [Block(block, plan.attention) for block in bert.blocks]
        self._norm = kernels.norm(bert.embeddings.layer_norm)

    def __call__(
        self,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor | None = None,
        token_type_ids: tf.Tensor | None = None,
        training: bool = False,
        dropout_seed: tf.Tensor | None = None,
        reads: tf.Tensor | None = None,
        features: Batch | None = None,
    ) -> modeling.BertOutput:
        """See BertModel.call, and `heads._Model.encode` for `reads`, the positions that the last block computes.

        `features`: the whole batch, in which data.batching.packed may have added that several examples share a row.
        """
        Contract().check("2", dropout_seed=dropout_seed)
        input_ids, mask, types = self._bert.check_inputs(input_ids, input_mask, token_type_ids)
        with dropout_from(streams_if(training, dropout_seed)):
            if reads is not None:  # the pooler reads the first token
                reads = tf.pad(tf.cast(reads, tf.int32), [[0, 0], [1, 0]])  # [B, 1 + P]
            tokens = self._laid_out(mask, features, reads)
            queries = None if reads is None else tokens.queries(reads)
            states = self._embed(tokens.pack(input_ids), tokens.pack(types), tokens.positions)  # [B, F, D] or [T, D]
            *layers, last = self._run_blocks(states, tokens, queries)
            layers = [tokens.spread(states) for states in layers]  # a graph computes only the layers that are used
            last = tokens.spread(last) if reads is None else last
        pooled_output = self._bert.pooler(last[:, 0])
        last = last if reads is None else last[:, 1:]  # [B, F, D] or [B, P, D]
        embedding_output, *others = layers
        output = modeling.BertOutput(embedding_output, (*others, last), last, pooled_output)
        return modeling.with_mask(output, mask if reads is None else None)

    def without_padding(self, logits: tf.Tensor, features: Batch) -> tf.Tensor:
        """Logits of positions, [B, F, L], by which a position that is not computed cannot be an answer."""
        if (self.plan.computes_padding and not _is_packed(features)) or "input_mask" not in features:
            return logits
        return logits + (1.0 - tf.cast(features["input_mask"], tf.float32))[..., tf.newaxis] * MASKED_SCORE

    def real_predictions(self, states: tf.Tensor, ids: tf.Tensor, weights: tf.Tensor) -> Sequence[tf.Tensor]:
        """Leaves out predictions of weight 0, which are padding, if the plan leaves out padding.

        [B, P, D], [B, P], [B, P] -> [M, D], [M], [M]. M is rounded up by predictions of weight 0.
        """
        if self.plan.computes_padding:
            return states, ids, weights
        real = tf.where(weights > 0)  # [M, 2]
        filling = [[0, -tf.shape(real)[0] % PREDICTIONS_STEP]]
        states, *labels = (tf.gather_nd(values, real) for values in (states, ids, weights))
        return tf.pad(states, [*filling, [0, 0]]), *(tf.pad(values, filling) for values in labels)

    def _laid_out(self, mask: tf.Tensor, features: Batch | None, reads: tf.Tensor | None) -> Padded | Unpadded | Packed:
        if _is_packed(features):
            return Packed(mask, *(features[name] for name in PACKED))
        heads = self._bert.config.num_attention_heads
        return Padded(mask) if self.plan.computes_padding else Unpadded(mask, heads, reads=reads)

    def _embed(self, input_ids: tf.Tensor, types: tf.Tensor, position_ids: tf.Tensor | None) -> tf.Tensor:
        """int32 [B, F] each -> [B, F, D], or [T] -> [T, D] with the position of each of T tokens, int32 [T]."""
        positions = None
        if position_ids is not None:
            # The slice, the whole table, gives a dense gradient as in BertModel, so that clipping treats it alike.
            table = self._bert.embeddings.position_embeddings.value[: self._bert.config.max_position_embeddings]
            positions = tf.gather(table, position_ids)
        summed = self._bert.embeddings.add_up(input_ids, types, positions)
        return dropout(self._norm(summed), self._bert.config.hidden_dropout_prob)

    def _run_blocks(
        self, states: tf.Tensor, tokens: Padded | Unpadded | Packed, queries: Queries | None
    ) -> list[tf.Tensor]:
        """Returns the states that enter each block, and the states that leave the last block.

        With `queries`, only the queries' states leave the last block, [B, Q, D].
        """
        trains = current_streams() is not None
        # Only in training, because a model's answers must not depend, by rounding, on a training run just before.
        shared = None
        if trains and self.plan.share_graph and not tf.executing_eagerly() and self._are_alike():
            shared = SharedGraph(self._blocks[0].with_values())
        layers = [states]
        *blocks, last = self._blocks if queries else (*self._blocks, None)
        for block, keeps in zip(blocks, keeps_activations(len(self._blocks)), strict=False):
            again = trains and self.plan.recompute and not keeps
            if shared or again:
                run = functools.partial(shared or block.with_values(), layout=tokens.layout)
                states = (recomputed(run) if again else run)(values_of(block.layer), states)
            else:
                states = block(states, tokens.layout)
            layers.append(states)
        return [*layers, last(states, tokens.layout_of_queries, queries)] if last else layers

    def _are_alike(self) -> bool:
        return len({(id(block.layer.config), block.layer.dtype_policy.name) for block in self._blocks}) == 1


def _is_packed(features: Batch | None) -> bool:
    return features is not None and all(name in features for name in PACKED)


class Block:
    """A block that computes with `kernels` in place of its own layers; see modeling.after_attention.

    Exports use other parts.
    """

    fused: Callable[..., tf.Tensor] | None = None  # see Plan.attention

    def __init__(self, layer: modeling.TransformerBlock, fused: Callable[..., tf.Tensor] | None = None):
        self.layer, self.fused = layer, fused
        self.heads, self.rate = layer.config.num_attention_heads, layer.config.attention_probs_dropout_prob
        self.attention_output, self.attention_norm = kernels.add_and_norm(layer.attention_output, layer.attention_norm)
        self.intermediate = kernels.dense(layer.intermediate)
        self.output_dense, self.output_norm = kernels.add_and_norm(layer.output_dense, layer.output_norm)

    def __call__(self, states: tf.Tensor, layout: Layout, queries: Queries | None = None) -> tf.Tensor:
        """States [B, F, D] or [T, D], as the layout has them, to states of the same shape.

        With `queries`, the result is only the states that are read, [B, Q, D].
        """
        read = queries.pick(states) if queries else states
        contexts = [
            kernels.attend(query, key, mask_scores, value, self.rate, self.fused)
            for (query, key, value), mask_scores in zip(
                self.split_heads(states, layout, read, queries), layout.mask_scores, strict=True
            )
        ]
        return modeling.after_attention(self, read, (queries or layout).merge_heads(contexts))

    def split_heads(
        self, states: tf.Tensor, layout: Layout, read: tf.Tensor, queries: Queries | None
    ) -> list[Sequence[tf.Tensor]]:
        """Query, key and value for each group of the layout; with `queries`, the query is made of `read`, their states.

        Returns tensors [R, N, Q, H], [R, N, W, H] and [R, N, W, H] for each group.
        """
        attention = self.layer.attention
        if queries is None:
            return layout.split_heads(kernels.query_key_value(attention, states), self.heads)
        query = queries.split_heads(attention.query(read) * attention.query_scale, self.heads)
        key_value = layout.split_heads(kernels.key_value(attention, states), self.heads)
        return [(one, *others) for one, others in zip(query, key_value, strict=True)]

    def with_values(self):
        return with_values(self, self.layer.variables)
