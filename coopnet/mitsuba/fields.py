"""Fields for the variant that is set."""

from __future__ import annotations

import os
from typing import Any

import drjit as dr
import mitsuba as mi

from ..checks import check_backend, check_type, ensure
from ..field import NeuralField, check_built
from ..io import load as load_field
from ..jit.owned import own
from . import variants


def build(field: NeuralField, precision: str = "auto", seed: int = 0) -> NeuralField:
    """``field.build`` for the backend that Mitsuba's variant runs on.

    Raises:
        RuntimeError: no variant is set, or one in which fields do not run.
        TypeError, ValueError: as :meth:`NeuralField.build`.

    >>> field = cn.mitsuba.build(cn.NeuralField(cn.Sinusoidal(4), cn.MLP(16, 3)))
    """
    check_type("mitsuba.build", "field", field, NeuralField, "a NeuralField")
    return field.build(variants.backend("mitsuba.build"), precision, seed)


def load(filename: str | os.PathLike[str], precision: str = "auto") -> NeuralField:
    """``coopnet.load`` for the backend that Mitsuba's variant runs on; raises as that and :func:`build`.

    >>> field = cn.mitsuba.load("field.safetensors")
    """
    return load_field(filename, variants.backend("mitsuba.load"), precision)


def check_field(field: Any, where: str, inputs: tuple[int, ...] = (), outputs: tuple[int, ...] = ()) -> int:
    """The number of outputs of ``field``.

    Raises ``TypeError`` or ``ValueError`` unless it is a built field of the variant's backend and has one of the given
    numbers of inputs and outputs (any, if none are given).
    """
    check_built(where, field, cure="call cn.mitsuba.build(field)")
    variants.current(where)
    for name, value in field.items():
        check_backend(f"{where}: {name} is", value, mi.Float, f"Mitsuba's variant {mi.variant()}")
    _check_count(where, "inputs", field.in_features, inputs)
    count = len(field([dr.zeros(mi.Float)] * field.in_features))
    _check_count(where, "outputs", count, outputs)
    return count


def _check_count(where: str, what: str, count: int, accepted: tuple[int, ...]) -> None:
    needed = " or ".join(map(str, accepted)) + (" is" if len(accepted) < 3 else " are")
    ensure(not accepted or count in accepted, f"{where}: field has {count} {what}; {needed} needed.")


def show(callback: Any, field: NeuralField, prefix: str = "", flags: Any = mi.ParamFlags.Differentiable) -> None:
    """Show the parameters of ``field`` to ``mi.traverse``: the field's own arrays, which its users change in place."""
    for name, value in field.items():
        callback.put(prefix + name, value, flags)


def sizes(field: NeuralField) -> dict[str, int]:
    """The number of entries of each parameter."""
    return {name: dr.width(value) for name, value in field.items()}


def check_sizes(field: NeuralField, before: dict[str, int], where: str) -> None:
    """Raise ``ValueError`` unless parameters have the sizes ``before``; kernels would read beyond the end of shorter
    ones. Those that a user has made of NumPy's memory are copied, as frozen functions read Dr.Jit's memory only.
    """
    for name, given in sizes(field).items():
        ensure(given == before[name], f"{where}: {name} has {given} entries now; {before[name]} are needed.")
    for value in field.values():
        own(value)
