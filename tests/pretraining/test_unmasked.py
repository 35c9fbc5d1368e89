"""create_pretraining_data.py --dynamic_masking: what is written, and what inspect_records.py says of it."""

import random

import numpy as np
import pytest
from pretraining_text import VOCABULARY
from unmasked_data import CLS, SEP, make, rows_of, write

from bert_tf2 import pretraining
from bert_tf2.pretraining import inspect_records
from bert_tf2.pretraining.options import InspectRecordsOptions, PretrainingDataOptions
from bert_tf2.tokenization import FullTokenizer


def expected(path, tokenizer, options):
    """The rows as `make_instances` makes them, token by token."""
    rows = []
    for instance in pretraining.make_instances([path], tokenizer, options, random.Random(options.random_seed)):
        assert instance.masked_lm_positions == []
        length_a, length_b = instance.segment_ids.count(0), instance.segment_ids.count(1)
        row = {
            "input_ids": tokenizer.convert_tokens_to_ids(instance.tokens),
            "segment_lengths": [length_a, length_b] if length_b else [length_a],
        }
        if options.objective == "mlm_nsp":
            row["next_sentence_labels"] = [int(instance.is_random_next)]
        rows.append(row)
    return rows


@pytest.mark.parametrize("changes", [{}, {"objective": "mlm"}], ids=str)
@pytest.mark.parametrize(("length", "seed"), [(5, 1), (32, 2), (300, 3)])
def test_records_are_the_examples_of_make_instances(tmp_path, changes, length, seed):
    settings = {"max_seq_length": length, "dupe_factor": 2, "random_seed": seed, **changes}
    path = make(tmp_path, seed=seed, num_documents=20, **settings)
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"))
    options = PretrainingDataOptions(dynamic_masking=True, **settings)
    rows = rows_of(path)
    assert len(rows) > 20
    assert rows == expected(str(tmp_path / "text.txt"), tokenizer, options)


def test_what_is_logged(tmp_path, log_lines):
    make(tmp_path, dupe_factor=10)
    logged = "\n".join(log_lines)
    assert "--dupe_factor=10: with --dynamic_masking" in logged
    log_lines.clear()
    make(tmp_path, dupe_factor=2)
    assert not any("dupe_factor" in line for line in log_lines)


# inspect_records.py


def inspected(path, **settings) -> str:
    return "\n".join(inspect_records.run(InspectRecordsOptions(input_file=str(path), **settings)))


def test_a_report(tmp_path):
    path = make(tmp_path)
    rows = rows_of(path)
    report = inspected(path, vocab_file=str(tmp_path / "vocab.txt"), show=1)
    tokens = [len(row["input_ids"]) for row in rows]
    assert f"{len(rows)} unmasked pretraining records in 1 file" in report
    assert f"{np.mean(tokens):.1f} tokens on average, of {max(tokens)} (the longest)" in report
    assert f"{1 - sum(tokens) / max(tokens) / len(tokens):.1%} of {max(tokens) * len(tokens):,} positions" in report
    assert "no masks: drawn in training" in report
    share = np.mean([row["next_sentence_labels"][0] for row in rows])
    assert f"{share:.1%} of the second texts are random" in report
    assert "masked tokens per record" not in report
    *_, facts, example = report.splitlines()
    assert facts.startswith(f"{path}, record 1: {tokens[0]} tokens, no masks, the second text ")
    assert example.strip().replace(" ", "") == "".join(
        VOCABULARY[i].replace("##", "") for i in rows[0]["input_ids"]
    )  # fmt: skip


def test_a_report_without_pairs(tmp_path):
    report = inspected(write(tmp_path / "x", [{"input_ids": [CLS, 6, SEP], "segment_lengths": [3]}]), show=1)
    assert "random" not in report
    assert report.endswith(f"{tmp_path}/x, record 1: 3 tokens, no masks\n  {CLS} 6 {SEP}")
