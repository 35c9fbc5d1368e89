"""Layers of a model that learn more slowly than the layers above, or not at all.

A layer is a number: EMBEDDINGS, the index of a block, or None for the pooler and the heads, which are on top.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from absl import logging

from bert_tf2.support import console
from bert_tf2.support.settings import WrongSetting

if TYPE_CHECKING:
    import keras

EMBEDDINGS = -1
_LAYER = re.compile(r"(?:^|/)(?:embeddings|layer_(\d+)/[^/]+)/")
_FREEZE = re.compile(r"embeddings|(\d{1,4})(?:-(\d{1,4}))?")


def layer_of(name: str) -> int | None:
    """The layer of a variable by its reference name, or its path in Keras."""
    found = _LAYER.search(name)
    return None if found is None else EMBEDDINGS if found[1] is None else int(found[1])


def shares_of(names: Sequence[str], decay: float) -> list[float]:
    """The share of the learning rate of each trained variable: decay^k in the k-th layer below pooler and heads.

    The highest block with a trained variable is the first layer below.
    """
    layers = [layer_of(name) for name in names]
    top = max((layer for layer in layers if layer is not None), default=EMBEDDINGS) + 1
    return [1.0 if layer is None else decay ** (top - layer) for layer in layers]


def log_shares(names: Sequence[str], shares: Sequence[float], frozen: Iterable[str] = ()) -> None:
    """Logs the share of the learning rate of each layer; `frozen`: variables that are not trained."""
    found = {layer_of(name): "frozen" for name in frozen}
    found |= {layer_of(name): f"{share:.4g}" for name, share in zip(names, shares, strict=True)}
    order = sorted(found, key=lambda layer: float("inf") if layer is None else layer, reverse=True)
    titles = {None: "pooler and head", EMBEDDINGS: "embeddings"}
    rows = {titles.get(layer, f"block {layer}"): found[layer] for layer in order}
    logging.info("%s", console.table("Each layer's share of the learning rate:", rows))


def layers_in(freeze: str | None, num_hidden_layers: int | None = None) -> set[int]:
    """The layers in a value of --freeze, "embeddings,0-3". Raises WrongSetting, also for a block that is not there."""
    found: set[int] = set()
    for part in (freeze or "").replace(" ", "").split(",") if freeze else ():
        match = _FREEZE.fullmatch(part)
        first, last = (match[1], match[2] or match[1]) if match else (1, 0)
        if first is None:
            found.add(EMBEDDINGS)
        elif blocks := range(int(first), int(last) + 1):
            found.update(blocks)
        else:
            raise WrongSetting(f"--freeze={freeze}: {part!r} is neither embeddings nor blocks, such as 0 or 0-3")
    if num_hidden_layers is not None and max(found, default=EMBEDDINGS) >= num_hidden_layers:
        raise WrongSetting(f"--freeze={freeze}: the model has the blocks 0-{num_hidden_layers - 1}")
    return found


def blocks_in(init_from_layers: str | None) -> list[int]:
    """The blocks in a value of --init_from_layers, "0,2,4". Raises WrongSetting."""
    if init_from_layers is None:
        return []
    if not re.fullmatch(r"\d{1,3}(,\d{1,3})*", init_from_layers):
        raise WrongSetting(f"--init_from_layers={init_from_layers}: must be numbers of blocks from 0, such as 0,2,4")
    return [*map(int, init_from_layers.split(","))]


def freeze(model: keras.Model, layers: Iterable[int]) -> None:
    """Freezes layers of a model of `heads`."""
    for layer in layers:
        (model.bert.embeddings if layer == EMBEDDINGS else model.bert.blocks[layer]).trainable = False
