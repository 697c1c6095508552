"""
Precision and audits
====================

You run one field in half and in single precision, find out which layer loses how much, and watch one overflow.
"""

# %%
# On GPUs, cooperative vectors (short vectors that tensor cores multiply by matrices) have half precision: eleven
# significant bits, and numbers up to 65504. Around the network, everything is single precision: coordinates, encodings,
# outputs. What does that cost? A field can measure it. The CPU computes in half precision, too, so you need no GPU to
# find out.

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import ArrayXf, Float, UInt32
from matplotlib.cbook import get_sample_data

import coopnet as cn
from coopnet import image

SIDE, STEPS = 128, 600
photo = image.load(get_sample_data("grace_hopper.jpg", asfileobj=False))[60:316, 130:386]
photo = photo.reshape(SIDE, 2, SIDE, 2, 3).mean((1, 3)).astype(np.float32)
table = Float(photo.ravel())


def batch(key):
    u, v = cn.uniform(2, key, Float, 1 << 13)
    column, row = UInt32(u * SIDE), UInt32(v * SIDE)
    colours = dr.gather(ArrayXf, table, row * SIDE + column, shape=(3, 1 << 13))
    return [(Float(column) + 0.5) / SIDE, (Float(row) + 0.5) / SIDE], colours


y, x = np.meshgrid(*[(np.arange(SIDE, dtype=np.float32) + 0.5) / SIDE] * 2, indexing="ij")
where = [Float(x.ravel()), Float(y.ravel())]


def picture(field):
    return np.array(field(where)).T.reshape(SIDE, SIDE, 3)


# %%
# Training in either precision
# ----------------------------
#
# Nothing has to be changed for half precision. The optimizer keeps single-precision weights, losses are multiplied by a
# power of two before they are differentiated, and a step whose gradients overflow is left out: ``skipped`` counts them.
# A CPU gains no time by half precision; here it shows what a GPU would compute.

network = cn.MLP(out_features=3, width=64, depth=3, bias=True, output_activation="sigmoid")
model = cn.NeuralField(cn.Frequency(6, in_features=2), network)
precisions = ("single", "half") if "llvm" in cn.backend.available() else ("half",)
fields = {}
for precision in precisions:
    fields[precision] = model.build(precision=precision, seed=1)
    rate = cn.training.cosine(5e-3, STEPS)
    result = cn.fit(fields[precision], batch, STEPS, lr=rate, progress=False)
    psnr = image.psnr(picture(fields[precision]), photo)
    print(
        f"{precision:<7} {psnr:.2f} dB, {result.skipped} steps skipped, {result.seconds:.1f} s"
    )

# %%
# An audit
# --------
#
# ``field.audit(p)`` runs every layer in working precision and in double precision with the same weights. *own rms* is
# the error that a layer adds to its input; the other errors accumulate from layer to layer. Then it counts numbers that
# are not finite, those of them that are finite in double precision (overflows), and ReLU units that are zero for all
# samples.

audits = {name: field.audit(where) for name, field in fields.items()}
print(audits["half"])

# %%
# In half precision every matrix adds about the same error, whatever the field has learned, and activations add next to
# none. In single precision most of the error comes from the encoding, which multiplies coordinates by high frequencies.

figure, axis = plt.subplots(figsize=(9, 3.8), layout="constrained")
names = {row.name: row.layer.split("(")[0] for row in audits["half"].layers}
place = {name: i for i, name in enumerate(names)}  # in single precision there is no cast
for name, audit in audits.items():
    i = [place[row.name] for row in audit.layers]
    (line,) = axis.semilogy(
        i, [row.rms_error for row in audit.layers], "o-", label=f"{name}, accumulated"
    )
    own = [row.own_error or np.nan for row in audit.layers]
    axis.semilogy(i, own, "x", color=line.get_color(), label=f"{name}, of the layer alone")
axis.set_xticks(range(len(names)), names.values(), rotation=30)
axis.set(title="Relative error after each layer", ylabel="root mean square")
axis.grid(alpha=0.25)
axis.legend(frameon=False, fontsize=8)
axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The picture shows no difference. Magnified, the errors look like those of rounding: without structure, except at the
# edges of the picture's content.

reference = fields[precisions[0]]
cast = cn.to(reference, "auto", precision="half")
difference = picture(cast) - picture(reference)
print(
    "the same weights in half precision: colours differ by",
    f"{np.abs(difference).max():.4f} at most (1/255 = 0.0039)",
)

figure, axes = plt.subplots(1, 3, figsize=(10, 3.7), layout="constrained")
for axis, (title, shown) in zip(axes, {
    precisions[0] + " precision": picture(reference), "rounded to half": picture(cast),
    "difference x 100, on grey": 0.5 + 100 * difference,
}.items(), strict=True):  # fmt: skip
    axis.imshow(np.clip(shown, 0, 1))
    axis.set_title(title)
    axis.axis("off")
plt.show()

# %%
# When it does matter
# -------------------
#
# The range of half precision is a problem sooner than its digits. A field whose activations pass 65504 returns
# infinities in half precision. Here the first matrix is multiplied by 20000, as a bad learning rate might do. The audit
# names the layer in which it happens; the picture would only have said that something is wrong.

cast.network.set_matrix("layers.0.weights", 20000 * cast.network.matrix("layers.0.weights"))
audit = cast.audit(where)
print(audit)
first = next(row for row in audit.layers if row.overflows)
print(f"\nfirst overflow: {first.name}, {first.layer}, {first.overflows} numbers")

# %%
# What to do: smaller rates or ``clip_norm`` while training; ``weight_decay``; targets and outputs near 1. A signed
# distance in millimetres, or a radiance of 10^5, should be scaled before a network sees it, on every backend.
#
# .. seealso::
#
#    :doc:`/precision` lists what is computed in which precision, and measures errors of values and derivatives;
#    :doc:`/reliability` says what becomes of NaN and infinities.
