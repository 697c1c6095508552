"""What users may rely on changes on purpose only."""

from __future__ import annotations

import difflib
import importlib.util

import pytest
from support.machines import ROOT

_spec = importlib.util.spec_from_file_location("surface", ROOT / "scripts" / "surface.py")
surface = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(surface)
RECORDED = surface.parsed(surface.PATH.read_text(encoding="utf-8"))

HOW = """
The public surface has changed. If that is what you want:
1. run `python scripts/surface.py` (in an environment with coopnet[dev] and torch), and look at the difference;
2. say in CHANGELOG.md what users will notice;
3. what goes is deprecated first: coopnet/deprecation.py, and the rule in CONTRIBUTING.md.
"""


def test_every_part_is_recorded():
    assert list(RECORDED) == [*surface.MODULES, surface.COMMANDS]


@pytest.mark.parametrize("part", RECORDED)
def test_surface(part):
    found = surface.sections()
    if part not in found:
        importlib.import_module(part if part != surface.COMMANDS else "typer")  # says which package is missing
    lines = difflib.unified_diff(RECORDED[part], found[part], "recorded", "found", n=0, lineterm="")
    assert found[part] == RECORDED[part], HOW + "\n".join(lines)


def test_what_is_noticed():
    def f(a, b=2, *c, d=None, e="x", **g): ...

    class Base:
        def kept(self, x): ...

    assert surface._signature(f) == "(a, b=2, *c, d=None, e='x', **g)"
    assert surface._signature(lambda a, *, b=surface._own: 0) == "(a, *, b=<_own>)"
    assert surface._value("Base", Base)[0].startswith("class Base(")
    assert surface.parsed(surface.text({"a": ["x", "y"], "b": []})) == {"a": ["x", "y"], "b": []}
