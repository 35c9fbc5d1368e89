"""BERT's forward pass and losses in numpy and float64, implemented from the papers as the reference for tests.

It uses a plain dictionary of variables under their TensorFlow 1 names and shares no code with bert_tf2.
"""

from __future__ import annotations

import math

import numpy as np

ACTIVATIONS = {
    "gelu_erf": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.where(x > 0, x, 0.0),
    "tanh": np.tanh,
    "linear": lambda x: x,
}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def layer_norm(x, weights, prefix):
    centered = x - x.mean(-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-12)
    return scaled * weights[f"{prefix}/LayerNorm/gamma"] + weights[f"{prefix}/LayerNorm/beta"]


def dense(x, weights, prefix):
    return x @ weights[f"{prefix}/kernel"] + weights[f"{prefix}/bias"]


def attention(x, mask, weights, prefix, heads):
    """Computes one head after the other, each on its slice of the features."""
    query, key, value = (dense(x, weights, f"{prefix}/{name}") for name in ("query", "key", "value"))
    contexts = []
    for q, k, v in zip(*(np.split(part, heads, -1) for part in (query, key, value)), strict=True):
        scores = np.einsum("bfh,bth->bft", q, k) / np.sqrt(q.shape[-1]) - 10000.0 * (1 - mask[:, None, :])
        contexts.append(np.einsum("bft,bth->bfh", softmax(scores), v))
    return np.concatenate(contexts, -1)


def encoder(weights, config, input_ids, input_mask, segment_ids):
    """Returns embedding_output, the list of layers, pooled_output."""
    weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    words, types, positions = (weights[f"bert/embeddings/{of}_embeddings"] for of in ("word", "token_type", "position"))
    x = words[input_ids] + types[segment_ids] + positions[: input_ids.shape[1]]
    x = embedding_output = layer_norm(x, weights, "bert/embeddings")
    layers = []
    for i in range(config.num_hidden_layers):
        at = f"bert/encoder/layer_{i}"
        context = attention(x, input_mask, weights, f"{at}/attention/self", config.num_attention_heads)
        x = layer_norm(x + dense(context, weights, f"{at}/attention/output/dense"), weights, f"{at}/attention/output")
        inner = ACTIVATIONS[config.hidden_act](dense(x, weights, f"{at}/intermediate/dense"))
        x = layer_norm(x + dense(inner, weights, f"{at}/output/dense"), weights, f"{at}/output")
        layers.append(x)
    return embedding_output, layers, np.tanh(dense(x[:, 0], weights, "bert/pooler/dense"))


def masked_lm_log_probs(weights, config, sequence_output, positions):
    """[B, F, D], [B, P] -> [B, P, V]."""
    weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    states = np.stack([row[at] for row, at in zip(sequence_output, positions, strict=True)])
    states = ACTIVATIONS[config.hidden_act](dense(states, weights, "cls/predictions/transform/dense"))
    states = layer_norm(states, weights, "cls/predictions/transform")
    logits = states @ weights["bert/embeddings/word_embeddings"].T + weights["cls/predictions/output_bias"]
    return log_softmax(logits)


def output_layer(weights, prefix, states):
    return states @ np.float64(weights[f"{prefix}output_weights"]).T + weights[f"{prefix}output_bias"]


def picked(log_probs, labels):
    """-log p of each label: [..., L] and int [...] -> [...]."""
    return -np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]
