"""A training that is killed anywhere and started again with the same command ends with the bytes of one that was not.

The commands are those of docs/pretraining.md and docs/finetuning.md, of which none names a vocabulary: it lies beside
the weights. `make soak` kills at random moments.
"""

import functools
import os
import pathlib
import shutil
import sys

import pytest
import toy_data
from folder_content import content
from google_folders import google_folder
from refused import message_of, refuses

from bert_tf2.commands import call
from bert_tf2.training.saver import TrainingState

LENGTH = 32
SLOW = ("run_pretraining", "run_pretraining --pack_rows", "run_ner")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("data")
    google_folder(folder / "bert", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    toy_data.write_tsv_task(folder / "tables", 8)
    toy_data.write_conll(folder / "words.txt", 8, 1)
    text = "\n".join(text for text, _ in toy_data.sentences(16, 1))
    (folder / "text.txt").write_text(text + "\n\n" + text + "\n")
    files = {"input_file": f"{folder}/text.txt", "vocab_file": f"{folder}/bert/vocab.txt"}
    how = {"max_seq_length": LENGTH, "dupe_factor": 1, "dynamic_masking": True}
    call("create_pretraining_data", output_file=f"{folder}/records", **files, **how)
    shutil.copy(folder / "records", folder / "held_out")
    return folder


def train(data: pathlib.Path, script: str, out: pathlib.Path, **changes) -> None:
    """Two steps of a training with dropout; of pretraining, with masks that are drawn and evaluations of other text."""
    settings = {
        "run_pretraining": {
            "input_file": f"{data}/records", "num_train_steps": 2, "num_warmup_steps": 0, "unpad": "groups",
            "eval_input_file": f"{data}/held_out", "do_eval": True, "eval_steps": 1, "max_eval_steps": 1,
        },
        "run_classifier": {
            "task_name": "tsv", "data_dir": f"{data}/tables", "num_train_epochs": 1.0, **toy_data.TSV_COLUMNS,
        },
        "run_ner": {
            "train_file": f"{data}/words.txt", "num_train_epochs": 1.0, "word_column": 2, "do_lower_case": True,
        },
    }[script.split()[0]]  # fmt: skip
    script, _, flag = script.partition(" --")
    if flag:  # where dropout is drawn for a place depends on where the examples are
        settings |= {flag: True, "unpad": "auto", "gradient_accumulation_steps": 2}
    settings |= {"max_seq_length": LENGTH, "train_batch_size": 4, "save_checkpoints_steps": 1, "keep_checkpoint_max": 1}
    settings |= {"init_checkpoint": f"{data}/bert/bert_model.ckpt", "output_dir": str(out), **changes}
    call(script, do_train=True, **settings)


# The disk before each operation on a file is the disk after a kill at that time.
_watched: dict[str, pathlib.Path] = {}
_is_busy = False


def _watch(event: str, arguments: tuple) -> None:
    global _is_busy
    if not _watched or _is_busy or event not in ("open", "os.rename", "os.remove"):
        return
    if not str(arguments[0]).startswith(str(_watched["out"])) or (event == "open" and "w" not in str(arguments[1])):
        return
    _is_busy = True  # only one thread writes while a checkpoint is saved, and nothing else writes there
    try:
        shutil.copytree(_watched["out"], _watched["left"] / str(len(os.listdir(_watched["left"]))))
    finally:
        _is_busy = False


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """script -> the folder of a training that reached its end, and different copies of the folder on the way."""

    @functools.cache
    def get(script: str) -> tuple[pathlib.Path, list[pathlib.Path]]:
        folder = tmp_path_factory.mktemp(script)
        sys.addaudithook(_watch)
        (folder / "left").mkdir()
        _watched.update(out=folder / "out", left=folder / "left")
        try:
            train(data, script, folder / "out")
        finally:
            _watched.clear()
        paths = sorted((folder / "left").iterdir(), key=lambda path: int(path.name))
        return folder / "out", [*{frozenset(content(path).items()): path for path in paths}.values()]

    return get


def newest(out: pathlib.Path) -> str:
    return (out / "checkpoint").read_text().splitlines()[0] if (out / "checkpoint").exists() else ""


def assert_ends_the_same(data: pathlib.Path, script: str, left: pathlib.Path, end: pathlib.Path, out: pathlib.Path):
    """Continues a copy of `left` in `out`."""
    shutil.copytree(left, out)
    is_over = "model.ckpt-2" in newest(out)  # no other save will tidy up
    train(data, script, out)
    assert newest(out) == 'model_checkpoint_path: "model.ckpt-2"'
    found, wanted = content(out), content(end)
    for name in [name for name in found if is_over and name.startswith(("model.ckpt-1.", "checkpoint"))]:
        del found[name]
        wanted.pop(name, None)
    assert found == wanted, sorted(os.listdir(out))


@pytest.mark.parametrize("script", ["run_classifier", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_kill_in_the_midst_of_a_training_and_files_that_are_lost(data, trained, script, tmp_path, log_lines):
    """The last state behind the first step; a first checkpoint without the file `checkpoint`; a lost index."""
    end, left = trained(script)
    last = [path for path in left if "model.ckpt-1" in newest(path)][-1]
    assert_ends_the_same(data, script, last, end, out := tmp_path / "out")
    text = (out / "checkpoint").read_text()
    (out / "checkpoint").unlink()
    train(data, script, out)
    assert [line for line in log_lines if f"{out}/checkpoint: no such file; continuing from" in line]
    assert content(out) == content(end)
    (out / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-9"\n{text.partition(chr(10))[2]}')
    train(data, script, out)
    assert [line for line in log_lines if "Continuing from the checkpoint before" in line and "model.ckpt-2" in line]
    assert content(out) == content(end)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["run_pretraining", "run_classifier"])
def test_a_kill_at_every_operation_of_a_save(data, trained, script, tmp_path):
    end, left = trained(script)
    assert len(left) > 20
    for path in left:
        assert_ends_the_same(data, script, path, end, tmp_path / path.name)


def test_damage_that_needs_a_decision_is_refused(data, trained, tmp_path):
    """A link that leads nowhere is no file that is not there, and an evaluation recovers nothing."""
    out = pathlib.Path(shutil.copytree(trained("run_classifier")[0], tmp_path / "out"))
    state = out / "model.ckpt-2.training.json"
    state.unlink()
    state.symlink_to("../nowhere")
    assert message_of(train, data, "run_classifier", out).startswith(f"{state}: is a link to ../nowhere")
    (out / "checkpoint").unlink()
    columns = {**toy_data.TSV_COLUMNS, "task_name": "tsv", "data_dir": f"{data}/tables", "max_seq_length": LENGTH}
    how = {"do_eval": True, "output_dir": str(out), **columns}
    refuses(f"{out}/checkpoint: no such file model_checkpoint_path", call, "run_classifier", **how)


@pytest.mark.slow
def test_changes_are_reported_and_the_data_go_on_behind_the_examples_read(data, trained, tmp_path, log_lines):
    out = pathlib.Path(shutil.copytree(trained("run_pretraining")[0], tmp_path / "out"))
    del log_lines[:]
    train(data, "run_pretraining", out, num_train_steps=4, train_batch_size=3)
    (line,) = (line for line in log_lines if line.startswith("Not an exact continuation. "))
    assert [part.split(":")[0] for part in line.split(". ")[1:]] == ["train_batch_size", "num_train_steps"]
    assert TrainingState.read(str(out / "model.ckpt-4")).examples == 2 * 4 + 2 * 3
    for path in out.glob("*.training.json"):  # as if TensorFlow 1 had written the checkpoints
        path.unlink()
    train(data, "run_pretraining", out, num_train_steps=5)
    assert any("continuing behind 16, 4 for each step" in line for line in log_lines)
    assert TrainingState.read(str(out / "model.ckpt-5")).examples == 5 * 4
