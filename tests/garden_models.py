"""Models with the objects, names and shapes of TensorFlow's Model Garden, created with TensorFlow only.

They match those that tf-models-official 2.20.0 writes for BertEncoder (V1), BertEncoderV2, their pretrainers and
classifiers, and those of its older releases.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

V, D, LAYERS, N, H, INNER, P, S = 23, 8, 2, 2, 4, 12, 16, 2

# Written out by hand: a layer in Model Garden, the axes of its variables (a kernel and a bias, gamma and beta, or a
# table), the layer in the reference, and the attributes that lead to the layer in BertEncoderV2.
_TABLE = """
word_embeddings        VD    bert/embeddings/word_embeddings        _embedding_layer
position_embedding     PD    bert/embeddings/position_embeddings    _position_embedding_layer
type_embeddings        SD    bert/embeddings/token_type_embeddings  _type_embedding_layer
embeddings/layer_norm  D,D   bert/embeddings/LayerNorm              _embedding_norm_layer
pooler_transform       DD,D  bert/pooler/dense                      _pooler_layer
"""
_BLOCK = """
self_attention/query             DNH,NH  attention/self/query        _attention_layer/_query_dense
self_attention/key               DNH,NH  attention/self/key          _attention_layer/_key_dense
self_attention/value             DNH,NH  attention/self/value        _attention_layer/_value_dense
self_attention/attention_output  NHD,D   attention/output/dense      _attention_layer/_output_dense
self_attention_layer_norm        D,D     attention/output/LayerNorm  _attention_layer_norm
intermediate                     DI,I    intermediate/dense          _intermediate_dense
output                           ID,D    output/dense                _output_dense
output_layer_norm                D,D     output/LayerNorm            _output_layer_norm
"""
_SIZES = {"V": V, "D": D, "N": N, "H": H, "I": INNER, "P": P, "S": S}
_LAYERS = [line.split() for line in _TABLE.split("\n") if line] + [
    (f"transformer/layer_{i}/{name}", axes, f"bert/encoder/layer_{i}/{reference}", f"_transformer_layers/{i}/{path}")
    for i in range(LAYERS)
    for name, axes, reference, path in (line.split() for line in _BLOCK.split("\n") if line)
]


def _variables(name: str, axes: str, reference: str, path: str) -> list[tuple[str, str, str, str]]:
    if "," not in axes:
        return [(f"{name}/embeddings", axes, reference, f"{path}/embeddings")]
    ends = ("gamma", "beta") if "norm" in name else ("kernel", "bias")
    parts = zip(ends, axes.split(","), strict=True)
    return [(f"{name}/{end}", part, f"{reference}/{end}", f"{path}/{end}") for end, part in parts]


_ROWS = [row for layer in _LAYERS for row in _variables(*layer)]
ENCODER = {name: [_SIZES[axis] for axis in axes] for name, axes, _, _ in _ROWS}
_REFERENCE = {name: reference for name, _, reference, _ in _ROWS}
_REFERENCE["cls/predictions/output_bias/bias"] = "cls/predictions/output_bias"
_ATTRIBUTES = {name: path for name, _, _, path in _ROWS}
_TRANSFORM = {"dense/kernel": [D, D], "dense/bias": [D], "LayerNorm/gamma": [D], "LayerNorm/beta": [D]}
MASKED_LM = {
    **{f"cls/predictions/transform/{name}": shape for name, shape in _TRANSFORM.items()},
    "cls/predictions/output_bias/bias": [V],
}


def random_arrays(shapes, seed=0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def as_reference(arrays) -> dict[str, np.ndarray]:
    """Converts arrays to the reference's names and shapes, head after head."""
    found = {}
    for name, value in arrays.items():
        if value.ndim == 3 and value.shape[1:] == (N, H):
            value = np.concatenate([value[:, head] for head in range(N)], axis=1)
        elif value.ndim == 3 or value.shape == (N, H):
            value = np.concatenate([value[head] for head in range(N)], axis=0)
        found[_REFERENCE.get(name, name)] = value
    return found


# The objects of Model Garden.


def old_name(name: str) -> str:
    """The name in TF-Hub's first release of BERT in TensorFlow 2."""
    for new, old in (
        ("transformer/layer_", "encoder/layer_"),
        ("self_attention/attention_output", "self_attention_output"),
        ("type_embeddings/embeddings", "embedding_postprocessor/type_embeddings"),
        ("position_embedding/embeddings", "embedding_postprocessor/position_embeddings"),
        ("embeddings/layer_norm", "embedding_postprocessor/layer_norm"),
    ):
        name = name.replace(new, old)
    return f"bert_model/{name}"


def v1_path(name: str) -> str:
    """The attribute path in a functional Keras model: layers by number."""
    order = ["word_embeddings", "position_embedding", "type_embeddings", "embeddings"]
    order += [f"transformer/layer_{number}" for number in range(LAYERS)] + ["pooler_transform"]
    number = next(number for number, layer in enumerate(order) if name.startswith(f"{layer}/"))
    path = _ATTRIBUTES[name]
    path = path.split("/", 2)[2] if name.startswith("transformer/") else name.rpartition("/")[2]
    return f"layer_with_weights-{number}/{path}"


def encoder(arrays, path=_ATTRIBUTES.get, name=lambda name: name) -> tf.Module:
    return objects({path(key): tf.Variable(value, name=name(key)) for key, value in arrays.items()})


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


# Paths (those in BertEncoderV2 are _ATTRIBUTES), names, and the name of the root.
LAYOUTS = {
    "v1": (v1_path, lambda name: name, "model"),
    "v2": (_ATTRIBUTES.get, lambda name: f"bert_encoder_v2_1/{name}", "encoder"),
    "v2 in a pretrainer": (_ATTRIBUTES.get, lambda name: f"bert/bert_encoder/{name}", "pretrainer"),
    "names of 2019": (v1_path, old_name, "model"),
    "the scope of modules": (_ATTRIBUTES.get, lambda name: name, "module"),
}


def save(folder, arrays, layout="v1", **others) -> str:
    """Saves a checkpoint of an encoder, and other objects by their names."""
    path, name, root = LAYOUTS[layout]
    return tf.train.Checkpoint(**{root: encoder(arrays, path, name)}, **others).save(str(folder / "ckpt"))
