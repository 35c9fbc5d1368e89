"""The folder of a run: which checkpoints are kept, and what happens when one is damaged or cannot be written."""

import os
import pathlib
import re
import shutil

import pytest
import tensorflow as tf
from refused import message_of
from small_checkpoints import DATA, cut, flip, save_model, small_model

from bert_tf2.weights import checkpoint
from bert_tf2.weights.checkpoint import CheckpointFolder


def test_the_oldest_are_deleted_and_the_state_file_lists_the_rest(tmp_path):
    folder, variables = CheckpointFolder(str(tmp_path), keep_checkpoint_max=3), {"v": tf.Variable([1.0])}
    (tmp_path / "model.ckpt-0.meta").touch()  # as the reference leaves next to a checkpoint
    (tmp_path / "model.ckpt-10.index.note").touch()
    for step in (0, 5, 10, 15, 20):
        folder.save(variables, step)
    assert (tmp_path / "checkpoint").read_text() == (
        'model_checkpoint_path: "model.ckpt-20"\n'
        'all_model_checkpoint_paths: "model.ckpt-10"\n'
        'all_model_checkpoint_paths: "model.ckpt-15"\n'
        'all_model_checkpoint_paths: "model.ckpt-20"\n'
    )
    kept = {f"model.ckpt-{step}{ending}" for step in (10, 15, 20) for ending in (DATA, ".index")}
    assert set(os.listdir(tmp_path)) == {*kept, "checkpoint", "model.ckpt-10.index.note"}
    assert tf.train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-20"  # TensorFlow understands it
    assert checkpoint.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-20"


def test_one_that_someone_removed_does_not_end_the_training(tmp_path):
    for step in range(1, 5):
        CheckpointFolder(str(tmp_path), 2).save({"v": tf.Variable([1.0])}, step)
        (tmp_path / f"model.ckpt-{step - 1}.index").unlink(missing_ok=True)
    assert checkpoint.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-4"


def test_a_path_with_a_scheme(tmp_path):
    """Like gs:// and hdfs://, through TensorFlow's file systems."""
    folder = f"file://{tmp_path}/out"
    CheckpointFolder(folder, keep_checkpoint_max=1).save({"v": tf.Variable([1.0, 2.0])}, 4)
    CheckpointFolder(folder, keep_checkpoint_max=1).save({"v": tf.Variable([3.0, 4.0])}, 5)
    latest = checkpoint.latest_checkpoint(folder)
    assert latest == f"{folder}/model.ckpt-5" and checkpoint.Checkpoint(latest).get("v").tolist() == [3.0, 4.0]
    assert not (tmp_path / "out" / "model.ckpt-4.index").exists()


def test_saving_a_step_again_lists_it_once(tmp_path):
    folder, variable = CheckpointFolder(str(tmp_path), keep_checkpoint_max=2), tf.Variable([1.0])
    folder.save({"v": variable}, 5)
    variable.assign([2.0])
    folder.save({"v": variable}, 5)
    assert (tmp_path / "checkpoint").read_text().count("all_model_checkpoint_paths") == 1
    assert checkpoint.Checkpoint(str(tmp_path)).get("v") == [2.0]


def test_no_state_file_means_no_checkpoint(tmp_path):
    (tmp_path / "bert_model.ckpt.index").touch()  # a released model, not a training's checkpoint
    assert checkpoint.latest_checkpoint(str(tmp_path)) is None
    assert checkpoint.latest_checkpoint(str(tmp_path / "none")) is None


# Damage to the newest checkpoint, or to the file that names it -> the beginning of the message.
LOST = {
    "data-flipped": (lambda folder: flip(folder / f"model.ckpt-30{DATA}", 0.5), "{}/model.ckpt-30: the tensor"),
    "data-gone": (lambda folder: (folder / f"model.ckpt-30{DATA}").unlink(), f"{{}}/model.ckpt-30{DATA}: no such file"),
    "index-cut": (lambda folder: cut(folder / "model.ckpt-30.index", 0.5), "{}/model.ckpt-30: cannot be read"),
    "index-gone": (
        lambda folder: (folder / "model.ckpt-30.index").unlink(),
        "{0}/checkpoint: names the checkpoint model.ckpt-30, but {0}/model.ckpt-30.index is missing",
    ),
    "state-gone": (lambda folder: (folder / "checkpoint").unlink(), "{}/checkpoint: no such file, although"),
    "state-rubbish": (lambda folder: (folder / "checkpoint").write_text("x"), "{}/checkpoint: names no model_"),
}


@pytest.fixture(scope="module")
def training_folder(tmp_path_factory):
    """Three checkpoints of a training, the second of which has damage that a quick check does not find."""
    path = tmp_path_factory.mktemp("training")
    folder, variables = CheckpointFolder(str(path)), {"v": tf.Variable([1.0] * 100)}
    for step in (5, 20, 30):
        folder.save(variables, step)
    flip(path / f"model.ckpt-20{DATA}", 0.5)
    return path


@pytest.mark.parametrize("case", LOST)
def test_errors_lead_to_the_newest_intact_checkpoint(training_folder, tmp_path, case):
    """If 30 is lost, 5 is the newest: 20 is damaged too. Steps are compared as numbers, not as strings."""
    damage, beginning = LOST[case]
    folder = tmp_path / "out"
    shutil.copytree(training_folder, folder)
    damage(folder)

    def resume():
        variables = {"v": tf.Variable([0.0] * 100)}
        return checkpoint.restore(checkpoint.latest_checkpoint(str(folder)), variables)

    message = message_of(resume)
    assert message.startswith(beginning.format(folder))
    for step in [30] if case.startswith("state") else [20, 5]:
        assert f" is {folder}/model.ckpt-{step}. To continue from it, put the line " in message
        line, path = re.search("put the line (.*) into (.*)", message).groups()
        pathlib.Path(path).write_text(line)
        message = message_of(resume) if step == 20 else ""
    assert resume() == step


@pytest.mark.parametrize("case", LOST)
def test_a_training_continues_from_the_newest_intact_checkpoint(training_folder, tmp_path, case, log_lines):
    folder = tmp_path / "out"
    shutil.copytree(training_folder, folder)
    LOST[case][0](folder)
    if not (folder / "checkpoint").exists():  # someone removed it: to start afresh?
        checkpoint.recover(str(folder))
        assert not (folder / "checkpoint").exists()
        return
    before = sorted(path.name for path in folder.iterdir())
    checkpoint.recover(str(folder))
    step = 30 if case.startswith("state") else 5
    assert checkpoint.latest_checkpoint(str(folder)) == f"{folder}/model.ckpt-{step}"
    assert f"Continuing from the one before, {folder}/model.ckpt-{step}" in log_lines[-1]
    assert sorted(path.name for path in folder.iterdir()) == before  # what is damaged may help someone


def test_a_kill_before_the_first_state_file(tmp_path, log_lines):
    CheckpointFolder(str(tmp_path)).save({"v": tf.Variable([1.0])}, 0)
    written = (tmp_path / "checkpoint").read_text()
    (tmp_path / "checkpoint").unlink()
    checkpoint.recover(str(tmp_path))
    assert (tmp_path / "checkpoint").read_text() == written
    assert (
        log_lines[-1] == f"{tmp_path}/checkpoint: no such file; continuing from the only checkpoint there, model.ckpt-0"
    )


def test_nothing_intact_is_left(tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-9"\n')
    message = message_of(checkpoint.latest_checkpoint, str(tmp_path))
    assert message.startswith(f"{tmp_path}/checkpoint: names the checkpoint model.ckpt-9, but ")
    assert "no checkpoint is left" in message and "remove" not in message


def test_a_folder_that_was_moved(tmp_path):
    save_model(tmp_path, small_model())
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/where/it/was/model.ckpt-7"\n')
    assert checkpoint.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-7"
