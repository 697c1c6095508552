"""Layers put together, and their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from .encodings import unit_cube
from .layers import Function, activation_named, linear, uniform_bound
from .random import Array, keep_mask, scale


class MLPDropout(NamedTuple):
    """Dropout of an MLP: arguments of :func:`dropout`, and a stream per hidden layer (None: 0, 1, 2, ...).

    >>> ref.MLPDropout(p=0.1, seed=7).bits
    16
    """

    p: float
    bits: int = 16
    seed: int = 0
    index: Any = None
    step: Any = 0
    streams: Sequence[int] | None = None
    rounds: int = 10

    def factors(self, layer: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """Multipliers of the activations of a hidden layer: 0 or the scale rounded to ``dtype``."""
        stream = layer if self.streams is None else self.streams[layer]
        index = np.arange(shape[1]) if self.index is None else self.index
        keep = keep_mask(shape[0], self.p, self.seed, index, self.step, stream, self.bits, self.rounds)
        return np.where(keep, float(np.dtype(dtype).type(scale(self.p, self.bits))), 0.0)


def mlp(
    weights: Sequence[Array], x: Array, activation: str, output_activation: str | None = None,
    biases: Sequence[Array | None] | None = None, dropout: MLPDropout | tuple[Any, ...] | None = None,
    dtype: Any = np.float64,
) -> Array:  # fmt: skip
    """Multilayer perceptron: each layer is :func:`linear`, the activation, then dropout on hidden layers.

    ``weights`` are the matrices in order, the last being the output layer; ``dropout`` is an
    :class:`MLPDropout` or a tuple of its fields. Everything is computed in double precision; ``dtype`` only
    rounds the scale of the dropout.

    >>> weights = [np.array([[1.0], [-1.0]]), np.array([[1.0, 2.0]])]
    >>> ref.mlp(weights, np.array([[0.5, -0.5]]), "relu").tolist()
    [[0.5, 1.0]]
    """
    return _mlp_trace(weights, x, activation, output_activation, biases, dropout, dtype)[0]


def mlp_vjp(
    weights: Sequence[Array], x: Array, dy: Array, *args: Any, **options: Any
) -> tuple[Array, Array, list[Array], list[Array]]:
    """(y, dx, dweights, dbiases) of :func:`mlp` by backpropagation; dbiases also where there is no bias.

    With z = W h + b and the layer's output a = f(z) m, m the dropout factors: dz = da m f'(z), dW = dz h^T,
    db is dz summed over the samples, and dh = W^T dz.

    >>> weights = [np.array([[1.0], [-1.0]]), np.array([[1.0, 2.0]])]
    >>> y, dx, dweights, dbiases = ref.mlp_vjp(weights, np.array([[0.5, -0.5]]), np.ones((1, 2)), "relu")
    >>> dx.tolist(), dweights[1].tolist()
    ([[1.0, -2.0]], [[0.5, 0.5]])
    """
    y, layers = _mlp_trace(weights, x, *args, **options)
    d = np.asarray(dy, np.float64)
    gradients: list[tuple[Array, Array]] = []
    for W, (h, z, factors, derivative) in zip(reversed(weights), reversed(layers), strict=True):
        d = d * factors * derivative(z)
        gradients.insert(0, (d @ h.T, d.sum(axis=1)))
        d = linear(np.transpose(W), d)
    dweights, dbiases = map(list, zip(*gradients, strict=True))
    return y, d, dweights, dbiases


def mlp_jvp(weights: Sequence[Array], x: Array, dx: Array, *args: Any, **options: Any) -> tuple[Array, Array]:
    """(y, dy) of :func:`mlp`, dy the derivative in direction dx: dz = W dh, and through the activation m f'(z) dz.

    >>> weights = [np.array([[1.0], [-1.0]]), np.array([[1.0, 2.0]])]
    >>> y, dy = ref.mlp_jvp(weights, np.array([[0.5, -0.5]]), np.ones((1, 2)), "relu")
    >>> dy.tolist()
    [[1.0, -2.0]]
    """
    y, layers = _mlp_trace(weights, x, *args, **options)
    d = np.asarray(dx, np.float64)
    for W, (_, z, factors, derivative) in zip(weights, layers, strict=True):
        d = factors * derivative(z) * linear(W, d)
    return y, d


def siren(weights: Sequence[Array], biases: Sequence[Array], x: Array, omega_0: float = 30, omega: float = 30) -> Array:
    """Linear layers with sin(omega_0 h) after the first and sin(omega h) after the other hidden ones.

    >>> weights, biases = [np.ones((2, 1)), np.ones((1, 2))], [np.zeros(2), np.zeros(1)]
    >>> ref.siren(weights, biases, np.array([[0.01]])).round(3).tolist()
    [[0.591]]
    """
    h = np.asarray(x, np.float64)
    for i, (a, b) in enumerate(zip(weights, biases, strict=True)):
        h = linear(a, h, b)
        if i < len(weights) - 1:
            h = np.sin((omega if i else omega_0) * h)
    return h


def siren_bounds(widths: Sequence[int], omega: float = 30) -> list[float]:
    """Bounds of the initial weights after each of the widths but the last (Sitzmann et al. 2020, section 3.2).

    >>> [round(b, 4) for b in ref.siren_bounds([3, 64, 64])]
    [0.3333, 0.0102]
    """
    first, *others = [uniform_bound("siren" if i else "siren_first", n, 0) for i, n in enumerate(widths[:-1])]
    return [first, *(bound / omega for bound in others)]


def _mlp_trace(
    weights: Sequence[Array], x: Array, activation: str, output_activation: str | None = None,
    biases: Sequence[Array | None] | None = None, dropout: MLPDropout | tuple[Any, ...] | None = None,
    dtype: Any = np.float64,
) -> tuple[Array, list[tuple[Array, Array, Array, Function]]]:  # fmt: skip
    """Output of an MLP and, for each layer, (input, pre-activation, dropout factors, f')."""
    drop = None if dropout is None else MLPDropout(*dropout)
    h, layers = np.asarray(x, np.float64), []
    for i, W in enumerate(weights):
        hidden = i + 1 < len(weights)
        f, derivative = activation_named(activation if hidden else output_activation)
        z = linear(W, h, None if biases is None else biases[i])
        factors = drop.factors(i, z.shape, dtype) if hidden and drop is not None else np.ones_like(z)
        layers.append((h, z, factors, derivative))
        h = np.where(factors == 0, 0.0, f(z) * factors)
    return h, layers


def sequential(*functions: Function) -> Function:
    """The composition that applies ``functions`` from left to right.

    >>> ref.sequential(np.abs, np.sqrt)(np.array([[-4.0]])).tolist()
    [[2.0]]
    """
    return lambda x: reduce(lambda h, f: f(h), functions, x)


def residual(f: Function) -> Function:
    """x -> x + f(x) (He et al. 2016, eq. 1).

    >>> ref.residual(np.square)(np.array([[3.0]])).tolist()
    [[12.0]]
    """
    return lambda x: np.asarray(x + f(x))


def skip(f: Function) -> Function:
    """x -> (f(x), x), along the features.

    >>> ref.skip(np.square)(np.array([[3.0]])).tolist()
    [[9.0], [3.0]]
    """
    return lambda x: np.concatenate([f(x), x])


def heads(trunk: Function, *functions: Function) -> Function:
    """x -> (f_1(h), ..., f_k(h)) with h = trunk(x), along the features.

    >>> ref.heads(np.square, np.negative, np.sqrt)(np.array([[3.0]])).tolist()
    [[-9.0], [3.0]]
    """
    return sequential(trunk, lambda h: np.concatenate([f(h) for f in functions]))


def neural_field(encoding: Function, network: Function, bounds: tuple[Any, Any] | None = None) -> Function:
    """x -> network(encoding(x)), or of :func:`unit_cube` of x with its bounds.

    >>> ref.neural_field(np.square, np.negative)(np.array([[3.0]])).tolist()
    [[-9.0]]
    >>> ref.neural_field(np.square, np.negative, bounds=(1, 5))(np.array([[3.0]])).tolist()
    [[-0.25]]
    """
    if bounds is None:
        return sequential(encoding, network)
    return sequential(lambda x: unit_cube(x, *bounds), encoding, network)


def numerical_gradient(field: Function, p: Array, eps: float) -> Array:
    """Gradient of a function with one output by central differences, shape (coordinates, samples).

    >>> ref.numerical_gradient(lambda p: (p**2).sum(0, keepdims=True), np.array([[1.0], [2.0]]), 1e-3).round(6).tolist()
    [[2.0], [4.0]]
    """
    p = np.asarray(p, np.float64)
    steps = [eps * np.eye(len(p))[:, i : i + 1] for i in range(len(p))]
    return np.concatenate([(field(p + e) - field(p - e)) / (2 * eps) for e in steps])
