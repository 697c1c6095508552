"""Checks of arguments. Each returns the value, or raises an error that says what is wrong and what is accepted.

Every message has one form: ``where: name is value; what is needed is needed.``

================  ================================================
:mod:`.messages`  values in messages, at most a line long
:mod:`.memory`    free memory
:mod:`.sizes`     limits of networks and arrays
:mod:`.warn`      warnings at the user's line
================  ================================================
"""

from __future__ import annotations

import contextlib
import math
import operator
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from .messages import shown, shown_bytes, shown_path, shown_typed  # noqa: F401


class NetworkError(ValueError, TypeError, RuntimeError):
    """A network cannot be called.

    It has no weights, or an unknown width, or its weights are packed and must not be, or the other way round.
    ``drjit.nn`` raises ``RuntimeError`` in these cases; code that catches it catches this error, too.
    """


def ensure(ok: Any, message: str, error: type[Exception] = ValueError) -> None:
    """Raise ``error(message)`` unless ``ok``. The message is built in any case, so don't use this in hot code."""
    if not ok:
        raise error(message)


def check(ok: Any, where: str, name: str, value: Any, needed: str, error: type[Exception] = ValueError) -> None:
    """Raise ``where: name is value; needed is needed.`` unless ``ok``."""
    if not ok:
        raise error(f"{where}: {name} is {shown(value)}; {needed} is needed.")


def check_type(where: str, name: str, value: Any, types: Any, needed: str) -> None:
    """Raise ``TypeError``, ``where: name is a Type; needed is needed.``, unless ``value`` is one of ``types``.

    ``types`` is as in ``isinstance``: ``Key | None`` is accepted, too.
    """
    if not isinstance(value, types):
        given = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        raise TypeError(f"{where}: {name} is {given}; {needed} is needed.")


def on_host(value: Any) -> Any:
    """A tensor of PyTorch's without its gradient, on the host; other values as they are."""
    for name in ("detach", "cpu"):
        value = getattr(value, name)() if callable(getattr(value, name, None)) else value
    return value


def check_module(where: str, name: str, value: Any) -> None:
    """Raise ``TypeError`` unless ``value`` is a ``drjit.nn.Module`` instance or ``None``."""
    check_type(where, name, value, (drnn.Module, type(None)), "a Module instance")


def entries(where: str, name: str, value: Any) -> list:
    """The iterable ``value`` as a list; raises ``TypeError`` if it cannot be iterated."""
    try:
        return list(value)
    except Exception as error:  # any iterable, which may raise anything
        raise TypeError(f"{where}: {name} is a {type(value).__name__} that cannot be read: {shown(error)}.") from None


def whole(value: Any) -> int | None:
    """``value`` as an int if it is an integer, also of NumPy; ``None`` for bools, arrays and everything else."""
    if isinstance(value, (bool, np.bool_, np.ndarray, dr.ArrayBase)):
        return None
    with contextlib.suppress(Exception):  # any __index__, which may raise anything
        return operator.index(value)
    return None


def is_int(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Is ``value`` an integer as of :func:`whole`, from ``least`` to ``most``?"""
    number = whole(value)
    return number is not None and least <= number <= most


def plain(value: Any) -> Any:
    """A number of NumPy as one of Python; anything else as it is."""
    return value.item() if isinstance(value, np.number) else value


def is_number(value: Any, least: float = -math.inf) -> bool:
    """Is ``value`` a finite int or float of at least ``least``, also of NumPy?"""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value) and value >= least
    except OverflowError:  # an int beyond the range of floats
        return False


def is_flat(value: Any) -> bool:
    """Is ``value``, an object or a type, a 1D array of Dr.Jit: neither a nested array nor a tensor?"""
    tp = value if isinstance(value, type) else type(value)
    return issubclass(tp, dr.ArrayBase) and dr.depth_v(tp) == 1 and not dr.is_tensor_v(tp)


def check_int(where: str, name: str, value: Any, least: int, most: int | None = None, needed: str = "") -> int:
    """``value`` as a plain int; raises ``ValueError`` unless it is one of at least ``least``, and at most ``most``."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    number = whole(value)
    check(is_int(number, least, math.inf if most is None else most), where, name, value, needed or f"an int {bounds}")
    return number  # type: ignore[return-value]


def check_positive(where: str, name: str, value: Any) -> int:
    """``value``; raises ``ValueError`` unless it is a positive int."""
    return check_int(where, name, value, 1, needed="a positive int")


def check_in_features(where: str, value: Any, name: str = "in_features") -> int:
    """``value`` as a plain int; raises ``ValueError`` unless it is a positive int or -1."""
    return check_int(where, name, value, 1 if whole(value) != -1 else -1, needed="a positive int, or -1 to infer it,")


def check_unsigned(where: str, name: str, value: Any, bits: int = 64) -> int:
    """``value`` as an int; raises ``ValueError`` unless it is an integer, also of NumPy, in [0, 2^bits)."""
    return check_int(where, name, value, 0, (1 << bits) - 1, f"an int in [0, 2^{bits})")


def check_number(where: str, name: str, value: Any, least: float = -math.inf) -> float:
    """``value`` as a float; raises ``ValueError`` unless it is a finite number of at least ``least``."""
    bound = "finite number" if least == -math.inf else f"number of at least {least:g}"
    check(is_number(value, least), where, name, value, f"a {bound}")
    return float(value)


def check_above(where: str, name: str, value: Any) -> float:
    """``value`` as a float; raises ``ValueError`` unless it is a positive finite number."""
    number = check_number(where, name, value)
    check(number > 0, where, name, value, "a positive number")
    return number


def check_squarable(where: str, name: str, value: Any) -> float:
    """:func:`check_above`, of a number whose square is a normal number in single precision, as is its inverse."""
    number = check_above(where, name, value)
    check(1e-18 < number < 1e18, where, name, value, "a number from 1e-18 to 1e18")
    return number


def check_flag(where: str, name: str, value: Any) -> bool:
    """``value``; raises ``ValueError`` unless it is ``True`` or ``False``."""
    check(isinstance(value, bool), where, name, value, "True or False")
    return value


def check_text(where: str, name: str, value: Any) -> str:
    """``value`` as a plain string; raises ``ValueError`` unless it is a string."""
    check(isinstance(value, str), where, name, value, "a string")
    return str.__str__(value)


def check_choice(where: str, name: str, value: Any, accepted: tuple[str, ...]) -> str:
    """``value``; raises ``ValueError`` unless it is one of ``accepted``."""
    if not isinstance(value, str) or value not in accepted:
        raise ValueError(f"{where}: {name} is {shown(value)}; accepted are {', '.join(map(repr, accepted))}.")
    return value


def check_samples(where: str, name: str, entries: int, samples: int) -> None:
    """Raise ``ValueError`` unless ``entries`` is 1 or the number of ``samples``."""
    if entries not in (1, samples):
        each = ", or one for each," if samples > 1 else ""
        raise ValueError(f"{where}: {name} has {entries} entries for {samples} samples; one{each} is needed.")


def check_backend(what: str, value: Any, leaf: Any, other: str = "the input") -> None:
    """Raise ``TypeError``, ``what a Type, but other lives on ...``, unless ``value`` is on the backend of ``leaf``."""
    if dr.backend_v(value) != dr.backend_v(leaf):
        given = f"{type(value).__module__}.{type(value).__name__}"
        name = dr.backend_v(leaf).name
        hint = f"move it, as in coopnet.to(x, {name.lower()!r})"
        raise TypeError(f"{what} a {given}, but {other} lives on the {name} backend; {hint}.")


def check_same_backend(what: str, a: Any, other: str, b: Any) -> None:
    """Raise ``TypeError``, ``what on the A backend, other on B``, unless ``a`` and ``b`` are on one backend."""
    first, second = dr.backend_v(a), dr.backend_v(b)
    if first != second:
        hint = f"move one of them, as in coopnet.to(x, {second.name.lower()!r})"
        raise TypeError(f"{what} on the {first.name} backend{other} on {second.name}; {hint}.")


def check_lanes(where: str, name: str, value: Any, lanes: int, unit: str = "samples") -> None:
    """Raise ``ValueError`` unless the Dr.Jit array ``value`` has ``lanes`` entries, or either number is 1.

    ``unit`` is the word for lanes in the message.
    """
    given = dr.width(value)
    valid = given and len({given, lanes} - {1}) < 2
    ensure(valid, f"{where}: {name} has {given} entries for {lanes} {unit}; both must agree, or be 1.")


def check_mask(where: str, name: str, value: Any, leaf: Any, other: str) -> Any:
    """``value``, a bool or a Dr.Jit ``Bool``, as a ``Bool`` of the backend of ``leaf``; raises ``TypeError``.

    ``other`` is the name of the argument whose type is ``leaf``.
    """
    if isinstance(value, (bool, np.bool_)):
        return dr.mask_t(leaf)(bool(value))
    flat = is_flat(value) and dr.is_mask_v(value) and dr.is_jit_v(value)
    check_type(where, name, value, dr.ArrayBase if flat else (), "a bool or a Dr.Jit Bool")
    check_backend(f"{where}: {name} is", value, leaf, other)
    return dr.mask_t(leaf)(value)
