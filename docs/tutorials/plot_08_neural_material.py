"""
A neural material
=================

You bake a textured material of several layers into a latent texture and a small network, and render both in Mitsuba.
"""

# %%
# A material in production is a graph of layers and textures, expensive to evaluate and different for every asset. A
# neural material replaces the graph: a few numbers for each texel, the *latent code*, and one small network which
# decodes codes and directions into reflection (Kuznetsov et al. 2021; Zeltner et al. 2024). The cost does not depend on
# the graph.

import gc
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import mitsuba as mi
import numpy as np

import coopnet as cn

mi.set_variant(f"{cn.backend.require('auto')}_ad_rgb")
cn.mitsuba.register()  # neural_bsdf, neural_texture, neural_path

# %%
# The material
# ------------
#
# Mitsuba's ``principled`` with four textures: paint in stripes below a clear coat, scratched, and rusted in places.
# Roughness, metalness and coat change from texel to texel, and the three are not independent: where there is rust, all
# change.

N = 128


def noise(slope, seed):
    """Periodic noise, its spectrum falling with ``slope``, as ranks from 0 to 1."""
    rng = np.random.default_rng(seed)
    f = np.hypot(*np.meshgrid(np.fft.fftfreq(N) * N, np.fft.fftfreq(N) * N))
    spectrum = np.fft.fft2(rng.normal(size=(N, N))) / np.maximum(f, 1) ** slope
    return np.argsort(np.argsort(np.fft.ifft2(spectrum).real, axis=None)).reshape(N, N) / (
        N * N - 1
    )


def ramp(x, edge, width):
    return np.clip((x - edge) / width + 0.5, 0, 1)[..., None]


rust = ramp(noise(1.8, 1) + 0.08 * noise(0.8, 2), 0.74, 0.05)
scratch = 1 - ramp(np.abs(noise(1.4, 4) - 0.5), 0.01, 0.008)
stripe = np.repeat(
    ramp(np.abs((np.arange(N) * 3 / N) % 1 - 0.5), 0.28, 0.05)[:, None], N, axis=1
)
paint = stripe * [0.02, 0.1, 0.3] + (1 - stripe) * [0.62, 0.56, 0.46]
paint = (1 - scratch) * paint + scratch * 0.35
brown = np.array([0.3, 0.1, 0.03]) * (0.4 + 1.2 * noise(1.2, 3)[..., None])
maps = {
    "base_color": (1 - rust) * paint + rust * brown,
    "roughness": (1 - rust) * (0.28 + 0.25 * scratch) + rust * 0.75,
    "metallic": (1 - rust) * (0.8 * stripe + 0.2 * scratch),
    "clearcoat": (1 - rust) * (1 - scratch),
}
layered = {"type": "principled", "clearcoat_gloss": 0.9}
for name, values in maps.items():
    layered[name] = {
        "type": "bitmap",
        "bitmap": mi.Bitmap(values.astype(np.float32)),
        "raw": True,
    }

figure, axes = plt.subplots(1, 4, figsize=(11, 2.9), layout="constrained")
for axis, (name, values) in zip(axes, maps.items(), strict=True):
    axis.imshow(
        np.clip(values, 0, 1) ** (1 / 2.2) if values.shape[2] == 3 else values[..., 0],
        cmap="gray",
        vmax=1,
    )
    axis.set_title(name.replace("_", " "), fontsize=10)
    axis.axis("off")
plt.show()

# %%
# Baking
# ------
#
# ``fit_bsdf`` evaluates any BSDF of Mitsuba that reflects, at random texels and directions, and trains code and
# decoder together in one frozen step. The code is an encoding of texture coordinates: here a dense grid with a vertex
# for each texel and eight numbers in each. Lobes to sample from are fitted afterwards: a second, smaller network says,
# for a code and a direction, how rough they are and how many samples each gets. The lobes only influence the noise of
# pictures, not their mean.

code = cn.Grid(
    2, "dense", n_levels=1, n_features_per_level=8, base_resolution=N + 1, init_scale=0.05
)
found = cn.mitsuba.fit_bsdf(
    None,
    mi.load_dict(layered),
    latent=code,
    steps=1500,
    samples=1 << 14,
    seed=1,
)
print(found)
print(f"{found.result.seconds:.1f} s for the code and the decoder")

# %%
# A material is saved as a file, and scenes name the file. It can be written in XML, too.

folder = Path(tempfile.mkdtemp())
found.bsdf.save(folder / "paint.safetensors")
neural = {"type": "neural_bsdf", "filename": str(folder / "paint.safetensors")}
print(f"{(folder / 'paint.safetensors').stat().st_size / 2**20:.2f} MiB")

# %%
# Both in one scene
# -----------------
#
# The integrator ``neural_path`` makes the pictures that ``path`` would make, but evaluates networks outside virtual
# calls, where they are faster and can be trained on any backend.


#: centre, radius and radiance
LAMPS = (([-2.5, -2.5, 4], 0.5, [18, 17, 15]), ([3, 0, 2.5], 0.3, [9, 12, 18]))


def scene(material, width=320):
    at = mi.ScalarTransform4f
    same = {"type": "ref", "id": "material"}
    lamps = {
        f"lamp{i}": {
            "type": "sphere", "center": place, "radius": radius,
            "emitter": {"type": "area", "radiance": {"type": "rgb", "value": light}},
        }
        for i, (place, radius, light) in enumerate(LAMPS)
    }  # fmt: skip
    return mi.load_dict({
        "type": "scene",
        "sensor": {
            "type": "perspective", "fov": 42,
            "to_world": at().look_at(origin=[0, -4.2, 2.0], target=[0, 0, 0.75], up=[0, 0, 1]),
            "film": {
                "type": "hdrfilm", "width": width, "height": width * 3 // 4,
                "pixel_format": "rgb",
            },
        },
        "sky": {"type": "constant", "radiance": {"type": "rgb", "value": [0.25, 0.28, 0.33]}},
        "material": material,
        **lamps,
        "ball": {
            "type": "sphere", "radius": 1, "to_world": at().translate([0, 0, 1]), "bsdf": same,
        },
        "floor": {"type": "rectangle", "to_world": at().scale(4), "bsdf": same},
    })  # fmt: skip


integrator = mi.load_dict({"type": "neural_path", "max_depth": 4})
pictures = {}
for name, material in {"principled, four textures": layered, "neural": neural}.items():
    pictures[name] = mi.render(scene(material), integrator=integrator, spp=128, seed=1).numpy()
    gc.collect()  # Dr.Jit traces the materials of all scenes that are alive

truth, learned = pictures.values()
error = np.abs(learned - truth).mean(axis=2) / (truth.mean(axis=2) + 0.1)
print(f"relative error of the picture, median {np.median(error):.3f}")

figure, axes = plt.subplots(1, 3, figsize=(11, 3.1), layout="constrained")
for axis, (name, picture) in zip(axes, pictures.items(), strict=False):
    axis.imshow(np.clip(picture, 0, 1) ** (1 / 2.2))
    axis.set_title(name, fontsize=10)
drawn = axes[2].imshow(error, cmap="magma", vmin=0, vmax=0.5)
axes[2].set_title("relative error", fontsize=10)
figure.colorbar(drawn, ax=axes[2], shrink=0.8)
for axis in axes:
    axis.axis("off")
plt.show()

# %%
# Most of the error map is the noise of the two pictures, which differs between them. The rest is mostly in
# the highlights of the clear coat. More steps and a wider decoder make it smaller: ``examples/neural_material.py``
# trains longer, and compares both at equal time.

# %%
# Where samples go
# ----------------
#
# The network of lobes sends samples where the material reflects light. Two numbers can take its place, the weight and
# the roughness of one lobe for all texels and directions. The picture is the same, but noisier.

few = {"type": "neural_path", "max_depth": 4}
one = neural | {"specular": 0.5, "alpha": 0.3}
noisy, squares = {}, {}
for name, material in {"one lobe": one, "network of lobes": neural}.items():
    picture = mi.render(scene(material), integrator=mi.load_dict(few), spp=8, seed=2).numpy()
    noisy[name], squares[name] = (
        picture,
        np.mean(np.square(picture - learned) / (np.square(learned) + 1e-2)),
    )
    gc.collect()
ratio = squares["one lobe"] / squares["network of lobes"]
print(f"squared error at 8 samples per pixel: {ratio:.1f} times as large with one lobe")

figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for axis, (name, picture) in zip(axes, noisy.items(), strict=True):
    axis.imshow(np.clip(picture, 0, 1) ** (1 / 2.2))
    axis.set_title(f"{name}, 8 samples per pixel", fontsize=10)
    axis.axis("off")
plt.show()

# %%
# The error falls with the number of samples. So with one lobe you need that many times more samples for the same noise.
#
# .. seealso::
#
#    :doc:`/export_gallery` has the material on a web page, under a light that you move;
#    :doc:`/mitsuba` says which materials can be learned, what calls cost, and how to train through pictures;
#    :doc:`/rendering` has the times of neural materials on CPU and GPU.
