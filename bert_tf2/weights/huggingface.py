"""Weights in Hugging Face's layout: a folder with config.json, model.safetensors or pytorch_model.bin, and vocab.txt.

The two sides hold the same numbers under other names (`names` has both), and their kernels are each other's transpose:
[inputs, outputs] here, [outputs, inputs] there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf2 import huggingface_config
from bert_tf2.config import BertConfig
from bert_tf2.huggingface_config import is_huggingface_config as is_huggingface_config
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights import names, tensor_files
from bert_tf2.weights.base import Weights
from bert_tf2.weights.labels import TAGGING_TASK, LabelMap
from bert_tf2.weights.tensor_files import TensorFile

_CONFIGS = ("config.json", "bert_config.json")  # the second in the first years
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""In the order in which transformers looks for them."""


class _Architecture(NamedTuple):
    """One of the classes of transformers: what it has beside the encoder.

    Attributes:
      heads: the variables of its heads.
      pooler: whether it has one.
    """

    heads: tuple[names.Variable, ...]
    pooler: bool


_ARCHITECTURES = {
    "BertForPreTraining": _Architecture((*names.MASKED_LM, *names.NEXT_SENTENCE), True),
    "BertForMaskedLM": _Architecture(names.MASKED_LM, False),
    "BertForNextSentencePrediction": _Architecture(names.NEXT_SENTENCE, True),
    "BertForQuestionAnswering": _Architecture(names.SPAN, False),
    "BertForTokenClassification": _Architecture(names.LABELS, False),
    "BertForSequenceClassification": _Architecture(names.LABELS, True),
    "BertModel": _Architecture((), True),
}

_WITH_LABELS = ("BertForTokenClassification", "BertForSequenceClassification")

# Numbers that stand for nothing, or a second time: 0, 1, 2, ..., zeros, and the table and bias of the masked words.
_BUFFERS = re.compile(r"embeddings\.(position_ids|token_type_ids)$")
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def recognises(path: str) -> str | None:
    """The file of weights, or the index of several, that a folder in this layout holds, or that `path` itself is.

    None where it is neither. Only names are looked at.
    """
    if files.is_directory(path):
        present = files.list_directory(path)
        return next((os.path.join(path, name) for name in _WEIGHTS if name in present), None)
    name = os.path.basename(path)
    is_one = name in _WEIGHTS or name.endswith(".safetensors") or re.fullmatch(r"pytorch_model.*\.bin", name)
    return path if is_one and files.exists(path) else None


def read_config(path: str | Mapping[str, Any]) -> BertConfig:
    """The configuration that a config.json states, from the file, its folder, or its content.

    Raises:
      UserError: no such file, no JSON, or a model that is not BERT.
    """
    values = path if isinstance(path, Mapping) else files.read_json(_config_path(path))
    try:
        return BertConfig.from_dict(huggingface_config.from_huggingface(values))
    except UserError as error:
        if isinstance(path, Mapping):
            raise
        raise UserError(f"{_config_path(path)}: {error}") from error


def _config_path(path: str) -> str:
    if not files.is_directory(path):
        return path
    found = [name for name in _CONFIGS if name in files.list_directory(path)]
    return os.path.join(path, found[0] if found else _CONFIGS[0])


def _usual_name(name: str) -> str:
    """A tensor's name as today's BertForPreTraining calls it: older files, and those of a bare encoder, differ."""
    name = name.removeprefix("module.")  # from training on several GPUs
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


class _Place(NamedTuple):
    """Where a tensor is: the file, its name there, and whether it is the transpose of the reference's."""

    file: TensorFile
    name: str
    transposed: bool = False

    @property
    def shape(self) -> list[int]:
        return [*self.file.tensors[self.name].shape]

    @property
    def dtype(self) -> str:
        return self.file.tensors[self.name].dtype

    def read(self) -> np.ndarray:
        return self.file.read(self.name)

    def same_as(self, other: _Place) -> bool:
        """Whether two tensors hold the same numbers; neither is kept in memory while the other is read."""
        if self.file is other.file and self.file.tensors[self.name] == other.file.tensors[other.name]:
            return True
        return self.shape == other.shape and _digest(self.read()) == _digest(other.read())


def _digest(array: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).data).digest()


class HuggingFaceFolder(Weights):
    """The weights of a model that `transformers` saved, or this project in that layout.

    Read are BertModel and what _ARCHITECTURES lists, with today's names and those of the first years, in one file or
    several. What has no name in the reference keeps its own in `shapes`.

    Attributes:
      architecture: the class there that it was saved from, as far as config.json says it.
    """

    kind = "Hugging Face model"

    def __init__(self, path: str):
        """Opens a folder, or one file of weights in it.

        Raises:
          UserError: the configuration or the weights are missing, damaged, or would need code to be run; they are not
            of a BERT, or do not belong together; or the table that scores masked words is not the table of embeddings,
            which it is in BERT.
        """
        super().__init__(path)
        weights = recognises(path)
        if not weights:
            raise UserError(f"{path}: holds none of {', '.join(_WEIGHTS)}")
        if re.search(r"-\d{5}-of-\d{5}\.\w+$", weights):
            raise UserError(f"{path}: is a part of the weights only; name the folder")
        self.config_file = _config_path(self.folder or ".")
        self._values = files.read_json(self.config_file)
        self.config = read_config(self.config_file)
        if self.config.hidden_act == "gelu_erf":
            # Google's own models lie on the hub as "gelu", though they were trained with the approximation.
            self.uncertain = {"hidden_act": ("gelu",)}
        self.architecture = huggingface_config.architecture_of(self._values)
        rows = {row.huggingface: row for row in (*names.encoder(self.config.num_hidden_layers), *names.HEADS)}
        self._places: dict[str, _Place] = {}
        for name, place in _without_copies(path, _usual_places(path, weights)).items():
            self._take(rows.get(name), place)
        self._check_shapes(rows.values())
        self.remarks += self._remarks()

    def _take(self, row: names.Variable | None, place: _Place) -> None:
        name = row.reference if row else place.name
        place = place._replace(transposed=row is not None and names.is_transposed(name))
        self._places[name] = place
        self.shapes[name] = place.shape[::-1] if place.transposed else place.shape
        self.dtypes[name] = place.dtype

    def _check_shapes(self, rows: Iterable[names.Variable]) -> None:
        problems = []
        for row in rows:
            shape = self.shapes.get(row.reference)
            wanted = names.shape(row, self.config, self._num_outputs())
            if shape is not None and shape != wanted:
                place = self._places[row.reference]
                wanted = wanted[::-1] if place.transposed else wanted
                problems.append(f"{place.name} is {place.shape}, not {wanted}")
        if problems:
            raise UserError(
                f"{self.path}: the weights are not those of {_config_path(self.folder or '.')}:"
                f" {'; '.join(problems[:5])}{'; ...' if len(problems) > 5 else ''}. Take both from one place"
            )

    def _num_outputs(self) -> int | None:
        """The labels of a classifier or tagger, None where there is no such head."""
        return next(iter(self.shapes.get(names.LABELS[0].reference, [])), None)

    def _remarks(self) -> Iterator[str]:
        if remark := huggingface_config.remark(self._values):
            yield remark
        for dtype in sorted({*self.dtypes.values()} & {"float16", "bfloat16", "float64"}):
            yield f"Numbers that are {dtype} in the file are read as float32."
        if self.architecture and self.architecture not in _ARCHITECTURES:
            yield f"There is no {self.architecture} here: its encoder is what can be used."
        if self._values.get("problem_type") == "multi_label_classification":
            yield "It was trained to give several labels at once, and run_classifier.py takes the most probable one."
        yield from _tokenizer_remarks([*_tokenizer_files(self.folder).values()])

    def get(self, name: str) -> np.ndarray:
        place = self._places[name]
        return place.read().T if place.transposed else place.read()

    def vocabulary(self) -> list[str] | None:
        """Raises UserError if there is a tokenizer but no vocab.txt, and its pieces are not WordPiece's."""
        entries = super().vocabulary()
        path = os.path.join(self.folder, "tokenizer.json")
        return _wordpiece_entries(path) if entries is None and files.exists(path) else entries

    def tokenizer_settings(self) -> Mapping[str, Any]:
        found = stated_case(self.folder)
        return {"do_lower_case": found[0]} if found else {}

    def labels(self) -> LabelMap | None:
        """What a classifier's or tagger's outputs mean; where nobody named them LABEL_0, LABEL_1, ...

        Raises:
          UserError: config.json names another number of labels than there are outputs, or two alike.
        """
        count = self._num_outputs()
        if count is None or self.architecture not in (None, *_WITH_LABELS):
            return None
        if self._is_tagger():
            return LabelMap(TAGGING_TASK, self._label_names(count), regression=False)
        task = str(self._values.get("finetuning_task") or "BertForSequenceClassification")
        if count == 1:
            return LabelMap(task, (), regression=True)
        if self._values.get("problem_type") == "regression":  # several scores at once, which nothing here gives
            return None
        return LabelMap(task, self._label_names(count), regression=False)

    def _label_names(self, count: int) -> tuple[str, ...]:
        named = self._values.get("id2label") or {str(index): f"LABEL_{index}" for index in range(count)}
        labels = [str(named.get(str(index), "")) for index in range(count)] if isinstance(named, dict) else []
        if len(named) != count or "" in labels or len({*labels}) != count:
            raise UserError(
                f"{_config_path(self.folder or '.')}: id2label does not give each of the {count} outputs a name of its"
                ' own; put it right, as in {"0": "no", "1": "yes"}'
            )
        return tuple(labels)

    def _is_tagger(self) -> bool:
        """Whether labels are those of tokens; where config.json does not say it, the pooler does."""
        if self.architecture:
            return self.architecture == "BertForTokenClassification"
        return names.POOLER[0].reference not in self.shapes


def _files_of(weights: str) -> dict[str, TensorFile]:
    """Name of each tensor -> the open file that it is in; `weights` is a file, or the index of several."""
    if not weights.endswith(".index.json"):
        file = tensor_files.open_tensors(weights)
        return dict.fromkeys(file.tensors, file)
    mapped = files.read_json(weights).get("weight_map")
    if not isinstance(mapped, dict) or not mapped:
        raise UserError(f"{weights}: names no files (weight_map is missing)")
    opened: dict[str, TensorFile] = {}
    for part in dict.fromkeys(map(str, mapped.values())):
        if part in ("", ".", "..") or re.search(r"[/\\:\0]", part):
            raise UserError(f"{weights}: names the file {part!r}, which is not in the same folder; it is not read")
        path = os.path.join(os.path.dirname(weights), part)
        if not files.exists(path):
            raise UserError(
                f"{path}: is missing, and {os.path.basename(weights)} says that a part of the weights is there"
            )
        opened[part] = tensor_files.open_tensors(path)
    for name, part in mapped.items():
        if name not in opened[str(part)].tensors:
            raise UserError(
                f"{opened[str(part)].path}: lacks {name!r}, which {os.path.basename(weights)} says is there"
            )
    return {name: opened[str(part)] for name, part in mapped.items()}


def _usual_places(path: str, weights: str) -> dict[str, _Place]:
    """Usual name of each tensor -> where it is, without buffers."""
    places: dict[str, _Place] = {}
    for name, file in _files_of(weights).items():
        usual = _usual_name(name)
        if _BUFFERS.search(usual):
            continue
        if usual in places:
            raise UserError(f"{path}: {name} and {places[usual].name} are two names for one variable; remove one")
        places[usual] = _Place(file, name)
    return places


def _without_copies(path: str, places: dict[str, _Place]) -> dict[str, _Place]:
    """Leaves out what is there twice. Raises UserError if the two differ."""
    for copy, original in _TIED.items():
        if copy not in places:
            continue
        duplicate = places.pop(copy)
        if places.setdefault(original, duplicate).same_as(duplicate):
            continue
        raise UserError(
            f"{path}: {duplicate.name} is not equal to {places[original].name}: this model's output layer is its own,"
            " where BERT's is the table of embeddings with one bias, so that it cannot be taken over. Save the encoder"
            " alone (model.bert.save_pretrained)"
        )
    return places


def _wordpiece_entries(path: str) -> list[str]:
    """The vocabulary in a tokenizer.json, in the order of the ids."""
    content = files.read_json(path)
    model = content.get("model") if isinstance(content.get("model"), dict) else {}
    entries = model.get("vocab")
    if model.get("type") not in ("WordPiece", None) or not isinstance(entries, dict):
        raise UserError(f"{path}: is not a tokenizer with the WordPiece vocabulary that BERT has; give a vocab.txt")
    listed = content.get("added_tokens")
    added = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    entries = {**entries, **{str(entry.get("content")): entry.get("id") for entry in added}}
    by_id = {index: entry for entry, index in entries.items() if isinstance(index, int)}
    if not files.is_utf8("".join(entries)):
        raise UserError(f"{path}: an entry holds half a character (one of a pair of \\u...); give a vocab.txt")
    if len(by_id) != len(entries) or {*by_id} != {*range(len(entries))}:
        raise UserError(f"{path}: the ids of its {len(entries)} entries are not 0, 1, 2, ...; give a vocab.txt")
    return [by_id[index] for index in range(len(entries))]


def stated_case(folder: str) -> tuple[bool, str] | None:
    """`do_lower_case` as the tokenizer's files in a folder state it, and the file that does; None where none does."""
    for path, content in _tokenizer_files(folder).items():
        if "do_lower_case" in content:
            return (content["do_lower_case"], path) if isinstance(content["do_lower_case"], bool) else None
    return None


def _tokenizer_files(folder: str) -> dict[str, dict[str, Any]]:
    """The settings of the tokenizer by file: of tokenizer_config.json, then of tokenizer.json."""
    found = {}
    path = os.path.join(folder, "tokenizer_config.json")
    if files.exists(path):
        found[path] = files.read_json(path)
    path = os.path.join(folder, "tokenizer.json")
    if files.exists(path) and not any("do_lower_case" in content for content in found.values()):
        normalizer = files.read_json(path).get("normalizer")
        if isinstance(normalizer, dict) and "lowercase" in normalizer:
            found[path] = {"do_lower_case": normalizer["lowercase"], "strip_accents": normalizer.get("strip_accents")}
    return found


def _tokenizer_remarks(settings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What its tokenizer does otherwise than this project's."""
    for content in settings[:1]:
        accents, lower = content.get("strip_accents"), content.get("do_lower_case", True)
        if isinstance(accents, bool) and accents != lower:
            kept = "drops" if accents else "keeps"
            yield f"Its tokenizer {kept} accents (strip_accents), which this project's does not with this case."
        if content.get("tokenize_chinese_chars") is False:
            yield "Its tokenizer does not set Chinese characters apart (tokenize_chinese_chars); this project's does."


# Writing.


def write_folder(
    folder: str,
    shapes: Mapping[str, Sequence[int]],
    arrays: Iterable[tuple[str, np.ndarray]],
    config: BertConfig,
    *,
    vocabulary: Sequence[str] | None = None,
    do_lower_case: bool = True,
    labels: LabelMap | None = None,
    architecture: str | None = None,
) -> list[str]:
    """Writes a folder that `transformers` loads with no missing and no unexpected weight.

    All files are there when it returns, and none of them was there half before. The activation function keeps its
    meaning: this project's "gelu" is "gelu_pytorch_tanh" there.

    Args:
      folder: where to; is made. Files of these names in it are replaced.
      shapes: reference name -> sizes, of the variables that there are. What BERT does not know is passed over.
      arrays: reference name and array of each of them, in any order. One is in memory at a time.
      config: the model's.
      vocabulary: the entries for vocab.txt.
      do_lower_case: whether the tokenizer is that of an uncased model.
      labels: what the outputs mean, where the model is a classifier or tagger.
      architecture: the class there; without it the one that has the heads that `shapes` has.

    Returns:
      Sentences on what was written, and which parts of a BERT have no place there.

    Raises:
      UserError: a variable of that architecture is missing or has another shape than the configuration says; the folder
        has a tokenizer of another kind, or cannot be written.
    """
    architecture = architecture or _architecture_for(shapes, labels)
    written = _written_variables(architecture, shapes, config)
    _check_target(folder, vocabulary is not None)
    contents = {"config.json": _json(_config_content(architecture, config, vocabulary, labels, shapes))}
    if vocabulary is not None:
        contents["vocab.txt"] = "".join(f"{entry}\n" for entry in vocabulary)
        contents["tokenizer_config.json"] = _json(_tokenizer_content(config, do_lower_case))
    # The weights come last: where they are, the rest is too.
    paths = [os.path.join(folder, name) for name in (*contents, _WEIGHTS[0])]
    with files.complete_or_absent(*paths) as beside:
        _write_weights(beside[-1], architecture, written, shapes, arrays)
        for path, text in zip(beside, contents.values(), strict=False):
            with files.open_binary(path, "wb") as stream:
                stream.write(text.encode("utf-8"))
    return [*_report(folder, architecture, written, shapes, config)]


def _architecture_for(shapes: Mapping[str, Any], labels: LabelMap | None) -> str:
    """The class whose heads there are. What was fine-tuned counts for more than what pretraining left."""
    has = {
        name: all(row.reference in shapes for row in architecture.heads)
        for name, architecture in _ARCHITECTURES.items()
    }
    if has["BertForQuestionAnswering"]:
        return "BertForQuestionAnswering"
    if has["BertForTokenClassification"]:
        return _WITH_LABELS[0 if labels and labels.task == TAGGING_TASK else 1]
    return next(name for name in has if has[name])


def _written_variables(
    architecture: str, shapes: Mapping[str, Sequence[int]], config: BertConfig
) -> list[names.Variable]:
    """The variables of a class of transformers. Raises UserError if there is not each of them as it should be."""
    if architecture not in _ARCHITECTURES:
        raise UserError(f"{architecture} is none of {', '.join(_ARCHITECTURES)}")
    rows = [*names.encoder(config.num_hidden_layers, _ARCHITECTURES[architecture].pooler)]
    if architecture == "BertModel" and names.POOLER[0].reference not in shapes:
        rows = [*names.encoder(config.num_hidden_layers, pooler=False)]
    rows += _ARCHITECTURES[architecture].heads
    num_labels = next(iter(shapes.get(names.LABELS[0].reference, [])), None)
    problems = []
    for row in rows:
        shape, wanted = shapes.get(row.reference), names.shape(row, config, num_labels)
        if shape is None:
            problems.append(f"{row.reference} is missing")
        elif [*shape] != wanted:
            problems.append(f"{row.reference} is {[*shape]}, not {wanted}")
    if problems:
        raise UserError(f"these weights do not make a {architecture}: {and_more(problems, 8, '; ')}")
    return rows


def _check_target(folder: str, vocabulary: bool) -> None:
    if files.is_remote(folder):
        raise UserError(f"{folder}: this layout is written to local folders only; write it there and copy it")
    others = {"tokenizer.json", "added_tokens.json"} & {*files.list_directory(folder)}
    if vocabulary and others:
        raise UserError(
            f"{folder}: has {', '.join(sorted(others))} of another tokenizer, which transformers would read in place of"
            " vocab.txt; remove it or give another folder"
        )


def _config_content(
    architecture: str,
    config: BertConfig,
    vocabulary: Sequence[str] | None,
    labels: LabelMap | None,
    shapes: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    outputs, regression = [], False
    if architecture in _WITH_LABELS:
        count = shapes[names.LABELS[0].reference][0]
        outputs = [*(labels.labels if labels else ())] or [f"LABEL_{index}" for index in range(count)]
        regression = labels.regression if labels else count == 1
        if len(outputs) != count:
            raise UserError(f"the labels {', '.join(outputs)} are not those of a model with {count} outputs")
    pad = [*vocabulary].index("[PAD]") if vocabulary is not None and "[PAD]" in vocabulary else 0
    return huggingface_config.to_huggingface(dataclasses.asdict(config), architecture, outputs, regression, pad)


def _tokenizer_content(config: BertConfig, do_lower_case: bool) -> dict[str, Any]:
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "mask", "pad", "sep", "unk")}
    return {
        **special,
        "do_lower_case": do_lower_case,
        "model_max_length": config.max_position_embeddings,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "tokenizer_class": "BertTokenizer",
    }


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _write_weights(
    path: str,
    architecture: str,
    rows: Iterable[names.Variable],
    shapes: Mapping[str, Sequence[int]],
    arrays: Iterable[tuple[str, np.ndarray]],
) -> None:
    prefix = "bert." if architecture == "BertModel" else ""
    theirs = {row.reference: row.huggingface.removeprefix(prefix) for row in rows}
    sizes = {
        other: [*shapes[name]][::-1] if names.is_transposed(name) else [*shapes[name]] for name, other in theirs.items()
    }
    chosen = (
        (theirs[name], value.T if names.is_transposed(name) else value) for name, value in arrays if name in theirs
    )
    tensor_files.write_safetensors(path, sizes, chosen)


def _report(
    folder: str, architecture: str, written: Sequence[names.Variable], shapes: Mapping[str, Any], config: BertConfig
) -> Iterator[str]:
    yield f"Wrote {folder}: a {architecture} with {len(written)} weights."
    hidden_act = huggingface_config.activation_there(config.hidden_act)
    if remark := huggingface_config.remark({"hidden_act": hidden_act}):
        yield remark
    left_out = [
        row.reference for row in (*names.POOLER, *names.HEADS) if row.reference in shapes and row not in written
    ]
    if left_out:
        yield f"Left out, since a {architecture} has no place for it: {', '.join(left_out)}."
    if architecture == "BertModel" and names.POOLER[0].reference not in shapes:
        yield "There is no pooler: load it with BertModel.from_pretrained(folder, add_pooling_layer=False)."
