"""Losses that the way back of a network computes by itself, and the sizes of batches that are known to fit."""

import functools

import drjit as dr
import numpy as np
import pytest
from drjit.opt import Adam
from support.kernels import launched

import coopnet as cn
from coopnet.engine import gradient_path
from coopnet.interop.tcnn.losses import LOSSES as TCNN
from coopnet.jit.optimizers import memories
from coopnet.training.inner_loss import loss_in_kernel, samplewise
from coopnet.training.losses import LOSSES
from coopnet.training.step import Options, Step


def step_of(ns, backend, precision, loss, samples, dropout=0.0, encoding=None, pdf=False, scale=64.0):
    outputs = 6 if loss == "gaussian_nll" else 3
    # outputs about 1, which no loss divides by too little
    options = {"bias": True, "dropout": dropout, "output_activation": "exp"}
    network = cn.MLP(-1 if encoding else 2, outputs, width=8, depth=2, **options)
    field = cn.NeuralField(encoding, network, in_features=2).build(backend, precision, seed=1)

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, samples)
        targets = [1 + x, 1.5 - y, 2 + dr.sin(9 * x)]
        return ([x, y], targets, 0.5 + x) if pdf else ([x, y], targets)

    scale = scale if field.precision == "half" else None
    return Step(field, Adam(1e-3, params=field), batch, Options(loss=loss, loss_scale=scale))


def derivatives(step, ns, number, path, inside):
    """The losses of step ``number``, and the gradients of all parameters, unscaled; frozen."""
    own = step.loss
    if not inside:
        step.loss = lambda *args, **more: own(*args, **more)  # nobody knows what it looks at

    @dr.freeze
    def differentiate(step, seed, number):
        step.push()
        losses, _ = step.differentiate(cn.Key(seed, None, number), True)
        gradients = [dr.grad(value).array for value in step.optimizer.values()]
        dr.clear_grad(list(step.optimizer.values()))
        return losses, gradients

    try:
        with gradient_path(path):
            for turn in (number + 1, number + 2, number):  # the last is replayed
                losses, gradients = differentiate(step, dr.opaque(ns.UInt64, 7), dr.opaque(ns.UInt32, turn))
                dr.eval(losses, gradients)
    finally:
        step.loss = own
    scale = 1 if step.scaler is None else step.scaler.scale_factor.numpy()[0]
    return losses.numpy(), [g.numpy().astype(np.float64) / scale for g in gradients]


def relative_error(one, other):
    return np.linalg.norm(one - other) / np.linalg.norm(other)


# one bank; several, and no whole number of warps
@pytest.mark.parametrize("kind, samples", [("plain", 100), ("dropout", 5000), ("grid", 5000), ("pdf", 2000)])
def test_equal_to_the_loss_outside(ns, backend, kind, samples):
    options = {
        "plain": {}, "dropout": {"dropout": 0.2}, "pdf": {"pdf": True},
        "grid": {"encoding": cn.HashGrid(2, n_levels=2, hashmap_size=2**8)},
    }[kind]  # fmt: skip
    # either precision with one bank and with several, with a mask and without
    precision = "half" if backend == "cuda" or kind in ("dropout", "pdf") else "single"
    step = step_of(ns, backend, precision, "relative_l2", samples, **options)
    losses, gradients = derivatives(step, ns, 3, "banks", True)
    expected, right = derivatives(step, ns, 3, "spill", False)
    tolerance = 1e-5 if precision == "single" else 1e-2
    np.testing.assert_allclose(losses, expected, rtol=tolerance)
    assert losses.shape == (samples,)
    for one, other in zip(gradients, right, strict=True):
        assert relative_error(one, other) < tolerance


@pytest.mark.parametrize("loss", ["l1", "gaussian_nll", "variance", "relative_l2_luminance"])
def test_losses(ns, backend, loss):
    """With a kink, of twice as many outputs, divided by an output, and by all; the others take the same way."""
    step = step_of(ns, backend, "auto", loss, 1500, scale=1 / 16)  # gradients are large
    losses, gradients = derivatives(step, ns, 1, "banks", True)
    expected, right = derivatives(step, ns, 1, "banks", False)
    tolerance = 1e-5 if backend == "llvm" else 1e-2
    assert relative_error(losses, expected) < tolerance
    for one, other in zip(gradients, right, strict=True):
        assert relative_error(one, other) < tolerance


def test_which_losses_are_known():
    assert all(map(samplewise, LOSSES.values())) and all(samplewise(f) for f in TCNN.values() if callable(f))
    assert not samplewise(lambda y, t: y[0])


def test_a_function_that_says_so(ns, backend):
    """One of the user's own, with an argument of its own."""

    def power(y, t, exponent):
        return sum(dr.abs(a - b) ** exponent for a, b in zip(y, t, strict=True))

    power.samplewise = True
    step = step_of(ns, backend, "auto", functools.partial(power, exponent=4), 1500, scale=1 / 16)
    losses, gradients = derivatives(step, ns, 1, "banks", True)
    expected, right = derivatives(step, ns, 1, "spill", False)
    tolerance = 1e-5 if backend == "llvm" else 2e-2
    assert relative_error(losses, expected) < tolerance  # outputs in half precision may be close to their targets
    for one, other in zip(gradients, right, strict=True):
        assert relative_error(one, other) < tolerance


def test_what_depends_on_more_stays_outside(ns, backend):
    """An unknown loss, targets with gradients, and a network of which the engine does not know all layers."""
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend)
    x, y, t = (ns.Float([0.1, 0.2]) for _ in range(3))
    assert loss_in_kernel(field, cn.training.l2, ([x, y], [t]), True) is not None
    assert loss_in_kernel(field, lambda y, t: dr.square(y[0] - t[0]), ([x, y], [t]), True) is None
    dr.enable_grad(t)
    assert loss_in_kernel(field, cn.training.l2, ([x, y], [t]), True) is None
    for pdf, inside in ((0.5, True), (ns.Float([0.5, 2]), False)):  # an array of the caller's has a number per sample
        assert samplewise(functools.partial(cn.training.l2, pdf=pdf)) == inside
    other = cn.NeuralField(None, cn.Sequential(cn.MLP(2, 2, width=8, depth=1), cn.Sinusoidal(1), cn.Linear(-1, 1)))
    assert loss_in_kernel(other.build(backend), cn.training.l2, ([x, y], [1.0]), True) is None


def test_one_kernel_goes_forward_and_back(ns, backend):
    """Of a batch that is in memory, one kernel of a step has a lane for each sample, and on CUDA products."""
    field = cn.NeuralField(None, cn.MLP(2, 1, width=16, depth=2, dropout=0.1)).build(backend)
    samples = 5024  # whole warps
    x, y = cn.uniform(2, cn.Key(1), ns.Float, samples)
    dr.eval(x, y)
    step = Step(field, Adam(1e-3, params=field), lambda key: ([x, y], [y]), Options())
    sizes = []
    with gradient_path("banks"):
        for number in range(3):
            with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
                dr.kernel_history_clear()
                step(dr.opaque(ns.UInt64, 7), dr.opaque(ns.UInt32, number))
                history = dr.kernel_history((dr.KernelType.JIT,))
            sizes.append(sum(k["size"] >= samples and (backend == "llvm" or k["uses_optix"]) for k in history))
    assert sizes[-1] == 1


@pytest.mark.parametrize("looped", [False, True])
def test_the_same_kernel_draws_the_batch(ns, backend, looped):
    """Unless a loop does: on a GPU, the call would take several times as long in its kernel."""
    samples = 5024  # whole warps
    sizes, gradients = {}, {}

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, samples)
        if looped:
            (x,) = dr.while_loop((x,), lambda x: x < 0, lambda x: (x + 1,), mode="symbolic")  # no turn
        return [x, y], [x * y]

    for path in ("banks", "spill"):
        field = cn.NeuralField(None, cn.MLP(2, 1, width=16, depth=2)).build(backend, seed=1)
        step = Step(field, Adam(1e-3, params=field), batch, Options(loss_scale=64.0))
        with gradient_path(path), launched() as history:
            step(dr.opaque(ns.UInt64, 7), dr.opaque(ns.UInt32, 0))
        sizes[path] = sum(k["size"] >= samples for k in history)
        gradients[path] = np.concatenate([m[1].numpy() for m in memories(step.optimizer).values()])
    assert sizes["banks"] == (2 if looped else 1)
    assert relative_error(gradients["banks"], gradients["spill"]) < (1e-5 if backend == "llvm" else 1e-2)


def test_another_number_of_samples_is_recorded_anew(ns, backend):
    """Frozen steps know the widths of the arrays that the batch refers to, in lists, dictionaries and objects."""

    class Data:
        DRJIT_STRUCT = {"x": object, "y": object}

    data, table = Data(), {}

    def batch(key):
        return [data.x, data.y], [table["of"][0]]

    def fill(samples):
        data.x, data.y = cn.uniform(2, cn.Key(samples), ns.Float, samples)
        table["of"] = [data.x * data.y]
        dr.eval(data.x, data.y, table)

    fields = []
    for path in ("banks", "spill"):
        field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend, seed=1)
        fill(64)
        step = Step(field, Adam(1e-2, params=field), batch, Options())
        with gradient_path(path):
            for number, samples in enumerate([3000, 3000, 5000, 3000, 64, 5000]):
                fill(samples)
                step(dr.opaque(ns.UInt64, 1), dr.opaque(ns.UInt32, number))
        field.update(step.optimizer)
        fields.append(np.concatenate([v.array.numpy().ravel() for v in field.values()]).astype(np.float64))
    assert relative_error(*fields) < (1e-4 if backend == "llvm" else 2e-2)
