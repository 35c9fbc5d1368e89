"""The way of one state through the masked-LM head: from D numbers to a probability of every word.

    state -> dense, activation -> LayerNorm -> dot product with each row of the embedding table -> + bias -> softmax

`tests/explorer/test_masked_words.py` compares the result with the model's own logits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf2 import heads, modeling


class HeadSteps(NamedTuple):
    """Every step of the head for one state, float32."""

    state: np.ndarray  # [D], of sequence_output
    dense: np.ndarray  # [D], before the activation function
    transformed: np.ndarray  # [D], after it
    norm: np.ndarray  # [D], the LayerNorm, which the rows of the table are compared with
    products: np.ndarray  # [V], dot products with the rows
    bias: np.ndarray  # [V]
    logits: np.ndarray  # [V], their sum
    probabilities: np.ndarray  # [V], the softmax of the logits


def output_table(model: heads.MaskedLMModel) -> tf.Tensor:
    """The rows that states are compared with, [V, D]."""
    return tf.convert_to_tensor(model.get_output_table())


def head_steps(model: heads.MaskedLMModel, state: tf.Tensor) -> HeadSteps:
    """Computes heads.MaskedLMHead.call in steps, for a state [D]."""
    head = model.masked_lm
    dense = tf.nn.bias_add(tf.matmul(state[tf.newaxis], head.transform.kernel), head.transform.bias)  # [1, D]
    transformed = head.transform.activation(dense)
    norm = head.layer_norm(transformed)
    products = tf.linalg.matvec(output_table(model), norm[0])  # [V]
    bias = tf.convert_to_tensor(head.output_bias.value)
    logits = products + bias
    steps = (state, dense[0], transformed[0], norm[0], products, bias, logits, tf.nn.softmax(logits))
    return HeadSteps(*map(np.asarray, steps))


def guesses(model: heads.MaskedLMModel, states: tf.Tensor, count: int) -> list[list[tuple[int, float]]]:
    """What the head would answer to each of several states [M, D]: ids and probabilities, the best first.

    Only the states of the last block are trained for it; the others show how an answer comes about (nostalgebraist's
    "logit lens", 2020).
    """
    probabilities = tf.nn.softmax(model.masked_lm(states, output_table(model)))  # [M, V]
    best, ids = tf.math.top_k(probabilities, min(count, probabilities.shape[-1]))
    return [[*zip(*row, strict=True)] for row in zip(ids.numpy().tolist(), best.numpy().tolist(), strict=True)]


def best_words(model: heads.MaskedLMModel, steps: HeadSteps, top_k: int, also: int | None = None) -> list[dict]:
    """The most probable words, the best first; then the word with the id `also`, if it is not among them.

    Each with its entries of HeadSteps; its `row` of the table, float32 [D], and the `cosine` of that and the state.
    """
    ids = np.argsort(-steps.logits, kind="stable")[:top_k].tolist()
    if also is not None and also not in ids:
        ids.append(also)
    rows = tf.gather(output_table(model), ids).numpy()
    length = float(np.linalg.norm(steps.norm)) or 1.0
    return [
        {
            "token_id": token_id,
            "product": float(steps.products[token_id]),
            "bias": float(steps.bias[token_id]),
            "logit": float(steps.logits[token_id]),
            "probability": float(steps.probabilities[token_id]),
            "cosine": float(steps.products[token_id]) / (length * (float(np.linalg.norm(row)) or 1.0)),
            "row": row,
        }
        for token_id, row in zip(ids, rows, strict=True)
    ]


def without_head(model: modeling.BertModel | heads.MaskedLMModel) -> str | None:
    """Why a model predicts no words, in a sentence; None if it does."""
    if isinstance(model, heads.MaskedLMModel):
        return None
    return "These weights have no masked-LM head (cls/predictions), so no words can be predicted."
