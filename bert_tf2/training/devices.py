"""The devices on which a model runs, their settings, and the creation of a model on the devices."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf
from absl import logging
from tensorflow.python.framework import config

from bert_tf2 import layers
from bert_tf2.fast import compiled, fused_attention
from bert_tf2.fast.encoder import Plan
from bert_tf2.placement import computes_on
from bert_tf2.support import process, xla_flags
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import Options
from bert_tf2.training import workers
from bert_tf2.training.options import (
    NARROW,
    PRECISIONS,
    DeviceOptions,
    OptimizerOptions,
    ProgramOptions,
    TrainingOptions,
)
from bert_tf2.training.workers import ALONE, Team, workers_of

_HERE = DeviceOptions()
_TPU_PORT = 8470  # of Cloud TPU workers; TensorFlow uses it as well
_AMPERE = (8, 0)  # the compute capability of the first GPUs that compute in bfloat16
_TPU_SECONDS = 5.0  # the time after which a TPU that does not answer is given up


def join(options: TrainingOptions) -> Team:
    """Connects this process with the other workers of a training run, if there are any.

    Call this before anything else starts TensorFlow, and before files in output_dir are read that the chief may change.
    """
    cluster = workers_of(options) if options.do_train else None
    if cluster is None:
        return ALONE
    gpus = tf.config.list_physical_devices("GPU")
    size = len(cluster.names)
    check_batch(options, size * max(1, len(gpus)), size)  # before the connection, because all workers have as many GPUs
    team = workers.connect(cluster)
    team.check_options(options)
    return team


def check_batch(options: OptimizerOptions, replicas: int, workers: int = 1) -> None:
    """Raises UserError if parts of a batch would be unequal or empty; `replicas`: the devices of all workers."""
    if (workers > 1 or options.pack_rows) and options.train_batch_size < replicas:
        raise UserError(
            f"--train_batch_size={options.train_batch_size} is smaller than the number of devices of all workers,"
            f" {replicas}; each device needs an example of every batch"
        )
    parts = options.gradient_accumulation_steps * (replicas if options.gradient_accumulation_steps > 1 else 1)
    if options.train_batch_size % parts:
        raise UserError(
            f"--train_batch_size={options.train_batch_size} is not divisible by {parts}, which is"
            f" --gradient_accumulation_steps={options.gradient_accumulation_steps} times {replicas} devices"
        )


def create_strategy(
    options: DeviceOptions = _HERE, *, several: bool = True, team: Team = ALONE
) -> tf.distribute.Strategy:
    """The strategy of the team, of a TPU if requested, else of all visible GPUs, else of the CPU; logs the devices.

    `several` is False for a model that is called directly, which uses the first of several GPUs.
    """
    process.check_process()
    gpus = tf.config.list_physical_devices("GPU")
    if team.strategy is not None:
        strategy = team.strategy
    elif options.use_tpu:
        strategy = _tpu_strategy(options)
    else:
        many = several and len(tf.config.list_logical_devices("GPU")) > 1
        strategy = tf.distribute.MirroredStrategy() if many else tf.distribute.get_strategy()
    gpus = gpus if several else gpus[:1]
    logging.info("Computing on %s, precision %s", _describe(strategy, gpus), options.precision)
    if computes_on(strategy) == "CPU" and xla_flags.has_gpu():
        logging.warning(
            "this machine has an NVIDIA GPU, but TensorFlow cannot use it and computes on the CPU, many times slower;"
            " install its CUDA libraries: pip install 'tensorflow[and-cuda]' (TF_CPP_MIN_LOG_LEVEL=0 shows the reasons)"
        )
    if computes_on(strategy) == "GPU" and options.precision == "bfloat16":
        oldest = min(compiled.capabilities(), default=_AMPERE)
        if oldest < _AMPERE:
            logging.warning(
                "a GPU of compute capability %d.%d has no products in bfloat16, and computes them more slowly than"
                " float32; use --precision=float16", *oldest,
            )  # fmt: skip
    return strategy


def plan_for(
    options: TrainingOptions, strategy: tf.distribute.Strategy, hidden_size: int, padded: bool = False
) -> Plan:
    """Returns the accelerations of a model; `padded`: whether padding is computed regardless of the options.

    On a GPU, many small operations and sizes that the host must know first can cost more than the padding. Raises
    UserError if --unpad needs shapes that are not fixed, and the device or --xla needs fixed shapes; if
    --attention=fused needs a GPU that is missing; and if it would need a graph for each pair of row counts of two GPUs.
    """
    kind, unpad, compiles = computes_on(strategy), options.unpad, options.xla == "true"
    on_cpu = kind == "CPU" and not compiles
    if padded:
        unpad = "none"
    elif unpad == "auto":
        # In narrower models, calling the operations takes longer than their arithmetic.
        unpad = "groups" if on_cpu and hidden_size >= 128 else "none"
    elif unpad != "none" and (kind == "TPU" or compiles):
        raise UserError(f"--unpad={unpad}: a TPU and --xla compute fixed shapes, padding included; use --unpad=none")
    fused = fused_attention.attend if fuses_attention(options, strategy) else None
    if fused and options.pack_rows and strategy.num_replicas_in_sync > 1:
        if options.attention == "fused":
            raise UserError("--attention=fused with --pack_rows: uses one GPU; set CUDA_VISIBLE_DEVICES=0")
        fused = None
    return Plan(unpad, recompute=options.recompute, share_graph=on_cpu, attention=fused)


def fuses_attention(options: ProgramOptions, strategy: tf.distribute.Strategy) -> bool:
    """Whether programs of XLA compute attention in one kernel. Raises UserError if --attention=fused is impossible."""
    kind = computes_on(strategy)
    if options.attention == "fused" and kind != "GPU":
        raise UserError("--attention=fused: runs on NVIDIA's GPUs, and TensorFlow sees none; give --attention=plain")
    attention = fused_attention.AUTO if options.attention == "auto" else options.attention
    return attention == "fused" and kind == "GPU" and options.precision in NARROW


_ONE_AT_A_TIME = threading.Lock()
# Whether TF32 is allowed and operations are deterministic: first the process' values before all calls of `configured`
# that have not ended, then the values in each of these calls. Calls of several threads end in any order.
_settings: list[tuple[bool, bool]] = []


@contextlib.contextmanager
def configured(options: Options) -> Iterator[None]:
    """Sets TF32 and determinism by a script's `precision` and `deterministic`, and restores both afterwards.

    In the process of a script, memory of GPUs is also taken only as it is needed. This setting cannot be restored.
    """
    for gpu in tf.config.list_physical_devices("GPU") if process.is_script else ():
        with contextlib.suppress(RuntimeError, ValueError):  # in use already, or divided into logical devices
            tf.config.experimental.set_memory_growth(gpu, True)
    with _ONE_AT_A_TIME:
        if not _settings:
            tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
            _settings.append((tf32, config.is_op_determinism_enabled()))
        # TF32 keeps 10 bits of the fraction and is TensorFlow's default on GPUs that have it; here, it is not.
        allows_tf32 = PRECISIONS[getattr(options, "precision", "float32")].allows_tf32
        own = allows_tf32, getattr(options, "deterministic", False) or _settings[0][1]
        _settings.append(own)
        _compute_by(*own)
    try:
        yield
    finally:
        with _ONE_AT_A_TIME:
            _settings.remove(own)
            _compute_by(*_settings[-1])
            if len(_settings) == 1:
                _settings.clear()


def _compute_by(allows_tf32: bool, deterministic: bool) -> None:
    tf.config.experimental.enable_tensor_float_32_execution(allows_tf32)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    else:
        config.disable_op_determinism()


def _describe(strategy: tf.distribute.Strategy, gpus: Sequence[tf.config.PhysicalDevice]) -> str:
    replicas = strategy.num_replicas_in_sync
    kind = computes_on(strategy)
    if kind == "GPU":
        names = [tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in gpus]
        return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    if kind == "TPU":
        return f"{replicas} TPU cores"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"the CPU ({cores} cores)"


def _tpu_strategy(options: DeviceOptions) -> tf.distribute.Strategy:
    """Connects to a TPU. Raises UserError if it cannot be reached."""
    address = options.tpu_name or options.master
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=address, zone=options.tpu_zone, project=options.gcp_project
        )
        for endpoint in resolver.master().split(","):
            _check_answers(endpoint)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        raise UserError(
            f"--use_tpu: no TPU can be reached ({reason}); check --tpu_name, --tpu_zone and --gcp_project, or leave"
            " --use_tpu out"
        ) from error


def _check_answers(endpoint: str) -> None:
    """Raises OSError if no gRPC server answers at "grpc://HOST:PORT". TensorFlow would wait for it without end."""
    if not endpoint.startswith("grpc://"):
        return  # "local", on the machine of a TPU
    import grpc  # a part of TensorFlow's installation

    where = endpoint.removeprefix("grpc://")
    with grpc.insecure_channel(where if ":" in where else f"{where}:{_TPU_PORT}") as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_TPU_SECONDS)
        except grpc.FutureTimeoutError:
            raise OSError(f"no gRPC server answers at {where} within {_TPU_SECONDS:.0f} s") from None


def build_model(strategy: tf.distribute.Strategy, make_model: Callable[[], keras.Model], random_seed: int):
    """Creates a model in the scope of the strategy; the same seed gives the same initial weights."""
    with layers.initial_weights_from(random_seed), strategy.scope():
        return make_model()
