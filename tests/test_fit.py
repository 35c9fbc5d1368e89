"""`fit` of the models of texts: they learn, are saved in three ways, and take what Keras' users bring."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from executed_graphs import executed
from refused import refuses

import bert_tf2
from bert_tf2.training import programs

TEXTS, LABELS = map(list, zip(*toy_data.sentences(61, 1), strict=True))
LONG = ["good " * 9, "a film", "bad " * 9, "the film"] * 3  # two of four have more than 8 tokens
FEW = ["yes", "no", "no", "no"] * 3
ONES = [int(label == "yes") for label in FEW]
NAMED = {"labels": ["no", "yes"]}
QUIET = {"verbose": 0}


@pytest.fixture(scope="module")
def trained(encoder):
    """A classifier after `fit`, its history, and how often the step was traced."""
    keras.utils.set_random_seed(1)
    model, traced = bert_tf2.classifier(encoder, **NAMED, max_seq_length=12), []
    loss = model.compute_loss
    model.compute_loss = lambda *given, **more: traced.append(given) or loss(*given, **more)
    model.compile(3e-3)
    given = {"x": TEXTS, "y": LABELS, "validation_split": 0.25, "class_weight": {"no": 1.0, 1: 1.1}}
    before = copy.deepcopy(given)
    history = model.fit(**given, batch_size=8, epochs=14, validation_freq=7, **QUIET).history
    assert given == before
    return model, history, len(traced)


@pytest.fixture(scope="module")
def short(encoder):
    """A classifier that reads 8 tokens; tests compile it as they need, without a graph, which takes seconds."""
    return bert_tf2.classifier(encoder, **NAMED, max_seq_length=8)


@pytest.fixture(scope="module")
def ids(short):
    """LONG, tokenized already."""
    return short.dataset(LONG, batch_size=12).get_single_element()[0]


def test_sorted_rows_are_divided_with_a_warning(short, log_lines):
    short.compile(1e-3, run_eagerly=True)
    for labels, warns in ((sorted(FEW), True), (FEW, False)):
        short.fit(LONG, labels, 12, validation_split=0.25, **QUIET)
        assert any("the labels yes" in line and "shuffle" in line for line in log_lines) == warns
        log_lines.clear()


def test_rows_of_one_label_and_labels_that_look_alike_are_warned_of(encoder, short, log_lines):
    short.compile(1e-3, run_eagerly=True)
    names = bert_tf2.tagger(encoder, ["O", "NAME"], max_seq_length=8)
    names.compile(1e-3, run_eagerly=True)
    for model, x, one, both in (
        (short, LONG, ["yes"] * len(LONG), ["yes", "no"] * (len(LONG) // 2)),
        (short, LONG, [[0, 1]] * len(LONG), [[0, 1], [1, 0]] * (len(LONG) // 2)),
        (names, ["a film", "ann"], ["O O", "O"], ["O O", "NAME"]),
    ):
        for y, warns in ((one, True), (both, False)):
            log_lines.clear()
            model.fit(x, y, steps_per_epoch=1, **QUIET)
            assert any("answers are equal" in line for line in log_lines) == warns
    bert_tf2.classifier(encoder, labels=["good", "good ", "bad"])
    assert any("'good '" in line and "differ only in case or blanks" in line for line in log_lines)


def test_empty_texts_and_a_loss_that_is_not_finite_are_warned_of(encoder, log_lines):
    model = bert_tf2.classifier(encoder, **NAMED, max_seq_length=8)
    for rate, texts, words in (
        (1e-9, LONG, ""),
        (1e-9, ["", " ", *LONG[2:]], "2 of 12"),
        (1e-9, ["\u0434\u043e\u043c"] * 12, "100% of its"),
        (1e9, LONG, "learning rate"),
    ):
        model.compile(rate, run_eagerly=True)
        log_lines.clear()
        model.fit(texts, FEW, batch_size=2, **QUIET)
        found = [line for line in log_lines if "empty" in line or "loss" in line or "[UNK]" in line]
        assert len(found) == bool(words) and all(words in line for line in found)


def test_masked_words_of_another_language_are_warned_of(words, log_lines):
    words.compile(0.0, run_eagerly=True)  # other tests use the model, too
    for text, warns in (("a good film", False), ("\u0434\u043e\u043c \u0434\u043e\u043c", True)):
        log_lines.clear()
        words.fit([text], **QUIET)
        assert any("[UNK]" in line for line in log_lines) == warns


def test_names_that_a_file_does_not_know(encoder):
    for make, label in ((bert_tf2.classifier, "a\tb"), (bert_tf2.tagger, "B PER")):
        refuses(f"labels {label!r} file", make, encoder, labels=["O", label])
    assert bert_tf2.classifier(encoder, labels=["very good", "bad"]).labels[0] == "very good"


def test_a_classifier_learns(trained):
    model, history, traced = trained
    assert history["loss"][-1] < history["loss"][0] / 2 and len(history["val_accuracy"]) == 2
    are_long = [len(text.split()) > 10 for text in TEXTS]  # the last quarter is for validation
    assert 0 < sum(are_long) < 30 and history["cut_texts"] == [sum(are_long[:45])] * 14
    assert history["val_cut_texts"] == [sum(are_long[45:])] * 2
    assert int(model.optimizer.iterations) == 6 * 14
    np.testing.assert_allclose(model.optimizer.learning_rate, 0.0, atol=1e-9)
    assert traced <= 2  # one graph for batches of several lengths and a last one of 5 texts; another one for evaluation


def test_saved_it_goes_on(trained, tmp_path):
    """As a file of Keras, as a folder of the scripts, and for servers, into a folder that is not there yet."""
    text_operations.need()
    model, *_ = trained
    wanted = model(TEXTS)
    model.save(file := tmp_path / "kept" / "films.keras")
    refuses("/dev/null/kept", model.save, "/dev/null/kept/films.keras")
    refuses(f"{file.parent}.keras written", model.save, file.parent.rename(f"{file.parent}.keras"))
    model.save_folder(tmp_path / "out")
    again = keras.models.load_model(tmp_path / "kept.keras" / "films.keras")
    assert again.optimizer.iterations == model.optimizer.iterations
    assert again.get_compile_config()["optimizer"] == 3e-3  # the next `fit` warms up again
    for each in (again, bert_tf2.classifier(tmp_path / "out")):
        assert each.labels == ["no", "yes"] and each.tokenize.max_seq_length == 12
        np.testing.assert_allclose(each(TEXTS), wanted, rtol=1e-5)
    for given, words in ({"format": "pb"}, "format=pb onnx"), ({"max_seq_length": 8}, "max_seq_length: leave"):
        refuses(words, model.export, tmp_path / "new" / "served", **given)
    assert not (tmp_path / "new").exists()
    model.export(tmp_path / "served", text_signatures=False)
    info = json.loads((tmp_path / "served" / "model_info.json").read_text())
    assert info["task"] == "classifier" and info["max_seq_length"] == 12
    serve = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    given = {name: tf.constant(values) for name, values in model.tokenize(TEXTS).items()}
    np.testing.assert_allclose(serve(**given)["probabilities"], wanted, atol=1e-5)
    refuses("served", model.export, tmp_path / "served")


def test_weights_of_another_model(short, topics, tmp_path):
    """Files that Keras wrote and read, and others; the message has one line."""
    for name, model in (("same", short), ("topics", topics)):
        model.save_weights(tmp_path / f"{name}.weights.h5")
    (tmp_path / "text.weights.h5").write_text("no weights")
    short.load_weights(tmp_path / "same.weights.h5")
    for name in ("topics", "text", "none"):
        refuses(f"{name}.weights.h5", short.load_weights, tmp_path / f"{name}.weights.h5")
    refuses(f"{tmp_path}: folder", short.load_weights, tmp_path)


@pytest.mark.compiled
@pytest.mark.slow
def test_keras_around_it(encoder, tmp_path):
    """Callbacks, other optimizers, weights of rows, several steps at once, XLA."""
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="val_loss", save_best_only=True)
    model = bert_tf2.classifier(encoder, **NAMED)
    model.compile(keras.optimizers.Adam(1e-3), steps_per_execution=2, jit_compile=True)
    how = {"validation_data": (TEXTS, LABELS), "callbacks": [best], "sample_weight": [1.0] * len(TEXTS)}
    model.fit(TEXTS, LABELS, 16, 2, **how, **QUIET)
    assert isinstance(keras.models.load_model(tmp_path / "best.keras").optimizer, keras.optimizers.Adam)


@pytest.mark.slow
def test_a_killed_fit_goes_on(encoder, tmp_path):
    """With Keras' BackupAndRestore: the weights become those of a training that was not killed."""

    def train(folder, killed_at=None):
        model = bert_tf2.classifier(encoder, **NAMED, max_seq_length=8)
        model.model.head_dropout = 0.0
        model.compile(3e-3)

        def kill(epoch, logs):
            if epoch == killed_at:
                raise KeyboardInterrupt

        callbacks = [keras.callbacks.BackupAndRestore(folder), keras.callbacks.LambdaCallback(on_epoch_begin=kill)]
        with contextlib.nullcontext() if killed_at is None else pytest.raises(KeyboardInterrupt):
            model.fit(LONG, FEW, 4, 3, callbacks=callbacks, shuffle=False, **QUIET)
        return model

    train(tmp_path / "killed", killed_at=2)
    models = [train(tmp_path / name) for name in ("whole", "killed")]
    assert [int(model.optimizer.iterations) for model in models] == [9, 9] and not (tmp_path / "killed").exists()
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(one, other)


class SixSteps(keras.callbacks.Callback):
    """Ends a training of many steps early."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch == 5


@pytest.mark.compiled
@pytest.mark.slow
def test_a_long_run_on_a_gpu_is_compiled(encoder, monkeypatch):
    """With its evaluation, and nothing after it. The GPU is a name: this CPU computes what a GPU would."""
    texts = tf.data.Dataset.from_tensor_slices((["good " * n for n in range(1, 40)], ["yes", "no", "no"] * 13))
    held_out, found = (LONG, FEW), []
    model = bert_tf2.classifier(encoder, **NAMED, max_seq_length=40)
    model.compile(keras.optimizers.Adam(1e-3))
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["one"] * (kind == "GPU"))
    monkeypatch.setattr("bert_tf2.fast.compiled.can_compile", lambda: True)
    how = {"validation_data": held_out, "steps_per_epoch": 10_000, "callbacks": [SixSteps()], **QUIET}
    for run in (lambda: model.fit(texts.batch(6).repeat(), **how).history, lambda: model.evaluate(*held_out, **QUIET)):
        nodes = executed(lambda run=run: found.append(run()))
        assert any(node.attr["_XlaMustCompile"].b for node in nodes) == (len(found) == 1)
    history, evaluated = found
    np.testing.assert_allclose([history["val_loss"][-1], history["val_accuracy"][-1]], evaluated, rtol=1e-4)
    assert int(model.optimizer.iterations) == 6 and model.get_compile_config()["jit_compile"] == "auto"


def test_the_batches_of_a_program_have_few_widths(short, encoder):
    """Also of pairs, of tags, and of masked words, whose further places have the weight 0."""
    sentences = [["lives"] * count for count in range(1, 22, 4)]
    tagger = bert_tf2.tagger(encoder, labels=["O", "B"], max_seq_length=24)
    words = bert_tf2.masked_lm(encoder, max_seq_length=24)
    vectors = bert_tf2.embedder(encoder, max_seq_length=24)
    texts = [" ".join(sentence) for sentence in sentences]
    for model, given in (
        (short, (texts, FEW[:6])),
        (tagger, (sentences, [["O"] * len(words) for words in sentences])),
        (words, (texts,)),
        (vectors, ([*zip(texts, texts, strict=True)],)),
    ):
        step, shapes = programs.width_step(model.tokenize.max_seq_length), set()
        for batch in model.dataset(*given, batch_size=1):
            found = model.with_few_widths(*batch)
            for before, after in zip(*map(tf.nest.flatten, (batch, found)), strict=True):
                assert tf.reduce_sum(tf.cast(before, tf.float32)) == tf.reduce_sum(tf.cast(after, tf.float32))
            shapes.add(tuple(tuple(part.shape) for part in tf.nest.flatten(found)))
            assert found[0]["input_ids"].shape[-1] % step == 0
            assert model in (short, vectors) or found[1].shape == found[2].shape
        assert len(shapes) == len(
            {-(-min(count + 2, model.tokenize.max_seq_length) // step) for count in range(1, 22, 4)}
        )


def test_few_texts_need_no_pipeline(short):
    """A pipeline of tf.data takes longer to begin than a small model to answer; a batch of any size has one graph."""
    traced, convert = [], short.tokenize.with_cut
    short.compile(1e-9)
    short.tokenize.with_cut = lambda texts: traced.append(texts) or convert(texts)
    try:
        of_two = {"batch_size": 2, **QUIET}
        short.evaluate(LONG, FEW, **of_two)
        for call in (short.predict_on_batch, short.predict, functools.partial(short.predict, **of_two)):
            short.test_on_batch(LONG[:2], FEW[:2])  # has labels, so another graph
            for texts in (LONG[:2], LONG[:3], LONG[2:6], LONG[5:]):
                np.testing.assert_allclose(call(texts), short(texts), rtol=1e-5)
    finally:
        short.tokenize.with_cut = convert
    assert sum(tf.is_symbolic_tensor(tf.nest.flatten(texts)[0]) for texts in traced) <= 3


def test_ids_may_be_lists(short, ids):
    given = {name: part.numpy().tolist() for name, part in ids.items()}
    np.testing.assert_allclose(short.predict(given, **QUIET), short(ids), rtol=1e-5)
    refuses("input_ids unequal pad", short.predict, {"input_ids": [[2, 5, 3], [2, 3]]})


def test_losses_of_other_kinds(scores, topics):
    scores.compile(1e-9, run_eagerly=True)
    topics.compile(1e-9, run_eagerly=True)
    ids = scores.tokenize(LONG[:3])
    found = scores(ids).numpy()[:, 0]
    np.testing.assert_allclose(scores.evaluate(ids, [1, 2, 3], **QUIET), np.mean((found - [1, 2, 3]) ** 2), rtol=1e-4)
    assert [*scores.fit(ids, [1, 2, 3], **QUIET).history] == ["loss"]
    found, rows = topics(ids).numpy(), np.array([[1, 0, 0], [0, 0, 0], [0, 1, 1]], bool)
    loss, accuracy = topics.evaluate(ids, [["a"], [], ["b", "c"]], **QUIET)
    np.testing.assert_allclose(loss, -np.log(np.where(rows, found, 1 - found)).mean(), rtol=1e-4)
    np.testing.assert_allclose(accuracy, ((found > 0.5) == rows).mean())


@pytest.mark.slow
def test_texts_that_are_cut_are_counted(short, caplog):
    """In each epoch, of lists and of a dataset that goes on where the last epoch stopped; not those of padding."""
    short.compile(1e-9, run_eagerly=True)
    held_out, is_logged = {"validation_data": (LONG[:3], FEW[:3]), "validation_freq": 2}, []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: is_logged.append("longer" in caplog.text))
    history = short.fit(LONG, FEW, 4, 2, **held_out, callbacks=[note], **QUIET).history
    assert is_logged == [False] * 3 + [True] * 3  # not within the first epoch, whose line on the terminal is unfinished
    assert (history["cut_texts"], history["val_cut_texts"]) == ([6, 6], [2])
    data = tf.data.Dataset.from_tensor_slices((["good " * 9] * 3 + ["a"] * 6, ["yes"] * 9)).batch(3)
    history = short.fit(data.repeat(), epochs=3, steps_per_epoch=2, **QUIET).history  # batches 1 2, 3 1, 2 3
    assert history["cut_texts"] == [3, 3, 0] and "6 of 12 texts are longer than 8 tokens" in caplog.text


@pytest.mark.slow
@pytest.mark.filterwarnings("error:.*ran out of data")
def test_several_devices(encoder, two):
    """The losses of two replicas are those of one, texts that are cut are counted once, and no batch is left out."""
    how = {**NAMED, "max_seq_length": 8}  # the new weights are those of the script's random_seed
    with two.scope():
        shared = bert_tf2.classifier(encoder, **how)
    alone, losses = bert_tf2.classifier(encoder, **how), []
    for model in (alone, shared):
        model.model.head_dropout = 0.0
        model.compile(3e-3)
        history = model.fit(LONG, FEW, 8, 3, shuffle=False, **QUIET).history
        losses.append(history["loss"])
        assert history["cut_texts"] == [6, 6, 6]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    for call in (shared.fit, shared.evaluate):
        refuses("x: the first batch has 7 rows, which 2 devices cannot divide", call, LONG, FEW, batch_size=7)
    batches, before = [(LONG[:8], FEW[:8]), (LONG[8:], FEW[8:])] * 3, shared.optimizer.iterations.numpy()
    history = shared.fit(iter(batches), steps_per_epoch=2, epochs=3, **QUIET).history
    assert history["cut_texts"] == [6, 6, 6] and shared.optimizer.iterations.numpy() == before == 6


def test_the_recipe_is_planned_for_the_epochs_that_run(short, ids):
    """The rate rises over a tenth of the steps, and is 0 after the last one. Callbacks stay those of the caller."""
    short.compile(1e-6, run_eagerly=True)
    rates = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: rates.append(float(short.optimizer.learning_rate))
    )
    given = keras.callbacks.CallbackList([note], add_history=True, model=short, epochs=3)
    before = [*given.callbacks]
    short.fit(ids, FEW, 2, 3, initial_epoch=1, callbacks=given, **QUIET)
    assert given.callbacks == before and len(rates) == 12 and np.argmax(rates) < 3
    np.testing.assert_allclose([max(rates), rates[-1]], [1e-6, 0.0], rtol=0.1, atol=1e-12)


def test_weights_of_labels(short, ids, names):
    """Weights of rows times those of labels, by name or index, or scikit-learn's "balanced"; also of tags."""
    short.compile(1e-9, run_eagerly=True)
    short.model.head_dropout = names.model.head_dropout = 0.0
    how, rows = {"shuffle": False, **QUIET}, np.linspace(1, 3, 12)
    data = tf.data.Dataset.from_tensor_slices((ids, FEW, rows)).batch(12)
    losses, balanced = -np.log(short(ids).numpy()[range(12), ONES]), np.tile([2.0, 2 / 3, 2 / 3, 2 / 3], 3)
    for x, y, weights, of_rows, wanted in (
        (ids, FEW, {"yes": 2.0}, rows, rows * (1 + np.array(ONES))),
        (ids, ONES, {0: 1, 1: 2}, None, 1 + np.array(ONES)),
        (data, None, "balanced", None, rows * balanced),
    ):
        found = short.fit(x, y, 12, class_weight=weights, sample_weight=of_rows, **how).history["loss"][0]
        assert found == pytest.approx(np.mean(wanted * losses), rel=1e-4)
    names.compile(1e-9, run_eagerly=True)
    x, y = ["ann here and here"], ["NAME O O O"]
    losses = [names.fit(x, y, class_weight=w, **how).history["loss"][0] for w in ("balanced", {"NAME": 2, "O": 2 / 3})]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_another_task_begins_with_trained_weights_and_with_a_new_head_if_the_number_of_labels_differs(short, tmp_path):
    short.save_folder(tmp_path)
    refuses("other_task=True not for labels a, b, c;", bert_tf2.classifier, tmp_path, ["a", "b", "c"])
    refuses("other_task=True", bert_tf2.tagger, tmp_path, ["O", "NAME"])
    refuses("other_task=True labels=[...]", bert_tf2.classifier, tmp_path, other_task=True)
    three = bert_tf2.classifier(tmp_path, ["a", "b", "c"], other_task=True)
    two = bert_tf2.classifier(tmp_path, ["bad", "good"], other_task=True)
    number = bert_tf2.classifier(tmp_path, regression=True, other_task=True)
    tagger = bert_tf2.tagger(tmp_path, ["O", "NAME", "PLACE"], other_task=True)
    heads = [each.model.output_layer.output_weights.numpy() for each in (short, two, three, number, tagger)]
    assert [len(head) for head in heads] == [2, 2, 3, 1, 3] and np.array_equal(*heads[:2])
    assert [each.labels for each in (two, three, tagger)] == [["bad", "good"], [*"abc"], ["O", "NAME", "PLACE"]]
    tables = [each.model.bert.get_embedding_table().numpy() for each in (short, three, number, tagger)]
    assert all(np.array_equal(table, tables[0]) for table in tables)


def test_metrics_of_vectors(short, ids):
    """With names or indexes of labels, lists or a dataset; the loss is the number that it is without them."""
    short.compile(1e-9, run_eagerly=True)
    wanted = short.evaluate(ids, FEW, **QUIET)
    again = keras.models.clone_model(short)
    again.set_weights(short.get_weights())
    again.compile(1e-9, metrics=[keras.metrics.F1Score(average="macro"), "accuracy"], run_eagerly=True)
    data = tf.data.Dataset.from_tensor_slices((ids, FEW)).batch(5)
    for x, y in ((ids, FEW), (ids, ONES), (ids, np.eye(2)[ONES]), (data, None)):
        found = again.evaluate(x, y, return_dict=True, **QUIET)
        assert [found["loss"], found["accuracy"]] == pytest.approx(wanted, rel=1e-5) and len(found) == 3
    assert len(again.fit(ids, FEW, class_weight="balanced", **QUIET).history) == 3
    again.compile(np.float32(1e-9), run_eagerly=True)  # without the metrics of before
    assert sorted(again.fit(ids, ONES, **QUIET).history) == ["accuracy", "loss"]


def test_without_tensorflow_text(films, monkeypatch):
    """It is absent; also for a TensorFlow that has none yet."""
    wanted = films(TEXTS[:3])
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    np.testing.assert_allclose(films.predict(TEXTS[:3], **QUIET), wanted, atol=1e-6)


def test_the_layer_tokenize(tmp_path):
    """The ids of FullTokenizer, in tf.data, of a layer that is made again of its configuration."""
    tokenizer = bert_tf2.FullTokenizer(toy_data.write_model(tmp_path)["vocab_file"], never_split=["film"])
    config = bert_tf2.Tokenize(tokenizer, 12, pad_to_max_length=True).get_config()
    layer, texts = bert_tf2.Tokenize.from_config(json.loads(json.dumps(config))), ["A film, now", "", "中文 good " * 9]
    found = tf.data.Dataset.from_tensor_slices(texts).batch(8).map(layer).get_single_element()
    assert found["input_ids"].shape == (3, 12)
    for text, row, mask in zip(texts, found["input_ids"].numpy(), found["input_mask"].numpy(), strict=True):
        pieces = ["[CLS]", *tokenizer.tokenize(text)[:10], "[SEP]"]
        assert row[mask == 1].tolist() == tokenizer.convert_tokens_to_ids(pieces) and not row[mask == 0].any()


# Words with tags, questions with answers


def test_losses_of_words_and_questions(names, reader):
    """The tags of the first pieces of words count, and the mean of an answer's first and last token."""
    sentences, tags = [["playing", "ann"], ["the", "film", "was"]], [["O", "NAME"], ["O", "O", "NAME"]]
    x, y, weights = names.dataset(sentences, tags, [1.0, 3.0]).get_single_element()
    losses = -np.log(np.take_along_axis(names(x).numpy(), y.numpy()[..., None], -1)[..., 0])
    assert weights.numpy().sum() == 2 * 1 + 3 * 3
    names.compile(1e-9, run_eagerly=True)
    found = names.evaluate(sentences, tags, sample_weight=[1.0, 3.0], **QUIET)[0]
    assert found == pytest.approx(np.average(losses, weights=weights), rel=1e-4)
    pairs, answers = [("who ?", "ann lives"), ("where ?", "bob is in oslo")], ["ann", ("in oslo", 7)]
    x, y, _ = reader.dataset(pairs, answers).get_single_element()
    logits = reader(x).numpy()
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, y.numpy()[..., None], -1)[..., 0]
    reader.compile(1e-9, run_eagerly=True)
    assert reader.evaluate(pairs, answers, **QUIET)[0] == pytest.approx(losses.mean(), rel=1e-4)
    assert len(reader.fit(pairs, answers, validation_data=(pairs, answers), **QUIET).history["val_loss"]) == 1


def test_words_and_questions_in_datasets(names, reader, tmp_path):
    """Their rows are those of lists; a model from a file of Keras answers them alike."""
    sentences, tags = [["ann", "lives", "here"], ["playing"]], [["NAME", "O", "O"], ["O"]]
    ragged, numbers = tf.ragged.constant(sentences), tf.ragged.constant([[1, 0, 0], [0]])
    pairs, answers = [("who ?", "ann lives in paris"), ("where ?", "bob is in oslo")], [("ann", 0), ("oslo", 10)]
    columns = [tuple(map(list, zip(*rows, strict=True))) for rows in (pairs, answers)]
    texts = [" ".join(words) for words in sentences], [" ".join(row) for row in tags]
    padded = (ragged.to_tensor(), numbers.to_tensor(-1))
    of_words = (texts, (ragged, tf.ragged.constant(tags)), padded, (texts[0], padded[1]))
    refuses("y: 2 rows for 1 texts", names.dataset, sentences[:1], padded[1].numpy())
    for model, x, y, others in ((names, sentences, tags, of_words), (reader, pairs, answers, [columns])):
        wanted = model.dataset(x, y, [2.0, 1.0]).get_single_element()
        for columns in others:
            data = tf.data.Dataset.from_tensor_slices((*columns, [2.0, 1.0])).batch(1)
            for found in (model.dataset(data), model.dataset(*columns, [2.0, 1.0])):
                tf.nest.map_structure(np.testing.assert_array_equal, found.get_single_element(), wanted)
            assert model.predict(data) == model.predict(x)
        model.save(tmp_path / "model.keras")
        assert keras.models.load_model(tmp_path / "model.keras").predict(x) == model.predict(x)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tagger", "answerer"])
def test_they_learn(encoder, kind):
    if kind == "tagger":
        blocks = toy_data.conll(48, 1).strip().split("\n\n")[1:]
        rows = [[line.lower().split()[1:] for line in block.split("\n")] for block in blocks]
        x, y = ([[row[part] for row in sentence] for sentence in rows] for part in (0, 1))
        model = bert_tf2.tagger(encoder, labels=["o", "b-loc", "b-per"])
    else:
        paragraphs = toy_data.squad(48, 1, impossible=True)["data"][0]["paragraphs"]
        x = [(p["qas"][0]["question"], p["context"]) for p in paragraphs]
        y = [next(((a["text"], a["answer_start"]) for a in p["qas"][0]["answers"]), "") for p in paragraphs]
        model = bert_tf2.answerer(encoder, may_be_missing=True, max_seq_length=32)
    keras.utils.set_random_seed(1)
    model.compile(5e-3)
    history = model.fit(x, y, 8, 10, validation_split=0.25, **QUIET).history
    assert history["loss"][-1] < history["loss"][0] / 2 and len(history["val_accuracy"]) == 10
