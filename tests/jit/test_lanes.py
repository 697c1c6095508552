"""Masked lanes: by ``active``, or by gradients of zero."""

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import arrays, evaluated, owned
from support.cuda_on_cpu import as_cuda

import coopnet as cn
from coopnet.engine import stall
from coopnet.jit import lanes
from coopnet.jit.lanes import WARP, Gate, Warps, live, only

#: One sample of five is nowhere.
POINTS = np.array([[0.1, 0.7, np.nan, 0.4, 0.9], [0.2, 0.3, 0.5, np.inf, 0.6]])
KEPT = np.isfinite(POINTS).all(axis=0)


ENCODINGS = {
    "none": lambda: None,
    "sinusoidal": lambda: cn.Sinusoidal(3, in_features=2),
    "hash grid": lambda: cn.HashGrid(2, n_levels=2, base_resolution=3, init_scale=1.0),
    "nearest": lambda: cn.Grid(2, "dense", n_levels=2, base_resolution=3, interpolation="nearest", init_scale=1.0),
    "permutohedral": lambda: cn.Permutohedral(2, n_levels=2, init_scale=1.0),
    "one blob": lambda: cn.OneBlob(4, in_features=2),
    "trained Fourier": lambda: cn.Fourier(3, scale=1.0, trained=True, in_features=2),
}


def built(backend, encoding="none", outputs=1, **options):
    options = {"width": 6, "depth": 1, "activation": "silu", "bias": True, **options}
    size = 2 if encoding == "none" else -1
    field = cn.NeuralField(ENCODINGS[encoding](), cn.MLP(size, outputs, **options)).build(backend, seed=3)
    for name in field:
        dr.enable_grad(field[name])
    return field


def kept(ns):
    return owned([ns.Bool(KEPT)])[0]


def points(ns, lanes=slice(None)):
    p = ns.Array2f(arrays(ns, POINTS[:, lanes]))
    dr.enable_grad(p)
    return p


def gradients(field, p):
    """Gradients of all parameters, and of the coordinates; forgotten afterwards."""
    result = [v.numpy().astype(np.float64) for v in evaluated(dr.grad([*field.values(), p]))]
    for name in field:
        dr.clear_grad(field[name])
    return result


def value(field, p, key, active):
    return field(p, key, active)[0]


def slope(field, p, key, active):
    y, gradient = field.value_and_grad(p, key, active)
    return y[0] + gradient[0] * gradient[1]


def direction(field, p, key, active):
    y, moved = field.jvp(p, type(p)(p[1], 1), key, active)
    return y[0] + moved[0]


def looped(field, p, key, active):
    ns_uint32 = dr.uint32_array_t(type(p[0]))
    start = (ns_uint32(0), dr.zeros(type(p[0]), dr.width(p)), p)

    def body(i, total, p):
        return i + 1, total + field(p, key, active)[0], p

    return dr.while_loop(start, lambda i, *_: i < 2, body, mode="symbolic", max_iterations=-1)[1]


@pytest.mark.parametrize(
    ("encoding", "kind", "active"),
    # encodings stand outside the network: loops and directions show nothing new with each of them; and they see zeros
    # in place of masked coordinates, whatever they are
    [("none", k, masked) for k in (value, slope, direction, looped) for masked in (True, False)]
    + [("hash grid", k, False) for k in (value, slope)]
    + [("hash grid", value, True), ("permutohedral", direction, False), ("nearest", slope, False)]
    + [("sinusoidal", value, False), ("one blob", slope, False)]
    + [("trained Fourier", k, masked) for k in (value, slope) for masked in (True, False)],
)
def test_lanes_that_are_nowhere_change_no_gradient(ns, backend, encoding, kind, active):
    """The gradients are those of the other lanes alone, to the bit where sums have a fixed order."""
    field, keep = built(backend, encoding), kept(ns)
    p = points(ns)
    y = kind(field, p, None, keep if active else True)
    dr.backward(dr.sum(dr.select(keep, y, 0)))
    got = gradients(field, p)
    others = points(ns, KEPT)
    dr.backward(dr.sum(kind(field, others, None, True)))
    wanted = gradients(field, others)
    assert (got[-1][:, ~KEPT] == 0).all()
    for a, b in zip([*got[:-1], got[-1][:, KEPT]], wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-2 if backend == "cuda" else 1e-5, atol=1e-2 * np.abs(b).max())


@pytest.mark.parametrize("encoding", ["none", "sinusoidal"])
def test_coordinates_of_a_network_that_is_not_trained(ns, backend, encoding):
    """Dr.Jit differentiates it by itself, and to it 0 times NaN is NaN in cooperative vectors."""
    field, p = built(backend, encoding), points(ns)
    for name in field:
        dr.disable_grad(field[name])
    dr.backward(dr.sum(dr.select(kept(ns), field(p)[0], 0)))
    got = dr.grad(p).numpy()
    assert (got[:, ~KEPT] == 0).all() and np.isfinite(got).all() and (got[:, KEPT] != 0).all()
    dr.clear_grad(p)
    dr.backward(dr.sum(field(p)[0]))
    assert np.isnan(dr.grad(p).numpy()[0, ~KEPT]).all()  # what does come in goes on as it is


@pytest.mark.parametrize("active", [True, False], ids=["masked", "zero gradient"])
def test_learned_rates(ns, backend, active):
    """A rate of dropout has the gradient of the other lanes alone."""
    network = cn.Sequential(cn.Linear(2, 4), cn.SiLU(), cn.ConcreteDropout(), cn.Linear(4, 1))
    field = cn.NeuralField(None, network).build(backend, seed=3)
    rate, keep = field["network.layers.2.data"], kept(ns)
    dr.enable_grad(rate)

    def gradient(p, index, active, inside):
        dr.backward(dr.sum(dr.select(inside, field(p, cn.Key(1, index=index), active)[0], 0)))
        got = dr.grad(rate).numpy()
        dr.clear_grad(rate)
        return got

    got = gradient(points(ns), dr.arange(ns.UInt32, len(KEPT)), keep if active else True, keep)
    numbers = owned([ns.UInt32(np.flatnonzero(KEPT))])[0]
    wanted = gradient(points(ns, KEPT), numbers, True, True)
    np.testing.assert_allclose(got, wanted, rtol=2e-2 if backend == "cuda" else 1e-5)


@pytest.mark.parametrize("path", ["spill", "banks", "builtin"])
@pytest.mark.parametrize("samples", [5, 3000])
def test_paths(ns, backend, path, samples):
    """Several banks, one bank, spilled vectors; Dr.Jit's own derivative needs the mask."""
    field = built(backend, dropout=0.2)
    keep = owned([ns.Bool(np.resize(KEPT, samples))])[0]
    p = ns.Array2f(arrays(ns, np.resize(POINTS.T, (samples, 2)).T))
    masks = [keep] if path == "builtin" else [keep, True]
    with cn.gradient_path(path):
        for active in masks:
            dr.backward(dr.mean(dr.select(keep, field(p, cn.Key(1), active)[0], 0)))
            got = gradients(field, p)[:-1]
            assert all(np.isfinite(v).all() for v in got) and max(np.abs(v).max() for v in got) > 0


def test_weights_in_calls(ns, backend, monkeypatch):
    """In virtual calls the mask is what keeps gradients clean."""
    monkeypatch.setattr(stall, "_warned", False)  # once in a process, and another test may have been the first
    field, other = built(backend), built(backend, activation="tanh")
    keep, p = kept(ns), points(ns)
    dr.disable_grad(p)
    index = dr.arange(ns.UInt32, 5) % 2
    bodies = [lambda p, keep: field(p, None, keep)[0], lambda p, keep: other(p, None, keep)[0]]
    with pytest.warns(RuntimeWarning) if backend == "cuda" else np.errstate():
        dr.backward(dr.sum(dr.switch(index, bodies, p, keep)))
    for net in (field, other):
        got = dr.grad(net["network.weights"]).numpy()
        assert np.isfinite(got).all() and np.abs(got).max() > 0


def test_nan_is_neither_equal_to_zero_nor_different(ns):
    x = ns.Float([np.nan, 0, -0.0, 1, np.inf])
    dr.make_opaque(x)
    np.testing.assert_array_equal((x == 0).numpy(), [False, True, True, False, False])
    np.testing.assert_array_equal((x != 0).numpy(), [False, False, False, True, True])
    np.testing.assert_array_equal(live([x]).numpy(), [True, False, False, True, True])
    np.testing.assert_array_equal(live([x * 0 == 0, x]).numpy(), [True] * 5)
    for kept in only(live([x]) & (x == x), [x, 2 * x]):
        assert np.isfinite(kept.numpy()[:4]).all() and kept.numpy()[0] == 0


def test_gates(ns):
    """What Dr.Jit differentiates between the two is 0 where nothing comes in, and else what it was."""

    class Root(dr.CustomOp):
        def eval(self, x):
            self.slope = 0.5 * dr.rsqrt(x)
            return dr.sqrt(x)

        def backward(self):
            self.set_grad_in("x", self.slope * self.grad_out())

    def gradient(*dy, gated=True):
        gate, x = Gate(), ns.Float(-1, 0.25, 0, 4)
        dr.enable_grad(x)
        (inside,) = gate.enter([x])
        ys = [dr.custom(Root, inside), 2 * inside]
        ys = gate.leave(ys) if gated else ys
        dr.backward(sum(y * ns.Float(d) for y, d in zip(ys, dy, strict=True)))
        return dr.grad(x).numpy()

    for dy, wanted in (([0, 0, 0, 0], [0, 3, 0, 2]), ([0, 5, 0, 5], [0, 13, 0, 12])):
        np.testing.assert_allclose(gradient([0, 3, 0, 8], dy), wanted, rtol=1e-6)  # AVX2 only estimates roots
    # nothing has left yet: nobody knows which lanes count
    assert np.isnan(gradient([0, 3, 0, 8], [0, 0, 0, 0], gated=False)[0])


def test_gradients_that_are_nan_are_kept(ns, backend):
    """Only zeros are left out: what overflowed must reach the loss scaler."""
    field, p = built(backend, "hash grid"), points(ns, KEPT)
    y = field(p)[0]
    dr.set_grad(y, ns.Float([1, np.nan, 0]))
    dr.enqueue(dr.ADMode.Backward, y)
    dr.traverse(dr.ADMode.Backward)
    got = gradients(field, p)
    assert all(np.isnan(v).any() for v in got)
    assert (got[-1][:, 2] == 0).all()


@pytest.mark.parametrize("method", ["__call__", "value_and_grad", "jacobian", "jvp"])
def test_inactive_lanes_return_zeros(ns, backend, method):
    field, keep = built(backend, activation="softplus"), kept(ns)  # which is not zero at zero
    p = ns.Array2f(POINTS)
    arguments = (p, ns.Array2f(np.nan, 1)) if method == "jvp" else (p,)
    function = getattr(field, method)

    def flat(result):
        result = result if isinstance(result, (tuple, list)) else [result]
        return np.concatenate([np.atleast_2d(v.numpy()) for v in evaluated(list(result))])

    if method == "jvp":
        arguments = (p, ns.Array2f(dr.select(keep, ns.Float(1), np.nan), 1))
    got = flat(function(*arguments, active=keep))
    assert (got[:, ~KEPT] == 0).all() and (got[:, KEPT] != 0).all()
    np.testing.assert_array_equal(got[:, KEPT], flat(function(*arguments))[:, KEPT])
    assert (flat(function(*arguments, active=False)) == 0).all()
    assert (flat(function(*arguments, active=ns.Bool(False))) == 0).all()
    np.testing.assert_array_equal(flat(function(*arguments, active=ns.Bool(True)))[:, KEPT], got[:, KEPT])


def test_containers(ns, backend):
    field, keep = built(backend, outputs=2, activation="softplus"), kept(ns)
    x = [ns.Float(v) for v in POINTS]
    wanted = field(ns.Array2f(POINTS), active=keep).numpy()
    assert (wanted[:, ~KEPT] == 0).all() and (wanted[:, KEPT] != 0).all()
    np.testing.assert_array_equal(field(x, active=keep).numpy(), wanted)
    np.testing.assert_array_equal(field(ns.TensorXf(POINTS.astype(np.float32)), active=keep).numpy(), wanted)
    y = field(drnn.CoopVec(x), active=keep)
    assert isinstance(y, drnn.CoopVec)
    np.testing.assert_array_equal(np.stack([v.numpy() for v in evaluated(list(y))]), wanted)
    moved = field.jvp(drnn.CoopVec(x), drnn.CoopVec(x), active=keep)[1]
    assert all((v.numpy()[~KEPT] == 0).all() for v in evaluated(list(moved)))


@pytest.mark.parametrize("container", [drnn.CoopVec, list, "TensorXf"])
@pytest.mark.parametrize("active", [True, False], ids=["masked", "zero gradient"])
def test_gradients_of_coordinates_in_other_containers(ns, backend, container, active):
    """As those of a nested array, to which the tests above keep."""
    field, keep = built(backend, "sinusoidal", activation="softplus"), kept(ns)

    def derivative(inside):
        p = points(ns)
        y = field(inside(p), active=keep if active else True)
        y = y.array if container == "TensorXf" else next(iter(y))
        dr.backward(dr.sum(dr.select(keep, y, 0)))
        return dr.grad(p).numpy()

    got = derivative(ns.TensorXf if container == "TensorXf" else lambda p: container([*p]))
    p = points(ns)
    dr.backward(dr.sum(dr.select(keep, field(p, active=keep)[0], 0)))
    wanted = dr.grad(p).numpy()
    assert (got[:, ~KEPT] == 0).all() and np.isfinite(got).all() and (got[:, KEPT] != 0).all()
    np.testing.assert_allclose(got, wanted, rtol=1e-2 if backend == "cuda" else 1e-5)


def test_one_point_and_many_masks(ns, backend):
    field = built(backend)
    got = field(ns.Array2f(0.5, 0.25), active=ns.Bool([True, False])).numpy()
    assert got.shape == (1, 2) and got[0, 0] != 0 and got[0, 1] == 0


@pytest.mark.parametrize(
    ("active", "error", "words"),
    [
        (1, TypeError, "active is a int; a bool or a Dr.Jit Bool is needed"),
        ([True], TypeError, "active is a list"),
        (None, TypeError, "active is a NoneType"),
        (lambda ns: ns.Float(1), TypeError, "active is a Float"),
        (lambda ns: ns.Array2b(True, False), TypeError, "active is a Array2b"),
        (lambda ns: ns.TensorXb([True]), TypeError, "active is a .*TensorXb"),
        (lambda ns: ns.Bool([True, False]), ValueError, "active has 2 entries for 5 samples"),
    ],
)
@pytest.mark.parametrize("method", ["__call__", "value_and_grad", "jacobian"])
def test_bad_masks(ns, backend, active, error, words, method):
    field = built(backend)
    with pytest.raises(error, match=rf"NeuralField.*: {words}"):
        getattr(field, method)(ns.Array2f(POINTS), active=active(ns) if callable(active) else active)


#: What each activation makes of NaN, inf and -inf, as docs/reliability.md says.
NO_NUMBERS = {
    "relu": (np.nan, np.inf, 0),
    "leaky_relu": (np.nan, np.inf, -np.inf),
    "tanh": (np.nan, 1, -1),
    "sigmoid": (np.nan, 1, 0),
    "exp": (np.nan, np.inf, 0),
    "softplus": (np.nan, np.inf, np.nan),
    "squareplus": (np.nan, np.inf, np.nan),
    "silu": (np.nan, np.inf, np.nan),
    "gelu": (np.nan, np.inf, np.nan),
    "sine": (np.nan, np.nan, np.nan),
}


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_what_becomes_of_no_number(ns, name):
    layer = cn.nn.ACTIVATIONS[name]()
    for leaf in (ns.Float, ns.Float16):
        x = leaf([np.nan, np.inf, -np.inf])
        dr.make_opaque(x)
        np.testing.assert_array_equal(layer([x])[0].numpy(), NO_NUMBERS[name])
        wanted = (0, *NO_NUMBERS[name][1:]) if name == "relu" else NO_NUMBERS[name]
        np.testing.assert_array_equal(next(iter(layer(drnn.CoopVec([x, x])))).numpy(), wanted)


def test_every_activation_is_in_the_table():
    assert set(NO_NUMBERS) == set(cn.nn.ACTIVATIONS) - {"identity"}


@pytest.mark.parametrize("samples", [32, 33, 77, 96])
def test_full_warps(ns, backend, samples):
    """Zeros fill the last one up, and go when they are not needed any more."""
    values = [ns.Float(np.random.default_rng(0).random(samples)), ns.Float(2)]
    warps = Warps(ns.UInt32, samples)
    assert warps.count == (-(-samples // WARP) * WARP if backend == "cuda" else samples)
    wide, constant = warps.widen(values)
    assert dr.width(wide) == warps.count
    np.testing.assert_array_equal(wide.numpy()[:samples], values[0].numpy())
    assert not wide.numpy()[samples:].any()
    both = (wide * constant).numpy()
    assert not both[samples:].any()
    (narrow,) = warps.narrow([wide * constant])
    np.testing.assert_array_equal(narrow.numpy(), values[0].numpy() * 2)


def test_full_warps_as_on_a_gpu():
    llvm = pytest.importorskip("drjit.llvm.ad")
    with as_cuda(lanes):
        test_full_warps(llvm, "cuda", 77)
