"""Draws the picture in docs/design.md from the imports of the package: which folder knows which.

python docs/house.py            # prints it
python docs/house.py --write    # puts it into docs/design.md
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bert_tf2"
DESIGN = ROOT / "docs" / "design.md"

# The front door stands above everything; `import bert_tf2` itself imports nothing.
FRONT_DOOR = ("api", "commands", "__main__", "demo")


def modules() -> dict[str, pathlib.Path]:
    """The modules of the package by their name within it, as "weights.names"; a folder's __init__ by the folder's."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        if name:
            found[name] = path
    return found


def imported(nodes) -> set[str]:
    """Full names of what is imported: `from a import b` gives a and a.b."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@functools.cache
def all_imports(path: pathlib.Path) -> set[str]:
    """What a file imports, wherever in it, but for what only type checkers read."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    checked = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    return imported(node for node in ast.walk(tree) if id(node) not in checked)


def project_imports(path: pathlib.Path, known: dict[str, pathlib.Path]) -> set[str]:
    """The modules of the package that a file imports; of a package and a module in it, the module."""
    found = {name.removeprefix("bert_tf2.") for name in all_imports(path)} & known.keys()
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def folder(module: str) -> str:
    """Where a module stands: its folder, "bert" for those at the root of the package, or "front door"."""
    first = module.partition(".")[0]
    if first in FRONT_DOOR:
        return "front door"
    return first if (PACKAGE / first).is_dir() else "bert"


def arrows() -> dict[str, set[str]]:
    """The folders that each folder imports from."""
    known = modules()
    found: dict[str, set[str]] = {}
    for module, path in known.items():
        own = folder(module)
        found.setdefault(own, set()).update(folder(name) for name in project_imports(path, known))
        found[own].discard(own)
    return found


def draw() -> str:
    """The picture: a line for each folder, those that import it above it."""
    told = direct(arrows())
    lines = []
    while told:
        top = sorted(told.keys() - set().union(*told.values()))
        lines += [f"{name:<12}-> {', '.join(sorted(told[name]))}" for name in top if told[name]]
        told = {name: below for name, below in told.items() if name not in top}
    return "\n".join(["```text", *lines, "```"])


def direct(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without the arrows that lead where others lead as well: a -> c beside a -> b -> c."""

    def reached(start: str, seen: frozenset[str] = frozenset()) -> set[str]:
        after = graph.get(start, set()) - seen
        return after.union(*(reached(name, seen | {start}) for name in after))

    return {
        start: {end for end in ends if not any(end in reached(other, frozenset({start})) for other in ends - {end})}
        for start, ends in graph.items()
    }


def main() -> None:
    picture = draw()
    if "--write" not in sys.argv:
        print(picture)
        return
    text = DESIGN.read_text(encoding="utf-8")
    DESIGN.write_text(re.sub(r"```text\n.*?\n```", lambda _: picture, text, count=1, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
