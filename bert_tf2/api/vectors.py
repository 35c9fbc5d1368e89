"""Vectors of texts: the methods `embed`, `similarity` and `search` of all models that have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf2 import modeling, tokenization
from bert_tf2.config import BertConfig
from bert_tf2.inference import extract_features
from bert_tf2.support import containers
from bert_tf2.support.containers import Text
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import check_type
from bert_tf2.weights.sentence_vectors import Prompts, SentenceVectors

_VECTORS_AT_ONCE = 4096  # vectors that are compared at once


class Found(NamedTuple):
    """The texts that are closest to queries, the closest first."""

    indexes: np.ndarray  # int64 [N, K], in the corpus
    scores: np.ndarray  # float32 [N, K], cosines


class Vectors:
    """The base class of models that make vectors of texts."""

    config: BertConfig
    tokenizer: tokenization.FullTokenizer
    encoder: modeling.BertModel
    _sentence_vectors: SentenceVectors  # the settings of vectors, if a call gives no others
    _prompts: Prompts

    def embed(
        self,
        texts: Text | Iterable[Text],
        pooling: str | None = None,
        *,
        normalize: bool | None = None,
        layers: int | Sequence[int] = -1,
        batch_size: int = 32,
        max_seq_length: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Contextual embeddings, as extract_features.py computes them.

        An EmbeddingModel, and a folder of sentence-transformers, have defaults of their own for `pooling`, `normalize`,
        `max_seq_length` and `prompt_name`.

        Args:
          texts: N texts, each a string or a tuple of two strings (text_a, text_b); or a single text or tuple.
          pooling: "mean" (the default) or "max" over all tokens, including [CLS] and [SEP]; "cls" for the first token;
            "none" for all tokens.
          normalize: whether each vector gets length 1; not with "none".
          layers: one or several layers, from 0 to num_hidden_layers - 1; negative numbers count from the end. The
            states of several layers are concatenated.
          batch_size: number of texts per batch.
          max_seq_length: texts are cut to this number of tokens, including [CLS] and [SEP]; defaults to
            max_position_embeddings.
          prompt: a text that is put before each text, or before the first text of a pair; "" for no prompt.
          prompt_name: the name of a prompt in the files of the folder, in place of `prompt`.

        Returns:
          float32 [N, D] (D is hidden_size times the number of layers). With pooling "none", a list of N arrays
          [tokens, D]. A single text returns [D] or [tokens, D].

        Raises:
          UserError: a setting or a text is wrong, or this process is a fork of one that has used TensorFlow.
        """
        check_type("normalize", normalize, bool, optional=True)
        given, alone = containers.texts(texts)
        usual = SentenceVectors() if None not in (pooling, normalize, max_seq_length) else self._sentence_vectors
        pooling = usual.pooling if pooling is None else pooling
        longest = min(usual.max_seq_length or self.config.max_position_embeddings, self.config.max_position_embeddings)
        vectors = extract_features.embed(
            self.encoder,
            self.tokenizer,
            given,
            pooling=pooling,
            layers=layers if isinstance(layers, Iterable) else [layers],
            max_seq_length=longest if max_seq_length is None else max_seq_length,
            batch_size=batch_size,
            prompt=self._prompts.choose(prompt, prompt_name),
            pools_prompt=self._prompts.are_pooled,
        )
        if pooling != "none" and (usual.normalize if normalize is None else normalize):
            vectors = unit(vectors)
        return vectors[0] if alone else vectors

    def similarity(self, a: Any, b: Any, *, batch_size: int = 32) -> np.ndarray:
        """The cosine of each vector of `a` with each vector of `b`.

        Args:
          a, b: texts, or vectors from `embed`: float [N, D] and [M, D]; or a single text or vector.
          batch_size: number of texts per batch.

        Returns:
          float32 [N, M], without the axis of a single text or vector.

        Raises:
          UserError: as `embed`; or the vectors have different sizes.
        """
        (first, first_alone), (second, second_alone) = (self._unit(given, batch_size) for given in (a, b))
        _check_widths(first, second)
        return (first @ second.T)[0 if first_alone else slice(None), ..., 0 if second_alone else slice(None)]

    def search(self, queries: Any, corpus: Any, top_k: int = 10, *, batch_size: int = 32) -> Found:
        """The texts of a corpus that are closest to each query, by the cosine of their vectors.

        The corpus is read in blocks, so that neither the cosines nor the vectors of all texts are in memory at once. A
        corpus that is searched again is better given as vectors, which may be a file that numpy maps into memory.

        Args:
          queries, corpus: texts, or vectors from `embed`: float [N, D] and [M, D]; or a single query.
          top_k: the number K of texts to find; all M if there are fewer.
          batch_size: number of texts per batch.

        Returns:
          Found(indexes, scores), [N, K] each; for a single query [K] each.

        Raises:
          UserError: as `similarity`.
        """
        check_type("top_k", top_k, int, low=1)
        wanted, alone = self._unit(queries, batch_size)
        best = Closest(wanted, top_k)
        for block in _blocks(corpus):
            best.add(self._unit(block, batch_size)[0])
        found = best.found()
        return Found(*(part[0] for part in found)) if alone else found

    def _unit(self, given: Any, batch_size: int) -> tuple[np.ndarray, bool]:
        """Vectors of length 1 for texts or vectors, float32 [N, D], and whether a single text or vector was given."""
        if _is_array(given):
            found = np.asarray(given, np.float32)
            alone = found.ndim == 1
            if found.ndim not in (1, 2):
                raise UserError(f"vectors: of shape {[*found.shape]}; [N, D] is needed, or [D] for a single vector")
            if not np.isfinite(found).all():
                raise UserError("vectors: have nan or inf, which cannot be compared; leave these vectors out")
        else:
            texts, alone = containers.texts(given)
            found = self.embed(texts, batch_size=batch_size)
        return unit(found[np.newaxis] if found.ndim == 1 else found), alone


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors [..., D] divided by their lengths."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


class Closest:
    """The K candidates that are closest to each of N vectors, of candidates that come in blocks."""

    def __init__(self, vectors: np.ndarray, top_k: int):
        """`vectors`: float32 [N, D], of length 1."""
        self._vectors, self._most, self._count = vectors, top_k, 0
        self._indexes, self._scores = np.zeros([len(vectors), 0], np.int64), np.zeros([len(vectors), 0], np.float32)

    def add(self, block: np.ndarray) -> None:
        """Compares the next candidates, float32 [M, D], of length 1."""
        _check_widths(self._vectors, block)
        most = min(self._most, self._indexes.shape[1] + len(block))
        kept = np.zeros([len(self._vectors), most], np.int64), np.zeros([len(self._vectors), most], np.float32)
        for start in range(0, len(self._vectors), _VECTORS_AT_ONCE):
            part = slice(start, start + _VECTORS_AT_ONCE)
            scores = np.concatenate([self._scores[part], self._vectors[part] @ block.T], axis=1)
            numbers = np.broadcast_to(np.arange(self._count, self._count + len(block)), [len(scores), len(block)])
            indexes = np.concatenate([self._indexes[part], numbers], axis=1)
            if 0 < most < scores.shape[1]:
                chosen = np.sort(np.argpartition(-scores, most - 1, axis=1)[:, :most], axis=1)
                indexes, scores = (np.take_along_axis(values, chosen, axis=1) for values in (indexes, scores))
            order = np.argsort(-scores, axis=1, kind="stable")  # equal scores keep the order of the corpus
            for whole, values in zip(kept, (indexes, scores), strict=True):
                whole[part] = np.take_along_axis(values, order, axis=1)
        self._indexes, self._scores = kept
        self._count += len(block)

    def found(self) -> Found:
        return Found(self._indexes, self._scores)


def _is_array(given: Any) -> bool:
    """Whether vectors are given, and not texts."""
    return any(kind in str(getattr(given, "dtype", "")) for kind in ("float", "int"))


def _blocks(corpus: Any) -> Iterator[Any]:
    given = corpus if _is_array(corpus) else containers.texts(corpus, "corpus")[0]
    if _is_array(corpus) and len(corpus.shape) != 2:
        raise UserError(f"corpus: of shape {[*corpus.shape]}; vectors [M, D] are needed")
    for start in range(0, len(given), _VECTORS_AT_ONCE):
        yield given[start : start + _VECTORS_AT_ONCE]


def _check_widths(first: np.ndarray, second: np.ndarray) -> None:
    if first.shape[-1] != second.shape[-1]:
        raise UserError(f"vectors of {first.shape[-1]} and of {second.shape[-1]} numbers cannot be compared")
