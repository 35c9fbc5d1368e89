"""`bert_tf2.export`: any Keras model over the encoder of this project as a SavedModel that takes texts."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterator, Mapping

import keras
import tensorflow as tf

from bert_tf2.config import BertConfig, check_vocab_size
from bert_tf2.data.rows import INPUTS
from bert_tf2.exporting import saved_model_files
from bert_tf2.exporting.graph_tokenization import GraphTokenizer, Inputs
from bert_tf2.exporting.request_checks import Rows, checked_rows, require
from bert_tf2.exporting.signatures import ExportedTask, Outputs, Setting
from bert_tf2.finetuning.options import checked_length
from bert_tf2.modeling import BertModel
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, naming_arguments
from bert_tf2.support.settings import check_type
from bert_tf2.tokenization import FullTokenizer
from bert_tf2.weights.sources import EXPORT_INFO_FILE

_OF_ROWS = {**dict(zip(INPUTS, INPUTS, strict=True)), "token_type_ids": "segment_ids"}


@naming_arguments()
def export(
    model: keras.Model, tokenizer: FullTokenizer, export_dir: str | os.PathLike[str], max_seq_length: int | None = None
) -> str:
    """Writes the next version of an export of a Keras model, with its outputs; returns its folder.

    The signatures are the same as from export_saved_model.py. Each signature also takes the model's own inputs, by
    their names.

    Args:
      model: a functional model, or a model of `heads`. A functional model has the input input_ids [B, F], optionally
        input_mask and segment_ids or token_type_ids [B, F], and its own inputs, whose first axis is the batch.
      tokenizer: the tokenizer that the model was trained with.
      export_dir: the folder of the versions.
      max_seq_length: the number of tokens to which texts are cut; defaults to 128, or to the most that the model reads.

    Raises:
      UserError: an argument is wrong, the model has no encoder of this project or no input_ids, or export_dir is not
        writable.
    """
    check_type("export_dir", export_dir, os.PathLike)
    encoder = next((layer for layer in _layers(model) if isinstance(layer, BertModel)), None)
    if encoder is None:
        raise UserError(f"model={model!r:.60}: has no encoder of bert_tf2; build it over bert_tf2.load(...).encoder")
    usual = min(128, encoder.config.max_position_embeddings)
    task = _KerasTask(model, tokenizer, encoder, usual if max_seq_length is None else max_seq_length)

    def write(folder: str) -> None:
        described = saved_model_files.save(task, task.signatures(), folder)
        length = task.setting.options.max_seq_length
        info = {"task": "keras", "text_signatures": True, "max_seq_length": length, "signatures": described}
        files.write_json(os.path.join(folder, EXPORT_INFO_FILE), info)

    return saved_model_files.write_version(os.fspath(export_dir), write)


def _layers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    yield layer
    for inner in getattr(layer, "layers", ()):
        yield from _layers(inner)


class _KerasTask(ExportedTask):
    """A Keras model with its signatures."""

    pairs = True

    def __init__(self, model: keras.Model, tokenizer: FullTokenizer, encoder: BertModel, max_seq_length: int):
        tf.Module.__init__(self)  # not ExportedTask's constructor, which would fold an encoder
        # Not the model itself, because much of Keras would be saved with it.
        self._call = lambda inputs: model(inputs, training=False)
        self._variables = [variable.value for variable in model.variables]
        self._structure = model.input if getattr(model, "inputs", None) else dict.fromkeys(INPUTS)
        if isinstance(self._structure, dict):
            self._inputs = self._structure
        else:
            self._inputs = {tensor.name: tensor for tensor in keras.tree.flatten(self._structure)}
        if "input_ids" not in self._inputs:
            raise UserError(f"{model.name}: no input is called input_ids, but {', '.join(self._inputs)}; name it so")
        max_seq_length = checked_length(max_seq_length, encoder.config.max_position_embeddings)
        graph = GraphTokenizer(tokenizer)
        check_vocab_size("the tokenizer's vocabulary", len(tokenizer.entries), encoder.config.vocab_size)
        widths = [tensor.shape[1] for name, tensor in self._inputs.items() if name in _OF_ROWS and tensor is not None]
        width = min(filter(None, widths), default=encoder.config.max_position_embeddings)  # an Input may fix F
        options = types.SimpleNamespace(max_seq_length=min(max_seq_length, width))
        config = BertConfig.from_dict({**encoder.config.to_dict(), "max_position_embeddings": width})
        self.setting = Setting(options, config, tokenizer, graph)
        self._names = getattr(model, "output_names", None)

    def signatures(self) -> dict[str, Callable]:
        own = [
            tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype, name)
            for name, tensor in self._inputs.items()
            if name not in _OF_ROWS
        ]
        return super().signatures(own)

    def _from_ids(self, **given: tf.Tensor) -> Outputs:
        ids = {name: given.pop(name) for name in INPUTS if name in given}
        return self._outputs(checked_rows(self.setting.config, self.setting.tokenizer.vocab, **ids), given)

    def from_texts(self, **given: tf.Tensor) -> Outputs:
        texts = {name: given.pop(name) for name in ("text_a", "text_b") if name in given}
        return self._outputs(self.read(texts), given)

    def _outputs(self, rows: Rows | Inputs, own: Mapping[str, tf.Tensor]) -> Outputs:
        count = tf.shape(rows.input_ids)[0]
        checks = [
            require(tf.equal(size, count), f"{{}} rows of {name} for {{}} texts; each needs one", [size, count])
            for name, size in ((name, tf.shape(value)[0]) for name, value in own.items())
        ]
        with tf.control_dependencies(checks):
            values = {name: tf.identity(value) for name, value in own.items()}
        for name in self._inputs.keys() & _OF_ROWS.keys():
            values[name] = self._padded(getattr(rows, _OF_ROWS[name]), self._inputs[name])
        if isinstance(self._structure, dict):
            found = self._call({name: values[name] for name in self._structure})
        else:
            found = self._call(keras.tree.map_structure(lambda tensor: values[tensor.name], self._structure))
        if hasattr(found, "_asdict"):
            found = found._asdict()
        if isinstance(found, dict):
            return {name: value for name, value in found.items() if value is not None}
        found = keras.tree.flatten(found)
        return dict(zip(self._names or [f"output_{i}" for i in range(len(found))], found, strict=True))

    @staticmethod
    def _padded(value: tf.Tensor, wanted: keras.KerasTensor | None) -> tf.Tensor:
        """Converts [B, F] to the dtype of the model's input, and pads to its length if the input has a fixed length."""
        if wanted is None:
            return value
        value, length = tf.cast(value, wanted.dtype), wanted.shape[1]
        missing = 0 if length is None else length - tf.shape(value)[1]
        return tf.ensure_shape(tf.pad(value, [[0, 0], [0, missing]]), [None, length])
