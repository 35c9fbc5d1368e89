"""Features for classification: the record files of the reference, and small examples by hand."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from golden_data import GOLDEN, cases, digest
from hypothesis import given
from hypothesis import strategies as st

from bert_tf2 import tokenization
from bert_tf2.finetuning import classification
from bert_tf2.finetuning.classification import DataProcessor, InputExample, get_processor


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("".join(f"{word}\n" for word in [*tokenization.SPECIAL_TOKENS, *"abcdefgh"]), encoding="utf-8")
    return tokenization.FullTokenizer(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("case", cases("classifier-features"))
def test_same_records_as_the_reference(case, tmp_path):
    flags = case["flags"]
    processor = get_processor(flags["task_name"])
    read = {"train": processor.get_train_examples, "eval": processor.get_dev_examples}
    examples = read.get(case["part"], processor.get_test_examples)(str(GOLDEN / case["data_dir"]))
    tokenizer = tokenization.FullTokenizer(str(GOLDEN / case["vocab"]), flags["do_lower_case"])
    path, labels = str(tmp_path / case["file_the_original_writes"]), processor.get_labels()
    count = classification.file_based_convert_examples_to_features(
        examples, labels, flags["max_seq_length"], tokenizer, path
    )
    assert labels == case["label_order"]
    assert [example.guid for example in examples[:2]] == case["first_guids"]
    assert digest(path) == case["outputs"][0] and count == case["outputs"][0]["count"]


def test_a_processor_of_one_s_own_and_features_as_a_list(tmp_path, tokenizer):
    class Own(DataProcessor):
        def get_dev_examples(self, data_dir):
            rows = self._read_tsv(f"{data_dir}/mine.tsv")
            return [InputExample(guid=str(number), text_a=row[1], label=row[0]) for number, row in enumerate(rows)]

        def get_labels(self):
            return ["x", "y"]

    (tmp_path / "mine.tsv").write_text('x\t"a b\ny\tc\n', encoding="utf-8")
    processor = Own()
    examples = processor.get_dev_examples(str(tmp_path))
    assert [example.text_a for example in examples] == ['"a b', "c"]
    assert processor._read_tsv(str(tmp_path / "mine.tsv"), quotechar='"') == [["x", "a b\ny\tc\n"]]
    with pytest.raises(NotImplementedError):
        processor.get_test_examples(str(tmp_path))
    features = classification.convert_examples_to_features(examples, processor.get_labels(), 5, tokenizer)
    assert [feature.label_id for feature in features] == [0, 1] and features[1].input_ids == [2, 7, 3, 0, 0]


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 20))
def test_truncation_is_that_of_removing_one_token_after_another(length_a, length_b, max_length):
    tokens, wanted = ["abcdefghi"[:length_a], "jklmnopqr"[:length_b]], [length_a, length_b]
    while sum(wanted) > max_length:
        wanted[wanted[0] <= wanted[1]] -= 1
    lists = [*map(list, tokens)]
    classification.truncate_seq_pair(*lists, max_length)
    assert ["".join(found) for found in lists] == [text[:length] for text, length in zip(tokens, wanted, strict=True)]


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
def test_features_by_hand(text_a, text_b, max_seq_length, ids, segments, tokenizer):
    example = InputExample("g", text_a, text_b, "y")
    features = classification.convert_single_example(9, example, ["x", "y"], max_seq_length, tokenizer)
    mask = [1] * sum(1 for value in ids if value) + [0] * ids.count(0)
    assert (features.input_ids, features.segment_ids, features.input_mask) == (ids, segments, mask)
    assert features.label_id == 1


def test_scores_and_several_labels_in_records(tokenizer, tmp_path):
    examples, path = [InputExample("g", "a", "b", "3.8"), InputExample("h", "a", "b", "5")], str(tmp_path / "records")
    assert classification.file_based_convert_examples_to_features(examples, [], 8, tokenizer, path) == 2
    rows = map(tf.train.Example.FromString, tf.data.TFRecordDataset(path).as_numpy_iterator())
    assert [row.features.feature["label_ids"].float_list.value[0] for row in rows] == [np.float32(3.8), 5.0]
    several = [InputExample("g", "a", None, ("sad", "fun")), InputExample("h", "a", None, ())]
    features = classification.convert_examples_to_features(several, ["fun", "long", "sad"], 8, tokenizer)
    assert [classification.as_record(feature)["label_ids"] for feature in features] == [[1, 0, 1], [0, 0, 0]]
