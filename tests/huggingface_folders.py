"""Folders in the layout of `transformers` with random weights of a tiny BERT, and the names of all tensors."""

from __future__ import annotations

import json

import numpy as np
import safetensors.numpy

CONFIG = {
    "architectures": ["BertForPreTraining"],
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 4,
    "initializer_range": 0.02,
    "intermediate_size": 6,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 5,
    "model_type": "bert",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "transformers_version": "5.0.0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 7,
}

# Name and shape in a file of transformers, name here.
ENCODER = [
    ("embeddings.word_embeddings.weight", (7, 4), "bert/embeddings/word_embeddings"),
    ("embeddings.position_embeddings.weight", (5, 4), "bert/embeddings/position_embeddings"),
    ("embeddings.token_type_embeddings.weight", (2, 4), "bert/embeddings/token_type_embeddings"),
    ("embeddings.LayerNorm.weight", (4,), "bert/embeddings/LayerNorm/gamma"),
    ("embeddings.LayerNorm.bias", (4,), "bert/embeddings/LayerNorm/beta"),
    ("encoder.layer.0.attention.self.query.weight", (4, 4), "bert/encoder/layer_0/attention/self/query/kernel"),
    ("encoder.layer.0.attention.self.query.bias", (4,), "bert/encoder/layer_0/attention/self/query/bias"),
    ("encoder.layer.0.attention.self.key.weight", (4, 4), "bert/encoder/layer_0/attention/self/key/kernel"),
    ("encoder.layer.0.attention.self.key.bias", (4,), "bert/encoder/layer_0/attention/self/key/bias"),
    ("encoder.layer.0.attention.self.value.weight", (4, 4), "bert/encoder/layer_0/attention/self/value/kernel"),
    ("encoder.layer.0.attention.self.value.bias", (4,), "bert/encoder/layer_0/attention/self/value/bias"),
    ("encoder.layer.0.attention.output.dense.weight", (4, 4), "bert/encoder/layer_0/attention/output/dense/kernel"),
    ("encoder.layer.0.attention.output.dense.bias", (4,), "bert/encoder/layer_0/attention/output/dense/bias"),
    (
        "encoder.layer.0.attention.output.LayerNorm.weight",
        (4,),
        "bert/encoder/layer_0/attention/output/LayerNorm/gamma",
    ),
    ("encoder.layer.0.attention.output.LayerNorm.bias", (4,), "bert/encoder/layer_0/attention/output/LayerNorm/beta"),
    ("encoder.layer.0.intermediate.dense.weight", (6, 4), "bert/encoder/layer_0/intermediate/dense/kernel"),
    ("encoder.layer.0.intermediate.dense.bias", (6,), "bert/encoder/layer_0/intermediate/dense/bias"),
    ("encoder.layer.0.output.dense.weight", (4, 6), "bert/encoder/layer_0/output/dense/kernel"),
    ("encoder.layer.0.output.dense.bias", (4,), "bert/encoder/layer_0/output/dense/bias"),
    ("encoder.layer.0.output.LayerNorm.weight", (4,), "bert/encoder/layer_0/output/LayerNorm/gamma"),
    ("encoder.layer.0.output.LayerNorm.bias", (4,), "bert/encoder/layer_0/output/LayerNorm/beta"),
]
POOLER = [
    ("pooler.dense.weight", (4, 4), "bert/pooler/dense/kernel"),
    ("pooler.dense.bias", (4,), "bert/pooler/dense/bias"),
]
MASKED_LM = [
    ("cls.predictions.transform.dense.weight", (4, 4), "cls/predictions/transform/dense/kernel"),
    ("cls.predictions.transform.dense.bias", (4,), "cls/predictions/transform/dense/bias"),
    ("cls.predictions.transform.LayerNorm.weight", (4,), "cls/predictions/transform/LayerNorm/gamma"),
    ("cls.predictions.transform.LayerNorm.bias", (4,), "cls/predictions/transform/LayerNorm/beta"),
    ("cls.predictions.bias", (7,), "cls/predictions/output_bias"),
]
NEXT_SENTENCE = [
    ("cls.seq_relationship.weight", (2, 4), "cls/seq_relationship/output_weights"),
    ("cls.seq_relationship.bias", (2,), "cls/seq_relationship/output_bias"),
]
SPAN = [("qa_outputs.weight", (2, 4), "cls/squad/output_weights"), ("qa_outputs.bias", (2,), "cls/squad/output_bias")]
LABELS = [("classifier.weight", (3, 4), "output_weights"), ("classifier.bias", (3,), "output_bias")]

CLASSES = {
    "BertModel": POOLER,
    "BertForPreTraining": [*POOLER, *MASKED_LM, *NEXT_SENTENCE],
    "BertForMaskedLM": MASKED_LM,
    "BertForNextSentencePrediction": [*POOLER, *NEXT_SENTENCE],
    "BertForSequenceClassification": [*POOLER, *LABELS],
    "BertForQuestionAnswering": SPAN,
    "BertForTokenClassification": LABELS,
}
WORDS = "bert.embeddings.word_embeddings.weight"
DECODER = "cls.predictions.decoder.weight"


def tensors_of(architecture: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights under the names that transformers uses for the class."""
    random = np.random.default_rng(seed)
    rows = [*ENCODER, *CLASSES[architecture]]
    bare = architecture == "BertModel"
    named = {
        name if bare or (name, shape, _) not in [*ENCODER, *POOLER] else f"bert.{name}": shape
        for name, shape, _ in rows
    }
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in named.items()}


def write_json(path, content) -> None:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def make_folder(folder, tensors=None, architecture="BertForPreTraining", **changes) -> str:
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", {**CONFIG, "architectures": [architecture], **changes})
    tensors = tensors_of(architecture) if tensors is None else tensors
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)
