"""The fixed positions of "Attention Is All You Need" (Vaswani et al., 2017, section 3.5). BERT learns its own."""

from __future__ import annotations

import numpy as np


def sinusoidal_positions(num_positions: int, width: int) -> np.ndarray:
    """Returns the sinusoid as a table of position embeddings.

    PE(pos, 2i) = sin(pos / 10000^(2i / width)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / width)). The dot product of two
    rows depends only on their distance.

    Args:
      num_positions: the number of rows; position 0 is the first.
      width: the number of columns; if it is odd, the last cosine is left out.

    Returns:
      float32 [num_positions, width].
    """
    pairs = np.arange((width + 1) // 2)
    angles = np.arange(num_positions)[:, None] / 10000.0 ** (2 * pairs / width)  # [num_positions, pairs]
    interleaved = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(num_positions, 2 * len(pairs))
    return interleaved[:, :width].astype(np.float32)
