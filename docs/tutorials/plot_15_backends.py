"""
Moving between CPU and GPU
==========================

One program, two backends: you train on the GPU if there is one, move the field back, and see what is equal on
both.
"""

# %%
# A Dr.Jit program works on one backend at a time, and arrays of two backends never mix. But a program may
# need both: training is fastest on a GPU, while a Mitsuba scene may be loaded on the CPU. coopnet moves fields and data
# when you ask for it.
#
# This page runs on any machine. The next lines choose the other backend and print it.

import time

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np

import coopnet as cn

available = cn.backend.available()
here = "llvm" if "llvm" in available else "cuda"
there = "cuda" if "cuda" in available else "llvm"
print(f"available: {', '.join(available)}; home is {here}, training runs on {there}")
if there == here:
    print("There is one backend only: what would move stays where it is.")

# %%
# A function for any backend
# --------------------------
#
# ``cn.backend.namespace("auto")`` has the array types of the backend that is in use. Written with these, a function
# runs wherever it is called.

SIDE, STEPS = 192, 500


def marble():
    """Slabs of veined stone, ``(SIDE, SIDE, 3)``."""
    y, x = (np.mgrid[:SIDE, :SIDE] + 0.5) / SIDE
    slab = np.floor(3 * x) + 3 * np.floor(3 * y)
    u, v = x + 0.37 * slab, y + 0.21 * slab * (-1) ** slab
    for k in range(1, 7):  # folded again and again
        u, v = (
            u + 0.35 / 1.8**k * np.sin(1.8**k * 5 * v + k),
            v + 0.35 / 1.8**k * np.sin(1.8**k * 4 * u - 2 * k),
        )
    vein = np.exp(-9 * np.abs(np.sin(9 * u + 4 * v))) + 0.5 * np.exp(
        -14 * np.abs(np.sin(21 * v))
    )
    dark = (slab % 2)[..., None]
    stone = (1 - dark) * [0.86, 0.83, 0.78] + dark * [0.13, 0.22, 0.2]
    stone = stone + np.clip(vein, 0, 1)[..., None] * (
        (1 - dark) * [-0.5, -0.5, -0.42] + dark * [0.55, 0.5, 0.35]
    )
    joint = np.minimum(np.abs((3 * x + 0.5) % 1 - 0.5), np.abs((3 * y + 0.5) % 1 - 0.5))[
        ..., None
    ]
    return np.clip(stone * np.clip(joint / 0.02, 0.35, 1), 0, 1).astype(np.float32)


stone = marble()


def train(field, texels):
    ns = cn.backend.namespace("auto")

    def batch(key):
        u, v = cn.uniform(2, key, ns.Float, 1 << 13)
        column, row = ns.UInt32(u * SIDE), ns.UInt32(v * SIDE)
        colours = dr.gather(ns.ArrayXf, texels, row * SIDE + column, shape=(3, 1 << 13))
        return [(ns.Float(column) + 0.5) / SIDE, (ns.Float(row) + 0.5) / SIDE], colours

    result = cn.fit(field, batch, STEPS, lr=cn.training.cosine(1e-2, STEPS), progress=False)
    print(
        f"trained on {dr.backend_v(ns.Float).name},",
        f"{field.precision} precision, {result.seconds:.1f} s",
    )
    return field


# %%
# ``with_backend`` moves the arguments there, calls the function, and moves what it returns back. The field that comes
# back has the precision of its first backend: single on the CPU, half on the GPU.

home = cn.backend.namespace(here)
network = cn.MLP(out_features=3, width=32, depth=2, dropout=0.1, output_activation="sigmoid")
field = cn.NeuralField(
    cn.HashGrid(2, n_levels=8, base_resolution=8, per_level_scale=1.4), network
).build(here, seed=1)
field = cn.with_backend(there, train, field, home.Float(stone.ravel()))
print(f"the field is home: {dr.backend_v(next(iter(field.values()))).name}, {field.precision}")

# %%
# What is equal, and what is not
# ------------------------------
#
# Masks are equal to the bit: they are integers, a function of the key alone. Values agree to the precision of the
# network. Without a second backend, the field is built here in half precision, as on a GPU.


def look(field, p, key):
    """The field, and the same under one mask for every sample."""
    return field(p), field(p, key)


y, x = np.meshgrid(*[(np.arange(SIDE, dtype=np.float32) + 0.5) / SIDE] * 2, indexing="ij")
p = [x.ravel(), y.ravel()]  # NumPy arrays move, too
key = cn.Key(seed=5, step=1)
other = cn.to(field, there, precision="half")
start = time.perf_counter()
pictures = [
    cn.with_backend(there, look, other, p, key),
    cn.with_backend(here, look, field, p, key),
]
print(
    f"both in {time.perf_counter() - start:.2f} s,",
    f"results are {type(np.asarray(pictures[0][0])).__name__}",
)
away, local = (
    [np.stack(np.asarray(v), -1).reshape(SIDE, SIDE, 3) for v in pair] for pair in pictures
)
for name, a, b in (("values", away[0], local[0]), ("values under dropout", away[1], local[1])):
    print(f"{name:<22}largest difference {np.abs(a - b).max():.1e}")

samples = cn.Key(seed=5, step=1, index=np.arange(100_000, dtype=np.uint32))
masks = [
    np.asarray(cn.with_backend(b, cn.dropout_mask, 64, 0.1, samples)) for b in (here, there)
]
reference = np.asarray(cn.dropout_mask(64, 0.1, samples))
print(f"masks of 100000 samples on {here}, {there} and in NumPy:", end=" ")
print("equal to the bit" if all(np.array_equal(m, reference) for m in masks) else "different")

figure, axes = plt.subplots(1, 4, figsize=(12, 3.3), layout="constrained")
shown = {
    f"{here}, {field.precision}": local[0], f"{there}, {other.precision}": away[0],
    "difference x 100, on grey": 0.5 + 100 * (away[0] - local[0]),
    f"{there}, under dropout": away[1],
}  # fmt: skip
for axis, (title, picture) in zip(axes, shown.items(), strict=True):
    axis.imshow(np.clip(picture, 0, 1))
    axis.set_title(title, fontsize=10)
    axis.axis("off")
plt.show()

# %%
# Derivatives across backends
# ---------------------------
#
# A loss on one backend reaches parameters on the other. So an optimizer on the CPU may use a gradient from the GPU.

where = [home.Float(v) for v in p]
weights = field["network.weights"]
dr.enable_grad(weights)
outputs = cn.with_backend(there, lambda field, p: field(p), field, where)
dr.backward(dr.mean(dr.square(outputs[0] - 0.5)))
gradient = dr.grad(weights)
print(
    f"gradient at home: an array of {type(gradient).__module__},",
    f"of length {dr.norm(gradient)[0]:.4f}",
)
dr.disable_grad(weights)

# %%
# ``cn.to`` moves any tree of things: a field with its optimizer and average, dictionaries, textures, keys. ``"numpy"``
# is a third target: a field becomes a dictionary of its parameters by name, as in a checkpoint.

parameters = cn.to(field, "numpy")
print({name: (values.shape, str(values.dtype)) for name, values in parameters.items()})

# %%
# .. seealso::
#
#    :doc:`/backends` lists what can be moved and what it becomes, and has rules and derivatives.
#    ``examples/two_backends.py`` renders with Mitsuba on the CPU what was learned on the GPU.
#    :doc:`/dropout` has the formula that makes masks equal.
