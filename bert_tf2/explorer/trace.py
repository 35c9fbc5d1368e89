"""Runs one sentence through the model step by step, with the model's own layers.

A `Trace` keeps only the states that enter each block, 50 MB for 24 layers of 512 tokens. The steps within a block or
the masked-LM head are computed on request (`block_steps`, `word_steps`).

See modeling.py for the letters of the shapes; B is 1 and left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf2 import modeling
from bert_tf2.config import BertConfig
from bert_tf2.data.rows import pack
from bert_tf2.heads import MaskedLMModel
from bert_tf2.inference import blanks
from bert_tf2.layers import class_scores
from bert_tf2.tokenization import FullTokenizer


class Sentence(NamedTuple):
    """The input of the model: F tokens, each with an id, a segment and a bit of the mask."""

    tokens: tuple[str, ...]
    input_ids: tuple[int, ...]
    segment_ids: tuple[int, ...]
    input_mask: tuple[int, ...]


def read(text: str, text_b: str, padding: int, tokenizer: FullTokenizer, config: BertConfig) -> Sentence:
    """Packs a text (or a pair) as predict_masked.py does, with `padding` tokens of padding. Raises UserError."""
    for where, part in (("The sentence", text), ("The second sentence", text_b)):
        blanks.check_spelling(part, where)
    tokens, segment_ids = pack(*(blanks.tokenize(part, tokenizer) for part in (text, text_b)))
    count = len(tokens)
    blanks.check_fits(count + padding, segment_ids[-1] + 1, config, config.max_position_embeddings, "The sentence")
    tokens = (*tokens, *["[PAD]"] * padding)
    ids = tokenizer.convert_tokens_to_ids([*tokens])
    return Sentence(tokens, tuple(ids), (*segment_ids, *[0] * padding), (*[1] * count, *[0] * padding))


class Trace(NamedTuple):
    """A sentence and its states."""

    sentence: Sentence
    states: tuple[tf.Tensor, ...]  # L + 1 tensors [1, F, D]; number i enters block i
    mask_scores: tf.Tensor  # [1, 1, 1, T], added to the attention scores


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
    sentence, tables = trace.sentence, encoder.embeddings
    words = tf.gather(tables.word_embeddings.value, sentence.input_ids)
    segments = tf.gather(tables.token_type_embeddings.value, sentence.segment_ids)
    positions = tables.position_embeddings.value[: len(sentence.tokens)]
    (summed,) = tables.add_up(tf.constant([sentence.input_ids]), tf.constant([sentence.segment_ids]))
    return EmbeddingSteps(*map(np.asarray, (words, segments, positions, summed, trace.states[0][0])))


class BlockSteps(NamedTuple):
    """Every step of a block for a sentence, float32, in the order of computation."""

    states: np.ndarray  # [F, D], the input of the block
    query: np.ndarray  # [N, F, H], before it is scaled by 1 / sqrt(H)
    key: np.ndarray  # [N, F, H]
    value: np.ndarray  # [N, F, H]
    scores: np.ndarray  # [N, F, T], products of queries and keys, scaled
    masked_scores: np.ndarray  # [N, F, T], with the mask added
    probabilities: np.ndarray  # [N, F, T], their softmax; each row adds up to 1
    context: np.ndarray  # [N, F, H], means of the values
    attention_output: np.ndarray  # [F, D], after the dense layer that mixes the heads
    attention_sum: np.ndarray  # [F, D], added to states
    attention_norm: np.ndarray  # [F, D], its LayerNorm
    intermediate: np.ndarray  # [F, I], before the activation function
    activated: np.ndarray  # [F, I], after it
    output: np.ndarray  # [F, D], after the dense layer back to D
    output_sum: np.ndarray  # [F, D], added to attention_norm
    output_norm: np.ndarray  # [F, D], its LayerNorm: the input of the next block


def block_steps(block: modeling.TransformerBlock, states: tf.Tensor, mask_scores: tf.Tensor) -> BlockSteps:
    """The steps of a block for states [1, F, D] and mask scores [1, 1, 1, T]."""
    attention = block.attention
    layers = (attention.query, attention.key, attention.value)
    query, key, value = (modeling.split_heads(layer(states), block.config.num_attention_heads) for layer in layers)
    scaled = query * attention.query_scale
    scores = modeling.attention_scores(scaled, key, tf.zeros_like(mask_scores))
    masked_scores = modeling.attention_scores(scaled, key, mask_scores)
    context = modeling.average_values(masked_scores, value, rate=0.0)
    attended = block.attention_output(modeling.merge_heads(context))
    attention_norm = block.attention_norm(states, attended)
    intermediate = block.intermediate.linear(attention_norm)
    activated = block.intermediate.activation(intermediate)
    output = block.output_dense(activated)
    steps = (
        *(states, query, key, value, scores, masked_scores, tf.nn.softmax(masked_scores), context),
        *(attended, states + attended, attention_norm, intermediate, activated),
        *(output, attention_norm + output, block.output_norm(attention_norm, output)),
    )
    return BlockSteps(*(np.asarray(step[0]) for step in steps))


class HeadSummary(NamedTuple):
    """Where a head looks on average over the tokens of a sentence, without padding; shares of 1."""

    itself: float
    previous: float  # the token before
    following: float  # the token after
    first: float  # [CLS]
    separators: float  # [SEP]
    spread: float  # the effective number of tokens, exp of the entropy: 1 for a single token, T for all tokens alike


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


class WordSteps(NamedTuple):
    """The steps of a state through the masked-LM head, from D numbers to a probability of every word, float32."""

    state: np.ndarray  # [D], of the last block
    dense: np.ndarray  # [D], before the activation function
    transformed: np.ndarray  # [D], after it
    norm: np.ndarray  # [D], the LayerNorm, which is compared with the rows of the table
    products: np.ndarray  # [V], dot products with the rows
    bias: np.ndarray  # [V]
    logits: np.ndarray  # [V], their sum
    probabilities: np.ndarray  # [V], the softmax of the logits


def word_steps(model: MaskedLMModel, state: tf.Tensor) -> WordSteps:
    """The steps of the head for a state [D]."""
    head = model.masked_lm
    dense = head.transform.linear(state[tf.newaxis])
    transformed = head.transform.activation(dense)
    norm = head.layer_norm(transformed)
    products = class_scores(norm, model.get_output_table())
    logits = products + head.output_bias
    steps = (dense[0], transformed[0], norm[0], products[0], head.output_bias, logits[0], tf.nn.softmax(logits)[0])
    return WordSteps(*map(np.asarray, (state, *steps)))


def guesses(model: MaskedLMModel, states: tf.Tensor, count: int) -> tuple[list[list[tuple[int, float]]], list[float]]:
    """The answers of the head to each of several states [M, D]: ids and probabilities, the best first.

    Also returns the probability that each state gives to the best word of the last state. The head is trained only on
    the states of the last block; the other states show how an answer develops (nostalgebraist's "logit lens", 2020).
    """
    probabilities = tf.nn.softmax(model.masked_lm(states, model.get_output_table()))  # [M, V]
    best, ids = tf.math.top_k(probabilities, min(count, probabilities.shape[-1]))
    rows = [[*zip(*row, strict=True)] for row in zip(ids.numpy().tolist(), best.numpy().tolist(), strict=True)]
    return rows, tf.gather(probabilities, ids[-1, 0], axis=1).numpy().tolist()


def best_words(model: MaskedLMModel, steps: WordSteps, top_k: int, also: int | None) -> list[dict]:
    """The most probable words, the best first; then the word with the id `also` if it is not among them.

    Each word has its entries of WordSteps, its `row` of the table, float32 [D], and the `cosine` of the row and the
    state.
    """
    ids = np.argsort(-steps.logits, kind="stable")[:top_k].tolist()
    if also is not None and also not in ids:
        ids.append(also)
    rows = tf.gather(model.get_output_table(), ids).numpy()
    lengths = np.linalg.norm(steps.norm) * np.linalg.norm(rows, axis=1)
    return [
        {
            "token_id": token_id,
            "product": float(steps.products[token_id]),
            "bias": float(steps.bias[token_id]),
            "logit": float(steps.logits[token_id]),
            "probability": float(steps.probabilities[token_id]),
            "cosine": float(steps.products[token_id] / (length or 1.0)),
            "row": row,
        }
        for token_id, row, length in zip(ids, rows, lengths, strict=True)
    ]
