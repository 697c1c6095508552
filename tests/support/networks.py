"""Networks and what they hold, in NumPy."""

from __future__ import annotations

import inspect

import drjit as dr
import drjit.nn as drnn
import numpy as np

import coopnet as cn
from coopnet.nn.tree import children, walk


def layers():
    """Every layer that the library exports, by name; bases and fields are none."""
    found = {name: getattr(room, name) for room in (cn.nn, cn) for name in room.__all__}
    bases = (cn.Module, cn.nn.Activation, cn.nn.Encoding, cn.NeuralField)
    return {
        name: cls
        for name, cls in sorted(found.items())
        if inspect.isclass(cls) and issubclass(cls, drnn.Module) and cls not in bases
    }


def linears(net):
    """The linear layers in order of evaluation."""
    return [m for m in children(net) if isinstance(m, drnn.Linear)]


def matrices(net):
    """Matrices and biases of the linear layers, packed or not, in float64: ``None`` where a layer has no bias."""
    return _read(net, net.matrix)


def gradients(net):
    """Gradients of what :func:`matrices` returns."""
    return _read(net, net.gradient)


def gradients_in_orders(field, parts, read):
    """What ``read()`` returns after ``dr.backward`` of the first of two ``parts`` (functions without arguments), of the
    second, of their sum, and of their sum the other way round.
    """
    found = []
    for order in ([0], [1], [0, 1], [1, 0]):
        for value in field.values():
            dr.disable_grad(value)
            dr.enable_grad(value)
        first, *others = (parts[i]() for i in order)
        dr.backward(sum(others, first))
        found.append(read())
    return found


def _read(net, read):
    found = [(name, m) for name, m, attribute in walk(net) if attribute is None and isinstance(m, drnn.Linear)]
    weights = [read(f"{name}.weights".lstrip(".")).astype(np.float64) for name, _ in found]
    biases = [None if m.bias is None else read(f"{name}.bias".lstrip(".")).astype(np.float64) for name, m in found]
    return weights, biases


def in_order(weights, biases):
    """Matrices and biases in one list: each layer's matrix, then its bias if it has one."""
    return [v for pair in zip(weights, biases, strict=True) for v in pair if v is not None]


def randomize_biases(net, seed=0):
    """Biases that show, in place of zeros, of a network that is not packed."""
    rng = np.random.default_rng(seed)
    for m in linears(net):
        if m.bias is not None:
            m.bias = type(m.bias)(rng.normal(size=m.bias.shape).astype(m.bias.numpy().dtype) * 0.3)
    return net


def ramp_biases(net):
    """Biases that rise from feature to feature, and more so from layer to layer, of a network that is not packed."""
    for i, m in enumerate(linears(net)):
        if m.bias is not None:
            m.bias = type(m.bias)(np.linspace(-0.3, 0.4, m.config[1]) * (i + 1))
    return net


def weights(field):
    """Copies of all parameters: assigning to an array in place frees the memory of its views."""
    return {name: np.array(value.numpy()) for name, value in field.items()}


def same(a, b):
    """Are the parameters that :func:`weights` returns equal to the bit?"""
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)
