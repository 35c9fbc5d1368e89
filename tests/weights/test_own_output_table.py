"""Weights that score words with a table of their own, which older versions and other programs trained."""

import numpy as np
import pytest
from huggingface_folders import DECODER, WORDS, make_folder, tensors_of
from small_checkpoints import small_model, state_of
from small_models import small_config

from bert_tf2 import heads
from bert_tf2.config import BertConfig
from bert_tf2.support.errors import UserError
from bert_tf2.weights import bundle, checkpoint, convert, metadata
from bert_tf2.weights.options import ConversionOptions
from bert_tf2.weights.sources import open_weights

TABLE = "cls/predictions/output_weights"


def test_a_checkpoint_with_one(tmp_path):
    model = small_model()
    variables = {name: value.numpy() for name, value in state_of(model).items()}
    bundle.write(str(tmp_path / "model.ckpt-1"), {**variables, TABLE: np.ones([23, 8], np.float32)}.items())
    metadata.write(str(tmp_path), model.config)
    path = str(tmp_path / "model.ckpt-1")
    for call in (
        lambda: checkpoint.initialize(heads.PretrainingModel(small_config()), path),
        lambda: checkpoint.restore(path, checkpoint.tf1_variables(model), model.config),
        lambda: convert.run(ConversionOptions(input=path, output=str(tmp_path / "new"), to="hf")),
    ):
        with pytest.raises(UserError, match=f"{TABLE} is an output table of its own") as refused:
            call()
        assert path in str(refused.value) and "\n" not in str(refused.value)
    assert TABLE in checkpoint.initialize(heads.SpanModel(small_config()), path).split("not used: ")[1]


def test_a_folder_of_transformers_with_one(tmp_path):
    tensors = tensors_of("BertForMaskedLM")
    tensors[DECODER] = tensors[WORDS].copy()
    equal = make_folder(tmp_path / "equal", tensors, "BertForMaskedLM", tie_word_embeddings=False)
    assert "tie_word_embeddings" not in open_weights(equal).config.to_dict()
    tensors[DECODER] += 1
    with pytest.raises(UserError, match=f"{DECODER} is not equal to .* output layer is its own"):
        open_weights(make_folder(tmp_path / "own", tensors, "BertForMaskedLM", tie_word_embeddings=False))
    with pytest.raises(UserError, match="tie_word_embeddings must be true, not False"):
        BertConfig.from_dict({**small_config().to_dict(), "tie_word_embeddings": False})
