"""Writes a model as ONNX, for ONNX Runtime, OpenVINO and other runtimes: `export_saved_model.py --format=onnx`.

The graph takes int32 `input_ids`, `input_mask` and `segment_ids` [B, F], like serving_default of the SavedModel, and
computes the same numbers. Its operators are those of the standard, in the forms that ONNX Runtime fuses by itself: the
operators of its own domain were no faster (docs/serving.md). It computes padding, and does not check requests.

    features      sequence_output [B, F, D], mean_pooled [B, D], pooled_output [B, D] if there is a trained pooler
    classifier    probabilities [B, L]; for a regression value [B]
    squad         start_logits, end_logits [B, F]
    ner           label_ids int64 [B, F], -1 at padding, and probability [B, F]
    masked_lm     for each [MASK] positions int64 [B, M], token_ids int64 and scores [B, M, K]; -1 and 0 fill up

Letters as in `signatures`. The text of labels and tokens stands in assets/label_map.json and assets/vocab.txt, and
assets/tokenizer.json makes the inputs from text.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_tf2 import layers
from bert_tf2.config import BertConfig
from bert_tf2.exporting.folded_encoder import Encoder
from bert_tf2.support import outputs
from bert_tf2.support.errors import UserError
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.weights.labels import LabelMap

if TYPE_CHECKING:
    import onnx

FILE = "model.onnx"
INPUTS = ("input_ids", "input_mask", "segment_ids")
# Gelu is an operator since version 20, LayerNormalization since 17.
_OPSET, _IR_VERSION = 20, 9
NEEDS = f"ONNX Runtime 1.17 or later (opset {_OPSET})"

_ACTIVATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "gelu": ("Gelu", {"approximate": "tanh"}),
    "gelu_erf": ("Gelu", {}),
    "relu": ("Relu", {}),
    "tanh": ("Tanh", {}),
    "linear": ("Identity", {}),
}


class Graph:
    """An ONNX graph that grows operator by operator. Values are named by strings; arrays become weights."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._ends: list[onnx.NodeProto] = []
        self._weights: dict[int, tuple[np.ndarray, str]] = {}
        self._tensors: list[onnx.TensorProto] = []
        self._results: list[onnx.ValueInfoProto] = []

    def __call__(self, operator: str, *inputs: str | np.ndarray, **attributes: Any) -> str:
        """Adds an operator with one result; returns the name of that."""
        return self.several(operator, 1, *inputs, **attributes)[0]

    def several(self, operator: str, count: int, *inputs: str | np.ndarray, **attributes: Any) -> list[str]:
        """Adds an operator with `count` results; returns their names."""
        from onnx import helper

        names = [f"{operator}_{len(self._nodes)}" + (f"_{i}" if i else "") for i in range(count)]
        inputs = [value if isinstance(value, str) else self._weight(value) for value in inputs]
        self._nodes.append(helper.make_node(operator, inputs, names, name=names[0], **attributes))
        return names

    def _weight(self, value: np.ndarray) -> str:
        from onnx import numpy_helper

        if id(value) not in self._weights:  # a table that is used twice is stored once
            name = f"weight_{len(self._weights)}"
            self._weights[id(value)] = value, name
            self._tensors.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return self._weights[id(value)][1]

    def output(self, name: str, value: str, *sizes: str | int, integer: bool = False) -> None:
        """Makes a value an output of the graph, float32 or int64 ["batch", *sizes]."""
        from onnx import TensorProto, helper

        kind = TensorProto.INT64 if integer else TensorProto.FLOAT
        self._ends.append(helper.make_node("Identity", [value], [name]))
        self._results.append(helper.make_tensor_value_info(name, kind, ["batch", *sizes]))

    def model(self) -> onnx.ModelProto:
        """The model with the outputs so far."""
        from onnx import TensorProto, helper

        inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", "length"]) for name in INPUTS]
        graph = helper.make_graph([*self._nodes, *self._ends], "bert", inputs, self._results, self._tensors)
        opsets = [helper.make_opsetid("", _OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="bert_tf2")


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def require_packages(*names: str) -> None:
    """Raises UserError if a package that this module needs is missing."""
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise UserError(f"--format=onnx: not installed: {' and '.join(missing)}; pip install {' '.join(missing)}")


def build(
    task: str,
    model: Any,
    config: BertConfig,
    labels: LabelMap | None,
    *,
    has_pooler: bool,
    mask_id: int,
    top_k: int,
    num_words: int,
) -> onnx.ModelProto:
    """The graph of a task, one of options.TASKS; see the head of this file.

    `model` is one of `heads` with its weights, for "features" a BertModel; `mask_id` and `top_k` are for "masked_lm".
    """
    graph = Graph()
    encoder = Encoder(model if task == "features" else model.bert)
    word_table = encoder.word_embeddings.numpy()
    reads = masks = None
    if task == "classifier":
        size = graph("Concat", graph("Shape", "input_ids", end=1), integers(1, 1), axis=0)
        reads = graph("Expand", np.int64(0), size)  # [CLS] of each row
    elif task == "masked_lm":
        *masks, positions = _find_masks(graph, mask_id)
        reads = graph("Unsqueeze", graph("Max", positions, np.int64(0)), integers(2))
    states = _encode(graph, encoder, config, word_table, reads)
    real = graph("Cast", "input_mask", to=1)  # float32 [B, F]
    if task == "features":
        width = config.hidden_size
        sequence = graph("Mul", states, graph("Unsqueeze", real, integers(2)))
        count = graph("ReduceSum", real, integers(1), keepdims=1)
        graph.output("sequence_output", sequence, "length", width)
        graph.output("mean_pooled", graph("Div", graph("ReduceSum", sequence, integers(1), keepdims=0), count), width)
        if has_pooler:
            graph.output("pooled_output", _pool(graph, encoder, states), width)
    elif task == "classifier":
        head = model.output_layer
        logits = _class_scores(graph, _pool(graph, encoder, states), head.output_weights.numpy(), head)
        if labels.regression:
            graph.output("value", graph("Squeeze", logits, integers(1)))
        else:
            found = graph("Sigmoid", logits) if labels.multi_label else graph("Softmax", logits, axis=-1)
            graph.output("probabilities", found, labels.num_labels)
    elif task == "squad":
        logits = _token_scores(graph, states, model.output_layer)
        is_token = graph("Cast", graph("Unsqueeze", "input_mask", integers(2)), to=9)
        logits = graph("Where", is_token, logits, np.float32(layers.MASKED_SCORE))
        start, end = graph.several("Split", 2, logits, axis=2, num_outputs=2)
        graph.output("start_logits", graph("Squeeze", start, integers(2)), "length")
        graph.output("end_logits", graph("Squeeze", end, integers(2)), "length")
    elif task == "ner":
        probabilities = graph("Softmax", _token_scores(graph, states, model.output_layer), axis=-1)
        is_token = graph("Cast", "input_mask", to=9)
        best = graph("ArgMax", probabilities, axis=2, keepdims=0)
        graph.output("label_ids", graph("Where", is_token, best, np.int64(-1)), "length", integer=True)
        highest = graph("ReduceMax", probabilities, integers(2), keepdims=0)
        graph.output("probability", graph("Mul", highest, real), "length")
    else:
        _fill_masks(graph, states, model.masked_lm, config, word_table, masks, top_k, num_words)
    return graph.model()


def _encode(graph: Graph, encoder: Encoder, config: BertConfig, word_table: np.ndarray, reads: str | None) -> str:
    """[B, F] -> [B, F, D]; with the positions `reads`, [B, P, 1], only there: [B, P, D]. See folded_encoder."""
    states = graph("Gather", word_table, "input_ids")
    states = graph("Add", states, graph("Gather", encoder.token_type_embeddings.numpy(), "segment_ids"))
    length = graph("Shape", "input_ids", start=1)
    rows = graph("Slice", encoder.position_embeddings.numpy(), integers(0), length, integers(0))
    states = graph("Add", states, rows)
    states = _norm(graph, encoder.norm, states)
    masked = graph("Sub", np.float32(1.0), graph("Cast", "input_mask", to=1))
    mask_scores = graph("Unsqueeze", graph("Mul", masked, np.float32(layers.MASKED_SCORE)), integers(1, 2))
    split = integers(0, 0, config.num_attention_heads, config.hidden_size // config.num_attention_heads)
    merged = integers(0, 0, config.hidden_size)
    for block in encoder.blocks:
        parts = graph.several("Split", 3, _dense(graph, block.query_key_value, states), axis=2, num_outputs=3)
        if reads and block is encoder.blocks[-1]:
            parts[0], states = (graph("GatherND", values, reads, batch_dims=1) for values in (parts[0], states))
        orders = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))  # [B, N, F, H]; the key as [B, N, H, F]
        query, key, value = (
            graph("Transpose", graph("Reshape", part, split), perm=order)
            for part, order in zip(parts, orders, strict=True)
        )
        scores = graph("Add", graph("MatMul", query, key), mask_scores)  # the query's kernel holds 1 / sqrt(H)
        context = graph("MatMul", graph("Softmax", scores, axis=-1), value)
        context = graph("Reshape", graph("Transpose", context, perm=(0, 2, 1, 3)), merged)
        branch = _dense(graph, block.attention_output, context)
        states = _norm(graph, block.attention_norm, graph("Add", branch, states))
        branch = _activate(graph, config, _dense(graph, block.intermediate, states))
        branch = _dense(graph, block.output_dense, branch)
        states = _norm(graph, block.output_norm, graph("Add", branch, states))
    return states


def _dense(graph: Graph, layer: Any, x: str) -> str:
    kernel, bias = (np.asarray(value) for value in (layer.kernel, layer.bias))
    return graph("Add", graph("MatMul", x, kernel), bias)


def _activate(graph: Graph, config: BertConfig, x: str) -> str:
    operator, settings = _ACTIVATIONS[config.hidden_act.lower()]
    return graph(operator, x, **settings)


def _norm(graph: Graph, layer: Any, x: str) -> str:
    gamma, beta = (np.asarray(value) for value in (layer.gamma, layer.beta))
    return graph("LayerNormalization", x, gamma, beta, axis=-1, epsilon=layer.epsilon)


def _pool(graph: Graph, encoder: Encoder, states: str) -> str:
    """[B, F, D] -> [B, D]."""
    first = graph("Gather", states, np.int64(0), axis=1)
    return graph("Tanh", _dense(graph, encoder.pooler, first))


def _class_scores(graph: Graph, states: str, table: np.ndarray, head: Any) -> str:
    """[M, D], and a table [L, D] -> [M, L]; the bias is the head's."""
    return graph("Gemm", states, table, head.output_bias.numpy(), transB=1)


def _token_scores(graph: Graph, states: str, head: layers.OutputLayer) -> str:
    """[B, F, D] -> [B, F, L]."""
    kernel = np.ascontiguousarray(head.output_weights.numpy().T)
    return graph("Add", graph("MatMul", states, kernel), head.output_bias.numpy())


def _find_masks(graph: Graph, mask_id: int) -> tuple[str, str, str]:
    """Where the [MASK] of a batch are, P in all and M in a row at most.

    Returns:
      targets: int64 [P, 2], the row of each, and its number there.
      size: int64 [2], B and M.
      positions: int64 [B, M], -1 where a row has fewer; an output of masked_lm.
    """
    is_mask = graph("Equal", graph("Mul", "input_ids", "input_mask"), np.int32(mask_id))
    places = graph("Transpose", graph("NonZero", is_mask), perm=(1, 0))  # [P, 2]
    numbers = graph("CumSum", graph("Cast", is_mask, to=7), np.int64(1))  # from 1 on, [B, F]
    counts = graph("ReduceMax", numbers, integers(1), keepdims=0)  # [B]
    most = graph("Unsqueeze", graph("ReduceMax", counts, keepdims=0), integers(0))
    row, position = graph.several("Split", 2, places, axis=1, num_outputs=2)  # [P, 1] each
    column = graph("Sub", graph("Unsqueeze", graph("GatherND", numbers, places), integers(1)), np.int64(1))
    targets = graph("Concat", row, column, axis=1)
    size = graph("Concat", graph("Shape", "input_ids", end=1), most, axis=0)
    nowhere = graph("Expand", np.int64(-1), size)
    positions = graph("ScatterND", nowhere, targets, graph("Squeeze", position, integers(1)))
    graph.output("positions", positions, "masks", integer=True)
    return targets, size, positions


def _fill_masks(
    graph: Graph,
    states: str,
    head: Any,
    config: BertConfig,
    word_table: np.ndarray,
    masks: Sequence[str],
    top_k: int,
    num_words: int,
) -> None:
    """The other outputs of masked_lm, from the states [B, M, D] and the first results of `_find_masks`."""
    targets, size = masks
    states = graph("GatherND", states, targets)  # [P, D]
    states = _norm(graph, head.layer_norm, _activate(graph, config, _dense(graph, head.transform, states)))
    logits = _class_scores(graph, states, word_table, head)  # [P, V]
    if num_words < len(word_table):
        logits = graph("Slice", logits, integers(0), integers(num_words), integers(1))
    best, ids = graph.several("TopK", 2, logits, integers(top_k), axis=1)
    scores = graph("Exp", graph("Sub", best, graph("ReduceLogSumExp", logits, integers(1), keepdims=1)))
    of_words = graph("Concat", size, integers(top_k), axis=0)
    ids = graph("ScatterND", graph("Expand", np.int64(-1), of_words), targets, ids)
    graph.output("token_ids", ids, "masks", top_k, integer=True)
    scores = graph("ScatterND", graph("Expand", np.float32(0), of_words), targets, scores)
    graph.output("scores", scores, "masks", top_k)


def tokenizer_file(tokenizer: FullTokenizer, max_seq_length: int, keep_masks: bool) -> str:
    """The content of a `tokenizer.json`, with which the library `tokenizers` tokenizes in Rust, Python, JavaScript.

    Its tables of Unicode are older than Python's, and it keeps characters for private use, which BERT removes; the
    tokens of all other text are the same. Of a pair that is cut to an odd number of tokens, it keeps one more of the
    second text, and run_classifier.py of the first.

    `keep_masks`: whether a [MASK] in a text is the token. [SEP] and the like are ordinary characters, as in Python.
    """
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, processors

    basic, words = tokenizer.basic_tokenizer, tokenizer.wordpiece_tokenizer
    model = models.WordPiece(
        dict(tokenizer.vocab), unk_token="[UNK]", max_input_chars_per_word=words.max_input_chars_per_word
    )
    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=basic.tokenize_chinese_chars,
        strip_accents=basic.strip_accents,
        lowercase=basic.do_lower_case,
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [(name, tokenizer.vocab[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", special)
    made.enable_truncation(max_seq_length)
    kept = {*tokenizer.never_split, *(["[MASK]"] if keep_masks else [])}
    made.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in sorted(kept)])
    return made.to_str(pretty=True)


def quantize(model: bytes) -> bytes:
    """The model with 8-bit weights; ONNX Runtime rounds the states to 8 bits as it computes.

    Each column of a kernel has a scale of its own. Weights are unsigned: processors without VNNI add products of
    signed and unsigned bytes in 16 bits, and cut such sums off. Look-ups stay as they are: only products take time.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder = outputs.temporary_folder("bert_tf2_onnx_")
    exact, rounded = (os.path.join(folder, name) for name in ("exact.onnx", "int8.onnx"))
    root = logging.getLogger()
    level = root.level
    try:
        with open(exact, "wb") as stream:
            stream.write(model)
        root.setLevel(logging.ERROR)  # it would advise to infer shapes before
        quantize_dynamic(exact, rounded, ["MatMul"], per_channel=True, weight_type=QuantType.QUInt8)
        with open(rounded, "rb") as stream:
            return stream.read()
    finally:
        root.setLevel(level)
        shutil.rmtree(folder, ignore_errors=True)
