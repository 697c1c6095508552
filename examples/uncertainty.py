"""How sure is a field where it has seen nothing? Monte Carlo dropout on a curve with a gap in its data.

A small network with dropout learns 300 noisy points of a curve, none of them with x in (-0.5, 1.5). Its mean and
standard deviation over 256 dropout masks come from one kernel (``cn.mc_dropout``). The precision tau of the noise is
fitted by likelihood on points that were held out (Gal and Ghahramani 2016, section 4), with one Gaussian per point.
Other held-out points then tell whether the error bars are true: 68.3 % of them should lie within one predictive
standard deviation and 95.4 % within two. In the gap the deviation of the model grows, but it need not be large enough:
dropout knows how far its networks disagree, not what none of them thought of.

    python examples/uncertainty.py [figure.png]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import drjit as dr
import numpy as np

import coopnet as cn

LIMITS, GAP, NOISE = (-3.0, 3.0), (-0.5, 1.5), 0.08
STEPS, BATCH, MASKS = 3000, 512, 256


def curve(x: np.ndarray) -> np.ndarray:
    return 0.4 * np.sin(2.5 * x) + 0.15 * x


def points(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Noisy points of the curve outside the gap."""
    x = rng.uniform(*LIMITS, 4 * n)
    x = x[(x < GAP[0]) | (x > GAP[1])][:n]
    return x, curve(x) + rng.normal(0, NOISE, len(x))


def coordinate(ns: Any, x: np.ndarray) -> Any:
    """What the field is asked at: the encoding's longest period, 1, is wider than the figure."""
    return ns.Float32((x / 8).astype(np.float32))


def train(backend: str, x: np.ndarray, y: np.ndarray) -> cn.NeuralField:
    ns = cn.backend.namespace(backend)
    network = cn.MLP(out_features=1, width=128, depth=2, activation="relu", dropout=0.1, bias=True)
    field = cn.NeuralField(cn.Sinusoidal(2, in_features=1), network).build(backend, seed=1)
    table_x, table_y = coordinate(ns, x), ns.Float32(y.astype(np.float32))

    def batch(key: cn.Key) -> tuple[list, list]:
        (u,) = cn.uniform(1, key, ns.Float32, BATCH)
        i = dr.minimum(ns.UInt32(u * len(x)), len(x) - 1)
        return [dr.gather(ns.Float32, table_x, i)], [dr.gather(ns.Float32, table_y, i)]

    cn.fit(field, batch, STEPS, lr=cn.training.cosine(3e-3, STEPS), progress=sys.stderr.isatty())
    return field


def predict(field: cn.NeuralField, backend: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the model at ``x``. One index for all: each mask is one function of x."""
    ns = cn.backend.namespace(backend)
    key = cn.Key(seed=0, index=0)
    mean, deviation = cn.mc_dropout(field, [coordinate(ns, x)], key, MASKS)
    return mean[0].numpy().astype(np.float64), deviation[0].numpy().astype(np.float64)


def fit_precision(mean: np.ndarray, deviation: np.ndarray, y: np.ndarray) -> float:
    """The tau of the most likely y, distributed as N(mean, deviation^2 + 1 / tau)."""
    noise = np.geomspace(1e-3, 1, 400)
    variance = deviation[:, None] ** 2 + noise**2
    likelihood = -0.5 * (np.log(variance) + (y - mean)[:, None] ** 2 / variance).sum(axis=0)
    return float(1 / noise[np.argmax(likelihood)] ** 2)


def draw(path: str, x: np.ndarray, mean: np.ndarray, model: np.ndarray, total: np.ndarray, data: Any) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)  # no display needed
    axes = figure.add_subplot()
    axes.axvspan(*GAP, color="0.93", lw=0, label="no data")
    axes.fill_between(x, mean - 2 * total, mean + 2 * total, color="#1f6fb4", alpha=0.18, lw=0, label="±2σ, predictive")
    axes.fill_between(x, mean - 2 * model, mean + 2 * model, color="#1f6fb4", alpha=0.3, lw=0, label="±2σ, model")
    axes.plot(x, curve(x), "k--", lw=1, label="truth")
    axes.plot(x, mean, color="#1f6fb4", lw=1.8, label="mean")
    axes.plot(*data, ".", color="#d9702b", ms=3.5, label="data")
    axes.set(xlabel="x", ylabel="y", xlim=(x[0], x[-1]), ylim=(-1.2, 1.4))
    axes.legend(loc="upper left", fontsize=8, ncols=3, frameon=False)
    axes.set_title(f"Monte Carlo dropout, {MASKS} masks", fontsize=10)
    figure.savefig(path)


def study(backend: str) -> tuple[cn.NeuralField, Any, float, dict[str, float]]:
    """A trained field, its data, the fitted tau, and how far the error bars can be trusted."""
    rng = np.random.default_rng(0)
    data, validation, test = points(300, rng), points(300, rng), points(2000, rng)
    field = train(backend, *data)
    tau = fit_precision(*predict(field, backend, validation[0]), validation[1])

    mean, deviation = predict(field, backend, test[0])
    error = abs(test[1] - mean) / np.sqrt(deviation**2 + 1 / tau)
    x = np.linspace(*LIMITS, 600)
    mean, deviation = predict(field, backend, x)
    gap = (x > GAP[0]) & (x < GAP[1])
    inside = abs(curve(x) - mean) < 2 * np.sqrt(deviation**2 + 1 / tau)
    found = {
        "noise": tau**-0.5,
        "within 1 sigma": np.mean(error < 1),
        "within 2 sigma": np.mean(error < 2),
        "sigma in the gap": deviation[gap].mean(),
        "sigma on the data": deviation[~gap].mean(),
        "curve in the gap within 2 sigma": np.mean(inside[gap]),
    }
    return field, data, tau, {name: float(value) for name, value in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("figure", nargs="?", default="uncertainty.png")
    path = parser.parse_args().figure
    backend = cn.backend.require("auto")
    field, data, tau, found = study(backend)
    print(f"fitted noise 1/sqrt(tau) = {found['noise']:.3f}; the data have {NOISE}")
    print(f"held-out points within 1 sigma: {100 * found['within 1 sigma']:.1f} %  (68.3 % if calibrated)")
    print(f"held-out points within 2 sigma: {100 * found['within 2 sigma']:.1f} %  (95.4 % if calibrated)")
    ratio = found["sigma in the gap"] / found["sigma on the data"]
    print(f"model sigma in the gap: {found['sigma in the gap']:.3f}, {ratio:.1f} times that on the data")
    print(f"of the curve in the gap, {100 * found['curve in the gap within 2 sigma']:.0f} % lies within 2 sigma")

    x = np.linspace(LIMITS[0] - 0.5, LIMITS[1] + 0.5, 600)
    mean, deviation = predict(field, backend, x)
    draw(path, x, mean, deviation, np.sqrt(deviation**2 + 1 / tau), data)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
