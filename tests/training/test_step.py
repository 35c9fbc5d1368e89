"""The update of a batch is the same however it is computed: by two replicas, in parts, in float16, compiled by XLA."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from executed_graphs import executed
from refused import refuses
from small_models import GOLDEN, MAKERS, batch_for, needs_golden, randomize, small_batch, values_of
from small_trainings import ONE, endless, make_trainer, saved

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.fast.encoder import Plan
from bert_tf2.training.options import LoopOptions
from bert_tf2.training.step import LossScale, TrainingStep
from bert_tf2.weights import checkpoint


def train(folder, kind, strategy=ONE, steps=2, batch=None, head_dropout=0.0, **settings):
    """Some steps with a batch of 8 from random weights; returns the contents of the checkpoint."""
    trainer = make_trainer(
        folder, kind, strategy=strategy, **{"num_train_steps": steps, "train_batch_size": 8, **settings}
    )
    trainer.model.head_dropout = head_dropout
    randomize(trainer.model)
    trainer.start()
    trainer.train(endless(batch_for(kind, 8) if batch is None else batch))
    return saved(folder)


@pytest.fixture(scope="module")
def plainly(tmp_path_factory):
    """kind -> what one replica makes of the batch as a whole, in float32 and without XLA."""
    return functools.cache(lambda kind: train(tmp_path_factory.mktemp(kind), kind))


WAYS = {
    "parts": {"gradient_accumulation_steps": 4},
    "replicas": {"strategy": "two", "plan": Plan(share_graph=True)},
    "programs": {"strategy": "two", "xla": "true"},
    "on GPUs": {"strategy": "two"},
    "on a GPU": {"xla": "true"},
    "narrow sums": {"strategy": "two", "all_reduce_dtype": "bfloat16"},
    "float16": {"precision": "float16"},
}
SLOW = [
    *((kind, "parts") for kind in MAKERS if kind != "span"),
    *((kind, "replicas") for kind in ("pretraining", "masked_words", "classifier", "tagging")),
    *(("pretraining", "float16"), ("span", "narrow sums"), ("span", "programs"), ("span", "on a GPU")),
]


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *(("span", way) for way in ("parts", "replicas", "float16")),
        *(pytest.param(*case, marks=[pytest.mark.slow, pytest.mark.compiled]) for case in SLOW),
    ],
)
def test_an_update_is_the_same_in_every_way(tmp_path, plainly, two, monkeypatch, kind, way):
    """Compares the gradients' sums, because Adam enlarges the rounding of a gradient that is 0."""
    wanted = plainly(kind)
    if way in ("on GPUs", "on a GPU"):
        monkeypatch.setattr("bert_tf2.training.step.computes_on", lambda strategy: "GPU")
        monkeypatch.setattr("bert_tf2.training.step._ONE_GPU", "/CPU:1")
    how = {**WAYS[way], **({"strategy": two} if "strategy" in WAYS[way] else {})}
    found: list[dict] = []
    nodes = executed(lambda: found.append(train(tmp_path, kind, **how)))
    programs = [node for node in nodes if node.attr["_XlaMustCompile"].b]
    if way in ("programs", "on GPUs", "on a GPU"):  # for each replica the update, and among programs the gradients
        assert len(programs) == {"programs": 4, "on GPUs": 2, "on a GPU": 1}[way]
    if way == "on a GPU":  # the host makes no number that a program would have to wait for
        makers = {node.name: node for node in nodes}
        given = zip(programs[0].input, programs[0].attr["Tin"].list.type, strict=True)
        whole = [makers[name.split(":")[0]] for name, dtype in given if dtype == tf.int32.as_datatype_enum]
        assert whole and all(node.op == "IteratorGetNext" and node.device.endswith("CPU:1") for node in whole)
    (found,) = found
    assert {*found} - {*wanted} == ({"loss_scale", "loss_scale_good_steps"} if way == "float16" else set())
    gradients = [name for name in wanted if name.endswith("/adam_m")]
    ours, plain = (np.concatenate([state[name].ravel() for name in gradients]) for state in (found, wanted))
    tolerance = {"float16": 0.02, "narrow sums": 0.01}.get(way, 1e-5)
    assert np.linalg.norm(plain) > 0 and np.linalg.norm(ours - plain) < tolerance * np.linalg.norm(plain)
    if way in ("float16", "narrow sums"):
        assert (ours != plain).any()
        return
    for name, value in wanted.items():
        if name.endswith(("/adam_m", "/adam_v")):
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-7, err_msg=name)
    words = found["bert/embeddings/word_embeddings/adam_m"]
    assert np.abs(words[np.unique(batch_for(kind, 8)["input_ids"])]).min(axis=1).max() > 0  # lookups had their gradient


def test_parts_steps_and_seeds_drop_other_values_each():
    """The same row twice: without other dropout for each part, all parts would have the same loss."""
    batch = {name: np.repeat(values[:1], 2, axis=0) for name, values in batch_for("pretraining", 8).items()}
    batch["masked_lm_weights"] = np.ones_like(batch["masked_lm_weights"])
    batch = {name: tf.constant(values) for name, values in batch.items()}
    losses = []
    for way, steps in (({}, (0, 1, 0)), ({"gradient_accumulation_steps": 2}, (0,)), ({"random_seed": 2}, (0,))):
        settings = {"train_batch_size": 2, "learning_rate": 0.0, "config": {"hidden_dropout_prob": 0.5}}
        compute = make_trainer(**settings, **way).step.compiled().python_function  # eagerly
        losses += [float(compute(batch, tf.constant(step, tf.int64))["masked_lm_loss"]) for step in steps]
    assert losses[0] == losses[2] and len({*losses}) == 4


@pytest.mark.slow
def test_replicas_drop_different_values(tmp_path, two):
    """Both halves of the batch are the same: two replicas that dropped the same values would act as one on a half."""
    half = {name: values[4:] for name, values in small_batch(8).items()}
    batch = {name: np.concatenate([values, values]) for name, values in half.items()}
    how = {"config": {"hidden_dropout_prob": 0.3}, "steps": 1, "learning_rate": 0.0}
    both = train(tmp_path / "two", "pretraining", two, batch=batch, **how)
    one = train(tmp_path / "half", "pretraining", batch=half, train_batch_size=4, **how)
    name = "cls/seq_relationship/output_weights/adam_m"
    assert np.abs(both[name] - one[name]).max() > 1e-4


def test_a_batch_that_cannot_be_divided():
    words = "--train_batch_size=6 --gradient_accumulation_steps=4"
    refuses(words, make_trainer, train_batch_size=6, gradient_accumulation_steps=4)


# float16


def test_the_scale_grows_after_many_good_steps():
    scale, applied = LossScale(steps_before_growth=3), tf.Variable(0)
    seen = []
    for norm in (1.0, 1.0, 1.0, 1.0, float("inf"), 1.0, float("nan"), 1.0, 1.0, 1.0):
        left_out = scale.apply(tf.constant(norm), lambda: applied.assign_add(1))
        seen.append((float(left_out), float(scale.scale) / 2**15))
    expected = [(0, 1), (0, 1), (0, 2), (0, 2), (1, 1), (0, 1), (1, 0.5), (0, 0.5), (0, 0.5), (0, 1)]
    assert seen == expected and int(applied) == 8
    highest, lowest = LossScale(2.0**30, steps_before_growth=1), LossScale(1.0)
    highest.apply(tf.constant(1.0), lambda: None)
    lowest.apply(tf.constant(float("inf")), lambda: None)
    assert float(highest.scale) == 2.0**30 and float(lowest.scale) == 1.0


def test_a_gradient_that_no_scale_makes_finite_ends_the_training(tmp_path):
    """The root of 0 has an infinite gradient. Each step before halves the scale of 2^15."""
    trainer = make_trainer(tmp_path, "span", precision="float16", num_train_steps=40)
    bias, of_model = trainer.model.output_layer.output_bias, trainer.model.loss_terms

    def loss_terms(batch, dropout_seed):
        (term,) = of_model(batch, dropout_seed)
        return [term._replace(total=term.total + tf.sqrt(tf.reduce_sum(tf.convert_to_tensor(bias)) * 0.0))]

    trainer.model.loss_terms = loss_terms
    trainer.start()
    refuses("step 16: not finite", trainer.train, endless(batch_for("span")))


@pytest.mark.slow
def test_a_checkpoint_keeps_the_scale_and_a_training_in_float32_has_none(tmp_path):
    for steps, precision, good_steps in (
        (2, "float32", None),
        (4, "float16", 2),
        (6, "float16", 4),
        (8, "float32", None),
    ):
        trainer = make_trainer(tmp_path, num_train_steps=20, stop_at_step=steps, precision=precision)
        trainer.start()
        assert trainer.train(endless(batch_for("pretraining"))) == steps
        found = saved(tmp_path)
        assert found.get("loss_scale_good_steps") == good_steps
        assert found.get("loss_scale") == (2.0**15 if precision == "float16" else None)


# The reference's numbers


@needs_golden
def test_classifier_steps_equal_the_reference():
    """Without any dropout, with words that occur twice: the norm counts the rows of the word table one by one."""
    golden = np.load(GOLDEN / "unit" / "classifier_steps.npz")
    model = heads.ClassifierModel(BertConfig.from_json_file(str(GOLDEN / "config" / "bert_config_nodropout.json")), 2)
    model.head_dropout = 0.0
    checkpoint.initialize(model, str(GOLDEN / "ckpt" / "tasks" / "model.ckpt"))
    initial, steps = values_of(model), golden["num_train_steps"].item()
    schedule = {"num_train_steps": steps, "num_warmup_steps": golden["num_warmup_steps"].item()}
    options = LoopOptions(output_dir="", learning_rate=golden["init_lr"].item(), train_batch_size=6, **schedule)
    compute = TrainingStep(model, ONE, options).compiled()
    batch = {name: tf.constant(golden[name]) for name in ("input_ids", "input_mask", "segment_ids", "label_ids")}
    for step in range(20):
        if step % 6 == 0:
            np.testing.assert_allclose(model(batch), golden["logits"][step], rtol=1e-4, atol=2e-5, err_msg=str(step))
        found = compute(batch, tf.constant(step, tf.int64))
        for name, golden_name in (("loss", "loss"), ("gradient_norm", "norm_of_slices_not_summed")):
            np.testing.assert_allclose(found[name], golden[golden_name][step], rtol=1e-4, atol=2e-5, err_msg=name)
    for name, value in values_of(model).items():
        wanted = golden[f"final|{name}"]
        error = np.abs(value - wanted).max()
        assert error <= 1e-4 * np.abs(wanted).max(), name
        if not name.endswith("key/bias"):  # its true gradient is zero
            assert error <= 1e-3 * np.abs(wanted - initial[name]).max(), name
