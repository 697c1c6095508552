"""Parameters of plugins that are replaced by shorter ones, and textures as lights of paths from emitters."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest

mi = pytest.importorskip("mitsuba")

import coopnet as cn  # noqa: E402

pytestmark = pytest.mark.usefixtures("variant")


def made(inputs, **options):
    return cn.mitsuba.build(cn.NeuralField(None, cn.MLP(inputs, 3, width=8, depth=1, **options)))


GRID = cn.Grid(2, "dense", n_levels=1, n_features_per_level=2, base_resolution=5)


@pytest.mark.parametrize("latent", [[0.1, 0.2], GRID], ids=["constant", "grid"])
def test_sizes_stay(latent):
    """A kernel would read beyond the end of shorter arrays."""
    texture, bsdf = cn.mitsuba.NeuralTexture(made(2)), cn.mitsuba.NeuralBSDF(cn.mitsuba.Decoder(made(10)), latent)
    for plugin, names in ((texture, ["network.weights"]), (bsdf, ["decoder.network.weights", "latent", "lobes"])):
        params = mi.traverse(plugin)
        for name in names:
            (key,) = [k for k in params.keys() if k.startswith(name)]  # noqa: SIM118 - it is no mapping
            before = type(params[key])(params[key])
            params[key] = type(before)([1, 2, 3])
            with pytest.raises(ValueError, match=r"has 3 (entries|numbers) now; \d+ are needed"):
                params.update()
            params[key] = before
            params.update()


def test_light_paths():
    """The particle tracer asks a radiance for its spectrum; it is not biased, and the picture that of ``path``."""
    light = cn.mitsuba.NeuralTexture(made(2, output_activation="softplus"), clamp=False)
    film = {"type": "hdrfilm", "width": 4, "height": 4, "rfilter": {"type": "box"}, "sample_border": False}
    view = mi.ScalarTransform4f().look_at([0, -2, 4], [0, 0, 0], [0, 0, 1])
    above = mi.ScalarTransform4f().translate([0, 0, 1]).rotate([1, 0, 0], 180)
    scene = mi.load_dict({
        "type": "scene",
        "sensor": {"type": "perspective", "fov": 20, "to_world": view, "film": film},
        "ground": {"type": "rectangle", "to_world": mi.ScalarTransform4f().scale(4)},
        "light": {"type": "rectangle", "to_world": above, "emitter": {"type": "area", "radiance": light}},
    })  # fmt: skip
    options = [("path", 2**10), ("ptracer", 2**16)]
    pictures = [np.array(mi.render(scene, integrator=mi.load_dict({"type": n}), spp=s)) for n, s in options]
    assert np.allclose(*(p.mean((0, 1)) for p in pictures), rtol=0.05)


@pytest.mark.parametrize("latent", [[0.3, 0.4], GRID], ids=["constant", "grid"])
def test_numbers_of_numpy_in_a_frozen_render(latent):
    """Calls would read NumPy's memory at the address of the recording, where later other numbers are, or none."""
    bsdf = cn.mitsuba.NeuralBSDF(cn.mitsuba.Decoder(made(10, bias=True)), latent, lobes=[0.5, 0.3])
    scene = mi.load_dict({
        "type": "scene", "light": {"type": "constant"}, "ball": {"type": "sphere", "bsdf": bsdf},
        "sensor": {"type": "perspective", "film": {"type": "hdrfilm", "width": 6, "height": 6},
                   "to_world": mi.ScalarTransform4f().look_at([0, -4, 1], [0, 0, 0], [0, 0, 1])},
    })  # fmt: skip
    integrator, params = cn.mitsuba.NeuralPath(max_depth=3), mi.traverse(scene)
    frozen = dr.freeze(lambda scene, integrator, seed: mi.render(scene, integrator=integrator, spp=2, seed=seed))
    (key,) = [k for k in params.keys() if ".latent" in k]  # noqa: SIM118 - it is no mapping
    first = np.array(params[key]).ravel()
    for i in range(6):
        params[key] = mi.Float((first + 0.3 * i).astype(np.float32))
        params.update()
        picture = frozen(scene, integrator, dr.opaque(mi.UInt32, 3)).numpy()
        expected = mi.render(scene, integrator=integrator, spp=2, seed=3).numpy()
        np.testing.assert_allclose(picture, expected, rtol=1e-3, atol=1e-4)
