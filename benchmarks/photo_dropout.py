"""Where dropout pays and where it does not: the task of ``examples/photo.py`` under several conditions.

Every condition is measured with weight decays and with rates of dropout, for several seeds. ``last`` is the PSNR on
held-out clean pixels after the last step, ``best`` that of the best of all steps that were looked at, ``mean`` that of
the mean over dropout masks after the last step, in dB. The gain is that of the last step with dropout over the best one
of the best decay, seed by seed. Areas of sparsification are those over that of a random order.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path
from typing import Any

import common
import numpy as np

import coopnet as cn

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "photo.py"
#: name -> fraction of the pixels, noise, width, encoding
CONDITIONS = {
    "few, noisy": (0.1, 0.1, 128, "sinusoidal"),
    "few": (0.1, 0.0, 128, "sinusoidal"),
    "noisy": (0.2, 0.1, 128, "sinusoidal"),
    "noisy, narrow": (0.2, 0.1, 32, "sinusoidal"),
    "noisy, hash grid": (0.2, 0.1, 64, "hashgrid"),
    "half, very noisy": (0.5, 0.2, 128, "sinusoidal"),
    "half": (0.5, 0.0, 128, "sinusoidal"),
}


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        conditions=dict(nargs="+", default=list(CONDITIONS), choices=list(CONDITIONS)),
        seeds=dict(nargs="+", type=int, default=[1, 2, 3]),
        decays=dict(nargs="+", type=float, default=[0.0, 1.0, 2.0, 4.0]),
        rates=dict(nargs="+", type=float, default=[0.1, 0.2, 0.3]),
        quick=dict(action="store_true", help="few steps, one seed: does it run?"),
    )
    example = load()
    if args.quick:
        args.seeds, args.decays, args.rates, example.MASKS = args.seeds[:1], args.decays[:1], args.rates[:1], 4
    steps = 24 if args.quick else example.STEPS
    rows = []
    for name in args.conditions:
        rows.append({"condition": name, **measure(example, args, CONDITIONS[name], steps)})
        print(f"{name}: {rows[-1]['gains']}", flush=True)
        results = {"steps": steps, "seeds": args.seeds, "conditions": rows}
        path = common.write("photo-dropout", args.backend, results, args.out)
    print("written to", path)


def load() -> Any:
    spec = importlib.util.spec_from_file_location("photo_example", EXAMPLE)
    assert spec and spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its data classes look for it
    spec.loader.exec_module(module)
    return module


def measure(example: Any, args: Any, condition: tuple, steps: int) -> dict[str, Any]:
    fraction, noise, width, encoding = condition
    truth = example.face()
    ways = [("decay", d) for d in args.decays] + [("dropout", p) for p in args.rates]
    rows: list[dict[str, Any]] = [{kind: value, "last": [], "best": []} for kind, value in ways]
    for (kind, value), row in zip(ways, rows, strict=True):
        for seed in args.seeds:
            task = example.task(truth, fraction, noise, seed)
            p, decay = (value, 0.0) if kind == "dropout" else (0.0, value)
            fit = example.learn(args.backend, task, field(example, encoding, width, p, fraction), seed, decay, steps)
            for k, v in fit.psnr.items():
                row.setdefault(k, []).append(round(float(v), 3))
            if kind == "dropout":
                for name, curve in example.judge(task, fit).items():
                    row.setdefault(f"area by {name}", []).append(round(curve.ause / curve.random, 4))
        print(f"  {row}", flush=True)
    plain = max((r for r in rows if "decay" in r), key=lambda r: statistics.mean(r["best"]))
    gains = {
        str(r["dropout"]): {k: summary(np.subtract(r[k], plain["best"])) for k in ("last", "mean")}
        for r in rows
        if "dropout" in r
    }
    return {
        "fraction": fraction, "noise": noise, "width": width, "encoding": encoding,
        "ways": rows, "best decay": plain["decay"], "gains": gains,
    }  # fmt: skip


def field(example: Any, encoding: str, width: int, p: float, fraction: float) -> cn.NeuralField:
    if encoding == "sinusoidal":
        return example.make(p, width)
    from coopnet import image

    return image.make_field(
        example.SIDE, example.SIDE, encoding=encoding, units=width, dropout=p, fraction=fraction
    )  # the library's own choice of levels


def summary(values: np.ndarray) -> list[float]:
    """Mean and standard deviation over seeds."""
    return [round(float(np.mean(values)), 3), round(float(np.std(values, ddof=1)), 3) if len(values) > 1 else 0.0]


if __name__ == "__main__":
    main()
