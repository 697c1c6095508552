"""Nanoseconds per sample of every layer by itself: the times in the site's table of layers.

Kernel times of evaluating a layer of the size that ``scripts/pages/layers.py`` gives it, which reads its inputs from
memory and writes its outputs there, and of the gradients of their sum of squares with respect to inputs and parameters,
evaluation included. Frozen, 2^17 samples, single precision on LLVM, half on CUDA. All layers are measured in turn, so
that what else the machine does strikes all alike; a row has the fastest call, and by how much the median was slower.
"""

from __future__ import annotations

import functools
import statistics
import sys
from pathlib import Path

import common

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

SAMPLES = 1 << 17


def main() -> None:
    args = common.arguments(
        __doc__,
        rounds=dict(type=int, default=9),
        layers=dict(nargs="*", help="some, to a file of their own; all by default"),
    )
    import drjit as dr
    import drjit.nn as drnn
    from pages import layers

    import coopnet as cn

    ns = cn.backend.namespace(args.backend)
    single, key = ns.Float16 if args.backend == "cuda" else ns.Float, cn.Key(1)
    names = args.layers or list(layers.EXAMPLES)
    wide = max(layers.EXAMPLES[name][1] for name in names)
    columns = [single(cn.uniform(1, cn.Key(2, step=i), ns.Float, SAMPLES)[0]) for i in range(wide)]
    ids = [ns.UInt32(dr.arange(ns.UInt32, SAMPLES) * 2654435761 % 10_000)]
    dr.make_opaque(columns, ids)

    def call(name, layer, x):
        return list(layer(x if name in layers.IDS else drnn.CoopVec(*x), key))

    def gradients(name, layer, x):
        wanted = [v for v in (*(() if name in layers.IDS else x), *layer.values())]
        dr.enable_grad(wanted)
        dr.backward(sum((dr.square(v) for v in call(name, layer, x)), single(0)))
        return [dr.grad(v) for v in wanted]

    runs = {}
    for name in names:
        for what, function in (("forward_ns", call), ("backward_ns", gradients)):
            layer, n = layers.made(name, single)  # one that tracks gradients stays so
            x = ids if name in layers.IDS else [type(v)(v) for v in columns[:n]]
            frozen = dr.freeze(lambda layer, x, function=function, name=name: function(name, layer, x))
            runs[name, what] = functools.partial(frozen, layer, x)
    times: dict = {run: [] for run in runs}
    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
        for turn in range(3 + args.rounds):  # the first ones record and compile
            for run, function in runs.items():
                dr.kernel_history_clear()
                dr.eval(function())
                dr.sync_thread()
                spent = sum(k["execution_time"] for k in dr.kernel_history())
                times[run] += [1e6 * spent / SAMPLES] if turn >= 3 else []
    results = []
    for name in names:
        row: dict = {"layer": name}
        for what in ("forward_ns", "backward_ns"):
            row[what] = min(times[name, what])
            row[what.replace("ns", "spread")] = statistics.median(times[name, what]) / row[what] - 1
        print(row, flush=True)
        results.append(row)
    print(common.write("some-layers" if args.layers else "layers", args.backend, results, args.out))


if __name__ == "__main__":
    main()
