"""Learning Mitsuba's BSDFs: how close the default network comes, by which directions, and how long it takes.

    python benchmarks/bsdf_fits.py --backend llvm [--quick] [--only diffuse,principled]

Each row is a run of ``cn.mitsuba.fit_bsdf``: the relative error of held-out samples, the mean albedo and the relative
standard deviation of the weights of samples, each beside the reference's, and the wall time with compilation.
``picture`` compares a ball of the material, rendered by Mitsuba's ``path``, with one of what was learned, rendered by
``neural_path``: the mean absolute difference of blocks of 4 x 4 pixels over the mean, the same of two pictures of
Mitsuba's with other random numbers, which is noise, and the ratio of the mean brightnesses.
"""

from __future__ import annotations

import time

import common
import mitsuba as mi
import numpy as np

import coopnet as cn

CONDUCTOR = {"type": "roughconductor", "material": "Au"}
MATERIALS: dict[str, dict] = {
    "diffuse": {"type": "diffuse"},
    "roughconductor 0.3": CONDUCTOR | {"alpha": 0.3},
    "roughconductor 0.05": CONDUCTOR | {"alpha": 0.05},
    "anisotropic": CONDUCTOR | {"alpha_u": 0.3, "alpha_v": 0.1},
    "roughplastic": {"type": "roughplastic", "alpha": 0.1},
    "principled": {"type": "principled", "roughness": 0.4, "metallic": 0.3, "clearcoat": 1.0, "clearcoat_gloss": 0.8},
    "blend": {"type": "blendbsdf", "weight": 0.4, "a": CONDUCTOR | {"alpha": 0.1}, "b": {"type": "diffuse"}},
    "plastic": {"type": "plastic"},
    "mask": {"type": "mask", "opacity": 0.6, "nested": CONDUCTOR | {"alpha": 0.3}},
    "roughdielectric 0.3": {"type": "roughdielectric", "alpha": 0.3},
    "principled glass": {"type": "principled", "spec_trans": 1.0, "roughness": 0.4},
    "principledthin": {"type": "principledthin", "spec_trans": 0.5, "diff_trans": 0.6},
}


def ball(bsdf: mi.BSDF, size: int) -> mi.Scene:
    """One of the material on a checkerboard, under a sky and a lamp."""
    to = mi.ScalarTransform4f()
    squares = {"type": "checkerboard", "color0": 0.1, "color1": 0.7, "to_uv": to.scale(8)}
    film = {"type": "hdrfilm", "width": size, "height": size, "rfilter": {"type": "box"}}
    place = to.look_at([0, -5, 2.5], [0, 0, 0.8], [0, 0, 1])
    lamp = to.look_at([-3, 1, 4], [0, 0, 0], [0, 1, 0])
    return mi.load_dict({
        "type": "scene",
        "sensor": {"type": "perspective", "fov": 30, "to_world": place, "film": film},
        "floor": {"type": "rectangle", "to_world": to.scale(4), "bsdf": {"type": "diffuse", "reflectance": squares}},
        "sky": {"type": "constant", "radiance": 0.5},
        "lamp": {"type": "rectangle", "to_world": lamp, "emitter": {"type": "area", "radiance": 10.0}},
        "ball": {"type": "sphere", "center": [0, 0, 1], "bsdf": bsdf},
    })  # fmt: skip


def render(bsdf: mi.BSDF, kind: str, seed: int, spp: int, size: int = 64) -> np.ndarray:
    """The picture of a :func:`ball`."""
    integrator = mi.load_dict({"type": kind, "max_depth": 12})
    return mi.render(ball(bsdf, size), integrator=integrator, seed=seed, spp=spp).numpy()


def picture(learned: mi.BSDF, reference: mi.BSDF, spp: int) -> dict[str, float]:
    """How much their pictures differ."""
    pictures = (reference, "path", 0), (reference, "path", 1), (learned, "neural_path", 2)
    true, again, ours = (render(*which, spp).reshape(16, 4, 16, 4, 3).mean(axis=(1, 3)) for which in pictures)
    error, noise = (float(np.abs(found - true).mean() / true.mean()) for found in (ours, again))
    return {"error": error, "noise": noise, "brightness": float(ours.mean() / true.mean())}


def main() -> None:
    args = common.arguments(
        __doc__.split("\n")[0],
        only={"default": "", "help": f"some of {', '.join(MATERIALS)}"},
        quick={"action": "store_true", "help": "few steps, one material"},
    )
    mi.set_variant(f"{args.backend}_ad_rgb")
    cn.mitsuba.register()
    names = args.only.split(",") if args.only else list(MATERIALS)[: 1 if args.quick else None]
    options = dict(steps=20, samples=512) if args.quick else dict(steps=2000, samples=1 << 14)
    results = []
    for name in names:
        for directions in ("rusinkiewicz", "plain"):
            start = time.perf_counter()
            reference = mi.load_dict(MATERIALS[name])
            found = cn.mitsuba.fit_bsdf(None, reference, directions=directions, **options)
            row = {"material": name, "directions": directions, **options, "seconds": time.perf_counter() - start}
            row |= {"relative_error": found.relative_error, "albedo": found.albedo}
            row |= {"reference_albedo": found.reference_albedo, "spread": found.spread}
            row |= {"reference_spread": found.reference_spread}
            row["picture"] = picture(found.bsdf, reference, 16 if args.quick else 512)
            results.append(row)
            print(f"{name:20} {directions:13} {row['seconds']:6.1f} s  {found} {row['picture']}", flush=True)
            path = common.write("bsdf_fits", args.backend, results, args.out)
    print(path)


if __name__ == "__main__":
    main()
