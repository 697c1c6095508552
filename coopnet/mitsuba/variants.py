"""Classes that derive from Mitsuba's, one for each variant.

``mi.BSDF`` is another class after ``mi.set_variant()``, so classes that derive from it must be made again. A file
declares

    @per_variant
    def NeuralTexture():
        class NeuralTexture(mi.Texture):
            ...
        return NeuralTexture

and :func:`made` finds the class of the variant that is set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mitsuba as mi

from ..backend.transfer import to
from ..checks import ensure

#: Variants that compute with RGB: fields run in all variants of these two backends.
VARIANTS = ("llvm_ad_rgb", "cuda_ad_rgb")
_NAMES = " or ".join(map(repr, VARIANTS))

_makers: dict[str, Callable[[], type]] = {}


def per_variant(make: Callable[[], type]) -> Callable[[], type]:
    """Declare ``make()``, which makes the class of its name for the variant that is set."""
    _makers[make.__name__] = make
    return make


def made(name: str) -> type:
    """The class ``name`` of the variant that is set; the same one at every call.

    Raises:
        AttributeError: no such class.
        RuntimeError: no variant is set, or one in which fields do not run.
    """
    if name not in _makers:
        raise AttributeError(f"module 'coopnet.mitsuba' has no attribute {name!r}")
    return _made(name, current(f"mitsuba.{name}"))


@functools.cache
def _made(name: str, variant: str) -> type:
    return _makers[name]()


def remade(name: str, arguments: dict[str, Any], identifier: str) -> Any:
    """A plugin from a pickle, or a copy of one: an object of the class ``name`` of the variant that is set.
    ``arguments`` are moved to its backend if they are on another.
    """
    here = backend(f"mitsuba.{name}")
    plugin = made(name)(**{key: to(value, here) for key, value in arguments.items()})
    plugin.set_id(identifier)
    return plugin


def backend(where: str) -> str:
    """The backend that the variant runs on; raises as :func:`current`."""
    return current(where).split("_")[0]


def current(where: str) -> str:
    """The variant that is set; ``where`` opens the error.

    Raises:
        RuntimeError: none is set, or one that fields do not run in.
    """
    variant = mi.variant()
    if not runs(variant):
        raise RuntimeError(f"{where}: {unfit(variant)}")
    return str(variant)


def runs(variant: str | None) -> bool:
    """Do fields run in ``variant``: with arrays on a backend, in single precision?"""
    return variant is not None and variant.startswith(("llvm_ad_", "cuda_ad_")) and "double" not in variant


def unfit(variant: str | None) -> str:
    """The text of the error for a variant in which fields do not run."""
    given = "no Mitsuba variant is set" if variant is None else f"the Mitsuba variant is {variant}"
    return f"{given}; call mitsuba.set_variant({_NAMES})."


def check_rgb(where: str) -> None:
    """Raise ``RuntimeError`` unless the variant computes with colors of three numbers."""
    why = f"{where}: it works with colors of three numbers, and the Mitsuba variant is"
    ensure(current(where) in VARIANTS, f"{why} {mi.variant()}; call mitsuba.set_variant({_NAMES}).", RuntimeError)


def check_unpolarized(where: str) -> None:
    """Raise ``RuntimeError`` if the variant tracks how light is polarized."""
    ensure("polarized" not in current(where), f"{where}: {polarized(mi.variant())}", RuntimeError)


def polarized(variant: str | None) -> str:
    """The text of the error for a polarized variant, in which our integrators do not run."""
    why = f"it does not follow how light is polarized, and the Mitsuba variant is {variant}"
    return f"{why}; use one without, or Mitsuba's own integrators."
