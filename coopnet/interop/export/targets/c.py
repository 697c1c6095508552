"""C99, which is also C++."""

from __future__ import annotations

import re
from typing import ClassVar

import numpy as np

from ..language import (
    BOOL, F32, I32, U32, Assign, Cast, Declare, Do, Elementary, LinearMap, ReadRow, Routine, Var, u32,
)  # fmt: skip
from .printer import Printer

_FITS = """
int NAME_fits(const void *weights, size_t bytes) {
    static const unsigned char digest[32] = {DIGEST};
    return bytes == BYTES && memcmp((const char *)weights + 16, digest, 32) == 0;
}"""


class C(Printer):
    suffix = ".c"
    types: ClassVar[dict[str, str]] = {F32: "float", U32: "uint32_t", I32: "int32_t", BOOL: "int"}
    lists = ("static const KIND NAME[COUNT] = {", "};")
    counting = "for (uint32_t INDEX = START; INDEX < STOP; ++INDEX) "
    passed = "const uint32_t *weights"
    kinds = ("void", "static void")
    called = "Declare: SIGNATURE;"
    usage = """
weights: the file of weights as it is, in memory, aligned to 4 bytes (little endian machines).
NAME_fits(weights, bytes) is 1 if these are the weights, and in full."""
    notes: ClassVar[list[str]] = ["Compile with: cc -O2 -std=c99 (and link with -lm). It is C++, too."]
    calls: ClassVar[dict[str, str]] = {
        "sin": "sinf", "cos": "cosf", "exp": "expf", "log": "logf", "tanh": "tanhf", "sqrt": "sqrtf", "abs": "fabsf",
        "floor": "floorf", "round": "rintf", "min": "_min", "max": "_max", "fma": "_fma", "mulhi": "_mulhi",
    }  # fmt: skip
    needs: ClassVar[dict[str, str]] = {"half": "unpack", "row": "unpack"}
    parts: ClassVar[dict[str, str]] = {
        "unpack": """
#if !defined __F16C__WIDE
/* the single precision of a number in half precision, the lower 16 bits */
static float NAME_unpack(uint32_t half) {
    uint32_t bits = (half & 0x7fffu) << 13;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= 5.192296858534828e33f; /* 2^112: the difference of the exponents */
    memcpy(&bits, &value, sizeof value);
    bits |= ((half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u) | (half & 0x8000u) << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}
#endif""",
        "single": """
static float NAME_single(const uint32_t *weights, uint32_t i) {
    float value;
    memcpy(&value, weights + i, sizeof value);
    return value;
}""",
        "half": """
static float NAME_half(const uint32_t *weights, uint32_t i) {
    uint32_t half = weights[i >> 1] >> 16u * (i & 1u) & 0xffffu;
#ifdef __F16C__
    return _cvtsh_ss((unsigned short)half);
#else
    return NAME_unpack(half);
#endif
}""",
        "row": """
/* count numbers in half precision, a multiple of 8 */
static void NAME_row(const uint32_t *words, float *row, uint32_t count) {
    uint32_t k;
#if defined __F16C__ && !defined __AVX512F__ /* whose wider reads would have to wait for these writes */
    for (k = 0u; k < count; k += 8u) {
        _mm256_storeu_ps(row + k, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(words + k / 2u))));
    }
#else
    for (k = 0u; k < count / 2u; ++k) {
        row[2u * k] = NAME_unpack(words[k] & 0xffffu);
        row[2u * k + 1u] = NAME_unpack(words[k] >> 16);
    }
#endif
}""",
        "byte": """
static float NAME_byte(const uint32_t *weights, uint32_t i) {
    return (float)(weights[i >> 2] >> 8u * (i & 3u) & 0xffu);
}""",
        "min": "static float NAME_min(float a, float b) { return a < b ? a : b; }",
        "max": "static float NAME_max(float a, float b) { return a > b ? a : b; }",
        "umin": "static uint32_t NAME_umin(uint32_t a, uint32_t b) { return a < b ? a : b; }",
        "umax": "static uint32_t NAME_umax(uint32_t a, uint32_t b) { return a > b ? a : b; }",
        "fma": """
/* rounded once, up to rare double rounding, and faster than fmaf() where the processor has no such instruction */
static float NAME_fma(float a, float b, float c) { return (float)((double)a * b + c); }""",
        "mulhi": "static uint32_t NAME_mulhi(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }",
    }

    @property
    def weights(self) -> str:  # type: ignore[override]
        return f"{self.name}_weights, " if self.program.inside else "weights, "

    def opening(self) -> list[str]:
        lines = ["", "#include <math.h>", "#include <stddef.h>", "#include <stdint.h>", "#include <string.h>", ""]
        if self.used & {"half", "row"}:
            lines = [*lines[:-1], "#ifdef __F16C__", "#include <immintrin.h>", "#endif", ""]
        lines += ["#ifdef __cplusplus", 'extern "C" {', "#endif"]
        return [*lines, *super().opening()]

    def closing(self) -> list[str]:
        lines, file = ["", "#ifdef __cplusplus", "}", "#endif"], self.program.weights
        if not self.program.outside:
            return lines
        digest = ", ".join(f"0x{b:02x}" for b in file.digest)
        return [*self.filled(_FITS, BYTES=f"{file.length}u", DIGEST=digest).split("\n"), *lines]

    def filled(self, text: str, **values: str) -> str:
        return super().filled(text, WIDE=" || defined __AVX512F__" * ("row" in self.used), **values)

    def function(self, f: Routine) -> list[str]:
        head, *body = super().function(f)
        read = set(re.findall(r"\w+", " ".join(body)))
        return [head, *(f"    (void){v.name};" for v in f.inputs if v.name not in read), *body]

    def statement(self, s: object, depth: int) -> list[str]:
        if isinstance(s, LinearMap) and s.weights.array.dtype == np.float16:
            return self.block(s.loops(by_row=True), depth)  # several numbers at a time
        return super().statement(s, depth)

    def line(self, s: Declare | Assign | Do | ReadRow) -> str:
        if isinstance(s, ReadRow):
            words = self.weights.removesuffix(", ")
            first = self.expr(u32(s.table.offset // 4 + self.start) + s.words)
            return f"{self.helper('row')}({words} + {first}, {s.row.name}, {s.row.size}u);"
        return super().line(s)

    def argument(self, var: Var, way: str) -> str:
        return f"{'const ' if way == 'in' and var.size else ''}{self.declared(var)}"

    def cast(self, e: Cast) -> str:
        return f"({self.types[e.type]})({self.expr(e.a)})"

    def call(self, e: Elementary) -> str:
        if e.function in ("min", "max") and e.type == U32:
            return f"{self.helper('u' + e.function)}({self.args(e.args)})"
        return super().call(e)
