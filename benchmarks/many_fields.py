"""A thousand small fields: trained by ``fit_many``, by a loop of ``fit``, and by PyTorch with stacked weights.

Each field learns a picture of 16 x 16 pixels from random samples of it: 4 octaves of sines and cosines, a network
16 -> w -> w -> 3 with ReLU and no biases, Adam, squared error; single precision on LLVM, half precision on CUDA. Peers:

- ``fit_many``: as it decides; ``one by one``: with ``together=1``; ``two processes``: that, in halves (LLVM);
- ``together``: several fields in one kernel, which ``fit_many`` does on CUDA alone;
- ``fit``: a loop of ``coopnet.fit``, over a few fields;
- ``torch``: ``bmm`` over stacked weights, eager; on CUDA also as a CUDA graph, with half-precision autocast. The best
  size of a stack of those tried. ``torch-compile`` is to be asked for: it takes half a minute for each case.

Every peer has a process of its own. Times are those of whole trainings, with what is traced anew for them, but without
compilation (``first_s`` is a short training before); PyTorch's are medians of a step. ``us_per_further_step`` is what
a field and a step more take. With ``--rounds``, all peers have as many turns, and what counts is the median of each
case: for machines with other work to do.

    PYTHONPATH=. python benchmarks/many_fields.py --backend llvm
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

import common
import numpy as np

SIDE, OCTAVES, RATE = 16, 4, 1e-3
PEERS = {
    "llvm": ["fit_many", "together", "two processes", "fit", "torch"],
    "cuda": ["fit_many", "one by one", "fit", "torch", "torch-graph"],
}
#: Fields that a peer is measured with, where that is enough to know the time of one.
FEW = {"fit": 8, "one by one": 32, "together": 128}
#: The same on LLVM, of batches of more than 256 samples.
FEW_LARGE = 64
#: How many times as many steps another training of ``fit_many`` takes on CUDA, for the time of further steps.
LONGER = 6


def pictures(fields: int) -> np.ndarray:
    return np.random.default_rng(0).random((fields, SIDE, SIDE, 3), np.float32)


class Job:
    """What coopnet trains."""

    def __init__(self, backend: str, fields: int, width: int, samples: int):
        import drjit as dr

        import coopnet as cn

        ns = cn.backend.namespace(backend)
        data = ns.Float(pictures(fields).ravel())
        encoding = cn.Sinusoidal(OCTAVES, in_features=2)
        architecture = cn.NeuralField(encoding, cn.MLP(out_features=3, width=width, depth=2))
        self.fields = [architecture.build(backend, seed=seed) for seed in range(fields)]
        self.number = ns.UInt32

        def batch(key: Any, job: Any) -> tuple:
            x, y = cn.uniform(2, key, ns.Float, samples)
            pixel = (job * SIDE**2 + ns.UInt32(y * SIDE) * SIDE + ns.UInt32(x * SIDE)) * 3
            return [x, y], [dr.gather(ns.Float, data, pixel + c) for c in range(3)]

        self.batch = batch


def with_coopnet(backend: str, peer: str, fields: int, width: int, samples: int, steps: int) -> dict[str, Any]:
    import drjit as dr

    import coopnet as cn

    few = min(fields, FEW.get(peer, fields))
    if backend == "llvm" and samples > 256:
        few = min(few, FEW_LARGE)
    together = {"one by one": 1, "two processes": 1, "together": min(few, 32)}.get(peer)

    def train(job: Job, steps: int, directory: str | None = None) -> list:
        start = time.perf_counter()
        if peer == "fit":
            results = []
            for number, field in enumerate(job.fields):
                own = dr.opaque(job.number, number)
                batch = lambda key, own=own: job.batch(key, own)  # noqa: E731
                results.append(cn.fit(field, batch, steps, lr=RATE, seed=number, progress=False))
        else:
            options = {"together": together, "directory": directory, "progress": False}
            results = cn.fit_many(job.fields, job.batch, steps, lr=RATE, **options)
        dr.sync_thread()
        return [time.perf_counter() - start, results]

    # as many as one kernel has later, which is compiled for that number
    warm = together or -(-few // -(-few // 128))
    with tempfile.TemporaryDirectory() as directory:
        shared = peer == "two processes"
        first, _ = train(Job(backend, min(few, max(warm, 2)), width, samples), 3, directory if shared else None)
        job = Job(backend, few, width, samples)
        place = os.path.join(os.environ.get("COOPNET_RESULTS", directory), f"{width}-{samples}")
        seconds, results = train(job, steps, place if shared else None)
    losses = [r.losses[-1] for r in results if r is not None]
    found = {"fields": few, "steps": steps, "first_s": first, "seconds": seconds}
    found["trained"] = len(losses)
    if peer == "fit_many" and backend == "cuda":  # what is done once for a field counts less in longer trainings
        longer, _ = train(Job(backend, few, width, samples), LONGER * steps)
        found["us_per_further_step"] = 1e6 * (longer - seconds) / few / (LONGER - 1) / steps
    if peer == "fit_many":
        found["error"] = error(backend, job, width, samples, min(steps, 20))
    return found | {"loss": statistics.mean(losses), "us_per_field_and_step": 1e6 * seconds / few / steps}


def error(backend: str, job: Job, width: int, samples: int, steps: int) -> float:
    """Largest relative difference between losses of ``fit_many`` and ``fit``, of a few fields over a few steps."""
    import drjit as dr

    import coopnet as cn

    alone, many = (Job(backend, 4, width, samples) for _ in range(2))
    results = cn.fit_many(many.fields, many.batch, steps, lr=RATE, progress=False)
    worst = 0.0
    for number, (field, result) in enumerate(zip(alone.fields, results, strict=True)):
        own = dr.opaque(job.number, number)
        want = cn.fit(field, lambda key, n=own: alone.batch(key, n), steps, lr=RATE, seed=number, progress=False)
        worst = max(worst, float(np.max(np.abs(np.subtract(result.losses, want.losses) / want.losses))))
    return worst


def with_torch(backend: str, peer: str, fields: int, width: int, samples: int, steps: int) -> dict[str, Any]:
    best: dict[str, Any] = {}
    sizes = [fields] if backend == "cuda" else [min(50, fields), fields] if samples <= 256 else [min(50, fields)]
    for size in dict.fromkeys(sizes):
        found = _torch_stack(backend, peer, size, width, samples)
        if not best or found["us_per_field_and_step"] < best["us_per_field_and_step"]:
            best = found
    return best


def _torch_stack(backend: str, peer: str, fields: int, width: int, samples: int) -> dict[str, Any]:
    import torch

    device = "cuda" if backend == "cuda" else "cpu"
    torch.manual_seed(0)
    n_in = 4 * OCTAVES
    widths = [n_in, width, width, 3]
    weights = [torch.randn(fields, a, b, device=device) * math.sqrt(2 / a) for a, b in itertools.pairwise(widths)]
    for w in weights:
        w.requires_grad_()
    graph = peer == "torch-graph"
    optimizer = torch.optim.Adam(weights, lr=RATE, fused=True, capturable=graph)
    data = torch.from_numpy(pictures(fields).reshape(fields, -1, 3)).to(device)
    octaves = math.pi * 2 ** torch.arange(OCTAVES, device=device)
    scale = 1024.0 if device == "cuda" else 1.0

    def loss_of() -> Any:
        x = torch.rand(fields, samples, 2, device=device)
        cell = (x * SIDE).long()
        target = torch.gather(data, 1, (cell[..., 1] * SIDE + cell[..., 0])[..., None].expand(-1, -1, 3))
        angle = (x[..., None] * octaves).flatten(2)
        with torch.autocast("cuda", torch.float16, enabled=device == "cuda"):
            h = torch.cat([angle.sin(), angle.cos()], -1)
            for w in weights[:-1]:
                h = torch.relu(torch.bmm(h, w))
            y = torch.bmm(h, weights[-1])
        return scale * (y.float() - target).square().mean((1, 2)).sum()

    forward = torch.compile(loss_of) if peer == "torch-compile" else loss_of

    def step() -> Any:
        for w in weights:
            w.grad = None
        loss = forward()
        loss.backward()
        if scale != 1:
            torch._foreach_mul_([w.grad for w in weights], 1 / scale)
        optimizer.step()
        return loss

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    start = time.perf_counter()
    step()
    wait()
    first = time.perf_counter() - start
    run: Callable[[], Any] = step
    if graph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            step()
        run = recorded.replay
    many = 20 if device == "cuda" else 1

    def several() -> None:
        for _ in range(many):
            run()
        wait()

    seconds = common.median_seconds(several, repeat=5 if fields * samples * width < 1 << 25 else 3, warmup=1) / many
    found = {"fields": fields, "first_s": first, "us_per_field_and_step": 1e6 * seconds / fields}
    return found | {"loss": float(step().detach()) / fields / scale}


def child(backend: str, peer: str, fields: int, cases: list[tuple[int, int, int]]) -> None:
    """Measure one peer, and print a line for each case."""
    run = with_torch if peer.startswith("torch") else with_coopnet
    for width, samples, steps in cases:
        entry: dict[str, Any] = {"peer": peer, "width": width, "samples": samples}
        try:
            entry |= run(backend, peer, fields, width, samples, steps)
        except Exception as problem:  # another case, or peer, may do
            traceback.print_exc()
            entry["failed"] = f"{type(problem).__name__}: {problem}"[:300]
        print("RESULT " + json.dumps(entry), flush=True)


def processes(arguments: list[str]) -> list[dict[str, Any]]:
    """Run two processes that share the fields; their common results."""
    environment = dict(os.environ, WORLD_SIZE="2", OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as place:
        started = []
        for rank in range(2):
            own = environment | {"RANK": str(rank), "COOPNET_RESULTS": place}
            started.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=own))
        parts = [_entries(p.communicate()[0]) for p in started]
    merged = []
    for pair in zip(*parts, strict=True):
        if any("failed" in e for e in pair):
            merged.append(next(e for e in pair if "failed" in e))
            continue
        slower = max(pair, key=lambda e: e["seconds"])
        merged.append(slower | {"trained": sum(e["trained"] for e in pair)})
    return merged


def _entries(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("RESULT ")) for line in text.splitlines() if line.startswith("RESULT ")]


def median(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The entry of the median time among those of one case, with all ``times``."""
    timed = sorted((e for e in found if "failed" not in e), key=lambda e: e["us_per_field_and_step"])
    return timed[(len(timed) - 1) // 2] | {"times": [e["us_per_field_and_step"] for e in timed]} if timed else found[0]


def main() -> None:
    text = {"type": lambda text: [int(v) for v in text.split(",")]}
    args = common.arguments(
        __doc__.splitlines()[0],
        fields={"type": int, "default": 1000}, widths=text | {"default": [16, 32, 64]},
        samples=text | {"default": [256, 1024, 4096]}, steps={"type": int, "default": 100},
        peers={"default": "", "help": "names separated by commas"}, child={"default": ""},
        rounds={"type": int, "default": 1},
    )  # fmt: skip
    if args.child:
        samples = args.samples[:1] if args.child == "together" else args.samples  # on LLVM it takes minutes
        child(args.backend, args.child, args.fields, [(w, n, args.steps) for n in samples for w in args.widths])
        return
    cases: dict[tuple, list[dict[str, Any]]] = {}
    for _ in range(args.rounds):
        for peer in args.peers.split(",") if args.peers else PEERS[args.backend]:
            own = [sys.executable, __file__, "--backend", args.backend, "--fields", str(args.fields), "--steps"]
            own += [str(args.steps), "--widths", ",".join(map(str, args.widths)), "--samples"]
            own += [",".join(map(str, args.samples)), "--child", peer]
            if peer == "two processes":
                found = processes(own)
            else:
                found = _entries(subprocess.run(own, stdout=subprocess.PIPE, text=True, check=False).stdout)
            for e in found:
                time_of = f"{e['us_per_field_and_step']:9.1f} us" if "failed" not in e else f"failed: {e['failed']}"
                print(f"{peer:14} w={e['width']:3} n={e['samples']:5} {time_of}", flush=True)
                cases.setdefault((peer, e["width"], e["samples"]), []).append(e)
            entries = [median(found) if args.rounds > 1 else found[0] for found in cases.values()]
            common.write("many-fields", args.backend, {"fields": args.fields, "entries": entries}, args.out)


if __name__ == "__main__":
    main()
