"""Trains fields in several ways, and tells losses, metrics, and hashes of weights and averages."""

import os
import sys

# before Dr.Jit, which takes the first GPU that it sees
from common import BACKEND, batch, hashed, indexed, make_field, ns, tell  # isort: skip

import drjit as dr
from support.pipes import PipeGroup

import coopnet as cn

CHUNKS = int(os.environ.get("CHUNKS", "4") or 0) or None
group = {
    "none": lambda: None,
    "auto": lambda: "auto",
    "exact": lambda: cn.training.TorchGroup(BACKEND, chunks=CHUNKS),
    "alone": lambda: cn.training.Group(chunks=CHUNKS),
    "pipes": lambda: PipeGroup(os.environ["SOCKET"], chunks=CHUNKS),
}[sys.argv[2]]()


def eikonal(field, drawn, key):
    value = field(drawn[0], key)
    return dr.square(value[0] - drawn[1][0]) + dr.square(value[1])


def noisy(key):
    """A batch that overflows half precision now and then."""
    points, targets = batch(key)
    return points, [targets[0] * dr.select(key.step % 4 == 1, ns.Float(1e6), 1), targets[1]]


def half():
    network = cn.MLP(out_features=2, width=16, depth=2, dropout=0.1)
    return cn.NeuralField(cn.Sinusoidal(3, in_features=2), network).build(BACKEND, "half")


def penalty(field):
    return 1e-3 * cn.training.l2_penalty(field)


def metric(field):
    y = field([ns.Float(0.1, 0.7, 0.3), ns.Float(0.2, 0.4, 0.9)])[0]
    return -dr.sum(dr.square(y)).numpy()[0]


def interrupted(field):
    """Ctrl-C as a callback sees it, on the one process that calls this, at step 6."""
    calls.append(0)
    if len(calls) == 2:
        raise KeyboardInterrupt
    return 0.0


calls = []
cases = {
    "plain": (make_field, batch, dict(penalty=penalty, clip_norm=0.5, weight_decay=0.01)),
    "indexed": (make_field, indexed, dict(penalty=penalty, clip_norm=0.5, weight_decay=0.01)),
    "objective": (lambda: make_field(grid=False), batch, dict(objective=eikonal)),
    "patience": (make_field, batch, dict(metric=metric, metric_every=3, patience=2)),
    "products": (lambda: make_field(width=64), cn.training.by_index(1 << 15)(indexed.__wrapped__), dict(loss="l1")),
    "interrupt": (make_field, batch, dict(metric=interrupted, metric_every=3)),
    "overflow": (half, noisy, dict(multipliers={"layers.0": 0.5})),
}
for name in os.environ.get("CASES", " ".join(cases)).split():
    make, draw, options = cases[name]
    field = make()
    ema = cn.training.EMA(field, 0.9)
    result = cn.fit(field, draw, 12, lr=1e-2, ema=ema, progress=False, distributed=group, **options)
    tell(
        {
            "case": name,
            "losses": result.losses,
            "metrics": result.metrics,
            "ends": [result.steps, result.stopped, result.skipped],
            "weights": hashed(field.values()),
            "average": hashed(ema.average.values()),
        }
    )
