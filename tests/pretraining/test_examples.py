"""Pretraining examples: reading, pairing, truncating, masking, writing, and what a wrong command line gets."""

from __future__ import annotations

import collections
import hashlib
import json
import pathlib
import random
import re
import subprocess
import sys
import types

import pytest
from absl import logging

from bert_tf2 import pretraining as pretraining_data
from bert_tf2.pretraining.examples import Document, PretrainingDataOptions
from bert_tf2.support import progress
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import SPECIAL_TOKENS, FullTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT.parent / "shared" / "golden" / "data"

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = [*SPECIAL_TOKENS, ".", *LETTERS, *(f"##{letter}" for letter in LETTERS)]

# Three documents of one-piece words, and one whose words have three pieces each.
CORPUS = """\
a b c d e f .
g h i .
j k l m n .

o p q r .
s t u v w x y z .

a c e .
g i k m o q s u w y .
b d f .
h j l n p r t v x z .

abc def ghi .
jkl mno .
pqr stu vwx yza .
"""


class Script:
    """Stands in for random.Random and hands out the numbers that a test wrote down."""

    def __init__(self, randoms=(), integers=()):
        self._randoms, self._integers = list(randoms), list(integers)

    def random(self):
        return self._randoms.pop(0)

    def randint(self, low, high):
        value = self._integers.pop(0)
        assert low <= value <= high
        return value

    @property
    def used_up(self):
        return not self._randoms and not self._integers


@pytest.fixture
def vocab_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n")
    return str(path)


@pytest.fixture
def tokenizer(vocab_file):
    return FullTokenizer(vocab_file=vocab_file)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(CORPUS)
    return str(path)


@pytest.fixture
def log(monkeypatch):
    """The lines that were logged, each with the name of its level before it."""
    lines = []
    for level in ("debug", "info", "warning"):
        monkeypatch.setattr(
            logging, level, lambda text, *args, level=level: lines.append(f"{level}: {text % args if args else text}")
        )
    return lines


@pytest.fixture
def in_order(monkeypatch):
    """Leaves lists as they are where they would be shuffled."""
    monkeypatch.setattr(pretraining_data, "shuffle", lambda items, rng: None)


def document(*sentences):
    return Document(sentence.split() for sentence in sentences)


def sentences_of(doc):
    return [" ".join(doc.segment(i, i + 1).tokens) for i in range(len(doc))]


def read_records(path):
    import tensorflow as tf

    rows = []
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        rows.append(
            {name: list(f.int64_list.value) or list(f.float_list.value) for name, f in sorted(features.items())}
        )
    return rows


def digest(path):
    """As golden/data/README.md defines it."""
    import tensorflow as tf

    total = hashlib.sha256()
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        message = tf.train.Example.FromString(record).SerializeToString(deterministic=True)
        total.update(len(message).to_bytes(8, "little") + message)
    return total.hexdigest()


# Shuffling


@pytest.mark.parametrize("num_items", [0, 1, 2, 3, 4, 7, 8, 9, 127, 128, 129, 1000])
def test_shuffle_is_pythons_and_leaves_the_generator_where_python_does(num_items):
    ours, pythons = list(range(num_items)), list(range(num_items))
    our_rng, python_rng = random.Random(num_items), random.Random(num_items)
    for _ in range(5):
        pretraining_data.shuffle(ours, our_rng)
        python_rng.shuffle(pythons)
    assert ours == pythons
    assert our_rng.random() == python_rng.random()


# Reading


def test_blank_lines_end_documents_but_files_do_not(tmp_path, tokenizer):
    (tmp_path / "one").write_text("\n\na b\r\n\u3000 \nc\n\n \nd\n")
    (tmp_path / "two").write_text("e\u2028f\n\x00\ng\n\nh")
    documents = pretraining_data.read_documents([str(tmp_path / "one"), str(tmp_path / "two")], tokenizer)
    # U+3000 alone is a blank line; NUL is a line without tokens, which ends nothing; U+2028 ends no line.
    assert [sentences_of(doc) for doc in documents] == [["a b"], ["c"], ["d", "e f", "g"], ["h"]]


def test_a_token_is_kept_once_however_often_it_comes():
    doc = Document([["".join(["x", "yz"]), "".join(["x", "yz"])]])
    assert doc.tokens[0] is doc.tokens[1]


# Pairing


def test_stop_for_takes_whole_sentences_until_there_are_enough_tokens():
    doc = document("a b", "c d e", "f")
    assert [doc.stop_for(0, wanted) for wanted in (-5, 1, 2, 3, 5, 6, 99)] == [1, 1, 1, 2, 2, 3, 3]
    assert doc.stop_for(2, 1) == 3


def test_pairs_by_hand(in_order):
    documents = [document("a b", "c d", "e f", "g h"), document("i j", "k l", "m n")]
    options = PretrainingDataOptions(max_seq_length=9, max_predictions_per_seq=1, short_seq_prob=0.1)
    mask = 0.0  # one draw below 0.8 for the single prediction
    rng = Script(
        randoms=[
            0.5,  # not a short document: 6 tokens are aimed at
            *(0.4, mask),  # a b | c d e f: B is a random one, c d e f goes back
            *(0.7, mask),  # c d | e f g h: B is the real one
        ],
        integers=[1, 0, 0, 1, 1, 1],
        # A is one sentence; documents 0, 0 (the own one: drawn again) and 1; from its sentence 1; A is one sentence
    )
    first, second = pretraining_data.instances_of_document(documents, 0, VOCABULARY, options, rng)
    assert rng.used_up
    assert first.tokens == ["[CLS]", "[MASK]", "b", "[SEP]", "k", "l", "m", "n", "[SEP]"]
    assert first.segment_ids == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert (first.is_random_next, first.masked_lm_positions, first.masked_lm_labels) == (True, (1,), ["a"])
    assert second.tokens == ["[CLS]", "[MASK]", "d", "[SEP]", "e", "f", "g", "h", "[SEP]"]
    assert (second.is_random_next, second.masked_lm_labels) == (False, ["c"])


def test_a_single_sentence_gets_a_random_continuation_without_a_coin(in_order):
    documents = [document("a b c"), document("d", "e")]
    options = PretrainingDataOptions(max_seq_length=16, max_predictions_per_seq=1)
    rng = Script(randoms=[0.5, 0.0], integers=[1, 1])  # no short document, [MASK]; document 1 from sentence 1
    (instance,) = pretraining_data.instances_of_document(documents, 0, VOCABULARY, options, rng)
    assert rng.used_up
    assert instance.is_random_next
    assert instance.tokens == ["[CLS]", "[MASK]", "b", "c", "[SEP]", "e", "[SEP]"]


def test_a_short_document_aims_at_the_length_drawn(in_order):
    documents = [document(*"abcdefgh"), document(*"ij")]
    options = PretrainingDataOptions(max_seq_length=128, max_predictions_per_seq=1)
    # Short (0.05 < 0.1), of 4 tokens; then twice: A is two sentences, and B (0.9) follows it.
    rng = Script(randoms=[0.05, *[0.9, 0.0] * 2], integers=[4, 2, 2])
    instances = pretraining_data.instances_of_document(documents, 0, VOCABULARY, options, rng)
    lengths = [len(instance.tokens) for instance in instances]
    assert rng.used_up
    assert lengths == [4 + 3, 4 + 3]


def test_truncation_shortens_the_longer_segment_at_the_end_that_the_coin_says():
    a, b = document("a b c d e").segment(0, 1), document("f g h").segment(0, 1)
    rng = Script(randoms=[0.1, 0.6, 0.2, 0.9])
    pretraining_data.truncate_seq_pair(a, b, 4, rng)
    # A is longer: a goes, e goes; now both have 3, so B: f goes; then A again: d goes.
    assert rng.used_up
    assert (a.tokens, b.tokens) == (["b", "c"], ["g", "h"])


def test_half_of_the_pairs_are_random_and_labelled_so():
    marks = [f"{x}{y}" for x in LETTERS for y in LETTERS]
    documents = [Document([[mark, str(number)] for number in range(40)]) for mark in marks[:60]]
    options = PretrainingDataOptions(max_seq_length=17, max_predictions_per_seq=1, short_seq_prob=0.0)
    rng = random.Random(5)
    labels = collections.Counter()
    for number in range(len(documents)):
        for instance in pretraining_data.instances_of_document(documents, number, VOCABULARY, options, rng):
            a, b = instance.segment_a, instance.segment_b
            assert instance.is_random_next == (a.document is not b.document)
            assert instance.is_random_next or a.stop == b.start
            assert len(a) >= 1 and len(b) >= 1 and len(a) + len(b) + 3 <= 17
            labels[instance.is_random_next] += 1
    assert 0.45 < labels[True] / labels.total() < 0.56  # the last sentence of a document is always random


# Masking


def test_masking_by_hand(in_order):
    tokens = ["[CLS]", "a", "b", "c", "[SEP]", "d", "e", "[SEP]"]
    options = PretrainingDataOptions(max_predictions_per_seq=3, masked_lm_prob=0.9)
    rng = Script(randoms=[0.79, 0.8, 0.49, 0.8, 0.5], integers=[7])
    masked = pretraining_data.choose_predictions(tokens, VOCABULARY, options, rng)
    assert rng.used_up
    assert masked == [(1, "a", "[MASK]"), (2, "b", "b"), (3, "c", VOCABULARY[7])]
    assert tokens == ["[CLS]", "a", "b", "c", "[SEP]", "d", "e", "[SEP]"]


@pytest.mark.parametrize(
    ("num_tokens", "probability", "limit", "wanted"),
    [(128, 0.15, 20, 19), (128, 0.3, 20, 20), (5, 0.0, 20, 1), (5, 0.15, 20, 1), (10, 0.25, 20, 2), (14, 0.25, 20, 4)],
)
def test_number_of_predictions(num_tokens, probability, limit, wanted):
    options = PretrainingDataOptions(masked_lm_prob=probability, max_predictions_per_seq=limit)
    assert options.num_to_predict(num_tokens) == wanted  # 2.5 and 3.5 are rounded to even


def test_80_10_10_and_never_a_delimiter():
    tokens = ["[CLS]", *"abcdefghij" * 5, "[SEP]", *"klmnopqrst" * 5, "[SEP]"]
    options = PretrainingDataOptions(max_predictions_per_seq=30, masked_lm_prob=0.15)
    rng = random.Random(3)
    kinds, places = collections.Counter(), collections.Counter()
    for _ in range(2000):
        masked = pretraining_data.choose_predictions(tokens, VOCABULARY, options, rng)
        indexes = [choice.index for choice in masked]
        assert len(masked) == 15 and indexes == sorted(set(indexes))
        assert all(choice.label == tokens[choice.index] for choice in masked)
        places.update(indexes)
        kinds.update({"[MASK]": "mask", choice.label: "kept"}.get(choice.replacement, "random") for choice in masked)
    assert kinds["mask"] / kinds.total() == pytest.approx(0.8, abs=0.01)
    assert kinds["kept"] / kinds.total() == pytest.approx(0.1, abs=0.01)
    assert kinds["random"] / kinds.total() == pytest.approx(0.1, abs=0.01)
    assert set(places) == set(range(len(tokens))) - {0, 51, 102}
    assert max(places.values()) < 1.3 * min(places.values())


def test_whole_words_are_masked_together_or_not_at_all():
    tokens = ["[CLS]", "a", "##b", "##c", "d", "e", "##f", "[SEP]", "g", "h", "##i", "##j", "k", "[SEP]"]
    words = [{1, 2, 3}, {4}, {5, 6}, {8}, {9, 10, 11}, {12}]
    options = PretrainingDataOptions(do_whole_word_mask=True, masked_lm_prob=0.35)
    rng, seen = random.Random(1), set()
    for _ in range(300):
        masked = pretraining_data.choose_predictions(tokens, VOCABULARY, options, rng)
        positions = {choice.index for choice in masked}
        assert len(positions) == 5  # round(14 * 0.35); words of one piece fill what a longer one would overfill
        assert all(word <= positions or not word & positions for word in words)
        seen |= positions
    assert seen == set().union(*words)


def test_pieces_at_the_start_of_b_belong_to_the_last_word_of_a(in_order):
    tokens = ["[CLS]", "##a", "b", "[SEP]", "##c", "d", "[SEP]"]
    assert pretraining_data._maskable_units(tokens, whole_words=True) == [(1,), (2, 4), (5,)]
    assert pretraining_data._maskable_units(tokens, whole_words=False) == [(1,), (2,), (4,), (5,)]


def test_no_word_short_enough_gives_no_prediction():
    tokens = ["[CLS]", "a", "##b", "[SEP]", "c", "##d", "[SEP]"]
    documents = [document("a ##b", "c ##d")]
    options = PretrainingDataOptions(do_whole_word_mask=True, max_predictions_per_seq=1, short_seq_prob=0.0)
    assert pretraining_data.choose_predictions(tokens, VOCABULARY, options, random.Random(1)) == []
    (instance, *_) = pretraining_data.instances_of_document(documents, 0, VOCABULARY, options, random.Random(1))
    assert instance.masked_lm_positions == () and instance.masked_lm_labels == []


# Writing


def make(corpus, vocab_file, output, **options):
    options = PretrainingDataOptions(**{"max_seq_length": 24, "max_predictions_per_seq": 4, **options})
    pretraining_data.create_pretraining_data(corpus, output, vocab_file, True, options)


def test_records_are_padded_and_labels_are_the_tokens_that_were_masked(tmp_path, corpus, vocab_file):
    make(corpus, vocab_file, f"{tmp_path}/out")
    rows = read_records(tmp_path / "out")
    assert len(rows) > 20
    for row in rows:
        length = sum(row["input_mask"])
        num_masked = int(sum(row["masked_lm_weights"]))
        tokens = [VOCABULARY[i] for i in row["input_ids"]]
        assert (len(tokens), len(row["masked_lm_positions"]), len(row["next_sentence_labels"])) == (24, 4, 1)
        assert row["input_mask"] == [1] * length + [0] * (24 - length)
        assert tokens[length:] == ["[PAD]"] * (24 - length)
        assert tokens[0] == "[CLS]" and tokens[length - 1] == "[SEP]"
        assert sum(row["segment_ids"][length:]) == 0 and row["segment_ids"][:length] == sorted(
            row["segment_ids"][:length]
        )
        assert row["masked_lm_weights"] == [1.0] * num_masked + [0.0] * (4 - num_masked)
        assert row["masked_lm_positions"][num_masked:] == row["masked_lm_ids"][num_masked:] == [0] * (4 - num_masked)
        for position, label in zip(row["masked_lm_positions"], row["masked_lm_ids"], strict=True):
            tokens[position] = VOCABULARY[label] if position else tokens[position]
        assert "[MASK]" not in tokens
        text = "".join(tokens[1:length])
        assert all(part.replace("##", "") in CORPUS.replace(" ", "").replace("\n", "") for part in text.split("[SEP]"))


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path, corpus, vocab_file):
    for name, seed in (("one", 1), ("again", 1), ("two", 2)):
        make(corpus, vocab_file, f"{tmp_path}/{name}", random_seed=seed)
    one, again, two = ((tmp_path / name).read_bytes() for name in ("one", "again", "two"))
    assert one == again
    assert one != two


def test_examples_go_to_the_files_in_turn(tmp_path, corpus, vocab_file):
    make(corpus, vocab_file, f"{tmp_path}/all")
    make(corpus, vocab_file, f"{tmp_path}/new/x, {tmp_path}/new/y,{tmp_path}/new/z")
    everything = read_records(tmp_path / "all")
    for number, name in enumerate("xyz"):
        assert read_records(tmp_path / "new" / name) == everything[number::3]


def test_what_is_logged(tmp_path, corpus, vocab_file, log, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_DRAWINGS", 0.0)
    make(corpus, vocab_file, f"{tmp_path}/out")
    (first, *rest) = read_records(tmp_path / "out")
    tokens = [VOCABULARY[i] for i in first["input_ids"][: sum(first["input_mask"])]]
    (example,) = (line for line in log if line.startswith("info: The first of"))
    assert " ".join(tokens) in " ".join(example.split())
    labels = [VOCABULARY[i] for i in first["masked_lm_ids"][: int(sum(first["masked_lm_weights"]))]]
    assert re.findall(r"(\S+) -> ", example) == labels
    assert ("is a random one" in example) == bool(first["next_sentence_labels"][0])
    assert log.count("debug: *** Example ***") == 20 < len(rest)
    for name, values in first.items():
        assert f"debug: {name}: {' '.join(map(str, values))}" in log
    assert f"info: Wrote {len(rest) + 1} examples" in log
    for stage in ("Reading", "Making examples", "Writing"):
        assert any(line.startswith(f"info: {stage}") and "/s" in line for line in log), stage
    assert any(f"of {len(rest) + 1} examples, " in line and line.endswith(" s left") for line in log)
    assert f"  wrote  {tmp_path}/out\n  next\n    python run_pretraining.py --do_train" in log[-1]
    assert not any(line.startswith("warning") for line in log)


def test_nothing_is_left_behind_by_a_failure_halfway(tmp_path, corpus, tokenizer):
    (tmp_path / "out").write_text("what was there before")
    before = sorted(tmp_path.iterdir())
    options = PretrainingDataOptions(max_seq_length=24, max_predictions_per_seq=4)
    instances = pretraining_data.make_instances([corpus], tokenizer, options, random.Random(1))
    instances[5] = None
    with pytest.raises(AttributeError):
        pretraining_data.write_instance_to_example_files(
            instances, tokenizer, options.max_seq_length, options.max_predictions_per_seq, [f"{tmp_path}/out"]
        )
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "out").read_text() == "what was there before"


# Warnings, with the reference's result


def test_an_input_that_matches_nothing_is_left_out_where_another_matches(tmp_path, corpus, vocab_file, log):
    make(corpus, vocab_file, f"{tmp_path}/alone")
    make(f"{corpus},{tmp_path}/gone.txt,{tmp_path}/*.nothing", vocab_file, f"{tmp_path}/out")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "alone").read_bytes()
    warnings = [line for line in log if line.startswith("warning")]
    assert len(warnings) == 2 and "gone.txt" in warnings[0] and "*.nothing" in warnings[1]


def test_a_corpus_without_a_token_gives_files_without_records(tmp_path, vocab_file, log):
    (tmp_path / "empty").write_text("\n \n\x00\n")
    make(f"{tmp_path}/empty", vocab_file, f"{tmp_path}/x,{tmp_path}/y")
    assert read_records(tmp_path / "x") == read_records(tmp_path / "y") == []
    assert any(line.startswith("warning") and "not a single token" in line for line in log)


@pytest.mark.parametrize(("limit", "warned"), [(3, True), (4, False)])  # round(24 * 0.15) is 4
def test_fewer_predictions_than_asked_for(tmp_path, corpus, vocab_file, log, limit, warned):
    make(corpus, vocab_file, f"{tmp_path}/out", max_predictions_per_seq=limit)
    warnings = [line for line in log if line.startswith("warning")]
    assert len(warnings) == warned
    assert all("=3" in line and "would have 4 at --masked_lm_prob=0.15" in line for line in warnings)


# Bad input


def test_options_refuse_nonsense():
    for name, value in (("masked_lm_prob", float("nan")), ("short_seq_prob", -0.1), ("max_seq_length", 4)):
        with pytest.raises(UserError, match=f"^--{name}="):
            PretrainingDataOptions(**{name: value})
    with pytest.raises(TypeError, match="max_sequence_length"):
        PretrainingDataOptions(max_sequence_length=128)


BAD_COMMANDS = [
    ({"input_file": "gone.txt"}, ["gone.txt: no such file", "corpus.txt"]),
    ({"input_file": "*.text,gone.txt"}, ["*.text: no file matches this pattern"]),
    ({"input_file": "latin1.txt"}, ["latin1.txt, line 2: not UTF-8", "0xe9"]),
    ({"input_file": "folder"}, ["folder: is a folder"]),
    ({"vocab_file": "gone.txt"}, ["gone.txt: no such file"]),
    ({"vocab_file": "few.txt"}, ["few.txt", "[SEP], [MASK]"]),
    ({"max_seq_length": "4"}, ["--max_seq_length=4", "5"]),
    ({"max_predictions_per_seq": "0"}, ["--max_predictions_per_seq=0"]),
    ({"dupe_factor": "0"}, ["--dupe_factor=0"]),
    ({"masked_lm_prob": "1.5"}, ["--masked_lm_prob=1.5"]),
    ({"masked_lm_prob": "nan"}, ["--masked_lm_prob=nan"]),
    ({"short_seq_prob": "half"}, ["--short_seq_prob=half"]),
    ({"output_file": "out,./out"}, ["--output_file=./out: is named twice"]),
    ({"output_file": "corpus.txt"}, ["--output_file=corpus.txt: is also read from"]),
    ({"output_file": "out,"}, ["--output_file: a name is empty"]),
    ({"output_file": "folder"}, ["--output_file=folder: is a folder"]),
    ({"output_file": "corpus.txt/out"}, ["--output_file=corpus.txt/out", "cannot be written"]),
    ({"output_file": None, "vocab_file": None}, ["--output_file and --vocab_file must be given"]),
    ({"do_upper_case": "true"}, ["do_upper_case"]),
]


@pytest.mark.parametrize(("change", "expected"), BAD_COMMANDS, ids=[str(change) for change, _ in BAD_COMMANDS])
def test_a_mistake_gets_one_line_and_leaves_nothing(tmp_path, corpus, vocab_file, change, expected):
    (tmp_path / "latin1.txt").write_bytes(b"a b c .\ncaf\xe9 .\n")
    (tmp_path / "few.txt").write_text("[PAD]\n[UNK]\n[CLS]\na\n")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    settings = {"input_file": "corpus.txt", "output_file": "out", "vocab_file": "vocab.txt", **change}
    arguments = [f"--{name}={value}" for name, value in settings.items() if value is not None]
    done = subprocess.run(
        [sys.executable, str(ROOT / "create_pretraining_data.py"), *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    *logged, last = done.stderr.splitlines()
    assert done.returncode in (1, 2) and done.stdout == ""
    assert last.startswith("create_pretraining_data.py: error: ")
    assert all(part in last for part in expected), last
    assert not any("WARNING" in line or "ERROR" in line for line in logged), logged
    assert sorted(tmp_path.rglob("*")) == before


def test_mistakes_are_found_without_tensorflow():
    program = "import sys, create_pretraining_data; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60).returncode == 0


# What google-research/bert wrote


GOLDEN_CASES = [
    "B07_chinese_whole_word_nolower",
    "B08_two_in_three_out",
    "B14_masked_lm_prob_03_whole_word",
    "B19_long_lines",
    "B20_odd_lines",
    "B21_odd_vocabulary",
    "B23_repeated_and_missing_input",
    "B24_tiny_sequences_seed_0",
    "B26_single_sentence",
]


@pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"the reference's files are not at {GOLDEN}")
@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_examples_are_the_references(tmp_path, name):
    cases = json.loads((GOLDEN / "cases.json").read_text(encoding="utf-8"))["cases"]
    (case,) = (case for case in cases if case["name"] == name)
    settings = dict(case["flags"])
    do_lower_case = settings.pop("do_lower_case", True)
    outputs = [f"{tmp_path}/{number}" for number in range(case["num_output_files"])]
    pretraining_data.create_pretraining_data(
        ",".join(str(GOLDEN / path) for path in case["input_file"]),
        ",".join(outputs),
        str(GOLDEN / case["vocab"]),
        do_lower_case,
        PretrainingDataOptions(**settings),
    )
    assert [digest(path) for path in outputs] == [output["digest"] for output in case["outputs"]]


# The reference's functions


def test_the_reference_s_functions_take_its_arguments(tokenizer, corpus):
    options = PretrainingDataOptions(32, 5, 2, 0.2, 0.3, do_whole_word_mask=True)
    wanted = pretraining_data.make_instances([corpus], tokenizer, options, random.Random(3))
    found = pretraining_data.create_training_instances([corpus], tokenizer, 32, 2, 0.3, 0.2, 5, random.Random(3), True)
    assert len(found) > 10
    for name in ("tokens", "segment_ids", "masked_lm_positions", "masked_lm_labels", "is_random_next"):
        assert [getattr(instance, name) for instance in found] == [getattr(instance, name) for instance in wanted]


def test_documents_may_be_lists_of_lists(tokenizer, corpus):
    documents = list(pretraining_data.read_documents([corpus], tokenizer))
    lists = [[sentence.split() for sentence in sentences_of(document)] for document in documents]
    options = PretrainingDataOptions(32, 5)
    wanted = list(pretraining_data.instances_of_document(documents, 2, VOCABULARY, options, random.Random(4)))
    for given in (documents, lists):
        found = pretraining_data.create_instances_from_document(
            given, 2, 32, 0.1, 0.15, 5, VOCABULARY, random.Random(4)
        )
        assert [instance.tokens for instance in found] == [instance.tokens for instance in wanted]
    tokens_a, tokens_b = list("abcde"), list("fgh")
    pretraining_data.truncate_seq_pair(tokens_a, tokens_b, 4, Script(randoms=[0.1, 0.6, 0.2, 0.9]))
    assert (tokens_a, tokens_b) == (["b", "c"], ["g", "h"])


def test_masked_tokens_positions_and_labels():
    tokens = ["[CLS]", *"abcdefgh", "[SEP]"]
    masked = pretraining_data.choose_predictions(
        tokens, VOCABULARY, PretrainingDataOptions(masked_lm_prob=0.5), random.Random(1)
    )
    output, positions, labels = pretraining_data.create_masked_lm_predictions(
        tokens, 0.5, 20, VOCABULARY, random.Random(1)
    )
    assert list(zip(positions, labels, (output[place] for place in positions), strict=True)) == masked
    assert len(masked) == 5 and tokens == ["[CLS]", *"abcdefgh", "[SEP]"] != output


def test_instances_of_one_s_own_are_written(tokenizer, tmp_path):
    own = types.SimpleNamespace(
        tokens=["[CLS]", "[MASK]", "[SEP]", "b", "[SEP]"], segment_ids=[0, 0, 0, 1, 1], masked_lm_positions=[1],
        masked_lm_labels=["a"], is_random_next=True,
    )  # fmt: skip
    path = str(tmp_path / "out")
    pretraining_data.write_instance_to_example_files([own], tokenizer, 6, 2, [path])
    (row,) = read_records(path)
    assert row["input_ids"] == [*tokenizer.convert_tokens_to_ids(own.tokens), 0]
    assert (row["masked_lm_positions"], row["next_sentence_labels"]) == ([1, 0], [1])
    with pytest.raises(ValueError, match="5 tokens and 1 predictions does not fit max_seq_length 4"):
        pretraining_data.write_instance_to_example_files([own], tokenizer, 4, 2, [path])
