"""Whole training steps, by coopnet and by its peers: batch, network, loss, gradients, Adam, and all that Python does.

The network is 16 -> w -> w -> w -> 3 with ReLU or another of ``--activations``, and no biases: single precision on
LLVM, half precision on CUDA (PyTorch by autocast). Every step draws uniform points, compares with sines of three of
their coordinates, and moves. Peers:

- ``coopnet``: ``coopnet.fit``;
- ``drjit``: ``drjit.nn`` on tensors, Adam, all of a step in one ``dr.freeze`` (single precision, LLVM only);
- ``torch``: eager, with Adam's fused kernel; ``torch-compile``: the step compiled but for the optimizer, on CUDA as a
  graph (``mode="reduce-overhead"``).

Every peer has a process of its own, one works at a time, and they take turns; figures are medians of turns, of which
each is a median of steps. ``--target`` lets all of them play another processor.

    PYTHONPATH=. python benchmarks/training_steps.py --backend llvm
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import common

N_IN, N_OUT, DEPTH, RATE = 16, 3, 3, 1e-3
PEERS = {"llvm": ["coopnet", "drjit", "torch"], "cuda": ["coopnet", "torch", "torch-compile"]}
KNOWN = ["coopnet", "drjit", "torch", "torch-compile"]
#: Seconds that a turn takes, about; the runs of steps in it, and steps of a run at most. Nobody waits for each step.
SECONDS, RUNS, MOST = 0.3, 10, 400
#: Steps of a training.
WHOLE = 20_000


def timed(step: Callable[[], None], wait: Callable[[], None]) -> float:
    """Median seconds of a step, of ten runs of steps of which only the last is waited for, after warming up."""
    begin = time.perf_counter()
    for _ in range(3):
        step()
    wait()
    every = max(1, min(MOST, int(SECONDS / RUNS * 3 / (time.perf_counter() - begin))))
    times = []
    for _ in range(RUNS + 1):
        begin = time.perf_counter()
        for _ in range(every):
            step()
        wait()
        times.append((time.perf_counter() - begin) / every)
    return statistics.median(times[1:])


def by_coopnet(backend: str, width: int, samples: int, dropout: float, activation: str) -> Iterator[float]:
    import drjit as dr

    import coopnet as cn

    ns = cn.backend.namespace(backend)
    network = cn.MLP(N_IN, N_OUT, width=width, depth=DEPTH, activation=activation, dropout=dropout)
    field = cn.NeuralField(None, network).build(backend, seed=1)

    def batch(key: Any) -> Any:
        x = cn.uniform(N_IN, key, ns.Float32, samples)
        return x, [dr.sin(6 * x[i] + i) for i in range(N_OUT)]

    looks: list[float] = []

    def clock(field: Any) -> float:
        dr.sync_thread()
        looks.append(time.perf_counter())
        return 0.0

    def spans(every: int, steps: int) -> list[float]:
        looks.clear()
        # a long run that ends early: how a step is taken depends on how many are to come
        cn.fit(field, batch, WHOLE, lr=RATE, progress=False, metric=clock, metric_every=every, patience=steps)
        return [(b - a) / every for a, b in itertools.pairwise(looks[2:])]

    every = max(1, min(MOST, int(SECONDS / RUNS / min(spans(1, 8)))))
    while True:
        yield statistics.median(spans(every, RUNS + 2))


def by_drjit(backend: str, width: int, samples: int, dropout: float, activation: str) -> Iterator[float]:
    import drjit as dr
    import drjit.nn as nn
    from drjit.opt import Adam

    from coopnet.backend import namespace

    ns = namespace(backend)
    sizes = [N_IN] + [width] * DEPTH + [N_OUT]
    layers: list[Any] = []
    for i, o in itertools.pairwise(sizes):
        layers += [nn.Linear(i, o, bias=False), nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).alloc(ns.TensorXf, N_IN, rng=dr.rng(1))
    linear = net.layers[::2]
    optimizer = Adam(lr=RATE, params={str(i): layer.weights for i, layer in enumerate(linear)})

    @dr.freeze
    def step(optimizer: Any, number: Any) -> None:
        for i, layer in enumerate(linear):
            layer.weights = optimizer[str(i)]
        generator = dr.rng(seed=number)
        x = generator.random(ns.TensorXf, (N_IN, samples))
        target = dr.sin(6 * x[:N_OUT] + ns.TensorXf(dr.arange(ns.Float, N_OUT), (N_OUT, 1)))
        dr.backward(dr.square(net(x) - target) * (1 / (N_OUT * samples)))
        optimizer.step()

    numbers = itertools.count()

    def take() -> None:
        step(optimizer, dr.opaque(ns.UInt32, next(numbers)))

    while True:
        yield timed(take, dr.sync_thread)


def by_torch(
    backend: str, width: int, samples: int, dropout: float, activation: str, compiled: bool = False
) -> Iterator[float]:  # fmt: skip
    import torch
    from torch import nn

    class Sine(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.sin(x)

    function = {"relu": nn.ReLU, "silu": nn.SiLU, "softplus": nn.Softplus, "tanh": nn.Tanh, "sine": Sine}[activation]

    cuda = backend == "cuda"
    torch.set_num_threads(os.cpu_count() or 1)
    device = torch.device("cuda" if cuda else "cpu")
    sizes = [N_IN] + [width] * DEPTH + [N_OUT]
    layers: list[Any] = []
    for i, o in itertools.pairwise(sizes):
        layers += [nn.Linear(i, o, bias=False), function()] + ([nn.Dropout(dropout)] if dropout else [])
    net = nn.Sequential(*layers[: -2 if dropout else -1]).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=cuda)
    phase = torch.arange(N_OUT, device=device)

    def loss() -> Any:
        x = torch.rand(samples, N_IN, device=device)
        target = torch.sin(6 * x[:, :N_OUT] + phase)
        with torch.autocast("cuda", torch.float16, enabled=cuda):
            y = net(x)
        return torch.nn.functional.mse_loss(y.float(), target)

    if compiled:
        torch._dynamo.reset()  # it compiles a function anew for eight sizes only
        loss = torch.compile(loss, dynamic=False, mode="reduce-overhead" if cuda else None)

    def take() -> None:
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss()).backward()
        scaler.step(optimizer)
        scaler.update()

    while True:
        yield timed(take, torch.cuda.synchronize if cuda else lambda: None)


def worker(peer: str, backend: str, target: str | None) -> None:
    """Answer jobs, a line of JSON each: another turn of the same job goes on where the last one ended."""
    if target and "torch" not in peer:
        from coopnet.jit.native.core import set_llvm_target

        set_llvm_target(target, common.TARGETS[target][0])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is not an answer
    turns: dict[str, Iterator[float]] = {}
    for line in sys.stdin:
        if line not in turns:
            turns.clear()
            job = json.loads(line)
            if peer == "coopnet":
                turns[line] = by_coopnet(backend, **job)
            elif peer == "drjit":
                turns[line] = by_drjit(backend, **job)
            else:
                turns[line] = by_torch(backend, **job, compiled=peer == "torch-compile")
        answers.write(json.dumps(next(turns[line])) + "\n")
        answers.flush()


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        common.empty_caches()
        worker(*sys.argv[2:4], target=sys.argv[4] if sys.argv[4:] else None)
        return
    args = common.arguments(
        __doc__,
        widths=dict(default="16,32,64,128", help="such as 16,64"),
        log2_samples=dict(default="12,14,16,17", help="of a batch, such as 12,14"),
        dropouts=dict(default="0,0.1", help="such as 0,0.1"),
        activations=dict(default="relu", help="such as silu,sine; these have a file of their own"),
        peers=dict(help=f"of {', '.join(KNOWN)}, separated by commas"),
        turns=dict(type=int, default=5, help="turns of each peer"),
        target=dict(choices=common.TARGETS, help="let all libraries play this processor (LLVM backend)"),
    )
    peers = args.peers.split(",") if args.peers else PEERS[args.backend]
    playing = common.TARGETS[args.target][1] if args.target else {}
    activations = args.activations.split(",")
    parts = ["training-steps", *([] if activations == ["relu"] else ["activations"]), args.target]
    name = "-".join(part for part in parts if part)
    workers = {
        peer: subprocess.Popen(
            [sys.executable, __file__, "--worker", peer, args.backend, *([args.target] if args.target else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | playing,
        )
        for peer in peers
    }  # fmt: skip
    rows = []
    for width, log2, dropout, activation in itertools.product(
        map(int, args.widths.split(",")), map(int, args.log2_samples.split(",")), map(float, args.dropouts.split(",")),
        activations,
    ):  # fmt: skip
        # drjit.nn has no dropout, and few activations
        taking = [p for p in peers if p != "drjit" or not (dropout or activation != "relu")]
        job = json.dumps({"width": width, "samples": 1 << log2, "dropout": dropout, "activation": activation})
        found: dict[str, list[float]] = {peer: [] for peer in taking}
        for _ in range(args.turns):
            for peer in taking:
                process = workers[peer]
                assert process.stdin and process.stdout
                process.stdin.write(job + "\n")
                process.stdin.flush()
                if not (answer := process.stdout.readline()):
                    raise SystemExit(f"{peer} ended: see above")
                found[peer].append(1e3 * float(answer))
        row: dict[str, Any] = {"width": width, "log2_samples": log2, "dropout": dropout, "activation": activation}
        row["wall_ms"] = {peer: statistics.median(turns) for peer, turns in found.items()}
        row["turns_ms"] = found
        rows.append(row)
        times = ", ".join(f"{peer} {ms:.3f}" for peer, ms in row["wall_ms"].items())
        print(f"w={width:<4} 2^{log2} {activation} dropout {dropout:g}: {times} ms", file=sys.stderr, flush=True)
        common.write(name, args.backend, rows, args.out)
    for process in workers.values():
        assert process.stdin
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
