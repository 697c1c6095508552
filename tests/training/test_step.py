"""A step is its pieces in a row, each of which may run elsewhere."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from drjit.opt import Adam
from support.kernels import launched
from support.training import tiny_batch

import coopnet as cn
from coopnet.jit.optimizers import values
from coopnet.training.arguments import trace_first_batch
from coopnet.training.step import Options, Step


def make(backend, precision="auto", **options):
    field = cn.NeuralField(None, cn.MLP(2, 1, width=16, depth=1, dropout=0.1)).build(backend, precision)
    optimizer = Adam(lr=1e-2)
    optimizer.update(field)
    return Step(field, optimizer, options.pop("batch", None), Options(**options))


def weights(step):
    return [np.array(value.numpy()) for value in values(step.optimizer).values()]


@pytest.mark.parametrize("precision", ["single", "half"])
def test_pieces_one_by_one(ns, backend, precision):
    """In Python, with an evaluation after each, they do what the frozen step does."""
    if backend == "cuda" and precision == "single":
        pytest.skip("CUDA multiplies half precision only")
    options = dict(batch=tiny_batch(ns), clip_norm=0.1, weight_decay=0.1, multipliers={"layers.0": 0.5})
    frozen, pieces = make(backend, precision, **options), make(backend, precision, **options)
    for number in range(3):
        for step in (frozen, pieces):
            step.optimizer.lr = dr.opaque(ns.Float, 1e-2)
        frozen(dr.opaque(ns.UInt64, 5), dr.opaque(ns.UInt32, number))
        key = cn.Key(5, step=number)
        pieces.push()
        losses = pieces.evaluate(pieces.draw(key), key)
        pieces.pullback(losses)
        gradients = [dr.grad(value) for value in values(pieces.optimizer).values()]
        dr.eval(losses, gradients)
        pieces.clip()
        unscaling = pieces.unscale()
        dr.eval(unscaling)
        pieces.update(unscaling)
        dr.eval(pieces.optimizer.state)
        assert frozen.losses.numpy()[number] == pytest.approx(np.mean(losses.numpy()), rel=1e-3)
        for one, other in zip(weights(frozen), weights(pieces), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3 if precision == "half" else 1e-5)


def test_single_numbers_share_a_kernel(ns, backend):
    """Loss, loss scale, skipped steps and the rate of Adam: one kernel in each step. In a call of several steps, the
    kernel of an update also rounds the parameters for the next step.
    """
    step, steps = make(backend, "half", batch=tiny_batch(ns)), 3
    rates = [dr.opaque(ns.Float, 1e-2) for _ in range(steps)]
    step.optimizer.lr = rates[0]
    step(dr.opaque(ns.UInt64, 5), dr.opaque(ns.UInt32, 0))
    dr.make_opaque(step.optimizer.state)
    step.call_several(dr.opaque(ns.UInt64, 5), dr.opaque(ns.UInt32, 1), rates)
    with launched() as history:
        step.call_several(dr.opaque(ns.UInt64, 5), dr.opaque(ns.UInt32, 4), rates)
    (size,) = {dr.width(v) for v in values(step.optimizer).values()}
    sizes = [k["size"] for k in history]
    assert sizes.count(1) == 1 + steps  # the first makes the numbers of the steps
    assert sizes.count(size) == 1 + 2 * steps, sizes  # the sum of gradients, and the update


def test_gradients_from_elsewhere(ns, backend):
    """Between pulling back and clipping, gradients are arrays like others: here the mean of those of two batches."""
    whole, halves = make(backend, batch=tiny_batch(ns)), [make(backend, batch=tiny_batch(ns)) for _ in range(2)]
    key = cn.Key(3)
    coordinates, targets = whole.draw(key)
    for step, chosen in ((whole, slice(0, 64)), (halves[0], slice(0, 32)), (halves[1], slice(32, 64))):
        part = [[ns.Float(v.numpy()[chosen]) for v in values] for values in (coordinates, targets)]
        step.push()
        step.pullback(step.evaluate(tuple(part), cn.Key(3, index=ns.UInt32(np.arange(64)[chosen]))))
    for value, a, b in zip(*(step.optimizer.values() for step in (halves[0], *halves)), strict=True):
        dr.set_grad(value, (dr.grad(a) + dr.grad(b)) * 0.5)
    for step in (whole, halves[0]):
        step.update(step.unscale())
    for one, other in zip(weights(whole), weights(halves[0]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3 if backend == "cuda" else 1e-5)


@pytest.mark.parametrize("which", ["optimizer", "field"])
def test_release(ns, backend, which):
    """Parameters for others come without gradients, of the optimizer or as the field has them."""
    step = make(backend)
    step.push()
    assert all(map(dr.grad_enabled, step.field.values()))
    before = {name: np.array(dr.detach(value).numpy()) for name, value in step.field.items()}
    step.optimizer.update({name: value * 0 for name, value in step.field.items()})
    step.release(getattr(step, which))
    assert not any(map(dr.grad_enabled, step.field.values()))
    for name, value in step.field.items():
        np.testing.assert_array_equal(value.numpy(), 0 if which == "optimizer" else before[name])


def test_the_first_batch_is_only_traced(ns, backend):
    """Also where a network is so wide that it is evaluated between kernels: the step will be another kernel."""
    field = cn.NeuralField(None, cn.MLP(2, 1, width=160, depth=2)).build(backend)
    batch = tiny_batch(ns, 2048)
    step = Step(field, Adam(lr=1e-2), batch, Options())
    with launched() as evaluated:
        dr.eval(field(batch(cn.Key(0))[0]))
    with launched() as traced:
        samples, _, _ = trace_first_batch(step, cn.Key(0))
    assert samples == 2048 and 2048 not in [k["size"] for k in traced]  # matrices may have been copied
    assert backend == "cuda" or [k["size"] for k in evaluated].count(2048) > 1
