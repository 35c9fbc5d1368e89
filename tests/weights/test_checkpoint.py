"""TensorFlow 1 checkpoints: their files, the folder of a training, and damaged or foreign checkpoints.

The golden data and `test_huggingface.py` have the names and shapes of all variables.
"""

import os
import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from google_folders import assert_holds, with_slots
from refused import message_of, refuses
from small_models import MAKERS, SHARED, randomize, small_config, values_of

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.weights import bundle, bundle_index, checkpoint
from bert_tf2.weights.bundle import Checkpoint, CheckpointFolder

DATA = ".data-00000-of-00001"


def small_model(kind="pretraining", seed=0, **changes):
    model = MAKERS[kind](small_config(**changes))
    randomize(model, seed)
    return model


def assert_equal(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_checkpoints_of_tensorflow_1(tmp_path):
    wanted = values_of(small_model("span", seed=3))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in wanted.items():
            tf.compat.v1.get_variable(name, initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        prefix = tf.compat.v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), global_step=5)
    model = small_model("span")
    line = checkpoint.initialize(model, checkpoint.latest_checkpoint(str(tmp_path)))
    assert f"{prefix}: {len(wanted)} of {len(wanted)} variables" in line and "fresh: none; not used: none" in line
    assert_equal(values_of(model), wanted)
    if (folder := SHARED / "data" / "tf1_checkpoint").is_dir():  # a real one
        model = heads.PretrainingModel(BertConfig.from_json_file(str(folder / "bert_config.json")))
        assert "fresh: none; not used: none" in checkpoint.initialize(model, str(folder / "bert_model.ckpt"))
        reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
        assert Checkpoint(str(folder / "bert_model.ckpt")).global_step == 20
        assert_equal(values_of(model), {name: reader.get_tensor(name) for name in values_of(model)})


# Files of TensorFlow

ARRAYS = {
    "a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "c/gamma": np.full([40], 0.25, np.float32),
    "global_step": np.array(20, np.int64),
    **{f"layer_{n}/{'long_' * (n % 7)}kernel": np.full([n % 5 + 1], n, np.float32) for n in range(1000)},
}


def by_tensorflow(prefix: str, tensors: dict) -> None:
    names, values = [*tensors], [*map(tf.constant, tensors.values())]
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)


def test_tensorflow_reads_our_files(tmp_path):
    """A block of the index holds some eighty entries."""
    prefix = str(tmp_path / "bert_model.ckpt")
    bundle.write(prefix, iter(ARRAYS.items()))
    files = sorted(os.listdir(tmp_path))
    assert files == ["bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"]
    reader, source = tf.compat.v1.train.NewCheckpointReader(prefix), Checkpoint(prefix)
    found = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    assert {name: value.dtype for name, value in found.items()} == {name: a.dtype for name, a in ARRAYS.items()}
    assert_equal(found, ARRAYS)
    assert_holds(source, ARRAYS)
    assert source.global_step == 20 and source.dtypes["a/kernel"] == "float32"
    for name in (*files, "bert_model.ckpt.meta"):
        assert bundle.find_prefix(str(tmp_path / name)) == prefix  # any of its files will do


def test_we_read_the_files_of_tensorflow(tmp_path):
    """Of all types, half precision as float32, and several data files."""
    strings, halves = np.array([b"", b"abc", b"\xff" * 300], object), np.float32([1.0, -0.5, 3.0])
    everything = {**ARRAYS, "strings": strings, "empty": np.zeros([0, 3], np.float32), "flag": np.array([True])}
    half = {"half": tf.constant(halves, tf.float16), "brain": tf.constant(halves, tf.bfloat16)}
    by_tensorflow(str(tmp_path / "model.ckpt"), {**everything, **half})
    source = Checkpoint(str(tmp_path / "model.ckpt"))
    assert_holds(source, {**everything, "half": halves, "brain": halves})
    assert {source.get(name).dtype for name in half} == {np.dtype("float32")}
    assert (source.dtypes["half"], source.dtypes["brain"]) == ("float16", "bfloat16")
    parts = [str(tmp_path / f"part{number}") for number in range(3)]
    for part, name in zip(parts, ARRAYS, strict=False):
        by_tensorflow(part, {name: ARRAYS[name]})
    (tmp_path / "out").mkdir()
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(tmp_path / "out" / "model.ckpt"))
    assert "model.ckpt.data-00002-of-00003" in os.listdir(tmp_path / "out")
    assert_holds(tmp_path / "out", dict([*ARRAYS.items()][:3]))


@pytest.mark.parametrize("axis", [0, 1])
def test_partitioned_variables_of_tensorflow_1(tmp_path, axis):
    """Twelve parts of 300 numbers, so that places have one byte and more; beside whole variables."""
    values = np.arange(3600 * 2, dtype=np.float32).reshape([3600, 2] if axis == 0 else [2, 3600])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        partitioner = tf.compat.v1.fixed_size_partitioner(12, axis)
        parts = tf.compat.v1.get_variable("a/parts", values.shape, partitioner=partitioner)
        whole = tf.compat.v1.get_variable("whole", [2])
        session.run(
            [*(p.assign(v) for p, v in zip(parts, np.split(values, 12, axis), strict=True)), whole.assign([1, 2])]
        )
        prefix = tf.compat.v1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    assert_holds(Checkpoint(prefix), {"a/parts": values, "whole": np.float32([1.0, 2.0])})
    index = tmp_path / "model.ckpt.index"
    table = bundle_index.read_table(index.read_bytes())
    parts = [key for key in table if key.startswith(b"\0")]
    other = bundle_index.Entry.parse(table[parts[1]])._replace(shape=[7]).encode()
    for damaged in ({**table, parts[1]: other}, {key: table[key] for key in table if key != parts[5]}):
        index.write_bytes(bundle_index.write_table(damaged))
        refuses(f"{prefix} cannot be read", Checkpoint, prefix)


def test_an_index_that_asks_for_more_than_there_is(tmp_path):
    """The bytes of memory that an index names are not believed."""
    prefix, data = str(tmp_path / "model.ckpt"), tmp_path / f"model.ckpt{DATA}"
    bundle.write(prefix, {"a": np.ones([1000, 10], np.float32)}.items())
    index = tmp_path / "model.ckpt.index"
    whole = index.read_bytes()
    for shape in ([10**12], [-3], [-1, -3]):
        entry = bundle_index.Entry("float32", shape, 0, 0, 40_000, 0).encode()
        index.write_bytes(bundle_index.write_table({**bundle_index.read_table(whole), b"a": entry}))
        refuses("model.ckpt cannot be read", Checkpoint, prefix)
    index.write_bytes(whole)
    data.write_bytes(data.read_bytes()[:39_996])
    refuses(f"{data} 40000 39996", Checkpoint, prefix)


# Initial weights


def test_a_model_starts_with_the_variables_that_fit(tmp_path):
    """One line names the rest."""
    source, target = small_model("pretraining", seed=1), small_model("classifier", seed=2)
    before, prefix = values_of(target), str(tmp_path / "model.ckpt-7")
    checkpoint.save(prefix, with_slots(source), 7)
    line = checkpoint.initialize(target, prefix)
    assert f"Initialized from {prefix}: 39 of 41" in line and "fresh: output_bias, output_weights;" in line
    assert line.endswith("not used: cls/predictions/* (5), cls/seq_relationship/* (2)")
    fresh = {name: value for name, value in before.items() if not name.startswith("bert/")}
    loaded = {name: value for name, value in values_of(source).items() if name.startswith("bert/")}
    assert_equal(values_of(target), loaded | fresh)


GONE = ("bert/embeddings/word_embeddings", "bert/encoder/layer_1/output/dense/bias")


@pytest.mark.parametrize(
    ("kind", "held", "words"),
    [
        ("pretraining", small_model, f"{GONE[0]} is missing {GONE[1]}"),
        ("pretraining", lambda: small_model(vocab_size=24), f"{GONE[0]} [24, 8] [23, 8] cls/predictions/output_bias"),
        ("classifier", lambda: heads.ClassifierModel(small_config(), 2), "output_weights [2, 8] [3, 8]"),
        ("pretraining", lambda: small_model(num_hidden_layers=1), "and 13 more."),  # 16 of the second layer
    ],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, kind, held, words):
    model, prefix, left_out = small_model(kind, seed=5), str(tmp_path / "model.ckpt"), GONE if GONE[1] in words else ()
    before, variables = values_of(model), checkpoint.tf1_variables(held())
    checkpoint.save(prefix, {name: value for name, value in variables.items() if name not in left_out})
    assert len(refuses(f"{prefix} {words}", checkpoint.initialize, model, prefix)) < 1000
    bias = "bert/embeddings/LayerNorm/beta"
    checkpoint.save(prefix, variables | {bias: np.zeros([], np.float32)})  # a number in place of a vector
    refuses(f"{bias} [] [8]", checkpoint.initialize, model, prefix)
    assert_equal(values_of(model), before)  # not half loaded


def test_a_prefix_that_does_not_exist(tmp_path):
    for step in (7, 9):
        bundle.save(str(tmp_path / f"model.ckpt-{step}"), {"v": np.zeros(1)})
    (tmp_path / "empty").mkdir()
    refuses(f"{tmp_path}/model.ckpt-8: {tmp_path}/model.ckpt-7", Checkpoint, str(tmp_path / "model.ckpt-8"))
    refuses(f"one of them {tmp_path}/model.ckpt-7 {tmp_path}/model.ckpt-9", Checkpoint, str(tmp_path))
    refuses("holds no checkpoint", Checkpoint, str(tmp_path / "empty"))
    refuses("no such checkpoint", Checkpoint, str(tmp_path / "gone" / "model.ckpt"))


# The folder of a training


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_oldest_are_deleted_and_the_state_file_lists_the_rest(tmp_path, scheme):
    """Also through TensorFlow's file systems, as with gs:// and hdfs://."""
    path, variable = f"{scheme}{tmp_path}", tf.Variable([1.0])
    folder = CheckpointFolder(path, keep_checkpoint_max=3)
    others = {"model.ckpt-0.meta", "model.ckpt-10.index.note", "bert_model.ckpt.index"}  # the first goes with its step
    for name in others:
        (tmp_path / name).touch()
    assert checkpoint.latest_checkpoint(path) is checkpoint.latest_checkpoint(f"{path}/none") is None
    for step in (0, 5, 10, 15, 20, 20):
        folder.save({"v": variable}, step)
        variable.assign_add([1.0])
    lines = (tmp_path / "checkpoint").read_text().splitlines()
    assert lines[0] == 'model_checkpoint_path: "model.ckpt-20"'
    assert lines[1:] == [f'all_model_checkpoint_paths: "model.ckpt-{step}"' for step in (10, 15, 20)]
    kept = {f"model.ckpt-{step}{ending}" for step in (10, 15, 20) for ending in (DATA, ".index")}
    assert {*os.listdir(tmp_path)} == {*kept, "checkpoint", *others} - {"model.ckpt-0.meta"}
    latest = f"{path}/model.ckpt-20"
    assert tf.train.latest_checkpoint(path) == checkpoint.latest_checkpoint(path) == latest
    assert Checkpoint(latest).get("v") == [6.0]
    # Of a folder that was moved, and where a user removed one.
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/where/it/was/model.ckpt-20"\n')
    assert checkpoint.latest_checkpoint(path) == latest
    (tmp_path / "model.ckpt-15.index").unlink()
    folder.save({"v": variable}, 25)
    assert checkpoint.latest_checkpoint(path) == f"{path}/model.ckpt-25"


def flip(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


# A damaged file of the newest checkpoint, or the file that names it; the damage; and how the message begins.
LOST = [
    (f"model.ckpt-30{DATA}", flip, "model.ckpt-30: the tensor"),
    (f"model.ckpt-30{DATA}", pathlib.Path.unlink, f"model.ckpt-30{DATA}: no such file"),
    ("model.ckpt-30.index", lambda path: path.write_bytes(path.read_bytes()[:60]), "model.ckpt-30: cannot be read"),
    ("model.ckpt-30.index", pathlib.Path.unlink, "checkpoint: names the"),
    ("checkpoint", pathlib.Path.unlink, "checkpoint: no such file"),
    ("checkpoint", lambda path: path.write_text("x"), "checkpoint: names no"),
]


@pytest.mark.parametrize(("name", "damage", "beginning"), LOST)
def test_a_damaged_checkpoint_and_the_one_before(tmp_path, name, damage, beginning, log_lines):
    """If 30 is lost, 5 is the newest: 20 is damaged too, which a quick check does not find.

    The error names the one to continue from, and a training does so by itself. Steps are compared as numbers.
    """
    folder = tmp_path / "out"
    for step in (5, 20, 30):
        CheckpointFolder(str(folder)).save({"v": tf.Variable([1.0] * 100)}, step)
    flip(folder / f"model.ckpt-20{DATA}")
    damage(folder / name)
    before = sorted(path.name for path in folder.iterdir())
    again = shutil.copytree(folder, tmp_path / "again")

    def resume():
        return checkpoint.restore(checkpoint.latest_checkpoint(str(folder)), {"v": tf.Variable([0.0] * 100)})

    message = message_of(resume)
    assert message.startswith(f"{folder}/{beginning}")
    for step in [30] if name == "checkpoint" else [20, 5]:
        assert f" is {folder}/model.ckpt-{step}. To continue from it, put the line " in message
        line, path = re.search("put the line (.*) into (.*)", message).groups()
        pathlib.Path(path).write_text(line)
        message = message_of(resume) if step == 20 else ""
    assert resume() == step
    bundle.recover(str(again))
    assert sorted(path.name for path in again.iterdir()) == before  # damaged files may help a user
    if "no such file" not in beginning or name != "checkpoint":  # a user removed it: to start afresh?
        assert checkpoint.latest_checkpoint(str(again)) == f"{again}/model.ckpt-{step}"
        assert f"{again}/model.ckpt-{step}" in log_lines[-1]


def test_a_kill_before_the_first_state_file(tmp_path, log_lines):
    CheckpointFolder(str(tmp_path)).save({"v": tf.Variable([1.0])}, 0)
    written = (tmp_path / "checkpoint").read_text()
    (tmp_path / "checkpoint").unlink()
    bundle.recover(str(tmp_path))
    assert (tmp_path / "checkpoint").read_text() == written and "model.ckpt-0" in log_lines[-1]
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-9"\n')
    for path in tmp_path.glob("model.ckpt-0*"):
        path.unlink()
    message = refuses(f"{tmp_path}/checkpoint model.ckpt-9 no checkpoint", checkpoint.latest_checkpoint, str(tmp_path))
    assert "remove" not in message
