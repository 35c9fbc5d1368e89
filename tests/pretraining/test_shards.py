"""create_pretraining_data.py with shards: where a corpus is cut, their bytes, what is kept, continued and refused."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys

import pytest
import tensorflow as tf
from command_lines import ROOT
from pretraining_text import CORPUS, SETTINGS, VOCABULARY, Here, data_options, wait_until
from refused import message_of, refuses

from bert_tf2 import commands
from bert_tf2.data import record_index
from bert_tf2.data.records import read_all
from bert_tf2.pretraining import create_pretraining_data
from bert_tf2.support import files

# Where a corpus is cut


def cut(folder, texts, count, **settings) -> list[list[bytes]]:
    """The lines of each shard of some files, by the manifest. The last line of a file gets an end if it has none."""
    names = [str(folder / str(number)) for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        pathlib.Path(name).write_bytes(text)
    shutil.rmtree(folder / "out", ignore_errors=True)
    how = {"max_seq_length": 5, "dupe_factor": 1, **settings}
    create_pretraining_data.run(
        data_options(folder, "out/x", input_file=",".join(names), num_shards=count, **how), Here()
    )
    lines = []
    for row in manifest(folder, "out")["shards"]:
        lines.append([])
        for piece in row["text"]:
            packed = pathlib.Path(piece["input"]).read_bytes()
            text = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
            assert piece["start"] < piece["stop"]
            found = text[piece["start"] : piece["stop"]].split(b"\n")
            lines[-1] += [line + b"\n" for line in found[:-1] + [line for line in found[-1:] if line.strip(b"\r")]]
    return lines


def manifest(data, output):
    return json.loads((data / output / "manifest.json").read_text())


def documents(chunks):
    """(first byte, lines) of each document of files, by the reference's rules and in one pass."""
    found, current, position = [], [], 0
    for chunk in chunks:
        *whole, last = chunk.split(b"\n")
        for line in [*(line + b"\n" for line in whole), last]:
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


LINES = [b"a b .\n", b"\n", b"\n", b" \t\n", b"c\r\n", b"\r\n", "\u3000\n".encode(), b"\x00\n", "\u00e9 e\n".encode()]


@pytest.mark.parametrize("seed", range(20))
def test_a_document_is_in_the_shard_of_its_first_byte(tmp_path, vocab_file, seed):
    rng = random.Random(seed)
    texts = [b"".join(rng.choices(LINES, k=rng.randint(0, 30))) for _ in range(rng.randint(1, 4))]
    if seed % 2:
        texts = [text.removesuffix(b"\n") if rng.random() < 0.7 else text + b"\r" for text in texts]
    count = rng.randint(1, 9)
    bounds = [sum(map(len, texts)) * number // count for number in range(count)]
    expected = [[] for _ in range(count)]
    for first, lines in documents(texts):
        expected[max(number for number in range(count) if bounds[number] <= first)].append(lines)
    found = cut(tmp_path, texts, count)
    assert [[document for _, document in documents([b"".join(lines)])] for lines in found] == expected


def test_long_lines_and_json_lines(tmp_path, vocab_file):
    """A line may be longer than the part of a file that is read at a time. JSON lines are cut at every line."""
    text = b"x" * 3_000_000 + b"\n\n" + b"y" * 1_800_000 + b"\n" + b" " * 1_500_000 + b"\nz\n"
    assert [sum(map(len, lines)) for lines in cut(tmp_path, [text], 3)] == [3_000_002, 3_300_002, 2]
    pytest.importorskip("sentencex")
    lines = [b'{"text": "%d"}\n' % (10**number) for number in range(8)]
    texts = [b"".join(lines[:3]) + b"\n" + lines[3][:-1], b"".join(lines[4:])]  # the end of a file ends a line
    lines = [line for text in texts for line in text.splitlines(keepends=True)]
    starts = [0, *itertools.accumulate(map(len, lines))][:-1]
    for count in (1, 3, 8, 29):
        wanted = [[] for _ in range(count)]
        for start, line in zip(starts, lines, strict=True):
            place = max(number for number in range(count) if sum(map(len, lines)) * number // count <= start)
            wanted[place].append(line.removesuffix(b"\n") + b"\n")
        assert cut(tmp_path, texts, count, input_format="jsonl") == wanted


def test_compressed_files_are_unpacked_beside_the_output_for_a_while(tmp_path, vocab_file):
    found = cut(tmp_path, [b"a\n\nb\n", gzip.compress(b"c\n\nd\n\ne\n")], 2)
    assert found == [[b"a\n", b"\n", b"b\n", b"c\n", b"\n"], [b"d\n", b"\n", b"e\n"]]
    half = gzip.compress(b"a b c\n" * 1000)[:-9]
    assert "/1: " in message_of(cut, tmp_path, [gzip.compress(b"a\n"), half], 1)
    assert not (tmp_path / "out").exists()
    os.mkfifo(tmp_path / "pipe")
    assert "copy" in message_of(
        create_pretraining_data.run, data_options(tmp_path, "x", input_file=f"{tmp_path}/pipe", num_shards=2)
    )


# Their bytes

DOCUMENTS = 24  # of the corpus of `data`


@pytest.fixture
def data(tmp_path, vocab_file):
    """A folder with two files of text and a vocabulary."""
    lines = (f"{CORPUS}\n" * (DOCUMENTS // 4)).splitlines()
    (tmp_path / "one.txt").write_text("\n".join(lines[:42]))  # ends within a document, and without a line end
    (tmp_path / "two.txt").write_text("\n".join(lines[42:]) + "\n")
    return tmp_path


def options(data, output, **changes):
    settings = {"input_file": f"{data}/one.txt,{data}/two.txt", "num_shards": 5, **changes}
    return data_options(data, f"{output}/x", **settings)


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


SPACES = {"objective": "mlm", "do_whole_word_mask": True, "word_boundaries": "spaces"}


@pytest.mark.parametrize("changes", [{}, SPACES, {"dynamic_masking": True}, {"input_format": "jsonl"}], ids=str)
def test_a_shard_is_an_unsharded_run_on_its_text_with_its_seed(data, changes):
    is_json = "input_format" in changes
    if is_json:
        pytest.importorskip("sentencex")
        for name in ("one", "two"):
            text = (data / f"{name}.txt").read_text().upper().split("\n\n")
            (data / f"{name}.txt").write_text("\n".join(json.dumps({"text": part}) for part in text))
    create_pretraining_data.run(options(data, "out", dupe_factor=3, **changes), Here())
    found = manifest(data, "out")
    assert [row["file"] for row in found["shards"]] == [f"x-0000{number}-of-00005" for number in range(5)]
    assert found["complete"] and found["flags"].items() >= changes.items()
    assert is_json or any(len(row["text"]) == 2 for row in found["shards"])  # a document goes on in the next file
    for row in found["shards"]:
        parts = [pathlib.Path(p["input"]).read_bytes()[p["start"] : p["stop"]] for p in row["text"]]
        text = b"\n".join(part.removesuffix(b"\n") for part in parts) + b"\n"  # where a file has no last line end
        (data / "text").write_bytes(text)
        seed = int(hashlib.sha256(f"12345,{row['shard']}".encode()).hexdigest()[:8], 16)
        alone = {"input_file": f"{data}/text", "random_seed": seed, "dupe_factor": 3, **changes}
        create_pretraining_data.run(data_options(data, "alone", **alone))
        shard = (data / "out" / row["file"]).read_bytes()
        assert shard == (data / "alone").read_bytes() and row["seed"] == seed
        assert (row["bytes"], row["sha256"]) == (len(shard), hashlib.sha256(shard).hexdigest())
        values = [record.values for record in read_all([f"{data}/alone"])]
        tokens = sum(int(found.get("input_mask", found["input_ids"] > 0).sum()) for found in values)
        assert row["examples"] == len(values)
        assert row["padding"] == pytest.approx(1 - tokens / 24 / len(values), abs=1e-6)
        assert row["masked_tokens"] == sum(int(sum(found.get("masked_lm_weights", []))) for found in values)
    assert sum(row["documents"] for row in found["shards"]) == DOCUMENTS + is_json
    if not changes:
        assert sum(row["sentences"] for row in found["shards"]) == DOCUMENTS // 4 * 12


# What is kept, continued and refused


def test_finished_shards_are_kept_and_missing_or_damaged_ones_made(data):
    with pytest.raises(ZeroDivisionError):
        create_pretraining_data.run(options(data, "out"), Here(until=0))
    assert not (data / "out").exists()  # nothing that forbids another run there
    with pytest.raises(ZeroDivisionError):
        create_pretraining_data.run(options(data, "out"), Here(until=3))
    assert not manifest(data, "out")["complete"]
    rest = Here(before=lambda: refuses("out: another", create_pretraining_data.run, options(data, "out"), Here()))
    create_pretraining_data.run(options(data, "out"), rest)
    create_pretraining_data.run(options(data, "whole"), Here())
    expected = contents(data / "whole")
    assert rest.made == [3, 4] and contents(data / "out") == expected
    (data / "out" / "x-00001-of-00005").unlink()
    (data / "out" / "x-00003-of-00005").write_bytes(b"half")
    create_pretraining_data.run(options(data, "out", num_workers=7), again := Here())
    assert again.made == [1, 3] and contents(data / "out") == expected


def test_another_run_in_the_folder_is_refused(data):
    create_pretraining_data.run(options(data, "out"), Here())
    before = contents(data / "out")
    (data / "words.txt").write_text("\n".join([*VOCABULARY, "word"]) + "\n")

    def refused(words: str, **change):
        refuses(f"manifest.json {words}", create_pretraining_data.run, options(data, "out", **change), Here())
        assert contents(data / "out") == before

    refused("--dupe_factor=10, not 2", dupe_factor=2)
    refused("--num_shards=5, not 6", num_shards=6)
    refused("--do_lower_case=True, not False", do_lower_case=False)
    refused("vocabulary", vocab_file=f"{data}/words.txt")
    (data / "tokenization.json").write_text('{"strip_accents": false}')
    refused("vocabulary rules")
    (data / "tokenization.json").unlink()
    refused("x-0000", input_file=f"{data}/one.txt")
    refused("", input_file=f"{data}/two.txt,{data}/one.txt")
    text, times = (data / "two.txt").read_bytes(), os.stat(data / "two.txt")
    for content in (text + b"a\n", text[:-2] + b"?\n"):
        (data / "two.txt").write_bytes(content)
        os.utime(data / "two.txt", ns=(times.st_mtime_ns, times.st_mtime_ns))
        refused("x-0000")
    (data / "two.txt").write_bytes(text)
    # The text as it was, although at another time; and an earlier version, which did not know one of the flags.
    found = manifest(data, "out")
    del found["flags"]["whole_word_draw"]
    (data / "out" / "manifest.json").write_text(json.dumps(found))
    create_pretraining_data.run(options(data, "out"), again := Here())
    before.pop("manifest.json")
    assert again.made == [] and contents(data / "out").items() >= before.items()
    (data / "out" / "manifest.json").write_text(json.dumps({**found, "splitter": "sentencex 1.0.0"}))
    refuses("sentencex 1.0.0", create_pretraining_data.run, options(data, "out"), Here())


@pytest.mark.slow
def test_the_index_of_large_records_is_kept_beside_them(data):
    create_pretraining_data.run(options(data, "out", max_seq_length=400_000), Here())
    paths = files.match_files(f"{data}/out/x-*")
    index, fresh = record_index.read(paths, str(data / "nothing"), keep=False)
    assert fresh == [] and index.description == record_index.read_index(paths).description


# Remote files; `ram://` is TensorFlow's own file system, within one process.


@pytest.fixture
def there(data):
    """A remote folder with the files of `data`, of which one is compressed."""
    folder = f"ram://{data.name}"
    tf.io.gfile.makedirs(folder)
    (data / "two.gz").write_bytes(gzip.compress((data / "two.txt").read_bytes()))
    for name in ("one.txt", "two.gz", "vocab.txt"):
        tf.io.gfile.copy(f"{data}/{name}", f"{folder}/{name}")
    return folder


@pytest.mark.parametrize("name", ["x.gz", "x"])
def test_remote_records_are_those_on_a_disk(there, data, name):
    """Finished shards are kept, and the manifest is not written for each: stores of objects limit that."""
    (data / "out").mkdir()
    local, remote = (
        data_options(place, f"out/{name}", input_file=f"{place}/o*.txt,{place}/two.gz", num_shards=9)
        for place in (data, there)
    )
    create_pretraining_data.run(local, Here())
    with pytest.raises(ZeroDivisionError):
        create_pretraining_data.run(remote, Here(until=3))
    with tf.io.gfile.GFile(f"{there}/out/.x-00003-of-00009.host.123.partial", "wb") as stream:
        stream.write(b"of a worker that was killed")
    seen = set()
    create_pretraining_data.run(
        remote, rest := Here(before=lambda: seen.add(tf.io.gfile.GFile(f"{there}/out/manifest.json").read()))
    )
    assert rest.made == [*range(3, 9)] and len(seen) < 4
    assert sorted(tf.io.gfile.listdir(f"{there}/out")) == sorted(contents(data / "out"))
    for path in (data / "out").glob("x-*"):
        assert tf.io.gfile.GFile(f"{there}/out/{path.name}", "rb").read() == path.read_bytes()
    found = [commands.call("inspect_records", input_file=f"{place}/out/x-*", show=1) for place in (there, data)]
    assert "\n".join(found[0]).replace(there, str(data)) == "\n".join(found[1])
    for given in (local, remote):
        alone = given.output_file.replace("/x", "/alone")
        create_pretraining_data.run(dataclasses.replace(given, num_shards=None, output_file=alone))
    assert tf.io.gfile.GFile(alone, "rb").read() == (data / "out" / alone.rpartition("/")[2]).read_bytes()


# Worker processes


def command(data, *more):
    given = {"input_file": f"{data}/one.txt,{data}/two.txt", "vocab_file": f"{data}/vocab.txt", **SETTINGS}
    flags = [f"--{name}={value}" for name, value in {**given, "output_file": f"{data}/out/x"}.items()]
    return [sys.executable, str(ROOT / "create_pretraining_data.py"), *flags, *more]


@pytest.mark.slow
@pytest.mark.parametrize(("ends", "status"), [("run", -9), ("worker", 1), ("Ctrl-C", 130)])
def test_a_run_that_was_ended_is_continued_by_any_number_of_workers(data, ends, status):
    create_pretraining_data.run(options(data, "whole", num_shards=12, dupe_factor=60), Here())
    flags = ("--num_shards=12", "--dupe_factor=60")
    start = command(data, *flags, "--num_workers=1")
    running = subprocess.Popen(start, stderr=subprocess.PIPE, text=True, start_new_session=True)
    manifest = data / "out" / "manifest.json"  # is written for several shards at once if writing takes long
    wait_until(lambda: len([*(data / "out").glob("x-*")]) >= 3 and json.loads(manifest.read_text())["shards"])
    children = pathlib.Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    (worker,) = (
        int(pid) for pid in children if b"shards import work" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    if ends == "Ctrl-C":
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    else:
        os.kill(running.pid if ends == "run" else worker, signal.SIGKILL)
    _, log = running.communicate(timeout=60)
    assert running.returncode == status and "Traceback" not in log
    last = {"run": "", "worker": f"process {worker} was killed", "Ctrl-C": "interrupted"}[ends]
    assert last in log.splitlines()[-1]
    wait_until(lambda: not [*(data / "out").glob(".*.partial")])  # the worker has noticed
    kept = {path: path.stat().st_mtime_ns for path in (data / "out").glob("x-*")}
    assert 3 <= len(kept) < 12
    done = subprocess.run(command(data, *flags, "--num_workers=3"), capture_output=True, text=True)
    assert done.returncode == 0 and "of 12 shards" in done.stderr, done.stderr
    assert contents(data / "out") == contents(data / "whole")
    # The manifest had at least one of these.
    assert any(path.stat().st_mtime_ns == when for path, when in kept.items())


def test_worker_processes(data):
    """They import no TensorFlow, and need no program with a main guard; similar warnings are shown once."""
    for name in ("one.txt", "two.txt"):
        (data / name).write_text("\u0434\u043e\u043c a .\n\n" * 400)  # words that no entry spells
    program = (
        "import atexit, sys; from bert_tf2 import commands\n"
        "atexit.register(lambda: print({'tensorflow', 'google.protobuf'} & {*sys.modules}))\n"
        "commands.run('create_pretraining_data')"
    )
    flags = command(data, "--num_shards=6", "--num_workers=2", "--objective=mlm")[2:]
    done = subprocess.run([sys.executable, "-", *flags], input=program, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "WARNING" in line)
    assert any(f"{data}/{name}: " in line for name in ("one.txt", "two.txt")) and "partial" not in line
    create_pretraining_data.run(options(data, "here", num_shards=6, objective="mlm"), Here())
    assert contents(data / "out") == contents(data / "here")
