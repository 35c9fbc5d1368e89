"""Checks of the shapes of arguments where they are passed in.

    contract = Contract(D=768)
    contract.check("BF", input_ids=input_ids, input_mask=input_mask)
    contract.check("BFD", states=states)

    input_mask: shape [8, 64], wanted [B, F] = [8, 128]

modeling.py explains the letters; P is masked positions and L labels. A letter means the size at its first occurrence, a
digit means itself, `...` means any number of dimensions.

Only static shapes are compared: while `tf.function` traces a graph, an unknown size matches anything, because comparing
it would require operations that run in every step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf2.support.errors import UserError

# The name in Hugging Face's transformers. A model here would ignore a feature of this name, and read padding as text.
_OF_TRANSFORMERS = {"input_mask": "attention_mask"}


class ShapeError(UserError, ValueError):
    """An argument does not have the required shape. Also a ValueError, which the reference raises."""


class Contract:
    """Shapes in letters, where equal letters require equal sizes in all arguments."""

    def __init__(self, **sizes: int):
        """`sizes` maps letters to known sizes."""
        self._sizes = sizes

    @tf.autograph.experimental.do_not_convert
    def check(self, *wanted: str, **arguments: Any) -> None:
        """Raises ShapeError if an argument fits no wanted shape. A shape has a letter or digit for each dimension.

        `arguments`: name -> tensor, array or nested lists. None is ignored.
        """
        for name, value in arguments.items():
            shape = None if value is None else _static_shape(name, value)
            if shape is None:
                continue
            fitting = (found for letters in wanted if (found := self._fit(letters, shape)) is not None)
            if (sizes := next(fitting, None)) is None:
                raise ShapeError(f"{name}: shape {_listed(shape)}, wanted {self._describe(wanted[0])}")
            self._sizes |= sizes

    @tf.autograph.experimental.do_not_convert
    def check_batch(
        self, batch: Mapping[str, Any], wanted: Mapping[str, Sequence[str]], optional: Sequence[str] = ()
    ) -> None:
        """Calls `check` for the features `wanted` of a batch; features in `optional` may be missing."""
        if not isinstance(batch, Mapping):
            raise ShapeError(f"batch: is a {type(batch).__name__}, wanted a dict with {', '.join(wanted)}")
        for name, letters in wanted.items():
            if name in batch:
                self.check(*letters, **{name: batch[name]})
            elif (other := _OF_TRANSFORMERS.get(name)) in batch:
                raise ShapeError(f"{other}: has the name {name} here; give it this name, as Bert.tokenize does")
            elif name not in optional:
                described = self._describe(letters[0])
                raise ShapeError(f"{name}: missing, wanted {described}; the batch has {', '.join(sorted(batch))}")

    def _fit(self, letters: str, shape: Sequence[int | None]) -> dict[str, int] | None:
        """The sizes of the letters in a shape; None if the shape does not fit the letters."""
        required = letters.removeprefix("...")
        others = len(shape) - len(required)
        if others < 0 or (others and required == letters):
            return None
        sizes: dict[str, int] = {}
        for letter, size in zip(required, shape[others:], strict=True):
            known = int(letter) if letter.isdigit() else {**self._sizes, **sizes}.get(letter, size)
            if size is not None and size != known:
                return None
            if size is not None and not letter.isdigit():
                sizes[letter] = size
        return sizes

    def _describe(self, letters: str) -> str:
        """A wanted shape in letters, and in numbers if some sizes are known."""
        required = letters.removeprefix("...")
        dimensions = [*(["..."] if required != letters else []), *required]
        named, numbers = _listed(dimensions), _listed([self._sizes.get(each, each) for each in dimensions])
        return named if named == numbers else f"{named} = {numbers}"


def whole_numbers(name: str, value: Any, below: int | None = None) -> tf.Tensor:
    """Returns an argument as a dense tensor, int32. Raises ShapeError if it does not hold whole numbers.

    `below`: the limit of the numbers, which is checked only outside of graphs, where the numbers are known.
    """
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        raise ShapeError(f"{name}: is a {type(value).__name__}; pad its rows with 0, and say so in the mask")
    try:
        value = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{name}: {value!r:.60} is not a tensor of whole numbers") from error
    # On several devices, Keras' fit first traces a model with floats, means over the replicas.
    if not (value.dtype.is_integer or (tf.is_symbolic_tensor(value) and value.graph.name.startswith("scratch_graph"))):
        raise ShapeError(f"{name}: {value.dtype.name}, wanted whole numbers, such as int32")
    if value.shape.rank is None:
        raise ShapeError(f"{name}: the number of dimensions is not known; set it with tf.ensure_shape")
    if below is not None and hasattr(value, "numpy") and tf.executing_eagerly():
        found = value.numpy()
        if (wrong := found[(found < 0) | (found >= below)]).size:
            raise ShapeError(f"{name}: has {wrong[0]}, wanted numbers from 0 to {below - 1}")
    return tf.cast(value, tf.int32)


def _static_shape(name: str, value: Any) -> list[int | None] | None:
    """The static shape of an argument, with None for unknown sizes; None if the rank is unknown."""
    try:
        shape = value.shape if hasattr(value, "shape") else np.shape(value)
    except ValueError as error:
        raise ShapeError(f"{name}: holds rows of unequal lengths; pad them with 0 and say so in the mask") from error
    return None if getattr(shape, "rank", 0) is None else list(shape)


def _listed(sizes: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


# The reference's helpers, which `modeling` has, too. This package uses only the first.


def get_shape_list(
    tensor: tf.Tensor, expected_rank: int | Collection[int] | None = None, name: str | None = None
) -> list[int | tf.Tensor]:
    """The shape of a tensor: Python numbers if they are known statically, else scalar tensors. See `assert_rank`."""
    if expected_rank is not None:
        assert_rank(tensor, expected_rank, name)
    dynamic = tf.shape(tensor)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(tensor.shape.as_list())]


def assert_rank(tensor: tf.Tensor, expected_rank: int | Collection[int], name: str | None = None) -> None:
    """Raises ValueError if the rank is not in `expected_rank`; `name` is for the message."""
    allowed = [expected_rank] if isinstance(expected_rank, int) else list(expected_rank)
    if tensor.shape.rank not in allowed:
        raise ValueError(
            f"{name or 'the tensor'} has rank {tensor.shape.rank} (shape {tensor.shape}); expected:"
            f" {' or '.join(map(str, allowed))}"
        )


def reshape_to_matrix(input_tensor: tf.Tensor) -> tf.Tensor:
    """[..., D] -> [rows, D]. Raises ValueError for a tensor with fewer than two dimensions."""
    if input_tensor.shape.rank < 2:
        raise ValueError(f"a tensor of shape {input_tensor.shape} has no rows: two dimensions or more are needed")
    return tf.reshape(input_tensor, [-1, get_shape_list(input_tensor)[-1]])


def reshape_from_matrix(output_tensor: tf.Tensor, orig_shape_list: Sequence[int | tf.Tensor]) -> tf.Tensor:
    """[rows, D] -> [..., D]; `orig_shape_list` is `get_shape_list` of the tensor before `reshape_to_matrix`."""
    return tf.reshape(output_tensor, [*orig_shape_list[:-1], get_shape_list(output_tensor)[-1]])
