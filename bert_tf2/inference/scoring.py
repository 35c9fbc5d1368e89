"""How probable a pretrained model finds texts: words given all other words of a text, and a text after another.

score          log P(token | all others), one pass for each token (Salazar et al., 2020, arXiv 1910.14659)
next_sentence  P(the second text follows the first), by the head that pretraining trains for this task
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_tf2 import heads, tokenization
from bert_tf2.data.rows import INPUTS, Row, pack, padded
from bert_tf2.inference.blanks import MASK, check_fits
from bert_tf2.support.containers import Text
from bert_tf2.support.errors import UserError
from bert_tf2.training import forward
from bert_tf2.training.programs import Filling, filling_for

_READ_AHEAD = 1 << 14  # tokens of rows that are sorted by length


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of a text, or of a pair of texts.

    Attributes:
      tokens: the tokens, without [CLS] and [SEP].
      log_probabilities: for each token, the logarithm (base e) of its probability, given all other tokens.
    """

    tokens: list[str]
    log_probabilities: list[float]

    @property
    def total(self) -> float:
        """The pseudo-log-likelihood of the text: the sum over its tokens; 0.0 for a text without tokens."""
        return sum(self.log_probabilities, 0.0)


def score(
    model: heads.MaskedLMModel,
    tokenizer: tokenization.FullTokenizer,
    texts: Mapping[str, Text],
    max_seq_length: int,
    batch_size: int,
    xla: str = "auto",
) -> Iterator[Score]:
    """Yields the score of each text, in order; the keys name the texts in errors. Raises UserError.

    A text must not have [MASK], nor more tokens than max_seq_length. `xla`: see programs.compiles_step.
    """
    for where, text in texts.items():
        if any(MASK in part for part in ((text,) if isinstance(text, str) else text)):
            raise UserError(f"{where}: holds {MASK}; a score is of whole texts, so fill the blank in first")
    encoded = [_encode(tokenizer, text, model, max_seq_length, where) for where, text in texts.items()]
    mask = tokenizer.vocab[MASK]
    count = sum(len(places) for _, _, places in encoded)
    filling = filling_for(model.distribute_strategy, count, batch_size, max_seq_length, xla)
    found = _in_order(_log_probability, model, _masked_once(encoded, mask), batch_size, filling)
    for tokens, _, places in encoded:
        yield Score([tokens[place] for place in places], [float(one) for one in itertools.islice(found, len(places))])


def next_sentence(
    model: heads.PretrainingModel,
    tokenizer: tokenization.FullTokenizer,
    pairs: Mapping[str, tuple[str, str]],
    max_seq_length: int,
    batch_size: int,
) -> Iterator[float]:
    """Yields for each pair the probability that the second text follows; see `score`."""
    encoded = (_encode(tokenizer, pair, model, max_seq_length, where) for where, pair in pairs.items())
    filling = filling_for(model.distribute_strategy, len(pairs), batch_size, max_seq_length)
    yield from map(float, _in_order(_is_next, model, ((row, 0, 0) for _, row, _ in encoded), batch_size, filling))


def _encode(
    tokenizer: tokenization.FullTokenizer, text: Text, model: heads.MaskedLMModel, max_seq_length: int, where: str
) -> tuple[list[str], Row, list[int]]:
    """Returns the tokens of a text or of a pair, their ids and segments, and the places of all but [CLS] and [SEP]."""
    parts = [tokenizer.tokenize(part) for part in ((text,) if isinstance(text, str) else text)]
    tokens, segment_ids = pack(*parts)
    check_fits(len(tokens), segment_ids[-1] + 1, model.config, max_seq_length, where)
    ends = {0, len(parts[0]) + 1, len(tokens) - 1}
    places = [place for place in range(len(tokens)) if place not in ends]
    return tokens, Row(tokenizer.convert_tokens_to_ids(tokens), segment_ids), places


def _masked_once(encoded: Sequence[tuple[list[str], Row, list[int]]], mask: int) -> Iterator[tuple[Row, int, int]]:
    """Yields for each token of each text the row with [MASK] in its place, the place, and the id of the token."""
    for _, (ids, segments), places in encoded:
        for place in places:
            yield Row([*ids[:place], mask, *ids[place + 1 :]], segments), place, ids[place]


def _in_order(
    graph: Callable,
    model: heads.MaskedLMModel,
    rows: Iterator[tuple[Row, int, int]],
    batch_size: int,
    filling: Filling | None,
) -> Iterator[np.float32]:
    """Yields a number for each of (row, place, id), in order."""
    names = (*INPUTS, "masked_lm_positions", "masked_lm_ids")
    run = forward.on_batches(graph, model, names=names, filling=filling)

    def compute(chosen: Sequence[tuple[Row, int, int]]) -> np.ndarray:
        given, places, ids = zip(*chosen, strict=True)
        batch = {**padded(given), "masked_lm_positions": np.int32([places]).T, "masked_lm_ids": np.int32([ids]).T}
        return run(batch).numpy()[: len(chosen)]

    return forward.in_order(rows, lambda row: len(row[0].input_ids), compute, batch_size, _READ_AHEAD)


@forward.graph_of
def _log_probability(model: heads.MaskedLMModel, batch: heads.Batch) -> tf.Tensor:
    """The logarithm of the probability of `masked_lm_ids` at `masked_lm_positions`, int32 [B, 1] each -> [B]."""
    logits = model(batch)[:, 0]  # [B, V]
    return tf.gather(logits, batch["masked_lm_ids"][:, 0], batch_dims=1) - tf.reduce_logsumexp(logits, axis=-1)


@forward.graph_of
def _is_next(model: heads.PretrainingModel, batch: heads.Batch) -> tf.Tensor:
    """The probability of the reference's label 0, "is next" -> [B]."""
    output = model.encode(batch, reads=batch["masked_lm_positions"])  # only [CLS] is read
    return tf.nn.softmax(model.next_sentence(output.pooled_output))[:, 0]
