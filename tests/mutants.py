"""Which faults would the tests not see? Changes the package in one place at a time and runs the tests of that place.

    python tests/mutants.py cover OUT.json [PYTEST'S ARGUMENTS]     # once: which test runs which line, in which time
    python tests/mutants.py run OUT.json RESULTS.jsonl --count=300  # an interrupted call continues
    python tests/mutants.py table RESULTS.jsonl [OTHER.jsonl]       # by folder; with two, also what only one finds

A mutant changes a comparison, a sum, a condition, a number or a truth value, or leaves out a call or a keyword
(DeMillo, Lipton and Sayward 1978). The name of a mutant consists of module, function, statement and change, without
the number of the line, so that `run ... --same_as=RESULTS.jsonl` finds the same mutants in another version of the
project, whose folder `--checkout=FOLDER` names; mutants that the other version does not have are left out. `cover`
needs the package coverage.
"""

import argparse
import ast
import collections
import dataclasses
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.Add,
}  # fmt: skip
FORKS = multiprocessing.get_context("fork")
UNTESTED = ("demo.py", "__main__.py")  # shown to people, and run as a whole by other checks


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change. `name` is the same in every version; `places` are lines of this version, from the first place."""

    name: str
    module: str
    places: list[tuple[int, int]]  # the statement, its function, the module
    source: str = dataclasses.field(repr=False)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yields (word for the change, part of the source, its replacement)."""
    match node:
        case ast.Compare(ops=[op], left=left, comparators=right) if type(op) in OTHER:
            yield "compare", node, ast.Compare(left, [OTHER[type(op)]()], right)
        case ast.BoolOp(op=op, values=values):
            yield "and/or", node, ast.BoolOp(OTHER[type(op)](), values)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in OTHER:
            if not any(map(_is_text, (left, right))):
                yield "compute", node, ast.BinOp(left, OTHER[type(op)](), right)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", node, operand
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "condition", test, ast.UnaryOp(ast.Not(), test)
        case ast.Constant(value=bool(value)):
            yield "truth", node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "number", node, ast.Constant(value + 1)
        case ast.Expr(value=ast.Call(func=called)) if "log" not in ast.unparse(called):
            yield "call", node, ast.Pass()
        case ast.Call(func=called, keywords=[*_, ast.keyword(arg=str())]) if "setting" not in ast.unparse(called):
            yield "keyword", node, ast.Call(called, node.args, node.keywords[:-1])


def _is_text(node: ast.AST) -> bool:
    is_constant = isinstance(node, ast.Constant) and not isinstance(node.value, int | float)
    return is_constant or isinstance(node, ast.JoinedStr)


def _parts(node: ast.AST, function: str = "", statement: ast.stmt | None = None) -> Iterator[tuple]:
    """Yields (function, statement, node) of all code but annotations and decorators."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in filter(lambda each: isinstance(each, ast.AST), value if isinstance(value, list) else [value]):
            inner, of = function, child if isinstance(child, ast.stmt) else statement
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{function}.{child.name}".lstrip(".")
            if of is not None:
                yield inner, of, child
            yield from _parts(child, inner, of)


def mutants_of(checkout: pathlib.Path, module: str) -> list[Mutant]:
    """All mutants of a module, whose path is relative to the checkout."""
    source = (checkout / module).read_bytes()
    lines = source.splitlines(keepends=True)
    parts = [*_parts(ast.parse(source))]
    functions = {name: (s.lineno + 1, s.end_lineno) for name, s, node in parts if s is node and hasattr(s, "name")}
    found, seen = [], collections.Counter()
    for function, statement, node in parts:
        for word, part, replacement in _changes(node):
            head = ast.unparse(statement).partition("\n")[0]  # of `if` and the like, the first line
            key = f"{module} {function}: {head} | {word}: {ast.unparse(part).partition(chr(10))[0]}"
            seen[key] += 1
            body = getattr(statement, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) and body else statement.end_lineno
            places = [(statement.lineno, max(statement.lineno, last)), functions.get(function, (1, 0)), (0, 1 << 30)]
            begin = len(b"".join(lines[: part.lineno - 1])) + part.col_offset
            end = len(b"".join(lines[: part.end_lineno - 1])) + part.end_col_offset
            text = ast.unparse(ast.fix_missing_locations(replacement))
            text = text if isinstance(replacement, ast.stmt) else f"({text})"
            changed = (source[:begin] + text.encode() + source[end:]).decode()
            found.append(Mutant(f"{key} #{seen[key]}", module, places, changed))
    return found


def drawn(checkout: pathlib.Path, modules: list[str], count: int, seed: int) -> list[Mutant]:
    """`count` mutants, of each module as many as its share of the lines, at least one."""
    lines = {module: len((checkout / module).read_text().splitlines()) for module in modules}
    chosen = []
    for module in modules:
        of_module = mutants_of(checkout, module)
        wanted = min(len(of_module), max(1, round(count * lines[module] / sum(lines.values()))))
        chosen += random.Random(f"{seed} {module}").sample(of_module, wanted)
    random.Random(seed).shuffle(chosen)  # so that an interrupted run is a sample of everything
    return chosen


def cover(arguments: argparse.Namespace) -> None:
    """Runs the tests once; writes the tests of each line and the seconds of each test, without those that failed."""
    import coverage
    import pytest

    os.chdir(arguments.checkout)
    sys.path.insert(0, str(arguments.checkout))
    watched = coverage.Coverage(data_file=None, source=[str(arguments.checkout / "bert_tf2")], config_file=False)
    seconds: dict[str, float] = {}
    failed = set()

    class Watch:
        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item, nextitem):
            watched.switch_context(item.nodeid)
            begin = time.perf_counter()
            result = yield
            seconds[item.nodeid] = round(time.perf_counter() - begin, 2)
            return result

        def pytest_runtest_logreport(self, report):
            failed.update([report.nodeid] if report.failed else ())

    watched.start()
    pytest.main(["-p", "no:xdist", "-p", "no:cacheprovider", *arguments.pytest], plugins=[Watch()])
    watched.stop()
    data, tests = watched.get_data(), sorted({*seconds} - failed)
    number, lines = {test: index for index, test in enumerate(tests)}, {}
    for path in data.measured_files():
        lines[str(pathlib.Path(path).relative_to(arguments.checkout))] = {
            line: sorted({number[test] for test in of_line if test in number})
            for line, of_line in data.contexts_by_lineno(path).items()
        }
    found = {"tests": tests, "seconds": [seconds[test] for test in tests], "lines": lines}
    arguments.out.write_text(json.dumps(found))


def tests_for(mutant: Mutant, covered: dict, most_seconds: float) -> list[str]:
    """The quickest tests that run the changed statement, its function or its module, those of the same folder first.

    The rest of the time is for other tests of the folder, because only the first test that asks for a fixture of the
    session runs the lines that make it.
    """
    lines, seconds = covered["lines"].get(mutant.module, {}), covered["seconds"]
    for begin, end in mutant.places:  # code that TensorFlow traces runs in copies of functions, which have no lines
        if tests := {test for line, of_line in lines.items() if begin <= int(line) <= end for test in of_line}:
            break
    module = pathlib.Path(mutant.module)
    folder = str(module.parent).replace("bert_tf2", "tests", 1)

    def order(test: int) -> tuple[bool, bool, float]:
        path = pathlib.Path(covered["tests"][test].partition("::")[0])
        return module.stem not in path.stem, str(path.parent) != folder, seconds[test]

    def in_folder(name: str) -> bool:
        return str(pathlib.Path(name.partition("::")[0]).parent) == folder

    others = {number for number, name in enumerate(covered["tests"]) if in_folder(name)}
    chosen: dict[int, None] = {}
    spent = 0.0
    # Half of the time for the tests of the same name and folder, half for the quickest of all, the rest for the others.
    for some, key, most in ((tests, order, 0.5), (tests, seconds.__getitem__, 1.0), (others, order, 1.0)):
        for test in sorted(some - chosen.keys(), key=key):
            if spent >= most * most_seconds:
                break
            spent += seconds[test] + 0.02
            chosen[test] = None
    return [covered["tests"][test] for test in chosen]


def _run_tests(copy: pathlib.Path, tests: list[str], told: pathlib.Path) -> None:
    """Runs the tests in a fork, which has imported TensorFlow; the exit status is pytest's. Notes the first failure."""
    import pytest

    class Tell:
        def pytest_runtest_logreport(self, report):
            if report.failed:
                told.write_text(report.nodeid or "collection")

        pytest_collectreport = pytest_runtest_logreport

    os.setpgid(0, 0)
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.chdir(copy)
    sys.path[:0] = [str(copy)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    status = 1
    try:
        status = pytest.main(["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *tests], plugins=[Tell()])
    finally:
        os._exit(int(status))


def _verdict(copy: pathlib.Path, tests: list[str], limit: float) -> tuple[str, str]:
    """Returns whether the tests found the fault, and the first failure."""
    told = copy / "told.txt"
    told.unlink(missing_ok=True)
    child = FORKS.Process(target=_run_tests, args=(copy, tests, told))
    child.start()
    child.join(limit)
    if child.exitcode is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
        return "time", ""
    return ("found" if child.exitcode else "survived"), told.read_text() if told.exists() else ""


def _lane(todo, mutants: list[Mutant], covered: dict, arguments: argparse.Namespace) -> None:
    """Takes numbers of mutants from the queue `todo` until None comes; each lane has a copy of the checkout."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = pathlib.Path(folder, "checkout")
        listed = subprocess.run(["git", "ls-files"], cwd=arguments.checkout, capture_output=True, text=True, check=True)
        for path in filter(None, listed.stdout.splitlines()):
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(arguments.checkout / path, copy / path)
        if (shared := arguments.checkout.parent / "shared").exists():
            pathlib.Path(folder, "shared").symlink_to(shared.resolve())
        for mutant in map(mutants.__getitem__, iter(todo.get, None)):
            tests = tests_for(mutant, covered, arguments.seconds)
            verdict, failure, begin = "no test", "", time.monotonic()
            if tests:
                original = (copy / mutant.module).read_bytes()
                (copy / mutant.module).write_text(mutant.source)
                verdict, failure = _verdict(copy, tests, arguments.limit)
                (copy / mutant.module).write_bytes(original)
            seconds = round(time.monotonic() - begin, 1)
            row = {"name": mutant.name, "verdict": verdict, "by": failure, "tests": len(tests), "seconds": seconds}
            with open(arguments.results, "a") as results:
                results.write(json.dumps(row) + "\n")
            print(f"{verdict:9}{seconds:6.1f} s  {mutant.name}  {failure}", flush=True)


def _rows(path: pathlib.Path) -> dict[str, dict]:
    """The lines of results by the names of their mutants."""
    return {row["name"]: row for row in map(json.loads, path.read_text().splitlines())} if path.exists() else {}


def run(arguments: argparse.Namespace) -> None:
    """Makes mutants, or takes those of another run, and writes a line for each: found, survived, no test or time."""
    covered = json.loads(arguments.cover.read_text())
    paths = (path for path in (arguments.checkout / "bert_tf2").rglob("*.py") if path.name not in UNTESTED)
    modules = sorted(str(path.relative_to(arguments.checkout)) for path in paths)
    modules = [module for module in modules if module.startswith(tuple(arguments.modules))]
    if arguments.same_as:
        wanted = _rows(arguments.same_as)
        here = {mutant.name: mutant for module in modules for mutant in mutants_of(arguments.checkout, module)}
        mutants = [here[name] for name in wanted if name in here]
        print(f"{len(mutants)} of {len(wanted)} mutants exist in this version too")
    else:
        mutants = drawn(arguments.checkout, modules, arguments.count, arguments.seed)
    done = _rows(arguments.results)
    os.environ.update(
        CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", HF_HUB_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1"
    )
    # What all children share; what initializes TensorFlow's devices must not be imported here.
    import keras, pytest, sklearn.metrics, tensorflow  # noqa: E401, F401, I001

    todo = FORKS.SimpleQueue()
    lanes = [FORKS.Process(target=_lane, args=(todo, mutants, covered, arguments)) for _ in range(arguments.lanes)]
    for lane in lanes:
        lane.start()
    for index in [*(n for n, mutant in enumerate(mutants) if mutant.name not in done), *[None] * arguments.lanes]:
        todo.put(index)
    for lane in lanes:
        lane.join()


def table(arguments: argparse.Namespace) -> None:
    """Prints by folder how many mutants each run found, and those that only one of two runs found."""
    runs = [_rows(path) for path in arguments.results]
    names = set.intersection(*map(set, runs))
    folders = collections.defaultdict(list)
    for name in sorted(names):
        parts = name.split()[0].split("/")
        folders[parts[1] if len(parts) > 2 else "."].append(name)
    found = [{name for name in names if run[name]["verdict"] in ("found", "time")} for run in runs]
    print("| folder | mutants |" + "".join(f" found by {path.stem} |" for path in arguments.results))
    print("|-|-|" + "-|" * len(runs))
    for folder, listed in [*sorted(folders.items()), ("all", sorted(names))]:
        print(
            f"| {folder} | {len(listed)} |" + "".join(f" {len(names.intersection(listed, each))} |" for each in found)
        )
    if len(runs) == 2:
        for path, only in zip(arguments.results, (found[0] - found[1], found[1] - found[0]), strict=True):
            print(f"\nOnly in {path.stem}:", *sorted(only), sep="\n")
    print("\nFound by none:", *sorted(names.difference(*found)), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    path = {"type": lambda text: pathlib.Path(text).resolve()}
    parser.add_argument("--checkout", default=pathlib.Path(__file__).resolve().parents[1], **path)
    acts = parser.add_subparsers(required=True)
    act = acts.add_parser("cover")
    act.add_argument("out", **path)
    act.add_argument("pytest", nargs="*", default=["-m", "not soak and not extra"])
    act.set_defaults(act=cover)
    act = acts.add_parser("run")
    act.add_argument("cover", **path)
    act.add_argument("results", **path)
    act.add_argument("--count", type=int, default=300)
    act.add_argument("--seed", type=int, default=1)
    act.add_argument("--modules", nargs="*", default=["bert_tf2/"], help="beginnings of paths")
    act.add_argument("--same_as", help="results whose mutants are run here", **path)
    act.add_argument("--seconds", type=float, default=40, help="of tests for one mutant")
    act.add_argument("--limit", type=float, default=240, help="seconds after which a run counts as endless")
    act.add_argument("--lanes", type=int, default=2, help="mutants at the same time")
    act.set_defaults(act=run)
    act = acts.add_parser("table")
    act.add_argument("results", nargs="+", **path)
    act.set_defaults(act=table)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
