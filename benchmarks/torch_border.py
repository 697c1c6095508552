"""What it costs to train a field in PyTorch instead of ``coopnet.fit``, and what PyTorch takes for the same network.

    python benchmarks/torch_border.py --backend llvm

Wall times of whole steps: forward, mean squared error, backward, Adam, with the batch drawn beforehand (by ``fit``
within the step). "call" is one call of a field or module without gradients, "8 samples" a step with hardly anything to
compute. PyTorch has one thread or as many as there are cores; Dr.Jit always has those.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import common
import drjit as dr
import torch

import coopnet as cn
from coopnet.interop.torch import Module

#: Name -> (field, coordinates, outputs).
JOBS: dict[str, tuple[Callable[[], Any], int, int]] = {
    "hash grid, w=64": (
        lambda: cn.NeuralField(cn.HashGrid(2, n_levels=8, hashmap_size=2**15), cn.MLP(out_features=3, depth=2)), 2, 3,
    ),
    "network, w=64": (lambda: cn.NeuralField(None, cn.MLP(16, 3, depth=3)), 16, 3),
}  # fmt: skip


def fitted(field: Any, outputs: int, samples: int, repeat: int) -> float:
    """Seconds of a step of :func:`coopnet.fit`."""
    ns, looks = cn.backend.namespace(type(next(iter(field.values())))), []

    def batch(key: Any) -> Any:
        p = list(cn.uniform(field.in_features, key, ns.Float32, samples))
        return p, [dr.sin(6 * p[0] + i) for i in range(outputs)]

    def clock(_: Any) -> float:
        dr.sync_thread()
        looks.append(time.perf_counter())
        return 0.0

    cn.fit(field, batch, 5 * (repeat + 2), metric=clock, metric_every=5, progress=False, lr=1e-3)
    return statistics.median(b - a for a, b in itertools.pairwise(looks[1:])) / 5


def stepped(module: Any, x: torch.Tensor, target: torch.Tensor, repeat: int) -> float:
    """Seconds of a step of a module."""
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(module(x), target).backward()
        optimizer.step()
        wait(x)

    return common.median_seconds(step, repeat, 4)


def called(f: Callable[[], Any], x: torch.Tensor, repeat: int) -> float:
    """Seconds of a call without gradients."""

    def call() -> None:
        with torch.no_grad():
            y = f()
        dr.eval(y) if isinstance(y, dr.ArrayBase) else None
        dr.sync_thread()
        wait(x)

    return common.median_seconds(call, repeat, 4)


def wait(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def plain() -> Any:
    """:data:`JOBS`' network alone, of PyTorch's own layers."""
    layers: list[Any] = []
    for width in (16, 64, 64):
        layers += [torch.nn.Linear(width, 64, bias=False), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 3, bias=False))


class Wrapped(torch.nn.Module):
    """The field through ``drjit.wrap``, which traces it at every call."""

    def __init__(self, field: Any):
        super().__init__()
        self.field = field
        self.packed = torch.nn.ParameterList(torch.from_numpy(v.numpy().copy()) for v in field.values())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = (p.view(-1) for p in self.packed)  # parameters as such are none of its tensors
        return dr.wrap("torch", "drjit")(self.inside)(x.T.contiguous(), *packed).T

    def inside(self, x: Any, *packed: Any) -> Any:
        for name, value in zip(self.field, packed, strict=True):
            self.field[name] = value.array
        return self.field(x)


def measure(name: str, backend: str, samples: int, repeat: int) -> dict[str, Any]:
    make, inputs, outputs = JOBS[name]
    device = {"llvm": "cpu", "cuda": "cuda"}[backend]
    ns, row = cn.backend.namespace(backend), {"job": name, "samples": samples}
    x, target = torch.rand(samples, inputs, device=device), torch.rand(samples, outputs, device=device)
    field = make().build(backend, seed=1)
    module, wrapped = Module(field), Wrapped(make().build(backend, seed=1))
    inside = dr.freeze(lambda field, p: field(p))
    p = [ns.Float32(c.contiguous().cpu().numpy()) for c in x.T]
    row["field, call"] = called(lambda: inside(field, p), x, repeat)
    row["fit, step"] = fitted(field, outputs, samples, repeat)
    row["fit, 8 samples"] = fitted(field, outputs, 8, 10 * repeat)
    for threads in sorted({1, os.cpu_count() or 1} if backend == "llvm" else {1}):
        torch.set_num_threads(threads)
        also = f", {threads} threads" if backend == "llvm" else ""
        row[f"module, call{also}"] = called(lambda: module(x), x, repeat)
        row[f"module, step{also}"] = stepped(module, x, target, repeat)
        row[f"module, 8 samples{also}"] = stepped(module, x[:8], target[:8], 10 * repeat)
        if backend == "llvm":
            row[f"drjit.wrap, step{also}"] = stepped(wrapped, x, target, repeat)
            row[f"drjit.wrap, 8 samples{also}"] = stepped(wrapped, x[:8], target[:8], 10 * repeat)
        if inputs == 16:
            other = plain().to(device)
            row[f"PyTorch, call{also}"] = called(lambda other=other: other(x), x, repeat)
            row[f"PyTorch, step{also}"] = stepped(other, x, target, repeat)
            row[f"PyTorch, 8 samples{also}"] = stepped(other, x[:8], target[:8], 10 * repeat)
    return {k: v if isinstance(v, (str, int)) else round(1e3 * v, 4) for k, v in row.items()}


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        log2_samples=dict(type=int, default=17, help="of a batch"),
        repeat=dict(type=int, default=15, help="runs of which the median is taken"),
    )
    rows = []
    for name in JOBS:
        rows.append(measure(name, args.backend, 1 << args.log2_samples, args.repeat))
        for what, value in rows[-1].items():
            print(f"{what:32} {value if isinstance(value, str) else f'{value:g}'}", file=sys.stderr)
    print(common.write("torch-border", args.backend, {"unit": "ms", "jobs": rows}, args.out))


if __name__ == "__main__":
    main()
