"""What Python spends on tracing one dropout, and networks with and without it.

Tracing is what a program pays on every call outside ``dr.freeze``, whatever the batch size.
"""

from __future__ import annotations

import common

import coopnet as cn  # isort: skip
import drjit as dr
import drjit.nn as drnn


def main() -> None:
    args = common.arguments(__doc__ or "")
    ns = cn.backend.namespace(args.backend)
    leaf = ns.Float16 if args.backend == "cuda" else ns.Float
    key = cn.Key(1, step=2).traced(ns.UInt32)
    rows = []

    def measure(name: str, width: int, bits: int | None, run: object) -> None:
        rows.append(
            {"what": name, "width": width, "bits": bits, "microseconds": 1e6 * common.median_seconds(run, 51, 9)}
        )  # type: ignore[arg-type]

    for width in (16, 32, 64, 128):
        x = [dr.opaque(leaf, i, 32) for i in range(width)]
        vector = drnn.CoopVec(x)
        measure("pack and unpack", width, None, lambda x=x: list(drnn.CoopVec(x)))
        for bits in (8, 16, 32):
            measure("dropout of a CoopVec", width, bits, lambda v=vector, b=bits: cn.dropout(v, 0.1, key, bits=b))
            measure("dropout of a list", width, bits, lambda x=x, b=bits: cn.dropout(x, 0.1, key, bits=b))
    for width in (32, 64):
        for p in (0.0, 0.1):
            field = cn.NeuralField(None, cn.MLP(16, 3, width=width, depth=3, dropout=p)).build(args.backend)
            x = [dr.opaque(ns.Float, i, 32) for i in range(16)]
            measure(f"field of depth 3, dropout {p}", width, 16, lambda f=field, x=x: f(x, key))
    print(f"{'what':32} {'width':>5} {'bits':>4} {'us':>8}")
    for row in rows:
        print(f"{row['what']:32} {row['width']:5} {row['bits'] or '':>4} {row['microseconds']:8.1f}")
    print("written to", common.write("trace", args.backend, rows, args.out))


if __name__ == "__main__":
    main()
