"""Checkpoints in TensorFlow 1's format, under the reference's names: what it wrote is read here, and vice versa.

`tf1_variables` is the one table of names. Reading, writing, the optimizer's slots and the weight-decay exclusion all go
by it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping

import tensorflow as tf
from absl import logging

from bert_tf2 import files, heads, modeling
from bert_tf2.errors import UserError

# Without these there is no BERT in a checkpoint. A pooler or a head may be missing; it then starts fresh, as we say.
_INDISPENSABLE = ("bert/embeddings/", "bert/encoder/")
_SLOTS = ("/adam_m", "/adam_v")
_GLOBAL_STEP = "global_step"


def _dense(prefix: str, layer: modeling.Dense) -> Iterator[tuple[str, tf.Variable]]:
    yield f"{prefix}/kernel", layer.kernel.value
    yield f"{prefix}/bias", layer.bias.value


def _layer_norm(prefix: str, layer: modeling.LayerNorm) -> Iterator[tuple[str, tf.Variable]]:
    yield f"{prefix}/LayerNorm/beta", layer.beta.value
    yield f"{prefix}/LayerNorm/gamma", layer.gamma.value


def _output_layer(prefix: str, layer: heads.OutputLayer) -> Iterator[tuple[str, tf.Variable]]:
    yield f"{prefix}output_weights", layer.output_weights.value
    yield f"{prefix}output_bias", layer.output_bias.value


def _block(prefix: str, block: modeling.TransformerBlock) -> Iterator[tuple[str, tf.Variable]]:
    for name in ("query", "key", "value"):
        yield from _dense(f"{prefix}/attention/self/{name}", getattr(block.attention, name))
    yield from _dense(f"{prefix}/attention/output/dense", block.attention_output)
    yield from _layer_norm(f"{prefix}/attention/output", block.attention_norm)
    yield from _dense(f"{prefix}/intermediate/dense", block.intermediate)
    yield from _dense(f"{prefix}/output/dense", block.output_dense)
    yield from _layer_norm(f"{prefix}/output", block.output_norm)


def _encoder(model: modeling.BertModel) -> Iterator[tuple[str, tf.Variable]]:
    embeddings = model.embeddings
    for name in ("word_embeddings", "token_type_embeddings", "position_embeddings"):
        yield f"bert/embeddings/{name}", getattr(embeddings, name).value
    yield from _layer_norm("bert/embeddings", embeddings.layer_norm)
    for index, block in enumerate(model.blocks):
        yield from _block(f"bert/encoder/layer_{index}", block)
    yield from _dense("bert/pooler/dense", model.pooler)


def _head(model) -> Iterator[tuple[str, tf.Variable]]:
    if isinstance(model, heads.PretrainingModel):
        yield from _dense("cls/predictions/transform/dense", model.masked_lm.transform)
        yield from _layer_norm("cls/predictions/transform", model.masked_lm.layer_norm)
        yield "cls/predictions/output_bias", model.masked_lm.output_bias.value
        yield from _output_layer("cls/seq_relationship/", model.next_sentence)
    elif isinstance(model, heads.SpanModel):
        yield from _output_layer("cls/squad/", model.output_layer)
    elif isinstance(model, heads.ClassifierModel | heads.TaggingModel):
        yield from _output_layer("", model.output_layer)  # the reference's run_classifier has no scope here
    else:
        raise TypeError(f"no names are known for the variables of {type(model).__name__}")


def tf1_variables(model) -> dict[str, tf.Variable]:
    """The reference's name of every variable of a model -> the variable. `model` is a BertModel or one of heads'."""
    if isinstance(model, modeling.BertModel):
        return dict(_encoder(model))
    return {**dict(_encoder(model.bert)), **dict(_head(model))}


def trained_variables(model) -> dict[str, tf.Variable]:
    """Those of tf1_variables that the model's loss depends on, and which therefore get gradients and slots."""
    variables = tf1_variables(model)
    if isinstance(model, heads.SpanModel | heads.TaggingModel):  # they look at tokens and never at the pooled state
        variables = {name: value for name, value in variables.items() if not name.startswith("bert/pooler/")}
    return variables


def find_prefix(path: str) -> str:
    """The prefix that a checkpoint goes by, from the prefix itself, one of its files, or its folder.

    Raises:
      UserError: there is no checkpoint; says which ones lie there.
    """
    prefix = re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path)
    if files.exists(prefix + ".index"):
        return prefix
    if files.is_directory(path):
        latest = latest_checkpoint(path)
        candidates = [latest] if latest else _prefixes_in(path)
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise UserError(f"{path}: holds several checkpoints, name one of them: {', '.join(candidates)}")
        raise UserError(f"{path}: holds no checkpoint (no file whose name ends in .index)")
    nearby = _prefixes_in(os.path.dirname(path) or ".")
    hint = f"; there is {', '.join(nearby[:5])}" if nearby else ""
    raise UserError(f"{path}: no such checkpoint ({os.path.basename(prefix)}.index does not exist{hint})")


def _prefixes_in(folder: str) -> list[str]:
    names = files.list_directory(folder)
    return [os.path.join(folder, name.removesuffix(".index")) for name in names if name.endswith(".index")]


class Checkpoint:
    """A TensorFlow 1 checkpoint that is open for reading.

    Attributes:
      path: its prefix.
      shapes: name -> list of sizes, of every variable in it.
    """

    def __init__(self, path: str):
        """Raises UserError if there is no checkpoint or its index cannot be read."""
        self.path = find_prefix(path)
        with self._explained():
            self._reader = tf.train.load_checkpoint(self.path)
            self.shapes = self._reader.get_variable_to_shape_map()

    @contextlib.contextmanager
    def _explained(self, name: str | None = None):
        try:
            yield
        except (tf.errors.OpError, RuntimeError, ValueError, IndexError) as error:  # IndexError: cut off in a tensor
            what = f"the tensor {name} cannot be read" if name else "cannot be read"
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise UserError(
                f"{self.path}: {what}, the checkpoint is damaged or incomplete ({reason}); copy it again"
            ) from error

    def get(self, name: str):
        """One variable as a numpy array. Raises UserError where its bytes do not match their checksum."""
        with self._explained(name):
            return self._reader.get_tensor(name)

    @property
    def global_step(self) -> int:
        """The number of steps it was trained for; 0 where it does not say."""
        return int(self.get(_GLOBAL_STEP)) if _GLOBAL_STEP in self.shapes else 0


def _misfits(source: Checkpoint, variables: Mapping[str, tf.Variable]) -> list[str]:
    """A phrase for each variable that the checkpoint has in another shape."""
    return [
        f"{name} is {source.shapes[name]} in the checkpoint and {variable.shape.as_list()} in the model"
        for name, variable in variables.items()
        if name in source.shapes and source.shapes[name] != variable.shape.as_list()
    ]


def _refuse(source: Checkpoint, problems: list[str], advice: str) -> None:
    if problems:
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise UserError(f"{source.path}: does not fit the model: {'; '.join(problems[:8])}{more}. {advice}")


def initialize(model, init_checkpoint: str) -> str:
    """Loads weights to start from into a model. Optimizer slots and the step in the checkpoint are ignored.

    Returns:
      One line that says what was loaded, what starts fresh and what was left unused.

    Raises:
      UserError: an encoder variable is missing, or any variable has another shape; the message lists them. (The
        reference leaves a missing one at its random value without a word.)
    """
    source = Checkpoint(init_checkpoint)
    variables = tf1_variables(model)
    fresh = [name for name in variables if name not in source.shapes]
    missing = [f"{name} is missing" for name in fresh if name.startswith(_INDISPENSABLE)]
    _refuse(
        source, missing + _misfits(source, variables), "Is it a checkpoint of this configuration, and of this task?"
    )
    for name, variable in variables.items():
        if name in source.shapes:
            variable.assign(source.get(name))
    unused = [
        name for name in source.shapes if name not in variables and not name.endswith(_SLOTS) and name != _GLOBAL_STEP
    ]
    return (
        f"Initialized from {source.path}: {len(variables) - len(fresh)} of {len(variables)} variables loaded;"
        f" starting fresh: {', '.join(sorted(fresh)) or 'none'}; not used: {', '.join(sorted(unused)) or 'none'}"
    )


def restore(path: str, variables: Mapping[str, tf.Variable]) -> int:
    """Loads every one of `variables` from a checkpoint and returns its global step.

    Raises:
      UserError: the checkpoint lacks one of them or has it in another shape.
    """
    source = Checkpoint(path)
    missing = [f"{name} is missing" for name in variables if name not in source.shapes]
    advice = "It belongs to another model or task: use another output_dir, or the configuration it was made with"
    _refuse(source, missing + _misfits(source, variables), advice)
    for name, variable in variables.items():
        variable.assign(source.get(name))
    return source.global_step


def save(prefix: str, variables: Mapping[str, tf.Variable], global_step: int | None = None) -> None:
    """Writes a checkpoint that TensorFlow 1 can read: `prefix.index` and `prefix.data-00000-of-00001`.

    They are written beside and renamed, the index last, so a checkpoint whose index is there is complete.
    """
    names = list(variables)
    tensors = [variable.read_value() for variable in variables.values()]
    if global_step is not None:
        names.append(_GLOBAL_STEP)
        tensors.append(tf.constant(global_step, tf.int64))
    endings = (".data-00000-of-00001", ".index")
    beside = os.path.join(os.path.dirname(prefix), f".{os.path.basename(prefix)}.{os.getpid()}.partial")
    files.make_directory(os.path.dirname(prefix))
    try:
        tf.raw_ops.SaveV2(prefix=beside, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors)
        for ending in endings:
            files.rename(beside + ending, prefix + ending)
    except (tf.errors.OpError, OSError) as error:
        raise UserError(f"{prefix}: cannot write the checkpoint: {str(error).splitlines()[0]}") from error
    finally:
        for ending in endings:
            with contextlib.suppress(Exception):  # renamed already, or never written
                files.remove(beside + ending)


def latest_checkpoint(output_dir: str) -> str | None:
    """The prefix of the newest checkpoint in a folder, as its `checkpoint` file names it; None where there is none.

    Raises:
      UserError: the file `checkpoint` cannot be understood, or names a checkpoint that is gone.
    """
    path = os.path.join(output_dir, "checkpoint")
    if not files.exists(path):
        return None
    named = re.search(r'^model_checkpoint_path: "(.*)"$', files.read_text(path).replace("\r", ""), re.MULTILINE)
    if not named:
        raise UserError(f"{path}: names no model_checkpoint_path; remove the file to start afresh")
    prefix = os.path.join(output_dir, named[1])
    if not files.exists(prefix + ".index"):
        # The folder may have been moved since an absolute path was written.
        prefix = os.path.join(output_dir, os.path.basename(named[1]))
    if not files.exists(prefix + ".index"):
        raise UserError(
            f"{path}: names the checkpoint {named[1]}, which is not there; bring it back, or remove the file to start"
            " afresh"
        )
    return prefix


class CheckpointFolder:
    """The checkpoints `model.ckpt-STEP` of one training run, the oldest of which are deleted as new ones come."""

    def __init__(self, output_dir: str, keep_checkpoint_max: int = 5):
        self._output_dir = output_dir
        self._keep = keep_checkpoint_max

    def save(self, variables: Mapping[str, tf.Variable], global_step: int) -> str:
        """Writes a checkpoint, names it in the file `checkpoint` as the latest, and deletes what is too old."""
        name = f"model.ckpt-{global_step}"
        prefix = os.path.join(self._output_dir, name)
        save(prefix, variables, global_step)
        names = [old for old in self._listed() if old != name] + [name]
        kept, dropped = names[-self._keep :], names[: -self._keep]
        lines = [f'model_checkpoint_path: "{name}"', *(f'all_model_checkpoint_paths: "{old}"' for old in kept)]
        files.write_text(os.path.join(self._output_dir, "checkpoint"), "\n".join(lines) + "\n")
        for old in dropped:
            self._delete(old)
        logging.info("Saved %s", prefix)
        return prefix

    def _listed(self) -> list[str]:
        path = os.path.join(self._output_dir, "checkpoint")
        text = files.read_text(path) if files.exists(path) else ""
        return re.findall(r'^all_model_checkpoint_paths: "(.*)"$', text, re.MULTILINE)

    def _delete(self, name: str) -> None:
        stem = os.path.basename(name)
        for file in files.list_directory(self._output_dir):
            if re.fullmatch(re.escape(stem) + r"\.(index|meta|data-\d{5}-of-\d{5})", file):
                files.remove(os.path.join(self._output_dir, file))
