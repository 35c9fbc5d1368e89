"""One sentence through the encoder, step by step, with the model's own layers, whose local variables `seen` reads.

A `Trace` keeps only the states that enter each block, 50 MB for 24 layers of 512 tokens; what is within a block is
computed when someone looks at it (`block_steps`).

The letters of the shapes are those of modeling.py; B is 1 and left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf2 import modeling
from bert_tf2.config import BertConfig
from bert_tf2.layers import AddAndNorm, Dense
from bert_tf2.pretraining import blanks
from bert_tf2.tokenization import FullTokenizer


class Call(NamedTuple):
    """A call of a function: its arguments and local variables when it returned, and what it returned."""

    values: dict[str, Any]
    result: Any


@contextlib.contextmanager
def seen(*functions: Callable) -> Iterator[dict[Callable, list[Call]]]:
    """Collects the calls of each of these functions, in this thread and outside a graph, as they return."""
    calls: dict[Callable, list[Call]] = {function: [] for function in functions}
    by_code = {inspect.unwrap(function).__code__: found for function, found in calls.items()}

    def look(frame, event: str, result: Any) -> None:
        if event == "return" and (found := by_code.get(frame.f_code)) is not None:
            found.append(Call(dict(frame.f_locals), result))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@dataclasses.dataclass(frozen=True)
class Sentence:
    """What the model reads: F tokens, with an id, a segment and a bit of the mask for each."""

    tokens: tuple[str, ...]
    input_ids: tuple[int, ...]
    segment_ids: tuple[int, ...]
    input_mask: tuple[int, ...]


def read(
    text: str, text_b: str, padding: int, tokenizer: FullTokenizer, config: BertConfig, max_seq_length: int
) -> Sentence:
    """A text, or with `text_b` a pair, as predict_masked.py packs it, and that much padding. Raises UserError."""
    for where, part in (("The sentence", text), ("The second sentence", text_b)):
        blanks.check_spelling(part, where)
    tokens, segment_ids = blanks.pack([blanks.tokenize(part, tokenizer) for part in (text, text_b)])
    count = len(tokens)
    blanks.check_fits(count + padding, segment_ids[-1] + 1, config, max_seq_length, "The sentence")
    tokens = (*tokens, *["[PAD]"] * padding)
    ids = tokenizer.convert_tokens_to_ids([*tokens])
    return Sentence(tokens, tuple(ids), (*segment_ids, *[0] * padding), (*[1] * count, *[0] * padding))


@dataclasses.dataclass(frozen=True)
class Trace:
    """A sentence and its states."""

    sentence: Sentence  # what was read
    states: tuple[tf.Tensor, ...]  # L + 1 tensors [1, F, D]; number i enters block i
    mask_scores: tf.Tensor  # [1, 1, 1, T], added to the attention scores

    @property
    def sequence_output(self) -> tf.Tensor:
        return self.states[-1]


def runner(encoder: modeling.BertModel) -> Callable[[Sentence], Trace]:
    """A function that runs the encoder and keeps all its states, in one graph for sentences of all lengths."""
    row = tf.TensorSpec([1, None], tf.int32)

    @tf.function(input_signature=[row, row, row], autograph=False)
    def compute(input_ids, segment_ids, input_mask):
        output = encoder(input_ids, input_mask, segment_ids)
        return [output.embedding_output, *output.all_encoder_layers], modeling.mask_scores(input_mask)

    def run(sentence: Sentence) -> Trace:
        inputs = (sentence.input_ids, sentence.segment_ids, sentence.input_mask)
        states, mask_scores = compute(*(tf.constant([values], tf.int32) for values in inputs))
        return Trace(sentence, tuple(states), mask_scores)

    return run


class EmbeddingSteps(NamedTuple):
    """The embeddings of a sentence, each float32 [F, D]: three rows of tables, their sum, and its LayerNorm."""

    words: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    sum: np.ndarray
    norm: np.ndarray


def embedding_steps(encoder: modeling.BertModel, trace: Trace) -> EmbeddingSteps:
    sentence = trace.sentence
    with seen(modeling.Embeddings.add_up) as calls:
        summed = encoder.embeddings.add_up(tf.constant([sentence.input_ids]), tf.constant([sentence.segment_ids]))
    values = calls[modeling.Embeddings.add_up][0].values
    words, segments, positions = values["words"][0], values["segments"][0], values["positions"]
    return EmbeddingSteps(*map(np.asarray, (words, segments, positions, summed[0], trace.states[0][0])))


class BlockSteps(NamedTuple):
    """Every step of a block for a sentence, float32, in the order of computation."""

    states: np.ndarray  # [F, D], what enters
    query: np.ndarray  # [N, F, H], before it is scaled by 1 / sqrt(H)
    key: np.ndarray  # [N, F, H]
    value: np.ndarray  # [N, F, H]
    scores: np.ndarray  # [N, F, T], products of queries and keys, scaled
    masked_scores: np.ndarray  # [N, F, T], with the mask added
    probabilities: np.ndarray  # [N, F, T], their softmax; each row adds up to 1
    context: np.ndarray  # [N, F, H], means of the values
    attention_output: np.ndarray  # [F, D], after the dense layer that mixes the heads
    attention_sum: np.ndarray  # [F, D], added to what entered
    attention_norm: np.ndarray  # [F, D], its LayerNorm
    intermediate: np.ndarray  # [F, I], before the activation function
    activated: np.ndarray  # [F, I], after it
    output: np.ndarray  # [F, D], after the dense layer back to D
    output_sum: np.ndarray  # [F, D], added to attention_norm
    output_norm: np.ndarray  # [F, D], its LayerNorm: what enters the next block


def block_steps(block: modeling.TransformerBlock, states: tf.Tensor, mask_scores: tf.Tensor) -> BlockSteps:
    """What the block computes of states [1, F, D] and mask scores [1, 1, 1, T]; the computation itself is looked at."""
    with seen(Dense.linear, Dense.call, AddAndNorm.call, modeling.attention_scores, modeling.average_values) as calls:
        output_norm = block(states, mask_scores)
    query, key, value, attended, intermediate, output = (call.result for call in calls[Dense.linear])
    heads = (modeling.split_heads(x, block.config.num_attention_heads) for x in (query, key, value))
    attention_sum, output_sum = (call.values["added"] for call in calls[AddAndNorm.call])
    (scores,), (average,) = calls[modeling.attention_scores], calls[modeling.average_values]
    steps = (
        *(states, *heads, scores.values["products"], scores.result, average.values["probabilities"], average.result),
        *(attended, attention_sum, calls[AddAndNorm.call][0].result, intermediate, calls[Dense.call][4].result),
        *(output, output_sum, output_norm),
    )
    return BlockSteps(*(np.asarray(step[0]) for step in steps))


class HeadSummary(NamedTuple):
    """Where a head looks on average over the tokens of a sentence, without padding; shares of 1."""

    itself: float
    previous: float  # the token before
    following: float  # the token after
    first: float  # [CLS]
    separators: float  # [SEP]
    spread: float  # to how many tokens it looks, exp of the entropy: 1 for a single one, T for all alike


def summarize_heads(probabilities: np.ndarray, sentence: Sentence) -> list[HeadSummary]:
    """One summary for each head of [N, F, T]."""
    count = sum(sentence.input_mask)
    p = probabilities[:, :count, :count]
    ends = [index for index, token in enumerate(sentence.tokens[:count]) if token == "[SEP]"]
    entropy = -np.sum(p * np.log(np.maximum(p, 1e-30)), axis=-1)  # [N, F]

    def diagonal(offset: int) -> np.ndarray:
        return np.diagonal(p, offset, axis1=1, axis2=2).sum(axis=1) / count

    columns = (diagonal(0), diagonal(-1), diagonal(1), p[:, :, 0].mean(axis=1), p[:, :, ends].sum(axis=2).mean(axis=1))
    rows = np.stack([*columns, np.exp(entropy).mean(axis=1)], axis=1)
    return [HeadSummary(*row) for row in rows.tolist()]
