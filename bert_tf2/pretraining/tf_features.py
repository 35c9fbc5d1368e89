"""The features of a tf.train.Example, for a fork that writes records of its own; the scripts here do not need them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bert_tf2.support.process import load_tensorflow


def create_int_feature(values: Iterable[int]) -> Any:
    """A tf.train.Feature with whole numbers."""
    train = load_tensorflow().train
    return train.Feature(int64_list=train.Int64List(value=values))


def create_float_feature(values: Iterable[float]) -> Any:
    """A tf.train.Feature with numbers, which it rounds to float32."""
    train = load_tensorflow().train
    return train.Feature(float_list=train.FloatList(value=values))
