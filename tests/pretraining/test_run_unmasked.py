"""run_pretraining.py with records that hold no masks."""

import dataclasses

import numpy as np
import pytest
from pretraining_text import VOCABULARY
from refused import message_of
from unmasked_data import make, training_options, write

from bert_tf2 import commands
from bert_tf2.data import records
from bert_tf2.pretraining import dynamic_masking
from bert_tf2.pretraining import run as pretraining
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint


@pytest.fixture
def options(tmp_path):
    """Makes options for a new output folder."""
    settings = {"input_file": make(tmp_path), "vocab_file": str(tmp_path / "vocab.txt"), "do_lower_case": True}
    settings |= {"do_eval": True, "eval_batch_size": 4, "max_eval_steps": 2}
    return lambda name="run", **changes: training_options(tmp_path, name, **{**settings, **changes})


@pytest.mark.slow
def test_training_evaluation_and_continuation(options, tmp_path, monkeypatch):
    seeds = []
    masker = dynamic_masking.Masker

    def noted(*arguments, **named):
        seeds.append(named["seeds"])
        return masker(*arguments, **named)

    monkeypatch.setattr(dynamic_masking, "Masker", noted)
    first = pretraining.run(options())
    assert pretraining.run(options(do_train=False)) == pytest.approx(first, rel=1e-6)
    assert pretraining.run(options("again")) == pytest.approx(first, rel=1e-6)
    training, evaluation = (12345, 1), (12345, 0)
    assert seeds == [training, evaluation, evaluation, training, evaluation]
    del seeds[:]
    goes_on = pretraining.run(options(num_train_steps=4))
    assert seeds == [training, evaluation]
    assert goes_on["global_step"] == 4
    assert all(np.isfinite(value) for value in goes_on.values())
    assert int(checkpoint.Checkpoint(str(tmp_path / "run")).get("global_step")) == 4


def test_without_a_vocabulary_nothing_is_built(options, monkeypatch):
    monkeypatch.setattr(pretraining, "build_model", lambda *arguments: pytest.fail("built"))
    with pytest.raises(UserError, match=r"out: its records hold no masks .* give the vocabulary .* --vocab_file"):
        pretraining.run(options(vocab_file=None))


def test_a_probability_without_effect(options, tmp_path, log_lines):
    static = make(tmp_path, "static", dynamic_masking=False)
    pretraining.run(options(input_file=static, masked_lm_prob=0.3, do_eval=False, num_train_steps=1))
    assert "--masked_lm_prob=0.3 has no effect: the records hold masks" in log_lines


def test_a_bad_record_is_named(options, tmp_path):
    lengths = {"input_ids": 3, "segment_lengths": 1, "next_sentence_labels": 1}
    kind = records.RecordKind("any", {name: records.Feature("int64", length) for name, length in lengths.items()})
    rows = [{"input_ids": [2, 6, 3], "segment_lengths": [n], "next_sentence_labels": [0]} for n in (3, 3, 2, 3)]
    records.write_records(f"{tmp_path}/y", kind, rows)
    with pytest.raises(UserError, match="y, record 3: the sum of segment_lengths is 2, and the record has 3 tokens"):
        pretraining.run(options(input_file=f"{tmp_path}/y"))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"segment_lengths": [3], "next_sentence_labels": [0]}, "input_ids"),
        ({"segment_lengths": [3], "next_sentence_labels": [0], "input_ids": []}, "input_ids"),
        ({"segment_lengths": [], "next_sentence_labels": [0], "input_ids": [2, 6, 3]}, "segment_lengths"),
        ({"segment_lengths": []}, "next_sentence_labels"),
        ({"segment_lengths": [2], "next_sentence_labels": [], "input_ids": [2, 6, 3]}, "next_sentence_labels"),
        ({"segment_lengths": [3], "next_sentence_labels": [0], "input_ids": [-2, 6, 3]}, "-2"),
    ],
    ids=str,
)
@pytest.mark.parametrize("evaluates", [False, True])
def test_a_first_record_that_lacks_something_is_named(options, tmp_path, row, words, evaluates):
    path = write(tmp_path / "damaged", [row, row])
    which = {"eval_input_file" if evaluates else "input_file": path}
    settings = dataclasses.asdict(options(**which))
    found = message_of(commands.call, "run_pretraining", **settings)
    assert "damaged" in found and words in found
    if row.keys() != {"segment_lengths"}:
        assert f"{path}, record 1: " in found
        assert f"{path}, record 1: " in message_of(commands.call, "inspect_records", input_file=path)


def test_masked_words_only_in_compressed_records(options, tmp_path):
    path = make(tmp_path, "mlm.gz", objective="mlm")
    results = pretraining.run(options(input_file=path, objective="mlm"))
    assert results.keys() == {"loss", "masked_lm_loss", "masked_lm_accuracy", "global_step"}
    with pytest.raises(UserError, match=r"mlm\.gz: its records hold no next_sentence_labels; give --objective=mlm$"):
        pretraining.run(options("other", input_file=path))


def test_another_vocabulary_is_refused(options, tmp_path):
    (tmp_path / "other.txt").write_text("\n".join(sorted(VOCABULARY)) + "\n")
    with pytest.raises(UserError, match=r"other\.txt: \[CLS\] is entry .* begins with .*; give the vocabulary that"):
        pretraining.run(options(vocab_file=str(tmp_path / "other.txt")))


def test_records_that_do_not_fit_leave_nothing_in_the_folder(options, tmp_path):
    static = make(tmp_path, "static", dynamic_masking=False)
    with pytest.raises(UserError, match="was made for max_seq_length 32"):
        pretraining.run(options(input_file=static, max_seq_length=24))
    assert not [path.name for path in (tmp_path / "run").iterdir()]  # another config would be refused there
