"""Checkpoints and SavedModels of the BERT encoder of TensorFlow Model Garden (tf-models-official) and TF-Hub.

    PREFIX.index, PREFIX.data-*            written by `tf.train.Checkpoint(model=...)`
    FOLDER/saved_model.pb, variables/...   a SavedModel; TF-Hub's have assets/vocab.txt too

The keys of both are paths through Python objects, which differ between releases. Both also contain a graph of these
objects (the proto TrackableObjectGraph) with the name that each variable was created with. These names have hardly
changed, so they identify the variables here (`names`, column model_garden).

Attention kernels have an axis for the heads in Model Garden: [D, N, H], and [N, H, D] for the output projection.
Merging N and H into one axis gives the reference's [D, D].
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Container, Iterable

import numpy as np

from bert_tf2.config import ACTIVATIONS, BertConfig
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights import bundle, bundle_index, names
from bert_tf2.weights.base import CONFIG_FILE, VOCABULARY_FILE, Place, Weights
from bert_tf2.weights.bundle_index import DamagedTable

_SAVED_MODEL = "saved_model.pb"

# The spelling of names in 2019 and 2020, and the current one.
_OLD_NAMES = (
    (r"\bbert_model/encoder/layer_", "bert_model/transformer/layer_"),
    (r"\bself_attention_output/", "self_attention/attention_output/"),
    (r"\bembedding_postprocessor/type_embeddings$", "type_embeddings/embeddings"),
    (r"\bembedding_postprocessor/position_embeddings$", "position_embedding/embeddings"),
    (r"\bembedding_postprocessor/layer_norm/", "embeddings/layer_norm/"),
)

# The end of a variable's name, in any scope -> its name in the reference, in which {} is the number of a block.
_NAMED = [
    (re.compile("(?:^|/)" + row.model_garden.replace("{i}", r"(\d+)") + "$"), row.reference.replace("{i}", "{}"))
    for row in (*names.EMBEDDINGS, *names.BLOCK, *names.POOLER, *names.of_heads(names.HEADS))
    if row.model_garden
]
# A head may have a pooler of its own, which counts.
_POOLERS = [(re.compile(r"(?:^|/)(?:next_sentence|sentence_prediction)/pooler_dense/(\w+)$"), "bert/pooler/dense/{}")]
# The other output layers have one name for all tasks; the attribute that leads to one states the task.
_OUTPUT = re.compile(r"(?:^|/)predictions/transform/logits/(kernel|bias)$")
_TASKS = {"classification": names.NEXT_SENTENCE, "span_labeling": names.SPAN, "classifier": names.LABELS}

# The names in params.yaml. Model Garden's "gelu" is the tanh approximation.
_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "tanh": "tanh", "linear": "linear", "identity": "linear"}


def saved_model_folder(path: str) -> str:
    """Returns the folder of a SavedModel, given the folder or its saved_model.pb, or ""."""
    folder = os.path.dirname(path) if os.path.basename(path) == _SAVED_MODEL else path
    return folder if files.exists(os.path.join(folder, _SAVED_MODEL)) else ""


class ObjectCheckpoint(Weights):
    """A Model Garden BERT encoder, with or without a head, that is open for reading.

    `shapes` omits optimizer state and the checkpoint's counters, and lists variables without a reference name by their
    keys. Supported heads: masked words, next sentence, one label per text or token, spans.
    """

    kind = "TensorFlow 2 checkpoint of Model Garden's BERT"

    def __init__(self, opened: bundle.Checkpoint, saved_model: str = ""):
        """`opened` is the checkpoint, that of the variables in the folder `saved_model` if there is one."""
        self._saved_model, self._bundle = saved_model, opened
        super().__init__(saved_model or opened.path)
        if self._saved_model:
            self.kind = "SavedModel of Model Garden's BERT"
        if not self._bundle.is_object_based:
            raise UserError(
                f"{self.path}: has no graph of objects ({bundle.OBJECT_GRAPH}); if TensorFlow 1 wrote it, give"
                f" {opened.path} instead"
            )
        try:
            self._graph = ObjectGraph(self._bundle.get(bundle.OBJECT_GRAPH).item(), self._bundle.shapes)
        except (DamagedTable, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self._bundle.path}: its graph of objects cannot be read, the checkpoint is damaged ({error}); copy"
                " it again"
            ) from error
        keys = self._find()
        self._hold({name: self._place(name, key) for name, key in keys.items()})
        self.config = self._read_config()
        if key := self._graph.do_lower_case:  # a variable in TF-Hub's SavedModels
            self.do_lower_case = bool(self._bundle.get(key))

    def _find(self) -> dict[str, str]:
        """Returns reference name -> key of all weights; variables without a reference name keep their key."""
        found = _by_name(self._graph, _NAMED)
        poolers = _by_name(self._graph, _POOLERS)
        if poolers:
            self.remarks.append(
                "The pooler is the head's pooler_dense, which was trained along with it; the encoder's pooler_transform"
                " was not."
            )
        found |= poolers | _by_task(self._graph)
        for name, keys in found.items():
            if len(keys) > 1:
                raise UserError(
                    f"{self.path}: holds more than one BERT ({name} is there as {' and as '.join(sorted(keys)[:3])});"
                    " save the encoder that you want by itself"
                )
        wanted = names.encoder(max(1, names.num_layers(found)), pooler=False)
        if missing := [row.model_garden for row in wanted if row.reference not in found]:
            held = and_more(sorted(self._graph.full_names.values()), 3) or "nothing"
            raise UserError(
                f"{self.path}: is not Model Garden's BERT encoder: it lacks {and_more(missing, 3)}, and holds {held}"
            )
        named = {name: key for name, keys in found.items() for key in keys}
        if self._graph.global_step:
            named[names.GLOBAL_STEP] = self._graph.global_step
        return named | {key: key for key in self._graph.full_names if key not in {*named.values()}}

    def _place(self, name: str, key: str) -> Place:
        """Returns where a variable is, with its shape in the reference."""
        sizes = self._bundle.shapes[key]
        # Only in Model Garden are output weights a kernel, [inputs, outputs].
        shape = sizes[::-1] if name.endswith("output_weights") else sizes
        if "/attention/self/" in name or name.endswith("/attention/output/dense/kernel"):
            if len(sizes) != (3 if name.endswith("/kernel") else 2):
                raise UserError(f"{self.path}: {name} is {sizes}; Model Garden's has an axis for the attention heads")
            axis = 0 if name.endswith("/output/dense/kernel") else len(sizes) - 2
            shape = [*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]]
        return Place(shape, self._bundle.dtypes[key], key)

    def _read(self, name: str) -> np.ndarray:
        place = self._places[name]
        value = self._bundle.get(place.where)
        return np.ascontiguousarray(value.T) if name.endswith("output_weights") else value.reshape(place.shape)

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
        """Takes the sizes from the weights, and the rest from files beside them, or else Model Garden's defaults."""
        sizes = self._sizes()
        self.config_file = files.companion(self.folder, CONFIG_FILE)
        if self.config_file is None:
            return BertConfig(**{**sizes, **self._activation()})
        config = BertConfig.from_json_file(self.config_file)
        for name, size in sizes.items():
            if getattr(config, name) != size:
                raise UserError(
                    f"{self.config_file}: says {name} {getattr(config, name)}, where the weights in {self.path} have"
                    f" {size}; take the configuration that they were trained with"
                )
        return config

    def _sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {"num_hidden_layers": names.num_layers(self.shapes)}
        for row in names.encoder(sizes["num_hidden_layers"], pooler=False):
            shape, fields = self.shapes[row.reference], [names.FIELDS[letter] for letter in row.shape]
            if len(shape) != len(fields) or [*map(sizes.setdefault, fields, shape)] != shape:
                raise UserError(f"{self.path}: {row.model_garden} has the wrong shape {shape} for a BERT")
        query = self._places["bert/encoder/layer_0/attention/self/query/bias"].where
        return {**sizes, "num_attention_heads": self._bundle.shapes[query][0]}

    def _activation(self) -> dict[str, str]:
        """Returns hidden_act, which no size determines, as far as a file states it."""
        path = os.path.join(self.folder, _SAVED_MODEL if self._saved_model else "params.yaml")
        read = _activation_of_graph if self._saved_model else _activation_of_trainer
        if found := read(path) if files.exists(path) else None:
            return {"hidden_act": found}
        self.uncertain = {"hidden_act": ACTIVATIONS}
        self.remarks.append(
            'Nothing says which activation it was trained with; taken for "gelu", the tanh approximation, which is'
            " Model Garden's default."
        )
        return {}


def _by_name(graph: ObjectGraph, patterns: Iterable[tuple[re.Pattern, str]]) -> dict[str, set[str]]:
    """Returns reference name -> keys of the variables whose full names match one of these patterns."""
    found = defaultdict(set)
    for key, name in graph.full_names.items():
        for pattern, newer in _OLD_NAMES:
            name = re.sub(pattern, newer, name)
        for pattern, reference in patterns:
            if match := pattern.search(name):
                found[reference.format(*match.groups())].add(key)
    return dict(found)


def _by_task(graph: ObjectGraph) -> dict[str, set[str]]:
    """Returns reference name -> keys of the output layers that the attribute of a task leads to."""
    found = defaultdict(set)
    for attribute, (weights, bias) in _TASKS.items():
        for node in {children[attribute] for children in graph.children if attribute in children}:
            for key, name in graph.variables_below(node).items():
                if output := _OUTPUT.search(name):
                    found[(weights if output[1] == "kernel" else bias).reference].add(key)
    return dict(found)


# NodeDef stores the operation in field 2, a string. Model Garden's gelu computes the third power of x; the exact one
# needs erf, or erfc in newer versions.
_OPERATIONS = (
    (rb"\x12(\x03Erf|\x04Erfc)[\x1a\x22\x2a]", "gelu_erf"),
    (rb"\x12\x03Pow[\x1a\x22\x2a]", "gelu"),
    (rb"\x12\x04Relu[\x1a\x22\x2a]", "relu"),
)


def _activation_of_graph(path: str) -> str | None:
    """Returns the activation that the operations of a SavedModel compute; None if no operation shows it."""
    notes = os.path.join(os.path.dirname(path), "keras_metadata.pb")  # in saved_model.pb itself before TensorFlow 2.5
    data = b""
    for file in filter(files.exists, (path, notes)):
        with files.open_binary(file) as stream:
            data += stream.read()
    _refuse_norm_first(path, b'"norm_first": true' in data)
    return next((activation for pattern, activation in _OPERATIONS if re.search(pattern, data)), None)


def _activation_of_trainer(path: str) -> str | None:
    """Returns the activation that a trainer's params.yaml names, or None."""
    text = files.read_text(path, drop_bom=True)
    _refuse_norm_first(path, bool(re.search(r"\bnorm_first: *true", text, re.IGNORECASE)))
    named = re.search(r"""\bhidden_activation: *['"]?(\w+)""", text)
    if named and named[1] not in _ACTIVATIONS:
        raise UserError(f"{path}: its hidden_activation {named[1]} is not one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[named[1]] if named else None


def _refuse_norm_first(path: str, said: bool) -> None:
    if said:
        raise UserError(f"{path}: says norm_first; a model that normalizes before attention, not after, is not BERT")


# Attributes that lead to an optimizer, and attributes that only an optimizer has.
_TO_OPTIMIZER = {"optimizer", "_optimizer"}
_OF_OPTIMIZER = {"iter", "iterations", "_iterations"}


class ObjectGraph:
    """The objects of a checkpoint.

    Attributes:
      children: the objects: attribute -> the number of the object that is its value.
      full_names: key -> the name that the variable was created with, except for optimizer state and counters.
      global_step, do_lower_case: the keys of these variables, or "".
    """

    def __init__(self, graph: bytes, stored: Container[str]):
        """Parses a TrackableObjectGraph; `stored` are the keys of the checkpoint.

        Raises:
          DamagedTable, ValueError: `graph` is invalid.
        """
        nodes = bundle_index.parse("Graph", graph).nodes
        self.children = [{child.local_name: child.node_id for child in node.children} for node in nodes]
        if any(not 0 <= number < len(nodes) for children in self.children for number in children.values()):
            raise ValueError("it speaks of objects that are not in it")
        slots = {slot.slot_variable_node_id for node in nodes for slot in node.slot_variables}
        self._variables = {
            number: (key, attribute.full_name.removesuffix(":0"))
            for number, node in enumerate(nodes)
            for attribute in node.attributes
            if attribute.name == "VARIABLE_VALUE" and number not in slots
            if (key := attribute.checkpoint_key.removeprefix("module/")) in stored  # like `bundle`
        }
        of_root = self.children[0] if self.children else {}
        self.global_step, self.do_lower_case, counter = (
            self._variables.get(of_root.get(name, -1), ("", ""))[0]
            for name in ("global_step", "do_lower_case", "save_counter")
        )
        everything = self.variables_below(0) if self.children else {}
        aside = {self.global_step, self.do_lower_case, counter}
        self.full_names = {key: name for key, name in everything.items() if key not in aside}

    def variables_below(self, node: int) -> dict[str, str]:
        """Returns key -> full name of the variables that are reachable from an object, except through an optimizer."""
        waiting, seen = [node], {node}
        while waiting:
            for attribute, child in self.children[waiting.pop()].items():
                optimizer = attribute in _TO_OPTIMIZER or _OF_OPTIMIZER & self.children[child].keys()
                if not optimizer and child not in seen:
                    seen.add(child)
                    waiting.append(child)
        return dict(self._variables[number] for number in sorted(seen & self._variables.keys()))
