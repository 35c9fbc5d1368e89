"""Kills trainings at random moments, continues them, and compares the end with the end of an undisturbed one.

    PYTHONPATH=tests:$PYTHONPATH python tests/soak/kill_trainings.py --kills=50 --kills_while_saving=20

For pretraining, also by two workers, and for fine-tuning with evaluations and best weights. Prints a line for each
training that reached its end, and exits with 1 if one ended with other bytes.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import signal
import sys
import tempfile
import time

import toy_data
from command_lines import ROOT
from folder_content import content
from worker_processes import WorkerProcesses, pretraining_command

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
    given = {**model, **toy_data.TSV_COLUMNS, "data_dir": f"{folder}/tables", "task_name": "tsv", "max_seq_length": 32}
    given |= {"train_batch_size": 16, "num_train_epochs": 5, "learning_rate": 1e-3, "eval_steps": 25, "patience": 50}
    flags = [f"--{name}={value}" for name, value in {**given, "save_checkpoints_steps": 10}.items()]
    return [sys.executable, str(ROOT / "run_classifier.py"), "--do_train", "--do_eval", "--do_predict", *flags]


def finish(training: WorkerProcesses) -> None:
    """Waits for the end of all; ends this program if one of them fails."""
    if any(training.wait(600)):
        sys.exit("\n".join(map(training.log, range(len(training.processes)))))


def kill_some(training: WorkerProcesses, draw: random.Random) -> str:
    """Kills one worker or both, and checks that no other one goes on; returns the numbers of those killed."""
    chosen = draw.choice([(0,), (1,), (0, 1)]) if len(training.processes) > 1 else (0,)
    for index in chosen:
        training.processes[index].send_signal(signal.SIGKILL)
    waiting, end = set(), time.monotonic() + 60
    while time.monotonic() < end and any(process.poll() is None for process in training.processes):
        for index, process in enumerate(training.processes):  # those who had not met the killed worker wait for it
            if process.poll() is None and "Waiting for worker" in training.last_line(index):
                waiting.add(index)
                process.terminate()
        time.sleep(0.1)
    for index, status in enumerate(training.wait(1)):
        names_it = status == 0 or f"worker {chosen[0]} (localhost:" in training.log(index)
        if index not in {*chosen, *waiting} and (status not in (0, 1) or not names_it):
            sys.exit(f"worker {index} ended with {status}, or does not name the killed one:\n{training.log(index)}")
    return " and ".join(map(str, chosen))


def soak(command: list[str], workers: int, kills: int, draw: random.Random, folder: pathlib.Path, saving=False) -> bool:
    """Kills trainings so many times; returns whether all of them ended as they should.

    Args:
      saving: whether to kill at a moment when a checkpoint is written; otherwise at any.
    """

    def start(out: pathlib.Path) -> WorkerProcesses:
        return WorkerProcesses([*command, f"--output_dir={out}"], workers, folder / "logs")

    def is_saving(out: pathlib.Path) -> bool:
        return any(".ckpt-" in path.name for path in out.rglob(".*.partial"))

    name, how = f"{pathlib.Path(command[1]).stem} by {workers}", "while saving" if saving else "at random moments"
    with tempfile.TemporaryDirectory(dir=folder) as made:
        expected, began = pathlib.Path(made) / "undisturbed", time.monotonic()
        with start(expected) as training:
            finish(training)
        seconds, good, done, number = time.monotonic() - began, True, 0, 0
        while done < kills:
            number += 1
            out, killed, ended = pathlib.Path(made) / str(number), [], False
            most = min(draw.randint(1, _MOST_KILLS), kills - done)
            while not ended:
                with start(out) as training:
                    moment = time.monotonic() + draw.uniform(0.3 if saving else 0.1, 0.9) * seconds
                    while len(killed) < most and any(process.poll() is None for process in training.processes):
                        if time.monotonic() > moment and (not saving or is_saving(out)):
                            killed.append(kill_some(training, draw))
                            break
                        time.sleep(0.0005 if saving else 0.01)
                    else:
                        finish(training)
                        ended = True
            done += len(killed)
            same = content(out) == content(expected)
            good &= same
            end = "the same bytes" if same else "OTHER BYTES"
            print(f"{name}: killed {', '.join(killed) or 'never'} {how}, then {end}", flush=True)
    print(f"{name}: {done} kills in {number} trainings; undisturbed, {seconds:.0f} s", flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="kills of a pretraining at random moments")
    for name in ("while_saving", "of_fine_tuning", "of_teams"):
        parser.add_argument(f"--kills_{name}", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        pretrain, finetune = pretraining(folder / "records"), fine_tuning(folder / "tables")
        good = [
            soak(pretrain, 1, options.kills, draw, folder),
            soak(pretrain, 1, options.kills_while_saving, draw, folder, saving=True),
            soak(finetune, 1, options.kills_of_fine_tuning, draw, folder),
            soak(pretrain, 2, options.kills_of_teams, draw, folder),
        ]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
