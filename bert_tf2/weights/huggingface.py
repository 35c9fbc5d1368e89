"""Folders in Hugging Face's layout: config.json, model.safetensors or pytorch_model.bin, vocab.txt; read and written.

The values are the same as in the reference's checkpoints. The names differ (`names` has both), and kernels are
transposed: [inputs, outputs] here, [outputs, inputs] there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bert_tf2 import tokenization
from bert_tf2.config import HUGGINGFACE_DEFAULTS, LEARNED_POSITIONS, BertConfig, architecture_of
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights import names, task_file, tensor_files, text_rules
from bert_tf2.weights.base import CONFIG_FILE, VOCABULARY_FILE, Place, Weights
from bert_tf2.weights.task_file import ACTIVATIONS, TAGGING_TASK, UNKNOWN_TASK, LabelMap, numbered

if TYPE_CHECKING:
    from bert_tf2.weights.model_folder import ModelFiles

CONFIGS = ("config.json", CONFIG_FILE)  # early releases have the second name
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""The files of weights, in the order in which transformers searches for them."""


class Architecture(NamedTuple):
    """The parts of a `transformers` class besides the encoder."""

    heads: tuple[str, ...]  # keys of names.HEADS
    pooler: bool  # whether the class has a pooler
    labeled: str | None = None  # whether labels are for "texts" or "tokens", as in `heads`; None without labels


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
# Tensors on which no output depends: 0, 1, 2, ..., zeros, and the weights of classes in a loss.
_BUFFERS = re.compile(r"embeddings\.(position_ids|token_type_ids)$|^(loss|criterion)\w*\.")
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""The name of a copy -> the name of its original."""


def recognizes(path: str) -> str | None:
    """Returns the file of weights in a folder or at a path, by names alone; None if there is no such name."""
    if files.is_directory(path):
        present = files.list_directory(path)
        return next((os.path.join(path, name) for name in WEIGHTS if name in present), None)
    name = os.path.basename(path)
    is_one = name in WEIGHTS or name.endswith(".safetensors") or re.fullmatch(r"pytorch_model.*\.bin", name)
    return path if is_one and files.exists(path) else None


class HuggingFaceFolder(Weights):
    """The weights of a model of the classes in ARCHITECTURES; a variable without a reference name keeps its own."""

    kind = "Hugging Face model"

    def __init__(self, path: str):
        super().__init__(path)
        weights = recognizes(path)
        if files.is_remote(path):
            raise UserError(f"{path}: this layout is read from local folders only; copy it to one")
        folder = self.folder or "."
        there = filter(None, (files.companion(folder, name) for name in CONFIGS))
        self.config_file = next(there, os.path.join(folder, CONFIGS[0]))
        self._values = files.read_json(self.config_file)
        try:
            self.config = BertConfig.from_huggingface(self._values)
        except UserError as error:
            raise UserError(f"{self.config_file}: {error}") from error
        if self.config.hidden_act == "gelu_erf":
            # The hub's configurations of Google's own models say "gelu", though the training used the approximation.
            self.other_activations = ("gelu",)
        # the class of `transformers` that saved the model, if config.json states it
        self.architecture = architecture_of(self._values)
        self._file = tensor_files.TensorFile(weights)
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
                    f"{path}: {theirs} is {stored.dtype}, so the weights are quantized; save them as floats"
                )
        self._hold(places)
        # sentence-transformers' name of the function that CrossEncoder.predict applies to outputs; "" without any
        self._activation = self._find_activation() if self.num_labels else ""
        if self._activation and self.num_labels == 1:
            is_here = self._activation.lower() in ACTIVATIONS
            where = "`classify` of bert_tf2.load and in exports: not in run_classifier.py and Keras' models"
            self.remarks.append(
                f"{self._activation} is applied to a score in sentence-transformers' predict(), and here in"
                f" {where if is_here else 'no call'}."
            )

    def _find_activation(self) -> str:
        beside = files.companion(self.folder or ".", "config_sentence_transformers.json")
        newest = files.read_json(beside) if beside else {}
        older, oldest = self._values.get("sentence_transformers"), "sbert_ce_default_activation_function"
        if newest.get("model_type") != "CrossEncoder" and not isinstance(older, dict) and oldest not in self._values:
            return ""  # no CrossEncoder
        stated = newest.get("activation_fn"), older.get("activation_fn") if isinstance(older, dict) else None
        path = next((name for name in (*stated, self._values.get(oldest)) if isinstance(name, str)), "")
        usual = "Sigmoid" if self.num_labels == 1 else ""
        name = path.rpartition(".")[2] if path.startswith("torch.") else usual
        return "" if name == "Identity" else name

    def _usual_names(self) -> dict[str, str]:
        """Returns the current name of each tensor -> its name in the file, without buffers and copies."""
        found: dict[str, str] = {}
        prefix = names.common_prefix(self._file.tensors, "embeddings.word_embeddings.weight").removesuffix("bert.")
        for name in self._file.tensors:
            usual = name.removeprefix(prefix)
            usual = usual.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            usual = f"bert.{usual}" if usual.startswith(("embeddings.", "encoder.", "pooler.")) else usual
            if not _BUFFERS.search(usual):
                found[usual] = name
        for copy, original in TIED.items():
            duplicate = found.pop(copy, None)
            first = found.setdefault(original, duplicate) if duplicate else None
            if first != duplicate and not np.array_equal(self._file.read(first), self._file.read(duplicate)):
                raise UserError(
                    f"{self.path}: {duplicate} is not equal to {first}: this model has an output layer of its own,"
                    " where BERT uses the table of embeddings with one bias, so the layer cannot be read. Save the"
                    " encoder alone (model.bert.save_pretrained)"
                )
        return found

    def _usable(self, rows: Mapping[str, names.Variable], found: Mapping[str, str]) -> Mapping[str, names.Variable]:
        """Leaves out the rows of a fine-tuned head whose outputs would mean something else here."""
        others = [usual for usual in found if usual not in rows]
        if strange := [usual for usual in others if usual.startswith(("bert.embeddings.", "bert.encoder."))]:
            raise UserError(
                f"{self.path}: there is no place for {and_more(strange, 2)} in the BERT of its config.json, which has"
                f" {self.config.num_hidden_layers} layers; take the config.json that was saved with these weights"
            )
        kernel = found.get(names.LABELS[0].huggingface)
        tuned = {row.huggingface for head in ("labels", "span") for row in names.HEADS[head]} & {*found}
        several = kernel and self._file.tensors[kernel].shape[:1] > [1]
        if self.architecture and self.architecture not in ARCHITECTURES:
            problem = f"There is no {self.architecture} here"
        elif tuned and others:
            problem = f"The outputs also depend on {and_more(others, 3)}, which no model here has"
        elif self._values.get("problem_type") == "regression" and several:
            problem = "There is no regression with several outputs here"
        else:
            return rows
        self.remarks.append(f"{problem}: only the encoder can be used.")
        return {name: row for name, row in rows.items() if name not in tuned}

    def _read(self, name: str) -> np.ndarray:
        theirs, transposed = self._places[name].where
        return self._file.read(theirs).T if transposed else self._file.read(theirs)

    def vocabulary_file(self) -> str | None:
        path = super().vocabulary_file()
        return path if path and len(self.vocabulary()) == len(tokenization.read_entries(path)) else None

    def vocabulary(self) -> list[str] | None:
        return text_rules.vocabulary(self.folder)

    def labels(self) -> LabelMap | None:
        count, known = self.num_labels, ARCHITECTURES.get(self.architecture or "")
        if count is None or (known and not known.labeled):
            return None
        named = self._label_names(count)
        labeled = known.labeled if known else self._guess_labeled(named)
        if labeled == "tokens":
            return LabelMap(TAGGING_TASK, named, regression=False)
        task = str(self._values.get("finetuning_task") or UNKNOWN_TASK)
        if count == 1:
            name = self._activation.lower()
            return LabelMap(task, (), regression=True, activation=name if name in ACTIVATIONS else "")
        independent = self._activation == "Sigmoid"
        multi_label = independent or self._values.get("problem_type") == "multi_label_classification"
        return LabelMap(task, named, regression=False, multi_label=multi_label)

    def _guess_labeled(self, labels: Sequence[str]) -> str:
        """Returns "tokens" or "texts", if config.json has no `architectures`. Raises UserError in case of doubt."""
        if names.POOLER[0].reference not in self.shapes or any(re.match(r"[BIES]-.", label) for label in labels):
            return "tokens"
        raise UserError(
            f"{self.config_file}: does not say whether the labels are for texts or for tokens; add"
            ' "architectures": ["BertForSequenceClassification"], or ["BertForTokenClassification"]'
        )

    def _label_names(self, count: int) -> tuple[str, ...]:
        named = self._values.get("id2label")
        if not named:
            return numbered(count)
        if isinstance(named, list):  # in the order of the outputs
            named = {str(index): label for index, label in enumerate(named)}
        labels = [str(named.get(str(index), "")) for index in range(count)] if isinstance(named, dict) else []
        if len(labels) != count or len(named) != count or "" in labels:
            raise UserError(
                f"{self.config_file}: id2label does not give each of the {count} outputs a name; correct it, as in"
                ' {"0": "no", "1": "yes"}'
            )
        return tuple(labels)


# Writing


def write_folder(
    folder: str, shapes: Mapping[str, Sequence[int]], arrays: Iterable[tuple[str, np.ndarray]], beside: ModelFiles
) -> list[str]:
    """Writes a folder that `transformers` loads without missing or unexpected weights, completely or not at all.

    The class of `transformers` is the first of ARCHITECTURES whose heads `shapes` contains. Returns messages for the
    user. Raises UserError if the shapes do not fit the class.

    Args:
      folder: existing files of the written names are replaced.
      shapes: reference name -> sizes of each variable. Variables that are not BERT's are ignored.
      arrays: reference name and array of each variable, in the order of `names`. One array is in memory at a time.
      beside: the content of config.json, tokenizer_config.json, vocab.txt and task.json.
    """
    config, labels = beside.config, beside.labels
    heads = {head for head, rows in names.HEADS.items() if not names.missing(rows, shapes)}
    of = (None, labels.labeled if labels else "texts")
    architecture, there = next(
        (name, there) for name, there in ARCHITECTURES.items() if heads.issuperset(there.heads) and there.labeled in of
    )
    pooler = there.pooler and (bool(there.heads) or names.POOLER[0].reference in shapes)
    rows = [*names.encoder(config.num_hidden_layers, pooler), *names.of_heads(there.heads)]
    count = names.num_labels(shapes)
    wanted = names.shapes_of(rows, config, count)
    if problems := [*names.misfits(wanted, shapes, lambda name: True)]:
        raise UserError(f"these weights do not make a {architecture}: {and_more(problems, 3, '; ')}")
    texts = {"config.json": _text(config_content(architecture, config, beside.vocabulary, labels, count))}
    if beside.vocabulary is not None:
        texts["tokenizer_config.json"] = _text(_tokenizer_content(beside))
    texts |= {name: text for name, text in beside.texts().items() if name in (VOCABULARY_FILE, task_file.NAME)}
    prefix = "" if there.heads else "bert."  # a BertModel's names lack this prefix
    theirs = {row.reference: row.huggingface.removeprefix(prefix) for row in rows}
    sizes = {other: [*shapes[name]][:: -1 if names.is_transposed(name) else 1] for name, other in theirs.items()}
    chosen = (
        (theirs[name], value.T if names.is_transposed(name) else value) for name, value in arrays if name in theirs
    )
    # The weights are last, so that a folder with weights is complete.
    with files.complete_or_absent(*(os.path.join(folder, name) for name in (*texts, WEIGHTS[0]))) as partial:
        tensor_files.write_safetensors(partial[-1], sizes, chosen)
        for path, text in zip(partial, texts.values(), strict=False):
            with files.open_binary(path, "wb") as stream:
                stream.write(text.encode("utf-8"))
    return [*_report(folder, architecture, rows, shapes)]


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def config_content(
    architecture: str,
    config: BertConfig,
    vocabulary: Sequence[str] | None = None,
    labels: LabelMap | None = None,
    count: int | None = None,
) -> dict[str, Any]:
    """Returns the content of a config.json; `count` is the number of outputs of a classifier or tagger."""
    outputs, problem_type = (), None
    if ARCHITECTURES[architecture].labeled:
        outputs = (labels.labels if labels else ()) or numbered(count)
        if labels.regression if labels else count == 1:
            problem_type = "regression"
        elif labels and labels.multi_label:
            problem_type = "multi_label_classification"
        if len(outputs) != count:
            raise UserError(f"there are {len(outputs)} labels, {', '.join(outputs)}, and the model has {count} outputs")
    act = config.hidden_act.lower()
    content = {
        **{name: getattr(config, name) for name in HUGGINGFACE_DEFAULTS},
        "hidden_dropout_prob": config.hidden_dropout_prob or 0.0,  # null is not allowed there
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob or 0.0,
        "hidden_act": {"gelu": "gelu_pytorch_tanh", "gelu_erf": "gelu"}.get(act, act),
        "architectures": [architecture],
        "model_type": "bert",
        "pad_token_id": [*vocabulary].index("[PAD]") if vocabulary is not None and "[PAD]" in vocabulary else 0,
        "position_embedding_type": LEARNED_POSITIONS,
        "torch_dtype": "float32",
        "use_cache": True,
    }
    if outputs:
        content["id2label"] = {str(index): label for index, label in enumerate(outputs)}
        content["label2id"] = {label: index for index, label in enumerate(outputs)}
    if labels and labels.activation:
        there = f"torch.nn.modules.activation.{labels.activation.title()}"
        content["sentence_transformers"] = {"activation_fn": there}
    return content | ({"problem_type": problem_type} if problem_type else {})


def _tokenizer_content(beside: ModelFiles) -> dict[str, Any]:
    rules = beside.rules
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "mask", "pad", "sep", "unk")}
    exactly = {"special": True, **dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)}
    ids = {entry.strip(): index for index, entry in enumerate(beside.vocabulary)}
    kept = {str(ids[token]): {"content": token, **exactly} for token in rules.get("never_split", ())}
    return {
        **special,
        **({"added_tokens_decoder": kept} if kept else {}),
        "do_lower_case": beside.lowers_case,
        "model_max_length": beside.config.max_position_embeddings,
        "strip_accents": rules.get("strip_accents"),
        "tokenize_chinese_chars": rules.get("tokenize_chinese_chars", True),
        "tokenizer_class": "BertTokenizer",
    }


def _report(
    folder: str, architecture: str, written: Sequence[names.Variable], shapes: Mapping[str, Any]
) -> Iterator[str]:
    yield f"Wrote {folder}: a {architecture} with {len(written)} weights."
    others = [row for row in (*names.POOLER, *names.of_heads(names.HEADS)) if row not in written]
    if left_out := [row.reference for row in others if row.reference in shapes]:
        yield f"Left out, because a {architecture} has no place for them: {', '.join(left_out)}."
    if architecture == "BertModel" and names.POOLER[0].reference not in shapes:
        yield "There is no pooler: load it with BertModel.from_pretrained(folder, add_pooling_layer=False)."
