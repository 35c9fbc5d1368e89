"""Starts a script as several workers on this machine."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from command_lines import ROOT
from pretraining_text import VOCABULARY
from unmasked_data import LENGTH, PREDICTIONS, make

from bert_tf2.config import BertConfig

if TYPE_CHECKING:
    import networks


def free_addresses(count: int, hosts: Sequence[str] = ()) -> list[str]:
    """HOST:PORT, of ports that nothing listens at now."""
    held = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return [f"{host}:{port}" for host, port in zip(hosts or ["localhost"] * count, ports, strict=True)]


def tf_config(addresses: Sequence[str], index: int) -> str:
    return json.dumps({"cluster": {"worker": [*addresses]}, "task": {"type": "worker", "index": index}})


class WorkerProcesses:
    """The processes of a command; a context that ends those that still run."""

    def __init__(self, command: Sequence[str], count: int, logs: pathlib.Path, network: networks.Network | None = None):
        """Starts `count` of them; in a network, each is a host. `logs` is a folder."""
        logs.mkdir(exist_ok=True)
        addresses = free_addresses(count, network.addresses if network else ())
        self._logs = [logs / f"{index}.log" for index in range(count)]
        self.processes = []
        for index, log in enumerate(self._logs):
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CONFIG": tf_config(addresses, index)}
            given = network.command(index, command) if network else command
            with open(log, "w") as stream:
                self.processes.append(subprocess.Popen(given, env=environment, stdout=stream, stderr=subprocess.STDOUT))

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *exception) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()

    def log(self, index: int) -> str:
        """The lines that a worker has printed so far."""
        return self._logs[index].read_text(errors="replace")

    def last_line(self, index: int) -> str:
        return self.log(index).rstrip().rpartition("\n")[2]

    def wait(self, seconds: float = 120.0) -> list[int]:
        """The exit statuses, once all have ended; raises AssertionError with their logs if they have not."""
        end = time.monotonic() + seconds
        try:
            return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired:
            raise AssertionError("\n".join(map(self.log, range(len(self.processes))))) from None

    def wait_for(self, text: str, seconds: float = 120.0) -> None:
        """Returns when the first worker has printed a text."""
        end = time.monotonic() + seconds
        while text not in self.log(0):
            assert self.processes[0].poll() is None and time.monotonic() < end, self.log(0)
            time.sleep(0.05)


def pretraining_command(folder: pathlib.Path, num_documents: int = 40, **sizes) -> list[str]:
    """A pretraining that draws its masks, and evaluates; without --output_dir and --num_train_steps.

    Without `sizes` of another model there is no dropout.
    """
    records = make(folder, num_documents=num_documents)
    shutil.copy(records, f"{records}_held_out")
    plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = sizes or {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, **plain}
    config = BertConfig(len(VOCABULARY), num_attention_heads=2, max_position_embeddings=LENGTH, **sizes)
    (folder / "config.json").write_text(config.to_json_string())
    return [
        *(sys.executable, str(ROOT / "run_pretraining.py"), "--do_train", "--do_eval", "--max_eval_steps=3"),
        *(f"--input_file={records}", f"--eval_input_file={records}_held_out"),
        *(f"--bert_config_file={folder}/config.json", f"--vocab_file={folder}/vocab.txt", "--do_lower_case"),
        *(f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}"),
        *("--num_warmup_steps=2", "--train_batch_size=6", "--learning_rate=1e-3"),
    ]
