"""NumPy, for many samples at a time: a variable is a row with a number for each sample, an array has many rows."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..language import (
    F32, I32, U32, Assign, Binary, Cast, Const, Declare, Do, Elementary, Expr, For, LinearMap, Map, Pick, Routine,
    Select, Var, Vec,
)  # fmt: skip
from ..weights import Array
from .printer import INDENT, Printer

_LOAD = '''

def NAME_load(path):
    """The weights in a file; ``ValueError`` if it is another or damaged."""
    import hashlib

    with open(path, "rb") as file:
        data = file.read()
    header = bytes.fromhex('HEADER')
    if data[:64] != header or hashlib.sha256(data[64:]).digest() != header[16:48]:
        raise ValueError(f"{path}: not the weights that belong to this program, or damaged")
    return np.frombuffer(data, "<u4")'''


class NumPy(Printer):
    suffix = ".py"
    comment = "#"
    gap = 2
    unsigned = ""
    types: ClassVar[dict[str, str]] = {F32: "np.float32", U32: "np.uint32", I32: "np.int32"}
    lists = ("NAME = np.array([", "], KIND)")
    calls: ClassVar[dict[str, str]] = {"round": "np.rint", "min": "np.fmin", "max": "np.fmax"}

    parts: ClassVar[dict[str, str]] = {
        "rows": '''
def NAME_rows(called, array, rows, dtype, samples=None):
    """``array``, if it has so many rows, of as many samples as others."""
    array = np.asarray(array, dtype)
    if array.ndim != 2 or len(array) != rows or samples not in (None, array.shape[1]):
        needed = "samples" if samples is None else samples
        raise ValueError(f"NAME: {called} has the shape {array.shape}; ({rows}, {needed}) is needed")
    return array''',
        "table": '''
def NAME_table(weights, dtype, offset, rows, stride, columns):
    """A matrix, or a row of numbers, of the weights in single precision."""
    flat = weights.view(np.uint8)[offset : offset + np.dtype(dtype).itemsize * rows * stride].view(dtype)
    return flat.reshape(rows, stride)[:, :columns].astype(np.float32)''',
        "mulhi": '''
def NAME_mulhi(a, b):
    """The upper half of a product of 64 bits."""
    return (a.astype(np.uint64) * np.uint64(b) >> np.uint64(32)).astype(np.uint32)''',
        "fma": '''
def NAME_fma(a, b, c):
    """Rounded once."""
    return (np.float64(a) * b + c).astype(np.float32)''',
    }

    def calling(self) -> list[str]:
        public = self.program.public
        lines = [f"Call: {self._results(f)} = {f.name}({', '.join(self._arguments(f))})" for f in public]
        lines += [f"{v.name}: array ({v.size}, samples) of single precision" for v in public[0].inputs if v.name == "x"]
        lines += [f"{v.name}: array ({v.size}, samples)" for v in public[-1].results]
        if self.program.outside:
            lines.append(f"weights: {self.name}_load(file of weights)")
        if self.program.keyed:
            lines.append("key: array (4, samples) of uint32: low and high half of the seed, index, step")
        return lines

    def _arguments(self, f: Routine) -> list[str]:
        if f.changed:
            return [*(v.name for v in f.results), *(v.name for v in f.inputs)]
        return [*(["weights"] if self.program.outside else []), *(v.name for v in f.inputs)]

    def _results(self, f: Routine) -> str:
        return ", ".join(v.name for v in f.results)

    def opening(self) -> list[str]:
        lines = ["", "import numpy as np", *super().opening()]
        if self.program.outside:
            lines += self.filled(_LOAD, HEADER=self.program.weights.header.hex()).split("\n")
        return lines

    # ---- Statements -----------------------------------------------------------

    def function(self, f: Routine) -> list[str]:
        self.tables: dict[int, tuple[str, str]] = {}
        self.loops: set[str] = set()
        body = self.block(f.body, 1 if f.changed else 2)
        lines = [f"def {f.name}({', '.join(self._arguments(f))}):"]
        tables = [f"    {name} = {text}" for name, text in self.tables.values()]
        if f.changed:
            return [*lines, *tables, *body]
        first, given = f.inputs[0], self.helper("rows")
        lines.append(f"    {first.name} = {given}({first.name!r}, {first.name}, {first.size}, np.float32)")
        lines.append(f"    samples = {first.name}.shape[1]")
        lines += [f"    {v.name} = {given}({v.name!r}, {v.name}, {v.size}, np.uint32, samples)" for v in f.inputs[1:]]
        lines += [f"    {self.declared(v)}" for v in f.results]
        # overflow and NaN are expected, without warnings
        return [*lines, *tables, '    with np.errstate(all="ignore"):', *body, f"    return {self._results(f)}"]

    def declared(self, v: Var) -> str:
        return f"{v.name} = np.zeros(({v.size}, samples), {self.types[v.type]})"

    def statement(self, s: object, depth: int) -> list[str]:
        start = INDENT * depth
        if isinstance(s, LinearMap):
            return [start + self._product(s)]
        if isinstance(s, Map):
            whole = Var(self._part(s.x), F32, s.x.size)
            return [f"{start}{whole.name}[:] = {self.expr(s.function(whole))}"]
        return super().statement(s, depth)

    def line(self, s: Declare | Assign | Do) -> str:
        if isinstance(s, Declare):
            if s.value is None:
                return self.declared(s.var)
            value = self.expr(s.value)
            # a scalar would change its type in arithmetic with Python's numbers
            constant = isinstance(s.value, Const)
            return f"{s.var.name} = " + (f"np.full(samples, {value}, {self.types[s.var.type]})" if constant else value)
        if isinstance(s, Do):
            return f"{s.function.name}({self.args(s.args)})"
        return f"{self.expr(s.target)} = {self.expr(s.value)}"

    def loop(self, s: For, depth: int) -> list[str]:
        self.loops.add(s.var.name)
        head = f"for {s.var.name} in range({self.expr(s.start)}, {self.expr(s.stop)}):"
        if isinstance(s.start, Const) and s.start.value == 0:
            head = f"for {s.var.name} in range({self.expr(s.stop)}):"
        return [INDENT * depth + head, *self.block(s.body, depth + 1)]

    def braced(self, head: str, body: list, depth: int) -> list[str]:
        return self.block(body, depth)  # a scope

    def _part(self, v: Vec) -> str:
        return v.array.name if v.whole else f"{v.array.name}[{v.start}:{v.start + v.size}]"

    def _product(self, s: LinearMap) -> str:
        x, n = self._part(s.x), s.columns
        if n > 1:
            x = f"{x}.reshape({s.x.size // n}, -1)"
        product = f"{self._table(s.weights)} @ {x}"
        if n > 1:
            product = f"({product}).reshape({s.y.size}, -1)"
        if s.bias is not None:
            product += f" + {self._table(s.bias)}.T"
        return f"{self._part(s.y)}[:] = {product}"

    def _table(self, table: Array) -> str:
        """The variable that holds an array of the weights."""
        if id(table) not in self.tables:
            a, kind = table.array, table.array.dtype.newbyteorder("<").str
            count, columns = a.shape if a.ndim == 2 else (1, a.size)
            offset = self.start * 4 + table.offset
            stride = table.stride if a.ndim == 2 else a.size
            weights = f"{self.name}_weights" if self.program.inside else "weights"
            text = f"{self.helper('table')}({weights}, {kind!r}, {offset}, {count}, {stride}, {columns})"
            name = "".join(c if c.isalnum() else "_" for c in table.name.removeprefix("network."))
            self.tables[id(table)] = f"w_{name}", text
        return self.tables[id(table)][0]

    # ---- Expressions ----------------------------------------------------------

    def literal(self, e: Const) -> str:
        return str(np.float32(e.value)) if e.type == F32 else str(e.value)

    def load(self, table: Array, index: Expr) -> str:
        return f"{self._table(table)}[0, {self.expr(index)}]"

    def cast(self, e: Cast) -> str:
        if self._uniform(e.a):
            return f"{self.types[e.type]}({self.expr(e.a)})"
        return f"({self.expr(e.a)}).astype({self.types[e.type]})"

    def call(self, e: Elementary) -> str:
        if e.function in ("fma", "mulhi"):
            return f"{self.helper(e.function)}({self.args(e.args)})"
        if e.function in ("min", "max") and self._uniform(e):
            return f"{e.function}({self.args(e.args)})"
        return f"{self.calls.get(e.function, 'np.' + e.function)}({self.args(e.args)})"

    def select(self, e: Select) -> str:
        a = self.expr(e.a)
        if isinstance(e.a, Const) and isinstance(e.b, Const):  # NumPy would choose wider types
            a = f"{self.types[e.type]}({a})"
        return f"np.where({self.expr(e.condition)}, {a}, {self.expr(e.b)})"

    def _uniform(self, e: Expr) -> bool:
        """Is this integer the same for all samples, because only loop variables and constants are in it?"""
        if isinstance(e, Binary):
            return self._uniform(e.a) and self._uniform(e.b)
        if isinstance(e, Elementary):
            return all(map(self._uniform, e.args))
        return isinstance(e, (Const, Pick)) or (isinstance(e, Var) and e.name in self.loops)
