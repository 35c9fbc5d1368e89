"""Models with the objects, names and shapes of TensorFlow's Model Garden, created with TensorFlow only.

They match those that tf-models-official 2.20.0 writes for BertEncoder (V1), BertEncoderV2, their pretrainers and
classifiers, and those of its older releases.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from bert_tf2.weights.model_garden import ObjectCheckpoint

V, D, LAYERS, N, H, INNER, P, S = 23, 8, 2, 2, 4, 12, 16, 2

EMBEDDINGS = {
    "word_embeddings/embeddings": [V, D],
    "position_embedding/embeddings": [P, D],
    "type_embeddings/embeddings": [S, D],
    "embeddings/layer_norm/gamma": [D],
    "embeddings/layer_norm/beta": [D],
}
BLOCK = {
    "self_attention/query/kernel": [D, N, H],
    "self_attention/query/bias": [N, H],
    "self_attention/key/kernel": [D, N, H],
    "self_attention/key/bias": [N, H],
    "self_attention/value/kernel": [D, N, H],
    "self_attention/value/bias": [N, H],
    "self_attention/attention_output/kernel": [N, H, D],
    "self_attention/attention_output/bias": [D],
    "self_attention_layer_norm/gamma": [D],
    "self_attention_layer_norm/beta": [D],
    "intermediate/kernel": [D, INNER],
    "intermediate/bias": [INNER],
    "output/kernel": [INNER, D],
    "output/bias": [D],
    "output_layer_norm/gamma": [D],
    "output_layer_norm/beta": [D],
}
POOLER = {"pooler_transform/kernel": [D, D], "pooler_transform/bias": [D]}
ENCODER = {
    **EMBEDDINGS,
    **{f"transformer/layer_{i}/{name}": shape for i in range(LAYERS) for name, shape in BLOCK.items()},
    **POOLER,
}
MASKED_LM = {
    "cls/predictions/transform/dense/kernel": [D, D],
    "cls/predictions/transform/dense/bias": [D],
    "cls/predictions/transform/LayerNorm/gamma": [D],
    "cls/predictions/transform/LayerNorm/beta": [D],
    "cls/predictions/output_bias/bias": [V],
}


def random_arrays(shapes, seed=0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: random.normal(1.0 if name.endswith("gamma") else 0.0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


# Where each variable goes in the reference, written out by hand.
REFERENCE = {
    "word_embeddings/embeddings": "bert/embeddings/word_embeddings",
    "position_embedding/embeddings": "bert/embeddings/position_embeddings",
    "type_embeddings/embeddings": "bert/embeddings/token_type_embeddings",
    "embeddings/layer_norm": "bert/embeddings/LayerNorm",
    "self_attention/query": "attention/self/query",
    "self_attention/key": "attention/self/key",
    "self_attention/value": "attention/self/value",
    "self_attention/attention_output": "attention/output/dense",
    "self_attention_layer_norm": "attention/output/LayerNorm",
    "intermediate": "intermediate/dense",
    "output": "output/dense",
    "output_layer_norm": "output/LayerNorm",
    "pooler_transform": "bert/pooler/dense",
    "cls/predictions/output_bias/bias": "cls/predictions/output_bias",
}


def reference_name(name: str) -> str:
    block = ""
    if name.startswith("transformer/layer_"):
        number, name = name.removeprefix("transformer/layer_").split("/", 1)
        block = f"bert/encoder/layer_{number}/"
    if name in REFERENCE:
        return block + REFERENCE[name]
    layer, variable = name.rsplit("/", 1)
    return f"{block}{REFERENCE.get(layer, layer)}/{variable}"


def as_reference(arrays) -> dict[str, np.ndarray]:
    """Converts arrays to the reference's names and shapes, head after head."""
    found = {}
    for name, value in arrays.items():
        if value.ndim == 3 and value.shape[1:] == (N, H):
            value = np.concatenate([value[:, head] for head in range(N)], axis=1)
        elif value.ndim == 3:
            value = np.concatenate([value[head] for head in range(N)], axis=0)
        elif value.shape == (N, H):
            value = np.concatenate([value[head] for head in range(N)])
        found[reference_name(name)] = value
    return found


# The objects of Model Garden.


def old_name(name: str) -> str:
    """The name in TF-Hub's first release of BERT in TensorFlow 2."""
    name = name.replace("transformer/layer_", "encoder/layer_").replace(
        "self_attention/attention_output", "self_attention_output"
    )
    for new, old in (
        ("type_embeddings/embeddings", "embedding_postprocessor/type_embeddings"),
        ("position_embedding/embeddings", "embedding_postprocessor/position_embeddings"),
        ("embeddings/layer_norm", "embedding_postprocessor/layer_norm"),
    ):
        name = name.replace(new, old)
    return f"bert_model/{name}"


def v1_path(name: str) -> str:
    """The attribute path in a functional Keras model: layers by number."""
    order = ["word_embeddings", "position_embedding", "type_embeddings", "embeddings"]
    first, *rest = name.split("/")
    if first in order:
        return f"layer_with_weights-{order.index(first)}/{rest[-1]}"
    if first == "pooler_transform":
        return f"layer_with_weights-{4 + LAYERS}/{rest[-1]}"
    number, rest = int(rest[0].removeprefix("layer_")), "/".join(rest[1:])
    return f"layer_with_weights-{4 + number}/{block_path(rest)}"


def block_path(name: str) -> str:
    for layer in ("query", "key", "value"):
        name = name.replace(f"self_attention/{layer}/", f"_attention_layer/_{layer}_dense/")
    name = name.replace("self_attention/attention_output/", "_attention_layer/_output_dense/")
    layer, variable = name.rsplit("/", 1)
    plain = {
        "self_attention_layer_norm": "_attention_layer_norm",
        "intermediate": "_intermediate_dense",
        "output": "_output_dense",
        "output_layer_norm": "_output_layer_norm",
    }
    return f"{plain.get(layer, layer)}/{variable}"


def v2_path(name: str) -> str:
    """The attribute path in BertEncoderV2."""
    first, *rest = name.split("/")
    if first == "transformer":
        return f"_transformer_layers/{rest[0].removeprefix('layer_')}/{block_path('/'.join(rest[1:]))}"
    layer = {
        "word_embeddings": "_embedding_layer",
        "position_embedding": "_position_embedding_layer",
        "type_embeddings": "_type_embedding_layer",
        "embeddings": "_embedding_norm_layer",
        "pooler_transform": "_pooler_layer",
    }[first]
    return f"{layer}/{rest[-1]}"


def objects(variables: dict[str, tf.Variable]) -> tf.Module:
    """Creates a tree of objects whose attributes are the parts of these paths."""
    root = tf.Module()
    for path, variable in variables.items():
        *parents, last = path.split("/")
        place = root
        for parent in parents:
            if not hasattr(place, parent):
                setattr(place, parent, tf.Module())
            place = getattr(place, parent)
        setattr(place, last, variable)
    return root


def encoder(arrays, path=v2_path, name=lambda name: name) -> tf.Module:
    return objects({path(key): tf.Variable(value, name=name(key)) for key, value in arrays.items()})


LAYOUTS = {
    "v1": (v1_path, lambda name: name, "model"),
    "v2": (v2_path, lambda name: f"bert_encoder_v2_1/{name}", "encoder"),
    "v2 in a pretrainer": (v2_path, lambda name: f"bert/bert_encoder/{name}", "pretrainer"),
    "names of 2019": (v1_path, old_name, "model"),
    "names that say nothing": (v2_path, lambda name: "Variable", "encoder"),
    "the scope of modules": (v2_path, lambda name: name, "module"),
}


def save(folder, arrays, layout="v1") -> str:
    path, name, root = LAYOUTS[layout]
    return tf.train.Checkpoint(**{root: encoder(arrays, path, name)}).save(str(folder / "ckpt"))


def assert_holds(source: ObjectCheckpoint, expected: dict[str, np.ndarray]):
    assert source.shapes == {name: list(value.shape) for name, value in expected.items()}
    for name, value in expected.items():
        np.testing.assert_array_equal(source.get(name), value, err_msg=name)


def save_with(folder, arrays, root="model", **others) -> str:
    """Saves a checkpoint of an encoder, and of other variables by path -> (full name, array)."""
    variables = {f"{root}/{v1_path(name)}": tf.Variable(value, name=name) for name, value in arrays.items()}
    variables |= {path: tf.Variable(value, name=name) for path, (name, value) in others.items()}
    return tf.train.Checkpoint(root=objects(variables)).save(str(folder / "ckpt"))
