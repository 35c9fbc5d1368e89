"""What --precision means, in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Precision:
    """A type of the computations. Variables, statistics and losses are float32 in each."""

    policy: str  # the Keras dtype policy of the model
    exported: str  # the type of a SavedModel that a training writes; there are two, and float16 is for training
    # whether products on GPUs that have it may round float32 to TF32. With 16-bit types, float32 products remain only
    # in the heads, whose inputs have fewer bits anyway
    allows_tf32: bool = True
    scales_loss: bool = False  # whether small gradients would be 0 without a loss scale
    oldest_gpu: tuple[int, int] = (0, 0)  # the compute capability of the first GPUs that have units for it
    # why it may gain nothing, by the kind of devices; on GPUs, of those without these units
    doubts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def doubt(self, kind: str, capabilities: Sequence[tuple[int, int]] = ()) -> str | None:
        """A sentence if devices of a kind (CPU, GPU, TPU; GPUs with these capabilities) may gain nothing by it."""
        if kind == "GPU" and min(capabilities, default=self.oldest_gpu) >= self.oldest_gpu:
            return None
        return self.doubts.get(kind)


_AMPERE, _VOLTA = (8, 0), (7, 0)
_NO_TF32 = "only NVIDIA GPUs from Ampere on have TF32; this computes in float32"
# Of two processors with avx512_bf16, one was half as fast in it; those with AMX gain.
_OF_CPUS = "many processors are slower with it than in float32; compare the speeds"

PRECISIONS = {
    "float32": Precision("float32", "float32", allows_tf32=False),
    "tf32": Precision("float32", "float32", oldest_gpu=_AMPERE, doubts=dict.fromkeys(("CPU", "GPU", "TPU"), _NO_TF32)),
    "bfloat16": Precision(
        "mixed_bfloat16",
        "bfloat16",
        oldest_gpu=_AMPERE,
        doubts={"CPU": _OF_CPUS, "GPU": "this GPU has no units for it, so it is slower than float32; try float16"},
    ),
    "float16": Precision(
        "mixed_float16",
        "float32",
        scales_loss=True,
        oldest_gpu=_VOLTA,
        doubts={
            "CPU": _OF_CPUS,
            "GPU": "this GPU has no units for its products, so it saves memory at most",
            "TPU": "a TPU computes in bfloat16; give --precision=bfloat16",
        },
    ),
}
"""By the values of --precision."""
