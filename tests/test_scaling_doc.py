"""docs/scaling.md: its scripts give each worker its own TF_CONFIG; the recipe and the script for Slurm run in small."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from command_lines import ROOT, environment
from documented import command_line, commands_in, section
from unmasked_data import text
from worker_processes import free_ports

from bert_tf2 import BertConfig
from bert_tf2.training.workers import VARIABLE, find_cluster
from bert_tf2.weights import checkpoint

# The settings without which a long training is not one that anybody wants.
COMPLETE = {
    *("--bert_config_file", "--vocab_file", "--train_batch_size", "--learning_rate", "--num_train_steps"),
    *("--num_warmup_steps", "--precision", "--do_eval", "--eval_input_file", "--eval_steps"),
}
# Numbers for the test; the last value of a flag counts.
SMALLER = {
    "build_vocab": {"vocab_size": 200},
    "create_pretraining_data": {"num_shards": 3, "num_workers": 2, "max_seq_length": 32},
    "run_pretraining": {
        **{"num_train_steps": 4, "num_warmup_steps": 1, "train_batch_size": 4, "eval_steps": 2, "max_eval_steps": 2},
        **{"max_seq_length": 32, "max_predictions_per_seq": 5, "precision": "float32"},
    },
}
TEXT = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
# In place of Python: writes what it got, and nothing else.
PYTHON = """#!/bin/bash
printf '%s' "$TF_CONFIG" > "$FOUND/config-$RANDOM$RANDOM"
printf '%s\\n' "$@" > "$FOUND/arguments"
"""
SCONTROL = """#!/bin/bash
[ "$1 $2 $3" = "show hostnames node[1-2]" ] && printf 'node1\\nnode2\\n'
"""
SRUN = """#!/bin/bash
shift
for number in 0 1; do SLURM_PROCID=$number "$@"; done
"""


def block(title: str, language: str) -> str:
    """The script in a section of the document."""
    section = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)[1]


def run(script: str, folder: pathlib.Path, programs: dict[str, str] | None = None, **variables: str) -> str:
    """Runs a script with stand-ins for the programs of a cluster, or other `programs`; returns the standard error."""
    stand_ins = {"python": PYTHON, ".venv/bin/python": PYTHON, "scontrol": SCONTROL, "srun": SRUN}
    for name, content in (stand_ins | (programs or {})).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    found = environment(PATH=f"{folder}:{os.environ['PATH']}", FOUND=str(folder), **variables)
    found.pop(VARIABLE, None)
    seconds = 300 if programs else 30
    command = ["bash", "-e", "-c", script]
    done = subprocess.run(
        command, cwd=folder, env=found, timeout=seconds, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def check(folder: pathlib.Path, addresses: tuple[str, ...]) -> None:
    configs = [path.read_text() for path in folder.glob("config-*")]
    clusters = [find_cluster({VARIABLE: config}) for config in configs]
    assert sorted(cluster.index for cluster in clusters) == [*range(len(addresses))], configs
    assert {cluster.addresses for cluster in clusters} == {addresses}
    arguments = (folder / "arguments").read_text().splitlines()
    assert arguments[0].endswith("run_pretraining.py")
    assert {"--input_file=/shared/records/wiki-*", "--output_dir=/shared/model", "--do_train"} <= {*arguments}
    assert {argument.partition("=")[0] for argument in arguments} >= COMPLETE


def test_slurm(tmp_path):
    script = block("Slurm", "bash")
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    run(script, tmp_path, SLURM_JOB_NODELIST="node[1-2]")
    check(tmp_path, ("node1:2222", "node2:2222"))


def test_kubernetes(tmp_path):
    for index in range(2):
        run(block("Kubernetes", "bash"), tmp_path, JOB_COMPLETION_INDEX=str(index))
    check(tmp_path, ("bert-0.bert:2222", "bert-1.bert:2222"))


@pytest.mark.parametrize("index", [0, 1])
def test_the_example_at_the_top(index):
    config = json.loads(re.search(r"TF_CONFIG='(.*)'", TEXT)[1])
    config["task"]["index"] = index
    assert find_cluster({VARIABLE: json.dumps(config)}).name(index) == f"worker {index} (node{index + 1}:2222)"


# In small


def write_config(path: pathlib.Path, vocab_size: int) -> None:
    """Sizes like those of the document, but small."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    path.write_text(BertConfig(vocab_size, max_position_embeddings=32, **sizes).to_json_string())


def check_trained(folder: pathlib.Path, said: str) -> None:
    """The last step was done, evaluated on the shard that is held out, and the best weights are kept."""
    assert checkpoint.latest_checkpoint(str(folder / "model")).endswith("model.ckpt-4")
    assert "masked_lm_perplexity" in (folder / "model" / "eval_results.txt").read_text()
    assert checkpoint.latest_checkpoint(str(folder / "model" / "best"))
    assert re.search(r"Left out of --input_file.*-00002-of-00003", said)


def make_records(folder: pathlib.Path, command_lines, name: str) -> None:
    """The steps 1 to 3 of the recipe, whose records are called `name`."""
    (folder / "text").mkdir()
    for number in range(2):
        (folder / "text" / f"part-000{number}.txt").write_text(text(60, number))
    recipe = commands_in(section("scaling.md", "1 TB, from empty machines to a trained model"))
    assert [script for script, _ in recipe] == ["build_vocab", "create_pretraining_data", "run_pretraining"]
    for script, flags in recipe[:2]:
        flags.pop("dask_scheduler", None)  # the shards are the same, as the tests of Dask show
        flags = {name: value.replace("/shared", str(folder)) for name, value in flags.items()} | SMALLER[script]
        if script == "create_pretraining_data":
            flags["output_file"] = f"{folder}/records/{name}"
        done = command_lines.run(*command_line(script, flags), cwd=folder)
        assert done.status == 0, done.stderr
    write_config(folder / "bert_config.json", len((folder / "vocab.txt").read_text().splitlines()))


@pytest.mark.slow
def test_the_recipe_in_small(tmp_path, command_lines):
    pytest.importorskip("tensorflow_text")
    make_records(tmp_path, command_lines, "r")
    script, flags = commands_in(section("scaling.md", "1 TB, from empty machines to a trained model"))[-1]
    assert {f"--{name}" for name in flags} >= COMPLETE
    flags = {name: value.replace("/shared", str(tmp_path)) for name, value in flags.items()} | SMALLER[script]
    flags["eval_input_file"] = flags["eval_input_file"].replace("62499-of-62500", "00002-of-00003")
    done = command_lines.run(*command_line(script, flags), cwd=tmp_path)
    assert done.status == 0, done.stderr
    check_trained(tmp_path, done.stderr)


def test_the_configuration_of_the_recipe(tmp_path):
    (line,) = re.findall(r"(?m)^python (-c .*) > /shared/bert_config\.json$", TEXT)
    command = [sys.executable, *shlex.split(line)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=60)
    (tmp_path / "c.json").write_text(done.stdout)
    assert BertConfig.from_json_file(str(tmp_path / "c.json")).to_dict() == BertConfig(vocab_size=30000).to_dict()


# Two tasks at once, as srun starts them, on one machine.
BOTH = """#!/bin/bash
shift
for number in 0 1; do SLURM_PROCID=$number "$@" & done
wait -n && wait -n
"""
# The real Python, with the ports of the test in place of those of two machines, and with its numbers.
REAL = """#!/bin/bash
TF_CONFIG=${TF_CONFIG//node1:2222/localhost:$FIRST}
export TF_CONFIG=${TF_CONFIG//node2:2222/localhost:$SECOND}
exec "$PYTHON" "$ROOT/$1" "${@:2}" $SMALLER
"""


@pytest.mark.slow
def test_slurm_in_small(tmp_path, command_lines):
    pytest.importorskip("tensorflow_text")
    make_records(tmp_path, command_lines, "wiki")
    script = block("Slurm", "bash").replace("/shared", str(tmp_path)).replace("00249-of-00250", "00002-of-00003")
    first, second = free_ports(2)
    numbers = " ".join(command_line("", SMALLER["run_pretraining"])[1:])
    variables = {"FIRST": str(first), "SECOND": str(second), "PYTHON": sys.executable, "ROOT": str(ROOT)}
    programs = {".venv/bin/python": REAL, "srun": BOTH}
    said = run(script, tmp_path, programs, SLURM_JOB_NODELIST="node[1-2]", SMALLER=numbers, **variables)
    check_trained(tmp_path, said)
    assert "worker 1" in said
