"""Does a field know what it has not seen? One that is learned on the left half of the unit square, by every method.

AUROC of the right half by the deviation, at 4,000 points: 1 if it is larger wherever no sample was, 0.5 if it knows
nothing. For a hash grid of 8 levels and for a sinusoidal encoding, before 2 layers of 32 units, over several seeds (of
weights, samples and masks). The ensemble's members are the fields of the next seeds.
"""

from __future__ import annotations

from typing import Any

import common
import drjit as dr
import numpy as np

import coopnet as cn

POINTS = 4000
ENCODINGS = {
    "sinusoidal": lambda: cn.Sinusoidal(4, in_features=2),
    "hash grid": lambda: cn.HashGrid(2, n_levels=8),
}


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        steps=dict(type=int, default=600),
        seeds=dict(type=int, default=3),
        members=dict(type=int, default=5),
        masks=dict(type=int, default=64),
        vertices=dict(type=int, default=16),
        log2_samples=dict(type=int, default=12),
        encodings=dict(nargs="+", default=list(ENCODINGS)),
    )
    ns = cn.backend.namespace(args.backend)
    rows = []
    for encoding in args.encodings:
        for seed in range(args.seeds):
            found = measure(ns, encoding, seed, args)
            rows += [{"encoding": encoding, "seed": seed, "method": name, "auroc": v} for name, v in found.items()]
            print(encoding, seed, {name: round(v, 3) for name, v in found.items()}, flush=True)
    print("written to", common.write("uncertainty-unseen", args.backend, rows, args.out))


def measure(ns: Any, encoding: str, seed: int, args: Any) -> dict[str, float]:
    """AUROC of every method."""

    def batch(key: Any) -> Any:
        x, y = cn.uniform(2, key, ns.Float, 1 << args.log2_samples)
        x = 0.5 * x
        return [x, y], [dr.sin(12 * x) * dr.cos(9 * y)]

    def trained(seed: int, dropout: float = 0.0) -> Any:
        network = cn.MLP(out_features=1, width=32, depth=2, dropout=dropout)
        field = cn.NeuralField(ENCODINGS[encoding](), network).build(args.backend, seed=seed)
        cn.fit(field, batch, args.steps, lr=5e-3, seed=seed, progress=False)
        return field

    x = np.random.default_rng(1).random((2, POINTS)).astype(np.float32)
    p, unseen = [ns.Float(v) for v in x], x[0] > 0.5
    fields = [trained(seed * args.members + i) for i in range(args.members)]
    posterior = cn.laplace(fields[0], batch, 16, seed=100 + seed)
    spatial = cn.laplace(fields[0], batch, 16, seed=100 + seed, spatial=args.vertices)
    deviations = {
        "dropout 0.1, masks": cn.mc_dropout(trained(seed, 0.1), p, cn.Key(seed), args.masks)[1],
        "posthoc_dropout, masks": cn.mc_dropout(
            cn.posthoc_dropout(fields[0], batch, seed=100 + seed, batches=4)[0], p, cn.Key(seed), args.masks
        )[1],
        "laplace, std": posterior.std(p),
        "laplace, draws": cn.mc_dropout(posterior, p, cn.Key(seed), args.masks)[1],
        "laplace of displacements, std": spatial.std(p),
        "laplace of displacements, draws": cn.mc_dropout(spatial, p, cn.Key(seed), args.masks)[1],
        f"ensemble of {args.members}": cn.ensemble(fields).std(p),
    }
    return {name: cn.auroc(value[0], unseen) for name, value in deviations.items()}


if __name__ == "__main__":
    main()
