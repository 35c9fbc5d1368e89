"""A training that is killed anywhere and started again ends with the bytes of one that was not."""

import pathlib
import shutil

import pytest
from pretraining_text import VOCABULARY
from small_models import tiny_config
from unmasked_data import LENGTH, PREDICTIONS, make

from bert_tf2.pretraining import run as pretraining
from bert_tf2.pretraining.options import PretrainingOptions
from bert_tf2.training.saver import TrainingState
from bert_tf2.weights import checkpoint

pytestmark = pytest.mark.compiled
STEPS = 12


class Killed(BaseException):
    """Ends a training as SIGKILL would: nobody saves anything."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("data")
    config = tiny_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH, hidden_dropout_prob=0.1)
    (folder / "config.json").write_text(config.to_json_string())
    shutil.copy(make(folder), folder / "held_out")
    return folder


def pretrain(folder, out, **changes):
    options = PretrainingOptions(
        bert_config_file=f"{folder}/config.json", vocab_file=f"{folder}/vocab.txt", input_file=f"{folder}/out",
        eval_input_file=f"{folder}/held_out", output_dir=str(out), do_lower_case=True,
        max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS, do_train=True, do_eval=True, num_warmup_steps=2,
        save_checkpoints_steps=3, eval_steps=4, max_eval_steps=2, unpad="groups",
        **{"num_train_steps": STEPS, "train_batch_size": 7, **changes},
    )  # fmt: skip
    return pretraining.run(options)


def content(out: pathlib.Path) -> dict[str, bytes]:
    """The newest and the best weights, what is beside them, and the results."""
    files = {}
    for part in (out, out / "best"):
        prefix = pathlib.Path(checkpoint.latest_checkpoint(str(part)))
        files |= {path.relative_to(out).as_posix(): path.read_bytes() for path in part.glob(f"{prefix.name}.*")}
    results = [out / name for name in ("eval_results.txt", "best/measure.json")]
    return files | {path.name: path.read_bytes() for path in results}


@pytest.mark.slow
def test_a_killed_training_ends_like_one_that_was_not(folder, monkeypatch, tmp_path):
    """Killed before the file that names the newest; `make soak` kills at random moments, also fine-tuning."""
    pretrain(folder, tmp_path / "undisturbed")
    set_newest, left = checkpoint.CheckpointFolder.set_newest, [4]  # the first save is that of step 0

    def kill(*arguments):
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return set_newest(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.CheckpointFolder, "set_newest", kill)
        with pytest.raises(Killed):
            pretrain(folder, tmp_path / "killed")
    pretrain(folder, tmp_path / "killed")
    assert content(tmp_path / "killed") == content(tmp_path / "undisturbed")


@pytest.mark.slow
def test_what_changed_is_told_and_the_data_go_on_behind_the_examples_read(folder, tmp_path, log_lines):
    pretrain(folder, tmp_path, num_train_steps=4)
    del log_lines[:]
    pretrain(folder, tmp_path, num_train_steps=6, train_batch_size=5)
    (told,) = (line for line in log_lines if line.startswith("Not an exact continuation. "))
    assert [part.split(":")[0] for part in told.split(". ")[1:]] == ["train_batch_size", "num_train_steps"]
    assert TrainingState.read(str(tmp_path / "model.ckpt-6")).examples == 4 * 7 + 2 * 5
    for path in tmp_path.glob("*.training.json"):  # as if TensorFlow 1 had written the checkpoints
        path.unlink()
    pretrain(folder, tmp_path, num_train_steps=7)
    assert any("continuing behind 42, 7 for each step" in line for line in log_lines)
    assert TrainingState.read(str(tmp_path / "model.ckpt-7")).examples == 7 * 7
