"""Files of an exported folder besides the graph and the weights, and properties of the graph.

Warmup: TensorFlow Serving runs the requests in `assets.extra/tf_serving_warmup_requests` before a version receives its
first real one. The file contains records of the message `tensorflow.serving.PredictionLog`. Its Python class is part of
tensorflow-serving-api, which depends on gRPC, so this module encodes the small message itself.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import tensor_shape_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from bert_tf2.support import files
from bert_tf2.support.errors import UserError

WARMUP_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")

# Field numbers of the messages in tensorflow_serving/apis.
_LOG_PREDICT, _PREDICT_REQUEST = 6, 1  # PredictionLog.predict_log, PredictLog.request
_REQUEST_MODEL, _REQUEST_INPUTS = 1, 2  # PredictRequest.model_spec, .inputs
_MODEL_NAME, _MODEL_SIGNATURE = 1, 3  # ModelSpec.name, .signature_name
_KEY, _VALUE = 1, 2  # of an entry of any map


def _field(number: int, content: bytes) -> bytes:
    """Encodes a field of a message: tag, length, and the content (text, bytes, or another message)."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Encodes seven bits per byte, the lowest first; the eighth bit is set if more bytes follow."""
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def prediction_log(signature: str, inputs: Mapping[str, tf.Tensor]) -> bytes:
    """Returns a serialized PredictionLog that requests all outputs of `signature`."""
    request = _field(_REQUEST_MODEL, _field(_MODEL_NAME, b"bert") + _field(_MODEL_SIGNATURE, signature.encode()))
    for name, tensor in inputs.items():
        value = tf.make_tensor_proto(tensor).SerializeToString(deterministic=True)
        request += _field(_REQUEST_INPUTS, _field(_KEY, name.encode()) + _field(_VALUE, value))
    return _field(_LOG_PREDICT, _field(_PREDICT_REQUEST, request))


def write_warmup(folder: str, requests: Iterable[tuple[str, Mapping[str, tf.Tensor]]]) -> None:
    """Writes the warmup file of an exported folder; `requests`: signature and inputs of each."""
    path = os.path.join(folder, WARMUP_FILE)
    files.make_directory(os.path.dirname(path))
    with tf.io.TFRecordWriter(path) as writer:
        for signature, inputs in requests:
            writer.write(prediction_log(signature, inputs))


def read_graph(folder: str) -> meta_graph_pb2.MetaGraphDef:
    """Reads the graph of an exported folder, without its weights.

    Raises:
      UserError: it is missing or damaged.
    """
    path = os.path.join(folder, "saved_model.pb")
    with files.open_binary(path) as stream:
        content = stream.read()
    try:
        (graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    except Exception as error:  # the classes of protobuf's errors depend on its implementation
        raise UserError(f"{path}: is damaged, or not a SavedModel of this project; export it again") from error
    return graph


def signature_names(graph: meta_graph_pb2.MetaGraphDef) -> list[str]:
    """Returns the names of the callable signatures."""
    return sorted(name for name in graph.signature_def if not name.startswith("__"))


def describe_signatures(graph: meta_graph_pb2.MetaGraphDef) -> dict[str, Any]:
    """Returns for JSON: signature -> inputs and outputs -> name -> dtype and shape, None for a variable size."""

    def describe(tensors: Mapping[str, meta_graph_pb2.TensorInfo]) -> dict[str, Any]:
        return {
            name: {"dtype": tf.as_dtype(info.dtype).name, "shape": _sizes(info.tensor_shape)}
            for name, info in sorted(tensors.items())
        }

    return {
        name: {"inputs": describe(signature.inputs), "outputs": describe(signature.outputs)}
        for name, signature in ((name, graph.signature_def[name]) for name in signature_names(graph))
    }


def _sizes(shape: tensor_shape_pb2.TensorShapeProto) -> list[int | None]:
    return [None if dim.size < 0 else dim.size for dim in shape.dim]


def custom_ops(graph: meta_graph_pb2.MetaGraphDef) -> list[str]:
    """Returns the operations in a graph that are not part of TensorFlow."""
    nodes = itertools.chain(graph.graph_def.node, *(part.node_def for part in graph.graph_def.library.function))
    return sorted({node.op for node in nodes if not hasattr(tf.raw_ops, node.op)})
