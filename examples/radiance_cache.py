"""Global illumination from short paths: a neural radiance cache against path tracing, at equal time.

Two scenes, the Cornell box as it comes with Mitsuba and one with glossy boxes on a glossy floor, are rendered by
Mitsuba's ``path`` integrator and by paths that end in a radiance cache (Mueller et al. 2021) after one bounce. Both add
up passes of a few samples per pixel for as long as the other one may. The time that the cache is trained for counts,
what Dr.Jit takes to compile either of them does not, and is printed. A reference of many samples says how far both are
off: the figure shows the relative mean squared error (relMSE) at every moment.

    python examples/radiance_cache.py [--size 512] [--seconds 30] [--quick]
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import drjit as dr
import mitsuba as mi
import numpy as np

import coopnet as cn

#: The longest paths of reference and ``path``; light that takes more bounces is a thousandth of the whole.
DEPTH = 64
SCENES = ("cornell", "glossy")
#: Seeds from here on are those of the reference.
REFERENCE = 1 << 20


def make_scene(name: str, size: int) -> Any:
    scene = mi.cornell_box()
    scene["sensor"]["film"] |= {"width": size, "height": size, "rfilter": {"type": "box"}}
    if name == "glossy":
        scene["large-box"]["bsdf"] = {"type": "roughconductor", "material": "Al", "alpha": 0.15}
        gold = {"type": "rgb", "value": [0.8, 0.5, 0.1]}
        scene["small-box"]["bsdf"] = {"type": "principled", "base_color": gold, "roughness": 0.25, "metallic": 0.8}
        squares = {"type": "checkerboard", "to_uv": mi.ScalarTransform4f().scale([6, 6, 1])}
        squares |= {f"color{i}": {"type": "rgb", "value": v} for i, v in enumerate(([0.6] * 3, [0.15, 0.15, 0.2]))}
        scene["floor"]["bsdf"] = {"type": "roughplastic", "alpha": 0.2, "diffuse_reflectance": squares}
    return mi.load_dict(scene)


def path_integrator() -> Any:
    return mi.load_dict({"type": "path", "max_depth": DEPTH})


def make_cache(scene: Any) -> Any:
    return cn.mitsuba.RadianceCache(scene)


class Renderer:
    """Pictures of a scene, traced by Python once: later ones replay a frozen function."""

    def __init__(self, scene: Any, integrator: Any, spp: int):
        self.scene, self.integrator, self.spp = scene, integrator, spp
        self.frozen = dr.freeze(
            lambda scene, integrator, seed: mi.render(scene, integrator=integrator, spp=spp, seed=seed),
            state_fn=lambda *args: dr.zeros(mi.BSDFPtr),  # materials of other scenes are traced, too
        )
        gc.collect()  # not while it records

    def __call__(self, seed: int) -> Any:
        return self.frozen(self.scene, self.integrator, dr.opaque(mi.UInt32, seed))


def mean(render: Renderer, first: int, passes: int) -> Any:
    """The mean of pictures of successive seeds, on the device."""
    total = render(first)
    for seed in range(first + 1, first + passes):
        total = total + render(seed)
        dr.eval(total)
    total = total / passes
    dr.eval(total)
    return total


def relmse(image: Any, halves: tuple[Any, Any]) -> float:
    """The mean squared error relative to the square of each pixel's value.

    ``halves`` are two independent references. The product of the differences from both has the square of the image's
    own error for its mean: the noise of the references is in none of its terms twice, and cancels.
    """
    a, b = halves
    errors = (image - a) * (image - b) / (dr.square(0.5 * (a + b)) + 0.01)
    return max(float(dr.mean(errors).array[0]), 1e-9)


class Moment(NamedTuple):
    """How far a picture was after so many seconds of work."""

    seconds: float
    spp: int
    error: float


def progress(render: Renderer, halves: tuple[Any, Any], spent: float, until: float) -> Iterator[tuple[Moment, Any]]:
    """Pass after pass, the mean of all so far; ``spent`` seconds have gone, and the last pass begins before ``until``.

    Only rendering is timed.
    """
    total, passes = dr.zeros(mi.TensorXf, halves[0].shape), 0
    dr.sync_thread()
    while spent < until or passes == 0:
        begin = time.perf_counter()
        total = total + render(passes)
        dr.eval(total)
        dr.sync_thread()
        spent, passes = spent + time.perf_counter() - begin, passes + 1
        yield Moment(spent, passes * render.spp, relmse(total / passes, halves)), total / passes


def timed(work: Callable[[], Any]) -> float:
    dr.sync_thread()
    begin = time.perf_counter()
    work()
    dr.sync_thread()
    return time.perf_counter() - begin


def compare(name: str, size: int, seconds: float, steps: int, samples: int, passes: int) -> dict[str, Any]:
    """Pictures and errors over time of both integrators, given ``seconds`` each."""
    scene = make_scene(name, size)
    cache = make_cache(scene)
    render = {"path": Renderer(scene, path_integrator(), 8), "cache": Renderer(scene, cache.integrator(vertices=1), 8)}
    print(f"{name}: reference of {passes * 8} samples per pixel", flush=True)
    half = max(1, passes // 2)
    halves = tuple(mean(render["path"], REFERENCE + i * half, half) for i in range(2))
    cold = timed(lambda: (cache.train(3, samples=samples), render["cache"](0)))
    print(f"  first steps and picture of the cache, compilation included: {cold:.1f} s")
    cache.reset()
    training = timed(lambda: cache.train(steps, samples=samples))
    found: dict[str, Any] = {"reference": 0.5 * (halves[0] + halves[1]), "training": training}
    for label, spent in (("path", 0.0), ("cache", training)):
        render[label](1)  # what a second call compiles
        moments = []
        for moment, image in progress(render[label], halves, spent, seconds):
            moments.append(moment)
            found[label] = moments, image
        note = f", {training:.1f} s of them training" if spent else ""
        print(f"  {label:5} {moment.seconds:6.1f} s{note}: {moment.spp} spp, relMSE {moment.error:.5f}", flush=True)
    return found


def shown(image: Any) -> np.ndarray:
    """8 bits of sRGB, near enough."""
    return (255 * np.clip(image.numpy(), 0, 1) ** (1 / 2.2) + 0.5).astype(np.uint8)


def draw(path: str, rows: dict[str, dict[str, Any]]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.3 * len(rows)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)  # no display needed
    axes = figure.subplots(len(rows), 4, squeeze=False)
    for row, (name, found) in zip(axes, rows.items(), strict=True):
        pictures = {"reference": found["reference"]}
        for label in ("path", "cache"):
            moments, image = found[label]
            pictures[f"{label}, {moments[-1].seconds:.1f} s, relMSE {moments[-1].error:.5f}"] = image
            row[3].loglog([m.seconds for m in moments], [m.error for m in moments], label=label)
        for axis, (title, image) in zip(row, pictures.items(), strict=False):
            axis.imshow(shown(image))
            axis.set_axis_off()
            axis.set_title(title, fontsize=9)
        row[3].axvspan(row[3].get_xlim()[0], found["training"], color="0.93", lw=0)
        row[3].set(xlabel="seconds (grey: training)", ylabel="relMSE")
        row[3].legend(fontsize=8, frameon=False)
        row[3].set_title(name, fontsize=9)
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto", help="llvm, cuda or auto")
    parser.add_argument("--scenes", nargs="+", default=list(SCENES), choices=SCENES, metavar="SCENE")
    parser.add_argument("--size", type=int, default=512, help="width and height of the pictures")
    parser.add_argument("--seconds", type=float, default=30.0, help="time of each integrator")
    parser.add_argument("--steps", type=int, default=600, help="of the training")
    parser.add_argument("--samples", type=int, help="paths per step: 2^12 on the CPU and 2^16 on a GPU")
    parser.add_argument("--passes", type=int, default=256, help="of 8 samples per pixel, for the reference")
    parser.add_argument("--quick", action="store_true", help="small and rough: seconds instead of minutes")
    parser.add_argument("--out", default="radiance_cache.png")
    args = parser.parse_args(arguments)
    if args.quick:
        args.size, args.seconds, args.steps, args.passes = 32, 0.5, 60, 32
    backend = cn.backend.require(args.backend)
    mi.set_variant(f"{backend}_ad_rgb")
    samples = args.samples or (1 << (16 if backend == "cuda" else 12))
    rows = {name: compare(name, args.size, args.seconds, args.steps, samples, args.passes) for name in args.scenes}
    draw(args.out, rows)
    print(args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
