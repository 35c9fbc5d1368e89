"""Checkpoints and SavedModels of the BERT encoder of TensorFlow Model Garden (tf-models-official) and TF-Hub.

    PREFIX.index, PREFIX.data-*            written by `tf.train.Checkpoint(model=...)`
    FOLDER/saved_model.pb, variables/...   a SavedModel; TF-Hub's have assets/vocab.txt too

The keys of both are paths through Python objects, which differ between releases. Both also contain a graph of these
objects (the proto TrackableObjectGraph) with each variable's name at its creation. These names have hardly changed, so
they identify the variables here (`names`, column model_garden).

Attention kernels have an axis for the heads in Model Garden: [D, N, H], and [N, H, D] for the output projection.
Merging N and H into one axis gives the reference's [D, D].
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Container

import numpy as np

from bert_tf2.config import ACTIVATIONS, BertConfig
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights import bundle, bundle_index, names
from bert_tf2.weights.base import CONFIG_FILE, VOCABULARY_FILE, Place, Weights
from bert_tf2.weights.bundle_index import DamagedTable
from bert_tf2.weights.text_rules import Stated

_SAVED_MODEL = "saved_model.pb"

# The spelling of names in 2019 and 2020, or in a head, and the encoder's current spelling.
_OLD_NAMES = (
    (r"\bbert_model/encoder/layer_", "bert_model/transformer/layer_"),
    (r"\bself_attention_output/", "self_attention/attention_output/"),
    (r"\bembedding_postprocessor/type_embeddings$", "type_embeddings/embeddings"),
    (r"\bembedding_postprocessor/position_embeddings$", "position_embedding/embeddings"),
    (r"\bembedding_postprocessor/layer_norm/", "embeddings/layer_norm/"),
    (r"\b(next_sentence|sentence_prediction)/pooler_dense/", "pooler_transform/"),
)

# The end of a variable's name, in any scope -> its name in the reference, in which {} is the number of a block.
_NAMED = [
    (re.compile("(?:^|/)" + row.model_garden.replace("{i}", r"(\d+)") + "$"), row.reference.replace("{i}", "{}"))
    for row in (*names.EMBEDDINGS, *names.BLOCK, *names.POOLER, *names.MASKED_LM)
]


def saved_model_folder(path: str) -> str:
    """Returns the folder of a SavedModel, given the folder or its saved_model.pb; "" if there is no SavedModel."""
    folder = os.path.dirname(path) if os.path.basename(path) == _SAVED_MODEL else path
    return folder if files.exists(os.path.join(folder, _SAVED_MODEL)) else ""


class ObjectCheckpoint(Weights):
    """A Model Garden BERT encoder, with or without the masked-words head; `shapes` omits optimizer and counters.

    Variables without a reference name keep their keys.
    """

    kind = "TensorFlow 2 checkpoint of Model Garden's BERT"

    def __init__(self, opened: bundle.Checkpoint, saved_model: str = ""):
        """`opened` is the checkpoint; with `saved_model`, the checkpoint of the variables in this folder."""
        self._saved_model, self._bundle = saved_model, opened
        super().__init__(saved_model or opened.path)
        if saved_model:
            self.kind = "SavedModel of Model Garden's BERT"
        if not opened.is_object_based:
            raise UserError(f"{self.path}: has no graph of objects; if TensorFlow 1 wrote it, give {opened.path}")
        try:
            self._full_names, self._step, lower = _read_graph(opened.get(bundle.OBJECT_GRAPH).item(), opened.shapes)
        except (DamagedTable, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"{opened.path}: its graph of objects cannot be read, it is damaged ({error}); copy it again"
            ) from error
        self._hold({name: self._place(name, key) for name, key in self._find().items()})
        self.config = self._read_config()
        if lower:  # a variable in TF-Hub's SavedModels
            self.text = Stated(self.path, bool(opened.get(lower)), {})

    def _find(self) -> dict[str, str]:
        """Returns reference name -> key of all weights; variables without a reference name keep their key."""
        found = defaultdict(set)
        for key, name in self._full_names.items():
            for pattern, newer in _OLD_NAMES:
                name = re.sub(pattern, newer, name)
            for pattern, reference in _NAMED:
                if match := pattern.search(name):
                    found[reference.format(*match.groups())].add(key)
        for name, keys in found.items():
            # If the head has a pooler of its own, training changed this pooler and not the encoder's.
            found[name] = keys = {key for key in keys if "/pooler_dense/" in self._full_names[key]} or keys
            if len(keys) > 1:
                raise UserError(
                    f"{self.path}: holds more than one BERT ({name} is there as {' and as '.join(sorted(keys)[:3])});"
                    " save the encoder that you want by itself"
                )
        wanted = names.encoder(max(1, names.num_layers(found)), pooler=False)
        if missing := [row.model_garden for row in wanted if row.reference not in found]:
            held = and_more(sorted(self._full_names.values()), 3) or "nothing"
            raise UserError(
                f"{self.path}: is not Model Garden's BERT encoder: it lacks {and_more(missing, 3)}, and holds {held}"
            )
        named = {name: key for name, keys in found.items() for key in keys}
        named |= {names.GLOBAL_STEP: self._step} if self._step else {}
        return named | {key: key for key in self._full_names if key not in {*named.values()}}

    def _place(self, name: str, key: str) -> Place:
        """Returns where a variable is, with its shape in the reference."""
        shape = sizes = self._bundle.shapes[key]
        if "/attention/self/" in name or name.endswith("/attention/output/dense/kernel"):
            if len(sizes) != (3 if name.endswith("/kernel") else 2):
                raise UserError(f"{self.path}: {name} is {sizes}; Model Garden's has an axis for the attention heads")
            axis = 0 if name.endswith("/output/dense/kernel") else len(sizes) - 2
            shape = [*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]]
        return Place(shape, self._bundle.dtypes[key], key)

    def _read(self, name: str) -> np.ndarray:
        place = self._places[name]
        return self._bundle.get(place.where).reshape(place.shape)

    @property
    def folder(self) -> str:
        return self._saved_model or self._bundle.folder

    def vocabulary_file(self) -> str | None:
        """Returns the path of the only vocabulary in a SavedModel's assets, or of the vocab.txt beside the weights."""
        assets = os.path.join(self.folder, "assets")
        found = [name for name in files.list_directory(assets) if re.search(r"vocab.*\.txt$", name)]
        if self._saved_model and (VOCABULARY_FILE in found or len(found) == 1):
            return os.path.join(assets, VOCABULARY_FILE if VOCABULARY_FILE in found else found[0])
        return super().vocabulary_file()

    def _read_config(self) -> BertConfig:
        """Takes sizes from the weights, and the rest from a file beside them, or else from Model Garden's defaults."""
        sizes: dict[str, int] = {"num_hidden_layers": names.num_layers(self.shapes)}
        for row in names.encoder(sizes["num_hidden_layers"], pooler=False):
            shape, fields = self.shapes[row.reference], [names.FIELDS[letter] for letter in row.shape]
            if len(shape) != len(fields) or [*map(sizes.setdefault, fields, shape)] != shape:
                raise UserError(f"{self.path}: {row.model_garden} has the wrong shape {shape} for a BERT")
        query = self._places["bert/encoder/layer_0/attention/self/query/bias"].where
        sizes["num_attention_heads"] = self._bundle.shapes[query][0]
        self.config_file = files.companion(self.folder, CONFIG_FILE)
        if self.config_file is None:
            self._check_norm()
            self.other_activations = ACTIVATIONS
            self.remarks.append(
                'No file states the activation; Model Garden\'s default is used, "gelu" (the tanh approximation).'
            )
            return BertConfig(**sizes, hidden_act="gelu")
        config = BertConfig.from_json_file(self.config_file)
        for name, size in sizes.items():
            if getattr(config, name) != size:
                raise UserError(
                    f"{self.config_file}: says {name} {getattr(config, name)}, where the weights in {self.path} have"
                    f" {size}; take the configuration with which the weights were trained"
                )
        return config

    def _check_norm(self) -> None:
        """Raises UserError for a SavedModel that normalizes before attention."""
        # Before TensorFlow 2.5, the content of keras_metadata.pb was in saved_model.pb.
        beside = (_SAVED_MODEL, "keras_metadata.pb") if self._saved_model else ()
        for path in filter(None, (files.companion(self.folder, name) for name in beside)):
            with files.open_binary(path) as stream:
                data = stream.read()
            if re.search(rb'norm_first"?: *true', data, re.IGNORECASE):
                raise UserError(f"{path}: says norm_first; a model that normalizes before attention is not BERT")


# Attributes that lead to an optimizer, and attributes that only an optimizer has.
_TO_OPTIMIZER = {"optimizer", "_optimizer"}
_OF_OPTIMIZER = {"iter", "iterations", "_iterations"}


def _read_graph(graph: bytes, stored: Container[str]) -> tuple[dict[str, str], str, str]:
    """Finds the variables that the root of a TrackableObjectGraph leads to, except through an optimizer.

    `stored` are the keys of the checkpoint. Returns key -> the variable's name at its creation, without counters, and
    the keys of global_step and do_lower_case, "" if missing. Raises DamagedTable or ValueError for a damaged graph.
    """
    nodes = bundle_index.parse("Graph", graph).nodes
    children = [{child.local_name: child.node_id for child in node.children} for node in nodes]
    if not nodes or any(not 0 <= number < len(nodes) for named in children for number in named.values()):
        raise ValueError("it refers to objects that are not in it")
    slots = {slot.slot_variable_node_id for node in nodes for slot in node.slot_variables}
    waiting, seen = [0], {0}
    while waiting:
        for attribute, child in children[waiting.pop()].items():
            optimizer = attribute in _TO_OPTIMIZER or _OF_OPTIMIZER & children[child].keys()
            if not optimizer and child not in seen:
                seen.add(child)
                waiting.append(child)
    variables = {
        number: (key, attribute.full_name.removesuffix(":0"))
        for number, node in enumerate(nodes)
        for attribute in node.attributes
        if attribute.name == "VARIABLE_VALUE" and number in seen - slots
        if (key := attribute.checkpoint_key.removeprefix("module/")) in stored  # like `bundle`
    }
    counters = ("global_step", "do_lower_case", "save_counter")
    step, lower, _ = (variables.pop(children[0].get(name, -1), ("", ""))[0] for name in counters)
    return dict(variables.values()), step, lower
