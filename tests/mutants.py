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

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Add,
}
UNTESTED = ("demo.py", "__main__.py")  # shown to people, and run as a whole by other checks


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change. `name` is the same in every version, `first` to `last` are the statement's lines in this version."""

    name: str
    module: str
    function: str
    first: int
    last: int
    source: str = dataclasses.field(repr=False)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yields (word for the change, part of the source, its replacement)."""
    match node:
        case ast.Compare(ops=[op], left=left, comparators=right) if type(op) in COMPARED:
            yield "compare", node, ast.Compare(left, [COMPARED[type(op)]()], right)
        case ast.BoolOp(op=op, values=values):
            yield "and/or", node, ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in COMPUTED:
            if not any(
                isinstance(side, ast.JoinedStr | ast.Constant) and not _is_number(side) for side in (left, right)
            ):
                yield "compute", node, ast.BinOp(left, COMPUTED[type(op)](), right)
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


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _places(
    node: ast.AST, function: str = "", statement: ast.stmt | None = None
) -> Iterator[tuple[str, ast.stmt, ast.AST]]:
    """Yields (function, statement, node) of all code but annotations and decorators."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            inner, of = function, child if isinstance(child, ast.stmt) else statement
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{function}.{child.name}".lstrip(".")
            if of is not None:
                yield inner, of, child
            yield from _places(child, inner, of)


def _replaced(source: bytes, starts: list[int], part: ast.AST, replacement: ast.AST) -> str:
    begin = starts[part.lineno - 1] + part.col_offset
    end = starts[part.end_lineno - 1] + part.end_col_offset
    text = ast.unparse(ast.fix_missing_locations(replacement))
    text = text if isinstance(replacement, ast.stmt) else f"({text})"
    return (source[:begin] + text.encode() + source[end:]).decode()


def mutants_of(checkout: pathlib.Path, module: str) -> list[Mutant]:
    """All mutants of a module, whose path is relative to the checkout."""
    source = (checkout / module).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found, seen = [], collections.Counter()
    for function, statement, node in _places(ast.parse(source)):
        for word, part, replacement in _changes(node):
            head = ast.unparse(statement).partition("\n")[0]  # of `if` and the like, the first line
            key = f"{module} {function}: {head} | {word}: {ast.unparse(part).partition(chr(10))[0]}"
            seen[key] += 1
            name = f"{key} #{seen[key]}"
            body = getattr(statement, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) and body else statement.end_lineno
            changed = _replaced(source, starts, part, replacement)
            found.append(Mutant(name, module, function, statement.lineno, max(statement.lineno, last), changed))
    return found


def modules_of(checkout: pathlib.Path) -> list[str]:
    """The package's modules, relative to the checkout."""
    paths = sorted((checkout / "bert_tf2").rglob("*.py"))
    return [str(path.relative_to(checkout)) for path in paths if path.name not in UNTESTED]


def drawn(checkout: pathlib.Path, modules: list[str], count: int, seed: int) -> list[Mutant]:
    """`count` mutants, of each module as many as its share of the lines, at least one."""
    lines = {module: len((checkout / module).read_text().splitlines()) for module in modules}
    total = sum(lines.values())
    chosen = []
    for module in modules:
        of_module = mutants_of(checkout, module)
        wanted = min(len(of_module), max(1, round(count * lines[module] / total)))
        chosen += random.Random(f"{seed} {module}").sample(of_module, wanted)
    random.Random(seed).shuffle(chosen)  # so that an interrupted run is a sample of everything
    return chosen


def cover(arguments: argparse.Namespace) -> None:
    """Runs the tests once and notes, for each line of the package, the tests that pass and run it."""
    import coverage
    import pytest

    os.chdir(arguments.checkout)
    sys.path.insert(0, str(arguments.checkout))
    watched = coverage.Coverage(data_file=None, source=[str(arguments.checkout / "bert_tf2")], config_file=False)
    seconds: dict[str, float] = {}

    class Watch:
        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item, nextitem):
            watched.switch_context(item.nodeid)
            begin = time.perf_counter()
            result = yield
            seconds[item.nodeid] = round(time.perf_counter() - begin, 2)
            return result

        def pytest_runtest_logreport(self, report):
            if report.failed:
                seconds[report.nodeid] = float("nan")

    watched.start()
    pytest.main(["-p", "no:xdist", "-p", "no:cacheprovider", *arguments.pytest], plugins=[Watch()])
    watched.stop()
    write_cover(watched.get_data(), seconds, arguments.checkout, arguments.out)


def write_cover(data, seconds: dict[str, float], checkout: pathlib.Path, out: pathlib.Path) -> None:
    """Writes the tests of each line and the seconds of each test, without those that failed."""
    tests = sorted(test for test, value in seconds.items() if value == value)
    number = {test: index for index, test in enumerate(tests)}
    lines = {}
    for path in data.measured_files():
        contexts = data.contexts_by_lineno(path)
        module = str(pathlib.Path(path).relative_to(checkout))
        lines[module] = {
            line: sorted({number[test] for test in of_line if test in number}) for line, of_line in contexts.items()
        }
    out.write_text(json.dumps({"tests": tests, "seconds": [seconds[test] for test in tests], "lines": lines}))


def tests_for(mutant: Mutant, covered: dict, functions: dict[str, tuple[int, int]], most_seconds: float) -> list[str]:
    """The quickest tests that run the changed statement, its function or its module, those of the same folder first."""
    lines = {int(line): tests for line, tests in covered["lines"].get(mutant.module, {}).items()}
    first, last = functions.get(mutant.function, (0, 0))
    ranges = [(mutant.first, mutant.last), (first + 1, last), (0, 1 << 30)]
    tests: set[int] = set()
    for begin, end in ranges:  # code that TensorFlow traces runs in copies of its functions, which have no lines here
        tests = {test for line, of_line in lines.items() if begin <= line <= end for test in of_line}
        if tests:
            break
    folder = str(pathlib.Path(mutant.module).parent).replace("bert_tf2", "tests", 1)
    stem = pathlib.Path(mutant.module).stem

    def order(test: int) -> tuple[bool, bool, float]:
        path = pathlib.Path(covered["tests"][test].partition("::")[0])
        return stem not in path.stem, str(path.parent) != folder, covered["seconds"][test]

    # Half of the time for the tests of the same name and folder, half for the quickest of all.
    chosen: dict[int, None] = {}
    for ordered in (sorted(tests, key=order), sorted(tests, key=lambda test: covered["seconds"][test])):
        left = most_seconds / 2
        for test in ordered:
            if test not in chosen and left > 0:
                left -= covered["seconds"][test] + 0.02
                chosen[test] = None
    return [covered["tests"][test] for test in chosen]


def _run_tests(copy: pathlib.Path, tests: list[str], limit: float) -> tuple[str, str]:
    """Runs the tests in a child of this process, which has imported TensorFlow; returns (verdict, first failure)."""
    told = copy / "told.txt"
    told.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        with open(os.devnull, "w") as nothing:
            for stream in (1, 2):
                os.dup2(nothing.fileno(), stream)
        os.chdir(copy)
        sys.path[:0] = [str(copy)]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        import pytest

        class Tell:
            def pytest_runtest_logreport(self, report):
                if report.failed:
                    told.write_text(report.nodeid)

            def pytest_collectreport(self, report):
                if report.failed:
                    told.write_text(f"{report.nodeid} (collection)")

        status = 1
        try:
            status = pytest.main(["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *tests], plugins=[Tell()])
        finally:
            os._exit(int(status))
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            failure = told.read_text() if told.exists() else ""
            return ("survived" if os.waitstatus_to_exitcode(status) == 0 else "found"), failure
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "time", ""


def _lane(todo: int, mutants: list[Mutant], covered: dict, arguments: argparse.Namespace) -> None:
    """Takes mutants from the pipe `todo` until it is empty; each lane has a copy of the checkout."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = pathlib.Path(folder, "checkout")
        listed = subprocess.run(["git", "ls-files"], cwd=arguments.checkout, capture_output=True, text=True, check=True)
        for path in filter(None, listed.stdout.splitlines()):
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(arguments.checkout / path, copy / path)
        if (shared := arguments.checkout.parent / "shared").exists():
            pathlib.Path(folder, "shared").symlink_to(shared.resolve())
        while index := os.read(todo, 4):
            mutant = mutants[int.from_bytes(index, "little")]
            tree = ast.parse((copy / mutant.module).read_bytes())
            functions = {
                name: (s.lineno, s.end_lineno) for name, s, node in _places(tree) if s is node and hasattr(s, "name")
            }
            tests = tests_for(mutant, covered, functions, arguments.seconds)
            verdict, failure = "no test", ""
            begin = time.monotonic()
            if tests:
                original = (copy / mutant.module).read_bytes()
                (copy / mutant.module).write_text(mutant.source)
                try:
                    verdict, failure = _run_tests(copy, tests, arguments.limit)
                finally:
                    (copy / mutant.module).write_bytes(original)
            row = {"name": mutant.name, "verdict": verdict, "by": failure, "tests": len(tests)}
            row["seconds"] = round(time.monotonic() - begin, 1)
            with open(arguments.results, "a") as results:
                results.write(json.dumps(row) + "\n")
            print(f"{verdict:9}{row['seconds']:6.1f} s  {mutant.name}  {failure}", flush=True)


def run(arguments: argparse.Namespace) -> None:
    """Makes mutants, or takes those of another run, and writes a line for each: found, survived, no test or time."""
    covered = json.loads(arguments.cover.read_text())
    checkout = arguments.checkout
    modules = [module for module in modules_of(checkout) if module.startswith(tuple(arguments.modules))]
    if arguments.same_as:
        wanted = [json.loads(line)["name"] for line in arguments.same_as.read_text().splitlines()]
        here = {mutant.name: mutant for module in modules for mutant in mutants_of(checkout, module)}
        mutants = [here[name] for name in wanted if name in here]
        print(f"{len(mutants)} of {len(wanted)} mutants exist in this version too")
    else:
        mutants = drawn(checkout, modules, arguments.count, arguments.seed)
    done = set()
    if arguments.results.exists():
        done = {json.loads(line)["name"] for line in arguments.results.read_text().splitlines()}
    todo, write = os.pipe()
    for index, mutant in enumerate(mutants):
        if mutant.name not in done:
            os.write(write, index.to_bytes(4, "little"))  # a pipe holds 16,000 of them
    os.close(write)
    os.environ.update(
        CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", HF_HUB_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1"
    )
    # What all children share; what initializes TensorFlow's devices must not be imported here.
    import keras  # noqa: F401
    import pytest  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import tensorflow as tf  # noqa: F401

    lanes = []
    for _ in range(arguments.lanes):
        if lane := os.fork():
            lanes.append(lane)
        else:
            _lane(todo, mutants, covered, arguments)
            os._exit(0)
    for lane in lanes:
        os.waitpid(lane, 0)


def table(arguments: argparse.Namespace) -> None:
    """Prints by folder how many mutants each run found, and those that only one of two runs found."""
    runs = [{row["name"]: row for row in map(json.loads, path.read_text().splitlines())} for path in arguments.results]
    names = set.intersection(*(set(run) for run in runs))
    folders = collections.defaultdict(list)
    for name in sorted(names):
        parts = name.split()[0].split("/")
        folders[parts[1] if len(parts) > 2 else "."].append(name)
    found = [{name for name in names if run[name]["verdict"] in ("found", "time")} for run in runs]
    print("| folder | mutants |" + "".join(f" found by {path.stem} |" for path in arguments.results))
    print("|-|-|" + "-|" * len(runs))
    for folder, of_folder in [*sorted(folders.items()), ("all", sorted(names))]:
        print(
            f"| {folder} | {len(of_folder)} |" + "".join(f" {len(names.intersection(of_folder, f))} |" for f in found)
        )
    if len(runs) == 2:
        for path, only in zip(arguments.results, (found[0] - found[1], found[1] - found[0]), strict=True):
            print(f"\nOnly in {path.stem}:", *sorted(only), sep="\n")
    print("\nFound by none:", *sorted(names.difference(*found)), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    acts = parser.add_subparsers(required=True)
    act = acts.add_parser("cover")
    act.add_argument("out", type=pathlib.Path)
    act.add_argument("pytest", nargs="*", default=["-m", "not soak and not extra"])
    act.set_defaults(act=cover)
    act = acts.add_parser("run")
    act.add_argument("cover", type=pathlib.Path)
    act.add_argument("results", type=pathlib.Path)
    act.add_argument("--count", type=int, default=300)
    act.add_argument("--seed", type=int, default=1)
    act.add_argument("--modules", nargs="*", default=["bert_tf2/"], help="beginnings of paths")
    act.add_argument("--same_as", type=pathlib.Path, help="results whose mutants are run here")
    act.add_argument("--seconds", type=float, default=40, help="of tests for one mutant")
    act.add_argument("--limit", type=float, default=240, help="seconds after which a run counts as endless")
    act.add_argument("--lanes", type=int, default=2, help="mutants at the same time")
    act.set_defaults(act=run)
    act = acts.add_parser("table")
    act.add_argument("results", type=pathlib.Path, nargs="+")
    act.set_defaults(act=table)
    arguments = parser.parse_args()
    for name in ("checkout", "out", "cover", "results", "same_as"):
        if isinstance(path := getattr(arguments, name, None), pathlib.Path):
            setattr(arguments, name, path.resolve())
    arguments.act(arguments)


if __name__ == "__main__":
    main()
