"""Examples for classification: the tables of the tasks, small ones made here and real ones."""

from __future__ import annotations

import re

import pytest
from refused import message_of
from small_models import SHARED

from bert_tf2.finetuning import classification
from bert_tf2.finetuning.classification.examples import InputExample, get_processor
from bert_tf2.finetuning.classification.tasks import TASKS, TsvLayout
from bert_tf2.support.errors import UserError
from bert_tf2.weights.task_file import LabelMap


def write(folder, name, *rows):
    """Writes a table; each row is a string in which | stands for TAB."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(row.replace("|", "\t") + "\n" for row in rows).encode("utf-8"))
    return str(path)


@pytest.mark.parametrize(
    ("task", "layout", "counts"),
    [
        ("MRPC", TsvLayout(text_a="4", text_b="5", label="1"), (3668, 408, 1725)),
        ("CoLA", TsvLayout(text_a="4", label="2", header=False), (8551, 1043, 1063)),
        ("SST-2", TsvLayout(text_a="sentence", label="label"), (67349, 872, 1821)),
    ],
)
def test_real_tables_are_read_without_a_warning(task, layout, counts, log_lines):
    path = SHARED / "data" / task
    if not path.exists():
        pytest.skip(f"no data in {path}")
    processor = get_processor(task)
    read = (processor.get_train_examples, processor.get_dev_examples, processor.get_test_examples)
    assert tuple(len(function(str(path))) for function in read) == counts
    own = get_processor("tsv", tsv=layout)  # whose labels are collected, and looked at for mistakes
    assert len(own.get_train_examples(str(path))) == counts[0] and own.get_labels() == ["0", "1"]
    assert log_lines == []


MNLI = "index|promptID|pairID|genre|s1b|s2b|s1p|s2p|sentence1|sentence2"
XNLI = "language|gold_label|b1|b2|p1|p2|sentence1|sentence2|promptID"
STS_B = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
QQP = "id|qid1|qid2|question1|question2|is_duplicate"
QNLI = "index|question|sentence"
PAIR = "index|sentence1|sentence2"

# (task, file, its lines with / between them, the first example that should come of it); of each task the training,
# evaluation and test table, in this order
TABLES = [
    ("cola", "train.tsv", "gj04|1||One./gj04|0|*|Two.", ("train-0", "One.", None, "1")),
    ("cola", "dev.tsv", "gj04|0|*|Dev.", ("dev-0", "Dev.", None, "0")),
    ("cola", "test.tsv", "index|sentence/0|Test.", ("test-1", "Test.", None, "0")),
    ("mnli", "train.tsv", f"{MNLI}|l1|gold_label/7|p|q|g|x|x|x|x|A a|B b|neutral|entailment",
     ("train-7", "A a", "B b", "entailment")),
    ("mnli", "dev_matched.tsv", f"{MNLI}|l1|l2|gold_label/8|p|q|g|x|x|x|x|A|B|neutral|neutral|contradiction",
     ("dev_matched-8", "A", "B", "contradiction")),
    ("mnli", "test_matched.tsv", f"{MNLI}/9|p|q|g|x|x|x|x|A|B", ("test-9", "A", "B", "contradiction")),
    ("mrpc", "train.tsv", '\ufeffQuality|#1 ID|#2 ID|#1 String|#2 String/1|5|6|He " said|She said',
     ("train-1", 'He " said', "She said", "1")),
    ("mrpc", "dev.tsv", "Quality|1|2|s|s/0|5|6|A|B", ("dev-1", "A", "B", "0")),
    ("mrpc", "test.tsv", "index|1|2|s|s/1|5|6|A|B", ("test-1", "A", "B", "0")),
    ("xnli", "multinli/multinli.train.zh.tsv", "premise|hypo|label/A|B|contradictory/A|B|neutral",
     ("train-1", "A", "B", "contradiction")),
    ("xnli", "xnli.dev.tsv", f"{XNLI}/ar|neutral|||||X|Y|1/ZH|neutral|||||X|Y|1/zh|entailment|||||A|B|1",
     ("dev-3", "A", "B", "entailment")),
    ("xnli", "xnli.test.tsv", f"{XNLI}/zh|entailment|||||A|B|1", ("test-1", "A", "B", "contradiction")),
    ("sst-2", "train.tsv", "sentence|label/good |1", ("train-1", "good ", None, "1")),
    ("sst-2", "dev.tsv", "sentence|label/bad|0", ("dev-1", "bad", None, "0")),
    ("sst-2", "test.tsv", "index|sentence/5|good", ("test-5", "good", None, "0")),
    ("qqp", "train.tsv", f"{QQP}/3|1|2|A?|B?|1", ("train-3", "A?", "B?", "1")),
    ("qqp", "dev.tsv", f"{QQP}/4|1|2|A?|B?|0", ("dev-4", "A?", "B?", "0")),
    ("qqp", "test.tsv", "id|question1|question2/5|A?|B?", ("test-5", "A?", "B?", "0")),
    ("qnli", "train.tsv", f"{QNLI}|label/0|A?|B.|not_entailment", ("train-0", "A?", "B.", "not_entailment")),
    ("qnli", "dev.tsv", f"{QNLI}|label/1|A?|B.|entailment", ("dev-1", "A?", "B.", "entailment")),
    ("qnli", "test.tsv", f"{QNLI}/2|A?|B.", ("test-2", "A?", "B.", "entailment")),
    ("rte", "train.tsv", f"{PAIR}|label/0|A|B|not_entailment", ("train-0", "A", "B", "not_entailment")),
    ("rte", "dev.tsv", f"{PAIR}|label/1|A|B|entailment", ("dev-1", "A", "B", "entailment")),
    ("rte", "test.tsv", f"{PAIR}/2|A|B", ("test-2", "A", "B", "entailment")),
    ("wnli", "train.tsv", f"{PAIR}|label/0|A|B|1", ("train-0", "A", "B", "1")),
    ("wnli", "dev.tsv", f"{PAIR}|label/1|A|B|0", ("dev-1", "A", "B", "0")),
    ("wnli", "test.tsv", f"{PAIR}/2|A|B", ("test-2", "A", "B", "0")),
    ("sts-b", "train.tsv", f"{STS_B}|score/0|g|f|y|o|s|s|A|B|3.800", ("train-0", "A", "B", "3.800")),
    ("sts-b", "dev.tsv", f"{STS_B}|score/1|g|f|y|o|s|s|A|B|0", ("dev-1", "A", "B", "0")),
    ("sts-b", "test.tsv", f"{STS_B}/2|g|f|y|o|s|s|A|B", ("test-2", "A", "B", "0")),
]  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_columns(name, tmp_path):
    processor = get_processor(name)
    read = (processor.get_train_examples, processor.get_dev_examples, processor.get_test_examples)
    tables = [table for task, *table in TABLES if task == name]
    for function, (file, lines, expected) in zip(read, tables, strict=True):
        write(tmp_path, file, *lines.split("/"))
        assert function(str(tmp_path))[0] == InputExample(*expected)


@pytest.mark.parametrize(("name", "known"), [("MRPC", "mrpc"), ("CoLA", "cola"), ("SST2", "sst-2"), ("stsb", "sts-b")])
def test_names_in_any_case(name, known):
    assert get_processor(name).task.name == known


def test_label_orders_of_the_reference():
    orders = {name: get_processor(name).get_labels() for name in ("cola", "mnli", "mrpc", "xnli")}
    inference = ["contradiction", "entailment", "neutral"]
    assert orders == {"cola": ["0", "1"], "mnli": inference, "mrpc": ["0", "1"], "xnli": inference}


def test_lines_end_at_lf_and_cr_is_dropped(tmp_path):
    (tmp_path / "dev.tsv").write_bytes("a\t1\t\tone\u2028line\r\nb\t0\t\tlo\rne".encode())
    found = get_processor("cola").get_dev_examples(str(tmp_path))
    assert [example.text_a for example in found] == ["one\u2028line", "lone"]


def test_torn_rows_of_qqp_are_left_out_with_one_warning(tmp_path, log_lines):
    path = write(tmp_path, "train.tsv", QQP, "1|1|2|A?|B?|1", "2|1|2|torn", "here?|B?|0", "3|1|2|C?|D?|0")
    found = get_processor("qqp").get_train_examples(str(tmp_path))
    assert [example.guid for example in found] == ["train-1", "train-3"]
    assert log_lines == [f"{path}: left out 2 rows of a wrong width, the first is row 3"]


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
    path = write(tmp_path, "dev.tsv", *rows)
    found = get_processor(name).get_dev_examples(str(tmp_path))
    assert [example.text_a for example in found] == [*texts]
    assert len(log_lines) == (complaint is not None)
    if complaint:
        assert re.match(f"{re.escape(path)}: {complaint}", log_lines[0])


def test_where_a_cell_too_many_would_move_the_label_it_is_an_error(tmp_path):
    row = "7|p|q|g|x|x|x|x|A|B|neutral|entailment"
    path = write(tmp_path, "train.tsv", MNLI + "|label1|gold_label", row, row + "|")
    message = message_of(get_processor("mnli").get_train_examples, str(tmp_path))
    assert message == f"{path}, row 3: has 13 columns where 12 are expected"
    path = write(tmp_path, "dev.tsv", "A|1", "B|0|")
    layout = TsvLayout(text_a="1", label="2", header=False)
    processor = get_processor("tsv", tsv=layout, label_map=LabelMap("tsv", ("0", "1"), False))
    assert message_of(processor.get_dev_examples, str(tmp_path)) == f"{path}, row 2: has 3 columns where 2 are expected"


def test_the_reference_s_processors_need_no_arguments(tmp_path):
    write(tmp_path, "dev.tsv", "a|1||One.")
    assert classification.ColaProcessor().get_dev_examples(str(tmp_path)) == [InputExample("dev-0", "One.", None, "1")]
    for name in ("mnli", "mrpc", "xnli"):
        processor = getattr(classification, f"{name.title()}Processor")()
        assert processor.task == get_processor(name).task
        assert processor.get_labels() == get_processor(name).get_labels()


def test_tsv_by_name_finds_its_labels(tmp_path):
    write(tmp_path, "train.tsv", "\ufeffkey|class|text|more", "k1|ham|A|B", "k2|spam|C|", "k3|eggs|D|E")
    write(tmp_path, "dev.tsv", "text|more|key|class", "A|B|k4|spam")
    write(tmp_path, "test.tsv", "more|text", "B|A")
    layout = TsvLayout(text_a="text", text_b="more", label="class")
    processor = get_processor("tsv", tsv=layout)
    assert processor.get_train_examples(str(tmp_path))[1] == InputExample("train-2", "C", "", "spam")
    assert processor.get_labels() == ["eggs", "ham", "spam"]
    assert processor.get_dev_examples(str(tmp_path)) == [InputExample("dev-1", "A", "B", "spam")]
    assert processor.get_test_examples(str(tmp_path)) == [InputExample("test-1", "A", "B", "eggs")]
    with_key = TsvLayout(text_a="text", label="2", id="key")  # by name or by number
    assert get_processor("tsv", tsv=with_key).get_train_examples(str(tmp_path))[0].guid == "k1"


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
        ("sts-b", [STS_B + "|score", "0|g|f|y|o|s|s|A|B|high"], ", row 2: the score 'high' is not a number"),
        *(
            ("sts-b", [STS_B + "|score", f"0|g|f|y|o|s|s|A|B|{cell}"], f", row 2: the score {cell!r} is not a number")
            for cell in ("nan", "1_0", "\u0665", " ")
        ),
    ],
)
def test_bad_tables(name, lines, message, tmp_path):
    path = write(tmp_path, "dev.tsv", *lines)
    assert message_of(get_processor(name).get_dev_examples, str(tmp_path)) == path + message


def test_unknown_task_lists_the_known_ones():
    message = message_of(get_processor, "mprc")
    assert "'mprc'" in message
    assert all(name in message for name in [*TASKS, "tsv"])


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (None, "which column holds the text"),
        (TsvLayout(text_a=""), "which column holds the text"),
        (TsvLayout(text_a="0"), "counted from 1"),
        (TsvLayout(text_a="1", label="class", header=False), "without a header, give its number"),
        (TsvLayout(text_a="1", label="2", separator="\t"), r"label_separator='\\t': ends a cell"),
        (TsvLayout(text_a="1", label="2", separator="\\t"), "ends a cell"),  # typed without $
    ],
)
def test_bad_columns_of_tsv(layout, message):
    with pytest.raises(UserError, match=message):
        get_processor("tsv", tsv=layout)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["text|label", "A|x", "B|x"], ": every row has the label 'x'; a classifier needs two labels or more"),
        (
            ["text|label", "A|x", "B|"],
            ", row 3: the label is empty (give --multi_label if a text may have no label, or several)",
        ),
        (
            ["text|label", "A|x", "B| "],
            ", row 3: the label is empty (give --multi_label if a text may have no label, or several)",
        ),
        (["text", "A"], ": has no column 'label'; its header is text"),
    ],
)
def test_bad_training_tables_of_tsv(rows, message, tmp_path):
    path = write(tmp_path, "train.tsv", *rows)
    processor = get_processor("tsv", tsv=TsvLayout(text_a="text", label="label"))
    assert message_of(processor.get_train_examples, str(tmp_path)) == path + message


def test_tsv_without_labels_cannot_be_trained_or_predicted(tmp_path):
    processor = get_processor("tsv", tsv=TsvLayout(text_a="text"))
    assert "no label column" in message_of(processor.get_train_examples, str(tmp_path))
    assert "labels of the task tsv are not known" in message_of(processor.get_test_examples, str(tmp_path))


@pytest.mark.parametrize("name", ["mnli", "sts-b"])
def test_label_map_of_another_task(name):
    label_map = get_processor("mrpc").label_map()
    with pytest.raises(UserError, match=f"of the task mrpc \\(labels 0, 1\\); it does not fit the task {name}"):
        get_processor(name, label_map=label_map)


def test_model_of_mnli_may_answer_xnli():
    label_map = get_processor("mnli").label_map()
    assert get_processor("xnli", label_map=label_map).get_labels() == list(label_map.labels)


ONE = TsvLayout(text_a="1", label="2", header=False)
SEVERAL = TsvLayout(text_a="1", label="2", header=False, separator=",")


@pytest.mark.parametrize(
    ("layout", "labels", "expected"),
    [
        (ONE, ["Yes", "no", "yes", "no"], "row 3: the label 'yes' and 'Yes' of row 1 are two classes"),
        (ONE, ["no", "yes", "no", "yes "], "row 4: the label 'yes ' and 'yes' of row 2"),
        (ONE, ["yes", "no", "no"], None),
        (ONE, ["Sci/Tech", "Arts, Music", "Sci/Tech", "Sports", "Sports"], None),
        (SEVERAL, ["a", "", "b"], None),
        (SEVERAL, ["c,b", "b,a", "a", "b"], None),
    ],
)
def test_doubtful_labels_are_told_once(tmp_path, log_lines, layout, labels, expected):
    path = write(tmp_path, "train.tsv", *(f"a film|{label}" for label in labels))
    get_processor("tsv", tsv=layout).get_train_examples(str(tmp_path))
    told = [line for line in log_lines if expected and line.startswith(f"{path}, ") and expected in line]
    assert len(told) == (expected is not None), log_lines
    assert expected or log_lines == []


BY_NUMBER = TsvLayout(text_a="1", label="2", id="3")
NUMBERS = "every text, in column {}, is a number; is this"
HEADER = "row 1: is left out as the header and does not look like one"


@pytest.mark.parametrize(
    ("name", "layout", "part", "rows", "told"),
    [
        ("cola", None, "test", ["s|1||A film.", "s|0||A book."], [NUMBERS.format(2), f"{HEADER} ('1')"]),
        ("cola", None, "test", ["index|sentence", "0|A film."], []),
        ("cola", None, "test", ["0|A film.", "1|A book."], [f"{HEADER} ('A film.')"]),
        ("cola", None, "test", ["x|A film that is good.", "y|A book."], [HEADER]),
        ("tsv", BY_NUMBER, "train", ["a film|yes|7", "a book|no|8"], [f"{HEADER} ('a film', 'yes', '7')"]),
        ("tsv", BY_NUMBER, "train", ["a film|yes|x", "a book|no|y", "a play|yes|z"], [f"{HEADER} ('a film', 'yes',"]),
        ("tsv", BY_NUMBER, "train", ["text|answer|id", "a book|no|y", "a play|yes|y"], []),
        ("tsv", BY_NUMBER, "train", ["text|answer|id", "1|no|x", " 2.5|yes|y"], [NUMBERS.format(1)]),
        ("tsv", BY_NUMBER, "test", ["t|a|id", "x||8", "y||7", "z||8"], ["row 4: the id '8' was there in row 2; pred"]),
        ("sts-b", None, "dev", [STS_B + "|score", *(f"0|g|f|y|o|s|s|A|B|{n}" for n in (500, 5, 0, -3))],
         ["2 of 4 scores are not between 0 and 5, the first is 500 in row 2"]),
    ],
)  # fmt: skip
def test_doubtful_rows_are_told(tmp_path, log_lines, name, layout, part, rows, told):
    path = write(tmp_path, f"{part}.tsv", *rows)
    labels = LabelMap("tsv", ("no", "yes"), False) if name == "tsv" else None
    processor = get_processor(name, tsv=layout, label_map=labels)
    processor.read(str(tmp_path), {"dev": "eval", "test": "predict"}.get(part, part))
    assert len(log_lines) == len(told), log_lines
    for line, words in zip(log_lines, told, strict=True):
        assert line.startswith(path) and words in line


def test_rows_without_a_text(tmp_path, log_lines):
    path = write(tmp_path, "train.tsv", "a film|yes", " |no", *["|no"] * 4, "a book|yes")
    assert len(get_processor("tsv", tsv=ONE).get_train_examples(str(tmp_path))) == 7
    (line,) = log_lines
    assert f"{path}: column 1 has no text in row 2, 3, 4 and 2 more; fill it in, or leave" in line
