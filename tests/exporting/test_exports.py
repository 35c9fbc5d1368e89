"""The folder of an export: what is written, refused and loaded; scripts that start it, and models of Keras."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from export_cases import CLOSE, CONFIG, POSITIONS, SETTINGS, TAGS, make_options
from refused import message_of

import bert_tf2
from bert_tf2 import commands, heads, modeling
from bert_tf2.exporting import load, saved_model_files
from bert_tf2.exporting.options import TASKS
from bert_tf2.exporting.run import run
from bert_tf2.weights import checkpoint
from bert_tf2.weights.task_file import load_label_map

text_operations.need()


def test_what_lies_in_the_folder(exported):
    made = exported("ner")
    found = {str(path.relative_to(made.folder)) for path in pathlib.Path(made.folder).rglob("*") if path.is_file()}
    assert found - {"fingerprint.pb"} == {
        "saved_model.pb", "model_info.json", "assets/vocab.txt", "assets/label_map.json", "variables/variables.index",
        "variables/variables.data-00000-of-00001",
    }  # fmt: skip
    assert pathlib.Path(made.folder).name == "1"
    assert load_label_map(f"{made.folder}/assets").labels == TAGS
    assert pathlib.Path(made.folder, "assets/vocab.txt").read_text().split() == toy_data.VOCAB


@pytest.mark.parametrize("task", TASKS)
def test_model_info_describes_it(exported, task):
    made = exported(task)
    info = made.info
    assert info["task"] == task and info["config"] == CONFIG.to_dict()
    assert info["checkpoint"]["name"] == "model.ckpt-7" and info["checkpoint"]["global_step"] == 7
    assert (info["max_seq_length"], info["do_lower_case"], info["precision"]) == (24, True, "float32")
    assert {name: info[name] for name in SETTINGS[task]} == SETTINGS[task]
    assert info["versions"].keys() == {"bert_tf2", "tensorflow", "keras", "tensorflow-text"}
    assert str(made.weights.parent) not in json.dumps(info)
    assert info["signatures"].keys() == made.saved.signatures.keys()
    for name, described in info["signatures"].items():
        outputs = made.saved.signatures[name].structured_outputs
        assert described["outputs"] == {
            output: {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()} for output, tensor in outputs.items()
        }
        assert all(tensor.shape[0] is None for tensor in outputs.values())  # the batch, for the server's batcher


# What is refused


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("classifier", {"max_seq_length": POSITIONS + 1}, f"--max_seq_length={POSITIONS + 1}"),
        ("classifier", {"max_seq_length": 2}, "--max_seq_length=2"),
        ("classifier", {"max_seq_length": 3, "stride": 1}, "--max_seq_length=3"),
        ("features", {"stride": 1}, "--task=classifier"),
        ("squad", {"max_query_length": 22}, "--max_query_length=22"),
        ("masked_lm", {"top_k": CONFIG.vocab_size + 1}, "--top_k=38"),
        ("features", {"task": "sentiment"}, "--task=sentiment"),
        ("features", {"init_checkpoint": "gone"}, "gone"),
        ("features", {"format": "tflite"}, "--format=tflite: must be one of saved_model, onnx"),
        ("features", {"quantize": "int4"}, "--quantize=int4"),
        ("features", {"quantize": "int8"}, "--format=onnx"),
        ("features", {"onnx_names": "transformers"}, "--format=onnx"),
        ("features", {"precision": "float16"}, "--precision=float16"),
        ("features", {"precision": "bfloat16", "format": "onnx"}, "--precision=bfloat16"),
        ("classifier", {"pooling": "sum"}, "--pooling=sum"),
    ],
)
def test_settings_that_do_not_fit(exported, tmp_path, task, change, message):
    options = make_options(tmp_path, task, exported(task).weights)
    assert message in message_of(lambda: run(dataclasses.replace(options, **change)))
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize(("task", "length"), [("classifier", 128), ("squad", 384)])
def test_the_length_that_is_not_given(tmp_path, task, length):
    options = make_options(tmp_path, task, tmp_path / "model.ckpt", max_seq_length=None)
    for positions, wanted in ((512, length), (64, 64)):
        assert options.length_for(toy_data.config(max_position_embeddings=positions)) == wanted


@pytest.mark.parametrize(
    ("task", "missing"),
    [("classifier", "output_weights"), ("squad", "cls/squad"), ("ner", "output_weights"), ("masked_lm", "cls/pred")],
)
def test_no_head_is_exported_that_nobody_trained(exported, tmp_path, task, missing):
    labels = exported("ner" if task == "ner" else "classifier").weights.parent / "label_map.json"
    options = make_options(tmp_path, task, exported("features").weights, label_map=str(labels))
    message = message_of(run, options)
    assert all(part in message for part in ("model.ckpt-7", f"the task {task}", missing))
    assert not (tmp_path / "export").exists()


@pytest.mark.slow
def test_features_without_a_pooler(exported, tmp_path, log_lines):
    variables = checkpoint.tf1_variables(exported("features").model)
    without = {name: variable for name, variable in variables.items() if "pooler" not in name}
    checkpoint.save(str(tmp_path / "encoder.ckpt"), without)
    folder = run(make_options(tmp_path, "features", tmp_path / "encoder.ckpt", text_signatures=False))
    signatures = json.loads(pathlib.Path(folder, "model_info.json").read_text())["signatures"]
    assert {tuple(one["outputs"]) for one in signatures.values()} == {("mean_pooled", "sequence_output")}
    assert any("pooled_output" in line for line in log_lines)


def test_labels_must_be_known_and_as_many_as_outputs(exported, tmp_path):
    checkpoint.save(str(tmp_path / "model.ckpt"), checkpoint.tf1_variables(exported("classifier").model))
    content = {"task": "mine", "labels": ["0", "1"], "regression": False}
    (tmp_path / "two.json").write_text(json.dumps(content))
    of_tags = exported("ner").weights.parent / "label_map.json"
    for label_map, part in ((None, "--label_map"), (tmp_path / "two.json", "3 outputs"), (of_tags, "the task ner")):
        options = make_options(tmp_path, "classifier", tmp_path / "model.ckpt", label_map=label_map)
        message = message_of(run, options)
        assert part in message and str(label_map or "model.ckpt") in message
    (tmp_path / "three.json").write_text(json.dumps(content | {"labels": ["x", "y", "z"]}))
    given = {"label_map": str(tmp_path / "three.json"), "text_signatures": False}
    folder = run(make_options(tmp_path, "classifier", tmp_path / "model.ckpt", **given))
    assert load_label_map(f"{folder}/assets").labels == ("x", "y", "z")


# Numbered versions: complete or absent, and never the same number twice


def test_numbers(tmp_path):
    for name in ("99999999999999999999", "\u0663", "3"):  # servers count with 64 bits
        (tmp_path / name).mkdir()

    def write(folder: str) -> None:
        (tmp_path / "4").mkdir()  # another process takes the number meanwhile
        (tmp_path / "4" / "saved_model.pb").touch()
        pathlib.Path(folder, "mine").touch()

    assert saved_model_files.write_version(str(tmp_path), write) == str(tmp_path / "5")
    assert os.listdir(tmp_path / "5") == ["mine"] and os.listdir(tmp_path / "4") == ["saved_model.pb"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_version_appears_when_it_is_complete(exported, tmp_path, monkeypatch, error):
    """Not at all, if the user ends it or a disk is full while TensorFlow writes."""
    found = []

    def fail(*given):
        found.extend(name.isdecimal() for name in os.listdir(tmp_path / "export"))
        raise error

    monkeypatch.setattr(tf.saved_model, "save", fail)
    options = make_options(tmp_path, "classifier", exported("classifier").weights, text_signatures=False)
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            run(options)
    else:
        message = message_of(run, options)
        assert "export: " in message and "No space left on device" in message
    assert found == [False] and os.listdir(tmp_path / "export") == []


@pytest.mark.slow
def test_what_a_killed_export_of_this_machine_left_is_removed(tmp_path, log_lines):
    """A process writes, and is killed: the folder has its number in the name."""
    code = (
        "import os, signal, sys; from bert_tf2.exporting import saved_model_files as s;"
        "s.write_version(sys.argv[1], lambda folder: os.kill(os.getpid(), signal.SIGKILL))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=False)
    (left,) = os.listdir(tmp_path)
    assert done.returncode == -9 and not left.isdecimal()
    assert saved_model_files.write_version(str(tmp_path), lambda folder: None) == str(tmp_path / "1")
    assert os.listdir(tmp_path) == ["1"] and any(left in line for line in log_lines)


# load


def test_load_explains_bad_texts(exported):
    for task, texts, parts in (
        ("classifier", ["a", ""], "row 1 of text_a is empty"),
        ("classifier", ["a"] * 40 + [" "], "row 40 of text_a is empty"),
        ("classifier", [("a", "b", "c")], "row 0 is ('a', 'b', 'c')|a text or a pair of texts"),
        ("classifier", ["a", 7], "row 1 is 7"),
        ("classifier", b"a film", "row 0 is b'a film'"),
        ("classifier", {"text_a": "a film"}, "row 0 is {'text_a': 'a film'}"),
        ("ner", ("a", "b"), "the task ner takes a text"),
        ("squad", "a", "a pair (question, context)"),
        ("squad", ("a", ""), "row 0 of context is empty"),
    ):
        message = message_of(load(exported(task).folder), texts)
        assert all(part in message for part in parts.split("|"))


def shorten(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def test_load_knows_an_export(exported, tmp_path):
    made = exported("ner")
    for path in (tmp_path, tmp_path / "gone", made.weights.parent):
        assert "model_info.json" in message_of(load, str(path))
    folder = shutil.copytree(made.folder, tmp_path / "export/2")
    assert load(tmp_path / "export")("Bob")["words"] == ["Bob"]
    (tmp_path / "export/10").mkdir()
    assert "export/10" in message_of(load, tmp_path / "export")  # and a server would take that one too
    for file, damage in (
        ("variables/variables.data-00000-of-00001", shorten),
        ("variables/variables.data-00000-of-00001", pathlib.Path.unlink),
        ("saved_model.pb", shorten),
        ("saved_model.pb", pathlib.Path.unlink),
        ("model_info.json", shorten),
        ("model_info.json", lambda path: path.write_text("{}")),
    ):
        damage(folder / file)
        assert str(folder) in message_of(load, folder)


@pytest.mark.parametrize("task", ["features", "ner"])
def test_an_export_is_not_read_as_weights(exported, tmp_path, task):
    folder = pathlib.Path(exported(task).folder)
    for path in (folder, folder / "saved_model.pb", folder / "variables"):
        message = message_of(checkpoint.open_weights, str(path))
        assert message.startswith(f"{path}: ") and "export" in message and "checkpoint" in message
    shutil.copytree(folder.parent, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.ckpt-7.index").write_bytes(b"damaged")  # an --export_dir that is the --output_dir
    assert "exported" not in message_of(checkpoint.open_weights, str(tmp_path))


# Scripts that export what they trained


@pytest.mark.slow
@pytest.mark.parametrize("task", ["squad", "ner", "masked_lm"])
def test_do_export(exported, tmp_path, task):
    """With nothing to train, the weights are those of --init_checkpoint."""
    made, out = exported(task), str(tmp_path / "out")
    files = toy_data.write_model(tmp_path, num_hidden_layers=1)
    shared = {**files, **SETTINGS[task], "output_dir": out, "init_checkpoint": str(made.weights), "do_export": True}
    shared.pop("top_k", None)
    script, own = {
        "squad": ("run_squad", {"version_2_with_negative": True}),
        "ner": ("run_ner", {"export_dir": f"{out}/export"}),
        "masked_lm": ("run_pretraining", {"input_file": files["vocab_file"]}),  # which is not read
    }[task]
    commands.call(script, **shared, **own)
    info = json.loads((tmp_path / "out/export/1/model_info.json").read_text())
    changed = {"squad": {"null_score_diff_threshold": 0.0}, "masked_lm": {"top_k": 5}}.get(task, {})
    wanted = {**made.info, **changed}
    assert info.pop("signatures").keys() == wanted.pop("signatures").keys() and info == wanted


# Models of Keras

PAIRS = [("a lovely film", "Bob is bad"), ("Bob is in Oslo now and " * 9, "")]


@pytest.mark.parametrize(
    ("width", "names"), [(None, ("input_ids", "input_mask", "segment_ids")), (24, ("input_mask", "input_ids"))]
)
def test_a_functional_model_answers_texts(exported, tmp_path, width, names):
    """With a head and inputs of its own: a dictionary of inputs and outputs, or a list and one output."""
    bert = bert_tf2.load(exported("features").weights.parent)
    inputs = {name: keras.Input([width], dtype="int32", name=name) for name in names}
    age = keras.Input([2], name="age")
    encoded = keras.layers.Dropout(0.5)(bert.encoder(inputs).pooled_output)
    score = keras.layers.Dense(3, name="score")(keras.layers.Concatenate()([encoded, age]))
    several = len(names) == 3
    outputs = {"score": score, "age": keras.layers.Dense(1)(age)} if several else score
    model = keras.Model({**inputs, "age": age} if several else [age, *inputs.values()], outputs)
    folder = bert_tf2.export(model, bert.tokenizer, tmp_path / "export", max_seq_length=40 if width else 24)
    numbers = np.array([[1.0, 2.0], [0.5, -1.0]], np.float32)
    arrays = {**bert.tokenize(PAIRS, 24), "age": numbers}
    given = {name: arrays[name] for name in ("age", *names)}
    wanted = model(given if several else [*given.values()])
    wanted = wanted["score"] if several else wanted
    saved = tf.saved_model.load(folder)
    columns = dict(zip(("text_a", "text_b"), map(tf.constant, zip(*PAIRS, strict=True)), strict=True))
    texts = {**columns, "age": tf.constant(numbers)}
    for found in (
        saved.signatures["serving_text_pair"](**texts),
        saved.signatures["serving_default"](**{name: tf.constant(value) for name, value in arrays.items()}),
        keras.layers.TFSMLayer(folder, "serving_text_pair")(texts),
    ):
        (given,) = (value for value in found.values() if value.shape[-1] == 3)
        np.testing.assert_allclose(given, wanted, **CLOSE)
    ids = {"input_ids": tf.ones([2, 65], tf.int32), "age": texts["age"]}
    for call, given, message in (
        (saved.serving_text_pair, {**texts, "age": tf.constant(numbers[:1])}, "1 rows of age"),
        (saved.serving_ids, ids, f"65 tokens.* {width or 64} at most"),
        (saved.serving_text, {"text_a": tf.constant(["a", " "]), "age": texts["age"]}, "row 1 of text_a is empty"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            call(given)
    assert "age" in message_of(load, folder)


@pytest.mark.slow
def test_other_models_of_keras(exported, tmp_path):
    made = exported("classifier")
    bert = bert_tf2.load(made.weights.parent)
    answer = load(bert_tf2.export(bert.model, bert.tokenizer, str(tmp_path / "export"), max_seq_length=24))
    (found,) = answer(PAIRS[:1])[0].values()
    np.testing.assert_allclose(found, bert.model(bert.tokenize(PAIRS[:1]))[0], **CLOSE)
    ids = keras.Input([None], dtype="int32", name="ids")
    for model, part in (
        (keras.Sequential([keras.layers.Dense(1)]), "encoder of bert_tf2"),
        (keras.Model(ids, modeling.BertModel(CONFIG)(ids).pooled_output), "input_ids, but ids"),
        (heads.MODELS[0](CONFIG), "max_seq_length"),
    ):
        assert part in message_of(bert_tf2.export, model, bert.tokenizer, str(tmp_path / "export"), 65)
