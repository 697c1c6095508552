"""
A training loop of your own
===========================

Six snapshots of one scene were taken with a camera whose position nobody wrote down. You recover the scene and all
positions together, in a loop of your own.
"""

# %%
# ``cn.fit`` trains one field on batches. When is that not enough? When something else is trained beside the field, when
# a step has several parts, when you want to look at gradients. Then write the loop: a field is a mapping of parameters,
# as modules of ``drjit.nn`` are, so the optimizers of ``drjit.opt`` take it as it is.
#
# The task is the planar one of *BARF* (Lin et al. 2021): small pictures are cut out of a large one, each shifted and
# turned by an unknown amount. A field learns the large picture, while six angles and six shifts are learned with it.

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import Array2f, ArrayXf, Float, TensorXf, Texture2f, UInt32
from drjit.opt import Adam
from matplotlib.cbook import get_sample_data

import coopnet as cn
from coopnet import image, training

photo = image.load(get_sample_data("grace_hopper.jpg", asfileobj=False))[40:360, 100:420]
scene = Texture2f(TensorXf(photo))
SIDE, HALF, COUNT, BATCH, STEPS = 96, 0.21, 6, 1 << 12, 3000

# %%
# The true poses of the snapshots, and the first guess. Only differences between poses can be found, so the first
# pose is known.

rng = np.random.default_rng(3)
centres = np.array(
    [[0.3, 0.3], [0.5, 0.35], [0.72, 0.3], [0.28, 0.62], [0.52, 0.68], [0.74, 0.62]]
)
truth = {"x": centres[:, 0], "y": centres[:, 1], "angle": rng.uniform(-0.3, 0.3, COUNT)}
guess = {
    "x": truth["x"] + rng.normal(0, 0.03, COUNT),
    "y": truth["y"] + rng.normal(0, 0.03, COUNT),
}
guess["angle"] = np.zeros(COUNT)
for name in truth:
    guess[name][0] = truth[name][0]


def place(poses, i, u, v):
    """The position in the scene of a point of snapshot ``i``, given from its middle."""
    x, y, angle = (dr.gather(Float, poses[name], i) for name in ("x", "y", "angle"))
    s, c = dr.sincos(angle)
    return [x + c * u - s * v, y + s * u + c * v]


def as_arrays(poses):
    return {name: Float(values.astype(np.float32)) for name, values in poses.items()}


pixel = dr.arange(UInt32, COUNT * SIDE * SIDE)
number, within = pixel // (SIDE * SIDE), pixel % (SIDE * SIDE)
us = ((Float(within % SIDE) + 0.5) / SIDE * 2 - 1) * HALF
vs = ((Float(within // SIDE) + 0.5) / SIDE * 2 - 1) * HALF
shots = scene.eval(Array2f(place(as_arrays(truth), number, us, vs)))
table = dr.ravel(ArrayXf(shots))  # the colours of all pixels, three numbers each
dr.eval(table, us, vs, number)

figure, axes = plt.subplots(1, COUNT, figsize=(11, 2.1), layout="constrained")
for axis, shot in zip(
    axes, np.stack([c.numpy() for c in shots], -1).reshape(COUNT, SIDE, SIDE, 3), strict=True
):
    axis.imshow(np.clip(shot, 0, 1))
    axis.axis("off")
figure.suptitle("What is known: six snapshots")
plt.show()

# %%
# What is trained
# ---------------
#
# One optimizer holds the parameters of the field and the poses. Learning rates may differ by name. If they are arrays,
# each name needs an array of its own, since Dr.Jit 1.5 multiplies them in place. The hash grid starts with its coarse
# levels alone: a field that can draw every detail at once fits a snapshot at its wrong place, and nothing corrects the
# pose. Poses learn from the field's derivative with respect to coordinates, which jumps between the cells of a linearly
# interpolated grid; with ``smoothstep`` it is continuous.

encoding = cn.HashGrid(
    2, 8, base_resolution=4, per_level_scale=1.7, hashmap_size=2**14, interpolation="smoothstep"
)
network = cn.MLP(out_features=3, width=32, depth=2, bias=True, output_activation="sigmoid")
field = cn.NeuralField(encoding, network).build(seed=1)
opt = Adam(lr=1e-2, params=field)
for name, values in as_arrays(guess).items():
    opt[name] = values
ema = training.EMA(field, decay=0.99)

# %%
# A step
# ------
#
# Three lines are the same in every such loop: put the optimizer's parameters into the field, differentiate, step.
# Between them, you can read and change gradients. ``dr.freeze`` records the whole step when it is first called;
# afterwards its Python code no longer runs. Therefore numbers that change from step to step are passed as opaque
# arrays: a Python number would become part of the recording. The same holds for data: everything that a frozen function
# reads is an argument. The key needs only the number of the step.


@dr.freeze
def step(field, opt, ema, data, free, t):
    field.update(opt)
    (u,) = cn.uniform(1, cn.Key(seed=0, step=t), Float, BATCH)
    i = UInt32(u * (COUNT * SIDE * SIDE))
    shot, du, dv = (dr.gather(type(v), v, i) for v in data[:3])
    colours = field(place(opt, shot, du, dv))
    wanted = dr.gather(ArrayXf, data[3], i, shape=(3, BATCH))
    loss = dr.mean(dr.squared_norm(colours - wanted))
    dr.backward(loss)
    for name in ("x", "y", "angle"):  # the first snapshot stays where it is
        dr.set_grad(opt[name], dr.grad(opt[name]) * free)
    norm = training.clip_gradient_norm(opt, 1.0)
    opt.step()
    ema.update(opt)
    return dr.detach(loss), norm


rate = training.cosine(1e-2, STEPS)
history = []
data = [number, us, vs, table]
factor = {"x": 0.2, "y": 0.2, "angle": 0.5}
free = Float([0.0] + [1.0] * (COUNT - 1))
for t in range(STEPS):
    field.encoding.max_level = 1 + 7 * min(1, 1.25 * t / STEPS)  # levels are added one by one
    opt.set_learning_rate(
        {name: dr.opaque(Float, rate(t) * factor.get(name, 1)) for name in opt}
    )
    loss, norm = step(field, opt, ema, data, free, dr.opaque(UInt32, t))
    if t % 20 == 0 or t == STEPS - 1:
        # copies: .numpy() shares memory, which later calls of a frozen function write to
        found = {name: np.array(opt[name]) for name in truth}
        shift = np.hypot(found["x"] - truth["x"], found["y"] - truth["y"])[1:].mean() / (
            2 * HALF / SIDE
        )
        turn = np.degrees(np.abs(found["angle"] - truth["angle"]))[1:].mean()
        history.append((t, loss[0], norm[0], shift, turn))
field.update(opt)
field.encoding.max_level = None
print(f"the step was recorded {step.n_recordings} times")
print(f"places off by {shift:.2f} pixels, angles by {turn:.2f} degrees")

# %%
# The result
# ----------
#
# The average of the weights over the last hundred steps or so is a little less noisy than the last weights.
# ``ema.applied`` lends it to the field.

y, x = np.meshgrid(*[(np.arange(256, dtype=np.float32) + 0.5) / 256] * 2, indexing="ij")
where = [Float(x.ravel()), Float(y.ravel())]
with ema.applied(field):
    learned = np.clip(field(where).numpy().T.reshape(256, 256, 3), 0, 1)
seen = np.zeros(x.shape, bool)
for i in range(COUNT):  # the field knows nothing outside the snapshots
    s, c = np.sin(found["angle"][i]), np.cos(found["angle"][i])
    dx, dy = x - found["x"][i], y - found["y"][i]
    seen |= np.maximum(abs(c * dx + s * dy), abs(c * dy - s * dx)) < HALF
learned[~seen] = 1
true = np.stack([c.numpy() for c in scene.eval(Array2f(where))], -1).reshape(256, 256, 3)


def outlines(axis, poses, colour):
    """The snapshots as frames."""
    for i in range(COUNT):
        s, c = np.sin(poses["angle"][i]), np.cos(poses["angle"][i])
        u, v = HALF * np.array([[-1, 1, 1, -1, -1], [-1, -1, 1, 1, -1]])
        x, y = poses["x"][i] + c * u - s * v, poses["y"][i] + s * u + c * v
        axis.plot(256 * x, 256 * y, color=colour, lw=1.2)


panels = [
    ("Scene, and where we believed to be", true, guess),
    ("Scene, and where we were", true, truth),
]
panels.append(("Field, and where it says we were", learned, found))
figure, axes = plt.subplots(1, 3, figsize=(11, 3.9), layout="constrained")
for axis, (title, shown, poses), colour in zip(
    axes, panels, ("tab:red", "white", "tab:red"), strict=True
):
    axis.imshow(shown)
    outlines(axis, poses, colour)
    axis.set(title=title, xlim=(0, 256), ylim=(256, 0))
    axis.axis("off")
plt.show()

# %%
# Errors over time. Levels are added until step 2400. Each of them draws more detail, from which the positions are found
# more exactly.

t, loss, norm, shift, turn = np.array(history).T
figure, axes = plt.subplots(1, 4, figsize=(11, 2.6), layout="constrained")
for axis, (title, values) in zip(axes, {
    "Mean squared error": loss, "Norm of the gradient": norm,
    "Off, in pixels": shift, "Off, in degrees": turn,
}.items(), strict=True):  # fmt: skip
    axis.semilogy(t, values, lw=1)
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# .. seealso::
#
#    :doc:`/weights` lists what you may do between ``dr.backward`` and ``opt.step``: clipping, decay, rates per layer,
#    averages, and optimizers that ``drjit.opt`` lacks. :doc:`/gradients` says why a training step on a GPU should be
#    frozen. On a GPU, whose networks are half precision, multiply the loss by a power of two before ``dr.backward``:
#    gradients of a mean over many samples are too small for it. ``cn.fit`` finds that power automatically.
