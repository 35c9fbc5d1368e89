"""Trainings with packed rows make the updates of those without, on one device or two, and go on exactly."""

import json

import numpy as np
import pytest
import toy_data
from refused import refuses
from small_models import LENGTH, PREDICTIONS, VOCAB, batch_for, randomize
from small_trainings import ONE, make_trainer, saved
from substitute_kernels import attend_on_cpu

from bert_tf2.commands import call
from bert_tf2.data import batching, record_index, record_order, records
from bert_tf2.fast.encoder import Plan
from bert_tf2.finetuning.options import SquadOptions

SIZES = {
    "max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, "vocab_size": VOCAB, "type_vocab_size": 2,
}  # fmt: skip


def moments(folder):
    """The moments of Adam in the newest checkpoint: sums of the gradients of the steps, one after the other."""
    state = saved(folder)
    return np.concatenate([state[name].ravel() for name in sorted(state) if name.endswith("/adam_m")])


def train(folder, strategy=ONE, pack_rows=True, plan=Plan(), at_padding=False, **settings):  # noqa: B008
    """Three steps with examples of all lengths; returns `moments`. `at_padding`: some words are predicted there."""
    rows = batch_for("pretraining", 30)
    if at_padding:
        rows["masked_lm_positions"][::3, 0], rows["masked_lm_weights"][::3, 0] = LENGTH - 1, 1.0
    rows["next_sentence_labels"] = rows["next_sentence_labels"][:, None]
    for name in ("start_positions", "end_positions", "label_ids"):
        del rows[name]
    folder.mkdir()
    records.write_records(
        path := str(folder / "records"),
        records.PRETRAINING,
        ({name: values[number] for name, values in rows.items()} for number in range(30)),
    )
    settings = {"train_batch_size": 8, "num_train_steps": 3, "pack_rows": pack_rows, **settings}
    trainer = make_trainer(folder, strategy=strategy, plan=plan, **settings)
    randomize(trainer.model)
    batches = record_order.read_records(
        [path], records.PRETRAINING, SIZES, settings["train_batch_size"], shuffle_seed=1, repeat=True,
        drop_remainder=True, index=record_index.read_index([path]), share=trainer.share,
    )  # fmt: skip
    parts = settings.get("gradient_accumulation_steps", 1)
    trainer.train(batching.with_packed_rows(batches, parts) if pack_rows else batches)
    return moments(folder)


SLOW = [
    (1, {}, 1e-5),
    (1, {"gradient_accumulation_steps": 8}, 1e-5),  # an example in each part
    (2, {"precision": "float16", "gradient_accumulation_steps": 2}, 0.02),
    *((replicas, {"xla": "true"}, 1e-4) for replicas in (1, 2)),
]


@pytest.mark.parametrize(
    ("replicas", "settings", "tolerance"),
    [
        (2, {"train_batch_size": 7}, 1e-5),  # 3 and 4 examples
        *(pytest.param(*case, marks=[pytest.mark.slow, pytest.mark.compiled]) for case in SLOW),
    ],
)
def test_the_updates_are_those_of_padded_rows(replicas, settings, tolerance, two, tmp_path):
    size = {name: settings[name] for name in ("train_batch_size", "precision") if name in settings}
    wanted = train(tmp_path / "padded", pack_rows=False, **size)
    found = train(tmp_path / "packed", two if replicas == 2 else ONE, **settings)
    assert np.linalg.norm(found - wanted) < tolerance * np.linalg.norm(wanted)


def test_words_at_padding_have_the_state_of_padded_rows(tmp_path):
    """Records of other programs may have such predictions."""
    wanted = train(tmp_path / "padded", pack_rows=False, at_padding=True)
    found = train(tmp_path / "packed", at_padding=True)
    assert np.linalg.norm(found - wanted) < 1e-5 * np.linalg.norm(wanted)


@pytest.mark.slow
@pytest.mark.compiled
def test_attention_in_one_kernel_has_a_program_for_each_number_of_rows(tmp_path):
    """With a substitute for the kernel, which needs the number of rows when a graph is built."""
    config, calls = {"num_hidden_layers": 2, "num_attention_heads": 1}, []
    wanted = train(tmp_path / "padded", pack_rows=False, config=config)
    plan = Plan(attention=lambda query, *others: calls.append(query.shape[0]) or attend_on_cpu(query, *others))
    found = train(tmp_path / "packed", plan=plan, config=config, xla="true")
    assert len(calls) == len({*calls}) > 1  # the first of two blocks; the last has plain attention
    assert np.linalg.norm(found - wanted) < 1e-4 * np.linalg.norm(wanted)


# The scripts; test_kills.py continues a pretraining


@pytest.mark.slow
def test_a_fine_tuned_model_is_that_of_rows_without_padding(tmp_path):
    """Of run_squad.py, whose head has no dropout."""
    questions = toy_data.write_squad(tmp_path / "squad", 40, 1)
    files = {**toy_data.write_model(tmp_path, num_hidden_layers=1), "train_file": questions, "predict_file": questions}
    sizes = {"max_seq_length": 32, "max_query_length": 8, "doc_stride": 8, "train_batch_size": 16}
    squad = {**files, **sizes, "do_predict": True, "pad_to_max_length": False, "learning_rate": 1e-3}
    folders = [tmp_path / name for name in ("unpadded", "packed")]
    for folder, how in zip(folders, ({"unpad": "groups"}, {"pack_rows": True}), strict=True):
        call("run_squad", do_train=True, num_train_epochs=1.0, output_dir=str(folder), **squad, **how)
    wanted, found = map(moments, folders)
    assert np.linalg.norm(found - wanted) < 1e-4 * np.linalg.norm(wanted)
    wanted, found = (json.loads((folder / "predictions.json").read_text()) for folder in folders)
    assert found == wanted


@pytest.mark.parametrize("changes", [{"pad_to_max_length": True}, {"unpad": "groups"}, {"use_tpu": True}])
def test_packed_rows_and_padding_exclude_each_other(changes, tmp_path):
    how = {"do_train": True, "train_file": "x", "bert_config_file": "x", "vocab_file": "x", "pad_to_max_length": False}
    refuses(f"--pack_rows {next(iter(changes))}", SquadOptions, output_dir="out", pack_rows=True, **{**how, **changes})
