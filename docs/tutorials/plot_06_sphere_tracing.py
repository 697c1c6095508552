"""
Sphere tracing a field
======================

You learn a carved solid as a signed distance and render it with normals, a shadow and a floor, all in Dr.Jit kernels.
"""

# %%
# A ray meets the surface of a signed distance by *sphere tracing* (Hart 1996): the distance at a point says how far a
# ray may go without hitting anything. Each step is an evaluation of the field, and every ray takes as many as it needs:
# a loop with a network in it, which Dr.Jit compiles into one kernel.
#
# The solid
# ---------
#
# A rounded cube, hollowed by a ball, with the channels of a gyroid cut out of what is left. Cutting by ``maximum``
# gives no exact distance, but one that is never too large, which is what sphere tracing needs.

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import Array3f, Float

import coopnet as cn


def solid(p):
    q = abs(p) - 0.5
    cube = (
        dr.norm(dr.maximum(q, 0)) + dr.minimum(dr.maximum(q.x, dr.maximum(q.y, q.z)), 0) - 0.12
    )
    g = 9 * p
    gyroid = dr.sin(g.x) * dr.cos(g.y) + dr.sin(g.y) * dr.cos(g.z) + dr.sin(g.z) * dr.cos(g.x)
    carved = dr.maximum(dr.maximum(cube, 0.55 - dr.norm(p)), (abs(gyroid) - 0.55) / 16)
    return dr.minimum(carved, dr.norm(p) - 0.3)


# %%
# The field
# ---------
#
# Hash grids take coordinates from 0 to 1, and ``bounds`` moves the cube from -1 to 1 there. The loss is the absolute
# error, which weighs small distances more than a squared error does. A network learns numbers
# near 1 best, so the field learns a hundred times the distance.

SCALE, STEPS = 100, 1000
grid = cn.HashGrid(3, n_levels=8, base_resolution=8, per_level_scale=1.4, hashmap_size=2**17)
field = cn.NeuralField(grid, cn.MLP(out_features=1, width=32, depth=2), bounds=(-1, 1)).build(
    seed=1
)


def batch(key):
    p = 2 * Array3f(cn.uniform(3, key, Float, 1 << 14)) - 1
    return p, [SCALE * solid(p)]


result = cn.fit(
    field, batch, STEPS, lr=cn.training.cosine(1e-2, STEPS), loss="l1", progress=False
)
print(f"{result.seconds:.1f} s, mean error of the distance {result.losses[-1] / SCALE:.5f}")


def learned(p):
    return field(p)[0] / SCALE


# %%
# Rays
# ----
#
# A pinhole camera, four rays for each pixel. ``look_at`` says where it is and where it points.

SIDE, SUPER = 320, 2


def box(o, d):
    """Where rays enter and leave the cube from -1 to 1, in which the field was trained."""
    a, b = (-1 - o) / d, (1 - o) / d
    near, far = dr.minimum(a, b), dr.maximum(a, b)
    return dr.maximum(dr.max(near, axis=0), 0), dr.min(far, axis=0)


pose = cn.render.look_at(origin=(2.6, 1.7, 1.7), target=(0, 0, -0.08))
o, d = cn.render.Cameras(pose, SIDE * SUPER, SIDE * SUPER, fov=36).rays()

# %%
# ``sphere_trace`` takes any function of a point, so the learned and the true solid are traced by the same code. It
# returns the position, the normal, and how many evaluations each ray took. Nothing has been computed yet: whatever else
# is done with these arrays goes into the same kernel.


def trace(sdf, o, d):
    near, far = box(o, d)
    return cn.render.sphere_trace(sdf, o, d, far, 160, 1e-3, t_min=near)


# %%
# Shading
# -------
#
# One lamp and some light from the sky. Where the ray meets the floor or the solid first, a second ray is sent to the
# lamp, and is traced through the same field: a shadow is one more call. It starts a little above the surface, so that
# it does not hit its own starting point.

LAMP, FLOOR = dr.normalize(Array3f(0.35, 0.75, 0.9)), -0.63


def shade(sdf):
    hit = trace(sdf, o, d)
    to_floor = (FLOOR - o.z) / d.z
    floor = (to_floor > 0) & (to_floor < hit.t)
    seen = hit.hit | floor
    p = dr.select(floor, o + dr.select(floor, to_floor, 0) * d, hit.position)
    n = dr.select(floor, Array3f(0, 0, 1), hit.normal)

    shadow = trace(sdf, p + 0.01 * n, LAMP).hit
    lit = dr.select(shadow, 0, dr.maximum(dr.dot(n, LAMP), 0))
    # a little ambient occlusion: is there as much room along the normal as there should be?
    room = (
        sum(dr.clip(sdf(dr.clip(p + h * n, -1, 1)) / h, 0, 1) for h in (0.06, 0.12, 0.24)) / 3
    )
    sky = (0.75 + 0.25 * n.z) * (0.4 + 0.6 * room)
    inner = dr.norm(p) < 0.32
    albedo = dr.select(
        floor,
        Array3f(0.75),
        dr.select(inner, Array3f(0.9, 0.35, 0.12), Array3f(0.35, 0.5, 0.62)),
    )
    colour = albedo * (
        1.1 * lit * Array3f(1, 0.95, 0.85) + 0.45 * sky * Array3f(0.85, 0.95, 1.1)
    )
    fade = dr.select(
        floor, dr.exp(-0.25 * dr.squared_norm(p)), 1
    )  # the floor goes over into the background
    colour = dr.select(seen, dr.lerp(Array3f(0.82), colour, fade), 0.82)
    return colour, hit


def to_image(colour):
    n = SIDE * SUPER
    return (np.clip(colour.numpy(), 0, 1) ** (1 / 2.2)).reshape(3, n, n).transpose(1, 2, 0)


def shrink(values):
    return values.reshape(SIDE, SUPER, SIDE, SUPER, -1).mean((1, 3)).squeeze()


pictures, hits = {}, {}
for name, sdf in {"true solid": solid, "learned field": learned}.items():
    colour, hits[name] = shade(sdf)
    dr.eval(colour, hits[name])
    pictures[name] = shrink(to_image(colour))

figure, axes = plt.subplots(1, 2, figsize=(10, 5.1), layout="constrained")
for axis, (name, picture) in zip(axes, pictures.items(), strict=True):
    axis.imshow(picture)
    axis.set_title(name)
    axis.axis("off")
plt.show()

# %%
# What it took
# ------------
#
# Rays that graze the solid need the most evaluations, and lanes that are computed together wait for the slowest. The
# normals are the field's own gradient, found by ``value_and_grad`` or forward differentiation at the hits.

both = hits["true solid"].hit & hits["learned field"].hit
off = dr.select(both, abs(hits["true solid"].t - hits["learned field"].t), 0).numpy()[
    both.numpy()
]
angle = dr.dot(hits["true solid"].normal, hits["learned field"].normal).numpy()[both.numpy()]
print(
    f"depth off by {np.median(off):.5f} (median),",
    f"normals by {np.degrees(np.arccos(np.median(angle))):.1f} degrees",
)
print(f"{np.mean(hits['learned field'].evaluations.numpy()):.1f} evaluations per ray")

found = hits["learned field"]
n = SIDE * SUPER
depth = shrink(np.where(found.hit, found.t.numpy(), np.nan).reshape(n, n))
normal = shrink(
    np.where(found.hit.numpy(), found.normal.numpy() * 0.5 + 0.5, 1)
    .reshape(3, n, n)
    .transpose(1, 2, 0)
)
count = shrink(found.evaluations.numpy().astype(float).reshape(n, n))
figure, axes = plt.subplots(1, 3, figsize=(11, 3.7), layout="constrained")
axes[0].imshow(depth, cmap="viridis_r")
axes[0].set_title("depth")
axes[1].imshow(normal)
axes[1].set_title("normal")
drawn = axes[2].imshow(count, cmap="magma", vmax=np.quantile(count, 0.995))
axes[2].set_title("evaluations per ray")
figure.colorbar(drawn, ax=axes[2], shrink=0.8)
for axis in axes:
    axis.axis("off")
plt.show()

# %%
# .. seealso::
#
#    :doc:`/rendering` says how rays step, how gradients get through hits by implicit differentiation, and what
#    silhouettes need. ``examples/sdf.py`` uses that to recover a solid from its pictures.
