"""
Freezing
========

You take Python out of a rendering loop with ``dr.freeze``, measure what that saves, and learn what makes it record
again.
"""

# %%
# Dr.Jit *traces*: while Python runs the program, Dr.Jit records each operation. Then it compiles the recorded program
# to a kernel and launches it. Kernels come from a cache, but Python runs again at every call. For small networks that
# takes longer than the kernel. ``dr.freeze`` records the kernels that a function launches, and launches them again
# without Python.

import time

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import Array3f, Float, UInt32

import coopnet as cn

# %%
# A field to render
# -----------------
#
# A field of position and time, to have something that moves: flames of noise, learned in a second or two. ``cn.fit``
# freezes its step itself; ``recordings`` says how often it was recorded.


def pattern(x, y, t):
    """Three layers of waves that push one another around."""
    u = x + 0.08 * dr.sin(9 * y - 6 * t) + 0.05 * dr.sin(17 * y + 11 * t)
    v = y - 0.35 * t + 0.06 * dr.sin(13 * x + 5 * t)
    flame = dr.sin(14 * u + 2 * dr.sin(9 * v)) * dr.sin(11 * v + 3 * dr.sin(8 * u)) * 0.5 + 0.5
    heat = dr.clip(1.35 * (1 - y) * (0.35 + flame) - 0.9 * dr.square(2 * x - 1), 0, 1)
    return [dr.clip(1.8 * heat, 0, 1), dr.square(heat), 0.9 * heat**4 + 0.08 * (1 - heat)]


def batch(key):
    p = cn.uniform(3, key, Float, 1 << 13)
    return p, pattern(*p)


encoding = cn.HashGrid(
    3, n_levels=6, base_resolution=8, per_level_scale=1.6, hashmap_size=2**15
)
field = cn.NeuralField(encoding, cn.MLP(out_features=3, width=32, depth=2, dropout=0.05)).build(
    seed=1
)
result = cn.fit(field, batch, 600, lr=cn.training.cosine(1e-2, 600), progress=False)
print(f"{result.seconds:.1f} s, loss {result.losses[-1]:.5f}, recordings: {result.recordings}")

# %%
# The same function twice
# -----------------------
#
# All that changes between calls is an argument, and numbers are *opaque* arrays of one entry: ``dr.opaque`` hides their
# value from the compiler. The key of the dropout masks is made inside, of a seed that is an argument.


def frame(field, x, y, t, seed):
    """A picture at time ``t`` without dropout, and its distance from one with masks."""
    p = Array3f(x, y, t)
    sure, masked = field(p), field(p, cn.Key(seed))
    return sure, dr.abs(masked[0] - sure[0])


SIDE = 96
row, column = np.meshgrid(
    *[(np.arange(SIDE, dtype=np.float32) + 0.5) / SIDE] * 2, indexing="ij"
)
x, y = Float(column.ravel()), Float(row.ravel())
dr.eval(x, y)
frozen = dr.freeze(frame)
seed = dr.opaque(dr.uint64_array_t(UInt32), 5)


def milliseconds(function, calls=30):
    """Median of the wall time of a call."""
    wall = []
    for i in range(calls):
        dr.sync_thread()
        start = time.perf_counter()
        dr.eval(function(field, x, y, dr.opaque(Float, i / calls), seed))
        dr.sync_thread()
        wall.append(1000 * (time.perf_counter() - start))
    return float(np.median(wall[3:]))


with dr.suspend_grad():
    times = {"traced": milliseconds(frame), "frozen": milliseconds(frozen)}
    pictures = [
        frozen(field, x, y, dr.opaque(Float, t), seed) for t in np.linspace(0.05, 0.95, 6)
    ]
print(
    {name: f"{value:.2f} ms" for name, value in times.items()},
    f"recordings: {frozen.n_recordings}",
)

figure, axes = plt.subplots(2, 6, figsize=(11, 3.9), layout="constrained")
for i, (colour, deviation) in enumerate(pictures):
    axes[0, i].imshow(np.clip(colour.numpy().T.reshape(SIDE, SIDE, 3), 0, 1), origin="lower")
    axes[1, i].imshow(
        deviation.numpy().reshape(SIDE, SIDE), cmap="magma", vmin=0, vmax=0.15, origin="lower"
    )
for axis in axes.flat:
    axis.set(xticks=[], yticks=[])
axes[0, 0].set_ylabel("field")
axes[1, 0].set_ylabel("change by masks")
figure.suptitle("Six calls of one recording")
plt.show()

# %%
# What records again
# ------------------
#
# A recording belongs to the *types and layout* of its arguments. Dr.Jit looks at them at every call and records anew
# for a layout that it has not seen. Values of arrays do not count; Python numbers do, since they are part of the
# program.

changes = {
    "another opaque time": lambda: frozen(field, x, y, dr.opaque(Float, 0.33), seed),
    "another opaque seed": lambda: frozen(
        field, x, y, dr.opaque(Float, 0.5), seed + dr.opaque(type(seed), 1)
    ),
    "a Python number for the time": lambda: frozen(field, x, y, 0.25, seed),
    "another Python number": lambda: frozen(field, x, y, 0.5, seed),
    "the same one again": lambda: frozen(field, x, y, 0.5, seed),
    "half as many samples": lambda: frozen(
        field, x[: SIDE**2 // 2], y[: SIDE**2 // 2], dr.opaque(Float, 0.5), seed
    ),
}
with dr.suspend_grad():
    for what, call in changes.items():
        before = frozen.n_recordings
        dr.eval(call())
        again = frozen.n_recordings - before
        print(f"{what:<30}{'recorded' if again else 'replayed'}")

# %%
# So make values that change often opaque, and use Python numbers for settings. Two more rules:
#
# - **What a frozen function reads is an argument.** Arrays are found in arguments, also inside fields, lists and other
#   PyTrees. Everything else that the function reads keeps the value that it had when the function was recorded.
# - **Values cannot be read inside.** ``print``, ``.numpy()`` and ``if`` on an array need its value while Python
#   runs, which happens once. In a frozen function they are errors, or end the process: return the array, and read it
#   outside.
#
# How much is saved
# -----------------
#
# Tracing takes the same time whatever the number of samples; what it costs is felt in small pictures and batches, and
# on GPUs, whose kernels are over sooner.

sides, walls = (16, 32, 64, 128, 256), {"traced": [], "frozen": []}
for side in sides:
    row, column = np.meshgrid(
        *[(np.arange(side, dtype=np.float32) + 0.5) / side] * 2, indexing="ij"
    )
    x, y = Float(column.ravel()), Float(row.ravel())
    dr.eval(x, y)
    with dr.suspend_grad():
        for name, function in (("traced", frame), ("frozen", frozen)):
            walls[name].append(milliseconds(function, 15))
figure, axis = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for name, values in walls.items():
    axis.loglog([side**2 for side in sides], values, "o-", label=name)
axis.set(
    xlabel="samples", ylabel="ms per call", title="One picture, without masks and with them"
)
axis.grid(alpha=0.25)
axis.legend(frameon=False)
axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# .. seealso::
#
#    :doc:`/gradients` says why training steps should be frozen, above all on GPUs; :doc:`/neural_path` how to freeze
#    ``mi.render``, and its traps.
