"""Arrays in JSON: the exact float32 values in a third of the space of decimals."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np


def pack(values: Any) -> dict[str, Any]:
    """An array of any shape as a JSON object, `{"shape": [...], "float32": base64 of little-endian bytes}`.

    The function `api` of page/app.js makes a Float32Array of it.
    """
    array = np.asarray(values)
    return {"shape": [*array.shape], "float32": base64.b64encode(array.astype("<f4").tobytes()).decode()}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """The array that `pack` packed, float32."""
    return np.frombuffer(base64.b64decode(packed["float32"]), "<f4").reshape(packed["shape"])
