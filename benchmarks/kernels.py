"""Prints the longest kernels of a GPU in a profile, by the seconds of all kernels of the same kind.

    python benchmarks/pretraining_step.py --xla --unpad=none --precision=bfloat16 --batch_size=128 --profile_dir=FOLDER
    python benchmarks/kernels.py FOLDER --steps=10 --longest=50

The first command prints the table, too.

XLA numbers the kernels of a program, so kernels whose names differ in these numbers only are one kind: most of them are
the same kernel in each block of the model. The last column has the HLO operation of one of the kernels.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import re
from typing import NamedTuple

import processes


class Kind(NamedTuple):
    """The kernels of a kind: their number, the sum of their seconds, and the HLO operation of one of them."""

    name: str
    count: int
    seconds: float
    operation: str


def kinds(folder: pathlib.Path) -> list[Kind]:
    """The kinds of kernels in the newest profile under a folder, the longest first; at last IDLE.

    Raises:
      SystemExit: the folder has no profile, or the profile has no kernels of a GPU.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    files = sorted(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise SystemExit(f"{folder}: has no profile; see --profile_dir of pretraining_step.py")
    space = xplane_pb2.XSpace.FromString(files[-1].read_bytes())
    counts, seconds, operations, times = collections.Counter(), collections.Counter(), {}, []
    for plane in (plane for plane in space.planes if plane.name.startswith("/device:GPU")):
        # Other lines of a GPU have the same time once more, by operation or by step.
        for line in (line for line in plane.lines if line.name.startswith("Stream")):
            for event in line.events:
                name = re.sub(r"([._]\d+)+(_clone)?$", "", plane.event_metadata[event.metadata_id].name)
                begin = 1000 * line.timestamp_ns + event.offset_ps
                times.append((begin, begin + event.duration_ps))
                counts[name] += 1
                seconds[name] += event.duration_ps / 1e12
                operations[name] = _operation(plane, event)
    if not counts:
        raise SystemExit(f"{files[-1]}: has no kernels of a GPU")
    found = [Kind(name, counts[name], whole, operations[name]) for name, whole in seconds.most_common()]
    return [*found, Kind(IDLE, *_pauses(sorted(times)), "")]


IDLE = "(no kernel runs)"


def _pauses(times: list[tuple[int, int]]) -> tuple[int, float]:
    """The number and the seconds of the pauses between intervals in ps, which are sorted and may overlap."""
    count, idle, busy_until = 0, 0, times[0][0]
    for begin, end in times:
        if begin > busy_until:
            count, idle = count + 1, idle + begin - busy_until
        busy_until = max(busy_until, end)
    return count, idle / 1e12


def _operation(plane, event) -> str:
    """The HLO operation that launched a kernel, "" for other kernels."""
    for stat in event.stats:
        if plane.stat_metadata[stat.metadata_id].name == "hlo_op":
            return stat.str_value or plane.stat_metadata[stat.ref_value].name
    return ""


def table(folder: pathlib.Path, steps: int, longest: int = 20) -> str:
    """The kinds of kernels as a Markdown table: their number and milliseconds in a step, of `steps` in the profile."""
    *found, idle = kinds(folder)
    whole, number = sum(kind.seconds for kind in found), sum(kind.count for kind in found)
    found = [*found[:longest], Kind("all", number, whole, ""), idle]
    rows = [
        [
            kind.name[:60],
            f"{kind.count / steps:.1f}",
            f"{1e3 * kind.seconds / steps:.3f}",
            f"{100 * kind.seconds / whole:.1f}",
            kind.operation[:40],
        ]
        for kind in found
    ]
    return processes.render(["kernels", "in a step", "ms a step", "%", "operation"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="the --profile_dir")
    parser.add_argument("--steps", type=int, default=10, help="the number of steps in the profile")
    parser.add_argument("--longest", type=int, default=20, help="the number of rows")
    flags = parser.parse_args()
    print(table(flags.folder, flags.steps, flags.longest))
