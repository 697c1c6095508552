"""A layer made without arguments holds its defaults (``tests/public_surface.txt`` records them)."""

from __future__ import annotations

import inspect

import drjit.nn as drnn
import pytest

import coopnet as cn


def defaults(name):
    parameters = inspect.signature(getattr(cn, name)).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def is_layer(name):
    thing = getattr(cn, name)
    return inspect.isclass(thing) and issubclass(thing, drnn.Module)


@pytest.mark.parametrize("name", [n for n in cn.__all__ if is_layer(n) and defaults(n)])
def test_what_is_left_out_is_kept(name):
    cls = getattr(cn, name)
    made = cls()
    if name == "Linear":
        assert made.config == (-1, -1, True)
        return
    # None often stands for a value that follows from the others
    held = {key: v for key, v in defaults(name).items() if key in cls.DRJIT_STRUCT and v is not None}
    assert repr({key: getattr(made, key) for key in held}) == repr(held)  # 1, 1.0 and True are not the same
