"""Compiles tests/c/saved_model_client.c against the C library of the installed TensorFlow, and runs it.

    client = CClient(folder)
    client.answer(model, [Request("serving_text", {"text_a": ["some text"]})])[0].outputs["label"]

The program uses tensors of the graph; this module looks up their names in the signatures of the SavedModel.
"""

from __future__ import annotations

import functools
import glob
import importlib.util
import io
import os
import pathlib
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import text_operations
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

SOURCE = pathlib.Path(__file__).with_name("c") / "saved_model_client.c"


class Request(NamedTuple):
    signature: str
    inputs: Mapping[str, Any]  # lists, bytes and str too; an array keeps its dtype


class Answer(NamedTuple):
    code: int  # a TF_Code: tf.errors.INVALID_ARGUMENT and the like
    message: str
    outputs: dict[str, np.ndarray]  # by the signature's names; strings as objects of type bytes


def text_libraries() -> list[str]:
    """The libraries with tensorflow-text's operations; empty if it cannot be loaded."""
    found = importlib.util.find_spec("tensorflow_text") if text_operations.are_there() else None
    return sorted(glob.glob(f"{found.submodule_search_locations[0]}/python/ops/*.so")) if found else []


@functools.cache
def signatures(model: str) -> dict[str, meta_graph_pb2.SignatureDef]:
    saved = saved_model_pb2.SavedModel.FromString((pathlib.Path(model) / "saved_model.pb").read_bytes())
    (graph,) = [graph for graph in saved.meta_graphs if "serve" in graph.meta_info_def.tags]
    return dict(graph.signature_def)


class CClient:
    def __init__(self, folder: pathlib.Path):
        """Compiles the program into `folder`; skips the test if that is not possible."""
        library = pathlib.Path(tf.sysconfig.get_lib())
        names = [path.name for path in (*library.glob("libtensorflow_cc.so*"), *library.glob("libtensorflow_f*.so*"))]
        if len(names) < 2 or not os.path.exists("/proc/self/statm"):
            pytest.skip("needs Linux and a TensorFlow that brings its C library")
        if not (compiler := shutil.which(os.environ.get("CC", "cc"))):
            pytest.skip("there is no C compiler")
        self._folder, self._program = folder, folder / "saved_model_client"
        command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", str(SOURCE), "-o", self._program]
        command += ["-isystem", tf.sysconfig.get_include(), f"-L{library}", f"-Wl,-rpath,{library}"]
        command += [*(f"-l:{name}" for name in names), "-lpthread", "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def answer(self, model: str, requests: Sequence[Request], text: bool = True) -> list[Answer]:
        """Returns one answer per request; `text` loads the operations of tensorflow-text."""
        done = self._run(model, requests, *(text_libraries() if text else []))
        assert done.returncode == 0, done.stderr[-2000:]
        self.printed = done.stdout
        with open(self._folder / "answers", "rb") as stream:
            answers = [self._read_answer(stream, model, request) for request in requests * (_number(stream) > 0)]
            assert not stream.read()
        return answers

    def _run(self, model: str, requests: Sequence[Request], *libraries: str):
        with open(self._folder / "requests", "wb") as stream:
            stream.write(_pack(len(requests)))
            for signature, inputs in requests:
                found = signatures(model)[signature]
                stream.write(_pack(len(inputs)))
                stream.writelines(_array(found.inputs[name].name, value) for name, value in inputs.items())
                stream.write(_pack(len(found.outputs)))
                stream.writelines(_text(found.outputs[name].name.encode()) for name in sorted(found.outputs))
        return subprocess.run(
            [self._program, model, self._folder / "requests", self._folder / "answers", *libraries],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def _read_answer(self, stream: io.BufferedReader, model: str, request: Request) -> Answer:
        code, message = _number(stream), _read_text(stream).decode()
        arrays = [_read_array(stream) for _ in range(_number(stream))]
        names = sorted(signatures(model)[request.signature].outputs)
        return Answer(code, message, dict(zip(names, arrays, strict=True)) if arrays else {})


def _pack(*numbers: int) -> bytes:
    return struct.pack(f"={len(numbers)}q", *numbers)


def _text(value: bytes) -> bytes:
    return _pack(len(value)) + value


def _array(name: str, value: Any) -> bytes:
    tensor = tf.constant(value)
    array = tensor.numpy()
    head = _text(name.encode()) + _pack(tensor.dtype.as_datatype_enum, array.ndim, *array.shape)
    return head + (b"".join(map(_text, array.ravel())) if tensor.dtype == tf.string else _text(array.tobytes()))


def _number(stream: io.BufferedReader) -> int:
    return struct.unpack("=q", stream.read(8))[0]


def _read_text(stream: io.BufferedReader) -> bytes:
    return stream.read(_number(stream))


def _read_array(stream: io.BufferedReader) -> np.ndarray:
    _read_text(stream)  # the name of the tensor in the graph
    dtype = tf.as_dtype(_number(stream))
    shape = [_number(stream) for _ in range(_number(stream))]
    if dtype != tf.string:
        return np.frombuffer(_read_text(stream), dtype.as_numpy_dtype).reshape(shape)
    array = np.empty(int(np.prod(shape)), object)
    array[:] = [_read_text(stream) for _ in range(array.size)]
    return array.reshape(shape)
