"""Corpora as they are published: read if gzip, bzip2 or xz compressed them; other archives are called by their name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pytest
import text_operations
from pretraining_text import CORPUS, SETTINGS
from refused import message_of

from bert_tf2 import commands

TEXT = CORPUS.encode()
PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def make(folder, name, **changes) -> bytes:
    """The records of the file `name` in a folder, which has the vocabulary."""
    files = {"input_file": f"{folder}/{name}", "vocab_file": f"{folder}/vocab.txt", "output_file": f"{folder}/out"}
    commands.call("create_pretraining_data", **{**SETTINGS, **files, **changes})
    return b"".join(path.read_bytes() for path in sorted(folder.glob("out*")) if path.suffix != ".json")


@pytest.mark.parametrize("ending", PACK)
def test_a_corpus_is_unpacked_as_it_is_read(tmp_path, vocab_file, in_process, ending):
    (tmp_path / "plain").write_bytes(TEXT)
    half = len(TEXT) // 2
    pack = PACK[ending]
    (tmp_path / "packed").write_bytes(pack(TEXT))  # whatever its name
    (tmp_path / f"two.{ending}").write_bytes(pack(TEXT[:half]) + pack(TEXT[half:]))  # as parallel programs write it
    expected = make(tmp_path, "plain")
    assert expected == make(tmp_path, "packed") == make(tmp_path, f"two.{ending}")
    (tmp_path / "shards").mkdir()
    for name in ("plain", "packed"):
        folder = tmp_path / "shards" / name
        folder.mkdir()
        make(tmp_path, name, output_file=f"{folder}/out", num_shards=2)
    plain, packed = (
        [path.read_bytes() for path in sorted((tmp_path / "shards" / name).glob("out*"))]
        for name in ("plain", "packed")
    )
    assert len(plain) == 2 and plain == packed


@pytest.mark.parametrize("ending", PACK)
def test_a_vocabulary_is_learned_from_a_corpus_as_it_is_read(tmp_path, ending):
    text_operations.need()
    (tmp_path / "plain").write_bytes(TEXT)
    (tmp_path / "packed").write_bytes(PACK[ending](TEXT))
    learnt = [
        commands.call("build_vocab", input_file=f"{tmp_path}/{name}", vocab_file=f"{tmp_path}/learnt", vocab_size=200)
        for name in ("plain", "packed")
    ]
    assert learnt[0] == learnt[1]


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("changes", [{}, {"num_shards": 2}], ids=str)
@pytest.mark.parametrize("harm", ["half", "middle"])
def test_a_damaged_archive_is_one_sentence(tmp_path, vocab_file, in_process, ending, changes, harm):
    data = PACK[ending](TEXT * 500)
    middle = len(data) // 2
    data = data[:middle] if harm == "half" else data[:middle] + b"\x55" * 20 + data[middle + 20 :]
    (tmp_path / f"corpus.{ending}").write_bytes(data)
    found = message_of(make, tmp_path, f"corpus.{ending}", **changes)
    assert f"corpus.{ending}: " in found and "damaged" in found


def _zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("corpus.txt", TEXT)
    return stream.getvalue()


def _tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        entry = tarfile.TarInfo("corpus.txt")
        entry.size = len(TEXT)
        archive.addfile(entry, io.BytesIO(TEXT))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("corpus.zst", b"\x28\xb5\x2f\xfd\x24\x05\x29\x00\x00hello\x0a\xab\xcd", ("zstd", "unzstd -c < ")),
        ("corpus.zip", _zip(), ("zip", "unzip ")),
        ("corpus.tar", _tar(), ("tar", "tar -xf ")),
        ("corpus.tar.gz", gzip.compress(_tar()), ("tar", "tar -xf ")),
        ("corpus.tar.bz2", bz2.compress(_tar()), ("tar", "tar -xf ")),
        ("corpus.7z", b"7z\xbc\xaf\x27\x1c\x00\x04", ("7-Zip", "7z x ")),
        ("corpus.parquet", b"PAR1\x15\x04\x15\xf2\x9c", ("Parquet",)),
        ("corpus.bin", b"\x93NUMPY\x01\x00v\x00{'descr': ", ("binary",)),
    ],
)
@pytest.mark.parametrize("changes", [{}, {"num_shards": 2}], ids=str)
def test_what_is_not_read_is_called_by_its_name(tmp_path, vocab_file, in_process, name, content, words, changes):
    (tmp_path / name).write_bytes(content)
    found = message_of(make, tmp_path, name, **changes)
    assert f"{tmp_path}/{name}" in found and all(word in found for word in words) and "iconv" not in found


@pytest.mark.parametrize("ending", ["bz2", "xz"])
def test_records_are_compressed_by_gzip_only(tmp_path, vocab_file, ending):
    (tmp_path / "plain").write_bytes(TEXT)
    (tmp_path / f"records.{ending}").write_bytes(PACK[ending](make(tmp_path, "plain")))
    found = message_of(commands.call, "inspect_records", input_file=f"{tmp_path}/records.{ending}")
    assert f"records.{ending}: is a" in found and "unpack it first" in found
