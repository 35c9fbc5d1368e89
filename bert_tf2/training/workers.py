"""Several processes that train one model together, each on its own machine.

Every process (a worker) runs the same script with the same flags, and finds the others in the environment variable
TF_CONFIG, as TensorFlow's users know it:

    TF_CONFIG -> Cluster: the workers        join -> Team: the connected workers
    each step:   a worker's rows of the global batch -> its gradients -> their sum over all workers -> the same update
    between:     `gather`: the number of steps to run next, requests to stop, the end of an evaluation

Only the first worker, the chief, writes files and evaluates; the other workers wait for the chief in `gather`. If a
worker ends, or does not answer for 20 seconds, the other workers end with a message that names it.

TensorFlow waits for missing workers without a message and without end, and Ctrl-C does not reach it. So the workers
wait for each other first, at the address of the chief, which TensorFlow opens only later:

    each other worker -> chief: its number, and values that must agree
    all have connected: chief -> each: `go`, or the reason for a refusal
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import NamedTuple, TypeVar

import tensorflow as tf
from absl import logging

from bert_tf2.data.record_order import Share
from bert_tf2.support import settings
from bert_tf2.support.errors import UserError, and_more
from bert_tf2.support.settings import Options
from bert_tf2.training.options import TrainingOptions

VARIABLE = "TF_CONFIG"
_KINDS = ("chief", "worker")  # not "ps" and "evaluator" of TensorFlow's estimators, nor "master" of older ones
_EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'

_SECONDS_OF_SILENCE = 20  # the silence of a worker after which the others count it as dead
_SECONDS_TO_ANSWER = 2.0
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_QUERIES = 2.0
_CLUSTER = "the cluster in TF_CONFIG"  # a key in `alike` of every worker
_GO, _REFUSED = "go", "refused"  # the chief's answers; a refusal has a sentence
_MOST_BYTES = 1 << 20


Value = TypeVar("Value")


class Cluster(NamedTuple):
    """The workers that train together."""

    names: tuple[str, ...]  # of all workers, the chief first: their task in TF_CONFIG, such as "worker 1"
    addresses: tuple[str, ...]  # HOST:PORT of each worker
    index: int  # the number of this worker

    def name(self, index: int) -> str:
        return f"{self.names[index]} ({self.addresses[index]})"


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


def wait_for_workers(
    cluster: Cluster,
    alike: Mapping[str, int | str],
    *,
    seconds: float = 600.0,
    seconds_between_reminders: float = 20.0,
) -> None:
    """Returns when all workers have called this, on all of them within a second.

    Machines of a cluster start minutes apart, if a scheduler has to find or to prepare them; in Kubernetes, a pod's
    name is known only when the pod runs.

    Args:
      cluster: the workers, and the number of this worker.
      alike: name -> value, of the values that must be the same for all workers.
      seconds: the time to wait for the other workers, and for addresses of their hosts; then UserError is raised.
      seconds_between_reminders: the time between messages in the log that name the missing workers.
    """
    addresses, index = cluster.addresses, cluster.index
    alike = {**alike, _CLUSTER: " ".join(addresses)}
    names = [*map(cluster.name, range(len(addresses)))]
    try:
        listener = socket.create_server(("", _split(addresses[index])[1]), backlog=1024)
    except OSError as error:
        raise UserError(
            f"TF_CONFIG: {names[index]}: its port cannot be opened ({error.strerror}); is another worker running there?"
        ) from error
    with listener:  # at the end, the port is free again for TensorFlow
        hosts = {name: _split(address)[0] for name, address in zip(names, addresses, strict=True)}
        _wait_for_addresses(hosts, seconds)
        patience = _Patience(seconds, seconds_between_reminders)
        if index == 0:
            _gather(listener, alike, names, patience)
        else:
            _report(addresses[0], {"index": index, "alike": alike}, names[0], patience)


def listens(address: str) -> bool:
    """Whether a program accepts connections at HOST:PORT."""
    with contextlib.suppress(OSError):
        _call(address).close()
        return True
    return False


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _call(address: str) -> socket.socket:
    return socket.create_connection(_split(address), timeout=_SECONDS_TO_ANSWER)


def _wait_for_addresses(hosts: Mapping[str, str], seconds: float) -> None:
    """Returns when all `hosts`, by the names of their workers, have addresses, because TensorFlow needs addresses.

    Raises UserError after `seconds`.
    """
    end, waiting = time.monotonic() + seconds, dict(hosts)
    while waiting:
        name, host = next(iter(waiting.items()))
        try:
            socket.getaddrinfo(host, None)
            del waiting[name]
        except (OSError, UnicodeError) as error:  # UnicodeError: not a possible name
            sentence = f"the host of {name} has no address ({error}); correct its name, the same for all workers"
            if time.monotonic() >= end:
                raise UserError(f"TF_CONFIG: {sentence}") from error
            logging.log_first_n(logging.WARNING, "Waiting, because %s", 1, sentence)
            time.sleep(_SECONDS_BETWEEN_QUERIES)


class _Patience:
    """Logs from time to time which workers are missing, and limits the time to wait."""

    def __init__(self, seconds: float, between_reminders: float):
        self.seconds, self._between_reminders = seconds, between_reminders
        self._end = time.monotonic() + seconds
        self._remind_at = time.monotonic() + between_reminders

    def check(self, missing: Sequence[str]) -> None:
        """Raises UserError if the time is over for the missing workers."""
        now, who = time.monotonic(), " and ".join(missing)
        if now >= self._end:
            raise UserError(
                f"{who} did not connect within {self.seconds / 60:.0f} minutes; start the same command there, with a"
                " TF_CONFIG that differs only in its task, and check that the port can be reached"
            )
        if now >= self._remind_at:
            self._remind_at = now + self._between_reminders
            logging.info("Waiting for %s", who)


def _gather(listener: socket.socket, alike: Mapping[str, int | str], names: Sequence[str], patience: _Patience) -> None:
    """The chief's part: waits until all workers are connected at the same time, then answers all of them."""
    there: dict[int, socket.socket] = {}
    answer, met_stranger = {}, False
    with contextlib.ExitStack() as held:
        try:
            while missing := [name for number, name in enumerate(names) if number and number not in there]:
                readable, _, _ = select.select([listener, *there.values()], [], [], _SECONDS_BETWEEN_LOOKS)
                # A worker sends nothing more, so a connection that can be read has ended.
                there = {number: other for number, other in there.items() if other not in readable}
                if listener not in readable:
                    patience.check(missing)
                    continue
                connection, (caller, *_) = listener.accept()
                line = _read_line(held.enter_context(connection))
                if found := _read_worker(line, len(names)):
                    worker, theirs = found
                    there[worker] = connection
                    for what, ours in alike.items():
                        if ours != theirs.get(what):
                            both = f"{names[0]} has {ours}, {names[worker]} has {theirs.get(what)}"
                            raise UserError(f"{what} must be the same for all workers: {both}")
                elif line and not met_stranger:
                    met_stranger = True
                    logging.warning("A program at %s, not a worker, wrote to this port: %r", caller, line[:60])
            answer = {_GO: True}
        except UserError as error:
            answer = {_REFUSED: str(error)}
            raise
        finally:
            for connection in there.values() if answer else ():
                with contextlib.suppress(OSError):  # a worker that has ended; TensorFlow will notice its end
                    connection.sendall(json.dumps(answer).encode() + b"\n")


def _read_line(connection: socket.socket) -> bytes:
    """Reads at most a line, for at most _SECONDS_TO_ANSWER, from a program that has connected; b"" for nothing."""
    end, line = time.monotonic() + _SECONDS_TO_ANSWER, b""
    with contextlib.suppress(OSError):
        while not line.endswith(b"\n") and len(line) < _MOST_BYTES and (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            if not (part := connection.recv(1 << 16)):
                break
            line += part
    return line


def _read_worker(line: bytes, count: int) -> tuple[int, Mapping[str, int | str]] | None:
    """The number of the worker, of `count` workers, that wrote a line, and its `alike`; None for any other program."""
    try:
        found = json.loads(line)
        worker, theirs = found["index"], found["alike"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_worker = type(worker) is int and 0 < worker < count and isinstance(theirs, dict)
    return (worker, theirs) if is_worker and isinstance(theirs.get(_CLUSTER), str) else None


def _report(chief: str, message: Mapping[str, object], name: str, patience: _Patience) -> None:
    """The part of the other workers: calls the chief until it answers. Raises UserError for a refusal."""
    answer, has_warned = {}, False
    while not answer:
        line = b""
        with contextlib.suppress(OSError), _call(chief) as connection:
            connection.sendall(json.dumps(message).encode() + b"\n")
            # The chief answers when all workers have connected, or when its time is over.
            connection.settimeout(patience.seconds)
            line = connection.makefile("rb").readline(_MOST_BYTES)
        answer = _read_answer(line)
        if not answer:  # the chief has not begun yet, or has ended
            if line and not has_warned:
                has_warned = True
                logging.warning("The program at the address of %s is not a worker; it wrote %r", name, line[:60])
            patience.check([name])
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    if _REFUSED in answer:
        raise UserError(answer[_REFUSED])


def _read_answer(line: bytes) -> Mapping[str, object]:
    """The chief's answer; empty for a line of any other program."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(line)
        if isinstance(found, dict) and (found.get(_GO) is True or isinstance(found.get(_REFUSED), str)):
            return found
    return {}
