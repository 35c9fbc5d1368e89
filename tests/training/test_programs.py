"""The one decision about XLA, widths of batches and shared rows, which training, evaluation and prediction read."""

import types

import pytest
from small_trainings import ONE

from bert_tf2.training import programs
from bert_tf2.training.options import Program, TrainingOptions

TWO = types.SimpleNamespace(num_replicas_in_sync=2, extended=ONE.extended)
PACKED, PADDED = {"pack_rows": True}, {"is_padded": True}


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("settings", "how", "expected"),
    [
        ({}, {}, Program(is_padded=False)),
        ({}, PADDED, Program()),
        ({"xla": "true"}, {}, Program(is_compiled=True, is_padded=False, width_multiple=32)),
        (PACKED, {}, Program(is_padded=False)),  # batches of like length have little padding, too
        (PACKED, PADDED, Program(packs=True)),
        (PACKED, {**PADDED, "is_fixed": False}, Program()),
        (PACKED, {**PADDED, "strategy": TWO}, Program()),
        (PACKED, {"trains": True, "is_fixed": False, "strategy": TWO}, Program(packs=True)),
        ({**PACKED, "xla": "true"}, {}, Program(is_compiled=True, packs=True, width_multiple=32)),
    ],
)
def test_one_decision_has_the_program_the_widths_and_the_rows(settings, how, expected):
    given = TrainingOptions(bert_config_file="x", output_dir="x", **settings)
    how = {"strategy": ONE, "is_fixed": True, "is_padded": False, "longest": 128, **how}
    assert programs.program_for(given, num_steps=1, **how) == expected


def test_auto_compiles_on_a_gpu_if_each_size_has_enough_steps(monkeypatch):
    monkeypatch.setattr(programs, "computes_on", lambda strategy: "GPU")
    monkeypatch.setattr(programs.compiled, "can_compile", lambda: True)
    given = TrainingOptions(bert_config_file="x", output_dir="x")
    of_steps = {
        steps: [programs.program_for(given, ONE, steps, is_fixed=True, is_padded=padded) for padded in (True, False)]
        for steps in (2499, 2500, 9999, 10000)
    }
    assert [[program.is_compiled for program in found] for found in of_steps.values()] == [
        [False, False], [True, False], [True, False], [True, True],
    ]  # fmt: skip
    assert not programs.program_for(given, ONE, 10000, is_fixed=False).is_compiled
