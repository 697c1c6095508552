"""The gradient of wide networks by their input on a GPU: evaluating activations again, or the next way in the table.

    python benchmarks/input_gradient.py --backend cuda --networks relu,128,3,0 softplus,64,3,0

A network is named by activation, width, hidden layers and rate of dropout; it has 3 inputs and one output. Times are
those of all kernels of a frozen call of ``field(p)`` and ``field.value_and_grad(p)``, medians.
``difference`` is the 99th percentile of the difference between both gradients, relative to the largest component: in
half precision, few samples lie on the other side of a kink.
"""

from __future__ import annotations

import importlib
from unittest import mock

import common
import numpy as np

import coopnet as cn  # isort: skip
import drjit as dr

from coopnet.engine import limits
from coopnet.engine.strategies import INPUT_GRADIENTS, Row

NETWORKS = (
    "relu,64,3,0", "softplus,64,3,0", "relu,96,3,0", "relu,128,3,0", "relu,128,5,0", "relu,128,3,0.1", "silu,128,2,0",
)  # fmt: skip
WAY = "activations again"
#: Ways, by the table that is in place of the engine's.
TABLES = {
    "next": tuple(row for row in INPUT_GRADIENTS if row.strategy != WAY),
    "again": (Row(WAY, lambda s: not s.stacked, "the benchmark asks for it"), *INPUT_GRADIENTS),
}


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        networks=dict(nargs="+", default=list(NETWORKS), metavar="NETWORK"),
        log2_samples=dict(type=int, default=20),
    )
    ns, rows = cn.backend.namespace(args.backend), []
    p = ns.Array3f(*[dr.linspace(ns.Float, 0.1 + 0.1 * k, 0.9, 1 << args.log2_samples) for k in range(3)])
    dr.eval(p)
    for name in args.networks:
        activation, width, depth, rate = name.split(",")
        net = cn.MLP(3, 1, width=int(width), depth=int(depth), activation=activation, dropout=float(rate))
        with mock.patch.object(limits, "LONG_VECTOR", 8):  # all layers know where entries of their transposes lie
            field = cn.NeuralField(None, net).build(args.backend, seed=1)
        key = cn.Key(3) if float(rate) else None
        rows.append({"network": name, "samples": 1 << args.log2_samples, **measure(field, p, key)})
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    print("written to", common.write("input-gradient", args.backend, rows, args.out))


def measure(field, p, key) -> dict[str, float]:
    def timed(program):
        frozen = dr.freeze(program)

        def once():
            dr.eval(result := frozen(field, p))
            dr.sync_thread()
            return result

        return common.kernel_times(once, 9, 2), once()

    found = {"call": timed(lambda field, p: field(p, key))[0]["kernel_ms"]}
    gradients = []
    for way, table in TABLES.items():
        with mock.patch.object(importlib.import_module("coopnet.engine.evaluate"), "INPUT_GRADIENTS", table):
            times, (_, gradient) = timed(lambda field, p: field.value_and_grad(p, key))
        gradients.append(np.array(gradient))
        found[way] = times["kernel_ms"]
    difference = np.quantile(np.abs(gradients[1] - gradients[0]), 0.99)
    return found | {"difference": float(difference / np.abs(gradients[0]).max())}


if __name__ == "__main__":
    main()
