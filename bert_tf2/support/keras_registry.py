"""Classes that Keras finds by their names in saved models, without importing the modules that define them."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping
from typing import Any


def offer(package: str, modules: Mapping[str, str]) -> None:
    """Registers classes as `package>NAME`, now or as soon as Keras is imported.

    Args:
      package: that of `keras.saving.register_keras_serializable`, which replaces an entry when its module is imported.
      modules: names of classes -> their modules.
    """
    classes = {f"{package}>{name}": _later(name, module) for name, module in modules.items()}
    if "keras" in sys.modules:
        _register(classes)
    else:
        sys.meta_path.insert(0, _WhenKerasComes(classes))


def _register(classes: Mapping[str, type]) -> None:
    known = sys.modules["keras"].saving.get_custom_objects()
    known.update({name: found for name, found in classes.items() if name not in known})


def _later(name: str, module: str) -> type:
    """A class in whose place `from_config`, the only thing that Keras asks of it, makes one of the real class."""

    def from_config(config: dict[str, Any], **kwargs):
        return getattr(importlib.import_module(module), name).from_config(config, **kwargs)

    return type(name, (), {"from_config": staticmethod(from_config)})


class _WhenKerasComes(importlib.abc.MetaPathFinder):
    """Lets others find Keras, and registers behind them."""

    def __init__(self, classes: Mapping[str, type]):
        self._classes = classes

    def find_spec(self, name, path=None, target=None):
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                _register(self._classes)

            spec.loader.exec_module = exec_module
        return spec
