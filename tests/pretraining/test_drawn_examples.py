"""The examples as numbers are those of `make_instances`, in memory and in a temporary file."""

from __future__ import annotations

import errno
import hashlib
import itertools
import random
import tempfile

import numpy as np
import pytest
import unmasked_data
from pretraining_text import VOCABULARY

from bert_tf2 import pretraining
from bert_tf2.pretraining import PretrainingDataOptions, corpus, drawn_examples, example_files
from bert_tf2.pretraining.drawn_examples import DrawnExamples
from bert_tf2.pretraining.draws import BufferedDraws
from bert_tf2.pretraining.examples import Example
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer


def random_text(rng):
    """Documents of sentences of words, some of them of several pieces, some unknown; odd blanks and lines."""
    letters = [entry.strip("#") for entry in VOCABULARY if len(entry.strip("#")) == 1]
    lines = []
    for _ in range(rng.randint(1, 9)):
        for _ in range(rng.randint(1, 12)):
            words = ["".join(rng.choices(letters, k=rng.randint(1, 4))) for _ in range(rng.randint(1, 15))]
            words.append(rng.choice(["\u4e2d\u4e2d", "[MASK]", "\ufffd", "caf\u00e9", "a\u2028b", "a\x1cb", "A\u0301"]))
            rng.shuffle(words)
            lines.append(rng.choice([" ", "  ", "\t", " \u00a0", "\u3000"]).join(words))
        lines.extend(["", " \t", "\x00"][: rng.randint(1, 3)])
    return "\n".join(lines)


def as_numbers(paths, tokenizer, options):
    text = corpus.read(paths, tokenizer, options)
    examples = drawn_examples.make(text, tokenizer, options, BufferedDraws(random.Random(options.random_seed)))
    found = [*drawn_examples.batches(examples, text, tokenizer, options, rows_per_batch=7)]
    return {name: np.concatenate([batch[name] for batch in found]).tolist() for name in found[0]} if found else {}


def as_text(paths, tokenizer, options):
    instances = pretraining.make_instances(paths, tokenizer, options, random.Random(options.random_seed))
    sizes = options.max_seq_length, options.max_predictions_per_seq
    rows = [example_files._features(instance, tokenizer, *sizes) for instance in instances]
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


NEW = ({"objective": "mlm"}, {"word_boundaries": "spaces"}, {"objective": "mlm", "word_boundaries": "spaces"})


@pytest.mark.parametrize(
    ("seed", "changes"), [*((seed, {}) for seed in range(30)), *((seed, NEW[seed % 3]) for seed in range(30, 60))]
)
def test_random_texts_and_options(tmp_path, monkeypatch, seed, changes):
    rng = random.Random(seed)
    if seed % 2:  # most examples are in the temporary file
        monkeypatch.setattr(drawn_examples, "_MOST", 5)
        monkeypatch.setattr(drawn_examples, "_ROWS", 3)
    entries = [*VOCABULARY, *rng.choices(VOCABULARY, k=3 * (seed % 2))]  # repeated entries: the last one counts
    (tmp_path / "vocab.txt").write_text("\n".join(entries), encoding="utf-8")
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=bool(seed % 3))
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.write_text(random_text(rng), encoding="utf-8")
    options = PretrainingDataOptions(
        max_seq_length=rng.choice([5, 6, 9, 24, 128, 300]),
        max_predictions_per_seq=rng.choice([1, 4, 20, 80]),
        do_whole_word_mask=rng.random() < 0.5 or "word_boundaries" in changes,
        dupe_factor=rng.choice([1, 3]),
        masked_lm_prob=rng.choice([0.0, 0.15, 0.5, 1.0]),
        short_seq_prob=rng.choice([0.0, 0.1, 1.0]),
        random_seed=seed,
        **changes,
    )
    ours = as_numbers([*map(str, paths)], tokenizer, options)
    theirs = as_text([*map(str, paths)], tokenizer, options)
    assert ours and ours == theirs
    assert ("next_sentence_labels" in ours) == (options.objective == "mlm_nsp")


def test_no_word_is_short_enough_to_be_masked(tmp_path, tokenizer):
    (tmp_path / "text").write_text("ab\ncd\n")
    options = PretrainingDataOptions(do_whole_word_mask=True, max_predictions_per_seq=1, max_seq_length=9)
    ours = as_numbers([str(tmp_path / "text")], tokenizer, options)
    assert ours == as_text([str(tmp_path / "text")], tokenizer, options)


def test_no_text(tmp_path, tokenizer):
    (tmp_path / "text").write_text("\n \n\x00\n")
    assert as_numbers([str(tmp_path / "text")], tokenizer, PretrainingDataOptions()) == {}


def test_a_corpus_is_its_documents(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(corpus, "_MOST_WORDS", 5)  # it is emptied again and again
    path = tmp_path / "text"
    path.write_text(random_text(random.Random(1)), encoding="utf-8")
    assert not corpus.read([str(path)], tokenizer).kinds
    text = corpus.read([str(path)], tokenizer, PretrainingDataOptions(do_whole_word_mask=True))
    wanted = [[tokens for line in part if (tokens := tokenizer.tokenize(line))] for part in parts_of(path.read_text())]
    sentences = [text.tokens[start:end].tolist() for start, end in itertools.pairwise(text.bounds)]
    found = [[*map(tokenizer.convert_ids_to_tokens, sentences[first:last])] for first, last in text.documents]
    assert found == [part for part in wanted if part]
    tokens = tokenizer.convert_ids_to_tokens(text.tokens.tolist())
    assert list(text.kinds) == [not token.startswith("##") for token in tokens]
    strings = corpus.read_strings([str(path)], tokenizer, PretrainingDataOptions())
    assert (strings.tokens, strings.kinds) == (tokens, text.kinds)
    assert (strings.documents, strings.bounds) == (text.documents, text.bounds)


def parts_of(text):
    parts = [[]]
    for line in text.split("\n"):
        parts[-1].append(line) if line.strip() else parts.append([])
    return parts


def test_blank_lines_end_documents_but_files_do_not(tmp_path, tokenizer):
    (tmp_path / "one").write_text("\n\na b\r\n\u3000 \nc\n\n \nd\n")
    (tmp_path / "two").write_text("e\u2028f\n\x00\ng\n\nh")
    text = corpus.read_strings([f"{tmp_path}/one", f"{tmp_path}/two"], tokenizer, PretrainingDataOptions())
    sentences = [" ".join(text.tokens[start:end]) for start, end in itertools.pairwise(text.bounds)]
    # U+3000 alone is a blank line; NUL is a line without tokens, which ends nothing; U+2028 ends no line.
    assert [sentences[first:last] for first, last in text.documents] == [["a b"], ["c"], ["d", "e f", "g"], ["h"]]


SPACES = {"do_whole_word_mask": True, "word_boundaries": "spaces"}


@pytest.mark.parametrize(
    ("changes", "digest"),
    [
        ({}, "cd91fd18912563d9"),
        ({**SPACES, "masked_lm_prob": 0.4}, "022b63896d7e7b48"),
        ({"objective": "mlm", "short_seq_prob": 0.5}, "c37ab52b3f651034"),
        ({"objective": "mlm", **SPACES}, "c1e5cfe6ad54bace"),
        ({"dynamic_masking": True}, "3eb54f1d1babfb46"),
        ({"dynamic_masking": True, "objective": "mlm"}, "153b090946dc3148"),
    ],
)
def test_the_bytes_stay_where_the_reference_has_no_such_option(tmp_path, changes, digest):
    """Of commit 9abd1cf: a corpus that is made again, or continued in shards, must not change."""
    path = unmasked_data.make(tmp_path, dupe_factor=2, **{"dynamic_masking": False, **changes})
    with open(path, "rb") as stream:
        assert hashlib.sha256(stream.read()).hexdigest()[:16] == digest


# The temporary file


MOST_MASKED = 4


def filled(count, folder=None, most_masked=MOST_MASKED):
    rng, examples, expected = random.Random(3), DrawnExamples(most_masked, folder), []
    for _ in range(count):
        masked = [rng.randrange(500) for _ in range(rng.randint(0, most_masked))]
        row = (
            rng.randrange(1 << 40),
            rng.randrange(500),
            rng.randrange(1 << 40),
            rng.randrange(500),
            rng.random() < 0.5,
        )
        expected.append((*row, masked, [rng.randint(-1, 30000) for _ in masked]))
        examples.add(Example(*row, *expected[-1][-2:]))
    return examples, expected


def as_lists(rows):
    names = ("start_a", "length_a", "start_b", "length_b", "random_next")
    found = []
    for row in rows:
        count = row["num_masked"]
        found.append((*(row[name] for name in names), list(row["masked"][:count]), list(row["replacements"][:count])))
    return found


@pytest.mark.parametrize("most", [1, 7, 20, 21, 100])
def test_what_was_added_is_found(tmp_path, monkeypatch, most):
    monkeypatch.setattr(drawn_examples, "_MOST", most)
    monkeypatch.setattr(drawn_examples, "_ROWS", 3)
    examples, expected = filled(20, str(tmp_path))
    assert len(examples) == 20 and (examples._file is None) == (most > 20)
    order = np.random.default_rng(1).permutation(20)
    assert as_lists(examples.rows(order)) == [expected[number] for number in order]
    assert as_lists(examples.rows(order[:1])) == [expected[order[0]]]
    assert len(examples) == 20
    assert examples.num_tokens == sum(row[1] + row[3] for row in expected)
    assert examples.num_masked == sum(len(row[5]) for row in expected)
    assert [*tmp_path.iterdir()] == []


def test_examples_without_masks(monkeypatch):
    monkeypatch.setattr(drawn_examples, "_MOST", 4)
    examples, expected = filled(6, most_masked=0)
    assert as_lists(examples.rows(np.arange(6))) == expected


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(drawn_examples, "_MOST", 4)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **how: Full())
    with pytest.raises(UserError, match=rf"{tmp_path}: cannot be written: No space left on device") as caught:
        filled(4, str(tmp_path))
    assert "\n" not in str(caught.value)
