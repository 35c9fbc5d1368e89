"""--whole_word_draw: whether the pieces of a masked word are replaced alike."""

from __future__ import annotations

import collections
import json

import pytest
from pretraining_text import SETTINGS, VOCABULARY
from refused import message_of
from unmasked_data import rows_of

from bert_tf2 import commands

MASK = VOCABULARY.index("[MASK]")
PIECES = {index for index, token in enumerate(VOCABULARY) if token.startswith("##")}


@pytest.fixture
def make(tmp_path, vocab_file):
    """Writes records of words of two and three pieces; returns their features."""
    words = ["ab", "cde", "fg", "hij"]
    lines = [" ".join(words[(number + place) % 4] for place in range(4)) for number in range(60)]
    (tmp_path / "corpus.txt").write_text("\n\n".join("\n".join(lines[n : n + 5]) for n in range(0, 60, 5)) + "\n")
    files = {"input_file": f"{tmp_path}/corpus.txt", "vocab_file": vocab_file, "output_file": f"{tmp_path}/out"}
    settings = {**files, **SETTINGS, "do_whole_word_mask": True, "masked_lm_prob": 0.3, "dupe_factor": 20}
    settings["max_predictions_per_seq"] = 6

    def write(**changes):
        commands.call("create_pretraining_data", **{**settings, **changes})
        return [row for path in sorted(tmp_path.glob("out*")) for row in rows_of(path)]

    return write


def words_of(rows):
    """Of each masked word the original ids and what stands there."""
    for row in rows:
        found = []
        count = sum(identity > 0 for identity in row["masked_lm_ids"])
        for place, label in [*zip(row["masked_lm_positions"], row["masked_lm_ids"], strict=True)][:count]:
            if label in PIECES and found:
                found[-1].append((label, row["input_ids"][place]))
            else:
                found.append([(label, row["input_ids"][place])])
        yield from (word for word in found if word[0][0] not in PIECES)  # not one that was cut at the start


def kind_of(word) -> str:
    kinds = {"mask" if new == MASK else "same" if new == old else "other" for old, new in word}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def test_a_word_is_treated_as_a_whole(make):
    found = collections.Counter(kind_of(word) for word in words_of(make(whole_word_draw="word")) if len(word) > 1)
    total = found.total()
    assert total > 1000
    assert found["mask"] / total == pytest.approx(0.8, abs=0.03)
    assert found["same"] / total == pytest.approx(0.1, abs=0.03)
    # A random entry of 57 may be the token itself, or [MASK].
    assert found["other"] / total == pytest.approx(0.1, abs=0.03) and found["mixed"] / total < 0.04


def test_by_default_each_piece_is_drawn_as_in_the_reference(make):
    found = collections.Counter(kind_of(word) for word in words_of(make()) if len(word) == 2)
    assert found["mixed"] / found.total() == pytest.approx(0.34, abs=0.03)
    assert make(whole_word_draw="piece") == make()


@pytest.mark.parametrize("changes", [{"word_boundaries": "spaces"}, {"objective": "mlm"}], ids=str)
def test_with_other_flags(make, changes):
    rows = make(whole_word_draw="word", **changes)
    found = collections.Counter(kind_of(word) for word in words_of(rows) if len(word) > 1)
    assert found.total() > 1000 and found["mixed"] / found.total() < 0.04


def test_it_needs_whole_words(make):
    assert "--do_whole_word_mask" in message_of(make, do_whole_word_mask=False, whole_word_draw="word")


def test_shards_that_were_begun_before_the_flag_was_there_go_on(tmp_path, make, in_process):
    make(num_shards=2)
    path = tmp_path / "manifest.json"
    content = json.loads(path.read_text())
    del content["flags"]["whole_word_draw"]
    path.write_text(json.dumps(content))
    assert "--whole_word_draw" in message_of(make, num_shards=2, whole_word_draw="word")
    make(num_shards=2)
    assert len(in_process) == 2  # nothing was made again
