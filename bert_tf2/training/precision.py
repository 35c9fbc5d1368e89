"""What --precision means, in one place."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Precision:
    """A type of the computations. Variables, statistics and losses are float32 in each.

    Attributes:
      policy: the Keras dtype policy of the model.
      activation_bytes: of a number that is kept for the backward pass.
      exported: the type of a SavedModel that a training writes; there are two, and float16 is for training.
      allows_tf32: whether products on GPUs that have it may round float32 to TF32. With 16-bit types, float32 products
        remain only in the heads, whose inputs have fewer bits anyway.
      scales_loss: whether small gradients would be 0 without a loss scale.
    """

    policy: str
    activation_bytes: int
    exported: str
    allows_tf32: bool = True
    scales_loss: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether products are computed in 16 bits."""
        return self.activation_bytes == 2


PRECISIONS = {
    "float32": Precision("float32", 4, "float32", allows_tf32=False),
    "tf32": Precision("float32", 4, "float32"),
    "bfloat16": Precision("mixed_bfloat16", 2, "bfloat16"),
    "float16": Precision("mixed_float16", 2, "float32", scales_loss=True),
}
"""By the values of --precision."""
