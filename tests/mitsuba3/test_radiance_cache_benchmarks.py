"""A radiance cache in the scenes of its benchmarks: what its paths bring on average, and scenes that change."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
from support.machines import ROOT, python

import coopnet as cn

mi = pytest.importorskip("mitsuba")

sys.path.insert(0, str(ROOT / "benchmarks"))

import radiance_cache_bias as bias  # noqa: E402
import radiance_scenes as scenes  # noqa: E402

pytestmark = pytest.mark.usefixtures("variant")


def small_field(backend):
    grid = cn.HashGrid(3, n_levels=2, hashmap_size=2**10, base_resolution=4)
    encoding = cn.Composite([grid, cn.Identity()], [3, 13])
    return cn.NeuralField(encoding, cn.MLP(out_features=3, width=16, depth=1), in_features=16).build(backend)


@pytest.mark.parametrize("ball", ["glass", "rough glass"])
@pytest.mark.parametrize("vertices", [0, 1])
def test_paths_that_end_in_an_oracle_are_right_with_glass(backend, ball, vertices):
    """Whatever ends at an oracle has the mean of ``path``: what a picture is off is the field's error."""
    scene = scenes.make(ball, 8)
    ended = cn.mitsuba.RadianceCache(scene, small_field(backend)).integrator(vertices=vertices)
    ended.output = bias.Oracle(scene)
    means = []
    for integrator, first in ((ended, 0), (mi.load_dict({"type": "path", "max_depth": 64}), 100)):
        found = []
        for seed in range(first, first + 12):
            bias.Oracle.seed = seed
            found.append(mi.render(scene, integrator=integrator, spp=512, seed=seed).numpy().mean())
        means.append((np.mean(found), np.std(found, ddof=1) / math.sqrt(len(found))))
    (ours, a), (theirs, b) = means
    assert abs(ours - theirs) < 4 * math.hypot(a, b) < 0.15 * theirs


def moved(scene, part):
    """Camera and light of the box elsewhere."""
    params = mi.traverse(scene)
    for name, way in (("sensor", [part, 0, 0]), ("light", [0, 0, part])):
        params[f"{name}.to_world"] = mi.Transform4f().translate(way) @ params[f"{name}.to_world"]
    params.update()


def test_steps_that_were_recorded_see_what_moved(backend):
    """Camera and light: replayed steps are those that a cache made afterwards records."""
    scene = scenes.make("matte", 8)
    cache = cn.mitsuba.RadianceCache(scene, small_field(backend))
    before = cache.train(4, samples=256).losses
    for _ in range(4):  # the first changes let a step be recorded once more each
        cache.reset()
        moved(scene, 0.05)
        recordings = cache.train(2, samples=256).recordings
    cache.reset()
    moved(scene, 0.5)
    replayed = cache.train(4, samples=256)
    assert replayed.recordings == recordings
    fresh = cn.mitsuba.RadianceCache(scene, small_field(backend))
    assert fresh.output.box == cache.output.box
    np.testing.assert_allclose(
        replayed.losses, fresh.train(4, samples=256).losses, rtol=0 if backend == "llvm" else 0.05
    )
    assert not np.allclose(replayed.losses, before, rtol=0.01)


@pytest.mark.parametrize("name", scenes.ROOMS)
def test_scenes_are_lit(backend, name):
    """From the camera all rays hit something, and some light comes back."""
    picture = mi.render(scenes.make(name, 8), integrator=mi.load_dict({"type": "path"}), spp=64, seed=0).numpy()
    assert np.isfinite(picture).all() and 0.02 < picture.mean() < 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bias", "rooms", "frames"])
def test_the_benchmarks_run(backend, tmp_path, name):
    script = ROOT / "benchmarks" / f"radiance_cache_{name}.py"
    done = python(script, "--quick", "--backend", backend, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / f"radiance-cache-{name}-{backend}.json").read_text())["results"]
    if name == "frames":
        assert [frame["frame"] for frame in found["curve"]] == [0, 1, 2, 3]
        assert all(min(frame["path"], frame["kept_1"], frame["anew_0"]) > 0 for frame in found["curve"])
    else:
        assert len(found["rows"]) == 3
