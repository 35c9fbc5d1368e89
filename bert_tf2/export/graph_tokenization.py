"""Text to ids inside of a TensorFlow graph: `tokenization.py` for a saved model, which has no Python.

A server that takes raw text has to split it exactly as it was split in training. `GraphTokenizer` gives, for every
valid UTF-8 text, the ids of `tokenization.FullTokenizer`, and with each the bytes of the text that it stands for, so
that an answer or an entity can be shown as it was written.

`character_tables` applies `tokenization.py` to every character when the graph is built; the graph holds the tables.
The graph works on the code points of the whole batch, laid end to end, each row closed by a line break:

    code points   T h e   C a f é ' s \\n     é: one code point, or e and an accent
    letters       t h e | c a f e ' s |      blanks become one thing, accents and control characters are gone
    words         the, cafe, ', s            cut at blanks, and around what stands alone: punctuation, Chinese
    pieces        the, cafe, ', s            longest entry first, by tensorflow-text's FastWordpieceTokenizer
    bytes         0-3, 4-9, 9-10, 10-11      from the place of the code point that each letter came from

Two things depend on more than one character. They have steps of their own, which run only on text that needs them: a
capital sigma at the end of a word (`_lower_sigmas`), and marks in an order that is not Unicode's (`_reorder`).

Letters belong to an alphabet of our own (`character_tables.Alphabet`): one letter for each character that occurs in the
vocabulary, one for all others, one for each token that is kept whole. All have the same number of bytes in UTF-8, so
that one division converts the tokenizer's byte offsets to letters.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf2 import tokenization
from bert_tf2.export import character_tables as tables
from bert_tf2.support.errors import UserError

_CAPITAL_SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C2

# Stands for bytes that are not UTF-8 when a text is decoded. As a character it takes four bytes, and no wrong sequence
# is replaced by fours: at the latest the fourth byte is what makes it wrong.
_REPLACEMENT = 0x10FFFF


class Pieces(NamedTuple):
    """The pieces of a batch of texts: int32 RaggedTensors [B, (pieces)].

    Attributes:
      ids: the ids in the vocabulary.
      starts, ends: the bytes of the text that a piece stands for, the end exclusive. An accent that is dropped goes
        with the character it stands on. Where one character becomes several letters (Hangul does, in lower case) and
        they fall to two pieces, both stand for all of it.
      words: which word or punctuation mark of its text a piece belongs to, counted from 0.
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor
    words: tf.RaggedTensor


class Inputs(NamedTuple):
    """What the model reads, and where in the texts it stands: int32 [B, F], F being the longest row of the batch.

    Attributes:
      input_ids, input_mask, segment_ids: as in the reference; padding is 0.
      starts, ends, words: as in `Pieces`, in the text of that segment; -1 for [CLS], [SEP] and padding.
    """

    input_ids: tf.Tensor
    input_mask: tf.Tensor
    segment_ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    words: tf.Tensor


class GraphTokenizer(tf.Module):
    """A tokenizer as TensorFlow operations, for use in a `tf.function` and in what `tf.saved_model.save` writes.

    Batches may have any size. Whoever loads a saved model with it needs the operators of tensorflow-text.
    """

    def __init__(self, tokenizer: tokenization.FullTokenizer, keep: Sequence[str] = ()):
        """Makes the tables, which takes a second or two; the vocabulary is not to be changed afterwards.

        Args:
          keep: entries of the vocabulary that stay whole wherever they stand in a text, in this case. What is before
            and behind them is split like a text of its own.

        Raises:
          UserError: tensorflow-text is missing, or an entry of the vocabulary is too long for it.
          NotInVocabularyError: the vocabulary lacks [UNK], [CLS], [SEP] or one of `keep`.
          ValueError: two of `keep` could overlap, or there are too many of them; or the tokenizer has rules of its own
            (a subclass), which no graph can follow.
        """
        super().__init__(name="graph_tokenizer")
        if tokenizer.has_own_rules:
            raise ValueError(
                "a tokenizer with rules of its own (a subclass, or another object for words or pieces) works in Python"
                " only: tokenize before the model is called, and export it without signatures for text"
            )
        _check_keep(keep)
        self._cls, self._sep = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
        self._lower = tokenizer.basic_tokenizer.do_lower_case
        self._keep = [[*map(ord, token)] for token in keep]
        characters = tables.describe_characters(self._lower)
        alphabet = tables.Alphabet(tokenizer, keep, characters.alone)
        self._letters_of = tables.Table(tables.letters_table(characters, alphabet))
        self._context_of = tables.Table(characters.context)
        self._width = alphabet.width
        self._ids = tf.constant([*alphabet.entries.values()], tf.int32)
        self._wordpiece = _tensorflow_text().FastWordpieceTokenizer(
            [*alphabet.entries],
            max_bytes_per_word=alphabet.longest_word * alphabet.width,
            token_out_type=tf.int32,
            unknown_token=tables.UNKNOWN_ENTRY,
            no_pretokenization=True,
        )

    def tokenize(self, texts: tf.Tensor, name: str = "texts") -> Pieces:
        """The pieces of each text, without [CLS] and [SEP].

        Args:
          texts: string [B], in UTF-8.
          name: what an error calls them.

        Raises:
          tf.errors.InvalidArgumentError: a text is not UTF-8 (says which row; the first is row 0).
        """
        codes, places, row_splits = _decode(tf.convert_to_tensor(texts, tf.string), name)
        for number, token in enumerate(self._keep):
            codes = _replace_token(codes, token, tables.KEPT + number)
        if self._lower:
            codes = self._lower_sigmas(codes)
        table = self._letters_of(codes)  # [codes, letters of each]
        visible = _where(table[:, 0] != tables.MARK)
        letters, sources = self._spell(codes, table)
        letters, sources, word_splits = _cut(letters, sources)
        numbers, words, begins, ends = self._wordpieces(letters, word_splits)
        first, last = tf.gather(sources, begins), tf.gather(sources, ends - 1)
        # A character ends where the next one begins that is no mark of it.
        behind = tf.gather(visible, tf.searchsorted(visible, last, side="right"))
        values = [tf.gather(self._ids, numbers), tf.gather(places, first), tf.gather(places, behind), words]
        return _as_pieces(values, tf.searchsorted(first, row_splits))

    def combine(self, first: Pieces, second: Pieces | None, max_seq_length: int) -> Inputs:
        """[CLS] first [SEP], or [CLS] first [SEP] second [SEP], cut to `max_seq_length` as the reference does.

        A row whose second text has no pieces, or keeps none, is one of a single text.

        Raises:
          ValueError: `max_seq_length` is below 3.
        """
        if max_seq_length < 3:
            raise ValueError(f"max_seq_length is {max_seq_length}: [CLS], [SEP] and [SEP] alone need 3")
        second = second or Pieces(*(ragged[:, :0] for ragged in first))
        lengths = [tf.cast(pieces.ids.row_lengths(), tf.int32)[:, None] for pieces in (first, second)]  # [B, 1] each
        kept_first, kept_second = kept_lengths(*lengths, max_seq_length)
        begins = [tf.cast(pieces.ids.row_starts(), tf.int32)[:, None] for pieces in (first, second)]
        total = kept_first + 2 + tf.where(kept_second > 0, kept_second + 1, 0)
        position = tf.range(tf.reduce_max(tf.concat([total[:, 0], [2]], 0)))[None]  # [1, F]; 2 for an empty batch
        at_second = position - kept_first - 2
        in_first = (position > 0) & (position <= kept_first)
        in_second = (at_second >= 0) & (at_second < kept_second)
        # Into all pieces of the first texts, all of the second, and what stands for [CLS], [SEP] and padding.
        count_first, special = tf.size(first.ids), tf.size(first.ids) + tf.size(second.ids)
        is_sep = (position == kept_first + 1) | (position == total - 1)
        index = special + tf.where(position == 0, 0, tf.where(is_sep, 1, 2))
        index = tf.where(in_first, begins[0] + position - 1, index)
        index = tf.where(in_second, count_first + begins[1] + at_second, index)
        outside = ([self._cls, self._sep, 0], [-1] * 3, [-1] * 3, [-1] * 3)
        ids, *places = (
            tf.gather(tf.concat([a.flat_values, b.flat_values, specials], 0), index)
            for a, b, specials in zip(first, second, outside, strict=True)
        )
        mask = position < total
        segments = mask & (at_second >= 0)
        return Inputs(ids, tf.cast(mask, tf.int32), tf.cast(segments, tf.int32), *places)

    def _lower_sigmas(self, codes: tf.Tensor) -> tf.Tensor:
        """Puts the final form for a capital sigma that ends its word, which no table of single characters can say.

        Unicode's rule, which `str.lower` follows: a cased letter comes before it and none comes after it, whatever
        apostrophes, full stops, marks and the like lie between.
        """

        def replace() -> tf.Tensor:
            context = self._context_of(codes)
            opaque = context & tables.TRANSPARENT == 0
            # Of the code points that count, [0] standing before them all: whether each is cased.
            cased = tf.concat([[False], tf.boolean_mask(context & tables.CASED > 0, opaque)], 0)
            sigmas = _where(codes == _CAPITAL_SIGMA)
            number = tf.gather(tf.cumsum(tf.cast(opaque, tf.int32)), sigmas)
            final = tf.gather(cased, number - 1) & ~tf.gather(cased, number + 1)
            places = tf.boolean_mask(sigmas, final)[:, None]
            return tf.tensor_scatter_nd_update(codes, places, tf.fill([tf.size(places)], _FINAL_SIGMA))

        return tf.cond(tf.reduce_any(codes == _CAPITAL_SIGMA), replace, lambda: codes)

    def _spell(self, codes: tf.Tensor, table: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The letters (and blanks) of all code points in a row, and which code point each comes from."""
        flat = tf.reshape(table, [-1])
        used = _where(flat > tables.NOTHING)
        letters, sources = tf.gather(flat, used), used // table.shape[1]
        return (self._reorder(letters, sources, codes) if self._lower else letters), sources

    def _reorder(self, letters: tf.Tensor, sources: tf.Tensor, codes: tf.Tensor) -> tf.Tensor:
        """Sorts the marks that follow a character by their combining class, as decomposing a text does.

        Accents are gone by now, so this is about the few marks of other kinds (`Mc`) that have such a class. Which code
        point a letter comes from is left as it is: a place in the text belongs to the marks there together.
        """

        def sort() -> tf.Tensor:
            starters = self._context_of(codes) & tables.STARTER > 0
            groups = tf.gather(tf.cumsum(tf.cast(starters, tf.int64)), sources)
            order = tf.argsort(groups * (tables.CLASS_MASK + 1) + tf.cast(classes, tf.int64), stable=True)
            return tf.gather(letters, order)

        classes = tf.bitwise.right_shift(letters, tables.CLASS_SHIFT) & tables.CLASS_MASK
        return tf.cond(tf.reduce_any(classes > 0), sort, lambda: letters)

    def _wordpieces(self, letters: tf.Tensor, word_splits: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The pieces of all words: number of the entry, number of the word, first letter, the one behind the last."""
        words = tf.RaggedTensor.from_row_splits(letters, word_splits, validate=False)
        numbers, starts, ends = self._wordpiece.tokenize_with_offsets(tf.strings.unicode_encode(words, "UTF-8"))
        word = numbers.value_rowids()
        begin = tf.gather(word_splits, word)
        starts, ends = (begin + tf.cast(ragged.values, tf.int64) // self._width for ragged in (starts, ends))
        return numbers.values, word, starts, ends


def kept_lengths(first: tf.Tensor, second: tf.Tensor, max_seq_length: int) -> tuple[tf.Tensor, tf.Tensor]:
    """How many pieces are left of two texts (or of one, where the second has none); int32, all of one shape.

    A pair is cut like `classification.truncate_seq_pair` does, a single text at its end.
    """
    room = max_seq_length - 3
    kept_second = tf.minimum(second, tf.maximum(room // 2, room - first))
    kept_first = tf.minimum(first, tf.where(second > 0, room - kept_second, max_seq_length - 2))
    return kept_first, kept_second


def character_offsets(texts: tf.Tensor, byte_offsets: tf.Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
    """Counts in characters, as Python does, what was counted in bytes.

    Args:
      texts: string [B], in UTF-8.
      byte_offsets: int32 [B, n] or [B, (n)], from 0 to the length of the text; negative ones are left as they are.

    Returns:
      int32 of the same shape.
    """
    if isinstance(byte_offsets, tf.RaggedTensor):
        rows, offsets = byte_offsets.value_rowids(), byte_offsets.values
        return byte_offsets.with_values(_count_characters(texts, rows, offsets))
    rows = tf.range(tf.size(texts))[:, None]
    return _count_characters(texts, rows, byte_offsets)


def _count_characters(texts: tf.Tensor, rows: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
    begin = tf.gather(tf.cumsum(tf.strings.length(texts), exclusive=True), rows)
    content = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
    begins_character = tf.cast(content & 0xC0 != 0x80, tf.int32)
    before = tf.concat([[0], tf.cumsum(begins_character)], 0)  # [bytes + 1]
    counted = tf.gather(before, begin + tf.maximum(offsets, 0)) - tf.gather(before, begin)
    return tf.where(offsets < 0, offsets, counted)


def _where(condition: tf.Tensor) -> tf.Tensor:
    """The indices, int64 [n], at which a vector is true."""
    return tf.where(condition)[:, 0]


def _decode(texts: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The code points of a batch, in one vector, a line break behind each row: [N], [N], [B + 1].

    Returns:
      The code points (int32), the byte of its text at which each begins, and where the rows are (both int64).
    """
    closed = tf.strings.join([texts, "\n"])
    codes, places = tf.strings.unicode_decode_with_offsets(
        closed, "UTF-8", errors="replace", replacement_char=_REPLACEMENT
    )

    def check() -> tf.Operation:
        lengths = places.flat_values[1:] - places.flat_values[:-1]
        wrong = _where((codes.flat_values[:-1] == _REPLACEMENT) & (lengths != 4))
        row = tf.searchsorted(codes.row_splits, wrong[:1], side="right") - 1
        number = tf.strings.reduce_join(tf.strings.as_string(row))  # a scalar, "" where nothing is wrong
        sentence = tf.strings.join(["row ", number, f" of {name} is not valid UTF-8"])
        return tf.debugging.Assert(tf.size(wrong) == 0, [sentence])

    checked = tf.cond(tf.reduce_any(codes.flat_values == _REPLACEMENT), check, tf.no_op)
    with tf.control_dependencies([] if checked is None else [checked]):
        return tf.identity(codes.flat_values), places.flat_values, codes.row_splits


def _replace_token(codes: tf.Tensor, token: Sequence[int], by: int) -> tf.Tensor:
    """Puts one code point for each place where `token` stands, and fillers behind it."""
    candidates = _where(codes == token[0])
    window = tf.minimum(candidates[:, None] + tf.range(len(token), dtype=tf.int64), tf.size(codes, tf.int64) - 1)
    found = tf.boolean_mask(window, tf.reduce_all(tf.gather(codes, window) == token, 1))  # [found, len(token)]
    updates = tf.broadcast_to(tf.constant([by, *[tables.FILLER] * (len(token) - 1)]), tf.shape(found))
    return tf.tensor_scatter_nd_update(codes, found[:, :, None], updates)


def _cut(letters: tf.Tensor, sources: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Letters and blanks -> the letters that words are made of, their sources, and where the words are."""
    alone = letters & tables.ALONE > 0
    begins = alone | tf.concat([[True], alone[:-1]], 0)
    kept = _where(letters != tables.BLANK)
    letters, sources, begins = (tf.gather(values, kept) for values in (letters, sources, begins))
    word_splits = tf.concat([_where(begins), [tf.size(letters, tf.int64)]], 0)
    return tf.bitwise.right_shift(letters, tables.LETTER_SHIFT), sources, word_splits


def _as_pieces(values: Sequence[tf.Tensor], row_splits: tf.Tensor) -> Pieces:
    """From flat values; the words are counted through the batch, and come out counted through each row."""
    ids, starts, ends, words = (
        tf.RaggedTensor.from_row_splits(tf.cast(flat, tf.int32), row_splits, validate=False) for flat in values
    )
    first_piece = tf.gather(row_splits, words.value_rowids())
    return Pieces(ids, starts, ends, words.with_values(words.values - tf.gather(words.values, first_piece)))


def _check_keep(keep: Sequence[str]) -> None:
    if len(keep) > tables.MOST_KEPT:
        raise ValueError(f"keep has {len(keep)} tokens; the most are {tables.MOST_KEPT}")
    for (i, one), (j, other) in itertools.product(enumerate(keep), repeat=2):
        overlap = any(one[-length:] == other[:length] for length in range(1, min(len(one), len(other))))
        if not one or overlap or (i != j and one in other):
            raise ValueError(f"keep: {one!r} and {other!r} could overlap in a text")


def _tensorflow_text() -> types.ModuleType:
    try:
        import tensorflow_text  # late: there is none for Windows
    except ImportError as error:
        raise UserError(
            f"a graph that takes text needs tensorflow-text, which cannot be loaded ({error}); install it with"
            f" `pip install tensorflow-text`, or do without such a graph"
        ) from error
    return tensorflow_text
