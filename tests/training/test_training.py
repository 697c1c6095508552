"""Training: it learns, it replays one recording, it stops and resumes without a trace."""

from __future__ import annotations

import functools
import math
import pickle
from types import SimpleNamespace

import drjit as dr
import numpy as np
import pytest
from drjit.opt import SGD, Adam, GradScaler
from support.kernels import launched
from support.networks import same, weights
from support.training import make_batch, make_field

import coopnet as cn
from coopnet.jit.captures import Captures, _Walk
from coopnet.reference import philox4x32
from coopnet.training import arguments, limits, losses, run, state
from coopnet.training.metric import Metric
from coopnet.training.scaler import LossScaler
from coopnet.training.state import File, check_file


def quality(ns):
    x = [ns.Float(v) for v in np.random.default_rng(0).random((2, 300))]
    t = [dr.sin(6 * x[0]) * x[1], x[0] * x[1]]

    def metric(field):
        y = field(x)
        return float(sum(np.mean((y[i] - t[i]).numpy() ** 2) for i in range(2)))

    return metric


@pytest.mark.parametrize("encoding", [None, "grid"])
def test_learns(backend, ns, encoding):
    grid = cn.HashGrid(2, n_levels=4, base_resolution=4, hashmap_size=2**10) if encoding else None
    field = make_field(backend, encoding=grid, dropout=0.02)
    before = quality(ns)(field)
    result = cn.fit(field, make_batch(ns), 150, lr=1e-2, progress=False)
    assert quality(ns)(field) < 0.1 * before
    assert len(result.losses) == result.steps == 150
    assert np.mean(result.losses[-10:]) < 0.3 * np.mean(result.losses[:5])
    assert not any(dr.grad_enabled(v) for v in field.values())


def test_thousand_steps_record_at_most_twice(backend, ns):
    table = ns.Float(np.linspace(0, 1, 64))  # an array that the closure captures

    def batch(key):
        (u,) = cn.uniform(1, key, ns.Float, 64)
        t = dr.gather(ns.Float, table, ns.UInt32(u * 63))
        return [u], [t]

    net = cn.MLP(in_features=1, out_features=1, width=8, depth=1, dropout=0.1)
    field = cn.NeuralField(None, net).build(backend)
    cn.fit(field, batch, 3, progress=False)
    with launched() as kernels:
        result = cn.fit(field, batch, 1000, lr=cn.training.cosine(1e-2, 1000), seed=5, progress=False)
    assert result.recordings <= 2
    # another seed, another schedule: nothing is compiled again
    assert all(k["cache_hit"] for k in kernels if "cache_hit" in k), [k for k in kernels if not k["cache_hit"]][:3]


@pytest.mark.parametrize("precision", ["single", "half"])
@pytest.mark.parametrize("encoding", [None, "grid"])
@pytest.mark.parametrize("options", [
    {}, {"metric": lambda field: 0.0, "metric_every": 3}, {"clip_norm": 1.0}, {"distributed": cn.training.Group()}
])  # fmt: skip
def test_a_step_is_recorded_once(backend, ns, precision, encoding, options):
    """Steps leave the field as they find it, and so does a metric."""
    if backend != "llvm":
        pytest.skip("on a GPU other arrays may be aligned otherwise")
    grid = cn.HashGrid(2, n_levels=2, hashmap_size=2**8) if encoding else None
    field = make_field(backend, precision, grid)
    assert cn.fit(field, make_batch(ns), 20, progress=False, **options).recordings == 1


@pytest.mark.parametrize("kind", ["average", "lookahead", "chunks"])
def test_a_step_with_copies_of_parameters_is_recorded_once(backend, ns, kind):
    if backend != "llvm":
        pytest.skip("on a GPU other arrays may be aligned otherwise")
    field = make_field(backend, "single")
    options = {
        "average": {"ema": cn.training.EMA(field), "lr": 1e-2},
        "lookahead": {"optimizer": cn.training.Adam(1e-2, lookahead=3)},
        "chunks": {"distributed": cn.training.Group(chunks=4), "lr": 1e-2},
    }[kind]
    assert cn.fit(field, make_batch(ns), 6, progress=False, **options).recordings == 1


@pytest.mark.parametrize(("precision", "most"), [("single", 5), ("half", 8)])
def test_kernels_of_a_step(backend, ns, precision, most):
    """The optimizer's and the scaler's states are computed together with what else a step leaves."""
    if backend != "llvm":
        pytest.skip("counts those of LLVM")
    counts = []
    for steps in (3, 8):
        field = cn.NeuralField(None, cn.MLP(2, 2, width=8, depth=1)).build(backend, precision)
        with launched() as kernels:
            cn.fit(field, make_batch(ns, 64), steps, progress=False)
        counts.append(len(kernels))
    assert 5 <= counts[1] - counts[0] <= 5 * most


def test_losses_are_those_of_the_batches(backend, ns):
    """The loss of step i is the mean over batch(Key(seed, step=i)) with the masks of that key."""
    field, batch = make_field(backend, dropout=0.3), make_batch(ns)
    result = cn.fit(field, batch, 3, optimizer=SGD(lr=0.0), seed=11, progress=False)
    for step, loss in enumerate(result.losses):
        key = cn.Key(11, step=step)
        x, t = batch(key)
        y = field(x, key)
        mean = np.mean([np.mean((y[i] - t[i]).numpy().astype(np.float64) ** 2) for i in range(2)])
        assert loss == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("encoding", ["sinusoidal", "grid"])
def test_resume_equals_one_run(ns, backend, tmp_path, encoding):
    def field():
        grid = cn.HashGrid(2, n_levels=3, base_resolution=4, hashmap_size=2**8)
        return make_field(backend, encoding=grid if encoding == "grid" else None)

    # higher is better, so that the best of an error is one of the first run
    options = dict(
        lr=cn.training.cosine(1e-2, 60), seed=3, progress=False, metric=quality(ns), metric_every=5, patience=99
    )
    whole = field()
    reference = cn.fit(whole, make_batch(ns), 60, **options)
    path = tmp_path / "run.safetensors"
    first = field()
    cn.fit(first, make_batch(ns), 25, checkpoint=path, **options)
    second = field()
    resumed = cn.fit(second, make_batch(ns), 60, checkpoint=path, resume=True, **options)
    assert resumed.steps == 60 and len(resumed.losses) == 60
    assert reference.best[0] < 25 and resumed.best[0] == reference.best[0]
    if backend == "llvm":
        assert same(weights(whole), weights(second))
        assert resumed.losses == reference.losses
        assert resumed.metrics == reference.metrics and resumed.best == reference.best
    else:
        np.testing.assert_allclose(resumed.losses, reference.losses, rtol=0.2, atol=1e-3)


@pytest.mark.parametrize("cut", [25, 27])
def test_patience_of_a_resumed_run(ns, backend, tmp_path, cut):
    """It ends where one that was not stopped ends. The metric after the last step of the first part does not count."""
    # the best of the first run is the metric at its end, unless that is left out
    values = {10: 1.0, 20: 2.0, 25: 2.0, 27: 3.0, 30: 2.0, 40: 2.0, 50: 2.0, 60: 2.0}
    step, taken = [0], []

    def metric(field):
        taken.append(step[0] % 1000)
        return values[taken[-1]]

    def rate(number):  # called for every step
        step[0] = number + 1
        return 1e-3

    options = dict(metric=metric, metric_every=10, patience=4, higher_is_better=True, progress=False, lr=rate)
    whole, second, path = make_field(backend), make_field(backend), tmp_path / "run.safetensors"
    reference = cn.fit(whole, make_batch(ns), 100, **options)
    first = cn.fit(make_field(backend), make_batch(ns), cut, checkpoint=path, **options)
    assert first.metrics == [(10, 1.0), (20, 2.0), (cut, values[cut])]
    assert first.best == ((27, 3.0) if cut == 27 else (20, 2.0))
    again = cn.fit(make_field(backend), make_batch(ns), cut, checkpoint=path, resume=True, **options)
    assert (again.metrics, again.best) == (first.metrics, first.best)
    resumed = cn.fit(second, make_batch(ns), 100, checkpoint=path, resume=True, **options)
    assert (reference.stopped, reference.steps, reference.best) == ("patience", 60, (20, 2.0))
    assert (resumed.stopped, resumed.steps, resumed.metrics) == ("patience", 60, reference.metrics)
    assert resumed.best == reference.best
    if backend == "llvm":
        assert same(weights(whole), weights(second))


def test_resume_counts_of_entries(ns, backend, tmp_path):
    """The steps of every entry of a grid are part of the state."""

    def run(steps, field=None, **options):
        field = field or make_field(backend, encoding=cn.HashGrid(2, n_levels=3, base_resolution=4, hashmap_size=2**8))
        optimizer = cn.training.Adam(1e-2, skip_zero_grad=True)
        cn.fit(field, make_batch(ns), steps, optimizer=optimizer, progress=False, seed=3, **options)
        return field, optimizer

    path = tmp_path / "run.safetensors"
    (whole, optimizer), _ = run(40), run(15, checkpoint=path)
    counts = optimizer.state["encoding.data"][3][0].numpy()
    assert len(counts) == whole["encoding.data"].shape[0] and counts.max() == 40
    resumed, again = run(40, checkpoint=path, resume=True)
    np.testing.assert_array_equal(again.state["encoding.data"][3][0].numpy(), counts)
    if backend == "llvm":
        assert same(weights(whole), weights(resumed))


def test_resumes_in_half_precision(ns, backend, tmp_path):
    options = dict(lr=1e-2, seed=3, progress=False)
    whole = make_field(backend, precision="half")
    cn.fit(whole, make_batch(ns), 40, **options)
    path = tmp_path / "run.safetensors"
    cn.fit(make_field(backend, precision="half"), make_batch(ns), 17, checkpoint=path, **options)
    second = make_field(backend, precision="half")
    cn.fit(second, make_batch(ns), 40, checkpoint=path, resume=True, **options)
    if backend == "llvm":
        assert same(weights(whole), weights(second))


def test_interrupt_writes_a_checkpoint(ns, backend, tmp_path):
    path = tmp_path / "run.safetensors"
    calls = []

    def metric(field):
        calls.append(0)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return 0.0

    field = make_field(backend)
    result = cn.fit(field, make_batch(ns), 100, metric=metric, metric_every=10, checkpoint=path, progress=False)
    assert result.stopped == "interrupt" and result.steps == 20
    assert same(weights(cn.load(path, backend)), weights(field))


def test_patience_returns_to_the_best(ns, backend):
    field = make_field(backend)
    seen = []
    values = iter([1.0, 3.0, 2.0, 2.5, 9.0])

    def metric(f):
        seen.append(weights(f))
        return next(values)

    result = cn.fit(field, make_batch(ns), 100, metric=metric, metric_every=5, patience=2, progress=False)
    assert result.stopped == "patience" and result.best == (10, 3.0) and result.steps == 20
    assert same(weights(field), seen[1])
    assert not same(seen[1], seen[3])


def test_lower_is_better(ns, backend):
    values = iter([3.0, 1.0, 2.0])
    result = cn.fit(
        make_field(backend), make_batch(ns), 3, metric=lambda f: next(values), metric_every=1, higher_is_better=False,
        progress=False,
    )  # fmt: skip
    assert result.best == (2, 1.0)


def test_overflow_is_skipped_and_counted(ns, backend):
    """A loss whose scaled gradient overflows half precision leaves the weights alone and halves the scale."""
    field = make_field(backend, precision="half")
    before = weights(field)

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 64)
        return [x, y], [ns.Float(1e6), ns.Float(1e6)]

    with pytest.warns(RuntimeWarning, match="3 of 3 steps were skipped"):
        result = cn.fit(field, batch, 3, loss=lambda y, t: 1e4 * dr.square(y[0] - t[0]), progress=False)
    assert result.skipped == 3
    assert same(weights(field), before)
    assert all(math.isfinite(v) for v in result.losses)


@pytest.mark.parametrize("how", ["patience", "divergence"])
def test_the_optimizer_has_the_best_weights_too(ns, backend, how):
    """With gradients, as every optimizer has them: a loop of one's own can go on from there."""
    optimizer, values = Adam(lr=1e-3), [5, 7, 6, 6]
    field = make_field(backend)
    if how == "patience":
        options = dict(metric=lambda f: values.pop(0), metric_every=1, patience=2)
        result = cn.fit(field, make_batch(ns), 9, optimizer=optimizer, lr=1e-2, progress=False, **options)
        assert result.stopped == "patience" and result.best == (2, 7.0)
    elif backend == "cuda":
        pytest.skip("a loss scaler keeps half-precision parameters finite")
    else:
        with pytest.warns(RuntimeWarning, match="diverged"):
            cn.fit(field, make_batch(ns), 5, optimizer=optimizer, lr=1e30, progress=False)
    best = {name: dr.detach(value).numpy() for name, value in optimizer.items()}  # in single precision
    assert same(weights(field), {name: value.astype(weights(field)[name].dtype) for name, value in best.items()})
    assert all(dr.grad_enabled(value) for value in optimizer.values())
    assert not any(dr.grad_enabled(value) for value in field.values())


def test_scaler_counts(ns):
    opt = Adam(lr=0.1, params={"x": ns.Float16([1.0, 2.0])})
    scaler = LossScaler(ns.Float32)
    for overflow in (False, True, True, False):
        before = opt["x"].numpy()
        dr.backward(scaler.scale(ns.Float32(opt["x"]) * (float("inf") if overflow else 0.25)))
        opt.step(**scaler.unscale([value.grad for value in opt.values()]))
        assert np.array_equal(opt["x"].numpy(), before) == scaler.skips().numpy()[0] == overflow
    assert scaler.skipped.numpy()[0] == 2 and scaler.it.numpy()[0] == 1
    assert scaler.scale_factor.numpy()[0] == 65536 / 4
    fresh = LossScaler(ns.Float32, 1024.0)
    assert [v.numpy().tolist() for v in (fresh.scale_factor, fresh.it, fresh.skipped)] == [[1024.0], [0], [0]]


def test_a_scale_that_is_given_is_kept(ns, backend, set_limits, monkeypatch):
    """It is halved where gradients overflow, and never raised."""
    set_limits(SCALE_STEPS=2)
    seen, call = [], LossScaler.unscale
    monkeypatch.setattr(LossScaler, "unscale", lambda scaler, *rest: seen.append(scaler) or call(scaler, *rest))
    field = make_field(backend, "half")
    for given in (256.0, 2.0**100):
        result = cn.fit(field, make_batch(ns), 9, loss_scale=given, progress=False)
        assert result.skipped == (9 if given > 1e6 else 0)
        assert seen[-1].scale_factor.numpy()[0] == given / 2**result.skipped
    for wrong in (0, -1.0, math.nan, math.inf, "128"):
        with pytest.raises((TypeError, ValueError), match="fit: loss_scale"):
            cn.fit(field, make_batch(ns), 1, loss_scale=wrong, progress=False)


def test_scaler_is_that_of_drjit(ns, set_limits):
    """Scales, counts and parameters, also where the scale grows; and the defaults."""
    theirs = GradScaler()
    assert (theirs.growth_factor, theirs.backoff_factor, theirs.growth_interval) == (
        limits.SCALE_GROWTH, limits.SCALE_BACKOFF, limits.SCALE_STEPS
    )  # fmt: skip
    assert theirs.scale_factor == LossScaler(ns.Float32).scale_factor.numpy()[0]
    set_limits(SCALE_STEPS=2)
    ours, theirs = LossScaler(ns.Float32, 64.0), GradScaler(64.0, growth_interval=2)
    theirs.scale_factor = ns.Float32(64.0)
    optimizers = [Adam(lr=0.1, params={"x": ns.Float16([1.0, 2.0]), "y": ns.Float(3.0)}) for _ in range(2)]
    for factor in (1.0, 2.0, 3.0, math.inf, 4.0, math.nan, 1.0, 2.0, 3.0, 4.0):
        for opt, scaler in zip(optimizers, (ours, theirs), strict=True):
            dr.backward(scaler.scale((ns.Float32(opt["x"]) + opt["y"]) * factor))
        optimizers[0].step(**ours.unscale([value.grad for value in optimizers[0].values()]))
        theirs.step(optimizers[1])
        assert ours.scale_factor.numpy()[0] == theirs.scale_factor.numpy()[0] and ours.it.numpy()[0] == theirs.it[0]
        for name in "xy":
            assert np.array_equal(*(opt[name].numpy() for opt in optimizers))
    assert ours.skipped.numpy()[0] == 2 and ours.scale_factor.numpy()[0] > 16


def test_optimizer_and_rate(ns, backend):
    """The schedule reaches the optimizer: a rate of zero from step 5 on freezes the weights."""
    short, long = make_field(backend), make_field(backend)
    cn.fit(short, make_batch(ns), 5, optimizer=SGD(lr=1.0), lr=0.1, progress=False)
    cn.fit(long, make_batch(ns), 9, optimizer=SGD(lr=1.0), lr=lambda step: 0.1 if step < 5 else 0.0, progress=False)
    for a, b in zip(weights(short).values(), weights(long).values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 if backend == "llvm" else 2e-3)


@pytest.mark.parametrize("loss", ["l1", "huber"])
def test_named_losses(ns, backend, loss):
    y, t = [ns.Float([0.0, 3.0])], [ns.Float([0.5, 0.0])]
    expected = {"l1": [0.5, 3.0], "huber": [0.125, 2.5]}[loss]
    np.testing.assert_allclose(losses.loss_function(loss, "t")(y, t).numpy(), expected)


def test_uniform_numbers(ns):
    key = cn.Key(2**63 + 5, step=9)
    u = cn.uniform(6, key, ns.Float, 1000)
    seed = ((2**63 + 5) & 0xFFFFFFFF, (2**63 + 5) >> 32)
    for i in (0, 3, 5):
        word = philox4x32((i // 4, np.arange(1000, dtype=np.uint32), 9, 2**31), seed)[i % 4]
        assert np.array_equal(u[i].numpy(), (word >> 8).astype(np.float32) * np.float32(2**-24))
    assert all(v.numpy().min() >= 0 and v.numpy().max() < 1 for v in u)
    part = cn.uniform(1, cn.Key(2**63 + 5, index=ns.UInt32([7, 3]), step=9), ns.Float)
    assert np.array_equal(part[0].numpy(), u[0].numpy()[[7, 3]])


def test_uniform_types(ns):
    for dtype in (ns.Float64, ns.Float16, ns.UInt32, ns.Bool, float, int, "Float", None, ns.Float(1)):
        with pytest.raises(TypeError, match=r"^uniform: dtype is .*; a single-precision type such as"):
            cn.uniform(1, cn.Key(0), dtype, 4)
    for dtype in (ns.ArrayXf, ns.Array2f, ns.TensorXf):
        with pytest.raises(TypeError, match=r"^uniform: dtype is \w+; a 1D array type is needed"):
            cn.uniform(1, cn.Key(0), dtype, 4)
    assert all(type(v) is ns.Float for v in cn.uniform(5, cn.Key(0), ns.Float, 4))


def test_uniform_streams_and_samples(ns):
    key = cn.Key(3, step=2)
    words = philox4x32((0, np.arange(4), 2, 2**31 + 9), (3, 0))
    drawn = cn.uniform(1, key, ns.Float, 4, stream=9)[0].numpy()
    np.testing.assert_array_equal(drawn, (words[0] >> np.uint32(8)) * 2.0**-24)
    assert cn.uniform(1, key, ns.Float, 1, stream=2**31 - 1)[0].numpy().shape == (1,)
    for options, words in (
        (dict(stream=2**31), "stream is 2147483648"), (dict(stream=-1), "stream is -1"), (dict(stream=True), "stream"),
        (dict(samples=0), "samples is 0"), (dict(samples=None), "samples is None"),
        (dict(samples=True), "samples is True"),
        (dict(samples=2**32), "samples is 4294967296"), (dict(n=0), "n is 0"), (dict(n=1.0), "n is 1.0"),
        (dict(n=2**16), "n"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^uniform: {words}"):
            cn.uniform(**(dict(n=1, key=key, dtype=ns.Float, samples=4) | options))
    with pytest.raises(TypeError, match=r"^uniform: key is a int; a coopnet\.Key"):
        cn.uniform(1, 3, ns.Float, 4)


def test_schedules():
    c = pickle.loads(pickle.dumps(cn.training.cosine(1.0, 100, warmup=10, final=0.1)))
    assert c(0) == pytest.approx(1 / 11) and c(10) == 1.0 and c(55) == pytest.approx(0.55) and c(100) == 0.1 == c(999)
    e = cn.training.exponential(1.0, 0.5, every=10, start=20)
    assert [e(s) for s in (0, 29, 30, 45)] == [1.0, 1.0, 0.5, 0.25]
    for steps, warmup, message in (
        ("a", 0, "steps is 'a'"), (10, -1, "warmup is -1"), (10, 10, "warmup is 10 of 10"), (0, 0, "steps is 0"),
        (None, 0, "steps is None"), (10, "1", "warmup is '1'"), (math.inf, 0, "steps is inf"), (True, 0, "steps is T"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"cosine: {message}"):
            cn.training.cosine(1.0, steps, warmup)
    for bad in (-1, math.nan, math.inf, "1", None, True, 10**400, 1j, [1], np.float64("nan")):
        for options, message in (
            (dict(lr=bad), "cosine: lr is"), (dict(lr=1, final=bad), "cosine: final is"),
        ):  # fmt: skip
            with pytest.raises(ValueError, match=message):
                cn.training.cosine(steps=10, **options)
        for name in ("lr", "decay", "every", "start", "end"):
            if (name in ("start", "end") and bad == -1) or (name == "end" and bad is None):
                continue  # before the beginning, and none
            least = {"lr": " of at least 0", "decay": " of at least 0", "every": " of at least 1"}.get(name, "")
            with pytest.raises(ValueError, match=f"exponential: {name} is .*; a finite number{least} is needed"):
                cn.training.exponential(**({"lr": 1.0, "decay": 0.5} | {name: bad}))
    for rate in (c, e):
        for bad in ("1", None, math.nan, [1]):
            with pytest.raises(ValueError, match=r"(cosine|exponential): step is .*; a finite number is needed"):
                rate(bad)
    with pytest.raises(ValueError, match="exponential: every is 0"):
        cn.training.exponential(1.0, 0.5, every=0)
    assert cn.training.exponential(1.0, 1e300)(3) == math.inf  # which fit refuses
    assert cn.training.cosine(np.float32(1), np.int64(4))(np.int64(2)) == 0.5


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(steps=-1), ValueError, "steps is -1"),
        (dict(steps=2.5), ValueError, "steps is 2.5"),
        (dict(loss="l7"), ValueError, "loss is 'l7'"),
        (dict(lr=-1.0), ValueError, "lr is -1.0"),
        (dict(lr=math.nan), ValueError, "lr is nan"),
        (dict(seed=2**64), ValueError, "seed"),
        (dict(batch=3), TypeError, "batch is a int"),
        (dict(metric=3), TypeError, "metric is a int"),
        (dict(metric_every=0), ValueError, "metric_every is 0"),
        (dict(patience=0, metric=lambda f: 0.0), ValueError, "patience is 0"),
        (dict(patience=3), ValueError, "patience needs a metric"),
        (dict(resume=True), ValueError, "resume=True needs a checkpoint"),
        (dict(checkpoint_every=-1), ValueError, "checkpoint_every is -1"),
        (dict(checkpoint_every="1"), ValueError, "checkpoint_every is '1'"),
        (dict(checkpoint_every=True), ValueError, "checkpoint_every is True"),
        (dict(checkpoint_every=math.nan), ValueError, "checkpoint_every is nan"),
        (dict(checkpoint=5), TypeError, "checkpoint is a int"),
        (dict(metadata="x"), TypeError, "metadata is a str"),
        (dict(resume="no"), ValueError, "resume is 'no'"),
        (dict(resume=1, checkpoint="x"), ValueError, "resume is 1"),
        (dict(progress=None), ValueError, "progress is None"),
        (dict(higher_is_better="yes"), ValueError, "higher_is_better is 'yes'"),
        (dict(seed=-1), ValueError, "seed is -1; an int in [0, 2^64)"),
        (dict(seed=1.0), ValueError, "seed is 1.0"),
        (dict(seed=True), ValueError, "seed is True"),
        (dict(steps=True), ValueError, "steps is True"),
        (dict(steps=2**32), ValueError, "fewer than 2^32"),
        (dict(steps="a" * 5000), ValueError, "steps is 'aaa"),
        (dict(metric_every=1.0), ValueError, "metric_every is 1.0"),
        (dict(patience=True, metric=abs), ValueError, "patience is True"),
        (dict(optimizer=3), TypeError, "optimizer is a int; a drjit.opt optimizer"),
        (dict(optimizer=Adam), TypeError, "optimizer is the class Adam"),
        (dict(optimizer=dr.opt.Muon(lr=1e-3)), TypeError, "fit: the optimizer is a Muon, which needs matrices"),
        (dict(lr="1"), ValueError, "lr is '1'"),
        (dict(lr=True), ValueError, "lr is True"),
        (dict(lr=10**400), ValueError, "lr is an int of"),
        (dict(loss=None), ValueError, "loss is None"),
        (dict(loss=["l2"]), ValueError, "loss is ['l2']"),
        (dict(objective=lambda *a: 0, loss=["l2"]), ValueError, "loss is ['l2']"),
        (dict(ema="x"), TypeError, "ema is a str"),
        (dict(penalty="x"), TypeError, "penalty is a str"),
        (dict(field=cn.MLP(2, 2)), TypeError, "field is a MLP"),
        (dict(field=cn.NeuralField(None, cn.MLP(2, 2))), ValueError, "not built"),
    ],
)
def test_bad_arguments(ns, backend, change, error, words):
    arguments = dict(field=make_field(backend), batch=make_batch(ns), steps=1, progress=False) | change
    with pytest.raises(error, match=r"^fit: ") as info:
        cn.fit(**arguments)
    assert words in str(info.value) and len(str(info.value)) < 400


def test_ends_of_the_ranges(backend, tmp_path):
    """What is refused above begins right here."""
    field = make_field(backend)
    for steps, seed in ((0, 0), (2**32 - 1, 2**64 - 1)):
        arguments.check_run(field, abs, steps, seed, Adam(lr=1e-3), True)
    for change in ((abs, 1, True, 1), (abs, 1, False, None), (None, 1, True, None)):
        Metric(*change)
    path = tmp_path / "run.safetensors"
    for change in ((path, 0, True, {}), (path, math.inf, False, None), (None, 60.0, False, {})):
        check_file(*change)
        File(*change, field, 0)


def test_objective_that_is_the_loss(ns, backend):
    """Written as an objective, the mean square error takes the same steps."""

    def objective(field, drawn, key):
        p, targets = drawn
        y = field(p, key)
        return (dr.square(y[0] - targets[0]) + dr.square(y[1] - targets[1])) * 0.5

    results = []
    for options in ({}, {"objective": objective}):
        field = make_field(backend)
        result = cn.fit(field, make_batch(ns), 10, lr=1e-2, seed=3, progress=False, **options)
        results.append((result.losses, np.concatenate([w.astype(np.float64) for w in weights(field).values()])))
    tolerance = 5e-2 if backend == "cuda" else 1e-4
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_objective_of_gradients(ns, backend):
    """The distance to a circle from its boundary and an eikonal loss, the batch being a PyTree of its own."""
    net = cn.MLP(2, 1, width=16, depth=2, activation="softplus", bias=True)
    field = cn.NeuralField(None, net).build(backend, seed=1)

    def batch(key):
        u, x, y = cn.uniform(3, key, ns.Float, 256)
        s, c = dr.sincos(2 * math.pi * u)
        return {"normal": ns.Array2f(c, s), "free": ns.Array2f(2 * x - 1, 2 * y - 1)}

    def objective(field, drawn, key):
        value, gradient = field.value_and_grad(0.5 * drawn["normal"], key)
        on = 10 * dr.square(value[0]) + dr.squared_norm(gradient - drawn["normal"])
        _, gradient = field.value_and_grad(drawn["free"], key)
        return on + dr.square(dr.norm(gradient) - 1)

    first = float(dr.mean(objective(field, batch(cn.Key(0)), cn.Key(0)))[0])
    result = cn.fit(field, batch, 150, lr=2e-2, objective=objective, progress=False)
    assert result.losses[0] == pytest.approx(first, rel=2e-2 if backend == "cuda" else 1e-4)
    assert result.recordings <= 2 and np.mean(result.losses[-10:]) < 0.1 * first
    p = batch(cn.Key(9))["free"]
    value, gradient = field.value_and_grad(p)
    assert np.mean(np.abs(dr.norm(gradient).numpy() - 1)) < 0.2
    assert np.mean(np.abs(value[0].numpy() - (dr.norm(p).numpy() - 0.5))) < 0.1


@pytest.mark.parametrize(
    "options, error, words",
    [
        (dict(objective=3), TypeError, "objective is a int"),
        (dict(objective=lambda f, d, k: 1.0, loss="l1"), ValueError, "both objective and loss ('l1')"),
        (dict(objective=lambda f, d, k: 1.0), TypeError, "objective returned a float"),
        (dict(objective=lambda f, d, k: f(d[0], k)), TypeError, "objective returned a ArrayXf"),
    ],
)
def test_bad_objectives(ns, backend, options, error, words):
    with pytest.raises(error, match="fit: ") as info:
        cn.fit(make_field(backend), make_batch(ns), 1, progress=False, **options)
    assert words in str(info.value)


def test_targets_of_another_width(ns, backend):
    def batch(key):
        return cn.uniform(2, key, ns.Float, 8), [ns.Float(0)]

    with pytest.raises(ValueError, match="targets with 1 components; the field has 2 outputs"):
        cn.fit(make_field(backend), batch, 1, progress=False)


@pytest.mark.parametrize("what", ["seed", "optimizer", "architecture", "field only"])
def test_resume_refuses_another_run(ns, backend, tmp_path, what):
    path = tmp_path / "run.safetensors"
    options = dict(checkpoint=path, progress=False)
    if what == "field only":
        cn.save(path, make_field(backend))
    else:
        cn.fit(make_field(backend), make_batch(ns), 2, **options)
    field = make_field(backend, dropout=0.2 if what == "architecture" else 0.1)
    if what == "seed":
        options["seed"] = 1
    if what == "optimizer":
        options["optimizer"] = SGD(lr=0.1)
    with pytest.raises(ValueError, match=r"fit: .*run\.safetensors"):
        cn.fit(field, make_batch(ns), 4, resume=True, **options)


def test_metrics_where_a_window_of_losses_ends(ns, backend, set_limits):
    set_limits(WINDOW_STEPS=4)
    options = {"metric": lambda field: 0.5, "metric_every": 4, "progress": False}
    result = cn.fit(make_field(backend), make_batch(ns), 10, **options)
    assert result.metrics == [(4, 0.5), (8, 0.5), (10, 0.5)] and len(result.losses) == 10


def test_targets_in_double_precision(ns, backend):
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8)).build(backend, seed=1)
    want, losses = ns.Float64([0.5]), []
    for target in (want, ns.Float([0.5])):
        batch = lambda key, target=target: (cn.uniform(2, key, ns.Float, 64), [target])  # noqa: E731
        losses.append(cn.fit(field, batch, 3, lr=0.0, progress=False).losses)
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_numbers_in_lists_are_inputs(ns, backend):
    """A replay sees those of its step, not of the recording: in lists and dictionaries, inside others, too."""
    scale, table = [1.0], {"of": (1, [0.0])}

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 64)
        return [x, y], [ns.Float(scale[0]), ns.Float(table["of"][1][0])]

    found = Captures(batch)()
    assert [v for v in found if v is scale or v is table or v is table["of"][1]] == [scale, table, table["of"][1]]
    field = cn.NeuralField(None, cn.MLP(2, 2, width=8, depth=1)).build(backend)

    def metric(field):
        scale[0], table["of"][1][0] = 100.0, 50.0
        return 0.0

    result = cn.fit(field, batch, 4, metric=metric, metric_every=2, lr=0.0, progress=False)
    assert max(result.losses[:2]) < 10 and min(result.losses[2:]) == pytest.approx(12500 / 2, rel=0.1)


def test_the_library_is_not_searched(ns):
    """At every step: its functions hold arrays in closures and defaults at most, such as a loss with a parameter."""
    walk = _Walk({})
    walk.visit(*cn.training.LOSSES.values(), cn.uniform)
    assert not {id(losses._mean), id(losses.components), id(losses.LUMINANCE)} & set(walk.seen)
    delta = ns.Float(0.5)
    found = Captures(functools.partial(cn.training.huber, delta=delta))()
    assert any(value is delta for value in found)


class Images:
    """A data set: arrays in attributes, also of what it holds."""

    def __init__(self, ns, inner=None):
        self.table, self.inner, self.ns = ns.Float(np.linspace(0, 1, 64)), inner, ns
        self.texture = ns.Texture1f(ns.TensorXf(np.linspace(0, 1, 64), (64, 1)))

    def __call__(self, key):
        return self.draw(key)

    def draw(self, key, table=None):
        (u,) = cn.uniform(1, key, self.ns.Float, 64)
        t = dr.gather(self.ns.Float, self.table if table is None else table, self.ns.UInt32(u * 63))
        return [u], [t]


@pytest.mark.parametrize("where", ["method", "callable", "attribute", "attribute of attribute", "default", "inner"])
def test_arrays_in_objects(ns, backend, where):
    """A batch finds its arrays in objects around it as it does in plain variables."""
    plain, data = Images(ns), Images(ns, Images(ns))
    table = plain.table

    def default(key, *, held=data):
        return held.draw(key)

    def inner(key):
        def draw():
            return plain.draw(key, data.table)

        return draw()

    batch = {
        "method": data.draw,
        "callable": data,
        "attribute": lambda key: plain.draw(key, data.table),
        "attribute of attribute": lambda key: plain.draw(key, data.inner.table),
        "default": default,
        "inner": inner,
    }[where]
    losses = []
    for draw in (batch, lambda key: plain.draw(key, table)):
        field = cn.NeuralField(None, cn.MLP(1, 1, width=8, depth=1)).build(backend)
        losses.append(cn.fit(field, draw, 3, progress=False).losses)
    assert losses[0] == losses[1] or backend == "cuda"


def test_textures(ns, backend):
    data = Images(ns)

    def batch(key):
        (u,) = cn.uniform(1, key, ns.Float, 64)
        return [u], data.texture.eval([u])

    field = cn.NeuralField(None, cn.MLP(1, 1, width=8, depth=1)).build(backend)
    u, t = batch(cn.Key(0))
    expected = np.mean((field(u)[0] - t[0]).numpy() ** 2)
    assert cn.fit(field, batch, 2, progress=False).losses[0] == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize(
    "options, error, words",
    [
        (dict(loss=lambda y, t: 1.0), TypeError, "loss returned a float"),
        (dict(loss=lambda y, t: [y[0] - t[0]]), TypeError, "loss returned a list"),
        (dict(loss=lambda y, t: y[0].__class__()), ValueError, "loss returned no losses"),
        (dict(loss=lambda y, t: y[0].__class__(1.0)), ValueError, "loss returned a constant"),
        (dict(objective=lambda f, d, k: d[0][0] * 0), ValueError, "objective returned a constant"),
        (dict(penalty=lambda f: 1.0), TypeError, "penalty returned a float"),
        (dict(penalty=lambda f: f["network.weights"]), TypeError, "of shape ("),
        (dict(lr=lambda step: math.nan), ValueError, "lr(0) is nan"),
        (dict(lr=lambda step: None), ValueError, "lr(0) is None"),
        (dict(lr=lambda step: "1"), ValueError, "lr(0) is '1'"),
        (dict(lr=lambda step: [1.0]), ValueError, "lr(0) is [1.0]"),
        (dict(lr=lambda step: 1j), ValueError, "lr(0) is 1j"),
        (dict(lr=lambda step: True), ValueError, "lr(0) is True"),
        (dict(lr=lambda step: -0.5), ValueError, "lr(0) is -0.5"),
        (dict(lr=lambda step: math.inf), ValueError, "lr(0) is inf"),
        (dict(metric=lambda f: None), TypeError, "metric returned None"),
        (dict(metric=lambda f: "1.5"), TypeError, "metric returned '1.5'"),
        (dict(metric=lambda f: 1j), TypeError, "metric returned 1j"),
        (dict(metric=lambda f: [1.0]), TypeError, "metric returned [1.0]"),
        (dict(metric=lambda f: np.ones(2)), TypeError, "metric returned array([1., 1.])"),
        (dict(metric=lambda f: np.array(["a"])), TypeError, "metric returned"),
        (dict(metric=lambda f: 10**400), TypeError, "metric returned an int of"),
        (dict(metric=lambda f: f["network.weights"]), TypeError, "metric returned a"),
    ],
)
def test_bad_functions(ns, backend, options, error, words):
    with pytest.raises(error, match="fit: ") as info:
        cn.fit(make_field(backend), make_batch(ns), 1, progress=False, **options)
    assert words in str(info.value)


def test_targets_of_other_samples(ns, backend):
    def batch(key):
        return cn.uniform(2, key, ns.Float, 8), [dr.zeros(ns.Float, 3)] * 2

    with pytest.raises(ValueError, match="targets of 3 samples, but coordinates of 8"):
        cn.fit(make_field(backend), batch, 1, progress=False)


def test_coordinates_as_tensor(ns, backend):
    """The field's rows, which are tensors then, meet targets that are arrays."""

    def batch(key):
        x = cn.uniform(2, key, ns.Float, 8)
        return ns.TensorXf(ns.ArrayXf(x)), x

    def lists(key):
        x = cn.uniform(2, key, ns.Float, 8)
        return x, x

    one, other = (cn.fit(make_field(backend), b, 2, progress=False).losses for b in (batch, lists))
    np.testing.assert_allclose(one, other, rtol=1e-2 if backend == "cuda" else 1e-6)


def test_average_of_another_network(ns, backend):
    ema = cn.training.EMA(cn.NeuralField(None, cn.MLP(2, 2)).build(backend))
    with pytest.raises(ValueError, match="fit: ema: the network has other parameters"):
        cn.fit(make_field(backend), make_batch(ns), 1, ema=ema, progress=False)


@pytest.mark.parametrize(
    "options, error",
    [
        (dict(checkpoint=5), TypeError),
        (dict(checkpoint="{}/none/run.safetensors"), FileNotFoundError),
        (dict(checkpoint="{}/run.safetensors", metadata={"a": object()}), TypeError),
        (dict(checkpoint="{}/run.safetensors", metadata=5), TypeError),
    ],
)
def test_a_checkpoint_that_cannot_be_written_is_refused_first(ns, backend, tmp_path, options, error):
    """Not after the training that it should keep."""
    if isinstance(options["checkpoint"], str):
        options = options | {"checkpoint": options["checkpoint"].format(tmp_path)}
    calls = []

    def batch(key):
        calls.append(key)
        return make_batch(ns)(key)

    with pytest.raises(error, match=r"fit: |save: |none"):
        cn.fit(make_field(backend), batch, 1, progress=False, **options)
    assert not calls and not list(tmp_path.iterdir())


def test_what_metrics_and_rates_may_be(ns, backend):
    """Any single number, of Python, NumPy or Dr.Jit."""
    values = [3, 2.5, True, np.float32(1.5), np.array([[4.0]]), np.int64(7), ns.Float(0.5), ns.UInt32(9), ns.Float16(2)]
    values.append(ns.TensorXf([6.0]))
    rates = iter([0, 0.0, np.float64(0), np.int32(0), *([0.0] * 6)])
    options = dict(optimizer=SGD(lr=1.0), lr=lambda step: next(rates), metric=lambda f: seen.pop(0), metric_every=1)
    seen = list(values)
    result = cn.fit(make_field(backend), make_batch(ns), len(values), progress=False, **options)
    assert [v for _, v in result.metrics] == [3, 2.5, 1, 1.5, 4, 7, 0.5, 9, 2, 6]
    cn.fit(make_field(backend), make_batch(ns), 1, lr=ns.Float(0.5), progress=False)
    with pytest.raises(
        TypeError, match=r"fit: lr a ArrayXf|fit: lr a Float of shape \(2,\); a number, or an array of one"
    ):
        cn.fit(make_field(backend), make_batch(ns), 1, lr=ns.Float(0.5, 1), progress=False)


def test_an_optimizer_in_use(ns, backend):
    optimizer = Adam(lr=1e-3)
    optimizer["x"] = ns.Float(1)
    with pytest.raises(ValueError, match="fit: the optimizer holds parameters already"):
        cn.fit(make_field(backend), make_batch(ns), 1, optimizer=optimizer, progress=False)


def test_rates_are_asked_for_by_step(ns, backend, tmp_path):
    """Each once, and from where a resumed run goes on; the rate of a given optimizer holds if there is no other."""
    asked, path = [], tmp_path / "run.safetensors"

    def rate(step):
        asked.append(step)
        return 1e-3

    options = dict(lr=rate, checkpoint=path, progress=False)
    cn.fit(make_field(backend), make_batch(ns), 3, **options)
    cn.fit(make_field(backend), make_batch(ns), 5, resume=True, **options)
    assert asked == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"fit: lr\(5\) is -1"):
        options["lr"] = lambda step: -1.0 if step == 5 else 1e-3
        cn.fit(make_field(backend), make_batch(ns), 9, resume=True, **options)
    field, before = make_field(backend), weights(make_field(backend))
    cn.fit(field, make_batch(ns), 2, optimizer=SGD(lr=0.0), progress=False)
    assert same(weights(field), before)
    cn.fit(field, make_batch(ns), 2, optimizer=SGD(lr=0.1), progress=False)
    assert not same(weights(field), before)


@pytest.mark.parametrize("every", [0, 1e9, math.inf])
def test_checkpoints_are_written_on_the_way(ns, backend, tmp_path, every):
    """After every step with no time between them, else at the end alone; each of its step, to be loaded."""
    path, seen = tmp_path / "run.safetensors", []

    def metric(field):
        seen.append(len(cn.io.read(path).tensors["train.losses"]) if path.exists() else None)
        return 1.0

    cn.fit(
        make_field(backend), make_batch(ns), 4, metric=metric, metric_every=1, checkpoint=path, checkpoint_every=every,
        progress=False,
    )  # fmt: skip
    assert seen == ([None, 1, 2, 3] if every == 0 else [None] * 4)
    assert len(cn.io.read(path).tensors["train.losses"]) == 4


def test_time_between_checkpoints(ns, backend, tmp_path, monkeypatch):
    """Counted from the last one, however many steps that is."""
    written, clock = [], SimpleNamespace(now=0.0)

    def metric(field):
        clock.now += 4.0
        return 1.0

    for module in (run, state):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(state, "save", lambda path, field, tensors, metadata: written.append(len(tensors["losses"])))
    result = cn.fit(
        make_field(backend), make_batch(ns), 9, metric=metric, metric_every=1, checkpoint=tmp_path / "x.safetensors",
        checkpoint_every=10, progress=False,
    )  # fmt: skip
    assert written == [3, 6, 9, 9] and result.seconds == 36


def test_a_plateau_is_no_improvement(ns, backend):
    """Patience counts equal values; a better one starts it anew."""
    for higher, values in ((True, [1, 1, 2, 2, 2, 9]), (False, [3, 3, 2, 2, 2, 1])):
        rest = iter(values)
        result = cn.fit(
            make_field(backend), make_batch(ns), 99, metric=lambda f, rest=rest: next(rest), metric_every=1, patience=2,
            higher_is_better=higher, progress=False,
        )  # fmt: skip
        assert result.stopped == "patience" and result.best == (3, 2.0) and result.steps == 5
        assert [v for _, v in result.metrics] == values[:5]


def test_patience_that_has_ended_before():
    """As of a run that goes on with less of it."""
    result = cn.FitResult(4, [0.5] * 4, [(1, 9.0), (2, 1.0), (3, 1.0), (4, 1.0)], (1, 9.0))
    assert not Metric(lambda field: 1.0, 1, True, 2).add(1.0, result)
    assert result.stopped == "patience" and result.best == (1, 9.0)


def test_metrics_come_at_their_steps(ns, backend):
    """At multiples, and at the end once."""
    for steps, expected in ((7, [3, 6, 7]), (6, [3, 6]), (2, [2]), (0, [])):
        result = cn.fit(
            make_field(backend), make_batch(ns), steps, metric=lambda f: 0.0, metric_every=3, progress=False
        )
        assert [s for s, _ in result.metrics] == expected and result.steps == steps == len(result.losses)
        assert result.stopped == "steps"


def test_an_error_leaves_the_last_weights(ns, backend):
    """Without gradients: what a rate of a later step or a metric raises does not spoil the field."""
    whole = make_field(backend)
    cn.fit(whole, make_batch(ns), 3, lr=1e-3, progress=False)
    for options in (
        dict(lr=lambda step: 1e-3 if step < 3 else None),
        dict(lr=1e-3, metric=lambda f: None, metric_every=3),
    ):
        field = make_field(backend)
        with pytest.raises((ValueError, TypeError), match=r"fit: (lr\(3\) is|metric returned) None"):
            cn.fit(field, make_batch(ns), 9, progress=False, **options)
        assert not any(dr.grad_enabled(v) for v in field.values())
        if backend == "llvm":
            assert same(weights(field), weights(whole))


def test_result_is_short():
    result = cn.FitResult(3, [0.5, 0.25], [(1, 2.0)], (1, 2.0), 4, 5, 1.25, "patience", "said")
    for word in (
        "3 steps",
        "1.2 s",
        "'patience'",
        "last loss 0.25",
        "1 metrics",
        "(1, 2.0)",
        "skipped=4",
        "recordings=5",
    ):
        assert word in repr(result)
    assert len(repr(cn.FitResult(10**6, [0.5] * 10**6, [(1, 2.0)] * 10**4))) < 200
    assert repr(cn.FitResult()) == (
        "<FitResult: 0 steps in 0.0 s, stopped='steps', 0 metrics, best=None, skipped=0, recordings=0>"
    )
    assert cn.FitResult().message == "" and cn.FitResult().losses == [] == cn.FitResult().metrics


def test_progress(ns, backend, capsys):
    pytest.importorskip("tqdm")
    cn.fit(make_field(backend), make_batch(ns), 5, metric=lambda f: 2.5, metric_every=2)
    said = capsys.readouterr().err
    assert "5/5" in said and "metric 2.5" in said and "loss 0." in said
    cn.fit(make_field(backend), make_batch(ns), 5, progress=False)
    assert capsys.readouterr().err == ""
