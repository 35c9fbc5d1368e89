"""A trained BERT: AntiBERTy, which predicts the amino acids of antibodies (antiberty 0.1.3 at PyPI, MIT license).

pip install .[test,interop] && python -m pytest tests/test_trained_weights.py

Answers of trained weights are right or wrong, and their states are far larger than those of random weights. Only the
files of the package are read; the package is not imported.
"""

import importlib.util
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from command_lines import ROOT

import bert_tf2
from bert_tf2 import commands
from bert_tf2.data import batching
from bert_tf2.fast.encoder import Plan, accelerate, accelerated
from bert_tf2.weights import tensor_files

pytestmark = pytest.mark.extra

torch = pytest.importorskip("torch", reason="make interop")
transformers = pytest.importorskip("transformers", reason="make interop")
if not (found := importlib.util.find_spec("antiberty")):
    pytest.skip("antiberty is not installed; make interop", allow_module_level=True)
FOLDER = pathlib.Path(found.submodule_search_locations[0], "trained_models")
WEIGHTS, VOCABULARY = str(FOLDER / "AntiBERTy_md_smooth"), {"vocab_file": str(FOLDER / "vocab.txt")}
ROWS = [line.split("\t") for line in (ROOT / "examples/data/antibodies/sequences.tsv").read_text().splitlines()[1:]]
TEXTS = [" ".join(sequence) for *_, sequence in ROWS]


@pytest.fixture(scope="module")
def bert():
    return bert_tf2.load(WEIGHTS, **VOCABULARY)


@pytest.fixture(scope="module")
def there():
    torch.set_num_threads(2)
    return transformers.BertForMaskedLM.from_pretrained(WEIGHTS).eval()


@pytest.fixture(scope="module")
def words():
    """The model that goes on with the pretraining."""
    return bert_tf2.masked_lm(WEIGHTS, **VOCABULARY)


@pytest.fixture(scope="module")
def batch(words):
    """The sequences with 15 % of their amino acids masked."""
    ((x, y, weights),) = words.dataset(TEXTS, batch_size=len(TEXTS))
    return {name: part.numpy() for name, part in {**x, "masked_lm_ids": y, "masked_lm_weights": weights}.items()}


@pytest.fixture(scope="module")
def wanted(there, batch):
    """The logits of transformers at the masked amino acids [B, P, V], and its loss."""
    ids, (row, place) = batch["input_ids"], np.nonzero(batch["masked_lm_weights"])
    labels = np.full_like(ids, -100)
    labels[row, batch["masked_lm_positions"][row, place]] = batch["masked_lm_ids"][row, place]
    names = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    given = {"input_ids": ids, "labels": labels, **{name: batch[ours] for name, ours in names.items()}}
    with torch.no_grad():
        output = there(**{name: torch.tensor(values).long() for name, values in given.items()})
    return np.take_along_axis(output.logits.numpy(), batch["masked_lm_positions"][..., None], 1), float(output.loss)


def check(logits, wanted, batch, most: float) -> None:
    """No probability of an amino acid differs by more than `most`, and the best amino acids are the same."""
    real = batch["masked_lm_weights"] > 0
    one, other = (tf.nn.softmax(np.asarray(part, np.float32)[real]).numpy() for part in (logits, wanted[0]))
    assert np.abs(one - other).max() < most
    np.testing.assert_array_equal(one.argmax(-1), other.argmax(-1))


def test_logits_losses_and_states(bert, there, words, batch, wanted):
    real = batch["masked_lm_weights"] > 0
    np.testing.assert_allclose(bert.model(batch).numpy()[real], wanted[0][real], atol=1e-4)  # the largest is 39
    words.compile(1e-5)
    found = words.evaluate(TEXTS, batch_size=len(TEXTS), return_dict=True, verbose=0)
    assert found["loss"] == pytest.approx(wanted[1], rel=1e-5) and wanted[1] < 0.5  # a guess has ln 20 = 3.0
    right = wanted[0].argmax(-1)[real] == batch["masked_lm_ids"][real]
    assert found["masked_lm_accuracy"] == pytest.approx(right.mean()) and right.mean() > 0.85
    ids = bert.tokenize(TEXTS)
    given = [torch.tensor(ids[name]).long() for name in ("input_ids", "input_mask")]
    with torch.no_grad():
        states = there.bert(*given, output_hidden_states=True).hidden_states[1:]
    for layer, theirs in enumerate(states):
        for one, other in zip(bert.embed(TEXTS, "none", layers=layer), theirs.numpy(), strict=True):
            np.testing.assert_allclose(one, other[: len(one)], atol=2e-5, err_msg=f"layer {layer}")


def test_accelerations_change_no_answer(bert, batch, wanted, words):
    """The last block at the masked positions alone, rows without padding, packed rows, bfloat16."""
    with accelerated(bert.model):
        check(bert.model(batch), wanted, batch, 1e-5)
    accelerate(bert.model, Plan(unpad="groups"))
    check(bert.model(batch), wanted, batch, 1e-5)
    bert.model.faster = None
    # below 0.03 on a CPU with avx512_bf16; 0.042 on a CPU with AVX2 alone, which rounds other sums
    check(bert_tf2.load(WEIGHTS, **VOCABULARY, precision="bfloat16").model(batch), wanted, batch, 0.06)
    short = [text[: 50 + 20 * number] for number, text in enumerate(TEXTS)]
    ((x, *_),) = words.dataset(short, batch_size=len(short))
    with accelerated(bert.model):
        packed = batching.packed(x)
        assert packed["packed_tokens"].shape[0] < len(short)
        np.testing.assert_allclose(bert.model(packed), bert.model(x), atol=1e-4)


def test_conversions_keep_every_number(bert, tmp_path):
    """To TensorFlow 1, and back to transformers."""
    commands.call("convert_checkpoint", input=WEIGHTS, output=str(tmp_path / "tf1"), to="tf1", **VOCABULARY)
    commands.call("convert_checkpoint", input=str(tmp_path / "tf1"), output=str(tmp_path / "hf"), to="hf")
    model, report = transformers.BertForMaskedLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert {name: [*found] for name, found in report.items() if found} == {}
    original = tensor_files.TensorFile(f"{WEIGHTS}/pytorch_model.bin")
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, original.read(name), err_msg=name)
    assert (
        bert_tf2.load(tmp_path / "tf1").fill_mask("E V Q L [MASK] E").filled
        == bert.fill_mask("E V Q L [MASK] E").filled
    )


def test_int8(bert, tmp_path):
    """Of 96 amino acids, at most two have another best word than in float32."""
    runtime = pytest.importorskip("onnxruntime", reason="make test-extras")
    files = {"init_checkpoint": WEIGHTS, "bert_config_file": f"{WEIGHTS}/config.json", **VOCABULARY}
    how = {"task": "masked_lm", "format": "onnx", "quantize": "int8", "do_lower_case": False}
    path = commands.call("export_saved_model", export_dir=str(tmp_path), **how, **files)
    words = [text.split() for text in TEXTS]
    blanks = [" ".join("[MASK]" if place % 10 == 3 else word for place, word in enumerate(row)) for row in words]
    found = [answer.masks for answer in bert.fill_mask(blanks, top_k=1)]
    wanted = np.array([mask.predictions[0].token_id for masks in found for mask in masks])
    ids = bert.tokenize(TEXTS)
    ids["input_ids"][np.isin(np.arange(ids["input_ids"].shape[1]), range(4, 200, 10)) & (ids["input_ids"] > 3)] = 4
    session = runtime.InferenceSession(f"{path}/model.onnx")
    named = dict(zip([one.name for one in session.get_outputs()], session.run(None, ids), strict=True))
    best = named["token_ids"][named["positions"] >= 0][:, 0]
    assert len(best) == len(wanted) > 80 and (best != wanted).sum() <= 2
