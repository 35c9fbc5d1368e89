"""Features for classification: the record files of the reference, and small examples by hand."""

from __future__ import annotations

import numpy as np
import pytest
from golden_data import GOLDEN, cases, digest

from bert_tf2 import tokenization
from bert_tf2.data import records
from bert_tf2.finetuning.classification import examples as classification
from bert_tf2.finetuning.classification.examples import DataProcessor, InputExample, get_processor


@pytest.fixture
def tokenizer(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(words) + "\n", encoding="utf-8")
    return tokenization.FullTokenizer(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("case", cases("classifier-features"))
def test_same_records_as_the_reference(case, tmp_path):
    flags = case["flags"]
    processor = get_processor(flags["task_name"])
    read = {"train": processor.get_train_examples, "eval": processor.get_dev_examples}
    examples = read.get(case["part"], processor.get_test_examples)(str(GOLDEN / case["data_dir"]))
    tokenizer = tokenization.FullTokenizer(str(GOLDEN / case["vocab"]), flags["do_lower_case"])
    path = str(tmp_path / case["file_the_original_writes"])
    labels = processor.get_labels()
    count = classification.file_based_convert_examples_to_features(
        examples, labels, flags["max_seq_length"], tokenizer, path
    )
    assert labels == case["label_order"]
    assert [example.guid for example in examples[:2]] == case["first_guids"]
    assert digest(path) == case["outputs"][0]
    assert count == case["outputs"][0]["count"]


def test_a_processor_of_one_s_own_and_features_as_a_list(tmp_path, tokenizer):
    class Own(DataProcessor):
        def get_dev_examples(self, data_dir):
            rows = self._read_tsv(f"{data_dir}/mine.tsv")
            return [InputExample(guid=str(number), text_a=row[1], label=row[0]) for number, row in enumerate(rows)]

        def get_labels(self):
            return ["x", "y"]

    path = tmp_path / "mine.tsv"
    path.write_text('x\t"a b\ny\tc\n', encoding="utf-8")
    processor = Own()
    examples = processor.get_dev_examples(str(tmp_path))
    assert [example.text_a for example in examples] == ['"a b', "c"]
    assert processor._read_tsv(str(path), quotechar='"') == [["x", "a b\ny\tc\n"]]
    with pytest.raises(NotImplementedError):
        processor.get_test_examples(str(tmp_path))
    features = classification.convert_examples_to_features(examples, processor.get_labels(), 5, tokenizer)
    assert [feature.label_id for feature in features] == [0, 1]
    assert features[1].input_ids == [2, 7, 3, 0, 0]


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
    assert features.label_id == 1


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
