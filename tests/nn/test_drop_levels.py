"""Dropout of whole levels of a grid."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from support.arrays import arrays, assert_same, contain, precision, precisions

import coopnet as cn
from coopnet import reference as ref

N = 60
GRID = dict(n_levels=3, base_resolution=4, hashmap_size=64, init_scale=1.0)


@pytest.mark.parametrize("kind", ["coopvec", "nested", "list", "tensor"])
@pytest.mark.parametrize("options", [{}, {"first": 1}, {"per_sample": True, "bits": 32, "rounds": 7}])
def test_agrees_with_the_reference(backend, ns, kind, options):
    dtype, _ = precision(backend)
    x = np.random.default_rng(0).normal(size=(6, N)).astype(dtype)
    layer = cn.DropLevels(0.4, n_features_per_level=2, stream=3, **options)
    for step in range(4):
        y = layer(contain(ns, kind, arrays(ns, x, dtype)), cn.Key(11, step=step))
        y = y.numpy() if kind == "tensor" else np.stack([np.broadcast_to(v.numpy(), N) for v in y])
        np.testing.assert_array_equal(y, ref.drop_levels(x, 0.4, 11, None, step, 3, n_features_per_level=2, **options))


def make_field(backend, precision_="auto", p=0.5, **options):
    network = cn.Sequential(cn.DropLevels(p, **options), cn.MLP(out_features=2, width=8, depth=1, activation="tanh"))
    return cn.NeuralField(cn.HashGrid(2, **GRID), network).build(backend, precision_)


def points(ns):
    p = [ns.Float(v) for v in np.random.default_rng(0).random((2, N)).astype(np.float32)]
    dr.make_opaque(p)
    return p


def test_all_samples_of_a_step_see_the_same_levels(backend, ns):
    """One of 2^levels functions, whatever the batch and the index."""
    field, p = make_field(backend, first=1), points(ns)
    assert field.network.layers[0].n_features_per_level == 2
    whole = [field(p, cn.Key(1, step=i)).numpy() for i in range(12)]
    assert len({v.tobytes() for v in whole}) == 4
    part = [dr.gather(ns.Float, v, ns.UInt32(7, 3)) for v in p]
    np.testing.assert_array_equal(field(part, cn.Key(1, 5, 2)).numpy(), whole[2][:, [7, 3]])


def test_in_both_precisions_frozen_in_loops_and_saved(backend, ns, tmp_path):
    pytest.importorskip("safetensors")
    p = points(ns)
    for which in precisions(backend):
        field = make_field(backend, which)
        cn.save(tmp_path / "f.safetensors", field)
        again = cn.load(tmp_path / "f.safetensors", backend, which)
        frozen = dr.freeze(lambda f, p, key: f(p, key))
        whole = []
        for step in range(3):
            key = cn.Key(dr.opaque(ns.UInt64, 5), None, dr.opaque(ns.UInt32, step))
            whole.append(field(p, key).numpy())
            for found in (again(p, key), frozen(field, p, key)):
                assert_same(backend, found.numpy(), whole[-1])
        total = dr.while_loop(
            (ns.UInt32(0), dr.zeros(ns.Float, N)),
            lambda i, s: i < 3,
            lambda i, s, field=field: (i + 1, s + field(p, cn.Key(5, step=i))[0]),
            mode="symbolic",
        )[1]
        np.testing.assert_allclose(total.numpy(), sum(v[0] for v in whole), atol=1e-5 if which == "single" else 1e-2)
    _, deviation = cn.mc_dropout(field, p, cn.Key(0), 8)
    assert (deviation.numpy() > 0).any()


def test_levels_that_are_dropped_get_no_gradient(backend, ns):
    field, p = make_field(backend), points(ns)
    value = type(field["encoding.data"])(dr.detach(field["encoding.data"]))
    dr.enable_grad(value)
    field["encoding.data"] = value
    levels = field.encoding.grid.value.levels
    for step in range(5):
        dr.clear_grad(value)
        dr.backward(dr.sum(field(p, cn.Key(2, step=step))[0]))
        gradient = field.gradient("encoding.data").reshape(-1, 2)
        kept = ref.keep_mask(3, 0.5, 2, [0], step, 0)[:, 0]
        assert [bool(np.any(gradient[v.offset : v.end])) for v in levels] == kept.tolist()


def test_schedules_and_fit(backend, ns):
    """From coarse to fine: a rate that ends at 0, which compiles nothing anew."""
    field, p = make_field(backend), points(ns)
    layer = field.network.layers[0]
    layer.p = dr.opaque(ns.Float, 0.0)
    np.testing.assert_allclose(field(p, cn.Key(1)).numpy(), field(p).numpy(), atol=1e-6 if backend == "llvm" else 1e-2)
    layer.p = 0.3

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 128)
        return [x, y], [x * y, x + y]

    result = cn.fit(field, batch, 60, lr=1e-2, progress=False)
    assert np.mean(result.losses[-10:]) < np.mean(result.losses[:10])
    rows = field.jacobian(p, cn.Key(1))
    assert np.isfinite(rows[0][0].numpy()).all()


def test_bad_arguments(backend, ns, tmp_path):
    with pytest.raises(ValueError, match="there is no grid before it"):
        cn.NeuralField(None, cn.Sequential(cn.DropLevels(0.1), cn.Linear(2, 1))).build(backend)
    for options, words in (
        (dict(first=-1), "first is -1"), (dict(per_sample=1), "per_sample is 1"),
        (dict(n_features_per_level=0), "n_features_per_level is 0"), (dict(p=1.0), "p is 1.0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            cn.DropLevels(**options)
    x = [ns.Float(1, 2)] * 3
    with pytest.raises(ValueError, match="not a multiple of the 2 features of a level"):
        cn.DropLevels(0.1, n_features_per_level=2)(x, cn.Key(1))
    with pytest.raises(ValueError, match="number of features per level is unknown"):
        cn.DropLevels(0.1)(x, cn.Key(1))
