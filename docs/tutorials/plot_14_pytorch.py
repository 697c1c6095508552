"""
PyTorch around a field
======================

A field becomes a ``torch.nn.Module``; you sharpen a blurred photograph with PyTorch's convolution in the loss, and take
the field back to Dr.Jit.
"""

# %%
# Many parts of losses exist in PyTorch only: convolutions, perceptual losses, published models. A
# field can be a module there. Its forward and backward passes are still Dr.Jit's fused kernels, which read and write
# PyTorch's memory without copies, and its parameters are PyTorch's parameters, for PyTorch's optimizers.

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.cbook import get_sample_data

import coopnet as cn
from coopnet import image
from coopnet.interop.torch import Module

torch.manual_seed(0)
torch.set_num_threads(1)  # threads that wait for work would keep cores from Dr.Jit
SIDE, STEPS = 128, 400

# %%
# The photograph
# --------------
#
# A camera was out of focus: every pixel is the mean of a disc of seven pixels across, plus a little noise. The blur is
# a convolution with a known kernel.

photo = image.load(get_sample_data("grace_hopper.jpg", asfileobj=False))[60:316, 130:386]
photo = photo.reshape(SIDE, 2, SIDE, 2, 3).mean((1, 3)).astype(np.float32)

field = cn.NeuralField(
    cn.HashGrid(2, n_levels=8, base_resolution=8, per_level_scale=1.4, hashmap_size=2**13),
    cn.MLP(out_features=3, width=32, depth=2, bias=True, output_activation="sigmoid"),
).build(seed=1)
module = Module(field)
device = next(module.parameters()).device
print(module)
print({name: tuple(values.shape) for name, values in module.named_parameters()}, device)

r = torch.arange(-3, 4, dtype=torch.float32, device=device)
disc = ((r[:, None] ** 2 + r**2) <= 3.3**2).float()
disc = (disc / disc.sum()).expand(3, 1, 7, 7)


def blurred(picture):
    """A ``(3, height, width)`` picture out of focus; its margin of three pixels is lost."""
    return torch.nn.functional.conv2d(picture[None], disc, groups=3)[0]


truth = torch.from_numpy(photo.transpose(2, 0, 1).copy()).to(device)
known = blurred(truth)
known += 0.005 * torch.randn(known.shape, generator=torch.Generator().manual_seed(1)).to(device)

# %%
# The loop
# --------
#
# Any PyTorch loop. The field draws the sharp picture, PyTorch blurs it and compares. Blurring removes the finest
# detail, and undoing it amplifies noise. *Total variation*, the sum of differences of neighbours, keeps the noise
# down. Here its best weight can be measured, since the sharp picture is known. Elsewhere it is a matter of taste.

centres = (torch.arange(SIDE, device=device) + 0.5) / SIDE
y, x = torch.meshgrid(centres, centres, indexing="ij")
positions = torch.stack([x.ravel(), y.ravel()], 1)


def draw():
    return module(positions).T.reshape(3, SIDE, SIDE)


def variation(picture):
    return picture.diff(dim=1).abs().mean() + picture.diff(dim=2).abs().mean()


optimizer = torch.optim.Adam(module.parameters(), lr=1e-2, eps=1e-12)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
history = []
for step in range(STEPS):
    picture = draw()
    loss = (blurred(picture) - known).square().mean() + 2e-4 * variation(picture)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 10 == 0:
        history.append(
            (step, loss.item(), image.psnr(picture.detach().cpu().numpy(), truth.cpu().numpy()))
        )

with torch.no_grad():
    sharp = draw().cpu().numpy().transpose(1, 2, 0)
out_of_focus = known.cpu().numpy().transpose(1, 2, 0)
inner = np.s_[3:-3, 3:-3]
for name, shown in (("out of focus", out_of_focus), ("sharpened", sharp[inner])):
    print(f"{name}: {image.psnr(shown, photo[inner]):.2f} dB")

figure, axes = plt.subplots(1, 3, figsize=(11, 3.9), layout="constrained")
for axis, (title, shown) in zip(axes, {
    "what is known": out_of_focus,
    "field, trained through the blur": sharp[inner],
    "truth": photo[inner],
}.items(), strict=True):  # fmt: skip
    axis.imshow(np.clip(shown, 0, 1))
    axis.set_title(title)
    axis.axis("off")
plt.show()

# %%
# Back in Dr.Jit
# --------------
#
# ``module.field()`` is a field again, with what was learned: for ``cn.save``, for Mitsuba, for loops of your own. Both
# give the same values; and a state that PyTorch saved has the names of coopnet's checkpoints.

learned = module.field()
ns = cn.backend.namespace("auto")
values = np.array(learned([ns.Float(positions[:, i].cpu().numpy()) for i in range(2)]))
print(f"largest difference: {np.abs(values.T.reshape(SIDE, SIDE, 3) - sharp).max():.1e}")
print(list(module.state_dict()))

# %%
# Derivatives with respect to the input are those of any module. Their gradients, too: with ``create_graph=True`` a loss
# may depend on them, as eikonal losses do. Here, how quickly the brightness changes at every place, from the field
# itself.

positions.requires_grad_()
(slope,) = torch.autograd.grad(module(positions).mean(dim=1).sum(), positions)
edges = slope.norm(dim=1).reshape(SIDE, SIDE).cpu().numpy()

steps, losses, psnrs = zip(*history, strict=True)
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.1), layout="constrained")
left.semilogy(steps, losses)
left.set(title="loss", xlabel="step")
middle.plot(steps, psnrs)
middle.set(title="PSNR against the truth, dB", xlabel="step")
right.imshow(np.clip(edges / np.quantile(edges, 0.98), 0, 1), cmap="magma")
right.set_title("length of the field's gradient")
right.axis("off")
for axis in (left, middle):
    axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# .. seealso::
#
#    :doc:`/pytorch` says what becomes what, what using a field from PyTorch costs, and what is not supported.
