"""The example of signed distances, small."""

from __future__ import annotations

import re
import runpy

import numpy as np
import pytest
from support.machines import ROOT, python

import coopnet as cn


@pytest.fixture(scope="module")
def example():
    pytest.importorskip("PIL")
    return runpy.run_path(str(ROOT / "examples" / "sdf.py"))


def numbers(found):
    return [float(v) for v in re.findall(r"\d+\.\d+|inf", found)]


def test_the_solids_are_bounds_of_distances(ns, example):
    """No steeper than 1, or tracing would pass through them."""
    p = ns.Array3f(np.random.default_rng(0).uniform(-1, 1, size=(3, 2000)))
    for solid in (example["carved"], example["blended"]):
        slope = cn.numerical_gradient(lambda q, solid=solid: solid(ns, q), p, 1e-3)
        assert np.sqrt((slope.numpy() ** 2).sum(axis=0)).max() < 1.01


def test_distances_of_points(example):
    a = np.array([[0.0, 0, 0], [1, 0, 0]])
    assert example["chamfer"](a, a) == 0 and example["chamfer"](a, a[:0]) == np.inf
    assert example["chamfer"](a, a + [0, 0.25, 0]) == pytest.approx(0.25)


@pytest.mark.slow
def test_a_shape_is_recovered_from_images(ns, backend, example):
    """A tiny network for a few steps: closer in every measure than the ball that it was."""

    def target(p):
        return example["blended"](ns, p)

    field = example["ball"](backend, 200, 24, 2)
    before = numbers(example["compare"](ns, field, target, 48))
    example["recover"](field, backend, 80, 32, 512)
    after = numbers(example["compare"](ns, field, target, 48))
    assert 0.3 < before[0] < after[0] - 0.1 and after[1] < 0.8 * before[1] and after[2] < 0.8 * before[2]


@pytest.mark.slow
def test_a_solid_is_learned(ns, backend, example):
    grid = example["learn"](backend, 40)
    found = numbers(
        example["compare"](ns, lambda p: grid(0.5 * p + 0.5)[0] * 0.01, lambda p: example["carved"](ns, p), 48)
    )
    assert found[0] > 0.8 and found[2] < 0.1


@pytest.mark.slow
def test_options(tmp_path):
    done = python(ROOT / "examples" / "sdf.py", "--help")
    assert done.returncode == 0 and "--quick" in done.stdout
