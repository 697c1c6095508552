"""Forward derivatives of functions in the exported language: value and Jacobian, in one pass.

Every variable that depends on the coordinates gets an array of its derivatives with respect to all of them. Integers
and weights have none. At kinks, derivatives are those of Dr.Jit: that of ``max(x, 0)`` at 0 is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .language import (
    F32, Assign, At, Binary, Block, Comment, Const, Declare, Do, Elementary, Expr, For, LinearMap, Map, Routine, Scope,
    Select, Var, Vec, call, select, single, u32,
)  # fmt: skip


def with_jacobian(function: Routine, name: str) -> Routine:
    """A function that also gives ``jacobian``, row by row: entry ``i n + j`` is the derivative of output ``i`` with
    respect to coordinate ``j``. The first input of ``function`` holds the ``n`` coordinates, its result the outputs."""
    x, (y,) = function.inputs[0], function.results
    assert x.size is not None and y.size is not None
    jacobian = Var("jacobian", F32, y.size * x.size)
    forward = _Forward(x, x.size, {y.name: jacobian})
    forward.find(function.body)
    b = forward.block
    if y.name not in forward.active:
        with b.loop("i", jacobian.size) as i:
            b.set(At(jacobian, i), 0)
    if any(s.x.array == x for s in _linear_maps(function.body)):
        identity = Var(f"d_{x.name}", F32, x.size**2)
        b.statements.append(Declare(identity))
        with b.loop("i", x.size) as i, b.loop("j", x.size) as j:
            b.set(At(identity, i * x.size + j), select(i.equals(j), single(1), single(0)))
    forward.transform(function.body)
    return Routine(name, function.inputs, (y, jacobian), b.statements)


def _linear_maps(body: list) -> Iterator[LinearMap]:
    for s in body:
        if isinstance(s, (For, Scope)):
            yield from _linear_maps(s.body)
        elif isinstance(s, LinearMap):
            yield s


class _Forward:
    def __init__(self, x: Var, n: int, arrays: dict[str, Var]):
        self.x, self.n, self.arrays = x, n, arrays
        self.active = {x.name}  #: variables that depend on the coordinates
        self.block = Block()

    # ---- Dependence on the coordinates ----------------------------------------

    def find(self, body: list) -> None:
        """Find the variables that depend on the coordinates. Loops need several passes, until one finds no more."""
        known = -1
        while known != len(self.active):
            known = len(self.active)
            self._look(body)

    def _look(self, body: list) -> None:
        for s in body:
            if isinstance(s, (For, Scope)):
                self._look(s.body)
            elif isinstance(s, (Declare, Assign)) and s.value is not None:
                if self._d(s.value, u32(0), Block()) is not None:
                    self.active.add(_variable(s.var if isinstance(s, Declare) else s.target).name)
            elif isinstance(s, LinearMap) and s.x.array.name in self.active:
                self.active.add(s.y.array.name)

    # ---- Statements -----------------------------------------------------------

    def transform(self, body: list) -> None:
        b = self.block
        for s in body:
            if isinstance(s, (For, Scope)):
                outside, b.statements = b.statements, []
                self.transform(s.body)
                outside.append(replace(s, body=b.statements))
                b.statements = outside
            elif isinstance(s, Map) and s.x.array.name in self.active:
                self.transform(s.loops())
            elif isinstance(s, (Comment, Do, Map)):
                b.statements.append(s)
            elif isinstance(s, LinearMap):
                if s.x.array.name in self.active:
                    y, x = self._moved(s.y), self._moved(s.x)
                    b.statements.append(LinearMap(y, x, s.weights, None, self.n))
                b.statements.append(s)
            elif isinstance(s, Declare):
                if s.var.name in self.active:
                    b.statements.append(Declare(self._beside(s.var)))
                    if s.value is not None:
                        self._move(s.var, s.value)
                b.statements.append(s)
            else:
                if _variable(s.target).name in self.active:
                    self._move(s.target, s.value)
                b.statements.append(s)

    def _move(self, target: Var | At, value: Expr) -> None:
        """Set the derivatives of ``target`` before it is assigned ``value``."""
        b, slopes = self.block, Block()
        slopes._names = b._names
        j: Expr = Var("n", "u32") if self.n > 1 else Const(0, "u32")
        derivative = self._d(value, j, slopes) or single(0)
        if derivative == self._entry(target, j):  # unchanged
            return
        b.statements += slopes.statements
        assign = Assign(self._entry(target, j), derivative)
        b.statements.append(For(j, u32(0), u32(self.n), [assign]) if isinstance(j, Var) else assign)

    def _beside(self, var: Var) -> Var:
        return self.arrays.get(var.name) or Var(f"d_{var.name}", F32, (var.size or 1) * self.n)

    def _moved(self, v: Vec) -> Vec:
        return Vec(self._beside(v.array), v.start * self.n, v.size * self.n)

    def _entry(self, target: Var | At, j: Expr) -> At:
        if isinstance(target, Var):
            return At(self._beside(target), j)
        return At(self._beside(target.array), target.index * self.n + j)

    # ---- Expressions ----------------------------------------------------------

    def _d(self, e: Expr, j: Expr, slopes: Block) -> Expr | None:
        """The derivative with respect to coordinate ``j``, or ``None`` for zero. Statements that are the same for all
        coordinates are added to ``slopes``."""
        if isinstance(e, At) and e.array == self.x:  # of the coordinates themselves
            return select(e.index.equals(j), single(1), single(0)) if self.n > 1 else single(1)
        if isinstance(e, (At, Var)):
            return self._entry(e, j) if _variable(e).name in self.active else None
        if isinstance(e, Select):
            return _choice(e.condition, self._d(e.a, j, slopes), self._d(e.b, j, slopes))
        if isinstance(e, Binary) and e.type == F32:
            return self._arithmetic(e, j, slopes)
        if isinstance(e, Elementary) and e.type == F32:
            return self._function(e, j, slopes)
        return None

    def _arithmetic(self, e: Binary, j: Expr, slopes: Block) -> Expr | None:
        a, b = self._d(e.a, j, slopes), self._d(e.b, j, slopes)
        if e.op == "+":
            return _sum(a, b)
        if e.op == "-":
            return None if a is not None and a == b else _difference(a, b)
        if e.op == "*":
            return _sum(_product(a, e.b), _product(b, e.a))
        quotient = None if b is None else _product(b, e.a / (e.b * e.b))
        return _difference(None if a is None else a / e.b, quotient)

    def _function(self, e: Elementary, j: Expr, slopes: Block) -> Expr | None:
        u = e.args[0]
        if e.function == "fma":
            return self._d(e.args[0] * e.args[1] + e.args[2], j, slopes)
        if e.function in ("min", "max"):
            v = e.args[1]
            # For equal arguments, minima have the derivative of the first and maxima that of the second. So max(x, 0)
            # and min(x, 0) at x = 0 have the derivatives that leaky ReLU has in the library.
            first = u <= v if e.function == "min" else u > v
            return _choice(first, self._d(u, j, slopes), self._d(v, j, slopes))
        inner = self._d(u, j, slopes)
        if inner is None or e.function in ("floor", "round"):
            return None
        return _product(inner, slopes.let("slope", _SLOPES[e.function](u)))


_SLOPES: dict[str, Any] = {
    "sin": lambda u: call("cos", u),
    "cos": lambda u: single(-1) * call("sin", u),
    "exp": lambda u: call("exp", u),
    "log": lambda u: single(1) / u,
    "sqrt": lambda u: single(0.5) / call("sqrt", u),
    "tanh": lambda u: single(1) - call("tanh", u) * call("tanh", u),
    "abs": lambda u: select(u > 0, single(1), select(u < 0, single(-1), single(0))),
}


def _variable(e: Var | At) -> Var:
    """The variable that ``e`` is, or is an entry of."""
    return e.array if isinstance(e, At) else e


def _choice(condition: Expr, a: Expr | None, b: Expr | None) -> Expr | None:
    return None if a is None and b is None else select(condition, a or single(0), b or single(0))


def _sum(a: Expr | None, b: Expr | None) -> Expr | None:
    return b if a is None else a if b is None else a + b


def _difference(a: Expr | None, b: Expr | None) -> Expr | None:
    return a if b is None else single(-1) * b if a is None else a - b


def _product(a: Expr | None, factor: Expr) -> Expr | None:
    return None if a is None else factor if isinstance(a, Const) and a.value == 1 else a * factor
