"""Contextual embeddings as features: the implementation of extract_features.py.

Section 5.3 of the paper uses BERT this way: the weights are frozen, and another model uses the hidden states.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.lib.format as npy
import tensorflow as tf
from absl import logging

from bert_tf2 import modeling, tokenization
from bert_tf2.config import BertConfig
from bert_tf2.fast import fused_attention
from bert_tf2.fast.encoder import Plan, faster
from bert_tf2.finetuning.classification.features import _truncate_seq_pair as _truncate_seq_pair
from bert_tf2.finetuning.classification.features import log_cut, pack_texts
from bert_tf2.finetuning.options import checked_length
from bert_tf2.inference.options import FeatureOptions, check_layers
from bert_tf2.support import console, errors, files, lazy, progress
from bert_tf2.support.containers import Text
from bert_tf2.support.decimals import json_lists
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import check_type
from bert_tf2.training import forward
from bert_tf2.training.devices import build_model, create_strategy, fuses_attention
from bert_tf2.training.options import PRECISIONS
from bert_tf2.training.programs import Filling, filling_for
from bert_tf2.weights import checkpoint, sources, text_rules

__getattr__ = lazy.unknown(__name__)

# The size of the hidden states that wait in memory until the hidden states of all lines before them are known.
_WINDOW_BYTES = 1 << 27


@dataclasses.dataclass
class InputExample:
    """A line of the input: one text, or two separated by ` ||| `."""

    unique_id: int
    text_a: str
    text_b: str | None


@dataclasses.dataclass
class InputFeatures:
    """The model input for one line."""

    unique_id: int  # the number of the line
    tokens: list[str]  # without padding
    # input_ids, input_mask, input_type_ids: padded with 0 to one length for all lines
    input_ids: list[int]
    input_mask: list[int]
    input_type_ids: list[int]


def run(options: FeatureOptions) -> int:
    """Writes one JSON line (or one vector) for each line of the input; returns their number."""
    config, layers = options.config, options.numbers_of_layers
    source = sources.open_weights(options.init_checkpoint)
    tokenizer = text_rules.load_tokenizer(
        options.vocab_file, options.do_lower_case, config.vocab_size, source, options.init_checkpoint
    )
    examples = _lines(options.input_file, config)
    first = next(examples, None)
    if first is None:
        raise UserError(f"{options.input_file}: the file is empty; a line of text for each example is needed")
    policy = PRECISIONS[options.precision].policy
    strategy = create_strategy(options)
    fuses = fuses_attention(options, strategy)
    model = build_model(strategy, lambda: modeling.BertModel(config, dtype=policy), random_seed=0)
    logging.info(checkpoint.initialize(model, source))
    count = files.count_lines(options.input_file)
    features = _features(itertools.chain([first], examples), options, tokenizer)
    features = progress.track(features, "Extracting", count, "lines")
    pad_to = options.max_seq_length if options.use_tpu else None
    filling = filling_for(strategy, count, options.batch_size, options.max_seq_length, options.xla)
    of_cls = options.pooling == "cls"
    states = extract(model, features, layers, options.batch_size, pad_to, of_cls, filling, fuses)
    count = _write(options, layers, states)
    console.summary([f"{options.output_file} (lines: {count:,})"])
    return count


def _features(
    examples: Iterable[InputExample], options: FeatureOptions, tokenizer: tokenization.FullTokenizer
) -> Iterator[InputFeatures]:
    """Yields the features; logs the first one."""
    found = _converted(examples, options.max_seq_length, tokenizer)
    for number, feature in enumerate(_counted(found, options.input_file)):
        if number == 0:
            tokens = " ".join(map(tokenization.printable_text, feature.tokens))
            logging.info("%s", console.table("The first line:", {"tokens": tokens}))
        yield feature


def _counted(features: Iterable[InputFeatures], name: str) -> Iterator[InputFeatures]:
    """Yields the features of the texts `name`; warns at the end if the vocabulary lacks many of their words."""
    unknown = count = 0
    for feature in features:
        unknown += feature.tokens.count("[UNK]")
        count += sum(token not in ("[CLS]", "[SEP]") for token in feature.tokens)
        yield feature
    text_rules.check_unknown(name, unknown, count)


def _write(options: FeatureOptions, layers: Sequence[int], states: Iterable[tuple[InputFeatures, np.ndarray]]) -> int:
    """Writes the output file, complete or not at all; returns the number of lines."""
    count = 0
    with files.complete_or_absent(options.output_file) as (beside,), files.open_binary(beside, "wb") as stream:
        if options.pooling == "none":
            lines = (token_line(feature, layers, values) for feature, values in states)
        else:
            vectors = (pool(values, options.pooling) for _, values in states)
            if options.output_file.endswith(".npy"):
                rows = np.stack(list(vectors))
                # As np.save, whose errors do not state that the disk is full.
                npy.write_array_header_1_0(stream, npy.header_data_from_array_1_0(rows))
                stream.write(rows.data)
                return len(rows)
            texts = (json_lists(vector[np.newaxis])[0] for vector in vectors)
            lines = (f'{{"linex_index": {number}, "values": {text}}}' for number, text in enumerate(texts))
        for line in lines:
            stream.write(line.encode() + b"\n")
            count += 1
    return count


def read_examples(input_file: str) -> list[InputExample]:
    """Reads the lines of a file. ` ||| ` between blanks separates two texts; the last one in a line counts."""
    return list(_lines(input_file))


def _lines(input_file: str, config: BertConfig | None = None) -> Iterator[InputExample]:
    """Yields the lines for `read_examples`. Raises UserError for a pair if the model of `config` cannot read pairs."""
    for number, line in enumerate(files.read_lines(input_file)):
        text_a, separator, text_b = line.strip().rpartition(" ||| ")
        if separator and config is not None:
            config.check_pairs(f"{input_file}, line {number + 1}")
        yield InputExample(number, text_a, text_b) if separator else InputExample(number, text_b, None)


def convert_examples_to_features(
    examples: Iterable[InputExample], seq_length: int | None, tokenizer: tokenization.FullTokenizer
) -> list[InputFeatures]:
    """The features of each line, in order."""
    return list(_converted(examples, seq_length, tokenizer))


def _converted(
    examples: Iterable[InputExample], seq_length: int | None, tokenizer: tokenization.FullTokenizer
) -> Iterator[InputFeatures]:
    """Yields the features: [CLS] text_a [SEP], and text_b [SEP] if present, cut or padded to seq_length if any."""
    count = cut = 0
    for example in examples:
        count += 1
        with errors.reading(f"example {example.unique_id}", tokenization.NotTextError):
            *parts, is_cut = pack_texts(example.text_a, example.text_b, seq_length, tokenizer)
        cut += is_cut
        yield InputFeatures(example.unique_id, *parts)
    log_cut(cut, count, seq_length)


def embed(
    model: modeling.BertModel,
    tokenizer: tokenization.FullTokenizer,
    texts: Sequence[Text],
    *,
    pooling: str,
    layers: Sequence[int],
    max_seq_length: int,
    batch_size: int,
    prompt: str = "",
    pools_prompt: bool = True,
) -> np.ndarray | list[np.ndarray]:
    """Returns vectors for texts: the output of extract_features.py, as arrays; for the arguments see `Bert.embed`.

    `pools_prompt`: whether "mean" and "max" include [CLS] and the tokens of the prompt.
    Returns float32 [N, layers * D]; with pooling "none" a list of N arrays [tokens, layers * D], with [CLS] and [SEP].
    """
    config = model.config
    check_type("pooling", pooling, str)
    check_type("batch_size", batch_size, int, low=1)
    layers = [check_type("layers", layer, int) for layer in layers]
    if pooling not in _POOLINGS:
        raise UserError(f"pooling={pooling!r}: must be one of {', '.join(_POOLINGS)}")
    max_seq_length = checked_length(max_seq_length, config.max_position_embeddings)
    check_layers(layers, config.num_hidden_layers, f"layers={layers}")
    filling = filling_for(model.distribute_strategy, len(texts), batch_size, max_seq_length)
    examples = map(as_example, itertools.count(), texts)
    examples = (dataclasses.replace(one, text_a=prompt + one.text_a) for one in examples) if prompt else examples
    features = _counted(_converted(examples, max_seq_length, tokenizer), "texts")
    states = extract(model, features, layers, batch_size, of_cls=pooling == "cls", filling=filling)
    leaves_out = prompt and not pools_prompt and pooling in ("mean", "max")
    first = 1 + len(tokenizer.tokenize(prompt)) if leaves_out else 0
    if first >= max_seq_length:
        raise UserError(f"prompt={prompt!r:.60}: has {first - 1} tokens, so {max_seq_length=} leaves none of the text")
    # The last token of the prompt may have merged with the text. `min` keeps at least the last token, [SEP].
    vectors = [pool(values[:, min(first, values.shape[1] - 1) :], pooling) for _, values in states]
    if pooling == "none":
        return vectors
    return np.stack(vectors) if vectors else np.zeros((0, len(layers) * config.hidden_size), np.float32)


def as_example(number: int, text: Text) -> InputExample:
    """The example with this number for a text or a pair."""
    return InputExample(number, *(text if isinstance(text, tuple) else (text, None)))


_NAMES = ("input_ids", "input_mask", "input_type_ids")


@tf.function(autograph=False)
def _states(
    model: modeling.BertModel,
    layers: tuple[int, ...],
    of_cls: bool,
    fuses: bool,
    is_compiled: bool,
    parts: list[forward.Batch],
) -> tf.Tensor:
    """float32 [B, layers, F, D], see `extract`. The graph is cached for later calls with the same model and layers."""
    plan = Plan(attention=fused_attention.attend if fuses else None)
    encoder = (faster(model, plan) if of_cls or fuses else None) or model

    def states(batch: forward.Batch) -> tf.Tensor:
        inputs = [batch[name] for name in _NAMES]
        how = {"reads": tf.zeros_like(inputs[0][:, :1])} if of_cls and encoder is not model else {}
        outputs = encoder(*inputs, **how).get_all_encoder_layers()
        return tf.cast(tf.stack([outputs[layer][:, : 1 if of_cls else None] for layer in layers], axis=1), tf.float32)

    return forward.on_replicas(model.distribute_strategy, states, is_compiled, parts)


def extract(
    model: modeling.BertModel,
    features: Iterable[InputFeatures],
    layers: Sequence[int],
    batch_size: int,
    pad_to: int | None = None,
    of_cls: bool = False,
    filling: Filling | None = None,
    fuses: bool = False,
) -> Iterator[tuple[InputFeatures, np.ndarray]]:
    """Yields each line's features and its hidden states, float32 [layers, tokens, D], in the order of the input.

    `pad_to`: the length of every batch; defaults to the length of its longest line. `of_cls`: only the first token.
    `filling`: programs.filling_for; `fuses`: devices.fuses_attention.
    """
    layers, settings = tuple(layers), (of_cls, fuses)
    run = forward.on_batches(_states, model, layers, *settings, names=_NAMES, filling=filling)

    def compute(batch: Sequence[InputFeatures]) -> Iterator[tuple[InputFeatures, np.ndarray]]:
        length = pad_to or max(len(feature.tokens) for feature in batch)
        rows = {name: np.array([getattr(feature, name)[:length] for feature in batch], np.int32) for name in _NAMES}
        values = run(rows).numpy()
        return ((feature, states[:, : len(feature.tokens)]) for feature, states in zip(batch, values, strict=False))

    of_token = 4 * len(layers) * model.config.hidden_size
    return forward.in_order(
        features, lambda feature: len(feature.tokens), compute, batch_size, _WINDOW_BYTES // of_token
    )


def token_line(feature: InputFeatures, layers: Sequence[int], values: np.ndarray) -> str:
    """The reference's JSON object for a line: for every token the values of every layer, [layers, tokens, D]."""
    lists = iter(json_lists(values.transpose(1, 0, 2).reshape(-1, values.shape[-1])))  # token by token
    tokens = (
        f'{{"token": {json.dumps(token)}, "layers": ['
        + ", ".join(f'{{"index": {layer}, "values": {next(lists)}}}' for layer in layers)
        + "]}"
        for token in feature.tokens
    )
    return f'{{"linex_index": {feature.unique_id}, "features": [{", ".join(tokens)}]}}'


def pool(values: np.ndarray, pooling: str) -> np.ndarray:
    """One vector for a line, over all tokens or of the first token ("cls"): [layers, tokens, D] -> [layers * D].

    "none" keeps the tokens: [layers, tokens, D] -> [tokens, layers * D].
    """
    layers, tokens, width = values.shape
    of_tokens = values.transpose(1, 0, 2).reshape(tokens, layers * width)
    return _POOLINGS[pooling](of_tokens)


_POOLINGS = {
    "none": lambda of_tokens: of_tokens,
    "cls": lambda of_tokens: of_tokens[0],
    "mean": lambda of_tokens: of_tokens.mean(axis=0),
    "max": lambda of_tokens: of_tokens.max(axis=0),
}
