"""
Checkpoints and resuming
========================

You stop a run, resume it from its file, and compare with a run that was never stopped: equal to the last bit on the
CPU.
"""

# %%
# A run may take hours, and machines are switched off. What has to be kept so that nothing is lost? Weights; what the
# optimizer remembers; the average; the step, from which the schedule and all random numbers follow; the best metric so
# far. A checkpoint of ``cn.fit`` has all of them, and ``cn.load`` reads it as a field, too.

import tempfile
from pathlib import Path

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import Float, UInt32
from matplotlib.cbook import get_sample_data
from matplotlib.colors import LightSource

import coopnet as cn

# %%
# The data are heights: a fault near Jacksboro, Tennessee, measured by a space shuttle's radar (SRTM, NASA; in the
# public domain, with matplotlib). The field learns them in units of a kilometre, since networks learn numbers near 1
# best.

SIDE, STEPS, STOP = 320, 600, 250
folder = Path(tempfile.mkdtemp())
heights = (
    get_sample_data("jacksboro_fault_dem.npz")["elevation"][:SIDE, :SIDE].astype(np.float32)
    / 1000
)
table = Float(heights.ravel())


def batch(key):
    u, v = cn.uniform(2, key, Float, 1 << 12)
    column, row = UInt32(u * SIDE), UInt32(v * SIDE)
    height = dr.gather(Float, table, row * SIDE + column)
    return [(Float(column) + 0.5) / SIDE, (Float(row) + 0.5) / SIDE], [height]


def make():
    encoding = cn.HashGrid(
        2, n_levels=8, base_resolution=8, per_level_scale=1.6, hashmap_size=2**14
    )
    network = cn.MLP(out_features=1, width=32, depth=2, dropout=0.02, bias=True)
    return cn.NeuralField(encoding, network).build(seed=1)


def terrain(field):
    """Heights at all points, in kilometres."""
    y, x = np.meshgrid(*[(np.arange(SIDE, dtype=np.float32) + 0.5) / SIDE] * 2, indexing="ij")
    return field([Float(x.ravel()), Float(y.ravel())])[0].numpy().reshape(SIDE, SIDE)


def metres(field):
    """The root of the mean squared error."""
    return 1000 * float(np.sqrt(np.mean((terrain(field) - heights) ** 2)))


def run(field, steps, file=None, **options):
    """A part of a run; schedule, metric and average are those of the whole."""
    ema = cn.training.EMA(field, decay=0.98)
    result = cn.fit(
        field, batch, steps, lr=cn.training.cosine(1e-2, STEPS), weight_decay=0.01,
        ema=ema, seed=3, checkpoint=file,
        metric=metres, metric_every=10, higher_is_better=False, progress=False,
        metadata={"place": "Jacksboro", "unit": "km"}, **options,
    )  # fmt: skip
    return result, ema


# %%
# A run that is stopped
# ---------------------
#
# The number of steps is the total, counted from 0. In practice a run ends by Ctrl-C, which finishes the step and writes
# a checkpoint, or because a machine goes down. Then the last checkpoint remains: one is written every
# ``checkpoint_every`` seconds. To go on, take a *new* field, as in a new process, and ``resume=True``.

file = folder / "terrain.safetensors"
whole, ema_whole = run(field_whole := make(), STEPS)

first, _ = run(make(), STOP, file)
print(f"stopped after {first.steps} steps, the file has {file.stat().st_size / 1024:.0f} KiB")
second, ema = run(field := make(), STEPS, file, resume=True)
print(f"the second part knows of {len(second.losses)} losses and {len(second.metrics)} metrics")

same = {
    "losses": np.array_equal(whole.losses, second.losses),
    "metrics": whole.metrics == second.metrics,
    "parameters": all(
        np.array_equal(np.array(field[name]), np.array(field_whole[name])) for name in field
    ),
    "average": all(
        np.array_equal(np.array(ema.average[n]), np.array(ema_whole.average[n]))
        for n in ema.average
    ),
}
print("equal to the bit:", same)

# %%
# Why is that so? Random numbers of a step are a function of the seed and the number of the step; no generator has a
# state that could get lost. And on the CPU, weight gradients are summed in a fixed order. On a GPU the last bits of
# sums depend on the order of atomics, unless the run is within ``cn.deterministic()``.

figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
steps = np.arange(STEPS)
axes[0].semilogy(steps, whole.losses, color="0.75", lw=3, label="in one go")
axes[0].semilogy(steps[:STOP], first.losses, lw=0.9, label="first part")
axes[0].semilogy(steps[STOP:], second.losses[STOP:], lw=0.9, label="resumed")
axes[0].set(title="loss", xlabel="step")
axes[1].semilogy(*zip(*whole.metrics, strict=True), color="0.75", lw=4, label="in one go")
axes[1].semilogy(*zip(*first.metrics, strict=True), label="first part")
axes[1].semilogy(
    *zip(*[m for m in second.metrics if m[0] > STOP], strict=True), label="resumed"
)
axes[1].set(title="error of the heights, metres", xlabel="step")
for axis in axes:
    axis.axvline(STOP, color="k", lw=0.8, ls=":")
    axis.legend(frameon=False, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# A checkpoint is a field
# -----------------------
#
# ``cn.load`` builds the field on any available backend, in any of its precisions. Nothing in a file is executed, so it
# can come from anywhere. ``cn.io.read`` reads what else is in the file.

loaded = cn.load(file)
print("loaded:", "equal" if np.array_equal(terrain(loaded), terrain(field)) else "different")
half = cn.load(file, precision="half")
print(
    "in half precision heights differ by",
    f"{1000 * np.abs(terrain(half) - terrain(field)).max():.2f} m at most",
)
contents = cn.io.read(file)
print(
    contents.metadata["place"],
    f"and {len(contents.tensors)} tensors:",
    *list(contents.tensors)[:4],
    "...",
)

light = LightSource(azdeg=315, altdeg=40)
maps = {"measured": heights, f"resumed run, off by {metres(loaded):.1f} m": terrain(loaded)}
figure, axes = plt.subplots(1, 2, figsize=(9, 4.7), layout="constrained")
for axis, (title, values) in zip(axes, maps.items(), strict=True):
    shade = {
        "blend_mode": "soft",
        "vert_exag": 3,
        "dx": 75,
        "dy": 90,
        "vmin": 100,
        "vmax": 1100,
    }
    axis.imshow(light.shade(1000 * values, plt.get_cmap("gist_earth"), **shade))
    axis.set_title(title)
    axis.axis("off")
plt.show()

# %%
# If a run diverges, the checkpoint keeps the last finite state: NaN and infinity are never written to it. A file is
# replaced as a whole or not at all, whatever happens while it is written.
#
# .. seealso::
#
#    :doc:`/reliability` says what is promised about files, interrupts and resuming, and how each promise is tested.
