"""A training step of ``coopnet.render.ray_march`` by each mode, against as many samples of the field trained plainly.

    python benchmarks/marching.py --backend cuda

``plain`` draws points and fits the four outputs to a function of them; the others draw rays and fit their color. All
use the same field, optimizer and number of samples, and take turns in one process. Steps are frozen, as in
``coopnet.fit``. ``memory`` is the peak beside what lay there before, of one gradient with more and more steps. It
counts arrays: what ``loop`` keeps of its steps lies in the memory of threads, and is not in it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import common
import drjit as dr
from drjit.opt import Adam

import coopnet as cn

PEERS = ("plain", "wide", "replay", "loop")
FIELDS: dict[str, Callable[[], Any]] = {
    "hash grid, 64 wide": lambda: cn.NeuralField(
        cn.HashGrid(3, n_levels=8, hashmap_size=2**15), cn.MLP(out_features=4, width=64, depth=2)
    ),
    "bare, 33 wide": lambda: cn.NeuralField(None, cn.MLP(3, 4, width=33, depth=2, bias=True)),
    "bare, 64 wide": lambda: cn.NeuralField(None, cn.MLP(3, 4, width=64, depth=3)),
}
STEPS = 64
#: Samples as a power of two, and repetitions.
SIZES, REPEAT = {"llvm": 17, "cuda": 20}, 9
#: Rays of the memory rows, and their steps.
RAYS, MEMORY_STEPS = {"llvm": 1 << 10, "cuda": 1 << 13}, (16, 32, 64, 128, 256)


def rays(ns: Any, key: Any, n: int) -> tuple[Any, Any]:
    """Origins around a box from 0 to 1, and directions through it; distances 0 to 1 lie inside."""
    u = cn.uniform(6, key, ns.Float, n)
    o = ns.Array3f(0.1 * u[0], u[1], u[2])
    return o, ns.Array3f(0.9 + 0 * u[0], u[3], u[4]) - ns.Array3f(0, o.y, o.z)


def losses(ns: Any, field: Any, peer: str, key: Any, samples: int, steps: int) -> Any:
    """The mean loss of a batch of ``samples`` evaluations."""
    if peer == "plain":
        p = ns.Array3f(cn.uniform(3, key, ns.Float, samples))
        y = field(p)
        return dr.mean(sum(dr.square(v - dr.sin(6 * p.x + i)) for i, v in enumerate(y)))
    n = samples // steps
    o, d = rays(ns, key, n)
    seen = cn.render.ray_march(field, o, d, 0.0, 1.0, steps, key=key, mode=peer)
    return dr.mean(dr.squared_norm(seen.color - ns.Array3f(0.2, 0.5, 0.7)))


class Trainer:
    """A field in training, one step at a time, frozen or not."""

    def __init__(self, backend: str, name: str, peer: str, samples: int, frozen: bool):
        self.ns = ns = cn.backend.namespace(backend)
        self.field = FIELDS[name]().build(backend, seed=1)
        self.opt = Adam(lr=1e-3, params=self.field)
        scale = 128.0 if self.field.precision == "half" else 1.0
        self.number = 0

        def step(field: Any, opt: Any, number: Any) -> Any:
            field.update(opt)
            loss = losses(ns, field, peer, cn.Key(0, step=number), samples, STEPS)
            dr.backward(loss * scale)
            opt.step()
            return dr.detach(loss)

        self.step = dr.freeze(step) if frozen else step

    def take(self) -> float:
        """One step; milliseconds."""
        start = time.perf_counter()
        loss = self.step(self.field, self.opt, dr.opaque(self.ns.UInt32, self.number))
        dr.eval(loss, self.opt)
        dr.sync_thread()
        self.number += 1
        return 1e3 * (time.perf_counter() - start)


def measure(backend: str, name: str, peers: list[str], log2_samples: int, frozen: bool, repeat: int) -> list[dict]:
    trainers = {peer: Trainer(backend, name, peer, 1 << log2_samples, frozen) for peer in peers}
    times: dict[str, list[float]] = {peer: [] for peer in peers}
    for turn in range(repeat + 3):
        for peer, trainer in trainers.items():
            ms = trainer.take()
            if turn >= 3:
                times[peer].append(ms)
    rows = []
    for peer, found in times.items():
        row = {"field": name, "peer": peer, "frozen": frozen, "samples": 1 << log2_samples, "steps": STEPS}
        rows.append(row | {"wall_ms": statistics.median(found), "best_ms": min(found)})
        rows[-1]["to_plain"] = rows[-1]["wall_ms"] / statistics.median(times[peers[0]])
        rows[-1]["best_to_plain"] = rows[-1]["best_ms"] / min(times[peers[0]])
        print(f"{name:20} {peer:8} {rows[-1]['wall_ms']:9.2f} ms, {rows[-1]['to_plain']:.2f} of plain", file=sys.stderr)
    return rows


def peak_bytes(backend: str, name: str, peer: str, n: int, steps: int) -> int:
    """Memory that a gradient takes beside what was there."""
    ns = cn.backend.namespace(backend)
    which = dr.JitBackend.CUDA if backend == "cuda" else dr.JitBackend.LLVM
    field = FIELDS[name]().build(backend, seed=1)
    for v in field.values():
        dr.enable_grad(v)

    def gradient() -> None:
        dr.backward(losses(ns, field, peer, cn.Key(0), n * steps, steps))
        dr.eval([dr.grad(v) for v in field.values()])
        dr.sync_thread()

    gradient()
    dr.flush_malloc_cache()
    dr.detail.malloc_clear_statistics()
    before = dr.detail.malloc_watermark(which)
    gradient()
    return dr.detail.malloc_watermark(which) - before


def main() -> None:
    args = common.arguments(
        __doc__,
        quick=dict(action="store_true", help="few samples, once"),
        fields=dict(nargs="+", default=list(FIELDS), choices=list(FIELDS), metavar="FIELD"),
        peers=dict(nargs="+", default=list(PEERS), choices=list(PEERS), metavar="PEER"),
        log2_samples=dict(type=int),
        unfrozen=dict(action="store_true", help="steps as plain calls, too"),
    )
    log2, repeat = (10, 2) if args.quick else (args.log2_samples or SIZES[args.backend], REPEAT)
    training, memory = [], []
    for name in args.fields:
        for frozen in (True, False) if args.unfrozen else (True,):
            training += measure(
                args.backend, name, ["plain", *(p for p in args.peers if p != "plain")], log2, frozen, repeat
            )
    results = {"training": training, "memory": memory}
    for peer in args.peers:
        for steps in MEMORY_STEPS[:2] if args.quick else MEMORY_STEPS:
            if peer != "plain":
                n = 32 if args.quick else RAYS[args.backend]
                used = peak_bytes(args.backend, args.fields[0], peer, n, steps)
                memory.append({"field": args.fields[0], "peer": peer, "rays": n, "steps": steps, "peak_bytes": used})
                print(f"{peer:8} {steps:4} steps {used / 2**20:9.2f} MiB", file=sys.stderr)
                common.write("marching", args.backend, results, args.out)  # the last ones take minutes
    print(common.write("marching", args.backend, results, args.out))


if __name__ == "__main__":
    main()
