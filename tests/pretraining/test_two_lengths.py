"""docs/pretraining.md's two lengths in one folder: its commands in small, the schedule, and what the log says."""

from __future__ import annotations

import pytest
import tensorflow as tf
from documented import command_line, commands_in, section
from pretraining_text import VOCABULARY
from refused import message_of
from small_models import tiny_config
from small_trainings import saved
from tensorboard.backend.event_processing import event_accumulator
from unmasked_data import make, text, training_options

from bert_tf2 import commands
from bert_tf2.optimization import learning_rate_at

STEPS, STOP, WARMUP, RATE = 10, 6, 2, 1e-2
# The numbers of the document -> those of the test.
SMALLER = {
    "num_train_steps": {"1000000": STEPS},
    "stop_at_step": {"900000": STOP},
    "num_warmup_steps": {"10000": WARMUP},
    "train_batch_size": {"256": 4},
    "max_seq_length": {"128": 16, "512": 32},
    "max_predictions_per_seq": {"20": 3, "77": 5},
    "learning_rate": {"1e-4": RATE},
}


@pytest.fixture(scope="module")
def rates(tmp_path_factory, command_lines):
    """Runs the commands of the document; returns the folder, what the second training said, and the logged rates."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "sample_text.txt").write_text(text(40))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    config = tiny_config(vocab_size=len(VOCABULARY), max_position_embeddings=32)
    (folder / "bert_config.json").write_text(config.to_json_string())
    shown = commands_in(section("pretraining.md", "Two lengths"))
    assert [script for script, _ in shown] == ["create_pretraining_data"] * 2 + ["run_pretraining"] * 2
    said = ""
    for script, flags in shown:
        flags = {name: SMALLER[name][value] if name in SMALLER else value for name, value in flags.items()}
        places = {"/tmp/": f"{folder}/", "$BERT_BASE_DIR": str(folder)}
        for place, here in places.items():
            flags = {name: str(value).replace(place, here) for name, value in flags.items()}
        done = command_lines.run(*command_line(script, flags), cwd=folder)
        assert done.status == 0, done.stderr
        said = done.stderr
    return folder, said


def test_one_line_says_what_changed(rates):
    _, said = rates
    (line,) = (line for line in said.splitlines() if "Not an exact continuation" in line)
    for name in ("max_seq_length: 16 before, 32 now", "max_predictions_per_seq: 3 before, 5 now", "records: "):
        assert name in line
    assert "num_train_steps" not in line and "learning_rate" not in line


def test_the_schedule_is_that_of_one_training(rates):
    folder = rates[0] / "two_lengths"
    assert int(saved(folder)["global_step"]) == STEPS
    events = event_accumulator.EventAccumulator(str(folder)).Reload()
    logged = {event.step: float(tf.make_ndarray(event.tensor_proto)) for event in events.Tensors("learning_rate")}
    assert {STOP, STOP + 1, STEPS} <= logged.keys()
    for step, rate in logged.items():
        expected = float(learning_rate_at(step - 1, RATE, STEPS, WARMUP))
        assert rate == pytest.approx(expected, rel=1e-5) and (rate > 0 or step == 1)


def test_stopping_changes_no_step(tmp_path):
    """The weights are those of one call, to the bit."""
    path = make(tmp_path, dynamic_masking=False)
    settings = {"num_train_steps": 5, "num_warmup_steps": 2, "learning_rate": 1e-2, "do_train": True}

    def pretrain(name, **changes):
        options = training_options(tmp_path, name, input_file=path, **{**settings, **changes})
        return commands.find("pretraining.run").run(options)

    pretrain("once")
    pretrain("twice", stop_at_step=3)
    assert int(saved(tmp_path / "twice")["global_step"]) == 3
    pretrain("twice", stop_at_step=3)  # nothing is left
    pretrain("twice", stop_at_step=50)
    once, twice = saved(tmp_path / "once"), saved(tmp_path / "twice")
    assert once.keys() == twice.keys()
    assert all((value == twice[name]).all() for name, value in once.items())


def test_a_step_below_one_is_refused(tmp_path):
    assert "stop_at_step" in message_of(training_options, tmp_path, input_file="x", stop_at_step=0)
