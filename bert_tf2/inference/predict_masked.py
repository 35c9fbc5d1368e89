"""Predicting masked words with a pretrained model: the implementation of predict_masked.py.

This is the pretraining task (paper, section 3.1, task 1), so no fine-tuning is needed: it is the quickest check of a
pretrained model.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2 import heads, tokenization
from bert_tf2.config import BertConfig, check_vocab_size
from bert_tf2.data.rows import INPUTS, Row, pack, padded
from bert_tf2.fast import fused_attention
from bert_tf2.fast.encoder import Plan, accelerate
from bert_tf2.inference import scoring
from bert_tf2.inference.blanks import MASK, check_blanks, check_fits, fill, split_segments, tokenize
from bert_tf2.inference.options import MaskedLMOptions
from bert_tf2.support import containers, files
from bert_tf2.support.errors import UserError, and_more, naming_arguments
from bert_tf2.support.settings import check_type
from bert_tf2.training import forward
from bert_tf2.training.devices import build_model, create_strategy, fuses_attention
from bert_tf2.training.options import PRECISIONS, DeviceOptions
from bert_tf2.training.programs import Filling, filling_for
from bert_tf2.weights import checkpoint, names, sources, text_rules
from bert_tf2.weights.base import Weights

_STANDARD_INPUT = "standard input"
_READ_AHEAD = 1 << 14  # tokens of a file that are sorted by length
_FRESH_WEIGHTS_SEED = 12345  # for variables that do not affect the answers


@dataclasses.dataclass(frozen=True)
class Prediction:
    """An entry of the vocabulary (`##ing` continues a word) and its probability."""

    token: str
    token_id: int
    probability: float


@dataclasses.dataclass(frozen=True)
class Mask:
    """One [MASK]: its index among the tokens, where [CLS] is 0, and the best pieces, most probable first."""

    position: int
    predictions: list[Prediction]


@dataclasses.dataclass(frozen=True)
class Answer:
    """One sentence, its masks from left to right, and the sentence with the best piece for each.

    The model predicts each [MASK] independently, so the best pieces of two masks need not fit together.
    """

    text: str
    masks: list[Mask]
    filled: str


class Encoded(NamedTuple):
    """A sentence as the model reads it."""

    text: str
    row: Row
    positions: list[int]  # of [MASK] in the row


def run(options: MaskedLMOptions) -> None:
    """Reads sentences from a file, the flags or standard input; prints the answers to standard output, in order.

    An invalid sentence ends the run after the answers to all sentences before it. Blank lines are skipped.
    """
    config, source = options.config, sources.open_weights(options.init_checkpoint)
    tokenizer = text_rules.load_tokenizer(options.vocab_file, options.do_lower_case, source=source)
    check_vocab_size(options.vocab_file, len(tokenizer.entries), config.vocab_size)
    name, lines = _open(options)
    model = load_model(config, source, options.precision)
    strategy = model.distribute_strategy
    accelerate(model, Plan(attention=fused_attention.attend if fuses_attention(options, strategy) else None))
    batch_size = options.batch_size
    if name == _STANDARD_INPUT and sys.stdin.isatty():
        print(f"Type a sentence with {MASK} and press Enter; Ctrl-D ends.", file=sys.stderr, flush=True)
        batch_size = 1
    if options.score:
        for where, text in _nonblank(lines, name):
            given = {where: tuple(split_segments(text))}
            (found,) = scoring.score(model, tokenizer, given, options.max_seq_length, batch_size, options.xla)
            print(_score_as_text(text, found, options.output_format), flush=True)
        return
    sentences = (
        encode(text, tokenizer, config, options.max_seq_length, where) for where, text in _nonblank(lines, name)
    )
    show = {"text": as_text, "json": as_json}[options.output_format]
    # The writer of the standard input may be waiting for an answer.
    read_ahead = 0 if name == _STANDARD_INPUT else _READ_AHEAD
    count = files.count_lines(name) if os.path.isfile(name) else 0
    filling = filling_for(strategy, count, batch_size, options.max_seq_length, options.xla)
    for answer in _answer(model, tokenizer, sentences, options.top_k, batch_size, read_ahead, filling):
        print(show(answer), flush=True)


def load_model(config: BertConfig, source: Weights, precision: str) -> heads.PretrainingModel:
    """Returns a model with these weights; `precision` is a key of training.options.PRECISIONS."""
    check_head(source.path, source.shapes)
    strategy = create_strategy(DeviceOptions(precision=precision))
    dtype = PRECISIONS[precision].policy
    model = build_model(strategy, lambda: heads.PretrainingModel(config, dtype=dtype), _FRESH_WEIGHTS_SEED)
    logging.info(checkpoint.initialize(model, source))
    return model


def check_head(path: str, variables: Container[str]) -> None:
    """Raises UserError if the weights at `path`, with these variables, have no masked-LM head."""
    if missing := names.missing(names.MASKED_LM, variables):
        raise UserError(
            f"{path}: has no masked-LM head ({and_more(missing, 3)} missing), so it cannot predict words; use a"
            f" checkpoint from pretraining, not one that was fine-tuned or stripped"
        )


def _open(options: MaskedLMOptions) -> tuple[str, Iterator[str]]:
    """Returns the name of the input, for errors, and its lines."""
    if options.sentence is not None:
        raw = (os.fsencode(text) + b"\n" for text in options.sentence)  # the bytes of the command line, UTF-8 or not
        return "--sentence", files.decode_lines(raw, "--sentence")
    if options.input_file in (None, "-"):
        if not hasattr(sys.stdin, "buffer"):  # None if it is closed
            raise UserError(f"{_STANDARD_INPUT}: cannot be read; give --input_file or --sentence")
        return _STANDARD_INPUT, files.decode_lines(sys.stdin.buffer, _STANDARD_INPUT)
    stream = files.open_binary(options.input_file)  # reports a wrong name before the model is loaded; may be a pipe
    return options.input_file, files.decode_lines(stream, options.input_file)


def _nonblank(lines: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
    """Yields (where, text) for each line that is not blank, without the blanks around it."""
    found = False
    for number, line in enumerate(lines, 1):
        if text := line.removeprefix("\ufeff").strip():  # some editors begin a file with U+FEFF
            found = True
            yield f"{name}, line {number}", text
    if not found:
        raise UserError(
            f"{name}: holds no sentence; write one a line, with {MASK} for a word to find, or whole for --score"
        )


@naming_arguments()
def fill_mask(
    model: heads.MaskedLMModel,
    tokenizer: tokenization.FullTokenizer,
    texts: str | Iterable[str],
    top_k: int,
    *,
    max_seq_length: int | None,
    batch_size: int,
) -> Answer | list[Answer]:
    """The answers to texts in any container, an Answer for a single text; see Bert.fill_mask for the arguments.

    Later calls with the same model and top_k are fast, because their graph exists.
    """
    given, alone = containers.texts(texts, pairs=False)
    config = model.config
    length = config.max_position_embeddings if max_seq_length is None else max_seq_length
    check_type("top_k", top_k, int)
    check_type("max_seq_length", length, int)
    check_type("batch_size", batch_size, int, low=1)
    check_vocab_size("the tokenizer's vocabulary", len(tokenizer.entries), config.vocab_size)
    sentences = (encode(text, tokenizer, config, length, f"text {number}") for number, text in enumerate(given, 1))
    filling = filling_for(model.distribute_strategy, len(given), batch_size, length)
    answers = _answer(model, tokenizer, sentences, top_k, batch_size, 0, filling)
    return next(answers) if alone else list(answers)


def encode(
    text: str, tokenizer: tokenization.FullTokenizer, config: BertConfig, max_seq_length: int, where: str
) -> Encoded:
    """Encodes a text with `[MASK]` as tokens and segments; ` ||| ` separates two segments, as in extract_features.py.

    Only `[MASK]` is special; `[SEP]` or `[CLS]` in the text is split like other text. Errors begin with `where`.
    """
    check_blanks(text, where)
    tokens, segment_ids = pack(*(tokenize(segment, tokenizer) for segment in split_segments(text)))
    check_fits(len(tokens), segment_ids[-1] + 1, config, max_seq_length, where)
    positions = [index for index, token in enumerate(tokens) if token == MASK]
    return Encoded(text, Row(tokenizer.convert_tokens_to_ids(tokens), segment_ids), positions)


def _answer(
    model: heads.PretrainingModel,
    tokenizer: tokenization.FullTokenizer,
    sentences: Iterable[Encoded],
    top_k: int,
    batch_size: int,
    read_ahead: int,
    filling: Filling | None,
) -> Iterator[Answer]:
    """Yields the answers in order; reads sentences of `read_ahead` tokens (or one batch) before the first answer."""
    # The embedding table may be larger than the vocabulary (rounded up), and the vocabulary may repeat an entry.
    nameless = np.float32([0.0 if n in tokenizer.inv_vocab else -np.inf for n in range(model.config.vocab_size)])
    if not 1 <= top_k <= np.isfinite(nameless).sum():
        raise UserError(f"--top_k={top_k}: must be from 1 to {len(tokenizer.inv_vocab)}, the size of the vocabulary")
    masked = None if np.isfinite(nameless).all() else tf.constant(nameless)
    run = forward.on_batches(_best_words, model, top_k, masked, names=_NAMES, filling=filling)

    def compute(batch: Sequence[Encoded]) -> Iterator[Answer]:
        for sentence, *best in zip(batch, *(array.numpy() for array in run(_features(batch))), strict=False):
            yield _describe(sentence, tokenizer, *best)

    yield from forward.in_order(sentences, lambda each: len(each.row.input_ids), compute, batch_size, read_ahead)


_NAMES = (*INPUTS, "masked_lm_positions")


def _features(batch: Sequence[Encoded]) -> dict[str, np.ndarray]:
    """The model's input: int32 [B, F], where F is the length of the longest sentence, and the positions [B, P]."""
    positions = keras.utils.pad_sequences([sentence.positions for sentence in batch], padding="post")
    return {**padded([sentence.row for sentence in batch]), "masked_lm_positions": positions}


@forward.graph_of
def _best_words(
    model: heads.PretrainingModel, top_k: int, nameless: tf.Tensor | None, batch: heads.Batch
) -> tuple[tf.Tensor, tf.Tensor]:
    """Probabilities and token ids, each [B, P, top_k], the best first; `nameless` [V] is added to the logits."""
    logits = model(batch)  # [B, P, V]
    if nameless is not None:
        logits += nameless
    best_logits, token_ids = tf.math.top_k(logits, top_k)
    # The softmax over all V words, computed only for the best words.
    return tf.exp(best_logits - tf.reduce_logsumexp(logits, axis=-1, keepdims=True)), token_ids


def _describe(sentence: Encoded, tokenizer: tokenization.FullTokenizer, probabilities, token_ids) -> Answer:
    """An answer from two arrays [P, top_k]; rows after the sentence's masks are padding."""
    masks = []
    rows = zip(sentence.positions, probabilities.tolist(), token_ids.tolist(), strict=False)
    for position, best_probabilities, best_ids in rows:
        words = tokenizer.convert_ids_to_tokens(best_ids)
        masks.append(Mask(position, list(map(Prediction, words, best_ids, best_probabilities))))
    return Answer(sentence.text, masks, fill(sentence.text, [mask.predictions[0].token for mask in masks]))


def as_text(answer: Answer) -> str:
    """An answer as readable text: the sentence, the words with probabilities, the filled sentence, an empty line."""
    lines = [answer.text]
    for number, mask in enumerate(answer.masks, 1):
        if len(answer.masks) > 1:
            lines.append(f"  {MASK} {number} of {len(answer.masks)}:")
        width = max(len(prediction.token) for prediction in mask.predictions)
        digits = len(str(len(mask.predictions)))
        lines += (
            f"  {rank:>{digits}}. {prediction.token:<{width}}  {prediction.probability:.4f}"
            for rank, prediction in enumerate(mask.predictions, 1)
        )
    return "\n".join([*lines, f"  = {answer.filled}", ""])


def _score_as_text(text: str, found: scoring.Score, output_format: str) -> str:
    """The sum and the sentence, or one line of JSON with the text, the sum and the attributes of Score as keys."""
    if output_format == "json":
        return json.dumps({"text": text, "total": found.total, **dataclasses.asdict(found)}, ensure_ascii=False)
    return f"{found.total:10.4f}  {text}"


def as_json(answer: Answer) -> str:
    """An answer as one line of JSON, with the attributes of Answer, Mask and Prediction as keys."""
    return json.dumps(dataclasses.asdict(answer), ensure_ascii=False)
