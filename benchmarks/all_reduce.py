"""Measures the time that two workers need to sum the gradients of a step, over networks of several rates.

    python benchmarks/all_reduce.py
    python benchmarks/all_reduce.py --megabits=100,1000 --milliseconds=0.1
    python benchmarks/all_reduce.py --operations       without a network: the sums of several GPUs of one machine

Two processes, each with its own TCP stack (see networks.py), sum gradients with the shapes of a model's variables, with
the function of the training. A further row is without a network: both processes on this machine's loopback. Needs root
and iproute2.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import time
from typing import Any

import machine
import networks
import processes
import workload

from bert_tf2.support import flags
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import MODEL, TO_DO, Options, options, setting

_DTYPES = ("float32", "bfloat16")


@options
class BenchmarkOptions(Options):
    """Measures the time that two workers need to sum the gradients of a step, over networks of several rates."""

    bert_config_file: str | None = setting("The model; BERT-Base by default.", None, group=MODEL, reads=True)
    megabits: str = setting(
        "Rates of the network in megabits per second, separated by commas.", "200,400,800", group=TO_DO
    )
    milliseconds: float = setting("The delay of a packet from worker to worker.", 0.1, group=TO_DO, low=0.0)
    rounds: int = setting("Sums of each row.", 3, group=TO_DO, low=1)
    operations: bool = setting(
        "List the sums in a step of two replicas on this machine instead; on GPUs, NCCL makes them.", False, group=TO_DO
    )
    dtype: str | None = setting("Internal: sum in this type and print the seconds.", None, group=TO_DO)

    def rates(self) -> list[float | None]:
        """The rates in bytes per second; None is loopback. Raises UserError."""
        try:
            return [*(float(rate) * 125_000 for rate in self.megabits.split(",") if rate), None]
        except ValueError as error:
            raise UserError(f"--megabits={self.megabits}: not numbers, separated by commas") from error


def seconds_of_sums(options: BenchmarkOptions) -> list[float]:
    """Runs as a worker of TF_CONFIG; returns the seconds of each sum, without a first sum."""
    import tensorflow as tf

    from bert_tf2 import heads
    from bert_tf2.config import BertConfig
    from bert_tf2.training import workers
    from bert_tf2.training.gradients import Gradients, global_norm, reduce_gradients
    from bert_tf2.weights import checkpoint

    team = workers.connect(workers.find_cluster())
    model = heads.PretrainingModel(BertConfig.from_dict(workload.load_config(options.bert_config_file)))
    shapes = {name: variable.shape for name, variable in checkpoint.trained_variables(model).items()}
    del model
    gradients = {name: tf.random.normal(shape) for name, shape in shapes.items()}
    dtype = tf.as_dtype(options.dtype)

    def norm(found):
        gradients = Gradients({name: tf.identity(values) for name, values in found.items()}, {})
        return global_norm(reduce_gradients(gradients, dtype))

    total = tf.function(lambda found: team.strategy.run(norm, args=(found,)), autograph=False)
    total(gradients)
    found = []
    for _ in range(options.rounds):
        team.wait()
        start = time.monotonic()
        team.strategy.experimental_local_results(total(gradients))[0].numpy()
        found.append(time.monotonic() - start)
    team.wait()  # the other worker may still receive data from this worker
    return found


def sums_of_a_step(options: BenchmarkOptions, dtype: str) -> list[Any]:
    """The tensors that MirroredStrategy sums in a replica's step. Its graph for GPUs has the same sums, with NCCL."""
    import tensorflow as tf

    from bert_tf2 import heads
    from bert_tf2.config import BertConfig
    from bert_tf2.training.devices import build_model
    from bert_tf2.training.loop import Trainer
    from bert_tf2.training.options import LoopOptions

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    sizes = workload.load_config(options.bert_config_file)
    model = build_model(strategy, lambda: heads.PretrainingModel(BertConfig.from_dict(sizes)), 1)
    schedule = {"learning_rate": 1e-4, "num_train_steps": 1000, "num_warmup_steps": 10}
    training = LoopOptions(output_dir="", train_batch_size=2, all_reduce_dtype=dtype, **schedule)
    step = Trainer(model, strategy, training).step.compiled().python_function
    batch = {name: tf.constant(values) for name, values in workload.random_batches(sizes, 1, 1, 16, 2)[0].items()}
    run = tf.function(lambda: strategy.run(step, (batch, tf.constant(1, tf.int64))), autograph=False)
    operations = run.get_concrete_function().graph.get_operations()
    return [one.inputs[0] for one in operations if one.type.startswith("Collective") and one.device.endswith("CPU:0")]


def measure(options: BenchmarkOptions, rate: float | None, dtype: str) -> tuple[float, int]:
    """The median seconds of a sum, and the bytes that a worker sends for a sum (0 on loopback)."""
    with networks.Network(2, delay=options.milliseconds / 1000, rate=rate, mtu=9000) as network:
        addresses = [f"{host}:2222" for host in network.addresses] if rate else ["localhost:2222", "localhost:2223"]
        started = []
        for index in range(2):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            given = {"dtype": dtype, "rounds": options.rounds, "bert_config_file": options.bert_config_file}
            command = processes.ours("all_reduce.py", *processes.flags_of(**given))
            environment = processes.environment(TF_CONFIG=json.dumps(task), TF_NUM_INTRAOP_THREADS="1")
            command = network.command(index, command) if rate else command
            started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        outputs = [process.communicate() for process in started]
        for process, (_, errors) in zip(started, outputs, strict=True):
            if process.returncode:
                raise UserError(f"a worker failed: {(errors.decode().strip().splitlines() or ['without a word'])[-1]}")
        seconds = statistics.median(json.loads(outputs[0][0].splitlines()[-1]))
        return seconds, max(network.sent) // (options.rounds + 1)


def main(options: BenchmarkOptions) -> None:
    if options.dtype:
        flags.load_tensorflow()
        print(json.dumps(seconds_of_sums(options)))
        return
    if options.operations:
        flags.load_tensorflow()
        import tensorflow as tf

        cpu, *_ = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        for dtype in _DTYPES:
            sums = [tensor.shape.num_elements() * tensor.dtype.size for tensor in sums_of_a_step(options, dtype)]
            print(f"{dtype}: {len(sums)} sums, {sum(sums):,} bytes: {', '.join(f'{size:,}' for size in sums)}")
        return
    rates = options.rates()
    if problem := networks.why_not():
        raise UserError(f"there can be no network between two processes here: it {problem}")
    print(machine.describe(), flush=True)
    print(f"{'network':>14}{'type':>10}{'seconds':>9}{'MB sent':>9}")
    for rate, dtype in itertools.product(rates, _DTYPES):
        seconds, sent = measure(options, rate, dtype)
        name, megabytes = (f"{rate / 125_000:.0f} Mbit/s", sent / 1e6) if rate else ("loopback", float("nan"))
        print(f"{name:>14}{dtype:>10}{seconds:>9.2f}{megabytes:>9.0f}", flush=True)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)
