"""Creates the model that matches given weights."""

from __future__ import annotations

from bert_tf2 import heads, modeling
from bert_tf2.config import BertConfig
from bert_tf2.weights import names
from bert_tf2.weights.base import Weights
from bert_tf2.weights.labels import LabelMap


def make_model(source: Weights, config: BertConfig, labels: LabelMap | None = None, **kwargs):
    """Creates the model with the heads that the weights contain, or a BertModel; its variables are not loaded.

    Args:
      source: the weights.
      config: their configuration.
      labels: the meaning of a classifier's or tagger's outputs, from sources.labels_of. Defaults to a classifier's,
        since both have the same variable names.
      **kwargs: for the model's constructor.
    """
    present = {head for head, rows in names.HEADS.items() if rows[0].reference in source.shapes}
    labels_of = labels.labels_of if labels else "texts"
    for model in heads.MODELS:
        if present & {*model.heads} and model.labels_of in (None, labels_of):
            break
    else:
        return modeling.BertModel(config, **kwargs)
    # A head that the weights lack would be random, and look trained in what is made of the model.
    if model is heads.PretrainingModel and "next_sentence" not in present:
        pooler = all(row.reference in source.shapes for row in names.POOLER)
        return heads.MaskedLMModel(config, has_pooler=pooler, **kwargs)
    if model.labels_of:
        kwargs["num_labels"] = source.num_labels
        if labels and labels.regression:
            kwargs["regression"] = True
        if labels and labels.multi_label:
            kwargs["multi_label"] = True
    return model(config, **kwargs)
