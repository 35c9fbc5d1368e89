"""convert_checkpoint.py: variables of the input are in the output, in another format, or the report names them."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from folder_content import content
from google_folders import assert_holds, with_slots, write_vocab
from refused import refuses
from small_models import MAKERS, VOCAB, randomize, small_config, values_of

import bert_tf2
from bert_tf2 import heads, layers, modeling
from bert_tf2.commands import call
from bert_tf2.config import BertConfig
from bert_tf2.tokenization import BasicTokenizer
from bert_tf2.weights import bundle, checkpoint
from bert_tf2.weights.new_words import extend
from bert_tf2.weights.task_file import TAGGING_TASK, LabelMap, load_label_map, save_label_map

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", *(f"word{n}" for n in range(VOCAB - 6))]
TABLE, POSITIONS = "bert/embeddings/word_embeddings", "bert/embeddings/position_embeddings"
BIAS = "cls/predictions/output_bias"


def released(folder: pathlib.Path, kind: str = "pretraining", config: BertConfig | None = None) -> dict:
    """A folder as Google's releases are, with the slots of a training. Returns the values of the weights."""
    config = config or small_config()
    model = modeling.BertModel(config) if kind == "encoder" else MAKERS[kind](config)
    values = randomize(model)
    variables = with_slots(model)
    for number, name in enumerate(variables.keys() - values):
        variables[name].assign(variables[name] + number)
    checkpoint.save(str(folder / "bert_model.ckpt"), variables, 20)
    (folder / "bert_config.json").write_text(config.to_json_string())
    write_vocab(folder / "vocab.txt", WORDS)
    return values


def converted(input, output, to: str, **options) -> list[str]:
    return call("convert_checkpoint", input=str(input), output=str(output), to=to, **options)


def arrays(path) -> dict[str, np.ndarray]:
    source = checkpoint.open_weights(str(path))
    return {name: source.get(name) for name in source.shapes}


def test_everything_is_kept_or_the_weights_only(tmp_path):
    values = released(tmp_path / "in")
    report = converted(tmp_path / "in", tmp_path / "all", "tf1")
    assert_holds(tmp_path / "all", arrays(tmp_path / "in"))
    assert not any(line.startswith("Left out") for line in report)
    report = converted(tmp_path / "in", tmp_path / "less", "tf1", weights_only=True)
    assert_holds(tmp_path / "less", values)
    assert {f"Left out: {2 * len(values)} variables of the optimizer.", "Left out: global_step."} <= {*report}
    *lines, last = call("convert_checkpoint", list=str(tmp_path / "all"))
    name = "bert/encoder/layer_1/attention/self/key/bias"
    row = next(line.split() for line in lines if line.startswith(f"{name} "))
    assert row[1:5] == ["bert.encoder.layer.1.attention.self.key.bias", "[8]", "8", "float32"]
    assert float(row[5]) == pytest.approx(np.linalg.norm(values[name].astype(float)), rel=1e-5)
    count = sum(value.size for value in values.values())
    assert last == f"{count:,} parameters, and {2 * count + 1:,} numbers of the optimizer and the step"


@pytest.mark.parametrize("kind", [*MAKERS, "encoder"])
def test_through_all_formats_and_back_is_bit_equal(tmp_path, kind):
    values, config = released(tmp_path / "in", kind), small_config()
    if labels := kind in ("classifier", "tagging"):
        task = TAGGING_TASK if kind == "tagging" else "tsv"
        save_label_map(str(tmp_path / "in"), LabelMap(task, ("no", "maybe", "yes"), regression=False))
    there, back = tmp_path / "th\udce8re", tmp_path / "back"  # a name of bytes that are no UTF-8
    converted(tmp_path / "in", there, "keras")
    assert_holds(there, values)
    converted(there, tmp_path / "hf", "hf")
    converted(tmp_path / "hf", back, "tf1")
    if kind in ("masked_words", "span", "tagging"):  # these have no pooler in transformers, nor any use for one
        values = {name: value for name, value in values.items() if not name.startswith("bert/pooler/")}
    assert_holds(back, values)
    assert BertConfig.from_json_file(str(back / "bert_config.json")) == config
    assert (back / "vocab.txt").read_text() == (tmp_path / "in" / "vocab.txt").read_text()
    if labels:
        found = load_label_map(str(back))
        assert found.labels == ("no", "maybe", "yes") and (found.task == TAGGING_TASK) == (kind == "tagging")


def test_variables_that_a_keras_file_needs_and_the_input_lacks_are_always_the_same(tmp_path):
    """Random ones, which the report names."""
    kept = {name: value for name, value in released(tmp_path / "in", "span").items() if "pooler" not in name}
    bundle.write(str(tmp_path / "in" / "bert_model.ckpt"), kept.items())
    with layers.initial_weights_from(0):
        wanted = values_of(MAKERS["span"](small_config())) | kept
    report = converted(tmp_path / "in", tmp_path / "out", "keras")
    fresh = next(line for line in report if line.startswith("Not in the input, and random now: "))
    assert fresh.endswith(": bert/pooler/dense/kernel, bert/pooler/dense/bias.")
    assert_holds(tmp_path / "out", wanted)


def test_other_variables_are_kept_and_named(tmp_path):
    """Slots of all optimizers, strings and wider floats."""
    values, slots = released(tmp_path / "in"), ("lamb_m", "Adam", "Adam_1", "AdamWeightDecayOptimizer_1", "unknown")
    held = {**values, **{f"{name}/{slot}": value for name, value in values.items() for slot in slots}}
    held |= {"beta1_power": np.float32(0.5), "double": np.array([0.5])}
    tensors = {**held, "words": [b"abc", b""]}
    tf.raw_ops.SaveV2(prefix=str(tmp_path / "in" / "bert_model.ckpt"), tensor_names=[*tensors],
                      shape_and_slices=[""] * len(tensors), tensors=[*map(tf.constant, tensors.values())])  # fmt: skip
    report = converted(tmp_path / "in", tmp_path / "all", "tf1")
    assert_holds(tmp_path / "all", held)
    assert "Left out: words." in report and any("float64" in line for line in report)
    report = converted(tmp_path / "in", tmp_path / "less", "tf1", weights_only=True)
    assert_holds(tmp_path / "less", values)
    known = len(slots[:-1]) * len(values) + 1  # beta1_power
    assert f"Left out: {known} variables of the optimizer." in report
    assert any(line.startswith("Left out: ") and "double" in line for line in report)


def test_a_conversion_keeps_the_function(tmp_path):
    """The two meanings of gelu."""
    released(tmp_path / "in", "encoder")
    converted(tmp_path / "in", tmp_path / "hf", "hf")
    content = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert content["hidden_act"] == "gelu_pytorch_tanh"
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**content, "hidden_act": "gelu"}))
    assert any("--hidden_act=gelu" in line for line in converted(tmp_path / "hf", tmp_path / "back", "tf1"))
    assert BertConfig.from_json_file(str(tmp_path / "back" / "bert_config.json")).hidden_act == "gelu_erf"


@pytest.mark.parametrize("lower", [True, False])
def test_the_case_is_guessed_from_the_vocabulary(tmp_path, lower):
    released(tmp_path / "in", "encoder")
    entries = [entry if lower else entry.replace("word", "Word") for entry in WORDS]
    write_vocab(tmp_path / "in" / "vocab.txt", entries)
    assert any("--do_lower_case" in line for line in converted(tmp_path / "in", tmp_path / "out", "hf"))
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["do_lower_case"] is lower


# Refused inputs and outputs


def test_damaged_weights_are_refused_by_conversions_and_models(tmp_path):
    """Numbers that are not finite, and damage in a variable that is left out."""
    model = heads.PretrainingModel(small_config())
    released(tmp_path / "nan")
    numbers = {**arrays(tmp_path / "nan"), "bert/pooler/dense/bias": np.float32([1, np.nan, np.inf, 0, 0, 0, 0, 0])}
    bundle.write(str(tmp_path / "nan" / "bert_model.ckpt"), numbers.items())
    released(tmp_path / "in")
    data = tmp_path / "in" / "bert_model.ckpt.data-00000-of-00001"
    damaged = bytearray(data.read_bytes())
    damaged[damaged.index(arrays(tmp_path / "in")[f"{BIAS}/adam_v"].tobytes()) + 2] ^= 1
    data.write_bytes(damaged)
    for folder, words in (("in", f"{BIAS}/adam_v cannot be read"), ("nan", "2 of the 8 bert/pooler/dense/bias NaN")):
        refuses(words, checkpoint.initialize, model, str(tmp_path / folder))
        for to in ("tf1", "hf", "keras"):
            refuses(words, converted, tmp_path / folder, tmp_path / "out", to, weights_only=True)
    assert not content(tmp_path / "out")


def test_a_configuration_that_does_not_fit(tmp_path):
    released(tmp_path / "in", "encoder")
    for changes, words in (
        ({"num_hidden_layers": 3}, "layer_2/attention/self/query/kernel is missing"),
        ({"intermediate_size": 16}, "intermediate/dense/kernel [8, 12] [8, 16]"),
        ({"vocab_size": VOCAB - 1}, f"{VOCAB} entries vocab_size {VOCAB - 1}"),
    ):
        (tmp_path / "in" / "bert_config.json").write_text(small_config(**changes).to_json_string())
        refuses(words, converted, tmp_path / "in", tmp_path / "out", "hf")
    (tmp_path / "in" / "bert_config.json").unlink()
    refuses("bert_config_file", converted, tmp_path / "in", tmp_path / "out", "hf")
    assert not (tmp_path / "out").exists()


def test_other_weights_are_in_the_way(tmp_path):
    """Those of an earlier call, and the input itself: load would take either, and labels and words of the other."""
    released(tmp_path / "in", "encoder")
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").write_text("{}")
    for to, name in (("tf1", "x.ckpt.index"), ("hf", "model.safetensors"), ("keras", "x.keras")):
        converted(tmp_path / "in", tmp_path / to, to)
        before = content(tmp_path)
        for output in ("in", to, "words", name):  # no folder gets the name of a file
            refuses(f"--output={tmp_path / output}: give", converted, tmp_path / "in", tmp_path / output, to)
        path = "nosuchscheme://somewhere/model"
        refuses("reached" if to == "tf1" else "local", converted, tmp_path / "in", path, to)
        assert content(tmp_path) == before
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "hf" / name).rename(tmp_path / "in" / name)
    refuses("both name one file", converted, tmp_path / "in", tmp_path / "out", "keras")
    assert all(arrays(tmp_path / "in" / name) for name in ("bert_model.ckpt", "model.safetensors"))
    for name in ("one.keras", "other.keras"):
        (tmp_path / name).touch()
    refuses("several name one of them other.keras", converted, tmp_path, tmp_path / "out", "tf1")


def test_wrong_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for settings, words in (
        ({}, "--input --list"),
        ({"input": "in", "to": "hf"}, "--input needs --output"),
        ({"list": "https://example.invalid/bert"}, "address local path ORGANIZATION/NAME"),
        ({"list": "bert-base-cased"}, "hub google-bert/bert-base-uncased"),
        ({"list": "."}, "TensorFlow checkpoint"),
        ({"input": "nowhere.keras", "output": "out", "to": "hf"}, "nowhere.keras no such file"),
    ):
        refuses(words, lambda settings=settings: [*call("convert_checkpoint", **settings)])


# New words and positions

VOCABULARY = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "vi", "##rus", "##es", "the"]


def planned(folder: pathlib.Path, *lines: str, vocabulary=VOCABULARY, lower: bool = True):
    return extend(vocabulary, write_vocab(folder / "new_words.txt", lines), BasicTokenizer(lower))


def test_new_words_take_unused_places_and_then_the_end(tmp_path):
    found = planned(tmp_path, "virus", "", "the", "viruses", "virus", "vi", "thees", "xyz")
    assert found.vocabulary[:2] == ["[PAD]", "virus"] and found.vocabulary[6:] == [
        *("viruses", "vi", "##rus", "##es", "the", "thees", "xyz"),
    ]
    assert found.pieces == {1: [7, 8], 6: [7, 8, 9], 11: [10, 9], 12: [2]}  # of unknown letters: [UNK]
    assert "4 new entries, 2 of them in [unused] places, 2 at the end; 2 were" in found.describe(len(VOCABULARY))
    blanks = planned(tmp_path, "the", "virus", vocabulary=[f"{entry} " for entry in VOCABULARY])
    assert (blanks.words, blanks.pieces) == (["the", "virus"], {1: [7, 8]})
    assert planned(tmp_path, "Virus", lower=False).vocabulary[1] == "Virus"
    for word, words in (
        ("covid-19", "'covid - 19'"),
        ("Virus", "'virus'"),
        ("two words", "'two words'"),
        ("\u00e9", "'e'"),
        ("##xs", "'# # xs'"),
        ("v" * 201, "200 characters [UNK]"),
    ):
        refuses(f"new_words.txt, line 2: {words}", planned, tmp_path, "virus", word)
    refuses("[UNK]", planned, tmp_path, "virus", vocabulary=["a", "b"])
    refuses("holds no word", planned, tmp_path, "", " ")


@pytest.mark.parametrize("rows", [len(VOCABULARY), 16])
def test_a_conversion_extends_a_model(tmp_path, rows):
    """New rows are the mean of their pieces, in rows without an entry first; positions are copied over and over.

    The longer model answers short texts as before; a configuration that asks for more positions names the flag.
    """
    released(tmp_path / "in", config=small_config(vocab_size=rows))
    write_vocab(tmp_path / "in" / "vocab.txt", VOCABULARY)
    more = {"extend_vocab": write_vocab(tmp_path / "new.txt", ["virus", "viruses", "thees"]), "extend_positions": 40}
    report = converted(tmp_path / "in", tmp_path / "out", "tf1", **more)
    assert any("3 new entries, 2 of them in [unused] places, 1 at" in line for line in report)
    assert "Positions: 40 in place of 16." in report and any("nobody has trained" in line for line in report)
    old, new = arrays(tmp_path / "in"), arrays(tmp_path / "out")
    for name in (TABLE, BIAS):
        assert new[name].shape == (max(rows, 12), *old[name].shape[1:])
        for index, pieces in {1: [7, 8], 6: [7, 8, 9], 11: [10, 9]}.items():
            np.testing.assert_allclose(new[name][index], old[name][pieces].mean(axis=0), rtol=1e-6)
            assert not new[f"{name}/adam_m"][index].any()
        kept = [index for index in range(11) if index not in (1, 6)]
        for one in (name, f"{name}/adam_m"):
            np.testing.assert_array_equal(new[one][kept], old[one][kept])
    np.testing.assert_array_equal(new[POSITIONS], np.tile(old[POSITIONS], [3, 1])[:40])
    short, long = bert_tf2.load(tmp_path / "in"), bert_tf2.load(tmp_path / "out")
    assert long.config == small_config(vocab_size=max(rows, 12), max_position_embeddings=40)
    ids = np.array([[3, 7, 8, 9, 10, 4]])
    np.testing.assert_array_equal(short.encoder(ids).sequence_output, long.encoder(ids).sequence_output)
    assert long.encoder(np.tile(ids, 6)).sequence_output.shape == (1, 36, 8)
    model = modeling.BertModel(small_config(vocab_size=rows + 1, max_position_embeddings=40))
    refuses("--extend_vocab --extend_positions=40", checkpoint.initialize, model, str(tmp_path / "in"))
    for count in (16, 3):
        given = {"extend_positions": count}
        refuses(f"--extend_positions={count} 16", converted, tmp_path / "in", tmp_path / "no", "hf", **given)
