"""The work of the training benchmarks, ours and the peers': texts, sizes, batches, the clock, the result.

Only numpy and the standard library, so that a peer's program can import it in an environment without this project.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np

# BERT-Base, uncased; the same keys as in a bert_config.json.
BASE = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
}
# The share of masked words in real data; max_predictions_per_seq is the limit.
MASKED_SHARE = 0.15
# The first step traces or compiles, the second still allocates.
WARM_UP = 2
# The share of the rows of Wikipedia that fill their maximum; the others are uniform between the shortest row and the
# length that gives the mean.
_FULL_ROWS, _SHORTEST = 0.25, 5
_LEAST_WORDS = 8  # of a sentence


def sentences(path: Path, part: slice = slice(None)) -> list[str]:
    """The sentences of a file or of a table of SST-2, without short sentences: of a share, in hundredths."""
    found = [line.partition("\t")[0] for line in path.read_text("utf-8").splitlines()]
    found = [line for line in found if len(line.split()) >= _LEAST_WORDS]
    return found[slice(*(share and len(found) * share // 100 for share in (part.start, part.stop)))]


def load_config(path: str | None) -> dict[str, Any]:
    """The sizes in a bert_config.json; the sizes of BERT-Base without a path."""
    if path is None:
        return dict(BASE)
    with open(path, encoding="utf-8") as stream:
        return BASE | json.load(stream)


def row_lengths(count: int, length: int, mean: int, seed: int = 1) -> np.ndarray:
    """The lengths of `count` rows, int [count]: a quarter has `length` tokens, the other lengths are uniform; shuffled.

    The lengths are the quantiles of the distribution, so their mean is `mean` up to rounding. If `mean` is 0, or too
    near to `length` for three quarters of short rows, all rows are full.
    """
    longest = 2 * (mean - _FULL_ROWS * length) / (1 - _FULL_ROWS) - _SHORTEST
    if not mean or longest > length:
        return np.full([count], length)
    places = (np.arange(count) + 0.5) / count / (1 - _FULL_ROWS)
    lengths = np.where(places < 1, np.round(_SHORTEST + (max(longest, _SHORTEST) - _SHORTEST) * places), length)
    return np.random.default_rng(seed).permutation(lengths.astype(np.int64))


def random_batches(
    config: dict[str, Any], count: int, batch: int, length: int, predictions: int, mean_length: int = 0
) -> list[dict[str, np.ndarray]]:
    """Batches of pretraining examples with random words, the same in every call.

    Returns:
      `count` batches, with the names of the records' features: int32 [batch, length], [batch, predictions], [batch];
      and float32 `masked_lm_weights`, which is 0 after the masked words of a row that is too short for `predictions`.
    """
    draw = np.random.default_rng(1)
    all_lengths = row_lengths(count * batch, length, mean_length).reshape(count, batch)
    batches = []
    for lengths in all_lengths:
        mask = np.arange(length) < lengths[:, None]
        masked = np.clip(np.round(MASKED_SHARE * lengths), 1, predictions) if mean_length else [predictions] * batch
        predicted = np.arange(predictions) < np.array(masked)[:, None]
        arrays = {
            "input_ids": draw.integers(1, config["vocab_size"], [batch, length]) * mask,
            "input_mask": mask,
            "segment_ids": (np.arange(length) >= lengths[:, None] // 2) * mask,
            "masked_lm_positions": draw.integers(0, lengths[:, None], [batch, predictions]) * predicted,
            "masked_lm_ids": draw.integers(1, config["vocab_size"], [batch, predictions]) * predicted,
            "next_sentence_labels": draw.integers(0, 2, [batch]),
        }
        batches.append({name: values.astype(np.int32) for name, values in arrays.items()})
        batches[-1]["masked_lm_weights"] = predicted.astype(np.float32)
    return batches


def time_steps(step: Callable[[Any], Any], batches: Sequence[Any]) -> list[float]:
    """The seconds of `step` for each batch after the first WARM_UP batches.

    `step` returns the loss, a number or what `float` waits for and makes a number.
    """
    seconds = []
    for batch in batches:
        began = time.perf_counter()
        loss = float(step(batch))
        seconds.append(time.perf_counter() - began)
        if loss != loss:
            raise ValueError("the loss is not a number")
    return seconds[WARM_UP:]


def time_peer(flags: argparse.Namespace, step: Callable[[Any], Any], batches: Sequence[Any]) -> dict[str, Any]:
    """Times a peer's steps.

    Args:
      flags: see `peer`.
      step: returns the loss without waiting for it, if the peer can.
      batches: the arguments of `step`.

    Returns:
      The `seconds` of steps that wait for their loss. With `flags.loop`, also `examples_per_second_in_loop`, of steps
      of which only the last one waits.
    """
    measured: dict[str, Any] = {"seconds": time_steps(step, batches)}
    if flags.loop:
        fastest = min(time_steps(lambda _: [step(batch) for batch in batches][-1], range(WARM_UP + 3)))
        measured["examples_per_second_in_loop"] = len(batches) * flags.batch_size / fastest
    return measured


def examples_per_second(batch: int, seconds: Sequence[float], mean_length: int = 0) -> float:
    """The rate by the median step, or by the mean step if the batches have different lengths."""
    return batch / (statistics.mean(seconds) if mean_length else statistics.median(seconds))


def result(batch: int, seconds: Sequence[float], mean_length: int = 0, **more: Any) -> str:
    """A result as a line of JSON, with the process' peak memory."""
    measured = {
        "examples_per_second": examples_per_second(batch, seconds, mean_length),
        "seconds": [round(value, 5) for value in seconds],
        "memory_gb": machine.peak_memory_gb(),
    }
    return json.dumps(measured | more)


def peer(description: str, variants: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Any], list]:
    """Parses a peer's command line; returns the flags, the sizes of the model, and the batches."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bert_config_file", help="sizes of the model; BERT-Base without it")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--max_predictions_per_seq", type=int, default=20)
    parser.add_argument("--mean_length", type=int, default=0, help="mean length of the rows; 0: all are full")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--loop", action="store_true", help="also time steps that do not wait for their loss")
    parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--write", metavar="FOLDER", help="write the step as HLO, with --variant=xla, and end")
    flags = parser.parse_args()
    config = load_config(flags.bert_config_file)
    shape = (flags.batch_size, flags.max_seq_length, flags.max_predictions_per_seq, flags.mean_length)
    return flags, config, random_batches(config, flags.steps + WARM_UP, *shape)
