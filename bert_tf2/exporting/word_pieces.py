"""Splits words into entries of the vocabulary with TensorFlow's own operations, if tensorflow-text is not installed.

A trie has the entries. All words of a batch walk through the trie in parallel, a letter in each step. If no entry has
the next letter of a word, the longest entry on the way is its next piece, and the walk restarts after that piece.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_LETTER_BITS = 21  # the number of bits of a code point
_WORD, _CONTINUATION = 0, 1  # the roots of the trie: for entries that begin a word, and for entries "##..."


class WordPieces(tf.Module):
    """Splits words into the longest entries, like FastWordpieceTokenizer of tensorflow-text."""

    def __init__(self, entries: Sequence[str], longest_word: int):
        """`entries`: the first entry is for unknown words, also for words of more than `longest_word` letters."""
        super().__init__(name="word_pieces")
        children: dict[int, int] = {}  # node and letter -> next node
        ends = {}  # node -> the entry that ends at the node
        for number, entry in enumerate(entries[1:], 1):
            text = entry.removeprefix("##")
            node = _WORD if text == entry else _CONTINUATION
            for letter in text:
                node = children.setdefault(node << _LETTER_BITS | ord(letter), len(children) + 2)
            ends[node] = number
        keys = sorted(children)
        numbers = np.full(len(children) + 2, -1, np.int32)
        numbers[[*ends]] = [*ends.values()]
        self._keys = tf.constant([-1, *keys], tf.int64)  # never empty
        self._nodes = tf.constant([0, *(children[key] for key in keys)], tf.int64)
        self._numbers = tf.constant(numbers)
        self._longest = longest_word

    def __call__(self, letters: tf.Tensor, word_splits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The pieces of words.

        Args:
          letters: int32 [N], the letters of all words.
          word_splits: int64 [W + 1], the index in `letters` at which each word begins, and the end of the last word.

        Returns:
          Four vectors [P] over the pieces: the index of the entry, int32; the index of the word, and the begin and the
          end (exclusive) of the piece in `letters`, int64.
        """
        begins, ends = word_splits[:-1], word_splits[1:]
        count = tf.size(letters, tf.int64)
        too_long = ends - begins > self._longest
        walking = tf.where(~too_long)[:, 0]
        first = tf.gather(begins, walking)
        none = tf.fill(tf.shape(walking), -1)
        # found: for all letters, the entry that begins at the letter and the end of the entry; for all words, whether
        # the word is unknown. walk: for the words that walk, the word, its node, the next letter, the begin of the
        # piece, the longest entry so far and the end of that entry.
        found = tf.fill([count], -1), tf.zeros([count], tf.int64), too_long
        walk = walking, tf.zeros_like(first) + _WORD, first, first, none, first
        shapes = [tensor.shape for tensor in found] + [tf.TensorShape([None])] * len(walk)
        numbers, piece_ends, unknown, *_ = tf.while_loop(
            lambda numbers, piece_ends, unknown, words, *walk: tf.size(words) > 0,
            lambda numbers, piece_ends, unknown, *walk: self._step(letters, ends, (numbers, piece_ends, unknown), walk),
            [*found, *walk],
            shape_invariants=shapes,
            parallel_iterations=1,
        )
        word_of = tf.repeat(tf.range(tf.size(begins, tf.int64)), ends - begins)
        numbers = tf.where(tf.gather(unknown, word_of), -1, numbers)
        whole = tf.where(unknown)[:, 0]
        places = tf.gather(begins, whole)[:, None]
        numbers = tf.tensor_scatter_nd_update(numbers, places, tf.zeros([tf.size(whole)], tf.int32))
        piece_ends = tf.tensor_scatter_nd_update(piece_ends, places, tf.gather(ends, whole))
        starts = tf.where(numbers >= 0)[:, 0]
        return tf.gather(numbers, starts), tf.gather(word_of, starts), starts, tf.gather(piece_ends, starts)

    def _step(self, letters: tf.Tensor, ends: tf.Tensor, found: tuple, walk: tuple) -> list[tf.Tensor]:
        """Moves by a letter in each word that has a next node, and ends the piece of each other word."""
        (numbers, piece_ends, unknown), (words, nodes, places, starts, longest, longest_ends) = found, walk
        end = tf.gather(ends, words)
        letter = tf.cast(tf.gather(letters, tf.minimum(places, end - 1)), tf.int64)
        key = tf.bitwise.left_shift(nodes, tf.constant(_LETTER_BITS, tf.int64)) | letter
        at = tf.minimum(tf.searchsorted(self._keys, key, out_type=tf.int64), tf.size(self._keys, tf.int64) - 1)
        moves = (places < end) & (tf.gather(self._keys, at) == key)
        nodes = tf.where(moves, tf.gather(self._nodes, at), nodes)
        places += tf.cast(moves, tf.int64)
        number = tf.where(moves, tf.gather(self._numbers, nodes), -1)
        longest_ends = tf.where(number >= 0, places, longest_ends)
        longest = tf.where(number >= 0, number, longest)

        ended = ~moves & (longest >= 0)
        pieces = tf.boolean_mask(starts, ended)[:, None]
        numbers = tf.tensor_scatter_nd_update(numbers, pieces, tf.boolean_mask(longest, ended))
        piece_ends = tf.tensor_scatter_nd_update(piece_ends, pieces, tf.boolean_mask(longest_ends, ended))
        lost = ~moves & (longest < 0)
        unknown = tf.tensor_scatter_nd_update(unknown, words[:, None], lost)
        starts, places = tf.where(ended, longest_ends, starts), tf.where(ended, longest_ends, places)
        nodes, longest = tf.where(ended, tf.constant(_CONTINUATION, tf.int64), nodes), tf.where(ended, -1, longest)
        stays = ~lost & ~(ended & (longest_ends >= end))
        walk = (words, nodes, places, starts, longest, longest_ends)
        return [numbers, piece_ends, unknown, *(tf.boolean_mask(values, stays) for values in walk)]
