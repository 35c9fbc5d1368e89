"""The functions of google-research/bert's create_pretraining_data.py, for code that calls them.

They accept any tokenizer, and any generator of random numbers. Their examples equal the examples of the script, which
does not use these functions.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from bert_tf2.data import records
from bert_tf2.data.rows import pack
from bert_tf2.pretraining import corpus, features
from bert_tf2.pretraining.corpus import Corpus, kind_of
from bert_tf2.pretraining.examples import (
    SAME,
    Example,
    ExampleMaker,
    choose,
    draw_replacements,
    num_to_predict,
    shuffle,
    truncate,
)
from bert_tf2.pretraining.options import PretrainingDataOptions
from bert_tf2.support.process import load_tensorflow


class Tokenizer(Protocol):
    """The used part of `tokenization.FullTokenizer`."""

    vocab: dict[str, int]

    def tokenize(self, text: str) -> list[str]: ...

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]: ...


@dataclasses.dataclass
class TrainingInstance:
    """One example."""

    tokens: list[str]  # [CLS] A [SEP] B [SEP], or [CLS] A [SEP]; with the replacements
    segment_ids: list[int]  # 0 for [CLS] A [SEP], 1 for B [SEP]
    masked_lm_positions: list[int]  # sorted indexes into `tokens`
    masked_lm_labels: list[str]  # the original tokens at masked_lm_positions
    is_random_next: bool | None  # whether B is from a random place; None without B

    def __repr__(self) -> str:
        """The reference's text: a line for each attribute, and an empty line."""
        names = ("tokens", "segment_ids", "is_random_next", "masked_lm_positions", "masked_lm_labels")
        values = (getattr(self, name) for name in names)
        shown = (value if value is self.is_random_next else " ".join(map(str, value)) for value in values)
        return "".join(f"{name}: {value}\n" for name, value in zip(names, shown, strict=True)) + "\n"


def _numbers() -> dict[str, int]:
    """Token -> its number in a Corpus; a new token gets the next number. Such tokens need no vocabulary."""
    return collections.defaultdict(itertools.count().__next__)


def _ids(tokens: Iterable[str], numbers: Mapping[str, int]) -> bytes:
    return array("i", [numbers[token] for token in tokens]).tobytes()


def _instances(made: Iterable[Example], text: Corpus, numbers: Mapping[str, int]) -> list[TrainingInstance]:
    """The instances of examples whose replacements are tokens."""
    names, found = [*numbers], []
    for example in made:
        a, b = (
            [names[number] for number in text.tokens[start : start + length]]
            for start, length in ((example.start_a, example.length_a), (example.start_b, example.length_b))
        )
        tokens, segment_ids = pack(a, b)
        # `masked` counts from the first token of A: [CLS] is before A, and [SEP] before B.
        positions = [place + (1 if place < len(a) else 2) for place in example.masked]
        labels = [tokens[position] for position in sorted(positions)]
        for position, new in zip(positions, example.replacements, strict=True):
            if new != SAME:
                tokens[position] = new
        is_random_next = example.is_random_next if b else None
        found.append(TrainingInstance(tokens, segment_ids, sorted(positions), labels, is_random_next))
    return found


def make_instances(
    input_files: Iterable[str], tokenizer: Tokenizer, options: PretrainingDataOptions, rng: random.Random
) -> list[TrainingInstance]:
    """Makes all examples of text files, shuffled."""
    input_files = [input_files] if isinstance(input_files, str) else input_files  # a list of its letters otherwise
    numbers = _numbers()
    text = corpus.read_with(input_files, options, lambda sentence: _ids(tokenizer.tokenize(sentence), numbers))
    corpus.set_kinds(text, numbers)
    made = ExampleMaker(text, "[MASK]", [*tokenizer.vocab], options, rng).make_all()
    found = _instances(made, text, numbers)
    shuffle(rng, found)
    return found


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
    """Makes the examples of one document, a list of sentences, each a list of tokens. Empty sentences are ignored."""
    options = PretrainingDataOptions(
        max_seq_length=max_seq_length, max_predictions_per_seq=max_predictions_per_seq, masked_lm_prob=masked_lm_prob,
        short_seq_prob=short_seq_prob, do_whole_word_mask=do_whole_word_mask,
    )  # fmt: skip
    text, numbers = Corpus(), _numbers()
    copied: dict[int, tuple[int, int]] = {}

    class Documents(Sequence):
        """Copies a document into the corpus on the first access, so that only the needed documents are copied."""

        def __getitem__(self, number: int) -> tuple[int, int]:
            if number not in copied:
                for tokens in all_documents[number]:
                    text.add_sentence(_ids(tokens, numbers), bytes(map(kind_of, tokens)))
                copied[number] = text.end_document()
            return copied[number]

        def __len__(self) -> int:
            return len(all_documents)

    maker = ExampleMaker(text, "[MASK]", vocab_words, options, rng)
    made = [*maker.make_document(Documents(), document_index)]  # copies documents
    return _instances(made, text, numbers)


def write_instance_to_example_files(
    instances: Iterable[TrainingInstance],
    tokenizer: Tokenizer,
    max_seq_length: int,
    max_predictions_per_seq: int,
    output_files: Sequence[str],
) -> None:
    """Writes examples to TFRecord files in turn: the first to the first file, the second to the second, and so on.

    The files appear under their names when all of them are complete. Logs the first example as text.

    Args:
      instances: objects with the attributes `tokens`, `segment_ids`, `masked_lm_positions`, `masked_lm_labels` and
        `is_random_next`, such as TrainingInstance. If `is_random_next` is None (in all instances), the records are for
        masked words only.
      tokenizer: converts the tokens to ids.
      max_seq_length, max_predictions_per_seq: the lengths to which the features are padded.
      output_files: the names of the files; those that end in .gz are compressed.

    Raises:
      ValueError: an instance is longer than `max_seq_length` or `max_predictions_per_seq`.
    """
    output_files = [output_files] if isinstance(output_files, str) else output_files
    instances = [*instances]
    if instances:
        features.log_first(instances[0].tokens, len(instances))
    rows = (_features_of(instance, tokenizer, max_seq_length, max_predictions_per_seq) for instance in instances)
    size = features.rows_per_batch(max_seq_length, max_predictions_per_seq)
    batches = (
        records.columns(records.PRETRAINING if "next_sentence_labels" in some[0] else records.MASKED_WORDS, some)
        for some in iter(lambda: [*itertools.islice(rows, size)], [])
    )
    features.write(batches, len(instances), output_files)


def _features_of(
    instance: TrainingInstance, tokenizer: Tokenizer, max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, list]:
    input_ids = tokenizer.convert_tokens_to_ids(instance.tokens)
    masked_lm_ids = tokenizer.convert_tokens_to_ids(instance.masked_lm_labels)
    if len(input_ids) > max_seq_length or len(masked_lm_ids) > max_predictions_per_seq:
        raise ValueError(
            f"an instance of {len(input_ids)} tokens and {len(masked_lm_ids)} predictions does not fit"
            f" max_seq_length {max_seq_length} and max_predictions_per_seq {max_predictions_per_seq}"
        )
    padding = [0] * (max_seq_length - len(input_ids))
    no_predictions = [0] * (max_predictions_per_seq - len(masked_lm_ids))
    of_pair = {} if instance.is_random_next is None else {"next_sentence_labels": [int(instance.is_random_next)]}
    return {
        "input_ids": input_ids + padding,
        "input_mask": [1] * len(input_ids) + padding,
        "segment_ids": [*instance.segment_ids, *padding],
        "masked_lm_positions": [*instance.masked_lm_positions, *no_predictions],
        "masked_lm_ids": masked_lm_ids + no_predictions,
        "masked_lm_weights": [1.0] * len(masked_lm_ids) + [0.0] * len(no_predictions),
        **of_pair,
    }


def truncate_seq_pair(tokens_a: list[str], tokens_b: list[str], max_num_tokens: int, rng: random.Random) -> None:
    """Truncates two lists in place; the reference's function of the same name."""
    front_a, length_a, front_b, length_b = truncate(len(tokens_a), len(tokens_b), max_num_tokens, rng)
    tokens_a[:] = tokens_a[front_a : front_a + length_a]
    tokens_b[:] = tokens_b[front_b : front_b + length_b]


def create_masked_lm_predictions(
    tokens: Sequence[str],
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    vocab_words: Sequence[str],
    rng: random.Random,
    do_whole_word_mask: bool = False,
) -> tuple[list[str], list[int], list[str]]:
    """Masks an example; the reference's function of the same name, in which the last argument is a flag.

    Args:
      tokens: [CLS] A [SEP] B [SEP], or [CLS] A [SEP]; not modified.
      masked_lm_prob, max_predictions_per_seq, do_whole_word_mask: see PretrainingDataOptions.
      vocab_words: the words from which random replacements are drawn.

    Returns:
      The masked tokens; the positions to predict, sorted; and the original tokens at these positions.
    """
    options = PretrainingDataOptions(max_predictions_per_seq=max_predictions_per_seq, masked_lm_prob=masked_lm_prob)
    kinds, output = bytes(map(kind_of, tokens)), list(tokens)
    positions = choose(len(kinds), kinds, num_to_predict(len(tokens), options), do_whole_word_mask, rng)
    for position, new in zip(positions, draw_replacements(positions, "[MASK]", vocab_words, rng), strict=True):
        if new != SAME:
            output[position] = new
    positions = sorted(positions)
    return output, positions, [tokens[position] for position in positions]


def create_int_feature(values: Iterable[int]) -> Any:
    """A tf.train.Feature with whole numbers."""
    train = load_tensorflow().train
    return train.Feature(int64_list=train.Int64List(value=values))


def create_float_feature(values: Iterable[float]) -> Any:
    """A tf.train.Feature with numbers, which it rounds to float32."""
    train = load_tensorflow().train
    return train.Feature(float_list=train.FloatList(value=values))
