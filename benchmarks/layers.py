"""Nanoseconds per sample of every layer by itself: the times in the site's table of layers.

Kernel times of evaluating a layer of the size that ``scripts/pages/layers.py`` gives it, which reads its inputs from
memory and writes its outputs there, and of the gradients of their sum of squares with respect to inputs and parameters,
evaluation included. Frozen, 2^17 samples, the fastest of nine calls, single precision on LLVM, half on CUDA.
"""

from __future__ import annotations

import sys
from pathlib import Path

import common

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

SAMPLES = 1 << 17


def main() -> None:
    args = common.arguments(__doc__)
    import drjit as dr
    import drjit.nn as drnn
    from pages import layers

    import coopnet as cn

    ns = cn.backend.namespace(args.backend)
    single = ns.Float16 if args.backend == "cuda" else ns.Float

    def best(run):
        times = []
        with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
            for _ in range(12):
                dr.kernel_history_clear()
                run()
                dr.sync_thread()
                times.append(sum(k["execution_time"] for k in dr.kernel_history()))
        return 1e6 * min(times[3:]) / SAMPLES

    results = []
    for name in layers.EXAMPLES:
        layer, n = layers.made(name, single)
        ids = name in layers.IDS
        key = cn.Key(1)
        x = [ns.UInt32(dr.arange(ns.UInt32, SAMPLES) * 2654435761 % 10_000)] if ids else None
        x = x or [single(cn.uniform(1, cn.Key(2, step=i), ns.Float, SAMPLES)[0]) for i in range(n)]
        dr.make_opaque(x)

        def call(layer, x, key=key, ids=ids):
            return list(layer(x if ids else drnn.CoopVec(*x), key))

        def gradients(layer, x, call=call, ids=ids):
            wanted = [v for v in (*(() if ids else x), *layer.values())]
            dr.enable_grad(wanted)
            dr.backward(sum((dr.square(v) for v in call(layer, x)), single(0)))
            return [dr.grad(v) for v in wanted]

        forward, backward = dr.freeze(call), dr.freeze(gradients)
        row = {"layer": name, "forward_ns": best(lambda f=forward, a=layer, b=x: dr.eval(f(a, b)))}
        row["backward_ns"] = best(lambda f=backward, a=layer, b=x: dr.eval(f(a, b)))
        print(row, flush=True)
        results.append(row)
    print(common.write("layers", args.backend, results, args.out))


if __name__ == "__main__":
    main()
