"""The examples of a corpus of ids, as the script makes them: drawn as numbers, and written as features.

One pass over the lengths of the sentences draws everything (`make`), and the tokens are put in place afterwards, many
examples at a time (`batches`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.data.varints import Ragged
from bert_tf2.pretraining import masking
from bert_tf2.pretraining.corpus import Corpus
from bert_tf2.pretraining.drawn_examples import DrawnExamples
from bert_tf2.pretraining.draws import Draws
from bert_tf2.pretraining.examples import ExampleMaker
from bert_tf2.pretraining.options import PretrainingDataOptions


def make(
    corpus: Corpus,
    tokenizer: tokenization.FullTokenizer,
    options: PretrainingDataOptions,
    draws: Draws,
    folder: str | None = None,
) -> DrawnExamples:
    """Draws all examples of a corpus.

    Args:
      corpus: the text.
      tokenizer: has the vocabulary.
      options: the settings.
      draws: the random numbers.
      folder: see DrawnExamples.
    """
    examples = DrawnExamples(0 if options.dynamic_masking else options.max_predictions_per_seq, folder)
    words = list(tokenizer.vocab.values())
    ExampleMaker(corpus, array("i", [tokenizer.vocab["[MASK]"]]), words, options, draws, examples.add).make_all()
    examples.order = array("i", draws.shuffled(len(examples)))
    return examples


def batches(
    examples: DrawnExamples,
    corpus: Corpus,
    tokenizer: tokenization.FullTokenizer,
    options: PretrainingDataOptions,
    rows_per_batch: int,
) -> Iterator[dict[str, np.ndarray | Ragged]]:
    """Yields the features of the records of all examples, in the order in which they are written.

    Args:
      examples, corpus, tokenizer, options: see `make`.
      rows_per_batch: the number of examples B of a batch; the last one may be smaller.

    Yields:
      name -> array of integers or float32: [B, max_seq_length], [B, max_predictions_per_seq] or [B, 1]; of examples
      without masks the features of `unmasked.kind`.
    """
    for first in range(0, len(examples), rows_per_batch):
        rows = examples.rows(np.asarray(examples.order[first : first + rows_per_batch]))
        yield _features(rows, corpus, tokenizer, options)


def _features(
    rows: np.ndarray, corpus: Corpus, tokenizer: tokenization.FullTokenizer, options: PretrainingDataOptions
) -> dict[str, np.ndarray | Ragged]:
    """The features of `DrawnExamples.rows`, padded with zeros."""
    length_a, length_b = (rows[name][:, None].astype(np.int64) for name in ("length_a", "length_b"))
    last_a, last = length_a + 1, length_a + length_b + options.num_delimiters - 1  # the places of the [SEP]
    place = np.arange(options.max_seq_length)
    in_b, used = place > last_a, place <= last
    source = np.where(in_b, rows["start_b"][:, None] - last_a - 1, rows["start_a"][:, None] - 1) + place
    input_ids = corpus.tokens.take(source, mode="clip")
    input_ids[:, 0] = tokenizer.vocab["[CLS]"]
    for end in (last_a, last):
        np.put_along_axis(input_ids, end, tokenizer.vocab["[SEP]"], axis=1)
    input_ids *= used
    if options.dynamic_masking:
        lengths = np.hstack([last_a + 1, last - last_a])
        features = {
            "input_ids": Ragged(input_ids, last[:, 0] + 1),
            "segment_lengths": Ragged(lengths, 1 + (lengths[:, 1] > 0)),
        }
        if options.do_whole_word_mask:
            is_text = used & (place > 0) & (place != last_a) & (place != last)
            begins = np.zeros(is_text.shape, bool)
            begins[is_text] = np.frombuffer(corpus.kinds, np.uint8)[source[is_text]] == masking.BEGINS
            begins[:, 1] = True
            if options.word_boundaries == "spaces":
                begins |= is_text & (place == last_a + 1)
            features["word_lengths"] = _word_lengths(begins, is_text)
    else:
        features = {
            "input_ids": input_ids,
            "input_mask": used.view(np.uint8),
            "segment_ids": (in_b & used).view(np.uint8),
            **_masks(rows, input_ids, length_a),
        }
    if options.objective == "mlm_nsp":
        features["next_sentence_labels"] = rows["random_next"][:, None]
    return features


def _masks(rows: np.ndarray, input_ids: np.ndarray, length_a: np.ndarray) -> dict[str, np.ndarray]:
    """The features of the masks, in the order of their positions; replaces tokens of `input_ids`."""
    used = np.arange(rows["masked"].shape[1]) < rows["num_masked"][:, None]
    positions = rows["masked"].astype(np.int64)
    positions += np.where(positions < length_a, 1, 2)  # [CLS] before A, and [SEP] before B
    # Sorted as pairs, in one number each; places that are not used come last.
    pairs = np.where(used, positions << 32 | (rows["replacements"].astype(np.int64) + 1), np.iinfo(np.int64).max)
    pairs.sort(axis=1)
    positions, replacements = (pairs >> 32) * used, (pairs & 0xFFFFFFFF) - 1
    labels = np.take_along_axis(input_ids, positions, axis=1) * used
    row, column = np.nonzero(used & (replacements != masking.SAME))
    input_ids[row, positions[row, column]] = replacements[row, column]
    return {
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": used.astype(np.float32),
    }


def _word_lengths(begins: np.ndarray, is_text: np.ndarray) -> Ragged:
    """The numbers of tokens of the words of each row, given where words begin and which tokens are text."""
    counts = begins.sum(axis=1)
    values = np.zeros((len(counts), counts.max()), np.int64)
    found = np.diff(np.flatnonzero(begins[is_text]), append=np.count_nonzero(is_text))
    values[np.arange(values.shape[1]) < counts[:, None]] = found
    return Ragged(values, counts)
