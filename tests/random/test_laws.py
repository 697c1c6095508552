"""Schedules for p, whole samples, Gaussian noise, and masks shared by groups of samples."""

from __future__ import annotations

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import leaf_of
from support.inputs import KINDS, TRACED, kinds_for, make, values, weighted
from support.kernels import launched
from support.properties import given, st

import coopnet as cn
from coopnet import backend as backends
from coopnet import reference as ref
from coopnet.nn.tree import children
from coopnet.random import draws
from coopnet.random.law import GaussianLaw, MaskLaw, PathLaw
from coopnet.random.philox import round_keys

N = 40
P = st.floats(0, 0.9921875, width=32) | st.sampled_from(
    [0.0, 0.1, 0.25, 0.5, 2**-9, 3 * 2**-9, 2**-17, 3 * 2**-17, 2**-24]
)


def numbers(rows=21, columns=N, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


@pytest.fixture(params=["fused", "blocks"])
def blocks(request, monkeypatch):
    """Tensors element by element, and block by block."""
    if request.param == "blocks":
        monkeypatch.setattr(draws, "LARGE", 1)
    return request.param


# ---- What the engine asks ----------------------------------------------------------------------------------


def test_laws_that_change_something(ns):
    key = cn.Key(1)
    for law in (MaskLaw, PathLaw, GaussianLaw):
        assert law(0.5).active(key) and not law(0.5).active(None) and not law(0).active(key)
        assert law(ns.Float(0)).active(key) and not law(ns.Float(0)).active(None)  # a kernel reads it


def test_scales_that_tell_the_adjoint(ns):
    for law in (MaskLaw, PathLaw):
        assert law(0.75).scale(ns.Float) == 4 and law(ns.Float(0.75)).scale(ns.Float)[0] == 4
        assert law.binary
    assert not GaussianLaw.binary


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_draws_of_a_block(ns, bits):
    """From the lowest of word 0 to the highest of word 3, each at the top of its word."""
    words = [int(w) for w in ref.philox4x32((5, 6, 7, 8), (9, 10))]
    expected = [w >> shift & 2**bits - 1 for w in words for shift in range(0, 32, bits)]
    for one in (lambda v: np.array([v], np.uint32), ns.UInt32):
        drawn = draws.block(tuple(map(one, (5, 6, 7, 8))), round_keys((one(9), one(10))), bits)
        assert [int(d[0]) >> (32 - bits) for d in drawn] == expected


# ---- Groups of samples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_groups_share_a_mask(backend, ns, kind, blocks):
    if kind not in kinds_for(backend) or (kind != "tensor" and blocks == "blocks"):
        pytest.skip("covered elsewhere")
    group = np.arange(N) // 8
    index = group if kind == "numpy" else dr.arange(ns.UInt32, N) // 8
    x = numbers()
    given_ = make(ns, kind, x)
    y = values(cn.dropout(given_, 0.3, cn.Key(9, index, 2), stream=4))
    np.testing.assert_array_equal(y, ref.dropout(x, 0.3, 9, group, 2, 4))
    keep = (y != 0).reshape(21, N // 8, 8)
    assert (keep == keep[:, :, :1]).all() and not (keep == keep[:, :1]).all()


# ---- Schedules ---------------------------------------------------------------------------------------------


@given(ps=st.lists(P, min_size=50, max_size=50))
def test_threshold_and_scale_of_the_law(ns, ps):
    ps = [float(p) for p in np.float32(ps)] + [np.float32(1 - 2**-24).item()]
    for bits in (8, 16, 32):
        law = MaskLaw(ns.Float(ps), bits)
        expected = [min(round(p * 2**bits), 2**bits - 1) for p in ps]
        np.testing.assert_array_equal(ns.UInt32(law.threshold(ns.Float)).numpy(), np.array(expected, np.uint32))
        for dtype in (np.float16, np.float32, np.float64):
            with np.errstate(over="ignore"):
                factor = np.array([2**bits / (2**bits - n) for n in expected]).astype(dtype)
            np.testing.assert_array_equal(law.scale(leaf_of(ns, dtype)).numpy(), factor)


def test_scale_is_rounded_once(ns):
    """By way of single precision, some quotients would end on a tie of half precision, and round the wrong way."""
    n = np.arange(1, 2**16, dtype=np.float64)
    with np.errstate(over="ignore"):
        once, twice = (2**16 / n).astype(np.float16), (2**16 / n).astype(np.float32).astype(np.float16)
    law = MaskLaw(ns.Float64(1 - n / 2**16))
    np.testing.assert_array_equal(law.scale(ns.Float16).numpy(), once)
    assert (once != twice).any()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_schedule_is_the_law(backend, ns, kind, half, blocks):
    if kind not in kinds_for(backend) or (kind != "tensor" and blocks == "blocks"):
        pytest.skip("covered elsewhere")
    dtype = np.float16 if half else np.float32
    x = numbers().astype(dtype)
    given_ = make(ns, kind, x, dtype)
    bits = 8 if half else 16
    for p in (0.0, 0.1, 0.75):
        single = np.float32(p).item()
        y = cn.dropout(given_, dr.opaque(ns.Float, p), cn.Key(9, step=2), stream=4, bits=bits)
        assert type(y) is type(given_)
        np.testing.assert_array_equal(values(y), ref.dropout(x, single, 9, None, 2, 4, bits), err_msg=f"p={p}")


def test_schedules_of_other_types(backend, ns):
    import importlib

    plain = importlib.import_module(f"drjit.{backend}")
    expected = ref.dropout(numbers(), 0.25, 9)
    for p in (plain.Float(0.25), ns.Float16(0.25), ns.Float64(0.25)):
        np.testing.assert_array_equal(cn.dropout(ns.ArrayXf(numbers()), p, cn.Key(9)).numpy(), expected)
        np.testing.assert_array_equal(cn.dropout(plain.ArrayXf(numbers()), p, cn.Key(9)).numpy(), expected)
    key = cn.Key(9, dr.arange(ns.UInt32, N))
    np.testing.assert_array_equal(cn.dropout_mask(21, ns.Float(0.25), key).numpy(), expected != 0)
    np.testing.assert_array_equal(cn.dropout_mask(21, ns.Float(0.25), cn.Key(9, np.arange(N))), expected != 0)
    for bad, error, message in [
        (ns.Float([0.1, 0.2]), ValueError, "p has 2 entries; one drop probability"),
        (ns.Float(), ValueError, "p has 0 entries; one drop probability"),
        (ns.UInt32(0), TypeError, "p is a Dr.Jit U"),
        (ns.Array3f(0.1), TypeError, "p is a Dr.Jit Array3f"),
        (ns.TensorXf([0.1]), TypeError, "p is a Dr.Jit TensorXf"),
    ]:
        with pytest.raises(error, match="dropout: " + message):
            cn.dropout(ns.Float(1), bad, None)
        with pytest.raises(error, match="Dropout: " + message):
            cn.Dropout(bad)
        with pytest.raises(error, match="GaussianDropout: " + message):
            cn.GaussianDropout(bad)
    with pytest.raises(ValueError, match="bits is 12"):
        cn.dropout(ns.Float(1), ns.Float(0.1), None, bits=12)


def test_values_that_a_kernel_cannot_refuse(ns):
    """p is clipped, and at least one of 2^bits values keeps."""
    x = ns.Float(1) + dr.zeros(ns.Float, 5000)
    key = cn.Key(1)
    assert dr.all(cn.dropout(x, ns.Float(-0.5), key) == 1)
    y = cn.dropout(x, ns.Float(1), key, bits=8).numpy()
    assert set(np.unique(y).tolist()) == {0, 256} and abs((y != 0).mean() - 1 / 256) < 0.003


@pytest.mark.parametrize("kind", ["nested", "list", "coopvec"])
def test_schedule_of_every_sample(backend, ns, kind):
    if kind not in kinds_for(backend):
        pytest.skip("no cooperative vectors of this type")
    x = numbers(11)
    some = np.linspace(0, 0.9, N, dtype=np.float32)
    y = values(cn.dropout(make(ns, kind, x), ns.Float(some), cn.Key(9, step=2)))
    z = values(GaussianLaw(ns.Float(some), stream=3).apply(make(ns, kind, x), cn.Key(9)))
    for i in (0, 1, 20, N - 1):
        p = some[i].item()
        np.testing.assert_array_equal(y[:, i], ref.dropout(x, p, 9, None, 2)[:, i])
        expected = ref.gaussian_dropout(x, p, 9, stream=3)[:, i]
        np.testing.assert_allclose(z[:, i], expected, rtol=tolerance(np.float32), atol=1e-5)
    for bad in (ns.Float(some[1:]), ns.Float()):
        with pytest.raises(
            ValueError, match=f"dropout: p has {len(bad)} entries; .* one for each of the {N}, is needed"
        ):
            cn.dropout(make(ns, kind, x), bad, cn.Key(9))
    with pytest.raises(ValueError, match=f"dropout: p has {N} entries; one drop probability for all samples is needed"):
        cn.dropout(ns.TensorXf(x), ns.Float(some), cn.Key(9))


@pytest.mark.parametrize("mode", ["symbolic", "evaluated"])
def test_schedules_in_calls_and_loops(ns, mode):
    """Evaluated ones hand on a schedule with as many entries as samples."""
    x, lane = numbers(), dr.arange(ns.UInt32, N)
    key, p = cn.Key(9, lane), np.float32(0.3).item()

    def call(x, p, key):
        return cn.dropout(x, p, key)

    y = dr.switch(lane % 2, [call, call], ns.ArrayXf(x), ns.Float(p), key, mode=mode)
    np.testing.assert_array_equal(y.numpy(), ref.dropout(x, p, 9))
    y = dr.switch(lane % 2, [call, call], ns.ArrayXf(x), 0.3, cn.Key(ns.UInt64(9), lane, ns.UInt32(0)), mode=mode)
    np.testing.assert_array_equal(y.numpy(), ref.dropout(x, 0.3, 9))
    y = dr.if_stmt((ns.ArrayXf(x), ns.Float(p), key), lane % 2 == 0, call, call, mode=mode)
    np.testing.assert_array_equal(y.numpy(), ref.dropout(x, p, 9))
    _, y = dr.while_loop(
        (ns.UInt32(0), ns.ArrayXf(x)),
        lambda i, y: i < 1 + lane % 2,
        lambda i, y: (i + 1, cn.dropout(y, 0.25 * ns.Float(i + 1), key.fold_in(i))),
        mode=mode,
    )
    expected = ref.dropout(x, 0.25, 9)
    expected[:, 1::2] = ref.dropout(expected, 0.5, 9, None, 1)[:, 1::2]
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)


@pytest.mark.skipif(len(backends.available()) < 2, reason="needs two backends")
def test_schedule_of_another_backend():
    llvm, cuda = backends.namespace("llvm"), backends.namespace("cuda")
    with pytest.raises(TypeError, match=r"p is a drjit.llvm.*Float, but the input lives on the CUDA"):
        cn.dropout(cuda.Float(1), llvm.Float(0.1), cn.Key(1))


def schedule_net(ns, backend, p, activation="relu", bits=16):
    half = backend == "cuda"
    net = cn.MLP(8, 3, width=8, depth=2, activation=activation, dropout=0.5)
    net = drnn.pack(net.alloc(ns.TensorXf16 if half else ns.TensorXf, rng=dr.rng(seed=1)), layout="training")
    set_p(net, p, bits)
    return net


def set_p(net, p, bits=16):
    for layer in children(net):
        if isinstance(layer, cn.Dropout):
            layer.p, layer.bits = p, bits


def train(net, x, key):
    """Outputs and the gradient of the sum of their squares."""
    dr.enable_grad(net["weights"])
    y = list(net(drnn.CoopVec(x), key))
    single = dr.float32_array_t(type(y[0]))
    dr.backward(sum(single(v) * single(v) for v in y))
    gradient = dr.grad(net["weights"])
    dr.disable_grad(net["weights"])
    return [dr.detach(v) for v in y], gradient


def engine_input(ns, backend, samples=64):
    leaf = ns.Float16 if backend == "cuda" else ns.Float
    x = [leaf(v) * dr.opaque(leaf, 1) for v in numbers(8, samples)]  # of Dr.Jit's own, which dr.freeze needs
    dr.make_opaque(x)
    return x


@pytest.mark.parametrize(
    "path, activation", [("spill", "relu"), ("spill", "sigmoid"), ("banks", "relu"), ("builtin", "tanh")]
)
def test_schedule_in_the_engine(backend, ns, path, activation):
    if backend == "cuda" and activation != "relu":
        pytest.skip("compiles long")
    x, p = engine_input(ns, backend, 1100), np.float32(0.3).item()
    results = []
    with cn.gradient_path(path):
        for value in (p, dr.opaque(ns.Float, p)):
            net = schedule_net(ns, backend, value, activation)
            results.append(train(net, x, cn.Key(4, step=1)))
    (y, g), (z, h) = results
    tolerance = 2e-2 if backend == "cuda" else 1e-5
    np.testing.assert_allclose(values(z), values(y), rtol=tolerance, atol=tolerance)
    size = float(dr.max(dr.abs(g))[0])
    assert size > 0
    np.testing.assert_allclose(h.numpy() / size, g.numpy() / size, rtol=0, atol=tolerance)


def compiled(run):
    with launched() as kernels:
        run()
    assert kernels
    return [k for k in kernels if not k["cache_hit"]]


@pytest.mark.parametrize("path", ["spill", "store", "banks"])
def test_new_values_compile_nothing(backend, ns, path):
    # Values that no earlier run of the tests has left a kernel on disk for.
    first, second = np.random.default_rng().uniform(0.2, 0.8, 2)
    x = engine_input(ns, backend)
    net = schedule_net(ns, backend, dr.opaque(ns.Float, 0.1), bits=32)

    def turn(p):
        set_p(net, p, 32)
        with cn.gradient_path(path):
            dr.eval(train(net, x, cn.Key(4)))

    turn(dr.opaque(ns.Float, 0.1))
    turn(dr.opaque(ns.Float, 0.2))
    assert not compiled(lambda: turn(dr.opaque(ns.Float, first)))
    assert compiled(lambda: turn(second))  # a number is part of the kernel


def test_new_values_compile_nothing_for_tensors(ns, blocks):
    first, second = np.random.default_rng().uniform(0.2, 0.8, 2)
    X = ns.TensorXf(numbers())
    dr.make_opaque(X)

    def turn(p):
        dr.eval(cn.dropout(X, p, cn.Key(4), bits=32))

    turn(dr.opaque(ns.Float, 0.1))
    assert not compiled(lambda: turn(dr.opaque(ns.Float, first)))
    assert compiled(lambda: turn(second))


def test_frozen_schedule(backend, ns):
    """As an argument of its own, and inside the network."""
    x = engine_input(ns, backend)
    net = schedule_net(ns, backend, 0.5)

    @dr.freeze
    def step(net, p, x, i):
        set_p(net, p)
        return train(net, x, cn.Key(4, step=i))

    @dr.freeze
    def infer(net, x, i):
        return list(net(drnn.CoopVec(x), cn.Key(4, step=i)))

    seen = []
    for i, p in enumerate((0.1, 0.6, 0.0, 0.35)):
        number = np.float32(p).item()
        y, g = step(net, dr.opaque(ns.Float, p), x, dr.opaque(ns.UInt32, i))
        set_p(net, dr.opaque(ns.Float, p))
        z = infer(net, x, dr.opaque(ns.UInt32, i))
        seen.append((number, i, values(y), g.numpy().copy(), values(z)))
    # the first call brings arrays in states that later ones do not
    assert step.n_recordings <= 2 and infer.n_recordings == 1
    tolerance = 2e-2 if backend == "cuda" else 1e-5
    for number, i, y, g, z in seen:
        set_p(net, number)
        expected, gradient = train(net, x, cn.Key(4, step=i))
        np.testing.assert_allclose(y, values(expected), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(z, values(expected), rtol=tolerance, atol=tolerance)
        size = float(dr.max(dr.abs(gradient))[0])
        np.testing.assert_allclose(g / size, gradient.numpy() / size, rtol=0, atol=tolerance)


def test_schedule_of_a_layer(backend, ns, tmp_path):
    layer = cn.Dropout(0.5)
    layer.p = dr.opaque(ns.Float, 0.25)
    assert layer.active() and float(layer.p[0]) == 0.25
    layer.p = 0.0
    assert not layer.active() and layer.p == 0
    with pytest.raises(ValueError, match=r"Dropout: p is 1\.5"):
        layer.p = 1.5
    p = dr.opaque(ns.Float, 0.25)
    net = cn.MLP(2, 1, width=8, depth=1, dropout=p)
    assert isinstance(net.layers[2], cn.Dropout)
    field = cn.NeuralField(None, net).build(backend)
    assert [k for k in field] == ["network.weights"]  # p is no parameter
    x = [ns.Float(v) for v in numbers(2)]
    before = values(field(x, cn.Key(3)))
    cn.save(tmp_path / "f.safetensors", field)
    loaded = cn.load(tmp_path / "f.safetensors", backend=backend)
    assert loaded.network.layers[2].p == 0.25
    np.testing.assert_allclose(values(loaded(x, cn.Key(3))), before, rtol=1e-5)


def test_schedule_has_no_gradient(ns):
    p = ns.Float(0.3)
    dr.enable_grad(p)
    y = cn.dropout(ns.Float(1) + dr.zeros(ns.Float, 100), p, cn.Key(1))
    assert not dr.grad_enabled(y)


# ---- DropPath and GaussianDropout --------------------------------------------------------------------------

LAYERS = [(cn.DropPath, ref.drop_path), (cn.GaussianDropout, ref.gaussian_dropout)]


def tolerance(dtype):
    return {np.float16: 2e-3, np.float32: 3e-6, np.float64: 3e-6}[dtype]


@pytest.mark.parametrize("kind, dtype", [
    *((kind, np.float32) for kind in KINDS), ("coopvec", np.float16), ("tensor", np.float16), ("tensor", np.float64),
])  # fmt: skip
@pytest.mark.parametrize("layer, twin", LAYERS)
def test_layers_are_their_law(backend, ns, layer, twin, kind, dtype, blocks):
    # blocks hold the words that are drawn, whatever type the numbers have
    if kind not in kinds_for(backend) or ((kind, dtype) != ("tensor", np.float32) and blocks == "blocks"):
        pytest.skip("covered elsewhere")
    x = numbers(6).astype(dtype)  # noise takes a word each: a block, and a half
    given_ = make(ns, kind, x, dtype)
    for p in (0.3, dr.opaque(ns.Float, 0.3)):
        y = layer(p, stream=3)(given_, cn.Key(2**33 + 1, step=4))
        assert type(y) is type(given_)
        y = values(y)
        assert y.dtype == dtype
        expected = twin(x, 0.3 if isinstance(p, float) else np.float32(0.3).item(), 2**33 + 1, None, 4, 3)
        if layer is cn.DropPath:
            np.testing.assert_array_equal(y, expected)
        else:
            np.testing.assert_allclose(y, expected, rtol=tolerance(dtype), atol=4 * tolerance(dtype))


def test_whole_samples(ns):
    for bits in (8, 16, 32):
        y = cn.DropPath(0.4, bits, 2)(ns.ArrayXf(np.ones((5, 300))), cn.Key(1)).numpy()
        assert (y == y[:1]).all()
        np.testing.assert_array_equal(y[0] != 0, ref.keep_mask(1, 0.4, 1, np.arange(300), 0, 2, bits)[0])


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_noise_is_normal(ns, p):
    x = dr.ones(ns.TensorXf, (64, 4000))
    noise = cn.GaussianDropout(p)(x, cn.Key(1)).numpy().astype(np.float64)
    z = (noise - 1) / np.sqrt(p / (1 - p))
    count = np.sqrt(z.size)
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - moment) < 4 * np.sqrt(spread) / count
    # the distribution function at a few places
    for at, probability in ((-2, 0.0227501), (-0.5, 0.3085375), (1, 0.8413447), (3, 0.9986501)):
        assert abs((z < at).mean() - probability) < 4 * np.sqrt(probability * (1 - probability)) / count
    assert abs(np.corrcoef(z[:-1].ravel(), z[1:].ravel())[0, 1]) < 4 / count


def test_ends_of_the_noise(ns):
    """The words at either end give finite numbers, opposite in sign."""
    law = GaussianLaw(0.5).traced(ns.Float)
    words = np.array([0, 255, 256, 2**31 - 1, 2**31, 2**32 - 257, 2**32 - 256, 2**32 - 1], np.uint32)
    m = law.decide(ns.UInt32(words)).numpy() - 1
    np.testing.assert_allclose(m, GaussianLaw(0.5).traced(np.float64).decide(words) - 1, rtol=1e-6, atol=2e-7)
    assert m[0] == m[1] and m[-1] == m[-2] and 5.41 < m[-1] < 5.42
    np.testing.assert_allclose(m, -m[::-1], rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("p", [-0.5, 0.0, 0.25, 1.0, 1.5])
def test_rates_of_dr_jit_for_numpy_arrays(ns, p):
    """Clipped to below 1, as in kernels."""
    law = GaussianLaw(ns.Float(p))
    host, device = law.traced(np.float32), law.traced(ns.Float)
    inside = min(max(p, 0), 1 - 2**-24)
    assert host.sigma == pytest.approx(np.sqrt(inside / (1 - inside)))
    np.testing.assert_allclose(device.sigma.numpy(), host.sigma, rtol=1e-6)


@pytest.mark.parametrize("kind", TRACED)
@pytest.mark.parametrize("layer, twin", LAYERS)
def test_gradients_are_the_layer_of_the_gradient(backend, ns, layer, twin, kind, blocks):
    if kind not in kinds_for(backend) or (kind != "tensor" and blocks == "blocks"):
        pytest.skip("covered elsewhere")
    dy = numbers(6, seed=1)
    x = make(ns, kind, numbers(6))
    leaves = list(x) if kind == "coopvec" else x
    dr.enable_grad(leaves)
    y = layer(0.3, stream=1)(drnn.CoopVec(leaves) if kind == "coopvec" else leaves, cn.Key(6))
    dr.backward(weighted(y, dy, np.float32))
    np.testing.assert_allclose(values(dr.grad(leaves)), twin(dy, 0.3, 6, None, 0, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [cn.Dropout, cn.DropPath, cn.GaussianDropout])
def test_tangents_are_the_layer_of_the_tangents(backend, ns, layer):
    leaf, key = ns.Float16 if backend == "cuda" else ns.Float, cn.Key(6)
    x, dx = (drnn.CoopVec([leaf(v) for v in numbers(6, seed=seed)]) for seed in (0, 1))
    y, (dy,) = layer(0.3, stream=1).jvp(x, [dx], key)
    np.testing.assert_array_equal(values(y), values(layer(0.3, stream=1)(x, key)))
    np.testing.assert_array_equal(values(dy), values(layer(0.3, stream=1)(dx, key)))


@pytest.mark.parametrize("path", ["spill", "store", "banks", "builtin"])
def test_layers_in_the_engine(backend, ns, path):
    """Inside a chain, the gradient of each path is that of Dr.Jit's own differentiation."""
    half = backend == "cuda"
    net = cn.Sequential(
        cn.Linear(8, 6), cn.Residual(cn.Sequential(cn.Linear(6, 6), cn.ReLU(), cn.DropPath(0.3))),
        cn.Tanh(), cn.GaussianDropout(0.2), cn.Dropout(0.1), cn.Linear(6, 3),
    )  # fmt: skip
    net = drnn.pack(net.alloc(ns.TensorXf16 if half else ns.TensorXf, rng=dr.rng(seed=1)), layout="training")
    assert [layer.stream for layer in children(net) if isinstance(layer, cn.Dropout)] == [0, 1, 2]
    x = engine_input(ns, backend, 1100)
    with cn.gradient_path(path):
        y, g = train(net, x, cn.Key(4, step=1))
    size, close = float(dr.max(dr.abs(g))[0]), 2e-2 if half else 1e-4

    def loss(weights):
        net["weights"] = weights
        return sum(np.square(v.numpy().astype(np.float64)).sum() for v in net(drnn.CoopVec(x), cn.Key(4, step=1)))

    # along the gradient itself: central differences of the loss
    w = dr.copy(net["weights"])
    if half:
        with cn.gradient_path("builtin"):
            _, expected = train(net, x, cn.Key(4, step=1))
        np.testing.assert_allclose(g.numpy() / size, expected.numpy() / size, rtol=0, atol=close)
        return
    direction, h = g.numpy().astype(np.float64) / size, 1e-3
    base = w.numpy().astype(np.float64).copy()
    slope = (loss(type(w)(base + h * direction)) - loss(type(w)(base - h * direction))) / (2 * h)
    np.testing.assert_allclose((g.numpy() * direction).sum(), slope, rtol=2e-3)
    assert np.isfinite(values(y)).all()


def test_values_of_a_chain(ns):
    """Against the reference, layer by layer."""
    net = cn.Sequential(cn.DropPath(0.3), cn.GaussianDropout(0.2), cn.Dropout(0.1)).alloc(ns.TensorXf, 8)
    x = numbers(8)
    expected = ref.drop_path(x, 0.3, 5)
    expected = ref.gaussian_dropout(expected, 0.2, 5, stream=1)
    expected = ref.dropout(expected.astype(np.float32), 0.1, 5, stream=2)
    for kind in ("nested", "tensor"):
        y = net(make(ns, kind, x), cn.Key(5))
        np.testing.assert_allclose(values(y), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", [cn.DropPath, cn.GaussianDropout])
def test_layers_without_a_key_and_their_errors(ns, layer):
    x = ns.ArrayXf(np.ones((3, 4)))
    assert layer(0.5)(x) is x and layer(0.0)(x, cn.Key(1)) is x
    assert repr(layer(0.25, stream=2)).startswith(f"{layer.__name__}(p=0.25") and "stream=2" in repr(
        layer(0.5, stream=2)
    )
    name = layer.__name__
    for bad in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match=f"{name}: p is {bad}"):
            layer(bad)
    with pytest.raises(TypeError, match=f"{name}: p is 'a'"):
        layer("a")
    with pytest.raises(ValueError, match=f"{name}: stream is -1"):
        layer(stream=-1)
    with pytest.raises(TypeError, match="key is a int"):
        layer(0.5)(x, 3)
    with pytest.raises(TypeError, match="floating point"):
        layer(0.5)(ns.UInt32(1), cn.Key(1))
    with pytest.raises(ValueError, match=f"a {name} has no stream number"):
        cn.Sequential(layer(0.5))(x, cn.Key(1))


def test_checkpoints(backend, ns, tmp_path):
    net = cn.Sequential(cn.Linear(2, 8), cn.DropPath(0.2, 8), cn.GaussianDropout(0.1), cn.Linear(8, 1))
    field = cn.NeuralField(None, net).build(backend)
    cn.save(tmp_path / "f.safetensors", field)
    loaded = cn.load(tmp_path / "f.safetensors", backend=backend)
    assert repr(loaded.network.layers[1]) == "DropPath(p=0.2, bits=8, stream=0)"
    assert repr(loaded.network.layers[2]) == "GaussianDropout(p=0.1, stream=1)"
    x = [ns.Float(v) for v in numbers(2)]
    np.testing.assert_array_equal(values(loaded(x, cn.Key(3))), values(field(x, cn.Key(3))))
    loaded.network.layers[2].p = dr.opaque(ns.Float, 0.5)  # also in a packed network
    assert not np.allclose(values(loaded(x, cn.Key(3))), values(field(x, cn.Key(3))))


def test_quantized_probabilities_of_numbers_and_schedules_agree(ns):
    for p in (0.1, 0.3, 0.7):
        single = np.float32(p).item()
        for bits in (8, 16, 32):
            number, schedule = MaskLaw(single, bits), MaskLaw(ns.Float(p), bits)
            assert float(schedule.threshold(ns.Float)[0]) == number.threshold(ns.Float)
            for dtype in (np.float16, np.float32):
                leaf = leaf_of(ns, dtype)
                assert float(schedule.scale(leaf)[0]) == number.scale(leaf)


@pytest.mark.parametrize("kind", [cn.Dropout, cn.DropPath, cn.GaussianDropout])
def test_rates_that_are_literals_can_be_trained_with(backend, ns, kind):
    field = cn.NeuralField(None, cn.Sequential(cn.Linear(2, 8), kind(ns.Float(0.3)), cn.Linear(8, 1))).build(backend)

    def batch(key):
        x = cn.uniform(2, key, ns.Float, 64)
        return x, [x[0]]

    assert cn.fit(field, batch, 3, progress=False).steps == 3
    field.network.layers[1].p = ns.Float(0.1)
    assert cn.fit(field, batch, 3, progress=False).steps == 3
