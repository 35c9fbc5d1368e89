"""The examples of `examples.make_instances` as numbers only: several times faster, in a fraction of the memory.

`examples` and `masking` say what an example is, and are the functions for code of one's own: any tokenizer, any
generator of random numbers, tokens as text. This module makes the same examples, draw for draw, for the script. The
tests compare the two.

What is drawn depends on lengths only, and with whole words on where words begin. So one pass over the lengths of the
sentences draws everything (`make`), and the tokens are put in place afterwards, many examples at a time (`batches`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.pretraining import whole_sentences
from bert_tf2.pretraining.corpus import Corpus
from bert_tf2.pretraining.drawn_examples import DrawnExamples
from bert_tf2.pretraining.draws import Draws
from bert_tf2.pretraining.options import PretrainingDataOptions
from bert_tf2.support import progress


def make(
    corpus: Corpus,
    tokenizer: tokenization.FullTokenizer,
    options: PretrainingDataOptions,
    draws: Draws,
    folder: str | None = None,
) -> DrawnExamples:
    """Draws all examples of a corpus: the same numbers for the same purposes as `examples.make_instances`.

    Args:
      corpus: the text.
      tokenizer: has the vocabulary.
      options: the settings.
      draws: the random numbers.
      folder: see DrawnExamples.
    """
    examples = DrawnExamples(0 if options.dynamic_masking else options.max_predictions_per_seq, folder)
    documents = [corpus.documents[number] for number in draws.shuffled(len(corpus.documents))]
    maker = _Maker(corpus, documents, tokenizer, options, draws, examples)
    numbers = (number for _ in range(options.dupe_factor) for number in range(len(documents)))
    for number in progress.track(numbers, "Making examples", options.dupe_factor * len(documents), "documents"):
        maker.add_document(number)
    examples.order = array("i", draws.shuffled(len(examples)))
    return examples


class _Maker:
    def __init__(
        self,
        corpus: Corpus,
        documents: Sequence[tuple[int, int]],
        tokenizer: tokenization.FullTokenizer,
        options: PretrainingDataOptions,
        draws: Draws,
        examples: DrawnExamples,
    ):
        self._documents, self._bounds, self._continues = documents, corpus.bounds, corpus.continues
        self._options, self._draws, self._examples = options, draws, examples
        self._mask = tokenizer.vocab["[MASK]"]
        self._words = list(tokenizer.vocab.values())
        self._max_num_tokens = options.max_seq_length - options.num_delimiters
        self._segments_begin_words = options.word_boundaries == "spaces"
        self._num_to_predict: dict[int, int] = {}

    def add_document(self, number: int) -> None:
        """The draws of `examples.instances_of_document`."""
        draws, bounds = self._draws, self._bounds
        first, last = self._documents[number]
        target = self._max_num_tokens
        if draws.random() < self._options.short_seq_prob:
            target = 2 + draws.below(target - 1)
        if self._options.objective == "mlm":
            for start, stop in whole_sentences.spans(bounds, first, last, target):
                self._add(start, stop - start, 0, 0, False)
            return
        while first < last:
            start_a = bounds[first]
            stop = bisect_left(bounds, start_a + target, first + 1, last)
            middle = first + 1 + (draws.below(stop - first - 1) if stop - first > 1 else 0)
            length_a = bounds[middle] - start_a
            is_random_next = middle == stop or not draws.halves(1)[0]
            if is_random_next:
                start_b, length_b = self._random_segment(number, target - length_a)
            else:
                start_b, length_b = bounds[middle], bounds[stop] - bounds[middle]
            if length_a + length_b > self._max_num_tokens:
                front_a, length_a, front_b, length_b = self._truncate(length_a, length_b)
                start_a, start_b = start_a + front_a, start_b + front_b
            self._add(start_a, length_a, start_b, length_b, is_random_next)
            first = middle if is_random_next else stop

    def _add(self, start_a: int, length_a: int, start_b: int, length_b: int, is_random_next: bool) -> None:
        """Adds an example, and masks it unless training does."""
        example = (start_a, length_a, start_b, length_b, is_random_next)
        if self._options.dynamic_masking:
            self._examples.add(*example)
            return
        masked = self._masked(start_a, length_a, start_b, length_b)
        self._examples.add(*example, masked, self._draws.replacements(len(masked), self._mask, self._words))

    def _random_segment(self, own: int, num_tokens: int) -> tuple[int, int]:
        """The start and the length of the segment of `examples._random_segment`."""
        draws, bounds = self._draws, self._bounds
        for _ in range(10):
            number = draws.below(len(self._documents))
            if number != own:
                break
        first, last = self._documents[number]
        first += draws.below(last - first)
        start = bounds[first]
        return start, bounds[bisect_left(bounds, start + num_tokens, first + 1, last)] - start

    def _truncate(self, length_a: int, length_b: int) -> tuple[int, int, int, int]:
        """The tokens that `truncate_seq_pair` removes from the front of A, its new length, and the same for B.

        Each token is removed from the longer segment, from B if both have the same length: first from the longer one
        until both are equal, then from B and A in turn.
        """
        count = length_a + length_b - self._max_num_tokens
        self._examples.truncated += count
        fronts = self._draws.halves(count)  # 0 removes the first token, 1 the last one
        same = min(count, abs(length_a - length_b))
        of_longer, of_b, of_a = fronts[:same], fronts[same::2], fronts[same + 1 :: 2]
        if length_a > length_b:
            of_a += of_longer
        else:
            of_b += of_longer
        return of_a.count(0), length_a - len(of_a), of_b.count(0), length_b - len(of_b)

    def _masked(self, start_a: int, length_a: int, start_b: int, length_b: int) -> list[int]:
        """The draws of `masking.choose_predictions`."""
        count = length_a + length_b
        wanted = self._num_to_predict.get(count)
        if wanted is None:
            wanted = self._num_to_predict[count] = self._options.num_to_predict(count + self._options.num_delimiters)
        if self._options.do_whole_word_mask:
            of_a = self._continues[start_a : start_a + length_a]
            of_b = self._continues[start_b : start_b + length_b]
            if self._segments_begin_words and of_b:
                of_b = b"\0" + of_b[1:]
            return self._choose_words(of_a + of_b, wanted)
        return self._draws.shuffled(count, min(wanted, count))

    def _choose_words(self, continues: bytes, wanted: int) -> list[int]:
        """Whole words in random order; one that would give too many tokens is skipped."""
        starts = [place for place, inside in enumerate(continues) if not inside or not place]
        starts.append(len(continues))
        masked: list[int] = []
        for word in self._draws.shuffled(len(starts) - 1):
            if len(masked) >= wanted:
                break
            start, end = starts[word], starts[word + 1]
            if len(masked) + end - start <= wanted:
                masked.extend(range(start, end))
        return masked


def batches(
    examples: DrawnExamples,
    corpus: Corpus,
    tokenizer: tokenization.FullTokenizer,
    options: PretrainingDataOptions,
    rows_per_batch: int,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the features of the records of all examples, in the order in which they are written.

    Args:
      examples, corpus, tokenizer, options: see `make`.
      rows_per_batch: the number of examples B of a batch; the last one may be smaller.

    Yields:
      name -> array of integers or float32: [B, max_seq_length], [B, max_predictions_per_seq] or [B, 1].
    """
    special = [tokenizer.vocab[token] for token in ("[CLS]", "[SEP]")]
    for first in range(0, len(examples), rows_per_batch):
        rows = examples.rows(np.asarray(examples.order[first : first + rows_per_batch]))
        yield _features(rows, corpus.ids, special, options)


def _features(
    rows: np.ndarray, ids: np.ndarray, special: Sequence[int], options: PretrainingDataOptions
) -> dict[str, np.ndarray]:
    """The features of `DrawnExamples.rows`, padded with zeros."""
    cls_id, sep_id = special
    length_a, length_b = (rows[name][:, None].astype(np.int64) for name in ("length_a", "length_b"))
    last_a, last = length_a + 1, length_a + length_b + options.num_delimiters - 1  # the places of the [SEP]
    place = np.arange(options.max_seq_length)
    in_b, used = place > last_a, place <= last
    source = np.where(in_b, rows["start_b"][:, None] - last_a - 1, rows["start_a"][:, None] - 1) + place
    input_ids = ids.take(source, mode="clip")
    input_ids[:, 0] = cls_id
    np.put_along_axis(input_ids, last_a, sep_id, axis=1)
    np.put_along_axis(input_ids, last, sep_id, axis=1)
    input_ids *= used
    positions, replacements, is_masked = _sorted_masks(rows, length_a)
    labels = np.take_along_axis(input_ids, positions, axis=1) * is_masked
    row, column = np.nonzero(is_masked & (replacements >= 0))
    input_ids[row, positions[row, column]] = replacements[row, column]
    features = {
        "input_ids": input_ids,
        "input_mask": used.view(np.uint8),
        "segment_ids": (in_b & used).view(np.uint8),
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": is_masked.astype(np.float32),
    }
    if options.objective == "mlm_nsp":
        features["next_sentence_labels"] = rows["random_next"][:, None]
    return features


def _sorted_masks(rows: np.ndarray, length_a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sorted positions [B, width] of the masked tokens, their replacements, and which of the places are used."""
    used = np.arange(rows["masked"].shape[1]) < rows["num_masked"][:, None]
    tokens = rows["masked"].astype(np.int64)
    tokens += np.where(tokens < length_a, 1, 2)  # [CLS] before A, and [SEP] before B
    # Sorted as pairs, in one number each; places that are not used come last.
    pairs = np.where(used, tokens << 32 | (rows["replacements"].astype(np.int64) + 1), np.iinfo(np.int64).max)
    pairs.sort(axis=1)
    return (pairs >> 32) * used, (pairs & 0xFFFFFFFF) - 1, used
