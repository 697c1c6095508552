"""Residual and skip connections, heads on a trunk, and initial weights, against the NumPy reference."""

from __future__ import annotations

import json
import math

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import all_close, arrays, close, leaf_of, precision, tensor_of, values, weighted
from support.networks import gradients, in_order, linears, matrices, randomize_biases

import coopnet as cn
from coopnet import io
from coopnet import reference as ref
from coopnet.engine.memory import bytes_per_sample
from coopnet.engine.row_vectors import columns
from coopnet.nn.sequential import stated_width

TANH, SINE = ref.ACTIVATIONS["tanh"][0], ref.ACTIVATIONS["sine"][0]
KEY = cn.Key(7, step=3)


def network():
    """All containers in one chain of 3 -> 6 -> 6 -> 10 -> 5 -> (1, 2) features, with three dropouts."""
    block = cn.Sequential(cn.Tanh(), cn.Linear(6, 6, bias=False), cn.Dropout(0.3))
    return cn.Sequential(
        cn.Linear(3, 6),
        cn.Residual(block),
        cn.Skip(cn.MLP(6, 4, width=5, depth=1, activation="tanh", dropout=0.25)),
        cn.Heads(
            cn.Sequential(cn.Linear(-1, 5, bias=False), cn.Sine()),
            {"a": cn.Linear(-1, 1), "b": cn.Sequential(cn.Residual(cn.Tanh()), cn.Dropout(0.5), cn.Linear(-1, 2))},
        ),
    )


def twin(p, key, dtype):
    """The function that :func:`network` is, with the parameters ``p``, from the reference."""

    def drop(rate, stream):
        def run(x):
            if key is None:
                return x
            mask = ref.keep_mask(len(x), rate, 7, np.arange(x.shape[1]), 3, stream)
            return np.where(mask, x * float(np.dtype(dtype).type(ref.scale(rate))), 0)

        return run

    first = lambda x: ref.linear(p[0], x, p[1])  # noqa: E731
    block = ref.sequential(TANH, lambda x: ref.linear(p[2], x), drop(0.3, 0))
    mlp = ref.sequential(lambda x: ref.linear(p[3], x), TANH, drop(0.25, 1), lambda x: ref.linear(p[4], x))
    trunk = ref.sequential(lambda x: ref.linear(p[5], x), SINE)
    a = lambda x: ref.linear(p[6], x, p[7])  # noqa: E731
    b = ref.sequential(ref.residual(TANH), drop(0.5, 2), lambda x: ref.linear(p[8], x, p[9]))
    return ref.sequential(first, ref.residual(block), ref.skip(mlp), ref.heads(trunk, a, b))


def slopes(f, values, dy):
    """Gradient of the sum of dy times f() with respect to the array ``values``, which f reads, by differences."""
    gradient, step = np.zeros_like(values), 1e-5
    for i in np.ndindex(values.shape):
        kept = values[i]
        values[i] = kept + step
        above = (dy * f()).sum()
        values[i] = kept - step
        gradient[i] = (above - (dy * f()).sum()) / (2 * step)
        values[i] = kept
    return gradient


@pytest.fixture(scope="module")
def case(ns, backend):
    """A network, its packed twin, an input, a gradient of the output, and what the reference says to that."""

    class Case:
        dtype, tolerance = precision(backend)
        net = randomize_biases(network().alloc(tensor_of(ns, dtype), rng=dr.rng(2)))

    rng = np.random.default_rng(0)
    Case.packed = drnn.pack(Case.net, layout="training")
    Case.tolerance *= 1.5
    Case.x, Case.dy = rng.normal(size=(3, 40)).astype(Case.dtype).astype(np.float64), rng.normal(size=(3, 40))
    Case.dy = Case.dy.astype(Case.dtype).astype(np.float64)
    Case.p = in_order(*matrices(Case.net))
    Case.expected = {}
    for key in (None, KEY):
        f = lambda key=key: twin(Case.p, key, Case.dtype)(Case.x)  # noqa: E731
        Case.expected[key] = f(), slopes(f, Case.x, Case.dy), [slopes(f, p, Case.dy) for p in Case.p]
    return Case


def run(case, ns, backend, key, path):
    xs = arrays(ns, case.x, case.dtype)
    dr.enable_grad(xs, case.packed["weights"])
    with cn.gradient_path(path):
        y = list(case.packed(drnn.CoopVec(xs), key))
        dr.backward(weighted(y, case.dy))
    result = values(y), values(dr.grad(xs)), in_order(*gradients(case.packed))
    dr.clear_grad(case.packed["weights"])
    return result


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "dropout"])
@pytest.mark.parametrize("path", ["spill", "store", "banks", "builtin"])
def test_cooperative_vectors(case, ns, backend, path, key):
    if backend == "cuda" and (path == "builtin" or key is None):
        pytest.skip("a slow kernel each")
    got, expected = run(case, ns, backend, key, path), case.expected[key]
    close(got[0], expected[0], case.tolerance)
    close(got[1], expected[1], case.tolerance)
    all_close(got[2], expected[2], case.tolerance)


def test_in_chunks(case, ns, backend, set_limits):
    """What is spilled for bodies counts when a batch is cut into chunks."""
    set_limits(KEPT_BYTES=1, PIECE_SAMPLES=16)
    got, expected = run(case, ns, backend, KEY, "spill"), case.expected[KEY]
    close(got[1], expected[1], case.tolerance)
    all_close(got[2], expected[2], case.tolerance)


def test_the_whole_is_one_network(case):
    ops = cn.nn.sequential.known_ops([case.packed])
    widths = [columns(m.weights.shape[0], 4) for m in linears(case.packed)]
    widths += [columns(m.weights.shape[1] + (m.bias is not None), 4) for m in linears(case.packed)]
    assert bytes_per_sample(ops, 4) == 4 * sum(widths)
    assert [type(op).__name__ for op in ops] == [
        "Affine",
        "Branching",
        "Branching",
        "Affine",
        "Nonlinearity",
        "Branching",
    ]


def test_tensors(case, ns, backend):
    dtype = tensor_of(ns, case.dtype)
    x = dtype(case.x.astype(case.dtype))
    dr.enable_grad(x)
    y = case.net(x, KEY)
    close(y.numpy(), case.expected[KEY][0], case.tolerance)
    dr.backward(y * dtype(case.dy.astype(case.dtype)))
    close(dr.grad(x).numpy(), case.expected[KEY][1], case.tolerance)
    parts = case.net.layers[-1].split(y)
    assert {k: v.shape for k, v in parts.items()} == {"a": (1, 40), "b": (2, 40)}


def test_forward_derivative(case, ns, backend):
    if backend == "cuda":
        pytest.skip("the same code, a slow kernel")
    xs = arrays(ns, case.x, case.dtype)
    dr.enable_grad(xs, case.packed["weights"])
    y = list(case.packed(drnn.CoopVec(xs), KEY))
    dr.set_grad(xs, [ns.Float(v) for v in case.x.astype(np.float32)])
    tangent = values(dr.forward_to(y))
    f, step = twin(case.p, KEY, case.dtype), 1e-5
    close(tangent, (f(case.x * (1 + step)) - f(case.x * (1 - step))) / (2 * step), 1e-4)
    dr.clear_grad(case.packed["weights"])


@pytest.mark.parametrize(
    ("mode", "path"), [("symbolic", "builtin"), ("symbolic", "banks"), ("evaluated", "spill")], ids="-".join
)
def test_in_a_loop(case, ns, backend, mode, path):
    if backend == "cuda" and path != "banks":
        pytest.skip("a slow kernel each")
    leaf = leaf_of(ns, case.dtype)
    xs = arrays(ns, case.x, case.dtype)
    dr.enable_grad(xs, case.packed["weights"])

    def turn(i, total, xs):
        y = case.packed(drnn.CoopVec([v * 1 for v in xs]), KEY)
        return i + 1, [t + v for t, v in zip(total, y, strict=True)], xs

    with cn.gradient_path(path):
        state = ns.UInt32(0), [dr.zeros(leaf, 40)] * 3, xs
        total = dr.while_loop(state, lambda i, t, x: i < 2, turn, mode=mode, max_iterations=-1)[1]
        dr.backward(weighted(total, case.dy))
    expected = case.expected[KEY]
    close(values(total), 2 * expected[0], case.tolerance)
    close(values(dr.grad(xs)), 2 * expected[1], case.tolerance)
    all_close(in_order(*gradients(case.packed)), [2 * e for e in expected[2]], case.tolerance)
    dr.clear_grad(case.packed["weights"])


@pytest.mark.parametrize("kind", ["coopvec", "tensor", "nested", "list", "tuple"])
def test_every_container_holds_every_input(ns, kind):
    """Bodies without matrices, among them one that the engine does not know."""
    x = np.random.default_rng(1).random((2, 9)).astype(np.float32)
    parts = [ns.Float(v) for v in x]
    given = {
        "coopvec": drnn.CoopVec, "nested": ns.ArrayXf, "list": list, "tuple": tuple,
        "tensor": lambda p: ns.TensorXf(ns.ArrayXf(p)),
    }[kind](parts)  # fmt: skip
    encode = lambda v: ref.sinusoidal(v, 1)  # noqa: E731
    cases = [
        (cn.Residual(cn.Sine()), ref.residual(SINE)),
        (cn.Skip(cn.Sinusoidal(1)), ref.skip(encode)),
        (
            cn.Residual(cn.Sequential(cn.Sine(), cn.Residual(cn.Tanh()))),
            ref.residual(lambda v: SINE(v) + TANH(SINE(v))),
        ),
        (cn.Heads(cn.Sine(), {"s": cn.Sinusoidal(1), "t": cn.Tanh()}), ref.heads(SINE, encode, TANH)),
    ]
    for layer, f in cases:
        y = layer(given)
        rows = [y[i].array for i in range(y.shape[0])] if kind == "tensor" else list(y)
        # an encoding returns a list for a tuple, and so may a container of one
        assert isinstance(y, type(given)) or kind == "tuple"
        close(values(rows), f(x.astype(np.float64)), 1e-5)


def test_fields_and_their_heads(ns, backend, tmp_path):
    if backend == "cuda":
        pytest.skip("the same code, a slow kernel")
    body = cn.Sequential(cn.Residual(cn.MLP(8, 8, width=8, depth=1, dropout=0.2)), cn.ReLU())
    net = cn.Heads(
        cn.Sequential(cn.Linear(-1, 8, init="kaiming_normal"), body, cn.Skip(cn.Squareplus(10))),
        {"density": cn.Sequential(cn.Linear(-1, 1), cn.Softplus(10)), "color": cn.MLP(-1, 3, 8, 1, "gelu", "sigmoid")},
    )
    field = cn.NeuralField(cn.Sinusoidal(2, in_features=2), net).build(backend, seed=4)
    p = ns.Array2f(ns.Float(np.linspace(0, 1, 50)), ns.Float(np.linspace(1, 0, 50) ** 2))
    y = field(p, KEY)
    parts = field.network.split(y)
    assert list(parts) == ["density", "color"] and len(parts["density"]) == 1 and len(parts["color"]) == 3
    np.testing.assert_array_equal(np.concatenate([parts["density"].numpy(), parts["color"].numpy()]), y.numpy())
    path = tmp_path / "field.safetensors"
    io.save(path, field)
    again = io.load(path, backend)
    np.testing.assert_array_equal(again(p, KEY).numpy(), y.numpy())
    assert np.abs(again(p).numpy() - y.numpy()).max() > 0  # there was a dropout in it
    assert io.describe(again) == io.describe(field)
    json.dumps(io.describe(field))
    assert repr(again.network) == repr(field.network)
    assert set(again.network.split(again(p))) == set(parts)
    fresh = io.construct(io.describe(field)).build(backend, seed=4)
    np.testing.assert_array_equal(fresh(p, KEY).numpy(), y.numpy())  # the initialization was described, too
    assert again.network.trunk is not None and list(again.network.heads) == ["density", "color"]


def test_inputs_state_their_width(ns, backend):
    body = cn.MLP(4, 4, width=8, depth=1)
    heads = {"a": cn.Linear(4, 1), "b": cn.Linear(-1, 2)}
    for net in (
        cn.Residual(body),
        cn.Skip(cn.Sequential(cn.Tanh(), body)),
        cn.Heads(None, heads),
        cn.Heads(body, heads),
    ):
        assert cn.NeuralField(None, net).build(backend).in_features == 4


def test_widths_that_layers_state():
    """That of the first which is no activation or dropout; -1 is none."""
    for layers, width in [
        ([cn.Linear(5, 2)], 5), ([cn.ReLU(), cn.Dropout(), cn.Sequential(cn.Linear(4, 2))], 4),
        ([drnn.Linear(3, 2)], 3), ([cn.Linear(-1, 2)], -1), ([cn.ReLU()], -1), ([], -1),
        ([drnn.Cast(), cn.Linear(5, 2)], -1), ([cn.OneBlob(2, in_features=7)], 7), ([cn.Frequency()], -1),
    ]:  # fmt: skip
        assert stated_width(layers) == width
    assert cn.Skip(cn.Sequential(cn.ReLU(), cn.Linear(5, 2))).in_features == 5
    assert cn.Skip(drnn.Cast()).in_features == cn.Residual().in_features == -1


def test_gelu_is_near_the_exact_one(ns):
    x = np.linspace(-6, 6, 2001)
    exact = x * np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])
    assert np.abs(cn.GELU()(ns.Float(x.astype(np.float32))).numpy() - exact).max() < 5e-4


def test_training(ns, backend):
    net = cn.Sequential(cn.Linear(-1, 16), cn.Residual(cn.Sequential(cn.GELU(), cn.Linear(16, 16))), cn.Linear(16, 1))
    field = cn.NeuralField(cn.Sinusoidal(2, in_features=1), net).build(backend)

    def batch(key):
        (x,) = cn.uniform(1, key, ns.Float, 256)
        return [x], [dr.sin(5 * x)]

    result = cn.fit(field, batch, 60, lr=1e-2, progress=False)
    assert result.recordings <= 2 and np.mean(result.losses[-5:]) < 0.1 * result.losses[0]


def test_old_checkpoints_lack_later_arguments():
    field = cn.NeuralField(None, cn.Sequential(cn.Linear(2, 2), cn.Softplus()))
    description = io.describe(field)
    layers = description["network"]["layers"]
    assert layers[0].pop("init") == "xavier_uniform" and layers[0].pop("gain") == layers[1].pop("beta") == 1
    assert io.describe(io.construct(description)) == io.describe(field)


def test_errors(ns):
    with pytest.raises(ValueError, match=r"Residual: body maps 6 features to 4, .* give the last layer out_features=6"):
        cn.Residual(cn.Linear(6, 4)).alloc(ns.TensorXf)
    with pytest.raises(ValueError, match="Skip: the size of the input is unknown"):
        cn.Skip(cn.Tanh()).alloc(ns.TensorXf)
    for layer in (cn.Residual, cn.Skip):
        with pytest.raises(TypeError, match=f"{layer.__name__}: body is a int; a Module"):
            layer(3)
        with pytest.raises(ValueError, match=f"{layer.__name__}: there is no body"):
            layer().alloc(ns.TensorXf, 2)
    for arguments, error, message in [
        ((3,), TypeError, "trunk is a int"),
        ((None, [cn.Tanh()]), TypeError, "heads is a list; a mapping"),
        ((None, {"a": None}), TypeError, r"heads\['a'\] is None"),
        ((None, {"a": 1}), TypeError, r"heads\['a'\] is a int"),
        ((None, {"": cn.Tanh()}), ValueError, "the name ''"),
        ((None, {1: cn.Tanh()}), ValueError, "the name 1"),
    ]:
        with pytest.raises(error, match="Heads: .*" + message):
            cn.Heads(*arguments)
    with pytest.raises(ValueError, match="Heads: there are no heads"):
        cn.Heads(cn.Linear(2, 2)).alloc(ns.TensorXf)
    heads = cn.Heads(None, {"a": cn.Linear(2, 1)})
    with pytest.raises(ValueError, match=r"Heads\.split: the network is not allocated"):
        heads.split([ns.Float(1)])
    with pytest.raises(ValueError, match=r"Heads\.split: y has 2 features, but the heads have 1"):
        heads.alloc(ns.TensorXf).split([ns.Float(1), ns.Float(2)])
    for layer in (cn.Residual(cn.Sine()), cn.Skip(cn.Sine()), heads):
        with pytest.raises(TypeError, match="NumPy"):
            layer(np.ones((2, 3)))
    packed = drnn.pack(
        cn.Residual(cn.Sequential(cn.Linear(2, 2), cn.Dropout())).alloc(ns.TensorXf16), layout="training"
    )
    with pytest.raises(ValueError, match="the input has 3 features, but the layer takes 2"):
        packed(drnn.CoopVec([ns.Float16(1)] * 3))
    with pytest.raises(TypeError, match="key is a int"):
        packed(drnn.CoopVec([ns.Float16(1)] * 2), 3)
    packed.body.layers[1].stream = None
    with pytest.raises(ValueError, match="a Dropout has no stream number yet"):
        packed(drnn.CoopVec([ns.Float16(1)] * 2), KEY)


# ---- Initial weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", cn.nn.linear.INITS)
def test_initial_weights(ns, init):
    n, m = 90, 110
    weights = cn.Linear(n, m, init=init, gain=2).alloc(ns.TensorXf, rng=dr.rng(1)).weights.numpy()
    deviation = 2 * ref.initial_deviation(init, n, m)
    assert weights.shape == (m, n) and abs(weights.mean()) <= 5 * deviation / 99
    assert weights.std() == pytest.approx(deviation, rel=0.03)
    largest = np.abs(weights).max()
    if init.endswith("normal"):
        assert 3.2 * deviation < largest < 6 * deviation
    else:
        assert largest <= deviation * np.sqrt(3) * (1 + 1e-6)
    assert not cn.Linear(n, m, init=init).alloc(ns.TensorXf).bias.numpy().any()


def test_the_default_is_what_it_was(ns):
    u = dr.rng(3).random(ns.Float, 12).numpy()
    bound = ref.uniform_bound("xavier_uniform", 4, 3)
    weights = cn.Linear(4, 3).alloc(ns.TensorXf, rng=dr.rng(3)).weights.numpy()
    np.testing.assert_allclose(weights.ravel(), bound * (2 * u - 1), atol=1e-6)


def test_initialization_of_mlps(ns):
    net = cn.MLP(40, 30, 50, 2, cn.Sine(30), init="siren").alloc(ns.TensorXf)
    first, second, last = (m.weights.numpy() for m in linears(net))
    for w, bound in ((first, 1 / 40), (second, np.sqrt(6 / 50) / 30), (last, np.sqrt(6 / 50) / 30)):
        assert 0.97 * bound < np.abs(w).max() <= bound * (1 + 1e-6)
    gains = {
        ("siren", cn.Sine(30)): 1 / 30, ("siren", cn.Sine(0)): 1, ("siren", cn.ReLU()): 1, ("siren", None): 1,
        ("kaiming_normal", cn.Sine(30)): 1, ("kaiming_normal", cn.ReLU()): 1,
    }  # fmt: skip
    for (init, activation), gain in gains.items():
        layers = linears(cn.MLP(3, 2, 8, 2, activation, init=init))
        assert [m.gain for m in layers] == [1, gain, gain]
        first = "siren_first" if init == "siren" else init
        assert [m.init for m in layers] == [first, init, init]
    net = cn.MLP(3, 2, 8, 1, bias=True, zero_last=True).alloc(ns.TensorXf)
    first, last = linears(net)
    assert first.weights.numpy().any() and not last.weights.numpy().any()
    for bad in ("xavier", None, 1):
        with pytest.raises(ValueError, match=r"MLP: init is .*; accepted are .*kaiming_normal"):
            cn.MLP(2, 2, init=bad)
        with pytest.raises(ValueError, match="Linear: init is"):
            cn.Linear(2, 2, init=bad)
    for bad in (float("nan"), "1", True):
        with pytest.raises(ValueError, match="Linear: gain is"):
            cn.Linear(2, 2, gain=bad)
    assert repr(cn.Linear(2, 3, init="zero", gain=2)) == "Linear(in_features=2, out_features=3, init='zero', gain=2.0)"


@pytest.mark.parametrize("beta", [0.5, 10.0])
@pytest.mark.parametrize("layer", [cn.Softplus, cn.Squareplus])
def test_sharpness(ns, backend, layer, beta):
    """tiny-cuda-nn's Softplus and Squareplus are these with beta = 10."""
    f, df = ref.ACTIVATIONS[layer.__name__.lower()]
    x = np.random.default_rng(0).normal(size=(1, 60)) * 3
    for kind in (drnn.CoopVec, list):
        xs = [ns.Float(v.astype(np.float32)) for v in x]
        dr.enable_grad(xs)
        y = list(layer(beta)(kind(xs)))
        # GPUs approximate exponentials and logarithms in hardware
        np.testing.assert_allclose(values(y), f(beta * x) / beta, rtol=1e-4, atol=1e-5 if backend == "cuda" else 1e-6)
        dr.backward(y[0])
        np.testing.assert_allclose(values(dr.grad(xs)), df(beta * x), rtol=1e-4, atol=1e-5)
    if backend == "llvm":  # the adjoint of networks, with and without dropout behind it
        net = drnn.pack(cn.Sequential(cn.Linear(1, 1, bias=False), layer(beta), cn.Dropout(0.5)).alloc(ns.TensorXf))
        w = net["weights"].numpy()[0]
        for key in (None, KEY):
            xs = [ns.Float(v.astype(np.float32)) for v in x]
            dr.enable_grad(xs, net["weights"])
            y = list(net(drnn.CoopVec(xs), key))
            dr.backward(y[0])
            dr.eval(y, dr.grad(xs))
            keep = 1.0 if key is None else 2 * ref.keep_mask(1, 0.5, 7, np.arange(60), 3, 0)
            np.testing.assert_allclose(values(y), keep * f(beta * w * x) / beta, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(values(dr.grad(xs)), keep * w * df(beta * w * x), rtol=1e-3, atol=1e-5)
    for bad in (0, -1.0):
        with pytest.raises(ValueError, match=f"{layer.__name__}: beta is {bad}; a positive number"):
            layer(bad)
