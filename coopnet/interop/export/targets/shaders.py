"""GLSL, WGSL and Slang: functions of shaders, with the weights in a buffer of 32-bit words."""

from __future__ import annotations

import re
from typing import ClassVar

import numpy as np

from ..language import (
    BOOL, F32, I32, U32, Assign, At, Binary, Const, Declare, Do, Elementary, Expr, For, LinearMap, Map, Routine, Select,
    Values, Var,
)  # fmt: skip
from ..weights import identity
from .printer import INDENT, CLike, hexadecimal, rows

#: Beyond, a hyperbolic tangent is 1 in single precision; some drivers' exponentials overflow first.
_TANH = "10.0"


#: Sine, and cosine as a sine a quarter turn later: those of shaders may be off by 2^-11, and differ from device to
#: device. After whole quarter turns have been taken off, by three parts of pi/2 of which the first have few bits, it is
#: a polynomial in [-pi/4, pi/4] (Moshier's Cephes library).
_SINE = """
float NAME_quarter(float x, float more) {
    float n = floor(x * 0.636619772f + 0.5f);
    float r = ((x - n * 1.5703125f) - n * 4.83751296997e-4f) - n * 7.549789955e-8f;
    float q = n + more - 4.0f * floor((n + more) * 0.25f), s = r * r;
    float sine = ((-1.9515295891e-4f * s + 8.3321608736e-3f) * s - 1.6666654611e-1f) * s * r + r;
    float cosine = ((2.443315711809948e-5f * s - 1.388731625493765e-3f) * s + 4.166664568298827e-2f) * s * s - 0.5f * s;
    float value = q == 1.0f || q == 3.0f ? cosine + 1.0f : sine;
    return q >= 2.0f ? -value : value;
}
float NAME_sin(float x) { return NAME_quarter(x, 0.0f); }
float NAME_cos(float x) { return NAME_quarter(x, 1.0f); }"""


class _Shader(CLike):
    """``parts`` are the texts of helper functions, in which ``{name}`` is the field's and ``{words}`` reads a word."""

    parts: ClassVar[dict[str, str]]

    def helpers(self) -> list[str]:
        if self.used & {"half", "byte", "single"}:
            self.used.add("word")
        if self.used & {"sin", "cos"}:
            self.used.add("sine")
        texts = [text for key, text in self.parts.items() if key in self.used]
        return [line for text in texts for line in ("\n" + text.strip("\n")).replace("NAME", self.name).split("\n")]

    @property
    def _inside(self) -> bool:
        """Do the weights stand in the source?"""
        return self.program.words is not None and self.program.has_tables

    @property
    def _outside(self) -> bool:
        return self.program.words is None and self.program.has_tables

    #: The function that says whether a buffer holds the weights, of so many WORDS or BYTES: its HEAD is compared.
    fits: ClassVar[str]
    word: ClassVar[str]  #: what reads a word of that head, by its number or its first byte

    def closing(self) -> list[str]:
        if not self._outside:
            return []
        words = np.frombuffer(identity(self.program.length, self.program.digest), "<u4").tolist()
        reads = [self.word.format(name=self.name, word=i, byte=4 * i) for i in range(len(words))]
        tests = [f"{read} == 0x{w:08x}u" for read, w in zip(reads, words, strict=True)]
        head = f"\n{INDENT * 2}&& ".join(" && ".join(tests[i : i + 3]) for i in range(0, len(tests), 3))
        size = self.program.length
        values = {"NAME": self.name, "UPPER": self.name.upper(), "HEAD": head}
        values |= {"WORDS": f"{size // 4}u", "BYTES": f"{size}u"}
        return re.sub("NAME|UPPER|WORDS|BYTES|HEAD", lambda m: values[m[0]], self.fits).split("\n")

    def fitting(self) -> list[str]:
        """What the head of the source says of that function."""
        called = f"{self.name}_fits({self.weights.strip(', ')})"
        return [f"{called} is true if these are the weights."] if self._outside else []

    def _public(self) -> list[Routine]:
        return [f for f in self.program.functions if not f.changed]

    def call(self, e: Elementary) -> str:
        if e.function == "tanh":
            return f"tanh(clamp({self.expr(e.args[0])}, -{_TANH}, {_TANH}))"
        return super().call(e)

    def key(self) -> list[str]:
        keyed = any(v.name == "key" for v in self._public()[0].inputs)
        return ["key: low and high half of the seed, index, step"] if keyed else []


class GLSL(_Shader):
    suffix = ".glsl"
    word = "{name}_word({word}u)"
    # what has an own WORD(i), such as a texture, may have no end that could be asked for
    fits = """
bool NAME_fits() {
#ifdef UPPER_BUFFER
    if (uint(NAME_weights.length()) < WORDS) {
        return false;
    }
#endif
    return HEAD;
}"""
    calls: ClassVar[dict[str, str]] = {
        "sin": "_sin",
        "cos": "_cos",
        "round": "roundEven",
        "fma": "_fma",
        "mulhi": "_mulhi",
    }
    parts: ClassVar[dict[str, str]] = {
        "single": "float NAME_single(uint i) { return uintBitsToFloat(NAME_word(i)); }",
        "half": """
float NAME_half(uint i) {
    vec2 pair = unpackHalf2x16(NAME_word(i >> 1u));
    return (i & 1u) == 0u ? pair.x : pair.y;
}""",
        "byte": "float NAME_byte(uint i) { return float((NAME_word(i >> 2u) >> (8u * (i & 3u))) & 255u); }",
        "sine": _SINE,
        "fma": """
#if defined(GL_ES) || __VERSION__ < 400
float NAME_fma(float a, float b, float c) { return a * b + c; }
#else
float NAME_fma(float a, float b, float c) { return fma(a, b, c); }
#endif""",
        "mulhi": """
uint NAME_mulhi(uint a, uint b) {
    uint low = (a & 65535u) * (b & 65535u), first = (a >> 16u) * (b & 65535u), second = (a & 65535u) * (b >> 16u);
    uint middle = (low >> 16u) + (first & 65535u) + (second & 65535u);
    return (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u) + (middle >> 16u);
}""",
    }

    def calling(self) -> list[str]:
        lines = [f"Call: {self._signature(f)};" for f in self._public()]
        if self._outside:
            upper = self.name.upper()
            lines += [
                f"The file of weights, as it is, belongs into a buffer of uint; set {upper}_SET and {upper}_BINDING to",
                f"where that is, or {upper}_WORD(i) to what reads its word i, such as a texture. Buffers need",
                "GLSL 4.30 or ES 3.10.",
            ]
        return [
            *lines,
            *self.fitting(),
            *self.key(),
            "For GLSL 3.30 and later, and ES 3.00 and later, with high precision.",
        ]

    def opening(self) -> list[str]:
        upper = self.name.upper()
        if self._inside:
            words = self.program.words
            assert words is not None
            return [
                "",
                "// in SPIR-V, constant arrays are copied before every read of an entry, which drivers undo slowly",
                "#ifndef VULKAN",
                "const",
                "#endif",
                f"uint {self.name}_weights[{len(words)}] = uint[{len(words)}](",
                *hexadecimal(words, "u"),
                ");",
                "",
                f"#define {self.name}_word(i) {self.name}_weights[i]",
            ]
        if not self._outside:
            return []
        return [
            "",
            f"#ifndef {upper}_WORD",
            f"#ifndef {upper}_BINDING",
            f"#define {upper}_BINDING 0",
            "#endif",
            f"#ifdef {upper}_SET",
            f"layout(std430, set = {upper}_SET, binding = {upper}_BINDING)",
            "#else",
            f"layout(std430, binding = {upper}_BINDING)",
            "#endif",
            f"readonly buffer {self.name}_Weights {{ uint {self.name}_weights[]; }};",
            f"#define {upper}_WORD(i) {self.name}_weights[i]",
            f"#define {upper}_BUFFER",
            "#endif",
            f"#define {self.name}_word(i) {upper}_WORD(i)",
        ]

    def function(self, f: Routine) -> list[str]:
        return [f"{self._signature(f)} {{", *self.block(f.body), "}"]

    def _signature(self, f: Routine) -> str:
        results = [f"{'inout' if f.changed else 'out'} {self.declared(v)}" for v in f.results]
        inputs = [f"{self.declared(v)}" for v in f.inputs]
        arguments = [*results, *inputs] if f.changed else [*inputs, *results]
        return f"void {f.name}({', '.join(arguments)})"

    def listed(self, values: Values) -> list[str]:
        kind, n = self.types[values.type], len(values.numbers)
        items = rows((self.literal(Const(v, values.type)) for v in values.numbers), 8)
        return ["", f"const {kind} {values.name}[{n}] = {kind}[{n}](", *items, ");"]


class WGSL(_Shader):
    suffix = ".wgsl"
    word = "{name}_weights[{word}]"
    fits = """
fn NAME_fits() -> bool {
    if (arrayLength(&NAME_weights) < WORDS) {
        return false;
    }
    return HEAD;
}"""
    types: ClassVar[dict[str, str]] = {F32: "f32", U32: "u32", I32: "i32", BOOL: "bool"}
    calls: ClassVar[dict[str, str]] = {"sin": "_sin", "cos": "_cos", "mulhi": "_mulhi"}
    parts: ClassVar[dict[str, str]] = {
        "single": "fn NAME_single(i: u32) -> f32 { return bitcast<f32>(NAME_weights[i]); }",
        "half": """
fn NAME_half(i: u32) -> f32 {
    let pair = unpack2x16float(NAME_weights[i >> 1u]);
    return select(pair.x, pair.y, (i & 1u) == 1u);
}""",
        "sine": """
fn NAME_quarter(x: f32, more: f32) -> f32 {
    let n = floor(x * 0.636619772f + 0.5f);
    let r = ((x - n * 1.5703125f) - n * 4.83751296997e-4f) - n * 7.549789955e-8f;
    let q = n + more - 4.0f * floor((n + more) * 0.25f);
    let s = r * r;
    let sine = ((-1.9515295891e-4f * s + 8.3321608736e-3f) * s - 1.6666654611e-1f) * s * r + r;
    let cosine = ((2.443315711809948e-5f * s - 1.388731625493765e-3f) * s + 4.166664568298827e-2f) * s * s - 0.5f * s;
    let value = select(sine, cosine + 1.0f, q == 1.0f || q == 3.0f);
    return select(value, -value, q >= 2.0f);
}
fn NAME_sin(x: f32) -> f32 { return NAME_quarter(x, 0.0f); }
fn NAME_cos(x: f32) -> f32 { return NAME_quarter(x, 1.0f); }""",
        "byte": "fn NAME_byte(i: u32) -> f32 { return f32((NAME_weights[i >> 2u] >> (8u * (i & 3u))) & 255u); }",
        "mulhi": """
fn NAME_mulhi(a: u32, b: u32) -> u32 {
    let low = (a & 65535u) * (b & 65535u);
    let first = (a >> 16u) * (b & 65535u);
    let second = (a & 65535u) * (b >> 16u);
    let middle = (low >> 16u) + (first & 65535u) + (second & 65535u);
    return (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u) + (middle >> 16u);
}""",
    }

    def calling(self) -> list[str]:
        lines = [f"Call: {self._signature(f)}" for f in self._public()]
        if self._outside:
            lines += [
                "Declare the buffer that holds the file of weights, as it is, with numbers of your own:",
                f"@group(0) @binding(0) var<storage, read> {self.name}_weights: array<u32>;",
            ]
        return [*lines, *self.fitting(), *self.key()]

    def opening(self) -> list[str]:
        if not self._inside:
            return []
        words = self.program.words
        assert words is not None
        head = f"var<private> {self.name}_weights: array<u32, {len(words)}> = array<u32, {len(words)}>("
        return ["", head, *hexadecimal(words, "u"), ");"]

    def declared(self, var: Var) -> str:
        return f"var {var.name}: {self._type(var)}"

    def _type(self, var: Var) -> str:
        kind = self.types[var.type]
        return kind if var.size is None else f"array<{kind}, {var.size}>"

    def function(self, f: Routine) -> list[str]:
        self._pointers = {v.name for v in f.results}
        # arguments are values, of which only constant places can be looked at
        arrays = [v for v in f.inputs if v.size is not None]
        copies = [f"{INDENT}var {v.name} = {v.name}_in;" for v in arrays]
        return [f"{self._signature(f)} {{", *copies, *self.block(f.body), "}"]

    def _signature(self, f: Routine) -> str:
        results = [f"{v.name}: ptr<function, {self._type(v)}>" for v in f.results]
        inputs = [f"{v.name}{'_in' if v.size is not None else ''}: {self._type(v)}" for v in f.inputs]
        arguments = [*results, *inputs] if f.changed else [*inputs, *results]
        return f"fn {f.name}({', '.join(arguments)})"

    def loop(self, s: For, depth: int) -> list[str]:
        lines = super().loop(s, depth)
        i = s.var.name
        head = f"for (var {i} = {self.expr(s.start)}; {i} < {self.expr(s.stop)}; {i}++) {{"
        return [self.indent * depth + head, *lines[1:]]

    def args(self, args: object) -> str:
        texts = [f"&{a.name}" if isinstance(a, Var) and a.size is not None else self.expr(a) for a in args]  # type: ignore[attr-defined]
        return ", ".join(texts)

    def expr(self, e: Expr, outside: int = 0) -> str:
        if isinstance(e, At) and e.array.name in self._pointers:
            return f"(*{e.array.name})[{self.index(e.index)}]"
        return super().expr(e, outside)

    def select(self, e: Select) -> str:
        return f"select({self.expr(e.b)}, {self.expr(e.a)}, {self.expr(e.condition)})"

    def listed(self, values: Values) -> list[str]:
        kind, n = self.types[values.type], len(values.numbers)
        items = rows((self.literal(Const(v, values.type)) for v in values.numbers), 8)
        # of constants, too, only constant places can be looked at everywhere
        return ["", f"var<private> {values.name}: array<{kind}, {n}> = array<{kind}, {n}>(", *items, ");"]


class Slang(_Shader):
    suffix = ".slang"
    tiny = 512  # in SPIR-V, a variable of its own gets all constants before every read of one
    word = "weights.Load({byte})"
    fits = """
public bool NAME_fits(ByteAddressBuffer weights) {
    uint bytes;
    weights.GetDimensions(bytes);
    if (bytes < BYTES) {
        return false;
    }
    return HEAD;
}"""
    calls: ClassVar[dict[str, str]] = {"sin": "_sin", "cos": "_cos", "fma": "mad", "mulhi": "_mulhi"}
    parts: ClassVar[dict[str, str]] = {
        "word": "uint NAME_word(PASSEDuint i) { return WORD; }",
        "single": "float NAME_single(PASSEDuint i) { return asfloat(NAME_word(GIVENi)); }",
        "half": """
float NAME_half(PASSEDuint i) {
    return f16tof32((NAME_word(GIVENi >> 1u) >> (16u * (i & 1u))) & 65535u);
}""",
        "byte": """
float NAME_byte(PASSEDuint i) {
    return float((NAME_word(GIVENi >> 2u) >> (8u * (i & 3u))) & 255u);
}""",
        "sine": _SINE,
        "mulhi": "uint NAME_mulhi(uint a, uint b) { return uint((uint64_t(a) * uint64_t(b)) >> 32); }",
    }

    @property
    def weights(self) -> str:  # type: ignore[override]
        return "" if self._inside else "weights, "

    def calling(self) -> list[str]:
        lines = [f"Call: {self._signature(f)}" for f in self._public()]
        if self._outside:
            lines.append("weights: a buffer that holds the file of weights as it is.")
        return [*lines, *self.fitting(), *self.key()]

    def opening(self) -> list[str]:
        if not self._inside:
            return []
        words = self.program.words
        assert words is not None
        return ["", f"static const uint {self.name}_weights[{len(words)}] = {{", *hexadecimal(words, "u"), "};"]

    def helpers(self) -> list[str]:
        word = f"{self.name}_weights[i]" if self._inside else "weights.Load(4u * i)"
        passed, given = ("", "") if self._inside else ("ByteAddressBuffer weights, ", "weights, ")
        return [
            line.replace("PASSED", passed).replace("GIVEN", given).replace("WORD", word) for line in super().helpers()
        ]

    def function(self, f: Routine) -> list[str]:
        return [f"{self._signature(f)} {{", *self.block(f.body), "}"]

    def _signature(self, f: Routine) -> str:
        results = [f"{'inout' if f.changed else 'out'} {self.declared(v)}" for v in f.results]
        inputs = [self.declared(v) for v in f.inputs]
        if f.changed:
            return f"void {f.name}({', '.join([*results, *inputs])})"
        weights = ["ByteAddressBuffer weights"] if self._outside else []
        return f"public void {f.name}({', '.join([*weights, *inputs, *results])})"

    def listed(self, values: Values) -> list[str]:
        kind, n = self.types[values.type], len(values.numbers)
        items = rows((self.literal(Const(v, values.type)) for v in values.numbers), 8)
        return ["", f"static const {kind} {values.name}[{n}] = {{", *items, "};"]


class SlangCoopVec(Slang):
    """The same, with cooperative vectors of half precision for what linear layers give, and activations after them."""

    inlines = False  # matrices are read from a buffer
    precision = "half"
    #: Functions that cooperative vectors have.
    _WHOLE: ClassVar[set[str]] = {"min", "max", "tanh", "exp", "log"}

    def calling(self) -> list[str]:
        return [*super().calling(), "Needs cooperative vectors of half precision: Vulkan, OptiX, Direct3D 12."]

    def function(self, f: Routine) -> list[str]:
        self.vectors = {s.y.array.name for s in _products(f.body)}
        self.whole = ""  #: the type of vectors while an expression is printed for all components at once
        return super().function(f)

    def statement(self, s: object, depth: int) -> list[str]:
        start = self.indent * depth
        if isinstance(s, LinearMap) and s.columns == 1 and s.y.whole:
            return [start + line for line in self._product(s)]
        if isinstance(s, Map) and s.x.whole and s.x.array.name in self.vectors:
            value = s.function(Var(s.x.array.name, F32))
            if _calls(value) <= self._WHOLE:
                self.whole = _vector(s.x.size)
                line = f"{s.x.array.name} = {self.expr(value)};"
                self.whole = ""
                return [start + line]
        return super().statement(s, depth)

    def line(self, s: Declare | Assign | Do) -> str:
        if isinstance(s, Assign) and isinstance(s.target, At) and s.target.array.name in self.vectors:
            return f"{s.target.array.name}[{self.index(s.target.index)}] = half({self.expr(s.value)});"
        return super().line(s)

    def declared(self, var: Var) -> str:
        if var.size is not None and var.name in getattr(self, "vectors", ()):
            return f"{_vector(var.size)} {var.name}"
        return super().declared(var)

    def expr(self, e: Expr, outside: int = 0) -> str:
        text = super().expr(e, outside)
        return f"float({text})" if isinstance(e, At) and e.array.name in self.vectors else text

    def literal(self, e: Const) -> str:
        text = super().literal(e)
        return f"{self.whole}(half({text}))" if self.whole else text

    def call(self, e: Elementary) -> str:
        if self.whole:  # clamp has other arguments there
            return f"{e.function}({self.args(e.args)})"
        return super().call(e)

    def _product(self, s: LinearMap) -> list[str]:
        """The product with a matrix in memory, whose input is put into a vector unless it is one."""
        x, y, lines = s.x.array.name, s.y.array.name, []
        if not (s.x.whole and x in self.vectors):
            i = f"for (uint i = 0u; i < {s.x.size}u; ++i)"
            lines = [f"{_vector(s.x.size)} {y}_in;", f"{i} {y}_in[i] = half({self.expr(s.x.at(Var('i', U32)))});"]
            x = f"{y}_in"
        half = "CoopVecComponentType.Float16"
        tables = [s.weights, *([] if s.bias is None else [s.bias])]
        places = [f"weights, {self.program.start * 4 + t.offset}u, {half}" for t in tables]
        layout = f"CoopVecMatrixLayout.RowMajor, false, {2 * s.weights.stride}u"
        function = f"coopVecMatMul{'' if s.bias is None else 'Add'}<half, {s.y.size}, {s.x.size}>"
        return [*lines, f"{y} = {function}({x}, {half}, {', '.join(places)}, {layout});"]


def _vector(size: int) -> str:
    return f"CoopVec<half, {size}>"


def _products(body: list) -> list[LinearMap]:
    return [s for s in body if isinstance(s, LinearMap) and s.columns == 1 and s.y.whole]


def _calls(e: Expr) -> set[str]:
    """The functions in an expression of one variable; ``?`` for choices."""
    if isinstance(e, Binary):
        return _calls(e.a) | _calls(e.b)
    if isinstance(e, Elementary):
        return {e.function}.union(*map(_calls, e.args))
    return {"?"} if isinstance(e, Select) else set()
