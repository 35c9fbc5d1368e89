"""bert_tf2.load: weights of every kind with the files beside them; how it computes; copies; errors."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_data
from command_lines import environment
from export_cases import KINDS, LABEL_MAPS
from refused import message_of, refuses
from small_models import randomize, values_of

import bert_tf2
from bert_tf2 import commands, heads, modeling
from bert_tf2.support.errors import UserError
from bert_tf2.weights import bundle, checkpoint

TEXTS = ["the film was good .", "playing " * 12, "", "ann lives in Paris"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("loading") / "tf1"
    toy_data.write_trained(path, heads.PretrainingModel(toy_data.config()))
    return path


@pytest.fixture(scope="module")
def bert(folder):
    return bert_tf2.load(folder)


def test_importing_the_package_imports_nothing_and_prints_nothing():
    code = """if True:
        import sys
        import bert_tf2
        assert {*bert_tf2.__all__} <= {*dir(bert_tf2)}
        from bert_tf2 import tokenization, BertConfig
        assert bert_tf2.FullTokenizer is tokenization.FullTokenizer
        assert bert_tf2.config.BertConfig is BertConfig  # a module that nobody imported by its name
        assert not hasattr(bert_tf2, "nothing")
        assert not {"tensorflow", "keras", "numpy"} & {*sys.modules}, "loaded"
    """
    variables = environment(PATH="")
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("kind", ["folder", "files elsewhere", "config.json", "hf", "keras"])
def test_every_kind_of_weights_gives_the_same(folder, tmp_path, kind):
    path, options = folder, {}
    if kind == "files elsewhere":
        beside = {name: folder / name for name in ("bert_config.json", "vocab.txt")}
        path = shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns(*beside))
        options = {"bert_config_file": beside["bert_config.json"], "vocab_file": beside["vocab.txt"]}
    elif kind == "config.json":
        path = shutil.copytree(folder, tmp_path / "renamed")
        (path / "bert_config.json").rename(path / "config.json")
    elif kind != "folder":
        path = tmp_path / "out"
        commands.call("convert_checkpoint", input=str(folder), output=str(path), to=kind, do_lower_case=True)
    found = bert_tf2.load(path, **options)
    assert type(found.model) is heads.PretrainingModel and found.encoder is found.model.bert
    assert found.config == toy_data.config() and found.labels is None
    assert found.tokenizer.tokenize("Playing") == ["play", "##ing"]
    saved = checkpoint.open_weights(str(folder))
    for name, value in values_of(found.model).items():
        np.testing.assert_array_equal(value, saved.get(name), name)


def test_the_case_and_the_precision(folder):
    assert bert_tf2.load(folder, do_lower_case=False).tokenizer.tokenize("Good good") == ["[UNK]", "good"]
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        assert bert_tf2.load(folder).model.dtype_policy.name == "mixed_bfloat16"
        assert bert_tf2.load(folder, precision="float32").model.dtype_policy.name == "float32"
        keras.config.set_dtype_policy("float64")
        with pytest.raises(UserError, match="policy is float64; give a precision"):
            bert_tf2.load(folder)
    finally:
        keras.config.set_dtype_policy("float32")


def test_what_cannot_be_loaded(folder, tmp_path):
    assert bert_tf2.load(np.str_(folder)).path == bert_tf2.load(folder).path
    bare = shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("*.json", "*.txt"))
    (tmp_path / "export" / "1").mkdir(parents=True)
    (tmp_path / "export" / "1" / "model_info.json").write_text("{}")
    for path, given, words in (
        (bare, {}, "bert_config_file"),
        (bare, {"bert_config_file": folder / "bert_config.json"}, "vocab_file"),
        (folder, {"precision": "float8"}, "precision= float8"),
        (folder, {"do_lower_case": "False"}, "do_lower_case= 'False'"),
        (tmp_path / "gone", {}, "gone checkpoint"),
        (tmp_path / "export", {}, "bert_tf2.exporting.load"),
        (None, {}, "path=None"),
    ):
        refuses(words, bert_tf2.load, path, **given)


def test_settings_of_another_task(encoder, tmp_path):
    """The strides of run_classifier.py have another meaning than of run_squad.py, and may be 0."""
    bert_tf2.classifier(encoder, ["no", "yes"], window=8, stride=3).save_folder(tmp_path)
    for stride in (3, 0):
        (tmp_path / "task.json").write_text(
            (tmp_path / "task.json").read_text().replace('stride": 3', f'stride": {stride}')
        )
        assert bert_tf2.answerer(tmp_path, max_seq_length=32).settings["doc_stride"] == 8
    config = json.loads((tmp_path / "bert_config.json").read_text()) | {"num_attention_heads": 1}
    (tmp_path / "other.json").write_text(json.dumps(config))
    found = message_of(bert_tf2.masked_lm, tmp_path, bert_config_file=tmp_path / "other.json")
    assert " give bert_config_file=" in found


def test_a_fork_after_use_is_noticed(bert, exported):
    """By all that computes: it would wait for ever there, as in a server that loads a model and then forks workers."""
    made = exported("classifier")
    tuned, model = bert_tf2.load(made.weights.parent), bert_tf2.classifier(made.weights.parent, max_seq_length=8)
    calls = [bert.embed, bert.fill_mask, tuned.classify, model, model.predict, bert_tf2.exporting.load(made.folder)]
    for call in calls:
        call(["[MASK]"])
    ids = bert.tokenize(["[MASK]"])
    calls += [lambda _: model(ids), lambda _: bert.encoder(ids), lambda _: tuned.model(ids)]
    calls += [lambda texts: model.fit(texts, ["yes"]), lambda texts: model.evaluate(texts, ["yes"])]
    makers = [bert_tf2.load, bert_tf2.classifier, bert_tf2.tagger, bert_tf2.answerer, bert_tf2.masked_lm]
    calls += [lambda _, make=make: make(bert.path) for make in makers]
    out, into = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(20)
        for call in calls:
            try:
                call(["[MASK]"])
            except UserError as error:
                os.write(into, f"{error}\n".encode())
        os._exit(0)
    os.close(into)
    with open(out, encoding="utf-8") as stream:
        lines = stream.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    assert len(lines) == len(calls) and all("fork" in line for line in lines)


def _vectors(folder) -> np.ndarray:
    (folder / "in.txt").write_text("good")
    flags = {"init_checkpoint": str(folder), "input_file": f"{folder}/in.txt", "output_file": f"{folder}/out.npy"}
    commands.call("extract_features", pooling="cls", layers="-1", **flags)
    return np.load(folder / "out.npy")


@pytest.mark.parametrize(("place", "name"), [(os.path, "exists"), (keras.Model, "__init__")])
def test_a_training_that_saves_meanwhile(place, name, tmp_path, monkeypatch):
    """The newest checkpoint, of step 7, is deleted before its files are open or afterwards, when the model is made."""
    model, folder = heads.PretrainingModel(toy_data.config()), tmp_path / "model"
    toy_data.write_trained(folder, model)
    unpatched, before = getattr(place, name), _vectors(folder)

    def and_a_save(*given, **named):
        found = unpatched(*given, **named)
        if place is keras.Model or str(given[0]).endswith("model.ckpt-7.index"):
            monkeypatch.setattr(place, name, unpatched)
            randomize(model, seed=8)
            bundle.CheckpointFolder(str(folder), keep_checkpoint_max=1).save(checkpoint.tf1_variables(model), 8)
        return found

    monkeypatch.setattr(place, name, and_a_save)
    meanwhile, after = _vectors(folder), _vectors(folder)
    assert [path.name for path in folder.glob("*.index")] == ["model.ckpt-8.index"] and not np.allclose(before, after)
    np.testing.assert_array_equal(meanwhile, before if place is keras.Model else after)
    np.testing.assert_allclose(bert_tf2.load(folder).embed("good", "cls"), after[0], atol=1e-5)
    (folder / "model.ckpt-8.index").unlink()
    message_of(bert_tf2.load, folder)


# How it answers; test_one_answer.py has the answers


def test_vectors_of_several_layers_of_one_text_and_of_none(bert):
    tokens = bert.embed(TEXTS, "none", layers=[-1, 0])
    assert [values.shape for values in tokens] == [(7, 32), (26, 32), (2, 32), (6, 32)]
    for pooling, pool in (("mean", np.mean), ("max", np.max), ("cls", lambda values, axis: values[0])):
        wanted = np.stack([pool(values, axis=0) for values in tokens])
        np.testing.assert_allclose(bert.embed(TEXTS, pooling, layers=[-1, 0]), wanted, atol=1e-5)
    alone, pair = bert.embed("good"), bert.embed(("a", "film"))
    np.testing.assert_allclose(bert.embed(["good"], normalize=True)[0], alone / np.linalg.norm(alone), atol=1e-6)
    np.testing.assert_allclose(bert.embed(["good", ("a", "film")]), [alone, pair], atol=1e-6)
    assert bert.embed([]).shape == (0, 16)
    assert bert.embed(["playing " * 90]).shape == (1, 16)  # cut to the 64 positions of the model


def test_tokenize(bert, log_lines):
    found = bert.tokenize(["good", ("good film", "bad")])
    assert {name: values.dtype for name, values in found.items()} == dict.fromkeys(found, np.int32)
    ids = bert.tokenizer.convert_tokens_to_ids
    rows = [[*ids(["[CLS]", "good", "[SEP]"]), 0, 0, 0], ids("[CLS] good film [SEP] bad [SEP]".split())]
    assert found["input_ids"].tolist() == rows
    assert found["input_mask"].tolist() == [[1, 1, 1, 0, 0, 0], [1] * 6]
    assert found["segment_ids"].tolist() == [[0] * 6, [0, 0, 0, 0, 1, 1]]
    bert.tokenize(["good", "good " * 10, "good good"], max_seq_length=4)
    assert "1 of 3 texts" in log_lines[-1]
    for length in (2, 65):
        refuses(f"max_seq_length={length}", bert.tokenize, "good", length)


@pytest.mark.parametrize("task", ["classifier", "ner", "squad"])
def test_a_model_of_each_task_and_its_copies(tmp_path, task):
    """It has the heads of the weights; a copy of a model that has answered gives the same answer."""

    def ask(bert):
        if task == "squad":
            return bert.answer("who lives ?", "ann lives in paris", max_seq_length=24, max_query_length=8, doc_stride=6)
        return bert.tag(["the film"]) if task == "ner" else bert.classify("the film")

    model = KINDS[task]()
    toy_data.write_trained(tmp_path, model, LABEL_MAPS.get(task))
    bert = bert_tf2.load(tmp_path)
    assert type(bert.model) is type(model) and bert.labels == LABEL_MAPS.get(task)
    assert type(bert.encoder) is modeling.BertModel
    wanted = ask(bert)
    for again in (pickle.loads(pickle.dumps(bert)), copy.deepcopy(bert)):
        assert ask(again) == wanted
    if task == "classifier":
        (tmp_path / "label_map.json").unlink()
        assert [*bert_tf2.load(tmp_path).classify("a film")] == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_a_relative_path_after_a_change_of_the_folder(tmp_path, monkeypatch):
    """And a folder that is gone later."""
    toy_data.write_trained(tmp_path / "squad", KINDS["squad"]())
    sizes = {"max_seq_length": 24, "max_query_length": 8, "doc_stride": 2, "max_answer_length": 1}
    bert_tf2.answerer(tmp_path / "squad", **sizes).save_folder(tmp_path / "kept")
    monkeypatch.chdir(tmp_path)
    bert, asked = bert_tf2.load("kept"), ("who lives ?", "ann lives in paris . " * 4)
    monkeypatch.chdir("/")
    task = (tmp_path / "kept" / "task.json").read_bytes()
    shutil.rmtree(tmp_path / "kept")
    assert bert.answer(*asked) == bert.answer(*asked, **sizes)
    bert.save_folder(tmp_path / "again")
    assert (tmp_path / "again" / "task.json").read_bytes() == task


def test_questions_are_answered_in_batches(tmp_path):
    """The forward passes have batch_size rows; the answers are those of each question by itself."""
    toy_data.write_trained(tmp_path, KINDS["squad"]())
    bert, rows = bert_tf2.load(tmp_path), []
    call, sizes = bert.model.call, {"max_seq_length": 24, "max_query_length": 8, "doc_stride": 6}

    def counted(batch, **kwargs):
        tf.numpy_function(lambda ids: rows.append(len(ids)), [batch["input_ids"]], [])
        return call(batch, **kwargs)

    bert.model.call = counted
    asked = [("who lives ?", "ann lives in paris . " * (number % 4 + 1)) for number in range(30)]
    found = bert.answer(*map(list, zip(*asked, strict=True)), batch_size=16, **sizes)
    assert len(rows) < 10 and max(rows) == 16
    for number in range(4):
        alone = bert.answer(*asked[number], **sizes)
        assert found[number].text == alone.text
        assert found[number].probability == pytest.approx(alone.probability, abs=1e-5)
    reader = bert_tf2.answerer(tmp_path, **sizes)
    assert [answer.text for answer in reader.predict(asked[:6], batch_size=4)] == [one.text for one in found[:6]]
    assert bert.answer([], []) == reader.predict([]) == []
