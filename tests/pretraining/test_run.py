"""run_pretraining.py: a training with an evaluation of held-out records, what it keeps, continues, and refuses."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from command_lines import ROOT
from documented import command_line, commands_in, section
from mutations import record_of
from pretraining_text import VOCABULARY
from refused import message_of
from small_models import PREDICTIONS, small_batch, tiny_config
from small_trainings import saved
from tensorboard.backend.event_processing import event_accumulator
from unmasked_data import LENGTH, make, text, training_options, write

from bert_tf2 import commands, heads
from bert_tf2.optimization import learning_rate_at
from bert_tf2.pretraining import manifest, predict_masked
from bert_tf2.pretraining import run as pretraining
from bert_tf2.support import files
from bert_tf2.weights import checkpoint, names

POOLER = {row.reference for row in names.POOLER}
SENTENCES = {row.reference for row in names.NEXT_SENTENCE}
CONFIG = tiny_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH)
RECORDS = {
    **{f"r-0000{number}-of-00003": {"seed": number + 1, "num_documents": 30} for number in range(3)},
    "words": {"objective": "mlm"},
    "longer": {"max_seq_length": 40},
    "unmasked": {"dynamic_masking": True},
    "unmasked_words.gz": {"dynamic_masking": True, "objective": "mlm"},
}
HELD_OUT = "r-00002-of-00003"
SETTINGS = {"input_file": "r-*", "eval_input_file": HELD_OUT, "learning_rate": 1e-2, "eval_batch_size": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Records, a vocabulary, and other files."""
    place = tmp_path_factory.mktemp("records")
    for name, changes in RECORDS.items():
        make(place, name, **{"dynamic_masking": False, **changes})
    (place / "link").symlink_to(HELD_OUT)
    (place / "empty").write_bytes(b"")
    (place / "huge").write_bytes((place / HELD_OUT).read_bytes() + record_of(2**60))
    (place / "other.txt").write_text("\n".join(sorted(VOCABULARY)) + "\n")
    return place


@pytest.fixture(scope="module")
def trained(folder):
    """The folder of a training with evaluations of held-out records, and its results."""
    options = training_options(folder, "trained", **SETTINGS, eval_steps=2, num_train_steps=6, do_eval=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder / "trained", pretraining.run(options)


@pytest.fixture
def pretrain(folder, tmp_path, monkeypatch):
    """Runs the script with a new output folder, in the folder of the records; returns the results."""
    monkeypatch.chdir(folder)

    def run(name="run", **changes):
        options = vars(training_options(folder, **{**SETTINGS, "output_dir": f"{tmp_path}/{name}", **changes}))
        return commands.call("run_pretraining", **options)

    return run


EVALUATES = {"do_train": False, "do_eval": True}


def test_results_and_the_best_weights(trained, pretrain):
    folder, results = trained
    assert results["masked_lm_perplexity"] == pytest.approx(math.exp(results["masked_lm_loss"]), rel=1e-5)
    lines = [line.split(" = ") for line in (folder / "eval_results.txt").read_text().splitlines()]
    assert [name for name, _ in lines] == [
        *("global_step", "loss", "masked_lm_accuracy", "masked_lm_loss", "masked_lm_perplexity"),
        *("next_sentence_accuracy", "next_sentence_loss"),
    ]
    assert lines[0][1] == "6" and float(lines[1][1]) == pytest.approx(results["loss"])
    # Every row is read once, in batches of any size.
    again = pretrain(init_checkpoint=str(folder), eval_batch_size=5, **EVALUATES)
    for name in ("masked_lm_loss", "masked_lm_accuracy", "next_sentence_loss", "next_sentence_accuracy"):
        assert again[name] == pytest.approx(results[name], rel=1e-4)
    seen = json.loads((folder / "best" / "measure.json").read_text())
    assert all((folder / name / "bert_config.json").exists() for name in (".", "best"))
    assert seen["last_step"] == 6 and seen["measure"] == "masked_lm_log_likelihood"
    best = pretrain(output_dir=str(folder / "best"), **EVALUATES)
    assert best["global_step"] == seen["step"] and -best["masked_lm_loss"] == pytest.approx(seen["value"], rel=1e-5)
    events = event_accumulator.EventAccumulator(str(folder / "eval")).Reload()
    assert {event.step for event in events.Tensors("masked_lm_loss")} == {2, 4, 6}
    assert {"masked_lm_accuracy", "masked_lm_perplexity", "next_sentence_loss"} <= {*events.Tags()["tensors"]}


def test_neither_stopping_nor_evaluations_nor_held_out_files_change_a_step(trained, pretrain, tmp_path, log_lines):
    """The weights are those of one call, to the bit."""
    changes = {"num_train_steps": 6, "input_file": "r-00000-of-00003,r-00001-of-00003", "masked_lm_prob": 0.3}
    for stop in (4, 4, 50):  # the second one has nothing to do
        pretrain(stop_at_step=stop, **changes)
        assert int(saved(tmp_path / "run")["global_step"]) == min(stop, 6)
    assert any("--masked_lm_prob=0.3 has no effect" in line for line in log_lines)
    once, twice = saved(trained[0]), saved(tmp_path / "run")
    assert once.keys() == twice.keys() and all((value == twice[name]).all() for name, value in once.items())


def test_masked_words_alone(pretrain, tmp_path, log_lines):
    """Of compressed records without masks; the checkpoint has neither a pooler nor a head for next sentences."""
    records = {"input_file": "unmasked_words.gz", "eval_input_file": None, "vocab_file": "vocab.txt"}
    how = {**records, "objective": "mlm", "do_eval": True, "max_eval_steps": 3}
    results = pretrain(num_warmup_steps=100, **how)
    assert results.keys() == {"global_step", "loss", "masked_lm_accuracy", "masked_lm_loss"}
    assert [line for line in log_lines if "--num_warmup_steps=100" in line and "--num_train_steps=2" in line]
    assert pretrain(**{**how, "do_train": False}) == pytest.approx(results, rel=1e-6)
    found = {*checkpoint.open_weights(f"{tmp_path}/run").shapes}
    assert "cls/predictions/output_bias/adam_m" in found and not found & (POOLER | SENTENCES)
    # Fit for: the answers of a masked-LM head, and a classifier, whose pooler is new.
    model = predict_masked.load_model(CONFIG, f"{tmp_path}/run")
    batch = {name: small_batch()[name] for name in ("input_ids", "input_mask", "masked_lm_positions")}
    assert model(batch).shape == (4, PREDICTIONS, len(VOCABULARY))
    fresh = checkpoint.initialize(heads.ClassifierModel(CONFIG, 2), f"{tmp_path}/run")
    assert "fresh: bert/pooler/dense/bias, bert/pooler/dense/kernel, output_bias, output_weights;" in fresh
    assert "--objective=mlm" in message_of(pretrain, **EVALUATES)


def test_masked_words_are_evaluated_as_with_next_sentences(trained, pretrain):
    """Records with labels are fine too: these are ignored."""
    how = {"init_checkpoint": str(trained[0]), "eval_input_file": None, **EVALUATES}
    both = pretrain(input_file=HELD_OUT, max_eval_steps=2, **how)
    words = pretrain(input_file=HELD_OUT, max_eval_steps=2, objective="mlm", **how)
    for name in ("masked_lm_loss", "masked_lm_accuracy"):
        assert words[name] == pytest.approx(both[name], rel=1e-6)
    assert words["loss"] == pytest.approx(both["loss"] - both["next_sentence_loss"], rel=0.05) and len(words) == 4
    assert len(pretrain(input_file="words", objective="mlm", max_eval_steps=1, **how)) == 4
    found = message_of(pretrain, output_dir=str(trained[0]), objective="mlm")
    assert "--output_dir" in found and "--init_checkpoint" in found  # training would lose the head for sentences


@pytest.mark.slow
def test_the_pooler_of_the_initial_weights_is_kept_as_it_is(trained, pretrain, tmp_path):
    for steps in (2, 3):  # the second one from output_dir
        pretrain(init_checkpoint=str(trained[0]), objective="mlm", input_file="words", num_train_steps=steps)
    before, after = (checkpoint.open_weights(str(place)) for place in (trained[0], tmp_path / "run"))
    assert {*after.shapes} >= POOLER and not SENTENCES & {*after.shapes}
    for name in POOLER:
        np.testing.assert_array_equal(after.get(name), before.get(name))
        assert f"{name}/adam_m" not in after.shapes
    kernel = "bert/encoder/layer_0/output/dense/kernel"
    assert (after.get(kernel) != before.get(kernel)).any()


# Mistakes

FIRST = {"segment_lengths": [3], "next_sentence_labels": [0], "input_ids": [2, 6, 3]}
HUGE = {"max_eval_steps": 100}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_file": "unmasked"}, ["unmasked", "--vocab_file"]),
        ({"input_file": "unmasked_words.gz", "vocab_file": "vocab.txt"}, ["words.gz", "--objective=mlm"]),
        ({"input_file": "words"}, ["words, record 1: ", "next_sentence_labels", "--objective=mlm"]),
        ({"input_file": "unmasked", "vocab_file": "other.txt"}, ["other.txt", "[CLS]"]),
        ({"max_seq_length": 24}, ["record 1: ", "max_seq_length 32"]),
        ({"eval_steps": 2, "eval_input_file": "empty"}, ["empty", "--eval_input_file"]),
        ({"eval_steps": 2, "eval_input_file": "longer"}, ["longer, record 1: ", "max_seq_length"]),
        ({"eval_steps": 2, "eval_input_file": "huge", **HUGE}, ["huge, record ", "bytes"]),  # would end TensorFlow
        ({"input_file": "r-00000-of-00003,r-00001-of-00003", "eval_input_file": "r-00001-of-00003"}, ["r-00001"]),
        ({"input_file": "r-00000-of-00003,r-00001-of-00003", "eval_input_file": "r-*"}, ["r-00000"]),
        ({"input_file": "r-00001-of-00003,r-*", "eval_input_file": "./r-00001-of-00003"}, ["r-00001"]),
        ({"eval_input_file": "r-*"}, ["--input_file=r-*", "--eval_input_file"]),
    ],
    ids=str,
)
def test_what_is_refused_leaves_nothing(pretrain, tmp_path, changes, words):
    found = message_of(pretrain, **changes)
    assert all(word in found for word in words), found
    assert not [*tmp_path.rglob("*.*")]


def test_wrong_settings(folder):
    for changes in ({"eval_steps": 2}, {"stop_at_step": 0}):
        assert next(iter(changes)) in message_of(training_options, folder, input_file="x", **changes)


def test_an_evaluation_looks_at_the_framing_first(trained, pretrain):
    how = {"input_file": "huge", "eval_input_file": None, "init_checkpoint": str(trained[0])}
    assert "huge, record " in message_of(pretrain, **how, **EVALUATES, **HUGE)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"input_ids": None}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"segment_lengths": []}, "segment_lengths"),
        ({"input_ids": None, "segment_lengths": [], "next_sentence_labels": None}, "next_sentence_labels"),
        ({"segment_lengths": [2], "next_sentence_labels": []}, "next_sentence_labels"),
        ({"input_ids": [-2, 6, 3]}, "-2"),
    ],
    ids=str,
)
def test_a_first_record_that_lacks_something_is_named(pretrain, folder, change, word):
    row = {name: values for name, values in {**FIRST, **change}.items() if values is not None}
    path = write(folder / "damaged", [row, row])
    for which in ("input_file", "eval_input_file"):
        found = message_of(pretrain, vocab_file="vocab.txt", **{which: path})
        assert path in found and word in found
        assert "record 1: " in found or row.keys() == {"segment_lengths"}


def test_a_later_record_is_named_when_it_is_read(pretrain, folder):
    path = write(folder / "later", [{**FIRST, "segment_lengths": [count]} for count in (3, 3, 2, 3)])
    found = message_of(pretrain, input_file=path, vocab_file="vocab.txt")
    assert "later, record 3: " in found and "segment_lengths" in found


@pytest.mark.parametrize(
    ("pattern", "held_out", "read"),
    [
        ("./r-*", HELD_OUT, "01"),
        ("r-*", "link", "01"),
        ("r-*", "r-0000[02]*", "1"),
        ("r-00000-of-00003,r-*-of-00003", HELD_OUT, "001"),
        ("r-00000-of-00003,r-00001-of-00003", HELD_OUT, "01"),
    ],
)
def test_a_held_out_file_is_left_out_of_a_pattern(folder, monkeypatch, log_lines, pattern, held_out, read):
    monkeypatch.chdir(folder)
    assert [path[-10] for path in manifest.find(pattern, files.match_files(held_out)).paths] == [*read]
    assert len([line for line in log_lines if "--input_file" in line]) == ("*" in pattern)


# docs/pretraining.md's two lengths in one folder, in small: the numbers of the document -> those of the test.

SMALLER = {
    "num_train_steps": {"1000000": 10}, "stop_at_step": {"900000": 6}, "num_warmup_steps": {"10000": 2},
    "train_batch_size": {"256": 4}, "max_seq_length": {"128": 16, "512": 32}, "learning_rate": {"1e-4": 1e-2},
    "max_predictions_per_seq": {"20": 3, "77": 5},
}  # fmt: skip


@pytest.mark.slow
def test_two_lengths(folder, tmp_path, command_lines):
    (tmp_path / "sample_text.txt").write_text(text(40))
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (tmp_path / "bert_config.json").write_text(CONFIG.to_json_string())
    shown = commands_in(section("pretraining.md", "Two lengths"))
    assert [script for script, _ in shown] == ["create_pretraining_data"] * 2 + ["run_pretraining"] * 2
    for script, flags in shown:
        flags = {name: SMALLER[name][value] if name in SMALLER else value for name, value in flags.items()}
        places = {"/tmp/": f"{tmp_path}/", "$BERT_BASE_DIR": str(tmp_path)}
        for place, here in places.items():
            flags = {name: str(value).replace(place, here) for name, value in flags.items()}
        done = command_lines.run(*command_line(script, flags), cwd=tmp_path)
        assert done.status == 0, done.stderr
    events = event_accumulator.EventAccumulator(str(tmp_path / "two_lengths")).Reload()
    logged = {event.step: float(tf.make_ndarray(event.tensor_proto)) for event in events.Tensors("learning_rate")}
    assert {6, 7, 10} <= logged.keys() and int(saved(tmp_path / "two_lengths")["global_step"]) == 10
    for step, rate in logged.items():  # the schedule of one training
        assert rate == pytest.approx(float(learning_rate_at(step - 1, 1e-2, 10, 2)), rel=1e-5)


# Signals


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_signal_saves_and_the_same_command_goes_on(folder, pretrain, tmp_path, number, log_lines):
    options = training_options(folder, output_dir=f"{tmp_path}/run", input_file="r-*", num_train_steps=1_000_000)
    given = ("bert_config_file", "input_file", "output_dir", "max_seq_length", "max_predictions_per_seq",
             "train_batch_size", "num_train_steps", "num_warmup_steps")  # fmt: skip
    flags = ["--do_train", *(f"--{name}={getattr(options, name)}" for name in given)]
    command, log = [sys.executable, f"{ROOT}/run_pretraining.py", *flags], ""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            for line in process.stderr:
                log += line
                if "Training: 1 of 1,000,000 steps" in line:
                    time.sleep(0.2)
                    process.send_signal(number)
                    break
            log += process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 128 + number and "Traceback" not in log, log
    step = int(saved(tmp_path / "run")["global_step"])
    assert step > 1 and f"stopped after step {step}" in log.splitlines()[-1]
    pretrain(input_file="r-*", eval_input_file=None, num_train_steps=step + 2)
    assert f"Continuing from {tmp_path}/run/model.ckpt-{step} at step {step}" in log_lines
    assert int(saved(tmp_path / "run")["global_step"]) == step + 2
