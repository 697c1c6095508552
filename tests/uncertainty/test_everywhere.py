"""What draws, wherever fields are evaluated: along rays in every mode, over passes, in frozen training."""

from __future__ import annotations

import warnings

import drjit as dr
import numpy as np
import pytest
from support.arrays import assert_same

import coopnet as cn

N = 24


def volume(backend, ns, *, dropout=0.0, levels=False, outputs=4, seed=0):
    options = {"n_features_per_level": 1, "base_resolution": 4, "hashmap_size": 2**9, "init_scale": 1.0}
    encoding = cn.HashGrid(3, n_levels=2 if levels else 1, **options)
    network = cn.MLP(-1, outputs, width=4, depth=1, dropout=dropout, bias=True)
    network = cn.Sequential(cn.DropLevels(0.5, first=1), network) if levels else network
    return cn.NeuralField(encoding, network, bounds=(-1, 1)).build(backend, seed=seed)


def batch(ns):
    def draw(key):
        p = [2 * v - 1 for v in cn.uniform(3, key, ns.Float, 200)]
        return p, [p[0], p[1] * p[2], p[2], p[0] + 0.5]

    return draw


def concrete(backend):
    layers = cn.Linear(3, 4), cn.Tanh(), cn.ConcreteDropout(0.3), cn.Linear(4, 4)
    return cn.NeuralField(None, cn.Sequential(*layers)).build(backend)


KINDS = {
    "posthoc": lambda backend, ns: cn.posthoc_dropout(volume(backend, ns), batch(ns), tolerance=1, batches=1)[0],
    "laplace": lambda backend, ns: cn.laplace(volume(backend, ns), batch(ns), 1, prior=0.3),
    "displaced": lambda backend, ns: cn.laplace(volume(backend, ns), batch(ns), 1, spatial=(3,), prior=0.3),
    "ensemble": lambda backend, ns: cn.ensemble([volume(backend, ns, seed=i) for i in range(2)]),
    "levels": lambda backend, ns: volume(backend, ns, levels=True),
    "concrete": lambda backend, ns: concrete(backend),
}


#: One mode other than the loop for each, and each for what draws parameters. Post-hoc dropouts are those of training.
MODES = {
    "laplace": ["replay"], "displaced": ["wide"], "ensemble": ["replay"], "levels": ["wide"],
    "concrete": ["replay"],
}  # fmt: skip


@pytest.mark.parametrize("kind", MODES)
def test_along_rays(backend, ns, kind):
    """The modes of a march agree, in values and in gradients, with one draw along a ray."""
    field = KINDS[kind](backend, ns)
    o, d = ns.Array3f(ns.Float(np.linspace(-0.5, 0.5, N)), 0.1, -1), ns.Array3f(0.1, 0.2, 1)
    found = {}
    for mode in ("loop", *MODES[kind]):
        for name in field:
            value = type(field[name])(dr.detach(field[name]))
            dr.enable_grad(value)
            field[name] = value
        seen = cn.render.ray_march(field, o, d, 0.0, 2.0, 3, key=cn.Key(3, step=1), dropout="ray", mode=mode)
        dr.backward(dr.sum(seen.color.x + seen.depth))
        dr.eval(seen.color, dr.grad(list(field.values())))  # one by one, each would be a kernel
        gradients = [np.ravel(dr.grad(value).numpy()) for value in field.values()]
        found[mode] = seen.color.numpy(), np.concatenate(gradients).astype(np.float64)
        for key in field:
            field[key] = dr.detach(field[key])
    plain = cn.render.ray_march(field, o, d, 0.0, 2.0, 3).color.numpy()
    tolerance = 2e-5 if backend == "llvm" else 2e-2
    assert abs(found["loop"][0] - plain).max() > 1e-3
    for mode in MODES[kind]:
        np.testing.assert_allclose(found[mode][0], found["loop"][0], atol=tolerance)
        scale = abs(found["loop"][1]).max()
        assert scale > 0
        np.testing.assert_allclose(found[mode][1], found["loop"][1], atol=10 * tolerance * scale)


@pytest.mark.filterwarnings("ignore:mc_dropout. dropout cannot reveal")
@pytest.mark.parametrize("kind", KINDS)
def test_over_passes(backend, ns, kind):
    """Frozen, the moments of evaluations one by one."""
    field = KINDS[kind](backend, ns)
    p = [ns.Float(v) for v in np.random.default_rng(0).uniform(-0.9, 0.9, (3, N)).astype(np.float32)]
    dr.make_opaque(p)
    frozen = dr.freeze(lambda field, p, key: cn.mc_dropout(field, p, key, 6))
    for step in range(2):
        key = cn.Key(dr.opaque(ns.UInt64, 3), None, dr.opaque(ns.UInt32, step))
        values = np.stack([field(p, cn.Key(3, step=6 * step + i)).numpy() for i in range(6)])
        mean, deviation = frozen(field, p, key)
        tolerance = 1e-5 if backend == "llvm" else 5e-3
        np.testing.assert_allclose(mean.numpy(), values.mean(axis=0), atol=tolerance)
        np.testing.assert_allclose(deviation.numpy(), values.std(axis=0), atol=tolerance)
        assert values.std(axis=0).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_copied_moved_and_trained_on(backend, ns, kind):
    """As all fields: a copy, the same parameters read and written by name, and a few steps of training."""
    import copy
    import pickle

    field = KINDS[kind](backend, ns)
    p = [ns.Float(v) for v in np.random.default_rng(0).uniform(-0.9, 0.9, (3, N)).astype(np.float32)]
    expected = field(p, cn.Key(3)).numpy()
    for again in (copy.deepcopy(field), pickle.loads(pickle.dumps(field))):
        assert_same(backend, again(p, cn.Key(3)).numpy(), expected)
    again = copy.deepcopy(field)
    result = cn.fit(again, batch(ns), 3, progress=False)
    assert np.isfinite(result.losses).all()
    assert_same(backend, field(p, cn.Key(3)).numpy(), expected)
    assert isinstance(cn.to(field, "numpy"), dict)


def test_masks_behind_a_grid_warn_once(backend, ns, monkeypatch):
    """That they do not tell what was not seen; draws of parameters and members do."""
    import importlib

    monkeypatch.setattr(importlib.import_module("coopnet.uncertainty.mc_dropout"), "_warned", False)
    p = [ns.Float(0.1, 0.2)] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("laplace", "displaced", "ensemble", "concrete"):
            cn.mc_dropout(KINDS[kind](backend, ns), p, cn.Key(0), 2)
    dropped = volume(backend, ns, dropout=0.2)
    with pytest.warns(RuntimeWarning, match=r"unseen regions of a hash grid: .* use coopnet.laplace\(\)") as seen:
        cn.mc_dropout(dropped, p, cn.Key(0), 2)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cn.mc_dropout(dropped, p, cn.Key(0), 2)
