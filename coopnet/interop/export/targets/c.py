"""C99, which is also C++."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..language import (
    BOOL, F32, I32, U32, Assign, Cast, Const, Declare, Do, Elementary, LinearMap, ReadRow, Routine, Values, u32,
)  # fmt: skip
from .printer import CLike, hexadecimal, rows

_HELPERS = {
    "single": """
static float {name}_single(const uint32_t *weights, uint32_t i) {{
    float value;
    memcpy(&value, weights + i, sizeof value);
    return value;
}}""",
    "unpack": """
/* the single precision of a number in half precision, the lower 16 bits */
static float {name}_unpack(uint32_t half) {{
    uint32_t bits = (half & 0x7fffu) << 13;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= 5.192296858534828e33f; /* 2^112: the difference of the exponents */
    memcpy(&bits, &value, sizeof value);
    bits |= ((half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u) | (half & 0x8000u) << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}}""",
    "half": """
static float {name}_half(const uint32_t *weights, uint32_t i) {{
    uint32_t half = weights[i >> 1] >> 16u * (i & 1u) & 0xffffu;
#ifdef __F16C__
    return _cvtsh_ss((unsigned short)half);
#else
    return {name}_unpack(half);
#endif
}}""",
    "row": """
/* count numbers in half precision, a multiple of 8 */
static void {name}_row(const uint32_t *words, float *row, uint32_t count) {{
    uint32_t k;
#if defined __F16C__ && !defined __AVX512F__ /* whose wider reads would have to wait for these writes */
    for (k = 0u; k < count; k += 8u) {{
        _mm256_storeu_ps(row + k, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(words + k / 2u))));
    }}
#else
    for (k = 0u; k < count / 2u; ++k) {{
        row[2u * k] = {name}_unpack(words[k] & 0xffffu);
        row[2u * k + 1u] = {name}_unpack(words[k] >> 16);
    }}
#endif
}}""",
    "byte": """
static float {name}_byte(const uint32_t *weights, uint32_t i) {{
    return (float)(weights[i >> 2] >> 8u * (i & 3u) & 0xffu);
}}""",
    "min": """
static float {name}_min(float a, float b) {{ return a < b ? a : b; }}""",
    "max": """
static float {name}_max(float a, float b) {{ return a > b ? a : b; }}""",
    "umin": """
static uint32_t {name}_umin(uint32_t a, uint32_t b) {{ return a < b ? a : b; }}""",
    "umax": """
static uint32_t {name}_umax(uint32_t a, uint32_t b) {{ return a > b ? a : b; }}""",
    "fma": """
/* rounded once, up to rare double rounding, and faster than fmaf() where the processor has no such instruction */
static float {name}_fma(float a, float b, float c) {{ return (float)((double)a * b + c); }}""",
    "mulhi": """
static uint32_t {name}_mulhi(uint32_t a, uint32_t b) {{ return (uint32_t)((uint64_t)a * b >> 32); }}""",
}


class C(CLike):
    suffix = ".c"
    types: ClassVar[dict[str, str]] = {F32: "float", U32: "uint32_t", I32: "int32_t", BOOL: "int"}
    calls: ClassVar[dict[str, str]] = {
        "sin": "sinf", "cos": "cosf", "exp": "expf", "log": "logf", "tanh": "tanhf", "sqrt": "sqrtf", "abs": "fabsf",
        "floor": "floorf", "round": "rintf", "min": "_min", "max": "_max", "fma": "_fma", "mulhi": "_mulhi",
    }  # fmt: skip

    @property
    def weights(self) -> str:  # type: ignore[override]
        return f"{self.name}_weights, " if self.program.words is not None else "weights, "

    @property
    def _passed(self) -> bool:
        return self.program.has_tables and self.program.words is None

    def calling(self) -> list[str]:
        lines = [f"Declare: {self._signature(f)};" for f in self.program.functions if not f.changed]
        if self._passed:
            lines += [
                "weights: the file of weights as it is, in memory, aligned to 4 bytes (little endian machines).",
                f"{self.name}_fits(weights, bytes) is 1 if these are the weights, and in full.",
            ]
        return [*lines, "Compile with: cc -O2 -std=c99 (and link with -lm). It is C++, too."]

    def opening(self) -> list[str]:
        lines = ["", "#include <math.h>", "#include <stddef.h>", "#include <stdint.h>", "#include <string.h>", ""]
        if self.used & {"half", "row"}:
            lines = [*lines[:-1], "#ifdef __F16C__", "#include <immintrin.h>", "#endif", ""]
        lines += ["#ifdef __cplusplus", 'extern "C" {', "#endif"]
        if self.program.words is not None and self.program.has_tables:
            words = hexadecimal(self.program.words, "u")
            lines += ["", f"static const uint32_t {self.name}_weights[{len(self.program.words)}] = {{", *words, "};"]
        return lines

    def closing(self) -> list[str]:
        lines = ["", "#ifdef __cplusplus", "}", "#endif"]
        if not self._passed:
            return lines
        digest = ", ".join(f"0x{b:02x}" for b in self.program.digest)
        return [
            "",
            f"int {self.name}_fits(const void *weights, size_t bytes) {{",
            f"    static const unsigned char digest[32] = {{{digest}}};",
            f"    return bytes == {self.program.length}u && memcmp((const char *)weights + 16, digest, 32) == 0;",
            "}",
            *lines,
        ]

    def helpers(self) -> list[str]:
        texts = {key: text.format(name=self.name) for key, text in _HELPERS.items() if key in self.used}
        if self.used & {"half", "row"}:
            wide = " || defined __AVX512F__" * ("row" in self.used)
            unpack = _HELPERS["unpack"].format(name=self.name)
            texts = {"unpack": f"\n#if !defined __F16C__{wide}{unpack}\n#endif"} | texts
        return [line for text in texts.values() for line in text.split("\n")]

    def statement(self, s: object, depth: int) -> list[str]:
        if isinstance(s, LinearMap) and s.weights.array.dtype == np.float16:
            return self.block(s.loops(by_row=True), depth)  # several numbers at a time
        return super().statement(s, depth)

    def line(self, s: Declare | Assign | Do | ReadRow) -> str:
        if isinstance(s, ReadRow):
            words = self.weights.removesuffix(", ")
            first = self.expr(u32(s.table.offset // 4 + self.program.start) + s.words)
            return f"{self.helper('row')}({words} + {first}, {s.row.name}, {s.row.size}u);"
        return super().line(s)

    def function(self, f: Routine) -> list[str]:
        return [f"{self._signature(f)} {{", *self.block(f.body), "}"]

    def _signature(self, f: Routine) -> str:
        inner = f.changed  # called by others only
        inputs = [f"const {self.declared(v)}" if v.size else self.declared(v) for v in f.inputs]
        results = [self.declared(v) for v in f.results]
        weights = ["const uint32_t *weights"] if self._passed and not inner else []
        arguments = [*results, *inputs] if inner else [*weights, *inputs, *results]
        return f"{'static ' if inner else ''}void {f.name}({', '.join(arguments)})"

    def listed(self, values: Values) -> list[str]:
        items = rows((self.literal(Const(v, values.type)) for v in values.numbers), 8)
        return ["", f"static const {self.types[values.type]} {values.name}[{len(values.numbers)}] = {{", *items, "};"]

    def cast(self, e: Cast) -> str:
        return f"({self.types[e.type]})({self.expr(e.a)})"

    def call(self, e: Elementary) -> str:
        if e.function in ("min", "max") and e.type == U32:
            return f"{self.helper('u' + e.function)}({self.args(e.args)})"
        return super().call(e)
