"""Writes folders in Hugging Face's layout, for `transformers` to load."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf2.config import BertConfig
from bert_tf2.data.huggingface_config import to_huggingface
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.weights import names, tensor_files
from bert_tf2.weights.base import VOCABULARY_FILE
from bert_tf2.weights.huggingface import ARCHITECTURES, WEIGHTS
from bert_tf2.weights.labels import LabelMap, numbered


def write_folder(
    folder: str,
    shapes: Mapping[str, Sequence[int]],
    arrays: Iterable[tuple[str, np.ndarray]],
    config: BertConfig,
    *,
    vocabulary: Sequence[str] | None = None,
    do_lower_case: bool = True,
    rules: Mapping[str, Any] | None = None,
    labels: LabelMap | None = None,
) -> list[str]:
    """Writes a folder that `transformers` loads without missing or unexpected weights, all of it or nothing.

    The class of `transformers` is the first of ARCHITECTURES whose heads are there. Returns messages about it.

    Args:
      folder: existing files of these names are replaced.
      shapes: reference name -> sizes of each variable. Variables that are not BERT's are ignored.
      arrays: reference name and array of each of them, in the order of `names`. One is in memory at a time.
      vocabulary, do_lower_case, rules: of its tokenizer, see FullTokenizer.
      labels: the meaning of the outputs of a classifier or tagger.
    """
    heads = {head for head, rows in names.HEADS.items() if {row.reference for row in rows} <= {*shapes}}
    of = (None, labels.labeled if labels else "texts")
    architecture, there = next(
        (name, there) for name, there in ARCHITECTURES.items() if heads.issuperset(there.heads) and there.labeled in of
    )
    pooler = there.pooler and (bool(there.heads) or names.POOLER[0].reference in shapes)
    rows = [*names.encoder(config.num_hidden_layers, pooler), *names.of_heads(there.heads)]
    wanted = names.shapes_of(rows, config, names.num_labels(shapes))
    if problems := [*names.misfits(wanted, shapes, lambda name: True)]:
        raise UserError(f"these weights do not make a {architecture}: {and_more(problems, 3, '; ')}")
    contents = {"config.json": _config_content(architecture, config, vocabulary, labels, shapes)}
    if vocabulary is not None:
        contents["tokenizer_config.json"] = _tokenizer_content(config, vocabulary, do_lower_case, rules or {})
    texts = {
        name: json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for name, content in contents.items()
    }
    if vocabulary is not None:
        texts[VOCABULARY_FILE] = "".join(f"{entry}\n" for entry in vocabulary)
    prefix = "" if there.heads else "bert."  # which a BertModel leaves out
    theirs = {row.reference: row.huggingface.removeprefix(prefix) for row in rows}
    sizes = {other: [*shapes[name]][:: -1 if names.is_transposed(name) else 1] for name, other in theirs.items()}
    chosen = (
        (theirs[name], value.T if names.is_transposed(name) else value) for name, value in arrays if name in theirs
    )
    # The weights are last, so that a folder with weights is complete.
    with files.complete_or_absent(*(os.path.join(folder, name) for name in (*texts, WEIGHTS[0]))) as beside:
        tensor_files.write_safetensors(beside[-1], sizes, chosen)
        for path, text in zip(beside, texts.values(), strict=False):
            with files.open_binary(path, "wb") as stream:
                stream.write(text.encode("utf-8"))
    return [*_report(folder, architecture, rows, shapes)]


def _config_content(
    architecture: str,
    config: BertConfig,
    vocabulary: Sequence[str] | None,
    labels: LabelMap | None,
    shapes: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    outputs, problem_type = (), None
    if ARCHITECTURES[architecture].labeled:
        count = names.num_labels(shapes)
        outputs = (labels.labels if labels else ()) or numbered(count)
        if labels.regression if labels else count == 1:
            problem_type = "regression"
        elif labels and labels.multi_label:
            problem_type = "multi_label_classification"
        if len(outputs) != count:
            raise UserError(f"the labels {', '.join(outputs)} are not those of a model with {count} outputs")
    pad = [*vocabulary].index("[PAD]") if vocabulary is not None and "[PAD]" in vocabulary else 0
    return to_huggingface(dataclasses.asdict(config), architecture, outputs, problem_type, pad)


def _tokenizer_content(
    config: BertConfig, vocabulary: Sequence[str], do_lower_case: bool, rules: Mapping[str, Any]
) -> dict[str, Any]:
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "mask", "pad", "sep", "unk")}
    exactly = {"special": True, **dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)}
    ids = {entry.strip(): index for index, entry in enumerate(vocabulary)}
    kept = {str(ids[token]): {"content": token, **exactly} for token in rules.get("never_split", ())}
    return {
        **special,
        **({"added_tokens_decoder": kept} if kept else {}),
        "do_lower_case": do_lower_case,
        "model_max_length": config.max_position_embeddings,
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
        yield f"Left out, since a {architecture} has no place for it: {', '.join(left_out)}."
    if architecture == "BertModel" and names.POOLER[0].reference not in shapes:
        yield "There is no pooler: load it with BertModel.from_pretrained(folder, add_pooling_layer=False)."
