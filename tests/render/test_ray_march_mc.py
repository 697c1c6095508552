"""Moments of what is seen along rays, over what keys draw."""

from __future__ import annotations

import dataclasses

import drjit as dr
import numpy as np
import pytest
from support.arrays import arrays, assert_same
from support.kernels import launched

import coopnet as cn
from coopnet import reference as ref

RAYS, BINS, K = 10, 3, 2


def volume(backend, seed=0, **options):
    network = cn.MLP(3, 4, width=8, depth=1, activation="tanh", bias=True, **options)
    return cn.NeuralField(None, network, bounds=(-1, 1)).build(backend, seed=seed)


def batch(ns):
    def draw(key):
        p = [2 * v - 1 for v in cn.uniform(3, key, ns.Float, 64)]
        return p, [p[0], p[1], p[2], p[0]]

    return draw


KINDS = {
    "dropout": lambda backend, ns: volume(backend, dropout=0.3),
    "laplace": lambda backend, ns: cn.laplace(volume(backend), batch(ns), 1, prior=0.5),
    "displaced": lambda backend, ns: cn.laplace(volume(backend), batch(ns), 1, spatial=3, prior=0.5),
    "ensemble": lambda backend, ns: cn.ensemble([volume(backend, seed) for seed in range(K)]),
}


def rays(ns):
    o = ns.Array3f(*arrays(ns, [np.linspace(-0.5, 0.5, RAYS), np.full(RAYS, 0.1), np.full(RAYS, -1)]))
    return o, ns.Array3f(0.1, 0.2, 1), 0.0, 2.0, BINS


def numbers(found):
    return {f.name: getattr(found, f.name).numpy() for f in dataclasses.fields(found)}


@pytest.mark.parametrize("kind, samples", [(kind, 2 * K) for kind in KINDS] + [("ensemble", K + 1)])
def test_moments_are_those_of_the_passes(backend, ns, kind, samples):
    """Also frozen, and in a loop."""
    field, (o, d, *span) = KINDS[kind](backend, ns), rays(ns)
    passes = []
    for i in range(samples):
        key = cn.Key(5, 0, samples + i)
        seen = cn.render.ray_march(field, o, d, *span, key=key, jitter=False, dropout="ray", background=0.2)
        passes.append([v.numpy() for v in (seen.color, seen.depth, seen.transmittance)])
    expected = ref.ray_march_mc(*(np.stack(v).astype(np.float64) for v in zip(*passes, strict=True)))
    assert expected["color_std"].max() > 1e-3 and expected["depth_std"].max() > 1e-3

    def moments(field, o, key):
        return cn.render.ray_march_mc(field, o, d, *span, key=key, samples=samples, background=0.2)

    with launched() as kernels:
        found = moments(field, o, cn.Key(5, step=1))
        dr.eval(found)
    assert len(kernels) == (2 if kind == "displaced" else 1)  # that of the first table, by which results are looked at
    frozen = dr.freeze(moments)
    for _ in range(2):
        again = frozen(field, o, cn.Key(dr.opaque(ns.UInt64, 5), None, dr.opaque(ns.UInt32, 1)))
        for name, value in numbers(again).items():
            assert_same(backend, value, numbers(found)[name])
    tolerance = 1e-5 if backend == "llvm" else 5e-3
    for name, value in numbers(found).items():
        np.testing.assert_allclose(value, expected[name], atol=tolerance, err_msg=name)


def test_rays_that_meet_nothing(backend, ns):
    """Of two members, one sees something in half of the space."""

    def radiance(p, d, key, active):
        there = (p.x > 0) & ((key.step & 1) == 0)
        return dr.select(there, 0.7, 0.0), [0.5, 0.25, 0.0]

    o, _, near, far, _ = rays(ns)
    active = dr.arange(ns.UInt32, RAYS) > 1
    options = dict(key=cn.Key(0), samples=2, active=active)
    found = numbers(cn.render.ray_march_mc(radiance, o, ns.Array3f(0, 0, 1), near, far, 8, **options))
    solid = np.linspace(-0.5, 0.5, RAYS) > 0
    seen = np.stack([np.where(solid, np.exp(-1.4), 1), np.ones(RAYS)])
    color = (1 - seen)[:, None] * np.array([0.5, 0.25, 0])[:, None]
    expected = ref.ray_march_mc(color, np.zeros((2, RAYS)), seen)
    for name in ("color", "color_std", "transmittance", "unmet", "variance"):
        np.testing.assert_allclose(found[name][..., 2:], expected[name][..., 2:], atol=1e-5, err_msg=name)
        assert (found[name][..., :2] == 0).all()
    assert (found["unmet"][2 : RAYS // 2] == 1).all() and (found["depth_std"][solid] > 0).all()


def test_no_derivatives_pass(backend, ns):
    field, (o, d, *span) = volume(backend, dropout=0.3), rays(ns)
    dr.enable_grad(o)
    found = cn.render.ray_march_mc(field, o, d, *span, key=cn.Key(0), samples=2)
    assert not dr.grad_enabled(found)


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(samples=1), ValueError, "samples is 1"),
        (dict(samples=2.5), TypeError, "samples is"),
        (dict(key=3), TypeError, "key is a int"),
        (dict(field=None), ValueError, "field has no Dropout"),
        (dict(density="soft"), ValueError, "density is 'soft'"),
    ],
)
def test_bad_arguments(backend, ns, change, error, words):
    o, d, *span = rays(ns)
    options = dict(field=volume(backend, dropout=0.3), key=cn.Key(0), samples=2) | change
    field = options.pop("field") or volume(backend)
    with pytest.raises(error) as info:
        cn.render.ray_march_mc(field, o, d, *span, **options)
    assert words in str(info.value)
