"""Errors of values and of gradients with respect to coordinates, in single and in half precision.

Networks at their initial weights on random points of the unit square, against ``coopnet.reference`` in double
precision with the same (rounded) weights: medians of several networks, since much depends on how the outputs of one
happen to cancel. And the audit of the first. CUDA has half precision only.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

import common
import numpy as np

import coopnet as cn  # isort: skip
import drjit as dr

from coopnet import reference

ACTIVATIONS = ("relu", "tanh", "softplus", "silu", "sine")
OCTAVES, WIDTH, DEPTH = 6, 64, 3


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        activations=dict(nargs="+", default=list(ACTIVATIONS), choices=ACTIVATIONS, metavar="NAME"),
        samples=dict(type=int, default=20_000, help="points"),
        networks=dict(type=int, default=5, help="seeds of initial weights"),
    )
    x = np.random.default_rng(0).random((2, args.samples)).astype(np.float32)
    p = cn.backend.namespace(args.backend).Array2f(x)
    dr.make_opaque(p)
    rows = []
    audit: Any = None
    for activation in args.activations:
        for precision in ("half",) if args.backend == "cuda" else ("single", "half"):
            found = []
            for seed in range(args.networks):
                network = cn.MLP(-1, 1, width=WIDTH, depth=DEPTH, activation=activation)
                field = cn.NeuralField(cn.Sinusoidal(OCTAVES, in_features=2), network)
                field = field.build(args.backend, precision, seed)
                found.append(errors(field, p, x.astype(np.float64), activation))
                if audit is None and precision == "half":
                    audit = field.audit(p)
            each = {name: [e[name] for e in found] for name in ("output", "gradient")}
            row: dict[str, Any] = {"activation": activation, "precision": precision, "samples": args.samples}
            row |= {name: statistics.median(values) for name, values in each.items()} | {"each": each}
            rows.append(row)
            print(f"{activation:8} {precision:6}   output {row['output']:.1e}   gradient {row['gradient']:.1e}")
    results = {"errors": rows, "audit": dataclasses.asdict(audit)}
    print(audit)
    print("written to", common.write("precision", args.backend, results, args.out))


def errors(field: Any, p: Any, x: np.ndarray, activation: str) -> dict[str, float]:
    """Root mean square errors, relative to the root mean square of the reference."""
    weights = [field.matrix(f"layers.{2 * i}.weights").astype(np.float64) for i in range(DEPTH + 1)]
    features = reference.sinusoidal(x, OCTAVES)
    slopes = []
    for axis in np.eye(2):
        moved = reference.sinusoidal_jvp(x, axis[:, None] * np.ones_like(x), OCTAVES)
        y, dy = reference.mlp_jvp(weights, features, moved, activation)
        slopes.append(dy[0])
    value, gradient = field.value_and_grad(p)
    return {"output": relative(value[0].numpy(), y[0]), "gradient": relative(gradient.numpy(), np.stack(slopes))}


def relative(got: np.ndarray, exact: np.ndarray) -> float:
    return float(np.sqrt(np.mean((got.astype(np.float64) - exact) ** 2) / np.mean(exact**2)))


if __name__ == "__main__":
    main()
