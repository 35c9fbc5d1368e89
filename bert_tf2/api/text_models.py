"""`bert_tf2.classifier`: a Keras model whose `fit`, `evaluate` and `predict` take texts.

    films = bert_tf2.classifier("uncased_L-12_H-768_A-12", labels=["bad", "good"])
    films.fit(texts, labels, epochs=3, validation_split=0.1)
    films.predict(["a sad film"])       # probabilities, [1, 2]

The model is a model of `heads` after `Tokenize`. The pipeline of tf.data converts texts to ids while the model trains.
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
import os
import tempfile
import types
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf2 import heads
from bert_tf2.api import data_warnings, targets, text_rows
from bert_tf2.api.bert import Bert
from bert_tf2.api.cut_texts import CutTexts
from bert_tf2.api.readers import Reader, TextReader
from bert_tf2.api.text_parts import ALPHA, RANDOM_SEED, TEMPERATURE, Parts, path_of, row_of
from bert_tf2.api.text_steps import TextSteps
from bert_tf2.data.records import MOST_TOKENS
from bert_tf2.exporting import run as exporting
from bert_tf2.exporting.tokenize_layer import Tokenize, columns
from bert_tf2.fast.encoder import accelerate
from bert_tf2.support import files
from bert_tf2.support.errors import UserError, naming_arguments, reading, writing
from bert_tf2.support.settings import check_type
from bert_tf2.training.devices import plan_for
from bert_tf2.training.keras_optimizer import AdamWeightDecay, WarmupAndDecay
from bert_tf2.weights import model_folder, task_file
from bert_tf2.weights.task_file import LabelMap

_RATE = 2e-5  # the rate that the reference's README recommends


@keras.saving.register_keras_serializable(package="bert_tf2")
class TextModel(TextSteps):
    """A classifier that takes texts, made by `bert_tf2.classifier`.

    `x` of all methods has texts, or pairs as tuples, in a list, an array, a column or table of pandas, polars or
    pyarrow; or two columns as a tuple or a dict; or batches `(x, y)` or `(x, y, sample_weight)` in a `tf.data.Dataset`,
    a `keras.utils.PyDataset` or a generator, which are read on the way; or the arrays of `Bert.tokenize`.

    `y` has the names or the indexes of labels, or a number for each label if the loss compares vectors. In a
    regression, `y` has numbers; with multi_label, a list of names for each text, or 1 or 0 for each label.

    `fit` also learns the answers of `teacher=bert_tf2.load(FOLDER)`, a trained model of the same labels and vocabulary.
    `alpha` is their share of the loss, not of `val_loss`; see run_classifier.py for `temperature`.

    Attributes:
      model: the model of `heads`.
      tokenize: the Tokenize layer.
      labels: the labels, in the order of the outputs.
    """

    export_as = "classifier"  # the task of export_saved_model.py
    reads_no_texts = ""  # if the model can only be called with the batches of `dataset`: their name, and an alternative

    def __init__(
        self,
        model: keras.Model,
        tokenize: Tokenize,
        label_map: LabelMap | None = None,
        settings: Mapping[str, Any] | None = None,
        **kwargs,
    ):
        """`settings`: of a kind of model that has some, the settings that decide its rows and answers."""
        super().__init__(**kwargs)
        self.model = model
        model.bert.pooler.trainable = model.uses_pooler
        self.tokenize = tokenize
        self._label_map = label_map
        if settings is not None:
            self.settings = dict(settings)
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
        if hasattr(self, "settings"):
            parts["settings"] = dict(self.settings)
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
        found = self.model.probabilities(logits, self.model.windows)
        if found is not logits:
            found.logits = logits  # for `compute_loss`
        return found

    def compile(self, optimizer: Any = None, loss: Any = None, metrics: Any = None, **kwargs) -> None:
        """As in Keras; arguments that are left out follow the recipe of run_classifier.py.

        Args:
          optimizer: an optimizer of Keras, or the learning rate of AdamWeightDecay (default 2e-5), which each `fit`
            warms up over a tenth of its steps and decreases to 0 at its end.
          loss: a loss of probabilities; defaults to the cross-entropy, for a regression to the squared error.
          metrics: default to the accuracy, for a regression to no metrics. With metrics that compare vectors, such as
            keras.metrics.F1Score, the default loss is categorical_crossentropy, the same number for vectors.
          **kwargs: with `jit_compile=True`, all rows have max_seq_length tokens. By default, XLA compiles only on GPUs,
            and only long runs of `fit`, `evaluate` and `predict`.
        """
        if kwargs.get("jit_compile") is True and self.model.windows:
            raise UserError(
                "jit_compile=True: needs fixed shapes, and texts have different numbers of windows; leave it out"
            )
        loss, metrics = self._recipe(loss, metrics, kwargs.get("weighted_metrics"))
        optimizer, self._rate = _RATE if optimizer is None else optimizer, None
        if isinstance(optimizer, numbers.Real | bool):
            self._rate = float(check_type("optimizer", optimizer, float, low=0))
            optimizer = AdamWeightDecay(WarmupAndDecay(self._rate, 1, 0))  # until `fit` knows its steps
        self._is_planned = self._rate is not None  # whether the rate decreases to 0 at the end of `fit`
        self.jit_setting = kwargs.get("jit_compile", "auto")
        kwargs["jit_compile"] = fixed = self.jit_setting is True
        # Not a dict, because Keras would track the metrics in it and keep them when other metrics are compiled.
        self._compiled_with = types.MappingProxyType({"loss": loss, "metrics": metrics, **kwargs})
        super().compile(optimizer, **self._compiled_with)
        how = {"recompute": False, "xla": "true" if fixed else "false", "precision": self.model.compute_dtype}
        options = types.SimpleNamespace(unpad="auto", attention="auto", **how)
        accelerate(self.model, plan_for(options, self.distribute_strategy, self.model.config.hidden_size))
        self.tokenize.pad_to_max_length = fixed
        self._reader = self._make_reader(loss)

    def _recipe(self, loss: Any, metrics: Any, weighted_metrics: Any) -> tuple[Any, Any]:
        """The loss and the metrics of `compile`, with the defaults for those that are None."""
        of_one_label = self.model.labeled == "texts" and not (self.regression or self.multi_label)
        if of_one_label and (found := targets.vector_metrics([metrics, weighted_metrics])):
            loss = loss or "categorical_crossentropy"
            if "sparse" in targets.name_of(loss):
                raise UserError(f'metrics: {found[0]} compares vectors; give loss="categorical_crossentropy" or None')
        if loss is None or metrics is None:
            kind = 0 if self.regression else 2 if self.multi_label else 1
            loss = loss or ("mean_squared_error", "sparse_categorical_crossentropy", "binary_crossentropy")[kind]
            metrics = ([], ["accuracy"], ["binary_accuracy"])[kind] if metrics is None else metrics
        return loss, metrics

    def _make_reader(self, loss: Any) -> Reader:
        return TextReader(self.tokenize, self.model.config, self._label_map, loss)

    def get_compile_config(self) -> dict[str, Any]:
        found = {**super().get_compile_config(), "jit_compile": self.jit_setting}
        return found if self._rate is None else {**found, "optimizer": self._rate}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def dataset(
        self, x: Any, y: Any = None, sample_weight: Any = None, batch_size: int = 32, shuffle: bool = False
    ) -> tf.data.Dataset:
        """The batches that `fit`, `evaluate` and `predict` read; raises UserError as these methods do."""
        given = self._reader.read(x, y, sample_weight)
        return self._reader.pipeline(self._reader.batches(given, batch_size, shuffle).data)

    def _read(self, x: Any, y: Any, sample_weight: Any, steps: int | None, name: str = "steps") -> Any:
        """The result of the reader's `read` for a pass of `steps`, the argument `name`. Raises UserError."""
        text_rows.check_end(x, steps, name)
        return self._reader.read(x, y, sample_weight)

    def _batches(
        self, given: Any, batch_size: int | None, shuffle: bool = False, most: int | None = None
    ) -> text_rows.Batches:
        """The result of `_read` in batches with `y`; raises UserError if Keras cannot learn from the first batch.

        Several replicas may have unequal parts of later batches.
        """
        batches = self._reader.batches(given, batch_size, shuffle, most)
        if batches.first is None:
            raise UserError("x: has no texts")
        self._reader.needed(batches.first[1] if len(batches.first) > 1 else None)
        count, replicas = len(tf.nest.flatten(batches.first)[0]), self.distribute_strategy.num_replicas_in_sync
        if count % replicas:
            raise UserError(f"x: the first batch has {count} rows, which {replicas} devices cannot divide equally")
        self._first = batches.first
        return batches

    def __call__(self, inputs: Any, *args, **kwargs) -> Any:
        """Texts, or the arrays of `Bert.tokenize`: see `call`."""
        if not text_rows.has_ids(inputs):
            if self.reads_no_texts:
                raise UserError(f"this model can only be called with the {self.reads_no_texts} for texts")
            found = columns(inputs)
            inputs = found if len(found) > 1 else found[0]
        return super().__call__(inputs, *args, **kwargs)

    def _one_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None, trains: bool = False
    ) -> tuple:
        """All rows as one batch (x, y, sample_weight), without the parts that are not given."""
        found = self._reader.at_once(self._reader.arrays(self._reader.rows(x, y, sample_weight)), trains)
        if class_weight is not None:
            found = targets.weigh(targets.weights_of(class_weight, self._label_map), *found)
        return found

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """As in Keras, with texts; see the class. The learning rate is constant."""
        batch = self._one_batch(x, self._reader.needed(y), sample_weight, class_weight, trains=True)
        if self._rate is not None and self._is_planned:
            self._begin(self._rate)
            self._is_planned = False
        return super().train_on_batch(*batch, return_dict=return_dict)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """As in Keras, with texts; see the class."""
        batch = self._one_batch(x, self._reader.needed(y), sample_weight)
        return super().test_on_batch(*batch, return_dict=return_dict)

    def predict_on_batch(self, x: Any) -> np.ndarray:
        """As in Keras, with texts: `predict` for the rows of one batch."""
        return super().predict_on_batch(self._one_batch(x)[0])

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
        class_weight: Mapping[str | int, float] | str | None = None,
        sample_weight: Any = None,
        teacher: Bert | None = None,
        temperature: float = TEMPERATURE,
        alpha: float = ALPHA,
        **kwargs,
    ) -> keras.callbacks.History:
        """As in Keras, with texts; see the class for `x` and `y`, and `compile` for the recipe.

        The keys of `class_weight` are labels or their indexes. The weight of a row is multiplied by the weight of its
        label. "balanced" makes each label count alike, as in scikit-learn. In the History, `cut_texts` is the number of
        texts of `x` with more than max_seq_length tokens, by epoch; `val_cut_texts` is the same for `validation_data`.
        Raises UserError if a text or label is wrong, or the recipe cannot know the steps of an epoch.
        """
        callbacks = callbacks or []  # MLflow appends its own
        check_type("epochs", epochs, int, low=1)
        first_epoch = check_type("initial_epoch", kwargs.get("initial_epoch", 0), int, low=0)
        if isinstance(often := kwargs.get("validation_freq", 1), int):  # or a list of epochs
            check_type("validation_freq", often, int, low=1)  # Keras would fail after the first epoch
        remaining = max(epochs - first_epoch, 0)
        steps, val_steps = kwargs.get("steps_per_epoch"), kwargs.get("validation_steps")
        given = self._read(x, y, sample_weight, steps, "steps_per_epoch")
        if validation_split and validation_data is None:
            given, validation_data = self._divided(given, validation_split)
        batches = self._batches(given, batch_size, shuffle, steps and steps * remaining)
        count = steps or max(int(batches.data.cardinality()), 0) or None  # of the batches in an epoch
        cut = CutTexts(self.tokenize.max_seq_length, count, continues=steps is not None)
        val_cut = CutTexts(self.tokenize.max_seq_length, val_steps)
        if validation_data is not None:
            size = kwargs.pop("validation_batch_size", None)
            size = batch_size if size is None else size
            validation_data = self._validation(validation_data, size, val_steps, val_cut)
        if self._rate is not None and remaining:
            self._plan(count, remaining, callbacks)
        data = self._learned(given, batches, class_weight, cut)
        long = self.compiled_if_long((count or -1) * remaining, data, validation_data)
        taught, callbacks = self._taught(teacher, temperature, alpha), cut.logged_between_epochs(callbacks)
        with text_rows.in_one_line(), taught, long as (data, kwargs["validation_data"]), self._traced_once(data):
            history = super().fit(data, epochs=epochs, verbose=verbose, callbacks=callbacks, shuffle=False, **kwargs)
        cut.log()
        data_warnings.of_losses(history)
        cut.write(history.history)
        val_cut.write(history.history, "val_")
        return history

    def _learned(self, given: Any, batches: text_rows.Batches, class_weight: Any, cut: CutTexts) -> tf.data.Dataset:
        """The batches of a training, with the weights of labels; warns of the data, and makes the variables."""
        with text_rows.in_one_line():
            data = self._reader.pipeline(batches.data, cut, trains=True)
            if class_weight is not None:
                weights = targets.weights_of(class_weight, self._label_map, batches.data)
                data = data.map(functools.partial(targets.weigh, weights))
            first = self._reader.at_once(batches.first)
            self._reader.warn(given, first)
            self._make_variables(first)
        return data

    def _divided(self, given: Any, share: float) -> tuple[text_rows.Rows, text_rows.Rows]:
        """The rows for the training and for the validation."""
        if not isinstance(given, text_rows.Rows):
            raise UserError("validation_split: cannot divide a dataset; give validation_data")
        learned, held_out = given.divided(share)
        if self._label_map:
            data_warnings.of_division(learned.y, held_out.y, self._label_map.labels)
        return learned, held_out

    @text_rows.of_argument("validation_data")
    def _validation(self, given: Any, batch_size: int | None, steps: int | None, cut: CutTexts) -> tf.data.Dataset:
        """The batches of `validation_data`, or of rows that a split has left for the validation."""
        check_type("validation_batch_size", batch_size, int, low=1, optional=True)
        if hasattr(given, "__next__") and steps is None:
            raise UserError("validation_data: is a generator, read in each epoch; give validation_steps=N, or a list")
        if not isinstance(given, text_rows.Rows):
            given = self._read(*self._reader.of_validation(given), steps, "validation_steps")
        return self._reader.pipeline(self._batches(given, batch_size, most=steps).data, cut)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        *args,
        **kwargs,
    ):
        """As in Keras, with texts; see the class."""
        if kwargs.get("_use_cached_eval_dataset"):  # `fit` evaluates its validation_data, which are read already
            return super().evaluate(x, y, batch_size, verbose, sample_weight, steps, *args, **kwargs)
        given = self._read(x, y, sample_weight, steps)
        data = self._reader.answered(given, self._batches(given, batch_size, most=steps))
        with self.compiled_if_long(steps or int(data.cardinality()), data) as (data,), text_rows.in_one_line():
            return super().evaluate(data, None, None, verbose, None, steps, *args, **kwargs)

    def predict(
        self, x: Any, batch_size: int | None = None, verbose: Any = "auto", steps: int | None = None, *args, **kwargs
    ) -> np.ndarray:
        """As in Keras, with texts: probabilities float32 [N, L]; for a regression, numbers [N, 1]."""
        given = self._read(x, None, None, steps)
        batches = self._reader.batches(given, batch_size, most=steps)
        if batches.first is None:  # Keras fails without batches
            return np.zeros([0, self.model.num_outputs], np.float32)
        if batches.data.cardinality() == 1:  # a server gives few texts at once
            data = tf.data.Dataset.from_tensors(self._reader.at_once(batches.first))
        else:
            data = self._reader.answered(given, batches)
        with self.compiled_if_long(steps or int(data.cardinality()), data) as (data,), text_rows.in_one_line():
            return super().predict(data, None, verbose, steps, *args, **kwargs)

    def _kept(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The content of task.json: the task, and the settings that decide the answers; None without the file."""
        kept = self.model.windows.kept if self.model.windows else {"max_seq_length": self.tokenize.max_seq_length}
        return {"task": self._label_map.task}, kept

    def save(self, filepath: str | os.PathLike[str], *args, **kwargs) -> None:
        """As in Keras, into a file NAME.keras; its folder may be new.

        Raises UserError for another ending (the older .h5 cannot hold the model), or if the file cannot be written.
        """
        if not (path := path_of("filepath", filepath)).endswith(".keras"):
            raise UserError(f"{path}: its name must end in .keras; save_folder writes a folder, export a SavedModel")
        with files.made_directory(os.path.dirname(path)), writing(path):
            super().save(path, *args, **kwargs)

    def load_weights(self, filepath: str | os.PathLike[str], *args, **kwargs) -> None:
        """As in Keras. Raises UserError if the file is damaged, or has the variables of another model."""
        files.check_there(path := path_of("filepath", filepath))
        problem = "is no file of this model's weights ({}); give weights of a folder to the call that makes the model"
        with reading(path, OSError, KeyError, ValueError, problem=problem):
            super().load_weights(path, *args, **kwargs)

    def save_folder(self, output_dir: str | os.PathLike[str]) -> None:
        """Writes the files that the script of the task writes; the script, export_saved_model.py and `load` read them.

        Raises UserError if the folder holds another model, or is not writable.
        """
        labels, kept, step = self._label_map, self._kept(), int(self.optimizer.iterations.numpy())
        content = task_file.content(*kept, self.model.config, labels) if kept else None
        folder = path_of("output_dir", output_dir)
        model_folder.save(folder, self.model, step, self.tokenize.tokenizer, labels, content)

    @naming_arguments()
    def export(self, filepath: str | os.PathLike[str], format: str = "tf_saved_model", **kwargs) -> None:
        """Writes a SavedModel with export_saved_model.py's signatures, or its ONNX file, into a new folder.

        `filepath` is "served/films/1" for a server, `format` "tf_saved_model" or "onnx"; `kwargs` are the script's
        settings, such as `quantize`. Raises UserError if the folder exists, or is not writable.
        """
        if os.path.exists(path := os.path.abspath(path_of("filepath", filepath))):
            raise UserError(f"{path}: exists already; give another folder, or remove it")
        with files.made_directory(above := os.path.dirname(path)), tempfile.TemporaryDirectory(dir=above) as folder:
            self.save_folder(weights := os.path.join(folder, "model"))
            of_model = {"task": self.export_as, "max_seq_length": self._row_length, "export_dir": folder}
            basic = self.tokenize.tokenizer.basic_tokenizer
            of_model |= {"init_checkpoint": weights, "do_lower_case": basic.do_lower_case}
            if twice := sorted(of_model.keys() & kwargs):
                raise UserError(f"{twice[0]}: the model decides it, so leave it out")
            kwargs |= {**of_model, **model_folder.model_files(weights), "format": str(format).removeprefix("tf_")}
            os.replace(exporting.export_model(**kwargs), path)


def classifier(
    weights: str | os.PathLike[str],
    labels: Sequence[str] | None = None,
    *,
    regression: bool = False,
    multi_label: bool = False,
    other_task: bool = False,
    max_seq_length: int | None = None,
    window: int | None = None,
    stride: int | None = None,
    pooling: str | None = None,
    bert_config_file: str | os.PathLike[str] | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    do_lower_case: bool | None = None,
    init_from_layers: Sequence[int] | None = None,
    random_seed: int = RANDOM_SEED,
) -> TextModel:
    """A classifier of texts as a Keras model, compiled with the reference's recipe.

    Args:
      weights, bert_config_file, vocab_file, do_lower_case: see `load`.
      labels: the names of the labels, in the order of the outputs; default to the labels of the weights.
      regression: whether a text has a number in place of a label.
      multi_label: whether a text may have several labels, or none.
      other_task: whether weights of other labels are accepted; the output layer is new if their number differs.
      init_from_layers: the blocks of the weights for a model with fewer blocks, for example [0, 2, 4]; None for all.
      max_seq_length: texts are cut to this number of tokens; defaults to the weights' training, else to 128, or to the
        positions of the model if they are fewer.
      window: tokens of a window; with `window` or `stride`, a long text is not cut but read in windows. In a pair, the
        second text is divided.
      stride: tokens between the starts of two windows; defaults to half a window. 0: long texts are cut.
      pooling: "mean" or "max" over the windows of a text. All three default to the weights' training.
      random_seed: determines the new weights of the output layer.

    Raises:
      UserError: as `load`; or the labels are missing, wrong, or differ from the labels of the weights.
    """
    found = Parts(weights, (bert_config_file, vocab_file, do_lower_case), init_from_layers)
    length, windows = row_of(found.kept, found.length, max_seq_length, window, stride, pooling)
    label_map = found.label_map(labels, other_task, regression=regression, multi_label=multi_label)
    settings = (len(label_map.labels), label_map.regression, label_map.multi_label, windows)
    model = found.model(heads.ClassifierModel, *settings, seed=random_seed)
    return TextModel(model, Tokenize(found.tokenizer, MOST_TOKENS if windows else length), label_map)
