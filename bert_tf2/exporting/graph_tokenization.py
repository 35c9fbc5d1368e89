"""Converts text to ids inside a TensorFlow graph: `tokenization.py` for a saved model, which has no Python.

`GraphTokenizer` returns the same ids as `tokenization.FullTokenizer` for every valid UTF-8 text, and the bytes of the
text that each id represents. The graph contains the tables of `character_tables`, and operates on the concatenated code
points of the whole batch, with a line break after each row:

    code points   T h e   C a f é ' s \\n     é: one code point, or e and an accent
    letters       t h e | c a f e ' s |      blanks become equal, accents and control characters are removed
    words         the, cafe, ', s            split at blanks, and around separate words: punctuation, Chinese
    pieces        the, cafe, ', s            longest entry first, by tensorflow-text or `word_pieces`
    bytes         0-3, 4-9, 9-10, 10-11      from the offset of the code point of each letter

Two rules depend on more than one character. They have separate steps, which run only if the text requires them: a
capital sigma at the end of a word (`_lower_sigmas`), and marks that are not in Unicode's order (`_reorder`).

Letters belong to an internal alphabet (`character_tables.Alphabet`): one letter for each character in the vocabulary,
one letter for all other characters, and one letter for a [MASK] that is kept whole. All letters have the same number of
bytes in UTF-8, so that a division converts the tokenizer's byte offsets to letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import tensorflow as tf

from bert_tf2 import tokenization
from bert_tf2.exporting import character_tables as tables
from bert_tf2.exporting.word_pieces import WordPieces
from bert_tf2.support.errors import UserError
from bert_tf2.support.process import load_tensorflow_text

_CAPITAL_SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C2

# Replaces invalid UTF-8 in decoded text. The real character with this code point has four bytes, but a replaced invalid
# sequence has at most three bytes, so the length distinguishes them.
_REPLACEMENT = 0x10FFFF


class Pieces(NamedTuple):
    """The pieces of a batch of texts: int32 RaggedTensors [B, (pieces)]."""

    ids: tf.RaggedTensor  # the ids in the vocabulary
    # The bytes of the text that a piece represents, the end exclusive. A removed accent belongs to its base character.
    # If the letters of a character are split between pieces (like Hangul in lower case), each piece has all its bytes.
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor
    words: tf.RaggedTensor  # the index, from 0 in each text, of the word or punctuation mark of the piece


class Inputs(NamedTuple):
    """The inputs of the model, and their origin in the texts: int32 [B, F], where F is the longest row of the batch."""

    input_ids: tf.Tensor  # input_ids, input_mask, segment_ids: as in the reference, padded with 0
    input_mask: tf.Tensor
    segment_ids: tf.Tensor
    starts: tf.Tensor  # starts, ends, words: as in `Pieces`, -1 for [CLS], [SEP] and padding
    ends: tf.Tensor
    words: tf.Tensor


class GraphTokenizer(tf.Module):
    """A tokenizer as TensorFlow operations, for use in a `tf.function` and with `tf.saved_model.save`.

    Batches may have any size. Loading a saved model with a GraphTokenizer requires the operations of tensorflow-text,
    if tensorflow-text was installed where the GraphTokenizer was made.
    """

    def __init__(self, tokenizer: tokenization.FullTokenizer, keep_masks: bool = False, for_servers: bool = True):
        """Creates the tables, which takes a second or two; the vocabulary must not change afterwards.

        `keep_masks`: whether [MASK] is also a token that is never split. `for_servers`: whether to require the fast
        operations of tensorflow-text; if False, `word_pieces` replaces tensorflow-text where it is not installed.

        Raises:
          UserError: `tokenizer` is no FullTokenizer; or tensorflow-text is needed, and cannot be loaded.
          NotInVocabularyError: the vocabulary lacks [UNK], [CLS], [SEP], or the [MASK] to keep.
          ValueError: the tokenizer has rules of its own (a subclass), which a graph cannot reproduce.
        """
        super().__init__(name="graph_tokenizer")
        if not isinstance(tokenizer, tokenization.FullTokenizer):
            raise UserError(f"tokenizer={tokenizer!r:.60}: must be a FullTokenizer, such as load(folder).tokenizer")
        if tokenizer.has_own_rules:
            raise ValueError(
                "a tokenizer with rules of its own (a subclass, or another object for words or pieces) works in Python"
                " only: tokenize before the model is called, and export it without signatures for text"
            )
        tensorflow_text = _fast_operations(for_servers)
        self._cls, self._sep = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
        basic = tokenizer.basic_tokenizer
        self._lower, self._strip = basic.do_lower_case, basic.strip_accents
        # The shortest token first, so that the longest token is found last among tokens that begin at one place.
        self._kept = sorted({*tokenizer.never_split, *(["[MASK]"] if keep_masks else [])}, key=len)
        if len(self._kept) > tables.FILLER - tables.KEPT:
            raise UserError(f"{len(self._kept)} tokens are never split; a graph can hold {tables.FILLER - tables.KEPT}")
        characters = tables.describe_characters(self._lower, self._strip, basic.tokenize_chinese_chars)
        alphabet = tables.Alphabet(tokenizer, self._kept, characters.alone)
        self._letters_of = tables.Table(tables.letters_table(characters, alphabet))
        self._context_of = tables.Table(characters.context)
        self._width = alphabet.width
        self._ids = tf.constant([*alphabet.entries.values()], tf.int32)
        self._traced = tf.function(self._tokenize, reduce_retracing=True, autograph=False)
        self._own_pieces = self._wordpiece = None
        if not tensorflow_text:
            self._own_pieces = WordPieces([*alphabet.entries], alphabet.longest_word)
            return
        self._wordpiece = tensorflow_text.FastWordpieceTokenizer(
            [*alphabet.entries],
            max_bytes_per_word=alphabet.longest_word * alphabet.width,
            token_out_type=tf.int32,
            unknown_token=tables.UNKNOWN_ENTRY,
            no_pretokenization=True,
        )

    def tokenize(self, texts: tf.Tensor, name: str = "texts") -> Pieces:
        """Returns the pieces of each text of string [B], without [CLS] and [SEP].

        Raises InvalidArgumentError for a text that is not UTF-8, with its row (from 0) of `name`.
        """
        # One function for all graphs, because tracing the operations in each graph would take a second.
        return self._traced(tf.convert_to_tensor(texts, tf.string), name)

    def _tokenize(self, texts: tf.Tensor, name: str) -> Pieces:
        codes, places, row_splits = _decode(texts, name)
        if self._kept:
            codes = self._keep(codes)
        if self._lower:
            codes = self._lower_sigmas(codes)
        table = self._letters_of(codes)  # [codes, letters of each]
        visible = _where(table[:, 0] != tables.MARK)
        letters, sources = self._spell(codes, table)
        letters, sources, word_splits = _cut(letters, sources)
        numbers, words, begins, ends = self._wordpieces(letters, word_splits)
        first, last = tf.gather(sources, begins), tf.gather(sources, ends - 1)
        # A character ends where the next character that is not its mark begins.
        behind = tf.gather(visible, tf.searchsorted(visible, last, side="right"))
        values = [tf.gather(self._ids, numbers), tf.gather(places, first), tf.gather(places, behind), words]
        return _as_pieces(values, tf.searchsorted(first, row_splits))

    @tf.autograph.experimental.do_not_convert  # not needed without loops over tensors, and it takes time
    def combine(self, first: Pieces, second: Pieces | None, max_seq_length: int) -> Inputs:
        """Makes [CLS] first [SEP], or [CLS] first [SEP] second [SEP], truncated to 3 tokens or more like the reference.

        If the second text of a row has no pieces, or keeps none, the row has a single text.
        """
        second = second or Pieces(*(ragged[:, :0] for ragged in first))
        lengths = [tf.cast(pieces.ids.row_lengths(), tf.int32)[:, None] for pieces in (first, second)]  # [B, 1] each
        kept_first, kept_second = kept_lengths(*lengths, max_seq_length)
        begins = [tf.cast(pieces.ids.row_starts(), tf.int32)[:, None] for pieces in (first, second)]
        total = kept_first + 2 + tf.where(kept_second > 0, kept_second + 1, 0)
        position = tf.range(tf.reduce_max(tf.concat([total[:, 0], [2]], 0)))[None]  # [1, F]; 2 for an empty batch
        at_second = position - kept_first - 2
        in_first = (position > 0) & (position <= kept_first)
        in_second = (at_second >= 0) & (at_second < kept_second)
        # Indexes into all pieces of the first texts, then of the second, then the values of [CLS], [SEP] and padding.
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

    def _keep(self, codes: tf.Tensor) -> tf.Tensor:
        """Replaces each token that is never split by one code point followed by fillers."""
        numbers, lengths = tf.fill(tf.shape(codes), -1), tf.constant([*map(len, self._kept)])
        for number, token in enumerate(self._kept):
            candidates = _where(codes == ord(token[0]))
            window = candidates[:, None] + tf.range(len(token), dtype=tf.int64)
            window = tf.minimum(window, tf.size(codes, tf.int64) - 1)  # the last code, a line break, matches no token
            found = tf.boolean_mask(candidates, tf.reduce_all(tf.gather(codes, window) == [*map(ord, token)], 1))
            numbers = tf.tensor_scatter_nd_update(numbers, found[:, None], tf.fill([tf.size(found)], number))
        starts = _where(numbers >= 0)
        found = tf.gather(numbers, starts)
        ends = starts + tf.cast(tf.gather(lengths, found), tf.int64)
        # A token that begins inside another token does not count.
        end = tf.scan(lambda end, one: tf.where(one[0] >= end, one[1], end), (starts, ends), tf.constant(0, tf.int64))
        counts = starts >= tf.concat([[0], end], 0)[:-1]
        starts, ends, found = (tf.boolean_mask(values, counts) for values in (starts, ends, found))
        within = tf.ragged.range(starts, ends).flat_values
        codes = tf.tensor_scatter_nd_update(codes, within[:, None], tf.fill([tf.size(within)], tables.FILLER))
        return tf.tensor_scatter_nd_update(codes, starts[:, None], tables.KEPT + found)

    def _lower_sigmas(self, codes: tf.Tensor) -> tf.Tensor:
        """Replaces capital sigmas at the end of words by the final form, as `str.lower` does.

        A sigma is at the end of a word if a cased letter precedes it and no cased letter follows it; apostrophes, full
        stops, marks and the like in between are ignored.
        """

        def replace() -> tf.Tensor:
            context = self._context_of(codes)
            opaque = context & tables.TRANSPARENT == 0
            # Whether each non-transparent code point is cased; element 0 precedes all code points.
            cased = tf.concat([[False], tf.boolean_mask(context & tables.CASED > 0, opaque)], 0)
            sigmas = _where(codes == _CAPITAL_SIGMA)
            number = tf.gather(tf.cumsum(tf.cast(opaque, tf.int32)), sigmas)
            final = tf.gather(cased, number - 1) & ~tf.gather(cased, number + 1)
            places = tf.boolean_mask(sigmas, final)[:, None]
            return tf.tensor_scatter_nd_update(codes, places, tf.fill([tf.size(places)], _FINAL_SIGMA))

        return tf.cond(tf.reduce_any(codes == _CAPITAL_SIGMA), replace, lambda: codes)

    def _spell(self, codes: tf.Tensor, table: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the letters (and blanks) of all code points in order, and the source code point of each."""
        flat = tf.reshape(table, [-1])
        used = _where(flat > tables.NOTHING)
        letters, sources = tf.gather(flat, used), used // table.shape[1]
        return (self._reorder(letters, sources, codes) if self._strip else letters), sources

    def _reorder(self, letters: tf.Tensor, sources: tf.Tensor, codes: tf.Tensor) -> tf.Tensor:
        """Sorts the marks that follow a character by their combining class, like Unicode decomposition.

        Accents are removed before, so only the few marks of other kinds (`Mc`) remain. The sources keep their order.
        """

        def sort() -> tf.Tensor:
            starters = self._context_of(codes) & tables.STARTER > 0
            groups = tf.gather(tf.cumsum(tf.cast(starters, tf.int64)), sources)
            order = tf.argsort(groups * (tables.CLASS_MASK + 1) + tf.cast(classes, tf.int64), stable=True)
            return tf.gather(letters, order)

        classes = tf.bitwise.right_shift(letters, tables.CLASS_SHIFT) & tables.CLASS_MASK
        return tf.cond(tf.reduce_any(classes > 0), sort, lambda: letters)

    def _wordpieces(self, letters: tf.Tensor, word_splits: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns four vectors over all pieces: index of the entry, of the word, of the first letter, of the end."""
        if self._own_pieces:
            return self._own_pieces(letters, word_splits)
        words = tf.RaggedTensor.from_row_splits(letters, word_splits, validate=False)
        numbers, starts, ends = self._wordpiece.tokenize_with_offsets(tf.strings.unicode_encode(words, "UTF-8"))
        word = numbers.value_rowids()
        begin = tf.gather(word_splits, word)
        starts, ends = (begin + tf.cast(ragged.values, tf.int64) // self._width for ragged in (starts, ends))
        return numbers.values, word, starts, ends


def _fast_operations(are_needed: bool) -> ModuleType | None:
    """tensorflow-text; None if it is not needed and cannot be loaded."""
    try:
        return load_tensorflow_text("a graph that takes text (unless --text_signatures=false)")
    except UserError:
        if are_needed:
            raise
    return None


def kept_lengths(first: tf.Tensor, second: tf.Tensor, max_seq_length: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns how many pieces of two texts remain, as in `classification.truncate_seq_pair`; `second` may be 0."""
    room = max_seq_length - 3
    kept_second = tf.minimum(second, tf.maximum(room // 2, room - first))
    kept_first = tf.minimum(first, tf.where(second > 0, room - kept_second, max_seq_length - 2))
    return kept_first, kept_second


def character_offsets(texts: tf.Tensor, byte_offsets: tf.Tensor) -> tf.Tensor:
    """Converts byte offsets int32 [B, n] of texts [B] to offsets of characters; negative offsets are unchanged."""
    rows = tf.range(tf.size(texts))[:, None]
    begin = tf.gather(tf.cumsum(tf.strings.length(texts), exclusive=True), rows)
    content = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
    begins_character = tf.cast(content & 0xC0 != 0x80, tf.int32)
    before = tf.concat([[0], tf.cumsum(begins_character)], 0)  # [bytes + 1]
    counted = tf.gather(before, begin + tf.maximum(byte_offsets, 0)) - tf.gather(before, begin)
    return tf.where(byte_offsets < 0, byte_offsets, counted)


def _where(condition: tf.Tensor) -> tf.Tensor:
    """Returns the indexes, int64 [n], at which a vector is true."""
    return tf.where(condition)[:, 0]


def _decode(texts: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Decodes a batch to one vector of code points, with a line break after each row: [N], [N], [B + 1].

    Returns the code points (int32), the byte offset of each in its text, and the row splits (both int64).
    """
    closed = tf.strings.join([texts, "\n"])
    codes, places = tf.strings.unicode_decode_with_offsets(
        closed, "UTF-8", errors="replace", replacement_char=_REPLACEMENT
    )

    def check() -> tf.Operation:
        lengths = places.flat_values[1:] - places.flat_values[:-1]
        wrong = _where((codes.flat_values[:-1] == _REPLACEMENT) & (lengths != 4))
        row = tf.searchsorted(codes.row_splits, wrong[:1], side="right") - 1
        number = tf.strings.reduce_join(tf.strings.as_string(row))  # a scalar, "" if nothing is wrong
        sentence = tf.strings.join(["row ", number, f" of {name} is not valid UTF-8"])
        return tf.debugging.Assert(tf.size(wrong) == 0, [sentence])

    checked = tf.cond(tf.reduce_any(codes.flat_values == _REPLACEMENT), check, tf.no_op)
    with tf.control_dependencies([] if checked is None else [checked]):
        return tf.identity(codes.flat_values), places.flat_values, codes.row_splits


def _cut(letters: tf.Tensor, sources: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Splits letters and blanks into words; returns the letters of the words, their sources, and the word splits."""
    alone = letters & tables.ALONE > 0
    begins = alone | tf.concat([[True], alone[:-1]], 0)
    kept = _where(letters != tables.BLANK)
    letters, sources, begins = (tf.gather(values, kept) for values in (letters, sources, begins))
    word_splits = tf.concat([_where(begins), [tf.size(letters, tf.int64)]], 0)
    return tf.bitwise.right_shift(letters, tables.LETTER_SHIFT), sources, word_splits


def _as_pieces(values: Sequence[tf.Tensor], row_splits: tf.Tensor) -> Pieces:
    """Converts flat values; words are numbered over the batch on input, and within each row on output."""
    ids, starts, ends, words = (
        tf.RaggedTensor.from_row_splits(tf.cast(flat, tf.int32), row_splits, validate=False) for flat in values
    )
    first_piece = tf.gather(row_splits, words.value_rowids())
    return Pieces(ids, starts, ends, words.with_values(words.values - tf.gather(words.values, first_piece)))
