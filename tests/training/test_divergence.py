"""Runs that come to nothing: fit notices, says why, and keeps what was finite."""

from __future__ import annotations

import copy
import math
import warnings
from types import SimpleNamespace

import drjit as dr
import numpy as np
import pytest
from drjit.opt import SGD
from support.networks import same, weights

import coopnet as cn
from coopnet.training import divergence


@pytest.fixture
def field(backend):
    return make(backend)


def make(backend, precision="single"):
    if backend == "cuda":
        precision = "half"
    return cn.NeuralField(None, cn.MLP(2, 2, width=16, depth=1)).build(backend, precision)


def batch_of(ns, bad=(), where="targets", value=math.nan):
    """A batch that is not finite at the steps ``bad``."""

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 64)
        step, targets = ns.UInt32(key.step), [x * y, x]
        here = ns.Bool(False)
        for number in bad:
            here |= step == number
        if where == "targets":
            targets[1] = dr.select(here, value, targets[1])
        elif where == "coordinates":
            x = dr.select(here, value, x)
        return [x, y], targets

    return batch


def diverges(words, *arguments, **options):
    """The result of a run that must diverge, with a warning that holds ``words`` at the place of the call."""
    with pytest.warns(RuntimeWarning, match="fit: training diverged") as caught:
        result = cn.fit(*arguments, progress=False, **options)
    (warning,) = caught
    assert result.stopped == "diverged" and result.message == str(warning.message)
    assert warning.filename == __file__
    for word in words:
        assert word in result.message, result.message
    return result


def runs(*arguments, **options):
    """The result of a run that must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return cn.fit(*arguments, progress=False, **options)


def single(backend):
    if backend == "cuda":
        pytest.skip("a loss scaler keeps half-precision parameters finite")


def test_too_long_steps(ns, backend, field):
    single(backend)
    before = weights(field)
    result = diverges(
        ["losses are not finite from step 1 on", "'network.weights'", "after 5 steps", "at the start", "a smaller lr"],
        field, batch_of(ns), 5, lr=1e30,
    )  # fmt: skip
    assert result.steps == len(result.losses) == 5
    assert math.isfinite(result.losses[0]) and not any(map(math.isfinite, result.losses[1:]))
    assert same(weights(field), before) and not any(dr.grad_enabled(v) for v in field.values())


def test_the_last_finite_checkpoint_is_kept(ns, backend, field, tmp_path):
    """Looked at before every write: with a write after every step, the state of the step before is in the file."""
    single(backend)
    path = tmp_path / "run.safetensors"
    options = dict(checkpoint=path, checkpoint_every=0)
    result = diverges(
        ["from step 7 on", "after 7 steps", "In the batch of step 7, the targets are not finite"],
        field, batch_of(ns, [7]), 100, **options,
    )  # fmt: skip
    assert result.steps == 8
    assert len(cn.io.read(path).tensors["train.losses"]) == 7
    assert same(weights(cn.load(path, backend)), weights(field))
    assert all(np.all(np.isfinite(v)) for v in weights(field).values())
    whole, resumed = make(backend), make(backend)
    runs(whole, batch_of(ns), 12)
    runs(resumed, batch_of(ns), 12, resume=True, **options)
    assert same(weights(whole), weights(resumed))


def test_a_final_checkpoint_is_not_written(ns, backend, field, tmp_path):
    single(backend)
    path = tmp_path / "run.safetensors"
    diverges(["from step 3 on"], field, batch_of(ns, [3]), 20, checkpoint=path)
    assert not path.exists()


def test_a_metric_is_not_called_with_such_weights(ns, backend, field):
    single(backend)
    seen = []
    result = diverges(
        ["after 4 steps"], field, batch_of(ns, [5]), 20, metric=lambda f: seen.append(0) or 1.0, metric_every=2
    )
    assert result.steps == 6 and len(seen) == 2 and result.best == (2, 1.0)


def test_looks_wait_for_the_losses(ns, backend, field, tmp_path, monkeypatch):
    """One every 256 steps and one at the end: a look waits for the device."""
    looks, real = [], divergence.not_finite
    monkeypatch.setattr(divergence, "not_finite", lambda values: looks.append(0) or real(values))
    assert runs(field, batch_of(ns), 300).stopped == "steps"
    assert len(looks) == 2
    looks.clear()
    path, options = tmp_path / "run.safetensors", dict(metric=lambda f: 0.0, metric_every=2, checkpoint_every=0)
    runs(make(backend), batch_of(ns), 4, checkpoint=path, **options)
    assert len(looks) == 4  # one for each step that is written, whatever else wants it
    if backend == "llvm":
        monkeypatch.undo()
        assert diverges([], make(backend), batch_of(ns, [10]), 1000).steps == 256


def test_one_bad_loss_is_no_divergence(ns, backend):
    """The scaler skips that step, wherever the window of a look ends."""
    for every in (1, 100):
        field = make(backend, "half")
        result = runs(field, batch_of(ns, [5]), 8, metric=lambda f: 0.0, metric_every=every)
        assert result.stopped == "steps" and result.skipped == 1 and not math.isfinite(result.losses[5])
    result = runs(make(backend, "half"), batch_of(ns, [7]), 8)
    assert result.stopped == "steps"


def test_bad_losses_at_first_are_none_while_others_are_to_come(ns, backend):
    result = runs(make(backend, "half"), batch_of(ns, [0, 1, 2]), 8, metric=lambda f: 0.0, metric_every=1)
    assert result.stopped == "steps" and result.skipped == 3


@pytest.mark.parametrize("every", [1, 5, 1000])
def test_ten_in_a_row_are(ns, backend, every):
    nine, ten = (batch_of(ns, range(5, 5 + n), "coordinates", math.inf) for n in (9, 10))
    options = dict(metric=lambda f: 0.0, metric_every=every)
    assert runs(make(backend, "half"), nine, 40, **options).stopped == "steps"
    if every == 1000:  # they are forgiven if good ones follow before the look
        assert runs(make(backend, "half"), ten, 40, **options).stopped == "steps"
        return
    result = diverges(
        ["losses are not finite from step 5 on", "In the batch of step 5, the coordinates are not finite"],
        make(backend, "half"), ten, 40, **options,
    )  # fmt: skip
    assert result.steps == 15


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_all_losses_of_a_short_run(ns, backend, steps):
    batch = batch_of(ns, range(9))
    if steps == 1:
        with pytest.warns(RuntimeWarning, match="1 of 1 steps were skipped"):
            assert cn.fit(make(backend, "half"), batch, steps, progress=False).stopped == "steps"
    else:
        diverges(["from step 0 on"], make(backend, "half"), batch, steps)


@pytest.mark.parametrize("every", [10, 1000])
def test_all_steps_skipped(ns, backend, every):
    """Losses are finite, their gradients never: no scale of the loss cures that."""
    options = dict(
        loss=lambda y, t: dr.sqrt(dr.abs(y[0] - dr.detach(y[0]))) + t[0], metric=lambda f: 0.0, metric_every=every
    )
    with pytest.warns(RuntimeWarning, match="fit: 63 of 63 steps were skipped") as caught:
        assert cn.fit(make(backend, "half"), batch_of(ns), 63, progress=False, **options).stopped == "steps"
    assert caught[0].filename == __file__
    result = diverges(
        ["all steps from step 0 on were skipped", "the losses are finite, but not their gradients"],
        make(backend, "half"), batch_of(ns), 100, **options,
    )  # fmt: skip
    assert result.steps == result.skipped == {10: 70, 1000: 100}[every]


@pytest.mark.parametrize("first", [[], [5]])
def test_steps_skipped_from_some_step_on(ns, backend, first, set_limits):
    """Wherever the windows of a look begin, and whatever was skipped before: the last 64 steps count, alone and among
    other fields in one kernel.
    """
    set_limits(WINDOW_STEPS=32)
    begin = 80

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 64)
        step = ns.UInt32(key.step)
        skips = step >= begin
        for number in first:
            skips |= step == number
        return [x, y], [dr.select(skips, ns.Float(1), 0), x]

    def loss(y, t):
        # its gradient is not finite where the target is 1
        return dr.square(y[1] - t[1]) + dr.select(t[0] > 0, dr.sqrt(dr.abs(y[0] - dr.detach(y[0]))), 0)

    words = [f"all steps from step {begin} on were skipped", "the losses are finite, but not their gradients"]
    result = diverges(words, make(backend, "half"), batch, 400, loss=loss)
    assert begin + 64 <= result.steps < begin + 64 + 32 and result.skipped == result.steps - begin + len(first)
    fields = [make(backend, "half") for _ in range(2)]
    with pytest.warns(RuntimeWarning, match=f"job .: fit: training diverged: {words[0]}"):
        results = cn.fit_many(fields, lambda key, job: batch(key), 200, loss=loss, together=2, progress=False)
    assert [r.stopped for r in results] == ["diverged"] * 2 and results[0].steps < begin + 64 + 32


def test_few_skipped_steps_need_no_warning(ns, backend, tmp_path):
    """Of those of this run: a resumed one is not blamed for what came before, though it counts on."""
    batch, path = batch_of(ns, [0, 2]), tmp_path / "run.safetensors"
    assert runs(make(backend, "half"), batch, 4, checkpoint=path).skipped == 2
    assert runs(make(backend, "half"), batch, 6, checkpoint=path, resume=True).skipped == 2
    with pytest.warns(RuntimeWarning, match="2 of 3 steps were skipped"):
        cn.fit(make(backend, "half"), batch, 3, progress=False)


def test_state_of_the_optimizer(ns, backend, field):
    """Of gradients that are gathered, one is NaN; parameters do not know it yet, and losses are finite again."""
    single(backend)
    before = weights(field)
    result = diverges(
        ["the optimizer's state of 'network.weights' are not finite after 9 steps", "In the batch of step 3"],
        field, batch_of(ns, [3]), 9, optimizer=cn.training.SGD(1e-2, accumulate=50),
    )  # fmt: skip
    assert "parameters 'network" not in result.message and math.isfinite(result.losses[-1])
    assert same(weights(field), before)


def test_parameters_that_no_loss_sees(ns, backend, field):
    """The last step makes them NaN; no loss follows that could tell."""
    single(backend)
    before = weights(field)
    result = diverges(["after 1 steps"], field, batch_of(ns), 1, optimizer=SGD(lr=1e38), loss=lambda y, t: 1e10 * y[0])
    assert math.isfinite(result.losses[0]) and same(weights(field), before)


def test_an_interrupted_run(ns, backend):
    """Its few losses are looked at as those of a run that has ended."""

    def rate(step):
        if step == 4:
            raise KeyboardInterrupt
        return 1e-3

    result = diverges(
        ["losses are not finite from step 0 on"], make(backend, "half"), batch_of(ns, range(99)), 9, lr=rate
    )
    assert result.steps == 4


def test_average(ns, backend, field):
    ema = cn.training.EMA(field, 0.5)
    kept = {k: v.numpy() for k, v in ema.average.items()}
    calls = []

    def metric(field):
        calls.append(0)
        if len(calls) == 2:
            ema.average = {k: v * math.nan for k, v in ema.average.items()}
            dr.make_opaque(ema.average)
        if len(calls) == 1:
            kept.update({k: v.numpy() for k, v in ema.average.items()})
        return 0.0

    diverges(["the average of 'network.weights'"], field, batch_of(ns), 9, ema=ema, metric=metric, metric_every=2)
    assert all(np.all(np.isfinite(v.numpy())) for v in ema.average.values())


def test_an_average_of_another_network(ns, backend, field):
    """Nothing of it changes."""
    average, other = cn.training.EMA(field, 0.5), cn.NeuralField(None, cn.MLP(2, 1, width=8)).build(backend)
    wide = cn.NeuralField(None, cn.MLP(2, 2, width=64, depth=1)).build(backend)
    average.update(field)
    before = np.array(average.total), [v.numpy() for v in average.average.values()]
    with pytest.raises(ValueError, match=r"EMA\.update: the network has other parameters"):
        average.update(other)
    with pytest.raises(ValueError, match=r"EMA\.update: the parameters have no 'network"):
        average.update(SGD(lr=0.01, params=dict(wide)))
    assert np.array(average.total) == before[0]
    for value, old in zip(average.average.values(), before[1], strict=True):
        np.testing.assert_array_equal(value.numpy(), old)


def test_a_field_that_was_never_finite(ns, backend, field, tmp_path):
    matrix = field.matrix("layers.0.weights")
    matrix[:] = np.nan
    field.set_matrix("layers.0.weights", matrix)
    path = tmp_path / "run.safetensors"
    diverges(["Its initial parameters were not finite"], field, batch_of(ns), 2, checkpoint=path)
    diverges(["Its initial parameters were not finite"], field, batch_of(ns), 0, checkpoint=path)
    assert not path.exists()


def test_objectives_and_poles(ns, backend):
    def batch(key):
        (u,) = cn.uniform(1, key, ns.Float, 64)
        return {"points": [u, dr.select(ns.UInt32(key.step) >= 2, math.nan, u)], "n": 3}

    def objective(field, drawn, key):
        return dr.square(field(drawn["points"], key)[0]) + drawn["points"][1]

    diverges(
        ["In the batch of step 2, what batch() returned is not finite"],
        make(backend, "half"), batch, 30, objective=objective,
    )  # fmt: skip
    diverges(
        ["For the batch of step 0, which is finite, the losses are not finite", "a loss without poles"],
        make(backend, "half"), batch_of(ns), 30, loss=lambda y, t: dr.log(-dr.square(y[0]) - 1),
    )  # fmt: skip


def test_outputs(ns, backend):
    """Coordinates that half precision cannot hold: finite as they are drawn."""
    words = [
        "For the batch of step 3, which is finite, the field's output, the losses are not finite",
        "single precision (on LLVM)",
    ]
    diverges(words, make(backend, "half"), batch_of(ns, range(3, 99), "coordinates", 1e6), 30)

    def objective(field, drawn, key):
        return dr.square(field(drawn[0], key)[0])

    words = ["For the batch of step 3, which is finite, the losses are not finite"]
    draw = batch_of(ns, range(3, 99), "coordinates", 1e6)
    diverges(words, make(backend, "half"), draw, 30, objective=objective)


def test_long_lists_are_cut(ns, backend):
    single(backend)
    field = cn.NeuralField(cn.HashGrid(2, n_levels=2, hashmap_size=2**6), cn.MLP(out_features=2, width=8, depth=1))
    result = diverges(["and 1 more are not finite after 5 steps"], field.build(backend), batch_of(ns), 5, lr=1e30)
    assert result.message.count("state of") == 1  # of the first, and the second's is the one more
    assert "on LLVM" not in result.message


def test_a_batch_that_cannot_be_drawn_again(ns, backend):
    data, draw = SimpleNamespace(gone=False), batch_of(ns, range(3, 99))

    def batch(key):
        if data.gone:
            raise OSError("the data are gone")
        return draw(key)

    def metric(field):
        data.gone = True
        return 0.0

    words = ["The batch of step 3 cannot be evaluated again (the data are gone)"]
    diverges(words, make(backend, "half"), batch, 30, metric=metric, metric_every=8)


@pytest.mark.parametrize(("names", "expected"), [
    (["a"], "a are"), (["what batch() returned"], "what batch() returned is"), (["what x", "b"], "what x, b are"),
    (["a", "b", "c"], "a, b, c are"), (["a", "b", "c", "d"], "a, b, c and 1 more are"),
    (["a", "b", "c", "d", "e", "f", "g"], "a, b, c and 4 more are"),
])  # fmt: skip
def test_names_of_what_is_not_finite(names, expected):
    assert divergence._listed(names) == expected


def test_what_is_not_finite(ns):
    """In arrays, tensors, nested arrays and containers of any; integers, empty arrays and masks are finite."""
    nan, inf = math.nan, math.inf
    values = {
        "flat": ns.Float(1, nan, inf, -inf),
        "half": ns.Float16(nan, 0),
        "fine": ns.Float(1, 2),
        "tensor": ns.TensorXf(np.array([[1, nan], [2, 3]], np.float32)),
        "nested": ns.Array2f([1, inf], [nan, 2]),
        "tree": {"a": [ns.Float(nan), (ns.UInt32(7), 5, None)], "b": ns.Float()},
        "mask": ns.Bool(True),
    }
    assert divergence.not_finite(values) == ["flat", "half", "tensor", "nested", "tree"]
    assert divergence.not_finite({"fine": ns.Float(1)}) == divergence.not_finite({}) == []
    assert divergence.not_finite({"none": 5, "whole": ns.UInt32(1)}) == []
    assert divergence.not_finite({"fine": ns.Float(1), "last": ns.Float(nan)}) == ["last"]


def test_nan_metrics(ns, backend):
    """NaN is never the best, and counts as no improvement."""
    values = iter([math.nan, 1.0, math.nan, math.nan])
    options = dict(metric=lambda f: next(values), metric_every=1, patience=2)
    result = runs(make(backend), batch_of(ns), 9, **options)
    assert result.best == (2, 1.0) and result.stopped == "patience" and result.steps == 4
    values = iter([math.nan] * 9)
    result = runs(make(backend), batch_of(ns), 9, **options)
    assert result.best is None and result.stopped == "patience" and result.steps == 2


def test_a_loss_that_does_not_depend_on_the_field(backend, ns):
    field, other = (cn.NeuralField(None, cn.MLP(1, 1, width=4, depth=1)).build(backend) for _ in range(2))
    before = field["network.weights"].numpy()

    def objective(_, x, key):
        return dr.square(other([x])[0] - 1)

    with pytest.warns(RuntimeWarning, match="no gradient reaches .*evaluate this field, without dr.detach") as told:
        cn.fit(field, lambda key: cn.uniform(1, key, ns.Float, 16)[0], 3, objective=objective, progress=False)
    assert told[0].filename == __file__
    assert (field["network.weights"].numpy() == before).all()


def test_suspended_gradients(backend, ns):
    field = cn.NeuralField(None, cn.MLP(1, 1, width=4, depth=1)).build(backend)

    def batch(key, *job):
        (x,) = cn.uniform(1, key, ns.Float, 16)
        return [x], [x]

    with dr.suspend_grad():
        for train in (lambda: cn.fit(field, batch, 3), lambda: cn.fit_many([field], batch, 3)):
            with pytest.raises(RuntimeError, match=r"fit(_many)?: gradients are suspended here"):
                train()


@pytest.mark.parametrize("copied", [dr.copy, dr.detach])
def test_copies_that_have_lost_their_weights(ns, backend, copied):
    """Dr.Jit copies the views of packed weights, but not what holds them; nothing would be trained."""
    field = cn.NeuralField(cn.HashGrid(2, n_levels=2), cn.MLP(-1, 2, width=16, depth=1)).build(backend)
    with pytest.raises(ValueError, match=r"^fit: the field has lost its packed weights.*copy.deepcopy\(field\)"):
        cn.fit(copied(field), batch_of(ns), 1, progress=False)
    runs(copy.deepcopy(field), batch_of(ns), 1)
