"""Examples as text, for code of one's own: the functions of the reference's create_pretraining_data.py.

They accept any tokenizer, and any generator of random numbers. The examples are those of the script.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence

from bert_tf2.pretraining import examples, masking
from bert_tf2.pretraining.corpus import Corpus, Tokenizer, read_strings
from bert_tf2.pretraining.draws import Draws
from bert_tf2.pretraining.examples import Example, ExampleMaker
from bert_tf2.pretraining.options import PretrainingDataOptions


@dataclasses.dataclass(slots=True)
class TrainingInstance:
    """One example: two segments of a corpus, or one. The lists are made on access."""

    _corpus: Corpus
    _example: Example

    @property
    def tokens(self) -> list[str]:
        """[CLS] A [SEP] B [SEP], with the replacements."""
        tokens = self._join()
        for position, replacement in self._masks():
            if replacement != masking.SAME:
                tokens[position] = replacement
        return tokens

    @property
    def segment_ids(self) -> list[int]:
        """0 for [CLS] A [SEP], 1 for B [SEP]."""
        length_a, length_b = self._example.length_a, self._example.length_b
        return [0] * (length_a + 2) + [1] * (length_b + 1 if length_b else 0)

    @property
    def is_random_next(self) -> bool | None:
        """Whether B is from a random place; None without B."""
        return self._example.is_random_next if self._example.length_b else None

    @property
    def masked_lm_positions(self) -> list[int]:
        """Sorted indexes into `tokens`."""
        return [position for position, _ in self._masks()]

    @property
    def masked_lm_labels(self) -> list[str]:
        """The original tokens at `masked_lm_positions`."""
        tokens = self._join()
        return [tokens[position] for position, _ in self._masks()]

    def _join(self) -> list[str]:
        tokens, found = self._corpus.tokens, self._example
        segment_a = tokens[found.start_a : found.start_a + found.length_a]
        segment_b = tokens[found.start_b : found.start_b + found.length_b]
        return ["[CLS]", *segment_a, "[SEP]", *([*segment_b, "[SEP]"] if segment_b else [])]

    def _masks(self) -> list[tuple[int, str]]:
        positions = (index + (1 if index < self._example.length_a else 2) for index in self._example.masked)
        return sorted(zip(positions, self._example.replacements, strict=True))


def make_instances(
    input_files: Iterable[str], tokenizer: Tokenizer, options: PretrainingDataOptions, rng: random.Random
) -> list[TrainingInstance]:
    """Makes all examples of text files, shuffled."""
    corpus, draws = read_strings(input_files, tokenizer, options), Draws(rng)
    made = [*ExampleMaker(corpus, ["[MASK]"], list(tokenizer.vocab), options, draws).make_all()]
    return [TrainingInstance(corpus, made[number]) for number in draws.shuffled(len(made))]


def create_training_instances(
    input_files: Iterable[str],
    tokenizer: Tokenizer,
    max_seq_length: int,
    dupe_factor: int,
    short_seq_prob: float,
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    rng: random.Random,
    do_whole_word_mask: bool = False,
) -> list[TrainingInstance]:
    """Like `make_instances`; see PretrainingDataOptions for the arguments. The last one is a flag in the reference."""
    options = PretrainingDataOptions(
        max_seq_length=max_seq_length, max_predictions_per_seq=max_predictions_per_seq, masked_lm_prob=masked_lm_prob,
        short_seq_prob=short_seq_prob, do_whole_word_mask=do_whole_word_mask, dupe_factor=dupe_factor,
    )  # fmt: skip
    return make_instances(input_files, tokenizer, options, rng)


def create_instances_from_document(
    all_documents: Sequence[Sequence[Sequence[str]]],
    document_index: int,
    max_seq_length: int,
    short_seq_prob: float,
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    vocab_words: Sequence[str],
    rng: random.Random,
    do_whole_word_mask: bool = False,
) -> list[TrainingInstance]:
    """Makes the examples of one document. A document is a list of sentences, each a list of tokens."""
    options = PretrainingDataOptions(
        max_seq_length=max_seq_length, max_predictions_per_seq=max_predictions_per_seq, masked_lm_prob=masked_lm_prob,
        short_seq_prob=short_seq_prob, do_whole_word_mask=do_whole_word_mask,
    )  # fmt: skip
    corpus = Corpus([])
    maker = ExampleMaker(corpus, ["[MASK]"], vocab_words, options, Draws(rng))
    made = maker.make_document(_Documents(all_documents, corpus), document_index)
    return [TrainingInstance(corpus, example) for example in made]


class _Documents(Sequence):
    """Copies documents into a corpus on access, so that only the needed ones are copied."""

    def __init__(self, documents: Sequence[Sequence[Sequence[str]]], corpus: Corpus):
        self._documents, self._corpus = documents, corpus
        self._copied: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, number: int) -> tuple[int, int]:
        if number not in self._copied:
            for tokens in self._documents[number]:
                self._corpus.add_sentence(tokens, bytes(map(masking.kind_of, tokens)))
            self._copied[number] = self._corpus.end_document()
        return self._copied[number]


def truncate_seq_pair(tokens_a: list[str], tokens_b: list[str], max_num_tokens: int, rng: random.Random) -> None:
    """Truncates two lists in place; see `examples.truncate`."""
    front_a, length_a, front_b, length_b = examples.truncate(len(tokens_a), len(tokens_b), max_num_tokens, Draws(rng))
    tokens_a[:] = tokens_a[front_a : front_a + length_a]
    tokens_b[:] = tokens_b[front_b : front_b + length_b]
