"""Evaluations of networks of growing depth on the CPU: how fast are they once their code exceeds a cache?

    PYTHONPATH=. python benchmarks/code_size.py --backend llvm

The networks are 16 -> w -> ... -> w -> 3 with ReLU and no biases, in a frozen function with unrolled products, which
have an instruction or two for each entry of a matrix, and one thread. ``code_bytes`` are those of the kernel, in whole
pages of memory, and ``cache_bytes`` is the size of the first-level cache of instructions. ``gflops`` counts two
operations for each multiplication. ``wall_ms`` is of the fastest of many calls. Each target has a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import common

#: Width, deepest network, samples, seconds for each, and the targets: Haswell has 8 lanes, Skylake-X 16.
WIDTH, DEPTHS, SAMPLES, SECONDS = 32, 8, 1 << 14, 2.0
TARGETS = ("haswell", "skylake-avx512")


def code() -> int:
    """Bytes of memory with code that belongs to no file."""
    found = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, *rest = line.split()
        if "x" in rights and len(rest) < 4:
            start, stop = (int(part, 16) for part in span.split("-"))
            found += stop - start
    return found


def cache_bytes() -> int | None:
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if (index / "type").read_text().strip() == "Instruction":
            return int((index / "size").read_text().strip().removesuffix("K")) << 10
    return None


def child(target: str) -> None:
    """Print a row for each depth, as JSON."""
    common.empty_caches()
    import drjit as dr
    from drjit.llvm.ad import Float

    import coopnet as cn
    from coopnet.engine import limits
    from coopnet.jit.native.core import set_llvm_target

    lanes = common.TARGETS[target][0]
    set_llvm_target(target, lanes)
    dr.set_thread_count(1)
    limits.UNROLLED_EVALUATED = {lanes: (1 << 20, 1 << 20)}
    x = cn.uniform(16, cn.Key(0), Float, SAMPLES)
    dr.eval(x)
    for depth in range(1, DEPTHS + 1):
        field = cn.NeuralField(None, cn.MLP(16, 3, width=WIDTH, depth=depth)).build("llvm", seed=1)
        for name in field:
            dr.disable_grad(field[name])
        evaluate = dr.freeze(lambda field, x: field(x))
        before = code()
        dr.eval(evaluate(field, x))
        dr.sync_thread()
        size = code() - before
        times, end = [], time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            start = time.perf_counter()
            dr.eval(evaluate(field, x))
            dr.sync_thread()
            times.append(time.perf_counter() - start)
        multiplications = 16 * WIDTH + (depth - 1) * WIDTH**2 + 3 * WIDTH
        row = {"target": target, "width": WIDTH, "depth": depth, "multiplications": multiplications}
        row |= {"code_bytes": size, "cache_bytes": cache_bytes(), "wall_ms": 1e3 * min(times)}
        print(json.dumps(row | {"gflops": 2e-9 * multiplications * SAMPLES / min(times)}), flush=True)


def main() -> None:
    args = common.arguments(__doc__, child=dict(choices=TARGETS, help="measure this one"))
    if args.child is not None:
        return child(args.child)
    rows = []
    for target in TARGETS:
        command = [sys.executable, __file__, "--backend", args.backend, "--child", target]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows += [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    print(*rows, sep="\n")
    print(common.write("code-size", args.backend, rows, args.out))


if __name__ == "__main__":
    main()
