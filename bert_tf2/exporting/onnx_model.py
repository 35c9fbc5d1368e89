"""Writes a model as ONNX, for ONNX Runtime, OpenVINO and other runtimes: `export_saved_model.py --format=onnx`.

The graph takes int32 `input_ids`, `input_mask` and `segment_ids` [B, F], like serving_default of a SavedModel, or with
--onnx_names=transformers the names and the type of that library, and computes the same numbers. Its operators are
standard operators, in the forms that ONNX Runtime fuses: the operators of ONNX Runtime's own domain were no faster
(docs/serving.md). The graph computes padding, and does not check requests.

    features      sequence_output [B, F, D], mean_pooled [B, D], pooled_output [B, D] if there is a trained pooler,
                  vector [B, D] if the weights are a folder of sentence-transformers
    classifier    probabilities [B, L]; for a regression value [B]
    squad         start_logits, end_logits [B, F]
    ner           label_ids int64 [B, F], -1 at padding, and probability [B, F]
    masked_lm     positions of [MASK] int64 [B, M], token_ids int64 and scores [B, M, K]; -1 and 0 are padding

See `signatures` for the letters. The text of labels and tokens is in assets/label_map.json and assets/vocab.txt, and
assets/tokenizer.json makes the inputs from text.

This module needs the packages onnx and tokenizers.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import tokenizers
from onnx import TensorProto, helper, numpy_helper
from tokenizers import models, normalizers, pre_tokenizers, processors

from bert_tf2 import layers
from bert_tf2.config import BertConfig
from bert_tf2.data.rows import INPUTS
from bert_tf2.exporting.folded_encoder import Encoder
from bert_tf2.exporting.signatures import Setting
from bert_tf2.tokenization import FullTokenizer

FILE = "model.onnx"
_OF_TRANSFORMERS = ("input_ids", "attention_mask", "token_type_ids")
_NAMES = {"reference": (INPUTS, np.int32), "transformers": (_OF_TRANSFORMERS, np.int64)}
"""Value of --onnx_names -> (the names of token ids, mask and segments, their type)."""
# The version of the operators: Gelu needs 20, LayerNormalization 17; ONNX Runtime supports version 20 since 1.17.
_OPSET, _IR_VERSION = 20, 9

_ACTIVATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "gelu": ("Gelu", {"approximate": "tanh"}),
    "gelu_erf": ("Gelu", {}),
    "relu": ("Relu", {}),
    "tanh": ("Tanh", {}),
    "linear": ("Identity", {}),
}


class Graph:
    """An ONNX graph that grows operator by operator: `graph.Add(a, b)` adds an Add and returns the name of its result.

    An operator with several results returns a list of names. Inputs are names of results; arrays, variables and numbers
    become weights, Python's integers as int64 and its floats as float32.

    Attributes:
      ids, mask, segments: the names of the inputs.
      integer: the numpy type of the inputs.
    """

    def __init__(self, config: BertConfig, names: str = "reference"):
        """`names`: a key of _NAMES."""
        self._inputs, self.integer = _NAMES[names]
        self.ids, self.mask, self.segments = self._inputs
        self._config = config
        self._nodes: list[onnx.NodeProto] = []
        self._ends: list[onnx.NodeProto] = []
        self._weights: dict[int, tuple[Any, TensorProto]] = {}
        self._results: list[onnx.ValueInfoProto] = []

    def __getattr__(self, operator: str) -> Callable[..., Any]:
        return functools.partial(self._add, operator)

    def _add(self, operator: str, *inputs: Any, **attributes: Any) -> str | list[str]:
        count = 2 if operator == "TopK" else attributes.get("num_outputs", 1)
        names = [f"{operator}_{len(self._nodes)}" + (f"_{i}" if i else "") for i in range(count)]
        inputs = [value if isinstance(value, str) else self._weight(value) for value in inputs]
        self._nodes.append(helper.make_node(operator, inputs, names, name=names[0], **attributes))
        return names if count > 1 else names[0]

    def _weight(self, value: Any) -> str:
        if id(value) not in self._weights:  # stores a table that is used twice only once
            kind = {float: np.float32, int: np.int64, list: np.int64}.get(type(value))
            array = np.asarray(value, kind, order="C")
            self._weights[id(value)] = value, numpy_helper.from_array(array, f"weight_{len(self._weights)}")
        return self._weights[id(value)][1].name

    def dense(self, layer: Any, x: str) -> str:
        return self.Add(self.MatMul(x, layer.kernel), layer.bias)

    def norm(self, layer: Any, x: str) -> str:
        return self.LayerNormalization(x, layer.gamma, layer.beta, axis=-1, epsilon=layer.epsilon)

    def activate(self, x: str) -> str:
        operator, attributes = _ACTIVATIONS[self._config.hidden_act.lower()]
        return self._add(operator, x, **attributes)

    def output(self, name: str, value: str, *sizes: str | int, kind: int = TensorProto.FLOAT) -> None:
        """Makes a value an output of the graph, ["batch", *sizes]."""
        self._ends.append(helper.make_node("Identity", [value], [name]))
        self._results.append(helper.make_tensor_value_info(name, kind, ["batch", *sizes]))

    def model(self) -> onnx.ModelProto:
        """The model with the outputs so far."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.integer))
        inputs = [helper.make_tensor_value_info(name, kind, ["batch", "length"]) for name in self._inputs]
        weights = [tensor for _, tensor in self._weights.values()]
        graph = helper.make_graph([*self._nodes, *self._ends], "bert", inputs, self._results, weights)
        opsets = [helper.make_opsetid("", _OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="bert_tf2")


def build(setting: Setting) -> onnx.ModelProto:
    """The graph of a task; see the docstring of this module."""
    task, config, model, labels = setting.options.task, setting.config, setting.model, setting.labels
    graph = Graph(config, setting.options.onnx_names)
    encoder = Encoder(model if task == "features" else model.bert)
    if task == "classifier":
        size = graph.Concat(graph.Shape(graph.ids, end=1), [1, 1], axis=0)
        states = _encode(graph, encoder, config, graph.Expand(0, size))  # [CLS] of each row
        head, first = model.output_layer, _pool(graph, encoder, states)
        logits = graph.Gemm(first, head.output_weights, head.output_bias, transB=1)
        if labels.regression:
            value = graph.Squeeze(logits, [1])
            graph.output("value", getattr(graph, labels.activation.title())(value) if labels.activation else value)
        else:
            found = graph.Sigmoid(logits) if labels.multi_label else graph.Softmax(logits, axis=-1)
            graph.output("probabilities", found, labels.num_labels)
        return graph.model()
    if task == "masked_lm":
        _fill_masks(graph, encoder, setting)
        return graph.model()
    states = _encode(graph, encoder, config)
    real, is_token = graph.Cast(graph.mask, to=TensorProto.FLOAT), graph.Cast(graph.mask, to=TensorProto.BOOL)
    if task == "features":
        sequence = graph.Mul(states, graph.Unsqueeze(real, [2]))
        mean = graph.Div(graph.ReduceSum(sequence, [1], keepdims=0), graph.ReduceSum(real, [1], keepdims=1))
        graph.output("sequence_output", sequence, "length", config.hidden_size)
        graph.output("mean_pooled", mean, config.hidden_size)
        if setting.has_pooler:
            graph.output("pooled_output", _pool(graph, encoder, states), config.hidden_size)
        if how := setting.vectors:
            pooled = mean if how.pooling == "mean" else graph.Gather(states, 0, axis=1)
            if how.pooling == "max":
                of_tokens = graph.Where(graph.Unsqueeze(is_token, [2]), states, float(np.finfo(np.float32).min))
                pooled = graph.ReduceMax(of_tokens, [1], keepdims=0)
            length = graph.Max(graph.ReduceL2(pooled, [1], keepdims=1), 1e-12)
            graph.output("vector", graph.Div(pooled, length) if how.normalize else pooled, config.hidden_size)
        return graph.model()
    head = model.output_layer
    logits = graph.Add(graph.MatMul(states, head.output_weights.numpy().T), head.output_bias)  # [B, F, L]
    if task == "squad":
        logits = graph.Where(graph.Unsqueeze(is_token, [2]), logits, layers.MASKED_SCORE)
        start, end = graph.Split(logits, axis=2, num_outputs=2)
        graph.output("start_logits", graph.Squeeze(start, [2]), "length")
        graph.output("end_logits", graph.Squeeze(end, [2]), "length")
    else:
        probabilities = graph.Softmax(logits, axis=-1)
        best = graph.Where(is_token, graph.ArgMax(probabilities, axis=2, keepdims=0), -1)
        graph.output("label_ids", best, "length", kind=TensorProto.INT64)
        graph.output("probability", graph.Mul(graph.ReduceMax(probabilities, [2], keepdims=0), real), "length")
    return graph.model()


def _encode(graph: Graph, encoder: Encoder, config: BertConfig, reads: str | None = None) -> str:
    """[B, F] -> [B, F, D], or [B, P, D] at the positions `reads` [B, P, 1]. See folded_encoder."""
    states = graph.Gather(encoder.word_embeddings, graph.ids)
    states = graph.Add(states, graph.Gather(encoder.token_type_embeddings, graph.segments))
    states = graph.Add(states, graph.Slice(encoder.position_embeddings, [0], graph.Shape(graph.ids, start=1), [0]))
    states = graph.norm(encoder.norm, states)
    masked = graph.Sub(1.0, graph.Cast(graph.mask, to=TensorProto.FLOAT))
    mask_scores = graph.Unsqueeze(graph.Mul(masked, layers.MASKED_SCORE), [1, 2])
    split = [0, 0, config.num_attention_heads, config.attention_head_size]
    orders = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))  # [B, N, F, H]; the key as [B, N, H, F]
    for block in encoder.blocks:
        parts = graph.Split(graph.dense(block.query_key_value, states), axis=2, num_outputs=3)
        if reads and block is encoder.blocks[-1]:
            parts[0], states = (graph.GatherND(values, reads, batch_dims=1) for values in (parts[0], states))
        query, key, value = (
            graph.Transpose(graph.Reshape(part, split), perm=order) for part, order in zip(parts, orders, strict=True)
        )
        scores = graph.Add(graph.MatMul(query, key), mask_scores)  # the query's kernel holds 1 / sqrt(H)
        context = graph.Transpose(graph.MatMul(graph.Softmax(scores, axis=-1), value), perm=(0, 2, 1, 3))
        branch = graph.dense(block.attention_output, graph.Reshape(context, [0, 0, config.hidden_size]))
        states = graph.norm(block.attention_norm, graph.Add(branch, states))
        branch = graph.dense(block.output_dense, graph.activate(graph.dense(block.intermediate, states)))
        states = graph.norm(block.output_norm, graph.Add(branch, states))
    return states


def _pool(graph: Graph, encoder: Encoder, states: str) -> str:
    """[B, F, D] -> [B, D]."""
    return graph.Tanh(graph.dense(encoder.pooler, graph.Gather(states, 0, axis=1)))


def _fill_masks(graph: Graph, encoder: Encoder, setting: Setting) -> None:
    """The outputs of masked_lm, for the P [MASK] of a batch, at most M in a row."""
    head, tokenizer, top_k = setting.model.masked_lm, setting.tokenizer, setting.options.top_k
    is_mask = graph.Equal(graph.Mul(graph.ids, graph.mask), graph.integer(tokenizer.vocab["[MASK]"]))
    places = graph.Transpose(graph.NonZero(is_mask), perm=(1, 0))  # [P, 2]
    numbers = graph.CumSum(graph.Cast(is_mask, to=TensorProto.INT64), 1)  # from 1 on, [B, F]
    most = graph.ReduceMax(graph.ReduceMax(numbers, [1], keepdims=0), keepdims=0)
    row, position = graph.Split(places, axis=1, num_outputs=2)  # [P, 1] each
    column = graph.Sub(graph.Unsqueeze(graph.GatherND(numbers, places), [1]), 1)
    targets = graph.Concat(row, column, axis=1)  # [P, 2], the row of each [MASK], and its number in the row
    size = graph.Concat(graph.Shape(graph.ids, end=1), graph.Unsqueeze(most, [0]), axis=0)  # B and M
    positions = graph.ScatterND(graph.Expand(-1, size), targets, graph.Squeeze(position, [1]))  # -1 as padding
    graph.output("positions", positions, "masks", kind=TensorProto.INT64)
    states = _encode(graph, encoder, setting.config, graph.Unsqueeze(graph.Max(positions, 0), [2]))
    states = graph.activate(graph.dense(head.transform, graph.GatherND(states, targets)))  # [P, D]
    logits = graph.Gemm(graph.norm(head.layer_norm, states), encoder.word_embeddings, head.output_bias, transB=1)
    logits = graph.Slice(logits, [0], [len(tokenizer.entries)], [1])  # the table may have more rows than the vocabulary
    best, ids = graph.TopK(logits, [top_k], axis=1)
    scores = graph.Exp(graph.Sub(best, graph.ReduceLogSumExp(logits, [1], keepdims=1)))
    of_words = graph.Concat(size, [top_k], axis=0)
    ids = graph.ScatterND(graph.Expand(-1, of_words), targets, ids)
    graph.output("token_ids", ids, "masks", top_k, kind=TensorProto.INT64)
    graph.output("scores", graph.ScatterND(graph.Expand(0.0, of_words), targets, scores), "masks", top_k)


def tokenizer_file(tokenizer: FullTokenizer, max_seq_length: int, keep_masks: bool) -> str:
    """The content of a `tokenizer.json` for the library `tokenizers`.

    The library's tables of Unicode are older than Python's, and it keeps characters for private use; the tokens of all
    other text are the same. If a pair is cut to an odd number of tokens, the library keeps one more token of the second
    text, and run_classifier.py one more of the first text. `keep_masks`: whether a [MASK] in a text is the token.
    """
    basic, longest = tokenizer.basic_tokenizer, tokenizer.wordpiece_tokenizer.max_input_chars_per_word
    pieces = models.WordPiece(dict(tokenizer.vocab), unk_token="[UNK]", max_input_chars_per_word=longest)
    made = tokenizers.Tokenizer(pieces)
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


def quantize(model: onnx.ModelProto) -> bytes:
    """The file of the model with 8-bit weights; ONNX Runtime rounds the states to 8 bits as it computes.

    Each column of a kernel has its own scale. Weights have 7 bits, because processors without VNNI add two products of
    a weight and a state in 16 bits and saturate larger sums. Embedding tables are not quantized, because only products
    take time.
    """
    from onnxruntime.quantization import quantize_dynamic

    prepared, made = onnx.ModelProto(), onnx.ModelProto()
    prepared.CopyFrom(model)
    # This property suppresses ONNX Runtime's advice to infer shapes, which would add a handler to the root logger.
    helper.set_model_props(prepared, {"onnx.quant.pre_process": "onnxruntime.quant"})
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, FILE)
        quantize_dynamic(prepared, path, ["MatMul"], per_channel=True, reduce_range=True)
        with open(path, "rb") as stream:
            made.ParseFromString(stream.read())
    del made.metadata_props[:]
    return made.SerializeToString()
