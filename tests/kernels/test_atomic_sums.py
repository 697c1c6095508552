"""Gradients of grids by atomics, with copies of levels in which many samples meet."""

from __future__ import annotations

import itertools

import drjit as dr
import numpy as np
import pytest
from support.arrays import evaluated
from support.cuda_on_cpu import as_cuda

import coopnet as cn
from coopnet.kernels import atomic_sums
from coopnet.kernels import grid as grids
from coopnet.kernels.atomic_sums import MEMORY, MOST, TERMS, copies
from coopnet.kernels.grid import FeatureGrid, levels, scales
from coopnet.nn import lattice

pytestmark = pytest.mark.usefixtures("several_threads")

KINDS = {
    "linear": dict(),
    "smoothstep": dict(interpolation="smoothstep"),
    "nearest": dict(interpolation="nearest"),
    "tiled": dict(hashed=False),
    "simplices": dict(simplices=True),
}
FOUND = levels(2, scales(4, 4, 1.7), 2, 2**6)
SAMPLES = 1000
#: Levels with copies and without, in any order.
COUNTS = [[8, 2, 1, 1], [1, 4, 1, 16], [2, 2, 2, 2]]


def make(ns, n_features=2, found=FOUND, **options):
    data = np.random.default_rng(3).normal(size=n_features * found[-1].end)
    return FeatureGrid(ns.Float(data.astype(np.float32)), found, 2, n_features, **options)


def points(ns, n=SAMPLES, seed=0):
    return [ns.Float(v) for v in np.random.default_rng(seed).random((2, n)).astype(np.float32)]


def loss(ns, bundle):
    """One that weighs every feature of every sample differently."""
    parts = [v for vector in bundle for v in vector]
    lane = dr.arange(ns.UInt32, dr.width(parts[0]))
    return dr.sum(sum(v * (ns.Float(lane % 7 + 1) + 0.3 * i) for i, v in enumerate(parts)))


def gradient(ns, grid, x, tangents=(), **options):
    dr.disable_grad(grid.data)
    dr.enable_grad(grid.data)
    dr.backward(loss(ns, grid.evaluate(x, tangents, **options)))
    return dr.grad(grid.data).numpy()


def agree(found, expected, error=2e-6):
    np.testing.assert_allclose(found, expected, rtol=0, atol=error * np.abs(expected).max())


# ---- The rule ----------------------------------------------------------------------------------------------


def test_the_rule():
    """Copies as long as an entry of each has terms enough, fewer for all where memory ends."""
    sizes = [level.size for level in levels(2, scales(16, 16, 1.5), 8, 2**15)]
    found = copies(sizes, 4 << 18, 8)
    assert found == [64, 32, 16, 8, 4, 2] + [1] * 10  # of tiny-cuda-nn's config_hash
    assert copies(sizes, 4 << 10, 8) == [1] * 16
    assert copies([1], 1 << 40, 8) == [MOST]
    everything = copies(sizes, 4 << 22, 8)
    assert everything[0] == MOST and everything[-1] == 1
    assert sum(n * size * 8 for n, size in zip(everything, sizes, strict=True) if n > 1) <= MEMORY
    assert copies([2**19] * 3, 1 << 40, 8) == [1, 1, 1]  # there is no memory for two of one


def test_the_rule_for_any_grid():
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies

    @hypothesis.given(
        sizes=st.lists(st.integers(1, 2**24), min_size=1, max_size=20),
        terms=st.integers(1, 2**32),
        packet=st.sampled_from([2, 4, 8, 16, 32]),
        memory=st.sampled_from([0, 1 << 10, MEMORY]),
    )
    def check(sizes, terms, packet, memory):
        found = copies(sizes, terms, packet, memory=memory)
        assert sum(n * size * packet for n, size in zip(found, sizes, strict=True) if n > 1) <= memory
        for n, size in zip(found, sizes, strict=True):
            assert 1 <= n <= MOST and n & (n - 1) == 0
            assert n == 1 or terms >= n * size * TERMS
        by_size = [n for _, n in sorted(zip(sizes, found, strict=True))]
        assert by_size == sorted(found, reverse=True)

    check()


# ---- The sums ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, counts", list(zip(KINDS, itertools.cycle(COUNTS))))
def test_copies_give_the_same_gradient(ns, kind, counts):
    grid, x = make(ns, **KINDS[kind]), points(ns)
    tangents = [] if kind == "nearest" else [points(ns, seed=1)]
    expected = gradient(ns, grid, x, tangents, ordered=True)
    assert np.abs(expected).max() > 0
    agree(gradient(ns, grid, x, tangents, counts=counts), expected)


@pytest.mark.parametrize("n_features", [1, 3, 4])
def test_packets_of_any_size(ns, n_features):
    grid, x = make(ns, n_features), points(ns)
    agree(gradient(ns, grid, x, counts=COUNTS[0]), gradient(ns, grid, x, ordered=True))


@pytest.fixture
def in_pairs(monkeypatch):
    """Neighbours are added together on any processor; returns how often two were."""
    seen, own = [], atomic_sums.AtomicSums._add_pair

    def add_pair(self, *args):
        seen.append(args)
        own(self, *args)

    monkeypatch.setattr(atomic_sums, "adds_packets", lambda dtype: True)
    monkeypatch.setattr(atomic_sums.AtomicSums, "_add_pair", add_pair)
    return seen


@pytest.mark.parametrize("kind, counts", list(zip(KINDS, itertools.cycle(COUNTS))))
@pytest.mark.parametrize("n_features", [1, 2, 4])
def test_pairs_give_the_same_gradient(ns, in_pairs, kind, counts, n_features):
    """Of cubes with entries of up to 8 bytes; everything else is added one by one."""
    grid, x = make(ns, n_features, **KINDS[kind]), points(ns)
    tangents = [] if kind == "nearest" else [points(ns, seed=1)]
    expected = gradient(ns, grid, x, tangents, ordered=True)
    assert not in_pairs
    agree(gradient(ns, grid, x, tangents, counts=counts), expected)
    able = kind not in ("nearest", "simplices") and n_features <= 2
    assert len(in_pairs) == (4 * 2 if able else 0)  # levels times rows of a cell


def test_pairs_of_every_alignment(ns, in_pairs):
    """Odd and even entries, and the last of a level, whose neighbour is elsewhere."""
    found = levels(2, [2.0, 4.0, 6.0], 2, 2**3)  # 3 vertices a side; 5 and 7, hashed
    grid = make(ns, found=found)
    x = [ns.Float(v) for v in np.random.default_rng(1).uniform(-2, 2, (2, SAMPLES)).astype(np.float32)]
    agree(gradient(ns, grid, x, counts=[1, 2, 1]), gradient(ns, grid, x, ordered=True))
    assert in_pairs


def test_levels_of_odd_size_are_not_added_in_pairs(ns, in_pairs):
    grid, x = make(ns, 1, found=levels(2, scales(3, 2, 1.5), 1, 2**5)), points(ns)
    assert any(level.size % 2 for level in grid.levels)
    agree(gradient(ns, grid, x, counts=[2, 1, 1]), gradient(ns, grid, x, ordered=True))
    assert not in_pairs


def test_pairs_of_grids_of_lanes(ns, in_pairs):
    single, x, count = make(ns), points(ns), 3
    data = np.random.default_rng(5).normal(size=count * dr.width(single.data)).astype(np.float32)
    which, found = dr.arange(ns.UInt32, SAMPLES) % count, []
    for options in (dict(counts=[1] * 4), dict(counts=COUNTS[0])):
        parameters = ns.Float(data)
        dr.enable_grad(parameters)
        dr.backward(loss(ns, single.of_lanes(parameters, which).evaluate(x, **options)))
        found.append(dr.grad(parameters).numpy())
    assert in_pairs
    agree(found[1], found[0])


def test_which_processors_add_packets(ns, backend, monkeypatch):
    for capability, able in ((89, False), (90, True)):
        monkeypatch.setattr(atomic_sums.core, "compute_capability", lambda capability=capability: capability)
        assert atomic_sums.adds_packets(ns.Float) == (able and backend == "cuda")


def test_levels_that_become_coarser(ns):
    grid, x = make(ns, found=levels(2, scales(4, 20, 0.6), 2, 2**9)), points(ns)
    agree(gradient(ns, grid, x, counts=[1, 1, 2, 8]), gradient(ns, grid, x, ordered=True))


def test_warps_add_to_different_copies(ns):
    """Warp ``i`` to copy ``i % n`` of the entry, where all sit on one vertex."""
    grid = make(ns, 1, interpolation="nearest")
    sums = atomic_sums.AtomicSums(grid, [4, 1, 1, 1])
    lane = dr.arange(ns.UInt32, 320)
    sums.add([(0, [ns.Float(lane)], dr.full(ns.UInt32, 3, 320))])
    seen = sums.spread.numpy().reshape(4, FOUND[0].size)
    by_warp = lane.numpy().reshape(10, 32).sum(axis=1)
    np.testing.assert_array_equal(seen[:, 3], [by_warp[i::4].sum() for i in range(4)])
    assert not np.delete(seen, 3, axis=1).any() and not sums.sums.numpy().any()
    assert sums.finish().numpy()[3] == 319 * 320 / 2


def test_coordinates_and_tangents_keep_their_gradients(ns):
    found = []
    for options in (dict(ordered=True), dict(counts=COUNTS[0])):
        grid, x, tangent = make(ns, interpolation="smoothstep"), points(ns), points(ns, seed=1)
        dr.enable_grad(grid.data, x, tangent)
        dr.backward(loss(ns, grid.evaluate(x, [tangent], **options)))
        found.append([v.numpy() for v in evaluated(dr.grad([*x, *tangent, grid.data]))])
    for mine, expected in zip(*found, strict=True):
        agree(mine, expected)


def test_forward_mode(ns):
    moved = []
    for options in (dict(), dict(counts=COUNTS[1])):
        grid = make(ns)
        dr.enable_grad(grid.data)
        (features,) = grid.evaluate(points(ns), **options)
        dr.set_grad(grid.data, dr.sin(ns.Float(dr.arange(ns.UInt32, dr.width(grid.data)))))
        moved.append(ns.ArrayXf(dr.forward_to(features)).numpy())
    agree(*moved)


def test_grids_of_lanes(ns):
    """Several grids side by side, each with copies of its own."""
    single, x, count = make(ns), points(ns), 3
    data = np.random.default_rng(5).normal(size=count * dr.width(single.data)).astype(np.float32)
    which = dr.arange(ns.UInt32, SAMPLES) % count
    found = []
    for counts in ([1] * 4, *COUNTS):
        parameters = ns.Float(data)
        dr.enable_grad(parameters)
        dr.backward(loss(ns, single.of_lanes(parameters, which).evaluate(x, counts=counts)))
        found.append(dr.grad(parameters).numpy())
    for mine in found[1:]:
        agree(mine, found[0])


# ---- Recorded, masked, in loops ----------------------------------------------------------------------------


def test_frozen_functions(ns):
    """Of all batch sizes, though the copies are those of the first."""
    grid = make(ns)

    def step(data, x):
        grid.data = data
        dr.enable_grad(data)
        dr.backward(loss(ns, grid.evaluate(x, counts=COUNTS[0])))
        return dr.grad(data)

    frozen, start = dr.freeze(step), ns.Float(grid.data)
    for seed, samples in enumerate((SAMPLES, SAMPLES, 77, 4096, SAMPLES)):
        x = [ns.Float(v.numpy()) for v in points(ns, samples, seed)]
        found = frozen(ns.Float(start), x).numpy()
        grid.data = ns.Float(start)
        agree(found, gradient(ns, grid, x, ordered=True))


def test_evaluated_loops_with_a_lane_for_every_copy(ns):
    """The loop's mask is for samples. It must not fall on the sum of the copies, nor come off the samples."""
    grid = make(ns)
    room = sum(n * level.size for n, level in zip(COUNTS[0], FOUND, strict=True) if n > 1)
    x, often = points(ns, room), dr.arange(ns.UInt32, room) % 3 + 1
    dr.enable_grad(grid.data)

    def turn(i):
        dr.backward(loss(ns, grid.evaluate(x, counts=COUNTS[0])))
        return (i + 1,)

    dr.while_loop((dr.zeros(ns.UInt32, room),), lambda i: i < often, turn, mode="evaluated")
    found = dr.grad(grid.data).numpy()
    dr.set_grad(grid.data, 0)
    (features,) = grid.evaluate(x, ordered=True)
    dr.backward(loss(ns, [[v * ns.Float(often) for v in features]]))
    agree(found, dr.grad(grid.data).numpy())


@pytest.mark.parametrize("mode", ["symbolic", "evaluated"])
@pytest.mark.parametrize("inside", [True, False])
def test_loops(ns, mode, inside):
    """Evaluated in the loop, or before it and used there."""
    grid, x, turns = make(ns), points(ns), 3
    dr.enable_grad(grid.data)
    before = grid.evaluate(x, counts=COUNTS[0])

    def turn(i, total):
        bundle = grid.evaluate([v * 1 for v in x], counts=COUNTS[0]) if inside else before
        return i + 1, total + sum(v * (k + 1) for k, v in enumerate(bundle[0]))

    state = dr.zeros(ns.UInt32, SAMPLES), dr.zeros(ns.Float, SAMPLES)
    _, total = dr.while_loop(state, lambda i, total: i < turns, turn, mode=mode, max_iterations=turns)
    dr.backward(dr.sum(total))
    found = dr.grad(grid.data).numpy()
    dr.set_grad(grid.data, 0)
    (features,) = grid.evaluate(x, ordered=True)
    dr.backward(dr.sum(sum(v * (k + 1) for k, v in enumerate(features))) * turns)
    agree(found, dr.grad(grid.data).numpy())


@pytest.mark.parametrize("mode", ["symbolic", "evaluated"])
def test_calls(ns, mode):
    grid, x = make(ns), points(ns)
    dr.enable_grad(grid.data)
    which = dr.arange(ns.UInt32, SAMPLES) % 2

    def target(factor):
        return lambda x: sum(v * (k + factor) for k, v in enumerate(grid.evaluate(list(x), counts=COUNTS[0])[0]))

    dr.backward(dr.sum(dr.switch(which, [target(1), target(2)], ns.ArrayXf(x), mode=mode)))
    found = dr.grad(grid.data).numpy()
    dr.set_grad(grid.data, 0)
    (features,) = grid.evaluate(x, ordered=True)
    dr.backward(dr.sum(sum(v * (k + 1 + ns.Float(which)) for k, v in enumerate(features))))
    agree(found, dr.grad(grid.data).numpy())


# ---- As CUDA has it ----------------------------------------------------------------------------------------


@pytest.fixture
def played(backend, monkeypatch):
    """Grids do what they do on CUDA; returns the counts of copies that they add to, and the ways they sum."""
    seen, own = [], atomic_sums.AtomicSums.__init__

    def init(self, grid, counts):
        seen.append(list(counts))
        own(self, grid, counts)

    monkeypatch.setattr(atomic_sums.AtomicSums, "__init__", init)
    with as_cuda(grids, lattice) if backend == "llvm" else as_cuda():
        yield seen


def field(backend):
    grid = cn.HashGrid(2, n_levels=4, base_resolution=4, hashmap_size=2**8)
    return cn.NeuralField(grid, cn.MLP(out_features=1, width=16, depth=1)).build(backend, seed=1)


def of_field(field, x):
    name = "encoding.data"
    dr.disable_grad(field[name])
    dr.enable_grad(field[name])
    dr.backward(dr.sum(field(x)[0]))
    return dr.grad(field[name]).numpy()


def test_fields_on_cuda_take_the_rule(ns, backend, played):
    made, x = field(backend), points(ns, 1 << 15)
    found = of_field(made, x)
    assert played == [[64, 64, 16, 16]], played
    agree(found, deterministic(made, x), 2e-5)  # single precision, over thousands of terms
    assert len(played) == 1  # fixed point has no copies
    few = points(ns, (1 << 15) - 1)
    agree(of_field(made, few), deterministic(made, few), 2e-5)
    assert len(played) == 1  # nor has a small batch


def deterministic(made, x):
    with cn.deterministic():
        return of_field(made, x)
