"""Packages that offer names: all of them exist, and a module of the package does not import the others."""

import importlib
import subprocess
import sys

import pytest
from command_lines import ROOT

PACKAGES = ["finetuning.classification", "finetuning.squad", "finetuning.ner", "pretraining"]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_is_there_and_no_other(name):
    package = importlib.import_module(f"bert_tf2.{name}")
    assert dir(package)
    for offered in dir(package):
        assert getattr(package, offered) is not None
    with pytest.raises(AttributeError, match=f"module 'bert_tf2.{name}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_a_module_of_a_package_is_imported_alone():
    code = "import sys; from bert_tf2.finetuning.classification import tasks; print(*{'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
