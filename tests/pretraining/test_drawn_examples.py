"""Examples in memory and in a temporary file are the same; nothing is left of the file."""

import errno
import random
import tempfile

import numpy as np
import pytest

from bert_tf2.pretraining import drawn_examples
from bert_tf2.pretraining.drawn_examples import DrawnExamples
from bert_tf2.pretraining.examples import Example
from bert_tf2.support.errors import UserError

MOST_MASKED = 4


def filled(count, folder=None, most_masked=MOST_MASKED):
    rng, examples, expected = random.Random(3), DrawnExamples(most_masked, folder), []
    for _ in range(count):
        masked = [rng.randrange(500) for _ in range(rng.randint(0, most_masked))]
        row = (
            rng.randrange(1 << 40),
            rng.randrange(500),
            rng.randrange(1 << 40),
            rng.randrange(500),
            rng.random() < 0.5,
        )
        expected.append((*row, masked, [rng.randint(-1, 30000) for _ in masked]))
        examples.add(Example(*row, 3, *expected[-1][-2:]))
    return examples, expected


def as_lists(rows):
    names = ("start_a", "length_a", "start_b", "length_b", "random_next")
    found = []
    for row in rows:
        count = row["num_masked"]
        found.append((*(row[name] for name in names), list(row["masked"][:count]), list(row["replacements"][:count])))
    return found


@pytest.mark.parametrize("most", [1, 7, 20, 21, 100])
def test_what_was_added_is_found(tmp_path, monkeypatch, most):
    monkeypatch.setattr(drawn_examples, "_MOST", most)
    monkeypatch.setattr(drawn_examples, "_ROWS", 3)
    examples, expected = filled(20, str(tmp_path))
    assert len(examples) == 20 and (examples._file is None) == (most > 20)
    order = np.random.default_rng(1).permutation(20)
    assert as_lists(examples.rows(order)) == [expected[number] for number in order]
    assert as_lists(examples.rows(order[:1])) == [expected[order[0]]]
    assert len(examples) == 20
    assert examples.num_tokens == sum(row[1] + row[3] for row in expected)
    assert examples.truncated == 3 * 20
    assert examples.num_masked == sum(len(row[5]) for row in expected)
    assert [*tmp_path.iterdir()] == []


def test_examples_without_masks(monkeypatch):
    monkeypatch.setattr(drawn_examples, "_MOST", 4)
    examples, expected = filled(6, most_masked=0)
    assert as_lists(examples.rows(np.arange(6))) == expected


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(drawn_examples, "_MOST", 4)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **how: Full())
    with pytest.raises(UserError, match=rf"{tmp_path}: cannot be written: No space left on device") as caught:
        filled(4, str(tmp_path))
    assert "\n" not in str(caught.value)
