"""What is frozen before training begins."""

import numpy as np
import pytest
from small_models import MAKERS, small_batch, tiny_config, values_of
from small_trainings import ONE, endless

from bert_tf2.support.errors import UserError
from bert_tf2.training.devices import build_model
from bert_tf2.training.loop import Trainer
from bert_tf2.training.options import TrainOptions
from bert_tf2.weights import checkpoint

BIAS, POSITIONS = "cls/predictions/output_bias", "bert/embeddings/position_embeddings"


def train(folder, steps: int, freeze: bool) -> dict[str, np.ndarray]:
    model = build_model(ONE, lambda: MAKERS["pretraining"](tiny_config()), 1)
    model.masked_lm.output_bias.trainable = not freeze
    schedule = {"learning_rate": 1e-3, "num_train_steps": steps, "num_warmup_steps": 0, "train_batch_size": 4}
    trainer = Trainer(model, ONE, TrainOptions(output_dir=str(folder), **schedule))
    trainer.start()
    trainer.train(endless(small_batch()))
    return values_of(model)


def test_a_frozen_variable_stays_and_has_no_slots(tmp_path):
    trained = train(tmp_path, 2, freeze=True)
    assert not trained[BIAS].any() and trained["cls/seq_relationship/output_bias"].any()
    shapes = checkpoint.Checkpoint(str(tmp_path)).shapes
    assert BIAS in shapes and f"{BIAS}/adam_m" not in shapes
    assert not train(tmp_path, 4, freeze=True)[BIAS].any()
    with pytest.raises(UserError, match=f"{BIAS}/adam_m"):
        train(tmp_path, 6, freeze=False)


def test_what_is_frozen_still_counts_as_used():
    model = MAKERS["pretraining"](tiny_config())
    model.bert.embeddings.trainable = False
    trained = checkpoint.trained_variables(model)
    assert POSITIONS not in trained and BIAS in trained and POSITIONS in checkpoint.used_variables(model)
