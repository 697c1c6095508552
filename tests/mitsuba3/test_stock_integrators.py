"""Neural textures and BSDFs in Mitsuba's own integrators."""

from __future__ import annotations

import numpy as np
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")

QUICK = ("direct", "path", "prb")
INTEGRATORS = {
    "direct": {}, "path": {}, "volpath": {}, "volpathmis": {}, "prb": {}, "prb_basic": {}, "prbvolpath": {},
    "direct_projective": {}, "prb_projective": {}, "ptracer": {},
    "moment": {"nested": {"type": "path", "max_depth": 3}},
    "aov": {"aovs": "albedo:albedo,uv:uv", "nested": {"type": "path", "max_depth": 3}},
}  # fmt: skip


def scene():
    """A square whose left half shows a texture and whose right half is a neural BSDF, under an area light."""

    def built(inputs, **options):
        network = cn.MLP(inputs, 3, width=8, depth=1, bias=True, **options)
        return cn.mitsuba.build(cn.NeuralField(None, network))

    bsdf = cn.mitsuba.NeuralBSDF(cn.mitsuba.Decoder(built(8)))
    texture = cn.mitsuba.NeuralTexture(built(2, output_activation="sigmoid"))
    view = mi.ScalarTransform4f().look_at(origin=[0, 0, 4], target=[0, 0, 0], up=[0, 1, 0])
    beside = mi.ScalarTransform4f().look_at(origin=[2, 1, 3], target=[0, 0, 0], up=[0, 1, 0])
    left, right = (mi.ScalarTransform4f().translate([x, 0, 0]).scale([0.5, 1, 1]) for x in (-0.5, 0.5))
    return mi.load_dict({
        "type": "scene",
        "sensor": {
            "type": "perspective", "fov": 25, "to_world": view,
            "film": {"type": "hdrfilm", "width": 8, "height": 8, "rfilter": {"type": "box"}},
        },
        "light": {"type": "rectangle", "to_world": beside, "emitter": {"type": "area", "radiance": 5.0}},
        "left": {"type": "rectangle", "to_world": left, "bsdf": {"type": "diffuse", "reflectance": texture}},
        "right": {"type": "rectangle", "to_world": right, "bsdf": bsdf},
    })  # fmt: skip


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in INTEGRATORS])
def test_stock_integrators(name, backend):
    """Finite, and the same brightness as in ``direct``, which nothing is added to here."""
    mi.set_variant(f"{backend}_ad_rgb")
    s, depth = scene(), {} if name in ("direct", "moment", "aov") else {"max_depth": 3}
    integrator = mi.load_dict({"type": name, **INTEGRATORS[name], **depth})
    image = mi.render(s, integrator=integrator, spp=256).numpy()
    assert image.shape[:2] == (8, 8) and np.isfinite(image).all()
    direct = mi.render(s, integrator=mi.load_dict({"type": "direct"}), spp=256).numpy()
    for half in (np.s_[:, :4, :3], np.s_[:, 4:, :3]):
        assert image[half].mean() > 0.01 and image[half].mean() == pytest.approx(direct[half].mean(), rel=0.15)
