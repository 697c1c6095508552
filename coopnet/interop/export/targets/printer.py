"""The base of all printers, for languages with a syntax like C's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..language import (
    BOOL, F32, I32, U32, Assign, At, Binary, Cast, Comment, Const, Declare, Do, Elementary, Expr, For, LinearMap, Load,
    Map, Pick, Routine, Scope, Select, Still, Values, Var, u32,
)  # fmt: skip
from ..weights import Array, WeightFile

INDENT = "    "
#: Precedence of operators. All others are always put in parentheses.
_TIGHT = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}


@dataclass(frozen=True)
class Listing:
    """The input of a printer: ``functions``, callees first, and the ``weights``, which are in the source if ``inline``.
    ``about`` are the lines at the head of the source.
    """

    name: str
    functions: list[Routine]
    weights: WeightFile
    inline: bool
    about: list[str]

    @property
    def inside(self) -> bool:
        """Does the source contain weights?"""
        return self.inline and bool(self.weights.tables)

    @property
    def outside(self) -> bool:
        """Is there a file of weights?"""
        return not self.inline and bool(self.weights.tables)

    @property
    def public(self) -> list[Routine]:
        """The functions that a program calls: those that no other function calls."""
        return [f for f in self.functions if not f.changed]

    @property
    def keyed(self) -> bool:
        """Do the public functions take a key?"""
        return any(v.name == "key" for v in self.public[0].inputs)


class Printer:
    """Prints a :class:`Listing` in a language with braces, types before names, and suffixes for numbers.

    ``used`` collects the helper functions that expressions need.
    """

    suffix: ClassVar[str]
    inlines: ClassVar[bool] = True  #: can weights be in the source?
    tiny: ClassVar[int] = 8192  #: up to so many bytes of weights are in the source by default
    precision: ClassVar[str | None] = None  #: the precision of weights, if there is only one
    comment: ClassVar[str] = "//"
    gap: ClassVar[int] = 1  #: empty lines before a function
    unsigned: ClassVar[str] = "u"  #: suffix of unsigned numbers
    types: ClassVar[dict[str, str]] = {F32: "float", U32: "uint", I32: "int", BOOL: "bool"}
    #: Text before and after the numbers of a list of COUNT constants of type KIND that is called NAME.
    lists: ClassVar[tuple[str, str]]
    counting: ClassVar[str] = "for (uint INDEX = START; INDEX < STOP; ++INDEX) "
    #: Texts of helper functions, and which others each needs. NAME is the field's name, UPPER the same in capitals.
    parts: ClassVar[dict[str, str]]
    needs: ClassVar[dict[str, str]] = {}
    calls: ClassVar[dict[str, str]] = {}  #: elementary functions with other names; those of helpers begin with _
    weights = ""  #: the argument of helper functions that read weights, with a comma after it
    kinds: ClassVar[tuple[str, str]] = ("void", "void")  #: the words with which public and other functions are declared
    passed: ClassVar[str] = ""  #: the argument of public functions for a buffer of weights
    #: Text of the head: how to call a public function, how to pass weights, and notes.
    called: ClassVar[str] = "Call: SIGNATURE;"
    usage: ClassVar[str]
    notes: ClassVar[list[str]] = []

    def __init__(self, program: Listing):
        self.program, self.name = program, program.name
        self.start = 0 if program.inline else program.weights.start  #: the word at which the first array begins
        self.used: set[str] = set()
        self.values: dict[str, Values] = {}

    def source(self) -> str:
        """The text of the file."""
        functions = [line for f in self.program.functions for line in [*[""] * self.gap, *self.function(f)]]
        values = [
            line
            for v in self.values.values()
            for line in self.listed(v.name, v.type, [self.literal(Const(n, v.type)) for n in v.numbers])
        ]
        lines = [*self.head(), *self.opening(), *values, *self.helpers(), *functions, *self.closing()]
        return "\n".join(lines) + "\n"

    def head(self) -> list[str]:
        """Comments on what the file is and how it is called."""
        return [f"{self.comment} {line}".rstrip() for line in [*self.program.about, *self.calling()]]

    def calling(self) -> list[str]:
        lines = [self.called.replace("SIGNATURE", self.signature(f)) for f in self.program.public]
        if self.program.outside:
            lines += self.filled(self.usage.strip()).split("\n")
        if self.program.keyed:
            lines.append("key: low and high half of the seed, index, step")
        return [*lines, *self.notes]

    def opening(self) -> list[str]:
        """The first lines: the weights, or how they are read."""
        if not self.program.inside:
            return []
        words = self.program.weights.words().tolist()
        return self.listed(f"{self.name}_weights", U32, [f"0x{w:08x}{self.unsigned}" for w in words])

    def closing(self) -> list[str]:
        return []

    def helpers(self) -> list[str]:
        """The helper functions in :attr:`used`."""
        used = self.used | {self.needs[key] for key in self.used if key in self.needs}
        texts = [text.strip("\n") for key, text in self.parts.items() if key in used]
        return self.filled("".join("\n" * self.gap + text + "\n" for text in texts)).split("\n")[:-1]

    def filled(self, text: str, **values: str) -> str:
        """``text`` with names replaced by values in one pass: values are not searched for names."""
        values = {"NAME": self.name, "UPPER": self.name.upper()} | values
        return re.sub("|".join(values), lambda match: values[match[0]], text)

    def listed(self, name: str, type: str, items: list[str]) -> list[str]:
        """The declaration of constants, eight to a line."""
        first, last = (self.filled(v, NAME=name, KIND=self.types[type], COUNT=str(len(items))) for v in self.lists)
        lines = [INDENT + ", ".join(items[i : i + 8]) for i in range(0, len(items), 8)]
        return ["", first, *(f"{line}," for line in lines[:-1]), *lines[-1:], last]

    # ---- Statements -----------------------------------------------------------

    def function(self, f: Routine) -> list[str]:
        return [f"{self.signature(f)} {{", *self.block(f.body), "}"]

    def signature(self, f: Routine) -> str:
        results = [self.argument(v, "inout" if f.changed else "out") for v in f.results]
        inputs = [self.argument(v, "in") for v in f.inputs]
        weights = [self.passed] if self.passed and self.program.outside else []
        arguments = [*results, *inputs] if f.changed else [*weights, *inputs, *results]
        return f"{self.kinds[f.changed]} {f.name}({', '.join(arguments)})"

    def argument(self, var: Var, way: str) -> str:
        """An argument that goes ``"in"``, ``"out"`` or ``"inout"``."""
        return self.declared(var) if way == "in" else f"{way} {self.declared(var)}"

    def declared(self, var: Var) -> str:
        return f"{self.types[var.type]} {var.name}" + ("" if var.size is None else f"[{var.size}]")

    def block(self, body: Iterable[Any], depth: int = 1) -> list[str]:
        return [line for s in body for line in self.statement(s, depth)]

    def statement(self, s: Any, depth: int) -> list[str]:
        start = INDENT * depth
        if isinstance(s, Comment):
            return [f"{start}{self.comment} {plain(s.text)}"]
        if isinstance(s, (LinearMap, Map)):
            return self.block(s.loops(), depth)
        if isinstance(s, For):
            return self.loop(s, depth)
        if isinstance(s, Scope):
            return self.braced("", s.body, depth)
        return [start + self.line(s)]

    def line(self, s: Declare | Assign | Do) -> str:
        """A statement that takes one line."""
        if isinstance(s, Declare):
            value = "" if s.value is None else f" = {self.expr(s.value)}"
            return f"{self.declared(s.var)}{value};"
        if isinstance(s, Do):
            return f"{s.function.name}({self.args(s.args)});"
        target, new = self.expr(s.target), s.value
        if isinstance(new, Binary) and new.a == s.target and new.op in ("+", "-", "*"):
            return f"{target} {new.op}= {self.expr(new.b)};"
        return f"{target} = {self.expr(new)};"

    def loop(self, s: For, depth: int) -> list[str]:
        ends = {"INDEX": s.var.name, "START": self.expr(s.start), "STOP": self.expr(s.stop)}
        return self.braced(self.filled(self.counting, **ends), s.body, depth)

    def braced(self, head: str, body: list, depth: int) -> list[str]:
        start = INDENT * depth
        return [f"{start}{head}{{", *self.block(body, depth + 1), f"{start}}}"]

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
        if e.type == F32:
            return f"{np.float32(e.value)!s}f"  # the shortest text of this number
        return f"{e.value}{self.unsigned}" if e.type == U32 else str(e.value)

    def load(self, table: Array, index: Expr) -> str:
        place = (self.start * 4 + table.offset) // table.array.itemsize
        function = self.helper({4: "single", 2: "half", 1: "byte"}[table.array.itemsize])
        return f"{function}({self.weights}{self.expr(u32(place) + index)})"

    def cast(self, e: Cast) -> str:
        return f"{self.types[e.type]}({self.expr(e.a)})"

    def call(self, e: Elementary) -> str:
        name = self.calls.get(e.function, e.function)
        if name.startswith("_"):
            name = self.helper(name[1:])
        return f"{name}({self.args(e.args)})"

    def select(self, e: Select) -> str:
        return f"{self.expr(e.condition, 3)} ? {self.expr(e.a, 3)} : {self.expr(e.b, 3)}"

    def helper(self, name: str) -> str:
        """The name of a helper function, which is added to :meth:`helpers`."""
        self.used.add(name)
        return f"{self.name}_{name}"

    def args(self, args: Iterable[Expr]) -> str:
        return ", ".join(self.expr(a) for a in args)


def plain(text: str) -> str:
    """``text`` made safe for a comment in any language: one line of letters, digits and harmless signs."""
    return "".join(c if c.isascii() and (c.isalnum() or c in " .,:;()[]=+-_<>^|") else "_" for c in text)[:200]
