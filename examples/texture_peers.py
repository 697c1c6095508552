"""What ``texture_compression.py`` compares with: JPEG by Pillow, and two block formats, encoded here.

BC1 and BC4 (also called S3TC and RGTC; Khronos Data Format Specification 1.3, chapters 18 and 19) store a 4 x 4 block
as two end points and an index per texel into a palette between them: three channels in 64 bits, one channel in 64 bits.
BC7 has eight modes, of 128 bits a block; the one here is mode 6 (16 colours between end points of 8 bits a channel, of
which the last is shared; here it is free). The search is a plain one: end points along the principal axis, then four
times least squares for the indices found. An encoder with several modes is much better; :func:`bc7` is one, bc7enc in
the package ``etcpak``, decoded by ``texture2ddecoder``. Neither is needed for the rest.
"""

from __future__ import annotations

import importlib.util
import io

import numpy as np
from PIL import Image

QUALITIES = (2, 4, 6, 8, 10, 13, 16, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 84, 88, 92, 95)


def jpeg_curve(maps: list[np.ndarray]) -> list[tuple[float, np.ndarray]]:
    """Bits per texel, headers included, and decoded channels: the best that Pillow's JPEG does for maps together.

    Every map is coded at all qualities in up to three ways: with and without chroma subsampling, and every channel as a
    grey picture. Of these, a point of the curve takes for every map the one of least ``squared error + slope * bits``,
    for one slope: no other choice has a smaller error with as few bits.
    """
    ways = [[_jpeg(m, q, way) for q in QUALITIES for way in _ways(m)] for m in maps]
    curve = {}
    for slope in np.geomspace(1e-6, 1, 60):
        chosen = [
            min(w, key=lambda way: np.sum((way[1] - m) ** 2) + slope * way[0]) for w, m in zip(ways, maps, strict=True)
        ]
        bits = sum(c[0] for c in chosen)
        curve[bits / maps[0][..., 0].size] = np.dstack([c[1] for c in chosen])
    return sorted(curve.items())


def _ways(maps: np.ndarray) -> tuple[str, ...]:
    return ("grey", "4:4:4", "4:2:0") if maps.shape[2] == 3 else ("grey",)


def _jpeg(maps: np.ndarray, quality: int, way: str) -> tuple[int, np.ndarray]:
    """Bits, and what is decoded from them."""
    if way == "grey" and maps.shape[2] > 1:
        parts = [_jpeg(maps[..., c : c + 1], quality, way) for c in range(maps.shape[2])]
        return sum(bits for bits, _ in parts), np.dstack([decoded for _, decoded in parts])
    file, options = io.BytesIO(), {} if way == "grey" else {"subsampling": way}
    eight = np.round(maps * 255).astype(np.uint8)
    picture = Image.fromarray(eight[..., 0] if way == "grey" else eight)
    picture.save(file, "jpeg", quality=quality, optimize=True, **options)
    return 8 * file.tell(), np.atleast_3d(np.asarray(Image.open(file), np.float32) / 255)


def blocks(maps: np.ndarray, bits: tuple[int, ...], colours: int) -> np.ndarray:
    """Maps decoded from 4 x 4 blocks of two end points with ``bits`` a channel and ``colours`` evenly between them."""
    h, w, c = maps.shape
    padded = np.pad(maps, ((0, -h % 4), (0, -w % 4), (0, 0)), mode="edge")
    rows, columns = padded.shape[0] // 4, padded.shape[1] // 4
    texels = padded.reshape(rows, 4, columns, 4, c).swapaxes(1, 2).reshape(-1, 16, c).astype(np.float64)
    top = 2.0 ** np.array(bits) - 1
    mean = texels.mean(axis=1, keepdims=True)
    _, axes = np.linalg.eigh((texels - mean).swapaxes(1, 2) @ (texels - mean))
    along = (texels - mean) @ axes[..., -1:]
    ends = mean + np.stack([along.min(axis=1), along.max(axis=1)], axis=1) * axes[..., -1][:, None]
    best, least = texels, np.full(len(texels), np.inf)
    for _ in range(5):
        a, b = (np.round(np.clip(ends[:, i : i + 1], 0, 1) * top) / top for i in (0, 1))
        length = np.maximum(((b - a) ** 2).sum(axis=2, keepdims=True), 1e-12)
        t = ((texels - a) * (b - a)).sum(axis=2, keepdims=True) / length
        t = np.round(np.clip(t, 0, 1) * (colours - 1)) / (colours - 1)
        decoded = a + t * (b - a)
        error = ((decoded - texels) ** 2).sum(axis=(1, 2))
        best, least = np.where((error < least)[:, None, None], decoded, best), np.minimum(error, least)
        weights = np.concatenate([1 - t, t], axis=2)  # texel = (1 - t) a + t b, for given t: normal equations
        normal = weights.swapaxes(1, 2) @ weights + 1e-9 * np.eye(2)
        ends = np.linalg.solve(normal, weights.swapaxes(1, 2) @ texels)
    picture = best.reshape(rows, columns, 4, 4, c).swapaxes(1, 2).reshape(padded.shape)[:h, :w]
    return np.round(picture * 255).astype(np.float32) / 255


def bc1(maps: np.ndarray) -> np.ndarray:
    """A map of three channels in BC1; channels of other maps each in BC4."""
    if maps.shape[2] == 3:
        return blocks(maps, (5, 6, 5), 4)
    return np.dstack([blocks(maps[..., c : c + 1], (8,), 8) for c in range(maps.shape[2])])


def bc1_bits(maps: np.ndarray) -> int:
    """Bits per texel that :func:`bc1` takes."""
    return 4 if maps.shape[2] == 3 else 4 * maps.shape[2]


def bc7_mode6(maps: np.ndarray) -> np.ndarray:
    """Up to four channels in BC7's mode 6."""
    return blocks(maps, (8,) * maps.shape[2], 16)


def has_bc7() -> bool:
    """Are the packages of :func:`bc7` installed?"""
    return all(importlib.util.find_spec(name) for name in ("etcpak", "texture2ddecoder"))


def bc7(maps: np.ndarray) -> np.ndarray:
    """Up to three channels of a map in BC7 by several of its modes; sides must be multiples of 4."""
    import etcpak
    import texture2ddecoder

    height, width, channels = maps.shape
    rgba = np.zeros((height, width, 4), np.uint8)
    rgba[..., :channels], rgba[..., 3] = np.round(maps * 255), 255
    search = etcpak.BC7CompressBlockParams()
    search.init_linear_weights()  # all channels count alike, as in the PSNR
    search.m_uber_level = 4
    data = etcpak.compress_bc7(rgba.tobytes(), width, height, search)
    bgra = np.frombuffer(texture2ddecoder.decode_bc7(data, width, height), np.uint8).reshape(height, width, 4)
    return bgra[..., 2::-1][..., :channels].astype(np.float32) / 255


def bc7_bits(maps: np.ndarray) -> int:
    """Bits per texel that :func:`bc7` takes."""
    return 8
