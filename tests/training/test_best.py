"""The best weights of a training whose evaluations are repeated."""

from __future__ import annotations

from small_models import MAKERS, tiny_config

from bert_tf2.training.saver import Best


def test_an_evaluation_that_is_repeated_after_a_damaged_checkpoint_counts_once(tmp_path):
    model = MAKERS["classifier"](tiny_config())
    best = Best(str(tmp_path), begun=False, patience=2)
    assert [best.update(model, step, "accuracy", value) for step, value in ((1, 0.5), (2, 0.4))] == [False, False]
    again = Best(str(tmp_path), begun=True, patience=2)
    assert not again.update(model, 1, "accuracy", 0.5) and not again.update(model, 2, "accuracy", 0.4)
    assert again.last_step == 2
    assert again.update(model, 3, "accuracy", 0.3)  # the second one without improvement
