"""Names whose modules are imported when a name is first used: names of a package (PEP 562), and in saved models."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import opcode
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def names(
    package: str, modules: Mapping[str, str], of_tensorflow: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package whose `__init__` imports nothing.

    `__getattr__` also imports the package's modules, and has the list of names that `import *` reads.

    Args:
      package: the `__name__` of the package.
      modules: module of the package -> the names that the package offers from it, separated by blanks.
      of_tensorflow: further modules, before whose import TensorFlow is loaded with few of its messages about devices.
    """
    of_tensorflow = of_tensorflow or {}
    of_all = {**modules, **of_tensorflow}
    homes = {name: f"{package}.{module}" for module, listed in of_all.items() for name in listed.split()}
    needs_tensorflow = {name for listed in of_tensorflow.values() for name in listed.split()}

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(homes)
        if name in needs_tensorflow:
            from bert_tf2.support.process import load_tensorflow  # late: most uses of a package need no such name

            load_tensorflow()
        home = homes.get(name, f"{package}.{name}")
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError as error:
            if error.name != home:  # something that the module needs
                raise
            return unknown(package)(name)
        return getattr(module, name) if name in homes else module

    return get, lambda: sorted(homes)


class Aliases:
    """A finder and loader in sys.meta_path, for further names of modules: name -> module, both within the package."""

    def __init__(self, package: str, modules: Mapping[str, str]):
        self._modules = {f"{package}.{name}": f"{package}.{module}" for name, module in modules.items()}
        _OF_REFERENCE.update({f"{package}.{module}": name for name, module in modules.items()})

    def find_spec(self, fullname, path, target=None):
        origin = f"{fullname.rpartition('.')[2]}.py"  # the name of the script in messages
        return importlib.machinery.ModuleSpec(fullname, self, origin=origin) if fullname in self._modules else None

    def create_module(self, spec):
        return None  # an empty module, which `exec_module` replaces

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._modules[module.__name__])

    def get_code(self, fullname):
        """The code of `python -m bert_tf2.run_classifier`, which runs the script of this name."""
        package, _, name = fullname.rpartition(".")
        return compile(f"from {package} import commands\ncommands.run({name!r})", fullname, "exec")


_OF_REFERENCE: dict[str, str] = {}  # module -> its name in google-research/bert, if that is another name


def unknown(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that replaces a module of google-research/bert, whose names it may lack."""

    def get(name: str) -> Any:
        package, _, own = module.partition(".")
        if module in _OF_REFERENCE and name in ("modeling", "optimization", "tokenization"):  # `run_squad.modeling`
            return importlib.import_module(f"{package}.{name}")
        there = _OF_REFERENCE.get(module, own)
        # Python gives an AttributeError in `from module import name` a message of its own.
        raise (ImportError if _is_imported_from() else AttributeError)(
            f"module {module!r} has no attribute {name!r}; if {there} of google-research/bert has it, docs/migrating.md"
            f" names the replacement: Your own code, section {there}"
        ) from None

    return get


def _is_imported_from() -> bool:
    """Whether the code that asks a module of this package for a name is `from module import name`."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__") in (__name__, "bert_tf2.commands"):
        frame = frame.f_back
    return frame.f_code.co_code[frame.f_lasti] == opcode.opmap["IMPORT_FROM"]


def offer_to_keras(package: str, modules: Mapping[str, str]) -> None:
    """Registers classes (name -> module) as `package>NAME`, as soon as Keras is imported.

    `keras.saving.register_keras_serializable` replaces an entry when its module is imported.
    """

    def register(keras: ModuleType) -> None:
        for name, module in modules.items():
            keras.saving.get_custom_objects().setdefault(f"{package}>{name}", _later(name, module))

    if "keras" in sys.modules:
        register(sys.modules["keras"])
    else:
        sys.meta_path.insert(0, _AfterImport("keras", register))


class _AfterImport:
    """A finder in sys.meta_path that calls `done` with a module once it is imported.

    The library wrapt can do the same, but its import takes 50 ms.
    """

    def __init__(self, name: str, done: Callable[[ModuleType], None]):
        self._name, self._done = name, done

    def find_spec(self, fullname, path, target=None):
        if fullname != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec and spec.loader:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), self._end(module))
        return spec

    def _end(self, module: ModuleType) -> None:
        with contextlib.suppress(ValueError):  # already removed, if another thread looked up a spec, too
            sys.meta_path.remove(self)
        self._done(module)


def _later(name: str, module: str) -> type:
    """A placeholder for a class. Keras calls only `from_config`, which makes an object of the real class."""

    def from_config(config: dict[str, Any], **kwargs):
        return getattr(importlib.import_module(module), name).from_config(config, **kwargs)

    return type(name, (), {"from_config": staticmethod(from_config)})
