"""`bert_tf2.classifier`: a Keras model whose `fit`, `evaluate` and `predict` take texts.

    films = bert_tf2.classifier("uncased_L-12_H-768_A-12", labels=["bad", "good"])
    films.fit(texts, labels, epochs=3, validation_split=0.1)
    films.predict(["a sad film"])       # probabilities, [1, 2]

It is a model of `heads` with `Tokenize` before it. Texts become ids in the pipeline of tf.data, beside the training.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import numbers
import os
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf2 import heads
from bert_tf2.commands import text_rows
from bert_tf2.commands.text_parts import RANDOM_SEED, CutTexts, Parts, find_labels, write_folder
from bert_tf2.exporting import run as exporting
from bert_tf2.exporting.tokenize_layer import Tokenize, columns
from bert_tf2.fast.encoder import accelerate
from bert_tf2.support import files
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import check_type
from bert_tf2.training.devices import plan_for
from bert_tf2.training.keras_optimizer import AdamWeightDecay, WarmupAndDecay
from bert_tf2.weights import sources, task_file
from bert_tf2.weights.task_file import LabelMap

_RATE = 2e-5  # which the reference's README recommends


@keras.saving.register_keras_serializable(package="bert_tf2")
class TextModel(keras.Model):
    """A classifier that takes texts, made by `bert_tf2.classifier`.

    Everywhere, `x` is what `bert_tf2.Tokenize` takes: texts, or pairs as tuples, in a list, an array or a column of
    pandas; or two columns as a tuple; or a `tf.data.Dataset` of batches `(x, y)` or `(x, y, sample_weight)`; or the
    arrays of `Bert.tokenize`. `y` has the names of labels or their indexes (of a regression numbers; with several
    labels, a list of names for each text, or 1 and 0 for each label).

    Attributes:
      model: the model of `heads`.
      tokenize: the Tokenize layer.
      labels: the labels, in the order of the outputs.
    """

    def __init__(self, model: keras.Model, tokenize: Tokenize, label_map: LabelMap | None, **kwargs):
        super().__init__(**kwargs)
        self.model = model
        model.bert.pooler.trainable = model.uses_pooler
        self.tokenize = tokenize
        self._label_map = label_map
        if label_map:
            self.labels = list(label_map.labels)
            self.regression, self.multi_label = label_map.regression, label_map.multi_label
        self.built = True
        self.compile()

    def get_config(self) -> dict[str, Any]:
        parts = {"model": self.model, "tokenize": self.tokenize}
        parts = {name: keras.saving.serialize_keras_object(part) for name, part in parts.items()}
        if self._label_map:
            parts["label_map"] = dataclasses.asdict(self._label_map)
        return {**super().get_config(), **parts}

    @classmethod
    def from_config(cls, config: dict, custom_objects=None) -> TextModel:
        parts = {name: keras.saving.deserialize_keras_object(config[name]) for name in ("model", "tokenize")}
        if "label_map" in config:
            parts["label_map"] = LabelMap(**config["label_map"])
        return cls(**{**config, **parts})

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """Strings [B], a pair of them, or `Tokenize`'s arrays -> probabilities [B, L], of tokens [B, F, L]."""
        features = inputs if isinstance(inputs, Mapping) else self.tokenize(inputs)
        logits = self.model(features, training=training)
        if self.regression:
            return logits
        return tf.sigmoid(logits) if self.multi_label else tf.nn.softmax(logits)

    def compile(self, optimizer: Any = None, loss: Any = None, metrics: Any = None, **kwargs) -> None:
        """As in Keras; what is not given is the recipe of run_classifier.py.

        Args:
          optimizer: one of Keras; or the learning rate of AdamWeightDecay (2e-5), which each `fit` warms up over a
            tenth of its steps and lets fall to 0 at its end.
          loss: of probabilities. By default the cross-entropy, of a regression the squared error.
          metrics: by default the accuracy; of a regression none.
          **kwargs: with `jit_compile`, all rows have max_seq_length tokens.
        """
        if loss is None or metrics is None:
            kind = 0 if self.regression else 2 if self.multi_label else 1
            loss = loss or ("mean_squared_error", "sparse_categorical_crossentropy", "binary_crossentropy")[kind]
            metrics = ([], ["accuracy"], ["binary_accuracy"])[kind] if metrics is None else metrics
        optimizer = _RATE if optimizer is None else optimizer
        self._rate = float(optimizer) if isinstance(optimizer, numbers.Real) else None
        if self._rate is not None:
            optimizer = AdamWeightDecay(WarmupAndDecay(self._rate, 1, 0))  # until `fit` knows its steps
        # No dict, in which Keras would find the metrics, and keep them when others are compiled.
        self._compiled_with = types.MappingProxyType({"loss": loss, "metrics": metrics, **kwargs})
        super().compile(optimizer, **self._compiled_with)
        fixed = kwargs.get("jit_compile") is True
        options = types.SimpleNamespace(unpad="auto", recompute=False, xla="true" if fixed else "false")
        accelerate(self.model, plan_for(options, self.distribute_strategy, self.model.config.hidden_size))
        self.tokenize.pad_to_max_length = fixed

    def get_compile_config(self) -> dict[str, Any]:
        found = super().get_compile_config()
        return found if self._rate is None else {**found, "optimizer": self._rate}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def dataset(
        self, x: Any, y: Any = None, sample_weight: Any = None, batch_size: int = 32, shuffle: bool = False
    ) -> tf.data.Dataset:
        """The batches that `fit`, `evaluate` and `predict` make; raises UserError as they do."""
        return self._tokenized(self._batches(x, y, sample_weight, batch_size, shuffle))

    def _batches(self, x: Any, y: Any, sample_weight: Any, batch_size: int, shuffle: bool) -> tf.data.Dataset:
        """What is given, as strings or ids."""
        check_type("batch_size", batch_size, int, low=1)
        if isinstance(x, tf.data.Dataset):
            return x
        given = self._columns(x)
        given = given[0] if isinstance(given, tuple) and len(given) == 1 else given
        rows = {} if y is None else {"y": self._targets(y)}
        rows |= {} if sample_weight is None else {"sample_weight": text_rows.numbers(sample_weight, "sample_weight")}
        count = text_rows.check_counts(given, **rows)
        data = tf.data.Dataset.from_tensor_slices((given, *rows.values()))
        return (data.shuffle(count) if shuffle and count else data).batch(batch_size)

    def _tokenized(self, data: tf.data.Dataset, cut: CutTexts | None = None) -> tf.data.Dataset:
        if cut:

            def counted(number: tf.Tensor, rows: tuple) -> tuple:
                return self._element(*rows, count=functools.partial(cut.add, number))

            return data.enumerate().map(counted, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
        return data.map(self._element, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    @staticmethod
    def _columns(x: Any) -> Any:
        """Tensors whose rows are the texts."""
        return x if isinstance(x, Mapping) else columns(x)

    def _element(self, x: Any, *others: tf.Tensor, count: Callable | None = None) -> tuple:
        if count and not isinstance(x, Mapping):
            x, are_cut = self.tokenize.with_cut(columns(x))
            count(are_cut)
        x = x if isinstance(x, Mapping) else self.tokenize(x)
        if others and others[0].dtype == tf.string and (self.regression or self.multi_label):
            raise UserError("y: strings; numbers are needed, for several labels 1 or 0 for each label")
        if others and not (others[0].dtype.is_floating or self.regression or self.multi_label):
            others = (text_rows.as_indexes(others[0], self.labels), *others[1:])
        return (x, *others)

    def _targets(self, y: Any) -> np.ndarray | None:
        """Labels as numbers: indexes int [N], numbers float [N], or 1 and 0 for each label [N, L]."""
        if y is None:
            return None
        if self.regression:
            return text_rows.numbers(y, "y")
        if self.multi_label:
            return text_rows.of_several(y, self.labels)
        wants_vectors = "sparse" not in str(getattr(self._compiled_with["loss"], "name", self._compiled_with["loss"]))
        if wants_vectors and text_rows.is_one_hot(np.asarray(y), len(self.labels)):
            return np.asarray(y, np.float32)
        return text_rows.indexes(y, self.labels)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[str | int, float] | None = None,
        sample_weight: Any = None,
        **kwargs,
    ) -> keras.callbacks.History:
        """As in Keras, with texts; see the class for `x` and `y`, and `compile` for the recipe.

        The keys of `class_weight` are labels or their indexes; weights of rows are multiplied with it. `cut_texts` in
        the History is how many texts of `x` have more than max_seq_length tokens, in the first epoch.
        Raises UserError if a text or label is wrong, or the recipe cannot know the steps of an epoch.
        """
        batch_size = batch_size or 32
        check_type("epochs", epochs, int, low=1)
        weights = None if class_weight is None else text_rows.weights_of(class_weight, self._label_map)
        if validation_split and validation_data is None:
            if isinstance(x, tf.data.Dataset):
                raise UserError("validation_split: cannot divide a dataset; give validation_data")
            x, y, sample_weight, validation_data = text_rows.divide(
                validation_split, self._columns(x), self._targets(y), sample_weight
            )
        batches = self._batches(x, y, sample_weight, batch_size, shuffle)
        data = self._tokenized(batches)
        text_rows.check_given(data, needs_y=True)
        if validation_data is not None:
            size = kwargs.pop("validation_batch_size", None) or batch_size
            validation_data = self._validation(validation_data, size)
        if self._rate is not None:
            self._plan(kwargs.get("steps_per_epoch") or int(data.cardinality()), epochs, callbacks)
        self._make_variables(data)
        data = self._tokenized(batches, cut := CutTexts(self.tokenize.max_seq_length))
        data = data if weights is None else data.map(functools.partial(text_rows.weigh, weights))
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = copy.copy(callbacks)  # the caller's stays as it is
            callbacks.callbacks = [*callbacks.callbacks, cut]
        else:
            callbacks = [*keras.tree.flatten(callbacks or []), cut]
        kwargs |= {"validation_data": validation_data, "shuffle": False}
        with text_rows.in_one_line():
            history = super().fit(data, None, None, epochs, verbose, callbacks, **kwargs)
        if cut.count is not None:
            history.history["cut_texts"] = cut.count
        return history

    def _validation(self, given: Any, batch_size: int) -> tf.data.Dataset:
        """The batches of `validation_data`: (x, y), (x, y, sample_weight) or a dataset."""
        is_dataset = isinstance(given, tf.data.Dataset)
        if not is_dataset and not (isinstance(given, tuple | list) and len(given) in (2, 3)):
            raise UserError("validation_data: must be (x, y), (x, y, sample_weight) or a dataset of these")
        data = self.dataset(*([given] if is_dataset else given), batch_size=batch_size)
        text_rows.check_given(data, needs_y=True)
        return data

    def _plan(self, steps: int, epochs: int, callbacks: Any) -> None:
        others = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
        if any(isinstance(callback, others) for callback in keras.tree.flatten(callbacks)):
            instead = f"compile(bert_tf2.AdamWeightDecay({self._rate:g}))"
            raise UserError(f"callbacks: the recipe has its own schedule of the rate; {instead} has none")
        if steps <= 0:
            raise UserError(
                "x: a dataset that does not say its number of batches; give steps_per_epoch, or apply"
                " tf.data.experimental.assert_cardinality"
            )
        rate = WarmupAndDecay(self._rate, steps * epochs, steps * epochs // 10)
        with self.distribute_strategy.scope():
            super().compile(AdamWeightDecay(rate), **self._compiled_with)

    def _make_variables(self, data: tf.data.Dataset) -> None:
        """Those of the optimizer and the metrics. Within the training step, Keras would trace it twice, for seconds."""
        strategy = self.distribute_strategy
        with strategy.scope():
            self.optimizer.build(self.trainable_variables)
        if strategy.num_replicas_in_sync > 1 or self.run_eagerly:
            return
        with text_rows.in_one_line():
            for x, *others in data.unbatch().batch(1).take(1):
                self.compute_metrics(x, others[0], self(x))
                self.reset_metrics()

    def evaluate(self, x: Any = None, y: Any = None, batch_size: int | None = None, *args, **kwargs):
        """As in Keras, with texts; see the class."""
        if not kwargs.get("_use_cached_eval_dataset"):  # Keras' own call, within `fit`
            x = self.dataset(x, y, kwargs.pop("sample_weight", None), batch_size or 32)
            y = batch_size = None
            text_rows.check_given(x, needs_y=True)
        with text_rows.in_one_line():
            return super().evaluate(x, y, batch_size, *args, **kwargs)

    def predict(self, x: Any, batch_size: int | None = None, *args, **kwargs) -> np.ndarray:
        """As in Keras, with texts: probabilities float32 [N, L], of a regression [N, 1]."""
        data = self.dataset(x, batch_size=batch_size or 32)
        if data.cardinality() == 0:  # which Keras does not expect
            return np.zeros([0, self.model.num_labels], np.float32)
        with text_rows.in_one_line():
            return super().predict(data, None, *args, **kwargs)

    def _kept(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What task.json says of the task, and of the settings that decide the answers."""
        return {"task": self._label_map.task}, {"max_seq_length": self.tokenize.max_seq_length}

    def save(self, filepath: str | os.PathLike[str], *args, **kwargs) -> None:
        """As in Keras, into a file NAME.keras. Raises UserError for the older .h5, which cannot hold the model."""
        if os.fspath(filepath).endswith((".h5", ".hdf5")):
            raise UserError(f"{os.fspath(filepath)}: Keras' older format cannot hold this model; name it .keras")
        super().save(filepath, *args, **kwargs)

    def save_folder(self, output_dir: str | os.PathLike[str]) -> None:
        """Writes what the script of the task writes; it, export_saved_model.py and `load` go on from there.

        Raises UserError if the folder holds another model, or is not writable.
        """
        made_with = sources.decisive(self.model.config)
        made_with |= {"labels": self._label_map.labels} if self._label_map else {}
        content = task_file.content(*self._kept(), made_with)
        step = int(self.optimizer.iterations)
        write_folder(output_dir, self.model, self.tokenize.tokenizer, self._label_map, content, step)

    def export(self, filepath: str | os.PathLike[str], format: str = "tf_saved_model", **kwargs) -> None:
        """Writes a SavedModel with export_saved_model.py's signatures, or its ONNX file, into a new folder.

        `filepath` is "served/films/1" for a server, `format` "tf_saved_model" or "onnx"; `kwargs` are the script's
        settings, such as `quantize`. Raises UserError if the folder is there already, or is not writable.
        """
        path = os.path.abspath(os.path.expanduser(os.fspath(filepath)))
        if os.path.exists(path):
            raise UserError(f"{path}: is there already; give another folder, or remove it")
        files.make_directory(os.path.dirname(path))
        with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as folder:
            self.save_folder(os.path.join(folder, "model"))
            beside = {name: os.path.join(folder, "model", file) for name, file in _FILES.items()}
            kwargs |= {"format": format.removeprefix("tf_"), "max_seq_length": self.tokenize.max_seq_length, **beside}
            task = {"texts": "classifier", "tokens": "ner", None: "squad"}[self.model.labeled]
            os.replace(exporting.export_model(task=task, export_dir=folder, **kwargs), path)


_FILES = {"init_checkpoint": "", "bert_config_file": "bert_config.json", "vocab_file": "vocab.txt"}


def classifier(
    weights: str | os.PathLike[str],
    labels: Sequence[str] | None = None,
    *,
    regression: bool = False,
    multi_label: bool = False,
    max_seq_length: int | None = None,
    bert_config_file: str | os.PathLike[str] | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    do_lower_case: bool | None = None,
    random_seed: int = RANDOM_SEED,
) -> TextModel:
    """A classifier of texts as a Keras model, compiled with the reference's recipe.

    Args:
      weights, bert_config_file, vocab_file, do_lower_case: see `load`.
      labels: their names, in the order of the outputs; by default those of the weights.
      regression: whether a text has a number in place of a label.
      multi_label: whether a text may have several labels, or none.
      max_seq_length: texts are cut to this number of tokens; by default as in the training of the weights, else 128.
      random_seed: determines the new weights of the output layer.

    Raises:
      UserError: as `load`; or the labels are missing, wrong, or not those of the weights.
    """
    found = Parts(weights, bert_config_file, vocab_file, do_lower_case, max_seq_length)
    label_map = find_labels(found.source, labels, regression, multi_label)
    settings = (len(label_map.labels), label_map.regression, label_map.multi_label)
    return TextModel(found.model(heads.ClassifierModel, *settings, seed=random_seed), found.tokenize, label_map)
