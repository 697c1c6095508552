"""A stack of materials as films nest them, against a network that has learned it: cost, noise, error at equal time.

    python benchmarks/material_stack.py --backend llvm [--quick] [--layers 8] [--counts 1,2,4,8] [--pictures FOLDER]
    python benchmarks/material_stack.py --backend cuda --counts 0 [--width 256] [--spp 4,16] [--seeds 5] [--steps 2000]

The stack blends layers by bitmaps: paint under a clear coat, metal under bumps, metal under a normal map, cloth. All of
their colors and roughnesses are bitmaps, made here. It is nested in two ways: as a ``"chain"``, where every layer lies
over all layers below it, and as a ``"tree"``, in which both parts of a blend have as many layers. Mitsuba evaluates all
layers at every vertex, and several times: a ``blendbsdf`` samples one part and then asks both for the density.

``costs`` has the time per sample and pixel of stacks in ``path``; ``networks`` that of decoders in ``neural_path`` and
``path``, whatever they have learned, and of one ``diffuse`` material, which is what paths cost by themselves.

``scene`` has one stack and the network that ``fit_bsdf`` makes of it. Each gets the time that the stack takes for a
number of samples, and the error of all seeds is against one converged picture of the *stack*, so that what the network
has not learned counts. Time is CPU time on LLVM, where other programs may run beside it, with Python's tracing; on CUDA
it is that of kernels. The training, and the compilation of kernels, are given and not counted.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import common
import drjit as dr
import mitsuba as mi
import numpy as np

import coopnet as cn

sys.path.append(str(Path(__file__).parent.parent / "examples"))
import neural_material as example

LATENT = 8
#: Decoders whose cost is measured: width, hidden layers, biases, and how lobes are found.
DECODERS = {
    "32 x 3": (32, 3, True, None),
    "32 x 3, lobes on a grid": (32, 3, True, 32),
    "32 x 3, no biases": (32, 3, False, None),
    "16 x 3": (16, 3, True, None),
    "64 x 3": (64, 3, True, None),
}


class Effort(NamedTuple):
    """Texels a side, width of the picture, samples to time by, of the reference and of the budgets; training."""

    texels: int = 128
    width: int = 96
    spp: int = 8
    converged: int = 2048
    budgets: tuple[int, ...] = (4, 16, 64, 256)
    seeds: int = 5
    steps: int = 2000
    samples: int = 1 << 14


QUICK = Effort(8, 16, 2, 8, (2,), 2, 20, 512)
#: A GPU is not filled by less.
GPU = Effort(256, 256, 32, 8192, (4, 16, 64, 256), 5, 2000, 1 << 16)


def bitmap(texels: np.ndarray) -> dict:
    return {"type": "bitmap", "bitmap": mi.Bitmap(np.atleast_3d(texels).astype(np.float32)), "raw": True}


def layer(i: int, n: int) -> dict:
    """Material ``i`` of a stack, with maps of ``n x n`` texels."""

    def noise(slope: float, k: int) -> np.ndarray:
        return example.noise(n, slope, 10 * i + k)[..., None]

    low, high = np.random.default_rng(100 + i).uniform(0.05, 0.8, (2, 3))
    principled = {
        "type": "principled",
        "base_color": bitmap(low + (high - low) * noise(1.4, 1)),
        "roughness": bitmap(0.25 + 0.4 * noise(1.2, 2)),
    }
    height = 0.004 * noise(1.6, 3)
    if i % 4 == 0:
        return principled | {"clearcoat": 1.0, "clearcoat_gloss": 0.85}
    if i % 4 == 1:
        metal = principled | {"metallic": bitmap(noise(1.6, 4))}
        return {"type": "bumpmap", "texture": bitmap(height), "bsdf": metal}
    if i % 4 == 3:
        return principled | {"sheen": 1.0}
    slopes = [-np.gradient(n * height[..., 0], axis=axis) for axis in (1, 0)]
    normal = np.dstack([*slopes, np.ones((n, n))])
    normal /= np.linalg.norm(normal, axis=2, keepdims=True)
    metal = {"type": "roughconductor", "material": "Cu", "alpha": bitmap(0.15 + 0.3 * noise(1.2, 4))}
    return {"type": "normalmap", "normalmap": bitmap(0.5 + 0.5 * normal), "bsdf": metal}


def stack(layers: range, n: int, kind: str) -> dict:
    """The ``layers`` blended by bitmaps, each on about as much of the surface as the others."""
    if len(layers) == 1:
        return layer(layers[0], n)
    split = layers[-1] if kind == "chain" else layers[len(layers) // 2]
    below, above = range(layers[0], split), range(split, layers[-1] + 1)
    weight = example.smooth(example.noise(n, 1.5, 1000 + split), len(below) / len(layers), 0.25)
    return {"type": "blendbsdf", "weight": bitmap(weight), "a": stack(below, n, kind), "b": stack(above, n, kind)}


def learn(reference: Any, decoder: str, n: int, folder: Path, **options: Any) -> tuple[dict, Any]:
    """The description of what a network learns of ``reference``, and the figures of its training."""
    width, depth, bias, resolution = DECODERS[decoder]
    field = cn.NeuralField(None, cn.MLP(LATENT + 8, 3, width=width, depth=depth, bias=bias))
    levels = dict(n_levels=1, n_features_per_level=LATENT, base_resolution=n + 1)
    grid = cn.Grid(2, "dense", init_scale=0.05, **levels)
    found = cn.mitsuba.fit_bsdf(field, reference, latent=grid, lobe_resolution=resolution, lr=1e-2, **options)
    path = folder / f"{len(list(folder.iterdir()))}.safetensors"
    found.bsdf.save(path)
    return {"type": "neural_bsdf", "filename": str(path)}, found


def networks(effort: Effort, backend: str, folder: Path, count: int | None) -> list[dict]:
    """Costs of a diffuse material and of ``count`` decoders, whatever they have learned."""
    plain = {"type": "diffuse", "reflectance": 0.6}
    rows = [{"what": "diffuse, path"} | View(plain, "path", effort.width, backend).cost(effort.spp)]
    for decoder in list(DECODERS)[:count]:
        material, _ = learn(mi.load_dict(plain), decoder, effort.texels, folder, steps=100, samples=4096)
        for kind in ("neural_path", "path") if decoder == "32 x 3" else ("neural_path",):
            cost = View(material, kind, effort.width, backend).cost(effort.spp)
            rows.append({"what": f"{decoder}, {kind}"} | cost)
            print(rows[-1], flush=True)
    return rows


class View:
    """A material on the ball and the floor of ``examples/neural_material.py``, seen by an integrator."""

    def __init__(self, material: dict, kind: str, width: int, backend: str):
        gc.collect()  # Dr.Jit traces the materials of all scenes that are alive
        self.scene = example.scene(material, width)
        self.integrator = mi.load_dict({"type": kind, "max_depth": 5})
        self.cuda = backend == "cuda"

    def __call__(self, spp: int, seed: int) -> tuple[np.ndarray, float]:
        """The picture and its milliseconds, of kernels on CUDA and of the CPU on LLVM."""
        with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
            dr.kernel_history_clear()
            start = time.process_time()
            image = mi.render(self.scene, integrator=self.integrator, spp=spp, seed=seed).numpy()
            cpu, history = 1e3 * (time.process_time() - start), dr.kernel_history()
        return image, sum(k["execution_time"] for k in history) if self.cuda else cpu

    def cost(self, spp: int, repeat: int = 5) -> dict[str, float]:
        """Milliseconds per sample and pixel of the whole picture, those that a picture takes besides, whatever its
        samples (Python's tracing), and the seconds until the first picture was there.
        """
        start = time.perf_counter()
        self(spp, 0)
        first = time.perf_counter() - start
        few, many = (float(np.median([self(n, 1 + i)[1] for i in range(repeat)])) for n in (spp, 5 * spp))
        slope = (many - few) / (4 * spp)
        return {"ms": slope, "ms_besides": few - slope * spp, "first_picture_s": first}

    def mean(self, spp: int) -> np.ndarray:
        """The picture of ``spp`` samples, in parts."""
        parts = [min(256, spp)] * -(-spp // 256)
        return np.mean([self(n, 1000 + i)[0] for i, n in enumerate(parts)], axis=0)


def equal_time(described: dict, learned: dict, effort: Effort, backend: str) -> tuple[dict, dict[str, np.ndarray]]:
    """Errors of the stack and of the network in the time of the stack, and pictures."""
    rows: dict[str, Any] = {}
    pictures: dict[str, np.ndarray] = {}
    for name, material, kind in (("stack", described, "path"), ("network", learned, "neural_path")):
        view = View(material, kind, effort.width, backend)
        row: dict[str, Any] = view.cost(effort.spp)
        pictures[f"{name}, converged"] = view.mean(effort.converged)
        truth = pictures["stack, converged"]
        slow = rows.setdefault("stack", row)
        row |= {"converged": example.error(pictures[f"{name}, converged"], truth), "equal_time": []}
        for budget in effort.budgets:
            ms = slow["ms_besides"] + slow["ms"] * budget
            spp = max(1, round((ms - row["ms_besides"]) / row["ms"]))
            images = [view(spp, 10 + seed)[0] for seed in range(effort.seeds)]
            errors = [example.error(image, truth) for image in images]
            found = {"ms": ms, "spp": spp, "relmse": float(np.mean(errors))}
            found["standard_error"] = float(np.std(errors, ddof=1) / len(errors) ** 0.5)
            row["equal_time"].append(found)
            if budget == effort.budgets[0]:
                pictures[f"{name}, {spp} spp"] = images[0]
        rows[name] = row
        print(f"{name:24} {row}", flush=True)
        del view
    return rows, pictures


def scene(layers: int, kind: str, effort: Effort, backend: str, folder: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Training of a network, and errors of the stack and of the network at equal time; pictures."""
    described = stack(range(layers), effort.texels, kind)
    start, cpu = time.perf_counter(), time.process_time()
    training = dict(steps=effort.steps, samples=effort.samples)
    learned, found = learn(mi.load_dict(described), "32 x 3", effort.texels, folder, **training)
    row = {"layers": layers, "kind": kind, "training_s": time.perf_counter() - start}
    row |= {"training_cpu_s": time.process_time() - cpu, "relative_error": found.relative_error}
    row |= {"albedo": found.albedo, "reference_albedo": found.reference_albedo}
    row |= {"spread": found.spread, "reference_spread": found.reference_spread}
    print(row, flush=True)
    del found
    row["ways"], pictures = equal_time(described, learned, effort, backend)
    return row, pictures


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def main() -> None:
    args = common.arguments(
        __doc__.split("\n")[0],
        layers={"default": "8", "help": "layers of the stacks in the scene, such as 8,16"},
        kind={"default": "tree", "choices": ("chain", "tree"), "help": "how it is nested"},
        counts={
            "default": "",
            "help": "numbers of layers whose cost is measured, such as 1,2,4; 0 for none, nor of networks",
        },
        width={"type": int, "help": "of the picture"},
        spp={"default": "", "help": "samples per pixel of the stack whose time both get, such as 4,16,64"},
        seeds={"type": int, "help": "pictures of which the mean error is taken"},
        steps={"type": int, "help": "of the training"},
        quick={"action": "store_true", "help": "small and hardly trained: does it run?"},
        pictures={"type": Path, "help": "folder to draw into"},
    )
    mi.set_variant(f"{args.backend}_ad_rgb")
    cn.mitsuba.register()
    effort = QUICK if args.quick else GPU if args.backend == "cuda" else Effort()
    given = {name: getattr(args, name) for name in ("width", "seeds", "steps")}
    given["budgets"] = tuple(numbers(args.spp))
    effort = effort._replace(**{name: value for name, value in given.items() if value})
    layers = [2] if args.quick else numbers(args.layers)
    counts = numbers(args.counts) or ([1, 2] if args.quick else [1, 2, 4, 8])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results: dict[str, Any] = {"effort": effort._asdict(), "costs": [], "networks": [], "scenes": []}
        drawn: list[np.ndarray] = []
        for n in filter(None, counts):
            for kind in ("chain", "tree") if n > 2 else ("tree",):
                view = View(stack(range(n), effort.texels, kind), "path", effort.width, args.backend)
                results["costs"].append({"layers": n, "kind": kind} | view.cost(effort.spp))
                print(results["costs"][-1], flush=True)
                del view
        if any(counts):
            results["networks"] = networks(effort, args.backend, folder, 1 if args.quick else None)
        for n in layers:
            row, pictures = scene(n, args.kind, effort, args.backend, folder)
            results["scenes"].append(row)
            drawn.append(np.concatenate(list(pictures.values()), axis=1))
            print(", ".join(pictures))
    print(common.write("material_stack", args.backend, results, args.out))
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
        picture = mi.TensorXf(np.concatenate(drawn).repeat(2, axis=0).repeat(2, axis=1))
        mi.util.write_bitmap(str(args.pictures / "material_stack.png"), picture, write_async=False)


if __name__ == "__main__":
    main()
