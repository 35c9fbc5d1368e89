"""The same weights give the same outputs in this project and in `transformers` on PyTorch.

pip install .[test,interop] && python -m pytest tests/test_interop.py
"""

import os

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import pickle

import numpy as np
import pytest
from command_lines import ROOT
from refused import refuses
from small_models import LABELS, MAKERS, randomize, small_batch, small_config

import bert_tf2
from bert_tf2 import modeling
from bert_tf2.weights import checkpoint, huggingface, tensor_files, text_rules
from bert_tf2.weights.model_folder import ModelFiles
from bert_tf2.weights.task_file import LabelMap

pytestmark = pytest.mark.extra

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)  # the models are small; more threads would slow each other down

# A class of transformers -> the model with its heads here.
OURS = {"BertModel": modeling.BertModel}
OURS |= dict.fromkeys(["BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction"], MAKERS["pretraining"])
OURS |= {"BertForSequenceClassification": MAKERS["classifier"], "BertForQuestionAnswering": MAKERS["span"]}
OURS |= {"BertForTokenClassification": MAKERS["tagging"]}
TAGS = LabelMap("ner", ("O", "B-PER", "I-PER"), regression=False)


def ours(architecture: str, model, batch) -> dict[str, np.ndarray]:
    """Everything that this project computes, by the names of the outputs in transformers."""
    output = getattr(model, "bert", model)(batch["input_ids"], batch["input_mask"], batch["segment_ids"])
    found = {"last_hidden_state": output.sequence_output, "pooler_output": output.pooled_output}
    if OURS[architecture] is MAKERS["pretraining"]:
        count, length = batch["input_ids"].shape
        everywhere = np.tile(np.arange(length, dtype=np.int32), (count, 1))
        words = model({**batch, "masked_lm_positions": everywhere})
        order = model.next_sentence(output.pooled_output)
        found |= {"prediction_logits": words, "seq_relationship_logits": order}
        found["logits"] = words if architecture == "BertForMaskedLM" else order
    elif architecture == "BertForQuestionAnswering":
        found["start_logits"], found["end_logits"] = model(batch)
    elif architecture != "BertModel":
        found["logits"] = model(batch)
    return {name: np.asarray(value) for name, value in found.items()}


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
    model = OURS[architecture](source.config)
    assert set(source.shapes) <= set(checkpoint.tf1_variables(model))
    checkpoint.initialize(model, str(folder))
    return model


def check_answers(architecture: str, model, there) -> None:
    batch = small_batch()
    names = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    with torch.no_grad():
        theirs = there.eval()(**{name: torch.tensor(batch[ours]).long() for name, ours in names.items()})
    here = ours(architecture, model, batch)
    assert theirs
    for name, wanted in theirs.items():
        np.testing.assert_allclose(here[name], wanted.float().numpy(), rtol=0, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("architecture", "our_act", "their_act"),
    [*((architecture, "gelu_erf", "gelu") for architecture in OURS), ("BertForMaskedLM", "gelu", "gelu_new")],
)
def test_the_same_answers_in_both_directions(tmp_path, architecture, our_act, their_act):
    num_labels = 2 if architecture == "BertForQuestionAnswering" else LABELS
    there = random_model(architecture, hidden_act=their_act, num_labels=num_labels, layer_norm_eps=1e-6)
    there.save_pretrained(tmp_path / "theirs")
    check_answers(architecture, load(architecture, tmp_path / "theirs"), there)

    config = small_config(hidden_act=our_act, layer_norm_eps=1e-6)
    model = OURS[architecture](config)
    without = {"BertForMaskedLM": "cls/seq", "BertForNextSentencePrediction": "cls/pred"}.get(architecture, "-")
    values = {name: value for name, value in randomize(model).items() if not name.startswith(without)}
    shapes = {name: value.shape for name, value in values.items()}
    labels = TAGS if architecture == "BertForTokenClassification" else None
    folder = str(tmp_path / "ours")
    huggingface.write_folder(folder, shapes, values.items(), ModelFiles(config, labels=labels))
    there, report = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    assert {name: [*found] for name, found in report.items() if found} == {}
    check_answers(architecture, model, there)
    assert not labels or there.config.id2label == {0: "O", 1: "B-PER", 2: "I-PER"}
    assert (there.config.hidden_act == "gelu") == (our_act == "gelu_erf")


@pytest.mark.parametrize(("dtype", "zipped"), [("float32", False), ("float16", True), ("bfloat16", True)])
def test_pytorch_model_bin(tmp_path, zipped, dtype):
    there = random_model("BertForPreTraining").to(getattr(torch, dtype))
    there.config.save_pretrained(tmp_path)
    torch.save(there.state_dict(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert {*huggingface.HuggingFaceFolder(str(tmp_path)).dtypes.values()} == {dtype}
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
    for write, words in (
        (lambda: torch.save(content, path), "could run code"),
        (lambda: torch.save(content, path, _use_new_zipfile_serialization=False), "could run code"),
        (lambda: path.write_bytes(pickle.dumps(content, 2)), "could run code"),
        (lambda: torch.save([1], path), "no dictionary of tensors"),
    ):
        write()
        refuses(f"{path} {words}", tensor_files.TensorFile, str(path))
        assert not (tmp_path / "made").exists()
    torch.save({"a": torch.arange(100.0)}, path)
    data = bytearray(path.read_bytes())
    data[data.index(torch.arange(100.0).numpy().tobytes()) + 77] ^= 1
    path.write_bytes(data)
    refuses("checksum", tensor_files.TensorFile, str(path))


@pytest.mark.parametrize(
    ("lower", "rules"),
    [(False, {}), (True, {"never_split": ["[E1]", "fox"], "strip_accents": False, "tokenize_chinese_chars": False})],
)
def test_the_rules_of_a_tokenizer_in_both_directions(tmp_path, lower, rules):
    entries, config = (
        "[PAD] [UNK] [CLS] [SEP] [MASK] the fox ##es \u5317 \u00fcber uber [E1] [ ]".split(),
        small_config(),
    )
    values = randomize(modeling.BertModel(config))
    shapes = {name: value.shape for name, value in values.items()}
    huggingface.write_folder(str(tmp_path / "ours"), shapes, values.items(), ModelFiles(config, entries, lower, rules))
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    here = text_rules.load_tokenizer(str(tmp_path / "ours" / "vocab.txt"), lower)
    for text in ("the[E1]foxes \u5317\u5317", "\u00dcber\u00fcber [E1] [e1]", "The FOXes, fox!"):
        assert there.tokenize(text) == here.tokenize(text)
    there.save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "vocab.txt").exists()
    assert text_rules.vocabulary(str(tmp_path / "theirs")) == entries
    assert text_rules.in_huggingface(str(tmp_path / "theirs"))[1:4] == (lower, rules, "")


PIPELINES = {
    "BertForMaskedLM": ("fill-mask", lambda bert, text: bert.fill_mask(text).masks[0].predictions[0].probability),
    "BertForSequenceClassification": ("text-classification", lambda bert, text: max(bert.classify(text).values())),
    "BertForTokenClassification": ("token-classification", lambda bert, text: bert.tag(text)),
    "BertModel": ("feature-extraction", lambda bert, text: bert.embed(text, pooling="none")),
}


@pytest.mark.parametrize("architecture", PIPELINES)
def test_the_pipelines_of_the_document(tmp_path, architecture):
    """The rows of docs/from_transformers.md, each on one folder: labels, probabilities, tags, vectors."""
    task, here = PIPELINES[architecture]
    vocabulary = (ROOT / "bert_tf2" / "demo" / "vocab.txt").read_text()
    (tmp_path / "vocab.txt").write_text(vocabulary)
    labels = {"id2label": dict(enumerate("abc"))} if "Sequence" in architecture or "Token" in architecture else {}
    random_model(architecture, vocab_size=vocabulary.count("\n"), **labels).save_pretrained(tmp_path)
    text = "tokyo is a [MASK] city" if task == "fill-mask" else "tokyo is a large city"
    there = transformers.pipeline(task, str(tmp_path), device="cpu")(text)
    found = here(bert_tf2.load(tmp_path), text)
    if task == "token-classification":
        assert found == [each["entity"] for each in there]
    else:
        np.testing.assert_allclose(found, there[0] if task == "feature-extraction" else there[0]["score"], atol=1e-4)
