"""What goes wrong on one process, one after the other in the same group: each tells the error it had, or how it ended.

A process that does not come to where the others wait would hang them here, and whatever comes next.
"""

import os
import signal
import sys
from pathlib import Path

# before Dr.Jit, which takes the first GPU that it sees
from common import BACKEND, RANK, batch, hashed, indexed, make_field, ns, tell  # isort: skip

import drjit as dr

import coopnet as cn
from coopnet.training.distributed import facts

signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
folder = Path(sys.argv[2])
group = cn.training.TorchGroup(BACKEND, timeout=60)
bad = RANK == 1


class Boom(Exception):
    pass


def boom(*_):
    raise Boom("no such file")


def at(step, do=boom, rank=1):
    """A learning rate whose function does something on one process at a step."""

    def rate(number):
        if number == step and rank == RANK:
            do()
        return 1e-2

    return rate


def second_call():
    calls = []

    def draw(key):
        calls.append(key)
        return boom() if bad and len(calls) == 2 else batch(key)

    return draw


def other_size(key):
    x, y = cn.uniform(2, key, ns.Float, 300)
    return [x, y], [x, y]


def scaled(draw, factor):
    def other(key):
        points, targets = draw(key)
        return points, [factor * v for v in targets]

    return other


def not_a_number(key):
    points, targets = batch(key)
    hole = (dr.arange(ns.UInt32, 501) == 400) & (key.step >= 5)
    return points, [dr.select(hole, dr.nan, targets[0]), targets[1]]


def single(key):
    return [ns.Float(0.5), ns.Float(0.5)], [ns.Float(0), ns.Float(0)]


def version():
    if bad:
        facts.__globals__["__version__"] = "0.0.1"


metrics = iter(range(100))
cases = {
    "argument": dict(lr=-1.0 if bad else 1e-2),
    "learning rate": dict(lr=at(7)),
    "learning rate in the last step": dict(lr=at(19)),
    "batch in the first place": dict(batch=boom if bad else batch),
    "batch when recorded": dict(batch=second_call()),
    "penalty": dict(penalty=boom if bad else None),
    "metric": dict(metric=boom if RANK == 0 else (lambda field: 1.0), metric_every=5),
    "learning rate before a metric": dict(lr=at(3), metric=lambda field: 1.0, metric_every=5),
    "metric after a failure of process 0": dict(lr=at(3, rank=0), metric=lambda field: 1.0, metric_every=5),
    "no folder": dict(checkpoint=folder / "none" / "run.safetensors"),
    "seed": dict(seed=RANK),
    "steps": dict(steps=20 + RANK),
    "field": dict(field=make_field(width=16 + 16 * RANK)),
    "weights": dict(field=make_field(seed=RANK)),
    "clip_norm": dict(clip_norm=1.0 + RANK),
    "batch size": dict(batch=other_size if bad else batch),
    "data": dict(batch=scaled(batch, 1.0 + 0.1 * RANK)),
    "data that are rounded otherwise": dict(batch=scaled(batch, 1.0 + 1e-5 * RANK)),
    "data by number": dict(batch=cn.training.by_index(501)(scaled(indexed, 1.0 + 0.1 * RANK))),
    "too small": dict(batch=single),
    "version": dict(before=version),
    "Ctrl-C": dict(lr=at(5, lambda: os.kill(os.getpid(), signal.SIGINT)), steps=100_000),
    "divergence": dict(batch=not_a_number, steps=30),
    "well": {},
}
for name, options in cases.items():
    options = {"field": make_field(), "batch": batch, "steps": 20, "progress": False, **options}
    options.pop("before", lambda: None)()
    field = options["field"]
    try:
        result = cn.fit(distributed=group, **options)
    except Exception as error:
        found = [f"{type(error).__name__}: {error}", hashed(field.values())]
    else:
        found = [result.steps, result.stopped, hashed(field.values())]
    facts.__globals__["__version__"] = cn.__version__
    tell([name, found])
