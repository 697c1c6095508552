"""Fields for the variant that is set."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import drjit as dr
import mitsuba as mi

from ..checks import check_backend, check_type, ensure
from ..field import NeuralField
from ..io import load as load_field
from . import variants


def backend(where: str) -> str:
    """The backend that the variant runs on; raises as :func:`variants.current`."""
    return variants.current(where).split("_")[0]


def build(field: NeuralField, precision: str = "auto", seed: int = 0) -> NeuralField:
    """``field.build`` for the backend that Mitsuba's variant runs on.

    Raises:
        RuntimeError: no variant is set, or one that fields do not run in.
        TypeError, ValueError: as :meth:`NeuralField.build`.

    >>> field = cn.mitsuba.build(cn.NeuralField(cn.Sinusoidal(4), cn.MLP(16, 3)))
    """
    check_type("mitsuba.build", "field", field, NeuralField, "a NeuralField")
    return field.build(backend("mitsuba.build"), precision, seed)


def load(filename: str | os.PathLike[str], precision: str = "auto") -> NeuralField:
    """``coopnet.load`` for the backend that Mitsuba's variant runs on; raises as that and :func:`build`.

    >>> field = cn.mitsuba.load("field.safetensors")
    """
    return load_field(filename, backend("mitsuba.load"), precision)


def load_named(filename: str, read: Callable[[str], Any] = load) -> Any:
    """``read(filename)`` for plugins, whose errors Mitsuba passes on as text: the file's name is in all of them."""
    try:
        return read(filename)
    except OSError as error:
        raise type(error)(f"mitsuba.load: {filename}: {error.strerror or error}") from None


def check_field(field: Any, where: str, inputs: tuple[int, ...] = (), outputs: tuple[int, ...] = ()) -> int:
    """The number of outputs of ``field``.

    Raises ``TypeError`` or ``ValueError`` unless it is a built field of the variant's backend and has one of the given
    numbers of inputs and outputs (any, if none are given).
    """
    check_type(where, "field", field, NeuralField, "a NeuralField")
    ensure(field.precision is not None, f"{where}: the field is not built yet; call cn.mitsuba.build(field).")
    variants.current(where)
    for name, value in field.items():
        check_backend(f"{where}: {name} is", value, mi.Float, f"Mitsuba's variant {mi.variant()}")
    given = field.in_features
    fits = not inputs or given in inputs
    ensure(fits, f"{where}: field has {given} inputs; {_either(inputs)} needed.")
    found = len(field([dr.zeros(mi.Float)] * given))
    fits = not outputs or found in outputs
    ensure(fits, f"{where}: field has {found} outputs; {_either(outputs)} needed.")
    return found


def sizes(field: NeuralField) -> dict[str, int]:
    """The number of entries of each parameter."""
    return {name: dr.width(value) for name, value in field.items()}


def check_sizes(field: NeuralField, before: dict[str, int], where: str) -> None:
    """Raise ``ValueError`` unless parameters are as long as ``before``; kernels would read beyond shorter ones."""
    for name, given in sizes(field).items():
        ensure(given == before[name], f"{where}: {name} has {given} entries now; {before[name]} are needed.")


def _either(numbers: tuple[int, ...]) -> str:
    return " or ".join(map(str, numbers)) + (" is" if len(numbers) < 3 else " are")
