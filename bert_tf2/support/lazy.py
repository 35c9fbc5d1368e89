"""Names that a package offers without importing the modules that define them (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package whose `__init__` imports nothing.

    Importing one module of the package then imports only that module, and each access looks up a name in the module
    that defines it.

    Args:
      package: the `__name__` of the package.
      modules: module of the package -> the names that the package offers from it, separated by blanks.
    """
    homes = {name: f"{package}.{module}" for module, listed in modules.items() for name in listed.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get, lambda: sorted(homes)
