"""
Texture compression
===================

You write an encoding of your own whose features are 4-bit codes, and store the seven maps of a material in one small
file.
"""

# %%
# The maps of a material show the same features: where there is rust, colour, height and roughness change together. One
# grid of *codes* for all maps, and a network that decodes a texel, therefore takes fewer bits than one picture for each
# (Vaidyanathan et al. 2023). A renderer can read any single texel: two or three gathers and a few small matrix
# products, in the kernel that needs the texel.

import io

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import ArrayXf, Float, UInt32
from PIL import Image

import coopnet as cn

N, STEPS, BATCH, BITS = 256, 1000, 1 << 13, 4


# %%
# The maps
# --------
#
# Painted metal with rust and scratches: colour, two components of the normal, roughness, and metalness.


def noise(slope, seed):
    """Periodic noise of deviation 1 with a power spectrum that falls with ``slope``."""
    rng = np.random.default_rng(seed)
    f = np.hypot(*np.meshgrid(np.fft.fftfreq(N) * N, np.fft.fftfreq(N) * N))
    spectrum = np.fft.fft2(rng.normal(size=(N, N))) / np.maximum(f, 1) ** slope
    values = np.fft.ifft2(spectrum).real
    return (values - values.mean()) / values.std()


def ramp(x, low, high):
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


large, middle, fine = noise(2.0, 1), noise(1.4, 2), noise(0.9, 3)
y, x = np.mgrid[:N, :N] / N
groove = 1 - ramp(
    np.minimum(np.abs((4 * y) % 1 - 0.5), np.abs((3 * x + 0.5 * np.floor(4 * y)) % 1 - 0.5)),
    0.02,
    0.06,
)
rust = ramp(large + 0.5 * middle + 1.1 * groove, 0.8, 1.2)
tint = np.random.default_rng(5).uniform(0.75, 1.1, (4, 5))[
    (4 * y + 0.5).astype(int) % 4, (3 * x + 1).astype(int)
]
colour = (tint * (1 + 0.06 * middle))[..., None] * [0.2, 0.42, 0.46]
colour = (1 - rust)[..., None] * colour + (rust * (0.75 + 0.2 * fine))[..., None] * [
    0.42,
    0.2,
    0.09,
]
colour *= (1 - 0.6 * groove)[..., None]
height = 0.05 * large - 0.5 * groove + rust * (0.08 * fine - 0.1) + 0.01 * fine
normal = [(np.roll(height, -1, a) - np.roll(height, 1, a)) * 0.8 + 0.5 for a in (1, 0)]
roughness = (1 - rust) * (0.3 + 0.05 * middle) + rust * (0.85 + 0.05 * fine)
metal = 0.9 * (1 - rust) * (1 - groove)
maps = np.clip(
    np.dstack([np.clip(colour, 0, 1) ** (1 / 2.2), *normal, roughness, metal]), 0, 1
).astype(np.float32)
print(
    f"{maps.shape[2]} channels of {N} x {N} texels:",
    f"{8 * maps.shape[2]} bits per texel as 8-bit pictures",
)

# %%
# An encoding of codes
# --------------------
#
# A new encoding is a class that defines three things: its trained attributes (``DRJIT_STRUCT``), the number of features
# (``width``), and the arithmetic (``_features``), on lists of single-precision arrays. Parts that have parameters are
# allocated in ``_alloc``.
#
# The codes live in tables, a fine and a coarse one. They are *rounded while they are trained*, so that the network
# learns to decode what will be stored. Rounding has no gradient; ``dr.replace_grad`` takes that of the code before
# rounding (Bengio et al. 2013).

TOP = 2**BITS - 1


class Codes(cn.Encoding):
    """Codes of two grids at a texel ``(x, y)`` in [0, 1], and its position in its cell."""

    DRJIT_STRUCT = {
        "fine": cn.Embedding,
        "coarse": cn.Embedding,
        "sides": tuple,
        "codes": tuple,
    }
    in_features = 2

    def __init__(self, sides=(1, 1), codes=(1, 1)):
        self.sides, self.codes = sides, codes
        self.fine, self.coarse = (
            cn.Embedding(
                side * side,
                n,
                init_scale=0.5,
                precision="single",
                check=False,
                deterministic=False,
            )
            for side, n in zip(sides, codes, strict=True)
        )

    def width(self, size):
        return 4 * self.codes[0] + self.codes[1] + 4

    def _alloc(self, dtype, size, rng, /):
        layer, width = super()._alloc(dtype, size, rng)
        layer.fine, layer.coarse = (
            table._alloc(dtype, 1, rng)[0] for table in (self.fine, self.coarse)
        )
        return layer, width

    def _features(self, coordinates):
        x, y = coordinates
        fine = [self.read(self.fine, vertex) for vertex, _ in self.corners(x, y, self.sides[0])]
        coarse = [
            [w * c for c in self.read(self.coarse, v)]
            for v, w in self.corners(x, y, self.sides[1])
        ]
        where = [
            dr.sin(2 * dr.pi * self.sides[0] * v + s) for v in (x, y) for s in (0, 0.5 * dr.pi)
        ]
        return (
            [c for codes in fine for c in codes]
            + [sum(c) for c in zip(*coarse, strict=True)]
            + where
        )

    def read(self, table, vertex):
        return [dr.replace_grad(rounded(v), v) for v in table([vertex])]

    def corners(self, x, y, side):
        """Numbers and weights of the four vertices around a point of a grid that repeats."""
        i, j = (dr.floor(v * side - 0.5) for v in (x, y))
        a, b = x * side - 0.5 - i, y * side - 0.5 - j
        i, j = (dr.uint32_array_t(x)(v + side) for v in (i, j))
        columns, rows = (
            ((i % side, 1 - a), ((i + 1) % side, a)),
            ((j % side, 1 - b), ((j + 1) % side, b)),
        )
        return [(row * side + column, v * u) for row, v in rows for column, u in columns]


def rounded(value):
    """The nearest of the 16 numbers in [-1, 1] that four bits can name, without a gradient."""
    return dr.round(dr.clip((dr.detach(value) + 1) * (TOP / 2), 0, TOP)) * (2 / TOP) - 1


# %%
# Training
# --------
#
# Codes learn faster than the network: ``multipliers`` give layers learning rates of their own.

table = Float(maps.ravel())


def batch(key):
    u, v = cn.uniform(2, key, Float, BATCH)
    column, row = UInt32(u * N), UInt32(v * N)
    wanted = dr.gather(ArrayXf, table, row * N + column, shape=(maps.shape[2], BATCH))
    return [(Float(column) + 0.5) / N, (Float(row) + 0.5) / N], wanted


def learn(sides, codes):
    network = cn.MLP(
        out_features=maps.shape[2], width=32, depth=2, activation="silu", bias=True
    )
    field = cn.NeuralField(Codes(sides, codes), network).build(seed=1)
    rate = cn.training.cosine(2e-2, STEPS, warmup=20)
    cn.fit(field, batch, STEPS, lr=rate, multipliers={"encoding": 5.0}, progress=False)
    return field


def psnr(a):
    return -10 * np.log10(np.mean((a - maps) ** 2))


# %%
# The file
# --------
#
# Codes are written as four bits each, two to a byte, and weights in half precision. The error is measured on what
# was read back: codes come from bytes, weights from half precision, and maps are rounded to 8 bits.


def store(field):
    """The bytes of the file."""
    parts = []
    for grid in (field.encoding.fine, field.encoding.coarse):
        codes = (rounded(grid.table.value.data).numpy() + 1) * (TOP / 2)
        codes = np.round(codes).astype(np.uint8).reshape(-1, 2)
        parts.append((codes[:, 0] | codes[:, 1] << 4).tobytes())
    names = [f"layers.{i}.{part}" for i in (0, 2, 4) for part in ("weights", "bias")]
    parts += [field.network.matrix(name).astype(np.float16).tobytes() for name in names]
    return b"".join(parts)


def decode(field):
    texel = dr.arange(UInt32, N * N)
    values = field([(Float(texel % N) + 0.5) / N, (Float(texel // N) + 0.5) / N]).numpy()
    return np.round(np.clip(values.T.reshape(maps.shape), 0, 1) * 255) / 255


points, decoded = [], {}
for name, sides, codes in (
    ("small", (64, 16), (4, 8)),
    ("medium", (128, 32), (2, 8)),
    ("large", (128, 32), (4, 8)),
):
    field = learn(sides, codes)
    bits = 8 * len(store(field)) / N**2
    decoded[name] = decode(field)
    points.append((bits, psnr(decoded[name])))
    print(f"{name:<7}{bits:5.2f} bits per texel, {points[-1][1]:.2f} dB")

# %%
# For comparison: JPEG, with a picture for the colour and grey ones for the other maps.


def jpeg(quality):
    total, parts = 0, []
    for part in (maps[..., :3], *(maps[..., c] for c in range(3, maps.shape[2]))):
        file = io.BytesIO()
        Image.fromarray(np.round(part * 255).astype(np.uint8)).save(
            file, "jpeg", quality=quality, optimize=True
        )
        total += len(file.getvalue())
        parts.append(np.asarray(Image.open(file), np.float32) / 255)
    return 8 * total / N**2, psnr(np.dstack(parts))


curve = [jpeg(quality) for quality in (5, 10, 20, 30, 45, 60, 75, 85)]

rows = {"original": maps}
for name, k in (("small", 0), ("large", 2)):
    rows[f"{name}, {points[k][0]:.1f} bits per texel"] = decoded[name]
figure, axes = plt.subplots(3, 4, figsize=(10, 7.6), layout="constrained")
part = np.s_[60:188, 60:188]
for row, (name, values) in zip(axes, rows.items(), strict=True):
    blue = np.sqrt(
        np.clip(1 - ((values[..., 3:5] - 0.5) * 2) ** 2, 0, 1).mean(axis=2, keepdims=True)
    )
    shown = [
        values[..., :3],
        np.dstack([values[..., 3:5], blue]),
        values[..., 5],
        values[..., 6],
    ]
    for axis, picture in zip(row, shown, strict=True):
        axis.imshow(picture[part], cmap="gray", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
    row[0].set_ylabel(name)
for axis, title in zip(axes[0], ("colour", "normal", "roughness", "metalness"), strict=True):
    axis.set_title(title)
plt.show()

# %%

figure, axis = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
axis.plot(*zip(*points, strict=True), "o-", label="codes and a network")
axis.plot(*zip(*curve, strict=True), "s-", ms=4, label="JPEG")
axis.set(
    xlabel="bits per texel, all maps",
    ylabel="PSNR of all maps, dB",
    title=f"{N} x {N} texels, 7 channels",
)
axis.legend(frameon=False)
axis.grid(alpha=0.25)
axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# At the same bits JPEG is about as good here, or a little better. But its bits are packed by entropy coding: a texel
# cannot be read without those before it. These files can be read at any texel, which is what renderers need, and why
# GPUs have block formats for such maps, of 4 or 8 bits per texel for each of them.
#
# .. seealso::
#
#    :doc:`/textures` compares with JPEG and block formats over a larger material, and says how settings were found.
#    ``examples/texture_codec.py`` decodes the packed bits inside the kernel.
