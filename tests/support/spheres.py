"""Small Mitsuba scenes with neural materials."""

from __future__ import annotations

import mitsuba as mi
import numpy as np

import coopnet as cn


def decoder(latent=1, seed=1, directions="plain", width=4, **options):
    inputs = latent + {"rusinkiewicz": 8, "plain": 6}[directions]
    options = {"activation": "softplus"} | options
    field = cn.NeuralField(None, cn.MLP(inputs, 3, width=width, depth=1, bias=True, **options))
    return cn.mitsuba.Decoder(cn.mitsuba.build(field, seed=seed), latent, directions)


def material(made=None, code=(0.3,), lobes=(0.4, 0.3)):
    return cn.mitsuba.NeuralBSDF(decoder(len(code)) if made is None else made, latent=list(code), lobes=lobes)


def colour(*values):
    return {"type": "rgb", "value": list(values)}


def spheres(materials, size=10, spp=8, **more):
    """Spheres of ``materials`` on a diffuse floor, under a sky and an area light; ``more`` parts replace those."""
    to = mi.ScalarTransform4f()
    parts = {
        "type": "scene",
        "sensor": {
            "type": "perspective",
            "fov": 40,
            "to_world": to.look_at([0, -6, 3], [0, 0, 0.5], [0, 0, 1]),
            "film": {"type": "hdrfilm", "width": size, "height": size, "rfilter": {"type": "box"}},
            "sampler": {"type": "independent", "sample_count": spp},
        },
        "floor": {"type": "rectangle", "to_world": to.scale(5), "bsdf": {"type": "diffuse"}},
        "sky": {"type": "constant", "radiance": colour(0.5, 0.6, 0.7)},
        "lamp": {
            "type": "rectangle",
            "to_world": to.look_at([0, -2, 5], [0, 0, 0], [0, 1, 0]),
            "emitter": {"type": "area", "radiance": colour(8, 8, 7)},
        },
    } | more
    for i, bsdf in enumerate(materials):
        place = [i % 2 * 2 - 1, i // 2 * 2 - 1, 0.9]
        parts[f"s{i}"] = {"type": "sphere", "center": place, "radius": 0.9, "bsdf": bsdf}
    return mi.load_dict({k: v for k, v in parts.items() if v is not None})


def environment():
    """A sky with a bright spot."""
    pixels = np.full((8, 16, 3), 0.2, np.float32)
    pixels[2, 5] = 20
    return {"type": "envmap", "bitmap": mi.Bitmap(pixels), "scale": 1.0}


def numbers(image):
    return np.asarray(image.numpy(), np.float64)
