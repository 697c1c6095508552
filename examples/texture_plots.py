"""Pictures of ``texture_compression.py``: distortion over rate, and crops side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

STYLE = {
    "neural": ("o-", "#1f6fb4"),
    "JPEG": (".-", "#d9702b"),
    "BC1": ("s", "#4f9d4f"),
    "BC7, mode 6": ("D", "#8a5aa8"),
    "BC7": ("^", "#8a5aa8"),
}
CROP = 112  # texels a side


def draw(out: Path, maps: np.ndarray, parts: dict[str, slice], found: dict[str, list], psnr: Callable) -> list[Path]:
    """Write both pictures into the folder ``out``; returns their files."""
    rate, crops = out / "rate-distortion.png", out / "crops.png"
    figure = _figure(7.0, 4.2)
    axes = figure.add_subplot()
    for codec, results in found.items():
        marker, colour = STYLE[codec]
        quality = [psnr(r.maps, maps) for r in results]
        axes.semilogx([r.bits for r in results], quality, marker, color=colour, label=codec, base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel=f"bits per texel of {maps.shape[2]} channels", ylabel="PSNR of all channels in dB")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(rate)

    neural = found["neural"][min(1, len(found["neural"]) - 1)]
    jpeg = min(found["JPEG"], key=lambda r: abs(np.log(r.bits / neural.bits)))
    rows = [("original", 8 * maps.shape[2], maps)] + [(r.name, r.bits, r.maps) for r in (neural, jpeg, *found["BC1"])]
    window = _window(maps)
    figure = _figure(2.3 * len(parts) + 0.6, 2.45 * len(rows))
    for i, (name, bits, shown) in enumerate(rows):
        for j, (part, where) in enumerate(parts.items()):
            axes = figure.add_subplot(len(rows), len(parts), i * len(parts) + j + 1)
            axes.imshow(shown[..., where][window].squeeze(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            title = part if i == 0 else f"{psnr(shown[..., where], maps[..., where]):.1f} dB"
            axes.set_title(title, fontsize=9)
            if j == 0:
                axes.set_ylabel(f"{name}\n{bits:.2f} bits/texel", fontsize=9)
    figure.savefig(crops)
    return [rate, crops]


def _window(maps: np.ndarray) -> tuple[slice, slice]:
    """The crop of most variance: where there is most to see."""
    n = min(CROP, *maps.shape[:2])
    step = max(1, n // 2)
    places = [(y, x) for y in range(0, maps.shape[0] - n + 1, step) for x in range(0, maps.shape[1] - n + 1, step)]
    y, x = max(places, key=lambda p: maps[p[0] : p[0] + n, p[1] : p[1] + n].var(axis=(0, 1)).sum())
    return slice(y, y + n), slice(x, x + n)


def _figure(width: float, height: float) -> Any:
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)  # no display needed
    return figure
