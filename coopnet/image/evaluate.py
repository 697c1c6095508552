"""Drawing fields: coordinates of pixels, and evaluation in pieces of bounded memory.

A picture of ``width`` by ``height`` pixels covers a box of the unit square: its longer side is 1/2 and its centre
(1/2, 1/2), so that aspect ratio is kept. x points right and y down; a pixel is asked for at its centre. The margin
of a quarter keeps periodic encodings, such as sines of period 1, from taking opposite edges for the same place.
"""

from __future__ import annotations

from typing import Any

import drjit as dr
import numpy as np

from ..backend import namespace
from ..field import NeuralField
from ..key import Key

CHUNK = 1 << 18  #: pixels evaluated at once


def box(width: int, height: int) -> tuple[float, float, float, float]:
    """Left, top, width and height of the part of the unit square that a picture covers."""
    w, h = 0.5 * width / max(width, height), 0.5 * height / max(width, height)
    return 0.5 - w / 2, 0.5 - h / 2, w, h


def pixels(index: Any, width: int, height: int, region: tuple[float, float, float, float] | None = None) -> list:
    """Coordinates of the centres of the pixels with numbers ``index`` (a Dr.Jit ``UInt32``), counted row by row.

    ``region`` is the box that the picture covers, that of :func:`box` if ``None``; another one stretches it.
    """
    left, top, w, h = region or box(width, height)
    f32 = dr.float32_array_t(index)
    # opaque, so that a picture of another size runs the same kernel
    columns = dr.opaque(dr.uint32_array_t(index), width)
    scale_x, scale_y = dr.opaque(f32, w / width), dr.opaque(f32, h / height)
    row = index // columns
    return [left + (f32(index - row * columns) + 0.5) * scale_x, top + (f32(row) + 0.5) * scale_y]


def evaluate(field: NeuralField, index: np.ndarray, width: int, height: int) -> np.ndarray:
    """Values of ``field`` at the pixels with numbers ``index``, shape ``(pixels, channels)``."""
    uint32 = _uint32(field)
    parts = []
    for start in range(0, len(index), CHUNK):
        y = field(pixels(uint32(index[start : start + CHUNK].astype(np.uint32)), width, height))
        parts.append(np.stack([v.numpy() for v in _evaluated(y)], axis=-1))
    return np.concatenate(parts)


def render(
    field: NeuralField, width: int, height: int, region: tuple[float, float, float, float] | None = None
) -> np.ndarray:
    """The deterministic field as a picture, shape ``(height, width, channels)``."""
    return _draw(field, width, height, lambda index: [field(pixels(index, width, height, region))])[0]


def render_mc(
    field: NeuralField,
    width: int,
    height: int,
    samples: int,
    seed: int = 0,
    region: tuple[float, float, float, float] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    r"""Monte Carlo dropout (Gal and Ghahramani 2016): mean and standard deviation over ``samples`` masks.

    Evaluation :math:`i` is ``field(p, Key(seed, index=pixel, step=i))``. All of them run in one kernel, a loop that
    keeps running means and sums of squared deviations (Welford 1962). The deviation divides by ``samples``, as
    ``np.std`` does. Both results have the shape ``(height, width, channels)``.
    """
    uint64 = dr.uint64_array_t(_uint32(field))
    seed_word, count = dr.opaque(uint64, seed), dr.opaque(_uint32(field), samples)

    def draw(index: Any) -> list:
        p = pixels(index, width, height, region)
        mean, m2 = moments(field, p, Key(seed_word, index), count)
        return [mean, [dr.sqrt(v / type(v)(count)) for v in m2]]

    mean, deviation = _draw(field, width, height, draw)
    return mean, deviation


def moments(field: NeuralField, p: list, key: Key, samples: Any) -> tuple[list, list]:
    """Running mean and sum of squared deviations of ``field(p, key.fold_in(i))`` over ``i < samples``, in one loop."""
    uint32 = dr.uint32_array_t(p[0])
    f32 = dr.float32_array_t(p[0])
    with dr.suspend_grad():
        channels = len(field([f32(0.5), f32(0.5)]))  # traced, not run
        zeros = [dr.zeros(f32, dr.width(p[0])) for _ in range(2 * channels)]

        def step(i: Any, mean: list, m2: list) -> tuple:
            y = field(p, key.fold_in(i))
            n = f32(i + 1)
            new_mean, new_m2 = [], []
            for value, m, s in zip(y, mean, m2, strict=True):
                delta = value - m
                updated = m + delta / n
                new_mean.append(updated)
                new_m2.append(s + delta * (value - updated))
            return i + 1, new_mean, new_m2

        _, mean, m2 = dr.while_loop(
            state=(uint32(0), zeros[:channels], zeros[channels:]),
            cond=lambda i, mean, m2: i < samples,
            body=step,
            labels=("i", "mean", "m2"),
            mode="symbolic",
            label="mc_dropout",
        )
    return mean, m2


def _draw(field: NeuralField, width: int, height: int, draw: Any) -> list[np.ndarray]:
    """Pictures that ``draw(pixel numbers)`` gives, piece by piece."""
    uint32 = _uint32(field)
    pictures: list[np.ndarray] = []
    for start in range(0, width * height, CHUNK):
        n = min(CHUNK, width * height - start)
        values = draw(dr.arange(uint32, n) + dr.opaque(uint32, start))
        dr.eval(values)
        for i, value in enumerate(values):
            if start == 0:
                pictures.append(np.empty((height * width, len(value)), np.float32))
            for c, channel in enumerate(value):
                pictures[i][start : start + n, c] = channel.numpy()
    return [picture.reshape(height, width, -1) for picture in pictures]


def _evaluated(y: Any) -> list:
    channels = list(y)
    dr.eval(channels)
    return channels


def _uint32(field: NeuralField) -> type:
    first = next(iter(field.values()))
    return namespace(dr.backend_v(first)).UInt32
