"""Examples without masks: create_pretraining_data.py --dynamic_masking writes them, `dynamic_masking` masks them.

A record has what the masks are drawn from, and nothing that can be computed: ids without padding, and the numbers of
tokens of segments and words. It takes a third of the bytes of a record with masks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.pretraining.corpus import Corpus
from bert_tf2.pretraining.drawn_examples import DrawnExamples
from bert_tf2.pretraining.options import PretrainingDataOptions
from bert_tf2.records import Feature, RecordKind
from bert_tf2.support.example_bytes import Ragged

MOST_SEGMENTS = 2
_LONGEST = 1 << 20


def num_maskable(num_tokens, num_segments):
    """The number of tokens without [CLS] and the [SEP] of each segment; integers or arrays."""
    return num_tokens - 1 - num_segments


def sums(num_tokens, num_segments) -> dict:
    """What the lengths of a record must add up to; integers or arrays."""
    return {"segment_lengths": num_tokens, "word_lengths": num_maskable(num_tokens, num_segments)}


def _problem(row: Mapping[str, Sequence[int]]) -> str | None:
    tokens, segments = len(row["input_ids"]), len(row["segment_lengths"])
    if segments > MOST_SEGMENTS:
        return f"has {segments} segments, at most {MOST_SEGMENTS} are possible"
    for name, wanted in sums(tokens, segments).items():
        if name in row and sum(row[name]) != wanted:
            return f"the sum of {name} is {sum(row[name])}, and {wanted} is needed for {tokens} tokens"
    return None


ALL = RecordKind(
    "unmasked pretraining",
    {
        "input_ids": Feature("int64", "max_seq_length", below="vocab_size", varies=True),
        "segment_lengths": Feature("int64", "type_vocab_size", least=2, below=_LONGEST, varies=True),
        "next_sentence_labels": Feature("int64", 1, below=2),
        "word_lengths": Feature("int64", "max_seq_length", least=1, below=_LONGEST, varies=True),
    },
    _problem,
)
"""All features, by which the record

    [CLS] A [SEP] B [SEP]

is described: its ids; the number of tokens of `[CLS] A [SEP]` and of `B [SEP]`, or of a single segment; whether B is
random, for pairs; and for whole-word masking the number of tokens of each word in order, without [CLS] and [SEP].
"""


@functools.cache
def kind(*, pairs: bool, words: bool) -> RecordKind:
    """The kind of records that have labels for the next sentence (`pairs`), and the lengths of words (`words`)."""
    absent = {"next_sentence_labels": not pairs, "word_lengths": not words}
    features = {name: feature for name, feature in ALL.features.items() if not absent.get(name)}
    return RecordKind(ALL.name, features, ALL.problem)


def kind_of(names: Sequence[str]) -> RecordKind | None:
    """The kind of a record with these features; None if it is another one than an example without masks."""
    if not {"input_ids", "segment_lengths"} <= {*names}:
        return None
    return kind(pairs="next_sentence_labels" in names, words="word_lengths" in names)


def are_of(kind: RecordKind) -> bool:
    """Whether the records of a kind are examples without masks."""
    return kind.problem is _problem


def wrong(values: Mapping[str, np.ndarray], counts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Finds the records with a `problem`: bool [N].

    Args:
      values: feature name -> [N, L], padded with zeros.
      counts: feature name -> [N], the number of values of each record, for features whose number varies.
    """
    tokens, segments = counts["input_ids"], counts["segment_lengths"]
    found = segments > MOST_SEGMENTS
    for name, wanted in sums(tokens, segments).items():
        if name in values:
            found |= values[name].sum(axis=1) != wanted
    return found


def batches(
    examples: DrawnExamples,
    corpus: Corpus,
    tokenizer: tokenization.FullTokenizer,
    options: PretrainingDataOptions,
    rows_per_batch: int,
) -> Iterator[dict[str, np.ndarray | Ragged]]:
    """Yields the features of all examples in the order in which they are written; see compact_examples.batches.

    Those of a single segment have no labels.
    """
    pairs = options.objective == "mlm_nsp"
    continues = np.frombuffer(corpus.continues, np.uint8)
    special = [tokenizer.vocab[token] for token in ("[CLS]", "[SEP]")]
    for first in range(0, len(examples), rows_per_batch):
        rows = examples.rows(np.asarray(examples.order[first : first + rows_per_batch]))
        features, source, used = _features(rows, corpus.ids, special, pairs)
        if options.do_whole_word_mask:
            own = rows["length_a"][:, None] if options.word_boundaries == "spaces" else None
            features["word_lengths"] = _word_lengths(continues[source], used, own)
        yield features


def _features(
    rows: np.ndarray, ids: np.ndarray, special: Sequence[int], pairs: bool
) -> tuple[dict[str, np.ndarray | Ragged], np.ndarray, np.ndarray]:
    """The features of examples.

    Args:
      rows: see DrawnExamples.rows.
      ids: see Corpus.
      special: the ids of [CLS] and [SEP].
      pairs: whether there are labels.

    Returns:
      The features without word_lengths; where the tokens of all examples, one after the other, are in the corpus; and
      bool [B, L], true for as many places at the start of a row as the example has tokens.
    """
    length_a, length_b = (rows[name][:, None].astype(np.int64) for name in ("length_a", "length_b"))
    maskable = length_a + length_b
    place = np.arange(maskable.max())
    used = place < maskable
    source = np.where(place < length_a, rows["start_a"][:, None], rows["start_b"][:, None] - length_a) + place
    source = source[used]  # of the tokens of all examples, one after the other
    lengths = np.hstack([length_a + 2, (length_b + 1) * (length_b > 0)])
    tokens = lengths.sum(axis=1)
    input_ids = np.zeros((len(tokens), tokens.max()), np.int32)
    is_token = np.arange(input_ids.shape[1]) < tokens[:, None]
    is_sep = np.zeros_like(is_token)
    for end in (lengths[:, 0] - 1, tokens - 1):
        is_sep[np.arange(len(tokens)), end] = True
    is_text = is_token & ~is_sep
    is_text[:, 0] = False
    input_ids[is_text], input_ids[is_sep], input_ids[:, 0] = ids[source], special[1], special[0]
    features = {
        "input_ids": Ragged(input_ids, tokens),
        "segment_lengths": Ragged(lengths, 1 + (lengths[:, 1] > 0)),
    }
    if pairs:
        features["next_sentence_labels"] = rows["random_next"][:, None]
    return features, source, used


def _word_lengths(continues: np.ndarray, used: np.ndarray, lengths_a: np.ndarray | None) -> Ragged:
    """The numbers of tokens of words.

    Args:
      continues: for each token of all examples, one after the other, whether it continues a word. The first token of
        an example begins a word in any case.
      used: see `_features`.
      lengths_a: int64 [B, 1], the numbers of tokens of the first segments, if the second one begins a word in any case.
    """
    begins = np.zeros(used.shape, bool)
    begins[used] = continues == 0
    begins[:, 0] = True
    if lengths_a is not None:
        begins |= (np.arange(used.shape[1]) == lengths_a) & used
    counts = begins.sum(axis=1)
    found = np.diff(np.flatnonzero(begins[used]), append=len(continues))
    values = np.zeros((len(counts), counts.max()), np.int64)
    values[np.arange(values.shape[1]) < counts[:, None]] = found
    return Ragged(values, counts)


def size_of_record(num_tokens: int, options: PretrainingDataOptions) -> int:
    """About the bytes of a record: an id takes two, a word or any other number one, names and framing the rest."""
    return 120 + 2 * num_tokens + (num_tokens if options.do_whole_word_mask else 0)
