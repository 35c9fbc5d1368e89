"""Compiles the training step for TPUs and GPUs that are not here: `make accelerators`. Nothing runs on them.

    python benchmarks/hlo_on_gpu.py --write=FOLDER --precision=bfloat16     with TensorFlow; for TPUs, --for_tpu
    python benchmarks/against_peers.py --write=PEERS                        the steps of keras-hub and Model Garden
    python benchmarks/accelerators.py FOLDER PEERS/*        with jax[tpu] and JAX's plugin for CUDA, without a GPU

The table has a row for each target:
  - the seconds of the compiler (two compilers run at the same time);
  - the operations of the step before compilation, and the peak memory, as XLA counts them;
  - the compiled instructions, which a GPU launches as kernels, and the bytes of their operands and results;
  - the roofline: no step is faster than its operations at the peak rate, or its bytes at the memory's bandwidth.
If a program has two batch sizes, the last lines show how many examples fit. With --devices, XLA divides the batch, and
a row describes one device, which sums the gradients with the other devices. (In TensorFlow, each device draws its own
dropout; here, all devices draw the dropout of the whole batch, and exchange parts of it.)
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import importlib.metadata
import itertools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import Any, NamedTuple

import hlo_on_gpu
import numpy as np


class Target(NamedTuple):
    """An accelerator by its maker's figures: FLOP/s in bfloat16, bytes/s, GB; and the settings for its compiler."""

    rate: float
    bandwidth: float
    memory: float
    tpu: tuple[str, str] | None = None  # topology, and the type of its machine
    gpu: dict[str, Any] | None = None


TARGETS = {
    "TPU v4": Target(275e12, 1.2e12, 32, tpu=("v4:2x2x1", "v4-8")),
    "TPU v5e": Target(197e12, 0.82e12, 16, tpu=("v5e:2x2", "v5litepod-4")),
    "TPU v6e": Target(918e12, 1.64e12, 32, tpu=("v6e:2x2", "v6e-4")),
    "A100": Target(
        312e12, 2.04e12, 80,
        gpu={"cores": 108, "major": 8, "clock": 1.41, "l2": 40 << 20, "shared": 164 << 10, "name": "A100-SXM4-80GB"},
    ),
    "H100": Target(
        989e12, 3.35e12, 80,
        gpu={"cores": 132, "major": 9, "clock": 1.98, "l2": 50 << 20, "shared": 228 << 10, "name": "H100 80GB HBM3"},
    ),
}  # fmt: skip
_GPU = """gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 fpus_per_core: {fpus}
  shared_memory_per_block: 49152 shared_memory_per_core: {shared} shared_memory_per_block_optin: {optin}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 core_count: {cores} clock_rate_ghz: {clock}
  memory_bandwidth: {bandwidth} l2_cache_size: {l2} device_memory_size: {memory}
  cuda_compute_capability {{ major: {major} minor: 0 }}
}}
platform_name: "CUDA" device_description_str: "NVIDIA {name}"
dnn_version_info {{ major: 9 minor: 8 }} runtime_version {{ major: 12 minor: 9 }}
"""


def topology(target: Target):
    """JAX's description of the devices; sets the environment variables that their compiler reads once in a process."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    if target.tpu:
        shape, machine = target.tpu
        os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": machine}
        os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
        how = {"platform": "tpu", "topology_name": shape}
    else:
        nvcc = importlib.import_module("nvidia.cuda_nvcc").__path__[0]  # ptxas
        own = f"--xla_gpu_autotune_level=0 --xla_gpu_cuda_data_dir={nvcc}"
        os.environ["XLA_FLAGS"] = " ".join([*os.environ.get("XLA_FLAGS", "").split(), own])
        shared = target.gpu["shared"]
        sizes = {"memory": int(target.memory * 2**30), "bandwidth": int(target.bandwidth), "optin": shared - 1024}
        fpus = 64 if target.gpu["major"] == 8 else 128
        config = _GPU.format(fpus=fpus, **sizes, **target.gpu)
        how = {"platform": "cuda", "topology_name": "", "topology": "1x1x4", "target_config": config}
    from jax.experimental import topologies

    return topologies.get_topology_desc(**how)


_SIZES = {"pred": 1, "token": 0, "bf16": 2} | {f"{kind}{8 * n}": n for kind in "fsu" for n in (1, 2, 4, 8)}
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(?:, |$)", re.MULTILINE)
# These instructions move nothing, or bytes that later instructions count: a TPU prefetches slices to its fast memory.
_NOT_COUNTED = re.compile(r"parameter|constant|tuple|get-tuple-element|bitcast|.*-(start|done|update)")


def moved_bytes(text: str) -> tuple[int, int, int]:
    """Returns the bytes of the operands and results of all instructions of a compiled module, and of its all-reduces.

    The third number is the number of these instructions, which a GPU launches as kernels. A fusion counts as one.
    """
    text = re.sub(r"custom-call(\(.*ConcatBitcast)", r"bitcast\1", text)  # joins prefetched slices
    moved, sums, kernels, sizes = 0, 0, 0, {}
    for name, kind, operation, operands in _INSTRUCTION.findall(text[text.index("\nENTRY") :]):
        shapes = re.findall(r"(\w+)\[([\d,]*)\]", kind)
        sizes[name] = sum(_SIZES[dtype] * math.prod(map(int, filter(None, of.split(",")))) for dtype, of in shapes)
        sums += sizes[name] if operation in ("all-reduce", "all-reduce-done") else 0
        if not _NOT_COUNTED.fullmatch(operation):
            kernels += 1
            moved += sizes[name] + sum(sizes.get(operand, 0) for operand in re.findall(r"%([\w.-]+)", operands))
    return moved, sums, kernels


def divided(module, count: int, batch_size: int) -> None:
    """Makes XLA divide arguments with a row for each example among the devices, and replicate all other arguments."""
    from jaxlib.mlir import ir

    main = next(one for one in module.body.operations if getattr(one, "sym_name", None) == ir.StringAttr.get("main"))
    attributes = []
    for argument, given in zip(main.arguments, main.arg_attrs, strict=True):
        shape = ir.RankedTensorType(argument.type).shape
        parts = ",".join([str(count), *["1"] * (len(shape) - 1)])
        of_examples = len(shape) in (1, 2) and shape[0] == batch_size
        how = f"{{devices=[{parts}]<=[{count}]}}" if of_examples else "{replicated}"
        attributes.append(ir.DictAttr.get({**{a.name: a.attr for a in given}, "mhlo.sharding": ir.StringAttr.get(how)}))
    main.arg_attrs = ir.ArrayAttr.get(attributes)
    number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), count)
    module.operation.attributes["mhlo.num_partitions"] = number


def compiled_step(folder: pathlib.Path, name: str, count: int) -> dict[str, Any]:
    """The figures of a step on one of `count` devices; or `failed` with the reason why it could not be compiled."""
    devices = topology(TARGETS[name]).devices[:count]
    import jax
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jaxlib.mlir import ir

    work = json.loads((folder / "work.json").read_text(encoding="utf-8"))
    cpu = jax.devices("cpu")[0].client
    written = xla_client.XlaComputation((folder / "step.hlo").read_bytes()).get_hlo_module()
    flops = xla_client._xla.hlo_module_cost_analysis(cpu, written)["flops"] / count
    with mlir.make_ir_context():
        module = ir.Module.parse(hlo_on_gpu.stablehlo(folder / "step.hlo"))
        if count > 1:
            divided(module, count, work["batch_size"])
    options = compiler.get_compile_options(1, count, np.arange(count).reshape(1, count))
    options.executable_build_options.use_shardy_partitioner = False  # Shardy reads other attributes
    began = time.perf_counter()
    found = {**work, "target": name, "devices": count, "flops": flops}
    try:
        done = devices[0].client.compile(module, _jax.DeviceList(tuple(devices)), options)
    except jax.errors.JaxRuntimeError as error:
        too_large = "RESOURCE_EXHAUSTED" in str(error)
        told = str(error).splitlines()[0][:80].replace("|", "/")
        return found | {"failed": f"more than {TARGETS[name].memory:g}" if too_large else told}
    seconds = time.perf_counter() - began
    kept, text = done.get_compiled_memory_stats(), "".join(one.to_string() for one in done.hlo_modules())
    peak = kept.argument_size_in_bytes + kept.output_size_in_bytes - kept.alias_size_in_bytes + kept.temp_size_in_bytes
    moved, sums, kernels = moved_bytes(text)
    return found | {"seconds": seconds, "moved": moved, "sums": sums, "kernels": kernels, "peak": peak}


def row(found: dict[str, Any]) -> str:
    target, devices = TARGETS[found["target"]], found["devices"]
    step = f"{found['model']}, {found['batch_size'] // devices} x {found['max_seq_length']}, {found['precision']}"
    step += f", one of {devices}, which sum {found.get('sums', 0) / 1e9:.2f} GB" if devices > 1 else ""
    start = f"| {step} | {found['target']} |"
    if "failed" in found:
        return f"{start} | {found['flops'] / 1e9:.0f} | | | {found['failed']} | |"
    bound = max((found["flops"] / target.rate, "FLOP"), (found["moved"] / target.bandwidth, "bytes"))
    return (
        f"{start} {found['seconds']:.0f} | {found['flops'] / 1e9:.0f} | {found['kernels']} |"
        f" {found['moved'] / 1e9:.2f} |"
        f" {found['peak'] / 1e9:.2f} of {target.memory:g} | {1000 * bound[0]:.2f} ({bound[1]}) |"
    )


def largest_batches(rows: list[dict[str, Any]]) -> list[str]:
    """How many examples fit: where a line through the memory of two batches reaches the memory of the target."""
    peaks = collections.defaultdict(dict)
    for found in rows:
        if "peak" in found and found["devices"] == 1:
            kind = f"{found['model']}, {found['max_seq_length']} tokens, {found['precision']}"
            peaks[kind, found["target"]][found["batch_size"]] = found["peak"]
    lines = []
    for (kind, target), of_batches in peaks.items():
        (small, low), (large, high) = (pick(of_batches.items()) for pick in (min, max))
        if high > low:
            most = small + int((2**30 * TARGETS[target].memory - low) * (large - small) / (high - low))
            lines.append(f"{kind}, {target}: about {most} examples fit")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=pathlib.Path, help="the folders from hlo_on_gpu.py --write")
    parser.add_argument("--targets", default=",".join(TARGETS), help="names with commas")
    parser.add_argument("--devices", type=int, choices=(1, 2, 4), default=1, help="devices that share a batch")
    parser.add_argument("--json", action="store_true", help="print the figures of one folder and one target")
    flags = parser.parse_args()
    for folder in flags.folders:
        if not (folder / "work.json").is_file():
            parser.error(f"{folder}: has no work.json; write the folder with hlo_on_gpu.py --write first")
    names = flags.targets.split(",")
    if unknown := {*names} - {*TARGETS}:
        parser.error(f"--targets={flags.targets}: {', '.join(sorted(unknown))} is not one of {', '.join(TARGETS)}")
    if flags.json:
        print(json.dumps(compiled_step(flags.folders[0], names[0], flags.devices)))
        return

    def find(pair: tuple[pathlib.Path, str]) -> dict[str, Any] | None:
        """Compiles in a separate process, because a compiler reads its settings once."""
        folder, name = pair
        for_tpu = json.loads((folder / "work.json").read_text(encoding="utf-8"))["for_tpu"]  # None: for both
        if for_tpu is not None and for_tpu != bool(TARGETS[name].tpu):
            return None
        command = [sys.executable, __file__, str(folder), f"--targets={name}", f"--devices={flags.devices}", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{folder}, {name}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
        return json.loads(done.stdout.splitlines()[-1])

    print("jax", importlib.metadata.version("jax"), "\n")
    print("| step | target | seconds to compile | GFLOP | kernels | GB moved | GB at once | roofline, ms |")
    print("|-|-|-|-|-|-|-|-|")
    rows = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        try:
            for found in filter(None, pool.map(find, itertools.product(flags.folders, names))):
                rows.append(found)
                print(row(found), flush=True)
        finally:  # after an error or Ctrl-C, no further process starts
            pool.shutdown(wait=False, cancel_futures=True)
    print("", *largest_batches(rows), sep="\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
