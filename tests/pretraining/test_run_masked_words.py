"""run_pretraining.py --objective=mlm: what is trained, evaluated, kept, refused, and what its checkpoint is for."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import LENGTH, PREDICTIONS, VOCAB, randomize, small_batch, tiny_config

from bert_tf2 import heads
from bert_tf2.data import records
from bert_tf2.pretraining import predict_masked
from bert_tf2.pretraining import run as pretraining
from bert_tf2.pretraining.options import PretrainingOptions
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint, names

POOLER = {row.reference for row in names.POOLER}
SENTENCES = {row.reference for row in names.NEXT_SENTENCE}


def write(path, kind):
    batch = small_batch(6)
    rows = [{name: np.ravel(batch[name][i]).tolist() for name in kind.features} for i in range(6)]
    records.write_records(str(path), kind, rows)


@pytest.fixture
def make_options(tmp_path):
    """Options for a tiny model; `words` and `pairs` are records without and with labels of next sentences."""
    (tmp_path / "config.json").write_text(tiny_config().to_json_string())
    write(tmp_path / "words", records.MASKED_WORDS)
    write(tmp_path / "pairs", records.PRETRAINING)
    settings = {
        "bert_config_file": str(tmp_path / "config.json"),
        "input_file": str(tmp_path / "words"),
        "output_dir": str(tmp_path / "run"),
        "objective": "mlm",
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        **{"train_batch_size": 4, "eval_batch_size": 4, "num_train_steps": 2, "num_warmup_steps": 1},
        "max_eval_steps": 3,
    }
    return lambda **changes: PretrainingOptions(**{**settings, **changes})


def saved(model, folder) -> str:
    folder.mkdir()
    randomize(model)
    checkpoint.save(str(folder / "model.ckpt-7"), checkpoint.tf1_variables(model), 7)
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    return str(folder)


@pytest.mark.slow
def test_from_random_weights_and_on(make_options, tmp_path, log_lines):
    results = pretraining.run(make_options(do_train=True, do_eval=True))
    assert {*results} == {"global_step", "loss", "masked_lm_accuracy", "masked_lm_loss"}
    lines = (tmp_path / "run" / "eval_results.txt").read_text().splitlines()
    assert [line.split(" = ")[0] for line in lines] == ["global_step", "loss", "masked_lm_accuracy", "masked_lm_loss"]
    found = checkpoint.open_weights(str(tmp_path / "run")).shapes
    assert not {*found} & (POOLER | SENTENCES)
    assert "cls/predictions/output_bias/adam_m" in found
    pretraining.run(make_options(do_train=True, num_train_steps=3))
    assert f"Continuing from {tmp_path}/run/model.ckpt-2 at step 2" in log_lines

    # What is made of it: the answers of a masked-LM head, and a classifier, whose pooler is new.
    model = predict_masked.load_model(tiny_config(), str(tmp_path / "run"))
    logits = model({name: small_batch()[name] for name in ("input_ids", "input_mask", "masked_lm_positions")})
    assert logits.shape == (4, PREDICTIONS, VOCAB)
    said = checkpoint.initialize(heads.ClassifierModel(tiny_config(), 2), str(tmp_path / "run"))
    fresh = "bert/pooler/dense/bias, bert/pooler/dense/kernel, output_bias, output_weights"
    assert f"starting fresh: {fresh};" in said


@pytest.mark.slow
def test_the_pooler_of_the_initial_weights_is_kept_as_it_is(make_options, tmp_path):
    start = saved(heads.PretrainingModel(tiny_config()), tmp_path / "start")
    pretraining.run(make_options(do_train=True, init_checkpoint=start))
    pretraining.run(make_options(do_train=True, init_checkpoint=start, num_train_steps=3))  # from output_dir
    before, after = (checkpoint.open_weights(str(tmp_path / name)) for name in ("start", "run"))
    assert {*after.shapes} >= POOLER and not SENTENCES & {*after.shapes}
    for name in POOLER:
        np.testing.assert_array_equal(after.get(name), before.get(name))
        assert f"{name}/adam_m" not in after.shapes
    kernel = "bert/encoder/layer_0/output/dense/kernel"
    assert (after.get(kernel) != before.get(kernel)).any()


def test_masked_words_are_evaluated_as_with_next_sentences(make_options, tmp_path):
    """Records with labels are fine too: these are ignored."""
    start = saved(heads.PretrainingModel(tiny_config()), tmp_path / "start")
    pairs = str(tmp_path / "pairs")
    both = pretraining.run(
        make_options(do_eval=True, objective="mlm_nsp", input_file=pairs, init_checkpoint=start, output_dir=start)
    )
    for input_file in (pairs, str(tmp_path / "words")):
        words = pretraining.run(make_options(do_eval=True, input_file=input_file, init_checkpoint=start))
        assert words["masked_lm_loss"] == pytest.approx(both["masked_lm_loss"], rel=1e-6)
        assert words["masked_lm_accuracy"] == both["masked_lm_accuracy"]
        assert words["loss"] == pytest.approx(both["loss"] - both["next_sentence_loss"], rel=0.05)
        assert len(words) == 4


def test_records_without_labels_need_the_objective(make_options):
    with pytest.raises(UserError) as caught:
        pretraining.run(make_options(do_train=True, objective="mlm_nsp"))
    assert str(caught.value).endswith(
        "words, record 1: has no feature next_sentence_labels, so it is for masked words only; give --objective=mlm"
    )


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (
            lambda: heads.MaskedLMModel(tiny_config(), has_pooler=False),
            {"objective": "mlm_nsp", "do_eval": True},
            r"run/model\.ckpt-7: was trained with masked words only; give --objective=mlm$",
        ),
        (
            lambda: heads.PretrainingModel(tiny_config()),
            {"do_train": True},
            r"next sentences too; .* give another --output_dir and --init_checkpoint=.*/model\.ckpt-7$",
        ),
    ],
)
def test_another_objective_in_the_same_folder(make_options, tmp_path, model, changes, message):
    saved(model(), tmp_path / "run")
    with pytest.raises(UserError, match=message):
        pretraining.run(make_options(input_file=str(tmp_path / "pairs"), **changes))
