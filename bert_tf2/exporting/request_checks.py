"""Checks of requests to a served model, inside the graph: wrong requests fail with InvalidArgument and a message.

Operations that do not depend on a check may run before it, so every checked tensor is returned under a dependency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf2.config import BertConfig


class Rows(NamedTuple):
    """The inputs of the encoder: three int32 [B, F]; the mask is 1 for tokens, and 1 at the start of every row."""

    input_ids: tf.Tensor
    input_mask: tf.Tensor
    segment_ids: tf.Tensor


def checked_rows(
    config: BertConfig,
    vocab: Mapping[str, int],
    input_ids: tf.Tensor,
    input_mask: tf.Tensor | None = None,
    segment_ids: tf.Tensor | None = None,
) -> Rows:
    """Returns the three inputs of the encoder, int32 [B, F], after checking them.

    `input_mask` defaults to 0 where input_ids is [PAD] and 1 elsewhere, `segment_ids` to 0.
    """
    given = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
    needed = "a matrix is needed, a row of token ids for each example"
    rows = _of_one_shape({name: tensor for name, tensor in given.items() if tensor is not None}, 2, needed)
    ids = rows["input_ids"]
    mask = rows.get("input_mask", tf.cast(tf.not_equal(ids, vocab.get("[PAD]", 0)), tf.int32))
    segments = rows.get("segment_ids", tf.zeros_like(ids))
    length, positions = tf.shape(ids)[1], config.max_position_embeddings
    last_id, last_segment = config.vocab_size - 1, config.type_vocab_size - 1
    starts_empty = "input_mask is 0 there" if "input_mask" in rows else "it begins with [PAD]"
    too_long = f"the rows of input_ids hold {{}} tokens; the model reads {positions} at most"
    checks = [
        require(length > 0, "the rows of input_ids are empty; each needs a token at least"),
        require(length <= positions, too_long, [length]),
        require_none(tf.equal(mask[:, :1], 0), f"row {{}} has no token at its beginning: {starts_empty}"),
        _within(ids, last_id, "input_ids", f"the ids of the vocabulary are 0 to {last_id}"),
        _within(mask, 1, "input_mask", "it is 1 for tokens and 0 for padding"),
        _within(segments, last_segment, "segment_ids", f"the model knows segments 0 to {last_segment}"),
    ]
    with tf.control_dependencies(checks):
        return Rows(tf.identity(ids), _without_filling(ids, mask, vocab), tf.identity(segments))


def _without_filling(ids: tf.Tensor, mask: tf.Tensor, vocab: Mapping[str, int]) -> tf.Tensor:
    """Returns the mask without the padding of TensorFlow Serving's `pad_variable_length_inputs`.

    TensorFlow Serving pads with the first value of each tensor, [CLS] with mask 1. The padding is a run of [CLS] at the
    end of a row that begins with [CLS] and whose last token before the run is [SEP]; the client's own padding may be
    between [SEP] and the run.
    """
    places = tf.range(tf.shape(ids)[1])
    is_filling = tf.equal(ids, vocab["[CLS]"]) & tf.equal(mask, 1)
    # The last position outside the run; -1 in a row that has only [CLS].
    last_other = tf.reduce_max(tf.where(is_filling, -1, places), axis=1, keepdims=True)
    is_token = tf.equal(mask, 1) & (places <= last_other)
    last_token = tf.reduce_max(tf.where(is_token, places, 0), axis=1)
    ends_well = tf.equal(tf.gather(ids, last_token, batch_dims=1), vocab["[SEP]"])
    filled = (places > last_other) & (ends_well & tf.equal(ids[:, 0], vocab["[CLS]"]))[:, tf.newaxis]
    return tf.where(filled, 0, mask)


def checked_texts(texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Checks the sizes of strings [B]; the tokenizer checks that they are UTF-8."""
    return _of_one_shape(texts, 1, "a vector is needed, a text for each example")


def _of_one_shape(inputs: Mapping[str, tf.Tensor], rank: int, needed: str) -> dict[str, tf.Tensor]:
    """Returns the inputs after checking that they have this rank, the same shape, and at least one row."""
    shapes = {name: tf.shape(tensor) for name, tensor in inputs.items()}
    checks = []
    for name, shape in shapes.items():
        # Not tf.rank, because the optimizer takes it from the signature, which clients in C may violate.
        found = tf.reduce_sum(tf.cast(shape >= 0, tf.int32))
        checks.append(require(tf.equal(found, rank), f"{name} has {{}} dimensions; {needed}", [found]))
    (first, shape), *others = shapes.items()
    with tf.control_dependencies(checks):
        checks = [require(shape[0] > 0, f"the batch is empty: {first} has no row")]
        for name, other in others:
            unlike = f"{name} has the shape {{}}, but {first} the shape {{}}; both must be equal"
            checks.append(require(tf.reduce_all(tf.equal(other, shape)), unlike, [other, shape]))
    with tf.control_dependencies(checks):
        return {name: tf.identity(tensor) for name, tensor in inputs.items()}


def _within(values: tf.Tensor, most: int, name: str, meaning: str) -> tf.Tensor:
    return require_none((values < 0) | (values > most), f"row {{}} of {name} holds {{}}; {meaning}", values)


def require(ok: tf.Tensor, message: str, values: Sequence[tf.Tensor] = ()) -> tf.Tensor:
    """Fails unless the scalar `ok` is True; each {} in the message is replaced by one of the values."""
    return tf.cond(ok, lambda: tf.constant(True), lambda: _fail(message, values))


def require_none(wrong: tf.Tensor, message: str, values: tf.Tensor | None = None) -> tf.Tensor:
    """Fails if an element is True; {} in the message is replaced by its row, and a second {} by its value."""

    def fail() -> tf.Tensor:
        place = tf.where(wrong)[0]  # the index of the first True, on all axes
        return _fail(message, [place[0]] if values is None else [place[0], tf.gather_nd(values, place)])

    return tf.cond(tf.reduce_any(wrong), fail, lambda: tf.constant(True))


def _fail(message: str, values: Sequence[tf.Tensor]) -> tf.Tensor:
    sentence = tf.strings.format(message, tuple(values))
    with tf.control_dependencies([tf.raw_ops.Assert(condition=False, data=[sentence])]):
        return tf.constant(False)
