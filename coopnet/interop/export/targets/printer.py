"""What the printers of all languages have in common, and those of languages that look like C."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..language import (
    BOOL, F32, I32, U32, Assign, At, Binary, Cast, Comment, Const, Declare, Do, Elementary, Expr, For, LinearMap, Load,
    Map, Pick, Routine, Scope, Select, Still, Values, Var, u32,
)  # fmt: skip
from ..weights import Array

INDENT = "    "
#: How tightly operators bind. Others are put in parentheses whatever stands around them.
_TIGHT = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}


@dataclass(frozen=True)
class Listing:
    """What is printed: functions, called ones first.

    ``words`` are the weights if they stand in the source, and ``has_tables`` says whether there are any. Of the file,
    ``start`` is the word at which the first array begins, ``length`` are its bytes, and ``digest`` is its checksum.
    ``about`` is what the head of the source says, in lines.
    """

    name: str
    functions: list[Routine]
    words: np.ndarray | None
    start: int
    length: int
    digest: bytes
    has_tables: bool
    about: list[str]


class Printer:
    """Prints a :class:`Listing`. ``used`` collects the helper functions that expressions need."""

    suffix: ClassVar[str]
    inlines: ClassVar[bool] = True  #: can weights stand in the source?
    tiny: ClassVar[int] = 8192  #: bytes of weights up to which they do unless told otherwise
    precision: ClassVar[str | None] = None  #: the only precision of weights that there is, if it is one
    comment: ClassVar[str] = "//"
    indent: ClassVar[str] = INDENT

    def __init__(self, program: Listing):
        self.program, self.name = program, program.name
        self.used: set[str] = set()
        self.values: dict[str, Values] = {}

    def source(self) -> str:
        """The text of the file."""
        functions = [line for f in self.program.functions for line in ["", *self.function(f)]]
        values = [line for v in self.values.values() for line in self.listed(v)]
        lines = [*self.head(), *self.opening(), *values, *self.helpers(), *functions, *self.closing()]
        return "\n".join(lines) + "\n"

    def head(self) -> list[str]:
        """Comments on what the file is and how it is called."""
        return [f"{self.comment} {line}".rstrip() for line in [*self.program.about, *self.calling()]]

    def calling(self) -> list[str]:
        raise NotImplementedError

    def opening(self) -> list[str]:
        """What stands before everything else: how the weights are read."""
        return []

    def closing(self) -> list[str]:
        return []

    def helpers(self) -> list[str]:
        """The helper functions in :attr:`used`."""
        raise NotImplementedError

    # ---- Statements -----------------------------------------------------------

    def function(self, f: Routine) -> list[str]:
        raise NotImplementedError

    def block(self, body: Iterable[Any], depth: int = 1) -> list[str]:
        return [line for s in body for line in self.statement(s, depth)]

    def statement(self, s: Any, depth: int) -> list[str]:
        start = self.indent * depth
        if isinstance(s, Comment):
            return [f"{start}{self.comment} {plain(s.text)}"]
        if isinstance(s, (LinearMap, Map)):
            return self.block(s.loops(), depth)
        if isinstance(s, For):
            return self.loop(s, depth)
        if isinstance(s, Scope):
            return self.scope(s, depth)
        return [start + self.line(s)]

    def line(self, s: Declare | Assign | Do) -> str:
        """One of the statements that are a line."""
        raise NotImplementedError

    def loop(self, s: For, depth: int) -> list[str]:
        raise NotImplementedError

    def scope(self, s: Scope, depth: int) -> list[str]:
        return self.block(s.body, depth)

    def listed(self, values: Values) -> list[str]:
        """The declaration of constants."""
        raise NotImplementedError

    # ---- Expressions ----------------------------------------------------------

    def expr(self, e: Expr, outside: int = 0) -> str:
        """``e``, in parentheses if it binds less tightly than ``outside``."""
        if isinstance(e, Binary):
            bind = _TIGHT.get(e.op, 0)
            inner = bind if bind else 3
            text = f"{self.expr(e.a, inner)} {e.op} {self.expr(e.b, inner + (e.op in '-/%' and inner < 3))}"
            return f"({text})" if outside and (bind < outside or not bind) else text
        if isinstance(e, Const):
            text = self.literal(e)
            return f"({text})" if outside and text.startswith("-") else text
        if isinstance(e, Var):
            return e.name
        if isinstance(e, At):
            return f"{e.array.name}[{self.index(e.index)}]"
        if isinstance(e, Pick):
            self.values[e.values.name] = e.values
            return f"{e.values.name}[{self.index(e.index)}]"
        if isinstance(e, Load):
            return self.load(e.table, e.index)
        if isinstance(e, Still):
            return self.expr(e.a, outside)
        if isinstance(e, Cast):
            return self.cast(e)
        if isinstance(e, Elementary):
            return self.call(e)
        assert isinstance(e, Select)
        text = self.select(e)
        return f"({text})" if outside and "?" in text else text

    def index(self, e: Expr) -> str:
        return str(e.value) if isinstance(e, Const) else self.expr(e)

    def literal(self, e: Const) -> str:
        raise NotImplementedError

    def load(self, table: Array, index: Expr) -> str:
        raise NotImplementedError

    def cast(self, e: Cast) -> str:
        raise NotImplementedError

    def call(self, e: Elementary) -> str:
        raise NotImplementedError

    def select(self, e: Select) -> str:
        return f"{self.expr(e.condition, 3)} ? {self.expr(e.a, 3)} : {self.expr(e.b, 3)}"

    def helper(self, name: str) -> str:
        """The name of a helper function, which will be among :meth:`helpers`."""
        self.used.add(name)
        return f"{self.name}_{name}"

    def args(self, args: Iterable[Expr]) -> str:
        return ", ".join(self.expr(a) for a in args)


class CLike(Printer):
    """Braces, types before names, and numbers with suffixes."""

    types: ClassVar[dict[str, str]] = {F32: "float", U32: "uint", I32: "int", BOOL: "bool"}
    weights = ""  #: the argument of helper functions that read weights, with a comma behind
    calls: ClassVar[dict[str, str]] = {}

    def line(self, s: Declare | Assign | Do) -> str:
        if isinstance(s, Declare):
            value = "" if s.value is None else f" = {self.expr(s.value)}"
            return f"{self.declared(s.var)}{value};"
        if isinstance(s, Do):
            return f"{s.function.name}({self.args(s.args)});"
        target, new = self.expr(s.target), s.value
        if isinstance(new, Binary) and new.a == s.target and new.op in ("+", "-", "*"):
            return f"{target} {new.op}= {self.expr(new.b)};"
        return f"{target} = {self.expr(new)};"

    def declared(self, var: Var) -> str:
        return f"{self.types[var.type]} {var.name}" + ("" if var.size is None else f"[{var.size}]")

    def loop(self, s: For, depth: int) -> list[str]:
        i, start = s.var.name, self.indent * depth
        head = f"for ({self.types[U32]} {i} = {self.expr(s.start)}; {i} < {self.expr(s.stop)}; ++{i})"
        return [f"{start}{head} {{", *self.block(s.body, depth + 1), f"{start}}}"]

    def scope(self, s: Scope, depth: int) -> list[str]:
        start = self.indent * depth
        return [f"{start}{{", *self.block(s.body, depth + 1), f"{start}}}"]

    def literal(self, e: Const) -> str:
        if e.type == F32:
            return f"{np.float32(e.value)!s}f"  # the shortest that is this number
        return f"{e.value}u" if e.type == U32 else str(e.value)

    def load(self, table: Array, index: Expr) -> str:
        place = (self.program.start * 4 + table.offset) // table.array.itemsize
        function = self.helper({4: "single", 2: "half", 1: "byte"}[table.array.itemsize])
        return f"{function}({self.weights}{self.expr(u32(place) + index)})"

    def cast(self, e: Cast) -> str:
        return f"{self.types[e.type]}({self.expr(e.a)})"

    def call(self, e: Elementary) -> str:
        name = self.calls.get(e.function, e.function)
        if name.startswith("_"):
            name = self.helper(name[1:])
        return f"{name}({self.args(e.args)})"


def rows(items: Iterable[str], each: int) -> list[str]:
    """Items with commas between them, so many to a line."""
    items = list(items)
    lines = [", ".join(items[i : i + each]) for i in range(0, len(items), each)]
    return [INDENT + line + ("" if i == len(lines) - 1 else ",") for i, line in enumerate(lines)]


def hexadecimal(words: np.ndarray, suffix: str = "") -> list[str]:
    return rows((f"0x{w:08x}{suffix}" for w in words.tolist()), 8)


def plain(text: str) -> str:
    """``text`` that can stand in a comment of any language: one line of letters, digits and harmless signs."""
    return "".join(c if c.isascii() and (c.isalnum() or c in " .,:;()[]=+-_<>^|") else "_" for c in text)[:200]
