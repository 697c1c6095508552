"""Grids: levels, and the walk over cells, which values, derivatives and gradients have in common."""

from __future__ import annotations

import itertools

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import evaluated
from support.kernels import launched

import coopnet as cn
from coopnet import reference as ref
from coopnet.kernels import fixed_point
from coopnet.kernels.grid import FeatureGrid, levels, scales

SCALES, SIZES = scales(3, 4, 1.7), dict(multiple=2, most=2**6)
KINDS = {
    "linear": dict(),
    "smoothstep": dict(interpolation="smoothstep"),
    "tiled": dict(hashed=False),
    "simplices": dict(simplices=True),
}


def make(ns, dimension, options, **sizes):
    found = levels(dimension, **{"scales": SCALES} | SIZES | sizes)
    data = ns.Float(np.random.default_rng(3).normal(size=2 * found[-1].end).astype(np.float32))
    return FeatureGrid(data, found, dimension, 2, **options)


def points(ns, dimension, n, seed=0):
    x = np.random.default_rng(seed).random((dimension, n)).astype(np.float32)
    return [ns.Float(v) for v in x], x


@pytest.mark.parametrize("layer, name", [(cn.HashGrid, "HashGridEncoding"), (cn.Permutohedral, "PermutoEncoding")])
@pytest.mark.parametrize("hashmap_size", [2**5, 2**14])
def test_as_drjit(ns, backend, layer, name, hashmap_size):
    """Sizes, initial values and features, to the bit on LLVM."""
    options = dict(n_levels=3, hashmap_size=hashmap_size, base_resolution=4, per_level_scale=1.7, init_scale=0.3)
    theirs = getattr(drnn, name)(ns.Float, 3, **options, rng=dr.rng(seed=3))
    ours = layer(3, **options).alloc(ns.TensorXf, rng=dr.rng(seed=3))
    np.testing.assert_array_equal(ours["data"].numpy(), theirs.data.numpy())
    p, _ = points(ns, 3, 500)
    tolerance = 0 if backend == "llvm" else 1e-6
    np.testing.assert_allclose(ns.ArrayXf(ours(p)).numpy(), theirs(p).numpy(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_walk(ns, kind):
    """Weights of a cell are none below 0 and add up to 1, their tangents to 0; indices are the level's own."""
    grid, (p, _) = make(ns, 3, KINDS[kind]), points(ns, 3, 200)
    directions = [points(ns, 3, 200, seed)[0] for seed in (1, 2)]
    for level, steps in itertools.groupby(grid.walk(p, directions), lambda step: step[0]):
        _, weights, indices = evaluated(*zip(*steps, strict=True))
        assert len(indices) == (4 if kind == "simplices" else 8)
        values = np.array([[v.numpy() for v in w] for w in weights])
        assert values[:, 0].min() >= 0
        np.testing.assert_allclose(values.sum(axis=0) - [[1], [0], [0]], 0, atol=2e-5)
        slope = sum(np.abs(d.numpy()) for d in directions[0]) * grid.steepest(level)
        assert (np.abs(values[:, 1]) <= slope * (1 + 1e-5)).all()
        indices = np.array([v.numpy() for v in indices])
        offset, size = grid.levels[level][2:]
        assert indices.min() >= offset and indices.max() < offset + size
    plain = [(level, len(weights)) for level, weights, _ in grid.walk(p)]
    assert plain == [(level, 1) for level in range(3) for _ in range(4 if kind == "simplices" else 8)]


@pytest.mark.parametrize("kind", KINDS)
def test_bundles(ns, kind):
    """Features do not depend on whether derivatives come with them."""
    grid, (p, _) = make(ns, 2, KINDS[kind]), points(ns, 2, 100)
    (alone,), (features, moved) = grid.evaluate(p), grid.evaluate(p, [points(ns, 2, 100, 1)[0]])
    np.testing.assert_allclose(ns.ArrayXf(features).numpy(), ns.ArrayXf(alone).numpy(), rtol=0, atol=1e-6)
    assert len(moved) == len(features) == 6


def test_steepest_slopes(ns):
    """Of the weights of vertices, per unit length: what sums of tangents are bounded by."""
    for interpolation, factor in (("linear", 1), ("nearest", 1), ("smoothstep", 1.5)):
        grid = make(ns, 2, dict(interpolation=interpolation), scales=[-0.5, 9.0, 19.0])
        assert [grid.steepest(level) for level in range(3)] == [0.5 * factor, 9 * factor, 19 * factor]


def test_points_between_simplices(ns):
    """Where fractions are equal, both sides give the same; axes in any order."""
    grid = make(ns, 3, KINDS["simplices"], scales=[5.0], most=2**14)
    fractions = [(0.5, 0.5, 0.25), (0.25, 0.25, 0.5), (0.5, 0.25, 0.5), (0.25, 0.25, 0.25), (0.0, 0.5, 0.0)]
    x = (np.array(fractions).T + 1.5).astype(np.float32) / 5  # 5 cells with half a cell of offset
    expected = ref.permutohedral(x, grid.data.numpy(), n_levels=1, base_resolution=6, hashmap_size=2**14)
    for tangents in ([], [[ns.Float(1)] * 3]):
        features = grid.evaluate([ns.Float(v) for v in x], tangents)[0]
        np.testing.assert_allclose(ns.ArrayXf(features).numpy(), expected, atol=1e-5)


def test_gradients_of_many_coordinates(ns, monkeypatch):
    """Sums in fixed point keep their bits: a simplex has few vertices, where a cube would have 2^12."""
    counted, scale = [], fixed_point.scale
    monkeypatch.setattr(fixed_point, "scale", lambda most, terms: counted.append(terms.numpy()) or scale(most, terms))
    grid = make(ns, 12, KINDS["simplices"], scales=[1.0], most=2**12)
    dr.enable_grad(grid.data)
    p, _ = points(ns, 12, 4096)
    (features,) = grid.evaluate(p, ordered=True)
    dr.backward(dr.mean(features[0]))
    assert grid.data.grad.numpy()[::2].sum(dtype=np.float64) == pytest.approx(1, rel=1e-6)
    assert counted == [13 * 4096]


@pytest.mark.parametrize("n_features", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("kind", ["linear", "simplices"])
def test_sums(ns, kind, n_features):
    """Gradients of the parameters are the same, however they are added up."""
    found = levels(2, SCALES, **SIZES)
    rng, (p, _) = np.random.default_rng(4), points(ns, 2, 1000)
    start, weights = (rng.normal(size=n).astype(np.float32) for n in (n_features * found[-1].end, 3 * 3 * n_features))
    gradients = []
    for ordered in (False, True):
        data = ns.Float(start)
        dr.enable_grad(data)
        grid = FeatureGrid(data, found, 2, n_features, **KINDS[kind])
        bundle = grid.evaluate(p, [[ns.Float(1), ns.Float(0)], [p[1], p[0]]], ordered)
        dr.backward(sum(v * ns.Float(w) for v, w in zip(itertools.chain(*bundle), weights, strict=True)))
        gradients.append(data.grad.numpy())
    np.testing.assert_allclose(*gradients, rtol=0, atol=2e-6 * np.abs(gradients[1]).max())


@pytest.mark.parametrize("tangents", [0, 1])
def test_the_unit_of_sums_takes_one_kernel(ns, tangents):
    """The largest term of every level, whether all are finite, and how many there are; a second one adds up."""
    grid, (p, _), (weights, _) = make(ns, 2, {}), points(ns, 2, 500), points(ns, 16, 500, 1)
    dr.enable_grad(grid.data)
    with launched() as kernels:
        bundle = grid.evaluate(p, [points(ns, 2, 500, 2)[0]] * tangents, ordered=True)
        dr.backward(sum(v * w for v, w in zip(itertools.chain(*bundle), weights, strict=False)))
        dr.eval(grid.data.grad)
    assert [k["size"] for k in kernels].count(500) == 2


@pytest.mark.parametrize("multiple, most", [(8, 2**40), (8, 100), (3, 2**40)])
def test_levels(multiple, most):
    """Their sizes follow the scales, one after the other."""
    found = levels(2, scales(4, 5, 2.0), multiple, most)
    assert [(level.scale, level.resolution) for level in found] == [(4, 5), (9, 10), (19, 20), (39, 40)]
    assert [level.size for level in found] == [min(-(-(n**2) // multiple) * multiple, most) for n in (5, 10, 20, 40)]
    assert [level.offset for level in found] == [0, *(level.end for level in found[:-1])]


def test_the_gradient_is_no_kernel_of_optix(ns, backend):
    """There, sums of several numbers at a time become sums of one after the other, and take twice as long."""
    if backend != "cuda":
        pytest.skip("OptiX compiles kernels of CUDA only")
    field = cn.NeuralField(cn.HashGrid(2, n_levels=4, hashmap_size=2**10), cn.MLP(out_features=3, width=16)).build(
        backend
    )
    for name in field:
        dr.enable_grad(field[name])
    points = cn.uniform(2, cn.Key(1), ns.Float, 4096)
    dr.eval(points)
    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
        dr.kernel_history_clear()
        dr.backward(sum(dr.square(v) for v in field(points)))
        dr.eval(dr.grad(field["encoding.data"]))
        kernels = [k for k in dr.kernel_history() if k["size"] == 4096 and k["type"] == dr.KernelType.JIT]
        dr.kernel_history_clear()
    optix = [k["uses_optix"] for k in kernels]
    # forward, network, grid
    assert len(optix) >= 2 and not optix[-1]
