"""
Learning an image
=================

You build a neural field, train it on a photograph, draw it at another resolution and learn what each line is for.
"""

# %%
# A *neural field* is a small network that maps coordinates to values. Here the coordinates are a position in the unit
# square and the values are a colour, so the field is a picture without pixels: it has a value at any position.
# coopnet's fields run inside Dr.Jit's kernels (compiled programs), together with everything else that they compute.
# This page needs only the basics.
#
# The photograph comes with matplotlib: Commodore Grace M. Hopper, by James S. Davis, US Navy, in the public domain. Any
# other picture works as well: ``photo = image.load("mine.jpg")``, of any size, in colour or in grey.

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import ArrayXf, Float, UInt32
from matplotlib.cbook import get_sample_data

import coopnet as cn
from coopnet import image

photo = image.load(get_sample_data("grace_hopper.jpg", asfileobj=False))[60:316, 130:386]
HEIGHT, WIDTH, COLOURS = photo.shape
print(
    f"{WIDTH} x {HEIGHT} pixels,",
    f"{photo.size} numbers from {photo.min():.2f} to {photo.max():.2f}",
)

# %%
# The field
# ---------
#
# A plain network of two coordinates is smooth: it would paint a blur. An *encoding* in front of it computes features in
# which nearby positions differ. A hash grid looks up trained features in grids of several resolutions. So most of
# the picture is stored in the grids, and the network only has to read it.
#
# ``build`` allocates the parameters on the fastest available backend, from a seed. Sizes that follow from others
# are left out: the network finds out how many features the encoding has.

encoding = cn.HashGrid(n_levels=10, base_resolution=8, per_level_scale=1.5, hashmap_size=2**14)
network = cn.MLP(out_features=COLOURS, width=32, depth=2, output_activation="sigmoid")
field = cn.NeuralField(encoding, network, in_features=2).build(seed=1)
print(field)
print({name: values.shape for name, values in field.items()})

# %%
# The batch
# ---------
#
# Training needs one function, which draws a batch: positions and the colours wanted there. It is *traced*: Dr.Jit
# records its arithmetic once, and every later step replays the compiled kernel. This gives two rules. First, convert
# NumPy arrays outside of the function, once. Second, take random numbers from the *key* that the function receives. A
# key is a seed and the number of the step, so the same seed gives the same run.

table = Float(photo.ravel())
BATCH = 1 << 14


def batch(key):
    u, v = cn.uniform(2, key, Float, BATCH)
    column, row = UInt32(u * WIDTH), UInt32(v * HEIGHT)
    # centres of pixels, where their colours are right
    x, y = (Float(column) + 0.5) / WIDTH, (Float(row) + 0.5) / HEIGHT
    return [x, y], dr.gather(ArrayXf, table, row * WIDTH + column, shape=(COLOURS, BATCH))


# %%
# Training
# --------
#
# ``cn.fit`` minimizes the mean squared error by Adam. The learning rate falls along half a cosine. The metric is
# evaluated now and then; it has to be a function of the field alone.


def picture(field, height, width, left=0.0, top=0.0, right=1.0, bottom=1.0):
    """The field at the centres of ``height x width`` pixels of a part of the picture."""
    rows, columns = ((np.arange(n, dtype=np.float32) + 0.5) / n for n in (height, width))
    y, x = np.meshgrid(
        top + (bottom - top) * rows, left + (right - left) * columns, indexing="ij"
    )
    return field([Float(x.ravel()), Float(y.ravel())]).numpy().T.reshape(height, width, COLOURS)


STEPS = 800
result = cn.fit(
    field, batch, STEPS, lr=cn.training.cosine(1e-2, STEPS), progress=False,
    metric=lambda field: image.psnr(picture(field, HEIGHT, WIDTH), photo), metric_every=50,
)  # fmt: skip
print(f"{result.seconds:.1f} s, loss {result.losses[-1]:.5f}, {result.metrics[-1][1]:.2f} dB")

# %%
# The result
# ----------

learned = picture(field, HEIGHT, WIDTH)
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
error = np.sqrt(np.mean((learned - photo) ** 2, axis=2))
for axis, (title, shown) in zip(
    axes, {"Photograph": photo, "Field": learned, "Error": error}.items(), strict=True
):
    if title == "Error":
        drawn = axis.imshow(shown, vmin=0, vmax=0.2, cmap="magma")
    else:
        axis.imshow(np.clip(shown, 0, 1), vmin=0, vmax=1, cmap="gray")
    axis.set_title(title)
    axis.axis("off")
figure.colorbar(drawn, ax=axes[2], shrink=0.8)
plt.show()

# %%
# The loss over time. Each step has the loss of its own random batch, which explains the noise.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
left.semilogy(result.losses, color="0.6", lw=0.8)
left.set(title="Mean squared error of each batch", xlabel="step")
right.plot(*zip(*result.metrics, strict=True), marker="o", ms=3)
right.set(title="PSNR of the whole picture", xlabel="step", ylabel="dB")
for axis in (left, right):
    axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# Between the pixels
# ------------------
#
# The field has no resolution. Here is a part of it at eight times as many positions along each axis as there were
# pixels. Between the pixels it only interpolates its finest grid: a field does not know what the
# camera did not see.

ZOOM, left, top = 8, round(0.22 * WIDTH), round(0.4 * HEIGHT)
part = photo[top : top + HEIGHT // 4, left : left + WIDTH // 4]
height, width = part.shape[:2]
corners = left / WIDTH, top / HEIGHT, (left + width) / WIDTH, (top + height) / HEIGHT
close = picture(field, height * ZOOM, width * ZOOM, *corners)

figure, axes = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")
axes[0].imshow(part, vmin=0, vmax=1, cmap="gray")
axes[0].set_title(f"Photograph, {width} x {height} pixels")
axes[1].imshow(np.clip(close, 0, 1), vmin=0, vmax=1, cmap="gray")
axes[1].set_title(f"Field, asked at {width * ZOOM} x {height * ZOOM} positions")
for axis in axes:
    axis.axis("off")
plt.show()

# %%
# Two ways on
# -----------
#
# ``cn.save("photo.safetensors", field)`` writes the field to a file that any backend can load, and
# ``coopnet fit photo.jpg -o learned --pixels 1 --dropout 0`` trains one from the command line.
#
# .. seealso::
#
#    :doc:`/encodings` lists all encodings, and the next tutorial compares some of them on this very
#    photograph. :doc:`/gradients` says how a training step computes weight gradients, and what that costs.
