"""Whole training jobs by ``coopnet.fit``: wall time of a step, what of it is kernels, the first step, and memory.

    python benchmarks/whole_jobs.py --backend cuda
    python benchmarks/whole_jobs.py --backend cuda --jobs config_hash --image albert.jpg --tcnn tiny-cuda-nn

``config_hash`` and ``config_oneblob`` are tiny-cuda-nn's sample configurations of these names, learning an image: that
of ``--image``, or a made-up one; with ``/stratified``, at ``coopnet.stratified`` points instead of uniform ones, which
tiny-cuda-nn's sample draws. The others are networks 16 -> w -> w -> w -> 3 on inputs and targets in memory, by
width, batch, and what they have: ``64/bias``, ``32/dropout``, ``64/2^14``, ``64/2^20+77``, ``128/silu``. Medians of
several stretches of steps; kernels in a run of their own, as measuring them takes time. Kernel caches are empty at the
start; the first step of a job finds what jobs before it have compiled, if that is the same. With ``--tcnn``,
tiny-cuda-nn's own sample does the same job (see ``tcnn.py``).
"""

from __future__ import annotations

import itertools
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np
import tcnn

common.empty_caches()

import drjit as dr  # noqa: E402  # isort: skip
import coopnet as cn  # noqa: E402
from coopnet.engine import FUNCTIONS  # noqa: E402
from coopnet.training.step import Step  # noqa: E402

ADAM = {"otype": "Adam", "learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.99}
CONFIGS: dict[str, dict[str, Any]] = {
    "config_hash": {
        "loss": {"otype": "RelativeL2"},
        "optimizer": ADAM | {"epsilon": 1e-15, "l2_reg": 1e-6},
        "encoding": {
            "otype": "HashGrid", "n_levels": 16, "n_features_per_level": 2, "log2_hashmap_size": 15,
            "base_resolution": 16, "per_level_scale": 1.5,
        },
        "network": {"otype": "FullyFusedMLP", "activation": "ReLU", "n_neurons": 64, "n_hidden_layers": 2},
    },
    "config_oneblob": {
        "loss": {"otype": "RelativeL2"},
        "optimizer": ADAM | {"epsilon": 1e-8, "l2_reg": 1e-8},
        "encoding": {"otype": "OneBlob", "n_bins": 64},
        "network": {"otype": "FullyFusedMLP", "activation": "ReLU", "n_neurons": 128, "n_hidden_layers": 5},
    },
}  # fmt: skip
DROPOUTS = {
    "dropout": cn.Dropout(0.1), "dropout 7 8": cn.Dropout(0.1, bits=8, rounds=7), "gaussian": cn.GaussianDropout(0.1),
    "concrete": cn.ConcreteDropout(0.1),
}  # fmt: skip
JOBS = {
    "cuda": [
        "config_hash", "config_hash/stratified", "config_oneblob", "16", "32", "64", "96", "128", "32/bias", "64/bias",
        "256", "64/2^20+77", "64/2^14", "64/2^12", "64/silu", "64/gelu", "64/softplus", "64/squareplus", "64/sine",
        "128/silu", "128/sine", "32/dropout", "64/dropout", "64/dropout 7 8", "96/dropout", "128/dropout",
        "64/silu/dropout",
    ],
    "llvm": [
        "config_hash", "config_hash/stratified", "16", "32", "64", "128", "64/bias", "64/2^12", "64/2^14", "64/dropout",
    ],
}  # fmt: skip
#: Samples of a step, as powers of two: of the images, of the networks.
SAMPLES = {"cuda": (18, 20), "llvm": (16, 17)}
#: Steps between two looks at the clock, and stretches that are looked at, on a GPU and on the CPU.
STRETCH, LOOKS = {"cuda": 200, "llvm": 20}, {"cuda": 9, "llvm": 5}
#: Steps in which the configurations learn the picture of ``--image``, and that are planned in other jobs.
WHOLE = 10_000


def image(path: Path | None) -> np.ndarray:
    """Linear RGB ``(height, width, 3)``, by the rule of tiny-cuda-nn's sample."""
    if path is None:
        y, x = np.mgrid[0:1024, 0:1024] / 1024.0
        waves = [np.sin(40 * x * (c + 1)) * np.cos(31 * y + c) + np.sin(300 * x * y) for c in range(3)]
        return (np.stack(waves, axis=-1) / 4 + 0.5).astype(np.float32)
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    found = np.asarray(Image.open(path).convert("RGB"), np.float32) / 255
    return found**2.2


def config_of(name: str) -> str | None:
    """The configuration that a job is of, if it is of one."""
    return name.partition("/")[0] if name.partition("/")[0] in CONFIGS else None


def make(name: str, backend: str, path: Path | None, seed: int = 1) -> tuple[Any, Any, dict[str, Any], int]:
    """A new field, its batches, options of ``fit``, and the samples of a step."""
    module = cn.backend.namespace(backend)
    if config_of(name):
        config = cn.from_config(2, 3, CONFIGS[config_of(name)])
        field, samples = config.field.build(backend, seed=seed), 1 << SAMPLES[backend][0]
        draw = cn.stratified if name.endswith("/stratified") else cn.uniform
        texture = module.Texture2f(module.TensorXf(image(path)), wrap_mode=dr.WrapMode.Clamp)

        def pixels(key: Any) -> Any:
            p = draw(2, key, module.Float, samples)
            color = texture.eval(module.Array2f(p))
            return p, [color[0], color[1], color[2]]

        return field, pixels, config.fit_arguments(field) | {"seed": seed}, samples
    width, *parts = name.split("/")
    samples, options = 1 << SAMPLES[backend][1], {}
    for part in parts:
        if size := re.fullmatch(r"2\^(\d+)([+-]\d+)?", part):
            samples = (1 << int(size[1])) + int(size[2] or 0)
        elif part == "bias":
            options["bias"] = True
        elif part in FUNCTIONS:
            options["activation"] = part
        else:
            options["dropout"] = DROPOUTS[part]
    field = cn.NeuralField(None, cn.MLP(16, 3, width=int(width), depth=3, **options)).build(backend, seed=1)
    leaf = module.Float16 if backend == "cuda" else module.Float
    inputs = [leaf(v) for v in cn.uniform(16, cn.Key(3), module.Float, samples)]
    targets = [dr.sin(6 * module.Float(v)) for v in inputs[:3]]
    dr.eval(inputs, targets)
    return field, lambda key: (inputs, targets), {"lr": 1e-3}, samples


def time_first_step(look: Callable[[float], Any]) -> None:
    """Call ``look`` after the next step, with its seconds."""
    call = Step.__call__

    def first(step: Step, *args: Any) -> None:
        start = time.perf_counter()
        call(step, *args)
        dr.sync_thread()
        look(time.perf_counter() - start)
        Step.__call__ = call  # type: ignore[method-assign]

    Step.__call__ = first  # type: ignore[method-assign]


def measure(
    name: str, backend: str, path: Path | None, steps: int | None, seeds: int, planned: int
) -> dict[str, Any]:  # fmt: skip
    if config_of(name) and path is not None:
        steps = steps or WHOLE
    field, batch, options, samples = make(name, backend, path)
    looks: list[float] = []
    firsts: list[float] = []
    stretch = STRETCH[backend]

    def clock(field: Any) -> float:
        dr.sync_thread()
        looks.append(time.perf_counter())
        return 0.0

    dr.flush_malloc_cache()
    dr.detail.malloc_clear_statistics()
    before = dr.detail.malloc_watermark(dr.backend_v(type(field["network.weights"])))
    time_first_step(firsts.append)
    # a long run that is ended early: what is worth compiling depends on the number of steps
    ends: dict[str, Any] = {} if steps else {"patience": LOOKS[backend]}
    ends |= {"metric": clock, "metric_every": stretch, "progress": False}
    result = cn.fit(field, batch, steps or planned, **ends, **options)
    row = {"job": name, "samples": samples, "first_step_s": firsts[0], "loss": result.losses[-1]}
    row["peak_bytes"] = dr.detail.malloc_watermark(dr.backend_v(type(field["network.weights"]))) - before
    row["wall_ms"] = statistics.median([(b - a) * 1e3 / stretch for a, b in itertools.pairwise(looks)])
    row |= {"steps": result.steps, "skipped": result.skipped, "recordings": result.recordings}
    if config_of(name) and path is not None:
        row["psnr_db"] = statistics.median(
            found := [psnr(field, path, backend), *others(name, backend, path, steps, seeds)]
        )
        row["psnr_db_of_runs"] = found
    return row | kernels(name, backend, path, planned)


def others(name: str, backend: str, path: Path | None, steps: int, seeds: int) -> list[float]:
    """The quality that other seeds come to."""
    found = []
    for seed in range(2, seeds + 1):
        field, batch, options, _ = make(name, backend, path, seed)
        cn.fit(field, batch, steps, progress=False, **options)
        found.append(psnr(field, path, backend))
    return found


def kernels(name: str, backend: str, path: Path | None, planned: int) -> dict[str, float]:
    """Time of the kernels of a step, and how many: of runs of different length, so that what looks cost cancels."""
    found = []
    for steps in (10, 20):
        field, batch, options, _ = make(name, backend, path)
        with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
            ends = {"metric": lambda field: 0.0, "metric_every": steps, "patience": 1}
            for _ in range(2):
                dr.kernel_history_clear()
                cn.fit(field, batch, planned, progress=False, **ends, **(options | fresh(name, field)))
            history = dr.kernel_history()
            dr.kernel_history_clear()
        found.append((sum(k["execution_time"] for k in history), len(history)))
    (short, few), (long, many) = found
    return {"kernel_ms": (long - short) / 20, "launches": (many - few) / 20}  # two stretches each


def fresh(name: str, field: Any) -> dict[str, Any]:
    """Options with an optimizer of their own."""
    config = config_of(name)
    return cn.from_config(2, 3, CONFIGS[config]).fit_arguments(field) if config else {}


def psnr(field: Any, path: Path, backend: str) -> float:
    """Of all pixels as 8-bit numbers, which tiny-cuda-nn's sample writes."""
    truth = image(path)
    module, (height, width, _) = cn.backend.namespace(backend), truth.shape
    seen = np.empty_like(truth)
    for rows in np.array_split(np.arange(height), max(1, height * width >> 20)):
        y, x = np.meshgrid((rows + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij")
        colors = field([module.Float(x.ravel().astype(np.float32)), module.Float(y.ravel().astype(np.float32))])
        seen[rows] = np.stack([v.numpy() for v in colors], axis=-1).reshape(len(rows), width, 3)
    shown, original = (np.floor(np.clip(v, 0, 1) ** (1 / 2.2) * 255 + 0.5) for v in (seen, truth))
    return tcnn.quality(shown, original)


def peer(source: Path, name: str, path: Path, steps: int, runs: int) -> dict[str, Any] | None:
    """What tiny-cuda-nn takes, if it can be built here."""
    why = tcnn.missing(source)
    if why:
        print(f"tiny-cuda-nn is left out: {why}", file=sys.stderr)
        return None
    program = tcnn.build(source)
    rows = [tcnn.measure(program, CONFIGS[name], path, steps) for _ in range(runs)]
    found = [row["psnr_db"] for row in rows]
    return {"job": name} | rows[0] | {"psnr_db": statistics.median(found), "psnr_db_of_runs": found}


def main() -> None:
    args = common.arguments(
        __doc__,
        jobs=dict(nargs="+", metavar="JOB", help="as above"),
        image=dict(type=Path, help="what the configurations learn"),
        steps=dict(type=int, help="how many to take, for all jobs"),
        planned=dict(type=int, default=WHOLE, help="how many to announce; runs of networks are ended early"),
        seeds=dict(type=int, default=1, help="runs of the configurations whose pictures are compared with --image"),
        tcnn=dict(type=Path, metavar="SOURCE", help="a source tree of tiny-cuda-nn to build and compare with"),
    )
    rows: list[dict[str, Any]] = []
    for name in args.jobs or JOBS[args.backend]:
        if args.tcnn and args.image and name in CONFIGS and args.backend == "cuda":
            rows += [row for row in [peer(args.tcnn, name, args.image, args.steps or WHOLE, args.seeds)] if row]
        row = measure(name, args.backend, args.image, args.steps, args.seeds, args.planned)
        rows.append(row | {"planned": args.planned})
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}, file=sys.stderr, flush=True)
        common.write("whole-jobs", args.backend, rows, args.out)  # what there is, should the next one not end
    print(args.out / f"whole-jobs-{args.backend}.json")


if __name__ == "__main__":
    main()
