"""Two trainings in one folder: the second is refused, evaluation is not, and a dead process keeps no lock."""

import pathlib
import subprocess
import sys

import pytest
import toy_data
from bad_calls import LENGTH, PREDICTIONS, write_records

from bert_tf2.finetuning.classification import run as finetune_classifier
from bert_tf2.finetuning.options import ClassifierOptions
from bert_tf2.pretraining import run as pretraining
from bert_tf2.pretraining.options import PretrainingOptions
from bert_tf2.support import output_lock
from bert_tf2.support.errors import UserError

ROOT = pathlib.Path(__file__).resolve().parents[2]
_HOLD = """
import sys
from bert_tf2.support import output_lock
with output_lock.locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


class _Holder:
    """Another process that trains in a folder, as far as the lock can tell."""

    def __init__(self, folder: pathlib.Path):
        command = [sys.executable, "-c", _HOLD, str(folder)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "held\n"

    def end(self, how: str) -> None:
        getattr(self.process, how)()
        self.process.wait(timeout=30)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def holder(tmp_path):
    (tmp_path / "out").mkdir()
    found = _Holder(tmp_path / "out")
    yield found
    found.end("kill")


def test_a_second_training_is_refused(tmp_path, holder):
    assert output_lock.is_training_elsewhere(str(tmp_path / "out"))
    with pytest.raises(UserError) as caught, output_lock.locked(str(tmp_path / "out")):
        raise AssertionError
    assert str(caught.value).startswith(f"{tmp_path}/out: another training is running in this folder; wait for it")


def test_a_killed_process_keeps_no_lock(tmp_path, holder):
    holder.end("kill")
    assert not output_lock.is_training_elsewhere(str(tmp_path / "out"))
    with output_lock.locked(str(tmp_path / "out")):
        assert output_lock.is_training_elsewhere(str(tmp_path / "out"))
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
def test_evaluation_beside_a_training_leaves_its_records_alone(tmp_path):
    toy_data.write_tsv_task(tmp_path / "tables")
    model = toy_data.write_model(tmp_path, num_hidden_layers=1)

    def run(**how):
        options = {"data_dir": str(tmp_path / "tables"), "output_dir": str(tmp_path / "out"), "max_seq_length": 16}
        columns = {**toy_data.TSV_COLUMNS, "task_name": "tsv"}
        return finetune_classifier.run(ClassifierOptions(**model, **options, **columns, **how))

    run(do_train=True, num_train_epochs=0.5)
    (tmp_path / "out" / "eval.tf_record").write_text("of the training")
    holder = _Holder(tmp_path / "out")
    try:
        with pytest.raises(UserError, match="another training is running"):
            run(do_train=True)
        assert run(do_eval=True)["global_step"] == 1
    finally:
        holder.end("kill")
    assert (tmp_path / "out" / "eval.tf_record").read_text() == "of the training"
    assert run(do_eval=True)["global_step"] == 1
    assert (tmp_path / "out" / "eval.tf_record").read_bytes() != b"of the training"


def test_pretraining_takes_the_same_lock(tmp_path, holder):
    model = toy_data.write_model(tmp_path, num_hidden_layers=1)
    write_records(tmp_path / "records")
    settings = {"input_file": str(tmp_path / "records"), "output_dir": str(tmp_path / "out")}
    settings |= {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS}
    options = PretrainingOptions(bert_config_file=model["bert_config_file"], do_train=True, **settings)
    with pytest.raises(UserError, match="another training is running"):
        pretraining.run(options)


def test_a_folder_that_cannot_be_locked_is_used_with_a_warning(tmp_path, monkeypatch, log_lines):
    def fail(*arguments, **settings):
        raise OSError("no locks available")

    monkeypatch.setattr(output_lock.filelock.FileLock, "acquire", fail)
    with output_lock.locked(str(tmp_path)):
        pass
    assert [line for line in log_lines if "cannot be locked (no locks available)" in line]
