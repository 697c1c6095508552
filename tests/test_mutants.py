"""The tool that changes the library and looks which tests notice."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"

SOURCE = '''"""A module."""
from functools import lru_cache

LIMIT = 3  # used by f


def f(x: int | None, scale=2.0) -> float:
    """Twice 1 + 1."""
    if x is None:
        raise ValueError(f"x is {1 + 1}")
    x = x * LIMIT
    return g(x, scale=scale + 1)


@lru_cache(maxsize=8)
def g(x, *, scale):
    print(x)
    return x / scale if x < 4 else x


class C:
    DRJIT_STRUCT = {"a": 1}
    width = 5

    def __repr__(self):
        return "C" * 3

    def area(self):
        return self.width
'''


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield
    for name in [n for n in sys.modules if n.split(".")[0] == "mutation"]:
        del sys.modules[name]


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tree" / "lib").mkdir(parents=True)
    (tmp_path / "tree" / "lib" / "a.py").write_text(SOURCE)
    (tmp_path / "tree" / "lib" / "b.py").write_text("def h(x):\n    return x + 1\n")
    return tmp_path / "tree"


def lines(part):
    return [i for i, line in enumerate(SOURCE.splitlines(), 1) if part in line]


def test_samples(tree):
    pytest.importorskip("cosmic_ray")
    from mutation.sample import sample

    mutants = sample(tree, ["lib/a.py", "lib/b.py"], 60, seed=3)
    assert [m.id for m in mutants] == [m.id for m in sample(tree, ["lib/a.py", "lib/b.py"], 60, seed=3)]
    assert {m.file for m in sample(tree, ["lib/a.py", "lib/b.py"], 4, seed=4)} == {"lib/a.py", "lib/b.py"}
    assert len({m.id for m in mutants}) == len(mutants)
    for m in mutants:
        original = (tree / m.file).read_text()
        assert ast.dump(ast.parse(m.source)) != ast.dump(ast.parse(original))
        assert m.diff(original).startswith(f"--- a/{m.file}")
    found = {(m.line, m.after) for m in mutants if m.file == "lib/a.py"}
    quiet = lines("A module") + lines("Twice") + lines("lru_cache") + lines("DRJIT_STRUCT") + lines('"C" * 3')
    assert not {line for line, _ in found} & set(quiet)
    texts = {after for _, after in found}
    assert "pass" in texts  # of raise, print or x = x * LIMIT
    assert not any("1 - 1" in t or "int & None" in t for t in texts)


def test_where_a_change_shows():
    from mutation.exclude import inside, users

    ((limit,), (default,), (body,)) = (lines(p) for p in ("LIMIT = 3", "def f", "x * LIMIT"))
    in_f = set(range(default + 1, lines("return g")[0] + 1))
    assert inside(SOURCE, body) == [{body}, in_f]
    assert inside(SOURCE, lines("if x is None")[0])[0] == set(lines("if x is None"))
    sources = {"a.py": SOURCE, "b.py": "import a\n\n\ndef h():\n    return a.LIMIT\n", "c.py": "LIMITED = 3\n"}
    assert inside(SOURCE, limit) == inside(SOURCE, default) == []
    assert users(sources, "a.py", limit) == {"a.py": in_f, "b.py": {5}, "c.py": set()}
    assert users(sources, "a.py", default) == {"a.py": in_f}
    (cache,) = lines("lru_cache(")
    assert users(sources, "a.py", cache) == {"a.py": {cache + 2, cache + 3}}
    assert lines("return self.width")[0] in users(sources, "a.py", lines("width = 5")[0])["a.py"]


def test_runs(tree, monkeypatch):
    """One process for each run, and how it ended."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    from mutation.runs import copy_tree, replace, run

    (tree / "test_it.py").write_text(
        "import os, time, pytest\nfrom lib.b import h\n\n"
        "def test_two():\n    assert h(1) == 2\n\n"
        "def test_end():\n    if h(0) == 5: os.abort()\n    if h(0) == 6: time.sleep(60)\n\n"
    )
    two, end = "test_it.py::test_two", "test_it.py::test_end"

    def outcome(text, tests, **options):
        copy = tree.with_name("copy")
        copy_tree(tree, copy)
        if text is not None:
            replace(copy, "lib/b.py", text)
        found = run(copy, ["test_it.py"], 0, tests=tests, **options)
        shutil.rmtree(copy)
        return found.outcome, found.test, [*found.tests]

    assert outcome(None, [end, two]) == ("passed", "", [end, two])  # in the order asked for
    assert outcome("def h(x):\n    return x + 3\n", [end, two])[:2] == ("failed", two)
    assert outcome("def h(x):\n    return x + 5\n", [end])[:2] == ("crashed", end)
    assert outcome("def h(x):\n    return x + 6\n", [end], patience=2.0)[:2] == ("timeout", end)
    assert outcome("nonsense\n", [end])[:2] == ("failed", "")
    assert (tree / "lib" / "b.py").read_text().endswith("x + 1\n")  # the original is as it was


def test_choice_of_tests(tmp_path):
    """Within the budget: all functions once, quick and specific ones first, before any comes with other parameters."""
    from mutation.measure import Coverage

    tests = {"t::a[1]": ["passed", 1.0], "t::a[2]": ["passed", 1.0], "t::b": ["passed", 2.0], "t::c": ["passed", 9.0]}
    tests |= {"t::bad": ["failed", 0.1], "t::wide": ["passed", 1.0]}
    everywhere = list(range(6))
    record = {"tests": tests, "ended": [], "lines": {"lib/b.py": {"2": everywhere}, "lib/a.py": {"1": [5], "2": [5]}}}
    (tmp_path / "t.json").write_text(json.dumps(record))
    coverage = Coverage([tmp_path / "t.json"])
    assert coverage.unusable == ["t::bad"]
    found = coverage.tests("lib/b.py", 2, {"lib/b.py": "def h(x):\n    return x + 1\n"})
    assert set(found) == set(tests) - {"t::bad"}
    assert set(coverage.choose(found, 5)) == {"t::a[1]", "t::b", "t::wide", "t::a[2]"}
    assert set(coverage.choose(found, 4)) == {"t::a[1]", "t::b", "t::wide"}
    assert coverage.choose(found, 0) == ["t::a[1]"]
    assert coverage.tests("lib/c.py", 1, {"lib/c.py": "x = 1\n"}) == []


def test_fingerprint(tmp_path):
    """A measurement is void once the library, the file of tests or what tests share has changed, and only then."""
    from mutation.measure import fingerprint

    names = ["coopnet/nn/a.py", "tests/nn/test_a.py", "tests/nn/test_b.py", "tests/support/x.py", "tests/conftest.py"]
    for name in [*names, "pyproject.toml"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    known = fingerprint(tmp_path, "tests/nn/test_a.py")
    for name in names:
        (tmp_path / name).write_text("1\n")
        assert (fingerprint(tmp_path, "tests/nn/test_a.py") == known) == (name == "tests/nn/test_b.py"), name
        (tmp_path / name).write_text("")


def test_equivalents():
    """Each is of code that is there, and stands once."""
    known = json.loads((SCRIPTS / "mutation" / "equivalent.json").read_text())
    places = [(e["file"], e["before"], e["after"]) for e in known]
    assert all(e["why"] for e in known) and len(set(places)) == len(places)
    assert not [before for file, before, _ in places if before not in (SCRIPTS.parent / file).read_text()]
