"""Two passes that evaluate a field with one key give the gradient of a single one: ``examples/replayed_adjoint.py``."""

from __future__ import annotations

import runpy

import drjit as dr
import numpy as np
import pytest
from support.machines import ROOT

import coopnet as cn

# what the page on dropout says of its program, tests/docs/test_pages.py shows faster
pytestmark = pytest.mark.slow

N = 1000


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(ROOT / "examples" / "replayed_adjoint.py"))


def gradient(field, function, *arguments):
    parameters = list(field.values())
    dr.enable_grad(*parameters)
    dr.clear_grad(*parameters)
    function(field, *arguments)
    return np.concatenate([dr.grad(v).numpy().ravel() for v in parameters])


def test_two_passes_have_the_gradient_of_one(example, backend, ns):
    field, key = example["make"](backend, 1), cn.Key(3, step=2)
    p = cn.uniform(2, cn.Key(5), ns.Float, N)
    dr.eval(p)
    right = gradient(field, example["differentiate"], p, key)
    same = gradient(field, example["replay"], p, N, key, key)
    other = gradient(field, example["replay"], p, N, key, cn.Key(4, step=2))
    tolerance = 0 if backend == "llvm" else 0.02 * abs(right).max()
    assert np.abs(same - right).max() <= tolerance < np.abs(other - right).max()


def test_the_figure_is_drawn(example, backend, tmp_path):
    pytest.importorskip("matplotlib")
    fields = {way: example["train"](backend, 1, same, 3) for way, same in example["WAYS"].items()}
    example["draw"](str(tmp_path / "figure.png"), fields, backend)
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    found = example["quality"](fields["same masks"], backend, masks=2, samples=100)
    assert min(found.values()) > 0
