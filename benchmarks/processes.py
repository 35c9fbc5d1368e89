"""Runs programs in separate processes to time them, and stores results, so that an interrupted call can resume."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import Options, WrongSetting

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"


class Failed(UserError):
    """A program failed; the message is the last line that it wrote."""


def check_words(flag: str, value: str, known: Collection[Any]) -> None:
    """Raises WrongSetting if a word of a flag, separated by commas, is not known."""
    names = [*map(str, known)]
    if unknown := [word for word in value.split(",") if word not in names]:
        raise WrongSetting(f"--{flag}: {unknown[0]!r} is not one of {', '.join(names)}")


class Results:
    """Results by name, a line of JSON each, in a file.

    With a revision, only results of the same revision are known.
    """

    def __init__(self, path: str | Path, revision: str = ""):
        self._path, self._revision = Path(path), revision
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def known(self) -> dict[str, dict[str, Any]]:
        """All results by name; the last result of each name."""
        if not self._path.exists():
            return {}
        results = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # a line that a killed process did not complete
                results.append(json.loads(line))
        return {r["name"]: r for r in results if not self._revision or r.get("revision") == self._revision}

    def add(self, name: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """Stores a result, and returns it as it is stored."""
        stored = {"name": name, **({"revision": self._revision} if self._revision else {}), **result}
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(("\n" if text and not text.endswith("\n") else "") + json.dumps(stored) + "\n")
        return stored

    def get(self, name: str, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The known result of this name; calls `measure` if there is no result, or only a failed result."""
        known = self.known().get(name)
        return known if known and "failed" not in known else self.add(name, measure())


def results_of(given: Options, *free: str) -> Results:
    """The results in --work_dir. Raises UserError if a call with other settings, but for `free`, left files there."""
    wanted = {name: value for name, value in vars(given).items() if name not in ("work_dir", *free)}
    path = Path(given.work_dir) / "settings.json"
    is_used = path.exists() and len([*path.parent.iterdir()]) > 1  # no other file is there after a wrong path
    found = json.loads(path.read_text(encoding="utf-8")) if is_used else wanted
    if other := [name for name, value in wanted.items() if found.get(name) != value]:
        cure = f"give another --work_dir for --{other[0]}={wanted[other[0]]}"
        raise UserError(f"{path}: the results here are of --{other[0]}={found.get(other[0])}; {cure}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
    return Results(path.with_name("results.jsonl"))


def revision() -> str:
    """The commit of this checkout, with a digest of uncommitted changes; the date if there is no git."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout

    try:
        head, changed = git("rev-parse", "--short", "HEAD").decode().strip(), git("diff", "HEAD", "--", "*.py")
    except (OSError, subprocess.CalledProcessError):
        return time.strftime("%Y-%m-%d")
    return f"{head}+{hashlib.sha1(changed).hexdigest()[:7]}" if changed else head


def environment(**variables: str) -> dict[str, str]:
    """The environment of a benchmark's process, in which the benchmarks and this project can be imported.

    Keeps the present PYTHONPATH, because some machines find TensorFlow through it.
    """
    paths = [str(ROOT), str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TF_CPP_MIN_LOG_LEVEL": "2", **variables}


def run(command: Sequence[str], log: str | Path, **variables: str) -> float:
    """Runs a command with its output in the file `log`, and returns the seconds it took.

    Raises:
      Failed: its status is not 0.
    """
    began = time.monotonic()
    with open(log, "w", encoding="utf-8") as stream:
        done = subprocess.run(
            command, check=False, stdout=stream, stderr=subprocess.STDOUT, env=environment(**variables)
        )
    if done.returncode:
        raise Failed(f"{_last_line(Path(log).read_text(errors='replace'), done.returncode)} (all of it is in {log})")
    return time.monotonic() - began


class Watched(NamedTuple):
    """The seconds of a process and its peaks of memory in bytes, as far as the system reports them.

    Attributes:
      resident: the resident memory, including the code of libraries, which processes share.
      of_children: the largest `resident` of a process that it started.
    """

    seconds: float
    resident: float
    of_children: float


def watch(command: Sequence[str], log: str | Path) -> Watched:
    """Runs a command as `run` does, and samples its memory continuously."""
    began = time.perf_counter()
    resident = of_children = 0.0
    with open(log, "wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment()) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None:
            resident = max(resident, _memory(process.pid))
            with contextlib.suppress(OSError):
                of_children = max([of_children, *map(_memory, children.read_text().split())])
            time.sleep(0.01)
    if process.returncode:
        raise Failed(_last_line(Path(log).read_text(errors="replace"), process.returncode))
    return Watched(time.perf_counter() - began, resident, of_children)


def _memory(pid: int | str) -> float:
    """The peak of the resident memory of a process; 0 if the system does not report it."""
    with contextlib.suppress(OSError):
        rows = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return next((1024 * float(row[1]) for row in rows if row[0] == "VmHWM:"), 0.0)
    return 0.0


def measure(command: Sequence[str], limit: float | None = None, **variables: str) -> dict[str, Any]:
    """Runs a program and returns the JSON object in the last line of its standard output.

    Raises:
      Failed: its status is not 0, or there is no such line.
      subprocess.TimeoutExpired: the program took longer than `limit` seconds.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment(**variables), timeout=limit
        )
    except OSError as error:
        raise Failed(str(error)) from error
    if done.returncode:
        raise Failed(_last_line(done.stderr or done.stdout, done.returncode))
    try:
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (IndexError, ValueError, TypeError) as error:
        raise Failed(f"printed no result: {_last_line(done.stdout, 0)}") from error


def script(name: str, **flags: Any) -> list[str]:
    """The command line of a script of this project; a flag whose value is None is left out."""
    return [sys.executable, str(ROOT / name), *flags_of(**flags)]


def ours(program: str, *arguments: str) -> list[str]:
    """The command line of a program in benchmarks/."""
    return [sys.executable, str(BENCHMARKS / program), *arguments]


def flags_of(**flags: Any) -> list[str]:
    """A word of a command line for each flag whose value is not None."""
    return [f"--{name}={value}" for name, value in flags.items() if value is not None]


def in_turn(results: Results, program: str, sides: Mapping[str, Sequence[str]], rounds: int) -> dict[str, list[dict]]:
    """Runs a program of benchmarks/ with the arguments of each side, in turn; returns its results by side.

    Raises:
      Failed: see measure.
    """
    measured: dict[str, list[dict]] = {name: [] for name in sides}
    for number, (name, arguments) in itertools.product(range(1, rounds + 1), sides.items()):
        key = f"{program} {' '.join(arguments)} {number}"
        measured[name].append(results.get(key, lambda words=arguments: measure(ours(program, *words))))
    return measured


def ends_of_steps(folder: str | Path) -> dict[int, float]:
    """The time (time.time()) at the end of each training step that has an event for TensorBoard."""
    from bert_tf2.support.process import load_tensorflow

    load_tensorflow()  # hides messages about devices that the import below would log
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    ends: dict[int, float] = {}
    for path in sorted(Path(folder).glob("events.out.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            if event.HasField("summary"):  # not the event at the start, which has the number of the first step
                ends[event.step] = min(event.wall_time, ends.get(event.step, event.wall_time))
    return ends


def seconds_to_first_step(folder: str | Path, began: float) -> float:
    """The seconds from `began` (time.time()) to the end of the first training step."""
    return ends_of_steps(folder)[1] - began


# Behind the reason of a failure, TensorFlow writes where it failed.
_PLACE = re.compile(r"\s*(\[\[\{\{node|@ +0x|\*\*\*|$)")


def _last_line(text: str, status: int) -> str:
    lines = [line for line in text.splitlines() if not _PLACE.match(line)]
    return lines[-1].strip()[:300] if lines else f"status {status}"


def spread(values: Iterable[float]) -> str:
    """The mean of values, and their range if there are several."""
    values = [*values]
    text = f"{statistics.mean(values):.3f}" if values else ""
    return f"{text} ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else text


def render(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that is readable on a screen: columns are aligned, to the right except for the first column."""
    widths = [max(len(row[n]) for row in [header, *rows]) for n in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return f"| {' | '.join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)])} |"

    rule = "|".join("-" * (width + 2) if n == 0 else "-" * (width + 1) + ":" for n, width in enumerate(widths))
    return "\n".join([line(header), f"|{rule}|", *map(line, rows)])
