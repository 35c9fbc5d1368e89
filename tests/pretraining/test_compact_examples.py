"""The examples as numbers are those that `make_instances` makes as text."""

from __future__ import annotations

import random

import numpy as np
import pytest
from pretraining_text import VOCABULARY

from bert_tf2 import pretraining
from bert_tf2.pretraining import PretrainingDataOptions, compact_examples, corpus, drawn_examples, example_files
from bert_tf2.pretraining.draws import Draws
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
    examples = compact_examples.make(text, tokenizer, options, Draws(random.Random(options.random_seed)))
    found = [*compact_examples.batches(examples, text, tokenizer, options, rows_per_batch=7)]
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
    monkeypatch.setattr(corpus._Words, "_MOST", 5)  # it is emptied again and again
    monkeypatch.setattr(corpus._Words, "_LONGEST", 3)
    path = tmp_path / "text"
    path.write_text(random_text(random.Random(1)), encoding="utf-8")
    text = corpus.read([str(path)], tokenizer)
    documents = [*pretraining.read_documents([str(path)], tokenizer)]
    assert len(text.documents) == len(documents)
    for (first, last), document in zip(text.documents, documents, strict=True):
        sentences = [text.ids[start:end].tolist() for start, end in zip(text.bounds, text.bounds[1:], strict=False)]
        wanted = [document.segment(number, number + 1).tokens for number in range(len(document))]
        assert sentences[first:last] == [*map(tokenizer.convert_tokens_to_ids, wanted)]
    tokens = tokenizer.convert_ids_to_tokens(text.ids.tolist())
    assert list(text.continues) == [token.startswith("##") for token in tokens]
