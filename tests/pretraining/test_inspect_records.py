"""inspect_records.py: the whole report of records that were written by hand, and of those without masks."""

from __future__ import annotations

import pytest
from refused import refuses
from unmasked_data import write

from bert_tf2 import commands

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat un ##aff ##able . dog ##s".split()


def ids(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


def tokens(text: str) -> dict[str, list[int]]:
    free = [0] * (16 - len(ids(text)))
    return {"input_ids": ids(text) + free, "input_mask": [1] * len(ids(text)) + free, "segment_ids": [0] * 16}


def masked(text: str, places: dict[int, str], random_next: bool) -> dict[str, list]:
    free = [0] * (4 - len(places))
    return {
        **tokens(text),
        "masked_lm_positions": [*places, *free],
        "masked_lm_ids": [WORDS.index(word) for word in places.values()] + free,
        "masked_lm_weights": [1.0] * len(places) + [0.0] * len(free),
        "next_sentence_labels": [int(random_next)],
    }


MASKED = [
    masked("[CLS] ##s the [MASK] sat . [SEP] un dog ##able . [SEP]", {3: "cat", 9: "##able", 8: "##aff"}, True),
    masked("[CLS] the cat sat [SEP] dog [MASK] . [SEP]", {6: "##s"}, False),
]
SHOWN_MASKED = """
records   2 pretraining records in 1 file (522 B), all valid
length    10.5 tokens on average, of 16 (max_seq_length)
padding   34.4% of 32 positions; without padding 1.52 times fewer
masked    2.00 tokens per record, 19.0% of all, at most 3 in a record
replaced  50.0% by [MASK], 25.0% by another word, 25.0% kept
next      50.0% of the second texts are random

PATH, record 1: 12 tokens, 3 masked, the second text is a random one
  [CLS] ##s the [cat>[MASK]] sat . [SEP] un[##aff>dog][##able>##able] . [SEP]

PATH, record 2: 9 tokens, 1 masked, the second text follows the first
  [CLS] the cat sat [SEP] dog[##s>[MASK]] . [SEP]
"""
UNMASKED = [
    {"input_ids": ids("[CLS] un ##aff [SEP] dog [SEP]"), "segment_lengths": [4, 2], "next_sentence_labels": [1]},
    {"input_ids": ids("[CLS] the [SEP] dog [SEP]"), "segment_lengths": [3, 2], "next_sentence_labels": [0]},
]
SHOWN_UNMASKED = """
records  2 unmasked pretraining records in 1 file (201 B), all valid
length   5.5 tokens on average, of 6 (the longest)
padding  8.3% of 12 positions; without padding 1.09 times fewer
masked   no masks: drawn in training
next     50.0% of the second texts are random

PATH, record 1: 6 tokens, no masks, the second text is a random one
  [CLS] unaff [SEP] dog [SEP]
"""


@pytest.fixture
def report(tmp_path):
    """Writes records, and returns the report on them; and the path of the records."""
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n")

    def make(rows, words="words.txt", **settings) -> str:
        path = write(tmp_path / "some.tfrecord", rows)
        words = {"vocab_file": f"{tmp_path}/{words}"} if words else {}
        return "\n".join(commands.call("inspect_records", input_file=path, **words, **settings)).replace(path, "PATH")

    return make


def test_the_whole_report(report, tmp_path):
    assert report(MASKED, show=5) == SHOWN_MASKED.strip("\n")
    assert report(UNMASKED, show=1) == SHOWN_UNMASKED.strip("\n")
    found = report(MASKED, None, show=2)
    assert "replaced" not in found  # the id of [MASK] is unknown
    assert "\n  2 5 6 7 3 12 [13>4] 11 3" in found
    assert [report(MASKED * 2, show=count).count(", record ") for count in (0, 1, 3, 9)] == [0, 1, 3, 4]
    found = report([{"input_ids": [2, 6, 3], "segment_lengths": [3]}], None, show=1)
    assert "random" not in found and found.endswith("PATH, record 1: 3 tokens, no masks\n  2 6 3")
    (tmp_path / "other.txt").write_text("\n".join(reversed(WORDS)) + "\n")
    refuses("some.tfrecord, record 1: '.' --vocab_file", report, MASKED, "other.txt")


LABELS = {**tokens("[CLS] the cat [SEP]"), "label_ids": [1], "is_real_example": [1]}
FILLER = {name: [0] * len(values) for name, values in LABELS.items()}
TAGS = {**tokens("[CLS] the cat [SEP]"), "label_ids": [-1, 0, 2, -1] + [0] * 12}
SPAN = {"unique_ids": [7], **tokens("[CLS] the cat [SEP]")}
ANSWER = {**SPAN, "start_positions": [1], "end_positions": [2], "is_impossible": [0]}


@pytest.mark.parametrize(
    ("kind", "rows", "words", "shown"),
    [
        ("classification", [LABELS, {**LABELS, "label_ids": [0]}, LABELS, FILLER], "0: 1, 1: 2\n", ", label 1"),
        ("regression", [{**LABELS, "label_ids": [2.5]}], "labels   2.5000 on average\n", ", label 2.5"),
        ("multi-label", [{**LABELS, "label_ids": [1, 0, 1]}], "labels   0: 1, 2: 1\n", ", labels 1 0 1"),
        ("token tagging", [TAGS], "0: 1, 2: 1\n", ", labels -1 0 2 -1"),
        ("SQuAD prediction", [SPAN], "1 SQuAD prediction record in", ""),
        ("SQuAD training", [ANSWER, {**ANSWER, "is_impossible": [1]}], "answer: 1, no answer: 1\n", ", answer at 1-2"),
    ],
)
def test_other_labels(report, kind, rows, words, shown):
    found, count = report(rows, show=2), len(rows) - (FILLER in rows)
    assert f"{count} {kind}" in found and " in 1 file" in found and "masked" not in found
    assert f"padding  75.0% of {16 * count} positions; without padding 4.00 times fewer" in found
    assert words in found and f", record 1: 4 tokens{shown}\n  [CLS] the cat [SEP]" in found
