"""create_pretraining_data.py with shards: their bytes, what is kept after a kill, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from command_lines import ROOT
from pretraining_text import CORPUS, SETTINGS, VOCABULARY, data_options

from bert_tf2.data import record_index
from bert_tf2.data.records import read_all
from bert_tf2.pretraining import example_files, sharded, shards
from bert_tf2.support import files, output_lock
from bert_tf2.support.errors import UserError

DOCUMENTS = 24  # of the corpus of `data`


@pytest.fixture
def data(tmp_path):
    """A folder with two files of text and a vocabulary."""
    lines = (f"{CORPUS}\n" * (DOCUMENTS // 4)).splitlines()
    (tmp_path / "one.txt").write_text("\n".join(lines[:42]))  # ends within a document, and without a line end
    (tmp_path / "two.txt").write_text("\n".join(lines[42:]) + "\n")
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return tmp_path


def options(data, output, **changes):
    settings = {"input_file": f"{data}/one.txt,{data}/two.txt", "num_shards": 5, **changes}
    return data_options(data, f"{output}/x", **settings)


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def manifest(data, output):
    return json.loads((data / output / "manifest.json").read_text())


SPACES = {"do_whole_word_mask": True, "word_boundaries": "spaces"}


@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"objective": "mlm", **SPACES}, {"dynamic_masking": True}),
        *({"input_format": "text"}, {"input_format": "jsonl"}),
    ],
    ids=str,
)
def test_a_shard_is_an_unsharded_run_on_its_text_with_its_seed(data, in_process, changes):
    is_json = changes.get("input_format") == "jsonl"
    if "input_format" in changes:
        pytest.importorskip("sentencex")
        for name in ("one", "two"):
            text = (data / f"{name}.txt").read_text().upper()
            text = "\n".join(json.dumps({"text": part}) for part in text.split("\n\n")) if is_json else text
            (data / f"{name}.txt").write_text(text)
    sharded.run(options(data, "out", dupe_factor=3, **changes))
    found = manifest(data, "out")
    assert [row["shard"] for row in found["shards"]] == [*range(5)] and found["complete"]
    assert found["flags"].items() >= changes.items()
    assert is_json or any(len(row["text"]) == 2 for row in found["shards"])  # a document goes on in the next file
    for row in found["shards"]:
        parts = [pathlib.Path(p["input"]).read_bytes()[p["start"] : p["stop"]] for p in row["text"]]
        text = b"\n".join(part.removesuffix(b"\n") for part in parts) + b"\n"  # where a file has no last line end
        (data / "text").write_bytes(text)
        seed = int(hashlib.sha256(f"12345,{row['shard']}".encode()).hexdigest()[:8], 16)
        assert row["seed"] == seed
        alone = {"input_file": f"{data}/text", "random_seed": seed, "dupe_factor": 3, **changes}
        example_files.run(data_options(data, "alone", **alone))
        shard = (data / "out" / row["file"]).read_bytes()
        assert shard == (data / "alone").read_bytes()
        assert (row["bytes"], row["sha256"]) == (len(shard), hashlib.sha256(shard).hexdigest())
        records = [*read_all([f"{data}/alone"])]
        tokens = sum(int(record.values.get("input_mask", record.values["input_ids"] > 0).sum()) for record in records)
        assert row["examples"] == len(records)
        assert row["padding"] == pytest.approx(1 - tokens / 24 / row["examples"], abs=1e-6)
        assert bool(row["masked_tokens"]) != bool(changes.get("dynamic_masking"))
    assert sum(row["documents"] for row in found["shards"]) == DOCUMENTS + is_json
    if not changes:
        assert sum(row["sentences"] for row in found["shards"]) == DOCUMENTS // 4 * 12


def test_finished_shards_are_kept_and_missing_or_damaged_ones_made(data, in_process):
    sharded.run(options(data, "out"))
    expected = contents(data / "out")
    assert in_process == [0, 1, 2, 3, 4]
    (data / "out" / "x-00001-of-00005").unlink()
    (data / "out" / "x-00003-of-00005").write_bytes(b"half")
    in_process.clear()
    sharded.run(options(data, "out", num_workers=7))
    assert in_process == [1, 3] and contents(data / "out") == expected


def test_a_run_that_ended_halfway_is_continued(data, in_process, monkeypatch):
    sharded.run(options(data, "whole"))
    one = shards.make_shard
    monkeypatch.setattr(shards, "make_shard", lambda shard, job: 1 / (3 - shard.number) and one(shard, job))
    with pytest.raises(ZeroDivisionError):
        sharded.run(options(data, "out"))
    assert not manifest(data, "out")["complete"]
    in_process.clear()
    monkeypatch.setattr(shards, "make_shard", one)
    sharded.run(options(data, "out"))
    assert in_process == [3, 4] and contents(data / "out") == contents(data / "whole")


def test_another_run_in_the_folder_is_refused(data, in_process):
    sharded.run(options(data, "out"))
    before = contents(data / "out")
    (data / "words.txt").write_text("\n".join([*VOCABULARY, "word"]) + "\n")
    for change, words in (
        ({"dupe_factor": 2}, "with --dupe_factor=10, not 2"),
        ({"num_shards": 6}, "with --num_shards=5, not 6"),
        ({"do_lower_case": False}, "with --do_lower_case=True, not False"),
        ({"vocab_file": f"{data}/words.txt"}, "with another vocabulary"),
        (
            {"input_file": f"{data}/one.txt"},
            r"from other text than .* now, x-0000\d-of-00005 for example",
        ),
        ({"input_file": f"{data}/two.txt,{data}/one.txt"}, "from other text"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            sharded.run(options(data, "out", **change))
        assert "\n" not in str(caught.value) and "manifest.json" in str(caught.value)
    text, times = (data / "two.txt").read_bytes(), os.stat(data / "two.txt")
    for content in (text + b"a\n", text[:-2] + b"?\n"):
        (data / "two.txt").write_bytes(content)
        os.utime(data / "two.txt", ns=(times.st_mtime_ns, times.st_mtime_ns))
        with pytest.raises(UserError, match=r"from other text .*, x-0000\d-of-00005 for example"):
            sharded.run(options(data, "out"))
    (data / "two.txt").write_bytes(text)
    in_process.clear()
    before.pop("manifest.json")
    sharded.run(options(data, "out"))  # the text as it was, although at another time
    assert in_process == []
    assert contents(data / "out").items() >= before.items()


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_the_index_of_the_records_is_kept_beside_them(data, in_process, monkeypatch, ending):
    monkeypatch.setattr(record_index, "SMALLEST", 1)
    given = options(data, "out", num_shards=8, dupe_factor=300, output_file=f"{data}/out/x{ending}")
    sharded.run(given)
    paths = files.match_files(f"{data}/out/x-*")
    for _ in range(2):
        index, fresh = record_index.read(paths, str(data / "nothing"), keep=False)
        expected = record_index.read_index(paths)
        assert fresh == [] and index.description == expected.description
        assert all((getattr(index, name) == getattr(expected, name)).all() for name in ("offsets", "starts", "counts"))
        assert len(index.counts) > sum(row["examples"] > 0 for row in manifest(data, "out")["shards"]) or ending
        (data / "out" / f"x-00003-of-00008{ending}").unlink()
        sharded.run(given)  # makes one of them again, and the index
    assert not [name for name in contents(data / "out") if name.startswith(".") and name != record_index.NAME]


def test_another_splitter_is_refused(data, in_process):
    pytest.importorskip("sentencex")
    sharded.run(options(data, "out", input_format="text"))
    found = manifest(data, "out")
    assert found["splitter"].startswith("sentencex ")
    (data / "out" / "manifest.json").write_text(json.dumps({**found, "splitter": "sentencex 1.0.0"}))
    with pytest.raises(UserError, match=r"with sentences of sentencex 1\.0\.0, not sentencex"):
        sharded.run(options(data, "out", input_format="text"))


def test_a_second_run_in_the_folder_at_the_same_time_is_refused(data, in_process):
    (data / "out").mkdir()
    with output_lock.locked(str(data / "out"), "making of shards"):
        with pytest.raises(UserError, match="out: another making of shards is running in this folder;"):
            sharded.run(options(data, "out"))
        sharded.run(options(data, "other"))
    sharded.run(options(data, "out"))
    assert contents(data / "out") == contents(data / "other")


# With worker processes


def command(data, output, *more):
    flags = [f"--{name}={value}" for name, value in SETTINGS.items()]
    named = [f"--input_file={data}/one.txt,{data}/two.txt", f"--vocab_file={data}/vocab.txt"]
    script = str(ROOT / "create_pretraining_data.py")
    return [sys.executable, script, *named, f"--output_file={data}/{output}/x", *flags, *more]


def start(data, output, *more):
    return subprocess.Popen(command(data, output, *more), stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for_shards(folder, count, running):
    while len([*folder.glob("x-*")]) < count:
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.005)


def workers_of(running):
    """The processes that make shards."""
    children = pathlib.Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"sharded import work" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]


def partial_files(folder):
    """What is left of partial files once the workers had time to end."""
    for _ in range(100):
        left = [path.name for path in folder.iterdir() if path.name.endswith(".partial")]
        if not left:
            break
        time.sleep(0.1)
    return left


@pytest.fixture
def undisturbed(data, in_process):
    sharded.run(options(data, "whole", num_shards=12, dupe_factor=60))
    return contents(data / "whole")


LONG = ("--num_shards=12", "--dupe_factor=60")


@pytest.mark.parametrize("how", ["file", "standard input"])
def test_a_program_without_a_main_guard_starts_workers(data, how):
    flags = {**SETTINGS, "input_file": f"{data}/one.txt", "vocab_file": f"{data}/vocab.txt", "output_file": f"{data}/x"}
    flags |= {"num_shards": 2, "num_workers": 2}
    program = f"from bert_tf2.commands import call\ncall('create_pretraining_data', **{flags})\n"
    (data / "program.py").write_text(program)
    command = [sys.executable, str(data / "program.py") if how == "file" else "-"]
    done = subprocess.run(command, input=program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len([*data.glob("x-*-of-*")]) == 2


@pytest.mark.slow
def test_the_number_of_workers_and_kills_change_nothing(data, undisturbed):
    running = start(data, "out", *LONG, "--num_workers=1")
    wait_for_shards(data / "out", 3, running)
    running.kill()
    running.communicate()
    assert partial_files(data / "out") == []  # the worker has noticed
    kept = {path.name: path.stat().st_mtime_ns for path in (data / "out").glob("x-*")}
    assert 3 <= len(kept) < 12
    done = subprocess.run(command(data, "out", *LONG, "--num_workers=3"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "of 12 shards are finished and kept" in done.stderr
    assert contents(data / "out") == undisturbed
    again = {path.name: path.stat().st_mtime_ns for path in (data / "out").glob("x-*")}
    assert any(again[name] == when for name, when in kept.items())  # the manifest, rarely written, has the others not


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run_in_one_line(data, undisturbed):
    running = start(data, "out", *LONG, "--num_workers=1")
    wait_for_shards(data / "out", 2, running)
    (worker,) = workers_of(running)
    os.kill(worker, signal.SIGKILL)
    _, log = running.communicate(timeout=60)
    last = log.splitlines()[-1]
    assert running.returncode == 1 and "Traceback" not in log
    assert f"error: worker process {worker} was killed by signal 9 while it made" in last
    assert len([*(data / "out").glob("x-*")]) >= 2
    sharded.run(options(data, "out", num_shards=12, dupe_factor=60))
    assert contents(data / "out") == undisturbed


def test_a_warning_of_a_worker_names_the_input_and_is_shown_once(data):
    (data / "one.txt").write_text("\u0434\u043e\u043c a .\n\n" * 400)  # words that no entry spells
    flags = ("--num_shards=6", "--num_workers=1", "--objective=mlm")
    done = subprocess.run(command(data, "out", *flags), capture_output=True, text=True)
    assert done.returncode == 0
    (line,) = (line for line in done.stderr.splitlines() if "WARNING" in line)
    assert f"{data}/one.txt: " in line and "partial" not in line


@pytest.mark.slow
def test_ctrl_c_is_one_line_and_leaves_no_partial_files(data):
    running = start(data, "out", *LONG, "--num_workers=2")
    wait_for_shards(data / "out", 1, running)
    workers = workers_of(running)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    assert running.wait(timeout=60) == 130
    assert workers and not [worker for worker in workers if os.path.exists(f"/proc/{worker}")]  # it waited for them
    _, log = running.communicate(timeout=60)
    assert log.splitlines()[-1] == "create_pretraining_data.py: error: interrupted" and "Traceback" not in log
    assert partial_files(data / "out") == []
