"""Errors that say what to type instead of what is typed first."""

from __future__ import annotations

import sys
import types
import warnings

import drjit as dr
import numpy as np
import pytest

import coopnet as cn


def field_of(backend):
    return cn.NeuralField(None, cn.MLP(1, 1, width=8, depth=1)).build(backend)


def test_objects_that_hold_a_field(backend, tmp_path):
    """Configurations, decoders and modules of PyTorch."""
    configuration = cn.from_config(2, 3, {})
    with pytest.raises(TypeError, match=r"a NeuralField, such as its attribute field\.build\(\), is needed"):
        cn.fit(configuration, lambda key: None, 1)
    with pytest.raises(TypeError, match=r"a NeuralField, such as its attribute field, is needed"):
        cn.fit(types.SimpleNamespace(field=field_of(backend)), lambda key: None, 1)

    class Module:
        def field(self):
            return field_of(backend)

    for given in (Module(), Module().field):
        with pytest.raises(TypeError, match=r"a NeuralField, such as the result of (its method )?field\(\), is needed"):
            cn.save(tmp_path / "f.safetensors", given)


def test_a_function_that_makes_an_optimizer(backend):
    with pytest.raises(
        TypeError, match=r"optimizer is .*, such as coopnet\.training\.Adam\(1e-3\) or optimizer\(\), is"
    ):
        cn.fit(field_of(backend), lambda key: None, 1, optimizer=cn.from_config(2, 3, {}).optimizer)


def test_a_loss_of_arrays(backend, ns):
    batch = lambda key: (cn.uniform(1, key, ns.Float, 16), cn.uniform(1, key, ns.Float, 16, stream=1))  # noqa: E731
    with pytest.raises(
        TypeError, match=r"^fit: loss raised TypeError: .*'list'.*loss gets two lists.* lambda y, t: sum\("
    ):
        cn.fit(field_of(backend), batch, 1, loss=lambda y, t: dr.mean(dr.square(y - t)))
    with pytest.raises(TypeError, match=r"^something else$"):
        cn.fit(field_of(backend), batch, 1, loss=lambda y, t: (_ for _ in ()).throw(TypeError("something else")))
    cn.fit(field_of(backend), batch, 1, loss=lambda y, t: dr.square(y[0] - t[0]), progress=False)


def test_inputs_of_other_libraries(backend, monkeypatch):
    tensor = type("Tensor", (), {"__module__": "torch"})()
    with pytest.raises(TypeError, match=r"In PyTorch, use coopnet\.interop\.torch\.Module\.$"):
        field_of(backend)(tensor)
    with pytest.raises(TypeError, match=r"if its shape is \(samples, features\), take x\.T\.$"):
        field_of(backend)(np.zeros((4, 1)))


def test_noise_that_is_taken_for_deviation(backend, ns):
    dropping = cn.NeuralField(None, cn.MLP(1, 1, width=32, depth=1, dropout=0.02)).build(backend, seed=1)
    x = dr.linspace(ns.Float, 0.5, 1, 400)
    dr.eval(x)
    (mean,), (deviation,) = cn.mc_dropout(dropping, [x], cn.Key(1), 64)
    noise = ns.Float(np.random.default_rng(0).normal(size=400).astype(np.float32))
    with pytest.warns(RuntimeWarning, match=r"^calibrate: errors are .* times the deviations; .*method='noise'"):
        cn.calibrate(dropping, ([x], [mean + noise]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cn.calibrate(dropping, ([x], [mean + deviation * noise]))
        cn.calibrate(dropping, ([x], [mean + noise]), method="noise")


def test_what_is_imported_later_is_listed():
    assert {"image", "mesh", "mitsuba", "fit"} <= set(dir(cn))
    if "mitsuba" in sys.modules:
        assert {"NeuralTexture", "register"} <= set(dir(cn.mitsuba))
