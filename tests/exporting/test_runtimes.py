"""Exports in ONNX Runtime, OpenVINO and LiteRT; what is not installed is skipped, `make runtimes` installs it."""

from __future__ import annotations

import functools
import importlib
import itertools
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from export_cases import (
    CONFIG,
    KINDS,
    MAKERS,
    TAGS,
    Exported,
    assert_outputs,
    expected_outputs,
    export,
    make_options,
    rows,
)
from refused import refuses
from small_models import SHARED

import bert_tf2
from bert_tf2 import demo, heads
from bert_tf2.config import BertConfig
from bert_tf2.exporting import onnx_model
from bert_tf2.exporting.run import run
from bert_tf2.tokenization import FullTokenizer

pytestmark = [pytest.mark.extra, pytest.mark.filterwarnings("ignore")]  # LiteRT's interpreter announces another package

DEMO = pathlib.Path(demo.__file__).parent
ROOT = pathlib.Path(__file__).parents[2]
SERVING, BENCHMARKS = ROOT / "docs" / "serving.md", ROOT / "benchmarks"
to_onnx = functools.partial(export, format="onnx")
need = functools.partial(pytest.importorskip, reason="make runtimes")


@pytest.fixture(scope="module")
def of_ids(tmp_path_factory):
    """task -> a SavedModel without signatures for texts."""
    folder = tmp_path_factory.mktemp("of_ids")
    return functools.cache(lambda task: export(folder / task, task, text_signatures=False))


def in_onnx_runtime(path: pathlib.Path, inputs) -> dict[str, np.ndarray]:
    session = need("onnxruntime").InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def in_openvino(model, inputs) -> dict[str, np.ndarray]:
    compiled = need("openvino").Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = compiled(inputs)
    return {name: found[output] for output in compiled.outputs for name in output.names}


# ONNX files


def file_of(made: Exported) -> pathlib.Path:
    return pathlib.Path(made.folder, "model.onnx")


def named(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs with the names of the SavedModel's, whose labels and tokens are text."""
    words = {"label_ids": ("label", TAGS), "token_ids": ("tokens", toy_data.VOCAB)}
    texts = {
        words[name][0]: np.where(ids < 0, "", np.array(words[name][1])[ids]).astype("S")
        for name, ids in found.items()
        if name in words
    }
    return {**{name: value for name, value in found.items() if name not in words}, **texts}


@pytest.mark.parametrize(
    ("task", "changes"),
    [*((task, {}) for task in KINDS), *(("masked_lm", {"hidden_act": name}) for name in ("relu", "gelu_erf", "tanh"))],
    ids=str,
)
def test_onnx_answers_as_the_model(tmp_path, task, changes):
    config = BertConfig.from_dict({**CONFIG.to_dict(), **changes})
    made, inputs = to_onnx(tmp_path, task, heads.PretrainingModel(config) if changes else None), rows()
    found, wanted = in_onnx_runtime(file_of(made), inputs), expected_outputs(made, inputs)
    if "probabilities" in wanted:  # the label is the client's to choose
        wanted = {"probabilities": wanted["probabilities"]}
    assert named(found).keys() == wanted.keys()
    assert_outputs(named(found), wanted)
    assert made.info["format"] == "onnx" and made.info["checkpoint"]["global_step"] == 7
    assert {path.name for path in pathlib.Path(made.folder).iterdir()} == {"assets", "model.onnx", "model_info.json"}
    numbers = sum(int(np.prod(variable.shape)) for variable in made.model.variables)
    assert file_of(made).stat().st_size < 4 * numbers + 20_000  # a table that is used twice is stored once
    assert_outputs(in_openvino(str(file_of(made)), inputs), found, atol=1e-4)


def test_the_names_of_transformers(tmp_path):
    """Inputs with other names and int64, from the weights of an export with ours; also by a model in Python."""
    names = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    ours = to_onnx(tmp_path / "ours", "masked_lm")
    theirs = to_onnx(tmp_path / "theirs", "masked_lm", ours.model, onnx_names="transformers")
    inputs = {names[name]: value.astype(np.int64) for name, value in rows().items()}
    wanted = in_onnx_runtime(file_of(ours), rows())
    assert_outputs(in_onnx_runtime(file_of(theirs), inputs), wanted, atol=1e-6)
    assert theirs.info["onnx_names"] == "transformers"
    model = bert_tf2.classifier(tmp_path / "ours", labels=["bad", "good"])
    for quantize, close in (("none", 1e-5), ("int8", 0.1)):
        served = tmp_path / quantize
        model.export(served, format="onnx", onnx_names="transformers", quantize=quantize)
        tokenizer = need("tokenizers").Tokenizer.from_file(str(served / "assets" / "tokenizer.json"))
        text = tokenizer.encode("a good film")
        # As tokenizer(..., return_tensors="np") of transformers.
        request = {"input_ids": text.ids, "token_type_ids": text.type_ids, "attention_mask": text.attention_mask}
        request = {name: np.array([row], np.int64) for name, row in request.items()}
        found = in_onnx_runtime(served / "model.onnx", request)["probabilities"]
        np.testing.assert_allclose(found, model.predict(["a good film"], verbose=0), atol=close)


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"do_lower_case": False},
        {"strip_accents": False, "never_split": ["[E1]"], "tokenize_chinese_chars": False},
    ],
    ids=len,
)
def test_the_tokenizer_file_makes_the_same_tokens(tmp_path, rules):
    """On the lines of the built-in text and of the corpora beside this checkout."""
    google = SHARED / "data/vocab" / f"bert-base-{'un' * rules.get('do_lower_case', True)}cased-vocab.txt"
    entries = (google if google.exists() else DEMO / "vocab.txt").read_text("utf-8").splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join([*entries, "[E1]"]), "utf-8")
    ours = FullTokenizer(str(tmp_path / "vocab.txt"), **rules)
    read = need("tokenizers").Tokenizer.from_str
    long, short = (read(onnx_model.tokenizer_file(ours, length, False)) for length in (9999, 32))
    masks = read(onnx_model.tokenizer_file(ours, 64, keep_masks=True)).encode("a [MASK]film [SEP]").tokens
    assert (masks.count("[MASK]"), masks.count("[SEP]")) == (1, 1)
    texts = [DEMO / "corpus.txt", *sorted(SHARED.glob("data/corpus/*.txt"))]
    lines = [line for path in texts for line in path.read_text("utf-8").split("\n")[:2000]]
    lines += ["a [SEP] b", "[MASK] [CLS][MASK]", "[PAD] [UNK] [mask]"]  # ordinary characters
    lines += ["good [E1] film[E1]a é 北京 [e1]", "a"]
    assert len(lines) > 100
    for first, second in itertools.pairwise(lines):
        pair = [ours.tokenize(first), ours.tokenize(second)]
        found = long.encode(first, second)
        assert found.tokens == ["[CLS]", *pair[0], "[SEP]", *pair[1], "[SEP]"]
        assert found.ids == ours.convert_tokens_to_ids(found.tokens)
        assert found.type_ids == [0] * (len(pair[0]) + 2) + [1] * (len(pair[1]) + 1)
        assert short.encode(first).tokens == ["[CLS]", *pair[0][:30], "[SEP]"]


def test_int8(tmp_path):
    exact = to_onnx(tmp_path / "exact", "classifier")
    rounded = to_onnx(tmp_path / "rounded", "classifier", exact.model, quantize="int8")
    one, other = (in_onnx_runtime(file_of(made), rows())["probabilities"] for made in (exact, rounded))
    assert 0 < np.abs(one - other).max() < 0.1
    assert file_of(rounded).stat().st_size < file_of(exact).stat().st_size and rounded.info["quantize"] == "int8"
    onnx = need("onnx")
    initial = onnx.load(str(file_of(rounded))).graph.initializer
    weights = [onnx.numpy_helper.to_array(one) for one in initial if one.data_type == onnx.TensorProto.INT8]
    largest = max(np.abs(one.astype(int)).max() for one in weights)
    assert 60 < largest <= 64  # 2 * 64 * 255 fit into the 16 bits in which processors without VNNI add


def test_a_missing_package_is_named(of_ids, tmp_path, monkeypatch):
    weights = of_ids("features").weights
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refuses(
        "--format=onnx: onnx and tokenizers; pip install",
        lambda: run(make_options(tmp_path, "features", weights, format="onnx")),
    )


# SavedModels


@pytest.mark.parametrize("task", MAKERS)
def test_litert_answers_as_tensorflow(of_ids, task):
    """Converted without TensorFlow's own operations."""
    made = of_ids(task)
    for name in ("serving_default", "serving_ids")[: 2 if task == "classifier" else 1]:
        content = tf.lite.TFLiteConverter.from_saved_model(made.folder, signature_keys=[name]).convert()
        asked = tf.lite.Interpreter(model_content=content).get_signature_runner(name)
        for count in (1, None):  # a single row leaves half of the groups of rows empty
            inputs = {key: rows()[key][:count] for key in asked.get_input_details()}
            assert_outputs(asked(**inputs), made.ask(name, **inputs))


@pytest.mark.slow  # OpenVINO converts a SavedModel in 20 to 30 s
@pytest.mark.parametrize("task", MAKERS)
def test_openvino_answers_as_tensorflow(of_ids, task):
    made, inputs = of_ids(task), rows()
    found, wanted = (
        in_openvino(need("openvino").convert_model(made.folder), inputs),
        made.ask("serving_default", **inputs),
    )
    wanted = {
        name: value if value.dtype.kind == "f" else value.astype(found[name].dtype) for name, value in wanted.items()
    }
    assert_outputs(found, wanted, atol=1e-4)


def test_the_benchmark_times_models_that_compute_the_same(tmp_path, monkeypatch):
    need("onnx")
    need("onnxruntime")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    serving = importlib.import_module("serving")
    monkeypatch.setattr(serving, "MINILM", CONFIG.to_dict())
    places, vocab_size = serving.write_all(str(tmp_path), None)
    timed = ("float32", "bfloat16", "ONNX", "ONNX int8")
    sides = {name: serving.load(name, places[name], 1) for name in timed}
    found = serving.largest_difference(sides, serving.make_batch([3, 5], vocab_size))
    differences = dict(each.rsplit(" ", 1) for each in found.split(", "))
    assert float(differences["ONNX"]) < 1e-4
    assert set(differences) == {*timed[1:]} and max(map(float, differences.values())) < 0.2


@pytest.mark.parametrize("beginning", ["import json", "import numpy, openvino"])
def test_a_program_of_the_document_runs(of_ids, tmp_path, monkeypatch, capsys, beginning):
    """Those of docs/serving.md; that of OpenVINO with ids of the small vocabulary here."""
    need("openvino" if "openvino" in beginning else "onnxruntime")
    made = of_ids("classifier")
    (program,) = re.findall(rf"```python\n({beginning}.*?)```", SERVING.read_text(), re.DOTALL)
    monkeypatch.chdir(made.weights.parent)
    if "onnx" in program:
        run(make_options(tmp_path, "classifier", made.weights, format="onnx", export_dir="onnx_export"))
    exec(program.replace("101, 102", "2, 3"), {})
    printed = capsys.readouterr().out.strip()
    (best,) = bert_tf2.load(made.weights.parent).classify(["a lovely film"])
    assert re.fullmatch(r"\[\[[\d. ]+\]\]", printed) if "openvino" in beginning else printed == max(best, key=best.get)
