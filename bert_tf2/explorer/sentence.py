"""What the page asks about one sentence; everything is computed for the text that stands in the request."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf2 import heads, tokenization
from bert_tf2.explorer import arguments as read
from bert_tf2.explorer import masked_words, positions, trace, two_sentences
from bert_tf2.explorer.arrays import pack
from bert_tf2.explorer.opened import Explorer
from bert_tf2.pretraining import blanks
from bert_tf2.support.errors import UserError

_TRACES = 4
"""How many sentences are kept."""
_BLOCKS = 2
"""How many blocks are kept with all their steps: 75 MB each for 512 tokens and 16 heads."""
TOP_K = 10
_GUESSES = 3  # words for the state of each layer
_MOST_TO_SEARCH = 64  # tokens; with more, it takes too long to compute all heads for the first look
_MAP = 48  # rows and columns of the small maps of all heads, at most
_MOST_TO_MAP = 128  # tokens; with more, all heads are not computed unless someone asks for them
MOST_PADDING = 8


def routes(explorer: Explorer) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    view = _View(explorer)
    view.warm_up()
    return {
        "/api/sentence": view.sentence,
        "/api/embeddings": view.embeddings,
        "/api/maps": view.maps,
        "/api/attention": view.attention,
        "/api/block": view.block,
        "/api/words": view.words,
        "/api/outputs": view.outputs,
        "/api/pair": view.pair,
        "/api/pair_attention": view.pair_attention,
    }


class _View:
    """The handlers. All take `text`, `text_b` and `padding`; those of a layer or a token its number, from 0."""

    def __init__(self, explorer: Explorer):
        self._explorer = explorer
        self._bert = explorer.bert
        self._trace = functools.lru_cache(_TRACES)(trace.runner(self._bert.encoder))
        self._block = functools.lru_cache(_BLOCKS)(self._compute_block)
        self._heads = functools.lru_cache(_BLOCKS)(self._summarize_heads)

    def warm_up(self) -> None:
        """Builds the graph, and uses each operation once: a second that the first sentence would take longer."""
        nothing = {"text": "", "token": 0, "layer": 0, "head": 0}
        for handler in (self.attention, *([] if masked_words.without_head(self._bert.model) else [self.words])):
            handler(nothing)

    def _compute_block(self, sentence: trace.Sentence, layer: int) -> trace.BlockSteps:
        found = self._trace(sentence)
        return trace.block_steps(self._bert.encoder.blocks[layer], found.states[layer], found.mask_scores)

    def _summarize_heads(self, sentence: trace.Sentence, layer: int) -> list[dict[str, float]]:
        found = trace.summarize_heads(self._block(sentence, layer).probabilities, sentence)
        return [summary._asdict() for summary in found]

    def _read(self, arguments: dict[str, Any]) -> trace.Sentence:
        return trace.read(
            read.text(arguments, "text"),
            read.text(arguments, "text_b"),
            read.whole_number(arguments, "padding", 0, MOST_PADDING, default=0),
            self._bert.tokenizer,
            self._bert.config,
            self._explorer.max_seq_length,
        )

    def _token(self, arguments: dict[str, Any], sentence: trace.Sentence, name: str = "token") -> int:
        return read.whole_number(arguments, name, 0, len(sentence.tokens) - 1)

    def _layer(self, arguments: dict[str, Any]) -> int:
        return read.whole_number(arguments, "layer", 0, self._bert.config.num_hidden_layers - 1)

    def sentence(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The tokens, and the words before they were cut into pieces.

        Raises:
          UserError: there is no text, or see trace.read.
        """
        if not read.text(arguments, "text").strip() and not read.text(arguments, "text_b").strip():
            raise UserError("The sentence is empty. Type one, for example: The capital of France is [MASK].")
        sentence = self._read(arguments)
        basic = self._bert.tokenizer.basic_tokenizer
        with self._explorer.lock:
            self._trace(sentence)  # so that what is asked next is fast
            layer, head = self._first_look(sentence)
        return {
            "layer": layer,
            "head": head,
            "tokens": sentence.tokens,
            "input_ids": sentence.input_ids,
            "segment_ids": sentence.segment_ids,
            "input_mask": sentence.input_mask,
            "words": [_words(read.text(arguments, name), basic) for name in ("text", "text_b")],
            "masks": [index for index, token in enumerate(sentence.tokens) if token == blanks.MASK],
            "trained_positions": self._trained_positions,
        }

    @functools.cached_property
    def _trained_positions(self) -> int:
        """How many positions look trained; all of them where the model has no table, or none looks trained."""
        table = self._bert.encoder.embeddings.position_embeddings
        count = self._bert.config.max_position_embeddings
        return count if table is None else positions.trained_rows(table.value.numpy()) or count

    def _first_look(self, sentence: trace.Sentence) -> tuple[int, int]:
        """The layer and the head in which the first [MASK] looks most at one other word; 0, 0 without one.

        Its neighbors do not count: many heads look at the token before or after, whatever it is.
        """
        tokens = sentence.tokens
        if blanks.MASK not in tokens or len(tokens) > _MOST_TO_SEARCH:
            return 0, 0
        mask = tokens.index(blanks.MASK)
        words = [place for place, token in enumerate(tokens) if token[0] != "[" and any(map(str.isalnum, token))]
        words = [place for place in words if abs(place - mask) > 1]
        if not words:
            return 0, 0
        of_layers = (self._block(sentence, layer) for layer in range(self._bert.config.num_hidden_layers))
        most = [block.probabilities[:, mask, words].max(-1) for block in of_layers]  # for each layer [N]
        layer, head = np.unravel_index(np.argmax(most), np.shape(most))
        return int(layer), int(head)

    def embeddings(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """For a token, each step of the embeddings as a vector [D]; for all tokens their norms [F]."""
        sentence = self._read(arguments)
        token = self._token(arguments, sentence)
        with self._explorer.lock:
            steps = trace.embedding_steps(self._bert.encoder, self._trace(sentence))
        vectors = {name: pack(rows[token]) for name, rows in steps._asdict().items()}
        norms = {name: pack(np.linalg.norm(rows, axis=-1)) for name, rows in steps._asdict().items()}
        return {"vectors": vectors, "norms": norms}

    def attention(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """One head of one layer: Q, K, V [F, H], scores and probabilities [F, T]; and summaries of all its heads."""
        sentence = self._read(arguments)
        layer = self._layer(arguments)
        head = read.whole_number(arguments, "head", 0, self._bert.config.num_attention_heads - 1)
        with self._explorer.lock:
            steps = self._block(sentence, layer)
            summaries = self._heads(sentence, layer)
            mask_scores = self._trace(sentence).mask_scores.numpy().reshape(-1)
        parts = ("query", "key", "value", "scores", "probabilities", "context")
        return {
            **{name: pack(getattr(steps, name)[head]) for name in parts},
            "mask_scores": pack(mask_scores),
            "heads": summaries,
            # Where each head looks most, for each token: [N, F].
            "most": steps.probabilities.argmax(axis=-1).tolist(),
            "most_weights": pack(steps.probabilities.max(axis=-1)),
        }

    def maps(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The attention of all heads as small maps [L, N, S, S]: S tokens, or the largest weights of as many parts.

        `maps` is null for a long text, unless the argument `all` is 1.
        """
        sentence = self._read(arguments)
        if len(sentence.tokens) > _MOST_TO_MAP and not read.whole_number(arguments, "all", 0, 1, default=0):
            return {"maps": None}
        starts = np.unique(np.linspace(0, len(sentence.tokens), min(_MAP, len(sentence.tokens)), False, dtype=int))
        maps = []
        for layer in range(self._bert.config.num_hidden_layers):
            with self._explorer.lock:
                weights = self._block(sentence, layer).probabilities
            maps.append(np.maximum.reduceat(np.maximum.reduceat(weights, starts, axis=1), starts, axis=2))
        return {"maps": pack(maps)}

    def block(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The steps of one layer for one token, as vectors [D] or [I]."""
        sentence = self._read(arguments)
        layer, token = self._layer(arguments), self._token(arguments, sentence)
        with self._explorer.lock:
            steps = self._block(sentence, layer)
        names = [name for name in steps._fields if name not in ("query", "key", "value", "context")]
        vectors = {name: pack(getattr(steps, name)[token]) for name in names if getattr(steps, name).ndim == 2}
        vectors["context"] = pack(steps.context[:, token].reshape(-1))  # the heads side by side, [D]
        return vectors

    def words(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The way of a token's state through the masked-LM head, and the best words, also of the layers before.

        Raises:
          UserError: the weights have no such head.
        """
        model = self._bert.model
        if problem := masked_words.without_head(model):
            raise UserError(problem)
        sentence = self._read(arguments)
        token = self._token(arguments, sentence)
        with self._explorer.lock:
            found = self._trace(sentence)
            steps = masked_words.head_steps(model, found.sequence_output[0, token])
            of_layers = masked_words.guesses(model, tf.stack([states[0, token] for states in found.states]), _GUESSES)
            own = sentence.input_ids[token] if sentence.tokens[token] != blanks.MASK else None
            words = masked_words.best_words(model, steps, min(TOP_K, self._bert.config.vocab_size), also=own)
        name = self._bert.tokenizer.inv_vocab
        return {
            **{step: pack(getattr(steps, step)) for step in ("state", "dense", "transformed", "norm")},
            "words": [
                {
                    **word._asdict(),
                    "token": name[word.token_id],
                    "row": pack(word.row),
                    "neighbors": [{"token": name[near], "cosine": cosine} for near, cosine in word.neighbors],
                }
                for word in words
            ],
            "layers": [[{"token": name[id_], "probability": share} for id_, share in best] for best in of_layers],
            "unbiased_best": [name[index] for index in np.argsort(-steps.products, kind="stable")[:TOP_K].tolist()],
        }

    def outputs(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the other heads say: probabilities by label, of the text or of each token."""
        sentence = self._read(arguments)
        model = self._bert.model
        with self._explorer.lock:
            found = self._trace(sentence)
            return {"outputs": _outputs(model, self._bert.encoder, found, self._labels(model))}

    def pair(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The sentence beside another one, `other_text` with the same `text_b` and `padding`.

        Returns:
          The `tokens` of the other; `pairs`, the M places that are compared (see two_sentences.align); `states`
          [L + 1, M], the distances of the states; `heads` [L, N], the share of attention that moved; `words`, for each
          pair of two [MASK] what both may be; `outputs` and `other_outputs`, what the other heads say of the
          whole text.
        """
        sentence, other = self._both(arguments)
        pairs = two_sentences.align(sentence.tokens, other.tokens)
        places, others = np.transpose(pairs)
        with self._explorer.lock:
            states = [
                two_sentences.state_distances(ours[0].numpy()[places], theirs[0].numpy()[others])
                for ours, theirs in zip(self._trace(sentence).states, self._trace(other).states, strict=True)
            ]
            layers = range(self._bert.config.num_hidden_layers)
            heads_ = [
                two_sentences.attention_changes(*self._weights_of_both(sentence, other, number)) for number in layers
            ]
            words = [self._words_of_both(sentence, other, pair) for pair in self._masks_of_both(sentence, other, pairs)]
            texts = (self._outputs_of_text(sentence), self._outputs_of_text(other))
        return {
            "tokens": other.tokens,
            "pairs": pairs,
            "states": pack(states),
            "heads": pack(heads_),
            "words": words,
            "outputs": texts[0],
            "other_outputs": texts[1],
        }

    def pair_attention(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The weights [M, M] of a `layer` and a `head` for both sentences of `pair`, between the places compared."""
        sentence, other = self._both(arguments)
        layer = self._layer(arguments)
        head = read.whole_number(arguments, "head", 0, self._bert.config.num_attention_heads - 1)
        with self._explorer.lock:
            ours, theirs = self._weights_of_both(sentence, other, layer)
        return {"weights": pack(ours[head]), "other_weights": pack(theirs[head])}

    def _both(self, arguments: dict[str, Any]) -> tuple[trace.Sentence, trace.Sentence]:
        other = read.text(arguments, "other_text")
        if not other.strip():
            raise UserError("The other sentence is empty. Type one, for example with one word changed.")
        return self._read(arguments), self._read({**arguments, "text": other})

    def _weights_of_both(self, sentence: trace.Sentence, other: trace.Sentence, layer: int) -> list[np.ndarray]:
        """Two times [N, M, M]."""
        both = zip((sentence, other), np.transpose(two_sentences.align(sentence.tokens, other.tokens)), strict=True)
        return [self._block(each, layer).probabilities[:, places][:, :, places] for each, places in both]

    def _masks_of_both(self, sentence: trace.Sentence, other: trace.Sentence, pairs: list[tuple[int, int]]) -> list:
        if masked_words.without_head(self._bert.model):
            return []
        return [(a, b) for a, b in pairs if sentence.tokens[a] == other.tokens[b] == blanks.MASK]

    def _words_of_both(self, sentence: trace.Sentence, other: trace.Sentence, pair: tuple[int, int]) -> dict[str, Any]:
        """The words that one of them finds likely, each with its `probability` in the sentence and in the `other`."""
        states = [self._trace(each).sequence_output[0, at] for each, at in zip((sentence, other), pair, strict=True)]
        ours, theirs = (masked_words.head_steps(self._bert.model, state).probabilities for state in states)  # [V]
        best = np.argsort(-np.maximum(ours, theirs), kind="stable")[:TOP_K].tolist()
        name = self._bert.tokenizer.inv_vocab
        words = [{"token": name[id_], "probability": float(ours[id_]), "other": float(theirs[id_])} for id_ in best]
        return {"pair": pair, "words": words}

    def _outputs_of_text(self, sentence: trace.Sentence) -> list[dict[str, Any]]:
        model = self._bert.model
        found = _outputs(model, self._bert.encoder, self._trace(sentence), self._labels(model))
        return [output for output in found if output["of"] == "text"]

    def _labels(self, model: Any) -> list[str]:
        """The labels of the outputs, or numbers where no file states them."""
        if self._bert.labels and self._bert.labels.labels:
            return [*self._bert.labels.labels]
        return [f"label {index}" for index in range(getattr(model, "num_labels", 0))]


def _words(text: str, basic: tokenization.BasicTokenizer) -> list[str]:
    """The words of a text before they are cut into pieces; [MASK] is one."""
    first, *others = (basic.tokenize(part) for part in text.split(blanks.MASK))
    return [*first, *(word for part in others for word in (blanks.MASK, *part))]


def _outputs(model: Any, encoder: Any, found: trace.Trace, labels: list[str]) -> list[dict[str, Any]]:
    """One entry for each head besides the masked words: `title`, `of` ("text" or "tokens"), `labels`, `values`."""
    states = found.sequence_output  # [1, F, D]
    if isinstance(model, heads.PretrainingModel):
        names = ["the second text follows the first", "it comes from elsewhere"]
        return [_of_text("Next sentence", names, tf.nn.softmax(model.next_sentence(encoder.pooler(states[:, 0]))))]
    if isinstance(model, heads.ClassifierModel):
        logits = model.output_layer(encoder.pooler(states[:, 0]))
        if model.regression:
            return [_of_text("Regression", ["score"], logits)]
        return [_of_text("Classifier", labels, tf.sigmoid(logits) if model.multi_label else tf.nn.softmax(logits))]
    if isinstance(model, heads.TaggingModel):
        return [_of_tokens("Tagger", labels, tf.nn.softmax(model.output_layer(states)[0]))]
    if isinstance(model, heads.SpanModel):
        logits = model.output_layer(states)[0] + tf.reshape(found.mask_scores, [-1, 1])  # no answer in padding
        return [_of_tokens("Answer", ["starts here", "ends here"], tf.nn.softmax(logits, axis=0))]
    return []


def _of_text(title: str, labels: list[str], values: tf.Tensor) -> dict[str, Any]:
    """An entry for values [1, L] of the whole text."""
    return {"title": title, "of": "text", "labels": labels, "values": pack(values[0])}


def _of_tokens(title: str, labels: list[str], values: tf.Tensor) -> dict[str, Any]:
    """An entry for values [F, L], a row for each token."""
    return {"title": title, "of": "tokens", "labels": labels, "values": pack(values)}
