"""What masks that are drawn again are for: replay, chunks, memory, and the same masks elsewhere.

    python benchmarks/replayed_adjoint.py --backend llvm

``replay``: the two passes of ``examples/replayed_adjoint.py`` with the same key in both, and with another one in the
adjoint pass, as from a generator that has gone on meanwhile. Gradients are compared with those of one differentiated
pass, before training and after it (of the field trained with the same masks), over several batches: ``largest`` is the
largest difference over the largest entry, at its worst, ``error`` the length of the difference over the gradient's, and
``cosine`` that of the angle between them, medians. ``trained`` has what either way of training leads to.

``chunks``: the gradient of a batch at once, and added up over chunks whose keys have the numbers of their samples.

``memory``: peak bytes of Dr.Jit's allocator in a training step beyond what was there before, with and without dropout.
``byte_masks`` is what a byte for each element of the step's masks would take, and ``torch_saved`` what PyTorch keeps
for its backward pass, where it is installed.

``masks``: elements of masks that differ between the backend and NumPy.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import drjit as dr
import numpy as np
from drjit.opt import Adam

import coopnet as cn

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "replayed_adjoint.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("replayed_adjoint_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load()


# ---- Gradients ---------------------------------------------------------------------------------------------


def gradient(field: cn.NeuralField, run: Callable[[], None]) -> np.ndarray:
    """All gradients of the field's parameters that ``run`` adds up, as one vector."""
    parameters = list(field.values())
    dr.enable_grad(*parameters)
    dr.clear_grad(*parameters)
    run()
    return np.concatenate([dr.grad(v).numpy().ravel() for v in parameters]).astype(np.float64)


def compare(found: np.ndarray, right: np.ndarray) -> dict[str, float]:
    lengths = np.linalg.norm(found) * np.linalg.norm(right)
    return {
        "largest": float(abs(found - right).max() / abs(right).max()),
        "error": float(np.linalg.norm(found - right) / np.linalg.norm(right)),
        "cosine": float(found @ right / lengths),
    }


def gradients(field: cn.NeuralField, backend: str, seed: int, samples: int, batches: int) -> dict[str, Any]:
    """Those of the two passes, by way, against those of one."""
    rows: dict[str, list[dict[str, float]]] = {way: [] for way in example.WAYS}
    for step in range(batches):
        p = cn.uniform(2, cn.Key(400 + seed, step=step), cn.backend.namespace(backend).Float, samples)
        dr.eval(p)
        key, other = cn.Key(500 + seed, step=step), cn.Key(600 + seed, step=step)
        right = gradient(field, functools.partial(example.differentiate, field, p, key))
        for way, adjoint in zip(example.WAYS, (key, other), strict=True):
            run = functools.partial(example.replay, field, p, samples, key, adjoint)
            rows[way].append(compare(gradient(field, run), right))
    return {way: median(found) | {"largest": max(row["largest"] for row in found)} for way, found in rows.items()}


def replay(backend: str, seeds: list[int], steps: int, samples: int, batches: int) -> dict[str, Any]:
    each = []
    for seed in seeds:
        before = gradients(example.make(backend, seed), backend, seed, samples, batches)
        fields = {way: example.train(backend, seed, same, steps) for way, same in example.WAYS.items()}
        after = gradients(fields["same masks"], backend, seed, samples, batches)
        trained = {way: example.quality(field, backend) for way, field in fields.items()}
        each.append({"seed": seed, "before": before, "after": after, "trained": trained})
    return {"steps": steps, "samples": samples, "batches": batches, "each": each, "median": median(each)}


def median(rows: list[Any]) -> Any:
    """Of rows with numbers at the same places, the median at each."""
    if isinstance(rows[0], dict):
        return {name: median([row[name] for row in rows]) for name in rows[0] if name != "seed"}
    return statistics.median(rows)


def chunks(backend: str, samples: int, count: int) -> dict[str, Any]:
    ns = cn.backend.namespace(backend)
    field, each = example.make(backend, 1), samples // count
    p = cn.uniform(2, cn.Key(7), ns.Float, samples)
    dr.eval(p)

    def loss(p: Any, key: cn.Key) -> Any:
        return dr.sum(dr.square(field(p, key)[0] - example.truth(p))) / samples

    def at_once() -> None:
        dr.backward(loss(p, cn.Key(8)))

    def in_chunks() -> None:
        for i in range(count):
            number = dr.arange(ns.UInt32, each) + dr.opaque(ns.UInt32, i * each)
            dr.backward(loss([dr.gather(ns.Float, v, number) for v in p], cn.Key(8, index=number)))

    right = gradient(field, at_once)
    return {"samples": samples, "chunks": count, **compare(gradient(field, in_chunks), right)}


# ---- Memory ------------------------------------------------------------------------------------------------


def taken(backend: str) -> int:
    return dr.detail.malloc_watermark(dr.JitBackend.CUDA if backend == "cuda" else dr.JitBackend.LLVM)


def in_use(backend: str) -> int:
    """Bytes in use; from here on, the watermark is the peak of what comes (``tests/engine/test_memory.py``)."""
    gc.collect()
    dr.sync_thread()
    dr.flush_malloc_cache()
    dr.detail.malloc_clear_statistics()
    return taken(backend)


def peak(backend: str, samples: int, dropout: float) -> int:
    """Of a frozen training step, once it is compiled."""
    ns = cn.backend.namespace(backend)
    field = example.make(backend, 1, dropout)
    opt = Adam(lr=1e-3)
    opt.update(field)
    p = cn.uniform(2, cn.Key(7), ns.Float, samples)
    dr.eval(p)

    @dr.freeze
    def step(field: cn.NeuralField, opt: Adam, p: Any, i: Any) -> None:
        field.update(opt)
        example.differentiate(field, p, cn.Key(8, step=i))
        opt.step()

    def steps(first: int) -> None:
        for i in range(first, first + 3):
            step(field, opt, p, dr.opaque(ns.UInt32, i))
        dr.sync_thread()

    steps(0)
    start = in_use(backend)
    steps(3)
    return taken(backend) - start


def torch_saved(samples: int, dropout: float) -> int | None:
    """Bytes of the tensors that PyTorch keeps between forward and backward, the parameters left out."""
    try:
        import torch
    except ImportError:
        return None
    layers: list[Any] = []
    for n_in in [2] + [example.WIDTH] * (example.DEPTH - 1):
        layers += [torch.nn.Linear(n_in, example.WIDTH), torch.nn.SiLU(), torch.nn.Dropout(dropout)]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(example.WIDTH, 1))
    own = {v.untyped_storage().data_ptr() for v in net.parameters()}
    kept: dict[int, int] = {}

    def keep(v: Any) -> Any:
        storage = v.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return v

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda v: v):
        loss = net(torch.rand(samples, 2)).square().mean()
    loss.backward()
    return sum(kept.values())


def memory(backend: str, samples: int) -> dict[str, Any]:
    found = {"samples": samples, "layers": example.DEPTH, "width": example.WIDTH}
    ways = {"plain": 0.0, "dropout": example.P}
    return found | {
        "peak": {way: peak(backend, samples, p) for way, p in ways.items()},
        "byte_masks": samples * example.DEPTH * example.WIDTH,
        "torch_saved": {way: torch_saved(samples, p) for way, p in ways.items()},
    }


def masks(backend: str, elements: int, samples: int) -> dict[str, int]:
    """How many elements of masks differ between the backend and NumPy."""
    ns, number = cn.backend.namespace(backend), np.arange(samples, dtype=np.uint32)
    ours = cn.dropout_mask(elements, example.P, cn.Key(5, index=ns.UInt32(number), step=1))
    plain = cn.dropout_mask(elements, example.P, cn.Key(5, index=number, step=1))
    differ = np.stack([np.asarray(m) for m in ours]) != np.stack([np.asarray(m) for m in plain])
    return {"elements": elements, "samples": samples, "different": int(differ.sum())}


def main() -> None:
    args = common.arguments(
        (__doc__ or "").split("\n\n")[0],
        seeds=dict(nargs="+", type=int, default=[1, 2, 3]),
        steps=dict(type=int, default=example.STEPS),
        batches=dict(type=int, default=16, help="whose gradients are compared"),
        log2_samples=dict(type=int, default=20, help="of the training step whose memory is measured"),
        log2_batch=dict(type=int, default=16, help="of the batch in chunks"),
    )
    results = {
        "replay": replay(args.backend, args.seeds, args.steps, 1 << 14, args.batches),
        "chunks": chunks(args.backend, 1 << args.log2_batch, 16),
        "memory": memory(args.backend, 1 << args.log2_samples),
        "masks": masks(args.backend, 64, 1000),
    }
    for name, found in results.items():
        print(name, found["median"] if name == "replay" else found)
    print("written to", common.write("replayed-adjoint", args.backend, results, args.out))


if __name__ == "__main__":
    main()
