"""Derivatives with respect to the input, and derivatives of those, against the float64 reference."""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support import arrays
from support.arrays import coordinates, differences, evaluated
from support.kernels import launched
from support.networks import gradients, matrices, ramp_biases

import coopnet as cn
from coopnet import reference as ref
from coopnet.engine import FUNCTIONS, Nonlinearity
from coopnet.nn.tree import children

GRID = dict(n_levels=3, hashmap_size=2**8, base_resolution=4, per_level_scale=1.9)
NAMES = ["relu", "leaky_relu", "tanh", "sigmoid", "softplus", "silu", "sine", "exp", "identity", "squareplus", "gelu"]
SMOOTH = ["tanh", "sigmoid", "softplus", "silu", "sine", "exp", "squareplus", "gelu"]
SAMPLES = 200


class Twin:
    """A field and its reference: values and Jacobians in float64, as functions of weights and coordinates."""

    def __init__(self, ns, backend, encoding=None, activation="tanh", outputs=1, dropout=0.0, width=5, depth=1):
        self.backend, self.encoding, self.activation = backend, encoding, activation
        make = {
            None: lambda: None,
            "sinusoidal": lambda: cn.Sinusoidal(2, shift=0.1, in_features=2),
            "triangular": lambda: cn.Triangular(2, in_features=2),
            "grid": lambda: cn.HashGrid(2, **GRID, init_scale=0.3),
        }[encoding]
        n_in = 2 if encoding is None else -1
        network = cn.MLP(n_in, outputs, width, depth, activation, dropout=dropout, bias=True)
        half = backend == "cuda"
        field = cn.NeuralField(make(), network).allocate(
            ns.TensorXf16 if half else ns.TensorXf, "half" if half else "single"
        )
        self.weights, self.biases = matrices(ramp_biases(field))
        self.grid = field.encoding.grid.value if encoding == "grid" else None
        self.table = self.grid.data.numpy().astype(np.float64) if self.grid else None
        self.drop = ref.MLPDropout(dropout, 16, 5, None, 2) if dropout else None
        self.key = cn.Key(5, step=2) if dropout else None
        self.dtype = np.float16 if half else np.float32
        self.field = field.pack()
        self.tolerance = 4e-2 if half else 5e-5

    def jvp(self, x, dx, weights=None, table=None):
        """(y, dy) in float64."""
        weights = self.weights if weights is None else weights
        if self.encoding == "grid":
            table = self.table if table is None else table
            options = GRID | {"level_scales": [level.scale for level in self.grid.levels]}
            x, dx = ref.hash_grid(x, table, **options), ref.hash_grid_jvp(x, table, dx, **options)
        elif self.encoding == "sinusoidal":
            x, dx = ref.sinusoidal(x, 2, 0.1), ref.sinusoidal_jvp(x, dx, 2, 0.1)
        elif self.encoding == "triangular":
            x, dx = ref.triangular(x, 2), ref.triangular_jvp(x, dx, 2)
        return ref.mlp_jvp(weights, x, dx, self.activation, None, self.biases, self.drop, self.dtype)

    def jacobian(self, x, weights=None, table=None):
        """(y, J) with J of shape (outputs, coordinates, samples)."""
        parts = [self.jvp(x, np.eye(2)[:, i : i + 1] * np.ones_like(x), weights, table) for i in range(2)]
        return parts[0][0], np.stack([dy for _, dy in parts], axis=1)


def close(actual, expected, tolerance):
    # in half precision a few samples lie on the other side of a kink
    arrays.close(actual, expected, tolerance, 0.02 if tolerance > 1e-2 and np.size(expected) > 150 else 0)


def eikonal(y, jacobian, dy):
    """A loss on value and gradient, in NumPy."""
    norm = np.sqrt((jacobian[0] ** 2).sum(axis=0))
    return float(np.sum((norm - 1) ** 2 * dy[0] + y[0] * dy[1]))


def eikonal_of(ns, field, p, dy, key=None):
    """The same, but its terms: their sum would be a kernel that nobody looks at."""
    y, g = field.value_and_grad(p, key)
    dy = arrays.arrays(ns, dy)
    return dr.square(dr.norm(g) - 1) * dy[0] + y[0] * dy[1]


# ---- First order -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_activations(ns, backend, name):
    x, p = coordinates(ns)
    twin = Twin(ns, backend, None, name, outputs=2, dropout=0.25, depth=2)
    y, expected = twin.jacobian(x)
    rows = twin.field.jacobian(p, twin.key)
    assert len(rows) == 2 and all(type(row) is ns.Array2f for row in rows)
    direction = np.stack([np.cos(6 * x[0]), x[1] - 0.5])
    rows, value, slope = evaluated(rows, *twin.field.jvp(p, ns.Array2f(arrays.arrays(ns, direction)), twin.key))
    close(np.stack([row.numpy() for row in rows]), expected, twin.tolerance)
    close(value.numpy(), y, twin.tolerance)
    close(slope.numpy(), twin.jvp(x, direction)[1], twin.tolerance)


@pytest.mark.parametrize("encoding", ["sinusoidal", "triangular", "grid"])
def test_encodings(ns, backend, encoding):
    x, p = coordinates(ns)
    twin = Twin(ns, backend, encoding)
    y, expected = twin.jacobian(x)
    value, gradient = evaluated(*twin.field.value_and_grad(p))
    close(value.numpy(), y, twin.tolerance)
    close(gradient.numpy(), expected[0], twin.tolerance)
    # the reference itself against differences
    h = 1e-7
    close(expected[0], ref.numerical_gradient(lambda q: twin.jvp(q, 0 * q)[0], x, h), 1e-5)


def test_steep_encodings_in_half_precision(ns, backend):
    """Slopes of 2 pi 2^13 are close to the largest half, and small directions close to its smallest."""
    field = cn.NeuralField(cn.Sinusoidal(14, in_features=1), cn.Linear(-1, 1, bias=False)).build(backend, "half")
    x = ns.Float(np.linspace(0.1, 0.9, 50)) + 1e-3
    features = cn.NeuralField(cn.Sinusoidal(14, in_features=1), cn.Identity()).build(backend, "half")
    ((weights,), _) = matrices(field)
    slopes = [row[0].numpy() for row in evaluated(features.jacobian([x]))]
    expected = sum(w * d for w, d in zip(weights.ravel(), slopes, strict=True))
    for v in (1.0, 1e-6):
        _, slope = field.jvp([x], [ns.Float(v)])
        assert np.isfinite(slope.numpy()).all()
        close(slope.numpy()[0] / v, expected, 4e-2)


@pytest.mark.parametrize("direction", [(1.0, 1e6), (-1e6, 3.0), (3.0, -1e6), (1e-6, -1e-7), (0.0, 0.0)])
def test_directions_of_any_length_in_half_precision(ns, backend, direction):
    """Tangents are scaled by their largest component, whichever it is, or half precision would overflow."""
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1, activation="tanh")).build(backend, "half")
    p = ns.Array2f(*np.random.default_rng(0).random((2, 50)).astype(np.float32)) + 1e-3
    dx, dy = field.jacobian(p)[0].numpy().astype(np.float64)
    value, slope = field.jvp(p, ns.Array2f(*direction))
    np.testing.assert_array_equal(value.numpy(), field(p).numpy())
    expected = dx * direction[0] + dy * direction[1]
    assert np.isfinite(slope.numpy()).all()
    assert np.abs(slope.numpy()[0] - expected).max() <= 1e-2 * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["nested", "fixed", "list", "tuple", "coopvec", "tensor"])
def test_containers(ns, backend, kind):
    x, p = coordinates(ns, 30)
    twin = Twin(ns, backend)
    expected = twin.jacobian(x)[1][0]
    contain = {
        "nested": ns.ArrayXf,
        "fixed": ns.Array2f,
        "list": list,
        "tuple": tuple,
        "coopvec": drnn.CoopVec,
        "tensor": lambda q: ns.TensorXf(ns.ArrayXf(q)),
    }[kind]
    q = contain([p[0], p[1]])
    value, gradient = twin.field.value_and_grad(q)
    slope = twin.field.jvp(q, contain([p[1], p[0]]))[1]
    assert type(gradient) is type(q) and type(value) is type(twin.field(q)) is type(slope)
    parts = list(gradient) if kind in ("list", "tuple", "coopvec") else gradient
    close(np.array([np.ravel(v) for v in parts] if kind != "tensor" else parts.numpy()), expected, twin.tolerance)
    numerical = cn.numerical_gradient(twin.field, q, 0.05)
    assert type(numerical) is type(q)


def test_one_kernel(ns, backend):
    """Value and gradient are fused into one kernel outside differentiation."""
    if backend == "cuda":
        pytest.skip("the same program as on LLVM")
    _, p = coordinates(ns)
    twin = Twin(ns, backend, "sinusoidal", dropout=0.2)
    twin.field.value_and_grad(p, twin.key)  # opaque constants exist from here on
    with launched() as kernels:
        value, gradient = twin.field.value_and_grad(p, twin.key)
        dr.eval(value, gradient)
    assert len(kernels) == 1


# ---- Second order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, path", [
    *((name, "auto") for name in ("relu", "sigmoid", "softplus", "silu")),
    *(("softplus", path) for path in ("spill", "store", "banks", "builtin")), ("relu", "store"), ("relu", "banks"),
])  # fmt: skip
def test_eikonal_gradients(ns, backend, name, path):
    """Of a loss on the gradient, with respect to weights and coordinates: functions of each kind, and every path."""
    x, p = coordinates(ns)
    twin = Twin(ns, backend, None, name, dropout=0.25, width=8, depth=2)  # wide enough that no sample loses all
    dy = np.random.default_rng(1).normal(size=(2, SAMPLES)) / SAMPLES
    dr.enable_grad(p, twin.field["network.weights"])
    with cn.gradient_path(path):
        dr.backward(eikonal_of(ns, twin.field, p, dy, twin.key))
    dr.eval(dr.grad([p, twin.field["network.weights"]]))
    for number, got in enumerate(gradients(twin.field)[0]):
        places = range(0, got.size, 5)

        def loss(matrix, number=number):
            return eikonal(*twin.jacobian(x, [matrix if i == number else w for i, w in enumerate(twin.weights)]), dy)

        expected = differences(loss, twin.weights[number], places)
        close(got.flat[list(places)], expected, 8e-2 if backend == "cuda" else 2e-4)
    single = np.zeros((2, SAMPLES))
    for i in range(2):  # samples are independent: one difference moves them all
        h = 1e-5 * np.eye(2)[:, i : i + 1]
        up, down = (twin.jacobian(x + s * h) for s in (1, -1))
        terms = [(np.sqrt((j[0] ** 2).sum(axis=0)) - 1) ** 2 * dy[0] + y[0] * dy[1] for y, j in (up, down)]
        single[i] = (terms[0] - terms[1]) / 2e-5
    close(dr.grad(p).numpy(), single, 8e-2 if backend == "cuda" else 2e-4)


@pytest.mark.parametrize("encoding", ["sinusoidal", "triangular", "grid"])
def test_second_order_through_encodings(ns, backend, encoding):
    x, p = coordinates(ns)
    twin = Twin(ns, backend, encoding, "softplus")
    dy = np.random.default_rng(1).normal(size=(2, SAMPLES)) / SAMPLES
    dr.enable_grad(p, twin.field["network.weights"])
    if twin.grid:
        dr.enable_grad(twin.field.encoding.grid.value.data)
    dr.backward(eikonal_of(ns, twin.field, p, dy))
    dr.eval(dr.grad([p, *twin.field.values()]))
    if twin.grid:
        got = twin.field.encoding.grid.value.data.grad.numpy()
        places = np.flatnonzero(got)[::7]
        expected = differences(lambda t: eikonal(*twin.jacobian(x, table=t), dy), twin.table, places)
        close(got[places], expected, 8e-2 if backend == "cuda" else 5e-4)
    single = np.zeros((2, SAMPLES))
    for i in range(2):
        h = 1e-6 * np.eye(2)[:, i : i + 1]
        up, down = (twin.jacobian(x + s * h) for s in (1, -1))
        terms = [(np.sqrt((j[0] ** 2).sum(axis=0)) - 1) ** 2 * dy[0] + y[0] * dy[1] for y, j in (up, down)]
        single[i] = (terms[0] - terms[1]) / 2e-6
    # two samples may lie so close to an edge that the difference reaches across
    wrong = np.abs(dr.grad(p).numpy() - single) > (8e-2 if backend == "cuda" else 1e-3) * np.abs(single).max()
    assert wrong.mean() < 0.02


def test_grid_gradients_repeat(ns, backend):
    """Parameter gradients of grids through tangents do not depend on the order of threads."""
    _, p = coordinates(ns, 5000)
    got = []
    for _ in range(2):
        twin = Twin(ns, backend, "grid")
        data = twin.field.encoding.grid.value.data
        dr.enable_grad(data, twin.field["network.weights"])
        with cn.deterministic():
            _, g = twin.field.value_and_grad(p)
            dr.backward(dr.mean(dr.square(dr.norm(g) - 1)))
        got.append((data.grad.numpy().copy(), twin.field["network.weights"].grad.numpy().copy()))
    assert np.any(got[0][0]) and np.any(got[0][1])
    for a, b in zip(*got, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mode, path", [("symbolic", "auto"), ("symbolic", "banks"), ("evaluated", "auto")])
def test_loops(ns, backend, mode, path):
    """The gradient of a field inside a loop, and the gradient of that."""
    _, p = coordinates(ns, 50)
    twin = Twin(ns, backend, None, "silu", dropout=0.2)
    (weight,) = arrays.arrays(ns, np.random.default_rng(1).random((1, 50)))

    def penalty(i):
        value, g = twin.field.value_and_grad(p, cn.Key(5, step=i))
        return weight * (dr.square(g[0]) + g[1] * g[0] + value[0])

    def differentiate(run):
        dr.enable_grad(p, twin.field["network.weights"])
        dr.set_grad(p, 0)
        dr.set_grad(twin.field["network.weights"], 0)
        with cn.gradient_path(path):
            total = run()
            dr.backward(total * (weight + 1))
        found = evaluated(dr.detach(total), dr.grad(p), dr.grad(twin.field["network.weights"]))
        return [v.numpy().copy() for v in found]

    expected = differentiate(lambda: penalty(ns.UInt32(0)) + penalty(ns.UInt32(1)))
    got = differentiate(
        lambda: dr.while_loop(
            (ns.UInt32(0), dr.zeros(ns.Float, 50)),
            lambda i, total: i < 2,
            lambda i, total: (i + 1, total + penalty(i)),
            mode=mode,
            max_iterations=2,
        )[1]
    )
    for g, e in zip(got, expected, strict=True):
        close(g, e, 5e-2 if backend == "cuda" else 2e-5)


def test_frozen(ns, backend):
    """A frozen training step on an eikonal loss, with batches of several sizes."""
    field = Twin(ns, backend, "sinusoidal", "softplus", dropout=0.2, width=8).field

    def step(field, p, t):
        _, g = field.value_and_grad(p, cn.Key(3, step=t))
        dr.backward(dr.square(dr.norm(g) - 1) * (1 / 1000))
        return dr.grad(field["network.weights"])

    frozen = dr.freeze(step)
    for n, t in [(3000, 0), (3000, 1), (1000, 2)]:
        _, p = coordinates(ns, n, t)
        p = p + 1e-3
        dr.eval(p)
        results = []
        for function in (frozen, step):
            dr.disable_grad(field["network.weights"])
            dr.enable_grad(field["network.weights"])
            results.append(function(field, p, dr.opaque(ns.UInt32, t)).numpy().copy())
        close(*results, 5e-2 if backend == "cuda" else 1e-5)
    assert frozen.n_recordings <= 3


def test_chunks(ns, backend, set_limits):
    """A batch that is spilled in pieces, with constant directions, gives the gradient of one that is not."""
    if backend == "cuda":
        pytest.skip("the same program as on LLVM")

    _, p = coordinates(ns, 5000)
    twin = Twin(ns, backend, None, "tanh", dropout=0.2, width=8)
    results = []
    for memory in (1 << 30, 1 << 19):
        set_limits(KEPT_BYTES=memory)
        dr.enable_grad(p, twin.field["network.weights"])
        dr.set_grad(p, 0)
        dr.set_grad(twin.field["network.weights"], 0)
        _, g = twin.field.value_and_grad(p, twin.key)
        dr.backward(dr.mean(dr.square(dr.norm(g) - 1)))
        results.append((dr.grad(p).numpy().copy(), twin.field["network.weights"].grad.numpy().copy()))
    for a, b in zip(*results, strict=True):
        close(a, b, 1e-6)


def test_a_linear_field(ns, backend):
    """Its gradient is constant over the samples, and the gradient of a loss on it a sum over them."""
    _, p = coordinates(ns, 70)
    field = cn.NeuralField(None, cn.Linear(2, 1, bias=False)).build(backend)
    buffer = field["network.weights"]
    dr.enable_grad(buffer)
    _, g = field.value_and_grad(p)
    dr.backward(g[0] * p[1] + 2 * g[1] * p[0])
    ((got,), _) = gradients(field)
    close(got[0], [p[1].numpy().sum(), 2 * p[0].numpy().sum()], 2e-2 if backend == "cuda" else 1e-5)


def test_forward_mode(ns, backend):
    """dr.forward through a gradient: with the weights and with the coordinates moving."""
    if backend == "cuda":
        pytest.skip("the same program as on LLVM")
    x, p = coordinates(ns, 40)
    twin = Twin(ns, backend, None, "silu")
    buffer = twin.field["network.weights"]
    rng = np.random.default_rng(2)
    dx = rng.normal(size=x.shape)
    dr.enable_grad(p, buffer)
    _, g = twin.field.value_and_grad(p)
    move = dr.ones(type(buffer), dr.width(buffer))
    dr.set_grad(buffer, move)
    dr.set_grad(p, ns.Array2f(dx))
    dr.forward_to(g)
    h = 1e-5
    sides = []
    for s in (h, -h):
        twin_biases = [b + s for b in twin.biases]
        held, twin.biases = twin.biases, twin_biases
        sides.append(twin.jacobian(x + s * dx, [w + s for w in twin.weights])[1][0])
        twin.biases = held
    close(dr.grad(g).numpy(), (sides[0] - sides[1]) / (2 * h), 1e-4)


# ---- Second derivatives of activations ---------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(ns, backend, name):
    """The formulas of all activations."""
    at = np.concatenate([np.linspace(-3, 3, 40) + 0.01])
    leaf = ns.Float16 if backend == "cuda" else ns.Float
    params = {"leaky_relu": (0.01,), "sine": (1.0,), "softplus": (1.0,), "squareplus": (1.0,)}.get(name, ())
    derivative = ref.ACTIVATIONS[name][1]
    h = 1e-5
    expected = 0.7 * (derivative(at + h) - derivative(at - h)) / (2 * h)
    op = Nonlinearity(cn.nn.ACTIVATIONS[name](*params))
    x, w = drnn.CoopVec([leaf(ns.Float(at)), leaf(ns.Float(-at))]), drnn.CoopVec([leaf(0.7), leaf(0.7)])
    tolerance = 3e-2 if backend == "cuda" else 1e-5
    if FUNCTIONS[name].piecewise_linear:
        assert not np.any(np.abs(expected) > 1e-6)
        return
    close(next(iter(w * op.curvature(x, op.value(x)))).numpy(), expected, tolerance)


# ---- Numerical gradient ------------------------------------------------------------------------------------


def test_numerical_gradient(ns, backend):
    x, p = coordinates(ns)
    x, p = 0.1 + 0.8 * x, 0.1 + 0.8 * p  # grids are undefined outside [0, 1]
    for encoding in ("sinusoidal", "grid"):
        twin = Twin(ns, backend, encoding, "softplus", dropout=0.2)
        eps = 0.05
        expected = ref.numerical_gradient(lambda q, twin=twin: twin.jvp(q, 0 * q)[0], x, eps)
        for given in (eps, ns.Float(eps), dr.full(ns.Float, eps, SAMPLES)) if encoding == "grid" else (eps,):
            got = cn.numerical_gradient(twin.field, p, given, twin.key)
            close(got.numpy(), expected, 8e-2 if backend == "cuda" else 1e-3)
    # differentiable: the weight gradient of a loss on it
    twin = Twin(ns, backend, None, "tanh")
    dr.enable_grad(twin.field["network.weights"])
    g = cn.numerical_gradient(twin.field, p, 0.1)
    dr.backward(dr.mean(dr.square(g[0]) + g[1]))
    got = gradients(twin.field)[0][0]

    def loss(matrix):
        weights = [matrix, *twin.weights[1:]]
        g = ref.numerical_gradient(lambda q: twin.jvp(q, 0 * q, weights)[0], x, 0.1)
        return float(np.mean(g[0] ** 2 + g[1]))

    expected = differences(loss, twin.weights[0], range(got.size)).reshape(got.shape)
    close(got, expected, 8e-2 if backend == "cuda" else 1e-3)


def test_eps_of_other_types_and_sizes(ns, backend):
    p = ns.Array2f([1, 2, 3], [4, 5, 6])
    for eps in (ns.Float64(0.5), ns.Float16(0.5)):
        g = cn.numerical_gradient(lambda q: q[0] * q[0], p, eps)
        assert type(g) is ns.Array2f
        np.testing.assert_allclose(g.numpy(), [[2, 4, 6], [0, 0, 0]])
    for eps in (ns.Float(1, 2), ns.Float()):
        with pytest.raises(ValueError, match=r"numerical_gradient: eps has \d entries for 3 samples"):
            cn.numerical_gradient(lambda q: q[0], p, eps)
    with pytest.raises(ValueError, match="eps has 0 entries for 1 samples"):
        cn.numerical_gradient(lambda q: q[0], ns.Array2f(1, 2), ns.Float())


def test_numerical_gradient_of_a_function(ns, backend):
    _, p = coordinates(ns)
    g = cn.numerical_gradient(lambda q: q[0] * q[0] + 3 * q[1], p, 0.01)
    close(g.numpy(), np.stack([2 * p[0].numpy(), np.full(SAMPLES, 3.0)]), 1e-4)


# ---- Layers without a rule, other layers, errors -----------------------------------------------------------


class Square(cn.Module):
    """A layer of a user, without a rule."""

    def __call__(self, x, key=None):
        return x * x


class SquareWithRule(Square):
    def jvp(self, x, tangents, key=None):
        return x * x, [2 * x * t for t in tangents]


def laplacian(field, p, eps):
    """As docs/derivatives.md has it."""
    return sum(cn.numerical_gradient(lambda q, i=i: field.value_and_grad(q)[1][i], p, eps)[i] for i in range(2))


def test_curvature(ns, backend):
    """Differences of exact gradients are second derivatives, and so are the weight gradients of losses on them."""
    if backend == "cuda":
        pytest.skip("made of what the other tests compare, and differences of half precision")
    x, p = coordinates(ns)
    twin, eps = Twin(ns, backend, None, "softplus"), 0.05
    steps = eps * np.eye(2)[:, :, None]

    def expected(weights=None):
        rows = [[twin.jacobian(x + s * steps[i], weights)[1][0, i] for s in (1, -1)] for i in range(2)]
        return sum((a - b) / (2 * eps) for a, b in rows)

    dr.enable_grad(twin.field["network.weights"])
    curvature = laplacian(twin.field, p, eps)
    close(curvature.numpy(), expected(), 1e-4)
    dr.backward(dr.mean(dr.square(curvature)))
    for number, got in enumerate(gradients(twin.field)[0]):
        places = range(0, got.size, 5)

        def loss(matrix, number=number):
            return np.mean(expected([matrix if i == number else w for i, w in enumerate(twin.weights)]) ** 2)

        close(got.flat[list(places)], differences(loss, twin.weights[number], places), 1e-3)


def test_virtual_calls(ns, backend):
    """All three in the callables of a switch, and weight gradients through one."""
    if backend == "cuda":
        pytest.skip("slow to compile")
    _, p = coordinates(ns)
    twin = Twin(ns, backend, "sinusoidal", "softplus")
    field, index = twin.field, dr.arange(ns.UInt32, SAMPLES) % 3
    calls = [
        lambda q: dr.squared_norm(field.value_and_grad(q)[1]),
        lambda q: field.jacobian(q)[0][1],
        lambda q: field.jvp(q, ns.Array2f(2, 0))[1][0],
    ]
    results = []
    for switch in (True, False):
        dr.disable_grad(field["network.weights"])
        dr.enable_grad(field["network.weights"])
        if switch:
            y = dr.switch(index, calls, p)
        else:
            ys = [f(p) for f in calls]
            y = dr.select(index == 0, ys[0], dr.select(index == 1, ys[1], ys[2]))
        dr.backward(dr.mean(dr.square(y)))
        results.append([v.numpy().copy() for v in evaluated(dr.detach(y), dr.grad(field["network.weights"]))])
    assert np.any(results[0][1])
    for a, b in zip(*results, strict=True):
        close(a, b, 1e-5)


def test_layers_of_users(ns, backend):
    x, p = coordinates(ns, 30)
    plain, ruled = (
        cn.NeuralField(None, cn.Sequential(cn.Linear(2, 4, bias=False), layer, cn.Linear(4, 1, bias=False))).build(
            backend
        )
        for layer in (Square(), SquareWithRule())
    )
    with pytest.raises(
        TypeError, match=r"Square: this layer has no rule .* define Square\.jvp\(x, tangents, key=None\)"
    ):
        plain.value_and_grad(p)
    expected = ref.numerical_gradient(
        lambda q: np.array(ruled(ns.Array2f(q)).numpy(), np.float64), x, 0.02 if backend == "llvm" else 0.1
    )
    close(ruled.value_and_grad(p)[1].numpy(), expected, 6e-2 if backend == "cuda" else 1e-3)

    class Foreign(drnn.Module):
        def __call__(self, x):
            return x

    foreign = cn.NeuralField(None, cn.Sequential(Foreign(), cn.Linear(2, 1)), in_features=2).build(backend)
    with pytest.raises(TypeError, match="Foreign: this layer has no rule"):
        foreign.jacobian(p)


def test_layers_of_drjit(ns, backend):
    """Those of drjit.nn, in the network and as an encoding, against differences."""
    if backend == "cuda":
        pytest.skip("the same program as on LLVM")
    x, p = coordinates(ns, 40)
    layers = (drnn.ReLU(), drnn.LeakyReLU(0.2), drnn.Exp2(), drnn.Exp(), drnn.Tanh(), drnn.ScaleAdd(2.0, 0.5),
              drnn.Cast(ns.Float), drnn.SinEncode(2, 0.1), drnn.TriEncode(2, 0.1))  # fmt: skip
    # an encoding hands the network tangents, whatever layers are there
    for layer, encoding in [*((layer, None) for layer in layers), (drnn.Exp(), drnn.SinEncode(1))]:
        network = cn.Sequential(cn.Linear(-1, 4, bias=False), layer, cn.Tanh(), cn.Linear(-1, 1))
        field = cn.NeuralField(encoding, network, in_features=2).build(backend)
        got = field.value_and_grad(p)[1].numpy()

        def values(q, field=field):
            return np.array(field(ns.Array2f(arrays.arrays(ns, q))).numpy(), np.float64)

        # differences in single precision, and a few that reach across kinks
        expected = ref.numerical_gradient(values, x, 3e-4)
        assert np.mean(np.abs(got - expected) > 2e-2 * np.abs(expected).max()) < 0.06, layer


def test_modules_have_derivatives(ns, backend):
    """Layers on their own, on cooperative vectors."""
    dtype, leaf = (ns.TensorXf16, ns.Float16) if backend == "cuda" else (ns.TensorXf, ns.Float)
    x = [leaf(ns.Float([0.1, 0.4])), leaf(ns.Float([0.7, -0.2]))]
    for net in (cn.Linear(2, 3), cn.Sine(2.0), cn.Sequential(cn.Linear(2, 3), cn.Tanh()), cn.Sinusoidal(2)):
        net = net.alloc(dtype, 2)
        if any(isinstance(m, drnn.Linear) for m in children(net)):
            net = drnn.pack(net, layout="training")
        vector, direction = drnn.CoopVec(x), drnn.CoopVec([leaf(1), leaf(-2)])
        y, (dy,) = net.jvp(vector, [direction])
        for a, b in zip(y, net(vector), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        assert len(list(dy)) == len(list(y))


def test_errors(ns, backend):
    _, p = coordinates(ns, 5)
    one = cn.NeuralField(None, cn.Linear(2, 1)).build(backend)
    two = cn.NeuralField(None, cn.Linear(2, 2)).build(backend)
    unbuilt = cn.NeuralField(None, cn.Linear(2, 1))
    x = ns.Float([1, 2, 3])
    for run, error, message in [
        (lambda: unbuilt.value_and_grad(p), ValueError, r"NeuralField.value_and_grad: the field is not built yet"),
        (lambda: two.value_and_grad(p), ValueError, r"value_and_grad: the field has 2 outputs, .* use jacobian\(\)"),
        (lambda: one.jacobian(ns.Array3f(1)), ValueError, "NeuralField.jacobian: p has 3 coordinates, but .* takes 2"),
        (lambda: one.jvp(p, ns.Array3f(1)), ValueError, "NeuralField.jvp: v has 3 components, but p has 2"),
        (lambda: one.jvp(p, np.ones((2, 5))), TypeError, "NeuralField.jvp: v is NumPy of .* and p arrays"),
        (lambda: one.jvp(p, drnn.CoopVec(x, x)), TypeError, "NeuralField.jvp: v is CoopVec"),
        (lambda: one.jvp(p, [x, x]), ValueError, "NeuralField.jvp: p and v have different numbers of samples"),
        (lambda: one.jvp(p, ns.Array2i(1)), TypeError, "NeuralField.jvp: v: got values of type .*Int"),
        (lambda: one.value_and_grad(p, 3), TypeError, "value_and_grad: key is a int"),
        (lambda: cn.numerical_gradient(one, p, 0.0), ValueError, "numerical_gradient: eps is 0.0; a positive number"),
        (lambda: cn.numerical_gradient(one, p, float("nan")), ValueError, "eps is nan"),
        (lambda: cn.numerical_gradient(one, p, ns.UInt32(1)), TypeError, "eps is a UInt; a number|eps is a UInt32"),
        (lambda: cn.numerical_gradient(two, p, 0.1), ValueError, "numerical_gradient: the field has 2 outputs; one"),
        (lambda: cn.numerical_gradient(3, p, 0.1), TypeError, "numerical_gradient: field is a int"),
        (lambda: cn.numerical_gradient(one, np.ones((2, 3)), 0.1), TypeError, "numerical_gradient: got a NumPy array"),
    ]:
        with pytest.raises(error, match=message):
            run()


def test_combinations_agree(ns, backend):
    """jvp, jacobian and value_and_grad are one function."""
    _, p = coordinates(ns, 30)
    for encoding, name in itertools.product([None, "grid"], ["tanh"]):
        twin = Twin(ns, backend, encoding, name)
        _, g = twin.field.value_and_grad(p)
        (row,) = twin.field.jacobian(p)
        v = ns.Array2f(0.5, -2)
        _, slope = twin.field.jvp(p, v)
        np.testing.assert_array_equal(g.numpy(), row.numpy())
        close(slope.numpy()[0], dr.dot(row, v).numpy(), 3e-2 if backend == "cuda" else 1e-6)


# ---- The reference and the example -------------------------------------------------------------------------


def test_the_reference_agrees_with_itself():
    """Forward derivatives against the adjoints: <dy, J dx> = <J^T dy, dx>."""
    rng = np.random.default_rng(0)
    x, dx = rng.random((2, 50)), rng.normal(size=(2, 50))
    table = rng.normal(size=sum(level.size for level in ref.hash_grid_levels(2, **GRID)) * 2)
    weights = [rng.normal(size=s) for s in ((8, 2), (8, 8), (3, 8))]
    for forward, adjoint in [
        (ref.sinusoidal_jvp(x, dx, 3, 0.1), lambda dy: ref.sinusoidal_vjp(x, dy, 3, 0.1)),
        (ref.triangular_jvp(x, dx, 3, 0.1), lambda dy: ref.triangular_vjp(x, dy, 3, 0.1)),
        (ref.hash_grid_jvp(x, table, dx, **GRID), lambda dy: ref.hash_grid_vjp(x, table, dy, **GRID)[0]),
        (
            ref.mlp_jvp(weights, x, dx, "silu", "tanh", dropout=(0.3,))[1],
            lambda dy: ref.mlp_vjp(weights, x, dy, "silu", "tanh", dropout=(0.3,))[1],
        ),
    ]:
        dy = rng.normal(size=forward.shape)
        np.testing.assert_allclose((dy * forward).sum(axis=0), (adjoint(dy) * dx).sum(axis=0), atol=1e-9)


@pytest.mark.slow
def test_example(monkeypatch, capsys):
    path = Path(cn.__file__).parent.parent / "examples" / "eikonal.py"
    for shape in ("circle", "box"):
        monkeypatch.setattr("sys.argv", [str(path), shape, "12"])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(path), run_name="__main__")
        assert end.value.code == 0
        text = capsys.readouterr().out
        first, *_, last = (float(line.split("loss ")[1]) for line in text.splitlines() if "loss" in line)
        assert last < 0.95 * first and 0 < float(text.split("mean |grad| ")[1].split(",")[0]) < 1.3, text
