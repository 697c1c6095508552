"""Layers and networks, their derivatives and their life inside Dr.Jit, against the NumPy reference."""

from __future__ import annotations

import itertools

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from drjit.opt import SGD, Adam
from support.arrays import all_close, arrays, close, contain, leaf_of, opened, precision, tensor_of, values, weighted
from support.networks import gradients, in_order, linears, matrices, randomize_biases
from support.properties import given, settings, st

import coopnet as cn
from coopnet import backend as backends
from coopnet import reference as ref
from coopnet.nn.tree import children

CUDA = "cuda" in backends.available()
few = settings(max_examples=4 if CUDA else 6)  # every shape is a kernel


def built(ns, backend, net, seed=1):
    """Network with weights, and its packed twin with gradients on."""
    dtype, _ = precision(backend)
    net = randomize_biases(net.alloc(tensor_of(ns, dtype), rng=dr.rng(seed)))
    packed = drnn.pack(net, layout="training")
    dr.enable_grad(packed["weights"])
    return net, packed


# ---- Activations and encodings -----------------------------------------------------------------------------

LAYER = {name: cn.nn.ACTIVATIONS[name]() for name in cn.nn.ACTIVATIONS}
CONTAINERS = ["coopvec", "tensor", "nested", "list", "tuple", "single"]


def points(rows, samples, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, samples)) * 3
    x[abs(x) < 0.05] = 0.5  # away from kinks
    return x.astype(np.float32)


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("name", LAYER)
def test_activations(ns, backend, name, kind):
    """Value, gradient and tangent in one container."""
    f, df = ref.ACTIVATIONS[name]
    x, dy = points(1 if kind == "single" else 3, 50), points(3, 50, seed=1)
    dy = dy[: len(x)]
    leaves = arrays(ns, x)
    dr.enable_grad(leaves)
    given_ = contain(ns, kind, leaves)
    y = LAYER[name](given_)
    assert type(y) is type(given_)
    ys = opened(kind, y)
    tolerance = 2e-5 if backend == "cuda" else 2e-6  # GPUs approximate exponentials in hardware
    dr.backward(weighted(ys, dy), flags=dr.ADFlag.ClearInterior)
    dr.eval(ys, dr.grad(leaves))
    close(values(ys), f(x), tolerance)
    close(values(dr.grad(leaves)), dy * df(x), tolerance)
    dr.clear_grad(leaves)
    ys = opened(kind, LAYER[name](contain(ns, kind, leaves)))
    dr.set_grad(leaves, [ns.Float(d) for d in dy])
    close(values(dr.forward_to(ys)), dy * df(x), tolerance)


@pytest.mark.parametrize("kind", ["coopvec", "nested", "network", "symbolic"])
@pytest.mark.parametrize("name", LAYER)
def test_activations_at_zero_and_far_out(backend, ns, name, kind):
    """Zero is no rare value: it is what dropout leaves behind. All ways to differentiate agree there."""
    if backend == "cuda" and kind in ("network", "symbolic") and name not in ("relu", "softplus"):
        pytest.skip("a kernel each, and networks are differentiated like single layers")
    f, df = ref.ACTIVATIONS[name]
    dtype, tolerance = precision(backend) if kind in ("network", "symbolic") else (np.float32, 2e-5)
    far = (3 if name == "exp" else 30) if dtype == np.float16 else 80 if name == "exp" else 30
    x = np.array([[-far, -1, 0, 1, far]], np.float32)
    dy = np.array([[1, 2, 1, -1, 1]])
    leaves = arrays(ns, x, dtype)
    dr.enable_grad(leaves)
    layer = LAYER[name]
    if kind in ("network", "symbolic"):
        one = cn.Sequential(cn.Linear(1, 1, bias=False)).alloc(tensor_of(ns, dtype))
        columns = one["layers.0.weights"].shape[1]  # on CUDA, one of zeros pads a single one
        one["layers.0.weights"] = tensor_of(ns, dtype)(leaf_of(ns, dtype)([1, 0][:columns]), (1, columns))
        one = drnn.pack(one, layout="training")
        dr.enable_grad(one["weights"])
        layer = cn.Sequential(one, layer)
    if kind == "symbolic":
        lane = dr.arange(ns.UInt32, 5)
        y = dr.if_stmt((leaves,), lane < 9, lambda x: list(layer(drnn.CoopVec(x))), lambda x: x, mode="symbolic")
    else:
        y = list(layer(contain(ns, "nested" if kind == "nested" else "coopvec", leaves)))
    np.testing.assert_allclose(values(y), f(x), rtol=tolerance, atol=tolerance)
    dr.backward(weighted(y, dy))
    np.testing.assert_allclose(values(dr.grad(leaves)), dy * df(x), rtol=tolerance, atol=2 * tolerance)


def test_parameters_of_activations(ns):
    x = points(2, 40)
    parts = arrays(ns, x)
    for kind in ("coopvec", "nested"):
        y = opened(kind, cn.LeakyReLU(0.2)(contain(ns, kind, parts)))
        close(values(y), np.where(x > 0, x, 0.2 * x), 1e-6)
        close(values(opened(kind, cn.Sine(3)(contain(ns, kind, parts)))), np.sin(3 * x.astype(np.float64)), 2e-6)
    for layer, name in (
        (cn.LeakyReLU, "negative_slope"), (cn.Sine, "omega"), (cn.Softplus, "beta"), (cn.Squareplus, "beta")
    ):  # fmt: skip
        for bad in (float("nan"), "1", None, True, float("inf")):
            with pytest.raises(ValueError, match=f"{layer.__name__}: {name} is {bad!r}; a finite number"):
                layer(bad)


@pytest.mark.parametrize("shift", [0.0, 0.3])
@pytest.mark.parametrize("kind", CONTAINERS[:-1])
@pytest.mark.parametrize("layer", [cn.Sinusoidal, cn.Triangular])
def test_encodings(ns, layer, kind, shift):
    name = layer.__name__.lower()
    rng = np.random.default_rng(1)
    x, dy = rng.random((2, 60)).astype(np.float32), rng.normal(size=(16, 60)).astype(np.float32)
    leaves = arrays(ns, x)
    dr.enable_grad(leaves)
    y = layer(4, shift)(contain(ns, kind, leaves))
    ys = opened(kind, y)
    assert isinstance(y, list if kind == "tuple" else type(contain(ns, kind, leaves)))
    dr.backward(weighted(ys, dy))
    dr.eval(ys, dr.grad(leaves))
    close(values(ys), getattr(ref, name)(x, 4, shift), 2e-5)
    close(values(dr.grad(leaves)), getattr(ref, name + "_vjp")(x, dy, 4, shift), 1e-4)
    assert layer(4).width(2) == 16


def test_errors_of_activations_and_encodings(ns):
    layers = [*LAYER.values(), cn.Sinusoidal(2), cn.HashGrid(2, n_levels=1).alloc(ns.TensorXf)]
    for layer in layers:
        name = type(layer).__name__
        for x, error, message in [
            (np.ones((2, 3)), TypeError, "got a NumPy array"),
            (ns.Int(1), TypeError, "a floating point type is needed"),
            (ns.TensorXf([1.0]), ValueError, "2 dimensions"),
            ([], ValueError, "empty list"),
            (1.0, TypeError, "got builtins.float"),
        ]:
            with pytest.raises(error, match=f"^{name}: .*{message}"):
                layer(x)
    with pytest.raises(ValueError, match=r"Sinusoidal: the input has 3 features, but the encoding takes 2"):
        cn.Sinusoidal(2, in_features=2)(ns.Array3f(1))
    for bad in (0, -1, 1.5, True, None):
        with pytest.raises(ValueError, match=f"Triangular: octaves is {bad!r}"):
            cn.Triangular(bad)
    with pytest.raises(ValueError, match="Sinusoidal: in_features is 0"):
        cn.Sinusoidal(2, in_features=0)


# ---- Hash grid ---------------------------------------------------------------------------------------------

GRID = dict(n_levels=3, n_features_per_level=2, hashmap_size=2**8, base_resolution=4, per_level_scale=1.9)


def make_grid(ns, dimension=2, seed=5):
    layer = cn.HashGrid(dimension, **GRID).alloc(ns.TensorXf)
    scales = [level.scale for level in layer.grid.value.levels]
    params = np.random.default_rng(seed).normal(size=dr.width(layer["data"])).astype(np.float32)
    layer["data"] = ns.Float(params)
    dr.enable_grad(layer["data"])
    return layer, params, GRID | {"level_scales": scales}


@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("kind", CONTAINERS[:-1])
def test_hash_grid(ns, kind, dimension):
    layer, params, options = make_grid(ns, dimension)
    rng = np.random.default_rng(6)
    x, dy = rng.random((dimension, 200)).astype(np.float32), rng.normal(size=(6, 200)).astype(np.float32)
    leaves = arrays(ns, x)
    dr.enable_grad(leaves)
    ys = opened(kind, layer(contain(ns, kind, leaves)))
    close(values(ys), ref.hash_grid(x, params, **options), 1e-5)
    dr.backward(weighted(ys, dy))
    dx, dparams = ref.hash_grid_vjp(x, params, dy, **options)
    close(layer["data"].grad.numpy(), dparams, 1e-4)
    inside = np.ones(200, bool)  # a sample at a cell's edge may be in the other cell
    for scale in options["level_scales"]:
        t = x.astype(np.float64) * scale + 0.5
        inside &= (abs(t - np.round(t)) > 1e-4).all(axis=0)
    assert inside.mean() > 0.9
    close(values(dr.grad(leaves))[:, inside], dx[:, inside], 1e-4)


def test_hash_grid_forward_mode(ns):
    """Linear in its parameters: the tangent is the grid of the tangent."""
    layer, _, options = make_grid(ns)
    x = np.random.default_rng(7).random((2, 100)).astype(np.float32)
    tangent = np.random.default_rng(8).normal(size=dr.width(layer["data"])).astype(np.float32)
    y = layer(arrays(ns, x))
    dr.set_grad(layer["data"], ns.Float(tangent))
    close(values(dr.forward_to(y)), ref.hash_grid(x, tangent, **options), 1e-5)
    np.testing.assert_array_equal(values(layer(arrays(ns, x))), values(y))  # and is not left in the parameters' place


def test_hash_grid_forward_mode_in_both(ns):
    """Tangents of the parameters and of the coordinates add up."""
    layer, _, _ = make_grid(ns)
    x = arrays(ns, np.random.default_rng(7).random((2, 20)))
    dr.enable_grad(x)
    rng = np.random.default_rng(8)
    dx, dparams = arrays(ns, rng.normal(size=(2, 20))), ns.Float(rng.normal(size=dr.width(layer["data"])))

    def tangent(of_x, of_params):
        y = layer(x)
        dr.set_grad(x, [v * of_x for v in dx])
        dr.set_grad(layer["data"], dparams * of_params)
        return values(dr.forward_to(y))

    only_params, both = tangent(0, 1), tangent(1, 1)
    dr.disable_grad(layer["data"])  # what follows is Dr.Jit's own
    y = layer(x)
    dr.set_grad(x, dx)
    only_x = values(dr.forward_to(y))
    assert np.abs(only_x).max() > 1 and np.abs(only_params).max() > 1
    close(both, only_x + only_params, 1e-5)


@pytest.mark.parametrize("dimension", [2, 3])
def test_hash_grid_gradient_of_one_sample(ns, dimension):
    layer, params, options = make_grid(ns, dimension)
    x, dy = np.full((dimension, 1), 0.3, np.float32), np.arange(1, 7, dtype=np.float32)[:, None] * 1e-6
    dr.backward(weighted(layer(arrays(ns, x)), dy))
    close(layer["data"].grad.numpy(), ref.hash_grid_vjp(x, params, dy, **options)[1], 1e-5)


def test_hash_grid_gradient_is_reproducible(backend, ns):
    layer, _, _ = make_grid(ns)
    x = np.random.default_rng(9).random((2, 50_000)).astype(np.float32)
    dy = np.random.default_rng(10).normal(size=(6, 50_000)).astype(np.float32)
    runs = []
    for _ in range(5):
        dr.clear_grad(layer["data"])
        with cn.deterministic(backend == "cuda"):
            dr.backward(weighted(layer(arrays(ns, x)), dy))
        runs.append(layer["data"].grad.numpy().tobytes())
    assert len(set(runs)) == 1


def test_hash_grid_gradient_shows_overflow(ns):
    """A NaN must reach the loss scaler."""
    layer, _, _ = make_grid(ns)
    y = layer(arrays(ns, [[0.2, 0.7], [0.1, 0.3]]))
    dr.backward(y[0] * ns.Float([1, np.nan]))
    assert np.isnan(layer["data"].grad.numpy()).any()


# ---- Linear layers and networks ----------------------------------------------------------------------------


def evaluate(ns, net, packed, x, kind, key, dtype):
    """(inputs, outputs) of a network on a CoopVec or tensor, with gradients on."""
    leaves = arrays(ns, x, dtype)
    dr.enable_grad(leaves)
    if kind == "coopvec":
        return leaves, list(packed(drnn.CoopVec(leaves), key))
    tensor = tensor_of(ns, dtype)
    nested = ns.ArrayXf16 if dtype == np.float16 else ns.ArrayXf
    y = net(tensor(nested(leaves)), key)
    return leaves, [y[i].array for i in range(y.shape[0])]


def check_network(ns, backend, kind, shape, samples, activation, output, bias, p, seed=0):
    """Outputs and all gradients of an MLP against the reference."""
    n_in, width, depth, n_out = shape
    dtype, tolerance = precision(backend) if kind == "coopvec" else (np.float32, 2e-5)
    net = cn.MLP(n_in, n_out, width, depth, activation, output, p, bias)
    net = randomize_biases(net.alloc(tensor_of(ns, dtype), rng=dr.rng(seed)))
    weights, biases = matrices(net)
    packed = None
    if kind == "coopvec":
        packed = drnn.pack(net, layout="training")
        dr.enable_grad(packed["weights"])
    else:
        dr.enable_grad([v for m in linears(net) for v in (m.weights, m.bias) if v is not None])
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_in, samples)).astype(dtype)
    dy = rng.normal(size=(n_out, samples)) / samples
    key, drop = (cn.Key(seed + 3, step=4), ref.MLPDropout(p, 16, seed + 3, None, 4)) if p else (None, None)
    y, dx, dweights, dbiases = ref.mlp_vjp(weights, x, dy, activation, output, biases, drop, dtype)
    leaves, ys = evaluate(ns, net, packed, x, kind, key, dtype)
    dr.schedule(ys)  # in one kernel with the way back
    dr.backward(weighted(ys, dy))
    close(values(ys), y, tolerance)
    close(values(dr.grad(leaves)), dx, 4 * tolerance)
    found = gradients(net if packed is None else packed)
    all_close(in_order(*found), in_order(dweights, dbiases if bias else biases), 4 * tolerance)


@few
@given(
    n_in=st.integers(1, 20),
    n_out=st.integers(1, 20),
    width=st.integers(1, 20),
    depth=st.integers(0, 3),
    samples=st.sampled_from([1, 2, 17, 1000]),
    activation=st.sampled_from(["leaky_relu", "tanh", "sigmoid", "softplus", "squareplus", "gelu", "silu", "sine"]),
    bias=st.booleans(),
    p=st.sampled_from([0, 0.3]),
    seed=st.integers(0, 1000),
)
@pytest.mark.parametrize("kind", ["coopvec", "tensor"])
def test_network_of_any_shape(ns, backend, kind, n_in, n_out, width, depth, samples, activation, bias, p, seed):
    """Smooth activations only: near a kink, single and double precision may disagree on the side."""
    check_network(ns, backend, kind, (n_in, width, depth, n_out), samples, activation, None, bias, p, seed)


def test_other_names_of_activations():
    swish = cn.MLP(2, 1, activation="swish")
    assert repr(swish) == repr(cn.MLP(2, 1, activation="silu"))  # which is what checkpoints say
    with pytest.raises(ValueError, match=r"MLP: activation is 'swishy'; accepted are .*'swish'"):
        cn.MLP(2, 1, activation="swishy")


@pytest.mark.parametrize("kind", ["coopvec", "tensor"])
@pytest.mark.parametrize("p", [0, 0.2])
@pytest.mark.parametrize("activation", sorted(ref.ACTIVATIONS))
def test_network_with_each_activation(ns, backend, kind, activation, p):
    """With dropout and without: the two may be differentiated differently."""
    if backend == "cuda" and activation == "exp":
        pytest.skip("towers of exponentials overflow half precision")
    if p == 0 and activation not in ("relu", "sine"):
        pytest.skip("the adjoint without dropout is shown by two of them, and engine/test_cotangents.py has them all")
    check_network(ns, backend, kind, (3, 8, 1, 2), 100, activation, None, True, p, 1)


@pytest.mark.parametrize("path", ["spill", "store", "banks", "builtin"])
def test_every_path_of_gradients(ns, backend, path):
    with cn.gradient_path(path):
        check_network(ns, backend, "coopvec", (5, 16, 2, 3), 100, "relu", "sigmoid", True, 0.25, 2)


@pytest.mark.parametrize("samples", [1, 2, 17, 1000])
@pytest.mark.parametrize("bias", [False, True])
def test_relu_network(ns, backend, bias, samples):
    check_network(ns, backend, "coopvec", (5, 16, 2, 3), samples, "relu", "sigmoid", bias, 0.25, 2)


def test_linear(ns):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 20)).astype(np.float32)
    for bias in (False, True):
        layer = randomize_biases(cn.Linear(3, 4, bias).alloc(ns.TensorXf))
        (W,), (b,) = matrices(layer)
        y = layer(ns.TensorXf(x))
        close(y.numpy(), ref.linear(W, x, b), 1e-6)
        assert abs(W).max() <= ref.uniform_bound("xavier_uniform", 3, 4) and (b is None) == (not bias)
    wide = cn.Linear(100, 60).alloc(ns.TensorXf).weights.numpy()
    assert wide.std() == pytest.approx(np.sqrt(2 / 160), rel=0.05)
    assert cn.Linear(-1, -1).alloc(ns.TensorXf, 7).weights.shape == (7, 7)


def test_initial_weights_of_a_network(ns):
    """All layers, a single one too, start as Linear does with the gain that the activation asks for."""
    for depth in (0, 1):
        net = cn.MLP(40, 30, width=50, depth=depth, init="xavier_normal").alloc(ns.TensorXf)
        for layer in net.layers[::2]:
            n, m = layer.config[:2]
            assert layer.weights.numpy().std() == pytest.approx(np.sqrt(2 / (n + m)), rel=0.1)
    net = cn.MLP(40, 30, width=50, depth=0, zero_last=True).alloc(ns.TensorXf)
    assert not net.layers[0].weights.numpy().any()


LAWS = {  # bound of a uniform law or deviation of a normal one, for 48 features in and 150 out
    "xavier_uniform": ("uniform", np.sqrt(6 / 198)),
    "xavier_normal": ("normal", np.sqrt(2 / 198)),
    "kaiming_uniform": ("uniform", np.sqrt(6 / 48)),
    "kaiming_normal": ("normal", np.sqrt(2 / 48)),
    "siren": ("uniform", np.sqrt(6 / 48)),
    "siren_first": ("uniform", 1 / 48),
    "zero": ("uniform", 0),
}


@pytest.mark.parametrize("gain", [1.0, 0.25])
@pytest.mark.parametrize("init", LAWS)
def test_laws_of_initial_weights(ns, init, gain):
    """7200 weights: their moments, and of uniform ones the largest."""
    law, width = LAWS[init]
    weights = cn.Linear(48, 150, init=init, gain=gain).alloc(ns.TensorXf).weights.numpy().ravel() / gain
    assert abs(weights.mean()) <= 0.05 * width
    if law == "normal":
        assert weights.std() == pytest.approx(width, rel=0.04)
        assert (weights**4).mean() == pytest.approx(3 * width**4, rel=0.2)
    else:
        assert weights.std() == pytest.approx(width / np.sqrt(3), rel=0.04)
        assert 0.999 * width <= abs(weights).max() <= 1.00001 * width


def test_identical_seeds_give_identical_weights(ns):
    def net(seed):
        return matrices(cn.MLP(3, 2).alloc(ns.TensorXf, rng=dr.rng(seed)))[0]

    assert all(np.array_equal(a, b) for a, b in zip(net(4), net(4), strict=True))
    assert not np.array_equal(net(4)[0], net(5)[0])


def test_errors_of_layers(ns, backend):
    dtype, _ = precision(backend)
    Tensor = tensor_of(ns, dtype)
    x = drnn.CoopVec(arrays(ns, np.ones((2, 5)), dtype))
    mlp = cn.MLP(2, 3, width=4, depth=1)
    allocated = mlp.alloc(Tensor)
    packed = drnn.pack(allocated, layout="training")
    other = ns.Float if dtype == np.float16 else ns.Float16
    for run, error, message in [
        (lambda: mlp(x), RuntimeError, r"nn.Linear: uninitialized network"),
        (lambda: mlp(x), ValueError, r"nn.Linear: uninitialized network. Call 'net = net.alloc"),
        (lambda: mlp(dr.ones(Tensor, (2, 1))), RuntimeError, "nn.Linear: uninitialized network"),
        (lambda: allocated(x), TypeError, r"nn.Linear: cooperative-vector .* requires packed weights. .*pack"),
        (lambda: packed(dr.ones(Tensor, (2, 5))), TypeError, "nn.Linear: tensor-mode evaluation requires unpacked"),
        (lambda: packed([other(1), other(2)]), TypeError, "Linear: got Dr.Jit arrays; accepted are"),
        (lambda: packed(drnn.CoopVec(other(1), other(2))), TypeError, "Linear: the input is Float.* weights are Float"),
        (lambda: packed(drnn.CoopVec(list(x)[:1])), ValueError, "the input has 1 features, but the layer takes 2"),
        (lambda: allocated(dr.ones(Tensor, (3, 5))), ValueError, "the input has 3 features, but the layer takes 2"),
        (lambda: packed(x, key=7), TypeError, "Sequential: key is a int; a coopnet.Key or None"),
        (lambda: cn.Linear(-1, 3).alloc(Tensor), RuntimeError, "Linear: in_features is -1 and the size .* unknown"),
        (lambda: cn.Linear(2, 3).alloc(Tensor, 5), ValueError, "Linear: in_features is 2, but .* has 5 features"),
        (lambda: cn.Linear(2, 3).alloc(Tensor, 1), ValueError, "Linear: in_features is 2, but .* has 1 features"),
        (lambda: cn.Linear(2, 0), ValueError, "Linear: out_features is 0; a positive int"),
        (lambda: cn.Linear(2.0, 1), ValueError, "Linear: in_features is 2.0"),
        (lambda: cn.Linear(2, 3).alloc(Tensor, 0), ValueError, "Linear.alloc: size is 0"),
        (lambda: cn.Linear(2, 3).alloc(Tensor, -2), ValueError, "Linear.alloc: size is -2"),
        (lambda: cn.Linear(-1, 3).alloc(Tensor, 2.0), ValueError, "Linear.alloc: size is 2.0"),
        (lambda: cn.Linear(-1, 3).alloc(Tensor, True), ValueError, "Linear.alloc: size is True"),
        (
            lambda: cn.Linear(2, 3).alloc(ns.Float),
            TypeError,
            "Linear.alloc: dtype is .*requires a Tensor type",
        ),
        (lambda: cn.Linear(2, 3).alloc(ns.TensorXi), TypeError, "Linear.alloc: dtype is .*TensorXi; a floating"),
        (lambda: cn.Linear(2, 3).alloc("float"), TypeError, "Linear.alloc: dtype is 'float'"),
        (lambda: cn.Sequential(cn.Linear(2, 3), cn.Linear(4, 5)).alloc(Tensor), ValueError, "is 4, but .* 3 features"),
        (lambda: cn.Sequential(cn.Linear(2, 3), "relu"), TypeError, "Sequential: layer 1 is a str; a Module"),
        (lambda: cn.Sequential(prefix=3), TypeError, "Sequential: prefix is 3; a string"),
        (lambda: cn.Sequential(cn.Dropout(0.5))(x, cn.Key(1)), ValueError, "Sequential: a Dropout has no stream"),
        (
            lambda: cn.MLP(2, 3, activation="swish", output_activation="mish"),
            ValueError,
            "MLP: output_activation is 'mish'",
        ),
        (lambda: cn.MLP(2, 3, activation="swishy"), ValueError, "MLP: activation is 'swishy'; accepted are .*relu"),
        (
            lambda: cn.MLP(2, 3, activation=cn.ReLU),
            ValueError,
            r"MLP: activation is the class ReLU; pass a layer, ReLU\(\)",
        ),
        (lambda: cn.MLP(2, 3, dropout=1), ValueError, r"MLP: dropout is 1; a drop probability in \[0, 1\)"),
        (lambda: cn.MLP(2, 3, dropout=float("nan")), ValueError, "MLP: dropout is nan"),
        (lambda: cn.MLP(2, 3, width=0), ValueError, "MLP: width is 0; an int of at least 1"),
        (lambda: cn.MLP(2, 3, depth=-1), ValueError, "MLP: depth is -1; an int of at least 0"),
        (lambda: cn.HashGrid(2, n_levels=0), ValueError, "HashGrid: n_levels is 0; a positive int"),
        (lambda: cn.HashGrid(2, hashmap_size=9), ValueError, "HashGrid: hashmap_size is 9; a multiple"),
        (lambda: cn.HashGrid(n_features_per_level=10**400), ValueError, "^HashGrid: .{,300}$"),
        (lambda: cn.HashGrid(2, per_level_scale=-0.5), ValueError, "HashGrid: per_level_scale is -0.5"),
        (lambda: cn.HashGrid(2)([ns.Float(1), ns.Float(2)]), ValueError, "HashGrid: the layer has no parameters yet"),
    ]:
        with pytest.raises(error, match=message):
            run()


def test_new_value_of_the_wrong_shape(ns):
    net = cn.MLP(2, 3, width=4, depth=1).alloc(ns.TensorXf)
    with pytest.raises(ValueError, match=r"parameter 'layers.0.weights' has shape \(4, 2\), but .* shape \(2, 4\)"):
        net["layers.0.weights"] = dr.zeros(ns.TensorXf, (2, 4))
    with pytest.raises(ValueError, match=r"parameter 'layers.0.weights' has shape \(4, 2\), but .* shape \(1, 1\)"):
        net["layers.0.weights"] = np.ones((1, 1), np.float32).view(np.matrix)  # whose rows have rows
    assert "layers.0.weights" in net and "layers.1.weights" not in net and len(net) == 2


# ---- Containers --------------------------------------------------------------------------------------------


def mixed_network():
    return cn.Sequential(
        drnn.Linear(2, 8),
        drnn.ReLU(),
        cn.Dropout(0.3),
        drnn.Sequential(cn.Linear(-1, 8), cn.Tanh(), cn.Dropout(0.2)),
        cn.Sequential(drnn.Linear(-1, 8, bias=False), drnn.LeakyReLU(), cn.Sequential(cn.Dropout(0.1))),
        cn.Linear(-1, 2),
    )


@pytest.mark.parametrize("kind", ["coopvec", "tensor"])
def test_layers_of_drjit_and_nested_containers(ns, backend, kind):
    dtype, tolerance = precision(backend) if kind == "coopvec" else (np.float32, 2e-5)
    net = randomize_biases(mixed_network().alloc(tensor_of(ns, dtype), rng=dr.rng(2)))
    (W0, W1, W2, W3), (b0, b1, _, b3) = matrices(net)
    packed = drnn.pack(net, layout="training") if kind == "coopvec" else None
    x = np.random.default_rng(3).normal(size=(2, 64)).astype(dtype)
    key = cn.Key(7, step=1)

    def drop(h, p, stream):
        s = float(dtype(ref.scale(p)))
        return np.where(ref.keep_mask(len(h), p, 7, np.arange(64), 1, stream), h * s, 0)

    act = {name: f for name, (f, _) in ref.ACTIVATIONS.items()}
    for keyed in (False, True):
        d = drop if keyed else lambda h, p, stream: h
        h = d(act["relu"](ref.linear(W0, x, b0)), 0.3, 0)
        h = d(act["tanh"](ref.linear(W1, h, b1)), 0.2, 1)
        h = d(act["leaky_relu"](ref.linear(W2, h)), 0.1, 2)
        _, ys = evaluate(ns, net, packed, x, kind, key if keyed else None, dtype)
        close(values(ys), ref.linear(W3, h, b3), 2 * tolerance)


def test_streams_are_numbered_around_given_ones(ns):
    drops = [cn.Dropout(0.1), cn.Dropout(0.1, stream=1), cn.Dropout(0.1), cn.Dropout(0.1, stream=7), cn.Dropout(0.1)]
    net = cn.Sequential(*drops[:2], drnn.Sequential(drops[2], cn.Sequential(drops[3])), drops[4])
    net = net.alloc(ns.TensorXf, 3)
    assert [m.stream for m in children(net) if isinstance(m, cn.Dropout)] == [0, 1, 2, 7, 3]
    assert drops[0].stream is None  # the original is untouched
    again = net.alloc(ns.TensorXf, 3)
    assert [m.stream for m in children(again) if isinstance(m, cn.Dropout)] == [0, 1, 2, 7, 3]


def test_packing_keeps_every_layer(ns, backend):
    dtype, tolerance = precision(backend)
    grid = cn.HashGrid(2, **GRID)
    net = cn.Sequential(grid, cn.Linear(-1, 8), *LAYER.values(), cn.Dropout(0.3, 8), cn.Linear(-1, 4), cn.Sinusoidal(2))
    net = cn.Sequential(net, cn.Triangular(1), cn.Linear(-1, 3, bias=False))
    net = net.alloc(tensor_of(ns, dtype), 2)
    packed = drnn.pack(net, layout="training")
    assert [type(m) for m in children(packed)] == [type(m) for m in children(net)]
    drop = next(m for m in children(packed) if isinstance(m, cn.Dropout))
    assert (drop.p, drop.bits, drop.stream) == (0.3, 8, 0)
    data = [k for k in packed if k.endswith("data")]
    assert len(data) == 1 and len(packed) == 2
    np.testing.assert_array_equal(packed[data[0]].numpy(), net[data[0]].numpy())
    if backend == "llvm":
        x = np.random.default_rng(3).random((2, 20)).astype(np.float32)
        a = packed(drnn.CoopVec(arrays(ns, x)), cn.Key(1))
        b = net(ns.TensorXf(x), cn.Key(1))
        close(values(list(a)), b.numpy(), 100 * tolerance)


@pytest.mark.parametrize("packing", [False, True])
def test_optimizer_pulls_and_pushes(ns, backend, packing):
    dtype, _ = precision(backend) if packing else (np.float32, 0)
    net = cn.Sequential(cn.HashGrid(2, **GRID), cn.MLP(-1, 2, width=8, depth=1, bias=True))
    net = net.alloc(tensor_of(ns, dtype), 2)
    if packing:
        net = drnn.pack(net, layout="training")
    opt = Adam(lr=1e-2, params=net)
    assert set(opt.keys()) == set(net.keys())
    x = arrays(ns, np.random.default_rng(0).random((2, 50)), dtype)
    nested = ns.ArrayXf16 if dtype == np.float16 else ns.ArrayXf
    before = {k: net[k].numpy() for k in net}
    for _ in range(2):
        net.update(opt)
        y = net(drnn.CoopVec(x)) if packing else net(tensor_of(ns, dtype)(nested(x)))
        ys = list(y) if packing else [y[i].array for i in range(2)]
        dr.backward(weighted(ys, np.ones((2, 50)) / 50))
        opt.step()
    net.update(opt)
    for k in net:
        assert not np.array_equal(before[k], net[k].numpy()), k
        np.testing.assert_array_equal(net[k].numpy(), opt[k].numpy())
    other = Adam(lr=1e-2)
    other.update(net)
    assert set(other.keys()) == set(net.keys())


@pytest.mark.parametrize(
    "make", [lambda p: cn.Sequential(cn.Linear(2, 2), prefix=p), lambda p: cn.Embedding(2, 2, prefix=p)]
)
def test_prefixes_are_plain_strings(ns, make):
    class Odd(str):
        __str__ = __format__ = None

    assert all(name.startswith("a") for name in make(Odd("a")).alloc(ns.TensorXf))


def test_prefix_tells_networks_apart(ns):
    a, b = (cn.Sequential(cn.Linear(2, 2), prefix=p).alloc(ns.TensorXf) for p in "ab")
    opt = SGD(lr=1, params=a)
    opt.update(b)
    assert sorted(opt.keys()) == sorted(f"{p}.layers.0.{v}" for p, v in itertools.product("ab", ["weights", "bias"]))
    a.update(opt)


# ---- Gradients of weights ----------------------------------------------------------------------------------

SHAPE = dict(in_features=3, out_features=2, width=8, depth=2, activation="tanh", dropout=0.2, bias=True)
KEY = cn.Key(5, step=2)


def reference_gradients(net, x, dy, dtype, steps=(2,)):
    """Gradients (dx, [dW0, db0, ...]) of a network of SHAPE, summed over steps."""
    weights, biases = matrices(net)
    total = None
    for step in steps:
        drop = ref.MLPDropout(0.2, 16, 5, None, step)
        _, dx, dW, db = ref.mlp_vjp(weights, x, dy, "tanh", None, biases, drop, dtype)
        flat = [dx, *in_order(dW, db)]
        total = flat if total is None else [a + b for a, b in zip(total, flat, strict=True)]
    return total[0], total[1:]


@pytest.fixture
def case(ns, backend):
    dtype, tolerance = precision(backend)
    net, packed = built(ns, backend, cn.MLP(**SHAPE))
    rng = np.random.default_rng(4)
    x, dy = rng.normal(size=(3, 120)).astype(dtype), rng.normal(size=(2, 120)) / 120
    dx, grads = reference_gradients(net, x, dy, dtype)

    class Case:
        def check(self, grads, factor=1):
            """Are the gradients of the weights ``grads``, so many times?"""
            all_close(in_order(*gradients(self.packed)), [factor * g for g in grads], self.tolerance)

    c = Case()
    c.dtype, c.tolerance, c.net, c.packed = dtype, 8 * tolerance, net, packed
    c.x, c.dy, c.dx, c.grads = x, dy, dx, grads
    c.leaves = arrays(ns, x, dtype)
    return c


def test_two_backward_calls_accumulate(case):
    for turn in (1, 2):
        dr.backward(weighted(list(case.packed(drnn.CoopVec(case.leaves), KEY)), case.dy))
        case.check(case.grads, turn)


def test_two_calls_in_one_expression(case):
    a = list(case.packed(drnn.CoopVec(case.leaves), KEY))
    b = list(case.packed(drnn.CoopVec(case.leaves), KEY))
    dr.backward(weighted([u + 2 * v for u, v in zip(a, b, strict=True)], case.dy))
    case.check(case.grads, 3)


def test_evaluation_between_forward_and_backward(case):
    dr.enable_grad(case.leaves)
    y = list(case.packed(drnn.CoopVec(case.leaves), KEY))
    dr.eval(y)
    dr.backward(weighted(y, case.dy))
    case.check(case.grads)
    close(values(dr.grad(case.leaves)), case.dx, case.tolerance)


def test_detached_weights_still_pass_gradients_to_the_input(case):
    weights = case.packed["weights"]
    dr.enable_grad(case.leaves)
    with dr.suspend_grad(weights):
        y = list(case.packed(drnn.CoopVec(case.leaves), KEY))
    dr.disable_grad(weights)
    y = list(case.packed(drnn.CoopVec(case.leaves), KEY))
    dr.backward(weighted(y, case.dy))
    close(values(dr.grad(case.leaves)), case.dx, case.tolerance)
    assert not dr.grad_enabled(weights)


def test_suspended_gradients(case):
    dr.enable_grad(case.leaves)
    with dr.suspend_grad():
        y = list(case.packed(drnn.CoopVec(case.leaves), KEY))
    assert not dr.grad_enabled(y)


def test_forward_mode_through_the_weights(ns, case):
    tangent = np.random.default_rng(6).normal(size=dr.width(case.packed["weights"])).astype(case.dtype)
    y = list(case.packed(drnn.CoopVec(case.leaves), KEY))
    dr.set_grad(case.packed["weights"], type(case.packed["weights"])(tangent))
    t = values(dr.forward_to(y))
    # the same number by the adjoint: <dy, J v> = <J^T dy, v>
    dr.set_grad(case.packed["weights"], type(case.packed["weights"])(tangent))
    moved = in_order(*gradients(case.packed))
    expected = sum(np.sum(g * v) for g, v in zip(case.grads, moved, strict=True))
    scale = sum(np.sum(abs(g * v)) for g, v in zip(case.grads, moved, strict=True))
    assert np.sum(case.dy * t) == pytest.approx(expected, abs=case.tolerance * scale)


def test_forward_mode_through_the_input(ns, case):
    tangent = np.random.default_rng(7).normal(size=case.x.shape).astype(case.dtype)
    dr.enable_grad(case.leaves)
    y = list(case.packed(drnn.CoopVec(case.leaves), KEY))
    dr.set_grad(case.leaves, arrays(ns, tangent, case.dtype))
    t = values(dr.forward_to(y))
    products = case.dx * tangent  # each sample on its own
    expected = products.sum(axis=0)
    np.testing.assert_allclose((case.dy * t).sum(axis=0), expected, rtol=0, atol=case.tolerance * abs(products).max())


def test_one_layer_used_twice(ns, backend):
    dtype, tolerance = precision(backend)
    net, packed = built(ns, backend, cn.Sequential(cn.Linear(4, 4)))
    (W,), (b,) = matrices(net)
    rng = np.random.default_rng(4)
    x, dy = rng.normal(size=(4, 50)).astype(dtype), rng.normal(size=(4, 50)) / 50
    twice = cn.Sequential(packed.layers[0], cn.Tanh(), packed.layers[0])
    y = list(twice(drnn.CoopVec(arrays(ns, x, dtype))))
    dr.backward(weighted(y, dy))
    expected, _, dW, db = ref.mlp_vjp([W, W], x, dy, "tanh", None, [b, b])
    close(values(y), expected, tolerance)
    all_close(in_order(*gradients(packed)), (dW[0] + dW[1], db[0] + db[1]), 8 * tolerance)


def test_input_shared_by_all_samples(ns, backend):
    """Many masks at one point: gradients of the point and the weights are sums over the masks."""
    dtype, tolerance = precision(backend)
    net, packed = built(ns, backend, cn.MLP(**SHAPE))
    x = np.array([[0.3], [-0.7], [1.1]], dtype)
    dy = np.random.default_rng(8).normal(size=(2, 40))
    leaves = arrays(ns, x, dtype)
    dr.enable_grad(leaves)
    y = list(packed(drnn.CoopVec(leaves), cn.Key(5, dr.arange(ns.UInt32, 40), 2)))
    dr.backward(weighted(y, dy))
    dx, grads = reference_gradients(net, np.repeat(x, 40, axis=1), dy, dtype)
    close(values(dr.grad(leaves)), dx.sum(axis=1, keepdims=True), 8 * tolerance)
    all_close(in_order(*gradients(packed)), grads, 8 * tolerance)


def test_gradients_are_reproducible(backend, ns):
    """On CUDA only where it is asked for."""
    dtype, _ = precision(backend)
    _, packed = built(ns, backend, cn.MLP(**SHAPE))
    rng = np.random.default_rng(4)
    x, dy = rng.normal(size=(3, 40_000)), rng.normal(size=(2, 40_000)) / 40_000
    runs = set()
    for _ in range(5):
        with cn.deterministic(backend == "cuda"):
            dr.backward(weighted(list(packed(drnn.CoopVec(arrays(ns, x, dtype)), KEY)), dy))
        runs.add(dr.grad(packed["weights"]).numpy().tobytes())
        dr.clear_grad(packed["weights"])
    assert len(runs) == 1


# ---- Loops and calls ---------------------------------------------------------------------------------------
# Inputs with gradients are loop state: Dr.Jit 1.5 loses the gradient of a CoopVec made of captured variables.

modes = pytest.mark.parametrize("mode", ["symbolic", "evaluated"])


@modes
def test_loop(ns, case, mode):
    leaf = leaf_of(ns, case.dtype)
    dr.enable_grad(case.leaves)

    def turn(i, total, x):
        y = case.packed(drnn.CoopVec(x), cn.Key(5, step=i))
        return i + 1, [t + v for t, v in zip(total, y, strict=True)], x

    state = (ns.UInt32(0), [dr.zeros(leaf, 120) for _ in range(2)], case.leaves)
    _, total, _ = dr.while_loop(state, lambda i, t, x: i < 3, turn, mode=mode, max_iterations=-1)
    dr.backward(weighted(total, case.dy))
    dx, grads = reference_gradients(case.net, case.x, case.dy, case.dtype, range(3))
    close(values(dr.grad(case.leaves)), dx, 2 * case.tolerance)
    all_close(in_order(*gradients(case.packed)), grads, 2 * case.tolerance)


@pytest.mark.parametrize("symbolic", [True, False])
def test_switch(ns, backend, case, symbolic):
    """Even lanes use the network with one step, odd ones with another."""
    dr.enable_grad(case.leaves)
    lane = dr.arange(ns.UInt32, 120)

    def call(step):
        return lambda x, i: list(case.packed(drnn.CoopVec(x), cn.Key(5, i, step)))

    with dr.scoped_set_flag(dr.JitFlag.SymbolicCalls, symbolic):
        y = dr.switch(lane % 2, [call(2), call(3)], case.leaves, lane)
        dr.backward(weighted(y, case.dy))
    odd = np.arange(120) % 2
    parts = [reference_gradients(case.net, case.x, case.dy * (odd == k), case.dtype, [2 + k]) for k in (0, 1)]
    close(values(dr.grad(case.leaves)), parts[0][0] + parts[1][0], case.tolerance)
    case.check([a + b for a, b in zip(parts[0][1], parts[1][1], strict=True)])


@modes
def test_conditional(ns, case, mode):
    dr.enable_grad(case.leaves)
    even = dr.arange(ns.UInt32, 120) % 2 == 0
    y = dr.if_stmt(
        (case.leaves,),
        even,
        lambda x: list(case.packed(drnn.CoopVec(x), KEY)),
        lambda x: [x[0] * 2, x[1] * 3],
        mode=mode,
    )
    dr.backward(weighted(y, case.dy))
    keep = np.arange(120) % 2 == 0
    dx, grads = reference_gradients(case.net, case.x, case.dy * keep, case.dtype)
    dx = dx + np.where(keep, 0, np.stack([case.dy[0] * 2, case.dy[1] * 3, case.dy[0] * 0]))
    close(values(dr.grad(case.leaves)), dx, case.tolerance)
    case.check(grads)


@modes
@pytest.mark.parametrize("name", sorted(LAYER))
def test_activations_in_a_loop(backend, ns, name, mode):
    if backend == "cuda" and name not in ("relu", "sine"):
        pytest.skip("one kernel each, the same operations as outside loops")
    x, dy = points(2, 30, 3), points(2, 30, 4)
    leaves = arrays(ns, x)
    dr.enable_grad(leaves)

    def turn(i, total, x):
        return i + 1, [t + v for t, v in zip(total, LAYER[name](drnn.CoopVec(x)), strict=True)], x

    state = (ns.UInt32(0), [dr.zeros(ns.Float, 30)] * 2, leaves)
    total = dr.while_loop(state, lambda i, t, x: i < 2, turn, mode=mode, max_iterations=-1)[1]
    dr.backward(weighted(total, dy))
    close(values(dr.grad(leaves)), 2 * dy * ref.ACTIVATIONS[name][1](x), 1e-5)


# ---- Frozen training ---------------------------------------------------------------------------------------


def train(ns, backend, frozen, batches):
    """Weights after a training step per batch size."""
    dtype, _ = precision(backend)
    tensor = tensor_of(ns, dtype)
    net = cn.Sequential(cn.Sinusoidal(2), cn.MLP(-1, 1, width=8, depth=1, dropout=0.1))
    net = drnn.pack(net.alloc(tensor, 2, dr.rng(3)), layout="training")
    opt = Adam(lr=1e-2, params=net)
    dr.make_opaque(opt.state)

    def step(net, opt, key, x, target):
        net.update(opt)
        (y,) = list(net(drnn.CoopVec(x), key))
        dr.backward(dr.mean(dr.square(ns.Float(y) - target)))
        opt.step(eval=False)
        dr.eval(opt.state)

    run = dr.freeze(step) if frozen else step
    for i, n in enumerate(batches):
        x = arrays(ns, np.random.default_rng(i).random((2, n)), dtype)
        target = arrays(ns, np.random.default_rng(i).random((1, n)))[0]
        # memory of Dr.Jit's own: that of NumPy has this or that alignment, and Dr.Jit records anew for each
        x, target = [v + 1e-3 for v in x], target + 1e-3
        dr.eval(x, target)
        key = cn.Key(dr.opaque(ns.UInt64, 4), step=dr.opaque(ns.UInt32, i))
        run(net, opt, key, x, target)
    net.update(opt)
    return net["weights"].numpy(), run.n_recordings if frozen else 0


def test_frozen_training_step(ns, backend):
    batches = [64] * 4 + [100, 64, 100, 33]
    expected, _ = train(ns, backend, False, batches)
    found, recordings = train(ns, backend, True, batches)
    close(found, expected, 2e-2 if backend == "cuda" else 2e-6)
    assert recordings < len(batches)
    assert not np.array_equal(found, train(ns, backend, True, batches[:-1])[0])


def test_a_layer_without_parameters_is_true():
    """As is a mapping only if it has entries: ``encoding or default`` must not replace one that is not allocated."""
    for layer in (cn.ReLU(), cn.HashGrid(2), cn.MLP(2, 1), cn.NeuralField(None, cn.MLP(2, 1))):
        assert not len(layer) and layer


def test_gelu_far_out(ns):
    """Where powers of x overflow half precision, value and derivative are those of the straight lines."""
    for leaf in (ns.Float16, ns.Float):
        x = leaf([-6e4, -300, 300, 6e4])
        dr.make_opaque(x)
        y, (slope,) = cn.GELU().jvp(drnn.CoopVec([x]), [drnn.CoopVec([leaf(1)])])
        np.testing.assert_array_equal(next(iter(y)).numpy(), [0, 0, *x.numpy()[2:]])
        np.testing.assert_array_equal(next(iter(slope)).numpy(), [0, 0, 1, 1])


def test_siren_has_three_hidden_layers():
    assert [type(layer).__name__ for layer in cn.SIREN(2, 1).layers] == ["Linear", "Sine"] * 3 + ["Linear"]


def test_seeds_of_64_bits(ns):
    """Of Fourier features: both words of the seed count, and none is shifted into the other."""
    point = [ns.Float(0.3), ns.Float(0.7)]
    layers = [cn.Fourier(4, in_features=2, seed=s).alloc(ns.TensorXf, 2) for s in (1, 2**31, 2**32, 3 << 31)]
    assert len({layer(point)[0].numpy()[0] for layer in layers}) == 4
