"""The format of ``texture_compression.py``: two grids of codes of a few bits, and a network that decodes a texel.

In the spirit of *Random-Access Neural Compression of Material Textures* (Vaidyanathan et al. 2023). The network sees
the four codes of the fine grid around a texel side by side, those of the coarse grid interpolated, and where the texel
stands in its cell, as triangle waves. Codes are rounded while they are trained, with the gradient of what they were
before (a straight-through estimator, Bengio et al. 2013), so that the network learns to decode what will be stored.

The file is a line that says how large everything is, the codes as bits, and the weights in half precision. Decoding
gathers words of it, takes the codes out of them and runs the network: one kernel, for any texels in any order.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import drjit as dr
import numpy as np

import coopnet as cn
from coopnet.io import atomic_write

LAYERS = [f"layers.{i}.{part}" for i in (0, 2, 4) for part in ("weights", "bias")]


class Layout(NamedTuple):
    """How maps are stored; of pairs, the first is the fine grid's."""

    height: int
    width: int
    channels: int
    cells: tuple[int, int] = (2, 8)  # texels a side
    codes: tuple[int, int] = (2, 8)  # of a vertex
    bits: int = 4  # of a code
    hidden: int = 32  # units of each of two hidden layers

    def grid(self, i: int) -> tuple[int, int]:
        """Vertices in a column and in a row: one in the middle of every cell. Grids repeat, as textures do."""
        return -(-self.height // self.cells[i]), -(-self.width // self.cells[i])

    def check(self) -> None:
        """Raise ``ValueError`` if the codes of a vertex could begin in one word and end in another."""
        sizes = [self.bits, *(n * self.bits for n in self.codes)]
        if self.bits > 16 or any(size < 1 or (32 % size and size % 32) for size in sizes):
            fit = "1, 2, 4, 8, 16 or a multiple of 32 bits a vertex, and at most 16 a code"
            raise ValueError(f"{self.codes} codes of {self.bits} bits; {fit} are possible")

    def words(self, i: int) -> int:
        """How many words of 32 bits the grid takes."""
        rows, columns = self.grid(i)
        return -(-rows * columns * self.codes[i] * self.bits // 32)

    def network(self) -> cn.MLP:
        return cn.MLP(out_features=self.channels, width=self.hidden, depth=2, activation="silu", bias=True)


class Latents(cn.Encoding):
    """From texels ``(column, row)``, counted from 0, to what the network sees; the codes are still being trained."""

    DRJIT_STRUCT = {"layout": Layout, "fine": cn.Embedding, "coarse": cn.Embedding}
    in_features = 2

    def __init__(self, layout: Layout):
        layout.check()
        self.layout = layout
        self.fine, self.coarse = (
            cn.Embedding(rows * columns, n, init_scale=0.5, precision="single", check=False, deterministic=False)
            for (rows, columns), n in zip((layout.grid(0), layout.grid(1)), layout.codes, strict=True)
        )

    def width(self, size: int) -> int:
        return 4 * self.layout.codes[0] + self.layout.codes[1] + 12

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:
        layer, width = super()._alloc(dtype, size, rng)
        layer.fine, layer.coarse = (table._alloc(dtype, 1, rng)[0] for table in (self.fine, self.coarse))
        return layer, width

    def read(self, i: int, vertex: Any) -> list:
        """The codes of a vertex of grid ``i`` as numbers in [-1, 1]."""
        values = (self.fine, self.coarse)[i]([vertex])
        return [dr.replace_grad(unit(quantized(v, self.layout.bits), self.layout.bits), v) for v in values]

    def _features(self, coordinates: list) -> list:
        x, y = (v + 0.5 for v in coordinates)
        fine = [self.read(0, vertex) for vertex, _ in corners(x, y, self.layout, 0)]
        coarse = [[weight * c for c in self.read(1, vertex)] for vertex, weight in corners(x, y, self.layout, 1)]
        phases = [v / period + shift for v in (x, y) for period in (2, 4, 8) for shift in (0, 0.25)]
        waves = [4 * abs(p - dr.floor(p) - 0.5) - 1 for p in phases]
        return [c for codes in fine for c in codes] + [sum(c) for c in zip(*coarse, strict=True)] + waves


class Stored(Latents):
    """The same with the codes as they are in a file: bits, packed into words."""

    words: tuple = ()

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:
        return cn.Encoding._alloc(self, dtype, size, rng)

    def read(self, i: int, vertex: Any) -> list:
        bits, n = self.layout.bits, self.layout.codes[i]
        first, words = vertex * (n * bits), {}
        for k in range(0, n * bits, 32):
            words[k // 32] = dr.gather(type(vertex), self.words[i], (first >> 5) + k // 32)
        shift = first & 31  # 0, unless several vertices share a word
        codes = ((words[k * bits // 32] >> (shift + k * bits % 32)) & (2**bits - 1) for k in range(n))
        return [unit(dr.float32_array_t(vertex)(c), bits) for c in codes]


def quantized(value: Any, bits: int) -> Any:
    """``value`` as the nearest of the whole numbers that stand for [-1, 1], without a gradient."""
    top = 2**bits - 1
    return dr.round(dr.clip((dr.detach(value) + 1) * (top / 2), 0, top))


def unit(code: Any, bits: int) -> Any:
    return code * (2 / (2**bits - 1)) - 1


def corners(x: Any, y: Any, layout: Layout, i: int) -> list:
    """The four vertices of grid ``i`` around a point, and their weights in a bilinear interpolation."""
    axes = []
    for v, n in zip((y, x), layout.grid(i), strict=True):
        place = v / layout.cells[i] + (n - 0.5)  # n more, so that it is positive
        whole = dr.floor(place)
        first = dr.uint32_array_t(v)(whole) % n
        axes.append([(first, 1 - (place - whole)), (dr.select(first + 1 == n, 0, first + 1), place - whole)])
    return [(row * layout.grid(i)[1] + column, v * u) for row, v in axes[0] for column, u in axes[1]]


def write(path: Path, field: cn.NeuralField) -> None:
    """A line of JSON, the words of both grids, and the weights in half precision; little-endian."""
    layout, parts = field.encoding.layout, []
    for table in (field.encoding.fine, field.encoding.coarse):
        codes = quantized(table.table.value.data, layout.bits).numpy().astype(np.uint64).ravel()
        codes = np.pad(codes, (0, -len(codes) % (32 // layout.bits))).reshape(-1, 32 // layout.bits)
        parts.append((codes << np.arange(0, 32, layout.bits, dtype=np.uint64)).sum(axis=1).astype("<u4"))
    parts += [field.network.matrix(name).astype("<f2") for name in LAYERS]
    data = json.dumps(layout._asdict()).encode() + b"\n" + b"".join(part.tobytes() for part in parts)
    atomic_write(path, lambda temporary: Path(temporary).write_bytes(data))


def read(path: Path, backend: str) -> cn.NeuralField:
    header, data = path.read_bytes().split(b"\n", 1)
    layout = Layout(**{k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(header).items()})
    n = [layout.words(i) for i in (0, 1)]
    words = np.frombuffer(data, "<u4", sum(n)).astype(np.uint32)
    weights = np.frombuffer(data, "<f2", offset=4 * sum(n))
    stored = Stored(layout)
    stored.words = tuple(cn.backend.namespace(backend).UInt32(w) for w in (words[: n[0]], words[n[0] :]))
    field = cn.NeuralField(stored, layout.network()).build(backend)
    for name in LAYERS:
        shape = field.network.matrix(name).shape
        count = int(np.prod(shape))
        field.network.set_matrix(name, weights[:count].reshape(shape).astype(np.float32))
        weights = weights[count:]
    return field


def trainable(stored: cn.NeuralField, backend: str) -> cn.NeuralField:
    """A field to train that begins with what a file holds."""
    layout = stored.encoding.layout
    field = cn.NeuralField(Latents(layout), layout.network()).build(backend)
    for i, name in enumerate(("fine", "coarse")):
        vertex = dr.arange(cn.backend.namespace(backend).UInt32, int(np.prod(layout.grid(i))))
        codes = np.stack([code.numpy() for code in stored.encoding.read(i, vertex)], axis=1)
        field.set_matrix(f"encoding.{name}.data", codes.astype(np.float32))
    for name in LAYERS:
        field.network.set_matrix(name, stored.network.matrix(name))
    return field


def decode(field: cn.NeuralField, backend: str) -> np.ndarray:
    """All maps, in 8 bits as they would be used."""
    layout, ns = field.encoding.layout, cn.backend.namespace(backend)
    texel = dr.arange(ns.UInt32, layout.height * layout.width)
    y = field([ns.Float(texel % layout.width), ns.Float(texel // layout.width)])
    maps = y.numpy().T.reshape(layout.height, layout.width, -1)
    return np.round(np.clip(maps, 0, 1) * 255).astype(np.float32) / 255
