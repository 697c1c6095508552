"""Learn a texture on the GPU from a program on the CPU, render it there with Mitsuba, and go on learning.

The pixels, the field and Mitsuba live on LLVM; only ``learn`` runs elsewhere, with dropout. What comes back is a field
of the CPU. Then it is moved to the GPU once more: both give the same picture, and the same dropout masks to the bit.

    python examples/two_backends.py [--learn cuda|llvm] [--steps 500] [--out two_backends.png]
"""

from __future__ import annotations

import argparse
import time

import drjit as dr
import mitsuba as mi
import numpy as np

import coopnet as cn

SIZE, SPP, SAMPLES = 128, 16, 1 << 16


def pattern(n=256):
    """A texture: tiles with veins, ``(n, n, 3)``."""
    y, x = (np.mgrid[:n, :n] + 0.5) / n
    tiles = (np.floor(6 * x) + np.floor(6 * y)) % 2
    veins = 0.5 + 0.5 * np.sin(20 * x + 8 * np.sin(12 * y))
    return np.stack([0.2 + 0.6 * tiles, 0.3 + 0.4 * veins, 0.7 - 0.5 * tiles * veins], -1).astype(np.float32)


def learn(field, texture, steps):
    """Runs wherever its arguments are."""
    ns = cn.backend.namespace("auto")

    def batch(key):
        p = cn.uniform(2, key, ns.Float, SAMPLES)
        return p, list(texture.eval(ns.Array2f(p)))

    result = cn.fit(field, batch, steps, lr=cn.training.cosine(5e-3, steps), progress=False)
    return field, result.losses[-1]


def scene(field):
    """A sphere on a plane, both with the field as their color."""
    mi.set_variant("llvm_ad_rgb")
    from coopnet.mitsuba import NeuralTexture, register

    register()
    t = mi.ScalarTransform4f
    surface = {"type": "diffuse", "reflectance": NeuralTexture(field)}
    return mi.load_dict({
        "type": "scene",
        "integrator": {"type": "path", "max_depth": 4},
        "sensor": {
            "type": "perspective", "fov": 40, "to_world": t().look_at([0, -4, 2.2], [0, 0, 0.5], [0, 0, 1]),
            "film": {"type": "hdrfilm", "width": SIZE, "height": SIZE}, "sampler": {"type": "independent"},
        },
        "light": {"type": "constant", "radiance": 0.9},
        "sphere": {"type": "sphere", "center": [0, 0, 0.8], "radius": 0.8, "bsdf": surface},
        "floor": {"type": "rectangle", "to_world": t().scale(2), "bsdf": surface},
    })  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learn", default="auto", help="backend to learn on")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--out", default="two_backends.png")
    args = parser.parse_args()
    there = cn.backend.require(args.learn)
    ns = cn.backend.namespace("llvm")
    texels = pattern()
    texture = ns.Texture2f(ns.TensorXf(texels), wrap_mode=dr.WrapMode.Mirror)
    network = cn.MLP(out_features=3, width=32, depth=2, dropout=0.05, output_activation="sigmoid")
    field = cn.NeuralField(cn.HashGrid(2, n_levels=8, hashmap_size=2**14), network).build("llvm", seed=1)

    start = time.perf_counter()
    field, loss = cn.with_backend(there, learn, field, texture, args.steps)
    print(f"{args.steps} steps on {there}: {time.perf_counter() - start:.1f} s, loss {loss:.5f}, now on LLVM")

    image = mi.render(scene(field), spp=SPP)
    mi.util.write_bitmap(args.out, image)
    print(f"rendered by {mi.variant()}: mean {np.mean(image.numpy()):.3f}, {args.out}")

    u, v = np.meshgrid(*[(np.arange(256) + 0.5) / 256] * 2)
    p = [v.ravel().astype(np.float32), u.ravel().astype(np.float32)]
    key = cn.Key(seed=5, step=1)

    def look(field, p):
        return field(p), field(p, key)

    (plain, masked), (other, other_masked) = (
        cn.with_backend(backend, look, cn.to(field, backend), p) for backend in ("llvm", there)
    )
    seen = np.stack(plain, -1).reshape(256, 256, 3)
    print(f"learned texture: RMSE {np.sqrt(np.mean((seen - texels.swapaxes(0, 1)) ** 2)):.4f}")
    for name, a, b in (("values", plain, other), ("values with dropout", masked, other_masked)):
        print(f"{name} on LLVM and {there}: largest difference {np.abs(np.subtract(a, b)).max():.1e}")
    samples = cn.Key(seed=5, step=1, index=np.arange(100_000, dtype=np.uint32))
    one, two = (cn.with_backend(backend, cn.dropout_mask, 64, 0.05, samples) for backend in ("llvm", there))
    print(f"masks on LLVM and {there}: {'equal to the bit' if np.array_equal(one, two) else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
