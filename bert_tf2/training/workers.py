"""Several processes that train one model together, each on its own machine.

Every process (a worker) runs the same script with the same flags, and finds the others in the environment variable
TF_CONFIG, as TensorFlow's users know it:

    TF_CONFIG -> Cluster: the workers        join -> Team: the connected workers
    each step:   a worker's rows of the global batch -> its gradients -> their sum over all workers -> the same update
    between:     `gather`: the number of steps to run next, requests to stop, the end of an evaluation

Only the first worker, the chief, writes files and evaluates; the other workers wait for the chief in `gather`. If a
worker ends, or does not answer for 20 seconds, the other workers end with a message that names it. Before TensorFlow
connects them, the workers wait for each other in `rendezvous`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import TypeVar

import tensorflow as tf
from absl import logging

from bert_tf2.data.record_order import Share
from bert_tf2.support import settings
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.settings import Options
from bert_tf2.training.options import TrainingOptions
from bert_tf2.training.rendezvous import Cluster, listens, wait_for_workers

VARIABLE = "TF_CONFIG"
_KINDS = ("chief", "worker")  # not "ps" and "evaluator" of TensorFlow's estimators, nor "master" of older ones
_EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'

_SECONDS_OF_SILENCE = 20  # the silence of a worker after which the others count it as dead

Value = TypeVar("Value")


def find_cluster(variables: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster in TF_CONFIG; None if the variable is empty, or if there is only one worker."""
    text = variables.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        found = json.loads(text)
        jobs, task = found.get("cluster"), found.get("task")
        if not jobs and not task:
            return None  # some platforms set such a value for jobs on one machine
        if others := [kind for kind in (*jobs, task["type"]) if kind not in _KINDS and jobs.get(kind, [""])]:
            raise ValueError(
                f"the task {others[0]!r} is of no use: each worker keeps all weights, and the first worker evaluates;"
                ' call the task "worker", or leave its machines out'
            )
        # The chief is first, because TensorFlow counts workers in this order.
        listed = {f"{job} {n}": str(where) for job in _KINDS for n, where in enumerate(jobs.get(job, ()))}
        names, own = [*listed], f"{task['type']} {task['index']}"
        if own not in names:
            raise ValueError(f"the task {own} is not in the cluster: {and_more(names, 8)}")
        for address in listed.values():
            if not re.fullmatch(r".+:\d{1,5}", address) or not 0 < int(address.rpartition(":")[2]) < 2**16:
                raise ValueError(f"{address!r} is not HOST:PORT")
        if len({*listed.values()}) < len(listed):
            raise ValueError(f"two of {and_more([*listed.values()], 8)} are the same; give each worker its own address")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = error if isinstance(error, ValueError) else 'needs a "cluster" and a "task"'
        raise UserError(f"{VARIABLE}: {reason}; as an example: {VARIABLE}='{_EXAMPLE}'") from error
    return Cluster(tuple(names), tuple(listed.values()), names.index(own)) if len(names) > 1 else None


NOTHING_TO_DO = "Only the chief evaluates, predicts and exports: there is nothing to do for this worker"


def workers_of(options: TrainingOptions) -> Cluster | None:
    """The cluster of a call; None if this process is not one of several workers."""
    return None if options.use_tpu else find_cluster()


def is_chief(options: TrainingOptions) -> bool:
    """Whether this process writes files and evaluates: alone, or as the first of several workers. See workers_of."""
    cluster = workers_of(options)
    return cluster is None or cluster.index == 0


class Team:
    """The workers of a training, connected; without arguments, a process that trains alone."""

    def __init__(self, cluster: Cluster | None = None, strategy: tf.distribute.Strategy | None = None):
        self._cluster = cluster
        self.strategy = strategy  # the strategy of all workers; None if alone
        self.index = cluster.index if cluster else 0  # the number of this worker
        self.size = len(cluster.names) if cluster else 1  # the number of workers
        if strategy is not None:
            self._sum = tf.function(lambda row: strategy.run(self._sum_of_rows, args=(row,)), autograph=False)

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    @property
    def share(self) -> Share | None:
        """The rows of a batch that this worker reads; None if alone."""
        if self.strategy is None:
            return None
        replicas = self.strategy.num_replicas_in_sync
        return Share(self.index * replicas // self.size, replicas // self.size, replicas)

    def distribute(self, strategy: tf.distribute.Strategy, dataset: tf.data.Dataset, in_parts: bool = False):
        """Makes an endless dataset, of batches or if `in_parts` of the parts of a Share, ready for `strategy.run`."""
        if not in_parts:
            return strategy.experimental_distribute_dataset(dataset)
        # If a dataset may end, TensorFlow makes all workers exchange before each step whether they have a batch.
        endless = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        return strategy.distribute_datasets_from_function(lambda context: endless)

    def name(self, index: int) -> str:
        return self._cluster.name(index) if self._cluster else "this process"

    def gather(self, number: int) -> list[int]:
        """Returns the numbers, below 2^53, of all workers. Every worker must call this, and waits for the others."""
        if self.strategy is None:
            return [number]
        row = [number if index == self.index else 0 for index in range(self.size)]
        with self.watched():
            future = in_thread(lambda: self._sum(tf.constant(row, tf.float64)))
            while not future.done():  # waits in parts, because Python handles no signal while TensorFlow waits
                futures.wait([future], timeout=0.5)
            return [int(value) for value in self.strategy.experimental_local_results(future.result())[0].numpy()]

    def _sum_of_rows(self, row: tf.Tensor) -> tf.Tensor:
        """[N] -> [N], the sum over all workers; only the first replica of a worker counts."""
        context = tf.distribute.get_replica_context()
        first = context.replica_id_in_sync_group % (self.strategy.num_replicas_in_sync // self.size)
        return context.all_reduce("SUM", tf.where(tf.equal(first, 0), row, 0.0))

    def broadcast_from_chief(self, number: int) -> int:
        return self.gather(number)[0]

    def wait(self) -> None:
        self.gather(0)

    def check_same(self, value: object, what: str) -> None:
        """Raises UserError, with the names of two workers and `what`, if the workers' values, JSON's types, differ."""
        found = self.gather(zlib.crc32(json.dumps(value, sort_keys=True).encode()))
        if len({*found}) > 1:
            other = next(index for index, checksum in enumerate(found) if checksum != found[0])
            raise UserError(f"{self.name(0)} and {self.name(other)} {what}")

    def check_options(self, options: Options) -> None:
        """Raises UserError, on every worker, if the workers were started with different flags; paths may differ."""
        stated = settings.settings_of(type(options)).items()
        values = {name: getattr(options, name) for name, (how, *_) in stated if not how.reads and how.writes is None}
        same = self.gather(zlib.crc32(json.dumps(values, sort_keys=True).encode()))
        for name in values if len({*same}) > 1 else ():
            self.check_same(values[name], f"have other values of --{name}; start all workers with the same command")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Converts the failure of an operation of all workers into a UserError that names the worker."""
        try:
            yield
        except _LOST as error:
            if self.strategy is None:
                raise
            raise UserError(self._loss(str(error))) from error

    def _loss(self, message: str) -> str:
        others = [index for index in range(self.size) if index != self.index]
        named = {" ".join(found) for found in re.findall(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)", message)}
        lost = [index for index in others if not listens(self._cluster.addresses[index])]
        lost = lost or [index for index in others if self._cluster.names[index] in named] or others
        return (
            f"{' or '.join(map(self.name, lost))} has ended or does not answer any more (see its log); start all"
            " workers again, and they continue from the newest checkpoint"
        )


_LOST = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,
)

ALONE = Team()


def in_thread(function: Callable[[], Value]) -> futures.Future[Value]:
    """Begins a function in a thread that ends with the process. Python would wait for the thread of an executor."""
    future: futures.Future[Value] = futures.Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


def connect(cluster: Cluster) -> Team:
    """Starts this worker and waits for the others, before any operation of TensorFlow."""
    logging.info("This is %s of %d workers; waiting for the others", cluster.name(cluster.index), len(cluster.names))
    # TensorFlow waits forever for devices that a worker does not have.
    devices = len(tf.config.list_physical_devices("GPU"))
    alike = {"the number of GPUs": devices, "the version of TensorFlow": tf.__version__}
    wait_for_workers(cluster, alike)
    # TensorFlow has no other interface for the time after which a silent worker counts as dead.
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
    from tensorflow.python.eager import context

    kinds = [name.split()[0] for name in cluster.names]
    jobs = [coordination_config_pb2.CoordinatedJob(name=kind, num_tasks=kinds.count(kind)) for kind in sorted({*kinds})]
    try:
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader=f"/job:{kinds[0]}/replica:0/task:0",
            heartbeat_timeout_in_ms=_SECONDS_OF_SILENCE * 1000,
            coordinated_jobs=jobs,
        )
        return Team(cluster, tf.distribute.MultiWorkerMirroredStrategy())
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        raise UserError(f"{VARIABLE}: the workers cannot be connected ({reason})") from error
