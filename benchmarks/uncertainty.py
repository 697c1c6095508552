"""Monte Carlo dropout by the loop of ``cn.mc_dropout`` and by passes written one after the other, in one kernel each.

Compile times begin with empty caches. The loop is measured for growing numbers of masks in turn: they are no
part of its kernel, so only the first has anything to compile. Kernel times are without tracing, wall times with it.

And how well the error bars of ``examples/uncertainty.py`` are calibrated, as the example prints it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import common

common.empty_caches()

import coopnet as cn  # noqa: E402  # isort: skip
import drjit as dr  # noqa: E402

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "uncertainty.py"


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        widths=dict(nargs="+", type=int, default=[16, 64]),
        masks=dict(nargs="+", type=int, default=[2, 16, 64]),
        log2_samples=dict(type=int, default=14),
        steps=dict(type=int, help="training steps of the example"),
    )
    rows = []
    for width in args.widths:
        for masks in args.masks:
            rows.append({"width": width, "masks": masks, "samples": 1 << args.log2_samples})
            rows[-1] |= measure(args.backend, width, masks, 1 << args.log2_samples)
            for way in ("loop", "unrolled"):
                times = ", ".join(f"{name} {value:.1f}" for name, value in rows[-1][way].items())
                print(f"w={width} masks={masks:2} {way:8}: {times}", flush=True)
    results = {"passes": rows, "example": example(args.backend, args.steps)}
    print(results["example"])
    print("written to", common.write("uncertainty", args.backend, results, args.out))


def measure(backend: str, width: int, masks: int, samples: int) -> dict[str, Any]:
    ns = cn.backend.namespace(backend)
    field = cn.NeuralField(None, cn.MLP(12, 3, width=width, depth=2, dropout=0.1)).build(backend)
    x = [dr.linspace(ns.Float, 0.05 * k, 1, samples) for k in range(12)]
    key = cn.Key(1)
    dr.eval(x)

    def loop() -> Any:
        return cn.mc_dropout(field, x, key, masks)

    def unrolled() -> Any:
        passes = [field(x, key.fold_in(i)) for i in range(masks)]
        mean = [sum(y) / masks for y in zip(*passes, strict=True)]
        spread = [sum(dr.square(v - m) for v in y) for y, m in zip(zip(*passes, strict=True), mean, strict=True)]
        return mean, [dr.sqrt(s / masks) for s in spread]

    def timed(way: Any) -> dict[str, float]:
        def once() -> None:
            dr.eval(way())
            dr.sync_thread()

        return common.kernel_times(once, 5, 2)

    with dr.suspend_grad():
        results: dict[str, Any] = {"loop": timed(loop), "unrolled": timed(unrolled)}
        moments = []
        for way in (loop, unrolled):
            mean, deviation = way()
            dr.eval(mean, deviation)  # one kernel for each way, as timed
            moments.append([*mean, *deviation])
        results["difference"] = max(float(dr.max(abs(a - b))[0]) for a, b in zip(*moments, strict=True))
    return results


def example(backend: str, steps: int | None) -> dict[str, float]:
    spec = importlib.util.spec_from_file_location("uncertainty_example", EXAMPLE)
    assert spec and spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if steps is not None:
        module.STEPS = steps
    return module.study(backend)[-1]


if __name__ == "__main__":
    main()
