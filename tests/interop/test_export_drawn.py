"""Exported fields with whatever a key draws: levels of grids, parameters, displacements and members."""

from __future__ import annotations

import numpy as np
import pytest
from support.exported import SAMPLES, Library, agree, evaluated, run_numpy

import coopnet as cn


def batch(key):
    x, y = cn.uniform(2, key, cn.backend.namespace("llvm").Float, 64)
    return [x, y], [x, x * y]


def make(encoding=None, *, levels=None, seed=0, dropout=0.0):
    network = cn.MLP(-1 if encoding else 2, 2, width=8, depth=1, activation="tanh", dropout=dropout, bias=True)
    network = cn.Sequential(levels, network) if levels else network
    return cn.NeuralField(encoding, network, in_features=2).build("llvm", seed=seed)


def grid(features=2, levels=3):
    options = {"hashmap_size": 66, "base_resolution": 4, "n_features_per_level": features, "init_scale": 1.0}
    return cn.HashGrid(2, n_levels=levels, **options)


def two_grids():
    return cn.Composite([grid(), grid(1)], [2, 2], [0, 0])


KINDS = {
    "levels": lambda: make(grid(levels=6), levels=cn.DropLevels(0.5, first=1, bits=32)),
    "levels of samples": lambda: make(grid(), levels=cn.DropLevels(0.5, per_sample=True, bits=8)),
    "parameters of a grid": lambda: cn.laplace(make(grid(6)), batch, 1, prior=0.3),
    "parameters of grids": lambda: cn.laplace(make(two_grids()), batch, 1, prior=0.3),
    "parameters of a layer, and masks": lambda: cn.laplace(make(dropout=0.2), batch, 1, prior=0.3),
    "displacements": lambda: cn.laplace(make(grid()), batch, 1, spatial=(3, 4)),
    "members": lambda: cn.ensemble([make(grid(), seed=seed) for seed in range(3)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_those_of_the_field(tmp_path, kind):
    """Values and derivatives, with a key and without."""
    field = KINDS[kind]()
    x = np.random.default_rng(1).uniform(0.02, 0.98, (2, SAMPLES)).astype(np.float32)
    index = np.random.default_rng(2).integers(0, 2**32, SAMPLES, np.uint32)
    key = np.stack([np.full(SAMPLES, word, np.uint32) if np.ndim(word) == 0 else word for word in (7, 0, index, 4)])
    c = evaluated(field, x, "llvm", cn.Key(7, index, 4))
    written = cn.export(field, "c", tmp_path / "f.c", dropout=True, derivatives=True)
    y, jacobian = Library([written.source], tmp_path).run("field_jacobian", written.weights, x, (2, 4), key)
    agree(y, c.y, 2e-5)
    agree(jacobian, c.jacobian, 2e-4)
    plain = evaluated(field, x, "llvm")
    assert np.abs(c.y - plain.y).max() > 1e-2
    for name, options, expected in (("drawn", {"dropout": True}, c.y), ("plain", {}, plain.y)):
        written = cn.export(field, "numpy", tmp_path / f"{name}.py", **options)
        (y,) = run_numpy(written.source, "field", written.weights, x, *([key] if options else []))
        agree(y, expected, 2e-5)
    assert written.source.stat().st_size > 0


@pytest.mark.filterwarnings("ignore:mc_dropout. dropout cannot reveal")
@pytest.mark.parametrize("kind", KINDS)
def test_pages_show_how_sure_the_field_is(tmp_path, kind):
    view = cn.interop.export.View(show="deviation", masks=6)
    network = cn.NeuralField(None, cn.Linear(2, 2)).build("llvm")  # sure of everything
    with pytest.raises(ValueError, match="show and masks of view: only for images"):
        cn.export(network, "html", tmp_path / "page.html", view=view)
    page = cn.export(KINDS[kind](), "html", tmp_path / "page.html", view=view).source.read_text()
    assert "Philox" in page or "masked_philox" in page or kind == "members"
    assert '"shown": 2' in page


def test_levels_that_there_are_not(tmp_path):
    """Nothing is dropped, so the key is not used, which compilers may not complain about."""
    network = cn.Sequential(cn.DropLevels(0.3, first=1), cn.Linear(-1, 1))
    field = cn.NeuralField(cn.HashGrid(2, n_levels=1, hashmap_size=64), network).build("llvm")
    written = cn.export(field, "c", tmp_path / "f.c", name="f", dropout=True, derivatives=True, inline=True)
    x = np.random.default_rng(0).random((2, 20)).astype(np.float32)
    (y,) = Library([written.source], tmp_path).run("f", None, x, (1,), np.zeros((4, 20), np.uint32))
    np.testing.assert_allclose(y, field([*map(cn.backend.namespace("llvm").Float, x)]).numpy(), atol=1e-6)


def test_members_that_draw_are_refused_in_words(tmp_path):
    field = cn.ensemble([make(dropout=0.2, seed=seed) for seed in range(2)])
    with pytest.raises(ValueError, match="members of an ensemble that draw something themselves"):
        cn.export(field, "c", tmp_path / "f.c", dropout=True)
    cn.export(field, "c", tmp_path / "f.c")
