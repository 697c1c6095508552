"""Objects that virtual calls may visit, as an input of frozen functions."""

from __future__ import annotations

import functools
from typing import Any

import drjit as dr
import mitsuba as mi

from ..jit.captures import COMPANIONS
from . import variants

#: Kinds of plugins that virtual calls visit, but scenes hold no pointers to (unlike emitters, shapes and sensors).
_KINDS = ("BSDFPtr", "MediumPtr", "PhaseFunctionPtr")


def pointers() -> list[Any]:
    """Null pointers to pass to functions of ``dr.freeze`` as an input, also as an attribute of an object.

    A virtual call of a BSDF visits all BSDFs that exist, also those of other scenes and of no scene. If a pointer to a
    BSDF is among the inputs, Dr.Jit collects the arrays of all of them. Otherwise it finds only those of the scene, and
    raises an error if other BSDFs hold arrays.
    """
    variant = mi.variant()
    return list(_pointers(variant)) if variants.runs(variant) else []


@functools.cache  # with another array as input, the function would be recorded again
def _pointers(variant: str) -> list[Any]:
    return [dr.opaque(getattr(mi, kind), 0) for kind in _KINDS]


COMPANIONS["mitsuba"] = pointers
