"""GLSL, WGSL and Slang: functions of shaders, with the weights in a buffer of 32-bit words."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..language import (
    BOOL, F32, I32, U32, Assign, At, Binary, Const, Declare, Do, Elementary, Expr, LinearMap, Map, Routine, Select,
    Var,
)  # fmt: skip
from .printer import INDENT, Printer

#: From here on, tanh is 1 in single precision. Without a limit, the exponentials of some drivers overflow.
_TANH = "10.0"
#: Sine, and cosine as a sine a quarter turn later: those of shaders may be off by 2^-11, and differ from device to
#: device. Whole quarter turns are subtracted with pi/2 in three parts, the first ones of few bits (Cody and Waite); the
#: rest is a polynomial in [-pi/4, pi/4] (Moshier's Cephes library).
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


class _Shader(Printer):
    #: A function that checks, by length (WORDS or BYTES) and HEAD, whether a buffer holds the weights.
    check: ClassVar[str]
    word: ClassVar[str]  #: expression that reads a word of that head, by its number or its first byte
    needs: ClassVar[dict[str, str]] = {"single": "word", "half": "word", "byte": "word", "sin": "sine", "cos": "sine"}

    def closing(self) -> list[str]:
        if not self.program.outside:
            return []
        file = self.program.weights
        words = np.frombuffer(file.identity, "<u4").tolist()
        reads = [self.word.format(name=self.name, word=i, byte=4 * i) for i in range(len(words))]
        tests = [f"{read} == 0x{w:08x}u" for read, w in zip(reads, words, strict=True)]
        head = f"\n{INDENT * 2}&& ".join(" && ".join(tests[i : i + 3]) for i in range(0, len(tests), 3))
        sizes = {"WORDS": f"{file.length // 4}u", "BYTES": f"{file.length}u"}
        return self.filled(self.check, HEAD=head, **sizes).split("\n")

    def call(self, e: Elementary) -> str:
        if e.function == "tanh":
            return f"tanh(clamp({self.expr(e.args[0])}, -{_TANH}, {_TANH}))"
        return super().call(e)


#: Where GLSL finds the weights.
_BUFFER = """
#ifndef UPPER_WORD
#ifndef UPPER_BINDING
#define UPPER_BINDING 0
#endif
#ifdef UPPER_SET
layout(std430, set = UPPER_SET, binding = UPPER_BINDING)
#else
layout(std430, binding = UPPER_BINDING)
#endif
readonly buffer NAME_Weights { uint NAME_weights[]; };
#define UPPER_WORD(i) NAME_weights[i]
#define UPPER_BUFFER
#endif
#define NAME_word(i) UPPER_WORD(i)"""


class GLSL(_Shader):
    suffix = ".glsl"
    tiny = 2048  # 1,500 words, in loops as long as a vector, take Mesa's Vulkan driver for CPUs a minute to compile
    word = "{name}_word({word}u)"
    # a program that defines WORD(i), for a texture, may have no length to check
    check = """
bool NAME_fits() {
#ifdef UPPER_BUFFER
    if (uint(NAME_weights.length()) < WORDS) {
        return false;
    }
#endif
    return HEAD;
}"""
    lists = ("const KIND NAME[COUNT] = KIND[COUNT](", ");")
    usage = """
The file of weights, as it is, belongs into a buffer of uint; set UPPER_SET and UPPER_BINDING to
where that is, or UPPER_WORD(i) to what reads its word i, such as a texture. Buffers need
GLSL 4.30 or ES 3.10.
NAME_fits() is true if these are the weights."""
    notes: ClassVar[list[str]] = ["For GLSL 3.30 and later, and ES 3.00 and later, with high precision."]
    calls: ClassVar[dict[str, str]] = {
        "sin": "_sin", "cos": "_cos", "round": "roundEven", "fma": "_fma", "mulhi": "_mulhi",
    }  # fmt: skip
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

    def opening(self) -> list[str]:
        if self.program.outside:
            return self.filled(_BUFFER).split("\n")
        if not self.program.inside:
            return []
        _, first, *numbers = super().opening()
        return [
            "",
            "// in SPIR-V, constant arrays are copied before every read of an entry, which drivers undo slowly",
            "#ifndef VULKAN",
            "const",
            "#endif",
            first.removeprefix("const "),
            *numbers,
            "",
            f"#define {self.name}_word(i) {self.name}_weights[i]",
        ]


class WGSL(_Shader):
    suffix = ".wgsl"
    word = "{name}_weights[{word}]"
    check = """
fn NAME_fits() -> bool {
    if (arrayLength(&NAME_weights) < WORDS) {
        return false;
    }
    return HEAD;
}"""
    types: ClassVar[dict[str, str]] = {F32: "f32", U32: "u32", I32: "i32", BOOL: "bool"}
    # some compilers allow only constant indices into constants
    lists = ("var<private> NAME: array<KIND, COUNT> = array<KIND, COUNT>(", ");")
    counting = "for (var INDEX = START; INDEX < STOP; INDEX++) "
    kinds = ("fn", "fn")
    called = "Call: SIGNATURE"
    usage = """
Declare the buffer that holds the file of weights, as it is, with numbers of your own:
@group(0) @binding(0) var<storage, read> NAME_weights: array<u32>;
NAME_fits() is true if these are the weights."""
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

    def declared(self, var: Var) -> str:
        return f"var {var.name}: {self._type(var)}"

    def _type(self, var: Var) -> str:
        kind = self.types[var.type]
        return kind if var.size is None else f"array<{kind}, {var.size}>"

    def function(self, f: Routine) -> list[str]:
        self._pointers = {v.name for v in f.results}
        # arguments are values, which only constants can index
        arrays = [v for v in f.inputs if v.size is not None]
        copies = [f"{INDENT}var {v.name} = {v.name}_in;" for v in arrays]
        head, *body = super().function(f)
        return [head, *copies, *body]

    def argument(self, var: Var, way: str) -> str:
        if way != "in":
            return f"{var.name}: ptr<function, {self._type(var)}>"
        return f"{var.name}{'_in' if var.size is not None else ''}: {self._type(var)}"

    def args(self, args: object) -> str:
        texts = [f"&{a.name}" if isinstance(a, Var) and a.size is not None else self.expr(a) for a in args]  # type: ignore[attr-defined]
        return ", ".join(texts)

    def expr(self, e: Expr, outside: int = 0) -> str:
        if isinstance(e, At) and e.array.name in self._pointers:
            return f"(*{e.array.name})[{self.index(e.index)}]"
        return super().expr(e, outside)

    def select(self, e: Select) -> str:
        return f"select({self.expr(e.b)}, {self.expr(e.a)}, {self.expr(e.condition)})"


class Slang(_Shader):
    suffix = ".slang"
    tiny = 512  # in SPIR-V, every read of a constant first copies all of them to a variable
    word = "weights.Load({byte})"
    check = """
public bool NAME_fits(ByteAddressBuffer weights) {
    uint bytes;
    weights.GetDimensions(bytes);
    if (bytes < BYTES) {
        return false;
    }
    return HEAD;
}"""
    lists = ("static const KIND NAME[COUNT] = {", "};")
    kinds = ("public void", "void")
    passed = "ByteAddressBuffer weights"
    called = "Call: SIGNATURE"
    usage = """
weights: a buffer that holds the file of weights as it is.
NAME_fits(weights) is true if these are the weights."""
    calls: ClassVar[dict[str, str]] = {"sin": "_sin", "cos": "_cos", "fma": "mad", "mulhi": "_mulhi"}
    parts: ClassVar[dict[str, str]] = {
        "word": "uint NAME_word(PASSEDuint i) { return READ; }",
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
        return "" if self.program.inside else "weights, "

    def filled(self, text: str, **values: str) -> str:
        if self.program.inside:
            values |= {"PASSED": "", "GIVEN": "", "READ": f"{self.name}_weights[i]"}
        else:
            values |= {"PASSED": "ByteAddressBuffer weights, ", "GIVEN": "weights, ", "READ": "weights.Load(4u * i)"}
        return super().filled(text, **values)


class SlangCoopVec(Slang):
    """Slang with cooperative vectors of half precision for linear layers and the activations after them."""

    inlines = False  # matrices are read from a buffer
    precision = "half"
    notes: ClassVar[list[str]] = ["Needs cooperative vectors of half precision: Vulkan, OptiX, Direct3D 12."]
    whole = ""  #: the type of vectors while an expression is printed for all components at once
    #: Functions of cooperative vectors.
    _WHOLE: ClassVar[set[str]] = {"min", "max", "tanh", "exp", "log"}

    def function(self, f: Routine) -> list[str]:
        self.vectors = {s.y.array.name for s in f.body if _is_product(s)}
        return super().function(f)

    def statement(self, s: Any, depth: int) -> list[str]:
        start = INDENT * depth
        if _is_product(s):
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
        if var.size is not None and var.name in self.vectors:
            return f"{_vector(var.size)} {var.name}"
        return super().declared(var)

    def expr(self, e: Expr, outside: int = 0) -> str:
        text = super().expr(e, outside)
        return f"float({text})" if isinstance(e, At) and e.array.name in self.vectors else text

    def literal(self, e: Const) -> str:
        text = super().literal(e)
        return f"{self.whole}(half({text}))" if self.whole else text

    def call(self, e: Elementary) -> str:
        if self.whole:  # clamp of cooperative vectors takes other arguments
            return f"{e.function}({self.args(e.args)})"
        return super().call(e)

    def _product(self, s: LinearMap) -> list[str]:
        """The product with a matrix in memory. The input is copied to a cooperative vector if it is none."""
        x, y, lines = s.x.array.name, s.y.array.name, []
        if not (s.x.whole and x in self.vectors):
            i = f"for (uint i = 0u; i < {s.x.size}u; ++i)"
            lines = [f"{_vector(s.x.size)} {y}_in;", f"{i} {y}_in[i] = half({self.expr(s.x.at(Var('i', U32)))});"]
            x = f"{y}_in"
        half = "CoopVecComponentType.Float16"
        tables = [s.weights, *([] if s.bias is None else [s.bias])]
        places = [f"weights, {self.start * 4 + t.offset}u, {half}" for t in tables]
        layout = f"CoopVecMatrixLayout.RowMajor, false, {2 * s.weights.stride}u"
        function = f"coopVecMatMul{'' if s.bias is None else 'Add'}<half, {s.y.size}, {s.x.size}>"
        return [*lines, f"{y} = {function}({x}, {half}, {', '.join(places)}, {layout});"]


def _vector(size: int) -> str:
    return f"CoopVec<half, {size}>"


def _is_product(s: Any) -> bool:
    return isinstance(s, LinearMap) and s.columns == 1 and s.y.whole


def _calls(e: Expr) -> set[str]:
    """The functions in an expression of one variable; ``?`` for choices."""
    if isinstance(e, Binary):
        return _calls(e.a) | _calls(e.b)
    if isinstance(e, Elementary):
        return {e.function}.union(*map(_calls, e.args))
    return {"?"} if isinstance(e, Select) else set()
