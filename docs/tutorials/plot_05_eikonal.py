"""
Signed distances and eikonal losses
===================================

From points on an outline and nothing else, you learn how far every place of the plane is from it.
"""

# %%
# A *signed distance* is negative inside a shape, positive outside, and zero on its outline. Its gradient has length 1
# everywhere, and on the outline it is the normal. That is enough to learn one (Gropp et al. 2020, *Implicit geometric
# regularization*): at known points of the outline, require the value 0 and the normal as gradient; everywhere else,
# require gradients of length 1 (the *eikonal* equation), though no distance is known there.
#
# Such a loss depends on the field's derivatives, and its weight gradients on second derivatives. Both are exact here:
# ``field.value_and_grad`` carries tangents through the layers beside the value, and what it returns can be
# differentiated again.
#
# The shape
# ---------
#
# An ampersand, with its curves, corners and two holes. Its outline is a polygon; points are drawn evenly along it.

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import Array2f, Float, UInt32
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath

import coopnet as cn

glyph = TextPath(
    (0, 0), "&", size=400, prop=FontProperties(family="DejaVu Serif", weight="bold")
)
loops = [loop for loop in glyph.to_polygons() if len(loop) > 2]
low, high = np.min(np.vstack(loops), 0), np.max(np.vstack(loops), 0)
loops = [(loop - (low + high) / 2) * 1.5 / (high - low).max() for loop in loops]
starts = np.vstack([loop[:-1] for loop in loops])
edges = np.vstack([np.diff(loop, axis=0) for loop in loops])
starts, edges = (a[np.hypot(*edges.T) > 1e-6] for a in (starts, edges))
lengths = np.hypot(*edges.T)

# Which side is outside? Test a point next to the middle of the first edge.
normals = np.stack([edges[:, 1], -edges[:, 0]]) / lengths


def inside(points):
    """Even-odd rule: so that holes are outside."""
    return np.sum([Path(loop).contains_points(points) for loop in loops], axis=0) % 2 == 1


normals *= np.where(inside(starts + 0.5 * edges + 1e-3 * normals.T), -1, 1)

rng = np.random.default_rng(0)
COUNT, BATCH = 1 << 15, 1 << 10
chosen = rng.choice(len(edges), COUNT, p=lengths / lengths.sum())
points = (starts[chosen] + rng.uniform(size=(COUNT, 1)) * edges[chosen]).T.astype(np.float32)
table = [Float(np.ascontiguousarray(row, np.float32)) for row in (*points, *normals[:, chosen])]
dr.eval(table)
print(f"{len(edges)} edges, {len(loops)} outlines, {COUNT} points")

# %%
# The loss
# --------
#
# One more term keeps the field from inventing outlines: away from the points, values near zero are penalized
# (Sitzmann et al. 2020). ``cn.fit`` takes the loss as an ``objective``: a function of the field itself, of what
# ``batch`` drew, and of the key. SIREN is a network of sines on bare coordinates, which has derivatives of all orders;
# that of a ReLU network is piecewise constant.


def batch(key):
    u, *p = cn.uniform(3, key, Float, BATCH)
    i = UInt32(u * COUNT)
    x, y, nx, ny = (dr.gather(Float, row, i) for row in table)
    return Array2f(x, y), Array2f(nx, ny), 2 * Array2f(p) - 1


def with_eikonal(weight):
    def objective(field, drawn, key):
        point, normal, anywhere = drawn
        value, gradient = field.value_and_grad(point)
        on = 100 * dr.square(value[0]) + dr.squared_norm(gradient - normal)
        value, gradient = field.value_and_grad(anywhere)
        off = dr.exp(-100 * abs(value[0]))
        return on + off + weight * dr.square(dr.norm(gradient) - 1)

    return objective


def learn(weight, steps=1500):
    field = cn.NeuralField(None, cn.SIREN(2, 1, width=48, depth=3, omega_0=6, omega=6)).build(
        seed=1
    )
    rate = cn.training.cosine(2e-3, steps)
    result = cn.fit(
        field,
        batch,
        steps,
        objective=with_eikonal(weight),
        lr=rate,
        clip_norm=1,
        progress=False,
    )
    print(
        f"weight {weight}: {result.seconds:.1f} s, last loss {np.mean(result.losses[-20:]):.4f}"
    )
    return field


fields = {"without eikonal loss": learn(0.0), "with eikonal loss": learn(1.0)}

# %%
# The result
# ----------
#
# The true distance, for the comparison: the nearest of all edges.

N = 240
y, x = np.meshgrid(*[(np.arange(N, dtype=np.float32) + 0.5) / N * 2 - 1] * 2, indexing="ij")
flat = np.stack([x.ravel(), y.ravel()], 1)
true = np.full(len(flat), np.inf)
for start, edge in zip(starts, edges, strict=True):
    along = np.clip((flat - start) @ edge / (edge @ edge), 0, 1)
    true = np.minimum(true, np.hypot(*(flat - start - along[:, None] * edge).T))
true = np.where(inside(flat), -true, true).reshape(N, N)

maps, slopes = {"truth": true}, {}
for name, field in fields.items():
    value, gradient = field.value_and_grad(Array2f(x.ravel(), y.ravel()))
    maps[name] = value[0].numpy().reshape(N, N)
    slopes[name] = dr.norm(gradient).numpy().reshape(N, N)
    error, slope = np.abs(maps[name] - true).mean(), np.abs(slopes[name] - 1).mean()
    wrong = ((maps[name] < 0) != (true < 0)).mean()
    print(
        f"{name:<22}mean error of the distance {error:.4f}, of the slope {slope:.4f},",
        f"{wrong:.2%} on the wrong side",
    )

# %%
# Lines of equal distance are evenly spaced around the shape, far from where any point was known.


def draw(axis, values, title):
    levels = np.arange(-0.3, 0.61, 0.05)
    axis.contourf(x, y, values, levels, cmap="RdBu", vmin=-0.45, vmax=0.45, extend="both")
    axis.contour(x, y, values, levels, colors="k", linewidths=0.3, alpha=0.6)
    axis.contour(x, y, values, [0], colors="k", linewidths=1.6)
    axis.set_title(title)
    axis.set_aspect("equal")
    axis.axis("off")


figure, axes = plt.subplots(1, 3, figsize=(11, 3.9), layout="constrained")
for axis, name in zip(
    axes, ("truth", "with eikonal loss", "without eikonal loss"), strict=True
):
    draw(axis, maps[name], name)
plt.show()

# %%
# Where is the slope not 1? With the loss, only on the ridges that are equally far from two parts of the outline. There
# the distance itself has a kink, which a smooth network rounds off.

figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.9), layout="constrained")
for axis, (name, slope) in zip(axes, reversed(slopes.items()), strict=True):
    drawn = axis.imshow(
        slope, origin="lower", extent=(-1, 1, -1, 1), vmin=0, vmax=2, cmap="PuOr"
    )
    axis.contour(x, y, maps[name], [0], colors="k", linewidths=0.8)
    axis.set_title(f"slope {name}")
    axis.axis("off")
figure.colorbar(drawn, ax=axes, shrink=0.8)
plt.show()

# %%
# .. seealso::
#
#    :doc:`/derivatives` has Jacobians, derivatives in a direction, curvature, and what all of them cost. The next
#    tutorial draws signed distances in space; ``examples/sdf.py`` recovers one from pictures.
