"""The computation of an exported model by task: from the checked inputs of a signature to its named outputs.

    serving_default     input_ids, input_mask, segment_ids     int32 [B, F]
    serving_ids         input_ids                              the mask is 0 at [PAD] and else 1, segments are 0
    serving_text        text_a, or question and context        string [B]
    serving_text_pair   text_a, text_b                         an empty text_b is ignored

The first axis of every output is the batch. Rows of unequal lengths are padded with "", -1 or 0 to one size, so that a
server can combine requests and split their outputs.

See modeling.py for the letters; also L labels, W words of a text, M masks, K predictions for each mask.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from bert_tf2.config import BertConfig
from bert_tf2.data.records import MOST_TOKENS
from bert_tf2.data.rows import INPUTS
from bert_tf2.exporting.folded_encoder import Encoder
from bert_tf2.exporting.graph_tokenization import GraphTokenizer, Inputs, Pieces
from bert_tf2.exporting.options import ExportOptions
from bert_tf2.exporting.request_checks import Rows, checked_rows, checked_texts, require_none
from bert_tf2.heads import pooled_states
from bert_tf2.long_texts import Windows, few_at_a_time
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.weights.sentence_vectors import SentenceVectors
from bert_tf2.weights.task_file import THRESHOLD, LabelMap

Outputs = dict[str, tf.Tensor]
# The maximum number of windows per text; without it, a request of a megabyte would keep a server busy for minutes.
MAX_WINDOWS = 64


@dataclasses.dataclass(frozen=True)
class Setting:
    """The settings and the model of an export, for all tasks and formats."""

    options: ExportOptions  # texts are truncated to its max_seq_length
    config: BertConfig
    tokenizer: FullTokenizer
    graph: GraphTokenizer | None = None  # the tokenizer for signatures that take text; None if there are no such
    model: Any = None  # a model of `heads` with its weights; a BertModel for the task "features"
    labels: LabelMap | None = None
    has_pooler: bool = False  # whether the weights have a trained pooler
    vectors: SentenceVectors | None = None  # of a folder of sentence-transformers


class ExportedTask(tf.Module):
    """A model with its signatures, which are also methods of the object that `tf.saved_model.load` returns.

    That object is callable, with texts if the model takes texts; `serve` is the same function under Keras' name.
    """

    stated: tuple[str, ...] = ()  # options that model_info.json states
    texts: tuple[str, ...] = ("text_a",)  # the inputs of serving_text
    pairs = False  # whether there is a signature serving_text_pair
    reads_some = False  # whether `encode` gets the positions that are read

    def __init__(self, setting: Setting):
        super().__init__()
        self.setting, model = setting, setting.model
        # The attribute `encoder` makes the variables of the encoder part of the saved model.
        self.encoder = Encoder(getattr(model, "bert", model), setting.options.precision)
        if head := getattr(model, "output_layer", None) or getattr(model, "masked_lm", None):
            self.head = head.__call__  # not the layer itself, because much of Keras would be saved with it
            self._variables = [variable.value for variable in head.weights]
        # One function for all signatures: the model then has four small graphs and a single large graph.
        specs = [tf.TensorSpec([None, None], tf.int32)] * (3 + self.reads_some)
        self._encode = tf.function(self.encoder.__call__, input_signature=specs, autograph=False)

    def signatures(self, own: Sequence[tf.TensorSpec] = ()) -> dict[str, Callable]:
        """Returns name -> function to save; each function also becomes a method. `own`: additional inputs of each."""
        inputs = {"serving_default": INPUTS, "serving_ids": INPUTS[:1]}
        if self.setting.graph:
            inputs["serving_text"] = self.texts
            if self.pairs and self.setting.config.type_vocab_size > 1:  # else a model cannot distinguish both texts
                inputs["serving_text_pair"] = ("text_a", "text_b")
        found = {}
        for name, of in inputs.items():
            is_ids = of[0] in INPUTS
            shape, dtype = ([None, None], tf.int32) if is_ids else ([None], tf.string)
            specs = [*(tf.TensorSpec(shape, dtype, each) for each in of), *own]
            found[name] = _function_of(self._from_ids if is_ids else self.from_texts, specs)
            setattr(self, name, _call_with_one_argument(found[name]))
        self.serve = self.__call__ = getattr(self, "serving_text" if "serving_text" in found else "serving_default")
        return found

    def _from_ids(self, **inputs: tf.Tensor) -> Outputs:
        return self.from_rows(checked_rows(self.setting.config, self.setting.tokenizer.vocab, **inputs))

    def from_rows(self, rows: Rows) -> Outputs:
        raise NotImplementedError

    def from_texts(self, **texts: tf.Tensor) -> Outputs:
        return self.from_rows(self.read(texts))

    def encode(self, rows: Rows | Inputs, *reads: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns sequence_output float32 [B, F, D], pooled_output [B, D]; see Encoder for `reads`."""
        return self._encode(rows.input_ids, rows.input_mask, rows.segment_ids, *reads)

    def tokenize(self, texts: Mapping[str, tf.Tensor]) -> dict[str, Pieces]:
        """Returns the pieces of checked texts; a blank text has no pieces."""
        return {name: self.setting.graph.tokenize(text, name) for name, text in texts.items()}

    def read(self, texts: Mapping[str, tf.Tensor]) -> Inputs:
        return self.combine(self.tokenize(checked_texts(texts)))

    def combine(self, pieces: Mapping[str, Pieces]) -> Inputs:
        """Returns the encoder's inputs for a text, or a pair whose second text may be empty, cut to max_seq_length."""
        length = self.setting.options.max_seq_length
        return self.setting.graph.combine(pieces["text_a"], pieces.get("text_b"), length)


def _function_of(function: Callable, specs: Sequence[tf.TensorSpec]) -> Callable:
    """A `tf.function` whose inputs have the names of `specs`."""
    names = [spec.name for spec in specs]
    return tf.function(
        lambda *inputs: function(**dict(zip(names, inputs, strict=True))), input_signature=specs, autograph=False
    )


def _call_with_one_argument(function: Callable) -> Callable:
    """A signature as Keras and TF-Hub call it: with a dictionary of its inputs, or with its single input."""
    specs = {spec.name: spec for spec in function.input_signature}
    if len(specs) == 1:
        return tf.function(lambda given: function(given), input_signature=[*specs.values()], autograph=False)
    return tf.function(
        lambda given: function(*(given[name] for name in specs)), input_signature=[specs], autograph=False
    )


class Features(ExportedTask):
    """sequence_output [B, F, D], pooled_output [B, D] if there is a trained pooler, mean_pooled [B, D] over all tokens.

    If the weights are a folder of sentence-transformers, also vector [B, D], as its files state. The outputs for texts
    also have tokens, string [B, F].
    """

    pairs = True

    def __init__(self, setting: Setting):
        super().__init__(setting)
        tokens = setting.tokenizer.entries  # the model may have more ids
        self._tokens = tf.constant([*tokens, *[""] * (setting.config.vocab_size - len(tokens))])

    def from_rows(self, rows: Rows | Inputs) -> Outputs:
        sequence, pooled = self.encode(rows)
        count = tf.reduce_sum(tf.cast(rows.input_mask, tf.float32), axis=1, keepdims=True)
        outputs = {"sequence_output": sequence, "mean_pooled": tf.reduce_sum(sequence, axis=1) / count}
        if how := self.setting.vectors:
            outputs["vector"] = pooled_states(sequence, rows.input_mask, how.pooling, how.normalize)
        return {**outputs, "pooled_output": pooled} if self.setting.has_pooler else outputs

    def from_texts(self, **texts: tf.Tensor) -> Outputs:
        inputs = self.read(texts)
        tokens = tf.where(inputs.input_mask > 0, tf.gather(self._tokens, inputs.input_ids), "")
        return {**self.from_rows(inputs), "tokens": tokens}


def require_few_windows(counts: tf.Tensor) -> tf.Operation:
    too_long = f"row {{}} takes {{}} windows of the model; {MAX_WINDOWS} are allowed: ask about parts of its text"
    return require_none(counts > MAX_WINDOWS, too_long, counts)


class Classifier(ExportedTask):
    """probabilities [B, L] and label, string [B]; for a regression (without labels) value [B].

    A multi-label model has probabilities [B, L] and labels, string [B, L]: the predicted labels, then "" as padding.
    With a `stride`, long texts are read in windows, and their probabilities are pooled; see `long_texts`.
    """

    stated = ("stride", "pooling")
    pairs = True
    reads_some = True

    def __init__(self, setting: Setting):
        super().__init__(setting)
        self._labels = None if setting.labels.regression else tf.constant([*setting.labels.labels])
        self._several = setting.labels.multi_label

    def from_rows(self, rows: Rows | Inputs) -> Outputs:
        return self._outputs(self._logits(rows._asdict()))

    def from_texts(self, **texts: tf.Tensor) -> Outputs:
        model = self.setting.model
        if model.windows is None:
            return super().from_texts(**texts)
        pieces = self.tokenize(checked_texts(texts))
        whole = self.setting.graph.combine(pieces["text_a"], pieces.get("text_b"), MOST_TOKENS)
        divided, counts = model.windows.divide(whole._asdict())
        with tf.control_dependencies([require_few_windows(counts)]):
            divided = {name: tf.identity(values) for name, values in divided.items()}
        logits = few_at_a_time(self._logits, divided, [model.num_outputs])
        return self._outputs(model.windows.pool(logits, counts, model.kind), model.windows)

    def _logits(self, rows: Mapping[str, tf.Tensor]) -> tf.Tensor:
        ids, mask, segments = (rows[name] for name in INPUTS)
        return self.head(self._encode(ids, mask, segments, ids[:, :0])[1])  # reads only [CLS]

    def _outputs(self, logits: tf.Tensor, windows: Windows | None = None) -> Outputs:
        probabilities = self.setting.model.probabilities(logits, windows)
        if self._labels is None:
            function = self.setting.labels.activation
            return {"value": getattr(tf, function or "identity")(probabilities[:, 0])}
        if not self._several:
            label = tf.gather(self._labels, tf.argmax(probabilities, axis=-1))
            return {"probabilities": probabilities, "label": label}
        given = probabilities >= THRESHOLD  # [B, L]
        order = tf.argsort(tf.cast(given, tf.int32), direction="DESCENDING", stable=True)
        labels = tf.where(tf.gather(given, order, batch_dims=1), tf.gather(self._labels, order), "")
        return {"probabilities": probabilities, "labels": labels}


class MaskedLM(ExportedTask):
    """positions [B, M] of each [MASK] among the tokens, and its best pieces: tokens, scores [B, M, K].

    The scores are probabilities. Texts contain [MASK] literally. A row is refused, as in `fill_mask`, if it has no
    [MASK] or a [MASK] would be cut off, because an empty answer would hide a [MASK] that was misspelled or not read.
    """

    stated = ("top_k",)
    pairs = True
    reads_some = True

    def __init__(self, setting: Setting):
        super().__init__(setting)
        # The model may have more outputs than the vocabulary has words (rounded up); these are never predicted.
        self._tokens, self._mask = tf.constant([*setting.tokenizer.entries, ""]), setting.tokenizer.vocab["[MASK]"]

    def combine(self, pieces: Mapping[str, Pieces]) -> Inputs:
        inputs, mask = super().combine(pieces), self._mask
        counts = (found.ids.with_values(tf.cast(found.ids.values == mask, tf.int32)) for found in pieces.values())
        written = tf.add_n([tf.reduce_sum(count, axis=1) for count in counts])  # [B]
        kept = tf.reduce_sum(tf.cast(inputs.input_ids == mask, tf.int32), axis=1)
        name, length = " and ".join(pieces), self.setting.options.max_seq_length
        none = f"row {{}} of {name} holds no [MASK]; write [MASK], in capitals, where a word is to be found"
        cut = f"row {{}} of {name} has a [MASK] beyond the {length} tokens that are read; shorten the text"
        with tf.control_dependencies([require_none(written == 0, none), require_none(kept < written, cut)]):
            return Inputs(*map(tf.identity, inputs))

    def from_rows(self, rows: Rows | Inputs) -> Outputs:
        is_mask = tf.equal(rows.input_ids, self._mask) & (rows.input_mask > 0)
        none = f"row {{}} of input_ids holds no [MASK], whose id is {self._mask}"
        with tf.control_dependencies([require_none(~tf.reduce_any(is_mask, axis=1), none)]):
            places = tf.where(is_mask)  # [masks of the batch, 2]
            rows = rows._replace(input_ids=tf.identity(rows.input_ids))
        filled = functools.partial(fill_rows, rows=places[:, 0], count=tf.shape(is_mask)[0])
        positions = filled(tf.cast(places[:, 1], tf.int32), default=-1)  # [B, M]
        states = tf.gather_nd(self.encode(rows, tf.maximum(positions, 0))[0], tf.where(positions >= 0))  # [masks, D]
        logits = self.head(states, self.encoder.word_embeddings)[:, : self._tokens.shape[0] - 1]  # [masks, V]
        best, ids = tf.math.top_k(logits, self.setting.options.top_k)
        # The softmax over all V words, computed only for the best words.
        scores = tf.exp(best - tf.reduce_logsumexp(logits, axis=-1, keepdims=True))
        nothing = tf.size(self._tokens) - 1  # "", because OpenVINO cannot scatter strings
        return {
            "positions": positions,
            "tokens": tf.gather(self._tokens, filled(ids, default=nothing)),
            "scores": filled(scores, default=0.0),
        }


def fill_rows(values: tf.Tensor, rows: tf.Tensor, count: tf.Tensor, default: str | float) -> tf.Tensor:
    """Arranges values [n, ...] by their rows [n] (sorted) as [count, longest row, ...], padded with `default`."""
    # Scatters, because OpenVINO has no ragged tensors.
    rows, count = tf.cast(rows, tf.int32), tf.cast(count, tf.int32)
    in_rows = tf.math.segment_sum(tf.ones_like(rows), rows)
    columns = tf.range(tf.size(rows)) - tf.gather(tf.cumsum(in_rows, exclusive=True), rows)
    longest = tf.reduce_max(tf.concat([columns, [-1]], 0)) + 1
    filled = tf.fill(tf.concat([[count, longest], tf.shape(values)[1:]], 0), tf.cast(default, values.dtype))
    return tf.tensor_scatter_nd_update(filled, tf.stack([rows, columns], axis=1), values)
