"""Compress the maps of a material together: a few bits per texel and a small network that decodes any texel alone.

The maps of a material tell of the same things: where there is rust, colour, height, roughness and metalness change
together. One grid of codes for all of them (``texture_codec.py``) therefore takes fewer bits than a picture for each,
as JPEG and the block formats of GPUs store them. Every figure and picture is of a file that was written and read back.

    python examples/texture_compression.py [maps.png ...] [--quick | --full] [--out FOLDER]

Without files, a material is made (``texture_maps.py``). ``--full`` is for a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import drjit as dr
import numpy as np
import texture_maps as sources
import texture_peers as peers
import texture_plots as plots
from texture_codec import Latents, Layout, decode, quantized, read, unit, write

import coopnet as cn

#: Texels in a cell, codes of a vertex (fine and coarse grid), bits of a code.
SIZES = {
    "small": {"cells": (4, 16), "codes": (4, 8), "bits": 4},
    "medium": {"cells": (2, 8), "codes": (2, 8), "bits": 4},
    "large": {"cells": (2, 8), "codes": (4, 8), "bits": 4},
    "third": {"cells": (1, 3), "codes": (1, 8), "bits": 4},
    "huge": {"cells": (2, 4), "codes": (8, 8), "bits": 4},
}


class Effort(NamedTuple):
    """How large the maps that are made are, and how long and for which sizes networks are trained."""

    size: int = 512
    steps: int = 2000
    batch: int = 1 << 14
    hidden: int = 32
    sizes: tuple[str, ...] = ("small", "medium", "large")


QUICK = Effort(64, 60, 1 << 11, 16, ("small", "large"))
THIRD = Effort(512, 6000, 1 << 14, 64, ("third",))
FULL = Effort(1024, 20_000, 1 << 16, 64, tuple(SIZES))


class Result(NamedTuple):
    """Maps that were stored and read back, and the bits per texel that they took."""

    name: str
    bits: float
    maps: np.ndarray


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(-10 * np.log10(np.mean(np.square(a - b, dtype=np.float64))))


def train(maps: np.ndarray, layout: Layout, backend: str, steps: int, batch: int) -> cn.NeuralField:
    field = cn.NeuralField(Latents(layout), layout.network()).build(backend, seed=1)
    fit(field, maps, backend, steps, batch, lr=2e-2, fine=5.0, coarse=5.0)
    return field


def fit(field: cn.NeuralField, maps: np.ndarray, backend: str, steps: int, batch: int, **rates: float) -> None:
    """Train with a learning rate ``lr`` that rises, then falls to 0; of ``fine`` and ``coarse`` codes times these."""
    ns, (height, width, channels) = cn.backend.namespace(backend), maps.shape
    table = ns.Float(maps.ravel())

    def draw(key: cn.Key) -> tuple[list, Any]:
        u, v = cn.uniform(2, key, ns.Float, batch)
        x, y = dr.minimum(dr.floor(u * width), width - 1), dr.minimum(dr.floor(v * height), height - 1)
        return [x, y], dr.gather(ns.ArrayXf, table, ns.UInt32(y) * width + ns.UInt32(x), shape=(channels, batch))

    rate = cn.training.cosine(rates.pop("lr"), steps, warmup=min(20, steps - 1))
    multipliers = {f"encoding.{name}": value for name, value in rates.items()}
    cn.fit(field, draw, steps, lr=rate, multipliers=multipliers, progress=sys.stderr.isatty())


def search(field: cn.NeuralField, maps: np.ndarray, backend: str) -> None:
    """Replace each fine code by that one of all its values with which the texels that read it have the least error.

    For one code to a texel, and maps with even sides. A texel reads the codes of four vertices, of which one has an
    even row and an even column, and so on: of each such class, all codes are found at once.
    """
    layout = field.encoding.layout
    if (layout.cells[0], layout.codes[0], layout.height % 2, layout.width % 2) != (1, 1, 0, 0):
        raise ValueError(f"search: {layout}; one code for each texel and even sides are needed")
    codes = quantized(field.encoding.fine.table.value.data, layout.bits).numpy().reshape(layout.grid(0))

    def hold(numbers: np.ndarray) -> None:
        field.set_matrix("encoding.fine.data", unit(numbers.reshape(-1, 1), layout.bits).astype(np.float32))

    for part in np.ndindex(2, 2):
        some, errors = tuple(slice(k, None, 2) for k in part), []
        for code in range(2**layout.bits):
            tried = codes.copy()
            tried[some] = code
            hold(tried)
            error = np.square(decode(field, backend) - maps).sum(axis=2)
            for axis in (0, 1):  # the texels of a vertex: its own, those left and above
                error = error + np.roll(error, 1, axis)
            errors.append(error[some])
        codes[some] = np.argmin(errors, axis=0)
    hold(codes)


def kernel_ms(run: Any) -> float:
    """Median time in kernels."""
    times = []
    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
        for _ in range(8):
            dr.kernel_history_clear()
            dr.eval(run())
            dr.sync_thread()
            times.append(sum(k["execution_time"] for k in dr.kernel_history()))
    return float(np.median(times[3:]))


def decoding_ms(field: cn.NeuralField, backend: str, texels: int) -> dict[str, float]:
    """Kernel times of decoding texels row by row, at random places, and of the network alone."""
    ns, layout = cn.backend.namespace(backend), field.encoding.layout
    i = dr.arange(ns.UInt32, texels)
    rows = [ns.Float(i % layout.width), ns.Float(i // layout.width % layout.height)]
    u = cn.uniform(2, cn.Key(0), ns.Float, texels)
    random = [dr.floor(v * n) for v, n in zip(u, (layout.width, layout.height), strict=True)]
    features = field.encoding(rows)
    dr.eval(rows, random, features)
    network = cn.NeuralField(None, field.network, in_features=len(features))
    network.precision = field.precision  # it is built: its weights are the field's
    jobs = {"rows": (field, rows), "random": (field, random), "network": (network, features)}
    return {name: kernel_ms(lambda f=f, x=x: f(x)) for name, (f, x) in jobs.items()}


def study(maps: np.ndarray, parts: list[slice], backend: str, effort: Effort, out: Path) -> tuple[dict, dict]:
    """``{codec: [Result]}``, and of each file that was trained its seconds and decoding times."""
    height, width, channels = maps.shape
    found: dict[str, list[Result]] = {"neural": []}
    costs = {}
    for name in effort.sizes:
        start, path = time.monotonic(), out / f"{name}.texture"
        layout = Layout(height, width, channels, hidden=effort.hidden, **SIZES[name])
        write(path, train(maps, layout, backend, effort.steps, effort.batch))
        costs[name] = {"seconds": time.monotonic() - start, "bytes": path.stat().st_size}
        field = read(path, backend)
        bits = 8 * path.stat().st_size / (height * width)
        found["neural"].append(Result(f"neural, {name}", bits, decode(field, backend)))
        costs[name]["decoding_ms"] = decoding_ms(field, backend, 1 << (20 if effort.size > 64 else 10))
    pictures = [maps[..., part] for part in parts]
    found["JPEG"] = [Result("JPEG", bits, decoded) for bits, decoded in peers.jpeg_curve(pictures)]
    formats = [("BC1", peers.bc1, peers.bc1_bits), ("BC7, mode 6", peers.bc7_mode6, peers.bc7_bits)]
    if peers.has_bc7() and height % 4 == width % 4 == 0:
        formats.append(("BC7", peers.bc7, peers.bc7_bits))
    for name, encode, cost in formats:
        bits = sum(cost(picture) for picture in pictures)
        found[name] = [Result(name, bits, np.dstack([encode(picture) for picture in pictures]))]
    return found, costs


def table(maps: np.ndarray, parts: dict[str, slice], found: dict[str, list[Result]]) -> list[dict[str, Any]]:
    """Bits per texel and PSNR in dB of all results, overall and of each map."""
    return [
        {"codec": r.name, "bits": r.bits, "psnr": psnr(r.maps, maps)}
        | {name: psnr(r.maps[..., part], maps[..., part]) for name, part in parts.items()}
        for results in found.values()
        for r in results
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="maps of one size, three channels or one each")
    parser.add_argument("--quick", action="store_true", help="small maps, hardly trained: does it run?")
    parser.add_argument("--third", action="store_true", help="only the file of a third of BC7's size, trained for long")
    parser.add_argument("--full", action="store_true", help="large maps, trained for long")
    parser.add_argument("--steps", type=int, help="of each training, instead of the usual number")
    parser.add_argument("--backend", default="auto", help="llvm, cuda or auto")
    parser.add_argument("--out", type=Path, default=Path("out/texture"), help="folder of files and pictures")
    args = parser.parse_args()
    backend = cn.backend.require(args.backend)
    effort = QUICK if args.quick else THIRD if args.third else FULL if args.full else Effort()
    effort = effort if args.steps is None else effort._replace(steps=args.steps)
    args.out.mkdir(parents=True, exist_ok=True)
    maps, parts = sources.read(args.files) if args.files else (sources.material(effort.size), sources.MAPS)
    height, width, channels = maps.shape
    print(f"{channels} channels of {width} x {height} texels on {backend.upper()}", flush=True)

    found, costs = study(maps, list(parts.values()), backend, effort, args.out)
    print(f"\n{'PSNR in dB':<18}{'bits/texel':>11}{'all':>8}" + "".join(f"{name[-9:]:>10}" for name in parts))
    near = {min(found["JPEG"], key=lambda j: abs(np.log(j.bits / r.bits))).bits for r in found["neural"]}
    for row in table(maps, parts, found | {"JPEG": [j for j in found["JPEG"] if j.bits in near]}):
        codec, bits, *figures = row.values()
        print(f"{codec:<18}{bits:>11.2f}{figures[0]:>8.2f}" + "".join(f"{f:>10.2f}" for f in figures[1:]))
    print(f"\n{'':<18}{'bytes':>11}{'training s':>12}  decoding, kernel ms: rows, random, network alone")
    for name, cost in costs.items():
        times = ", ".join(f"{ms:.2f}" for ms in cost["decoding_ms"].values())
        print(f"neural, {name:<10}{cost['bytes']:>11}{cost['seconds']:>12.1f}  {times}")
    for path in plots.draw(args.out, maps, parts, found, psnr):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
