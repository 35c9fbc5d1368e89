"""Values that seem wrong and are not, beside those that are."""

from __future__ import annotations

from bad_calls import write_records

from bert_tf2.data import records
from bert_tf2.finetuning import squad


def test_ids_may_repeat_where_nothing_is_kept_by_them(folder):
    assert len(squad.read_squad_examples(str(folder / "doubled.json"), True)) == 8


def test_a_regression_score_that_no_square_has(tmp_path):
    path = str(tmp_path / "records")
    row = {name: [0] for name in records.REGRESSION.features}
    for score, fits in ((-3.5, True), (1e30, False), (float("nan"), False)):
        records.write_records(path, records.REGRESSION, [{**row, "label_ids": [score]}])
        sizes = {"max_seq_length": 1, "vocab_size": 5, "type_vocab_size": 2}
        assert (records.find_fault([path], records.REGRESSION, sizes) is None) == fits


def test_weights_between_0_and_1_are_fine(tmp_path):
    write_records(tmp_path / "records", masked_lm_weights=[0.25, 1.0, 3.0, 0.0])
    sizes = {"max_seq_length": 32, "max_predictions_per_seq": 4, "vocab_size": 37, "type_vocab_size": 2}
    data = records.read_records([str(tmp_path / "records")], records.PRETRAINING, sizes, 2)
    assert [batch["masked_lm_weights"].shape for batch in data] == [(2, 4)]
