"""Grids with features in half precision: they are single-precision grids whose numbers are rounded."""

from __future__ import annotations

import pickle

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

GRIDS = {
    "hash": lambda p: cn.HashGrid(2, 4, hashmap_size=2**6, base_resolution=4, init_scale=0.5, precision=p),
    "dense": lambda p: cn.Grid(2, "dense", 3, base_resolution=4, per_level_scale=1.5, init_scale=0.5, precision=p),
    "simplices": lambda p: cn.Permutohedral(2, 4, hashmap_size=2**6, init_scale=0.5, precision=p),
}


def pair(ns, kind):
    """A half-precision grid, and one in single precision with the same numbers."""
    half = GRIDS[kind]("half").alloc(ns.TensorXf, rng=dr.rng(seed=3))
    single = GRIDS[kind]("single").alloc(ns.TensorXf, rng=dr.rng(seed=3))
    assert dr.is_half_v(half["data"]) and not dr.is_half_v(single["data"])
    rounded = single["data"].numpy().astype(np.float16)
    np.testing.assert_array_equal(half["data"].numpy(), rounded)
    single["data"] = ns.Float(rounded.astype(np.float32))
    for grid in (half, single):
        dr.enable_grad(grid["data"])
    return half, single


def points(ns, n):
    found = [ns.Float(v) for v in np.random.default_rng(1).random((2, n), np.float32)]
    dr.enable_grad(found)
    return found


def plain(ns, grid, p):
    return [ns.Float(v) for v in grid(p)]


def in_loop(ns, grid, p):
    """Three evaluations in a symbolic loop."""

    def body(i, *sums):
        return i + 1, *(s + v for s, v in zip(sums, grid([p[0] * (1 / (ns.Float(i) + 1)), p[1]]), strict=True))

    start = [dr.zeros(ns.Float, dr.width(p)) for _ in range(grid.width(2))]
    _, *sums = dr.while_loop((ns.UInt32(0), *start), lambda i, *_: i < 3, body, max_iterations=3, mode="symbolic")
    return sums


def in_conditional(ns, grid, p):
    return dr.if_stmt((p,), p[0] < 0.5, lambda p: plain(ns, grid, p), lambda p: [v * 2 for v in plain(ns, grid, p)])


SCOPES = {"plain": plain, "loop": in_loop, "conditional": in_conditional}


@pytest.mark.parametrize(
    "kind, scope",
    [("hash", "plain"), ("hash", "loop"), ("hash", "conditional"), ("dense", "plain"), ("simplices", "loop")],
)
def test_as_in_single_precision(ns, kind, scope):
    """Features and derivatives with respect to coordinates to the bit; the parameters' gradient is rounded once."""
    gradients = []
    for grid in pair(ns, kind):
        p = points(ns, 500)
        y = SCOPES[scope](ns, grid, p)
        dr.backward(sum(v * (k + 1) for k, v in enumerate(y)))
        gradients.append((grid["data"].grad.numpy(), *(v.grad.numpy() for v in p), *(v.numpy() for v in y)))
    (half, *others), (single, *expected) = gradients
    for given, wanted in zip(others, expected, strict=True):
        np.testing.assert_array_equal(given, wanted)
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, single, rtol=6e-4, atol=1e-5 * np.abs(single).max())


@pytest.mark.parametrize("scope", ["plain", "loop"])
def test_long_sums(ns, scope):
    """A sum of 2^17 equal terms would stall at 2^11 times their size in half precision."""
    grid, _ = pair(ns, "hash")
    p = [ns.Float(0.3) + dr.zeros(ns.Float, 1 << 17), ns.Float(0.6)]
    dr.backward(sum(SCOPES[scope](ns, grid, p)) * 2.0**-10)
    per_feature = {"plain": 1, "loop": 3}[scope] * 2**17 / 2**10
    assert grid["data"].grad.numpy().astype(np.float64).sum() == pytest.approx(8 * per_feature, rel=2e-3)


def test_deterministic(ns):
    gradients = []
    with cn.deterministic():
        for grid in pair(ns, "hash"):
            dr.backward(sum(plain(ns, grid, points(ns, 3000))))
            gradients.append(grid["data"].grad.numpy())
    np.testing.assert_array_equal(gradients[0], gradients[1].astype(np.float16))


def test_forward_mode(ns):
    tangent, results = np.random.default_rng(2).normal(size=1 << 12).astype(np.float16), []
    for grid in pair(ns, "hash"):
        data = grid["data"]
        y = plain(ns, grid, points(ns, 200))
        dr.set_grad(data, type(data)(tangent[: dr.width(data)]))
        dr.forward_from(data)
        results.append([dr.grad(v).numpy() for v in y])
    np.testing.assert_array_equal(*results)


def test_gradients_in_calls_are_refused(ns):
    """Of the table, where coordinates have none."""
    grid, _ = pair(ns, "hash")
    p, which = [dr.detach(v) for v in points(ns, 64)], dr.arange(ns.UInt32, 64) % 2
    y = dr.switch(which, [lambda p: grid(p)[0], lambda p: grid(p)[1]], p)
    with pytest.raises(RuntimeError) as caught:
        dr.backward(ns.Float(y))
    assert "precision='single'" in f"{caught.value}{caught.value.__cause__}"


def test_in_calls(ns):
    """Values are right; a gradient of the table would stall, so it is refused, and that of coordinates is not."""
    half, single = pair(ns, "hash")
    results = []
    for grid, given in ((half, True), (single, False)):
        p = points(ns, 64)
        which = dr.arange(ns.UInt32, 64) % 2

        def total(p, grid=grid):
            return sum(plain(ns, grid, p))

        y = dr.switch(which, [total, lambda p: total(p) * 2], p)
        if given:
            with pytest.raises(RuntimeError) as caught:
                dr.backward(y)
            assert "precision='single'" in f"{caught.value}{caught.value.__cause__}"
        dr.disable_grad(grid["data"])
        p = points(ns, 64)
        y = dr.switch(which, [total, lambda p: total(p) * 2], p)
        dr.backward(y)
        results.append((y.numpy(), *(v.grad.numpy() for v in p)))
    for half, single in zip(*results, strict=True):
        np.testing.assert_array_equal(half, single)


def test_dr_backward_inside_a_loop(ns):
    grid, _ = pair(ns, "hash")

    def body(i):
        dr.backward(sum(plain(ns, grid, [dr.detach(v) for v in points(ns, 64)])))
        return (i + 1,)

    with pytest.raises(RuntimeError) as caught:
        dr.while_loop((ns.UInt32(0),), lambda i: i < 2, body, mode="symbolic")
    assert "precision='single'" in f"{caught.value}{caught.value.__cause__}"


def wave(p):
    return [dr.sin(7 * p[0]) * dr.cos(5 * p[1])]


def field(backend, precision, init_scale=1e-4):
    grid = cn.HashGrid(2, 6, hashmap_size=2**10, base_resolution=4, init_scale=init_scale, precision=precision)
    return cn.NeuralField(grid, cn.MLP(-1, 1, width=16, depth=1)).build(backend, seed=5)


def test_training(ns, backend, tmp_path):
    """It learns as well as in single precision, with a loss scale; the file holds the halves, and loads to the bit."""

    def batch(key):
        p = cn.uniform(2, key, ns.Float, 1 << 12)
        return p, wave(p)

    losses = {}
    for precision in ("single", "half"):
        learned = field(backend, precision)
        result = cn.fit(learned, batch, 200, lr=1e-2, progress=False)
        losses[precision] = float(np.mean(result.losses[-20:]))
    assert losses["half"] < 1.2 * losses["single"] < 0.01
    assert dr.is_half_v(learned["encoding.data"]) and result.skipped < 20
    path = tmp_path / "half.safetensors"
    cn.save(path, learned)
    again = cn.load(path, backend)
    p = cn.uniform(2, cn.Key(9), ns.Float, 100)
    np.testing.assert_array_equal(again(p).numpy(), learned(p).numpy())
    assert cn.io.read(path).tensors["encoding.data"].dtype == np.float16


def test_gradients_below_the_range_of_half_precision(ns, backend):
    """The loss is scaled, also where the network itself is in single precision."""
    learned = field(backend, "half", init_scale=0.1)
    before = learned.matrix("encoding.data").copy()
    p = cn.uniform(2, cn.Key(3), ns.Float, 1 << 10)
    cn.fit(learned, lambda key: (p, [v * 1e-4 for v in wave(p)]), 3, lr=1e-3, progress=False)
    moved = learned.matrix("encoding.data") != before
    assert moved.mean() > 0.5


def test_marching(ns, backend):
    """Gradients by all modes but replay, which is refused before it runs, and which "auto" avoids."""
    grid = cn.HashGrid(3, 2, hashmap_size=2**6, base_resolution=4, precision="half")
    learned, o = cn.NeuralField(grid, cn.MLP(-1, 4, 16, 1)).build(backend, seed=1), ns.Array3f([0.2, 0.5], 0.5, -0.2)

    def gradient(mode):
        for name in learned:
            dr.enable_grad(learned[name])
            dr.clear_grad(learned[name])
        seen = cn.render.ray_march(learned, o, [0, 0, 1], 0.1, 1.5, 12, mode=mode)
        dr.backward(dr.sum(seen.color.x))
        return learned.gradient("encoding.data").astype(np.float64)

    wide, loop = gradient("wide"), gradient("loop")
    np.testing.assert_allclose(loop, wide, rtol=0, atol=2e-2 * np.abs(wide).max())
    with pytest.raises(RuntimeError, match=r"ray_march: mode is 'replay', which sums .* use mode='wide'"):
        gradient("replay")
    with dr.suspend_grad():
        cn.render.ray_march(learned, o, [0, 0, 1], 0.1, 1.5, 12, mode="replay")


@pytest.mark.parametrize("use", ["laplace", "ensemble", "fit_many", "export", "audit", "pickle"])
def test_where_grids_are_used(ns, backend, use, tmp_path):
    learned, p = field(backend, "half", init_scale=0.1), cn.uniform(2, cn.Key(3), ns.Float, 256)

    def batch(key):
        return p, wave(p)

    if use == "laplace":
        drawn = cn.laplace(learned, batch, 2)
        assert np.isfinite(drawn.std(p).numpy()).all() and np.isfinite(drawn(p, cn.Key(1)).numpy()).all()
        np.testing.assert_array_equal(drawn(p).numpy(), learned(p).numpy())
    elif use == "ensemble":
        members = [learned, field(backend, "half", init_scale=0.2)]
        mean = np.mean([member(p).numpy() for member in members], 0)
        np.testing.assert_allclose(cn.ensemble(members)(p).numpy(), mean, atol=1e-3 if backend == "cuda" else 1e-6)
    elif use == "fit_many":
        fields = [learned, field(backend, "half", init_scale=0.1)]

        def drawn(key, job):
            p = cn.uniform(2, key, ns.Float, 256)
            return p, wave(p)

        results = cn.fit_many(fields, drawn, 60, lr=1e-2, progress=False)
        assert all(np.mean(r.losses[-9:]) < 0.5 * np.mean(r.losses[:9]) for r in results)
    elif use == "export":
        written = cn.export(learned, "c", tmp_path / "field.c", inline=False)
        assert written.weights.stat().st_size < 1.5 * learned["encoding.data"].numpy().nbytes
    elif use == "audit":
        assert max(layer.max_error or 0 for layer in learned.audit(p).layers) < 5e-3
    else:
        again = pickle.loads(pickle.dumps(learned))
        np.testing.assert_array_equal(again(p).numpy(), learned(p).numpy())
        assert dr.is_half_v(again["encoding.data"])


def test_arguments():
    with pytest.raises(ValueError, match="precision is 'double'"):
        cn.HashGrid(precision="double")
