"""Training inside a symbolic loop: time and gradient error of banks and of Dr.Jit's built-in accumulation.

A network with positive activations and gradients of one sign, the worst case for sums in half precision, is evaluated
four times in a ``dr.while_loop`` over a batch and differentiated through it; the loop is frozen. Errors are relative to
float64 sums: the exact gradient of a batch of n equal samples is n times that of one.
"""

from __future__ import annotations

import common

import coopnet as cn  # isort: skip
import drjit as dr
import numpy as np

TURNS = 4


def main() -> None:
    args = common.arguments(__doc__ or "")
    ns = cn.backend.namespace(args.backend)
    rows = []
    for width, log2 in ((32, 16), (32, 20), (64, 16), (64, 20)):
        if args.backend == "llvm" and log2 > 16:
            continue
        for path in ("builtin", "banks"):
            rows.append(measure(ns, args.backend, width, 1 << log2, path))
            row = rows[-1]
            print(
                f"w={width} batch 2^{log2} {path:8} {row['milliseconds']:9.3f} ms   error {row['error']:.1e}",
                flush=True,
            )
    print("written to", common.write("scopes", args.backend, rows, args.out))


def measure(ns, backend: str, width: int, samples: int, path: str) -> dict:
    # outputs and gradients of a mean: small enough for half precision at every batch size
    field = cn.NeuralField(None, cn.MLP(4, 1, width=width, depth=3, activation="softplus")).build(backend)
    weights = field["network.weights"]

    def gradient(x: list, scale):
        dr.disable_grad(weights)
        dr.enable_grad(weights)

        def turn(i, total):
            return i + 1, total + field([v + 0.01 * ns.Float(i) for v in x])[0]

        start = (ns.UInt32(0), dr.zeros(ns.Float, dr.width(x)))
        total = dr.while_loop(start, lambda i, t: i < TURNS, turn, mode="symbolic", max_iterations=-1)[1]
        dr.backward(total * scale)
        return dr.grad(weights)

    def inputs(n: int) -> list:
        x = [dr.full(ns.Float, 0.1 * (k + 1), n) + ns.Float(0) for k in range(4)]
        dr.eval(x)
        return x

    with cn.gradient_path("builtin"):
        one = gradient(inputs(1), ns.Float(1)).numpy().astype(np.float64)
    frozen = dr.freeze(gradient)
    x, scale = inputs(samples), dr.opaque(ns.Float, 2**12 / samples)

    def run():
        result = frozen(x, scale)
        dr.eval(result)
        dr.sync_thread()
        return result

    with cn.gradient_path(path):
        got = run().numpy().astype(np.float64) / 2**12
        seconds = common.median_seconds(run, 7, 2)
    error = float(np.abs(got - one).max() / np.abs(one).max())
    return {"width": width, "samples": samples, "path": path, "milliseconds": 1e3 * seconds, "error": error}


if __name__ == "__main__":
    main()
