"""Products over samples by NumPy's BLAS right after a kernel of Dr.Jit's, on its threads and on others.

    python benchmarks/products.py

``(n, w)^T (n, w)`` in single precision, which is what the weight gradient of a layer takes. Dr.Jit's threads look for
work for 20 ms after a kernel, and other threads have to share the processor with them: ``before`` is the time with no
kernel before, for comparison.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import common
import drjit as dr
import numpy as np

import coopnet as cn
from coopnet.engine.products import blas
from coopnet.jit.native import pool

REPEAT = 15


def measure(ns: Any, samples: int, width: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    a, b = (rng.random((samples, width), np.float32) for _ in range(2))
    x = dr.arange(ns.Float, 1 << 20)

    def timed(kernel: bool) -> float:
        if kernel:
            dr.eval(dr.sin(x))
            dr.sync_thread()
        else:
            time.sleep(0.05)  # until Dr.Jit's threads sleep
        start = time.perf_counter()
        blas([(a, b)])
        return 1e3 * (time.perf_counter() - start)

    row: dict[str, Any] = {"samples": samples, "width": width}
    library = pool._library
    for name, found in (("drjit", library), ("others", lambda: None)):
        pool._library = found
        for kernel in (True, False):
            times = [timed(kernel) for _ in range(REPEAT)][2:]
            row[f"{name}_{'after_ms' if kernel else 'before_ms'}"] = float(np.median(times))
    pool._library = library
    return row


def main() -> None:
    args = common.arguments(__doc__ or "", quick=dict(action="store_true", help="small: does it run?"))
    ns, rows = cn.backend.namespace("llvm"), []
    for log2, width in [(12, 16)] if args.quick else [(14, 64), (17, 16), (17, 32), (17, 64), (17, 128)]:
        rows.append(measure(ns, 1 << log2, width))
        print({k: round(v, 2) for k, v in rows[-1].items()}, file=sys.stderr)
    print(common.write("products", "llvm", rows, args.out))


if __name__ == "__main__":
    main()
