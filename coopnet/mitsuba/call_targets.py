"""What virtual calls may visit, as an input of frozen functions."""

from __future__ import annotations

import functools
from typing import Any

import drjit as dr
import mitsuba as mi

from ..jit.captures import COMPANIONS
from . import variants

#: Kinds of plugins that calls visit and that scenes hold no pointers to; to emitters, shapes and sensors they do.
_KINDS = ("BSDFPtr", "MediumPtr", "PhaseFunctionPtr")


def pointers() -> list[Any]:
    """Pointers to nothing, for ``dr.freeze`` to find among a function's inputs, also as an attribute of an object.

    A virtual call of a BSDF visits all BSDFs that exist, also those of other scenes and of none. Dr.Jit looks for the
    arrays that all of them hold if a pointer to one is among the inputs; if not, it finds those of the scene only, and
    raises where others hold any.
    """
    variant = mi.variant()
    return list(_pointers(variant)) if variants.runs(variant) else []


@functools.cache  # another array, as another input, would be another recording
def _pointers(variant: str) -> list[Any]:
    return [dr.opaque(getattr(mi, kind), 0) for kind in _KINDS]


COMPANIONS["mitsuba"] = pointers
