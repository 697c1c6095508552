"""Four spheres with neural materials: Mitsuba's integrators against ``neural_path``, pictures and gradients.

    python benchmarks/mitsuba_spheres.py --backend llvm
    python benchmarks/mitsuba_spheres.py --backend cuda --only ablations --spp 64

Networks have 7 inputs (a latent number and two directions), three hidden layers of 32 and 3 outputs. Times are kernel
times by Dr.Jit's history and wall times of unfrozen calls of ``mi.render``, medians over all rounds. In each round
every row loads its scene anew, since Dr.Jit traces the materials of all scenes that are alive.
"""

from __future__ import annotations

import gc
import importlib
import statistics
import sys
import unittest.mock
from collections.abc import Callable
from contextlib import nullcontext as nothing
from typing import Any

import common
import drjit as dr
import mitsuba as mi

import coopnet as cn
from coopnet.engine.strategies import EVALUATION

#: Width and height, and samples per pixel.
SIZES = {"llvm": (128, 16), "cuda": (512, 64)}
WIDTH, HIDDEN, LATENT = 32, 3, 1

Row = tuple[Callable[[], list], Any, dict[str, Any]]


# ---- materials ------------------------------------------------------------------------------------------------------


def neural(decoders: int, spheres: int = 4, parts: str = "both") -> list:
    """Materials of ``spheres`` spheres that share ``decoders`` networks.

    ``parts`` says what Mitsuba's calls evaluate the network in: ``"both"``, ``"sample"``, ``"eval"`` or ``"neither"``.
    """
    made = []
    for seed in range(decoders):
        mlp = cn.MLP(LATENT + 6, 3, width=WIDTH, depth=HIDDEN)
        field = cn.mitsuba.build(cn.NeuralField(None, mlp), seed=seed + 1)
        made.append(cn.mitsuba.Decoder(field, LATENT, directions="plain"))
    cls = cn.mitsuba.NeuralBSDF if parts == "both" else partial(parts)
    diffuse = {"type": "diffuse"}
    return [cls(made[i % decoders], latent=[0.2 * i], lobes=(0.4, 0.3)) if i < spheres else diffuse for i in range(4)]


def partial(parts: str) -> type:
    """A :class:`NeuralBSDF` that evaluates its network in some of its methods only."""

    class Lambertian:
        latent_features = LATENT

        def evaluate(self, code: list, wi: Any, wo: Any, key: Any = None, active: Any = True) -> Any:
            return dr.select((wi.z > 0) & (wo.z > 0) & active, mi.Color3f(*[code[0] + 0.5] * 3) * wo.z, 0)

    class Partial(cn.mitsuba.NeuralBSDF):  # type: ignore[misc, name-defined]
        def _switch(self, method: str) -> None:
            if not hasattr(self, "network"):
                self.network, self.blank = self.decoder, Lambertian()
            self.decoder = self.network if parts == method else self.blank

        def sample(self, *args: Any) -> Any:
            self._switch("sample")
            return super().sample(*args)

        def eval_pdf(self, *args: Any) -> Any:
            self._switch("eval")
            return super().eval_pdf(*args)

        def eval(self, *args: Any) -> Any:
            self._switch("eval")
            return super().eval(*args)

    return Partial


def analytic() -> list:
    return [
        {"type": "roughplastic", "alpha": 0.3},
        {"type": "roughplastic", "alpha": 0.1},
        {"type": "principled", "roughness": 0.3, "specular": 0.5},
        {"type": "diffuse"},
    ]


def scene(materials: list, size: int, spp: int, reorder: bool = True) -> Any:
    transform = mi.ScalarTransform4f()
    camera = transform.look_at([0, -6, 3], [0, 0, 0.5], [0, 0, 1])
    above = transform.look_at([0, -2, 5], [0, 0, 0], [0, 1, 0])
    parts: dict[str, Any] = {
        "type": "scene",
        "allow_thread_reordering": reorder,
        "sensor": {
            "type": "perspective", "fov": 40, "to_world": camera,
            "film": {"type": "hdrfilm", "width": size, "height": size, "rfilter": {"type": "box"}},
            "sampler": {"type": "independent", "sample_count": spp},
        },
        "floor": {"type": "rectangle", "to_world": transform.scale(5), "bsdf": {"type": "diffuse"}},
        "sky": {"type": "constant", "radiance": {"type": "rgb", "value": [0.5, 0.6, 0.7]}},
        "lamp": {
            "type": "rectangle", "to_world": above,
            "emitter": {"type": "area", "radiance": {"type": "rgb", "value": [8, 8, 7]}},
        },
    }  # fmt: skip
    for i, material in enumerate(materials):
        place = [i % 2 * 2 - 1, i // 2 * 2 - 1, 0.9]
        parts[f"sphere{i}"] = {"type": "sphere", "center": place, "radius": 0.9, "bsdf": material}
    return mi.load_dict(parts)


# ---- rows -----------------------------------------------------------------------------------------------------------

#: Name -> (materials, integrator, what else: ``evaluated`` calls, ``gradient``, ``reorder``, ``frozen``; ``mixed``:
#: without what keeps two networks of one call, loop or conditional apart on CUDA).
PICTURES: dict[str, Row] = {
    "path, analytic": (analytic, "path", {}),
    "neural_path, analytic": (analytic, "neural_path", {}),
    "path, one network": (lambda: neural(1), "path", {}),
    "path, four networks": (lambda: neural(4), "path", {}),
    "path, one network, evaluated": (lambda: neural(1), "path", {"evaluated": True}),
    "path, four networks, evaluated": (lambda: neural(4), "path", {"evaluated": True}),
    "neural_path, one network": (lambda: neural(1), "neural_path", {}),
    "neural_path, four networks": (lambda: neural(4), "neural_path", {}),
    "neural_path, one network, frozen": (lambda: neural(1), "neural_path", {"frozen": True}),
    "path, analytic, frozen": (analytic, "path", {"frozen": True}),
}
GRADIENTS: dict[str, Row] = {
    "prb, analytic, gradient": (analytic, "prb", {"gradient": True}),
    "prb, one network, gradient": (lambda: neural(1), "prb", {"gradient": True}),
    "prb, four networks, gradient": (lambda: neural(4), "prb", {"gradient": True}),
    "neural_path, one network, gradient": (lambda: neural(1), "neural_path", {"gradient": True}),
    "neural_path, four networks, gradient": (lambda: neural(4), "neural_path", {"gradient": True}),
}
ABLATIONS: dict[str, Row] = {
    "path, no network": (lambda: neural(4, parts="neither"), "path", {}),
    "path, four networks in sample": (lambda: neural(4, parts="sample"), "path", {}),
    "path, four networks in eval": (lambda: neural(4, parts="eval"), "path", {}),
    "path, one network in sample": (lambda: neural(1, parts="sample"), "path", {}),
    "path, one network in eval": (lambda: neural(1, parts="eval"), "path", {}),
    "path, one network on one sphere": (lambda: neural(1, spheres=1), "path", {}),
    "path, four networks, mixed": (lambda: neural(4), "path", {"mixed": True}),
    "path, four networks, no reordering": (lambda: neural(4), "path", {"reorder": False}),
    "path, one network, no reordering": (lambda: neural(1), "path", {"reorder": False}),
    "path, analytic, no reordering": (analytic, "path", {"reorder": False}),
    "prb without derivatives, four networks": (lambda: neural(4), "prb", {}),
    "neural_path, one network, no reordering": (lambda: neural(1), "neural_path", {"reorder": False}),
    "neural_path, four networks, no reordering": (lambda: neural(4), "neural_path", {"reorder": False}),
    "neural_path, one network, branch": (lambda: neural(1), "neural_path", {"networks": "branch"}),
    "neural_path, four networks, branch": (lambda: neural(4), "neural_path", {"networks": "branch"}),
    "neural_path, one network, branch, mixed": (
        lambda: neural(1), "neural_path", {"networks": "branch", "mixed": True},
    ),
    "neural_path, four networks, branch, mixed": (
        lambda: neural(4), "neural_path", {"networks": "branch", "mixed": True},
    ),
    "neural_path, one network, mask": (lambda: neural(1), "neural_path", {"networks": "mask"}),
    "neural_path, four networks, mask": (lambda: neural(4), "neural_path", {"networks": "mask"}),
    "neural_path, one network, call": (lambda: neural(1), "neural_path", {"networks": "call"}),
    "neural_path, four networks, call": (lambda: neural(4), "neural_path", {"networks": "call"}),
    "neural_path, four networks, call, no reordering": (
        lambda: neural(4), "neural_path", {"networks": "call", "reorder": False},
    ),
    "neural_path, one network, gradient, wavefront": (
        lambda: neural(1), "neural_path", {"gradient": True, "networks": "wavefront"},
    ),
    "neural_path, four networks, gradient, wavefront": (
        lambda: neural(4), "neural_path", {"gradient": True, "networks": "wavefront"},
    ),
    "neural_path, no network": (lambda: [{"type": "diffuse"}] * 4, "neural_path", {}),
    "path, diffuse": (lambda: [{"type": "diffuse"}] * 4, "path", {}),
}  # fmt: skip
GROUPS = {"pictures": PICTURES, "gradients": GRADIENTS, "ablations": ABLATIONS}
ROWS = PICTURES | GRADIENTS | ABLATIONS


def measure(name: str, size: int, spp: int, depth: int, repeat: int) -> dict[str, Any]:
    """Times of one row, on a scene of its own."""
    materials, kind, options = ROWS[name]
    loaded = scene(materials(), size, spp, options.get("reorder", True))
    if kind == "neural_path":
        integrator = cn.mitsuba.NeuralPath(max_depth=depth, networks=options.get("networks", "auto"))
    else:
        integrator = mi.load_dict({"type": kind, "max_depth": depth})
    seed = 0

    def picture(seed: Any) -> Any:
        return mi.render(loaded, integrator=integrator, seed=seed)

    if options.get("frozen"):
        picture = dr.freeze(picture)
    params = mi.traverse(loaded)
    wanted = [k for k in params.keys() if "weights" in k or "reflectance" in k]  # noqa: SIM118 - Mitsuba's own mapping

    def run() -> None:
        nonlocal seed
        seed += 1
        if options.get("gradient"):
            for k in wanted:
                dr.enable_grad(params[k])
                dr.clear_grad(params[k])
            dr.backward(dr.mean(mi.render(loaded, params, integrator=integrator, seed=seed), axis=None))
            dr.eval([dr.grad(params[k]) for k in wanted])
        elif options.get("evaluated"):
            symbolic = dr.JitFlag.SymbolicCalls, dr.JitFlag.SymbolicLoops
            with dr.scoped_set_flag(symbolic[0], False), dr.scoped_set_flag(symbolic[1], False):
                dr.eval(picture(seed))
        else:
            dr.eval(picture(dr.opaque(mi.UInt32, seed) if options.get("frozen") else seed))
        dr.sync_thread()

    evaluation = importlib.import_module("coopnet.engine.evaluate")  # the package has a function of that name
    mixed = tuple(row for row in EVALUATION if row.strategy != "separate blocks")
    with unittest.mock.patch.object(evaluation, "EVALUATION", mixed) if options.get("mixed") else nothing():
        times = common.kernel_times(run, repeat, warmup=2)
        dr.flush_malloc_cache()
        dr.detail.malloc_clear_statistics()
        before = dr.detail.malloc_watermark(dr.backend_v(mi.Float))
        run()
        times["bytes_per_path"] = (dr.detail.malloc_watermark(dr.backend_v(mi.Float)) - before) / (size**2 * spp)
        return times


def chosen(only: list[str]) -> list[str]:
    """Names of the rows that ``only`` asks for: of groups, or parts of names."""
    found: list[str] = []
    for part in only:
        found += list(GROUPS[part]) if part in GROUPS else [n for n in ROWS if part in n]
    return list(dict.fromkeys(found))


def main() -> None:
    args = common.arguments(
        __doc__,
        resolution=dict(type=int, help="width and height in pixels (128; 512 on CUDA)"),
        spp=dict(type=int, help="samples per pixel (16; 64 on CUDA)"),
        depth=dict(type=int, default=5, help="max_depth of the integrators"),
        only=dict(nargs="+", default=["pictures", "gradients"], metavar="WHAT",
                  help=f"{', '.join(GROUPS)}, or parts of the names of rows"),
        rounds=dict(type=int, default=3),
        repeat=dict(type=int, default=5, help="timed calls in each round"),
        quick=dict(action="store_true", help="small, once: does it run?"),
        name=dict(default="mitsuba_spheres", help="of the result file"),
    )  # fmt: skip
    mi.set_variant(f"{args.backend}_ad_rgb")
    size, spp = SIZES[args.backend]
    size, spp = args.resolution or size, args.spp or spp
    rounds, repeat = args.rounds, args.repeat
    if args.quick:
        size, spp, rounds, repeat = 16, 4, 1, 1
    names = chosen(args.only)
    times: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            times[name].append(measure(name, size, spp, args.depth, repeat))
            gc.collect()
            last = times[name][-1]
            print(f"{name:50} kernels {last['kernel_ms']:8.2f} ms, wall {last['wall_ms']:8.2f} ms", file=sys.stderr)
    rows = []
    for name in names:
        row = {k: statistics.median(t[k] for t in times[name]) for k in ("kernel_ms", "wall_ms")}
        rows.append({"row": name, **row, **{k: times[name][0][k] for k in ("compile_ms", "bytes_per_path")}})
    about = {"resolution": size, "spp": spp, "max_depth": args.depth, "rounds": rounds, "repeat": repeat}
    print(common.write(args.name, args.backend, {**about, "rows": rows}, args.out))


if __name__ == "__main__":
    main()
