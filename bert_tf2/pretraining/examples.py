"""From plain text to masked sentence pairs: the examples that BERT is pretrained on (paper, section 3.1).

The text has one sentence a line and a blank line between documents. An example is made of two stretches of it,

    [CLS]  the first stretch, A  [SEP]  the second stretch, B  [SEP]

and asks two questions at once:

* Next sentence prediction: does B follow A in the document, or is it from somewhere else? Half of the time it is from a
  random document (`is_random_next`, label 1). Both stretches consist of whole sentences, so that the model cannot tell
  by where a sentence was cut.
* Masked language model: which tokens stood at some 15 % of the positions? Of these, 80 % now hold [MASK], 10 % a random
  word and 10 % are left as they were, because [MASK] never comes in a task that the model is used for later: it has to
  have an opinion about each token, whatever it reads there.

Every document is gone through `dupe_factor` times, with other pairs and other masks each time.

For the same files, options and seed the examples are those of google-research/bert's create_pretraining_data.py, in the
same order: **the order in which random numbers are drawn is part of the interface**, so no draw below may be moved,
added or saved. They are kept another way. The reference copies the tokens of each example many times over; here a
document is one list of tokens, an example remembers where its stretches start and stop, and the tokens are put together
when they are asked for.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import os
import random
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, MutableSequence, Sequence
from typing import NamedTuple, Protocol

from absl import logging

from bert_tf2 import records, tokenization
from bert_tf2.pretraining.options import CreatePretrainingDataOptions, PretrainingDataOptions
from bert_tf2.support import console, environment, files, outputs, progress
from bert_tf2.support.quiet import load_tensorflow

_LOGGED_EXAMPLES = 20
_NUM_DELIMITERS = 3  # [CLS], [SEP], [SEP]


class Tokenizer(Protocol):
    """What is needed of `tokenization.FullTokenizer`."""

    vocab: dict[str, int]

    def tokenize(self, text: str) -> list[str]: ...

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]: ...


class Document:
    """The tokens of a document in one list, and where each sentence ends in it."""

    __slots__ = ("_bounds", "tokens")

    def __init__(self, sentences: Iterable[Sequence[str]] = ()):
        self.tokens: list[str] = []
        self._bounds = array("q", [0])  # sentence i is tokens[_bounds[i]:_bounds[i + 1]]
        for sentence in sentences:
            self.append(sentence)

    def append(self, sentence: Sequence[str]) -> None:
        """Adds a sentence; one without tokens is left out."""
        if sentence:
            # One str object for each vocabulary entry, however often it comes: 8 bytes a token instead of some 60.
            self.tokens.extend(map(sys.intern, sentence))
            self._bounds.append(len(self.tokens))

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self._bounds) - 1

    def stop_for(self, first: int, num_tokens: int) -> int:
        """The smallest `stop` so that sentences `first` to `stop - 1` have `num_tokens` tokens; at most the last."""
        return min(len(self), bisect.bisect_left(self._bounds, self._bounds[first] + num_tokens, first + 1))

    def segment(self, first: int, stop: int) -> Segment:
        """Sentences `first` to `stop - 1`."""
        return Segment(self, self._bounds[first], self._bounds[stop])


@dataclasses.dataclass
class Segment:
    """A stretch of a document: `document.tokens[start:stop]`."""

    __slots__ = ("document", "start", "stop")

    document: Document
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def tokens(self) -> list[str]:
        return self.document.tokens[self.start : self.stop]

    def pop(self, index: int = -1) -> None:
        """Shortens it by its last token, or with `index` 0 by its first."""
        if index:
            self.stop -= 1
        else:
            self.start += 1


class MaskedLmInstance(NamedTuple):
    """One position that the model is asked about: what stood there, and what stands there now."""

    index: int
    label: str
    replacement: str


@dataclasses.dataclass
class TrainingInstance:
    """One example: two stretches of text and what was masked in them.

    Attributes:
      segment_a, segment_b: the stretches.
      is_random_next: whether B was taken from a random place.
      masked_lm_positions: rising indexes into `tokens`.
      replacements: what stands at these positions now.
    """

    __slots__ = ("is_random_next", "masked_lm_positions", "replacements", "segment_a", "segment_b")

    segment_a: Segment
    segment_b: Segment
    is_random_next: bool
    masked_lm_positions: tuple[int, ...]
    replacements: tuple[str, ...]

    @property
    def tokens(self) -> list[str]:
        """[CLS] A [SEP] B [SEP], masked."""
        tokens = _join(self.segment_a, self.segment_b)
        for position, replacement in zip(self.masked_lm_positions, self.replacements, strict=True):
            tokens[position] = replacement
        return tokens

    @property
    def segment_ids(self) -> list[int]:
        """0 for [CLS] A [SEP], 1 for B [SEP]."""
        return [0] * (len(self.segment_a) + 2) + [1] * (len(self.segment_b) + 1)

    @property
    def masked_lm_labels(self) -> list[str]:
        """What stood at `masked_lm_positions`."""
        tokens = _join(self.segment_a, self.segment_b)
        return [tokens[position] for position in self.masked_lm_positions]


def _join(segment_a: Segment, segment_b: Segment) -> list[str]:
    return ["[CLS]", *segment_a.tokens, "[SEP]", *segment_b.tokens, "[SEP]"]


def read_documents(input_files: Iterable[str], tokenizer: Tokenizer) -> Iterator[Document]:
    """Yields the documents of some files: a sentence on each line, documents separated by blank lines.

    As in the reference a document does not end where a file does, and a line without tokens (a control character, say)
    is neither a sentence nor a blank line.

    Raises:
      UserError: a file is missing, or a line is not UTF-8 (names the line).
    """
    document = Document()
    for input_file in input_files:
        total = files.count_lines(input_file)
        for line in progress.track(files.read_lines(input_file), f"Reading {input_file}", total, "lines"):
            text = line.strip()
            if text:
                document.append(tokenizer.tokenize(text))
            elif document:
                yield document
                document = Document()
    if document:
        yield document


def make_instances(
    input_files: Iterable[str], tokenizer: Tokenizer, options: PretrainingDataOptions, rng: random.Random
) -> list[TrainingInstance]:
    """All examples of some files, shuffled.

    Documents are shuffled too, since the random stretches are taken from them by number.

    Raises:
      UserError: a file is missing, or a line is not UTF-8 (names the line).
    """
    documents = list(read_documents(input_files, tokenizer))
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
    """Goes through one document and yields its examples.

    Sentences are taken until they fill an example, and divided between A and B after a random one of them. Where B is
    drawn from elsewhere, the sentences meant for it are not lost: the next example starts with them. A single sentence
    (the last one left, or a long one) has no continuation to show, so its B is always a random one.
    """
    document = all_documents[document_index]
    max_num_tokens = options.max_seq_length - _NUM_DELIMITERS
    target_length = _target_length(max_num_tokens, options.short_seq_prob, rng)
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
        masked = choose_predictions(_join(segment_a, segment_b), vocab_words, options, rng)
        yield TrainingInstance(
            segment_a,
            segment_b,
            is_random_next,
            masked_lm_positions=tuple([choice.index for choice in masked]),
            replacements=tuple([choice.replacement for choice in masked]),
        )
        first = middle if is_random_next else stop


def _target_length(max_num_tokens: int, short_seq_prob: float, rng: random.Random) -> int:
    """How many tokens the examples of a document aim at (paper, appendix A.2).

    Most often all that fit, since padding is wasted work; now and then fewer, since the texts that the model meets
    later are short as well.
    """
    if rng.random() < short_seq_prob:
        return rng.randint(2, max_num_tokens)
    return max_num_tokens


def _random_segment(
    all_documents: Sequence[Document], document_index: int, num_tokens: int, rng: random.Random
) -> Segment:
    """Sentences from a random place, at least one, until they have `num_tokens` tokens or their document ends.

    Ten draws at most look for another document than the own one. In a corpus of few documents, or one, they may all
    fail; B then comes from the own document and may even be the true continuation, yet it is labelled random.
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
    """Shortens two stretches, in place, until together they have `max_num_tokens` tokens.

    Token by token the longer one (B if neither is) loses its first or its last, as a coin falls, so that the examples
    neither always start nor always end with a sentence.
    """
    for _ in range(len(tokens_a) + len(tokens_b) - max_num_tokens):
        longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        longer.pop(0 if rng.random() < 0.5 else -1)


def choose_predictions(
    tokens: Sequence[str], vocab_words: Sequence[str], options: PretrainingDataOptions, rng: random.Random
) -> list[MaskedLmInstance]:
    """Chooses the positions of an example to be predicted and what to put there, in rising order of position.

    Words are taken in random order until there are enough positions; a word that would give too many is passed over, so
    with `do_whole_word_mask` there may be fewer positions than wanted, down to none.

    Args:
      tokens: [CLS] A [SEP] B [SEP]; not changed.
      vocab_words: the words to draw random ones from.
      options: says how many positions, and whether to keep words together.
      rng: the random numbers.
    """
    units = _maskable_units(tokens, options.do_whole_word_mask)
    shuffle(units, rng)
    num_to_predict = options.num_to_predict(len(tokens))
    masked: list[MaskedLmInstance] = []
    for unit in units:
        if len(masked) >= num_to_predict:
            break
        if len(masked) + len(unit) <= num_to_predict:
            for index in unit:
                label = tokens[index]
                masked.append(MaskedLmInstance(index, label, _replacement(label, vocab_words, rng)))
    masked.sort()
    return masked


def _maskable_units(tokens: Sequence[str], whole_words: bool) -> list[tuple[int, ...]]:
    """The positions that are masked together: each by itself, or those of a word's pieces.

    Words are told by the `##` of their later pieces alone, as in the reference. So a B that was cut within a word
    starts with pieces that count as part of A's last word, and each Chinese character is a word.
    """
    maskable = [index for index, token in enumerate(tokens) if token not in {"[CLS]", "[SEP]"}]
    if not whole_words:
        return list(zip(maskable))  # each index as a tuple of one
    units: list[tuple[int, ...]] = []
    for index in maskable:
        if units and tokens[index].startswith("##"):
            units[-1] += (index,)
        else:
            units.append((index,))
    return units


def _replacement(token: str, vocab_words: Sequence[str], rng: random.Random) -> str:
    """80 % [MASK], 10 % the token itself, 10 % a random word (which may be any entry, [PAD] and "##s" included)."""
    if rng.random() < 0.8:
        return "[MASK]"
    if rng.random() < 0.5:
        return token
    return vocab_words[rng.randint(0, len(vocab_words) - 1)]


def shuffle(items: MutableSequence, rng: random.Random) -> None:
    """`rng.shuffle(items)`: the same draws and the same result, about twice as fast.

    Shuffling the positions of each example is where most random numbers go, and `random.Random.shuffle` calls a Python
    function for each item. This is its algorithm in one loop: swap each item, from the last on, with one at or before
    it, whose index is drawn with just the bits that it needs, and drawn again where it is too large.
    """
    getrandbits = rng.getrandbits
    last = len(items) - 1
    while last > 0:
        bits = (last + 1).bit_length()
        first = max(1, (1 << (bits - 1)) - 1)  # down to here an index takes as many bits
        for index in range(last, first - 1, -1):
            other = getrandbits(bits)
            while other > index:
                other = getrandbits(bits)
            items[index], items[other] = items[other], items[index]
        last = first - 1


def write_instance_to_example_files(
    instances: Collection[TrainingInstance],
    tokenizer: Tokenizer,
    max_seq_length: int,
    max_predictions_per_seq: int,
    output_files: Sequence[str],
) -> None:
    """Writes examples to TFRecord files in turn: the first to the first file, the second to the second, and so on.

    The files appear when all of them are complete. Logs the first example in words.

    Args:
      instances: TrainingInstance, or anything with its `tokens`, `segment_ids`, `masked_lm_positions`,
        `masked_lm_labels` and `is_random_next`.
      tokenizer: makes the tokens ids.
      max_seq_length, max_predictions_per_seq: the lengths to pad to.
      output_files: where to.

    Raises:
      UserError: a file cannot be written.
      ValueError: an instance is longer than the lengths to pad to.
    """
    tf = load_tensorflow()  # late: reading, pairing and masking do without it

    if instances:  # all records are padded to the same lengths
        first = _features(next(iter(instances)), tokenizer, max_seq_length, max_predictions_per_seq)
        share = len(instances) * len(records.encode(records.PRETRAINING, first)) * 9 // 10 // len(output_files)
        folders = [os.path.dirname(name) or "." for name in output_files]
        for folder in dict.fromkeys(folders):
            environment.check_space(folder, share * folders.count(folder), "the records")
    with files.complete_or_absent(*output_files) as beside, contextlib.ExitStack() as stack:
        writers = [stack.enter_context(tf.io.TFRecordWriter(name)) for name in beside]
        for number, instance in enumerate(progress.track(instances, "Writing", unit="examples")):
            row = _features(instance, tokenizer, max_seq_length, max_predictions_per_seq)
            writers[number % len(writers)].write(records.encode(records.PRETRAINING, row))
            if number < _LOGGED_EXAMPLES:
                _log_example(instance, number, len(instances), row)
    logging.info("Wrote %d examples", len(instances))


def _features(
    instance: TrainingInstance, tokenizer: Tokenizer, max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, list]:
    """The row of one record, padded with zeros."""
    input_ids = tokenizer.convert_tokens_to_ids(instance.tokens)
    masked_lm_ids = tokenizer.convert_tokens_to_ids(instance.masked_lm_labels)
    if len(input_ids) > max_seq_length or len(masked_lm_ids) > max_predictions_per_seq:
        raise ValueError(
            f"an instance of {len(input_ids)} tokens and {len(masked_lm_ids)} predictions does not fit"
            f" max_seq_length {max_seq_length} and max_predictions_per_seq {max_predictions_per_seq}"
        )
    padding = [0] * (max_seq_length - len(input_ids))
    no_predictions = [0] * (max_predictions_per_seq - len(masked_lm_ids))
    return {
        "input_ids": input_ids + padding,
        "input_mask": [1] * len(input_ids) + padding,
        "segment_ids": [*instance.segment_ids, *padding],
        "masked_lm_positions": [*instance.masked_lm_positions, *no_predictions],
        "masked_lm_ids": masked_lm_ids + no_predictions,
        "masked_lm_weights": [1.0] * len(masked_lm_ids) + [0.0] * len(no_predictions),
        "next_sentence_labels": [int(instance.is_random_next)],
    }


def _log_example(instance: TrainingInstance, number: int, total: int, row: dict[str, list]) -> None:
    """The first example in words; with --verbose_logging several as they are written."""
    if number == 0:
        logging.info("%s", console.table(f"The first of {total:,} examples:", _in_words(instance)))
    logging.debug("*** Example ***")
    logging.debug("tokens: %s", " ".join(map(tokenization.printable_text, instance.tokens)))
    for name, values in row.items():
        logging.debug("%s: %s", name, " ".join(map(str, values)))


def _in_words(instance: TrainingInstance) -> dict[str, str]:
    found = []
    for label, position in zip(instance.masked_lm_labels, instance.masked_lm_positions, strict=True):
        replacement = instance.tokens[position]
        how = {"[MASK]": "", label: " (kept)"}.get(replacement, " (a random word)")
        found.append(f"{label} -> {replacement}{how}")
    return {
        "tokens": " ".join(map(tokenization.printable_text, instance.tokens)),
        "to predict": ", ".join(found),
        "next": "the second text is a random one" if instance.is_random_next else "the second text follows the first",
    }


def run(options: CreatePretrainingDataOptions) -> None:
    """Text files in, TFRecord files out: what create_pretraining_data.py does.

    A name or a pattern in input_file that matches nothing is left out with a warning, unless none matches.

    Raises:
      UserError: an input is missing or not UTF-8, the vocabulary lacks a special token, an output cannot be written or
        would overwrite an input or another output.
    """
    from bert_tf2.weights import provenance  # late: it knows many formats, and a wrong flag should be answered at once

    input_files = _find_inputs(options.input_file)
    output_files = [name.strip() for name in options.output_file.split(",")]
    outputs.check(
        [outputs.Input(f"--{name}", getattr(options, name)) for name in ("input_file", "vocab_file")],
        [outputs.Output("--output_file", name) for name in output_files],
    )
    tokenizer = provenance.load_tokenizer(options.vocab_file, options.do_lower_case)
    _warn_of_few_predictions(options)
    logging.info("Reading %s", ", ".join(input_files))
    instances = make_instances(input_files, tokenizer, options, random.Random(options.random_seed))
    if not instances:
        logging.warning("%s: not a single token; the output will have no records", options.input_file)
    write_instance_to_example_files(
        instances, tokenizer, options.max_seq_length, options.max_predictions_per_seq, output_files
    )
    console.summary(output_files, next_command=_next_command(output_files, options))


def _next_command(output_files: Sequence[str], options: CreatePretrainingDataOptions) -> str:
    beside = os.path.join(os.path.dirname(options.vocab_file), "bert_config.json")
    return console.command(
        "run_pretraining.py",
        do_train=True,
        do_eval=True,
        input_file=",".join(output_files),
        bert_config_file=beside if files.exists(beside) else "bert_config.json",
        output_dir=os.path.join(os.path.dirname(output_files[0]), "pretraining_output"),
        max_seq_length=options.max_seq_length,
        max_predictions_per_seq=options.max_predictions_per_seq,
    )


def _find_inputs(input_file: str) -> list[str]:
    """The reference leaves out what matches nothing, and says nothing."""
    unmatched: list[str] = []
    input_files = files.match_files(input_file, unmatched)
    for complaint in unmatched:
        logging.warning("--input_file: left out %s", complaint)
    return input_files


def _warn_of_few_predictions(options: PretrainingDataOptions) -> None:
    wanted = round(options.max_seq_length * options.masked_lm_prob)
    if options.max_predictions_per_seq < wanted:
        logging.warning(
            "--max_predictions_per_seq=%d: a full sequence of %d tokens would have %d at --masked_lm_prob=%g",
            options.max_predictions_per_seq, options.max_seq_length, wanted, options.masked_lm_prob,
        )  # fmt: skip


# For code that calls the functions of the reference's create_pretraining_data.py: its names and arguments. The last
# argument is a flag there.


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
    """`make_instances`; see PretrainingDataOptions for the settings."""
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
    """`instances_of_document`, where a document may also be a list of sentences, each a list of tokens."""
    options = PretrainingDataOptions(
        max_seq_length=max_seq_length,
        max_predictions_per_seq=max_predictions_per_seq,
        masked_lm_prob=masked_lm_prob,
        short_seq_prob=short_seq_prob,
        do_whole_word_mask=do_whole_word_mask,
    )
    return list(instances_of_document(_Documents(all_documents), document_index, vocab_words, options, rng))


class _Documents(Sequence):
    """Documents, some of which may be lists of sentences; only those that are asked for are copied."""

    def __init__(self, documents: Sequence[Document | Sequence[Sequence[str]]]):
        self._documents = documents

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index: int) -> Document:
        document = self._documents[index]
        return document if isinstance(document, Document) else Document(document)


def create_masked_lm_predictions(
    tokens: Sequence[str],
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    vocab_words: Sequence[str],
    rng: random.Random,
    do_whole_word_mask: bool = False,
) -> tuple[list[str], list[int], list[str]]:
    """Masks an example, see `choose_predictions`: the tokens as they are now, the positions, and what stood there."""
    options = PretrainingDataOptions(
        max_predictions_per_seq=max_predictions_per_seq,
        masked_lm_prob=masked_lm_prob,
        do_whole_word_mask=do_whole_word_mask,
    )
    masked = choose_predictions(tokens, vocab_words, options, rng)
    output_tokens = list(tokens)
    for choice in masked:
        output_tokens[choice.index] = choice.replacement
    return output_tokens, [choice.index for choice in masked], [choice.label for choice in masked]
