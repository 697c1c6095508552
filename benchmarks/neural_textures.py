"""Neural textures in Mitsuba's ``path`` beside a bitmap: three textures of one sphere, by size of the network.

``symbolic`` are Mitsuba's defaults; in ``evaluated``, `SymbolicCalls` and `SymbolicLoops` are off. Seconds of a picture
that was rendered before with another seed.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import common
import numpy as np

import coopnet as cn  # isort: skip
import drjit as dr

#: Name -> width and depth of the network behind a hash grid; 0 layers of 0 units: a bitmap.
TEXTURES = {"bitmap": (0, 0), "grid and one layer": (1, 0), "16 x 2": (16, 2), "32 x 2": (32, 2), "64 x 2": (64, 2)}


def texture(mi: Any, name: str, outputs: int, seed: int) -> Any:
    width, depth = TEXTURES[name]
    if not width:
        texels = np.random.default_rng(seed).uniform(0.2, 0.8, (256, 256, outputs)).astype(np.float32)
        return mi.load_dict({"type": "bitmap", "bitmap": mi.Bitmap(texels), "raw": True})
    network = cn.MLP(-1, outputs, width=width, depth=depth, output_activation="sigmoid")
    grid = cn.HashGrid(2, n_levels=8, base_resolution=8, per_level_scale=1.5)
    return cn.mitsuba.NeuralTexture(cn.mitsuba.build(cn.NeuralField(grid, network), seed=seed))


def scene(mi: Any, name: str, size: int) -> Any:
    view = mi.ScalarTransform4f().look_at(origin=[0, 0, 4], target=[0, 0, 0], up=[0, 1, 0])
    material = {
        "type": "principled", "base_color": texture(mi, name, 3, 1), "roughness": texture(mi, name, 1, 2),
        "metallic": texture(mi, name, 1, 3),
    }  # fmt: skip
    film = {"type": "hdrfilm", "width": size, "height": size}
    return mi.load_dict({
        "type": "scene", "light": {"type": "constant"}, "ball": {"type": "sphere", "bsdf": material},
        "integrator": {"type": "path", "max_depth": 4},
        "sensor": {"type": "perspective", "fov": 35, "to_world": view, "film": film},
    })  # fmt: skip


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        size=dict(type=int, default=128, help="pixels a side"),
        spp=dict(type=int, default=16),
        repeat=dict(type=int, default=5),
    )
    import mitsuba as mi

    mi.set_variant(f"{args.backend}_ad_rgb")
    cn.mitsuba.register()
    rows = []
    for name in TEXTURES:
        row: dict[str, Any] = {"texture": name}
        for mode in ("symbolic", "evaluated"):
            made, taken, on = scene(mi, name, args.size), [], mode == "symbolic"
            for seed in range(args.repeat + 2):
                start = time.perf_counter()
                with dr.scoped_set_flag(dr.JitFlag.SymbolicCalls, on), dr.scoped_set_flag(dr.JitFlag.SymbolicLoops, on):
                    picture = mi.render(made, spp=args.spp, seed=seed)
                    dr.eval(picture)
                    dr.sync_thread()
                taken.append(time.perf_counter() - start)
            row[f"{mode}_s"], row[f"{mode}_first_s"] = statistics.median(taken[2:]), taken[0]
        rows.append(row)
        print(row, flush=True)
    results = {"size": args.size, "spp": args.spp, "rows": rows}
    print("written to", common.write("neural-textures", args.backend, results, args.out))


if __name__ == "__main__":
    main()
