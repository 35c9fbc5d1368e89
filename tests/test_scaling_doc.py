"""The scripts in docs/scaling.md that start workers: every worker must get its own TF_CONFIG."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess

import pytest
from command_lines import ROOT

from bert_tf2.training.workers import VARIABLE, find_cluster

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


def run(script: str, folder: pathlib.Path, **variables: str) -> None:
    """Runs a script with stand-ins for the programs of a cluster."""
    for name, content in {
        "python": PYTHON, ".venv/bin/python": PYTHON, "scontrol": SCONTROL, "srun": SRUN
    }.items():  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "FOUND": str(folder), **variables}
    environment.pop(VARIABLE, None)
    subprocess.run(["bash", "-e", "-c", script], check=True, cwd=folder, env=environment, timeout=30)


def check(folder: pathlib.Path, addresses: tuple[str, ...]) -> None:
    configs = [path.read_text() for path in folder.glob("config-*")]
    clusters = [find_cluster({VARIABLE: config}) for config in configs]
    assert sorted(cluster.index for cluster in clusters) == [*range(len(addresses))], configs
    assert {cluster.addresses for cluster in clusters} == {addresses}
    arguments = (folder / "arguments").read_text().splitlines()
    assert arguments[0].endswith("run_pretraining.py")
    assert {"--input_file=/shared/records/wiki-*", "--output_dir=/shared/model", "--do_train"} <= {*arguments}


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
