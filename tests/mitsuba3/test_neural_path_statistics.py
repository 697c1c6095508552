"""Pictures of ``neural_path`` and ``path`` with random numbers of their own: the same but for noise."""

from __future__ import annotations

import numpy as np
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")

from support.spheres import environment, material, numbers, spheres  # noqa: E402 - needs Mitsuba

SEEDS = 24


def estimates(scene, integrator, first):
    """Pictures ``(seeds, height, width, 3)`` of other seeds each."""
    pictures = [mi.render(scene, integrator=integrator, seed=first + i) for i in range(SEEDS)]
    return np.stack([numbers(picture) for picture in pictures])


@pytest.mark.slow
def test_same_mean_as_path(backend):
    mi.set_variant(f"{backend}_ad_rgb")
    materials = [material(), {"type": "dielectric"}, material(code=(0.2, 0.6), lobes=(0.7, 0.1)), {"type": "plastic"}]
    scene = spheres(materials, size=8, spp=256, sky=environment())
    ours = estimates(scene, cn.mitsuba.NeuralPath(max_depth=6, rr_depth=2), 1000)
    wanted = estimates(scene, mi.load_dict({"type": "path", "max_depth": 6, "rr_depth": 2}), 2000)
    difference = ours.mean(axis=0) - wanted.mean(axis=0)
    error = np.sqrt((ours.var(axis=0, ddof=1) + wanted.var(axis=0, ddof=1)) / SEEDS)
    still = error < 1e-5  # the sky alone
    assert np.abs(difference[still]).max(initial=0) < 1e-4
    z = difference[~still] / error[~still]
    assert z.size > 100
    # some hundred values of Student's distribution, not all independent: of unbiased pictures, none is beyond 5, and
    # their squares have a mean near 1
    assert np.abs(z).max() < 5.5, np.abs(z).max()
    assert 0.6 < np.mean(z**2) < 1.6, np.mean(z**2)
    whole = difference.mean() / np.sqrt(np.sum(error**2)) * error.size
    assert abs(whole) < 5
