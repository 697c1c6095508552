"""Learning Mitsuba's BSDFs: how close the default network comes, by which directions, and how long it takes.

    python benchmarks/bsdf_fits.py --backend llvm [--quick] [--only diffuse,principled]

Each row is a run of ``cn.mitsuba.fit_bsdf``: the relative error of held-out samples, the mean albedo and the relative
standard deviation of the weights of samples, each beside the reference's, and the wall time with compilation.
"""

from __future__ import annotations

import time

import common
import mitsuba as mi

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


def main() -> None:
    args = common.arguments(
        __doc__.split("\n")[0],
        only={"default": "", "help": f"some of {', '.join(MATERIALS)}"},
        quick={"action": "store_true", "help": "few steps, one material"},
    )
    mi.set_variant(f"{args.backend}_ad_rgb")
    names = args.only.split(",") if args.only else list(MATERIALS)[: 1 if args.quick else None]
    options = dict(steps=20, samples=512) if args.quick else dict(steps=2000, samples=1 << 14)
    results = []
    for name in names:
        for directions in ("rusinkiewicz", "plain"):
            start = time.perf_counter()
            found = cn.mitsuba.fit_bsdf(None, mi.load_dict(MATERIALS[name]), directions=directions, **options)
            row = {"material": name, "directions": directions, **options, "seconds": time.perf_counter() - start}
            row |= {"relative_error": found.relative_error, "albedo": found.albedo}
            row |= {"reference_albedo": found.reference_albedo, "spread": found.spread}
            results.append(row | {"reference_spread": found.reference_spread})
            print(f"{name:20} {directions:13} {row['seconds']:6.1f} s  {found}", flush=True)
    print(common.write("bsdf_fits", args.backend, results, args.out))


if __name__ == "__main__":
    main()
