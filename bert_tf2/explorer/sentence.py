"""The answers to requests of the page about one sentence; everything is computed for the text in the request.

Two sentences side by side, for example with one word changed, show where in the model the change arrives: the tokens of
both, the distances of the states, and the heads that look elsewhere.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf2 import heads, tokenization
from bert_tf2.api.bert import Bert
from bert_tf2.explorer import trace
from bert_tf2.explorer.model import Explorer, Handler, encode, read_number, read_text
from bert_tf2.inference import blanks
from bert_tf2.support.errors import UserError

_TRACES = 4  # the number of cached sentences
_BLOCKS = 2  # the number of cached blocks with all their steps: 75 MB each for 512 tokens and 16 heads
TOP_K = 10
_GUESSES = 3  # the number of words for the state of each layer
_MOST_TO_SEARCH = 64  # tokens; computing all heads of a longer sentence takes too long for the first look
_MAP = 48  # the maximum number of rows and columns of the small maps of all heads
_MOST_TO_MAP = 128  # tokens; all heads of a longer sentence are computed only on request
MOST_PADDING = 8


def routes(explorer: Explorer) -> dict[str, Handler]:
    view = _View(explorer)
    names = "sentence embeddings maps attention block words outputs pair pair_attention"
    return {f"/api/{name}": getattr(view, name) for name in names.split()}


class _View:
    """The handlers. All take `text`, `text_b` and `padding`; some take the number of a layer, head or token, from 0."""

    def __init__(self, explorer: Explorer):
        self._bert = explorer.bert
        self._trace = functools.lru_cache(_TRACES)(trace.runner(self._bert.encoder))
        self._block = functools.lru_cache(_BLOCKS)(self._compute_block)

    def _compute_block(self, sentence: trace.Sentence, layer: int) -> trace.BlockSteps:
        found = self._trace(sentence)
        return trace.block_steps(self._bert.encoder.blocks[layer], found.states[layer], found.mask_scores)

    def _read(self, arguments: dict[str, Any], *numbers: str) -> list[Any]:
        """The sentence of a request, and the numbers with these names: "token", "layer", "head"."""
        config = self._bert.config
        texts = (read_text(arguments, name) for name in ("text", "text_b"))
        padding = read_number(arguments, "padding", MOST_PADDING, default=0)
        sentence = trace.read(*texts, padding, self._bert.tokenizer, config)
        counts = {"token": len(sentence.tokens), "layer": config.num_hidden_layers, "head": config.num_attention_heads}
        return [sentence, *(read_number(arguments, name, counts[name] - 1) for name in numbers)]

    def sentence(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The tokens, and the words before they were cut into pieces."""
        if not read_text(arguments, "text").strip() and not read_text(arguments, "text_b").strip():
            raise UserError("The sentence is empty. Type one, for example: The capital of France is [MASK].")
        (sentence,) = self._read(arguments)
        basic = self._bert.tokenizer.basic_tokenizer
        self._trace(sentence)  # cached, so that the next requests are fast
        layer, head = self._first_look(sentence)
        return {
            "layer": layer,
            "head": head,
            **sentence._asdict(),
            "words": [_words(read_text(arguments, name), basic) for name in ("text", "text_b")],
            "masks": [index for index, token in enumerate(sentence.tokens) if token == blanks.MASK],
        }

    def _first_look(self, sentence: trace.Sentence) -> tuple[int, int]:
        """The layer and head where the first [MASK] looks most at a word that is not its neighbor; 0, 0 if unknown."""
        tokens = sentence.tokens
        if blanks.MASK not in tokens or len(tokens) > _MOST_TO_SEARCH:
            return 0, 0
        mask = tokens.index(blanks.MASK)
        far = (place for place in range(len(tokens)) if abs(place - mask) > 1)
        words = [place for place in far if tokens[place][0] != "[" and any(map(str.isalnum, tokens[place]))]
        layers = range(self._bert.config.num_hidden_layers)
        weights = [self._block(sentence, layer).probabilities[:, mask, words] for layer in layers]
        most = np.max(weights, axis=-1, initial=0.0)  # [L, N]
        return divmod(int(np.argmax(most)), self._bert.config.num_attention_heads)

    def embeddings(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Each step of the embeddings: the vector [D] of a token, and the norms [F] of all tokens."""
        sentence, token = self._read(arguments, "token")
        steps = trace.embedding_steps(self._bert.encoder, self._trace(sentence))._asdict()
        return {
            "vectors": {name: encode(rows[token]) for name, rows in steps.items()},
            "norms": {name: encode(np.linalg.norm(rows, axis=-1)) for name, rows in steps.items()},
        }

    def attention(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """One head of a layer: Q, K, V [F, H], scores and probabilities [F, T]; and summaries of the layer's heads."""
        sentence, layer, head = self._read(arguments, "layer", "head")
        steps = self._block(sentence, layer)
        parts = ("query", "key", "value", "scores", "probabilities", "context")
        return {
            **{name: encode(getattr(steps, name)[head]) for name in parts},
            "mask_scores": encode(tf.reshape(self._trace(sentence).mask_scores, [-1])),
            "heads": [summary._asdict() for summary in trace.summarize_heads(steps.probabilities, sentence)],
            # The token at which each head looks most, for each token: [N, F].
            "most": steps.probabilities.argmax(axis=-1).tolist(),
            "most_weights": encode(steps.probabilities.max(axis=-1)),
        }

    def maps(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """All heads as `maps` [L, N, S, S], for S tokens or parts of the text; null for a long text without `all`."""
        (sentence,) = self._read(arguments)
        if len(sentence.tokens) > _MOST_TO_MAP and not read_number(arguments, "all", 1, default=0):
            return {"maps": None}
        starts = np.unique(np.linspace(0, len(sentence.tokens), min(_MAP, len(sentence.tokens)), False, dtype=int))
        maps = []
        for layer in range(self._bert.config.num_hidden_layers):
            weights = self._block(sentence, layer).probabilities
            maps.append(np.maximum.reduceat(np.maximum.reduceat(weights, starts, axis=1), starts, axis=2))
        return {"maps": encode(maps)}

    def block(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The steps of one layer for one token, as vectors [D] or [I]."""
        sentence, layer, token = self._read(arguments, "layer", "token")
        steps = self._block(sentence, layer)
        vectors = {name: encode(values[token]) for name, values in steps._asdict().items() if values.ndim == 2}
        return {**vectors, "context": encode(steps.context[:, token].reshape(-1))}  # the heads side by side, [D]

    def words(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The steps of a token's state through the masked-LM head, and the best words after it and after each layer."""
        model = self._bert.model
        sentence, token = self._read(arguments, "token")
        found = self._trace(sentence)
        steps = trace.word_steps(model, found.states[-1][0, token])
        of_layers, shares = trace.guesses(model, tf.stack([states[0, token] for states in found.states]), _GUESSES)
        own = sentence.input_ids[token] if sentence.tokens[token] != blanks.MASK else None
        words = trace.best_words(model, steps, min(TOP_K, self._bert.config.vocab_size), also=own)
        return {
            **{step: encode(getattr(steps, step)) for step in ("state", "dense", "transformed", "norm")},
            "words": [{**word, "token": self._name(word["token_id"]), "row": encode(word["row"])} for word in words],
            "layers": [[{"token": self._name(id_), "probability": share} for id_, share in best] for best in of_layers],
            "answer_by_layer": shares,
        }

    def _name(self, token_id: int) -> str:
        return self._bert.tokenizer.inv_vocab.get(token_id, "(none)")  # the table may have more rows

    def outputs(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The answers of the other heads: probabilities by label, for the text or for each token."""
        (sentence,) = self._read(arguments)
        return {"outputs": _outputs(self._bert, self._trace(sentence))}

    def pair(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Compares the sentence with another sentence, `other_text` with the same `text_b` and `padding`.

        `pairs`: the M places that are compared (see align). `states` [L + 1, M]: the distances of the states. `heads`
        [L, N]: the share of attention that moved. `words`: the probable words of both for each pair of two [MASK].
        """
        sentence, other = self._both(arguments)
        pairs = align(sentence.tokens, other.tokens)
        places, others = np.transpose(pairs)
        ours, theirs = self._trace(sentence), self._trace(other)
        states = [
            state_distances(one[0].numpy()[places], two[0].numpy()[others])
            for one, two in zip(ours.states, theirs.states, strict=True)
        ]
        layers = range(self._bert.config.num_hidden_layers)
        moved = [attention_changes(*self._weights_of_both(sentence, other, layer)) for layer in layers]
        masks = [pair for pair in pairs if sentence.tokens[pair[0]] == other.tokens[pair[1]] == blanks.MASK]
        outputs, other_outputs = (
            [output for output in _outputs(self._bert, each) if output["of"] == "text"] for each in (ours, theirs)
        )
        return {
            "tokens": other.tokens,
            "pairs": pairs,
            "states": encode(states),
            "heads": encode(moved),
            "words": [
                self._words_of_both(ours, theirs, pair) for pair in masks if "masked_lm" in self._bert.model.heads
            ],
            "outputs": outputs,
            "other_outputs": other_outputs,
        }

    def pair_attention(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The weights [M, M] of a `layer` and a `head` between the compared places, for both sentences of `pair`."""
        sentence, other, layer, head = self._both(arguments, "layer", "head")
        ours, theirs = self._weights_of_both(sentence, other, layer)
        return {"weights": encode(ours[head]), "other_weights": encode(theirs[head])}

    def _both(self, arguments: dict[str, Any], *numbers: str) -> list[Any]:
        other = read_text(arguments, "other_text")
        if not other.strip():
            raise UserError("The other sentence is empty. Type one, for example with one word changed.")
        return [*self._read(arguments), *self._read({**arguments, "text": other}, *numbers)]

    def _weights_of_both(self, sentence: trace.Sentence, other: trace.Sentence, layer: int) -> list[np.ndarray]:
        """The weights [N, M, M] of a layer for each of both sentences."""
        both = zip((sentence, other), np.transpose(align(sentence.tokens, other.tokens)), strict=True)
        return [self._block(each, layer).probabilities[:, places][:, :, places] for each, places in both]

    def _words_of_both(self, one: trace.Trace, other: trace.Trace, pair: tuple[int, int]) -> dict[str, Any]:
        """The likely words of both sentences, with their `probability` in the sentence and in the `other` sentence."""
        states = [each.states[-1][0, place] for each, place in zip((one, other), pair, strict=True)]
        ours, theirs = (trace.word_steps(self._bert.model, state).probabilities for state in states)  # [V]
        best = np.argsort(-np.maximum(ours, theirs), kind="stable")[:TOP_K].tolist()
        words = [
            {"token": self._name(id_), "probability": float(ours[id_]), "other": float(theirs[id_])} for id_ in best
        ]
        return {"pair": pair, "words": words}


def _words(text: str, basic: tokenization.BasicTokenizer) -> list[str]:
    """The words of a text before they are cut into pieces; [MASK] is a word."""
    first, *others = (basic.tokenize(part) for part in text.split(blanks.MASK))
    return [*first, *(word for part in others for word in (blanks.MASK, *part))]


def _outputs(bert: Bert, found: trace.Trace) -> list[dict[str, Any]]:
    """The head other than the masked-LM head, if any: `values` [L] for the "text", or [F, L] for its "tokens"."""
    model, states = bert.model, found.states[-1]  # [1, F, D]
    labels = [*bert.labels.labels] if bert.labels else []
    labels = labels or [f"label {index}" for index in range(getattr(model, "num_labels", 0))]
    if isinstance(model, heads.PretrainingModel):
        title, of, labels = "Next sentence", "text", ["the second text follows the first", "it comes from elsewhere"]
        values = tf.nn.softmax(model.next_sentence(bert.encoder.pooler(states[:, 0])))
    elif isinstance(model, heads.ClassifierModel):
        title, of, values = "Classifier", "text", model.output_layer(bert.encoder.pooler(states[:, 0]))
        if model.regression:
            title, labels = "Regression", ["score"]
            values = getattr(tf, (bert.labels and bert.labels.activation) or "identity")(values)
        else:
            values = tf.sigmoid(values) if model.multi_label else tf.nn.softmax(values)
    elif isinstance(model, heads.TaggingModel):
        title, of, values = "Tagger", "tokens", tf.nn.softmax(model.output_layer(states))
    elif isinstance(model, heads.SpanModel):
        title, of, labels = "Answer", "tokens", ["starts here", "ends here"]
        logits = model.output_layer(states) + tf.reshape(found.mask_scores, [1, -1, 1])  # excludes padding
        values = tf.nn.softmax(logits, axis=1)
    else:
        return []
    return [{"title": title, "of": of, "labels": labels, "values": encode(values[0])}]


def align(tokens: Sequence[str], others: Sequence[str]) -> list[tuple[int, int]]:
    """The places of tokens that are compared, as pairs (place in the first, place in the other), in order.

    If the sentences have the same length, all places are compared; otherwise the places before and after the part that
    differs: align(["a", "b", "c"], ["a", "x", "y", "c"]) is [(0, 0), (2, 3)].
    """
    if len(tokens) == len(others):
        return [(place, place) for place in range(len(tokens))]
    first = _equal_at_start(tokens, others)
    last = _equal_at_start(tokens[first:][::-1], others[first:][::-1])
    ends = [(len(tokens) - back, len(others) - back) for back in range(last, 0, -1)]
    return [*((place, place) for place in range(first)), *ends]


def _equal_at_start(tokens: Sequence[str], others: Sequence[str]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(tokens, others, strict=False)))


def state_distances(states: np.ndarray, others: np.ndarray) -> np.ndarray:
    """1 - cosine of the same rows of both arrays [M, D]: [M], from 0 (the same direction) to 2."""
    states, others = states.astype(np.float64), others.astype(np.float64)
    products = np.sum(states * others, axis=-1)
    lengths = np.linalg.norm(states, axis=-1) * np.linalg.norm(others, axis=-1)
    return np.maximum(0.0, np.round(1.0 - products / np.maximum(lengths, 1e-30), 9))


def attention_changes(probabilities: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The share of attention that each head moved to other tokens, averaged over the rows: [N, M, M] -> [N]."""
    return np.abs(probabilities - others).sum(axis=-1).mean(axis=-1) / 2
