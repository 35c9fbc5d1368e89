"""What --precision means, in one place."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Precision:
    """A type of the computations. Variables, statistics and losses are float32 in each."""

    policy: str  # the Keras dtype policy of the model
    exported: str  # the type of a SavedModel that a training writes; there are two, and float16 is for training
    # whether products on GPUs that have it may round float32 to TF32. With 16-bit types, float32 products remain only
    # in the heads, whose inputs have fewer bits anyway
    allows_tf32: bool = True
    scales_loss: bool = False  # whether small gradients would be 0 without a loss scale


PRECISIONS = {
    "float32": Precision("float32", "float32", allows_tf32=False),
    "tf32": Precision("float32", "float32"),
    "bfloat16": Precision("mixed_bfloat16", "bfloat16"),
    "float16": Precision("mixed_float16", "float32", scales_loss=True),
}
"""By the values of --precision."""
