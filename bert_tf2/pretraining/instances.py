"""Examples as text, for user code: the functions of the reference's create_pretraining_data.py.

They accept any tokenizer, and any generator of random numbers. The examples equal the examples of the script.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence

from bert_tf2.data.rows import pack
from bert_tf2.pretraining import examples, masking
from bert_tf2.pretraining.corpus import Corpus, Tokenizer, read_strings
from bert_tf2.pretraining.draws import Draws
from bert_tf2.pretraining.examples import Example, ExampleMaker
from bert_tf2.pretraining.options import PretrainingDataOptions


@dataclasses.dataclass
class TrainingInstance:
    """One example."""

    tokens: list[str]  # [CLS] A [SEP] B [SEP], or [CLS] A [SEP]; with the replacements
    segment_ids: list[int]  # 0 for [CLS] A [SEP], 1 for B [SEP]
    masked_lm_positions: list[int]  # sorted indexes into `tokens`
    masked_lm_labels: list[str]  # the original tokens at masked_lm_positions
    is_random_next: bool | None  # whether B is from a random place; None without B


def _instance(corpus: Corpus, found: Example) -> TrainingInstance:
    segment_a = corpus.tokens[found.start_a : found.start_a + found.length_a]
    segment_b = corpus.tokens[found.start_b : found.start_b + found.length_b]
    tokens, segment_ids = pack(segment_a, segment_b)
    places = (index + (1 if index < found.length_a else 2) for index in found.masked)
    masks = sorted(zip(places, found.replacements, strict=True))
    positions = [place for place, _ in masks]
    labels = [tokens[place] for place in positions]
    for place, replacement in masks:
        if replacement != masking.SAME:
            tokens[place] = replacement
    return TrainingInstance(tokens, segment_ids, positions, labels, found.is_random_next if segment_b else None)


def make_instances(
    input_files: Iterable[str], tokenizer: Tokenizer, options: PretrainingDataOptions, rng: random.Random
) -> list[TrainingInstance]:
    """Makes all examples of text files, shuffled."""
    corpus, draws = read_strings(input_files, tokenizer, options), Draws(rng)
    made = [*ExampleMaker(corpus, ["[MASK]"], list(tokenizer.vocab), options, draws).make_all()]
    return [_instance(corpus, made[number]) for number in draws.shuffled(len(made))]


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
    """Like `make_instances`; see PretrainingDataOptions for the arguments. The last is a flag in the reference."""
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
    made = [*maker.make_document(_Documents(all_documents, corpus), document_index)]
    return [_instance(corpus, example) for example in made]


class _Documents(Sequence):
    """Copies documents into a corpus on access, so that only the needed documents are copied."""

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
