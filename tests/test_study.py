"""benchmarks/study.py: what its probes can tell and cannot, how it cuts a text, and a run of it."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from refused import message_of

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORDS, LENGTH = 30, 16


@pytest.fixture(autouse=True)
def as_run_as_a_script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def texts(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """[CLS] words [SEP] padding of random words, 3 to 29, and their lengths."""
    random = np.random.default_rng(seed)
    lengths = random.integers(4, LENGTH + 1, rows)
    ids = random.integers(3, WORDS, [rows, LENGTH])
    column = np.arange(LENGTH)
    ids[:, 0] = 1
    ids[column == lengths[:, np.newaxis] - 1] = 2
    ids[column >= lengths[:, np.newaxis]] = 0
    return ids, lengths


def test_a_linear_discriminant_finds_what_is_linear():
    import study_probes

    random = np.random.default_rng(0)
    centres = random.normal(size=[3, 5]) * 3
    labels, asked = (random.integers(0, 3, count) for count in (600, 300))
    stretched = random.normal(size=[5, 5])  # the same noise for every class, in no direction alike
    points, others = (centres[of] + random.normal(size=[len(of), 5]) @ stretched * 0.3 for of in (labels, asked))
    assert np.mean(study_probes.Discriminant(points, labels).classify(others) == asked) > 0.95


def test_swapped_neighbors():
    import study_probes

    ids, lengths = texts(400, 10)
    made = study_probes.swap_neighbors(ids, lengths, 0)
    again = study_probes.swap_neighbors(ids, lengths, 0)
    np.testing.assert_array_equal(made.input_ids, again.input_ids)
    np.testing.assert_array_equal(np.sort(made.input_ids), np.sort(ids))  # each row has its words
    np.testing.assert_array_equal(made.input_ids[:, 0], 1)
    assert (made.input_ids == 2).sum() == (ids == 2).sum() and (made.labels[made.input_ids < 3] == -1).all()
    rows, places = np.nonzero(made.labels >= 0)
    moved = made.labels[rows, places]
    assert 0.4 < moved.mean() < 0.6 and len(rows) > 300
    np.testing.assert_array_equal(made.input_ids[rows, places], ids[rows, places - moved])
    changed = made.input_ids != ids
    row, first, second, swapped = made.pairs.T
    assert changed.sum() == 2 * swapped.sum()
    np.testing.assert_array_equal(made.input_ids[row, first], ids[row, np.minimum(first, second)])
    np.testing.assert_array_equal(swapped, (first > second).astype(int))
    assert 2 * moved.sum() <= changed.sum() < 3 * moved.sum()  # a few are not asked
    assert (places > 1).all() and (places < lengths[rows] - 2).all()


def test_states_that_know_only_words_and_places_cannot_tell_what_was_swapped():
    """And those that know whether the word belongs there can."""
    import study_probes

    rows = []
    for seed in (0, 1):
        ids, lengths = texts(1500, seed + 10)
        rows.append((study_probes.swap_neighbors(ids, lengths, seed), ids))
    seen, asked = (made for made, _ in rows)
    vectors = np.random.default_rng(3).normal(size=[WORDS, 12])
    both = [
        np.concatenate([vectors[m.input_ids], np.tile(np.eye(LENGTH), [1500, 1, 1])], axis=2) for m in (seen, asked)
    ]
    assert 0.45 < study_probes.probe_accuracy(both[0], seen.labels, both[1], asked.labels) < 0.55
    at_home = [(made.input_ids == ids)[..., np.newaxis] * np.ones(12) + vectors[made.input_ids] for made, ids in rows]
    assert study_probes.probe_accuracy(at_home[0], seen.labels, at_home[1], asked.labels) > 0.95


@pytest.mark.parametrize(("strength", "low", "high"), [(0.0, 0.45, 0.55), (3.0, 0.97, 1.0)])
def test_the_order_of_two_neighbors_needs_their_places(strength, low, high):
    import study_probes

    random = np.random.default_rng(3)
    words, places = random.normal(size=[WORDS, 24]), strength * random.normal(size=[LENGTH, 24])
    (ids, lengths), (others, other_lengths) = texts(1500, 10), texts(1500, 11)
    asked = study_probes.swap_neighbors(others, other_lengths, 0)
    labels = study_probes.position_labels(lengths, LENGTH)
    found = study_probes.order_accuracy(words[ids] + places, labels, words[asked.input_ids] + places, asked.pairs)
    assert low < found <= high


def test_positions_are_asked_of_words_in_rows_that_are_full():
    import study_probes

    labels = study_probes.position_labels(np.array([4, 6]), 6)
    assert labels.tolist() == [[-1] * 6, [-1, 1, 2, 3, 4, -1]]


def test_tables_are_compared_row_by_row_and_by_their_neighbors():
    import study_probes

    random = np.random.default_rng(0)
    table, other = random.normal(size=[2, 50, 8])
    same = study_probes.compare_tables(table, 2 * table + 1)
    assert same["cosine"] > 0.999 and same["same_neighbors"] > 0.999 and abs(same["cosine_of_others"]) < 0.1
    rotation, _ = np.linalg.qr(random.normal(size=[8, 8]))
    turned = study_probes.compare_tables(table, table @ rotation)
    assert abs(turned["cosine"]) < 0.5 and turned["same_neighbors"] > 0.999
    unlike = study_probes.compare_tables(table, other)
    assert abs(unlike["cosine"]) < 0.2 and abs(unlike["same_neighbors"]) < 0.2


def test_similarity_by_distance():
    import study_probes

    from bert_tf2.layers import sinusoidal_positions

    found = study_probes.similarity_by_distance(sinusoidal_positions(32, 96))
    assert len(found) == 17 and abs(found[0] - 1) < 1e-6
    assert found[0] > found[1] > found[2] > found[3] > found[4]


def test_every_document_is_held_out_by_one_of_five_seeds():
    import study

    from bert_tf2.support.errors import UserError

    documents = [f"document {n}\nof two lines" for n in range(12)]
    text = "\n\n".join(documents) + "\n\n\n"
    held_out = []
    for seed in range(1, 6):
        train, held = study.split(text, seed)
        parts = [[d.strip() for d in part.split("\n\n")] for part in (train, held)]
        assert sorted(parts[0] + parts[1]) == sorted(documents)
        held_out += parts[1]
    assert sorted(held_out) == sorted(documents)
    with pytest.raises(UserError, match="1 documents are too few; a blank line"):
        study.split("one\ntwo\n", 1)


def test_the_spread():
    import study_report

    assert study_report.spread([1.0, 2.0, 4.5], 1) == "2.5 (1.0 to 4.5)"
    assert study_report.spread([-0.25], 2) == "-0.25" and study_report.spread([]) == ""


def test_the_interval_of_paired_differences():
    import study_report
    from scipy import stats

    values = [0.1, 0.4, 0.2, 0.3]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert study_report.interval(values, 2) == f"+0.25 ({low:+.2f} to {high:+.2f})"
    assert study_report.interval([-1.0, 1.0], 1).endswith("no difference seen")
    assert study_report.interval([0.5], 1) == "+0.5" and study_report.interval([]) == ""


def test_a_learning_rate_at_the_edge_is_doubled():
    import study

    assert [study._twice(rate) for rate in ("7.5e-4", "3e-3", "6e-3")] == ["1.5e-3", "6e-3", "1.2e-2"]
    assert study._best({"1e-3": 2.0, "2e-3": 1.5, "4e-3": 1.6}) == "2e-3"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [("variants", "base,tide", "'tide' is none of base"), ("seeds", "1,x", "'x' is no whole number"),
     ("learning_rates", "1e-3,fast", "'fast' is no number"), ("hidden_size", 100, "not divisible by 24")],
)  # fmt: skip
def test_a_wrong_flag_is_one_line(name, value, told):
    import study

    assert told in message_of(study.BenchmarkOptions, **{name: value})


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "benchmarks" / "study.py"), *arguments]
    return subprocess.run(command, env={"PYTHONPATH": f"{ROOT}:{':'.join(sys.path)}"}, capture_output=True, text=True)


@pytest.mark.slow
def test_a_look_at_it_which_continues(tmp_path):
    variants, there = ("cloned_frozen", "all_masked"), importlib.util.find_spec("matplotlib")
    plots = [f"--plots={tmp_path / 'plots'}"] if there else []
    call = ("--quick", f"--work_dir={tmp_path}", f"--variants={','.join(variants)}", *plots)
    done = run(*call)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (tmp_path / "study.jsonl").read_text().splitlines()]
    assert {result["variant"] for result in found} == {*variants}
    frozen = next(result for result in found if result["variant"] == "cloned_frozen")
    assert frozen["tables"]["moved"]["output"] == 0.0 < frozen["tables"]["moved"]["input"]
    assert all(0 < result["heldout"]["pairs"][read]["loss"] < 20 for result in found for read in ("mask", "kept"))
    report = (tmp_path / "study.md").read_text()
    assert report.strip() in done.stdout and all(f"| {variant}" in report for variant in variants)
    if there:
        assert {path.name for path in (tmp_path / "plots").iterdir()} == {"study_variants.svg", "study_curves.svg"}
    again = run(*call)
    assert again.returncode == 0 and "2 of 2 trainings are in" in again.stdout
    assert (tmp_path / "study.md").read_text() == report
    (tmp_path / "study.jsonl").unlink()
    run("--quick", f"--work_dir={tmp_path}", "--variants=cloned_frozen")
    (measured,) = map(json.loads, (tmp_path / "study.jsonl").read_text().splitlines())
    # With the same weights, and not after another training, which takes another time. The graph was made for batches of
    # other sizes first, so sums are rounded otherwise.
    ours, theirs = flat(measured), flat(frozen)
    assert ours.keys() == theirs.keys()
    for path, value in theirs.items():
        assert ours[path] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), path


def flat(values, path=()):
    """The leaves of nested dictionaries and lists, by their path."""
    if not isinstance(values, dict | list):
        return {path: values}
    items = values.items() if isinstance(values, dict) else enumerate(values)
    return {place: leaf for key, value in items for place, leaf in flat(value, (*path, key)).items()}


def test_a_guess_by_frequency(tmp_path):
    import study

    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n")
    (tmp_path / "train.txt").write_text("a a b\n\na\n")
    (tmp_path / "heldout.txt").write_text("a b\nc c\n")
    found = study.guess_by_frequency(tmp_path)
    wanted = -(np.log(3.5 / 8) + np.log(1.5 / 8) + 2 * np.log(0.5 / 8)) / 4
    assert abs(found["loss"] - wanted) < 1e-9 and (found["accuracy"], found["unseen"]) == (0.25, 0.5)
