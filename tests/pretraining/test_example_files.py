"""create_pretraining_data.py: its files, its log, and what a wrong command line gets."""

from __future__ import annotations

import random
import subprocess
import sys
import types

import pytest
from absl import logging
from command_lines import ROOT
from golden_data import GOLDEN, cases, digest
from pretraining_text import VOCABULARY, data_options

from bert_tf2 import pretraining
from bert_tf2.pretraining import CreatePretrainingDataOptions, PretrainingDataOptions, example_files, sharded
from bert_tf2.support import progress


@pytest.fixture
def log(monkeypatch):
    """The lines that were logged, each with the name of its level before it."""
    lines = []
    for level in ("debug", "info", "warning"):
        monkeypatch.setattr(
            logging, level, lambda text, *args, level=level: lines.append(f"{level}: {text % args if args else text}")
        )
    return lines


def read_records(path):
    import tensorflow as tf

    rows = []
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        rows.append(
            {name: list(f.int64_list.value) or list(f.float_list.value) for name, f in sorted(features.items())}
        )
    return rows


def make(folder, output="out", **changes):
    example_files.run(data_options(folder, output, **changes))


def test_examples_go_to_the_files_in_turn(tmp_path, corpus, vocab_file):
    make(tmp_path, "all")
    make(tmp_path, output_file=f"{tmp_path}/new/x, {tmp_path}/new/y,{tmp_path}/new/z")
    everything = read_records(tmp_path / "all")
    for number, name in enumerate("xyz"):
        assert read_records(tmp_path / "new" / name) == everything[number::3]


def test_what_is_logged(tmp_path, corpus, vocab_file, log, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_DRAWINGS", 0.0)
    monkeypatch.setattr(example_files, "_VALUES_PER_BATCH", 100)
    make(tmp_path, "out")
    (first, *rest) = read_records(tmp_path / "out")
    tokens = [VOCABULARY[i] for i in first["input_ids"][: sum(first["input_mask"])]]
    (example,) = (line for line in log if line.startswith("info: The first of"))
    assert example == f"info: The first of {len(rest) + 1} examples: {' '.join(tokens)}"
    assert f"info: Wrote {len(rest) + 1} examples" in log
    for stage in ("Reading", "Making examples", "Writing"):
        assert any(line.startswith(f"info: {stage}") and "/s" in line for line in log), stage
    assert any(f"of {len(rest) + 1} examples, " in line and line.endswith(" left") for line in log)
    assert log[-1].endswith(f"  wrote  {tmp_path}/out")
    assert not any(line.startswith("warning") for line in log)


def test_nothing_is_left_behind_by_a_failure_halfway(tmp_path, corpus, tokenizer):
    (tmp_path / "out").write_text("what was there before")
    before = sorted(tmp_path.iterdir())
    options = PretrainingDataOptions(max_seq_length=24, max_predictions_per_seq=4)
    instances = pretraining.make_instances([corpus], tokenizer, options, random.Random(1))
    instances[5] = None
    with pytest.raises(AttributeError):
        pretraining.write_instance_to_example_files(
            instances, tokenizer, options.max_seq_length, options.max_predictions_per_seq, [f"{tmp_path}/out"]
        )
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "out").read_text() == "what was there before"


def test_an_input_that_matches_nothing_is_left_out_where_another_matches(tmp_path, corpus, vocab_file, log):
    make(tmp_path, "alone")
    make(tmp_path, input_file=f"{corpus},{tmp_path}/gone.txt,{tmp_path}/*.nothing")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "alone").read_bytes()
    warnings = [line for line in log if line.startswith("warning")]
    assert len(warnings) == 2 and "gone.txt" in warnings[0] and "*.nothing" in warnings[1]


def test_a_corpus_without_a_token_gives_files_without_records(tmp_path, vocab_file, log):
    (tmp_path / "empty").write_text("\n \n\x00\n")
    make(tmp_path, input_file=f"{tmp_path}/empty", output_file=f"{tmp_path}/x,{tmp_path}/y")
    assert read_records(tmp_path / "x") == read_records(tmp_path / "y") == []
    assert any(line.startswith("warning") and "not a single token" in line for line in log)


@pytest.mark.parametrize(("limit", "warned"), [(3, True), (4, False)])  # round(24 * 0.15) is 4
def test_fewer_predictions_than_asked_for(tmp_path, corpus, vocab_file, log, limit, warned):
    make(tmp_path, "out", max_predictions_per_seq=limit)
    warnings = [line for line in log if line.startswith("warning")]
    assert len(warnings) == warned
    assert all("=3" in line and "would have 4 at --masked_lm_prob=0.15" in line for line in warnings)


BAD_COMMANDS = [
    ({"input_file": "gone.txt"}, ["gone.txt: no such file", "corpus.txt"]),
    ({"input_file": "*.text,gone.txt"}, ["*.text: no file matches this pattern"]),
    ({"input_file": "latin1.txt"}, ["latin1.txt, line 2: not UTF-8", "0xe9"]),
    ({"vocab_file": "few.txt"}, ["few.txt", "[SEP], [MASK]"]),
    ({"max_seq_length": "4"}, ["--max_seq_length=4", "5"]),
    ({"output_file": "out,./out"}, ["--output_file=./out: is named twice"]),
    ({"output_file": "corpus.txt"}, ["--output_file=corpus.txt: is also read from"]),
    ({"output_file": "out,"}, ["--output_file: a name is empty"]),
    ({"output_file": None, "vocab_file": None}, ["--output_file and --vocab_file must be given"]),
    ({"do_upper_case": "true"}, ["do_upper_case"]),
]


@pytest.mark.parametrize(("change", "expected"), BAD_COMMANDS, ids=[str(change) for change, _ in BAD_COMMANDS])
def test_a_mistake_gets_one_line_and_leaves_nothing(tmp_path, command_lines, corpus, vocab_file, change, expected):
    (tmp_path / "latin1.txt").write_bytes(b"a b c .\ncaf\xe9 .\n")
    (tmp_path / "few.txt").write_text("[PAD]\n[UNK]\n[CLS]\na\n")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    settings = {"input_file": "corpus.txt", "output_file": "out", "vocab_file": "vocab.txt", **change}
    arguments = [f"--{name}={value}" for name, value in settings.items() if value is not None]
    done = command_lines.run("create_pretraining_data.py", *arguments, cwd=tmp_path)
    *logged, last = done.stderr.splitlines()
    assert done.status in (1, 2) and done.stdout == ""
    assert last.startswith("create_pretraining_data.py: error: ")
    assert all(part in last for part in expected), last
    assert not any("WARNING" in line or "ERROR" in line for line in logged), logged
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_needs_tensorflow(tmp_path, corpus, vocab_file):
    arguments = [f"--input_file={corpus}", f"--vocab_file={vocab_file}", f"--output_file={tmp_path}/out"]
    program = (
        "import atexit, sys; from bert_tf2 import commands\n"
        "atexit.register(lambda: print({'tensorflow', 'google.protobuf'} & {*sys.modules}))\n"
        "commands.run('create_pretraining_data')"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"set()\n"), done.stderr
    assert len(read_records(tmp_path / "out")) > 20


FAST_CASES = {
    "B07_chinese_whole_word_nolower",
    "B08_two_in_three_out",
    "B14_masked_lm_prob_03_whole_word",
    "B19_long_lines",
    "B20_odd_lines",
    "B21_odd_vocabulary",
    "B23_repeated_and_missing_input",
    "B24_tiny_sequences_seed_0",
    "B26_single_sentence",
}


@pytest.mark.parametrize("case", [case for case in cases("pretraining") if case.id in FAST_CASES or case.marks])
def test_examples_are_the_references(case, tmp_path):
    settings = dict(case["flags"])
    do_lower_case = settings.pop("do_lower_case", True)
    outputs = [f"{tmp_path}/{number}" for number in range(case["num_output_files"])]
    example_files.run(
        CreatePretrainingDataOptions(
            input_file=",".join(str(GOLDEN / path) for path in case["input_file"]),
            output_file=",".join(outputs),
            vocab_file=str(GOLDEN / case["vocab"]),
            do_lower_case=do_lower_case,
            **settings,
        )
    )
    assert [digest(path)["digest"] for path in outputs] == [output["digest"] for output in case["outputs"]]


def test_instances_of_one_s_own_are_written(tokenizer, tmp_path):
    own = types.SimpleNamespace(
        tokens=["[CLS]", "[MASK]", "[SEP]", "b", "[SEP]"], segment_ids=[0, 0, 0, 1, 1], masked_lm_positions=[1],
        masked_lm_labels=["a"], is_random_next=True,
    )  # fmt: skip
    path = str(tmp_path / "out")
    pretraining.write_instance_to_example_files([own], tokenizer, 6, 2, [path])
    (row,) = read_records(path)
    assert row["input_ids"] == [*tokenizer.convert_tokens_to_ids(own.tokens), 0]
    assert (row["masked_lm_positions"], row["next_sentence_labels"]) == ([1, 0], [1])
    with pytest.raises(ValueError, match="5 tokens and 1 predictions does not fit max_seq_length 4"):
        pretraining.write_instance_to_example_files([own], tokenizer, 4, 2, [path])


@pytest.mark.parametrize("shards", [None, 2])
@pytest.mark.parametrize(
    ("text", "share"), [("\u0434\u043e\u043c a .\n", 33), ("\u4e2d\u6587\n", 100), ("a \u0434 b .\n", None)]
)
def test_a_text_of_unknown_words_is_told(tmp_path, vocab_file, text, share, shards, in_process, log_lines):
    (tmp_path / "text").write_text(f"{text * 9}\n" * 2)
    sharded.run(data_options(tmp_path, "new/out", input_file=f"{tmp_path}/text", num_shards=shards))
    told = [line for line in log_lines if "tokens are [UNK]" in line]
    assert bool(told) == bool(share) and all(f"{share}% of its " in line for line in told)
