"""run_pretraining.py: a training with an evaluation of held-out records, what it keeps, and refuses."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from command_lines import ROOT
from mutations import record_of
from pretraining_text import VOCABULARY
from refused import message_of, refuses
from small_models import tiny_config
from small_trainings import saved
from tensorboard.backend.event_processing import event_accumulator
from unmasked_data import LENGTH, make, training_options, write

from bert_tf2 import commands, heads
from bert_tf2.data import tfrecords
from bert_tf2.inference import predict_masked
from bert_tf2.optimization import learning_rate_at
from bert_tf2.pretraining import run as pretraining
from bert_tf2.weights import checkpoint, names

POOLER = {row.reference for row in names.POOLER}
SENTENCES = {row.reference for row in names.NEXT_SENTENCE}
CONFIG = tiny_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH)
ZERO, ONE, HELD_OUT = (f"r-0000{number}-of-00003" for number in range(3))
RECORDS = {
    **{name: {"seed": seed, "num_documents": 30} for seed, name in enumerate((ZERO, ONE, HELD_OUT), 1)},
    "words": {"objective": "mlm"},
    "longer": {"max_seq_length": 40},
    "unmasked": {"dynamic_masking": True},
    "unmasked_words.gz": {"dynamic_masking": True, "objective": "mlm"},
}
SETTINGS = {"input_file": "r-*", "eval_input_file": HELD_OUT, "learning_rate": 1e-2, "eval_batch_size": 16}
MEASURES = ["masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy", "next_sentence_loss"]


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

    def run(**changes):
        options = vars(training_options(folder, **{**SETTINGS, "output_dir": f"{tmp_path}/run", **changes}))
        return commands.call("run_pretraining", **options)

    return run


EVALUATES = {"do_train": False, "do_eval": True}


def test_results_and_the_best_weights(trained, pretrain):
    folder, results = trained
    assert results["masked_lm_perplexity"] == pytest.approx(math.exp(results["masked_lm_loss"]), rel=1e-5)
    lines = [line.split(" = ") for line in (folder / "eval_results.txt").read_text().splitlines()]
    assert [name for name, _ in lines] == sorted(["global_step", "loss", "masked_lm_perplexity", *MEASURES])
    assert lines[0][1] == "6" and float(lines[1][1]) == pytest.approx(results["loss"])
    events = event_accumulator.EventAccumulator(str(folder / "eval")).Reload()
    seen = json.loads((folder / "best" / "measure.json").read_text())
    assert seen["last_step"] == 6 and seen["measure"] == "masked_lm_log_likelihood"
    assert all((folder / name / "bert_config.json").exists() for name in (".", "best"))
    best = pretrain(output_dir=str(folder / "best"), eval_batch_size=5, **EVALUATES)  # each row once in any batches
    assert best["global_step"] == seen["step"] and -best["masked_lm_loss"] == pytest.approx(seen["value"], rel=1e-5)
    for name in MEASURES:
        logged = {event.step: float(tf.make_ndarray(event.tensor_proto)) for event in events.Tensors(name)}
        assert logged.keys() == {2, 4, 6} and logged[6] == pytest.approx(results[name], rel=1e-5)
        assert best[name] == pytest.approx(logged[seen["step"]], rel=1e-4)


def test_patience_ends_a_training_and_the_log_has_its_epochs(folder, pretrain, tmp_path, log_lines):
    """With a learning rate of 0 no evaluation is better than the first; the second and the third are the last."""
    pretrain(eval_steps=2, patience=2, learning_rate=0.0, num_train_steps=20)
    assert int(saved(tmp_path / "run")["global_step"]) == 6
    assert any("No better masked_lm_log_likelihood in 2 evaluations" in line for line in log_lines)
    assert any("learning_rate=0" in line for line in log_lines)
    (line,) = [line for line in log_lines if "epochs of" in line]
    size, steps, epochs, total = re.search(
        r"of (\d+) examples: (\d+) .* ([\d.]+) epochs of (\d+) examples", line
    ).groups()
    assert int(total) == sum(sum(map(len, tfrecords.read_blocks(str(folder / name)))) for name in (ZERO, ONE))
    assert float(epochs) == pytest.approx(int(size) * int(steps) / int(total), rel=0.01) and steps == "20"


def test_neither_evaluations_nor_held_out_files_change_a_step(trained, pretrain, tmp_path, log_lines):
    """The weights are the same to the bit; a second call has nothing to do."""
    for stop in (6, 50):
        pretrain(num_train_steps=6, input_file=f"{ZERO},{ONE}", masked_lm_prob=0.3, stop_at_step=stop)
    assert any("masked_lm_prob=0.3 has no effect" in line for line in log_lines)
    found, expected = saved(tmp_path / "run"), saved(trained[0])
    assert found.keys() == expected.keys() and all((value == found[name]).all() for name, value in expected.items())


def test_masked_words_alone(pretrain, tmp_path, log_lines):
    """Records without masks, some of pairs, some compressed; the checkpoint has no pooler and no next sentences."""
    records = {"input_file": "unmasked,unmasked_words.gz", "eval_input_file": None, "vocab_file": "vocab.txt"}
    pretrain(num_warmup_steps=100, objective="mlm", **records)
    assert [line for line in log_lines if "num_warmup_steps=100" in line and "num_train_steps=2" in line]
    source = checkpoint.open_weights(f"{tmp_path}/run")
    found = {*source.shapes}
    assert "cls/predictions/output_bias/adam_m" in found and not found & (POOLER | SENTENCES)
    predict_masked.load_model(CONFIG, source, "float32")  # which needs no other head
    fresh = checkpoint.initialize(heads.ClassifierModel(CONFIG, 2), f"{tmp_path}/run")
    assert "fresh: bert/pooler/dense/bias, bert/pooler/dense/kernel, output_bias, output_weights;" in fresh
    assert "give objective=mlm" in message_of(pretrain, **EVALUATES)


def test_masked_words_are_evaluated_as_with_next_sentences(trained, pretrain):
    """Labels in the records are ignored. Training would lose the head for next sentences."""
    words = pretrain(init_checkpoint=str(trained[0]), objective="mlm", **EVALUATES)
    for name in ("masked_lm_loss", "masked_lm_accuracy"):
        assert words[name] == pytest.approx(trained[1][name], rel=1e-5)
    assert words.keys() == {"global_step", "loss", "masked_lm_accuracy", "masked_lm_loss", "masked_lm_perplexity"}
    refuses("--output_dir --init_checkpoint", pretrain, output_dir=str(trained[0]), objective="mlm")


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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_file": "unmasked"}, "unmasked --vocab_file"),
        ({"input_file": "unmasked_words.gz", "vocab_file": "vocab.txt"}, "words.gz --objective=mlm"),
        ({"input_file": "/dev/null"}, "/dev/null: copy"),
        ({"input_file": "words"}, "words, record 1: next_sentence_labels --objective=mlm"),
        ({"input_file": "words,unmasked", "objective": "mlm"}, "unmasked, record 1: input_mask"),
        ({"input_file": "unmasked", "vocab_file": "other.txt"}, "other.txt [CLS]"),
        ({"eval_steps": 2, "eval_input_file": "empty"}, "empty --eval_input_file"),
        ({"eval_steps": 2, "eval_input_file": "longer"}, "longer, record 1: max_seq_length"),
        ({"eval_steps": 2, "eval_input_file": "huge", "max_eval_steps": 100}, "huge, record bytes"),  # ends TensorFlow
        ({"input_file": f"{ZERO},{ONE}", "eval_input_file": "r-*"}, ZERO),
        ({"input_file": f"{ONE},r-*", "eval_input_file": f"./{ONE}"}, ONE),
        ({"eval_input_file": "r-*"}, "--input_file=r-* --eval_input_file"),
        ({"eval_input_file": None, "eval_steps": 2}, "eval_steps"),
        ({"stop_at_step": 0}, "stop_at_step"),
    ],
    ids=str,
)
def test_what_is_refused_leaves_nothing(pretrain, tmp_path, changes, words):
    refuses(words, pretrain, **changes)
    assert not [*tmp_path.rglob("*.*")]


ROW = {"segment_lengths": [3], "next_sentence_labels": [0], "input_ids": [2, 6, 3]}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"input_ids": []}], "record 1: input_ids"),
        ([{"segment_lengths": []}], "record 1: segment_lengths"),
        ([{"segment_lengths": [2], "next_sentence_labels": []}], "record 1: next_sentence_labels"),
        ([{"input_ids": [-2, 6, 3]}], "record 1: -2"),
        ([{}, {}, {"segment_lengths": [2]}, {}], "record 3: segment_lengths"),  # is read later
    ],
    ids=str,
)
def test_a_record_without_masks_that_lacks_something_is_named(pretrain, folder, rows, words):
    path = write(folder / "damaged", [ROW | row for row in rows])
    for which in ("input_file", "eval_input_file")[len(rows) > 1 :]:  # the masks of a training are drawn in its steps
        refuses(f"damaged {words}", pretrain, vocab_file="vocab.txt", eval_steps=1, **{which: path})


@pytest.mark.parametrize(
    ("pattern", "held_out", "read"),
    [
        ("./r-*", HELD_OUT, f"./{ZERO}, ./{ONE}"),
        ("r-*", "link", f"{ZERO}, {ONE}"),
        ("r-*", "r-0000[02]*", ONE),
        (f"{ZERO},{ONE}", HELD_OUT, f"{ZERO}, {ONE}"),
    ],
)
def test_a_held_out_file_is_left_out_of_a_pattern(pretrain, log_lines, pattern, held_out, read):
    refuses("max_seq_length", pretrain, input_file=pattern, eval_input_file=held_out, max_seq_length=24)
    assert f"Reading records from {read}" in log_lines
    assert len([line for line in log_lines if " input_file" in line]) == ("*" in pattern)


@pytest.mark.slow
def test_two_lengths(folder, pretrain, tmp_path, log_lines):
    """Most steps with short examples, the others with long ones, in one folder: docs/pretraining.md."""
    make(folder, "short", max_seq_length=16, max_predictions_per_seq=3, dynamic_masking=False)
    how = {"num_train_steps": 10, "num_warmup_steps": 2, "eval_input_file": None}
    pretrain(input_file="short", stop_at_step=6, max_seq_length=16, max_predictions_per_seq=3, **how)
    pretrain(**how)
    assert any("max_seq_length: 16 before, 32 now" in line for line in log_lines)
    events = event_accumulator.EventAccumulator(str(tmp_path / "run")).Reload()
    logged = {event.step: float(tf.make_ndarray(event.tensor_proto)) for event in events.Tensors("learning_rate")}
    assert {6, 7, 10} <= logged.keys() and int(saved(tmp_path / "run")["global_step"]) == 10
    for step, rate in logged.items():  # the schedule of one training
        assert rate == pytest.approx(float(learning_rate_at(step - 1, 1e-2, 10, 2)), rel=1e-5)


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_goes_on(folder, pretrain, tmp_path, log_lines):
    given = vars(training_options(folder, output_dir=f"{tmp_path}/run", input_file="r-*", num_train_steps=1_000_000))
    given = [f"--{name}={value}" for name, value in given.items() if value not in (None, (), False)]
    command, log = [sys.executable, f"{ROOT}/run_pretraining.py", *given], ""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        for line in process.stderr:
            log += line
            if "Training: 1 of 1,000,000 steps" in line:
                time.sleep(0.2)
                process.send_signal(signal.SIGINT)
                break
        log += process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGINT and "Traceback" not in log, log
    step = int(saved(tmp_path / "run")["global_step"])
    assert step > 1 and f"stopped after step {step}" in log.splitlines()[-1]
    pretrain(eval_input_file=None, num_train_steps=step + 2)
    assert f"Continuing from {tmp_path}/run/model.ckpt-{step} at step {step}" in log_lines
    assert int(saved(tmp_path / "run")["global_step"]) == step + 2
