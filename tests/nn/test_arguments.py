"""What layers say of themselves follows from their constructors."""

from __future__ import annotations

import drjit as dr
import drjit.nn as drnn
import pytest

import coopnet as cn
from coopnet.nn.arguments import arguments


class Kept(cn.Module):
    """Keeps a number, a layer and nothing of the third argument."""

    def __init__(self, factor=1.0, body=None, other=3):
        self.factor, self.body = factor, body


@pytest.mark.parametrize(
    "layer, expected",
    [
        (cn.ReLU(), {}),
        (cn.LeakyReLU(0.5), {"negative_slope": 0.5}),
        (drnn.LeakyReLU(0.5), {"negative_slope": 0.5}),
        (drnn.SinEncode(3, 0.5), {"octaves": 3, "shift": 0.5}),
        (cn.GaussianDropout(0.25), {"p": 0.25, "stream": None, "rounds": 10}),  # not the draws' bits, which are fixed
        (cn.Frequency(3), {"n_frequencies": 3, "in_features": -1}),
        (cn.SphericalHarmonics(2), {"degree": 2}),
        (drnn.Linear(2, 3), {"in_features": 2, "out_features": 3, "bias": True}),
        (
            cn.Linear(2, 3, False, "zero", 2),
            {"in_features": 2, "out_features": 3, "bias": False, "init": "zero", "gain": 2.0},
        ),
        (Kept(2.0), {"factor": 2.0, "body": None}),
    ],
    ids=lambda v: type(v).__name__,
)
def test_arguments(layer, expected):
    assert arguments(layer) == expected


def test_an_argument_with_the_name_of_a_method():
    assert arguments(cn.Embedding(5, 4))["width"] == 4 and cn.Embedding(5, 4).width(1) == 4


@pytest.mark.parametrize(
    "layer, text",
    [
        (cn.ReLU(), "ReLU()"),
        (cn.Sine(30), "Sine(omega=30.0)"),
        (cn.Softplus(10), "Softplus(beta=10.0)"),
        (cn.Identity(), "Identity()"),
        (cn.Identity(2), "Identity(scale=2.0, offset=0.0)"),
        (cn.GaussianDropout(0.5), "GaussianDropout(p=0.5)"),
        (cn.Sinusoidal(6), "Sinusoidal(octaves=6, shift=0.0, in_features=-1)"),
        (
            cn.Grid(2, "tiled", 3),
            "Grid(in_features=2, storage='tiled', n_levels=3, n_features_per_level=2, hashmap_size=524288, "
            "base_resolution=16, per_level_scale=None, init_scale=0.0001, interpolation='linear', max_level=None, "
            "precision='single')",
        ),
        (Kept(2.0, cn.ReLU()), "Kept(factor=2.0)"),  # a layer may hold itself
    ],
    ids=lambda v: type(v).__name__,
)
def test_reprs(layer, text):
    assert repr(layer) == text


@pytest.mark.parametrize(
    "base", [cn.Fourier, cn.HashGrid, cn.Frequency, cn.Embedding, cn.Dropout, cn.SparseProjection, cn.Composite]
)
def test_allocated_layers_are_copies_of_any_subclass(ns, backend, base):
    class Named(base):
        """Takes other arguments than its base."""

        def __init__(self, name="none"):
            super().__init__(*([[cn.OneBlob(2)]] if base is cn.Composite else []))
            self.name = name

    before = Named("mine")
    state = dict(vars(before))
    after = before.alloc(ns.TensorXf16 if backend == "cuda" else ns.TensorXf, 1, dr.rng(seed=1))
    assert type(after) is Named and after is not before and after.name == "mine"
    assert vars(before) == state
    assert getattr(after, "in_features", 1) == 1
