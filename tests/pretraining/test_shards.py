"""Where a corpus is cut into shards, against a reading of the whole text; and what the manifest keeps and refuses."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import random

import pytest

from bert_tf2.pretraining import CreatePretrainingDataOptions, shards
from bert_tf2.support.errors import UserError

LINES = [b"a b .\n", b"\n", b"\n", b" \t\n", b"c\r\n", b"\r\n", "\u3000\n".encode(), b"\x00\n", "\u00e9 e\n".encode()]


def cut(folder, texts, count):
    names = []
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_bytes(text)
        names.append(str(folder / f"{number}.txt"))
    return shards_of(names, count)


def shards_of(names, count, **settings):
    given = CreatePretrainingDataOptions(
        input_file=",".join(names), output_file=f"{names[0]}.out", vocab_file="none", num_shards=count, **settings
    )
    with shards.opened(names, given.output_file) as sources:
        job = shards.Job(given, None, sources, shards.cut(sources, count, given.input_format))
        return [
            (shard, [line for piece in shard.pieces for line in piece.lines()])
            for shard in map(job.shard, range(count))
        ]


def documents(chunks):
    """(first byte, lines) of each document of files, by the reference's rules and in one pass."""
    found, current, position = [], [], 0
    for chunk in chunks:
        for line in chunk.splitlines(keepends=True) if b"\r" not in chunk else lines_at_lf(chunk):
            text = line.decode().replace("\r", "")
            if text.strip():
                if not current:
                    first = position
                current.append(text.strip())
            elif text and current:
                found.append((first, current))
                current = []
            position += len(line)
    return [*found, (first, current)] if current else found


def lines_at_lf(chunk):
    return [line + b"\n" for line in chunk.split(b"\n")[:-1]] + [chunk.split(b"\n")[-1]]


def documents_of(lines):
    return [found for _, found in documents([b"".join(lines)])]


@pytest.mark.parametrize("seed", range(40))
def test_a_document_is_in_the_shard_of_its_first_byte(tmp_path, seed):
    rng = random.Random(seed)
    texts = [b"".join(rng.choices(LINES, k=rng.randint(0, 30))) for _ in range(rng.randint(1, 4))]
    if seed % 2:
        texts = [text.removesuffix(b"\n") if rng.random() < 0.7 else text + b"\r" for text in texts]
    total = sum(map(len, texts))
    count = rng.randint(1, 9)
    found = cut(tmp_path, texts, count)
    expected = [[] for _ in range(count)]
    bounds = [total * number // count for number in range(count)]
    for first, lines in documents(texts):
        expected[max(number for number in range(count) if bounds[number] <= first)].append(lines)
    assert [documents_of(lines) for _, lines in found] == expected
    assert sum(shard.size for shard, _ in found) == total
    assert all(piece.start < piece.stop for shard, _ in found for piece in shard.pieces)


def test_long_lines_are_searched_backwards_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_BLOCK", 7)
    text = b"x" * 100 + b"\n\n" + b"y" * 60 + b"\n" + b" " * 50 + b"\nz\n"
    assert [shard.size for shard, _ in cut(tmp_path, [text], 2)] == [214, 2]
    assert [shard.size for shard, _ in cut(tmp_path, [text], 3)] == [102, 112, 2]


def test_json_lines_are_cut_at_every_line(tmp_path):
    (tmp_path / "a").write_bytes(b'{"text": "a"}\n{}\n\n{"te')  # the end of a file ends a line
    (tmp_path / "b").write_bytes(b"1\n2\n3\n4\n")
    for count in range(1, 30):
        found = shards_of([f"{tmp_path}/a", f"{tmp_path}/b"], count, input_format="jsonl")
        starts = [0, 14, 17, 18, 22, 24, 26, 28]
        wanted = [[] for _ in range(count)]
        for start, line in zip(
            starts, [b'{"text": "a"}\n', b"{}\n", b"\n", b'{"te\n', b"1\n", b"2\n", b"3\n", b"4\n"], strict=True
        ):
            wanted[max(number for number in range(count) if 30 * number // count <= start)].append(line)
        assert [lines for _, lines in found] == wanted


def test_the_seed_of_a_shard():
    digest = hashlib.sha256(b"12345,7").hexdigest()
    assert shards.seed_of(12345, 7) == int(digest[:8], 16)
    seeds = [shards.seed_of(seed, number) for seed, number in itertools.product(range(30), range(30))]
    assert len({*seeds}) == len(seeds)


def test_names_and_numbers_of_shards():
    assert shards.name_of("out/x", 7, 1000) == "out/x-00007-of-01000"
    assert shards.name_of("x", 123456, 200000) == "x-123456-of-200000"
    assert shards.name_of("out/x.tfrecord.gz", 7, 1000) == "out/x.tfrecord-00007-of-01000.gz"
    assert shards.name_of("out/x", None, 7) == "out/x-*-of-00007"
    assert shards.name_of("out/x.gz", None, 7) == "out/x-*-of-00007.gz"


def test_compressed_files_are_unpacked_beside_the_output(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a\n\nb\n")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"c\n\nd\n\ne\n"))
    found = shards_of([f"{tmp_path}/a.txt", f"{tmp_path}/b.gz"], 2)
    assert [lines for _, lines in found] == [[b"a\n", b"\n", b"b\n", b"c\n", b"\n"], [b"d\n", b"\n", b"e\n"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.gz"]


def test_files_that_cannot_be_cut(tmp_path):
    (tmp_path / "good.gz").write_bytes(gzip.compress(b"a\n"))
    (tmp_path / "half.gz").write_bytes(gzip.compress(b"a b c\n" * 1000)[:-9])
    (tmp_path / "utf16").write_bytes("words".encode("utf-16"))
    for name, words in (
        (f"{tmp_path}/half.gz", "half.gz: the gzip archive is damaged"),
        (f"{tmp_path}/utf16", "utf16: is text in UTF-16"),
        ("/dev/null", "/dev/null: is no regular file"),
    ):
        with pytest.raises(UserError, match=words):
            shards_of([f"{tmp_path}/good.gz", name], 1)
        assert not [path for path in tmp_path.iterdir() if path.name.endswith("partial")]
