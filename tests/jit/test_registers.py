"""Requests for registers and for an order of operations change nothing but what a kernel may use."""

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.engine import module
from support.kernels import launched

import coopnet as cn
from coopnet.jit import registers, scopes

networks = module("evaluate")
tables = module("strategies")


@pytest.fixture
def leaf(ns, backend):
    return ns.Float16 if backend == "cuda" else ns.Float


@pytest.fixture
def view(leaf):
    return drnn.view(dr.zeros(dr.tensor_t(leaf), (8, 8)))


def test_a_request_is_the_value(leaf, view):
    x = np.array([-3, -0.0, 0, 0.5, 1, 2, 7e4, np.inf, -np.inf, np.nan], np.float32)
    value = leaf(dr.float32_array_t(leaf)(x))
    dr.enable_grad(value)
    y = registers._request(value, view)
    dr.backward(y * leaf(3))
    np.testing.assert_array_equal(y.numpy(), value.numpy())
    np.testing.assert_array_equal(np.signbit(y.numpy()), np.signbit(value.numpy()))
    np.testing.assert_array_equal(dr.grad(value).numpy(), np.full(len(x), 3))


def test_when_it_is_asked_for(leaf, view, backend):
    parts = [leaf(0), leaf(0.5) + dr.opaque(leaf, 0, 10), dr.opaque(leaf, 1, 10)]

    def changed(views, used):
        return [a.index != b.index for a, b in zip(registers.request_registers(parts, views, used), parts, strict=True)]

    assert changed([view], registers.SHARE) == [False, False, False]
    assert changed([], registers.SHARE + 1) == [False, False, False]
    # not from a constant: the product would be one, too
    assert changed([view], registers.SHARE + 1) == [False, backend == "cuda", False]
    long = drnn.view(dr.zeros(dr.tensor_t(leaf), (registers.LONG + 1, 8)))
    assert changed([view, long], registers.SHARE + 1) == [False, False, False]


@pytest.mark.parametrize("width", [16, 64])
def test_kernels_that_ask(ns, backend, width):
    """Dr.Jit goes by products of long vectors, which in its code for OptiX pass through memory."""
    if backend != "cuda":
        pytest.skip("an option of OptiX")
    field = cn.NeuralField(None, cn.MLP(3, 1, width=width, depth=2)).build(backend)
    p = ns.Array3f([0.1, 0.2], 0.3, 0.4)
    with launched() as kernels:
        dr.eval(field.value_and_grad(p))
    code = [k["ir"].getvalue() for k in kernels]
    assert any("_optix_matvecmul" in c for c in code)
    assert any("_optix_matvecmul_ptr" in c for c in code) == (width == 64)


def test_the_order_of_operations(ns, backend):
    def operations(ordered):
        a, b = dr.opaque(ns.Float, 2, 5), dr.opaque(ns.Float, 3, 5)
        a, b = dr.sqrt(a), dr.sqrt(b)
        if ordered:
            registers.in_order(dr.backend_v(ns.Float))
        a, b = a * 3, b * 3
        with launched() as kernels:
            dr.eval(a, b)
        (kernel,) = kernels
        names = {"sqrt": "sqrt", "fmul": "mul", "mul.ftz.f32": "mul"}
        lines = [line for line in kernel["ir"].getvalue().splitlines() if "declare" not in line]
        found = [next((op for name, op in names.items() if name in line), None) for line in lines]
        return [op for op in found if op]

    def steps(ops):
        return [op for i, op in enumerate(ops) if not i or ops[i - 1] != op]

    assert steps(operations(ordered=False))[-4:] == ["sqrt", "mul", "sqrt", "mul"]  # depth first
    assert steps(operations(ordered=True))[-2:] == ["sqrt", "mul"]
    assert steps(operations(ordered=True)).count("sqrt") == 1


@pytest.mark.parametrize("most", [1, 2])
def test_directions_in_groups(ns, backend, monkeypatch, most):
    """Values, derivatives and second derivatives, as of all directions at once."""
    field = cn.NeuralField(None, cn.MLP(3, 2, width=8, depth=2, activation="tanh", dropout=0.2)).build(backend)
    weights, key = field["network.weights"], cn.Key(3)
    p = ns.Array3f(*[dr.linspace(ns.Float, 0.1 * k, 1, 300) for k in range(3)])
    results = []
    for limit in (3, most):
        for place in (networks, tables):
            monkeypatch.setattr(place, "tangents_at_a_time", lambda s, limit=limit: limit)
        for v in (weights, p):
            dr.disable_grad(v)
            dr.enable_grad(v)
        rows = field.jacobian(p, key)
        dr.backward(sum(dr.sum(dr.square(row - 0.3)) for row in rows))
        results.append([rows[0].numpy(), rows[1].numpy(), dr.grad(weights).numpy(), dr.grad(p).numpy()])
    tolerance = 2e-2 if backend == "cuda" else 1e-5
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=tolerance * np.abs(a).max())


def test_groups_fit(ns, backend):
    """All directions at once on the CPU; on CUDA as many as have registers beside the value."""

    def most(width, inputs):
        net = drnn.pack(cn.MLP(inputs, 1, width=width, depth=1).alloc(dr.tensor_t(ns.Float16), inputs))
        bundle = [drnn.CoopVec([ns.Float16(0)] * inputs)] * (1 + inputs)
        s = networks.situation_of(cn.nn.sequential.known_ops([net]), bundle, None)
        return networks.tangents_at_a_time(s)

    assert most(64, 3) == 3
    assert most(64, 6) == (3 if backend == "cuda" else 6)
    assert most(128, 3) == (1 if backend == "cuda" else 3)
    assert most(512, 3) == (1 if backend == "cuda" else 3)


@pytest.mark.parametrize("precision", ["Float", "Float16"])
def test_apart(ns, precision):
    """In basic blocks of its own a function gives the same, NaN and literals included."""
    leaf = getattr(ns, precision)
    given = np.array([1, 2, np.nan, np.inf], np.float32)
    first, turns = leaf(ns.Float(given)), 3
    dr.eval(first)

    def summed(function):
        def turn(i, total):
            return i + 1, total + ns.Float(function([first * 1, leaf(2)])[0])

        return dr.while_loop((ns.UInt32(0), dr.zeros(ns.Float, 4)), lambda i, t: i < turns, turn, mode="symbolic")[1]

    def product(v):
        return [v[0] * v[1]]

    np.testing.assert_array_equal(summed(lambda v: registers.in_separate_blocks(product, v)), 2 * turns * given)
    assert registers.in_separate_blocks(product, [leaf(3), leaf(2)])[0].state == dr.VarState.Literal


def test_separate_blocks_stay_in_their_scope(ns):
    """What was computed before a network still exists after it, in the same loop, conditional or call."""
    found = []

    def body(i, x):
        before, number = scopes.scope_id(ns.Float), scopes.scope_number(ns.Float)
        (y,) = registers.in_separate_blocks(lambda v: [v[0] * 2], [x])
        found.append((scopes.scope_id(ns.Float) == before, scopes.scope_number(ns.Float) == number))
        inside = []
        z = dr.if_stmt(
            (y,), i > 0, lambda y: inside.append(scopes.scope_id(ns.Float)) or y, lambda y: -y, mode="symbolic"
        )
        found.append((inside[0] != before, scopes.scope_id(ns.Float) == before))
        return i + 1, z

    dr.eval(dr.while_loop((ns.UInt32(0), ns.Float(1, 2)), lambda i, x: i < 2, body, mode="symbolic"))
    assert found[0] == (True, False) and found[1] == (True, False)
