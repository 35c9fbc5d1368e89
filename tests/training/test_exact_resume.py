"""A training that is killed anywhere and started again ends with the bytes of one that was not."""

import pathlib

import pytest
import toy_data
from pretraining_text import VOCABULARY
from small_models import tiny_config
from unmasked_data import LENGTH, PREDICTIONS, make

from bert_tf2.finetuning.classification import run as classification
from bert_tf2.finetuning.options import ClassifierOptions
from bert_tf2.pretraining import run as pretraining
from bert_tf2.pretraining.options import PretrainingOptions
from bert_tf2.training import monitor
from bert_tf2.training.saver import Best, TrainingState
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
    make(folder)
    (folder / "task").mkdir()
    toy_data.write_model(folder / "task", num_hidden_layers=1, hidden_dropout_prob=0.1)
    toy_data.write_tsv_task(folder / "task" / "tables")
    return folder


def pretrain(folder, out, **changes):
    names = {
        "bert_config_file": "config.json",
        "vocab_file": "vocab.txt",
        "input_file": "out",
        "eval_input_file": "out",
    }
    options = PretrainingOptions(
        **{name: str(folder / file) for name, file in names.items()}, output_dir=str(out), do_lower_case=True,
        max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS, do_train=True, do_eval=True, num_warmup_steps=2,
        save_checkpoints_steps=3, eval_steps=4, max_eval_steps=2, unpad="groups",
        **{"num_train_steps": STEPS, "train_batch_size": 7, **changes},
    )  # fmt: skip
    return pretraining.run(options)


def classify(folder, out):
    task = folder / "task"
    options = ClassifierOptions(
        bert_config_file=f"{task}/bert_config.json", vocab_file=f"{task}/vocab.txt", data_dir=f"{task}/tables",
        task_name="tsv", **toy_data.TSV_COLUMNS, output_dir=str(out), max_seq_length=32, do_train=True, do_eval=True,
        do_predict=True, num_train_epochs=3.0, train_batch_size=16, learning_rate=2e-3, save_checkpoints_steps=5,
        eval_steps=2,
    )  # fmt: skip
    return classification.run(options)


RUNS = {"pretraining": pretrain, "classification": classify}


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    """Runs each kind once, when it is first asked for."""
    made = {}

    def get(kind: str) -> pathlib.Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            RUNS[kind](folder, made[kind])
        return made[kind]

    return get


def content(out: pathlib.Path) -> dict[str, bytes]:
    """The newest and the best weights, what is beside them, and the results."""
    files = {}
    for part in (out, out / "best"):
        prefix = pathlib.Path(checkpoint.latest_checkpoint(str(part)))
        files |= {path.relative_to(out).as_posix(): path.read_bytes() for path in part.glob(f"{prefix.name}.*")}
    results = [out / name for name in ("eval_results.txt", "best/measure.json", "predictions.tsv")]
    return files | {path.name: path.read_bytes() for path in results if path.exists()}


# Where a training is killed: a method, and its call. The first save is that of step 0.
PLACES = {
    "between two checkpoints": ("pretraining", monitor.TrainingMonitor, "report", 5),
    "before the file that names the newest": ("pretraining", checkpoint.CheckpointFolder, "set_newest", 4),
    "between a checkpoint and its evaluation": ("classification", Best, "update", 2),
    "before the last evaluation": ("classification", Best, "update", 3),
}


def kill_at(patched: pytest.MonkeyPatch, owner: type, name: str, count: int) -> None:
    """The `count`-th call of a method ends the process, so to speak."""
    method, left = getattr(owner, name), [count]

    def call(*arguments, **named):
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return method(*arguments, **named)

    patched.setattr(owner, name, call)


IN_SHORT = ("before the file that names the newest", "between a checkpoint and its evaluation")


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", [pytest.param(name, marks=() if name in IN_SHORT else pytest.mark.soak) for name in PLACES]
)
def test_a_killed_training_ends_like_one_that_was_not(place, folder, undisturbed, monkeypatch, tmp_path):
    kind, *where = PLACES[place]
    expected = content(undisturbed(kind))
    with monkeypatch.context() as patched:
        kill_at(patched, *where)
        with pytest.raises(Killed):
            RUNS[kind](folder, tmp_path)
    RUNS[kind](folder, tmp_path)
    assert content(tmp_path) == expected


@pytest.mark.slow
def test_what_changed_is_told_and_the_data_go_on_behind_the_examples_read(folder, tmp_path, log_lines):
    pretrain(folder, tmp_path, num_train_steps=4)
    del log_lines[:]
    pretrain(folder, tmp_path, num_train_steps=6, train_batch_size=5)
    told = [line for line in log_lines if line.startswith("Not an exact continuation. ")]
    assert [line.split(". ")[1].split(":")[0] for line in told] == ["train_batch_size", "num_train_steps"]
    assert TrainingState.read(str(tmp_path / "model.ckpt-6")).examples == 4 * 7 + 2 * 5
    for path in tmp_path.glob("*.training.json"):  # as if TensorFlow 1 had written the checkpoints
        path.unlink()
    pretrain(folder, tmp_path, num_train_steps=7)
    assert any("continuing behind 42, 7 for each step" in line for line in log_lines)
    assert TrainingState.read(str(tmp_path / "model.ckpt-7")).examples == 7 * 7
