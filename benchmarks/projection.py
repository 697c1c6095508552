"""What ``SparseProjection`` costs: of tensors, of separate arrays, and unrolled where few entries are not zero.

Kernel times of the projection and of its transpose, by sample, and what is spent on machine code, from empty caches.
"""

from __future__ import annotations

from typing import Any

import common

common.empty_caches()

import coopnet as cn  # noqa: E402  # isort: skip
import drjit as dr  # noqa: E402


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        large=dict(nargs=2, type=int, default=[4096, 256], help="features in and out"),
        small=dict(nargs=2, type=int, default=[256, 32], help="the same where entries are unrolled"),
        log2_samples=dict(type=int, default=10),
    )
    rows = []
    cases = [(args.large, density, kind) for density in (1 / 3, 1 / 64) for kind in ("tensor", "arrays")]
    cases += [(args.small, 1 / 8, kind) for kind in ("tensor", "arrays")]
    for (n_in, n_out), density, kind in cases:
        row = {"in_features": n_in, "out_features": n_out, "density": density, "input": kind}
        row |= {"samples": 1 << args.log2_samples}
        for transposed in (False, True):
            name = "transpose" if transposed else "project"
            row[name] = measure(args.backend, row, transposed)
            times = ", ".join(f"{k} {v:.4g}" for k, v in row[name].items())
            print(f"{n_in} -> {n_out}, density {density:.3f}, {kind:6} {name:9}: {times}", flush=True)
        rows.append(row)
    print("written to", common.write("projection", args.backend, rows, args.out))


def measure(backend: str, row: dict[str, Any], transposed: bool) -> dict[str, float]:
    ns = cn.backend.namespace(backend)
    layer = cn.SparseProjection(row["in_features"], row["out_features"], row["density"], seed=3)
    features, samples = row["out_features" if transposed else "in_features"], row["samples"]
    lane = dr.arange(ns.UInt32, features * samples)
    flat = ns.Float(lane % 1021) * 2**-10  # columns that differ
    dr.eval(flat)
    if row["input"] == "tensor":
        x: Any = ns.TensorXf(flat, (features, samples))
    else:
        x = [dr.gather(ns.Float, flat, dr.arange(ns.UInt32, samples) + i * samples) for i in range(features)]
        dr.eval(x)
        dr.sync_thread()

    def once() -> None:
        dr.eval(layer.transpose(x) if transposed else layer(x))
        dr.sync_thread()

    found = common.kernel_times(once, 9, 2)
    return found | {"microseconds_per_sample": 1e3 * found["kernel_ms"] / samples}


if __name__ == "__main__":
    main()
