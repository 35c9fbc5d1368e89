"""Safetensors files: what is read and written, and damaged ones."""

import json
import struct
import tracemalloc

import numpy as np
import pytest
from refused import message_of

from bert_tf2.weights.tensor_files import TensorFile, write_safetensors


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_bytes(header, size=8, length=None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(size)


BROKEN = {  # the library looks
    "empty": b"",
    "no JSON": safetensors_bytes(b'{"a":'),
    "cut off": safetensors_bytes({"a": entry([2], 0, 8)}, 4),
    "of absurd size": safetensors_bytes({"a": entry([1 << 40, 1 << 40], 0, 8)}),
}


@pytest.mark.parametrize("what", BROKEN)
def test_damaged_safetensors(tmp_path, what):
    path = tmp_path / "model.safetensors"
    path.write_bytes(BROKEN[what])
    assert message_of(TensorFile, str(path)).startswith(str(path))


def test_bfloat16(tmp_path):
    """The first half of a float32: sign, exponent and 7 bits."""
    path = tmp_path / "model.safetensors"
    numbers = np.float32([1.0, -2.5, 3.140625, 1e-30, np.inf]).view(np.uint32) >> 16
    data = numbers.astype("<u2").tobytes()
    path.write_bytes(safetensors_bytes({"a": entry([5], 0, 10, "BF16")}, 0) + data)
    file = TensorFile(str(path))
    assert file.tensors["a"].dtype == "bfloat16"
    np.testing.assert_array_equal(file.read("a")[[0, 1, 2, 4]], np.float32([1.0, -2.5, 3.140625, np.inf]))
    np.testing.assert_allclose(file.read("a")[3], 1e-30, rtol=2**-7)


def test_a_dtype_that_is_not_read(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"a": entry([8], 0, 8, "F8_E4M3")}))
    file = TensorFile(str(tmp_path / "model.safetensors"))
    assert file.tensors["a"].dtype == "F8_E4M3" and "not what its name says" in message_of(file.read, "a")


def test_writing_and_reading_hold_one_tensor_in_memory(tmp_path):
    count, shape = 12, (500, 1000)
    shapes = {str(index): shape for index in range(count)}
    arrays = ((name, np.full(shape, 7, np.float32)) for name in shapes)
    path = str(tmp_path / "model.safetensors")
    tracemalloc.start()
    try:
        write_safetensors(path, shapes, arrays)
        file = TensorFile(path)
        assert all(file.read(name)[3, 3] == 7 for name in shapes)
        assert tracemalloc.get_traced_memory()[1] < 3.5 * 2_000_000
    finally:
        tracemalloc.stop()
