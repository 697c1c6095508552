"""Two passes that need the same dropout masks: a primal pass without a graph, and an adjoint pass that evaluates again.

Path replay and gradient checkpointing keep nothing between the passes. The first computes the residual of a loss; the
second evaluates the field once more and differentiates it. With the same key in both, every mask is drawn again, and
the gradient is that of one differentiated pass. With another key in the second pass, as from a generator that has gone
on meanwhile, the gradient is an unbiased one of another loss: the squared error of the mean over masks, without the
variance over masks. Training still finds the mean, but nothing keeps the deviation over masks small.

    python examples/replayed_adjoint.py [figure.png]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import drjit as dr
import numpy as np
from drjit.opt import Adam

import coopnet as cn

P, WIDTH, DEPTH = 0.2, 64, 3
SAMPLES, STEPS, MASKS, LR = 1 << 12, 600, 64, 1e-2
#: The ways to train: whether the adjoint pass has the key of the primal pass.
WAYS = {"same masks": True, "other masks": False}


def truth(p: Any) -> Any:
    return dr.sin(6 * p[0]) * dr.cos(5 * p[1])


def make(backend: str, seed: int, dropout: float = P) -> cn.NeuralField:
    network = cn.MLP(2, 1, width=WIDTH, depth=DEPTH, activation="silu", bias=True, dropout=dropout)
    return cn.NeuralField(None, network).build(backend, seed=seed)


def replay(field: cn.NeuralField, p: Any, n: int, primal: cn.Key, adjoint: cn.Key) -> None:
    """Gradients of the mean squared error of ``n`` samples, in two passes."""
    with dr.suspend_grad():
        residual = field(p, primal)[0] - truth(p)
    dr.backward(field(p, adjoint)[0] * residual * (2 / n))


def differentiate(field: cn.NeuralField, p: Any, key: cn.Key) -> None:
    """The same in one pass."""
    dr.backward(dr.mean(dr.square(field(p, key)[0] - truth(p))))


def train(backend: str, seed: int, same: bool, steps: int = STEPS) -> cn.NeuralField:
    ns = cn.backend.namespace(backend)
    field = make(backend, seed)
    opt = Adam(lr=LR)
    opt.update(field)

    @dr.freeze
    def step(field: cn.NeuralField, opt: Adam, i: Any) -> None:
        field.update(opt)
        p = cn.uniform(2, cn.Key(100 + seed, step=i), ns.Float, SAMPLES)
        key = cn.Key(200 + seed, step=i)
        replay(field, p, SAMPLES, key, key if same else cn.Key(300 + seed, step=i))
        opt.step()

    for i in range(steps):
        rate = LR * (1 - i / steps)
        opt.set_learning_rate({name: dr.opaque(ns.Float, rate) for name in opt})
        step(field, opt, dr.opaque(ns.UInt32, i))
    field.update(opt)
    return field


def quality(field: cn.NeuralField, backend: str, masks: int = MASKS, samples: int = 1 << 14) -> dict[str, float]:
    """Errors of the field without dropout and of its mean over masks, and its deviation over masks."""
    p = cn.uniform(2, cn.Key(9), cn.backend.namespace(backend).Float, samples)
    (mean,), (deviation,) = cn.mc_dropout(field, p, cn.Key(4), samples=masks)

    def rms(error: Any) -> float:
        return float(dr.sqrt(dr.mean(dr.square(error)))[0])

    return {
        "rms_without_key": rms(field(p)[0] - truth(p)),
        "rms_of_mean": rms(mean - truth(p)),
        "deviation": float(dr.mean(deviation)[0]),
    }


def along(field: cn.NeuralField, backend: str, x: np.ndarray, y: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation along a line. One index for all points: each mask is one function."""
    ns = cn.backend.namespace(backend)
    p = [ns.Float(x.astype(np.float32)), ns.Float(np.full(x.shape, y, np.float32))]
    (mean,), (deviation,) = cn.mc_dropout(field, p, cn.Key(4, index=0), samples=MASKS)
    return mean.numpy(), deviation.numpy()


def draw(path: str, fields: dict[str, cn.NeuralField], backend: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure = Figure(figsize=(8.4, 3.7), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)  # no display needed
    x, y = np.linspace(0, 1, 400), 0.5
    titles = ("same masks in both passes", "other masks in the adjoint pass")
    panels = figure.subplots(1, 2, sharey=True)
    for axis, field, title, color in zip(panels, fields.values(), titles, ("#0072B2", "#D55E00"), strict=True):
        mean, deviation = along(field, backend, x, y)
        axis.fill_between(x, mean - deviation, mean + deviation, color=color, alpha=0.28, lw=0)
        axis.plot(x, mean, color=color, lw=2)
        axis.plot(x, np.sin(6 * x) * np.cos(5 * y), color="black", ls="--", lw=1.2)
        axis.set_title(title, fontsize=12)
        axis.set(xlabel=f"x, along the line y = {y:g}", xlim=(0, 1))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3, linewidth=0.6)
    panels[0].set_ylabel("value of the field")
    drawn = (
        Line2D([], [], color="black", ls="--", lw=1.2, label="truth"),
        Line2D([], [], color="0.4", lw=2, label=f"mean over {MASKS} masks"),
        Patch(facecolor="0.75", lw=0, label="± one standard deviation over masks"),
    )
    figure.legend(handles=drawn, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("figure", nargs="?", default="replayed_adjoint.png")
    path = parser.parse_args().figure
    backend = cn.backend.require("auto")
    fields = {}
    for way, same in WAYS.items():
        fields[way] = train(backend, 1, same)
        found = quality(fields[way], backend)
        print(f"{way} in the adjoint pass: deviation over masks {found['deviation']:.2f},", end=" ")
        print(f"RMS error of the mean {found['rms_of_mean']:.3f}, without dropout {found['rms_without_key']:.3f}")
    draw(path, fields, backend)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
