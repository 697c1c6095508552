"""What ``sphere_trace`` compiles again: calls that differ in one thing from the first, one after the other.

    python benchmarks/trace_shapes.py --backend llvm

Kernels that are compiled and their operations; milliseconds are those of the compiler, on a machine that may be busy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import common

common.empty_caches()

import drjit as dr  # noqa: E402 - the caches are to be empty before

import coopnet as cn  # noqa: E402


def main() -> None:
    args = common.arguments(
        __doc__,
        width={"type": int, "default": 32},
        depth={"type": int, "default": 3},
        rays={"type": int, "default": 1000},
    )
    ns, n = cn.backend.namespace(args.backend), args.rays
    network = cn.MLP(3, 1, width=args.width, depth=args.depth, activation="softplus", bias=True)
    field = cn.NeuralField(None, network).build(args.backend)
    half = field.precision == "half"

    def traced(n: int = n, one_origin: bool = False, **options: Any) -> Any:
        u = dr.linspace(ns.Float, -1, 1, n)
        o, d = ns.Array3f(0.5, 0.5, -1), ns.Array3f(0.2 * u, 0.1 * u, 1)
        o = o if one_origin else o + ns.Array3f(dr.zeros(ns.Float, n))
        dr.eval(o, d)
        return cn.render.sphere_trace(field, o, d, **{"t_max": 3.0} | options)

    def gradient() -> None:
        dr.enable_grad(*field.values())
        hits = traced()
        dr.backward(dr.sum(dr.select(hits.hit, hits.t, 0)) * (128 if half else 1))
        dr.eval([dr.grad(v) for v in field.values()])
        dr.disable_grad(*field.values())

    many, masks = dr.opaque(ns.Float, 3, n), dr.arange(ns.UInt32, n) >= 0
    dr.eval(masks)
    calls: dict[str, Callable[[], Any]] = {
        "first": traced,
        "the same again": traced,
        "another number of rays": lambda: traced(n=n - 223),
        "another steps, eps or bisections": lambda: traced(steps=64, eps=1e-2, bisections=5),
        "another number as t_max": lambda: traced(t_max=2.0),
        "one origin for all rays": lambda: traced(one_origin=True),
        "t_max for each ray": lambda: traced(t_max=many),
        "active for each ray": lambda: traced(active=masks),
        "a single ray": lambda: traced(n=1),
        "bisections=0": lambda: traced(bisections=0),
        "silhouette": lambda: traced(silhouette=0.01),
        "t alone evaluated": lambda: traced().t,
        "then the normal alone": lambda: traced().normal,
        "gradient": gradient,
    }
    rows = []
    for name, call in calls.items():
        with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
            dr.eval(call())
            dr.sync_thread()
            kernels = [k for k in dr.kernel_history() if "cache_hit" in k and not k["cache_hit"]]
        operations = sum(k["operation_count"] for k in kernels)
        spent = sum(k["codegen_time"] + k["backend_time"] for k in kernels)
        rows.append({"call": name, "kernels": len(kernels), "operations": operations, "compile_ms": spent})
        print(f"{name:36} {len(kernels)} kernels, {operations:6} operations, {spent:8.0f} ms", file=sys.stderr)
    common.write("trace-shapes", args.backend, {"width": args.width, "depth": args.depth, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
