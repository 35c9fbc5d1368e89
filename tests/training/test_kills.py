"""A training that is killed goes on with the same command line, those of docs/pretraining.md and docs/finetuning.md.

None of these names a vocabulary: it lies beside the weights.
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

LENGTH = 32
_ALL = {"max_seq_length": LENGTH, "train_batch_size": 4, "save_checkpoints_steps": 1, "keep_checkpoint_max": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("data")
    google_folder(folder / "bert")
    toy_data.write_tsv_task(folder / "tables", 8)
    toy_data.write_squad(folder / "squad.json", 8, 1)
    toy_data.write_conll(folder / "words.txt", 8, 1)
    text = "\n".join(text for text, _ in toy_data.sentences(16, 1))
    (folder / "text.txt").write_text(text + "\n\n" + text + "\n")
    call(
        "create_pretraining_data",
        input_file=str(folder / "text.txt"),
        output_file=str(folder / "records"),
        vocab_file=str(folder / "bert/vocab.txt"),
        max_seq_length=LENGTH,
        dupe_factor=1,
    )
    return folder


def train(data: pathlib.Path, script: str, out: pathlib.Path) -> None:
    """Two steps of a training, the way the documents show."""
    settings = {
        "run_pretraining": {"input_file": f"{data}/records", "num_train_steps": 2, "num_warmup_steps": 0},
        "run_classifier": {"task_name": "tsv", "data_dir": f"{data}/tables", **toy_data.TSV_COLUMNS},
        "run_squad": {"train_file": f"{data}/squad.json", "max_query_length": 16, "doc_stride": 8},
        "run_ner": {"train_file": f"{data}/words.txt", "word_column": 2, "do_lower_case": True},
    }[script]
    if script != "run_pretraining":
        settings |= {"num_train_epochs": 1.0}
    weights = f"{data}/bert/bert_model.ckpt"
    call(script, do_train=True, init_checkpoint=weights, output_dir=str(out), **_ALL, **settings)


SCRIPTS = ("run_pretraining", "run_classifier", "run_squad", "run_ner")


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """The folder of a training that reached its end, made once for each script."""
    found = {}

    def get(script: str) -> pathlib.Path:
        if script not in found:
            out = tmp_path_factory.mktemp(script)
            train(data, script, out)
            found[script] = out
        return found[script]

    return get


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_file_checkpoint_was_not_written(data, trained, script, tmp_path, log_lines):
    """As after a kill between a first checkpoint and the file that names the checkpoint."""
    out = tmp_path / "out"
    shutil.copytree(trained(script), out)
    (out / "checkpoint").unlink()
    train(data, script, out)
    assert [line for line in log_lines if f"{out}/checkpoint: no such file; continuing from" in line]
    assert content(out) == content(trained(script))


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_newest_index_is_lost(data, trained, script, tmp_path, log_lines):
    out = tmp_path / "out"
    shutil.copytree(trained(script), out)
    text = (out / "checkpoint").read_text()
    (out / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-9"\n{text.partition(chr(10))[2]}')
    train(data, script, out)
    assert [line for line in log_lines if "Continuing from the one before" in line and "model.ckpt-2" in line]
    assert content(out) == content(trained(script))


def test_a_link_that_leads_nowhere_is_not_taken_for_a_file_that_is_not_there(data, trained, tmp_path):
    """Without the state of a training, the continuation would guess how many examples were read."""
    out = tmp_path / "out"
    shutil.copytree(trained("run_classifier"), out)
    (out / "model.ckpt-2.training.json").unlink()
    (out / "model.ckpt-2.training.json").symlink_to("../nowhere")
    told = message_of(train, data, "run_classifier", out)
    assert told.startswith(f"{out}/model.ckpt-2.training.json: is a link to ../nowhere")


def test_an_evaluation_recovers_nothing(data, trained, tmp_path):
    """Which weights to evaluate is the user's decision, so the error names the file and its line."""
    out = tmp_path / "out"
    shutil.copytree(trained("run_classifier"), out)
    (out / "checkpoint").unlink()
    columns = {**toy_data.TSV_COLUMNS, "task_name": "tsv", "data_dir": f"{data}/tables", "max_seq_length": LENGTH}
    told = message_of(call, "run_classifier", do_eval=True, output_dir=str(out), **columns)
    assert told.startswith(f"{out}/checkpoint: no such file") and "model_checkpoint_path" in told


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


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS[:2])
def test_a_kill_at_every_operation_of_a_save(data, trained, script, tmp_path):
    sys.addaudithook(_watch)
    (tmp_path / "left").mkdir()
    _watched.update(out=tmp_path / "out", left=tmp_path / "left")
    try:
        train(data, script, tmp_path / "out")
    finally:
        _watched.clear()
    assert content(tmp_path / "out") == content(trained(script))
    seen = set()
    for left in sorted((tmp_path / "left").iterdir(), key=lambda path: int(path.name)):
        names = frozenset(content(left).items())
        if names not in seen and seen.add(names) is None:
            state = left / "checkpoint"
            is_over = state.exists() and "model.ckpt-2" in state.read_text()  # no other save will tidy up
            train(data, script, left)
            assert state.read_text().startswith('model_checkpoint_path: "model.ckpt-2"\n')
            found, expected = content(left), content(trained(script))
            for name in [name for name in found if is_over and name.startswith(("model.ckpt-1.", "checkpoint"))]:
                del found[name]
                expected.pop(name, None)
            assert found == expected, sorted(os.listdir(left))
    assert len(seen) > 20
