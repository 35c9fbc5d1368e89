"""Several examples in a row change no state, no loss and no gradient of any of them."""

import numpy as np
import pytest
import tensorflow as tf
from gradient_steps import batch_of, check, step_of
from small_models import LENGTH, MAKERS, randomize, small_config

from bert_tf2 import modeling
from bert_tf2.data import records
from bert_tf2.data.record_order import packed
from bert_tf2.fast import compiled
from bert_tf2.fast.encoder import FastEncoder, Plan, accelerate

TOKENS, FIRSTS = records.PACKED


def mask_of(lengths, width=6):
    return (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)


MASKS = {
    "a row full to the last token": mask_of([4, 2, 6, 1, 3, 2]),
    "each as long as a row": mask_of([6, 6, 6]),
    "one": mask_of([2]),
    "holes and a row of padding": np.array([[1, 0, 1, 0, 0, 0], [0] * 6, [0, 1, 1, 1, 0, 0]], np.int32),
    "many short ones": mask_of([1 + number % 3 for number in range(40)]),
}


def made(kind, dtype="float32", **changes):
    """A model that drops nothing."""
    model = MAKERS[kind](small_config(**changes), dtype=dtype)
    model.head_dropout = 0.0
    randomize(model)
    return model


def places_of(batch, parts):
    """For each part, its examples in order: row, first column and length, by the features of `packed`."""
    mask, firsts = np.array(batch["input_mask"]), np.array(batch[FIRSTS])
    width, last = mask.shape[1], np.where(mask.any(1), mask.shape[1] - mask[:, ::-1].argmax(1), mask.shape[1])
    found = [(*divmod(int(first), width), int(length)) for first, length in zip(firsts, last, strict=True)]
    return np.split(np.array(found), parts)


@pytest.mark.parametrize(("name", "parts"), [*((name, 1) for name in MASKS), ("many short ones", 4)])
def test_each_token_has_one_place_in_a_row_of_its_example(name, parts):
    mask = MASKS[name]
    batch = packed({"input_mask": tf.constant(mask)}, parts)
    count, width = len(mask) // parts, mask.shape[1]
    of_parts = np.split(batch[TOKENS].numpy(), parts)
    for rows, examples in zip(of_parts, places_of(batch, parts), strict=True):
        expected = np.full_like(rows, -1)
        for number, (row, first, length) in enumerate(examples):
            assert first + length <= width
            assert (expected[row, first : first + length] == -1).all()  # no other example is there
            expected[row, first : first + length] = number * width + np.arange(length)
        np.testing.assert_array_equal(rows, expected)
        assert len(rows) <= count


def test_first_fit_by_hand():
    """The longest first, each in the first row with room: 6 | 4 2 | 3 2 1."""
    batch = packed({"input_mask": tf.constant(MASKS["a row full to the last token"])})
    assert batch[FIRSTS].numpy().tolist() == [6, 10, 0, 17, 12, 15]
    assert batch[TOKENS].shape == (3, 6)
    assert (batch[TOKENS].numpy() >= 0).all()


def test_few_numbers_of_rows():
    random = np.random.default_rng(0)
    masks = [mask_of(random.integers(1, 129, 128), 128) for _ in range(20)]
    numbers = {packed({"input_mask": tf.constant(mask)})[TOKENS].shape[0] for mask in masks}
    assert numbers <= {64, 72, 80} and len(numbers) > 1  # of 128


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_encoder_computes_the_same(name, jit_compile):
    mask = MASKS[name]
    model = modeling.BertModel(small_config())
    randomize(model)
    random = np.random.default_rng(5)
    ids, types = (tf.constant(random.integers(0, most, mask.shape), tf.int32) for most in (23, 2))
    last = np.where(mask.any(1), 6 - mask[:, ::-1].argmax(1), 6)
    reads = tf.constant(random.integers(0, last[:, None], [len(mask), 4]), tf.int32)
    batch = packed({"input_mask": tf.constant(mask)})
    fast = FastEncoder(model, Plan())
    compute = tf.function(lambda *inputs, **how: fast(*inputs, **how), autograph=False, jit_compile=jit_compile)
    packing = batch[TOKENS], batch[FIRSTS]
    padded, rows = model(ids, mask, types), compute(ids, batch["input_mask"], types, packing=packing)
    tolerance = 2e-5 if mask.any(1).all() else 5e-3  # near -10000, float32 numbers are 1e-3 apart
    np.testing.assert_allclose(rows.pooled_output, padded.pooled_output, atol=tolerance)
    computed = np.arange(6) < last[:, None]
    for ours, wanted in zip(
        [rows.embedding_output, *rows.all_encoder_layers],
        [padded.embedding_output, *padded.all_encoder_layers],
        strict=True,
    ):
        np.testing.assert_allclose(ours.numpy()[computed], wanted.numpy()[computed], atol=tolerance)
        assert not ours.numpy()[~computed].any()
    read = compute(ids, batch["input_mask"], types, packing=packing, reads=reads)
    states = tf.gather(padded.sequence_output, reads, batch_dims=1)
    np.testing.assert_allclose(read.sequence_output, states, atol=tolerance)
    np.testing.assert_allclose(read.pooled_output, padded.pooled_output, atol=tolerance)


def test_no_example_sees_another():
    """Other words in one example change no bit of the states of the others in its row."""
    mask = MASKS["a row full to the last token"]
    model = modeling.BertModel(small_config())
    randomize(model)
    fast, batch = FastEncoder(model, Plan()), packed({"input_mask": tf.constant(mask)})
    ids = np.random.default_rng(1).integers(0, 23, mask.shape)
    changed = ids.copy()
    changed[4] = (ids[4] + 1) % 23
    before, after = (
        fast(tf.constant(x), mask, packing=(batch[TOKENS], batch[FIRSTS])).sequence_output.numpy()
        for x in (ids, changed)
    )
    assert (before[4] != after[4]).any()
    np.testing.assert_array_equal(np.delete(before, 4, 0), np.delete(after, 4, 0))


PLANS = [Plan(), Plan("groups", recompute=True, share_graph=True)]


@pytest.mark.parametrize(
    "kind", [*(pytest.param(x, marks=pytest.mark.slow) for x in MAKERS if x != "pretraining"), "pretraining"]
)
def test_losses_and_gradients_of_each_head(kind):
    model, batch = made(kind, num_hidden_layers=3), batch_of(kind)
    # An answer is at none of the positions that are not computed, so a span is compared with the way that omits them.
    wanted = step_of(accelerate(model, Plan("groups" if kind == "span" else "none")))(batch)
    for plan in PLANS:
        check(step_of(accelerate(model, plan))(packed(batch)), wanted)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("kind", ["pretraining", pytest.param("span", marks=pytest.mark.slow)])
def test_under_xla(kind):
    """The whole step, and the loops that XLA compiles for each number of rows on a CPU."""
    model, batch = made(kind), batch_of(kind)
    wanted = step_of(accelerate(model, Plan("groups" if kind == "span" else "none")))(batch)
    accelerate(model, Plan())
    rows = packed(batch)
    check(step_of(model, jit_compile=True)(rows), wanted)
    with compiled.few_sizes(True):
        check(step_of(model)(rows), wanted)


@pytest.mark.parametrize("kind", ["pretraining", "tagging"])
def test_parts_of_a_batch_have_rows_of_their_own(kind):
    model, batch = accelerate(made(kind), Plan()), batch_of(kind)
    check(step_of(model, parts=3)(packed(batch, parts=3)), step_of(model)(batch))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_narrow_types(precision):
    model, batch = made("pretraining", dtype=f"mixed_{precision}"), batch_of("pretraining")
    wanted = step_of(accelerate(model, Plan()))(batch)
    check(step_of(model)(packed(batch)), wanted, 0.02, rtol=0.02, atol=0.03)


def test_an_answer_is_at_no_place_of_another_example():
    model, batch = made("span"), batch_of("span")
    start_logits, _ = accelerate(model, Plan())(packed(batch))
    assert start_logits.shape == (9, LENGTH)
    assert not tf.nn.softmax(start_logits).numpy()[batch["input_mask"].numpy() == 0].any()
