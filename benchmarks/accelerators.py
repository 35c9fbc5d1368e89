"""The training step, compiled for TPUs and GPUs that are not here: `make accelerators`. Nothing is run on them.

    python benchmarks/hlo_on_gpu.py --write=FOLDER --precision=bfloat16     where TensorFlow is
    python benchmarks/against_peers.py --write=PEERS                        the steps of keras-hub and Model Garden
    python benchmarks/accelerators.py FOLDER PEERS/*  where jax[tpu] and, without a GPU, JAX's plugin for CUDA are

A row for each target: the seconds of its compiler; the operations of the step before it and the memory that it needs at
once, as XLA counts them; the bytes of the operands and results of its instructions; and the roofline: no step is faster
than its operations at the peak rate, or its bytes at the bandwidth of the memory.
"""

from __future__ import annotations

import argparse
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


class Target(NamedTuple):
    """An accelerator by its maker's figures: FLOP/s in bfloat16, bytes/s, GB; and what its compiler asks for."""

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
    """JAX's description of the devices; sets in the environment what their compiler reads once in a process."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    if target.tpu:
        shape, machine = target.tpu
        os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": machine}
        how = {"platform": "tpu", "topology_name": shape}
    else:
        nvcc = importlib.import_module("nvidia.cuda_nvcc").__path__[0]  # ptxas
        os.environ["XLA_FLAGS"] = f"--xla_gpu_autotune_level=0 --xla_gpu_cuda_data_dir={nvcc}"
        shared = target.gpu["shared"]
        sizes = {"memory": int(target.memory * 2**30), "bandwidth": int(target.bandwidth), "optin": shared - 1024}
        fpus = 64 if target.gpu["major"] == 8 else 128
        config = _GPU.format(fpus=fpus, **sizes, **target.gpu)
        how = {"platform": "cuda", "topology_name": "", "topology": "1x1x1", "target_config": config}
    from jax.experimental import topologies

    return topologies.get_topology_desc(**how)


_SIZES = {"pred": 1, "token": 0, "bf16": 2} | {f"{kind}{8 * n}": n for kind in "fsu" for n in (1, 2, 4, 8)}
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(?:, |$)", re.MULTILINE)
# These move nothing, or a part of what the next ones count: a TPU fetches slices ahead into its fast memory.
_NOT_COUNTED = re.compile(r"parameter|constant|tuple|get-tuple-element|bitcast|.*-(start|done|update)")


def moved_bytes(text: str) -> int:
    """The bytes of the operands and results of all instructions of a compiled module, of a fusion as of one."""
    text = re.sub(r"custom-call(\(.*ConcatBitcast)", r"bitcast\1", text)  # of what was fetched ahead
    moved, sizes = 0, {}
    for name, kind, operation, operands in _INSTRUCTION.findall(text[text.index("\nENTRY") :]):
        shapes = re.findall(r"(\w+)\[([\d,]*)\]", kind)
        sizes[name] = sum(_SIZES[dtype] * math.prod(map(int, filter(None, of.split(",")))) for dtype, of in shapes)
        if not _NOT_COUNTED.fullmatch(operation):
            moved += sizes[name] + sum(sizes.get(operand, 0) for operand in re.findall(r"%([\w.-]+)", operands))
    return moved


def compiled_row(folder: pathlib.Path, name: str) -> str:
    """A row of the table."""
    target = TARGETS[name]
    device = topology(target).devices[0]
    import jax
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        module = ir.Module.parse(hlo_on_gpu.stablehlo(folder / "step.hlo"))
    began = time.perf_counter()
    done = device.client.compile(module, _jax.DeviceList((device,)), xla_client.CompileOptions())
    seconds = time.perf_counter() - began
    kept = done.get_compiled_memory_stats()
    peak = kept.argument_size_in_bytes + kept.output_size_in_bytes - kept.alias_size_in_bytes + kept.temp_size_in_bytes
    cpu = jax.devices("cpu")[0].client
    written = xla_client.XlaComputation((folder / "step.hlo").read_bytes()).get_hlo_module()
    flops = xla_client._xla.hlo_module_cost_analysis(cpu, written)["flops"]
    moved = sum(moved_bytes(module.to_string()) for module in done.hlo_modules())
    work = json.loads((folder / "work.json").read_text(encoding="utf-8"))
    bound = max((flops / target.rate, "FLOP"), (moved / target.bandwidth, "bytes"))
    return (
        f"| {work['model']}, {work['batch_size']} x {work['max_seq_length']}, {work['precision']} | {name} |"
        f" {seconds:.0f} | {flops / 1e9:.0f} | {moved / 1e9:.2f} | {peak / 1e9:.2f} of {target.memory:g} |"
        f" {1000 * bound[0]:.2f} ({bound[1]}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=pathlib.Path, help="that hlo_on_gpu.py --write has written")
    parser.add_argument("--targets", default=",".join(TARGETS), help="names with commas")
    flags = parser.parse_args()
    for folder in flags.folders:
        if not (folder / "work.json").is_file():
            parser.error(f"{folder}: has no work.json; write it with hlo_on_gpu.py --write first")
    names = flags.targets.split(",")
    if unknown := {*names} - {*TARGETS}:
        parser.error(f"--targets={flags.targets}: {', '.join(sorted(unknown))} is none of {', '.join(TARGETS)}")
    if len(names) == len(flags.folders) == 1:
        print(compiled_row(*flags.folders, *names), flush=True)
        return
    print("jax", importlib.metadata.version("jax"), "\n")
    print(
        "| step | target | seconds to compile | GFLOP | GB moved | GB at once | roofline, ms |\n|-|-|-|-|-|-|-|",
        flush=True,
    )
    for folder, name in itertools.product(flags.folders, names):  # a compiler reads its settings once in a process
        subprocess.run([sys.executable, __file__, str(folder), f"--targets={name}"], check=True)


if __name__ == "__main__":
    main()
