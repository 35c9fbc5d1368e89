"""What the exports answer in OpenVINO, which reads SavedModels and ONNX; skipped where it is not installed."""

import pathlib
import re

import numpy as np
import pytest
from export_cases import MAKERS, export, rows

pytestmark = pytest.mark.extra

openvino = pytest.importorskip("openvino", reason="openvino is not installed: pip install '.[openvino]'")


def answers(model, inputs) -> dict[str, np.ndarray]:
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = compiled(inputs)
    return {name: found[output] for output in compiled.outputs for name in output.names}


# OpenVINO converts a SavedModel in 20 to 30 s.
@pytest.mark.parametrize("task", [*(pytest.param(t, marks=pytest.mark.slow) for t in MAKERS if t != "ner"), "ner"])
def test_it_answers_as_tensorflow(tmp_path, task):
    made = export(tmp_path, task, text_signatures=False)
    inputs = rows()
    found, wanted = answers(openvino.convert_model(made.folder), inputs), made.ask("serving_default", **inputs)
    for name, value in wanted.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, atol=1e-4, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value.astype(found[name].dtype), err_msg=name)


def test_the_program_of_the_document_runs(tmp_path, monkeypatch, capsys):
    """With ids of the small vocabulary here."""
    export(tmp_path, "classifier", text_signatures=False)
    document = (pathlib.Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    (program,) = re.findall(r"```python\n(import numpy, openvino.*?)```", document, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(program.replace("101, 102", "2, 3"), {})
    assert re.fullmatch(r"\[\[[\d. ]+\]\]\n", capsys.readouterr().out)


@pytest.mark.parametrize("task", MAKERS)
def test_it_reads_onnx(tmp_path, task):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install '.[onnx]'")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install '.[onnx]'")
    path = f"{export(tmp_path, task, format='onnx').folder}/model.onnx"
    inputs = rows()
    found, session = answers(path, inputs), onnxruntime.InferenceSession(path)
    for output, value in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        np.testing.assert_allclose(found[output.name], value, atol=1e-4, err_msg=output.name)
