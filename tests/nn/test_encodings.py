"""Encodings against the float64 reference, finite differences and what their papers promise."""

from __future__ import annotations

import itertools
import json
import math

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import arrays, close, contain, opened, values, weighted
from support.networks import gradients
from support.properties import given, settings, st

import coopnet as cn
from coopnet import backend as backends
from coopnet import io
from coopnet import reference as ref

CUDA = "cuda" in backends.available()
KINDS = ("coopvec", "tensor", "nested", "list", "tuple")
LEVELS = dict(n_levels=3, n_features_per_level=2, hashmap_size=2**6, base_resolution=4, per_level_scale=1.7)
few = settings(max_examples=3 if CUDA else 8)


def slopes(f, x, dy, h=1e-7):
    """Gradient of sum(dy f(x)) by differences, and where f has no kink nearby: samples don't mix."""
    gradient, smooth = np.zeros(x.shape), np.ones(x.shape[1], bool)
    for d in range(len(x)):
        step = np.zeros(x.shape)
        step[d] = h
        up, middle, down = ((dy * f(x + s * step)).sum(axis=0) for s in (1, 0, -1))
        gradient[d] = (up - down) / (2 * h)
        one_sided = np.abs(up - 2 * middle + down) / h
        smooth &= one_sided < 1e-2 * (1 + np.abs(gradient).max())
    return gradient, smooth


def grid_options(layer):
    names = ("n_levels", "n_features_per_level", "hashmap_size", "base_resolution")
    options = {name: getattr(layer, name) for name in names}
    options["level_scales"] = [level.scale for level in layer.grid.value.levels]
    if isinstance(layer, cn.Permutohedral):
        return options
    options["interpolation"] = layer.interpolation
    return options | ({"storage": layer.storage, "multiple": 8} if isinstance(layer, cn.Grid) else {})


def grid_twin(layer, x):
    f = ref.permutohedral if isinstance(layer, cn.Permutohedral) else ref.hash_grid
    return f(x, layer["data"].numpy(), **grid_options(layer))


def frequencies(layer):
    return layer.frequencies.value.data.numpy().reshape(layer.n_frequencies, -1)


def composite():
    return cn.Composite(
        [cn.TriangleWave(3), cn.OneBlob(4, in_features=1), cn.Identity(2.0, -1.0), cn.SphericalHarmonics(2)],
        [1, -1, 2, 3],
        [2, 0, 1, 0],
    )


def composite_twin(_, x):
    parts = [
        (2, 1, lambda v: ref.triangle_wave(v, 3)),
        (0, 1, lambda v: ref.one_blob(v, 4)),
        (1, 2, lambda v: ref.identity(v, 2, -1)),
        (0, 3, lambda v: ref.spherical_harmonics(v, 2)),
    ]
    return ref.composite(x, parts)


# name: (layer, coordinates, twin(layer, x))
CASES = {
    "identity": (lambda: cn.Identity(-3.0, 0.25), 2, lambda e, x: ref.identity(x, -3, 0.25)),
    "frequency": (lambda: cn.Frequency(7), 2, lambda e, x: ref.frequency(x, 7)),
    "triangle": (lambda: cn.TriangleWave(7), 2, lambda e, x: ref.triangle_wave(x, 7)),
    "one blob": (lambda: cn.OneBlob(8), 2, lambda e, x: ref.one_blob(x, 8)),
    "one bin": (lambda: cn.Composite([cn.OneBlob(1), cn.OneBlob(3)], [1, 1]), 2, lambda e, x: ref.composite(
        x, [(0, 1, lambda v: ref.one_blob(v, 1)), (1, 1, lambda v: ref.one_blob(v, 3))])),
    "sh 1": (lambda: cn.SphericalHarmonics(1), 3, lambda e, x: ref.spherical_harmonics(x, 1)),
    "sh 8": (lambda: cn.SphericalHarmonics(8), 3, lambda e, x: ref.spherical_harmonics(x, 8)),
    "fourier": (lambda: cn.Fourier(6, 2.0, seed=3), 3, lambda e, x: ref.fourier(x, frequencies(e))),
    "trained fourier": (lambda: cn.Fourier(5, 2.0, True), 1, lambda e, x: ref.fourier(x, frequencies(e))),
    "dense": (lambda: cn.Grid(storage="dense", **LEVELS, init_scale=1.0), 2, grid_twin),
    "tiled smoothstep": (
        lambda: cn.Grid(storage="tiled", interpolation="smoothstep", **LEVELS, init_scale=1.0), 3, grid_twin),
    "hash smoothstep": (lambda: cn.Grid(interpolation="smoothstep", **LEVELS, init_scale=1.0), 3, grid_twin),
    "hash": (lambda: cn.Grid(**LEVELS, init_scale=1.0), 2, grid_twin),
    "drjit smoothstep": (lambda: cn.HashGrid(interpolation="smoothstep", **LEVELS, init_scale=1.0), 2, grid_twin),
    "permutohedral 2": (lambda: cn.Permutohedral(**LEVELS, init_scale=1.0), 2, grid_twin),
    "permutohedral 4": (lambda: cn.Permutohedral(**LEVELS, init_scale=1.0), 4, grid_twin),
    "composite": (composite, 3, composite_twin),
    "sum": (
        lambda: cn.Composite([cn.Identity(), cn.TriangleWave(1)], [2, 2], [0, 1], reduction="sum"), 3,
        lambda e, x: ref.composite(x, [(0, 2, ref.identity), (1, 2, lambda v: ref.triangle_wave(v, 1))], "sum")),
    "product": (
        lambda: cn.Composite([cn.Identity(), cn.Identity(0.5)], [1, 1], reduction="product"), 2,
        lambda e, x: ref.composite(x, [(0, 1, ref.identity), (1, 1, lambda v: ref.identity(v, 0.5))], "product")),
    "padded": (
        lambda: cn.nn.Pad(cn.nn.Pad(cn.Frequency(3), after=2, value=-0.5), before=1), 2,
        lambda e, x: ref.pad(ref.pad(ref.frequency(x, 3), after=2, value=-0.5), before=1)),
    "padded parts": (
        lambda: cn.Composite([cn.nn.Pad(cn.Identity(), after=1), cn.nn.Pad(cn.OneBlob(2), 3)], [2, -1]), 3,
        lambda e, x: np.concatenate([x[:2], np.ones((4, x.shape[1])), ref.one_blob(x[2:], 2)])),
}  # fmt: skip


def make(ns, name):
    layer, size, twin = CASES[name]
    layer = layer().alloc(ns.TensorXf, size)
    return layer, size, lambda x: twin(layer, x)


@pytest.mark.parametrize("name", CASES)
def test_values_and_input_gradients(ns, backend, name):
    layer, size, twin = make(ns, name)
    rng = np.random.default_rng(2)
    x = rng.random((size, 70)).astype(np.float32)
    expected = twin(x.astype(np.float64))
    assert layer.width(size) == len(expected) == CASES[name][0]().width(size)
    dy = rng.normal(size=expected.shape)
    dx, smooth = slopes(twin, x.astype(np.float64), dy)
    assert smooth.mean() > 0.9
    every = name in ("frequency", "fourier", "hash", "composite", "padded") and backend != "cuda"
    for kind in KINDS if every else KINDS[:2]:
        leaves = arrays(ns, x)
        dr.enable_grad(leaves)
        y = layer(contain(ns, kind, leaves))
        ys = opened(kind, y)
        same = tuple if kind == "tuple" and isinstance(layer, cn.Identity) else list
        assert isinstance(y, same if kind == "tuple" else type(contain(ns, kind, leaves)))
        if dr.grad_enabled(ys):  # the first spherical harmonic is constant
            dr.backward(weighted(ys, dy))
        dr.eval(ys, dr.grad(leaves))
        close(values(ys), expected, 5e-6 if backend == "llvm" else 5e-5)
        close(values(dr.grad(leaves))[:, smooth], dx[:, smooth], 1e-4)


@pytest.mark.parametrize("name", ["frequency", "fourier", "hash smoothstep", "composite", "padded"])
def test_half_precision_is_widened(ns, name):
    """Coordinates in half precision are encoded in single: only input and output are rounded."""
    layer, size, twin = make(ns, name)
    x = np.random.default_rng(3).random((size, 40)).astype(np.float16)
    y = layer(arrays(ns, x, np.float16))
    assert all(type(v) is ns.Float16 for v in y)
    close(values(y), twin(x.astype(np.float64)), 6e-4)


def test_double_precision_stays(ns, backend):
    x = np.random.default_rng(3).random((3, 40))
    for layer, twin in [
        (cn.Frequency(5), lambda v: ref.frequency(v, 5)),
        (cn.OneBlob(5), lambda v: ref.one_blob(v, 5)),
        (cn.SphericalHarmonics(6), lambda v: ref.spherical_harmonics(v, 6)),
    ]:
        y = layer([ns.Float64(v) for v in x])
        assert type(y[0]) is ns.Float64
        close(values(y), twin(x), 1e-12)


# ---- what the formulas promise -----------------------------------------------------------------------------


def test_frequency_in_the_order_of_tiny_cuda_nn(ns):
    y = values(cn.Frequency(3)([ns.Float(0.125), ns.Float(1.0)]))[:, 0]
    a = np.pi / 8
    wanted = [f(k * a) for k in (1, 2, 4) for f in (math.sin, math.cos)]
    np.testing.assert_allclose(y, [*wanted, 0, -1, 0, 1, 0, 1], atol=1e-6)
    # reduced phases stay exact where doubled angles lose all bits
    y = values(cn.Frequency(24)([ns.Float(0.3)]))
    np.testing.assert_allclose(y, ref.frequency(np.array([[np.float32(0.3)]]), 24), atol=2e-6)


def test_triangle_wave_known_values(ns):
    y = values(cn.TriangleWave(3)([ns.Float(0.3)]))[:, 0]
    np.testing.assert_allclose(y, [0.4, -0.8, 0.6], atol=1e-6)  # phases 0.15, 0.3 + 0.25, 0.6 + 0.5 periods


def quartic(u):
    return np.where(np.abs(u) < 1, 15 / 16 * (1 - u * u) ** 2, 0)


def test_one_blob_is_periodic_far_away(ns):
    """Where single precision has the place within the period, features are those of the place."""
    x = np.array([2.0**14 + 0.25, -(2.0**20) + 0.75, 2.0**23, 2.0**24, -1e30], np.float32)
    near = (x.astype(np.float64) % 1).astype(np.float32)
    assert list(near[:2]) == [0.25, 0.75]
    for n in (1, 4, 16):
        far, expected = (values(cn.OneBlob(n)([ns.Float(v)])) for v in (x, near))
        np.testing.assert_allclose(far, expected, atol=1e-6)


@pytest.mark.parametrize("n", [2, 4, 5, 16])
def test_one_blob_integrates_a_periodic_kernel(ns, n):
    x = np.linspace(0, 1, 23, dtype=np.float32)
    y = values(cn.OneBlob(n)([ns.Float(x)]))
    np.testing.assert_allclose(y.sum(axis=0), 1, atol=1e-6)
    assert y.min() > -1e-6 and ((y > 1e-6).sum(axis=0) <= 3).all()
    t = (np.arange(4000) + 0.5) / 4000
    density = sum(quartic((t[:, None] - x - m) * n) for m in (-1, 0, 1)) * n
    # bins of n that don't divide the samples differ by a sample
    bins = np.stack([density[(t * n).astype(int) == k].sum(axis=0) for k in range(n)]) / 4000
    np.testing.assert_allclose(y, bins, atol=n * 1e-3)
    np.testing.assert_allclose(y[:, 0], y[:, -1], atol=1e-6)


def sphere(n):
    """Nodes and weights that integrate polynomials of degree 2 n - 1 over the sphere."""
    z, wz = np.polynomial.legendre.leggauss(n)
    phi = 2 * np.pi * np.arange(2 * n) / (2 * n)
    z, wz = np.repeat(z, 2 * n), np.repeat(wz, 2 * n) * np.pi / n
    phi, s = np.tile(phi, n), np.sqrt(1 - z * z)
    return np.stack([s * np.cos(phi), s * np.sin(phi), z]), wz


def test_spherical_harmonics_are_orthonormal(ns):
    v, w = sphere(9)
    y = values(cn.SphericalHarmonics(8)(arrays(ns, (v + 1) / 2)))
    np.testing.assert_allclose((y * w) @ y.T, np.eye(64), atol=2e-5)


def test_spherical_harmonics_signs_and_order(ns):
    """The polynomials of the first bands, as in any table, in the order and with the signs of tiny-cuda-nn."""
    v, _ = sphere(4)
    x, y, z = v
    c = math.sqrt(1 / (4 * np.pi))
    table = [
        c + 0 * x, -math.sqrt(3) * c * y, math.sqrt(3) * c * z, -math.sqrt(3) * c * x,
        math.sqrt(15) * c * x * y, -math.sqrt(15) * c * y * z, math.sqrt(5) / 2 * c * (3 * z * z - 1),
        -math.sqrt(15) * c * x * z, math.sqrt(15) / 2 * c * (x * x - y * y),
        math.sqrt(17.5) / 2 * c * y * (y * y - 3 * x * x), math.sqrt(105) * c * x * y * z,
        math.sqrt(10.5) / 2 * c * y * (1 - 5 * z * z), math.sqrt(7) / 2 * c * z * (5 * z * z - 3),
        math.sqrt(10.5) / 2 * c * x * (1 - 5 * z * z), math.sqrt(105) / 2 * c * z * (x * x - y * y),
        math.sqrt(17.5) / 2 * c * x * (3 * y * y - x * x),
    ]  # fmt: skip
    np.testing.assert_allclose(ref.spherical_harmonics((v + 1) / 2, 4), table, atol=1e-12)
    np.testing.assert_allclose(values(cn.SphericalHarmonics(4)(arrays(ns, (v + 1) / 2))), table, atol=2e-6)


def test_fourier_frequencies_are_normal_and_the_same_everywhere(ns):
    layer = cn.Fourier(2000, 3.0, seed=11, in_features=2)
    drawn = frequencies(layer.alloc(ns.TensorXf))
    assert (drawn == frequencies(layer.alloc(ns.TensorXf, rng=dr.rng(9)))).all()
    assert (drawn != frequencies(cn.Fourier(2000, 3.0, seed=12, in_features=2).alloc(ns.TensorXf))).any()
    np.testing.assert_allclose(drawn.ravel()[:101], 3 * ref.fourier_frequencies(101, 11), rtol=1e-6)
    z = np.sort(drawn.ravel() / 3.0)
    normal = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in z])
    # Kolmogorov and Smirnov's statistic, at 1.63 / sqrt(n) for one chance in a hundred
    assert np.abs(normal - np.arange(len(z)) / len(z)).max() < 1.63 / math.sqrt(len(z))
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.06


def test_an_empty_composite_has_no_features():
    assert [cn.Composite(reduction=r).width(3) for r in ("concatenation", "sum", "product")] == [0, 0, 0]


def test_sizes_of_grids(ns):
    """Entries per level as in tiny-cuda-nn: scales 4, 8, 16 less 1."""
    options = dict(n_levels=3, n_features_per_level=2, hashmap_size=100, base_resolution=5, per_level_scale=2.0)
    sides = [5, 10, 20]
    expected = {
        "dense": [-(-s * s // 8) * 8 for s in sides],
        "hash": [min(-(-s * s // 8) * 8, 100) for s in sides],
        "tiled": [25, 25, 25],
    }
    for storage, sizes in expected.items():
        layer = cn.Grid(2, storage, **options).alloc(ns.TensorXf)
        assert dr.width(layer["data"]) == 2 * sum(sizes), storage
    drjit = drnn.HashGridEncoding(ns.Float, 2, **options)
    assert dr.width(cn.HashGrid(2, **options).alloc(ns.TensorXf)["data"]) == drjit.n_params
    # the default growth of dense storage stops at 256 cells
    layer = cn.Grid(2, "dense", n_levels=4, base_resolution=8).alloc(ns.TensorXf)
    assert layer.grid.value.levels[3].resolution in (256, 257)
    assert layer.per_level_scale is None
    # also from above
    layer = cn.Grid(1, "dense", n_levels=2, base_resolution=300).alloc(ns.TensorXf)
    assert [level.scale for level in layer.grid.value.levels] == pytest.approx([299, 255])


def single_scale(level, base, growth):
    """Cells per unit length in tiny-cuda-nn: ``exp2f(level * log2f(growth)) * base - 1``."""
    f = np.float32
    rate = f(math.log2(f(growth)))
    return f(f(2.0 ** float(f(level) * rate)) * f(base)) - f(1)


@pytest.mark.parametrize("base, growth", [(16, 1.5), (16, 2.0), (3, 1.7), (16, 1.3819), (16, 0.5), (40, 0.7)])
def test_scales_of_grids_are_single_precision(ns, base, growth):
    layer = cn.Grid(2, base_resolution=base, per_level_scale=growth, hashmap_size=2**8).alloc(ns.TensorXf)
    found = layer.grid.value.levels
    assert [level.scale for level in found] == [single_scale(level, base, growth) for level in range(16)]
    assert [level.resolution for level in found] == [math.ceil(level.scale) + 1 for level in found]
    if (base, growth) == (16, 1.5):
        assert found[-1].scale == np.float32(7005.2993)  # in double precision, 7005.299309; tables may differ by that


def test_grids_that_become_coarser(ns):
    """Down to a single vertex, whose cell is wider than the unit square."""
    options = dict(n_levels=7, base_resolution=16, per_level_scale=0.5)
    for storage in ("hash", "dense", "tiled"):
        layer = cn.Grid(2, storage, **options, init_scale=1.0).alloc(ns.TensorXf)
        assert [level.resolution for level in layer.grid.value.levels] == [16, 8, 4, 2, 1, 1, 1]
        x = np.random.default_rng(1).random((2, 50)).astype(np.float32)
        np.testing.assert_allclose(values(layer(arrays(ns, x))), grid_twin(layer, x.astype(np.float64)), atol=1e-5)


def test_entries_need_not_be_a_multiple_of_the_features(ns):
    layer = cn.Grid(2, hashmap_size=1, n_levels=2, n_features_per_level=4).alloc(ns.TensorXf)
    assert dr.width(layer["data"]) == 2 * 4
    x = np.random.default_rng(1).random((2, 50)).astype(np.float32)
    np.testing.assert_allclose(values(layer(arrays(ns, x))), grid_twin(layer, x.astype(np.float64)), atol=1e-8)


@pytest.mark.parametrize("kind", [cn.Grid, cn.HashGrid, cn.Permutohedral])
def test_levels_above_the_highest_give_zeros(ns, kind):
    x = np.random.default_rng(1).random((2, 50)).astype(np.float32)
    layer = kind(2, **LEVELS, init_scale=1.0, max_level=1).alloc(ns.TensorXf)
    assert isinstance(layer.max_level, ns.Float)
    every = grid_twin(layer, x.astype(np.float64)).reshape(3, 2, 50)
    for most in (1, 0, 1.5, -1, 2, None, ns.Float(1)):
        if most != 1 or isinstance(most, dr.ArrayBase):
            layer.max_level = most
        shown = 3 if most is None else max(0, 1 + int(np.floor(np.ravel(most)[0])))
        expected = np.where(np.arange(3)[:, None, None] < shown, every, 0).reshape(6, 50)
        dr.clear_grad(layer["data"])
        dr.enable_grad(layer["data"])
        y, (dy,) = layer.jvp(arrays(ns, x), [arrays(ns, np.ones_like(x))])
        np.testing.assert_allclose(values(y), expected, atol=1e-5)
        assert not np.any(values(dy)[2 * shown :]) and np.all(np.any(values(dy)[: 2 * shown], axis=1))
        dr.backward(sum(v * v for v in y) + sum(dy))
        gradient = layer["data"].grad.numpy()
        ends = [0] + [2 * level.end for level in layer.grid.value.levels]
        assert [bool(np.any(gradient[a:b])) for a, b in itertools.pairwise(ends)] == [i < shown for i in range(3)]


def test_a_highest_level_for_every_sample(ns):
    layer = cn.Grid(2, **LEVELS, init_scale=1.0).alloc(ns.TensorXf)
    x = np.random.default_rng(1).random((2, 50)).astype(np.float32)
    every = values(layer(arrays(ns, x)))
    most = np.arange(50, dtype=np.float32) % 4 - 1
    layer.max_level = ns.Float(most)
    np.testing.assert_array_equal(values(layer(arrays(ns, x))), np.where(np.arange(6)[:, None] // 2 <= most, every, 0))
    layer.max_level = ns.Float(most[:7])
    with pytest.raises(ValueError, match=r"^Grid: max_level has 7 entries for 50 samples; both must agree, or be 1\.$"):
        layer(arrays(ns, x))
    with pytest.raises(ValueError, match=r"^Grid: max_level has no entry; one, or one for each sample, is needed\.$"):
        layer.max_level = ns.Float()


def test_a_field_from_coarse_to_fine(ns, backend):
    """The highest level is no part of a frozen step; checkpoints keep it."""
    field = cn.NeuralField(cn.Grid(2, **LEVELS, max_level=0), cn.MLP(out_features=1, width=16, depth=1)).build(backend)
    start = field["encoding.data"].numpy()
    ends = [0] + [2 * level.end for level in field.encoding.grid.value.levels]

    def moved():
        now = field["encoding.data"].numpy()
        return [bool(np.any(now[a:b] != start[a:b])) for a, b in itertools.pairwise(ends)]

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 256)
        return [x, y], [dr.sin(9 * x) * y]

    def rate(step):
        field.encoding.max_level = step // 10
        return 1e-2

    found = {}
    options = dict(lr=rate, progress=False, metric_every=10)
    result = cn.fit(field, batch, 40, metric=lambda field: found.setdefault(len(found), moved()) and 0.0, **options)
    assert result.recordings <= 2
    assert [sum(v) for v in found.values()] == [1, 2, 3, 3]
    p = arrays(ns, np.random.default_rng(1).random((2, 50)).astype(np.float32))
    field.encoding.max_level = 1
    coarse = values(field(p))
    again = cn.io.architecture.construct(cn.io.architecture.describe(field)).build(backend)
    for name in field:
        again[name] = field[name]
    assert np.array_equal(values(again(p)), coarse) and float(again.encoding.max_level[0]) == 1
    audit = field.audit(p)
    assert audit.layers[0].max_error < 1e-5 and not audit.unknown
    field.encoding.max_level = None
    assert not np.array_equal(values(field(p)), coarse)


def test_fine_levels_of_tiled_grids(ns):
    """A level holds no more than the coarsest, however fine it is."""
    layer = cn.Grid(3, "tiled", n_levels=10, base_resolution=4, per_level_scale=2.0).alloc(ns.TensorXf)
    assert dr.width(layer["data"]) == 10 * 4**3 * layer.n_features_per_level


def test_entries_of_vertices(ns):
    """Nearest lookup of parameters that count the entries, against the formulas of tiny-cuda-nn by hand."""
    hashed = cn.Grid(3, n_levels=1, base_resolution=100, hashmap_size=1000, interpolation="nearest")
    tiled = cn.Grid(2, "tiled", n_levels=3, base_resolution=4, interpolation="nearest")
    entries = []
    for layer, x in ((hashed, [0.1, 0.505, 0.9]), (tiled, [0.3, 0.8])):
        built = layer.alloc(ns.TensorXf)
        built["data"] = dr.arange(ns.Float, dr.width(built["data"]))
        entries += [int(v) // 2 for v in values(built([ns.Float(v) for v in x]))[::2, 0]]
    # x times 99, 3, 7 and 15, plus one half, rounded down
    key = 10 ^ (50 * 2654435761) % 2**32 ^ (89 * 805459861) % 2**32
    assert entries == [key % 1000, 1 + 4 * 2, 16 + (2 + 8 * 6) % 16, 32 + (5 + 16 * 12) % 16]


def test_initial_values_of_grids(ns):
    for layer in (cn.Grid(2, "dense", n_levels=2, init_scale=0.5), cn.Permutohedral(3, n_levels=2, init_scale=0.5)):
        v = layer.alloc(ns.TensorXf)["data"].numpy()
        assert -0.5 <= v.min() < -0.45 and 0.45 < v.max() <= 0.5 and abs(v.mean()) < 0.03


def test_one_feature_per_vertex(ns):
    """Without the warning of drjit.nn, which is about half precision; pytest makes warnings errors."""
    for layer in (
        cn.Grid(3, n_levels=2, n_features_per_level=1),
        cn.Permutohedral(3, n_levels=2, n_features_per_level=1),
    ):
        assert len(layer.alloc(ns.TensorXf)([ns.Float(0.3)] * 3)) == 2


@pytest.mark.parametrize("interpolation", ["linear", "smoothstep", "nearest"])
def test_grids_are_partitions_of_unity(ns, interpolation):
    x = arrays(ns, np.random.default_rng(4).random((3, 100)))
    for storage in ("hash", "dense", "tiled"):
        layer = cn.Grid(3, storage, **LEVELS, interpolation=interpolation).alloc(ns.TensorXf)
        layer["data"] = dr.ones(ns.Float, dr.width(layer["data"]))
        np.testing.assert_allclose(values(layer(x)), 1, atol=1e-5)


GRIDS = {
    "hash": lambda: cn.Grid(2, **LEVELS, init_scale=1.0),
    "dense": lambda: cn.Grid(2, "dense", **LEVELS, init_scale=1.0),
    "tiled": lambda: cn.Grid(2, "tiled", **LEVELS, init_scale=1.0),
    "smoothstep": lambda: cn.Grid(2, **LEVELS, init_scale=1.0, interpolation="smoothstep"),
    "nearest": lambda: cn.Grid(2, **LEVELS, init_scale=1.0, interpolation="nearest"),
    "drjit": lambda: cn.HashGrid(2, **LEVELS, init_scale=1.0),
    "permutohedral": lambda: cn.Permutohedral(2, **LEVELS, init_scale=1.0),
}


@pytest.mark.parametrize("name", GRIDS)
def test_grids_outside_the_unit_cube(ns, name):
    """Left of 0, too, where differences of neighbouring points soon end up: weights stay between 0 and 1."""
    layer = GRIDS[name]().alloc(ns.TensorXf)
    x = np.random.default_rng(6).uniform(-3, 3, (2, 200)).astype(np.float32)
    leaves = arrays(ns, x)
    y = values(layer(leaves))
    np.testing.assert_allclose(y, grid_twin(layer, x.astype(np.float64)), atol=1e-4)
    np.testing.assert_allclose(values(layer.jvp(leaves, [])[0]), y, atol=1e-4)
    # gradients of parameters take the same weights
    dr.enable_grad(layer["data"])
    dr.backward(sum(layer(leaves)))
    total = 200 * len(y)
    if name != "permutohedral":
        assert np.sum(layer["data"].grad.numpy(), dtype=np.float64) == pytest.approx(total, rel=1e-4)


def test_nearest_steps(ns):
    """Four entries in a row, each constant over a cell; tiny-cuda-nn's half a cell of offset."""
    layer = cn.Grid(1, "dense", n_levels=1, n_features_per_level=2, base_resolution=4, interpolation="nearest")
    layer = layer.alloc(ns.TensorXf)
    layer["data"] = ns.Float(np.arange(16, dtype=np.float32))
    dr.enable_grad(layer["data"])
    x = ns.Float([0.0, 0.16, 0.17, 0.49, 0.51, 0.9])  # times 3, plus one half: 0.5 0.98 1.01 1.97 2.03 3.2
    y = layer([x])
    np.testing.assert_array_equal(values(y), [[0, 0, 2, 2, 4, 6], [1, 1, 3, 3, 5, 7]])
    dr.backward(y[0])
    np.testing.assert_array_equal(layer["data"].grad.numpy()[:8], [2, 0, 2, 0, 1, 0, 1, 0])


def test_smoothstep_is_flat_at_the_vertices(ns):
    options = dict(n_levels=1, base_resolution=5, init_scale=1.0)
    x = ns.Float((np.arange(4, dtype=np.float32) + 0.5) / 4)  # the vertices of 4 cells with half a cell of offset
    for interpolation, flat in (("smoothstep", True), ("linear", False)):
        layer = cn.Grid(1, "dense", **options, interpolation=interpolation).alloc(ns.TensorXf)
        p = ns.Float(x)
        dr.enable_grad(p)
        dr.backward(layer([p])[0])
        assert (abs(dr.grad(p).numpy()) < 1e-3).all() == flat


def test_permutohedral_interpolates_linear_functions(ns):
    layer = cn.Permutohedral(3, n_levels=1, base_resolution=6).alloc(ns.TensorXf)  # 216 vertices, not hashed
    vertex = np.stack(np.unravel_index(np.arange(216), (6, 6, 6)))[::-1]  # the first axis is the fastest
    slope, x = np.array([1.0, -2.0, 0.5]), np.random.default_rng(5).random((3, 200)).astype(np.float32) * 0.85
    params = np.stack([slope @ vertex, np.ones(216)], axis=1)
    layer["data"] = ns.Float(params.ravel().astype(np.float32))
    y = values(layer(arrays(ns, x)))
    np.testing.assert_allclose(y, [slope @ (x * 5.0 + 0.5), np.ones(200)], atol=1e-4)


@pytest.mark.parametrize("hashed", [True, False])
def test_permutohedral_twin_matches_drjit(ns, hashed):
    """The reference against Dr.Jit's own class, not ours."""
    options = LEVELS | {"hashmap_size": 2**5 if hashed else 2**14}
    grid = drnn.PermutoEncoding(ns.Float, 3, **options)
    grid.data = ns.Float(np.random.default_rng(6).normal(size=grid.n_params).astype(np.float32))
    x = np.random.default_rng(7).random((3, 150)).astype(np.float32)
    scales = [grid._level_scale(level) for level in range(3)]
    expected = ref.permutohedral(x, grid.data.numpy(), **options, level_scales=scales)
    close(values(grid(arrays(ns, x))), expected, 1e-5)


# ---- gradients of parameters -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n][2] is grid_twin])
def test_grid_gradients(ns, backend, name):
    layer, size, _ = make(ns, name)
    rng = np.random.default_rng(8)
    x = rng.random((size, 3000)).astype(np.float32)
    dy = rng.normal(size=(6, 3000))
    vjp = ref.permutohedral_vjp if isinstance(layer, cn.Permutohedral) else ref.hash_grid_vjp
    expected = vjp(x, layer["data"].numpy(), dy, **grid_options(layer))
    expected = expected if isinstance(expected, np.ndarray) else expected[1]
    dr.enable_grad(layer["data"])
    runs = []
    for _ in range(3):
        dr.clear_grad(layer["data"])
        with cn.deterministic(backend == "cuda"):
            dr.backward(weighted(layer(arrays(ns, x)), dy))
        runs.append(dr.grad(layer["data"]).numpy().copy())
        close(runs[-1], expected, 1e-5)
    assert len({run.tobytes() for run in runs}) == 1
    # linear in the parameters: the tangent is the grid of the tangent
    tangent = rng.normal(size=dr.width(layer["data"])).astype(np.float32)
    y = layer(arrays(ns, x))
    dr.set_grad(layer["data"], ns.Float(tangent))
    actual = values(dr.forward_to(y))
    layer["data"] = ns.Float(tangent)
    close(actual, values(layer(arrays(ns, x))), 1e-5)


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n][2] is grid_twin])
def test_entries_that_no_sample_reads_have_no_gradient(ns, backend, name):
    """Exactly none, and others have one."""
    layer, size, _ = make(ns, name)
    x = np.random.default_rng(8).random((size, 5)).astype(np.float32)
    vjp = ref.permutohedral_vjp if isinstance(layer, cn.Permutohedral) else ref.hash_grid_vjp
    expected = vjp(x, layer["data"].numpy(), np.ones((6, 5)), **grid_options(layer))
    weight = expected if isinstance(expected, np.ndarray) else expected[1]
    dr.enable_grad(layer["data"])
    for deterministic in (False, True):
        dr.clear_grad(layer["data"])
        with cn.deterministic(deterministic):
            dr.backward(weighted(layer(arrays(ns, x)), np.ones((6, 5))))
        gradient = dr.grad(layer["data"]).numpy()
        assert not gradient[weight == 0].any() and gradient[weight > 1e-3].all()
    assert (weight == 0).any() and (weight > 1e-3).any()


@pytest.mark.parametrize("where", ["plain", "symbolic"])
def test_trained_fourier_gradients(ns, where):
    layer = cn.Fourier(4, 1.5, trained=True, in_features=3).alloc(ns.TensorXf)
    assert list(layer) == ["data"] and list(cn.Fourier(4, in_features=3).alloc(ns.TensorXf)) == []
    dr.enable_grad(layer["data"])
    rng = np.random.default_rng(9)
    x, dy = rng.random((3, 500)).astype(np.float32), rng.normal(size=(8, 500))
    leaves = arrays(ns, x)
    dr.enable_grad(leaves)
    if where == "plain":
        y = layer(leaves)
    else:
        lane = dr.arange(ns.UInt32, 500)
        zeros = [dr.zeros(ns.Float, 500) for _ in range(8)]
        y = dr.if_stmt((leaves, zeros), lane < 900, lambda x, z: layer(x), lambda x, z: z, mode="symbolic")
    dr.backward(weighted(y, dy))
    b = frequencies(layer).astype(np.float64)
    expected = np.zeros(b.shape)
    for i in np.ndindex(b.shape):
        e = np.zeros(b.shape)
        e[i] = 1e-6
        expected[i] = (dy * (ref.fourier(x, b + e) - ref.fourier(x, b - e))).sum() / 2e-6
    close(dr.grad(layer["data"]).numpy().reshape(b.shape), expected, 1e-4)
    close(values(dr.grad(leaves)), slopes(lambda v: ref.fourier(v, b), x.astype(np.float64), dy)[0], 1e-4)


def test_gradient_of_one_fourier_feature(ns):
    """The other outputs take part in no loss."""
    layer = cn.Fourier(3, 1.0, trained=True, in_features=2).alloc(ns.TensorXf)
    dr.enable_grad(layer["data"])
    x = np.random.default_rng(18).random((2, 50)).astype(np.float32)
    dr.backward(layer(arrays(ns, x))[2])
    expected = np.zeros((3, 2))
    expected[1] = (2 * np.pi * np.cos(2 * np.pi * frequencies(layer)[1] @ x) * x).sum(axis=1)
    close(dr.grad(layer["data"]).numpy().reshape(3, 2), expected, 1e-5)


def test_trained_fourier_forward_mode(ns):
    layer = cn.Fourier(3, 1.0, trained=True, in_features=2).alloc(ns.TensorXf)
    rng = np.random.default_rng(10)
    x, dx, db = rng.random((2, 30)), rng.normal(size=(2, 30)), rng.normal(size=(3, 2))
    leaves = arrays(ns, x)
    dr.enable_grad(layer["data"], leaves)
    y = layer(leaves)
    dr.set_grad(layer["data"], ns.Float(db.ravel().astype(np.float32)))
    dr.set_grad(leaves, arrays(ns, dx))
    b, t = frequencies(layer).astype(np.float64), 1e-6
    expected = (ref.fourier(x + t * dx, b + t * db) - ref.fourier(x - t * dx, b - t * db)) / (2 * t)
    close(values(dr.forward_to(y)), expected, 1e-4)


def test_grids_inside_symbolic_code(ns):
    layer, _, twin = make(ns, "hash smoothstep")
    dr.enable_grad(layer["data"])
    x = np.random.default_rng(11).random((3, 60)).astype(np.float32)
    leaves = arrays(ns, x)
    zeros = [dr.zeros(ns.Float, 60) for _ in range(6)]
    lane = dr.arange(ns.UInt32, 60)
    y = dr.if_stmt((leaves, zeros), lane < 900, lambda x, z: layer(x), lambda x, z: z, mode="symbolic")
    close(values(y), twin(x), 1e-5)
    dr.backward(weighted(y, np.ones((6, 60))))
    expected = ref.hash_grid_vjp(x, layer["data"].numpy(), np.ones((6, 60)), **grid_options(layer))[1]
    close(dr.grad(layer["data"]).numpy(), expected, 1e-5)


# ---- composites --------------------------------------------------------------------------------------------


@few
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), min_size=1, max_size=4), st.booleans())
def test_composite_ranges(ranges, open_end):
    """Every layout of ranges gives what slicing the rows gives."""
    ns = backends.namespace(backends.available()[-1])
    size = 5
    nested = [cn.TriangleWave(2) if wave else cn.Identity() for _, _, wave in ranges]
    counts, begins = [n for n, _, _ in ranges], [b for _, b, _ in ranges]
    if open_end:
        used, begins = sum(counts[1:]), None
        if used > size:
            with pytest.raises(ValueError, match="Composite: encoding"):
                cn.Composite(nested, [-1, *counts[1:]]).alloc(ns.TensorXf, size)
            return
        counts = [size - used, *counts[1:]]
        layer = cn.Composite(nested, [-1, *counts[1:]], in_features=size)
        starts = np.cumsum([0, *counts[:-1]])
    else:
        layer, starts = cn.Composite(nested, counts, begins, in_features=size), begins
    parts = [
        (b, n, (lambda v: ref.triangle_wave(v, 2)) if wave else ref.identity)
        for b, n, (_, _, wave) in zip(starts, counts, ranges, strict=True)
        if n > 0
    ]
    if not parts:
        with pytest.raises(ValueError, match="Composite: no encoding has any coordinates"):
            layer.alloc(ns.TensorXf)
        return
    x = np.random.default_rng(12).random((size, 9)).astype(np.float32)
    built = layer.alloc(ns.TensorXf)
    expected = ref.composite(x, parts)
    assert layer.width(size) == built.width(size) == len(expected)
    close(values(built(arrays(ns, x))), expected, 1e-5)
    close(values(layer(arrays(ns, x))), expected, 1e-5)


def test_coordinates_of_a_composite():
    """As many as its ranges reach, if they are known; none at all is not a number of them."""
    for counts, begins, n in [([2, 3], None, 5), ([2, 3], [4, 0], 6), ([0, 3], None, 3), ([0, 0], None, -1)]:
        assert cn.Composite([cn.Identity(), cn.OneBlob(4)], counts, begins).in_features == n
    assert cn.Composite([cn.Identity(), cn.OneBlob(4)], [2, -1]).in_features == -1
    assert cn.Composite([cn.Identity(), cn.OneBlob(4)], [2, -1], in_features=3).in_features == 3
    assert cn.Composite().in_features == -1


def test_input_of_neural_radiance_caching(ns, backend):
    """3 spatial, 5 directional and 6 other coordinates, as in tiny-cuda-nn's documentation."""
    encoding = cn.Composite([cn.TriangleWave(12), cn.OneBlob(4), cn.Identity()], [3, 5, -1])
    assert encoding.width(14) == 36 + 20 + 6
    field = cn.NeuralField(encoding, cn.MLP(out_features=3, width=16, depth=1), in_features=14).build(backend)
    y = field(arrays(ns, np.random.default_rng(13).random((14, 20))))
    assert np.isfinite(values(y)).all() and values(y).shape == (3, 20)


# ---- fields and files --------------------------------------------------------------------------------------


def fields():
    mlp = dict(out_features=2, width=16, depth=1, activation="tanh")
    grid = cn.Grid(2, "dense", **LEVELS, init_scale=0.5, interpolation="smoothstep")
    nested = [grid, cn.Fourier(4, 1.0, trained=True), cn.Composite([cn.OneBlob(4)])]
    return {
        "composite": cn.NeuralField(cn.Composite(nested, [2, 1, -1], in_features=4), cn.MLP(**mlp)),
        "padded": cn.NeuralField(cn.nn.Pad(grid, before=1, after=3, value=0.5), cn.MLP(**mlp)),
        "permutohedral": cn.NeuralField(cn.Permutohedral(5, **LEVELS, init_scale=0.5), cn.MLP(**mlp)),
        "fourier": cn.NeuralField(cn.Fourier(4, 1.0, seed=2**40, in_features=2), cn.MLP(**mlp)),
        "harmonics": cn.NeuralField(cn.SphericalHarmonics(3), cn.MLP(**mlp)),
        "siren": cn.NeuralField(None, cn.SIREN(2, 2, width=16, depth=2, omega_0=5, omega=2)),
        "scaled": cn.NeuralField(
            cn.Identity(2.0, -1.0),
            cn.Sequential(
                cn.Linear(2, 8), cn.Tanh(), cn.Identity(0.5, 0.1), cn.Linear(-1, 8), cn.Tanh(), cn.Linear(-1, 2)
            ),
        ),
        "tiled": cn.NeuralField(cn.Grid(2, "tiled", **LEVELS, init_scale=0.5), cn.MLP(**mlp)),
        "smooth": cn.NeuralField(cn.HashGrid(2, **LEVELS, interpolation="smoothstep"), cn.MLP(**mlp)),
        "waves": cn.NeuralField(
            cn.Frequency(3),
            cn.Sequential(cn.Linear(12, 8), cn.Identity(0.5, 0.1), cn.TriangleWave(2), cn.Linear(-1, 2)),
        ),
    }


@pytest.mark.parametrize("name", fields())
def test_round_trip(ns, backend, name, tmp_path):
    if backend == "cuda" and name not in ("composite", "siren"):
        pytest.skip("compiling takes long")
    field = fields()[name]
    description = io.describe(field)
    assert io.describe(io.construct(json.loads(json.dumps(description)))) == description
    field = field.build(backend, seed=5)
    p = arrays(ns, np.random.default_rng(14).random((field.in_features, 30)))
    io.save(tmp_path / "f.safetensors", field)
    again = io.load(tmp_path / "f.safetensors", backend)
    assert list(again) == list(field) and io.describe(again) == io.describe(field)
    np.testing.assert_array_equal(values(again(p)), values(field(p)))


def test_files_from_before_options_were_added():
    field = cn.NeuralField(cn.HashGrid(2, n_levels=2), cn.Sequential(cn.Linear(-1, 3), cn.Identity()))
    description = io.describe(field)
    del description["encoding"]["interpolation"]
    del description["network"]["layers"][1]["scale"], description["network"]["layers"][1]["offset"]
    assert io.describe(io.construct(description)) == io.describe(field)
    del description["encoding"]["init_scale"]
    with pytest.raises(ValueError, match="encoding lacks init_scale"):
        io.construct(description)


def test_lists_in_descriptions():
    description = io.describe(fields()["composite"])
    for change, message in [
        ({"nested": 3}, "nested is a int"),
        ({"nested": [3]}, r"nested\[0\] is a int"),
        ({"nested": [None]}, r"nested\[0\] is a NoneType"),
        ({"n_dims_to_encode": [2, 1, "x"]}, r"n_dims_to_encode\.2 is 'x'"),
        ({"n_dims_to_encode": [2, 1]}, "a list of 3 ints"),
        ({"reduction": ["sum"]}, "reduction is a list"),
        ({"nested": [{"type": "coopnet.ReLU"}]}, r"nested\[0\] is a ReLU"),
    ]:
        with pytest.raises(ValueError, match=message):
            io.construct(description | {"encoding": description["encoding"] | change})


@pytest.mark.parametrize("name", ["composite", "permutohedral", "siren", "scaled"])
def test_gradients_of_fields_by_differences(ns, backend, name):
    """The derivative along a random direction of all parameters."""
    if backend == "cuda":
        pytest.skip("half precision is too coarse for differences")
    field = fields()[name].build(backend, seed=4)
    rng = np.random.default_rng(15)
    p = arrays(ns, rng.random((field.in_features, 2000)))
    start = {k: v.numpy().copy() for k, v in field.items()}
    step = {k: rng.standard_normal(v.shape).astype(np.float32) for k, v in start.items()}

    def loss(t):
        for k, v in start.items():
            field[k] = type(field[k])(v + np.float32(t) * step[k])
            dr.enable_grad(field[k])
        y = field(p)
        return dr.mean(dr.square(y[0]) + y[0] * y[1])

    dr.backward(loss(0))
    slope = sum(float((dr.grad(field[k]).numpy().astype(np.float64) * step[k]).sum()) for k in start)
    t = 1e-3
    difference = (loss(t).numpy()[0].astype(np.float64) - loss(-t).numpy()[0]) / (2 * t)
    assert slope == pytest.approx(difference, rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("path", ["spill", "store", "banks", "builtin"])
def test_scaled_identity_inside_networks(ns, backend, path):
    """y = B (s A x + o), on every way that the engine differentiates networks."""
    tensor, leaf = (ns.TensorXf16, ns.Float16) if backend == "cuda" else (ns.TensorXf, ns.Float)
    net = cn.Sequential(cn.Linear(3, 5, False), cn.Identity(-0.5, 0.25), cn.Linear(5, 2, False)).alloc(tensor)
    a, b = (net.layers[i].weights.numpy().astype(np.float64) for i in (0, 2))
    packed = drnn.pack(net, layout="training")
    rng = np.random.default_rng(19)
    x, dy = rng.random((3, 300)), rng.standard_normal((2, 300))
    leaves = [leaf(v) for v in x]
    dr.enable_grad(leaves, packed["weights"])
    with cn.gradient_path(path):
        y = list(packed(drnn.CoopVec(leaves)))
        dr.backward(sum(ns.Float(v) * ns.Float(d) for v, d in zip(y, dy, strict=True)))
    tolerance = 2e-2 if backend == "cuda" else 1e-5
    close(values(y), b @ (-0.5 * a @ x + 0.25), tolerance)
    close(values(dr.grad(leaves)), -0.5 * a.T @ b.T @ dy, tolerance)
    close(gradients(packed)[0][0], -0.5 * b.T @ dy @ x.T, tolerance)


def test_encodings_inside_frozen_functions(ns, backend):
    if backend == "cuda":
        pytest.skip("compiling takes long")
    field = fields()["composite"].build(backend)

    def step(field, p):
        for value in field.values():
            dr.clear_grad(value)
            dr.enable_grad(value)
        dr.backward(dr.mean(field(p)[0]))
        return [dr.grad(value) for value in field.values()]

    frozen = dr.freeze(step)
    dr.enable_grad(*field.values())
    for i in range(4):
        p = [v + 1e-3 for v in arrays(ns, np.random.default_rng(i).random((4, 64)))]
        dr.eval(p)
        for a, b in zip(frozen(field, p), step(field, p), strict=True):
            close(np.array(a), np.array(b), 1e-6)
            assert abs(np.array(b)).max() > 0
    assert frozen.n_recordings <= 2  # the first call finds no gradients yet


# ---- SIREN -------------------------------------------------------------------------------------------------


def test_siren_initial_weights(ns):
    net = cn.SIREN(3, 2, width=128, depth=4, omega=20.0).alloc(ns.TensorXf)
    layers = net.layers[::2]
    bounds = ref.siren_bounds([3, 128, 128, 128, 128, 2], omega=20)
    for layer, bound in zip(layers, bounds, strict=True):
        w = layer.weights.numpy()
        assert abs(w).max() <= bound * (1 + 1e-6)
        assert abs(w).max() > 0.95 * bound and abs(w.mean()) < 0.1 * bound
        assert 0 < abs(layer.bias.numpy()).max() <= 1 / math.sqrt(layer.config[0])
    x = 2 * np.random.default_rng(16).random((3, 500)) - 1
    arguments, h = [], x
    for i, layer in enumerate(layers[:-1]):
        a = (20.0 if i else 30.0) * ref.linear(layer.weights.numpy(), h, layer.bias.numpy())
        arguments.append(a.std())
        h = np.sin(a)
    assert all(0.7 < s < 2.2 for s in arguments[1:])  # about 1, whatever the depth, and biases add to it


def test_siren_values(ns, backend):
    tensor = ns.TensorXf16 if backend == "cuda" else ns.TensorXf
    for size in (1, 2):
        net = cn.SIREN(size, 2, width=16, depth=3, omega_0=4, omega=3).alloc(tensor)
        layers = [m for m in net.layers if isinstance(m, cn.Linear)]
        weights = [m.weights.numpy()[:, : m.config[0]].astype(np.float64) for m in layers]
        biases = [m.bias.numpy().astype(np.float64) for m in layers]
        packed = drnn.pack(net, layout="training")
        x = np.random.default_rng(17).random((size, 50)).astype(np.float32)
        dtype = np.float16 if backend == "cuda" else np.float32
        y = list(packed(drnn.CoopVec(arrays(ns, x, dtype))))
        close(values(y), ref.siren(weights, biases, x, 4, 3), 3e-2 if backend == "cuda" else 1e-5)


# ---- errors ------------------------------------------------------------------------------------------------

BAD = [
    (lambda: cn.Frequency(0), ValueError, "Frequency: n_frequencies is 0; a positive int"),
    (lambda: cn.TriangleWave(True), ValueError, "TriangleWave: n_frequencies is True"),
    (lambda: cn.Frequency(2, in_features=0), ValueError, "Frequency: in_features is 0"),
    (lambda: cn.OneBlob(2.5), ValueError, "OneBlob: n_bins is 2.5; a positive int"),
    (lambda: cn.SphericalHarmonics(9), ValueError, "SphericalHarmonics: degree is 9; an int from 1 to 8"),
    (lambda: cn.SphericalHarmonics(0), ValueError, "SphericalHarmonics: degree is 0"),
    (lambda: cn.Fourier(4, -1.0), ValueError, "Fourier: scale is -1.0; a number of at least 0"),
    (lambda: cn.Fourier(4, float("nan")), ValueError, "Fourier: scale is nan"),
    (lambda: cn.Fourier(4, seed=-1), ValueError, r"Fourier: seed is -1; an int in \[0, 2\^64\)"),
    (lambda: cn.Fourier(4, trained=1), ValueError, "Fourier: trained is 1; True or False"),
    (lambda: cn.Grid(2, "sparse"), ValueError, "Grid: storage is 'sparse'; accepted are 'hash', 'dense', 'tiled'"),
    (lambda: cn.Grid(2, interpolation="cubic"), ValueError, "Grid: interpolation is 'cubic'; accepted are 'linear'"),
    (lambda: cn.HashGrid(2, interpolation=3), ValueError, "HashGrid: interpolation is 3"),
    (lambda: cn.Grid(2, n_levels=0), ValueError, "Grid: n_levels is 0; a positive int"),
    (lambda: cn.Permutohedral(2, hashmap_size=9), ValueError, "Permutohedral: hashmap_size is 9; a multiple"),
    (lambda: cn.Permutohedral(2, init_scale=-0.5), ValueError, "Permutohedral: init_scale is -0.5; a number of at"),
    (lambda: cn.HashGrid(2, init_scale=-1e-9), ValueError, "HashGrid: init_scale is -1e-09"),
    (lambda: cn.Permutohedral(2, per_level_scale=0), ValueError, "Permutohedral: per_level_scale is 0; a positive"),
    (lambda: cn.Grid(2, max_level="1"), ValueError, "Grid: max_level is '1'; a finite number is needed"),
    (lambda: cn.HashGrid(2, max_level=dr.scalar.Array2f(1)), TypeError, "HashGrid: max_level is .* None or a Float32"),
    (lambda: cn.nn.Pad(cn.ReLU()), TypeError, "Pad: nested is a ReLU; an Encoding, Identity or Embedding is needed"),
    (lambda: cn.nn.Pad(cn.Identity(), -1), ValueError, "Pad: before is -1; an int of at least 0 is needed"),
    (lambda: cn.nn.Pad(cn.Identity(), after=2**16), ValueError, "Pad: before . after is 65536; a vector has at most"),
    (lambda: cn.nn.Pad(cn.Identity(), value=math.nan), ValueError, "Pad: value is nan; a finite number is needed"),
    (lambda: cn.Composite(cn.Identity()), TypeError, "Composite: nested is a Identity; a list or tuple"),
    (
        lambda: cn.Composite([cn.ReLU()]),
        TypeError,
        r"Composite: nested\[0\] is a ReLU; an Encoding, Identity or Embedding",
    ),
    (lambda: cn.Composite([cn.Identity()] * 2), ValueError, r"the encodings \[0, 1\] state no number of coordinates"),
    (lambda: cn.Composite([cn.Identity()], [1, 2]), ValueError, r"n_dims_to_encode is \[1, 2\]; a list of 1 ints"),
    (lambda: cn.Composite([cn.Identity()], [1.5]), ValueError, "ints of at least 0, or -1"),
    (lambda: cn.Composite([cn.Identity()], None, [1]), ValueError, "encoding 0 takes the rest"),
    (
        lambda: cn.Composite([cn.OneBlob(2, 3)], [2]),
        ValueError,
        r"n_dims_to_encode\[0\] is 2, but the encoding takes 3",
    ),
    (lambda: cn.Composite([cn.Identity()], reduction="max"), ValueError, "Composite: reduction is 'max'"),
    (lambda: cn.Identity(float("inf")), ValueError, "Identity: scale is inf; a finite number"),
    (lambda: cn.SIREN(depth=0), ValueError, "SIREN: depth is 0; a positive int"),
    (lambda: cn.SIREN(omega=0.0), ValueError, "SIREN: omega is 0.0; a positive number"),
    (lambda: cn.SIREN(0), ValueError, "SIREN: in_features is 0"),
]


@pytest.mark.parametrize(("make_layer", "error", "message"), BAD)
def test_bad_arguments(make_layer, error, message):
    with pytest.raises(error, match=message):
        make_layer()


def test_bad_inputs(ns):
    two = [ns.Float(1), ns.Float(2)]
    for layer, message in [
        (cn.SphericalHarmonics(), "the input has 2 features, but the encoding takes 3"),
        (cn.OneBlob(2, in_features=3), "the input has 2 features, but the encoding takes 3"),
        (cn.Fourier(2), "the layer has no frequencies yet; call net"),
        (cn.Permutohedral(2), "the layer has no parameters yet; call net"),
        (cn.Grid(2), "the layer has no parameters yet; call net"),
        (cn.Composite(), "no encoding has any coordinates"),
        (cn.Composite([cn.Identity()], [2], [1], in_features=2), "takes the coordinates 1 to 2, but there are only 2"),
        (
            cn.Composite([cn.Identity(), cn.OneBlob(2)], [1, 1], reduction="sum"),
            r"equal widths, but they give \[1, 2\]",
        ),
    ]:
        with pytest.raises(ValueError, match=f"^{type(layer).__name__}: .*{message}"):
            layer(two)
    for layer in (cn.Frequency(), cn.Fourier(2), cn.OneBlob(), cn.Composite([cn.Identity()])):
        with pytest.raises(TypeError, match="got a NumPy array"):
            layer(np.ones((2, 3)))
        with pytest.raises(TypeError, match="a floating point type is needed"):
            layer(ns.Int(1))
    for layer, size, message in [
        (
            cn.Grid(hashmap_size=2**31),
            3,
            r"Grid: 2.1e10 x 2 features in 16 levels, .* array can hold, fewer than 2\^32",
        ),
        (cn.HashGrid(hashmap_size=2**31), 3, r"HashGrid: 2.1e10 x 2 features in 16 levels"),
        (cn.Grid(per_level_scale=1e300), 3, r"Grid: the finest level has about 2\^\d+ cells a side"),
        (cn.Grid(per_level_scale=1e-2), 3, r"Grid: a cell of the last level is about 2\^96 units wide; use fewer"),
        (cn.Permutohedral(base_resolution=2**31), 3, r"Permutohedral: the finest level has about 2\^\d+ cells a side"),
        (cn.Grid(), 8, "Grid: in_features is 8; a cell has .* Permutohedral takes more"),
        (cn.HashGrid(), 8, "HashGrid: in_features is 8; a cell has .* Permutohedral takes more"),
        (
            cn.Grid(storage="dense", per_level_scale=2.0),
            3,
            r"x 2 features in 16 levels, .* array can hold, fewer than 2\^32",
        ),
        (cn.SphericalHarmonics(), 2, "SphericalHarmonics: in_features is 3, but the input has 2"),
        (cn.Frequency(), -1, "Frequency: the size of the input is unknown"),
    ]:
        with pytest.raises(ValueError, match=message):
            layer.alloc(ns.TensorXf, size)


def test_other_backends_are_refused(ns, backend):
    if len(backends.available()) < 2:
        pytest.skip("needs two backends")
    other = backends.namespace("llvm" if backend == "cuda" else "cuda")
    for layer in (cn.Fourier(2, in_features=2), cn.Grid(2, n_levels=1), cn.Permutohedral(2, n_levels=1)):
        with pytest.raises(TypeError, match="the input lives on the"):
            layer.alloc(ns.TensorXf)([other.Float(1), other.Float(2)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: cn.Grid(2, n_levels=2, base_resolution=4, storage="dense", per_level_scale=2.0),
        lambda: cn.HashGrid(2, n_levels=2, hashmap_size=64),
        lambda: cn.Permutohedral(2, n_levels=2, hashmap_size=64),
        lambda: cn.Fourier(4, in_features=2, trained=True, seed=3),
    ],
)
def test_initial_parameters_follow_the_seed(backend, make):
    """The same of the same seed, others of another; frequencies have a seed of their own."""
    a, b, c = (
        cn.NeuralField(make(), cn.MLP(out_features=1, width=8, depth=1))
        .build(backend, seed=seed)
        .matrix("encoding.data")
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(a, b)
    assert np.array_equal(a, c) == isinstance(make(), cn.Fourier)
    assert len(np.unique(a)) > a.size // 2


@pytest.mark.parametrize("scale, offset", [(1.0, 1.0), (0.0, 0.0), (2.0, 0.0), (1.0, -0.5)])
def test_scale_and_offset_within_a_network(ns, backend, scale, offset):
    dtype = ns.TensorXf16 if backend == "cuda" else ns.TensorXf
    net = drnn.pack(cn.Sequential(cn.Linear(1, 2, bias=False), cn.Identity(scale, offset)).alloc(dtype, 1))
    weights, leaf = net.layers[0], dr.array_t(dtype)
    x = np.array([0.5, -2, 3])
    y = np.stack([v.numpy() for v in net(drnn.CoopVec([leaf(ns.Float(x))]))])
    w = weights.matrix("weights").astype(np.float64)
    np.testing.assert_allclose(y, scale * (w @ x[None]) + offset, rtol=1e-2 if backend == "cuda" else 1e-6)
