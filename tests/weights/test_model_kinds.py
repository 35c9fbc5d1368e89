"""Conversions of models with other positions, and with an output table of their own."""

import json

import numpy as np
import pytest
import safetensors.numpy
from huggingface_folders import DECODER, WORDS, make_folder, tensors_of
from model_kinds import KINDS, OUTPUT_TABLE, POSITIONS
from small_checkpoints import save_model, small_model
from small_models import small_batch

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.support.errors import UserError
from bert_tf2.weights import checkpoint, convert, huggingface, metadata
from bert_tf2.weights.options import ConversionOptions
from bert_tf2.weights.sources import open_weights

BIAS, BIAS_OF_DECODER = "cls.predictions.bias", "cls.predictions.decoder.bias"


def save(folder, **keys):
    folder.mkdir()
    model = small_model(**keys)
    save_model(folder, model)
    metadata.write(str(folder), model.config)
    return model


def convert_to(to, source, target) -> str:
    return " ".join(convert.run(ConversionOptions(input=str(source), output=str(target), to=to)))


def reload(folder):
    source = open_weights(str(folder))
    config = metadata.stated_config(source)[0]
    model = heads.PretrainingModel(config)
    assert "starting fresh: none" in checkpoint.initialize(model, source.path)
    return model


@pytest.mark.parametrize("to", ["keras", "hf", "tf1"])
@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(tmp_path, kind, to):
    model = save(tmp_path / "from", **KINDS[kind])
    if to == "hf" and kind == "without positions":
        with pytest.raises(UserError, match="position_embedding_type none, and transformers has no BERT without"):
            convert_to(to, tmp_path / "from", tmp_path / "there")
        assert not (tmp_path / "there").exists() or not list((tmp_path / "there").iterdir())
        return
    told = convert_to(to, tmp_path / "from", tmp_path / "there")
    convert_to("tf1", tmp_path / "there", tmp_path / "back")
    back = reload(tmp_path / "back")
    np.testing.assert_allclose(model(small_batch()), back(small_batch()), atol=1e-5)
    assert back.config.tie_word_embeddings == model.config.tie_word_embeddings
    if to == "hf":
        assert back.config.position_embedding_type == "learned"
        assert ("sinusoidal positions are a table there" in told) == ("sinusoidal" in kind)
    else:
        assert back.config == model.config
    if to == "tf1":
        assert ("computes something else with these weights" in told) == (
            kind not in ("as in the reference", "from the sinusoid")
        )


def test_what_transformers_reads_of_an_untied_model(tmp_path):
    """Its decoder has the table, and a bias of its own, which it uses then."""
    model = save(tmp_path / "from", tie_word_embeddings=False)
    convert_to("hf", tmp_path / "from", tmp_path / "there")
    assert json.loads((tmp_path / "there" / "config.json").read_text())["tie_word_embeddings"] is False
    tensors = safetensors.numpy.load_file(tmp_path / "there" / "model.safetensors")
    np.testing.assert_array_equal(tensors[DECODER], model.get_output_table().numpy())
    np.testing.assert_array_equal(tensors[BIAS], tensors[BIAS_OF_DECODER])
    np.testing.assert_array_equal(tensors[BIAS], model.masked_lm.output_bias.numpy())


def test_of_two_biases_the_decoder_s_counts_where_nothing_is_tied(tmp_path):
    tensors = tensors_of("BertForMaskedLM")
    random = np.random.default_rng(9)
    tensors[DECODER] = random.normal(size=tensors[WORDS].shape).astype(np.float32)
    tensors[BIAS_OF_DECODER] = random.normal(size=tensors[BIAS].shape).astype(np.float32)
    path = make_folder(tmp_path, tensors, "BertForMaskedLM", tie_word_embeddings=False)
    source = huggingface.HuggingFaceFolder(path)
    np.testing.assert_array_equal(source.get(OUTPUT_TABLE), tensors[DECODER])
    np.testing.assert_array_equal(source.get("cls/predictions/output_bias"), tensors[BIAS_OF_DECODER])
    with pytest.raises(UserError, match="or, if trained so, with tie_word_embeddings false"):
        make_folder(tmp_path, tensors, "BertForMaskedLM")
        huggingface.HuggingFaceFolder(path)


def test_an_untied_model_without_its_table_is_refused(tmp_path):
    path = make_folder(tmp_path, architecture="BertForMaskedLM", tie_word_embeddings=False)
    config = huggingface.HuggingFaceFolder(path).config
    with pytest.raises(UserError, match="lack an output table of their own"):
        checkpoint.initialize(heads.MaskedLMModel(config), path)
    with pytest.raises(UserError, match="lack an output table of their own"):
        convert_to("tf1", path, tmp_path / "there")


@pytest.mark.parametrize(
    ("keys", "phrase"),
    [
        ({"tie_word_embeddings": False}, "lack an output table"),
        ({"position_embedding_type": "sinusoidal"}, "have a table of positions"),
    ],
)
def test_a_configuration_of_another_kind_is_refused(tmp_path, keys, phrase):
    model = save(tmp_path / "from")
    config = {**model.config.to_dict(), **keys}
    (tmp_path / "from" / "bert_config.json").write_text(BertConfig.from_dict(config).to_json_string())
    with pytest.raises(UserError, match=phrase):
        convert_to("tf1", tmp_path / "from", tmp_path / "there")


@pytest.mark.parametrize("kind", KINDS)
def test_a_weights_file_shows_which_variables_it_has(tmp_path, kind):
    model = save(tmp_path / "from", **KINDS[kind])
    options = ConversionOptions(input=str(tmp_path / "from"), output=str(tmp_path / "model.keras"), to="keras")
    convert.run(options)
    source = open_weights(str(tmp_path / "model.keras"))
    assert (POSITIONS in source.shapes) == model.config.has_position_table
    assert (OUTPUT_TABLE in source.shapes) != model.config.tie_word_embeddings
    for name, variable in checkpoint.tf1_variables(model).items():
        np.testing.assert_array_equal(source.get(name), variable.numpy(), err_msg=name)


def test_new_words_get_rows_in_both_tables(tmp_path):
    model = save(tmp_path / "from", tie_word_embeddings=False)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *(f"##{letter}" for letter in "bcdefghi")]
    (tmp_path / "from" / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "new.txt").write_text("abc\n")
    options = {"input": str(tmp_path / "from"), "output": str(tmp_path / "there"), "to": "tf1"}
    convert.run(ConversionOptions(**options, extend_vocab=str(tmp_path / "new.txt"), do_lower_case=True))
    source = open_weights(str(tmp_path / "there"))
    pieces = [words.index(piece) for piece in ("a", "##b", "##c")]
    for name in ("bert/embeddings/word_embeddings", OUTPUT_TABLE):
        old = checkpoint.tf1_variables(model)[name].numpy()
        np.testing.assert_allclose(source.get(name)[len(words)], old[pieces].mean(axis=0), rtol=1e-6)
