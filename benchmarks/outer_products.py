"""What sums of outer products take within a kernel, by shape, number of banks, and which warps share a bank.

    python benchmarks/outer_products.py --backend cuda

Vectors are made from the number of the lane, and nothing else is computed. In ``blocks``, neighbouring samples share a
bank; by ``turns``, neighbouring warps take different ones, as coopnet's do. Kernel times, the shortest of several.
"""

from __future__ import annotations

import sys

import common

common.empty_caches()

import drjit as dr  # noqa: E402  # isort: skip
import drjit.nn as drnn  # noqa: E402

import coopnet as cn  # noqa: E402
from coopnet.engine.affine import Affine, Weights  # noqa: E402
from coopnet.jit import views  # noqa: E402

#: Samples, as a power of two, and launches.
SAMPLES, LAUNCHES = {"cuda": 20, "llvm": 12}, 4
SHAPES = [
    "64x64", "64x32", "64x16", "16x64", "32x32", "32x16", "16x16",
    "64x8", "32x8", "16x8", "3x16", "3x32", "24x24", "24x32", "40x40", "40x64", "48x8", "48x16",
]  # fmt: skip
BANKS = (16, 256)


def measure(backend: str, shape: tuple[int, int], times: int, banks: int, order: str) -> float:
    """Milliseconds of a kernel that adds up ``times`` outer products of ``shape`` for every sample."""
    module, samples = cn.backend.namespace(backend), 1 << SAMPLES[backend]
    leaf, tensor = (module.Float16, module.TensorXf16) if backend == "cuda" else (module.Float, module.TensorXf)
    view = drnn.pack(dr.zeros(tensor, shape), layout="training")
    found = []
    for _ in range(LAUNCHES):
        sums = [[dr.opaque(leaf, 0, dr.width(view.buffer)) for _ in range(times)] for _ in range(banks)]
        buffers = [[leaf(v) for v in row] for row in sums]
        dr.enable_grad(buffers)
        dr.set_grad(buffers, sums)
        del sums
        lane = dr.arange(module.UInt32, samples)
        bank = lane // (samples // banks) if order == "blocks" else lane // 32 % banks

        def body(k: int, buffers: list = buffers) -> object:
            def add(value: object) -> object:
                for buffer in buffers[k]:
                    x = drnn.CoopVec([value * (i + 1) for i in range(shape[1])])
                    dy = drnn.CoopVec([value * (i - 3) for i in range(shape[0])])
                    Affine(Weights(views.changed(view, buffer=buffer))).add_outer(dy, x, False)
                return value

            return add

        with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
            dr.kernel_history_clear()
            dr.eval(dr.switch(bank, [body(k) for k in range(banks)], leaf(lane & 7) * 0.125))
            dr.sync_thread()
            found.append(max(kernel["execution_time"] for kernel in dr.kernel_history()))
    return min(found)


def main() -> None:
    args = common.arguments(__doc__, shapes=dict(nargs="+", default=SHAPES, metavar="NxM"))
    rows = []
    for height, width in (map(int, shape.split("x")) for shape in args.shapes):
        for times in (1, 3):
            for banks in BANKS:
                for order in ("blocks", "turns"):
                    ms = measure(args.backend, (height, width), times, banks, order)
                    row = {"shape": [height, width], "times": times, "banks": banks, "order": order}
                    rows.append(row | {"samples": 1 << SAMPLES[args.backend], "kernel_ms": ms})
                    print(rows[-1], file=sys.stderr, flush=True)
    print(common.write("outer-products", args.backend, rows, args.out))


if __name__ == "__main__":
    main()
