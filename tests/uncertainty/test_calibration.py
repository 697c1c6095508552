"""How good an uncertainty is, and deviations made as large as errors."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from support.arrays import assert_same, precisions

import coopnet as cn
from coopnet import reference as ref
from coopnet.uncertainty.calibrate import NEIGHBOURS, isotonic, of_largest_likelihood

N = 400


def predictions(n=300):
    rng = np.random.default_rng(3)
    mean, deviation = rng.normal(size=n), rng.uniform(0.5, 2, n)
    return mean, deviation, mean + 1.5 * deviation * rng.normal(size=n)


# ---- scores ------------------------------------------------------------------------------------------------


def test_scores_agree_with_the_reference(ns):
    mean, deviation, target = predictions()
    given = [ns.Float64(v) for v in (mean, deviation, target)]
    for name in ("negative_log_likelihood", "calibration_error"):
        expected = getattr(ref, name)(mean, deviation, target)
        assert getattr(cn, name)(mean, deviation, target) == pytest.approx(expected, rel=1e-9)
        assert getattr(cn, name)(*given) == pytest.approx(expected, rel=1e-9)
    score, positive = deviation.round(1), target > 0
    assert cn.auroc(score, positive) == pytest.approx(ref.auroc(score, positive), rel=1e-12)
    assert cn.auroc(ns.Float64(score), ns.Bool(positive)) == pytest.approx(ref.auroc(score, positive), rel=1e-12)


def test_what_scores_say():
    mean, deviation, target = predictions(4000)
    right = cn.negative_log_likelihood(mean, 1.5 * deviation, target)
    assert all(cn.negative_log_likelihood(mean, f * deviation, target) > right + 0.05 for f in (0.8, 3))
    errors = [cn.calibration_error(mean, f * deviation, target) for f in (0.5, 1.5, 5)]
    assert errors[1] < 0.02 < 0.1 < min(errors[0], errors[2])
    positive = np.arange(10) > 6
    assert cn.auroc(np.arange(10.0), positive) == 1 and cn.auroc(-np.arange(10.0), positive) == 0
    assert cn.auroc(np.ones((2, 5)), positive.reshape(2, 5)) == 0.5


@pytest.mark.parametrize(
    "name, arguments, error, words",
    [
        ("auroc", ([1.0], np.ones(1, bool)), TypeError, "score is [1.0]"),
        ("auroc", (np.ones(2), np.ones(2)), TypeError, "array of bools"),
        ("auroc", (np.ones(2), np.ones(3, bool)), ValueError, "equal ones"),
        ("auroc", (np.ones(2), np.ones(2, bool)), ValueError, "2 of 2"),
        ("auroc", (np.array([1, np.nan]), np.array([True, False])), ValueError, "NaN"),
        ("negative_log_likelihood", (np.ones(2), np.zeros(2), np.ones(2)), ValueError, "deviation has 0"),
        ("negative_log_likelihood", (np.ones(0), np.ones(0), np.ones(0)), ValueError, "empty"),
        ("negative_log_likelihood", (np.ones(2), np.ones(2), np.ones(1)), ValueError, "target (1,)"),
        ("calibration_error", (np.ones(2), np.ones(2), "a"), TypeError, "target is 'a'"),
    ],
)
def test_scores_of_bad_arguments(name, arguments, error, words):
    with pytest.raises(error, match=name) as info:
        getattr(cn, name)(*arguments)
    assert words in str(info.value)
    with pytest.raises(ValueError, match="levels is 0"):
        cn.calibration_error(np.ones(2), np.ones(2), np.ones(2), levels=0)


def test_isotonic_agrees_with_the_reference():
    rng = np.random.default_rng(1)
    for n in (1, 2, 40):
        x, y = rng.normal(size=n), rng.random(n)
        knots, values = isotonic(x, y)
        assert (np.diff(knots) >= 0).all() and (np.diff(values) >= 0).all() and len(knots) > 1
        expected = np.sort(ref.isotonic(x, y))
        np.testing.assert_allclose(np.unique(values.round(12)), np.unique(expected.round(12)))


def test_ends_of_a_curve_are_means_of_neighbours():
    """One sample that is right by chance says nothing of the smallest deviations."""
    rng = np.random.default_rng(2)
    x = np.linspace(0.5, 2, 500)
    y = np.square(x * rng.normal(size=500))
    y[0], y[-1] = 0, 1e3
    (_, single), (knots, values) = isotonic(x, y), isotonic(x, y, NEIGHBOURS)
    assert single[0] == 0 and single[-1] == 1e3
    assert 0.05 < values[0] < 1 and values[-1] < 100
    assert len(knots) > 2 and (np.diff(values) > 0).all()


# ---- calibration -------------------------------------------------------------------------------------------


def make_field(backend, precision="auto", dropout=0.2, seed=0):
    network = cn.MLP(out_features=2, width=8, depth=1, activation="tanh", dropout=dropout, bias=True)
    return cn.NeuralField(cn.Sinusoidal(2, in_features=2), network).build(backend, precision, seed)


def data(ns, field, factor=3.0, seed=0):
    """Points, and targets whose errors are ``factor`` times the deviation over masks."""
    rng = np.random.default_rng(seed)
    x = rng.random((2, N)).astype(np.float32)
    p = [ns.Float(v) for v in x]
    mean, deviation = cn.mc_dropout(field, p, cn.Key(0), 16)
    noise = factor * rng.normal(size=(2, N)) * deviation.numpy()
    return p, [ns.Float((m.numpy() + e).astype(np.float32)) for m, e in zip(mean, noise, strict=True)]


def test_one_factor(backend, ns):
    for precision in precisions(backend):
        field = make_field(backend, precision)
        p, targets = data(ns, field)
        calibrated = cn.calibrate(field, (p, targets), samples=16)
        mean, deviation = cn.mc_dropout(field, p, cn.Key(0), 16)
        error = mean.numpy() - np.stack([t.numpy() for t in targets])
        assert calibrated.factor == pytest.approx(ref.calibrate(error, deviation.numpy()), rel=1e-4)
        assert calibrated.factor == pytest.approx(3, rel=0.1)
        found = calibrated(ns.Array2f(p))
        np.testing.assert_allclose(found[0].numpy(), mean.numpy(), atol=1e-6)
        np.testing.assert_allclose(found[1].numpy(), deviation.numpy() * calibrated.factor, rtol=1e-4, atol=1e-7)
        test = data(ns, field, seed=1)
        m, s = (v.numpy() for v in calibrated(test[0]))
        assert cn.calibration_error(m, s, np.stack([t.numpy() for t in test[1]])) < 0.04


def test_isotonic(backend, ns):
    """Errors that are the square of the deviation, which no factor can say."""
    field = make_field(backend)
    p, _ = data(ns, field)
    mean, deviation = cn.mc_dropout(field, p, cn.Key(0), 16)
    rng = np.random.default_rng(5)
    size = 20 * deviation.numpy() ** 2
    target = [
        ns.Float((m + e).astype(np.float32))
        for m, e in zip(mean.numpy(), size * rng.normal(size=size.shape), strict=True)
    ]
    known = np.stack([t.numpy() for t in target])
    factor, curve = (cn.calibrate(field, (p, target), method=m, samples=16) for m in ("factor", "isotonic"))
    likelihoods = [cn.negative_log_likelihood(*(v.numpy() for v in c(p)), known) for c in (factor, curve)]
    assert likelihoods[1] < likelihoods[0] - 0.05
    s, after = deviation.numpy().ravel(), curve(p)[1].numpy().ravel()
    assert (np.diff(after[np.argsort(s)]) >= -1e-6).all()
    knots, values = (v.numpy() for v in (curve.knots, curve.values))
    np.testing.assert_allclose(after, np.interp(s, knots, values), rtol=1e-3)
    assert curve.factor == pytest.approx(np.sqrt(np.mean(after**2) / np.mean(s**2)), rel=1e-2)


@pytest.mark.parametrize("factor, noise", [(2.0, 0.1), (1.0, 0.0), (5.0, 0.01), (0.0, 0.2)])
def test_the_largest_likelihood_with_noise(factor, noise):
    rng = np.random.default_rng(0)
    deviation = np.exp(rng.normal(-3, 1, 2000))
    error = rng.normal(size=2000) * np.hypot(factor * deviation, noise)
    found = of_largest_likelihood(deviation, error**2)
    np.testing.assert_allclose(found, ref.calibrate_noise(error, deviation), rtol=0.02, atol=2e-3)
    np.testing.assert_allclose(found, (factor, noise), rtol=0.1, atol=0.1 if factor == 0 else 3e-3)


def test_targets_with_noise(backend, ns):
    """A factor alone would scale the deviations to the noise, also where the field is uncertain."""
    field = make_field(backend)
    p, _ = data(ns, field)
    mean, deviation = (v.numpy() for v in cn.mc_dropout(field, p, cn.Key(0), 16))
    error = np.random.default_rng(5).normal(size=mean.shape) * np.hypot(1.5 * deviation, 0.2)
    targets = [ns.Float(v) for v in (mean + error).astype(np.float32)]
    calibrated = cn.calibrate(field, (p, targets), method="noise", samples=16)
    expected = ref.calibrate_noise(error, deviation)
    np.testing.assert_allclose((calibrated.factor, calibrated.noise), expected, rtol=0.02)
    assert calibrated.noise == pytest.approx(0.2, rel=0.2)
    expected = np.hypot(calibrated.factor * deviation, calibrated.noise)
    np.testing.assert_allclose(calibrated(p)[1].numpy(), expected, rtol=1e-4)
    alone = cn.calibrate(field, (p, targets), samples=16)
    likelihoods = [cn.negative_log_likelihood(*(v.numpy() for v in c(p)), mean + error) for c in (calibrated, alone)]
    assert likelihoods[0] < likelihoods[1] and "noise 0." in repr(calibrated)


@pytest.mark.parametrize("method", ["factor", "noise", "isotonic"])
def test_frozen_and_in_loops(backend, ns, method):
    field = make_field(backend)
    p, targets = data(ns, field)
    dr.make_opaque(p)
    calibrated = cn.calibrate(field, (p, targets), samples=4, method=method)
    frozen = dr.freeze(lambda c, p: c(p))
    expected = [v.numpy() for v in calibrated(p)]
    for _ in range(3):
        for found, wanted in zip(frozen(calibrated, p), expected, strict=True):
            assert_same(backend, found.numpy(), wanted)
    together = cn.calibrate(cn.ensemble([field, make_field(backend, seed=1)]), (p, targets), method=method)
    total = dr.while_loop(
        (ns.UInt32(0), dr.zeros(ns.Float, N)),
        lambda i, s: i < 2,
        lambda i, s: (i + 1, s + together(p)[1][0]),
        mode="symbolic",
    )[1]
    np.testing.assert_allclose(total.numpy(), 2 * together(p)[1][0].numpy(), rtol=1e-5 if backend == "llvm" else 2e-2)


def test_other_fields_and_containers(backend, ns):
    """Ensembles and posteriors need no draws; tensors come back as such."""
    field = make_field(backend)
    p, targets = data(ns, field)
    posterior = cn.laplace(field, lambda key: (p, targets), 1)
    calibrated = cn.calibrate(posterior, (p, targets))
    np.testing.assert_allclose(calibrated(p)[1].numpy(), posterior.std(p).numpy() * calibrated.factor, rtol=1e-4)
    tensor = ns.TensorXf(np.stack([v.numpy() for v in p]))
    found = calibrated(tensor)[1]
    assert type(found) is ns.TensorXf and found.shape == (2, N)
    np.testing.assert_allclose(found.numpy(), calibrated(p)[1].numpy(), rtol=1e-4)
    assert repr(calibrated).startswith("<Calibrated: factor")


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(field=3), TypeError, "field is a int"),
        (dict(held_out=3), TypeError, "held_out is a int"),
        (dict(held_out=(1, 2, 3)), TypeError, "a pair"),
        (dict(method="platt"), ValueError, "method is 'platt'"),
        (dict(samples=1), ValueError, "samples is 1"),
        (dict(seed=-1), ValueError, "seed is -1"),
        (dict(dropout=0.0), ValueError, "no Dropout"),
        (dict(targets=1), ValueError, "targets with 1 components"),
    ],
)
def test_bad_arguments(backend, ns, change, error, words):
    change = dict(change)
    field = make_field(backend, dropout=change.pop("dropout", 0.2))
    p = [ns.Float(0.1, 0.2)] * 2
    arguments = dict(field=field, held_out=(p, p[: change.pop("targets", 2)])) | change
    with pytest.raises(error) as info:
        cn.calibrate(arguments.pop("field"), arguments.pop("held_out"), **arguments)
    assert words in str(info.value)
