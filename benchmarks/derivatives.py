"""What derivatives with respect to the input cost, in evaluations of the field.

For networks of softplus and of ReLU and for a hash grid, kernel times of ``value_and_grad`` and ``jvp`` and of one
training step on an eikonal loss, beside a plain call and a training step on values, in the same process.
"""

from __future__ import annotations

import statistics

import common

import coopnet as cn  # isort: skip
import drjit as dr

FIELDS = {
    "softplus": lambda width: cn.NeuralField(None, cn.MLP(3, 1, width=width, depth=3, activation="softplus")),
    "relu": lambda width: cn.NeuralField(None, cn.MLP(3, 1, width=width, depth=3)),
    "sinusoidal, silu": lambda width: cn.NeuralField(
        cn.Sinusoidal(4, in_features=3), cn.MLP(-1, 1, width=width, depth=2, activation="silu")
    ),
}


def main() -> None:
    args = common.arguments(__doc__ or "")
    ns = cn.backend.namespace(args.backend)
    samples = 1 << (20 if args.backend == "cuda" else 16)
    rows = []
    for name, make in FIELDS.items():
        for width in (32, 64):
            row = {"field": name, "width": width, "inputs": 3, "samples": samples}
            row |= measure(ns, make(width).build(args.backend), samples)
            rows.append(row)
            ratios = {k: round(row[k] / row["call"], 2) for k in ("value_and_grad", "jvp")}
            ratios["eikonal step / value step"] = round(row["eikonal step"] / row["value step"], 2)
            print(f"{name:18} w={width}: call {row['call']:.3f} ms; in calls: {ratios}", flush=True)
    print("written to", common.write("derivatives", args.backend, rows, args.out))


def measure(ns, field, samples: int) -> dict[str, float]:
    weights = field["network.weights"]

    def value_step(field, p, scale):
        weights = field["network.weights"]
        dr.disable_grad(weights)
        dr.enable_grad(weights)
        dr.backward(dr.square(field(p)[0] - 0.5) * scale)
        return dr.grad(weights)

    def eikonal_step(field, p, scale):
        weights = field["network.weights"]
        dr.disable_grad(weights)
        dr.enable_grad(weights)
        _, slope = field.value_and_grad(p)
        dr.backward(dr.square(dr.norm(slope) - 1) * scale)
        return dr.grad(weights)

    p = ns.Array3f(*[dr.linspace(ns.Float, 0.1 + 0.1 * k, 0.9, samples) for k in range(3)])
    v = ns.Array3f(*[dr.full(ns.Float, k + 1, samples) + ns.Float(0) for k in range(3)])
    scale = dr.opaque(ns.Float, 2**10 / samples)
    dr.eval(p, v)
    dr.disable_grad(weights)
    programs = {
        "call": (lambda field, p, scale: field(p), p),
        "value_and_grad": (lambda field, p, scale: field.value_and_grad(p), p),
        "jvp": (lambda field, pv, scale: field.jvp(*pv), (p, v)),
        "value step": (value_step, p),
        "eikonal step": (eikonal_step, p),
    }
    found = {}
    for name, (program, argument) in programs.items():
        run = dr.freeze(program)

        def once(run=run, argument=argument):
            dr.eval(run(field, argument, scale))
            dr.sync_thread()

        times = []
        with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
            for i in range(3 + 9):
                dr.kernel_history_clear()
                once()
                if i >= 3:
                    times.append(sum(k["execution_time"] for k in dr.kernel_history()))
            dr.kernel_history_clear()
        found[name] = statistics.median(times)
        dr.disable_grad(weights)
    return found


if __name__ == "__main__":
    main()
