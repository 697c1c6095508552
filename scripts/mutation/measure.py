"""Which test runs which lines, and for how long: measured once per file of tests and kept until something changes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import defaultdict
from pathlib import Path

from .exclude import inside, users
from .runs import copy_tree, run

#: Runs at the start of every process of the tests, in place of the interpreter's own, which it runs, too.
_SITE = """
import importlib.machinery, importlib.util, os, sys
here = os.path.dirname(os.path.abspath(__file__))
elsewhere = [p for p in sys.path if os.path.abspath(p) != here]
spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
if spec is not None:
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
if "COOPNET_MUTATION_COVERAGE" in os.environ:
    os.environ["COVERAGE_PROCESS_START"] = os.environ["COOPNET_MUTATION_COVERAGE"]
    import coverage
    coverage.process_startup()
"""
#: How often a file of tests is begun again without the test that ended the process.
ATTEMPTS = 12


def sources(root: Path) -> list[str]:
    """All files that mutants are made of."""
    return sorted(p.relative_to(root).as_posix() for p in (root / "coopnet").rglob("*.py"))


def fingerprint(root: Path, test_file: str) -> str:
    """Changes with the library, the file of tests, and what all tests share."""
    digest = hashlib.sha256()
    support = sorted(p.relative_to(root).as_posix() for p in (root / "tests" / "support").glob("*.py"))
    for name in [*sources(root), *support, "tests/conftest.py", "pyproject.toml", test_file]:
        digest.update(name.encode() + b"\0" + (root / name).read_bytes() + b"\0")
    return digest.hexdigest()


def measure(root: Path, test_file: str, work: Path, slot: int) -> dict:
    """Run one file of tests under coverage, where each test is a context of its own; processes they start count too."""
    tree = work / f"measure-{Path(test_file).stem}"
    site, data = tree.with_name(tree.name + "-site"), tree.with_name(tree.name + "-data")
    for folder in (tree, site, data):
        shutil.rmtree(folder, ignore_errors=True)
    copy_tree(root, tree)
    for folder in (site, data):
        folder.mkdir()
    (site / "sitecustomize.py").write_text(_SITE)
    (site / "rc").write_text(
        f"[run]\nparallel = true\ndata_file = {data / 'data'}\nsource = {tree / 'coopnet'}\n"
        "context = ${PYTEST_CURRENT_TEST-}\n"
        "disable_warnings = no-data-collected, module-not-measured, module-not-imported\n"
    )
    environment = {
        "COOPNET_MUTATION_COVERAGE": str(site / "rc"),
        "PYTHONPATH": str(site),
    }
    tests: dict[str, tuple[str, float]] = {}
    ended: list[str] = []  # tests that ended the process
    for _ in range(ATTEMPTS):
        found = run(tree, [test_file], slot, skip=[*tests, *ended], stop=False, patience=300.0, environment=environment)
        tests.update(found.tests)
        if found.outcome not in ("crashed", "timeout") or not found.test:
            break
        ended.append(found.test)
    result = {
        "fingerprint": fingerprint(root, test_file),
        "tests": tests,
        "ended": ended,
        "lines": _lines(data, tree, list(tests)),
    }
    if not tests:
        result["output"] = found.output
    for folder in (tree, site, data):
        shutil.rmtree(folder, ignore_errors=True)
    return result


def _lines(data: Path, tree: Path, tests: list[str]) -> dict[str, dict[str, list[int]]]:
    """By file and line, the numbers of the tests that run it."""
    from coverage import CoverageData
    from coverage.exceptions import DataError

    number = {name: i for i, name in enumerate(tests)}
    lines: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for path in data.iterdir():
        part = CoverageData(basename=str(path))
        try:
            part.read()
        except DataError:
            continue  # of a process that a test killed while it wrote
        for file in part.measured_files():
            mine = lines[Path(file).relative_to(tree).as_posix()]
            for line, contexts in part.contexts_by_lineno(file).items():
                for context in contexts:
                    # of a process that a test started: the test and its phase, "name (call)"
                    for name in context.split("|"):
                        i = number.get(name, number.get(name.rsplit(" (", 1)[0]))
                        if i is not None:
                            mine[str(line)].add(i)
    return {f: {n: sorted(tests) for n, tests in of.items()} for f, of in lines.items()}


class Coverage:
    """What was measured, of all files of tests together."""

    def __init__(self, paths: list[Path]):
        self.seconds: dict[str, float] = {}
        self.covered: dict[str, int] = defaultdict(int)  #: lines that a test runs, in all files
        self.lines: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        self.unusable: list[str] = []
        for path in paths:
            part = json.loads(path.read_text())
            names = list(part["tests"])
            usable = {i for i, name in enumerate(names) if part["tests"][name][0] == "passed"}
            self.unusable += [n for n in names if part["tests"][n][0] == "failed"] + part["ended"]
            self.seconds.update({names[i]: part["tests"][names[i]][1] for i in usable})
            for file, of in part["lines"].items():
                for line, tests in of.items():
                    for i in usable.intersection(tests):
                        self.lines[file][int(line)].append(names[i])
                        self.covered[names[i]] += 1

    def tests(self, file: str, line: int, sources: dict[str, str]) -> list[str]:
        """Tests that may notice a change at ``line``: that run the statement, else its function, else the file.

        What runs at import is run by all tests, and in processes that tests start. It shows where it is used.
        """
        for lines in inside(sources[file], line):
            if found := self._running({file: lines}):
                return sorted(found)
        own = self._running({file: {line}})  # of a lambda
        importing = self._running({file: {min(self.lines[file], default=0)}})
        if own - importing:
            return sorted(own)
        return sorted(self._running(users(sources, file, line)) or self._running({file: set(self.lines[file])}))

    def _running(self, places: dict[str, set[int]]) -> set[str]:
        return {t for file, lines in places.items() for n in lines for t in self.lines[file].get(n, ())}

    def choose(self, tests: list[str], budget: float) -> list[str]:
        """As many of ``tests`` as take ``budget`` seconds, quick ones that run little else first, fastest first.

        All functions get their turn before one gets a second with other parameters.
        """
        cost = {t: self.seconds[t] * self.covered[t] for t in tests}
        turns: dict[str, int] = defaultdict(int)
        ranked = []
        for test in sorted(tests, key=lambda t: (cost[t], t)):
            function = test.split("[")[0]
            ranked.append((turns[function], cost[test], test))
            turns[function] += 1
        chosen, total = [], 0.0
        for _, _, test in sorted(ranked):
            if not chosen or total + self.seconds[test] <= budget:
                chosen.append(test)
                total += self.seconds[test]
        return sorted(chosen, key=lambda t: (self.seconds[t], t))
