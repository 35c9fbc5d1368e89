"""The programs in benchmarks/: what they compute from results, how they continue, and what they leave out."""

from __future__ import annotations

import importlib
import json
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
from refused import message_of

ROOT = pathlib.Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
PROGRAMS = sorted(p.stem for p in BENCHMARKS.glob("*.py") if "flags.run(" in p.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def as_run_as_a_script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def result(speed: float, **more) -> dict:
    return {"examples_per_second": speed, "seconds": [1 / speed], "memory_gb": 1.0, **more}


def test_the_programs_check_their_flags_without_tensorflow():
    code = (
        "import importlib, sys; from bert_tf2.support.settings import settings_of\n"
        f"for name in {PROGRAMS}: assert settings_of(importlib.import_module(name).BenchmarkOptions), name\n"
        "print('tensorflow' in sys.modules)"
    )
    paths = f"{ROOT}:{BENCHMARKS}"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
    assert len(PROGRAMS) > 8


def test_a_wrong_name_is_one_line():
    for program, wrong in (("against_peers", {"cases": "9x9"}), ("training_flags", {"runs": ""})):
        assert "is none of" in message_of(importlib.import_module(program).BenchmarkOptions, **wrong)
    command = [sys.executable, str(BENCHMARKS / "table.py"), "--models=huge"]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 2 and len(done.stderr.splitlines()) <= 2 and "is none of" in done.stderr


def test_the_rows_are_as_long_as_in_wikipedia():
    import workload

    lengths = workload.row_lengths(80, 512, 256)
    assert np.mean(lengths == 512) == 0.25 and abs(lengths.mean() - 256) < 2 and lengths.min() >= 5
    assert (workload.row_lengths(8, 128, 0) == 128).all()


def test_nothing_is_predicted_in_padding():
    import workload

    (batch,) = workload.random_batches(workload.BASE, 1, 8, 512, 76, 256)
    lengths, real = batch["input_mask"].sum(axis=1), batch["masked_lm_weights"] > 0
    assert (batch["masked_lm_positions"] < lengths[:, None])[real].all()
    assert (real.sum(axis=1) == np.clip(np.round(0.15 * lengths), 1, 76)).all()
    assert not batch["input_ids"][batch["input_mask"] == 0].any()
    (full,) = workload.random_batches(workload.BASE, 1, 2, 128, 20)
    assert full["masked_lm_weights"].all() and full["input_mask"].all()


def test_the_operations_of_a_step():
    import steps

    from bert_tf2.config import BertConfig

    config = BertConfig(vocab_size=10, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    # One row of 3 tokens: four 4 x 4 products, two 4 x 8, scores and context of 3 x 3; the head; the pooler.
    forward = 3 * 2 * (4 * 16 + 2 * 32) + 2 * 2 * 3 * 3 * 4 + 2 * (2 * (16 + 40)) + 2 * 16
    assert steps.step_flops(config, [3], 2) == 3 * forward


def test_results_are_kept_for_a_revision_and_after_a_kill(tmp_path):
    import processes

    path = tmp_path / "new" / "results.jsonl"
    processes.Results(path, "one").add("a", {"value": 1})
    path.write_text(path.read_text() + '{"name": "half')  # what a killed process wrote
    processes.Results(path, "one").add("b", {"value": 2})
    assert {name: r["value"] for name, r in processes.Results(path, "one").known().items()} == {"a": 1, "b": 2}
    assert processes.Results(path, "two").known() == {}
    assert {*processes.Results(path).known()} == {"a", "b"}


def test_a_program_that_fails_tells_its_last_line():
    import processes

    assert processes.measure([sys.executable, "-c", "print('noise'); print('{\"a\": 1}')"]) == {"a": 1}
    with pytest.raises(processes.Failed, match=r"^ValueError: no such thing$"):
        processes.measure([sys.executable, "-c", "raise ValueError('no such thing')"])
    with pytest.raises(processes.Failed, match="printed no result: noise"):
        processes.measure([sys.executable, "-c", "print('noise')"])
    with pytest.raises(processes.Failed, match="status -9"):
        processes.measure([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])


def test_a_peer_that_cannot_be_installed_is_skipped(monkeypatch, tmp_path, capsys):
    import against_peers
    import processes

    def run(command, log, **_):
        if "transformers==" in " ".join(command):
            raise processes.Failed("no matching distribution")

    monkeypatch.setattr(processes, "run", run)
    (tmp_path / "keras_hub").mkdir()
    (tmp_path / "torch_transformers").mkdir()
    options = against_peers.BenchmarkOptions(environments=str(tmp_path), peers="keras_hub,torch_transformers")
    assert [side.name for side in against_peers.sides(options)] == ["ours", "keras_hub plain", "keras_hub xla"]
    shown = capsys.readouterr().out
    assert "torch_transformers is skipped: it cannot be installed: no matching distribution\n" in shown
    against_peers.sides(options)
    assert "keras-hub==" not in capsys.readouterr().out  # it is there now


def test_later_rounds_run_the_fastest_variant(monkeypatch, tmp_path, capsys):
    import against_peers
    import processes

    speeds, ran = {"plain": 2.0, "xla": 4.0, "": 8.0}, []

    def measure(command, **_):
        variant = next((word.partition("=")[2] for word in command if word.startswith("--variant")), "")
        ran.append(variant)
        if "broken" in command[0]:
            raise processes.Failed("ImportError: nothing")
        return result(speeds[variant] + len(ran) / 100, versions="peer 1.0")

    monkeypatch.setattr(processes, "measure", measure)
    options = against_peers.BenchmarkOptions(rounds=2, cases="8x128", precisions="float32")
    sides = [against_peers.Side("ours", "", "python", "")]
    sides += [against_peers.Side(f"keras_hub {v}", "keras_hub", "python", v) for v in ("plain", "xla")]
    sides += [against_peers.Side("model_garden xla", "model_garden", "broken", "xla")]
    results = processes.Results(tmp_path / "peers.jsonl")
    measured = against_peers.compare(options, results, "8x128", "float32", sides)
    assert ran == ["", "plain", "xla", "xla", "", "xla"]
    assert [row[:-1] for row in against_peers.rows(measured, 2)] == [
        ["ours", "8.01", "8.05", "8.03", ""],
        ["keras_hub plain", "2.02", "", "2.02", "3.98"],
        ["keras_hub xla", "4.03", "4.06", "4.04", "1.99"],
    ]
    assert "model_garden xla is left out of 8x128 float32: ImportError: nothing" in capsys.readouterr().out
    ran.clear()
    monkeypatch.setattr(against_peers, "sides", lambda _: sides[:-1])
    monkeypatch.setattr(processes, "Results", lambda *_: results)
    against_peers.main(options)
    assert ran == [] and "\npeer 1.0. keras-hub" in capsys.readouterr().out  # all of it is known


def test_the_table_continues_and_draws(monkeypatch, tmp_path, capsys):
    import processes
    import table

    ran = []

    def measure(command, **_):
        ran.append(command)
        sizes = json.loads(pathlib.Path(next(w for w in command if "bert_config" in w).partition("=")[2]).read_text())
        if sizes["num_hidden_layers"] == 4 and len(ran) < 3:
            raise processes.Failed("status -9")
        return result(12.345, share=0.5)

    monkeypatch.setattr(processes, "measure", measure)
    options = {"models": "tiny,mini", "lengths": "128", "precisions": "float32", "work_dir": str(tmp_path)}
    table.main(table.BenchmarkOptions(**options))
    shown = capsys.readouterr().out
    assert "| 2 x 128 (tiny)  |    128 |    32 |   float32 |       12.3 |  50 % | 1.00 |" in shown
    assert "mini, 128, float32 failed: status -9" in shown and "|     failed |" in shown
    table.main(table.BenchmarkOptions(**options))
    assert len(ran) == 3  # only what had failed
    pytest.importorskip("matplotlib")
    plot = tmp_path / "table.svg"
    table.main(table.BenchmarkOptions(**options, plot=str(plot)))
    assert len(ran) == 3 and "<svg" in plot.read_text()


def test_differences_of_curves():
    import loss_curve

    assert loss_curve.smooth([1.0, 3.0, 5.0], 2) == [2.0, 4.0]
    largest, mean = loss_curve.differences([1.0, 3.0, 5.4], [1.0, 3.0, 5.0], 2)
    assert abs(largest - 0.05) < 1e-9 and abs(mean - 0.025) < 1e-9


def test_the_cost_of_a_checkpoint(monkeypatch, tmp_path, capsys):
    """19 steps of 2 s, and 3 checkpoints of 1 s each: with one every 5 steps, 5 steps take 11 s."""
    import processes
    import saving
    import training_flags

    ran = []

    def run(command, log):
        ran.append(next(word for word in command if word.startswith("--save_checkpoints_steps")))
        return 0.0

    monkeypatch.setattr(training_flags, "make_records", lambda folder, *_: folder.mkdir(exist_ok=True))
    monkeypatch.setattr(processes, "run", run)
    took = {"--save_checkpoints_steps=0": 38.0, "--save_checkpoints_steps=5": 41.0}
    monkeypatch.setattr(processes, "ends_of_steps", lambda folder: {0: 0.5, 1: 1.0, 20: 1.0 + took[ran[-1]]})
    options = {"saves": 3, "save_checkpoints_steps": 5, "work_dir": str(tmp_path)}
    saving.main(saving.BenchmarkOptions(**options))
    saving.main(saving.BenchmarkOptions(**options))
    assert ran == [*took]  # the second call knows the results
    shown = capsys.readouterr().out
    assert "0.500 steps/s without saving; a checkpoint costs 1.00 s" in shown
    assert "one every 5 steps there are 0.455 steps/s (90.9 %)" in shown


def test_training_seconds_are_those_between_checkpoints():
    from finetuning import training_seconds

    lines = [
        f"I1122 {time} 1 bundle.py:3] Saved out/model.ckpt-{n}" for n, time in ((0, "23:59:50.5"), (9, "00:00:10.0"))
    ]
    assert training_seconds("\n".join(lines)) == 19.5
    assert training_seconds(lines[0]) is None


def test_the_first_step_is_found_in_the_events(tmp_path):
    import processes
    import tensorflow as tf

    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default():
        for step in (0, 1, 2):
            tf.summary.scalar("loss", 1.0, step=step)
    writer.close()
    assert -60 < processes.seconds_to_first_step(tmp_path, time.time()) <= 0
