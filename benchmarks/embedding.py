"""Look-ups in an embedding and the gradient of its table: sorted sums, atomics, and sums of integers.

``fixed point`` rounds contributions to 64-bit integers, whose atomic sums have no order, as the hash grid does: the
other way to gradients that are bitwise reproducible.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

import common
import numpy as np

import coopnet as cn  # isort: skip
import drjit as dr

from coopnet.jit.kinds import nested_type
from coopnet.kernels.segment_sum import sort, sum_rows, sum_rows_fixed


def atomics(rows: list, index: object, count: int) -> object:
    leaf, width = type(rows[0]), len(rows)
    sums = dr.zeros(leaf, count * width)
    dr.scatter_reduce(dr.ReduceOp.Add, sums, nested_type(leaf)(rows), index)
    return sums


WAYS = {"sorted": sum_rows, "fixed point": sum_rows_fixed, "atomics": atomics}


def numbers(text: str) -> list[int]:
    return [int(v) for v in text.split(",")]


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        log2_batches=dict(type=numbers, default=[14, 18, 20], help="such as 14,18"),
        widths=dict(type=numbers, default=[8, 32], help="such as 8,32"),
        counts=dict(type=numbers, default=[1, 100, 10_000, 1_000_000], help="rows, such as 100,10000"),
    )
    ns = cn.backend.namespace(args.backend)
    results = []

    def measure(run: Callable[[], object]) -> dict[str, float]:
        """Medians of wall time, and of processor time, which other programs on the machine disturb less."""

        def wait() -> None:
            dr.eval(run())
            dr.sync_thread()

        spent = []

        def timed() -> None:
            start = time.process_time()
            wait()
            spent.append(time.process_time() - start)

        wall = common.median_seconds(timed, 9)
        return {"ms": 1e3 * wall, "cpu_ms": 1e3 * statistics.median(spent[2:])}

    for log2_batch in args.log2_batches:
        n = 1 << log2_batch
        for width in args.widths:
            for count in args.counts:
                rng = np.random.default_rng(0)
                known = rng.integers(0, count, n).astype(np.uint32)
                dy = rng.normal(size=(width, n)).astype(np.float32)
                ids, rows = ns.UInt32(known), [ns.Float(v) for v in dy]
                layer = cn.Embedding(count, width, check=False).alloc(ns.TensorXf)
                dr.eval(ids, rows, layer["data"])
                exact = np.zeros((count, width))
                np.add.at(exact, known, dy.T)
                row: dict = {"log2_batch": log2_batch, "width": width, "count": count}
                row["look up"] = measure(functools.partial(layer, ids))
                row["sort"] = measure(functools.partial(sort, ids, count))
                for name, way in WAYS.items():
                    run = functools.partial(way, rows, ids, count)
                    error = abs(run().numpy().reshape(count, width) - exact).max() / abs(exact).max()
                    row[name] = measure(run) | {"error": float(error)}
                results.append(row)
    print(f"{'batch':>6} {'width':>5} {'rows':>8}   ms, (processor ms), relative error")
    for r in results:
        cells = "".join(
            f"  {name} {r[name]['ms']:.2f} ({r[name]['cpu_ms']:.2f})" for name in ("look up", "sort", *WAYS)
        )
        errors = " ".join(f"{r[name]['error']:.0e}" for name in WAYS)
        print(f"  2^{r['log2_batch']:2} {r['width']:5} {r['count']:8} {cells}  {errors}")
    print("written to", common.write("embedding", args.backend, results, args.out))


if __name__ == "__main__":
    main()
