"""
Where a radiance cache may be trusted
=====================================

Two caches of one scene disagree where neither has learned the light; only there do paths continue.
"""

# %%
# A :doc:`radiance cache </mitsuba_light>` that is queried at the first surface quickly gives a picture without noise,
# but with all of the cache's errors: reflections that few training paths met, and edges of shadows. Gathering over one
# bounce before the query hides them, but costs samples everywhere. If you know where the cache is wrong, you need to
# gather only there.
#
# Train two caches with different seeds. Where they disagree, the training paths did not determine the light.

import time

import drjit as dr
import matplotlib.pyplot as plt
import mitsuba as mi
import numpy as np

import coopnet as cn

mi.set_variant(f"{cn.backend.require('auto')}_ad_rgb")
SIDE, STEPS = 96, 150

described = mi.cornell_box()
described["sensor"]["film"] |= {"width": SIDE, "height": SIDE, "rfilter": {"type": "box"}}
described["large-box"]["bsdf"] = {"type": "roughconductor", "material": "Al", "alpha": 0.15}
squares = {"type": "checkerboard", "to_uv": mi.ScalarTransform4f().scale([6, 6, 1])}
squares |= {
    f"color{i}": {"type": "rgb", "value": v}
    for i, v in enumerate(([0.6] * 3, [0.15, 0.15, 0.2]))
}
described["floor"]["bsdf"] = {
    "type": "roughplastic",
    "alpha": 0.2,
    "diffuse_reflectance": squares,
}
scene = mi.load_dict(described)
sensor = scene.sensors()[0]

caches = [cn.mitsuba.RadianceCache(scene, seed=seed) for seed in (1, 2)]
start = time.perf_counter()
for cache in caches:
    cache.train(STEPS, samples=1 << 12)
print(f"{time.perf_counter() - start:.1f} s for {len(caches)} caches of {STEPS} steps")

# %%
# Pixels, not pictures
# --------------------
#
# An integrator can trace single rays. So we draw only chosen pixels.

EVERYWHERE = np.arange(SIDE * SIDE, dtype=np.uint32)


def rays(pixels, spp, seed):
    """A ray for each sample of each pixel, and the sampler for its continuation."""
    sampler = mi.load_dict({"type": "independent"})
    sampler.seed(seed, len(pixels) * spp)
    pixel = dr.repeat(mi.UInt32(pixels), spp)
    place = mi.Point2f(pixel % SIDE, pixel // SIDE) + sampler.next_2d()
    return sensor.sample_ray(0, 0.5, place / SIDE, mi.Point2f(0.5))[0], sampler


def draw(integrator, pixels, spp, seed):
    """The colours of pixels, ``(pixels, 3)``."""
    ray, sampler = rays(pixels, spp, seed)
    colour, *_ = integrator.sample(scene, sampler, ray)
    return np.stack([dr.block_sum(v, spp).numpy() / spp for v in colour], axis=1)


def timed(run):
    """What ``run(seed)`` returns, and the least seconds of three calls after the first."""
    run(1000)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        found = run(1)
        seconds.append(time.perf_counter() - start)
    return found, min(seconds)


# %%
# Where the caches disagree
# -------------------------

asked, gather = (caches[0].integrator(vertices=vertices) for vertices in (0, 1))
path = mi.load_dict({"type": "path", "max_depth": 64})
halves = [
    np.mean([draw(path, EVERYWHERE, 64, seed) for seed in range(k, k + 5)], axis=0)
    for k in (50, 60)
]
reference = np.mean(halves, axis=0)


def disagreement(seed, spp=2):
    """The difference of the caches at the first surface, relative to their values."""
    ray, _ = rays(EVERYWHERE, spp, seed)
    si = scene.ray_intersect(ray)
    a, b = (dr.mean(cache.radiance(si, si.is_valid())) for cache in caches)
    return dr.block_sum(abs(a - b) / (0.5 * (a + b) + 0.05), spp).numpy() / spp


def relative(picture):
    """Squared errors over squares; in the product, the noise of the two references cancels."""
    product = (picture - halves[0]) * (picture - halves[1])
    return product.mean(axis=1) / (np.square(reference).mean(axis=1) + 1e-2)


def error(picture):
    return np.sqrt(np.maximum(relative(picture), 0))


plain, seconds = timed(lambda seed: draw(asked, EVERYWHERE, 8, seed))
apart, more = timed(disagreement)
curve = cn.sparsification(error(plain), apart, norm="rms")
print(f"asking takes {seconds:.2f} s, comparing {more:.2f} s")
print(f"AUSE {curve.ause:.3f}; a disagreement that knows nothing would have {curve.random:.3f}")


def show(axis, values, title, **options):
    values = values.reshape(SIDE, SIDE, -1).squeeze()
    axis.imshow(
        np.clip(1.5 * values, 0, 1) ** (1 / 2.2) if values.ndim == 3 else values, **options
    )
    axis.set_title(title, fontsize=10)
    axis.axis("off")


figure, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
show(axes[0], reference, "path traced")
show(axes[1], plain, "the cache alone")
show(axes[2], error(plain), "its error", cmap="magma", vmin=0, vmax=1)
show(
    axes[3],
    apart,
    "how far two caches disagree",
    cmap="magma",
    vmin=0,
    vmax=np.quantile(apart, 0.99),
)
plt.show()

# %%
# Equal time
# ----------
#
# The tenth of the pixels where the caches disagree most is gathered, the others are queried directly. The plain cache
# gathers everywhere, with as many samples as take the same time. Training times are left out; the second cache has
# doubled them.

limit = np.quantile(apart, 0.9)
SPP = 128


def trusted(seed):
    doubtful = disagreement(seed) > limit
    picture = draw(asked, EVERYWHERE, 8, seed)
    chosen = EVERYWHERE[doubtful]
    picture[chosen] = draw(gather, chosen, SPP, seed + 1)
    return picture


mixed, seconds = timed(trusted)
_, each = timed(lambda seed: draw(gather, EVERYWHERE, 8, seed))
spp = max(1, round(8 * seconds / each))
everywhere, other = timed(lambda seed: draw(gather, EVERYWHERE, spp, seed))
rng = np.random.default_rng(1)
chance = plain.copy()
some = np.sort(rng.permutation(EVERYWHERE)[: SIDE * SIDE // 10])
chance[some] = draw(gather, some, SPP, 7)
ways = {
    "the cache alone, 8 samples": plain,
    f"gathered where two disagree, {seconds:.1f} s": mixed,
    "gathered at random pixels, as many": chance,
    f"gathered everywhere, {spp} samples, {other:.1f} s": everywhere,
}
for name, picture in ways.items():
    print(f"{name:<48}relMSE {relative(picture).mean():.4f}")

figure, axes = plt.subplots(1, 4, figsize=(12, 3.7), layout="compressed")
for axis, (name, picture) in zip(axes, ways.items(), strict=True):
    show(
        axis, picture, name.replace(", ", "\n", 1) + f"\nrelMSE {relative(picture).mean():.4f}"
    )
plt.show()

# %%
# More time does not help the cache alone, because its errors are not noise. Gathering everywhere spends samples on
# walls that the cache knew. Samples pay where the caches disagree, and more than at random pixels. Errors remain where
# both caches are wrong in the same way: neither has seen the light there, and they agree on something smooth.
#
# .. seealso::
#
#    :doc:`/uncertainty` compares the uncertainties. :doc:`/mitsuba_light` has the settings of the cache.

# sphinx_gallery_thumbnail_number = 1
