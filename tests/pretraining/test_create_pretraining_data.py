"""create_pretraining_data.py in one process: its files, its log, and the answer to a wrong command line."""

from __future__ import annotations

import gzip

import pytest
from pretraining_text import SETTINGS, VOCABULARY, data_options, rows_of
from refused import refuses

from bert_tf2 import commands
from bert_tf2.pretraining import sharded


def make(folder, output="out", **changes):
    sharded.run(data_options(folder, output, **changes))
    return folder / output


def test_examples_go_to_the_files_in_turn(tmp_path, corpus, vocab_file):
    """Long ones are encoded a few at a time."""
    everything = rows_of(make(tmp_path, "all", max_seq_length=5_000, objective="mlm", short_seq_prob=1.0))
    files = ",".join(f"{tmp_path}/new/{name}" for name in "xyz")
    make(tmp_path, max_seq_length=5_000, objective="mlm", short_seq_prob=1.0, output_file=files)
    assert len(everything) > 30
    for number, name in enumerate("xyz"):
        assert rows_of(tmp_path / "new" / name) == everything[number::3]


def test_the_log(tmp_path, corpus, vocab_file, log_lines):
    first, *rest = rows_of(make(tmp_path, input_file=f"{corpus},{tmp_path}/gone.txt,{tmp_path}/*.nothing"))
    tokens = [VOCABULARY[i] for i in first["input_ids"][: sum(first["input_mask"])]]
    (line,) = [line for line in log_lines if " ".join(tokens) in line]
    assert f" {len(rest) + 1} examples" in line and f"Wrote {len(rest) + 1} examples" in log_lines
    assert log_lines[-1].endswith(f"wrote  {tmp_path}/out")
    assert all(any(name in line for line in log_lines) for name in ("gone.txt", "*.nothing"))


def test_compressed_records_depend_on_the_content_alone(tmp_path, corpus, vocab_file):
    packed = make(tmp_path, "packed.gz").read_bytes()
    assert gzip.decompress(packed) == make(tmp_path, "plain").read_bytes()
    assert packed[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"  # no name, no time
    (tmp_path / "corpus.txt").write_text("\n \n\x00\n")  # not a token
    make(tmp_path, output_file=f"{tmp_path}/x,{tmp_path}/y.gz")
    assert (tmp_path / "x").read_bytes() == gzip.decompress((tmp_path / "y.gz").read_bytes()) == b""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_file": "*.text,gone.txt"}, "*.text"),
        ({"input_file": "latin1.txt"}, "latin1.txt, line 2 UTF-8 0xe9"),
        ({"vocab_file": "few.txt"}, "few.txt [SEP], [MASK]"),
        ({"max_seq_length": 4}, "--max_seq_length=4 5"),
        ({"output_file": "out,./out"}, "--output_file=./out twice"),
        ({"output_file": "corpus.txt"}, "--output_file=corpus.txt read"),
        ({"output_file": "out,"}, "--output_file empty"),
        ({"output_file": None, "vocab_file": None}, "output_file and vocab_file"),
        ({"whole_word_draw": "word"}, "--whole_word_draw --do_whole_word_mask"),
    ],
    ids=str,
)
def test_a_mistake_gets_one_line_and_leaves_nothing(tmp_path, monkeypatch, corpus, vocab_file, change, words):
    (tmp_path / "latin1.txt").write_bytes(b"a b c .\ncaf\xe9 .\n")
    (tmp_path / "few.txt").write_text("[PAD]\n[UNK]\n[CLS]\na\n")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    given = {"input_file": "corpus.txt", "output_file": "out", "vocab_file": "vocab.txt", **SETTINGS, **change}
    given = {name: value for name, value in given.items() if value is not None}
    refuses(words, commands.call, "create_pretraining_data", **given)
    assert sorted(tmp_path.rglob("*")) == before
