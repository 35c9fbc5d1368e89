"""The positions of "Attention Is All You Need" (Vaswani et al., 2017, section 3.5), which nothing learns.

BERT learns a table of positions. With `"position_embedding_type": "sinusoidal"` in bert_config.json, a model has this
table in its place, with `"learned_from_sinusoidal"` it starts from it. docs/study.md compares them.
"""

from __future__ import annotations

import numpy as np

# The wavelengths are a geometric progression from 2 pi up to this number times 2 pi.
_LONGEST = 10000.0


def sinusoidal_positions(num_positions: int, width: int) -> np.ndarray:
    """Returns one row for each position.

        row[p, 2 i]     = sin(p / 10000^(2 i / width))
        row[p, 2 i + 1] = cos(p / 10000^(2 i / width))

    The dot product of two rows depends only on the distance of their positions, because it is a sum of
    cos((p - q) / 10000^(2 i / width)). The row k positions further is the same row, rotated in each pair of columns by
    an angle that depends on k alone.

    Args:
      num_positions: the number of rows.
      width: the number of columns; if it is odd, the last column is a sine without its cosine.

    Returns:
      float32 [num_positions, width], each number from -1 to 1.
    """
    column = np.arange(width)
    rate = _LONGEST ** (-(column - column % 2) / width)  # 2 i is the column of the sine
    angle = np.arange(num_positions)[:, np.newaxis] * rate  # [num_positions, width]
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle)).astype(np.float32)
