"""TensorFlow's checkpoint files: written tensor by tensor, in several data files, and checked when they are read."""

import pathlib

import numpy as np
import tensorflow as tf
from refused import message_of

from bert_tf2.weights import bundle, bundle_index

ARRAYS = {
    "a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b/bias": np.array([1.5, -2.5], np.float32),
    "c/gamma": np.full([40], 0.25, np.float32),
    "global_step": np.array(20, np.int64),
}


def names_in(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_tensorflow_reads(prefix: str, arrays: dict) -> None:
    reader = tf.compat.v1.train.NewCheckpointReader(prefix)
    assert {*reader.get_variable_to_shape_map()} == {*arrays}
    for name, array in arrays.items():
        assert reader.get_tensor(name).dtype == array.dtype
        np.testing.assert_array_equal(reader.get_tensor(name), array)


def test_tensorflow_reads_what_is_written(tmp_path):
    prefix = str(tmp_path / "bert_model.ckpt")
    bundle.write(prefix, iter(ARRAYS.items()))
    assert names_in(tmp_path) == ["bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"]
    assert_tensorflow_reads(prefix, ARRAYS)
    source = bundle.Checkpoint(prefix)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(source.get(name), array)
    assert source.global_step == 20
    assert source.dtypes["a/kernel"] == "float32"
    for name in (*names_in(tmp_path), "bert_model.ckpt.meta"):
        assert bundle.find_prefix(str(tmp_path / name)) == prefix  # any of its files will do


def test_an_index_of_many_blocks(tmp_path):
    """A block of the index holds some eighty entries."""
    arrays = {f"layer_{n}/{'long_' * (n % 7)}kernel": np.full([n % 5 + 1], n, np.float32) for n in range(1000)}
    bundle.write(str(tmp_path / "model.ckpt"), arrays.items())
    assert_tensorflow_reads(str(tmp_path / "model.ckpt"), arrays)
    source = bundle.Checkpoint(str(tmp_path / "model.ckpt"))
    assert source.shapes.keys() == arrays.keys()
    assert all(source.get(name)[0] == array[0] for name, array in arrays.items())


def by_tensorflow(prefix: str, tensors: dict) -> None:
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[*tensors],
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(value) for value in tensors.values()],
    )


def test_what_tensorflow_writes_is_read(tmp_path):
    strings = np.array([b"", b"abc", b"\xff" * 300], object)
    everything = {**ARRAYS, "strings": strings, "empty": np.zeros([0, 3], np.float32), "flag": np.array([True])}
    everything |= {f"more/{n}": np.full([2, 2], n, np.int32) for n in range(300)}
    by_tensorflow(str(tmp_path / "model.ckpt"), everything)
    source = bundle.Checkpoint(str(tmp_path / "model.ckpt"))
    assert source.shapes == {name: list(value.shape) for name, value in everything.items()}
    for name, value in everything.items():
        np.testing.assert_array_equal(source.get(name), value)


def test_several_data_files(tmp_path):
    for number, name in enumerate(ARRAYS):
        by_tensorflow(f"{tmp_path}/part{number}", {name: ARRAYS[name]})
    prefix = str(tmp_path / "model.ckpt")
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[f"{tmp_path}/part{number}" for number in range(4)], destination_prefix=prefix
    )
    assert "model.ckpt.data-00003-of-00004" in names_in(tmp_path)
    source = bundle.Checkpoint(str(tmp_path))
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(source.get(name), array)


def test_an_index_that_asks_for_more_than_there_is(tmp_path):
    """The bytes of memory that an index speaks of are not believed."""
    prefix = str(tmp_path / "bert_model.ckpt")
    bundle.write(prefix, {"word_embeddings": np.ones([1000, 10], np.float32)}.items())
    data = tmp_path / "bert_model.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:39_996])
    assert "should be 40000 bytes at 0, and the file has 39996" in message_of(bundle.Checkpoint, prefix)
    data.unlink()
    message = message_of(bundle.Checkpoint, prefix)
    assert message.endswith("no such file, so the checkpoint is damaged or incomplete; copy it again")


def test_a_shape_that_does_not_go_with_the_bytes(tmp_path):
    prefix, index = str(tmp_path / "model.ckpt"), tmp_path / "model.ckpt.index"
    bundle.write(prefix, {"a": np.ones([3], np.float32)}.items())
    entries = bundle_index.read_table(index.read_bytes())
    for shape in ([10**12], [-3], [-1, -3]):
        index.write_bytes(
            bundle_index.write_table({**entries, b"a": bundle_index.Entry("float32", shape, 0, 0, 12, 0).encode()})
        )
        assert "cannot be read" in message_of(bundle.Checkpoint, prefix)


def test_half_precision_is_read_as_float32(tmp_path):
    values = np.array([1.0, -0.5, 3.0])
    tensors = {"half": tf.constant(values, tf.float16), "brain": tf.constant(values, tf.bfloat16)}
    prefix = str(tmp_path / "model.ckpt")
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=[*tensors], shape_and_slices=["", ""], tensors=[*tensors.values()])
    source = bundle.Checkpoint(prefix)
    assert source.dtypes == {"half": "float16", "brain": "bfloat16"}
    for name in tensors:
        assert source.get(name).dtype == np.float32
        np.testing.assert_array_equal(source.get(name), values)
