"""--objective=mlm: which sentences an example has, what the records hold, how much is masked."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
from pretraining_text import CORPUS, LETTERS, VOCABULARY

from bert_tf2 import pretraining
from bert_tf2.data import record_checks, records
from bert_tf2.pretraining import (
    CreatePretrainingDataOptions,
    PretrainingDataOptions,
    example_files,
    examples,
    inspect_records,
    sharded,
)
from bert_tf2.support.errors import UserError

SIZES = {"max_seq_length": 24, "max_predictions_per_seq": 4, "vocab_size": len(VOCABULARY), "type_vocab_size": 2}


def options_for(tmp_path, name="out.tfrecord", **changes) -> CreatePretrainingDataOptions:
    contents = {"vocab.txt": "\n".join(VOCABULARY) + "\n", "text.txt": CORPUS * 6, "bert_config.json": "{}"}
    for file, text in contents.items():
        if not (tmp_path / file).exists():
            (tmp_path / file).write_text(text)
    settings = {"max_seq_length": 24, "max_predictions_per_seq": 4, "do_lower_case": True, "objective": "mlm"}
    return CreatePretrainingDataOptions(
        input_file=f"{tmp_path}/text.txt",
        output_file=f"{tmp_path}/{name}",
        vocab_file=f"{tmp_path}/vocab.txt",
        **{**settings, **changes},
    )


def rows_of(path, kind=records.MASKED_WORDS):
    return [*records.read_records([str(path)], kind, SIZES, 1).as_numpy_iterator()]


def spans(lengths, num_tokens):
    bounds = [0, *itertools.accumulate(lengths)]
    return [*examples.spans(bounds, 0, len(lengths), num_tokens)]


@pytest.mark.parametrize(
    ("lengths", "num_tokens", "expected"),
    [
        ([3, 3, 3], 6, [(0, 6), (6, 9)]),
        ([3, 3, 3], 5, [(0, 3), (3, 6), (6, 9)]),
        ([9], 9, [(0, 9)]),
        ([2, 7, 2], 3, [(0, 2), (2, 5), (5, 8), (8, 11)]),  # the rest of the long one, and the next sentence
        ([2, 6, 3], 3, [(0, 2), (2, 5), (5, 8), (8, 11)]),
        ([1], 1, [(0, 1)]),
        ([], 4, []),
    ],
)
def test_where_examples_begin_and_end(lengths, num_tokens, expected):
    assert spans(lengths, num_tokens) == expected


def test_no_token_is_lost_and_only_long_sentences_are_cut():
    rng = random.Random(1)
    for _ in range(300):
        lengths = rng.choices(range(1, 30), k=rng.randint(1, 40))
        num_tokens = rng.randint(1, 40)
        found, bounds = spans(lengths, num_tokens), [0, *itertools.accumulate(lengths)]
        assert [token for span in found for token in range(*span)] == [*range(sum(lengths))]
        for (start, stop), following in itertools.zip_longest(found, found[1:]):
            assert 0 < stop - start <= num_tokens
            inside = next(i for i in range(len(lengths)) if bounds[i] < stop <= bounds[i + 1])
            if stop != bounds[inside + 1]:  # within a sentence, which is longer than what it could have
                assert stop - start == num_tokens and bounds[inside] <= start
            elif following:
                assert bounds[inside + 2] - start > num_tokens  # the next one has no room


def test_an_example_by_hand(tmp_path, tokenizer):
    path = tmp_path / "text.txt"
    path.write_text("a b c d\ne f\ng h i\nj k l m n o p q r\n")
    options = PretrainingDataOptions(
        max_seq_length=8,
        max_predictions_per_seq=1,
        short_seq_prob=0.0,
        masked_lm_prob=0.0,
        objective="mlm",
        dupe_factor=1,
    )
    made = pretraining.make_instances([str(path)], tokenizer, options, random.Random(3))
    texts = []
    for instance in made:
        tokens = instance.tokens
        ((position,), (label,)) = instance.masked_lm_positions, instance.masked_lm_labels
        tokens[position] = label
        texts.append(" ".join(tokens))
        assert instance.is_random_next is None
        assert instance.segment_ids == [0] * len(tokens)
    assert sorted(texts) == [
        "[CLS] a b c d e f [SEP]",
        "[CLS] g h i [SEP]",
        "[CLS] j k l m n o [SEP]",
        "[CLS] p q r [SEP]",
    ]


def test_what_is_written(tmp_path, log_lines):
    example_files.run(options_for(tmp_path, dupe_factor=3))
    rows = rows_of(tmp_path / "out.tfrecord")
    assert len(rows) > 50
    for row in rows:
        length = int(row["input_mask"].sum())
        ids = row["input_ids"][0][:length]
        assert (ids[0], ids[-1], (ids == 3).sum()) == (2, 3, 1)  # [CLS] and one [SEP]
        assert not row["segment_ids"].any()
        used = row["masked_lm_positions"][row["masked_lm_weights"] > 0]
        assert len(used) == min(4, max(1, round(length * 0.15)))
        assert ((used > 0) & (used < length - 1)).all()
    with pytest.raises(UserError, match=r"record 1: has no feature next_sentence_labels.*give --objective=mlm$"):
        rows_of(tmp_path / "out.tfrecord", records.PRETRAINING)
    assert not any("second text" in line for line in log_lines)
    assert any("--objective=mlm" in line for line in log_lines)  # in the command that trains


def test_the_same_flags_the_same_bytes_and_every_pass_other_masks(tmp_path):
    for name in ("a", "b"):
        example_files.run(options_for(tmp_path, name, dupe_factor=2, short_seq_prob=0.0))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    example_files.run(options_for(tmp_path, "c", dupe_factor=2, short_seq_prob=0.0, random_seed=1))
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()
    assert len({row["input_ids"].tobytes() for row in rows_of(tmp_path / "a")}) > 40


def test_shares_of_masks(tmp_path):
    """15 % of the tokens of full examples, of these 80/10/10, every position alike."""
    rng = random.Random(5)
    options = options_for(tmp_path, max_seq_length=102, max_predictions_per_seq=20, short_seq_prob=0.0, dupe_factor=3)
    lines = [" ".join(rng.choices(LETTERS, k=10)) for _ in range(20_000)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    example_files.run(options)
    batches = [batch.features for batch in record_checks.read_all([f"{tmp_path}/out.tfrecord"])]
    features = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    assert len(features["input_ids"]) == 6000 and features["input_mask"].all()
    positions, labels = features["masked_lm_positions"][:, :15], features["masked_lm_ids"][:, :15]
    assert (features["masked_lm_weights"].sum(axis=1) == 15).all()  # of 102
    there = np.take_along_axis(features["input_ids"], positions, axis=1)
    count = there.size
    kept_by_chance = 0.1 / len(VOCABULARY)
    for found, share in (((there == 4), 0.8 + kept_by_chance), ((there == labels), 0.1 + kept_by_chance)):
        assert abs(found.mean() - share) < 4 * (share * (1 - share) / count) ** 0.5
    each = np.bincount(positions.ravel(), minlength=102)
    assert each[0] == each[101] == 0
    assert abs(each[1:101] - 900).max() < 4.5 * (6000 * 0.15 * 0.85) ** 0.5


def test_a_shard_is_an_unsharded_run_on_its_text(tmp_path, in_process):
    words = {"word_boundaries": "spaces", "do_whole_word_mask": True}
    sharded.run(options_for(tmp_path, "out/x", num_shards=3, **words))
    found = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (found["flags"]["objective"], found["flags"]["word_boundaries"]) == ("mlm", "spaces")
    whole = (tmp_path / "text.txt").read_bytes()
    for shard in found["shards"]:
        rows = rows_of(tmp_path / "out" / shard["file"])
        tokens = sum(int(row["input_mask"].sum()) for row in rows)
        assert shard["padding"] == pytest.approx(1 - tokens / 24 / len(rows), abs=1e-6)
        (part,) = shard["text"]
        (tmp_path / "text.txt").write_bytes(whole[part["start"] : part["stop"]])
        example_files.run(options_for(tmp_path, "alone", random_seed=shard["seed"], **words))
        assert (tmp_path / "alone").read_bytes() == (tmp_path / "out" / shard["file"]).read_bytes()


def test_a_manifest_from_before_the_flags_existed_is_of_their_defaults(tmp_path, in_process):
    sharded.run(options_for(tmp_path, "out/x", num_shards=2, objective="mlm_nsp"))
    path = tmp_path / "out" / "manifest.json"
    found = json.loads(path.read_text())
    for name in ("objective", "word_boundaries"):
        del found["flags"][name]
    path.write_text(json.dumps(found))
    with pytest.raises(UserError, match="were made with --objective=mlm_nsp, not mlm;"):
        sharded.run(options_for(tmp_path, "out/x", num_shards=2))
    assert in_process == [0, 1]
    sharded.run(options_for(tmp_path, "out/x", num_shards=2, objective="mlm_nsp"))
    assert in_process == [0, 1]  # both are kept


def test_inspection_knows_them(tmp_path):
    example_files.run(options_for(tmp_path))
    found = inspect_records.run(
        pretraining.options.InspectRecordsOptions(
            input_file=f"{tmp_path}/out.tfrecord", vocab_file=f"{tmp_path}/vocab.txt", show=1
        )
    )
    count = len(rows_of(tmp_path / "out.tfrecord"))
    assert found[0].startswith(f"records   {count} pretraining (masked words only) records in 1 file")
    assert any(line.startswith("masked ") for line in found) and any(line.startswith("replaced ") for line in found)
    assert not any(line.startswith("next ") for line in found)
    shown = next(line for line in found if "out.tfrecord, record 1:" in line)
    assert shown.endswith(" masked") and "second text" not in shown
    assert "most frequent masked words:" in found


def test_the_reference_s_function_writes_them_too(tmp_path, tokenizer):
    options = PretrainingDataOptions(max_seq_length=24, max_predictions_per_seq=4, objective="mlm")
    (tmp_path / "text").write_text(CORPUS)
    instances = pretraining.make_instances([str(tmp_path / "text")], tokenizer, options, random.Random(12345))
    pretraining.write_instance_to_example_files(instances, tokenizer, 24, 4, [str(tmp_path / "ours")])
    given = options_for(tmp_path, "theirs", dupe_factor=10)
    (tmp_path / "text.txt").write_text(CORPUS)
    example_files.run(given)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
