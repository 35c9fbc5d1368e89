"""bert_tf2.load: weights of every kind with the files next to them; the same values as the scripts; errors."""

from __future__ import annotations

import json
import os
import pathlib
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
from refused import message_of as refusal
from small_models import randomize, values_of

import bert_tf2
from bert_tf2 import commands, heads, modeling
from bert_tf2.pretraining import predict_masked
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint, convert
from bert_tf2.weights.options import ConversionOptions
from bert_tf2.weights.task_file import LabelMap, save_label_map

TEXTS = ["the film was good .", "playing " * 12, "", "ann lives in Paris"]
SENTENCES = ["the film was [MASK] .", "[MASK] lives in [MASK] ||| where ?"]


def make_folder(path: pathlib.Path, model, step: int = 7) -> pathlib.Path:
    """Writes the files of a release: weights, configuration, vocabulary."""
    path.mkdir()
    toy_data.write_model(path)
    randomize(model)
    checkpoint.CheckpointFolder(str(path)).save(checkpoint.tf1_variables(model), step)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return make_folder(tmp_path_factory.mktemp("loading") / "tf1", heads.PretrainingModel(toy_data.config()))


@pytest.fixture(scope="module")
def bert(folder):
    return bert_tf2.load(folder)


def flags_of(folder: pathlib.Path) -> dict[str, str]:
    files = {"bert_config_file": str(folder / "bert_config.json"), "vocab_file": str(folder / "vocab.txt")}
    return {**files, "init_checkpoint": str(folder)}


def converted(source: pathlib.Path, output: pathlib.Path, to: str, **options) -> str:
    convert.run(ConversionOptions(input=str(source), output=str(output), to=to, **options))
    return str(output)


# Importing


def test_importing_the_package_imports_nothing_and_prints_nothing():
    code = """if True:
        import sys
        import bert_tf2
        assert {*bert_tf2.__all__} <= {*dir(bert_tf2)}
        from bert_tf2 import tokenization, BertConfig
        assert bert_tf2.FullTokenizer is tokenization.FullTokenizer
        assert bert_tf2.config.BertConfig is BertConfig  # a module that nobody imported by its name
        assert not hasattr(bert_tf2, "nothing")
        try:
            from bert_tf2 import nothing
        except ImportError:
            pass
        else:
            raise AssertionError("imported")
        assert not {"tensorflow", "keras", "numpy"} & {*sys.modules}, "loaded"
    """
    variables = environment(PATH="")
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Loading


def test_what_is_loaded(bert, folder):
    assert bert.config == toy_data.config()
    assert bert.tokenizer.tokenize("Playing") == ["play", "##ing"]
    assert isinstance(bert.model, heads.PretrainingModel) and bert.encoder is bert.model.bert
    assert bert.labels is None
    assert repr(bert).startswith(f"<Bert {folder}/model.ckpt-7: PretrainingModel, 2 layers, hidden_size 16")
    saved = checkpoint.open_weights(str(folder))
    for name, variable in checkpoint.tf1_variables(bert.model).items():
        np.testing.assert_array_equal(variable, saved.get(name), name)


@pytest.mark.parametrize("kind", ["prefix", "files elsewhere", "config.json", "hf", "tokenizer.json", "keras"])
def test_every_kind_of_weights_gives_the_same(bert, folder, tmp_path, kind):
    beside = {name: folder / name for name in ("bert_config.json", "vocab.txt")}
    options = {}
    if kind == "prefix":
        path = folder / "model.ckpt-7"
    elif kind == "files elsewhere":
        path = shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns(*beside))
        options = {"bert_config_file": beside["bert_config.json"], "vocab_file": beside["vocab.txt"]}
    elif kind == "config.json":
        path = shutil.copytree(folder, tmp_path / "renamed")
        (path / "bert_config.json").rename(path / "config.json")
    else:
        path = converted(folder, tmp_path / "out", "keras" if kind == "keras" else "hf")
    if kind == "tokenizer.json":
        (tmp_path / "out" / "vocab.txt").unlink()
        vocabulary = {word: index for index, word in enumerate(toy_data.VOCAB)}
        tokenizer = {"model": {"type": "WordPiece", "vocab": vocabulary, "continuing_subword_prefix": "##"}}
        (tmp_path / "out" / "tokenizer.json").write_text(json.dumps(tokenizer))
    found = bert_tf2.load(path, **options)
    assert type(found.model) is heads.PretrainingModel
    assert found.tokenizer.vocab == bert.tokenizer.vocab
    wanted = values_of(bert.model)
    for name, value in values_of(found.model).items():
        np.testing.assert_array_equal(value, wanted.pop(name), name)
    assert not wanted


@pytest.mark.parametrize(
    ("make", "labels"),
    [
        (modeling.BertModel, None),
        (heads.SpanModel, None),
        (lambda config: heads.ClassifierModel(config, 2), LabelMap("tsv", ("no", "yes"), False)),
        (lambda config: heads.TaggingModel(config, 3), LabelMap("ner", ("O", "B-X", "I-X"), False)),
    ],
    ids=["encoder", "span", "classifier", "tagger"],
)
def test_the_model_has_the_heads_of_the_weights(tmp_path, make, labels):
    model = make(toy_data.config())
    path = make_folder(tmp_path / "model", model)
    if labels:
        save_label_map(str(path), labels)
    found = bert_tf2.load(path)
    assert type(found.model) is type(model) and found.labels == labels
    assert type(found.encoder) is modeling.BertModel
    if found.encoder is found.model:  # to trace the graph takes seconds
        assert found.embed(["good"]).shape == (1, 16)
    assert "has no masked-LM head" in refusal(found.fill_mask, "[MASK]")


def test_case(folder, tmp_path):
    assert bert_tf2.load(folder, do_lower_case=False).tokenizer.tokenize("Good good") == ["[UNK]", "good"]
    cased = shutil.copytree(folder, tmp_path / "cased_L-12_H-768_A-12")
    for ending in ("index", "data-00000-of-00001"):
        (cased / f"model.ckpt-7.{ending}").rename(cased / f"bert_model.ckpt.{ending}")
    (cased / "checkpoint").unlink()
    assert "do_lower_case" in refusal(bert_tf2.load, cased, do_lower_case=True)
    words = [word.title() if word in toy_data.PLACES else word for word in toy_data.VOCAB]
    shutil.copytree(folder, tmp_path / "guessed")
    (tmp_path / "guessed" / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    assert bert_tf2.load(tmp_path / "guessed").tokenizer.tokenize("Paris") == ["Paris"]
    from_huggingface = converted(folder, tmp_path / "hf", "hf", do_lower_case=False)
    assert bert_tf2.load(from_huggingface).tokenizer.tokenize("Good good") == ["[UNK]", "good"]


def test_what_cannot_be_loaded(folder, tmp_path):
    bare = shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("*.json", "*.txt"))
    weights = f"{bare}/model.ckpt-7"
    assert refusal(bert_tf2.load, bare) == (
        f"{weights}: no configuration is found beside the weights (bert_config.json or config.json); give its"
        " path as bert_config_file"
    )
    config = folder / "bert_config.json"
    assert refusal(bert_tf2.load, bare, bert_config_file=config) == (
        f"{weights}: no vocabulary is found beside the weights (vocab.txt); give its path as vocab_file"
    )
    assert "gone.json: no such file" in refusal(bert_tf2.load, bare, bert_config_file=tmp_path / "gone.json")
    assert "gone.txt: no such file" in refusal(bert_tf2.load, folder, vocab_file=tmp_path / "gone.txt")
    assert "no such checkpoint" in refusal(bert_tf2.load, tmp_path / "gone")
    (bare / "bert_config.json").write_text(toy_data.config(hidden_size=8).to_json_string())
    assert "does not fit the model" in refusal(bert_tf2.load, bare, vocab_file=folder / "vocab.txt")
    assert (
        refusal(bert_tf2.load, folder, precision="float8")
        == "precision='float8': must be one of float32, tf32, bfloat16, float16"
    )
    (tmp_path / "export" / "1").mkdir(parents=True)
    (tmp_path / "export" / "1" / "model_info.json").write_text("{}")
    assert "use it with bert_tf2.exporting.load" in refusal(bert_tf2.load, tmp_path / "export")


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        ("load", {"path": None}, "path=None: must be a path"),
        ("load", {"do_lower_case": "False"}, "do_lower_case='False': must be True or False"),
        ("embed", {"texts": None}, "texts=None: must be a text, or several"),
        ("embed", {"texts": {"a": "hello"}}, "texts={'a': 'hello'}: must be a text, or several"),
        ("embed", {"texts": ["a", 5]}, "text 2: 5 is neither a text nor a pair of texts"),
        ("embed", {"texts": [("a", "b", "c")]}, "text 1: ('a', 'b', 'c') is neither a text nor a pair of texts"),
        ("embed", {"batch_size": "8"}, "batch_size='8': must be a whole number"),
        ("embed", {"batch_size": 0}, "batch_size=0: must be 1 or more"),
        ("embed", {"max_seq_length": 2}, "max_seq_length=2: must be from 3 to 64"),
        ("embed", {"max_seq_length": 65}, "max_seq_length=65: must be from 3 to 64"),
        ("embed", {"pooling": "sum"}, "pooling='sum': must be one of none, cls, mean, max"),
        ("embed", {"layers": 2}, "layers=[2]: the model has 2 layers, "),
        ("embed", {"layers": []}, "layers=[]: at least one layer"),
        ("embed", {"layers": None}, "layers=None: must be a whole number"),
        ("fill_mask", {"texts": b"hello"}, "texts=b'hello': must be a text, or several"),
        ("fill_mask", {"texts": "no blank"}, "text 1: holds no [MASK]"),
        ("fill_mask", {"texts": "[MASK] " * 63}, "text 1 has 65 tokens"),
        ("fill_mask", {"top_k": "5"}, "top_k='5': must be a whole number"),
        ("fill_mask", {"top_k": 0}, "--top_k=0: must be from 1 to"),
        ("fill_mask", {"batch_size": 0}, "batch_size=0: must be 1 or more"),
    ],
)
def test_what_is_refused(bert, folder, call, arguments, message):
    if call == "load":
        assert refusal(bert_tf2.load, **{"path": folder, **arguments}) == message
    else:
        assert refusal(getattr(bert, call), **{"texts": ["[MASK]"], **arguments}).startswith(message)


def test_a_fork_after_use_is_noticed(bert):
    bert.embed("good")
    out, into = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(20)  # it would wait for ever
        for call in (bert.embed, bert.fill_mask, bert_tf2.load):
            try:
                call(bert.path if call is bert_tf2.load else "[MASK]")
            except UserError as error:
                os.write(into, f"{error}\n".encode())
        os._exit(0)
    os.close(into)
    with open(out, encoding="utf-8") as stream:
        told = stream.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    assert len(told) == 3 and all(line.startswith("this process is a fork of one that has used") for line in told)


# The values of the scripts


@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "layers"), [("mean", "-1"), ("max", "-1,0"), ("cls", "1")])
def test_embed_gives_what_extract_features_writes(bert, folder, tmp_path, pooling, layers):
    (tmp_path / "texts.txt").write_text("\n".join([*TEXTS, "a film ||| the book"]) + "\n")
    places = {"input_file": str(tmp_path / "texts.txt"), "output_file": str(tmp_path / "vectors.npy")}
    how = {"layers": layers, "pooling": pooling, "max_seq_length": 16, "batch_size": 2}
    commands.call("extract_features", **flags_of(folder), **places, **how)
    chosen = [int(number) for number in layers.split(",")]
    texts = [*TEXTS, ("a film", "the book")]
    found = bert.embed(texts, pooling, layers=chosen, max_seq_length=16, batch_size=2)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.load(tmp_path / "vectors.npy"))
    np.testing.assert_allclose(bert.embed(texts, pooling, layers=chosen, max_seq_length=16), found, atol=1e-5)


def test_embed_of_tokens_of_one_text_and_of_none(bert):
    tokens = bert.embed(TEXTS, "none", layers=[-1, 0])
    assert [values.shape for values in tokens] == [(7, 32), (26, 32), (2, 32), (6, 32)]
    means = np.stack([values.mean(axis=0) for values in tokens])
    np.testing.assert_allclose(bert.embed(TEXTS, layers=[-1, 0]), means, atol=1e-6)
    np.testing.assert_allclose(bert.embed(TEXTS[0]), bert.embed(TEXTS[:1])[0], atol=1e-6)
    np.testing.assert_allclose(bert.embed(("a", "film")), bert.embed([("a", "film")])[0], atol=1e-6)
    assert bert.embed(text for text in TEXTS).shape == (4, 16)
    assert bert.embed([]).shape == (0, 16)
    assert bert.embed(["playing " * 90]).shape == (1, 16)  # cut to the 64 positions of the model


@pytest.mark.slow
def test_fill_mask_gives_what_predict_masked_prints(bert, folder, capsys):
    commands.call("predict_masked", **flags_of(folder), sentence=SENTENCES, top_k=3, output_format="json")
    printed = capsys.readouterr().out.splitlines()
    answers = bert.fill_mask(SENTENCES, top_k=3)
    assert [predict_masked.as_json(answer) for answer in answers] == printed
    alone = bert.fill_mask(SENTENCES[0])
    assert len(alone.masks[0].predictions) == 5
    assert alone.filled == answers[0].filled
    assert bert.fill_mask([]) == []


def test_a_training_that_saves_meanwhile(tmp_path, monkeypatch):
    """Its checkpoint of step 7 is deleted between the look at its names and the reading of its values."""
    folder = make_folder(tmp_path / "model", heads.PretrainingModel(toy_data.config()))
    initialize = checkpoint.initialize

    def after_a_save(model, path):
        monkeypatch.setattr(checkpoint, "initialize", initialize)
        checkpoint.CheckpointFolder(str(folder)).save(checkpoint.tf1_variables(model), 8)
        for file in folder.glob("model.ckpt-7.*"):
            file.unlink()
        return initialize(model, path)

    monkeypatch.setattr(checkpoint, "initialize", after_a_save)
    assert bert_tf2.load(folder).path.endswith("model.ckpt-8")
    (folder / "model.ckpt-8.index").unlink()
    with pytest.raises(UserError):
        bert_tf2.load(folder)


@pytest.mark.parametrize("call", ["embed", "fill_mask"])
def test_texts_within_a_graph_are_refused(bert, call):
    with pytest.raises(UserError, match="texts cannot be read within"):
        tf.function(lambda: getattr(bert, call)(["good [MASK]"]))()


def test_texts_that_are_cut_are_counted(bert, log_lines):
    bert.tokenize(["good", "good " * 10, "good good"], max_seq_length=4)
    assert log_lines[-1].endswith("1 of 3 texts are longer than 4 tokens, and were cut")


def test_the_policy_of_keras_counts(folder):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        assert bert_tf2.load(folder).model.dtype_policy.name == "mixed_bfloat16"
        assert bert_tf2.load(folder, precision="float32").model.dtype_policy.name == "float32"
        keras.config.set_dtype_policy("float64")
        with pytest.raises(UserError, match="precision='float64': must be one of float32"):
            bert_tf2.load(folder)
    finally:
        keras.config.set_dtype_policy("float32")
