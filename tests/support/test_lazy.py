"""Packages that offer names of their modules: all of them exist, and no others."""

import importlib

import pytest


@pytest.mark.parametrize("name", ["finetuning.classification", "finetuning.squad", "finetuning.ner", "pretraining"])
def test_every_name_is_there_and_no_other(name):
    package = importlib.import_module(f"bert_tf2.{name}")
    assert dir(package) and all(getattr(package, offered) is not None for offered in dir(package))
    with pytest.raises(AttributeError, match=f"module 'bert_tf2.{name}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018
