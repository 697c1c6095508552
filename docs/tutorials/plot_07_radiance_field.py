"""
A radiance field from views
===========================

Thirty pictures of a table with things on it become a field of density and colour that can be seen from anywhere.
"""

# %%
# A radiance field (Mildenhall et al. 2020) gives a density and a colour for every point in space. The colour of a
# pixel is what a ray collects on its way: densities hide what lies behind them. All of this is differentiable, so
# pictures from known cameras are enough to learn the field.
#
# The pictures
# ------------
#
# Mitsuba renders them; in practice they would be photographs with poses, as ``cn.render.load_cameras`` reads them.
# Thirty cameras look at the scene from all around, at three heights, and see it against a white sky. The scene lies
# within the unit cube.

import math

import drjit as dr
import matplotlib.pyplot as plt
import mitsuba as mi
import numpy as np

import coopnet as cn

mi.set_variant(f"{cn.backend.require('auto')}_ad_rgb")
SIDE, VIEWS, RAYS, SAMPLES, STEPS = 96, 30, 1 << 10, 48, 600
FOV, TARGET = 36, [0.5, 0.5, 0.33]


def thing(kind, colour, transform):
    bsdf = {"type": "diffuse", "reflectance": {"type": "rgb", "value": colour}}
    return {"type": kind, "bsdf": bsdf, "to_world": transform}


t = mi.ScalarTransform4f
squares = {"type": "checkerboard", "to_uv": t().scale([4, 4, 1])}
squares |= {
    "color0": {"type": "rgb", "value": [0.75, 0.7, 0.6]},
    "color1": {"type": "rgb", "value": [0.3, 0.32, 0.38]},
}
table = thing("cube", [0.5] * 3, t().translate([0.5, 0.5, 0.17]).scale([0.44, 0.44, 0.03]))
table["bsdf"]["reflectance"] = squares
scene = mi.load_dict({
    "type": "scene",
    "integrator": {"type": "path", "max_depth": 4},
    "sky": {"type": "constant", "radiance": 1.0},
    "table": table,
    "ball": thing("sphere", [0.85, 0.2, 0.12], t().translate([0.33, 0.42, 0.38]).scale(0.18)),
    "cube": thing("cube", [0.15, 0.35, 0.8],
        t().translate([0.68, 0.64, 0.34]).rotate([0, 0, 1], 30).scale(0.14)),
    "can": thing("cylinder", [0.15, 0.6, 0.2],
        t().translate([0.7, 0.26, 0.2]).scale([0.1, 0.1, 0.28])),
    "lid": thing("disk", [0.15, 0.6, 0.2], t().translate([0.7, 0.26, 0.48]).scale(0.1)),
})  # fmt: skip


def place(azimuth, height):
    """The position of a camera, given in degrees around the scene and above it."""
    a, h = math.radians(azimuth), math.radians(height)
    return [
        0.5 + 1.8 * math.cos(a) * math.cos(h),
        0.5 + 1.8 * math.sin(a) * math.cos(h),
        0.35 + 1.8 * math.sin(h),
    ]


def photo(eye, spp, seed):
    film = {"type": "hdrfilm", "width": SIDE, "height": SIDE, "rfilter": {"type": "box"}}
    look = t().look_at(origin=eye, target=TARGET, up=[0, 0, 1])
    sensor = mi.load_dict({"type": "perspective", "fov": FOV, "to_world": look, "film": film})
    return np.clip(mi.render(scene, sensor=sensor, spp=spp, seed=seed).numpy(), 0, 1)


eyes = [place(360 * k / VIEWS, (12.0, 30.0, 55.0)[k % 3]) for k in range(VIEWS)]
pictures = [photo(eye, 64, seed) for seed, eye in enumerate(eyes)]

figure, axes = plt.subplots(2, 6, figsize=(11, 3.8), layout="constrained")
for axis, picture in zip(axes.flat, pictures[::2], strict=False):
    axis.imshow(picture ** (1 / 2.2))
    axis.axis("off")
figure.suptitle(f"Twelve of the {VIEWS} views")
plt.show()

# %%
# ``Cameras`` computes the ray of every pixel. A batch draws pixels of any view, and looks up their colours.

cameras = cn.render.Cameras([cn.render.look_at(eye, TARGET) for eye in eyes], SIDE, SIDE, FOV)
colours = mi.Color3f(np.concatenate([p.reshape(-1, 3) for p in pictures]).T.copy())
dr.eval(colours)


def batch(key):
    pixels = cameras.draw(key, RAYS)
    return *cameras.rays(pixels), dr.gather(mi.Color3f, colours, pixels)


# %%
# Training
# --------
#
# ``ray_march`` cuts a ray into bins with a sample in each; the key moves samples within their bins, so that no place is
# left out. It turns the field's four outputs into density and colour. The *occupancy grid* knows which cells of the
# cube are empty, and is updated now and then, in a metric; rays skip empty cells.

encoding = cn.HashGrid(
    3, n_levels=8, base_resolution=8, per_level_scale=1.5, hashmap_size=2**15
)
field = cn.mitsuba.build(
    cn.NeuralField(encoding, cn.MLP(out_features=4, width=32, depth=2)), seed=1
)
grid = cn.render.OccupancyGrid(48, 0, 1)


def march(field, o, d, **options):
    near, far = grid.interval(o, d)
    return cn.render.ray_march(
        field,
        o,
        d,
        near,
        far,
        SAMPLES,
        density="exp",
        occupancy=grid,
        background=1,
        termination=1e-3,
        **options,
    )


def objective(field, drawn, key):
    o, d, wanted = drawn
    return dr.squared_norm(march(field, o, d, key=key).color - wanted)


def look(field):
    grid.update(field, cn.Key(2, step=look.count), density="exp", threshold=0.5)
    look.count += 1
    return grid.share()


look.count = 0
result = cn.fit(
    field, batch, STEPS, objective=objective, lr=cn.training.cosine(1e-2, STEPS),
    metric=look, metric_every=16,
    progress=False,
)  # fmt: skip
print(f"{result.seconds:.1f} s; {grid.share():.1%} of the cells are not empty")

# %%
# New views
# ---------
#
# Cameras that were not among the thirty. Depth comes with the colour, at no cost.


def draw(eye, field=field):
    camera = cn.render.Cameras(cn.render.look_at(eye, TARGET), SIDE, SIDE, FOV)
    with dr.suspend_grad():
        seen = march(field, *camera.rays())
    depth = dr.select(
        seen.transmittance < 0.5, seen.depth / (1 - seen.transmittance), dr.nan
    ).numpy()
    return seen.color.numpy().T.reshape(SIDE, SIDE, 3), depth.reshape(SIDE, SIDE)


new = [place(45, 22), place(165, 40), place(290, 18)]
figure, axes = plt.subplots(3, 4, figsize=(11, 8.4), layout="constrained")
psnrs = []
for row, eye in zip(axes, new, strict=True):
    truth, (seen, depth) = photo(eye, 128, 99), draw(eye)
    psnrs.append(-10 * np.log10(np.mean((seen - truth) ** 2)))
    error = np.abs(seen - truth).mean(axis=2)
    row[0].imshow(truth ** (1 / 2.2))
    row[1].imshow(np.clip(seen, 0, 1) ** (1 / 2.2))
    row[2].imshow(depth, cmap="viridis_r")
    row[3].imshow(error, cmap="magma", vmax=0.25)
    for axis in row:
        axis.axis("off")
for axis, title in zip(
    axes[0], ("path traced", "radiance field", "its depth", "error"), strict=True
):
    axis.set_title(title)
plt.show()
print("PSNR of the new views:", ", ".join(f"{value:.1f} dB" for value in psnrs))

# %%
# .. seealso::
#
#    :doc:`/rendering` has the three modes in which ``ray_march`` computes gradients, with their costs, and the traps.
#    ``examples/radiance_field.py`` adds dropout, and asks how unsure the field is of what no camera saw.
