"""What sphere tracing costs beside the evaluations of the network that it consists of.

    python benchmarks/tracing.py --backend cuda

Rays of a camera meet a ball that a network has learned. *Trace* is ``sphere_trace`` without its normals; *bare* is a
loop that evaluates the same field as often in every lane, along the same way, and does nothing else; *full* and *bare
full* also ask for value and gradient at the end, as normals do. Peers: *by hand*, plain sphere tracing in a symbolic
loop around a ``drjit.nn`` network, twenty lines as users write them, and *evaluated*, the same with evaluated loops.
They have no refinement, over-relaxation or gradients. All take turns in one run; ratios are medians of those within a
turn.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import common
import drjit as dr
import drjit.nn as drnn

import coopnet as cn

RADIUS, T_MIN, T_MAX, STEPS, EPS = 0.3, 1.0, 2.0, 128, 1e-3

#: Fields by name.
FIELDS: dict[str, Callable[[], cn.NeuralField]] = {
    "network 32x3": lambda: cn.NeuralField(None, cn.MLP(3, 1, width=32, depth=3, activation="relu", bias=True)),
    "network 32x3, tanh": lambda: cn.NeuralField(None, cn.MLP(3, 1, width=32, depth=3, activation="tanh", bias=True)),
    "hash grid, 32x2": lambda: cn.NeuralField(
        cn.HashGrid(3, n_levels=8, hashmap_size=2**15), cn.MLP(out_features=1, width=32, depth=2)
    ),
}


def learned(name: str, backend: str, steps: int) -> cn.NeuralField:
    """A field that is the distance of a ball. Coordinates are those of the unit cube: hash grids know no others."""
    ns = cn.backend.namespace(backend)
    field = FIELDS[name]().build(backend, seed=1)

    def batch(key: cn.Key) -> tuple:
        p = cn.uniform(3, key, ns.Float, 1 << 12)
        return p, [dr.norm(ns.Array3f(*p) - 0.5) - RADIUS]

    cn.fit(field, batch, steps, lr=5e-3, progress=False)
    return field


class Scene:
    """A camera's rays, and the programs that are compared: each returns what is to be evaluated."""

    def __init__(self, field: cn.NeuralField, backend: str, size: int):
        self.ns = ns = cn.backend.namespace(backend)
        self.field, self.rays = field, size * size
        x, y = dr.meshgrid(dr.linspace(ns.Float, -1, 1, size), dr.linspace(ns.Float, -1, 1, size))
        self.o, self.d = ns.Array3f(0.5, 0.5, -1), ns.Array3f(0.25 * x, 0.25 * y, 1)
        self.inverse = dr.rcp(dr.norm(self.d))
        dr.make_opaque(self.o, self.d, self.inverse)
        found = self.full()
        # so that the bare loop looks at the same places of grids
        way = dr.select(found.hit, found.t, T_MAX) - T_MIN
        self.step = way / dr.maximum(ns.Float(found.evaluations), 1)
        dr.eval(found, self.step)
        self.found, self.evaluations = found, found.evaluations

    def full(self) -> cn.render.SurfaceHit:
        return cn.render.sphere_trace(self.field, self.o, self.d, T_MAX, STEPS, EPS, t_min=T_MIN)

    def trace(self) -> Any:
        found = self.full()
        return found.t, found.hit  # Dr.Jit leaves out of the kernel what nobody asks for

    def bare(self) -> Any:
        def body(i: Any, t: Any) -> tuple:
            return i + 1, t + self.step + 1e-6 * self.field(self.o + t * self.d)[0]

        start = (self.ns.UInt32(0), dr.full(self.ns.Float, T_MIN, self.rays))
        return dr.while_loop(start, lambda i, t: i < self.evaluations, body)[1]

    def bare_full(self) -> Any:
        t = self.bare()
        return t, self.field.value_and_grad(self.o + t * self.d)

    def by_hand(self, mode: str = "symbolic") -> Any:
        work = self.ns.Float16 if self.field.precision == "half" else self.ns.Float

        def distance(p: Any) -> Any:
            x = drnn.CoopVec([work(v) for v in p])
            for layer in self.field.network.layers:
                x = drnn.matvec(layer.weights, x, layer.bias) if isinstance(layer, drnn.Linear) else dr.maximum(x, 0)
            return self.ns.Float(next(iter(x)))

        def body(i: Any, t: Any, hit: Any, active: Any) -> tuple:
            f = distance(self.o + t * self.d)
            hit |= f < EPS
            t = dr.select(hit, t, t + f * self.inverse)
            return i + 1, t, hit, active & ~hit & (t < T_MAX) & (i < STEPS)

        no, yes = (dr.full(self.ns.Bool, v, self.rays) for v in (False, True))
        start = (dr.zeros(self.ns.UInt32, self.rays), dr.full(self.ns.Float, T_MIN, self.rays), no, yes)
        self.turns, t, hit, _ = dr.while_loop(start, lambda *s: s[-1], body, mode=mode)
        return t, hit

    def evaluated(self) -> Any:
        return self.by_hand("evaluated")


def measure(name: str, backend: str, size: int, training: int, repeat: int) -> dict[str, Any]:
    scene = Scene(learned(name, backend, training), backend, size)
    programs = {p: getattr(scene, p) for p in ("trace", "bare", "full", "bare_full")}
    if name == "network 32x3":
        programs |= {"by_hand": scene.by_hand, "evaluated": scene.evaluated}
    times: dict[str, list[float]] = {p: [] for p in programs}
    kernels = {}
    for turn in range(repeat + 2):
        for p, program in programs.items():
            with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
                dr.kernel_history_clear()
                start = time.perf_counter()
                dr.eval(program())
                dr.sync_thread()
                wall = 1e3 * (time.perf_counter() - start)
                history = dr.kernel_history([dr.KernelType.JIT])
            kernels[p] = len(history)
            if turn > 1:  # the first ones compile
                times[p].append(sum(k["execution_time"] for k in history) if p != "evaluated" else wall)
    count = scene.evaluations.numpy()
    turns = {}
    if "by_hand" in programs:
        dr.eval(scene.by_hand())
        turns = {"by_hand_evaluations_per_ray": float(scene.turns.numpy().mean())}
    warp = 32 if backend == "cuda" else 16
    groups = count[: len(count) // warp * warp].reshape(-1, warp)
    return {
        "field": name, "rays": scene.rays, "hits": float(scene.found.hit.numpy().mean()),
        "evaluations_per_ray": float(count.mean()), "most_evaluations": int(count.max()),
        "evaluations_per_lane": float(groups.max(axis=1).mean()), "lanes": warp, **turns,
        "ms": {p: statistics.median(v) for p, v in times.items()}, "kernels": kernels,
        "trace_over_bare": _ratio(times, "trace", "bare"), "full_over_bare_full": _ratio(times, "full", "bare_full"),
        **{f"{p}_over_trace": _ratio(times, p, "trace") for p in ("by_hand", "evaluated") if p in times},
    }  # fmt: skip


def _ratio(times: dict[str, list[float]], a: str, b: str) -> float:
    return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))


def main() -> None:
    args = common.arguments(
        __doc__,
        size=dict(type=int, help="of the image, in pixels; 256 on a CPU and 1024 on a GPU if not given"),
        repeat=dict(type=int, default=15, help="turns that count"),
        quick=dict(action="store_true", help="small, to see that it runs"),
        fields=dict(nargs="+", default=list(FIELDS), choices=list(FIELDS), metavar="FIELD"),
    )
    size = args.size or (32 if args.quick else 1024 if args.backend == "cuda" else 256)
    rows = []
    for name in args.fields:
        row = measure(name, args.backend, size, 30 if args.quick else 300, 2 if args.quick else args.repeat)
        rows.append(row)
        print(
            f"{name:24} trace / bare {row['trace_over_bare']:.3f}, with normals {row['full_over_bare_full']:.3f}, "
            f"{row['evaluations_per_ray']:.1f} evaluations per ray",
            file=sys.stderr,
        )
    print(common.write("tracing", args.backend, rows, args.out))


if __name__ == "__main__":
    main()
