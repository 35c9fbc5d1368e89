"""Exports that all files of this folder share."""

import functools

import pytest
from export_cases import Exported, export


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """task -> Exported, each made once."""

    @functools.cache
    def make(task: str) -> Exported:
        return export(tmp_path_factory.mktemp(task), task)

    return make
