"""The one training loop, and the one way to run a model over a data set without training it.

    read_records -> batch --.
                            v
       each replica: loss_terms -> local gradients
                            v
       all replicas: one sum of gradients -> global norm -> clip once -> AdamWeightDecayOptimizer
                            v
       every so often: progress line, TensorBoard, checkpoint

An update does not depend on how many replicas computed it: every loss is divided by the weights of the *global*
batch, and clipping looks at the sum of all gradients. (The reference clips on each TPU core before it adds up. On one
device the two are the same.) Keras' own `fit` clips before it adds up and divides by each replica's own weights, hence
this loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf2 import checkpoint, optimization
from bert_tf2.config import BertConfig
from bert_tf2.heads import Batch, LossTerm
from bert_tf2.support import console, environment, files, process, progress
from bert_tf2.support.errors import UserError
from bert_tf2.training import tpu


@dataclasses.dataclass(frozen=True)
class DeviceOptions:
    """Where to compute; the reference's TPU flags. Without use_tpu: all visible GPUs, else the CPU."""

    use_tpu: bool = False
    tpu_name: str | None = None
    tpu_zone: str | None = None
    gcp_project: str | None = None
    master: str | None = None
    num_tpu_cores: int = 8


def create_strategy(options: DeviceOptions = DeviceOptions()) -> tf.distribute.Strategy:
    """The distribution strategy: a TPU if asked for, else every GPU that TensorFlow sees, else the one CPU.

    Raises:
      UserError: the TPU cannot be reached, or has another number of cores than num_tpu_cores.
    """
    if options.use_tpu:
        return _tpu_strategy(options)
    gpus = tf.config.list_logical_devices("GPU")
    return tf.distribute.MirroredStrategy() if len(gpus) > 1 else tf.distribute.get_strategy()


def _tpu_strategy(options: DeviceOptions) -> tf.distribute.Strategy:
    strategy = tpu.connect(options.tpu_name or options.master, options.tpu_zone, options.gcp_project)
    if strategy.num_replicas_in_sync != options.num_tpu_cores:
        raise UserError(
            f"--num_tpu_cores={options.num_tpu_cores}, but this TPU has {strategy.num_replicas_in_sync} cores"
        )
    return strategy


def build_model(strategy: tf.distribute.Strategy, make_model: Callable[[], keras.Model], random_seed: int):
    """Makes a model whose variables live where the strategy wants them; the same seed gives the same fresh weights."""
    keras.utils.set_random_seed(random_seed)
    with strategy.scope():
        return make_model()


MOST_STEPS = 2**31
"""No training has as many steps; what is beyond is a typing error."""


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """What one training run is.

    Attributes:
      output_dir: where checkpoints and TensorBoard's events go.
      learning_rate, num_train_steps, num_warmup_steps: the schedule; see optimization.learning_rate_at.
      save_checkpoints_steps: steps between checkpoints. There is one at the start and one at the end as well; 0 leaves
        only the one at the end.
      train_batch_size: examples per step over all replicas, for the examples/s.
      iterations_per_loop: the most steps that run between two looks at the clock.
      random_seed: decides on dropout.
      adam_bias_correction: see optimization.AdamWeightDecayOptimizer.
      length_groups: into how many groups of like length to divide each batch; see split_by_length.
      keep_checkpoint_max: how many checkpoints to keep.
      log_steps: steps between TensorBoard points; there is one at the first step too.
      texts: what TensorBoard shows as text, by its name, in Markdown. The model's configuration is there in any case.
    """

    output_dir: str
    learning_rate: float
    num_train_steps: int
    num_warmup_steps: int
    train_batch_size: int
    save_checkpoints_steps: int = 1000
    iterations_per_loop: int = 1000
    random_seed: int = 12345
    adam_bias_correction: bool = False
    length_groups: int = 1
    keep_checkpoint_max: int = 5
    log_steps: int = 100
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)


def start_from(
    model, output_dir: str, init_checkpoint: str | None, *, will_train: bool = False, may_lack: tuple[str, ...] = ()
) -> int:
    """Gives a model its weights; returns the global step they are of.

    The newest checkpoint in output_dir comes first, then init_checkpoint, as in the reference. (Its global step then
    counts as 0.)

    Args:
      will_train: whether the model is trained before it is used, so that weights may be random.
      may_lack: see checkpoint.check_trained.

    Raises:
      UserError: the weights do not fit the model; or, unless it will be trained, there are none, or its outputs would
        depend on random ones.
    """
    latest = checkpoint.latest_checkpoint(output_dir)
    if latest:
        step = checkpoint.restore(latest, checkpoint.tf1_variables(model), model.config)
        logging.info("Using %s", latest)
        return step
    source = checkpoint.weights_in_use(output_dir, init_checkpoint, will_train)
    if source is None:
        logging.info("No checkpoint in %s and no --init_checkpoint: the weights are random", output_dir)
        return 0
    if not will_train:
        checkpoint.check_trained(model, source, may_lack)
    logging.info(checkpoint.initialize(model, init_checkpoint))
    return 0


class Trainer:
    """Trains a model: `Trainer(...)`, then `start()`, then `train(dataset)`."""

    def __init__(self, model, strategy: tf.distribute.Strategy, options: TrainOptions):
        self._model = model
        self._strategy = strategy
        self._options = options
        self._variables = checkpoint.trained_variables(model)
        with strategy.scope():
            self._optimizer = optimization.AdamWeightDecayOptimizer(
                self._variables, bias_correction=options.adam_bias_correction
            )
        self._folder = checkpoint.CheckpointFolder(options.output_dir, options.keep_checkpoint_max)
        self.global_step = 0

    @property
    def _state(self) -> dict[str, tf.Variable]:
        """All that a checkpoint holds, by name."""
        return {**checkpoint.tf1_variables(self._model), **self._optimizer.slots}

    def start(self, init_checkpoint: str | None = None) -> int:
        """Continues from the newest checkpoint in output_dir, or else loads init_checkpoint; returns the global step.

        Raises:
          UserError: the checkpoint does not fit this model.
        """
        latest = checkpoint.latest_checkpoint(self._options.output_dir)
        if latest:
            self.global_step = checkpoint.restore(latest, self._state, self._model.config)
            if self.global_step >= self._options.num_train_steps:
                logging.info(
                    "%s is already at step %d of %d: nothing left to train",
                    latest, self.global_step, self._options.num_train_steps,
                )  # fmt: skip
            else:
                logging.info("Continuing from %s at step %d", latest, self.global_step)
        elif init_checkpoint:
            logging.info(checkpoint.initialize(self._model, init_checkpoint))
        else:
            logging.info("Starting from random weights")
        return self.global_step

    def train(
        self,
        dataset: tf.data.Dataset,
        *,
        explain: Callable[[], UserError | None] = lambda: None,
        evaluate: Callable[[int], bool] | None = None,
        eval_steps: int = 0,
    ) -> int:
        """Runs the steps that are left, and returns the step it ends at.

        Args:
          dataset: endless batches.
          explain: called when reading the data fails; returns what is wrong with it.
          evaluate: called with the step every `eval_steps` steps and at the end, each time after a checkpoint has been
            written; True ends the training.
          eval_steps: see above; 0 for never.

        Raises:
          UserError: the data cannot be read, or the loss is no longer a number.
          KeyboardInterrupt: told to stop (Ctrl-C, SIGTERM); a checkpoint of the last complete step has been written.
        """
        options = self._options
        if self.global_step >= options.num_train_steps:
            return self.global_step
        iterator = iter(self._strategy.experimental_distribute_dataset(dataset))
        steps = self._compile()
        watch = _Watch(options, self.global_step, self._model.config)
        save = _Every(options.save_checkpoints_steps or options.num_train_steps, self.global_step)
        look = _Every(eval_steps if evaluate else 0, self.global_step)
        self._check_space()
        if options.save_checkpoints_steps:
            self._save()
        with _StopRequest() as stop, watch:
            while self.global_step < options.num_train_steps:
                count = watch.steps_until_next_look(self.global_step, min(save.next, look.next))
                with _explained(explain):
                    sums = steps(iterator, tf.constant(self.global_step, tf.int64), tf.constant(count))
                self.global_step += count
                watch.report(self.global_step, count, {name: float(value) for name, value in sums.items()})
                last = self.global_step >= options.num_train_steps
                stopping = stop.requested
                looking = look.due(self.global_step, last)
                if save.due(self.global_step, last or stopping or looking):  # what was evaluated is not lost by a kill
                    self._save()
                enough = looking and evaluate(self.global_step)
                if stopping and not last:
                    raise stop.stopped(
                        f"stopped after step {self.global_step}, which is saved; the same command continues there"
                    )
                if enough:
                    break
                watch.resume()
        return self.global_step

    def _check_space(self) -> None:
        """Looks whether the disk has room for a checkpoint, and warns if not for all of them.

        While the newest is written there is one more than are kept.
        """
        options = self._options
        size = sum(4 * math.prod(variable.shape) for variable in self._state.values())
        interval = options.save_checkpoints_steps or options.num_train_steps
        to_come = 1 + math.ceil((options.num_train_steps - self.global_step) / interval)
        missing = options.keep_checkpoint_max + 1 - self._folder.count
        environment.check_space(options.output_dir, size, "the checkpoints", max(1, min(to_come, missing)) * size)

    def _save(self) -> None:
        try:
            self._folder.save(self._state, self.global_step)
        except UserError as error:
            latest = checkpoint.latest_checkpoint(self._options.output_dir)
            way_back = f"; {latest} is there, the same command continues from it" if latest else ""
            raise UserError(f"{error}{way_back}") from error

    def compiled_step(self):
        """One training step as a graph, on the default strategy: (batch, step) -> measures. For measurements."""
        return tf.function(self._replica_step)

    def _compile(self):
        """A graph that runs several steps and returns the sums of what they measured."""
        strategy = self._strategy

        @tf.function(reduce_retracing=True)
        def steps(iterator, first: tf.Tensor, count: tf.Tensor) -> dict[str, tf.Tensor]:
            sums = dict.fromkeys((*_MEASURES, *self._model.loss_names), tf.constant(0.0))
            for offset in tf.range(count):
                step = first + tf.cast(offset, tf.int64)
                measured = strategy.run(self._replica_step, args=(next(iterator), step))
                sums = {name: value + strategy.reduce("SUM", measured[name], axis=None) for name, value in sums.items()}
            return sums

        return steps

    def _replica_step(self, batch: Batch, step: tf.Tensor) -> dict[str, tf.Tensor]:
        """One step on a replica's share of the batch. Returns measures of which the sum over the replicas counts."""
        context = tf.distribute.get_replica_context()
        replica = context.replica_id_in_sync_group
        seed = tf.random.experimental.stateless_fold_in([self._options.random_seed, 0], step)
        seed = tf.random.experimental.stateless_fold_in(seed, replica)
        values, gradients = local_gradients(self._model, self._variables, batch, seed, self._options.length_groups)
        gradients, norm = reduce_gradients(gradients)
        learning_rate = optimization.learning_rate_at(
            step, self._options.learning_rate, self._options.num_train_steps, self._options.num_warmup_steps
        )
        self._optimizer.apply_gradients(gradients, learning_rate, step, optimization.clip_scale(norm))
        once = tf.cast(tf.equal(replica, 0), tf.float32)  # these are the same on every replica
        return {**values, "gradient_norm": once * norm, "learning_rate": once * learning_rate}


_MEASURES = ("loss", "gradient_norm", "learning_rate")


def split_by_length(batch: Batch, groups: int) -> list[Batch]:
    """Divides the rows of a batch into groups of like length, each only as wide as its own longest row.

    A batch is as wide as its longest row, and most rows are much shorter. In groups there is little padding left to
    compute, and the sum over the groups is the sum over the batch: the update is the same.

    Args:
      batch: its features of two dimensions have a column for each token, as those of the fine-tuning tasks have.
      groups: how many; they have equally many rows, but for the rounding.
    """
    mask = batch["input_mask"]  # [B, F]
    columns = tf.range(1, tf.shape(mask)[1] + 1)
    lengths = tf.reduce_max(tf.cast(mask > 0, tf.int32) * columns, axis=1)  # [B]: the last column with a token
    order = tf.argsort(lengths, stable=True)
    rows = tf.shape(order)[0]
    parts = []
    for group in range(groups):
        chosen = order[rows * group // groups : rows * (group + 1) // groups]
        width = tf.maximum(tf.reduce_max(tf.gather(lengths, chosen)), 1)
        picked = {name: tf.gather(values, chosen) for name, values in batch.items()}
        parts.append({name: v[:, :width] if v.shape.rank == 2 else v for name, v in picked.items()})
    return parts


def _loss_terms(model, batch: Batch, dropout_seed: tf.Tensor, length_groups: int) -> list[LossTerm]:
    """The model's loss terms for a batch, computed group by group if there are several."""
    if length_groups == 1:
        return model.loss_terms(batch, dropout_seed=dropout_seed)
    of_groups = [
        model.loss_terms(part, dropout_seed=tf.random.experimental.stateless_fold_in(dropout_seed, group))
        for group, part in enumerate(split_by_length(batch, length_groups))
    ]
    return [
        terms[0]._replace(total=tf.add_n([t.total for t in terms]), weight=tf.add_n([t.weight for t in terms]))
        for terms in zip(*of_groups, strict=True)
    ]


def local_gradients(
    model, variables: Mapping[str, tf.Variable], batch: Batch, dropout_seed: tf.Tensor, length_groups: int = 1
):
    """This replica's part of the losses and of their gradients; the parts of all replicas add up to the whole.

    Returns:
      Losses by name (`loss` is their sum) and gradients by variable name, tf.Tensor or tf.IndexedSlices.
    """
    context = tf.distribute.get_replica_context()
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(list(variables.values()))
        values = {}
        for term in _loss_terms(model, batch, dropout_seed, length_groups):
            weight = context.all_reduce("SUM", tf.stop_gradient(term.weight))
            values[term.name] = term._replace(weight=weight).mean()
        loss = tf.add_n(list(values.values()))
    gradients = tape.gradient(loss, list(variables.values()))
    return {**values, "loss": loss}, dict(zip(variables, gradients, strict=True))


def reduce_gradients(gradients: Mapping[str, optimization.Gradient]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Adds the gradients up over the replicas.

    Returns:
      Dense gradients by name, and their global norm as optimization.square_norm counts it.
    """
    context = tf.distribute.get_replica_context()
    names = list(gradients)
    lookups = [g for g in gradients.values() if isinstance(g, tf.IndexedSlices)]
    square_of_lookups = tf.add_n([optimization.square_norm(g) for g in lookups]) if lookups else tf.constant(0.0)
    dense = [tf.convert_to_tensor(gradients[name]) for name in names]
    *dense, square = context.all_reduce("SUM", [*dense, square_of_lookups])
    squares = [
        optimization.square_norm(g)
        for name, g in zip(names, dense, strict=True)
        if not isinstance(gradients[name], tf.IndexedSlices)
    ]
    return dict(zip(names, dense, strict=True)), tf.sqrt(tf.add_n([square, *squares]))


class _Every:
    """Something that is due every so many steps, counted from the first; never, if that number is 0."""

    def __init__(self, steps: int, first: int):
        self._steps = steps
        self._last = first

    @property
    def next(self) -> float:
        return self._last + self._steps if self._steps else math.inf

    def due(self, step: int, in_any_case: bool) -> bool:
        if not self._steps or not (step >= self.next or in_any_case):
            return False
        self._last = step
        return True


@contextlib.contextmanager
def _explained(explain: Callable[[], UserError | None]):
    """Turns a failure to read the data into an error that names file and record."""
    try:
        yield
    except (
        tf.errors.InvalidArgumentError,
        tf.errors.DataLossError,
        tf.errors.OutOfRangeError,
        StopIteration,
        UnicodeDecodeError,  # TensorFlow fails to tell what is wrong with a record that is no Example
    ) as error:
        logging.info("The data cannot be read; looking for the record at fault")
        reason = explain()
        if reason is None:
            raise
        raise reason from error


class _StopRequest:
    """Turns signals that stop a process into a request that the loop sees when it next looks; a second one stops it.

    Python hears of a signal when the graph that is running returns, which it does every few seconds.
    """

    def __enter__(self) -> _StopRequest:
        self._request = process.StopRequest()
        self._before = process.handle_signals(self._on_signal)
        return self

    @property
    def requested(self) -> bool:
        return self._request.stopped is not None

    def stopped(self, message: str) -> process.Stopped:
        """The exception that ends the script as the signal wants it."""
        return process.Stopped(self._request.stopped.number, message)

    def _on_signal(self, number: int, frame) -> None:
        new = self._request.is_new(number)
        if new:
            logging.info("Stopping; once more stops without saving")
        elif new is False:
            raise process.Stopped(number, "stopped at once; the last checkpoint is what remains")

    def __exit__(self, *exception) -> None:
        process.restore_signals(self._before)


class _Watch:
    """Decides when to look at the running steps, and tells what it sees: on the log, and points for TensorBoard."""

    _SECONDS_BETWEEN_LOOKS = 5.0

    def __init__(self, options: TrainOptions, step: int, config: BertConfig):
        self._options = options
        self._first = step
        self._writer = tf.summary.create_file_writer(options.output_dir)
        self._look_at = time.monotonic()
        self._seconds_per_step: float | None = None
        self._sums: dict[str, float] = {}
        self._summed = 0
        self._point_at, self._point_step = self._look_at, step
        self._progress = progress.Progress(
            "Training", options.num_train_steps, "steps", done=step,
            contents=(options.train_batch_size, "examples"), note="the first step takes the longest", tell_ends=True,
        )  # fmt: skip
        self._write_texts(config)

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self._progress.close(complete=kind is None)
        self._writer.close()

    def _write_texts(self, config: BertConfig) -> None:
        texts = {**self._options.texts, "bert_config": f"```\n{config.to_json_string()}```"}
        with self._writer.as_default(step=self._first):
            for name, text in texts.items():
                tf.summary.text(name, text)

    def steps_until_next_look(self, step: int, next_stop: float) -> int:
        """How many steps to run now: up to the next stop, point or end, and for no more than some seconds."""
        options = self._options
        next_point = step + 1 if step == self._first else (step // options.log_steps + 1) * options.log_steps
        count = int(min(options.num_train_steps, next_stop, next_point)) - step
        if self._seconds_per_step is None:  # nothing is known of the speed yet: one step at a time
            return 1
        seconds = 0.5 if progress.on_terminal() else self._SECONDS_BETWEEN_LOOKS
        count = min(count, max(1, int(seconds / self._seconds_per_step)))
        return min(count, options.iterations_per_loop)

    def report(self, step: int, count: int, sums: Mapping[str, float]) -> None:
        """Takes in the sums over `count` steps that end at `step`."""
        now = time.monotonic()
        if not (math.isfinite(sums["loss"]) and math.isfinite(sums["gradient_norm"])):
            raise UserError(
                f"the loss or its gradient is no longer a number within the {count} steps before step {step}; lower"
                " --learning_rate, or"
                f" look at the last checkpoint in {self._options.output_dir}"
            )
        if step - count > self._first:  # the very first step includes the making of the graph
            self._seconds_per_step = (now - self._look_at) / count
        self._look_at = now
        self._summed += count
        self._sums = {name: self._sums.get(name, 0.0) + value for name, value in sums.items()}
        is_point = step % self._options.log_steps == 0 or step - count == self._first
        if is_point or step == self._options.num_train_steps:
            self._point(step, now)
        self._progress.advance(count, f"loss {sums['loss'] / count:.4f}")

    def resume(self) -> None:
        """Leaves out of the rates what was done since the last report: saving and evaluating."""
        away = time.monotonic() - self._look_at
        self._look_at += away
        self._point_at += away
        self._progress.leave_out(away)

    def _point(self, step: int, now: float) -> None:
        """TensorBoard: means over the steps since the last point."""
        speed = (step - self._point_step) * self._options.train_batch_size / max(now - self._point_at, 1e-9)
        with self._writer.as_default(step=step):
            for name, value in self._sums.items():
                tf.summary.scalar(name, value / self._summed)
            tf.summary.scalar("examples/sec", speed)
        self._writer.flush()
        self._sums, self._summed = {}, 0
        self._point_at, self._point_step = now, step


class Runner:
    """Runs a model over data sets, without dropout. One graph serves all of them."""

    def __init__(self, model, strategy: tf.distribute.Strategy):
        self._strategy = strategy

        @tf.function(reduce_retracing=True)
        def step(batch):
            return strategy.run(lambda part: {**part, **model.outputs(part)}, args=(batch,))

        self._step = step

    def run(
        self, dataset: tf.data.Dataset, *, explain: Callable[[], UserError | None] = lambda: None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields what the model says of each batch.

        Yields:
          For every batch, in order: the batch's own features and the model's `outputs`, as arrays with a row per
          example in the order of the data, whatever the number of replicas.

        Raises:
          UserError: the data cannot be read; `explain` says why.
        """
        iterator = iter(self._strategy.experimental_distribute_dataset(dataset))
        while True:
            with _explained(explain):
                batch = next(iterator, None)
            if batch is None:
                return
            yield {
                name: np.concatenate([part.numpy() for part in self._strategy.experimental_local_results(value)])
                for name, value in self._step(batch).items()
            }


def hyperparameters(options) -> dict[str, str]:
    """The settings of a call (a dataclass) as TrainOptions.texts takes them: a table in Markdown."""
    rows = [f"| {name} | {value} |" for name, value in sorted(dataclasses.asdict(options).items())]
    return {"hyperparameters": "\n".join(["| setting | value |", "|-|-|", *rows])}


def write_eval_results(output_dir: str, results: Mapping[str, float]) -> None:
    """Writes `eval_results.txt` as the reference does: a line `key = value` for each key, sorted; and logs it."""
    lines = [f"{key} = {results[key]!s}" for key in sorted(results)]
    logging.info("%s", console.table("Evaluated:", {key: results[key] for key in sorted(results)}))
    files.write_text(os.path.join(output_dir, "eval_results.txt"), "".join(line + "\n" for line in lines))
    measured = {key: value for key, value in results.items() if key != "global_step"}
    write_scalars(os.path.join(output_dir, "eval"), int(results.get("global_step", 0)), measured)


def write_scalars(folder: str, step: int, values: Mapping[str, float]) -> None:
    """Adds points of one step to TensorBoard's events in a folder."""
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default(step=step):
        for name, value in values.items():
            tf.summary.scalar(name, value)
    writer.close()
