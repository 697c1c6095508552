"""Dropout that learns its rate."""

from __future__ import annotations

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import arrays, assert_same, contain, evaluated, leaf_of, precision, precisions
from support.kernels import launched

import coopnet as cn
from coopnet import reference as ref

N = 50


def layer_of(ns, backend, p=0.3, grad=True, stream=2):
    tensor = ns.TensorXf16 if backend == "cuda" else ns.TensorXf
    layer = cn.ConcreteDropout(p, stream=stream).alloc(tensor, 7)
    if grad:
        value = ns.Float(layer["data"])
        dr.enable_grad(value)
        layer["data"] = value
    return layer


@pytest.mark.parametrize("kind", ["coopvec", "nested", "list", "tensor"])
@pytest.mark.parametrize("relaxed", [True, False])
def test_agrees_with_the_reference(backend, ns, kind, relaxed):
    dtype, tolerance = precision(backend)
    x = np.random.default_rng(0).normal(size=(7, N)).astype(dtype)
    layer = layer_of(ns, backend, grad=relaxed)
    y = layer(contain(ns, kind, arrays(ns, x, dtype)), cn.Key(9, step=4))
    y = y.numpy() if kind == "tensor" else np.stack([v.numpy() for v in evaluated(list(y))])
    expected = ref.concrete_dropout(x.astype(np.float64), 0.3, 9, step=4, stream=2, relaxed=relaxed)
    np.testing.assert_allclose(y, expected, atol=max(tolerance, 2e-4))
    assert layer.relaxed == relaxed


def test_the_rate_has_the_gradient_of_the_reference(backend, ns):
    dtype, _ = precision(backend)
    x = np.random.default_rng(0).normal(size=(7, N)).astype(dtype)
    layer = layer_of(ns, backend)
    y = layer(drnn.CoopVec(arrays(ns, x, dtype)), cn.Key(9, step=4))
    with launched() as kernels:
        dr.backward(sum(ns.Float(v) for v in y))
        dr.eval(dr.grad(layer["data"]))
    assert len(kernels) <= 2  # and not some for each element
    logit, eps = np.log(0.3 / 0.7), 1e-5

    def total(shift):
        p = 1 / (1 + np.exp(-(logit + shift)))
        return ref.concrete_dropout(x.astype(np.float64), p, 9, step=4, stream=2).sum()

    expected = (total(eps) - total(-eps)) / (2 * eps)
    assert dr.grad(layer["data"]).numpy()[0] == pytest.approx(expected, rel=1e-3 if backend == "llvm" else 2e-2)


def make_field(backend, precision_="auto", p=0.3):
    layers = cn.Linear(2, 4), cn.Tanh(), cn.ConcreteDropout(p), cn.Linear(4, 3), cn.Tanh(), cn.ConcreteDropout(0.2)
    return cn.NeuralField(None, cn.Sequential(*layers, cn.Linear(3, 1))).build(backend, precision_)


def noisy(ns, noise):
    def batch(key):
        x, y, u, v = cn.uniform(4, key, ns.Float, 256)
        normal = dr.sqrt(-2 * dr.log(1 - u)) * dr.cos(2 * np.pi * v)
        return [x, y], [dr.sin(6 * x) + noise * normal]

    return batch


def rates(field):
    return [float(m.p[0]) for m in field.network.layers if isinstance(m, cn.ConcreteDropout)]


def test_fit_learns_rates(backend, ns):
    """Fewer samples, larger rates; and none without the penalty."""
    found = {}
    for samples in (None, 8, 100_000):
        field = make_field(backend, p=0.2)
        penalty = None if samples is None else lambda f, n=samples: cn.concrete_penalty(f, n, noise=0.3)
        cn.fit(field, noisy(ns, 0.3), 100, lr=4e-2, penalty=penalty, progress=False)
        found[samples] = np.mean(rates(field))
    assert found[None] < 0.1 and found[100_000] < 0.1 < found[8]


def test_penalty_agrees_with_the_reference(backend, ns):
    for which in precisions(backend):
        field = make_field(backend, which)
        options = dict(samples=50, length=3.0, noise=0.5)
        matrices = [field.matrix(f"layers.{i}.weights").astype(np.float64) for i in (3, 6)]
        expected = ref.concrete_penalty([0.3, 0.2], matrices, **options)
        assert cn.concrete_penalty(field, **options).numpy()[0] == pytest.approx(expected, rel=1e-3)
        names = list(field)
        for name in names:
            value = type(field[name])(dr.detach(field[name]))
            dr.enable_grad(value)
            field[name] = value
        dr.backward(cn.concrete_penalty(field, **options))
        gradient = field.gradient("layers.3.weights")
        np.testing.assert_allclose(gradient, 0.25 * 9 / 50 * 2 * matrices[0] / 0.7, rtol=2e-2, atol=1e-4)
        logit, eps = np.log(0.3 / 0.7), 1e-5
        up, down = (1 / (1 + np.exp(-logit - e)) for e in (eps, -eps))
        slope = ref.concrete_penalty([up, 0.2], matrices, **options) - ref.concrete_penalty(
            [down, 0.2], matrices, **options
        )
        found = dr.grad(field["network.layers.2.data"]).numpy()[0]
        assert found == pytest.approx(slope / (2 * eps), rel=1e-2, abs=1e-4)


def test_penalty_of_branches(backend):
    """The entropy is that of the units that are dropped, also if a layer behind reads others, too."""
    layers = cn.ConcreteDropout(0.3), cn.Skip(cn.Linear(16, 8)), cn.Linear(24, 1)
    field = cn.NeuralField(None, cn.Sequential(*layers)).build(backend, seed=1)
    found = cn.concrete_penalty(field, samples=1000, length=1e-9).numpy()[0]
    assert found == pytest.approx(2 * 16 / 1000 * (0.3 * np.log(0.3) + 0.7 * np.log(0.7)), rel=1e-5)


def test_learned_rates_are_those_of_the_mask_law(backend, ns, tmp_path):
    """Where nobody wants gradients: saved, frozen, in loops, and over masks."""
    pytest.importorskip("safetensors")
    field = make_field(backend)
    p = [ns.Float(v) for v in np.random.default_rng(0).random((2, N)).astype(np.float32)]
    dr.make_opaque(p)
    field["network.layers.2.data"] = ns.Float(0.5)
    rate = float(1 / (1 + np.exp(-np.float32(0.5))))
    assert rates(field)[0] == pytest.approx(rate, rel=1e-6)
    cn.save(tmp_path / "f.safetensors", field)
    again = cn.load(tmp_path / "f.safetensors", backend)
    assert rates(again) == rates(field)
    plain = cn.Sequential(*field.network.layers[:2], cn.Dropout(rates(field)[0], 32, 0))
    x = drnn.cast(drnn.CoopVec(p), leaf_of(ns, precision(backend)[0]))
    y = plain(x, cn.Key(5))
    hidden = cn.Sequential(*field.network.layers[:3])(x, cn.Key(5))
    for a, b in zip(hidden, y, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-6 if backend == "llvm" else 1e-2)
    frozen = dr.freeze(lambda f, p, key: f(p, key))
    for step in range(2):
        key = cn.Key(dr.opaque(ns.UInt64, 5), None, dr.opaque(ns.UInt32, step))
        expected = field(p, key).numpy()
        for found in (again(p, key), frozen(field, p, key)):
            assert_same(backend, found.numpy(), expected)
    _, deviation = cn.mc_dropout(field, p, cn.Key(0), 16)
    assert deviation.numpy().mean() > 0.01
    assert np.isfinite(field.value_and_grad(ns.Array2f(p), cn.Key(1))[1].numpy()).all()


def test_gradients_inside_loops(backend, ns):
    """Of the rate, too: a sum over passes in a loop, and written out."""
    field, total = make_field(backend), []
    p = [ns.Float(v) for v in np.random.default_rng(0).random((2, N)).astype(np.float32)]
    for loop in (True, False):
        for name in field:
            value = type(field[name])(dr.detach(field[name]))
            dr.enable_grad(value)
            field[name] = value
        if loop:
            start = (ns.UInt32(0), dr.zeros(ns.Float, N))
            body = lambda i, s: (i + 1, s + field([v * 1 for v in p], cn.Key(3, step=i))[0])  # noqa: E731
            _, y = dr.while_loop(start, lambda i, s: i < 2, body, mode="symbolic", max_iterations=-1)
        else:
            y = sum(field(p, cn.Key(3, step=i))[0] for i in range(2))
        dr.backward(dr.sum(y))
        total.append([dr.grad(field["network.layers.2.data"]).numpy()[0], field.gradient("layers.0.weights")])
    tolerance = 1e-4 if backend == "llvm" else 5e-2
    assert total[0][0] == pytest.approx(total[1][0], rel=tolerance) and abs(total[0][0]) > 1e-3
    np.testing.assert_allclose(total[0][1], total[1][1], rtol=tolerance, atol=tolerance * abs(total[1][1]).max())


def test_bad_arguments(backend, ns):
    for p in (0, 1, -0.1, "a", None, np.nan):
        with pytest.raises(ValueError, match="ConcreteDropout: p is"):
            cn.ConcreteDropout(p)
    with pytest.raises(ValueError, match="temperature is 0"):
        cn.ConcreteDropout(0.1, 0)
    field = make_field(backend)
    for change, words in (
        (dict(samples=0), "samples is 0"),
        (dict(length=0), "length"),
        (dict(noise=-1), "noise is -1"),
    ):
        with pytest.raises(ValueError, match=words):
            cn.concrete_penalty(field, **(dict(samples=10) | change))
    with pytest.raises(ValueError, match="has no ConcreteDropout"):
        cn.concrete_penalty(cn.NeuralField(None, cn.MLP(2, 1)).build(backend), 10)
    with pytest.raises(ValueError, match="no linear layer"):
        cn.concrete_penalty(
            cn.NeuralField(None, cn.Sequential(cn.Linear(2, 2), cn.ConcreteDropout())).build(backend), 10
        )
    with pytest.raises(TypeError, match="net is a int"):
        cn.concrete_penalty(3, 10)


@pytest.mark.parametrize("tracked", [(), ("weights",)])
def test_all_ways_to_march_have_the_same_masks(backend, ns, tracked):
    """Relaxed if the rate has a gradient, and otherwise not, also where a custom operation has gradients of its own."""
    net = cn.Sequential(cn.Linear(3, 8), cn.Tanh(), cn.ConcreteDropout(0.5), cn.Linear(8, 4))
    field, found = cn.NeuralField(None, net).build(backend, seed=1), []
    names = {"weights": "network.weights", "rate": "network.layers.2.data"}
    for mode in ("loop", "wide", "replay"):
        for name in tracked:
            dr.enable_grad(field[names[name]])
            dr.clear_grad(field[names[name]])
        o = ns.Array3f([0, 0.1, 0.2], 0, 0)
        dr.enable_grad(o)
        seen = cn.render.ray_march(field, o, [0, 0, 1], 0.0, 2.0, 8, key=cn.Key(3), jitter=False, mode=mode)
        dr.backward(dr.sum(seen.color.x))
        slopes = [dr.grad(field[names[name]]).numpy().ravel() for name in tracked]
        found.append(np.concatenate([seen.color.numpy().ravel(), dr.grad(o).numpy().ravel(), *slopes]))
    tolerance = 1e-5 if backend == "llvm" else 2e-2
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=tolerance, atol=tolerance)
