"""Learn a texture with all GPUs of a machine, or all cores, and go on where a killed run stopped.

    torchrun --nproc-per-node=4 --virtual-local-rank --max-restarts=3 examples/distributed.py
    torchrun --nproc-per-node=2 examples/distributed.py --backend llvm --samples 16384
    python examples/distributed.py --backend llvm --samples 16384

All three learn the same: the loss curve does not depend on the number of processes.
"""

from __future__ import annotations

import argparse
import os

import drjit as dr

import coopnet as cn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="auto", choices=["auto", "llvm", "cuda"])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--samples", type=int, default=1 << 20, help="in a batch, over all processes")
    parser.add_argument("--out", default="distributed.safetensors")
    options = parser.parse_args()

    grid = cn.HashGrid(2, n_levels=12, hashmap_size=2**16)
    field = cn.NeuralField(grid, cn.MLP(out_features=1, width=64, depth=2)).build(options.backend)
    ns = cn.backend.namespace(options.backend)

    @cn.training.by_index(options.samples)
    def batch(key):
        x, y = cn.uniform(2, key, ns.Float)
        return [x, y], [dr.sin(40 * x * x) * dr.cos(30 * y)]

    result = cn.fit(
        field, batch, options.steps, lr=cn.training.cosine(1e-2, options.steps), distributed="auto",
        checkpoint=options.out, resume=True, progress=False,
    )  # fmt: skip
    if int(os.environ.get("RANK", 0)) == 0:
        took = f"{result.steps} steps in {result.seconds:.1f} s"
        print(f"{took}, loss {result.losses[-1]:.2e}; {options.out} has the field")


if __name__ == "__main__":
    main()
