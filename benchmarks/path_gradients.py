"""Weight gradients of a picture at many paths: ``neural_path`` and Mitsuba's ``prb`` against single precision.

One scene (four spheres, one network), the same random numbers, a loss whose gradients have one sign at most pixels. The
reference is ``neural_path`` on LLVM with the same weights, whose sums are single precision; its own error is estimated
by ``prb`` there.
"""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

import common
import drjit as dr
import mitsuba as mi
import mitsuba_spheres as spheres
import numpy as np

import coopnet as cn


def gradient(backend: str, file: Path, integrator: str, size: int, spp: int, precision: str, **options: Any) -> Any:
    """The gradients of all matrices, one after the other, in float64."""
    mi.set_variant(f"{backend}_ad_rgb")
    field = cn.load(file, backend, precision)
    decoder = cn.mitsuba.Decoder(field, spheres.LATENT, directions="plain")
    materials = [cn.mitsuba.NeuralBSDF(decoder, latent=[0.2 * i], lobes=(0.4, 0.3)) for i in range(4)]
    scene = spheres.scene(materials, size, spp)
    if integrator == "neural_path":
        made = cn.mitsuba.NeuralPath(max_depth=5, rr_depth=50, **options)
    else:
        made = mi.load_dict({"type": integrator, "max_depth": 5, "rr_depth": 50})
    params = mi.traverse(scene)
    key = next(k for k in params.keys() if "weights" in k)  # noqa: SIM118 - Mitsuba's own mapping
    dr.enable_grad(params[key])
    image = mi.render(scene, params, integrator=made, seed=1, seed_grad=2, spp=spp)
    # scaled for half precision: the gradients of a mean over pixels vanish
    dr.backward(dr.mean(image, axis=None) * 2**8)
    names = [f"network.layers.{2 * i}.weights" for i in range(spheres.HIDDEN + 1)]
    found = np.concatenate([field.gradient(name).astype(np.float64).ravel() for name in names])
    del scene, params, materials, decoder, image
    gc.collect()
    return found


def main() -> None:
    args = common.arguments(
        __doc__,
        resolution=dict(type=int, default=128, help="width and height in pixels"),
        spp=dict(type=int, default=64, help="samples per pixel"),
        quick=dict(action="store_true", help="few paths: does it run?"),
    )  # fmt: skip
    size, spp = (16, 4) if args.quick else (args.resolution, args.spp)
    mi.set_variant(f"{args.backend}_ad_rgb")
    network = cn.MLP(spheres.LATENT + 6, 3, width=spheres.WIDTH, depth=spheres.HIDDEN)
    field = cn.NeuralField(None, network).build(args.backend, "half", seed=1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "decoder.safetensors"
        cn.save(file, field)
        wanted = gradient("llvm", file, "neural_path", size, spp, "single")
        jobs: list[tuple[str, str, str, str, dict[str, Any]]] = [("prb, LLVM, single", "llvm", "prb", "single", {})]
        if args.backend == "cuda":
            jobs += [
                ("neural_path", "cuda", "neural_path", "half", {}),
                ("neural_path, in the loop", "cuda", "neural_path", "half", {"networks": "branch"}),
                ("neural_path, one bank", "cuda", "neural_path", "half", {"networks": "branch", "banks": 1}),
                ("prb", "cuda", "prb", "half", {}),
            ]
        for name, backend, integrator, precision, options in jobs:
            got = gradient(backend, file, integrator, size, spp, precision, **options)
            error = float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
            ratio = float(got @ wanted / (wanted @ wanted))
            rows.append({"row": name, "error": error, "length": ratio})
            print(f"{name:30} error {error:.1e}, length {ratio:.4f}", flush=True)
    about = {"paths": size * size * spp, "resolution": size, "spp": spp, "rows": rows}
    print(common.write("path_gradients", args.backend, about, args.out))


if __name__ == "__main__":
    main()
