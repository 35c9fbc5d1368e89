"""inspect_records.py: the whole report of records that were written by hand, and of those without masks."""

from __future__ import annotations

import numpy as np
import pytest
from pretraining_text import VOCABULARY, rows_of
from refused import message_of
from unmasked_data import make, write

from bert_tf2 import commands
from bert_tf2.data import records

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat un ##aff ##able . dog ##s".split()


def tokens(text: str) -> dict[str, list[int]]:
    ids = [WORDS.index(word) for word in text.split()]
    free = [0] * (16 - len(ids))
    return {"input_ids": ids + free, "input_mask": [1] * len(ids) + free, "segment_ids": [0] * 16}


def masked(text: str, places: dict[int, str], random_next: bool) -> dict[str, list]:
    free = [0] * (4 - len(places))
    return {
        **tokens(text),
        "masked_lm_positions": [*places, *free],
        "masked_lm_ids": [WORDS.index(word) for word in places.values()] + free,
        "masked_lm_weights": [1.0] * len(places) + free,
        "next_sentence_labels": [int(random_next)],
    }


EXAMPLES = [
    masked("[CLS] ##s the [MASK] sat . [SEP] un dog ##able . [SEP]", {3: "cat", 9: "##able", 8: "##aff"}, True),
    masked("[CLS] the cat sat [SEP] dog [MASK] . [SEP]", {6: "##s"}, False),
]
SHOWN = """
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


@pytest.fixture
def words_file(tmp_path) -> str:
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n")
    return str(tmp_path / "words.txt")


def report(path, **settings) -> str:
    return "\n".join(commands.call("inspect_records", input_file=str(path), **settings))


def test_the_whole_report(words_file, tmp_path):
    path = f"{tmp_path}/some.tfrecord"
    records.write_records(path, records.PRETRAINING, EXAMPLES)
    assert report(path, vocab_file=words_file, show=5) == SHOWN.strip("\n").replace("PATH", path)
    found = report(path, show=2)
    assert "replaced" not in found  # the id of [MASK] is unknown
    assert "\n  2 5 6 7 3 12 [13>4] 11 3" in found
    records.write_records(path, records.PRETRAINING, EXAMPLES * 2)
    assert [report(path, show=count).count(", record ") for count in (0, 1, 3, 9)] == [0, 1, 3, 4]
    (tmp_path / "other.txt").write_text("\n".join(reversed(WORDS)) + "\n")
    found = message_of(report, path, vocab_file=f"{tmp_path}/other.txt")
    assert "record 1: " in found and "'.'" in found and "--vocab_file" in found


LABELS = {**tokens("[CLS] the cat [SEP]"), "label_ids": [1], "is_real_example": [1]}
FILLER = {name: [0] * len(values) for name, values in LABELS.items()}
SPAN = {"unique_ids": [7], **tokens("[CLS] the cat [SEP]"), "start_positions": [1], "end_positions": [2]}
ANSWER, IMPOSSIBLE = {**SPAN, "is_impossible": [0]}, {**SPAN, "is_impossible": [1]}


@pytest.mark.parametrize(
    ("kind", "rows", "words", "shown"),
    [
        (records.CLASSIFICATION, [LABELS, {**LABELS, "label_ids": [0]}, LABELS, FILLER], "0: 1, 1: 2\n", ", label 1"),
        (records.REGRESSION, [{**LABELS, "label_ids": [2.5]}], "labels   2.5000 on average\n", ", label 2.5"),
        (records.MULTI_LABEL, [{**LABELS, "label_ids": [1, 0, 1]}], "labels   0: 1, 2: 1\n", ", labels 1 0 1"),
        (
            records.TOKEN_TAGGING,
            [{**LABELS, "label_ids": [-1, 0, 2, -1] + [0] * 12}],
            "0: 1, 2: 1\n",
            ", labels -1 0 2 -1",
        ),
        (records.SQUAD_PREDICT, [SPAN], "1 SQuAD prediction record", ""),
        (records.SQUAD_TRAIN, [ANSWER, IMPOSSIBLE, ANSWER], "answer: 2, no answer: 1\n", ", answer at 1-2"),
    ],
)
def test_other_labels(tmp_path, words_file, kind, rows, words, shown):
    path = f"{tmp_path}/some.tfrecord"
    records.write_records(path, kind, rows)
    found = report(path, show=2, vocab_file=words_file)
    count = len(rows) - (FILLER in rows)
    assert f"{count} {kind.name} record{'s' * (count > 1)} in 1 file" in found and "masked" not in found
    assert f"padding  75.0% of {16 * count} positions; without padding 4.00 times fewer" in found
    assert words in found and f", record 1: 4 tokens{shown}\n  [CLS] the cat [SEP]" in found


def test_records_without_masks(tmp_path):
    path = make(tmp_path)
    rows = rows_of(path)
    found = report(path, vocab_file=f"{tmp_path}/vocab.txt", show=1)
    lengths = [len(row["input_ids"]) for row in rows]
    assert f"{len(rows)} unmasked pretraining records in 1 file" in found
    assert f"{np.mean(lengths):.1f} tokens on average, of {max(lengths)} (the longest)" in found
    places = max(lengths) * len(lengths)
    assert f"{1 - sum(lengths) / places:.1%} of {places:,} positions" in found
    assert "no masks: drawn in training" in found and "masked tokens per record" not in found
    assert f"{np.mean([row['next_sentence_labels'][0] for row in rows]):.1%} of the second texts are random" in found
    *_, facts, example = found.splitlines()
    assert facts.startswith(f"{path}, record 1: {lengths[0]} tokens, no masks, the second text ")
    words = "".join(VOCABULARY[i].replace("##", "") for i in rows[0]["input_ids"])
    assert example.strip().replace(" ", "") == words
    found = report(write(tmp_path / "x", [{"input_ids": [2, 6, 3], "segment_lengths": [3]}]), show=1)
    assert "random" not in found and found.endswith(f"{tmp_path}/x, record 1: 3 tokens, no masks\n  2 6 3")
