"""Workers whose network is slow, loses packets, or is cut: they train the same, or end with each other's name."""

from __future__ import annotations

import networks
import numpy as np
import pytest
from networks import Network
from worker_processes import WorkerProcesses, pretraining_command, weights

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(networks.why_not()), reason=str(networks.why_not()))]


@pytest.fixture(scope="module")
def command(tmp_path_factory) -> list[str]:
    command = pretraining_command(tmp_path_factory.mktemp("task"))
    return [*command, "--num_train_steps=400", "--save_checkpoints_steps=50"]


@pytest.fixture(scope="module")
def undisturbed(command, tmp_path_factory) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp("undisturbed")
    with WorkerProcesses([*command, f"--output_dir={folder}/out"], 2, folder / "logs") as team:
        assert team.wait() == [0, 0], team.log(0)
    return weights(folder / "out")


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_a_link_that_stays_cut(command, undisturbed, tmp_path):
    """Each worker takes the other one for dead, and a scheduler that starts both again gets the same model."""
    command = [*command, f"--output_dir={tmp_path}/out"]
    with Network(2) as network:
        with WorkerProcesses(command, 2, tmp_path / "logs", network=network) as team:
            team.wait_for("model.ckpt-100")
            network.cut(1)
            assert team.wait(60) == [1, 1]
            for index in range(2):
                last = team.log(index).strip().splitlines()[-1]
                assert f"error: worker {1 - index} (10.77.0.{2 - index}:" in last
                assert "has ended or does not answer any more" in last and "start all workers again" in last
        assert weights(tmp_path / "out")["global_step"] < 400
        network.mend(1)
        with WorkerProcesses(command, 2, tmp_path / "logs", network=network) as team:
            assert team.wait() == [0, 0], team.log(0)
            assert all("Continuing from" in team.log(index) for index in range(2))
    assert_equal(weights(tmp_path / "out"), undisturbed)
