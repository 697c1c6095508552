"""
Checkpoints and resuming
========================

You stop a run, go on from its file, and compare with a run that was never stopped: to the last bit on the CPU.
"""

# %%
# A run may take hours, and machines are switched off. What has to be kept so that nothing is lost? Weights; what the optimizer remembers; the average; the step, by
# which the schedule and all random numbers go on; the best metric so far. A checkpoint of ``cn.fit`` has all of them, and is a field that
# ``cn.load`` reads besides.

import tempfile
import warnings
from pathlib import Path

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import ArrayXf, Float, UInt32
from matplotlib.cbook import get_sample_data

import coopnet as cn
from coopnet import image

SIDE, STEPS, STOP = 128, 400, 170
folder = Path(tempfile.mkdtemp())
photo = image.load(get_sample_data("grace_hopper.jpg", asfileobj=False))[60:316, 130:386]
photo = photo.reshape(SIDE, 2, SIDE, 2, 3).mean((1, 3)).astype(np.float32)
table = Float(photo.ravel())


def batch(key):
    u, v = cn.uniform(2, key, Float, 1 << 12)
    column, row = UInt32(u * SIDE), UInt32(v * SIDE)
    colours = dr.gather(ArrayXf, table, row * SIDE + column, shape=(3, 1 << 12))
    return [(Float(column) + 0.5) / SIDE, (Float(row) + 0.5) / SIDE], colours


def make():
    encoding = cn.HashGrid(2, n_levels=8, base_resolution=8, per_level_scale=1.4, hashmap_size=2**13)
    network = cn.MLP(out_features=3, width=32, depth=2, dropout=0.05, output_activation="sigmoid")
    return cn.NeuralField(encoding, network).build(seed=1)


def picture(field):
    y, x = np.meshgrid(*[(np.arange(SIDE, dtype=np.float32) + 0.5) / SIDE] * 2, indexing="ij")
    return field([Float(x.ravel()), Float(y.ravel())]).numpy().T.reshape(SIDE, SIDE, 3)


def run(field, steps, file=None, **options):
    """A part of one and the same run: schedule, metric and average belong to it, wherever it begins and ends."""
    ema = cn.training.EMA(field, decay=0.98)
    result = cn.fit(
        field, batch, steps, lr=cn.training.cosine(1e-2, STEPS), weight_decay=0.01, ema=ema, seed=3, checkpoint=file,
        metric=lambda field: image.psnr(picture(field), photo), metric_every=10, progress=False, **options,
    )  # fmt: skip
    return result, ema


# %%
# A run that is stopped
# ---------------------
#
# The number of steps is where to stop, counted from 0. In practice a run ends with Ctrl-C, after which the step is finished and the checkpoint
# written, or by a machine that goes down, after which the last checkpoint is there: one is written every
# ``checkpoint_every`` seconds. Then a *new* field, as in a new process, and ``resume=True``.

file = folder / "photo.safetensors"
whole, ema_whole = run(field_whole := make(), STEPS)

first, _ = run(make(), STOP, file, metadata={"photograph": "Grace Hopper", "side": SIDE})
print(f"stopped after {first.steps} steps, the file has {file.stat().st_size / 1024:.0f} KiB")
second, ema = run(field := make(), STEPS, file, resume=True)
print(f"the second part knows of {len(second.losses)} losses and {len(second.metrics)} metrics")

same = {
    "losses": np.array_equal(whole.losses, second.losses),
    "metrics": whole.metrics == second.metrics,
    "parameters": all(np.array_equal(np.array(field[name]), np.array(field_whole[name])) for name in field),
    "average": all(np.array_equal(np.array(ema.average[n]), np.array(ema_whole.average[n])) for n in ema.average),
}
print("equal to the bit:", same)

# %%
# Why is that so? Random numbers of a step are a function of the seed and the number of the step; no generator has
# a state that could get lost. And on the CPU, weight gradients are summed in a fixed order. On a GPU the last bits
# of sums depend on the order of atomics, unless the run is within ``cn.deterministic()``.

figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), width_ratios=[1.3, 1.3, 1], layout="constrained")
steps = np.arange(STEPS)
axes[0].semilogy(steps, whole.losses, color="0.75", lw=3, label="in one go")
axes[0].semilogy(steps[:STOP], first.losses, lw=0.9, label="first part")
axes[0].semilogy(steps[STOP:], second.losses[STOP:], lw=0.9, label="resumed")
axes[0].set(title="loss", xlabel="step")
axes[1].plot(*zip(*whole.metrics, strict=True), color="0.75", lw=4, label="in one go")
axes[1].plot(*zip(*first.metrics, strict=True), label="first part")
axes[1].plot(*zip(*[m for m in second.metrics if m[0] > STOP], strict=True), label="resumed")
axes[1].set(title="PSNR, dB", xlabel="step")
for axis in axes[:2]:
    axis.axvline(STOP, color="k", lw=0.8, ls=":")
    axis.legend(frameon=False, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
axes[2].imshow(np.clip(picture(field), 0, 1))
axes[2].set_title(f"resumed: {second.metrics[-1][1]:.2f} dB", fontsize=10)
axes[2].axis("off")
plt.show()

# %%
# A checkpoint is a field
# -----------------------
#
# ``cn.load`` builds the field on whatever backend there is, in the precision that is wanted. Nothing in a file is executed,
# so it can come from anywhere. ``cn.io.read`` has what stands beside the field.

loaded = cn.load(file)
print("loaded:", "equal" if np.array_equal(picture(loaded), picture(field)) else "different")
half = cn.load(file, precision="half")
print(f"in half precision the colours differ by {np.abs(picture(half) - picture(field)).max():.4f} at most")
