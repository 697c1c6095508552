"""The gradient of a grid's parameters by atomics: one copy of each level, several, and nobody waiting.

    python benchmarks/grid_gradient.py --backend cuda
    python benchmarks/grid_gradient.py --backend llvm --quick

``sweep``: the kernel that adds, with many plans of copies: one kernel for all of them, which reads where copies stand.
They stand one behind the other (``behind``), or those of an entry beside each other (``beside``), and lanes take turns
at them, or warps do (``by warp``). Without contention: ``apart`` gives each level 2^20 entries, more than ever wait for
each other; ``none`` leaves out the levels that the rule copies. ``gradient``: what coopnet does, with what clears the
copies and adds them up, and, where it adds to neighbours along the first axis together, what it does without that.
Whole steps are in ``whole_jobs.py`` and ``step_profile.py``.

Points are random, or ``coherent``: those of neighbouring pixels. Times are of kernels, medians; kernel caches are empty
at the start.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import common

common.empty_caches()

import drjit as dr  # noqa: E402  # isort: skip

import coopnet as cn  # noqa: E402
from coopnet.jit.kinds import nested_type  # noqa: E402
from coopnet.kernels import atomic_sums  # noqa: E402
from coopnet.kernels.grid import FeatureGrid, levels, scales  # noqa: E402

#: Coordinates, levels, vertices a side of the first, growth, most entries of a level: all with two features.
GRIDS = {
    "config_hash": (2, 16, 16, 1.5, 1 << 15),
    "small": (2, 8, 16, 2.0, 1 << 14),
    "3d": (3, 16, 16, 1.5, 1 << 19),
}
FEATURES = 2
#: Where copies stand, one level behind the other or those of an entry beside each other, and who takes which: lanes by
#: turns, or warps.
LAYOUTS = ("behind", "beside", "behind, by warp", "beside, by warp")
#: Plans beside the rule, by what they change of it.
VARIANTS: dict[str, dict[str, int]] = {
    **{f"each {each}": dict(each=each) for each in (4, 8, 16, 64, 128, 256)},
    **{f"most {most}": dict(most=most) for most in (8, 16, 32, 128, 256)},
}
#: Plans by hand, for 16 levels.
BY_HAND = {"32 8": [32] * 3 + [8] * 3 + [1] * 10, "64 16 4": [64] * 3 + [16] * 3 + [4] * 10}
#: Room that no plan of the sweep exceeds, in bytes: more than the rule's, to see what that costs.
ROOM = 32 << 20
#: Entries of a level that threads don't wait for.
APART = 1 << 20


def make(name: str, module: Any) -> FeatureGrid:
    dimension, count, base, growth, most = GRIDS[name]
    found = levels(dimension, scales(count, base, growth), 8, most)
    data = dr.opaque(module.Float, 0, FEATURES * found[-1].end)
    return FeatureGrid(data, found, dimension, FEATURES)


def draw(grid: FeatureGrid, samples: int, coherent: bool) -> tuple[list, list]:
    """Points, and cotangents of the features, in memory."""
    single, uint32 = grid.dtype, dr.uint32_array_t(grid.dtype)
    points = cn.uniform(grid.dimension, cn.Key(3), single, samples)
    if coherent:
        side, lane = 1 << (samples.bit_length() - 1) // 2, dr.arange(uint32, samples)
        u, v = single(lane % side) / side, single(lane // side) / (samples // side)
        points = [u, v, 0.5 + 0.3 * dr.sin(3 * u) * v][: grid.dimension]
    cotangents = cn.uniform(len(grid.levels) * FEATURES, cn.Key(4), single, samples)
    points, cotangents = list(points), [v - 0.3 for v in cotangents]
    dr.eval(points, cotangents)
    return points, cotangents


def rule(grid: FeatureGrid, samples: int, packet: int, **changed: int) -> list[int]:
    options = dict(each=atomic_sums.TERMS, most=atomic_sums.MOST, memory=ROOM) | changed
    return atomic_sums.copies([level.size for level in grid.levels], samples * grid.vertices, packet, **options)


def kernel_ms(run: Callable[[], Any], repeat: int) -> list[list[tuple[str, float]]]:
    """``(type, milliseconds)`` of every kernel of ``run``, for each of ``repeat`` calls after the first two."""
    found = []
    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
        for _ in range(2 + repeat):
            dr.kernel_history_clear()
            run()
            dr.sync_thread()
            found.append([(k["type"].name, k["execution_time"]) for k in dr.kernel_history()])
        dr.kernel_history_clear()
    return found[2:]


# ---- The kernel alone ----------------------------------------------------------------------------------------


def place(start: int, size: int, count: int, layout: str, active: bool) -> list[int]:
    """Where the copies of a level stand, and who takes which, for the kernel to read."""
    stride, copy = (count, 1) if "beside" in layout else (1, size)
    return [start, stride, copy, count - 1, int(active), 5 if "warp" in layout else 0]


def adding(grid: FeatureGrid, leaf: Any, mode: dr.ReduceMode) -> Callable[..., Any]:
    """A function of target, places, points and cotangents, frozen."""
    uint32 = dr.uint32_array_t(leaf)

    def add(target: Any, places: Any, points: list, cotangents: list) -> Any:
        lane = dr.arange(uint32, dr.width(points[0]))
        for number, weights, index in grid.walk(points):
            start, stride, copy, mask, active, shift = (dr.gather(uint32, places, number * 6 + k) for k in range(6))
            terms = [leaf(weights[0] * v) for v in cotangents[number * FEATURES : (number + 1) * FEATURES]]
            where = start + (index - grid.levels[number].offset) * stride + ((lane >> shift) & mask) * copy
            dr.scatter_reduce(dr.ReduceOp.Add, target, nested_type(leaf)(terms), where, active == 1, mode)
        return target

    return dr.freeze(add)


def plans(grid: FeatureGrid, samples: int, packet: int) -> Iterator[tuple[str, list[int], str, list[bool]]]:
    """Name, copies of each level, where they stand and who takes which, and what levels count."""
    chosen, everything = rule(grid, samples, packet), [True] * len(grid.levels)
    yield "one", [1] * len(chosen), "behind", everything
    for layout in LAYOUTS:
        yield "rule", chosen, layout, everything
    seen = [[1] * len(chosen), chosen]
    hand = BY_HAND if len(chosen) == 16 and grid.dimension == 2 else {}
    for name, counts in [*((n, rule(grid, samples, packet, **v)) for n, v in VARIANTS.items()), *hand.items()]:
        if counts not in seen:
            seen.append(counts)
            yield name, counts, "behind", everything
    yield "32 8" if hand else "most 8", next(iter(hand.values())) if hand else [8] * len(chosen), "beside", everything
    yield "apart", [1 << max(0, (APART // level.size).bit_length() - 1) for level in grid.levels], "behind", everything
    yield "none", [1] * len(chosen), "behind", [n == 1 for n in chosen]


@dataclasses.dataclass
class Sweep:
    """All plans for one batch."""

    grid: str
    log2: int
    coherent: bool = False
    half: bool = False
    mode: str = "Auto"

    def __call__(self, module: Any, repeat: int) -> list[dict[str, Any]]:
        grid, samples = make(self.grid, module), 1 << self.log2
        leaf = module.Float16 if self.half else module.Float
        packet, rows = FEATURES * dr.itemsize_v(leaf), []
        points, cotangents = draw(grid, samples, self.coherent)
        add = adding(grid, leaf, getattr(dr.ReduceMode, self.mode))
        for plan, counts, layout, active in plans(grid, samples, packet):
            numbers, room = [], 0
            for level, count, on in zip(grid.levels, counts, active, strict=True):
                numbers += place(room, level.size, count, layout, on)
                room += level.size * count
            places = module.UInt32(numbers) + dr.opaque(
                module.UInt32, 0
            )  # in memory of Dr.Jit's: one recording for all
            dr.eval(places)

            def run(places: Any = places, room: int = room) -> None:
                dr.eval(add(dr.opaque(leaf, 0, room * FEATURES), places, points, cotangents))

            ms = statistics.median(max(t for kind, t in row if kind == "JIT") for row in kernel_ms(run, repeat))
            extra = sum(n * level.size for n, level in zip(counts, grid.levels, strict=True) if n > 1) * packet
            rows.append({
                "part": "sweep", "grid": self.grid, "samples": samples,
                "points": "coherent" if self.coherent else "random", "numbers": "half" if self.half else "single",
                "mode": self.mode, "plan": plan, "copies": layout, "counts": counts,
                "bytes": extra, "kernel_ms": ms,
            })  # fmt: skip
        return rows


# ---- The gradient as it is -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Gradient:
    """What coopnet does for one batch, with one copy, as many as the rule gives, and those chosen by hand; where it
    adds to neighbours together, also to one after the other.
    """

    grid: str
    log2: int
    coherent: bool = False

    def __call__(self, module: Any, repeat: int) -> list[dict[str, Any]]:
        grid, samples = make(self.grid, module), 1 << self.log2
        packet = FEATURES * dr.itemsize_v(grid.dtype)
        points, cotangents = draw(grid, samples, self.coherent)
        chosen = {"one": [1] * len(grid.levels), "rule": rule(grid, samples, packet, memory=atomic_sums.MEMORY)}
        if self.grid == "config_hash" and self.log2 == 18 and not self.coherent:
            chosen |= BY_HAND
        pairs = [False, True] if atomic_sums.in_pairs(grid) else [False]
        rows, first = [], None
        for (plan, counts), in_pairs in itertools.product(chosen.items(), pairs):
            found: list[Any] = []

            def run(counts: list[int] = counts, in_pairs: bool = in_pairs, found: list[Any] = found) -> None:
                sums = atomic_sums.AtomicSums(grid, counts)
                sums.in_pairs = in_pairs
                sums.add(
                    (number, [weights[0] * v for v in cotangents[number * FEATURES :][:FEATURES]], index)
                    for number, weights, index in grid.walk(points)
                )
                found[:] = [sums.finish()]
                dr.eval(found)

            history = kernel_ms(run, repeat)
            jit = [[t for kind, t in row if kind == "JIT"] for row in history]
            largest = statistics.median(max(row) for row in jit)
            first = found[0] if first is None else first
            rows.append({
                "part": "gradient", "grid": self.grid, "samples": samples,
                "points": "coherent" if self.coherent else "random", "in_pairs": in_pairs, "plan": plan,
                "counts": counts, "largest_ms": largest,
                "kernel_ms": statistics.median(sum(t for _, t in row) for row in history),
                "adding_up_ms": statistics.median(sum(row) for row in jit) - largest,
                "launches": dict(collections.Counter(kind for kind, _ in history[-1])),
                "difference": float((dr.max(dr.abs(found[0] - first)) / dr.max(dr.abs(first)))[0]),
            })  # fmt: skip
        return rows


# ---- What is printed -----------------------------------------------------------------------------------------


def show(rows: Sequence[dict[str, Any]]) -> None:
    """A short table of rows that are alike."""
    heads = ["part", "grid", "samples", "points", "numbers", "mode"]
    hidden = {*heads, "counts"}
    print(" ".join(str(rows[0][k]) for k in heads if k in rows[0]))
    for row in rows:
        cells = [f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if k not in hidden]
        print("  " + "  ".join(cells))
    print(f"  the rule: {next(row['counts'] for row in rows if row['plan'] == 'rule')}")
    sys.stdout.flush()


def jobs(parts: Sequence[str], quick: bool) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """What is measured, the most important first."""
    first = 12 if quick else 18
    found: list[Any] = [Sweep("config_hash", first), Sweep("config_hash", first, coherent=True)]
    found += [Gradient("config_hash", first)]
    found += [Gradient("config_hash", first, coherent=True)]
    others = [10] if quick else [14, 16, 20]
    found += [Sweep("config_hash", log2, coherent) for log2 in others for coherent in (False, True)]
    found += [Sweep("3d", first), Sweep("3d", first, coherent=True)]
    found += [Gradient("3d", first), Gradient("3d", first, coherent=True)]
    found += [Gradient("config_hash", log2) for log2 in others]
    found += [Sweep("small", log2) for log2 in ([10] if quick else [14, 18])]
    found += [Gradient("small", first), Sweep("config_hash", first, half=True)]
    found += [Sweep("config_hash", first, mode="Direct")]
    if not quick:
        found += [Sweep("3d", 14), Sweep("3d", 20), Sweep("3d", 20, coherent=True), Gradient("3d", 20)]
        found += [Sweep("3d", first, half=True)]
    return (job for job in found if type(job).__name__.lower() in parts)


def main() -> None:
    args = common.arguments(
        __doc__,
        quick=dict(action="store_true", help="small sizes, to see that it runs"),
        parts=dict(nargs="+", choices=("sweep", "gradient"), default=["sweep", "gradient"]),
        budget=dict(type=float, default=85, help="seconds after which nothing more is begun"),
    )
    began, rows, skipped = time.perf_counter(), [], 0
    module = cn.backend.namespace(args.backend)
    for job in jobs(args.parts, args.quick):
        if time.perf_counter() - began > args.budget:
            skipped += 1
            continue
        start = time.perf_counter()
        found = job(module, 1 if args.quick else 9)
        rows += found
        show(found)
        print(f"  {time.perf_counter() - start:.1f} s", flush=True)
        results = {"rows": rows, "skipped": skipped}
        path = common.write(
            "grid-gradient", args.backend, results, args.out
        )  # what there is, should the next one not end
    if skipped:
        print(f"{skipped} of the measurements were left out: the budget was spent", file=sys.stderr)
    print(path)


if __name__ == "__main__":
    main()
