"""The configuration files in serving/ are messages that TensorFlow Serving reads."""

from __future__ import annotations

import pathlib

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2

SERVING = pathlib.Path(__file__).resolve().parents[2] / "serving"


def test_models_config_is_a_model_server_config():
    pytest.importorskip("tensorflow_serving", reason="tensorflow-serving-api is not installed")
    from tensorflow_serving.config import model_server_config_pb2

    parsed = text_format.Parse((SERVING / "models.config").read_text(), model_server_config_pb2.ModelServerConfig())
    (model,) = parsed.model_config_list.config
    assert (model.name, model.base_path, model.model_platform) == ("bert", "/models/bert", "tensorflow")
    assert model.model_version_policy.latest.num_versions == 1


def batching_parameters():
    """The message of tensorflow_serving/servables/tensorflow/session_bundle_config.proto, which is in no package. Only
    names and types are known to be right: the text format holds no numbers."""
    wrapped = ["max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads"]
    Field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="batching_parameters.proto", syntax="proto3")
    file.dependency.append("google/protobuf/wrappers.proto")
    message = file.message_type.add(name="BatchingParameters")
    for number, name in enumerate(wrapped, 1):
        message.field.add(
            name=name, number=number, type=Field.TYPE_MESSAGE, type_name=".google.protobuf.Int64Value", label=1
        )
    message.field.add(name="allowed_batch_sizes", number=6, type=Field.TYPE_INT64, label=3)
    message.field.add(name="pad_variable_length_inputs", number=7, type=Field.TYPE_BOOL, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("BatchingParameters"))()
