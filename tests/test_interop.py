"""The same weights give the same outputs in this project and in `transformers` on PyTorch.

pip install .[test,interop] && python -m pytest tests/test_interop.py
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here is downloaded
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import pickle

import numpy as np
import pytest
from refused import message_of
from small_models import LABELS, MAKERS, randomize, small_batch, small_config

from bert_tf2 import modeling
from bert_tf2.config import BertConfig
from bert_tf2.weights import checkpoint, huggingface, tensor_files, text_rules
from bert_tf2.weights.task_file import LabelMap

pytestmark = pytest.mark.extra

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TAGS = LabelMap("ner", ("O", "B-PER", "I-PER"), regression=False)
# A class of transformers -> the model with its heads here.
CLASSES = {
    "BertModel": "encoder",
    "BertForPreTraining": "pretraining",
    "BertForMaskedLM": "pretraining",
    "BertForNextSentencePrediction": "pretraining",
    "BertForSequenceClassification": "classifier",
    "BertForQuestionAnswering": "span",
    "BertForTokenClassification": "tagging",
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The models are small; more threads would slow each other down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_model(kind: str, config: BertConfig):
    return modeling.BertModel(config) if kind == "encoder" else MAKERS[kind](config)


def ours(architecture: str, model, batch) -> dict[str, np.ndarray]:
    """Everything that this project computes, by the names of the outputs in transformers."""
    bert = model if isinstance(model, modeling.BertModel) else model.bert
    output = bert(batch["input_ids"], batch["input_mask"], batch["segment_ids"])
    found = {"last_hidden_state": output.sequence_output, "pooler_output": output.pooled_output}
    kind = CLASSES[architecture]
    if kind == "pretraining":
        count, length = batch["input_ids"].shape
        everywhere = np.tile(np.arange(length, dtype=np.int32), (count, 1))
        words = model({**batch, "masked_lm_positions": everywhere})
        order = model.next_sentence(output.pooled_output)
        found |= {"prediction_logits": words, "seq_relationship_logits": order}
        found["logits"] = words if architecture == "BertForMaskedLM" else order
    elif kind == "span":
        found["start_logits"], found["end_logits"] = model(batch)
    elif kind != "encoder":
        found["logits"] = model(batch)
    return {name: np.asarray(value) for name, value in found.items()}


def theirs(model, batch) -> dict[str, np.ndarray]:
    names = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    with torch.no_grad():
        output = model.eval()(**{name: torch.tensor(batch[ours]).long() for name, ours in names.items()})
    return {name: value.float().numpy() for name, value in output.items()}


def random_model(architecture: str, **changes):
    """A model of transformers with random weights, large enough to affect the outputs."""
    torch.manual_seed(0)
    sizes = {name: value for name, value in small_config().to_dict().items() if name != "hidden_act"}
    model = getattr(transformers, architecture)(transformers.BertConfig(**{**sizes, **changes}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + name.endswith("LayerNorm.weight"))
    return model


def load(architecture: str, folder):
    """Loads the folder's weights into a model of this project; all of them must be used."""
    source = huggingface.HuggingFaceFolder(str(folder))
    model = make_model(CLASSES[architecture], source.config)
    assert set(source.shapes) <= set(checkpoint.tf1_variables(model))
    checkpoint.initialize(model, str(folder))
    return model


def check_answers(architecture: str, model, there) -> None:
    batch = small_batch()
    here, answers = ours(architecture, model, batch), theirs(there, batch)
    assert answers
    for name, wanted in answers.items():
        np.testing.assert_allclose(here[name], wanted, rtol=0, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(("our_act", "their_act"), [("gelu_erf", "gelu"), ("gelu", "gelu_new")])
@pytest.mark.parametrize("architecture", CLASSES)
def test_the_same_answers_in_both_directions(tmp_path, architecture, our_act, their_act):
    num_labels = 2 if architecture == "BertForQuestionAnswering" else LABELS
    there = random_model(architecture, hidden_act=their_act, num_labels=num_labels, layer_norm_eps=1e-6)
    there.save_pretrained(tmp_path / "theirs")
    check_answers(architecture, load(architecture, tmp_path / "theirs"), there)

    config = small_config(hidden_act=our_act, layer_norm_eps=1e-6)
    model = make_model(CLASSES[architecture], config)
    without = {"BertForMaskedLM": "cls/seq", "BertForNextSentencePrediction": "cls/pred"}.get(architecture, "-")
    values = {name: value for name, value in randomize(model).items() if not name.startswith(without)}
    shapes = {name: value.shape for name, value in values.items()}
    labels = TAGS if architecture == "BertForTokenClassification" else None
    folder = str(tmp_path / "ours")
    huggingface.write_folder(folder, shapes, values.items(), config, labels=labels)
    there, report = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    assert {name: [*found] for name, found in report.items() if found} == {}
    check_answers(architecture, model, there)
    assert type(transformers.AutoModel.from_pretrained(folder)).__name__ == "BertModel"
    assert not labels or there.config.id2label == {0: "O", 1: "B-PER", 2: "I-PER"}
    assert (there.config.hidden_act == "gelu") == (our_act == "gelu_erf")


@pytest.mark.parametrize(("dtype", "zipped"), [("float32", False), ("float16", True), ("bfloat16", True)])
def test_pytorch_model_bin(tmp_path, zipped, dtype):
    there = random_model("BertForPreTraining").to(getattr(torch, dtype))
    there.config.save_pretrained(tmp_path)
    state = there.state_dict()
    assert "cls.predictions.decoder.weight" in state
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    source = huggingface.HuggingFaceFolder(str(tmp_path))
    assert {*source.dtypes.values()} == {dtype}
    np.testing.assert_array_equal(
        source.get("bert/pooler/dense/kernel"), state["bert.pooler.dense.weight"].float().numpy().T
    )
    check_answers("BertForPreTraining", load("BertForPreTraining", tmp_path), there.float())


class Malicious:
    """Its pickle makes the file `made`."""

    def __init__(self, made):
        self.made = made

    def __reduce__(self):
        return os.system, (f"touch {self.made}",)


def test_files_of_torch_save_that_are_no_weights(tmp_path):
    """A pickle that calls something is not run, and damage is noticed."""
    path, content = tmp_path / "pytorch_model.bin", {"a": Malicious(tmp_path / "made")}
    for write, part in (
        (lambda: torch.save(content, path), "could run code"),
        (lambda: torch.save(content, path, _use_new_zipfile_serialization=False), "could run code"),
        (lambda: path.write_bytes(pickle.dumps(content, 2)), "could run code"),
        (lambda: path.write_bytes(b"hello world"), "text"),
        (lambda: path.write_bytes(b""), "EOFError"),
        (lambda: torch.save([1], path), "no dictionary of tensors"),
    ):
        write()
        message = message_of(tensor_files.TensorFile, str(path))
        assert part in message and str(path) in message and not (tmp_path / "made").exists()
    torch.save({"a": torch.arange(100.0)}, path)
    data = bytearray(path.read_bytes())
    data[data.index(torch.arange(100.0).numpy().tobytes()) + 77] ^= 1
    path.write_bytes(data)
    assert "checksum" in message_of(tensor_files.TensorFile, str(path))


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(
    "rules", [{}, {"never_split": ["[E1]", "fox"], "strip_accents": False, "tokenize_chinese_chars": False}], ids=len
)
def test_the_rules_of_a_tokenizer_in_both_directions(tmp_path, lower, rules):
    rules = {name: value for name, value in rules.items() if value != lower or name != "strip_accents"}
    entries = "[PAD] [UNK] [CLS] [SEP] [MASK] the fox ##es \u5317 \u00fcber uber [E1] [ ]".split()
    values = randomize(modeling.BertModel(small_config(num_hidden_layers=1)))
    huggingface.write_folder(
        str(tmp_path / "ours"), {name: value.shape for name, value in values.items()}, values.items(),
        small_config(num_hidden_layers=1), vocabulary=entries, do_lower_case=lower, rules=rules,
    )  # fmt: skip
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    here = text_rules.load_tokenizer(str(tmp_path / "ours" / "vocab.txt"), lower)
    for text in ("the[E1]foxes \u5317\u5317", "\u00dcber\u00fcber [E1] [e1]", "The FOXes, fox!"):
        assert there.tokenize(text) == here.tokenize(text)
    there.save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "vocab.txt").exists()
    assert text_rules.vocabulary(str(tmp_path / "theirs")) == entries
    assert text_rules.in_huggingface(str(tmp_path / "theirs"))[1:4] == (lower, rules, "")
