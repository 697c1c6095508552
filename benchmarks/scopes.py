"""Training inside a symbolic loop: time and gradient error of banks and of Dr.Jit's built-in accumulation.

A network with positive activations and gradients of one sign, the worst case for sums in half precision, is evaluated
in a ``dr.while_loop`` over a batch, and differentiated through it, or by ``dr.backward`` in each of its turns; the loop
is frozen. Errors are distances over lengths of the gradient of all weights, and the largest of one weight over the
largest gradient, against the sums in single precision that spill and multiply takes of the same turns outside a loop.
"""

from __future__ import annotations

import contextlib

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
        for inside, turns in ((False, TURNS), (True, 1), (True, TURNS)):
            for path in ("builtin", "banks"):
                rows.append(measure(ns, args.backend, width, 1 << log2, path, inside, turns))
                row = rows[-1]
                print(
                    f"w={width} batch 2^{log2} {turns} turns, differentiated {row['differentiated']:11} {path:8} "
                    f"{row['milliseconds']:9.3f} ms   error {row['error']:.1e}, at most {row['largest_error']:.1e}",
                    flush=True,
                )
    print("written to", common.write("scopes", args.backend, rows, args.out))


def measure(ns, backend: str, width: int, samples: int, path: str, inside: bool, turns: int) -> dict:
    # outputs and gradients of a mean: small enough for half precision at every batch size
    field = cn.NeuralField(None, cn.MLP(4, 1, width=width, depth=3, activation="softplus")).build(backend)
    weights = field["network.weights"]

    def gradient(x: list, scale):
        dr.disable_grad(weights)
        dr.enable_grad(weights)

        def turn(i, total):
            y = field([v + 0.01 * ns.Float(i) for v in x])[0]
            if inside:
                dr.backward(y * scale)
                y = dr.detach(y)
            return i + 1, total + y

        start = (ns.UInt32(0), dr.zeros(ns.Float, dr.width(x)))
        banks = cn.gradient_banks(field) if path == "banks" and inside else contextlib.nullcontext()
        with banks:
            bound = None if inside else -1
            total = dr.while_loop(start, lambda i, t: i < turns, turn, mode="symbolic", max_iterations=bound)[1]
            if not inside:
                dr.backward(total * scale)
        return dr.grad(weights), total

    def exact() -> np.ndarray:
        """The sum that all paths are after."""
        total = 0
        for i in range(turns):
            dr.disable_grad(weights)
            dr.enable_grad(weights)
            with cn.gradient_path("spill"):
                dr.backward(field([v + 0.01 * i for v in x])[0] * scale)
            total = total + dr.grad(weights).numpy().astype(np.float64)
        return total

    rng = np.random.default_rng(0)
    x, scale = [ns.Float(rng.uniform(0.1, 1, samples)) for _ in range(4)], dr.opaque(ns.Float, 2**12 / samples)
    dr.eval(x)
    want, frozen = exact(), dr.freeze(gradient)

    def run():
        result, total = frozen(x, scale)
        dr.eval(result, total)
        dr.sync_thread()
        return result

    # in the loop, the path by itself is one buffer
    with cn.gradient_path("auto" if inside else path):
        got = run().numpy().astype(np.float64)
        seconds = common.median_seconds(run, 7, 2)
    off = got - want
    errors = {
        "error": float(np.linalg.norm(off) / np.linalg.norm(want)),
        "largest_error": float(np.abs(off).max() / np.abs(want).max()),
    }
    return {
        "width": width, "samples": samples, "path": path, "turns": turns,
        "differentiated": "in the loop" if inside else "through it", "milliseconds": 1e3 * seconds, **errors,
    }  # fmt: skip


if __name__ == "__main__":
    main()
