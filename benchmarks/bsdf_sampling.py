"""Sampling learned BSDFs: the spread of the weights of samples, by the reference, by one lobe, and by fitted mixtures.

    python benchmarks/bsdf_sampling.py --backend llvm [--quick] [--only "diffuse;principled"]

Every material is learned once by ``cn.mitsuba.fit_bsdf`` and then sampled in three ways: by one isotropic GGX lobe
beside a cosine lobe (two numbers), by a mixture of eight numbers that is the same for all directions, and by the
network that reads the eight numbers off the direction of incidence (the default). Materials that transmit have fifteen
numbers instead of eight, and no row of one lobe; incidence is from both sides.

A row has the relative standard deviation of the weights ``f / pdf`` over the hemisphere of incidence, beside that of
the reference's own sampling, and the largest weight over the mean. ``fewer_samples`` is how many times fewer samples
the network needs than the one lobe for the same noise: the ratio of the squares of the deviations.
"""

from __future__ import annotations

import time

import common
import drjit as dr
import mitsuba as mi

import coopnet as cn
from coopnet.mitsuba.bsdf.latent import Latent
from coopnet.mitsuba.bsdf.lobe_fit import fit_lobes
from coopnet.mitsuba.bsdf.reflections import draw, weights

CONDUCTOR, PLASTIC, PRINCIPLED = ({"type": name} for name in ("roughconductor", "roughplastic", "principled"))
MATERIALS: dict[str, dict] = {
    **{
        f"roughconductor {kind} {alpha}": CONDUCTOR | {"distribution": kind, "alpha": alpha}
        for kind in ("beckmann", "ggx")
        for alpha in (0.05, 0.1, 0.25, 0.5)
    },
    **{
        f"roughconductor {kind} {u} x {v}": CONDUCTOR | {"distribution": kind, "alpha_u": u, "alpha_v": v}
        for kind in ("beckmann", "ggx")
        for u, v in ((0.3, 0.1), (0.1, 0.5))
    },
    **{
        f"roughplastic {kind} {alpha}": PLASTIC | {"distribution": kind, "alpha": alpha}
        for kind in ("beckmann", "ggx")
        for alpha in (0.1, 0.3)
    },
    "principled": PRINCIPLED,
    "principled smooth": PRINCIPLED | {"roughness": 0.15, "specular": 0.6},
    "principled metallic": PRINCIPLED | {"roughness": 0.3, "metallic": 1.0},
    "principled anisotropic": PRINCIPLED | {"roughness": 0.4, "metallic": 0.7, "anisotropic": 0.8},
    "principled clear coat": PRINCIPLED | {"roughness": 0.4, "metallic": 0.3, "clearcoat": 1.0},
    "principled sheen": PRINCIPLED | {"roughness": 0.6, "sheen": 1.0},
    "diffuse": {"type": "diffuse"},
    "blend with diffuse": {
        "type": "blendbsdf",
        "weight": 0.4,
        "a": CONDUCTOR | {"alpha": 0.1},
        "b": {"type": "diffuse"},
    },
    "blend with plastic": {
        "type": "blendbsdf",
        "weight": 0.5,
        "a": CONDUCTOR | {"alpha_u": 0.1, "alpha_v": 0.3},
        "b": PLASTIC | {"alpha": 0.05},
    },
    **{
        f"roughdielectric {kind} {alpha}": {"type": "roughdielectric", "distribution": kind, "alpha": alpha}
        for kind in ("beckmann", "ggx")
        for alpha in (0.1, 0.3)
    },
    "principled glass": PRINCIPLED | {"spec_trans": 1.0, "roughness": 0.4},
    "principled half glass": PRINCIPLED | {"spec_trans": 0.5, "roughness": 0.4},
    "principledthin": {"type": "principledthin", "spec_trans": 0.5, "diff_trans": 0.6},
}
#: The narrowest highlight, learned for longer.
LONG = "roughconductor beckmann 0.05, 8000 steps"
MATERIALS[LONG] = MATERIALS["roughconductor beckmann 0.05"]


def one_lobe(reference: mi.BSDF, steps: int, samples: int) -> list[float]:
    """Weight and roughness of one isotropic GGX lobe that maximize the likelihood of directions of ``reference``."""
    grid = cn.Grid(2, "dense", n_levels=1, n_features_per_level=2, base_resolution=2)
    lobe = cn.mitsuba.build(cn.NeuralField(grid, cn.Identity()))

    def params(field: cn.NeuralField, width: int) -> list:
        return cn.mitsuba.lobes.from_raw(field(dr.full(mi.Point2f, 0.5, width)))

    def objective(field: cn.NeuralField, drawn: tuple, key: cn.Key) -> mi.Float:
        density = cn.mitsuba.lobes.pdf(params(field, dr.width(drawn.wi)), drawn.wi, drawn.wo)
        weight = dr.minimum(mi.luminance(drawn.value) / drawn.pdf, 20)
        return dr.select(drawn.valid, -weight * dr.log(density + 1e-6), 0)

    rate = cn.training.cosine(0.1, steps)
    cn.fit(lobe, lambda key: draw(reference, key, samples), steps, lr=rate, objective=objective, progress=False)
    return [float(v[0]) for v in params(lobe, 1)]


def figures(bsdf: mi.BSDF, samples: int) -> dict[str, float]:
    """Spread of the weights of samples, and the largest weight over the mean."""
    found = weights(bsdf, cn.Key(9), samples).numpy().astype(float)
    return {"spread": found.std() / found.mean(), "largest": found.max() / found.mean()}


def main() -> None:
    args = common.arguments(
        __doc__.split("\n")[0],
        only={"default": "", "help": f"some of {'; '.join(MATERIALS)}"},
        quick={"action": "store_true", "help": "few steps, one material"},
    )
    mi.set_variant(f"{args.backend}_ad_rgb")
    names = args.only.split(";") if args.only else list(MATERIALS)[: 1 if args.quick else None]
    options = dict(steps=20, samples=512) if args.quick else dict(steps=2000, samples=1 << 13)
    count = 1 << (12 if args.quick else 18)
    results = []
    for name in names:
        start = time.process_time()
        reference = mi.load_dict(MATERIALS[name])
        longer = {"steps": 8000, "lr": 1e-2} if name == LONG and not args.quick else {}
        found = cn.mitsuba.fit_bsdf(None, reference, **options | longer)
        decoder, fits = found.bsdf.decoder, {"network": found.bsdf}
        steps, samples = max(400, (options | longer)["steps"] // 2), min(options["samples"], 4096)  # as fit_bsdf
        constant = Latent(None, "bsdf_sampling", "latent")
        constants = fit_lobes(reference, decoder, constant, 1, steps, samples, {"seed": 0, "progress": False})
        kinds = {"fifteen numbers": constants}
        if decoder.eta is None:
            kinds = {"eight numbers": constants, "one lobe": one_lobe(reference, steps, samples)}
        fits |= {kind: cn.mitsuba.NeuralBSDF(decoder, lobes=lobes) for kind, lobes in kinds.items()}
        row = {"material": name, **options, **longer, "relative_error": found.relative_error}
        row |= {"albedo": found.albedo, "reference_albedo": found.reference_albedo}
        row["reference"] = figures(reference, count)
        row |= {kind: figures(bsdf, count) for kind, bsdf in fits.items()}
        if "one lobe" in row:
            row["fewer_samples"] = (row["one lobe"]["spread"] / row["network"]["spread"]) ** 2
        row["cpu_seconds"] = time.process_time() - start
        results.append(row)
        spreads = "  ".join(f"{kind} {row[kind]['spread']:.3f}" for kind in ("reference", *fits))
        print(f"{name:32} {spreads}  {row['cpu_seconds']:.0f} s", flush=True)
        path = common.write("bsdf_sampling", args.backend, results, args.out)
    print(path)


if __name__ == "__main__":
    main()
