"""Classes that Keras finds by their names in saved models, without importing the modules that define them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import wrapt


def offer(package: str, modules: Mapping[str, str]) -> None:
    """Registers classes as `package>NAME`, now or as soon as Keras is imported.

    Args:
      package: that of `keras.saving.register_keras_serializable`, which replaces an entry when its module is imported.
      modules: names of classes -> their modules.
    """

    def register(keras: ModuleType) -> None:
        known = keras.saving.get_custom_objects()
        for name, module in modules.items():
            known.setdefault(f"{package}>{name}", _later(name, module))

    wrapt.register_post_import_hook(register, "keras")


def _later(name: str, module: str) -> type:
    """A class in whose place `from_config`, the only thing that Keras asks of it, makes one of the real class."""

    def from_config(config: dict[str, Any], **kwargs):
        return getattr(importlib.import_module(module), name).from_config(config, **kwargs)

    return type(name, (), {"from_config": staticmethod(from_config)})
