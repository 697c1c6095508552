"""Statistics of the dropout masks, and TestU01's SmallCrush over the words that they are made from.

    python benchmarks/mask_statistics.py --backend llvm

Writes ``results/statistics-<backend>.json`` and prints the tables of ``docs/dropout.md``. (The file is not called
``statistics.py`` because that would hide Python's module of this name from the other benchmarks.)

SmallCrush needs a C compiler and TestU01 (Debian: ``apt install libtestu01-0-dev``, in the section non-free);
``--testu01 PREFIX`` says where it is if not in the system's folders. Without it, this part is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import drjit as dr
import numpy as np

import coopnet as cn

PROBABILITIES = (0.01, 0.1, 0.3, 0.5, 0.9)
BITS = (8, 16, 32)
FEATURES = 64
SEED = 0x9E3779B97F4A7C15
#: Streams of the network whose dropouts are correlated with each other.
STREAMS = 8
#: Words per chunk of the stream that goes to SmallCrush.
CHUNK = 1 << 20


def samples_of(ns: Any, elements: int) -> Any:
    """Indices of as many samples as make ``elements`` elements."""
    return dr.arange(ns.UInt32, elements // FEATURES)


def counts(*masks: Any) -> list[int]:
    """How many entries of each list of masks are set, all in one kernel."""
    totals = [sum(dr.select(m, 1, 0) for m in part) for part in masks]
    uint32 = dr.uint32_array_t(type(masks[0][0]))
    totals = [dr.sum(uint32(t)) for t in totals]
    dr.eval(totals)
    return [int(t[0]) for t in totals]


def drop_rate(p: float, bits: int) -> float:
    """The quantized drop probability of the mask law."""
    return round(p * 2**bits) / 2**bits


# ---- Keep rates ----------------------------------------------------------------------------------------------


def keep_rates(ns: Any, elements: int, seed: int = SEED) -> list[dict]:
    """Number of survivors, in standard errors from its expectation."""
    rows = []
    for bits, p in itertools.product(BITS, PROBABILITIES):
        q = drop_rate(p, bits)
        keep = cn.dropout_mask(FEATURES, p, cn.Key(seed, samples_of(ns, elements)), bits=bits)
        (kept,) = counts(list(keep))
        score = (kept - elements * (1 - q)) / math.sqrt(elements * q * (1 - q))
        rows.append(dict(bits=bits, p=p, drop_rate=q, elements=elements, kept=kept, standard_errors=score))
    return rows


# ---- Pairs ---------------------------------------------------------------------------------------------------


def chi_square_tail(x: float) -> float:
    """P(X > x) for chi-square with 3 degrees of freedom."""
    return math.erfc(math.sqrt(x / 2)) + math.sqrt(2 * x / math.pi) * math.exp(-x / 2)


def pair_test(a: list, b: list, pairs: int, q: float) -> dict:
    """Chi-square of the four outcomes of a pair against independence at the known drop rate ``q``."""
    both, first, second = counts([u & v for u, v in zip(a, b, strict=True)], a, b)
    found = (both, first - both, second - both, pairs - first - second + both)
    k = 1 - q
    expected = (pairs * k * k, pairs * k * q, pairs * q * k, pairs * q * q)
    chi = sum((o - e) ** 2 / e for o, e in zip(found, expected, strict=True))
    return dict(pairs=pairs, chi_square=chi, p_value=chi_square_tail(chi))


def pairs(ns: Any, elements: int, p: float, bits: int, seed: int = SEED) -> dict[str, dict]:
    """:func:`pair_test` of neighbours of every kind; no element is in two pairs."""
    q, index = drop_rate(p, bits), samples_of(ns, elements)

    def mask(seed: int = seed, index: Any = index, step: int = 0, stream: int = 0) -> list:
        return list(cn.dropout_mask(FEATURES, p, cn.Key(seed, index, step), stream=stream, bits=bits))

    m, lanes = mask(), elements // FEATURES
    even, odd = mask(index=index * 2), mask(index=index * 2 + 1)
    return {
        "elements 2i, 2i+1": pair_test(m[0::2], m[1::2], lanes * (FEATURES // 2), q),
        "elements 2i+1, 2i+2": pair_test(m[1:-1:2], m[2::2], lanes * (FEATURES // 2 - 1), q),
        "samples 2n, 2n+1": pair_test(even, odd, elements, q),
        "steps 0, 1": pair_test(m, mask(step=1), elements, q),
        "streams 0, 1": pair_test(m, mask(stream=1), elements, q),
        "seeds s, s+1": pair_test(m, mask(seed=seed + 1), elements, q),
        "seeds s, s+2^32": pair_test(m, mask(seed=(seed + (1 << 32)) % (1 << 64)), elements, q),
    }


def stream_correlations(ns: Any, elements: int, p: float, bits: int, seed: int = SEED) -> dict:
    """Largest correlation between the masks of two dropouts of one network, times sqrt(elements): a standard score."""
    q, index = drop_rate(p, bits), samples_of(ns, elements)
    masks = [list(cn.dropout_mask(FEATURES, p, cn.Key(seed, index), stream=s, bits=bits)) for s in range(STREAMS)]
    scores = {}
    for i, j in itertools.combinations(range(STREAMS), 2):
        both, first, second = counts([u & v for u, v in zip(masks[i], masks[j], strict=True)], masks[i], masks[j])
        k = 1 - q
        scores[i, j] = (both - k * (first + second) + elements * k * k) / (k * q) / math.sqrt(elements)
    worst = max(scores, key=lambda ij: abs(scores[ij]))
    tail = math.erfc(abs(scores[worst]) / math.sqrt(2))
    return dict(
        streams=STREAMS,
        pairs=len(scores),
        elements=elements,
        worst_pair=list(worst),
        worst_score=scores[worst],
        rms_score=math.sqrt(sum(v * v for v in scores.values()) / len(scores)),
        p_value=1 - (1 - tail) ** len(scores),
    )


# ---- The word stream -----------------------------------------------------------------------------------------

#: Orders in which the words can be read: lane number -> (block, sample, step, stream, seed).
ORDERS = {
    "layer": "all words of a layer of 64 features at 16 bits, sample after sample",
    "samples": "the first block of each sample, sample after sample",
    "steps": "the first block of one sample, step after step",
    "streams": "the first block of 8 dropouts, sample after sample",
    "seeds": "the first block of one sample, seed after seed",
}


def words(ns: Any, order: str, start: int, blocks: int, seed: int = SEED) -> np.ndarray:
    """The words of ``blocks`` consecutive blocks from block number ``start`` of an order on."""
    i = dr.arange(ns.UInt32, blocks) + dr.opaque(ns.UInt32, start)
    zero = i & 0
    low, high = zero + (seed & 0xFFFFFFFF), zero + (seed >> 32)
    counter, key = {
        "layer": lambda: ((i & 7, i >> 3, zero, zero), (low, high)),
        "samples": lambda: ((zero, i, zero, zero), (low, high)),
        "steps": lambda: ((zero, zero + 7, i, zero), (low, high)),
        "streams": lambda: ((zero, i >> 3, zero, i & 7), (low, high)),
        "seeds": lambda: ((zero, zero, zero, zero), (i, zero)),
    }[order]()
    out = cn.philox4x32(counter, key)
    dr.eval(out)
    return np.stack([w.numpy() for w in out], axis=1).ravel()


def reverse_bits(x: np.ndarray) -> np.ndarray:
    """TestU01 looks at the upper bits most; so the lower ones get their turn."""
    for shift, low in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        s, m = np.uint32(shift), np.uint32(low)
        x = ((x >> s) & m) | ((x & m) << s)
    return x


def stream(ns: Any, order: str, backwards: bool) -> Iterator[bytes]:
    """The words of an order without end."""
    for start in itertools.count(0, CHUNK // 4):
        part = words(ns, order, start, CHUNK // 4)
        yield (reverse_bits(part) if backwards else part).astype("<u4").tobytes()


def compile_smallcrush(folder: Path, prefix: Path | None) -> Path | None:
    """The program ``smallcrush``, or ``None`` where there is no compiler or no TestU01."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    program = folder / "smallcrush"
    options = []
    if prefix is not None:
        options += [f"-I{p}" for p in (prefix / "include", *(prefix / "include").glob("*-linux-gnu"))]
        options += [f"-L{p}" for p in (prefix / "lib", *(prefix / "lib").glob("*-linux-gnu"))]
    libraries = [f"-l:lib{name}.a" for name in ("testu01", "testu01probdist", "testu01mylib")]
    source = Path(__file__).with_name("smallcrush.c")
    command = [compiler, "-O2", str(source), *options, "-o", str(program), *libraries, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return program if done.returncode == 0 else None


def smallcrush(ns: Any, program: Path, order: str, backwards: bool) -> dict:
    """p-values of SmallCrush's 15 statistics over the stream of an order."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=output)
        assert process.stdin is not None
        sent = 0
        try:
            with contextlib.suppress(BrokenPipeError):  # it has read enough
                for part in stream(ns, order, backwards):
                    process.stdin.write(part)
                    sent += len(part) // 4
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        if process.wait():
            raise RuntimeError("smallcrush failed")
        output.seek(0)
        lines = output.read().split("\nRESULTS\n")[1].splitlines()
    values = {name: float(value) for name, value in (line.split("\t") for line in lines)}
    suspect = {name: v for name, v in values.items() if not 0.001 < v < 0.999}
    return dict(order=order, bits_reversed=backwards, words=sent, p_values=values, suspect=suspect)


# ---- All of it -----------------------------------------------------------------------------------------------


def measure(ns: Any, elements: int, program: Path | None) -> dict[str, Any]:
    """Every table, in a form that JSON can hold."""
    rows = [(p, bits) for bits in BITS for p in (0.1, 0.5)]
    return dict(
        elements=elements,
        seed=SEED,
        keep_rates=keep_rates(ns, elements),
        pairs=[dict(bits=bits, p=p, tests=pairs(ns, elements, p, bits)) for p, bits in rows],
        streams=[dict(bits=bits, p=p, **stream_correlations(ns, elements, p, bits)) for p, bits in rows],
        smallcrush=None
        if program is None
        else [smallcrush(ns, program, order, back) for order in ORDERS for back in (False, True)],
    )


def tables(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["| bits | p | drop rate | kept | standard errors |", "|---|---|---|---|---|"]
    for r in results["keep_rates"]:
        lines.append(
            f"| {r['bits']} | {r['p']} | {r['drop_rate']:.6f} | {r['kept']} of {r['elements']} | "
            f"{r['standard_errors']:+.2f} |"
        )
    names = list(results["pairs"][0]["tests"])
    lines += ["", "| bits | p | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for r in results["pairs"]:
        lines.append(
            f"| {r['bits']} | {r['p']} | " + " | ".join(f"{r['tests'][n]['p_value']:.3f}" for n in names) + " |"
        )
    lines += ["", "| bits | p | pairs of streams | largest correlation x sqrt(elements) | p-value |", "|---" * 5 + "|"]
    for r in results["streams"]:
        lines.append(f"| {r['bits']} | {r['p']} | {r['pairs']} | {r['worst_score']:+.2f} | {r['p_value']:.3f} |")
    if results["smallcrush"]:
        lines += [
            "",
            "| words | bits | smallest and largest of 15 p-values | outside 0.001 .. 0.999 |",
            "|---" * 4 + "|",
        ]
        for r in results["smallcrush"]:
            values = r["p_values"].values()
            lines.append(
                f"| {ORDERS[r['order']]} | {'reversed' if r['bits_reversed'] else 'as drawn'} | {min(values):.4f}, "
                f"{max(values):.4f} | {', '.join(r['suspect']) or 'none'} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="auto", help="llvm, cuda or auto")
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="folder of the result files")
    parser.add_argument("--log2-elements", type=int, default=28, help="of each measurement; at most 30")
    parser.add_argument("--testu01", type=Path, default=None, help="prefix of TestU01, such as /usr/local")
    args = parser.parse_args()
    if not 8 <= args.log2_elements <= 30:
        parser.error("--log2-elements must be in [8, 30]")
    backend = cn.backend.require(args.backend)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        program = compile_smallcrush(Path(folder), args.testu01)
        results = measure(cn.backend.namespace(backend), 1 << args.log2_elements, program)
    results["seconds"] = time.perf_counter() - start
    print(tables(results))
    if program is None:
        print("\nSmallCrush was left out: there is no C compiler, or no TestU01.")
    print(f"\n{results['seconds']:.0f} s, {os.fspath(common.write('statistics', backend, results, args.out))}")


if __name__ == "__main__":
    main()
