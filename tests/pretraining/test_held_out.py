"""Evaluation of pretraining on records that are not trained on: --eval_input_file and --eval_steps."""

import dataclasses
import json
import math

import numpy as np
import pytest
from mutations import record_of
from pretraining_text import VOCABULARY
from refused import message_of
from small_models import tiny_config
from small_trainings import saved
from tensorboard.backend.event_processing import event_accumulator
from unmasked_data import LENGTH, make, training_options

from bert_tf2 import commands, heads
from bert_tf2.pretraining import manifest
from bert_tf2.pretraining import run as pretraining
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import WrongSetting
from bert_tf2.weights import checkpoint


@pytest.fixture
def options(tmp_path):
    """Makes options for a new output folder; the two files have different examples."""
    for name, seed in (("training", 1), ("held_out", 2)):
        make(tmp_path, name, dynamic_masking=False, seed=seed)
    settings = {"input_file": f"{tmp_path}/training", "eval_input_file": f"{tmp_path}/held_out"}
    settings |= {"num_train_steps": 6, "learning_rate": 1e-2, "eval_batch_size": 16}
    return lambda name="run", **changes: training_options(tmp_path, name, **{**settings, **changes})


@pytest.mark.slow
def test_the_best_weights_are_kept_and_a_training_goes_on(options, tmp_path, log_lines):
    results = pretraining.run(options(eval_steps=2, do_eval=True))
    assert results["masked_lm_perplexity"] == pytest.approx(math.exp(results["masked_lm_loss"]), rel=1e-5)
    told = [line for line in log_lines if ", held out: " in line]
    assert [line.split(",")[0] for line in told] == ["step 2", "step 4", "step 6"]
    seen = json.loads((tmp_path / "run" / "best" / "measure.json").read_text())
    assert seen["last_step"] == 6 and seen["measure"] == "masked_lm_log_likelihood"
    best = pretraining.run(options("run/best", do_train=False, do_eval=True))
    assert best["global_step"] == seen["step"]
    assert -best["masked_lm_loss"] == pytest.approx(seen["value"], rel=1e-5)
    events = event_accumulator.EventAccumulator(str(tmp_path / "run" / "eval")).Reload()
    names = set(events.Tags()["tensors"])
    assert {"masked_lm_loss", "masked_lm_accuracy", "masked_lm_perplexity", "next_sentence_loss"} <= names
    pretraining.run(options(eval_steps=2, num_train_steps=8))
    again = json.loads((tmp_path / "run" / "best" / "measure.json").read_text())
    assert again["last_step"] == 8 and again["value"] >= seen["value"]
    assert checkpoint.Checkpoint(str(tmp_path / "run")).global_step == 8


def test_the_evaluation_reads_the_held_out_records_once(options, monkeypatch):
    read, totals = [], []
    compute, track = pretraining.evaluation_results, pretraining.progress.track
    monkeypatch.setattr(pretraining, "evaluation_results", lambda batches: compute(read_by(batches, read)))
    monkeypatch.setattr(pretraining.progress, "track", lambda *given: totals.append(given[2]) or track(*given))
    held_out = pretraining.run(options(do_eval=True))
    rows = sum(read)
    assert 0 < rows < 100 * 16 and rows % 16  # not a whole number of batches
    assert totals == [len(read)]  # the progress tells when it ends
    del read[:]
    same = pretraining.run(options(do_train=False, do_eval=True, eval_batch_size=5))
    assert sum(read) == rows
    for name in ("masked_lm_loss", "masked_lm_accuracy", "next_sentence_loss"):
        np.testing.assert_allclose(same[name], held_out[name], rtol=1e-4)


def read_by(batches, read):
    for batch in batches:
        read.append(len(batch["input_ids"]))
        yield batch


def test_what_is_refused(options, tmp_path):
    with pytest.raises(WrongSetting, match="eval_input_file"):
        options(eval_input_file=None, eval_steps=2)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(UserError, match=r"empty: no records to evaluate on; give others to --eval_input_file"):
        pretraining.run(options(eval_steps=2, eval_input_file=f"{tmp_path}/empty"))
    longer = make(tmp_path, "longer", dynamic_masking=False, max_seq_length=LENGTH + 8)
    with pytest.raises(UserError, match=r"longer, record 1: was made for max_seq_length"):
        pretraining.run(options("other", eval_steps=2, eval_input_file=longer))
    assert not checkpoint.latest_checkpoint(str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("which", "changes"),
    [("held_out", {"eval_steps": 2}), ("training", {"do_train": False, "do_eval": True, "init_checkpoint": "w"})],
)
def test_a_record_that_claims_to_be_huge_does_not_reach_tensorflow(options, tmp_path, changes, which):
    """Its reader would end the process."""
    model = heads.PretrainingModel(tiny_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH))
    checkpoint.save(str(tmp_path / "w"), checkpoint.tf1_variables(model))
    if changes.get("init_checkpoint"):
        changes = {**changes, "init_checkpoint": str(tmp_path / "w")}
    if which == "training":
        changes = {**changes, "eval_input_file": None, "eval_steps": 0}
    with open(tmp_path / which, "ab") as stream:
        stream.write(record_of(2**60))
    with pytest.raises(UserError, match=rf"{which}, record \d+: claims to have"):
        pretraining.run(options(max_eval_steps=100, **changes))
    assert not (tmp_path / "run" / "eval_results.txt").exists()


# A file that is held out is not trained on.


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """The current folder, with four shards `r-0000?-of-00004`."""
    for number in range(4):
        make(tmp_path, f"r-0000{number}-of-00004", dynamic_masking=False, seed=number + 1, num_documents=10)
    (tmp_path / "link").symlink_to("r-00003-of-00004")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "held_out", "read"),
    [
        ("r-*", "r-00003-of-00004", "012"),
        ("./r-*", "r-00003-of-00004", "012"),
        ("r-*", "link", "012"),
        ("r-*", "r-0000[13]*", "02"),
        ("r-00000-of-00004,r-*-of-00004", "r-00003-of-00004", "0012"),
        ("r-00000-of-00004,r-00001-of-00004", "r-00002-of-00004", "01"),
    ],
)
def test_a_held_out_file_is_left_out_of_a_pattern(shards, log_lines, pattern, held_out, read):
    found = manifest.find(pattern, files.match_files(held_out)).paths
    assert [path[-10] for path in found] == [*read]
    told = [line for line in log_lines if "--input_file" in line]
    assert len(told) == ("*" in pattern)


def test_a_training_does_not_read_what_is_held_out(shards, options, log_lines):
    three = ",".join(f"r-0000{number}-of-00004" for number in range(3))
    settings = {"eval_input_file": "r-00003-of-00004", "eval_steps": 2, "num_train_steps": 2}
    pretraining.run(options("pattern", input_file="r-*", **settings))
    (told,) = (line for line in log_lines if "--input_file" in line)
    assert "r-00003-of-00004" in told
    pretraining.run(options("names", input_file=three, **settings))
    found, expected = saved(shards / "pattern"), saved(shards / "names")
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)


@pytest.mark.parametrize(
    ("pattern", "held_out", "named"),
    [
        ("r-00000-of-00004,r-00001-of-00004", "r-00001-of-00004", "r-00001-of-00004"),
        ("r-00000-of-00004,r-00001-of-00004", "r-*", "r-00000-of-00004"),
        ("r-00001-of-00004,r-*", "./r-00001-of-00004", "r-00001-of-00004"),
        ("r-*", "r-*", "r-*"),
    ],
)
def test_what_would_train_on_the_evaluation_is_refused(shards, options, pattern, held_out, named):
    settings = dataclasses.asdict(options(input_file=pattern, eval_input_file=held_out))
    found = message_of(commands.call, "run_pretraining", **settings)
    assert named in found and "--input_file" in found and "--eval_input_file" in found
    assert not (shards / "run").exists()
