"""Long texts: the rows of a batch are divided into windows, and the answers for the windows of a text are pooled.

    row       [CLS] a b c d e [SEP]                                              [B, F]
    windows   [CLS] a b c [SEP], [CLS] c d e [SEP]        `Windows.divide`       [N, W]
    logits    of each window                                                     [N, L]
    answer    mean or maximum of the windows' probabilities     `Windows.pool`   [B, L]

In a pair, the second text is divided, and the first text, cut to half of the room, is in each window of the pair.

Probabilities are pooled, not logits: a window has one vote, however large its logits are, so a window that is sure by
mistake cannot outvote all others. The loss of a text is the loss of its pooled probabilities. Its gradient is largest
at the windows that support the label, so windows without evidence need not learn the label of the whole text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from bert_tf2.data.rows import INPUTS
from bert_tf2.shapes import get_shape_list, whole_numbers

LEAST = 4  # tokens of a window: [CLS], a token and two [SEP] of a pair
POOLINGS = ("mean", "max")
_AT_A_TIME = 64  # windows that a model without gradients gets at a time

Batch = Mapping[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Windows:
    """How long texts are divided, and how the answers for their windows are pooled."""

    length: int  # the maximum number of tokens of a window, including special tokens
    stride: int  # the number of tokens between the starts of two windows
    pooling: str = "mean"  # of POOLINGS

    @property
    def kept(self) -> dict[str, Any]:
        """The settings of task.json."""
        return {"max_seq_length": self.length, "doc_stride": self.stride, "pooling": self.pooling}

    def divide(self, batch: Batch) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Divides rows `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]` of any length, with padding at the end.

        `batch` has the features of a model of `heads`, int [B, F]. Returns the features of the windows of all rows, in
        order, int32 [N, W], and the number of windows of each row, int32 [B]. Windows start as in rows.windows.
        """
        input_ids = whole_numbers("input_ids", batch["input_ids"])
        mask, types = batch.get("input_mask"), batch.get("segment_ids", batch.get("token_type_ids"))
        input_mask = tf.ones_like(input_ids) if mask is None else tf.cast(tf.cast(mask, tf.bool), tf.int32)
        segment_ids = tf.zeros_like(input_ids) if types is None else whole_numbers("segment_ids", types)
        total = tf.reduce_sum(input_mask, 1)
        of_second = tf.reduce_sum(segment_ids * input_mask, 1)  # b and its [SEP]
        is_pair = of_second > 0
        first = total - of_second  # [CLS] a [SEP]
        before = tf.where(is_pair, tf.minimum(first - 2, (self.length - 3) // 2), 0)
        size = tf.where(is_pair, of_second - 1, total - 2)
        room = self.length - 2 - tf.where(is_pair, before + 1, 0)
        step = tf.minimum(room, self.stride)
        counts = 1 + (tf.maximum(size - room, 0) + step - 1) // step
        row = tf.repeat(tf.range(tf.size(counts)), counts)  # of each window
        number = tf.range(tf.size(row)) - tf.gather(tf.cumsum(counts, exclusive=True), row)
        columns = (is_pair, before, size, room, step, first, total)
        is_pair, before, size, room, step, first, total = (tf.gather(each, row)[:, tf.newaxis] for each in columns)
        start = number[:, tf.newaxis] * step
        size = tf.clip_by_value(size - start, 0, room)
        content = tf.where(is_pair, before + 2, 1)  # the position of the first token that was divided
        end = content + size  # the position of the last [SEP]
        position = tf.range(tf.reduce_max(tf.concat([end[:, 0], [0]], 0)) + 1)[tf.newaxis]  # [1, W]
        source = position + tf.where(position < content, 0, tf.where(is_pair, first, 1) + start - content)
        source = tf.where(is_pair & (position == content - 1), first - 1, source)
        source = tf.where(position == end, total - 1, source)
        is_token = tf.cast(position <= end, tf.int32)
        source = tf.clip_by_value(source, 0, get_shape_list(input_ids)[1] - 1)
        places = tf.stack([tf.broadcast_to(row[:, tf.newaxis], tf.shape(source)), source], -1)
        found = (tf.gather_nd(each, places) * is_token for each in (input_ids, input_mask, segment_ids))
        return dict(zip(INPUTS, found, strict=True)), counts

    def pool(self, logits: tf.Tensor, counts: tf.Tensor, kind: str) -> tf.Tensor:
        """Pools the logits of windows, float32 [N, L], by texts with the numbers of windows `counts`, to [B, L].

        `kind` "label": logarithms of pooled probabilities; "labels": logits, whose sigmoid is the pooled probability;
        "number": pooled numbers.
        """
        column = tf.range(tf.reduce_max(tf.concat([counts, [1]], 0)))
        places = tf.cumsum(counts, exclusive=True)[:, tf.newaxis] + column
        is_there = (column < counts[:, tf.newaxis])[..., tf.newaxis]  # [B, most windows, 1]
        places = tf.minimum(places, tf.maximum(get_shape_list(logits)[0] - 1, 0))
        logits = tf.gather(logits, places)  # [B, most windows, L]
        if self.pooling == "max":
            logits = tf.nn.log_softmax(logits) if kind == "label" else logits
            return tf.reduce_max(tf.where(is_there, logits, logits.dtype.min), 1)
        number = tf.cast(counts, logits.dtype)[:, tf.newaxis]

        def log_mean(logs: tf.Tensor) -> tf.Tensor:
            return tf.reduce_logsumexp(tf.where(is_there, logs, logs.dtype.min), 1) - tf.math.log(number)

        if kind == "number":
            return tf.reduce_sum(tf.where(is_there, logits, 0.0), 1) / number
        if kind == "label":
            return log_mean(tf.nn.log_softmax(logits))
        return log_mean(tf.math.log_sigmoid(logits)) - log_mean(tf.math.log_sigmoid(-logits))


def few_at_a_time(compute: Callable[[Batch], tf.Tensor], windows: Batch, shape: Sequence[int | tf.Tensor]) -> tf.Tensor:
    """Computes float32 [N, *shape] of the windows, a few at a time, so that a long text takes little memory."""

    def add(begin: tf.Tensor, found: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        part = {name: values[begin : begin + _AT_A_TIME] for name, values in windows.items()}
        return begin + _AT_A_TIME, tf.concat([found, compute(part)], 0)

    count = tf.shape(windows["input_ids"])[0]
    sizes = [None if tf.is_tensor(size) else size for size in shape]
    invariants = (tf.TensorShape([]), tf.TensorShape([None, *sizes]))
    start = (tf.constant(0), tf.zeros([0, *shape]))
    return tf.while_loop(lambda begin, _: begin < count, add, start, invariants, parallel_iterations=1)[1]
