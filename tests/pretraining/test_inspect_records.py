"""The report of inspect_records.py: its figures against a plain count, its text, and the script."""

import pytest

from bert_tf2.data import records
from bert_tf2.pretraining import inspect_records
from bert_tf2.pretraining.options import InspectRecordsOptions
from bert_tf2.support.errors import UserError

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat un ##aff ##able . dog ##s".split()


def ids(text: str, length: int = 16) -> list[int]:
    found = [WORDS.index(word) for word in text.split()]
    return found + [0] * (length - len(found))


def tokens(text: str, length: int = 16) -> dict[str, list[int]]:
    count = len(text.split())
    return {
        "input_ids": ids(text, length),
        "input_mask": [1] * count + [0] * (length - count),
        "segment_ids": [0] * length,
    }


def masked(text: str, places: dict[int, str], random_next: bool) -> dict[str, list]:
    free = 4 - len(places)
    return {
        **tokens(text),
        "masked_lm_positions": [*places] + [0] * free,
        "masked_lm_ids": [WORDS.index(word) for word in places.values()] + [0] * free,
        "masked_lm_weights": [1.0] * len(places) + [0.0] * free,
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
def path(tmp_path) -> str:
    return str(tmp_path / "some.tfrecord")


@pytest.fixture
def words_file(tmp_path) -> str:
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n")
    return str(tmp_path / "words.txt")


def text(path: str, **settings) -> str:
    return "\n".join(inspect_records.run(InspectRecordsOptions(input_file=path, **settings)))


def test_the_whole_report(path, words_file):
    records.write_records(path, records.PRETRAINING, EXAMPLES)
    found = text(path, vocab_file=words_file, show=5)
    assert found == SHOWN.strip("\n").replace("PATH", path)


def test_without_a_vocabulary_ids_are_shown(path):
    records.write_records(path, records.PRETRAINING, EXAMPLES)
    found = text(path, show=2)
    assert "replaced" not in found  # the id of [MASK] is unknown
    assert "\n  2 5 6 7 3 12 [13>4] 11 3" in found


def test_only_as_many_as_wanted_are_shown(path):
    records.write_records(path, records.PRETRAINING, EXAMPLES * 2)
    assert [text(path, show=count).count(", record ") for count in (0, 1, 3, 9)] == [0, 1, 3, 4]


def test_another_vocabulary_is_refused(path, tmp_path):
    records.write_records(path, records.PRETRAINING, EXAMPLES)
    (tmp_path / "other.txt").write_text("\n".join(reversed(WORDS)) + "\n")
    with pytest.raises(UserError, match=r"record 1: begins with 2, which is '\.' and not \[CLS\] in --vocab_file"):
        text(path, vocab_file=str(tmp_path / "other.txt"))


LABELS = {"label_ids": [1], "is_real_example": [1]}


def test_labels_of_classes(path):
    row = {**tokens("[CLS] the cat [SEP]"), **LABELS}
    filler = {name: [0] * len(values) for name, values in row.items()}
    records.write_records(path, records.CLASSIFICATION, [row, {**row, "label_ids": [0]}, row, filler])
    found = text(path, show=1)
    assert "3 classification records" in found
    assert "padding  75.0% of 48 positions; without padding 4.00 times fewer" in found
    assert "\nlabels   0: 1, 1: 2\n" in found
    assert found.endswith("record 1: 4 tokens, label 1\n  2 5 6 3")


def test_other_labels(path, words_file):
    plain = tokens("[CLS] the cat [SEP]")
    cases = [
        (records.REGRESSION, [{**plain, **LABELS, "label_ids": [2.5]}], "labels   2.5000 on average", "label 2.5"),
        (records.MULTI_LABEL, [{**plain, **LABELS, "label_ids": [1, 0, 1]}], "labels   0: 1, 2: 1\n", "labels 1 0 1"),
        (
            records.TOKEN_TAGGING,
            [{**plain, "label_ids": [-1, 0, 2, -1] + [0] * 12}],
            "labels   0: 1, 2: 1\n",
            "labels -1 0 2 -1",
        ),
        (records.SQUAD_PREDICT, [{"unique_ids": [7], **plain}], "1 SQuAD prediction record", "4 tokens"),
    ]
    span = {"unique_ids": [7], **plain, "start_positions": [1], "end_positions": [2], "is_impossible": [0]}
    impossible = {**span, "is_impossible": [1]}
    cases.append((records.SQUAD_TRAIN, [span, impossible, span], "labels   answer: 2, no answer: 1\n", "answer at 1-2"))
    for kind, rows, words, shown in cases:
        records.write_records(path, kind, rows)
        found = text(path, show=2, vocab_file=words_file)
        assert words in found
        assert f", {shown}\n  [CLS] the cat [SEP]" in found or f": {shown}\n  [CLS] the cat [SEP]" in found
        assert "masked" not in found


def test_the_script_names_the_first_bad_record(command_lines, tmp_path):
    records.write_records(str(tmp_path / "1.tfrecord"), records.PRETRAINING, EXAMPLES)
    records.write_records(
        str(tmp_path / "2.tfrecord"), records.PRETRAINING, [*EXAMPLES, {**EXAMPLES[0], "next_sentence_labels": [9]}]
    )
    done = command_lines.run("inspect_records.py", "--input_file=*.tfrecord", cwd=tmp_path)
    assert (done.status, done.stdout) == (1, "")
    assert done.stderr == (
        "inspect_records.py: error: 2.tfrecord, record 3: next_sentence_labels holds 9, which is not in 0..1\n"
    )
    done = command_lines.run("inspect_records.py", "--input_file=1.tfrecord", "--show=1", cwd=tmp_path)
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.startswith("records  2 pretraining records in 1 file")
