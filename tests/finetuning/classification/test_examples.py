"""Examples for classification: the tables of the tasks, tables and processors of one's own, and their features."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from golden_data import GOLDEN, cases, digest
from hypothesis import given
from hypothesis import strategies as st
from refused import refuses

import bert_tf2
from bert_tf2 import modeling, run_classifier, tokenization
from bert_tf2.config import BertConfig
from bert_tf2.data import records
from bert_tf2.data.record_order import read_records
from bert_tf2.finetuning import classification
from bert_tf2.finetuning.classification import TASKS, InputExample, TsvLayout, get_processor
from bert_tf2.weights.task_file import LabelMap, read_label_map


def write(folder, name, *rows):
    """Writes a table; each row is a string in which | is TAB."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(row.replace("|", "\t") + "\n" for row in rows).encode("utf-8"))
    return str(path)


MNLI = "index|promptID|pairID|genre|s1b|s2b|s1p|s2p|sentence1|sentence2"
MNLI_ROW = "7|p|q|g|x|x|x|x|A|B|neutral|entailment"
XNLI = "language|gold_label|b1|b2|p1|p2|sentence1|sentence2|promptID"
STS_B = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
QQP = "id|qid1|qid2|question1|question2|is_duplicate"
QNLI = "index|question|sentence"
PAIR = "index|sentence1|sentence2"

# (task, file, its lines with / between them, the first example that should come of it); dev.tsv of the last tasks is as
# train.tsv
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
    ("xnli", "xnli.dev.tsv", f"{XNLI}/zh|contradictory|||||A|B|1", ("dev-1", "A", "B", "contradiction")),
    ("xnli", "xnli.test.tsv", f"{XNLI}/zh|entailment|||||A|B|1", ("test-1", "A", "B", "contradiction")),
    ("sst-2", "train.tsv", "sentence|label/good |1", ("train-1", "good ", None, "1")),
    ("sst-2", "test.tsv", "index|sentence/5|good", ("test-5", "good", None, "0")),
    ("qqp", "train.tsv", f"{QQP}/3|1|2|A?|B?|1", ("train-3", "A?", "B?", "1")),
    ("qqp", "dev.tsv", f"{QQP}/4|1|2|A?|B?|0", ("dev-4", "A?", "B?", "0")),
    ("qqp", "test.tsv", "id|question1|question2/5|A?|B?", ("test-5", "A?", "B?", "0")),
    ("qnli", "train.tsv", f"{QNLI}|label/0|A?|B.|not_entailment", ("train-0", "A?", "B.", "not_entailment")),
    ("qnli", "test.tsv", f"{QNLI}/2|A?|B.", ("test-2", "A?", "B.", "entailment")),
    ("rte", "train.tsv", f"{PAIR}|label/0|A|B|not_entailment", ("train-0", "A", "B", "not_entailment")),
    ("rte", "test.tsv", f"{PAIR}/2|A|B", ("test-2", "A", "B", "entailment")),
    ("wnli", "train.tsv", f"{PAIR}|label/0|A|B|1", ("train-0", "A", "B", "1")),
    ("wnli", "test.tsv", f"{PAIR}/2|A|B", ("test-2", "A", "B", "0")),
    ("sts-b", "train.tsv", f"{STS_B}|score/0|g|f|y|o|s|s|A|B|3.800", ("train-0", "A", "B", "3.800")),
    ("sts-b", "test.tsv", f"{STS_B}/2|g|f|y|o|s|s|A|B", ("test-2", "A", "B", "0")),
]  # fmt: skip


@pytest.mark.parametrize(("task", "file", "lines", "expected"), TABLES)
def test_columns_and_torn_rows(task, file, lines, expected, tmp_path, log_lines):
    """A row that is too short is an error; only in QQP's tables with labels it is left out."""
    path = write(tmp_path, file, *lines.split("/"))
    read = getattr(get_processor(task), f"get_{re.search('train|dev|test', file)[0]}_examples")
    assert read(str(tmp_path))[0] == InputExample(*expected)
    write(tmp_path, file, *lines.split("/"), "torn")
    if task == "qqp" and file != "test.tsv":
        assert len(read(str(tmp_path))) == 1 and any(f"{path}: left out 1 rows" in line for line in log_lines)
    else:
        refuses(f"{path}, row {1 + len(lines.split('/'))}: 1 column", read, str(tmp_path))


def test_names_and_label_orders_of_the_reference():
    assert {task for task, *_ in TABLES} <= {*TASKS}
    for name, known in (("MRPC", "mrpc"), ("CoLA", "cola"), ("SST2", "sst-2"), ("stsb", "sts-b")):
        assert get_processor(name).task.name == known
    inference = ["contradiction", "entailment", "neutral"]
    for name, labels in (("Cola", ["0", "1"]), ("Mnli", inference), ("Mrpc", ["0", "1"]), ("Xnli", inference)):
        assert getattr(classification, f"{name}Processor")().get_labels() == labels
    refuses(f"'mprc' {' '.join(TASKS)} tsv", get_processor, "mprc")


def test_labels_of_another_task():
    two, three = (get_processor(task).label_map() for task in ("mrpc", "mnli"))
    for task in ("mnli", "sts-b"):
        refuses(f"--output_dir mrpc 0, 1 {task}", get_processor, task, label_map=two)
    assert get_processor("xnli", label_map=three).get_labels() == list(three.labels)


TEXT = TsvLayout(text_a="text", label="label")
ONE, SEVERAL = (TsvLayout(text_a="1", label="2", header=False, separator=separator) for separator in (None, ","))
AMOUNTS = TsvLayout(text_a="1", label="2", header=False, regression=True)
BY_NUMBER = TsvLayout(text_a="1", label="2", id="3")
BY_NAME = TsvLayout("a text of five words", label="2")
KNOWN = LabelMap("tsv", ("0", "1"), regression=False)


COLA, OTHER = "label column 2 text_a column 4 without header", "another task? --task_name --task_name=tsv"


def processor_of(task, part):
    """The processor of the name of a task, or of a layout; but to train, the labels are known."""
    if isinstance(task, str):
        return get_processor(task)
    return get_processor("tsv", tsv=task, label_map=None if part == "train" else KNOWN)


@pytest.mark.parametrize(
    ("task", "part", "rows", "words"),
    [
        ("mrpc", "dev", ["h|h|h|h|h", "1|1|2|A|B", ""], ", row 3: blank delete"),
        ("mrpc", "dev", ["h", "1|1|2|A"], ", row 2: 4 columns text_b column 5"),
        (ONE, "dev", ["a film,1"], ", row 1: 1 column label column 2 TAB"),
        ("mnli", "train", [f"{MNLI}|l1|gold_label", MNLI_ROW, f"{MNLI_ROW}|"], ", row 3: 13 columns 12"),
        ("cola", "dev", ["id|label||text"], ", row 1: 'label' 0, 1 header"),
        ("cola", "dev", ["id|label||text", "s|1||A"], ", row 1: 'label' 0, 1 header delete"),
        ("cola", "dev", ["1|#1 ID|#2 ID|A|B", "1|7|8|A|B"], f", row 1: '#1 ID' 0, 1 another {COLA} {OTHER}"),
        ("cola", "dev", ["s|1||A", "s|2||B"], f", row 2: '2' 0, 1 {OTHER}"),
        ("mrpc", "dev", ["h", "1|A"], f", row 2: 2 columns label column 1 text_a column 4 text_b column 5 {OTHER}"),
        ("mnli", "train", ["a|b|c", "1|A|B"], f", row 2: 3 columns last column text_a column 9 {OTHER}"),
        (ONE, "dev", ["text|label", "A|1"], ", row 1: 'label' 0, 1 leave --noheader"),
        (TsvLayout("3", label="2"), "dev", ["text|label", "A|1"], ", row 2: 2 columns 3 --text_a_column"),
        ("rte", "dev", ["index|a|b|label", "0|A|B|entailment"], f": 'sentence1' 'index', 'a', 'b', 'label' {OTHER}"),
        ("sts-b", "dev", [f"{STS_B}|score", "0|g|f|y|o|s|s|A|B|high"], ", row 2: 'high' number"),
        *((AMOUNTS, "train", ["A|1.5", f"B|{cell}"], f", row 2: {cell!r} number")
          for cell in ("3,75", "", "nan", "1_0", "\u0665")),
        (AMOUNTS, "train", ["A|1.5", "B|1e40"], ", row 2: '1e40' between"),
        (TEXT, "train", ["text|label", "A|x", "B|x"], ": every row 'x'"),
        (TEXT, "train", ["text|label", "A|x", "B| "], ", row 3: empty --multi_label"),
        (TEXT, "train", ["text", "A"], ": 'label' text"),
        (TEXT, "train", ["label|text|label", "x|A|y"], ": columns 1 and 3 'label' number"),
        (TEXT, "train", ["A film that I saw|x", "B|y"], ": 'text' 'A film that I saw' --noheader"),
        (TEXT, "train", ["text|label\rA|x\rB|y"], ": header CR LF"),
        (ONE, "dev", ["A|" + "long " * 99], ", row 1: 'long 0, 1"),
        (ONE, "dev", ["A|1", "B|0|"], ", row 2: 3 columns 2"),
        (SEVERAL, "train", ["A|", "B|"], ": every row no label"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_tables(task, part, rows, words, tmp_path):
    path = write(tmp_path, f"{part}.tsv", *rows)
    refuses(f"{path}{words}", getattr(processor_of(task, part), f"get_{part}_examples"), str(tmp_path))


@pytest.mark.parametrize(
    ("task", "part", "rows", "warning"),
    [
        # Extra cells at the end are read as the reference reads them.
        ("mrpc", "dev", ["h", "1|1|2|A|B", "1|1|2|C|D|", "1|1|2|E|F|x|y"], ": 2 of 3 row 3 with 6"),
        ("cola", "dev", ["s|1||A|", "s|0||B", "s|0||C"], ": 1 of 3 row 1 with 5"),
        ("mrpc", "dev", ["h", "1|1|2|A|B|x", "1|1|2|C|D|y"], None),
        (ONE, "train", ["a film|Yes", "a|no", "b|yes", "b|no"], ", row 3: 'yes' 'Yes' row 1"),
        (ONE, "train", ["a film|Sci/Tech", "a|Arts, Music", "a|Sports"], None),
        (SEVERAL, "train", ["a film|c,b", "my a|", "b|b,a", "b|a"], None),
        (BY_NUMBER, "test", ["t|a|id", "x||8", "y||7", "z||8"], ", row 4: '8' row 2"),
        (BY_NUMBER, "test", ["1|2|0", "x||8", "y||7"], None),
        (BY_NUMBER, "test", ["0|1|id", "x||8", "y||7"], ": text_a column 1, '0' column 2 '1'"),
        # A test set in the columns of the training set, and without a header.
        (ONE, "train", ['"a ""film"""|x', '"b"|y', '"c" "" d|x'], ": 1 rows row 1; quoting=csv.QUOTE_NONE"),
        (ONE, "train", ['"a film"|x', '"b"|y'], ": 2 rows row 1; quoting=csv.QUOTE_NONE"),
        (ONE, "train", ['"a film"|x', "b|y"], None),
        ("cola", "test", ["id|label||text", "s|0||A", "s|1||B"], ": text_a number or a label '0'"),
        (ONE, "test", ["index|sentence", "7|A", "8|B"], ": text_a number '7'"),
        (BY_NAME, "train", ["a text of five words|y", "7 films|1", "8|2"], None),
        ("cola", "test", ["1|this film is very good", "2|bad"], ": row 1 header 'this film is very good'"),
        ("sts-b", "dev", [f"{STS_B}|score", *(f"0|g|f|y|o|s|s|A|B|{n}" for n in (500, 5, 0, -3))],
         ": 2 of 4 scores 500 row 2"),
        # Classes that look like amounts: fractions, or most of them different.
        *((ONE, "train", [f"x|{label}" for label in labels], warning) for labels, warning in (
            ([1.5, 2.25, 3.75] * 5, ": --regression"), ([*range(100, 109), *[7] * 6], ": --regression"),
            ([1, 2, 3, 4, 5] * 4, None), (["1.0", "2.0"] * 8, None), (["a", *range(15)], None))),
    ],
    ids=str,
)  # fmt: skip
def test_doubtful_tables_are_warned_of_once(task, part, rows, warning, tmp_path, log_lines):
    path = write(tmp_path, f"{part}.tsv", *rows)
    read = getattr(processor_of(task, part), f"get_{part}_examples")(str(tmp_path))
    assert len(read) == len(rows) - (task in ("mrpc", "sts-b", BY_NUMBER, BY_NAME) or (task, part) == ("cola", "test"))
    assert len(log_lines) == (warning is not None), log_lines
    for line in log_lines:
        assert line.startswith(path) and [word for word in warning.split() if word not in line] == [], line


# Data of one's own


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
    message = refuses("labels tsv not known label_map.json", unlabeled.get_test_examples, str(tmp_path))
    form = write(tmp_path, "label_map.json", re.search("{.*}", message)[0])
    assert read_label_map(form).labels == ("no", "yes")


def test_several_labels_are_separated_and_collected(tmp_path):
    write(tmp_path, "train.tsv", "A|sad,fun", "B|", "C| long , fun", "D|fun,")
    processor = get_processor("tsv", tsv=SEVERAL)
    examples = processor.get_train_examples(str(tmp_path))
    assert [example.label for example in examples] == [("sad", "fun"), (), ("long", "fun"), ("fun",)]
    found = processor.label_map()
    assert found == LabelMap("tsv", ("fun", "long", "sad"), regression=False, multi_label=True)
    write(tmp_path, "dev.tsv", "A|sad", "B|sad,funny")
    known = get_processor("tsv", tsv=SEVERAL, label_map=found)
    refuses("dev.tsv, row 2: 'funny'", known.get_dev_examples, str(tmp_path))
    one = LabelMap("tsv", found.labels, regression=False)
    refuses("fun, long, sad leave out --multi_label", get_processor, "tsv", tsv=SEVERAL, label_map=one)


def test_bad_columns_of_tsv():
    for layout, words in (
        (TsvLayout(text_a=""), "--text_a_column"),
        (TsvLayout(text_a="0"), "--text_a_column=0 counted from 1"),
        (TsvLayout(text_a="1", label="class", header=False), "--label_column=class header number"),
        (TsvLayout(text_a="1", label="2", separator="\t"), "label_separator='\\t'"),
    ):
        refuses(words, get_processor, "tsv", tsv=layout)


class Bytes(classification.DataProcessor):
    """As a fork for Python 2 has it: texts in bytes, labels that are numbers; no test set."""

    labels = (0, 1)

    def get_labels(self):
        self.known = self.labels  # which the reference's script asks for first
        return self.labels

    def get_train_examples(self, data_dir):
        return [InputExample("a", "caf\u00e9".encode(), b"b", self.known[1])]

    def get_dev_examples(self, data_dir):
        return [InputExample(row[0], row[1], None, 2) for row in self._read_tsv(f"{data_dir}/mine.tsv")]


def test_a_processor_of_ones_own(tmp_path):
    for reader in (Bytes(), Bytes):
        classification.register("Of-Bytes", reader)
        processor = get_processor("OF-BYTES")
        assert processor.get_train_examples("") == [InputExample("a", "café", "b", "1")]
    assert processor.get_labels() == ["0", "1"]
    path = write(tmp_path, "mine.tsv", 'x|"a b', "y|c")
    refuses("get_dev_examples of-bytes, example 1: '2' 0, 1", processor.get_dev_examples, str(tmp_path))
    assert [example.text_a for example in Bytes().get_dev_examples(str(tmp_path))] == ['"a b', "c"]
    assert Bytes._read_tsv(path, quotechar='"') == [["x", "a b\ny\tc\n"]]
    (tmp_path / "cut.tsv").write_bytes(b'x\t"a\r\nb')  # quotation marks and the last line have no end
    assert Bytes._read_tsv(str(tmp_path / "cut.tsv"), quotechar='"') == [["x", "a\nb"]]
    path = write(tmp_path, "mine.tsv", "x|", "", "y")
    assert Bytes._read_tsv(path) == Bytes._read_tsv(path, quotechar='"') == [["x", ""], [], ["y"]]
    write(tmp_path, "train.tsv", "header", "2|1|2|A|B")
    more_labels = type("More", (classification.MrpcProcessor,), {"get_labels": lambda self: ["0", "1", "2"]})
    assert more_labels().get_train_examples(str(tmp_path)) == [InputExample("train-1", "A", "B", "2")]
    for name in ("_create_examples", "_read_tsv"):  # would not be called, unless by a method of one's own
        mine = type("Mine", (classification.MrpcProcessor,), {name: list, "get_dev_examples": list})
        type("Next", (mine,), {name: list})
        refuses(f"Mine.{name} DataProcessor", type, "Mine", (classification.MrpcProcessor,), {name: lambda *_: []})
    refuses("no get_test_examples of-bytes", processor.get_test_examples, "")
    refuses("taken", classification.register, "MRPC", Bytes)
    for labels in (("a",), ("a", "a")):
        classification.register("of-bytes", type("Few", (Bytes,), {"labels": labels}))
        refuses("two or more", get_processor, "of-bytes")
    for found, words in ((lambda _: "a b", "'a b' list"), (classification.DataProcessor.get_labels, "no")):
        classification.register("of-bytes", type("Wrong", (Bytes,), {"get_labels": found}))
        refuses(f"get_labels of-bytes {words}", get_processor, "of-bytes")
    classification.register("of-bytes", type("Unordered", (Bytes,), {"labels": {"a", "b"}}))
    refuses("of-bytes set list", get_processor, "of-bytes")
    for found, words in (
        (None, "None list"),
        ([], "no example"),
        ([("a", "b")], "example 1: ('a', 'b') InputExample"),
        ([InputExample("a", float("nan"), None, "1")], "example 1: nan"),
        ([InputExample("a", None, "b", "1")], "example 1: None"),
    ):
        classification.register("wrong", type("Wrong", (Bytes,), {"get_dev_examples": lambda *_, found=found: found}))
        refuses(f"get_dev_examples wrong {words}", get_processor("wrong").get_dev_examples, "")
    late = type("Late", (Bytes,), {"get_labels": lambda _: 1 / 0})  # they may need flags, which are not read yet
    classification.register("late", late)
    with pytest.raises(ZeroDivisionError):
        get_processor("late")
    given = {"config": BertConfig(9), "is_training": False, "input_ids": [[1]], "input_mask": None}  # as forks do
    refuses("BertModel(config)", modeling.BertModel, **given)


@pytest.mark.parametrize(
    ("label", "kind", "wanted"),
    [
        ([0, 1, 1], {"multi_label": True}, ("sad", "fun")),
        ("1 0 0".split(), {"multi_label": True}, ("long",)),
        (["fun"], {"multi_label": True}, ("fun",)),
        ([], {"multi_label": True}, ()),
        (np.array([0.0, 1.0, 1.0]), {"multi_label": True}, ("sad", "fun")),
        (np.array(2.5), {"regression": True}, "2.5"),
        ([2.5], {"regression": True}, "example 1: list number"),
        (2.5, {"regression": True}, "2.5"),
        ([0, 1, 1], {}, "example 1: list multi_label=True"),
        (["funny"], {"multi_label": True}, "example 1: 'funny' long, sad, fun"),
        ("high", {"regression": True}, "example 1: 'high' number"),
        *((None, kind, "example 1: 'None'") for kind in ({}, {"multi_label": True}, {"regression": True})),
        (b"fun", {}, "fun"),
    ],
    ids=str,
)
def test_a_processor_with_several_labels_or_numbers(label, kind, wanted):
    """As the forks for toxic comments have it: a 0 or a 1 for each label; and as those for STS-B."""
    methods = {"get_labels": lambda _: ["long", "sad", "fun"], "get_train_examples": lambda *_: [example]}
    example = InputExample("a", "a film", None, label)
    classification.register("own", type("Own", (Bytes,), methods | {"get_test_examples": lambda *_: [example]}), **kind)
    processor = get_processor("own")
    found = processor.label_map()
    assert (found.multi_label, found.regression) == ("multi_label" in kind, "regression" in kind)
    assert len(processor.get_test_examples("")) == 1  # whose label is not used
    if isinstance(wanted, str) and " " in wanted:
        return refuses(f"get_train_examples own {wanted}", processor.get_train_examples, "")
    assert processor.get_train_examples("")[0].label == wanted
    refuses("not both", classification.register, "own", Bytes, multi_label=True, regression=True)
    usual = processor.task.measures
    refuses(f"own 'f2' {', '.join(usual)}", classification.register, "own", Bytes, ("f2",), **kind)  # before a training
    other = LabelMap("own", ("sad", "long", "fun"), False)
    words = "own sad, long, fun own a score" if found.regression else "own sad, long, fun own labels long, sad, fun"
    refuses(words, get_processor, "own", label_map=other)


# Features


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("".join(f"{word}\n" for word in [*tokenization.SPECIAL_TOKENS, *"abcdefgh"]), encoding="utf-8")
    return tokenization.FullTokenizer(str(path))


@pytest.mark.parametrize("case", cases("classifier-features", quick="_32_"))
def test_same_records_as_the_reference(case, tmp_path):
    flags = case["flags"]
    processor = get_processor(flags["task_name"])
    read = {"train": processor.get_train_examples, "eval": processor.get_dev_examples}
    examples = read.get(case["part"], processor.get_test_examples)(str(GOLDEN / case["data_dir"]))
    tokenizer = tokenization.FullTokenizer(str(GOLDEN / case["vocab"]), flags["do_lower_case"])
    path, labels = str(tmp_path / "records"), processor.get_labels()
    count = classification.file_based_convert_examples_to_features(
        examples, labels, flags["max_seq_length"], tokenizer, path
    )
    assert labels == case["label_order"]
    assert [example.guid for example in examples[:2]] == case["first_guids"]
    assert digest(path) == case["outputs"][0] and count == case["outputs"][0]["count"]


@pytest.mark.parametrize("module", ["run_classifier", "extract_features"])
def test_two_lists_are_truncated_in_place_under_the_reference_s_name(module):
    a, b = ["a", "b", "c", "d", "e"], ["x", "y", "z"]
    assert getattr(bert_tf2, module)._truncate_seq_pair(a, b, 5) is None
    assert (a, b) == (["a", "b", "c"], ["x", "y"])


WORDS = st.lists(st.sampled_from([*"abcdefgh", "\u200b"]), max_size=9)  # the last one has no token


@given(WORDS, st.none() | WORDS, st.integers(0, 20))
def test_features_are_those_of_removing_one_token_after_another(tokenizer, words_a, words_b, length):
    """From the longer text, or the second. A second text of which nothing is left is ignored; delimiters must fit."""
    example = InputExample("g", " ".join(words_a), None if words_b is None else " ".join(words_b), "y")
    a, b = ([word for word in words or () if word.isalpha()] for words in (words_a, words_b))
    room = length - (3 if b else 2)
    if room < 0:
        words = f"max_seq_length={length}: at least {length - room}"
        refuses(words, classification.convert_single_example, 9, example, ["x", "y"], length, tokenizer)
        return
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    tokens = [["[CLS]", *a, "[SEP]"], [*b, "[SEP]"] if b else []]
    features = classification.convert_single_example(9, example, ["x", "y"], length, tokenizer)
    padding = [0] * (length - len(tokens[0] + tokens[1]))
    assert features.input_ids == tokenizer.convert_tokens_to_ids(tokens[0] + tokens[1]) + padding
    assert features.segment_ids == [0] * len(tokens[0]) + [1] * len(tokens[1]) + padding
    assert features.input_mask == [1] * len(tokens[0] + tokens[1]) + padding and features.label_id == 1
    for labels in (["z"], [0, 1]):
        refuses("example g: 'y'", classification.convert_single_example, 9, example, labels, length, tokenizer)


def test_scores_and_several_labels_in_records(tokenizer, tmp_path):
    examples, path = [InputExample("g", "a", "b", "3.8"), InputExample("h", "a", "b", "5")], str(tmp_path / "records")
    assert classification.file_based_convert_examples_to_features(examples, [], 8, tokenizer, path) == 2
    rows = map(tf.train.Example.FromString, tf.data.TFRecordDataset(path).as_numpy_iterator())
    assert [row.features.feature["label_ids"].float_list.value[0] for row in rows] == [np.float32(3.8), 5.0]
    several = [InputExample("g", "a", None, ("sad", "fun")), InputExample("h", "a", None, ())]
    features = classification.convert_examples_to_features(several, ["fun", "long", "sad"], 8, tokenizer)
    assert [classification.as_record(feature)["label_ids"] for feature in features] == [[1, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize("labels", [np.array([0, 1]), np.array(["no", "yes"]), [0, 1], ("no", "yes")], ids=repr)
def test_labels_are_an_array_of_pandas_or_numbers(labels, tokenizer, tmp_path):
    """`table["label"].unique()`, and [0, 1], as in notebooks; the label is then of the same type."""
    examples = [InputExample(None, "a", None, labels[number]) for number in (1, 0)]
    features = classification.convert_examples_to_features(examples, labels, 8, tokenizer)
    assert [feature.label_id for feature in features] == [1, 0]
    classification.file_based_convert_examples_to_features(examples, labels, 8, tokenizer, str(tmp_path / "records"))
    sizes = {"max_seq_length": 8, "vocab_size": 100, "type_vocab_size": 2, "num_labels": 2}
    (batch,) = read_records([str(tmp_path / "records")], records.CLASSIFICATION, sizes, 2)
    assert batch["label_ids"].numpy().tolist() == [1, 0]


def test_a_label_of_another_type_and_a_text_that_is_none_are_named(tokenizer):
    for label, labels, words in (
        (1, ["0", "1"], "example g: label 1 int str"),
        ("1", [0, 1], "example g: label '1' str int"),
        (2, [0, 1], "example g: unknown label 2 0, 1"),
    ):
        example = InputExample("g", "a", None, label)
        refuses(words, classification.convert_single_example, 0, example, labels, 8, tokenizer)
    example = InputExample("g", "a", None, "0")
    refuses("label_list set list", classification.convert_single_example, 0, example, {"0", "1"}, 8, tokenizer)
    for texts in ((float("nan"), None), ("a", float("nan"))):
        example = InputExample("g", *texts, "1")
        refuses("example g: nan", classification.convert_single_example, 0, example, ["0", "1"], 8, tokenizer)


def test_examples_that_fill_a_batch(tokenizer, tmp_path):
    """Forks append them for TPUs; and make features by hand, in the reference's order."""
    examples = [InputExample("g", "a", None, "1"), run_classifier.PaddingInputExample()]
    features = run_classifier.convert_examples_to_features(examples, ["0", "1"], 4, tokenizer)
    assert [feature.is_real_example for feature in features] == [True, False]
    zeros = run_classifier.InputFeatures([0] * 4, [0] * 4, [0] * 4, 0, False)
    assert features[1] == zeros and not zeros.is_real_example
    path = str(tmp_path / "records")
    run_classifier.file_based_convert_examples_to_features(examples, ["0", "1"], 4, tokenizer, path)
    rows = map(tf.train.Example.FromString, tf.data.TFRecordDataset(path).as_numpy_iterator())
    assert [row.features.feature["is_real_example"].int64_list.value[0] for row in rows] == [1, 0]
