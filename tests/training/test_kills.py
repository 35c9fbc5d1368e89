"""A training that is killed anywhere and started again with the same command ends with the bytes of one that was not.

The commands are those of docs/pretraining.md and docs/finetuning.md, of which none names a vocabulary: it lies beside
the weights. `make soak` kills at random moments.
"""

import os
import pathlib
import shutil
import sys

import pytest
import toy_data
from folder_content import content
from google_folders import google_folder
from refused import message_of

from bert_tf2.commands import call
from bert_tf2.training.saver import TrainingState

LENGTH = 32
_ALL = {"max_seq_length": LENGTH, "train_batch_size": 4, "save_checkpoints_steps": 1, "keep_checkpoint_max": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("data")
    google_folder(folder / "bert", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    toy_data.write_tsv_task(folder / "tables", 8)
    toy_data.write_squad(folder / "squad.json", 8, 1)
    toy_data.write_conll(folder / "words.txt", 8, 1)
    text = "\n".join(text for text, _ in toy_data.sentences(16, 1))
    (folder / "text.txt").write_text(text + "\n\n" + text + "\n")
    files = {"input_file": f"{folder}/text.txt", "vocab_file": f"{folder}/bert/vocab.txt"}
    how = {"max_seq_length": LENGTH, "dupe_factor": 1, "dynamic_masking": True}
    call("create_pretraining_data", output_file=f"{folder}/records", **files, **how)
    shutil.copy(folder / "records", folder / "held_out")
    return folder


def train(data: pathlib.Path, script: str, out: pathlib.Path, **changes) -> None:
    """Two steps of a training, the way the documents show; of pretraining, with evaluations of held-out text."""
    evaluated = {"eval_input_file": f"{data}/held_out", "do_eval": True, "eval_steps": 1, "max_eval_steps": 1}
    settings = {
        "run_pretraining": {
            "input_file": f"{data}/records", "num_train_steps": 2, "num_warmup_steps": 0, "unpad": "groups", **evaluated
        },
        "run_classifier": {"task_name": "tsv", "data_dir": f"{data}/tables", **toy_data.TSV_COLUMNS},
        "run_squad": {"train_file": f"{data}/squad.json", "max_query_length": 16, "doc_stride": 8},
        "run_ner": {"train_file": f"{data}/words.txt", "word_column": 2, "do_lower_case": True},
    }[script]  # fmt: skip
    if script != "run_pretraining":
        settings |= {"num_train_epochs": 1.0}
    weights = f"{data}/bert/bert_model.ckpt"
    settings = {**_ALL, **settings, **changes}
    call(script, do_train=True, init_checkpoint=weights, output_dir=str(out), **settings)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """The folder of a training that reached its end, made once for each script."""
    found = {}

    def get(script: str) -> pathlib.Path:
        if script not in found:
            found[script] = tmp_path_factory.mktemp(script)
            train(data, script, found[script])
        return found[script]

    return get


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of such a folder."""
    return lambda script: pathlib.Path(shutil.copytree(trained(script), tmp_path / "out"))


SCRIPTS = ("run_pretraining", "run_squad", "run_ner")


@pytest.mark.parametrize("script", ["run_classifier", *(pytest.param(s, marks=pytest.mark.slow) for s in SCRIPTS)])
def test_the_file_checkpoint_or_the_newest_index_is_lost(data, trained, copied, script, log_lines):
    """As after a kill between a first checkpoint and the file that names the checkpoint; and after a lost file."""
    out = copied(script)
    text = (out / "checkpoint").read_text()
    (out / "checkpoint").unlink()
    train(data, script, out)
    assert [line for line in log_lines if f"{out}/checkpoint: no such file; continuing from" in line]
    assert content(out) == content(trained(script))
    (out / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-9"\n{text.partition(chr(10))[2]}')
    train(data, script, out)
    assert [line for line in log_lines if "Continuing from the one before" in line and "model.ckpt-2" in line]
    assert content(out) == content(trained(script))


def test_what_needs_a_decision_is_not_guessed(data, copied):
    """A link that leads nowhere is no file that is not there, and an evaluation recovers nothing."""
    out = copied("run_classifier")
    state = out / "model.ckpt-2.training.json"
    state.unlink()
    state.symlink_to("../nowhere")
    assert message_of(train, data, "run_classifier", out).startswith(f"{state}: is a link to ../nowhere")
    (out / "checkpoint").unlink()
    columns = {**toy_data.TSV_COLUMNS, "task_name": "tsv", "data_dir": f"{data}/tables", "max_seq_length": LENGTH}
    told = message_of(call, "run_classifier", do_eval=True, output_dir=str(out), **columns)
    assert told.startswith(f"{out}/checkpoint: no such file") and "model_checkpoint_path" in told


@pytest.mark.slow
def test_what_changed_is_told_and_the_data_go_on_behind_the_examples_read(data, copied, log_lines):
    out = copied("run_pretraining")
    del log_lines[:]
    train(data, "run_pretraining", out, num_train_steps=4, train_batch_size=3)
    (told,) = (line for line in log_lines if line.startswith("Not an exact continuation. "))
    assert [part.split(":")[0] for part in told.split(". ")[1:]] == ["train_batch_size", "num_train_steps"]
    assert TrainingState.read(str(out / "model.ckpt-4")).examples == 2 * 4 + 2 * 3
    for path in out.glob("*.training.json"):  # as if TensorFlow 1 had written the checkpoints
        path.unlink()
    train(data, "run_pretraining", out, num_train_steps=5)
    assert any("continuing behind 16, 4 for each step" in line for line in log_lines)
    assert TrainingState.read(str(out / "model.ckpt-5")).examples == 5 * 4


# What is on the disk before each operation on a file is what a kill at that time leaves.
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


def left_by_kills(data: pathlib.Path, script: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """Trains in `folder/out`; returns copies of it, in order, of which no two are the same."""
    sys.addaudithook(_watch)
    (folder / "left").mkdir()
    _watched.update(out=folder / "out", left=folder / "left")
    try:
        train(data, script, folder / "out")
    finally:
        _watched.clear()
    paths = sorted((folder / "left").iterdir(), key=lambda path: int(path.name))
    return [*{frozenset(content(path).items()): path for path in paths}.values()]


def newest(out: pathlib.Path) -> str:
    return (out / "checkpoint").read_text().splitlines()[0] if (out / "checkpoint").exists() else ""


def assert_ends_the_same(data: pathlib.Path, script: str, out: pathlib.Path, expected: pathlib.Path) -> None:
    is_over = "model.ckpt-2" in newest(out)  # no other save will tidy up
    train(data, script, out)
    assert newest(out) == 'model_checkpoint_path: "model.ckpt-2"'
    found, wanted = content(out), content(expected)
    for name in [name for name in found if is_over and name.startswith(("model.ckpt-1.", "checkpoint"))]:
        del found[name]
        wanted.pop(name, None)
    assert found == wanted, sorted(os.listdir(out))


def test_a_kill_in_the_midst_of_a_training(data, trained, tmp_path):
    """With dropout, masks that are drawn, evaluations and best weights: the last state behind the first step."""
    left = left_by_kills(data, "run_pretraining", tmp_path)
    *_, last = (path for path in left if "model.ckpt-1" in newest(path))
    assert_ends_the_same(data, "run_pretraining", last, trained("run_pretraining"))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["run_pretraining", "run_classifier"])
def test_a_kill_at_every_operation_of_a_save(data, trained, script, tmp_path):
    left = left_by_kills(data, script, tmp_path)
    assert content(tmp_path / "out") == content(trained(script)) and len(left) > 20
    for out in left:
        assert_ends_the_same(data, script, out, trained(script))
