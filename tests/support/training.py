"""Small things to fit."""

from __future__ import annotations

import drjit as dr

import coopnet as cn


def tiny_field(backend):
    """Of two coordinates, with one output."""
    return cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend)


def tiny_batch(ns, samples=64):
    """For :func:`tiny_field`: the product of the coordinates."""

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, samples)
        return [x, y], [x * y]

    return batch


def make_field(backend, precision="auto", encoding=None, dropout=0.1, seed=0):
    """Of two coordinates, with two outputs."""
    network = cn.MLP(out_features=2, width=8, depth=2, dropout=dropout)
    return cn.NeuralField(encoding or cn.Sinusoidal(3, in_features=2), network).build(backend, precision, seed=seed)


def make_batch(ns, samples=256):
    """For :func:`make_field`."""

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, samples)
        return [x, y], [dr.sin(6 * x) * y, x * y]

    return batch
