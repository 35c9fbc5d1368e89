"""Vocabularies learned from small texts: their order, their size, and their use by the tokenizer."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from command_lines import ROOT, environment
from refused import refuses

from bert_tf2 import commands, tokenization
from bert_tf2.pretraining import build_vocab

TEXTS = [
    "Walking and talking, the walkers walked; the talkers talked.",
    "Nobody was walking. Everybody was talking!",
    "The walk was long, the talk was longest: 北京 and São Paulo.",
] * 3


def entries_of(texts=TEXTS, vocab_size=30522, **settings) -> list[str]:
    return build_vocab.build_vocab(texts, vocab_size, **{"num_unused": 0, **settings})


def test_reserved_entries_are_where_the_released_vocabularies_have_them():
    entries = entries_of(num_unused=99)
    places = {"[PAD]": 0, "[unused0]": 1, "[unused98]": 99, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    assert {entry: entries.index(entry) for entry in places} == places
    assert entries_of()[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_words_are_counted_as_the_tokenizer_makes_them():
    assert build_vocab.count_words(["The café.", "the 北京 CAFE"]) == {"the": 2, "cafe": 2, ".": 1, "北": 1, "京": 1}
    assert build_vocab.count_words(["The the"], do_lower_case=False) == {"The": 1, "the": 1}


@pytest.mark.parametrize("vocab_size", [70, 30522])
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_a_learned_vocabulary_spells_its_own_text(vocab_size, do_lower_case):
    entries = entries_of(vocab_size=vocab_size, do_lower_case=do_lower_case, num_unused=2)
    assert len(entries) == len({*entries}) <= vocab_size
    tokenizer = tokenization.WordpieceTokenizer(dict.fromkeys(entries, 0))
    for word in build_vocab.count_words(TEXTS, do_lower_case):
        assert "".join(piece.removeprefix("##") for piece in tokenizer.tokenize(word)) == word
    assert {"北", "京", ",", "a", "##a"} <= {*entries}
    assert not {"##北", "##,"} & {*entries}  # the tokenizer never glues these to anything
    if vocab_size > 100:  # room for all: whole words that are frequent need one piece
        assert all(tokenizer.tokenize(word) == [word] for word in ("walking", "talking", "was", "the"))


def test_the_size_is_used_up_and_frequent_pieces_come_first():
    """In each of the three copies of the text "alking", "the" and "was" occur four times; nothing else is as frequent
    after the longest form is counted (of "talk" for example "talking" leaves three occurrences)."""
    everything = entries_of()
    characters = [entry for entry in everything[5:] if len(entry.removeprefix("##")) == 1]
    fixed = 5 + len(characters)
    assert everything[5:fixed] == characters and len(everything) > fixed + 12
    for size in range(fixed, fixed + 12):
        assert len(found := entries_of(vocab_size=size)) == size and found[5:fixed] == characters
        if size in (fixed + 2, fixed + 3):
            assert found[fixed:] == ["##alking", "the", "was"][: size - fixed]


def test_rare_pieces_and_characters_are_left_out(caplog):
    texts = ["ab ab ab cd"]
    assert entries_of(texts, min_count=1)[-2:] == ["ab", "cd"] and entries_of(texts, min_count=2)[-1] == "ab"
    assert entries_of(texts, min_count=4)[5:] == [*"abcd", "##a", "##b", "##c", "##d"]
    assert not caplog.records
    assert entries_of(["! ! ! a a b , ,"], 8)[5:] == ["!", ",", "a"]
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "1 rarest of 4 characters" in record.getMessage()


def test_mistakes_are_one_line():
    refuses("--vocab_size=104", build_vocab.build_vocab, TEXTS, vocab_size=104)
    refuses("--input_file", build_vocab.build_vocab, ["", " \u200b\n"])


@pytest.mark.parametrize("changes", [{}, {"input_format": "jsonl", "text_field": "body"}], ids=str)
def test_the_script_reads_all_that_examples_are_made_of(tmp_path, changes):
    if changes:
        pytest.importorskip("sentencex")
    texts = [json.dumps({"id": "x7", "body": text}) if changes else text for text in TEXTS]
    for number in range(3):
        (tmp_path / f"part{number}").write_text("\n".join(texts[3 * number :][:3]), encoding="utf-8")
    files = {"input_file": f"{tmp_path}/part[01],{tmp_path}/part2", "vocab_file": f"{tmp_path}/new/vocab.txt"}
    entries = commands.call("build_vocab", vocab_size=150, **files, **changes)
    assert entries == build_vocab.build_vocab(TEXTS, 150)
    assert (tmp_path / "new" / "vocab.txt").read_text("utf-8").split("\n") == [*entries, ""]


@pytest.mark.parametrize("threshold", [1, 2, 7])
def test_the_pieces_are_those_of_tensorflow_text(threshold):
    """Its learner counts every substring of every word; here only the ends of words are counted."""
    learner = pytest.importorskip("tensorflow_text.tools.wordpiece_vocab.wordpiece_tokenizer_learner_lib")
    used = {"num_iterations": 4, "max_token_length": 50, "include_joiner_token": True, "joiner": "##"}
    settings = learner.Params(**{**dict.fromkeys(learner.Params._fields), **used, "reserved_tokens": []})
    texts = pathlib.Path(ROOT, "docs", "how_bert_works.md").read_text(encoding="utf-8").splitlines()
    words = [item for item in build_vocab.count_words(texts).most_common() if len(item[0]) <= 50]
    expected = learner.learn_with_thresh(words, threshold, settings)
    found = entries_of(texts, min_count=threshold)
    assert [piece for piece in found[5:] if len(piece.removeprefix("##")) > 1] == [
        piece for piece in expected if len(piece.removeprefix("##")) > 1
    ]


@pytest.mark.slow
def test_every_run_writes_the_same_file(tmp_path):
    """Also with another seed of Python's string hashes, which order its sets."""
    (tmp_path / "text").write_text("\n".join(TEXTS), encoding="utf-8")
    flags = [f"--input_file={tmp_path}/text", f"--vocab_file={tmp_path}/vocab.txt", "--vocab_size=150"]
    command = [sys.executable, f"{ROOT}/build_vocab.py", *flags]
    subprocess.run(command, env=environment(PYTHONHASHSEED="2"), capture_output=True, check=True)
    found = (tmp_path / "vocab.txt").read_text("utf-8").split("\n")
    assert found == [*build_vocab.build_vocab(TEXTS, 150), ""]


def test_the_vocabulary_of_weights_is_not_replaced(tmp_path):
    (tmp_path / "text").write_text("\n".join(TEXTS))
    vocab = tmp_path / "vocab.txt"
    given = {"input_file": str(tmp_path / "text"), "vocab_file": str(vocab)}
    commands.call("build_vocab", **given)
    learned = vocab.read_text()
    vocab.write_text("[PAD]\n")
    commands.call("build_vocab", **given)
    assert vocab.read_text() == learned
    vocab.write_text("[PAD]\n")
    (tmp_path / "bert_model.ckpt.index").touch()
    refuses(f"{vocab} weights --vocab_file", commands.call, "build_vocab", **given)
    assert vocab.read_text() == "[PAD]\n"
