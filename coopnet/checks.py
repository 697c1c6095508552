"""What arguments may be, and the words for what they are not.

Every message has one form: ``where: name is value; what is needed is needed.`` Values are shown by :func:`shown`, which
neither takes long nor says much, whatever it is given.
"""

from __future__ import annotations

import contextlib
import math
import operator
import reprlib
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

#: Characters of a value in a message.
LINE = 60


class _Repr(reprlib.Repr):
    """``repr`` of a few entries a few levels deep. Arrays and networks are named, not printed."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, LINE, LINE

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, np.ndarray) and (x.size > 8 or x.dtype.kind not in "biufc"):
            return f"a NumPy array of {x.dtype} and shape {x.shape}"
        if isinstance(x, (dr.ArrayBase, drnn.Module, drnn.CoopVec)):  # values may not be known yet
            return f"a {type(x).__name__}"
        return super().repr1(x, level)

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() < 200 else f"an int of {x.bit_length()} bits"

    def repr_str(self, x: str, level: int) -> str:
        return str.__repr__(str.__getitem__(x, slice(LINE + 1)))

    def repr_bytes(self, x: bytes, level: int) -> str:
        return bytes.__repr__(bytes.__getitem__(x, slice(LINE + 1)))


_repr = _Repr()


def shown(value: Any) -> str:
    """``value`` in a message: its ``repr``, cut to a line.

    Arrays are not evaluated, containers not read to their end, and errors in the ``repr`` of others not passed on.
    """
    try:
        text = " ".join(_repr.repr(value).split("\n"))
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= LINE else text[: LINE - 3] + "..."


def shown_path(path: Any) -> str:
    """A path in a message: its end, if it is long."""
    text = " ".join(str(path).split("\n"))
    return text if len(text) <= 200 else "..." + text[-197:]


def check(ok: Any, where: str, name: str, value: Any, needed: str, error: type[Exception] = ValueError) -> None:
    """Raise ``where: name is value; needed is needed.`` unless ``ok``."""
    if not ok:
        raise error(f"{where}: {name} is {shown(value)}; {needed} is needed.")


def check_type(where: str, name: str, value: Any, types: Any, needed: str) -> None:
    """Raise ``TypeError``, ``where: name is a Type; needed is needed.``, unless ``value`` is one of ``types``."""
    if not isinstance(value, types):
        raise TypeError(f"{where}: {name} is a {type(value).__name__}; {needed} is needed.")


def entries(where: str, name: str, value: Any) -> list:
    """``value``, a list or something else that can be iterated, as a list; raises ``TypeError`` if it cannot."""
    try:
        return list(value)
    except Exception as error:  # it may be anybody's
        raise TypeError(f"{where}: {name} is a {type(value).__name__} that cannot be read: {shown(error)}.") from None


def whole(value: Any) -> int | None:
    """``value`` as an int if it is one, NumPy's included; ``None`` for bools and everything else."""
    if isinstance(value, (bool, np.bool_, dr.ArrayBase)):
        return None
    with contextlib.suppress(Exception):  # __index__ may be anybody's
        return operator.index(value)
    return None


def is_number(value: Any) -> bool:
    """Is ``value`` a finite int or float?"""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the range of floats
        return False


def check_positive(where: str, name: str, value: Any) -> int:
    """``value``; raises ``ValueError`` unless it is a positive int."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{where}: {name} is {shown(value)}; a positive int is needed.")
    return value


def check_number(where: str, name: str, value: Any, least: float = -math.inf) -> float:
    """``value`` as a float; raises ``ValueError`` unless it is a finite number of at least ``least``."""
    if not is_number(value) or value < least:
        bound = "finite number" if least == -math.inf else f"number of at least {least:g}"
        raise ValueError(f"{where}: {name} is {shown(value)}; a {bound} is needed.")
    return float(value)


def check_above(where: str, name: str, value: Any) -> float:
    """``value`` as a float; raises ``ValueError`` unless it is a positive finite number."""
    number = check_number(where, name, value)
    if number <= 0:
        raise ValueError(f"{where}: {name} is {shown(value)}; a positive number is needed.")
    return number


def check_flag(where: str, name: str, value: Any) -> bool:
    """``value``; raises ``ValueError`` unless it is ``True`` or ``False``."""
    if not isinstance(value, bool):
        raise ValueError(f"{where}: {name} is {shown(value)}; True or False is needed.")
    return value


def check_unsigned(where: str, name: str, value: Any, bits: int = 64) -> int:
    """``value`` as an int, NumPy's included; raises ``ValueError`` unless it is one in [0, 2^bits)."""
    number = whole(value)
    if number is None or not 0 <= number < 1 << bits:
        raise ValueError(f"{where}: {name} is {shown(value)}; an int in [0, 2^{bits}) is needed.")
    return number


def check_in_features(where: str, value: Any, name: str = "in_features") -> int:
    """``value``; raises ``ValueError`` unless it is a positive int or -1."""
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        raise ValueError(f"{where}: {name} is {shown(value)}; a positive int, or -1 to infer it, is needed.")
    return value


def check_choice(where: str, name: str, value: Any, accepted: tuple[str, ...]) -> str:
    """``value``; raises ``ValueError`` unless it is one of ``accepted``."""
    if not isinstance(value, str) or value not in accepted:
        raise ValueError(f"{where}: {name} is {shown(value)}; accepted are {', '.join(map(repr, accepted))}.")
    return value


def check_module(where: str, name: str, value: Any) -> None:
    """Raise ``TypeError`` unless ``value`` is a ``drjit.nn.Module`` instance or ``None``."""
    if value is not None and not isinstance(value, drnn.Module):
        raise TypeError(f"{where}: {name} is a {type(value).__name__}; a Module instance is needed.")
