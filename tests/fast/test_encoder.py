"""A model that is made fast has the states, losses, gradients and dropout of the plain model, and keeps less memory."""

import collections
import threading

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from executed_graphs import executed
from hypothesis import strategies as st
from small_models import LENGTH, MAKERS, batch_for, randomize, small_config

from bert_tf2 import modeling
from bert_tf2.data import records
from bert_tf2.data.batching import packed
from bert_tf2.fast import blocks, compiled
from bert_tf2.fast.encoder import FastEncoder, Plan, accelerate, accelerated
from bert_tf2.training.gradients import LocalGradients, global_norm, reduce_gradients
from bert_tf2.training.options import PRECISIONS
from bert_tf2.weights import checkpoint

TOKENS, FIRSTS = records.PACKED
GROUPS, ALL = Plan("groups"), Plan("groups", recompute=True, share_graph=True)


def mask_of(lengths, width=6):
    return (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)


def lengths_of(mask):
    return np.where(mask.any(1), mask.shape[1] - mask[:, ::-1].argmax(1), mask.shape[1])


# States

MASKS = {
    "one row": mask_of([2]),
    "holes and a row of padding": np.array([[1, 0, 1, 0, 0, 0], [0] * 6, [0, 1, 1, 1, 0, 0]], np.int32),
    "more than 64 tokens": mask_of([1 + number % 6 for number in range(40)]),
}


MANY = [rows for rows in MASKS if rows != "one row"]


@pytest.mark.parametrize(
    ("way", "rows"),
    [
        ("padded", "holes and a row of padding"),
        *(("groups", rows) for rows in MASKS),
        *(("packed", rows) for rows in MANY),
    ],
)
def test_states_and_gradients_equal_those_of_the_padded_model(way, rows):
    """In a graph without gradients, where TensorFlow fuses products; and with gradients of a few states."""
    mask, random = MASKS[rows], np.random.default_rng(5)
    last = lengths_of(mask)
    ids, types = (tf.constant(random.integers(0, most, mask.shape), tf.int32) for most in (23, 2))
    most = last[:, None] if way == "packed" else mask.shape[1]  # a state of padding may be read, too
    reads = tf.constant(random.integers(0, most, [len(mask), 4]), tf.int32)
    how = {}
    if way == "packed":
        batch = packed({"input_mask": tf.constant(mask)})
        how = {"features": {name: batch[name] for name in (TOKENS, FIRSTS)}}
    randomize(model := modeling.BertModel(small_config()))
    fast = FastEncoder(model, Plan("groups" if way == "groups" else "none", recompute=True))
    tolerance = 2e-5 if mask.any(1).all() else 5e-3  # near -10000, float32 numbers are 1e-3 apart

    padded, sizes = model(ids, mask, types), [tf.TensorSpec([None, None], tf.int32)] * 3
    found = tf.function(lambda *inputs: fast(*inputs, **how), input_signature=sizes, autograph=False)(ids, mask, types)
    np.testing.assert_allclose(found.pooled_output, padded.pooled_output, atol=tolerance)
    computed = (np.arange(6) < last[:, None]) | (way == "padded")
    for ours, wanted in zip(
        (found.embedding_output, *found.all_encoder_layers),
        (padded.embedding_output, *padded.all_encoder_layers),
        strict=True,
    ):
        np.testing.assert_allclose(ours.numpy()[computed], wanted.numpy()[computed], atol=tolerance)
        assert not ours.numpy()[~computed].any()

    outcomes = []
    for encoder, reading in ((model, {}), (fast, {"reads": reads, **how})):
        with tf.GradientTape() as tape:
            output = encoder(ids, mask, types, **reading)
            states = output.sequence_output if reading else tf.gather(output.sequence_output, reads, batch_dims=1)
            total = tf.reduce_sum(tf.sin(output.pooled_output)) + tf.reduce_sum(tf.sin(states))
        gradients = map(tf.convert_to_tensor, tape.gradient(total, model.trainable_variables))
        outcomes.append((states, output.pooled_output, *gradients))
    for ours, wanted in zip(*outcomes, strict=True):
        np.testing.assert_allclose(ours, wanted, atol=tolerance, rtol=1e-4)


# Losses and gradients of each head


def made(kind, precision="float32", **changes):
    model = MAKERS[kind](small_config(**changes), dtype=PRECISIONS[precision].policy)
    model.head_dropout = 0.0
    randomize(model)
    return model


def batch_of(kind):
    """Whose labels are all at tokens, as in records; among 9 rows are a full one and one without predictions."""
    batch = batch_for(kind, 9)
    if kind == "tagging":
        batch["label_ids"] = np.where(batch["input_mask"] > 0, batch["label_ids"], -1)
    for name in ("start_positions", "end_positions"):
        batch[name] %= batch["input_mask"].sum(1)
    return {name: tf.constant(values) for name, values in batch.items()}


def step_of(model, parts=1, jit_compile=False):
    """A graph function: batch -> losses, gradients by name, and their norm."""
    compute = LocalGradients(model, checkpoint.trained_variables(model), parts)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def step(batch):
        losses, gradients = compute(batch, tf.constant([1, 2]))
        reduced = reduce_gradients(gradients)
        return losses, reduced.dense, global_norm(reduced)

    return step


DROPS = {"rate": 0.2}
QUICK = [
    ("pretraining", ALL, {}),
    ("span", Plan(recompute=True, share_graph=True), DROPS),
    ("classifier", Plan(share_graph=True), {"num_hidden_layers": 3, "frozen": (0, 2)}),
    ("pretraining", Plan(), {"rows": "packed"}),
    ("tagging", Plan(), {"rows": "packed", "parts": 3}),
    *((kind, Plan(), {"precision": "bfloat16", **how}) for kind, how in (("span", DROPS), ("pretraining", {}))),
]
SLOW = [
    *(("span", plan, DROPS) for plan in (Plan(), Plan(recompute=True), Plan(share_graph=True))),
    ("span", Plan(share_graph=True), {"precision": "float16", **DROPS}),
    *((kind, ALL, {"like": GROUPS, **DROPS}) for kind in ("pretraining", "span")),
    ("classifier", ALL, {"like": GROUPS, "precision": "bfloat16", **DROPS}),
    ("tagging", ALL, {"like": GROUPS, "parts": 3, "like_parts": 3, **DROPS}),
    *((kind, GROUPS, {}) for kind in MAKERS if kind != "span"),
    *((kind, ALL, {"rows": "packed", "num_hidden_layers": 3}) for kind in MAKERS if kind != "span"),
    ("span", ALL, {"like": GROUPS, "rows": "packed"}),
    *(("pretraining", Plan(), {"like": Plan(), "rows": "packed", "precision": p}) for p in ("bfloat16", "float16")),
    ("pretraining", Plan(), {"rows": "packed", "jit_compile": True}),
    ("span", Plan(recompute=True), {"jit_compile": True, **DROPS}),
    *(("pretraining", GROUPS, {"rows": rows, "few_sizes": True}) for rows in ("padded", "packed")),
]


@pytest.mark.parametrize(
    ("kind", "plan", "how"),
    [
        *QUICK[:1],
        pytest.param(*QUICK[1], marks=pytest.mark.compiled),
        *QUICK[2:],
        *(pytest.param(*case, marks=[pytest.mark.slow, pytest.mark.compiled]) for case in SLOW),
    ],
)
def test_losses_and_gradients_equal_those_of_the_plain_model(kind, plan, how):
    """Or of another plan, where a model without padding draws dropout, or chooses an answer, for fewer positions."""
    how = collections.defaultdict(lambda: None, how)
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), how["rate"] or 0.0)
    model = made(kind, how["precision"] or "float32", num_hidden_layers=how["num_hidden_layers"] or 2, **rates)
    for number in how["frozen"] or ():
        model.bert.blocks[number].trainable = False
    batch, parts = batch_of(kind), how["parts"] or 1
    plain = step_of(accelerate(model, how["like"]) if how["like"] else model, how["like_parts"] or 1)
    losses, gradients, norm = plain(batch) if how["like"] else plain.python_function(batch)
    if how["rows"] == "packed":
        batch = packed(batch, parts)
    step = step_of(accelerate(model, plan), parts, jit_compile=bool(how["jit_compile"]))
    step = step if plan.share_graph or how["jit_compile"] or how["few_sizes"] else step.python_function
    with compiled.few_sizes(bool(how["few_sizes"])):
        found, found_gradients, found_norm = step(batch)

    near, norm_near, zero = (0.02, 0.02, 0.03) if how["precision"] else (1e-4, 1e-5, 3e-6)
    for name, loss in losses.items():
        np.testing.assert_allclose(found[name], loss, rtol=near)
    assert float(found_norm) == pytest.approx(float(norm), rel=norm_near)  # rows of the tables count as they did
    assert found_gradients.keys() == gradients.keys() and (how["frozen"] or len(gradients) > 30)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found_gradients[name], gradient, rtol=near, atol=zero, err_msg=name)
        assert not name.endswith("kernel") or np.abs(gradient).max() > 1e-4


@pytest.mark.parametrize("way", ["groups", "packed"])
def test_no_answer_is_at_padding(way):
    model, batch = made("span"), batch_of("span")
    given = packed(batch) if way == "packed" else batch
    start_logits, _ = accelerate(model, GROUPS if way == "groups" else Plan())(given)
    assert start_logits.shape == (9, LENGTH)
    assert not tf.nn.softmax(start_logits).numpy()[batch["input_mask"].numpy() == 0].any()


def test_a_batch_without_predictions_has_no_loss():
    model, batch = accelerate(made("pretraining"), GROUPS), batch_of("pretraining")
    batch["masked_lm_weights"] = tf.zeros_like(batch["masked_lm_weights"])
    losses, gradients, norm = step_of(model).python_function(batch)
    assert float(losses["masked_lm_loss"]) == 0.0
    assert np.isfinite(float(norm)) and all(np.isfinite(gradient).all() for gradient in gradients.values())


def test_a_block_of_another_kind_is_computed_as_it_is():
    class Doubled(modeling.TransformerBlock):
        def call(self, states, mask_scores):
            return 2.0 * super().call(states, mask_scores)

    model, batch = made("classifier"), batch_of("classifier")
    block = Doubled(model.config, name="layer_1")
    block.set_weights(model.bert.blocks[1].get_weights())
    model.bert.blocks[1] = block
    wanted = model(batch)
    np.testing.assert_array_equal(accelerate(model, ALL)(batch), wanted)


# Graphs


@pytest.mark.compiled
def test_a_training_has_the_operations_of_one_block_which_keeps_five_bytes_of_each_score():
    """The probability, and whether it is dropped, [B, N, F, F]; nothing of which the gradient needs the shape alone."""
    rates = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
    model = accelerate(made("span", "bfloat16", num_hidden_layers=3, **rates), Plan(share_graph=True))
    graph = step_of(model).get_concrete_function(batch_of("span")).graph
    calls = {op: op.node_def.attr["f"].func.name for op in graph.get_operations()}
    calls = {op: name for op, name in calls.items() if "_block_forward_" in name or "_block_backward_" in name}
    assert len(calls) == 6 and len({*calls.values()}) == 2
    kept = next(op.outputs for op, name in calls.items() if "_block_forward_" in name)
    scores = [tensor.dtype.name for tensor in kept if tensor.shape.as_list()[2:] == [LENGTH, LENGTH]]
    assert sorted(scores) == ["bool", "float32"]


def test_answers_do_not_depend_on_a_training_before():
    fast = FastEncoder(modeling.BertModel(small_config()), Plan(share_graph=True))
    ids = tf.constant(np.arange(12).reshape(2, 6))
    graph = tf.function(lambda ids: fast(ids).pooled_output, autograph=False).get_concrete_function(ids).graph
    assert sum(op.type == "Softmax" for op in graph.get_operations()) == 2  # of each block


def test_threads_that_trace_one_model_wait_for_each_other():
    model = MAKERS["classifier"](small_config())
    begun, ends = threading.Event(), [threading.Event(), threading.Event()]

    def trace(end):
        with accelerated(model):
            begun.set()
            assert end.wait(60)

    threads = [threading.Thread(target=trace, args=[end]) for end in ends]
    threads[0].start()
    begun.wait(60)
    threads[1].start()
    threads[1].join(0.1)
    for thread, end in zip(threads, ends, strict=True):
        end.set()
        thread.join()
    assert model.faster is None


@pytest.mark.parametrize(("count", "kept"), [(1, [0]), (2, [1]), (4, [0, 3]), (12, [2, 5, 8, 11])])
def test_one_block_in_three_keeps_its_activations(count, kept):
    assert [number for number, is_kept in enumerate(blocks.keeps_activations(count)) if is_kept] == kept


@pytest.mark.slow
@pytest.mark.compiled
def test_tensorflow_does_not_merge_the_second_computation_with_the_first():
    """Counts what is executed, after the optimizations of the graph. The last block is not computed again."""
    model, counts = made("classifier"), []
    for again in (False, True):
        accelerate(model, Plan(recompute=again))
        nodes = executed(lambda: step_of(model)(batch_of("classifier")))
        counts.append([node.op for node in nodes].count("Softmax"))
    assert counts == [2, 3]


# The places of examples in rows that they share


def test_first_fit_by_hand_and_few_numbers_of_rows():
    """The longest first, each in the first row with room: 6 | 4 2 | 3 2 1."""
    batch = packed({"input_mask": tf.constant(mask_of([4, 2, 6, 1, 3, 2]))})
    assert batch[FIRSTS].numpy().tolist() == [6, 10, 0, 17, 12, 15] and batch[TOKENS].shape == (3, 6)
    mask = mask_of(np.random.default_rng(0).integers(1, 129, 128), 128)
    assert packed({"input_mask": tf.constant(mask)})[TOKENS].shape[0] in (64, 72, 80)  # of 128


@hypothesis.settings(deadline=None, max_examples=20)
@hypothesis.given(st.lists(st.integers(0, 7), min_size=1, max_size=12), st.integers(1, 3))
def test_each_token_has_one_place(lengths, parts):
    """Each part has rows of its own; a row of padding, of length 0 here, takes a whole row."""
    mask = mask_of(lengths * parts, 7)
    batch = packed({"input_mask": tf.constant(mask)}, parts)
    firsts = np.split(batch[FIRSTS].numpy(), parts)
    for rows, first, last in zip(
        np.split(batch[TOKENS].numpy(), parts), firsts, np.split(lengths_of(mask), parts), strict=True
    ):
        expected = np.full(rows.size, -1)
        for number, (begin, length) in enumerate(zip(first, last, strict=True)):
            assert begin % 7 + length <= 7 and (expected[begin : begin + length] == -1).all()
            expected[begin : begin + length] = number * 7 + np.arange(length)
        np.testing.assert_array_equal(rows.ravel(), expected)
        assert len(rows) <= len(lengths)
