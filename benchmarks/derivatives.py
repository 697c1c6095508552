"""What derivatives with respect to the input cost, in evaluations of the field.

For networks of softplus, of ReLU, and behind an encoding, kernel times of ``value_and_grad`` and ``jvp`` and of one
training step on an eikonal loss, beside a plain call and a training step on values, in the same process. For one of the
fields also the other ways to that step: differences instead of exact gradients, and Dr.Jit's own operations.
"""

from __future__ import annotations

import common

import coopnet as cn  # isort: skip
import drjit as dr

FIELDS = {
    "softplus": lambda width: cn.NeuralField(None, cn.MLP(3, 1, width=width, depth=3, activation="softplus")),
    "relu": lambda width: cn.NeuralField(None, cn.MLP(3, 1, width=width, depth=3)),
    "sinusoidal, silu": lambda width: cn.NeuralField(
        cn.Sinusoidal(4, in_features=3), cn.MLP(-1, 1, width=width, depth=2, activation="silu")
    ),
    "sinusoidal, softplus": lambda width: cn.NeuralField(
        cn.Sinusoidal(4, in_features=3), cn.MLP(-1, 1, width=width, depth=3, activation="softplus")
    ),
}
#: The field whose eikonal step is measured in other ways, too.
COMPARED = "sinusoidal, softplus"
#: Widest network whose training steps are measured on CUDA; those of wider ones compile long.
WITH_STEPS = 64


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        fields=dict(nargs="+", default=list(FIELDS), choices=list(FIELDS), metavar="FIELD"),
        widths=dict(nargs="+", type=int, default=[32, 64]),
        log2_samples=dict(type=int, help="16 on LLVM, 20 on CUDA unless given"),
    )
    ns = cn.backend.namespace(args.backend)
    samples = 1 << (args.log2_samples or (20 if args.backend == "cuda" else 16))
    rows = []
    for name in args.fields:
        for width in args.widths:
            row = {"field": name, "width": width, "inputs": 3, "samples": samples}
            steps = args.backend == "llvm" or width <= WITH_STEPS
            row |= measure(ns, FIELDS[name](width).build(args.backend), samples, steps, name == COMPARED)
            rows.append(row)
            ratios = {k: round(row[k] / row["call"], 2) for k in ("value_and_grad", "jvp")}
            if steps:
                ratios["eikonal step / value step"] = round(row["eikonal step"] / row["value step"], 2)
            print(f"{name:20} w={width}: call {row['call']:.3f} ms; in calls: {ratios}", flush=True)
    print("written to", common.write("derivatives", args.backend, rows, args.out))


def measure(ns, field, samples: int, steps: bool, compare: bool) -> dict[str, float]:
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

    def built_in_step(field, p, scale):
        with cn.gradient_path("builtin"):
            return eikonal_step(field, p, scale)

    def differences_step(field, p, scale):
        weights = field["network.weights"]
        dr.disable_grad(weights)
        dr.enable_grad(weights)
        dr.backward(dr.square(dr.norm(cn.numerical_gradient(field, p, 0.01)) - 1) * scale)
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
    }
    if steps:
        programs |= {"value step": (value_step, p), "eikonal step": (eikonal_step, p)}
    if compare:
        programs |= {
            "numerical_gradient": (lambda field, p, scale: cn.numerical_gradient(field, p, 0.01), p),
            "eikonal step, built-in path": (built_in_step, p),
            "eikonal step, numerical_gradient": (differences_step, p),
        }
    found = {}
    for name, (program, argument) in programs.items():
        run = dr.freeze(program)

        def once(run=run, argument=argument):
            dr.eval(run(field, argument, scale))
            dr.sync_thread()

        once()  # records
        repeat = int(1000 / common.kernel_times(once, 1, 1)["wall_ms"])
        found[name] = common.kernel_times(once, max(3, min(repeat, 31)), 1)["kernel_ms"]
        dr.disable_grad(weights)
    return found


if __name__ == "__main__":
    main()
