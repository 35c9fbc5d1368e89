"""Starts a script as several workers on this machine."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens at now."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("localhost", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def tf_config(ports: Sequence[int], index: int) -> str:
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})


class WorkerProcesses:
    """The processes of a command; a context that ends what is still running."""

    def __init__(self, command: Sequence[str], count: int, logs: pathlib.Path, more: Mapping[int, Sequence[str]] = {}):
        """Starts them.

        Args:
          command: the command line, the same for all.
          count: the number of workers.
          logs: a folder for what they print, as 0.log and so on.
          more: further arguments of some workers.
        """
        logs.mkdir(exist_ok=True)
        ports = free_ports(count)
        self._logs = [logs / f"{index}.log" for index in range(count)]
        self.processes = []
        for index, log in enumerate(self._logs):
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CONFIG": tf_config(ports, index)}
            with open(log, "w") as stream:
                self.processes.append(
                    subprocess.Popen(
                        [*command, *more.get(index, ())], env=environment, stdout=stream, stderr=subprocess.STDOUT
                    )
                )

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *exception) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()

    def log(self, index: int) -> str:
        """What a worker has printed so far."""
        return self._logs[index].read_text(errors="replace")

    def wait(self, seconds: float = 120.0) -> list[int]:
        """The exit statuses, once all have ended; raises AssertionError with what they printed if they have not."""
        end = time.monotonic() + seconds
        try:
            return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired:
            raise AssertionError("\n".join(map(self.log, range(len(self.processes))))) from None

    def wait_for(self, text: str, index: int = 0, seconds: float = 120.0) -> None:
        """Returns when a worker has printed a text."""
        end = time.monotonic() + seconds
        while text not in self.log(index):
            assert self.processes[index].poll() is None and time.monotonic() < end, self.log(index)
            time.sleep(0.05)
