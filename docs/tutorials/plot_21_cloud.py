"""
A cloud from a field
====================

You fit a hash grid to a cloud, render it with Mitsuba's own volume integrator, and let it glow in ``neural_volpath``.
"""

# %%
# Mitsuba reads densities of media from grids. A field can take the place of a grid: ``NeuralVolume`` is a volume for
# Mitsuba's ``heterogeneous`` medium, and ``NeuralMedium`` a whole medium, with density, color and emission from one
# evaluation of one network.

import time

import drjit as dr
import matplotlib.pyplot as plt
import mitsuba as mi
import numpy as np

import coopnet as cn

mi.set_variant(f"{cn.backend.require('auto')}_ad_rgb")
cn.mitsuba.register()  # neural_volpath
N, SIDE, SCALE = 96, 96, 15.0

# %%
# The cloud
# ---------
#
# Waves of four octaves inside a ball, on 96 cells a side: 3.5 MB. The field has tables of 2048 entries and a network
# of two layers of 16 units.

places = (np.arange(N) + 0.5) / N
z, y, x = np.meshgrid(places, places, places, indexing="ij")
rng, waves = np.random.default_rng(0), np.zeros_like(x)
for i in range(20):
    k = rng.normal(size=3) * 2.0 ** (1 + i / 6)
    waves += 2.0 ** (-i / 14) * np.sin(
        2 * np.pi * (k[0] * x + k[1] * y + k[2] * z + rng.random())
    )
radius = np.sqrt((x - 0.5) ** 2 + (y - 0.5) ** 2 + (z - 0.5) ** 2)
cells = np.clip(2.5 * (1 - radius / 0.48) * (0.6 + 0.5 * waves), 0, 1)
cells = np.where(radius < 0.48, cells, 0).astype(np.float32)

grid = cn.Grid(
    3,
    n_levels=6,
    n_features_per_level=2,
    hashmap_size=1 << 11,
    base_resolution=4,
    per_level_scale=1.7,
)
network = cn.MLP(-1, 1, width=16, depth=2, output_activation="softplus")
field = cn.mitsuba.build(cn.NeuralField(grid, network))
texture = dr.auto.ad.Texture3f(mi.TensorXf(cells[..., None]), wrap_mode=dr.WrapMode.Clamp)


def batch(key):
    p = mi.Point3f(*cn.uniform(3, key, mi.Float, 1 << 14))
    return p, texture.eval(p)


result = cn.fit(field, batch, 1000, lr=cn.training.cosine(1e-2, 1000), progress=False)
size = sum(dr.width(value) * dr.itemsize_v(value) for _, value in field.items())
print(f"{cells.nbytes / 1e3:.0f} kB in the grid, {size / 1e3:.0f} kB in the field")

# %%
# In Mitsuba
# ----------
#
# Distances to collisions are sampled with an upper bound of the density, the *majorant*. For a grid it is the largest
# entry. For a field it is measured: at 2^15 points, and around the densest of them. Densities above the bound would be
# cut to it, so check how much of the volume exceeds it.

volume = cn.mitsuba.NeuralVolume(field)
print(f"majorant {volume.max():.2f}, exceeded: {volume.exceeded()}")


def scene(medium):
    at = mi.ScalarTransform4f
    view = at().look_at(origin=[0.5, 0.7, 3.2], target=[0.5, 0.5, 0.5], up=[0, 1, 0])
    film = {"type": "hdrfilm", "width": SIDE, "height": SIDE, "rfilter": {"type": "box"}}
    blue = {"type": "rgb", "value": [0.15, 0.25, 0.45]}
    return mi.load_dict({
        "type": "scene", "sky": {"type": "constant", "radiance": blue},
        "sun": {"type": "directional", "direction": [-1, -1, -0.5], "irradiance": 6.0},
        "sensor": {"type": "perspective", "to_world": view, "fov": 22, "film": film},
        "cube": {
            "type": "cube", "to_world": at().translate([0.5] * 3).scale(0.5),
            "bsdf": {"type": "null"}, "interior": medium,
        },
    })  # fmt: skip


def heterogeneous(sigma_t):
    return {"type": "heterogeneous", "sigma_t": sigma_t, "albedo": 0.95, "scale": SCALE}


gridvolume = {
    "type": "gridvolume", "grid": mi.VolumeGrid(cells[..., None]), "filter_type": "trilinear",
}  # fmt: skip
whole = cn.mitsuba.NeuralMedium(field, density="none", scale=SCALE, albedo=0.95)
volpath = mi.load_dict({"type": "volpath", "max_depth": 12})
ours = mi.load_dict({"type": "neural_volpath", "max_depth": 12})
ways = {
    "grid, volpath": (heterogeneous(gridvolume), volpath),
    "NeuralVolume, volpath": (heterogeneous(volume), volpath),
    "NeuralMedium, neural_volpath": (whole, ours),
}
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for axis, (name, (medium, integrator)) in zip(axes, ways.items(), strict=True):
    made = scene(medium)
    mi.render(made, integrator=integrator, spp=1, seed=9).numpy()  # compiles
    start = time.perf_counter()
    picture = mi.render(made, integrator=integrator, spp=24, seed=1).numpy()
    seconds = time.perf_counter() - start
    print(f"{name:30} {seconds:5.1f} s, mean {picture.mean():.4f}")
    axis.imshow(np.clip(picture, 0, 1) ** (1 / 2.2))
    axis.set_title(name, fontsize=10)
    axis.axis("off")
    del made
plt.show()

# %%
# The field needs a fraction of the memory, and more time: its network is evaluated at every collision, in ``volpath``
# within virtual calls. So use a field if memory is scarce, or if you have a field anyway.

# %%
# A radiance field as a medium
# ----------------------------
#
# A field for ``ray_march`` has density and color. ``NeuralMedium`` takes it as it is, and emits its light. Here is a
# field of two glowing balls of gas, first marched, then as a medium above a floor, which it lights. (With
# ``light="scattered"`` the color is the albedo, and other lights reach the medium.)

places = [0.38, 0.42, 0.5], [0.64, 0.58, 0.5]


def gas(key):
    """Points, and density and color there as raw numbers, before softplus and sigmoid."""
    p = mi.Point3f(*cn.uniform(3, key, mi.Float, 1 << 13))
    near = [dr.exp(-70 * dr.squared_norm(p - mi.Point3f(*at))) for at in places]
    return p, [30 * (near[0] + near[1]) - 7, 4 + 0 * p.x, 2 - 4 * near[1], 2 - 5 * near[0]]


network = cn.MLP(-1, 4, width=32, depth=2, activation="silu", bias=True)
glow = cn.NeuralField(cn.Sinusoidal(3, in_features=3), network, bounds=(0, 1))
glow = cn.mitsuba.build(glow)
cn.fit(glow, gas, 1500, lr=cn.training.cosine(1e-2, 1500), progress=False)

at = mi.ScalarTransform4f
eye = at().look_at(origin=[0.5, 0.8, 2.6], target=[0.5, 0.4, 0.5], up=[0, 1, 0])
film = {"type": "hdrfilm", "width": SIDE, "height": SIDE, "rfilter": {"type": "box"}}
sensor = {"type": "perspective", "to_world": eye, "fov": 30, "film": film}
tiles = {"type": "checkerboard", "color0": 0.5, "color1": 0.9, "to_uv": at().scale(8)}
lit = mi.load_dict({
    "type": "scene", "sensor": sensor,
    "cube": {
        "type": "cube", "to_world": at().translate([0.5] * 3).scale(0.5),
        "bsdf": {"type": "null"}, "interior": cn.mitsuba.NeuralMedium(glow),
    },
    "floor": {
        "type": "rectangle",
        "to_world": at().translate([0.5, -0.01, 0.5]).rotate([1, 0, 0], -90),
        "bsdf": {"type": "diffuse", "reflectance": tiles},
    },
    "ball": {
        "type": "sphere", "center": [0.5, 0.12, 1.15], "radius": 0.12,
        "bsdf": {"type": "roughconductor", "alpha": 0.1},
    },
})  # fmt: skip

pixel = np.stack(np.meshgrid(*[(np.arange(SIDE) + 0.5) / SIDE] * 2)).reshape(2, -1)
ray, _ = lit.sensors()[0].sample_ray(
    0, 0.5, mi.Point2f(pixel.astype(np.float32)), mi.Point2f(0.5)
)
box = cn.render.OccupancyGrid(8, lower=0, upper=1)
near, far = box.interval(ray)
marched = cn.render.ray_march(glow, ray, near=near, far=far, steps=96)
pictures = {
    "ray_march": marched.color.numpy().T.reshape(SIDE, SIDE, 3),
    "a medium in neural_volpath": mi.render(lit, integrator=ours, spp=192, seed=1).numpy(),
}
figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.8), layout="constrained")
for axis, (name, picture) in zip(axes, pictures.items(), strict=True):
    axis.imshow(np.clip(2 * picture, 0, 1) ** (1 / 2.2))
    axis.set_title(name, fontsize=10)
    axis.axis("off")
plt.show()

# %%
# The gas is the same in both. In the scene it also lights the tiles, and the metal ball mirrors it. ``mi.render`` of
# either integrator with ``params`` has gradients of the weights, so a medium can be trained through pictures.
#
# .. seealso::
#
#    :doc:`/mitsuba_light` has the majorant, gradients, phase functions that are fields, and skies;
#    :doc:`/rendering` describes ``ray_march`` and its modes.
