"""create_pretraining_data.py --dynamic_masking: what is written, and what inspect_records.py says of it."""

import os
import random

import numpy as np
import pytest
from pretraining_text import VOCABULARY
from unmasked_data import CLS, SEP, make, rows_of, write

from bert_tf2 import pretraining
from bert_tf2.data import record_checks
from bert_tf2.pretraining import inspect_records, masking
from bert_tf2.pretraining.options import InspectRecordsOptions, PretrainingDataOptions
from bert_tf2.tokenization import FullTokenizer

ROW = {"input_ids": [CLS, 6, 7, SEP, 8, SEP], "segment_lengths": [4, 2], "next_sentence_labels": [1]}


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
        if options.do_whole_word_mask:
            segments = [instance.tokens[1 : length_a - 1], instance.tokens[length_a:-1]]
            starts = (instance._example.start_a, instance._example.start_b)
            kinds = [instance._corpus.kinds[at : at + len(part)] for at, part in zip(starts, segments, strict=True)]
            row["word_lengths"] = word_lengths(segments, kinds if options.word_boundaries == "spaces" else None)
        rows.append(row)
    return rows


def word_lengths(segments, kinds):
    lengths = []
    for number, tokens in enumerate(segments):
        for place, token in enumerate(tokens):
            if kinds:
                inside = place > 0 and kinds[number][place] == masking.CONTINUES
            else:
                inside = lengths and token.startswith("##")
            if inside:
                lengths[-1] += 1
            else:
                lengths.append(1)
    return lengths


SPACES = {"do_whole_word_mask": True, "word_boundaries": "spaces"}
CHANGES = ({}, {"do_whole_word_mask": True}, SPACES, {"objective": "mlm"}, {"objective": "mlm", **SPACES})


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: "-".join(map(str, changes.values())) or "default")
@pytest.mark.parametrize(("length", "seed"), [(5, 1), (32, 2), (300, 3)])
def test_records_are_the_examples_of_make_instances(tmp_path, changes, length, seed):
    settings = {"max_seq_length": length, "dupe_factor": 2, "random_seed": seed, **changes}
    path = make(tmp_path, seed=seed, num_documents=20, **settings)
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"))
    options = PretrainingDataOptions(dynamic_masking=True, **settings)
    rows = rows_of(path)
    assert len(rows) > 20
    assert rows == expected(str(tmp_path / "text.txt"), tokenizer, options)


def test_the_file_is_much_smaller_than_ten_passes_with_masks(tmp_path):
    static = os.path.getsize(make(tmp_path, "static", dynamic_masking=False, dupe_factor=10))
    assert os.path.getsize(make(tmp_path)) < static / 10


def test_what_is_logged(tmp_path, log_lines):
    make(tmp_path, dupe_factor=10)
    logged = "\n".join(log_lines)
    assert "--dupe_factor=10: with --dynamic_masking" in logged
    assert "drawn by run_pretraining.py" in logged
    log_lines.clear()
    make(tmp_path, dupe_factor=2)
    assert not any("dupe_factor" in line for line in log_lines)


# inspect_records.py


def inspected(path, **settings) -> str:
    return "\n".join(inspect_records.run(InspectRecordsOptions(input_file=str(path), **settings)))


def test_a_report(tmp_path):
    path = make(tmp_path, do_whole_word_mask=True)
    rows = rows_of(path)
    report = inspected(path, vocab_file=str(tmp_path / "vocab.txt"), show=1)
    tokens = [len(row["input_ids"]) for row in rows]
    assert f"{len(rows)} unmasked pretraining records in 1 file" in report
    assert f"{np.mean(tokens):.1f} tokens on average, of {max(tokens)} (the longest)" in report
    assert f"{1 - sum(tokens) / max(tokens) / len(tokens):.1%} of {max(tokens) * len(tokens):,} positions" in report
    words = np.mean([len(row["word_lengths"]) for row in rows])
    assert f"no masks: drawn in training, whole words ({words:.1f} per record)" in report
    share = np.mean([row["next_sentence_labels"][0] for row in rows])
    assert f"{share:.1%} of the second texts are random" in report
    assert "most frequent" not in report and "masked tokens per record" not in report
    *_, facts, example = report.splitlines()
    assert facts.startswith(f"{path}, record 1: {tokens[0]} tokens, no masks, the second text ")
    assert example.strip().replace(" ", "") == "".join(
        VOCABULARY[i].replace("##", "") for i in rows[0]["input_ids"]
    )  # fmt: skip


def test_a_report_without_pairs(tmp_path):
    report = inspected(write(tmp_path / "x", [{"input_ids": [CLS, 6, SEP], "segment_lengths": [3]}]), show=1)
    assert "random" not in report
    assert report.endswith(f"{tmp_path}/x, record 1: 3 tokens, no masks\n  {CLS} 6 {SEP}")


def test_a_very_long_record_does_not_pad_all_others(tmp_path, monkeypatch):
    monkeypatch.setattr(record_checks, "_TABLE_BYTES", 5000)
    long = {"input_ids": [6] * 3000, "segment_lengths": [2000, 1000], "next_sentence_labels": [0]}
    path = write(tmp_path / "x", [ROW] * 50 + [long] + [ROW] * 50)
    batches = [*record_checks.read_all([path])]
    assert sum(map(len, batches)) == 101
    assert [batch.first for batch in batches] == [1 + sum(map(len, batches[:i])) for i in range(len(batches))]
    assert sum(batch.features["input_ids"].size for batch in batches) < 101 * 3000 / 2
    assert inspected(path).startswith("records  101 unmasked pretraining records")
