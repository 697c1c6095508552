"""
Choosing an encoding
====================

One photograph, one network, eight encodings: you see what each of them is good at, what it costs, and how to choose.
"""

# %%
# A network with ReLU or similar units learns smooth functions first and details late or never (*spectral bias*, Rahaman
# et al. 2019). Encodings solve this: they turn few coordinates into many features that vary quickly. There are two
# families. *Fixed* features, waves and bumps, leave all learning to the network. *Trained* ones keep tables of features
# at vertices of grids and leave the network little to do.

import time

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import ArrayXf, Float, UInt32
from matplotlib.cbook import get_sample_data

import coopnet as cn
from coopnet import image

SIDE, BATCH, STEPS = 256, 1 << 13, 500
photo = image.load(get_sample_data("grace_hopper.jpg", asfileobj=False))[
    60 : 60 + SIDE, 130 : 130 + SIDE
]
table = Float(photo.ravel())

encodings = {
    "none": cn.Identity(scale=2, offset=-1),
    "Frequency": cn.Frequency(7),
    "Fourier": cn.Fourier(32, scale=8),
    "OneBlob": cn.OneBlob(32),
    "TriangleWave": cn.TriangleWave(8),
    "Grid, dense": cn.Grid(
        storage="dense", n_levels=1, n_features_per_level=8, base_resolution=64
    ),
    "Grid, hash": cn.Grid(
        n_levels=8, base_resolution=8, per_level_scale=1.6, hashmap_size=2**13
    ),
    "Permutohedral": cn.Permutohedral(
        n_levels=8, base_resolution=8, per_level_scale=1.6, hashmap_size=2**13
    ),
}

# %%
# The same network follows each of them, and all are trained for the same number of steps with the same batches:
# since randomness comes from the key, and the key from the seed, they get the same pixels.


def batch(key):
    u, v = cn.uniform(2, key, Float, BATCH)
    column, row = UInt32(u * SIDE), UInt32(v * SIDE)
    colours = dr.gather(ArrayXf, table, row * SIDE + column, shape=(3, BATCH))
    return [(Float(column) + 0.5) / SIDE, (Float(row) + 0.5) / SIDE], colours


def picture(field):
    y, x = np.meshgrid(*[(np.arange(SIDE, dtype=np.float32) + 0.5) / SIDE] * 2, indexing="ij")
    return field([Float(x.ravel()), Float(y.ravel())]).numpy().T.reshape(SIDE, SIDE, 3)


pictures, rows = {}, []
for name, encoding in encodings.items():
    network = cn.MLP(out_features=3, width=48, depth=2, bias=True, output_activation="sigmoid")
    field = cn.NeuralField(encoding, network, in_features=2).build(seed=1)
    cn.fit(field, batch, 3, lr=1e-2, progress=False)  # compiles everything
    start = time.perf_counter()
    cn.fit(field, batch, STEPS, lr=cn.training.cosine(1e-2, STEPS), progress=False)
    ms = 1000 * (time.perf_counter() - start) / STEPS
    pictures[name] = picture(field)
    features = len(field.encoding([Float(0.5), Float(0.5)]))
    parameters = sum(int(np.prod(values.shape)) for values in field.values())
    rows.append((name, features, parameters, ms, image.psnr(pictures[name], photo)))

print(f"{'encoding':<14}{'features':>9}{'parameters':>12}{'ms per step':>13}{'PSNR, dB':>10}")
for name, features, parameters, ms, psnr in rows:
    print(f"{name:<14}{features:>9}{parameters:>12}{ms:>13.1f}{psnr:>10.2f}")

# %%
# What the figures mean
# ---------------------
#
# Look at the glasses, and at the plain skin around them: what is sharp, and where are there patterns on what should be
# smooth? Waves cause ringing across the whole picture, since each of them covers all of it. Bumps smear along the axes.
# Grids are local: an error does not spread.

figure, axes = plt.subplots(2, 5, figsize=(12, 5.4), layout="constrained")
cells = list(axes.flat)
for axis in cells:
    axis.axis("off")
cells[0].imshow(photo[40:200, 50:210])
cells[0].set_title("photograph", fontsize=10)
for axis, (name, _, _, _, psnr) in zip(cells[1:], rows, strict=False):
    axis.imshow(np.clip(pictures[name][40:200, 50:210], 0, 1))
    axis.set_title(f"{name}: {psnr:.1f} dB", fontsize=10)
plt.show()

# %%
# Better quality takes more parameters or more time. Fixed features have few parameters, so they suit fields that have
# to be small, and functions that are smooth or periodic. Trained tables are better in the same number of steps wherever
# memory allows.

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), sharey=True, layout="constrained")
for name, _, parameters, ms, psnr in rows:
    for axis, x in ((left, parameters), (right, ms)):
        axis.plot(x, psnr, "o", ms=8, alpha=0.8, label=name)
left.set(xscale="log", xlabel="parameters", ylabel="PSNR in dB")
left.set_xticks([3e3, 1e4, 3e4, 6e4], ["3,000", "10,000", "30,000", "60,000"])
left.set_xticks([], minor=True)
right.set(xlabel="milliseconds per step")
right.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=9)
for axis in (left, right):
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
plt.show()

# %%
# The choice in short
# -------------------
#
# - Start with a hash grid. Its finest resolution should be that of the detail, its table as large as you can pay for.
# - Take ``Frequency`` or ``Fourier`` where the field must be small, or is differentiated: their derivatives are smooth,
#   those of linear interpolation jump from cell to cell (``interpolation="smoothstep"`` does not).
# - Take a dense grid where a texture has a resolution, or positions repeat.
# - Take ``Permutohedral`` in four and more dimensions, where a cell of a grid has 16 corners and a simplex 5.
# - Combine by ``Composite``: a grid of the position and spherical harmonics of the direction, for instance.
#
# .. seealso::
#
#    :doc:`/encodings` has formulas, parameters and tiny-cuda-nn's names of all of them, and :doc:`/derivatives` says
#    how each behaves when the field is differentiated.
