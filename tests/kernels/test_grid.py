"""Grids: levels, and the walk over cells, which values, derivatives and gradients have in common."""

from __future__ import annotations

import itertools

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest

from coopnet import reference as ref
from coopnet.kernels.grid import Grid

SIZES = dict(n_levels=3, n_features_per_level=2, hashmap_size=2**6, base_resolution=4, per_level_scale=1.7)
KINDS = {
    "linear": dict(),
    "smoothstep": dict(interpolation="smoothstep", multiple=8),
    "tiled": dict(storage="tiled", multiple=8),
    "simplices": dict(simplices=True),
}


def make(ns, dimension, init_scale=1.0, **options):
    return Grid(ns.Float, dimension, **SIZES | {"init_scale": init_scale} | options, rng=dr.rng(seed=3))


def points(ns, dimension, n, seed=0):
    x = np.random.default_rng(seed).random((dimension, n)).astype(np.float32)
    return [ns.Float(v) for v in x], x


@pytest.mark.parametrize("name", ["HashGridEncoding", "PermutoEncoding"])
@pytest.mark.parametrize("hashmap_size", [2**5, 2**14])
def test_as_drjit(ns, backend, name, hashmap_size):
    """Sizes, initial values and features, to the bit on LLVM."""
    options = SIZES | {"hashmap_size": hashmap_size, "init_scale": 0.3}
    theirs = getattr(drnn, name)(ns.Float, 3, **options, rng=dr.rng(seed=3))
    ours = make(ns, 3, **options, simplices=name == "PermutoEncoding")
    np.testing.assert_array_equal(ours.data.numpy(), theirs.data.numpy())
    p, _ = points(ns, 3, 500)
    (features,) = ours.evaluate(p)
    tolerance = 0 if backend == "llvm" else 1e-6
    np.testing.assert_allclose(ns.ArrayXf(features).numpy(), theirs(p).numpy(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_walk(ns, kind):
    """Weights of a cell are none below 0 and add up to 1, their tangents to 0; indices are the level's own."""
    grid, (p, _) = make(ns, 3, **KINDS[kind]), points(ns, 3, 200)
    directions = [points(ns, 3, 200, seed)[0] for seed in (1, 2)]
    for level, steps in itertools.groupby(grid.walk(p, directions), lambda step: step[0]):
        _, weights, indices = zip(*steps, strict=True)
        assert len(indices) == (4 if kind == "simplices" else 8)
        values = np.array([[v.numpy() for v in w] for w in weights])
        assert values[:, 0].min() >= 0
        np.testing.assert_allclose(values.sum(axis=0) - [[1], [0], [0]], 0, atol=2e-5)
        slope = sum(np.abs(d.numpy()) for d in directions[0]) * grid.steepest(level)
        assert (np.abs(values[:, 1]) <= slope * (1 + 1e-5)).all()
        indices = np.array([v.numpy() for v in indices])
        _, _, offset, size = grid.levels[level]
        assert indices.min() >= offset and indices.max() < offset + size
    plain = [(level, len(weights)) for level, weights, _ in grid.walk(p)]
    assert plain == [(level, 1) for level in range(3) for _ in range(4 if kind == "simplices" else 8)]


@pytest.mark.parametrize("kind", KINDS)
def test_bundles(ns, kind):
    """Features do not depend on whether derivatives come with them."""
    grid, (p, _) = make(ns, 2, **KINDS[kind]), points(ns, 2, 100)
    (alone,), (features, moved) = grid.evaluate(p), grid.evaluate(p, [points(ns, 2, 100, 1)[0]])
    np.testing.assert_allclose(ns.ArrayXf(features).numpy(), ns.ArrayXf(alone).numpy(), rtol=0, atol=1e-6)
    assert len(moved) == len(features) == 6


def test_steepest_slopes(ns):
    """Of the weights of vertices, per unit length: what sums of tangents are bounded by."""
    for interpolation, factor in (("linear", 1), ("nearest", 1), ("smoothstep", 1.5)):
        grid = make(ns, 2, base_resolution=5, per_level_scale=2.0, interpolation=interpolation)
        assert [grid.steepest(level) for level in range(3)] == [4 * factor, 9 * factor, 19 * factor]


def test_points_between_simplices(ns):
    """Where fractions are equal, both sides give the same; axes in any order."""
    grid = make(ns, 3, n_levels=1, base_resolution=6, hashmap_size=2**14, simplices=True)
    fractions = [(0.5, 0.5, 0.25), (0.25, 0.25, 0.5), (0.5, 0.25, 0.5), (0.25, 0.25, 0.25), (0.0, 0.5, 0.0)]
    x = (np.array(fractions).T + 1.5).astype(np.float32) / 5  # 5 cells with half a cell of offset
    options = {k: SIZES[k] for k in ("n_features_per_level",)} | {"n_levels": 1, "hashmap_size": 2**14}
    expected = ref.permutohedral(x, grid.data.numpy(), **options, base_resolution=6)
    for tangents in ([], [[ns.Float(1)] * 3]):
        features = grid.evaluate([ns.Float(v) for v in x], tangents)[0]
        np.testing.assert_allclose(ns.ArrayXf(features).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("dimension", [3, 40, 64])
def test_gradients_of_many_coordinates(ns, dimension):
    """Sums in fixed point keep their bits: a simplex has few vertices."""
    grid = make(ns, dimension, n_levels=1, base_resolution=2, hashmap_size=2**12, simplices=True)
    dr.enable_grad(grid.data)
    p, _ = points(ns, dimension, 4096)
    (features,) = grid.evaluate(p, ordered=True)
    dr.backward(dr.mean(features[0]))
    assert grid.data.grad.numpy()[::2].sum(dtype=np.float64) == pytest.approx(1, rel=1e-6)


def test_too_many_parameters(ns):
    with pytest.raises(ValueError, match=r"Grid: dense storage .* an array holds fewer than 2\^32"):
        make(ns, 3, base_resolution=2000, storage="dense", multiple=8)
