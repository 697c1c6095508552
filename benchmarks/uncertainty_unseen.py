"""Does a field know what it has not seen? One that is learned on the left half of the unit square, by every method.

AUROC of the right half by the deviation, at 4,000 points: 1 if it is larger wherever no sample was, 0.5 if it knows
nothing. For a hash grid of 8 levels and for a sinusoidal encoding, before 2 layers of 32 units, over several seeds (of
weights, samples and masks). The ensemble's members are the fields of the next seeds.

Besides, a radiance field is learned from rays along the third axis of the unit cube through the same half, and rays
through all of it are told apart: by the distance that places along them may move, weighted as their light is, and that
of a place without data for what is left of it.
"""

from __future__ import annotations

from typing import Any

import common
import drjit as dr
import numpy as np

import coopnet as cn

POINTS = 4000
BINS = 8  #: samples of a ray
ENCODINGS = {
    "sinusoidal": lambda n: cn.Sinusoidal(4, in_features=n),
    "hash grid": lambda n: cn.HashGrid(n, n_levels=8),
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
            found = measure(ns, encoding, seed, args) | along_rays(ns, encoding, seed, args)
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
        field = cn.NeuralField(ENCODINGS[encoding](2), network).build(args.backend, seed=seed)
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


def along_rays(ns: Any, encoding: str, seed: int, args: Any) -> dict[str, float]:
    """AUROC of the places' posterior for rays through a radiance field that was learned from one half of them."""

    def rays(x: Any, y: Any) -> Any:
        return ns.Array3f(x, y, 0), ns.Array3f(0, 0, 1)

    def batch(key: Any) -> Any:
        x, y = cn.uniform(2, key, ns.Float, (1 << args.log2_samples) // BINS)
        x = 0.5 * x
        color = 0.5 + 0.5 * dr.sin(12 * x) * dr.cos(9 * y)
        return rays(x, y), [color, color * color, 1 - color]

    def predict(field: Any, inputs: Any) -> Any:
        return cn.render.ray_march(field, *inputs, 0, 1, BINS, density="exp").color

    def objective(field: Any, drawn: Any, key: Any) -> Any:
        return sum(dr.square(a - b) for a, b in zip(predict(field, drawn[0]), drawn[1], strict=True))

    network = cn.MLP(out_features=4, width=32, depth=2)
    field = cn.NeuralField(ENCODINGS[encoding](3), network).build(args.backend, seed=seed)
    cn.fit(field, batch, args.steps, objective=objective, lr=5e-3, seed=seed, progress=False)
    places = cn.laplace(field, batch, 16, seed=100 + seed, spatial=args.vertices, predict=predict)

    def distances(p: Any, d: Any, key: Any, active: Any) -> Any:
        return dr.exp(dr.minimum(field(p)[0], 15)), [places.std(p)[0]] * 3

    x, y = np.random.default_rng(1).random((2, POINTS)).astype(np.float32)
    unknown = 3**0.5 / (args.vertices - 1)  # that of a vertex that no sample was near
    seen = cn.render.ray_march(distances, *rays(ns.Float(x), ns.Float(y)), 0, 1, BINS, background=unknown)
    return {"laplace of displacements, along rays": cn.auroc(seen.color.x, x > 0.5)}


if __name__ == "__main__":
    main()
