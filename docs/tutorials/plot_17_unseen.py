"""
What a field has not seen
=========================

You learn a photograph with a hole in it, let three methods find where the field has seen nothing, and draw only what
has been seen.
"""

# %%
# A field has an answer everywhere, also where it had no data: behind a wall, between two scans, at a pixel that no
# camera saw. A renderer that falls back to something safe there needs to know where that is. With a hash grid, the
# answer depends on the method.

import warnings

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import ArrayXf, Float, UInt32
from matplotlib.cbook import get_sample_data

import coopnet as cn
from coopnet import image

# %%
# A photograph with a hole
# ------------------------
#
# The photograph has 128 x 128 pixels. Those in a disc and in a strip at the right are never shown to any field.

SIDE, STEPS, BATCH = 128, 200, 1 << 12
photo = image.load(get_sample_data("grace_hopper.jpg", asfileobj=False))[60:316, 130:386]
photo = photo.reshape(SIDE, 2, SIDE, 2, 3).mean((1, 3)).astype(np.float32)
row, column = np.mgrid[:SIDE, :SIDE]
unseen = (np.hypot(row - 84, column - 40) < 24) | (column >= 106)
seen = UInt32(np.flatnonzero(~unseen).astype(np.uint32))
colours = Float(photo.ravel())
print(f"{100 * unseen.mean():.0f} % of the pixels are unseen")


def batch(key):
    """Random pixels among those that are seen, and their colours."""
    number = dr.minimum(
        UInt32(cn.uniform(1, key, Float, BATCH)[0] * dr.width(seen)), dr.width(seen) - 1
    )
    pixel = dr.gather(UInt32, seen, number)
    return image.pixels(pixel, SIDE, SIDE), dr.gather(ArrayXf, colours, pixel, shape=(3, BATCH))


def learn(seed, dropout=0.0):
    grid = cn.HashGrid(2, n_levels=8, base_resolution=8, per_level_scale=1.5)
    network = cn.MLP(
        out_features=3, width=32, depth=2, dropout=dropout, output_activation="sigmoid"
    )
    field = cn.NeuralField(grid, network).build(seed=seed)
    cn.fit(field, batch, STEPS, lr=cn.training.cosine(1e-2, STEPS), seed=seed, progress=False)
    return field


# %%
# Three deviations
# ----------------
#
# - *Monte Carlo dropout*: train with dropout, draw the field under 32 masks, and measure how much the pictures differ.
# - ``cn.laplace``: after training, add up how much the data say about every entry of the grid. Entries that no pixel
#   has touched keep their prior variance. ``std`` gives the deviation of the colours that follows, in one kernel.
# - ``cn.ensemble``: train five fields from five seeds, and measure how much they differ. They agree where there were
#   data.

members = [learn(seed) for seed in range(5)]
plain, dropped = members[0], learn(0, dropout=0.1)
posterior, together = cn.laplace(plain, batch, steps=8), cn.ensemble(members)

# The library warns once that masks do not reveal what a grid has not seen, which is what this page shows.
warnings.filterwarnings("ignore", ".*unseen regions", RuntimeWarning)
_, masks = image.render_mc(dropped, SIDE, SIDE, samples=32, seed=1)

p = image.pixels(dr.arange(UInt32, SIDE * SIDE), SIDE, SIDE)
deviations = {
    "dropout": masks,
    "cn.laplace": posterior.std(p).numpy().T.reshape(photo.shape),
    "cn.ensemble": together.std(p).numpy().T.reshape(photo.shape),
}
deviations = {name: np.sqrt(np.mean(np.square(v), axis=2)) for name, v in deviations.items()}
for name, deviation in deviations.items():
    print(
        f"{name:<12}tells the unseen from the seen with AUROC {cn.auroc(deviation, unseen):.3f}"
    )

# %%
# An AUROC of 1 means that every unseen pixel has a larger deviation than every seen one, 0.5 that the deviation says
# nothing, and 0 that it says the opposite. The colours of each map go from its smallest to its largest deviation, and
# the line is the border of what was seen.


def show(axis, picture, title, **options):
    axis.imshow(picture, **options)
    axis.set_title(title, fontsize=10)
    axis.axis("off")


drawn = np.clip(image.render(plain, SIDE, SIDE), 0, 1)
figure, axes = plt.subplots(1, 5, figsize=(12, 2.7), layout="compressed")
show(axes[0], np.where(unseen[..., None], 0.85, photo), "learned from")
show(axes[1], drawn, "what the field draws")
for axis, (name, deviation) in zip(axes[2:], deviations.items(), strict=True):
    low, high = np.quantile(deviation, [0.01, 0.99])
    title = f"{name}: AUROC {cn.auroc(deviation, unseen):.3f}"
    show(axis, deviation, title, cmap="magma", vmin=low, vmax=high)
    axis.contour(unseen, [0.5], colors="white", linewidths=1)
plt.show()

# %%
# Masks are wrong here in the worst way: the field is *most* certain in the hole. The finest entries of the grid that
# no pixel has touched are still as close to 0 as they were in the beginning. The network sees the same small features
# under every mask, and what is dropped of them makes little difference.
#
# Something safe
# --------------
#
# Where the deviation is large, draw something else: the background, a coarser model, or nothing. The limit is chosen on
# the seen pixels, of which it removes one in a hundred; the hole need not be known.

pictures = {}
checks = np.where((row // 4 + column // 4) % 2, 0.82, 0.95)[..., None]
for name, deviation in deviations.items():
    unsure = deviation > np.quantile(deviation[~unseen], 0.99)
    hidden = 100 * unsure[unseen].mean()
    print(f"{name:<12}hides {hidden:5.1f} % of the unseen pixels")
    pictures[f"{name} hides {hidden:.0f} % of the unseen"] = np.where(
        unsure[..., None], checks, drawn
    )

figure, axes = plt.subplots(1, 2, figsize=(6.6, 3.6), layout="compressed")
for axis, (title, picture) in zip(axes, list(pictures.items())[:2], strict=True):
    show(axis, picture, title)
plt.show()

# %%
# The ensemble hides a part. Its members have seen nothing there, either, but partly invent the same: they disagree at
# the border of the hole and agree on a grey in its middle. It is far better than masks, and the method of choice for a
# network without a grid.
#
# .. seealso::
#
#    :doc:`/uncertainty` compares the methods over several seeds, with and without a grid, says which is for which job,
#    and has ``cn.calibrate`` for deviations as large as errors.
