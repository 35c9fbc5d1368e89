"""Reading, features and answers of classification: the reference's own feature files, and small tables made here."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from absl import logging

from bert_tf2 import records, tokenization
from bert_tf2.finetuning.classification import data as classification
from bert_tf2.finetuning.classification.data import InputExample
from bert_tf2.finetuning.classification.tasks import TASKS, TsvLayout
from bert_tf2.support.errors import UserError
from bert_tf2.weights.labels import LabelMap, load_label_map, save_label_map

SHARED = pathlib.Path(__file__).resolve().parents[4] / "shared"
GOLDEN = SHARED / "golden" / "data"


def _golden_cases():
    if not GOLDEN.exists():
        return []
    cases = json.loads((GOLDEN / "cases.json").read_text(encoding="utf-8"))["cases"]
    return [case for case in cases if case["kind"] == "classifier-features"]


def _write(folder, name, *rows):
    """Writes a table; each row is a string in which | stands for TAB."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(row.replace("|", "\t") + "\n" for row in rows).encode("utf-8"))
    return str(path)


def _fail(function, *arguments):
    """The one line that a user reads."""
    with pytest.raises(UserError) as caught:
        function(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def tokenizer(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(words) + "\n", encoding="utf-8")
    return tokenization.FullTokenizer(str(path))


# The reference's own feature files


@pytest.mark.skipif(not GOLDEN.exists(), reason=f"no golden data in {GOLDEN}")
def test_every_golden_case_is_there():
    assert len(_golden_cases()) == 36


@pytest.mark.parametrize("case", _golden_cases(), ids=lambda case: case["name"])
def test_same_records_as_the_reference(case, tmp_path):
    spec = importlib.util.spec_from_file_location("tfrecord_digest", GOLDEN / "tfrecord_digest.py")
    tfrecord_digest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tfrecord_digest)
    flags = case["flags"]
    processor = classification.get_processor(flags["task_name"])
    read = {"train": processor.get_train_examples, "eval": processor.get_dev_examples}
    examples = read.get(case["part"], processor.get_test_examples)(str(GOLDEN / case["data_dir"]))
    tokenizer = tokenization.FullTokenizer(str(GOLDEN / case["vocab"]), flags["do_lower_case"])
    path = str(tmp_path / case["file_the_original_writes"])
    labels = processor.get_labels()
    count = classification.file_based_convert_examples_to_features(
        examples, labels, flags["max_seq_length"], tokenizer, path
    )
    written = tfrecord_digest.digest(path)
    assert labels == case["label_order"]
    assert [example.guid for example in examples[:2]] == case["first_guids"]
    assert count == written["count"]
    assert {"digest": written["digest"], "count": count} == case["outputs"][0]


@pytest.mark.parametrize(
    ("task", "folder", "counts"),
    [("mrpc", "MRPC", (3668, 408, 1725)), ("cola", "CoLA", (8551, 1043, 1063)), ("sst-2", "SST-2", (67349, 872, 1821))],
)
def test_real_tables(task, folder, counts):
    path = SHARED / "data" / folder
    if not path.exists():
        pytest.skip(f"no data in {path}")
    processor = classification.get_processor(task)
    read = (processor.get_train_examples, processor.get_dev_examples, processor.get_test_examples)
    assert tuple(len(function(str(path))) for function in read) == counts


# Each task's columns

MNLI_HEADER = "index|promptID|pairID|genre|s1b|s2b|s1p|s2p|sentence1|sentence2"
XNLI_HEADER = "language|gold_label|b1|b2|p1|p2|sentence1|sentence2|promptID"
STS_B_HEADER = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"

# task: (file of each set, its lines, the first example that should come of it)
TABLES = {
    "cola": [
        ("train.tsv", ["gj04|1||One.", "gj04|0|*|Two."], InputExample("train-0", "One.", None, "1")),
        ("dev.tsv", ["gj04|0|*|Dev."], InputExample("dev-0", "Dev.", None, "0")),
        ("test.tsv", ["index|sentence", "0|Test."], InputExample("test-1", "Test.", None, "0")),
    ],
    "mnli": [
        (
            "train.tsv",
            [MNLI_HEADER + "|label1|gold_label", "7|p|q|g|x|x|x|x|A a|B b|neutral|entailment"],
            InputExample("train-7", "A a", "B b", "entailment"),
        ),
        (
            "dev_matched.tsv",
            [MNLI_HEADER + "|l1|l2|gold_label", "8|p|q|g|x|x|x|x|A|B|neutral|neutral|contradiction"],
            InputExample("dev_matched-8", "A", "B", "contradiction"),
        ),
        (
            "test_matched.tsv",
            [MNLI_HEADER, "9|p|q|g|x|x|x|x|A|B"],
            InputExample("test-9", "A", "B", "contradiction"),
        ),
    ],
    "mrpc": [
        (
            "train.tsv",
            ["\ufeffQuality|#1 ID|#2 ID|#1 String|#2 String", '1|5|6|He " said|She said'],
            InputExample("train-1", 'He " said', "She said", "1"),
        ),
        ("dev.tsv", ["Quality|1|2|s|s", "0|5|6|A|B"], InputExample("dev-1", "A", "B", "0")),
        ("test.tsv", ["index|1|2|s|s", "1|5|6|A|B"], InputExample("test-1", "A", "B", "0")),
    ],
    "xnli": [
        (
            "multinli/multinli.train.zh.tsv",
            ["premise|hypo|label", "A|B|contradictory", "A|B|neutral"],
            InputExample("train-1", "A", "B", "contradiction"),
        ),
        (
            "xnli.dev.tsv",
            [XNLI_HEADER, "ar|neutral|||||X|Y|1", "ZH|neutral|||||X|Y|1", "zh|entailment|||||A|B|1"],
            InputExample("dev-3", "A", "B", "entailment"),
        ),
        (
            "xnli.test.tsv",
            [XNLI_HEADER, "zh|entailment|||||A|B|1"],
            InputExample("test-1", "A", "B", "contradiction"),
        ),
    ],
    "sst-2": [
        ("train.tsv", ["sentence|label", "good |1"], InputExample("train-1", "good ", None, "1")),
        ("dev.tsv", ["sentence|label", "bad|0"], InputExample("dev-1", "bad", None, "0")),
        ("test.tsv", ["index|sentence", "5|good"], InputExample("test-5", "good", None, "0")),
    ],
    "qqp": [
        (
            "train.tsv",
            ["id|qid1|qid2|question1|question2|is_duplicate", "3|1|2|A?|B?|1"],
            InputExample("train-3", "A?", "B?", "1"),
        ),
        (
            "dev.tsv",
            ["id|qid1|qid2|question1|question2|is_duplicate", "4|1|2|A?|B?|0"],
            InputExample("dev-4", "A?", "B?", "0"),
        ),
        ("test.tsv", ["id|question1|question2", "5|A?|B?"], InputExample("test-5", "A?", "B?", "0")),
    ],
    "qnli": [
        (
            "train.tsv",
            ["index|question|sentence|label", "0|A?|B.|not_entailment"],
            InputExample("train-0", "A?", "B.", "not_entailment"),
        ),
        (
            "dev.tsv",
            ["index|question|sentence|label", "1|A?|B.|entailment"],
            InputExample("dev-1", "A?", "B.", "entailment"),
        ),
        ("test.tsv", ["index|question|sentence", "2|A?|B."], InputExample("test-2", "A?", "B.", "entailment")),
    ],
    "rte": [
        (
            "train.tsv",
            ["index|sentence1|sentence2|label", "0|A|B|not_entailment"],
            InputExample("train-0", "A", "B", "not_entailment"),
        ),
        (
            "dev.tsv",
            ["index|sentence1|sentence2|label", "1|A|B|entailment"],
            InputExample("dev-1", "A", "B", "entailment"),
        ),
        ("test.tsv", ["index|sentence1|sentence2", "2|A|B"], InputExample("test-2", "A", "B", "entailment")),
    ],
    "wnli": [
        ("train.tsv", ["index|sentence1|sentence2|label", "0|A|B|1"], InputExample("train-0", "A", "B", "1")),
        ("dev.tsv", ["index|sentence1|sentence2|label", "1|A|B|0"], InputExample("dev-1", "A", "B", "0")),
        ("test.tsv", ["index|sentence1|sentence2", "2|A|B"], InputExample("test-2", "A", "B", "0")),
    ],
    "sts-b": [
        (
            "train.tsv",
            [STS_B_HEADER + "|score", "0|g|f|y|o|s|s|A|B|3.800"],
            InputExample("train-0", "A", "B", "3.800"),
        ),
        ("dev.tsv", [STS_B_HEADER + "|score", "1|g|f|y|o|s|s|A|B|0"], InputExample("dev-1", "A", "B", "0")),
        ("test.tsv", [STS_B_HEADER, "2|g|f|y|o|s|s|A|B"], InputExample("test-2", "A", "B", "0")),
    ],
}


def test_every_task_has_its_columns_tested():
    assert set(TABLES) == set(TASKS)


@pytest.mark.parametrize("name", TABLES)
def test_columns(name, tmp_path):
    for file, lines, _ in TABLES[name]:
        _write(tmp_path, file, *lines)
    processor = classification.get_processor(name)
    read = (processor.get_train_examples, processor.get_dev_examples, processor.get_test_examples)
    for function, (_, _, expected) in zip(read, TABLES[name], strict=True):
        assert function(str(tmp_path))[0] == expected


@pytest.mark.parametrize(("name", "known"), [("MRPC", "mrpc"), ("CoLA", "cola"), ("SST2", "sst-2"), ("stsb", "sts-b")])
def test_names_in_any_case(name, known):
    assert classification.get_processor(name).task.name == known


def test_label_orders_of_the_reference():
    orders = {name: classification.get_processor(name).get_labels() for name in ("cola", "mnli", "mrpc", "xnli")}
    inference = ["contradiction", "entailment", "neutral"]
    assert orders == {"cola": ["0", "1"], "mnli": inference, "mrpc": ["0", "1"], "xnli": inference}


def test_xnli_in_another_language(tmp_path):
    _write(tmp_path, "multinli/multinli.train.de.tsv", "premise|hypo|label", "Ja|Nein|contradictory")
    _write(tmp_path, "xnli.dev.tsv", XNLI_HEADER, "zh|neutral|||||X|Y|1", "de|neutral|||||A|B|1")
    processor = classification.get_processor("xnli", language="de")
    assert processor.get_train_examples(str(tmp_path))[0].label == "contradiction"
    assert [example.guid for example in processor.get_dev_examples(str(tmp_path))] == ["dev-2"]
    other = classification.get_processor("xnli", language="sw")
    assert "has no usable row in the language 'sw'" in _fail(other.get_dev_examples, str(tmp_path))


def test_lines_end_at_lf_and_cr_is_dropped(tmp_path):
    (tmp_path / "dev.tsv").write_bytes("a\t1\t\tone\u2028line\r\nb\t0\t\tlo\rne".encode())
    examples = classification.get_processor("cola").get_dev_examples(str(tmp_path))
    assert [example.text_a for example in examples] == ["one\u2028line", "lone"]


def test_torn_rows_of_qqp_are_left_out_with_one_warning(tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda message, *values: warnings.append(message % values))
    header = "id|qid1|qid2|question1|question2|is_duplicate"
    path = _write(tmp_path, "train.tsv", header, "1|1|2|A?|B?|1", "2|1|2|torn", "here?|B?|0", "3|1|2|C?|D?|0")
    examples = classification.get_processor("qqp").get_train_examples(str(tmp_path))
    assert [example.guid for example in examples] == ["train-1", "train-3"]
    assert warnings == [f"{path}: left out 2 rows of a wrong width, the first is row 3"]


@pytest.mark.parametrize(
    ("name", "rows", "texts", "complaint"),
    [
        ("mrpc", ["h", "1|1|2|A|B", "1|1|2|C|D|", "1|1|2|E|F|x|y"], "ACE", "2 of 3 rows do not have 5 .* row 3 with 6"),
        ("mrpc", ["h", "1|1|2|A|B|", "1|1|2|C|D", "1|1|2|E|F"], "ACE", "1 of 3 rows do not have 5 .* row 2 with 6"),
        (
            "cola",
            ["s|1||A|", "s|0||B", "s|0||C"],
            "ABC",
            "1 of 3 rows do not have 4 columns, the first is row 1 with 5",
        ),
        ("mrpc", ["h", "1|1|2|A|B|x", "1|1|2|C|D|y"], "AC", None),
    ],
)
def test_cells_too_many_at_the_end_are_read_as_the_reference_reads_them(
    tmp_path, log_lines, name, rows, texts, complaint
):
    path = _write(tmp_path, "dev.tsv", *rows)
    examples = classification.get_processor(name).get_dev_examples(str(tmp_path))
    assert [example.text_a for example in examples] == [*texts]
    assert len(log_lines) == (complaint is not None)
    if complaint:
        assert re.match(f"{re.escape(path)}: {complaint}", log_lines[0])


def test_where_a_cell_too_many_would_move_the_label_it_is_an_error(tmp_path):
    row = "7|p|q|g|x|x|x|x|A|B|neutral|entailment"
    path = _write(tmp_path, "train.tsv", MNLI_HEADER + "|label1|gold_label", row, row + "|")
    message = _fail(classification.get_processor("mnli").get_train_examples, str(tmp_path))
    assert message == f"{path}, row 3: has 13 columns where 12 are expected"
    path = _write(tmp_path, "dev.tsv", "A|1", "B|0|")
    layout = TsvLayout(text_a="1", label="2", header=False)
    processor = classification.get_processor("tsv", tsv=layout, label_map=LabelMap("tsv", ("0", "1"), False))
    assert _fail(processor.get_dev_examples, str(tmp_path)) == f"{path}, row 2: has 3 columns where 2 are expected"


# The reference's classes


def test_the_reference_s_processors_need_no_arguments(tmp_path):
    _write(tmp_path, "dev.tsv", "a|1||One.")
    assert classification.ColaProcessor().get_dev_examples(str(tmp_path)) == [InputExample("dev-0", "One.", None, "1")]
    for name in ("mnli", "mrpc", "xnli"):
        processor = getattr(classification, f"{name.title()}Processor")()
        assert processor.task == classification.get_processor(name).task
        assert processor.get_labels() == classification.get_processor(name).get_labels()


def test_a_processor_of_one_s_own_and_features_as_a_list(tmp_path, tokenizer):
    class Own(classification.DataProcessor):
        def get_dev_examples(self, data_dir):
            rows = self._read_tsv(f"{data_dir}/mine.tsv")
            return [InputExample(guid=str(number), text_a=row[1], label=row[0]) for number, row in enumerate(rows)]

        def get_labels(self):
            return ["x", "y"]

    path = _write(tmp_path, "mine.tsv", 'x|"a b', "y|c")
    processor = Own()
    examples = processor.get_dev_examples(str(tmp_path))
    assert [example.text_a for example in examples] == ['"a b', "c"]
    assert processor._read_tsv(path, quotechar='"') == [["x", "a b\ny\tc\n"]]
    with pytest.raises(NotImplementedError):
        processor.get_test_examples(str(tmp_path))
    features = classification.convert_examples_to_features(examples, processor.get_labels(), 5, tokenizer)
    assert [feature.label_id for feature in features] == [0, 1]
    assert features[1].input_ids == [2, 7, 3, 0, 0]


# One's own file


def test_tsv_by_name_finds_its_labels(tmp_path):
    _write(tmp_path, "train.tsv", "\ufeffkey|class|text|more", "k1|ham|A|B", "k2|spam|C|", "k3|eggs|D|E")
    _write(tmp_path, "dev.tsv", "text|more|key|class", "A|B|k4|spam")
    _write(tmp_path, "test.tsv", "more|text", "B|A")
    layout = TsvLayout(text_a="text", text_b="more", label="class")
    processor = classification.get_processor("tsv", tsv=layout)
    assert processor.get_train_examples(str(tmp_path))[1] == InputExample("train-2", "C", "", "spam")
    assert processor.get_labels() == ["eggs", "ham", "spam"]
    assert processor.get_dev_examples(str(tmp_path)) == [InputExample("dev-1", "A", "B", "spam")]
    assert processor.get_test_examples(str(tmp_path)) == [InputExample("test-1", "A", "B", "eggs")]
    with_key = TsvLayout(text_a="text", label="class", id="key")
    assert classification.get_processor("tsv", tsv=with_key).get_train_examples(str(tmp_path))[0].guid == "k1"


def test_tsv_by_number_without_header(tmp_path):
    _write(tmp_path, "train.tsv", "A|x|1", "|y|0")
    _write(tmp_path, "test.tsv", "only text")
    processor = classification.get_processor("tsv", tsv=TsvLayout(text_a="1", label="3", header=False))
    assert processor.get_train_examples(str(tmp_path)) == [
        InputExample("train-0", "A", None, "1"),
        InputExample("train-1", "", None, "0"),
    ]
    assert processor.get_test_examples(str(tmp_path)) == [InputExample("test-0", "only text", None, "0")]


def test_tsv_predicts_with_kept_labels_and_no_training_file(tmp_path):
    _write(tmp_path, "test.tsv", "text", "A")
    save_label_map(str(tmp_path / "out"), LabelMap("tsv", ("ü", "x"), False))
    kept = load_label_map(str(tmp_path / "out"))
    processor = classification.get_processor("tsv", tsv=TsvLayout(text_a="text"), label_map=kept)
    assert processor.get_labels() == ["ü", "x"]
    assert processor.get_test_examples(str(tmp_path)) == [InputExample("test-1", "A", None, "ü")]


def test_label_unseen_in_training(tmp_path):
    _write(tmp_path, "train.tsv", "text|label", "A|yes", "B|no")
    path = _write(tmp_path, "dev.tsv", "text|label", "A|yes", "B|maybe")
    processor = classification.get_processor("tsv", tsv=TsvLayout(text_a="text", label="label"))
    processor.get_train_examples(str(tmp_path))
    message = _fail(processor.get_dev_examples, str(tmp_path))
    assert message == f"{path}, row 3: unknown label 'maybe'; the known ones are no, yes"


# Bad input


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("mrpc", ["h|h|h|h|h", "1|1|2|A|B", "1|1|2|A"], ", row 3: has 4 columns where 5 are expected"),
        ("mrpc", ["h|h|h|h|h", "1|1|2|A|B", ""], ", row 3: has 1 column where 5 are expected"),
        ("mrpc", ["h", "1|1|2|A"], ", row 2: has 4 columns, but text_b is to come from column 5"),
        ("mrpc", ["h|h|h|h|h"], ": has no row but the header"),
        ("mrpc", ["h|h|h|h|h", "2|1|2|A|B"], ", row 2: unknown label '2'; the known ones are 0, 1"),
        ("cola", [], ": is empty"),
        ("cola", ["s|yes||A"], ", row 1: unknown label 'yes'; the known ones are 0, 1"),
        (
            "rte",
            ["index|a|b|label", "0|A|B|entailment"],
            ": has no column 'sentence1'; its header is index, a, b, label",
        ),
        ("rte", ["index|sentence1|sentence2|label", "0|A|B"], ", row 2: has 3 columns where 4 are expected"),
        ("sst-2", ["sentence|label", "A|1", "B|"], ", row 3: unknown label ''; the known ones are 0, 1"),
        ("sts-b", [STS_B_HEADER + "|score", "0|g|f|y|o|s|s|A|B|high"], ", row 2: the score 'high' is not a number"),
        ("sts-b", [STS_B_HEADER + "|score", "0|g|f|y|o|s|s|A|B|nan"], ", row 2: the score 'nan' is not a number"),
    ],
)
def test_bad_tables(name, lines, message, tmp_path):
    path = _write(tmp_path, "dev.tsv", *lines)
    assert _fail(classification.get_processor(name).get_dev_examples, str(tmp_path)) == path + message


def test_missing_file_lists_what_is_there(tmp_path):
    _write(tmp_path, "dev_matched.tsv", "x")
    message = _fail(classification.get_processor("mrpc").get_dev_examples, str(tmp_path))
    assert "dev.tsv: no such file" in message
    assert "dev_matched.tsv" in message.split("no such file")[1]


def test_unknown_task_lists_the_known_ones():
    message = _fail(classification.get_processor, "mprc")
    assert "'mprc'" in message
    assert all(name in message for name in [*TASKS, "tsv"])


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (None, "which column holds the text"),
        (TsvLayout(text_a=""), "which column holds the text"),
        (TsvLayout(text_a="0"), "counted from 1"),
        (TsvLayout(text_a="1", label="class", header=False), "without a header, give its number"),
    ],
)
def test_bad_columns_of_tsv(layout, message):
    with pytest.raises(UserError, match=message):
        classification.get_processor("tsv", tsv=layout)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["text|label", "A|x", "B|x"], ": every row has the label 'x'; a classifier needs two labels or more"),
        (["text|label", "A|x", "B|"], ", row 3: the label is empty"),
        (["text", "A"], ": has no column 'label'; its header is text"),
    ],
)
def test_bad_training_tables_of_tsv(rows, message, tmp_path):
    path = _write(tmp_path, "train.tsv", *rows)
    processor = classification.get_processor("tsv", tsv=TsvLayout(text_a="text", label="label"))
    assert _fail(processor.get_train_examples, str(tmp_path)) == path + message


def test_tsv_without_labels_cannot_be_trained_or_predicted(tmp_path):
    processor = classification.get_processor("tsv", tsv=TsvLayout(text_a="text"))
    assert "no label column" in _fail(processor.get_train_examples, str(tmp_path))
    assert "labels of the task tsv are not known" in _fail(processor.get_test_examples, str(tmp_path))


# Features


@pytest.mark.parametrize("length_a", range(8))
@pytest.mark.parametrize("length_b", range(8))
def test_truncation_is_that_of_removing_one_token_after_another(length_a, length_b):
    for max_length in range(12):
        longer, shorter = length_a, length_b
        while longer + shorter > max_length:
            longer, shorter = (longer - 1, shorter) if longer > shorter else (longer, shorter - 1)
        tokens_a, tokens_b = list("abcdefg"[:length_a]), list("hijklmn"[:length_b])
        classification.truncate_seq_pair(tokens_a, tokens_b, max_length)
        assert "".join(tokens_a) == "abcdefg"[:longer]
        assert "".join(tokens_b) == "hijklmn"[:shorter]


@pytest.mark.parametrize(
    ("text_a", "text_b", "max_seq_length", "ids", "segments"),
    [
        ("a b", None, 6, [2, 5, 6, 3, 0, 0], [0, 0, 0, 0, 0, 0]),
        ("a b c d e", None, 4, [2, 5, 6, 3], [0, 0, 0, 0]),
        ("a", "c d", 8, [2, 5, 3, 7, 8, 3, 0, 0], [0, 0, 0, 1, 1, 1, 0, 0]),
        ("a b c", "d e f", 7, [2, 5, 6, 3, 8, 9, 3], [0, 0, 0, 0, 1, 1, 1]),
        ("a b c", "d e f", 4, [2, 5, 3, 0], [0, 0, 0, 0]),  # nothing is left of the second
        ("a", "\u200b", 5, [2, 5, 3, 0, 0], [0, 0, 0, 0, 0]),  # a second text without tokens
        ("", "b", 5, [2, 3, 6, 3, 0], [0, 0, 1, 1, 0]),
        ("", None, 3, [2, 3, 0], [0, 0, 0]),
        ("z", "a", 3, [2, 3, 0], [0, 0, 0]),
    ],
)
def test_features(text_a, text_b, max_seq_length, ids, segments, tokenizer):
    example = InputExample("g", text_a, text_b, "y")
    features = classification.convert_single_example(9, example, ["x", "y"], max_seq_length, tokenizer)
    mask = [1] * sum(1 for value in ids if value) + [0] * ids.count(0)
    assert (features.input_ids, features.segment_ids, features.input_mask) == (ids, segments, mask)
    assert (features.label_id, features.is_real_example) == (1, True)


def test_padding_example(tokenizer):
    features = classification.convert_single_example(0, classification.PaddingInputExample(), ["x"], 3, tokenizer)
    assert classification.as_record(features) == {
        "input_ids": [0, 0, 0],
        "input_mask": [0, 0, 0],
        "segment_ids": [0, 0, 0],
        "label_ids": [0],
        "is_real_example": [0],
    }


def test_scores_are_written_as_floats(tokenizer, tmp_path):
    import tensorflow as tf

    examples = [InputExample("g", "a", "b", "3.8"), InputExample("h", "a", "b", "5")]
    path = str(tmp_path / "train.tf_record")
    assert classification.file_based_convert_examples_to_features(examples, [], 8, tokenizer, path) == 2
    labels = [
        tf.train.Example.FromString(raw.numpy()).features.feature["label_ids"].float_list.value[0]
        for raw in tf.data.TFRecordDataset(path)
    ]
    assert labels == [np.float32(3.8), np.float32(5.0)]
    assert classification.record_kind([]) is records.REGRESSION


def test_one_example_is_logged_in_words_and_five_as_numbers(tokenizer, monkeypatch):
    lines = []
    monkeypatch.setattr(logging, "log", lambda level, message, *values: lines.append(message % values))
    monkeypatch.setattr(logging, "debug", lambda message, *values: lines.append(message % values))
    examples = [InputExample(f"train-{i}", "a z", None, "1") for i in range(7)]
    classification.convert_examples_to_features(examples, ["0", "1"], 5, tokenizer)
    assert lines[:8] == [
        "The first example:\n  id      train-0\n  tokens  [CLS] a [UNK] [SEP]\n  label   1",
        "*** Example ***",
        "guid: train-0",
        "tokens: [CLS] a [UNK] [SEP]",
        "input_ids: 2 5 1 3 0",
        "input_mask: 1 1 1 1 0",
        "segment_ids: 0 0 0 0 0",
        "label: 1 (id = 1)",
    ]
    assert lines.count("*** Example ***") == 5
    assert sum("The first" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("label", "labels", "length", "message"),
    [
        ("2", ["0", "1"], 8, "example g: unknown label '2'; the known ones are 0, 1"),
        ("x", [], 8, "example g: the score 'x' is not a number"),
        ("0", ["0", "1"], 2, "--max_seq_length is 2: [CLS], [SEP] and [SEP] alone need 3"),
    ],
)
def test_examples_that_give_no_features(label, labels, length, message, tokenizer):
    example = InputExample("g", "a", None, label)
    assert _fail(classification.convert_single_example, 0, example, labels, length, tokenizer) == message


def test_no_file_when_an_example_is_bad(tokenizer, tmp_path):
    folder = tmp_path / "out"
    examples = [InputExample("g", "a", None, "0"), InputExample("h", "a", None, "7")]
    with pytest.raises(UserError):
        classification.file_based_convert_examples_to_features(
            examples, ["0"], 8, tokenizer, str(folder / "train.tf_record")
        )
    assert list(folder.iterdir()) == []


# Labels kept with the checkpoint


@pytest.mark.parametrize("name", ["xnli", "sts-b"])
def test_label_map_comes_back_as_it_was(name, tmp_path):
    label_map = classification.get_processor(name).label_map()
    save_label_map(str(tmp_path), label_map)
    assert load_label_map(str(tmp_path)) == label_map
    assert label_map.num_labels == {"xnli": 3, "sts-b": 1}[name]


def test_label_map_in_the_file(tmp_path):
    save_label_map(str(tmp_path), classification.get_processor("mrpc").label_map())
    content = json.loads((tmp_path / "label_map.json").read_text(encoding="utf-8"))
    assert content == {"task": "mrpc", "labels": ["0", "1"], "regression": False}


def test_no_label_map(tmp_path):
    assert load_label_map(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"task": "x",\n', "line 2, column 1: not valid JSON"),
        ('["0", "1"]', "is not an object"),
        ('{"task": "x", "regression": false}', "'labels' is missing"),
        ('{"task": "x", "labels": "01", "regression": false}', "'labels' is missing or of a wrong type"),
        ('{"task": "x", "labels": [0, 1], "regression": false}', "different strings"),
        ('{"task": "x", "labels": [["0"], "1"], "regression": false}', "different strings"),
        ('{"task": "x", "labels": ["0", "0"], "regression": false}', "different strings"),
        ('{"task": "x", "labels": [], "regression": false}', "'regression' be true"),
        ('{"task": "x", "labels": ["0"], "regression": false}', "two or more"),
        ('{"task": "x", "labels": ["0", "1"], "regression": true}', "'regression' be true"),
    ],
)
def test_broken_label_map(text, message, tmp_path):
    path = tmp_path / "label_map.json"
    path.write_text(text, encoding="utf-8")
    line = _fail(load_label_map, str(tmp_path))
    assert line.startswith(str(path))
    assert message in line


@pytest.mark.parametrize("name", ["mnli", "sts-b"])
def test_label_map_of_another_task(name):
    label_map = classification.get_processor("mrpc").label_map()
    with pytest.raises(UserError, match=f"of the task mrpc \\(labels 0, 1\\); it does not fit the task {name}"):
        classification.get_processor(name, label_map=label_map)


def test_model_of_mnli_may_answer_xnli():
    label_map = classification.get_processor("mnli").label_map()
    assert classification.get_processor("xnli", label_map=label_map).get_labels() == list(label_map.labels)


# Answers


def test_test_results_in_the_format_of_the_reference(tmp_path):
    path = tmp_path / "test_results.tsv"
    classification.write_test_results(str(path), np.array([[0.74407125, 0.25592873], [1e-5, 1.0]], np.float32))
    assert path.read_text() == "0.74407125\t0.25592873\n1e-05\t1.0\n"


def test_test_results_of_the_reference_come_back_to_the_letter(tmp_path):
    expected = SHARED / "golden" / "model" / "expected" / "classifier_mrpc" / "test_results.tsv"
    if not expected.exists():
        pytest.skip(f"no golden data in {expected.parent}")
    path = tmp_path / "test_results.tsv"
    classification.write_test_results(str(path), np.loadtxt(expected, np.float32))
    assert path.read_bytes() == expected.read_bytes()


def test_predictions(tmp_path):
    path = tmp_path / "predictions.tsv"
    classification.write_predictions(str(path), ["k1", "k2"], ["no", "yes"], [[0.25, 0.75], [0.5, 0.5]])
    assert path.read_text() == "id\tlabel\tprobability\nk1\tyes\t0.75\nk2\tno\t0.5\n"


def test_predicted_scores(tmp_path):
    path = tmp_path / "predictions.tsv"
    classification.write_predictions(str(path), ["k1"], [], np.array([[3.8]], np.float32))
    assert path.read_text() == "id\tlabel\nk1\t3.8\n"


def test_predictions_are_complete_or_absent(tmp_path):
    path = tmp_path / "predictions.tsv"
    with pytest.raises(ValueError, match="shorter"):
        classification.write_predictions(str(path), ["k1", "k2"], ["no", "yes"], [[0.25, 0.75]])
    assert list(tmp_path.iterdir()) == []


def test_importing_loads_no_tensorflow_and_no_scikit_learn():
    heavy = {"tensorflow", "sklearn", "scipy"}
    code = f"import sys; from bert_tf2.finetuning.classification import data, scores; print({heavy} & {{*sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=pathlib.Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"
