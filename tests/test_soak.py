"""Short forms of the programs in tests/soak: the same code, on few files and strings."""

from __future__ import annotations

import random

import pytest
from soak import flip_bytes, tokenize_strings

# The kinds whose readers need no TensorFlow take milliseconds each; the others read with Keras.
_KERAS = (".keras",)


@pytest.mark.parametrize("kind", flip_bytes.KINDS, ids=lambda kind: kind.name)
def test_no_flipped_byte_goes_unseen(tmp_path, kind):
    counts, faults = flip_bytes.try_kind(kind, 12 if kind.name in _KERAS else 60, random.Random(3), tmp_path / "files")
    assert faults == []
    assert counts["found"] > counts["harmless"] and (counts["told"] == 0 or kind.file == "config.json")


@pytest.fixture(scope="module")
def sides(tmp_path_factory) -> list[tokenize_strings.Sides]:
    vocab_file = tokenize_strings.write_vocabulary(tmp_path_factory.mktemp("vocabulary"))
    return [tokenize_strings.Sides(vocab_file, lower) for lower in (True, False)]


def test_random_strings(sides):
    assert tokenize_strings.compare_strings(sides, seed=3, count=3000) == 2 * 4 * 3000


@pytest.mark.slow
def test_random_strings_in_the_graph(tmp_path):
    pytest.importorskip("tensorflow_text")
    vocab_file = tokenize_strings.write_vocabulary(tmp_path)
    graphs = [tokenize_strings.Sides(vocab_file, lower, graph=True) for lower in (True, False)]
    assert tokenize_strings.compare_strings(graphs, seed=4, count=2000) > 2 * 4 * 2000


def test_some_of_all_code_points(sides):
    codes = [*range(0x600), *range(0x600, tokenize_strings.CODES, 331)]
    assert tokenize_strings.compare_codes(sides, codes) == 2 * 4 * 3 * len(codes)


def test_a_tokenizer_of_other_rules_is_a_difference(tmp_path):
    side = tokenize_strings.Sides(tokenize_strings.write_vocabulary(tmp_path), lower=True)
    side.full.wordpiece_tokenizer.max_input_chars_per_word = 100
    with pytest.raises(AssertionError, match=r"FullTokenizer, uncased, .* instead of \['a"):
        side.compare("a" * 150)
