"""Models with other positions, and with an output table of their own: what they compute, load and train."""

import numpy as np
import pytest
import tensorflow as tf
from model_kinds import KINDS, OUTPUT_TABLE, POSITIONS
from small_checkpoints import save_model, small_model
from small_models import randomize, small_batch, small_config, tiny_config, values_of

from bert_tf2 import heads, modeling
from bert_tf2.fast.encoder import Plan, accelerate
from bert_tf2.layers import sinusoidal_positions
from bert_tf2.support.errors import UserError
from bert_tf2.training.devices import build_model
from bert_tf2.training.loop import Trainer
from bert_tf2.training.options import TrainOptions
from bert_tf2.training.step import local_gradients
from bert_tf2.weights import checkpoint, metadata

SEED = tf.constant([1, 2])


def tensors(batch=None) -> dict[str, tf.Tensor]:
    return {name: tf.constant(values) for name, values in (batch or small_batch()).items()}


def states(model, batch) -> np.ndarray:
    return model.encode(batch).sequence_output.numpy()


# What they compute.


@pytest.mark.parametrize("kind", KINDS)
def test_the_variables(kind):
    names = checkpoint.tf1_variables(heads.PretrainingModel(small_config(**KINDS[kind])))
    assert (POSITIONS in names) == (kind in ("as in the reference", "untied", "from the sinusoid"))
    assert (OUTPUT_TABLE in names) == kind.startswith("untied")
    model = heads.PretrainingModel(small_config(**KINDS[kind]))
    assert len(names) == len(model.trainable_variables) == len({id(v.value) for v in model.trainable_variables})


@pytest.mark.parametrize("unpad", ["none", "groups"])
def test_fixed_positions_are_a_table_with_the_numbers_of_the_sinusoid(unpad):
    fixed = heads.PretrainingModel(small_config(position_embedding_type="sinusoidal", initializer_range=0.05))
    values = randomize(fixed)
    learned = heads.PretrainingModel(small_config())
    table = 0.05 * np.sqrt(2) * sinusoidal_positions(16, 8)
    assert abs(table.std() - 0.05) < 0.02
    for name, variable in checkpoint.tf1_variables(learned).items():
        variable.assign(table if name == POSITIONS else values[name])
    for model in (fixed, learned):
        accelerate(model, Plan(unpad))
    np.testing.assert_allclose(states(fixed, tensors()), states(learned, tensors()), atol=1e-5)


def test_learned_positions_can_start_from_the_sinusoid():
    model = modeling.BertModel(small_config(position_embedding_type="learned_from_sinusoidal"))
    wanted = 0.02 * np.sqrt(2) * sinusoidal_positions(16, 8)
    np.testing.assert_allclose(model.embeddings.position_embeddings.numpy(), wanted, rtol=1e-6)
    assert any(variable is model.embeddings.position_embeddings for variable in model.trainable_variables)


@pytest.mark.parametrize("kind", ["without positions", "sinusoidal"])
def test_without_positions_the_order_of_the_words_changes_only_the_order_of_the_states(kind):
    model = modeling.BertModel(small_config(**KINDS[kind]))
    randomize(model)
    ids, order = np.arange(10, dtype=np.int32)[np.newaxis], np.random.default_rng(0).permutation(10)
    there = model(ids[:, order]).sequence_output.numpy()
    same = np.allclose(there, model(ids).sequence_output.numpy()[:, order], atol=1e-5)
    assert same == (kind == "without positions")


@pytest.mark.parametrize("kind", ["without positions", "sinusoidal"])
def test_a_longer_text_than_there_are_positions_is_refused_for_every_kind(kind):
    with pytest.raises(UserError, match="longer than the model's max_position_embeddings 16"):
        modeling.BertModel(small_config(**KINDS[kind]))(np.ones([1, 17], np.int32))


def test_a_length_that_is_known_later():
    model = modeling.BertModel(small_config(position_embedding_type="sinusoidal"))
    run = tf.function(lambda ids: model(ids).sequence_output, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    ids = np.arange(12, dtype=np.int32).reshape(2, 6)
    np.testing.assert_allclose(run(ids), model(ids).sequence_output, atol=1e-5)


def test_the_logits_of_an_own_table():
    model = heads.MaskedLMModel(small_config(tie_word_embeddings=False))
    values = randomize(model)
    batch = tensors()
    gathered = heads.gather_indexes(model.encode(batch).sequence_output, batch["masked_lm_positions"])
    head = model.masked_lm
    transformed = head.layer_norm(head.transform(gathered)).numpy()
    wanted = transformed @ values[OUTPUT_TABLE].T + values["cls/predictions/output_bias"]
    np.testing.assert_allclose(model(batch).numpy().reshape(wanted.shape), wanted, atol=1e-5)


def test_the_gradient_of_a_tied_table_is_the_sum_of_both_ends():
    """With equal tables at both ends the models are equal, too; so is every other gradient."""
    tied, untied = (heads.PretrainingModel(small_config(tie_word_embeddings=flag)) for flag in (True, False))
    values = randomize(tied)
    words = "bert/embeddings/word_embeddings"
    for name, variable in checkpoint.tf1_variables(untied).items():
        variable.assign(values[words if name == OUTPUT_TABLE else name])
    found = []
    for model in (tied, untied):
        measured, gradients = local_gradients(model, checkpoint.trained_variables(model), tensors(), SEED)
        dense = {name: tf.convert_to_tensor(gradient).numpy() for name, gradient in gradients.items()}
        found.append((float(measured["loss"]), dense))
    (loss, one), (other, two) = found
    assert abs(loss - other) < 1e-6
    for name, gradient in one.items():
        wanted = two[words] + two[OUTPUT_TABLE] if name == words else two[name]
        np.testing.assert_allclose(gradient, wanted, atol=1e-6, err_msg=name)
    assert np.abs(two[words]).max() > 0 and np.abs(two[OUTPUT_TABLE]).max() > 0


# Loading.


@pytest.fixture(scope="module")
def models():
    """One model of each kind, for tests that change its weights but nothing else."""
    return {kind: heads.PretrainingModel(small_config(**keys)) for kind, keys in KINDS.items()}


@pytest.mark.parametrize("beside", [True, False], ids=["with bert_config.json", "bare"])
@pytest.mark.parametrize("saved", KINDS)
def test_weights_of_one_kind_are_refused_by_the_others(tmp_path, models, saved, beside):
    model = small_model(**KINDS[saved])
    path = save_model(tmp_path, model)
    if beside:
        metadata.write(str(tmp_path), model.config)
    for kind, other in models.items():
        # Without the file, these differ in nothing that can be seen.
        alike = ({"as in the reference", "from the sinusoid"}, {"sinusoidal", "without positions"})
        if kind == saved or (not beside and any({kind, saved} <= pair for pair in alike)):
            assert "starting fresh: none; not used: none" in checkpoint.initialize(other, path)
            continue
        for load in (lambda other=other: checkpoint.initialize(other, path), lambda other=other: resume(other, path)):
            with pytest.raises(UserError, match=r"position_embedding_type|tie_word_embeddings") as refused:
                load()
            assert str(tmp_path) in str(refused.value) and "\n" not in str(refused.value)


def resume(model, path):
    return checkpoint.restore(path, checkpoint.tf1_variables(model), model.config)


def test_the_sentences(tmp_path):
    path = save_model(tmp_path, small_model(tie_word_embeddings=False))
    wanted = "have an output table of their own .cls/predictions/output_weights., .* says tie_word_embeddings true"
    with pytest.raises(UserError, match=wanted):
        checkpoint.initialize(heads.PretrainingModel(small_config()), path)
    with pytest.raises(UserError, match=r"have a table of positions .* says position_embedding_type none"):
        checkpoint.initialize(modeling.BertModel(small_config(position_embedding_type="none")), path)


def test_the_encoder_of_an_untied_model_and_a_new_head_for_a_tied_encoder(tmp_path):
    """Only a head that is there can be of another kind."""
    path = save_model(tmp_path, small_model(tie_word_embeddings=False))
    report = checkpoint.initialize(heads.SpanModel(small_config()), path)
    assert f"not used: cls/predictions/output_bias, {OUTPUT_TABLE}" in report
    span = save_model(tmp_path / "span", small_model("span"))
    report = checkpoint.initialize(heads.MaskedLMModel(small_config(tie_word_embeddings=False)), span)
    assert OUTPUT_TABLE in report.split("starting fresh: ")[1].split(";")[0]


# Training.


def train(folder, steps, strategy=None, freeze=False, **keys):
    strategy = strategy or tf.distribute.get_strategy()
    model = build_model(strategy, lambda: heads.PretrainingModel(tiny_config(**keys)), 1)
    if freeze:
        model.masked_lm.output_weights.trainable = False
    schedule = {"learning_rate": 1e-3, "num_train_steps": steps, "num_warmup_steps": 0, "train_batch_size": 4}
    trainer = Trainer(model, strategy, TrainOptions(output_dir=str(folder), **schedule))
    trainer.start()
    data = tf.data.Dataset.from_tensors(small_batch()).repeat()
    trainer.train(data)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["untied and sinusoidal", "without positions"])
def test_two_replicas_train_it_as_one_and_a_training_continues(tmp_path, two, kind):
    whole = values_of(train(tmp_path / "one", 4, **KINDS[kind]))
    train(tmp_path / "resumed", 2, **KINDS[kind])
    train(tmp_path / "resumed", 4, **KINDS[kind])
    assert checkpoint.Checkpoint(str(tmp_path / "resumed")).global_step == 4
    replicas = values_of(train(tmp_path / "two", 4, two, **KINDS[kind]))
    for name, value in whole.items():
        np.testing.assert_allclose(replicas[name], value, atol=1e-5, err_msg=name)


def test_a_frozen_table_stays_and_has_no_slots(tmp_path):
    keys = {"tie_word_embeddings": False}
    strategy = tf.distribute.get_strategy()
    start = values_of(build_model(strategy, lambda: heads.PretrainingModel(tiny_config(**keys)), 1))
    trained = values_of(train(tmp_path, 2, freeze=True, **keys))
    np.testing.assert_array_equal(trained[OUTPUT_TABLE], start[OUTPUT_TABLE])
    assert (trained["bert/embeddings/word_embeddings"] != start["bert/embeddings/word_embeddings"]).any()
    shapes = checkpoint.Checkpoint(str(tmp_path)).shapes
    assert OUTPUT_TABLE in shapes and f"{OUTPUT_TABLE}/adam_m" not in shapes
    np.testing.assert_array_equal(values_of(train(tmp_path, 4, freeze=True, **keys))[OUTPUT_TABLE], start[OUTPUT_TABLE])
    with pytest.raises(UserError, match=f"{OUTPUT_TABLE}/adam_m is missing"):
        train(tmp_path, 6, **keys)


def test_what_is_frozen_still_counts_as_used(tmp_path):
    model = small_model(tie_word_embeddings=False)
    model.bert.embeddings.trainable = False
    trained = checkpoint.trained_variables(model)
    assert POSITIONS not in trained and OUTPUT_TABLE in trained
    assert POSITIONS in checkpoint.used_variables(model)
