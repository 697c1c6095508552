"""
Which view to take next
=======================

You learn a radiance field from two views, let it choose where another camera would help, and compare with chance.
"""

# %%
# When scanning an object you take pictures until it looks complete. A field that knows what it has not seen can say
# which view to take next. Twenty cameras stand around a table with a wall on it, with things before and behind the
# wall. Two neighbouring ones have been used.

import math

import drjit as dr
import matplotlib.pyplot as plt
import mitsuba as mi
import numpy as np

import coopnet as cn

mi.set_variant(f"{cn.backend.require('auto')}_ad_rgb")
SIDE, STEPS, RAYS, SAMPLES = 32, 250, 256, 28


def thing(kind, colours, transform):
    squares = {"type": "checkerboard", "to_uv": t().scale([2, 2, 1])}
    squares |= {f"color{i}": {"type": "rgb", "value": value} for i, value in enumerate(colours)}
    return {
        "type": kind,
        "bsdf": {"type": "diffuse", "reflectance": squares},
        "to_world": transform,
    }


t = mi.ScalarTransform4f
table, wall = [[0.7, 0.65, 0.55], [0.35, 0.35, 0.4]], [[0.9, 0.9, 0.85], [0.5, 0.2, 0.5]]
red, blue, green = (
    [[0.85, 0.2, 0.15], [0.9, 0.7, 0.3]],
    [[0.15, 0.3, 0.8], [0.6, 0.8, 0.9]],
    [[0.1, 0.5, 0.15]] * 2,
)
scene = mi.load_dict({
    "type": "scene",
    "integrator": {"type": "path", "max_depth": 4},
    "sky": {"type": "constant", "radiance": 1.0},
    "table": thing("cube", table, t().translate([0.5, 0.5, 0.12]).scale([0.46, 0.46, 0.03])),
    "wall": thing("cube", wall, t().translate([0.47, 0.5, 0.4]).scale([0.03, 0.33, 0.25])),
    "ball": thing("sphere", red, t().translate([0.74, 0.4, 0.31]).scale(0.16)),
    "cube": thing(
        "cube", blue, t().translate([0.25, 0.32, 0.28]).rotate([0, 0, 1], 30).scale(0.12)
    ),
    "can": thing("cylinder", green, t().translate([0.25, 0.68, 0.15]).scale([0.1, 0.1, 0.4])),
})  # fmt: skip


def take(azimuth, height):
    """Origins and directions of a camera's rays, and the colours that Mitsuba renders."""
    a, h = math.radians(azimuth), math.radians(height)
    eye = [
        0.5 + 1.7 * math.cos(a) * math.cos(h),
        0.5 + 1.7 * math.sin(a) * math.cos(h),
        0.35 + 1.7 * math.sin(h),
    ]
    film = {"type": "hdrfilm", "width": SIDE, "height": SIDE, "rfilter": {"type": "box"}}
    look = t().look_at(origin=eye, target=[0.5, 0.5, 0.35], up=[0, 0, 1])
    sensor = mi.load_dict({"type": "perspective", "fov": 38, "to_world": look, "film": film})
    colours = np.clip(mi.render(scene, sensor=sensor, spp=64).numpy(), 0, 1).reshape(-1, 3).T
    i = dr.arange(mi.UInt32, SIDE * SIDE)
    ray, _ = sensor.sample_ray(
        0, 0.5, mi.Point2f(i % SIDE + 0.5, i // SIDE + 0.5) / SIDE, mi.Point2f(0.5)
    )
    return (ray.o + dr.zeros(mi.Vector3f, SIDE * SIDE)).numpy(), ray.d.numpy(), colours


poses = [(18 * i, (10, 30, 50)[i % 3]) for i in range(20)]
views = [take(*pose) for pose in poses]
judges = [
    take(45 * i + 9, (20, 40)[i % 2]) for i in range(8)
]  # to compare with, never to learn from

# %%
# A field of some views
# ---------------------
#
# As in the :doc:`tutorial on radiance fields </gallery/plot_07_radiance_field>`, but smaller: a hash grid and a network
# of 32 units.

box = cn.render.OccupancyGrid(4, 0, 1)
rows = [tuple(np.ascontiguousarray(v, np.float32) for v in view) for view in views]


def march(field, o, d, **options):
    near, far = box.interval(o, d)
    return cn.render.ray_march(
        field, o, d, near, far, SAMPLES, **{"density": "exp", "background": 1} | options
    )


def learn(chosen):
    o, d, colours = (
        mi.Vector3f(np.concatenate(v, axis=1))
        for v in zip(*(rows[i] for i in chosen), strict=True)
    )
    count = dr.opaque(mi.UInt32, dr.width(o))

    def batch(key):
        i = dr.minimum(
            mi.UInt32(cn.uniform(1, key, mi.Float, RAYS)[0] * mi.Float(count)), count - 1
        )
        return [dr.gather(mi.Vector3f, v, i) for v in (o, d, colours)]

    def objective(field, drawn, key):
        return dr.squared_norm(march(field, *drawn[:2], key=key).color - drawn[2])

    grid = cn.HashGrid(
        3, n_levels=6, base_resolution=4, per_level_scale=1.6, hashmap_size=2**15
    )
    field = cn.mitsuba.build(
        cn.NeuralField(grid, cn.MLP(out_features=4, width=32, depth=2)), seed=1
    )
    lr = cn.training.cosine(1e-2, STEPS)
    cn.fit(field, batch, STEPS, objective=objective, lr=lr, progress=False)
    return field


def picture(field, view):
    with dr.suspend_grad():
        return march(field, *(mi.Vector3f(v) for v in view[:2])).color.numpy()


def psnr(field):
    return -10 * np.log10(
        np.mean([np.mean((picture(field, view) - view[2]) ** 2) for view in judges])
    )


# %%
# What the cameras have seen
# --------------------------
#
# ``cn.laplace`` needs points and what was learned there. These are points along the cameras' rays, while the
# transmittance exceeds 80 %. The field's own values there, with some noise, stand in for the measurement.


def posterior(field, chosen):
    o, d = (mi.Vector3f(np.concatenate([rows[i][k] for i in chosen], axis=1)) for k in range(2))
    near, far = box.interval(o, d)
    rng, inside, thickness, points = np.random.default_rng(0), (far > near).numpy(), 0, []
    for k in range(2 * SAMPLES):
        step = (far - near) / (2 * SAMPLES)
        p = o + d * (near + step * (k + mi.Float(rng.random(dr.width(o)).astype(np.float32))))
        with dr.suspend_grad():
            density = dr.exp(dr.minimum(field(p)[0], 15)).numpy()
        points.append(p.numpy()[:, inside & (thickness < -np.log(0.8))])
        thickness = thickness + density * step.numpy()
    points = mi.Vector3f(np.concatenate(points, axis=1).astype(np.float32))
    count = dr.opaque(mi.UInt32, dr.width(points))
    with dr.suspend_grad():
        noisy = [
            v + mi.Float(rng.normal(0, 0.3, dr.width(points)).astype(np.float32))
            for v in field(points)
        ]
    dr.eval(noisy)

    def batch(key):
        i = dr.minimum(
            mi.UInt32(cn.uniform(1, key, mi.Float, 1 << 12)[0] * mi.Float(count)), count - 1
        )
        return dr.gather(mi.Vector3f, points, i), [dr.gather(mi.Float, v, i) for v in noisy]

    return cn.laplace(field, batch, steps=8, samples=len(chosen) * SIDE * SIDE, prior=1.0)


def unsure(known, view):
    """The deviation along each ray, weighted by each point's share of the pixel.

    Unknown places may stop the ray: densities are raised by 0.3 deviations.
    """

    def deviation(p, d, key, active):
        spread = list(known.std(p))
        density = dr.exp(dr.minimum(known(p)[0] + 0.3 * spread[0], 15))
        return density, mi.Color3f(dr.sqrt(sum(dr.square(v) for v in spread)))

    with dr.suspend_grad():
        rays = (mi.Vector3f(v) for v in view[:2])
        return march(
            deviation, *rays, density="none", color="none", background=0
        ).color.numpy()[0]


first = [0, 1]
field = learn(first)
known = posterior(field, first)

# %%
# Simpler, and for every kind of field, ``cn.render.Visits`` counts the rays that have reached each cell of the box, and
# says for every other ray how unseen the places along it are, from 0 to 1. A place that one ray has seen counts 1/2.
# The last row of the picture hides pixels above 0.8: none in the learned views, most in those from behind.


def rays_of(view):
    o, d = (mi.Vector3f(v) for v in view[:2])
    return field, o, d, *box.interval(o, d), 2 * SAMPLES


visits = cn.render.Visits(24, 0, 1)
for i in first:
    visits.add(*rays_of(views[i]), density="exp")

limit = np.quantile([unsure(known, views[i]) for i in first], 0.9)
doubts = [float(np.square(unsure(known, view)).sum()) for view in views]

figure, axes = plt.subplots(4, 5, figsize=(10, 8), layout="constrained")
for column, i in zip(axes.T, (0, 1, 4, 10, 14), strict=True):
    for axis, values in zip(column, (views[i][2], picture(field, views[i])), strict=False):
        axis.imshow(np.clip(values.T.reshape(SIDE, SIDE, 3), 0, 1) ** (1 / 2.2))
    column[2].imshow(
        unsure(known, views[i]).reshape(SIDE, SIDE), cmap="magma", vmin=0, vmax=3 * limit
    )
    hidden = visits.along(*rays_of(views[i]), density="exp").numpy() > 0.8
    colours = np.clip(picture(field, views[i]), 0, 1) ** (1 / 2.2)
    column[3].imshow(np.concatenate([colours, [~hidden]]).T.reshape(SIDE, SIDE, 4))
    column[3].set_facecolor("tab:gray")
    column[0].set_title(f"camera {i}" + (", learned" if i in first else ""), fontsize=10)
for axis, label in zip(axes[:, 0], ("truth", "field", "deviation", "visited"), strict=True):
    axis.set_ylabel(label)
for axis in axes.flat:
    axis.set(xticks=[], yticks=[])
plt.show()

# %%
# Three more views
# ----------------
#
# The next view is the one with the largest sum of variances over its pixels. Two rules need no field: a random one, and
# the one at the largest angle from all that were taken.


def farthest(chosen):
    a, h = np.radians(np.array(poses)).T
    way = np.stack([np.cos(a) * np.cos(h), np.sin(a) * np.cos(h), np.sin(h)], axis=1)
    return int(np.argmin((way @ way[chosen].T).max(axis=1)))


chosen, apart = [*first, max(range(2, 20), key=lambda i: doubts[i])], [*first]
while len(chosen) < 5:
    known = posterior(learn(chosen), chosen)
    rest = set(range(20)) - set(chosen)
    chosen.append(max(rest, key=lambda i: np.square(unsure(known, views[i])).sum()))
while len(apart) < 5:
    apart.append(farthest(apart))
rng = np.random.default_rng(0)
chances = [[*first, *rng.permutation(np.arange(2, 20))[:3]] for _ in range(3)]
scores = {"least certain": [psnr(learn(chosen))], "farthest": [psnr(learn(apart))]}
scores["random"] = [psnr(learn(order)) for order in chances]
print(f"with the first two views {psnr(field):.1f} dB")
print(f"then cameras {chosen[2:]}, and the farthest, {apart[2:]}")
for name, values in scores.items():
    spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
    print(f"{name:<14}{np.mean(values):5.1f} dB on eight other views{spread}")

figure, axis = plt.subplots(figsize=(6, 2.4), layout="constrained")
for y, values in enumerate(scores.values()):
    axis.plot(values, [y] * len(values), "o", ms=8)
axis.set(
    yticks=range(3),
    yticklabels=list(scores),
    ylim=(2.5, -0.5),
    xlabel="PSNR in dB on eight other views",
)
axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The field chooses what it has not seen, and that is better than chance. If cameras may stand anywhere around an
# object, the farthest one is hard to beat, and costs nothing: take it. Use an uncertainty where angles say little, such
# as for cameras in a room with corners.
#
# .. seealso::
#
#    :doc:`/uncertainty` repeats this for six more views and five random orders, and says how much better than chance
#    it is.

# sphinx_gallery_thumbnail_number = 1
