"""Examples for classification: the tables of the tasks, small ones made here and real ones."""

from __future__ import annotations

import pytest
from refused import refuses
from small_models import SHARED

from bert_tf2.finetuning import classification
from bert_tf2.finetuning.classification import TASKS, InputExample, TsvLayout, get_processor
from bert_tf2.weights.task_file import LabelMap


def write(folder, name, *rows):
    """Writes a table; each row is a string in which | is TAB."""
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
MNLI_ROW = "7|p|q|g|x|x|x|x|A|B|neutral|entailment"
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
READERS = ("get_train_examples", "get_dev_examples", "get_test_examples")


@pytest.mark.parametrize("number", range(len(TABLES)), ids=lambda number: " ".join(TABLES[number][:2]))
def test_columns_and_torn_rows(number, tmp_path, log_lines):
    """A row that is too short is an error; only in QQP's tables with labels it is left out."""
    name, file, lines, expected = TABLES[number]
    path = write(tmp_path, file, *lines.split("/"))
    read = getattr(get_processor(name), READERS[number % 3])
    assert read(str(tmp_path))[0] == InputExample(*expected)
    write(tmp_path, file, *lines.split("/"), "torn")
    if name == "qqp" and number % 3 < 2:
        assert len(read(str(tmp_path))) == 1 and any(f"{path}: left out 1 rows" in line for line in log_lines)
    else:
        refuses(f"{path}, row {1 + len(lines.split('/'))}: 1 column", read, str(tmp_path))


def test_names_and_label_orders_of_the_reference(tmp_path):
    assert {number for number, (task, *_) in enumerate(TABLES) if task not in TASKS} == set()
    for name, known in (("MRPC", "mrpc"), ("CoLA", "cola"), ("SST2", "sst-2"), ("stsb", "sts-b")):
        assert get_processor(name).task.name == known
    orders = {name: get_processor(name).get_labels() for name in ("cola", "mnli", "mrpc", "xnli")}
    inference = ["contradiction", "entailment", "neutral"]
    assert orders == {"cola": ["0", "1"], "mnli": inference, "mrpc": ["0", "1"], "xnli": inference}
    write(tmp_path, "dev.tsv", "a|1||One.")
    assert classification.ColaProcessor().get_dev_examples(str(tmp_path)) == [InputExample("dev-0", "One.", None, "1")]
    for name in ("mnli", "mrpc", "xnli"):
        assert getattr(classification, f"{name.title()}Processor")().get_labels() == orders[name]
    refuses(f"'mprc' {' '.join(TASKS)} tsv", get_processor, "mprc")


def test_lines_end_at_lf_and_cr_is_dropped(tmp_path):
    (tmp_path / "dev.tsv").write_bytes("a\t1\t\tone\u2028line\r\nb\t0\t\tlo\rne".encode())
    found = get_processor("cola").get_dev_examples(str(tmp_path))
    assert [example.text_a for example in found] == ["one\u2028line", "lone"]


@pytest.mark.parametrize(
    ("name", "rows", "texts", "words"),
    [
        ("mrpc", ["h", "1|1|2|A|B", "1|1|2|C|D|", "1|1|2|E|F|x|y"], "ACE", "2 of 3 row 3 with 6"),
        ("mrpc", ["h", "1|1|2|A|B|", "1|1|2|C|D", "1|1|2|E|F"], "ACE", "1 of 3 row 2 with 6"),
        ("cola", ["s|1||A|", "s|0||B", "s|0||C"], "ABC", "1 of 3 row 1 with 5"),
        ("mrpc", ["h", "1|1|2|A|B|x", "1|1|2|C|D|y"], "AC", ""),
    ],
)
def test_extra_cells_at_the_end_are_read_as_the_reference_reads_them(tmp_path, log_lines, name, rows, texts, words):
    path = write(tmp_path, "dev.tsv", *rows)
    found = get_processor(name).get_dev_examples(str(tmp_path))
    assert [example.text_a for example in found] == [*texts] and len(log_lines) == bool(words)
    assert all(word in line for line in log_lines for word in (path, *words.split()))


TSV = {"layout": TsvLayout(text_a="text", label="label"), "part": "train"}
NO_HEADER = {"layout": TsvLayout(text_a="1", label="2", header=False), "part": "dev", "labels": ("0", "1")}


@pytest.mark.parametrize(
    ("name", "rows", "words"),
    [
        ("mrpc", ["h|h|h|h|h", "1|1|2|A|B", ""], ", row 3: 1 column 5"),
        ("mrpc", ["h", "1|1|2|A"], ", row 2: 4 columns text_b column 5"),
        ("mrpc", ["h|h|h|h|h"], ": no row"),
        ("mrpc", ["h|h|h|h|h", "2|1|2|A|B"], ", row 2: '2' 0, 1"),
        ("mnli", [f"{MNLI}|l|gold_label", MNLI_ROW, f"{MNLI_ROW}|"], ", row 3: 13 columns 12"),
        ("cola", [], ": empty"),
        ("cola", ["s|yes||A"], ", row 1: 'yes' 0, 1"),
        ("rte", ["index|a|b|label", "0|A|B|entailment"], ": 'sentence1' index, a, b, label"),
        ("rte", ["index|sentence1|sentence2|label", "0|A|B"], ", row 2: 3 columns 4"),
        ("sst-2", ["sentence|label", "A|1", "B|"], ", row 3: '' 0, 1"),
        *(("sts-b", [f"{STS_B}|score", f"0|g|f|y|o|s|s|A|B|{cell}"], f", row 2: {cell.strip()!r:.5} number")
          for cell in ("high", "nan", "1_0", "\u0665")),
        (TSV, ["text|label", "A|x", "B|x"], ": every row 'x'"),
        (TSV, ["text|label", "A|x", "B|"], ", row 3: empty --multi_label"),
        (TSV, ["text|label", "A|x", "B| "], ", row 3: empty --multi_label"),
        (TSV, ["text", "A"], ": 'label' text"),
        (NO_HEADER, ["A|1", "B|0|"], ", row 2: 3 columns 2"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_tables(name, rows, words, tmp_path):
    how = name if isinstance(name, dict) else {}
    label_map = LabelMap("tsv", how["labels"], False) if "labels" in how else None
    processor = get_processor("tsv" if how else name, tsv=how.get("layout"), label_map=label_map)
    part = how.get("part", "dev")
    path = write(tmp_path, "dev_matched.tsv" if name == "mnli" else f"{part}.tsv", *rows)
    refuses(f"{path}{words}", getattr(processor, f"get_{part}_examples"), str(tmp_path))


# Tables of one's own


def test_tsv_by_name_finds_its_labels(tmp_path):
    write(tmp_path, "train.tsv", "\ufeffkey|class|text|more", "k1|ham|A|B", "k2|spam|C|", "k3|eggs|D|E")
    write(tmp_path, "dev.tsv", "text|more|key|class", "A|B|k4|spam")
    write(tmp_path, "test.tsv", "more|text", "B|A")
    processor = get_processor("tsv", tsv=TsvLayout(text_a="text", text_b="more", label="class"))
    assert processor.get_train_examples(str(tmp_path))[1] == InputExample("train-2", "C", "", "spam")
    assert processor.get_labels() == ["eggs", "ham", "spam"]
    assert processor.get_dev_examples(str(tmp_path)) == [InputExample("dev-1", "A", "B", "spam")]
    assert processor.get_test_examples(str(tmp_path)) == [InputExample("test-1", "A", "B", "eggs")]
    with_key = TsvLayout(text_a="text", label="2", id="key")  # by name or by number
    assert get_processor("tsv", tsv=with_key).get_train_examples(str(tmp_path))[0].guid == "k1"
    unlabeled = get_processor("tsv", tsv=TsvLayout(text_a="text"))
    refuses("no label column", unlabeled.get_train_examples, str(tmp_path))
    refuses("labels tsv not known", unlabeled.get_test_examples, str(tmp_path))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (None, "text_a"),
        (TsvLayout(text_a=""), "text_a"),
        (TsvLayout(text_a="0"), "text_a counted from 1"),
        (TsvLayout(text_a="1", label="class", header=False), "label header number"),
        (TsvLayout(text_a="1", label="2", separator="\t"), "label_separator='\\t'"),
        (TsvLayout(text_a="1", label="2", separator="\\t"), "label_separator"),  # typed without $
    ],
)
def test_bad_columns_of_tsv(layout, words):
    refuses(words, get_processor, "tsv", tsv=layout)


def test_labels_of_another_task():
    label_map = get_processor("mrpc").label_map()
    for name in ("mnli", "sts-b"):
        refuses(f"--output_dir mrpc 0, 1 {name}", get_processor, name, label_map=label_map)
    label_map = get_processor("mnli").label_map()
    assert get_processor("xnli", label_map=label_map).get_labels() == list(label_map.labels)


ONE, SEVERAL = (TsvLayout(text_a="1", label="2", header=False, separator=separator) for separator in (None, ","))
BY_NUMBER = TsvLayout(text_a="1", label="2", id="3")


@pytest.mark.parametrize(
    ("name", "layout", "part", "rows", "warnings"),
    [
        ("tsv", ONE, "train", ["a film|Yes", "a|no", "b|yes", "b|no"], [", row 3: 'yes' 'Yes' row 1"]),
        ("tsv", ONE, "train", ["a film|no", "a|yes", "b|no", "b|yes "], [", row 4: 'yes ' 'yes' row 2"]),
        ("tsv", ONE, "train", ["a film|Sci/Tech", "a|Arts, Music", "a|Sports"], []),
        ("tsv", SEVERAL, "train", ["a film|c,b", "a|", "b|b,a", "b|a"], []),
        ("tsv", ONE, "train", ["a|yes", " |no", *["|no"] * 4, "b|yes"], [": column 1 no text row 2, 3, 4 and 2 more"]),
        ("cola", None, "test", ["s|1||A film.", "s|0||A book."], [": column 2 number", ", row 1: header ('1')"]),
        ("cola", None, "test", ["index|sentence", "0|A film."], []),
        ("cola", None, "test", ["0|A film.", "1|A book."], [", row 1: header ('A film.')"]),
        ("cola", None, "test", ["x|A film that is good.", "y|A book."], [", row 1: header"]),
        ("tsv", BY_NUMBER, "train", ["a film|yes|7", "a book|no|8"], [", row 1: header 'yes' --noheader"]),
        ("tsv", BY_NUMBER, "train", ["a film|yes|x", "a book|no|y", "a play|yes|z"], [", row 1: header 'yes'"]),
        ("tsv", BY_NUMBER, "train", ["text|answer|id", "a book|no|y", "a play|yes|y"], []),
        ("tsv", BY_NUMBER, "train", ["text|answer|id", "1|no|x", " 2.5|yes|y"], [": column 1 number"]),
        ("tsv", BY_NUMBER, "test", ["t|a|id", "x||8", "y||7", "z||8"], [", row 4: '8' row 2"]),
        ("sts-b", None, "dev", [f"{STS_B}|score", *(f"0|g|f|y|o|s|s|A|B|{n}" for n in (500, 5, 0, -3))],
         [": 2 of 4 scores 500 row 2"]),
    ],
)  # fmt: skip
def test_doubtful_labels_and_rows_are_warned_of_once(tmp_path, log_lines, name, layout, part, rows, warnings):
    path = write(tmp_path, f"{part}.tsv", *rows)
    label_map = LabelMap("tsv", ("no", "yes"), False) if layout is BY_NUMBER else None
    processor = get_processor(name, tsv=layout, label_map=label_map)
    getattr(processor, f"get_{part}_examples")(str(tmp_path))
    assert len(log_lines) == len(warnings), log_lines
    for line, words in zip(log_lines, warnings, strict=True):
        assert line.startswith(path) and [word for word in words.split() if word not in line] == [], line
