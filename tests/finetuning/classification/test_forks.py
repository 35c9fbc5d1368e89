"""Code of forks of the reference: a processor of one's own, and the names in the scripts' modules."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
import toy_data
from command_lines import ROOT, environment
from refused import message_of

import bert_tf2
from bert_tf2 import modeling
from bert_tf2.finetuning import classification
from bert_tf2.finetuning.classification import examples, tasks
from bert_tf2.finetuning.classification.examples import InputExample


def test_the_fork_of_the_guide(tmp_path):
    """Trained and asked with the flags of run_classifier.py; its folder is that of any classifier."""
    diff = re.search(r"```diff\n(.*?)```", (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    script = tmp_path / "run_reviews.py"
    script.write_text("".join(f"{line[1:]}\n" for line in diff.splitlines() if not line.startswith("-")))
    files = toy_data.write_model(tmp_path)
    toy_data.write_tsv_task(tmp_path / "data")
    flags = {**files, "task_name": "Reviews", "data_dir": tmp_path / "data", "output_dir": tmp_path / "out"}
    flags |= {"do_train": True, "do_eval": True, "do_predict": True, "class_weights": "balanced"}
    flags |= {"max_seq_length": 32, "learning_rate": 3e-3, "num_train_epochs": 5, "train_batch_size": 16}
    command = [sys.executable, str(script), *(f"--{name}={value}" for name, value in flags.items())]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    texts = [text for text, _ in toy_data.sentences(21, 2)]
    answers = bert_tf2.load(str(tmp_path / "out")).classify(texts)
    written = np.loadtxt(tmp_path / "out" / "test_results.tsv")
    np.testing.assert_allclose([[answer["no"], answer["yes"]] for answer in answers], written, atol=1e-5)
    assert "eval_accuracy = " in (tmp_path / "out" / "eval_results.txt").read_text()
    predicted = (tmp_path / "out" / "predictions.tsv").read_text().splitlines()
    assert predicted[1].startswith("test-t0\t")


class Bytes(classification.DataProcessor):
    """As a fork for Python 2 has it: texts in bytes, labels that are numbers; no test set."""

    def get_labels(self):
        return [0, 1]

    def get_train_examples(self, data_dir):
        return [InputExample("a", "caf\u00e9".encode(), b"b", 1)]

    def get_dev_examples(self, data_dir):
        return [InputExample("a", "b", None, 2)]


def test_a_processor_of_ones_own(monkeypatch):
    monkeypatch.setattr(tasks, "TASKS", {**tasks.TASKS})
    monkeypatch.setattr(examples, "TASKS", tasks.TASKS)
    classification.register("Own", Bytes)
    processor = classification.get_processor("OWN")
    assert processor.get_train_examples("") == [InputExample("a", "café", "b", "1")]
    assert processor.get_labels() == ["0", "1"]
    assert message_of(processor.get_dev_examples, "") == (
        "get_dev_examples of the task own, example 1: unknown label '2'; the known ones are 0, 1"
    )
    assert message_of(processor.get_test_examples, "") == (
        "there is no get_test_examples of the task own, which this call needs"
    )
    assert "is taken" in message_of(classification.register, "MRPC", Bytes)
    monkeypatch.setattr(Bytes, "get_labels", lambda self: ["a"])
    assert "two or more" in message_of(classification.register, "own", Bytes)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("run_classifier", "MrpcProcessor"),
        ("run_squad", "read_squad_examples"),
        ("run_pretraining", "get_masked_lm_output"),
        ("create_pretraining_data", "create_training_instances"),
        ("extract_features", "convert_examples_to_features"),
    ],
)
def test_names_of_the_scripts(script, name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    module = __import__(script)
    assert callable(getattr(module, name))
    with pytest.raises(AttributeError, match=f"{script}.py has no 'FLAGS': docs/migrating.md says"):
        _ = module.FLAGS


def test_a_model_as_forks_make_it():
    config = toy_data.config()
    said = message_of(modeling.BertModel, config=config, is_training=False, input_ids=[[1]], input_mask=None)
    assert "model = BertModel(config)" in said
