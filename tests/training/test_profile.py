"""--profile_steps: exactly these steps, also after a stop and a continuation; the wrong values of the flag."""

import pytest
import tensorflow as tf
from small_models import batch_for
from small_trainings import endless, make_trainer

from bert_tf2.support.settings import WrongSetting
from bert_tf2.training.monitor import StepProfile
from bert_tf2.training.options import TrainOptions


def options(folder, profile_steps, steps=8):
    settings = {"learning_rate": 1e-3, "num_train_steps": steps, "num_warmup_steps": 0, "train_batch_size": 4}
    return TrainOptions(output_dir=str(folder), profile_steps=profile_steps, **settings)


def profiles(folder):
    return [*folder.glob("plugins/profile/*/*.xplane.pb")]


@pytest.fixture
def profiled(monkeypatch):
    """The list of the steps that run while a profile is taken."""
    steps, trace = [], tf.profiler.experimental.Trace

    def recording(name, step_num, **how):
        steps.append(step_num)
        return trace(name, step_num=step_num, **how)

    monkeypatch.setattr(tf.profiler.experimental, "Trace", recording)
    return steps


def test_a_training_is_profiled_from_the_first_to_the_last_step(tmp_path, profiled, log_lines):
    trainer = make_trainer(tmp_path, "classifier", num_train_steps=8, profile_steps="4,6")
    trainer.train(endless(batch_for("classifier")))
    assert trainer.global_step == 8 and profiled == [4, 5, 6]
    (file,) = profiles(tmp_path)
    assert file.stat().st_size > 1000
    assert any(f"steps 4 to 6: tensorboard --logdir={tmp_path}" in line for line in log_lines)


def run(profile, first, last, most=100):
    """Steps as the loop makes them, `most` in a graph call; returns the numbers of the steps of each call."""
    calls, done = [], first
    while done < last:
        count = int(min(profile.next_stop(done), done + most, last)) - done
        assert count > 0
        with profile.step(done):
            calls.append((done + 1, done + count))
        done += count
        profile.after(done)
    return calls


def test_calls_end_where_a_profile_begins_and_ends(tmp_path, profiled):
    with StepProfile(options(tmp_path, "11,13", 40), 0) as profile:
        assert run(profile, 0, 40) == [(1, 10), (11, 11), (12, 12), (13, 13), (14, 40)]
    assert profiled == [11, 12, 13]


def test_a_stop_closes_the_profile(tmp_path, log_lines):
    with pytest.raises(KeyboardInterrupt), StepProfile(options(tmp_path, "1,8"), 0) as profile:
        run(profile, 0, 2)
        raise KeyboardInterrupt
    assert profiles(tmp_path) and any("the steps from 1 until the end" in line for line in log_lines)


@pytest.mark.parametrize(
    ("done", "wanted", "said"),
    [(5, [6, 7], "5 steps are done already; the profile begins with step 6"), (7, [], "there is no profile")],
)
def test_a_continued_training(tmp_path, profiled, log_lines, done, wanted, said):
    with StepProfile(options(tmp_path, "4,7"), done) as profile:
        run(profile, done, 8)
    assert profiled == wanted and any(said in line for line in log_lines)


def test_steps_that_the_training_does_not_have(tmp_path, log_lines, profiled):
    with pytest.raises(WrongSetting, match="--profile_steps=9,10: the training has only 8 steps"):
        options(tmp_path, "9,10")
    with StepProfile(options(tmp_path, "7,10"), 0) as profile:
        run(profile, 0, 8)
    assert profiled == [7, 8] and any("the training ends with step 8" in line for line in log_lines)


@pytest.mark.parametrize("value", ["", "5", "5,", "0,3", "6,5", "1,2,3", "a,b", "-1,4", "1.5,2"])
def test_values_that_are_no_steps(value):
    with pytest.raises(WrongSetting, match=f"^--profile_steps={value}: must be the first and the last step"):
        options("", value)


def test_a_profile_that_cannot_begin_is_a_warning(tmp_path, log_lines):
    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        with StepProfile(options(tmp_path, "2,3"), 0) as profile:
            assert run(profile, 0, 8)[-1][1] == 8
    finally:
        tf.profiler.experimental.stop(save=False)
    assert any("there is no profile" in line for line in log_lines)
