"""
One network for many objects
============================

Twenty-six letters become twenty-six codes of one network; between the codes lie new letters.
"""

# %%
# A scene has many materials, a library many shapes. Instead of a network for each, train one with a *code* for each: a
# row of numbers that is looked up by the object's number and goes into the network beside the coordinates. The network
# stores what objects have in common, the codes what distinguishes them (an *auto-decoder*, Park et al. 2019,
# *DeepSDF*).
#
# The objects
# -----------
#
# The capital letters of a font, as signed distances on a grid of 64 x 64 points.

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import Float, UInt32
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath

import coopnet as cn

SIDE, WIDTH, BATCH, STEPS = 64, 16, 1 << 12, 2500
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
y, x = np.meshgrid(*[(np.arange(SIDE) + 0.5) / SIDE * 2 - 1] * 2, indexing="ij")
points = np.stack([x.ravel(), -y.ravel()], 1)


def distance(letter, family="DejaVu Sans"):
    """Signed distance to a letter in the middle of the square from -1 to 1, negative inside."""
    glyph = TextPath(
        (0, 0), letter, size=400, prop=FontProperties(family=family, weight="bold")
    )
    loops = [loop for loop in glyph.to_polygons() if len(loop) > 2]
    low, high = np.min(np.vstack(loops), 0), np.max(np.vstack(loops), 0)
    loops = [(loop - (low + high) / 2) / 250 for loop in loops]
    inside = np.sum([Path(loop).contains_points(points) for loop in loops], axis=0) % 2 == 1
    nearest = np.full(len(points), np.inf)
    for loop in loops:
        for start, edge in zip(loop[:-1], np.diff(loop, axis=0), strict=True):
            along = np.clip((points - start) @ edge / max(edge @ edge, 1e-12), 0, 1)
            nearest = np.minimum(nearest, np.hypot(*(points - start - along[:, None] * edge).T))
    return np.where(inside, -nearest, nearest)


shapes = np.array([distance(letter) for letter in LETTERS]).astype(np.float32)
print(f"{len(shapes)} shapes of {SIDE} x {SIDE} points")

# %%
# The field
# ---------
#
# Its first coordinate is the number of the letter, the others are the position. ``Composite`` gives each part an
# encoding of its own. Numbers arrive in single precision, as all coordinates do, and are exact up to 2^24. There is a
# row for each letter, and one more for later.

count = len(LETTERS) + 1
encoding = cn.Composite(
    [cn.Embedding(count, WIDTH, init_scale=0.1), cn.Frequency(4, in_features=2)], [1, 2]
)
network = cn.MLP(out_features=1, width=64, depth=3, activation="silu", bias=True)
field = cn.NeuralField(encoding, network).build(seed=1)
table = Float(shapes.ravel())


def batch(key):
    u, v, w = cn.uniform(3, key, Float, BATCH)
    letter, column, row = UInt32(u * len(LETTERS)), UInt32(v * SIDE), UInt32(w * SIDE)
    wanted = dr.gather(Float, table, (letter * SIDE + row) * SIDE + column)
    return [Float(letter), (Float(column) + 0.5) / SIDE, (Float(row) + 0.5) / SIDE], [wanted]


# %%
# Only the outline will be drawn, so distances count up to 0.1 (DeepSDF's clamping): the loss is a function of outputs
# and targets. Small codes lie close together, and what lies between them then looks like letters, too. A little weight
# on the squares of all codes keeps them small, as in DeepSDF. The gradient of a row is the sum over all samples that
# looked it up. Samples are sorted by row, so that the sum is the same in every run.


def clamped(outputs, targets):
    return abs(dr.clip(outputs[0], -0.1, 0.1) - dr.clip(targets[0], -0.1, 0.1))


def small_codes(field):
    return 1e-5 * dr.sum(dr.square(field["encoding.nested.0.data"].array))


rate = cn.training.cosine(5e-3, STEPS)
result = cn.fit(field, batch, STEPS, lr=rate, penalty=small_codes, loss=clamped, progress=False)
print(
    f"{result.seconds:.1f} s,",
    f"mean error of the distance {np.mean(result.losses[-50:]):.4f} (a letter is 1.2 high)",
)

# %%
# Letters are drawn from distances with soft edges. All of them at once: one call for 26 pictures.

FINE = 96
v, u = np.meshgrid(*[(np.arange(FINE, dtype=np.float32) + 0.5) / FINE] * 2, indexing="ij")


def coverage(values):
    return np.clip(0.5 - values * 25, 0, 1)


def draw(letters):
    """Pictures of letters by number."""
    n, p = len(letters), FINE * FINE
    ids = Float(np.repeat(np.asarray(letters, np.float32), p))
    values = field([ids, Float(np.tile(u.ravel(), n)), Float(np.tile(v.ravel(), n))])[0].numpy()
    return coverage(values.reshape(n, FINE, FINE))


def tile(pictures, columns):
    rows = [
        np.concatenate(pictures[i : i + columns], axis=1)
        for i in range(0, len(pictures), columns)
    ]
    return 1 - np.concatenate(rows, axis=0)


figure, axes = plt.subplots(2, 1, figsize=(10, 4.2), layout="constrained")
true = [coverage(shape.reshape(SIDE, SIDE)) for shape in shapes]
axes[0].imshow(tile(true, 13), cmap="gray")
axes[0].set_title(f"the letters, {SIDE} x {SIDE} points each")
axes[1].imshow(tile(draw(range(len(LETTERS))), 13), cmap="gray")
axes[1].set_title(f"one network and {WIDTH} numbers for each, drawn at {FINE} x {FINE}")
for axis in axes:
    axis.axis("off")
plt.show()

# %%
# Between letters
# ---------------
#
# Codes are numbers and can be mixed. The network and its encoding are called by hand here: features of the position,
# and beside them codes that are not rows of the table.

codes = np.array(field["encoding.nested.0.data"]).reshape(count, WIDTH)
readout = cn.NeuralField(None, field.network, in_features=WIDTH + 16)
readout.precision = field.precision  # it is built: its weights are the field's


def draw_codes(mixed):
    """Pictures of any codes, ``(pictures, WIDTH)``."""
    n, p = len(mixed), FINE * FINE
    code = [Float(np.repeat(column, p).astype(np.float32)) for column in mixed.T]
    position = list(
        field.encoding.nested[1]([Float(np.tile(u.ravel(), n)), Float(np.tile(v.ravel(), n))])
    )
    return coverage(readout(code + position)[0].numpy().reshape(n, FINE, FINE))


mixes = []
for a, b in ("OD", "CG", "VW", "AR"):
    i, j = LETTERS.index(a), LETTERS.index(b)
    mixes += [(1 - t) * codes[i] + t * codes[j] for t in np.linspace(0, 1, 9)]
mixes = draw_codes(np.array(mixes))
figure, axis = plt.subplots(figsize=(9, 4.2), layout="constrained")
axis.imshow(tile(mixes, 9), cmap="gray")
axis.axis("off")
axis.set_title("from code to code")
plt.show()

# %%
# A new object
# ------------
#
# The network has learned what letters look like. A letter of another font needs only a new code: all learning rates but
# that of the table are 0, and only the row that is looked up moves, since the others get a gradient of exactly zero.

new = distance("R", "DejaVu Serif").astype(np.float32)
wanted = Float(new)
before = draw([count - 1])[0]


def batch_of_new(key):
    u, v = cn.uniform(2, key, Float, BATCH)
    column, row = UInt32(u * SIDE), UInt32(v * SIDE)
    letter = dr.full(Float, len(LETTERS), BATCH)
    place = [(Float(column) + 0.5) / SIDE, (Float(row) + 0.5) / SIDE]
    return [letter, *place], [dr.gather(Float, wanted, row * SIDE + column)]


weights = np.array(field["network.weights"])
cn.fit(
    field,
    batch_of_new,
    400,
    lr=cn.training.cosine(2e-2, 400),
    loss=clamped,
    multipliers={"network": 0},
    progress=False,
)
print(
    "the network is",
    "unchanged" if np.array_equal(weights, np.array(field["network.weights"])) else "changed",
)
now = np.array(field["encoding.nested.0.data"]).reshape(count, WIDTH)
print("other codes are", "unchanged" if np.array_equal(codes[:-1], now[:-1]) else "changed")

figure, axes = plt.subplots(1, 3, figsize=(8, 2.9), layout="constrained")
for axis, (title, picture) in zip(axes, {
    "its code at first": before, "its code after 400 steps": draw([count - 1])[0],
    "the letter": coverage(new.reshape(SIDE, SIDE)),
}.items(), strict=True):  # fmt: skip
    axis.imshow(1 - picture, cmap="gray")
    axis.set_title(title, fontsize=10)
    axis.axis("off")
plt.show()

# %%
# Sixteen numbers that were learned from one font can only approximate a letter of another. With more fonts in the
# training set they would come closer: the codes would have to encode serifs.
#
# .. seealso::
#
#    :doc:`/encodings` has ``Embedding`` and ``Composite``; :doc:`/gradients` compares ways of summing gradients of
#    rows; :doc:`/weights` has rates per layer.
