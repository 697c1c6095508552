"""Material maps for ``texture_compression.py``: made here, or read from files.

The material is a wall of painted metal plates: grooves with dirt, rust that starts at edges and scratches, bare metal
where the paint is gone. As in a scanned material, the maps tell of the same things: where there is rust, colour,
height, roughness and metalness change together. All of it repeats without a seam.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from coopnet.image import load

#: Where in the nine channels of :func:`material` the maps are: colour in sRGB; two of the normal's components and
#: height; roughness, metalness and ambient occlusion.
MAPS = {"albedo": slice(0, 3), "surface": slice(3, 6), "physical": slice(6, 9)}


def clouds(size: int, steepness: float, rng: np.random.Generator, coarsest: int = 1) -> np.ndarray:
    """Periodic Gaussian noise of deviation 1 with amplitudes ``frequency**-steepness``, none below ``coarsest``."""
    frequency = np.hypot(*np.meshgrid(*[np.fft.fftfreq(size, 1 / size)] * 2))
    amplitude = np.where(frequency < coarsest, 0, np.maximum(frequency, 1) ** -steepness)
    noise = np.fft.ifft2(np.fft.fft2(rng.normal(size=(size, size))) * amplitude).real
    return noise / noise.std()


def step(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """0 below ``low``, 1 above ``high``, smooth between."""
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def blur(x: np.ndarray, sigma: float) -> np.ndarray:
    """Periodic Gaussian blur; ``sigma`` in texels."""
    frequency = np.hypot(*np.meshgrid(*[np.fft.fftfreq(len(x))] * 2))
    return np.fft.ifft2(np.fft.fft2(x) * np.exp(-2 * (np.pi * sigma * frequency) ** 2)).real


def scratches(size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Thin lines of all directions, 1 on them, antialiased."""
    image = Image.new("L", (2 * size, 2 * size))
    draw = ImageDraw.Draw(image)
    for _ in range(count):
        start, angle = rng.uniform(0, 2 * size, 2), rng.normal(0.6, 0.5)
        way = rng.gamma(2, 0.05) * 2 * size * np.array([np.cos(angle), np.sin(angle)])
        for shift in np.ndindex(3, 3):  # lines that leave come back on the other side
            a = start + 2 * size * (np.array(shift) - 1)
            draw.line([*a, *(a + way)], fill=int(rng.uniform(90, 255)), width=int(rng.integers(1, 4)))
    return np.asarray(image.resize((size, size), Image.Resampling.BOX), np.float64) / 255


def plates(size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Distance of a texel to the edge of its plate, in plates' heights, and the plate's number."""
    rows, columns = 4, 3
    y, x = np.meshgrid(*[(np.arange(size) + 0.5) / size] * 2, indexing="ij")
    row = np.floor(y * rows)
    x = (x * columns + row / 2) % columns
    u, v = x % 1, y * rows % 1
    aspect = rows / columns
    return np.minimum(np.minimum(u, 1 - u) * aspect, np.minimum(v, 1 - v)), (row * columns + np.floor(x)).astype(int)


def material(size: int, seed: int = 0) -> np.ndarray:
    """Maps ``(size, size, 9)`` with values in [0, 1], rounded to 8 bits; channels as in :data:`MAPS`.

    Painted twice as large and averaged, as a camera would: edges are sharp, but not jagged.
    """
    large = painted(2 * size, np.random.default_rng(seed))
    return np.round(large.reshape(size, 2, size, 2, -1).mean(axis=(1, 3)) * 255).astype(np.float32) / 255


def painted(size: int, rng: np.random.Generator) -> np.ndarray:
    """The maps in full precision, not averaged."""
    edge, number = plates(size, rng)
    large, middle, fine = clouds(size, 1.6, rng, 2), clouds(size, 1.35, rng, 6), clouds(size, 1.0, rng, 48)
    scratch = scratches(size, 140, rng)
    groove = 1 - step(edge + 0.004 * middle, 0.025, 0.045)
    rust = step(large + 0.6 * middle + 1.6 * np.exp(-edge / 0.06) + 1.2 * blur(scratch, size / 400), 1.7, 2.1)
    bare = np.maximum(step(scratch, 0.25, 0.6), step(middle + 0.4 * large, 2.0, 2.15)) * (1 - rust) * (1 - groove)
    paint = 1 - np.maximum(rust, bare)

    tint = rng.uniform(0.85, 1.05, (number.max() + 1, 1)) * np.array([0.16, 0.33, 0.36])
    tint[rng.integers(0, len(tint), 2)] = 0.62, 0.42, 0.12
    ochre = step(middle + 0.5 * fine, -1.5, 2.0)[..., None]
    albedo = paint[..., None] * tint[number] * (1 + 0.06 * large + 0.03 * fine)[..., None]
    albedo += rust[..., None] * ((1 - ochre) * [0.20, 0.075, 0.04] + ochre * [0.50, 0.22, 0.08])
    albedo += bare[..., None] * np.array([0.58, 0.57, 0.55]) * (1 + 0.05 * fine)[..., None]
    albedo *= (1 - 0.75 * groove)[..., None]

    height = 0.55 - 0.40 * groove + 0.02 * large - 0.05 * bare - 0.04 * rust + rust * (0.035 * middle + 0.02 * fine)
    height += 0.004 * fine * paint
    slope = [(np.roll(height, -1, axis) - np.roll(height, 1, axis)) * size / 90 for axis in (1, 0)]
    normal = np.stack([-slope[0], slope[1]]) / np.sqrt(1 + slope[0] ** 2 + slope[1] ** 2)
    roughness = paint * (0.38 + 0.05 * middle) + rust * (0.86 + 0.05 * fine) + bare * (0.24 + 0.04 * fine)
    occlusion = 1 - np.clip(6 * (blur(height, size / 100) - height), 0, 0.8) - 0.1 * groove
    surface = [*(0.5 + 0.5 * normal), height, roughness, bare, occlusion]
    return np.clip(np.dstack([np.clip(albedo, 0, 1) ** (1 / 2.2), *surface]), 0, 1)


def read(paths: list[Path]) -> tuple[np.ndarray, dict[str, slice]]:
    """All channels of image files of one size, ``(height, width, channels)``, and where among them each file's are."""
    pictures, parts, n = [load(path) for path in paths], {}, 0
    if len({p.shape[:2] for p in pictures}) > 1:
        sizes = ", ".join(f"{path} {p.shape[1]} x {p.shape[0]}" for path, p in zip(paths, pictures, strict=True))
        raise ValueError(f"the maps must be of one size, but are {sizes}")
    for path, picture in zip(paths, pictures, strict=True):
        parts[str(path) if path.stem in parts else path.stem] = slice(n, n := n + picture.shape[2])
    return np.dstack(pictures), parts
