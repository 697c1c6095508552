"""Losses, their gradients and regularized optimizers against the NumPy reference."""

from __future__ import annotations

import math

import drjit as dr
import drjit.opt as dropt
import numpy as np
import pytest
from support.arrays import arrays, evaluated, values
from support.properties import given, st

import coopnet as cn
from coopnet import reference as ref
from coopnet.jit.optimizers import adam_correction
from coopnet.training.losses import LOSSES, loss_function
from coopnet.training.scaler import LossScaler

POSITIVE = ("cross_entropy", "variance")


def draw(name, components, samples, seed):
    """Prediction, target and density, away from kinks and poles."""
    rng = np.random.default_rng(seed)
    outputs = 2 * components if name == "gaussian_nll" else components
    y, t = rng.normal(size=(outputs, samples)), rng.normal(size=(components, samples))
    if name in POSITIVE:
        y = np.abs(y) + 0.2
    if name != "gaussian_nll":
        t = np.where(np.abs(y - t) < 0.05, t + 0.2, t)
    return (v.astype(np.float32).astype(np.float64) for v in (y, t, rng.uniform(0.3, 3, t.shape)))


def components_of(name, n):
    return max(n, 3) if name == "relative_l2_luminance" else n


def test_every_loss_has_a_twin():
    assert set(LOSSES) == set(ref.LOSSES)
    assert all(getattr(cn.training, name) is f for name, f in LOSSES.items())
    assert all(loss_function(name, "here") is f for name, f in LOSSES.items())


@pytest.mark.parametrize("name", LOSSES)
@given(n=st.sampled_from([1, 3, 8]), samples=st.integers(1, 20), density=st.integers(0, 2), seed=st.integers(0, 99))
def test_values_and_gradients(ns, name, n, samples, density, seed):
    """Against the reference, its gradient by differences with the denominators held."""
    n = components_of(name, n)
    y, t, p = draw(name, n, samples, seed)
    pdf = [None, p[:1], p][density]
    ys, ts = arrays(ns, y), arrays(ns, t)
    dr.enable_grad(ys)
    given_ = [None, ns.Float(p[0].astype(np.float32)), arrays(ns, p)][density]
    each = LOSSES[name](ys, ts, pdf=given_)
    expected = ref.loss(name, y, t, pdf)
    value = dr.detach(each)
    dr.backward(each)
    value, slopes = evaluated(value, dr.grad(ys))
    np.testing.assert_allclose(np.array(value), expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())
    h = 1e-6
    slope = np.zeros_like(y)
    for i in range(len(y)):
        step = np.zeros_like(y)
        step[i] = h
        slope[i] = (ref.loss(name, y + step, t, pdf, y) - ref.loss(name, y - step, t, pdf, y)) / (2 * h)
    np.testing.assert_allclose(values(slopes), slope, rtol=1e-4, atol=1e-4 * np.abs(slope).max())


@pytest.mark.parametrize("name", ["relative_l1", "relative_l2", "relative_l2_luminance", "smape"])
def test_denominators_are_constant(ns, name):
    """The gradient is not that of the value: it leaves the prediction in the denominator out."""
    y, t, _ = draw(name, 3, 20, 0)
    ys = arrays(ns, y)
    dr.enable_grad(ys)
    dr.backward(LOSSES[name](ys, arrays(ns, t)))
    h, step = 1e-6, np.zeros_like(y)
    step[1] = h
    whole = (ref.loss(name, y + step, t) - ref.loss(name, y - step, t)) / (2 * h)
    assert np.abs(values(dr.grad(ys))[1] - whole).max() > 0.1 * np.abs(whole).max()


def test_a_noisy_target_is_fitted_by_its_mean(ns):
    """Why the denominator is held: the relative squared error is stationary at the mean of the targets."""
    t = np.random.default_rng(0).exponential(size=4000)
    y = ns.Float(float(np.mean(t.astype(np.float32))))
    dr.enable_grad(y)
    dr.backward(dr.mean(cn.training.relative_l2([y], arrays(ns, t[None]))))
    assert abs(float(dr.grad(y).numpy()[0])) < 1e-5


def test_formulas_by_hand(ns):
    y, t = [ns.Float(2), ns.Float(0.5)], [ns.Float(1), ns.Float(-0.5)]
    expected = {
        "l1": 1, "l2": 1, "huber": 0.5, "log_l1": math.log(2), "relative_l1": (1 / 2.01 + 1 / 0.51) / 2,
        "relative_l2": (1 / 4.01 + 1 / 0.26) / 2,
        "mape": (1 / 1.01 + 1 / 0.51) / 2, "smape": (1 / 1.51 + 1 / 0.51) / 2,
        "cross_entropy": -(np.log(2) - 0.5 * np.log(0.5)) / 2, "variance": (0.5 - 1 + 0.5 - 0.25) / 2,
    }  # fmt: skip
    for name, value in expected.items():
        np.testing.assert_allclose(LOSSES[name](y, t).numpy(), value, rtol=1e-4, err_msg=name)
    rgb = [ns.Float(v) for v in (1, 2, 3)]
    luminance = 0.299 + 2 * 0.587 + 3 * 0.114
    value = cn.training.relative_l2_luminance(rgb, [ns.Float(0)] * 3)
    np.testing.assert_allclose(value.numpy(), 14 / 3 / (luminance**2 + 0.01), rtol=1e-5)
    many = [ns.Float(v) for v in (1, 2, 3, 4, 5, 6, 7)]
    zeros = [ns.Float(0)] * 7
    for n, squares in ((4, 30), (5, 55)):
        value = cn.training.relative_l2_luminance(many[:n], zeros[:n])
        np.testing.assert_allclose(value.numpy(), squares / n / (luminance**2 + 0.01), rtol=1e-5)
    both = 5 * 0.299 + 7 * 0.587 + 9 * 0.114
    for n, squares in ((6, 91), (7, 140)):
        value = cn.training.relative_l2_luminance(many[:n], zeros[:n])
        np.testing.assert_allclose(value.numpy(), squares / n / (both**2 + 0.01), rtol=1e-5)
    with pytest.raises(ValueError, match="relative_l2_luminance: y has 2 components; at least 3"):
        cn.training.relative_l2_luminance(many[:2], zeros[:2])
    with pytest.raises(ValueError, match="relative_l2_luminance: y has 1 components; at least 3"):
        cn.training.relative_l2_luminance(ns.Float(1, 2, 3), zeros[:3])
    value = cn.training.gaussian_nll([ns.Float(1), ns.Float(0.5)], [ns.Float(3)])
    np.testing.assert_allclose(value.numpy(), (0.5 + 4 * np.exp(-0.5)) / 2, rtol=1e-5)


@pytest.mark.parametrize("delta", [0.25, 1.0, 3.0])
def test_huber(ns, delta):
    """Quadratic up to delta, then a line that continues value and slope: PyTorch's ``huber_loss``."""
    e = np.array([-7, -delta, -0.9 * delta, 0.0, 0.5 * delta, delta, 1.1 * delta, 5], np.float32)
    y = ns.Float(e + 2)
    dr.enable_grad(y)
    value = cn.training.huber(y, ns.Float(2), delta)
    tail = delta * (np.abs(e) - delta / 2)
    np.testing.assert_allclose(value.numpy(), np.where(np.abs(e) <= delta, e**2 / 2, tail), rtol=1e-5)
    dr.backward(value)
    np.testing.assert_allclose(dr.grad(y).numpy(), np.clip(e, -delta, delta), rtol=1e-5)


def test_density_makes_the_mean_an_integral(ns):
    """Samples drawn with density 2x, weighted by it, give the mean under uniform samples."""
    u = (np.arange(20_000) + 0.5) / 20_000
    x = np.sqrt(u)
    value = cn.training.l2(arrays(ns, np.sin(3 * x)[None]), [ns.Float(0)], pdf=ns.Float((2 * x).astype(np.float32)))
    assert np.mean(value.numpy()) == pytest.approx(np.mean(np.sin(3 * u) ** 2), rel=1e-2)


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"gaussian_nll", "relative_l2_luminance"}))
def test_an_array_is_one_component(ns, name):
    """With a loss for each sample and a gradient; not one component for each of its entries."""
    y, t, p = (ns.Float(v) for v in ([0.5, 1, 2], [1, 1, 3], [0.5, 2, 1]))
    expected = LOSSES[name]([y], [t], pdf=[p]).numpy()
    for pdf in (p, ns.TensorXf(p)):
        dr.enable_grad(y)
        dr.clear_grad(y)
        loss = LOSSES[name](y, t, pdf=pdf)
        np.testing.assert_array_equal(loss.numpy(), expected)
        dr.backward(loss)
        assert np.all(np.isfinite(dr.grad(y).numpy())) and np.any(dr.grad(y).numpy())
    rows = ns.TensorXf(ns.ArrayXf(y, y))
    np.testing.assert_allclose(LOSSES[name](rows, ns.TensorXf(ns.ArrayXf(t, t)), pdf=p).numpy(), expected, rtol=1e-6)


def test_errors(ns):
    one = [ns.Float(1)]
    with pytest.raises(TypeError, match="l2: y is a NoneType; an array or a sequence of arrays"):
        cn.training.l2(None, one)
    for name, f in LOSSES.items():
        with pytest.raises(ValueError, match=f"{name}: y has "):
            f(one * 5, one * 3)
    for delta in (0, -1.0, math.inf, math.nan, "1", True, None, ns.Float(1)):
        with pytest.raises(ValueError, match=r"huber: delta is .*; a positive number"):
            cn.training.huber(ns.Float(1), ns.Float(0), delta=delta)
    with pytest.raises(ValueError, match="l1: pdf has 3 components; 1 or 2"):
        cn.training.l1(one * 2, one * 2, pdf=one * 3)
    for pdf in (0, -1.0, math.nan, math.inf, True, [0.5, 0.0], np.zeros(2)):
        with pytest.raises(ValueError, match=r"l1: pdf is .*; a positive number is needed"):
            cn.training.l1(one * 2, one * 2, pdf=pdf)
    for name, f in LOSSES.items():
        n = 3 if name == "relative_l2_luminance" else 2
        y, t = [ns.Float(1, 2, 3)] * (n if name != "gaussian_nll" else 4), [ns.Float(1, 2, 3)] * n
        with pytest.raises(ValueError, match=f"{name}: got different numbers of samples, 3 in y.*2 in pdf; all must"):
            f(y, t, pdf=ns.Float(1, 2))
        with pytest.raises(ValueError, match=f"{name}: got different numbers of samples, 3 in y.*2 in target"):
            f(y, [ns.Float(1, 2)] * n)
        with pytest.raises(TypeError, match=f"{name}: .* holds 'a'; arrays"):
            f(y, t, pdf=["a"])
        with pytest.raises(TypeError, match=f"{name}: .* holds None; arrays"):
            f(y, [None] * n)
    with pytest.raises(ValueError, match="variance: y holds the number 0; positive predictions"):
        cn.training.variance([ns.Float(1), 0], [ns.Float(1)] * 2)
    with pytest.raises(TypeError, match="l2: y is a str"):
        cn.training.l2("ab", one * 2)
    with pytest.raises(ValueError, match=r"here: loss is 'rmse'.*relative_l2_luminance"):
        loss_function("rmse", "here")


# ---- In fit ------------------------------------------------------------------------------------------------


def test_other_names_of_losses():
    assert loss_function("mse", "fit") is cn.training.l2 and loss_function("mae", "fit") is cn.training.l1
    with pytest.raises(ValueError, match=r"fit: loss is 'rmse'; accepted are .*'mae', .*'mse'"):
        loss_function("rmse", "fit")


@pytest.mark.parametrize("name", LOSSES)
def test_fit_by_name(ns, backend, name):
    if backend == "cuda" and name not in ("relative_l2", "gaussian_nll"):
        pytest.skip("a slow kernel each")
    outputs = {"gaussian_nll": 2, "relative_l2_luminance": 3}.get(name, 1)
    targets = 3 if outputs == 3 else 1
    net = cn.MLP(out_features=outputs, width=8, depth=1, output_activation="softplus", bias=True)
    field = cn.NeuralField(cn.Sinusoidal(1, in_features=1), net).build(backend)

    def batch(key):
        (x,) = cn.uniform(1, key, ns.Float, 128)
        return [x], [2 + dr.sin(6 * x)] * targets, 0.5 + x

    result = cn.fit(field, batch, 2, loss=name, optimizer=dropt.SGD(0.0), progress=False)
    (x,), t, p = batch(cn.Key(0, step=1))
    expected = ref.loss(name, field([x]).numpy(), values(t), p.numpy()[None])
    assert result.losses[1] == pytest.approx(expected.mean(), rel=1e-3)


def test_fit_refuses_densities_that_do_not_fit(ns, backend):
    field = cn.NeuralField(None, cn.MLP(1, 2, 8, 1)).build(backend)
    x = ns.Float([0.1, 0.2])
    with pytest.raises(ValueError, match=r"fit: batch\(\): pdf has 3 components; 1 or 2"):
        cn.fit(field, lambda key: ([x], [x, x], [x, x, x]), 1, progress=False)
    with pytest.raises(TypeError, match=r"fit: batch\(\): pdf is a float"):
        cn.fit(field, lambda key: ([x], [x, x], 1.0), 1, progress=False)
    with pytest.raises(TypeError, match=r"fit: batch\(\): pdf is a str"):
        cn.fit(field, lambda key: ([x], [x, x], "ab"), 1, progress=False)
    with pytest.raises(ValueError, match=r"fit: batch\(\): pdf has 3 entries for 2 samples"):
        cn.fit(field, lambda key: ([x], [x, x], ns.Float(1, 2, 3)), 1, progress=False)
    for bad, shown in ((math.nan, "nan"), (0.0, "0"), (-2.0, "-2"), (math.inf, "inf")):
        for pdf in (ns.Float(0.5, bad), [x, ns.Float(bad)]):
            with pytest.raises(
                ValueError, match=rf"fit: batch\(\): pdf has 1 of . entries that are .* such as {shown};"
            ):
                cn.fit(field, lambda key, pdf=pdf: ([x], [x, x], pdf), 1, progress=False)
    with pytest.raises(ValueError, match=r"fit: batch\(\): pdf is -1"):
        cn.fit(field, lambda key: ([x], [x, x], [x, -1]), 1, progress=False)
    with pytest.raises(TypeError, match=r"a pair .* or a triple"):
        cn.fit(field, lambda key: ([x], [x, x], x, x), 1, progress=False)
    with pytest.raises(ValueError, match="2 components; the field has 2 outputs, and this loss needs 4"):
        cn.fit(field, lambda key: ([x], [x, x]), 1, loss="gaussian_nll", progress=False)


# ---- Regularization and schedules --------------------------------------------------------------------------

STRENGTHS = dict(l2_reg=0.3, relative_decay=0.2, absolute_decay=0.1)


@pytest.mark.parametrize("scaled", [False, True])
def test_adam(ns, scaled):
    """Several steps with all kinds of regularization; the features of a grid get no term of the gradient."""
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=(2, 5)), rng.normal(size=(4, 2, 5))
    names = "net.weights", "encoding.data"
    optimizer = cn.training.Adam(ns.Float(0.1), beta_2=0.99, **STRENGTHS)
    for name, w in zip(names, start, strict=True):
        optimizer[name] = ns.Float(w.astype(np.float32))
    expected = [(w, np.zeros(5), np.zeros(5)) for w in start]
    for t, g in enumerate(gradients, 1):
        for name, d in zip(names, g * (64 if scaled else 1), strict=True):
            value = optimizer[name]
            dr.set_grad(value, ns.Float(d.astype(np.float32)))
        for name in names:  # a rate that is an array needs a copy for every parameter, see fit._separate_rates
            optimizer.set_learning_rate({name: ns.Float(0.1)})
        optimizer.step(grad_scale=ns.Float(1 / 64) if scaled else None)
        for i, d in enumerate(g):
            strengths = STRENGTHS if i == 0 else STRENGTHS | {"l2_reg": 0}
            expected[i] = ref.adam_step(*expected[i], d, t, 0.1, beta2=0.99, **strengths)
    for name, (w, _, _) in zip(names, expected, strict=True):
        np.testing.assert_allclose(optimizer[name].numpy(), w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, dict(accumulate=2), dict(lookahead=2, alpha=0.5)])
@pytest.mark.parametrize("epsilon", [1e-8, 1e-3])
def test_entries_without_gradient(ns, options, epsilon):
    """Of a grid, they stay where they are, with their moments and counts; matrices go on by their momentum."""
    rng = np.random.default_rng(2)
    strengths = dict(relative_decay=0.2, absolute_decay=0.1)
    start, gradients = rng.normal(size=6), rng.normal(size=(12, 6)) * (rng.random((12, 6)) < 0.5)
    optimizer = cn.training.Adam(0.1, beta_2=0.999, epsilon=epsilon, skip_zero_grad=True, **strengths, **options)
    for name in ("net.weights", "grid.data"):
        optimizer[name] = ns.Float(start.astype(np.float32))
    every, slow = options.get("accumulate", 1), start
    grid, net = (start, 0 * start, 0 * start, np.zeros(6, int)), (start, 0 * start, 0 * start)
    for i, g in enumerate(gradients, 1):
        for value in optimizer.values():
            dr.set_grad(value, ns.Float(64 * g.astype(np.float32)))
        optimizer.step(grad_scale=ns.Float(1 / 64), active=ns.Bool(True))
        if i % every == 0:
            mean = gradients[i - every : i].mean(axis=0)
            grid = ref.sparse_adam_step(*grid, mean, lr=0.1, epsilon=epsilon, **strengths)
            net = ref.adam_step(*net, mean, i // every, lr=0.1, epsilon=epsilon, **strengths)
            if "lookahead" in options and i % 2 == 0:
                slow = slow + 0.5 * (grid[0] - slow)
                grid = (slow, *grid[1:])
        np.testing.assert_allclose(optimizer["grid.data"].numpy(), grid[0], rtol=1e-4, atol=1e-5)
        if "lookahead" not in options:
            np.testing.assert_allclose(optimizer["net.weights"].numpy(), net[0], rtol=1e-4, atol=1e-5)
    assert len(set(grid[3])) > 1


def test_counts_of_skipped_steps(ns):
    """A step that a scaler skips counts for no entry."""
    optimizer = cn.training.Adam(0.1, skip_zero_grad=True, params={"data": ns.Float(1, 2, 3)})
    for i, (g, active) in enumerate((([1, 0, 2], True), ([np.inf, 1, np.nan], False), ([0, 0, 1], True))):
        before = optimizer["data"].numpy()
        dr.set_grad(optimizer["data"], ns.Float(g))
        optimizer.step(active=ns.Bool(active))
        stays = np.array(g) == 0 if active else np.full(3, True)
        np.testing.assert_array_equal(optimizer["data"].numpy() == before, stays, err_msg=str(i))
    assert optimizer.state["data"][3][0].numpy().tolist() == [1, 0, 2]
    for name in ("uniform", "amsgrad", "mask_updates"):
        with pytest.raises(ValueError, match=f"^Adam: {name}=True cannot be combined with skip_zero_grad"):
            cn.training.Adam(0.1, skip_zero_grad=True, **{name: True})


def test_the_scale_of_gradients_that_never_overflow(ns):
    """All of them zero, for example: the scale stays finite."""
    scaler = LossScaler(ns.Float32)
    scaler.it = ns.UInt32(10_000)
    for _ in range(200):
        scaler.unscale([ns.Float(0, 0)])
        dr.eval(scaler.scale_factor, scaler.it)
    assert scaler.scale_factor.numpy()[0] == 2.0**40 and scaler.skipped.numpy()[0] == 0
    scaler.unscale([ns.Float(0, np.inf)])
    assert scaler.scale_factor.numpy()[0] == 2.0**39


@pytest.mark.parametrize("beta", [0.9, 0.99, 0.999, 0.9999])
def test_corrections_of_entries(ns, beta):
    t = np.array([0, 1, 5, 100, 5000, 10**6], np.uint32)
    optimizer = cn.training.Adam(0.1, beta_1=0.5, beta_2=beta)
    found = adam_correction(optimizer, ns.Float, (ns.UInt32(t), ns.Float(0.0 * t)))
    expected = np.sqrt(1 - beta ** (t + 1.0)) / (1 - 0.5 ** (t + 1.0))
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-6)


def test_sgd(ns):
    optimizer = cn.training.SGD(0.5, l2_reg=0.2, params={"weights": ns.Float(3, 1), "data": ns.Float(3, 1)})
    for name in ("weights", "data"):
        dr.set_grad(optimizer[name], ns.Float(1, 0))
    optimizer.step()
    np.testing.assert_allclose(optimizer["weights"].numpy(), [3 - 0.5 * (1 + 0.6), 1 - 0.5 * 0.2])
    np.testing.assert_allclose(optimizer["data"].numpy(), optimizer["weights"].numpy())


@pytest.mark.parametrize("make", [cn.training.Adam, cn.training.SGD])
def test_a_step_is_evaluated_unless_told_otherwise(ns, make):
    for options, expected in (({}, dr.VarState.Evaluated), (dict(eval=False), dr.VarState.Unevaluated)):
        optimizer = make(0.5, params={"x": ns.Float(3, 1)})
        dr.set_grad(optimizer["x"], ns.Float(1, 2))
        optimizer.step(**options)
        assert dr.detach(optimizer["x"]).state == expected
    with pytest.raises(ValueError, match=rf"^{make.__name__}\.step: eval is 'no'"):
        optimizer.step(eval="no")


@pytest.mark.parametrize("make", [cn.training.Adam, cn.training.SGD])
@pytest.mark.parametrize(("accumulate", "lookahead"), [(3, 0), (1, 4), (3, 2)])
def test_gathering_and_looking_ahead(ns, make, accumulate, lookahead):
    """Against loops that are written out; a step that a scaler skips, in between, counts for nothing."""
    rng = np.random.default_rng(1)
    optimizer = make(0.1, l2_reg=0.3, accumulate=accumulate, lookahead=lookahead, alpha=0.25)
    w, gradients = rng.normal(size=5), rng.normal(size=(24, 5))
    optimizer["weights"] = ns.Float(w.astype(np.float32))
    m, v, slow, moves = np.zeros(5), np.zeros(5), w, 0
    for i, g in enumerate(gradients, 1):
        if i == 2 and make is cn.training.SGD:  # Dr.Jit's Adam counts skipped steps
            dr.set_grad(optimizer["weights"], ns.Float(np.inf))
            optimizer.step(active=ns.Bool(False))
        dr.set_grad(optimizer["weights"], ns.Float(64 * g.astype(np.float32)))
        optimizer.step(grad_scale=ns.Float(1 / 64))
        if i % accumulate == 0:
            moves, mean = moves + 1, gradients[i - accumulate : i].mean(axis=0)
            if make is cn.training.Adam:
                w, m, v = ref.adam_step(w, m, v, mean, moves, 0.1, l2_reg=0.3)
            else:
                w = w - 0.1 * (mean + 0.3 * w)
            if lookahead and moves % lookahead == 0:
                w = slow = slow + 0.25 * (w - slow)
        np.testing.assert_allclose(optimizer["weights"].numpy(), w, rtol=1e-4, atol=1e-5)


def test_gathering_and_looking_ahead_in_fit(ns, backend, tmp_path):
    """One recording; weights move every third step, and a run resumed in between goes on as if it had not stopped."""

    def run(steps, **options):
        net = cn.MLP(1, 1, width=8, depth=1)
        field = cn.NeuralField(None, net).build(backend, "half", seed=1)
        optimizer = cn.training.Adam(1e-1, accumulate=3, lookahead=2)

        def batch(key):
            (x,) = cn.uniform(1, key, ns.Float, 64)
            return [x], [dr.sin(6 * x)]

        result = cn.fit(field, batch, steps, optimizer=optimizer, progress=False, **options)
        assert result.recordings <= 2 and result.skipped == 0
        return field["network.weights"].numpy()

    weights = {steps: run(steps) for steps in (0, 2, 3, 5, 6, 8)}
    for one, other in ((0, 2), (3, 5), (6, 8)):
        assert np.array_equal(weights[one], weights[other])
    first, second = abs(weights[3] - weights[0]).max(), abs(weights[6] - weights[0]).max()
    assert 0.05 < second < 0.15 < 2 * first  # Adam's steps are 0.1 long; half of the way of two is left
    path = tmp_path / "run.safetensors"
    run(5, checkpoint=path)
    resumed = run(8, checkpoint=path, resume=True)
    np.testing.assert_allclose(resumed, weights[8], rtol=0, atol=0 if backend == "llvm" else 2e-2)


def test_regularization_in_fit(ns, backend):
    """Strong decay keeps trained weights small, also in half precision and in a frozen function."""
    size = {}
    for decay in (0.0, 20.0):
        net = cn.MLP(out_features=1, width=8, depth=1)
        field = cn.NeuralField(cn.Sinusoidal(1, in_features=1), net).build(backend, "half", seed=1)
        optimizer = cn.training.Adam(1e-2, l2_reg=1e-6, relative_decay=decay)

        def batch(key):
            (x,) = cn.uniform(1, key, ns.Float, 64)
            return [x], [dr.sin(6 * x)]

        result = cn.fit(field, batch, 60, optimizer=optimizer, progress=False)
        assert result.recordings <= 2
        size[decay] = float(np.abs(field["network.weights"].numpy().astype(np.float64)).sum())
    assert size[20.0] < 0.5 * size[0.0]


def test_errors_of_optimizers():
    for make, name in (
        (cn.training.Adam, "l2_reg"), (cn.training.Adam, "relative_decay"), (cn.training.Adam, "absolute_decay"),
        (cn.training.SGD, "l2_reg"),
    ):  # fmt: skip
        for bad in (-1, float("nan"), "1", True):
            with pytest.raises(ValueError, match=f"{make.__name__}: {name} is {bad!r}; a number of at least 0"):
                make(1e-3, **{name: bad})
    for name, least in (("accumulate", 1), ("lookahead", 0)):
        for bad in (least - 1, 1.5, True, 2**32):
            with pytest.raises(ValueError, match=f"SGD: {name} is {bad}; an int of at least {least}"):
                cn.training.SGD(1e-3, **{name: bad})
        with pytest.raises(ValueError, match="Adam: mask_updates=True cannot be combined"):
            cn.training.Adam(1e-3, mask_updates=True, **{name: 2})
    with pytest.raises(ValueError, match="Adam: alpha is -1; a number"):
        cn.training.Adam(1e-3, alpha=-1)


def test_exponential_ends():
    rate = cn.training.exponential(1.0, 0.5, every=10, start=5, end=30)
    assert [rate(s) for s in (0, 5, 14, 15, 25, 30, 35, 1000)] == [1, 1, 1, 0.5, 0.25, 0.25, 0.25, 0.25]
