"""Linear layers and their initial weights, activations, random projections and embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .random import Array, philox4x32

Function = Callable[[Array], Array]


def linear(W: Array, x: Array, b: Array | None = None) -> Array:
    """W x + b for W of shape (out, in), x of shape (in, samples) and b of shape (out,).

    >>> ref.linear(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]), np.array([0.5])).tolist()
    [[11.5]]
    """
    y = np.asarray(W, np.float64) @ np.asarray(x, np.float64)
    return y if b is None else y + np.asarray(b, np.float64)[:, None]


def initial_deviation(init: str, fan_in: int, fan_out: int) -> float:
    """Standard deviation of initial weights: Glorot 2010 (xavier), He 2015 (kaiming), Sitzmann 2020 (siren).

    >>> round(ref.initial_deviation("kaiming_normal", 64, 64), 4)
    0.1768
    """
    return {
        "xavier": math.sqrt(2 / (fan_in + fan_out)),
        "kaiming": math.sqrt(2 / fan_in),
        "siren": math.sqrt(2 / fan_in),
        "siren_first": 1 / (math.sqrt(3) * fan_in),
        "zero": 0.0,
    }[init.removesuffix("_uniform").removesuffix("_normal")]


def uniform_bound(init: str, fan_in: int, fan_out: int) -> float:
    """Bound a of the uniform law on [-a, a] with the standard deviation of ``init``.

    >>> round(ref.uniform_bound("xavier_uniform", 64, 64), 4)
    0.2165
    """
    return math.sqrt(3) * initial_deviation(init, fan_in, fan_out)


def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    """x above zero, ``negative_slope`` times x below.

    >>> ref.leaky_relu(np.array([-1.0, 1.0])).tolist()
    [-0.01, 1.0]
    """
    x = np.asarray(x, np.float64)
    return np.where(x > 0, x, negative_slope * x)


def sine(x: Array, omega: float = 1.0) -> Array:
    """sin(omega x).

    >>> ref.sine(np.array([0.5]), omega=np.pi).tolist()
    [1.0]
    """
    return np.asarray(np.sin(omega * np.asarray(x, np.float64)))


def softplus(x: Array, beta: float = 1.0) -> Array:
    """log(1 + exp(beta x)) / beta.

    >>> ref.softplus(np.array([0.0])).round(4).tolist()
    [0.6931]
    """
    z = beta * np.asarray(x, np.float64)
    return np.asarray((np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))) / beta)


def squareplus(x: Array, beta: float = 1.0) -> Array:
    """(X + sqrt(X^2 + 4)) / (2 beta) with X = beta x (Barron 2021).

    >>> ref.squareplus(np.array([0.0])).tolist()
    [1.0]
    """
    z = beta * np.asarray(x, np.float64)
    return np.asarray((np.maximum(z, 0) + 2 / (np.abs(z) + np.sqrt(z**2 + 4))) / beta)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))  # never overflows
    return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


def _tanh_derivative(x: Array) -> Array:
    e = np.exp(-2 * np.abs(x))
    return np.asarray(4 * e / (1 + e) ** 2)  # 1 / cosh^2 without cancellation


def _exp(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.exp(x)


def _gelu_argument(x: Array) -> tuple[Array, Array]:
    """The argument of the hyperbolic tangent, and its derivative."""
    c = math.sqrt(2 / math.pi)
    return c * (x + 0.044715 * x**3), c * (1 + 3 * 0.044715 * x**2)


def _gelu(x: Array) -> Array:
    return np.asarray(x * _sigmoid(2 * _gelu_argument(x)[0]))


def _gelu_derivative(x: Array) -> Array:
    u, du = _gelu_argument(x)
    return np.asarray(_sigmoid(2 * u) + x / 2 * _tanh_derivative(u) * du)


def _double(f: Function) -> Function:
    return lambda x: f(np.asarray(x, np.float64))


_FORMULAS: dict[str, tuple[Function, Function]] = {
    "identity": (lambda x: x, np.ones_like),
    "relu": (lambda x: np.maximum(x, 0.0), lambda x: np.where(x > 0, 1.0, 0.0)),
    "leaky_relu": (leaky_relu, lambda x: np.where(x > 0, 1.0, 0.01)),
    "tanh": (np.tanh, _tanh_derivative),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)),
    "softplus": (softplus, _sigmoid),
    "squareplus": (squareplus, lambda x: squareplus(x) / (squareplus(x) + squareplus(-x))),
    "gelu": (_gelu, _gelu_derivative),
    "silu": (lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) * (1 + x * _sigmoid(-x))),
    "sine": (np.sin, np.cos),
    "exp": (_exp, _exp),
}

#: name -> (f, f'). At the kink, relu'(0) = 0 and leaky_relu'(0) = 0.01, as in Dr.Jit.
ACTIVATIONS = {name: (_double(f), _double(derivative)) for name, (f, derivative) in _FORMULAS.items()}


def activation_named(name: str | None) -> tuple[Function, Function]:
    """(function, derivative) of an activation by its name; ``None`` is the identity. ``ValueError`` for others.

    >>> relu, derivative = ref.activation_named("relu")
    >>> relu(np.array([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    name = "identity" if name is None else name
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}; there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def sparse_projection_matrix(n_in: int, n_out: int, density: float, seed: int = 0) -> Array:
    r"""Matrix (n_out, n_in) of entries +a, -a and 0 with a^2 = 1 / (density n_out), in double precision.

    Entry (i, j) has the word number i mod 4 of Philox counter (floor(i / 4), j, 0, 2^32 - 1) under the key
    ``seed``. With t = max(round(density 2^31), 1), it is 0 unless floor(word / 2) < t; its sign is negative
    for odd words. The density in a is the quantized one, t / 2^31.

    >>> ref.sparse_projection_matrix(4, 2, 0.5, seed=0).tolist()
    [[0.0, 0.0, 0.0, -1.0], [0.0, 1.0, 0.0, 0.0]]
    """
    t = max(round(density * 2**31), 1)
    i, j = np.arange(n_out)[:, None], np.arange(n_in)[None, :]
    words = philox4x32((i // 4, j, 0, 2**32 - 1), (seed % 2**32, seed // 2**32))
    word = np.choose(np.broadcast_to(i % 4, (n_out, n_in)), words).astype(np.int64)
    a = 1 / math.sqrt(t / 2**31 * n_out)
    return np.where(word // 2 < t, np.where(word % 2 == 1, -a, a), 0.0)


def sparse_projection(
    x: Array, out_features: int = 64, density: float = 1 / 3, seed: int = 0, in_features: int | None = None
) -> Array:
    """R x for x of shape (in, samples); with ``in_features``, the transpose R^T x of (out, samples).

    >>> ref.sparse_projection(np.ones((4, 1)), out_features=2, density=0.5).tolist()
    [[-1.0], [1.0]]
    """
    R = sparse_projection_matrix(len(x) if in_features is None else in_features, out_features, density, seed)
    return linear(R if in_features is None else R.T, x)


def embedding(ids: Array, table: Array, out_of_range: str = "error") -> Array:
    """Rows ``ids`` of the table (count, width) as columns (width, samples).

    Ids outside [0, count) are an ``IndexError``, or with ``out_of_range`` ``"zero"`` give zeros, with ``"clamp"`` the
    nearest row.

    >>> ref.embedding(np.array([2, 0]), np.array([[1.0], [2.0], [3.0]])).tolist()
    [[3.0, 1.0]]
    """
    table, ids, inside = _rows(ids, table, out_of_range)
    return np.asarray(np.where(inside, table[ids].T, 0.0))


def embedding_vjp(ids: Array, table: Array, dy: Array, out_of_range: str = "error") -> Array:
    """Gradient of :func:`embedding` with respect to the table: each row's sum over the samples that read it.

    >>> ref.embedding_vjp(np.array([2, 2]), np.zeros((3, 1)), np.ones((1, 2))).ravel().tolist()
    [0.0, 0.0, 2.0]
    """
    table, ids, inside = _rows(ids, table, out_of_range)
    dtable = np.zeros_like(table)
    np.add.at(dtable, ids, np.where(inside, np.asarray(dy, np.float64), 0.0).T)
    return dtable


def _rows(ids: Array, table: Array, out_of_range: str) -> tuple[Array, Array, Array]:
    if out_of_range not in ("error", "zero", "clamp"):
        raise ValueError(f"embedding: out_of_range is {out_of_range!r}; accepted are 'error', 'zero' and 'clamp'")
    table, ids = np.asarray(table, np.float64), np.asarray(ids)
    inside = (ids >= 0) & (ids < len(table))
    if out_of_range == "error" and not inside.all():
        raise IndexError(f"embedding: ids reach from {ids.min()} to {ids.max()}, but there are {len(table)} rows")
    nearest = np.where(inside, ids, np.where(ids < 0, 0, len(table) - 1)).astype(np.int64)
    return table, nearest, inside | (out_of_range == "clamp")
