"""Vocabularies learned from small texts: their order, their size, and their use by the tokenizer."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import pytest
import text_operations
from command_lines import ROOT, environment

from bert_tf2 import tokenization
from bert_tf2.pretraining import build_vocab
from bert_tf2.support.errors import UserError

TEXTS = [
    "Walking and talking, the walkers walked; the talkers talked.",
    "Nobody was walking. Everybody was talking!",
    "The walk was long, the talk was longest: 北京 and São Paulo.",
] * 3


@pytest.fixture(scope="module", autouse=True)
def _learner_is_there():
    text_operations.need()


def run_script(*flags: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(ROOT / "build_vocab.py"), *flags],
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )


def test_reserved_entries_stand_where_the_released_vocabularies_have_them():
    entries = build_vocab.reserved_entries(99)
    places = {"[PAD]": 0, "[unused0]": 1, "[unused98]": 99, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    assert {entry: entries.index(entry) for entry in places} == places
    assert len(entries) == 104
    assert build_vocab.reserved_entries(0) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_words_are_counted_as_the_tokenizer_makes_them():
    assert build_vocab.count_words(["The café.", "the 北京 CAFE"]) == {"the": 2, "cafe": 2, ".": 1, "北": 1, "京": 1}
    assert build_vocab.count_words(["The the"], do_lower_case=False) == {"The": 1, "the": 1}


@pytest.mark.parametrize("vocab_size", [70, 80, 30522])
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_a_learned_vocabulary_spells_its_own_text(vocab_size, do_lower_case):
    entries = build_vocab.build_vocab(TEXTS, vocab_size, do_lower_case, num_unused=2)
    assert len(entries) == len(set(entries)) <= vocab_size
    words = build_vocab.count_words(TEXTS, do_lower_case)
    tokenizer = tokenization.WordpieceTokenizer(dict.fromkeys(entries, 0))
    for word in words:
        pieces = tokenizer.tokenize(word)
        assert "".join(piece.removeprefix("##") for piece in pieces) == word
    assert {"北", "京", ",", "a", "##a"} <= set(entries)
    assert not {"##北", "##,"} & set(entries)  # the tokenizer never glues these to anything
    if vocab_size > 100:  # room for all: whole words that are frequent need one piece
        assert all(tokenizer.tokenize(word) == [word] for word in ("walking", "talking", "was", "the"))


def test_the_size_is_used_up_and_frequent_pieces_come_first():
    everything = build_vocab.build_vocab(TEXTS, num_unused=0)
    characters = [entry for entry in everything if len(entry.removeprefix("##")) == 1]
    assert everything[5 : 5 + len(characters)] == characters  # right behind the special tokens
    assert len(everything) > 5 + len(characters) + 12
    for size in range(5 + len(characters), 5 + len(characters) + 12):
        entries = build_vocab.build_vocab(TEXTS, size, num_unused=0)
        assert len(entries) == size
        assert set(characters) <= set(entries)


def test_the_first_pieces_by_hand():
    """In each of the three copies of the text "alking", "the" and "was" occur four times; nothing else is as frequent
    after the longest form is counted (of "talk" for example "talking" leaves three occurrences)."""
    characters = [entry for entry in build_vocab.build_vocab(TEXTS, num_unused=0) if len(entry.strip("#")) == 1]
    for room in (2, 3):
        entries = build_vocab.build_vocab(TEXTS, 5 + len(characters) + room, num_unused=0)
        assert entries[-room:] == ["##alking", "the", "was"][:room]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "changes", [{}, {"input_format": "text"}, {"input_format": "jsonl", "text_field": "body"}], ids=str
)
def test_it_reads_what_examples_are_made_of(tmp_path, log_lines, changes, packed):
    if changes:
        pytest.importorskip("sentencex")
    is_json = "text_field" in changes
    texts = [json.dumps({"id": "x7", "body": text}) if is_json else text for text in TEXTS]
    content = "\n".join(texts).encode()
    (tmp_path / "corpus").write_bytes(gzip.compress(content) if packed else content)
    named = {"input_file": f"{tmp_path}/corpus", "vocab_file": f"{tmp_path}/vocab.txt", "vocab_size": 150}
    assert build_vocab.run(build_vocab.BuildVocabOptions(**named, **changes)) == build_vocab.build_vocab(TEXTS, 150)
    if is_json:
        build_vocab.run(build_vocab.BuildVocabOptions(**named))
        assert [line for line in log_lines if "for JSON lines give --input_format=jsonl" in line]


def test_min_count_keeps_rare_pieces_out():
    texts = ["ab ab ab cd"]
    assert build_vocab.build_vocab(texts, num_unused=0, min_count=1)[-2:] == ["ab", "cd"]
    assert build_vocab.build_vocab(texts, num_unused=0, min_count=2)[-1] == "ab"
    assert build_vocab.build_vocab(texts, num_unused=0, min_count=4)[5:] == [*"abcd", "##a", "##b", "##c", "##d"]


def test_without_room_for_all_characters_the_rarest_go_with_a_warning(caplog):
    with caplog.at_level("WARNING", logger="absl"):
        entries = build_vocab.build_vocab(["! ! ! a a b , ,"], vocab_size=8, num_unused=0)
    assert entries[5:] == ["!", ",", "a"]
    assert [record.getMessage() for record in caplog.records] == [
        "the vocabulary has no room for the 1 rarest of 4 characters; words with them become [UNK]"
    ]


def test_words_longer_than_the_learner_takes_can_still_be_spelt():
    entries = build_vocab.build_vocab(["x" * 60 + "y", "z z"], num_unused=0)
    tokenizer = tokenization.WordpieceTokenizer(dict.fromkeys(entries, 0))
    assert tokenizer.tokenize("x" * 60 + "y") == ["x"] + ["##x"] * 59 + ["##y"]


def test_wrong_sizes_and_empty_texts_are_refused():
    with pytest.raises(UserError, match=r"--vocab_size=104 leaves no room .* the 104 special"):
        build_vocab.build_vocab(TEXTS, vocab_size=104)
    with pytest.raises(UserError, match="no words"):
        build_vocab.build_vocab(["", " \u200b\n"])


def test_a_missing_learner_is_said_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(UserError, match="pip install tensorflow-text") as caught:
        build_vocab.build_vocab(TEXTS)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_script_writes_the_same_file_in_every_run(tmp_path):
    for index, text in enumerate(TEXTS):
        (tmp_path / f"part{index}.txt").write_text(text + "\n", encoding="utf-8")
    target = tmp_path / "out" / "vocab.txt"
    expected = [*build_vocab.build_vocab(TEXTS, 150), ""]
    for seed in ("1", "2"):  # of Python's string hashes, which order its sets
        done = run_script(
            f"--input_file={tmp_path}/part[0-4].txt,{tmp_path}/part[5-9].txt",
            f"--vocab_file={target}",
            "--vocab_size=150",
            PYTHONHASHSEED=seed,
        )
        assert done.returncode == 0, done.stderr
        assert target.read_text("utf-8").split("\n") == expected
    assert tokenization.load_vocab(str(target))["[MASK]"] == 103
