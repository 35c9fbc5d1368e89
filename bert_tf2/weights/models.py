"""The model that some weights are of."""

from __future__ import annotations

from bert_tf2 import heads, modeling
from bert_tf2.config import BertConfig
from bert_tf2.weights import names
from bert_tf2.weights.base import Weights
from bert_tf2.weights.labels import LabelMap


def make_model(source: Weights, config: BertConfig, labels: LabelMap | None = None, **kwargs):
    """Makes the model whose heads some weights have, a BertModel if they have none; its variables are fresh.

    Args:
      source: the weights.
      config: their configuration.
      labels: what the outputs of a classifier or a tagger mean, as sources.labels_of finds it. Defaults to those of a
        classifier, since the variables of both have the same names.
      **kwargs: for the model's constructor.
    """
    present = {head for head, rows in names.HEADS.items() if rows[0].reference in source.shapes}
    labels_of = labels.labels_of if labels else "texts"
    for model in heads.MODELS:
        if present & {*model.heads} and model.labels_of in (None, labels_of):
            break
    else:
        return modeling.BertModel(config, **kwargs)
    if model.labels_of:
        kwargs["num_labels"] = source.num_labels
        if labels and labels.regression:
            kwargs["regression"] = True
        if labels and labels.multi_label:
            kwargs["multi_label"] = True
    return model(config, **kwargs)
