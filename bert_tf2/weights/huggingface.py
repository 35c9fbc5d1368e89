"""Reads Hugging Face folders: config.json, model.safetensors or pytorch_model.bin, and vocab.txt.

The values are the reference's under other names (`names` has both), with transposed kernels: [inputs, outputs] here,
[outputs, inputs] there. `huggingface_writing` writes these folders.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.config import BertConfig
from bert_tf2.data.huggingface_config import architecture_of, from_huggingface
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights import names, text_rules
from bert_tf2.weights.base import CONFIG_FILE, Place, Weights, bytes_of
from bert_tf2.weights.labels import TAGGING_TASK, UNKNOWN_TASK, LabelMap, numbered
from bert_tf2.weights.tensor_files import TensorFile

_CONFIGS = ("config.json", CONFIG_FILE)  # the second in early releases
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""In the order in which transformers searches for them."""


class Architecture(NamedTuple):
    """The parts of a `transformers` class besides the encoder."""

    heads: tuple[str, ...]  # keys of names.HEADS
    pooler: bool  # whether the class has a pooler
    labeled: str | None = None  # what the labels apply to, as in the models of `heads`


ARCHITECTURES = {
    "BertForQuestionAnswering": Architecture(("span",), False),
    "BertForTokenClassification": Architecture(("labels",), False, "tokens"),
    "BertForSequenceClassification": Architecture(("labels",), True, "texts"),
    "BertForPreTraining": Architecture(("masked_lm", "next_sentence"), True),
    "BertForMaskedLM": Architecture(("masked_lm",), False),
    "BertForNextSentencePrediction": Architecture(("next_sentence",), True),
    "BertModel": Architecture((), True),
}
"""The writable classes. The first that fits is used: fine-tuning before pretraining, more heads before fewer."""

_FLOATS = ("float32", "float16", "bfloat16", "float64")
# Tensors that no output depends on: 0, 1, 2, ..., zeros, and the weights of classes in a loss.
_BUFFERS = re.compile(r"embeddings\.(position_ids|token_type_ids)$|^(loss|criterion)\w*\.")
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""The name of a copy -> that of the tensor that it equals."""


def recognizes(path: str) -> str | None:
    """Returns the file of weights in a folder or at a path, going by names alone; or None."""
    if files.is_directory(path):
        present = files.list_directory(path)
        return next((os.path.join(path, name) for name in WEIGHTS if name in present), None)
    name = os.path.basename(path)
    is_one = name in WEIGHTS or name.endswith(".safetensors") or re.fullmatch(r"pytorch_model.*\.bin", name)
    return path if is_one and files.exists(path) else None


class HuggingFaceFolder(Weights):
    """The weights of a model that `transformers`, or this project in that layout, has saved.

    Reads the classes in ARCHITECTURES, with current or original names. A variable without a reference name keeps its
    own in `shapes`.
    """

    kind = "Hugging Face model"

    def __init__(self, path: str):
        """Opens a folder, or the file of weights in it."""
        super().__init__(path)
        weights = recognizes(path)
        if not weights:
            raise UserError(f"{path}: holds none of {', '.join(WEIGHTS)}")
        if files.is_remote(weights):
            raise UserError(f"{path}: this layout is read from local folders only; copy it to one")
        folder = self.folder or "."
        there = [*filter(None, (files.companion(folder, name) for name in _CONFIGS))]
        self.config_file = there[0] if there else os.path.join(folder, _CONFIGS[0])
        self._values = files.read_json(self.config_file)
        try:
            self.config = BertConfig.from_dict(from_huggingface(self._values))
        except UserError as error:
            raise UserError(f"{self.config_file}: {error}") from error
        if self.config.hidden_act == "gelu_erf":
            # Google's own models are on the hub as "gelu", though they were trained with the approximation.
            self.other_activations = ("gelu",)
        # the class of `transformers` that saved the model, if config.json states it
        self.architecture = architecture_of(self._values)
        self._file = TensorFile(weights)
        found = self._usual_names()
        rows = self._usable({row.huggingface: row for row in names.known(self.config.num_hidden_layers)}, found)
        places: dict[str, Place] = {}
        for usual, theirs in found.items():
            stored, name = self._file.tensors[theirs], rows[usual].reference if usual in rows else theirs
            transposed = usual in rows and names.is_transposed(name)
            shape = [*stored.shape]
            places[name] = Place(shape[::-1] if transposed else shape, stored.dtype, (theirs, transposed))
            if usual in rows and stored.dtype not in _FLOATS:
                raise UserError(
                    f"{path}: {theirs} is {stored.dtype}, so the weights are quantized in a way that nothing here says;"
                    " save the model without quantization"
                )
        self._hold(places)

    def _usual_names(self) -> dict[str, str]:
        """Returns the current name of each tensor -> that in the file; no buffers, no copies."""
        found: dict[str, str] = {}
        prefix = names.common_prefix(self._file.tensors, "embeddings.word_embeddings.weight").removesuffix("bert.")
        for name in self._file.tensors:
            usual = name.removeprefix(prefix)
            usual = usual.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            usual = f"bert.{usual}" if usual.startswith(("embeddings.", "encoder.", "pooler.")) else usual
            if not _BUFFERS.search(usual) and found.setdefault(usual, name) != name:
                raise UserError(f"{self.path}: {name} and {found[usual]} are two names for one variable; remove one")
        for copy, original in TIED.items():
            duplicate = found.pop(copy, None)
            if duplicate and self._digest(first := found.setdefault(original, duplicate)) != self._digest(duplicate):
                raise UserError(
                    f"{self.path}: {duplicate} is not equal to {first}: this model's output layer is its own, where"
                    " BERT's is the table of embeddings with one bias, so that it cannot be taken over. Save the"
                    " encoder alone (model.bert.save_pretrained)"
                )
        return found

    def _digest(self, name: str) -> tuple:
        """What is equal for tensors of equal shape and values, of which one is in memory at a time."""
        value = self._file.read(name)
        return value.shape, hashlib.sha256(bytes_of(value).data).digest()

    def _usable(self, rows: Mapping[str, names.Variable], found: Mapping[str, str]) -> Mapping[str, names.Variable]:
        """Returns the rows without those of a fine-tuned head whose outputs would mean something else here."""
        others = [usual for usual in found if usual not in rows]
        if strange := [usual for usual in others if usual.startswith(("bert.embeddings.", "bert.encoder."))]:
            raise UserError(
                f"{self.path}: there is no place for {and_more(strange, 2)} in the BERT of its config.json, which has"
                f" {self.config.num_hidden_layers} layers; take the config.json that was saved with these weights"
            )
        kernel = found.get(names.LABELS[0].huggingface)
        tuned = {row.huggingface for head in ("labels", "span") for row in names.HEADS[head]} & {*found}
        several = kernel and self._file.tensors[kernel].shape[:1] > (1,)
        if self.architecture and self.architecture not in ARCHITECTURES:
            problem = f"There is no {self.architecture} here"
        elif tuned and others:
            problem = f"The outputs depend on {and_more(others, 3)} too, which no model here has"
        elif self._values.get("problem_type") == "regression" and several:
            problem = "There is no regression with several outputs here"
        else:
            return rows
        self.remarks.append(f"{problem}: the encoder is what can be used.")
        return {name: row for name, row in rows.items() if name not in tuned}

    def _read(self, name: str) -> np.ndarray:
        theirs, transposed = self._places[name].where
        return self._file.read(theirs).T if transposed else self._file.read(theirs)

    def vocabulary_file(self) -> str | None:
        """Returns the path of a vocab.txt that has every entry."""
        path = super().vocabulary_file()
        return path if path and len(self.vocabulary()) == len(tokenization.read_entries(path)) else None

    def vocabulary(self) -> list[str] | None:
        return text_rules.vocabulary(self.folder)

    def labels(self) -> LabelMap | None:
        """Returns the meaning of a classifier's or tagger's outputs. Unnamed labels are LABEL_0, LABEL_1, ..."""
        count, known = self.num_labels, ARCHITECTURES.get(self.architecture or "")
        if count is None or (known and not known.labeled):
            return None
        named = self._label_names(count)
        labeled = known.labeled if known else self._guess_labeled(named)
        if labeled == "tokens":
            return LabelMap(TAGGING_TASK, named, regression=False)
        task = str(self._values.get("finetuning_task") or UNKNOWN_TASK)
        if count == 1:
            return LabelMap(task, (), regression=True)
        multi_label = self._values.get("problem_type") == "multi_label_classification"
        return LabelMap(task, named, regression=False, multi_label=multi_label)

    def _guess_labeled(self, labels: Sequence[str]) -> str:
        """Returns what the labels apply to where config.json has no `architectures`."""
        if names.POOLER[0].reference not in self.shapes or any(re.match(r"[BIES]-.", label) for label in labels):
            return "tokens"
        raise UserError(
            f"{self.config_file}: does not say whether the labels are those of texts or of tokens; add"
            ' "architectures": ["BertForSequenceClassification"], or ["BertForTokenClassification"]'
        )

    def _label_names(self, count: int) -> tuple[str, ...]:
        named = self._values.get("id2label")
        if not named:
            return numbered(count)
        labels = [str(named.get(str(index), "")) for index in range(count)] if isinstance(named, dict) else []
        if len(named) != count or "" in labels:
            raise UserError(
                f"{self.config_file}: id2label does not give each of the {count} outputs a name; put it right, as in"
                ' {"0": "no", "1": "yes"}'
            )
        return tuple(labels)
