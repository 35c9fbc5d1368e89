"""The folder of an export: what is written, refused and loaded; scripts that start it, and models of Keras."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
import text_operations
import toy_data
from export_cases import CLOSE, CONFIG, LABELS, POSITIONS, SETTINGS, make_options
from refused import message_of, refuses

import bert_tf2
from bert_tf2 import commands, heads, modeling, tokenization
from bert_tf2.exporting import load, saved_model_files
from bert_tf2.exporting.options import TASKS
from bert_tf2.exporting.run import run
from bert_tf2.weights import checkpoint
from bert_tf2.weights.task_file import load_label_map

text_operations.need()


@pytest.mark.parametrize("task", TASKS)
def test_what_lies_in_the_folder(exported, task):
    made = exported(task)
    folder, info = pathlib.Path(made.folder), made.info
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert folder.name == "1" and found - {"fingerprint.pb", "assets/label_map.json"} == {
        "saved_model.pb", "model_info.json", "assets/vocab.txt", "variables/variables.index",
        "variables/variables.data-00000-of-00001",
    }  # fmt: skip
    assert ("assets/label_map.json" in found) == (task in ("classifier", "ner"))
    assert (folder / "assets/vocab.txt").read_text().split() == toy_data.VOCAB
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


# The task, the task whose weights are given, settings, words of the message. A list of labels is a file of its own, the
# name of a task stands for its labels.
REFUSED = [
    ("classifier", "classifier", {"max_seq_length": POSITIONS + 1}, f"--max_seq_length={POSITIONS + 1}"),
    ("classifier", "classifier", {"max_seq_length": 2}, "--max_seq_length=2"),
    ("classifier", "classifier", {"max_seq_length": 3, "stride": 1}, "--max_seq_length=3"),
    ("features", "features", {"stride": 1}, "--stride=1 --task=classifier"),
    ("squad", "squad", {"max_query_length": 22}, "--max_query_length=22"),
    ("masked_lm", "masked_lm", {"top_k": CONFIG.vocab_size + 1}, "--top_k=38"),
    ("features", "features", {"init_checkpoint": "gone"}, "gone"),
    ("features", "features", {"quantize": "int8"}, "--quantize=int8 --format=onnx"),
    ("features", "features", {"onnx_names": "transformers"}, "--onnx_names=transformers --format=onnx"),
    ("features", "features", {"precision": "bfloat16", "format": "onnx"}, "--precision=bfloat16 --format=onnx"),
    # Heads that nobody trained, and labels that are not those of the weights.
    ("classifier", "features", {"label_map": "classifier"}, "model.ckpt-7 classifier output_weights"),
    ("squad", "features", {}, "model.ckpt-7 squad cls/squad"),
    ("ner", "features", {"label_map": "ner"}, "model.ckpt-7 ner output_weights"),
    ("masked_lm", "features", {}, "model.ckpt-7 masked_lm cls/pred"),
    ("classifier", "classifier", {"label_map": "ner"}, "label_map.json ner"),
    ("classifier", "classifier", {"label_map": ["0", "1"]}, "labels.json 3 outputs"),
]


def test_settings_that_do_not_fit(exported, tmp_path):
    def export_with(weights: pathlib.Path, task: str, changes: dict) -> None:
        run(make_options(tmp_path, task, weights, **changes))

    for task, given, changes, words in REFUSED:
        labels = changes.get("label_map")
        if isinstance(labels, str):
            changes = {"label_map": str(exported(labels).weights.parent / "label_map.json")}
        elif labels:
            changes = {"label_map": str(tmp_path / "labels.json")}
            content = {"task": "mine", "labels": labels, "regression": False}
            (tmp_path / "labels.json").write_text(json.dumps(content))
        refuses(words, export_with, exported(given).weights, task, changes)
    assert not (tmp_path / "export").exists()
    of_texts = {"max_query_length": 22, "format": "onnx"}  # does not matter to a model that reads no texts
    assert make_options(tmp_path, "squad", exported("squad").weights, **of_texts).length_for(CONFIG) == 24
    (tmp_path / "model_info.json").write_text('{"task": "squad", "format": "onnx"}')
    refuses("model.onnx", load, tmp_path)


def test_labels_that_are_given_and_no_texts(exported, tmp_path):
    """A program that has none of the operations of tensorflow-text can load an export that takes no texts."""
    made, labels = exported("classifier"), [label.upper() for label in LABELS]
    content = {"task": "mine", "labels": labels, "regression": False}
    (tmp_path / "labels.json").write_text(json.dumps(content))
    given = {"label_map": str(tmp_path / "labels.json"), "text_signatures": False}
    folder = run(make_options(tmp_path, "classifier", made.weights, **given))
    assert load_label_map(f"{folder}/assets").labels == (*labels,)
    contents = [pathlib.Path(path, "saved_model.pb").read_bytes() for path in (made.folder, folder)]
    assert [b"FastWordpiece" in content for content in contents] == [True, False]


@pytest.mark.slow
def test_features_without_a_pooler(exported, tmp_path, log_lines):
    variables = checkpoint.tf1_variables(exported("features").model)
    without = {name: variable for name, variable in variables.items() if "pooler" not in name}
    toy_data.write_model(tmp_path, num_hidden_layers=1)
    checkpoint.save(str(tmp_path / "encoder.ckpt"), without)
    folder = run(make_options(tmp_path, "features", tmp_path / "encoder.ckpt", text_signatures=False))
    signatures = json.loads(pathlib.Path(folder, "model_info.json").read_text())["signatures"]
    assert {tuple(one["outputs"]) for one in signatures.values()} == {("mean_pooled", "sequence_output")}
    assert any("pooled_output" in line for line in log_lines)


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


def test_a_server_s_folder_has_one_format(tmp_path):
    def write(folder: str, **info) -> None:
        pathlib.Path(folder, "model_info.json").write_text(json.dumps(info))

    saved_model_files.write_version(str(tmp_path), write)
    to_onnx = functools.partial(write, format="onnx")
    refuses(f"{tmp_path}/1: saved_model onnx another", saved_model_files.write_version, str(tmp_path), to_onnx)
    assert os.listdir(tmp_path) == ["1"] and saved_model_files.write_version(str(tmp_path), write)


def test_a_version_appears_when_it_is_complete(exported, tmp_path, monkeypatch):
    """Not at all, if a disk is full or the user ends it while TensorFlow writes."""
    options = make_options(tmp_path, "classifier", exported("classifier").weights, text_signatures=False)

    def fail(*given):
        assert [name.isdecimal() for name in os.listdir(tmp_path / "export")] == [False]
        raise error

    monkeypatch.setattr(tf.saved_model, "save", fail)
    error = OSError(28, "No space left on device")
    refuses("export: space", run, options)
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(options)
    assert not (tmp_path / "export").exists()


# load


def test_load_explains_bad_texts(exported):
    loaded = functools.cache(lambda task: load(exported(task).folder))
    for task, texts, words in (
        ("squad", [("a", "b")] * 40 + [(" ", "b")], "40 question empty"),
        ("classifier", [("a", "b", "c")], "0 ('a','b','c') pair"),
        ("classifier", b"a film", "0 b'a"),
        ("classifier", {"text_a": "a"}, "0 {'text_a':"),
        ("squad", "a", "(question, context)"),
    ):
        message = message_of(loaded(task), texts).replace("', '", "','")
        assert all(word in message for word in words.split()), message


def test_load_knows_an_export(exported, tmp_path):
    made = exported("ner")
    for path in (tmp_path, tmp_path / "gone", made.weights.parent):
        refuses("model_info.json", load, str(path))
    folder = shutil.copytree(made.folder, tmp_path / "export/2")
    assert load(tmp_path / "export")("Bob")["words"] == ["Bob"]
    refuses("a[b]: rename", load, shutil.copytree(made.folder, tmp_path / "a[b]"))  # TensorFlow finds no variables
    (tmp_path / "export/10").mkdir()
    refuses("export/10", load, tmp_path / "export")  # and a server would take that one too
    for file, content in (
        ("variables/variables.data-00000-of-00001", b"short"),
        ("variables/variables.data-00000-of-00001", None),
        ("saved_model.pb", (folder / "saved_model.pb").read_bytes()[:100]),
        ("saved_model.pb", None),
    ):
        (folder / file).write_bytes(content) if content else (folder / file).unlink()
        refuses(str(folder), load, folder)


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


@pytest.mark.parametrize("width", [None, pytest.param(24, marks=pytest.mark.slow)])
def test_a_functional_model_answers_texts(exported, tmp_path, width):
    """With a head and inputs of its own: a dictionary of inputs and outputs, or with a width a list and one output."""
    bert, several = bert_tf2.load(exported("features").weights.parent), width is None
    names = ("input_ids", "input_mask", "segment_ids") if several else ("input_mask", "input_ids")
    inputs = {name: keras.Input([width], dtype="int32", name=name) for name in names}
    age = keras.Input([2], name="age")
    encoded = keras.layers.Dropout(0.5)(bert.encoder(inputs).pooled_output)
    score = keras.layers.Dense(3, name="score")(keras.layers.Concatenate()([encoded, age]))
    outputs = {"score": score, "age": keras.layers.Dense(1)(age)} if several else score
    model = keras.Model({**inputs, "age": age} if several else [age, *inputs.values()], outputs)
    folder = bert_tf2.export(model, bert.tokenizer, tmp_path / "export", max_seq_length=40 if width else 24)
    numbers = np.array([[1.0, 2.0], [0.5, -1.0]], np.float32)
    arrays = {**bert.tokenize(PAIRS, 24), "age": numbers}
    given = {name: arrays[name] for name in ("age", *names)}
    wanted = model(given)["score"] if several else model([*given.values()])
    saved = tf.saved_model.load(folder)
    columns = dict(zip(("text_a", "text_b"), map(tf.constant, zip(*PAIRS, strict=True)), strict=True))
    texts = {**columns, "age": tf.constant(numbers)}
    for found in (
        saved.signatures["serving_text_pair"](**texts),
        saved.signatures["serving_default"](**{name: tf.constant(value) for name, value in arrays.items()}),
    ):
        (given,) = (value for value in found.values() if value.shape[-1] == 3)
        np.testing.assert_allclose(given, wanted, **CLOSE)
    ids = {"input_ids": tf.ones([2, 65], tf.int32), "age": texts["age"]}
    for call, given, message in (
        (saved.serving_text_pair, {**texts, "age": tf.constant(numbers[:1])}, "1 rows of age"),
        (saved.serving_ids, ids, f"65 tokens.* {width or 64} at most"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            call(given)
    refuses("age", load, folder)
    refuses("path=None", load, None)
    more = tokenization.FullTokenizer("vocab.txt", entries=[*bert.tokenizer.entries, "zebra"])
    for wrong, words in (
        ((model, bert.tokenizer, folder, 65), "max_seq_length=65 64"),
        ((model, bert.tokenizer, folder, 2), "max_seq_length=2"),
        ((model, "vocab.txt", folder), "tokenizer='vocab.txt'"),
        ((model, more, folder), "38 entries"),
        (("model", bert.tokenizer, folder), "model='model' encoder"),
        ((model, bert.tokenizer, None), "export_dir=None"),
    ):
        refuses(words, bert_tf2.export, *wrong)


@pytest.mark.slow
def test_other_models_of_keras(exported, tmp_path):
    made = exported("classifier")
    bert = bert_tf2.load(made.weights.parent)
    answer = load(bert_tf2.export(bert.model, bert.tokenizer, str(tmp_path / "export"), max_seq_length=24))
    (found,) = answer(PAIRS[:1])[0].values()
    np.testing.assert_allclose(found, bert.model(bert.tokenize(PAIRS[:1]))[0], **CLOSE)
    ids = keras.Input([None], dtype="int32", name="ids")
    for model, words in (
        (keras.Sequential([keras.layers.Dense(1)]), "encoder of bert_tf2"),
        (keras.Model(ids, modeling.BertModel(CONFIG)(ids).pooled_output), "input_ids ids"),
        (heads.MODELS[0](CONFIG), "max_seq_length"),
    ):
        refuses(words, bert_tf2.export, model, bert.tokenizer, str(tmp_path / "export"), 65)
