"""
Dropout and uncertainty
=======================

You train on few and noisy pixels with dropout, let the field say where it is unsure, and see what a key is.
"""

# %%
# A network that has more weights than data memorizes the noise. Dropout keeps it from that: in every step, it sets
# random units to zero, so that no unit can rely on any other (Srivastava et al. 2014). Dropout also measures
# uncertainty: if outputs under several masks differ, the network is unsure (Gal and Ghahramani 2016).
#
# Keys
# ----
#
# Random numbers usually come from a generator with a hidden state. Here a mask is a pure function of a
# *key*: which experiment (seed), which sample (index), which step. Nothing is stored, and every part of a program that
# has the key can compute the same mask again, in any batch, kernel or loop, on CPU and GPU.

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import ArrayXf, Float, UInt32
from matplotlib.cbook import get_sample_data

import coopnet as cn
from coopnet import image


def masks(units, p, key, samples):
    """1 where a unit is kept: a row for each sample."""
    return np.array(cn.dropout(dr.ones(ArrayXf, shape=(units, samples)), p, key)).T > 0


key = cn.Key(seed=7, step=0)
one = masks(48, 0.3, key, 64)
part = masks(
    48, 0.3, cn.Key(seed=7, index=dr.arange(UInt32, 20) + 30), 20
)  # samples 30 to 49, alone
print(
    "the same samples in another batch:",
    "equal" if np.array_equal(one[30:50], part) else "different",
)
print(f"kept: {one.mean():.3f} of the units, 0.7 wanted")

shown = {
    "step 0": one,
    "step 1: key.fold_in(1)": masks(48, 0.3, key.fold_in(1), 64),
    "groups of 8: index // 8": masks(48, 0.3, cn.Key(7, index=dr.arange(UInt32, 64) // 8), 64),
    "one for all: index 0": masks(48, 0.3, cn.Key(7, index=0), 64),
}
figure, axes = plt.subplots(1, 4, figsize=(11, 3.6), sharey=True, layout="constrained")
for axis, (title, mask) in zip(axes, shown.items(), strict=True):
    axis.imshow(mask, cmap="Greys_r", aspect="auto", interpolation="nearest")
    axis.set_title(title, fontsize=10)
    axis.set(xlabel="unit", xticks=[], yticks=[])
axes[0].set_ylabel("sample")
plt.show()

# %%
# Few and noisy pixels
# --------------------
#
# The photograph has 128 x 128 pixels. A tenth of them is known, with noise of standard deviation 0.1. All others are
# held out to measure the error.

SIDE, STEPS = 128, 500
photo = image.load(get_sample_data("grace_hopper.jpg", asfileobj=False))[60:316, 130:386]
photo = photo.reshape(SIDE, 2, SIDE, 2, 3).mean((1, 3)).astype(np.float32)
rng = np.random.default_rng(1)
known, held_out = np.split(rng.permutation(SIDE * SIDE), [SIDE * SIDE // 10])
noisy = (photo + rng.normal(0, 0.1, photo.shape)).reshape(-1, 3)[known].astype(np.float32)
positions = image.pixels(UInt32(known.astype(np.uint32)), SIDE, SIDE)
colours = [Float(np.ascontiguousarray(c)) for c in noisy.T]
dr.eval(positions, colours)


def learn(p, decay=0.0):
    network = cn.MLP(
        out_features=3, width=128, depth=3, dropout=p, output_activation="sigmoid", bias=True
    )
    field = cn.NeuralField(cn.Sinusoidal(6, in_features=2), network).build(seed=1)
    lr = cn.training.cosine(5e-3, STEPS)
    cn.fit(
        field,
        lambda key: (positions, colours),
        STEPS,
        lr=lr,
        weight_decay=decay,
        seed=1,
        progress=False,
    )
    return field


def psnr(picture):
    return image.psnr(picture.reshape(-1, 3)[held_out], photo.reshape(-1, 3)[held_out])


plain, decayed, dropped = learn(0.0), learn(0.0, decay=2.0), learn(0.3)

# %%
# Weight decay 2 is the best of five that were tried (:doc:`/uncertainty`). Two baselines need no network. One gives
# every pixel the mean of the known ones, with weights that fall with the distance. The other is a Gaussian process with
# noise of 0.1, which solves a linear system with an equation for each known pixel.

place = np.stack(np.mgrid[:SIDE, :SIDE], axis=-1).reshape(-1, 2).astype(np.float32)
distance = np.linalg.norm(place[:, None] - place[known], axis=2)


def smooth(radius):
    weights = np.exp(-0.5 * (distance / radius) ** 2) + 1e-12
    return (weights @ noisy / weights.sum(axis=1, keepdims=True)).reshape(photo.shape)


def gaussian_process(length, noise=0.1):
    r = np.sqrt(3) * distance / length
    kernel = noisy.var() * (1 + r) * np.exp(-r)  # Matern's, of order 3/2
    solved = np.linalg.solve(
        kernel[known] + noise**2 * np.eye(len(known)), noisy - noisy.mean(axis=0)
    )
    return (kernel @ solved + noisy.mean(axis=0)).reshape(photo.shape)


# %%
# Without a key, a field is deterministic: dropout is off. That is the usual way to draw it. The mean over masks is
# usually a little better. ``cn.mc_dropout`` computes it, and the standard deviation with it, in one kernel: a loop over
# masks that keeps running moments. ``image.render_mc`` does that for all pixels of a picture.

mean, deviation = image.render_mc(dropped, SIDE, SIDE, samples=64, seed=2)
results = {
    "no regularization": image.render(plain, SIDE, SIDE),
    "weight decay": image.render(decayed, SIDE, SIDE),
    "dropout, off when drawn": image.render(dropped, SIDE, SIDE),
    "dropout, mean of 64 masks": mean,
    # each with the best of several lengths, also on the held-out pixels
    "smoothed pixels": max((smooth(radius) for radius in (1.5, 2, 2.5)), key=psnr),
    "Gaussian process": max((gaussian_process(length) for length in (6, 8, 12)), key=psnr),
}
for name, picture in results.items():
    print(f"{name:<28}{psnr(picture):6.2f} dB on the held-out pixels")

data = np.ones_like(photo)
data.reshape(-1, 3)[known] = noisy
panels = {"learned from": data, **results, "truth": photo}
figure, axes = plt.subplots(2, 4, figsize=(11, 6.1), layout="constrained")
for axis, (title, picture) in zip(axes.flat, panels.items(), strict=True):
    axis.imshow(np.clip(picture, 0, 1))
    axis.set_title(
        f"{title}: {psnr(picture):.2f} dB" if title in results else title, fontsize=9
    )
    axis.axis("off")
plt.show()

# %%
# Dropout keeps this network from learning the noise, and helps more than weight decay. Compare it with the two
# baselines, which need no training. The network's advantage is that it runs in a kernel, for any number of pixels, and
# can be differentiated.

# %%
# Does it know where it is wrong?
# -------------------------------
#
# Remove the pixels the field is least sure about, and look at the error of the rest. If the deviation orders the pixels
# as the true error does, the curve falls as fast as that of an oracle that removes the worst ones first. If it says
# nothing, the curve stays at 1. The area between curve and oracle is the AUSE (Ilg et al. 2018).

error = np.sqrt(np.mean((np.clip(mean, 0, 1) - photo) ** 2, axis=2))
unsure = np.sqrt(np.mean(deviation**2, axis=2))
curve = cn.sparsification(error.flat[held_out], unsure.flat[held_out], norm="rms")
print(f"AUSE {curve.ause:.3f}; an uncertainty that knows nothing has {curve.random:.3f}")

figure, axes = plt.subplots(
    1, 3, figsize=(11, 3.4), width_ratios=[1, 1, 1.3], layout="constrained"
)
for axis, title, values in zip(
    axes, ("true error", "deviation over masks"), (error, unsure), strict=False
):
    axis.imshow(values, cmap="magma", vmin=0, vmax=np.quantile(values, 0.99))
    axis.set_title(title, fontsize=10)
    axis.axis("off")
axes[2].plot(curve.removed, curve.remaining, label="by deviation over masks")
axes[2].plot(curve.removed, curve.oracle, label="by true error (oracle)")
axes[2].axhline(1, color="0.6", ls="--", lw=1, label="at random")
axes[2].set(xlabel="share of pixels taken out", title="error of the others", ylim=(0, 1.1))
axes[2].legend(frameon=False, fontsize=8, loc="lower left")
axes[2].spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# Dropout has a cost: networks that are too small for their data, or that follow a hash grid, do better without it.
# Measure it on held-out data, as here.
#
# .. seealso::
#
#    :doc:`/dropout` has the formula of the masks, and says what is reproducible; :doc:`/uncertainty` measures over
#    several seeds when dropout pays, and how far its error bars can be trusted.
