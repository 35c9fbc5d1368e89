"""Kills trainings at random moments, continues them, and compares the end with that of an undisturbed one.

    PYTHONPATH=tests:$PYTHONPATH python tests/soak/kill_trainings.py --kills=50 --kills_while_saving=20

For pretraining, also by two workers, and for fine-tuning with evaluations and best weights. Prints a line for each
training that reached its end, and exits with 1 if one ended with other bytes.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import toy_data
from folder_content import content
from worker_processes import WorkerProcesses, pretraining_command

ROOT = pathlib.Path(__file__).resolve().parents[2]
_MOST_KILLS = 4  # of one training, which must come to its end some time


def pretraining(folder: pathlib.Path) -> list[str]:
    """Writes the files; returns the command without --output_dir."""
    folder.mkdir()
    return [
        *pretraining_command(folder, 200, hidden_size=64, num_hidden_layers=2, intermediate_size=256),
        *("--max_eval_steps=5", "--num_train_steps=150", "--num_warmup_steps=10", "--train_batch_size=15"),
        *("--eval_steps=35", "--save_checkpoints_steps=10", "--learning_rate=5e-5"),
    ]


def fine_tuning(folder: pathlib.Path) -> list[str]:
    """The same for a classifier."""
    folder.mkdir()
    model = toy_data.write_model(folder, hidden_size=64, intermediate_size=256, hidden_dropout_prob=0.1)
    toy_data.write_tsv_task(folder / "tables", 1000)
    columns = [f"--{name}={value}" for name, value in toy_data.TSV_COLUMNS.items()]
    return [
        *(sys.executable, str(ROOT / "run_classifier.py"), "--do_train", "--do_eval", "--do_predict"),
        *(f"--bert_config_file={model['bert_config_file']}", f"--vocab_file={model['vocab_file']}"),
        *(f"--data_dir={folder}/tables", "--task_name=tsv", *columns, "--max_seq_length=32"),
        *("--train_batch_size=16", "--num_train_epochs=5", "--learning_rate=1e-3", "--eval_steps=25", "--patience=50"),
        "--save_checkpoints_steps=10",
    ]


class Alone(subprocess.Popen):
    """A training in one process."""

    def __init__(self, command: list[str], out: pathlib.Path, logs: pathlib.Path):
        logs.mkdir(exist_ok=True)
        self._log = logs / "log"
        with open(self._log, "w") as stream:
            super().__init__([*command, f"--output_dir={out}"], stdout=stream, stderr=subprocess.STDOUT)

    def finish(self) -> None:
        """Waits for its end; ends this program if it fails."""
        if self.wait():
            sys.exit(self._log.read_text())

    def kill_some(self, draw: random.Random) -> str:
        """Kills it; returns how that is told."""
        self.send_signal(signal.SIGKILL)
        self.wait()
        return "once"


def same_end(out: pathlib.Path, expected: pathlib.Path, what: str) -> bool:
    """Prints what was done, and whether the training ended with the bytes of an undisturbed one; returns that."""
    same = content(out) == content(expected)
    print(f"{what}, then {'the same bytes' if same else 'OTHER BYTES'}", flush=True)
    return same


class Team(WorkerProcesses):
    """A training of two workers."""

    def __init__(self, command: list[str], out: pathlib.Path, logs: pathlib.Path):
        super().__init__([*command, f"--output_dir={out}"], 2, logs)

    def poll(self) -> int | None:
        found = [process.poll() for process in self.processes]
        return None if None in found else max(found, key=abs)

    def finish(self) -> None:
        """Waits for the end of all; ends this program if one of them fails."""
        if any(self.wait(600)):
            sys.exit(self.log(0) + self.log(1))

    def kill_some(self, draw: random.Random) -> str:
        """Kills one worker or both, and sees that no other one goes on; returns the names."""
        chosen = draw.choice([(0,), (1,), (0, 1)])
        for index in chosen:
            self.processes[index].send_signal(signal.SIGKILL)
        waiting = self._end_those_that_wait(60)
        statuses = self.wait(1)
        for index, status in enumerate(statuses):
            if index in waiting:
                continue
            if index not in chosen and status not in (0, 1):
                sys.exit(f"worker {index} ended with {status}:\n{self.log(index)}")
            if index not in chosen and status == 1 and f"worker {chosen[0]} (localhost:" not in self.log(index):
                sys.exit(f"worker {index} does not name the one that was killed:\n{self.log(index)}")
        return " and ".join(map(str, chosen))

    def _end_those_that_wait(self, seconds: float) -> set[int]:
        """Until all have ended, ends who waits for a worker that was killed before they had met; returns who did."""
        end, ended = time.monotonic() + seconds, set()
        while time.monotonic() < end and any(process.poll() is None for process in self.processes):
            for index, process in enumerate(self.processes):
                last = self.log(index).rstrip().rpartition("\n")[2]
                if process.poll() is None and "Waiting for worker" in last:
                    ended.add(index)
                    process.terminate()
            time.sleep(0.1)
        return ended


def is_saving(out: pathlib.Path) -> bool:
    return any(".ckpt-" in path.name for path in out.rglob(".*.partial"))


def soak(name: str, start, kills: int, draw: random.Random, folder: pathlib.Path, while_saving: bool = False) -> bool:
    """Kills trainings so many times; returns whether all of them ended as they should.

    Args:
      start: starts a training into a folder: an Alone or a Team.
      while_saving: at a moment when it writes a checkpoint; otherwise at any.
    """
    expected, began = folder / f"{name}-{while_saving}-undisturbed", time.monotonic()
    with start(expected) as training:
        training.finish()
    seconds = time.monotonic() - began
    print(f"{name}: undisturbed, {seconds:.0f} s", flush=True)
    good, done, number = True, 0, 0
    while done < kills:
        number += 1
        out, killed, ended = folder / f"{name}-{while_saving}-{number}", [], False
        most = min(draw.randint(1, _MOST_KILLS), kills - done)
        while not ended:
            with start(out) as training:
                moment = time.monotonic() + draw.uniform(0.3 if while_saving else 0.1, 0.9) * seconds
                while len(killed) < most and training.poll() is None:
                    if time.monotonic() > moment and (not while_saving or is_saving(out)):
                        killed.append(training.kill_some(draw))
                        break
                    time.sleep(0.0005 if while_saving else 0.01)
                else:
                    training.finish()
                    ended = True
        done += len(killed)
        how = "while a checkpoint was written" if while_saving else "at random moments"
        good &= same_end(out, expected, f"{name}: killed {', '.join(killed) or 'never'} {how}")
    print(f"{name}: {done} kills in {number} trainings", flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="kills of a pretraining at random moments")
    parser.add_argument("--kills_while_saving", type=int, default=20, help="kills while a checkpoint is written")
    parser.add_argument("--kills_of_fine_tuning", type=int, default=20)
    parser.add_argument("--kills_of_teams", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        pretrain, finetune = pretraining(folder / "records"), fine_tuning(folder / "tables")

        def alone(command: list[str]):
            return lambda out: Alone(command, out, folder / "logs")

        good = [
            soak("pretraining", alone(pretrain), options.kills, draw, folder),
            soak("pretraining", alone(pretrain), options.kills_while_saving, draw, folder, while_saving=True),
            soak("fine-tuning", alone(finetune), options.kills_of_fine_tuning, draw, folder),
            soak("two workers", lambda out: Team(pretrain, out, folder / "logs"), options.kills_of_teams, draw, folder),
        ]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
