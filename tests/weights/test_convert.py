"""convert_checkpoint.py: what goes in comes out, in another format, and what does not is said."""

import json
import pathlib

import numpy as np
import pytest
import refused
import tensorflow as tf
from small_models import MAKERS, SHARED, VOCAB, randomize, small_config, values_of

from bert_tf2 import commands, heads, modeling, optimization
from bert_tf2.config import BertConfig
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import WrongSetting
from bert_tf2.weights import bundle, checkpoint, convert, names
from bert_tf2.weights.options import ConversionOptions
from bert_tf2.weights.task_file import TAGGING_TASK, LabelMap, load_label_map, save_label_map

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", *(f"word{n}" for n in range(VOCAB - 6))]


def google_folder(folder: pathlib.Path, kind: str = "pretraining", seed: int = 0, config: BertConfig | None = None):
    """A folder as Google's releases are, with the slots of a training. Returns the values of the weights."""
    config = config or small_config()
    model = modeling.BertModel(config) if kind == "encoder" else MAKERS[kind](config)
    values = randomize(model, seed)
    slots = optimization.AdamWeightDecayOptimizer(checkpoint.trained_variables(model)).slots
    for number, variable in enumerate(slots.values()):
        variable.assign(variable + number)
    checkpoint.save(str(folder / "bert_model.ckpt"), {**checkpoint.tf1_variables(model), **slots}, 20)
    (folder / "bert_config.json").write_text(config.to_json_string())
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    return values


def converted(**options) -> list[str]:
    options = {name: str(value) if isinstance(value, pathlib.Path) else value for name, value in options.items()}
    return convert.run(ConversionOptions(**options))


def message_of(**options) -> str:
    return refused.message_of(converted, **options)


def arrays(path) -> dict[str, np.ndarray]:
    source = checkpoint.open_weights(str(path))
    return {name: source.get(name) for name in source.shapes}


def assert_same(ours: dict, theirs: dict) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


# From TensorFlow 1 to TensorFlow 1.


def test_everything_goes_along_and_weights_only_is_a_third(tmp_path):
    values = google_folder(tmp_path / "in")
    report = converted(input=tmp_path / "in", output=tmp_path / "all", to="tf1")
    assert_same(arrays(tmp_path / "all"), arrays(tmp_path / "in"))
    assert not any(line.startswith("Left out") for line in report)
    report = converted(input=tmp_path / "in", output=tmp_path / "less", to="tf1", weights_only=True)
    assert_same(arrays(tmp_path / "less"), values)
    assert f"Left out: {2 * len(values)} variables of the optimizer." in report
    assert "Left out: global_step." in report
    sizes = [sum(p.stat().st_size for p in (tmp_path / name).glob("*.data-*")) for name in ("all", "less")]
    assert 2.9 < sizes[0] / sizes[1] < 3.1
    for name in ("bert_config.json", "vocab.txt"):
        assert (tmp_path / "less" / name).read_bytes() == (tmp_path / "in" / name).read_bytes()


# Around through the other formats.


@pytest.mark.parametrize("kind", [*MAKERS, "encoder"])
@pytest.mark.parametrize("to", ["hf", "keras"])
def test_there_and_back_is_bit_equal(tmp_path, kind, to):
    values = google_folder(tmp_path / "in", kind)
    if kind in ("classifier", "tagging"):
        task = TAGGING_TASK if kind == "tagging" else "tsv"
        label_map = LabelMap(task, ("no", "maybe", "yes"), regression=False)
        save_label_map(str(tmp_path / "in"), label_map)
    there = tmp_path / "th\udce8re"  # a name of bytes that are no UTF-8
    converted(input=tmp_path / "in", output=there, to=to)
    report = converted(input=there, output=tmp_path / "back", to="tf1")
    if to == "hf" and kind in ("masked_words", "span", "tagging"):  # these have no pooler there, nor any use for one
        values = {name: value for name, value in values.items() if not name.startswith("bert/pooler/")}
    assert_same(arrays(tmp_path / "back"), values)
    config = BertConfig.from_json_file(str(tmp_path / "back" / "bert_config.json"))
    assert config == small_config(), report
    assert (tmp_path / "back" / "vocab.txt").read_text() == (tmp_path / "in" / "vocab.txt").read_text()
    if kind in ("classifier", "tagging"):
        back_map = load_label_map(str(tmp_path / "back"))
        assert (back_map.labels, back_map.task == "ner") == (label_map.labels, kind == "tagging")


def test_a_folder_with_several_files_of_keras(tmp_path):
    google_folder(tmp_path / "in")
    for name in ("one.keras", "other.keras"):
        (tmp_path / "in" / name).touch()
    (tmp_path / "in" / "bert_model.ckpt.index").unlink()
    message = message_of(input=tmp_path / "in", output=tmp_path / "out", to="tf1")
    assert "holds several files of Keras, name one of them: " in message and "other.keras" in message


@pytest.mark.parametrize(("to", "name"), [("tf1", "x.ckpt.index"), ("hf", "model.safetensors"), ("keras", "x.keras")])
def test_no_folder_gets_the_name_of_a_file(tmp_path, to, name):
    google_folder(tmp_path / "in")
    assert f"--to={to} writes a folder" in message_of(input=tmp_path / "in", output=tmp_path / name, to=to)
    assert not (tmp_path / name).exists()


def test_strings_and_wider_floats_among_the_variables(tmp_path):
    google_folder(tmp_path / "in")
    tensors = {**arrays(tmp_path / "in"), "words": [b"abc", b""], "double": np.array([0.5])}
    tf.raw_ops.SaveV2(prefix=str(tmp_path / "in" / "bert_model.ckpt"), tensor_names=[*tensors],
                      shape_and_slices=[""] * len(tensors), tensors=[*map(tf.constant, tensors.values())])  # fmt: skip
    report = converted(input=tmp_path / "in", output=tmp_path / "out", to="tf1")
    assert "Numbers that are float64 in the file are read as float32." in report and "Left out: words." in report
    assert arrays(tmp_path / "out")["double"] == 0.5


@pytest.mark.parametrize("slot", ["lamb_m", "Momentum", "of_an_optimizer_that_nobody_knows"])
def test_slots_of_other_optimizers(tmp_path, slot):
    values = google_folder(tmp_path / "in")
    slots = {f"{name}/{slot}": value for name, value in values.items()}
    bundle.write(str(tmp_path / "in" / "bert_model.ckpt"), {**values, **slots}.items())
    converted(input=tmp_path / "in", output=tmp_path / "all", to="tf1")
    assert_same(arrays(tmp_path / "all"), {**values, **slots})
    report = converted(input=tmp_path / "in", output=tmp_path / "less", to="tf1", weights_only=True)
    assert_same(arrays(tmp_path / "less"), values)
    assert any(line.startswith("Left out: ") for line in report)


# Cased or not.


@pytest.mark.skipif(not SHARED.is_dir(), reason="the data is not beside this checkout")
@pytest.mark.parametrize(("name", "lower"), [("chinese", True), ("uncased", True), ("cased", False)])
def test_released_vocabularies(tmp_path, name, lower):
    """With all their odd entries, a line separator among the Chinese ones, they come out as they went in."""
    path = SHARED / "data" / "vocab" / f"bert-base-{name}-vocab.txt"
    google_folder(tmp_path / "in", "encoder", config=small_config(vocab_size=len(path.read_bytes().split(b"\n")) - 1))
    converted(input=tmp_path / "in", output=tmp_path / "out", to="hf", vocab_file=path)
    assert (tmp_path / "out" / "vocab.txt").read_bytes() == path.read_bytes()
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["do_lower_case"] is lower


# The two meanings of gelu.


def test_a_conversion_keeps_the_function(tmp_path):
    google_folder(tmp_path / "in")
    converted(input=tmp_path / "in", output=tmp_path / "hf", to="hf")
    content = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert content["hidden_act"] == "gelu_pytorch_tanh"
    content["hidden_act"] = "gelu"
    (tmp_path / "hf" / "config.json").write_text(json.dumps(content))
    report = converted(input=tmp_path / "hf", output=tmp_path / "back", to="tf1")
    assert json.loads((tmp_path / "back" / "bert_config.json").read_text())["hidden_act"] == "gelu_erf"
    assert any("--hidden_act=gelu" in line for line in report)
    converted(input=tmp_path / "hf", output=tmp_path / "other", to="tf1", hidden_act="gelu")
    assert json.loads((tmp_path / "other" / "bert_config.json").read_text())["hidden_act"] == "gelu"


# New words.


def test_extend_vocab_changes_everything_together(tmp_path):
    values = google_folder(tmp_path / "in")
    (tmp_path / "new.txt").write_text("word0word1\nfresh\n")
    report = converted(input=tmp_path / "in", output=tmp_path / "out", to="tf1", extend_vocab=tmp_path / "new.txt")
    assert any(line.startswith("Vocabulary: 2 new entries, 1 of them in [unused] places, 1 at") for line in report)
    vocabulary = (tmp_path / "out" / "vocab.txt").read_text().splitlines()
    assert (vocabulary[5], vocabulary[VOCAB], len(vocabulary)) == ("word0word1", "fresh", VOCAB + 1)
    config = BertConfig.from_json_file(str(tmp_path / "out" / "bert_config.json"))
    assert config == small_config(vocab_size=VOCAB + 1)
    model = heads.PretrainingModel(config)
    checkpoint.initialize(model, str(tmp_path / "out"))
    unknown = values["cls/predictions/output_bias"][1]
    np.testing.assert_array_equal(values_of(model)["cls/predictions/output_bias"][[5, VOCAB]], [unknown, unknown])


# More positions.


def test_extend_positions(tmp_path):
    """The longer model answers short texts as before; a config that asks for more is told how to get them."""
    google_folder(tmp_path / "in", config=small_config(max_position_embeddings=16))
    report = converted(input=tmp_path / "in", output=tmp_path / "out", to="tf1", extend_positions=40)
    assert "Positions: 40 in place of 16." in report and any("copies, which nobody has trained" in r for r in report)
    ids = np.arange(12)[None] % VOCAB
    short, long = (modeling.BertModel(small_config(max_position_embeddings=size)) for size in (16, 40))
    checkpoint.initialize(short, str(tmp_path / "in"))
    checkpoint.initialize(long, str(tmp_path / "out"))
    np.testing.assert_array_equal(short(ids).sequence_output, long(ids).sequence_output)
    assert long(np.tile(ids, 3)).sequence_output.shape == (1, 36, 8)
    with pytest.raises(
        UserError, match=r"in the model \(convert_checkpoint.py --extend_positions=40 makes it longer\)"
    ):
        checkpoint.initialize(long, str(tmp_path / "in"))
    for count in (16, 3):
        message = message_of(input=tmp_path / "in", output=tmp_path / "no", to="hf", extend_positions=count)
        assert message == f"--extend_positions={count}: the model has 16 positions; give a larger number"


# What is refused.


def test_weights_that_are_not_numbers(tmp_path):
    google_folder(tmp_path / "in")
    damaged = arrays(tmp_path / "in")
    damaged["bert/pooler/dense/bias"] = np.array([1, np.nan, np.inf, 0, 0, 0, 0, 0], np.float32)
    bundle.write(str(tmp_path / "in" / "bert_model.ckpt"), damaged.items())
    for to in ("tf1", "hf", "keras"):
        message = message_of(input=tmp_path / "in", output=tmp_path / "out", to=to)
        assert "2 of the 8 numbers of bert/pooler/dense/bias are NaN or infinite" in message
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    with pytest.raises(UserError, match="NaN or infinite"):
        checkpoint.initialize(modeling.BertModel(small_config()), str(tmp_path / "in"))


def test_what_does_not_fit_the_configuration(tmp_path):
    folder = tmp_path / "in"
    google_folder(folder, "encoder")

    def message(**changes) -> str:
        (folder / "bert_config.json").write_text(small_config(**changes).to_json_string())
        return message_of(input=folder, output=tmp_path / "out", to="hf")

    assert "layer_2/attention/self/query/kernel is missing" in message(num_hidden_layers=3)
    assert "intermediate/dense/kernel is [8, 12] in the checkpoint and [8, 16] in the model" in message(
        intermediate_size=16
    )
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *(f"word{number}" for number in range(VOCAB + 1 - len(special)))]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    assert f"{VOCAB + 1} entries, but the model's configuration says vocab_size {VOCAB};" in message()
    (folder / "bert_config.json").unlink()
    assert "give its path as bert_config_file" in message_of(input=folder, output=tmp_path / "out", to="hf")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["tf1", "hf", "keras"])
def test_other_weights_are_in_the_way(tmp_path, to):
    """Those of an earlier call, and the input itself: load would take either, and labels and words of the other."""
    google_folder(tmp_path / "in")
    converted(input=tmp_path / "in", output=tmp_path / "out", to=to)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for output in ("in", "out"):
        message = message_of(input=tmp_path / "in", output=tmp_path / output, to=to)
        assert message.startswith(f"--output={tmp_path / output}: ") and "; give another " in message
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").write_text("{}")
    assert "holds tokenizer.json already" in message_of(input=tmp_path / "in", output=tmp_path / "words", to=to)


@pytest.mark.parametrize("path", ["nosuchscheme://somewhere/model", "https://example.invalid/bert"])
def test_a_file_system_that_is_not_there(tmp_path, path):
    with pytest.raises(UserError, match="cannot be reached"):
        checkpoint.open_weights(path)
    google_folder(tmp_path / "in")
    assert "cannot be reached" in message_of(input=tmp_path / "in", output=path, to="tf1")


def test_damage_in_what_is_left_out_is_seen_too(tmp_path):
    google_folder(tmp_path / "in")
    source = bundle.Checkpoint(str(tmp_path / "in"))
    slot = np.ascontiguousarray(source.get("cls/predictions/output_bias/adam_v"))
    data = tmp_path / "in" / "bert_model.ckpt.data-00000-of-00001"
    place = data.read_bytes().index(slot.tobytes())
    content = bytearray(data.read_bytes())
    content[place + 2] ^= 1
    data.write_bytes(content)
    message = message_of(input=tmp_path / "in", output=tmp_path / "out", to="tf1", weights_only=True)
    assert "the tensor cls/predictions/output_bias/adam_v cannot be read" in message
    with pytest.raises(UserError, match="output_bias/adam_v cannot be read"):
        checkpoint.initialize(heads.PretrainingModel(small_config()), str(tmp_path / "in"))


def test_a_folder_with_two_kinds_of_weights(tmp_path):
    google_folder(tmp_path / "both")
    converted(input=tmp_path / "both", output=tmp_path / "hf", to="hf")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "hf" / name).rename(tmp_path / "both" / name)
    assert "holds both a TensorFlow checkpoint and a Hugging Face model; name one file" in message_of(
        input=tmp_path / "both", output=tmp_path / "out", to="keras"
    )
    for name in ("bert_model.ckpt", "model.safetensors"):
        assert names.is_encoder([*arrays(tmp_path / "both" / name)][-1]) or arrays(tmp_path / "both" / name)


# The command line.


@pytest.mark.slow
def test_the_script(tmp_path, command_lines):
    google_folder(tmp_path / "in")
    done = command_lines.run("convert_checkpoint.py", "--input=in", "--output=out", "--to=hf", cwd=tmp_path)
    assert done.status == 0, done.stderr
    assert done.stdout.startswith("Read in/bert_model.ckpt (TensorFlow 1 checkpoint, 139 variables).")
    done = command_lines.run("convert_checkpoint.py", "--list=out", cwd=tmp_path)
    assert done.status == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    row = next(line for line in lines if line[0] == "bert/encoder/layer_1/attention/self/key/bias")
    assert row[1] == "bert.encoder.layer.1.attention.self.key.bias"
    value = arrays(tmp_path / "in")["bert/encoder/layer_1/attention/self/key/bias"]
    assert row[2:5] == ["[8]", "8", "float32"]
    assert float(row[5]) == pytest.approx(np.sqrt((value.astype(float) ** 2).sum()), rel=1e-5)
    assert lines[-1] == [f"{sum(array.size for array in arrays(tmp_path / 'out').values()):,}", "parameters"]


def test_the_list_counts_parameters_and_the_optimizer_apart(tmp_path):
    kernel = np.zeros([30, 40], np.float32)
    bundle.save(
        str(tmp_path / "model.ckpt"), dict.fromkeys(("a/kernel", "a/kernel/adam_m", "a/kernel/adam_v"), kernel), 7
    )
    *rows, last = convert.listing(str(tmp_path / "model.ckpt"))
    assert last == "1,200 parameters, and 2,401 numbers of the optimizer and the step"
    assert rows[1].split()[1:5] == ["-", "[30,", "40]", "1,200"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give at least one of --input, --list"),
        ({"input": "in", "to": "hf"}, "--input needs --output"),
        ({"input": "in", "output": "out", "to": "pt"}, "--to=pt"),
        ({"list": "nowhere"}, "nowhere: no such checkpoint"),
        ({"list": "bert-base-cased"}, "hub has a name like google-bert/bert-base-uncased"),
        ({"list": "."}, "what can be read is a TensorFlow checkpoint"),
        ({"input": "nowhere.keras", "output": "out", "to": "hf"}, "nowhere.keras: no such file"),
    ],
)
def test_nonsense(tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UserError, WrongSetting)) as caught:
        [*commands.call("convert_checkpoint", **settings)]
    assert message in str(caught.value) and "\n" not in str(caught.value)
