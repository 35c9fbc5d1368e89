"""TensorFlow 1 checkpoints: their names and files, the folder of a training, and damaged or foreign checkpoints."""

import json
import os
import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from huggingface_folders import CLASSES, ENCODER, POOLER
from refused import message_of, refuses
from small_checkpoints import DATA, cut, flip, save_model, small_model, state_of
from small_models import GOLDEN, MAKERS, SHARED, needs_golden, small_config, values_of

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.weights import bundle, bundle_index, checkpoint, names
from bert_tf2.weights.checkpoint import Checkpoint, CheckpointFolder

HEADS = {
    kind: {name for _, _, name in CLASSES[architecture]} - {name for _, _, name in POOLER}
    for kind, architecture in {
        "pretraining": "BertForPreTraining",
        "masked_words": "BertForMaskedLM",
        "span": "BertForQuestionAnswering",
        "classifier": "BertForSequenceClassification",
        "tagging": "BertForTokenClassification",
    }.items()
}


def assert_equal(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("kind", MAKERS)
def test_names_shapes_and_a_round_trip(tmp_path, kind):
    variables = checkpoint.tf1_variables(small_model(kind, num_hidden_layers=1))
    assert set(variables) == {name for _, _, name in [*ENCODER, *POOLER]} | HEADS[kind]
    shapes = {name: variable.shape.as_list() for name, variable in variables.items()}
    assert shapes["bert/encoder/layer_0/intermediate/dense/kernel"] == [8, 12]  # [inputs, outputs]
    assert shapes["bert/embeddings/position_embeddings"] == [16, 8]
    assert shapes.items() <= names.shapes_of(names.known(1), small_config(), num_labels=3).items()
    model, again = small_model(kind, seed=1), small_model(kind, seed=2)
    prefix = save_model(tmp_path, model, step=12)
    assert sorted(os.listdir(tmp_path)) == [f"model.ckpt-12{DATA}", "model.ckpt-12.index"]
    assert checkpoint.restore(prefix, state_of(again)) == 12
    assert_equal(values_of(again), values_of(model))


def test_names_that_are_an_optimizer_s():
    kernel = "bert/encoder/layer_0/output/dense/kernel"
    slots = ["adam_m", "adam_v", "Adam", "Adam_1", "AdamWeightDecayOptimizer", "AdamWeightDecayOptimizer_1"]
    state = [f"{kernel}/{slot}" for slot in slots] + ["beta1_power", "beta2_power"]
    assert all(map(names.is_optimizer_state, state))
    assert names.without_optimizer([kernel, *state, "global_step", "output_weights"]) == [kernel, "output_weights"]


@needs_golden
@pytest.mark.parametrize("kind", ["pretraining", "squad", "classifier"])
def test_layout_equals_the_reference(tmp_path, kind):
    layout = json.loads((GOLDEN / "layout" / f"run_{kind}.json").read_text())
    layout = {row["name"]: (row["shape"], row["dtype"]) for row in layout}
    config = BertConfig.from_json_file(str(GOLDEN / "config" / "bert_config.json"))
    if kind == "classifier":
        model = heads.ClassifierModel(config, layout["output_weights"][0][0])
    else:
        model = {"pretraining": heads.PretrainingModel, "squad": heads.SpanModel}[kind](config)
    reader = tf.train.load_checkpoint(save_model(tmp_path, model))
    types = reader.get_variable_to_dtype_map()
    assert {n: (shape, types[n].name) for n, shape in reader.get_variable_to_shape_map().items()} == layout
    assert reader.get_tensor("global_step") == 7


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
    "b/bias": np.array([1.5, -2.5], np.float32),
    "c/gamma": np.full([40], 0.25, np.float32),
    "global_step": np.array(20, np.int64),
    **{f"layer_{n}/{'long_' * (n % 7)}kernel": np.full([n % 5 + 1], n, np.float32) for n in range(1000)},
}


def arrays_of(source) -> dict[str, np.ndarray]:
    return {name: source.get(name) for name in source.shapes}


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
    assert {name: reader.get_tensor(name).dtype for name in ARRAYS} == {name: a.dtype for name, a in ARRAYS.items()}
    assert_equal({name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}, ARRAYS)
    assert_equal(arrays_of(source), ARRAYS)
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
    assert_equal(arrays_of(source), {**everything, "half": halves, "brain": halves})
    assert {source.get(name).dtype for name in half} == {np.dtype("float32")}
    assert (source.dtypes["half"], source.dtypes["brain"]) == ("float16", "bfloat16")
    parts = [str(tmp_path / f"part{number}") for number in range(3)]
    for part, name in zip(parts, ARRAYS, strict=False):
        by_tensorflow(part, {name: ARRAYS[name]})
    (tmp_path / "out").mkdir()
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(tmp_path / "out" / "model.ckpt"))
    assert "model.ckpt.data-00002-of-00003" in os.listdir(tmp_path / "out")
    assert_equal(arrays_of(Checkpoint(str(tmp_path / "out"))), dict([*ARRAYS.items()][:3]))


def test_an_index_that_asks_for_more_than_there_is(tmp_path):
    """The bytes of memory that an index names are not believed."""
    prefix, data = str(tmp_path / "model.ckpt"), tmp_path / f"model.ckpt{DATA}"
    bundle.write(prefix, {"a": np.ones([1000, 10], np.float32)}.items())
    index = tmp_path / "model.ckpt.index"
    entries = bundle_index.read_table(index.read_bytes())
    whole = index.read_bytes()
    for shape in ([10**12], [-3], [-1, -3]):
        entry = bundle_index.Entry("float32", shape, 0, 0, 40_000, 0).encode()
        index.write_bytes(bundle_index.write_table({**entries, b"a": entry}))
        refuses("model.ckpt cannot be read", Checkpoint, prefix)
    index.write_bytes(whole)
    data.write_bytes(data.read_bytes()[:39_996])
    refuses(f"{data} 40000 39996", Checkpoint, prefix)
    data.unlink()
    refuses(f"{data} no such file copy it again", Checkpoint, prefix)


# Initial weights


def test_a_model_starts_with_the_variables_that_fit(tmp_path):
    """One line names the rest."""
    source, target = small_model("pretraining", seed=1), small_model("classifier", seed=2)
    before, prefix = values_of(target), save_model(tmp_path, source)
    line = checkpoint.initialize(target, prefix)
    assert f"Initialized from {prefix}: 39 of 41" in line and "fresh: output_bias, output_weights;" in line
    assert line.endswith(f"not used: {', '.join(sorted(HEADS['pretraining']))}")
    fresh = {name: value for name, value in before.items() if not name.startswith("bert/")}
    loaded = {name: value for name, value in values_of(source).items() if name.startswith("bert/")}
    assert_equal(values_of(target), loaded | fresh)


GONE = ("bert/embeddings/word_embeddings", "bert/encoder/layer_1/output/dense/bias")


def without(*names) -> dict:
    return {name: value for name, value in checkpoint.tf1_variables(small_model()).items() if name not in names}


@pytest.mark.parametrize(
    ("kind", "held", "words"),
    [
        ("pretraining", lambda: without(*GONE), f"{GONE[0]} is missing {GONE[1]}"),
        ("pretraining", lambda: small_model(vocab_size=24), f"{GONE[0]} [24, 8] [23, 8] cls/predictions/output_bias"),
        ("classifier", lambda: heads.ClassifierModel(small_config(), 2), "output_weights [2, 8] [3, 8]"),
        ("pretraining", lambda: small_model(num_hidden_layers=1), "and 13 more."),  # 16 of the second layer
    ],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, kind, held, words):
    held, model, prefix = held(), small_model(kind, seed=5), str(tmp_path / "model.ckpt")
    before = values_of(model)
    checkpoint.save(prefix, held if isinstance(held, dict) else checkpoint.tf1_variables(held))
    assert len(refuses(f"{prefix} {words}", checkpoint.initialize, model, prefix)) < 1000
    assert_equal(values_of(model), before)  # not half loaded


def test_a_prefix_that_does_not_exist(tmp_path):
    prefix = save_model(tmp_path, small_model())
    refuses(f"{tmp_path}/model.ckpt-8: {prefix}", Checkpoint, str(tmp_path / "model.ckpt-8"))
    save_model(tmp_path, small_model(), 9)
    refuses(f"one of them {prefix} {tmp_path}/model.ckpt-9", Checkpoint, str(tmp_path))
    (tmp_path / "empty").mkdir()
    refuses("holds no checkpoint", Checkpoint, str(tmp_path / "empty"))
    refuses("no such checkpoint", Checkpoint, str(tmp_path / "gone" / "model.ckpt"))


# The folder of a training


def test_the_oldest_are_deleted_and_the_state_file_lists_the_rest(tmp_path):
    folder, variable = CheckpointFolder(str(tmp_path), keep_checkpoint_max=3), tf.Variable([1.0])
    (tmp_path / "model.ckpt-0.meta").touch()  # as the reference leaves next to a checkpoint
    (tmp_path / "model.ckpt-10.index.note").touch()
    (tmp_path / "bert_model.ckpt.index").touch()  # a released model, not a training's checkpoint
    assert checkpoint.latest_checkpoint(str(tmp_path)) is checkpoint.latest_checkpoint(str(tmp_path / "none")) is None
    for step in (0, 5, 10, 15, 20, 20):
        folder.save({"v": variable}, step)
        variable.assign_add([1.0])
    lines = (tmp_path / "checkpoint").read_text().splitlines()
    assert lines[0] == 'model_checkpoint_path: "model.ckpt-20"'
    assert lines[1:] == [f'all_model_checkpoint_paths: "model.ckpt-{step}"' for step in (10, 15, 20)]
    kept = {f"model.ckpt-{step}{ending}" for step in (10, 15, 20) for ending in (DATA, ".index")}
    assert {*os.listdir(tmp_path)} == {*kept, "checkpoint", "model.ckpt-10.index.note", "bert_model.ckpt.index"}
    latest = f"{tmp_path}/model.ckpt-20"
    assert tf.train.latest_checkpoint(str(tmp_path)) == checkpoint.latest_checkpoint(str(tmp_path)) == latest
    assert Checkpoint(latest).get("v") == [6.0]
    # Of a folder that was moved, and where a user removed one.
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/where/it/was/model.ckpt-20"\n')
    assert checkpoint.latest_checkpoint(str(tmp_path)) == latest
    (tmp_path / "model.ckpt-15.index").unlink()
    folder.save({"v": variable}, 25)
    assert checkpoint.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-25"


def test_a_path_with_a_scheme(tmp_path):
    """Like gs:// and hdfs://, through TensorFlow's file systems."""
    folder = f"file://{tmp_path}/out"
    for step in (4, 5):
        CheckpointFolder(folder, keep_checkpoint_max=1).save({"v": tf.Variable([1.0, step])}, step)
    latest = checkpoint.latest_checkpoint(folder)
    assert latest == f"{folder}/model.ckpt-5" and Checkpoint(latest).get("v").tolist() == [1.0, 5.0]
    assert not (tmp_path / "out" / "model.ckpt-4.index").exists()


# Damage to the newest checkpoint, or to the file that names it, and the file that the message begins with.
LOST = {
    "data-flipped": (lambda folder: flip(folder / f"model.ckpt-30{DATA}", 0.5), "model.ckpt-30: the tensor"),
    "data-gone": (lambda folder: (folder / f"model.ckpt-30{DATA}").unlink(), f"model.ckpt-30{DATA}: no such file"),
    "index-cut": (lambda folder: cut(folder / "model.ckpt-30.index", 0.5), "model.ckpt-30: cannot be read"),
    "index-gone": (lambda folder: (folder / "model.ckpt-30.index").unlink(), "checkpoint: names the"),
    "state-gone": (lambda folder: (folder / "checkpoint").unlink(), "checkpoint: no such file"),
    "state-rubbish": (lambda folder: (folder / "checkpoint").write_text("x"), "checkpoint: names no"),
}


@pytest.fixture(scope="module")
def training_folder(tmp_path_factory):
    """Three checkpoints of a training, the second of which has damage that a quick check does not find."""
    path = tmp_path_factory.mktemp("training")
    folder, variables = CheckpointFolder(str(path)), {"v": tf.Variable([1.0] * 100)}
    for step in (5, 20, 30):
        folder.save(variables, step)
    flip(path / f"model.ckpt-20{DATA}", 0.5)
    return path


@pytest.mark.parametrize("case", LOST)
def test_a_damaged_checkpoint_and_the_one_before(training_folder, tmp_path, case, log_lines):
    """If 30 is lost, 5 is the newest: 20 is damaged too. Steps are compared as numbers, not as strings.

    The error names the one to continue from, and a training does so by itself.
    """
    damage, beginning = LOST[case]
    folder = shutil.copytree(training_folder, tmp_path / "out")
    damage(folder)
    before = sorted(path.name for path in folder.iterdir())
    again = shutil.copytree(folder, tmp_path / "again")

    def resume():
        variables = {"v": tf.Variable([0.0] * 100)}
        return checkpoint.restore(checkpoint.latest_checkpoint(str(folder)), variables)

    message = message_of(resume)
    assert message.startswith(f"{folder}/{beginning}")
    for step in [30] if case.startswith("state") else [20, 5]:
        assert f" is {folder}/model.ckpt-{step}. To continue from it, put the line " in message
        line, path = re.search("put the line (.*) into (.*)", message).groups()
        pathlib.Path(path).write_text(line)
        message = message_of(resume) if step == 20 else ""
    assert resume() == step
    checkpoint.recover(str(again))
    assert sorted(path.name for path in again.iterdir()) == before  # damaged files may help a user
    if case != "state-gone":  # a user removed it: to start afresh?
        assert checkpoint.latest_checkpoint(str(again)) == f"{again}/model.ckpt-{step}"
        assert f"{again}/model.ckpt-{step}" in log_lines[-1]


def test_a_kill_before_the_first_state_file(tmp_path, log_lines):
    CheckpointFolder(str(tmp_path)).save({"v": tf.Variable([1.0])}, 0)
    written = (tmp_path / "checkpoint").read_text()
    (tmp_path / "checkpoint").unlink()
    checkpoint.recover(str(tmp_path))
    assert (tmp_path / "checkpoint").read_text() == written and "model.ckpt-0" in log_lines[-1]
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-9"\n')
    for path in tmp_path.glob("model.ckpt-0*"):
        path.unlink()
    message = refuses(f"{tmp_path}/checkpoint model.ckpt-9 no checkpoint", checkpoint.latest_checkpoint, str(tmp_path))
    assert "remove" not in message
