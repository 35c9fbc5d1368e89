"""Whether XLA compiles the step of a run, and the shapes of its batches: decided here, before the first batch.

    program_for:  the settings of a training or evaluation, its devices and number of steps -> its `Program`
    filling_for:  the same for rows without labels -> `Filling`

Training, evaluation and prediction read the decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2.fast import compiled
from bert_tf2.placement import computes_on
from bert_tf2.training.options import OptimizerOptions, Program

SIZES = 4
"""The usual number of widths, or of row counts, of a run's batches; XLA compiles a program for each."""
# From this number of steps on, a compiled step wins back the time of the compiler. BERT-Base on an H200 needs 36 s more
# before the first step, and 15 ms less for each step. Other models were not measured.
_STEPS_WORTH_COMPILING = 2500


def program_for(
    options: OptimizerOptions,
    strategy: tf.distribute.Strategy,
    num_steps: int,
    *,
    is_fixed: bool,
    is_padded: bool = True,
    trains: bool = False,
    longest: int = 1,
) -> Program:
    """Decides how a training, or else an evaluation with `num_steps` batches, computes its batches.

    Args:
      is_fixed: whether the model computes all places of a batch. Varying shapes would be compiled again and again.
      is_padded: whether all batches have the same width in any case.
      trains: an evaluation packs rows only on one device, because several devices divide a batch by its examples.
      longest: the most tokens of a row.
    """
    may_pack = options.pack_rows and (trains or (is_fixed and strategy.num_replicas_in_sync == 1))
    sizes = SIZES if may_pack or not is_padded else 1
    is_compiled = compiles_step(strategy, options.xla, num_steps, is_fixed, sizes)
    # Batches of like length, which XLA cannot compile, have as little padding as packed rows.
    packs = may_pack and (trains or is_padded or is_compiled)
    return Program(is_compiled, packs, is_padded or packs, width_step(longest) if is_compiled else 1)


def width_step(longest: int) -> int:
    """The widths of batches of at most `longest` tokens are multiples of this number; GPUs are faster with eights."""
    return 8 * math.ceil(longest / (8 * SIZES))


def can_compile(strategy: tf.distribute.Strategy) -> bool:
    """Whether parts of a step can be compiled by XLA. A TPU's program is compiled as a whole."""
    kind = computes_on(strategy)
    if kind == "GPU" and not compiled.can_compile():
        why = "TensorFlow's CUDA is older than the GPU, or incomplete (tensorflow[and-cuda] has all of it)"
        logging.log_first_n(logging.WARNING, "XLA cannot compile for this GPU, so steps take longer: %s", 1, why)
    return kind != "TPU" and compiled.can_compile()


def compiles_step(
    strategy: tf.distribute.Strategy, xla: str, num_steps: int, is_fixed: bool = True, sizes: int = 1
) -> bool:
    """Whether XLA compiles the step of training or evaluation; warns if --xla requests it and XLA cannot.

    `xla`: the value of --xla; "auto" compiles for GPUs, if there are enough steps to win back the time of the compiler.
    `sizes`: the number of different sizes of batches. See program_for for the other arguments.
    """
    kind, is_long = computes_on(strategy), num_steps >= sizes * _STEPS_WORTH_COMPILING
    if xla == "auto":
        return kind == "GPU" and is_long and is_fixed and compiled.can_compile()
    if xla == "true" and kind == "TPU":
        logging.log_first_n(logging.WARNING, "--xla has no effect on a TPU, which always compiles", 1)
    return xla == "true" and can_compile(strategy)


class Filling(NamedTuple):
    """The sizes of the batches of a program of XLA, which is compiled again for each size."""

    rows: int  # of each batch
    longest: int  # the most tokens of a row

    def fill(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Makes all rows wider, by zeros, and adds copies of the last row."""
        length, most = batch["input_ids"].shape[1], self.longest
        found = {}
        for name, values in batch.items():
            width = values.shape[1]
            step = width_step(most) if width == length else 8 if width > 1 else 1  # the others are positions
            more = min(-width % step, most - width) if width == length else -width % step
            rows = np.pad(values, [[0, self.rows - len(values)], [0, 0]], mode="edge")
            found[name] = np.pad(rows, [[0, 0], [0, more]])
        return found


def filling_for(
    strategy: tf.distribute.Strategy, num_rows: int | None, batch_size: int, longest: int, xla: str = "auto"
) -> Filling | None:
    """The sizes of the batches of rows without labels if XLA compiles their program, else None; see compiles_step.

    `num_rows`: None or 0 if it is not known, as from a pipe; `longest`: the most tokens of a row.
    """
    is_compiled = compiles_step(strategy, xla, math.ceil((num_rows or 0) / batch_size), sizes=SIZES)
    return Filling(batch_size, longest) if is_compiled else None
