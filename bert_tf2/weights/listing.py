"""Lists the variables of weights: the work of convert_checkpoint.py --list."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bert_tf2.weights import names
from bert_tf2.weights.sources import open_weights


def listing(path: str) -> Iterator[str]:
    """Yields a line for every variable of weights of any kind: name, Hugging Face name, shape, size, dtype, norm.

    The last line counts the parameters of the model, and apart from them the numbers of the optimizer.
    """
    source = open_weights(path)
    step = f", step {source.global_step}" if source.global_step else ""
    yield f"{source.path}: {source.kind}, {len(source.shapes)} variables{step}"
    there = {row.reference: row.huggingface for row in names.known(names.num_layers(source.shapes))}
    columns = [max(map(len, column), default=0) for column in (source.shapes, there.values())]
    weights = {*names.without_optimizer(source.shapes)}
    parameters = others = 0
    for name in sorted(source.shapes):
        value = source.get(name)
        if value.dtype.kind in "fiub":
            parameters += value.size * (name in weights)
            others += value.size * (name not in weights)
            norm = f"{np.linalg.norm(value.astype(np.float64)):.6g}"
        else:
            norm = "-"
        shape = str(source.shapes[name])
        yield (
            f"{name:<{columns[0]}}  {there.get(name, '-'):<{columns[1]}}  {shape:<14} {value.size:>11,}"
            f"  {source.dtypes[name]:<9} {norm}"
        )
    yield f"{parameters:,} parameters" + (f", and {others:,} numbers of the optimizer and the step" if others else "")
