"""Trainings with packed rows make the updates of those without, on one device or two, and go on exactly."""

import json
import pathlib

import numpy as np
import pytest
import toy_data
import unmasked_data
from pretraining_text import VOCABULARY
from refused import message_of
from small_models import randomize, tiny_config
from small_trainings import ONE, make_trainer, saved

from bert_tf2 import commands
from bert_tf2.data import record_index, record_order, records
from bert_tf2.fast.encoder import Plan
from bert_tf2.training.saver import TrainingState

WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LENGTH, PREDICTIONS, WORDS = 20, 3, 23
SIZES = {
    "max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, "vocab_size": WORDS, "type_vocab_size": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> str:
    """A file of 30 pretraining examples, from short ones to one as long as a row."""
    random = np.random.default_rng(2)

    def example(length):
        mask = np.arange(LENGTH) < length
        used = np.arange(PREDICTIONS) < max(1, length // 6)
        return {
            "input_ids": random.integers(5, WORDS, LENGTH) * mask,
            "input_mask": mask * 1,
            "segment_ids": random.integers(0, 2, LENGTH) * mask,
            "masked_lm_positions": random.choice(length, PREDICTIONS, replace=False) * used,
            "masked_lm_ids": random.integers(5, WORDS, PREDICTIONS) * used,
            "masked_lm_weights": used * 1.0,
            "next_sentence_labels": random.integers(0, 2, 1),
        }

    path = str(tmp_path_factory.mktemp("examples") / "examples")
    records.write_records(path, records.PRETRAINING, (example(3 + number % 18) for number in range(30)))
    return path


def moments(folder):
    """The moments of Adam in the newest checkpoint: sums of the gradients of the steps, one after the other."""
    state = saved(folder)
    return np.concatenate([state[name].ravel() for name in sorted(state) if name.endswith("/adam_m")])


def distance(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def train(path, folder, strategy=ONE, pack_rows=True, **settings):
    """Three steps; returns `moments`."""
    settings = {"train_batch_size": 8, "num_train_steps": 3, "pack_rows": pack_rows, **settings}
    trainer = make_trainer(folder, config=WITHOUT_DROPOUT, strategy=strategy, plan=Plan(), **settings)
    randomize(trainer.model)
    batches = record_order.read_records(
        [path], records.PRETRAINING, SIZES, settings["train_batch_size"], shuffle_seed=1, repeat=True,
        drop_remainder=True, index=record_index.read_index([path]), share=trainer.share,
    )  # fmt: skip
    parts = settings.get("gradient_accumulation_steps", 1)
    trainer.train(record_order.with_packed_rows(batches, parts) if pack_rows else batches)
    return moments(folder)


@pytest.mark.parametrize(
    ("replicas", "settings", "tolerance"),
    [
        (1, {}, 1e-5),
        pytest.param(1, {"gradient_accumulation_steps": 2}, 1e-5, marks=pytest.mark.slow),
        pytest.param(2, {}, 1e-5, marks=pytest.mark.slow),
        (2, {"train_batch_size": 7}, 1e-5),  # 3 and 4 examples
        pytest.param(2, {"precision": "float16", "gradient_accumulation_steps": 2}, 0.02, marks=pytest.mark.slow),
        pytest.param(1, {"xla": "true"}, 1e-4, marks=[pytest.mark.slow, pytest.mark.compiled]),
        pytest.param(2, {"xla": "true"}, 1e-4, marks=[pytest.mark.slow, pytest.mark.compiled]),
    ],
)
def test_the_updates_are_those_of_padded_rows(replicas, settings, tolerance, two, examples, tmp_path):
    size = {name: settings[name] for name in ("train_batch_size", "precision") if name in settings}
    wanted = train(examples, tmp_path / "padded", pack_rows=False, **size)
    found = train(examples, tmp_path / "packed", two if replicas == 2 else ONE, **settings)
    assert distance(found, wanted) < tolerance


# The scripts


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("corpus")
    unmasked_data.make(folder, short_seq_prob=0.5)
    for name, rate in (("config", 0.1), ("plain", 0.0)):
        rates = {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
        config = tiny_config(vocab_size=len(VOCABULARY), max_position_embeddings=unmasked_data.LENGTH, **rates)
        (folder / f"{name}.json").write_text(config.to_json_string())
    return folder


def pretrain(corpus, out, config="config", **changes):
    return commands.call(
        "run_pretraining", bert_config_file=f"{corpus}/{config}.json", vocab_file=f"{corpus}/vocab.txt",
        input_file=f"{corpus}/out", output_dir=str(out), max_seq_length=unmasked_data.LENGTH,
        max_predictions_per_seq=unmasked_data.PREDICTIONS, num_warmup_steps=2, max_eval_steps=2,
        **{"do_train": True, "num_train_steps": 7, "train_batch_size": 6, "pack_rows": True, **changes},
    )  # fmt: skip


def bytes_of(out: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.glob("model.ckpt-7.*")}


@pytest.mark.slow
def test_a_stopped_pretraining_ends_with_the_same_bytes(corpus, tmp_path, log_lines):
    """With dropout, and parts of a batch: what is drawn at a place depends on where the examples are."""
    how = {"gradient_accumulation_steps": 2}
    pretrain(corpus, tmp_path / "whole", **how)
    for stop in (3, 5, None):
        pretrain(corpus, tmp_path / "parts", stop_at_step=stop, **how)
    assert not [line for line in log_lines if "Not an exact continuation" in line]
    assert bytes_of(tmp_path / "parts") == bytes_of(tmp_path / "whole")
    assert TrainingState.read(str(tmp_path / "parts/model.ckpt-7")).examples == 7 * 6
    pretrain(corpus, tmp_path / "parts", pack_rows=False, num_train_steps=8, **how)
    (told,) = (line for line in log_lines if "Not an exact continuation" in line)
    assert "pack_rows: True before, False now: the dropout changes from here on" in told


@pytest.mark.slow
def test_a_pretraining_ends_near_that_with_padding(corpus, tmp_path):
    """Without dropout, by the results of an evaluation."""
    how = {"config": "plain", "do_eval": True, "eval_input_file": f"{corpus}/out", "do_train": False}
    results = []
    for pack_rows in (False, True):
        out = tmp_path / str(pack_rows)
        pretrain(corpus, out, "plain", pack_rows=pack_rows, learning_rate=1e-3)
        results.append(pretrain(corpus, out, **how, pack_rows=pack_rows, eval_batch_size=7))
    padded, packed = results
    assert packed == pytest.approx(padded, rel=1e-4)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> dict[str, dict]:
    """The settings of each fine-tuning script, and the file with its predictions."""
    folder = tmp_path_factory.mktemp("tasks")
    toy_data.write_tsv_task(folder / "tables")
    shared = {
        **toy_data.write_model(folder, num_hidden_layers=1), "do_train": True, "do_predict": True, "max_seq_length": 32,
        "train_batch_size": 16, "num_train_epochs": 1.0, "learning_rate": 1e-3, "pad_to_max_length": False,
        "unpad": "groups",
    }  # fmt: skip
    squad, conll = (getattr(toy_data, f"write_{kind}")(folder / kind, 40, 1) for kind in ("squad", "conll"))
    squad = {"train_file": squad, "predict_file": squad, "max_query_length": 8, "doc_stride": 8}
    table = {"data_dir": str(folder / "tables"), "task_name": "tsv", **toy_data.TSV_COLUMNS}
    return {
        "run_classifier": {**shared, **table},
        "run_squad": {**shared, **squad},
        "run_ner": {**shared, "word_column": 2, "train_file": conll, "predict_file": conll},
    }


def predictions(script, folder):
    if script == "run_squad":
        return json.loads((folder / "predictions.json").read_text())
    name = {"run_classifier": "test_results.tsv", "run_ner": "predictions.txt"}[script]
    return (folder / name).read_text().split()


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", ["run_classifier", *(pytest.param(x, marks=pytest.mark.slow) for x in ("run_squad", "run_ner"))]
)
def test_a_fine_tuned_model_is_that_of_rows_without_padding(script, tasks, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf2.heads.ClassifierModel.head_dropout", 0.0)
    monkeypatch.setattr("bert_tf2.heads.TaggingModel.head_dropout", 0.0)
    unpadded, packed = tmp_path / "unpadded", tmp_path / "packed"
    commands.call(script, **tasks[script], output_dir=str(unpadded))
    commands.call(script, **{**tasks[script], "unpad": "auto"}, output_dir=str(packed), pack_rows=True)
    assert distance(moments(packed), moments(unpadded)) < 1e-4
    if script == "run_classifier":
        found, wanted = ([float(x) for x in predictions(script, folder)] for folder in (packed, unpadded))
        np.testing.assert_allclose(found, wanted, atol=1e-3)
    else:
        assert predictions(script, packed) == predictions(script, unpadded)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pad_to_max_length": True, "unpad": "auto"}, "--pack_rows computes no padding, so it needs --nopad_to_max"),
        ({}, "--pack_rows and --unpad=groups both leave out padding: give one of them"),
        ({"use_tpu": True}, "--pack_rows and --use_tpu exclude each other"),
    ],
)
def test_what_excludes_packed_rows(changes, said, tasks, tmp_path):
    given = {**tasks["run_squad"], "output_dir": str(tmp_path), "pack_rows": True, **changes}
    assert said in message_of(commands.call, "run_squad", **given)
