"""New entries for a vocabulary, and the rows that they get."""

import numpy as np
import pytest
from refused import message_of
from small_models import small_config

from bert_tf2.tokenization import BasicTokenizer
from bert_tf2.weights import bundle
from bert_tf2.weights.new_words import Extension, with_more_positions, with_new_words
from bert_tf2.weights.new_words import extend as extend_for

VOCABULARY = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "vi", "##rus", "##es", "the"]


def words_file(tmp_path, *lines: str) -> str:
    path = tmp_path / "new_words.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def extend(vocabulary: list[str], path: str, lower: bool, **settings) -> Extension:
    return extend_for(vocabulary, path, BasicTokenizer(lower), **settings)


def test_unused_places_first_then_the_end(tmp_path):
    extension = extend(VOCABULARY, words_file(tmp_path, "virus", "", "the", "viruses", "virus", "vi"), True)
    assert extension.vocabulary == [
        *("[PAD]", "virus", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "viruses", "vi", "##rus", "##es", "the"),
    ]
    assert extension.pieces == {1: [7, 8], 6: [7, 8, 9]}
    assert extension.words == ["virus", "the", "viruses", "vi"]
    assert extension.describe(len(VOCABULARY)) == (
        "Vocabulary: 2 new entries, 2 of them in [unused] places, 0 at the end; 2 were there already"
    )


@pytest.mark.parametrize(
    ("word", "lower", "part"),
    [
        ("covid-19", True, "'covid - 19'"),
        ("Virus", True, "'virus'"),
        ("two words", False, "'two words'"),
        ("é", True, "'e'"),
        ("##xs", True, "'# # xs'"),
        ("v" * 201, True, "one of more than 200 characters is [UNK]"),
    ],
)
def test_words_that_no_text_would_ever_hold(tmp_path, word, lower, part):
    message = message_of(extend, VOCABULARY, words_file(tmp_path, "virus", word), lower)
    assert f"new_words.txt, line 2: {word!r} would never be found" in message and part in message


def test_files_of_no_words_and_vocabularies_of_no_bert(tmp_path):
    assert "has no [UNK]" in message_of(extend, ["a", "b"], words_file(tmp_path, "virus"), True)
    assert "holds no word" in message_of(extend, VOCABULARY, words_file(tmp_path, "", " "), True)
    assert extend(VOCABULARY, words_file(tmp_path, "Virus"), False).vocabulary[1] == "Virus"


def test_what_cannot_be_spelt_begins_as_unknown(tmp_path):
    extension = extend(VOCABULARY, words_file(tmp_path, "xyz", "rus", "thee"), True)
    assert extension.pieces == {1: [2], 6: [2], 11: [2]}


def test_entries_with_blanks_around_them_are_known(tmp_path):
    vocabulary = [f"{entry} " for entry in VOCABULARY]
    extension = extend(vocabulary, words_file(tmp_path, "the", "virus"), True)
    assert (extension.words, extension.pieces) == (["the", "virus"], {1: [7, 8]})


def source(tmp_path, rows: int):
    random = np.random.default_rng(0)
    arrays = {
        "bert/embeddings/word_embeddings": random.normal(size=[rows, 8]).astype(np.float32),
        "bert/embeddings/word_embeddings/adam_m": random.normal(size=[rows, 8]).astype(np.float32),
        "cls/predictions/output_bias": random.normal(size=[rows]).astype(np.float32),
        "bert/pooler/dense/bias": random.normal(size=[8]).astype(np.float32),
    }
    bundle.write(str(tmp_path / "model.ckpt"), arrays.items())
    return bundle.Checkpoint(str(tmp_path / "model.ckpt")), arrays


def test_new_rows_are_the_mean_of_their_pieces(tmp_path):
    old, arrays = source(tmp_path, len(VOCABULARY))
    extension = extend(VOCABULARY, words_file(tmp_path, "virus", "viruses", "thees"), True)
    new = with_new_words(old, small_config(vocab_size=len(VOCABULARY)), extension)
    assert new.config.vocab_size == 12
    for name in ("bert/embeddings/word_embeddings", "cls/predictions/output_bias"):
        before, after = arrays[name], new.get(name)
        assert new.shapes[name] == list(after.shape) == [12, *before.shape[1:]]
        for index, pieces in {1: [7, 8], 6: [7, 8, 9], 11: [10, 9]}.items():
            np.testing.assert_allclose(after[index], sum(before[piece] for piece in pieces) / len(pieces), rtol=1e-6)
        kept = [index for index in range(11) if index not in (1, 6)]
        np.testing.assert_array_equal(after[kept], before[kept])
    slots = new.get("bert/embeddings/word_embeddings/adam_m")
    assert not slots[[1, 6, 11]].any()
    np.testing.assert_array_equal(slots[7:11], arrays["bert/embeddings/word_embeddings/adam_m"][7:])
    np.testing.assert_array_equal(new.get("bert/pooler/dense/bias"), arrays["bert/pooler/dense/bias"])


def test_rows_without_an_entry_are_taken_first(tmp_path):
    """Some tables are larger than their vocabulary, for the sake of a round number."""
    old, _ = source(tmp_path, 16)
    extension = extend(VOCABULARY, words_file(tmp_path, "virus", "viruses", "thees"), True)
    new = with_new_words(old, small_config(vocab_size=16), extension)
    assert new.config.vocab_size == 16
    assert new.get("bert/embeddings/word_embeddings").shape == (16, 8)


# More positions


def test_positions_are_copied_over_and_over(tmp_path):
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = {"bert/embeddings/position_embeddings": table, "bert/embeddings/position_embeddings/adam_v": table + 1}
    bundle.write(str(tmp_path / "model.ckpt"), arrays.items())
    old = bundle.Checkpoint(str(tmp_path / "model.ckpt"))
    new = with_more_positions(old, small_config(max_position_embeddings=3), 7)
    assert new.config == small_config(max_position_embeddings=7)
    assert {*map(tuple, new.shapes.values())} == {(7, 4)}
    np.testing.assert_array_equal(new.get("bert/embeddings/position_embeddings"), table[[0, 1, 2, 0, 1, 2, 0]])
    slot = new.get("bert/embeddings/position_embeddings/adam_v")
    np.testing.assert_array_equal(slot, [*table + 1, *np.zeros([4, 4])])
