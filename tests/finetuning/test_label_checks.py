"""Labels that are probably a mistake, by themselves and in the tables of run_classifier.py and run_ner.py."""

from __future__ import annotations

import types

import pytest
from ner_data import write_to
from refused import message_of

from bert_tf2.finetuning import ner
from bert_tf2.finetuning.classification.examples import get_processor
from bert_tf2.finetuning.classification.tasks import TsvLayout
from bert_tf2.finetuning.ner.run import NerTask

ONE = TsvLayout(text_a="1", label="2", header=False)
SEVERAL = TsvLayout(text_a="1", label="2", header=False, separator=",")


def write(folder, *rows: str) -> str:
    """Writes train.tsv; | stands for TAB."""
    (folder / "train.tsv").write_text("".join(row.replace("|", "\t") + "\n" for row in rows))
    return str(folder)


@pytest.mark.parametrize(
    ("layout", "labels", "expected"),
    [
        (ONE, ["Yes", "no", "yes", "no"], "row 3: the label 'yes' and 'Yes' of row 1 are two classes"),
        (ONE, ["no", "yes", "no", "yes "], "row 4: the label 'yes ' and 'yes' of row 2"),
        (ONE, ["label", "yes", "no"], "row 1: no other row has the label 'label'; if this row is a header, leave out"),
        (ONE, ["a;b", "a", "b"], "row 1: 'a;b' is one label here, although other rows have its parts; if a text may"),
        (ONE, ["a,b", "b,a"], "give --multi_label --label_separator=','"),
        (SEVERAL, ["a;b", "b,a"], "give --label_separator=';'"),
        (SEVERAL, ["a/b", "b/c", "c"], "every row has exactly one label: if labels are not separated by ',' there"),
        (ONE, ["yes", "no", "no"], None),
        (ONE, ["Sci/Tech", "Arts, Music", "Sci/Tech", "Sports", "Sports"], None),
        (SEVERAL, ["a", "", "b"], None),
        (SEVERAL, ["c,b", "b,a", "a", "b"], None),
    ],
)
def test_doubtful_labels_are_told_once(tmp_path, log_lines, layout, labels, expected):
    folder = write(tmp_path, *(f"a film|{label}" for label in labels))
    get_processor("tsv", tsv=layout).get_train_examples(folder)
    told = [line for line in log_lines if expected and f"{folder}/train.tsv, " in line and expected in line]
    assert len(told) == (expected is not None), log_lines
    assert expected or log_lines == []


def test_rows_without_a_text(tmp_path, log_lines):
    folder = write(tmp_path, "a film|yes", " |no", *["|no"] * 4, "a book|yes")
    assert len(get_processor("tsv", tsv=ONE).get_train_examples(folder)) == 7
    (line,) = log_lines
    assert f"{folder}/train.tsv: column 1 has no text in row 2, 3, 4 and 2 more; fill it in, or leave" in line


def test_numbers_of_words_are_no_words(tmp_path):
    text = "# text = x\n1\tAnn\tB-PER\n2-3\twon't\tO\n2\two\tO\n3\tn't\tO\n3.1\tgo\tO\n\n1\tYes\tO\n"
    path = write_to(tmp_path, text)
    message = message_of(ner.read_conll, path)
    assert message.startswith(f"{path}: column 1 holds the numbers of the words and not the words")
    assert message.endswith("--word_column=2")
    assert ner.read_conll(path, word_column=1)[1].words == ["Yes"]
    assert message_of(ner.read_conll, path, has_labels=False) == message
    for words in ("1 O\n", "1 O\n3 O\n", "1 O\nbook O\n", "1 O\n2 O\n\nAnn O\n"):
        assert ner.read_conll(write_to(tmp_path, words))


def test_tags_that_differ_in_case(tmp_path, log_lines):
    path = write_to(tmp_path, "Ann\tB-PER\nis\tO\n\nBob\tB-Per\n")
    task = NerTask(types.SimpleNamespace(output_dir="none", init_checkpoint=None, do_train=True, train_file=path))
    task.examples = {"train": ner.read_conll(path)}
    assert task.find_labels().labels == ("O", "B-PER", "B-Per")
    (line,) = log_lines
    assert f"{path}, row 4: the label 'B-Per' and 'B-PER' of row 1 are two classes" in line
