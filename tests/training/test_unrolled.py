"""Several steps in one call: those of calls of one step, whatever is looked at between them."""

from __future__ import annotations

import copy
import signal

import drjit as dr
import numpy as np
import pytest
from drjit.opt import SGD, AdamW

import coopnet as cn
from coopnet.training import limits
from coopnet.training.run import Run
from coopnet.training.schedules import of_steps_alone
from coopnet.training.unrolled import UnrolledSteps


@pytest.fixture
def eager(set_limits):
    """As if steps were always short, and many were to come."""
    set_limits(UNROLLED_STEPS_LEFT=1, UNROLLED_SECONDS=1e9)


@pytest.fixture
def calls(monkeypatch):
    """The steps of each call."""
    found, take = [], Run.take_steps

    def noted(run, rate):
        take(run, rate)
        found.append(run.stride)

    monkeypatch.setattr(Run, "take_steps", noted)
    return found


def make(ns, backend, precision="auto"):
    network = cn.MLP(4, 1, width=8, depth=1, bias=True, dropout=0.1)
    encoding = cn.HashGrid(2, n_levels=2, hashmap_size=2**8)
    return cn.NeuralField(encoding, network).build(backend, precision, seed=1)


def batch_of(ns):
    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 100)
        return [x, y], [dr.sin(6 * x) * y]

    return batch


def state(field, result, ema=None):
    arrays = [v.array for v in field.values()] + ([] if ema is None else list(ema.average.values()))
    dr.eval(arrays)
    return [np.array(result.losses)] + [dr.detach(v).numpy() for v in arrays]


def assert_alike(backend, one, other):
    """Equal to the bit; on CUDA, where atomics add up in any order, hundreds of steps drift apart."""
    if backend == "llvm":
        assert np.array_equal(one, other)
    else:
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        assert np.linalg.norm(one - other) <= 0.5 * np.linalg.norm(other)


def options_of(name, field):
    return {
        "plain": lambda: {},
        "half precision": lambda: {"loss_scale": None, "weight_decay": 0.05, "clip_norm": 0.5},
        "everything": lambda: {
            "lr": cn.training.cosine(1e-2, 400), "clip_norm": 0.5, "weight_decay": 0.05, "loss": "huber",
            "multipliers": {"network.layers.0": 0.5}, "ema": cn.training.EMA(field, 0.9),
            "penalty": lambda field: 1e-4 * cn.training.l2_penalty(field)
        },
        "decay of the optimizer": lambda: {
            "optimizer": AdamW(lr=1e-3, weight_decay=0.1), "lr": cn.training.exponential(1e-2, 0.99),
        },
        "a look ahead": lambda: {"optimizer": cn.training.Adam(1e-3, lookahead=5)},
        "norms of layers": lambda: {"optimizer": cn.training.Novograd(1e-3)},
        "gradients of three steps": lambda: {"optimizer": cn.training.Adam(1e-3, accumulate=3)},
        "momentum": lambda: {"optimizer": SGD(lr=1e-3, momentum=0.9)},
        "metrics": lambda: {"metric": lambda field: float(field["network.weights"].array[3]), "metric_every": 37},
    }[name]()  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "plain", "half precision", "everything", "decay of the optimizer", "gradients of three steps", "a look ahead",
        "norms of layers", "momentum", "metrics",
    ],
)  # fmt: skip
def test_equal_to_single_steps(backend, ns, set_limits, eager, calls, name):
    found = []
    for most in (1 << 30, 1):
        set_limits(UNROLLED_STEPS_LEFT=most)
        calls.clear()
        field = make(ns, backend, "half" if name == "half precision" else "auto")
        options = options_of(name, field)
        result = cn.fit(field, batch_of(ns), 330, progress=False, **options)
        assert set(calls) == ({1} if most > 1 else {1, 4}) and sum(calls) == result.steps == 330
        found.append(state(field, result, options.get("ema")) + [np.array(result.metrics), np.array(result.skipped)])
        lr = options["optimizer"].lr if "optimizer" in options else 0.0
        found[-1].append(np.array(lr if isinstance(lr, float) else lr.numpy()))
    # before steps drift apart, losses tell whether those of one call change the parameters for each other
    np.testing.assert_allclose(found[0][0][:8], found[1][0][:8], rtol=0.02)
    for one, other in zip(*found, strict=True):
        assert_alike(backend, one, other)


def test_resumed_in_the_middle(backend, ns, eager, calls, tmp_path):
    found = []
    for stops in ([700], [290, 403, 700]):
        field, path = make(ns, backend), tmp_path / f"{len(stops)}.safetensors"
        for steps in stops:
            result = cn.fit(field, batch_of(ns), steps, progress=False, checkpoint=path, resume=True)
        found.append(state(field, result))
    assert 4 in calls
    # before steps drift apart, losses tell whether those of one call change the parameters for each other
    np.testing.assert_allclose(found[0][0][:8], found[1][0][:8], rtol=0.02)
    for one, other in zip(*found, strict=True):
        assert_alike(backend, one, other)


@pytest.mark.usefixtures("ctrl_c_works")
def test_interrupted(backend, ns, eager, calls):
    """Ctrl-C between two calls: what is left is the state after a step."""

    @of_steps_alone
    def rate(step):
        if step == 302:
            signal.raise_signal(signal.SIGINT)
        return 1e-3

    field, other = make(ns, backend), make(ns, backend)
    result = cn.fit(field, batch_of(ns), 600, lr=rate, progress=False)
    assert result.stopped == "interrupt" and 302 < result.steps < 310 and calls[-1] == 4
    calls.clear()
    expected = cn.fit(other, batch_of(ns), result.steps, lr=1e-3, progress=False)
    for one, two in zip(state(field, result), state(other, expected), strict=True):
        assert_alike(backend, one, two)


def test_divergence_names_the_step(backend, ns, eager, calls):
    field = make(ns, backend)

    @of_steps_alone
    def rate(step):
        return 1e38 if step == 301 else 1e-3

    with pytest.warns(RuntimeWarning, match="diverged"):
        result = cn.fit(field, batch_of(ns), 700, lr=rate, progress=False)
    assert result.stopped == "diverged" and "step 302" in result.message and 4 in calls
    assert all(np.isfinite(v.numpy()).all() for v in field.values())


def test_schedules_that_end(backend, ns, eager, calls):
    """A schedule that ends too early does so at its step, not at the call that reaches it."""

    @of_steps_alone
    def rate(step):
        return 1e-3 / (step != 302)

    field, other = make(ns, backend), make(ns, backend)
    with pytest.raises(ZeroDivisionError):
        cn.fit(field, batch_of(ns), 700, lr=rate, progress=False)
    assert 4 in calls and sum(calls) == 302
    cn.fit(other, batch_of(ns), 302, lr=1e-3, progress=False)
    for name in field:
        assert_alike(backend, field[name].array.numpy(), other[name].array.numpy())


def test_kernels_are_those_of_single_steps(backend, ns, eager, calls):
    """Tracing several steps compiles nothing, but for what hands out numbers of steps and rates."""
    new = []

    def look(field):
        history = dr.kernel_history((dr.KernelType.JIT,))
        new.append(sum(not k["cache_hit"] for k in history if k["size"] > 1))
        dr.kernel_history_clear()
        return 0.0

    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
        cn.fit(make(ns, backend), batch_of(ns), 200, progress=False, metric=look, metric_every=40)
    assert 4 in calls
    assert sum(new[1:]) == 0


def test_rates_that_do_something_besides_are_asked_for_at_their_step(backend, ns, eager, calls):
    """Such as raising the highest level of a grid."""
    seen = []
    cn.fit(
        make(ns, backend), batch_of(ns), 300, lr=lambda step: seen.append((step, len(calls))) or 1e-3, progress=False
    )
    assert set(calls) == {1} and seen == [(i, i) for i in range(300)]


def test_rule():
    class Known:
        float32, left = dr.llvm.ad.Float, False

    def decided(ahead=10000, taken=256, seconds=0.05, **changes):
        step, rule = copy.copy(Known()), UnrolledSteps(ahead, cn.training.cosine(1e-2, 9))
        for name, value in changes.items():
            setattr(step, name, value)
        rule.learn(step, taken, seconds)
        return rule.next(256) == limits.UNROLLED_STEPS

    assert decided()
    assert not decided(seconds=1.0)  # steps are long
    assert decided(ahead=256 + limits.UNROLLED_STEPS_LEFT) and not decided(
        ahead=255 + limits.UNROLLED_STEPS_LEFT
    )  # too few are left
    assert not decided(taken=8, seconds=1e-3)  # few have been seen
    assert not decided(left=True)  # in two parts
    rule = UnrolledSteps(10000, cn.training.cosine(1e-2, 9))
    rule.learn(Known(), 256, 1.0)  # with tracing
    assert rule.next(256) == 1
    rule.learn(Known(), 256, 0.05)
    assert (rule.next(256), rule.next(4), rule.next(3)) == (4, 4, 1)
    rule = UnrolledSteps(10000, cn.training.cosine(1e-2, 9))
    for taken, expected in (12, 1), (12, 1), (7, 1), (1, 4):  # of short looks, all count: 32 are enough
        rule.learn(Known(), taken, 1e-4 * taken)
        assert rule.next(256) == expected
    rule = UnrolledSteps(10000, cn.training.cosine(1e-2, 9))
    for taken, seconds, expected in (40, 1.0, 1), (20, 0.002, 1), (20, 0.002, 4):  # a slow start is forgotten
        rule.learn(Known(), taken, seconds)
        assert rule.next(256) == expected
