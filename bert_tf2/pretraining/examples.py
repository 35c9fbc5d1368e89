"""Examples for pretraining (paper, section 3.1): masked pairs of segments of plain text.

An example consists of two segments of documents,

    [CLS]  segment A  [SEP]  segment B  [SEP]

for two tasks:

* Next sentence prediction: does B follow A in the document? In half of the examples B is from a random document
  (`is_random_next`, label 1). Both segments consist of whole sentences, so that the model cannot use the position at
  which a sentence was cut.
* Masked language model: which tokens were at about 15 % of the positions? 80 % of these positions have [MASK], 10 % a
  random word, and 10 % the original token. [MASK] never occurs in fine-tuning, so the model must learn to represent
  every token, masked or not.

Without next sentence prediction (`objective` "mlm"), an example is one segment, [CLS] A [SEP].

Every document is used `dupe_factor` times, with other pairs and masks each time.

For the same files, options and seed the examples are those of google-research/bert's create_pretraining_data.py, in the
same order: **the order in which random numbers are drawn is part of the interface**, so no draw may be moved, added or
removed. Only the memory differs: the reference copies the tokens of every example, and here an example refers to
segments of documents and its tokens are assembled on access.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator, Sequence

from bert_tf2.pretraining.documents import Document, Segment, Tokenizer, read_documents
from bert_tf2.pretraining.masking import choose_predictions, shuffle
from bert_tf2.pretraining.options import PretrainingDataOptions
from bert_tf2.support import progress


@dataclasses.dataclass
class TrainingInstance:
    """One example: two segments, or one, and their masked positions.

    Attributes:
      segment_a, segment_b: the segments; without a pair, B is None.
      is_random_next: whether B is from a random place; None without B.
      masked_lm_positions: sorted indexes into `tokens`.
      replacements: the tokens that replace the original ones at these positions.
    """

    __slots__ = ("is_random_next", "masked_lm_positions", "replacements", "segment_a", "segment_b")

    segment_a: Segment
    segment_b: Segment | None
    is_random_next: bool | None
    masked_lm_positions: tuple[int, ...]
    replacements: tuple[str, ...]

    @property
    def tokens(self) -> list[str]:
        """[CLS] A [SEP] B [SEP], with the replacements."""
        tokens = _join(self.segment_a, self.segment_b)
        for position, replacement in zip(self.masked_lm_positions, self.replacements, strict=True):
            tokens[position] = replacement
        return tokens

    @property
    def segment_ids(self) -> list[int]:
        """0 for [CLS] A [SEP], 1 for B [SEP]."""
        return [0] * (len(self.segment_a) + 2) + [1] * (len(self.segment_b) + 1 if self.segment_b is not None else 0)

    @property
    def masked_lm_labels(self) -> list[str]:
        """The original tokens at `masked_lm_positions`."""
        tokens = _join(self.segment_a, self.segment_b)
        return [tokens[position] for position in self.masked_lm_positions]


def _join(segment_a: Segment, segment_b: Segment | None) -> list[str]:
    return ["[CLS]", *segment_a.tokens, "[SEP]", *([] if segment_b is None else [*segment_b.tokens, "[SEP]"])]


def _masked(
    segment_a: Segment,
    segment_b: Segment | None,
    is_random_next: bool | None,
    vocab_words: Sequence[str],
    options: PretrainingDataOptions,
    rng: random.Random,
) -> TrainingInstance:
    """Chooses the masked positions of an example, unless training does."""
    if options.dynamic_masking:
        return TrainingInstance(segment_a, segment_b, is_random_next, masked_lm_positions=(), replacements=())
    segments = [segment for segment in (segment_a, segment_b) if segment is not None]
    continues = None
    if segment_a.continues is not None:
        continues = b"\0" + b"".join(segment.continues + b"\0" for segment in segments)
    chosen = choose_predictions(_join(segment_a, segment_b), vocab_words, options, rng, continues)
    return TrainingInstance(
        segment_a,
        segment_b,
        is_random_next,
        masked_lm_positions=tuple([choice.index for choice in chosen]),
        replacements=tuple([choice.replacement for choice in chosen]),
    )


def make_instances(
    input_files: Iterable[str], tokenizer: Tokenizer, options: PretrainingDataOptions, rng: random.Random
) -> list[TrainingInstance]:
    """All examples of text files, shuffled. The documents are shuffled first, as in the reference.

    Raises:
      UserError: see `sentences.read`.
    """
    documents = list(read_documents(input_files, tokenizer, options))
    shuffle(documents, rng)
    vocab_words = list(tokenizer.vocab)
    instances: list[TrainingInstance] = []
    numbers = (number for _ in range(options.dupe_factor) for number in range(len(documents)))
    total = options.dupe_factor * len(documents)
    for number in progress.track(numbers, "Making examples", total, "documents"):
        instances.extend(instances_of_document(documents, number, vocab_words, options, rng))
    shuffle(instances, rng)
    return instances


def instances_of_document(
    all_documents: Sequence[Document],
    document_index: int,
    vocab_words: Sequence[str],
    options: PretrainingDataOptions,
    rng: random.Random,
) -> Iterator[TrainingInstance]:
    """Yields the examples of one document.

    Sentences are collected until they fill an example, and divided between A and B at a random sentence. If B is from a
    random place, the sentences that would have been B are used for the next example. A single sentence (the last one,
    or a long one) has no continuation, so its B is always random.

    With the objective "mlm", the sentences that fit are one segment, and nothing else is drawn than its masks.
    """
    document = all_documents[document_index]
    max_num_tokens = options.max_seq_length - options.num_delimiters
    target_length = _target_length(max_num_tokens, options.short_seq_prob, rng)
    if options.objective == "mlm":
        for segment in document.spans(target_length):
            yield _masked(segment, None, None, vocab_words, options, rng)
        return
    first = 0
    while first < len(document):
        stop = document.stop_for(first, target_length)
        middle = first + (rng.randint(1, stop - first - 1) if stop - first > 1 else 1)
        segment_a = document.segment(first, middle)
        is_random_next = middle == stop or rng.random() < 0.5
        if is_random_next:
            segment_b = _random_segment(all_documents, document_index, target_length - len(segment_a), rng)
        else:
            segment_b = document.segment(middle, stop)
        truncate_seq_pair(segment_a, segment_b, max_num_tokens, rng)
        yield _masked(segment_a, segment_b, is_random_next, vocab_words, options, rng)
        first = middle if is_random_next else stop


def _target_length(max_num_tokens: int, short_seq_prob: float, rng: random.Random) -> int:
    """The number of tokens that the examples of a document should have (paper, appendix A.2).

    Usually the maximum, because padding is wasted computation, and sometimes fewer, because texts in fine-tuning are
    short as well.
    """
    if rng.random() < short_seq_prob:
        return rng.randint(2, max_num_tokens)
    return max_num_tokens


def _random_segment(
    all_documents: Sequence[Document], document_index: int, num_tokens: int, rng: random.Random
) -> Segment:
    """Sentences from a random place: at least one, until they have `num_tokens` tokens or the document ends.

    Another document is drawn at most ten times. In a corpus of few documents all draws may give the same document; B is
    then from this document and may even be the true continuation, but the label is "random", as in the reference.
    """
    for _ in range(10):
        random_index = rng.randint(0, len(all_documents) - 1)
        if random_index != document_index:
            break
    document = all_documents[random_index]
    first = rng.randint(0, len(document) - 1)
    return document.segment(first, document.stop_for(first, num_tokens))


def truncate_seq_pair(
    tokens_a: Segment | list[str], tokens_b: Segment | list[str], max_num_tokens: int, rng: random.Random
) -> None:
    """Truncates two segments in place so that they have at most `max_num_tokens` tokens together.

    Tokens are removed one by one from the longer segment (from B if both have the same length), at random from its
    start or its end, so that examples neither always start nor always end at the boundary of a sentence.
    """
    for _ in range(len(tokens_a) + len(tokens_b) - max_num_tokens):
        longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        longer.pop(0 if rng.random() < 0.5 else -1)


# The functions of the reference's create_pretraining_data.py, with its arguments. The last argument is a flag there.


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
    """Like `make_instances`; see PretrainingDataOptions for the arguments."""
    options = PretrainingDataOptions(
        max_seq_length=max_seq_length,
        max_predictions_per_seq=max_predictions_per_seq,
        dupe_factor=dupe_factor,
        masked_lm_prob=masked_lm_prob,
        short_seq_prob=short_seq_prob,
        do_whole_word_mask=do_whole_word_mask,
    )
    return make_instances(input_files, tokenizer, options, rng)


def create_instances_from_document(
    all_documents: Sequence[Document | Sequence[Sequence[str]]],
    document_index: int,
    max_seq_length: int,
    short_seq_prob: float,
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    vocab_words: Sequence[str],
    rng: random.Random,
    do_whole_word_mask: bool = False,
) -> list[TrainingInstance]:
    """Like `instances_of_document`; a document may also be a list of sentences, each a list of tokens."""
    options = PretrainingDataOptions(
        max_seq_length=max_seq_length,
        max_predictions_per_seq=max_predictions_per_seq,
        masked_lm_prob=masked_lm_prob,
        short_seq_prob=short_seq_prob,
        do_whole_word_mask=do_whole_word_mask,
    )
    return list(instances_of_document(_Documents(all_documents), document_index, vocab_words, options, rng))


class _Documents(Sequence):
    """Converts documents that are lists of sentences on access, so that only the needed ones are copied."""

    def __init__(self, documents: Sequence[Document | Sequence[Sequence[str]]]):
        self._documents = documents

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index: int) -> Document:
        document = self._documents[index]
        return document if isinstance(document, Document) else Document(document)
