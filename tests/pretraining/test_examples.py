"""create_pretraining_data.py in one process: examples of the reference, of the functions and by hand; its mistakes."""

from __future__ import annotations

import collections
import gzip
import hashlib
import itertools
import os
import random
import re
import types
from unittest import mock

import pytest
from golden_data import GOLDEN, cases, digest
from pretraining_text import CORPUS, VOCABULARY, data_options, rows_of
from refused import refuses
from unmasked_data import make, text

from bert_tf2 import pretraining
from bert_tf2.pretraining import CreatePretrainingDataOptions, PretrainingDataOptions, create_pretraining_data
from bert_tf2.pretraining.examples import shuffle
from bert_tf2.tokenization import FullTokenizer


def script(randoms=(), integers=()):
    """A generator that returns the predefined numbers of a test, and shuffles nothing."""
    rng = mock.create_autospec(random.Random, instance=True)
    rng.random.side_effect, rng.randint.side_effect = randoms, integers
    return rng


def test_by_hand():
    a, b, rng = [*"abcde"], [*"fgh"], script([0.1, 0.6, 0.2, 0.9])
    for limit in (4, 9):
        pretraining.truncate_seq_pair(a, b, limit, rng)
        # A is longer: a is removed, then e; now both have 3, so f of B; then d of A.
        assert (a, b, rng.random.call_count) == (["b", "c"], ["g", "h"], 4)
    # The draws: whether [MASK] replaces a token, whether the token stays, and which word replaces it otherwise.
    rng, tokens = script([0.79, 0.8, 0.49, 0.8, 0.5], [7]), "[CLS] a b c [SEP] d e [SEP]".split()
    found = pretraining.create_masked_lm_predictions(tokens, 0.9, 3, VOCABULARY, rng, False)
    assert found == (f"[CLS] [MASK] b {VOCABULARY[7]} [SEP] d e [SEP]".split(), [1, 2, 3], [*"abc"])
    assert rng.random.call_count == 5 and tokens == "[CLS] a b c [SEP] d e [SEP]".split()  # not modified
    nothing = pretraining.create_masked_lm_predictions(["[CLS]", "[SEP]"], 0.9, 3, VOCABULARY, rng, True)
    assert nothing == (["[CLS]", "[SEP]"], [], [])
    for count, probability, wanted in ((128, 0.3, 20), (5, 0.0, 1), (10, 0.25, 2), (14, 0.25, 4)):
        tokens = ["[CLS]", *["a"] * (count - 2), "[SEP]"]
        found = pretraining.create_masked_lm_predictions(tokens, probability, 20, VOCABULARY, random.Random(1))
        assert len(found[1]) == wanted  # 2.5 and 3.5 are rounded to even


# Whole words


def words_of(instance, boundaries):
    """The places of the words of an example, in a text whose words are apart by spaces alone."""
    words, originals = [], dict(zip(instance.masked_lm_positions, instance.masked_lm_labels, strict=True))
    for place, (token, segment) in enumerate(zip(instance.tokens, instance.segment_ids, strict=True)):
        token = originals.get(place, token)
        begins_b = boundaries == "spaces" and segment > instance.segment_ids[place - 1]
        if words and token.startswith("##") and not begins_b:
            words[-1].append(place)
        elif token not in ("[CLS]", "[SEP]"):
            words.append([place])
    return words


@pytest.mark.parametrize("boundaries", ["pieces", "spaces"])
def test_words_are_masked_together_and_replaced_alike(tmp_path, tokenizer, boundaries):
    """With --whole_word_draw=word, 80 % of the words become [MASK], 10 % stay, and 10 % become others.

    If a segment was cut inside a word, its first pieces belong to A's last word with boundaries=pieces.
    """
    text = "abcd ef\nghij klm\nno pqrs\n\nabc abcd\nxyz zyx\n\n"
    text += "\n\n".join(["ab cde fg hij\ncde fg hij ab\nfg hij ab cde\nhij ab cde fg\nab cde fg hij"] * 12)
    (tmp_path / "text").write_text(text)
    options = PretrainingDataOptions(
        do_whole_word_mask=True, word_boundaries=boundaries, whole_word_draw="word", dupe_factor=80,
        max_seq_length=12, max_predictions_per_seq=5, masked_lm_prob=0.4,
    )  # fmt: skip
    met, found = 0, collections.Counter()
    for instance in pretraining.make_instances([f"{tmp_path}/text"], tokenizer, options, random.Random(1)):
        labels = dict(zip(instance.masked_lm_positions, instance.masked_lm_labels, strict=True))
        words = words_of(instance, boundaries)
        met += words != words_of(instance, "spaces" if boundaries == "pieces" else "pieces")
        assert all({*word} <= labels.keys() or not {*word} & labels.keys() for word in words)
        for word in (word for word in words if len(word) > 1 and word[0] in labels):
            new, same = {instance.tokens[n] for n in word}, [labels[n] == instance.tokens[n] for n in word]
            how = "[MASK]" if new == {"[MASK]"} else "mixed" if "[MASK]" in new or any(same) else "other"
            found["same" if all(same) else how] += 1
    assert met > 50
    shares = {how: count / found.total() for how, count in found.items()}
    # A random entry of 57 may be the token itself, or [MASK].
    assert shares == pytest.approx({"[MASK]": 0.8, "same": 0.1, "other": 0.1, "mixed": 0.01}, abs=0.03)


# The functions of the reference


def test_the_reference_s_functions_take_its_arguments(tokenizer, corpus):
    """The arguments of two functions, the second one a call for each document with a generator that advances."""
    options = PretrainingDataOptions(
        max_seq_length=32, max_predictions_per_seq=5, dupe_factor=2, masked_lm_prob=0.2, short_seq_prob=0.3,
        do_whole_word_mask=True,
    )  # fmt: skip
    wanted = pretraining.make_instances([corpus], tokenizer, options, random.Random(3))
    found = pretraining.create_training_instances([corpus], tokenizer, 32, 2, 0.3, 0.2, 5, random.Random(3), True)
    assert len(found) > 10 and found == wanted
    assert pretraining.make_instances(corpus, tokenizer, options, random.Random(3)) == wanted  # a name alone
    documents = [[tokenizer.tokenize(line) for line in part.splitlines()] for part in CORPUS.split("\n\n")]
    rng, found = random.Random(3), []
    rng.shuffle(documents)
    for _, number in itertools.product(range(2), range(len(documents))):
        given = (32, 0.3, 0.2, 5, VOCABULARY, rng, True)
        found += pretraining.create_instances_from_document(documents, number, *given)
    rng.shuffle(found)
    assert found == wanted
    lines = str(pretraining.TrainingInstance(["[CLS]", "a"], (0, 0), [1], ["b"], False)).split("\n")
    assert lines[:2] == ["tokens: [CLS] a", "segment_ids: 0 0"] and lines[5:] == ["", ""]
    assert lines[2:5] == ["is_random_next: False", "masked_lm_positions: 1", "masked_lm_labels: b"]


def test_a_tokenizer_of_one_s_own(tmp_path):
    """Its delimiters in the text are never masked, and it sees whole sentences."""
    own = types.SimpleNamespace(vocab={"[MASK]": 0, "x": 1}, tokenize=lambda text: text.split("+"))
    (tmp_path / "text").write_text("a +[SEP]+ b\n[CLS]+c\n" * 9)
    options = PretrainingDataOptions(max_seq_length=16, masked_lm_prob=1.0, dupe_factor=3)
    for instance in pretraining.make_instances([f"{tmp_path}/text"], own, options, random.Random(1)):
        delimiters = [place for place, token in enumerate(instance.tokens) if token in ("[CLS]", "[SEP]")]
        assert len(delimiters) > 3 and {*instance.masked_lm_labels} == {"a ", " b", "c"}
        assert instance.masked_lm_positions == [n for n in range(len(instance.tokens)) if n not in delimiters]


def test_instances_of_one_s_own_are_written(tokenizer, tmp_path):
    own = types.SimpleNamespace(
        tokens=["[CLS]", "[MASK]", "[SEP]"], segment_ids=[0, 0, 0], masked_lm_positions=[1], masked_lm_labels=["a"],
        is_random_next=True,
    )  # fmt: skip
    path = str(tmp_path / "out")
    pretraining.write_instance_to_example_files([own, own], tokenizer, 4, 2, path)  # a name alone
    assert len(rows_of(path)) == 2
    pretraining.write_instance_to_example_files(iter([own]), tokenizer, 4, 2, [path])
    (row,) = rows_of(path)
    assert row["input_ids"] == [*tokenizer.convert_tokens_to_ids(own.tokens), 0] and row["next_sentence_labels"] == [1]
    for second, length, error in ((own, 2, ValueError), (None, 4, AttributeError)):  # too long; a failure halfway
        with pytest.raises(error):
            pretraining.write_instance_to_example_files([own, second], tokenizer, length, 2, [path])
        assert rows_of(path) == [row] and len([*tmp_path.iterdir()]) == 2


# The script


def run(folder, output="out", **changes):
    """Runs it on corpus.txt of a folder; returns the path of the output."""
    create_pretraining_data.run(data_options(folder, output, **changes))
    return folder / output


# Quick ones; the first three lie in every checkout.
FAST = {
    "B21_odd_vocabulary", "B24_tiny_sequences_seed_0", "B26_single_sentence", "B07_chinese_whole_word_nolower",
    "B08_two_in_three_out", "B19_long_lines", "B20_odd_lines", "B23_repeated_and_missing_input",
}  # fmt: skip


@pytest.mark.parametrize("case", [case for case in cases("pretraining") if case.id in FAST])
def test_records_are_those_of_the_reference(case, tmp_path):
    outputs = [f"{tmp_path}/{number}" for number in range(case["num_output_files"])]
    files = {"input_file": ",".join(str(GOLDEN / path) for path in case["input_file"])}
    files |= {"output_file": ",".join(outputs), "vocab_file": str(GOLDEN / case["vocab"])}
    create_pretraining_data.run(CreatePretrainingDataOptions(**{"do_lower_case": True, **files, **case["flags"]}))
    assert [digest(path)["digest"] for path in outputs] == [output["digest"] for output in case["outputs"]]


SPACES = {"do_whole_word_mask": True, "word_boundaries": "spaces"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "cd91fd18912563d9"),
        ({**SPACES, "masked_lm_prob": 0.4}, "022b63896d7e7b48"),
        ({"objective": "mlm", "short_seq_prob": 0.5}, "c37ab52b3f651034"),
        ({"objective": "mlm", **SPACES}, "c1e5cfe6ad54bace"),
        ({"dynamic_masking": True}, "3eb54f1d1babfb46"),
        ({"dynamic_masking": True, "objective": "mlm"}, "153b090946dc3148"),
    ],
)
def test_the_bytes_stay_where_the_reference_has_no_such_option(tmp_path, changes, expected):
    """Those of commit 9abd1cf: a corpus that is made again, or continued in shards, must not change."""
    path = make(tmp_path, dupe_factor=2, **{"dynamic_masking": False, **changes})
    with open(path, "rb") as stream:
        assert hashlib.sha256(stream.read()).hexdigest()[:16] == expected


def test_examples_go_to_the_files_in_turn(tmp_path, corpus, vocab_file):
    """Long ones are encoded a few at a time."""
    everything = rows_of(run(tmp_path, "all", max_seq_length=5_000, objective="mlm", short_seq_prob=1.0))
    files = ",".join(f"{tmp_path}/new/{name}" for name in "xyz")
    run(tmp_path, max_seq_length=5_000, objective="mlm", short_seq_prob=1.0, output_file=files)
    assert len(everything) > 30
    for number, name in enumerate("xyz"):
        assert rows_of(tmp_path / "new" / name) == everything[number::3]


def test_the_log(tmp_path, corpus, vocab_file, log_lines):
    first, *rest = rows_of(run(tmp_path, input_file=f"{corpus},{tmp_path}/gone.txt,{tmp_path}/*.nothing"))
    tokens = [VOCABULARY[i] for i in first["input_ids"][: sum(first["input_mask"])]]
    (line,) = [line for line in log_lines if " ".join(tokens) in line]
    assert f" {len(rest) + 1} examples" in line and f"Wrote {len(rest) + 1} examples" in log_lines
    assert log_lines[-1].endswith(f"wrote  {tmp_path}/out")
    assert all(any(name in line for line in log_lines) for name in ("gone.txt", "*.nothing"))


def test_compressed_records_depend_on_the_content_alone(tmp_path, corpus, vocab_file):
    packed = run(tmp_path, "packed.gz").read_bytes()
    assert gzip.decompress(packed) == run(tmp_path, "plain").read_bytes()
    assert packed[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"  # no name, no time
    (tmp_path / "corpus.txt").write_text("\n \n\x00\n")  # not a token
    run(tmp_path, output_file=f"{tmp_path}/x,{tmp_path}/y.gz")
    assert (tmp_path / "x").read_bytes() == gzip.decompress((tmp_path / "y.gz").read_bytes()) == b""


def test_a_mistake_gets_one_line_and_leaves_nothing(tmp_path, monkeypatch, corpus, vocab_file):
    monkeypatch.chdir(tmp_path)
    for change, words in (
        ({"input_file": "*.text,gone.txt"}, "*.text"),
        ({"max_seq_length": 4}, "--max_seq_length=4 5"),
        ({"output_file": "out,./out"}, "--output_file=./out twice"),
        ({"output_file": "out,"}, "--output_file empty"),
        ({"whole_word_draw": "word"}, "--whole_word_draw --do_whole_word_mask"),
    ):
        refuses(words, lambda change=change: run(tmp_path, **change))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "vocab.txt"]


ODD = [
    "\u4e2d\u4e2d",
    "[MASK]",
    "\ufffd",
    "caf\u00e9",
    "a\u2028b",
    "a\x1cb",
    "A\u0301",
    "\t",
    " \u00a0",
    "\u3000",
    "\n\x00\n",
]


def random_text(rng):
    """Documents of sentences of words, some of them of several pieces, some unknown; odd blanks and lines."""
    return re.sub(r"\.", lambda _: rng.choice(ODD), text(rng.randint(1, 9), rng.random()))


@pytest.mark.parametrize("seed", range(15))
def test_the_script_makes_what_the_functions_make(tmp_path, seed):
    """Random texts, vocabularies and options. The functions draw from random.Random number by number."""
    rng = random.Random(seed)
    entries = [*VOCABULARY, *rng.choices(VOCABULARY, k=3 * (seed % 2))]  # repeated entries: the last one counts
    (tmp_path / "vocab.txt").write_text("\n".join(entries), encoding="utf-8")
    for name in ("one", "two"):
        (tmp_path / name).write_text(random_text(rng), encoding="utf-8")
    whole_words = [{"do_whole_word_mask": True}, SPACES, {**SPACES, "whole_word_draw": "word"}]
    how = [{}, {"dynamic_masking": True}, *whole_words]
    settings = {
        "max_seq_length": rng.choice([5, 6, 9, 24, 128, 300]),
        "max_predictions_per_seq": rng.choice([1, 4, 20, 80]),
        "dupe_factor": rng.choice([1, 3]),
        "masked_lm_prob": rng.choice([0.0, 0.15, 0.5, 1.0]),
        "short_seq_prob": rng.choice([0.0, 0.1, 1.0]),
        "objective": ("mlm_nsp", "mlm")[seed % 2],
        "random_seed": seed,
        **how[seed % len(how)],
    }
    paths = [f"{tmp_path}/one", f"{tmp_path}/two"]
    options = data_options(tmp_path, input_file=",".join(paths), do_lower_case=seed % 3 > 0, **settings)
    create_pretraining_data.run(options)
    tokenizer = FullTokenizer(options.vocab_file, do_lower_case=options.do_lower_case)
    instances = pretraining.make_instances(paths, tokenizer, options, random.Random(seed))
    if not options.dynamic_masking:
        sizes = options.max_seq_length, options.max_predictions_per_seq
        pretraining.write_instance_to_example_files(instances, tokenizer, *sizes, [f"{tmp_path}/same"])
        assert (tmp_path / "out").read_bytes() == (tmp_path / "same").read_bytes() != b""
        return
    wanted = []
    for instance in instances:
        assert instance.masked_lm_positions == []
        lengths = [*filter(None, map(instance.segment_ids.count, (0, 1)))]
        row = {"input_ids": tokenizer.convert_tokens_to_ids(instance.tokens), "segment_lengths": lengths}
        pair = {} if options.objective == "mlm" else {"next_sentence_labels": [int(instance.is_random_next)]}
        wanted.append(row | pair)
    assert rows_of(tmp_path / "out") == wanted != []


# What is rarely met


def test_the_output_is_a_pipe_in_a_folder_that_nobody_can_write(tmp_path, corpus, vocab_file):
    wanted = run(tmp_path).read_bytes()
    reader, writer = os.pipe()
    create_pretraining_data.run(data_options(tmp_path, output_file=f"/proc/self/fd/{writer}"))
    os.close(writer)
    with open(reader, "rb") as stream:
        assert stream.read() == wanted != b""


@pytest.mark.parametrize("seed", [146572, 315434, 1])
def test_our_shuffle_is_the_generator_s(seed):
    """With the first seeds, the first 17 draws of a shuffle are too large."""
    rngs = random.Random(seed), random.Random(seed)
    for count in (2, *range(5), *range(254, 258), 100_000):
        ours, theirs = ([*range(count)] for _ in rngs)
        shuffle(rngs[0], ours)
        rngs[1].shuffle(theirs)
        assert ours == theirs and rngs[0].getstate() == rngs[1].getstate()
