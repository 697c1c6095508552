"""
A radiance cache
================

You train a field on the light in a scene while it is path traced, and let paths end in it after a bounce.
"""

# %%
# Most of a path tracer's time goes into indirect light of several bounces, which is smooth. A *radiance cache* (Müller
# et al. 2021) is a field. Its inputs are a point, a direction and the properties of the surface there, and its output
# is the light that leaves. Its training data are the paths themselves: a vertex of a path gives the input, the rest of
# the path gives the target.

import time

import matplotlib.pyplot as plt
import mitsuba as mi
import numpy as np

import coopnet as cn

mi.set_variant(f"{cn.backend.require('auto')}_ad_rgb")
SIDE, STEPS = 256, 300

# %%
# The scene is Mitsuba's Cornell box, with a brushed metal and a golden box, and a polished chequered floor.

described = mi.cornell_box()
described["sensor"]["film"] |= {"width": SIDE, "height": SIDE, "rfilter": {"type": "box"}}
described["large-box"]["bsdf"] = {"type": "roughconductor", "material": "Al", "alpha": 0.15}
gold = {"type": "rgb", "value": [0.8, 0.5, 0.1]}
described["small-box"]["bsdf"] = {
    "type": "principled",
    "base_color": gold,
    "roughness": 0.25,
    "metallic": 0.8,
}
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
path = mi.load_dict({"type": "path", "max_depth": 64})


def render(integrator, spp, seed):
    """Picture and seconds; a first call compiles."""
    mi.render(scene, integrator=integrator, spp=spp, seed=1000 + seed).numpy()
    start = time.perf_counter()
    picture = mi.render(scene, integrator=integrator, spp=spp, seed=seed).numpy()
    return picture, time.perf_counter() - start


reference = np.mean(
    [mi.render(scene, integrator=path, spp=256, seed=s).numpy() for s in range(50, 54)], axis=0
)

# %%
# Training
# --------
#
# Training needs only the scene. Camera paths are traced and a step of Adam follows, all in one frozen function. The
# rest of a path ends in the cache, too, so paths are short, and light of many bounces arrives after some steps. Look at
# the picture of the cache alone (``vertices=0``, no noise but that of the pixel) while it learns.

cache = cn.mitsuba.RadianceCache(scene, seed=1)
looks = {}
for steps in (5, 20, 75, STEPS):
    cache.train(steps - cache.steps, samples=1 << 12)
    looks[steps] = mi.render(
        scene, integrator=cache.integrator(vertices=0), spp=8, seed=3
    ).numpy()
print(f"{cache.steps} steps")


def show(axis, picture, title):
    axis.imshow(np.clip(1.5 * picture, 0, 1) ** (1 / 2.2))
    axis.set_title(title, fontsize=10)
    axis.axis("off")


figure, axes = plt.subplots(1, 5, figsize=(12, 2.7), layout="constrained")
for axis, (steps, picture) in zip(axes, looks.items(), strict=False):
    show(axis, picture, f"{steps} steps")
show(axes[4], reference, "reference, 1024 samples")
plt.show()

# %%
# Rendering
# ---------
#
# With ``vertices=1`` paths gather over one bounce before they end. That brings some noise back and hides most of the
# cache's own error. Emitters are sampled as always, so shadows and highlights of lamps are exact. How do the two
# compare in equal time? The time of the training is the same for pictures of any size, and is left out here.


def relmse(picture):
    return float(np.mean((picture - reference) ** 2 / (reference**2 + 1e-2)))


gather = cache.integrator(vertices=1)
_, seconds_of_16 = render(path, 16, 1)
cached, seconds = render(gather, 32, 1)
spp = max(1, round(16 * seconds / seconds_of_16))
traced, path_seconds = render(path, spp, 1)
print(f"cache: 32 samples, {seconds:.2f} s, relMSE {relmse(cached):.4f}")
print(f"path: {spp} samples, {path_seconds:.2f} s, relMSE {relmse(traced):.4f}")

figure, axes = plt.subplots(2, 3, figsize=(10, 5.4), height_ratios=[2, 1], layout="constrained")
top, left, high, wide = 160, 120, 50, 100
for column, (title, picture) in zip(axes.T, {
    f"path, {spp} samples, {path_seconds:.1f} s": traced,
    f"cache, 32 samples, {seconds:.1f} s": cached,
    "reference, 1024 samples": reference,
}.items(), strict=True):  # fmt: skip
    show(column[0], picture, title)
    show(column[1], picture[top : top + high, left : left + wide], "")
plt.show()

# %%
# The light itself
# ----------------
#
# Any program that has a surface interaction can query the cache: ``cache.radiance(si)``. Here is the light that leaves
# everything in the box upwards: seen from just below the ceiling, without a camera, a path or noise.

n = 200
u, v = np.meshgrid((np.arange(n) + 0.5) / n * 2 - 1, (np.arange(n) + 0.5) / n * 2 - 1)
ray = mi.Ray3f(
    mi.Point3f(mi.Float(u.ravel()), 0.95, mi.Float(v.ravel())), mi.Vector3f(0, -1, 0)
)
si = scene.ray_intersect(ray)
start = time.perf_counter()
light = cache.radiance(si).numpy().T.reshape(n, n, 3)
print(f"{n * n} points in {time.perf_counter() - start:.2f} s")

down = mi.ScalarTransform4f().look_at(origin=[0, 0.95, 0], target=[0, -1, 0], up=[0, 0, -1])
film = {"type": "hdrfilm", "width": n, "height": n, "rfilter": {"type": "box"}}
above = mi.load_dict(
    {"type": "orthographic", "to_world": down, "film": film, "near_clip": 1e-3}
)
traced = mi.render(scene, sensor=above, integrator=path, spp=512, seed=5).numpy()
figure, axes = plt.subplots(1, 2, figsize=(8, 4.2), layout="constrained")
show(axes[0], light, "the cache, one evaluation per pixel")
show(axes[1], traced, "path traced, 512 samples per pixel")
plt.show()

# %%
# Diffuse light is about right everywhere, since paths get everywhere. Highlights are not: few training paths asked how
# the boxes reflect towards the ceiling. That is why a picture should gather over a bounce before it queries the cache.

# %%
# .. seealso::
#
#    :doc:`/mitsuba_light` says how the cache is trained, when it pays, and where it errs: small, bright reflections are
#    learned last. ``examples/radiance_cache.py`` draws errors over time with the training counted in.
