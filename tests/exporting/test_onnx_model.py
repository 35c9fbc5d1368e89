"""ONNX files against the SavedModel's signatures; without the packages of the extra `onnx` they are skipped."""

import dataclasses
import functools
import itertools
import pathlib
import re

import export_cases
import numpy as np
import pytest
import toy_data
from export_cases import (
    CONFIG,
    LABELS,
    MAKERS,
    TAGS,
    assert_outputs,
    expected_outputs,
    make_options,
    rows,
    save_weights,
)
from small_models import SHARED

import bert_tf2
from bert_tf2 import demo, heads
from bert_tf2.config import BertConfig
from bert_tf2.exporting import onnx_model
from bert_tf2.exporting.run import run
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import WrongSetting
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.weights import checkpoint
from bert_tf2.weights.task_file import LabelMap

pytestmark = pytest.mark.extra

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install '.[onnx]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install '.[onnx]'")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install '.[onnx]'")
DEMO = pathlib.Path(demo.__file__).parent
export = functools.partial(export_cases.export, format="onnx")


def ask(made: export_cases.Exported, inputs) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(pathlib.Path(made.folder, "model.onnx").read_bytes())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def named(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs with the names of the SavedModel's, whose labels and tokens are text."""
    words = {"label_ids": ("label", TAGS), "token_ids": ("tokens", toy_data.VOCAB)}
    texts = {
        words[name][0]: np.where(ids < 0, "", np.array(words[name][1])[ids]).astype("S")
        for name, ids in found.items()
        if name in words
    }
    return {**{name: value for name, value in found.items() if name not in words}, **texts}


@pytest.mark.parametrize("task", MAKERS)
def test_it_answers_as_the_saved_model(tmp_path, task):
    made = export(tmp_path, task)
    inputs = rows()
    found, wanted = named(ask(made, inputs)), expected_outputs(made, inputs)
    if task == "classifier":
        wanted.pop("label")
    assert found.keys() == wanted.keys()
    assert_outputs(found, wanted)
    assert made.info["format"] == "onnx" and made.info["checkpoint"]["global_step"] == 7
    assert sorted(path.name for path in pathlib.Path(made.folder).iterdir()) == [
        "assets", "model.onnx", "model_info.json",
    ]  # fmt: skip


NAMES = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}


@pytest.mark.parametrize("task", MAKERS)
def test_the_names_of_transformers(tmp_path, task):
    """Two exports of the same weights; of the second, the inputs have other names and int64."""
    made = export(tmp_path / "ours", task)
    theirs = export(tmp_path / "theirs", task, made.model, onnx_names="transformers")
    session = onnxruntime.InferenceSession(pathlib.Path(theirs.folder, "model.onnx").read_bytes())
    assert {given.name: given.type for given in session.get_inputs()} == dict.fromkeys(NAMES.values(), "tensor(int64)")
    inputs = rows()
    found, wanted = (
        ask(theirs, {NAMES[name]: value.astype(np.int64) for name, value in inputs.items()}),
        ask(made, inputs),
    )
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)
    assert theirs.info["onnx_names"] == "transformers"


@pytest.mark.parametrize("changes", [{}, {"quantize": "int8"}], ids=str)
def test_the_names_of_transformers_from_python(tmp_path, changes):
    toy_data.write_model(tmp_path)
    weights = heads.PretrainingModel(toy_data.config())
    checkpoint.save(str(tmp_path / "bert_model.ckpt"), checkpoint.tf1_variables(weights))
    model = bert_tf2.classifier(tmp_path, labels=["bad", "good"])
    model.export(tmp_path / "served", format="onnx", onnx_names="transformers", **changes)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "served" / "assets" / "tokenizer.json"))
    text = tokenizer.encode("a good film")
    # As tokenizer(..., return_tensors="np") of transformers.
    request = {"input_ids": text.ids, "token_type_ids": text.type_ids, "attention_mask": text.attention_mask}
    session = onnxruntime.InferenceSession(str(tmp_path / "served" / "model.onnx"))
    (found,) = session.run(["probabilities"], {name: np.array([row], np.int64) for name, row in request.items()})
    np.testing.assert_allclose(found, model.predict(["a good film"], verbose=0), atol=0.1 if changes else 1e-5)


def test_several_labels(tmp_path):
    labels = LabelMap("several", LABELS, False, multi_label=True)
    model = heads.ClassifierModel(CONFIG, len(LABELS), multi_label=True)
    made = export(tmp_path, "classifier", model, labels=labels)
    inputs = rows()
    wanted = 1 / (1 + np.exp(-model(inputs).numpy()))
    np.testing.assert_allclose(ask(made, inputs)["probabilities"], wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["relu", "gelu_erf", "tanh", "linear"])
def test_kinds_of_models(tmp_path, name):
    config = BertConfig.from_dict({**CONFIG.to_dict(), "hidden_act": name, "layer_norm_eps": 1e-5})
    made = export(tmp_path, "masked_lm", heads.PretrainingModel(config))
    inputs = rows()
    assert_outputs(named(ask(made, inputs)), expected_outputs(made, inputs))


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_the_tokenizer_file_makes_the_same_tokens(do_lower_case):
    """On the lines of the built-in text and of the corpora beside this checkout."""
    google = SHARED / "data/vocab" / f"bert-base-{'un' * do_lower_case}cased-vocab.txt"
    ours = FullTokenizer(str(google if google.exists() else DEMO / "vocab.txt"), do_lower_case)
    long, short = (
        tokenizers.Tokenizer.from_str(onnx_model.tokenizer_file(ours, length, False)) for length in (9999, 32)
    )
    texts = [DEMO / "corpus.txt", *sorted(SHARED.glob("data/corpus/*.txt"))]
    lines = [line for path in texts for line in path.read_text("utf-8").split("\n")[:2000]]
    lines += ["a [SEP] b", "[MASK] [CLS][MASK]", "[PAD] [UNK] [mask]"]  # ordinary characters
    assert len(lines) > 100
    for first, second in itertools.pairwise(lines):
        pair = [ours.tokenize(first), ours.tokenize(second)]
        found = long.encode(first, second)
        assert found.tokens == ["[CLS]", *pair[0], "[SEP]", *pair[1], "[SEP]"]
        assert found.ids == ours.convert_tokens_to_ids(found.tokens)
        assert found.type_ids == [0] * (len(pair[0]) + 2) + [1] * (len(pair[1]) + 1)
        assert short.encode(first).tokens == ["[CLS]", *pair[0][:30], "[SEP]"]


def test_the_tokenizer_file_has_the_rules_of_the_tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*toy_data.VOCAB, "[E1]", "é", "e", "北京", "北", "[", "]"]))
    for rules in ({}, {"never_split": ["[E1]"], "strip_accents": False, "tokenize_chinese_chars": False}):
        ours = FullTokenizer(str(tmp_path / "vocab.txt"), **rules)
        theirs = tokenizers.Tokenizer.from_str(onnx_model.tokenizer_file(ours, 64, keep_masks=True))
        text = "good [E1] film[E1]a é 北京 [e1]"
        assert theirs.encode(text).tokens[1:-1] == ours.tokenize(text)
        assert (
            theirs.encode("a [MASK]film [SEP]").tokens.count("[MASK]")
            == 1
            == theirs.encode("[SEP]").tokens.count("[SEP]")
        )


def test_a_table_that_is_used_twice_is_stored_once(tmp_path):
    made = export(tmp_path, "masked_lm")
    numbers = sum(int(np.prod(variable.shape)) for variable in made.model.variables)
    assert pathlib.Path(made.folder, "model.onnx").stat().st_size < 4 * numbers + 20_000


def test_int8(tmp_path):
    exact = export(tmp_path, "classifier")
    rounded = export(tmp_path, "classifier", exact.model, quantize="int8")
    one, other = (ask(made, rows())["probabilities"] for made in (exact, rounded))
    assert 0 < np.abs(one - other).max() < 0.1
    models = [pathlib.Path(made.folder, "model.onnx").read_bytes() for made in (exact, rounded)]
    assert len(models[1]) < len(models[0]) and rounded.info["quantize"] == "int8"
    initial = onnx.load_from_string(models[1]).graph.initializer
    weights = [onnx.numpy_helper.to_array(one) for one in initial if one.data_type == onnx.TensorProto.INT8]
    largest = max(np.abs(one.astype(int)).max() for one in weights)
    assert 60 < largest <= 64  # 2 * 64 * 255 fit into the 16 bits in which processors without VNNI add


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "bfloat16"}, "--precision=bfloat16: --format=onnx has float32"),
        ({"format": "saved_model", "quantize": "int8"}, "--quantize=int8: needs --format=onnx"),
        ({"format": "saved_model", "onnx_names": "transformers"}, "--onnx_names=transformers: needs --format=onnx"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, changes, message):
    weights = save_weights(tmp_path, "features", MAKERS["features"]())
    options = make_options(tmp_path, "features", weights, format="onnx")
    with pytest.raises(WrongSetting, match=message):
        run(dataclasses.replace(options, **changes))


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    weights = save_weights(tmp_path, "features", MAKERS["features"]())
    with pytest.raises(
        UserError, match="--format=onnx: not installed: onnx and tokenizers; pip install onnx tokenizers"
    ):
        run(make_options(tmp_path, "features", weights, format="onnx"))


def test_the_program_of_the_document_runs(tmp_path, monkeypatch, capsys):
    made = export(tmp_path, "classifier", export_dir=str(tmp_path / "onnx_export"))
    document = (pathlib.Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    (program,) = re.findall(r"```python\n(import json.*?)```", document, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    tokenizer = FullTokenizer(made.options.vocab_file, made.options.do_lower_case is not False)
    row = tokenizer.convert_tokens_to_ids(["[CLS]", *tokenizer.tokenize("a lovely film"), "[SEP]"])
    ids = np.array([row], np.int32)
    scores = made.model({"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)})
    assert capsys.readouterr().out.strip() == LABELS[int(np.argmax(scores))]
