"""Variables that are frozen before a training begins."""

import pytest
from small_models import MAKERS, small_batch, tiny_config, values_of
from small_trainings import ONE, endless, make_trainer

from bert_tf2.support.errors import UserError
from bert_tf2.training.loop import Trainer
from bert_tf2.training.options import TrainOptions
from bert_tf2.weights import checkpoint

BIAS, POSITIONS = "cls/predictions/output_bias", "bert/embeddings/position_embeddings"


def test_a_frozen_variable_stays_and_has_no_slots(tmp_path):
    """Thawed, it cannot go on."""
    model = MAKERS["pretraining"](tiny_config())
    before = values_of(model)
    model.masked_lm.output_bias.trainable = model.bert.embeddings.trainable = False
    assert not {BIAS, POSITIONS} & checkpoint.trained_variables(model).keys()
    assert {BIAS, POSITIONS} <= checkpoint.used_variables(model).keys()
    schedule = {"learning_rate": 1e-3, "num_train_steps": 2, "num_warmup_steps": 0, "train_batch_size": 4}
    trainer = Trainer(model, ONE, TrainOptions(output_dir=str(tmp_path), **schedule))
    trainer.start()
    trainer.train(endless(small_batch()))
    after = values_of(model)
    assert [(after[name] == before[name]).all() for name in (BIAS, POSITIONS)] == [True, True]
    assert (after["cls/seq_relationship/output_bias"] != 0).any()
    shapes = checkpoint.Checkpoint(str(tmp_path)).shapes
    assert BIAS in shapes and f"{BIAS}/adam_m" not in shapes
    with pytest.raises(UserError, match="/adam_m"):
        make_trainer(tmp_path, num_train_steps=4).start()
