"""Attention without dropout in one kernel of cuDNN, which does not write the attention scores to memory.

XLA does not recognize attention in a program, but it knows two calls by their names: attention and its gradient. XLA's
compiler for NVIDIA GPUs makes them into kernels that read queries, keys and values block by block, as in Dao et al.,
"FlashAttention" (2022). TensorFlow has an operation for such calls, whose configuration is the JSON form of XLA's
`GpuBackendConfig`; the numbers are the same as in the programs of jax.nn.dot_product_attention (jax 0.10.2).

On an H200, the kernels gave the values and gradients of plain attention. modeling.py explains the letters of shapes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import tensorflow as tf
from absl import logging
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_custom_call_v2
from tensorflow.python.framework import config

from bert_tf2 import placement

AUTO = "plain"
"""The value that --attention=auto has; to be "fused" when evaluations and short rows have been timed on a GPU, too."""

FORWARD, BACKWARD = "__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"
# (name, operands, configuration, shapes and dtypes of the results) -> results
Call = Callable[[str, Sequence[tf.Tensor], str, Sequence[tf.TensorSpec]], Sequence[tf.Tensor]]


def call_in_xla(
    name: str, operands: Sequence[tf.Tensor], configuration: str, results: Sequence[tf.TensorSpec]
) -> Sequence[tf.Tensor]:
    """A `Call` that XLA's compiler for NVIDIA GPUs replaces by a kernel."""
    kinds = {"result_dtypes": [one.dtype for one in results], "result_shapes": [one.shape for one in results]}
    return xla_custom_call_v2(operands, name, configuration, has_side_effect=False, **kinds)


def takes(query: tf.Tensor, key: tf.Tensor) -> bool:
    """Whether `attend` can compute attention in the graph that is built now: a program of XLA with fixed shapes.

    The few queries of the last block, and rows of an odd length, are left to plain attention.
    """
    if not placement.in_program():
        return False
    if not query.shape.is_fully_defined() or query.shape != key.shape:
        return False
    _, _, length, size = key.shape
    if length % 2:
        logging.log_first_n(logging.WARNING, "Rows of %d tokens: cuDNN's attention needs an even number", 1, length)
    return length % 2 == 0 and size % 8 == 0 and size <= 128


def attend(
    query: tf.Tensor, key: tf.Tensor, mask_scores: tf.Tensor, value: tf.Tensor, call: Call = call_in_xla
) -> tf.Tensor:
    """kernels.attend without dropout, for arguments that `takes` accepts: bfloat16 or float16, H a multiple of 8.

    [B, N, F, H], [B, N, F, H], [B, 1, 1, F] or [B, 1, F, F], [B, N, F, H] -> [B, N, F, H].
    """
    batch, heads, length, _ = query.shape
    # A query has the mask of its row. cuDNN reads a score for each pair of positions, the same for all heads.
    bias = tf.cast(tf.broadcast_to(mask_scores, [batch, 1, length, length]), query.dtype)
    like_query = tf.TensorSpec(query.shape, query.dtype)
    # The logarithms of the sums of softmax, from which the gradient computes the probabilities again.
    statistics = tf.TensorSpec([batch, heads, length], tf.float32)
    workspace = tf.TensorSpec([0], tf.uint8)  # XLA sets its size

    @tf.custom_gradient
    def compute(query, key, value):
        specs = [like_query, statistics, workspace]
        context, sums, _ = call(FORWARD, [query, key, value, bias], _configuration(query, _PRODUCTS), specs)

        def gradient(upstream):
            operands = [query, key, value, sums, upstream, bias, context]
            specs = [like_query] * 3 + [workspace]
            *gradients, _ = call(BACKWARD, operands, _configuration(query, _PRODUCTS_OF_GRADIENT), specs)
            return gradients

        return context, gradient

    return compute(query, key, value)


# The dimensions over which the products sum, left and right, each 0 to 3; the first two dimensions are B and N.
_PRODUCTS = {"bmm1": (3, 3), "bmm2": (3, 2)}  # scores [F, F] of queries and keys; contexts [F, H]
_PRODUCTS_OF_GRADIENT = {
    "bmm1_grad_gemm1": (2, 2),  # of the scores' gradient and queries: the gradient of keys
    "bmm1_grad_gemm2": (3, 2),  # of the scores' gradient and keys: the gradient of queries
    "bmm2_grad_gemm1": (2, 2),  # of probabilities and the contexts' gradient: the gradient of values
    "bmm2_grad_gemm2": (3, 3),  # of the contexts' gradient and values: the gradient of probabilities
}


def _configuration(query: tf.Tensor, products: dict[str, tuple[int, int]]) -> str:
    """The JSON of a call. Numbers of 64 bits are texts there."""
    batch, heads, length, _ = query.shape
    kind = {"bfloat16": "BF16", "float16": "F16"}.get(query.dtype.name, "F32")  # F32 only in tests
    scores = {
        "element_type": kind,
        "dimensions": [str(size) for size in (batch, heads, length, length)],
        "layout": {"minor_to_major": ["3", "2", "1", "0"]},
        "is_dynamic_dimension": [False] * 4,
    }
    algorithm = {"algo_id": "0", "math_type": "TENSOR_OP_MATH", "tuning_knobs": {"17": "1", "24": "0"}}
    of_heads = {"lhs_batch_dimensions": ["0", "1"], "rhs_batch_dimensions": ["0", "1"]}
    made = {
        "algorithm": {**algorithm, "is_cudnn_frontend": True, "workspace_size": "0"},
        "fmha_scale": 1.0,  # the queries are scaled
        "intermediate_tensor_shape": scores,
        "is_flash_attention": True,
        "mask_type": "NO_MASK",  # the bias has the mask
        "force_deterministic": config.is_op_determinism_enabled(),
        "dropout_rate": 0.0,
        "max_seg_per_batch": 1,
    } | {
        f"{name}_dot_dimension_numbers": {
            "lhs_contracting_dimensions": [str(left)],
            "rhs_contracting_dimensions": [str(right)],
            **of_heads,
        }
        for name, (left, right) in products.items()
    }
    return json.dumps({"cudnn_fmha_backend_config": made})
