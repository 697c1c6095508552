"""The intermediate language between fields and sources: typed expressions, statements, and functions.

It has three types of numbers (``f32``, ``u32``, ``i32``), conditions (``bool``), local arrays of fixed size, loops with
bounds that are the same for all samples, and reads of the exported weights. Every layer is written once, in this
language. Printers (:mod:`.targets`) write it as C, shaders or NumPy, and :mod:`.derivative` differentiates it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from .weights import Array

F32, U32, I32, BOOL = "f32", "u32", "i32", "bool"

# ---- Expressions -------------------------------------------------------------------------------------------


def _operator(op: str) -> Any:
    return lambda a, b: _binary(op, a, b)


def _typed_as(part: str) -> Any:
    """The type of a part, for an expression that takes its type from it."""
    return property(attrgetter(f"{part}.type"))


class Expr:
    """An expression. Operators make new ones, and convert Python's numbers to the type of the other operand."""

    type: Any  #: ``f32``, ``u32``, ``i32`` or ``bool``

    __add__, __sub__, __mul__, __truediv__ = map(_operator, "+-*/")
    __mod__, __and__, __xor__ = map(_operator, "%&^")
    __lshift__, __rshift__ = map(_operator, ("<<", ">>"))
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("<", "<=", ">", ">="))

    def equals(self, other: Any) -> Expr:
        """A condition; ``==`` compares expressions as objects."""
        return _binary("==", self, other)


@dataclass(frozen=True)
class Const(Expr):
    value: float | int
    type: str


@dataclass(frozen=True)
class Var(Expr):
    """A variable, or an array of ``size`` numbers if that is not ``None``."""

    name: str
    type: str
    size: int | None = None


@dataclass(frozen=True)
class At(Expr):
    """An entry of a local array; the index is the same for all samples."""

    array: Var
    index: Expr

    type = _typed_as("array")


@dataclass(frozen=True)
class Values:
    """A named list of constants in the source, indexed in loops."""

    name: str
    type: str
    numbers: tuple[float | int, ...]

    def at(self, index: Any) -> Expr:
        """The constant at an index, which is the same for all samples."""
        return Const(self.numbers[int(index.value)], self.type) if isinstance(index, Const) else Pick(self, index)


@dataclass(frozen=True)
class Pick(Expr):
    """An entry of :class:`Values`."""

    values: Values
    index: Expr

    type = _typed_as("values")


@dataclass(frozen=True)
class Load(Expr):
    """Entry ``index`` of an array of weights, as it is stored."""

    table: Array
    index: Expr
    type: str = F32


@dataclass(frozen=True)
class Binary(Expr):
    op: str
    a: Expr
    b: Expr

    type = property(lambda self: BOOL if self.op in ("<", "<=", ">", ">=", "==") else self.a.type)


@dataclass(frozen=True)
class Elementary(Expr):
    """An elementary function: ``sin cos exp log tanh sqrt abs floor round min max fma mulhi``."""

    function: str
    args: tuple[Expr, ...]

    type = property(lambda self: self.args[0].type)


@dataclass(frozen=True)
class Select(Expr):
    """``a`` where ``condition``, else ``b``."""

    condition: Expr
    a: Expr
    b: Expr

    type = _typed_as("a")


@dataclass(frozen=True)
class Still(Expr):
    """``a``, treated as a constant by :mod:`.derivative`."""

    a: Expr

    type = _typed_as("a")


@dataclass(frozen=True)
class Cast(Expr):
    type: str
    a: Expr


def u32(value: Any) -> Expr:
    """``value``, an int or expression, as an unsigned number."""
    return value if isinstance(value, Expr) else Const(value, U32)


def single(value: float) -> Const:
    """``value`` rounded to single precision. Raises ``ValueError`` if it overflows."""
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if not np.isfinite(rounded):
        raise ValueError(f"the constant {value:g} is too large for single precision")
    return Const(float(rounded), F32)


def call(function: str, *args: Any) -> Expr:
    """An elementary function of numbers and expressions."""
    known = next(a for a in args if isinstance(a, Expr))
    return Elementary(function, tuple(_like(a, known) for a in args))


def select(condition: Expr, a: Any, b: Any) -> Expr:
    known = next((v for v in (a, b) if isinstance(v, Expr)), single(0))
    return Select(condition, _like(a, known), _like(b, known))


def clip(x: Expr, least: float, most: float) -> Expr:
    return call("min", call("max", x, least), most)


def _like(value: Any, known: Expr) -> Expr:
    return value if isinstance(value, Expr) else single(value) if known.type == F32 else Const(value, known.type)


def _binary(op: str, a: Any, b: Any) -> Expr:
    known = a if isinstance(a, Expr) else b
    a, b = _like(a, known), _like(b, known)
    if a.type == U32:  # indices, often with zeros and ones
        if isinstance(a, Const) and isinstance(b, Const) and op in "+*":
            value = a.value + b.value if op == "+" else a.value * b.value
            return Const(int(value), U32)
        if op in ("+", "<<", ">>", "^") and isinstance(b, Const) and b.value == 0:
            return a
        if op in "+^" and isinstance(a, Const) and a.value == 0:
            return b
        if op == "*" and isinstance(b, Const) and b.value in (0, 1):
            return a if b.value else b
    return Binary(op, a, b)


# ---- Statements --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vec:
    """``size`` entries of an array, from ``start`` on. If ``owned``, they may be overwritten."""

    array: Var
    start: int
    size: int
    owned: bool = False

    def at(self, index: Any) -> At:
        return At(self.array, u32(index) + self.start)

    def part(self, start: int, size: int) -> Vec:
        return Vec(self.array, self.start + start, size)

    @property
    def whole(self) -> bool:
        """Does it contain the whole array?"""
        return self.size == self.array.size


@dataclass(frozen=True)
class Comment:
    text: str


@dataclass(frozen=True)
class Declare:
    """Declares a variable with a value, or an array without one."""

    var: Var
    value: Expr | None = None


@dataclass(frozen=True)
class Assign:
    target: Var | At
    value: Expr


@dataclass(frozen=True)
class For:
    var: Var
    start: Expr
    stop: Expr
    body: list


@dataclass(frozen=True)
class Scope:
    """Statements in braces: their variables end with them."""

    body: list


@dataclass(frozen=True)
class Do:
    """A call of ``function``, which writes to the arrays among its arguments."""

    function: Routine
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class LinearMap:
    """``y = weights x + bias``. With ``columns``, of that many vectors, whose components are interleaved."""

    y: Vec
    x: Vec
    weights: Array
    bias: Array | None
    columns: int = 1

    def loops(self, by_row: bool = False) -> list:
        """The product, written as loops. With ``by_row``, rows of the weights are read as a whole."""
        b = Block()
        with b.loop("i", self.y.size // self.columns) as i:
            start, row = i * self.weights.stride, None
            if by_row:
                row = b.array("row", self.weights.stride)
                b.statements.append(ReadRow(row, self.weights, i * (self.weights.stride // self.weights.per_word)))
            with b.loop("j", self.columns) as j:
                total = b.let("total", single(0) if self.bias is None else Load(self.bias, i))
                with b.loop("k", self.x.size // self.columns) as k:
                    weight = Load(self.weights, start + k) if row is None else At(row, k)
                    b.set(total, total + weight * self.x.at(k * self.columns + j))
                b.set(self.y.at(i * self.columns + j), total)
        return b.statements


@dataclass(frozen=True)
class ReadRow:
    """Reads ``row``, an array, from a row of the table, which begins at the offset ``words``."""

    row: Var
    table: Array
    words: Expr


@dataclass(frozen=True)
class Map:
    """``x = function(x)`` for every component."""

    x: Vec
    function: Callable[[Expr], Expr]

    def loops(self) -> list:
        """The loop over all components."""
        b = Block()
        with b.loop("i", self.x.size) as i:
            b.set(self.x.at(i), self.function(self.x.at(i)))
        return b.statements


@dataclass(frozen=True)
class Routine:
    """A function. ``inputs`` are read only. ``results`` are arrays; if ``changed``, their contents are read, too."""

    name: str
    inputs: tuple[Var, ...]
    results: tuple[Var, ...]
    body: list = field(default_factory=list)
    changed: bool = False


class Block:
    """Builds a list of statements. Gives every variable a name of its own, with a number if the name is taken."""

    def __init__(self) -> None:
        self.statements: list = []
        self._names: dict[str, int] = {}

    def comment(self, text: str) -> None:
        self.statements.append(Comment(text))

    def name(self, wanted: str) -> str:
        """An identifier like ``wanted`` that no other variable has."""
        plain = re.sub(r"[^a-z0-9]+", "_", wanted.lower()).strip("_") or "v"
        plain = plain if plain[0].isalpha() else f"v_{plain}"
        n = self._names[plain] = self._names.get(plain, 0) + 1
        return plain if n == 1 else self.name(f"{plain}_v{n}")

    def let(self, name: str, value: Expr) -> Var:
        """A new variable with a value, which :meth:`set` may change."""
        var = Var(self.name(name), value.type)
        self.statements.append(Declare(var, value))
        return var

    def array(self, name: str, size: int, type: str = F32) -> Var:
        """A new array, uninitialized."""
        var = Var(self.name(name), type, size)
        self.statements.append(Declare(var))
        return var

    def vector(self, name: str, size: int) -> Vec:
        return Vec(self.array(name, size), 0, size, True)

    def set(self, target: Var | At, value: Any) -> None:
        self.statements.append(Assign(target, _like(value, target)))

    def copy(self, x: Vec, y: Vec) -> None:
        with self.loop("i", x.size) as i:
            self.set(y.at(i), x.at(i))

    @contextmanager
    def loop(self, name: str, stop: Any, start: Any = 0) -> Iterator[Expr]:
        """A loop over ``start, ..., stop - 1``, ints or expressions. A single iteration is written without a loop."""
        outside, names, self.statements = self.statements, dict(self._names), []
        start, stop = u32(start), u32(stop)
        if start == stop:
            yield Const(0, U32)
        elif (start, stop) == (u32(0), u32(1)):
            yield Const(0, U32)
            declares = any(isinstance(s, Declare) for s in self.statements)
            outside += [Scope(self.statements)] if declares else self.statements
        else:
            var = Var(self.name(name), U32)
            yield var
            outside.append(For(var, start, stop, self.statements))
        self.statements, self._names = outside, names
